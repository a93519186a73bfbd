"""Parameters as an optimiser sees them: one unconstrained vector of those that may move.

Positive parameters are logarithms here; fixed ones, and terms switched off by an exact zero, are left out.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.parameters import Constraint, Parametrized, Slot
from mercer.core.precision import as_float, is_traced


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one moving parameter sits in a tree, and which of its entries move."""

    path: tuple
    field: str
    constraint: Constraint
    shape: tuple
    entries: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The way from a vector to a tree, without any numbers in it: hashable, so compiled programs can be kept for it."""

    structure: Any  # of the bare tree: names, fixing and priors make no difference to what is computed
    places: tuple[Place, ...]

    @staticmethod
    def of(tree: Parametrized) -> "Layout":
        places = (
            Place(s.path, s.field, s.constraint, np.shape(s.value), tuple(np.flatnonzero(s.moving).tolist()))
            for s in tree._slots()
            if s.free
        )
        return Layout(jax.tree.structure(tree._bare()), tuple(places))

    @functools.cached_property
    def _leaf_numbers(self) -> tuple[int, ...]:
        """Which leaf of the tree each place is."""
        numbered = jax.tree.unflatten(self.structure, range(self.structure.num_leaves))
        return tuple(_at(numbered, place) for place in self.places)

    def leaves_at(self, theta, leaves) -> list:
        """``leaves`` with the moving parameters read from ``theta``, in NumPy."""
        leaves, start = list(leaves), 0
        for number, place in zip(self._leaf_numbers, self.places, strict=True):
            part = np.asarray(theta[start : start + len(place.entries)])
            start += len(place.entries)
            value = np.array(leaves[number], dtype=float)
            with np.errstate(over="ignore"):
                value.reshape(-1)[list(place.entries)] = place.constraint.from_free(part, np)
            leaves[number] = value
        return leaves

    @property
    def size(self) -> int:
        return sum(len(place.entries) for place in self.places)

    def tree(self, theta, leaves):
        """The tree with its moving parameters read from ``theta`` and all else from ``leaves``."""
        return self.placed(jax.tree.unflatten(self.structure, leaves), theta)

    def placed(self, tree, theta):
        """``tree`` with its moving parameters read from ``theta``; differentiable in ``theta``."""
        start = 0
        for place in self.places:
            values = place.constraint.from_free(theta[start : start + len(place.entries)], jnp)
            start += len(place.entries)
            if len(place.entries) == int(np.prod(place.shape)):
                value = values.reshape(place.shape)
            else:
                value = jnp.asarray(_at(tree, place)).at[np.array(place.entries)].set(values)
            tree = tree._evolve_at(place.path, **{place.field: value})
        return tree


def _at(tree, place):
    for field, index in place.path:
        tree = getattr(tree, field) if index is None else getattr(tree, field)[index]
    return getattr(tree, place.field)


def free_names(tree: Parametrized) -> list[str]:
    """One name per coordinate of the free vector; entries of a vector parameter carry their index."""
    names = []
    for slot in tree._slots():
        if slot.free:
            entries = np.flatnonzero(slot.moving)
            names += [slot.name] if np.ndim(slot.value) == 0 else [f"{slot.name}[{i}]" for i in entries]
    return names


def to_free(tree: Parametrized):
    """The free parameters in the optimiser's coordinates: logarithms of positive ones, fixed ones left out.

    >>> from mercer.kernels import RBF
    >>> float(to_free(RBF(lengthscale=1.0))[0])
    0.0
    """
    np_or_jnp: Any = jnp if is_traced(tree) else np
    parts = [
        s.constraint.to_free(np_or_jnp.atleast_1d(s.value)[np.atleast_1d(s.moving)], np_or_jnp)
        for s in tree._slots()
        if s.free
    ]
    return np_or_jnp.concatenate(parts) if parts else np_or_jnp.zeros(0)


def from_free(tree: Parametrized, theta):
    """The tree with its free parameters read from ``theta``; differentiable in ``theta``."""
    layout = Layout.of(tree)
    if is_traced((tree, theta)):
        return layout.placed(tree, theta)
    bare = jax.tree.leaves(tree._bare())
    settled = jax.tree.unflatten(layout.structure, layout.leaves_at(theta, bare))
    for place in layout.places:
        tree = tree._evolve_at(place.path, **{place.field: as_float(_at(settled, place))})
    return tree


def parameters_at(slots: Sequence[Slot], theta) -> dict[str, Any]:
    """What `from_free(tree, theta).parameters` says, for the slots of a tree, in a hundredth of the time."""
    named, start = {}, 0
    for slot in slots:
        value = named[slot.name] = slot.value
        moving = np.flatnonzero(slot.moving)
        if len(moving):
            part = np.asarray(theta[start : start + len(moving)])
            start += len(moving)
            value = np.array(value, dtype=float)
            with np.errstate(over="ignore"):
                value.reshape(-1)[moving] = slot.constraint.from_free(part, np)
            named[slot.name] = as_float(value)
    return named


def log_prior(tree: Parametrized, like: Parametrized | None = None):
    """Sum of the log densities of the priors of what may move, at the present values, on the natural scale.

    A traced tree does not tell what is switched off by an exact zero; ``like`` is the same tree with its numbers.
    """
    total = jnp.zeros(())
    for slot, model in zip(tree._slots(), (tree if like is None else like)._slots(), strict=True):
        if model.prior is not None and model.free:  # what is fixed, or switched off, has no density to add
            values = jnp.atleast_1d(jnp.asarray(slot.value))[np.atleast_1d(model.moving)]
            total = total + jnp.sum(model.prior.log_density(values))
    return total
