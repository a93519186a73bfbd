"""What learning computed where it ended is what a fit keeps: its posterior takes no further pass over the kernel."""

import warnings

import numpy as np
import pytest

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.core import machine
from mercer.kernels import evaluate
from mercer.kernels.standard import StandardTriangle
from mercer.learning.label_evidence import LabelEvidence
from mercer.learning.latent_regression import TargetEvidence
from mercer.learning.varying_noise import VaryingNoiseEvidence
from mercer.solvers.dense import FunctionSpace

n = 60
rng = np.random.default_rng(3)
X = rng.uniform(-2, 2, size=(n, 2))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=n)
FITS = {
    "standard form": (1.0 * k.RBF([1.0, 1.0]), {}),
    "calibrated": (1.0 * k.RBF([1.0, 1.0]), {"calibrate": True}),
    "white noise in the kernel": (1.0 * k.Matern(1.0, nu=1.5) + k.White(0.1), {}),
    "compiled": (1.0 * k.RBF(1.0).on(0) + 0.5 * k.RBF(1.0).on(1) * k.Linear().on(0), {}),
    "priors": (1.0 * k.RBF(1.0).with_priors(lengthscale=mc.priors.LogNormal(0.0, 0.5)), {"learning": "map"}),
    "given noise": (1.0 * k.RBF(1.0), {"noise": 0.01}),
    "known mean": (1.0 * k.RBF(1.0), {"normalize": False}),
    "default": (None, {}),
}


class Passes:
    """Passes over the kernel on all pairs of rows, and how many there were when the evidence was computed last."""

    def __init__(self, monkeypatch):
        self.count = self.at_last_evaluation = 0
        for owner, name in ((gram.Triangle, "fill"), (StandardTriangle, "fill"), (evaluate, "fill")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        for owner in (FunctionSpace, LabelEvidence, TargetEvidence, VaryingNoiseEvidence):
            monkeypatch.setattr(owner, "__call__", self._noted(owner.__call__))

    def _noted(self, evaluated):
        def call(evidence, *args, **kwargs):
            answer = evaluated(evidence, *args, **kwargs)
            self.at_last_evaluation = self.count
            return answer

        return call

    def _counted(self, fill):
        def counted(*args, **kwargs):
            matrices = [a for a in args if isinstance(a, np.ndarray) and a.ndim == 2 and a.shape == (n, n)]
            self.count += bool(matrices)
            return fill(*args, **kwargs)

        return counted

    @property
    def after_learning(self):
        return self.count - self.at_last_evaluation


def fitted(name):
    kernel, settings = FITS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mc.ModelWarning)
        return mc.GaussianProcessRegressor(kernel, progress=False, **settings).fit(X, y)


@pytest.mark.parametrize("name", FITS)
def test_the_posterior_of_a_fit_takes_no_further_pass_over_the_kernel(name, monkeypatch):
    passes = Passes(monkeypatch)
    model = fitted(name)
    assert passes.at_last_evaluation >= model.n_evaluations_ > 0 or name == "default"
    assert passes.after_learning == 0
    assert model.numerics_["residual"] < 1e-9


@pytest.mark.parametrize("name", FITS)
def test_it_is_the_posterior_at_the_learned_parameters(name, monkeypatch):
    model = fitted(name)
    data, target, noise = model.posterior_.data
    expected = mc.GP(model.kernel_, model.posterior_.prior_mean).condition(data, target, noise)
    Z = rng.uniform(-2, 2, size=(9, 2))
    for found, other in zip(model.posterior_.moments(Z), expected.moments(Z), strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-6, atol=1e-7)
    assert model.posterior_.log_evidence() == pytest.approx(expected.log_evidence(), rel=1e-7, abs=1e-6)
    monkeypatch.setattr(machine, "keepable", lambda share=0.0: 0)
    passes = Passes(monkeypatch)
    without = fitted(name)
    assert passes.after_learning == 1  # no memory for a second matrix: it is computed again
    np.testing.assert_allclose(model.predict(Z), without.predict(Z), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.theta_, without.theta_, rtol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"calibrate": True}, {"noise": 0.01}], ids=str)
