"""Measurement noise: one learned variance, one fixed variance, one per row, or a function of the input.

Noise is Gaussian and independent from row to row. ``free`` holds its parameters in the optimiser's (log) coordinates,
which follow the kernel's in theta.
"""

import abc
import dataclasses
import math
import reprlib
from typing import Any

import equinox as eqx
import jax
import numpy as np

from mercer.core.coordinates import Layout
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, as_vector, count_rows
from mercer.core.parameters import NonNegative, NonNegativeList, Parametrized, Positive, evolve
from mercer.core.precision import Array
from mercer.core.registry import storable
from mercer.kernels.base import Kernel
from mercer.priors import Prior

register = storable("noise")  # class decorator: fitted models may hold it

MAX_EXPONENT = math.log(np.finfo(float).max)


class Noise(Parametrized):
    """Noise variances of the rows as a function of the learned parameters, a part of `Model`.

    ``rows`` are inputs, also prepared ones, which a noise that depends on them reads.
    """

    noise: eqx.AbstractVar[Any]  # its variance, or variances

    @property
    def size(self) -> int:
        """Number of learned parameters."""
        return 0

    @abc.abstractmethod
    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        """Noise variance of each row: (n,)."""

    def slope(self, free: np.ndarray, rows: Inputs, weights: np.ndarray) -> np.ndarray:
        """sum_n weights_n d variance_n / d free: (size,)."""
        return np.zeros(0)

    @abc.abstractmethod
    def at(self, Z: Inputs) -> float | np.ndarray:
        """Noise variance of new measurements at the parameters as they are: one, or (s,)."""

    def extended(self, noise: Any, Z: Inputs) -> "tuple[Noise, np.ndarray]":
        """Noise of the rows so far and of new ones at Z, and the variances (s,) of these; ``noise`` is what was given
        for them."""
        if noise is not None:
            raise ParameterError("this model has one noise variance for all rows, new ones included; leave noise out.")
        return self, as_variances(self.at(Z), count_rows(Z))

    def start(self, variance: float) -> np.ndarray:
        """``free`` to start learning from."""
        return np.zeros(0)

    def floor(self) -> np.ndarray:
        """Lower bounds on ``free``."""
        return np.full(self.size, -np.inf)

    def raised_to(self, variance: float, free: np.ndarray) -> np.ndarray | None:
        """``free`` at which the learned variance is ``variance``; None if it is about that large, or not learned."""
        return None

    def amplitude(self) -> np.ndarray | None:
        """Mask of the entries of ``free`` to shift by ln c to multiply the noise by c; None if fixed and not zero."""
        return np.zeros(0, bool)

    def take(self, rows: Any) -> "Noise":
        """Noise of a subset of rows."""
        return self

    @abc.abstractmethod
    def scaled(self, unit: float) -> "Noise":
        """The same noise for a target whose variance is ``unit`` times as large."""

    def bounded_below(self, min_variance: float) -> "Noise":
        """Copy with a lower bound on the learned variance."""
        return self

    @property
    def positive(self) -> bool:
        """Whether every row has positive variance."""
        return True

    @property
    def given(self) -> bool:
        """Whether the variances are known. If they are not, rows that are copies would seem to be free of noise."""
        return True


@dataclasses.dataclass(frozen=True)
class Rescaled(Prior):
    """Density of ``unit`` times the parameter, as when a target is divided by its scale. Not multiplied by ``unit``, so
    that log densities stay those of the parameter in its own units."""

    prior: Prior
    unit: float

    def __post_init__(self) -> None:
        pass  # the prior was checked

    def log_density(self, x: Array) -> Array:
        return self.prior.log_density(x * self.unit)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return self.prior.slope(x * self.unit) * self.unit

    def _quantile(self, q: np.ndarray) -> np.ndarray:
        return self.prior.quantile(q) / self.unit

    def _draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.prior._draw(key, shape) / self.unit


@register
class LearnedNoise(Noise):
    """One learned variance for all rows, at least ``min_variance``."""

    noise: Positive = 1.0
    min_variance: float = eqx.field(default=0.0, static=True)

    @property
    def size(self) -> int:
        return 1

    @property
    def given(self) -> bool:
        return False

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        return np.full(count_rows(rows), _exp(free[0]))

    def at(self, Z: Inputs) -> float:
        return float(self.noise)

    def slope(self, free: np.ndarray, rows: Inputs, weights: np.ndarray) -> np.ndarray:
        return np.array([float(weights.sum()) * _exp(free[0])])

    def start(self, variance: float) -> np.ndarray:
        return np.array([math.log(variance)])

    def floor(self) -> np.ndarray:
        return np.array([math.log(self.min_variance) if self.min_variance > 0 else -np.inf])

    def raised_to(self, variance: float, free: np.ndarray) -> np.ndarray | None:
        return None if free[0] > math.log(variance) - 0.5 else np.array([math.log(variance)])

    def amplitude(self) -> np.ndarray | None:
        return np.array([True])

    def scaled(self, unit: float) -> "Noise":
        own = tuple((field, Rescaled(prior, 1 / unit)) for field, prior in self.priors)
        return evolve(self, noise=self.noise * unit, min_variance=self.min_variance * unit, priors=own)

    def bounded_below(self, min_variance: float) -> "Noise":
        return evolve(self, min_variance=min_variance)


