"""Parameters as an optimiser sees them: one unconstrained vector of those that may change.

Positive parameters are logarithms here; fixed ones, and terms switched off by an exact zero, are left out.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.parameters import Constraint, Parametrized, Path, Slot, Tree, bare, evolve_at, node_at, slots_of
from mercer.core.precision import Array, as_float, is_traced


@dataclasses.dataclass(frozen=True)
class Place:
    """Position of a moving parameter in a tree, and indices of its entries that move."""

    path: Path
    field: str
    constraint: Constraint
    shape: tuple[int, ...]
    entries: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Map from a vector to a tree, without any numbers in it: hashable, so compiled programs can be cached by it."""

    structure: Any  # of the bare tree: names, fixing and priors do not change what is computed
    places: tuple[Place, ...]

    @staticmethod
    def of(tree: Parametrized) -> "Layout":
        moving = [(slot, tuple(np.flatnonzero(slot.moving).tolist())) for slot in slots_of(tree)]
        places = (Place(s.path, s.field, s.constraint, np.shape(s.value), entries) for s, entries in moving if entries)
        return Layout(jax.tree.structure(bare(tree)), tuple(places))

    @functools.cached_property
    def leaf_numbers(self) -> tuple[int, ...]:
        """Index among the tree's leaves of each place."""
        numbered = jax.tree.unflatten(self.structure, range(self.structure.num_leaves))
        return tuple(_value_at(numbered, place) for place in self.places)

    def leaves_at(self, theta: np.ndarray, leaves: Iterable[Any]) -> list[Any]:
        """``leaves`` with the moving parameters read from ``theta``, in NumPy."""
        leaves, start = list(leaves), 0
        for number, place in zip(self.leaf_numbers, self.places, strict=True):
            stop = start + len(place.entries)
            leaves[number] = _replaced(leaves[number], place.entries, place.constraint, theta[start:stop])
            start = stop
        return leaves

    @property
    def size(self) -> int:
        return sum(len(place.entries) for place in self.places)

    def part(self, field: str, number: int | None = None) -> slice:
        """Coordinates of one part of the tree, by its field and, where that holds several, its number: a slice of the
        vector."""
        owners = [place.path[0] for place in self.places for _ in place.entries]
        own = [i for i, (name, index) in enumerate(owners) if name == field and number in (None, index)]
        return slice(own[0], own[-1] + 1) if own else slice(0, 0)

    def joined(self, **parts: np.ndarray) -> np.ndarray:
        """Vector with these coordinates in each field of the tree."""
        out = np.zeros(self.size, np.result_type(*parts.values()))
        for field, values in parts.items():
            out[self.part(field)] = values
        return out

    def tree(self, theta: Array, leaves: Iterable[Any]) -> Any:
        """The tree with its moving parameters read from ``theta`` and all else from ``leaves``."""
        return self.placed(jax.tree.unflatten(self.structure, leaves), theta)

    def placed(self, tree: Tree, theta: Array) -> Tree:
        """``tree`` with its moving parameters read from ``theta``; differentiable in ``theta``."""
        start = 0
        for place in self.places:
            values = place.constraint.from_free(theta[start : start + len(place.entries)], jnp)
            start += len(place.entries)
            if len(place.entries) == int(np.prod(place.shape)):
                value = values.reshape(place.shape)
            else:
                flat = jnp.ravel(jnp.asarray(_value_at(tree, place)))
                value = flat.at[np.array(place.entries)].set(values).reshape(place.shape)
            tree = evolve_at(tree, place.path, **{place.field: value})
        return tree


def _value_at(tree: Parametrized, place: Place) -> Any:
    return getattr(node_at(tree, place.path), place.field)


def _replaced(value: Any, entries: Sequence[int], constraint: Constraint, free: np.ndarray) -> np.ndarray:
    """A parameter's value with some entries read from their free coordinates."""
    value = np.array(value, dtype=float, order="C")  # so that the entries below are a view
    with np.errstate(over="ignore"):
        value.reshape(-1)[list(entries)] = constraint.from_free(np.asarray(free), np)
    return value


def free_names(tree: Parametrized) -> list[str]:
    """One name per coordinate of the free vector; entries of an array carry their index."""
    names = []
    for slot in slots_of(tree):
        if slot.free:
            entries = (",".join(map(str, entry)) for entry in np.argwhere(slot.moving))
            names += [slot.name] if np.ndim(slot.value) == 0 else [f"{slot.name}[{entry}]" for entry in entries]
    return names


def to_free(tree: Parametrized) -> Any:
    """Free parameters in the optimiser's coordinates: logarithms of positive ones, fixed ones left out. (p,), in NumPy
    unless the tree is traced.

    >>> from mercer.kernels import RBF
    >>> float(to_free(RBF(lengthscale=1.0))[0])
    0.0
    """
    xp: Any = jnp if is_traced(tree) else np
    parts = [
        slot.constraint.to_free(xp.atleast_1d(slot.value)[np.atleast_1d(slot.moving)], xp)
        for slot in slots_of(tree)
        if slot.free
    ]
    return xp.concatenate(parts) if parts else xp.zeros(0)


def from_free(tree: Tree, theta: Array) -> Tree:
    """The tree with its free parameters read from ``theta``; differentiable in ``theta``."""
    layout = Layout.of(tree)
    if is_traced((tree, theta)):
        return layout.placed(tree, theta)
    start = 0
    for place in layout.places:
        stop = start + len(place.entries)
        value = _replaced(_value_at(tree, place), place.entries, place.constraint, np.asarray(theta[start:stop]))
        tree = evolve_at(tree, place.path, **{place.field: as_float(value)})
        start = stop
    return tree


def parameters_at(slots: Sequence[Slot], theta: np.ndarray) -> dict[str, Any]:
    """Same as `from_free(tree, theta).parameters`, from the slots of the tree, in a hundredth of the time."""
    named, start = {}, 0
    for slot in slots:
        entries = np.flatnonzero(slot.moving).tolist()
        stop = start + len(entries)
        named[slot.name] = as_float(_replaced(slot.value, entries, slot.constraint, theta[start:stop]))
        start = stop
    return named


def log_prior(tree: Parametrized, like: Parametrized | None = None) -> Array:
    """Sum of the log prior densities of the free parameters, at their present values, on the natural scale.

    In a traced tree, values that are exactly zero cannot be recognised; ``like`` is the same tree with its numbers.
    """
    total = jnp.zeros(())
    for slot, model in zip(slots_of(tree), slots_of(tree if like is None else like), strict=True):
        if model.prior is not None and model.free:  # a fixed or switched-off parameter has no density to add
            values = jnp.atleast_1d(jnp.asarray(slot.value))[np.atleast_1d(model.moving)]
            total = total + jnp.sum(model.prior.log_density(values))
    return total
