"""Nadaraya-Watson: the book's formulas, statsmodels at given widths, and widths that are learned."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import mercer as mc
from mercer import kernels as k
from mercer.learning.leave_one_out import ConditionalLikelihood
from mercer.models.kernel_regression import NadarayaWatson

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, size=(90, 2))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=90)
Z = rng.uniform(-2, 2, size=(7, 2))
ELL, H = np.array([0.4, 0.9]), 0.25
KERNEL = k.RBF(ELL)


def given(**settings):
    """A model at given widths."""
    return NadarayaWatson(KERNEL, H, learning=None, **settings).fit(X, y)


def learned(X=X, y=y, **settings):
    return NadarayaWatson(progress=False, **settings).fit(X, y)


def bumps(Z, X=X, ell=ELL):
    return np.exp(-0.5 * (((Z[:, None] - X) / ell) ** 2).sum(-1))


# -- at given widths -------------------------------------------------------------------------------------------------


def test_means_densities_and_intervals_are_those_of_the_book():
    model = given()
    W = bumps(Z) / bumps(Z).sum(axis=1, keepdims=True)  # PRML 6.46
    np.testing.assert_allclose(model.conditional(Z).weights[:, np.argsort(model.rows_)].sum(axis=1), 1.0)
    mean = W @ y  # PRML 6.45
    found, deviation = model.predict(Z, return_std=True)
    np.testing.assert_allclose(found, mean, rtol=1e-9)
    np.testing.assert_allclose(deviation**2, H**2 + W @ y**2 - mean**2, rtol=1e-8)  # Ex 6.18
    t = mean + 0.5 * rng.normal(size=7)
    components = norm.pdf(t[:, None], y, H)
    np.testing.assert_allclose(model.predict_density(Z, t), (W * components).sum(axis=1), rtol=1e-9)  # PRML 6.48
    np.testing.assert_allclose(model.log_predictive_density(Z, t), np.log((W * components).sum(axis=1)), rtol=1e-8)
    cdf = (W * norm.cdf(t[:, None], y, H)).sum(axis=1)
    np.testing.assert_allclose(model.predict_cdf(Z, t), cdf, rtol=1e-9)
    np.testing.assert_allclose(model.predict_quantile(Z, 0.3), model.predict_quantile(Z, [0.1, 0.3])[:, 1])
    x = model.predict_quantile(Z, [0.1, 0.3])
    np.testing.assert_allclose(model.predict_cdf(Z, x), np.broadcast_to([0.1, 0.3], (7, 2)), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # theirs
def test_statsmodels_has_the_same_means_densities_and_distributions():
    from statsmodels.nonparametric.kernel_density import KDEMultivariateConditional
    from statsmodels.nonparametric.kernel_regression import KernelReg

    model = given()
    theirs = KernelReg(y, X, "cc", reg_type="lc", bw=ELL).fit(Z)[0]
    np.testing.assert_allclose(model.predict(Z), theirs, rtol=1e-8)
    dens = KDEMultivariateConditional([y], [X[:, 0], X[:, 1]], "c", "cc", bw=[H, *ELL])
    t = rng.normal(size=7)
    np.testing.assert_allclose(model.predict_density(Z, t), dens.pdf(t, Z), rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(model.predict_cdf(Z, t), dens.cdf(t, Z), rtol=1e-8, atol=1e-14)


def test_shapes():
    model = given()
    assert model.predict_density(Z, 0.5).shape == (7,)
    assert model.predict_density(Z, np.zeros((1, 3))).shape == (7, 3)
    assert model.predict_cdf(Z, np.zeros((7, 3))).shape == (7, 3)
    assert model.sample(Z, 5).shape == (7, 5)
    np.testing.assert_array_equal(model.sample(Z, 5), model.sample(Z, 5))
    with pytest.raises(mc.MercerError, match=r"as in t\[None\]"):
        model.predict_density(Z, np.zeros(3))
    two = NadarayaWatson(KERNEL, [H, 2 * H], learning=None).fit(X, np.column_stack([y, -y]))
    assert two.predict(Z).shape == (7, 2)
    assert two.predict_density(Z, np.zeros((7, 2))).shape == (7,)
    assert two.predict_density(Z, np.zeros((1, 3, 2))).shape == (7, 3)
    assert two.predict_cdf(Z, np.zeros((7, 2))).shape == (7, 2)
    assert two.predict_quantile(Z, [0.1, 0.5, 0.9]).shape == (7, 3, 2)
    assert two.sample(Z, 5).shape == (7, 5, 2)
    np.testing.assert_allclose(two.predict(Z)[:, 0], model.predict(Z))
    np.testing.assert_allclose(two.predict_quantile(Z, 0.9)[:, 0], model.predict_quantile(Z, 0.9))


def test_leaving_one_out_is_fitting_without_it():
    model = given()
    left = model.loo()
    for i in (0, 17, 89):
        rest = np.arange(90) != i
        other = NadarayaWatson(KERNEL, H, learning=None).fit(X[rest], y[rest])
        mean, deviation = other.predict(X[i : i + 1], return_std=True)
        assert left.mean[i] == pytest.approx(mean[0], rel=1e-9)
        assert left.variance[i] == pytest.approx(deviation[0] ** 2, rel=1e-9)
        assert left.log_score[i] == pytest.approx(other.log_predictive_density(X[i : i + 1], y[i : i + 1])[0], rel=1e-9)


def test_pieces_do_not_matter(monkeypatch):
    many = np.random.default_rng(0).normal(size=(1100, 2))
    whole = given().predict(many, return_std=True), given().conditional(many).weights
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)  # 504 rows at a time
    np.testing.assert_allclose(given().predict(many, return_std=True), whole[0])
    np.testing.assert_allclose(given().conditional(many).weights, whole[1])
    t = np.linspace(-1, 1, 7)
    one_by_one = [given().predict_density(z[None], s)[0] for z, s in zip(Z, t, strict=True)]
    np.testing.assert_allclose(given().predict_density(Z, t), one_by_one)


def test_far_from_all_data():
    model = given()
    with pytest.warns(mc.NumericalWarning, match="2 of 3 rows"):
        mean, deviation = model.predict([[1e6, 0.0], [0.0, 0.0], [0.0, -1e8]], return_std=True)
    np.testing.assert_allclose(mean[[0, 2]], y.mean())
    np.testing.assert_allclose(deviation[[0, 2]] ** 2, y.var() + H**2)
    assert abs(mean[1] - y.mean()) > 0.01


# -- learning --------------------------------------------------------------------------------------------------------


def test_the_optimum_is_one():
    model = learned()
    best, widths = model.optima_[0], model.kernel_.lengthscale
    assert model.loo().log_score.sum() == pytest.approx(best.value, abs=1e-6)
    assert best.value >= max(found.value for found in model.optima_)
    for factor in (0.8, 1.25):
        for ell, h in ((widths * [factor, 1], 1), (widths * [1, factor], 1), (widths, factor)):
            other = NadarayaWatson(k.RBF(ell), h * model.target_width_, learning=None).fit(X, y)
            assert other.loo().log_score.sum() < best.value
    assert model.n_evaluations_ > 3
    assert {step.rows for step in model.history_} == {90}
    assert "target width" in str(model)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_least_squares_agrees_with_statsmodels():
    from statsmodels.nonparametric.kernel_regression import KernelReg

    model = learned(criterion="least_squares")
    rows = X[model.rows_.argsort()], y[model.rows_.argsort()]
    theirs = KernelReg(y, X, "cc", reg_type="lc", bw=model.kernel_.lengthscale)
    error = np.ravel(theirs.cv_loo(model.kernel_.lengthscale, theirs.est["lc"]))[0]
    assert np.mean((y - model.loo().mean) ** 2) == pytest.approx(error, rel=1e-8)
    for factor in (0.7, 1.4):  # nothing near is better
        for e in ([factor, 1], [1, factor]):
            assert theirs.cv_loo(model.kernel_.lengthscale * e, theirs.est["lc"]) > error
    # The target's width follows by the likelihood.
    likelihoods = [
        NadarayaWatson(model.kernel_, f * model.target_width_, learning=None).fit(*rows).loo().log_score.sum()
        for f in (0.9, 1.0, 1.1)
    ]
    assert likelihoods[1] == max(likelihoods)


def test_scales_order_and_weights_do_not_matter():
    model = learned()
    scaled = learned(X * [1e6, 1e-6], 1e4 * y + 1e5)
    np.testing.assert_allclose(scaled.predict(Z * [1e6, 1e-6]), 1e4 * model.predict(Z) + 1e5, rtol=1e-6)
    order = rng.permutation(90)
    np.testing.assert_array_equal(learned(X[order], y[order]).predict(Z), model.predict(Z))
    w = rng.integers(0, 3, size=90)
    weighted = NadarayaWatson(progress=False).fit(X, y, sample_weight=w)
    repeated = learned(np.repeat(X, w, axis=0), np.repeat(y, w))
    np.testing.assert_allclose(weighted.predict(Z, return_std=True), repeated.predict(Z, return_std=True), rtol=1e-12)
    assert len(weighted.loo().mean) == np.count_nonzero(w)


def test_an_input_that_is_not_there_and_several_targets():
    X3 = np.column_stack([X, rng.normal(size=90)])
    Y = np.column_stack([y, 100 * np.cos(X[:, 1]) + 5 * rng.normal(size=90), np.full(90, 7.0)])
    model = learned(X3, Y)
    assert model.kernel_.lengthscale[2] > 5 * model.kernel_.lengthscale[0]
    assert model.score(X3, Y) > 0.8
    assert (model.predict(X3)[:, 2] == 7.0).all()
    assert 20 < model.target_width_[1] / model.target_width_[0] < 500


def test_rounded_targets_do_not_make_the_width_vanish():
    steps = np.round(2 * y) / 2
    model = learned(X, steps)
    assert model.target_width_ >= 0.99 * 0.5 / np.sqrt(12)
    doubled = learned(np.vstack([X, X]), np.concatenate([y, y]))  # nor do rows that come twice
    np.testing.assert_allclose(doubled.predict(Z), learned().predict(Z), rtol=1e-6)


def test_wild_rows_do_not_hide_the_others():
    away, wild = X.copy(), y.copy()
    away[3] = 1e6
    wild[4] = 1e6
    rest = np.delete(np.arange(90), [3, 4])
    assert learned(away, y).score(X[rest], y[rest]) > 0.8
    assert np.median(np.abs(learned(X, wild).predict(X) - y)[rest]) < 0.1


def test_many_rows_are_learned_from_a_part():
    n = 900
    X1 = np.random.default_rng(3).uniform(0, 6, size=(n, 2))
    y1 = np.sin(X1[:, 0]) + 0.1 * np.random.default_rng(4).normal(size=n)
    model = learned(X1, y1, learning_rows=300)
    assert {step.rows for step in model.history_} == {300}
    whole = learned(X1, y1)
    assert {step.rows for step in whole.history_} == {225, 900}
    assert model.kernel_.lengthscale[0] == pytest.approx(whole.kernel_.lengthscale[0], rel=0.3)
    assert whole.score(X1, y1) > 0.97


# -- any kernel ------------------------------------------------------------------------------------------------------


def test_an_amplitude_cancels_and_stays():
    a = learned(kernel=k.RBF())
    b = learned(kernel=5.0 * k.RBF())
    assert b.kernel_.parameters["variance"] == 5.0
    assert "variance" not in b.kernel_.fixed
    np.testing.assert_allclose(a.predict(Z), b.predict(Z), rtol=1e-6)


def test_kernels_that_are_negative_are_refused():
    for learning in ("loo", None):
        with pytest.raises(mc.InvalidKernelError, match=r"Linear\(\) has -"):
            NadarayaWatson(k.Linear(), 1.0, learning=learning).fit(X, y).predict(Z)
    model = learned(kernel=k.Linear() ** 2)
    K = (Z @ X.T) ** 2
    np.testing.assert_allclose(model.predict(Z), K @ y / K.sum(axis=1), rtol=1e-8)


def test_words_frames_and_matrices():
    words = ["tea", "coat", "sun", "sea"]
    shared = k.Custom(lambda a, b: float(len(set(a) & set(b))))
    model = learned(words, [1.0, 2.0, 3.0, 4.0], kernel=shared)
    np.testing.assert_allclose(model.predict(["eat"]), [(3 * 1 + 2 * 2 + 2 * 4) / 7], rtol=1e-9)
    with pytest.warns(mc.NumericalWarning):
        np.testing.assert_allclose(model.predict(["why"]), [2.5])
    K = bumps(X)
    table = NadarayaWatson(k.Precomputed(K), H).fit(np.arange(80)[:, None], y[:80])
    np.testing.assert_allclose(table.predict([[85]]), K[85, :80] @ y[:80] / K[85, :80].sum(), rtol=1e-9)
    frame = pd.DataFrame(X, columns=["a", "b"])
    named = NadarayaWatson(KERNEL, H, learning=None).fit(frame, y)
    np.testing.assert_allclose(named.predict(pd.DataFrame(Z, columns=["a", "b"])), given().predict(Z))


def test_nothing_to_learn_from():
    one = learned([[1.0, 2.0]], [3.0])
    assert one.predict([[1.0, 2.0]])[0] == 3.0
    flat = learned(X, np.full(90, 7.0))
    mean, deviation = flat.predict(Z, return_std=True)
    np.testing.assert_allclose(mean, 7.0)
    assert (deviation < 1e-5).all()
    same = learned(np.ones((5, 2)), [1.0, 2.0, 3.0, 4.0, 5.0])
    np.testing.assert_allclose(same.predict([[1.0, 1.0]]), 3.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_width": -1.0}, "target_width must be a positive"),
        ({"target_width": [1.0, 2.0]}, "target_width must be a positive"),
        ({"criterion": "aic"}, "criterion must be one of"),
        ({"learning": "mle"}, "learning must be one of"),
        ({"learning_rows": 1}, "learning_rows must be an integer"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(mc.ParameterError, match=message):
        learned(**settings)


def test_interrupting_keeps_the_best(monkeypatch):
    calls = 0
    measure = ConditionalLikelihood._measure

    def interrupted(self, *args):
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        return measure(self, *args)

    monkeypatch.setattr(ConditionalLikelihood, "_measure", interrupted)
    with pytest.warns(mc.InterruptedFitWarning, match="interrupted after") as told:
        model = learned()
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isfinite(model.predict(Z)).all()
