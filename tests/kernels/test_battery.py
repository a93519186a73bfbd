"""What every kernel promises, over every class there is."""

import copy
import functools
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import examples as examples_module
import mercer as mc
from examples import at_steps, every_class, examples, inputs
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.core.errors import InfiniteFeaturesError
from mercer.core.parameters import nodes_of
from mercer.core.precision import concretely, double
from mercer.kernels.space import OnSphere
from reference import kernels as reference

# What is compiled for a kernel serves all its tests: one process runs them.
CASES = [
    pytest.param(kernel, d, id=f"d{d}-{kernel!r}"[:90], marks=pytest.mark.xdist_group(f"d{d}-{kernel!r}"))
    for d in (1, 5)
    for kernel in examples(d)
]
battery = pytest.mark.parametrize(("kernel", "d"), CASES)


def has(kernel, *classes):
    return any(isinstance(node, classes) for node in nodes_of(kernel))


def only_some_inputs(kernel):
    return has(kernel, k.Precomputed, k.Coregionalization) or at_steps(kernel)


def test_every_kernel_class_is_in_the_battery():
    missing = [
        cls.__name__ for cls in every_class() if not any(has(kernel, cls) for d in (1, 5) for kernel in examples(d))
    ]
    assert not missing, f"add examples of {missing} to tests/examples.py"


