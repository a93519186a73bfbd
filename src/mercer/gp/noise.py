"""Measurement noise: one learned variance, one fixed variance, or one per row.

Noise is Gaussian and independent from row to row. ``free`` holds its parameters in the optimiser's (log) coordinates,
which follow the kernel's in theta.
"""

import abc
import dataclasses
import functools
import math
import reprlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_vector
from mercer.core.precision import double
from mercer.priors import Prior


class Noise(abc.ABC):
    """Noise variances of the rows as a function of the learned parameters."""

    names: tuple[str, ...] = ()  # of free parameters

    @property
    def size(self) -> int:
        """Number of learned parameters."""
        return len(self.names)

    @abc.abstractmethod
    def variances(self, free: np.ndarray, n: int) -> np.ndarray:
        """Noise variance of each row: (n,)."""

    def slope(self, free: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """sum_n weights_n d variance_n / d free: (size,)."""
        return np.zeros(0)

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

    def log_prior(self, free: np.ndarray) -> tuple[float, np.ndarray]:
        """Log prior density of the variance (no Jacobian), and its gradient in ``free``."""
        return 0.0, np.zeros(self.size)

    def parameters(self, free: np.ndarray, unit: float) -> dict[str, Any]:
        """Values by name, for a target whose variance is ``unit`` times as large."""
        return {}

    def take(self, rows: Any) -> "Noise":
        """Noise of a subset of rows."""
        return self

    def scaled(self, unit: float) -> "Noise":
        """The same noise for a target whose variance is ``unit`` times as large."""
        return self

    def bounded_below(self, min_variance: float) -> "Noise":
        """Copy with a lower bound on the learned variance."""
        return self

    @property
    def positive(self) -> bool:
        """Whether every row has positive variance."""
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class LearnedNoise(Noise):
    """One learned variance for all rows, at least ``min_variance``. ``prior`` is the density of ``unit`` times the
    variance."""

    min_variance: float = 0.0
    prior: Prior | None = None
    unit: float = 1.0
    names = ("noise",)

    def variances(self, free: np.ndarray, n: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.full(n, np.exp(free[0]))

    def slope(self, free: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.array([np.sum(weights) * np.exp(free[0])])

    def start(self, variance: float) -> np.ndarray:
        return np.array([math.log(variance)])

    def floor(self) -> np.ndarray:
        return np.array([math.log(self.min_variance) if self.min_variance > 0 else -np.inf])

    def raised_to(self, variance: float, free: np.ndarray) -> np.ndarray | None:
        return None if free[0] > math.log(variance) - 0.5 else np.array([math.log(variance)])

    def amplitude(self) -> np.ndarray | None:
        return np.array([True])

    @functools.cached_property
    def _density(self) -> Callable:
        assert self.prior is not None
        return jax.jit(jax.value_and_grad(self.prior.log_density))

    def log_prior(self, free: np.ndarray) -> tuple[float, np.ndarray]:
        if self.prior is None:
            return 0.0, np.zeros(1)
        variance = math.exp(free[0]) * self.unit
        with double():
            value, slope = self._density(variance)
        return float(value), np.array([float(slope) * variance])

    def parameters(self, free: np.ndarray, unit: float) -> dict[str, Any]:
        return {"noise": math.exp(free[0]) * unit}

    def scaled(self, unit: float) -> "Noise":
        return dataclasses.replace(self, min_variance=self.min_variance * unit, unit=self.unit / unit)

    def bounded_below(self, min_variance: float) -> "Noise":
        return dataclasses.replace(self, min_variance=min_variance)


@dataclasses.dataclass(frozen=True, eq=False)
class CommonNoise(Noise):
    """One given variance for all rows."""

    variance: float

    def variances(self, free: np.ndarray, n: int) -> np.ndarray:
        return np.full(n, self.variance)

    def amplitude(self) -> np.ndarray | None:
        return None if self.variance else np.zeros(0, bool)

    def scaled(self, unit: float) -> "Noise":
        return CommonNoise(self.variance * unit)

    @property
    def positive(self) -> bool:
        return self.variance > 0


@dataclasses.dataclass(frozen=True, eq=False)
class RowNoise(Noise):
    """One given variance per row."""

    values: np.ndarray

    def variances(self, free: np.ndarray, n: int) -> np.ndarray:
        return self.values

    def amplitude(self) -> np.ndarray | None:
        return None if self.values.any() else np.zeros(0, bool)

    def take(self, rows: Any) -> "Noise":
        return RowNoise(self.values[rows])

    def scaled(self, unit: float) -> "Noise":
        return RowNoise(self.values * unit)

    @property
    def positive(self) -> bool:
        return bool((self.values > 0).all())


def as_noise(noise: Any, n: int) -> Noise:
    """Noise from user input: None or a prior (learned), a number, n variances, or a `Noise`."""
    if noise is None or isinstance(noise, Noise):
        return LearnedNoise() if noise is None else noise
    if isinstance(noise, Prior):
        return LearnedNoise(prior=noise)
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
