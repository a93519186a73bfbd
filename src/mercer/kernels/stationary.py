"""Kernels of the distance between inputs."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, Rows, check_width
from mercer.core.parameters import NonNegative, Positive, PositivePerInput, plain
from mercer.core.precision import Array, as_float, is_traced, is_zero
from mercer.core.text import number
from mercer.kernels import states
from mercer.kernels.base import Kernel
from mercer.kernels.bessel import matern
from mercer.kernels.distance import safe_sqrt, squared_distance, uses_smooth_distances
from mercer.kernels.dot import Linear
from mercer.kernels.geometry import Geometry, gaussian_of, unit_norms
from mercer.kernels.validity import Validity, derive, gaussian_proof, proved

SMOOTHNESSES = (0.5, 1.5, 2.5, math.inf)  # common orders of Matern functions
MAX_STATE_ORDER = 12  # of Matern functions with a state-space form, whose powers of the gap stay in range


class Stationary(Kernel):
    """A function of x - x' with k(x, x) = 1."""

    stationary = True

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.ones_like(X[:, 0])

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return unit_norms(self.block(X, Z))


class Isotropic(Stationary):
    """A function of |x - x'| / l. One lengthscale per input makes it anisotropic (ARD) and keeps it stationary.

    Subclasses define `of_squared_distance`, of distances already divided by the lengthscale.
    """

    lengthscale: PositivePerInput = 1.0

    def of_squared_distance(self, r2: jax.Array) -> jax.Array:
        """k as a function of |x - x'|^2 / l^2, elementwise."""
        raise NotImplementedError(f"{type(self).__name__} must define its formula in of_squared_distance(self, r2).")

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.of_squared_distance(squared_distance(X, Z, self.lengthscale))

    def block_diag(self, X: Rows) -> jax.Array:
        if np.size(self.lengthscale) > 1:
            check_width(X, np.size(self.lengthscale), "lengthscale")
        return super().block_diag(X)

    @property
    def isotropic(self) -> bool | None:
        return _all_equal(self.lengthscale)


def _all_equal(value: Any) -> bool:
    return np.size(value) == 1 or (not is_traced(value) and bool(np.ptp(value) == 0))


class RBF(Isotropic):
    """Squared exponential, the 'Gaussian' kernel (PRML 6.23): exp(-|x - x'|^2 / 2 l^2).

    Infinitely smooth; valid in every dimension; its feature space is infinite (Ex 6.11).
    """

    smoothness = math.inf

    def of_squared_distance(self, r2: jax.Array) -> jax.Array:
        return jnp.exp(-0.5 * r2)

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        return gaussian_of(squared_distance(X, Z, self.lengthscale))

    def state_space(self, order: Any = None) -> "states.States | None":
        return states.gaussian(self.lengthscale) if np.size(self.lengthscale) == 1 else None

    @property
    def validity(self) -> Validity:
        return gaussian_proof(repr(self))


class Exponential(Isotropic):
    """Ornstein-Uhlenbeck (PRML 6.56): exp(-|x - x'| / l). Continuous, nowhere differentiable; Markov for one input."""

    smoothness = 0

    def of_squared_distance(self, r2: jax.Array) -> jax.Array:
        return jnp.exp(-safe_sqrt(r2))

    def state_space(self, order: Any = None) -> "states.States | None":
        return states.matern(0, self.lengthscale) if np.size(self.lengthscale) == 1 else None

    @property
    def validity(self) -> Validity:
        return proved("6.56", "exponential: its spectral density is positive (Bochner)", repr(self))


class Matern(Isotropic):
    """Matern of any order nu > 0 (RW06 4.14): 2^(1-nu)/Gamma(nu) s^nu K_nu(s), s = sqrt(2 nu) |x - x'| / l.

    Samples are ceil(nu) - 1 times differentiable. nu = 1/2 is `Exponential`, nu = inf is `RBF`. Half-integers have a
    closed form; other orders integrate the Bessel function numerically, which is about a hundred times slower.
    """

    nu: float = eqx.field(default=2.5, static=True, converter=plain)

    def __check_init__(self) -> None:
        if isinstance(self.nu, bool) or not isinstance(self.nu, int | float | np.number) or not self.nu > 0:
            raise ParameterError(f"Matern.nu must be a positive number (or inf); got {self.nu!r}.")

    def of_squared_distance(self, r2: jax.Array) -> jax.Array:
        nu = float(self.nu)
        if math.isinf(nu):
            return jnp.exp(-0.5 * r2)
        return matern(nu, 2 * nu * r2)

    @property
    def smoothness(self) -> float | None:
        return math.ceil(self.nu) - 1 if self.nu < math.inf else math.inf

    def state_space(self, order: Any = None) -> "states.States | None":
        if math.isinf(self.nu):
            return RBF(self.lengthscale).state_space()
        p = float(self.nu) - 0.5
        if np.size(self.lengthscale) > 1 or p != int(min(p, 41)) or p > MAX_STATE_ORDER:
            return None
        return states.matern(int(p), self.lengthscale)

    @property
    def validity(self) -> Validity:
        return proved("RW06 4.14", "Matern: its spectral density is positive (Bochner)", repr(self))


