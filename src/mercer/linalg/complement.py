"""What is orthogonal to a few given vectors: how unpenalised terms (an intercept, polynomials) leave a linear system.

min_b (y - P b - f)^T (y - P b - f) + penalty(f) is, in the coordinates y' = Q^T y of the complement of P's columns, the
problem without P. The complement is kept as the Householder reflectors of a QR factorisation: n p numbers, not n^2.
"""

import dataclasses

import numpy as np

from mercer.core.lapack import lapack


@dataclasses.dataclass(frozen=True, eq=False)
class Complement:
    """Orthonormal coordinates of the complement of p independent columns of length n."""

    reflectors: np.ndarray  # (n, p), and their factors (p,), as LAPACK keeps them
    factors: np.ndarray

    @staticmethod
    def of(P) -> "Complement":
        """Of the columns of P (n, p), p <= n. n p^2 flops."""
        reflectors, factors, _, _ = lapack.dgeqrf(np.asfortranarray(P, dtype=float))
        return Complement(reflectors, factors)

    @property
    def p(self) -> int:
        return self.reflectors.shape[1]

    def down(self, Y) -> np.ndarray:
        """Q^T Y, the coordinates in the complement: (n - p, ...). 4 n p flops a column."""
        return self._apply("L", "T", Y if Y.ndim == 2 else Y[:, None])[self.p :].reshape(-1, *Y.shape[1:])

    def up(self, Z) -> np.ndarray:
        """Q Z: the vectors (n, ...) with coordinates Z (n - p, ...)."""
        padded = np.concatenate([np.zeros((self.p, *Z.shape[1:])), Z])
        return self._apply("L", "N", padded if Z.ndim == 2 else padded[:, None]).reshape(padded.shape)

    def up_from_right(self, Z) -> np.ndarray:
        """Z Q^T: rows (m, n) from rows of coordinates (m, n - p)."""
        return self._apply("R", "T", np.concatenate([np.zeros((len(Z), self.p)), Z], axis=1))

    def compress(self, K) -> np.ndarray:
        """Q^T K Q for a symmetric K, overwriting it: (n - p, n - p). 8 n^2 p flops."""
        work = K.T if K.flags.c_contiguous else np.asfortranarray(K)
        work = self._apply("R", "N", self._apply("L", "T", work, overwrite=True), overwrite=True)
        return work[self.p :, self.p :]

    def _apply(self, side, transposed, C, overwrite=False):
        if C.size == 0:
            return C
        C = np.asfortranarray(C, dtype=float) if overwrite else np.array(C, dtype=float, order="F")
        work = max(1, 64 * max(C.shape))
        return lapack.dormqr(side, transposed, self.reflectors, self.factors, C, work, overwrite_c=1)[0]
