"""The command line: a table in; a model, a report, predictions and pictures out; errors of one line."""

import datetime
import gzip
import re

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.stats import norm

import mercer as mc
from commands import call, refused
from mercer.cli import classes, fit, large, quantities, tables
from mercer.cli.columns import ColumnOptions, settle
from mercer.models.classification import GaussianProcessClassifier
from mercer.persist import load, save

FIRST = datetime.date(2020, 1, 1)


def make_table(n=60, seed=0):
    """Numbers, a date, texts, booleans and a constant, and a target that depends on all but the last."""
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 1000, n)
    a, colour, ok = rng.normal(size=n), rng.choice(["red", "green", "blue"], n), rng.random(n) < 0.5
    y = 2 * a + 1.5 * (colour == "red") + 0.5 * ok + days / 365 + 0.3 * rng.normal(size=n)
    when = [FIRST + datetime.timedelta(days=int(d)) for d in days]
    return pl.DataFrame({"a": a, "when": when, "colour": colour, "ok": ok, "same": ["x"] * n, "y": y})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    make_table().write_csv(folder / "data.csv")
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """What `mercer fit` said and wrote."""
    result = call("fit", folder / "data.csv", "--target", "y", "--output", folder / "out")
    return result, folder / "out"


# -- fit -----------------------------------------------------------------------------------------------------------


def test_fit_writes_everything_and_prints_the_report(fitted):
    result, out = fitted
    assert {path.name for path in out.iterdir()} == set(quantities.FILES) - {"fit.png", "map.png"}
    text = (out / "report.txt").read_text()
    assert text in result.stdout
    for said in (
        "60 rows, 4 inputs (a, when, colour, ok), target y",
        "column 'colour' is read as categories (3 distinct), with a kernel of its own",
        "48 training rows, 12 held out",
        "The saved model has the training rows only",
        "constant columns ignored: same",
        "Held-out rows",
        "Calibration of leave-one-out intervals",
        "Suggestions",
    ):
        assert said in text
    assert "note: constant columns ignored: same" in result.stderr
    for picture in out.glob("*.png"):
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert picture.stat().st_size > 10_000


def test_predictions_of_held_out_rows(fitted, folder):
    _, out = fitted
    table = pl.read_csv(out / "predictions.csv")
    assert table.columns == ["row", "target", "mean", "std", "lower95", "upper95", "z"]
    assert len(table) == 12
    whole = make_table()
    rows = table["row"].to_numpy()
    np.testing.assert_allclose(table["target"], whole["y"].to_numpy()[rows - 1])
    np.testing.assert_allclose(table["z"], (table["target"] - table["mean"]) / table["std"])
    np.testing.assert_allclose(table["upper95"] - table["mean"], norm.ppf(0.975) * table["std"])
    np.testing.assert_allclose(table["mean"] - table["lower95"], norm.ppf(0.975) * table["std"])
    # An independent reading of the same table: the held-out rows were not in the fit.
    days = whole["when"].to_numpy().astype("datetime64[D]").astype(float)
    X = whole.select("a", "colour", "ok").with_columns(when=pl.Series(1970 + days / 365.25))
    X = X.select("a", "when", "colour", "ok")
    seen = np.setdiff1d(np.arange(60), rows - 1)
    model = load(out / "model.safetensors")
    np.testing.assert_allclose(model.y_train_, whole["y"].to_numpy()[seen])
    twin = mc.GaussianProcessRegressor(random_state=0).fit(X[seen], whole["y"].to_numpy()[seen])
    mean, deviation = twin.predict(X[rows - 1], return_std=True)
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(table["std"], deviation, rtol=1e-6)
    text = (out / "report.txt").read_text()
    within = np.mean(np.abs(table["z"].to_numpy()) <= norm.ppf(0.75))
    held_out = text.partition("Held-out rows\n")[2].partition("\nFit\n")[0]
    assert re.search(rf"50% +{within:.1%} ", held_out)
    assert re.search(r"rows +12 +48\n", held_out)


def test_refit_adds_the_held_out_rows_at_the_same_parameters(fitted, folder):
    _, out = fitted
    result = call("fit", folder / "data.csv", "--target", "y", "--output", folder / "refit", "--refit", "--quiet")
    assert result.output == ""
    assert "The saved model has all rows" in (folder / "refit" / "report.txt").read_text()
    assert_frame_equal(pl.read_csv(folder / "refit" / "predictions.csv"), pl.read_csv(out / "predictions.csv"))
    before, after = load(out / "model.safetensors"), load(folder / "refit" / "model.safetensors")
    assert after.kernel_ == before.kernel_
    assert sorted(after.y_train_) == sorted(make_table()["y"])
    assert after.columns_ == before.columns_
    names = {entry["name"] for entry in after.table_["inputs"]}
    assert names == {entry["name"] for entry in before.table_["inputs"]} == {"a", "when", "colour", "ok"}


