"""Cholesky factor of a dense covariance matrix."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.core.errors import NotPositiveDefiniteError
from mercer.linalg import backend
from mercer.linalg.jitter import FACTOR, MAX_JITTER

PIVOT_BLOCK = 128  # pivots drawn at a time
TILE_ROWS = 128  # of a matrix transposed at a time, which stays in the cache


@dataclasses.dataclass(eq=False)
class Cholesky:
    """L L^T = C + jitter I. ``lower`` is L, in Fortran order, zero above the diagonal (but see `attempt`).

    `halve` and `invert` overwrite L with L^-1 or (C + jitter I)^-1, to save a matrix. Afterwards only `solve`,
    `log_det` and `inverse_diagonal` are valid.
    """

    lower: np.ndarray
    jitter: float = 0.0
    form: str = "factor"  # or "half inverse", "inverse": content of ``lower``

    def stored(self) -> dict[str, Any]:
        """Fields for a file: the triangle, column by column, and the jitter."""
        assert self.form == "factor"
        columns = (self.lower[j:, j] for j in range(len(self.lower)))
        return {"packed": np.concatenate([np.empty(0), *columns]), "jitter": self.jitter}

    @classmethod
    def restored(cls, packed: np.ndarray, jitter: float) -> "Cholesky":
        """From `stored` fields."""
        n = (math.isqrt(8 * packed.size + 1) - 1) // 2
        if packed.shape != (n * (n + 1) // 2,):
            raise ValueError(f"a triangular matrix cannot have {packed.size} entries.")
        lower, start = np.zeros((n, n), order="F"), 0  # LAPACK's order
        for j in range(n):
            lower[j:, j] = packed[start : start + n - j]
            start += n - j
        return cls(lower, float(jitter))

    def half_solve(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        """L^-1 b, or L^-T b. n^2 flops a column."""
        assert self.form == "factor"
        return backend.half_solve(self.lower, b, transposed)

    @functools.cached_property
    def lower_inverse(self) -> np.ndarray:
        """L^-1, computed at first use. n^3/3 flops and a second matrix."""
        assert self.form == "factor"
        inverse = self.lower.copy(order="F")
        backend.half_invert(inverse)
        return inverse

    def half_solve_in_place(self, b: np.ndarray, many: bool = False) -> np.ndarray:
        """Overwrite b, a Fortran-ordered matrix (n, s), with L^-1 b. For ``many`` columns in all, products with L^-1
        are faster than triangular solves, which parallelise poorly."""
        assert self.form == "factor"
        if many:
            return backend.half_product(self.lower_inverse, b, in_place=True)
        return backend.half_solve(self.lower, b, in_place=True)

    def solve(self, b: np.ndarray) -> np.ndarray:
        """(C + jitter I)^-1 b. 2 n^2 flops a column."""
        if self.form == "inverse":
            return backend.product(self.lower, b)
        if self.form == "half inverse":
            return backend.half_product(self.lower, backend.half_product(self.lower, b), transposed=True)
        return backend.solve(self.lower, b)

    def halve(self) -> None:
        """Overwrite L with L^-1. n^3/3 flops."""
        if self.form == "factor":
            self.log_det()  # cached while L exists
            backend.half_invert(self.lower)
            self.form = "half inverse"

    def invert(self) -> None:
        """Overwrite L with the lower triangle of (C + jitter I)^-1. 2/3 n^3 flops, half of them after `halve`."""
        self.log_det()  # cached while L exists
        if self.form == "factor":
            backend.invert(self.lower)
        elif self.form == "half inverse":
            backend.half_square(self.lower)
        self.form = "inverse"

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of (C + jitter I)^-1, from L^-1. n^3/3 flops and, unless halved, a second matrix."""
        if self.form == "inverse":
            return np.diag(self.lower).copy()
        half = self.lower if self.form == "half inverse" else self.lower_inverse
        return np.einsum("ij,ij->j", half, half)

    def condition(self, steps: int = 12) -> float:
        """Estimated condition number of C + jitter I, by power iteration; about 6 n^2 flops a step."""
        n = len(self.lower)
        assert self.form == "factor"
        if n == 0:
            return 1.0
        v = np.ones(n) + 0.5 * np.cos(np.arange(n))  # unlikely to be orthogonal to an eigenvector
        u, largest, smallest = v.copy(), 1.0, 1.0
        for _ in range(steps):
            v = self.lower @ (self.lower.T @ (v / np.linalg.norm(v)))
            u = self.solve(u / np.linalg.norm(u))
            largest, smallest = float(np.linalg.norm(v)), 1 / float(np.linalg.norm(u))
        return largest / smallest

    def residual(self, diagonal: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
        """|(C + jitter I) a - b| / |b| for the ``diagonal`` of C, if what was above it is still there (`factor`). 2 n^2
        flops."""
        product = backend.product(self.lower, a, lower=False) + (diagonal + self.jitter - np.diag(self.lower)) * a
        return float(np.linalg.norm(product - b) / (np.linalg.norm(b) or 1.0))

    def log_det(self) -> float:
        """ln |C + jitter I|."""
        return self._log_det

    @functools.cached_property
    def _log_det(self) -> float:
        assert self.form == "factor"
        return 2.0 * float(np.log(self.lower.diagonal()).sum())

    def extended(self, B: np.ndarray, D: np.ndarray) -> "Cholesky":
        """Factor of [[C, B], [B^T, D]], from this one. n^2 flops for each new column."""
        n, m = B.shape
        V = self.half_solve(B)
        corner = factor(D - V.T @ V, scale=float(np.mean(np.diag(D))))
        lower = np.zeros((n + m, n + m), order="F")
        lower[:n, :n] = self.lower
        lower[n:, :n] = V.T
        lower[n:, n:] = corner.lower
        return Cholesky(lower, max(self.jitter, corner.jitter))


def attempt(C: np.ndarray, clean: bool = False) -> Cholesky | None:
    """Cholesky factor of the lower triangle of a Fortran-ordered C, overwriting it; None if C is not positive definite.
    No jitter. The upper triangle stays as it is, unless ``clean``."""
    return Cholesky(C) if backend.factor(C, clean) else None


def factor(C: np.ndarray, scale: float | None = None, clear: bool = True) -> Cholesky:
    """Cholesky factor of a symmetric matrix, overwriting it. n^3/3 flops and no second matrix. Without ``clear``, C
    stays above the diagonal, for `Cholesky.residual`.

    The first attempt is without jitter; then it starts at n eps and grows a hundredfold per attempt, up to
    MAX_JITTER, relative to ``scale`` (default: the mean of the diagonal). The jitter used is stored in the result.
    """
    work, diagonal = _checked(C)
    n = len(diagonal)
    scale = float(diagonal.sum()) / max(n, 1) if scale is None else scale
    for relative in [0.0, *FACTOR(n)]:
        if _attempt(work, diagonal + relative * scale):
            if clear:
                clear_upper(work)
            return Cholesky(work, relative * scale)
    raise NotPositiveDefiniteError(_indefinite(n, scale))


def root(K: np.ndarray, scale: float = 0.0) -> np.ndarray:
    """R (n, r) with R R^T = K for a positive semidefinite K, singular or not, overwriting K. No jitter.

    A singular matrix is factorised with pivoting (LAPACK pstrf) up to its numerical rank r, so a smooth field on many
    points, which has a small rank, costs n r^2. Rounding is relative to the diagonal of K, or to ``scale`` if that is
    larger: the size of the matrices that K is a difference of.
    """
    work, diagonal = _checked(K)
    n = len(diagonal)
    largest = float(np.max(diagonal, initial=0.0))
    if _attempt(work, diagonal):
        clear_upper(work)
        return work
    restore(work, diagonal)
    tolerance = n * np.finfo(float).eps * max(largest, scale)
    R = np.zeros((n, 0))
    if largest > tolerance:  # pstrf does not compare the first pivot
        factored, pivots, rank = backend.pivoted_factor(work, tolerance)
        R = np.empty((n, rank))
        R[pivots] = np.tril(factored)[:, :rank]
    # pstrf stops where the diagonal of the remainder is rounding; if K is semidefinite, so is all of the remainder.
    remainder = np.triu(work, 1) - np.triu(R @ R.T, 1)
    np.fill_diagonal(remainder, diagonal - np.einsum("ij,ij->i", R, R))
    if np.abs(remainder).max() > 100 * tolerance:
        raise NotPositiveDefiniteError(
            f"a covariance matrix of {n} points has negative eigenvalues that rounding does not explain, so no samples "
            "can be drawn. Check the kernel with mercer.check_kernel(kernel, X)."
        )
    return R


def random_root(
    rows: Callable, diagonal: np.ndarray, max_rank: int, tolerance: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """R (s, r) and d (s,) with K ~ R R^T + diag(d), from few rows of K: randomly pivoted Cholesky, in blocks, with
    pivots drawn in proportion to the remaining diagonal. s r^2 flops, s r of memory.

    ``rows(pivots)`` returns these rows of K. It stops when every d is below ``tolerance``, or r is ``max_rank``.
    """
    return random_pivots(rows, diagonal, max_rank, tolerance, rng)[1:]


def random_pivots(
    rows: Callable, diagonal: np.ndarray, max_rank: int, tolerance: float, rng: np.random.Generator, drawn: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pivots of `random_root`, in the order in which they were taken, (r,), and what it returns. Of ``drawn``
    times as many rows, those are taken that have most variance given the others."""
    left = diagonal.copy()
    R, taken = np.zeros((len(left), 0)), np.zeros(0, dtype=int)
    while R.shape[1] < max_rank and left.max(initial=0.0) > tolerance:
        most = min(max(PIVOT_BLOCK // drawn, 1), max_rank - R.shape[1])
        count = min(drawn * most, int((left > tolerance).sum()))
        weights = np.where(left > tolerance, left, 0.0)
        pivots = rng.choice(len(left), size=count, replace=False, p=weights / weights.sum())
        G = rows(pivots) - R[pivots] @ R.T  # (count, s)
        core = G[:, pivots]
        np.fill_diagonal(core, left[pivots])
        factored, order, rank = backend.pivoted_factor(np.asfortranarray(core), tolerance)
        rank = min(rank, most)
        chosen = order[:rank]
        L = np.asfortranarray(np.tril(factored[:rank, :rank]))
        F = backend.half_solve(L, G[chosen]).T
        R, taken = np.concatenate([R, F], axis=1), np.concatenate([taken, pivots[chosen]])
        left = np.maximum(left - np.einsum("ij,ij->i", F, F), 0.0)
        left[pivots[chosen]] = 0.0
    return taken, R, left


def _checked(C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A Fortran-ordered view of C (or of its transpose, which is equal) and a copy of the diagonal."""
    work = C if C.flags.f_contiguous else C.T
    if not work.flags.f_contiguous:
        work = np.asfortranarray(C)
    diagonal = np.diag(work).copy()
    if not np.isfinite(work.sum()) and not np.isfinite(work).all():
        raise NotPositiveDefiniteError("the covariance matrix has entries that are not finite; check the kernel.")
    return work, diagonal


def _attempt(work: np.ndarray, diagonal: np.ndarray) -> bool:
    """potrf on the lower triangle; the upper one keeps the original."""
    if len(diagonal) == 0:
        return True
    if not diagonal.min() > 0:
        return False
    restore(work, diagonal)
    return backend.factor(work)


def restore(work: np.ndarray, diagonal: np.ndarray) -> None:
    """Copy the upper triangle to the lower one, and set the diagonal."""
    mirror_upper(work)
    np.fill_diagonal(work, diagonal)


def mirror_upper(A: np.ndarray) -> None:
    """Copy the upper triangle to the lower one, tile by tile."""
    n = len(A)
    for i in range(0, n, TILE_ROWS):
        rows = slice(i, min(i + TILE_ROWS, n))
        square = A[rows, rows]
        np.copyto(square, square.T, where=np.tri(len(square), k=-1, dtype=bool))
        for j in range(rows.stop, n, TILE_ROWS):
            A[j : j + TILE_ROWS, rows] = A[rows, j : j + TILE_ROWS].T


def clear_upper(work: np.ndarray) -> None:
    for j in range(1, work.shape[1]):
        work[:j, j] = 0.0


def _indefinite(n: int, scale: float) -> str:
    return (
        f"a covariance matrix of {n} points is not positive definite: it stayed indefinite with jitter up to "
        f"{MAX_JITTER:g} of its diagonal ({scale:.3g}). Add noise, remove duplicate inputs, or check the kernel "
        "with mercer.check_kernel(kernel, X)."
    )
