"""Kernels made of kernels: the ten rules of PRML 6.13-6.22, and (6.26).

Each class is one rule: what it does to Gram blocks, diagonals and features, and what it proves. Arithmetic on
Python's operators ends in `add`, `multiply`, `divide` and `power`, which refuse what the rules do not allow.
"""

import functools
import operator
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, InvalidKernelError, ParameterError
from mercer.core.inputs import select_columns
from mercer.core.parameters import NonNegative, Positive, positive
from mercer.core.precision import double, is_traced
from mercer.core.text import number
from mercer.kernels import convert
from mercer.kernels.base import Kernel
from mercer.kernels.evaluate import HostRows, on_host
from mercer.kernels.features import products, symmetric_power
from mercer.kernels.functions import RowFunction
from mercer.kernels.splines import NullSpace
from mercer.kernels.stationary import Constant, White
from mercer.kernels.validity import Validity, derive


def _all(values):
    """Three-valued and: False if any is False, None if any is None, else True."""
    values = list(values)
    return False if False in values else (None if None in values else True)


class Nary(Kernel):
    """Several kernels on the same inputs, joined elementwise."""

    _word: ClassVar[str]
    _transparent: ClassVar[bool] = True

    parts: tuple

    def prepare(self, X, index):
        return tuple(part.prepare(X, index) for part in self.parts)

    def _each(self, method, *rows):
        return [getattr(part, method)(*row) for part, *row in zip(self.parts, *rows, strict=True)]

    @property
    def stationary(self):
        return _all(part.stationary for part in self.parts)

    @property
    def isotropic(self):
        return _all(part.isotropic for part in self.parts)

    def _premises(self) -> tuple[bool, list[Validity]]:
        """Whether some part looks at some of the inputs, and what is known of each part over what it looks at."""
        premises = [part.inner.validity if isinstance(part, On) else part.validity for part in self.parts]
        return any(isinstance(node, On) for part in self.parts for node in part._nodes()), premises

    def __repr__(self):
        shown = [f"({part!r})" if part._strength < self._strength else repr(part) for part in self.parts]
        return _named(self, self._word.join(shown))


class Sum(Nary):
    """k1 + k2 + ... (PRML 6.17); over different inputs (PRML 6.21)."""

    _strength: ClassVar[int] = 1
    _word: ClassVar[str] = " + "

    def block(self, X, Z):
        return functools.reduce(operator.add, self._each("block", X, Z))

    def block_diag(self, X):
        return functools.reduce(operator.add, self._each("block_diag", X))

    def distance(self, X, Z):
        return functools.reduce(operator.add, self._each("distance", X, Z))

    def feature_block(self, X):
        return jnp.concatenate(self._each("feature_block", X), axis=1)

    @property
    def distance_is_stationary(self):
        return all(part.distance_is_stationary for part in self.parts)

    @property
    def distance_is_isotropic(self):
        return all(part.distance_is_isotropic for part in self.parts)

    @property
    def null_space(self):
        if self.validity.conditional is None:
            return None
        return NullSpace(tuple(p for part in self.parts if part.null_space for p in part.null_space.parts))

    @property
    def validity(self) -> Validity:
        subsets, premises = self._premises()
        return derive("6.21" if subsets else "6.17", "a sum of valid kernels", repr(self), premises)


class Product(Nary):
    """k1 k2 ... (PRML 6.18); over different inputs (PRML 6.22)."""

    _strength: ClassVar[int] = 2
    _word: ClassVar[str] = " * "

    def block(self, X, Z):
        return functools.reduce(operator.mul, self._each("block", X, Z))

    def block_diag(self, X):
        return functools.reduce(operator.mul, self._each("block_diag", X))

    def feature_block(self, X):
        return functools.reduce(products, self._each("feature_block", X))

    @property
    def validity(self) -> Validity:
        subsets, premises = self._premises()
        return derive("6.22" if subsets else "6.18", "a product of valid kernels", repr(self), premises)


class Unary(Kernel):
    """One kernel changed by a rule. Unless said otherwise it is stationary and isotropic where its part is."""

    _transparent: ClassVar[bool] = True

    inner: Kernel

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "inner", convert.as_kernel(self.inner))

    def prepare(self, X, index):
        return self.inner.prepare(X, index)

    @property
    def stationary(self):
        return self.inner.stationary

    @property
    def isotropic(self):
        return self.inner.isotropic

    def _method(self, call):
        return _named(self, f"({self.inner!r}).{call}" if self.inner._strength < 3 else f"{self.inner!r}.{call}")


