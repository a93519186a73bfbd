"""The page of a fitted regression: silent where the model is right, and right where it is wrong."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.models.relevance import Relevance
from mercer.report.page import about_inputs


def fitted(kernel, X, y, noise=None, learning=None):
    return mc.GaussianProcessRegressor(kernel, noise=noise, learning=learning, progress=False).fit(X, y)


def found(model, *held):
    page = model.report(*held)
    text = str(page)
    assert ("nothing looks wrong" in text) == (not page.suggestions)
    assert all(str(finding) in text for finding in page.findings)
    assert "nan" not in text
    return [finding.kind for finding in page.findings]


@pytest.fixture(scope="module")
def drawn():
    """Rows of a process with known parameters; one set of inputs."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (100, 2))
    kernel = 1.0 * k.RBF([0.3, 0.6])
    return X, kernel, mc.GP(kernel).sample(X, size=20, seed=1) + 0.2 * rng.normal(size=(20, 100))


def test_a_right_model_looks_right(drawn):
    X, kernel, draws = drawn
    alarms = []
    for y in draws:
        model = mc.GaussianProcessRegressor(kernel, noise=0.04, learning=None, normalize=False).fit(X, y)
        alarms.append(found(model))
    assert sum(map(bool, alarms)) <= 1


def test_learned_models_of_right_data_look_right(drawn):
    X, kernel, draws = drawn
    assert sum(bool(found(fitted(kernel, X, y, learning="mle"))) for y in draws[:5]) <= 1


def test_a_season_that_a_smooth_kernel_misses():
    """A series by the month: the smooth kernel takes up the trend, and half of the season or none."""
    rng = np.random.default_rng(1)
    t = np.arange(144) / 12
    y = 0.5 * t + np.sin(2 * np.pi * t) + 0.3 * np.cos(4 * np.pi * t) + 0.2 * rng.normal(size=144)
    series = pd.DataFrame({"year": t})
    model = fitted(1.0 * k.RBF(3.0), series, y, noise=0.6)
    assert "season" in found(model)
    page = str(model.report())
    assert "year" in page.split("Suggestions")[1]
    assert "k.Periodic(1)" in page
    seasonal = 4.0 * k.RBF(5.0) + 1.0 * k.Periodic(1.0)
    assert found(fitted(seasonal, series, y, noise=0.04)) == []


def test_intervals_that_hold_too_much_or_too_little(drawn):
    X, kernel, draws = drawn
    assert "calibration" in found(fitted(kernel, X, draws[0], noise=0.4))
    assert "calibration" in found(fitted(kernel, X, draws[0], noise=0.002))
    rng = np.random.default_rng(3)
    y = draws[0] + 0.3 * rng.standard_t(1.2, size=100)
    heavy = fitted(kernel, X, y, learning="mle")
    calibration = heavy.report().calibration
    assert dict(zip(calibration.levels, calibration.coverage, strict=True))[0.5] > 0.65
    assert {"calibration", "outliers"} <= set(found(heavy))


def test_noise_that_grows_and_gross_outliers(drawn):
    X, kernel, draws = drawn
    rng = np.random.default_rng(5)
    grows = fitted(kernel, X, draws[1] + np.exp(3 * X[:, 1]) * 0.1 * rng.normal(size=100), learning="mle")
    assert [finding.name for finding in grows.report().findings if finding.kind == "spread"] == ["x1"]
    y = draws[2].copy()
    y[[7, 40, 91]] += [4.0, -5.0, 6.0]
    (finding,) = [finding for finding in fitted(kernel, X, y, learning="mle").report().findings
                  if finding.kind == "outliers"]  # fmt: skip
    assert "3 rows are outliers" in finding.text
    assert all(f"{row} (" in finding.text for row in (7, 40, 91))


def test_a_straight_kernel_on_a_bend():
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (100, 2))
    y = X[:, 0] + 1.5 * X[:, 1] ** 2 + 0.2 * rng.normal(size=100)
    model = fitted(1.0 * k.Linear() + 1.0, pl.DataFrame(X, schema=["flat", "bent"]), y, learning="mle")
    assert "curvature" in found(model)
    (finding,) = [finding for finding in model.report().findings if finding.kind == "curvature"]
    assert "k.RBF(" in finding.remedy
    assert ".on('bent')" in finding.remedy
    assert not any("little of y" in text and "bent" in text for text in model.report().suggestions)
    assert "curvature" not in found(fitted(4.0 * k.RBF([3.0, 1.0]), X, y, noise=0.04))


