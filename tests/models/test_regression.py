"""GaussianProcessRegressor: against formulas, against scikit-learn and GPy, and by what it promises."""

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_regressor
from sklearn.gaussian_process import GaussianProcessRegressor as Theirs
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mercer as mc
from mercer import kernels as k
from mercer.solvers.weights import WeightPosterior
from reference import regression as reference

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=60)
Z = rng.normal(size=(25, 3))
LENGTHS = np.array([1.0, 2.0, 5.0])
DATA = Path(os.environ.get("MERCER_DATA", Path(__file__).parents[3] / "shared" / "data"))


def model(kernel=None, data=(X, y), **settings):
    settings = {"progress": False, **settings}
    return mc.GaussianProcessRegressor(kernel, **settings).fit(*data)


@pytest.fixture(scope="module")
def learned():
    return model()


# -- against formulas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_predictions_are_those_of_the_book(normalize, each):
    noise = rng.uniform(0.05, 0.2, 60) if each else 0.1
    found = model(1.3 * k.RBF(LENGTHS), noise=noise, learning=None, normalize=normalize)
    m, s = (y.mean(), y.std()) if normalize else (0.0, 1.0)
    C = s**2 * reference.rbf(X, X, 1.3, LENGTHS) + np.diag(np.broadcast_to(noise, 60))
    K_s, K_ss = s**2 * reference.rbf(X, Z, 1.3, LENGTHS), s**2 * reference.rbf(Z, Z, 1.3, LENGTHS)
    predict = reference.predict_with_unknown_mean if normalize else reference.predict
    mean, cov = predict(C, K_s, K_ss, y - m)
    np.testing.assert_allclose(found.predict(Z), mean + m, atol=1e-10)
    np.testing.assert_allclose(found.predict(Z, return_cov=True, include_noise=False)[1], cov, atol=1e-10)
    np.testing.assert_allclose(
        found.predict(Z, return_std=True)[1] ** 2, np.diag(cov) + np.mean(noise), atol=1e-10
    )  # fmt: skip
    np.testing.assert_allclose(found.predict(Z, return_cov=True)[1], cov + np.mean(noise) * np.eye(25), atol=1e-10)
    np.testing.assert_allclose(found.noise_, noise)


def test_an_unknown_mean_is_integrated_out():
    noise = rng.uniform(0.05, 0.2, 60)
    for kernel in (1.3 * k.RBF(LENGTHS), 0.3 * k.Linear()):  # both routes
        found = model(kernel, noise=noise, learning=None)
        C = found.scale_**2 * kernel(X) + np.diag(noise)
        expected = reference.restricted_log_evidence(C, y) + 59 * np.log(found.scale_)
        assert found.log_marginal_likelihood_ == pytest.approx(expected, abs=1e-9)
        for i in (0, 7):  # leaving a row out estimates the mean without it
            rest = np.arange(60) != i
            refit = model(kernel, (X[rest], y[rest]), noise=noise[rest] * (y[rest].std() / y.std()) ** 2, learning=None)
            mean, variance = reference.predict_with_unknown_mean(
                C[np.ix_(rest, rest)], C[np.ix_(rest, [i])], C[i : i + 1, i : i + 1], y[rest]
            )
            assert found.loo().mean[i] == pytest.approx(mean[0], abs=1e-9)
            assert found.loo().variance[i] == pytest.approx(variance[0, 0], abs=1e-9)
            assert refit.predict(X[i : i + 1])[0] == pytest.approx(mean[0], abs=1e-9)
        more = found.update(Z[:5], np.zeros(5), noise=np.full(5, 0.1))
        whole = model(
            kernel, (np.r_[X, Z[:5]], np.r_[y, np.zeros(5)]), noise=np.r_[noise, np.full(5, 0.1)], learning=None
        )
        ratio = (whole.scale_ / more.scale_) ** 2
        kernel_all = model(ratio**-1 * kernel, (np.r_[X, Z[:5]], np.r_[y, np.zeros(5)]),
                           noise=np.r_[noise, np.full(5, 0.1)], learning=None)  # fmt: skip
        np.testing.assert_allclose(more.predict(Z), kernel_all.predict(Z), atol=1e-9)


def test_samples_of_an_unknown_mean_have_its_uncertainty():
    found = model(1.3 * k.RBF(LENGTHS), (X[:8], y[:8]), noise=0.1, learning=None)
    mean, cov = found.predict(Z, return_cov=True, include_noise=False)
    draws = found.sample_y(Z, 4000, include_noise=False)
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.12 * np.diag(cov).max())
    many = np.repeat(Z, 170, axis=0)  # more places than one joint covariance has room for
    draws = found.sample_y(many, 300, include_noise=False)
    np.testing.assert_allclose(draws.std(axis=1)[::170], np.sqrt(np.diag(cov)), rtol=0.2)
    np.testing.assert_allclose(draws.mean(axis=1)[::170], mean, atol=4 * np.sqrt(np.diag(cov).max() / 300))


