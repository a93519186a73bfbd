"""Learning: it finds optima, never falls over, and can be stopped."""

import itertools
import math
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.learning.climb import Optimum
from mercer.learning.objective import stages
from mercer.learning.optimise import _ties_ordered

rng = np.random.default_rng(1)
X = rng.uniform(0, 10, size=(90, 2))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=90)


def fit(kernel, *data, **settings):
    data = data or (X, y)
    return mc.GaussianProcessRegressor(kernel, progress=False, **settings).fit(*data)


@pytest.mark.parametrize("optimizer", ["lbfgs", "cg"])
def test_the_optimum_is_one(optimizer):
    model = fit(1.0 * k.RBF([1.0, 1.0]), optimizer=optimizer)
    value, gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_, abs=1e-7)
    assert np.abs(gradient).max() < 0.05
    assert model.kernel_.parameters["lengthscale"][1] > 100  # an input that is not there
    assert 0.007 < model.noise_ < 0.014


def test_both_optimizers_agree():
    values = [fit(1.0 * k.RBF(), X[:, :1], y, optimizer=o).log_marginal_likelihood_ for o in ("lbfgs", "cg")]
    assert values[0] == pytest.approx(values[1], abs=0.01)


def test_history_tells_every_iteration():
    model = fit(1.0 * k.RBF([1.0, 1.0]))
    values = [step.value for step in model.history_]
    assert len(values) > 5
    assert values[-1] > values[0]
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))  # a climb
    last = model.history_[-1].parameters
    assert set(last) == {"rbf_variance", "rbf_lengthscale", "noise"} or set(last) == {
        "variance",
        "lengthscale",
        "noise",
    }
    assert {step.rows for step in model.history_} == {90}


def test_a_subset_comes_first_where_rows_are_many():
    assert stages(800) == [800]
    assert stages(4000) == [250, 1000, 4000]
    A = rng.uniform(0, 10, size=(1000, 1))
    t = np.sin(A[:, 0]) + 0.1 * rng.normal(size=1000)
    model = fit(1.0 * k.RBF(1.0), A, t)
    assert model.history_[0].rows == 300
    assert model.history_[-1].rows == 1000
    assert np.abs(model.log_marginal_likelihood(model.theta_, eval_gradient=True)[1]).max() < 0.3


def test_restarts_report_every_optimum():
    # The evidence has several maxima (PRML 6.4.3); these data have two, half a nat apart.
    model = fit(1.0 * k.RBF([1.0, 1.0]), n_restarts=6, random_state=3)
    assert len(model.optima_) >= 2
    assert sum(found.times_found for found in model.optima_) >= 7
    values = [found.value for found in model.optima_]
    assert max(values) - values[0] <= 0.5  # evidence this close does not decide: rows left out do
    assert abs(values[0] - values[1]) > 0.02
    assert model.log_marginal_likelihood_ == pytest.approx(values[0], abs=1e-6)
    for found in model.optima_:  # each is one: no slope left
        theta = np.log([found.parameters["variance"], *found.parameters["lengthscale"], found.parameters["noise"]])
        value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
        assert value == pytest.approx(found.value, abs=1e-6)
        assert np.abs(gradient).max() < 0.05


def test_fixed_parameters_stay_and_priors_count():
    kernel = (1.0 * k.RBF([2.0, 3.0])).fix("variance")
    model = fit(kernel)
    assert model.kernel_.parameters["variance"] == 1.0
    assert len(model.theta_) == 3
    tight = kernel.with_priors(lengthscale=mc.priors.LogNormal(np.log(5.0), 1e-3))
    assert fit(tight, learning="map").kernel_.parameters["lengthscale"] == pytest.approx([5.0, 5.0], rel=0.01)
    # The evidence alone leaves priors out, and says so.
    with pytest.warns(mc.ModelWarning, match="learning='map'"):
        ignored = fit(tight)
    assert ignored.kernel_.parameters["lengthscale"] == pytest.approx(model.kernel_.parameters["lengthscale"], rel=1e-3)
    assert "learning='map'" in str(ignored.report())


