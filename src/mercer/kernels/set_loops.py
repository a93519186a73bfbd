"""The standard kernel on many small sets of rows, compiled by Numba. Import it only where it is needed."""

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, inline="always")
def _radial(nu: float, r2: float) -> tuple[float, float]:
    """The radial function of a squared distance, and its derivative."""
    if nu == 0.5:
        s = math.sqrt(r2)
        e = math.exp(-s)
        return e, -0.5 * e / s if s > 0 else 0.0
    if nu == 1.5:
        s = math.sqrt(3 * r2)
        e = math.exp(-s)
        return (1 + s) * e, -1.5 * e
    if nu == 2.5:
        s = math.sqrt(5 * r2)
        e = math.exp(-s)
        return (1 + s + s * s / 3) * e, -5 / 6 * (1 + s) * e
    e = math.exp(-0.5 * r2)
    return e, -0.5 * e


@njit(cache=True, nogil=True)
def fill(
    out: np.ndarray, members: np.ndarray, sizes: np.ndarray, A: np.ndarray, X: np.ndarray, nu: float, thetas: np.ndarray
) -> None:
    """Write theta0 radial(|a - a'|^2) + theta2 + theta3 x.x', plus theta4 on the diagonal, into the lower triangles of
    ``out`` (G, k, k). ``thetas``: theta0, theta2, theta3, theta4, zero where there is none."""
    theta0, theta2, theta3, theta4 = thetas
    for g in range(len(members)):
        for p in range(sizes[g]):
            i = members[g, p]
            for q in range(p + 1):
                j = members[g, q]
                r2 = 0.0
                for c in range(A.shape[1]):
                    r2 += (A[i, c] - A[j, c]) ** 2
                value = theta0 * _radial(nu, r2)[0] + theta2
                if theta3 != 0.0:
                    for c in range(X.shape[1]):
                        value += theta3 * X[i, c] * X[j, c]
                out[g, p, q] = value
            out[g, p, p] += theta4


@njit(cache=True, nogil=True)
def contract(
    weights: np.ndarray, members: np.ndarray, sizes: np.ndarray, A: np.ndarray, X: np.ndarray, nu: float,
    thetas: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Sum over sets of weights (G, k, k), lower triangles, times derivatives in the logarithms of the thetas: (5 - 1 +
    d,), with one for each input in the place of theta1."""
    theta0, theta2, theta3, theta4 = thetas
    d = A.shape[1]
    total, of_constant, of_dots, of_diagonal = 0.0, 0.0, 0.0, 0.0
    lengths = np.zeros(d)
    for g in range(len(members)):
        for p in range(sizes[g]):
            i = members[g, p]
            for q in range(p + 1):
                j, w = members[g, q], weights[g, p, q]
                r2 = 0.0
                for c in range(d):
                    r2 += (A[i, c] - A[j, c]) ** 2
                value, slope = _radial(nu, r2)
                total += w * value
                for c in range(d):
                    lengths[c] += w * slope * (A[i, c] - A[j, c]) ** 2
                of_constant += w
                if theta3 != 0.0:
                    for c in range(X.shape[1]):
                        of_dots += w * X[i, c] * X[j, c]
            of_diagonal += weights[g, p, p]
    out = np.empty(4 + d)
    out[0] = theta0 * total
    out[1 : 1 + d] = theta0 * lengths
    out[1 + d], out[2 + d], out[3 + d] = theta2 * of_constant, theta3 * of_dots, theta4 * of_diagonal
    return out
