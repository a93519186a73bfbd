"""Regression by a mixture of Gaussians: against gmr, against joint over marginal, and on data that are hard."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import mercer as mc
from mercer.models.mixture import GaussianMixtureRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(150, 2))
Y = np.column_stack([np.abs(X[:, 0]) + 0.1 * rng.normal(size=150), 50 * X[:, 1] + 5 * rng.normal(size=150)])
Z = rng.uniform(-2, 2, size=(6, 2))


def fitted(X=X, y=Y, **settings):
    return GaussianMixtureRegressor(**{"n_components": 3, **settings}).fit(X, y)


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_it_is_the_joint_density_over_the_marginal(covariance):
    model = fitted(covariance=covariance)
    t = Y[:6] + 0.1
    joint, marginal = np.zeros((6, 3)), np.zeros((6, 3))
    for c, (w, m, V) in enumerate(zip(model.weights_, model.means_, model.covariances_, strict=True)):
        joint[:, c] = np.log(w) + multivariate_normal(m, V).logpdf(np.hstack([Z, t]))
        marginal[:, c] = np.log(w) + multivariate_normal(m[:2], V[:2, :2]).logpdf(Z)
    expected = logsumexp(joint, axis=1) - logsumexp(marginal, axis=1)
    np.testing.assert_allclose(model.log_predictive_density(Z, t), expected, rtol=1e-9)
    np.testing.assert_allclose(model.conditional(Z).weights.sum(axis=1), 1.0)


def test_gmr_conditions_in_the_same_way():
    from gmr import GMM

    model = fitted()
    theirs = GMM(3, model.weights_, model.means_, model.covariances_)
    np.testing.assert_allclose(model.predict(Z), theirs.predict(np.array([0, 1]), Z), rtol=1e-8)
    for z, t in zip(Z, Y, strict=False):
        density = theirs.condition(np.array([0, 1]), z).to_probability_density(t[None])[0]
        assert model.predict_density(z[None], t[None])[0] == pytest.approx(density, rel=1e-7)


def test_moments_and_quantiles_are_those_of_its_samples():
    model = fitted(y=Y[:, 0])
    mean, deviation = model.predict(Z, return_std=True)
    draws = model.sample(Z, 20_000, random_state=1)
    assert draws.shape == (6, 20_000)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=5 * deviation.max() / np.sqrt(20_000))
    np.testing.assert_allclose(draws.std(axis=1), deviation, rtol=0.05)
    levels = model.predict_quantile(Z, [0.1, 0.9])
    np.testing.assert_allclose((draws < levels[:, :1]).mean(axis=1), 0.1, atol=0.01)
    np.testing.assert_allclose(model.predict_cdf(Z, levels), np.broadcast_to([0.1, 0.9], (6, 2)), rtol=1e-10)


def test_one_component_is_linear_regression():
    model = fitted(n_components=1, regularization=1e-12)
    A = np.column_stack([np.ones(150), X])
    coefficients = np.linalg.lstsq(A, Y)[0]
    np.testing.assert_allclose(model.predict(Z), np.column_stack([np.ones(6), Z]) @ coefficients, rtol=1e-6)
    residual = Y - A @ coefficients
    np.testing.assert_allclose(model.predict(Z, return_std=True)[1][0], residual.std(axis=0), rtol=1e-6)


def test_the_number_of_components_by_bic():
    model = fitted(n_components="bic", y=Y[:, 0], max_components=4)
    assert model.bic_[model.n_components_] == min(model.bic_.values())
    assert model.n_components_ >= 2
    assert list(model.bic_)[:2] == [1, 2]
    assert "BIC" in str(model)
    again = fitted(n_components="bic", y=Y[:, 0], max_components=4)
    np.testing.assert_array_equal(model.predict(Z), again.predict(Z))
    line = fitted(n_components="bic", X=X, y=X[:, 0] + rng.normal(size=150), max_components=3)
    assert line.n_components_ <= 2


def test_scales_do_not_matter():
    a = fitted(y=Y[:, 0])
    b = fitted(X=X * [1e8, 1e-8] + 5, y=1e6 * Y[:, 0])
    np.testing.assert_allclose(b.predict(Z * [1e8, 1e-8] + 5), 1e6 * a.predict(Z), rtol=1e-4)


def test_inputs_that_do_not_fill_space():
    plain = fitted(y=Y[:, 0])
    constant = fitted(X=np.column_stack([X, np.full(150, 3.0)]), y=Y[:, 0])
    np.testing.assert_allclose(constant.predict(np.column_stack([Z, np.zeros(6)])), plain.predict(Z), rtol=1e-6)
    collinear = fitted(X=np.column_stack([X, X @ [1.0, 2.0]]), y=Y[:, 0])
    assert collinear.score(np.column_stack([X, X @ [1.0, 2.0]]), Y[:, 0]) > 0.8
    wide = GaussianMixtureRegressor().fit(rng.normal(size=(8, 30)), rng.normal(size=8))
    assert np.isfinite(wide.predict(rng.normal(size=(3, 30)), return_std=True)).all()
    wild = X.copy()
    wild[0] = 1e6
    assert fitted(X=wild, y=Y[:, 0]).score(X[1:], Y[1:, 0]) > 0.7


def test_nothing_to_learn_from():
    one = GaussianMixtureRegressor().fit([[1.0, 2.0]], [3.0])
    np.testing.assert_allclose(one.predict([[5.0, 5.0]], return_std=True), [[3.0], [3.0]])
    flat = GaussianMixtureRegressor().fit(X, np.full(150, -7.0))
    mean, deviation = flat.predict(Z, return_std=True)
    np.testing.assert_allclose(mean, -7.0)
    np.testing.assert_allclose(deviation, 7e-6, rtol=1e-6)
    same = GaussianMixtureRegressor().fit(np.ones((5, 1)), [1.0, 2.0, 3.0, 4.0, 5.0])
    np.testing.assert_allclose(same.predict([[2.0]]), 3.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1, or 'bic'"),
        ({"n_components": 151}, "there are 150"),
        ({"covariance": "round"}, "covariance must be one of"),
        ({"regularization": 0.0}, "regularization is a fraction"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises((mc.ParameterError, mc.DataError), match=message):
        fitted(**settings)


def test_what_does_not_converge_says_so():
    with pytest.warns(mc.NumericalWarning, match="still improves after 2 iterations"):
        fitted(max_iterations=2)
