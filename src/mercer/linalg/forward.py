"""Least squares one column at a time: which column next, and what leaving one row out would say. Knows no kernels."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mercer.core.machine import one_thread
from mercer.linalg.backend import linalg

ROUNDING = 1e-10  # of a column's squared length: what is left below it is not told from rounding
ALONE = 1e-10  # 1 - leverage below this: the row determines its own value, and leaving it out takes the column along
PATIENCE = 40  # columns without a better leave-one-out error after which the search ends
GRID = np.geomspace(1e-15, 1.0, 31)  # penalties tried, in units of the largest squared singular value
AS_GOOD = 1.02  # mean squared errors up to this multiple of the least are as good: of these the largest penalty


class Chosen(NamedTuple):
    """Which columns, in the order they were taken; the share of the targets' sum of squares that each one explains;
    and after each the mean squares of residuals and of leave-one-out residuals: all (m,)."""

    columns: np.ndarray
    error_reduction: np.ndarray
    training: np.ndarray
    left_out: np.ndarray


def forward(
    Phi: np.ndarray, T: np.ndarray, fixed: np.ndarray, most: int, order: Sequence[int] | None = None,
    patient: bool = True,
) -> Chosen:  # fmt: skip
    """Orthogonal least squares (Chen, Cowan and Grant 1991): every step takes the column that explains most.

    Phi (n, N) has the candidates, T (n, q) the targets, ``fixed`` orthonormal columns (n + p, k) that are there from
    the start; of its rows the last p, if any, are penalties, where Phi and T are zero. ``order`` takes columns in that
    order instead. One product Phi^T q a step: 2 n N flops. Leave-one-out errors follow from the leverages (PRESS),
    exactly. A ``patient`` search goes on to the end; else it stops when these have long ceased to fall.

    Of every candidate two numbers are kept: the squared length of what is orthogonal to the columns taken, and its
    product with the residual. The textbook's orthogonalised candidates, an n x N matrix to be updated, are not needed.
    """
    with one_thread():
        return _forward(Phi, T, fixed, most, order, patient)


def _forward(
    Phi: np.ndarray, T: np.ndarray, fixed: np.ndarray, most: int, order: Sequence[int] | None, patient: bool
) -> Chosen:
    n, N = Phi.shape
    k = fixed.shape[1]
    Q = np.zeros((len(fixed), k + most), order="F")
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
    while len(taken) < most:
        possible = left > ROUNDING * lengths
        if order is None:
            gain = np.where(possible, np.einsum("ij,ij->i", along, along) / np.where(possible, left, 1.0), -1.0)
            i = int(gain.argmax()) if N else -1
            if i < 0 or gain[i] <= 0:
                break
        else:
            i = next((int(j) for j in waiting if possible[j]), -1)
            if i < 0:
                break
        # Orthogonalised twice, which is enough.
        q = np.concatenate([Phi[:, i], np.zeros(len(fixed) - n)])
        for _ in range(2):
            q -= Q[:, : k + len(taken)] @ (Q[:, : k + len(taken)].T @ q)
        length = float(np.linalg.norm(q))
        if length**2 <= ROUNDING * lengths[i]:
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
        if not patient and since > PATIENCE:
            break
    return Chosen(np.array(taken, dtype=int), *np.ascontiguousarray(np.array(steps).reshape(-1, 3).T))


def _left_out(r: np.ndarray, leverage: np.ndarray, before: np.ndarray) -> np.ndarray:
    """r_i / (1 - h_i); for a row that a column of its own fits, what was missed without that column."""
    rest = (1.0 - leverage)[:, None]
    return np.where(rest > ALONE, r / np.maximum(rest, ALONE), before)


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
        """Residuals of rows predicted without them: (n, q)."""
        shrunk = self.s**2 / (self.s**2 + alpha)
        r = self.rest - self.U @ (shrunk[:, None] * self.coordinates)
        return _left_out(r[: self.n], self.leverage + self.squares @ shrunk, self.rest[: self.n])

    def best(self) -> tuple[float, float]:
        """The largest alpha of a grid whose mean squared leave-one-out error is no worse than 2% above the least; and
        that error. Least errors are flat, and smaller weights behave better where there are no data."""
        scale = float(self.s.max(initial=0.0)) ** 2 or 1.0
        with one_thread():
            errors = np.array([np.mean(self.left_out(alpha * scale) ** 2) for alpha in GRID])
        best = int(np.flatnonzero(errors <= AS_GOOD * errors.min())[-1])
        return float(GRID[best] * scale), float(errors[best])
