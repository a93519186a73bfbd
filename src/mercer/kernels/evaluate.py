"""Evaluation of kernels on data: Gram matrices by tiles, diagonals and features by strips of rows.

There is one compiled program per kernel structure and tile shape. Inputs are padded to one of three tile sizes, so a
new number of rows needs no compilation. Tiles are written into the result, so peak memory is the result and a few
tiles; they are computed on all cores, and only one triangle of a symmetric matrix is.

Inside the caller's own ``jit``, ``grad`` or ``vmap`` none of this applies: the formula is traced as it is.
"""

import abc
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, Rows, align_columns, count_rows
from mercer.core.machine import available_memory, cores, in_words
from mercer.core.parameters import bare, nodes_of
from mercer.core.precision import Array, concretely, is_traced
from mercer.kernels.distance import fast_distances

if TYPE_CHECKING:
    from mercer.kernels.base import Kernel

# Tile sizes, each with the largest number of rows it is used for. Smaller tiles spread better over the cores and need
# less padding. The largest is not a power of two: a transposed copy with a stride of 4096 bytes is six times slower.
TILES = {128: 128, 256: 768, 504: np.inf}
COLLECTION_TILE = 2040  # rows of a collection evaluated at a time; no power of two either


@jax.tree_util.register_pytree_node_class
class HostRows:
    """Prepared rows for Python alone: strings, graphs or any objects, or numbers for a function that JAX cannot trace.
    An expression with such rows is evaluated on the host, uncompiled."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.rows,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> "HostRows":
        return cls(*children)


class Collection(abc.ABC):
    """Rows of objects in a form that compiled loops or sparse matrices read, to be held by `HostRows`. All pairs of two
    collections are evaluated at once.

    ``part = rows[which]``, by a slice or indices, is a collection of the same kind.
    """

    ndim = 1

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, which: Any) -> "Collection": ...

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)


class Prepared:
    """A data set prepared once for a kernel and for others that differ in parameter values only."""

    X: Inputs
    rows: Rows

    def __init__(self, kernel: "Kernel", X: Inputs) -> None:
        self.kernel, self.X, self.n = kernel.fitted(X), X, count_rows(X)
        self.index = np.arange(self.n)
        self.rows = self.kernel.prepare(X, self.index)


def gram(
    kernel: "Kernel",
    X: "Inputs | Prepared",
    Z: "Inputs | Prepared" = None,
    same: bool = False,
    out: np.ndarray | None = None,
) -> Any:
    """Matrix of k(x_i, z_j), in NumPy and double precision; traced where the caller traces.

    ``X`` and ``Z`` may be `Prepared`. ``same``: Z, if given, is the same rows as X; else they are other rows, even if
    equal.
    ``out`` is a matrix to write into: new memory has to be paged in, which may take as long as the arithmetic.
    """
    same = same or Z is None
    n, m = count_rows(X), count_rows(X if Z is None else Z)
    kernel = kernel if isinstance(X, Prepared) or isinstance(Z, Prepared) else kernel.fitted(X)
    # An index identifies rows: a row shares white noise with itself, but not with another row of equal value.
    if isinstance(Z, Prepared):
        rows, columns = _other_rows(kernel, X, Z), Z.rows
    else:
        rows = X.rows if isinstance(X, Prepared) else kernel.prepare(X, np.arange(n))
        columns = rows
        if not same:
            Z = align_columns(X.X if isinstance(X, Prepared) else X, Z, kernel.needs_all_columns)
            columns = kernel.prepare(Z, np.arange(n, n + m))
    _check_widths(rows, columns)
    if is_traced((kernel, rows, columns)):
        return kernel.block(rows, columns)
    out = allocate(n, m) if out is None else out
    fill(out, kernel, rows, columns, mirrored=same and kernel.symmetric)
    return out


def _other_rows(kernel: "Kernel", X: Inputs | Prepared, Z: Prepared) -> Rows:
    """Rows of X, which are observations other than those of Z even if they were prepared with them."""
    if isinstance(X, Prepared):
        if not any(_reads_index(node) for node in nodes_of(kernel)):
            return X.rows
        X = X.X
    n = count_rows(X)
    return kernel.prepare(align_columns(Z.X, X, kernel.needs_all_columns), np.arange(-n, 0))


def _reads_index(node: Any) -> bool:
    """Whether a part of a kernel tells rows by their index, as white noise does; a constant has no need to."""
    return not getattr(node, "reads_values", True) and node.smoothness != math.inf


def rowwise(kernel: "Kernel", method: str, X: Inputs | Prepared, compiled: bool = True) -> Any:
    """Result of a method of the kernel with one number or vector per row: "block_diag" or "feature_block"."""
    n = count_rows(X)
    kernel = kernel if isinstance(X, Prepared) else kernel.fitted(X)
    rows = X.rows if isinstance(X, Prepared) else kernel.prepare(X, np.arange(n))
    if is_traced((kernel, rows)):
        return getattr(kernel, method)(rows)
    if n == 0 and method == "block_diag":
        return np.empty(0)
    if n == 0:
        raise DataError("X has no rows; at least one is needed.")
    whole, everything, around = kernel, rows, Around.of(kernel, rows) if method == "block_diag" else None
    if around is not None:
        kernel, rows = around.kernel, around.rows
    host = on_host(rows) or not compiled
    kernel = bare(kernel)
    leaves, structure = jax.tree.flatten(kernel)
    with concretely():
        size = tile_size(n)
        strips = []
        for i in range(0, n, size):
            last = min(i + size, n)
            strip = take(rows, i, last, None if host else size)
            if around is not None:
                for number, leaf in around.leaves.items():
                    part, own = around.parts[number]
                    leaves[leaf] = np.pad(np.asarray(part.block_diag(take(own, i, last))), (0, size - (last - i)))
                kernel = jax.tree.unflatten(structure, leaves)
            result = getattr(kernel, method)(strip) if host else _strip(kernel, strip, method)
            strips.append(np.asarray(result)[: last - i])
    out = np.concatenate(strips)
    _check_finite(out, whole, everything)
    return out


def like_inputs(result: Array, *inputs: Inputs) -> Array:
    """The result as a JAX array of the caller's precision if any of the inputs is one."""
    return jnp.asarray(result) if any(isinstance(X, jax.Array) for X in inputs) else result


