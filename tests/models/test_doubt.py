"""Estimators that average over their parameters: predictions are those of the mixture; the rest of the contract."""

import numpy as np
import pytest
from scipy import stats
from sklearn.utils.estimator_checks import check_estimator

import mercer as mc
from mercer import kernels as k
from mercer import priors
from mercer.distributions import Mixture
from mercer.learning import chains, doubt, optimise
from mercer.solvers.mixture import MixturePosterior

FEW_DRAWS = "ignore:sampling of the parameters may not have converged"
rng = np.random.default_rng(2)
X = rng.uniform(0, 6, size=(25, 1))
y = 10 + 3 * np.sin(X[:, 0]) + 0.4 * rng.normal(size=25)
Z = np.array([[-1.0], [0.5], [3.3], [7.5]])
LABELS = np.where(np.sin(X[:, 0]) + 0.3 * rng.normal(size=25) > 0, "up", "down")


@pytest.fixture(scope="module")
def model():
    return mc.GaussianProcessRegressor(1.0 * k.RBF() + 0.5 * k.Linear(), learning="laplace", progress=False).fit(X, y)


def fitted(kernel=None, learning="laplace", **settings):
    return mc.GaussianProcessRegressor(kernel, learning=learning, progress=False, **settings).fit(X, y)


def parts(model):
    """The mixture by hand: weights, and the posterior, scale and noise of each part."""
    posterior = model.posterior_
    noises = [float(noise.noise) for noise in posterior.noises]
    return posterior.weights, posterior.parts, noises


def test_predictions_are_those_of_the_mixture(model):
    weights, posteriors, noises = parts(model)
    assert len(weights) > 5
    found = model.predict_distribution(Z)
    assert isinstance(found, Mixture)
    means, variances = (np.array(each) for each in zip(*(p.moments(Z) for p in posteriors), strict=True))
    means, deviations = (
        means * model.scale_ + model.center_,
        np.sqrt(variances + np.array(noises)[:, None]) * model.scale_,
    )
    mean = weights @ means
    np.testing.assert_allclose(model.predict(Z), mean)
    spread = np.sqrt(weights @ (deviations**2 + (means - mean) ** 2))
    np.testing.assert_allclose(model.predict(Z, return_std=True)[1], spread)
    t = mean + 0.3
    density = weights @ stats.norm(means, deviations).pdf(t)
    np.testing.assert_allclose(model.log_predictive_density(Z, t), np.log(density))
    ends = model.predict_quantile(Z, [0.1, 0.9])
    for j, q in enumerate((0.1, 0.9)):
        np.testing.assert_allclose(weights @ stats.norm(means, deviations).cdf(ends[:, j]), q, atol=1e-8)
    covariance = model.predict(Z, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), spread)
    silent = model.predict(Z, return_std=True, include_noise=False)[1]
    np.testing.assert_allclose(spread**2 - silent**2, weights @ noises * model.scale_**2)
    np.testing.assert_allclose(np.diag(model.predict(Z, return_cov=True, include_noise=False)[1]), silent**2)


def test_samples_have_the_moments_of_the_mixture(model):
    draws = model.sample_y(Z, 4000, random_state=1)
    mean, covariance = model.predict(Z, return_cov=True)
    deviation = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=1) - mean) < 5 * deviation / np.sqrt(4000)).all()
    unit = np.outer(deviation, deviation)
    np.testing.assert_allclose(np.cov(draws) / unit, covariance / unit, atol=0.15)
    np.testing.assert_array_equal(draws, model.sample_y(Z, 4000, random_state=1))
    assert model.sample_y(Z, 3, include_noise=False).shape == (4, 3)
    assert model.sample_y(Z, 0).shape == (4, 0)


