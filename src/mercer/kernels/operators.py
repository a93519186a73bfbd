"""Linear operators on functions: values, derivatives, integrals, what else is linear, and their sums and products.

An operator turns a function g into another, x -> (L g)(x). Applied to both arguments of a kernel it gives the
covariance of linear observations (Graepel 2003): cov((L f)(x), (M f)(z)) = L_x M_z k(x, z). Functions are of one input,
a vector, and are differentiated by JAX; integrals are sums over the nodes of a Gauss-Legendre rule.
"""

import functools
import itertools
import math
import operator as arithmetic
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.parameters import Parametrized, evolve, nodes_of, show
from mercer.core.precision import as_float, concretely, is_traced
from mercer.core.registry import storable
from mercer.kernels.functions import RowFunction, hashable

register = storable("operators")  # class decorator: saved models may contain it

Scalar = Callable[[jax.Array], jax.Array]  # a function of one input (d,), which returns a number
Orders = tuple[int, ...]  # of derivatives, one for each input

TOLERANCE = 1e-8  # of values of an operator that should be linear, relative to the largest
SCALES = (2.0**14, 2.0**16)  # of the waves that measure how many derivatives a function of functions takes


class Rule(NamedTuple):
    """Nodes and weights (Q,) of quadrature on [0, 1], and where the function has kinks: for each input the positions
    (m,); None for a function without any."""

    nodes: Any
    weights: Any
    kinks: Any = None

    def around(self, kinks: Any) -> "Rule":
        return self if self.kinks is None else self._replace(kinks=jax.lax.stop_gradient(kinks))


