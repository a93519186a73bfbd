"""Predictive distributions: each method against its definition, and against SciPy."""

import numpy as np
import pytest
from scipy import integrate, stats

import mercer as mc
from mercer import kernels as k
from mercer.distributions import Mixture, Normal
from mercer.inference.mixtures import Mixtures, TargetMixture


def distributions():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), size=4)
    mixtures = Mixtures(weights, rng.normal(size=(3, 2)), rng.uniform(0.2, 2.0, size=(3, 2)))
    normals = [Normal(rng.normal(size=4), rng.uniform(0.2, 2.0, size=4)) for _ in range(3)]
    by_row = rng.dirichlet(np.ones(3), size=4).T
    return [
        normals[0], TargetMixture(mixtures, 1), Mixture(tuple(normals), np.array([0.2, 0.0, 0.8])),
        Mixture(tuple(normals), by_row), Mixture((normals[0], TargetMixture(mixtures, 1)), np.array([0.3, 0.7])),
    ]  # fmt: skip


@pytest.mark.parametrize("found", distributions(), ids=lambda found: type(found).__name__)
def test_every_method_says_the_same_distribution(found):
    y = found.mean + 0.7 * found.deviation
    grid = np.linspace(-12, 12, 4001)
    densities = np.exp([found.log_density(np.full(4, t)) for t in grid])
    assert integrate.trapezoid(densities, grid, axis=0) == pytest.approx(np.ones(4), abs=1e-6)
    assert integrate.trapezoid(densities * grid[:, None], grid, axis=0) == pytest.approx(found.mean, abs=1e-5)
    moment = integrate.trapezoid(densities * (grid[:, None] - found.mean) ** 2, grid, axis=0)
    assert np.sqrt(moment) == pytest.approx(found.deviation, abs=1e-5)
    below = np.array(
        [integrate.trapezoid(np.where(grid < t, d, 0.0), grid) for t, d in zip(y, densities.T, strict=True)]
    )
    assert found.cdf(y) == pytest.approx(below, abs=5e-3)
    assert found.quantile(found.cdf(y)[0])[0] == pytest.approx(y[0], abs=1e-8)
    low, high = found.interval(0.9)
    assert found.cdf(high) - found.cdf(low) == pytest.approx(np.full(4, 0.9), abs=1e-8)
    assert stats.norm.cdf(found.z(y)) == pytest.approx(found.cdf(y), abs=1e-10)
    wider = found.scaled(3.0, 1.0)
    assert wider.quantile([0.2, 0.7]) == pytest.approx(3 * found.quantile([0.2, 0.7]) + 1, abs=1e-7)
    draws = found.sample(20000, np.random.default_rng(1))
    assert draws.mean(axis=1) == pytest.approx(found.mean, abs=0.05)
    assert draws.std(axis=1) == pytest.approx(found.deviation, abs=0.05)


@pytest.mark.parametrize("found", [each for each in distributions() if isinstance(each, Mixture)])
def test_the_crps_of_a_mixture_is_its_integral(found):
    """The integral of (cdf - 1[y <= t])^2 over t."""
    y, grid = found.mean + np.array([-3.0, 0.0, 0.5, 4.0]), np.linspace(-14, 14, 8001)
    cdf = np.array([found.cdf(np.full(4, t)) for t in grid])
    expected = integrate.trapezoid((cdf - (grid[:, None] >= y)) ** 2, grid, axis=0)
    exact = all(isinstance(part, Normal) for part in found.parts)
    assert found.crps(y) == pytest.approx(expected, abs=3e-3 if exact else 1e-2)


def test_a_mixture_of_one_is_that_one():
    normal, y = Normal(np.array([1.0, -2.0]), np.array([0.5, 3.0])), np.array([1.4, 50.0])
    for alone in (Mixture((normal,), [1.0]), Mixture((normal, normal), [0.4, 0.6])):
        for method in ("log_density", "cdf", "crps", "z"):
            assert getattr(alone, method)(y) == pytest.approx(getattr(normal, method)(y), rel=1e-9)
        assert alone.quantile([0.0, 0.1, 1.0]) == pytest.approx(normal.quantile([0.0, 0.1, 1.0]))
        assert alone.mean == pytest.approx(normal.mean)
        assert alone.deviation == pytest.approx(normal.deviation)
    assert Mixture((normal, normal), [0.5, 0.5]).z(np.array([1e6, -1e6])) == pytest.approx([37, -37])
    with pytest.raises(mc.ParameterError, match="a weight for each part"):
        Mixture((normal,), [0.5])


def test_a_normal_distribution_is_scipys():
    found, y = Normal(np.array([1.0, -2.0]), np.array([0.5, 3.0])), np.array([1.4, 5.0])
    same = stats.norm(found.mean, found.deviation)
    assert found.log_density(y) == pytest.approx(same.logpdf(y))
    assert found.cdf(y) == pytest.approx(same.cdf(y))
    assert found.quantile([0.1, 0.9]) == pytest.approx(np.stack([same.ppf(0.1), same.ppf(0.9)], axis=1))


def test_without_deviation_it_is_a_point():
    point = Normal(np.array([2.0]), np.array([0.0]))
    assert point.quantile(0.3) == point.mean
    assert [float(point.log_density([y])[0]) for y in (2.0, 3.0)] == [np.inf, -np.inf]
    assert point.interval(0.95) == (2.0, 2.0)


@pytest.mark.parametrize("level", [-0.1, 1.2, np.nan])
def test_levels_are_shares(level):
    with pytest.raises(mc.ParameterError, match="between 0 and 1"):
        Normal(np.zeros(2), np.ones(2)).interval(level)


def test_estimators_predict_distributions():
    X = np.linspace(0, 5, 30)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * np.cos(9 * X[:, 0])
    Z = np.array([[0.3], [2.2]])
    for model in (mc.GaussianProcessRegressor(1.0 * k.RBF(), noise=0.01, progress=False), mc.NadarayaWatson()):
        predicted = model.fit(X, y).predict_distribution(Z)
        mean, deviation = model.predict(Z, return_std=True)
        assert predicted.mean == pytest.approx(mean)
        assert predicted.deviation == pytest.approx(deviation)
        assert predicted.quantile([0.1, 0.9]) == pytest.approx(model.predict_quantile(Z, [0.1, 0.9]))
        assert predicted.log_density([0.5, 0.5]) == pytest.approx(model.log_predictive_density(Z, [0.5, 0.5]))