def test_gradients_are_differences_and_terms_add_up(model):
    dmean, dvariance = model.predict_gradient(Z)
    step = 1e-4
    for j, of in enumerate((lambda A: model.predict(A), lambda A: model.predict(A, return_std=True)[1] ** 2)):
        slope = (of(Z + step) - of(Z - step)) / (2 * step)
        np.testing.assert_allclose((dmean, dvariance)[j][:, 0], slope, rtol=1e-4, atol=1e-5)
    total = sum(mean for mean, _ in model.decompose(Z).values())
    np.testing.assert_allclose(total + model.mean_, model.predict(Z), atol=1e-8)


def test_leaving_out_is_close_to_fitting_without_the_row(model):
    """Weights of theta are those without the row: close to a fit from the other rows, priors of all rows being weak."""
    kernel = (1.0 * k.RBF()).with_priors(variance=priors.LogNormal(0.0, 1.0), lengthscale=priors.LogNormal(0.0, 1.0))
    settings = {"noise": priors.LogNormal(-1.0, 1.0), "normalize": False, "learning": "laplace", "progress": False}
    t = y - 10
    whole = mc.GaussianProcessRegressor(kernel, **settings).fit(X, t)
    loo = whole.loo()
    for i in (0, int(np.argmax(X[:, 0])), 11):
        rest = np.arange(len(t)) != i
        without = mc.GaussianProcessRegressor(kernel, **settings).fit(X[rest], t[rest])
        mean, deviation = without.predict(X[[i]], return_std=True)
        assert loo.mean[i] == pytest.approx(mean[0], abs=0.05 * deviation[0])
        assert np.sqrt(loo.variance[i]) == pytest.approx(deviation[0], rel=0.05)
        assert loo.log_score[i] == pytest.approx(without.log_predictive_density(X[[i]], t[[i]])[0], abs=0.1)
    at_mode = mc.GaussianProcessRegressor(kernel, **{**settings, "learning": "map"}).fit(X, t).loo()
    assert not np.allclose(at_mode.variance, loo.variance, rtol=0.01)


def test_updating_is_bayes_theorem(model):
    """One fit on all rows, with the same points of theta, has the same weights as an update."""
    kernel = (1.0 * k.RBF()).with_priors(variance=priors.LogNormal(0.0, 1.0), lengthscale=priors.LogNormal(0.0, 1.0))
    first = mc.GaussianProcessRegressor(
        kernel, noise=priors.LogNormal(-1.0, 1.0), normalize=False, learning="laplace", progress=False
    ).fit(X[:18], y[:18] - 10)
    before = first.posterior_
    first.update(X[18:], y[18:] - 10)
    after = first.posterior_
    gains = [
        mc.GP(part.kernel).condition(X, y - 10, float(noise.noise)).log_evidence()
        - mc.GP(part.kernel).condition(X[:18], y[:18] - 10, float(noise.noise)).log_evidence()
        for part, noise in zip(before.parts, before.noises, strict=True)
    ]
    weights = before.weights * np.exp(gains - np.max(gains))
    np.testing.assert_allclose(after.weights, weights / weights.sum(), rtol=1e-6)
    assert first.predict(Z).shape == (4,)
    assert len(first.loo().mean) == 25
    assert first.log_marginal_likelihood_ == pytest.approx(first.log_marginal_likelihood(first.theta_))


def test_rows_with_their_own_noise_are_updated_too():
    noise = np.full(25, 0.2)
    found = fitted(1.0 * k.RBF(), noise=noise)
    found.update(Z, np.full(4, 10.0), noise=np.full(4, 0.1))
    assert len(found.posterior_.parts[0].data[1]) == 29
    with pytest.raises(mc.ParameterError, match="noise for the new rows"):
        found.update(Z, np.full(4, 10.0))


@pytest.mark.parametrize("learning", ["laplace", "nuts"])
@pytest.mark.filterwarnings(FEW_DRAWS)
def test_saved_models_predict_the_same(learning, tmp_path):
    found = fitted(1.0 * k.RBF(), learning, n_samples=60)
    mc.save(found, tmp_path / "model")
    again = mc.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(Z, return_std=True), found.predict(Z, return_std=True))
    np.testing.assert_array_equal(again.loo().log_score, found.loo().log_score)
    np.testing.assert_array_equal(again.theta_posterior_.draws, found.theta_posterior_.draws)
    assert str(again) == str(found)
    assert str(again.report()) == str(found.report())


