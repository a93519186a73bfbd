"""Covariances of places x equal steps: a Kronecker product of a small matrix and a large Toeplitz matrix."""

import dataclasses

import numpy as np

from mercer.linalg import backend
from mercer.linalg.kronecker import semidefinite
from mercer.linalg.toeplitz import Toeplitz, toeplitz_times


@dataclasses.dataclass(frozen=True, eq=False)
class ToeplitzBlocks:
    """C = K x T + noise I over m n cells, T (n, n) varying fastest. In the basis of K's eigenvectors ("inward") it is
    m Toeplitz matrices l_i T + noise I, l_i the eigenvalues of K: m^3 + 2 m n^2 flops, where eigenpairs of T take n^3.
    """

    factor: np.ndarray
    row: np.ndarray
    values: np.ndarray
    vectors: np.ndarray
    noise: float
    blocks: tuple[Toeplitz, ...]

    @classmethod
    def of(cls, factor: np.ndarray, row: np.ndarray, noise: float) -> "ToeplitzBlocks | None":
        """None if these are not finite, or C is not positive definite."""
        if not (noise > 0 and np.isfinite(factor).all() and np.isfinite(row).all()):
            return None
        values, vectors = backend.eigenpairs(factor)
        if not semidefinite(values):
            return None
        values = np.maximum(values, 0.0)  # below zero is rounding
        blocks = [Toeplitz.of(value * row, noise) for value in values]
        made = [block for block in blocks if block is not None]
        return cls(factor, row, values, vectors, noise, tuple(made)) if len(made) == len(blocks) else None

    @property
    def size(self) -> int:
        return len(self.values) * len(self.row)

    def _by_block(self, b: np.ndarray) -> np.ndarray:
        return b.reshape(len(self.values), len(self.row), -1)

    def log_det(self) -> float:
        return sum(block.log_det() for block in self.blocks)

    def condition(self) -> float:
        """Estimated by power iteration in the blocks of the largest and the smallest eigenvalue of K."""
        return self.blocks[-1].extremes()[0] / self.blocks[0].extremes()[1]

    def inward(self, b: np.ndarray) -> np.ndarray:
        return (self.vectors.T @ b.reshape(len(self.values), -1)).reshape(b.shape)

    def outward(self, b: np.ndarray) -> np.ndarray:
        return (self.vectors @ b.reshape(len(self.values), -1)).reshape(b.shape)

    def units(self, cells: np.ndarray) -> np.ndarray:
        """Unit vectors of some cells, inward: (m n, q)."""
        place, step = np.divmod(cells, len(self.row))
        out = np.zeros((len(self.values), len(self.row), len(cells)))
        out[:, step, np.arange(len(cells))] = self.vectors[place].T
        return out.reshape(self.size, -1)

    def divide(self, b: np.ndarray) -> np.ndarray:
        """C^-1 b, inward: (m n, k)."""
        return np.concatenate([block.divide(own) for block, own in zip(self.blocks, self._by_block(b), strict=True)])

    def quadratic(self, b: np.ndarray) -> np.ndarray:
        """b^T C^-1 b, of inward columns: (k,)."""
        each = [block.quadratic(own) for block, own in zip(self.blocks, self._by_block(b), strict=True)]
        return np.sum(each, axis=0)

    def times(self, b: np.ndarray) -> np.ndarray:
        """C b, of cells: (m n, k)."""
        mixed = self._by_block((self.factor @ b.reshape(len(self.values), -1)).reshape(b.shape))
        return np.concatenate([toeplitz_times(self.row, own) for own in mixed]) + self.noise * b

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of C^-1: (m n,)."""
        return (self.vectors**2 @ np.array([block.inverse_diagonal() for block in self.blocks])).ravel()

    def slopes(self, B: np.ndarray, signs: np.ndarray) -> list[np.ndarray]:
        """dF/dK (m, m) and dF/drow (n,) for dF/dC = 1/2 (B diag(signs) B^T - C^-1), B inward.

        F depends on row by that of each block, l_i row. In the basis of eigenvectors dF/dK_ij is 1/2 sum_c signs_c
        B_ic^T T B_jc, and for i = j less half the trace of C_i^-1 T: the slope in the row of the block, times the row.
        """
        m, own = len(self.values), self._by_block(B)
        in_rows = np.array([block.slopes(part, signs)[0] for block, part in zip(self.blocks, own, strict=True)])
        T_B = np.array([toeplitz_times(self.row, part) for part in own])
        inner = 0.5 * (own * signs).reshape(m, -1) @ T_B.reshape(m, -1).T
        inner[np.diag_indices(m)] = in_rows @ self.row
        return [self.vectors @ inner @ self.vectors.T, self.values @ in_rows]
