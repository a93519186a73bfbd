"""Variance components of a fitted sum of kernels, and the effect of every group: the tables of a mixed model.

A term ``1.0 * Categorical().on("site")`` is a random effect of the site; products with `Categorical` on other columns
are nested effects, and with `Linear` on one column random slopes in it.
"""

import dataclasses
import warnings
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ModelWarning
from mercer.core.inputs import Inputs, as_matrix, as_objects, column_names, select_columns, take_rows
from mercer.core.parameters import nodes_of
from mercer.core.text import table
from mercer.kernels import Categorical, Kernel, Linear
from mercer.kernels.algebra import Product, Scale, split_white, terms_of
from mercer.kernels.substitution import On
from mercer.learning.choice import quoted

MAX_SHOWN_GROUPS = 20  # of each term, in print


class Component(NamedTuple):
    """A term: its standard deviation, that of slopes for a random slope, and its share of the variance of the rows."""

    term: str
    deviation: float
    share: float


@dataclasses.dataclass(frozen=True, eq=False)
class GroupEffects:
    """The effect of each group: posterior mean (the best linear unbiased prediction) and standard deviation."""

    term: str
    groups: list[Any]
    mean: np.ndarray
    deviation: np.ndarray

    def __repr__(self) -> str:
        rows = [
            [_shown(group), f"{mean:.4g}", f"{deviation:.3g}"]
            for group, mean, deviation in zip(self.groups, self.mean, self.deviation, strict=True)
        ]
        more = [] if len(rows) <= MAX_SHOWN_GROUPS else [[f"... {len(rows) - MAX_SHOWN_GROUPS} more", "", ""]]
        return table([self.term, "effect", "standard deviation"], rows[:MAX_SHOWN_GROUPS] + more)


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """``components``, one for each term and the noise; ``groups``, the effects of each term on categories. Prints as
    tables; ``effects["site"]`` is one of ``groups``."""

    components: list[Component]
    groups: dict[str, GroupEffects]

    def __getitem__(self, term: str) -> GroupEffects:
        if term not in self.groups:
            raise DataError(f"there is no term of groups {term!r}; there are: {', '.join(self.groups) or 'none'}.")
        return self.groups[term]

    def __repr__(self) -> str:
        rows = [[found.term, f"{found.deviation:.4g}", f"{found.share:.1%}"] for found in self.components]
        tables = [table(["term", "standard deviation", "share of variance"], rows), *map(repr, self.groups.values())]
        return "\n\n".join(tables)


def effects(kernel: Kernel, posterior: Any, noise: float, scale: float) -> Effects:
    """Effects in units of y, or of the latent function of another likelihood, of a ``posterior`` in units of ``scale``;
    ``noise`` is a variance, in units of y."""
    X = posterior.data[0]
    rows = gram.kept(posterior, kernel, X)
    components: list[tuple[str, float, float]] = []  # label, standard deviation and variance
    groups: dict[str, GroupEffects] = {}
    for i, part in enumerate(terms_of(kernel)):
        found = _grouped(part, X)
        label = _unique(_label(part, found), [label for label, *_ in components])
        variance = float(np.mean(gram.diagonal(part, rows))) * scale**2
        deviation = np.sqrt(variance)
        if found is not None:
            _warn_of_confounding(found, label)
            names, which, inputs = found.representatives()
            chosen = take_rows(X, which)
            _, mean, own = posterior.terms(chosen)[i]
            deviation = np.sqrt(gram.diagonal(part, chosen)[0]) * scale / abs(inputs[0])
            groups[label] = GroupEffects(label, names, mean * scale / inputs, np.sqrt(own) * scale / np.abs(inputs))
        components.append((label, float(deviation), variance))
    white = split_white(kernel)[1] * scale**2 + noise
    total = sum(variance for *_, variance in components) + white
    components.append(("noise", float(np.sqrt(white)), white))
    return Effects([Component(label, deviation, v / total) for label, deviation, v in components], groups)


