"""Gaussian process classification: scikit-learn's figures, explicit formulas, laws, labels of all kinds."""

import dataclasses
import functools
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from sklearn.calibration import CalibratedClassifierCV
from sklearn.gaussian_process import GaussianProcessClassifier as SklearnClassifier
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import mercer as mc
from mercer import kernels as k
from mercer import priors
from mercer.inference.sites import Covariance
from mercer.learning import classification
from mercer.solvers import base as solvers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
F = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1]
TWO = np.where(RNG.normal(size=40) * 0.3 + F > 0, "yes", "no")
THREE = np.array(["low", "mid", "top"])[np.digitize(F + 0.2 * RNG.normal(size=40), [-0.4, 0.5])]
Z = RNG.normal(size=(7, 2)) * 1.5
KERNEL = 2.0 * k.RBF(1.2)
WAYS = [
    {"inference": "laplace"},
    {"inference": "laplace", "link": "probit"},
    {"inference": "ep"},
    {"inference": "ep", "link": "probit"},
    {"inference": "variational"},
    {"inference": "variational", "bound": "local"},
    {"inference": "mcmc"},
]
IDS = ["-".join(way.values()) for way in WAYS]


def fitted(y=TWO, kernel=KERNEL, **settings):
    settings = {"learning": None, "progress": False} | settings
    return mc.GaussianProcessClassifier(kernel, **settings).fit(X, y)


# -- the formulas ----------------------------------------------------------------------------------------------------


def test_laplace_is_that_of_scikit_learn():
    """Evidence, gradient and latent mean; its probabilities are an approximation to 1e-3 of the integral done here."""
    peer = SklearnClassifier(2.0 * sklearn_kernels.RBF(1.2), optimizer=None).fit(X, TWO)
    model = fitted(inference="laplace")
    value, slope = model.log_marginal_likelihood(eval_gradient=True)
    expected, expected_slope = peer.base_estimator_.log_marginal_likelihood(
        peer.kernel_.theta, eval_gradient=True, clone_kernel=False
    )
    assert model.log_marginal_likelihood_ == pytest.approx(expected, abs=1e-8)
    assert value == pytest.approx(expected, abs=1e-8)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(Z), peer.predict_proba(Z), atol=2e-3)
    assert list(model.predict(Z)) == list(peer.predict(Z))


def gram_of(kernel):
    return kernel(X)


@pytest.mark.parametrize("way", WAYS, ids=IDS)
def test_probabilities_are_the_integral_of_the_sigmoid(way):
    model = fitted(**way)
    P = model.predict_proba(Z)
    assert (P >= 0).all()
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(Z), np.log(P), atol=1e-12)
    assert list(model.predict(Z)) == list(np.where(P[:, 1] > 0.5, "yes", "no"))
    assert (np.sign(model.decision_function(Z)) == np.sign(P[:, 1] - 0.5)).all()
    if way["inference"] == "mcmc":
        return
    sigmoid = norm.cdf if way.get("link") == "probit" else expit
    for m, v, p in zip(*model.predict_latent(Z), P[:, 1], strict=True):
        wide = 10 * np.sqrt(v)
        integral = quad(lambda f, m=m, v=v: sigmoid(f) * norm.pdf(f, m, np.sqrt(v)), m - wide, m + wide, epsabs=1e-12)[
            0
        ]
        assert p == pytest.approx(integral, abs=1e-9)
    closed = model.predict_proba(Z, closed_form=True)[:, 1]
    np.testing.assert_allclose(closed, P[:, 1], atol=1e-12 if way.get("link") == "probit" else 0.02)


def test_far_away_and_nearly_certain():
    """Small probabilities keep their digits, and none leaves [0, 1]."""
    x = np.linspace(-3, 3, 60)[:, None]
    model = mc.GaussianProcessClassifier(1e4 * k.RBF(2.0), "ep", learning=None).fit(x, x[:, 0] > 0)
    P = model.predict_proba([[-1e6], [-3.0], [3.0], [1e6]])
    np.testing.assert_allclose(P[[0, 3]], 0.5, atol=1e-9)
    assert 0 < P[1, 1] < 0.03
    assert P[1, 1] == pytest.approx(P[2, 0], rel=1e-6)
    wide = mc.GaussianProcessClassifier(100.0 * k.Linear(), learning=None).fit(x, x[:, 0] > 0)
    P = wide.predict_proba([[1e5], [-1e5]])
    assert ((P >= 0) & (P <= 1)).all()


USPS = Path(os.environ.get("MERCER_DATA", Path(__file__).parents[3] / "shared" / "data")) / "classification"


