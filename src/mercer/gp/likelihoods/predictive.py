"""Predictive distributions of targets whose latent value is Gaussian."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from mercer.core.errors import ParameterError
from mercer.distributions import LOG_2PI, Distribution, Normal
from mercer.gp.likelihoods.base import ROWS_AT_ONCE, Target, TargetLikelihood
from mercer.gp.likelihoods.quadrature import Panels

MAX_DOUBLINGS, BISECTIONS = 1100, 60


class Integrated(Distribution):
    """Base of distributions given by their cdf; scaling is generic."""

    def scaled(self, factor: float, shift: float = 0.0) -> "Distribution":
        return Scaled(self, factor, shift)


class OfLatent(Integrated):
    """Base of those whose moments are integrals over the latent value."""

    @functools.cached_property
    @abc.abstractmethod
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance: (s,), (s,)."""

    @property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        return self._moments[0]

    @property
    def deviation(self) -> np.ndarray:  # type: ignore[override]
        return np.sqrt(self._moments[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Predictive(OfLatent):
    """y at the rows ``t``, with f ~ N(latent_mean, latent_variance)."""

    likelihood: TargetLikelihood
    latent_mean: np.ndarray
    latent_variance: np.ndarray
    t: Target

    @functools.cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        parts = [
            self.likelihood.moments(self.latent_mean[part], self.latent_variance[part], self.t.take(part))
            for part in _parts(len(self.t))
        ]
        mean, variance = (np.concatenate([np.zeros(0), *found]) for found in zip(*parts, strict=True)) if parts else (
            np.zeros(0), np.zeros(0)
        )  # fmt: skip
        return mean, variance

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self._by_parts(self._cdf, np.broadcast_to(np.asarray(y, dtype=float), (len(self.t),)))

    def _cdf(self, y: np.ndarray, part: slice) -> np.ndarray:
        t = dataclasses.replace(self.t.take(part), y=y)
        with np.errstate(invalid="ignore"):
            centre, width = self.likelihood.marks(t)
        marks = [(np.nan_to_num(centre - t.offset, nan=0.0), np.nan_to_num(width, nan=1.0))]
        panels = Panels(self.latent_mean[part], self.latent_variance[part], marks, inside=True)
        column = t.column()
        values = self.likelihood.cdf(column.y, panels.f + column.offset, column)
        return np.clip(panels.expectation(values), 0.0, 1.0)

    def _by_parts(self, f: Callable[..., np.ndarray], y: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros(0), *(f(y[part], part) for part in _parts(len(self.t)))])

    def quantile(self, q: ArrayLike) -> np.ndarray:
        """By bisection; of integers, the smallest with cdf >= q."""
        q = checked_levels(q)
        found = np.stack([self._one_quantile(float(level)) for level in np.atleast_1d(q).ravel()], axis=1)
        return found[:, 0] if q.ndim == 0 else found

    def _one_quantile(self, q: float) -> np.ndarray:
        s = len(self.t)
        spread = np.where(np.isfinite(self.deviation), self.deviation, np.sqrt(self.latent_variance) + 1.0)
        low, high = self.likelihood.support(self.t)
        if q in (0.0, 1.0):
            return (low if q == 0 else high).copy()
        step = np.maximum(spread, 1e-12 * (1 + np.abs(self.mean)))
        a, b = np.maximum(self.mean - step, low), np.minimum(self.mean + step, high)
        for _ in range(MAX_DOUBLINGS):  # bracket it
            under, over = self.cdf(a) > q, self.cdf(b) < q
            if self.likelihood.discrete:
                under &= a > low
            if not (under & (a > low)).any() and not (over & (b < high)).any():
                break
            step = 2 * step
            a = np.where(under, np.maximum(a - step, low), a)
            b = np.where(over, np.minimum(b + step, high), b)
        if self.likelihood.discrete:
            a, b = np.floor(a) - 1, np.ceil(b)
        for _ in range(BISECTIONS):
            middle = np.floor(0.5 * (a + b)) if self.likelihood.discrete else 0.5 * (a + b)
            enough = self.cdf(middle) >= q
            a, b = np.where(enough, a, middle), np.where(enough, middle, b)
            if self.likelihood.discrete and (b - a <= 1).all():
                break
        return b if s else np.zeros(0)

    def log_density(self, y: ArrayLike) -> np.ndarray:
        """ln p(y); of an integer, ln of its probability. Minus infinity outside the support."""
        y = np.broadcast_to(np.asarray(y, dtype=float), (len(self.t),))
        return self._by_parts(self._log_density, y)

    def _log_density(self, y: np.ndarray, part: slice) -> np.ndarray:
        t = dataclasses.replace(self.t.take(part), y=y)
        low, high = self.likelihood.support(t)
        possible = (y >= low) & (y <= high)
        if self.likelihood.discrete:
            possible &= y == np.floor(y)
        inside = np.flatnonzero(possible)
        out = np.full(len(y), -np.inf)
        m, v = self.latent_mean[part][inside], self.latent_variance[part][inside]
        out[inside] = self.likelihood.tilted(m, v, t.take(inside)).log_z
        return out

    def z(self, y: ArrayLike) -> np.ndarray:
        """As for every distribution; of integers `randomised`."""
        upper = self.cdf(y)
        lower = self.cdf(np.asarray(y, dtype=float) - 1) if self.likelihood.discrete else upper
        return randomised(lower, upper)

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        s = len(self.t)
        eta = self.latent_mean[:, None] + np.sqrt(self.latent_variance)[:, None] * rng.standard_normal((s, size))
        column = self.t.column()
        return self.likelihood.draw(eta + column.offset, column, rng)


@dataclasses.dataclass(frozen=True, eq=False)
class Response(OfLatent):
    """Mean of y given f at the rows ``t``, an increasing function of f ~ N(latent_mean, latent_variance)."""

    likelihood: TargetLikelihood
    latent_mean: np.ndarray
    latent_variance: np.ndarray
    t: Target

    def _response(self, f: np.ndarray) -> np.ndarray:
        column = self.t if f.ndim == 1 else self.t.column()
        return self.likelihood.response(f + column.offset, column)[0]

    @functools.cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        panels = Panels(self.latent_mean, self.latent_variance)
        values = self._response(panels.f)
        mean = panels.expectation(values)
        return mean, panels.expectation((values - mean[:, None]) ** 2)

    def _z_of(self, y: ArrayLike) -> np.ndarray:
        """(f - latent_mean) / deviation where the response is y, by bisection."""
        y, deviation = np.asarray(y, dtype=float), np.sqrt(self.latent_variance)
        low, high = np.full(len(self.t), -40.0), np.full(len(self.t), 40.0)
        for _ in range(BISECTIONS):
            z = 0.5 * (low + high)
            up = self._response(self.latent_mean + deviation * z) < y
            low, high = np.where(up, z, low), np.where(up, high, z)
        return 0.5 * (low + high)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return ndtr(self._z_of(y))

    def quantile(self, q: ArrayLike) -> np.ndarray:
        q = checked_levels(q)
        f = Normal(self.latent_mean, np.sqrt(self.latent_variance)).quantile(q)
        return self._response(f)

    def log_density(self, y: ArrayLike) -> np.ndarray:
        """From the slope of the response, by a central difference."""
        z, deviation = self._z_of(y), np.sqrt(self.latent_variance)
        f, h = self.latent_mean + deviation * z, 1e-5
        slope = (self._response(f + h) - self._response(f - h)) / (2 * h)
        with np.errstate(divide="ignore"):
            found = -0.5 * z**2 - 0.5 * LOG_2PI - np.log(deviation) - np.log(slope)
        return np.where(np.abs(z) < 39.9, found, -np.inf)

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return self._response(Normal(self.latent_mean, np.sqrt(self.latent_variance)).sample(size, rng))


@dataclasses.dataclass(frozen=True, eq=False)
class LogNormal(Integrated):
    """exp of a normal variable with mean ``log_mean`` and standard deviation ``log_deviation``."""

    log_mean: np.ndarray
    log_deviation: np.ndarray

    @property
    def _normal(self) -> Normal:
        return Normal(self.log_mean, self.log_deviation)

    @property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        with np.errstate(over="ignore"):
            return np.exp(self.log_mean + 0.5 * self.log_deviation**2)

    @property
    def deviation(self) -> np.ndarray:  # type: ignore[override]
        with np.errstate(over="ignore"):
            return self.mean * np.sqrt(np.expm1(self.log_deviation**2))

    def cdf(self, y: ArrayLike) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return self._normal.cdf(np.log(np.maximum(y, 0.0)))

    def quantile(self, q: ArrayLike) -> np.ndarray:
        return np.exp(self._normal.quantile(q))

    def log_density(self, y: ArrayLike) -> np.ndarray:
        y = np.asarray(y, dtype=float)
        log_y = np.log(np.where(y > 0, y, 1.0))
        return np.where(y > 0, self._normal.log_density(log_y) - log_y, -np.inf)

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return np.exp(self._normal.sample(size, rng))


@dataclasses.dataclass(frozen=True, eq=False)
class Scaled(Integrated):
    """``factor`` times a value, plus ``shift``."""

    inner: Distribution
    factor: float
    shift: float

    @property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        return self.inner.mean * self.factor + self.shift

    @property
    def deviation(self) -> np.ndarray:  # type: ignore[override]
        return self.inner.deviation * self.factor

    def _inside(self, y: ArrayLike) -> np.ndarray:
        return (np.asarray(y, dtype=float) - self.shift) / self.factor

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self.inner.cdf(self._inside(y))

    def quantile(self, q: ArrayLike) -> np.ndarray:
        return self.inner.quantile(q) * self.factor + self.shift

    def log_density(self, y: ArrayLike) -> np.ndarray:
        return self.inner.log_density(self._inside(y)) - math.log(self.factor)

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return self.inner.sample(size, rng) * self.factor + self.shift


def randomised(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Standard normal quantiles of levels drawn between the cdf below a step and above it, with a fixed seed: standard
    normal if predictions are right, also where values are integers (Dunn and Smyth 1996)."""
    level = lower + (upper - lower) * np.random.default_rng(0).random(np.shape(upper))
    return ndtri(np.clip(level, np.finfo(float).tiny, 1 - np.finfo(float).epsneg))


def _parts(n: int) -> list[slice]:
    return [slice(i, i + ROWS_AT_ONCE) for i in range(0, n, ROWS_AT_ONCE)]


def checked_levels(q: ArrayLike) -> np.ndarray:
    q = np.asarray(q, dtype=float)
    if not ((q >= 0) & (q <= 1)).all():
        raise ParameterError(f"q must lie between 0 and 1, as in 0.95; got {q!r}.")
    return q
