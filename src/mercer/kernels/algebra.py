"""Kernels made from kernels by arithmetic on their values (PRML 6.13, 6.15-6.18, 6.21, 6.22).

Each class is one rule: Gram blocks, diagonals, features, and proof of validity. Python's operators call `add`,
`multiply` and `divide`, which refuse what the rules do not allow.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import InvalidKernelError
from mercer.core.inputs import Inputs, Rows
from mercer.core.parameters import NonNegativeList, Positive, evolve, nodes_of, plain, positive, show
from mercer.core.precision import Array, is_traced, is_zero
from mercer.kernels import convert, states
from mercer.kernels.base import Kernel
from mercer.kernels.composite import Unary, named, prepared, sharing
from mercer.kernels.features import products, symmetric_power
from mercer.kernels.geometry import Geometry
from mercer.kernels.space import OfPlaces
from mercer.kernels.splines import NullSpace
from mercer.kernels.stationary import Constant, White
from mercer.kernels.substitution import On
from mercer.kernels.validity import Validity, derive, proved


def _jointly(values: Iterable[bool | None]) -> bool | None:
    """Whether a sum or product has a property: True if all parts have it, False if all but one have it, else None (not
    known)."""
    values = list(values)
    if all(value is True for value in values):
        return True
    return False if values.count(True) == len(values) - 1 and values.count(False) == 1 else None


class Nary(Kernel):
    """Several kernels on the same inputs, combined elementwise."""

    _operator: ClassVar[str]  # as `repr` writes it
    _transparent: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    parts: tuple[Kernel, ...]

    def prepare(self, X: Inputs, index: Array) -> Rows:
        with sharing(self):
            return tuple(prepared(part, X, index) for part in self.parts)

    def _each(self, method: str, *rows: Rows) -> list[Any]:
        return [getattr(part, method)(*row) for part, *row in zip(self.parts, *rows, strict=True)]

    def _states(self, order: Any) -> "list[states.States] | None":
        """State-space forms of the parts; None if one has none."""
        orders = [None] * len(self.parts) if order is None else order
        found = [part.state_space(own) for part, own in zip(self.parts, orders, strict=True)]
        forms = [form for form in found if form is not None]
        return forms if len(forms) == len(found) else None

    @property
    def stationary(self) -> bool | None:
        return _jointly(part.stationary for part in self.parts)

    @property
    def isotropic(self) -> bool | None:
        return _jointly(part.isotropic for part in self.parts)

    def _premises(self) -> tuple[bool, list[Validity]]:
        """Whether some part selects columns, and the validity of each part on the columns it selects."""
        premises = [part.inner.validity if isinstance(part, On) else part.validity for part in self.parts]
        return any(isinstance(node, On) for part in self.parts for node in nodes_of(part)), premises

    def __repr__(self) -> str:
        # A scaled kernel after the first factor needs brackets: 2 * a * (3 * b).
        bracketed = [
            part._precedence < self._precedence or (i > 0 and isinstance(part, Scale) and isinstance(self, Product))
            for i, part in enumerate(self.parts)
        ]
        shown = [f"({part!r})" if b else repr(part) for part, b in zip(self.parts, bracketed, strict=True)]
        return named(self, self._operator.join(shown))


class Sum(Nary):
    """k1 + k2 + ... (PRML 6.17); over different inputs (PRML 6.21)."""

    _precedence: ClassVar[int] = 1
    _operator: ClassVar[str] = " + "

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return functools.reduce(operator.add, self._each("block", X, Z))

    def block_diag(self, X: Rows) -> jax.Array:
        return functools.reduce(operator.add, self._each("block_diag", X))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return functools.reduce(Geometry.plus, self._each("geometry", X, Z))

    def feature_block(self, X: Rows) -> jax.Array:
        return jnp.concatenate(self._each("feature_block", X), axis=1)

    def state_space(self, order: Any = None) -> "states.States | None":
        parts = self._states(order)
        return None if parts is None else states.total(parts)

    @property
    def homogeneity(self) -> int | None:
        orders = {part.homogeneity for part in self.parts}
        return orders.pop() if len(orders) == 1 else None

    @property
    def distance_is_stationary(self) -> bool:
        return all(part.distance_is_stationary for part in self.parts)

    @property
    def distance_is_isotropic(self) -> bool:
        return all(part.distance_is_isotropic for part in self.parts)

    @property
    def null_space(self) -> "NullSpace | None":
        if self.validity.conditional is None:
            return None
        return NullSpace(tuple(p for part in self.parts if part.null_space for p in part.null_space.parts))

    @property
    def validity(self) -> Validity:
        subsets, premises = self._premises()
        return derive("6.21" if subsets else "6.17", "a sum of valid kernels", repr(self), premises)


class Product(Nary):
    """k1 k2 ... (PRML 6.18); over different inputs (PRML 6.22)."""

    _precedence: ClassVar[int] = 2
    _operator: ClassVar[str] = " * "

    @property
    def stationary(self) -> bool | None:
        return self._unless_noise(super().stationary)

    @property
    def isotropic(self) -> bool | None:
        return self._unless_noise(super().isotropic)

    @property
    def homogeneity(self) -> int | None:
        orders = [part.homogeneity for part in self.parts]
        return None if None in orders else sum(order or 0 for order in orders)

    def _unless_noise(self, fact: bool | None) -> bool | None:
        # White noise is zero between different rows, which hides properties of the other factors.
        return None if fact is False and any(isinstance(node, White) for node in nodes_of(self)) else fact

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return functools.reduce(operator.mul, self._each("block", X, Z))

    def block_diag(self, X: Rows) -> jax.Array:
        return functools.reduce(operator.mul, self._each("block_diag", X))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return functools.reduce(Geometry.times, self._each("geometry", X, Z))

    def feature_block(self, X: Rows) -> jax.Array:
        return functools.reduce(products, self._each("feature_block", X))

    def state_space(self, order: Any = None) -> "states.States | None":
        parts = self._states(order)
        if parts is None:
            return None
        found: states.States | None = parts[0]
        for part in parts[1:]:
            found = None if found is None else states.product(found, part)
        return None if found is None else dataclasses.replace(found, order=tuple(part.order for part in parts))

    @property
    def validity(self) -> Validity:
        subsets, premises = self._premises()
        return derive("6.22" if subsets else "6.18", "a product of valid kernels", repr(self), premises)


class Scale(Unary):
    """c k1 with c > 0 (PRML 6.13): c is the variance."""

    elementwise: ClassVar[bool] = True
    _precedence: ClassVar[int] = 2

    _rules: ClassVar[dict[str, str]] = {"variance": "6.13"}

    variance: Positive = 1.0

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.variance * self.inner.block(X, Z)

    def block_diag(self, X: Rows) -> jax.Array:
        return self.variance * self.inner.block_diag(X)

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return self.inner.geometry(X, Z).scaled(self.variance)

    def feature_block(self, X: Rows) -> jax.Array:
        return jnp.sqrt(jnp.asarray(self.variance)) * self.inner.feature_block(X)

    def state_space(self, order: Any = None) -> "states.States | None":
        inner = self.inner.state_space(order)
        return None if inner is None else inner.scaled(self.variance)

    def normalize(self) -> Kernel:
        normalized = self.inner.normalize()  # c cancels
        return normalized if self.name is None else normalized.named(self.name)

    @property
    def homogeneity(self) -> int | None:
        return self.inner.homogeneity

    @property
    def distance_is_stationary(self) -> bool:
        return self.inner.distance_is_stationary

    @property
    def distance_is_isotropic(self) -> bool:
        return self.inner.distance_is_isotropic

    @property
    def null_space(self) -> "NullSpace | None":
        return self.inner.null_space

    @property
    def validity(self) -> Validity:
        return derive("6.13", "a positive multiple of a valid kernel", repr(self), [self.inner.validity],
                      keeps_failure=True)  # fmt: skip

    def __repr__(self) -> str:
        inner = f"({self.inner!r})" if self.inner._precedence < 3 else repr(self.inner)
        return named(self, f"{show(self.variance)} * {inner}")


class Power(Unary):
    """k1 ** n for a positive integer n: a repeated product (PRML 6.18)."""

    elementwise: ClassVar[bool] = True
    _precedence: ClassVar[int] = 3

    exponent: int = eqx.field(static=True, converter=plain)

    def __check_init__(self) -> None:
        if isinstance(self.exponent, bool) or not isinstance(self.exponent, int | np.integer) or self.exponent < 1:
            raise InvalidKernelError(
                "powers are repeated products (rule 6.18), so the exponent must be a positive integer; "
                f"got {self.exponent!r}."
            )

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jax.lax.integer_pow(self.inner.block(X, Z), int(self.exponent))

    def block_diag(self, X: Rows) -> jax.Array:
        return jax.lax.integer_pow(self.inner.block_diag(X), int(self.exponent))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return self.inner.geometry(X, Z).power(int(self.exponent))

    def feature_block(self, X: Rows) -> jax.Array:
        return symmetric_power(self.inner.feature_block(X), int(self.exponent))

    def state_space(self, order: Any = None) -> "states.States | None":
        inner = self.inner.state_space(order)
        return None if inner is None else states.power(inner, int(self.exponent))

    @property
    def homogeneity(self) -> int | None:
        return None if self.inner.homogeneity is None else self.exponent * self.inner.homogeneity

    @property
    def validity(self) -> Validity:
        return derive("6.18", "a repeated product of a valid kernel", repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        inner = f"({self.inner!r})" if self.inner._precedence < 4 else repr(self.inner)
        return named(self, f"{inner} ** {self.exponent}")


class PolynomialOf(Unary):
    """q(k1) for a polynomial q with non-negative coefficients, lowest first (PRML 6.15)."""

    elementwise: ClassVar[bool] = True
    _rules: ClassVar[dict[str, str]] = {"coefficients": "6.15"}

    coefficients: NonNegativeList

    @property
    def stationary(self) -> bool | None:
        return self._is_constant or self.inner.stationary or None

    @property
    def isotropic(self) -> bool | None:
        return self._is_constant or self.inner.isotropic or None

    @property
    def _is_constant(self) -> bool:
        return not is_traced(self.coefficients) and not np.any(np.atleast_1d(self.coefficients)[1:])

    def _at(self, k: jax.Array) -> jax.Array:
        coefficients = jnp.atleast_1d(self.coefficients)
        value = jnp.full_like(k, coefficients[-1])
        for i in range(len(coefficients) - 2, -1, -1):
            value = value * k + coefficients[i]
        return value

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self._at(self.inner.block(X, Z))

    def block_diag(self, X: Rows) -> jax.Array:
        return self._at(self.inner.block_diag(X))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        inner, coefficients = self.inner.geometry(X, Z), jnp.atleast_1d(self.coefficients)
        zero = jnp.zeros_like(inner.product)
        value = Geometry(zero + coefficients[-1], zero, zero)
        for i in range(len(coefficients) - 2, -1, -1):
            value = value.times(inner).shifted(coefficients[i])
        return value

    def feature_block(self, X: Rows) -> jax.Array:
        P = self.inner.feature_block(X)
        roots = jnp.sqrt(jnp.atleast_1d(self.coefficients))
        columns = [jnp.broadcast_to(roots[0], (P.shape[0], 1))]
        columns += [roots[i] * symmetric_power(P, i) for i in range(1, len(roots))]
        # A coefficient that is exactly zero has no features.
        kept = [c for c, root in zip(columns, roots, strict=True) if not is_zero(root)]
        return jnp.concatenate(kept or [jnp.zeros((P.shape[0], 1))], axis=1)

    @property
    def validity(self) -> Validity:
        if self._is_constant:
            return proved("6.1", "one constant feature", repr(self))
        says = "a polynomial with non-negative coefficients in a valid kernel"
        return derive("6.15", says, repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method(f"polynomial({show(self.coefficients)})")


class Exp(Unary):
    """exp(k1) (PRML 6.16)."""

    elementwise: ClassVar[bool] = True

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jnp.exp(self.inner.block(X, Z))

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.exp(self.inner.block_diag(X))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return self.inner.geometry(X, Z).exponential()

    @property
    def validity(self) -> Validity:
        return derive("6.16", "the exponential of a valid kernel", repr(self), [self.inner.validity])

    def __repr__(self) -> str:
        return self._method("exp()")


# -- Python's operators --------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, int | float | np.number) or (
        isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and not isinstance(value, Kernel)
    )


def add(a: Any, b: Any) -> Any:
    """k1 + k2; a number is a constant kernel; 0 is ignored, so that `sum` works."""
    if _is_number(a) and not is_traced(a) and a == 0:
        return b
    if _is_number(b) and not is_traced(b) and b == 0:
        return a
    parts: list[Kernel] = []
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


def multiply(a: Any, b: Any) -> Any:
    """k1 * k2, or c * k1."""
    if _is_number(b):
        a, b = b, a
    if _is_number(a):
        return _scaled(a, b)
    parts: list[Kernel] = []
    for part in (a, b):
        kernel = convert.as_kernel(part, or_none=True)
        if kernel is None:
            return NotImplemented
        parts += kernel.parts if isinstance(kernel, Product) and kernel.name is None else [kernel]
    return Product(tuple(parts))


def _scaled(c: Any, kernel: Any) -> Kernel:
    if not is_traced(c) and not (np.isfinite(c) and c > 0):
        raise InvalidKernelError(f"rule 6.13 needs c k(x, x') with a finite c > 0; got c = {c!r}.")
    # A second variance would not be identifiable, so a number multiplies the one that is there.
    if isinstance(kernel, Scale | Constant | White) and "variance" not in kernel.fixed and not kernel.priors:
        return evolve(kernel, variance=kernel._checked("variance", positive, c * kernel.variance))
    return Scale(kernel, c)


def divide(kernel: Kernel, c: Any) -> Any:
    """k1 / c."""
    if not _is_number(c):
        return NotImplemented
    if not is_traced(c) and not c > 0:
        raise InvalidKernelError(f"rule 6.13 needs division by a positive number; got {c!r}.")
    return _scaled(1 / c, kernel)


def refuse_difference(a: Any, b: Any) -> NoReturn:
    raise InvalidKernelError(
        f"a difference of kernels, {a!r} - {b!r}, is not in general a kernel: rule 6.17 adds kernels, and rule 6.13 "
        "multiplies them by positive numbers only."
    )


def terms_of(kernel: Kernel) -> tuple[Kernel, ...]:
    """Terms of a sum without white noise; a kernel that is not a sum is its only term.

    >>> from mercer.kernels import RBF, Linear, White
    >>> terms_of(RBF() + Linear() + White(0.1))
    (RBF(lengthscale=1.0), Linear())
    """
    latent = split_white(kernel)[0]
    if isinstance(latent, OfPlaces) and latent.terms is not None:
        return latent.terms
    return () if latent is None else latent.parts if isinstance(latent, Sum) else (latent,)


def split_white(kernel: Kernel) -> tuple[Kernel | None, float]:
    """The kernel without added white noise (None if nothing else is left), and the variance of that noise.

    >>> from mercer.kernels import RBF, White
    >>> split_white(RBF() + White(0.1))
    (RBF(lengthscale=1.0), 0.1)
    """
    if isinstance(kernel, White):
        return None, float(kernel.variance)
    if isinstance(kernel, Scale | On | OfPlaces):
        inner, variance = split_white(kernel.inner)
        factor = float(kernel.variance) if isinstance(kernel, Scale) else 1.0
        return None if inner is None else evolve(kernel, inner=inner), factor * variance
    if isinstance(kernel, Sum):
        parts, variances = zip(*(split_white(part) for part in kernel.parts), strict=True)
        kept = [part for part in parts if part is not None]
        if len(kept) == len(parts) and not any(variances):
            return kernel, 0.0
        latent = None if not kept else kept[0] if len(kept) == 1 else evolve(kernel, parts=tuple(kept))
        return latent, float(sum(variances))
    return kernel, 0.0