@pytest.mark.skipif(not USPS.exists(), reason="the handwritten digits are not here")
@pytest.mark.parametrize(
    ("inference", "length", "deviation", "evidence", "errors", "bits"),
    [("ep", 3.0, 0.0, -222.36, 35, None), ("laplace", 2.85, 2.35, -98.96, 22, 0.838)],
)
def test_threes_and_fives_have_the_published_figures(inference, length, deviation, evidence, errors, bits):
    data = np.load(USPS / "usps_resampled.npz")
    digits = [(data[f"X{part}"], data[f"y{part}"]) for part in ("train", "test")]
    (A, a), (B, b) = ((inputs[np.isin(y, [3, 5])], y[np.isin(y, [3, 5])]) for inputs, y in digits)
    kernel = np.exp(2 * deviation) * k.RBF(np.exp(length))
    model = mc.GaussianProcessClassifier(kernel, inference, "probit", learning=None).fit(A, a)
    assert model.log_marginal_likelihood_ == pytest.approx(evidence, abs=0.005)
    assert np.sum(model.predict(B) != b) == errors
    if bits is not None:
        assert 1 + np.mean(model.log_predictive_density(B, b)) / np.log(2) == pytest.approx(bits, abs=0.0005)


# -- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=IDS)
def test_flipped_labels_mirror_probabilities(way):
    a, b = fitted(TWO == "yes", **way), fitted(TWO == "no", **way)
    tolerance = 0.05 if way["inference"] == "mcmc" else 1e-7
    np.testing.assert_allclose(a.predict_proba(Z), b.predict_proba(Z)[:, ::-1], atol=tolerance)


def test_all_agree_on_easy_data():
    """Weak priors make the posterior nearly Gaussian; then every inference has to find it."""
    reference = fitted(kernel=0.5 * k.RBF(1.2), inference="mcmc", n_samples=4000).predict_proba(Z)
    for way in WAYS[:-1]:
        if way.get("link") != "probit":
            np.testing.assert_allclose(fitted(kernel=0.5 * k.RBF(1.2), **way).predict_proba(Z), reference, atol=0.015)


def test_bounds_are_below_and_ep_is_close():
    """On two rows the evidence is a double integral."""
    x, y = np.array([[0.0], [0.7]]), np.array([0, 1])
    t, w = np.polynomial.hermite_e.hermegauss(80)
    L = np.linalg.cholesky((4.0 * k.RBF())(x))
    f = L @ np.stack(np.meshgrid(t, t)).reshape(2, -1)
    exact = np.log(np.sum(np.outer(w, w).ravel() / (2 * np.pi) * expit(-f[0]) * expit(f[1])))
    evidence = {
        way["inference"] + way.get("bound", ""): mc.GaussianProcessClassifier(4.0 * k.RBF(), learning=None, **way)
        .fit(x, y).log_marginal_likelihood_
        for way in [{"inference": "laplace"}, {"inference": "ep"}, {"inference": "variational"},
                    {"inference": "variational", "bound": "local"}]
    }  # fmt: skip
    assert evidence["variationallocal"] < evidence["variational"] < exact
    assert abs(evidence["ep"] - exact) < 0.02
    assert abs(evidence["laplace"] - exact) < 0.2


def test_probabilities_do_not_depend_on_units_or_order():
    """The default kernel sees scaled inputs; and rows in another order are the same data."""
    model = mc.GaussianProcessClassifier(progress=False).fit(X, TWO)
    units = mc.GaussianProcessClassifier(progress=False).fit(X * [1e6, 1e-5] + [3.0, -1e3], TWO)
    np.testing.assert_allclose(units.predict_proba(Z * [1e6, 1e-5] + [3.0, -1e3]), model.predict_proba(Z), atol=1e-3)
    backwards = fitted().predict_proba(Z)
    other = mc.GaussianProcessClassifier(KERNEL, learning=None).fit(X[::-1], TWO[::-1])
    np.testing.assert_allclose(other.predict_proba(Z), backwards, atol=1e-9)


# -- several classes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inference", ["laplace", "variational", "mcmc"])
def test_several_classes_have_one_joint_model(inference):
    model = fitted(THREE, inference=inference)
    P = model.predict_proba(Z)
    assert P.shape == (7, 3)
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-12)
    mean, variance = model.predict_latent(Z)
    assert mean.shape == variance.shape == (7, 3)
    assert (variance > 0).all()
    assert np.mean(model.predict(X) == THREE) > 0.75
    if inference != "mcmc":
        return
    for other in ("laplace", "variational"):
        np.testing.assert_allclose(fitted(THREE, inference=other).predict_proba(Z), P, atol=0.08)


def test_two_classes_by_softmax_are_those_by_the_sigmoid():
    """f_2 - f_1 of two functions has twice the covariance. A third class with one row far off hardly matters."""
    binary = fitted(kernel=4.0 * k.RBF(1.2))
    far = np.vstack([X, [[1e3, 1e3]]])
    joint = mc.GaussianProcessClassifier(2.0 * k.RBF(1.2), learning=None).fit(far, np.append(TWO, "other"))
    P = joint.predict_proba(Z)[:, [0, 2]]
    np.testing.assert_allclose(P / P.sum(axis=1, keepdims=True), binary.predict_proba(Z), atol=0.06)