@pytest.mark.filterwarnings(FEW_DRAWS)
def test_the_same_seed_gives_the_same_model():
    one, same, other = (fitted(1.0 * k.RBF(), "nuts", n_samples=40, random_state=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.theta_posterior_.draws, same.theta_posterior_.draws)
    np.testing.assert_array_equal(one.predict(Z), same.predict(Z))
    assert not np.array_equal(one.theta_posterior_.draws, other.theta_posterior_.draws)


def test_cost_and_intervals_are_stated(model):
    text = str(model.report())
    posterior = model.theta_posterior_
    assert f"{posterior.evaluations:,} evaluations" in text
    assert model.n_evaluations_ > posterior.evaluations
    for word in ("2.5%", "97.5%", "(default)", "central composite design"):
        assert word in text
    low, middle, high = posterior.natural(posterior.quantile([0.025, 0.5, 0.975]))
    assert (low < middle).all()
    assert (middle < high).all()
    i = model.parameter_names_.index("noise")
    assert low[i] < 0.16 < high[i]  # the truth


def test_the_default_kernel_and_relevance():
    A = rng.normal(size=(30, 3))
    t = A[:, 0] + 0.1 * rng.normal(size=30)
    found = mc.GaussianProcessRegressor(learning="laplace", progress=False).fit(A, t)
    assert isinstance(found.posterior_, MixturePosterior)
    assert found.choice_ is not None
    assert found.relevance().effect.argmax() == 0
    assert found.calibration_ == 1
    plain = mc.GaussianProcessRegressor(learning="map", progress=False).fit(A, t)
    np.testing.assert_allclose(plain.theta_, found.theta_, atol=0.1)


def test_intervals_are_wider_than_at_the_mode():
    mode, whole = fitted(1.0 * k.RBF(), "map"), fitted(1.0 * k.RBF())
    far = np.array([[-2.0], [9.0]])
    assert (whole.predict(far, return_std=True)[1] > 1.02 * mode.predict(far, return_std=True)[1]).all()


@pytest.mark.filterwarnings(FEW_DRAWS)
def test_an_interruption_keeps_the_mode_or_the_draws(monkeypatch):
    real = chains.sample

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(chains, "sample", interrupted)
    with pytest.warns(mc.InterruptedFitWarning, match="interrupted"):
        found = fitted(1.0 * k.RBF(), "nuts")
    assert found.theta_posterior_ is None
    np.testing.assert_allclose(found.predict(Z), fitted(1.0 * k.RBF(), "map").predict(Z), atol=0.05)

    def few(log_density, starts, centre, root, n_draws, warmup, rng, progress):
        def stop(text):
            if f"{warmup + 30} of" in text:
                raise KeyboardInterrupt

        return real(log_density, starts, centre, root, n_draws, warmup, rng, stop)

    monkeypatch.setattr(chains, "sample", few)
    with pytest.warns(mc.InterruptedFitWarning, match="120 draws made so far"):
        found = fitted(1.0 * k.RBF(), "nuts")
    assert len(found.theta_posterior_.draws) == 120


@pytest.mark.filterwarnings(FEW_DRAWS)
def test_poor_chains_are_reported(monkeypatch):
    monkeypatch.setattr(chains, "MIN_EFFECTIVE_SIZE", 1e6)
    with pytest.warns(mc.NumericalWarning, match="the slowest parameter has only"):
        found = fitted(1.0 * k.RBF(), "nuts", n_samples=40)
    assert "effective draws" in str(found.report())


def test_nothing_to_integrate_is_no_trouble():
    found = fitted((1.0 * k.RBF()).fix(), noise=0.1)
    assert found.theta_posterior_ is None
    constant = mc.GaussianProcessRegressor(learning="laplace", progress=False).fit(X, np.ones(25))
    assert constant.predict(Z) == pytest.approx(1.0)
    with pytest.raises(mc.ParameterError, match="n_samples"):
        fitted(n_samples=3)


@pytest.mark.parametrize("learning", ["laplace", "nuts"])
@pytest.mark.filterwarnings(FEW_DRAWS)
def test_the_contract_of_scikit_learn(learning, monkeypatch):
    settings = {"n_samples": 20, "progress": False, "max_iterations": 5}
    monkeypatch.setattr(chains, "WARMUP", 5)
    check_estimator(mc.GaussianProcessRegressor(1.0 * k.RBF(), learning=learning, **settings), on_skip=None)


# -- classes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", ["laplace", "ep", "variational"])
def test_probabilities_are_averages(inference):
    found = mc.GaussianProcessClassifier(1.0 * k.RBF(), inference, learning="laplace", progress=False).fit(X, LABELS)
    posterior = found.posterior_
    likelihood = found._inference().likelihood
    each = [part.class_probabilities(Z, likelihood) for part in posterior.parts]
    np.testing.assert_allclose(found.predict_proba(Z), np.einsum("k,ksc->sc", posterior.weights, each))
    mean, variance = found.predict_latent(Z)
    means = np.array([part.moments(Z)[0] for part in posterior.parts])
    np.testing.assert_allclose(mean, posterior.weights @ means)
    assert (variance > posterior.weights @ (means - mean) ** 2).all()
    # A point of the mixture is the model at those parameters.
    fixed = mc.GaussianProcessClassifier(posterior.parts[0].kernels[0], inference, learning=None).fit(X, LABELS)
    np.testing.assert_allclose(fixed.predict_proba(Z), each[0], atol=1e-4)


def test_posteriors_of_classes_answer_as_mixtures():
    found = mc.GaussianProcessClassifier(1.0 * k.RBF(), "laplace", learning="laplace", progress=False).fit(X, LABELS)
    posterior = found.posterior_
    mean, variance = posterior.moments(Z)
    np.testing.assert_allclose(posterior.mean(Z), mean)
    covariance = posterior.covariance(Z)
    np.testing.assert_allclose(np.diag(covariance), variance)
    draws = posterior.sample(Z, 4000, seed=1)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=5 * np.sqrt(variance.max() / 4000))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.25 * variance.max())
    dmean, _ = posterior.gradients(Z)
    np.testing.assert_allclose(dmean[:, 0], (posterior.mean(Z + 1e-5) - posterior.mean(Z - 1e-5)) / 2e-5, rtol=1e-4)
    [(_, of_term, _)] = posterior.terms(Z)
    np.testing.assert_allclose(of_term, mean)
    assert posterior.numerics()["converged"]
    # Bayes' theorem for the weights, by the evidence of all labels at each point.
    more = posterior.condition(X[:3] + 0.01, found.codes_[:3])
    gains = [
        mc.GaussianProcessClassifier(part.kernels[0], "laplace", learning=None).fit(A, t).log_marginal_likelihood_
        for part in posterior.parts
        for A, t in ((X, LABELS), (np.concatenate([X, X[:3] + 0.01]), np.concatenate([LABELS, LABELS[:3]])))
    ]
    gains = np.diff(np.reshape(gains, (-1, 2)), axis=1)[:, 0]
    weights = posterior.weights * np.exp(gains)
    np.testing.assert_allclose(more.weights, weights / weights.sum(), rtol=1e-3)


