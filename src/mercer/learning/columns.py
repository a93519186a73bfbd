"""What the columns of a table are, decided from the whole of each, their encoding, and the default kernel on them.

Numbers and booleans stay as they are, and dates become decimal years: these are read by the standard kernel. Categories
and text stay text, and each such column has a kernel of its own, so that values which only new rows have need no code.
"""

import dataclasses
import datetime
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np

from mercer.core.calendar import MICROSECONDS_PER_YEAR
from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, as_frame, is_numeric, select_columns
from mercer.core.text import listed, table
from mercer.kernels import BagOfWords, Categorical, Constant, Kernel, Spectrum, Tanimoto
from mercer.kernels.algebra import Product, Sum
from mercer.kernels.structured.text import PATTERN
from mercer.learning.heuristics import standard_kernel

MAX_CATEGORIES = 20  # distinct text: more are categories only where a value has two rows or more on average
MIN_ROWS_PER_CATEGORY = 2  # on average
MIN_WORDS = 3  # of the median row of a column read as words, rather than as characters
MAX_CODE_SHARE = 0.1  # of the rows: how many patterns text may have, apart from its digits, to be a numbering of rows
MISSING = "(missing)"  # a category of its own
MAX_LETTERS = 3  # of the words by which short text is compared
START_SHARE = 0.3  # of the function's variance, where a column's own terms start

NUMERIC = ("number", "boolean", "date")  # read by the standard kernel
STRUCTURED = ("category", "text", "words")  # read by kernels of their own
MEANINGS = {
    "number": "numbers", "boolean": "true and false, as 1 and 0", "date": "dates, as decimal years",
    "category": "categories", "text": "text, compared by its characters", "words": "text, compared by its words",
    "constant": "ignored: the same in every row",
}  # fmt: skip
HEX = re.compile(r"(?=.*[0-9])[0-9a-fA-F-]{8,}")


class Column(NamedTuple):
    """What a column was found to hold: a kind of `MEANINGS`, and how many distinct texts."""

    name: str
    kind: str
    distinct: int = 0

    def __str__(self) -> str:
        count = f" ({self.distinct:,} distinct)" if self.kind in STRUCTURED else ""
        return f"{MEANINGS[self.kind]}{count}"


