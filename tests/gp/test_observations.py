"""Linear observations: against finite differences, closed forms, quadrature by SciPy, solvers of differential
equations, rejection sampling and the formulas of a Gaussian conditional."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import dblquad, quad, solve_ivp

import mercer as mc
from mercer import kernels as k
from mercer.kernels.observed import Functionals, Observed
from mercer.kernels.operators import as_operators
from mercer.operators import Derivative, Integral, Linear, Value

X = np.linspace(0.0, 3.0, 6)
Z = np.array([0.3, 1.7, 2.2])


def joint(kernel, operators, X):
    """Covariance of the operators at the rows of X, in order, and the kernel with its rows."""
    F = Functionals.over(X)
    each = as_operators(operators, len(X), F.width, F.names)
    F = F.with_operators(each)
    observed = Observed.of(kernel, F)
    rows = F.coded(X, each)
    observed = observed.accurate(rows)
    return observed(rows), observed, rows


# -- covariances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        1.5 * k.Matern([0.8, 1.3], nu=2.5),
        k.Standard(1.2, 0.7, 0.1, 0.3, nu=2.5),
        k.RBF(0.7).on(0) * k.Periodic(2.0, 0.9).on(1) + k.ArcSine().gaussian(0.8),
    ],
    ids=["matern", "standard", "composite"],
)
def test_derivatives_are_those_of_the_kernel_also_at_coincident_points(kernel):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(3, 2))
    A = np.vstack([A, A])
    K, _, _ = joint(kernel, [Value()] * 3 + [Derivative(0)] * 3, A)
    h, e = 1e-3, np.array([1.0, 0.0])

    def difference(f):  # of the fourth order in h, for the slope at zero of a function of one step
        return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)

    points = A[:3]
    np.testing.assert_allclose(K[:3, :3], kernel(points, points), rtol=1e-12)
    np.testing.assert_allclose(K[:3, 3:], difference(lambda s: kernel(points, points + s * e)), atol=1e-7)
    twice = difference(lambda s: difference(lambda r: kernel(points + r * e, points + s * e)))
    # At coincident points the fifth derivative of a Matern function has a jump.
    np.testing.assert_allclose(K[3:, 3:], twice, atol=3e-3)
    np.testing.assert_allclose(K, K.T, atol=1e-13)
    assert np.linalg.eigvalsh(K)[0] > 0


def test_integrals_of_rough_kernels_are_those_of_scipy():
    kernel = k.Matern(0.6, nu=1.5)

    def of(a, b):  # RW06 4.17
        s = np.sqrt(3) * abs(a - b) / 0.6
        return (1 + s) * np.exp(-s)

    K, observed, _ = joint(kernel, [Integral(0.0, 1.0), Integral(0.5, 2.0), Value()], np.full((3, 1), 0.7))
    for (i, j), (a, b, c, d) in {(0, 0): (0, 1, 0, 1), (0, 1): (0, 1, 0.5, 2)}.items():
        inner = functools.partial(np.clip, a_min=c, a_max=d)
        left = dblquad(lambda u, v: of(v, u), a, b, c, inner, epsabs=1e-8)[0]
        right = dblquad(lambda u, v: of(v, u), a, b, inner, d, epsabs=1e-8)[0]
        np.testing.assert_allclose(K[i, j], left + right, rtol=1e-7)
    np.testing.assert_allclose(K[2, 1], quad(lambda u: of(0.7, u), 0.5, 2.0, points=[0.7])[0], rtol=1e-9)
    assert len(observed.functionals.nodes) < 40


def test_integrals_have_closed_forms():
    ell, b = 0.7, 2.0
    exact = 2 * (ell * b - ell**2 * (1 - np.exp(-b / ell)))  # of the Ornstein-Uhlenbeck process
    rough = mc.GP(k.Exponential(ell)).apply(Integral(0.0, b))
    np.testing.assert_allclose(rough.variance([0.0]), exact, rtol=1e-9)
    # Over a box, of a product of kernels, and the same interval backwards.
    box = mc.GP(k.Exponential(ell).on(0) * k.Linear().on(1)).apply(Integral([0.0, 0.0], [b, 3.0]), n_inputs=2)
    np.testing.assert_allclose(box.variance([[0.0, 0.0]]), exact * 4.5**2, rtol=1e-9)
    backwards = mc.GP(k.Exponential(ell)).apply(Integral(b, 0.0) + Integral(0.0, b))
    np.testing.assert_allclose(backwards.variance([0.0]), 0.0, atol=1e-12)


def test_a_kernel_that_varies_too_fast_for_quadrature_is_told():
    with pytest.warns(mc.NumericalWarning, match="integrals are accurate to"):
        mc.GP(k.RBF(1e-3)).apply(Integral(0.0, 1.0))


# -- conditioning ----------------------------------------------------------------------------------------------------

f = mc.GP(1.3 * k.RBF(1.0))


def test_conditioning_is_the_gaussian_conditional():
    ops = [Value(), Derivative(0), Integral(0.0, 2.0)] * 2
    noise = np.linspace(0.01, 0.06, 6)
    y = np.cos(X)
    g = f.condition(X, y, noise, operator=ops)
    K, observed, rows = joint(f.kernel, ops, X[:, None])
    cross = observed(observed.functionals.coded(Z[:, None]), rows)
    C = K + np.diag(noise)
    np.testing.assert_allclose(g.mean(Z), cross @ np.linalg.solve(C, y), rtol=1e-9)
    covariance = f.kernel(Z, Z) - cross @ np.linalg.solve(C, cross.T)
    np.testing.assert_allclose(g.covariance(Z), covariance, atol=1e-9)
    np.testing.assert_allclose(g.variance(Z), np.diag(covariance), atol=1e-9)
    logpdf = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + 6 * np.log(2 * np.pi))
    np.testing.assert_allclose(g.log_evidence(), logpdf, rtol=1e-9)
    order = [0, 2, 4, 1, 3, 5]  # twice is once, in any order, with operators that come later
    h = f.condition(X[order[:2]], y[order[:2]], noise[order[:2]], operator=[ops[i] for i in order[:2]])
    h = h.condition(X[order[2:]], y[order[2:]], noise[order[2:]], operator=[ops[i] for i in order[2:]])
    np.testing.assert_allclose(h.mean(Z), g.mean(Z), rtol=1e-9)
    np.testing.assert_allclose(h.variance(Z), g.variance(Z), atol=1e-9)
    samples = g.sample(Z, size=4000, seed=1)
    np.testing.assert_allclose(samples.mean(axis=0), g.mean(Z), atol=0.05)


def test_values_are_plain_conditioning():
    g = f.condition(X, np.sin(X), 0.1, operator=Value())
    assert g.kernel is f.kernel
    np.testing.assert_array_equal(g.mean(Z), f.condition(X, np.sin(X), 0.1).mean(Z))


def test_the_derivative_of_a_posterior_is_its_gradient():
    g = mc.GP(1.3 * k.RBF(1.0), mean="linear").condition(X, np.sin(X) + 50.0 + X, 0.01)
    slope = g.apply(Derivative(0))
    dmean = g.gradients(Z)[0]
    np.testing.assert_allclose(slope.mean(Z), dmean[:, 0], rtol=1e-8)
    total = g.apply(Integral(0.0, None)).apply(Derivative(0))  # the fundamental theorem
    np.testing.assert_allclose(total.mean(Z), g.mean(Z), rtol=1e-7)
    np.testing.assert_allclose(total.variance(Z), g.variance(Z), atol=1e-6)
    # Of the process that is the derivative, data are derivatives.
    both = slope.condition(Z, np.cos(Z) + 1.0, 0.01)
    np.testing.assert_allclose(
        both.mean(X), g.condition(Z, np.cos(Z) + 1.0, 0.01, operator=Derivative(0)).apply(Derivative(0)).mean(X)
    )


def test_any_linear_operator_in_jax():
    by_hand = Linear(lambda g: lambda x: x[0] * jax.grad(g)(x)[0] + 2.0 * g(x))
    same = (lambda x: x[0]) * Derivative(0) + 2.0 * Value()
    K, _, _ = joint(k.RBF(0.8), [by_hand, same, by_hand, same], np.array([[0.4], [0.4], [1.5], [1.5]]))
    np.testing.assert_allclose(K[::2, ::2], K[1::2, 1::2], rtol=1e-12)
    twice = Linear(lambda g: lambda t: jax.grad(jax.grad(g))(t))  # of numbers
    assert twice.orders(1) == {(2,)}
    assert by_hand.orders(1) == {(1,)}
    assert Linear(lambda g: lambda x: g(x + 1.0) - g(x)).orders(1) == {(0,)}
    with pytest.raises(mc.ParameterError, match="not linear"):
        f.condition([0.0], [1.0], 0.1, operator=Linear(lambda g: lambda x: g(x) ** 2))
    with pytest.raises(mc.ParameterError, match="returns one"):
        f.condition([0.0], [1.0], 0.1, operator=Linear(lambda g: lambda x: (g(x), g(x))))


@pytest.mark.parametrize(
    ("kernel", "operator", "says"),
    [
        (k.Exponential(), Derivative(0), r"Exponential.* have none.*Matern\(nu=1.5\)"),
        (k.RBF() + 2.0 * k.Matern(nu=1.5), Derivative(0, order=2), r"Matern\(.*nu=1.5\) have 1.*Matern\(nu=2.5\)"),
        (k.Standard(nu=0.5), Derivative(0), "have none"),
        (k.RBF() + k.White(0.1), Integral(0.0, 1.0), "noise=..."),
        (k.Matern(nu=1.5), Linear(lambda g: lambda t: jax.grad(jax.grad(g))(t)), "have 1"),
        (k.Matern(nu=2.5).warp(lambda x: x), Derivative(0) @ Derivative(0, order=2), "have 2"),
    ],
)
def test_kernels_that_are_too_rough_are_named(kernel, operator, says):
    with pytest.raises(mc.InvalidKernelError, match=says):
        mc.GP(kernel).condition(X, np.sin(X), 0.1, operator=operator)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (k.RBF() + k.Precomputed(np.eye(6)), r"Precomputed.*some inputs only"),
        (k.AR([0.5, 0.1, 0.1]), "some inputs only"),
        (k.ARMA(0.5, 0.4), "some inputs only"),
        (k.AR(0.5), "have none"),
        (k.Custom(lambda x, z: jnp.exp(-jnp.abs(x[0] - z[0]))), "Custom.*may be too rough"),
        (k.RBF() + k.Custom(lambda x, z: jnp.exp(-jnp.sqrt(jnp.abs(x[0] - z[0])))), "Custom.*may be too rough"),
    ],
)
def test_derivatives_of_kernels_that_have_none_are_refused(kernel, says):
    with pytest.raises(mc.InvalidKernelError, match=says):
        mc.GP(kernel).condition(np.arange(6.0), np.zeros(6), 0.1, operator=Derivative(0))


def test_smooth_kernels_of_unknown_smoothness_have_derivatives():
    own = k.Custom(lambda x, z: jnp.exp(-0.5 * (x[0] - z[0]) ** 2))
    expected = mc.GP(k.RBF()).condition([0.0], [1.0], 0.1, operator=Derivative(0)).mean(Z)
    np.testing.assert_allclose(mc.GP(own).condition([0.0], [1.0], 0.1, operator=Derivative(0)).mean(Z), expected)
    mc.GP(k.FeatureMap(lambda x: x**2)).condition([0.0], [1.0], 0.1, operator=Derivative(0))  # with variance zero


def test_smoothness_counts_in_each_input():
    kernel = k.Matern(nu=1.5).on(0) * k.RBF().on(1)
    assert kernel.rough_part((1, 5)) is None
    assert kernel.rough_part((2, 0)) == k.Matern(nu=1.5)
    assert k.Matern(nu=2.5).rough_part((1, 2)) is not None  # together three


def test_wrong_operators_are_refused():
    for wrong, says in {
        "Derivative": "must be from mercer.operators", (Value(),) * 2: "one for each of 6", Derivative(1): "column 1",
        Integral([0.0, 1.0], 2.0): "limits for 6|limits for 2", Derivative("t"): "no column names",
    }.items():  # fmt: skip
        with pytest.raises(mc.MercerError, match=says):
            f.condition(X, X, 0.1, operator=wrong)
    with pytest.raises(mc.ParameterError, match="positive integer"):
        Derivative(0, order=0)
    with pytest.raises(mc.ParameterError, match="finite"):
        Integral(0.0, np.inf)
    with pytest.raises(mc.ParameterError, match="L @ M"):
        Value() * Value()
    assert repr(-1.0 * Derivative("t") + 2 * Value() / 4) == "-1.0 * Derivative('t') + 0.5 * Value()"


# -- differential equations ------------------------------------------------------------------------------------------


def test_a_damped_oscillator_from_noisy_measurements():
    damping, stiffness = 0.4, 4.0
    solved = solve_ivp(lambda t, s: [s[1], -stiffness * s[0] - damping * s[1]], (0, 6), [1.0, 0.0], dense_output=True,
                       rtol=1e-9, atol=1e-9).sol  # fmt: skip
    equation = Derivative(0, order=2) + damping * Derivative(0) + stiffness * Value()
    t = np.linspace(0, 6, 40)
    inside = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        seen = np.sort(rng.uniform(0, 3, 12))
        y = solved(seen)[0] + 0.1 * rng.normal(size=12)
        g = mc.GP(k.RBF(0.8)).condition(t, np.zeros(40), 1e-6, operator=equation).condition(seen, y, 0.01)
        later = np.linspace(0, 6, 31)
        mean, deviation = g.mean(later), np.sqrt(g.variance(later))
        inside.append(np.abs(mean - solved(later)[0]) < 1.96 * deviation)
        assert np.abs(mean - solved(later)[0]).max() < 0.2  # it was measured only until 3
        assert deviation.max() < 0.1
    assert np.mean(inside) > 0.85


def test_the_heat_equation_from_noisy_measurements():
    conductivity = 0.02
    grid = np.linspace(0, 1, 41)
    second = (np.eye(41, k=1) - 2 * np.eye(41) + np.eye(41, k=-1)) * 40**2
    second[[0, -1]] = 0.0
    start = np.sin(np.pi * grid) + 0.5 * np.sin(3 * np.pi * grid)
    times = np.linspace(0, 1, 6)
    u = solve_ivp(lambda t, u: conductivity * second @ u, (0, 1), start, t_eval=times, method="LSODA", rtol=1e-8).y.T

    frame = lambda t, x: pd.DataFrame({"t": np.ravel(t), "x": np.ravel(x)})
    equation = Derivative("t") - conductivity * Derivative("x", order=2)
    T, S = np.meshgrid(np.linspace(0, 1, 9), np.linspace(0, 1, 11))
    g = mc.GP(k.RBF(0.5).on("t") * k.RBF(0.2).on("x"))
    g = g.condition(frame(T, S), np.zeros(T.size), 1e-6, operator=equation)
    edge = np.repeat(np.linspace(0, 1, 8), 2)
    g = g.condition(frame(edge, np.tile([0.0, 1.0], 8)), np.zeros(16), 1e-6)
    A, B = np.meshgrid(times, grid[4:-4:4], indexing="ij")
    inside = []
    for seed in range(6):
        y = start[::2] + 0.05 * np.random.default_rng(seed).normal(size=21)
        seen = g.condition(frame(np.zeros(21), grid[::2]), y, 0.05**2)
        mean, variance = seen.moments(frame(A, B)[["x", "t"]])  # columns are found by name
        error = np.abs(mean - u[:, 4:-4:4].ravel())
        assert error.max() < 0.15
        inside.append(error < 1.96 * np.sqrt(variance))
    assert np.mean(inside) > 0.88


# -- limits ----------------------------------------------------------------------------------------------------------


def test_limits_agree_with_rejection_sampling():
    g = mc.GP(2.0 * k.RBF(0.8)).condition([0.0, 1.0, 2.0], [0.3, 1.0, 1.4], 0.2)
    at = np.array([0.2, 0.8, 1.3, 1.9])
    draws = g.sample(at, size=200_000, seed=1)
    low = np.array([0.4, 0.6, 0.8, 1.0])
    kept = draws[((draws > low) & (draws < 1.6)).all(axis=1)]
    h = g.constrain(at, low, 1.6)
    np.testing.assert_allclose(h.mean(at), kept.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(np.sqrt(h.variance(at)), kept.std(axis=0), rtol=0.1)
    with pytest.raises(mc.ParameterError, match="less than upper"):
        g.constrain(at, 1.0, 1.0)


# -- tools -----------------------------------------------------------------------------------------------------------


def test_integral_extremes_and_zeros_of_a_function():
    x = np.linspace(0, 6, 25)
    g = mc.GP(k.RBF(1.0)).condition(x, np.sin(x), 1e-6)
    total = mc.tools.integral(g, 0.0, 6.0)
    assert abs(total.mean[0] - (1 - np.cos(6.0))) < 3 * total.deviation[0] + 1e-6
    top, bottom = mc.tools.maximum(g, [(0, 6)], 50), mc.tools.minimum(g, [(0, 6)], 50)
    np.testing.assert_allclose(top.x, np.pi / 2, atol=0.02)
    np.testing.assert_allclose(bottom.x, 1.5 * np.pi, atol=0.02)
    np.testing.assert_allclose(top.value, 1.0, atol=0.01)
    crossings = mc.tools.zeros(g, [(1.0, 5.0)], size=50)
    assert crossings.probability == 1.0
    assert (crossings.counts == 1).all()
    np.testing.assert_allclose(crossings.first, np.pi, atol=0.01)
    assert "none" in repr(mc.tools.zeros(g, [(1.0, 2.0)], size=10))
    assert "draws" in repr(top)
    assert "probability 1" in repr(crossings)
    # The distribution of the maximum of a process without data is not that of any one value.
    prior = mc.tools.maximum(mc.GP(k.RBF(0.5)), [(0, 6)], 400, seed=3)
    assert 1.0 < prior.value.mean() < 2.5


def test_extremes_of_several_inputs():
    rng = np.random.default_rng(0)
    A = rng.uniform(-1, 1, (60, 2))
    g = mc.GP(k.RBF(1.0)).condition(A, -np.sum((A - [0.3, -0.2]) ** 2, axis=1), 1e-6)
    top = mc.tools.maximum(g, [(-1, 1), (-1, 1)], 30)
    np.testing.assert_allclose(top.x.mean(axis=0), [0.3, -0.2], atol=0.05)
