"""The search for a sum of components: known parts are found, described, timed, interrupted and resumed."""

import json
import math

import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.kernels.algebra import terms_of
from mercer.learning import greedy
from mercer.learning.components import Axis, components, in_words

rng = np.random.default_rng(4)
T = np.arange(48.0)
SEASON = 3 * np.sin(2 * np.pi * T / 12)
Y = 0.3 * T + SEASON + 0.3 * rng.normal(size=48)


def search(*args, **settings):
    return mc.select_kernel(*args, **{"progress": False, **settings})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "search.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "MAX_ROUNDS", 3)
        patch.setattr(greedy, "factors", lambda term, axes: iter(()))
        return search(T[:, None], Y, checkpoint=path), path


def test_a_line_and_a_season_are_found_and_described(found):
    found, _ = found
    season, rest = sorted(
        (each for each in found.components if each.kernel is not None), key=lambda each: "repeats" not in each.text
    )[:2]
    assert "repeats every 12" in season.text
    assert season.share == pytest.approx(np.var(SEASON) / np.var(Y), abs=0.08)
    assert np.corrcoef(season.mean, SEASON)[0, 1] > 0.99
    assert np.corrcoef(rest.mean, T)[0, 1] > 0.95
    assert "noise" in found.components[-1].text
    assert sum(each.share for each in found.components) == pytest.approx(1)
    assert found.noise == pytest.approx(0.09, abs=0.08)
    text = found.describe()
    for each in found.components:
        assert each.text in text
    assert found.best is max(found.tried, key=lambda each: each.score)
    assert not found.out_of_time


def test_scores_are_penalised_evidence_and_the_kernel_can_be_fitted(found):
    found, _ = found
    for each in found.tried:
        k_of = len(each.theta)
        assert each.score == pytest.approx(each.log_evidence - 0.5 * k_of * math.log(48))
    labels = [each.candidate for each in found.history]
    assert len(labels) == len(set(labels))
    model = mc.GaussianProcessRegressor(found.kernel, noise=found.noise, learning=None).fit(T[:, None], Y)
    assert model.log_marginal_likelihood_ == pytest.approx(found.best.log_evidence, abs=1e-6)
    ahead = np.arange(48.0, 60.0)
    truth = 0.3 * ahead + 3 * np.sin(2 * np.pi * ahead / 12)
    assert np.abs(model.predict(ahead[:, None]) - truth).max() < 1.5
    parts = model.decompose(T[:, None])
    for each in found.components[:-1]:
        mean, deviation = next(
            pair for pair in parts.values() if np.allclose(pair[0], each.mean, atol=1e-4 * np.abs(Y).max())
        )
        assert mean == pytest.approx(each.mean, abs=1e-3)
        assert deviation.shape == each.deviation.shape


def test_a_search_goes_on_from_its_file(found, monkeypatch):
    found, path = found
    monkeypatch.setattr(greedy, "MAX_ROUNDS", 3)
    monkeypatch.setattr(greedy, "factors", lambda term, axes: iter(()))
    again = search(T[:, None], Y, checkpoint=path)
    assert again.evaluations == 0  # nothing is learned twice
    assert again.kernel.parameters == pytest.approx(found.kernel.parameters)
    assert [each.candidate for each in again.tried] == [each.candidate for each in found.tried]
    with pytest.raises(mc.ParameterError, match="a search with other data"):
        search(T[:, None], Y + 1, checkpoint=path)
    path.with_name("broken").write_text("{")
    with pytest.raises(mc.FileError, match="cannot be read"):
        search(T[:, None], Y, checkpoint=path.with_name("broken"))
    with pytest.raises(mc.ParameterError, match="checkpoint is for the search"):
        search(T[:, None], Y, [k.RBF()], checkpoint=path)
    part = json.loads(path.read_text())
    part["evaluated"] = dict(list(part["evaluated"].items())[:2])
    path.with_name("part").write_text(json.dumps(part))
    quick = search(T[:, None], Y, checkpoint=path.with_name("part"), max_seconds=0)
    assert quick.out_of_time
    assert len(quick.history) == 1
    assert "max_seconds=0" in quick.describe()


def test_an_interruption_keeps_the_best(found, monkeypatch):
    _, path = found
    seen = []

    def stop(self, objective, settings):
        seen.append(objective)
        raise KeyboardInterrupt

    part = json.loads(path.read_text())
    part["evaluated"] = dict(list(part["evaluated"].items())[:3])
    path.with_name("stopped").write_text(json.dumps(part))
    monkeypatch.setattr("mercer.learning.candidates.QuantityProblem.learned", stop)
    with pytest.warns(mc.InterruptedFitWarning):
        kept = search(T[:, None], Y, checkpoint=path.with_name("stopped"))
    assert kept.interrupted
    assert len(kept.history) == 3
    assert kept.components
    with pytest.raises(KeyboardInterrupt):
        search(T[:, None], Y)


