"""Squared distances: exact in the last digits, never negative, differentiable everywhere.

Few columns: differences first, so a common shift of the inputs costs nothing and near-duplicates keep their digits.
Many columns: |a|^2 + |b|^2 - 2 a.b by one matrix product on centred inputs, which loses digits where two points are
much closer than they are to the centre; a tile that has such a pair is done by differences instead.
"""

import contextlib
import contextvars
import functools
import operator

import jax
import jax.numpy as jnp

from mercer.core.inputs import check_width

FEW = 16  # columns up to which differences beat the matrix product
NEAR = 1e-2  # |a - b|^2 below this share of |a|^2 + |b|^2 sends a tile to differences: 13 digits stay

NEAR_SLOPE = 1e-7  # the same for derivatives: nine digits stay
FAR = 1e6  # squared distance from the centre, in lengthscales, beyond which derivatives go by differences


_optimistic: contextvars.ContextVar[bool] = contextvars.ContextVar("optimistic", default=False)


@contextlib.contextmanager
def optimistically(hopeful: bool = True):
    """While a tile is traced: NaN where a matrix product may have lost digits, instead of a second look at all pairs.

    The second look is a quarter of the work and hardly ever finds anything; whoever asks for NaN does the tile again.
    """
    token = _optimistic.set(hopeful)
    try:
        yield
    finally:
        _optimistic.reset(token)


def is_optimistic() -> bool:
    """Whether NaN may stand where digits were lost."""
    return _optimistic.get()


def squared_distance(X, Z, lengthscale=1.0, what: str = "lengthscale"):
    """sum_i (x_i - z_i)^2 / l_i^2 for all pairs: (n, d), (m, d) -> (n, m). 3 n m d flops."""
    d = X.shape[1]
    precision = 1.0 / jnp.asarray(lengthscale)
    if precision.ndim == 0:
        return _distances(X, Z, jnp.ones(d)) * precision**2
    if precision.size > 1:
        check_width(X, precision.size, what)
    return _distances(X, Z, jnp.broadcast_to(precision, (d,)))


@jax.custom_jvp
def _distances(X, Z, precision):
    """sum_i precision_i^2 (x_i - z_i)^2."""
    few = X.shape[1] <= FEW
    return _by_differences(X, Z, precision) if few else _by_product(X, Z, precision)


@_distances.defjvp
def _distances_jvp(primals, tangents):
    # d|a-b|^2 = 2 (a-b).(da-db), bilinear in (a, b) and (da, db). By matrix products, whose transposes (the reverse
    # mode) are matrix products too, it is many times faster than by one reduction per column, but it cancels like the
    # distance itself: tiles with pairs too near for nine digits, or with points a thousand lengthscales from their
    # centre, go by differences. Both ways can be differentiated again.
    X, Z, precision = primals
    r2 = _distances(X, Z, precision)
    centre = jax.lax.stop_gradient(jnp.mean(X, axis=0))
    a2 = jnp.sum(((X - centre) * precision) ** 2, axis=1)
    b2 = jnp.sum(((Z - centre) * precision) ** 2, axis=1)
    near = (r2 < NEAR_SLOPE * (a2[:, None] + b2[None, :])) & (r2 > 0)
    far = jnp.max(a2) + jnp.max(b2) > FAR
    if is_optimistic():
        return r2, 2 * tangent_by_products(primals, tangents, centre) * jnp.where(jnp.any(near) | far, jnp.nan, 1.0)
    careful = jnp.any(near) | far
    tangent = jax.lax.cond(careful, _tangent_by_differences, tangent_by_products, primals, tangents, centre)
    return r2, 2 * tangent


def tangent_by_products(primals, tangents, centre):
    """Half the change of sum_i precision_i^2 (x_i - z_i)^2 with X, Z and precision."""
    (X, Z, precision), (dX, dZ, dprecision) = primals, tangents
    A, dA = (X - centre) * precision, dX * precision + (X - centre) * dprecision
    B, dB = (Z - centre) * precision, dZ * precision + (Z - centre) * dprecision
    return jnp.sum(A * dA, axis=1)[:, None] + jnp.sum(B * dB, axis=1)[None, :] - A @ dB.T - dA @ B.T


def _tangent_by_differences(primals, tangents, centre):
    (X, Z, precision), (dX, dZ, dprecision) = primals, tangents

    @jax.checkpoint  # differences are made again in the reverse pass, not kept for every column
    def column(total, given):
        x, z, p, dx, dz, dp = given
        difference = x[:, None] - z[None, :]
        change = (dx[:, None] - dz[None, :]) * p + difference * dp
        return total + difference * p * change, None

    start = jnp.zeros_like(X[:, :1] + Z[None, :, 0])
    return jax.lax.scan(column, start, (X.T, Z.T, precision, dX.T, dZ.T, dprecision))[0]


def _by_differences(X, Z, precision):
    # Unrolled over columns: one fused loop over the tile, no (n, m, d) array.
    squares = (jnp.square((X[:, i, None] - Z[None, :, i]) * precision[i]) for i in range(X.shape[1]))
    return functools.reduce(operator.add, squares)


def _by_product(X, Z, precision):
    centre = jnp.mean(X, axis=0)
    A, B = (X - centre) * precision, (Z - centre) * precision
    size = jnp.sum(A * A, axis=1)[:, None] + jnp.sum(B * B, axis=1)[None, :]
    product = A @ B.T
    near = size - 2 * product < NEAR * size
    # A row met with itself is at distance zero; that alone need not send a diagonal tile to differences.
    itself = jnp.zeros((), bool)
    if X.shape == Z.shape:
        itself = jnp.eye(X.shape[0], dtype=bool) & jnp.all(X == Z, axis=1)[:, None]
    if is_optimistic():
        return jnp.where(itself, 0.0, jnp.where(near, jnp.nan, size - 2 * product))
    careful = jnp.any(near & ~itself)
    found = _replaced_by_differences(product, X, Z, precision, careful)
    return jnp.where(careful, found, jnp.where(itself, 0.0, jnp.maximum(size - 2 * found, 0.0)))


def _replaced_by_differences(start, X, Z, precision, wanted):
    """The distances by differences, FEW columns at a time, if ``wanted``; else ``start``, untouched and uncopied."""
    d = X.shape[1]
    chunks = -(-d // FEW)

    def columns_first(A):
        padded = jnp.pad(A, ((0, 0), (0, chunks * FEW - d)))
        return padded.T.reshape(chunks, FEW, A.shape[0])

    Xc, Zc, pc = columns_first(X), columns_first(Z), jnp.pad(precision, (0, chunks * FEW - d)).reshape(chunks, FEW)

    def step(c, total):
        return jnp.where(c == 0, 0.0, total) + _by_differences(Xc[c].T, Zc[c].T, pc[c])

    return jax.lax.fori_loop(0, jnp.where(wanted, chunks, 0), step, start)


def difference_of_squares(X, Z):
    """|x|^2 - |z|^2 for all pairs, as the sum of (x_i - z_i)(x_i + z_i): exact also for near points far from zero."""

    def column(total, given):
        x, z = given
        return total + (x[:, None] - z[None, :]) * (x[:, None] + z[None, :]), None

    return jax.lax.scan(column, jnp.zeros_like(X[:, :1] + Z[None, :, 0]), (X.T, Z.T))[0]


def safe_sqrt(r2):
    """sqrt with derivative zero, not infinite, at zero: the distance of a point to itself does not change."""
    zero = r2 == 0  # not "positive": a NaN must stay one
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, r2)))
