"""The bridge between kernels and linear algebra: a kernel met with data becomes an operator that solvers know."""

import numpy as np

from mercer.kernels import evaluate
from mercer.linalg.cholesky import Cholesky, factor


def between(kernel, X, Z) -> np.ndarray:
    """k(x_i, z_j) for rows that are different measurements, whatever their values (white noise is not shared)."""
    return evaluate.gram(kernel, X, Z)


def within(kernel, X) -> np.ndarray:
    """k(x_i, x_j), a fresh matrix that may be overwritten."""
    return evaluate.gram(kernel, X)


def diagonal(kernel, X) -> np.ndarray:
    """k(x_i, x_i)."""
    return evaluate.rowwise(kernel, "block_diag", X)


def covariance(kernel, X, noise) -> np.ndarray:
    """C = K + diag(noise) (PRML 6.62)."""
    C = within(kernel, X)
    C[np.diag_indices_from(C)] += noise
    return C


def factored(kernel, X, noise) -> Cholesky:
    """The Cholesky factor of K + diag(noise)."""
    return factor(covariance(kernel, X, noise))
