"""Kernels of transformed inputs, of some columns, and of distances of another kernel (PRML 6.14, 6.19, 6.26).

Each class is one rule: Gram blocks, diagonals, features, and proof of validity.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ObjectError, ParameterError
from mercer.core.inputs import Inputs, Rows, select_columns
from mercer.core.parameters import Positive, evolve, map_children, show
from mercer.core.precision import Array, concretely, is_traced, namespace
from mercer.kernels.base import Kernel
from mercer.kernels.composite import Unary, prepared
from mercer.kernels.evaluate import HostRows, on_host
from mercer.kernels.functions import RowFunction
from mercer.kernels.geometry import Geometry, gaussian_of, not_negative
from mercer.kernels.space import OfPlaces
from mercer.kernels.splines import NullSpace
from mercer.kernels.states import States
from mercer.kernels.validity import Validity, derive


class Modulate(Unary):
    """f(x) k1(x, x') f(x') for any function f (PRML 6.14)."""

    f: RowFunction = eqx.field(converter=RowFunction.of)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return self.f.prepare(X), prepared(self.inner, X, index)

    needs_all_columns = True  # for f

    def _factor(self, rows: Rows) -> jax.Array:
        values = self.f(rows)
        if values.shape[1] != 1:
            raise DataError(
                f"modulate needs a function that returns one number per input; this one returned {values.shape[1]}."
            )
        return values[:, 0]

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self._factor(X[0])[:, None] * self.inner.block(X[1], Z[1]) * self._factor(Z[0])[None, :]

    def block_diag(self, X: Rows) -> jax.Array:
        return self._factor(X[0]) ** 2 * self.inner.block_diag(X[1])

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        f, g = self._factor(X[0])[:, None], self._factor(Z[0])[None, :]
        factor = Geometry(f * g, (f - g) ** 2, (f - g) * (f + g))  # f(x) f(x') is a kernel with one feature
        return factor.times(self.inner.geometry(X[1], Z[1]))

    def feature_block(self, X: Rows) -> jax.Array:
        return self._factor(X[0])[:, None] * self.inner.feature_block(X[1])

    stationary = isotropic = None  # not known

    @property
    def validity(self) -> Validity:
        return derive("6.14", "a valid kernel between two equal factors", repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method(f"modulate({self.f!r})")


class Warp(Unary):
    """k1(phi(x), phi(x')) for any function phi (PRML 6.19)."""

    phi: RowFunction = eqx.field(converter=RowFunction.of)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = self.phi.prepare(X)
        if not is_traced((self, rows)) and not isinstance(rows, HostRows) and len(index):
            # The inner kernel prepares the values of phi, so if it runs on the host, phi has to as well.
            with concretely():
                if on_host(self._warped((rows[:1], index[:1]))):
                    rows = HostRows(np.asarray(self.phi(rows)))
        return rows, index

    needs_all_columns = True  # for phi
    reads = "anything"

    def fit(self, X: Inputs) -> Self:
        with concretely():
            return evolve(self, inner=self.inner.fit(np.asarray(self.phi(self.phi.prepare(X)))))

    def rough_part(self, orders: tuple[int, ...] | int) -> Kernel | None:
        return self.inner.rough_part(orders if isinstance(orders, int) else sum(orders))

    def _warped(self, X: Rows) -> Rows:
        rows, index = X
        values = self.phi(rows)
        if not is_traced(values) and not np.isfinite(values).all():
            raise DataError(f"the function {self.phi!r} returned values that are not finite.")
        return self.inner.prepare(values, index)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.inner.block(self._warped(X), self._warped(Z))

    def block_diag(self, X: Rows) -> jax.Array:
        return self.inner.block_diag(self._warped(X))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return self.inner.geometry(self._warped(X), self._warped(Z))

    def feature_block(self, X: Rows) -> jax.Array:
        return self.inner.feature_block(self._warped(X))

    stationary = isotropic = None  # not known

    @property
    def validity(self) -> Validity:
        return derive("6.19", "a valid kernel of a function of the input", repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method(f"warp({self.phi!r})")


class Span(NamedTuple):
    """A hashable slice."""

    start: int | None
    stop: int | None
    step: int | None


class On(Unary):
    """A kernel of some of the columns (the parts of PRML 6.21 and 6.22; alone, 6.19 with a selection)."""

    columns: Any = eqx.field(static=True, converter=lambda columns: _checked_columns(columns))

    @property
    def selection(self) -> Any:
        """Columns for `select_columns`: a slice, or a tuple of indices or names."""
        return slice(*self.columns) if isinstance(self.columns, Span) else self.columns

    @property
    def needs_all_columns(self) -> bool:
        return not isinstance(self.columns[0], str)

    reads = "columns"

    def fit(self, X: Inputs) -> Self:
        return evolve(self, inner=self._named(self.inner.fit, X))

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return self._named(lambda part: self.inner.prepare(part, index), X)

    def rough_part(self, orders: tuple[int, ...] | int) -> Kernel | None:
        if not isinstance(orders, int):
            orders = tuple(orders[i] for i in positions_of(self.selection, len(orders)))
        return self.inner.rough_part(orders)

    def normalize(self) -> Kernel:
        return evolve(self, inner=self.inner.normalize())  # which may be computed without overflow

    def _named(self, call: Callable[[Inputs], Any], X: Inputs) -> Any:
        """``call`` on the selected columns; errors about them name the column."""
        try:
            return call(select_columns(X, self.selection))
        except ObjectError as error:
            raise error.in_column(self.columns[0] if len(self.columns) == 1 else list(self.columns)) from None

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.inner.block(X, Z)

    def block_diag(self, X: Rows) -> jax.Array:
        return self.inner.block_diag(X)

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return self.inner.geometry(X, Z)

    def feature_block(self, X: Rows) -> jax.Array:
        return self.inner.feature_block(X)

    def state_space(self, order: Any = None) -> "States | None":
        inner = self.inner.state_space(order)
        if inner is None:
            return None
        selection = self.columns if isinstance(self.columns, Span) else tuple(self.columns)
        columns = frozenset((selection, *below) for below in inner.columns)
        return dataclasses.replace(inner, columns=columns)

    @property
    def homogeneity(self) -> int | None:
        return self.inner.homogeneity

    @property
    def distance_is_stationary(self) -> bool:
        return self.inner.distance_is_stationary

    @property
    def isotropic(self) -> bool | None:
        # If there are other columns, only a constant (or white noise) is isotropic in them.
        return self.inner.isotropic and (self.columns == Span(None, None, None) or not self.inner.needs_all_columns)

    @property
    def null_space(self) -> "NullSpace | None":
        parts = self.inner.null_space and self.inner.null_space.parts
        return NullSpace(tuple((degree, (self.selection, *inner)) for degree, inner in parts)) if parts else None

    @property
    def validity(self) -> Validity:
        return derive("6.19", "a valid kernel of some of the inputs", repr(self), [self.inner.validity],
                      keeps_failure=True)  # fmt: skip

    def __repr__(self) -> str:
        if isinstance(self.columns, Span):
            shown = repr(self.selection)
        else:
            shown = repr(self.columns[0]) if len(self.columns) == 1 else repr(list(self.columns))
        return self._method(f"on({shown})")


def by_position(kernel: Any, names: Sequence[str]) -> Any:
    """Select columns by index where the kernel selects them by name, for inputs whose columns have these names.

    >>> from mercer.kernels import RBF
    >>> by_position(RBF().on("b"), ["a", "b"])
    RBF(lengthscale=1.0).on(1)
    """
    if isinstance(kernel, On):
        if kernel.needs_all_columns:
            chosen = [names[i] for i in positions_of(kernel.selection, len(names))]
        else:
            chosen = list(kernel.columns)
            kernel = evolve(kernel, columns=tuple(list(names).index(name) for name in chosen))
        return evolve(kernel, inner=by_position(kernel.inner, chosen))
    if isinstance(kernel, Warp | OfPlaces):  # its part sees the values of a function, not the columns
        return kernel
    return map_children(lambda child: by_position(child, names) if isinstance(child, Kernel) else child, kernel)


def positions_of(selection: Any, d: int) -> Sequence[int]:
    """Positions of the selected columns among d."""
    return range(d)[selection] if isinstance(selection, slice) else [c % d for c in selection]


def _checked_columns(columns: Any) -> Any:
    if isinstance(columns, Span):
        return columns
    if isinstance(columns, slice):
        parts = (columns.start, columns.stop, columns.step)
        whole = all(part is None or isinstance(part, int | np.integer) for part in parts)
        if not whole or columns.step == 0:
            raise ParameterError(f"on accepts slices of column indices; got {columns!r}. Give column names in a list.")
        return Span(*parts)
    given = columns
    if isinstance(columns, str | int | np.integer) and not isinstance(columns, bool):
        columns = [columns]
    try:
        columns = tuple(columns)
        masked = any(isinstance(c, bool | np.bool_) for c in columns)
        columns = tuple(c if isinstance(c, str) else operator.index(c) for c in columns) if not masked else ()
    except TypeError:
        columns = ()
    if len({type(c) for c in columns}) != 1:
        raise ParameterError(
            f"on accepts column indices, a slice, or names of a frame's columns, at least one and all of one kind; "
            f"got {given!r}."
        )
    return columns


class GaussianOf(Unary):
    """exp(-(k1(x,x) + k1(x',x') - 2 k1(x,x')) / 2 sigma^2): the Gaussian kernel of k1's distance (PRML 6.26)."""

    sigma: Positive = 1.0

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.geometry(X, Z).product

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return gaussian_of(self.inner.geometry(X, Z).distance / jnp.square(self.sigma))

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.ones_like(self.inner.block_diag(X))

    @property
    def stationary(self) -> bool | None:
        return self.inner.distance_is_stationary or None

    @property
    def isotropic(self) -> bool | None:
        return self.inner.distance_is_isotropic or None

    @property
    def validity(self) -> Validity:
        says = "a Gaussian kernel of the distance of a valid one (6.14 and 6.16)"
        return derive("6.26", says, repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method(f"gaussian({show(self.sigma)})")


class Normalize(Unary):
    """k1(x, x') / sqrt(k1(x,x) k1(x',x')) (PRML 6.14 with f(x) = k1(x,x)^-1/2); zero where k1(x,x) = 0."""

    @property
    def stationary(self) -> bool | None:
        return self.inner.stationary or None  # exp(x.x') normalized is the Gaussian kernel

    @property
    def isotropic(self) -> bool | None:
        return self.inner.isotropic or None

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = prepared(self.inner, X, index)
        return _rescaled(rows, self.inner.homogeneity) if self.inner.homogeneity else rows

    def _factor(self, X: Rows) -> jax.Array:
        diagonal = self.inner.block_diag(X)
        xp = namespace(diagonal)
        inside = xp.where(diagonal > 0, diagonal, 1.0)
        return xp.where(diagonal > 0, 1 / xp.sqrt(inside), 0.0)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self._factor(X)[:, None] * self.inner.block(X, Z) * self._factor(Z)[None, :]

    def block_diag(self, X: Rows) -> jax.Array:
        diagonal = self.inner.block_diag(X)
        return namespace(diagonal).where(diagonal > 0, 1.0, 0.0)

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        # With norms s and t: 2 - 2c/st = (distance - (s - t)^2) / st, and s - t = difference / (s + t).
        s, t = (jnp.sqrt(jnp.maximum(self.inner.block_diag(rows), 0.0)) for rows in (X, Z))
        s, t = s[:, None], t[None, :]
        nonzero = (s > 0) & (t > 0)
        sum_, product = jnp.where(nonzero, s + t, 1.0), jnp.where(nonzero, s * t, 1.0)
        _, distance, difference = self.inner.geometry(X, Z)
        accurate = not_negative(distance - (difference / sum_) ** 2) / product
        plain = super().geometry(X, Z)
        return plain._replace(distance=jnp.where(nonzero, accurate, plain.distance))

    def feature_block(self, X: Rows) -> jax.Array:
        return self._factor(X)[:, None] * self.inner.feature_block(X)

    @property
    def validity(self) -> Validity:
        return derive("6.14", "a valid kernel between two equal factors", repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method("normalize()")


def _rescaled(rows: Rows, order: int) -> Rows:
    """Scale very short and very long rows, for which a kernel of this homogeneity would under- or overflow. Powers of
    two lose no digits, and rows of similar size have the same one, so their differences lose none either."""
    matrices = [leaf for leaf in jax.tree.leaves(rows) if np.ndim(leaf) == 2]
    traced = is_traced(matrices)
    xp = jnp if traced else np
    sizes = [xp.max(xp.abs(jax.lax.stop_gradient(matrix) if traced else matrix), axis=1) for matrix in matrices]
    _, exponent = xp.frexp(functools.reduce(xp.maximum, sizes))
    limits, bin_width = np.finfo(matrices[0].dtype), max(1, np.finfo(matrices[0].dtype).maxexp // (2 * order))
    power = xp.clip(-bin_width * xp.round(exponent / bin_width).astype(int), limits.minexp, limits.maxexp - 1)
    factor = xp.ldexp(xp.ones_like(sizes[0]), power)[:, None]
    return jax.tree.map(lambda leaf: leaf * factor if np.ndim(leaf) == 2 else leaf, rows)
