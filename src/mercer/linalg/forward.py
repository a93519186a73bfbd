"""Least squares by forward selection of columns, with leave-one-out errors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mercer.core.machine import one_thread
from mercer.linalg.backend import linalg

MIN_REMAINDER = 1e-10  # squared length of an orthogonalised column, relative to the column: less is rounding
MIN_FREEDOM = 1e-10  # 1 - leverage of a row; below it, the row determines its own prediction
PATIENCE = 40  # number of columns without a smaller leave-one-out error after which the search ends
PENALTIES = np.geomspace(1e-15, 1.0, 31)  # in units of the largest squared singular value
MAX_ERROR_RATIO = 1.02  # mean squared errors up to this multiple of the smallest are considered as good


class Selection(NamedTuple):
    """Columns in the order of selection; the share of the targets' sum of squares that each one explains; and after
    each, the mean squares of residuals and of leave-one-out residuals: all (m,)."""

    columns: np.ndarray
    error_reduction: np.ndarray
    training: np.ndarray
    left_out: np.ndarray


def forward(
    Phi: np.ndarray, T: np.ndarray, fixed: np.ndarray, max_columns: int, order: Sequence[int] | None = None,
    stop_early: bool = False,
) -> Selection:  # fmt: skip
    """Orthogonal least squares (Chen, Cowan and Grant 1991): each step selects the column that explains most.

    Phi (n, N) are the candidates, T (n, q) the targets, ``fixed`` orthonormal columns (n + p, k) that are selected from
    the start; their last p rows, if any, are penalties, where Phi and T are zero. ``order``: select columns in that
    order instead. One product Phi^T q a step: 2 n N flops. Leave-one-out errors follow exactly from the leverages
    (PRESS); ``stop_early`` ends the search when they have not fallen for PATIENCE columns.

    For every candidate two numbers are kept: the squared length of its part orthogonal to the selected columns, and the
    product of that part with the residual. The textbook updates the orthogonalised candidates, an n x N matrix.
    """
    with one_thread():
        return _forward(Phi, T, fixed, max_columns, order, stop_early)


def _forward(
    Phi: np.ndarray, T: np.ndarray, fixed: np.ndarray, max_columns: int, order: Sequence[int] | None, stop_early: bool
) -> Selection:
    n, N = Phi.shape
    k = fixed.shape[1]
    Q = np.zeros((len(fixed), k + max_columns), order="F")
    Q[:, :k] = fixed
    top = fixed[:n]
    r = np.concatenate([T, np.zeros((len(fixed) - n, T.shape[1]))])
    r -= fixed @ (fixed.T @ r)
    lengths = np.einsum("ij,ij->j", Phi, Phi)
    left = lengths - np.einsum("ij,ij->j", top.T @ Phi, top.T @ Phi)
    along = Phi.T @ r[:n]
    leverage = np.einsum("ij,ij->i", top, top)
    missed = _left_out(r[:n], leverage, T)
    total = float(np.sum(T**2)) or 1.0
    taken: list[int] = []
    steps: list[tuple[float, float, float]] = []
    best, since = np.inf, 0
    waiting = iter(range(N) if order is None else order)
    while len(taken) < max_columns:
        possible = left > MIN_REMAINDER * lengths
        if order is None:
            gain = np.where(possible, np.einsum("ij,ij->i", along, along) / np.where(possible, left, 1.0), -1.0)
            i = int(gain.argmax()) if N else -1
            if i < 0 or gain[i] <= 0:
                break
        else:
            i = next((int(j) for j in waiting if possible[j]), -1)
            if i < 0:
                break
        # Gram-Schmidt, twice for orthogonality to rounding.
        q = np.concatenate([Phi[:, i], np.zeros(len(fixed) - n)])
        for _ in range(2):
            q -= Q[:, : k + len(taken)] @ (Q[:, : k + len(taken)].T @ q)
        length = float(np.linalg.norm(q))
        if length**2 <= MIN_REMAINDER * lengths[i]:
            left[i] = 0.0
            continue
        q /= length
        Q[:, k + len(taken)] = q
        coordinates = q @ r
        r -= np.outer(q, coordinates)
        inner = Phi.T @ q[:n]
        left -= inner**2
        along -= np.outer(inner, coordinates)
        left[i] = 0.0
        leverage += q[:n] ** 2
        missed = _left_out(r[:n], leverage, missed)
        taken.append(i)
        steps.append((float(coordinates @ coordinates) / total, float(np.mean(r[:n] ** 2)), float(np.mean(missed**2))))
        since = 0 if steps[-1][2] < best else since + 1
        best = min(best, steps[-1][2])
        if stop_early and since > PATIENCE:
            break
    return Selection(np.array(taken, dtype=int), *np.ascontiguousarray(np.array(steps).reshape(-1, 3).T))


def _left_out(r: np.ndarray, leverage: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Leave-one-out residuals r_i / (1 - h_i); for a row of leverage one, ``before``, those without the last column."""
    rest = (1.0 - leverage)[:, None]
    return np.where(rest > MIN_FREEDOM, r / np.maximum(rest, MIN_FREEDOM), before)


class Ridge:
    """min_w |T - F c - Phi w|^2 + alpha |w|^2 for every alpha, F the ``fixed`` columns of `forward`: one SVD, n m^2."""

    def __init__(self, Phi: np.ndarray, T: np.ndarray, fixed: np.ndarray) -> None:
        with one_thread():
            self._decompose(Phi, T, fixed)

    def _decompose(self, Phi: np.ndarray, T: np.ndarray, fixed: np.ndarray) -> None:
        n = len(Phi)
        extra = len(fixed) - n
        T = np.concatenate([T, np.zeros((extra, T.shape[1]))])
        Phi = np.concatenate([Phi, np.zeros((extra, Phi.shape[1]))])
        Phi -= fixed @ (fixed.T @ Phi)
        self.rest = T - fixed @ (fixed.T @ T)
        Q, R = linalg.qr(Phi, mode="economic", check_finite=False)
        U, self.s, self.Vt = linalg.svd(R, full_matrices=False, check_finite=False)
        self.U, self.n = Q @ U, n
        inside = self.s > np.finfo(float).eps * max(Phi.shape) * self.s.max(initial=0.0)
        self.U, self.s, self.Vt = self.U[:, inside], self.s[inside], self.Vt[inside]
        self.coordinates = self.U.T @ self.rest
        self.squares = self.U[:n] ** 2
        self.leverage = np.einsum("ij,ij->i", fixed[:n], fixed[:n])

    def weights(self, alpha: float) -> np.ndarray:
        """(m, q)."""
        return self.Vt.T @ ((self.s / (self.s**2 + alpha))[:, None] * self.coordinates)

    def left_out(self, alpha: float) -> np.ndarray:
        """Leave-one-out residuals: (n, q)."""
        shrunk = self.s**2 / (self.s**2 + alpha)
        r = self.rest - self.U @ (shrunk[:, None] * self.coordinates)
        return _left_out(r[: self.n], self.leverage + self.squares @ shrunk, self.rest[: self.n])

    def best(self) -> tuple[float, float]:
        """Largest alpha on a grid whose mean squared leave-one-out error is within 2% of the smallest; and that error.
        The minimum is flat, and smaller weights extrapolate better."""
        scale = float(self.s.max(initial=0.0)) ** 2 or 1.0
        with one_thread():
            errors = np.array([np.mean(self.left_out(alpha * scale) ** 2) for alpha in PENALTIES])
        best = int(np.flatnonzero(errors <= MAX_ERROR_RATIO * errors.min())[-1])
        return float(PENALTIES[best] * scale), float(errors[best])
