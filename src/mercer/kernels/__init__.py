"""Kernels: similarities that compose like arithmetic and carry their proof of validity.

>>> from mercer import kernels as k
>>> kernel = 2.0 * k.RBF(lengthscale=0.5) + k.Linear() * k.Periodic(period=1.0)
>>> kernel.validity.proof
6.17 from (6.13 from 6.23) and (6.18 from 6.20 and (6.19 from 6.23))
"""

import difflib
from typing import NoReturn

from mercer.kernels import densities as densities
from mercer.kernels.autoregressive import AR, ARMA
from mercer.kernels.base import Kernel
from mercer.kernels.changes import Line, Step
from mercer.kernels.coregionalization import Coregionalization
from mercer.kernels.custom import Custom, FeatureMap, Precomputed
from mercer.kernels.dot import Linear, Polynomial, Sigmoid
from mercer.kernels.generative.density import Density, Mixture
from mercer.kernels.generative.fisher import Fisher
from mercer.kernels.generative.hidden_markov import HiddenMarkov
from mercer.kernels.generative.latent import Latent
from mercer.kernels.neural import ArcSine, GaussianNetwork
from mercer.kernels.periodic import Cosine, Periodic, RadialPeriodic
from mercer.kernels.seasonal import Seasonal
from mercer.kernels.splines import ThinPlate
from mercer.kernels.stationary import (
    RBF,
    Constant,
    Exponential,
    Matern,
    RationalQuadratic,
    Standard,
    White,
)
from mercer.kernels.structured.categories import Categorical
from mercer.kernels.structured.graphs import RandomWalk, ShortestPath, WeisfeilerLehman
from mercer.kernels.structured.sets import Subsets, Tanimoto
from mercer.kernels.structured.strings import Spectrum, Subsequence, WeightedDegree
from mercer.kernels.structured.text import BagOfWords

Gaussian = RBF


def __getattr__(name: str) -> NoReturn:
    close = difflib.get_close_matches(name.lower(), [word.lower() for word in __all__], n=1)
    meant = [word for word in __all__ if close and word.lower() == close[0]]
    hint = f" Did you mean {meant[0]}?" if meant else ""
    raise AttributeError(f"mercer.kernels has no {name!r}.{hint}")


__all__ = [
    "AR",
    "ARMA",
    "RBF",
    "ArcSine",
    "BagOfWords",
    "Categorical",
    "Constant",
    "Coregionalization",
    "Cosine",
    "Custom",
    "Density",
    "Exponential",
    "FeatureMap",
    "Fisher",
    "Gaussian",
    "GaussianNetwork",
    "HiddenMarkov",
    "Kernel",
    "Latent",
    "Line",
    "Linear",
    "Matern",
    "Mixture",
    "Periodic",
    "Polynomial",
    "Precomputed",
    "RadialPeriodic",
    "RandomWalk",
    "RationalQuadratic",
    "Seasonal",
    "ShortestPath",
    "Sigmoid",
    "Spectrum",
    "Standard",
    "Step",
    "Subsequence",
    "Subsets",
    "Tanimoto",
    "ThinPlate",
    "WeightedDegree",
    "WeisfeilerLehman",
    "White",
]