class Scale(Unary):
    """c k1 with c > 0 (PRML 6.13): c is the variance."""

    _strength: ClassVar[int] = 2

    variance: Positive = 1.0

    def block(self, X, Z):
        return self.variance * self.inner.block(X, Z)

    def block_diag(self, X):
        return self.variance * self.inner.block_diag(X)

    def distance(self, X, Z):
        return self.variance * self.inner.distance(X, Z)

    def feature_block(self, X):
        return jnp.sqrt(jnp.asarray(self.variance)) * self.inner.feature_block(X)

    @property
    def distance_is_stationary(self):
        return self.inner.distance_is_stationary

    @property
    def distance_is_isotropic(self):
        return self.inner.distance_is_isotropic

    @property
    def null_space(self):
        return self.inner.null_space

    @property
    def validity(self) -> Validity:
        return derive("6.13", "a positive multiple of a valid kernel", repr(self), [self.inner.validity],
                      keeps_failure=True)  # fmt: skip

    def __repr__(self):
        inner = f"({self.inner!r})" if self.inner._strength < 2 else repr(self.inner)
        return _named(self, f"{'<traced>' if is_traced(self.variance) else number(self.variance)} * {inner}")


class Power(Unary):
    """k1 ** n for a positive integer n: a repeated product (PRML 6.18)."""

    exponent: int = eqx.field(static=True)

    def __check_init__(self):
        if isinstance(self.exponent, bool) or not isinstance(self.exponent, int | np.integer) or self.exponent < 1:
            raise InvalidKernelError(
                "rule 6.18 makes powers by repeated products, so the exponent must be a positive integer; "
                f"got {self.exponent!r}."
            )

    def block(self, X, Z):
        return jax.lax.integer_pow(self.inner.block(X, Z), int(self.exponent))

    def block_diag(self, X):
        return jax.lax.integer_pow(self.inner.block_diag(X), int(self.exponent))

    def feature_block(self, X):
        return symmetric_power(self.inner.feature_block(X), int(self.exponent))

    @property
    def validity(self) -> Validity:
        return derive("6.18", "a repeated product of a valid kernel", repr(self), [self.inner.validity])

    def __repr__(self):
        inner = f"({self.inner!r})" if self.inner._strength < 3 or isinstance(self.inner, Power) else repr(self.inner)
        return _named(self, f"{inner} ** {self.exponent}")


class PolynomialOf(Unary):
    """q(k1) for a polynomial q with non-negative coefficients, lowest first (PRML 6.15)."""

    coefficients: NonNegative

    def __post_init__(self):
        if not is_traced(self.coefficients):
            coefficients = np.asarray(self.coefficients, dtype=float)
            if coefficients.ndim != 1 or coefficients.size == 0:
                raise ParameterError(f"polynomial takes a list of coefficients [c0, c1, ...]; got {self.coefficients!r}.")
            if np.any(coefficients < 0):
                raise InvalidKernelError(
                    f"rule 6.15 needs a polynomial with non-negative coefficients; got {number(coefficients)}."
                )
        super().__post_init__()

    def _at(self, k):
        value = jnp.full_like(k, self.coefficients[-1])
        for i in range(len(self.coefficients) - 2, -1, -1):
            value = value * k + self.coefficients[i]
        return value

    def block(self, X, Z):
        return self._at(self.inner.block(X, Z))

    def block_diag(self, X):
        return self._at(self.inner.block_diag(X))

    def feature_block(self, X):
        P = self.inner.feature_block(X)
        roots = jnp.sqrt(jnp.asarray(self.coefficients))
        columns = [jnp.broadcast_to(roots[0], (P.shape[0], 1))]
        columns += [roots[i] * symmetric_power(P, i) for i in range(1, len(roots))]
        # A coefficient that is exactly zero has no features.
        kept = [c for i, c in enumerate(columns) if is_traced(self.coefficients) or self.coefficients[i] != 0]
        return jnp.concatenate(kept or [jnp.zeros((P.shape[0], 1))], axis=1)

    @property
    def validity(self) -> Validity:
        says = "a polynomial with non-negative coefficients in a valid kernel"
        return derive("6.15", says, repr(self), [self.inner.validity])

    def __repr__(self):
        return self._method(f"polynomial({'<traced>' if is_traced(self.coefficients) else number(self.coefficients)})")


class Exp(Unary):
    """exp(k1) (PRML 6.16)."""

    def block(self, X, Z):
        return jnp.exp(self.inner.block(X, Z))

    def block_diag(self, X):
        return jnp.exp(self.inner.block_diag(X))

    @property
    def validity(self) -> Validity:
        return derive("6.16", "the exponential of a valid kernel", repr(self), [self.inner.validity])

    def __repr__(self):
        return self._method("exp()")


