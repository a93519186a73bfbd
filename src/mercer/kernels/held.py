"""Parts of an expression without free parameters: their values stay the same while others are learned, so they are
computed once and enter the compiled program as arrays."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from mercer.core.parameters import evolve, nodes_of, slots_of
from mercer.kernels.algebra import Nary
from mercer.kernels.base import Kernel


class Held(Kernel):
    """Stand-in for a part of an expression: ``values`` of the pairs of rows that are being looked at."""

    values: Any = 0.0
    number: int = eqx.field(default=0, static=True)  # which of the parts held

    reads = "anything"
    needs_all_columns = False

    def prepare(self, X: Any, index: np.ndarray) -> np.ndarray:
        return index

    def block(self, X: Any, Z: Any) -> Any:
        return self.values


def hold(kernel: Kernel, rows: Any, index: np.ndarray) -> tuple[Kernel, Any, list[tuple[Kernel, Any]]]:
    """The expression with its largest parts without free parameters replaced by `Held`; its prepared rows, likewise;
    and those parts with theirs. Parts that cost nothing, constants and white noise, stay."""
    parts: list[tuple[Kernel, Any]] = []

    def visit(node: Kernel, rows: Any) -> tuple[Kernel, Any]:
        if node.reads_values and not any(slot.free for slot in slots_of(node)):
            parts.append((node, rows))
            return Held(number=len(parts) - 1), index
        if isinstance(node, Nary):
            pairs = [visit(part, part_rows) for part, part_rows in zip(node.parts, rows, strict=True)]
            held, below = zip(*pairs, strict=True)
            return evolve(node, parts=held), below
        if node.elementwise:
            inner, below = visit(node.inner, rows)  # type: ignore[attr-defined]
            return evolve(node, inner=inner), below
        return node, rows

    return *visit(kernel, rows), parts


def held_leaves(structure: Any) -> dict[int, int]:
    """Which leaf of the tree has the values of each part held."""
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    return {node.number: node.values for node in nodes_of(numbered) if isinstance(node, Held)}