def test_the_report_judges_held_out_rows_also_with_refit(tmp_path):
    """Other noise in the rows that seed 0 holds out: a report on a model that had seen them would not find it."""
    rng = np.random.default_rng(0)
    x, y = np.linspace(0, 1, 80), rng.normal(size=80)
    rows = tables.TableRows(pl.DataFrame({"x": x}), y, np.arange(80))
    there = fit.split(rows, 0.25, 0)[1].numbers
    y = 3 * x + 0.1 * y
    y[there] += 2 * rng.choice([-1, 1], 20)
    pl.DataFrame({"x": x, "y": y}).write_csv(tmp_path / "t.csv")
    arguments = ("--target", "y", "--output", tmp_path / "out", "--test-share", 0.25, "--refit", "--quiet")
    call("fit", tmp_path / "t.csv", *arguments)
    text = (tmp_path / "out" / "report.txt").read_text()
    assert "- held-out rows are predicted worse than leave-one-out suggests" in text
    assert "of the rows held out" in text
    assert len(load(tmp_path / "out" / "model.safetensors").y_train_) == 80


def test_no_rows_held_out(folder):
    out = folder / "none"
    out.mkdir()
    (out / "predictions.csv").write_text("of another run")
    call("fit", folder / "data.csv", "--target", "y", "--output", out, "--test-share", 0, "--quiet")
    assert {path.name for path in out.iterdir()} == set(quantities.FILES) - {"fit.png", "map.png", "predictions.csv"}
    text = (out / "report.txt").read_text()
    assert "60 training rows, 0 held out" in text
    assert "Held-out rows" not in text


def test_one_input_is_drawn_and_the_folder_is_named_after_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.linspace(0, 6, 40)
    with gzip.open("waves.csv.gz", "wt") as file:
        file.write(pl.DataFrame({"x": x, "y": np.sin(x)}).write_csv())
    result = call("fit", "waves.csv.gz", "--target", "y", "--seed", 3)
    assert {path.name for path in (tmp_path / "waves_mercer").iterdir()} == set(quantities.FILES) - {"map.png"}
    assert "1 input (x)" in result.stdout
    assert "with seed 3" in result.stdout
    assert "Written to waves_mercer: model.safetensors" in result.stdout


