"""Prior distributions over parameters, on their natural scale.

>>> from mercer import kernels as k, priors
>>> kernel = k.RBF().with_priors(lengthscale=priors.LogNormal(0.0, 1.0))
>>> kernel.parameters
parameter    value  range     learned  prior
lengthscale  1.0    positive  yes      LogNormal(mu=0.0, sigma=1.0)
>>> priors.LogNormal(0.0, 1.0).quantile([0.025, 0.975]).round(2)
array([0.14, 7.1 ])
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from mercer.core.errors import ParameterError
from mercer.core.precision import Array, concretely
from mercer.core.random import as_key

POSITIVE_FIELDS = ("sigma", "scale", "shape", "rate", "deviation", "lengthscale", "dimensions")


@dataclasses.dataclass(frozen=True)
class Prior:
    """A density of one parameter. Entries of a vector parameter are independent."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, numbers.Real) or not math.isfinite(value):
                raise ParameterError(f"{type(self).__name__}.{field.name} must be a finite number; got {value!r}.")
            if field.name in POSITIVE_FIELDS and float(value) <= 0:
                raise ParameterError(f"{type(self).__name__}.{field.name} must be positive; got {value!r}.")
            if field.name == "probability" and not 0 < float(value) < 1:
                raise ParameterError(f"{type(self).__name__}.probability must lie between 0 and 1; got {value!r}.")

    def log_density(self, x: Array) -> Array:
        """ln p(x), elementwise, in NumPy or JAX as x is; -inf outside the support."""
        raise NotImplementedError

    def slope(self, x: np.ndarray) -> np.ndarray:
        """d ln p(x) / dx inside the support, in NumPy."""
        x = np.asarray(x, dtype=float)
        with concretely():
            return np.asarray(jax.grad(lambda v: jnp.sum(self.log_density(v)))(jnp.asarray(x)))

    def quantile(self, q: ArrayLike) -> np.ndarray:
        """Value below which the parameter lies with probability q, elementwise."""
        return self._quantile(_checked_probability(q))

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        raise NotImplementedError

    def sample(self, size: int | tuple[int, ...] = 1, seed: Any = 0) -> np.ndarray:
        """Draws, as a NumPy array of the given shape."""
        shape = (size,) if isinstance(size, int) else tuple(size)
        with concretely():
            return jax.device_get(self._draw(as_key(seed), shape))


def _checked_probability(q: ArrayLike) -> np.ndarray:
    q = np.asarray(q, dtype=float)
    if not ((q >= 0) & (q <= 1)).all():
        raise ParameterError(f"q must lie between 0 and 1, as in 0.95; got {q!r}.")
    return q


def _on_positive(x: Array, log_density: Callable[[Any, Any], Any]) -> Any:
    """``log_density(x, xp)`` for x > 0, -inf elsewhere, without NaN in gradients; xp is NumPy, or JAX if x is."""
    xp: ModuleType = jnp if isinstance(x, jax.Array) else np
    inside = xp.asarray(x) > 0
    return xp.where(inside, log_density(xp.where(inside, x, 1.0), xp), -xp.inf)


@dataclasses.dataclass(frozen=True)
class Normal(Prior):
    """N(mu, sigma^2). On a positive parameter: its restriction to the positive axis, not renormalised."""

    mu: float = 0.0
    sigma: float = 1.0

    def log_density(self, x: Array) -> Array:
        return -0.5 * ((x - self.mu) / self.sigma) ** 2 - math.log(self.sigma * math.sqrt(2 * math.pi))

    def slope(self, x: np.ndarray) -> np.ndarray:
        return -(x - self.mu) / self.sigma**2

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        return self.mu + self.sigma * special.ndtri(q)

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.mu + self.sigma * jax.random.normal(key, shape)


