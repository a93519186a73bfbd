"""Gaussian likelihood: every approximate inference must then be exact."""

import math

import numpy as np

from mercer.core.parameters import PositiveArray
from mercer.gp.likelihood import Derivatives, Expected, Likelihood, Tilted


class Gaussian(Likelihood):
    """p(t | f) = N(t | f, noise)."""

    noise: PositiveArray

    def derivatives(self, f, t):
        away, flat = (t - f) / self.noise, np.zeros_like(t * f)
        value = -0.5 * (self.noise * away**2 + math.log(2 * math.pi) + np.log(self.noise))
        return Derivatives(value, away, flat - 1 / self.noise, flat)

    def tilted(self, mean, variance, t):
        return Tilted(*Gaussian(self.noise + variance).derivatives(mean, t)[:3])

    def expected(self, mean, variance, t):
        value, first, second, _ = self.derivatives(mean, t)
        return Expected(value + 0.5 * variance * second, first, 0.5 * second)

    def closed_form(self, mean, variance):
        raise NotImplementedError("t is a number, not a class")
