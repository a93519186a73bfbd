"""Squared distances: exact in the last digits, never negative, differentiable everywhere.

Few columns: differences first, so a common shift of the inputs costs nothing and near-duplicates keep their digits.
Many columns: |a|^2 + |b|^2 - 2 a.b by one matrix product on centred inputs, which loses digits where two points are
much closer than they are to the centre; a tile that has such a pair is done by differences instead.
"""

import functools
import operator

import jax
import jax.numpy as jnp

from mercer.core.inputs import check_width

FEW = 16  # columns up to which differences beat the matrix product
NEAR = 1e-2  # |a - b|^2 below this share of |a|^2 + |b|^2 sends a tile to differences: 13 digits stay


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
    # d|a-b|^2 = 2 (a-b).(da-db), bilinear in (a, b) and (da, db): matrix products, whose transposes (the reverse mode)
    # are matrix products too, many times faster than one reduction per column; and twice differentiable.
    X, Z, precision = primals
    dX, dZ, dprecision = tangents
    centre = jax.lax.stop_gradient(jnp.mean(X, axis=0))
    A, dA = (X - centre) * precision, dX * precision + (X - centre) * dprecision
    B, dB = (Z - centre) * precision, dZ * precision + (Z - centre) * dprecision
    tangent = jnp.sum(A * dA, axis=1)[:, None] + jnp.sum(B * dB, axis=1)[None, :] - A @ dB.T - dA @ B.T
    return _distances(X, Z, precision), 2 * tangent


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


def safe_sqrt(r2):
    """sqrt with derivative zero, not infinite, at zero: the distance of a point to itself does not change."""
    positive = r2 > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, r2, 1.0)), 0.0)
