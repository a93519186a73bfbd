"""The noise of measurements, beside the kernel the other part of a model: learned, one number, or one for each row.

Noise is Gaussian and independent from row to row. ``free`` are its parameters in the optimiser's coordinates: in theta
they come after those of the kernel.
"""

import abc
import dataclasses
import functools
import math
import reprlib
from typing import Any

import jax
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_vector
from mercer.core.precision import double
from mercer.priors import Prior


class Noise(abc.ABC):
    """Variances of the rows, and what theta says of them."""

    names: tuple[str, ...] = ()  # of free parameters

    @property
    def size(self) -> int:
        """How many parameters are learned."""
        return len(self.names)

    @abc.abstractmethod
    def variances(self, free, n: int) -> np.ndarray:
        """One for each of n rows: (n,)."""

    def slope(self, free, weights) -> np.ndarray:
        """sum_n weights_n d variance_n / d free: (size,)."""
        return np.zeros(0)

    def start(self, variance: float) -> np.ndarray:
        """``free`` where learning may begin."""
        return np.zeros(0)

    def floor(self) -> np.ndarray:
        """The least that ``free`` may be."""
        return np.full(self.size, -np.inf)

    def loosened(self, free, least: float) -> np.ndarray | None:
        """``free`` moved up to where the noise leaves a trace, a variance of ``least``; None if it is there."""
        return None

    def amplitude(self) -> np.ndarray | None:
        """Which of ``free``, moved together, multiply the noise; None if it does not move."""
        return np.zeros(0, bool)

    def log_prior(self, free) -> tuple[float, np.ndarray]:
        """ln p of what is learned, on the natural scale, and its gradient in ``free``."""
        return 0.0, np.zeros(self.size)

    def parameters(self, free, unit: float) -> dict[str, Any]:
        """Values by name, for a target whose variances are ``unit`` times as large."""
        return {}

    def take(self, rows) -> "Noise":
        """Of some of the rows."""
        return self

    def scaled(self, unit: float) -> "Noise":
        """The same for a target whose variances are ``unit`` times as large."""
        return self

    def held_above(self, least: float) -> "Noise":
        """The same with a floor under what is learned."""
        return self

    @property
    def positive(self) -> bool:
        """Whether every row has some."""
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class LearnedNoise(Noise):
    """One variance for all rows, learned, not below ``least``. ``prior`` is its density in units of ``unit``."""

    least: float = 0.0
    prior: Prior | None = None
    unit: float = 1.0
    names = ("noise",)

    def variances(self, free, n):
        with np.errstate(over="ignore"):
            return np.full(n, np.exp(free[0]))

    def slope(self, free, weights):
        return np.array([np.sum(weights) * np.exp(free[0])])

    def start(self, variance):
        return np.array([math.log(variance)])

    def floor(self):
        return np.array([math.log(self.least) if self.least > 0 else -np.inf])

    def loosened(self, free, least):
        return None if free[0] > math.log(least) - 0.5 else np.array([math.log(least)])

    def amplitude(self):
        return np.array([True])

    @functools.cached_property
    def _density(self):
        assert self.prior is not None
        return jax.jit(jax.value_and_grad(self.prior.log_density))

    def log_prior(self, free):
        if self.prior is None:
            return 0.0, np.zeros(1)
        variance = math.exp(free[0]) * self.unit
        with double():
            value, slope = self._density(variance)
        return float(value), np.array([float(slope) * variance])

    def parameters(self, free, unit):
        return {"noise": math.exp(free[0]) * unit}

    def scaled(self, unit):
        return dataclasses.replace(self, least=self.least * unit, unit=self.unit / unit)

    def held_above(self, least):
        return dataclasses.replace(self, least=least)


@dataclasses.dataclass(frozen=True, eq=False)
class CommonNoise(Noise):
    """One variance for all rows, given."""

    variance: float

    def variances(self, free, n):
        return np.full(n, self.variance)

    def amplitude(self):
        return None if self.variance else np.zeros(0, bool)

    def scaled(self, unit):
        return CommonNoise(self.variance * unit)

    @property
    def positive(self):
        return self.variance > 0


@dataclasses.dataclass(frozen=True, eq=False)
class RowNoise(Noise):
    """One variance for each row, given."""

    values: np.ndarray

    def variances(self, free, n):
        return self.values

    def amplitude(self):
        return None if self.values.any() else np.zeros(0, bool)

    def take(self, rows):
        return RowNoise(self.values[rows])

    def scaled(self, unit):
        return RowNoise(self.values * unit)

    @property
    def positive(self):
        return bool((self.values > 0).all())


def as_noise(noise, n: int) -> Noise:
    """From what a person gives: None or a prior to learn it, a number, or one variance for each of n rows."""
    if noise is None or isinstance(noise, Noise):
        return LearnedNoise() if noise is None else noise
    if isinstance(noise, Prior):
        return LearnedNoise(prior=noise)
    values = as_variances(noise, n)
    return CommonNoise(float(values[0])) if np.ndim(noise) == 0 and n else RowNoise(values)


def as_variances(noise, n: int) -> np.ndarray:
    """A number, or one for each row, as (n,)."""
    try:
        values = np.full(n, float(noise)) if np.ndim(noise) == 0 else as_vector(noise, n, "noise")
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"noise is a variance: one number, one for each of {n} rows, or a prior to learn it under; got "
            f"{reprlib.repr(noise)}."
        ) from (error if isinstance(error, DataError) else None)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ParameterError(f"noise is a variance, which is not negative; got {reprlib.repr(noise)}.")
    return values
