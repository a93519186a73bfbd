"""The standard kernel on few rows in NumPy: the numbers of the compiled program, and of the formula."""

import math

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.core.parameters import evolve
from mercer.gram import Triangle, on
from mercer.kernels import standard as module
from mercer.kernels.standard import STRIP_ROWS, StandardTriangle
from mercer.kernels.stationary import SMOOTHNESSES, Standard


def standard(d: int, nu: float, seed: int, one: bool = False, theta3: float = 0.2):
    rng = np.random.default_rng(seed)
    theta1 = np.float64(0.7) if one else np.exp(rng.normal(size=d))
    kernel = Standard(theta0=1.3, theta1=theta1, theta2=0.5, theta3=theta3)
    return evolve(kernel, nu=np.float64(nu))


def rows(n: int, d: int, seed: int):
    X = np.random.default_rng(seed).normal(size=(n, d)) + 3.0
    X[2], X[3] = X[1], X[1] + 1e-7  # a copy, and a row that is nearly one
    return X


@pytest.mark.parametrize("nu", SMOOTHNESSES)
@pytest.mark.parametrize(
    ("n", "d", "one"), [(7, 1, False), (9, 2, True), (STRIP_ROWS, 3, False), (2 * STRIP_ROWS + 5, 8, False)]
)
def test_the_matrix_is_that_of_the_kernel(n, d, one, nu):
    kernel, X = standard(d, nu, seed=n, one=one), rows(n, d, seed=d)
    out = np.full((n, n), np.nan)
    with on(kernel, X).varying() as K:
        K.fill(np.asarray(to_free(kernel)), out)
    upper = np.triu_indices(n)
    assert np.abs(out - kernel(X))[upper].max() < 1e-13 * np.abs(out[upper]).max()


@pytest.mark.parametrize("nu", SMOOTHNESSES)
@pytest.mark.parametrize(("n", "d", "one"), [(9, 2, True), (STRIP_ROWS + 30, 4, False)])
def test_the_contraction_is_that_of_the_compiled_program_and_a_finite_difference(n, d, one, nu):
    kernel, X = standard(d, nu, seed=n, one=one), rows(n, d, seed=d)
    rng = np.random.default_rng(5)
    a, inverse, theta = rng.normal(size=n), rng.normal(size=(n, n)), np.asarray(to_free(kernel))
    with on(kernel, X).varying() as K:
        found = K.contract(theta, inverse, a)
    with on(kernel, X).varying(compiled=True) as K:
        compiled = K.contract(theta, inverse, a)
    size = np.abs(compiled).max()
    assert np.abs(found - compiled).max() < 1e-7 * size  # nearly equal rows cost digits with nu = 1/2
    upper = np.triu(inverse) + np.triu(inverse, 1).T
    weights = np.outer(a, a) - upper

    def total(theta):
        return float(np.sum(weights * from_free(kernel, theta)(X)))

    for i in range(len(theta)):
        step = 1e-5 * np.eye(len(theta))[i]
        assert found[i] == pytest.approx((total(theta + step) - total(theta - step)) / 2e-5, abs=1e-6 * size)


def test_without_a_linear_term():
    kernel, X = standard(3, math.inf, seed=0, theta3=0.0), rows(40, 3, seed=1)
    out, theta = np.zeros((40, 40)), np.asarray(to_free(kernel))
    with on(kernel, X).varying() as K:
        K.fill(theta, out)
        assert len(K.contract(theta, np.eye(40), np.ones(40))) == len(theta) == 5
    assert np.triu(out) == pytest.approx(np.triu(kernel(X)), abs=1e-13)


