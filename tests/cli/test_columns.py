"""Text that is numbers or dates: decided from whole columns, told, kept with the model; or refused with an option."""

import datetime

import numpy as np
import polars as pl
import pytest

import mercer as mc
from commands import call, refused
from mercer.cli import quantities, tables
from mercer.cli.columns import ColumnOptions, moment, settle
from mercer.persist import load

DAYS = [datetime.date(2020, 1, 2) + datetime.timedelta(days=7 * i) for i in range(48)]


def settled(values, decimal=None, **options):
    """A column of these texts, what is said of it, and how it was read."""
    said = []
    frame, readings = settle(
        pl.DataFrame({"c": values}), ["c"], ColumnOptions.of(**options), said.append, decimal=decimal
    )
    return frame["c"], said, readings.get("c")


# -- dates -----------------------------------------------------------------------------------------------------------


def test_a_day_above_twelve_anywhere_settles_the_order():
    column, said, reading = settled([f"{day:%d/%m/%Y}" for day in DAYS])
    assert column.dt.date().to_list() == DAYS
    assert said == ["column 'c' is read as dates, day first: '16/01/2020' is 16 January 2020"]
    assert reading == {"format": "%d/%m/%Y"}
    column, said, _ = settled([f"{day:%m/%d/%Y}" for day in DAYS])
    assert column.dt.date().to_list() == DAYS
    assert "month first" in said[0]


def test_what_no_day_settles_is_refused_until_it_is_said():
    texts = [f"{day:%d/%m/%Y}" for day in DAYS if day.day <= 12]
    with pytest.raises(mc.DataError, match=r"'c' holds dates such as '02/01/2020'.*--day-first or --month-first"):
        settled(texts)
    first, second = (settled(texts, day_first=order)[0].dt.date()[0] for order in (True, False))
    assert (first, second) == (datetime.date(2020, 1, 2), datetime.date(2020, 2, 1))
    assert settled(texts, kinds=["c=date:%m/%d/%Y"])[0].dt.date()[0] == second
    assert settled(["01/01/2020", "02/02/2020"])[0].dt.month().to_list() == [1, 2]  # the same either way
    assert "day first" in settled(["02.01.2020", "03.01.2020"])[1][0]  # with points nobody writes months first


@pytest.mark.parametrize(
    ("form", "quiet"),
    [
        ("%Y-%m-%d", True), ("%Y/%m/%d", True), ("%Y-%m-%d %H:%M", True), ("%Y-%m-%dT%H:%M:%SZ", True),
        ("%d %b %Y", True), ("%B %d, %Y", True), ("%d.%m.%Y %H:%M:%S", False), ("%m/%d/%Y %I:%M %p", False),
    ],
)  # fmt: skip
def test_ways_of_writing_dates(form, quiet):
    times = [datetime.datetime(2020, 1, 2, 15, 30) + datetime.timedelta(days=7 * i) for i in range(20)]
    column, said, _ = settled([f"{time:{form}}" for time in times])
    assert column.to_list() == (times if "%M" in form else [time.replace(hour=0, minute=0) for time in times])
    assert bool(said) is not quiet


def test_times_and_zones():
    assert moment("2020-01-02T10:30:15.25+02:00", "%Y-%m-%d") == datetime.datetime(2020, 1, 2, 8, 30, 15, 250000)
    assert moment("2020-01-02 12:05 am", "%Y-%m-%d") == datetime.datetime(2020, 1, 2, 0, 5)
    assert moment("2020-02-30", "%Y-%m-%d") is None
    assert moment("2020-01-02 25:00", "%Y-%m-%d") is None


def test_years_of_two_digits_are_refused():
    with pytest.raises(mc.DataError, match=r"two-digit.*--kind c=date:%d/%m/%y or .*--kind c=text"):
        settled(["13/01/20", "14/02/21"])
    column, _, _ = settled(["13/01/20", "14/02/21"], kinds=["c=date:%d/%m/%y"])
    assert column.dt.year().to_list() == [2020, 2021]