class Operator(Parametrized):
    """A linear operator. Operators add up, ``L + M``; are multiplied by numbers, ``2.0 * L``, and by functions of the
    input, ``c * L`` for (c L f)(x) = c(x) (L f)(x); and ``L @ M`` applies first M, then L."""

    __array_ufunc__ = None  # a NumPy number times an operator calls __rmul__

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        """The function L g."""
        raise NotImplementedError

    def orders(self, d: int) -> set[Orders]:
        """Derivatives that it takes: one entry for each of its terms."""
        return {(0,) * d}

    def ends(self, x: jax.Array) -> list[list[Any]]:
        """For each input, positions at which z -> L_x k(x, z) may have kinks where k has one at z = x."""
        return [[x[i]] for i in range(x.shape[0])]

    def resolved(self, names: Sequence[str] | None, d: int) -> Self:
        """With columns as positions among d, which have these names."""
        return self

    def at_rows(self, n: int, d: int) -> "list[Operator] | None":
        """One operator for each of n rows, if it has numbers for each; else None."""
        return None

    @property
    def is_value(self) -> bool:
        """Whether it is the identity."""
        return False

    def __add__(self, other: Any) -> "Operator":
        return Total((*_terms(self), *_terms(other))) if isinstance(other, Operator) else NotImplemented

    def __radd__(self, other: Any) -> "Operator":
        return self if isinstance(other, int | float) and other == 0 else NotImplemented  # for `sum`

    def __sub__(self, other: Any) -> "Operator":
        return self + -1.0 * other if isinstance(other, Operator) else NotImplemented

    def __neg__(self) -> "Operator":
        return -1.0 * self

    def __mul__(self, factor: Any) -> "Operator":
        if isinstance(factor, Operator):
            raise ParameterError(
                "a product of operators is written L @ M: first M, then L. The product of two values of a function "
                "is not linear in it."
            )
        if callable(factor):
            return Weighted(self, factor)
        try:
            factor = as_float(factor)
        except (TypeError, ValueError):
            return NotImplemented
        if np.ndim(factor) or not np.isfinite(factor):
            raise ParameterError(f"operators are multiplied by finite numbers, or functions of x; got {show(factor)}.")
        if isinstance(self, Scaled):
            return Scaled(self.inner, self.factor * factor)
        return Total(tuple(part * factor for part in self.parts)) if isinstance(self, Total) else Scaled(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> "Operator":
        return self * (1.0 / as_float(divisor))

    def __matmul__(self, inner: Any) -> "Operator":
        return Composed(self, inner) if isinstance(inner, Operator) else NotImplemented


def _terms(operator: Operator) -> tuple[Operator, ...]:
    return operator.parts if isinstance(operator, Total) else (operator,)


@register
class Value(Operator):
    """f(x) itself."""

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        return g

    @property
    def is_value(self) -> bool:
        return True


@register
class Derivative(Operator):
    """The derivative of this ``order`` with respect to one input: a column by index, or by name for frames.

    >>> 0.5 * Derivative(0, order=2) + Value()
    0.5 * Derivative(0, order=2) + Value()
    """

    column: Any = eqx.field(default=0, static=True)
    order: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        if isinstance(self.column, bool) or not isinstance(self.column, str | int | np.integer):
            raise ParameterError(f"Derivative.column must be the index or the name of an input; got {self.column!r}.")
        if isinstance(self.order, bool) or not isinstance(self.order, int | np.integer) or self.order < 1:
            raise ParameterError(f"Derivative.order must be a positive integer; got {self.order!r}.")

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        def derivative(x: jax.Array) -> jax.Array:
            direction = jnp.zeros_like(x).at[self.column].set(1.0)
            along = lambda t: g(x + t * direction)
            for _ in range(self.order):
                along = functools.partial(_slope, along)
            return along(jnp.zeros_like(x[0]))

        return derivative

    def orders(self, d: int) -> set[Orders]:
        return {tuple(int(self.order) if i == self.column else 0 for i in range(d))}

    def resolved(self, names: Sequence[str] | None, d: int) -> "Derivative":
        return evolve(self, column=position(self.column, names, d))

    def __repr__(self) -> str:
        return f"Derivative({self.column!r}{'' if self.order == 1 else f', order={self.order}'})"


def _slope(f: Scalar, t: jax.Array) -> jax.Array:
    return jax.jvp(f, (t,), (jnp.ones_like(t),))[1]


@register
class Integral(Operator):
    """The integral over an interval, or over a box with one limit for each input.

    ``lower`` and ``upper`` are numbers, or vectors with one entry for each column integrated over; a limit that is None
    is the row's own value, so that ``Integral(0.0, None)`` is the integral from 0 to x. ``column`` (an index, a name,
    or several) selects inputs to integrate over, the others being as in the row; None is all of them, and then values
    in the row that no limit takes do not matter. For different intervals give one operator for each row, or with one
    column arrays of limits, one for each row.
    """

    lower: Any = None
    upper: Any = None
    column: Any = eqx.field(default=None, static=True, converter=lambda column: _columns(column))

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("lower", "upper"):
            value = getattr(self, field)
            if value is None or is_traced(value):
                continue
            try:
                value = as_float(value)
            except (TypeError, ValueError):
                value = np.array(np.nan)
            if np.ndim(value) > 1 or not np.isfinite(value).all():
                raise ParameterError(
                    f"Integral.{field} must be a finite number, one for each column integrated over, or None for the "
                    f"row's own value; got {getattr(self, field)!r}. Cut an infinite range where the function is zero."
                )
            object.__setattr__(self, field, value)
        if self.lower is None and self.upper is None:
            raise ParameterError("an integral needs lower=..., upper=..., or both.")

    def _over(self, d: int) -> tuple[int, ...]:
        return tuple(range(d)) if self.column is None else self.column

    def _limits(self, x: Any) -> list[tuple[int, Any, Any]]:
        """Column, lower and upper limit."""
        over = self._over(x.shape[0])

        def limit(value: Any, i: int, c: int) -> Any:
            return x[c] if value is None else jnp.asarray(value) if np.ndim(value) == 0 else value[i]

        return [(c, limit(self.lower, i, c), limit(self.upper, i, c)) for i, c in enumerate(over)]

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        def integral(x: jax.Array) -> jax.Array:
            h = g
            for c, low, high in self._limits(x):
                h = functools.partial(_integrated, h, rule, c, low, high)
            return h(x)

        return integral

    def ends(self, x: jax.Array) -> list[list[Any]]:
        found = super().ends(x)
        for c, low, high in self._limits(x):
            found[c] = [low, high]
        return found

    def resolved(self, names: Sequence[str] | None, d: int) -> "Integral":
        over = None if self.column is None else tuple(position(c, names, d) for c in self.column)
        width = d if over is None else len(over)
        for value in (self.lower, self.upper):
            if np.ndim(value) and len(value) != width:
                raise ParameterError(
                    f"{self!r} has {len(value)} limits for {width} column{'s' * (width > 1)}. Give one for each, or a "
                    "list of operators, one for each row."
                )
        return evolve(self, column=over)

    def at_rows(self, n: int, d: int) -> "list[Operator] | None":
        width = d if self.column is None else len(self.column)
        sizes = {len(value) for value in (self.lower, self.upper) if np.ndim(value)}
        if width > 1 or not sizes or sizes == {1}:
            return None
        if sizes - {1} != {n}:
            raise ParameterError(f"{self!r} has limits for {max(sizes)} rows; X has {n}.")
        pick = lambda value, i: value if np.ndim(value) == 0 else value[i if len(value) > 1 else 0]
        return [evolve(self, lower=pick(self.lower, i), upper=pick(self.upper, i)) for i in range(n)]

    def __repr__(self) -> str:
        column = "" if self.column is None else f", column={self.column[0] if len(self.column) == 1 else self.column!r}"
        low, high = (None if v is None else show(v) for v in (self.lower, self.upper))
        return f"Integral({low}, {high}{column})"


def _integrated(g: Scalar, rule: Rule, c: int, low: jax.Array, high: jax.Array, x: jax.Array) -> jax.Array:
    """Integral of g over column c: by pieces between kinks, on each of which g is smooth."""
    cuts = (
        []
        if rule.kinks is None
        else [jnp.clip(k, jnp.minimum(low, high), jnp.maximum(low, high)) for k in rule.kinks[c]]
    )
    inner = jnp.sort(jnp.stack(cuts)) if cuts else jnp.zeros(0)
    inner = jnp.where(low <= high, inner, inner[::-1]) if cuts else inner
    edges = jnp.concatenate([jnp.reshape(low, 1), inner, jnp.reshape(high, 1)])
    widths = jnp.diff(edges)
    nodes = jnp.ravel(edges[:-1, None] + widths[:, None] * rule.nodes)
    return jnp.ravel(widths[:, None] * rule.weights) @ jax.vmap(lambda t: g(x.at[c].set(t)))(nodes)


@register
class Linear(Operator):
    """Any linear operator: ``transform`` takes a function of one input and returns another.

    It is written in JAX: ``Linear(lambda f: lambda x: jax.grad(f)(x)[0] - x[0] * f(x))``. With one column, x may
    also be used as a number. It is tried on a few functions, and refused if it is not linear. ``order`` is the highest
    derivative that it takes, which decides whether a kernel is smooth enough; None measures it.
    """

    transform: Any = eqx.field(static=True, converter=hashable)
    order: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if not callable(self.transform):
            raise ParameterError(f"Linear takes a function that turns a function into another; got {self.transform!r}.")

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        def transformed(x: jax.Array) -> jax.Array:
            d = x.shape[0]
            one = lambda u: g(jnp.reshape(u, (d,)))
            if _takes_vectors(self.transform, d):
                return jnp.reshape(self.transform(one)(x), ())
            return jnp.reshape(self.transform(one)(x[0]), ())

        return transformed

    def orders(self, d: int) -> set[Orders]:
        if self.order is not None:
            each = [range(self.order + 1)] * d
            return {o for o in itertools.product(*each) if sum(o) == self.order}
        return {_found_orders(self, d)}

    def resolved(self, names: Sequence[str] | None, d: int) -> "Linear":
        _check_linear(self, d)
        return self

    def __repr__(self) -> str:
        return f"Linear({getattr(self.transform, '__name__', None) or repr(self.transform)})"


_NO_RULE = Rule(np.array([0.5]), np.array([1.0]))


def _wave(scale: Any, direction: np.ndarray, phase: float, centre: np.ndarray) -> Scalar:
    return lambda x: jnp.cos(scale * jnp.sum(direction * (x - centre)) + phase)


@functools.lru_cache(maxsize=256)
def _takes_vectors(transform: Callable, d: int) -> bool:
    """Whether a transformed function takes vectors; with one column it may take numbers instead."""

    def shape(x: Any) -> Any:
        with concretely():
            apply = transform(lambda u: jnp.sin(jnp.sum(jnp.reshape(u, (d,)))))
            return jax.eval_shape(lambda x: jnp.asarray(apply(x)), x).shape

    failure = None
    for vectors, x in ((True, jnp.full(d, 0.5)), (False, jnp.asarray(0.5))):
        if not vectors and d > 1:
            break
        try:
            if math.prod(shape(x)) == 1:
                return vectors
        except Exception as error:
            failure = failure or error
    says = f"it failed: {failure}" if failure else "it returned several"
    if isinstance(failure, jax.errors.JAXTypeError):  # whose text is long, and of JAX
        says = (
            "it cannot be traced by JAX: it asks for the value of x or f(x), as float(), math and NumPy functions and "
            "if do. Use jax.numpy, and jnp.where instead of if"
        )
    raise ParameterError(
        f"Linear takes a JAX transformation of a function f of one input of {d} column{'s' * (d > 1)} that returns one "
        f"number, such as lambda f: lambda x: jax.grad(f)(x)[0]; {says}."
    )


@functools.lru_cache(maxsize=256)
def _check_linear(operator: Linear, d: int) -> None:
    rng = np.random.default_rng(0)
    f, g = (_wave(1.0, rng.normal(size=d), phase, np.zeros(d)) for phase in (0.3, 1.1))
    with concretely():
        for x in jnp.asarray(rng.normal(size=(3, d))):
            one, two, both = (float(operator.apply(h, _NO_RULE)(x)) for h in (f, g, lambda x: 2.0 * f(x) - 3.0 * g(x)))
            size = max(abs(one), abs(two), abs(both))
            if math.isfinite(size) and abs(2.0 * one - 3.0 * two - both) > TOLERANCE * size:
                raise ParameterError(f"{operator!r} is not linear: L(2 f - 3 g) differs from 2 L f - 3 L g.")


@functools.lru_cache(maxsize=256)
def _found_orders(operator: Linear, d: int) -> Orders:
    """How many derivatives it takes in each input: the power of the frequency by which waves along it grow."""
    found = []
    rng = np.random.default_rng(1)
    for i in range(d):
        size = np.zeros(2)
        for x in rng.normal(size=(3, d)):
            for j, scale in enumerate(SCALES):
                for phase in (0.4, 0.4 + np.pi / 2):
                    with concretely():
                        value = operator.apply(_wave(scale, np.eye(d)[i], phase, x), _NO_RULE)(jnp.asarray(x))
                    size[j] = max(size[j], abs(float(value)))
        growth = math.log(size[1] / size[0]) / math.log(SCALES[1] / SCALES[0]) if size.all() else 0.0
        found.append(max(round(growth), 0) if math.isfinite(growth) else 0)
    return tuple(found)


@register
class Total(Operator):
    """L + M + ..."""

    parts: tuple[Operator, ...]

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        terms = [part.apply(g, rule) for part in self.parts]
        return lambda x: functools.reduce(arithmetic.add, [term(x) for term in terms])

    def orders(self, d: int) -> set[Orders]:
        return set().union(*(part.orders(d) for part in self.parts))

    def ends(self, x: jax.Array) -> list[list[Any]]:
        return _joined([part.ends(x) for part in self.parts])

    def resolved(self, names: Sequence[str] | None, d: int) -> "Total":
        return evolve(self, parts=tuple(part.resolved(names, d) for part in self.parts))

    def at_rows(self, n: int, d: int) -> list[Operator] | None:
        found = [part.at_rows(n, d) for part in self.parts]
        if all(each is None for each in found):
            return None
        each = [[part] * n if own is None else own for part, own in zip(self.parts, found, strict=True)]
        return [evolve(self, parts=parts) for parts in zip(*each, strict=True)]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts)).replace("+ -", "- ")