def test_map_is_where_evidence_and_prior_balance():
    kernel = (1.0 * k.RBF(1.0)).with_priors(lengthscale=mc.priors.Normal(1.0, 0.05))
    model = fit(kernel, learning="map")
    gradient = model.log_marginal_likelihood(model.theta_, eval_gradient=True)[1]
    length = model.kernel_.parameters["lengthscale"]
    # d ln p(l) / d ln l for a normal density
    assert gradient[1] == pytest.approx((length - 1.0) / 0.05**2 * length, abs=0.05)


def test_nothing_to_learn_is_no_trouble():
    model = fit((1.0 * k.RBF(1.0)).fix(), noise=0.1)
    assert model.theta_.size == 0
    assert model.history_ == []
    assert model.kernel_ == (1.0 * k.RBF(1.0)).fix()


def test_a_failed_factorisation_is_a_rejected_step(monkeypatch):
    from mercer.solvers import dense as module

    original, refused = module.FunctionSpace._evaluate, []

    def with_a_wall(self, theta, *rest, **more):
        if theta[2] > 3.5:  # where the irrelevant input would go
            refused.append(theta[2])
            return None
        return original(self, theta, *rest, **more)

    monkeypatch.setattr(module.FunctionSpace, "_evaluate", with_a_wall)
    model = fit(1.0 * k.RBF([1.0, 1.0]))
    assert refused
    assert model.theta_[2] <= 3.5
    assert model.score(X, y) > 0.98


def test_interrupting_leaves_the_best_model_so_far(monkeypatch):
    from mercer.solvers import dense as module

    original, calls = module.FunctionSpace.__call__, {"n": 0}

    def interrupted(self, *args, **kwargs):
        calls["n"] += 1
        if calls["n"] == 15:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(module.FunctionSpace, "__call__", interrupted)
    with pytest.warns(mc.InterruptedFitWarning, match="after 15 evaluations; the model has the best") as told:
        model = fit(1.0 * k.RBF([1.0, 1.0]))
    assert told[0].filename == __file__
    assert np.isfinite(model.predict(X)).all()
    assert not model.optima_[0].converged
    assert len(model.optima_) == 1  # those of fewer rows could not be compared with it


def test_interrupting_a_later_stage_keeps_the_steps_of_the_first(monkeypatch):
    from mercer.solvers import dense as module

    original = module.FunctionSpace.__call__
    called = []

    def interrupted(self, *args, **kwargs):
        called.append(self.n)
        if called.count(520) == 5:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    rng = np.random.default_rng(4)
    A = rng.uniform(0, 10, size=(520, 1))
    monkeypatch.setattr(module.FunctionSpace, "__call__", interrupted)
    with pytest.warns(mc.InterruptedFitWarning):
        model = fit(1.0 * k.RBF(), A, np.sin(A[:, 0]) + 0.1 * rng.normal(size=520))
    assert model.history_[0].rows == 300
    assert {step.rows for step in model.history_} <= {300, 520}
    assert [found.start for found in model.optima_] == ["interrupted"]
    assert model.score(A, np.sin(A[:, 0])) > 0.98


def test_interrupting_after_learning_keeps_what_was_learned(monkeypatch):
    original, calls = mc.GaussianProcessRegressor._posterior, {"n": 0}

    def interrupted(self, *args):
        calls["n"] += 1
        if calls["n"] == 1:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(mc.GaussianProcessRegressor, "_posterior", interrupted)
    with pytest.warns(mc.InterruptedFitWarning) as told:
        model = fit(1.0 * k.RBF([1.0, 1.0]))
    assert told[0].filename == __file__
    assert model.score(X, y) > 0.98


