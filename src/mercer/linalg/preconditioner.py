"""A covariance approximated by a low rank and a diagonal, which is easy to divide by: a preconditioner."""

import dataclasses
import functools

import numpy as np

from mercer.linalg import backend
from mercer.linalg.jitter import PIVOTS

MIN_EIGENVALUE_RATIO = 1e-13  # to the largest: smaller ones are rounding


@dataclasses.dataclass(frozen=True, eq=False)
class LowRankAndDiagonal:
    """M = D^1/2 (I + U diag(values) U^T) D^1/2 with orthonormal U (n, r) and a positive diagonal D (n,)."""

    D: np.ndarray
    U: np.ndarray
    values: np.ndarray

    @classmethod
    def of(
        cls, rows: np.ndarray, pivots: np.ndarray, diagonal: np.ndarray, noise: np.ndarray
    ) -> "LowRankAndDiagonal | None":
        """Of K + diag(noise), from the rows of K at the pivots (r, n), overwritten: K_nr K_rr^-1 K_rn, and on the
        diagonal what that leaves of K, and the noise. Smooth in the kernel's parameters. None where it is not positive
        definite."""
        if len(pivots) == len(diagonal):  # all of K
            return cls._whole(rows[np.argsort(pivots)], diagonal, noise)
        for jitter in PIVOTS(len(pivots)):
            core = rows[:, pivots].copy(order="F")
            core[np.diag_indices_from(core)] = diagonal[pivots] * (1 + jitter)
            if np.isfinite(core).all() and backend.factor(core, clean=True):
                break
        else:
            return None
        R = backend.half_solve(core, rows).T
        D = noise + np.maximum(diagonal - np.einsum("nr,nr->n", R, R), 0.0)
        if not (np.isfinite(D).all() and (D > 0).all()):
            return None
        R = R / np.sqrt(D)[:, None]
        values, V = backend.eigenpairs(R.T @ R)
        kept = values > MIN_EIGENVALUE_RATIO * max(values.max(initial=0.0), np.finfo(float).tiny)
        values, V = values[kept], V[:, kept]
        return cls(D, R @ (V / np.sqrt(values)), values)

    @classmethod
    def _whole(cls, K: np.ndarray, diagonal: np.ndarray, noise: np.ndarray) -> "LowRankAndDiagonal | None":
        """Without approximation."""
        if not (np.isfinite(K).all() and np.isfinite(noise).all() and (noise > 0).all()):
            return None
        np.fill_diagonal(K, diagonal)
        K /= np.sqrt(noise)[:, None]
        K /= np.sqrt(noise)
        values, U = backend.eigenpairs((K + K.T) / 2)
        return cls(noise, U, np.maximum(values, 0.0))

    @functools.cached_property
    def _root(self) -> np.ndarray:
        return np.sqrt(self.D)[:, None]

    def solve(self, B: np.ndarray) -> np.ndarray:
        """M^-1 B: 4 n r flops for each column."""
        B = B / self._root
        B -= self.U @ ((self.values / (1 + self.values))[:, None] * (self.U.T @ B))
        B /= self._root
        return B

    def half(self, W: np.ndarray) -> np.ndarray:
        """M^1/2 W, of covariance M where that of W is one."""
        return self._root * (W + self.U @ ((np.sqrt(1 + self.values) - 1)[:, None] * (self.U.T @ W)))

    def log_det(self) -> float:
        return float(np.log(self.D).sum() + np.log1p(self.values).sum())

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of M^-1: (n,)."""
        return (1 - np.einsum("nr,nr,r->n", self.U, self.U, self.values / (1 + self.values))) / self.D

    def condition(self) -> float:
        return float((1 + self.values.max(initial=0.0)) * self.D.max() / self.D.min())
