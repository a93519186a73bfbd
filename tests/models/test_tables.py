"""Models of tables with numbers, booleans, dates, categories and text, by the default kernel."""

import datetime
import warnings

import matplotlib as mpl
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

import mercer as mc
from mercer import kernels as k
from mercer.persist import load, save

mpl.use("agg")
FIRST = datetime.datetime(2020, 1, 1)


def make(n, seed=0):
    """A wave whose height depends on the colour, a level for each of many towns, and a trend in time."""
    rng = np.random.default_rng(seed)
    a, days = rng.normal(size=n), rng.integers(0, 1000, n)
    colour, town = rng.choice(["red", "green", "blue"], n), rng.integers(0, 12, n)
    level = np.random.default_rng(7).normal(size=12)[town]
    y = np.where(colour == "red", 2.0, 0.5) * np.sin(2 * a) + level + days / 365 + 0.1 * rng.normal(size=n)
    columns = {
        "a": a,
        "when": [FIRST + datetime.timedelta(days=int(d)) for d in days],
        "colour": colour.tolist(),
        "town": [f"t{i}" for i in town],
        "ok": rng.random(n) < 0.5,
    }
    return columns, y


COLUMNS, Y = make(90)
NEW, TRUTH = make(300, 1)


def error(model, columns):
    return np.sqrt(np.mean((model.predict(pl.DataFrame(columns)) - TRUTH) ** 2))


@pytest.fixture(scope="module")
def fitted():
    return mc.GaussianProcessRegressor(progress=False).fit(pl.DataFrame(COLUMNS), Y)


def test_categories_and_dates_predict_better_than_the_numbers_alone(fitted):
    alone = mc.GaussianProcessRegressor(progress=False).fit(pl.DataFrame(COLUMNS).select("a", "ok"), Y)
    assert error(fitted, NEW) < 0.25
    assert error(alone, {name: NEW[name] for name in ("a", "ok")}) > 1.0


def test_what_was_decided_is_printed(fitted):
    assert [column.kind for column in fitted.columns_] == ["number", "date", "category", "category", "boolean"]
    for text in (str(fitted), fitted.report().sections["Columns"]):
        assert "categories (3 distinct)" in text
        assert "dates, as decimal years" in text
    assert "interactions" in str(fitted.choice_)
    assert {"colour_variance", "colour_interaction_variance"} <= set(fitted.parameter_names_)


def test_pandas_and_polars_in_any_order_of_columns(fitted):
    frame = pd.DataFrame(NEW, index=np.arange(300)[::-1])[["town", "ok", "a", "colour", "when"]]
    expected = fitted.predict(pl.DataFrame(NEW), return_std=True)
    np.testing.assert_allclose(fitted.predict(frame, return_std=True), expected, rtol=1e-10)
    settings = {"kernel": fitted.kernel_, "noise": fitted.noise_, "learning": None}
    encoded = fitted.columns_.encode(pd.DataFrame(COLUMNS, index=np.arange(len(Y)) + 9))
    twin = mc.GaussianProcessRegressor(**settings).fit(encoded, Y)
    np.testing.assert_allclose(twin.predict(fitted.columns_.encode(frame)), expected[0], rtol=1e-6)


def test_new_categories_are_predicted_with_less_certainty(fitted):
    known = pl.DataFrame(NEW)[:5]
    new = known.with_columns(town=pl.lit("nowhere"), colour=pl.Series(["red", None, "red", "violet", "red"]))
    mean, deviation = fitted.predict(new, return_std=True)
    assert np.isfinite(mean).all()
    assert (deviation > fitted.predict(known, return_std=True)[1] + 0.3).all()


def test_relevance_finds_the_columns(fitted):
    found = fitted.relevance()
    assert found.names == ["a", "when", "colour", "town", "ok"]
    assert found.irrelevant.tolist() == [False, False, False, False, True]
    assert np.isfinite(found.lengthscale[[0, 1, 4]]).all()
    assert np.isnan(found.lengthscale[[2, 3]]).all()