@pytest.mark.parametrize(
    "model",
    [
        mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0]), progress=False),
        mc.GaussianProcessRegressor(progress=False),
        mc.GaussianProcessRegressor(1.0 * k.RBF(), likelihood="student", progress=False),
        mc.GaussianProcessClassifier(progress=False),
    ],
    ids=["kernel", "default", "Student's t", "classes"],
)
def test_learning_ends_when_its_time_is_over(model, monkeypatch):
    from mercer.learning.optimise import Settings

    asked = []
    monkeypatch.setattr(Settings, "out_of_time", property(lambda self: asked.append(self) or len(asked) > 12))
    with pytest.warns(mc.InterruptedFitWarning, match="took max_seconds .* Raise max_seconds, or give") as told:
        model.fit(X, y > 0 if hasattr(model, "predict_proba") else y)
    assert [str(each.message).count("max_seconds") for each in told] == [2]
    assert told[0].filename == __file__
    choice = getattr(model, "choice_", None)
    assert 1 <= model.n_evaluations_ - (choice.evaluations if choice else 0) <= 16
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("settings", [{"solver": "dense"}, {"max_seconds": None}, {"max_seconds": 1e-6}])
def test_only_plans_that_fit_the_time_are_held_to_it(settings, monkeypatch):
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False, **settings)
    assert model._settings(model.plan(X)).until == math.inf
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False)
    assert time.monotonic() + 500 < model._settings(model.plan(X)).until <= time.monotonic() + 600


def test_a_prior_on_a_term_that_is_off_has_no_say():
    kernel = k.Standard(1.0, [1.0, 1.0], 0.0, 0.1).with_priors(theta2=mc.priors.Gamma(2.0, 1.0))
    assert fit(kernel, learning="map").score(X, y) > 0.98


def test_with_jitter_the_optimum_is_that_of_the_model():
    A, t = np.repeat(X[:20], 2, axis=0), np.repeat(y[:20], 2)
    model = fit(1.0 * k.RBF(1.0), A, t, noise=0.0, normalize=False)
    assert model.numerics_["jitter"] > 0
    assert model.optima_[0].value == pytest.approx(model.log_marginal_likelihood_, abs=1e-3)
    fit(1.0 * k.RBF(1.0), A, 100 * t, noise=0.0, normalize=False)


def test_a_real_signal_interrupts():
    A = rng.uniform(0, 10, size=(3000, 4))
    t = np.sin(A[:, 0]) + 0.1 * rng.normal(size=3000)
    timer = threading.Timer(3.0, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = fit(1.0 * k.RBF(np.ones(4)), A, t)
        finally:
            timer.cancel()
    assert np.isfinite(model.predict(A[:5])).all()
    assert not caught or "interrupted" in str(caught[0].message)


def test_unknown_settings_are_refused_by_name():
    for settings, word in (
        ({"optimizer": "adam"}, "optimizer"), ({"learning": "guess"}, "learning"), ({"solver": "magic"}, "solver"),
        ({"n_restarts": -1}, "n_restarts"), ({"max_iterations": 0}, "max_iterations"), ({"noise": -1.0}, "noise"),
        ({"noise": [0.1, 0.2]}, "noise"), ({"random_state": "x"}, "random_state"),
    ):  # fmt: skip
        with pytest.raises(mc.MercerError, match=word):
            fit(k.RBF(), **settings)


def test_ties_are_decided_by_rows_left_out_not_by_order():
    low, high, far = (Optimum(value, np.array([value]), "", True) for value in (1.7, 2.0, 1.2))
    for found in ([high, low, far], [high, far, low]):
        found = sorted(found, key=lambda o: -o.value)
        assert [o.value for o in _ties_ordered(found, lambda theta: -theta[0])] == [1.7, 2.0, 1.2]
        assert [o.value for o in _ties_ordered(found, lambda theta: theta[0])] == [2.0, 1.7, 1.2]
        assert [o.value for o in _ties_ordered(found, lambda theta: None)] == [2.0, 1.7, 1.2]
