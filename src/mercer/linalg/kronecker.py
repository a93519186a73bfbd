"""Covariances on a grid: Kronecker products of small factors, by the eigenvectors of each."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from mercer.linalg import backend

ROUNDING = 1e-7  # of the largest eigenvalue, where a large white noise may have been subtracted


@dataclasses.dataclass(frozen=True, eq=False)
class Kronecker:
    """C = K_1 x ... x K_G + noise I over N = n_1 ... n_G cells, the last factor varying fastest (Saatci 2011, 5).

    With K_g = V_g diag(l_g) V_g^T and V = V_1 x ... x V_G, C = V diag(D) V^T. Vectors in the basis V ("inward") have a
    diagonal C. Eigenpairs take sum_g n_g^3 flops, a product with V N sum_g n_g.
    """

    factors: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...]
    vectors: tuple[np.ndarray, ...]
    noise: float

    @classmethod
    def of(cls, factors: Sequence[np.ndarray], noise: float) -> "Kronecker | None":
        """None if the factors are not finite, or C is not positive definite."""
        if not (noise >= 0 and all(np.isfinite(K).all() for K in factors)):
            return None
        pairs = [backend.eigenpairs(K) for K in factors]
        if not all(semidefinite(each) for each, _ in pairs):
            return None
        values = tuple(np.maximum(each, 0.0) for each, _ in pairs)  # below zero is rounding
        made = cls(tuple(factors), values, tuple(vectors for _, vectors in pairs), float(noise))
        return made if np.isfinite(made.spectrum).all() and made.spectrum.min() > 0 else None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.values))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @functools.cached_property
    def spectrum(self) -> np.ndarray:
        """D: (N,)."""
        return functools.reduce(np.multiply.outer, self.values).ravel() + self.noise

    def log_det(self) -> float:
        return float(np.log(self.spectrum).sum())

    def condition(self) -> float:
        return float(self.spectrum.max() / self.spectrum.min())

    def inward(self, b: np.ndarray) -> np.ndarray:
        """V^T b: (N, k)."""
        return products([V.T for V in self.vectors], b)

    def outward(self, b: np.ndarray) -> np.ndarray:
        """V b: (N, k)."""
        return products(self.vectors, b)

    def units(self, cells: np.ndarray) -> np.ndarray:
        """V^T e for the unit vectors of some cells: (N, q)."""
        where = np.unravel_index(cells, self.shape)
        return row_products([V[i] for V, i in zip(self.vectors, where, strict=True)]).T

    def divide(self, b: np.ndarray) -> np.ndarray:
        """C^-1 b, inward: (N, k)."""
        return b / self.spectrum[:, None]

    def quadratic(self, b: np.ndarray) -> np.ndarray:
        """b^T C^-1 b, of inward columns: (k,)."""
        return (1 / self.spectrum) @ b**2

    def times(self, b: np.ndarray) -> np.ndarray:
        """C b, of cells: (N, k)."""
        return products(self.factors, b) + self.noise * b

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of C^-1: (N,)."""
        return products([V**2 for V in self.vectors], 1 / self.spectrum[:, None])[:, 0]

    def slopes(self, B: np.ndarray, signs: np.ndarray) -> list[np.ndarray]:
        """dF/dK_g for dF/dK = 1/2 (V B diag(signs) B^T V^T - C^-1): one (n_g, n_g) for each factor.

        F depends on K_g by sum_c signs_c B_c^T (K^_g x L) B_c and the trace of D^-1 (K^_g x L), with K^_g = V_g^T K_g
        V_g and L the product of the other eigenvalues.
        """
        out, k = [], B.shape[1]
        columns = B.reshape(*self.shape, k)
        inverse = 1 / self.spectrum.reshape(self.shape)
        for g, V in enumerate(self.vectors):
            rest = [values for h, values in enumerate(self.values) if h != g]
            others = functools.reduce(np.multiply.outer, rest, np.ones(())).ravel()
            front = np.moveaxis(columns, g, 0).reshape(len(V), len(others), k)
            inner = (front * (others[:, None] * signs)).reshape(len(V), -1) @ front.reshape(len(V), -1).T
            traces = np.moveaxis(inverse, g, 0).reshape(len(V), -1) @ others
            inner[np.diag_indices_from(inner)] -= traces
            out.append(0.5 * V @ inner @ V.T)
        return out


def semidefinite(values: np.ndarray) -> bool:
    """Whether no eigenvalue is negative, to rounding."""
    return bool(values.min() >= -ROUNDING * np.abs(values).max())


def products(factors: Sequence[np.ndarray], b: np.ndarray) -> np.ndarray:
    """(A_1 x ... x A_G) b for the columns of b (N, k): (M, k)."""
    k = b.shape[1]
    out = b.reshape(*(A.shape[1] for A in factors), k)
    for g, A in enumerate(factors):
        out = np.moveaxis(np.tensordot(A, out, axes=(1, g)), 0, g)
    return np.ascontiguousarray(out).reshape(-1, k)


def row_dots(factors: Sequence[np.ndarray], M: np.ndarray) -> np.ndarray:
    """`row_products` times M (N, k), without forming them: (s, k). s N k flops, s k N / n_1 of memory."""
    s, k = len(factors[0]), M.shape[1]
    out = factors[0] @ M.reshape(factors[0].shape[1], -1)
    for A in factors[1:]:
        out = np.einsum("sn,snr->sr", A, out.reshape(s, A.shape[1], -1))
    return out.reshape(s, k)


def row_products(factors: Sequence[np.ndarray]) -> np.ndarray:
    """Kronecker product of the rows of matrices (s, n_g), row by row: (s, N)."""
    out = factors[0]
    for A in factors[1:]:
        out = (out[:, :, None] * A[:, None, :]).reshape(len(A), -1)
    return out