@register
class CommonNoise(Noise):
    """One given variance for all rows."""

    noise: NonNegative
    fixed: frozenset[str] = eqx.field(default=frozenset(("noise",)), static=True, kw_only=True, repr=False)

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        return np.full(count_rows(rows), self.noise)

    def at(self, Z: Inputs) -> float:
        return float(self.noise)

    def amplitude(self) -> np.ndarray | None:
        return None if self.noise else np.zeros(0, bool)

    def scaled(self, unit: float) -> "Noise":
        return CommonNoise(self.noise * unit)

    @property
    def positive(self) -> bool:
        return bool(self.noise > 0)


@register
class KernelNoise(CommonNoise):
    """None beside the white noise that is a term of the kernel."""

    noise: NonNegative = 0.0

    @property
    def given(self) -> bool:
        return False

    def scaled(self, unit: float) -> "Noise":
        return self


@register
class RowNoise(Noise):
    """One given variance per row."""

    noise: NonNegativeList
    fixed: frozenset[str] = eqx.field(default=frozenset(("noise",)), static=True, kw_only=True, repr=False)

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        return self.noise

    def at(self, Z: Inputs) -> float:
        """The mean over the rows, since nothing is known of new ones."""
        return float(np.mean(self.noise))

    def extended(self, noise: Any, Z: Inputs) -> "tuple[Noise, np.ndarray]":
        if noise is None:
            raise ParameterError("this model was fitted with one noise variance per row; give noise for the new rows.")
        new = as_variances(noise, count_rows(Z))
        return RowNoise(np.concatenate([self.noise, new])), new

    def amplitude(self) -> np.ndarray | None:
        return None if self.noise.any() else np.zeros(0, bool)

    def take(self, rows: Any) -> "Noise":
        return RowNoise(self.noise[rows])

    def scaled(self, unit: float) -> "Noise":
        return RowNoise(self.noise * unit)

    @property
    def positive(self) -> bool:
        return bool((self.noise > 0).all())


@register
class VaryingNoise(Noise):
    """A variance that depends on the input: its logarithm is a Gaussian process with mean ln ``level`` and this
    ``kernel``. Before it is inferred from a target, every row has the level."""

    level: Positive
    kernel: Kernel
    min_variance: float = eqx.field(default=0.0, static=True)  # a part of the noise that is known, as from rounding

    posterior: Any = eqx.field(default=None, static=True, repr=False)  # of the log noise relative to its level

    @property  # type: ignore[misc]
    def noise(self) -> Any:
        return self.level

    @property
    def size(self) -> int:
        return Layout.of(self).size

    @property
    def given(self) -> bool:
        return False

    def inferred(self, posterior: Any) -> "VaryingNoise":
        """With a posterior of the log noise, relative to its level, that has `moments`."""
        return evolve(self, posterior=posterior)

    def expected(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Mean of the noise variance for a normal log noise, relative to its level."""
        return self.min_variance + self.level * np.exp(mean + 0.5 * variance)

    def at(self, Z: Inputs) -> float | np.ndarray:
        if self.posterior is None:
            return float(self.min_variance + self.level)
        return self.expected(*self.posterior.moments(Z))

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        return np.broadcast_to(self.at(rows), count_rows(rows)).copy()

    def scaled(self, unit: float) -> "VaryingNoise":
        own = tuple((field, Rescaled(prior, 1 / unit)) for field, prior in self.priors)
        return evolve(self, level=self.level * unit, min_variance=self.min_variance * unit, priors=own)

    def bounded_below(self, min_variance: float) -> "VaryingNoise":
        return evolve(self, min_variance=min_variance)


def _exp(x: float) -> float:
    """exp(x), infinite where that overflows."""
    return math.exp(x) if x < MAX_EXPONENT else math.inf


def as_noise(noise: Any, n: int) -> Noise:
    """Noise from user input: None or a prior (learned), a number, n variances, or a `Noise`."""
    if noise is None or isinstance(noise, Noise):
        return LearnedNoise() if noise is None else noise
    if isinstance(noise, Prior):
        return LearnedNoise().with_priors(noise=noise)
    values = as_variances(noise, n)
    return CommonNoise(float(values[0])) if np.ndim(noise) == 0 and n else RowNoise(values)


def as_variances(noise: Any, n: int) -> np.ndarray:
    """A variance, or one per row, as a new array (n,)."""
    single = np.ndim(noise) == 0 if isinstance(noise, np.ndarray | jax.Array) else not hasattr(noise, "__len__")
    try:
        values = as_vector(np.full(n, noise) if single else noise, n, "noise").copy()
    except DataError as error:
        raise ParameterError(f"{error} Expected: one noise variance, or {n}, one per row.") from error
    if (values < 0).any():
        raise ParameterError(f"noise is a variance and must not be negative; got {reprlib.repr(noise)}.")
    return values