def _joined(ends: list[list[list[Any]]]) -> list[list[Any]]:
    joined: list[list[Any]] = []
    for each in zip(*ends, strict=True):
        own: list[Any] = []
        for position in itertools.chain(*each):  # the same value, as of local operators, once
            own += [] if any(position is known for known in own) else [position]
        joined.append(own)
    return joined


class _Around(Operator):
    """Made from one other operator."""

    inner: Operator

    def orders(self, d: int) -> set[Orders]:
        return self.inner.orders(d)

    def ends(self, x: jax.Array) -> list[list[Any]]:
        return self.inner.ends(x)

    def resolved(self, names: Sequence[str] | None, d: int) -> Self:
        return evolve(self, inner=self.inner.resolved(names, d))

    def at_rows(self, n: int, d: int) -> list[Operator] | None:
        found = self.inner.at_rows(n, d)
        return None if found is None else [evolve(self, inner=each) for each in found]


@register
class Scaled(_Around):
    """A number times an operator."""

    factor: Any = 1.0

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        inner = self.inner.apply(g, rule)
        return lambda x: self.factor * inner(x)

    def __repr__(self) -> str:
        return f"{show(self.factor)} * {_bracketed(self.inner)}"


@register
class Weighted(_Around):
    """A function of the input times an operator: c(x) (L f)(x). The function is written with jax.numpy."""

    f: RowFunction = eqx.field(converter=RowFunction.of)

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        inner = self.inner.apply(g, rule)

        def weighted(x: jax.Array) -> jax.Array:
            values = self.f(x[None, :])
            if values.shape[1] != 1:
                raise DataError(f"a coefficient must return one number; {self.f!r} returned {values.shape[1]}.")
            return values[0, 0] * inner(x)

        return weighted

    def __repr__(self) -> str:
        return f"{self.f!r} * {_bracketed(self.inner)}"