def test_columns_and_what_may_be_done_with_them():
    X = pd.DataFrame({"a": rng.normal(size=30), "b": rng.normal(size=30), "same": 1.0})
    axes = greedy.axes_of(X, np.zeros(30), X, None)
    assert [(axis.column, axis.name) for axis in axes] == [("a", "a"), ("b", "b")]
    first = list(greedy.candidates([], [], axes, 0.5, 3))
    labels = [candidate.label for _, candidate in first]
    assert labels[:2] == ["smooth(all)", "rough(all)"]
    assert {"smooth(a)", "line(b)"} <= set(labels)
    for _, candidate in first:
        for kernel in candidate.kernels:
            assert kernel(X).shape == (30, 30)
    smooth = next(candidate for _, candidate in first if candidate.label == "smooth(a)").kernels[0]
    then = [candidate.label for _, candidate in greedy.candidates([smooth], ["smooth(a)"], axes, 0.5, 3)]
    assert {"smooth(a) * smooth(b)", "smooth(a) * line(a)", "smooth(a) * from(a)", "smooth(a) + line(b)"} <= set(then)
    days = np.arange("2015-01", "2019-01", dtype="datetime64[M]").astype("datetime64[D]")
    (when,) = greedy.axes_of(np.asarray(mc.kernels.RBF().prepare(days, np.arange(48))), Y, days, None)
    assert when.dated
    assert when.periods == ("year",)


@pytest.mark.parametrize("period", [7.3, 4 * np.pi])
def test_a_period_is_learned_between_the_steps(period, monkeypatch):
    monkeypatch.setattr(greedy, "MAX_ROUNDS", 1)
    y = 3 * np.sin(2 * np.pi * T / period) + 0.2 * np.random.default_rng(8).normal(size=48)
    found = search(T[:, None], y)
    learned = [value for name, value in found.kernel.parameters.items() if name.endswith("period")]
    assert learned == pytest.approx([period], rel=0.01)
    assert f"repeats every {learned[0]:.4g}" in found.components[0].text
    ahead = np.arange(48.0, 60.0)
    model = mc.GaussianProcessRegressor(found.kernel, noise=found.noise, learning=None).fit(T[:, None], y)
    error = model.predict(ahead[:, None]) - 3 * np.sin(2 * np.pi * ahead / period)
    assert np.sqrt(np.mean(error**2)) < 0.3


def test_two_seasons_are_found(monkeypatch):
    monkeypatch.setattr(greedy, "MAX_ROUNDS", 2)
    monkeypatch.setattr(greedy, "factors", lambda term, axes: iter(()))
    t = 6 * np.arange(112.0)  # hours
    y = 2 * np.sin(2 * np.pi * t / 24) + np.sin(2 * np.pi * t / 168) + 0.2 * np.random.default_rng(7).normal(size=112)
    found = search(t[:, None], y)
    day, week = found.components[0].text, found.components[1].text
    assert "repeats every 24" in day
    assert float(week.split("repeats every ")[1].split()[0]) == pytest.approx(168, rel=0.01)


@pytest.mark.filterwarnings("ignore::mercer.InterruptedFitWarning")
def test_additive_structure_of_two_columns(monkeypatch):
    X = rng.uniform(-2, 2, size=(60, 2))
    y = np.sin(2 * X[:, 0]) + 1.5 * X[:, 1] + 0.1 * rng.normal(size=60)
    monkeypatch.setattr(greedy, "MAX_ROUNDS", 2)
    monkeypatch.setattr(greedy, "factors", lambda term, axes: iter(()))
    found = search(X, y)
    assert sorted(found.member.split(" + ")) == ["line(x1)", "smooth(x0)"]
    words = [each.text for each in found.components]
    assert any("smooth function of x0" in text for text in words)
    assert "a straight line in x1" in words


