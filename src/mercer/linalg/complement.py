"""Orthogonal complement of a few vectors, to eliminate unpenalised terms (an intercept, polynomials) from a system.

min_b (y - P b - f)^T (y - P b - f) + penalty(f) is, in the coordinates y' = Q^T y of the complement of P's columns, the
problem without P. Q is stored as Householder reflectors, I - U T U^T: n p numbers, not n^2.
"""

import dataclasses

import numpy as np

from mercer.linalg import backend


@dataclasses.dataclass(frozen=True, eq=False)
class Complement:
    """Complement of p independent columns P (n, p): Q = I - U T U^T with P = Q [R; 0] (Schreiber and Van Loan 1989)."""

    U: np.ndarray
    T: np.ndarray
    R: np.ndarray

    @staticmethod
    def of(P: np.ndarray) -> "Complement":
        """Of the columns of P (n, p), p <= n. 2 n p^2 flops."""
        n, p = P.shape
        if p == 0:
            return Complement(np.zeros((n, 0)), np.zeros((0, 0)), np.zeros((0, 0)))
        packed, factors = backend.reflectors(P)
        U, R, T = np.tril(packed, -1), np.triu(packed[:p]), np.zeros((p, p))
        U[range(p), range(p)] = 1.0
        for j in range(p):
            T[:j, j] = -factors[j] * T[:j, :j] @ (U[:, :j].T @ U[:, j])
            T[j, j] = factors[j]
        return Complement(np.asfortranarray(U), T, np.asfortranarray(R))

    @property
    def p(self) -> int:
        return len(self.T)

    def rotated(self, Y: np.ndarray) -> np.ndarray:
        """Q^T Y: p coordinates along the columns of P, then those in the complement."""
        return Y - self.U @ (self.T.T @ (self.U.T @ Y))

    def coordinates(self, Y: np.ndarray) -> np.ndarray:
        """Coordinates in the complement: (n - p, ...). 4 n p flops a column."""
        return self.rotated(Y)[self.p :]

    def vectors(self, Z: np.ndarray) -> np.ndarray:
        """Vectors (n, ...) with coordinates Z (n - p, ...)."""
        padded = np.concatenate([np.zeros((self.p, *Z.shape[1:])), Z])
        padded -= self.U @ (self.T @ (self.U.T @ padded))
        return padded

    def update(self, K: np.ndarray) -> np.ndarray:
        """Z (n, p) with Q^T K Q = K - U Z^T - Z U^T, for a symmetric K. 2 n^2 p flops."""
        KUT = (K @ self.U) @ self.T
        return np.asfortranarray(KUT - 0.5 * self.U @ (self.T.T @ (self.U.T @ KUT)))

    def compress(self, K: np.ndarray) -> np.ndarray:
        """K in the coordinates of the complement, overwriting it: (n - p, n - p). 6 n^2 p flops."""
        Z = self.update(K)
        K -= self.U @ Z.T
        K -= Z @ self.U.T
        return K[self.p :, self.p :]