def test_labels_are_integrated_as_on_a_fine_grid():
    kernel = (1.0 * k.RBF()).with_priors(variance=priors.LogNormal(1.0, 1.0), lengthscale=priors.LogNormal(0.0, 0.7))
    found = mc.GaussianProcessClassifier(kernel, "ep", learning="laplace", progress=False).fit(X, LABELS)
    grid = [np.linspace(-3.5, 6.5, 15), np.linspace(-2.2, 2.8, 15)]
    logs, P = [], []
    for log_variance in grid[0]:
        for log_length in grid[1]:
            at = kernel.replace(variance=np.exp(log_variance), lengthscale=np.exp(log_length))
            model = mc.GaussianProcessClassifier(at, "ep", learning=None).fit(X, LABELS)
            density = stats.norm(1.0, 1.0).logpdf(log_variance) + stats.norm(0.0, 0.7).logpdf(log_length)
            logs.append(model.log_marginal_likelihood_ + density)
            P.append(model.predict_proba(Z)[:, 1])
    weights = np.exp(np.array(logs) - np.max(logs))
    np.testing.assert_allclose(found.predict_proba(Z)[:, 1], weights @ P / weights.sum(), atol=0.005)


def test_three_classes_loo_report_and_files(tmp_path):
    three = np.where(X[:, 0] < 2, "a", np.where(X[:, 0] < 4, "b", "c"))
    found = mc.GaussianProcessClassifier(1.0 * k.RBF(), learning="laplace", progress=False).fit(X, three)
    P = found.predict_proba(Z)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    assert found.loo().probability.shape == (25, 3)
    assert "97.5%" in str(found.report())
    assert "(default)" in str(found)
    mc.save(found, tmp_path / "model")
    np.testing.assert_array_equal(mc.load(tmp_path / "model").predict_proba(Z), P)
    with pytest.raises(mc.ParameterError, match="learning='sample'"):
        mc.GaussianProcessClassifier(1.0 * k.RBF(), "mcmc", learning="nuts").fit(X, three)


