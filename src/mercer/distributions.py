"""Predictive distributions: one number for each row."""

import abc
import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr, ndtri

from mercer.core.errors import ParameterError

LOG_2PI = math.log(2 * math.pi)
MAX_QUANTILE_STEPS = 200  # bisections
QUANTILE_TOLERANCE = 1e-10  # of the width of the interval that holds a quantile
MAX_Z = 37.0  # standard deviations: beyond it the probability of a tail underflows
CRPS_LEVELS = 400  # quantiles that stand for a component that is not normal


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
        return ends[..., 0], ends[..., 1]

    def crps(self, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score, in the units of y; lower is better. The mean over levels of twice the
        quantile score (Gneiting and Raftery 2007)."""
        levels = (np.arange(CRPS_LEVELS) + 0.5) / CRPS_LEVELS
        away = np.asarray(y, dtype=float)[:, None] - self.quantile(levels)
        return 2 * np.mean(away * (levels - (away < 0)), axis=1)

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
        return (mean if q.ndim == 0 else mean[..., None]) + np.where(np.isnan(offset), 0.0, offset)

    def log_density(self, y: ArrayLike) -> np.ndarray:
        """ln N(y | mean, deviation^2); infinite, not NaN, where the deviation is zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            density = -0.5 * self.z(y) ** 2 - np.log(self.deviation) - 0.5 * LOG_2PI
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
        mean, deviation = np.asarray(self.mean)[..., None], np.asarray(self.deviation)[..., None]
        return mean + deviation * rng.standard_normal((*mean.shape[:-1], size))

    def scaled(self, factor: float, shift: float = 0.0) -> "Normal":
        return Normal(self.mean * factor + shift, self.deviation * factor)

    def take(self, rows: Any) -> "Normal":
        """Those of some rows."""
        return Normal(self.mean[rows], self.deviation[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture(Distribution):
    """sum_k w_k p_k(y): ``parts`` are distributions of the same s rows, ``weights`` (K,), or (K, s) if they differ
    between rows, sum to one over them.

    >>> two = Mixture((Normal(np.array([-1.0]), np.array([0.5])), Normal(np.array([1.0]), np.array([0.5]))), [0.5, 0.5])
    >>> two.mean, two.deviation.round(3), two.quantile(0.5).round(6) + 0.0
    (array([0.]), array([1.118]), array([0.]))
    """

    parts: tuple[Distribution, ...]
    weights: np.ndarray

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, dtype=float)
        if len(weights) != len(self.parts) or (weights < 0).any() or np.abs(weights.sum(axis=0) - 1).max() > 1e-6:
            raise ParameterError("a mixture needs a weight for each part: not negative, and one in sum.")
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(self, "weights", weights if weights.ndim == 2 else weights[:, None])

    @functools.cached_property
    def _means(self) -> np.ndarray:
        """(K, s)."""
        return np.stack([part.mean for part in self.parts])

    @functools.cached_property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        return total_mean(self.weights, self._means)

    @functools.cached_property
    def deviation(self) -> np.ndarray:  # type: ignore[override]
        variances = np.stack([part.deviation for part in self.parts]) ** 2
        return np.sqrt(total_variance(self.weights, self._means, variances))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return np.sum(self.weights * np.stack([part.cdf(y) for part in self.parts]), axis=0)

    def z(self, y: ArrayLike) -> np.ndarray:
        """As for every distribution; finite, and accurate in both tails."""
        own = np.stack([part.z(y) for part in self.parts])
        lower, upper = (np.sum(self.weights * ndtr(sign * own), axis=0) for sign in (1.0, -1.0))
        return np.where(lower < 0.5, np.maximum(ndtri(lower), -MAX_Z), np.minimum(-ndtri(upper), MAX_Z))

    def log_density(self, y: ArrayLike) -> np.ndarray:
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights) + np.stack([part.log_density(y) for part in self.parts])
        return np.asarray(logsumexp(logs, axis=0))

    def quantile(self, q: ArrayLike) -> np.ndarray:
        q = np.asarray(q, dtype=float)
        # It lies between those of the parts that have any weight, the ends of the support included.
        ends = np.stack([np.asarray(part.quantile(q)) for part in self.parts])  # (K, s) or (K, s, L)
        present = (self.weights > 0).reshape(*self.weights.shape, *(1,) * q.ndim)
        low = np.where(present, ends, np.inf).min(axis=0)
        high = np.where(present, ends, -np.inf).max(axis=0)
        levels = q.reshape(-1)
        columns = (low[:, None], high[:, None]) if q.ndim == 0 else (low, high)
        found = [self._bisected(level, columns[0][:, j], columns[1][:, j]) for j, level in enumerate(levels)]
        return found[0] if q.ndim == 0 else np.stack(found, axis=1) if found else np.zeros(low.shape)

    def _bisected(self, level: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Smallest value with cdf >= level, in [low, high]: (s,)."""
        low, high = low.astype(float), high.astype(float)
        rows = np.isfinite(low) & np.isfinite(high)  # others are the ends of the support
        if not rows.any():
            return high
        lower, upper = np.where(rows, low, 0.0), np.where(rows, high, 0.0)
        tolerance = QUANTILE_TOLERANCE * (upper - lower)
        for _ in range(MAX_QUANTILE_STEPS):
            if not (upper - lower > tolerance).any():
                break
            middle = 0.5 * (lower + upper)
            above = self.cdf(middle) >= level
            lower, upper = np.where(above, lower, middle), np.where(above, middle, upper)
        return np.where(rows, upper, high)

    def crps(self, y: ArrayLike) -> np.ndarray:
        """E|Y - y| - E|Y - Y'| / 2 (Gneiting and Raftery 2007, eq 21), exact for normal parts (Grimit and others
        2006); for others from many quantiles of each."""
        parts = self.parts
        if not all(isinstance(part, Normal) for part in parts):
            return super().crps(y)
        m, v = self._means, np.stack([part.deviation for part in parts]) ** 2
        score = np.sum(self.weights * mean_distance(np.asarray(y) - m, v), axis=0)
        for k, weight in enumerate(self.weights):  # K passes of (K, s): no array of K^2 s entries
            score = score - 0.5 * weight * np.sum(self.weights * mean_distance(m - m[k], v + v[k]), axis=0)
        return score

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        s = self._means.shape[1]
        weights = np.broadcast_to(self.weights, (len(self.parts), s))
        below = np.cumsum(weights, axis=0)[:, :, None]  # (K, s, 1)
        chosen = np.minimum((rng.random((s, size)) > below).sum(axis=0), len(self.parts) - 1)
        out = np.empty((s, size))
        for k, part in enumerate(self.parts):
            own = chosen == k
            if own.any():
                out[own] = part.sample(size, rng)[own]
        return out

    def take(self, rows: Any) -> "Mixture":
        """Those of some rows, of a mixture of normals."""
        parts = tuple(Normal(part.mean[rows], part.deviation[rows]) for part in self.parts)
        return Mixture(parts, self.weights if self.weights.shape[1] == 1 else self.weights[:, rows])

    def scaled(self, factor: float, shift: float = 0.0) -> "Mixture":
        return Mixture(tuple(part.scaled(factor, shift) for part in self.parts), self.weights)


def total_mean(weights: np.ndarray, means: np.ndarray) -> np.ndarray:
    """sum_k w_k m_k of arrays (K, ...): relative to the first, so that the mean of equal ones is exact."""
    return means[0] + np.sum(_along(weights, means) * (means - means[0]), axis=0)


def total_variance(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Variance of a mixture by the law of total variance, sum_k w_k (v_k + (m_k - mean)^2), of arrays (K, ...)."""
    away = means - total_mean(weights, means)
    return np.sum(_along(weights, means) * (variances + away**2), axis=0)


def _along(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Weights (K,) or (K, s) against values (K, s, ...)."""
    return weights.reshape(*weights.shape, *(1,) * (values.ndim - weights.ndim))


def mean_distance(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E|z| of a normal variable z with this mean and variance."""
    deviation = np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(deviation > 0, mean / deviation, 0.0)
    inside = 2 * deviation * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + mean * (2 * ndtr(z) - 1)
    return np.where(deviation > 0, inside, np.abs(mean))