def test_compact_dates():
    numbers = [int(f"{day:%Y%m%d}") for day in DAYS]
    column, said, reading = settled(numbers)
    assert column.dt.date().to_list() == DAYS
    assert said == ["column 'c' is read as dates: 20200102 is 2 January 2020; --kind c=number keeps the numbers"]
    assert reading == {"format": "%Y%m%d"}
    assert settled(numbers, kinds=["c=number"])[0].to_list() == numbers
    for other in (numbers[:-1] + [20201301], [19580329] * 5, [20200101.5, 20200102.0], [120200101, 120200102]):
        assert settled(other)[1:] == ([], None)
    frame, _ = settle(pl.DataFrame({"c": numbers}), ["c"], ColumnOptions(), print, target="c")
    assert frame["c"].to_list() == numbers


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["$3", "$1,200.50", "-$4"], [3, 1200.5, -4]),
        (["1,200", "950", "1,234,567"], [1200, 950, 1234567]),
        (["1.200,5", "3", "12,25"], [1200.5, 3, 12.25]),
        (["12,5", "0,25"], [12.5, 0.25]),
        (["0,613", "1,202"], [0.613, 1.202]),  # no thousands after a zero
        (["-0.613", "1.202", "-"], [-0.613, 1.202, None]),
        (["1 200", "12\u00a0345,5", "7"], [1200, 12345.5, 7]),
        (["1'200.5", "3"], [1200.5, 3]),
        (["12%", "7.5 %", "100%"], [12, 7.5, 100]),
        (["€ 3.000,00", "EUR 4,50"], None),  # two signs
        (["(1,200.5)", "3.5"], [-1200.5, 3.5]),
        (["1e3 €", "2 €"], [1000, 2]),
        (["+5 $", "\u22125 $"], [5, -5]),
    ],
)
def test_ways_of_writing_numbers(texts, values):
    if values is None:
        with pytest.raises(mc.DataError, match="amounts in EUR and €"):
            settled(texts)
        return
    column, said, reading = settled(texts)
    assert column.to_list() == values
    assert len(said) == 1
    assert "'c' is read as numbers" in said[0]
    assert tables.columns.read(pl.Series("c", texts), reading).to_list() == values


def test_a_comma_that_may_be_either_is_settled_by_the_table_or_by_an_option():
    with pytest.raises(mc.DataError, match=r"'1,200'.*decimal mark.*--kind c=number:, or --kind c=number:\."):
        settled(["1,200", "3,500"])
    assert settled(["1,200", "3,500"], kinds=["c=number:,"])[0].to_list() == [1.2, 3.5]
    assert settled(["1,200", "3,500"], kinds=["c=number:."])[0].to_list() == [1200, 3500]
    assert settled(["0,200", "3,500"], decimal=".")[0].to_list() == [0.2, 3.5]  # no thousands after a zero
    assert settled(["1,200", "3,500"], decimal=".")[0].to_list() == [1200, 3500]  # where commas separate columns
    for other, value in ((["0,5", "12,25"], 1.2), ([0.5, 1.25], 1200.0)):
        frame = pl.DataFrame({"c": ["1,200", "3,500"], "d": other})
        assert settle(frame, ["c", "d"], ColumnOptions(), print)[0]["c"][0] == value


@pytest.mark.parametrize(
    "texts", [["red", "green"], ["A1", "B2"], ["1.2.3", "1.2.4.5"], ["1,20,3", "5"], ["10:30", "9"]]
)
def test_other_text_stays_text(texts):
    column, said, reading = settled(texts)
    assert column.to_list() == texts
    assert (said, reading) == ([], None)


def test_one_word_among_numbers_or_dates_is_named():
    said = settled(["1,200.5", "300", "soon", "4 €"])[1]
    assert said == [
        "column 'c' is read as text, because 'soon' is neither a number nor a date; most of its other values are"
    ]
    assert "'soon'" in settled(["13/01/2020", "14/01/2020", "soon"])[1][0]
    assert settled(["low", "middle", "1"])[1] == settled(["10.0.0.1", "10.0.0.2", "192.168.0.1"])[1] == []


