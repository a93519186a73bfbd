"""Parametric densities for kernels from generative models: learned from rows (`fit`), or given (`of`)."""

from mercer.kernels.densities.base import ParametricDensity
from mercer.kernels.densities.factor import FactorAnalysis
from mercer.kernels.densities.gaussian import Gaussian, GaussianMixture
from mercer.kernels.densities.markov import HiddenMarkovModel
from mercer.kernels.densities.multinomial import MultinomialMixture

__all__ = [
    "FactorAnalysis",
    "Gaussian",
    "GaussianMixture",
    "HiddenMarkovModel",
    "MultinomialMixture",
    "ParametricDensity",
]
