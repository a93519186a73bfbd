"""Kernels met with data: Gram matrices in tiles, diagonals and features in strips.

One compiled program per kernel structure and tile shape does all the work. Inputs are padded to one of three tile
sizes, so a new number of rows compiles nothing new; the result is written straight into its final place, so peak
memory is the result and a few tiles; tiles run on all cores; a symmetric matrix computes one triangle.

Inside the caller's own ``jit``, ``grad`` or ``vmap`` nothing of this happens: the formula is traced as it stands.
"""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import align_columns, count_rows
from mercer.core.machine import available_memory, cores, in_words
from mercer.core.parameters import bare, nodes_of
from mercer.core.precision import concretely, is_traced
from mercer.kernels.distance import optimistically

# Tile sizes, and up to how many rows each is used. The largest is no power of two: a transposed copy with a stride of
# 4096 bytes is six times slower. Between, smaller tiles share out better and pad less.
TILES = {128: 128, 256: 768, 504: np.inf}


@jax.tree_util.register_pytree_node_class
class HostRows:
    """Prepared rows that only ordinary Python can look at: strings, graphs, or any object; or numbers for a function
    that JAX cannot trace. Their presence makes a whole evaluation run on the host, uncompiled."""

    def __init__(self, rows):
        self.rows = rows

    def tree_flatten(self):
        return (self.rows,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Prepared:
    """A data set as a kernel sees it, prepared once. Parameters of the kernel may change; its structure may not."""

    def __init__(self, kernel, X):
        self.kernel, self.X, self.n = kernel, X, count_rows(X)
        self.index = np.arange(self.n)
        self.rows = kernel.prepare(X, self.index)


def gram(kernel, X, Z=None, same: bool = False, out=None):
    """The matrix of k(x_i, z_j), in NumPy and double precision; traced where the caller traces.

    ``Z`` may be `Prepared`. ``same`` says that Z, when given, holds the very rows of X; otherwise they are other rows,
    whatever their values. ``out`` is a matrix to write into: fresh memory has to be paged in, which may take as long as
    the arithmetic.
    """
    same = same or Z is None
    # Rows are told apart by an index: noise is shared by a row with itself, never by two rows of equal value.
    if isinstance(Z, Prepared):
        X, n, m = align_columns(Z.X, X, kernel.needs_all_columns), count_rows(X), Z.n
        rows, columns = kernel.prepare(X, np.arange(-n, 0)), Z.rows
    else:
        Z = X if same else align_columns(X, Z, kernel.needs_all_columns)
        n, m = count_rows(X), count_rows(Z)
        rows = kernel.prepare(X, np.arange(n))
        columns = rows if same else kernel.prepare(Z, np.arange(n, n + m))
    _check_widths(rows, columns)
    if is_traced((kernel, rows, columns)):
        return kernel.block(rows, columns)
    out = allocate(n, m) if out is None else out
    fill(out, kernel, rows, columns, mirrored=same and kernel.symmetric)
    return out


def rowwise(kernel, method: str, X, compiled: bool = True):
    """A method of the kernel that gives one number or one vector per row ("block_diag", "feature_block"). X may be
    `Prepared`."""
    n = count_rows(X)
    rows = X.rows if isinstance(X, Prepared) else kernel.prepare(X, np.arange(n))
    if is_traced((kernel, rows)):
        return getattr(kernel, method)(rows)
    if n == 0 and method == "block_diag":
        return np.empty(0)
    if n == 0:
        raise DataError("X has no rows; at least one is needed.")
    host = on_host(rows) or not compiled
    kernel = bare(kernel)
    with concretely():
        size = tile_size(n)
        strips = []
        for i in range(0, n, size):
            strip = take(rows, i, min(i + size, n), None if host else size)
            result = getattr(kernel, method)(strip) if host else _strip(kernel, strip, method)
            strips.append(np.asarray(result)[: min(size, n - i)])
    out = np.concatenate(strips)
    _check_finite(out, kernel)
    return out


def as_given(result, *inputs):
    """A JAX array, of the caller's precision, if any of the inputs was one."""
    return jnp.asarray(result) if any(isinstance(X, jax.Array) for X in inputs) else result


def _strip_body(kernel, rows, method):
    return getattr(kernel, method)(rows)


def _block_body(leaves, rows, columns, structure, hopeful):
    with optimistically(hopeful):
        return jax.tree.unflatten(structure, leaves).block(rows_first(rows), rows_first(columns))


_strip = jax.jit(_strip_body, static_argnames="method")
# The program for a tile of values, from the kernel's leaves and strips of rows turned on their side.
block = jax.jit(_block_body, static_argnames=("structure", "hopeful"))


def columns_first(rows):
    """Matrices turned on their side, so that a loop over pairs reads neighbours in memory: nearly twice as fast."""
    return jax.tree.map(lambda leaf: np.ascontiguousarray(leaf.T) if np.ndim(leaf) == 2 else leaf, rows)


def rows_first(rows):
    """What `columns_first` did, undone."""
    return jax.tree.map(lambda leaf: leaf.T if np.ndim(leaf) == 2 else leaf, rows)


def fill(out, kernel, rows, columns, mirrored: bool = False):
    """Write k(x_i, z_j) of prepared rows into ``out`` (n, m); ``mirrored``, one triangle of a symmetric matrix and its
    transpose."""
    n, m = out.shape
    host = on_host((rows, columns))
    hopeful = may_hope(kernel)
    kernel = bare(kernel)
    height, width = tile_size(n), tile_size(m)
    leaves, structure = jax.tree.flatten(kernel)
    with concretely():
        if not host:
            leaves = jax.device_put(leaves)

    def tile_at(i, last_i, j, last_j):
        if host:
            tile = np.asarray(kernel.block(take(rows, i, last_i), take(columns, j, last_j)))
            _check_finite(tile, kernel)
            return tile
        sides = columns_first((take(rows, i, last_i, height), take(columns, j, last_j, width)))
        tile = np.asarray(block(leaves, *sides, structure=structure, hopeful=hopeful))[: last_i - i, : last_j - j]
        if not finite(tile):  # digits may have been lost: do it carefully
            tile = np.asarray(block(leaves, *sides, structure=structure, hopeful=False))[: last_i - i, : last_j - j]
            _check_finite(tile, kernel)
        return tile

    def work(corner):
        i, j = corner
        last_i, last_j = min(i + height, n), min(j + width, m)
        with concretely():  # the setting is per thread
            tile = tile_at(i, last_i, j, last_j)
        out[i:last_i, j:last_j] = tile
        if mirrored and i != j:
            out[j:last_j, i:last_i] = tile.T

    corners = [(i, j) for i in range(0, n, height) for j in range(0, i + 1 if mirrored else m, width)]
    if host or len(corners) == 1:
        for corner in corners:
            work(corner)
    elif corners:
        with ThreadPoolExecutor(cores() + 1) as pool:  # one more, to copy a tile while others compute
            try:
                for _ in pool.map(work, corners):
                    pass
            except BaseException:  # an error in one tile, or Ctrl-C: the others need not be done
                pool.shutdown(cancel_futures=True)
                raise


def allocate(n: int, m: int) -> np.ndarray:
    needed, there = 8 * n * m, available_memory()
    if needed > there:
        raise DataError(
            f"a Gram matrix of {n:,} by {m:,} needs {in_words(needed)}; this machine has {in_words(there)} to spare. "
            "Use fewer rows, or ask for it in pieces: kernel(X[:1000], Z)."
        )
    return np.empty((n, m))


def tile_size(n: int) -> int:
    return next(size for size, rows in TILES.items() if n <= rows)


def take(rows, start, stop, size=None):
    """Rows start:stop of every array, padded to ``size`` by repeating the last row."""
    padding = 0 if size is None else size - (stop - start)

    def part_of(array):
        part = array[start:stop]
        return np.concatenate([part, np.repeat(part[-1:], padding, axis=0)]) if padding else part

    return jax.tree.map(part_of, rows)


def some(rows, which):
    """Some of the prepared rows: a slice or indices."""
    return jax.tree.map(lambda leaf: leaf[which], rows)


def on_host(tree) -> bool:
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, HostRows))
    return any(isinstance(node, HostRows) for node in nodes)


def may_hope(kernel) -> bool:
    """Whether tiles may be tried in the hope that NaN shows where digits were lost: a formula from outside the package
    may turn NaN into a number."""
    return not any(node.runs_user_code for node in nodes_of(kernel))


def _check_widths(rows, columns):
    for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(columns), strict=True):
        if np.shape(a)[1:] != np.shape(b)[1:]:
            widths = " and ".join(str(np.shape(rows)[1:]).strip("(,)") for rows in (a, b))
            raise DataError(f"both sets of inputs must have equal width; got {widths} columns.")


def finite(values) -> bool:
    return bool(np.isfinite(values.sum()) or np.isfinite(values).all())  # the sum is quick, and seldom overflows


def _check_finite(values, kernel):
    if not finite(values):
        raise DataError(
            f"{kernel!r} is not finite at these inputs: its formula overflows, or a function in it returned NaN. "
            "Bring the inputs to a smaller scale."
        )