def _strip_body(kernel: "Kernel", rows: Rows, method: str) -> jax.Array:
    return getattr(kernel, method)(rows)


def _block_body(leaves: list[Any], rows: Rows, columns: Rows, structure: Any, fast: bool) -> jax.Array:
    with fast_distances(fast):
        return jax.tree.unflatten(structure, leaves).block(rows_first(rows), rows_first(columns))


_strip = jax.jit(_strip_body, static_argnames="method")
# Values of a tile, from the kernel's leaves and two strips of rows made by `columns_first`.
block = jax.jit(_block_body, static_argnames=("structure", "fast"))


def columns_first(rows: Rows) -> Rows:
    """Transpose matrices, so that a loop over pairs reads contiguous memory: nearly twice as fast."""
    return jax.tree.map(lambda leaf: np.ascontiguousarray(leaf.T) if np.ndim(leaf) == 2 else leaf, rows)


def rows_first(rows: Rows) -> Rows:
    """Inverse of `columns_first`."""
    return jax.tree.map(lambda leaf: leaf.T if np.ndim(leaf) == 2 else leaf, rows)


class Around(NamedTuple):
    """An expression that can be compiled around its parts on objects, its rows, those parts with theirs, and which leaf
    of the expression takes the values of each."""

    kernel: "Kernel"
    rows: Rows
    parts: list[tuple["Kernel", Rows]]
    leaves: dict[int, int]

    @classmethod
    def of(cls, kernel: "Kernel", rows: Rows) -> "Around | None":
        """None if there is nothing to compile, or nothing on objects."""
        from mercer.kernels import constant_parts

        if not collected(rows):
            return None
        expression, rest, parts = constant_parts.hold_objects(kernel, rows, np.zeros(_count(rows)))
        if isinstance(expression, constant_parts.Held) or on_host(rest):
            return None
        return cls(expression, rest, parts, constant_parts.held_leaves(jax.tree.structure(bare(expression))))


def _count(rows: Rows) -> int:
    return len(jax.tree.leaves(rows)[0])


