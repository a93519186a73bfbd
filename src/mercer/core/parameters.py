"""Parameters: named, on the natural scale for people, on an unconstrained scale for optimisers.

A `Parametrized` object is an immutable pytree. A field annotated `Positive`, `NonNegative` or `Real` is a
parameter: it is converted to float64 and checked when the object is built, it is a leaf of the pytree, and it
appears in `parameters` under a readable, unique name. The map between the two scales belongs to the constraint.
"""

import dataclasses
import difflib
import functools
import re
import reprlib
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import InvalidKernelError, ParameterError
from mercer.core.precision import as_float, is_traced
from mercer.core.text import number, table


@dataclasses.dataclass(frozen=True)
class Constraint:
    """Where a parameter may lie, and the map to and from the whole real line."""

    name: str
    holds: Callable[[np.ndarray], Any]
    logarithmic: bool
    per_input: bool = False  # whether a vector is allowed where a number is

    def to_free(self, value, xp=jnp):
        """To the whole real line, in NumPy or JAX."""
        return xp.log(value) if self.logarithmic else value

    def from_free(self, free, xp=jnp):
        """And back."""
        return xp.exp(free) if self.logarithmic else free

    def __repr__(self):
        return self.name


positive = Constraint("positive", lambda v: v > 0, logarithmic=True)
non_negative = Constraint("non-negative", lambda v: v >= 0, logarithmic=True)
positive_per_input = dataclasses.replace(positive, per_input=True)
non_negative_list = dataclasses.replace(non_negative, per_input=True)
real = Constraint("real", lambda v: v == v, logarithmic=False)

Positive = Annotated[Any, positive]
PositivePerInput = Annotated[Any, positive_per_input]  # one number, or one per input
NonNegative = Annotated[Any, non_negative]  # exactly zero switches a term off: such a value is never learned
NonNegativeList = Annotated[Any, non_negative_list]
Real = Annotated[Any, real]


