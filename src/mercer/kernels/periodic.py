"""Kernels of periodic functions."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, Rows, as_matrix, check_width
from mercer.core.parameters import Positive, PositivePerInput
from mercer.core.precision import Array
from mercer.kernels import states
from mercer.kernels.distance import Arrays, safe_sqrt, squared_distance, tangent_by_products, uses_fast_distances
from mercer.kernels.geometry import Geometry
from mercer.kernels.stationary import Isotropic, Stationary
from mercer.kernels.validity import Proof, Validity, derive, gaussian_proof, proved

MIN_CIRCLE_LENGTHSCALE = 1e-2  # below it, distances of points on circles have too few digits
SERIES_TERMS = 16


class Periodic(Stationary):
    """exp(-2 sum_i sin^2(pi (x_i - x'_i) / p_i) / l_i^2) (RW06 4.31).

    Period and lengthscale are one number each, or one per input.

    It is the Gaussian kernel of points on circles, u(x) = (cos 2 pi x/p, sin 2 pi x/p), since
    |u - u'|^2 = 4 sin^2(pi (x - x')/p): 2 n d sines instead of n^2 d, and a proof of validity.
    """

    period: PositivePerInput = 1.0
    lengthscale: PositivePerInput = 1.0

    def _check(self, X: jax.Array) -> None:
        for name in ("period", "lengthscale"):
            if np.size(getattr(self, name)) > 1:
                check_width(X, np.size(getattr(self, name)), name)

    def block_diag(self, X: Rows) -> jax.Array:
        self._check(X)
        return super().block_diag(X)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        self._check(X)
        period, lengthscale = (jnp.broadcast_to(v, X.shape[1:]) for v in (self.period, self.lengthscale))
        return jnp.exp(-2 * _sines(X, Z, period, lengthscale))

    def state_space(self, order: Any = None) -> "states.States | None":
        if max(np.size(self.period), np.size(self.lengthscale)) > 1:
            return None
        return states.periodic(self.period, self.lengthscale, order)

    smoothness = math.inf

    @property
    def validity(self) -> Validity:
        gaussian = gaussian_proof("exp(-|u-u'|^2 / 2 l^2)")
        return derive("6.19", "a Gaussian kernel of (cos 2 pi x/p, sin 2 pi x/p)", repr(self), [gaussian])


class Cosine(Stationary):
    """cos(2 pi (x - x') / p), on one input: a sinusoid of fixed period whose amplitude and phase are unknown.

    A scalar product of two features, cos(2 pi x/p) and sin(2 pi x/p). Multiplied by a Matern kernel, amplitude and
    phase vary: a quasi-periodic oscillation.

    >>> Cosine(12.0)([0.0, 3.0, 6.0]).round(3) + 0.0
    array([[ 1.,  0., -1.],
           [ 0.,  1.,  0.],
           [-1.,  0.,  1.]])
    """

    period: Positive = 1.0

    isotropic = True

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = as_matrix(X)
        if rows.shape[1] != 1:
            raise DataError(f"Cosine reads one column; got {rows.shape[1]}. Choose it: Cosine(...).on(0).")
        return rows

    def feature_block(self, X: Rows) -> jax.Array:
        period = jnp.asarray(self.period)
        angle = 2 * jnp.pi * _within_half(X, period) / period  # an exact remainder: far inputs lose nothing
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.feature_block(X) @ self.feature_block(Z).T

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        P, Q = self.feature_block(X), self.feature_block(Z)
        product = P @ Q.T
        return Geometry(product, squared_distance(P, Q), jnp.zeros_like(product))

    def state_space(self, order: Any = None) -> "states.States | None":
        wave = np.array([[1.0, 0.0]])
        return states.damped(jnp.zeros(1), 2 * np.pi / jnp.reshape(jnp.asarray(self.period), (1,)), wave, wave)

    smoothness = math.inf

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of cos 2 pi x/p and sin 2 pi x/p", repr(self))


class RadialPeriodic(Isotropic):
    """exp(-2 sin^2(pi |x - x'| / p) / l^2): scikit-learn's ExpSineSquared.

    For one input it is `Periodic`. For several it is not a valid kernel in general.
    """

    lengthscale: Positive = 1.0
    period: Positive = 1.0

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return self.of_squared_distance(squared_distance(X, Z))

    def of_squared_distance(self, r2: jax.Array) -> jax.Array:
        # sin^2(pi r/p) with r reduced to half a period around zero, as a function of r^2, in which it is smooth there.
        r = safe_sqrt(r2)
        near = _within_half(r, self.period)
        y = jnp.where(near == r, r2 / self.period**2, (near / self.period) ** 2)
        return jnp.exp(-2 * _sine_squared(y) / self.lengthscale / self.lengthscale)

    def state_space(self, order: Any = None) -> "states.States | None":
        return states.periodic(self.period, self.lengthscale, order)

    @property
    def validity(self) -> Validity:
        return Validity(None, Proof("?", "valid for one input, where it is Periodic; not always for more", repr(self)))


# -- sum_i sin^2(pi (x_i - z_i) / p_i) / l_i^2 ------------------------------------------------------------------------


@jax.custom_jvp
def _sines(X: jax.Array, Z: jax.Array, period: jax.Array, lengthscale: jax.Array) -> jax.Array:
    # Distances of close points on a circle have few digits, too few for short lengthscales.
    short = jnp.min(lengthscale) < MIN_CIRCLE_LENGTHSCALE
    if uses_fast_distances():
        return jnp.where(short, jnp.nan, _by_circles(X, Z, period, lengthscale))
    return jax.lax.cond(short, _by_phases, _by_circles, X, Z, period, lengthscale)


@_sines.defjvp
def _sines_jvp(primals: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    if uses_fast_distances():
        short = jnp.min(primals[-1]) < MIN_CIRCLE_LENGTHSCALE
        return _sines(*primals), jnp.where(short, jnp.nan, 1.0) * _tangent_by_circles(primals, tangents)
    return _sines(*primals), jax.jvp(_by_phases, primals, tangents)[1]


def _by_circles(X: jax.Array, Z: jax.Array, period: jax.Array, lengthscale: jax.Array) -> jax.Array:
    U, V, _ = _circles(X, Z, period, lengthscale)
    return 0.25 * squared_distance(U, V, jnp.tile(lengthscale, 2))


def _tangent_by_circles(primals: Arrays, tangents: Arrays) -> jax.Array:
    # Products suffice: what they lose for close points is negligible unless the lengthscale is short.
    circles, changes = jax.jvp(_circles, primals, tangents)
    return 0.5 * tangent_by_products(circles, changes, 0.0)


def _circles(X: jax.Array, Z: jax.Array, period: jax.Array, lengthscale: jax.Array) -> Arrays:
    def points(A: jax.Array) -> jax.Array:
        # The remainder is exact in floating point, so inputs far from zero lose nothing.
        angle = 2 * jnp.pi * jnp.fmod(A, period) / period
        # The barrier makes the compiler do this once per row, not once per pair.
        return jax.lax.optimization_barrier(jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1))

    return points(X), points(Z), 1 / jnp.tile(lengthscale, 2)


def _by_phases(X: jax.Array, Z: jax.Array, period: jax.Array, lengthscale: jax.Array) -> jax.Array:
    """Sines of every pair: slower than circles, accurate for points however close."""

    @jax.checkpoint  # recomputed in the reverse pass, not stored for every column
    def add_column(total: jax.Array, column: Arrays) -> tuple[jax.Array, None]:
        x, z, p, scale = column
        x, z = _within_half(x, p)[:, None], _within_half(z, p)[None, :]
        # Points on either side of the seam at half a period are measured from the seam, which is exact.
        apart = x - z
        seam = 0.5 * jnp.sign(apart) * p
        apart = jnp.where(jnp.abs(apart) > 0.5 * p, (x - seam) - (z + seam), apart)
        return total + _sine_squared((apart / p) ** 2) / scale / scale, None

    start = jnp.zeros_like(X[:, :1] + Z[None, :, 0])
    return jax.lax.scan(add_column, start, (X.T, Z.T, period, lengthscale))[0]


def _within_half(x: jax.Array, period: jax.Array) -> jax.Array:
    """x reduced by whole periods to the interval of half a period around zero: exact in floating point."""
    rest = jnp.fmod(x, period)
    return jnp.where(jnp.abs(rest) > 0.5 * period, rest - jnp.sign(rest) * period, rest)


def _sine_squared(y: jax.Array) -> jax.Array:
    """sin^2(pi sqrt y) for 0 <= y <= 1/4, by its series in y, sum_k (-1)^(k+1) (2 pi)^(2k) y^k / (2 (2k)!)."""
    total = jnp.zeros_like(y)
    for k in range(SERIES_TERMS, 0, -1):
        total = ((-1) ** (k + 1) * (2 * math.pi) ** (2 * k) / (2 * math.factorial(2 * k)) + total) * y
    return total
