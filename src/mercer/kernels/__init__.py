"""Kernels: similarities that compose like arithmetic and carry their proof of validity.

>>> from mercer import kernels as k
>>> kernel = 2.0 * k.RBF(lengthscale=0.5) + k.Linear() * k.Periodic(period=1.0)
>>> kernel.validity.proof
6.17 from (6.13 from 6.23) and (6.18 from 6.20 and (6.19 from 6.23))
"""

from mercer.kernels.base import Kernel
from mercer.kernels.custom import Custom, FeatureMap, Precomputed
from mercer.kernels.dot import Linear, Polynomial, Sigmoid
from mercer.kernels.neural import ArcSine, GaussianNetwork
from mercer.kernels.periodic import Periodic, RadialPeriodic
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

Gaussian = RBF

__all__ = [
    "RBF",
    "ArcSine",
    "Constant",
    "Custom",
    "Exponential",
    "FeatureMap",
    "Gaussian",
    "GaussianNetwork",
    "Kernel",
    "Linear",
    "Matern",
    "Periodic",
    "Polynomial",
    "Precomputed",
    "RadialPeriodic",
    "RationalQuadratic",
    "Sigmoid",
    "Standard",
    "ThinPlate",
    "White",
]