@pytest.mark.filterwarnings(FEW_DRAWS)
def test_chains_agree_with_the_design_on_labels():
    models = [
        mc.GaussianProcessClassifier(1.0 * k.RBF(), "laplace", learning=learning, progress=False, n_samples=400).fit(
            X, LABELS
        )
        for learning in ("laplace", "nuts")
    ]
    np.testing.assert_allclose(*(model.predict_proba(Z)[:, 1] for model in models), atol=0.02)
    np.testing.assert_allclose(*(model.loo().log_score for model in models), atol=0.1)


def test_the_prior_is_drawn_beside_the_posterior(model):
    pytest.importorskip("matplotlib").use("Agg")
    axes = mc.plot.posterior(model)
    assert axes.size >= len(model.theta_)
    for ax, name in zip(axes.ravel(), model.parameter_names_, strict=False):
        assert ax.get_xlabel() == name
        prior, posterior = (line.get_xydata() for line in ax.get_lines()[:2])
        for curve in (prior, posterior):
            area = np.trapezoid(curve[:, 1], np.log(curve[:, 0]))
            assert area == pytest.approx(1, abs=0.05)
    with pytest.raises(mc.DataError, match="learning='laplace'"):
        mc.plot.posterior(fitted(1.0 * k.RBF(), "map"))


# -- ends of learning, and data after it -------------------------------------------------------------------------------


def out_of_time_after(monkeypatch, evaluations):
    """The time is over once this many evaluations were integrated over."""
    real = doubt.LogPosterior.__call__

    def late(self, *args, **kwargs):
        if self.evaluations >= evaluations:
            monkeypatch.setattr(optimise.Settings, "out_of_time", True)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(doubt.LogPosterior, "__call__", late)


@pytest.mark.parametrize(
    ("learning", "evaluations", "kept"),
    [("laplace", 30, "points evaluated so far"), ("laplace", 3, "not integrated over"),
     ("nuts", 6000, "draws made so far"), ("nuts", 100, "not integrated over")],
)  # fmt: skip
@pytest.mark.filterwarnings(FEW_DRAWS)
def test_time_ends_the_integration(monkeypatch, learning, evaluations, kept):
    out_of_time_after(monkeypatch, evaluations)
    with pytest.warns(mc.InterruptedFitWarning, match=f"max_seconds.*{kept}"):
        found = fitted(1.0 * k.RBF(), learning, n_samples=4000)
    assert (found.theta_posterior_ is None) == kept.startswith("not")
    if found.theta_posterior_ is not None:
        assert found.theta_posterior_.evaluations <= evaluations + 1
    assert np.isfinite(found.predict(Z)).all()