def test_further_rows_and_files(fitted, tmp_path):
    save(fitted, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert again.columns_ == fitted.columns_
    np.testing.assert_array_equal(again.predict(pl.DataFrame(NEW)), fitted.predict(pl.DataFrame(NEW)))
    more = again.update(pl.DataFrame(NEW)[:50], TRUTH[:50])  # raw rows, into a loaded model
    assert error(more, NEW) < error(fitted, NEW)


def test_plans_and_checkpoints(tmp_path):
    frame = pl.DataFrame(COLUMNS)
    assert mc.GaussianProcessRegressor().plan(frame).method == "dense"
    first = mc.GaussianProcessRegressor(progress=False, checkpoint=tmp_path / "c").fit(frame, Y)
    again = mc.GaussianProcessRegressor(progress=False, checkpoint=tmp_path / "c").fit(frame, Y)
    assert again.n_evaluations_ < first.n_evaluations_ / 2
    np.testing.assert_allclose(again.predict(frame), first.predict(frame))


def test_categories_alone():
    frame = pl.DataFrame(COLUMNS).select("colour", "town")
    level = np.random.default_rng(7).normal(size=12)
    y = level[[int(t[1:]) for t in COLUMNS["town"]]] + 0.5 * (frame["colour"] == "red").to_numpy()
    y = y + 0.1 * np.random.default_rng(1).normal(size=len(y))
    model = mc.GaussianProcessRegressor(progress=False).fit(frame, y)
    assert model.choice_ is None
    truth = level[[int(t[1:]) for t in NEW["town"]]] + 0.5 * (np.array(NEW["colour"]) == "red")
    np.testing.assert_allclose(model.predict(pl.DataFrame(NEW).select("town", "colour")), truth, atol=0.25)


def test_classification():
    names = ["town", "colour", "a"]
    labels, truth = (np.where(y > np.median(Y), "high", "low") for y in (Y, TRUTH))
    model = mc.GaussianProcessClassifier(inference="laplace", progress=False).fit(pl.DataFrame(COLUMNS)[names], labels)
    assert model.score(pd.DataFrame(NEW)[names[::-1]], truth) > 0.65
    assert "categories (3 distinct)" in str(model)
    assert "Columns" in model.report().sections
    assert len(model.relevance()) == 3


def test_text_is_compared_by_what_it_shares():
    rng = np.random.default_rng(3)
    codes = ["".join(rng.choice(list("ACGT"), 8)) for _ in range(160)]
    y = np.array([code.count("AC") - code.count("G") for code in codes]) + 0.1 * rng.normal(size=160)
    frame = pd.DataFrame({"code": codes})
    model = mc.GaussianProcessRegressor(progress=False).fit(frame[:100], y[:100])
    assert model.columns_.columns[0].kind == "text"
    assert model.score(frame[100:], y[100:]) > 0.8


def test_plots(fitted):
    for draw in (mc.plot.calibration, mc.plot.predictions):
        assert draw(fitted) is not None
    assert mc.plot.relevance(fitted) is not None


def test_a_frame_of_numbers_is_what_it_was():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    frame = pd.DataFrame(X, columns=["a", "b"])
    plain, named = (mc.GaussianProcessRegressor(progress=False).fit(data, y) for data in (X, frame))
    np.testing.assert_array_equal(plain.theta_, named.theta_)
    assert plain.columns_ is None
    assert "numbers" not in str(named)
    years = 1970 + X[:, 0] * 10
    when = pl.Series([datetime.datetime(1970, 1, 1) + datetime.timedelta(days=3652.5 * v) for v in X[:, 0]])
    dated = mc.GaussianProcessRegressor(progress=False).fit(pl.DataFrame({"a": when, "b": X[:, 1]}), y)
    twin = mc.GaussianProcessRegressor(progress=False).fit(np.column_stack([years, X[:, 1]]), y)
    np.testing.assert_allclose(dated.theta_, twin.theta_, rtol=1e-4, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(named.predict(frame), plain.predict(X))


# -- rows that a kernel cannot read, in data that are read in parts -------------------------------------------------

WORDS = ["ab", "abc", "bcd", "cda", "dab", "bbc", "ccd", "ad"]
MANY_WORDS = [*(WORDS * 150)[:1100], None, *WORDS]  # parts have 504 rows or more
LABELS = ["u", "v"] * 4


@pytest.mark.parametrize(
    ("model", "y", "method"),
    [
        (mc.GaussianProcessRegressor(k.Spectrum(1), solver="dense", learning=None, noise=0.1), range(8), "predict"),
        (mc.GaussianProcessRegressor(k.Spectrum(1), solver="weights", learning=None, noise=0.1), range(8), "predict"),
        (mc.GaussianProcessRegressor(k.Spectrum(1), solver="weights", learning=None, noise=0.1), range(8), "decompose"),
        (mc.GaussianProcessClassifier(k.Spectrum(1), learning=None), LABELS, "predict"),
        (mc.GaussianProcessClassifier(k.Spectrum(1), learning=None, solver="weights"), LABELS, "predict_proba"),
        (mc.GaussianProcessClassifier(k.Spectrum(1), learning=None), ["u", "v", "w", "w"] * 2, "predict_proba"),
        (mc.KernelNeighborsClassifier(2, k.Spectrum(1)), LABELS, "predict"),
        (mc.KernelRidge(k.Spectrum(1)), range(8), "predict"),
        (mc.KernelPCA(2, kernel=k.Spectrum(1)), None, "transform"),
        (mc.KernelFisherDiscriminant(k.Spectrum(1)), LABELS, "predict"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (repr(value)[:50] if not isinstance(value, str) else value),
)  # fmt: skip
@pytest.mark.parametrize("in_a_frame", [False, True])
def test_a_row_that_cannot_be_read_is_numbered_as_in_the_data(model, y, method, in_a_frame, monkeypatch):
    monkeypatch.setattr("mercer.core.machine.GRAM_BYTES", 1)
    X, Z, model, where = WORDS, MANY_WORDS, clone(model), ""
    if in_a_frame:
        X, Z, where = pd.DataFrame({"word": WORDS}), pd.DataFrame({"word": MANY_WORDS}), "column 'word', "
        model.set_params(kernel=k.Spectrum(1).on("word"))
    model.fit(X, None if y is None else list(y))
    with pytest.raises(mc.DataError, match=f"^{where}row 1100: a missing value"):
        getattr(model, method)(Z)


@pytest.mark.parametrize(
    "y", [np.arange(1109.0) % 7, np.array(["u", "v"])[np.arange(1109) % 2]], ids=["numbers", "labels"]
)
def test_a_choice_of_kernels_reads_all_rows(y):
    settings = {"max_rows": 20, "progress": False}
    with pytest.raises(mc.ParameterError, match=r"row 1100: a missing value"):
        mc.select_kernel(MANY_WORDS, y, [k.Spectrum(1)], **settings)
    with pytest.raises(mc.ParameterError, match=r"row 0: a missing value"):
        mc.select_kernel(
            [None, *MANY_WORDS[1:1100], *MANY_WORDS[1101:], "ab"], y, [k.BagOfWords(idf=False)], **settings
        )


# -- without a kernel ------------------------------------------------------------------------------------------------


def few(n=60, seed=0):
    """A level for each colour and a slope, in a table with dates and remarks."""
    rng = np.random.default_rng(seed)
    colour, x = rng.choice(["red", "green", "blue"], size=n), rng.normal(size=n)
    remark = [" ".join(rng.choice(["new", "old", "used", "rare", "cheap"], size=4)) for _ in range(n)]
    when = [FIRST + datetime.timedelta(days=int(i)) for i in rng.integers(0, 900, size=n)]
    y = x + 2.0 * (colour == "red") + 0.1 * rng.normal(size=n)
    return {"x": x, "colour": colour, "remark": remark, "when": when}, y


@pytest.mark.parametrize(
    ("of", "settings"),
    [(pd.DataFrame, {}), (pl.DataFrame, {"criterion": "evidence"}), (pl.DataFrame, {"max_rows": 40})],
)
def test_a_choice_of_the_default_family_reads_tables(of, settings):
    data, y = few()
    X = of(data)
    found = mc.select_kernel(X, y, progress=False, **settings)
    assert [column.kind for column in found.columns] == ["number", "category", "words", "date"]
    assert len(found.tried) > 1
    encoded = found.columns.encode(X)
    model = mc.GaussianProcessRegressor(found.kernel, noise=found.noise, learning=None).fit(encoded, y)
    new, truth = few(seed=1)
    assert np.mean((model.predict(found.columns.encode(of(new))) - truth) ** 2) < 0.2 * np.var(truth)
    classes = mc.select_kernel(X, np.where(y > 1, "high", "low"), progress=False, **settings)
    assert len(classes.tried) > 1
    assert isinstance(classes.kernel, k.Kernel)


def test_a_choice_of_the_default_family_without_numbers():
    data, y = few()
    X = pd.DataFrame({"colour": data["colour"]})
    found = mc.select_kernel(X, y, progress=False)
    assert found.kernel(X).shape == (60, 60)
    assert "colour" in str(found)


@pytest.mark.parametrize("model", [
    mc.KernelRidge(None), mc.KernelPerceptron(None), mc.KernelFisherDiscriminant(), mc.KernelNeighborsClassifier(),
    mc.KernelPCA(), mc.NadarayaWatson(), mc.RBFNetwork(),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_other_default_kernels_say_which_kernel_reads_a_table(model):
    data, y = few()
    labels = np.where(y > 1, "high", "low") if hasattr(model, "_check_labels") else y
    with pytest.raises(mc.DataError) as error:
        model.fit(pd.DataFrame(data), labels)
    said = str(error.value)
    assert "'colour'" in said
    assert "RBF().on('x') + Categorical().on('colour') + BagOfWords().normalize().on('remark')" in said
    assert "X['when']" in said
