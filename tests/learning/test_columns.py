"""What columns are, decided from the whole of each, and how they are encoded."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer as mc
from mercer.core.inputs import as_matrix
from mercer.learning.columns import Columns

DAYS = [datetime.datetime(1980, 1, 1, 12), datetime.datetime(1981, 1, 1, 18), datetime.datetime(1980, 1, 1, 12)]
NOTES = [f"{colour} {thing} by the {place}" for colour in ("a red", "one more green", "no blue")
         for thing in ("house", "tree") for place in ("sea", "wood", "well", "road", "hill")]  # fmt: skip
SMILES = [f"C{'C' * (i % 7)}N{'=' * (i % 2)}C{'(O)' * (i % 5)}{'Cl' * (i % 3)}" for i in range(210)]


def both(columns):
    return pl.DataFrame(columns), pd.DataFrame(columns)


def kinds(frame):
    return {column.name: column.kind for column in Columns.of(frame)}


@pytest.mark.parametrize("library", [0, 1], ids=["polars", "pandas"])
def test_kinds_of_columns(library):
    columns = {
        "number": np.arange(30.0), "whole": np.arange(30), "yes": np.arange(30) % 2 == 0, "when": DAYS * 10,
        "colour": ["red", "green", "blue"] * 10, "same": ["x"] * 30, "note": NOTES,
        "molecule": SMILES[:30],
    }  # fmt: skip
    assert len(set(columns["molecule"])) == 30
    frame = both(columns)[library]
    assert kinds(frame) == {
        "number": "number", "whole": "number", "yes": "boolean", "when": "date", "colour": "category",
        "same": "constant", "note": "words", "molecule": "text",
    }  # fmt: skip
    told = str(Columns.of(frame))
    for words in ("dates, as decimal years", "categories (3 distinct)", "ignored", "compared by its characters"):
        assert words in told


def test_types_that_say_it_themselves():
    frame = pl.DataFrame({"c": pl.Series(["u", "v", "u"], dtype=pl.Categorical), "d": [datetime.date(2020, 1, 1)] * 3})
    assert kinds(frame) == {"c": "category", "d": "date"}
    pandas = pd.DataFrame({
        "c": pd.Categorical([1, 2, 1]), "o": pd.Series([1, 2.5, None], dtype=object),
        "d": pd.Series([datetime.date(2020, 1, 1)] * 3, dtype=object), "n": pd.array([1, None, 2], dtype="Int64"),
    })  # fmt: skip
    assert kinds(pandas) == {"c": "category", "o": "number", "d": "date", "n": "number"}
    assert Columns.of(np.zeros((3, 2))) is None


def test_many_values_are_categories_where_each_has_rows_enough():
    often, seldom = [f"town {i // 2}" for i in range(60)], SMILES[:40] * 2
    assert kinds(pl.DataFrame({"t": often, "s": seldom[:60]})) == {"t": "category", "s": "text"}
    assert kinds(pl.DataFrame({"s": seldom})) == {"s": "category"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([f"k{i}" for i in range(30)], "'c' has different text in every row, like an identifier"),
        ([f"{i:08x}-ab" for i in range(30)], "like an identifier"),
        ([f"{i}.5" for i in range(30)], "convert it to their type"),
        ([None] * 30, "'c' has no value in any row"),
        ([1, "a"] * 15, "'c' mixes numbers and text"),
        ([{1, 2}] * 30, r"Subsets\(normalized=True\).on\('c'\)"),
        ([datetime.timedelta(days=1)] * 30, "total_seconds"),
        (pd.Categorical([f"k{i}" for i in range(30)]), "which are no categories"),
    ],
)
def test_what_is_refused_by_name(values, told):
    frame = pd.DataFrame({"a": np.arange(30.0), "c": values})
    with pytest.raises(mc.DataError, match=f"columns that the default kernel cannot read: .*{told}"):
        mc.GaussianProcessRegressor().fit(frame, np.arange(30.0))


def test_graphs_are_refused_with_a_kernel_that_reads_them():
    networkx = pytest.importorskip("networkx")
    frame = pd.DataFrame({"g": [networkx.path_graph(i + 2) for i in range(5)]})
    with pytest.raises(mc.DataError, match=r"'g' holds objects of type Graph.*WeisfeilerLehman\(3\).on\('g'\)"):
        Columns.of(frame)


@pytest.mark.parametrize("library", [0, 1], ids=["polars", "pandas"])
def test_encoding(library):
    frame = both({"n": [1, 2, 3], "b": [True, False, True], "c": ["u", None, "u"], "d": DAYS, "e": ["x"] * 3})[library]
    if library:
        frame.index = [5, 6, 7]
    columns = Columns.of(frame)
    encoded = columns.encode(frame)
    assert list(encoded.columns) == ["n", "b", "c", "d"]
    assert list(encoded["c"]) == ["u", "(missing)", "u"]
    years = 1970 + np.array([3652.5, 4018.75, 3652.5]) / 365.25
    np.testing.assert_allclose(as_matrix(encoded[["n", "b", "d"]]), np.column_stack([[1, 2, 3], [1, 0, 1], years]))


def test_new_rows_must_be_like_those_of_the_fit():
    columns = Columns.of(pl.DataFrame({"n": [1.0, 2.0], "b": [True, False], "d": DAYS[:2], "c": ["u", "v"]}))
    good = {"n": [1], "b": [1], "d": [datetime.datetime(1970, 1, 1)], "c": [3]}
    assert columns.encode(pl.DataFrame(good)).row(0) == (1, 1, 1970.0, "3")
    for change, told in (
        ({"n": ["much"]}, "'n' holds text, as in 'much'; numbers were expected, as in the fit"),
        ({"d": ["soon"]}, "'d' holds text, as in 'soon'; dates were expected"),
        ({"b": [2]}, "'b' was true and false in the fit"),
    ):
        with pytest.raises(mc.DataError, match=told):
            columns.encode(pl.DataFrame({**good, **change}))
    with pytest.raises(mc.DataError, match="fitted to a frame with columns of numbers"):
        columns.encode(np.zeros((1, 4)))


def test_missing_numbers_and_dates_are_refused_with_row_and_column():
    frame = pd.DataFrame({"a": [1.0, np.nan, 2.0], "d": [*DAYS[:2], None], "c": ["u", "v", "u"]})
    with pytest.raises(mc.DataError, match="first in row 1: 1 in column a, 1 in column d"):
        mc.GaussianProcessRegressor().fit(frame, [1.0, 2.0, 3.0])


def test_words_of_one_letter_are_compared_by_characters():
    rng = np.random.default_rng(0)
    boards = [" ".join(rng.choice(list("xob"), 9)) for _ in range(40)]
    (column,) = Columns.of(pd.DataFrame({"board": boards}))
    assert column.kind == "text"


def test_sequences_over_the_letters_of_hexadecimal_numbers_are_text():
    rng = np.random.default_rng(0)
    proteins = ["".join(rng.choice(list("ACDEF"), 10)) for _ in range(40)]
    (column,) = Columns.of(pd.DataFrame({"protein": proteins}))
    assert column.kind == "text"


@pytest.mark.parametrize("library", [0, 1], ids=["polars", "pandas"])
def test_numbers_in_a_column_of_dates_are_refused(library):
    """A number might be a year, a day or a second."""
    columns = Columns.of(both({"when": DAYS, "x": [1.0, 2.0, 3.0]})[library])
    for numbers in ([1980.0, 1981.5, 1980.0], [1980, 1981, 1982], [True, False, True]):
        with pytest.raises(
            mc.DataError, match=r"column 'when' holds .*dates were expected, as in the fit.*to_datetime"
        ):
            columns.encode(both({"when": numbers, "x": [1.0, 2.0, 3.0]})[library])
    with pytest.raises(mc.DataError, match="column 'when' holds text, as in '1980'; dates were expected"):
        columns.encode(both({"when": ["1980"] * 3, "x": [1.0, 2.0, 3.0]})[library])
    for missing in ([DAYS[0], None, DAYS[1]], [None] * 3, [float("nan")] * 3):
        with pytest.raises(mc.DataError, match=r"missing \(NaN\) values?, the first in row [01]: [13] in column when"):
            as_matrix(columns.encode(both({"when": missing, "x": [1.0, 2.0, 3.0]})[library]))
