"""Bayesian linear regression: the book's formulas, and what a user may ask of it."""

import numpy as np
import pytest

import mercer as mc

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(50, 1))
y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=50)
Z = np.linspace(-2, 2, 30)[:, None]
BASIS = mc.basis.Polynomial(5)


def test_posterior_and_evidence_are_those_of_the_book():
    alpha, beta = 0.5, 80.0
    found = mc.BayesianLinearRegression(BASIS, alpha, beta).fit(X, y)
    Phi, Phi_s = BASIS(X), BASIS(Z)
    A = alpha * np.eye(6) + beta * Phi.T @ Phi  # PRML 3.54, 3.81
    m = beta * np.linalg.solve(A, Phi.T @ y)  # PRML 3.53
    np.testing.assert_allclose(found.coef_, m, atol=1e-10)
    np.testing.assert_allclose(found.coef_covariance_, np.linalg.inv(A), atol=1e-10)
    mean, deviation = found.predict(Z, return_std=True)
    np.testing.assert_allclose(mean, Phi_s @ m, atol=1e-9)  # PRML 3.58
    variance = 1 / beta + np.einsum("ij,ij->i", Phi_s @ np.linalg.inv(A), Phi_s)  # PRML 3.59
    np.testing.assert_allclose(deviation**2, variance, atol=1e-9)
    energy = beta / 2 * np.sum((y - Phi @ m) ** 2) + alpha / 2 * m @ m  # PRML 3.82
    expected = 3 * np.log(alpha) + 25 * np.log(beta) - energy - 0.5 * np.linalg.slogdet(A)[1] - 25 * np.log(2 * np.pi)
    assert found.log_marginal_likelihood_ == pytest.approx(expected, abs=1e-8)  # PRML 3.86


def test_evidence_maximisation_ends_at_the_books_fixed_point():
    found = mc.BayesianLinearRegression(BASIS).fit(X, y)
    residual = y - BASIS(X) @ found.coef_
    assert found.alpha_ == pytest.approx(found.gamma_ / (found.coef_ @ found.coef_), rel=1e-3)  # PRML 3.92
    assert found.beta_ == pytest.approx((50 - found.gamma_) / (residual @ residual), rel=1e-3)  # PRML 3.95
    assert 50 < found.beta_ < 200


def test_one_of_the_two_may_be_given():
    found = mc.BayesianLinearRegression(BASIS, alpha=2.0).fit(X, y)
    assert found.alpha_ == 2.0
    assert 50 < found.beta_ < 200
    found = mc.BayesianLinearRegression(BASIS, beta=100.0).fit(X, y)
    assert found.beta_ == pytest.approx(100.0)
    with pytest.raises(mc.ParameterError, match="alpha is a precision"):
        mc.BayesianLinearRegression(BASIS, alpha=-1.0).fit(X, y)


def test_samples_and_densities():
    found = mc.BayesianLinearRegression(BASIS, 0.5, 80.0).fit(X, y)
    for noise in (False, True):
        draws = found.sample_y(Z, 4000, random_state=1, include_noise=noise)
        mean, cov = found.predict(Z, return_cov=True, include_noise=noise)
        np.testing.assert_allclose(draws.mean(axis=1), mean, atol=6 * np.sqrt(np.diag(cov).max() / 4000))
        np.testing.assert_allclose(np.cov(draws), cov, atol=0.1 * cov.max())
    mean, deviation = found.predict(X, return_std=True)
    expected = -0.5 * ((y - mean) / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found.log_predictive_density(X, y), expected)


def test_scales_do_not_matter():
    data = mc.datasets.load("co2")  # years around 1980, and an intercept of -2500
    assert mc.BayesianLinearRegression().fit(data.X, data.y).score(data.X, data.y) > 0.97


def test_data_are_copied():
    own = X.copy()
    found = mc.BayesianLinearRegression(BASIS, 0.5, 80.0).fit(own, y)
    before = found.posterior_.log_evidence()
    own *= 2
    assert found.posterior_.log_evidence() == before


def test_a_function_of_the_users_own():
    found = mc.BayesianLinearRegression(lambda x: [1.0, x[0], np.cos(3 * x[0])], 1.0, 10.0).fit(X, y)
    assert found.coef_.shape == (3,)
    assert found.score(X, y) > 0.5
