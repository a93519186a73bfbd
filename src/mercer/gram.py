"""The bridge between kernels and linear algebra: a kernel and a data set make an operator for solvers."""

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core import machine
from mercer.core.coordinates import Layout, from_free, to_free
from mercer.core.errors import InfiniteFeaturesError, rows_of
from mercer.core.inputs import Inputs, Rows, align_columns, count_rows, take_rows
from mercer.core.parameters import bare
from mercer.core.precision import Array, concretely, double
from mercer.kernels import evaluate
from mercer.kernels.algebra import Nary, Sum, split_white
from mercer.kernels.base import Kernel
from mercer.kernels.composite import Unary, preparation
from mercer.kernels.constant_parts import held_leaves, hold, hold_features
from mercer.kernels.distance import fast_distances
from mercer.kernels.standard import StandardTriangle, mirror, standard_form
from mercer.kernels.structured.rows import Counts, numbered_like
from mercer.linalg.cholesky import Cholesky, factor

PIECE_ROWS = 504  # rows of a block of a Gram matrix are a multiple of it, the size of the largest tile
MAX_KEPT = 32  # number of kernels for which one data set is kept prepared


_KEPT: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # prepared data sets of posteriors and models
# Those that `keep` was given, by the identity of their inputs, for as long as an owner keeps them.
_BY_INPUTS: weakref.WeakValueDictionary[int, "Gram"] = weakref.WeakValueDictionary()


def kept(owner: object, kernel: Kernel, X: Inputs) -> "Gram":
    """Operator of ``kernel`` on X, cached for the lifetime of ``owner``; X must not be modified in place. The rows are
    not prepared again if the owner, or `keep`, has them prepared for an expression that contains this kernel."""
    sets = [found for found in _KEPT.get(owner, ()) if found.X is X]
    for found in sets:
        if found.kernel is kernel:
            return found
    shared = _BY_INPUTS.get(id(X))
    known = [*sets, *([] if shared is None else [shared])]
    new = next((found for found in known if found.covers(kernel)), None)
    new = Gram(kernel, X) if new is None else new.of(kernel)
    # One assignment of a tuple: threads that use a model at the same time may prepare twice, each for itself.
    _KEPT[owner] = (new, *sets)[:MAX_KEPT]
    return new


def keep(owner: object, prepared: "Gram") -> None:
    """Let `kept` find prepared rows for as long as ``owner`` lives. Their inputs must be a copy of the caller's, since
    prepared rows may share memory with them."""
    own = prepared.alone()
    _KEPT[owner], _BY_INPUTS[id(own.X)] = (own,), own


def together(kernels: Sequence[Kernel]) -> Kernel:
    """One expression with all of these kernels, to prepare rows for every one of them; equal structures count once."""
    distinct = {preparation(kernel): kernel for kernel in reversed(kernels)}
    return next(iter(distinct.values())) if len(distinct) == 1 else Sum(tuple(distinct.values()))


def raw(X: "Inputs | Gram") -> Inputs:
    """Inputs before preparation."""
    return X.X if isinstance(X, Gram) else X


def on(kernel: Kernel, X: "Inputs | Gram") -> "Gram":
    """Operator of the kernel on these rows. X may be prepared: then it is not prepared again, if that was for a kernel
    like this one (`Gram.of`)."""
    return X.of(kernel) if isinstance(X, Gram) else Gram(kernel, X)


def _rows_of(kernel: Kernel, known: Kernel, rows: Rows) -> Rows | None:
    """Rows prepared for ``kernel`` among those of an expression ``known`` that has all its parts, or None."""
    if preparation(kernel) == preparation(known):
        return rows
    for part, own in _inside(known, rows):
        found = _rows_of(kernel, part, own)
        if found is not None:
            return found
    if isinstance(kernel, Nary):
        parts = tuple(_rows_of(part, known, rows) for part in kernel.parts)
        return None if any(part is None for part in parts) else parts
    return _rows_of(kernel.inner, known, rows) if kernel.elementwise else None  # type: ignore[attr-defined]


def _inside(kernel: Kernel, rows: Rows) -> list[tuple[Kernel, Rows]]:
    """Parts of an elementwise function of kernels, with their rows; of one kernel, such as a multiple, it has its."""
    if isinstance(kernel, Nary):
        return list(zip(kernel.parts, rows, strict=True))
    return [(kernel.inner, rows)] if kernel.elementwise else []  # type: ignore[attr-defined]


def between(kernel: Kernel, X: "Inputs | Gram", Z: "Inputs | Gram", out: np.ndarray | None = None) -> np.ndarray:
    """Cross-covariance k(x_i, z_j). Rows of X and Z are distinct observations even if equal, so white noise adds
    nothing. X and Z may be prepared: a `Gram`."""
    return evaluate.gram(kernel, X.of(kernel) if isinstance(X, Gram) else X, Z, out=out)