def test_an_interrupted_fit_is_written_all_the_same(folder, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mercer.learning.optimise.release", interrupt)
    result = call("fit", folder / "data.csv", "--target", "y", "--output", folder / "interrupted")
    assert "the fit was interrupted" in result.stderr
    assert "the fit was interrupted" in (folder / "interrupted" / "report.txt").read_text()
    assert {path.name for path in (folder / "interrupted").iterdir()} == set(quantities.FILES) - {"fit.png", "map.png"}


def test_rows_with_missing_values_are_refused_or_left_out(folder):
    frame = make_table().with_row_index()
    missing = frame.with_columns(
        pl.when(pl.col("index") == 4).then(None).otherwise(pl.col("a")).alias("a"),
        pl.when(pl.col("index").is_in([4, 7])).then(None).otherwise(pl.col("colour")).alias("colour"),
        pl.when(pl.col("index") == 9).then(float("nan")).otherwise(pl.col("y")).alias("y"),
        pl.lit(None).alias("nothing"),
    ).drop("index")
    path = folder / "missing.csv"
    missing.write_csv(path)
    line = refused("fit", path, "--target", "y", "--output", folder / "missing")
    assert "1 in a; 1 of 60 rows are affected, the first is row 5." in line
    assert "--drop-missing" in line
    assert not (folder / "missing").exists()
    result = call("fit", path, "--target", "y", "--output", folder / "missing", "--drop-missing")
    assert "3 of 60 rows dropped" in result.stderr
    assert "empty columns ignored: nothing" in result.stderr
    text = (folder / "missing" / "report.txt").read_text()
    assert "57 rows, 4 inputs" in text
    assert "3 of 60 rows dropped" in text
    # Rows are numbered as in the file, those left out included.
    table = pl.read_csv(folder / "missing" / "predictions.csv")
    np.testing.assert_allclose(table["target"], frame["y"].to_numpy()[table["row"].to_numpy() - 1])


def test_rows_without_a_target_are_gaps_and_predicted(folder):
    frame = make_table().with_row_index()
    gap = pl.col("index").is_in([9, 30])
    frame.with_columns(y=pl.when(gap).then(None).otherwise("y")).drop("index").write_csv(folder / "gap.csv")
    result = call("fit", folder / "gap.csv", "--target", "y", "--output", folder / "gap")
    assert "2 of 60 rows have no y: they are gaps" in result.stderr
    assert "58 rows, 4 inputs" in (folder / "gap" / "report.txt").read_text()
    table, model = pl.read_csv(folder / "gap" / "predictions.csv"), load(folder / "gap" / "model.safetensors")
    assert len(table) == 12 + 2
    assert table.filter(pl.col("target").is_null())["row"].to_list() == [10, 31]
    X = tables.typed(frame, model.table_["inputs"])[[9, 30]]
    np.testing.assert_allclose(table.filter(pl.col("row").is_in([10, 31]))["mean"], model.predict(X), rtol=1e-9)
    none = frame.with_columns(y=pl.lit(None, dtype=pl.Float64))
    none.write_parquet(folder / "none.parquet")
    line = refused("fit", folder / "none.parquet", "--target", "y", "--output", folder / "never")
    assert "the target 'y' has no value in any row" in line


def test_missing_text_is_read_as_in_python(folder):
    frame = make_table().with_row_index()
    missing = frame.with_columns(
        pl.when(pl.col("index") % 9 == 4).then(None).otherwise(pl.col("colour")).alias("colour")
    ).drop("index")
    path, out = folder / "holes.csv", folder / "holes"
    missing.write_csv(path)
    result = call("fit", path, "--target", "y", "--output", out)
    assert "missing text stays: 7 in colour" in result.stderr
    missing.drop("y")[:9].write_csv(folder / "new.csv")
    result = call("predict", out, folder / "new.csv", "--output", folder / "p.csv")
    assert "not in the fit" not in result.stderr
    model = load(out / "model.safetensors")
    inputs = [entry["name"] for entry in model.table_["inputs"]]
    expected = model.predict(missing[:9].select(inputs).cast({"colour": pl.Categorical}))
    np.testing.assert_allclose(pl.read_csv(folder / "p.csv")["mean"], expected, rtol=1e-9)


# -- classes -------------------------------------------------------------------------------------------------------


def make_labels(n=60, seed=1):
    """Two words that depend on a number and a text; another number that says nothing."""
    rng = np.random.default_rng(seed)
    a, b, colour = rng.normal(size=n), rng.normal(size=n), rng.choice(["red", "green"], n)
    kind = np.where(a + (colour == "red") + 0.3 * rng.normal(size=n) > 0.5, "big", "a little")
    return pl.DataFrame({"a": a, "b": b, "colour": colour, "kind": kind})


@pytest.fixture(scope="module")
def classified(folder):
    make_labels().write_csv(folder / "labels.csv")
    result = call("fit", folder / "labels.csv", "--target", "kind", "--output", folder / "classes", "--refit")
    return result, folder / "classes"


def test_a_target_of_text_is_classified(classified):
    result, out = classified
    assert {path.name for path in out.iterdir()} == set(classes.FILES) - {"fit.png"}
    text = (out / "report.txt").read_text()
    assert text in result.stdout
    for said in (
        "Gaussian process classification, 48 rows, 2 classes",
        "60 rows, 3 inputs (a, b, colour), target kind",
        "48 training rows, 12 held out",
        "The saved model has all rows",
        "predicted a little",
        "Calibration of leave-one-out probabilities",
    ):
        assert said in text
    for picture in out.glob("*.png"):
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert picture.stat().st_size > 10_000


def test_held_out_classes_and_their_probabilities(classified):
    _, out = classified
    table, whole = pl.read_csv(out / "predictions.csv"), make_labels()
    assert table.columns == ["row", "target", "predicted", "p(a little)", "p(big)", "log_score"]
    rows = table["row"].to_numpy()
    assert table["target"].to_list() == whole["kind"].to_numpy()[rows - 1].tolist()
    P = table.select("p(a little)", "p(big)").to_numpy()
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    assert table["predicted"].to_list() == ["big" if q > p else "a little" for p, q in P]
    big = (table["target"] == "big").to_numpy()
    np.testing.assert_allclose(table["log_score"], np.log(np.where(big, P[:, 1], P[:, 0])))
    wrong = (table["target"] != table["predicted"]).sum()
    text = (out / "report.txt").read_text()
    held_out = text.partition("Held-out rows\n")[2].partition("\nFit\n")[0]
    assert re.search(rf"errors +{wrong} ", held_out)
    # Judged before --refit gave the model these rows.
    assert re.search(rf"log score per row +{table['log_score'].mean():.4f} ", held_out)
    # The same share of each class is held out, to a row.
    counts = dict(whole["kind"].value_counts().iter_rows())
    assert abs(big.sum() - 0.2 * counts["big"]) < 1
    # An independent reading: the rows held out were not in the fit, and are in the model saved, at its parameters.
    X = whole.select("a", "b", "colour")
    y, seen = whole["kind"].to_numpy(), np.setdiff1d(np.arange(60), rows - 1)
    twin = GaussianProcessClassifier(inference="ep", random_state=0).fit(X[seen], y[seen])
    np.testing.assert_allclose(P, twin.predict_proba(X[rows - 1]), rtol=1e-6)
    model = load(out / "model.safetensors")
    assert len(model.codes_) == 60
    for name, value in model.kernel_.parameters.items():
        np.testing.assert_allclose(value, twin.kernel_.parameters[name], rtol=1e-6)


def test_predict_writes_classes_and_probabilities(classified, folder):
    _, out = classified
    frame = make_labels(seed=2).select("colour", "b", "a")
    frame.write_csv(folder / "new_labels.csv")
    call("predict", out, folder / "new_labels.csv", "--output", folder / "p.csv", "--quiet")
    table = pl.read_csv(folder / "p.csv")
    assert table.columns == ["row", "predicted", "p(a little)", "p(big)", "outside"]
    model = load(out / "model.safetensors")
    assert table["predicted"].to_list() == model.predict(frame).tolist()
    np.testing.assert_allclose(table.select("p(a little)", "p(big)"), model.predict_proba(frame), rtol=1e-10)


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_model_of_one_or_two_inputs_is_drawn_itself(tmp_path, names):
    frame = make_labels()
    model = GaussianProcessClassifier(mc.kernels.RBF(), learning=None).fit(frame.select(names), frame["kind"])
    classes.draw(model, None, "kind", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"reliability.png", "relevance.png", "fit.png"}
    assert (tmp_path / "fit.png").stat().st_size > 10_000


def test_a_long_series_of_dates_is_drawn_along_them(tmp_path):
    when = np.datetime64("2020-01-01") + np.arange(1300)
    y = np.sin(np.arange(1300) / 60) + 0.1 * np.random.default_rng(0).normal(size=1300)
    pl.DataFrame({"when": when, "y": y}).write_csv(tmp_path / "series.csv")
    call("fit", tmp_path / "series.csv", "--target", "y", "--output", tmp_path / "out", "--quiet")
    assert (tmp_path / "out" / "fit.png").stat().st_size > 10_000


def test_classes_over_dates_are_drawn_along_them(tmp_path, monkeypatch):
    frame = make_table().select("when", kind=pl.col("colour"))
    model = GaussianProcessClassifier(learning=None).fit(frame.select("when"), frame["kind"])
    drawn = []
    monkeypatch.setattr(classes.Pictures, "keep", lambda self, ax, name: drawn.append(ax))
    classes.draw(model, None, "kind", tmp_path)
    assert drawn[-1].xaxis.get_major_formatter().__class__.__name__ == "ConciseDateFormatter"
    low, high = drawn[-1].get_xlim()
    assert low < (FIRST - datetime.date(1970, 1, 1)).days < high


def test_which_targets_are_classes(capsys):
    words, truths = pl.Series("w", ["u", "v", None]), pl.Series("t", [True, False, True])
    counts, sizes = pl.Series("n", [1, 2, 2]), pl.Series("s", [1.0, 2.5, 2.0])
    assert tables.task_of(words, None, print) == tables.task_of(truths, None, print) == "classification"
    assert tables.task_of(sizes, None, print) == "regression"
    assert capsys.readouterr().out == ""
    assert tables.task_of(counts, None, print) == "regression"
    assert "'n' holds 2 distinct integers, treated as quantities; use --task" in capsys.readouterr().out
    assert tables.task_of(counts, "classification", print) == "classification"
    assert tables.task_of(counts, "regression", print) == "regression"
    assert capsys.readouterr().out == ""
    assert tables.labels(words.drop_nulls()).tolist() == ["u", "v"]
    assert tables.labels(truths).tolist() == ["true", "false", "true"]
    assert tables.labels(counts.cast(pl.Float64)).tolist() == [1, 2, 2]
    assert tables.labels(words.drop_nulls().cast(pl.Categorical)).tolist() == ["u", "v"]


def test_labels_that_are_missing(folder):
    labels = make_labels()["kind"]
    make_labels().with_columns(kind=pl.Series([None, *labels[1:]])).write_csv(folder / "gaps.csv")
    call("fit", folder / "gaps.csv", "--target", "kind", "--output", folder / "gaps", "--test-share", "0", "--quiet")
    table = pl.read_csv(folder / "gaps" / "predictions.csv")
    assert table["row"].to_list() == [1]
    assert table["predicted"][0] in set(labels)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.55, 0.9])
