"""Covariances of cells of a grid of which some are missing, or have a noise of their own."""

import dataclasses
from typing import Protocol

import numpy as np

from mercer.linalg import backend


class Structured(Protocol):
    """C over all cells of a grid, one noise variance for all: `Kronecker` or `Toeplitz`. Vectors "inward" are in the
    basis in which solving is cheap."""

    @property
    def size(self) -> int: ...

    def log_det(self) -> float: ...

    def inward(self, b: np.ndarray) -> np.ndarray: ...

    def outward(self, b: np.ndarray) -> np.ndarray: ...

    def units(self, cells: np.ndarray) -> np.ndarray: ...

    def divide(self, b: np.ndarray) -> np.ndarray: ...

    def quadratic(self, b: np.ndarray) -> np.ndarray: ...

    def times(self, b: np.ndarray) -> np.ndarray: ...

    def inverse_diagonal(self) -> np.ndarray: ...

    def condition(self) -> float: ...

    def slopes(self, B: np.ndarray, signs: np.ndarray) -> list[np.ndarray]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Cells:
    """P = C^-1 - U diag(signs) U^T: the inverse where q cells have another noise variance, infinite for missing ones.

    With E the unit vectors of these cells, S = E^T C^-1 E and d their excess variances, P = C^-1 - C^-1 E T^-1 E^T C^-1
    with T = diag(1/d) + S (Woodbury), and the log determinant grows by ln|T| + sum ln d. For missing cells 1/d = 0 and
    ln d is left out: P is zero there, and elsewhere the inverse of the covariance of observed cells; 1/det T is what
    the missing ones contribute to |C| given the others. N q^2 + q^3 flops. ``U`` is inward (N, q).
    """

    base: Structured
    U: np.ndarray
    signs: np.ndarray
    log_determinant: float

    @classmethod
    def of(cls, base: Structured, cells: np.ndarray, excess: np.ndarray) -> "Cells | None":
        """None if the covariance is not positive definite. ``excess``: variances added in these cells, not zero."""
        if not len(cells):
            return cls(base, np.zeros((base.size, 0)), np.zeros(0), base.log_det())
        finite = np.isfinite(excess)
        inverse = np.where(finite, 1 / np.where(finite, excess, 1.0), 0.0)
        E = base.units(cells)
        C_inv_E = base.divide(E)
        T = E.T @ C_inv_E + np.diag(inverse)
        T = np.asfortranarray((T + T.T) / 2)
        if not np.isfinite(T).all():
            return None
        log_det = base.log_det() + float(np.log(np.abs(excess[finite])).sum())
        if (excess > 0).all():
            if not backend.factor(T, clean=True):
                return None
            U = backend.half_solve(T, np.asfortranarray(C_inv_E.T)).T
            return cls(base, U, np.ones(len(cells)), log_det + 2 * float(np.log(np.diag(T)).sum()))
        # Where some cells have less noise than the others, T has as many negative eigenvalues as there are such cells.
        values, R = backend.eigenpairs(T)
        if not np.abs(values).min() > 0 or np.sum(values < 0) != np.sum(excess < 0):
            return None
        U = C_inv_E @ (R / np.sqrt(np.abs(values)))
        return cls(base, U, np.sign(values), log_det + float(np.log(np.abs(values)).sum()))

    def divide(self, b: np.ndarray) -> np.ndarray:
        """P b, inward: (N, k)."""
        out = self.base.divide(b)
        return out - self.U @ (self.signs[:, None] * (self.U.T @ b)) if len(self.signs) else out

    def solve(self, b: np.ndarray) -> np.ndarray:
        """P b, of cells: (N, k)."""
        return self.base.outward(self.divide(self.base.inward(b)))

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of P: (N,)."""
        diagonal = self.base.inverse_diagonal()
        if len(self.signs):
            diagonal = diagonal - self.base.outward(self.U) ** 2 @ self.signs
        return diagonal

    def slopes(self, B: np.ndarray, signs: np.ndarray) -> list[np.ndarray]:
        """As `Structured.slopes`, for 1/2 (B diag(signs) B^T - P) with B of cells."""
        inward = self.base.inward(B)
        return self.base.slopes(np.concatenate([inward, self.U], axis=1), np.concatenate([signs, self.signs]))