class RationalQuadratic(Isotropic):
    """(1 + |x - x'|^2 / 2 alpha l^2)^-alpha (RW06 4.19): a scale mixture of Gaussian kernels; alpha = inf is `RBF`."""

    alpha: Positive = 1.0

    smoothness = math.inf

    def of_squared_distance(self, r2: jax.Array) -> jax.Array:
        # log1p is accurate for large alpha.
        return jnp.exp(-self.alpha * jnp.log1p(r2 / (2 * self.alpha)))

    @property
    def validity(self) -> Validity:
        gaussian = gaussian_proof("exp(-|x-x'|^2 / 2 s^2)")
        return derive("6.17", "an integral of Gaussian kernels over their width", repr(self), [gaussian])


class Standard(Kernel):
    """theta0 exp(-theta1/2 |x - x'|^2) + theta2 + theta3 x.x' (PRML 6.63).

    With one theta1 per input (the book's eta) it is the ARD kernel (PRML 6.72). theta2 = 0 and theta3 = 0 switch the
    constant and the linear term off for good. With ``shift`` and ``scale`` (one number, or one per input) it is a
    function of (x - shift) / scale, which makes the thetas of different inputs comparable; both are not learned. With
    ``nu`` (1/2, 3/2 or 5/2) the Gaussian is replaced by a rougher Matern function of theta1^1/2 |x - x'|.
    """

    theta0: Positive = 1.0
    theta1: PositivePerInput = 1.0
    theta2: NonNegative = 1.0
    theta3: NonNegative = 1.0
    shift: Any = eqx.field(default=None, kw_only=True)
    scale: Any = eqx.field(default=None, kw_only=True)
    nu: Any = eqx.field(default=None, kw_only=True)  # a leaf: one compiled program serves every smoothness

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu is not None and not is_traced(self.nu):
            if not isinstance(self.nu, int | float | np.number | np.ndarray) or self.nu not in SMOOTHNESSES:
                raise ParameterError(f"Standard.nu must be one of {SMOOTHNESSES}, or None for inf; got {self.nu!r}.")
            object.__setattr__(self, "nu", as_float(self.nu))
        for field in ("shift", "scale"):
            value = getattr(self, field)
            if value is not None and not is_traced(value):
                value = as_float(value)
                if value.ndim > 1 or not np.isfinite(value).all() or (field == "scale" and not (value > 0).all()):
                    raise ParameterError(
                        f"Standard.{field} must be finite{' and positive' if field == 'scale' else ''}: one number, or "
                        f"one per input; got {number(value)}."
                    )
                object.__setattr__(self, field, value)

    def _standardised(self, X: jax.Array) -> jax.Array:
        for field in ("shift", "scale"):
            if np.size(getattr(self, field)) > 1:
                check_width(X, np.size(getattr(self, field)), field)
        if self.shift is None and self.scale is None:
            return X
        X = X if self.shift is None else X - self.shift
        # The barrier makes the compiler do this once per row, not once per pair.
        return jax.lax.optimization_barrier(X if self.scale is None else X / self.scale)

    def _parts(self, X: jax.Array, Z: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        X, Z = self._standardised(X), self._standardised(Z)
        return X, Z, squared_distance(X, Z, 1 / jnp.sqrt(jnp.asarray(self.theta1)), what="theta1")

    def _radial(self, r2: jax.Array) -> jax.Array:
        """exp(-r2 / 2), or the Matern function of this order: (1 + a s + b s^2) exp(-s), s = (2 nu r2)^1/2."""
        if self.nu is None:
            return jnp.exp(-0.5 * r2)
        nu = jnp.asarray(self.nu)
        if uses_smooth_distances():
            radial = [lambda r2, nu=nu: matern(nu, 2 * nu * r2) for nu in SMOOTHNESSES[:3]]
            known = jnp.asarray(SMOOTHNESSES[:3])
            return jax.lax.switch(jnp.searchsorted(known, nu), [*radial, lambda r2: jnp.exp(-0.5 * r2)], r2)
        smooth = jnp.isinf(nu)
        s = jnp.where(smooth, 0.5 * r2, jnp.sqrt(2 * jnp.where(smooth, 0.5, nu)) * safe_sqrt(r2))
        a, b = jnp.where(smooth | (nu < 1), 0.0, 1.0), jnp.where(nu == 2.5, 1 / 3, 0.0)
        return (1 + s * (a + b * s)) * jnp.exp(-s)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        X, Z, r2 = self._parts(X, Z)
        value = self.theta0 * self._radial(r2) + self.theta2
        return value if is_zero(self.theta3) else value + self.theta3 * (X @ Z.T)

    def block_diag(self, X: Rows) -> jax.Array:
        X = self._standardised(X)
        return self.theta0 + self.theta2 + self.theta3 * jnp.sum(X * X, axis=1)

    @property
    def smoothness(self) -> float | None:
        if self.nu is None:
            return math.inf
        if is_traced(self.nu):
            return 0  # the least it may be
        return math.ceil(self.nu) - 1 if self.nu < math.inf else math.inf

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        X, Z, r2 = self._parts(X, Z)
        radial = gaussian_of(r2) if self.nu is None else unit_norms(self._radial(r2))
        return radial.scaled(self.theta0).plus(Linear().geometry(X, Z).scaled(self.theta3)).shifted(self.theta2)

    def state_space(self, order: Any = None) -> "states.States | None":
        sizes = (np.size(v) for v in (self.theta1, self.shift, self.scale))
        nu = math.inf if self.nu is None else self.nu
        order = (float(nu), not is_zero(self.theta2), not is_zero(self.theta3)) if order is None else order
        if max(sizes) > 1:
            return None
        shift, scale = (
            jnp.reshape(jnp.asarray(default if v is None else v), ())
            for v, default in ((self.shift, 0.0), (self.scale, 1.0))
        )
        lengthscale = scale / jnp.sqrt(jnp.reshape(jnp.asarray(self.theta1), ()))
        radial = states.gaussian(lengthscale) if math.isinf(order[0]) else states.matern(int(order[0]), lengthscale)
        parts = [radial.scaled(self.theta0)]
        parts += [states.constant(self.theta2)] if order[1] else []
        if order[2]:
            parts.append(
                states.of_features(
                    lambda t: ((t - shift) / scale)[:, None], lambda t: (self.theta3 * (t - shift) / scale)[:, None], 1
                )
            )
        return dataclasses.replace(states.total(parts), order=order)

    @property
    def validity(self) -> Validity:
        says, radial = "exp(-theta1/2 |x-x'|^2)", gaussian_proof("exp(-theta1/2 |x-x'|^2)")
        if self.nu is not None and (is_traced(self.nu) or not np.isinf(self.nu)):
            says = "the Matern function of theta1^1/2 |x-x'|"
            radial = proved("RW06 4.14", "Matern: its spectral density is positive (Bochner)", says)
        parts = [derive("6.13", "a positive multiple", f"theta0 {says}", [radial])]
        if not is_zero(self.theta2):
            parts.append(proved("6.1", "one constant feature", "theta2"))
        if not is_zero(self.theta3):
            parts.append(derive("6.13", "a positive multiple", "theta3 x.x'", [Linear().validity]))
        return derive("6.17", "a sum of valid kernels", repr(self), parts) if len(parts) > 1 else parts[0]

    @property
    def stationary(self) -> bool | None:
        return is_zero(self.theta3)

    @property
    def isotropic(self) -> bool | None:
        return self.stationary and self.distance_is_isotropic

    @property
    def distance_is_stationary(self) -> bool:
        return True

    @property
    def distance_is_isotropic(self) -> bool:
        return all(_all_equal(value) for value in (self.theta1, 1.0 if self.scale is None else self.scale))


class _Pointwise(Kernel):
    """Kernels of the index of a row, not of its values: they accept inputs of any kind."""

    needs_all_columns = reads_values = False
    reads = "anything"

    variance: Positive = 1.0

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return index

    stationary = isotropic = True
    homogeneity = 0

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.variance), X.shape)