def test_every_class_is_held_out_alike_and_never_whole(share):
    y = np.repeat(["a", "b", "c", "d"], [50, 30, 3, 1])
    rows = tables.TableRows(pl.DataFrame({"x": np.arange(84)}), y, np.arange(84) + 1)
    training, held = fit.split(rows, share, 0, by_class=True)
    assert sorted([*training.numbers, *held.numbers]) == rows.numbers.tolist()
    assert (np.diff(training.numbers) > 0).all()
    assert set(training.y) == {"a", "b", "c", "d"}
    assert share * 84 - 2.5 < len(held) <= share * 84 + 1
    for label, count in (("a", 50), ("b", 30)):
        assert abs(np.sum(held.y == label) - share * count) <= 1
    assert (
        fit.split(rows, 0.5, 0, by_class=True)[1].numbers.tolist() != fit.split(rows, 0.5, 1, True)[1].numbers.tolist()
    )


def test_longitude_and_latitude_are_on_the_sphere_and_drawn_as_a_map(tmp_path):
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(40, 60, 50), rng.uniform(-10, 10, 50)
    frame = pl.DataFrame({"Latitude": lat, "lon": lon, "rain": np.sin(lat / 3) + np.cos(lon / 4)})
    frame.write_csv(tmp_path / "rain.csv")
    call("fit", tmp_path / "rain.csv", "--target", "rain", "--output", tmp_path / "out")
    text = (tmp_path / "out" / "report.txt").read_text()
    assert "columns 'lon' and 'Latitude' are read as longitude and latitude" in text
    assert (tmp_path / "out" / "map.png").stat().st_size > 10_000
    model = load(tmp_path / "out" / "model.safetensors")
    assert ".on_sphere()" in repr(model.kernel_)
    call("predict", tmp_path / "out", tmp_path / "rain.csv", "--output", tmp_path / "new.csv")
    predicted = pl.read_csv(tmp_path / "new.csv")["mean"].to_numpy()
    assert np.corrcoef(predicted, frame["rain"].to_numpy())[0, 1] > 0.95