def pieces(s: int, n: int) -> list[slice]:
    """Slices of s rows, each with n columns a matrix of `machine.GRAM_BYTES`, or of PIECE_ROWS rows if that is more."""
    size = max(PIECE_ROWS, machine.rows_within(machine.GRAM_BYTES, n) // PIECE_ROWS * PIECE_ROWS)
    return [slice(i, min(i + size, s)) for i in range(0, s, size)]


def by_pieces(compute: Callable[[Inputs], Any], X: Inputs, n: int) -> list[Any]:
    """What ``compute`` makes of the rows of X, in `pieces`. Errors name the row in X."""
    found = []
    for part in pieces(count_rows(X), n):
        with rows_of(part):
            found.append(compute(take_rows(X, part)))
    return found


def within(kernel: Kernel, X: "Inputs | Gram") -> np.ndarray:
    """k(x_i, x_j), a new matrix that may be overwritten. X may be prepared: a `Gram`."""
    return X.of(kernel).matrix() if isinstance(X, Gram) else evaluate.gram(kernel, X)


def diagonal(kernel: Kernel, X: "Inputs | Gram") -> np.ndarray:
    """k(x_i, x_i). X may be prepared: a `Gram`."""
    return X.of(kernel).diagonal() if isinstance(X, Gram) else evaluate.rowwise(kernel, "block_diag", X)


def distances(kernel: Kernel, X: Inputs, Z: "Inputs | Gram") -> np.ndarray:
    """|phi(x_i) - phi(z_j)|^2 = k(x, x) + k(z, z) - 2 k(x, z), accurate for close points (see `geometry`)."""
    return evaluate.gram(_Distances(kernel), X, Z)


class _Distances(Unary):
    """Squared distance in feature space where a kernel's values are expected."""

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.inner.geometry(X, Z).distance

    def __repr__(self) -> str:
        return f"the distance of {self.inner!r}"


class Gram(evaluate.Prepared):
    """Operator K = k(X, X) of a kernel and a data set that is prepared once. K is not formed, and temporary memory is
    bounded (`pieces`).

    ``gram[rows]`` is the operator on some of the rows.
    """

    def __init__(self, kernel: Kernel, X: Inputs) -> None:
        super().__init__(kernel, X)
        self._whole: tuple[Gram, np.ndarray] | None = None  # the data set that these rows are from, and their indices
        self._constants: dict[Kernel, np.ndarray] = {}
        self._known: list[np.ndarray] = []  # K, if it was computed before

    @property
    def shape(self) -> tuple[int]:
        return (self.n,)

    def __getitem__(self, which: slice | np.ndarray) -> "Gram":
        index = self.index[which]
        return self.changed(
            X=take_rows(self.X, which), rows=evaluate.some(self.rows, which), index=index, n=len(index),
            _whole=(self, np.arange(self.n)[which]), _constants={},
        )  # fmt: skip

    def changed(self, **attributes: Any) -> "Gram":
        """A copy with other attributes, without the strips and the matrix that this one keeps."""
        new = copy.copy(self)
        new.__dict__.pop("_kept_strips", None)
        new.__dict__.update({"_known": []} | attributes)
        return new

    def known(self, K: np.ndarray) -> "Gram":
        """The same operator, where K was computed before: the next call of `matrix` gives it away."""
        return self.changed(_known=[K])

    def of(self, kernel: Kernel) -> "Gram":
        """Operator of this kernel on the same rows, which are not prepared again if they are prepared for it, or for an
        expression that has all its parts (`covers`)."""
        if kernel is self.kernel:
            return self
        rows = _rows_of(kernel, self.kernel, self.rows)
        if rows is None:
            return Gram(kernel, self.X)
        whole = None if self._whole is None else (self._whole[0].of(kernel), self._whole[1])
        return self.changed(kernel=kernel, rows=rows, _whole=whole)

    def covers(self, kernel: Kernel) -> bool:
        """Whether these rows are prepared for this kernel."""
        return kernel is self.kernel or _rows_of(kernel, self.kernel, self.rows) is not None

    def alone(self) -> "Gram":
        """The operator on these rows only, without the data set that they are from."""
        return self if self._whole is None and not self._constants else self.changed(_whole=None, _constants={})

    @property
    def _calls_python(self) -> bool:
        """Whether some of its parts are evaluated pair by pair in Python, or were computed before."""
        return bool(self._constants) or evaluate.on_host(self.rows)

    def matrix(self) -> np.ndarray:
        """K, a new matrix."""
        if self._known:
            return self._known.pop()
        kernel, out = self.kernel, evaluate.allocate(self.n, self.n)
        # The numbers that learning has seen, to the last digit; or the constant parts that it has kept.
        if standard_form(kernel) is not None or (self._calls_python and self.held(kernel)[2]):
            with self.varying(repeatedly=False) as K:
                K.fill(np.asarray(to_free(kernel)), out, accurate=True, mirrored=True)
        else:
            evaluate.fill(out, kernel, self.rows, self.rows, mirrored=kernel.symmetric)
        return out

    def diagonal(self) -> np.ndarray:
        """k(x_i, x_i)."""
        if self._calls_python and not evaluate.collected(self.rows) and self.held(self.kernel)[2]:
            return np.diag(self.matrix()).copy()
        return evaluate.rowwise(self.kernel, "block_diag", self)

    def some(self, which: slice | Sequence[int] | np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Rows of K: (m, n)."""
        rows = evaluate.some(self.rows, which)
        out = np.empty((len(self.index[which]), self.n)) if out is None else out
        evaluate.fill(out, self.kernel, rows, self.rows)
        return out

    def blocks(self, Z: "Inputs | Gram") -> Iterator[tuple[slice, np.ndarray]]:
        """k(Z, X) by blocks of rows, each with its slice of Z. Blocks share one buffer, and may be overwritten. Z may
        be prepared, with its columns in the order of X."""
        Z = Z if isinstance(Z, Gram) else align_columns(self.X, Z, self.kernel.needs_all_columns)
        parts = pieces(count_rows(Z), self.n)
        memory = np.empty((max((part.stop - part.start for part in parts), default=0), self.n))
        for part in parts:
            with rows_of(part):
                K = between(self.kernel, take_rows(Z, part), self, out=memory[: part.stop - part.start])
            yield part, K

    def across(self, Z: Inputs, A: np.ndarray) -> np.ndarray:
        """k(Z, X) A: (s, ...) for A (n, ...)."""
        out = np.empty((count_rows(Z), *A.shape[1:]))
        for part, K in self.blocks(Z):
            out[part] = K @ A
        return out

    def times(self, A: np.ndarray) -> np.ndarray:
        """K A: (n, ...) for A (n, ...). One triangle of K is computed; it is kept if it fits in memory comfortably.

        Allocating memory takes longer than computing a Gaussian kernel, so keeping half a matrix pays after a few
        products.
        """
        out = np.zeros(A.shape)
        for part, strip in self._strips():
            out[part] += strip @ A[part.start :]
            out[part.stop :] += strip[:, part.stop - part.start :].T @ A[part]
        return out

    def _strips(self) -> Iterator[tuple[slice, np.ndarray]]:
        """k(x_i, x_j) for i in a slice, and j from the first row of the slice on."""
        if self._kept_strips:
            yield from self._kept_strips
            return
        parts = pieces(self.n, self.n)
        keeps, memory = 4 * self.n**2 <= machine.keepable(), None
        for part in parts:
            shape = part.stop - part.start, self.n - part.start
            if keeps or memory is None:
                memory = np.empty(shape[0] * shape[1])
            strip = memory[: shape[0] * shape[1]].reshape(shape)
            columns = evaluate.some(self.rows, slice(part.start, self.n))
            evaluate.fill(strip, self.kernel, evaluate.some(self.rows, part), columns)
            if keeps:
                self._kept_strips.append((part, strip))
            yield part, strip

    @functools.cached_property
    def _kept_strips(self) -> list[tuple[slice, np.ndarray]]:
        return []

    # -- parameters --------------------------------------------------------------------------------------------------

    def varying(self, repeatedly: bool = True, compiled: bool = False) -> "Varying":
        """K(theta) on these rows, for many values of theta; ``repeatedly=False``: for one. ``compiled``: by the
        kernel's compiled program, also where a faster formula differs from it in the last digits."""
        form = None if compiled else standard_form(self.kernel)
        return Triangle(self) if form is None else StandardTriangle(self.kernel, form, self.X, keeps=repeatedly)

    def contract(self, U: np.ndarray, V: np.ndarray | None = None) -> np.ndarray:
        """sum_k u_k^T (dK/dtheta) v_k for the columns of U and V (n, m), or of U alone, in the free parameters of the
        kernel: (p,). No (n, n) matrix is formed."""
        U = np.reshape(U, (self.n, -1))
        with self.varying(repeatedly=False) as K:
            return K.contract(np.asarray(to_free(self.kernel)), Products(U, U if V is None else V), np.zeros(self.n))

    def feature_map(self, like: "Gram | None" = None) -> "Features":
        """Phi(theta) on these rows, for many values of theta; ``like`` as in `features`."""
        return Features(self, like)

    # -- parts without free parameters -------------------------------------------------------------------------------

    def held(self, kernel: Kernel) -> tuple[Kernel, Rows, list[np.ndarray]]:
        """Expression with its constant parts replaced by `Held`, its rows, and the matrices of those parts, which are
        computed once for the whole data set, for all its subsets and all values of the other parameters."""
        expression, rows, parts = hold(kernel, self.rows, self.index)
        whole = self if self._whole is None else self._whole[0]
        if not parts or 8 * whole.n**2 * len(parts) > machine.keepable():
            return kernel, self.rows, []
        return expression, rows, [self._constant(part, part_rows) for part, part_rows in parts]

    def _constant(self, part: Kernel, rows: Rows) -> np.ndarray:
        if part not in self._constants:
            if self._whole is not None:
                whole, which = self._whole
                own = next(theirs for same, theirs in hold(whole.kernel, whole.rows, whole.index)[2] if same == part)
                found = whole._constant(part, own)[np.ix_(which, which)]
            else:
                found = evaluate.allocate(self.n, self.n)
                if evaluate.on_host(rows) and not evaluate.collected(rows):  # each pair once
                    for i in range(self.n):
                        evaluate.fill(
                            found[i : i + 1, i:], part, evaluate.some(rows, slice(i, i + 1)),
                            evaluate.some(rows, slice(i, self.n)),
                        )  # fmt: skip
                        found[i:, i] = found[i, i:]
                else:
                    evaluate.fill(found, part, rows, rows, mirrored=True)
            self._constants[part] = found
        return self._constants[part]


def covariance(kernel: Kernel, X: "Inputs | Gram", noise: float | np.ndarray) -> np.ndarray:
    """C = K + diag(noise) (PRML 6.62)."""
    C = within(kernel, X)
    C[np.diag_indices_from(C)] += noise
    return C


def factored(kernel: Kernel, X: "Inputs | Gram", noise: float | np.ndarray) -> Cholesky:
    """Cholesky factor of K + diag(noise)."""
    return factor(covariance(kernel, X, noise))


# -- one set of rows, many parameter values ------------------------------------------------------------------------


class Varying(Protocol):
    """K(theta) on fixed rows, for many values of theta (`Gram.varying`). Use it in a ``with`` block: it has threads."""

    layout: Layout

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def fill(self, theta: np.ndarray, out: np.ndarray, accurate: bool = False, mirrored: bool = False) -> None:
        """Write K into the upper triangle of a C-ordered ``out`` (n, n). The rest is undefined, unless ``mirrored``: K.

        NaN marks where fast distances lost digits; ``accurate`` ones have them all.
        """

    def contract(self, theta: np.ndarray, inverse: Any, a: np.ndarray) -> np.ndarray:
        """sum_ij (a_i a_j - inverse_ij) dK_ij/dtheta, over both triangles: (p,). Reads the upper triangle of
        ``inverse``, by slices."""

    def at(self, theta: np.ndarray, single: bool = False) -> "Operator":
        """K(theta) for products with it; ``single``: in single precision, from distances in double precision."""


class Operator(Protocol):
    """K at one theta, never formed: its triangle is computed in tiles for every product, or kept if it fits in memory
    comfortably."""

    def times(self, A: np.ndarray) -> np.ndarray:
        """K A: (n, m) for A (n, m)."""

    @property
    def white(self) -> float:
        """Variance of the white noise in K."""

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Rows of K without its white noise: (m, n)."""

    def diagonal(self) -> np.ndarray:
        """Diagonal of K without its white noise: (n,)."""


class Products:
    """-(U V^T + V U^T) / 2, of which `Varying.contract` asks for parts."""

    def __init__(self, U: np.ndarray, V: np.ndarray) -> None:
        self.U, self.V = U, np.reshape(V, U.shape)

    def __getitem__(self, which: tuple[slice, slice]) -> np.ndarray:
        i, j = which
        return -0.5 * (self.U[i] @ self.V[j].T + self.V[i] @ self.U[j].T)

    def diagonal(self) -> np.ndarray:
        return -np.einsum("ij,ij->i", self.U, self.V)


class Triangle:
    """`Varying` by the compiled program of any kernel.

    Rows are split into padded strips and passed to JAX once. ``contract`` forms no derivative matrix: O(n^2) time and a
    few tiles of memory for any number of parameters. Programs are cached by kernel structure and tile size, so another
    number of rows needs no compilation.
    """

    def __init__(self, prepared: Gram) -> None:
        kernel, rows, self._held = prepared.held(prepared.kernel)
        self.layout = Layout.of(kernel)
        n = self.n = prepared.n
        self._held_leaves = held_leaves(self.layout.structure) if self._held else {}
        self._held_tiles: dict[tuple[int, int], list[Any]] = {}
        self._host = evaluate.on_host(rows)
        self._fast = evaluate.allows_fast_distances(kernel)
        self._kernel = kernel
        size = n if self._host else evaluate.tile_size(n)
        starts = range(0, n, size)
        with concretely():
            self._leaves = jax.tree.leaves(bare(kernel))
            self._strips = [evaluate.columns_first(evaluate.take(rows, i, min(i + size, n), size)) for i in starts]
            if not self._host:
                self._leaves, self._strips = jax.device_put((self._leaves, self._strips))
        self._corners = [(i, j) for i in range(len(starts)) for j in range(i, len(starts))]
        self._size, self._prepared = size, prepared
        self._pool: ThreadPoolExecutor | None = None
        self._local = threading.local()

    def __enter__(self) -> "Triangle":
        if len(self._corners) > 1:
            self._pool = ThreadPoolExecutor(machine.cores() + 1)  # one more, to copy a tile while the others compute
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def fill(self, theta: np.ndarray, out: np.ndarray, accurate: bool = False, mirrored: bool = False) -> None:
        leaves, fast = self.layout.leaves_at(theta, self._leaves), self._fast and not accurate

        def work(corner: tuple[int, int]) -> None:
            sides, own = [self._strips[side] for side in corner], self._with_held(leaves, corner)
            with concretely():  # precision is a setting of each thread
                if self._host:
                    kernel = jax.tree.unflatten(self.layout.structure, own)
                    tile = np.asarray(kernel.block(*map(evaluate.rows_first, sides)))
                else:
                    tile = np.asarray(evaluate.block(own, *sides, structure=self.layout.structure, fast=fast))
            (i, last_i), (j, last_j) = map(self._span, corner)
            out[i:last_i, j:last_j] = tile[: last_i - i, : last_j - j]
            if mirrored:
                mirror(out, slice(i, last_i), slice(j, last_j))

        self._each(work)

    def at(self, theta: np.ndarray, single: bool = False) -> "TiledOperator":
        return TiledOperator(self, theta, single)

    def tile(self, leaves: list[Any], corner: tuple[int, int]) -> np.ndarray:
        """A tile of K, without its padding, from the leaves of the kernel."""
        sides, own = [self._strips[side] for side in corner], self._with_held(leaves, corner)
        (i, last_i), (j, last_j) = map(self._span, corner)
        for fast in (self._fast, False):  # NaN marks where fast distances lost digits
            with concretely():
                tile = np.asarray(evaluate.block(own, *sides, structure=self.layout.structure, fast=fast))
            tile = tile[: last_i - i, : last_j - j]
            if evaluate.finite(tile):
                break
        return tile

    def contract(self, theta: np.ndarray, inverse: Any, a: np.ndarray) -> np.ndarray:
        def work(corner: tuple[int, int]) -> np.ndarray:
            (i, last_i), (j, last_j) = map(self._span, corner)
            part = self._buffer()
            part[: last_i - i, : last_j - j] = inverse[i:last_i, j:last_j]
            part[:, last_j - j :] = 0.0
            part[last_i - i :] = 0.0
            weights = part, _padded(a[i:last_i], self._size), _padded(a[j:last_j], self._size), i, j
            gradient = self._pull(theta, corner, weights, self._fast)
            if not np.isfinite(gradient).all():
                gradient = self._pull(theta, corner, weights, fast=False)
            return gradient

        return sum(self._each(work), np.zeros(self.layout.size))

    def _with_held(self, leaves: list[Any], corner: tuple[int, int]) -> list[Any]:
        """``leaves`` with the tiles of the constant parts."""
        if not self._held:
            return leaves
        leaves = list(leaves)
        if corner not in self._held_tiles:  # padded, and given to JAX, once
            (i, last_i), (j, last_j) = map(self._span, corner)
            tiles = [np.zeros((self._size, self._size)) for _ in self._held]
            for tile, K in zip(tiles, self._held, strict=True):
                tile[: last_i - i, : last_j - j] = K[i:last_i, j:last_j]
            with concretely():
                self._held_tiles[corner] = tiles if self._host else jax.device_put(tiles)
        for number, leaf in self._held_leaves.items():
            leaves[leaf] = self._held_tiles[corner][number]
        return leaves

    def _buffer(self) -> np.ndarray:
        """Tile of memory of this thread: a new one would have to be paged in every time."""
        if not hasattr(self._local, "buffer"):
            self._local.buffer = _aligned(self._size)
        return self._local.buffer

    def _span(self, k: int) -> tuple[int, int]:
        return k * self._size, min((k + 1) * self._size, self.n)

    def _each(self, work: Callable[[tuple[int, int]], Any]) -> list[Any]:
        return list((map if self._pool is None else self._pool.map)(work, self._corners))

    def _pull(self, theta: np.ndarray, corner: tuple[int, int], weights: tuple[Any, ...], fast: bool) -> np.ndarray:
        program = _gradient_program(self.layout, fast, not self._host)
        i, j = corner
        with concretely() if self._host else double():
            leaves = self._with_held(self._leaves, corner)
            return np.asarray(program(theta, leaves, self._strips[i], self._strips[j], *weights))


class TiledOperator:
    """`Operator` by the compiled program of any kernel of numbers. The `Triangle` must be in use."""

    def __init__(self, of: Triangle, theta: np.ndarray, single: bool) -> None:
        self._of, self._type = of, np.dtype(np.float32 if single else np.float64)
        self._theta, self._leaves = theta, of.layout.leaves_at(theta, of._leaves)
        keeps = self._type.itemsize * of.n**2 / 2 <= machine.keepable()
        self._tiles: dict[tuple[int, int], np.ndarray] | None = {} if keeps else None

    def _tile(self, corner: tuple[int, int]) -> np.ndarray:
        if self._tiles is None:
            return self._of.tile(self._leaves, corner).astype(self._type)
        if corner not in self._tiles:
            self._tiles[corner] = self._of.tile(self._leaves, corner).astype(self._type)
        return self._tiles[corner]

    def times(self, A: np.ndarray) -> np.ndarray:
        A, corners = A.astype(self._type), self._of._corners
        groups = min(machine.cores(), len(corners))

        def work(first: int) -> np.ndarray:  # sums in an order that does not depend on the threads
            out = np.zeros(A.shape)
            for corner in corners[first::groups]:
                tile = self._tile(corner)
                rows, columns = (slice(*self._of._span(k)) for k in corner)
                out[rows] += tile @ A[columns]
                if corner[0] != corner[1]:
                    out[columns] += tile.T @ A[rows]
            return out

        with machine.one_thread():
            found = (map if self._of._pool is None else self._of._pool.map)(work, range(groups))
            return sum(found, np.zeros(A.shape))

    @functools.cached_property
    def _latent(self) -> tuple[Gram | None, float]:
        """The data without white noise in the kernel, and its variance."""
        latent, white = split_white(from_free(self._of._prepared.kernel, self._theta))
        return None if latent is None else self._of._prepared.of(latent), float(white)

    @property
    def white(self) -> float:
        return self._latent[1]

    def rows(self, index: np.ndarray) -> np.ndarray:
        latent = self._latent[0]
        return np.zeros((len(index), self._of.n)) if latent is None else latent.some(index)

    def diagonal(self) -> np.ndarray:
        latent = self._latent[0]
        return np.zeros(self._of.n) if latent is None else latent.diagonal()


@functools.lru_cache(maxsize=256)
def _gradient_program(layout: Layout, fast: bool, compiled: bool) -> Callable:
    """Program for the contribution of one tile to the gradient."""

    def pull(
        theta: Array, leaves: list[Any], rows: Rows, columns: Rows, inverse: Array, a: Array, b: Array, i: int, j: int
    ) -> jax.Array:
        # Entries above the diagonal count twice, for both triangles.
        order = (j + jnp.arange(b.size))[None, :] - (i + jnp.arange(a.size))[:, None]
        weights = (a[:, None] * b[None, :] - inverse) * jnp.where(order > 0, 2.0, jnp.where(order == 0, 1.0, 0.0))
        rows, columns = evaluate.rows_first((rows, columns))

        def total(theta: Array) -> jax.Array:
            with fast_distances(fast):
                return jnp.vdot(weights, layout.tree(theta, leaves).block(rows, columns))

        # In the padding of a tile a = 0 and inverse = 0.
        return jax.grad(total)(theta)

    return jax.jit(pull) if compiled else pull


def _aligned(size: int) -> np.ndarray:
    """Square matrix at an address that JAX reads from directly, without a copy."""
    memory = np.empty(8 * size * size + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 8 * size * size].view(np.float64).reshape(size, size)


def _padded(a: np.ndarray, size: int) -> np.ndarray:
    return a if len(a) == size else np.concatenate([a, np.zeros(size - len(a))])


class FirstRow:
    """k(x_1, x_j) for the rows of X, for many values of theta: of a stationary kernel at equal steps, all there is.

    Rows are distinct observations even if equal, so white noise adds nothing, as in `between`.
    """

    def __init__(self, kernel: Kernel, X: Inputs) -> None:
        self.n, self.layout = count_rows(X), Layout.of(kernel)
        size = self._size = evaluate.tile_size(self.n)
        rows, first = kernel.prepare(X, np.arange(self.n)), kernel.prepare(take_rows(X, slice(0, 1)), np.arange(-1, 0))
        self._host = evaluate.on_host(rows)
        with concretely():
            self._leaves, self._first = jax.tree.leaves(bare(kernel)), first
            self._strips = [evaluate.take(rows, i, min(i + size, self.n), size) for i in range(0, self.n, size)]

    def fill(self, theta: np.ndarray) -> np.ndarray:
        """(n,)."""
        program = _row_programs(self.layout, not self._host)[0]
        with concretely():
            found = [np.asarray(program(theta, self._leaves, self._first, strip)) for strip in self._strips]
        return np.concatenate(found)[: self.n]

    def contract(self, theta: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """sum_j weights_j dk(x_1, x_j)/dtheta: (p,)."""
        program, total = _row_programs(self.layout, not self._host)[1], np.zeros(self.layout.size)
        with concretely():
            for i, strip in enumerate(self._strips):
                part = _padded(weights[i * self._size : (i + 1) * self._size], self._size)
                total += np.asarray(program(theta, self._leaves, self._first, strip, part))
        return total


@functools.lru_cache(maxsize=256)
def _row_programs(layout: Layout, compiled: bool) -> tuple[Callable, Callable]:
    def values(theta: Array, leaves: list[Any], first: Rows, rows: Rows) -> jax.Array:
        return layout.tree(theta, leaves).block(first, rows)[0]

    def pull(theta: Array, leaves: list[Any], first: Rows, rows: Rows, weights: Array) -> jax.Array:
        return jax.grad(lambda theta: jnp.vdot(weights, values(theta, leaves, first, rows)))(theta)

    return (jax.jit(values), jax.jit(pull)) if compiled else (values, pull)


# -- explicit features -----------------------------------------------------------------------------------------------


def count_features(kernel: Kernel, X: "Inputs | Gram") -> int | None:
    """Number of features of the kernel on these inputs; None if infinite."""
    rows = on(kernel, X).rows
    first = evaluate.take(rows, 0, 1)
    try:
        if evaluate.on_host(rows):
            with concretely():
                return kernel.feature_block(first).shape[1]
        with double():
            return jax.eval_shape(kernel.feature_block, first).shape[1]
    except InfiniteFeaturesError:
        return None


def features(kernel: Kernel, X: "Inputs | Gram", like: "Gram | None" = None) -> np.ndarray:
    """Phi (n, M) with Phi Phi^T = K. M does not depend on the values of parameters. ``like``: a data set that numbers
    the features of kernels on objects; other features are left out (`unseen`)."""
    with on(kernel, X).feature_map(like) as phi:
        return phi.fill(np.asarray(to_free(kernel)))


def grows(rows: Rows) -> bool:
    """Whether new rows may have features that these prepared rows do not have, such as words."""
    return any(isinstance(leaf, Counts) for leaf in jax.tree.leaves(rows))


def unseen(kernel: Kernel, Z: Inputs, like: "Gram", whole: bool = False) -> np.ndarray | float:
    """Prior variance of new rows from features that a data set does not have: (s,), or as a ``whole`` covariance
    (s, s). Zero where features are the same for all data."""
    if not grows(like.rows):
        return 0.0
    everything = Gram(kernel, Z)
    known = features(kernel, everything, like)
    if whole:
        return everything.matrix() - known @ known.T
    return np.maximum(everything.diagonal() - np.einsum("ij,ij->i", known, known), 0.0)


class Features:
    """Phi(theta) on fixed rows, for many values of theta: the counterpart of `Varying` (`Gram.feature_map`)."""

    def __init__(self, prepared: Gram, like: Gram | None = None) -> None:
        n, kernel, rows = prepared.n, prepared.kernel, prepared.rows
        self.n = n
        if like is not None:
            rows = numbered_like(rows, like.rows)
        if evaluate.collected(rows):
            with concretely():
                kernel, rows = hold_features(kernel, rows)
        self.layout = Layout.of(kernel)
        self._host = evaluate.on_host(rows)
        size = self._size = n if self._host else evaluate.tile_size(n)
        with concretely():
            self._strips = [
                evaluate.columns_first(evaluate.take(rows, i, min(i + size, n), size)) for i in range(0, n, size)
            ]
            self._leaves = jax.tree.leaves(bare(kernel))
            if not self._host:
                self._leaves, self._strips = jax.device_put((self._leaves, self._strips))

    def __enter__(self) -> "Features":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fill(self, theta: np.ndarray) -> np.ndarray:
        """Phi (n, M)."""
        program = _feature_programs(self.layout, not self._host)["features"]
        with concretely():
            return np.concatenate([np.asarray(program(theta, self._leaves, strip)) for strip in self._strips])[: self.n]

    def contract(self, theta: np.ndarray, G: np.ndarray) -> np.ndarray:
        """sum_ij G_ij dPhi_ij/dtheta: (p,)."""
        program, total = _feature_programs(self.layout, not self._host)["pull"], np.zeros(self.layout.size)
        padded = np.zeros((len(self._strips) * self._size, G.shape[1]))
        padded[: self.n] = G
        with concretely():
            for strip, part in zip(self._strips, np.split(padded, len(self._strips)), strict=True):
                total += np.asarray(program(theta, self._leaves, strip, part))
        return total


@functools.lru_cache(maxsize=256)
def _feature_programs(layout: Layout, compiled: bool) -> dict[str, Callable]:
    def features(theta: Array, leaves: list[Any], rows: Rows) -> jax.Array:
        return layout.tree(theta, leaves).feature_block(evaluate.rows_first(rows))

    def pull(theta: Array, leaves: list[Any], rows: Rows, G: Array) -> jax.Array:
        return jax.grad(lambda theta: jnp.vdot(G, features(theta, leaves, rows)))(theta)

    return {"features": jax.jit(features), "pull": jax.jit(pull)} if compiled else {"features": features, "pull": pull}


# -- derivatives in the inputs ---------------------------------------------------------------------------------------


def slope(kernel: Kernel, Z: np.ndarray, X: "Inputs | Gram", weights: np.ndarray) -> np.ndarray:
    """sum_j weights_ij dk(z_i, x_j)/dz_i: (s, d), for a matrix Z of numbers. X may be prepared: a `Gram`."""
    s, n = weights.shape
    if s == 0:
        return np.zeros(Z.shape)
    columns = X.rows if isinstance(X, Gram) else kernel.prepare(X, np.arange(n))
    height, width = evaluate.tile_size(s), evaluate.tile_size(n)
    out = np.zeros(Z.shape)
    with concretely():
        leaves = jax.tree.leaves(bare(kernel))
        program = _slope_programs(Layout.of(kernel.fix()))
        for i in range(0, s, height):
            last_i = min(i + height, s)
            rows, index = evaluate.take((Z, np.arange(-s, 0)), i, last_i, height)
            for j in range(0, n, width):
                last_j = min(j + width, n)
                W = np.zeros((height, width))
                W[: last_i - i, : last_j - j] = weights[i:last_i, j:last_j]
                tile = program[0](leaves, rows, index, evaluate.take(columns, j, last_j, width), W)
                out[i:last_i] += np.asarray(tile)[: last_i - i]
    return out


def diagonal_slope(kernel: Kernel, Z: np.ndarray) -> np.ndarray:
    """dk(z_i, z_i)/dz_i, both arguments moving together: (s, d)."""
    return _slope_by_strips(kernel, 1, Z)


def feature_slope(kernel: Kernel, Z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """sum_j weights_ij dphi_j(z_i)/dz_i: (s, d)."""
    return _slope_by_strips(kernel, 2, Z, np.asarray(weights))


def slopes(kernel: Kernel, Z: np.ndarray, X: np.ndarray) -> np.ndarray:
    """dk(z_i, x_j)/dz_i: (s, n, d)."""
    return _each_slope(kernel, 0, Z, X)


def cross_slopes(kernel: Kernel, Z: np.ndarray) -> np.ndarray:
    """d^2 k(z, z')/dz dz' at z' = z = z_i: (s, d, d), the prior covariance of the gradient of a function."""
    return _each_slope(kernel, 1, Z)


def _each_slope(kernel: Kernel, which: int, Z: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """In strips padded to the size of a tile, so that another number of rows needs no compilation."""
    size = min(evaluate.TILES)
    out = []
    with concretely():
        leaves = jax.tree.leaves(bare(kernel))
        program = _each_slope_programs(Layout.of(kernel.fix()))[which]
        for i in range(0, len(Z), size):
            strip = evaluate.take(Z, i, min(i + size, len(Z)), size)
            if not others:
                out.append(np.asarray(program(leaves, strip))[: len(Z) - i])
                continue
            parts = []
            for j in range(0, len(others[0]), size):
                columns = evaluate.take(others[0], j, min(j + size, len(others[0])), size)
                parts.append(np.asarray(program(leaves, strip, columns))[: len(Z) - i, : len(others[0]) - j])
            out.append(np.concatenate(parts, axis=1))
    return np.concatenate(out)


@functools.lru_cache(maxsize=256)
def _each_slope_programs(layout: Layout) -> tuple[Callable, Callable]:
    def value(leaves: list[Any], z: Array, x: Array) -> jax.Array:
        kernel = jax.tree.unflatten(layout.structure, leaves)
        rows = [kernel.prepare(row[None], np.array([i])) for i, row in enumerate((z, x))]
        return kernel.block(*rows)[0, 0]

    one = jax.grad(value, argnums=1)
    both = jax.jacfwd(one, argnums=2)
    of_pairs = jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, None))
    at_same = jax.vmap(lambda leaves, z: both(leaves, z, z), (None, 0))
    return jax.jit(of_pairs), jax.jit(at_same)


def _slope_by_strips(kernel: Kernel, which: int, Z: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    s, out = len(Z), np.zeros(Z.shape)
    size = evaluate.tile_size(s)
    with concretely():
        leaves = jax.tree.leaves(bare(kernel))
        program = _slope_programs(Layout.of(kernel.fix()))[which]
        for i in range(0, s, size):
            last = min(i + size, s)
            strip = evaluate.take((Z, np.arange(s), *weights), i, last, size)
            out[i:last] = np.asarray(program(leaves, *strip))[: last - i]
    return out


@functools.lru_cache(maxsize=256)
def _slope_programs(layout: Layout) -> tuple[Callable, ...]:
    def of_block(leaves: list[Any], Z: Array, index: Array, columns: Rows, weights: Array) -> jax.Array:
        def total(Z: Array) -> jax.Array:
            kernel = jax.tree.unflatten(layout.structure, leaves)
            return jnp.vdot(weights, kernel.block(kernel.prepare(Z, index), columns))

        return jax.grad(total)(Z)

    def of_diagonal(leaves: list[Any], Z: Array, index: Array) -> jax.Array:
        def total(Z: Array) -> jax.Array:
            kernel = jax.tree.unflatten(layout.structure, leaves)
            return jnp.sum(kernel.block_diag(kernel.prepare(Z, index)))

        return jax.grad(total)(Z)

    def of_features(leaves: list[Any], Z: Array, index: Array, weights: Array) -> jax.Array:
        def total(Z: Array) -> jax.Array:
            kernel = jax.tree.unflatten(layout.structure, leaves)
            return jnp.vdot(weights, kernel.feature_block(kernel.prepare(Z, index)))

        return jax.grad(total)(Z)

    return jax.jit(of_block), jax.jit(of_diagonal), jax.jit(of_features)
