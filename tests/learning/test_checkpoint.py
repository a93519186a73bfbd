"""Learning that goes on: from a state in memory, and from a file."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.inference import methods
from mercer.learning.batches import BatchBound
from mercer.learning.checkpoint import digest, resumed
from mercer.learning.optimise import Settings, learn
from mercer.learning.regression import RegressionObjective
from mercer.learning.state import Journal, State
from mercer.solvers import Dense, auto
from mercer.solvers import dense as module

rng = np.random.default_rng(5)
X = rng.uniform(0, 10, size=(90, 2))
y = np.sin(X[:, 0]) + 0.1 * X[:, 1] + 0.1 * rng.normal(size=90)
labels = (np.sin(X[:, 0]) + 0.3 * rng.normal(size=90) > 0).astype(int)


@pytest.fixture
def interrupt(monkeypatch):
    """Ctrl-C at a certain call of a class, from then on none."""

    def at(number, cls=module.FunctionSpace):
        original, calls = cls.__call__, [0]

        def called(self, *args, **kwargs):
            calls[0] += 1
            if calls[0] == number:
                raise KeyboardInterrupt
            return original(self, *args, **kwargs)

        monkeypatch.setattr(cls, "__call__", called)

    return at


def regressor(checkpoint=None, kernel=None, **settings):
    return mc.GaussianProcessRegressor(kernel, progress=False, checkpoint=checkpoint, **settings)


def objective(n=90):
    t = y[:n] - y[:n].mean()
    return RegressionObjective(1.0 * k.RBF([1.0, 1.0]), X[:n], t, None, Dense(), "unknown")


# -- in memory --------------------------------------------------------------------------------------------------------


def test_a_search_goes_on_from_its_state(interrupt):
    settings = Settings(n_restarts=1)
    whole = learn(objective(), settings)
    interrupt(60)
    first = learn(objective(), settings)
    assert first.interrupted
    assert len(first.state) == 59
    rest = learn(objective(), settings, journal=Journal(first.state))
    np.testing.assert_array_equal(rest.theta, whole.theta)
    assert [o.value for o in rest.optima] == [o.value for o in whole.optima]
    assert rest.evaluations <= whole.evaluations - 59  # and some that are asked for twice
    assert len(rest.state) == 59 + rest.evaluations


def test_a_finished_search_has_nothing_left_to_do_but_may_be_allowed_more():
    few = learn(objective(), Settings(max_iterations=7))
    again = learn(objective(), Settings(max_iterations=7), journal=Journal(few.state))
    assert again.evaluations == 0
    np.testing.assert_array_equal(again.theta, few.theta)
    more = learn(objective(), Settings(), journal=Journal(few.state))
    whole = learn(objective(), Settings())
    assert 0 < more.evaluations < whole.evaluations
    assert more.optima[0].value == pytest.approx(whole.optima[0].value, abs=1e-6)


def test_rows_of_another_seed_are_not_taken_for_the_same():
    n = 600
    A = rng.uniform(0, 10, size=(n, 1))
    t = np.sin(A[:, 0]) + 0.1 * rng.normal(size=n)
    many = RegressionObjective(1.0 * k.RBF(), A, t, None, Dense(), "unknown")
    first = learn(many, Settings(), np.random.default_rng(1))
    other = learn(many, Settings(), np.random.default_rng(2), Journal(first.state))
    alone = learn(many, Settings(), np.random.default_rng(2))
    np.testing.assert_array_equal(other.theta, alone.theta)


def test_what_has_no_value_is_asked_again():
    """Jitter is relative to a diagonal that only an evaluation tells."""
    twice = RegressionObjective(1.0 * k.RBF(), np.repeat(X[:15], 2, axis=0), np.repeat(y[:15], 2), 0.0, Dense())
    whole = learn(twice, Settings())
    assert whole.jitter > 0
    again = learn(twice, Settings(), journal=Journal(whole.state))
    assert again.jitter == whole.jitter
    np.testing.assert_array_equal(again.theta, whole.theta)
    assert again.evaluations < whole.evaluations / 2


def test_numbers_rounded_elsewhere_are_the_same():
    whole = learn(objective(), Settings())
    ((name, found),) = whole.state.evaluations.items()
    nudged = type(found)(found.thetas * (1 + 1e-15), *list(vars(found).values())[1:])
    again = learn(objective(), Settings(), journal=Journal(State({name: nudged})))
    assert again.evaluations <= 1


# -- in a file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "number"), [(None, 60), (None, 200), (1.0 * k.RBF([1.0, 1.0]), 12), (1.0 * k.RBF([1.0, 1.0]), 110)]
)
def test_an_interrupted_fit_goes_on(tmp_path, interrupt, kernel, number):
    whole = regressor(kernel=kernel).fit(X, y)
    path = tmp_path / "fit.checkpoint"
    interrupt(number)
    with pytest.warns(mc.InterruptedFitWarning):
        first = regressor(path, kernel).fit(X, y)
    rest = regressor(path, kernel).fit(X, y)
    np.testing.assert_array_equal(rest.theta_, whole.theta_)
    np.testing.assert_array_equal(rest.predict(X), whole.predict(X))
    assert rest.optima_[0].value == whole.optima_[0].value
    assert len(rest.history_) == len(whole.history_)
    assert 0 < rest.n_evaluations_ <= whole.n_evaluations_ - first.n_evaluations_ + 1
    assert regressor(str(path), kernel).fit(X, y).n_evaluations_ == 0  # finished


def test_an_interruption_before_there_is_anything_to_keep_leaves_a_file_to_go_on_from(tmp_path, interrupt):
    path = tmp_path / "fit.checkpoint"
    interrupt(1)
    with pytest.raises(KeyboardInterrupt):
        regressor(path, 1.0 * k.RBF()).fit(X, y)
    model = regressor(path, 1.0 * k.RBF()).fit(X, y)
    assert model.n_evaluations_ == regressor(kernel=1.0 * k.RBF()).fit(X, y).n_evaluations_


@pytest.mark.parametrize("settings", [{}, {"inference": "laplace"}, {"kernel": 1.0 * k.RBF(1.0)}])
@pytest.mark.parametrize("classes", [2, 3])
def test_an_interrupted_classifier_goes_on(tmp_path, interrupt, settings, classes):
    path, t = tmp_path / "fit.checkpoint", labels + (classes > 2) * (X[:, 1] > 5)
    make = lambda checkpoint: mc.GaussianProcessClassifier(progress=False, checkpoint=checkpoint, **settings)
    whole = make(None).fit(X, t)
    interrupt(7, methods.Laplace if classes > 2 or settings.get("inference") else methods.ExpectationPropagation)
    with pytest.warns(mc.InterruptedFitWarning):
        make(path).fit(X, t)
    rest = make(path).fit(X, t)
    assert rest.n_evaluations_ < whole.n_evaluations_
    # Inference starts where it ended last, as it would have without the interruption.
    assert rest.optima_[0].value == pytest.approx(whole.optima_[0].value, rel=1e-11)
    np.testing.assert_allclose(rest.predict_proba(X), whole.predict_proba(X), atol=1e-10)
    assert rest.numerics_["iterations_in_learning"] == whole.numerics_["iterations_in_learning"]
    again = make(path).fit(X, t)
    assert again.n_evaluations_ == 0
    np.testing.assert_allclose(again.predict_proba(X), whole.predict_proba(X), atol=1e-10)


def test_the_file_is_written_while_learning_goes_on(tmp_path, monkeypatch):
    """A killed process leaves it behind."""
    script = """