# -- predict -------------------------------------------------------------------------------------------------------


def test_predict_finds_columns_by_name_and_gives_what_the_fit_gave(fitted, folder, monkeypatch):
    _, out = fitted
    monkeypatch.chdir(folder)
    shuffled = make_table().select("ok", "colour", "same", "a", "when")
    shuffled.write_parquet("new.parquet")
    result = call("predict", out / "model.safetensors", "new.parquet")
    assert result.stdout == "Written to new_predictions.csv\n"
    assert "columns not used by the model: same" in result.stderr
    table = pl.read_csv("new_predictions.csv")
    assert table.columns == ["row", "mean", "std", "lower95", "upper95", "outside"]
    assert table["row"].to_list() == list(range(1, 61))
    before = pl.read_csv(out / "predictions.csv")
    again = table[(before["row"] - 1).to_list()]
    for name in table.columns[:-1]:
        np.testing.assert_allclose(again[name], before[name], rtol=1e-10, atol=1e-10)


def test_predict_takes_the_folder_and_leaves_rows_out(fitted, folder):
    _, out = fitted
    frame = make_table().drop("y", "same")
    frame = pl.concat([frame[:3], frame[3:4].with_columns(a=None), frame[4:6]], how="vertical_relaxed")
    frame.write_csv(folder / "holes.csv")
    target = folder / "deep" / "p.csv"
    assert "1 in a; 1 of 6 rows are affected, the first is row 4" in refused(
        "predict", out, folder / "holes.csv", "--output", target
    )
    assert not target.exists()
    call("predict", out, folder / "holes.csv", "--output", target, "--drop-missing", "--quiet")
    assert pl.read_csv(target)["row"].to_list() == [1, 2, 3, 5, 6]


def test_models_of_earlier_versions_have_a_column_for_each_value(folder):
    """Text became columns of 0 and 1, and ``columns_`` was the record of the table."""
    frame = make_table()
    inputs = [{"name": "a", "kind": "number"}, {"name": "colour", "kind": "category", "values": ["green", "red"]}]
    X = tables.encode(frame, inputs)
    model = mc.GaussianProcessRegressor(mc.kernels.RBF(), noise=0.1, learning=None).fit(X, frame["y"])
    model.columns_ = {"target": "y", "inputs": inputs}
    save(model, folder / "earlier.safetensors")
    frame.write_csv(folder / "now.csv")
    call("predict", folder / "earlier.safetensors", folder / "now.csv", "--output", folder / "e.csv", "--quiet")
    np.testing.assert_allclose(pl.read_csv(folder / "e.csv")["mean"], model.predict(X), rtol=1e-10)


