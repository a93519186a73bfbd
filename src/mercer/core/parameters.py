"""Parameters: named, on the natural scale for people, on an unconstrained scale for optimisers.

A `Parametrized` object is an immutable pytree. A field annotated `Positive`, `NonNegative` or `Real` is a
parameter: it is converted to float64 and checked when the object is built, it is a leaf of the pytree, and it
appears in `parameters` under a readable, unique name. The constraint defines the map between the two scales.

Operations on such trees are functions (`slots_of`, `nodes_of`, `evolve`), not methods, so that a user's kernel may have
fields of any name.
"""

import dataclasses
import difflib
import functools
import math
import re
import reprlib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import InvalidKernelError, ParameterError
from mercer.core.precision import Array, as_float, is_traced
from mercer.core.text import number, table

Path = tuple[tuple[str, int | None], ...]  # from a node down to another: fields, with an index where one is a tuple


@dataclasses.dataclass(frozen=True)
class Constraint:
    """Range of a parameter, and the map to and from the whole real line."""

    name: str
    holds: Callable[[Array], Any]
    logarithmic: bool
    max_dimensions: float = 0  # of its array: 0 for a number, 1 for a vector too, infinite for any shape

    def to_free(self, value: Any, xp: ModuleType = jnp) -> Any:
        """Map to the whole real line, in NumPy or JAX."""
        return xp.log(value) if self.logarithmic else value

    def from_free(self, free: Any, xp: ModuleType = jnp) -> Any:
        """Inverse of `to_free`."""
        return xp.exp(free) if self.logarithmic else free

    def __repr__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True, repr=False)
class Polynomial(Constraint):
    """Coefficients c of a polynomial 1 - sign (c_1 z + ... + c_p z^p) without roots in the unit disc, as a stationary
    (sign 1) or an invertible (sign -1) process has.

    Coordinates are atanh of the partial autocorrelations r_k, any of which between -1 and 1 are those of one such
    polynomial. Levinson and Durbin's recursion, k = 1, ..., p: c_i <- c_i - r_k c_(k-i) for i < k, and c_k = r_k.
    Coefficients mix, so priors of a coefficient alone have no density in these coordinates: none can be given.
    """

    sign: float = 1.0

    def to_free(self, value: Any, xp: ModuleType = jnp) -> Any:
        return xp.arctanh(self._partial(value, xp) / MAX_PARTIAL)

    def from_free(self, free: Any, xp: ModuleType = jnp) -> Any:
        partial = MAX_PARTIAL * xp.tanh(free)
        c = partial[:0]
        for k in range(len(partial)):
            c = xp.concatenate([c - partial[k] * c[::-1], partial[k : k + 1]])
        return self.sign * c

    def _partial(self, value: Any, xp: ModuleType) -> Any:
        c, partial = self.sign * xp.asarray(value), []
        for k in reversed(range(len(c))):
            r = c[k]
            partial.append(r)
            c = (c[:k] + r * c[:k][::-1]) / (1 - r * r)
        return xp.stack(partial[::-1])

    def has_roots_outside(self, value: Array) -> bool:
        """Whether no root is in the unit disc, or within coordinate resolution of it."""
        with np.errstate(all="ignore"):
            return bool(np.all(np.abs(self._partial(np.ravel(value), np)) < MAX_PARTIAL))


MAX_PARTIAL = 1 - 1e-10  # partial autocorrelation that infinite coordinates mean: rounding keeps it below one

positive = Constraint("positive", lambda v: v > 0, logarithmic=True)
non_negative = Constraint("non-negative", lambda v: v >= 0, logarithmic=True)
positive_per_input = dataclasses.replace(positive, max_dimensions=1)
non_negative_list = dataclasses.replace(non_negative, max_dimensions=1)
real = Constraint("real", lambda v: v == v, logarithmic=False)
stationary: Polynomial = Polynomial(
    "stationary (all roots of 1 - c_1 z - c_2 z^2 - ... outside the unit circle)",
    lambda v: stationary.has_roots_outside(v), logarithmic=False, max_dimensions=1,
)  # fmt: skip
invertible: Polynomial = Polynomial(
    "invertible (all roots of 1 + c_1 z + c_2 z^2 + ... outside the unit circle; of the models with one autocovariance "
    "one is)", lambda v: invertible.has_roots_outside(v), logarithmic=False, max_dimensions=1, sign=-1.0,
)  # fmt: skip

