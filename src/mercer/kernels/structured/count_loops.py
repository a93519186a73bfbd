"""Loops over sparse matrices, compiled by Numba. Import it only where it is needed."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def add_products(
    out: np.ndarray, a_ends: np.ndarray, a_columns: np.ndarray, a_values: np.ndarray, b_ends: np.ndarray,
    b_rows: np.ndarray, b_values: np.ndarray,
) -> None:  # fmt: skip
    """out += A B^T (n, m), for A (n, M) by rows and B (m, M) by columns."""
    for i in range(out.shape[0]):
        for p in range(a_ends[i], a_ends[i + 1]):
            column, value = a_columns[p], a_values[p]
            for q in range(b_ends[column], b_ends[column + 1]):
                out[i, b_rows[q]] += value * b_values[q]