def test_leave_one_out_does_not_flatter_where_columns_outnumber_rows():
    A = np.random.default_rng(5).normal(size=(32, 200))
    t = np.random.default_rng(6).normal(size=32)
    found = model(None, (A, t))
    loo = found.loo()
    assert 1 - np.sum((t - loo.mean) ** 2) / np.sum((t - t.mean()) ** 2) < 0.3
    mean, deviation = found.predict(np.random.default_rng(7).normal(size=(400, 200)), return_std=True)
    held = np.abs(np.random.default_rng(8).normal(size=400) - mean) < 1.96 * deviation
    assert held.mean() > 0.9
    three = model(None, (A[:3, :2], t[:3])).loo()
    assert 1 - np.sum((t[:3] - three.mean) ** 2) / np.sum((t[:3] - t[:3].mean()) ** 2) < 0.9


def test_leave_one_out_equals_refits():
    found = model(1.3 * k.RBF(LENGTHS), noise=0.1, learning=None, normalize=False)
    C = reference.rbf(X, X, 1.3, LENGTHS) + 0.1 * np.eye(60)
    mean, variance = reference.leave_one_out(C, y)
    loo = found.loo()
    np.testing.assert_allclose(loo.mean, mean, atol=1e-10)
    np.testing.assert_allclose(loo.variance, variance, atol=1e-10)
    score = -0.5 * (y - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    np.testing.assert_allclose(loo.log_score, score, atol=1e-9)


def test_log_predictive_density_is_the_density_of_the_prediction(learned):
    mean, deviation = learned.predict(Z, return_std=True)
    t = rng.normal(size=25)
    expected = -0.5 * ((t - mean) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(learned.log_predictive_density(Z, t), expected)


@pytest.mark.parametrize("kernel", [1.3 * k.RBF(LENGTHS) + k.Linear(), k.Polynomial(2, 1.0), None])
def test_gradients_in_the_inputs(kernel):
    found = model(kernel, noise=0.1, learning=None)
    dmean, dvariance = found.predict_gradient(Z)
    for j in range(3):
        step = 1e-5 * np.eye(3)[j]
        up, down = (found.predict(Z + sign * step, return_std=True, include_noise=False) for sign in (1, -1))
        np.testing.assert_allclose(dmean[:, j], (up[0] - down[0]) / 2e-5, atol=1e-7)
        np.testing.assert_allclose(dvariance[:, j], (up[1] ** 2 - down[1] ** 2) / 2e-5, atol=1e-7)


# -- against the outside ----------------------------------------------------------------------------------------------

SKLEARN = [
    sk.ConstantKernel(1.3) * sk.RBF(LENGTHS) + sk.WhiteKernel(0.1),
    sk.ConstantKernel(0.5) * sk.Matern(1.5, nu=2.5) + sk.DotProduct(1.0) + sk.WhiteKernel(0.2),
    sk.RationalQuadratic(1.2, alpha=0.7) * sk.ConstantKernel(2.0) + sk.WhiteKernel(0.05),
]


@pytest.mark.parametrize("kernel", SKLEARN, ids=str)
def test_a_scikit_learn_kernel_drops_in_and_gives_the_same_posterior(kernel):
    ours = model(kernel, learning=None, normalize=False)
    theirs = Theirs(kernel, optimizer=None, alpha=0.0).fit(X, y)
    mean, deviation = theirs.predict(Z, return_std=True)
    np.testing.assert_allclose(ours.predict(Z), mean, atol=1e-8)
    np.testing.assert_allclose(ours.predict(Z, return_std=True)[1], deviation, atol=1e-8)
    np.testing.assert_allclose(ours.predict(Z, return_cov=True)[1], theirs.predict(Z, return_cov=True)[1], atol=1e-8)
    value, gradient = ours.log_marginal_likelihood(ours.theta_, eval_gradient=True)
    expected = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    assert value == pytest.approx(expected[0], abs=1e-8)
    assert ours.log_marginal_likelihood_ == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-8)
    np.testing.assert_allclose(np.sort(np.abs(gradient)), np.sort(np.abs(_natural(theirs, expected[1]))), atol=1e-6)


def _natural(theirs, gradient):
    """Their DotProduct goes by its standard deviation, ours by its variance: a factor of two in the logarithm."""
    names = [h.name for h in theirs.kernel_.hyperparameters for _ in range(h.n_elements)]
    return np.array([g / 2 if name.endswith("sigma_0") else g for name, g in zip(names, gradient, strict=True)])


@pytest.mark.parametrize("n", [30, 90])
def test_learning_reaches_at_least_their_evidence(n):
    rng = np.random.default_rng(n)
    A = rng.uniform(-2, 2, size=(n, 3))
    t = np.sin(2 * A[:, 0]) + A[:, 1] ** 2 + 0.1 * rng.normal(size=n)
    t = (t - t.mean()) / t.std()
    ours = model(1.0 * k.RBF(np.ones(3)), (A, t), normalize=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they warn of bounds; we have nothing to warn of
        theirs = Theirs(sk.ConstantKernel() * sk.RBF(np.ones(3)) + sk.WhiteKernel()).fit(A, t)
    assert ours.log_marginal_likelihood_ >= theirs.log_marginal_likelihood_value_ - 1e-3


def test_gpy_agrees():
    gpy = pytest.importorskip("GPy")
    kernel = gpy.kern.RBF(3, variance=1.3, lengthscale=LENGTHS, ARD=True)
    theirs = gpy.models.GPRegression(X, y[:, None], kernel, noise_var=0.1 - 1e-8)  # they add 1e-8 to it
    ours = model(1.3 * k.RBF(LENGTHS), normalize=False, noise=0.1, learning=None)
    assert ours.log_marginal_likelihood_ == pytest.approx(float(theirs.log_likelihood()), abs=1e-6)
    mean, variance = theirs.predict(Z)
    np.testing.assert_allclose(ours.predict(Z), mean[:, 0], atol=1e-6)
    np.testing.assert_allclose(ours.predict(Z, return_std=True)[1] ** 2, variance[:, 0], atol=1e-6)


def mauna_loa_kernel(theta):
    """RW06 5.15-5.18; the noise of 5.19 is left to the model."""
    return (
        theta[0] ** 2 * k.RBF(theta[1], name="trend")
        + theta[2] ** 2 * k.RBF(theta[3], name="decay") * k.Periodic(1.0, theta[4], name="season").fix("season_period")
        + theta[5] ** 2 * k.RationalQuadratic(theta[6], theta[7], name="medium")
        + theta[8] ** 2 * k.RBF(theta[9], name="short")
    )


@pytest.mark.skipif(not DATA.exists(), reason="reference data are not on this machine")
def test_mauna_loa():
    table = np.loadtxt(DATA / "timeseries" / "mauna_loa_rw545.csv.gz", delimiter=",", skiprows=1)
    data = table[:, :1], table[:, 1]
    theta = (66, 67, 2.4, 90, 1.3, 0.66, 1.2, 0.78, 0.18, 1.6 / 12, 0.19)
    given = model(mauna_loa_kernel(theta), data, noise=theta[-1] ** 2, learning=None, normalize=False)
    assert given.log_marginal_likelihood_ == pytest.approx(-108.62, abs=0.005)
    plain = model(mauna_loa_kernel((50, 50, 2, 50, 1, 1, 1, 1, 0.5, 0.5)), data, normalize=False)
    assert plain.log_marginal_likelihood_ > -108.5
    assert plain.kernel_.parameters["trend_lengthscale"] == pytest.approx(67, rel=0.02)


@pytest.mark.skipif(not DATA.exists(), reason="reference data are not on this machine")
def test_jura_cadmium():
    frame = pd.read_csv(DATA / "geostat" / "jura.csv.gz")
    train = frame["set"] == frame["set"].iloc[0]
    assert train.sum() == 259
    places, cadmium = frame[["Xloc", "Yloc"]].to_numpy(), frame["Cd"].to_numpy()
    center, scale = cadmium[train].mean(), cadmium[train].std()
    found = model(1.0 * k.RBF([1.0, 1.0]), (places[train], (cadmium[train] - center) / scale), normalize=False)
    error = np.abs(found.predict(places[~train]) * scale + center - cadmium[~train]).mean()
    assert error == pytest.approx(0.574, abs=0.003)


# -- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
def test_weight_space_is_taken_by_itself_and_agrees(normalize):
    kernel = k.Polynomial(2, 1.0) + 0.5 * k.Linear()
    settings = {"noise": 0.1, "learning": None, "normalize": normalize}
    weights, dense = (model(kernel, solver=solver, **settings) for solver in ("auto", "dense"))
    assert isinstance(weights.posterior_, WeightPosterior)
    assert isinstance(dense.posterior_, mc.GP)
    assert weights.plan_.method == "weights"
    assert weights.log_marginal_likelihood_ == pytest.approx(dense.log_marginal_likelihood_, abs=1e-8)
    for a, b in zip(weights.predict(Z, return_std=True), dense.predict(Z, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    np.testing.assert_allclose(
        weights.predict(Z, return_cov=True)[1], dense.predict(Z, return_cov=True)[1], atol=1e-9
    )  # fmt: skip
    for a, b in zip(weights.loo(), dense.loo(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    for a, b in zip(weights.predict_gradient(Z), dense.predict_gradient(Z), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    for a, b in zip(weights.update(Z, Z[:, 0]).predict(X, return_std=True),
                    dense.update(Z, Z[:, 0]).predict(X, return_std=True), strict=True):  # fmt: skip
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_learning_through_weights_and_through_functions_agrees():
    kernel = 1.0 * k.Polynomial(2, 1.0)
    a, b = (model(kernel, solver=solver) for solver in ("weights", "dense"))
    assert a.log_marginal_likelihood_ == pytest.approx(b.log_marginal_likelihood_, abs=1e-3)


def test_weights_are_for_finite_features_only():
    with pytest.raises(mc.ParameterError, match="finitely many features"):
        model(k.RBF(), solver="weights")
    # Two rows are fewer than the features: the cheaper way is the other one.
    few = model(k.Polynomial(2, 1.0), (X[:5], y[:5]), noise=0.1, learning=None)
    assert few.plan_.method == "dense"


@pytest.mark.parametrize("kernel", [1.3 * k.RBF(LENGTHS), k.Polynomial(2, 1.0)])
@pytest.mark.parametrize("each", [False, True])
def test_update_equals_fitting_all_at_once(kernel, each):
    noise = rng.uniform(0.05, 0.2, 60) if each else 0.1
    settings = {"learning": None, "normalize": False}
    part = model(kernel, (X[:40], y[:40]), noise=noise[:40] if each else noise, **settings)
    for rows in (slice(40, 41), slice(41, 60)):
        part.update(X[rows], y[rows], noise=noise[rows] if each else None)
    whole = model(kernel, noise=noise, **settings)
    assert part.log_marginal_likelihood_ == pytest.approx(whole.log_marginal_likelihood_, abs=1e-8)
    for a, b in zip(part.predict(Z, return_std=True), whole.predict(Z, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    np.testing.assert_allclose(part.loo().mean, whole.loo().mean, atol=1e-8)


def test_update_wants_noise_where_every_row_has_its_own():
    part = model(k.RBF(), noise=np.full(60, 0.1), learning=None)
    with pytest.raises(mc.ParameterError, match="one noise variance per row"):
        part.update(Z, Z[:, 0])


def test_theta_speaks_of_what_was_learned(learned):
    assert len(learned.theta_) == len(learned.parameter_names_)
    assert learned.parameter_names_[-1] == "noise"
    assert np.exp(learned.theta_[-1]) == pytest.approx(learned.noise_)
    _, gradient = learned.log_marginal_likelihood(learned.theta_ + 0.1, eval_gradient=True)
    for i in range(len(gradient)):
        step = 1e-5 * np.eye(len(gradient))[i]
        up, down = (learned.log_marginal_likelihood(learned.theta_ + 0.1 + sign * step) for sign in (1, -1))
        assert gradient[i] == pytest.approx((up - down) / 2e-5, abs=1e-5)
    assert learned.log_marginal_likelihood() == learned.log_marginal_likelihood_
    with pytest.raises(mc.ParameterError, match="theta must have"):
        learned.log_marginal_likelihood(np.zeros(2))


def test_terms_of_a_sum_add_up():
    kernel = k.RBF(1.0, name="wiggle") + 0.5 * k.Linear() + k.White(0.1)
    found = model(kernel, learning=None)
    parts = found.decompose(Z)
    assert next(iter(parts)) == "wiggle"
    assert len(parts) == 2
    np.testing.assert_allclose(sum(mean for mean, _ in parts.values()) + found.mean_, found.predict(Z), atol=1e-9)
    K = k.RBF(1.0)(Z, X)
    C = kernel(X)
    expected = K @ np.linalg.solve(C, y - found.mean_)
    np.testing.assert_allclose(parts["wiggle"][0], expected, atol=1e-9)


def test_noise_in_the_kernel_is_noise():
    inside = model(1.3 * k.RBF(LENGTHS) + k.White(0.1), learning=None, normalize=False)
    outside = model(1.3 * k.RBF(LENGTHS), noise=0.1, learning=None, normalize=False)
    for include in (False, True):
        for a, b in zip(
            inside.predict(Z, return_std=True, include_noise=include),
            outside.predict(Z, return_std=True, include_noise=include), strict=True,
        ):  # fmt: skip
            np.testing.assert_allclose(a, b, atol=1e-10)
        np.testing.assert_allclose(
            inside.predict(Z, return_cov=True, include_noise=include)[1],
            outside.predict(Z, return_cov=True, include_noise=include)[1], atol=1e-10,
        )  # fmt: skip
    smooth = inside.sample_y(np.tile(Z[:1], (200, 1)), random_state=1, include_noise=False)
    assert smooth.std() < 1e-6  # one place, one value of the function
    rough = inside.sample_y(np.tile(Z[:1], (200, 1)), random_state=1)
    assert 0.2 < rough.std() < 0.45


# -- prediction at scale ---------------------------------------------------------------------------------------------


def test_predictions_in_pieces_are_the_same(learned, monkeypatch):
    many = rng.normal(size=(1300, 3))
    whole = learned.predict(many, return_std=True)
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)  # 504 rows at a time
    for a, b in zip(learned.predict(many, return_std=True), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(learned.predict(many), whole[0], rtol=1e-12)


def test_predicting_does_not_factorise_again(learned, monkeypatch):
    from mercer.linalg import backend

    def refuse(*_, **__):
        raise AssertionError("factorised again")

    monkeypatch.setattr(backend, "factor", refuse)
    learned.predict(Z, return_std=True)
    learned.loo()
    with pytest.raises(AssertionError, match="factorised again"):  # the verb that all factorisations call
        learned.log_marginal_likelihood(learned.theta_, eval_gradient=True)


def test_samples_have_the_moments_of_the_prediction(learned):
    draws = learned.sample_y(Z, n_samples=4000, random_state=2)
    mean, cov = learned.predict(Z, return_cov=True)
    assert draws.shape == (25, 4000)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=5 * np.sqrt(np.diag(cov).max() / 4000))
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.1 * np.diag(cov).max())
    np.testing.assert_array_equal(draws, learned.sample_y(Z, n_samples=4000, random_state=2))


def test_samples_at_many_places(monkeypatch):
    from mercer.gp import process

    found = model(1.0 * k.RBF(0.5), (X[:, :1], y), noise=0.01, learning=None)
    grid = np.linspace(-2, 2, 300)[:, None]
    mean, cov = found.predict(grid, return_cov=True, include_noise=False)
    monkeypatch.setattr(process, "MAX_DENSE_SAMPLES", 100)
    draws = found.sample_y(grid, n_samples=3000, random_state=0, include_noise=False)
    np.testing.assert_allclose(draws.mean(axis=1), mean, atol=0.05)
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.05)
    assert np.abs(np.diff(draws, axis=0)).max() < 0.2  # smooth, not independent from place to place


# -- looking at it ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_an_irrelevant_input():
    local = np.random.default_rng(5)
    A = local.uniform(-2, 2, size=(90, 3))
    return model(None, (A, np.sin(2 * A[:, 0]) + 0.5 * np.cos(A[:, 1]) + 0.05 * local.normal(size=90)))


def test_an_irrelevant_input_is_told(with_an_irrelevant_input):
    table = with_an_irrelevant_input.relevance()
    assert table.irrelevant.tolist() == [False, False, True]
    assert np.argmax(table.effect) == 0
    assert table.lengthscale.shape == (3,)
    assert "irrelevant" in str(table)
    assert np.isnan(model(k.Linear(), noise=0.1, learning=None).relevance().lengthscale).all()


def test_the_report_reads(with_an_irrelevant_input):
    text = str(with_an_irrelevant_input.report())
    for heading in ("Fit", "Noise", "Relevance of inputs", "Calibration", "Optima found", "Numerics", "Suggestions"):
        assert heading in text
    assert "x2" in text.split("Suggestions")[1]
    assert "nan" not in text.lower()


def test_printing_a_model_tells_what_it_found(learned):
    assert str(mc.GaussianProcessRegressor()) == "GaussianProcessRegressor()"
    text = str(learned)
    assert "fitted to 60 rows" in text
    assert "theta1" in text
    assert "noise" in text
    assert repr(mc.GaussianProcessRegressor(k.RBF(2.0), noise=0.1)) == (
        "GaussianProcessRegressor(kernel=RBF(lengthscale=2.0), noise=0.1)"
    )


def test_numerics_are_measured():
    found = model(1.3 * k.RBF(LENGTHS), noise=0.1, learning=None, normalize=False)
    C = reference.rbf(X, X, 1.3, LENGTHS) + 0.1 * np.eye(60)
    assert found.numerics_["jitter"] == 0
    assert found.numerics_["condition"] == pytest.approx(np.linalg.cond(C), rel=0.1)
    assert found.numerics_["residual"] < 1e-12
    singular = model(1.0 * k.RBF(LENGTHS), (np.repeat(X, 2, axis=0), np.repeat(y, 2)), noise=0.0)
    assert singular.numerics_["jitter"] > 0
    assert "jitter" in str(singular.report()).split("Suggestions")[1]


def test_the_plan_tells_before_it_starts():
    plan = mc.GaussianProcessRegressor(solver="dense").plan(np.zeros((20_000, 12)))
    assert plan.method == "dense"
    assert plan.memory == 2 * 8 * 20_000**2
    assert plan.seconds > 10
    for word in ("20,000 x 20,000", "GiB", "time", "because"):
        assert word in str(plan)
    assert mc.GaussianProcessRegressor(k.Linear()).plan(np.zeros((20_000, 4))).method == "weights"
    few = mc.GaussianProcessRegressor().plan(np.random.default_rng(0).normal(size=(200_000, 2)))
    assert few.method == "neighbors"  # near rows tell nearly all, and exact ones take hours


def test_a_fit_that_does_not_fit_is_refused_before_it_starts(monkeypatch):
    from mercer.learning import plan

    monkeypatch.setattr(plan, "available_memory", lambda: 10_000)
    with pytest.raises(mc.NotEnoughMemoryError, match="exact fit of 60 rows needs"):
        model()


def test_calibration_only_widens_and_only_the_default():
    heavy = y + 0.3 * np.random.default_rng(3).standard_t(1.5, size=60)
    widened, plain = (model(data=(X, heavy), calibrate=calibrate) for calibrate in (None, False))
    assert widened.calibration_ >= 1
    assert plain.calibration_ == 1
    np.testing.assert_allclose(widened.predict(Z), plain.predict(Z), rtol=1e-6)
    ratio = widened.predict(Z, return_std=True)[1] / plain.predict(Z, return_std=True)[1]
    np.testing.assert_allclose(ratio, np.sqrt(widened.calibration_), rtol=1e-6)
    loo = widened.loo()
    assert np.mean(np.abs(heavy - loo.mean) <= 1.96 * np.sqrt(loo.variance)) >= 0.95
    assert model(1.0 * k.RBF(), data=(X, heavy)).calibration_ == 1
    with pytest.raises(mc.ParameterError, match="free amplitude"):
        model(k.RBF(), calibrate=True)


# -- together with scikit-learn and frames ---------------------------------------------------------------------------


def test_pipelines_grids_and_clones():
    assert is_regressor(mc.GaussianProcessRegressor())
    pipe = make_pipeline(StandardScaler(), mc.GaussianProcessRegressor(1.0 * k.RBF(np.ones(3)), progress=False))
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.8
    search = GridSearchCV(
        mc.GaussianProcessRegressor(1.0 * k.RBF(1.0), noise=0.1, learning=None),
        {"kernel__lengthscale": [0.01, 1.5], "noise": [0.01, 10.0]}, cv=3,
    ).fit(X, y)  # fmt: skip
    assert search.best_params_ == {"kernel__lengthscale": 1.5, "noise": 0.01}
    original = mc.GaussianProcessRegressor(k.RBF(2.0), n_restarts=3)
    copied = clone(original)
    assert copied.get_params() == original.get_params()
    assert copied is not original
    pipe.set_output(transform="pandas").fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)
    assert pipe.score(pd.DataFrame(X, columns=["a", "b", "c"]), y) > 0.8
    with pytest.raises(mc.ParameterError, match="Invalid parameter 'alpha'"):
        original.set_params(alpha=1)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_keep_their_names(frame):
    columns = dict(zip("abc", X.T, strict=True))
    kernel = 1.0 * k.RBF(1.0).on("a") + 1.0 * k.Linear().on(["b", "c"])
    named = model(kernel, (frame(columns), y), noise=0.1, learning=None)
    plain = model(1.0 * k.RBF(1.0).on(0) + 1.0 * k.Linear().on([1, 2]), noise=0.1, learning=None)
    test = dict(zip("abc", Z.T, strict=True))
    np.testing.assert_allclose(named.predict(frame(test)), plain.predict(Z), atol=1e-10)
    assert list(named.feature_names_in_) == ["a", "b", "c"]
    assert named.relevance().names == ["a", "b", "c"]
    with pytest.raises(mc.DataError, match="feature names should match"):
        named.predict(frame({"a": Z[:, 0], "b": Z[:, 1], "d": Z[:, 2]}))
    default = model(None, (frame(columns), y))
    np.testing.assert_allclose(default.predict(frame(test)), model().predict(Z), atol=1e-8)


def test_other_objects_than_numbers():
    words = ["tea", "toast", "coat", "sun", "stone", "note"]
    found = model(1.0 * k.Custom(lambda a, b: len(set(a) & set(b))), (words, np.arange(6.0)), noise=0.1)
    assert np.isfinite(found.predict(["ten", "oats"])).all()
    with pytest.raises(mc.DataError, match="these rows are objects"):
        found.relevance()
    assert "Relevance" not in str(found.report())
    with pytest.raises(mc.DataError):
        model(None, (words, np.arange(6.0)))


# -- rows without a target ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["dense", "weights", "statespace"])
def test_a_target_that_is_nan_is_a_gap(solver):
    kernel = 0.5 * k.Linear() + 0.3
    rows, target, noise = X[:30, :1], y[:30].copy(), np.linspace(0.1, 0.2, 30)
    gaps = np.array([0, 7, 8, 29])
    target[gaps] = np.nan
    told = np.delete(np.arange(30), gaps)
    with_gaps = mc.GaussianProcessRegressor(kernel, noise, solver=solver, progress=False).fit(rows, target)
    without = mc.GaussianProcessRegressor(kernel, noise[told], solver=solver, progress=False)
    without.fit(rows[told], target[told])
    assert np.array_equal(with_gaps.gaps_, gaps)
    assert not len(without.gaps_)
    for one, other in zip(
        with_gaps.predict(rows, return_std=True), without.predict(rows, return_std=True), strict=True
    ):
        assert np.array_equal(one, other)
    assert with_gaps.log_marginal_likelihood_ == without.log_marginal_likelihood_
    assert "4 without a target left out" in str(with_gaps)
    assert "rows without a target" in str(with_gaps.report())
    with_gaps.update(X[30:33, :1], [np.nan, 1.0, np.nan], noise=[0.1, 0.2, 0.3])
    without.update(X[31:32, :1], [1.0], noise=[0.2])
    assert np.array_equal(with_gaps.predict(rows), without.predict(rows))
    assert np.array_equal(with_gaps.gaps_, [*gaps, 30, 32])
    assert with_gaps.update(X[33:34, :1], [np.nan]).gaps_[-1] == 33


def test_measurements_that_contradict_each_other_without_noise_are_told():
    rows, target = np.array([[0.0], [1.0], [1.0], [2.0]]), np.array([0.0, 1.0, 3.0, 1.0])
    kernel = 1.0 * k.Matern(1.0, nu=1.5)
    model = mc.GaussianProcessRegressor(kernel, noise=0.0, learning=None, solver="statespace")
    with pytest.warns(mc.NumericalWarning, match="rows 1 and 2 have the same inputs and different targets"):
        assert model.fit(rows, target).predict([[1.0]]) == pytest.approx(2.0, abs=1e-3)
    model.fit(rows, [0.0, 1.0, 1.0, 1.0])  # no contradiction
    mc.GaussianProcessRegressor(kernel + k.White(0.1), noise=0.0, learning=None).fit(rows, target)


def test_of_targets_that_are_missing_or_infinite_the_infinite_ones_are_named():
    with pytest.raises(mc.DataError, match=r"y has 1 infinite value, the first in row 2.*or NaN where nothing was"):
        mc.GaussianProcessRegressor().fit(np.arange(4.0)[:, None], [1.0, np.nan, np.inf, 2.0])


def test_counts_have_gaps_too():
    counts, exposure = np.arange(20.0), np.linspace(1.0, 2.0, 20)
    counts[[3, 4]] = np.nan
    kernel, told = 1.0 * k.RBF(2.0), np.flatnonzero(np.isfinite(counts))
    settings = {"likelihood": "poisson", "learning": None, "progress": False}
    one = mc.GaussianProcessRegressor(kernel, **settings).fit(X[:20], counts, exposure=exposure)
    other = mc.GaussianProcessRegressor(kernel, **settings).fit(X[:20][told], counts[told], exposure=exposure[told])
    assert np.array_equal(one.predict(X), other.predict(X))


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((np.where(np.arange(180).reshape(60, 3) == 4, np.nan, X), y), "missing"),
        ((np.where(np.arange(180).reshape(60, 3) == 4, np.inf, X), y), "inf"),
        ((X, np.full(60, np.nan)), "no finite value: all 60 are missing"),
        ((X, np.where(np.arange(60) == 4, np.inf, y)), "inf"),
        ((X, y[:-1]), "60 in all"),
        ((X.astype(str), y), "text"),
        ((X[:, 0], y), "reshape"),
        ((X[:0], y[:0]), "0 sample"),
        ((X, np.column_stack([y, y])), "one number per row"),
        ((pd.DataFrame({"a": X[:, 0], "b": [f"k{i}" for i in range(60)]}), y), "'b'"),
    ],
)
def test_bad_data_is_refused_in_words(bad, words):
    with pytest.raises(mc.DataError, match=words):
        model(data=bad)


def test_kernels_that_are_no_covariances_are_refused():
    with pytest.raises(mc.InvalidKernelError, match="positive semidefinite"):
        model(k.Sigmoid(1.0, 1.0))
    with pytest.raises(mc.InvalidKernelError, match="kernel was expected"):
        model("rbf")


def test_before_fitting_there_is_nothing_to_ask():
    from sklearn.exceptions import NotFittedError

    for call in ("predict", "relevance", "loo", "report"):
        with pytest.raises(NotFittedError, match="not fitted yet") as caught:
            getattr(mc.GaussianProcessRegressor(), call)(*([X] if call == "predict" else []))
        assert isinstance(caught.value, mc.MercerError)


def test_asking_for_both_is_asking_for_neither(learned):
    with pytest.raises(mc.ParameterError, match="cannot both be True"):
        learned.predict(X, return_std=True, return_cov=True)
    with pytest.raises(mc.DataError, match="expecting 3 features"):
        learned.predict(X[:, :2])


def test_a_fit_that_fails_leaves_what_was_there():
    fresh = mc.GaussianProcessRegressor(progress=False)
    with pytest.raises(mc.DataError):
        fresh.fit(X, y[:5])
    with pytest.raises(mc.MercerError, match="not fitted yet"):
        fresh.predict(X)
    fitted = model(k.RBF(), noise=0.1, learning=None)
    before = fitted.predict(Z)
    with pytest.raises(mc.DataError):
        fitted.fit(X[:, :2], y[:5])
    np.testing.assert_array_equal(fitted.predict(Z), before)


def test_densities_where_nothing_is_left_to_chance():
    exact = model(k.RBF(), (X[:3], y[:3]), noise=0.0, learning=None)
    density = exact.log_predictive_density(X[:3], y[:3])
    assert not np.isnan(density).any()
    assert (exact.log_predictive_density(X[:3], y[:3] + 1) < -1e6).all()


def test_residuals_with_noise_anywhere_in_the_kernel():
    for kernel in (k.RBF() * k.White(0.5) + 1.0 * k.RBF(), (k.RBF() + k.White(0.2)) ** 2, k.RBF() + k.White(0.1)):
        assert model(kernel, learning=None).numerics_["residual"] < 1e-10


def test_what_else_is_refused_in_words():
    fitted = model(k.RBF(), noise=0.1, learning=None)
    for call in (
        lambda: model(noise="a"), lambda: model(noise=[0.1, 0.2]), lambda: fitted.update(X[:3], y[:3], noise=[1, 2, 3]),
        lambda: fitted.log_marginal_likelihood("abc"), lambda: fitted.sample_y(X, -1),
        lambda: model(k.Linear()).sample_y(X, -1), lambda: model(data=(X, y * 1e155)),
    ):  # fmt: skip
        with pytest.raises(mc.MercerError):
            call()
    assert model(k.White(0.1)).decompose(X) == {}
    assert fitted.log_marginal_likelihood(np.full(1, 1000.0)) == pytest.approx(
        fitted.log_marginal_likelihood(np.full(1, 700.0))
    )


def test_copies_are_told():
    doubled = model(data=(np.r_[X, X], np.r_[y, y]))
    assert "60 rows are copies of others" in str(doubled.report())
    assert doubled.noise_ == pytest.approx(model(data=(X, y)).noise_, rel=1e-6)
    assert len(doubled.loo().mean) == 120


def test_inputs_that_noise_alone_bends_along_are_irrelevant():
    flagged = []
    for seed in range(100, 108):
        local = np.random.default_rng(seed)
        A = local.normal(size=(100, 3)) * np.array([1.0, 1e3, 1e-3])
        flagged.append(model(None, (A, np.sin(A[:, 0]) + 0.3 * local.normal(size=100))).relevance().irrelevant)
    found = np.mean(flagged, axis=0)
    assert found[0] == 0
    assert (found[1:] >= 0.75).all()  # chance gives one in twenty a slope


def test_relevance_keeps_columns_apart_that_the_kernel_puts_in_another_order():
    local = np.random.default_rng(7)
    A = local.normal(size=(80, 2))
    data = (A, np.sin(2 * A[:, 0]) + 0.1 * local.normal(size=80))  # the first matters, the second does not
    for kernel in (1.0 * k.RBF([1.0, 1.0]).on([1, 0]), 1.0 * k.RBF([1.0]).on(1) + 1.0 * k.RBF([1.0]).on(0)):
        table = model(kernel, data).relevance()
        assert not table.irrelevant[0]
        assert 0.2 < table.lengthscale[0] < 5


def test_a_function_of_pairs_is_called_once_for_each_pair():
    calls = []

    def shared(a, b):
        calls.append((a, b))
        return float(len(set(a) & set(b)))

    n = 40
    words = ["".join(np.random.default_rng(i).choice(list("abcdef"), 5)) for i in range(n)]
    table = pd.DataFrame({"s": words, "w": np.linspace(0, 3, n)})
    y = np.array([word.count("a") for word in words]) + np.sin(table["w"].to_numpy())
    kernel = 2.0 * k.Custom(shared).on("s") + k.RBF().on("w")
    model = mc.GaussianProcessRegressor(kernel, progress=False).fit(table, y)
    assert model.n_evaluations_ > 10
    assert len(calls) == n * (n + 1) // 2
    assert model.numerics_["residual"] < 1e-10
    assert model.score(table, y) > 0.6
