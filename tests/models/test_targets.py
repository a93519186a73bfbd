"""GaussianProcessRegressor with other likelihoods: against GPy, limits, laws, raw and bad data, files and reports."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import mercer as mc
from mercer import kernels as k
from mercer.distributions import Normal

mpl.use("agg")
rng = np.random.default_rng(0)
N = 50
X = np.sort(rng.uniform(0, 6, N))[:, None]
F = 1.5 * np.sin(X[:, 0])
Z = np.linspace(0.5, 5.5, 6)[:, None]
DATA = {
    "student": (F + 0.1 * rng.standard_t(3, N), {}),
    "poisson": (rng.poisson(np.exp(F)), {}),
    "negative_binomial": (rng.poisson(np.exp(F) * rng.gamma(4, 0.25, N)), {"exposure": 2.0}),
    "binomial": (rng.binomial(10, 1 / (1 + np.exp(-F))), {"trials": 10}),
    "gamma": (np.exp(F) * rng.gamma(5, 0.2, N), {}),
    "lognormal": (np.exp(F + 0.1 * rng.normal(size=N)), {}),
    "censored": (F + 0.1 * rng.normal(size=N), {"lower": -1.0, "upper": 1.2}),
    "ordinal": (np.digitize(F + 0.3 * rng.normal(size=N), [-1, 0, 1]) + 1, {}),
}
TRUTH = {
    "student": F, "poisson": np.exp(F), "negative_binomial": np.exp(F) / 2, "binomial": 1 / (1 + np.exp(-F)),
    "gamma": np.exp(F), "lognormal": np.exp(F + 0.005), "censored": F,
}  # fmt: skip
each = pytest.mark.parametrize("name", DATA)


def new(name, kernel=None, **settings):
    return mc.GaussianProcessRegressor(kernel, likelihood=name, progress=False, **settings)


@pytest.fixture(scope="module")
def fitted():
    return {name: new(name, 1.0 * k.RBF()).fit(X, y, **sides) for name, (y, sides) in DATA.items()}


# -- other libraries, and limits ---------------------------------------------------------------------------------------


def gpy_model(likelihood, y):
    gpy = pytest.importorskip("GPy")
    infer = gpy.inference.latent_function_inference.Laplace()
    kernel = gpy.kern.RBF(1, variance=1.5, lengthscale=0.9)
    return gpy.core.GP(X, y[:, None].astype(float), kernel, likelihood(gpy), inference_method=infer)


def assert_agree(ours, theirs, **tolerance):
    assert ours.log_marginal_likelihood_ == pytest.approx(float(theirs.log_likelihood()), **tolerance)
    mean, variance = ours.predict_latent(Z)
    expected = theirs._raw_predict(Z)
    np.testing.assert_allclose(mean, expected[0][:, 0], atol=tolerance["abs"])
    np.testing.assert_allclose(variance, expected[1][:, 0], atol=tolerance["abs"])


def at_fixed_parameters(likelihood, y, inference="laplace", **sides):
    settings = {"inference": inference, "learning": None, "normalize": False}
    return new(likelihood, 1.5 * k.RBF(0.9), **settings).fit(X, y, **sides)


def test_poisson_equals_gpy():
    y = DATA["poisson"][0]
    theirs = gpy_model(lambda gpy: gpy.likelihoods.Poisson(gpy.likelihoods.link_functions.Log()), y)
    assert_agree(at_fixed_parameters("poisson", y), theirs, abs=1e-5)


def test_student_equals_gpy():
    """With outliers GPy clips the curvature in the determinant, as we do, but not in its steps, so that its mode is
    not quite one."""
    student = lambda gpy: gpy.likelihoods.StudentT(deg_free=5.0, sigma2=0.04)
    y = F + 0.15 * np.cos(9 * X[:, 0])
    ours = mc.likelihoods.Student(0.2, 5.0)
    assert_agree(at_fixed_parameters(ours, y), gpy_model(student, y), abs=1e-5)
    y[::9] += 4.0
    assert_agree(at_fixed_parameters(ours, y), gpy_model(student, y), abs=0.02)


@pytest.mark.parametrize("inference", ["laplace", "ep", "variational"])
def test_censored_without_limits_is_the_gaussian_model(inference):
    y = DATA["censored"][0]
    kernel = 1.5 * k.RBF(0.9)
    plain = mc.GaussianProcessRegressor(kernel, noise=0.04, learning=None, normalize=False).fit(X, y)
    ours = new("censored", kernel, noise=0.04, learning=None, normalize=False, inference=inference).fit(X, y)
    assert ours.log_marginal_likelihood_ == pytest.approx(plain.log_marginal_likelihood_, abs=1e-5)
    np.testing.assert_allclose(ours.predict(Z, return_std=True), plain.predict(Z, return_std=True), atol=1e-6)
    np.testing.assert_allclose(ours.predict(Z, return_cov=True)[1], plain.predict(Z, return_cov=True)[1], atol=1e-6)
    np.testing.assert_allclose(np.stack(tuple(ours.loo())), np.stack(tuple(plain.loo())), atol=1e-4)
    np.testing.assert_allclose(ours.predict_gradient(Z)[0], plain.predict_gradient(Z)[0], atol=1e-5)


def test_learned_noise_of_the_censored_model_is_that_of_the_gaussian_one():
    y = 1e6 + 1e5 * DATA["censored"][0]
    plain = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(X, y)
    ours = new("censored", 1.0 * k.RBF()).fit(X, y)
    assert ours.noise_ == pytest.approx(float(plain.noise_), rel=0.01)
    np.testing.assert_allclose(ours.predict(Z), plain.predict(Z), rtol=1e-3)


def test_log_normal_is_the_gaussian_model_of_the_logarithm():
    y = DATA["lognormal"][0]
    ours, plain = new("lognormal").fit(X, y), mc.GaussianProcessRegressor(progress=False).fit(X, np.log(y))
    log = plain.predict_distribution(Z)
    theirs = stats.lognorm(log.deviation, scale=np.exp(log.mean))
    np.testing.assert_allclose(ours.predict(Z, return_std=True), [theirs.mean(), theirs.std()])
    np.testing.assert_allclose(ours.predict_quantile(Z, 0.9), theirs.ppf(0.9))
    np.testing.assert_allclose(ours.log_predictive_density(Z, np.ones(6)), theirs.logpdf(1.0))
    np.testing.assert_allclose(ours.sample_y(Z, 3), np.exp(plain.sample_y(Z, 3)))
    np.testing.assert_allclose(ours.loo().log_score, plain.loo().log_score - np.log(y))
    np.testing.assert_array_equal(ours.y_train_, y)
    np.testing.assert_allclose(
        ours.update(Z[:1], [2.0]).predict_quantile(Z, 0.5), np.exp(plain.update(Z[:1], [np.log(2)]).predict(Z))
    )


def test_posterior_without_information_is_the_prior():
    """One trial far away from the rows predicted."""
    model = new("binomial", 2.0 * k.RBF(0.1), learning=None, normalize=False).fit([[0.0]], [1])
    mean, variance = model.predict_latent([[50.0]])
    np.testing.assert_allclose([mean[0], variance[0]], [0.0, 2.0], atol=1e-8)


# -- predictions -------------------------------------------------------------------------------------------------------


@each
def test_predictions_are_on_the_scale_of_the_target(name, fitted):
    y, _ = DATA[name]
    model, scale = fitted[name], np.std(y)
    mean, deviation = model.predict(X, return_std=True)
    assert mean.shape == deviation.shape == (N,)
    assert (deviation > 0).all()
    if name in TRUTH:
        spread = np.std(TRUTH[name])
        assert np.sqrt(np.mean((mean - TRUTH[name]) ** 2)) < 0.45 * spread
    else:
        assert np.mean(np.abs(mean - y)) < 0.3 * scale
    low, middle, high = model.predict_quantile(X, [0.05, 0.5, 0.95]).T
    assert (low <= middle).all()
    assert (middle <= high).all()
    certain = model.predict_distribution(X, include_noise=False)
    np.testing.assert_allclose(certain.mean, mean, rtol=0.02, atol=0.02 * scale)
    assert (certain.deviation <= deviation + 1e-9).all()


@each
def test_joint_draws_agree_with_the_predicted_moments(name, fitted):
    model = fitted[name]
    draws = model.sample_y(Z, 4000, random_state=1)
    assert draws.shape == (6, 4000)
    predicted = model.predict_distribution(Z)
    level = np.mean(draws <= predicted.quantile(0.5)[:, None], axis=1)
    np.testing.assert_allclose(level, predicted.cdf(predicted.quantile(0.5)), atol=0.04)
    np.testing.assert_array_equal(model.sample_y(Z, 2, random_state=5), model.sample_y(Z, 2, random_state=5))
    functions = model.sample_y(Z, 4000, random_state=1, include_noise=False)
    np.testing.assert_allclose(functions.mean(axis=1), predicted.mean, rtol=0.1, atol=0.05)


def test_exposure_and_trials_of_new_rows(fitted):
    counts, shares = fitted["negative_binomial"], fitted["binomial"]
    np.testing.assert_allclose(counts.predict(Z, exposure=3.0), 3 * counts.predict(Z))
    np.testing.assert_allclose(shares.predict(Z, trials=np.full(6, 20)), 20 * shares.predict(Z))
    assert (shares.predict(Z) < 1).all()
    assert shares.sample_y(Z, 50, trials=20).max() > 1
    p = np.exp([shares.log_predictive_density(Z, np.full(6, y), trials=4) for y in range(5)])
    np.testing.assert_allclose(p.sum(axis=0), 1.0, atol=1e-8)
    with pytest.raises(mc.ParameterError, match="does not use trials"):
        counts.predict(Z, trials=3)
    with pytest.raises(mc.ParameterError, match="does not use exposure"):
        mc.GaussianProcessRegressor(progress=False).fit(X, F).predict(Z, exposure=3)


def test_values_beyond_a_limit_have_a_probability(fitted):
    model = fitted["censored"]
    predicted = model.predict_distribution(Z)
    assert isinstance(predicted, Normal)
    below = model.log_predictive_density(Z, np.full(6, -2.0), lower=-1.0)
    np.testing.assert_allclose(np.exp(below), predicted.cdf(-1.0), rtol=1e-6)
    hidden = np.abs(F) > 1.3  # predictions leave the limits
    assert np.abs(model.predict(X)[hidden]).max() > 1.3


def test_censored_rows_against_refits_that_ignore_or_clip_them():
    y, sides = DATA["censored"]
    clipped = np.clip(y, -1.0, 1.2)
    naive = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False).fit(X, clipped)
    ours = new("censored", 1.0 * k.RBF()).fit(X, clipped, **sides)
    error = lambda model: np.sqrt(np.mean((model.predict(X) - F) ** 2))
    assert error(ours) < 0.5 * error(naive)


@pytest.mark.parametrize("name", ["student", "poisson", "censored"])
def test_leave_one_out_is_close_to_refits(name, fitted):
    y, sides = DATA[name]
    model = fitted[name]
    loo = model.loo()
    kernel, likelihood = model.posterior_.kernel, model.likelihood_
    for i in (3, 20, 41):
        kept = np.arange(N) != i
        again = new(name, 1.0 * k.RBF()).fit(X, y, **sides)
        again.target_ = model.target_.take(kept)
        again._infer_target(X[kept])
        mean, deviation = again.predict(X[[i]], return_std=True)
        np.testing.assert_allclose(loo.mean[i], mean[0], atol=0.15 * deviation[0])
        np.testing.assert_allclose(np.sqrt(loo.variance[i]), deviation[0], rtol=0.1)
    assert kernel is model.posterior_.kernel
    assert likelihood is model.likelihood_


@each
def test_updates_are_inference_from_all_rows(name, fitted):
    y, sides = DATA[name]
    whole = fitted[name]
    settings = {"learning": None} if name != "lognormal" else {}
    part = new(name if name != "ordinal" else whole.likelihood_, 1.0 * k.RBF(), **settings)
    part.fit(X, y, **sides)
    for attribute in ("kernel_", "likelihood_", "center_", "scale_", "_jitter"):
        if attribute in vars(whole):
            setattr(part, attribute, getattr(whole, attribute))
    if name == "lognormal":
        assert len(part.update(X[:2], y[:2]).y_train_) == N + 2
        return
    part.target_ = whole.target_.take(slice(0, 30))
    part._infer_target(X[:30])
    part.update(X[30:], y[30:], **sides)
    np.testing.assert_allclose(part.predict(Z), whole.predict(Z), rtol=1e-4)
    assert part.log_marginal_likelihood_ == pytest.approx(whole.log_marginal_likelihood_, abs=1e-3)


@each
def test_the_evidence_has_the_gradient_it_claims(name, fitted):
    model = fitted[name]
    theta = model.theta_ + 0.05
    _, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
    h = 1e-4
    found = [
        (model.log_marginal_likelihood(theta + step) - model.log_marginal_likelihood(theta - step)) / (2 * h)
        for step in h * np.eye(len(theta))
    ]
    np.testing.assert_allclose(slope, found, rtol=2e-3, atol=2e-3)
    assert len(model.parameter_names_) == len(theta)


# -- robustness --------------------------------------------------------------------------------------------------------


def test_student_ignores_outliers():
    y = F + 0.1 * rng.normal(size=N)
    dirty = y.copy()
    dirty[::10] += 15.0
    plain = mc.GaussianProcessRegressor(progress=False).fit(X, dirty)
    robust = new("student").fit(X, dirty)
    error = lambda model: np.sqrt(np.mean((model.predict(X) - F) ** 2))
    assert error(robust) < 0.12 < 0.5 < error(plain)
    assert robust.inference_ == "variational"
    assert robust.loo().log_score[1] > robust.loo().log_score[0]


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("poisson", np.zeros(N)),
        ("poisson", rng.poisson(5000 * np.exp(F))),
        ("negative_binomial", rng.poisson(0.02, N)),
        ("gamma", 1e6 * DATA["gamma"][0]),
        ("gamma", 1e-9 * DATA["gamma"][0]),
        ("lognormal", 1e6 * DATA["lognormal"][0]),
        ("student", 1e6 + 1e-3 * F),
        ("student", np.ones(N)),
        ("censored", np.zeros(N)),
        ("binomial", np.ones(N)),
    ],
    ids=[
        "all zero",
        "thousands",
        "rare",
        "large",
        "tiny",
        "large logarithms",
        "offset",
        "constant",
        "zeros",
        "certain",
    ],
)
def test_raw_data(name, y):
    model = new(name, 1.0 * k.RBF()).fit(X, y)
    mean, deviation = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(deviation).all()
    size = max(float(np.abs(y).max()), 0.3)
    assert np.abs(mean).max() < 3 * size
    if np.ptp(y) > 0 and name != "negative_binomial":
        assert np.sqrt(np.mean((mean - y) ** 2)) < np.std(y)


def test_counts_in_the_thousands_are_known_precisely():
    rate = 5000 * np.exp(F)
    model = new("poisson", 1.0 * k.RBF()).fit(X, rng.poisson(rate))
    np.testing.assert_allclose(model.predict(X), rate, rtol=0.03)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_given_likelihoods_and_noise():
    y = DATA["student"][0]
    model = new(mc.likelihoods.Student(dof=4.0).fix("dof"), 1.0 * k.RBF()).fit(X, y)
    assert model.likelihood_.dof == 4.0
    assert "dof" not in model.parameter_names_
    assert new("student", 1.0 * k.RBF(), noise=0.04).fit(X, y).likelihood_.scale == pytest.approx(0.2)
    assert new("censored", 1.0 * k.RBF(), noise=0.04).fit(X, y).noise_ == pytest.approx(0.04)
    for settings, message in (
        ({"noise": 0.1}, "no noise variance of its own"),
        ({"noise": [0.1] * N}, "one noise variance per row is for likelihood='gaussian'"),
        ({"calibrate": True}, "calibrate=True is for a Gaussian likelihood"),
        ({"inference": "mcmc"}, "inference must be one of 'auto', 'laplace'"),
    ):
        with pytest.raises(mc.ParameterError, match=message):
            new("poisson", **settings).fit(X, DATA["poisson"][0])
    with pytest.raises(mc.ParameterError, match="not log-concave"):
        new("student", inference="ep").fit(X, y)
    with pytest.raises(mc.ParameterError, match="has exact inference"):
        new("gaussian", inference="ep").fit(X, y)
    with pytest.raises(mc.ParameterError, match="likelihood must be one of 'gaussian', 'lognormal', 'student'"):
        new("cauchy").fit(X, y)
    with pytest.raises(mc.ParameterError, match="Counts with an exposure are 'poisson'"):
        new("gaussian").fit(X, y, exposure=2.0)
    with pytest.raises(mc.DataError, match="positive values"):
        new("lognormal").fit(X, np.zeros(N))
    with pytest.raises(mc.ParameterError, match="return_cov is for likelihoods with additive noise"):
        new("poisson", 1.0 * k.RBF(), learning=None).fit(X, DATA["poisson"][0]).predict(Z, return_cov=True)


def test_map_uses_priors():
    kernel = (1.0 * k.RBF()).with_priors(lengthscale=mc.priors.LogNormal(np.log(0.2), 0.01))
    model = new("poisson", kernel, learning="map").fit(X, DATA["poisson"][0])
    assert model.kernel_.parameters["lengthscale"] == pytest.approx(0.2, rel=0.05)


def test_sums_are_decomposed_and_white_noise_is_overdispersion():
    kernel = (1.0 * k.RBF()).named("slow") + (0.5 * k.Exponential()).named("fast")
    y = DATA["poisson"][0]
    model = new("poisson", kernel).fit(X, y)
    parts = model.decompose(Z)
    assert list(parts) == ["slow", "fast"]
    total = sum(mean for mean, _ in parts.values())
    np.testing.assert_allclose(total + model.mean_, model.predict_latent(Z)[0], atol=1e-6)
    noisy = rng.poisson(np.exp(2 + F + 0.7 * rng.normal(size=N)))
    model = new("poisson", 1.0 * k.RBF() + k.White(0.1)).fit(X, noisy)
    assert 0.2 < model.kernel_.parameters["white_variance"] < 1.0
    assert (model.predict(X, True)[1] > model.predict(X, True, include_noise=False)[1]).all()


def test_solvers_agree():
    y = DATA["poisson"][0]
    kernel = 0.3 * k.Polynomial(3, offset=1.0)
    dense, weights = (
        new("poisson", kernel, solver=solver, learning=None).fit(X - 3, y) for solver in ("dense", "weights")
    )
    np.testing.assert_allclose(dense.predict(Z - 3), weights.predict(Z - 3), rtol=1e-4)
    assert dense.log_marginal_likelihood_ == pytest.approx(weights.log_marginal_likelihood_, abs=1e-4)


def test_default_kernels_and_tables():
    frame = pd.DataFrame({"x": X[:, 0], "kind": np.where(np.arange(N) % 2, "a", "b")})
    y = rng.poisson(np.exp(F + 1.5 * (np.arange(N) % 2)))
    model = new("poisson").fit(frame, y)
    assert model.choice_ is not None
    both = model.predict(pd.DataFrame({"x": [2.0, 2.0], "kind": ["a", "b"]}))
    assert both[0] > 2 * both[1]


@pytest.mark.parametrize("name", ["student", "gamma"])
def test_scikit_learn_accepts_it(name):
    model = new(name, 1.0 * k.RBF(), max_iterations=5)
    copy = clone(model)
    assert copy.likelihood == name
    if name == "student":
        check_estimator(model, on_skip=None)


# -- around it ---------------------------------------------------------------------------------------------------------


@each
def test_files_reports_and_plots(name, fitted, tmp_path):
    y, _ = DATA[name]
    model = fitted[name]
    mc.save(model, tmp_path / "model.mercer")
    again = mc.load(tmp_path / "model.mercer")
    np.testing.assert_array_equal(again.predict(Z), model.predict(Z))
    np.testing.assert_array_equal(again.loo().log_score, model.loo().log_score)
    report = str(model.report())
    assert "Calibration" in report
    assert (f"{name}; inference: {model.inference_}" in report) == (name != "lognormal")
    assert name in str(model)
    axes = mc.plot.posterior(model, Z, include_noise=True)
    assert axes.get_lines()[-1].get_ydata().max() <= y.max()
    mc.plot.calibration(model)
    mc.plot.predictions(model)
    plt.close("all")
    relevance = model.relevance()
    assert relevance.effect[0] > 0.5
    assert model.plan(X).rows == N


def test_left_out_intervals_hold(fitted):
    """Standardised leave-one-out residuals are standard normal, of counts as well."""
    for name, model in fitted.items():
        rows = model._measured_rows()
        z = model.loo_distribution(rows).z(model.y_train_[rows])
        assert stats.kstest(z, "norm").pvalue > 1e-3, name


def test_lognormal_under_doubt_is_the_gaussian_model_of_the_logarithm():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (25, 1))
    log_y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=25)
    settings = {"kernel": 1.0 * k.RBF(1.0), "learning": "laplace", "progress": False}
    ours = mc.GaussianProcessRegressor(likelihood="lognormal", **settings).fit(X, np.exp(log_y))
    plain, Z = mc.GaussianProcessRegressor(**settings).fit(X, log_y), np.array([[0.5], [4.0], [7.0]])
    levels = [0.05, 0.5, 0.95]
    np.testing.assert_allclose(np.log(ours.predict_quantile(Z, levels)), plain.predict_quantile(Z, levels), rtol=1e-6)
    y = np.array([1.0, 0.5, 2.0])
    expected = plain.log_predictive_density(Z, np.log(y)) - np.log(y)
    np.testing.assert_allclose(ours.log_predictive_density(Z, y), expected, rtol=1e-9)


def test_map_has_weak_priors_in_units_of_the_data():
    """They are stated, the same whatever the units of y, and hold where nothing is given."""
    y = DATA["student"][0]
    model, larger = (new("student", 1.0 * k.RBF(), learning="map").fit(X, factor * y) for factor in (1.0, 1000.0))
    assert set(model.priors_) == {"variance", "lengthscale", "scale", "dof"}
    assert all(stated.default for stated in model.priors_.values())
    assert "(default)" in str(model)
    np.testing.assert_allclose(larger.predict(Z), 1000 * model.predict(Z), rtol=1e-3)
    assert larger.priors_["scale"].prior.mu == pytest.approx(model.priors_["scale"].prior.mu + np.log(1000))
    assert model.fit(X, y).priors_ is not None
    assert new("student", 1.0 * k.RBF()).fit(X, y).priors_ is None


def test_plans_count_what_integrating_takes():
    seconds = [mc.GaussianProcessRegressor(learning=how).plan(X).seconds for how in ("map", "laplace", "nuts")]
    assert seconds[0] < seconds[1] < seconds[2]


def test_zeros_alone_have_no_wild_dispersion():
    x = np.linspace(0, 1, 30)[:, None]
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), likelihood="negative_binomial", progress=False)
    mean, deviation = model.fit(x, np.zeros(30)).predict(x, return_std=True)
    assert mean.max() < 0.1
    assert deviation.max() < 1.0


@pytest.mark.parametrize("noise", [0.0, -0.1, float("nan")])
@pytest.mark.parametrize("likelihood", ["censored", "student"])
def test_noise_that_is_not_positive_is_refused(likelihood, noise):
    with pytest.raises(mc.ParameterError, match="noise is a variance and must be positive"):
        mc.GaussianProcessRegressor(likelihood=likelihood, noise=noise, progress=False).fit([[0.0], [1.0]], [1.0, 2.0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e-9, 1.0, 2000.0])
def test_one_positive_value_has_finite_predictions(value):
    model = mc.GaussianProcessRegressor(likelihood="lognormal", progress=False).fit([[1.0]], [value])
    mean, deviation = model.predict([[1.0], [2.0], [50.0]], return_std=True)
    assert mean[0] < 100 * value
    assert deviation[1] < 1e6 * value
    assert not np.isnan(deviation).any()
    assert model.predict_quantile([[1.0]], 0.5) == pytest.approx([value])
