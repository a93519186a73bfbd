"""Plain-text layout shared by everything that prints."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

Node = TypeVar("Node")


def number(value: ArrayLike) -> str:
    """Format a number or a vector as a person would write it.

    >>> number(0.1), number([1.0, 2.5]), number(np.arange(20.0))
    ('0.1', '[1.0, 2.5]', '[0.0, 1.0, 2.0, ..., 18.0, 19.0] (20)')
    """
    array = np.asarray(value, dtype=float)
    if array.ndim == 0:
        return repr(float(array))
    if array.ndim == 1 and array.size > 8:
        head, tail = (", ".join(number(v) for v in part) for part in (array[:3], array[-2:]))
        return f"[{head}, ..., {tail}] ({array.size})"
    if array.size > 64:
        return f"<array {'x'.join(map(str, array.shape))}>"
    return repr(array.tolist())


def rounded(value: ArrayLike, digits: int = 4) -> Any:
    """Round numbers to significant digits, for display.

    >>> rounded(0.123456), rounded([1234.56, 2.0]).tolist()
    (np.float64(0.1235), [1235.0, 2.0])
    """
    array = np.asarray(value, dtype=float)
    return np.array([float(f"{v:.{digits}g}") for v in array.ravel()]).reshape(array.shape)[()]


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Format the first names, and how many more there are.

    >>> listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table: left-aligned columns under a header.

    >>> print(table(["name", "value"], [["lengthscale", "1.0"]]))
    name         value
    lengthscale  1.0
    """
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def tree(root: Node, label: Callable[[Node], str], children: Callable[[Node], Iterable[Node]]) -> str:
    """Draw a tree; ``label(node)`` is the line of a node."""
    lines = [label(root)]
    branches = list(children(root))
    for i, branch in enumerate(branches):
        last = i == len(branches) - 1
        head, *rest = tree(branch, label, children).splitlines()
        lines.append(("└─ " if last else "├─ ") + head)
        lines += [("   " if last else "│  ") + line for line in rest]
    return "\n".join(lines)
