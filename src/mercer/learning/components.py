"""Terms of a learned sum of kernels in plain language, each with its share of the variance of the data."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core import calendar
from mercer.core.inputs import Inputs
from mercer.core.text import listed
from mercer.kernels import RBF, Exponential, Line, Matern, Periodic, Seasonal, Step
from mercer.kernels.algebra import Product, Scale, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import On

ADJECTIVES = {"year": "yearly", "quarter": "quarterly", "month": "monthly", "week": "weekly", "day": "daily"}
CONSTANT_SHAPE_SPANS = 5.0  # of the data, over which a season that changes this slowly is called constant
IDLE_SPANS = 5.0  # from which on a function hardly varies along a column
WALK_SPANS = 3.0  # from which irregular variation does not come back to its mean


class Axis(NamedTuple):
    """A column: how a kernel selects it (None: it is the only one), its name, smallest value, range and step, whether
    it holds dates, and the periods of which it has enough."""

    column: Any
    name: str
    low: float
    span: float
    step: float
    dated: bool = False
    periods: tuple[Any, ...] = ()

    def length(self, value: float) -> str:
        """A distance along the column, in words."""
        if not self.dated:
            return f"{value:.3g}"
        for size, word in ((1.0, "years"), (1 / 12, "months"), (1 / calendar.DAYS_PER_YEAR, "days")):
            if value >= 0.95 * size or word == "days":
                shown = f"{value / size:.2g}"
                return f"{shown} {word[:-1] if shown == '1' else word}"
        return ""

    def place(self, value: float) -> str:
        if not self.dated:
            return f"{self.name} = {value:.4g}"
        return str(
            calendar.as_dates(np.array([value]))[0].astype("datetime64[M]" if self.span > 1 else "datetime64[D]")
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Component:
    """A term of the kernel: in words; its share of the variance; its posterior mean and standard deviation at the rows
    that were compared, in units of y. ``kernel`` is None for the noise."""

    text: str
    share: float
    kernel: Kernel | None
    mean: np.ndarray
    deviation: np.ndarray

    def __str__(self) -> str:
        return f"{self.share:6.1%}  {self.text}"


def components(
    kernel: Kernel, X: Inputs, target: np.ndarray, noise: float, scale: float, axes: Sequence[Axis]
) -> list[Component]:
    """Components of y = constant + sum_i f_i(x) + noise, the largest first and the noise last. ``target`` and ``noise``
    are in units of ``scale``; the constant is unknown. Shares are those of the variances of the posterior means, and of
    the residual. O(n^3)."""
    n, parts = len(target), terms_of(kernel)
    factor = gram.factored(kernel, X, noise)
    one, a = factor.solve(np.ones(n)), factor.solve(target)
    a = a - one * (one @ target) / one.sum()  # without the constant
    found, rest = [], target - target.mean()
    for part in parts:
        K = gram.within(part, X)
        mean = K @ a
        half, lost = factor.half_solve(np.asfortranarray(K)), K @ one
        left = np.diag(K) - np.einsum("ij,ij->j", half, half) + lost**2 / one.sum()
        rest = rest - (mean - mean.mean())
        found.append((part, mean * scale, np.sqrt(np.maximum(left, 0.0)) * scale))
    sizes = [float(mean.var()) for _, mean, _ in found]
    total = sum(sizes) + float(rest.var()) * scale**2 or 1.0
    named = [
        Component(in_words(part, axes), size / total, part, mean, deviation)
        for (part, mean, deviation), size in zip(found, sizes, strict=True)
    ]
    named.sort(key=lambda each: -each.share)
    left_over = f"noise, with a standard deviation of {math.sqrt(noise) * scale:.3g}"
    share = float(rest.var()) * scale**2 / total
    return [*named, Component(left_over, share, None, rest * scale, np.full(n, math.sqrt(noise) * scale))]


def residual(kernel: Kernel, X: Inputs, target: np.ndarray, noise: float) -> np.ndarray:
    """Residual of the target around the posterior mean of the sum of all terms and an unknown constant."""
    factor, ones = gram.factored(kernel, X, noise), np.ones(len(target))
    one, a = factor.solve(ones), factor.solve(target)
    return np.asarray(noise * (a - one * (one @ target) / one.sum()))


# -- words ---------------------------------------------------------------------------------------------------------


def in_words(term: Kernel, axes: Sequence[Axis]) -> str:
    """A product of kernels in plain language; its expression where there is a kernel without words."""
    factors = factors_of(term)
    by_column = {axis.column: axis for axis in axes}
    known = [(node, by_column.get(column, axes[0] if len(axes) == 1 else None)) for node, column in factors]
    if all(type(node) in (RBF, Matern) and axis is None for node, axis in known) and len(known) == 1:
        return _together(known[0][0], axes)
    if any(axis is None or type(node) not in _WORDS for node, axis in known):
        return repr(term)
    order = list(_WORDS)
    known = [pair for pair in known if not _is_idle(*pair)] or known[:1]
    known.sort(key=lambda pair: order.index(type(pair[0])))
    (head, axis), *rest = known
    assert axis is not None
    own = len(axes) > 1 and not (axis.dated and isinstance(head, Seasonal | Periodic))
    if isinstance(head, Periodic):
        changes = [node for node, other in rest if type(node) in _CHANGES and other is axis]
        rest = [pair for pair in rest if not any(pair[0] is change for change in changes)]
        text = _repeated(head, changes, axis, own)
    else:
        text = _WORDS[type(head)](head, axis, own)
    for node, other in rest:
        assert other is not None
        if isinstance(node, Line | Step):
            text += f", {_size(node, other)}"
        elif other.column == axis.column:
            text += f", times {_WORDS[type(node)](node, other, False)}"
        else:
            text += f", which changes with {other.name} over about {other.length(float(node.lengthscale))}"  # type: ignore[attr-defined]
    return text


def _together(node: Any, axes: Sequence[Axis]) -> str:
    """A function of several columns, of which those with influence are named."""
    sizes = np.broadcast_to(node.lengthscale, len(axes)) if np.size(node.lengthscale) in (1, len(axes)) else None
    kind = "smooth" if isinstance(node, RBF) else "rough"
    if sizes is None:  # of columns that do not vary too
        return f"a {kind} function of {listed([axis.name for axis in axes])} together"
    spans = [float(size) / axis.span for size, axis in zip(sizes, axes, strict=True)]
    named = [i for i, span in enumerate(spans) if span <= IDLE_SPANS] or [int(np.argmin(spans))]
    if len(named) == 1:
        (i,) = named
        return (_smooth if kind == "smooth" else _rough)(_Length(float(sizes[i])), axes[i], True)
    return f"a {kind} function of {listed([axes[i].name for i in named])} together"


class _Length(NamedTuple):
    lengthscale: float


def _is_idle(node: Kernel, axis: Axis | None) -> bool:
    """Whether a factor hardly varies along its column."""
    return isinstance(node, RBF | Matern) and axis is not None and _size_of(node) > IDLE_SPANS * axis.span


def _size_of(node: Any) -> float:
    return float(np.max(node.lengthscale))


def factors_of(kernel: Kernel, column: Any = None) -> list[tuple[Kernel, Any]]:
    """Factors of a product without their variances, each with the one column that it is on, or None."""
    if isinstance(kernel, Scale):
        return factors_of(kernel.inner, column)
    if isinstance(kernel, Product):
        return [found for part in kernel.parts for found in factors_of(part, column)]
    if isinstance(kernel, On) and not isinstance(kernel.selection, slice) and len(kernel.selection) == 1:
        return factors_of(kernel.inner, kernel.selection[0])
    return [(kernel, column)]


def _season(node: Any, axis: Axis, own: bool) -> str:
    period = node.period
    length = {"year": 1.0, "quarter": 0.25, "month": 1 / 12, "week": 7 / 365.25, "day": 1 / 365.25}.get(period, period)
    kind = ADJECTIVES.get(period) or ("yearly" if axis.dated and abs(period - 1) < 0.02 else None)
    return _pattern(kind, period, float(node.decay) * float(length), axis, own)


def _repeated(node: Any, changes: Sequence[Any], axis: Axis, own: bool) -> str:
    period = float(np.max(node.period))
    time = min((float(np.max(change.lengthscale)) for change in changes), default=math.inf)
    return _pattern("yearly" if axis.dated and abs(period - 1) < 0.02 else None, period, time, axis, own)


def _pattern(kind: str | None, period: Any, time: float, axis: Axis, own: bool) -> str:
    """Of a kind or a period, with a shape that changes over this time."""
    length = "" if kind else axis.length(float(period)) if axis.dated else f"{float(period):.4g}"
    text = f"a {kind} pattern" if kind else f"a pattern that repeats every {length}"
    text += f" of {axis.name}" if own else ""
    if time > CONSTANT_SHAPE_SPANS * axis.span:
        return f"{text} of constant shape"
    return f"{text}{' and' if not kind else ' that'} changes slowly over about {axis.length(time)}"


def _smooth(node: Any, axis: Axis, own: bool) -> str:
    size = float(np.max(node.lengthscale))
    of = f" of {axis.name}" if own else ""
    if size > axis.span:
        return f"a slow trend{of} over the whole range"
    return f"a smooth {'function' if own else 'curve'}{of} that changes over about {axis.length(size)}"


def _rough(node: Any, axis: Axis, own: bool) -> str:
    size = float(np.max(node.lengthscale))
    of = f" of {axis.name}" if own else ""
    if size > WALK_SPANS * axis.span:
        return f"a random walk{' along ' + axis.name if own else ''}"
    return f"irregular variation{of} that fades over about {axis.length(size)}"


def _line(node: Any, axis: Axis, own: bool) -> str:
    return f"a straight line{' in ' + axis.name if own else ''}"


def _step(node: Any, axis: Axis, own: bool) -> str:
    return f"a change of level about {axis.place(_location(node, node.location))}"


_CHANGES = (RBF, Exponential, Matern)  # of a periodic shape
_WORDS: dict[Any, Any] = {
    Seasonal: _season, Periodic: lambda node, axis, own: _repeated(node, [], axis, own), RBF: _smooth,
    Exponential: _rough, Matern: _rough, Line: _line, Step: _step,
}  # fmt: skip


def _location(node: Any, value: Any) -> float:
    return float(node.start) + float(node.unit) * float(value)


def _size(node: Any, axis: Axis) -> str:
    """What a line or a step does to the size of what it multiplies."""
    if isinstance(node, Step):
        where = axis.place(_location(node, node.location))
        return f"until about {where}" if node.falling else f"from about {where} on"
    origin = _location(node, node.origin)
    along = "" if axis.column is None else f" with {axis.name}"
    if origin <= axis.low:
        return f"growing in size{along}"
    return f"shrinking in size{along}" if origin >= axis.low + axis.span else f"smallest about {axis.place(origin)}"
