"""Preconditioned conjugate gradients for many right-hand sides at once, and the logarithm of the matrix."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Product = Callable[[np.ndarray], np.ndarray]  # of a matrix and several vectors: (n, m) to (n, m)


class Solution(NamedTuple):
    """Solutions X (n, m), the residuals B - C X (n, m), their lengths relative to those of B (m,), the number of
    iterations, and step lengths and ratios of the first columns in each iteration, for `log_quadratic`."""

    X: np.ndarray
    left: np.ndarray
    residuals: np.ndarray
    iterations: int
    coefficients: list[tuple[np.ndarray, np.ndarray]]


def conjugate_gradients(
    times: Product, B: np.ndarray, precondition: Product, tolerance: np.ndarray, max_iterations: int, watched: int = 0,
    start: np.ndarray | None = None,
) -> Solution:  # fmt: skip
    """Solve C X = B, each column until its residual is below ``tolerance`` (m,) of its length (Hestenes and Stiefel).

    The columns share products with C, which is what costs, but have step lengths of their own. ``watched``: number of
    the first columns, which must start from zero, whose coefficients are kept. ``start``: a guess of X.
    """
    X = np.zeros(B.shape) if start is None else start.copy()
    R = B.copy() if start is None else B - times(X)
    sizes = np.linalg.norm(B, axis=0)
    goal = tolerance * sizes
    Z = precondition(R)
    P, rho = Z.copy(), np.einsum("nm,nm->m", R, Z)
    active, iterations, kept = np.linalg.norm(R, axis=0) > goal, 0, []
    while active.any() and iterations < max_iterations:
        which = np.flatnonzero(active)
        p = P[:, which]
        Q = times(p)
        curvature = np.einsum("nm,nm->m", p, Q)
        if not (curvature > 0).all():  # the matrix is not positive definite to this precision
            curvature = np.where(curvature > 0, curvature, np.inf)
            active[which[np.isinf(curvature)]] = False
        alpha = rho[which] / curvature
        X[:, which] += alpha * p
        R[:, which] -= alpha * Q
        z = precondition(R[:, which])
        new = np.einsum("nm,nm->m", R[:, which], z)
        beta = np.where(alpha > 0, new / rho[which], 0.0)
        P[:, which] = z + beta * p
        rho[which] = new
        of_watched = np.full((2, watched), np.nan)
        seen = which < watched
        of_watched[:, which[seen]] = alpha[seen], beta[seen]
        kept.append((of_watched[0], of_watched[1]))
        iterations += 1
        active[which] &= np.linalg.norm(R[:, which], axis=0) > goal[which]
    found = np.linalg.norm(R, axis=0) / np.where(sizes > 0, sizes, 1.0)
    return Solution(X, R, found, iterations, kept if watched else [])


def log_quadratic(solution: Solution, column: int) -> float | None:
    """w^T ln(M) w / w^T w of the preconditioned matrix M and the whitened right-hand side w of a watched column, by
    Gaussian quadrature: the iterations are those of Lanczos (Golub and Meurant). None where rounding errors leave
    no step of these."""
    steps = [(alpha[column], beta[column]) for alpha, beta in solution.coefficients]
    if not steps or np.isnan(steps[0][0]):
        return 0.0  # the column was solved from the start
    # Until the column had converged, or a negative beta led to a negative alpha: M is not positive definite to this
    # precision.
    steps = list(itertools.takewhile(lambda step: 0 < step[0] < np.inf, steps))
    if not steps:
        return None
    alpha, beta = np.array(steps).T
    diagonal = 1 / alpha
    diagonal[1:] += beta[:-1] / alpha[:-1]
    beside = np.sqrt(beta[:-1]) / alpha[:-1]
    values, V = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return float(V[0] ** 2 @ np.log(np.maximum(values, np.finfo(float).tiny)))
