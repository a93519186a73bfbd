"""Linear observations of a process: its mean under operators, and the noise of observations of each kind."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, as_matrix
from mercer.core.parameters import PositivePerInput, evolve
from mercer.core.registry import storable
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import LearnedNoise, Noise, as_variances
from mercer.kernels.observed import Functionals
from mercer.kernels.operators import Derivative

VALUES = 0  # number of the operator that is the function itself (`Functionals.over`)

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
    operators (`Functionals`), in order; ``others`` are further kinds with variances that were given."""

    noise: PositivePerInput
    kinds: tuple[int, ...] = eqx.field(static=True)
    width: int = eqx.field(static=True)  # of the inputs
    min_variance: Any = 0.0
    others: tuple[tuple[int, float], ...] = eqx.field(default=(), static=True)

    @classmethod
    def of_values(cls, noise: LearnedNoise, width: int) -> "KindNoise":
        """Noise that was learned from values of the function alone, and is known of these."""
        return cls(np.atleast_1d(noise.noise), (VALUES,), width, noise.min_variance)

    @property
    def size(self) -> int:
        return len(self.kinds)

    @property
    def given(self) -> bool:
        return False

    def _codes(self, rows: Inputs) -> np.ndarray:
        """Kind of each row; rows without a code are values."""
        X = as_matrix(gram.raw(rows))
        return np.full(len(X), VALUES) if X.shape[1] == self.width else X[:, self.width].astype(int)

    def _by_row(self, learned: np.ndarray, rows: Inputs) -> np.ndarray:
        """Of variances that are learned and those given, that of each row; NaN where it is not known."""
        known = {**dict(zip(self.kinds, learned, strict=True)), **dict(self.others)}
        kinds, where = np.unique(self._codes(rows), return_inverse=True)
        return np.array([known.get(int(kind), np.nan) for kind in kinds])[where]

    def knows(self, rows: Inputs) -> bool:
        """Whether the noise of all these rows is known."""
        return bool(np.isfinite(self._by_row(np.atleast_1d(self.noise), rows)).all())

    def variances(self, free: np.ndarray, rows: Inputs) -> np.ndarray:
        with np.errstate(over="ignore"):
            return self._by_row(np.exp(free), rows)

    def slope(self, free: np.ndarray, rows: Inputs, weights: np.ndarray) -> np.ndarray:
        codes = self._codes(rows)
        return np.array([weights[codes == kind].sum() for kind in self.kinds]) * np.exp(free)

    def at(self, Z: Inputs) -> float | np.ndarray:
        found = self._by_row(np.atleast_1d(self.noise), Z)
        if np.isnan(found).any():
            which = "values of the function" if (self._codes(Z)[np.isnan(found)] == VALUES).all() else "these"
            raise ParameterError(
                f"the noise of {which} is not known: none were among the observations from which noise was learned. "
                "Give its variance as noise=..., or for predictions include_noise=False."
            )
        return found

    def extended(self, noise: Any, Z: Inputs) -> "tuple[Noise, np.ndarray]":
        if noise is None:
            return self, np.asarray(self.at(Z), dtype=float)
        own = self._by_row(np.atleast_1d(self.noise), Z)
        if np.isfinite(own).any():
            raise ParameterError("this model has learned the noise of observations of this kind; leave noise out.")
        given, codes = as_variances(noise, len(own)), self._codes(Z)
        new = [(int(code), float(np.mean(given[codes == code]))) for code in np.unique(codes)]
        return evolve(self, others=(*self.others, *new)), given

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
        others = tuple((kind, variance * unit) for kind, variance in self.others)
        return evolve(self, noise=self.noise * unit, min_variance=self.min_variance * unit, others=others)

    def bounded_below(self, min_variance: Any) -> "Noise":
        return evolve(self, min_variance=min_variance)
