"""Squared Euclidean distances: accurate for close points, never negative, differentiable everywhere.

For few columns, differences are squared and summed, so a common shift of the inputs and near-duplicates lose no digits.
For many columns, the fast formula |a|^2 + |b|^2 - 2 a.b takes one matrix product of centred inputs. It cancels where
two points are much closer to each other than to the centre; a tile with such a pair is computed by the accurate
formula, from differences.
"""

import contextlib
import contextvars
import functools
import operator
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from mercer.core.inputs import check_width
from mercer.core.precision import Array

Arrays = tuple[jax.Array, ...]

MAX_DIFFERENCE_COLUMNS = 16  # number of columns up to which differences are faster than the matrix product
# Squared distances below this share of |a|^2 + |b|^2 need the accurate formula: values keep 13 digits, derivatives 9.
MIN_RELATIVE_DISTANCE = 1e-2
MIN_RELATIVE_DISTANCE_FOR_SLOPE = 1e-7
MAX_SQUARED_NORM_FOR_SLOPE = 1e6  # squared distance from the centre, in lengthscales, beyond which derivatives need it

_fast: contextvars.ContextVar[bool] = contextvars.ContextVar("fast", default=False)
_smooth: contextvars.ContextVar[bool] = contextvars.ContextVar("smooth", default=False)


@contextlib.contextmanager
def fast_distances(enabled: bool) -> Iterator[None]:
    """Context in which traced code uses the fast formula alone, with NaN where it may have lost digits.

    Checking all pairs inside the program takes a quarter of the work, and hardly ever finds any. The caller must check
    the result for NaN, and compute such a tile again by the accurate formula.
    """
    token = _fast.set(enabled)
    try:
        yield
    finally:
        _fast.reset(token)


def uses_fast_distances() -> bool:
    """Whether the fast formula alone is used, with NaN where digits were lost."""
    return _fast.get()


@contextlib.contextmanager
def smooth_distances() -> Iterator[None]:
    """Context in which traced code has derivatives of every order in the inputs, also at coincident points: distances
    are sums of squared differences, and formulas take no shortcut that has the right value or slope alone."""
    token = _smooth.set(True)
    try:
        yield
    finally:
        _smooth.reset(token)


def uses_smooth_distances() -> bool:
    """Whether derivatives of every order are wanted."""
    return _smooth.get()


def squared_distance(X: Array, Z: Array, lengthscale: Any = 1.0, what: str = "lengthscale") -> jax.Array:
    """sum_i (x_i - z_i)^2 / l_i^2 for all pairs: (n, d), (m, d) -> (n, m). 3 n m d flops."""
    d = X.shape[1]
    precision = 1.0 / jnp.asarray(lengthscale)
    if uses_smooth_distances():
        if precision.size > 1:
            check_width(X, precision.size, what)
        return jnp.sum(jnp.square((X[:, None, :] - Z[None, :, :]) * precision), axis=-1)
    if precision.ndim == 0:
        return _distances(X, Z, jnp.ones(d)) * precision**2
    if precision.size > 1:
        check_width(X, precision.size, what)
    return _distances(X, Z, jnp.broadcast_to(precision, (d,)))


@jax.custom_jvp
def _distances(X: jax.Array, Z: jax.Array, precision: jax.Array) -> jax.Array:
    """sum_i precision_i^2 (x_i - z_i)^2."""
    few = X.shape[1] <= MAX_DIFFERENCE_COLUMNS
    return _by_differences(X, Z, precision) if few else _by_product(X, Z, precision)