def test_a_kernel_for_each_class():
    kernels = [k.RBF(1.2), 2.0 * k.RBF(0.7), k.Linear() + 0.5]
    model = fitted(THREE, kernel=kernels, inference="laplace", learning="mle")
    assert len(model.kernels_) == 3
    assert not hasattr(model, "kernel_")
    value, slope = model.log_marginal_likelihood(eval_gradient=True)
    for i in range(len(slope)):
        step = 1e-4 * np.eye(len(slope))[i]
        up, down = (model.log_marginal_likelihood(model.theta_ + sign * step) for sign in (1, -1))
        assert slope[i] == pytest.approx((up - down) / 2e-4, abs=1e-4 * max(1, abs(value)))
    assert len(fitted(THREE, kernel=kernels, learning="mle").kernels_) == 3
    same = fitted(THREE, kernel=[KERNEL] * 3)
    np.testing.assert_allclose(same.predict_proba(Z), fitted(THREE).predict_proba(Z), atol=1e-8)
    assert len(model.relevance()) == 2
    with pytest.raises(mc.ParameterError, match="one kernel, or a list of 3; got 2"):
        fitted(THREE, kernel=kernels[:2])
    assert "3 classes" in str(model.report())


# -- left out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [w for w in WAYS if w.get("bound") != "local"], ids=lambda w: w["inference"])
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_left_out_rows_are_predicted_as_by_a_model_without_them(way, y):
    if len(set(y)) == 3 and (way["inference"] == "ep" or "link" in way):
        pytest.skip("for two classes")
    found = fitted(y, **way).loo()
    settings = {"learning": None, "progress": False} | way
    for i in range(0, 40, 9):
        rest = np.arange(40) != i
        without = mc.GaussianProcessClassifier(KERNEL, **settings).fit(X[rest], y[rest])
        p = without.predict_proba(X[[i]])[0]
        np.testing.assert_allclose(found.probability[i], p, atol=0.04)
        right = np.flatnonzero(without.classes_ == y[i])[0]
        assert found.log_score[i] == pytest.approx(np.log(found.probability[i, right]))


def test_cavities_of_several_classes_are_those_of_explicit_matrices():
    model = fitted(THREE)
    K, C, n = gram_of(KERNEL), 3, 40
    s = (model.posterior_.s**2).T
    W = np.zeros((n * C, n * C))
    for i in range(n):
        W[i * C : (i + 1) * C, i * C : (i + 1) * C] = np.diag(s[i]) - np.outer(s[i], s[i]) / s[i].sum()
    prior = np.kron(K, np.eye(C))
    nu = W @ model.posterior_.moments(X)[0].ravel() + model.posterior_.a.T.ravel()
    mean, covariance = model.posterior_.cavity([K])
    for i in (0, 17):
        mine = slice(i * C, (i + 1) * C)
        others = W.copy()
        others[mine, mine] = 0
        Sigma = np.linalg.solve(np.eye(n * C) + prior @ others, prior)
        rest = nu.copy()
        rest[mine] = 0
        np.testing.assert_allclose(covariance[i], Sigma[mine, mine], atol=1e-8)
        np.testing.assert_allclose(mean[i], (Sigma @ rest)[mine], atol=1e-8)


# -- learning --------------------------------------------------------------------------------------------------------


def test_learning_climbs_and_keeps_what_it_found():
    start = 1.0 * k.RBF()
    model = mc.GaussianProcessClassifier(start, progress=False).fit(X, TWO)
    fixed = mc.GaussianProcessClassifier(start, learning=None).fit(X, TWO)
    assert model.log_marginal_likelihood_ > fixed.log_marginal_likelihood_ + 0.1
    assert fixed.kernel_ == start
    slope = model.log_marginal_likelihood(eval_gradient=True)[1]
    assert np.abs(slope).max() < 0.02
    assert [step.value for step in model.history_][-1] == pytest.approx(model.log_marginal_likelihood_, abs=1e-3)
    assert model.optima_[0].value == pytest.approx(model.log_marginal_likelihood_, abs=1e-6)


def blobs(n, classes, d, seed=0):
    """Two overlapping Gaussian clusters a class."""
    rng = np.random.default_rng(seed)
    centres, spreads = rng.normal(size=(2 * classes, d)), 0.25 * rng.normal(size=(2 * classes, d, d))
    cluster = rng.integers(0, 2 * classes, n)
    return centres[cluster] + np.einsum("nij,nj->ni", spreads[cluster], rng.normal(size=(n, d))), cluster // 2


def log_loss(model, X, y):
    return -model.log_predictive_density(X, y).mean()


def vowels(per_speaker, seed=0):
    """Like the vowels of Deterding (1989): 11 of them by 15 speakers, in ten numbers, the later ones mostly noise.

    A speaker shifts all vowels alike, and each of them a little more, by his own amount.
    """
    rng = np.random.default_rng(seed)
    scale = 0.75 ** np.arange(10)  # like log areas of the vocal tract: what tells vowels apart is in the first few
    speaker, vowel = np.repeat(np.indices((15, 11)).reshape(2, -1), per_speaker, axis=1)
    centres, voices = 1.8 * scale * rng.normal(size=(11, 10)), 0.7 * scale * rng.normal(size=(15, 10))
    own = 0.4 * scale * rng.normal(size=(15, 11, 10))
    rows = centres[vowel] + voices[speaker] + own[speaker, vowel] + 0.35 * rng.normal(size=(len(vowel), 10))
    order = rng.permutation(len(vowel))
    return rows[order], vowel[order]