def test_predict_reads_categories_as_text_and_booleans_as_numbers():
    inputs = [{"name": "c", "kind": "category", "values": ["1", "x"]}, {"name": "b", "kind": "boolean"}]
    frame = pl.DataFrame({"c": ["1", "1"], "b": [0, 1]})
    expected = pl.DataFrame({"c=1": [1.0, 1.0], "c=x": [0.0, 0.0], "b": [0.0, 1.0]})
    assert_frame_equal(tables.encode(frame, inputs), expected)
    with pytest.raises(mc.DataError, match="'b' was true and false"):
        tables.encode(pl.DataFrame({"c": ["1"], "b": [2]}), inputs)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: f.drop("a", "ok"), "lacks columns that the model needs: a, ok"),
        (lambda f: f.with_columns(a=pl.lit("much")), "'a' holds text, as in 'much'; numbers were expected"),
        (
            lambda f: f.with_columns(when=pl.lit(3.0)),
            "and 59 more like it; dates such as '2020-01-31' were expected",
        ),
        (lambda f: f[:0], "has no rows"),
    ],
    ids=["missing columns", "text for numbers", "numbers for dates", "no rows"],
)
def test_tables_that_do_not_fit_the_model(fitted, folder, change, told):
    path = folder / "other.csv"
    change(make_table()).write_csv(path)
    assert told in refused("predict", fitted[1], path, "--output", folder / "never.csv")
    assert not (folder / "never.csv").exists()


def test_files_that_are_no_models(folder):
    data = folder / "data.csv"
    assert "no file" in refused("predict", folder / "gone.safetensors", data)
    assert "cannot be read" in refused("predict", data, data)
    save(mc.kernels.RBF(), folder / "kernel.safetensors")
    assert "no record of table columns" in refused("predict", folder / "kernel.safetensors", data)
    assert "the input table" in refused("predict", folder / "out", data, "--output", data)


# -- tables --------------------------------------------------------------------------------------------------------


def test_every_way_of_writing_a_table_reads_the_same(tmp_path):
    frame = make_table()
    frame.write_csv(tmp_path / "t.csv")
    frame.write_csv(tmp_path / "t.tsv", separator="\t")
    frame.write_csv(tmp_path / "semicolons.csv", separator=";")
    frame.write_parquet(tmp_path / "t.parquet")
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        file.write((tmp_path / "t.csv").read_bytes())
    for path in tmp_path.iterdir():
        read, _ = settle(tables.read(path), ["when"], ColumnOptions(), print)
        assert_frame_equal(read.cast({"when": pl.Date}), frame)


def test_blanks_and_words_for_missing_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a , b,c,d\n 1.5, x,1,inf\n 2, y ,NA,2\nNA, ,?,3\n")
    frame = tables.read(path)
    assert frame.to_dict(as_series=False) == {
        "a": [1.5, 2.0, None], "b": ["x", "y", None], "c": [1, None, None], "d": [None, 2.0, 3.0],
    }  # fmt: skip


def test_words_for_missing_values_in_any_case_and_beside_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,d\nn/a,-,#n/a,+\n1,2,2020-05-13,-\nNull,--,None,+\nna,None,.,-\n3,1,2020-05-14,none\n")
    frame, readings = settle(tables.read(path), list("abcd"), ColumnOptions(), print)
    day = datetime.datetime(2020, 5, 13), datetime.datetime(2020, 5, 14)
    assert frame.to_dict(as_series=False) == {
        "a": [None, 1, None, None, 3], "b": [None, 2, None, None, 1], "c": [None, day[0], None, None, day[1]],
        "d": ["+", "-", "+", "-", "none"],  # may be classes
    }  # fmt: skip
    assert tables.columns.read(pl.Series("b", ["-", "5"]), readings["b"]).to_list() == [None, 5]
    months = pl.Series("m", ["01.2020", "-", "12.2020"])
    assert settle(months.to_frame(), ["m"], ColumnOptions(), print)[0]["m"].dtype == pl.Datetime


def test_labels_may_be_words_and_numbers(capsys):
    labels = pl.Series("y", ["1", "2", "3", "other"])
    assert tables.task_of(labels, "classification", print) == "classification"
    assert tables.task_of(pl.Series("y", ["+", "-", "?"]), None, print) == "classification"
    assert tables.task_of(pl.Series("y", ["1", "low", "high"]), None, print) == "classification"


def test_names_that_look_like_patterns():
    frame = pl.DataFrame({"^a$": [1.0, None, 3.0], "*": [1, 2, 3], "a": [4, 5, 6]})
    whole, rows = tables.complete(frame, ["^a$", "*"], True, print)
    assert whole.to_dict(as_series=False) == {"^a$": [1.0, 3.0], "*": [1, 3]}
    assert rows.tolist() == [1, 3]
    assert tables.encode(whole, tables.describe(whole, ["*", "^a$"], print)).columns == ["*", "^a$"]


