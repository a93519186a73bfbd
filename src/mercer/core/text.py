"""Plain-text layout shared by everything that prints."""

from collections.abc import Iterable, Sequence

import numpy as np


def number(value) -> str:
    """A number or a short vector, as a person would write it.

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


def rounded(value, digits: int = 4):
    """Numbers as a person would quote them: to so many significant digits.

    >>> rounded(0.123456), rounded([1234.56, 2.0]).tolist()
    (np.float64(0.1235), [1235.0, 2.0])
    """
    array = np.asarray(value, dtype=float)
    return np.array([float(f"{v:.{digits}g}") for v in array.ravel()]).reshape(array.shape)[()]


def listed(names: Sequence[str], most: int = 12) -> str:
    """The first of some names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns under a header.

    >>> print(table(["name", "value"], [["lengthscale", "1.0"]]))
    name         value
    lengthscale  1.0
    """
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def tree(root, label, children, indent: str = "") -> str:
    """A tree drawn with branches; ``label(node)`` is its line, ``children(node)`` its branches."""
    lines = [label(root)]
    branches = list(children(root))
    for i, branch in enumerate(branches):
        last = i == len(branches) - 1
        head, *rest = tree(branch, label, children).splitlines()
        lines.append(("└─ " if last else "├─ ") + head)
        lines += [("   " if last else "│  ") + line for line in rest]
    return "\n".join(indent + line for line in lines)
