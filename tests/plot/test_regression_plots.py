"""Pictures of fitted regressions: what is drawn is what was found."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
from scipy.stats import norm

import mercer as mc

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 6, 40))
y = np.sin(x) + 0.2 * rng.normal(size=40)


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def model():
    return mc.GaussianProcessRegressor().fit(pl.DataFrame({"time": x}), y)


def coverage_at(line, level):
    return line.get_ydata()[np.argmin(np.abs(line.get_xdata() - level))]


def test_calibration_is_the_share_of_rows_that_intervals_hold():
    z = rng.normal(size=2000)
    mean, deviation = rng.normal(size=2000), rng.uniform(0.5, 2.0, 2000)
    ax = mc.plot.calibration(mean + z * deviation, mean, deviation, label="honest")
    ax = mc.plot.calibration(mean + 2 * z * deviation, mean, deviation, ax=ax, label="too narrow")
    ideal, honest, narrow = ax.get_lines()  # the diagonal once
    np.testing.assert_array_equal(ideal.get_xdata(), ideal.get_ydata())
    for level in (0.25, 0.5, 0.95):
        assert coverage_at(honest, level) == np.mean(np.abs(z) <= norm.ppf(0.5 + level / 2))
        assert coverage_at(honest, level) == pytest.approx(level, abs=0.04)
        assert coverage_at(narrow, level) == np.mean(np.abs(2 * z) <= norm.ppf(0.5 + level / 2))
    assert coverage_at(honest, 1.0) == 1.0
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["ideal", "honest, n = 2,000", "too narrow, n = 2,000"]
    assert len(ax.collections) == 2  # what chance allows each of them


def test_the_band_of_calibration_holds_honest_models_nearly_always():
    inside = []
    for _ in range(40):
        ax = mc.plot.calibration(rng.normal(size=60), np.zeros(60), np.ones(60), ax=plt.figure().add_subplot())
        line, band = ax.get_lines()[1], ax.collections[0].get_paths()[0]
        level = 0.6
        at = np.isclose(band.vertices[:, 0], level)
        low, high = band.vertices[at, 1].min(), band.vertices[at, 1].max()
        inside.append(low <= coverage_at(line, level) <= high)
        plt.close("all")
    assert np.mean(inside) >= 0.85


def test_a_fitted_model_is_judged_by_leaving_one_out(model):
    loo = model.loo()
    z = (y - loo.mean) / np.sqrt(loo.variance)
    line = mc.plot.calibration(model).get_lines()[1]
    assert line.get_label() == "leave-one-out, n = 40"
    assert coverage_at(line, 0.8) == np.mean(np.abs(z) <= norm.ppf(0.9))
    ax = mc.plot.predictions(model)
    drawn = np.concatenate([bars.lines[0].get_xydata() for bars in ax.containers])
    assert {tuple(row) for row in drawn} == set(zip(loo.mean, y, strict=True))


def test_predictions_tell_what_their_intervals_missed():
    mean, deviation = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 0.1])
    ax = mc.plot.predictions(np.array([0.5, 1.5, 3.0]), mean, deviation, level=0.8)
    held, missed = ax.containers
    np.testing.assert_array_equal(held.lines[0].get_xydata(), [[0.0, 0.5], [1.0, 1.5]])
    np.testing.assert_array_equal(missed.lines[0].get_xydata(), [[2.0, 3.0]])
    (first, *_) = held.lines[2][0].get_segments()
    np.testing.assert_allclose(first, [[-norm.ppf(0.9), 0.5], [norm.ppf(0.9), 0.5]])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["inside the 80% interval (2)", "outside the 80% interval (1)"]


def test_relevance_has_the_largest_effect_on_top():
    rng = np.random.default_rng(1)  # its own: others draw in any order
    X = rng.normal(size=(40, 3))
    fitted = mc.GaussianProcessRegressor().fit(
        pl.DataFrame(X, schema=["little", "none", "much"]),
        np.sin(2 * X[:, 2]) + 0.3 * np.cos(X[:, 0]) + 0.05 * rng.normal(size=40),
    )
    table = fitted.relevance()
    ax = mc.plot.relevance(fitted)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["none", "little", "much"]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], table.effect[[1, 0, 2]])
    assert table.irrelevant.tolist() == [False, True, False]
    grey, *others = [bar.get_facecolor()[:3] for bar in ax.patches]
    assert grey == (0.75, 0.75, 0.75)
    assert all(colour != grey for colour in others)
    ax = mc.plot.relevance(table, most=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["little", "much"]
    assert ax.get_title() == "the 2 most relevant of 3 inputs"


def test_posterior_of_a_fitted_regressor(model):
    grid = pl.DataFrame({"time": np.linspace(-1, 7, 50)})
    for noise in (False, True):
        ax = mc.plot.posterior(model, grid, include_noise=noise, level=0.95)
        mean, data = ax.get_lines()
        m, s = model.predict(grid, return_std=True, include_noise=noise)
        np.testing.assert_allclose(mean.get_ydata(), m)
        np.testing.assert_allclose(data.get_xydata(), np.column_stack([x, y]))
        band = ax.collections[0].get_paths()[0].vertices
        assert band[:, 1].max() == pytest.approx((m + norm.ppf(0.975) * s).max())
        assert ax.get_legend().get_texts()[0].get_text() == "95% interval"


def test_posterior_of_a_process_with_noise():
    g = mc.GP(mc.kernels.RBF(0.3)).condition([0.9, 0.2], [1.0, -1.0], noise=0.1)
    ax = mc.plot.posterior(g, np.linspace(0, 1, 20), include_noise=True)
    grid = np.linspace(0, 1, 20)
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(g.predict(grid, noise=0.1).interval(0.95)[1].max())


def test_what_cannot_be_drawn():
    with pytest.raises(mc.DataError, match="give a fitted model, or measurements"):
        mc.plot.calibration([1.0, 2.0])
    with pytest.raises(mc.DataError, match="mean must hold one number per row"):
        mc.plot.predictions([1.0, 2.0], [1.0], [1.0, 1.0])
    with pytest.raises(mc.DataError, match="must not be negative"):
        mc.plot.predictions([1.0], [1.0], [-1.0])
    with pytest.raises(mc.ParameterError, match="level must lie between"):
        mc.plot.predictions([1.0], [1.0], [1.0], level=95)