def test_months_are_said_to_be_months():
    column, said, _ = settled(["2010/11", "2011/12"])
    assert column.dt.month().to_list() == [11, 12]
    assert said == ["column 'c' is read as dates, the first of each month: '2010/11' is 1 November 2010"]


def written(path, texts, name="c"):
    """A CSV file of a column of these texts, unquoted, beside one of numbers."""
    path.write_text(f"{name},d\n" + "".join(f"{text},{i}\n" for i, text in enumerate(texts)))
    return path


MONTHS = ["01.2020", "", "10.2020", "12.1999"]


def test_months_with_a_point_are_dates_not_numbers(tmp_path):
    """01.2020 is January, not 1.202: the leading zero, which the number loses, tells."""
    said = []
    for blank in ("", " "):
        frame = tables.read(written(tmp_path / "t.csv", [blank + text for text in MONTHS], "when"))
        frame, readings = settle(frame, ["when", "d"], ColumnOptions(), said.append)
        assert frame["when"].drop_nulls().dt.date().to_list() == [
            datetime.date(2020, 1, 1), datetime.date(2020, 10, 1), datetime.date(1999, 12, 1)
        ]  # fmt: skip
        assert readings == {"when": {"format": "%m.%Y"}}
    assert said[0] == said[1]
    assert said[0] == (
        "column 'when' is read as dates, the first of each month: '01.2020' is 1 January 2020; "
        "--kind when=number keeps the numbers"
    )
    pl.DataFrame({"c": ["01.2020", "11.2021"]}).write_parquet(tmp_path / "t.parquet")
    assert settle(tables.read(tmp_path / "t.parquet"), ["c"], ColumnOptions(), print)[1] == {"c": {"format": "%m.%Y"}}


@pytest.mark.parametrize(
    "texts", [["10.2020", "12.2021"], ["01.2020", "13.2020"], ["01.2020", "1.5"], ["1.2020", "2.2021"], ["01.1799"]]
)
def test_numbers_that_are_not_all_months_stay_numbers(tmp_path, texts):
    frame = tables.read(written(tmp_path / "t.csv", texts))
    assert settle(frame, ["c", "d"], ColumnOptions(), print)[0]["c"].to_list() == [float(text) for text in texts]


def test_what_was_asked_for_goes_before_months(tmp_path):
    path = written(tmp_path / "t.csv", MONTHS)
    for settings in ({"options": ColumnOptions.of(["c=number"])}, {"options": ColumnOptions(), "target": "c"}):
        said = []
        column = settle(tables.read(path), ["c", "d"], say=said.append, **settings)[0]["c"]
        assert column.to_list() == [1.202, None, 10.202, 12.1999]
        assert "is read as numbers" in said[0]
    # A format reads months that no leading zero shows to be such.
    written(path, ["10.2020", "12.2021"])
    assert (
        settle(tables.read(path, ["c"]), ["c"], ColumnOptions.of(["c=date:%m.%Y"]), print)[0]["c"].dt.month()[1] == 12
    )
    with pytest.raises(mc.DataError, match=r"type Float64, not dates.*--kind c=date:%m\.%Y"):
        settle(tables.read(path), ["c"], ColumnOptions.of(["c=date"]), print)