@dataclasses.dataclass(frozen=True)
class LogNormal(Prior):
    """ln x ~ N(mu, sigma^2)."""

    mu: float = 0.0
    sigma: float = 1.0

    def log_density(self, x: Array) -> Array:
        return _on_positive(x, lambda v, xp: Normal(self.mu, self.sigma).log_density(xp.log(v)) - xp.log(v))

    def slope(self, x: np.ndarray) -> np.ndarray:
        return (-(np.log(x) - self.mu) / self.sigma**2 - 1) / x

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        return np.exp(self.mu + self.sigma * special.ndtri(q))

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jnp.exp(self.mu + self.sigma * jax.random.normal(key, shape))


@dataclasses.dataclass(frozen=True)
class HalfNormal(Prior):
    """Absolute value of a N(0, scale^2) variable."""

    scale: float = 1.0

    def log_density(self, x: Array) -> Array:
        return _on_positive(x, lambda v, xp: math.log(2.0) + Normal(0.0, self.scale).log_density(v))

    def slope(self, x: np.ndarray) -> np.ndarray:
        return -x / self.scale**2

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        return self.scale * special.ndtri(0.5 + q / 2)

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.scale * jnp.abs(jax.random.normal(key, shape))


@dataclasses.dataclass(frozen=True)
class HalfCauchy(Prior):
    """Absolute value of a Cauchy variable with this scale: heavy-tailed, for amplitudes of unknown size."""

    scale: float = 1.0

    def log_density(self, x: Array) -> Array:
        return _on_positive(x, lambda v, xp: math.log(2 / (math.pi * self.scale)) - xp.log1p((v / self.scale) ** 2))

    def slope(self, x: np.ndarray) -> np.ndarray:
        return -2 * x / (self.scale**2 + x**2)

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        return self.scale * np.tan(0.5 * math.pi * q)

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.scale * jnp.abs(jax.random.cauchy(key, shape))


@dataclasses.dataclass(frozen=True)
class Gamma(Prior):
    """Gamma with shape a and rate b: mean a/b."""

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, x: Array) -> Array:
        a, b = self.shape, self.rate
        return _on_positive(x, lambda v, xp: a * math.log(b) - math.lgamma(a) + (a - 1) * xp.log(v) - b * v)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return (self.shape - 1) / x - self.rate

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        return special.gammaincinv(self.shape, q) / self.rate

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.gamma(key, self.shape, shape) / self.rate


@dataclasses.dataclass(frozen=True)
class InverseGamma(Prior):
    """1/x ~ Gamma(shape, rate): keeps lengthscales away from zero."""

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, x: Array) -> Array:
        a, b = self.shape, self.rate
        return _on_positive(x, lambda v, xp: a * math.log(b) - math.lgamma(a) - (a + 1) * xp.log(v) - b / v)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return (self.rate / x - self.shape - 1) / x

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return self.rate / special.gammainccinv(self.shape, q)

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.rate / jax.random.gamma(key, self.shape, shape)


# -- penalised complexity ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PenalisedVariance(Prior):
    """Penalised complexity prior of a variance v, of a kernel or of noise (Simpson and others 2017).

    The standard deviation sqrt(v) is exponential, so that no variance at all is the most plausible, and exceeds
    ``deviation`` with this ``probability``: p(v) = lambda exp(-lambda sqrt(v)) / (2 sqrt(v)), with lambda = -ln
    probability / deviation.

    >>> prior = PenalisedVariance(deviation=3.0, probability=0.05)
    >>> bool(np.isclose(prior.quantile(0.95), 3.0**2))
    True
    """

    deviation: float = 1.0
    probability: float = 0.05

    @property
    def rate(self) -> float:
        """Of the exponential distribution of the standard deviation."""
        return -math.log(self.probability) / self.deviation

    def log_density(self, x: Array) -> Array:
        rate = self.rate
        return _on_positive(x, lambda v, xp: math.log(rate / 2) - 0.5 * xp.log(v) - rate * xp.sqrt(v))

    def slope(self, x: np.ndarray) -> np.ndarray:
        return -0.5 / x - 0.5 * self.rate / np.sqrt(x)

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return (np.log1p(-q) / self.rate) ** 2

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return (jax.random.exponential(key, shape) / self.rate) ** 2


