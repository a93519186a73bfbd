"""Noise as a part of the model: learned, with or without a prior, one number, one variance for each row."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer import priors
from mercer.core.coordinates import from_free, log_prior
from mercer.core.inputs import as_matrix
from mercer.core.parameters import Positive, evolve
from mercer.gp.noise import CommonNoise, LearnedNoise, Noise, RowNoise, as_noise
from mercer.gram import raw
from mercer.learning.regression import RegressionObjective
from mercer.solvers import Dense, Weights

rng = np.random.default_rng(0)
X = rng.uniform(0, 6, size=(40, 1))
y = 50 * np.sin(X[:, 0]) + 10 * rng.normal(size=40)


def test_what_is_given_makes_the_noise():
    assert isinstance(as_noise(None, 3), LearnedNoise)
    assert dict(as_noise(priors.HalfNormal(2.0), 3).priors) == {"noise": priors.HalfNormal(2.0)}
    assert isinstance(as_noise(0.1, 3), CommonNoise)
    assert isinstance(as_noise([0.1, 0.2, 0.0], 3), RowNoise)
    assert not as_noise([0.1, 0.2, 0.0], 3).positive
    assert as_noise([0.1, 0.2, 0.3], 3).take([2, 0]).variances(np.zeros(0), [[0], [1]]) == pytest.approx([0.3, 0.1])
    for bad in (-1.0, np.nan, "much", [1.0, 2.0], [1.0, -2.0, 3.0]):
        with pytest.raises((mc.ParameterError, mc.DataError), match="noise"):
            as_noise(bad, 3)


@pytest.mark.parametrize("unit", [1.0, 0.04])
def test_slopes_of_learned_noise_are_differences(unit):
    noise = LearnedNoise().with_priors(noise=priors.LogNormal(-1.0, 0.7)).scaled(unit)
    weights, free, step = rng.normal(size=5), np.array([0.3]), 1e-6
    high, low = free + step, free - step
    expected = weights @ (noise.variances(high, X[:5]) - noise.variances(low, X[:5])) / (2 * step)
    assert noise.slope(free, X[:5], weights) == pytest.approx([expected], rel=1e-6)
    # The prior is in units of the target as it was given.
    value = float(log_prior(from_free(noise, free)))
    assert value == pytest.approx(float(priors.LogNormal(-1.0, 0.7).log_density(np.exp(0.3) / unit)), rel=1e-6)


def test_a_prior_of_the_noise_is_honoured_by_map():
    prior = priors.LogNormal(np.log(4.0), 0.05)  # far from 100, and narrow
    free = mc.GaussianProcessRegressor(900.0 * k.RBF(), progress=False).fit(X, y)
    held = mc.GaussianProcessRegressor(900.0 * k.RBF(), noise=prior, learning="map", progress=False).fit(X, y)
    assert 40 < free.noise_ < 250
    assert 3.5 < held.noise_ < 7.0
    # The optimum is stationary: the slope of the evidence and of the prior cancel, also in the parameter of the noise.
    slope = held.log_marginal_likelihood(held.theta_, eval_gradient=True)[1]
    of_prior = (-1 - (np.log(held.noise_) - np.log(4.0)) / 0.05**2) / held.noise_ * held.noise_
    assert slope[-1] + of_prior == pytest.approx(0.0, abs=0.1)
    for i, name in enumerate(held.parameter_names_[:-1]):  # these have weak priors
        value = np.exp(held.theta_[i])
        assert held.priors_[name].default
        assert slope[i] + held.priors_[name].prior.slope(value) * value == pytest.approx(0.0, abs=0.1)


def test_a_vague_prior_changes_little_and_comes_back_from_a_file(tmp_path):
    vague = priors.LogNormal(0.0, 50.0)
    free = mc.GaussianProcessRegressor(900.0 * k.RBF(), progress=False).fit(X, y)
    held = mc.GaussianProcessRegressor(900.0 * k.RBF(), noise=vague, learning="map", progress=False).fit(X, y)
    assert held.noise_ == pytest.approx(free.noise_, rel=0.1)
    mc.save(held, tmp_path / "model")
    assert mc.load(tmp_path / "model").noise == vague
    assert "learned" in str(held.report())


def test_priors_of_the_noise_where_they_cannot_be_used():
    prior = priors.LogNormal(0.0, 1.0)
    with pytest.warns(mc.ModelWarning, match="the noise has a prior, which learning='mle' ignores"):
        mc.GaussianProcessRegressor(k.RBF(), noise=prior, progress=False).fit(X, y)
    with pytest.raises(mc.ParameterError, match="is a prior, which needs a noise to learn"):
        mc.GaussianProcessRegressor(k.RBF(), noise=prior, learning=None).fit(X, y)
    with pytest.raises(mc.ParameterError, match="is a prior"):
        mc.GaussianProcessRegressor(k.RBF() + k.White(), noise=prior, learning="map").fit(X, y)


def test_the_prior_of_an_objective_has_the_slope_it_says():
    kernel = (2.0 * k.RBF(0.7)).with_priors(lengthscale=priors.Gamma(2.0, 3.0))
    noise = LearnedNoise().with_priors(noise=priors.HalfNormal(0.3))
    objective = RegressionObjective(kernel, X, y / 50, noise, Dense(), use_priors=True)
    prior, theta = objective.prior(), np.array([0.2, -0.4, -1.0])
    slope = prior(theta)[1]
    for i, step in enumerate(1e-6 * np.eye(3)):
        assert slope[i] == pytest.approx((prior(theta + step)[0] - prior(theta - step)[0]) / 2e-6, abs=1e-5)


@pytest.mark.parametrize("n", [40, 150])
def test_the_default_kernel_honours_a_prior_of_the_noise_too(n):
    A = rng.uniform(0, 6, size=(n, 1))
    t = np.sin(A[:, 0]) + 0.3 * rng.normal(size=n)
    prior = priors.LogNormal(np.log(5.0), 0.01)
    held = mc.GaussianProcessRegressor(noise=prior, learning="map", progress=False).fit(A, t)
    assert held.noise_ == pytest.approx(5.0, rel=0.05)


def test_noise_objects_are_not_for_estimators():
    with pytest.raises(mc.ParameterError, match="noise must be None, a variance"):
        mc.GaussianProcessRegressor(k.RBF(), noise=CommonNoise(0.1)).fit(X, y)


class GrowingNoise(Noise):
    """A noise that depends on x: noise (1 + x^2)."""

    noise: Positive = 1.0
    size = 1

    def variances(self, free, rows):
        return np.exp(free[0]) * (1 + as_matrix(raw(rows))[:, 0] ** 2)

    def slope(self, free, rows, weights):
        return np.array([weights @ self.variances(free, rows)])

    def at(self, Z):
        return self.noise * (1 + as_matrix(Z)[:, 0] ** 2)

    def scaled(self, unit):
        return evolve(self, noise=self.noise * unit)


@pytest.mark.parametrize("solver", [Dense(), Weights()])
def test_a_noise_may_depend_on_the_inputs(solver):
    objective = RegressionObjective(2.0 * k.Linear(), X, y / 50, GrowingNoise(), solver)
    theta = np.array([0.2, -0.4])
    with objective.criterion() as evidence:
        slope = evidence(theta).gradient
        for i, step in enumerate(1e-6 * np.eye(2)):
            ends = [evidence(theta + sign * step, gradient=False).value for sign in (1, -1)]
            assert slope[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)
    found = objective.at(theta)
    posterior = solver.posterior(found.kernel, X, y / 50, objective.variances(theta))
    new = np.array([[0.0], [3.0]])
    predicted = posterior.predict(new, found.noise.at(new))
    assert predicted.deviation**2 - posterior.moments(new)[1] == pytest.approx(np.exp(-0.4) * np.array([1.0, 10.0]))


def test_noise_of_further_rows():
    rows = [[0.0], [1.0]]
    noise, new = CommonNoise(0.3).extended(None, rows)
    assert noise == CommonNoise(0.3)
    assert new == pytest.approx([0.3, 0.3])
    noise, new = RowNoise(np.array([0.1])).extended([0.2, 0.4], rows)
    assert noise.noise == pytest.approx([0.1, 0.2, 0.4])
    assert noise.at(rows) == pytest.approx(0.7 / 3)
    with pytest.raises(mc.ParameterError, match="leave noise out"):
        LearnedNoise().extended(0.1, rows)
    with pytest.raises(mc.ParameterError, match="give noise for the new rows"):
        noise.extended(None, rows)
