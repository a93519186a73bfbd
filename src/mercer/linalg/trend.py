"""Generalised least squares: a linear trend with a flat prior on its coefficients, and correlated errors."""

import dataclasses
import math

import numpy as np

from mercer.linalg import backend


@dataclasses.dataclass(frozen=True, eq=False)
class Trend:
    """y = H beta + e with a flat prior on beta (q,) and e ~ N(0, C) (RW06 2.7).

    The likelihood of C depends on the n - q contrasts of y orthogonal to H alone: P = C^-1 - C^-1 H A^-1 H^T C^-1 with
    A = H^T C^-1 H takes the place of C^-1. ``half`` is C^-1 H root^-T, so that P = C^-1 - half half^T; ``root`` is the
    lower Cholesky factor of A.
    """

    H: np.ndarray
    half: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, H: np.ndarray, C_inv_H: np.ndarray) -> "Trend":
        A = H.T @ C_inv_H
        if A.size != 1:
            root = np.linalg.cholesky(A)
            return cls(H, np.linalg.solve(root, C_inv_H.T).T, root)
        if not A[0, 0] > 0:
            raise np.linalg.LinAlgError("the coefficient of the trend is not determined")
        root = np.sqrt(A)  # one column, evaluated hundreds of times by a fit: no LAPACK
        return cls(H, C_inv_H / root, root)

    def consistent(self) -> bool:
        """Whether the shapes of its arrays agree, for `mercer.load`."""
        q = self.H.shape[1]
        return self.half.shape == self.H.shape and self.root.shape == (q, q)

    @property
    def size(self) -> int:
        return self.H.shape[1]

    def coefficients(self, y: np.ndarray) -> np.ndarray:
        """beta = A^-1 H^T C^-1 y, the generalised least squares estimate and posterior mean."""
        return np.linalg.solve(self.root.T, self.half.T @ y)

    def contrasted(self, C_inv_y: np.ndarray, y: np.ndarray) -> np.ndarray:
        """P y, from C^-1 y."""
        return C_inv_y - self.half @ (self.half.T @ y)

    def log_det(self) -> float:
        """ln |H^T C^-1 H| - ln |H^T H|, added to ln |C| in the density of the contrasts (restricted likelihood, REML).

        Contrasts are along orthonormal directions, so their density does not depend on the choice of these.
        """
        squares = self.H.T @ self.H
        of_H = math.log(squares[0, 0]) if self.size == 1 else float(np.linalg.slogdet(squares)[1])
        return 2 * float(np.log(np.diag(self.root)).sum()) - of_H

    def project(self, inverse: np.ndarray) -> None:
        """P in the lower triangle of a Fortran-ordered ``inverse`` that holds C^-1."""
        backend.subtract_squares(inverse, self.half)

    def uncertainty_root(self, h: np.ndarray, K: np.ndarray) -> np.ndarray:
        """S = root^-1 (h - k C^-1 H)^T: (q, s). S^T S is the covariance that the uncertainty of beta adds (RW06 2.42).

        ``h`` (s, q) are the columns at new rows, ``K`` (s, n) their covariances with the data.
        """
        return np.linalg.solve(self.root, h.T) - self.half.T @ K.T
