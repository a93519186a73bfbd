"""Factorisation of small covariances set by set, and products with the sparse factor that they make, compiled by
Numba. Import it only where it is needed."""

import math

import numpy as np
from numba import njit

REORDERED = {"reassoc", "contract"}  # sums may be reordered, for vector instructions; NaN stays NaN


@njit(cache=True, nogil=True, fastmath=REORDERED)
def factorise(
    C: np.ndarray, members: np.ndarray, sizes: np.ndarray, target: np.ndarray, noise: np.ndarray, ends: np.ndarray,
    columns: np.ndarray, values: np.ndarray, variance: np.ndarray,
) -> bool:  # fmt: skip
    """Add noise to the diagonals of C (G, k, k) and factorise the lower triangles, in place. Of every target write the
    regression on earlier members into row ``ends`` of ``columns`` and ``values``, and its conditional variance.

    False if a matrix is not positive definite.
    """
    for g in range(len(C)):
        k, L = sizes[g], C[g]
        for p in range(k):
            row = members[g, p]
            L[p, p] += noise[row]
            for q in range(p + 1):
                total = L[p, q]
                for t in range(q):
                    total -= L[p, t] * L[q, t]
                if q < p:
                    L[p, q] = total / L[q, q]
                elif total > 0.0:
                    L[p, p] = math.sqrt(total)
                else:
                    return False
            if not target[g, p]:
                continue
            variance[row] = L[p, p] ** 2
            b = values[ends[row] : ends[row] + p]
            for q in range(p):
                columns[ends[row] + q] = members[g, q]
                b[q] = L[p, q]
            for q in range(p - 1, -1, -1):
                b[q] /= L[q, q]
                for t in range(q):
                    b[t] -= L[q, t] * b[q]
    return True


@njit(cache=True, nogil=True, fastmath=REORDERED)
def products(
    ends: np.ndarray, columns: np.ndarray, Z: np.ndarray, E: np.ndarray, size: np.ndarray, along: np.ndarray
) -> None:
    """Of every row, ``size`` v^T M v (n,) and ``along`` M v on its columns, for v = (-b, 1), M = Z Z^T and
    E = Z - B Z (n, c)."""
    for i in range(len(Z)):
        size[i] = 0.0
        for c in range(Z.shape[1]):
            size[i] += E[i, c] ** 2
        for t in range(ends[i], ends[i + 1]):
            along[t] = 0.0
            for c in range(Z.shape[1]):
                along[t] += E[i, c] * Z[columns[t], c]


@njit(cache=True, nogil=True, fastmath=REORDERED)
def pull(
    C: np.ndarray, members: np.ndarray, sizes: np.ndarray, target: np.ndarray, ends: np.ndarray, values: np.ndarray,
    variance: np.ndarray, size: np.ndarray, along: np.ndarray, of_noise: np.ndarray,
) -> None:  # fmt: skip
    """Replace the factors C (G, k, k) by the weights W of the derivative of -1/2 sum_i (ln d_i + v_i^T M v_i / d_i), M
    held, given the products of `products`: the derivative is sum_pq W_pq dC_pq over lower triangles. Adds the diagonals
    to ``of_noise``.

    With b = C^-1 c and d = k - c^T b of a target, and g = C^-1 (M v) / d: the derivative in c is g - 2 w b, that in k
    is w, and that in C is w b b^T - (g b^T + b g^T) / 2, where w = (v^T M v / d - 1) / 2 d.
    """
    most = C.shape[1]
    W, h = np.empty((most, most)), np.empty(most)
    for g in range(len(C)):
        k, L = sizes[g], C[g]
        W[:k, :k] = 0.0
        for p in range(k):
            if not target[g, p]:
                continue
            row = members[g, p]
            b, d = values[ends[row] : ends[row] + p], variance[row]
            w = 0.5 * (size[row] / d - 1) / d
            for q in range(p):
                total = along[ends[row] + q] / d
                for t in range(q):
                    total -= L[q, t] * h[t]
                h[q] = total / L[q, q]
            for q in range(p - 1, -1, -1):
                h[q] /= L[q, q]
                for t in range(q):
                    h[t] -= L[q, t] * h[q]
            W[p, p] += w
            for q in range(p):
                W[p, q] += h[q] - 2 * w * b[q]
                left, right = 2 * w * b[q] - h[q], b[q]
                for t in range(q):
                    W[q, t] += left * b[t] - right * h[t]
                W[q, q] += (w * b[q] - h[q]) * b[q]
        for p in range(k):
            of_noise[members[g, p]] += W[p, p]
            for q in range(p + 1):
                L[p, q] = W[p, q]
        L[k:] = 0.0


