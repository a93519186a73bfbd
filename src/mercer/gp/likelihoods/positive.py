"""Likelihood of positive values with a constant coefficient of variation: the gamma distribution."""

from typing import Self

import numpy as np
from scipy.special import digamma, gammainc, gammaln

from mercer.core.parameters import Positive, evolve
from mercer.gp.likelihood import Derivatives, Expected
from mercer.gp.likelihoods.base import Target, TargetLikelihood, refuse, register

MIN_SHAPE, MAX_SHAPE = 1e-2, 1e8
NOISE_SHARES = (0.5, 0.05)  # of the variance of ln y, where 1 / shape starts
POSITIVE = "Leave out zeros, or use likelihood='censored' with the detection limit: fit(X, y, lower=limit)."


@register
class Gamma(TargetLikelihood):
    """Positive values with mean m = exp(f) and variance m^2 / ``shape``."""

    label = "gamma"
    shape: Positive = 1.0

    def derivatives(self, f: np.ndarray, t: Target) -> Derivatives:
        k, eta = self.shape, f + t.offset
        with np.errstate(over="ignore"):
            x = k * t.y * np.exp(-eta)
        value = k * (np.log(k) + np.log(t.y) - eta) - gammaln(k) - np.log(t.y) - x
        return Derivatives(value, x - k, -x, x)

    def expected(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Expected:
        """As ln p(y | m), with y exp(v / 2) in the place of y in the exponential."""
        k, eta = self.shape, mean + t.offset
        with np.errstate(over="ignore"):
            x = k * t.y * np.exp(0.5 * variance - eta)
        return Expected(k * (np.log(k) + np.log(t.y) - eta) - gammaln(k) - np.log(t.y) - x, x - k, -0.5 * x)

    def all_slopes(self, f: np.ndarray, t: Target) -> np.ndarray:
        k, eta = self.shape, f + t.offset
        with np.errstate(over="ignore"):
            x = k * t.y * np.exp(-eta)
        level = k * (np.log(k) + 1 - digamma(k) + np.log(t.y) - eta) - x
        return np.stack(np.broadcast_arrays(level, x - k, -x))[None]

    def checked(self, t: Target) -> Target:
        refuse("likelihood='gamma' is for positive values", t.y <= 0, t.y, POSITIVE)
        return t

    def support(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(t), np.finfo(float).tiny), np.full(len(t), np.inf)

    def centre_and_scale(self, t: Target) -> tuple[float, float]:
        return float(np.mean(np.log(t.y))), 1.0

    def marks(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        return np.log(np.maximum(t.y, np.finfo(float).tiny)), np.full(np.shape(t.y), 1 / np.sqrt(self.shape))

    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            mean = np.exp(eta)
            return mean, mean**2 / self.shape

    def moments(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            first = np.exp(mean + t.offset + 0.5 * variance)
            return first, first**2 * (np.expm1(variance) + np.exp(variance) / self.shape)

    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        with np.errstate(over="ignore"):
            return gammainc(self.shape, self.shape * np.maximum(y, 0.0) * np.exp(-eta))

    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        return np.exp(eta) * rng.gamma(self.shape, 1 / self.shape, np.shape(eta))

    def starts(self, t: Target) -> list[tuple[Self, float]]:
        variance = max(float(np.var(np.log(t.y))), 1e-6)
        shapes = (self.shape,) if "shape" in self.fixed else [1 / (share * variance) for share in NOISE_SHARES]
        return [(evolve(self, shape=np.float64(shape)), variance) for shape in shapes]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        moving = self.moving()
        return np.log([MIN_SHAPE])[moving], np.log([MAX_SHAPE])[moving]
