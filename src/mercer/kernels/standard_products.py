"""Products with the matrix of a standard kernel (`standard`) that is never formed.

The radial function is computed in tiles that fit a core's cache: squared distances come from one matrix product in
double precision, the function is evaluated in single precision if that is enough, and each tile serves both triangles.
"""

import math
import threading
from collections.abc import Callable, Iterator

import numpy as np

from mercer.core.machine import cores, keepable, one_thread
from mercer.kernels.standard import StandardTriangle

TILE_ROWS, TILE_COLUMNS = 256, 512


class StandardOperator:
    """`gram.Operator` of a `StandardTriangle`, which must be in use."""

    def __init__(self, of: StandardTriangle, theta: np.ndarray, single: bool) -> None:
        self._of, self._type = of, np.dtype(np.float32 if single else np.float64)
        theta0, theta1, theta2, theta3, theta4 = of._values(theta)
        self._amplitude, self._level, self.white = (float(part.sum()) for part in (theta0, theta2, theta4))
        self._linear = theta3
        A = of._centred * np.sqrt(theta1)
        norms, ones = np.einsum("ij,ij->i", A, A), np.ones(len(A))
        # Squared distances are products of these rows.
        self._left = np.column_stack([-2 * A, norms, ones])
        self._right = np.ascontiguousarray(np.column_stack([A, ones, norms]))
        self.n = len(A)
        self._strips = [slice(i, min(i + TILE_ROWS, self.n)) for i in range(0, self.n, TILE_ROWS)]
        keeps = self._type.itemsize * self.n**2 / 2 <= keepable()
        self._kept: list[np.ndarray | None] | None = [None] * len(self._strips) if keeps else None
        self._groups = min(cores(), len(self._strips))
        self._local = threading.local()

    # -- tiles ---------------------------------------------------------------------------------------------------------

    def _tile(self, rows: slice | np.ndarray, columns: slice, out: np.ndarray) -> np.ndarray:
        """The radial function of these rows and columns, in ``out``."""
        left = self._left[rows]
        if not hasattr(self._local, "distances"):
            self._local.distances, self._local.other = np.empty((2, TILE_ROWS * TILE_COLUMNS))
        shape = out.shape
        distances = self._local.distances[: shape[0] * shape[1]].reshape(shape)
        np.matmul(left, self._right[columns].T, out=distances)
        np.maximum(distances, 0.0, out=distances)  # rounding
        if self._type == np.float64:
            out[:] = distances
        else:
            np.copyto(out, distances, casting="same_kind")
        other = self._local.other.view(self._type)[: shape[0] * shape[1]].reshape(shape)
        return radial(self._of.nu, out, other)

    def _diagonal_tile(self, rows: slice, out: np.ndarray) -> np.ndarray:
        tile = self._tile(rows, rows, out)
        np.fill_diagonal(tile, 1.0)
        return tile

    def _strip(self, i: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Tiles of the upper triangle in these rows: kept, or one after the other in one buffer."""
        rows = self._strips[i]
        height = rows.stop - rows.start
        memory = None if self._kept is None else self._kept[i]
        fresh = self._kept is not None and memory is None
        if fresh:
            memory = np.empty(height * (self.n - rows.start), self._type)
        if self._kept is None and not hasattr(self._local, "tile"):
            self._local.tile = np.empty(TILE_ROWS * TILE_COLUMNS, self._type)
        starts = [rows.start, *range(rows.stop, self.n, TILE_COLUMNS)]
        for k, start in enumerate(starts):
            columns = rows if k == 0 else slice(start, min(start + TILE_COLUMNS, self.n))
            width = columns.stop - columns.start
            if memory is None:
                out = self._local.tile[: height * width].reshape(height, width)
            else:
                begin = height * (start - rows.start)
                out = memory[begin : begin + height * width].reshape(height, width)
            if memory is None or fresh:
                (self._diagonal_tile(rows, out) if k == 0 else self._tile(rows, columns, out))
            yield columns, out
        if fresh and self._kept is not None:
            self._kept[i] = memory

    # -- products ------------------------------------------------------------------------------------------------------

    def times(self, A: np.ndarray) -> np.ndarray:
        """K A: (n, m) for A (n, m)."""
        own = np.ascontiguousarray(A, dtype=self._type)

        def work(first: int) -> np.ndarray:  # sums in an order that does not depend on the threads
            out = np.zeros(A.shape)
            for i in range(first, len(self._strips), self._groups):
                rows = self._strips[i]
                for columns, tile in self._strip(i):
                    out[rows] += tile @ own[columns]
                    if columns.start > rows.start:
                        out[columns] += tile.T @ own[rows]
            return out

        out = sum(self._each(work), np.zeros(A.shape))
        out *= self._amplitude
        if self._level:
            out += self._level * A.sum(axis=0)
        if self._linear.size:
            X = self._of.X
            out += X @ (np.reshape(self._linear, (-1, 1)) * (X.T @ A))
        if self.white:
            out += self.white * A
        return out

    def _each(self, work: Callable[[int], np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"), one_thread():
            return list((map if self._of._pool is None else self._of._pool.map)(work, range(self._groups)))

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Rows of K without its white noise: (m, n)."""
        r2 = np.maximum(self._left[index] @ self._right.T, 0.0)
        with np.errstate(all="ignore"):
            out = radial(self._of.nu, r2, np.empty_like(r2))
        out[np.arange(len(index)), index] = 1.0
        out *= self._amplitude
        if self._linear.size:
            out += (self._linear * self._of.X[index]) @ self._of.X.T
        out += self._level
        return out

    def diagonal(self) -> np.ndarray:
        """Diagonal of K without its white noise: (n,)."""
        out = np.full(self.n, self._amplitude + self._level)
        return out + (self._of.X**2 * self._linear).sum(axis=1) if self._linear.size else out


def radial(nu: float, r2: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Matern function of order nu (infinite: Gaussian) of squared distances, overwriting these and another array."""
    if math.isinf(nu):
        r2 *= -0.5
        return np.exp(r2, out=r2)
    r2 *= 2 * nu
    s = np.sqrt(r2, out=r2)
    np.negative(s, out=other)
    e = np.exp(other, out=other)
    if nu == 0.5:
        s[:] = e
        return s
    if nu == 2.5:  # 1 + s + s^2 / 3
        k = s / 3
        k += 1
        s *= k
    s += 1
    s *= e
    return s
