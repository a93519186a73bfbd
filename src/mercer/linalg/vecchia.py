"""Sparse inverse factor of a covariance, by conditioning each point on a few before it (Vecchia 1988).

p(y) = prod_i p(y_i | y_c(i)): with B the regressions on the members of c(i) and D the conditional variances, the
precision is (I - B)^T D^-1 (I - B). Points are numbered in their order.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from mercer.core import machine
from mercer.core.errors import NotPositiveDefiniteError
from mercer.linalg.jitter import FACTOR
from mercer.linalg.ordering import Sets


class Covariances(Protocol):
    """C without noise on sets of points, at one theta (`mercer.kernels.sets.SetsAt`)."""

    def fill(self, members: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> None: ...

    def contract(self, members: np.ndarray, sizes: np.ndarray, weights: np.ndarray) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True, eq=False)
class SparseFactor:
    """(I - B)^T D^-1 (I - B), the precision of n points. Row i of B holds ``values`` in ``columns`` from ``ends[i]`` to
    ``ends[i + 1]``; ``variance`` (n,) is the diagonal of D."""

    ends: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    variance: np.ndarray

    def consistent(self) -> bool:
        """Whether its arrays fit together, for `mercer.load`."""
        n = len(self.variance)
        count = self.ends.shape == (n + 1,) and self.columns.shape == self.values.shape == (int(self.ends[-1]),)
        rows = np.repeat(np.arange(n), np.diff(self.ends)) if count else np.zeros(0)
        return count and bool((self.columns < rows).all() and (self.columns >= 0).all())

    def residuals(self, Z: np.ndarray) -> np.ndarray:
        """(I - B) Z: (n, c)."""
        out = np.empty(Z.shape)
        _loops().residuals(self.ends, self.columns, self.values, Z, out)
        return out

    def times_precision(self, Z: np.ndarray) -> np.ndarray:
        """C^-1 Z: (n, c)."""
        out = np.empty(Z.shape)
        scaled = self.residuals(Z) / self.variance[:, None]
        _loops().transposed(self.ends, self.columns, self.values, scaled, out)
        return out

    def times(self, Z: np.ndarray) -> np.ndarray:
        """C Z: (n, c)."""
        out = np.array(Z, dtype=float, order="C")
        _loops().solve_transposed(self.ends, self.columns, self.values, out)
        out *= self.variance[:, None]
        _loops().solve(self.ends, self.columns, self.values, out)
        return out

    def solved(self, Z: np.ndarray) -> np.ndarray:
        """(I - B)^-1 Z: (n, c)."""
        out = np.array(Z, dtype=float, order="C")
        _loops().solve(self.ends, self.columns, self.values, out)
        return out

    def log_det(self) -> float:
        """ln |C|."""
        return float(np.log(self.variance).sum())

    def diagonal(self) -> np.ndarray:
        """Of the precision: (n,)."""
        return _loops().precision_diagonal(self.ends, self.columns, self.values, self.variance)

    def products(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of every row, with v = (-b, 1): |Z^T v|^2, (n,), and Z Z^T v on the columns of B."""
        Z, size, along = np.ascontiguousarray(Z), np.empty(len(Z)), np.empty(len(self.values))
        _loops().products(self.ends, self.columns, Z, self.residuals(Z), size, along)
        return size, along

    def scaled(self, factor: float) -> "SparseFactor":
        """Of a covariance ``factor`` times as large."""
        return dataclasses.replace(self, variance=self.variance * factor)

    def condition(self, steps: int = 12) -> float:
        """Estimated condition number of C, by power iteration."""
        n = len(self.variance)
        if not n:
            return 1.0
        v = (np.ones(n) + 0.5 * np.cos(np.arange(n)))[:, None]  # unlikely to be orthogonal to an eigenvector
        u, largest, smallest = v.copy(), 1.0, 1.0
        for _ in range(steps):
            v, u = self.times(v / np.linalg.norm(v)), self.times_precision(u / np.linalg.norm(u))
            largest, smallest = float(np.linalg.norm(v)), 1 / float(np.linalg.norm(u))
        return largest / smallest

    def residual(self, a: np.ndarray, b: np.ndarray) -> float:
        """|C a - b| / |b|."""
        return float(np.linalg.norm(self.times(a[:, None])[:, 0] - b) / (np.linalg.norm(b) or 1.0))


