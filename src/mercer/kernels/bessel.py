"""The Matern correlation of any order, by the modified Bessel function of the second kind.

M_nu(s) = 2^(1-nu)/Gamma(nu) s^nu K_nu(s), as a function of t = s^2, in which it is smooth at zero:

    d/dt M_nu = -M_(nu-1) / (4 (nu-1))                                      nu > 1
    d/dt M_nu = -2^(-nu)/Gamma(nu) t^((nu-1)/2) K_(1-nu)(s)                 nu <= 1, infinite at t = 0

The derivative belongs to the same family, so derivatives of every order are exact, also at coincident points. For
nu <= 1 the derivative at t = 0 is set to zero, as coincident points need.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from mercer.kernels.distance import safe_sqrt

NODES = 256  # of the quadrature
MAX_SERIES_ARGUMENT = 1e-20  # of t: up to it, orders up to 1 are computed from the series
LOG_CUTOFF = 40.0  # the integrand is truncated where it has fallen by exp(-LOG_CUTOFF)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def matern(nu: float, t: jax.Array) -> jax.Array:
    """M_nu at s = sqrt(t); 1 at t = 0. Closed form for half-integers (up to 81/2), quadrature otherwise."""
    p = nu - 0.5
    if p == int(p) and p <= 40:
        return _half_integer(int(p), safe_sqrt(t))
    log_c = (1 - nu) * math.log(2) - math.lgamma(nu)
    value = jnp.minimum(jnp.exp(_log_bessel(nu, t) + 0.5 * nu * _log(t) + log_c), 1.0)  # rounding may exceed 1
    return jnp.where(t == 0, 1.0, jnp.where(t < MAX_SERIES_ARGUMENT, _by_series(nu, t), value) if nu < 1 else value)


def _by_series(nu: float, t: jax.Array) -> jax.Array:
    """M_nu for nu < 1 and small x = t/4, by the series of K_nu to first order: 1 + x/(1-nu) - x^nu
    Gamma(1-nu)/Gamma(1+nu). The integrand becomes so flat there that quadrature loses digits."""
    return t / (4 * (1 - nu)) - jnp.expm1(nu * _log_quarter(t) + math.lgamma(1 - nu) - math.lgamma(1 + nu))


@matern.defjvp
def _matern_jvp(nu: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (t,), (dt,) = primals, tangents
    slope = -matern(nu - 1, t) / (4 * (nu - 1)) if nu > 1 else _rough_slope(nu, t)
    return matern(nu, t), slope * dt


def _rough_slope(nu: float, t: jax.Array) -> jax.Array:
    """dM_nu/dt for nu <= 1."""
    log_c = -nu * math.log(2) - math.lgamma(nu)
    if nu == 0.5:  # K_1/2(s) = sqrt(pi / 2s) exp(-s)
        inside = jnp.where(t == 0, 1.0, t)
        return jnp.where(t == 0, 0.0, -0.5 * jnp.exp(-jnp.sqrt(inside)) / jnp.sqrt(inside))
    slope = -jnp.exp(_log_bessel(1 - nu, t) + 0.5 * (nu - 1) * _log(t) + log_c)
    if nu == 1:  # -K_0(s)/2, which is (ln(s/2) + Euler's constant)/2 near zero
        small = 0.5 * (0.5 * _log_quarter(t) + np.euler_gamma)
    else:
        small = 1 / (4 * (1 - nu)) - 0.25 * jnp.exp((nu - 1) * _log_quarter(t) + math.lgamma(1 - nu) - math.lgamma(nu))
    return jnp.where(t == 0, 0.0, jnp.where(t < MAX_SERIES_ARGUMENT, small, slope))


def _half_integer(p: int, s: jax.Array) -> jax.Array:
    """M_(p + 1/2): exp(-s) p!/(2p)! sum_i (p+i)!/(i!(p-i)!) (2s)^(p-i) (RW06 4.16), by Horner's rule."""
    f = math.factorial
    coefficients = [f(p) / f(2 * p) * f(p + i) / (f(i) * f(p - i)) for i in range(p + 1)]
    value = jnp.full_like(s, coefficients[0])
    for c in coefficients[1:]:
        value = value * (2 * s) + c
    return value * jnp.exp(-s)


def _log(t: jax.Array) -> jax.Array:
    return jnp.log(jnp.where(t == 0, 1.0, t))


def _log_quarter(t: jax.Array) -> jax.Array:
    return _log(t) - math.log(4)  # t/4 itself may underflow


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_bessel(nu: float, t: jax.Array) -> jax.Array:
    """ln K_nu(sqrt t) for t > 0 (an arbitrary finite number at t = 0), from K_nu(s) = 1/2 int exp(nu u - s cosh u) du.

    The trapezoidal rule converges geometrically here. The integrand peaks at sinh u = nu/s and is truncated on both
    sides where it has fallen by exp(-LOG_CUTOFF): on the right by the double exponential, on the left by that too or by
    exp(nu u), whichever comes first. NODES points give 12 digits for s > 1e-10, and everywhere for orders that are not
    small; orders in the thousands lose some to the size of the logarithms, 1e-16 nu ln nu.
    """
    s = jnp.sqrt(jnp.where(t == 0, 1.0, t))
    width = jnp.sqrt(s * s + nu * nu)  # minus the second derivative of the exponent at its peak
    peak = jnp.arcsinh(nu / s)
    top = nu * peak - width
    right = peak + jnp.arccosh(1 + LOG_CUTOFF / width)
    # With u = peak - v the exponent falls by width (cosh v - 1) - nu (sinh v - v), which is at least each of these:
    by_curvature = peak - jnp.arccosh(1 + LOG_CUTOFF * (width + nu) / (s * s))  # (width - nu) (cosh v - 1)
    by_order = peak - _reach(nu)  # nu (exp(-v) - 1 + v)
    by_cosh = -jnp.arccosh(1 + jnp.maximum(LOG_CUTOFF - top, 0.0) / s)  # s cosh u + top
    left = jnp.maximum(jnp.maximum(by_curvature, by_order), by_cosh)
    h = (right - left) / (NODES - 1)

    def step(i: jax.Array, total: jax.Array) -> jax.Array:
        u = left + i * h
        return total + jnp.exp(nu * u - s * jnp.cosh(u) - top)

    total = jax.lax.fori_loop(0, NODES, step, jnp.zeros_like(s))
    return top + jnp.log(0.5 * h * total)


def _reach(nu: float) -> float:
    """v with nu (exp(-v) - 1 + v) >= LOG_CUTOFF: the bracket is at least v - 1, and at least v^2/4 up to v = 3/2."""
    if nu == 0:
        return np.inf
    return 2 * math.sqrt(LOG_CUTOFF / nu) if LOG_CUTOFF / nu < 0.75**2 else LOG_CUTOFF / nu + 1


@_log_bessel.defjvp
def _log_bessel_jvp(nu: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    # K_nu' = -K_|nu-1| - (nu/s) K_nu, and ds/dt = 1/2s.
    (t,), (dt,) = primals, tangents
    value = _log_bessel(nu, t)
    s = jnp.sqrt(jnp.where(t == 0, 1.0, t))
    slope = -(jnp.exp(_log_bessel(abs(nu - 1), t) - value) + nu / s) / (2 * s)
    return value, jnp.where(t == 0, 0.0, slope) * dt
