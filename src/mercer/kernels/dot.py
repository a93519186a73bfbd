"""Kernels of the scalar product of inputs."""

import dataclasses
import math
import reprlib
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import InvalidKernelError, ParameterError
from mercer.core.inputs import Rows, check_width
from mercer.core.parameters import NonNegative, Real, plain
from mercer.core.precision import as_float, is_traced, is_zero
from mercer.kernels import states
from mercer.kernels.base import Kernel
from mercer.kernels.distance import difference_of_squares, squared_distance
from mercer.kernels.features import symmetric_power
from mercer.kernels.geometry import Geometry
from mercer.kernels.validity import Proof, Validity, derive, proved


class Linear(Kernel):
    """x^T A x' with A symmetric positive semidefinite (PRML 6.20); x^T x' when A is left out."""

    A: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.A is not None and not is_traced(self.A):
            object.__setattr__(self, "A", _checked_psd(self.A))

    def _root(self) -> jax.Array:
        """R with R R^T = A."""
        values, vectors = jnp.linalg.eigh(jnp.asarray(self.A))
        return vectors * jnp.sqrt(jnp.maximum(values, 0.0))

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        if self.A is None:
            return X @ Z.T
        check_width(X, self.A.shape[0], "A")
        return X @ self.A @ Z.T

    def block_diag(self, X: Rows) -> jax.Array:
        if self.A is None:
            return jnp.sum(X * X, axis=1)
        check_width(X, self.A.shape[0], "A")
        return jnp.sum((X @ self.A) * X, axis=1)

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        if self.A is None:
            return Geometry(X @ Z.T, squared_distance(X, Z), difference_of_squares(X, Z))
        # Centred before the product with R, which would lose digits to a common shift.
        centre, R = jax.lax.stop_gradient(X[:1]), self._root()
        distance = squared_distance((X - centre) @ R, (Z - centre) @ R)
        return super().geometry(X, Z)._replace(distance=distance)

    def feature_block(self, X: Rows) -> jax.Array:
        if self.A is None:
            return X
        check_width(X, self.A.shape[0], "A")
        return X @ self._root()

    homogeneity = 1

    def state_space(self, order: Any = None) -> "states.States | None":
        if self.A is not None and self.A.shape[0] > 1:
            return None
        A = 1.0 if self.A is None else self.A[0, 0]
        return states.reads_time(states.of_features(lambda t: t[:, None], lambda t: A * t[:, None], 1))

    @property
    def stationary(self) -> bool | None:
        return self.A is not None and is_zero(self.A)

    isotropic = stationary

    @property
    def distance_is_stationary(self) -> bool:
        return True

    @property
    def distance_is_isotropic(self) -> bool:
        return self.A is None or is_zero(self.A)

    smoothness = math.inf

    @property
    def validity(self) -> Validity:
        says = "linear: A is the unit matrix" if self.A is None else "linear: A is symmetric positive semidefinite"
        return proved("6.20", says, repr(self))


def _checked_psd(A: Any) -> np.ndarray:
    try:
        A = as_float(A)
    except (TypeError, ValueError):
        raise ParameterError(f"A must be a square matrix of numbers; got {reprlib.repr(A)}.") from None
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not np.isfinite(A).all():
        raise ParameterError(f"A must be a square matrix of finite numbers; got shape {A.shape}.")
    scale = np.abs(A).max(initial=0.0)
    if np.abs(A - A.T).max(initial=0.0) > 1e-12 * scale:
        raise InvalidKernelError("rule 6.20 needs a symmetric positive semidefinite A; this A is not symmetric.")
    smallest = np.linalg.eigvalsh(A).min()
    if smallest < -1e-12 * scale * len(A):
        raise InvalidKernelError(
            "rule 6.20 needs a symmetric positive semidefinite A; "
            f"the smallest eigenvalue of this one is {smallest:.3g}. Try A = B.T @ B."
        )
    return A


class Polynomial(Kernel):
    """(x^T x' + offset)^degree (PRML 6.11): all monomials of that degree if offset = 0, else up to that degree."""

    _rules: ClassVar[dict[str, str]] = {"offset": "6.15"}

    degree: int = eqx.field(static=True, converter=plain)
    offset: NonNegative = 0.0

    def __check_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise InvalidKernelError(
                "rule 6.15 needs a polynomial with non-negative coefficients, so degree must be a positive integer; "
                f"got {self.degree!r}."
            )

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jax.lax.integer_pow(X @ Z.T + self.offset, int(self.degree))

    def block_diag(self, X: Rows) -> jax.Array:
        return jax.lax.integer_pow(jnp.sum(X * X, axis=1) + self.offset, int(self.degree))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return Linear().geometry(X, Z).shifted(self.offset).power(int(self.degree))

    def feature_block(self, X: Rows) -> jax.Array:
        constant = jnp.sqrt(jnp.asarray(self.offset))
        if is_zero(self.offset):
            return symmetric_power(X, int(self.degree))
        return symmetric_power(jnp.column_stack([X, jnp.broadcast_to(constant, X.shape[:1])]), int(self.degree))

    def state_space(self, order: Any = None) -> "states.States | None":
        # (t t' + c)^d = sum_j binomial(d, j) c^(d-j) t^j t'^j
        d, alone = int(self.degree), is_zero(self.offset) if order is None else order
        powers = np.array([d] if alone else range(d + 1))
        weights = jnp.stack([math.comb(d, int(j)) * jnp.asarray(self.offset) ** int(d - j) for j in powers])
        found = states.of_features(
            lambda t: t[:, None] ** powers, lambda t: weights * t[:, None] ** powers, len(powers)
        )
        return dataclasses.replace(states.reads_time(found), order=bool(alone))

    @property
    def homogeneity(self) -> int | None:
        return int(self.degree) if is_zero(self.offset) else None

    smoothness = math.inf

    @property
    def validity(self) -> Validity:
        return derive("6.15", "a polynomial with non-negative coefficients", repr(self), [Linear().validity])


class Sigmoid(Kernel):
    """tanh(a x^T x' + b) (PRML 6.37). Not a valid kernel: its Gram matrix is in general indefinite.

    Models that need a positive semidefinite kernel refuse it, unless given ``allow_invalid=True``.
    """

    a: Real = 1.0
    b: Real = 0.0

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jnp.tanh(self.a * (X @ Z.T) + self.b)

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.tanh(self.a * jnp.sum(X * X, axis=1) + self.b)

    @property
    def stationary(self) -> bool | None:
        return is_zero(self.a)

    isotropic = stationary

    @property
    def validity(self) -> Validity:
        if is_zero(self.a) and not is_traced(self.b):
            if self.b >= 0:
                return proved("6.1", "with a = 0, the constant tanh(b)", repr(self))
            return Validity(False, Proof("6.37", "with a = 0, the constant tanh(b), which is negative", repr(self)))
        return Validity(False, Proof("6.37", "tanh: some Gram matrices have negative eigenvalues", repr(self)))