@functools.cache
def constraints(cls: Any) -> dict[str, Constraint]:
    """The parameter fields of a class, in order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        for mark in typing.get_args(hints.get(field.name)):
            if isinstance(mark, Constraint):
                found[field.name] = mark
    return found


@dataclasses.dataclass(frozen=True)
class Slot:
    """One parameter of a tree: its public name, where it sits, and its constraint."""

    name: str
    path: tuple
    field: str
    node: "Parametrized"
    constraint: Constraint

    @property
    def value(self):
        return getattr(self.node, self.field)

    @property
    def fixed(self) -> bool:
        return self.field in self.node.fixed

    @property
    def prior(self):
        return dict(self.node.priors).get(self.field)

    @property
    def moving(self) -> np.ndarray:
        """Which entries learning may move: none if fixed, and no non-negative term switched off by an exact zero."""
        if self.fixed:
            return np.zeros(np.shape(self.value), bool)
        if self.constraint.name == non_negative.name and not is_traced(self.value):
            return np.asarray(self.value) != 0
        return np.ones(np.shape(self.value), bool)

    @property
    def free(self) -> bool:
        return bool(np.any(self.moving))


class Parameters(Mapping):
    """Names to values on the natural scale; prints as a table."""

    def __init__(self, slots: list[Slot]):
        self._slots = {slot.name: slot for slot in slots}

    def __getitem__(self, name):
        return self._slots[name].value

    def __iter__(self):
        return iter(self._slots)

    def __len__(self):
        return len(self._slots)

    def __repr__(self):
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

    # Nodes that wrap one other and take its name in the names of parameters.
    _transparent: ClassVar[bool] = False
    # Parameters whose range is part of a construction rule: field to rule.
    _rules: ClassVar[dict[str, str]] = {}

    name: str | None = eqx.field(default=None, static=True, kw_only=True)
    fixed: frozenset = eqx.field(default=frozenset(), static=True, kw_only=True, repr=False)
    priors: tuple = eqx.field(default=(), static=True, kw_only=True, repr=False)

    def __post_init__(self):
        if self.name is not None and not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ParameterError(
                f"name must be a word usable as a Python identifier, for it begins keyword names; got {self.name!r}."
            )
        for field, constraint in constraints(type(self)).items():
            object.__setattr__(self, field, self._checked(field, constraint, getattr(self, field)))

    def _checked(self, field, constraint, value):
        where = f"{type(self).__name__}.{field}"
        try:
            value = as_float(value)
        except (TypeError, ValueError):
            raise ParameterError(
                f"{where} must be a number or a vector of numbers; got {reprlib.repr(value)}."
            ) from None
        if is_traced(value):
            return value
        if value.ndim > constraint.per_input or value.size == 0:
            what = "a number or a vector of numbers" if constraint.per_input else "one number"
            raise ParameterError(f"{where} must be {what}; got shape {value.shape}.")
        if not np.all(np.isfinite(value)) or not np.all(constraint.holds(value)):
            message = f"{where} must be {constraint.name} and finite; got {number(value)}."
            if field in self._rules:
                raise InvalidKernelError(f"rule {self._rules[field]}: {message}")
            raise ParameterError(message)
        return value

    # -- the tree ------------------------------------------------------------------------------------------------

    def _children(self) -> Iterator[tuple[tuple, "Parametrized"]]:
        """Sub-trees that hold parameters, each with its place: (field, None) or (field, index)."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Parametrized):
                yield (field.name, None), value
            elif isinstance(value, tuple):
                yield from (((field.name, i), v) for i, v in enumerate(value) if isinstance(v, Parametrized))

    def _evolve(self, **changes):
        """A copy with some fields changed, as they are: no conversion, no checks."""
        new = object.__new__(type(self))
        for field in dataclasses.fields(self):
            object.__setattr__(new, field.name, changes.get(field.name, getattr(self, field.name)))
        return new

    def _evolve_at(self, path, **changes):
        if not path:
            return self._evolve(**changes)
        (field, index), *rest = path
        value = getattr(self, field)
        if index is None:
            return self._evolve(**{field: value._evolve_at(rest, **changes)})
        child = value[index]._evolve_at(rest, **changes)
        return self._evolve(**{field: (*value[:index], child, *value[index + 1 :])})

    def _bare(self):
        """The same tree without names, fixing and priors, so that compiled code is shared between such copies."""
        new = self._evolve(name=None, fixed=frozenset(), priors=())
        for (field, index), child in self._children():
            new = new._evolve_at([(field, index)], **vars(child._bare()))
        return new

    # -- names ---------------------------------------------------------------------------------------------------

    @property
    def _label(self) -> str:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    def _slots(self) -> list[Slot]:
        """Every parameter with its unique name.

        A leaf and the single-child nodes above it (a variance, say) form a group, named after the leaf's class or
        the name the user gave; a group's name prefixes its parameters unless it is the only, unnamed one.
        """
        entries: list[tuple[str, tuple, tuple, Parametrized]] = []  # (label, group, path, node)

        holding: dict[int, bool] = {}  # whether there are parameters in the tree below a node

        def holds(node: Parametrized) -> bool:
            below = [holds(child) for _, child in node._children()]
            holding[id(node)] = node._has_parameters() or any(below)
            return holding[id(node)]

        def visit(node: Parametrized, path, outer, given, label, pending):
            given = [*given, node.name] if node.name else given
            label = label or (None if node._transparent else node._label)
            children = list(node._children())
            if len(children) > 1:
                children = [(place, child) for place, child in children if holding[id(child)]]
            pending = [*pending, (path, node)]
            if len(children) == 1:
                place, child = children[0]
                return visit(child, (*path, place), outer, given, label, pending)
            full = "_".join([*outer, *(given or [label or node._label])])
            entries.extend((full, path, p, n) for p, n in pending if n._has_parameters())
            for place, child in children:
                visit(child, (*path, place), [*outer, *given], [], None, [])
            return None

        holds(self)
        visit(self, (), [], [], None, [])
        groups = {e[1] for e in entries}
        bare = len(groups) == 1 and not any(node.name for node in self._nodes())
        labels: dict[tuple, str] = {}
        slots: list[Slot] = []
        taken: set[str] = set()
        for label, group, path, node in entries:
            if group not in labels:
                labels[group] = _unique(label, set(labels.values()))
            for field, constraint in constraints(type(node)).items():
                wanted = field if bare else f"{labels[group]}_{field}"
                name = _unique(wanted, taken)
                taken.add(name)
                slots.append(Slot(name, path, field, node, constraint))
        return slots

    @property
    def _runs_user_code(self) -> bool:
        """Whether a formula or function from outside the package takes part in it, in this node itself."""
        return not type(self).__module__.startswith("mercer.")

    @classmethod
    def _has_parameters(cls) -> bool:
        return bool(constraints(cls))

    def _nodes(self) -> Iterator["Parametrized"]:
        yield self
        for _, child in self._children():
            yield from child._nodes()

    def _changed(self, names, change):
        """A copy in which ``change(slot, node)`` gives new fields for the node of each named parameter."""
        slots = {slot.name: slot for slot in self._slots()}
        new = self
        for name in names:
            if name not in slots:
                close = difflib.get_close_matches(str(name), slots, n=1)
                raise ParameterError(
                    f"no parameter {name!r}; there are: {', '.join(slots) or 'none'}."
                    + (f" Did you mean {close[0]!r}?" if close else "")
                )
            path, node = slots[name].path, new
            for field, index in path:
                node = getattr(node, field) if index is None else getattr(node, field)[index]
            new = new._evolve_at(path, **change(slots[name], node))
        return new

    # -- what people call ----------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Parameters:
        """Readable, unique names to values on the natural scale. Prints as a table."""
        return Parameters(self._slots())

    def replace(self, **values):
        """A copy with other parameter values, by the names in `parameters`."""
        return self._changed(
            values, lambda slot, node: {slot.field: node._checked(slot.field, slot.constraint, values[slot.name])}
        )

    def fix(self, *names: str):
        """A copy in which learning leaves these parameters alone (all of them if none is named)."""
        return self._changed(names or self.parameters, lambda slot, node: {"fixed": node.fixed | {slot.field}})

    def free(self, *names: str):
        """A copy in which learning may move these parameters again (all of them if none is named)."""
        return self._changed(names or self.parameters, lambda slot, node: {"fixed": node.fixed - {slot.field}})

    def with_priors(self, **priors):
        """A copy with a prior (from `mercer.priors`) on each named parameter; None removes one."""
        for name, prior in priors.items():
            if prior is not None and not callable(getattr(prior, "log_density", None)):
                raise ParameterError(f"the prior of {name!r} must come from mercer.priors; got {prior!r}.")

        def change(slot, node):
            kept = {**dict(node.priors), slot.field: priors[slot.name]}
            return {"priors": tuple((field, prior) for field, prior in sorted(kept.items()) if prior is not None)}

        return self._changed(priors, change)

    def named(self, name: str):
        """A copy that carries a name, which prefixes the names of its parameters."""
        new = self._evolve(name=name)
        Parametrized.__post_init__(new)
        return new

    def __setstate__(self, state):
        for name, value in state.items():  # arrays come out of a pickle writable
            object.__setattr__(self, name, as_float(value) if isinstance(value, np.ndarray) else value)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(self._arguments())})"

    def _arguments(self) -> list[str]:
        fields = [field.name for field in dataclasses.fields(self) if field.name not in ("fixed", "priors")]
        fields.sort(key=lambda name: name == "name")  # the keyword comes last
        return [f"{name}={show(getattr(self, name))}" for name in fields if getattr(self, name) is not None]

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = jax.tree.leaves(self), jax.tree.leaves(other)
        shape: Any = jax.tree.structure(self)
        other_shape: Any = jax.tree.structure(other)
        return bool(shape == other_shape) and all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))

    def __hash__(self):
        return hash(jax.tree.structure(self))


def plain(value):
    """A NumPy number as Python's own, for settings that are not parameters."""
    return value.item() if isinstance(value, np.number) else value


def show(value) -> str:
    """A field as `repr` writes it."""
    if is_traced(value):
        return "<traced>"
    if isinstance(value, float | np.floating | np.ndarray | jax.Array):
        return number(value)
    return repr(value)


def _unique(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name
