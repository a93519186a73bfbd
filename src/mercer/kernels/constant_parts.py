"""Parts of an expression without free parameters: they are constant while other parameters are learned, so they are
computed once and enter the compiled program as arrays."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from mercer.core.inputs import Inputs, Rows
from mercer.core.parameters import evolve, nodes_of, slots_of
from mercer.core.precision import Array
from mercer.kernels.algebra import Nary
from mercer.kernels.base import Kernel
from mercer.kernels.evaluate import on_host


class Held(Kernel):
    """Placeholder for a constant part of an expression: ``values`` are its block for the rows being evaluated."""

    values: Any = 0.0
    number: int = eqx.field(default=0, static=True)  # among the parts held

    reads = "anything"
    needs_all_columns = False

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return index

    def block(self, X: Rows, Z: Rows) -> Any:
        return self.values

    def block_diag(self, X: Rows) -> Any:
        return self.values


class HeldFeatures(Kernel):
    """Placeholder for a constant part of an expression: its prepared rows are its features."""

    reads = "anything"
    needs_all_columns = False

    def feature_block(self, X: Rows) -> Any:
        return X


def hold(kernel: Kernel, rows: Rows, index: np.ndarray) -> tuple[Kernel, Rows, list[tuple[Kernel, Rows]]]:
    """Replace the largest parts without free parameters by `Held`. Returns the expression, its prepared rows, and those
    parts with theirs. Parts that cost nothing, constants and white noise, stay."""
    parts: list[tuple[Kernel, Rows]] = []

    return *_replaced(kernel, rows, _constant, _numbered(parts, index)), parts


def hold_objects(kernel: Kernel, rows: Rows, index: np.ndarray) -> tuple[Kernel, Rows, list[tuple[Kernel, Rows]]]:
    """Replace the parts that are evaluated on the host by `Held`, so that the rest can be compiled. Returns the
    expression, its prepared rows, and those parts with theirs."""
    parts: list[tuple[Kernel, Rows]] = []
    on_objects = lambda node, rows: on_host(rows) and not node.elementwise
    return *_replaced(kernel, rows, on_objects, _numbered(parts, index)), parts


def _numbered(parts: list[tuple[Kernel, Rows]], index: np.ndarray) -> Callable[[Kernel, Rows], tuple[Kernel, Rows]]:
    """Placeholder for a part, which is appended to ``parts``."""

    def placeholder(node: Kernel, rows: Rows) -> tuple[Kernel, Rows]:
        parts.append((node, rows))
        return Held(number=len(parts) - 1), index

    return placeholder


def _constant(node: Kernel, rows: Rows) -> bool:
    return node.reads_values and not any(slot.free for slot in slots_of(node))


def hold_features(kernel: Kernel, rows: Rows) -> tuple[Kernel, Rows]:
    """Replace the largest parts without free parameters by `HeldFeatures`. Returns the expression and its rows."""
    features = lambda node, rows: (HeldFeatures(), np.asarray(node.feature_block(rows)))
    return _replaced(kernel, rows, _constant, features)


def _replaced(
    kernel: Kernel,
    rows: Rows,
    wanted: Callable[[Kernel, Rows], bool],
    placeholder: Callable[[Kernel, Rows], tuple[Kernel, Rows]],
) -> tuple[Kernel, Rows]:
    """The expression and its rows with ``placeholder(part, rows)`` for the largest parts that are ``wanted``."""

    def visit(node: Kernel, rows: Rows) -> tuple[Kernel, Rows]:
        if wanted(node, rows):
            return placeholder(node, rows)
        if isinstance(node, Nary):
            pairs = [visit(part, part_rows) for part, part_rows in zip(node.parts, rows, strict=True)]
            held, below = zip(*pairs, strict=True)
            return evolve(node, parts=held), below
        if node.elementwise:
            inner, below = visit(node.inner, rows)  # type: ignore[attr-defined]
            return evolve(node, inner=inner), below
        return node, rows

    return visit(kernel, rows)


def held_leaves(structure: Any) -> dict[int, int]:
    """Index of the leaf with the values of each part held."""
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    return {node.number: node.values for node in nodes_of(numbered) if isinstance(node, Held)}