def test_mixed_units_and_wishes_that_cannot_be():
    with pytest.raises(mc.DataError, match="with and without %"):
        settled(["12%", "0.5"])
    with pytest.raises(mc.DataError, match="is a number, but it holds text such as 'red'"):
        settled(["1", "red"], kinds=["c=number"])
    with pytest.raises(mc.DataError, match="is a date, but it holds text such as 'red'"):
        settled(["red"], kinds=["c=date"])
    with pytest.raises(mc.DataError, match="is a date, but it holds text such as 'soon'"):
        settled(["2020-01-02", "soon"], kinds=["c=date"])
    with pytest.raises(mc.DataError, match=r"mixes orders.*'01/13/2020' is not a date with the day first, nor '13/01"):
        settled(["13/01/2020", "01/13/2020", "02/02/2020"])
    assert settled([1, 2], kinds=["c=text"])[0].to_list() == ["1", "2"]
    for bad in ("c", "c=colour", "c=text:x", "c=number:;"):
        with pytest.raises(mc.ParameterError, match="--kind takes COLUMN=number"):
            ColumnOptions.of([bad])
    assert ColumnOptions.of(["a=b=text", "d=date:%d=%m"]).kinds == {"a=b": "text", "d": "date:%d=%m"}


# -- the whole way ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sold(tmp_path_factory):
    """A straight line in the day, written day first, and prices with signs and separators."""
    folder = tmp_path_factory.mktemp("columns")
    rng = np.random.default_rng(0)
    n = len(DAYS)
    size, town = rng.uniform(800, 3000, n), rng.choice(["Ulm", "Bonn"], n)
    price = 1000 + 10.0 * np.arange(n) + size / 10 + 50 * (town == "Ulm")
    table = pl.DataFrame(
        {
            "when": [f"{day:%d/%m/%Y}" for day in DAYS],
            "size": [f"{value:,.1f}" for value in size],
            "town": town,
            "price": [f"${value:,.2f}" for value in price],
        }
    )
    table.write_csv(folder / "sold.csv")
    result = call("fit", folder / "sold.csv", "--target", "price", "--output", folder / "out", "--test-share", 0.25)
    return folder, table, price, result


def test_a_fit_says_what_it_decided_and_is_right(sold):
    folder, _, price, result = sold
    text = (folder / "out" / "report.txt").read_text()
    for said in ("'when' is read as dates, day first", "'size' is read as numbers", "'price' is read as numbers: '$"):
        assert said in result.stderr
        assert said in text
    table = pl.read_csv(folder / "out" / "predictions.csv")
    np.testing.assert_allclose(table["target"], np.round(price, 2)[table["row"].to_numpy() - 1])
    np.testing.assert_allclose(table["mean"], table["target"], atol=25)  # a straight line, not twelve zigzags


def test_a_prediction_reads_columns_as_the_fit_did(sold):
    folder, table, price, _ = sold
    # No day above 12 here: the order is the model's.
    part = table.with_row_index().filter(pl.col("when").str.slice(0, 2).cast(int) <= 12)
    part.drop("index", "price").write_csv(folder / "part.csv")
    result = call("predict", folder / "out", folder / "part.csv", "--output", folder / "p.csv")
    found = pl.read_csv(folder / "p.csv")
    np.testing.assert_allclose(found["mean"], price[part["index"].to_numpy()], atol=25)
    assert found["outside"].null_count() == len(found)
    assert "outside" not in result.stderr
    assert load(folder / "out" / "model.safetensors").table_["inputs"][0]["format"] == "%d/%m/%Y"
    part.drop("index", "price").with_columns(when=pl.lit("2020-03-04")).write_csv(folder / "iso.csv")
    call("predict", folder / "out", folder / "iso.csv", "--output", folder / "iso_p.csv")  # can only be one day
    part.with_columns(when=pl.lit("4th of March")).write_csv(folder / "bad.csv")
    assert "'4th of March'" in refused("predict", folder / "out", folder / "bad.csv", "--output", folder / "never.csv")