def fill(out: np.ndarray, kernel: "Kernel", rows: Rows, columns: Rows, mirrored: bool = False) -> None:
    """Write k(x_i, z_j) of prepared rows into ``out`` (n, m). A ``mirrored`` matrix is symmetric: one triangle is
    computed and copied to the other."""
    n, m = out.shape
    whole, everything = kernel, (rows, columns)
    around, others = Around.of(kernel, rows), Around.of(kernel, columns)
    if around is not None and others is not None:
        kernel, rows, columns = around.kernel, around.rows, others.rows
    host = on_host((rows, columns))
    fast = allows_fast_distances(kernel)
    kernel = bare(kernel)
    height, width = (COLLECTION_TILE,) * 2 if collected((rows, columns)) else (tile_size(n), tile_size(m))
    leaves, structure = jax.tree.flatten(kernel)
    with concretely():
        if not host:
            leaves = jax.device_put(leaves)

    def tile_at(i: int, last_i: int, j: int, last_j: int) -> np.ndarray:
        if host:
            strip = take(rows, i, last_i)  # the same object twice marks a symmetric tile
            other = strip if mirrored and i == j else take(columns, j, last_j)
            tile = np.asarray(kernel.block(strip, other))
            if other is strip:  # products of sparse matrices may differ in the last digit
                tile = np.triu(tile) + np.triu(tile, 1).T
            _check_finite(tile, kernel, strip, other)
            return tile
        sides = columns_first((take(rows, i, last_i, height), take(columns, j, last_j, width)))
        own = leaves
        if around is not None and others is not None:
            own = list(leaves)
            for number, leaf in around.leaves.items():
                (part, left), (_, right) = around.parts[number], others.parts[number]
                strip = take(left, i, last_i)
                values = part.block(strip, strip if mirrored and i == j else take(right, j, last_j))
                own[leaf] = np.pad(np.asarray(values), ((0, height - (last_i - i)), (0, width - (last_j - j))))
        tile = np.asarray(block(own, *sides, structure=structure, fast=fast))[: last_i - i, : last_j - j]
        if not finite(tile):  # the fast formula may have lost digits
            tile = np.asarray(block(own, *sides, structure=structure, fast=False))[: last_i - i, : last_j - j]
            _check_finite(tile, whole, *everything)
        if around is not None and mirrored and i == j:
            tile = np.triu(tile) + np.triu(tile, 1).T
        return tile

    def work(corner: tuple[int, int]) -> None:
        i, j = corner
        last_i, last_j = min(i + height, n), min(j + width, m)
        with concretely():  # a setting of each thread
            tile = tile_at(i, last_i, j, last_j)
        out[i:last_i, j:last_j] = tile
        if mirrored and i != j:
            out[j:last_j, i:last_i] = tile.T

    corners = [(i, j) for i in range(0, n, height) for j in range(0, i + 1 if mirrored else m, width)]
    if host or around is not None or len(corners) == 1:
        for corner in corners:
            work(corner)
    elif corners:
        with ThreadPoolExecutor(cores() + 1) as pool:  # one more, to copy a tile while the others compute
            try:
                for _ in pool.map(work, corners):
                    pass
            except BaseException:  # an error in one tile, or Ctrl-C: cancel the others
                pool.shutdown(cancel_futures=True)
                raise


def allocate(n: int, m: int) -> np.ndarray:
    """Uninitialised matrix; an error if it does not fit in memory."""
    needed, available = 8 * n * m, available_memory()
    if needed > available:
        raise DataError(
            f"a Gram matrix of {n:,} by {m:,} needs {in_words(needed)}; {in_words(available)} are available. "
            "Use fewer rows, or compute it in blocks: kernel(X[:1000], Z)."
        )
    return np.empty((n, m))


def tile_size(n: int) -> int:
    """Size of tiles for n rows."""
    return next(size for size, rows in TILES.items() if n <= rows)


def take(rows: Rows, start: int, stop: int, size: int | None = None) -> Rows:
    """Prepared rows start:stop, padded to ``size`` by repeating the last one."""
    padding = 0 if size is None else size - (stop - start)

    def part_of(array: np.ndarray) -> np.ndarray:
        part = array[start:stop]
        return np.concatenate([part, np.repeat(part[-1:], padding, axis=0)]) if padding else part

    return jax.tree.map(part_of, rows)


def some(rows: Rows, which: slice | Sequence[int] | np.ndarray) -> Rows:
    """Prepared rows by a slice or indices."""
    return jax.tree.map(lambda leaf: leaf[which], rows)


def on_host(tree: Rows) -> bool:
    """Whether prepared rows must be evaluated on the host, uncompiled."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, HostRows))
    return any(isinstance(node, HostRows) for node in nodes)


def collected(tree: Rows) -> bool:
    """Whether every part of prepared rows that must be evaluated on the host is a `Collection`, and there is one."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, HostRows))
    parts = [node.rows for node in nodes if isinstance(node, HostRows)]
    return bool(parts) and all(isinstance(part, Collection) for part in parts)


def allows_fast_distances(kernel: "Kernel") -> bool:
    """Whether NaN from `fast_distances` is sure to reach the kernel's value: a user's formula may turn it into a
    number."""
    return not any(node.runs_user_code for node in nodes_of(kernel))


def _check_widths(rows: Rows, columns: Rows) -> None:
    for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(columns), strict=True):
        if np.shape(a)[1:] != np.shape(b)[1:]:
            widths = " and ".join(str(np.shape(rows)[1:]).strip("(,)") for rows in (a, b))
            raise DataError(f"both sets of inputs must have equal width; got {widths} columns.")


def finite(values: np.ndarray) -> bool:
    """Whether all values are finite."""
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())  # the sum is fast, and seldom overflows


def _check_finite(values: np.ndarray, kernel: "Kernel", *rows: Rows) -> None:
    if not finite(values):
        for side in rows:
            kernel.explain(side)
        raise DataError(
            f"{kernel!r} is not finite at these inputs: its formula overflows, or a function in it returned NaN. "
            "Scale the inputs down, or for sequences take a smaller decay or shorter words."
        )