import os, sys, numpy as np, mercer as mc
from mercer.learning import state
from mercer.solvers import dense
state.SAVE_INTERVAL_SECONDS = 0.0
original, calls = dense.FunctionSpace.__call__, [0]
def called(self, *args, **kwargs):
    calls[0] += 1
    if calls[0] == 100:
        os._exit(9)
    return original(self, *args, **kwargs)
dense.FunctionSpace.__call__ = called
X = np.linspace(0, 6, 50)[:, None]
mc.GaussianProcessRegressor(progress=False, checkpoint=sys.argv[1]).fit(X, np.sin(X[:, 0]))
"""
    path = tmp_path / "fit.checkpoint"
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 9
    A = np.linspace(0, 6, 50)[:, None]
    whole, rest = regressor().fit(A, np.sin(A[:, 0])), regressor(path).fit(A, np.sin(A[:, 0]))
    np.testing.assert_array_equal(rest.theta_, whole.theta_)
    assert rest.n_evaluations_ <= whole.n_evaluations_ - 80  # some of the calls made there were scores
    assert [file.name for file in tmp_path.iterdir()] == ["fit.checkpoint"]


def test_arrays_keep_their_shape(tmp_path):
    given = {
        "number": np.array(3),
        "none": np.zeros((0, 2)),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    resumed(tmp_path / "file", {}).put("search", given)
    journal = resumed(tmp_path / "file", {})
    assert journal.arrays("search") is None  # nothing was saved yet
    journal.put("search", given)
    journal.flush()
    found = resumed(tmp_path / "file", {}).arrays("search")
    for name, array in given.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_a_fit_in_batches_goes_on_from_a_file(tmp_path, interrupt):
    solver = mc.solvers.Minibatch(n_centers=10, batch=30, epochs=3)
    make = lambda checkpoint: regressor(checkpoint, 1.0 * k.RBF(), solver=solver, likelihood="poisson")
    rows, counts = np.vstack([X] * 15)[:1260], rng.poisson(2.0, size=1260)
    path = tmp_path / "fit.checkpoint"
    whole = make(None).fit(rows, counts)
    interrupt(90, BatchBound)
    with pytest.warns(mc.InterruptedFitWarning):
        make(path).fit(rows, counts)
    rest = make(path).fit(rows, counts)
    assert rest.n_evaluations_ < whole.n_evaluations_
    np.testing.assert_allclose(rest.predict(X), whole.predict(X), rtol=1e-10)


def test_fits_killed_at_ten_random_moments_end_where_others_do(tmp_path):
    script = Path(__file__).parents[1] / "killed.py"
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [line.split("\t") for line in done.stdout.splitlines()]
    assert sum(int(kills) for _, kills, _ in found) == 10
    for name, _, away in found:
        assert float(away) < 1e-8, name


def test_a_fit_goes_on_with_the_solver_that_it_was_begun_with(tmp_path, interrupt, monkeypatch):
    """Whatever memory and speed say later."""
    path = tmp_path / "fit.checkpoint"
    make = lambda **settings: regressor(path, 1.0 * k.RBF([1.0, 1.0]), **settings)
    interrupt(12)
    with pytest.warns(mc.InterruptedFitWarning):
        first = make().fit(X, y)
    monkeypatch.setattr(auto, "flops_per_second", lambda: 1.0)
    rest = make().fit(X, y)
    assert rest.solver_ == first.solver_ == Dense()
    assert rest.plan_.why == "the checkpoint was begun with it"
    with pytest.raises(mc.ParameterError, match="other settings"):
        make(solver="iterative").fit(X, y)


def test_a_file_of_another_fit_is_refused_and_left_as_it_is(tmp_path):
    path, kernel = tmp_path / "fit.checkpoint", 1.0 * k.RBF()
    regressor(path, kernel).fit(X[:40], y[:40])
    before = path.read_bytes()
    for model, data, word in (
        (regressor(path, kernel), (X[:40], y[:40] + 1e-9), "other data"),
        (regressor(path, kernel), (X[:41], y[:41]), "other data"),
        (regressor(path, 1.0 * k.RBF(2.0)), (X[:40], y[:40]), "other kernel"),
        (regressor(path, kernel, normalize=False), (X[:40], y[:40]), "other settings"),
        (regressor(path, kernel, noise=0.1), (X[:40], y[:40]), "other settings"),
        (mc.GaussianProcessClassifier(kernel, checkpoint=path), (X[:40], labels[:40]), "other data"),
    ):
        with pytest.raises(mc.ParameterError, match=f"{word}.*Name another file, or delete it"):
            model.fit(*data)
    assert path.read_bytes() == before
    assert regressor(path, kernel, max_iterations=50).fit(X[:40], y[:40]).n_evaluations_ == 0


def test_what_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "fit.checkpoint"
    mc.save(regressor(kernel=1.0 * k.RBF()).fit(X[:20], y[:20]), path)
    with pytest.raises(mc.FileError, match=r"no checkpoint.*Delete it"):
        regressor(path).fit(X, y)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(mc.FileError, match="cannot be read"):
        regressor(path).fit(X, y)
    with pytest.raises(mc.FileError, match="cannot be written"):
        regressor(tmp_path / "nowhere" / "fit.checkpoint").fit(X, y)
    with pytest.raises(mc.ParameterError, match="path of a file"):
        regressor(3).fit(X, y)


def test_a_model_with_a_checkpoint_is_stored(tmp_path):
    model = regressor(tmp_path / "fit.checkpoint", 1.0 * k.RBF()).fit(X[:30], y[:30])
    mc.save(model, tmp_path / "model.mercer")
    assert mc.load(tmp_path / "model.mercer").checkpoint == str(tmp_path / "fit.checkpoint")


# -- digests ----------------------------------------------------------------------------------------------------------


def test_digests_tell_values_apart_and_equal_ones_together():
    frame = lambda *columns: pd.DataFrame({name: [1.0, 2.0] for name in columns})
    level = lambda c: k.Custom(lambda a, b: c)
    values = [
        None, 0, 0.0, "0", b"0", [0], (0,), {0}, {0: 0}, np.zeros(1), np.zeros((1, 1)), np.zeros(1, int),
        np.array(["0"]), ["ab", "c"], ["a", "bc"], frame("a"), frame("b"), k.RBF(), k.RBF(2.0), k.RBF().fix(),
        k.Matern(), level(1.0), level(2.0), k.RBF().with_priors(lengthscale=mc.priors.Normal(0.0, 1.0)), 2**70, 1j,
        range(3), lambda: [i * 2 for i in "a"], lambda: [i * 2 for i in "b"], jax.jit(lambda x: x),
        jax.jit(lambda x: x + 1),
    ]  # fmt: skip
    found = [digest(value) for value in values]
    assert len(set(found)) == len(found)
    assert digest(k.RBF([1.0, 2.0])) == digest(k.RBF([1.0, 2.0]))
    assert digest(level(1.0)) == digest(level(1.0))
    assert digest({"a", "b", "c"}) == digest({"c", "b", "a"})
    assert digest(np.arange(6).reshape(2, 3).T) == digest(np.ascontiguousarray(np.arange(6).reshape(2, 3).T))
    with pytest.raises(mc.ParameterError, match="cannot be compared"):
        digest([(i for i in [])])