def test_terms_of_no_use_are_dropped_when_time_is_up_too(monkeypatch):
    X = np.random.default_rng(5).uniform(-2, 2, size=(60, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(6).normal(size=60)
    whole = greedy.candidates

    def sums_only(terms, *rest):
        return (each for each in whole(terms, *rest) if len(each[0]) == 2)

    monkeypatch.setattr(greedy, "candidates", sums_only)
    found = search(X, y, max_seconds=0)
    assert found.out_of_time
    assert found.member == "smooth(x0)"
    assert [each.text.split(" that")[0] for each in found.components[:-1]] == ["a smooth function of x0"]


def test_leaving_out_decides_too(monkeypatch):
    monkeypatch.setattr(greedy, "MAX_ROUNDS", 1)
    found = search(T[:, None], Y, criterion="loo")
    assert found.measure == "crps"
    assert found.member.startswith("season")
    assert len(found.components) == 2


# -- words -----------------------------------------------------------------------------------------------------------

YEARS = [Axis(None, "x", 1960.0, 40.0, 1 / 12, True, ("year",))]
TWO = [Axis("a", "a", 0.0, 10.0, 0.1), Axis("b", "b", -1.0, 2.0, 0.1)]


@pytest.mark.parametrize(("kernel", "words"), [
    (2.0 * k.Seasonal("year", decay=12.0), "a yearly pattern that changes slowly over about 12 years"),
    (k.Seasonal("week", decay=1e6), "a weekly pattern of constant shape"),
    (k.Seasonal(11.0, decay=5.0), "a pattern that repeats every 11 years and changes slowly over about 55 years"),
    (k.Periodic(11.0) * k.Matern(55.0, nu=1.5),
     "a pattern that repeats every 11 years and changes slowly over about 55 years"),
    (0.3 * (k.Periodic(1.0) * k.Matern(900.0, nu=1.5)) * k.Line(-0.2, start=1960.0, unit=40.0),
     "a yearly pattern of constant shape, growing in size"),
    (k.RBF(90.0), "a slow trend over the whole range"),
    (k.RBF(0.25), "a smooth curve that changes over about 3 months"),
    (k.Exponential(0.02), "irregular variation that fades over about 7.3 days"),
    (k.Exponential(1e4), "a random walk"),
    (k.Line(0.5), "a straight line"),
    (k.Seasonal("year", decay=12.0) * k.Line(-0.2, start=1960.0, unit=40.0),
     "a yearly pattern that changes slowly over about 12 years, growing in size"),
    (k.RBF(3.0) * k.Step(0.5, 0.1, start=1960.0, unit=40.0),
     "a smooth curve that changes over about 3 years, from about 1980-01 on"),
    (k.RBF(3.0) * k.Step(0.25, 0.1, True, start=1960.0, unit=40.0),
     "a smooth curve that changes over about 3 years, until about 1970-01"),
    (k.Polynomial(3), "Polynomial(degree=3, offset=0.0)"),
])  # fmt: skip
def test_terms_of_dates_in_words(kernel, words):
    assert in_words(kernel, YEARS) == words


@pytest.mark.parametrize(("kernel", "words"), [
    (k.RBF(3.0).on("a"), "a smooth function of a that changes over about 3"),
    (k.Line(0.5).on("b"), "a straight line in b"),
    (k.RBF([1.0, 2.0]), "a smooth function of a, b together"),
    (2.0 * k.RBF(3.0).on("a") * k.RBF(1.0).on("b"),
     "a smooth function of a that changes over about 3, which changes with b over about 1"),
    (k.RBF(3.0).on("a") * k.Line(0.5, start=0.0, unit=10.0).on("a"),
     "a smooth function of a that changes over about 3, smallest about a = 5"),
    (k.RBF([1.0, 40.0]), "a smooth function of a that changes over about 1"),
    (k.Matern([200.0, 0.5], nu=1.5), "irregular variation of b that fades over about 0.5"),
    (2.0 * k.RBF(3.0).on("a") * k.RBF(90.0).on("b"), "a smooth function of a that changes over about 3"),
    (2.0 * k.RBF(300.0).on("a") * k.RBF(1.0).on("b"), "a smooth function of b that changes over about 1"),
    (k.RBF(300.0).on("a"), "a slow trend of a over the whole range"),
])  # fmt: skip
def test_terms_of_columns_in_words(kernel, words):
    assert in_words(kernel, TWO) == words


def test_components_are_those_of_a_process_with_an_unknown_mean():
    kernel = 0.7 * k.RBF(8.0) + 0.4 * k.Seasonal(12.0)
    target = (Y - Y.mean()) / Y.std()
    axes = [Axis(None, "x", 0.0, 47.0, 1.0)]
    found = components(kernel, T[:, None], target, 0.1, 2.0, axes)
    big = 1e6  # prior variance of the constant
    C = np.asarray(kernel(T)) + 0.1 * np.eye(48) + big
    for each in found[:-1]:
        K = np.asarray(each.kernel(T))
        np.testing.assert_allclose(each.mean, 2 * K @ np.linalg.solve(C, target), atol=1e-4)
        np.testing.assert_allclose(each.deviation**2, 4 * np.diag(K - K @ np.linalg.solve(C, K)), atol=1e-4)
    total = 2 * target - 2 * target.mean() - sum(each.mean - each.mean.mean() for each in found[:-1])
    np.testing.assert_allclose(found[-1].mean, total, atol=1e-9)
    assert {each.kernel for each in found[:-1]} == set(terms_of(kernel))