class Refusal(NamedTuple):
    """Why a column cannot be used, and what to do about it apart from dropping it."""

    name: str
    reason: str
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table, in order; prints as a table."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, X: Inputs) -> "Columns | None":
        """What a frame holds; None for other inputs. Raises for columns that cannot be used, with their names."""
        frame = as_frame(X)
        if frame is None:
            return None
        found = [decide(column) for column in frame.iter_columns()]
        refused = [each for each in found if isinstance(each, Refusal)]
        if refused:
            reasons = "; ".join(f"{name!r} {reason}" for name, reason, _ in refused)
            remedies = " ".join(dict.fromkeys(each.remedy for each in refused if each.remedy))
            raise DataError(
                f"X has columns that the default kernel cannot read: {reasons}. Drop them, or give a kernel that reads "
                f"them. {remedies}".strip()
            )
        columns = tuple(each for each in found if isinstance(each, Column))
        if columns and all(each.kind == "constant" for each in columns):
            raise DataError("all columns of X are constant; there is nothing to predict from.")
        if any(each.kind not in ("number", "boolean") and not isinstance(each.name, str) for each in columns):
            raise DataError("columns of categories, text and dates need names of text, such as X.columns = ['a', 'b'].")
        return cls(columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def names(self, *kinds: str) -> list[str]:
        """Names of the columns of these kinds."""
        return [column.name for column in self.columns if column.kind in kinds]

    @property
    def all_numbers(self) -> bool:
        """Whether the table is a matrix of numbers as it is."""
        return all(column.kind in ("number", "boolean") for column in self.columns)

    def encode(self, X: Inputs) -> Inputs:
        """A frame with dates as decimal years, categories and text as text, and without constant text; numbers
        stay as they are. A missing category is one of its own, and missing text is empty."""
        frame = as_frame(X)
        if frame is None:
            if self.all_numbers:
                return X
            raise DataError(
                f"this model was fitted to a frame with columns of {self._kinds()}; give a pandas or polars frame with "
                f"the same columns, not {type(X).__name__}."
            )
        if self.all_numbers:
            return X
        encoded = [_encoded(frame[column.name], column) for column in self.columns if column.kind != "constant"]
        return frame.select(*encoded).to_native()

    def _kinds(self) -> str:
        return listed(list(dict.fromkeys(MEANINGS[column.kind].partition(",")[0] for column in self.columns)))

    def __str__(self) -> str:
        return table(["column", "read as"], [[str(column.name), str(column)] for column in self.columns])

    __repr__ = __str__


# -- what a column is ----------------------------------------------------------------------------------------------


def decide(column: Any) -> Column | Refusal:
    """What a column, a narwhals series, holds: by its type and all of its values."""
    name, dtype, n = column.name, column.dtype, len(column)
    present = column.alias("column").drop_nulls()  # polars reads names such as '^a$' as patterns
    if dtype.is_float() and np.isnan(present.to_numpy()).all():
        present = present[:0]
    if not len(present):
        return Refusal(name, "has no value in any row")
    if dtype.is_numeric():
        return Column(name, "number")
    if dtype == nw.Boolean:
        return Column(name, "boolean")
    if dtype in (nw.Date, nw.Datetime):
        return Column(name, "date")
    if dtype == nw.Object:
        return _decide_objects(name, present.to_list(), n)
    if dtype in (nw.Categorical, nw.Enum):
        return _decide_texts(name, [str(value) for value in present.to_list()], n, declared=True)
    if dtype == nw.String:
        return _decide_texts(name, present.to_list(), n)
    remedy = f"Turn durations into numbers, as in X[{name!r}].dt.total_seconds()." if dtype == nw.Duration else ""
    return Refusal(name, f"holds values of type {dtype}, not numbers, text or dates", remedy)


def _decide_objects(name: str, values: list[Any], n: int) -> Column | Refusal:
    """A column of Python objects of any types."""
    kinds = {_kind_of(value): value for value in values}
    if len(kinds) > 1:
        words = {"number": "numbers", "boolean": "booleans", "text": "text", "date": "dates"}
        mixed = " and ".join(words.get(kind, kind) for kind in kinds)
        return Refusal(name, f"mixes {mixed}", f"Make {name!r} all text, X[{name!r}].astype(str), or all numbers.")
    ((kind, value),) = kinds.items()
    if kind == "text":
        return _decide_texts(name, values, n)
    if kind in ("number", "boolean", "date"):
        return Column(name, kind)
    return Refusal(name, f"holds objects of type {kind}, not numbers, text or dates", _remedy(name, value))


def _remedy(name: str, value: Any) -> str:
    if hasattr(value, "nodes") and hasattr(value, "edges"):
        return f"Graphs take a kernel of their own, as in WeisfeilerLehman(3).on({name!r})."
    if isinstance(value, set | frozenset):
        return f"Sets take a kernel of their own, as in Subsets(normalized=True).on({name!r})."
    return ""


def _kind_of(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, int | float | np.number):
        return "number"
    if isinstance(value, str):
        return "text"
    return "date" if isinstance(value, datetime.date) else type(value).__name__


def _decide_texts(name: str, texts: list[str], n: int, declared: bool = False) -> Column | Refusal:
    """Text is a constant, categories, a numbering of the rows (refused), words or characters. ``declared``: its type
    says that it is categories."""
    distinct = set(texts)
    if len(distinct) == 1 and len(texts) == n:
        return Column(name, "constant", 1)
    repeated = len(distinct) < len(texts) or len(texts) <= 2
    common = len(distinct) <= MAX_CATEGORIES or len(texts) >= MIN_ROWS_PER_CATEGORY * len(distinct)
    if repeated and (declared or common):
        return Column(name, "category", len(distinct))
    different = "different text in every row" if not repeated else f"{len(distinct)} distinct texts in {n} rows"
    if declared:
        return Refusal(name, f"has {different}, which are no categories", f"Make {name!r} text if its content counts.")
    if _is_numbering(distinct):
        remedy = f"If {name!r} holds numbers or dates as text, convert it to their type." if _is_read(distinct) else ""
        return Refusal(name, f"has {different}, like an identifier", remedy)
    words = np.median([len(re.findall(PATTERN, text)) for text in texts])
    return Column(name, "words" if words >= MIN_WORDS else "text", len(distinct))


def _is_numbering(texts: set[str]) -> bool:
    """Whether texts are codes: hexadecimal ones, or a few patterns apart from their digits."""
    if all(HEX.fullmatch(text) for text in texts):
        return True
    patterns = {re.sub(r"\d+", "0", text) for text in texts}
    return len(patterns) <= max(1, MAX_CODE_SHARE * len(texts))


def _is_read(texts: set[str]) -> bool:
    """Whether the texts may be numbers or dates."""
    return all(re.fullmatch(r"[\d\s.,:/+eETZ-]*\d[\d\s.,:/+eETZ-]*", text) for text in texts)


NOUNS = {"category": "categories", "text": "text", "words": "text", "date": "dates"}
EXAMPLES = {
    "category": "Categorical()", "text": "Spectrum(3).normalize()", "words": "BagOfWords().normalize()",
}  # fmt: skip


def refuse_columns(X: Inputs) -> None:
    """Refuse a frame with columns that are not numbers, for a default kernel on vectors, and say which kernel reads
    them."""
    frame = as_frame(X)
    if frame is None or all(is_numeric(dtype) for dtype in frame.schema.values()):
        return
    found = [decide(column) for column in frame.iter_columns()]
    numbers = [each.name for each in found if isinstance(each, Column) and each.kind in ("number", "boolean")]
    terms = [f"RBF().on({numbers if numbers[1:] else numbers[0]!r})"] if numbers else []
    others, remedies = [], []
    for each in (each for each in found if each.name not in numbers):
        if isinstance(each, Refusal):
            others.append(f"{each.name!r} {each.reason}")
            remedies.append(each.remedy)
            continue
        others.append(f"{each.name!r} holds {'one text' if each.kind == 'constant' else NOUNS[each.kind]}")
        if each.kind in EXAMPLES:
            terms.append(f"{EXAMPLES[each.kind]}.on({each.name!r})")
        elif each.kind == "date":
            remedies.append(f"Turn dates into numbers, as in (X[{each.name!r}] - X[{each.name!r}].min()).dt.days.")
    advice = (
        f"Drop them, or give a kernel over the columns, as in kernel={' + '.join(terms)}." if terms else "Drop them."
    )
    remedies = [advice, *dict.fromkeys(remedy for remedy in remedies if remedy)]
    raise DataError(
        f"the default kernel reads numbers, and X has other columns: {'; '.join(others)}. {' '.join(remedies)}"
    )


# -- encoding ------------------------------------------------------------------------------------------------------


def _encoded(column: nw.Series, into: Column) -> nw.Series:
    """A column of new rows as in the fit, whose name it keeps."""
    return _read(column.alias("column"), into).alias(into.name)


def _read(column: nw.Series, into: Column) -> nw.Series:
    if into.kind in STRUCTURED:
        missing, instead = column.is_null().to_list(), MISSING if into.kind == "category" else ""
        pairs = zip(column.to_list(), missing, strict=True)
        texts = [instead if absent else str(value) for value, absent in pairs]
        return _series(column, texts, nw.String)
    if into.kind == "date":
        return _dates(column, into.name)
    if column.dtype == nw.Object:
        column = _objects_as_numbers(column)
    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise DataError(f"column {into.name!r} holds {_held(column)}; numbers were expected, as in the fit.")
    if into.kind == "boolean" and column.dtype != nw.Boolean:
        values = column.cast(nw.Float64).to_numpy()
        if not np.isin(values[~np.isnan(values)], (0.0, 1.0)).all():
            raise DataError(f"column {into.name!r} was true and false in the fit, but holds other numbers here.")
    return column


def _held(column: nw.Series) -> str:
    if column.dtype == nw.String:
        return f"text, as in {column[0]!r}"
    return "numbers" if column.dtype.is_numeric() else f"values of type {column.dtype}"


def _dates(column: nw.Series, name: str) -> nw.Series:
    """Dates as decimal years. A number might be a year, a day, or seconds since 1970: only missing values are taken."""
    if column.dtype in (nw.Date, nw.Datetime):
        return _decimal_years(column)
    if column.is_null().all() or (column.dtype.is_float() and column.is_nan().all()):
        return _series(column, [None] * len(column), nw.Float64)
    if column.dtype == nw.Object:
        values = [None if absent else value for value, absent in zip(column.to_list(), column.is_null(), strict=True)]
        if {_kind_of(value) for value in values if value is not None} == {"date"}:
            return _decimal_years(_series(column, values, nw.Datetime("us")))
    raise DataError(
        f"column {name!r} holds {_held(column)}; dates were expected, as in the fit. Convert it, with "
        "pandas.to_datetime or polars' to_datetime."
    )


def _series(like: nw.Series, values: Sequence[Any], dtype: Any) -> nw.Series:
    """A column with the name and the library of another."""
    return nw.new_series(like.name, values, dtype, backend=like.implementation)


def _decimal_years(column: nw.Series) -> nw.Series:
    """Years since the year 0 of 365.25 days each, counted from the first of January 1970."""
    times = column.cast(nw.Datetime("us")) if column.dtype == nw.Date else column
    microseconds = times.dt.timestamp("us").cast(nw.Float64)
    return microseconds / MICROSECONDS_PER_YEAR + 1970.0


def _objects_as_numbers(column: nw.Series) -> nw.Series:
    """Python numbers or booleans as floats; other values are unchanged."""
    values = [None if absent else value for value, absent in zip(column.to_list(), column.is_null(), strict=True)]
    if not {_kind_of(value) for value in values if value is not None} <= {"number", "boolean"}:
        return column
    return _series(column, [None if value is None else float(value) for value in values], nw.Float64)


# -- the default kernel --------------------------------------------------------------------------------------------


def default_kernel(X: Inputs, columns: Columns | None, one_each: bool = True, constant: bool = True) -> Kernel:
    """k0 prod_j (1 + c_j k_j) + sum_j v_j k_j, with k0 the standard kernel of the numbers and k_j that of column j.

    A function of the numbers that all rows share, deviations from it for every value of a column and for combinations
    of them, and an effect of each column alone; similar values of a column have similar ones. Without numbers, the
    columns' own effects and one of all columns together. X is encoded; ``one_each`` and ``constant`` as in
    `standard_kernel`.
    """
    structured = [column for column in columns or () if column.kind in STRUCTURED]
    if columns is None or not structured:
        return standard_kernel(X, one_each, constant)
    kernels = [kernel_of(column).fitted(X) for column in structured]
    labels = [_identifier(column.name) for column in structured]
    effects = [(START_SHARE * k).named(label) for k, label in zip(kernels, labels, strict=True)]
    numbers = columns.names(*NUMERIC)
    if not numbers:
        together = (START_SHARE * Product(tuple(kernels))).named("together")
        return Sum((*effects, together)) if effects[1:] else effects[0]
    k0 = standard_kernel(select_columns(X, tuple(numbers)), one_each, constant).on(numbers)
    pairs = zip(kernels, labels, strict=True)
    one, deviations = Constant(1.0).fix(), [(START_SHARE * k).named(f"{label}_interaction") for k, label in pairs]
    return Sum((Product((k0, *(Sum((one, deviation)) for deviation in deviations))), *effects))


def kernel_of(column: Column) -> Kernel:
    """Kernel of a column of categories or text, one for equal values: equal or not; the share of words of one to
    `MAX_LETTERS` letters that two texts have in common; or the cosine of weighted counts of words."""
    kernels: dict[str, Kernel] = {
        "category": Categorical(),
        "text": Tanimoto(Sum(tuple(Spectrum(length) for length in range(1, MAX_LETTERS + 1)))),
        "words": Tanimoto(BagOfWords()),
    }
    return kernels[column.kind].on(column.name)


def _identifier(name: str) -> str:
    """A name of parameters, from that of a column."""
    found = re.sub(r"\W", "_", name)
    return found if found.isidentifier() else f"column_{found}"
