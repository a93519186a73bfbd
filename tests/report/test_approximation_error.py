"""What a report says of approximations without a bound, and of streams."""

import re

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(7)
X = rng.uniform(0, 8, size=(240, 1))
y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=240)
labels = (y > 0).astype(int)
GIVEN = {"learning": None, "progress": False}


def regressor(**settings):
    return mc.GaussianProcessRegressor(1.0 * k.RBF(1.0), **({"noise": 0.04} | GIVEN | settings))


def numbers(text, pattern):
    return [float(part) for part in re.search(pattern, text).groups()]


def test_a_committee_says_how_far_from_exact_predictions_it_is():
    pattern = r"compared with exact predictions: means differ by (\S+) predictive.* are (\S+) times"
    one, many = (
        regressor(solver=mc.solvers.Committee(n_parts)).fit(X, y).report().sections["Numerics"] for n_parts in (1, 6)
    )
    difference, ratio = numbers(many, pattern)
    model = regressor(solver=mc.solvers.Committee(6)).fit(X, y)
    exact = regressor().fit(X, y)
    away = (model.predict(X) - exact.predict(X)) / exact.predict(X, return_std=True)[1]
    assert difference == pytest.approx(np.sqrt(np.mean(away**2)), rel=0.8)
    assert ratio == pytest.approx(1.0, abs=0.2)
    alone = numbers(one, pattern)
    assert alone[0] < 1e-6
    assert alone[1] == pytest.approx(1.0)
    for other in (exact, regressor(solver=mc.solvers.LowRank(10)).fit(X, y)):  # exact, or with a bound
        assert "compared with" not in other.report().sections["Numerics"]


def test_a_committee_is_compared_near_a_few_places(monkeypatch):
    monkeypatch.setattr("mercer.report.approximation_error.NEAR_ROWS", 100)
    text = regressor(solver=mc.solvers.Committee(2)).fit(X, y).report().sections["Numerics"]
    assert "exact predictions from the 100 rows near each of 3 places" in text


@pytest.mark.parametrize("classes", [2, 3])
def test_centres_of_a_classifier_are_compared_with_exact_inference(classes):
    t = labels + (classes > 2) * (X[:, 0] > 5)
    solver = mc.solvers.Minibatch(n_centers=12, batch=60)
    model = mc.GaussianProcessClassifier(4.0 * k.RBF(1.0), solver=solver, **GIVEN).fit(X[:120], t[:120])
    text = model.report().sections["Numerics"]
    assert "approximated by 12 centres, which leave" in text
    mean, most = numbers(text, r"probabilities differ by (\S+) on average, by (\S+) at most")
    assert 0 < mean < most < 0.2


def test_a_stream_reports_on_held_out_rows():
    model, chunks = regressor(budget=20), [slice(i, i + 60) for i in range(0, 180, 60)]
    for part in chunks:
        model.partial_fit(X[part], y[part])
    report = model.report(X[180:], y[180:])
    assert "a stream of 180 rows" in report.title
    assert "RMSE" in report.sections["Fit"]
    assert len(report.calibration.z) == 60
    with pytest.raises(mc.ParameterError, match=r"Hold rows back for report\(X, y\)"):
        model.report()
    with pytest.raises(mc.DataError, match="give both"):
        model.report(X[180:])
    model = mc.GaussianProcessClassifier(4.0 * k.RBF(1.0), **GIVEN)
    for part in chunks:
        model.partial_fit(X[part], labels[part])
    report = model.report(X[180:], labels[180:])
    assert "a stream of 180 rows, 2 classes" in report.title
    assert "held-out error" in report.sections["Fit"]
    assert str(report)
