"""Linear observations of a process: its mean under operators, and the noise of observations of each kind."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.parameters import PositivePerInput, evolve
from mercer.core.registry import storable
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.kernels.observed import Functionals
from mercer.kernels.operators import Derivative

register = storable("observed")


@register
class ObservedMean(MeanFunction):
    """L m of rows that say which operator L was observed (`Functionals`), and L of the columns of a trend."""

    functionals: Any = None

    @classmethod
    def under(cls, mean: MeanFunction, functionals: Functionals) -> "ObservedMean":
        """A mean with these operators; one that has some takes these instead."""
        if isinstance(mean, cls):
            return evolve(mean, functionals=functionals)
        if functionals.names is not None and getattr(mean.function, "columns", None) is not None:
            raise ParameterError(f"the mean {mean!r} selects columns, which is not possible with operators.")
        fields = {name: getattr(mean, name) for name in ("constant", "function", "trend", "unit", "fixed", "priors")}
        return cls(**fields, functionals=functionals)

    def __call__(self, X: Inputs) -> np.ndarray:
        F: Functionals = self.functionals
        rows = F.coded(X)
        if F.only_values(rows):
            return super().__call__(F.places(rows))

        def mean(x: jax.Array) -> jax.Array:
            value = jnp.reshape(jnp.asarray(self.constant), 1)
            return value if self.function is None else value + self.function(x[None, :])[0] / self.unit

        return F.applied(mean, rows)[:, 0]

    def fit(self, X: Inputs) -> MeanFunction:
        return super().fit(self.functionals.places(X))

    def columns(self, X: Inputs) -> np.ndarray:
        F: Functionals = self.functionals
        rows = F.coded(X)
        if F.only_values(rows) or self.trend is None:
            return super().columns(F.places(rows))
        return F.applied(self.trend.at, rows)

    def slope(self, Z: np.ndarray, names: list[str] | None) -> np.ndarray:
        if self.functionals.default.is_value:
            return super().slope(Z, names)
        return np.stack([self._differentiated(c)(Z) for c in range(Z.shape[1])], axis=1)

    def columns_slope(self, Z: np.ndarray, names: list[str] | None) -> np.ndarray:
        if self.functionals.default.is_value:
            return super().columns_slope(Z, names)
        return np.stack([self._differentiated(c).columns(Z) for c in range(Z.shape[1])], axis=2)

    def _differentiated(self, column: int) -> "ObservedMean":
        return evolve(self, functionals=self.functionals.by_default(Derivative(column)))

    @property
    def needs_all_columns(self) -> bool:
        return False


@register
class KindNoise(Noise):
    """One learned variance for each kind of observation, as their units differ. ``kinds`` are the numbers of the
    operators (`Functionals`); the first is that of new measurements."""

    noise: PositivePerInput
    kinds: tuple[int, ...] = eqx.field(static=True)
    width: int = eqx.field(static=True)  # of the inputs
    min_variance: Any = 0.0

    @property
    def size(self) -> int:
        return len(self.kinds)

    @property
    def given(self) -> bool:
        return False

    def _groups(self, rows: Inputs) -> np.ndarray:
        """Index among ``kinds`` of each row; the first for rows without a code."""
        X = np.asarray(gram.raw(rows))
        if X.shape[1] == self.width:
            return np.zeros(len(X), dtype=int)
        return np.searchsorted(self.kinds, X[:, self.width].astype(int))

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(free)[self._groups(rows)]

    def slope(self, free: np.ndarray, rows: Inputs, weights: np.ndarray) -> np.ndarray:
        return np.bincount(self._groups(rows), weights, minlength=self.size) * np.exp(free)

    def at(self, Z: Inputs) -> float | np.ndarray:
        return np.atleast_1d(self.noise)[self._groups(Z)] if np.ndim(gram.raw(Z)) == 2 else float(self.noise[0])

    def extended(self, noise: Any, Z: Inputs) -> "tuple[Noise, np.ndarray]":
        if noise is not None:
            raise ParameterError("this model has learned the noise of each kind of observation; leave noise out.")
        return self, np.broadcast_to(np.asarray(self.at(Z), dtype=float), count_rows(Z)).copy()

    def start(self, variance: float) -> np.ndarray:
        return np.full(self.size, np.log(variance))

    def floor(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.broadcast_to(np.asarray(self.min_variance, dtype=float), self.size))

    def raised_to(self, variance: float, free: np.ndarray) -> np.ndarray | None:
        return None if (free > np.log(variance) - 0.5).any() else self.start(variance)

    def amplitude(self) -> np.ndarray | None:
        return np.ones(self.size, bool)

    def scaled(self, unit: float) -> "Noise":
        return evolve(self, noise=self.noise * unit, min_variance=self.min_variance * unit)

    def bounded_below(self, min_variance: Any) -> "Noise":
        return evolve(self, min_variance=min_variance)
