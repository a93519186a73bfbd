"""mercer: kernel methods and Gaussian processes.

>>> import mercer as mc
>>> from mercer import kernels as k
>>> f = mc.GP(k.RBF() + k.White(0.01))
>>> f.sample([0.0, 0.5, 1.0], size=2, seed=0).shape
(2, 3)
"""

from mercer import basis, datasets, kernels, plot, priors
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
from mercer.kernels.check import check_kernel, mercer_expansion
from mercer.models.classification import GaussianProcessClassifier
from mercer.models.density import ParzenDensity
from mercer.models.discriminant import KernelFisherDiscriminant
from mercer.models.interpolator import RBFInterpolator
from mercer.models.kernel_regression import NadarayaWatson
from mercer.models.linear import BayesianLinearRegression
from mercer.models.mixture import GaussianMixtureRegressor
from mercer.models.neighbors import KernelNeighborsClassifier
from mercer.models.network import RBFNetwork
from mercer.models.pca import KernelPCA
from mercer.models.perceptron import KernelPerceptron
from mercer.models.regression import GaussianProcessRegressor
from mercer.models.ridge import KernelRidge
from mercer.persist import load, save

__version__ = "0.1.0"

__all__ = [
    "GP",
    "BayesianLinearRegression",
    "DataError",
    "FileError",
    "ForkedProcessError",
    "GaussianMixtureRegressor",
    "GaussianProcessClassifier",
    "GaussianProcessRegressor",
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
    "NadarayaWatson",
    "NotEnoughMemoryError",
    "NotPositiveDefiniteError",
    "NumericalWarning",
    "ParameterError",
    "ParzenDensity",
    "RBFInterpolator",
    "RBFNetwork",
    "basis",
    "check_kernel",
    "datasets",
    "kernels",
    "load",
    "mercer_expansion",
    "plot",
    "priors",
    "save",
]