@dataclasses.dataclass(frozen=True)
class PenalisedLengthscale(Prior):
    """Penalised complexity prior of the lengthscale l of a Matern kernel in d ``dimensions`` (Fuglstad and others
    2019).

    A constant function, l infinite, is the simplest: l^(-d/2) is exponential, and l is below ``lengthscale`` with this
    ``probability``: p(l) = d/2 lambda l^(-d/2 - 1) exp(-lambda l^(-d/2)), with lambda = -ln probability times
    lengthscale^(d/2). With `PenalisedVariance` on the variance it is their joint prior, of one lengthscale.

    >>> prior = PenalisedLengthscale(lengthscale=0.5, probability=0.05, dimensions=2)
    >>> bool(np.isclose(prior.quantile(0.05), 0.5))
    True
    """

    lengthscale: float = 1.0
    probability: float = 0.05
    dimensions: float = 1

    @property
    def rate(self) -> float:
        """Of the exponential distribution of l^(-d/2)."""
        return -math.log(self.probability) * self.lengthscale ** (self.dimensions / 2)

    def log_density(self, x: Array) -> Array:
        rate, half = self.rate, self.dimensions / 2
        return _on_positive(x, lambda v, xp: math.log(half * rate) - (half + 1) * xp.log(v) - rate * v**-half)

    def slope(self, x: np.ndarray) -> np.ndarray:
        half = self.dimensions / 2
        return (half * self.rate * x**-half - half - 1) / x

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return (-np.log(q) / self.rate) ** (-2 / self.dimensions)

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return (jax.random.exponential(key, shape) / self.rate) ** (-2 / self.dimensions)


# -- vectors -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Each(Prior):
    """A prior for each entry of a vector parameter: ``priors`` in the order of its learned entries, which are the last
    axis of what its methods take.

    >>> Each((LogNormal(0.0), LogNormal(3.0))).quantile(0.5).round(1)
    array([ 1. , 20.1])
    """

    priors: tuple[Prior, ...]

    def __post_init__(self) -> None:
        priors = tuple(self.priors) if isinstance(self.priors, list | tuple) else ()
        if not priors or not all(isinstance(prior, Prior) for prior in priors):
            raise ParameterError(f"Each takes a list of priors, one for each entry; got {self.priors!r}.")
        object.__setattr__(self, "priors", priors)

    def log_density(self, x: Array) -> Array:
        xp: ModuleType = jnp if isinstance(x, jax.Array) else np
        return xp.stack([prior.log_density(part) for prior, part in self._pairs(x)], axis=-1)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return np.stack([prior.slope(part) for prior, part in self._pairs(x)], axis=-1)

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        """Of every entry: (..., entries)."""
        return np.stack([prior.quantile(q) for prior in self.priors], axis=-1)

    def sample(self, size: int | tuple[int, ...] = 1, seed: Any = 0) -> np.ndarray:
        """Draws of all entries: (..., entries)."""
        shape = (size,) if isinstance(size, int) else tuple(size)
        with concretely():
            keys = jax.random.split(as_key(seed), len(self.priors))
            pairs = zip(self.priors, keys, strict=True)
            return np.stack([jax.device_get(prior._draw(key, shape)) for prior, key in pairs], axis=-1)

    def _pairs(self, x: Any) -> list[tuple[Prior, Any]]:
        if np.ndim(x) == 0 or np.shape(x)[-1] != len(self.priors):
            raise ParameterError(f"there are {len(self.priors)} priors for a parameter of shape {np.shape(x)}.")
        return [(prior, x[..., i]) for i, prior in enumerate(self.priors)]


def by_entry(prior: Any, count: int) -> tuple[Any, ...]:
    """The prior of each learned entry of a parameter."""
    if not isinstance(prior, Each):
        return (prior,) * count
    if len(prior.priors) != count:
        raise ParameterError(
            f"Each has {len(prior.priors)} priors for a parameter with {count} learned entries; give one for each: "
            f"{prior!r}."
        )
    return prior.priors