@pytest.mark.parametrize("operator", [None, mc.operators.Value()])
def test_an_interruption_says_what_is_left_out(monkeypatch, operator):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("mercer.learning.integrate.laplace", interrupted)
    found = mc.GaussianProcessRegressor(1.0 * k.RBF(), learning="laplace", progress=False)
    with pytest.warns(mc.InterruptedFitWarning, match="not integrated over"):
        found.fit(X, y, operator=operator)
    assert found.theta_posterior_ is None
    assert np.isfinite(found.predict(Z)).all()
    if operator is None:
        settings = {"noise": found.noise_.item(), "learning": None, "progress": False}
        at_mode = mc.GaussianProcessRegressor(found.kernel_, **settings).fit(X, y)
        np.testing.assert_allclose(found.predict(Z), at_mode.predict(Z), rtol=1e-4)
    with pytest.warns(mc.InterruptedFitWarning, match="not integrated over"):
        labels = mc.GaussianProcessClassifier(1.0 * k.RBF(), learning="laplace", progress=False).fit(X, LABELS)
    assert labels.theta_posterior_ is None


def test_the_plan_of_classes_counts_the_integration():
    plans = [
        mc.GaussianProcessClassifier(1.0 * k.RBF(), learning=learning, n_samples=4000).plan(X, LABELS)
        for learning in ("map", "laplace", "nuts")
    ]
    assert plans[0].seconds < plans[1].seconds < plans[2].seconds / 10


def test_updates_reach_the_posterior_of_the_parameters():
    found = mc.GaussianProcessRegressor(1.0 * k.RBF(), learning="laplace", progress=False).fit(X, y)
    before = found.theta_posterior_
    rough = np.random.default_rng(0)
    new = rough.uniform(0, 6, size=(6, 1))
    found.update(new, 10 + 3 * np.sin(new[:, 0]) + 1.5 * rough.choice([-1, 1], size=6))
    after = found.theta_posterior_
    np.testing.assert_array_equal(after.weights, found.posterior_.weights)
    noise = found.parameter_names_.index("noise")
    shift = after.weights @ after.theta[:, noise] - before.weights @ before.theta[:, noise]
    assert shift > 0.3
    assert after.draws[:, noise].mean() - before.draws[:, noise].mean() == pytest.approx(shift, rel=0.3)


def test_an_update_that_leaves_few_points_is_told():
    found = mc.GaussianProcessRegressor(1.0 * k.RBF(), learning="laplace", progress=False).fit(X[:12], y[:12])
    with pytest.warns(mc.NumericalWarning, match="effective points.*Fit again"):
        found.update(X, y + 50 * rng.normal(size=25))


@pytest.mark.parametrize("learning", ["laplace", "nuts"])
def test_settings_for_one_set_of_parameters_are_refused(learning):
    with pytest.raises(mc.ParameterError, match="calibrate=True is for one set"):
        fitted(1.0 * k.RBF(), learning, calibrate=True)
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), learning=learning, progress=False)
    for shape in ({"monotone": {0: 1}}, {"within": (0.0, None)}):
        with pytest.raises(mc.ParameterError, match="monotone and within"):
            model.fit(X, y, **shape)


@pytest.mark.parametrize("count", [1, 3])
def test_priors_of_another_number_of_entries_are_refused(count):
    kernel = (1.0 * k.RBF([1.0, 1.0])).with_priors(lengthscale=priors.Each([priors.LogNormal(0.0)] * count))
    with pytest.raises(mc.ParameterError, match=f"{count} priors for a parameter with 2"):
        mc.GaussianProcessRegressor(kernel, learning="map", progress=False).fit(np.hstack([X, X**2]), y)