# Any: what a user gives becomes a NumPy float64 number or vector; inside jit and grad it is a tracer.
Positive = Annotated[Any, positive]
PositivePerInput = Annotated[Any, positive_per_input]  # one number, or one per input
NonNegative = Annotated[Any, non_negative]  # exactly zero switches a term off: such a value is never learned
NonNegativeList = Annotated[Any, non_negative_list]
Real = Annotated[Any, real]
PositiveArray = Annotated[Any, dataclasses.replace(positive, max_dimensions=math.inf)]  # of any shape, as a matrix
NonNegativeArray = Annotated[Any, dataclasses.replace(non_negative, max_dimensions=math.inf)]
StationaryCoefficients = Annotated[Any, stationary]  # of an autoregression
InvertibleCoefficients = Annotated[Any, invertible]  # of a moving average
RealArray = Annotated[Any, dataclasses.replace(real, max_dimensions=math.inf)]


SHAPES = {0: "one number", 1: "a number or a vector of numbers", math.inf: "an array of numbers, not empty"}


@functools.cache
def constraints(cls: Any) -> dict[str, Constraint]:
    """Parameter fields of a class, in order, with their constraints."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        for mark in typing.get_args(hints.get(field.name)):
            if isinstance(mark, Constraint):
                found[field.name] = mark
    return found


@dataclasses.dataclass(frozen=True)
class Slot:
    """One parameter of a tree: its public name, its position, and its constraint."""

    name: str
    path: Path
    field: str
    node: "Parametrized"
    constraint: Constraint

    @property
    def value(self) -> Any:
        return getattr(self.node, self.field)

    @property
    def fixed(self) -> bool:
        return self.field in self.node.fixed

    @property
    def prior(self) -> Any:
        """Its prior (`mercer.priors.Prior`), or None."""
        return dict(self.node.priors).get(self.field)

    @property
    def moving(self) -> np.ndarray:
        """Mask of the entries that learning may change: none if fixed, and no non-negative one that is exactly zero."""
        if self.fixed:
            return np.zeros(np.shape(self.value), bool)
        if self.constraint.name == non_negative.name and not is_traced(self.value):
            return np.asarray(self.value) != 0
        return np.ones(np.shape(self.value), bool)

    @property
    def free(self) -> bool:
        """Whether learning may change any of its entries."""
        return bool(np.any(self.moving))


class Parameters(Mapping[str, Any]):
    """Mapping from names to values on the natural scale; prints as a table."""

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = {slot.name: slot for slot in slots}

    def __getitem__(self, name: str) -> Any:
        return self._slots[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        if not self._slots:
            return "(no parameters)"
        rows = [
            [s.name, str(s.value) if is_traced(s.value) else number(s.value), s.constraint.name]
            + ["yes" if s.free else ("fixed" if s.fixed else "off"), repr(s.prior) if s.prior else "-"]
            for s in self._slots.values()
        ]
        return table(["parameter", "value", "range", "learned", "prior"], rows)


class Parametrized(eqx.Module):
    """An immutable tree of named parameters. Changed copies come from `replace`, `fix`, `free` and `with_priors`."""

    # Whether parameters are named after the node inside rather than this one, as for a variance that multiplies it.
    _transparent: ClassVar[bool] = False
    # Parameters whose range belongs to a construction rule: field to rule.
    _rules: ClassVar[dict[str, str]] = {}
    # Parameters called by the name of their node alone.
    _unnamed: ClassVar[frozenset[str]] = frozenset()

    # Equinox makes a module of every method that is asked for, a tenth of a millisecond each; here methods are methods.
    __getattribute__ = object.__getattribute__

    name: str | None = eqx.field(default=None, static=True, kw_only=True)
    fixed: frozenset[str] = eqx.field(default=frozenset(), static=True, kw_only=True, repr=False)
    priors: tuple[tuple[str, Any], ...] = eqx.field(default=(), static=True, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ParameterError(
                f"name must be a valid Python identifier, because names of parameters begin with it; got {self.name!r}."
            )
        for field, constraint in constraints(type(self)).items():
            object.__setattr__(self, field, self._checked(field, constraint, getattr(self, field)))

    def _checked(self, field: str, constraint: Constraint, value: Any) -> Array:
        where = f"{type(self).__name__}.{field}"
        try:
            value = as_float(value)
        except (TypeError, ValueError):
            raise ParameterError(
                f"{where} must be {SHAPES[constraint.max_dimensions]}; got {reprlib.repr(value)}."
            ) from None
        if is_traced(value):
            return value
        if value.ndim > constraint.max_dimensions or value.size == 0:
            raise ParameterError(f"{where} must be {SHAPES[constraint.max_dimensions]}; got shape {value.shape}.")
        if not np.all(np.isfinite(value)) or not np.all(constraint.holds(value)):
            message = f"{where} must be {constraint.name} and finite; got {number(value)}."
            if field in self._rules:
                raise InvalidKernelError(f"rule {self._rules[field]}: {message}")
            raise ParameterError(message)
        return value

    @property
    def runs_user_code(self) -> bool:
        """Whether this node itself, apart from its children, evaluates a formula from outside the package."""
        return not type(self).__module__.startswith("mercer.")

    @property
    def parameters(self) -> Parameters:
        """Readable, unique names to values on the natural scale. Prints as a table."""
        return Parameters(slots_of(self))

    def replace(self, **values: Any) -> Self:
        """A copy with other parameter values, by the names in `parameters`."""
        new = _changed(
            self, values, lambda slot, node: {slot.field: node._checked(slot.field, slot.constraint, values[slot.name])}
        )
        for node in reversed(list(nodes_of(new))):  # parts before what holds them
            _check_again(node)
        return new

    def fix(self, *names: str) -> Self:
        """A copy in which learning does not change these parameters (all of them if none is named)."""
        return _changed(self, names or self.parameters, lambda slot, node: {"fixed": node.fixed | {slot.field}})

    def free(self, *names: str) -> Self:
        """A copy in which learning may change these parameters again (all of them if none is named)."""
        return _changed(self, names or self.parameters, lambda slot, node: {"fixed": node.fixed - {slot.field}})

    def with_priors(self, **priors: Any) -> Self:
        """A copy with a prior (from `mercer.priors`) on each named parameter; None removes one."""
        for name, prior in priors.items():
            if prior is not None and not callable(getattr(prior, "log_density", None)):
                raise ParameterError(f"the prior of {name!r} must come from mercer.priors; got {prior!r}.")

        def change(slot: Slot, node: Parametrized) -> dict[str, Any]:
            if isinstance(slot.constraint, Polynomial) and priors[slot.name] is not None:
                raise ParameterError(
                    f"{slot.name} takes no prior: its coefficients are bound together by having to be "
                    f"{slot.constraint.name}. Keep it with kernel.fix({slot.name!r}), or learn it from the data alone."
                )
            kept = {**dict(node.priors), slot.field: priors[slot.name]}
            return {"priors": tuple((field, prior) for field, prior in sorted(kept.items()) if prior is not None)}

        return _changed(self, priors, change)

    def named(self, name: str) -> Self:
        """A copy with a name, which prefixes the names of its parameters."""
        new = evolve(self, name=name)
        Parametrized.__post_init__(new)
        return new

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():  # arrays come out of a pickle writable
            object.__setattr__(self, name, as_float(value) if isinstance(value, np.ndarray) else value)

    def __repr__(self) -> str:
        fields = [field.name for field in dataclasses.fields(self) if field.name not in ("fixed", "priors")]
        fields.sort(key=lambda name: name == "name")  # the keyword comes last
        shown = [f"{name}={show(getattr(self, name))}" for name in fields if getattr(self, name) is not None]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> Any:
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = jax.tree.leaves(self), jax.tree.leaves(other)
        shape: Any = jax.tree.structure(self)
        other_shape: Any = jax.tree.structure(other)
        return bool(shape == other_shape) and all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self))


class Assembly(Parametrized):
    """A tree whose parts keep the names that their parameters have without it."""

    def prefix(self, path: Path) -> str:
        """What the names of the part at this path begin with."""
        return ""


Tree = TypeVar("Tree", bound=Parametrized)


# -- the tree ------------------------------------------------------------------------------------------------------


@functools.cache
def field_names(cls: type) -> tuple[str, ...]:
    """Names of the fields of a class; a fit walks its tree hundreds of times."""
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _is_node(cls: type) -> bool:
    """Whether instances of a class are nodes; `isinstance` would ask the metaclass every time."""
    return issubclass(cls, Parametrized)


def children_of(tree: Parametrized) -> Iterator[tuple[Path, Parametrized]]:
    """Subtrees of a node, each with its path of one step."""
    for name in field_names(type(tree)):
        value = getattr(tree, name)
        if _is_node(value.__class__):
            yield ((name, None),), value
        elif isinstance(value, tuple):
            yield from ((((name, i),), v) for i, v in enumerate(value) if _is_node(v.__class__))


def nodes_of(tree: Parametrized) -> Iterator[Parametrized]:
    """All nodes of a tree, its root first."""
    yield tree
    for _, child in children_of(tree):
        yield from nodes_of(child)


def node_at(tree: Parametrized, path: Path) -> Any:
    """The node that a path leads to."""
    node: Any = tree
    for field, index in path:
        node = getattr(node, field) if index is None else getattr(node, field)[index]
    return node


def evolve(tree: Tree, /, **fields: Any) -> Tree:
    """A copy with some fields replaced, without conversion or checks."""
    new = object.__new__(type(tree))
    for name in field_names(type(tree)):
        object.__setattr__(new, name, fields[name] if name in fields else getattr(tree, name))
    return new


def evolve_at(tree: Tree, path: Path, /, **fields: Any) -> Tree:
    """A copy with some fields of the node at ``path`` replaced, without conversion or checks."""
    if not path:
        return evolve(tree, **fields)
    (field, index), *rest = path
    value = getattr(tree, field)
    if index is None:
        return evolve(tree, **{field: evolve_at(value, tuple(rest), **fields)})
    child = evolve_at(value[index], tuple(rest), **fields)
    return evolve(tree, **{field: (*value[:index], child, *value[index + 1 :])})


def map_children(change: Callable[[Any], Parametrized], tree: Tree) -> Tree:
    """A copy with ``change`` applied to every child, which must return one of the same class."""
    for path, child in children_of(tree):
        tree = evolve_at(tree, path, **vars(change(child)))
    return tree


def bare(tree: Tree) -> Tree:
    """The same tree without names, fixing and priors, so that such copies share compiled code."""
    return map_children(bare, evolve(tree, name=None, fixed=frozenset(), priors=()))


def _changed(tree: Tree, names: Iterable[str], change: Callable[[Slot, Parametrized], dict[str, Any]]) -> Tree:
    """A copy in which ``change(slot, node)`` gives new fields for the node of each named parameter."""
    slots = {slot.name: slot for slot in slots_of(tree)}
    for name in names:
        if name not in slots:
            close = difflib.get_close_matches(str(name), slots, n=1)
            says = f" Did you mean {close[0]!r}?" if close else ""
            if any(getattr(node, "needs_fit", False) for node in nodes_of(tree)):
                says += " What is learned from data has parameters once it is fitted: call fit(X) first."
            raise ParameterError(f"no parameter {name!r}; there are: {', '.join(slots) or 'none'}.{says}")
        path = slots[name].path
        tree = evolve_at(tree, path, **change(slots[name], node_at(tree, path)))
    return tree


def _check_again(node: Parametrized) -> None:
    """The checks of a new object, such as that shapes of parameters match."""
    for cls in reversed(type(node).__mro__):
        if "__check_init__" in vars(cls):
            vars(cls)["__check_init__"](node)


# -- names ---------------------------------------------------------------------------------------------------------


def slots_of(tree: Parametrized) -> list[Slot]:
    """Every parameter of a tree, with its unique name.

    A leaf and the single-child nodes above it (a variance, say) form a group, named after the leaf's class or the name
    the user gave; a group's name prefixes its parameters unless it is the only, unnamed one.
    """
    if isinstance(tree, Assembly):
        return [
            Slot(tree.prefix(path) + slot.name, (*path, *slot.path), slot.field, slot.node, slot.constraint)
            for path, part in children_of(tree)
            for slot in slots_of(part)
        ]
    entries: list[tuple[str, Path, Path, Parametrized]] = []  # (label, group, path, node)

    def visit(
        node: Parametrized, path: Path, outer: list[str], given: list[str], label: str | None,
        pending: list[tuple[Path, Parametrized]],
    ) -> None:  # fmt: skip
        given = [*given, node.name] if node.name else given
        label = label or (None if node._transparent else _label(node))
        children = list(children_of(node))
        if len(children) > 1:
            children = [(step, child) for step, child in children if any(constraints(type(n)) for n in nodes_of(child))]
        pending = [*pending, (path, node)]
        if len(children) == 1:
            step, child = children[0]
            return visit(child, (*path, *step), outer, given, label, pending)
        full = "_".join([*outer, *(given or [label or _label(node)])])
        entries.extend((full, path, p, n) for p, n in pending if constraints(type(n)))
        for step, child in children:
            visit(child, (*path, *step), [*outer, *given], [], None, [])
        return None

    visit(tree, (), [], [], None, [])
    groups = {group for _, group, _, _ in entries}
    unprefixed = len(groups) == 1 and not any(node.name for node in nodes_of(tree))
    labels: dict[Path, str] = {}
    slots: list[Slot] = []
    taken: set[str] = set()
    for label, group, path, node in entries:
        if group not in labels:
            labels[group] = _unique(label, set(labels.values()))
        for field, constraint in constraints(type(node)).items():
            label = labels[group]
            full = field if unprefixed else label if field in node._unnamed else f"{label}_{field}"
            name = _unique(full, taken)
            taken.add(name)
            slots.append(Slot(name, path, field, node, constraint))
    return slots


def _label(node: Parametrized) -> str:
    """Name of its class in lower case, with underscores between words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(node).__name__).lower()


def _unique(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


# -- fields --------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A NumPy number as a Python number, for settings that are not parameters."""
    return value.item() if isinstance(value, np.number) else value


def show(value: Any) -> str:
    """A field as `repr` writes it."""
    if is_traced(value):
        return "<traced>"
    if isinstance(value, float | np.floating | np.ndarray | jax.Array):
        return number(value)
    return repr(value)