@pytest.mark.parametrize("nu", SMOOTHNESSES)
@pytest.mark.parametrize("keeps", [True, False])
def test_many_rows_on_all_cores_and_few_on_one_give_the_same(monkeypatch, nu, keeps):
    n, d = 3 * STRIP_ROWS + 7, 5
    kernel, X = standard(d, nu, seed=1), rows(n, d, seed=2)
    rng = np.random.default_rng(5)
    a, inverse, theta = rng.normal(size=n), rng.normal(size=(n, n)), np.asarray(to_free(kernel))

    def both():
        out = np.zeros((n, n))
        with on(kernel, X).varying() as K:
            for shift in (0.3, 0.0):  # the second overwrites what the first kept
                K.fill(theta + shift, out)
                slope = K.contract(theta + shift, inverse, a)
        return np.triu(out), slope

    expected = both()
    monkeypatch.setattr(module, "cores", lambda: 2)
    monkeypatch.setattr(module, "MAX_SERIAL_ROWS", 10)
    monkeypatch.setattr(module, "MAX_KEPT_ROWS", n if keeps else 10)
    for found, wanted in zip(both(), expected, strict=True):
        assert np.array_equal(found, wanted)


FORMS = [
    1.3 * k.RBF([0.7, 1.1, 2.0]),
    k.Matern(0.6, nu=1.5),
    0.4 * k.Matern([0.7, 1.1, 2.0]) + 0.3 * k.Linear() + 0.2 + k.White(0.5),
    k.Exponential(0.8) + k.Linear(),
    (2.0 * k.RBF([0.7, 1.1, 2.0]) + k.White(0.1)).fix("rbf_variance"),
    standard(3, 2.5, seed=3).fix("theta1"),
]


@pytest.mark.parametrize("kernel", FORMS, ids=repr)
def test_kernels_of_this_form_have_the_matrix_and_the_derivatives_of_the_compiled_program(kernel):
    n = STRIP_ROWS + 9
    X, rng = rows(n, 3, seed=1), np.random.default_rng(2)
    a, inverse, theta = rng.normal(size=n), rng.normal(size=(n, n)), np.asarray(to_free(kernel)) + 0.2
    found = []
    for made in (on(kernel, X).varying(), on(kernel, X).varying(compiled=True)):
        out = np.zeros((n, n))
        with made as K:
            K.fill(theta, out, True)
            found.append((np.triu(out), K.contract(theta, inverse, a)))
    assert isinstance(on(kernel, X).varying(), StandardTriangle)
    assert found[0][0] == pytest.approx(np.triu(from_free(kernel, theta)(X)), abs=1e-13)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-7, abs=1e-9 * np.abs(found[1][1]).max())


@pytest.mark.parametrize("nu", SMOOTHNESSES)
def test_lengthscales_far_below_all_distances_have_no_derivative(nu):
    rng = np.random.default_rng(6)
    X, a, kernel = rng.normal(size=(50, 3)), rng.normal(size=50), 2.0 * k.Matern(np.full(3, 1e-9), nu=nu)
    with on(kernel, X).varying() as K:
        slope = K.contract(np.asarray(to_free(kernel)), np.eye(50), a)
    assert slope[0] == pytest.approx(2.0 * np.sum(a**2 - 1))
    assert np.array_equal(slope[1:], np.zeros(3))


@pytest.mark.parametrize("kernel", [
    k.RBF() + k.RBF(2.0), k.RBF() * k.Linear(), k.Matern(nu=2.0), k.RationalQuadratic(), k.RBF().on(0),
    k.Linear() + 1.0, k.RBF() + k.Linear(np.eye(2)), (1.0 * k.RBF()) ** 2, k.RBF().normalize(),
], ids=repr)  # fmt: skip
def test_other_kernels_are_compiled(kernel):
    assert isinstance(on(kernel, np.zeros((5, 2))).varying(), Triangle)


def test_widths_are_checked():
    for kernel, name in ((k.RBF([1.0, 2.0]), "lengthscale"), (standard(2, 1.5, seed=0), "theta1")):
        with pytest.raises(mc.DataError, match=f"{name} has 2 entries"):
            on(kernel, np.zeros((5, 3))).varying()