@njit(cache=True, nogil=True, fastmath=REORDERED)
def residuals(ends: np.ndarray, columns: np.ndarray, values: np.ndarray, Z: np.ndarray, out: np.ndarray) -> None:
    """out = (I - B) Z."""
    for i in range(len(Z)):
        for c in range(Z.shape[1]):
            out[i, c] = Z[i, c]
        for t in range(ends[i], ends[i + 1]):
            for c in range(Z.shape[1]):
                out[i, c] -= values[t] * Z[columns[t], c]


@njit(cache=True, nogil=True, fastmath=REORDERED)
def transposed(ends: np.ndarray, columns: np.ndarray, values: np.ndarray, Z: np.ndarray, out: np.ndarray) -> None:
    """out = (I - B)^T Z."""
    out[:] = Z
    for i in range(len(Z)):
        for t in range(ends[i], ends[i + 1]):
            for c in range(Z.shape[1]):
                out[columns[t], c] -= values[t] * Z[i, c]


@njit(cache=True, nogil=True, fastmath=REORDERED)
def solve(ends: np.ndarray, columns: np.ndarray, values: np.ndarray, Z: np.ndarray) -> None:
    """Z becomes (I - B)^-1 Z."""
    for i in range(len(Z)):
        for t in range(ends[i], ends[i + 1]):
            for c in range(Z.shape[1]):
                Z[i, c] += values[t] * Z[columns[t], c]


@njit(cache=True, nogil=True, fastmath=REORDERED)
def solve_transposed(ends: np.ndarray, columns: np.ndarray, values: np.ndarray, Z: np.ndarray) -> None:
    """Z becomes (I - B)^-T Z."""
    for i in range(len(Z) - 1, -1, -1):
        for t in range(ends[i], ends[i + 1]):
            for c in range(Z.shape[1]):
                Z[columns[t], c] += values[t] * Z[i, c]


@njit(cache=True, nogil=True, fastmath=REORDERED)
def precision_diagonal(ends: np.ndarray, columns: np.ndarray, values: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Diagonal of (I - B)^T D^-1 (I - B)."""
    out = 1 / variance
    for i in range(len(variance)):
        for t in range(ends[i], ends[i + 1]):
            out[columns[t]] += values[t] ** 2 / variance[i]
    return out


@njit(cache=True, nogil=True, fastmath=REORDERED)
def solve_sets(C: np.ndarray, noise: np.ndarray, b: np.ndarray) -> int:
    """Add noise (G, k) to the diagonals of C (G, k, k), factorise the lower triangles in place, and solve for the
    columns of b (G, k, c), in place. The number of the first set that is not positive definite, or -1."""
    for g in range(len(C)):
        L, k = C[g], C.shape[1]
        for p in range(k):
            L[p, p] += noise[g, p]
            for q in range(p + 1):
                total = L[p, q]
                for t in range(q):
                    total -= L[p, t] * L[q, t]
                if q < p:
                    L[p, q] = total / L[q, q]
                elif total > 0.0:
                    L[p, p] = math.sqrt(total)
                else:
                    return g
        for c in range(b.shape[2]):
            for q in range(k):
                total = b[g, q, c]
                for t in range(q):
                    total -= L[q, t] * b[g, t, c]
                b[g, q, c] = total / L[q, q]
            for q in range(k - 1, -1, -1):
                b[g, q, c] /= L[q, q]
                for t in range(q):
                    b[g, t, c] -= L[q, t] * b[g, q, c]
    return -1
