"""Generalised least squares: a linear trend, its coefficients with a flat or Gaussian prior, and correlated errors."""

import dataclasses
import math

import numpy as np

from mercer.linalg import backend


@dataclasses.dataclass(frozen=True, eq=False)
class Trend:
    """y = H beta + e with a flat prior on beta (q,), or N(0, precision^-1), and e ~ N(0, C) (RW06 2.7).

    With a flat prior, the likelihood of C depends on the n - q contrasts of y orthogonal to H alone: P = C^-1 -
    C^-1 H A^-1 H^T C^-1 with A = H^T C^-1 H takes the place of C^-1. With a Gaussian prior A = H^T C^-1 H + precision,
    and P is (C + H precision^-1 H^T)^-1. ``half`` is C^-1 H root^-T, so that P = C^-1 - half half^T; ``root`` is the
    lower Cholesky factor of A.
    """

    H: np.ndarray
    half: np.ndarray
    root: np.ndarray
    precision: np.ndarray | None = None  # (q, q), of a Gaussian prior

    @classmethod
    def of(cls, H: np.ndarray, C_inv_H: np.ndarray, precision: np.ndarray | None = None) -> "Trend":
        A = H.T @ C_inv_H
        if precision is not None:
            A += precision
        if A.size != 1:
            root = np.linalg.cholesky(A)
            return cls(H, np.linalg.solve(root, C_inv_H.T).T, root, precision)
        if not A[0, 0] > 0:
            raise np.linalg.LinAlgError("the coefficient of the trend is not determined")
        root = np.sqrt(A)  # one column, evaluated hundreds of times by a fit: no LAPACK
        return cls(H, C_inv_H / root, root, precision)

    def consistent(self) -> bool:
        """Whether the shapes of its arrays agree, for `mercer.load`."""
        q = self.H.shape[1]
        own = self.precision is None or self.precision.shape == (q, q)
        return own and self.half.shape == self.H.shape and self.root.shape == (q, q)

    @property
    def flat(self) -> int:
        """Number of coefficients with a flat prior: that many contrasts are lost."""
        return self.H.shape[1] if self.precision is None else 0

    def covariance(self) -> np.ndarray:
        """Posterior covariance A^-1 of the coefficients: (q, q)."""
        half = np.linalg.inv(self.root)
        return half.T @ half

    def coefficients(self, y: np.ndarray) -> np.ndarray:
        """beta = A^-1 H^T C^-1 y, the generalised least squares estimate and posterior mean."""
        return np.linalg.solve(self.root.T, self.half.T @ y)

    def contrasted(self, C_inv_y: np.ndarray, y: np.ndarray) -> np.ndarray:
        """P y, from C^-1 y."""
        return C_inv_y - self.half @ (self.half.T @ y)

    def log_det(self, unit: float | None = None) -> float:
        """ln |H^T C^-1 H| - ln |H^T H|, added to ln |C| in the density of the contrasts (restricted likelihood, REML).

        Contrasts are along orthonormal directions, so their density does not depend on the choice of these. With a
        Gaussian prior ln |A| - ln |precision|, in the density of y. ``unit``: `log_unit`, where it is known.
        """
        unit = log_unit(self.H, self.precision) if unit is None else unit
        roots = self.root.ravel() if self.root.size == 1 else np.diag(self.root)
        return 2 * sum(map(math.log, roots)) - unit

    def project(self, inverse: np.ndarray) -> None:
        """P in the lower triangle of a Fortran-ordered ``inverse`` that holds C^-1."""
        backend.subtract_squares(inverse, self.half)

    def uncertainty_root(self, h: np.ndarray, K: np.ndarray) -> np.ndarray:
        """S = root^-1 (h - k C^-1 H)^T: (q, s). S^T S is the covariance that the uncertainty of beta adds (RW06 2.42).

        ``h`` (s, q) are the columns at new rows, ``K`` (s, n) their covariances with the data.
        """
        return np.linalg.solve(self.root, h.T) - self.half.T @ K.T


def log_unit(H: np.ndarray, precision: np.ndarray | None = None) -> float:
    """ln |H^T H|, or ln |precision| of a Gaussian prior: what ln |A| is relative to. Zero without columns."""
    squares = H.T @ H if precision is None else precision
    return math.log(squares[0, 0]) if squares.shape == (1, 1) else float(np.linalg.slogdet(squares)[1])


def independent_columns(H: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the columns that are no linear combination of those before them, (r,), and the upper triangular T
    (r, r) that makes them orthogonal, of mean square one: H[:, kept] T.

    A column counts as a combination where its distance from those before it is below ``tolerance`` of its length.
    By Gram and Schmidt, twice, which is orthogonal to rounding.
    """
    n, q = H.shape
    Q, T = np.zeros((n, 0)), np.zeros((q, 0))
    for j in range(q):
        length = float(np.linalg.norm(H[:, j]))
        if not length > 0:
            continue
        v, t = H[:, j] / length, np.zeros(q)
        t[j] = 1 / length
        for _ in range(2):
            along = Q.T @ v
            v, t = v - Q @ along, t - T @ along
        left = float(np.linalg.norm(v))
        if left > tolerance:
            Q, T = np.column_stack([Q, v / left]), np.column_stack([T, t / left])
    kept = np.flatnonzero(T.any(axis=1))
    return kept, T[kept] * math.sqrt(n)
