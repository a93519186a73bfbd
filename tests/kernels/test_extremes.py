"""Kernels at the edge of what floating point holds, against the formula in extended precision."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from mercer import kernels as k
from mercer.core.coordinates import to_free
from mercer.core.precision import double
from mercer.gram import on
from mercer.kernels.bessel import matern
from reference import kernels as reference

# -- Matern of small order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nu", [0.001, 0.05, 0.999999, 1.0, 1.05])
def test_matern_near_zero_distance(nu):
    """Rough orders fall so steeply that they are far from 1 at distances that squares can hardly hold."""
    s = np.geomspace(1e-150, 1.0, 61)
    with mp.workdps(60):
        order = mp.mpf(nu)
        scale = [2 ** (1 - order) / mp.gamma(order) * mp.mpf(v) ** order for v in s]
        exact = [float(c * mp.besselk(order, mp.mpf(v))) for c, v in zip(scale, s, strict=True)]
        # d/dt M_nu = -M_(nu-1) / (4 (nu-1)), in terms of K so that it holds for every order
        slope = [-c * mp.besselk(order - 1, mp.mpf(v)) / (2 * mp.mpf(v)) for c, v in zip(scale, s, strict=True)]
    with double():
        got, rate = jax.jit(lambda t: jax.jvp(lambda t: matern(nu, t), (t,), (jnp.ones_like(t),)))(s**2)
    assert (np.asarray(got) <= 1).all()
    np.testing.assert_allclose(got, exact, rtol=1e-11)
    there = s > 1e-140  # where the square of s has all its digits, and the slope is no larger than a number can be
    np.testing.assert_allclose(np.asarray(rate)[there], np.array(slope, dtype=float)[there], rtol=1e-10)


# -- normalized kernels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner",
    [
        k.Linear(),
        k.Linear([[2.0, 1.0], [1.0, 3.0]]),
        k.Polynomial(3),
        2.0 * k.Linear() ** 2 + k.Polynomial(2),
        k.Linear().on(0) * k.Linear().on(1) * k.Constant(2.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_normalized_products_do_not_depend_on_the_length_of_inputs(inner, size):
    X = np.array([[1.0, 2.0], [-0.5, 0.25], [3.0, -1.0]])
    expected, kernel = reference.gram(inner.normalize(), X), inner.normalize()
    scaled = X * np.array([[size], [1.0], [size]])
    np.testing.assert_allclose(kernel(scaled), expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(kernel.diag(scaled), 1.0, rtol=1e-14)
    np.testing.assert_allclose(kernel.features(scaled) @ kernel.features(X).T, expected, rtol=1e-12, atol=1e-14)


def test_normalized_products_of_nothing_and_their_gradients():
    X = np.array([[0.0, 0.0], [1.0, 2.0]])
    np.testing.assert_allclose(k.Linear().normalize()(X), [[0, 0], [0, 1]], atol=1e-15)

    def value(x):
        return k.Linear().normalize()(x[None], np.array([[3.0, -1.0]]))[0, 0]

    with double():
        gradient = jax.jit(jax.grad(value))
        slope, far = gradient(np.array([1.0, 2.0])), gradient(np.array([1e100, 2e100]))
    # d/dx of x.z / |x| |z|: z/|x||z| - x (x.z)/|x|^3 |z|
    x, z = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    exact = z / np.sqrt(50) - x * (x @ z) / (5 * np.sqrt(50))
    np.testing.assert_allclose(slope, exact, rtol=1e-13)
    np.testing.assert_allclose(far, exact * 1e-100, rtol=1e-13)


# -- short lengthscales of what repeats -------------------------------------------------------------------------------


def _values_and_rates(make):
    def value(x, z, *at):
        return jnp.diag(make(*at).block(x[:, None], z[:, None]))

    def found(x, z, *at):
        return value(x, z, *at), jax.jacfwd(value, (2, 3))(x, z, *at), jax.jacrev(value, (2, 3))(x, z, *at)

    return jax.jit(found)


REPEATING = {"points": _values_and_rates(k.Periodic), "radial": _values_and_rates(lambda p, s: k.RadialPeriodic(s, p))}


@pytest.mark.parametrize("lengthscale", [2e-2, 9e-4, 1e-8, 1e-10])
@pytest.mark.parametrize("kind", REPEATING)
def test_periodic_kernels_of_short_lengthscale(kind, lengthscale):
    """Points a whole number of periods and a fraction of a lengthscale apart, on either side of the seam too."""
    period = 0.75
    x = np.array([0.0, 0.25, 0.375, 75.0, -0.375])
    z = np.array([0.0, 1.0, -0.375, 0.0, 750.375]) + 0.2 * lengthscale * np.array([1, -1, 1, 1, -1])
    with double():
        got, rates, back = REPEATING[kind](x, z, period, lengthscale)
    with mp.workdps(60):
        p, scale = mp.mpf(period), mp.mpf(lengthscale)
        exact = []
        for a, b in zip(x, z, strict=True):
            apart = mp.mpf(a) - mp.mpf(b)
            s, c = mp.sin(mp.pi * apart / p), mp.cos(mp.pi * apart / p)
            v = mp.exp(-2 * (s / scale) ** 2)
            exact.append(
                [float(v), float(v * 4 * s * c / scale**2 * mp.pi * apart / p**2), float(v * 4 * s * s / scale**3)]
            )
    exact = np.array(exact)
    assert exact[:, 0].min() > 0.1
    # A distance is a rounded number before a period is taken off it.
    rtol = 1e-10 if kind == "points" else max(1e-10, 1e-12 / lengthscale)
    np.testing.assert_allclose(got, exact[:, 0], rtol=rtol)
    for found in (rates, back):
        np.testing.assert_allclose(found[0], exact[:, 1], rtol=rtol)
        np.testing.assert_allclose(found[1], exact[:, 2], rtol=rtol)


def test_learning_sees_the_same_gradient_at_a_short_lengthscale():
    x = np.random.default_rng(0).uniform(size=(20, 1))
    x[1], x[2] = x[0] + 1 + 1e-9, x[0] - 1 + 3e-9
    kernel = k.Periodic(1.0, 1e-8)
    with double(), on(kernel, x).varying(compiled=True) as triangle:
        got = triangle.contract(np.asarray(to_free(kernel)), np.zeros((20, 20)), np.ones(20))  # in logarithms
        exact = np.array(jax.jit(jax.grad(lambda p, s: k.Periodic(p, s).block(x, x).sum(), (0, 1)))(1.0, 1e-8))
    assert abs(exact[0]) > 1e6
    np.testing.assert_allclose(got, [exact[0], 1e-8 * exact[1]], rtol=1e-12)


def test_short_lengthscales_of_several_inputs_agree_with_the_formula():
    X = np.random.default_rng(0).uniform(size=(4, 3))
    X[1] = X[0] + np.array([1.0, -2e-5, 3e-6])
    X[2] = X[0] + np.array([3e-5, 2.0, -1.0 + 1e-6])
    kernel = k.Periodic([1.0, 0.5, 0.25], [1e-4, 1e-4, 1e-5])
    expected = reference.gram(kernel, X)
    assert (expected > 1e-3).sum() > 4
    np.testing.assert_allclose(kernel(X), expected, rtol=1e-9, atol=1e-300)


# -- kernels that a parameter at the edge makes simpler ----------------------------------------------------------------


@pytest.mark.parametrize("kernel", [k.Sigmoid(0.0, 2.0), k.Linear(np.zeros((2, 2))), k.Linear().polynomial([3.0])])
def test_a_constant_is_stationary_and_isotropic(kernel):
    K = kernel(np.random.default_rng(0).normal(size=(5, 2)))
    assert np.ptp(K) == 0
    assert kernel.stationary is True
    assert kernel.isotropic is True
    assert kernel.distance_is_stationary
    assert kernel.distance_is_isotropic
    assert kernel.validity.valid is True
    assert (kernel + k.RBF()).isotropic is True


def test_what_is_known_of_other_sigmoids():
    assert k.Sigmoid(0.0, -1.0).validity.valid is False
    assert "negative" in str(k.Sigmoid(0.0, -1.0).validity)
    assert k.Sigmoid(0.0, -1.0).stationary is True
    assert k.Sigmoid(1.0, 0.0).stationary is False
    assert k.Standard(1.0, [2.0, 2.0], 1.0, 0.0).isotropic is True
    assert k.Standard(1.0, [2.0, 1.0], 1.0, 0.0).isotropic is False
    assert k.Standard(1.0, 2.0, 1.0, 0.0, scale=[1.0, 3.0]).isotropic is False


# -- networks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel", [k.GaussianNetwork(1.0, 1e200), k.GaussianNetwork(1e-200, 1e-200), k.GaussianNetwork(1e170, 1e170)]
)
def test_networks_of_extreme_width(kernel):
    unit = float(min(kernel.width, kernel.spread))
    X = np.array([[0.0], [1.0], [-2.5]]) * unit
    np.testing.assert_allclose(kernel(X), reference.gram(kernel, X), rtol=1e-12)
    np.testing.assert_allclose(kernel.diag(X), np.diag(reference.gram(kernel, X)), rtol=1e-12)


def test_arcsine_far_from_the_origin():
    X = np.array([[1e8], [3e8], [-2e7], [1e12]])
    with mp.workdps(80):
        np.testing.assert_allclose(k.ArcSine()(X), reference.gram(k.ArcSine(), X), rtol=1e-15)
