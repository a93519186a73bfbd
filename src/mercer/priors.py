"""Prior distributions over parameters, on their natural scale.

>>> from mercer import kernels as k, priors
>>> kernel = k.RBF().with_priors(lengthscale=priors.LogNormal(0.0, 1.0))
>>> kernel.parameters
parameter    value  range     learned  prior
lengthscale  1.0    positive  yes      LogNormal(mu=0.0, sigma=1.0)
"""

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from mercer.core.errors import ParameterError
from mercer.core.precision import Array, concretely
from mercer.core.random import as_key


@dataclasses.dataclass(frozen=True)
class Prior:
    """A density of one parameter. Entries of a vector parameter are independent."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, numbers.Real) or not math.isfinite(value):
                raise ParameterError(f"{type(self).__name__}.{field.name} must be a finite number; got {value!r}.")
            if field.name in ("sigma", "scale", "shape", "rate") and value <= 0:
                raise ParameterError(f"{type(self).__name__}.{field.name} must be positive; got {value!r}.")

    def log_density(self, x: Array) -> Array:
        """ln p(x), elementwise; -inf outside the support."""
        raise NotImplementedError

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        raise NotImplementedError

    def sample(self, size: int | tuple[int, ...] = 1, seed: Any = 0) -> np.ndarray:
        """Draws, as a NumPy array of the given shape."""
        shape = (size,) if isinstance(size, int) else tuple(size)
        with concretely():
            return jax.device_get(self._draw(as_key(seed), shape))


def _on_positive(x: Array, log_density: Callable[[jax.Array], Array]) -> jax.Array:
    """``log_density(x)`` for x > 0, -inf elsewhere, without NaN in gradients."""
    inside = x > 0
    return jnp.where(inside, log_density(jnp.where(inside, x, 1.0)), -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Normal(Prior):
    """N(mu, sigma^2). On a positive parameter: its restriction to the positive axis, not renormalised."""

    mu: float = 0.0
    sigma: float = 1.0

    def log_density(self, x: Array) -> Array:
        return -0.5 * ((x - self.mu) / self.sigma) ** 2 - math.log(self.sigma * math.sqrt(2 * math.pi))

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.mu + self.sigma * jax.random.normal(key, shape)


@dataclasses.dataclass(frozen=True)
class LogNormal(Prior):
    """ln x ~ N(mu, sigma^2)."""

    mu: float = 0.0
    sigma: float = 1.0

    def log_density(self, x: Array) -> Array:
        return _on_positive(x, lambda v: Normal(self.mu, self.sigma).log_density(jnp.log(v)) - jnp.log(v))

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jnp.exp(self.mu + self.sigma * jax.random.normal(key, shape))


@dataclasses.dataclass(frozen=True)
class HalfNormal(Prior):
    """Absolute value of a N(0, scale^2) variable."""

    scale: float = 1.0

    def log_density(self, x: Array) -> Array:
        return _on_positive(x, lambda v: math.log(2.0) + Normal(0.0, self.scale).log_density(v))

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.scale * jnp.abs(jax.random.normal(key, shape))


@dataclasses.dataclass(frozen=True)
class HalfCauchy(Prior):
    """Absolute value of a Cauchy variable with this scale: heavy-tailed, for amplitudes of unknown size."""

    scale: float = 1.0

    def log_density(self, x: Array) -> Array:
        return _on_positive(x, lambda v: math.log(2 / (math.pi * self.scale)) - jnp.log1p((v / self.scale) ** 2))

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.scale * jnp.abs(jax.random.cauchy(key, shape))


@dataclasses.dataclass(frozen=True)
class Gamma(Prior):
    """Gamma with shape a and rate b: mean a/b."""

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, x: Array) -> Array:
        a, b = self.shape, self.rate
        return _on_positive(x, lambda v: a * math.log(b) - gammaln(a) + (a - 1) * jnp.log(v) - b * v)

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jax.random.gamma(key, self.shape, shape) / self.rate


@dataclasses.dataclass(frozen=True)
class InverseGamma(Prior):
    """1/x ~ Gamma(shape, rate): keeps lengthscales away from zero."""

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, x: Array) -> Array:
        a, b = self.shape, self.rate
        return _on_positive(x, lambda v: a * math.log(b) - gammaln(a) - (a + 1) * jnp.log(v) - b / v)

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.rate / jax.random.gamma(key, self.shape, shape)
