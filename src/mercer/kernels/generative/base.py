"""Base of kernels made from a density: it is learned from the training rows if it has to be, and while its parameters
are constant, what the kernel needs of a row is computed once, when the row is prepared."""

import abc
import warnings
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import ModelWarning
from mercer.core.inputs import Inputs, Kind, Rows
from mercer.core.parameters import evolve, slots_of
from mercer.core.precision import Array, concretely, is_traced
from mercer.kernels.base import Kernel
from mercer.kernels.densities.base import ParametricDensity, dense, strips
from mercer.kernels.evaluate import on_host


class Table(NamedTuple):
    """What a kernel needs of each row, computed with constant parameters: (n, M)."""

    values: Any


class GenerativeKernel(Kernel):
    """sum_m phi_m(x) phi_m(x') with features from a density. Subclasses give ``table``, from which ``feature_block``
    computes phi."""

    model: ParametricDensity

    @property
    def reads(self) -> Kind:
        return self.model.reads

    @property
    def needs_fit(self) -> bool:
        return self.model.needs_fit

    def fit(self, X: Inputs) -> Self:
        return evolve(self, model=self.model.fit(X))

    @abc.abstractmethod
    def table(self, rows: Rows) -> Any:
        """What the kernel needs of rows that the density has prepared: (n, M)."""

    @abc.abstractmethod
    def features_of(self, table: Any) -> Any:
        """Features phi (n, M) from the table of the rows."""

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = self.model.prepare(X)
        if is_traced((self.model, rows)) or any(slot.free for slot in slots_of(self.model)):
            return dense(rows)
        with concretely():  # in strips of a few sizes, so that a new number of rows needs no compilation
            parts = [(rows, None)] if on_host(rows) else strips(rows)
            tables = [np.asarray(self.table(part))[:n] for part, n in parts]
        values = np.concatenate(tables) if tables else np.empty((0, 1))
        self.model.check(values)
        return Table(values)

    def _table(self, rows: Rows) -> Any:
        return jnp.asarray(rows.values) if isinstance(rows, Table) else self.table(rows)

    def feature_block(self, X: Rows) -> jax.Array:
        return self.features_of(self._table(X))

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.feature_block(X) @ self.feature_block(Z).T

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.sum(self.feature_block(X) ** 2, axis=1)

    def explain(self, rows: Rows) -> None:
        if not isinstance(rows, Table):
            with concretely():
                self.model.check(self.table(rows))


class ComponentKernel(GenerativeKernel):
    """sum_i w_i p_i(x) p_i(x') over components of a density. The table has ln p_i(x) + ln w_i / 2: (n, C)."""

    normalized: bool = eqx.field(default=False, static=True, kw_only=True)

    def table(self, rows: Rows) -> Any:
        model: Any = self.model
        return model.log_components(rows) + 0.5 * model.log_weights

    def features_of(self, table: Any) -> Any:
        return unit_rows(jnp.exp(without_largest(table))) if self.normalized else jnp.exp(table)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = super().prepare(X, index)
        if isinstance(rows, Table) and len(rows.values) > 1 and not self.normalized:
            largest = rows.values.max(axis=1)
            if not np.exp(largest).any():
                warn_of_underflow(self, float(largest.max()))
        return rows

    def normalize(self) -> Kernel:
        return evolve(self, normalized=True)


def warn_of_underflow(kernel: Kernel, largest: float) -> None:
    """Warn that all similarities are zero; ``largest`` is the logarithm of the largest density."""
    says, remedy = (
        f"underflow: the largest is exp({largest:.4g})",
        "Use .normalize(), or change the units of the inputs.",
    )
    if not np.isfinite(largest):
        says, remedy = "are zero", "Check the function, or give the logarithm of the density (log=True)."
    warnings.warn(
        f"all densities of {type(kernel).__name__} {says}, so all similarities are zero. {remedy}",
        ModelWarning,
        stacklevel=2,
    )


def shown(kernel: Any, expression: str) -> str:
    """An expression that lacks its options and closing bracket, for `repr`."""
    options = (", normalized=True" if kernel.normalized else "") + (f", name={kernel.name!r}" if kernel.name else "")
    return f"{expression}{options})"


def unit_rows(features: Any) -> Any:
    """Rows divided by their norms; rows of zeros stay."""
    norms2 = jnp.sum(features**2, axis=1, keepdims=True)
    positive = norms2 > 0
    return jnp.where(positive, features / jnp.sqrt(jnp.where(positive, norms2, 1.0)), 0.0)


def without_largest(logarithms: Any) -> Any:
    """Logarithms (n, M) less the largest of each row, where that is finite."""
    largest = jax.lax.stop_gradient(jnp.max(logarithms, axis=1, keepdims=True))
    return logarithms - jnp.where(jnp.isfinite(largest), largest, 0.0)