def test_encoding():
    moment = datetime.datetime(1980, 1, 1, 12)
    frame = pl.DataFrame(
        {
            "n": [1, 2],
            "b": [True, False],
            "c": pl.Series(["v", "u"], dtype=pl.Categorical),
            "d": [datetime.date(1970, 1, 1), datetime.date(1971, 1, 1)],
            "t": [moment, moment + datetime.timedelta(days=365.25)],
        }
    )
    inputs = tables.describe(frame, frame.columns, print)
    encoded = tables.encode(frame, inputs)
    assert encoded.columns == ["n", "b", "c=u", "c=v", "d", "t"]
    years = 1970 + (3652 + 0.5) / 365.25
    expected = [[1, 1, 0, 1, 1970, years], [2, 0, 1, 0, 1970 + 365 / 365.25, years + 1]]
    np.testing.assert_allclose(encoded.to_numpy(), expected, rtol=1e-12)


def _with(**columns):
    return lambda f: f.with_columns(**{name: pl.Series(values) for name, values in columns.items()})


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (_with(id=[f"k{i}" for i in range(60)]), [], ["'id' has different text in every row", "--drop id"]),
        (
            _with(town=[f"t{i // 1.5}" for i in range(60)]),
            [],
            ["'town' has 40 distinct texts in 60 rows", "--drop town"],
        ),
        (_with(**{"my list": [[1, 2]] * 60}), [], ["'my list' holds values of type List", "--drop 'my list'"]),
        (_with(s=[{"u": 1}] * 60), [], ["'s' holds values of type Struct"]),
        (None, ["--target", "Y"], ["no column 'Y'", "a, when, colour, ok, same, y", "Did you mean 'y'?"]),
        (None, ["--target", "colour", "--task", "regression"], ["'colour' holds text", "numbers were expected"]),
        (None, ["--target", "ok", "--task", "regression"], ["'ok' holds true and false", "--task classification"]),
        (None, ["--target", "when"], ["target 'when' holds dates", "numbers were expected, or text for classes"]),
        (None, ["--target", "y", "--task", "classification"], ["'y' holds fractional numbers"]),
        (None, ["--target", "same"], ["'same' is 'x' in every row", "at least two classes"]),
        (_with(id=range(60)), ["--target", "id", "--task", "classification"], ["60 distinct values", "50 classes"]),
        (_with(id=[f"k{i}" for i in range(60)]), ["--target", "id"], ["60 distinct values", "Merge rare"]),
        (None, ["--drop", "colours"], ["no column 'colours'", "Did you mean 'colour'?"]),
        (None, ["--drop", "y"], ["'y' is the target"]),
        (None, ["--test-share", "1"], ["at least 0 and below 1"]),
        (None, ["--test-share", "0.99"], ["at least two training rows are needed"]),
        (None, ["--restarts", "-1"], ["n_restarts must be an integer of at least 0"]),
        (_with(y=[2.0] * 60), [], ["'y' is 2 in every row"]),
        (lambda f: f.select("same", "y"), [], ["all input columns are constant"]),
        (lambda f: f.select("y"), [], ["no input column besides the target"]),
        (lambda f: f[:0], [], ["has no rows"]),
        (_with(y=[float("inf"), *range(59)]), [], ["'y' is infinite in 1 of 60 rows"]),
        (
            _with(y=["unknown", "3", "?"] + ["1", "2", "4", "5"] * 14 + ["unknown"]),
            [],
            ["'y' holds numbers, but 'unknown', '?' in 3 rows", "Empty those cells", "--task classification"],
        ),
        (
            _with(y=["unknown", *map(str, np.linspace(0, 1, 59))]),
            [],
            ["'y' holds numbers, but 'unknown' in 1 row.", "--task classification"],
        ),
        (
            _with(y=["1", "2", "none at all"] * 20),
            ["--task", "regression"],
            ["'y' holds text, as in 'none at all'", "numbers were expected"],
        ),
        (_with(y=["0,613", "1,234,567", "2"] * 20), [], ["not all written alike", "'0,613'"]),
    ],
)
def test_what_a_fit_refuses(tmp_path, change, options, told):
    frame = make_table() if change is None else change(make_table())
    frame.write_parquet(tmp_path / "t.parquet")
    target = [] if "--target" in options else ["--target", "y"]
    line = refused("fit", tmp_path / "t.parquet", *target, *options, "--output", tmp_path / "out")
    for words in told:
        assert words in line


