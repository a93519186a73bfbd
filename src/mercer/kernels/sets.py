"""A kernel on many small sets of rows, as approximations by neighbours ask for: values and derivatives.

Kernels of the standard form (`standard`) by loops that Numba compiles, all others by their compiled program, mapped
over the sets.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.coordinates import Layout
from mercer.core.inputs import Inputs, Rows, as_matrix, check_width, select_columns
from mercer.core.parameters import bare
from mercer.core.precision import Array, concretely, double
from mercer.kernels import evaluate
from mercer.kernels.base import Kernel
from mercer.kernels.space import OfPlaces
from mercer.kernels.standard import FIELDS, StandardForm, standard_form
from mercer.kernels.stationary import Isotropic, Standard
from mercer.kernels.substitution import On

SET_SIZES = (8, 16, 24, 32, 48, 64, 96, 128)  # to which sets are padded, so that few programs are compiled


class OnSets(abc.ABC):
    """K(theta) on sets of fixed rows: ``members`` (G, k), ``sizes`` (G,) of which count."""

    layout: Layout

    @abc.abstractmethod
    def at(self, theta: np.ndarray) -> "SetsAt":
        """At these parameters."""


class SetsAt(abc.ABC):
    """K at one theta. May be called from several threads."""

    @abc.abstractmethod
    def fill(self, members: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> None:
        """Write K of each set into the lower triangles of ``out`` (G, k, k)."""

    @abc.abstractmethod
    def contract(self, members: np.ndarray, sizes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Sum over sets of weights_pq dK_pq/dtheta over lower triangles, zero beyond the sizes: (p,)."""


def on_sets(kernel: Kernel, X: Inputs, rows: Rows) -> OnSets:
    """The kernel on these inputs, and as prepared for it."""
    form = standard_form(kernel)
    return AnyOnSets(kernel, rows) if form is None else StandardOnSets(kernel, form, X)


def positions(kernel: Kernel, X: Inputs) -> np.ndarray:
    """Inputs in the kernel's own units, so that near rows are those that it makes alike: on the sphere in three
    dimensions, rotated, and where terms or factors have columns of their own, beside each other. (n, .)"""
    if isinstance(kernel, OfPlaces):
        return positions(kernel.inner, kernel.coordinates(X))
    if isinstance(kernel, On):
        return positions(kernel.inner, select_columns(X, kernel.selection))
    placed = [child for child in kernel._kernels() if any(isinstance(node, OfPlaces | On) for node in _nodes(child))]
    if placed:
        return np.concatenate([positions(child, X) for child in placed], axis=1)
    X = as_matrix(X)
    return X * metric(kernel, X.shape[1])


def metric(kernel: Kernel, d: int) -> np.ndarray:
    """What to multiply inputs by, so that near rows are those that the kernel makes alike: one over its lengthscales,
    (d,); ones where it does not say."""
    form = standard_form(kernel)
    if form is not None:
        scale = np.ones(d) if form.scale is None else np.broadcast_to(form.scale, d)
        lengths = np.asarray(_theta1(kernel), dtype=float)
        return np.broadcast_to(np.sqrt(lengths), d) / scale
    for node in _nodes(kernel):
        if isinstance(node, Isotropic) and np.shape(node.lengthscale) in ((), (d,)):
            return 1 / np.broadcast_to(np.asarray(node.lengthscale, dtype=float), (d,))
    return np.ones(d)


def _nodes(kernel: Kernel) -> list[Kernel]:
    return [kernel, *(node for child in kernel._kernels() for node in _nodes(child))]


def _theta1(kernel: Kernel) -> Any:
    found = next(node for node in _nodes(kernel) if isinstance(node, Isotropic | Standard))
    return found.theta1 if isinstance(found, Standard) else 1 / np.square(found.lengthscale)


# -- kernels of the standard form ------------------------------------------------------------------------------------


class StandardOnSets(OnSets):
    """By compiled loops."""

    def __init__(self, kernel: Kernel, form: StandardForm, X: Inputs) -> None:
        self.layout, self.form = Layout.of(kernel), form
        X = as_matrix(X)
        lengths = "theta1" if type(kernel) is Standard else "lengthscale"
        for name, size in ((lengths, form.sizes[1]), ("shift", np.size(form.shift)), ("scale", np.size(form.scale))):
            if size > 1:
                check_width(X, size, name)
        X = X if form.shift is None else X - form.shift
        self.X = np.ascontiguousarray(X if form.scale is None else X / form.scale)
        self.edges = np.cumsum([0, *form.sizes])

    def at(self, theta: np.ndarray) -> "StandardSetsAt":
        return StandardSetsAt(self, theta)


