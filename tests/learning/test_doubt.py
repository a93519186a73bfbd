"""Posteriors of parameters: designs, chains and thinning against integration on a fine grid, and weak priors."""

import itertools

import networkx as nx
import numpy as np
import pytest
from scipy.special import logsumexp

import mercer as mc
from mercer import kernels as k
from mercer import priors
from mercer.learning import doubt, laplace_design
from mercer.learning.climb import Optimum
from mercer.learning.integrate import integrated
from mercer.learning.optimise import Settings
from mercer.learning.regression import RegressionObjective, learn_regression
from mercer.solvers.dense import Dense

rng = np.random.default_rng(5)
X = rng.uniform(0, 5, size=(12, 1))
y = np.sin(1.5 * X[:, 0]) + 0.2 * rng.normal(size=12)
Z = np.linspace(-1.0, 6.0, 9)[:, None]


def learned(kernel, noise=None, X=X, y=y):
    objective = RegressionObjective(kernel, X, y, noise, Dense(), use_priors=True, jacobian=True)
    return objective, learn_regression(objective, Settings(), seed=0)


def moments(objective, theta, weights):
    """Predictive mean and deviation of measurements, averaged over theta."""
    means, variances = [], []
    for each in theta:
        model = objective.at(each)
        noise = objective.variances(each)
        mean, variance = mc.GP(model.kernel).condition(objective.X, objective.target, noise).moments(Z)
        means.append(mean)
        variances.append(variance + noise[0])
    mean = weights @ np.array(means)
    return mean, np.sqrt(weights @ (np.array(variances) + (np.array(means) - mean) ** 2))


def brute_force(objective, low, high, points=60):
    """Posterior weights on a fine grid over a box of theta."""
    axes = [np.linspace(a, b, points) for a, b in zip(low, high, strict=True)]
    theta = np.array(list(itertools.product(*axes)))
    with objective.criterion() as criterion:
        posterior = doubt.LogPosterior(objective, criterion)
        logs = np.array([posterior.value(each) for each in theta])
    weights = np.exp(logs - logsumexp(logs))
    kept = weights > 1e-6
    return theta[kept], weights[kept] / weights[kept].sum()


@pytest.mark.parametrize("kernel", [1.0 * k.RBF(), (1.0 * k.Matern(1.0, nu=1.5)).fix("variance")], ids=["noise", "all"])
def test_two_parameters_are_integrated_as_on_a_fine_grid(kernel):
    objective, found = learned(kernel, 0.04 if "variance" not in kernel.fixed else None)
    assert objective.size == 2
    mode = found.theta
    expected = moments(objective, *brute_force(objective, mode - 5.0, mode + 7.0))
    for method, most in (("laplace", 10**6), ("laplace", None), ("nuts", 10**6)):
        posterior = integrated(objective, found, method, seed=0, n_samples=4000, most=most)
        mean, deviation = moments(objective, posterior.theta, posterior.weights)
        # Chains of 2,000 effective draws have a standard error of about two hundredths; 10,000 draws reach one.
        tolerance = 0.01 if method == "laplace" else 0.02
        assert np.abs(mean - expected[0]).max() < tolerance * expected[1].max()
        np.testing.assert_allclose(deviation, expected[1], rtol=tolerance)


def test_the_posterior_without_information_is_the_prior():
    """A single row with huge noise says nothing."""
    kernel = (1.0 * k.RBF()).with_priors(lengthscale=priors.LogNormal(0.3, 0.5), variance=priors.Gamma(3.0, 2.0))
    objective, found = learned(kernel, 1e6, X[:1], y[:1])
    for method in ("laplace", "nuts"):
        posterior = integrated(objective, found, method, seed=0, n_samples=2000)
        for i, prior in enumerate((priors.Gamma(3.0, 2.0), priors.LogNormal(0.3, 0.5))):
            for q in (0.1, 0.5, 0.9):
                share = np.mean(np.exp(posterior.draws[:, i]) < prior.quantile(q))
                assert share == pytest.approx(q, abs=0.05), (method, i, q)


class Gaussian(doubt.LogPosterior):
    """A log posterior that is quadratic, or split normal along its axes."""

    def __init__(self, p, stretch=None):
        A = np.random.default_rng(p).normal(size=(p, p))
        self.root = np.linalg.cholesky(A @ A.T + np.eye(p))
        self.mode, self.stretch = np.arange(p) - 1.0, stretch
        self.size, self.logarithmic, self.evaluations = p, np.ones(p, bool), 0

    def __call__(self, theta, gradient=True):
        self.evaluations += 1
        away = theta - self.mode
        P = np.linalg.inv(self.root @ self.root.T)
        return -0.5 * float(away @ P @ away), -P @ away


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 9, 22])
def test_designs_have_the_moments_of_a_gaussian(p):
    target = Gaussian(p)
    start = Optimum(0.0, target.mode + 1e-3, "", converged=True)
    found = laplace_design.laplace(target, [start], n=10, most=10**6)
    C = target.root @ target.root.T
    np.testing.assert_allclose(found.weights @ found.theta, target.mode, atol=0.02 * np.sqrt(np.diag(C).max()))
    away = found.theta - target.mode
    covariance = (away * found.weights[:, None]).T @ away
    np.testing.assert_allclose(covariance, C, atol=(0.03 if p <= 20 else 0.3) * np.diag(C).max())
    drawn = np.cov(found.draws.T).reshape(p, p)
    np.testing.assert_allclose(np.diag(drawn), np.diag(C) * (1 + (p <= 3) / 12), rtol=0.15)  # cells of a grid


