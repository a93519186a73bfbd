"""Symmetric saddle-point systems, with unpenalised columns, solved to the accuracy that the matrix allows."""

import dataclasses

import numpy as np

from mercer.linalg import backend
from mercer.linalg.cholesky import restore
from mercer.linalg.complement import Complement
from mercer.linalg.jitter import REFINED

# Residuals, relative to the range of the right-hand side: refinement stops at the first; above the second another
# factorisation is tried.
TARGET_RESIDUAL, MAX_RESIDUAL = 1e-11, 1e-8
MAX_STEPS = 60
MAX_STALLED_STEPS = 8  # without reducing the residual by 30%
MAX_VECTOR_PRODUCTS = 8  # number of columns up to which products are done column by column


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """w (n, q) and c (p, q), residuals (n, q), and how they were found."""

    w: np.ndarray
    c: np.ndarray
    residual: np.ndarray
    share: float  # the largest residual, relative to the range of its right-hand side
    steps: int
    method: str
    jitter: float
    condition: float | None  # a lower bound; None if not known


class Saddle:
    """K w + P c = y with P^T w = 0, for a symmetric K (n, n) and p < n independent columns P. n^3/3 + 4 n^2 p flops.

    The columns are eliminated first: w = Q v in the orthogonal complement of P, where Q^T K Q v = Q^T y, and then
    P c = y - K w. With Q as Householder reflectors, Q^T K Q = K - U Z^T - Z U^T is an update of rank 2p, done in one
    triangle of K, where its Cholesky factor overwrites it; the other triangle keeps K, for residuals. No other matrix
    is allocated.

    A matrix that is positive definite up to rounding gets jitter, whose effect conjugate gradients, preconditioned by
    the factor, remove to double precision. An indefinite one is factorised as L D L^T.
    """

    def __init__(self, K: np.ndarray, P: np.ndarray) -> None:
        self.work = K if K.flags.f_contiguous else K.T
        self.P, (self.n, self.p) = P, P.shape
        self.diagonal = np.diag(self.work).copy()
        self.complement = Complement.of(P)
        self.method, self.jitter = "", 0.0
        self._pivots: np.ndarray | None = None
        self._fresh = True

    # -- factorisations ----------------------------------------------------------------------------------------------

    def solve(self, Y: np.ndarray) -> Solution:
        """Solve for right-hand sides Y (n, q) by the first factorisation with small residuals, or else the best."""
        best: Solution | None = None
        for jitter in (0.0, *REFINED(self.n)):
            if self._factor_definite(jitter):
                found = self._refined(Y)
                if best is not None and found.share >= best.share:
                    break  # more jitter does not help
                best = found
                if found.share <= MAX_RESIDUAL:
                    break
        if best is None and self._factor_indefinite():
            best = self._refined(Y)
        if best is None:  # a matrix of zeros: w = 0
            self.method = "none"
            best = self._solution(np.zeros_like(Y), Y, 0)
        return best

    def factor(self, method: str, jitter: float) -> None:
        """Repeat the factorisation of a `Solution` found earlier."""
        if method == "L D L^T":
            self._factor_indefinite()
        elif method == "Cholesky":
            self._factor_definite(jitter, absolute=True)

    def _factor_definite(self, jitter: float, absolute: bool = False) -> bool:
        size = self._project()
        jitter = jitter if absolute else jitter * size
        self.work[range(self.p, self.n), range(self.p, self.n)] += jitter
        self.method, self.jitter, self._pivots = "Cholesky", float(jitter), None
        return backend.factor(self.work)

    def _factor_indefinite(self) -> bool:
        self._project()
        self._pivots, regular = backend.factor_indefinite(self.work)
        self.method, self.jitter = "L D L^T", 0.0
        return regular

    def _project(self) -> float:
        """Write Q^T K Q into the lower triangle, below p rows of the unit matrix; returns the mean |diagonal|."""
        work, p = self.work, self.p
        if not self._fresh:
            restore(work, self.diagonal)
        self._fresh = False
        if p:
            Z = self.complement.update(work)
            backend.subtract_products(work, self.complement.U, Z)
        for j in range(p):
            work[j, j] = 1.0
            work[j + 1 :, j] = 0.0
        return float(np.mean(np.abs(np.diag(work)[p:]))) if p < self.n else 1.0

    # -- solutions ---------------------------------------------------------------------------------------------------

    def _refined(self, Y: np.ndarray) -> Solution:
        spread = spread_of(Y)
        v = self._solve(self.complement.coordinates(Y))
        if self._pivots is not None:
            for _ in range(3):  # iterative refinement
                v = v + self._solve(self.complement.coordinates(Y - self._times(self.complement.vectors(v))))
            return self._solution(self.complement.vectors(v), Y, 3)
        # Conjugate gradients from there on. Without jitter the first step is one of iterative refinement.
        r = self.complement.coordinates(Y - self._times(self.complement.vectors(v)))
        best, least, steps, stalled = v, float((np.abs(r) / spread).max(initial=0.0)), 0, 0
        z = self._solve(r)
        direction, rz = z.copy(), np.einsum("ij,ij->j", r, z)
        while least > TARGET_RESIDUAL and steps < MAX_STEPS and stalled < MAX_STALLED_STEPS:
            A_direction = self.complement.coordinates(self._times(self.complement.vectors(direction)))
            curvature = np.einsum("ij,ij->j", direction, A_direction)
            step = np.where(curvature > 0, rz / np.where(curvature > 0, curvature, 1.0), 0.0)
            v = v + step * direction
            # The residual itself, not its recursion, for accuracy.
            r = self.complement.coordinates(Y - self._times(self.complement.vectors(v)))
            steps, stalled, reached = steps + 1, stalled + 1, float((np.abs(r) / spread).max(initial=0.0))
            if reached < least:
                stalled = 0 if reached < 0.7 * least else stalled
                best, least = v, reached
            z = self._solve(r)
            before, rz = rz, np.einsum("ij,ij->j", r, z)
            direction = z + np.where(before > 0, rz / np.where(before > 0, before, 1.0), 0.0) * direction
        return self._solution(self.complement.vectors(best), Y, steps)

    def _solution(self, w: np.ndarray, Y: np.ndarray, steps: int) -> Solution:
        left = Y - self._times(w)
        c = (
            backend.upper_solve(self.complement.R, self.complement.rotated(left)[: self.p])
            if self.p
            else np.zeros((0, Y.shape[1]))
        )
        left = left - self.P @ c
        share = float((np.abs(left) / spread_of(Y)).max(initial=0.0))
        return Solution(w, c, left, share, steps, self.method, self.jitter, self._condition())

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of Q (Q^T K Q)^-1 Q^T, the upper left block of the whole system's inverse. n^3/3 flops."""
        if self._pivots is not None:
            return np.diag(self.complement.vectors(self._solve(self.complement.coordinates(np.eye(self.n))))).copy()
        L_inv = np.asfortranarray(np.tril(self.work))
        backend.half_invert(L_inv)
        columns = self.complement.vectors(L_inv[self.p :, self.p :].T)
        return np.einsum("ij,ij->i", columns, columns)

    def _condition(self) -> float | None:
        """Lower bound of the condition number of the projected matrix, from the diagonal of its Cholesky factor."""
        if self.p == self.n or self.method != "Cholesky":
            return 1.0 if self.p == self.n else None
        diagonal = np.diag(self.work)[self.p :]
        return float((diagonal.max() / diagonal.min()) ** 2)

    def _solve(self, V: np.ndarray) -> np.ndarray:
        """Inverse of the factorised matrix times V (n - p, q)."""
        if not V.size:
            return V
        padded = np.zeros((self.n, V.shape[1]), order="F")
        padded[self.p :] = V
        if self._pivots is not None:
            return backend.solve_indefinite(self.work, self._pivots, padded)[self.p :]
        return backend.solve(self.work, padded)[self.p :]

    def _times(self, W: np.ndarray) -> np.ndarray:
        """K W, from the upper triangle, which still has K, and the diagonal, restored for the moment."""
        diagonal = np.einsum("ii->i", self.work)
        kept = diagonal.copy()
        diagonal[:] = self.diagonal
        if W.shape[1] <= MAX_VECTOR_PRODUCTS:
            KW = np.column_stack([backend.product(self.work, w, lower=False) for w in W.T])
        else:
            KW = backend.product(self.work, np.asfortranarray(W), lower=False)
        diagonal[:] = kept
        return KW


def spread_of(Y: np.ndarray) -> np.ndarray:
    """Scale of the residuals of each column: its range, or its size if it is constant."""
    spread, size = np.ptp(Y, axis=0), np.abs(Y).max(axis=0)
    return np.where(spread > 0, spread, np.where(size > 0, size, 1.0))