def test_unknown_texts_and_far_rows_are_predicted_and_named(sold):
    folder, table, _, _ = sold
    rows = table.drop("price")[:4].with_columns(
        town=pl.Series(["Ulm", "Kiel", "Bonn", "Kiel"]), size=pl.Series(["1,000", "1,000", "99,000", "-50,000.5"]),
        when=pl.Series(["02/01/2020", "13/02/2020", "01/05/2020", "01/01/2035"]),
    )  # fmt: skip
    rows.write_csv(folder / "far.csv")
    result = call("predict", folder / "out", folder / "far.csv", "--output", folder / "far_p.csv")
    assert "column 'town' has values that were not in the fit: 'Kiel' in 2 rows; treated as none" in result.stderr
    assert "3 of 4 rows are outside the training data (1 in when, 2 in size, 2 in town)" in result.stderr
    found = pl.read_csv(folder / "far_p.csv")
    assert found["outside"].to_list() == [None, "town", "size", "when, size, town"]
    assert np.isfinite(found["mean"].to_numpy()).all()
    assert found["std"][1] > found["std"][0]
    encoded = tables.encode(pl.DataFrame({"c": ["x", "y"]}), [{"name": "c", "kind": "category", "values": ["u", "x"]}])
    assert encoded.rows() == [(0.0, 1.0), (0.0, 0.0)]


def test_ambiguous_tables_are_refused_on_the_command_line_and_options_settle_them(sold, tmp_path):
    _, table, _, _ = sold
    part = table.filter(pl.col("when").str.slice(0, 2).cast(int) <= 12)
    part.write_csv(tmp_path / "t.csv")
    arguments = ["fit", tmp_path / "t.csv", "--target", "price", "--output", tmp_path / "out"]
    assert "--day-first or --month-first" in refused(*arguments)
    assert not (tmp_path / "out").exists()
    assert "the table lacks: 'whn'" in refused(*arguments, "--kind", "whn=date")
    assert "COLUMN=number" in refused(*arguments, "--kind", "when=day")
    part.with_columns(code=pl.Series(range(len(part))) % 3).write_csv(tmp_path / "t.csv")
    result = call(*arguments, "--month-first", "--kind", "code=text")
    assert "month first: '02/01/2020' is 1 February 2020" in result.stderr
    assert "column 'code' is read as categories (3 distinct)" in result.stdout
    # Nobody asks about a column that is left out.
    assert "below 1" in refused(*arguments, "--drop", "when", "--test-share", 1)


def test_text_with_content_is_an_input(tmp_path):
    rng = np.random.default_rng(3)
    codes = ["".join(rng.choice(list("ACGT"), 8)) for _ in range(80)]
    y = np.array([code.count("A") - code.count("G") for code in codes]) + 0.1 * rng.normal(size=80)
    pl.DataFrame({"code": codes, "y": y}).write_csv(tmp_path / "t.csv")
    result = call("fit", tmp_path / "t.csv", "--target", "y", "--output", tmp_path / "out")
    assert "column 'code' is read as text, compared by its characters (80 distinct)" in result.stderr
    before = pl.read_csv(tmp_path / "out" / "predictions.csv")
    assert np.corrcoef(before["mean"], before["target"])[0, 1] > 0.8
    call("predict", tmp_path / "out", tmp_path / "t.csv", "--output", tmp_path / "p.csv", "--quiet")
    again = pl.read_csv(tmp_path / "p.csv")[(before["row"] - 1).to_list()]
    np.testing.assert_allclose(again["mean"], before["mean"], rtol=1e-10)


def test_the_model_is_written_before_anything_else_can_fail(sold, tmp_path, monkeypatch):
    folder, _, _, _ = sold

    def broken(*_):
        raise mc.DataError("the report went wrong")

    monkeypatch.setattr(quantities.GaussianProcessRegressor, "report", broken)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.txt").write_text("of an earlier run")
    result = call(
        "fit", folder / "sold.csv", "--target", "price", "--output", tmp_path / "out", "--test-share", 0.25, code=1
    )
    assert "the report went wrong" in result.stderr
    assert "model.safetensors holds the model of the training rows" in result.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors"}
    call("predict", tmp_path / "out", folder / "sold.csv", "--output", tmp_path / "p.csv", "--quiet")
    assert len(pl.read_csv(tmp_path / "p.csv")) == len(DAYS)