def test_several_targets_take_no_further_pass(settings, monkeypatch):
    targets = np.column_stack([y, np.cos(X[:, 0])])[: n // 2]
    model = mc.MultiOutputGaussianProcessRegressor(k.RBF(1.0), progress=False, **settings)
    passes, Z, predictions = Passes(monkeypatch), rng.uniform(-2, 2, size=(9, 2)), []
    for memory in (machine.keepable(), 0):
        monkeypatch.setattr(machine, "keepable", lambda share=0.0, memory=memory: memory)
        predictions.append(model.fit(X[: n // 2], targets).predict(Z))
        assert passes.at_last_evaluation >= model.n_evaluations_ > 0
        assert passes.after_learning == (not memory)
    np.testing.assert_allclose(*predictions, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("settings", [{"calibrate": False}, {"calibrate": True}, {"learning": "map"}], ids=str)
def test_varying_noise_takes_no_further_pass(settings, monkeypatch):
    target = np.sin(2 * X[:, 0]) + np.exp(X[:, 0] - 1) * np.random.default_rng(2).normal(size=n)
    model = mc.HeteroscedasticGaussianProcessRegressor(ARD, noise_kernel=1.0 * k.RBF(), progress=False, **settings)
    passes, Z, predictions = Passes(monkeypatch), rng.uniform(-2, 2, size=(9, 2)), []
    for memory in (machine.keepable(), 0):
        monkeypatch.setattr(machine, "keepable", lambda share=0.0, memory=memory: memory)
        model.fit(X, target)
        predictions.append([*model.predict(Z, return_std=True), model.predict_noise(Z)])
        assert model.noise_varies_
        assert passes.at_last_evaluation >= model.n_evaluations_ > 0
        assert passes.after_learning == (0 if memory else 2)  # of the function, and of the log noise
        here = model.log_marginal_likelihood(model.theta_)
        assert here == pytest.approx(model.log_marginal_likelihood_, rel=1e-5)
    np.testing.assert_allclose(*predictions, rtol=1e-4)  # the search starts from the fit with constant noise


@pytest.mark.parametrize("mean", [None, "linear"])
def test_weights_take_one_pass_over_the_features(mean, monkeypatch):
    fill, passes = gram.Features.fill, []
    monkeypatch.setattr(gram.Features, "fill", lambda *args: passes.append(1) or fill(*args))
    kernel = 1.0 * k.Linear() + 1.0 * k.Polynomial(2)
    model = mc.GaussianProcessRegressor(kernel, solver="weights", noise=0.1, learning=None, mean=mean).fit(X, y)
    assert len(passes) == 1
    process = mc.GP(model.kernel_, model.posterior_.prior_mean).condition(*model.posterior_.data)
    assert model.log_marginal_likelihood_ == pytest.approx(process.log_evidence(), rel=1e-9)
    assert model.numerics_["residual"] < 1e-12


codes = (y > np.median(y)).astype(int) + (y > np.quantile(y, 0.8))
LATENT = {
    "two classes, ep": lambda: (mc.GaussianProcessClassifier(ARD, "ep", progress=False), codes > 0),
    "two classes, laplace": lambda: (mc.GaussianProcessClassifier(ARD, "laplace", progress=False), codes > 0),
    "two classes, default": lambda: (mc.GaussianProcessClassifier(progress=False), codes > 0),
    "three classes, default": lambda: (mc.GaussianProcessClassifier(progress=False), codes),
    "three classes, variational": lambda: (mc.GaussianProcessClassifier(ARD, "variational", progress=False), codes),
    "three classes, laplace": lambda: (mc.GaussianProcessClassifier(ARD, "laplace", progress=False), codes),
    "a kernel for each class": lambda: (
        mc.GaussianProcessClassifier([ARD, 1.0 * k.RBF(), ARD], "laplace", progress=False), codes
    ),
    "counts": lambda: (
        mc.GaussianProcessRegressor(ARD, likelihood="poisson", progress=False), np.round(np.exp(1 + y))
    ),
    "Student's t": lambda: (mc.GaussianProcessRegressor(ARD, likelihood="student", progress=False), y),
}  # fmt: skip
ARD = 1.0 * k.RBF([1.0, 1.0])


@pytest.mark.parametrize("name", LATENT)
def test_the_posterior_of_latent_functions_takes_no_further_pass_over_the_kernel(name, monkeypatch):
    Z, passes = rng.uniform(-2, 2, size=(9, 2)), Passes(monkeypatch)
    predictions = []
    for memory in (machine.keepable(), 0):
        monkeypatch.setattr(machine, "keepable", lambda share=0.0, memory=memory: memory)
        model, target = LATENT[name]()
        model.fit(X, target)
        predictions.append(model.predict_proba(Z) if hasattr(model, "predict_proba") else model.predict(Z, True))
        assert passes.at_last_evaluation >= model.n_evaluations_ > 0
        if not memory:
            assert passes.after_learning >= 1
        else:  # three: the best point is where a climb below a limit began, before anything is kept
            assert passes.after_learning <= (name == "three classes, laplace")
    np.testing.assert_allclose(*predictions, rtol=1e-7, atol=1e-9)


def test_a_resumed_fit_that_evaluates_nothing_computes_the_matrix(tmp_path, monkeypatch):
    kernel = 1.0 * k.RBF([1.0, 1.0])
    settings = {"progress": False, "checkpoint": tmp_path / "state"}
    first = mc.GaussianProcessRegressor(kernel, **settings).fit(X, y)
    passes = Passes(monkeypatch)
    second = mc.GaussianProcessRegressor(kernel, **settings).fit(X, y)
    if second.n_evaluations_ == 0:
        assert passes.after_learning == 1
    np.testing.assert_allclose(second.predict(X), first.predict(X), rtol=1e-10)


def test_an_interrupted_factorisation_does_not_reuse_its_matrix(monkeypatch):
    expected, calls = fitted("calibrated"), []
    factor = mc.gp.process.factor

    def interrupted(C, **settings):
        found = factor(C, **settings)  # which overwrites C
        calls.append(len(C))
        if len(calls) == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(mc.gp.process, "factor", interrupted)
    with pytest.warns(mc.InterruptedFitWarning):
        model = mc.GaussianProcessRegressor(FITS["calibrated"][0], calibrate=True, progress=False).fit(X, y)
    assert calls == [n, n]
    np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-8, atol=1e-8)


def test_a_kept_matrix_is_given_away_once():
    operator = gram.Gram(1.0 * k.RBF(), X)
    K = operator.matrix()
    known = operator.known(K)
    assert known.of(2.0 * k.RBF())._known == known[:5]._known == known.alone()._known[1:] == []
    assert known.matrix() is K
    assert known.matrix() is not K
    np.testing.assert_array_equal(known.matrix(), K)