@_distances.defjvp
def _distances_jvp(primals: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    # d|a-b|^2 = 2 (a-b).(da-db), bilinear in (a, b) and (da, db). Matrix products, whose transposes (the reverse mode)
    # are matrix products too, are many times faster than one reduction per column, but cancel like the distance itself:
    # tiles with pairs too close for nine digits, or with points a thousand lengthscales from the centre, are computed
    # from differences. Both formulas can be differentiated again.
    X, Z, precision = primals
    r2 = _distances(X, Z, precision)
    centre = jax.lax.stop_gradient(jnp.mean(X, axis=0))
    a2 = jnp.sum(((X - centre) * precision) ** 2, axis=1)
    b2 = jnp.sum(((Z - centre) * precision) ** 2, axis=1)
    close = (r2 < MIN_RELATIVE_DISTANCE_FOR_SLOPE * (a2[:, None] + b2[None, :])) & (r2 > 0)
    cancels = jnp.any(close) | (jnp.max(a2) + jnp.max(b2) > MAX_SQUARED_NORM_FOR_SLOPE)
    if uses_fast_distances():
        return r2, 2 * tangent_by_products(primals, tangents, centre) * jnp.where(cancels, jnp.nan, 1.0)
    tangent = jax.lax.cond(cancels, _tangent_by_differences, tangent_by_products, primals, tangents, centre)
    return r2, 2 * tangent


def tangent_by_products(primals: Arrays, tangents: Arrays, centre: Any) -> jax.Array:
    """Half the derivative of sum_i precision_i^2 (x_i - z_i)^2 along the tangents of X, Z and precision."""
    (X, Z, precision), (dX, dZ, dprecision) = primals, tangents
    A, dA = (X - centre) * precision, dX * precision + (X - centre) * dprecision
    B, dB = (Z - centre) * precision, dZ * precision + (Z - centre) * dprecision
    return jnp.sum(A * dA, axis=1)[:, None] + jnp.sum(B * dB, axis=1)[None, :] - A @ dB.T - dA @ B.T


def _tangent_by_differences(primals: Arrays, tangents: Arrays, centre: Any) -> jax.Array:
    (X, Z, precision), (dX, dZ, dprecision) = primals, tangents

    @jax.checkpoint  # differences are recomputed in the reverse pass, not stored for every column
    def add_column(total: jax.Array, column: Arrays) -> tuple[jax.Array, None]:
        x, z, p, dx, dz, dp = column
        difference = x[:, None] - z[None, :]
        change = (dx[:, None] - dz[None, :]) * p + difference * dp
        return total + difference * p * change, None

    start = jnp.zeros_like(X[:, :1] + Z[None, :, 0])
    return jax.lax.scan(add_column, start, (X.T, Z.T, precision, dX.T, dZ.T, dprecision))[0]


def _by_differences(X: jax.Array, Z: jax.Array, precision: jax.Array) -> jax.Array:
    # Unrolled over columns: one fused loop over the tile, no (n, m, d) array.
    squares = (jnp.square((X[:, i, None] - Z[None, :, i]) * precision[i]) for i in range(X.shape[1]))
    return functools.reduce(operator.add, squares)


def _by_product(X: jax.Array, Z: jax.Array, precision: jax.Array) -> jax.Array:
    centre = jnp.mean(X, axis=0)
    A, B = (X - centre) * precision, (Z - centre) * precision
    size = jnp.sum(A * A, axis=1)[:, None] + jnp.sum(B * B, axis=1)[None, :]
    product = A @ B.T
    close = size - 2 * product < MIN_RELATIVE_DISTANCE * size
    # A row is at distance zero from itself; that alone need not make the tiles on the diagonal inaccurate.
    itself = jnp.zeros((), bool)
    if X.shape == Z.shape:
        itself = jnp.eye(X.shape[0], dtype=bool) & jnp.all(X == Z, axis=1)[:, None]
    if uses_fast_distances():
        return jnp.where(itself, 0.0, jnp.where(close, jnp.nan, size - 2 * product))
    cancels = jnp.any(close & ~itself)
    found = _replaced_by_differences(product, X, Z, precision, cancels)
    return jnp.where(cancels, found, jnp.where(itself, 0.0, jnp.maximum(size - 2 * found, 0.0)))


def _replaced_by_differences(
    start: jax.Array, X: jax.Array, Z: jax.Array, precision: jax.Array, wanted: jax.Array
) -> jax.Array:
    """Distances from differences, some columns at a time, if ``wanted``; else ``start`` itself, without a copy."""
    d, width = X.shape[1], MAX_DIFFERENCE_COLUMNS
    chunks = -(-d // width)

    def columns_first(A: jax.Array) -> jax.Array:
        padded = jnp.pad(A, ((0, 0), (0, chunks * width - d)))
        return padded.T.reshape(chunks, width, A.shape[0])

    Xc, Zc, pc = columns_first(X), columns_first(Z), jnp.pad(precision, (0, chunks * width - d)).reshape(chunks, width)

    def step(c: jax.Array, total: jax.Array) -> jax.Array:
        return jnp.where(c == 0, 0.0, total) + _by_differences(Xc[c].T, Zc[c].T, pc[c])

    return jax.lax.fori_loop(0, jnp.where(wanted, chunks, 0), step, start)


def difference_of_squares(X: jax.Array, Z: jax.Array) -> jax.Array:
    """|x|^2 - |z|^2 for all pairs, as sum_i (x_i - z_i)(x_i + z_i): accurate also for close points far from zero."""

    def add_column(total: jax.Array, column: Arrays) -> tuple[jax.Array, None]:
        x, z = column
        return total + (x[:, None] - z[None, :]) * (x[:, None] + z[None, :]), None

    return jax.lax.scan(add_column, jnp.zeros_like(X[:, :1] + Z[None, :, 0]), (X.T, Z.T))[0]


def safe_sqrt(r2: jax.Array) -> jax.Array:
    """sqrt with derivative zero, not infinite, at zero: the distance of a point to itself does not change."""
    zero = r2 == 0  # not `r2 <= 0`: NaN must stay NaN
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, r2)))
