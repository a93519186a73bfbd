"""Grids among rows: the cells of a Cartesian product of groups of columns, or of equal steps in one of them."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from mercer import gram
from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, as_matrix, column_names, count_rows, select_columns
from mercer.kernels.algebra import Sum, split_white
from mercer.kernels.base import Kernel
from mercer.kernels.separable import column_groups, coupling_term, reads_index
from mercer.kernels.substitution import by_position

STEP_TOLERANCE = 1e-9  # of a step: how far equal steps may be from equal
MIN_STEPS, STEPS_PER_PLACE = 1000, 4  # equal steps from which their structure pays, in all and for each place
MIN_CORRECTED = 100  # cells that are missing, or have a noise of their own, in a grid of any size
CORRECTED_SHARE = 4  # otherwise at most one in four cells


@dataclasses.dataclass(frozen=True, eq=False)
class Lattice:
    """Cells of a grid, and the cell of each row.

    ``kernel`` is the kernel with columns by position, of the matrix ``reference`` (1, d) and its likes; ``names`` are
    those of a frame's columns. ``values`` are the distinct values (n_g, d_g) of each group of ``columns``; cells are
    their combinations, the last group varying fastest. ``step``: where a stationary kernel makes use of the equal steps
    of the last group, of one column.
    """

    kernel: Kernel
    columns: tuple[tuple[int, ...], ...]
    values: tuple[np.ndarray, ...]
    cell: np.ndarray
    reference: np.ndarray
    step: float | None = None
    names: tuple[str, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.values))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @functools.cached_property
    def observed(self) -> np.ndarray:
        """Cells with rows, in order."""
        return np.unique(self.cell)

    @property
    def missing(self) -> int:
        return self.size - len(self.observed)

    def slice(self, g: int) -> np.ndarray:
        """Inputs along one group, the others as in the reference: (n_g, d)."""
        return self.along(g, self.values[g])

    def along(self, g: int, values: np.ndarray) -> np.ndarray:
        """Inputs with these values of one group, the others as in the reference: (s, d)."""
        out = np.repeat(self.reference, len(values), axis=0)
        out[:, list(self.columns[g])] = values
        return out

    def inputs(self) -> np.ndarray:
        """Inputs of all cells, unread columns as in the reference: (N, d)."""
        out = np.repeat(self.reference, self.size, axis=0)
        for columns, values, index in zip(self.columns, self.values, np.indices(self.shape), strict=True):
            out[:, list(columns)] = values[index.ravel()]
        return out

    def matrix(self, Z: Inputs) -> np.ndarray:
        """Rows in the columns of the reference, as numbers: (s, d)."""
        if self.names is None:
            return as_matrix(Z)
        read = sorted(column for columns in self.columns for column in columns)
        out = np.repeat(self.reference, count_rows(Z), axis=0)
        out[:, read] = as_matrix(select_columns(Z, tuple(self.names[j] for j in read)))
        return out

    def words(self) -> str:
        """Its shape, for people."""
        if self.step is not None and len(self.values) == 1:
            return f"{self.size:,} equal steps"
        return "a grid of " + " x ".join(f"{n:,}" for n in self.shape) + " cells"


def find(kernel: Kernel, X: Inputs) -> Lattice | str:
    """The grid that the rows form and the kernel has the structure for; or why there is none, as the end of a
    sentence."""
    raw = gram.raw(X)
    try:
        matrix = np.asarray(as_matrix(raw))
    except DataError:
        return "needs columns of numbers"
    names = column_names(raw)
    kernel = kernel if names is None else by_position(kernel, names)
    latent = split_white(kernel)[0]
    if latent is None:
        return "needs a kernel with more than white noise"
    if reads_index(latent) is not None:
        return f"needs a kernel of the inputs; {reads_index(latent)!r} is white noise inside a product"
    fine = column_groups(latent, range(matrix.shape[1]))
    varying = [group for group in fine if _changing(group, matrix)]
    if len(matrix) < 2 or not varying:
        return "needs rows that differ in the columns that the kernel reads"
    # Columns that are constant here may not be in new rows: they belong to some group.
    varying[0] = varying[0].union(*(group for group in fine if not _changing(group, matrix)))
    found = _product(kernel, varying, matrix) if len(varying) > 1 else _steps(kernel, latent, varying[0], matrix)
    return found if isinstance(found, str) or names is None else dataclasses.replace(found, names=tuple(names))


def flops(shape: Sequence[int], missing: int) -> float:
    """Of an evaluation of the evidence with its gradient on a product of groups."""
    N, q = float(math.prod(shape)), float(missing)
    return 30 * sum(float(n) ** 3 for n in shape) + 12 * N * (1 + q) * sum(shape) + 4 * N * q**2 + q**3


def limit(cells: int, most: int) -> int:
    """Number of cells that may be missing, or have a noise of their own."""
    return max(MIN_CORRECTED, min(most, cells // CORRECTED_SHARE))


def _changing(group: frozenset[int], X: np.ndarray) -> list[int]:
    return [j for j in sorted(group) if X[:, j].min() != X[:, j].max()]


def _reference(kernel: Kernel, X: np.ndarray) -> np.ndarray:
    """A row at which the variance is not small: (1, d)."""
    if split_white(kernel)[0].stationary:  # type: ignore[union-attr]
        return X[:1].copy()
    best = int(np.argmax(gram.diagonal(kernel, X)))
    return X[best : best + 1].copy()


# -- equal steps -------------------------------------------------------------------------------------------------------


def _steps(kernel: Kernel, latent: Kernel, group: frozenset[int], X: np.ndarray) -> Lattice | str:
    """Equal steps in the only column that changes."""
    columns = _changing(group, X)
    if len(columns) > 1:
        term = coupling_term(latent)
        if isinstance(term, Sum):
            return (
                f"needs one product of kernels; got a sum, of which {term.parts[0]!r} and {term.parts[1]!r} are terms. "
                "A sum over one group of columns, as in (a + b).on('t') * c.on('place'), may be a factor"
            )
        return (
            f"needs a kernel that is a product over groups of columns, as RBF is, or a.on('t') * b.on(['x', 'y']); "
            f"{term!r} is none"
        )
    if not latent.stationary:
        return f"needs a stationary kernel for a single input; got {latent!r}"
    distinct, index = np.unique(X[:, columns[0]], return_inverse=True)
    length, shortest = float(np.ptp(distinct)), float(np.diff(distinct).min())
    count = round(length / shortest) + 1 if length / shortest < 2.0**52 else 0
    if not count or count - len(distinct) > max(MIN_CORRECTED, count // CORRECTED_SHARE):
        return f"needs equal steps; the shortest of {len(distinct):,} distinct values would need {count:,} of them"
    step = length / (count - 1)
    position = np.rint((distinct - distinct[0]) / step)
    if np.abs(distinct - distinct[0] - step * position).max() > STEP_TOLERANCE * step:
        return f"needs equal steps, to {STEP_TOLERANCE:g} of a step of {step:.6g}"
    values = distinct[0] + step * np.arange(count)
    cell, reference = position.astype(int)[index.ravel()], _reference(kernel, X)
    own = tuple(sorted(group))
    inputs = np.repeat(reference[:, list(own)], count, axis=0)
    inputs[:, own.index(columns[0])] = values
    return Lattice(kernel, (own,), (inputs,), cell, reference, step)


# -- products of groups ------------------------------------------------------------------------------------------------


def _product(kernel: Kernel, groups: list[frozenset[int]], X: np.ndarray) -> Lattice | str:
    """Groups of columns whose values occur in nearly all combinations. Groups that do not, such as the longitudes and
    latitudes of places, are joined, those first that are the farthest from it; of all that was tried, the cheapest."""
    n, own = len(X), list(groups)
    most = n + max(MIN_CORRECTED, n // (CORRECTED_SHARE - 1))  # cells that n rows may have
    codes = [_codes(X, group) for group in own]
    finest, tried = (own, codes), []
    while True:
        counts = list(map(_count, codes))
        if 2 * max(counts) > most:  # with two values of another group, there would be too many
            break
        if math.prod(counts) <= most:
            tried.append((flops(counts, max(0, math.prod(counts) - n)), list(own), list(codes)))
        if len(own) == 2 or math.prod(counts) <= n:
            break
        pairs = []
        for i in range(len(own)):
            for j in range(i):
                both = np.unique(codes[i] * counts[j] + codes[j], return_inverse=True)[1].ravel()
                pairs.append((_count(both) / (counts[i] * counts[j]), j, i, both))
        _, j, i, both = min(pairs, key=lambda pair: pair[:3])
        own, codes = list(own), list(codes)
        own[j], codes[j] = own[j] | own[i], both
        del own[i], codes[i]
    if not tried:
        return _scattered(*finest, n)
    _, own, codes = min(tried, key=lambda each: each[0])
    own, codes, step = _with_steps_last(kernel, own, codes, X)
    columns = tuple(tuple(sorted(group)) for group in own)
    values, cell = [], np.zeros(n, dtype=int)
    for chosen, code in zip(columns, codes, strict=True):
        first = np.unique(code, return_index=True)[1]
        values.append(X[first][:, list(chosen)])
        cell = cell * len(first) + code
    return Lattice(kernel, columns, tuple(values), cell, _reference(kernel, X), step)


def _with_steps_last(
    kernel: Kernel, own: list[frozenset[int]], codes: list[np.ndarray], X: np.ndarray
) -> tuple[list[frozenset[int]], list[np.ndarray], float | None]:
    """Groups with the longest last and the others joined, and its step, where it has many equal steps in one column, of
    a stationary kernel: m Toeplitz matrices of n rows are then cheaper than the eigenpairs of one."""
    counts = list(map(_count, codes))
    last = int(np.argmax(counts))
    n, m = counts[last], math.prod(counts) // counts[last]
    columns, latent = _changing(own[last], X), split_white(kernel)[0]
    if n < max(MIN_STEPS, STEPS_PER_PLACE * m) or len(columns) > 1 or latent is None or not latent.stationary:
        return own, codes, None
    distinct = np.unique(X[:, columns[0]])
    step = float(np.ptp(distinct)) / (n - 1)
    if np.abs(distinct - distinct[0] - step * np.arange(n)).max() > STEP_TOLERANCE * step:
        return own, codes, None
    others, code = frozenset[int](), np.zeros(len(X), dtype=int)
    for i, group in enumerate(own):
        if i != last:
            others, code = others | group, code * counts[i] + codes[i]
    joined = np.unique(code, return_inverse=True)[1].ravel()
    return [others, own[last]], [joined, codes[last]], step


def _codes(X: np.ndarray, group: frozenset[int]) -> np.ndarray:
    """Number of each row's values among the distinct ones: (n,)."""
    code = np.zeros(len(X), dtype=int)
    for j in sorted(group):
        own = np.unique(X[:, j], return_inverse=True)[1].ravel()
        code = np.unique(code * (own.max() + 1) + own, return_inverse=True)[1].ravel()
    return code


def _count(code: np.ndarray) -> int:
    return int(code.max()) + 1


def _scattered(groups: Sequence[frozenset[int]], codes: Sequence[np.ndarray], n: int) -> str:
    shape = " x ".join(f"{_count(code):,}" for code in codes)
    named = ", ".join(str(sorted(group)) for group in groups)
    return (
        f"needs rows that form a grid, with few cells missing; the distinct values of columns {named} make {shape} "
        f"cells for {n:,} rows"
    )