def test_fractions_have_resolution_five():
    """Main effects and interactions of two factors are orthogonal to each other."""
    for p in (5, 8, 11):
        corners = np.sign(laplace_design.directions(p)[2 * p :])
        pairs = [corners[:, i] * corners[:, j] for i, j in itertools.combinations(range(p), 2)]
        A = np.column_stack([np.ones(len(corners)), corners, *pairs])
        np.testing.assert_allclose(A.T @ A, len(A) * np.eye(A.shape[1]), atol=1e-9)
    assert [len(laplace_design.directions(p)) - 2 * p for p in (4, 5, 8, 11, 20)] == [16, 16, 64, 128, 512]


def test_thinned_points_keep_moments():
    theta, weights = rng.normal(size=(500, 3)) * [1.0, 5.0, 0.1], rng.dirichlet(np.ones(500))
    few, light = doubt.thinned(theta, weights, 40)
    assert len(few) <= 40
    assert light.sum() == pytest.approx(1)
    kept = doubt.pruned(weights)
    weights = weights[kept] / weights[kept].sum()
    for powers in itertools.product(range(5), repeat=3):
        if sum(powers) <= 4:
            before, after = (w @ np.prod(t**powers, axis=1) for t, w in ((theta[kept], weights), (few, light)))
            assert after == pytest.approx(before, abs=1e-6 * 5**4)


def test_many_parameters_are_thinned_without_bias():
    theta, weights = rng.normal(size=(600, 12)), rng.dirichlet(np.full(600, 0.3))
    few, light = doubt.thinned(theta, weights, 40)
    assert len(few) <= 41
    assert light.sum() == pytest.approx(1)
    heavy = weights > 1.2 / 40
    assert all((few == each).all(axis=1).any() for each in theta[heavy])
    assert np.abs(light @ few - weights @ theta).max() < 4 / np.sqrt(40)


# -- weak priors -------------------------------------------------------------------------------------------------------


def priors_of(kernel, X, y, **settings):
    model = mc.GaussianProcessRegressor(kernel, learning="map", progress=False, **settings).fit(X, y)
    assert set(model.priors_) == set(model.parameter_names_)
    return {name: stated.prior for name, stated in model.priors_.items()}


def test_weak_priors_are_on_the_scale_of_the_data():
    """Units of inputs and target move them, and the optimum with them."""
    A = rng.normal(size=(25, 2))
    t = A[:, 0] + 0.1 * rng.normal(size=25)
    spread = A.std(axis=0)
    found = {}
    for unit in (1.0, 1e3):
        scaled = A * [1.0, unit]
        model = mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0]), learning="map", progress=False).fit(
            scaled, unit * t
        )
        stated = model.priors_
        for j, name in enumerate(("lengthscale[0]", "lengthscale[1]")):
            centre = np.sqrt(2) * spread[j] * (unit if j else 1.0)
            assert stated[name].prior.mu == pytest.approx(np.log(centre) + 1.0)  # the mode is at the centre
        assert stated["noise"].prior.mu == pytest.approx(np.log(0.1 * np.var(unit * t)) + 4.0)
        assert stated["variance"].prior.mu == pytest.approx(4.0)  # of the target divided by its deviation
        assert all(each.default for each in stated.values())
        assert "(default)" in str(model)
        assert "(default)" in str(model.report())
        found[unit] = model.predict(scaled) / unit
    np.testing.assert_allclose(found[1.0], found[1e3], atol=1e-3)


def test_priors_that_are_given_stay():
    mine = priors.Gamma(3.0, 1.0)
    model = mc.GaussianProcessRegressor(
        (1.0 * k.RBF()).with_priors(lengthscale=mine), noise=priors.HalfNormal(2.0), learning="laplace", progress=False
    ).fit(X, y)
    assert model.priors_["lengthscale"] == (mine, False)
    assert model.priors_["noise"] == (priors.HalfNormal(2.0), False)
    assert model.priors_["variance"].default
    assert dict(model.kernel_.inner.priors) == {"lengthscale": mine}  # weak ones are not left behind


def test_the_mode_is_that_of_map():
    """Weak priors penalise theta alike with and without the Jacobian."""
    models = [
        mc.GaussianProcessRegressor(1.0 * k.RBF(), learning=learning, progress=False).fit(X, y)
        for learning in ("map", "laplace")
    ]
    np.testing.assert_allclose(models[0].theta_, models[1].theta_, atol=0.05)


@pytest.mark.parametrize(
    ("kernel", "rows"),
    [
        (1.0 * k.Spectrum(2), ["abab", "abba", "bbbb", "aaab", "baba", "aabb"]),
        (1.0 * k.Subsequence(2, 0.5), ["abab", "abba", "bbbb", "aaab", "baba", "aabb"]),
        (1.0 * k.WeisfeilerLehman(2), [nx.path_graph(i) for i in range(2, 8)]),
        (1.0 * k.Periodic(1.0, 1.0) + k.Linear() + 0.5 * k.White(), np.arange(6.0)[:, None]),
        (k.RationalQuadratic(1.0, 2.0) * k.Constant(2.0), np.arange(6.0)[:, None]),
    ],
)
def test_any_kernel_has_a_proper_prior(kernel, rows):
    t = np.array([1.0, 0.5, -1.0, 0.2, 0.9, -0.3])
    for name, prior in priors_of(kernel, rows, t).items():
        assert np.isfinite(prior.quantile([0.01, 0.5, 0.99])).all(), name
        # It integrates to one.
        grid = prior.quantile(np.linspace(1e-4, 1 - 1e-4, 4001))
        assert np.trapezoid(np.exp(prior.log_density(grid)), grid) == pytest.approx(1, abs=2e-3)