def test_eleven_vowels_are_told_apart_as_by_a_tuned_machine():
    """Probabilities and decisions as they come, beside a support vector machine with C and gamma by inner folds."""
    rows, classes = vowels(6)
    train, test = slice(0, 220), slice(220, None)
    machine = CalibratedClassifierCV(make_pipeline(StandardScaler(), SVC()), method="sigmoid", cv=5, ensemble=False)
    grid = {"estimator__svc__C": [1.0, 10.0, 100.0], "estimator__svc__gamma": [0.02, 0.05, 0.1, 0.3]}
    machine = GridSearchCV(machine, grid, scoring="neg_log_loss", cv=3).fit(rows[train], classes[train])
    model = mc.GaussianProcessClassifier(progress=False).fit(rows[train], classes[train])
    assert model.inference_ == "variational"
    assert model.numerics_["converged"]
    P = machine.predict_proba(rows[test])
    assert log_loss(model, rows[test], classes[test]) < -np.log(P[np.arange(len(P)), classes[test]]).mean()
    more = (model.predict(rows[test]) != classes[test]) * 1.0 - (P.argmax(axis=1) != classes[test])  # mistakes
    assert more.mean() < 2 * more.std() / np.sqrt(len(more))


def test_variances_of_many_classes_are_multiplied_to_predict_held_out_labels():
    """Evidence and bound ask for variances several times too small; held out labels do not."""
    rows, classes = blobs(700, 5, 4)
    train, test = slice(0, 150), slice(150, None)
    start = 1.0 * k.RBF(1.0)
    model = mc.GaussianProcessClassifier(start, progress=False).fit(rows[train], classes[train])
    assert model.inference_ == "variational"
    optimum, learned = model.optima_[0].parameters, model.kernel_.parameters
    assert learned["lengthscale"] == pytest.approx(optimum["lengthscale"])
    power = np.log(learned["variance"] / optimum["variance"]) / np.log(classification.VARIANCE_STEP)
    assert power == pytest.approx(round(power), abs=1e-6)
    losses = {}
    for factor in (1 / 27, 1 / 9, 1 / 3, 3.0, 9.0, 27.0):
        other = mc.GaussianProcessClassifier(model.kernel_ * factor, learning=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mc.NumericalWarning)  # of variances where inference is slow
            losses[factor] = log_loss(other.fit(rows[train], classes[train]), rows[test], classes[test])
    mine = log_loss(model, rows[test], classes[test])
    assert mine < 1.05 * min(losses.values())
    assert losses[1 / 27] > 1.1 * mine  # it matters
    sure = start.with_priors(variance=priors.LogNormal(np.log(0.5), 0.01))
    heeded = mc.GaussianProcessClassifier(sure, learning="map", progress=False).fit(rows[train], classes[train])
    assert heeded.kernel_.parameters["variance"] == pytest.approx(0.5, rel=0.05)


def test_many_rows_of_many_classes_are_learned_from_some(monkeypatch):
    monkeypatch.setattr(classification, "MAX_DECISION_ROWS", 30)
    model = fitted(THREE, learning="mle")
    assert model.history_[-1].rows == int(30 * (2 / 3) ** (1 / 3))
    assert len(model.codes_) == 40
    same = fitted(THREE, kernel=model.kernel_)
    assert model.log_marginal_likelihood_ == pytest.approx(same.log_marginal_likelihood_, abs=1e-3)
    np.testing.assert_allclose(model.predict_proba(Z), same.predict_proba(Z), atol=1e-3)


def test_the_default_inference_is_the_one_with_the_best_probabilities():
    """Two classes that are easily told apart: by Laplace's method, nothing is ever sure."""
    rng = np.random.default_rng(0)
    apart = np.repeat([0, 1], 60)
    flowers = rng.normal(size=(120, 4)) * [0.35, 0.35, 0.3, 0.15] + np.outer(apart, [0.9, -0.6, 2.8, 1.1])
    half = rng.permutation(120) < 60
    auto, cautious = (
        mc.GaussianProcessClassifier(progress=False, **settings).fit(flowers[half], apart[half])
        for settings in ({}, {"inference": "laplace"})
    )
    assert auto.get_params()["inference"] == "auto"
    assert (auto.inference_, cautious.inference_) == ("ep", "laplace")
    assert log_loss(auto, flowers[~half], apart[~half]) < 0.03
    assert log_loss(cautious, flowers[~half], apart[~half]) > 3 * log_loss(auto, flowers[~half], apart[~half])
    assert "inference: ep" in str(auto)
    assert "ep, logistic" in str(auto.report())


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_laplace_where_rows_are_many_is_announced(monkeypatch, y):
    monkeypatch.setattr("mercer.inference.methods.MAX_AUTO_WORK", 2 * 39**3)
    with pytest.warns(mc.NumericalWarning, match="40 rows of . classes are many: inference='auto' uses Laplace"):
        model = fitted(y)
    assert model.inference_ == "laplace"
    assert "inference: laplace" in str(model)
    np.testing.assert_allclose(model.predict_proba(Z), fitted(y, inference="laplace").predict_proba(Z))


