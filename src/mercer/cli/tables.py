"""Reading tables, and choosing their columns; how they were read is saved with the model.

`columns` recognises numbers and dates in text. What other columns hold, and how they are encoded, is decided as for any
frame that a model is fitted to (`mercer.learning.columns`).
"""

import csv
import dataclasses
import difflib
import gzip
import shlex
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import polars as pl

from mercer.cli import columns
from mercer.core.errors import DataError
from mercer.core.text import listed
from mercer.datasets.chunks import MISSING_VALUES
from mercer.learning.columns import MICROSECONDS_PER_YEAR, NUMERIC, STRUCTURED, Column, Columns, Refusal, decide
from mercer.learning.columns import MISSING as MISSING_CATEGORY

MAX_CLASSES = 50
MAX_LIKELY_CLASSES = 10  # distinct integers of a target that may be meant as classes
SEPARATED = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
RANGE_MARGIN = 0.1  # of an input's range: rows further out are outside it

# {"name", "kind"}, the "values" of a category, "low" and "high" of other kinds in the fit, and the `Reading` of text.
Input = dict[str, Any]
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a table, ready for a model: inputs, target, and row numbers in the file."""

    X: pl.DataFrame
    y: np.ndarray
    numbers: np.ndarray

    def __len__(self):
        return len(self.y)

    def __getitem__(self, which) -> "TableRows":
        return TableRows(self.X[which], self.y[which], self.numbers[which])


# -- files ---------------------------------------------------------------------------------------------------------


def stem(path: Path) -> str:
    """File name without its extensions.

    >>> stem(Path("data/houses.csv.gz"))
    'houses'
    """
    return path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name


def read(path: Path, texts: Iterable[str] = (), target: str | None = None) -> pl.DataFrame:
    """Read a CSV or Parquet file. ``texts`` names columns to be read as text, whatever they hold;
    in the ``target`` infinite numbers stay, to be refused."""
    extension = _extension(path)
    if extension not in SEPARATED + PARQUET:
        raise DataError(f"{path} must end in .csv, .csv.gz, .tsv or .parquet; got {path.suffix or 'no extension'}.")
    if path.is_dir():
        raise DataError(f"{path} is a folder; a table is one file.")
    with path.open("rb") as file:  # for its clear errors
        file.read(1)
    try:
        frame = pl.read_parquet(path) if extension in PARQUET else _read_separated(path, texts)
    except (pl.exceptions.PolarsError, csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        reason = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
        hint = " Save it as UTF-8." if "utf" in reason.lower() else ""
        raise DataError(f"{path} cannot be read as a table: {reason.rstrip('.')}.{hint}") from None
    frame = tidied(frame, texts, target)
    if not len(frame):
        raise DataError(f"{path} has no rows.")
    return frame


def _extension(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _read_separated(path, texts):
    names = set(texts)
    check_header(path)
    separator = separator_of(path)
    # Names are as in the file, blanks and quotes included; dates are read later, from whole columns.
    header = pl.read_csv(path, separator=separator, n_rows=0).columns

    def parse(as_text):
        return pl.read_csv(
            path, separator=separator, infer_schema_length=None, null_values=MISSING_VALUES,
            schema_overrides=dict.fromkeys(as_text, pl.String),
        )  # fmt: skip

    as_text = [name for name in header if name.strip() in names]
    frame = parse(as_text)
    ambiguous = [column.name for column in frame.iter_columns() if columns.may_be_months(column)]
    if ambiguous:  # only the text shows whether 1.202 was written 01.2020
        again = parse([*as_text, *ambiguous])
        frame = frame.with_columns(again[name] for name in ambiguous if columns.are_months(again[name]))
    return frame


def _opened(path):
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _separator(header: str) -> str:
    return max(",;\t", key=header.count)  # the comma if there is none


def separator_of(path: Path) -> str:
    """What separates the columns of a text file."""
    with _opened(path) as file:
        return _separator(file.readline())


def check_header(path: Path):
    """Raise for names that stand twice in the header of a text file, of which polars would rename one."""
    separator = separator_of(path)
    with _opened(path) as file:
        names = next(filter(None, csv.reader(file, delimiter=separator)), [])
    _refuse_repeated([name.strip() for name in names if name.strip()])


def _refuse_repeated(names: list[str]):
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"the table has several columns of the same name: {', '.join(repeated)}.")


def decimal_mark(path: Path) -> str | None:
    """The decimal mark to assume if no column shows it: a point if commas separate columns, else None."""
    if _extension(path) in PARQUET:
        return "."
    with _opened(path) as file:
        return "." if _separator(file.readline()) == "," else None


def tidied(frame: pl.DataFrame, texts: Iterable[str] = (), target: str | None = None) -> pl.DataFrame:
    """Strip names and text, convert numbers written with blanks, and turn non-finite numbers into nulls; in the
    ``target``, where a null is a gap, only those that are not a number."""
    texts = set(texts)
    names = [name.strip() for name in frame.columns]
    _refuse_repeated(names)
    frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    tidy = []
    for column in frame.iter_columns():
        if column.dtype == pl.String:
            column = column.str.strip_chars().replace("", None)
            numbers = column.cast(pl.Float64, strict=False)
            are_numbers = numbers.null_count() == column.null_count() < len(column)
            if are_numbers and column.name not in texts and not columns.are_months(column):
                column = numbers
        if column.dtype.is_float() and column.name == target:
            column = column.fill_nan(None)
        elif column.dtype.is_float():
            column = pl.select(pl.when(column.is_finite()).then(column).alias(column.name)).to_series()
        tidy.append(column)
    return pl.DataFrame(tidy)


# -- columns -------------------------------------------------------------------------------------------------------


def check_names(frame: pl.DataFrame, target: str, drop: Iterable[str]):
    """Raise for names that the table does not have."""
    for name in (target, *drop):
        if name not in frame.columns:
            known = {column.lower(): column for column in frame.columns}
            near = [known[found] for found in difflib.get_close_matches(name.lower(), known, n=1)]
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(f"there is no column {name!r}; the columns are {listed(frame.columns)}.{hint}")
    if target in drop:
        raise DataError(f"{target!r} is the target, so it cannot be dropped.")


def choose(frame: pl.DataFrame, target: str, drop: Iterable[str], say: Say) -> list[str]:
    """Input columns: all but the target, dropped ones and empty ones. Raises for columns that cannot be used."""
    inputs = [name for name in frame.columns if name != target and name not in drop]
    empty = [name for name in inputs if frame[name].null_count() == len(frame)]
    if empty:
        say(f"empty columns ignored: {listed(empty)}")
    inputs = [name for name in inputs if name not in empty]
    refused = [found for name in inputs if isinstance(found := _decided(frame[name]), Refusal)]
    if refused:
        reasons = "; ".join(f"{name!r} {reason}" for name, reason, _ in refused)
        drops = " ".join(f"--drop {shlex.quote(each.name)}" for each in refused)
        raise DataError(
            f"columns that cannot be used: {reasons}. Drop them with {drops}, or convert them to numbers. For columns "
            "of numbers or dates, --kind COLUMN=number or COLUMN=date shows which values cannot be read."
        )
    if not inputs:
        raise DataError(f"there is no input column besides the target {target!r}.")
    return inputs


def task_of(column: pl.Series, wanted: str | None, say: Say) -> str:
    """Task for a target: "regression" if it holds numbers, "classification" if it holds text or booleans. ``wanted``
    overrides that if the target allows it."""
    kind, values = _kind(column.dtype), column.drop_nulls()
    example = ""
    if column.dtype == pl.String and len(values):
        strays = columns.strays(column)
        if wanted is None:
            _refuse_strays(column, strays)
        example = f", as in {[*strays, values[0]][0]!r}"
    content = f"the target {column.name!r} holds {_in_words(column.dtype)}{example}"
    if kind not in ("number", "boolean", "category"):
        raise DataError(f"{content}; numbers were expected, or text for classes.")
    task = wanted or ("regression" if kind == "number" else "classification")
    if task == "regression" and kind != "number":
        raise DataError(f"{content}; numbers were expected. Use --task classification for classes.")
    if wanted is None and kind == "number" and values.n_unique() <= MAX_LIKELY_CLASSES and _whole(values):
        say(
            f"the target {column.name!r} holds {values.n_unique()} distinct integers, treated as quantities; use "
            "--task classification if they are classes"
        )
    return task


def _refuse_strays(column: pl.Series, strays: list[str]):
    """Raise for a target of text that is numbers but for a few texts, or numbers of which some are written in another
    way."""
    texts = columns.distinct(column)
    if not texts or len(strays) > columns.MAX_STRAY_SHARE * len(texts):
        return
    classes = "give --task classification if the values are classes"
    if not strays:
        raise DataError(
            f"the target {column.name!r} holds numbers that are not all written alike, such as {texts[0]!r} and "
            f"{texts[-1]!r}. Write them with one decimal mark, or {classes}."
        )
    rows = int(column.is_in(strays).sum())
    shown = listed([repr(text) for text in strays], limit=3)
    raise DataError(
        f"the target {column.name!r} holds numbers, but {shown} in {rows} {'row' if rows == 1 else 'rows'}. Empty "
        f"those cells if the values are missing, or {classes}."
    )


def quantities(column: pl.Series) -> np.ndarray:
    """A target of numbers, without missing values."""
    y = column.cast(pl.Float64).to_numpy()
    if y.min() == y.max():
        raise DataError(f"the target {column.name!r} is {y[0]:g} in every row; there is nothing to learn.")
    return y


def labels(column: pl.Series) -> np.ndarray:
    """A target of classes, without missing values: text, booleans (as text), or integers."""
    if column.dtype.is_numeric():
        if not _whole(column):
            raise DataError(
                f"the target {column.name!r} holds fractional numbers; classes were expected. Leave out --task "
                "classification for regression."
            )
        largest = float(np.abs(column.cast(pl.Float64).to_numpy()).max())
        if largest >= 2**53:
            raise DataError(f"the target {column.name!r} holds numbers up to {largest:g}, too large for classes.")
        y = column.cast(pl.Int64).to_numpy()
    else:
        y = column.cast(pl.String).to_numpy().astype(str)
    distinct = len(np.unique(y))
    if distinct == 1:
        raise DataError(f"the target {column.name!r} is {y[0].item()!r} in every row; at least two classes are needed.")
    if distinct > MAX_CLASSES:
        raise DataError(
            f"the target {column.name!r} has {distinct} distinct values; at most {MAX_CLASSES} classes are supported. "
            "Merge rare ones, as 'other'."
        )
    return y


def _whole(column) -> bool:
    return column.dtype.is_integer() or bool((column == column.round()).all())


def _decided(column: pl.Series) -> Column | Refusal:
    return decide(nw.from_native(column, series_only=True))


def _kind(dtype) -> str | None:
    if dtype.is_numeric():
        return "number"
    if dtype == pl.Boolean:
        return "boolean"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "category"
    return "date" if dtype in (pl.Date, pl.Datetime) else None


def _in_words(dtype) -> str:
    words = {"number": "numbers", "boolean": "true and false", "category": "text", "date": "dates"}
    kind = _kind(dtype)
    return words[kind] if kind else f"values of type {dtype}"


# -- rows ----------------------------------------------------------------------------------------------------------


def read_as_text(frame: pl.DataFrame, names: list[str]) -> list[str]:
    """Columns that the default kernel reads as categories or text, in which a missing cell has a meaning."""
    return [name for name in names if getattr(_decided(frame[name]), "kind", None) in STRUCTURED]


def complete(
    frame: pl.DataFrame, columns: list[str], drop_missing: bool, say: Say, text: Collection[str] = (),
    target: str | None = None,
) -> tuple[pl.DataFrame, np.ndarray]:  # fmt: skip
    """Rows without missing values in these columns, and their numbers, counted from one. Raises if there are others,
    unless ``drop_missing`` or in columns of ``text`` and in the ``target``, where Python accepts them."""
    frame = pl.DataFrame([frame[name] for name in columns])  # select would read '*' and '^a$' as patterns
    counts_of = {name: count for name, count in zip(columns, frame.null_count().row(0), strict=True) if count}
    missing = {name: count for name, count in counts_of.items() if drop_missing or name not in (*text, target)}
    holes = [np.zeros(len(frame), dtype=bool), *(frame[name].alias("column").is_null().to_numpy() for name in missing)]
    present = ~np.any(holes, axis=0)
    kept = {name: count for name, count in counts_of.items() if name not in (*missing, target)}
    if missing:
        counts = listed([f"{count} in {name}" for name, count in missing.items()])
        lost = int((~present).sum())
        if not drop_missing:
            raise DataError(
                f"values are missing or infinite: {counts}; {lost} of {len(frame)} rows are affected, the first is row "
                f"{int(np.argmin(present)) + 1}. Fill them in, or drop those rows with --drop-missing."
            )
        if lost == len(frame):
            raise DataError(f"every row has a missing value: {counts}. Drop the emptiest columns with --drop.")
        say(f"{lost} of {len(frame)} rows dropped because of missing values: {counts}")
    if kept:
        counts = listed([f"{count} in {name}" for name, count in kept.items()])
        say(f"missing text stays: {counts}; it is a category of its own, or empty text")
    return frame.filter(present), np.flatnonzero(present) + 1


def without_target(frame: pl.DataFrame, target: str, say: Say) -> np.ndarray:
    """Which rows have no target, (n,): gaps, of which the fit learns nothing. Infinite targets are refused."""
    infinite = int(frame[target].is_infinite().sum()) if frame[target].dtype.is_float() else 0
    if infinite:
        raise DataError(
            f"the target {target!r} is infinite in {infinite:,} of {len(frame):,} rows. Empty those cells if the "
            "values are missing, or drop the rows."
        )
    gaps = frame[target].is_null().to_numpy()
    if gaps.all():
        raise DataError(f"the target {target!r} has no value in any row.")
    if gaps.any():
        say(f"{int(gaps.sum()):,} of {len(frame):,} rows have no {target}: they are gaps, which the fit leaves out")
    return gaps


# -- numbers -------------------------------------------------------------------------------------------------------


def describe(
    frame: pl.DataFrame, inputs: list[str], say: Say, readings: Mapping[str, columns.Reading] = MappingProxyType({})
) -> list[Input]:
    """What each input holds, with the ``readings`` of text. Constant columns are ignored."""
    constant = [name for name in inputs if frame[name].n_unique() == 1]
    if constant:
        say(f"constant columns ignored: {listed(constant)}")
    found: list[Input] = []
    for name in inputs:
        if name in constant:
            continue
        column = _decided(frame[name])
        if isinstance(column, Refusal):  # since rows with missing values were dropped
            raise DataError(f"column {name!r} {column.reason}. Drop it with --drop {shlex.quote(name)}.")
        entry: Input = {"name": name, "kind": column.kind} | readings.get(name, {})
        if column.kind in STRUCTURED:
            say(f"column {name!r} is read as {column}, with a kernel of its own")
        if column.kind == "category":
            entry["values"] = sorted(frame[name].cast(pl.String).fill_null(MISSING_CATEGORY).unique().to_list())
        found.append(entry)
    if not found:
        raise DataError("all input columns are constant; there is nothing to predict from.")
    return found


def typed(frame: pl.DataFrame, inputs: list[Input]) -> pl.DataFrame:
    """The inputs for a model, with categories of that type, so that a model of some of the rows reads them as such."""
    types = {"category": pl.Categorical}
    return pl.DataFrame(
        [
            frame[entry["name"]].cast(pl.String).cast(types["category"])
            if entry["kind"] in types
            else frame[entry["name"]]
            for entry in inputs
        ]
    )


def encode(frame: pl.DataFrame, inputs: list[Input]) -> pl.DataFrame:
    """Inputs as columns of numbers for models of earlier versions, without missing values: text is a column of 0 and 1
    for each value (``colour=red``). Values unknown to the fit are 0 in all columns."""
    encoded: list[pl.Series] = []
    for entry in inputs:
        column = frame[entry["name"]]
        if entry["kind"] == "category":
            texts = column.cast(pl.String)
            encoded += [(texts == value).cast(pl.Float64).alias(f"{column.name}={value}") for value in entry["values"]]
        else:
            encoded.append(_decimal_years(column) if entry["kind"] == "date" else _numbers(column, entry["kind"]))
    return pl.DataFrame(encoded)


def with_ranges(inputs: list[Input], X: pl.DataFrame) -> list[Input]:
    """The inputs with the smallest and largest training value of those that are numbers."""
    numbers = as_numbers(X, inputs)

    def ranged(entry: Input) -> Input:
        name = entry["name"]
        return entry | {"low": numbers[name].min(), "high": numbers[name].max()} if name in numbers.columns else entry

    return list(map(ranged, inputs))


def as_numbers(frame: pl.DataFrame, inputs: list[Input]) -> pl.DataFrame:
    """Inputs that are numbers, booleans and dates, as the model sees them."""
    entries = [entry for entry in inputs if entry["kind"] in NUMERIC]
    encoded = Columns(tuple(Column(entry["name"], entry["kind"]) for entry in entries)).encode(frame)
    return pl.DataFrame([encoded[entry["name"]].cast(pl.Float64) for entry in entries])


def outside(frame: pl.DataFrame, X: pl.DataFrame, inputs: list[Input], say: Say) -> list[str | None]:
    """Names of the inputs of each row that are outside the training data: new text values, and numbers and dates beyond
    their range by more than `RANGE_MARGIN`. ``X`` has the numbers of the ``frame``."""
    outside_rows: dict[str, np.ndarray] = {}
    for entry in inputs:
        name = entry["name"]
        if entry["kind"] == "category":
            texts = frame[name].cast(pl.String).fill_null(MISSING_CATEGORY)
            where = ~texts.is_in(entry["values"]).to_numpy()
            if where.any():
                counts = texts.filter(where).value_counts(sort=True).iter_rows()
                shown = listed([f"{text!r} in {count} {'row' if count == 1 else 'rows'}" for text, count in counts])
                say(f"column {name!r} has values that were not in the fit: {shown}; treated as none of the known ones")
        elif "low" in entry:  # not text, nor written by an earlier version
            low, high = entry["low"], entry["high"]
            values, margin = X[name].to_numpy(), RANGE_MARGIN * (high - low)
            where = (values < low - margin) | (values > high + margin)
        else:
            continue
        if where.any():
            outside_rows[name] = where
    rows = [", ".join(name for name, where in outside_rows.items() if where[i]) or None for i in range(len(frame))]
    if any(rows):
        counts = listed([f"{int(where.sum())} in {name}" for name, where in outside_rows.items()])
        say(
            f"{sum(map(bool, rows))} of {len(rows)} rows are outside the training data ({counts}): the column "
            "'outside' lists the inputs"
        )
    return rows


def _decimal_years(column):
    if column.dtype not in (pl.Date, pl.Datetime):
        raise DataError(f"column {column.name!r} holds {_in_words(column.dtype)}; dates were expected, as in the fit.")
    times = column.cast(pl.Datetime("us")) if column.dtype == pl.Date else column
    return (times.dt.timestamp("us") / MICROSECONDS_PER_YEAR + 1970.0).alias(column.name)


def _numbers(column, kind):
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        shown = f", as in {column[0]!r}" if column.dtype == pl.String else ""
        raise DataError(
            f"column {column.name!r} holds {_in_words(column.dtype)}{shown}; numbers were expected, as in the fit."
        )
    values = column.cast(pl.Float64)
    if kind == "boolean" and not values.is_in([0.0, 1.0]).all():
        raise DataError(f"column {column.name!r} was true and false in the fit, but holds other numbers here.")
    return values