@battery
def test_matches_the_formula_in_extended_precision(kernel, d):
    X, Z = inputs(kernel, 4, d), inputs(kernel, 3, d, seed=1)
    np.testing.assert_allclose(kernel(X), reference.gram(kernel, X), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(kernel(X, Z), reference.gram(kernel, X, Z), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(kernel.diag(X), np.diag(reference.gram(kernel, X)), rtol=1e-11, atol=1e-13)


@battery
def test_keeps_its_digits_far_from_zero_and_for_near_duplicates(kernel, d):
    if only_some_inputs(kernel):
        pytest.skip("its inputs are row numbers, or whole steps")
    if has(kernel, OnSphere):
        pytest.skip("latitudes are never far from zero")
    X = inputs(kernel, 3, d)
    X = np.concatenate([X, X[:2] + 1e-6 / np.sqrt(d)])
    for shift in (0.0, 1e6):
        expected = reference.gram(kernel, X + shift)
        if not np.isfinite(expected).all():
            pytest.skip("overflows there, as its formula does")
        # Kernels of scalar products grow with the shift; their digits are counted from their largest value.
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(kernel(X + shift), expected, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("kernel", [pytest.param(q, id=repr(q)[:90]) for q in examples(20)])
def test_with_many_columns_near_points_are_as_exact_as_alone(kernel):
    """Tiles with many columns mark lost digits by NaN and are done again: no kernel may turn that NaN into a number."""
    X = inputs(kernel, 6, 20)
    if not only_some_inputs(kernel):
        X[1] = X[0] + 1e-6 / np.sqrt(20)
        X[2] = X[3]
    Z = X.copy()  # other rows, of the same values
    with concretely():
        rows, columns = kernel.prepare(X, np.arange(6)), kernel.prepare(Z, np.arange(6, 12))
        accurate = np.asarray(kernel.block(rows, columns))
    np.testing.assert_allclose(kernel(X, Z), accurate, rtol=1e-11, atol=1e-12)


@battery
def test_is_symmetric_and_agrees_with_its_own_parts(kernel, d):
    X, Z = inputs(kernel, 7, d), inputs(kernel, 4, d, seed=2)
    K = kernel(X)
    np.testing.assert_allclose(K, K.T, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(np.diag(K), kernel.diag(X), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(kernel(X, Z), kernel(Z, X).T, rtol=1e-13, atol=1e-14)
    # Rows are independent of their neighbours, so padding, tiling and order change nothing.
    many = inputs(kernel, 600, d, seed=3)
    whole = kernel(many)
    assert whole.shape == (600, 600)
    np.testing.assert_allclose(whole[:7, 590:], kernel(many[:7], many[590:]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(whole[590:, 590:], kernel(many[590:]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(whole, whole.T, rtol=1e-12, atol=1e-14)


@battery
def test_what_it_claims_of_itself_is_true(kernel, d):
    X = inputs(kernel, 25, d)
    report = mc.check_kernel(kernel, X)
    if kernel.validity.valid is True:
        assert report.passed, report
        assert kernel.validity.proof.rules
    if kernel.validity.conditional is not None:
        assert kernel.validity.valid is False
        assert report.passed, report
        assert np.linalg.eigvalsh(kernel(X)).min() < 0
    if only_some_inputs(kernel):
        return
    shift = np.linspace(-2, 3, d)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    if kernel.stationary is not None:
        moved = np.allclose(kernel(X + shift), kernel(X), rtol=1e-9, atol=1e-9)
        assert moved == kernel.stationary
    if kernel.isotropic:
        np.testing.assert_allclose(kernel(X @ rotation), kernel(X), rtol=1e-9, atol=1e-9)
    elif kernel.isotropic is False and d > 1:
        turned = np.allclose(kernel(X @ rotation + shift), kernel(X), rtol=1e-9, atol=1e-9)
        assert not turned


@functools.partial(jax.jit, static_argnums=0)  # a traced kernel does not tell which terms an exact zero switches off
def slopes(kernel, theta, x, z, weights, own):
    """A weighted sum of k(x, z) and k(x, x), and its gradients in parameters and in x: one program for three tests."""

    def total(theta, x):
        free = from_free(kernel, theta)
        return jnp.sum(weights * free(x, z)) + jnp.sum(own * free(x))

    return jax.value_and_grad(total, argnums=(0, 1))(theta, x)


def slopes_at(kernel, d):
    """Where they are tested: theta, x, z and weights of both matrices."""
    rng = np.random.default_rng(5)
    X, Z = inputs(kernel, 4, d), inputs(kernel, 3, d, seed=1)
    return np.asarray(to_free(kernel)), X, Z, rng.normal(size=(4, 3)), rng.normal(size=(4, 4))


@battery
def test_gradient_in_parameters_is_exact(kernel, d):
    with double():
        theta, *rest = slopes_at(kernel, d)
        if theta.size == 0:
            pytest.skip("no free parameters")
        gradient = np.asarray(slopes(kernel, theta, *rest)[1][0])
        h = 1e-5
        for i, step in enumerate(np.eye(theta.size) * h):
            difference = (slopes(kernel, theta + step, *rest)[0] - slopes(kernel, theta - step, *rest)[0]) / (2 * h)
            assert gradient[i] == pytest.approx(float(difference), rel=2e-6, abs=2e-7)


@battery
def test_gradient_in_inputs_is_exact(kernel, d):
    if only_some_inputs(kernel):
        pytest.skip("its inputs are row numbers, or whole steps")
    with double():
        theta, X, *rest = slopes_at(kernel, d)
        gradient = np.asarray(slopes(kernel, theta, X, *rest)[1][1])
        direction = np.random.default_rng(6).normal(size=X.shape)
        h = 1e-5
        up, down = (slopes(kernel, theta, X + sign * h * direction, *rest)[0] for sign in (1, -1))
        assert np.sum(gradient * direction) == pytest.approx(float((up - down) / (2 * h)), rel=2e-6, abs=2e-7)


@battery
def test_gradients_are_finite_at_coincident_points(kernel, d):
    if only_some_inputs(kernel):
        pytest.skip("its inputs are row numbers, or whole steps")
    with double():
        theta, X, *_ = slopes_at(kernel, d)
        X = np.repeat(X[:2], 2, axis=0)
        slope, gradient = slopes(kernel, theta, X, X[:3], np.ones((4, 3)), np.ones((4, 4)))[1]
        assert np.isfinite(slope).all()
        assert np.isfinite(gradient).all()
        if kernel.stationary:
            # A point met with itself stays at distance zero: the value cannot change.
            itself = np.zeros((4, 3))
            itself[0, 0] = 1.0
            gradient = slopes(kernel, theta, X, X[:3], itself, np.zeros((4, 4)))[1][1]
            np.testing.assert_allclose(gradient, 0.0, atol=1e-12)


@jax.jit
def transformed(kernel, X):
    """k(X, X), its rows one by one, and its diagonal."""
    return kernel(X), jax.vmap(lambda x: kernel(x[None, :], X)[0])(X), kernel.diag(X)


@battery
def test_passes_through_jax_transformations(kernel, d):
    X = inputs(kernel, 5, d)
    expected, reached = kernel(X), kernel(X, X.copy())
    with double():
        own, stacked, diagonal = transformed(kernel, X)
    np.testing.assert_allclose(own, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(stacked, reached, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-12, atol=1e-13)


@battery
def test_single_precision_code_of_the_caller_stays_single(kernel, d):
    # JAX 0.10 confuses an argument with the same array held as a constant by a double precision program, as `slopes`
    # holds the kernel's: hence a copy.
    kernel = copy.deepcopy(kernel)
    X = inputs(kernel, 5, d).astype(np.float32)
    assert jnp.ones(1).dtype == np.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = jax.jit(lambda q, x: q(x))(kernel, X)
    assert traced.dtype == np.float32
    np.testing.assert_allclose(traced, kernel(X.astype(float)), rtol=2e-3, atol=2e-4)
    assert kernel(X).dtype == np.float64


@battery
def test_copies_are_equal(kernel, d):
    X = inputs(kernel, 4, d)
    assert copy.deepcopy(kernel) == kernel
    again = pickle.loads(pickle.dumps(kernel))
    assert again == kernel
    assert hash(again) == hash(kernel)
    np.testing.assert_array_equal(again(X), kernel(X))
    # repr is an expression that rebuilds the kernel.
    rebuilt = eval(repr(kernel), {**vars(k), **vars(examples_module)})
    np.testing.assert_array_equal(rebuilt(X), kernel(X))


@battery
def test_features_reproduce_the_gram_matrix(kernel, d):
    X = inputs(kernel, 6, d)
    try:
        F = kernel.features(X)
    except InfiniteFeaturesError:
        finite = (k.Linear, k.Polynomial, k.Constant, k.FeatureMap)
        assert not isinstance(kernel, finite)
        return
    np.testing.assert_allclose(F @ F.T, kernel(X), rtol=1e-11, atol=1e-12)


@battery
def test_distance_in_feature_space(kernel, d):
    X, Z = inputs(kernel, 4, d), inputs(kernel, 4, d, seed=1)
    with double():
        rows, columns = kernel.prepare(X, np.arange(4)), kernel.prepare(Z, np.arange(4, 8))
        product, got, difference = (np.asarray(part) for part in kernel.geometry(rows, columns))
    naive = kernel.diag(X)[:, None] + kernel.diag(Z)[None, :] - 2 * kernel(X, Z)
    assert (got >= 0).all()
    np.testing.assert_allclose(product, kernel(X, Z), rtol=1e-12, atol=1e-13)
    lengths = kernel.diag(X)[:, None] - kernel.diag(Z)[None, :]
    np.testing.assert_allclose(difference, lengths, rtol=1e-10, atol=1e-12)
    if kernel.validity.valid:
        np.testing.assert_allclose(got, naive, rtol=1e-9, atol=1e-11)
