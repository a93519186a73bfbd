"""Regression with noise that varies: recovery of the noise, predictions, and the plain model where it is constant."""

import copy

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import mercer as mc
from mercer import kernels as k

GIVEN = {"kernel": 1.0 * k.RBF(0.3), "noise_kernel": 2.0 * k.RBF(0.3), "noise": 0.05, "learning": None,
         "normalize": False}  # fmt: skip


def regressor(**settings):
    return mc.HeteroscedasticGaussianProcessRegressor(progress=False, **settings)


def stepped(n: int = 120, seed: int = 0):
    """A sine with ten times as much noise in its second half."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 1, n))[:, None]
    deviation = np.where(X[:, 0] < 0.5, 0.05, 0.5)
    return X, np.sin(6 * X[:, 0]) + rng.normal(size=n) * deviation, deviation


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = stepped()
    return regressor().fit(X, y)


def test_noise_is_recovered(fitted):
    assert fitted.noise_varies_
    Z = np.array([[0.1], [0.3], [0.7], [0.9]])
    assert np.abs(0.5 * np.log(fitted.predict_noise(Z)) - np.log([0.05, 0.05, 0.5, 0.5])).max() < 0.5


@pytest.mark.parametrize("calibrate", [False, None])
def test_constant_noise_gives_the_plain_model(calibrate):
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (80, 2))
    y = X[:, 0] ** 2 + np.sin(X[:, 1]) + 0.3 * rng.normal(size=80)
    model = regressor(calibrate=calibrate).fit(X, y)
    plain = mc.GaussianProcessRegressor(progress=False, calibrate=calibrate).fit(X, y)
    assert not model.noise_varies_
    assert model.predict_quantile(X, [0.1, 0.9]) == pytest.approx(plain.predict_quantile(X, [0.1, 0.9]))
    assert model.predict_noise(X) == pytest.approx(np.full(80, plain.noise_))
    assert model.loo().log_score == pytest.approx(plain.loo().log_score)


def test_density_is_the_integral_over_the_log_noise(fitted):
    Z, y = np.array([[0.25], [0.6]]), np.array([0.9, -0.2])
    m, v = fitted._noise.posterior.moments(Z)
    function = fitted.predict_distribution(Z, include_noise=False)
    noise = fitted._noise
    for i in range(2):

        def density(g, i=i):
            variance = function.deviation[i] ** 2 + noise.min_variance + noise.level * np.exp(g)
            return norm(function.mean[i], np.sqrt(variance)).pdf(y[i]) * norm(m[i], np.sqrt(v[i])).pdf(g)

        width = 8 * np.sqrt(v[i])
        expected = np.log(quad(density, m[i] - width, m[i] + width, epsabs=1e-12)[0])
        assert fitted.log_predictive_density(Z, y)[i] == pytest.approx(expected, abs=1e-4)
    variance = function.deviation**2 + noise.min_variance + noise.level * np.exp(m + v / 2)
    assert fitted.predict(Z, return_std=True)[1] == pytest.approx(np.sqrt(variance), rel=1e-6)
    assert np.diag(fitted.predict(Z, return_cov=True)[1]) == pytest.approx(variance, rel=1e-6)
    assert fitted.predict_noise(Z) == pytest.approx(variance - function.deviation**2)


def test_intervals_cover_where_the_noise_is_small_and_where_it_is_large(fitted):
    X, y, _ = stepped(2000, seed=7)
    low, high = fitted.predict_distribution(X).interval(0.9)
    inside = (y > low) & (y < high)
    for half in (X[:, 0] < 0.5, X[:, 0] >= 0.5):
        assert 0.82 < inside[half].mean() < 0.97
    plain = mc.GaussianProcessRegressor(progress=False).fit(*stepped()[:2])
    gain = fitted.log_predictive_density(X, y).mean() - plain.log_predictive_density(X, y).mean()
    assert gain > 0.4


def test_left_out_rows_are_predicted_as_by_refits_at_the_same_parameters():
    X, y, _ = stepped()
    model = regressor(**GIVEN).fit(X, y)
    found = model.loo()
    for i in (3, 40, 90):
        others = np.delete(np.arange(len(y)), i)
        refit = regressor(**GIVEN).fit(X[others], y[others])
        mean, deviation = (part[0] for part in refit.predict(X[[i]], return_std=True))
        assert found.mean[i] == pytest.approx(mean, abs=0.1 * deviation)
        assert np.sqrt(found.variance[i]) == pytest.approx(deviation, rel=0.05)
        assert found.log_score[i] == pytest.approx(refit.log_predictive_density(X[[i]], y[[i]])[0], abs=0.1)


def test_evidence_and_its_gradient(fitted):
    value, slope = fitted.log_marginal_likelihood(fitted.theta_, eval_gradient=True)
    assert value == pytest.approx(fitted.log_marginal_likelihood_, abs=1e-5)
    for i, step in enumerate(1e-4 * np.eye(len(slope))):
        high, low = (fitted.log_marginal_likelihood(fitted.theta_ + sign * step) for sign in (1, -1))
        assert slope[i] == pytest.approx((high - low) / 2e-4, rel=1e-3, abs=1e-3)
    assert fitted.parameter_names_[-3:] == ["log_noise_level", "log_noise_theta0", "log_noise_theta1"]
    assert fitted.optima_[0].converged


def test_draws_have_the_predictive_moments(fitted):
    Z = np.array([[0.2], [0.21], [0.8]])
    draws = fitted.sample_y(Z, 20_000, random_state=1)
    mean, deviation = fitted.predict(Z, return_std=True)
    assert draws.mean(axis=1) == pytest.approx(mean, abs=0.03)
    assert draws.std(axis=1) == pytest.approx(deviation, rel=0.05)
    assert np.array_equal(draws, fitted.sample_y(Z, 20_000, random_state=1))


def test_noise_is_not_below_the_resolution_of_the_target():
    X, y, _ = stepped()
    model = regressor().fit(X, np.round(y, 1))
    assert model.predict_noise(X).min() >= 0.1**2 / 12


def test_units_of_target_and_inputs_do_not_matter(fitted):
    X, y, _ = stepped()
    model = regressor().fit(1e4 + 1e3 * X, 1e6 + 1e5 * y)
    mean, deviation = model.predict(1e4 + 1e3 * X, return_std=True)
    expected = fitted.predict(X, return_std=True)
    assert (mean - 1e6) / 1e5 == pytest.approx(expected[0], abs=1e-2)
    assert deviation / 1e5 == pytest.approx(expected[1], rel=0.05)
    assert model.predict_noise(1e4 + 1e3 * X) == pytest.approx(1e10 * fitted.predict_noise(X), rel=0.1)


def test_update_is_inference_with_all_rows():
    X, y, _ = stepped()
    model = regressor(**GIVEN).fit(X[:100], y[:100])
    model.update(X[100:], y[100:])
    whole = regressor(**GIVEN).fit(X, y)
    Z = np.linspace(0, 1, 9)[:, None]
    assert model.predict(Z, return_std=True)[1] == pytest.approx(whole.predict(Z, return_std=True)[1], rel=1e-4)
    assert len(model.y_train_) == len(model.noise_) == 120
    with pytest.raises(mc.ParameterError, match="leave noise out"):
        model.update(X[:1], y[:1], noise=0.1)


def test_saved_is_loaded(fitted, tmp_path):
    mc.save(fitted, tmp_path / "model")
    loaded, Z = mc.load(tmp_path / "model"), np.linspace(0, 1, 7)[:, None]
    assert np.array_equal(loaded.predict_quantile(Z, 0.9), fitted.predict_quantile(Z, 0.9))
    assert np.array_equal(loaded.predict_noise(Z), fitted.predict_noise(Z))
    assert np.array_equal(loaded.loo().log_score, fitted.loo().log_score)


def test_words_have_noise_that_varies():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("ab") if i % 2 else list("cd"), 6)) for i in range(80)]
    y = np.array([word.count("a") + word.count("c") for word in words])
    y = y + rng.normal(size=80) * np.where(np.arange(80) % 2, 0.05, 1.0)
    model = regressor(kernel=1.0 * k.Spectrum(1).normalize()).fit(words, y)
    quiet, loud = model.predict_noise(["ababab", "cdcdcd"])
    assert model.noise_varies_
    assert loud > 10 * quiet


def test_report_and_summary_tell_of_the_noise(fitted):
    assert "log_noise_level" in str(fitted)
    text = str(fitted.report())
    assert "varies" in text


@pytest.mark.parametrize("y", [np.ones(10), np.arange(2.0), np.array([5.0])])
def test_targets_that_say_nothing_of_noise(y):
    X = np.arange(len(y), dtype=float)[:, None]
    model = regressor().fit(X, y)
    assert not model.noise_varies_
    assert np.isfinite(model.predict(X, return_std=True)[1]).all()


def test_variances_of_rows_are_refused():
    with pytest.raises(mc.ParameterError, match="GaussianProcessRegressor"):
        regressor(noise=np.ones(5)).fit(np.arange(5.0)[:, None], np.arange(5.0))


def test_it_keeps_the_contract():
    model = regressor(kernel=1.0 * k.RBF(), max_iterations=2)
    check_estimator(model, on_skip=None)
    assert clone(model).get_params()["noise_kernel"] is None


def test_samples_of_the_log_noise_agree_with_its_approximation(tmp_path):
    X, y, _ = stepped()
    sampled = regressor(**GIVEN, noise_inference="mcmc", n_samples=400).fit(X, y)
    plain, Z = regressor(**GIVEN).fit(X, y), np.array([[0.1], [0.35], [0.7], [0.9]])
    assert sampled.numerics_["rhat"] < 1.1
    noise, approximate = np.log(sampled.predict_noise(Z)), np.log(plain.predict_noise(Z))
    assert noise == pytest.approx(approximate, abs=0.4)
    mean, deviation = sampled.predict(Z, return_std=True)
    assert mean == pytest.approx(plain.predict(Z), abs=0.5 * deviation.max())
    assert sampled.predict_distribution(Z).mean == pytest.approx(mean)
    assert sampled.loo().log_score.mean() == pytest.approx(plain.loo().log_score.mean(), abs=0.1)
    draws = sampled.sample_y(Z, 4000)
    assert draws.std(axis=1) == pytest.approx(deviation, rel=0.15)
    mc.save(sampled, tmp_path / "model")
    assert np.array_equal(mc.load(tmp_path / "model").predict(Z), sampled.predict(Z))


def test_learning_by_integration_is_refused():
    with pytest.raises(mc.ParameterError, match="not available where the noise varies"):
        regressor(learning="laplace").fit(*stepped()[:2])


@pytest.mark.parametrize("variance", [None, 100.0])
def test_a_linear_mean_goes_on_beyond_the_data(variance):
    X, y, _ = stepped()
    basis = mc.means.Basis(mc.basis.Polynomial(1), variance=variance)
    model = regressor(mean=basis).fit(X, y + 20 * X[:, 0])
    assert model.noise_varies_
    slope = float(np.diff(model.predict([[30.0], [31.0]]))[0])
    assert slope == pytest.approx(model.trend_.estimate[1], rel=0.05)
    assert 10 < slope < 30


@pytest.fixture(scope="module")
def calibrated():
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(0, 1, 40))[:, None]
    return X, np.sin(6 * X[:, 0]) + rng.standard_t(3, size=40) * np.where(X[:, 0] < 0.5, 0.05, 0.5)


@pytest.mark.parametrize("inference", ["variational", "mcmc"])
def test_an_update_keeps_the_calibration(calibrated, inference):
    X, y = calibrated
    model = regressor(noise_inference=inference, n_samples=200).fit(X, y)
    assert model.noise_varies_
    assert model.calibration_ > 1.1
    assert model.log_marginal_likelihood(model.theta_) == pytest.approx(model.log_marginal_likelihood_, abs=1e-4)
    before, noise, level = model.predict(X, return_std=True), model.predict_noise(X), model.theta_
    far = [[40.0]]
    model.update(far, model.predict(far))
    rel = 0.01 if inference == "variational" else 0.2  # of other draws
    assert model.predict(X, return_std=True)[1] == pytest.approx(before[1], rel=rel)
    assert model.predict_noise(X) == pytest.approx(noise, rel=2 * rel)
    assert model.theta_ == pytest.approx(level)


def test_an_update_without_targets_changes_nothing(fitted):
    Z = np.linspace(0, 1, 7)[:, None]
    model = copy.copy(fitted)
    model.update([[0.3], [0.4]], [np.nan, np.nan])
    assert model.gaps_.tolist() == [120, 121]
    assert np.array_equal(model.predict_noise(Z), fitted.predict_noise(Z))
    model.update([[0.3], [0.4]], [np.nan, 0.5])
    assert len(model.y_train_) == 121
    assert model.gaps_.tolist() == [120, 121, 122]


def white_noise_that_varies(scale=1.0):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 1, 150))[:, None]
    return X, scale * (np.sin(6 * X[:, 0]) + rng.normal(size=150) * np.where(X[:, 0] < 0.5, 0.02, 0.6))


def test_white_noise_of_the_kernel_is_noise_that_may_vary():
    X, y = white_noise_that_varies(10.0)
    plain = regressor(kernel=1.0 * k.RBF()).fit(X, y)
    white = regressor(kernel=1.0 * k.RBF() + k.White()).fit(X, y)
    assert plain.noise_varies_
    assert white.noise_varies_
    Z = np.linspace(0.1, 0.9, 5)[:, None]
    assert white.predict_noise(Z) == pytest.approx(plain.predict_noise(Z), rel=0.1)
    assert white.predict(Z) == pytest.approx(plain.predict(Z), abs=0.1)


def test_constant_noise_may_be_white_noise_of_the_kernel():
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0, 1, 60))[:, None]
    model = regressor(kernel=1.0 * k.RBF() + k.White()).fit(X, 10 * np.sin(6 * X[:, 0]) + rng.normal(size=60))
    assert not model.noise_varies_
    _, with_noise = model.predict(X, return_std=True)
    _, without = model.predict(X, return_std=True, include_noise=False)
    assert model.predict_noise(X) == pytest.approx(with_noise**2 - without**2)
    assert model.predict_noise(X)[0] == pytest.approx(1.0, rel=0.5)


def test_given_white_noise_is_the_level_of_the_noise():
    X, y = white_noise_that_varies()
    kernel = 1.0 * k.RBF() + k.White(0.15).fix("variance")
    model = regressor(kernel=kernel, normalize=False).fit(X, y)
    assert model.noise_varies_
    assert "log_noise_level" not in model.parameter_names_
    assert model._noise.level == pytest.approx(0.15)


def test_white_noise_alone_is_refused():
    with pytest.raises(mc.ParameterError, match="white noise alone"):
        regressor(kernel=k.White(), noise_kernel=1.0 * k.RBF()).fit(*white_noise_that_varies())


@pytest.mark.parametrize("where", ["_noise_objective", "_approximation", "_set_inferred"])
def test_an_interrupted_fit_has_constant_noise(monkeypatch, where):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(mc.HeteroscedasticGaussianProcessRegressor, where, interrupted)
    X, y, _ = stepped()
    with pytest.warns(mc.InterruptedFitWarning, match="constant noise"):
        model = regressor(kernel=1.0 * k.RBF(), max_iterations=3).fit(X, y)
    assert not model.noise_varies_
    plain = mc.GaussianProcessRegressor(1.0 * k.RBF(), max_iterations=3, progress=False).fit(X, y)
    assert np.array_equal(model.predict(X), plain.predict(X))


def test_interrupted_sampling_leaves_the_approximation(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("mercer.models.heteroscedastic.sample_log_noise", interrupted)
    X, y, _ = stepped()
    with pytest.warns(mc.InterruptedFitWarning, match="not sampled"):
        model = regressor(**GIVEN, noise_inference="mcmc").fit(X, y)
    assert np.array_equal(model.predict_noise(X), regressor(**GIVEN).fit(X, y).predict_noise(X))


def test_a_prior_of_the_noise_is_that_of_its_level():
    X, y, _ = stepped()
    y = 10 * y
    prior = mc.priors.LogNormal(np.log(4.0), 0.01)
    model = regressor(kernel=1.0 * k.RBF(), noise=prior, learning="map").fit(X, y)
    assert model.noise_varies_
    assert model._noise.level == pytest.approx(4.0, rel=0.1)
    assert model.priors_["log_noise_level"].prior == prior
    assert not model.priors_["log_noise_level"].default
    assert list(model.priors_) == model.parameter_names_
    assert "log_noise_level" in str(model)
    model.update(X[:1], y[:1])


def test_map_has_weak_priors_of_the_noise_too():
    X, y, _ = stepped()
    model = regressor(learning="map").fit(X, 10 * y)
    assert model.noise_varies_
    assert list(model.priors_) == model.parameter_names_
    assert model.priors_["log_noise_level"].prior.mu == pytest.approx(np.log(0.1 * np.var(10 * y)) + 4.0)
    assert model.log_marginal_likelihood_ > model.optima_[0].value  # which has the priors


def test_report_of_inferred_noise(fitted):
    assert "(learned)" in str(fitted.report())


def test_limits_of_memory_and_time():
    X, y, _ = stepped()
    with pytest.raises(mc.NotEnoughMemoryError):
        regressor(kernel=1.0 * k.RBF(), solver="dense", max_memory=1000).fit(X, y)
    model = regressor(kernel=1.0 * k.RBF(), max_seconds=1e9).fit(X, y)
    assert model.noise_varies_
