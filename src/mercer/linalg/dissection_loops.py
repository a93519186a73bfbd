"""Sums over small sets of points in a dense front, compiled by Numba. Import it only where it is needed."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def add_sets(F: np.ndarray, local: np.ndarray, vectors: np.ndarray, variance: np.ndarray, sets: np.ndarray) -> None:
    """Add v v^T / d of every set to the lower triangle of F."""
    for h in range(len(sets)):
        v, d = vectors[sets[h]], variance[sets[h]]
        for q in range(local.shape[1]):
            a = local[h, q]
            if a < 0:
                continue
            scaled = v[q] / d
            for t in range(local.shape[1]):
                b = local[h, t]
                if 0 <= b <= a:
                    F[a, b] += scaled * v[t]


@njit(cache=True, nogil=True)
def add_front(F: np.ndarray, A: np.ndarray, places: np.ndarray) -> None:
    """Add the lower triangle of A to that of F, in these rows and columns."""
    for j in range(len(places)):
        for i in range(j, len(places)):
            a, b = places[i], places[j]
            if a >= b:
                F[a, b] += A[i, j]
            else:
                F[b, a] += A[i, j]


@njit(cache=True, nogil=True)
def along_sets(F: np.ndarray, local: np.ndarray, vectors: np.ndarray, sets: np.ndarray, out: np.ndarray) -> None:
    """F v of every set on its points, into its row of ``out``."""
    for h in range(len(sets)):
        v = vectors[sets[h]]
        for q in range(local.shape[1]):
            a = local[h, q]
            if a < 0:
                continue
            total = 0.0
            for t in range(local.shape[1]):
                b = local[h, t]
                if b >= 0:
                    total += F[a, b] * v[t]
            out[sets[h], q] = total