class Constant(_Pointwise):
    """The same value for every pair: a common, unknown offset."""

    smoothness = math.inf

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.variance), (X.shape[0], Z.shape[0]))

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        zero = jnp.zeros((X.shape[0], Z.shape[0]))
        return Geometry(self.block(X, Z), zero, zero)

    def feature_block(self, X: Rows) -> jax.Array:
        return jnp.sqrt(self.block_diag(X))[:, None]

    def state_space(self, order: Any = None) -> "states.States | None":
        return states.constant(self.variance)

    @property
    def validity(self) -> Validity:
        return proved("6.1", "one constant feature", repr(self))


class White(_Pointwise):
    """Independent noise of each row (the delta of PRML 6.62): ``kernel(X)`` is variance times I, ``kernel(X, Z)`` zero.

    Two rows are different even if their values are equal, like two measurements at one place. Only ``kernel(X)``, or
    ``kernel(X, X)`` with the very same object, pairs a row with itself.
    """

    smoothness = -1

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return jnp.where(X[:, None] == Z[None, :], self.variance, 0.0)

    def state_space(self, order: Any = None) -> "states.States | None":
        return states.white(self.variance)

    @property
    def validity(self) -> Validity:
        return proved("6.62", "white noise: a positive multiple of the unit matrix", repr(self))
