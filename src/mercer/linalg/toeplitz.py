"""Covariances of a stationary process at equal steps: symmetric Toeplitz matrices."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from numba import njit
from scipy import fft

from mercer.core import machine

BLOCK_COLUMNS = 64  # right-hand sides solved at a time
POWER_STEPS = 12  # of the power iteration that estimates a condition number


@dataclasses.dataclass(frozen=True, eq=False)
class Toeplitz:
    """C_ij = row_|i-j| (n, n), positive definite. ``first`` is the first column x of C^-1.

    x and ln|C| come from Durbin's recursion (Golub and Van Loan, Alg 4.7.1), 2 n^2 flops and O(n) memory. Solutions
    take a few FFTs, by the formula of Gohberg and Semencul: x_0 C^-1 = L(x) L(x)^T - L(z) L(z)^T with z = (0, x_n-1,
    ..., x_1) and L(v) the lower triangular Toeplitz matrix with first column v.
    """

    row: np.ndarray
    first: np.ndarray
    log_determinant: float

    @classmethod
    def of(cls, row: np.ndarray, noise: float) -> "Toeplitz | None":
        """With ``noise`` on the diagonal. None if it is not finite, or not positive definite."""
        row = np.array(row, dtype=float)
        row[0] += noise
        if not np.isfinite(row).all() or not row[0] > 0:
            return None
        first, log_det = durbin(row)
        return cls(row, first, log_det) if math.isfinite(log_det) else None

    @property
    def size(self) -> int:
        return len(self.row)

    def log_det(self) -> float:
        return self.log_determinant

    def inward(self, b: np.ndarray) -> np.ndarray:
        """b itself: solutions need no other basis."""
        return b

    def outward(self, b: np.ndarray) -> np.ndarray:
        return b

    def units(self, cells: np.ndarray) -> np.ndarray:
        """Unit vectors of some cells: (n, q)."""
        out = np.zeros((self.size, len(cells)))
        out[cells, np.arange(len(cells))] = 1.0
        return out

    @functools.cached_property
    def _spectra(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Transforms of the circulant that contains C, and of x and z, padded."""
        size, z = self._padded, np.concatenate([[0.0], self.first[:0:-1]])
        return _circulant(self.row, size), fft.rfft(self.first, size), fft.rfft(z, size)

    @property
    def _padded(self) -> int:
        return fft.next_fast_len(2 * self.size, real=True)

    def times(self, b: np.ndarray) -> np.ndarray:
        """C b: (n, k)."""
        return np.concatenate([self._product(rows) for _, rows in _blocks(b)]).T

    def divide(self, b: np.ndarray) -> np.ndarray:
        """C^-1 b, with one step of refinement: (n, k)."""
        out = np.empty(b.shape)
        for part, rows in _blocks(b):
            found = self._solved(rows)
            out[:, part] = (found + self._solved(rows - self._product(found))).T
        return out

    def quadratic(self, b: np.ndarray) -> np.ndarray:
        """b^T C^-1 b: (k,)."""
        out = np.empty(b.shape[1])
        for part, rows in _blocks(b):
            out[part] = sum(sign * np.einsum("ij,ij->i", half, half) for sign, _, half in self._halves(rows))
        return out / self.first[0]

    def _product(self, rows: np.ndarray) -> np.ndarray:
        return _filtered(rows, self._spectra[0], self._padded)

    def _solved(self, rows: np.ndarray) -> np.ndarray:
        return sum(sign * _filtered(half, v, self._padded) for sign, v, half in self._halves(rows)) / self.first[0]

    def _halves(self, rows: np.ndarray) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        """L(v)^T b for v = x and z, with the sign and the transform of v."""
        _, x, z = self._spectra
        transformed = fft.rfft(rows, self._padded, workers=machine.cores())
        for v, sign in ((x, 1.0), (z, -1.0)):
            yield sign, v, fft.irfft(np.conj(v) * transformed, self._padded, workers=machine.cores())[:, : self.size]

    def inverse_diagonal(self) -> np.ndarray:
        """Diagonal of C^-1, as sums of the squares in the formula: (n,)."""
        x = self.first
        return np.cumsum(x**2 - np.concatenate([[0.0], x[:0:-1] ** 2])) / x[0]

    def condition(self) -> float:
        largest, smallest = self.extremes()
        return largest / smallest

    def extremes(self) -> tuple[float, float]:
        """Largest and smallest eigenvalue, estimated by power iteration."""
        v = (np.ones(self.size) + 0.5 * np.cos(np.arange(self.size)))[:, None]
        u, largest, smallest = v, 1.0, 1.0
        for _ in range(POWER_STEPS):
            v, u = self.times(v / np.linalg.norm(v)), self.divide(u / np.linalg.norm(u))
            largest, smallest = float(np.linalg.norm(v)), 1 / float(np.linalg.norm(u))
        return largest, smallest

    def slopes(self, B: np.ndarray, signs: np.ndarray) -> list[np.ndarray]:
        """dF/drow for dF/dC = 1/2 (B diag(signs) B^T - C^-1): [(n,)].

        Sums along diagonals: autocorrelations of the columns of B, and of C^-1 by the formula, sum_i (C^-1)_i,i+k =
        sum_j (n - k - 2 j) x_j x_j+k / x_0.
        """
        n, x, lags = self.size, self.first, np.arange(self.size)
        total = np.zeros(n)
        for i in range(0, B.shape[1], BLOCK_COLUMNS):
            part = slice(i, i + BLOCK_COLUMNS)
            total += correlations(B[:, part], B[:, part]) @ signs[part]
        plain, weighted = correlations(np.stack([x, lags * x], axis=1), np.stack([x, x], axis=1)).T
        total -= ((n - lags) * plain - 2 * weighted) / x[0]
        total[0] *= 0.5  # other diagonals count twice
        return [total]