def test_laplace_of_many_classes_stays_where_it_holds():
    """Classes without overlap: Laplace's evidence would have amplitudes grow for ever, and predict ever worse."""
    apart = np.digitize(X[:, 0], [-0.5, 0.5])
    make = lambda *setting: mc.GaussianProcessClassifier(*setting, progress=False).fit(X, apart)
    held = make(1.0 * k.RBF(), "laplace")
    variance = held.kernel_.parameters["variance"]
    assert min(abs(variance / ceiling - 1) for ceiling in classification.VARIANCE_LIMITS) < 1e-9
    assert held.log_marginal_likelihood(held.theta_ + [1.0, 0.0]) > held.log_marginal_likelihood_
    # Labels left out choose the ceiling: the neighbouring ones, learned anew, predict them worse.
    for ceiling in (variance * 3, variance / 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(classification, "VARIANCE_LIMITS", (ceiling,))
            assert make(1.0 * k.RBF(), "laplace").loo().log_score.sum() < held.loo().log_score.sum()
    standard = make(None, "laplace").kernel_
    assert standard.theta0 <= classification.VARIANCE_LIMITS[0] * (1 + 1e-9)
    free = make(1.0 * k.RBF(), "variational")
    assert free.kernel_.parameters["variance"] > 1.1 * variance


def test_map_heeds_priors_and_mle_does_not():
    kernel = 2.0 * k.RBF(1.0).with_priors(lengthscale=priors.LogNormal(np.log(7.0), 0.01))
    with pytest.warns(mc.ModelWarning, match="learning='map'"):
        free = mc.GaussianProcessClassifier(kernel, learning="mle", progress=False).fit(X, TWO)
    held = mc.GaussianProcessClassifier(kernel, learning="map", progress=False).fit(X, TWO)
    assert held.kernel_.parameters["lengthscale"] == pytest.approx(7.0, rel=0.1)
    assert free.kernel_.parameters["lengthscale"] < 5
    assert any("learning='map'" in text for text in free.report().suggestions)


def test_the_default_kernel_has_a_lengthscale_for_each_input_only_where_they_pay():
    rng = np.random.default_rng(1)
    wide = rng.normal(size=(150, 6))
    one_matters = np.abs(wide[:, 2]) > 0.7
    each = mc.GaussianProcessClassifier(progress=False).fit(wide, one_matters)
    assert np.shape(each.kernel_.theta1) == (6,)
    assert np.argmax(each.relevance().effect) == 2
    noise = mc.GaussianProcessClassifier(progress=False).fit(wide, rng.random(150) < 0.5)
    assert np.shape(noise.kernel_.theta1) == ()
    np.testing.assert_allclose(noise.predict_proba(rng.normal(size=(5, 6))), 0.5, atol=0.25)


@pytest.mark.filterwarnings("ignore:mcmc inference did not mix")  # with so few samples
def test_parameters_can_be_sampled_too():
    model = fitted(inference="mcmc", learning="sample", n_samples=120)
    told = model.numerics_
    assert told["draws"] == 120
    assert told["effective_draws"] > 20
    assert told["effective_parameters"] > 10
    assert model.posterior_.theta.shape == (120, 2)
    assert model.theta_ == pytest.approx(model.posterior_.theta.mean(axis=0))
    assert np.mean(model.predict(X) == TWO) > 0.8
    assert model.loo().log_score.mean() > np.log(0.5)
    assert len(model.relevance()) == 2
    with pytest.raises(mc.ParameterError, match="learning='sample' needs inference='mcmc'"):
        fitted(learning="sample")


def test_an_interrupted_fit_keeps_the_best(monkeypatch):
    from mercer.inference import laplace as module

    calls = 0

    def interrupting(K, t, likelihood, start=None, gradient=True):
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return module.laplace(K, t, likelihood, start, gradient)

    monkeypatch.setattr("mercer.inference.methods.laplace", interrupting)
    with pytest.warns(mc.InterruptedFitWarning) as told:
        model = mc.GaussianProcessClassifier(KERNEL, "laplace", progress=False).fit(X, TWO)
    assert told[0].filename == __file__
    assert model.predict_proba(Z).shape == (7, 2)
    assert model.optima_[0].start == "interrupted"


@pytest.mark.parametrize("inference", ["auto", "laplace", "variational"])
def test_rows_that_are_all_the_same_tell_no_classes_apart(inference):
    model = mc.GaussianProcessClassifier(inference=inference, progress=False).fit(np.ones((4, 2)), [0, 1, 2, 2])
    P = model.predict_proba(np.ones((1, 2)))[0]
    assert P[0] == pytest.approx(P[1], abs=1e-3)
    assert P[2] > P[0] > 0.1


# -- labels and inputs of all kinds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [np.array([False, True]), np.array([0, 1]), np.array([-1, 1]), np.array([3.0, 7.0]), np.array(["a", "bb"], object)],
    ids=["bool", "int", "signs", "float", "object"],
)
def test_labels_of_any_kind(labels):
    model = fitted(labels[(TWO == "yes").astype(int)])
    assert list(model.classes_) == list(labels)
    assert set(model.predict(Z)) <= set(labels)
    np.testing.assert_allclose(model.predict_proba(Z), fitted().predict_proba(Z), atol=1e-12)
    assert model.log_predictive_density(Z[:2], labels[[0, 1]]) == pytest.approx(
        model.predict_log_proba(Z[:2])[[0, 1], [0, 1]]
    )
    with pytest.raises(mc.DataError, match="not one of the classes"):
        model.log_predictive_density(Z[:1], ["other"] if labels.dtype == object else [99])


