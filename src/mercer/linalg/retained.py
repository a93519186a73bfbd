"""Gaussian values of a function at points: choice of the points to keep, and their marginal distribution.

Values are f = L v with L L^T = K, so that v ~ N(0, I) before any data, and N(m, S) after.
"""

import numpy as np

from mercer.linalg import backend
from mercer.linalg.jitter import WHITENED_JITTER


def marginal(L: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of points ``which`` of those with factor L (n, n): their factor (m, m), and M (m, n), M M^T = I, with v = M v of
    all points. By a QR decomposition of the rows of L: no covariance is inverted."""
    Q, R = np.linalg.qr(L[which].T)
    signs = np.where(np.diag(R) < 0, -1.0, 1.0)
    return np.asfortranarray(np.tril((R * signs[:, None]).T)), (Q * signs).T


def worth_keeping(L: np.ndarray, means: np.ndarray, covariances: np.ndarray, budget: int) -> tuple[np.ndarray, float]:
    """Indices of the ``budget`` most informative points, in order, and the total loss of the rest.

    Points are left out one after the other, each time the one whose value costs least (Csato and Opper 2002, with the
    variance in addition to the mean): where the distribution of f_i given the other values is replaced by that before
    any data, the Kullback-Leibler divergence is (ln(p / q) - 1 + (a^2 + e) / q) / 2 in nats, q the diagonal of K^-1, p
    of V^-1 for the covariance V of all values, e of K^-1 V K^-1 and a = K^-1 E f. ``means`` (C, n) and ``covariances``
    (C, n, n) are of v, for C functions whose costs add up. O(n^2) for each point that is left out.
    """
    n = len(L)
    if n <= budget:
        return np.arange(n), 0.0
    from mercer.linalg.retained_loops import leave_out

    W = np.asfortranarray(L.copy(order="F"))
    backend.half_invert(W)
    W = np.tril(W)  # K^-1 = W^T W
    Q = W.T @ W
    a, P, E = means @ W, np.empty_like(covariances), np.empty_like(covariances)
    for c, S in enumerate(covariances):
        half = np.linalg.solve(np.linalg.cholesky(S + WHITENED_JITTER * np.eye(n)), W)
        P[c], E[c] = half.T @ half, W.T @ S @ W
    kept = np.ones(n, dtype=np.bool_)
    cost = leave_out(Q, P, E, a, kept, n - budget)
    return np.flatnonzero(kept), float(cost)