@register
class Composed(Operator):
    """L @ M: first M (``inner``), then L (``outer``)."""

    outer: Operator
    inner: Operator

    def apply(self, g: Scalar, rule: Rule) -> Scalar:
        return self.outer.apply(self.inner.apply(g, rule), rule)

    def orders(self, d: int) -> set[Orders]:
        pairs = itertools.product(self.outer.orders(d), self.inner.orders(d))
        return {tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs}

    def ends(self, x: jax.Array) -> list[list[Any]]:
        return _joined([self.outer.ends(x), self.inner.ends(x)])

    def resolved(self, names: Sequence[str] | None, d: int) -> "Composed":
        return evolve(self, inner=self.inner.resolved(names, d), outer=self.outer.resolved(names, d))

    def at_rows(self, n: int, d: int) -> list[Operator] | None:
        found = self.outer.at_rows(n, d), self.inner.at_rows(n, d)
        if found == (None, None):
            return None
        outer, inner = (own or [part] * n for own, part in zip(found, (self.outer, self.inner), strict=True))
        return [Composed(*pair) for pair in zip(outer, inner, strict=True)]

    def __repr__(self) -> str:
        return f"{_bracketed(self.outer)} @ {_bracketed(self.inner)}"


def _bracketed(operator: Operator) -> str:
    return f"({operator!r})" if isinstance(operator, Total | Composed | Scaled | Weighted) else repr(operator)