def test_what_is_refused_says_why():
    with pytest.raises(mc.DataError, match="class"):
        fitted(np.full(40, "yes"))
    with pytest.raises(mc.ParameterError, match="sample_weight is not supported"):
        mc.GaussianProcessClassifier().fit(X, TWO, sample_weight=np.ones(40))
    with pytest.raises(mc.ParameterError, match="expectation propagation is for two"):
        fitted(THREE, inference="ep")
    with pytest.raises(mc.ParameterError, match="link must be 'logistic'"):
        fitted(THREE, link="probit")
    with pytest.raises(mc.ParameterError, match="bounds the logistic sigmoid"):
        fitted(inference="variational", bound="local", link="probit")
    with pytest.raises(mc.ParameterError, match="inference must be one of"):
        fitted(inference="exact")
    with pytest.raises(mc.ParameterError, match="n_samples must be an integer"):
        fitted(n_samples=1.5)
    with pytest.raises(mc.ParameterError, match="closed form is for two classes"):
        fitted(THREE).predict_proba(Z, closed_form=True)
    with pytest.raises(mc.NotPositiveDefiniteError, match="check_kernel"):
        fitted(kernel=k.Custom(lambda a, b: -float(np.dot(a, b))))
    with pytest.raises(mc.InvalidKernelError):
        fitted(kernel=k.Sigmoid())


def test_any_kernel_on_any_input():
    words = ["gattaca", "gattaga", "ccccgg", "cccggg", "gatta", "ccgg", "gatt", "cccc"]
    kinds = np.array(["g", "g", "c", "c", "g", "c", "g", "c"])
    shared = k.Custom(lambda a, b: float(len(set(a) & set(b)) + 3.0 * (a[0] == b[0])))
    model = mc.GaussianProcessClassifier(2.0 * shared, progress=False).fit(words, kinds)
    assert list(model.predict(["gaga", "ccgc"])) == ["g", "c"]
    with pytest.raises(mc.DataError, match="relevance needs"):
        model.relevance()
    assert "relevance" not in str(model.report()).lower()


@pytest.mark.parametrize(
    "kernel", [KERNEL + k.White(0.5), k.Matern(2.5) * k.Linear() + k.Constant(2.0)], ids=["white", "composed"]
)
def test_composed_kernels(kernel):
    for y in (TWO, THREE):
        model = mc.GaussianProcessClassifier(kernel, progress=False).fit(X, y)
        slope = model.log_marginal_likelihood(eval_gradient=True)[1]
        assert np.isfinite(slope).all()
        assert np.isfinite(model.loo().log_score).all()
        assert np.mean(model.predict(X) == y) > 0.7


def test_bad_data_gives_an_answer_or_a_reason():
    rng = np.random.default_rng(0)
    y = X[:, 0] > 0
    cases = {
        "nan": np.where(np.arange(80).reshape(40, 2) == 5, np.nan, X),
        "inf": np.where(np.arange(80).reshape(40, 2) == 5, np.inf, X),
        "text": X.astype(str).astype(object),
        "none": X[:0],
    }
    for bad in cases.values():
        with pytest.raises(mc.MercerError):
            mc.GaussianProcessClassifier(progress=False).fit(bad, y[: len(bad)])
    good = {
        "constant inputs": (np.ones((40, 2)), y),
        "duplicates": (np.repeat(X[:10], 4, axis=0), np.repeat(y[:10], 4)),
        "disputed": (np.repeat(X[:10], 4, axis=0), np.tile([True, False], 20)),
        "wide": (rng.normal(size=(12, 10_000)), np.arange(12) % 2 == 0),
        "large": (X * 1e8, y),
        "tiny": (X * 1e-9, y),
        "two rows": (X[:2], np.array([0, 1])),
    }
    for name, (inputs, known) in good.items():
        P = mc.GaussianProcessClassifier(progress=False).fit(inputs, known).predict_proba(inputs)
        assert np.isfinite(P).all(), name
        np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-12, err_msg=name)
        if name in ("constant inputs", "disputed"):
            np.testing.assert_allclose(P[:, 1], np.mean(known), atol=0.1, err_msg=name)


# -- keeping and telling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [{}, {"inference": "mcmc"}, {"y": THREE}, {"y": THREE, "inference": "mcmc"}],
                         ids=["two", "two-mcmc", "three", "three-mcmc"])  # fmt: skip
def test_saved_models_predict_the_same(way, tmp_path):
    model = fitted(**way)
    mc.save(model, tmp_path / "model.safetensors")
    for again in (mc.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict_proba(Z), model.predict_proba(Z))
        np.testing.assert_array_equal(again.predict(Z), model.predict(Z))
        assert again.log_marginal_likelihood_ == model.log_marginal_likelihood_
        np.testing.assert_allclose(again.loo().log_score, model.loo().log_score, atol=1e-12)
    # A file whose parts do not belong together is refused.
    posterior = model.posterior_
    cut = {"latents": posterior.latents[:, :-1]} if model.inference == "mcmc" else {"s": posterior.s[..., :-1]}
    model.posterior_ = dataclasses.replace(posterior, **cut)
    with pytest.raises(mc.ParameterError, match="cannot be stored"):
        mc.save(model, tmp_path / "broken.safetensors")