class Modulate(Unary):
    """f(x) k1(x, x') f(x') for any function f (PRML 6.14)."""

    f: RowFunction

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "f", RowFunction.of(self.f))

    def prepare(self, X, index):
        return self.f.prepare(X), self.inner.prepare(X, index)

    def _factor(self, rows):
        values = self.f(rows)
        if values.shape[1] != 1:
            raise DataError(f"modulate takes a function that returns one number per input; it returned {values.shape[1]}.")
        return values[:, 0]

    def block(self, X, Z):
        return self._factor(X[0])[:, None] * self.inner.block(X[1], Z[1]) * self._factor(Z[0])[None, :]

    def block_diag(self, X):
        return self._factor(X[0]) ** 2 * self.inner.block_diag(X[1])

    def feature_block(self, X):
        return self._factor(X[0])[:, None] * self.inner.feature_block(X[1])

    @property
    def stationary(self):
        return None

    @property
    def isotropic(self):
        return None

    @property
    def validity(self) -> Validity:
        return derive("6.14", "a valid kernel between two equal factors", repr(self), [self.inner.validity])

    def __repr__(self):
        return self._method(f"modulate({self.f!r})")


class Warp(Unary):
    """k1(phi(x), phi(x')) for any function phi (PRML 6.19)."""

    phi: RowFunction

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "phi", RowFunction.of(self.phi))

    def prepare(self, X, index):
        rows = self.phi.prepare(X)
        if not is_traced((self, rows)) and not isinstance(rows, HostRows) and len(index):
            # The inner kernel prepares what phi returns, so if it works on the host, phi has to as well.
            with double():
                seen = self.inner.prepare(np.asarray(self.phi(rows[:1])), index[:1])
                if on_host(seen):
                    rows = HostRows(np.asarray(self.phi(rows)))
        return rows, np.asarray(index)

    def _seen(self, X):
        rows, index = X
        return self.inner.prepare(self.phi(rows), index)

    def block(self, X, Z):
        return self.inner.block(self._seen(X), self._seen(Z))

    def block_diag(self, X):
        return self.inner.block_diag(self._seen(X))

    def distance(self, X, Z):
        return self.inner.distance(self._seen(X), self._seen(Z))

    def feature_block(self, X):
        return self.inner.feature_block(self._seen(X))

    @property
    def stationary(self):
        return None

    @property
    def isotropic(self):
        return None

    @property
    def validity(self) -> Validity:
        return derive("6.19", "a valid kernel of a function of the input", repr(self), [self.inner.validity])

    def __repr__(self):
        return self._method(f"warp({self.phi!r})")


class Span(NamedTuple):
    """A slice that can be compared and hashed."""

    start: int | None
    stop: int | None
    step: int | None


class On(Unary):
    """A kernel that looks at some of the inputs (the parts of PRML 6.21 and 6.22; by itself, 6.19 with a selection)."""

    columns: tuple = eqx.field(static=True)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "columns", _checked_columns(self.columns))

    @property
    def _selection(self):
        return slice(*self.columns) if isinstance(self.columns, Span) else self.columns

    def prepare(self, X, index):
        return self.inner.prepare(select_columns(X, self._selection), index)

    def block(self, X, Z):
        return self.inner.block(X, Z)

    def block_diag(self, X):
        return self.inner.block_diag(X)

    def distance(self, X, Z):
        return self.inner.distance(X, Z)

    def feature_block(self, X):
        return self.inner.feature_block(X)

    @property
    def distance_is_stationary(self):
        return self.inner.distance_is_stationary

    @property
    def isotropic(self):
        # Of all inputs only a constant (or white noise) can be, whatever the selection.
        return isinstance(self.inner, Constant | White)

    @property
    def null_space(self):
        parts = self.inner.null_space and self.inner.null_space.parts
        return NullSpace(tuple((degree, self._selection) for degree, _ in parts)) if parts else None

    @property
    def validity(self) -> Validity:
        return derive("6.19", "a valid kernel of some of the inputs", repr(self), [self.inner.validity],
                      keeps_failure=True)  # fmt: skip

    def __repr__(self):
        if isinstance(self.columns, Span):
            shown = repr(self._selection)
        else:
            shown = repr(self.columns[0]) if len(self.columns) == 1 else repr(list(self.columns))
        return self._method(f"on({shown})")


def _checked_columns(columns):
    if isinstance(columns, Span):
        return columns
    if isinstance(columns, slice):
        return Span(columns.start, columns.stop, columns.step)
    if isinstance(columns, str | int | np.integer) and not isinstance(columns, bool):
        columns = [columns]
    try:
        columns = tuple(c if isinstance(c, str) else operator.index(c) for c in columns)
    except TypeError:
        columns = None
    kinds = {type(c) for c in columns} if columns else set()
    if len(kinds) != 1 or bool in kinds:
        raise ParameterError(
            f"on takes column indices, a slice, or column names of a frame, not a mixture; got {columns!r}."
        )
    return columns