def test_rows_held_out_are_judged_beside_those_left_out(drawn):
    X, kernel, draws = drawn
    y = draws[3]
    model = mc.GaussianProcessRegressor(kernel, noise=0.04, learning=None, normalize=False).fit(X[:60], y[:60])
    assert "Held-out rows" not in model.report().sections
    page = model.report(X[60:], y[60:])
    assert page.findings == ()
    mean = model.predict(X[60:])
    lines = {line.rsplit(None, 2)[0]: line.split()[-2:] for line in page.sections["Held-out rows"].splitlines()[1:6]}
    rmse = [np.sqrt(np.mean((y[60:] - mean) ** 2)), np.sqrt(np.mean((y[:60] - model.loo().mean) ** 2))]
    assert lines["RMSE"] == [f"{value:.4g}" for value in rmse]
    assert lines["rows"] == ["40", "60"]
    assert float(lines["log density per row"][0]) == pytest.approx(
        model.log_predictive_density(X[60:], y[60:]).mean(), abs=1e-3
    )
    shifted = found(model, X[60:], y[60:] + np.where(np.arange(40) % 2, 1.5, -1.5))
    assert {"held out", "calibration"} <= set(shifted)
    with pytest.raises(mc.DataError, match="give both"):
        model.report(X[60:])


def test_only_inputs_that_surely_explain_little_are_suggested_for_leaving_out():
    """With few rows a share within two standard errors of zero may still be large."""

    def table(*errors):
        effect, nan = np.array([0.5, 0.01]), np.full(2, np.nan)
        return Relevance(["a", "b"], effect, np.array(errors), nan, nan, effect <= 2 * np.array(errors))

    assert about_inputs(table(0.05, 0.01)) == ["b explains little of y: dropping it should change little."]
    assert about_inputs(table(0.05, 0.1)) == about_inputs(table(0.05, 0.01), but={"b"}) == []


def test_the_page_says_what_was_judged(drawn):
    X, kernel, draws = drawn
    text = str(
        mc.GaussianProcessRegressor(kernel, noise=0.04, learning=None, normalize=False).fit(X, draws[3]).report()
    )
    assert "leave-one-out residuals at parameters learned from all rows" in " ".join(text.split())
    assert "by chance" in text


def test_advice_fits_the_model_and_the_target():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 2)) * [1, 1000]
    default = mc.GaussianProcessRegressor(progress=False).fit(X, rng.normal(size=60))
    assert "explains little of y: try n_restarts=5, another kernel, or other inputs" in str(default.report())
    assert "similar scales" not in str(default.report())
    given = mc.GaussianProcessRegressor(1.0 * k.RBF(1.0), progress=False).fit(X, rng.normal(size=60))
    assert "inputs on similar scales" in str(given.report())
    assert "GaussianProcessClassifier" not in str(given.report())
    labels = mc.GaussianProcessRegressor(1.0 * k.RBF(1.0), progress=False).fit(X, (X[:, 0] > 0).astype(float))
    assert "y has two distinct values: if they are classes, use GaussianProcessClassifier" in str(labels.report())


def test_a_model_of_varying_noise_does_not_advise_itself():
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 1, 120)
    X, y = x[:, None], np.sin(6 * x) + np.where(x > 0.5, 1.0, 0.05) * rng.normal(size=120)
    kernel = 1.0 * k.RBF(0.3)
    plain = mc.GaussianProcessRegressor(kernel, progress=False).fit(X, y).report()
    assert any("try HeteroscedasticGaussianProcessRegressor" in text for text in plain.suggestions)
    nearly_constant = mc.HeteroscedasticGaussianProcessRegressor(
        kernel, 0.5, noise_kernel=1e-3 * k.RBF(1.0), learning=None, progress=False
    ).fit(X, y)
    (found,) = (one for one in nearly_constant.report().findings if one.kind == "spread")
    assert "try another noise_kernel, or give" in found.remedy