class SetFactors:
    """Factorises the covariances of many sets, for many values of parameters. Use it in a ``with`` block for threads.

    Sets are sorted by size, and factorised in chunks of about equal size.
    """

    def __init__(self, sets: Sets, n: int | None = None) -> None:
        """``n``: number of points, where some are no targets: these have no regression, and variance one."""
        order = np.argsort(sets.sizes, kind="stable")
        self.sets = Sets(sets.members[order], sets.sizes[order], sets.target[order])
        self.chunks = list(self._chunks())
        n = int(self.sets.target.sum()) if n is None else n
        counts = np.zeros(n, dtype=np.int64)
        g, p = np.nonzero(self.sets.target)
        counts[self.sets.members[g, p]] = p
        self.ends = np.concatenate([[0], np.cumsum(counts)])
        self.n = n
        sizes = [8 * len(chunk) * chunk.members.shape[1] ** 2 for chunk in self.chunks]
        self._keeps = sum(sizes) <= machine.FACTORS_BYTES
        self._kept: list[np.ndarray | None] = [None] * len(self.chunks)
        self._fresh = False  # whether they hold factors, not yet overwritten
        self._pool: ThreadPoolExecutor | None = None

    def _chunks(self) -> Iterator[Sets]:
        start, sizes = 0, self.sets.sizes
        while start < len(sizes):
            stop = start + machine.rows_within(machine.SETS_BYTES, int(sizes[start]) ** 2)
            # Not much larger sets: they would pad the smaller ones.
            stop = min(stop, int(np.searchsorted(sizes, sizes[start] + max(2, sizes[start] // 8), side="right")))
            part, width = self.sets[start:stop], int(sizes[min(stop, len(sizes)) - 1])
            yield Sets(*(np.ascontiguousarray(a[:, :width]) if a.ndim == 2 else a for a in dataclasses.astuple(part)))
            start = stop

    def __enter__(self) -> "SetFactors":
        if machine.cores() > 1 and len(self.chunks) > 1:
            self._pool = ThreadPoolExecutor(machine.cores())
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _each(self, work: Callable[[int], Any]) -> list[Any]:
        return list((map if self._pool is None else self._pool.map)(work, range(len(self.chunks))))

    def _memory(self, i: int) -> np.ndarray:
        chunk = self.chunks[i]
        kept = self._kept[i]
        found = np.empty((len(chunk), *[chunk.members.shape[1]] * 2)) if kept is None else kept
        if self._keeps:
            self._kept[i] = found
        return found

    def factor(self, covariances: Covariances, noise: np.ndarray) -> SparseFactor | None:
        """Of C + diag(noise); None if the covariance of a set is not positive definite."""
        total = int(self.ends[-1])
        found = SparseFactor(self.ends, np.empty(total, np.int64), np.empty(total), np.ones(self.n))

        def work(i: int) -> bool:
            return self._factorise(i, covariances, noise, found)[0]

        self._fresh = True
        return found if all(self._each(work)) and np.isfinite(found.variance).all() else None

    def _factorise(
        self, i: int, covariances: Covariances, noise: np.ndarray, found: SparseFactor
    ) -> tuple[bool, np.ndarray]:
        chunk, C = self.chunks[i], self._memory(i)
        covariances.fill(chunk.members, chunk.sizes, C)
        done = _loops().factorise(
            C, chunk.members, chunk.sizes, chunk.target, noise, found.ends, found.columns, found.values, found.variance
        )
        return done, C

    def contract(
        self, covariances: Covariances, noise: np.ndarray, found: SparseFactor, Z: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Derivative of -1/2 (ln |C| + tr Z^T C^-1 Z), Z (n, c) held, in the parameters of the covariances and in each
        noise variance, after `factor` at these parameters: (p,), (n,)."""
        return self.contract_products(covariances, noise, found, *found.products(Z))

    def contract_products(
        self, covariances: Covariances, noise: np.ndarray, found: SparseFactor, size: np.ndarray, along: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `contract`, of -1/2 (ln |C| + tr M C^-1) with M held, known by its products with v = (-b, 1) of every row:
        v^T M v (n,), and M v on the columns of B."""
        of_noise: dict[int, np.ndarray] = {}  # of each thread
        fresh, self._fresh = self._fresh, False

        def work(i: int) -> np.ndarray:
            chunk, kept = self.chunks[i], self._kept[i] if fresh else None
            own = of_noise.setdefault(threading.get_ident(), np.zeros(self.n))
            C = self._factorise(i, covariances, noise, found)[1] if kept is None else kept
            _loops().pull(
                C, chunk.members, chunk.sizes, chunk.target, found.ends, found.values, found.variance, size, along, own
            )
            return covariances.contract(chunk.members, chunk.sizes, C)

        slopes: Any = sum(self._each(work))
        return slopes, np.sum(list(of_noise.values()), axis=0)


def solved_sets(C: np.ndarray, noise: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(C + diag(noise))^-1 b of each set, from the lower triangles of C (G, m, m): (G, m, c). Where C is singular to
    rounding, with jitter."""
    scale = float(np.mean(np.einsum("gii->gi", C))) if C.size else 1.0
    for relative in (0.0, *FACTOR(C.shape[1])):
        L, out = np.ascontiguousarray(C), b.copy()
        L = L.copy() if L is C else L
        if _loops().solve_sets(L, noise + relative * scale, out) < 0:
            return out
    raise NotPositiveDefiniteError("the covariance of the nearest rows of a new one could not be factorised.")


@functools.cache
def _loops() -> ModuleType:
    from mercer.linalg import vecchia_loops  # takes a while to import

    return vecchia_loops