# -- columns and rows ------------------------------------------------------------------------------------------------


def _columns(column: Any) -> tuple[Any, ...] | None:
    if column is None:
        return None
    found = (column,) if isinstance(column, str | int | np.integer) else tuple(column)
    if not found or not all(isinstance(c, str | int | np.integer) and not isinstance(c, bool) for c in found):
        raise ParameterError(f"columns of an integral are indices or names of inputs; got {column!r}.")
    return found


def integrates(operator: Operator) -> bool:
    """Whether there is an integral in it."""
    return any(isinstance(node, Integral) for node in nodes_of(operator))


def open_ended(operator: Operator) -> bool:
    """Whether the range of an integral in it depends on the row."""
    return any(isinstance(node, Integral) and (node.lower is None or node.upper is None) for node in nodes_of(operator))


def columns_integrated(operator: Operator, d: int) -> int:
    """Number of columns that an integral in it is over, at most."""
    return max((len(node._over(d)) for node in nodes_of(operator) if isinstance(node, Integral)), default=0)


def position(column: Any, names: Sequence[str] | None, d: int) -> int:
    """Index of a column among d, which have these names."""
    if isinstance(column, str):
        if names is None or column not in names:
            known = "X has no column names" if names is None else f"it has {list(names)}"
            raise DataError(f"an operator refers to column {column!r}, and X has no such column: {known}.")
        return list(names).index(column)
    if not -d <= column < d:
        raise DataError(f"an operator refers to column {column}, but the inputs have {d} (0 to {d - 1}).")
    return int(column) % d


def as_operators(operator: Any, n: int, d: int, names: Sequence[str] | None) -> list[Operator]:
    """One operator for each of n rows, from one for all, or a list."""
    if isinstance(operator, Operator):
        each = operator.at_rows(n, d) or [operator]
    elif isinstance(operator, list | tuple | np.ndarray) and all(isinstance(one, Operator) for one in operator):
        each = list(operator)
        if len(each) != n:
            raise ParameterError(f"expected one operator, or one for each of {n} rows; got {len(each)}.")
    else:
        raise ParameterError(
            f"operator must be from mercer.operators, such as Derivative(0), or a list of them, one for each row; got "
            f"{operator!r}."
        )
    known: dict[int, Operator] = {}  # the same operator at many rows is resolved once
    resolved = [
        known.setdefault(id(one), one.resolved(names, d)) if id(one) not in known else known[id(one)] for one in each
    ]
    return resolved if len(resolved) == n else resolved * n
