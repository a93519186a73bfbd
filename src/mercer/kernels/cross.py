"""A kernel between many rows and a few centres, for many values of its parameters: values and derivatives, by tiles.

`cross` takes the formulas of `standard_cross` where they apply, the compiled program elsewhere. For it, rows are
split into tiles of one padded size, so a new number of rows needs no compilation. What is done with a tile is the
caller's; tiles may be evaluated from several threads.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.coordinates import Layout
from mercer.core.inputs import Inputs, Rows, count_rows, take_rows
from mercer.core.machine import keepable
from mercer.core.parameters import bare
from mercer.core.precision import Array, concretely, double
from mercer.kernels import evaluate
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.kernels.constant_parts import held_leaves, hold
from mercer.kernels.standard import standard_form
from mercer.kernels.standard_cross import StandardCross, StandardCrossAt


def cross(kernel: Kernel, X: Inputs, rows: Rows, centers: Inputs) -> "Cross | StandardCross":
    """The kernel between these inputs, also as prepared for it, and centres."""
    form = standard_form(kernel)
    return Cross(kernel, rows, centers) if form is None else StandardCross(kernel, form, X, centers)


class Cross:
    """k(X, Z; theta) for prepared rows X and centres Z, as distinct observations: without white noise."""

    def __init__(self, kernel: Kernel, rows: Rows, centers: Inputs) -> None:
        m = self.m = count_rows(centers)
        n = self.n = len(jax.tree.leaves(rows)[0])
        # Indices of their own, so that no row is taken for a centre, and no centre for itself.
        columns, others = (kernel.prepare(centers, np.arange(-k * m, -(k - 1) * m)) for k in (1, 2))
        self._vectors = centers if isinstance(centers, np.ndarray) and centers.dtype.kind == "f" else None
        # Of white noise, one centre is enough: paired with itself, and with an equal one.
        self._white: tuple[Layout, list[Any], bool, list[Rows]] | None = None
        if split_white(kernel)[1] > 0:
            pair = [kernel.prepare(take_rows(centers, slice(0, 1)), np.array([-3 * m - i])) for i in (1, 2)]
            with concretely():
                own = Layout.of(kernel), jax.tree.leaves(bare(kernel))
            self._white = (*own, evaluate.on_host(rows), pair)
        self._held: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        if evaluate.on_host(rows):
            kernel, rows, columns, others = self._hold(kernel, rows, columns, others)
        self.layout = Layout.of(kernel)
        self._held_leaves = held_leaves(self.layout.structure) if self._held else {}
        self.host = evaluate.on_host(rows)
        self._fast = evaluate.allows_fast_distances(kernel)
        self._height, self._width = evaluate.tile_size(n), evaluate.tile_size(m)
        size = None if self.host else self._height
        with concretely():
            self._leaves = jax.tree.leaves(bare(kernel))
            cut = lambda rows, n, step, size: [
                evaluate.columns_first(evaluate.take(rows, i, min(i + step, n), size)) for i in range(0, n, step)
            ]
            self._strips = cut(rows, n, self._height, size)
            across = None if self.host else self._width
            self._columns, self._others = (cut(rows, m, self._width, across) for rows in (columns, others))
            if not self.host:
                self._leaves, self._columns, self._others = jax.device_put((self._leaves, self._columns, self._others))

    def _hold(self, kernel: Kernel, rows: Rows, columns: Rows, others: Rows) -> tuple[Kernel, Rows, Rows, Rows]:
        """Parts on objects without free parameters are computed once, if there is memory for them."""
        index = [np.zeros(k) for k in (self.n, self.m, self.m)]
        expression, left, parts = hold(kernel, rows, index[0])
        if not parts or 8 * self.n * self.m * len(parts) > keepable():
            return kernel, rows, columns, others
        _, right, of_columns = hold(kernel, columns, index[1])
        _, rest, of_others = hold(kernel, others, index[2])
        for (part, own), (_, there), (_, again) in zip(parts, of_columns, of_others, strict=True):
            across, among = np.empty((self.n, self.m)), np.empty((self.m, self.m))
            evaluate.fill(across, part, own, there)
            evaluate.fill(among, part, there, again)
            with concretely():
                diagonal = np.broadcast_to(np.asarray(part.block_diag(own)), (self.n,))
            self._held.append((across, among, diagonal))
        return expression, left, right, rest

    @property
    def tiles(self) -> list[slice]:
        """Rows of each tile."""
        return [slice(i, min(i + self._height, self.n)) for i in range(0, self.n, self._height)]

    def at(self, theta: np.ndarray) -> "CrossAt":
        return CrossAt(self, np.asarray(theta, dtype=float))

    def _with_held(self, leaves: list[Any], which: int, rows: slice, columns: slice | None) -> list[Any]:
        """``leaves`` with values of the parts held, padded to the size of a tile."""
        if not self._held:
            return leaves
        leaves = list(leaves)
        for number, leaf in self._held_leaves.items():
            found = self._held[number][which]
            if columns is None:
                leaves[leaf] = np.pad(found[rows], (0, self._height - (rows.stop - rows.start)))
                continue
            tile = found[rows, columns]
            height = self._height if which == 0 else self._width
            leaves[leaf] = np.pad(tile, ((0, height - tile.shape[0]), (0, self._width - tile.shape[1])))
        return leaves

    def _spans(self) -> list[slice]:
        return [slice(i, min(i + self._width, self.m)) for i in range(0, self.m, self._width)]


class CrossAt:
    """The same at one theta."""

    def __init__(self, cross: Cross, theta: np.ndarray) -> None:
        self.cross, self.theta = cross, theta
        with concretely(), np.errstate(all="ignore"):
            self._leaves = cross.layout.leaves_at(theta, cross._leaves)

    @property
    def size(self) -> int:
        return self.cross.layout.size

    def _block(self, rows: Rows, columns: Rows, leaves: list[Any], fast: bool) -> np.ndarray:
        structure = self.cross.layout.structure
        if self.cross.host:
            kernel = jax.tree.unflatten(structure, leaves)
            return np.asarray(kernel.block(evaluate.rows_first(rows), evaluate.rows_first(columns)))
        return np.asarray(evaluate.block(leaves, rows, columns, structure=structure, fast=fast))

    def _filled(self, which: int, rows: Rows, part: slice, columns: list[Rows], out: np.ndarray) -> bool:
        cross = self.cross
        with concretely():
            for strip, span in zip(columns, cross._spans(), strict=True):
                leaves = cross._with_held(self._leaves, which, part, span)
                shape = part.stop - part.start, span.stop - span.start
                tile = self._block(rows, strip, leaves, cross._fast)[: shape[0], : shape[1]]
                if cross._fast and not evaluate.finite(tile):
                    tile = self._block(rows, strip, leaves, False)[: shape[0], : shape[1]]
                out[:, span] = tile
        return evaluate.finite(out)

    def fill(self, tile: int, out: np.ndarray) -> bool:
        """Write k(x_i, z_j) of a tile into ``out`` (h, m); whether all are finite."""
        return self._filled(0, self.cross._strips[tile], self.cross.tiles[tile], self.cross._columns, out)

    def core(self) -> np.ndarray:
        """k(z_i, z_j): (m, m)."""
        out = np.empty((self.cross.m, self.cross.m))
        for part, rows in zip(self.cross._spans(), self.cross._columns, strict=True):
            self._filled(1, rows, part, self.cross._others, out[part])
        return np.tril(out) + np.tril(out, -1).T  # symmetric to the last digit

    def diagonal(self, tile: int) -> np.ndarray:
        """k(x_i, x_i) of a tile, white noise included: (h,)."""
        cross, part = self.cross, self.cross.tiles[tile]
        program = _programs(cross.layout, True, not cross.host)["diagonal"]
        with concretely():
            leaves = cross._with_held(cross._leaves, 2, part, None)
            found = np.asarray(program(self.theta, leaves, cross._strips[tile]))
        return np.broadcast_to(found, (max(len(np.atleast_1d(found)), 1),))[: part.stop - part.start]

    def white(self) -> tuple[float, np.ndarray]:
        """Variance of the white noise in the kernel, and its derivatives in theta."""
        if self.cross._white is None:
            return 0.0, np.zeros(self.size)
        layout, leaves, host, pair = self.cross._white
        with concretely() if host else double():
            value, slope = _programs(layout, True, not host)["white"](self.theta, leaves, *pair)
        return float(value), np.asarray(slope)

    # -- derivatives -------------------------------------------------------------------------------------------------

    def _pull(self, which: int, rows: Rows, part: slice, columns: list[Rows], G: np.ndarray) -> np.ndarray:
        cross, total = self.cross, np.zeros(self.size)
        if not self.size:
            return total
        height = cross._height if which == 0 else cross._width
        with concretely() if cross.host else double():
            for strip, span in zip(columns, cross._spans(), strict=True):
                leaves = cross._with_held(cross._leaves, which, part, span)
                W = G[:, span]
                if not cross.host:
                    W = np.pad(W, ((0, height - W.shape[0]), (0, cross._width - W.shape[1])))
                found = np.asarray(self._gradient(cross._fast)(self.theta, leaves, rows, strip, W))
                if cross._fast and not np.isfinite(found).all():
                    found = np.asarray(self._gradient(False)(self.theta, leaves, rows, strip, W))
                total += found
        return total

    def _gradient(self, fast: bool) -> Callable:
        return _programs(self.cross.layout, fast, not self.cross.host)["block"]

    def pull(self, tile: int, G: np.ndarray) -> np.ndarray:
        """sum_ij G_ij dk(x_i, z_j)/dtheta over a tile: (p,)."""
        return self._pull(0, self.cross._strips[tile], self.cross.tiles[tile], self.cross._columns, G)

    def pull_core(self, G: np.ndarray) -> np.ndarray:
        """sum_ij G_ij dk(z_i, z_j)/dtheta: (p,)."""
        cross = self.cross
        parts = zip(cross._columns, cross._spans(), strict=True)
        found = [self._pull(1, rows, part, cross._others, G[part]) for rows, part in parts]
        return np.sum(found, axis=0) if found else np.zeros(self.size)

    def pull_diagonal(self, tile: int, weights: np.ndarray) -> np.ndarray:
        """sum_i weights_i dk(x_i, x_i)/dtheta over a tile: (p,)."""
        cross, part = self.cross, self.cross.tiles[tile]
        if not self.size:
            return np.zeros(0)
        program = _programs(cross.layout, True, not cross.host)["of diagonal"]
        if not cross.host:
            weights = np.pad(weights, (0, cross._height - len(weights)))
        with concretely() if cross.host else double():
            leaves = cross._with_held(cross._leaves, 2, part, None)
            return np.asarray(program(self.theta, leaves, cross._strips[tile], weights))

    def pull_centers(self, tile: int | None, G: np.ndarray) -> np.ndarray:
        """sum_i G_ij dk(x_i, z_j)/dz_j over a tile, or with None over the centres in place of the rows: (m, d). For
        centres that are vectors."""
        cross = self.cross
        assert cross._vectors is not None
        out = np.zeros_like(cross._vectors)
        strips = [(cross._strips[tile], slice(0, len(G)))] if tile is not None else [
            (rows, part) for rows, part in zip(cross._others, cross._spans(), strict=True)
        ]  # fmt: skip
        height = cross._height if tile is not None else cross._width
        program = _programs(cross.layout, False, not cross.host)["centers"]
        with double():
            for rows, part in strips:
                for span in cross._spans():
                    W, pad = G[part, span], cross._width - (span.stop - span.start)
                    W = np.pad(W, ((0, height - W.shape[0]), (0, pad)))
                    Z = np.pad(cross._vectors[span], ((0, pad), (0, 0)), mode="edge")
                    index = np.arange(-1, -1 - len(Z), -1) - 2 * cross.m
                    found = program(self.theta, cross._leaves, rows, Z, index, W)
                    out[span] += np.asarray(found)[: span.stop - span.start]
        return out


AnyCross = Cross | StandardCross
AnyCrossAt = CrossAt | StandardCrossAt


@functools.lru_cache(maxsize=256)
def _programs(layout: Layout, fast: bool, compiled: bool) -> dict[str, Callable]:
    """Programs for one tile, padded rows of which have weight zero."""
    from mercer.kernels.distance import fast_distances

    def block(theta: Array, leaves: list[Any], rows: Rows, columns: Rows) -> jax.Array:
        rows, columns = evaluate.rows_first((rows, columns))
        with fast_distances(fast):
            return layout.tree(theta, leaves).block(rows, columns)

    def diagonal(theta: Array, leaves: list[Any], rows: Rows) -> jax.Array:
        return layout.tree(theta, leaves).block_diag(evaluate.rows_first(rows))

    def of_block(theta: Array, leaves: list[Any], rows: Rows, columns: Rows, G: Array) -> jax.Array:
        return jax.grad(lambda theta: jnp.vdot(G, block(theta, leaves, rows, columns)))(theta)

    def of_diagonal(theta: Array, leaves: list[Any], rows: Rows, weights: Array) -> jax.Array:
        total = lambda theta: jnp.vdot(weights, jnp.broadcast_to(diagonal(theta, leaves, rows), weights.shape))
        return jax.grad(total)(theta)

    def centers(theta: Array, leaves: list[Any], rows: Rows, Z: Array, index: Array, G: Array) -> jax.Array:
        kernel = layout.tree(theta, leaves)
        total = lambda Z: jnp.vdot(G, kernel.block(evaluate.rows_first(rows), kernel.prepare(Z, index)))
        return jax.grad(total)(Z)

    def white(theta: Array, leaves: list[Any], one: Rows, other: Rows) -> tuple[jax.Array, jax.Array]:
        def variance(theta: Array) -> jax.Array:
            tree = layout.tree(theta, leaves)
            return jnp.ravel(tree.block_diag(one))[0] - jnp.ravel(tree.block(one, other))[0]

        return jax.value_and_grad(variance)(theta)

    found: dict[str, Callable] = {
        "block": of_block, "diagonal": diagonal, "of diagonal": of_diagonal, "centers": centers, "white": white
    }  # fmt: skip
    return {name: jax.jit(program) for name, program in found.items()} if compiled else found
