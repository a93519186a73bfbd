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

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from mercer.core.errors import ParameterError
from mercer.core.precision import concretely
from mercer.core.random import as_key


@dataclasses.dataclass(frozen=True)
class Prior:
    """A density over one parameter. Independent over the entries of a vector parameter."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, numbers.Real) or not math.isfinite(value):
                raise ParameterError(f"{type(self).__name__}.{field.name} must be a finite number; got {value!r}.")
            if field.name in ("sigma", "scale", "shape", "rate") and value <= 0:
                raise ParameterError(f"{type(self).__name__}.{field.name} must be positive; got {value!r}.")

    def log_density(self, x):
        """ln p(x), elementwise; -inf outside the support."""
        raise NotImplementedError

    def _draw(self, key, shape):
        raise NotImplementedError

    def sample(self, size=1, seed=0):
        """Draws, as a NumPy array of the given size."""
        shape = (size,) if isinstance(size, int) else tuple(size)
        with concretely():
            return jax.device_get(self._draw(as_key(seed), shape))


def _on_positive(x, log_density):
    """``log_density(x)`` for x > 0, -inf elsewhere, with no NaN gradient on either side."""
    inside = x > 0
    return jnp.where(inside, log_density(jnp.where(inside, x, 1.0)), -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Normal(Prior):
    """N(mu, sigma^2). On a positive parameter: its restriction to the positive axis, not renormalised."""

    mu: float = 0.0
    sigma: float = 1.0

    def log_density(self, x):
        return -0.5 * ((x - self.mu) / self.sigma) ** 2 - math.log(self.sigma * math.sqrt(2 * math.pi))

    def _draw(self, key, shape):
        return self.mu + self.sigma * jax.random.normal(key, shape)


@dataclasses.dataclass(frozen=True)
class LogNormal(Prior):
    """ln x ~ N(mu, sigma^2)."""

    mu: float = 0.0
    sigma: float = 1.0

    def log_density(self, x):
        return _on_positive(x, lambda v: Normal(self.mu, self.sigma).log_density(jnp.log(v)) - jnp.log(v))

    def _draw(self, key, shape):
        return jnp.exp(self.mu + self.sigma * jax.random.normal(key, shape))


@dataclasses.dataclass(frozen=True)
class HalfNormal(Prior):
    """|x| of N(0, scale^2)."""

    scale: float = 1.0

    def log_density(self, x):
        return _on_positive(x, lambda v: math.log(2.0) + Normal(0.0, self.scale).log_density(v))

    def _draw(self, key, shape):
        return self.scale * jnp.abs(jax.random.normal(key, shape))


@dataclasses.dataclass(frozen=True)
class HalfCauchy(Prior):
    """|x| of a Cauchy with the given scale: heavy-tailed, for amplitudes of unknown size."""

    scale: float = 1.0

    def log_density(self, x):
        return _on_positive(x, lambda v: math.log(2 / (math.pi * self.scale)) - jnp.log1p((v / self.scale) ** 2))

    def _draw(self, key, shape):
        return self.scale * jnp.abs(jax.random.cauchy(key, shape))


@dataclasses.dataclass(frozen=True)
class Gamma(Prior):
    """Gamma with shape a and rate b: mean a/b."""

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, x):
        a, b = self.shape, self.rate
        return _on_positive(x, lambda v: a * math.log(b) - gammaln(a) + (a - 1) * jnp.log(v) - b * v)

    def _draw(self, key, shape):
        return jax.random.gamma(key, self.shape, shape) / self.rate


@dataclasses.dataclass(frozen=True)
class InverseGamma(Prior):
    """1/x ~ Gamma(shape, rate): keeps lengthscales away from zero."""

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, x):
        a, b = self.shape, self.rate
        return _on_positive(x, lambda v: a * math.log(b) - gammaln(a) - (a + 1) * jnp.log(v) - b / v)

    def _draw(self, key, shape):
        return self.rate / jax.random.gamma(key, self.shape, shape)
