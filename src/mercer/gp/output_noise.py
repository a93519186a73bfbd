"""Measurement noise that differs between several targets, which are rows of one process."""

import math
from typing import Any

import equinox as eqx
import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs, as_matrix, select_columns
from mercer.core.parameters import NonNegativeArray, PositiveArray, evolve
from mercer.gp.noise import Noise, Rescaled, register

RAISED_STEP = 0.5  # of a logarithm: less is about as large


def output_numbers(rows: Inputs, column: Any) -> np.ndarray:
    """Number of the target of each row, from this column: (n,)."""
    chosen = (column,) if isinstance(column, str) else [column]
    return np.asarray(as_matrix(select_columns(gram.raw(rows), chosen)))[:, 0].astype(int)


class _OfOutputs(Noise):
    """One variance for each target. ``column``: where rows have the number of their target, an index or a name."""

    noise: eqx.AbstractVar[Any]
    column: eqx.AbstractVar[Any]

    def numbers(self, rows: Inputs) -> np.ndarray:
        return output_numbers(rows, self.column)

    def at(self, Z: Inputs) -> np.ndarray:
        return np.asarray(self.noise)[self.numbers(Z)]

    @property
    def positive(self) -> bool:
        return bool(np.all(np.asarray(self.noise) > 0))

    def rescaled(self, units: np.ndarray) -> Any:
        """The same noise where the variance of each target is ``units`` (P,) times as large."""
        return evolve(self, noise=self.noise * units)

    def scaled(self, unit: float) -> Any:
        return self.rescaled(np.full(len(self.noise), unit))


@register
class OutputNoise(_OfOutputs):
    """One learned variance for each target, at least its entry of ``least``."""

    noise: PositiveArray
    column: Any = eqx.field(default=-1, static=True)
    least: tuple[float, ...] = eqx.field(default=(), static=True)

    @property
    def size(self) -> int:
        return len(self.noise)

    @property
    def given(self) -> bool:
        return False

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(np.asarray(free))[self.numbers(rows)]

    def slope(self, free: np.ndarray, rows: Inputs, weights: np.ndarray) -> np.ndarray:
        return np.bincount(self.numbers(rows), weights, self.size) * np.exp(free)

    def start(self, variance: float) -> np.ndarray:
        return np.maximum(np.full(self.size, math.log(variance)), self.floor())

    def floor(self) -> np.ndarray:
        least = np.asarray(self.least) if self.least else np.zeros(self.size)
        return np.where(least > 0, np.log(np.where(least > 0, least, 1.0)), -np.inf)

    def raised_to(self, variance: float, free: np.ndarray) -> np.ndarray | None:
        low = free < math.log(variance) - RAISED_STEP
        return np.where(low, math.log(variance), free) if low.any() else None

    def amplitude(self) -> np.ndarray:
        return np.ones(self.size, bool)

    def rescaled(self, units: np.ndarray) -> "OutputNoise":
        least = tuple((np.asarray(self.least) * units).tolist()) if self.least else ()
        own = tuple((field, Rescaled(prior, float(1 / np.mean(units)))) for field, prior in self.priors)
        return evolve(self, noise=self.noise * units, least=least, priors=own)

    def bounded_by(self, least: np.ndarray) -> "OutputNoise":
        """Copy with a lower bound (P,) on each variance."""
        return evolve(self, least=tuple(np.asarray(least, dtype=float).tolist()))


@register
class GivenOutputNoise(_OfOutputs):
    """One given variance for each target."""

    noise: NonNegativeArray
    column: Any = eqx.field(default=-1, static=True)
    fixed: frozenset[str] = eqx.field(default=frozenset(("noise",)), static=True, kw_only=True, repr=False)

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        return self.at(rows)

    def amplitude(self) -> np.ndarray | None:
        return None if np.any(self.noise) else np.zeros(0, bool)
