"""Predictive distributions: one number for each row."""

import abc
import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from mercer.core.errors import ParameterError


class Distribution(abc.ABC):
    """Independent distributions of one number for each of s rows: normal, a mixture, or of another likelihood."""

    mean: np.ndarray  # (s,)
    deviation: np.ndarray  # standard deviation (s,)

    @abc.abstractmethod
    def cdf(self, y: ArrayLike) -> np.ndarray:
        """P(value <= y): (s,)."""

    @abc.abstractmethod
    def quantile(self, q: ArrayLike) -> np.ndarray:
        """Quantile q: (s,) for a number, (s, L) for L of them."""

    @abc.abstractmethod
    def log_density(self, y: ArrayLike) -> np.ndarray:
        """ln p(y): (s,)."""

    @abc.abstractmethod
    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Independent draws: (s, size)."""

    @abc.abstractmethod
    def scaled(self, factor: float, shift: float = 0.0) -> "Distribution":
        """Distribution of ``factor`` > 0 times the value, plus ``shift``."""

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval with probability ``level``: (s,) each."""
        if not 0 <= level <= 1:
            raise ParameterError(f"level must lie between 0 and 1, as in 0.95; got {level!r}.")
        ends = self.quantile([0.5 - level / 2, 0.5 + level / 2])
        return ends[:, 0], ends[:, 1]

    def z(self, y: ArrayLike) -> np.ndarray:
        """Values that are standard normal if the prediction is right; for a normal, standardised residuals: (s,)."""
        return ndtri(self.cdf(y))


@dataclasses.dataclass(frozen=True, eq=False)
class Normal(Distribution):
    """N(mean, deviation^2).

    >>> Normal(np.zeros(2), np.array([1.0, 2.0])).interval(0.95)[1].round(2)
    array([1.96, 3.92])
    """

    mean: np.ndarray
    deviation: np.ndarray

    def z(self, y: ArrayLike) -> np.ndarray:
        """Residuals in standard deviations; zero where y equals the mean, even if the deviation is zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(y == self.mean, 0.0, (np.asarray(y) - self.mean) / self.deviation)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return ndtr(self.z(y))

    def quantile(self, q: ArrayLike) -> np.ndarray:
        q = np.asarray(q, dtype=float)
        if not ((q >= 0) & (q <= 1)).all():
            raise ParameterError(f"q must lie between 0 and 1, as in 0.95; got {q!r}.")
        mean, deviation = np.asarray(self.mean), np.asarray(self.deviation)
        offset = np.multiply.outer(deviation, ndtri(q))
        return (mean if q.ndim == 0 else mean[:, None]) + np.where(np.isnan(offset), 0.0, offset)

    def log_density(self, y: ArrayLike) -> np.ndarray:
        """ln N(y | mean, deviation^2); infinite, not NaN, where the deviation is zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            density = -0.5 * self.z(y) ** 2 - np.log(self.deviation) - 0.5 * math.log(2 * math.pi)
        return np.where(self.deviation > 0, density, np.where(y == self.mean, np.inf, -np.inf))

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score (Gneiting and Raftery 2007, eq 21), in the units of y; lower is better.
        The absolute error where the deviation is zero."""
        residual = np.asarray(y, dtype=float) - self.mean
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(self.deviation > 0, residual / self.deviation, np.inf)
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        z = np.where(np.isfinite(z), z, 0.0)
        score = self.deviation * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
        return np.where(self.deviation > 0, score, np.abs(residual))

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        mean, deviation = np.asarray(self.mean)[:, None], np.asarray(self.deviation)[:, None]
        return mean + deviation * rng.standard_normal((len(mean), size))

    def scaled(self, factor: float, shift: float = 0.0) -> "Normal":
        return Normal(self.mean * factor + shift, self.deviation * factor)