class StandardSetsAt(SetsAt):
    def __init__(self, sets: StandardOnSets, theta: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            values = np.exp(sets.form.offset + sets.form.matrix @ theta)
        parts = {field: values[sets.edges[i] : sets.edges[i + 1]] for i, field in enumerate(FIELDS)}
        self._sets, self._nu, self._X = sets, sets.form.nu, sets.X
        self._A = np.ascontiguousarray(sets.X * np.sqrt(parts["theta1"]))
        self._thetas = np.array([float(np.sum(parts[f"theta{i}"])) for i in (0, 2, 3, 4)])

    def fill(self, members: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> None:
        from mercer.kernels import set_loops

        set_loops.fill(out, members, sizes, self._A, self._X, self._nu, self._thetas)

    def contract(self, members: np.ndarray, sizes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        from mercer.kernels import set_loops

        found = set_loops.contract(weights, members, sizes, self._A, self._X, self._nu, self._thetas)
        d, counts = self._A.shape[1], self._sets.form.sizes
        lengths = found[1 : 1 + d] if counts[1] > 1 else [found[1 : 1 + d].sum()]
        parts = [found[:1], lengths, *(found[i + d : i + d + 1] for i in (1, 2, 3))]
        kept = np.concatenate([part for part, count in zip(parts, counts, strict=True) if count])
        return kept @ self._sets.form.matrix


# -- any kernel ------------------------------------------------------------------------------------------------------


class AnyOnSets(OnSets):
    """By the kernel's compiled program, mapped over the sets."""

    def __init__(self, kernel: Kernel, rows: Rows) -> None:
        self.layout, self.rows = Layout.of(kernel), rows
        with concretely():
            self.leaves = jax.device_put(jax.tree.leaves(bare(kernel)))

    def at(self, theta: np.ndarray) -> "AnySetsAt":
        return AnySetsAt(self, np.asarray(theta, dtype=float))


class AnySetsAt(SetsAt):
    def __init__(self, sets: AnyOnSets, theta: np.ndarray) -> None:
        self._sets, self._theta = sets, theta
        self._values, self._pull = _set_programs(sets.layout)

    def _taken(self, members: np.ndarray) -> tuple[Rows, int]:
        """Rows of the sets, padded to a size of `SET_SIZES` and, by copies of the last set, to one of few numbers of
        sets, so that few programs are compiled; and that size."""
        count, k = members.shape
        size = next((each for each in SET_SIZES if each >= k), 32 * math.ceil(k / 32))
        step = 1 << max(3, count.bit_length() - 3)  # a quarter more sets at most, or eight
        padded = np.pad(members, ((0, -count % step), (0, size - k)), mode="edge")
        return evaluate.some(self._sets.rows, padded), size

    def fill(self, members: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> None:
        rows, _ = self._taken(members)
        with double():
            K = self._values(self._theta, self._sets.leaves, rows)
        out[:] = np.asarray(K)[: len(members), : members.shape[1], : members.shape[1]]

    def contract(self, members: np.ndarray, sizes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        (rows, size), k = self._taken(members), members.shape[1]
        padded = np.zeros((len(jax.tree.leaves(rows)[0]), size, size))
        padded[: len(members), :k, :k] = np.tril(weights)
        with double():
            return np.asarray(self._pull(self._theta, self._sets.leaves, rows, padded))


@functools.lru_cache(maxsize=256)
def _set_programs(layout: Layout) -> tuple[Callable, Callable]:
    def one(theta: Array, leaves: list[Any], own: Rows) -> jax.Array:
        return layout.tree(theta, leaves).block(own, own)

    def of_one(theta: Array, leaves: list[Any], own: Rows, weights: Array) -> jax.Array:
        return jnp.vdot(weights, one(theta, leaves, own))

    def values(theta: Array, leaves: list[Any], rows: Rows) -> jax.Array:
        return jax.vmap(one, in_axes=(None, None, 0))(theta, leaves, rows)

    def pull(theta: Array, leaves: list[Any], rows: Rows, weights: Array) -> jax.Array:
        # Set by set: reverse mode cannot pass distances of rows that depend on theta through a map over sets.
        return jax.vmap(jax.grad(of_one), in_axes=(None, None, 0, 0))(theta, leaves, rows, weights).sum(axis=0)

    return jax.jit(values), jax.jit(pull)


def slope_on_sets(kernel: Kernel, Z: np.ndarray, near: Rows, weights: np.ndarray) -> np.ndarray:
    """sum_j weights_ij dk(z_i, x_ij)/dz_i: (s, d), for a matrix Z and prepared rows x_ij (s, m)."""
    program = _slope_program(Layout.of(kernel.fix()))
    with double():
        found = program(jax.tree.leaves(bare(kernel)), Z, np.arange(-len(Z), 0), near, weights)
    return np.asarray(found)


@functools.lru_cache(maxsize=256)
def _slope_program(layout: Layout) -> Callable:
    def one(leaves: list[Any], z: Array, index: Array, near: Rows, weights: Array) -> jax.Array:
        def total(z: Array) -> jax.Array:
            kernel = jax.tree.unflatten(layout.structure, leaves)
            return jnp.vdot(weights, kernel.block(kernel.prepare(z[None], index[None]), near)[0])

        return jax.grad(total)(z)

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0, 0)))
