"""Tables in: files read, columns turned into numbers, and the record of how, which goes with the model.

Numbers stay as they are, booleans become 0 and 1, texts one column of 0 and 1 per value (``colour=red``), dates decimal
years: days since the first of January 1970, over 365.25, plus 1970. What text is numbers or dates, `columns` decides.
"""

import dataclasses
import difflib
import gzip
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from mercer.cli import columns
from mercer.core.errors import DataError
from mercer.core.text import listed

MOST_VALUES = 20  # that a column of text may take
MOST_CLASSES = 50  # that a target may have
FEW_VALUES = 10  # whole numbers of a target that could as well be classes
MISSING = ["NA", "N/A", "NaN", "nan", "null", "NULL", "?"]  # beside an empty field
SEPARATED = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
MICROSECONDS_A_YEAR = 365.25 * 86400e6

MARGIN = 0.1  # of the range of an input, by which a row may leave it without being called outside

# {"name", "kind"}; of a category its "values", else "low" and "high" in the fit; of what was text, how it was read.
Input = dict[str, Any]
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Part of a table, ready for a model: inputs, target, and the numbers of its rows in the file."""

    X: pl.DataFrame
    y: np.ndarray
    numbers: np.ndarray

    def __len__(self):
        return len(self.y)

    def __getitem__(self, which) -> "Rows":
        return Rows(self.X[which], self.y[which], self.numbers[which])


# -- files ---------------------------------------------------------------------------------------------------------


def stem(path: Path) -> str:
    """The name of a file without its endings.

    >>> stem(Path("data/houses.csv.gz"))
    'houses'
    """
    return path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name


def read(path: Path, texts: Iterable[str] = ()) -> pl.DataFrame:
    """A CSV or Parquet file. ``texts`` names columns to be read as text, whatever is in them."""
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    if ending not in SEPARATED + PARQUET:
        raise DataError(
            f"{path} should end in .csv, .csv.gz, .tsv or .parquet; how to read {path.suffix or 'it'} is not known."
        )
    if path.is_dir():
        raise DataError(f"{path} is a folder; a table is one file.")
    with path.open("rb") as file:  # says clearly what is wrong with a path
        file.read(1)
    try:
        frame = pl.read_parquet(path) if ending in PARQUET else _separated(path, texts)
    except (pl.exceptions.PolarsError, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        reason = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
        hint = " Save it as UTF-8." if "utf" in reason.lower() else ""
        raise DataError(f"{path} cannot be read as a table: {reason.rstrip('.')}.{hint}") from None
    frame = _tidy(frame, set(texts))
    if not len(frame):
        raise DataError(f"{path} has no rows.")
    return frame


def _separated(path, texts):
    names = set(texts)
    with _opened(path) as file:
        raw = file.readline()
    separator = _separator(raw)
    # Names are as in the file here, blanks and quotes included; dates are read later, from whole columns.
    header = pl.read_csv(path, separator=separator, n_rows=0).columns

    def parse(as_text):
        return pl.read_csv(
            path, separator=separator, infer_schema_length=None, null_values=MISSING,
            schema_overrides=dict.fromkeys(as_text, pl.String),
        )  # fmt: skip

    as_text = [name for name in header if name.strip() in names]
    frame = parse(as_text)
    doubtful = [column.name for column in frame.iter_columns() if columns.may_be_months(column)]
    if doubtful:  # only the text shows whether 1.202 was written 01.2020
        again = parse([*as_text, *doubtful])
        frame = frame.with_columns(again[name] for name in doubtful if columns.are_months(again[name]))
    return frame


def _opened(path):
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _separator(header: str) -> str:
    return max(",;\t", key=header.count)  # the comma where there is none of them


def decimal_mark(path: Path) -> str | None:
    """The decimal mark to expect where no column tells: where commas separate columns, the point. Else not known."""
    if Path(path.name.removesuffix(".gz")).suffix.lower() in PARQUET:
        return "."
    with _opened(path) as file:
        return "." if _separator(file.readline()) == "," else None


def _tidy(frame: pl.DataFrame, texts: set[str]) -> pl.DataFrame:
    """No blanks around names and texts, numbers where they were written with blanks, null for what is not finite."""
    names = [name.strip() for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataError(f"the table has columns of the same name: {', '.join(sorted(_repeated(names)))}.")
    frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    tidy = []
    for column in frame.iter_columns():
        if column.dtype == pl.String:
            column = column.str.strip_chars().replace("", None)
            numbers = column.cast(pl.Float64, strict=False)
            are_numbers = numbers.null_count() == column.null_count() < len(column)
            if are_numbers and column.name not in texts and not columns.are_months(column):
                column = numbers
        if column.dtype.is_float():
            column = pl.select(pl.when(column.is_finite()).then(column).alias(column.name)).to_series()
        tidy.append(column)
    return pl.DataFrame(tidy)


def _repeated(names):
    return {name for name in names if names.count(name) > 1}


# -- columns -------------------------------------------------------------------------------------------------------


def check_names(frame: pl.DataFrame, target: str, drop: Iterable[str]):
    """Refuse names that the table does not have."""
    for name in (target, *drop):
        if name not in frame.columns:
            known = {column.lower(): column for column in frame.columns}
            near = [known[found] for found in difflib.get_close_matches(name.lower(), known, n=1)]
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(f"there is no column {name!r}; the columns are {listed(frame.columns)}.{hint}")
    if target in drop:
        raise DataError(f"{target!r} is the target; it cannot be dropped as well.")


def choose(frame: pl.DataFrame, target: str, drop: Iterable[str], say: Say) -> list[str]:
    """The input columns: all but the target, those dropped, and those without a value. Refuses what cannot be used."""
    inputs = [name for name in frame.columns if name != target and name not in drop]
    empty = [name for name in inputs if frame[name].null_count() == len(frame)]
    if empty:
        say(f"left out, since nothing is in them: {listed(empty)}")
    inputs = [name for name in inputs if name not in empty]
    refused = {name: reason for name in inputs if (reason := _reason_against(frame[name]))}
    if refused:
        reasons = "; ".join(f"{name!r} {reason}" for name, reason in refused.items())
        drops = " ".join(f"--drop {shlex.quote(name)}" for name in refused)
        raise DataError(
            f"columns that cannot be used: {reasons}. Leave them out with {drops}, or make numbers of them; of what "
            "should be a number or a date, --kind COLUMN=number or COLUMN=date tells what is in the way."
        )
    if not inputs:
        raise DataError(f"there is no input column beside the target {target!r}.")
    return inputs


def task_of(column: pl.Series, wanted: str | None, say: Say) -> str:
    """What a target asks for: "regression" where it holds numbers, "classification" where it holds text or booleans.
    ``wanted`` insists on one of them, where that makes sense."""
    kind, some = _kind(column.dtype), column.drop_nulls()
    shown = f", as in {some[0]!r}" if column.dtype == pl.String and len(some) else ""
    told = f"the target {column.name!r} holds {_in_words(column.dtype)}{shown}"
    if kind not in ("number", "boolean", "category"):
        raise DataError(f"{told}; numbers were expected, or text for classes.")
    task = wanted or ("regression" if kind == "number" else "classification")
    if task == "regression" and kind != "number":
        raise DataError(f"{told}; numbers were expected. --task classification takes them as classes.")
    if wanted is None and kind == "number" and some.n_unique() <= FEW_VALUES and _whole(some):
        say(
            f"the target {column.name!r} holds {some.n_unique()} different whole numbers, taken as quantities; "
            "--task classification takes them as classes"
        )
    return task


def quantities(column: pl.Series) -> np.ndarray:
    """A target of numbers, none of them missing."""
    y = column.cast(pl.Float64).to_numpy()
    if y.min() == y.max():
        raise DataError(f"the target {column.name!r} is {y[0]:g} in every row, so that there is nothing to learn.")
    return y


def labels(column: pl.Series) -> np.ndarray:
    """A target of classes, none missing: texts; true and false as such texts too; or whole numbers."""
    if column.dtype.is_numeric():
        if not _whole(column):
            raise DataError(
                f"the target {column.name!r} holds numbers that are not whole; classes were expected. For quantities "
                "leave --task classification out."
            )
        largest = float(np.abs(column.cast(pl.Float64).to_numpy()).max())
        if largest >= 2**53:
            raise DataError(f"the target {column.name!r} holds numbers up to {largest:g}; these are no classes.")
        y = column.cast(pl.Int64).to_numpy()
    else:
        y = column.cast(pl.String).to_numpy().astype(str)
    distinct = len(np.unique(y))
    if distinct == 1:
        raise DataError(
            f"the target {column.name!r} is {y[0].item()!r} in every row; to learn, at least two classes are needed."
        )
    if distinct > MOST_CLASSES:
        raise DataError(
            f"the target {column.name!r} takes {distinct} different values; {MOST_CLASSES} classes at most can be told "
            "apart here. Rare ones can be put together as 'other'."
        )
    return y


def _whole(column) -> bool:
    return column.dtype.is_integer() or bool((column == column.round()).all())


def _reason_against(column) -> str | None:
    kind = _kind(column.dtype)
    if kind is None:
        return f"holds {_in_words(column.dtype)}, neither numbers, texts nor dates"
    if kind != "category":
        return None
    distinct, rows = column.drop_nulls().n_unique(), len(column) - column.null_count()
    if distinct == rows > 2:
        return "has another text in every row, like an identifier"
    if distinct > MOST_VALUES:
        return f"takes {distinct} different texts ({MOST_VALUES} at most; rare ones can be put together as 'other')"
    return None


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


def complete(frame: pl.DataFrame, columns: list[str], drop_missing: bool, say: Say) -> tuple[pl.DataFrame, np.ndarray]:
    """Rows where none of the columns misses a value, and their numbers, counted from one. Others are refused."""
    frame = pl.DataFrame([frame[name] for name in columns])  # select would read '*' and '^a$' as patterns
    missing = {name: count for name, count in zip(columns, frame.null_count().row(0), strict=True) if count}
    whole = ~frame.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy()
    if missing:
        counts = listed([f"{count} in {name}" for name, count in missing.items()])
        lost = int((~whole).sum())
        if not drop_missing:
            raise DataError(
                f"values are missing or infinite: {counts}; {lost} of {len(frame)} rows are concerned. Fill them in, "
                "or leave those rows out with --drop-missing."
            )
        if lost == len(frame):
            raise DataError(f"every row misses a value: {counts}. Leave the emptiest columns out with --drop.")
        say(f"{lost} of {len(frame)} rows left out, since values are missing: {counts}")
    return frame.filter(whole), np.flatnonzero(whole) + 1


# -- numbers -------------------------------------------------------------------------------------------------------


def describe(
    frame: pl.DataFrame, inputs: list[str], say: Say, readings: Mapping[str, columns.Reading] = MappingProxyType({})
) -> list[Input]:
    """How each input becomes numbers, for `encode`; ``readings`` of text go along. Columns that never change are left
    out."""
    constant = [name for name in inputs if frame[name].n_unique() == 1]
    if constant:
        say(f"left out, since they never change: {listed(constant)}")
    found: list[Input] = []
    for name in inputs:
        if name in constant:
            continue
        entry: Input = {"name": name, "kind": _kind(frame[name].dtype)} | readings.get(name, {})
        if entry["kind"] == "category":
            entry["values"] = sorted(frame[name].cast(pl.String).unique().to_list())
        found.append(entry)
    if not found:
        raise DataError("no input column changes from row to row, so that there is nothing to predict from.")
    return found


def encode(frame: pl.DataFrame, inputs: list[Input]) -> pl.DataFrame:
    """The inputs as columns of numbers, as `describe` said. No value may be missing.

    A text that the fit did not have is none of those it had: all of its columns are 0.
    """
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
    """The inputs with the least and the largest value that a model has seen of each; categories have no such."""

    def ranged(entry: Input) -> Input:
        name = entry["name"]
        return entry if entry["kind"] == "category" else entry | {"low": X[name].min(), "high": X[name].max()}

    return list(map(ranged, inputs))


def outside(frame: pl.DataFrame, X: pl.DataFrame, inputs: list[Input], say: Say) -> list[str | None]:
    """For each row the names of inputs that are nothing like what the model has seen: texts that it did not have, and
    numbers and dates beyond its range by more than a tenth of that. ``frame`` is encoded in ``X``."""
    strange: dict[str, np.ndarray] = {}
    for entry in inputs:
        name = entry["name"]
        if entry["kind"] == "category":
            texts = frame[name].cast(pl.String)
            where = ~texts.is_in(entry["values"]).to_numpy()
            if where.any():
                counts = texts.filter(where).value_counts(sort=True).iter_rows()
                shown = listed([f"{text!r} in {count} {'row' if count == 1 else 'rows'}" for text, count in counts])
                say(f"column {name!r} holds what was not in the fit: {shown}; taken as none of the known values")
        elif "low" in entry:
            low, high = entry["low"], entry["high"]
            values, margin = X[name].to_numpy(), MARGIN * (high - low)
            where = (values < low - margin) | (values > high + margin)
        else:
            continue  # of a model that an earlier version wrote
        if where.any():
            strange[name] = where
    rows = [", ".join(name for name, where in strange.items() if where[i]) or None for i in range(len(frame))]
    if any(rows):
        counts = listed([f"{int(where.sum())} in {name}" for name, where in strange.items()])
        say(
            f"{sum(map(bool, rows))} of {len(rows)} rows lie outside what the model has seen ({counts}): the column "
            "'outside' names the inputs"
        )
    return rows


def _decimal_years(column):
    if column.dtype not in (pl.Date, pl.Datetime):
        raise DataError(f"column {column.name!r} holds {_in_words(column.dtype)}; dates were expected, as in the fit.")
    times = column.cast(pl.Datetime("us")) if column.dtype == pl.Date else column
    return (times.dt.timestamp("us") / MICROSECONDS_A_YEAR + 1970.0).alias(column.name)


def _numbers(column, kind):
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        shown = f", as in {column[0]!r}" if column.dtype == pl.String else ""
        raise DataError(
            f"column {column.name!r} holds {_in_words(column.dtype)}{shown}; numbers were expected, as in the fit."
        )
    values = column.cast(pl.Float64)
    if kind == "boolean" and not values.is_in([0.0, 1.0]).all():
        raise DataError(f"column {column.name!r} was true and false in the fit; now it holds other numbers.")
    return values