def toeplitz_times(row: np.ndarray, b: np.ndarray) -> np.ndarray:
    """T b for the symmetric Toeplitz matrix of ``row``: (n, k)."""
    size = fft.next_fast_len(2 * len(row), real=True)
    spectrum = _circulant(row, size)
    return np.concatenate([_filtered(rows, spectrum, size) for _, rows in _blocks(b)]).T


def _circulant(row: np.ndarray, size: int) -> np.ndarray:
    """Transform of a circulant matrix that contains the Toeplitz matrix of ``row``."""
    n, first = len(row), np.zeros(size)
    first[:n] = row
    first[size - n + 1 :] = row[:0:-1]
    return fft.rfft(first)


def _blocks(b: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Columns of b (n, k), some at a time, as contiguous rows."""
    for i in range(0, b.shape[1], BLOCK_COLUMNS):
        part = slice(i, i + BLOCK_COLUMNS)
        yield part, np.ascontiguousarray(b[:, part].T)


def _filtered(rows: np.ndarray, spectrum: np.ndarray, size: int) -> np.ndarray:
    """Each row convolved with the filter of this transform, cut to its length."""
    workers = machine.cores()
    return fft.irfft(spectrum * fft.rfft(rows, size, workers=workers), size, workers=workers)[:, : rows.shape[1]]


def correlations(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """sum_j A_j B_j+k for every lag k, column by column: (n, k)."""
    n = len(A)
    size = fft.next_fast_len(2 * n, real=True)
    return fft.irfft(np.conj(fft.rfft(A, size, axis=0)) * fft.rfft(B, size, axis=0), size, axis=0)[:n]


@njit(cache=True, nogil=True)
def durbin(row: np.ndarray) -> tuple[np.ndarray, float]:
    """First column of the inverse of the Toeplitz matrix of ``row``, and its log determinant: NaN if it is not positive
    definite."""
    n = len(row)
    y, reversed_y = np.zeros(n), np.zeros(n)
    y[0], error = 1.0, row[0]
    log_det = math.log(error)
    for k in range(1, n):  # (1, y_1, ..., y_k-1) predicts backwards, with this error
        total = 0.0
        for j in range(k):
            total += y[j] * row[k - j]
        reflection = -total / error
        error *= 1.0 - reflection * reflection
        if not error > 0.0:
            return y, math.nan
        log_det += math.log(error)
        for j in range(1, k):
            reversed_y[j] = y[k - j]
        for j in range(1, k):
            y[j] += reflection * reversed_y[j]
        y[k] = reflection
    return y / error, log_det