def test_refused_columns_can_be_dropped(tmp_path):
    frame = make_table().with_columns(id=pl.Series([f"k{i}" for i in range(60)]), town=pl.lit("x"))
    assert tables.choose(frame, "y", ["id", "a"], print) == ["when", "colour", "ok", "same", "town"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("gone.csv", None, "No such file"),
        ("t.xlsx", b"x", "must end in .csv"),
        ("empty.csv", b"", "cannot be read as a table"),
        ("ragged.csv", b"a,b\n1,2\n3,4,5\n", "found more fields"),
        ("latin.csv", b"a,b\n1,caf\xe9\n", "Save it as UTF-8"),
        ("twice.csv", b"a, a\n1,2\n", "columns of the same name: a"),
        ("renamed.csv", b"a,b,a\n1,2,3\n", "columns of the same name: a"),  # polars would call one a_duplicated_0
        ("fake.parquet", b"not parquet at all", "cannot be read as a table"),
        ("fake.csv.gz", b"not gzipped", "cannot be read as a table"),
        ("cut.csv.gz", gzip.compress(b"a,b\n1,2\n" * 100, mtime=0)[:-12], "cannot be read as a table"),
        ("broken.csv.gz", gzip.compress(b"a,b", mtime=0)[:10] + b"\xff" * 50, "cannot be read as a table"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, told):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert told in refused("fit", tmp_path / name, "--target", "b", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_a_folder(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "file" in refused("fit", folder / "data.csv", "--target", "y", "--output", tmp_path / "file")


# -- help ----------------------------------------------------------------------------------------------------------


def test_help_says_what_there_is():
    assert all(word in call("--help").stdout for word in ("fit", "predict", "demo"))
    told = call("fit", "--help").stdout
    options = (
        "--target",
        "--output",
        "--task",
        "--drop",
        "--drop-missing",
        "--kind",
        "--day-first",
        "--month-first",
        "--test-share",
        "--refit",
        "--restarts",
        "--seed",
    )
    assert all(word in told for word in (*options, "--quiet", "predictions.csv", "calibration.png", "Ctrl-C"))
    assert "classification" in told
    assert all(word in call("predict", "--help").stdout for word in ("95% intervals", "class probabilities"))
    assert "Mauna Loa" in call("demo", "--help").stdout


# -- large tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["large.parquet", "large.csv"])
def test_a_large_table_passes_in_chunks(name, tmp_path, monkeypatch):
    monkeypatch.setattr(large, "LARGE_ROWS", 700)
    monkeypatch.setattr(large, "SAMPLE_ROWS", 150)
    monkeypatch.setattr(large, "CHUNK_ROWS", 300)
    table = make_table(800)
    table = table.with_columns(
        pl.when(pl.arange(800) == 5).then(None).otherwise(pl.col("a")).alias("a"),
        pl.when(pl.arange(800) == 9).then(None).otherwise(pl.col("y")).alias("y"),
    )
    getattr(table, "write_parquet" if name.endswith("parquet") else "write_csv")(tmp_path / name)
    missing = refused("fit", tmp_path / name, "--target", "y", "--output", tmp_path / "out")
    assert "--drop-missing" in missing
    result = call("fit", tmp_path / name, "--target", "y", "--output", tmp_path / "out", "--drop-missing")
    assert "the table has 800 rows: 119 at random to learn from, 30 held out" in result.stdout
    model = load(tmp_path / "out" / "model.safetensors")
    assert model.n_rows_ == 800 - 30 - 2  # one row has no value, one no target
    assert str(model.solver_).startswith("LowRank")
    held = pl.read_csv(tmp_path / "out" / "predictions.csv")
    rows = held["row"].to_numpy()
    np.testing.assert_allclose(held["target"], table["y"].to_numpy()[rows - 1])
    # Close to a fit of all of them.
    error = (held["target"] - held["mean"]).to_numpy()
    assert np.sqrt(np.mean(error**2)) < 0.5


def test_a_large_table_of_text_that_is_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "LARGE_ROWS", 700)
    monkeypatch.setattr(large, "SAMPLE_ROWS", 150)
    monkeypatch.setattr(large, "CHUNK_ROWS", 300)
    x = np.random.default_rng(0).uniform(1, 9, 800).round(3)
    rows = [f'"{a:.3f}";{"-" if i == 5 else f"{2 * a:.3f}"}'.replace(".", ",") for i, a in enumerate(x)]
    (tmp_path / "t.csv").write_text("\n".join(["x;y", *rows]))
    commas = ["--kind", "x=number:,", "--kind", "y=number:,"]
    call("fit", tmp_path / "t.csv", "--target", "y", "--output", tmp_path / "out", *commas)
    held = pl.read_csv(tmp_path / "out" / "predictions.csv").filter(pl.col("row") != 6)  # which is a gap
    np.testing.assert_allclose(held["target"], 2 * x[held["row"].to_numpy() - 1])
    assert load(tmp_path / "out" / "model.safetensors").n_rows_ == 800 - 30 - 1
    (tmp_path / "t.csv").write_text("\n".join(["x;x", *rows]))
    assert "columns of the same name" in refused(
        "fit", tmp_path / "t.csv", "--target", "x", "--output", tmp_path / "out"
    )
