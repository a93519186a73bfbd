"""Compiled loops for products with a covariance with states, and their derivatives. Imported when first needed.

With the conventions of `state_loops`, the strictly lower triangle of the covariance times V is left_i^T x_i, where
x_i = A_i (x_(i-1) + right_(i-1) V_(i-1)).
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def states(sizes, A, right, V, after, xs):  # type: ignore[no-untyped-def]
    """Write x_i (n, m, c). ``after`` (m, c), the state after the row before, becomes that after the last."""
    n, m = right.shape
    c = V.shape[1]
    for i in range(n):
        o, p = 0, 0
        for s in sizes:
            for r in range(s):
                for k in range(c):
                    total = 0.0
                    for j in range(s):
                        total += A[i, p + r * s + j] * after[o + j, k]
                    xs[i, o + r, k] = total
            o += s
            p += s * s
        for j in range(m):
            for k in range(c):
                after[j, k] = xs[i, j, k] + right[i, j] * V[i, k]


@njit(cache=True, nogil=True)
def reverse(sizes, A, left, right, V, W, d, before, xs, bar, A_bar, left_bar, right_bar):  # type: ignore[no-untyped-def]
    """Derivatives of sum_i (sum_k W_ik left_i^T x_ik + d_i left_i^T right_i) in the matrices. ``before`` (m, c) is the
    state before the first row; ``bar`` (m, c) is the derivative in that after the last row, and becomes its."""
    n, m = left.shape
    c = V.shape[1]
    full, last = np.empty((m, c)), np.empty((m, c))
    for i in range(n - 1, -1, -1):
        for j in range(m):
            on_left, on_right = d[i] * right[i, j], d[i] * left[i, j]
            for k in range(c):
                on_left += W[i, k] * xs[i, j, k]
                on_right += V[i, k] * bar[j, k]
                full[j, k] = bar[j, k] + left[i, j] * W[i, k]
                last[j, k] = before[j, k] if i == 0 else xs[i - 1, j, k] + right[i - 1, j] * V[i - 1, k]
            left_bar[i, j], right_bar[i, j] = on_left, on_right
        o, p = 0, 0
        for s in sizes:
            for r in range(s):
                for j in range(s):
                    total = 0.0
                    for k in range(c):
                        total += full[o + r, k] * last[o + j, k]
                    A_bar[i, p + r * s + j] = total
                for k in range(c):
                    total = 0.0
                    for j in range(s):
                        total += A[i, p + j * s + r] * full[o + j, k]
                    bar[o + r, k] = total
            o += s
            p += s * s