def test_frames_keep_their_columns():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["width", "height"])
    model = mc.GaussianProcessClassifier(KERNEL, learning=None).fit(frame, pd.Series(TWO))
    assert list(model.feature_names_in_) == ["width", "height"]
    queries = pd.DataFrame(Z, columns=["width", "height"])
    np.testing.assert_allclose(model.predict_proba(queries), fitted().predict_proba(Z), atol=1e-12)
    assert "height" in str(model.relevance())


def test_the_report_tells_what_matters():
    model = mc.GaussianProcessClassifier(KERNEL, "ep", progress=False).fit(X, TWO)
    page = str(model.report())
    for word in (
        "log evidence",
        "leave-one-out log score",
        "Calibration",
        "Relevance",
        "predicted yes",
        "ep, logistic",
    ):
        assert word in page
    assert "yes" in str(model)
    # It says how many sweeps it took: to the optimum, and from there.
    assert model.numerics_["iterations_in_learning"] > model.numerics_["iterations"] > 0
    assert "iterations in learning" in page
    assert "lengthscale" in str(model)
    assert repr(mc.GaussianProcessClassifier()) == str(mc.GaussianProcessClassifier())


def test_pieces_change_nothing(monkeypatch):
    many = np.random.default_rng(3).normal(size=(300, 2))
    for y in (TWO, THREE):
        model = fitted(y)
        whole = model.predict_proba(many)
        monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1000)
        np.testing.assert_allclose(model.predict_proba(many), whole, atol=1e-12)
        monkeypatch.undo()


def test_the_same_seed_gives_the_same_model():
    draw = functools.partial(fitted, inference="mcmc", n_samples=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mc.NumericalWarning)
        a, b, c = draw(random_state=1), draw(random_state=1), draw(random_state=2)
    np.testing.assert_array_equal(a.predict_proba(Z), b.predict_proba(Z))
    assert not np.array_equal(a.predict_proba(Z), c.predict_proba(Z))


