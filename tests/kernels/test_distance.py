"""Distances: exact, never negative, differentiable; with few and with many columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.precision import double
from mercer.kernels.bessel import matern
from mercer.kernels.distance import MAX_DIFFERENCE_COLUMNS, squared_distance
from mercer.kernels.stationary import Isotropic
from reference import kernels as reference

rng = np.random.default_rng(0)


def hard_inputs(n, d, shift, seed=0):
    """Points with near-duplicates 1e-6 apart, exact duplicates, an outlier, all far from zero."""
    X = np.random.default_rng(seed).normal(size=(n, d))
    X[1] = X[0] + 1e-6 / np.sqrt(d)
    X[2] = X[3]
    X[4] *= 1e4
    return X + shift


@pytest.mark.parametrize("d", [1, 3, MAX_DIFFERENCE_COLUMNS, MAX_DIFFERENCE_COLUMNS + 1, 40])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_squared_distances_keep_twelve_digits(d, shift):
    X = hard_inputs(7, d, shift)
    Z = X[:4].copy()
    lengthscale = np.linspace(0.5, 2.0, d)
    exact = np.array([[float(reference.squared([reference.exact(v) for v in x], [reference.exact(v) for v in z],
                                               lengthscale)) for z in Z] for x in X])  # fmt: skip
    with double():
        got = np.asarray(jax.jit(squared_distance)(X, Z, lengthscale))
    assert (got >= 0).all()
    assert (got[exact == 0] == 0).all()
    np.testing.assert_allclose(got, exact, rtol=1e-12)


@pytest.mark.parametrize("d", [2, 30])
@pytest.mark.parametrize(
    "make", [lambda d: k.Exponential(1.0), lambda d: k.Matern(np.full(d, 1.5), nu=1.5), lambda d: k.RBF(2.0)]
)
def test_gram_matrices_to_nine_digits_in_hard_places(d, make):
    for shift in (0.0, 1e6):
        X = hard_inputs(6, d, shift)
        np.testing.assert_allclose(make(d)(X), reference.gram(make(d), X), rtol=1e-9, atol=1e-14)


def test_a_tile_with_many_columns_agrees_with_its_accurate_twin():
    X = rng.normal(size=(700, 50))
    X[650] = X[3] + 1e-7
    K = k.Exponential(5.0)(X)
    direct = np.sqrt(((X[[3, 650], None, :] - X[None, :, :]) ** 2).sum(-1)) / 5
    np.testing.assert_allclose(K[[3, 650]], np.exp(-direct), rtol=1e-13)
    assert (np.diag(K) == 1).all()


@pytest.mark.parametrize("d", [3, 25])
def test_gradients_through_both_formulas(d):
    X, Z, G = rng.normal(size=(5, d)), rng.normal(size=(4, d)), rng.normal(size=(5, 4))
    lengthscale = np.linspace(0.6, 1.8, d)
    with double():
        value = lambda X, Z, s: jnp.sum(G * squared_distance(X, Z, s))
        dX, dZ, ds = jax.grad(value, argnums=(0, 1, 2))(X, Z, lengthscale)
    difference = (X[:, None, :] - Z[None, :, :]) / lengthscale
    np.testing.assert_allclose(dX, np.einsum("ij,ijk->ik", G, 2 * difference / lengthscale), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(dZ, -np.einsum("ij,ijk->jk", G, 2 * difference / lengthscale), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(ds, -2 * np.einsum("ij,ijk->k", G, difference**2 / lengthscale), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("d", [2, 20])
@pytest.mark.parametrize(
    ("kernel", "curvature"),
    [
        (k.RBF(1.3), 1 / 1.3**2),
        (k.Matern(1.3, nu=1.5), 3 / 1.3**2),
        (k.Matern(1.3, nu=2.5), 5 / 3 / 1.3**2),
        (k.Matern(1.3, nu=2.2), 2.2 / 1.2 / 1.3**2),
        (k.RationalQuadratic(1.3, alpha=2.0), 1 / 1.3**2),
    ],
)
def test_second_derivatives_at_coincident_points(d, kernel, curvature):
    """cov(f'(x), f'(x)) = d2k/dx dx' at x = x': what a derivative of the process has for variance."""
    x = rng.normal(size=d)
    with double():
        one = lambda a, b: kernel(a[None], b[None])[0, 0]
        mixed = jax.jacfwd(jax.grad(one, argnums=0), argnums=1)(jnp.asarray(x), jnp.asarray(x))
    np.testing.assert_allclose(mixed, curvature * np.eye(d), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("nu", [0.1, 0.5, 0.77, 1.0, 1.5, 2.0, 3.3, 10.5, 11.5, 40.2])
def test_matern_of_any_order_and_its_derivative(nu):
    import mpmath as mp

    s = np.array([1e-9, 1e-4, 0.03, 0.9, 4.0, 25.0, 200.0])
    exact = lambda v: 2 ** (1 - mp.mpf(nu)) / mp.gamma(nu) * mp.mpf(v) ** nu * mp.besselk(nu, v)
    slope = lambda v: -(2 ** (-mp.mpf(nu))) / mp.gamma(nu) * mp.mpf(v) ** (nu - 1) * mp.besselk(nu - 1, v)
    with double():
        values = jax.jit(lambda t: matern(nu, t))(s**2)
        slopes = jax.jit(jax.vmap(jax.grad(lambda t: matern(nu, t))))(s**2)
        second = jax.grad(jax.grad(lambda t: matern(nu, t)))(0.8)
        h = 1e-4
        numeric = (jax.grad(lambda t: matern(nu, t))(0.8 + h) - jax.grad(lambda t: matern(nu, t))(0.8 - h)) / (2 * h)
    np.testing.assert_allclose(values, [float(exact(float(v))) for v in s], rtol=1e-11)
    np.testing.assert_allclose(slopes, [float(slope(float(v))) for v in s], rtol=1e-11)
    assert float(second) == pytest.approx(float(numeric), rel=1e-6)


def test_matern_limits():
    X = rng.normal(size=(6, 2))
    np.testing.assert_allclose(k.Matern(0.9, nu=0.5)(X), k.Exponential(0.9)(X), rtol=1e-14)
    np.testing.assert_allclose(k.Matern(0.9, nu=np.inf)(X), k.RBF(0.9)(X), rtol=1e-14)
    np.testing.assert_allclose(k.Matern(0.9, nu=1e4)(X), k.RBF(0.9)(X), rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(k.Matern(0.9, nu=2.5 + 1e-9)(X), k.Matern(0.9, nu=2.5)(X), rtol=1e-7)
    np.testing.assert_allclose(k.RationalQuadratic(0.9, alpha=1e9)(X), k.RBF(0.9)(X), rtol=1e-7)
    np.testing.assert_allclose(k.Standard(1.5, [4.0, 0.25], 0.0, 0.0)(X), (1.5 * k.RBF([0.5, 2.0]))(X), rtol=1e-14)
    np.testing.assert_allclose(k.Periodic(2.0, 0.7)(X[:, :1]), k.RadialPeriodic(0.7, period=2.0)(X[:, :1]), rtol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 20])
def test_gradients_keep_their_digits_where_the_distances_do(d):
    """Near points, a tiny lengthscale, an outlier far away, all at once: what matrix products alone would lose."""
    X = np.random.default_rng(0).normal(size=(5, d))
    X[1] = X[0] + 1e-6 / np.sqrt(d)
    X[4] = 1e6
    lengthscale = np.linspace(2e-6, 4e-6, d)
    difference = (X[0] - X[1]) / lengthscale
    value = np.exp(-0.5 * difference @ difference)
    with double():
        one = lambda x, s: k.RBF(s)(x)[0, 1]
        for take in (jax.grad, jax.jacfwd):
            dX, ds = take(one, argnums=(0, 1))(jnp.asarray(X), jnp.asarray(lengthscale))
            np.testing.assert_allclose(dX[0], -value * difference / lengthscale, rtol=1e-9)
            np.testing.assert_allclose(ds, value * difference**2 / lengthscale, rtol=1e-9)
            assert (np.asarray(dX)[2:] == 0).all()


def test_nan_is_not_taken_for_distance_zero():
    for kernel in (k.Exponential(), k.Matern(nu=1.5), k.Matern(nu=0.7), k.ThinPlate(), k.RationalQuadratic()):
        K = np.asarray(jax.jit(kernel)(jnp.array([0.0, jnp.nan])))
        assert np.isnan(K[0, 1])
        with pytest.raises(mc.DataError, match="not finite"):
            kernel.warp(jnp.log)([[1.0], [-2.0]])


@pytest.mark.parametrize("nu", [60.3, 1e3, 1e4])
def test_matern_of_very_high_order(nu):
    import mpmath as mp

    s = mp.sqrt(2 * mp.mpf(nu))
    exact = 2 ** (1 - mp.mpf(nu)) / mp.gamma(nu) * s**nu * mp.besselk(nu, s)
    assert k.Matern(nu=nu)([0.0, 1.0])[0, 1] == pytest.approx(float(exact), rel=1e-10)
    assert k.Matern(nu=1e6)([0.0, 1.0])[0, 1] == pytest.approx(np.exp(-0.5), rel=1e-5)


def test_arc_sine_of_inputs_of_very_different_size():
    x, z = [[1e6, 3.0], [1.0, -2.0], [2e6, 6.5]], [[1.0, 0.0], [-1e8, 2.0], [1e-3, 1e-3]]
    np.testing.assert_allclose(k.ArcSine()(x, z), reference.gram(k.ArcSine(), x, z), rtol=1e-11)
    np.testing.assert_array_equal(k.ArcSine()(x, z), k.ArcSine()(z, x).T)
    assert mc.check_kernel(k.ArcSine(), np.linspace(0, 1e4, 300)).passed


@pytest.mark.parametrize(
    "kernel",
    [
        k.Polynomial(3, 1.0).gaussian(1e7),
        (k.Linear() * k.RBF()).gaussian(1e3),
        ((k.Linear() + 1.0) ** 2).gaussian(1e7),
        (1e-12 * k.Linear()).exp().gaussian(1e-3),
        k.Linear().polynomial([1.0, 2.0, 0.5]).gaussian(1e7),
        k.Polynomial(2, 1.0).normalize().gaussian(1e-7),
    ],
    ids=repr,
)
def test_distances_in_feature_space_keep_their_digits(kernel):
    X = 1e6 + np.random.default_rng(0).normal(size=(4, 2))
    X[1] = X[0] + 1e-6
    np.testing.assert_allclose(kernel(X), reference.gram(kernel, X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "kernel",
    [
        (k.RBF(1.0) * k.RBF(2.0)).gaussian(),
        (k.RBF() ** 3).gaussian(),
        k.RBF().polynomial([1.0, 2.0, 1.0]).gaussian(),
        (k.Linear() * k.RBF()).gaussian(),
        k.Polynomial(2, 1.0).gaussian(),
        (0.5 * k.Linear()).exp().gaussian(),
        k.Polynomial(2, 1.0).normalize().gaussian(),
        k.RBF().modulate(lambda x: 1 + x[0] ** 2).gaussian(),
        k.GaussianNetwork().gaussian(),
        k.ArcSine(),
        k.ArcSine().gaussian(),
        k.RadialPeriodic(1.0, period=2.0),
        k.Periodic(2.0, 1.3),
        k.Standard(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("z", [(0.7, -0.4), (-0.4, 0.7), (0.2, 0.9)])
def test_mixed_second_derivatives_also_where_formulas_have_a_tie(kernel, z):
    x, z = np.array([0.7, -0.4]), np.array(z)
    with double():
        one = lambda a, b: kernel(a[None], b[None])[0, 0]
        mixed = np.asarray(jax.jacfwd(jax.grad(one, argnums=0), argnums=1)(jnp.asarray(x), jnp.asarray(z)))
    # Central differences of values, which have no ties: error h^2.
    h, steps = 1e-3, np.eye(2)

    def value(a, b):
        return kernel(a[None], b[None])[0, 0]

    numeric = np.array([[
        sum(s * t * value(x + s * h * u, z + t * h * v) for s in (1, -1) for t in (1, -1)) / (4 * h * h)
        for v in steps] for u in steps])  # fmt: skip
    np.testing.assert_allclose(mixed, numeric, rtol=2e-4, atol=2e-5)


def test_formulas_from_outside_are_not_trusted_to_keep_nan():
    class Compact(Isotropic):
        def of_squared_distance(self, r2):
            return jnp.where(r2 < 1, (1 - r2) ** 4, 0.0)

    X = rng.normal(size=(6, 20))
    X[1] = X[0] + 1e-6
    assert Compact(3.0)(X)[0, 1] == pytest.approx(1.0, abs=1e-9)
    landmarks = X[:5] + 1e-3
    inner = k.RBF(3.0)
    K = k.FeatureMap(jax.jit(lambda x: inner(x[None], landmarks)[0]))(X)
    P = inner(X, landmarks)
    np.testing.assert_allclose(K, P @ P.T, rtol=1e-12)
