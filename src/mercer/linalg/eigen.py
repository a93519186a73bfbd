"""Largest eigenvalues of a symmetric matrix given by products with vectors."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mercer.linalg import backend

EXTRA_VECTORS = 10  # beyond those wanted, so that the last of these converge as fast as the first
MAX_BLOCKS = 8  # of the basis, before a restart from the best two
RANDOM_VECTORS = 4  # in the first block, for directions orthogonal to the start


class Eigenpairs(NamedTuple):
    """Largest eigenvalues (k,), in descending order; orthonormal vectors (n, k); |A v - value v| (k,) relative to the
    largest eigenvalue; number of products with a block of vectors; and whether all residuals are small."""

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    products: int
    converged: bool


def largest(
    product: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    count: int,
    tolerance: float,
    max_products: int,
    rng: np.random.Generator,
) -> Eigenpairs:
    """The ``count`` algebraically largest eigenvalues of a symmetric A (n, n), with their vectors.

    Block Lanczos with full orthogonalisation and thick restarts, written as Rayleigh-Ritz on a growing basis Q: the
    residuals of the best Ritz vectors are the next block, which spans the same Krylov space, and any start may be used.
    A step is one product with about ``count`` + 10 vectors and 8 n |Q| (count + 10) further flops; memory is 2 n |Q|,
    with |Q| up to 8 blocks or the start.

    ``product`` gives A V for a block V (n, b). ``start`` (n, b) is any guess of the leading vectors: the better it is,
    the fewer products. The iteration ends when every residual is below ``tolerance`` times the largest eigenvalue, or
    after ``max_products``.
    """
    n = len(start)
    count = min(count, n)
    width = min(n, count + EXTRA_VECTORS)
    V = _orthonormal(np.concatenate([start, rng.normal(size=(n, max(RANDOM_VECTORS, count - start.shape[1])))], axis=1))
    room = min(n, max(MAX_BLOCKS * width, V.shape[1] + 2 * width))
    Q, AQ = np.empty((n, room), order="F"), np.empty((n, room), order="F")
    T, size, products = np.empty((0, 0)), 0, 0
    while True:
        last = size + V.shape[1]
        Q[:, size:last], AQ[:, size:last] = V, product(V)
        products += 1
        across, corner = Q[:, :size].T @ AQ[:, size:last], V.T @ AQ[:, size:last]
        T, size = np.block([[T, across], [across.T, (corner + corner.T) / 2]]), last
        # Rayleigh-Ritz: the best approximations in the basis.
        theta, Y = backend.eigenpairs(T)
        theta, Y = theta[::-1], Y[:, ::-1]
        best = Q[:, :size] @ Y[:, :width]
        R = AQ[:, :size] @ Y[:, :width] - best * theta[:width]
        residuals = np.linalg.norm(R, axis=0) / (np.abs(theta).max(initial=0.0) or 1.0)
        converged = bool((residuals[:count] <= tolerance).all())
        if converged or products >= max_products or size >= n:
            break
        # The next block: residuals of the Ritz vectors that have not converged.
        R = R[:, residuals > tolerance]
        if size + R.shape[1] > room:  # thick restart from the best
            kept = min(2 * width, room - R.shape[1])
            Q[:, :kept], AQ[:, :kept] = Q[:, :size] @ Y[:, :kept], AQ[:, :size] @ Y[:, :kept]
            T, size = np.diag(theta[:kept]), kept
        V = _orthonormal(R, Q[:, :size])
        if not V.shape[1]:
            break
    return Eigenpairs(theta[:count], best[:, :count], residuals[:count], products, converged)


def _orthonormal(V: np.ndarray, Q: np.ndarray | None = None) -> np.ndarray:
    """Orthonormal basis of the span of V's columns orthogonal to Q; negligible directions are left out."""
    V = V / np.maximum(np.linalg.norm(V, axis=0), np.finfo(float).tiny)
    for _ in range(3):  # the first pass is accurate to six digits, the others to all
        if Q is not None:
            V = V - Q @ (Q.T @ V)
        squares, E = backend.eigenpairs(V.T @ V)
        kept = squares > 1e-12 * max(squares.max(initial=0.0), 1e-12)
        V = V @ (E[:, kept] / np.sqrt(squares[kept]))
    return V


def signs_to_fix(V: np.ndarray) -> np.ndarray:
    """Sign (1 or -1) for each column of V that makes its largest entry positive; of entries equal up to rounding, the
    first."""
    size = np.abs(V)
    first = (size >= (1 - 1e-6) * size.max(axis=0, initial=0.0)).argmax(axis=0)
    return np.where(V[first, np.arange(V.shape[1])] < 0, -1.0, 1.0)
