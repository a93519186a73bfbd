"""mercer: kernel methods and Gaussian processes.

>>> import mercer as mc
>>> from mercer import kernels as k
>>> f = mc.GP(k.RBF() + k.White(0.01))
>>> f.sample([0.0, 0.5, 1.0], size=2, seed=0).shape
(2, 3)
"""

import importlib
import os
from typing import TYPE_CHECKING

# OpenBLAS threads spin for tens of milliseconds after every call. Kernels are computed on the same cores between two
# factorisations, and take 1.5 times as long because of it. OpenBLAS reads the timeout when SciPy loads it: half a
# millisecond (2^20 cycles) does not slow down the factorisations. A user's setting is kept.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

if TYPE_CHECKING:
    from mercer import basis, datasets, kernels, likelihoods, means, operators, plot, priors, solvers, tools
    from mercer.check import check_kernel, mercer_expansion
    from mercer.core.errors import (
        DataError,
        FileError,
        ForkedProcessError,
        InfiniteFeaturesError,
        InterruptedFitWarning,
        InvalidKernelError,
        MercerError,
        ModelWarning,
        NotEnoughMemoryError,
        NotPositiveDefiniteError,
        NumericalWarning,
        ParameterError,
    )
    from mercer.gp.process import GP
    from mercer.learning.search import select_kernel
    from mercer.models.classification import GaussianProcessClassifier
    from mercer.models.density import ParzenDensity
    from mercer.models.discriminant import KernelFisherDiscriminant
    from mercer.models.forecast import forecast
    from mercer.models.heteroscedastic import HeteroscedasticGaussianProcessRegressor
    from mercer.models.interpolator import RBFInterpolator
    from mercer.models.kernel_regression import NadarayaWatson
    from mercer.models.latent_variables import GaussianProcessLatentVariables
    from mercer.models.linear import BayesianLinearRegression
    from mercer.models.mixture import GaussianMixtureRegressor
    from mercer.models.neighbors import KernelNeighborsClassifier
    from mercer.models.network import RBFNetwork
    from mercer.models.optimizer import Optimizer, minimize
    from mercer.models.outputs import MultiOutputGaussianProcessRegressor
    from mercer.models.pca import KernelPCA
    from mercer.models.perceptron import KernelPerceptron
    from mercer.models.regression import GaussianProcessRegressor
    from mercer.models.ridge import KernelRidge
    from mercer.models.topographic import GenerativeTopographicMapping
    from mercer.persist import load, save

__version__ = "0.1.0"

_SUBMODULES = (
    "basis",
    "datasets",
    "kernels",
    "likelihoods",
    "means",
    "operators",
    "plot",
    "priors",
    "solvers",
    "tools",
)
_HOMES = {  # of public names, which are loaded when first asked for
    "BayesianLinearRegression": "mercer.models.linear",
    "check_kernel": "mercer.check",
    "DataError": "mercer.core.errors",
    "FileError": "mercer.core.errors",
    "ForkedProcessError": "mercer.core.errors",
    "forecast": "mercer.models.forecast",
    "GaussianMixtureRegressor": "mercer.models.mixture",
    "GaussianProcessClassifier": "mercer.models.classification",
    "GaussianProcessLatentVariables": "mercer.models.latent_variables",
    "GaussianProcessRegressor": "mercer.models.regression",
    "GenerativeTopographicMapping": "mercer.models.topographic",
    "GP": "mercer.gp.process",
    "HeteroscedasticGaussianProcessRegressor": "mercer.models.heteroscedastic",
    "InfiniteFeaturesError": "mercer.core.errors",
    "InterruptedFitWarning": "mercer.core.errors",
    "InvalidKernelError": "mercer.core.errors",
    "KernelFisherDiscriminant": "mercer.models.discriminant",
    "KernelNeighborsClassifier": "mercer.models.neighbors",
    "KernelPCA": "mercer.models.pca",
    "KernelPerceptron": "mercer.models.perceptron",
    "KernelRidge": "mercer.models.ridge",
    "load": "mercer.persist",
    "mercer_expansion": "mercer.check",
    "MercerError": "mercer.core.errors",
    "ModelWarning": "mercer.core.errors",
    "MultiOutputGaussianProcessRegressor": "mercer.models.outputs",
    "minimize": "mercer.models.optimizer",
    "NadarayaWatson": "mercer.models.kernel_regression",
    "NotEnoughMemoryError": "mercer.core.errors",
    "NotPositiveDefiniteError": "mercer.core.errors",
    "NumericalWarning": "mercer.core.errors",
    "ParameterError": "mercer.core.errors",
    "Optimizer": "mercer.models.optimizer",
    "ParzenDensity": "mercer.models.density",
    "RBFInterpolator": "mercer.models.interpolator",
    "RBFNetwork": "mercer.models.network",
    "save": "mercer.persist",
    "select_kernel": "mercer.learning.search",
}

__all__ = [
    "GP",
    "BayesianLinearRegression",
    "DataError",
    "FileError",
    "ForkedProcessError",
    "GaussianMixtureRegressor",
    "GaussianProcessClassifier",
    "GaussianProcessLatentVariables",
    "GaussianProcessRegressor",
    "GenerativeTopographicMapping",
    "HeteroscedasticGaussianProcessRegressor",
    "InfiniteFeaturesError",
    "InterruptedFitWarning",
    "InvalidKernelError",
    "KernelFisherDiscriminant",
    "KernelNeighborsClassifier",
    "KernelPCA",
    "KernelPerceptron",
    "KernelRidge",
    "MercerError",
    "ModelWarning",
    "MultiOutputGaussianProcessRegressor",
    "NadarayaWatson",
    "NotEnoughMemoryError",
    "NotPositiveDefiniteError",
    "NumericalWarning",
    "Optimizer",
    "ParameterError",
    "ParzenDensity",
    "RBFInterpolator",
    "RBFNetwork",
    "basis",
    "check_kernel",
    "datasets",
    "forecast",
    "kernels",
    "likelihoods",
    "load",
    "means",
    "mercer_expansion",
    "minimize",
    "operators",
    "plot",
    "priors",
    "save",
    "select_kernel",
    "solvers",
    "tools",
]


if not TYPE_CHECKING:  # type checkers look at the imports above

    def __getattr__(name: str):
        if name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        elif name in _SUBMODULES:
            value = importlib.import_module(f"mercer.{name}")
        else:
            raise AttributeError(f"module 'mercer' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__():
    return sorted({*globals(), *__all__})