class GaussianOf(Unary):
    """exp(-(k1(x,x) + k1(x',x') - 2 k1(x,x')) / 2 sigma^2): the Gaussian kernel over k1's distance (PRML 6.26)."""

    sigma: Positive = 1.0

    def block(self, X, Z):
        return jnp.exp(-0.5 * self.inner.distance(X, Z) / jnp.square(self.sigma))

    def block_diag(self, X):
        return jnp.ones_like(self.inner.block_diag(X))

    @property
    def stationary(self):
        return True if self.inner.distance_is_stationary else self.inner.stationary

    @property
    def isotropic(self):
        return True if self.inner.distance_is_isotropic else self.inner.isotropic

    @property
    def validity(self) -> Validity:
        says = "a Gaussian kernel over the distance of a valid one (6.14 and 6.16)"
        return derive("6.26", says, repr(self), [self.inner.validity])

    def __repr__(self):
        return self._method(f"gaussian({'<traced>' if is_traced(self.sigma) else number(self.sigma)})")


class Normalize(Unary):
    """k1(x, x') / sqrt(k1(x,x) k1(x',x')) (PRML 6.14 with f(x) = k1(x,x)^-1/2); zero where k1(x,x) = 0."""

    def _factor(self, X):
        diagonal = self.inner.block_diag(X)
        inside = jnp.where(diagonal > 0, diagonal, 1.0)
        return jnp.where(diagonal > 0, 1 / jnp.sqrt(inside), 0.0)

    def block(self, X, Z):
        return self._factor(X)[:, None] * self.inner.block(X, Z) * self._factor(Z)[None, :]

    def block_diag(self, X):
        return self.inner.block_diag(X) * self._factor(X) ** 2

    def feature_block(self, X):
        return self._factor(X)[:, None] * self.inner.feature_block(X)

    @property
    def validity(self) -> Validity:
        return derive("6.14", "a valid kernel between two equal factors", repr(self), [self.inner.validity])

    def __repr__(self):
        return self._method("normalize()")


def _named(kernel, expression: str) -> str:
    return expression if kernel.name is None else f"({expression}).named({kernel.name!r})"


# -- Python's operators --------------------------------------------------------------------------------------------


def _is_number(value) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, int | float | np.number) or (
        isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and not isinstance(value, Kernel)
    )


def add(a, b):
    """k1 + k2; a number is a constant kernel; 0 is left out, so that `sum` works."""
    if _is_number(a) and not is_traced(a) and a == 0:
        return b
    if _is_number(b) and not is_traced(b) and b == 0:
        return a
    parts = []
    for part in (a, b):
        if _is_number(part):
            if not is_traced(part) and not part > 0:
                raise InvalidKernelError(f"rules 6.13 and 6.17 add positive constants only; got {part!r}.")
            part = Constant(part)
        kernel = convert.as_kernel(part, or_none=True)
        if kernel is None:
            return NotImplemented
        parts += kernel.parts if isinstance(kernel, Sum) and kernel.name is None else [kernel]
    return Sum(tuple(parts))


def multiply(a, b):
    """k1 * k2, or c * k1."""
    if _is_number(b):
        a, b = b, a
    if _is_number(a):
        return _scaled(a, b)
    parts = []
    for part in (a, b):
        kernel = convert.as_kernel(part, or_none=True)
        if kernel is None:
            return NotImplemented
        parts += kernel.parts if isinstance(kernel, Product) and kernel.name is None else [kernel]
    return Product(tuple(parts))


def _scaled(c, kernel):
    if not is_traced(c) and not (np.isfinite(c) and c > 0):
        raise InvalidKernelError(f"rule 6.13 needs c k(x, x') with a finite c > 0; got c = {c!r}.")
    # A number times something that has a variance already changes that variance: two would not be told apart.
    if isinstance(kernel, Scale | Constant | White) and "variance" not in kernel.fixed and not kernel.priors:
        return kernel._evolve(variance=kernel._checked("variance", positive, c * kernel.variance))
    return Scale(kernel, c)


def divide(kernel, c):
    if not _is_number(c):
        return NotImplemented
    if not is_traced(c) and not c > 0:
        raise InvalidKernelError(f"rule 6.13 needs division by a positive number; got {c!r}.")
    return _scaled(1 / c, kernel)


def power(kernel, exponent):
    return Power(kernel, exponent)


def refuse_difference(a, b):
    raise InvalidKernelError(
        f"a difference of kernels, {a!r} - {b!r}, is not in general a kernel: rule 6.17 adds them, and rule 6.13 "
        "multiplies by positive numbers only."
    )