def _warn_of_confounding(found: "Grouped", label: str) -> None:
    """Warn of groups whose effects the rows do not tell from the mean, or from the noise."""
    count = len(set(found.keys))
    if found.slope is None and count in (1, len(found.keys)):
        one = count == 1
        what, other = ("only one group", "mean") if one else ("a group of its own for every row", "noise")
        warnings.warn(
            f"the term {label!r} has {what}: its effects cannot be told from the {other}, and how they share the "
            "variance is a matter of where learning started, or of priors. Leave the term out.",
            ModelWarning,
            stacklevel=4,
        )


class Grouped(NamedTuple):
    """A term that has one number for each group: the columns that make the group, the group of every row, and the input
    that the number multiplies, which is one for an intercept."""

    columns: list[str]
    slope: str | None
    keys: list[Any]
    input: np.ndarray

    def representatives(self) -> tuple[list[Any], np.ndarray, np.ndarray]:
        """Groups, sorted; the row of each with the largest input, and that. A group of zeros has no slope."""
        rows: dict[Any, int] = {}
        for row in np.argsort(-np.abs(self.input), kind="stable"):
            if self.input[row] != 0:
                rows.setdefault(self.keys[row], int(row))
        try:
            names = sorted(rows)
        except TypeError:
            names = sorted(rows, key=str)
        which = np.array([rows[name] for name in names])
        return names, which, self.input[which]


def _grouped(kernel: Kernel, X: Inputs) -> Grouped | None:
    """The term as one number for each group; None if it is not of that form."""
    categories, lines = [], []
    for node, selection in _factors(kernel, None):
        if isinstance(node, Categorical):
            categories.append(selection)
        elif isinstance(node, Linear) and node.A is None:
            lines.append(selection)
        else:
            return None
    if not categories or len(lines) > 1:
        return None
    try:
        keys = [as_objects(X if selection is None else select_columns(X, selection)) for selection in categories]
        line = np.ones((len(keys[0]), 1)) if not lines else as_matrix(_selected(X, lines[0]))
    except DataError:
        return None
    if line.shape[1] != 1 or not line.any():
        return None
    flat = [tuple(part for each in row for part in _parts(each)) for row in zip(*keys, strict=True)]
    joined = [row[0] if len(row) == 1 else row for row in flat]
    names = column_names(X)
    columns = [name for selection in categories for name in _names(selection, names)]
    slope = _names(lines[0], names)[0] if lines else None
    return Grouped(list(dict.fromkeys(columns)), slope, joined, line[:, 0])


def _factors(kernel: Kernel, selection: Any) -> list[tuple[Kernel, Any]]:
    """Factors of a product without their variances, with the columns they are on; None: all."""
    if isinstance(kernel, Scale):
        return _factors(kernel.inner, selection)
    if isinstance(kernel, Product):
        return [found for part in kernel.parts for found in _factors(part, selection)]
    if isinstance(kernel, On) and selection is None:
        return _factors(kernel.inner, kernel.selection)
    return [(kernel, selection)]


def _selected(X: Inputs, selection: Any) -> Any:
    return X if selection is None else select_columns(X, selection)


def _names(selection: Any, names: list[str] | None) -> list[str]:
    if selection is None:
        return ["group"] if names is None else names
    chosen = range(len(names or []))[selection] if isinstance(selection, slice) else selection
    return [c if isinstance(c, str) else f"x{c}" if names is None else names[c] for c in chosen]


def _parts(item: Any) -> tuple[Any, ...]:
    item = item.tolist() if hasattr(item, "tolist") else item
    return tuple(item) if isinstance(item, list | tuple) else (item,)


def _shown(group: Any) -> str:
    return " : ".join(map(str, group)) if isinstance(group, tuple) else str(group)


def _label(part: Kernel, found: Grouped | None) -> str:
    """Its name; or the columns of its groups, as in "site : plot", with a slope "x | site"; or its expression."""
    name = term_name(part)
    if name or found is None:
        return name or repr(quoted(part))
    group = " : ".join(found.columns)
    return group if found.slope is None else f"{found.slope} | {group}"


def term_name(part: Kernel) -> str:
    """Name that the user gave to a term, or to its factors; empty if there is none."""
    return part.name or " * ".join(node.name for node in nodes_of(part) if node.name)


def _unique(label: str, taken: list[str]) -> str:
    while label in taken:
        label += "'"
    return label