@pytest.mark.parametrize("way", WAYS[:-1], ids=IDS[:-1])
def test_inference_ends_at_the_same_place_from_any_start(way):
    model = fitted(**way)
    infer = model._inference()
    elsewhere = infer([Covariance(gram_of(30.0 * k.RBF(0.4)))], model.codes_, None, gradient=False)
    again = infer([Covariance(gram_of(KERNEL))], model.codes_, elsewhere, gradient=False)
    assert again.log_evidence == pytest.approx(model.log_marginal_likelihood_, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*did not converge")  # it may say that rounding ended it
@pytest.mark.parametrize(("y", "unit"), [(TWO, 3000.0), (THREE, 300.0)], ids=["two", "three"])
def test_huge_latent_variances_do_not_mislead(y, unit):
    """A linear kernel on inputs in their own units: the same model as one on scaled inputs with a wide prior."""
    reference = mc.GaussianProcessClassifier(unit**2 * k.Linear(), learning=None).fit(X, y)
    raw = mc.GaussianProcessClassifier(k.Linear(), learning=None).fit(X * unit, y)
    np.testing.assert_allclose(raw.predict_proba(Z * unit), reference.predict_proba(Z), atol=1e-4)
    for inference in ("laplace", "ep" if len(set(y)) == 2 else "variational"):
        model = mc.GaussianProcessClassifier(k.Linear(), inference, learning=None).fit(X * 3000, y)
        assert model.score(X * 3000, y) > 0.6
        assert model.log_marginal_likelihood_ < 0


@pytest.mark.parametrize("way", WAYS, ids=IDS)
def test_a_row_without_variance(way):
    """A linear kernel is zero at the origin: both classes are as probable there, whatever its label."""
    zeroed = np.where(np.arange(40)[:, None] == 3, 0.0, X)
    model = mc.GaussianProcessClassifier(k.Linear(), learning=None, progress=False, **way).fit(zeroed, TWO)
    np.testing.assert_allclose(model.predict_proba(np.zeros((1, 2))), 0.5, atol=1e-6)
    assert np.isfinite(model.loo().log_score).all()


def test_a_second_fit_forgets_the_first():
    model = fitted(THREE, kernel=[k.RBF(2.0), k.RBF(2.0), k.RBF(0.5)])
    model.set_params(kernel=KERNEL).fit(X, TWO)
    assert not hasattr(model, "kernels_")
    np.testing.assert_allclose(model.loo().probability, fitted().loo().probability)
    assert model.log_marginal_likelihood(model.theta_) == pytest.approx(model.log_marginal_likelihood_)
    assert "2 classes" in str(model.report())
    model.set_params(kernel=[KERNEL] * 3).fit(X, THREE)
    assert not hasattr(model, "kernel_")


def test_scores_take_labels_as_fits_do():
    pd = pytest.importorskip("pandas")
    model = fitted()
    assert model.score(X, pd.DataFrame({"y": TWO})) == model.score(X, TWO) == np.mean(model.predict(X) == TWO)
    with pytest.raises(mc.DataError, match="one label per row"):
        model.score(X[:1], TWO)
    gap, row = r"1 missing label, the first in row 1.*model\.fit\(X\[known\], y\[known\]\)", np.arange(len(TWO))
    for labels in (pd.Series([*TWO[:1], None, *TWO[2:]], dtype="string"), np.where(row == 1, np.nan, 1)):
        with pytest.raises(mc.DataError, match=gap):
            fitted(labels)
    with pytest.raises(mc.DataError, match="2 infinite labels"):
        fitted(np.where(row < 2, np.inf, 1))
    with pytest.raises(mc.DataError, match="not one of the classes"):
        model.log_predictive_density(X[:1], [None])
    assert mc.GaussianProcessClassifier(KERNEL, learning=None).fit(X, TWO, sample_weight=None).score(X, TWO) > 0.7


def test_solvers_agree_and_few_features_take_their_own():
    kernel = 1.0 * k.Polynomial(2, 1.0) + 0.5
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    found = {s: mc.GaussianProcessClassifier(kernel, solver=s, progress=False).fit(X, y) for s in ("dense", "auto")}
    assert [type(model.solver_).__name__ for model in found.values()] == ["Dense", "Weights"]
    own, dense = found["auto"], found["dense"]
    assert own.log_marginal_likelihood_ == pytest.approx(dense.log_marginal_likelihood_, abs=1e-4)
    assert own.predict_proba(X) == pytest.approx(dense.predict_proba(X), abs=1e-3)
    assert own.loo().probability == pytest.approx(dense.loo().probability, abs=1e-3)
    with pytest.raises(mc.ParameterError, match="finitely many features"):
        mc.GaussianProcessClassifier(1.0 * k.RBF(), solver="weights").fit(X, y)


@pytest.mark.parametrize(("classes", "inference"), [(2, "auto"), (2, "laplace"), (3, "laplace")])
def test_a_function_of_pairs_is_called_once_for_each_pair(classes, inference):
    calls, n = [], 24

    def shared(a, b):
        calls.append((a, b))
        return float(len(set(a) & set(b)))

    words = ["".join(np.random.default_rng(i).choice(list("abcdef"), 5)) for i in range(n)]
    labels = np.minimum([word.count("a") for word in words], classes - 1)
    settings = {"progress": False, "max_iterations": 5}
    model = mc.GaussianProcessClassifier(1.0 * k.Custom(shared) + 0.5, inference, **settings).fit(words, labels)
    assert model.n_evaluations_ > 2
    assert len(calls) == n * (n + 1) // 2


@pytest.mark.parametrize("kernel", [2.0 * k.RBF(1.0), 2.0 * k.RBF(1.0) * k.Periodic(30.0)], ids=repr)
def test_leave_one_out_of_several_classes_on_more_rows_than_a_tile_has(kernel):
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, size=(300, 2))
    y = (X[:, 0] + 0.7 * rng.normal(size=300) > 0).astype(int) + (X[:, 1] + 0.7 * rng.normal(size=300) > 0)
    fitted = lambda rows: mc.GaussianProcessClassifier(kernel, learning=None, progress=False).fit(X[rows], y[rows])
    found = fitted(np.arange(300)).loo().probability
    for i in (0, 131, 299):
        refitted = fitted(np.delete(np.arange(300), i)).predict_proba(X[i : i + 1])[0]
        assert found[i] == pytest.approx(refitted, abs=0.01)


@pytest.mark.parametrize("tokens", [False, True], ids=["words", "tokens"])
def test_one_kernel_per_class_on_objects(tokens):
    rng = np.random.default_rng(0)
    X = ["".join(letters) for letters in rng.choice(list("abc"), size=(30, 5))]
    y = [max("abc", key=word.count) for word in X]
    if tokens:  # lists of equal length, which NumPy would make a matrix of numbers
        X = [[ord(letter) for letter in word] for word in X]
    several, one = (
        mc.GaussianProcessClassifier(kernel, inference="laplace", learning=None).fit(X, y)
        for kernel in ([k.Spectrum(2)] * 3, k.Spectrum(2))
    )
    assert several.X_fit_.dtype == object
    assert several.predict_proba(X[:5]) == pytest.approx(one.predict_proba(X[:5]))
    assert several.loo().probability == pytest.approx(one.loo().probability)


def test_the_evidence_at_other_parameters_comes_from_the_solver_of_the_fit(monkeypatch):
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = mc.GaussianProcessClassifier(2.0 * k.Linear(), inference="laplace", solver="weights").fit(X, X[:, 0] > 0.2)
    dense = mc.GaussianProcessClassifier(2.0 * k.Linear(), inference="laplace", solver="dense").fit(X, X[:, 0] > 0.2)
    expected = dense.log_marginal_likelihood(model.theta_ + 0.3)
    monkeypatch.setattr(solvers.LatentMatrix, "__init__", lambda *_: pytest.fail("a dense matrix was made"))
    assert model.log_marginal_likelihood(model.theta_ + 0.3) == pytest.approx(expected)
