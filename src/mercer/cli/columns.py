"""Numbers and dates in columns of text: the format is inferred from the whole column, reported, and kept.

The format is a plain dict saved with the model, a `Reading`: ``{"format": "%d/%m/%Y"}`` for dates, in the codes of
`datetime.strptime`; ``{"decimal": ".", "thousands": ",", "signs": ["$"]}`` for numbers. Columns that polars reads as
numbers or dates by itself have none.
"""

import collections
import dataclasses
import datetime
import re
import shlex
from typing import Any

import polars as pl

from mercer.core.errors import DataError, ParameterError

Reading = dict[str, Any]

MAX_STRAY_SHARE = 1 / 3  # of the different texts of a column: with more, it is not a column of numbers or dates
KINDS = ("number", "text", "date")
FIRST_COMPACT, LAST_COMPACT = 18000101, 21991231  # integers in between may be dates YYYYMMDD
ABSENT = ("-", "--", ".", "none")  # missing beside numbers or dates, in any case; other text may mean something by them
SIGNS = ("$", "€", "£", "¥", "₹", "₽", "₩", "₺", "USD", "EUR", "GBP", "CHF", "JPY", "%")
BLANKS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2212": "-", "\u2019": "'"})

MONTH_NAMES = (
    "%d %b %Y", "%d-%b-%Y", "%d/%b/%Y", "%d. %b %Y", "%b %d, %Y", "%b %d %Y", "%Y %b %d", "%Y-%b-%d", "%b %Y", "%b-%Y",
)  # fmt: skip
UNAMBIGUOUS_FORMATS = (
    *(f"%Y{mark}%m{mark}%d" for mark in "-/."), "%Y-%m", "%Y/%m", "%m/%Y", "%m.%Y",
    *MONTH_NAMES, *(form.replace("%b", "%B") for form in MONTH_NAMES),
)  # fmt: skip
NUMERIC_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
MONTH = re.compile(r"(0[1-9]|1[0-2])\.(1[89]\d\d|20\d\d|2100)")  # MM.YYYY
EXAMPLE = datetime.datetime(2020, 1, 31)
TIME = re.compile(r"(?:T|\s+)(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*([AaPp][Mm])?\s*(Z|[+-]\d{2}:?\d{2})?$")


@dataclasses.dataclass(frozen=True)
class ColumnOptions:
    """Options of the command line: the kind of each named column, and the order of day and month."""

    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    day_first: bool | None = None

    @classmethod
    def of(cls, kinds=(), day_first: bool | None = None) -> "ColumnOptions":
        """Parse options such as ``when=date:%d/%m/%Y``."""
        found = {}
        for given in kinds:
            name, sign, kind = given.rpartition("=")
            if ":" in given and not kind.startswith(KINDS):  # a format may contain "=" too
                name, sign, kind = given.partition("=")
            word, _, more = kind.partition(":")
            if not sign or word not in KINDS or (word == "text" and more) or (word == "number" and more not in ",."):
                raise ParameterError(
                    "--kind takes COLUMN=number, COLUMN=text or COLUMN=date, optionally followed by a decimal mark or "
                    f"a date format, as in price=number:, or when=date:%d/%m/%Y; got {given!r}."
                )
            found[name] = kind
        return cls(found, day_first)

    def check(self, names):
        unknown = [name for name in self.kinds if name not in names]
        if unknown:
            raise ParameterError(f"--kind names columns that the table lacks: {', '.join(map(repr, unknown))}.")


DEFAULT_COLUMN_OPTIONS = ColumnOptions()


def settle(
    frame: pl.DataFrame, names, options: ColumnOptions, say, target: str | None = None, decimal: str | None = None
) -> tuple[pl.DataFrame, dict[str, Reading]]:
    """Convert columns of text that hold only numbers or only dates; also return the format of each.

    Integers that are all dates YYYYMMDD, and text that is all months MM.YYYY, become dates, except in the ``target``.
    An ambiguous column is refused, with the option that resolves it. ``decimal`` is the decimal mark to assume if no
    column shows it.
    """
    comma = _decimal_mark_of_the_rest(frame, names) or decimal
    readings: dict[str, Reading] = {}
    for name in names:
        column = frame[name]
        word, _, more = options.kinds.get(name, "").partition(":")
        if word == "text":
            frame = frame.with_columns(column.cast(pl.String))
        if column.null_count() == len(column) or word == "text":
            continue
        if column.dtype == pl.String:
            reading = _text_reading(column, word, more, options.day_first, comma, say, may_be_months=name != target)
        elif column.dtype.is_integer() and (word == "date" or (not word and name != target)):
            reading = _integer_reading(column, more, asked=word == "date", say=say)
        else:
            reading = None
            if word and word != _native(column.dtype):
                hint = f" Give its format, as in --kind {shlex.quote(f'{name}=date:%m.%Y')}." if word == "date" else ""
                raise DataError(f"column {name!r} holds values of type {column.dtype}, not {word}s.{hint}")
        if reading is not None:
            readings[name] = reading
            frame = frame.with_columns(read(column, reading).alias(name))
    return frame, readings


def read(column: pl.Series, reading: Reading) -> pl.Series:
    """Convert a column of text to numbers or dates in a known format; numbers and dates stay as they are."""
    if "format" in reading:
        if column.dtype in (pl.Date, pl.Datetime):
            return column
        return _mapped(column.cast(pl.String), lambda text: moment(text, reading["format"]), pl.Datetime("us"), reading)
    if column.dtype != pl.String:
        return column
    return _mapped(column, lambda text: _number(text, reading), pl.Float64, reading)


def _mapped(column, function, dtype, reading):
    values = {text: function(text) for text in distinct(column)}
    bad = [text for text in column if text in values and values[text] is None]
    if bad and "format" in reading and all(moment(text, "%Y-%m-%d") for text in values):  # unambiguous
        values, bad = {text: moment(text, "%Y-%m-%d") for text in values}, []
    if bad:
        wanted = f"dates such as {EXAMPLE.strftime(reading['format'])!r}" if "format" in reading else "numbers"
        raise DataError(
            f"column {column.name!r} holds {bad[0]!r}" + (f" and {len(bad) - 1} more like it" if len(bad) > 1 else "")
            + f"; {wanted} were expected, as in the fit."
        )  # fmt: skip
    return pl.Series(column.name, list(map(values.get, column)), dtype=dtype)


def distinct(column: pl.Series) -> list[str]:
    """The different texts of a column, in order, without those that stand for a missing value."""
    return [text for text in column.drop_nulls().unique(maintain_order=True) if text.lower() not in ABSENT]


def strays(column: pl.Series) -> list[str]:
    """The texts of a column that are no numbers."""
    return [text for text in distinct(column) if not _is_read(text, "number")]


def _native(dtype) -> str | None:
    if dtype.is_numeric():
        return "number"
    return "date" if dtype in (pl.Date, pl.Datetime) else None


def _text_reading(column, word, more, day_first, comma, say, may_be_months) -> Reading | None:
    texts = distinct(column)
    reading = None
    if not texts:
        return None
    if word == "number" or (not word and not (may_be_months and are_months(column))):
        reading = _number_reading(column.name, texts, more, comma, say)
    if reading is None and word in ("", "date"):
        reading = _date_reading(column.name, texts, more, day_first, say)
    if reading is None and word:
        stray = next((text for text in texts if not _is_read(text, word, more)), texts[0])
        raise DataError(f"--kind says that column {column.name!r} is a {word}, but it holds text such as {stray!r}.")
    if reading is None:
        others = [text for text in texts if not (_is_read(text, "number") or _is_read(text, "date"))]
        if 0 < len(others) <= len(texts) * MAX_STRAY_SHARE:
            say(
                f"column {column.name!r} is read as text, because {others[0]!r} is neither a number nor a date; most "
                "of its other values are"
            )
    return reading


def _is_read(text: str, word: str, form: str = "") -> bool:
    """Whether a single text is a number or a date in any known format."""
    if word == "number":
        found = _digits(text)
        return found is not None and bool(_styles([found[0]]))
    known = (form,) if form else (*UNAMBIGUOUS_FORMATS, *(order for mark in "/-." for order in _orders(mark)))
    return any(moment(text, each) is not None for each in known)


# -- dates ------------------------------------------------------------------------------------------------------------


def are_months(column: pl.Series) -> bool:
    """Whether all text is months MM.YYYY: years 1800 to 2100, with a leading zero somewhere, unlike numbers such as
    1.202."""
    texts = distinct(column)
    return any(text.startswith("0") for text in texts) and all(MONTH.fullmatch(text) for text in texts)


def may_be_months(column: pl.Series) -> bool:
    """Whether numbers may be months MM.YYYY that lost their zeros when read: 01.2020 is 1.202 as a number."""
    values = column.drop_nulls()
    if not column.dtype.is_float() or not len(values) or not values.is_between(1, 13).all():
        return False
    years = (values - values.floor()) * 1e4
    return bool(((years - years.round()).abs() < 1e-6).all() and years.round().is_between(1800, 2100).all())


def moment(text: str, form: str) -> datetime.datetime | None:
    """Parse a date, optionally followed by a time; None if it does not match. Times with a zone become UTC.

    >>> moment("2/1/2020 10:30", "%d/%m/%Y")
    datetime.datetime(2020, 1, 2, 10, 30)
    """
    time = None if "%H" in form else TIME.search(text)
    try:
        day = datetime.datetime.strptime(text[: time.start()] if time else text, form)
        if day.tzinfo is not None:
            day = day.astimezone(datetime.UTC).replace(tzinfo=None)
        return day if time is None else day + _since_midnight(*time.groups())
    except (ValueError, OverflowError):
        return None


def _since_midnight(hours, minutes, seconds, fraction, half, zone) -> datetime.timedelta:
    hour = int(hours) % 12 + 12 * (half.lower() == "pm") if half else int(hours)
    if hour > 23 or int(minutes) > 59 or int(seconds or 0) > 60:
        raise ValueError("not a time of day")
    micro = int((fraction or "0").ljust(6, "0")[:6])
    passed = datetime.timedelta(hours=hour, minutes=int(minutes), seconds=int(seconds or 0), microseconds=micro)
    if zone and zone != "Z":
        east = datetime.timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        passed += east if zone[0] == "-" else -east
    return passed


def _all(texts, form) -> bool:
    return all(moment(text, form) is not None for text in texts)


def _date_reading(name, texts, form, day_first, say) -> Reading | None:
    if form:
        return {"format": form} if _all(texts, form) else None
    for known in UNAMBIGUOUS_FORMATS:
        if _all(texts, known):
            if "%d" not in known:
                day = _in_words(moment(texts[0], known))
                also = f"; --kind {shlex.quote(f'{name}=number')} keeps the numbers" if known == "%m.%Y" else ""
                say(f"column {name!r} is read as dates, the first of each month: {texts[0]!r} is {day}{also}")
            return {"format": known}
    marks = {found.group(1) for text in texts if (found := NUMERIC_DATE.match(text))}
    if len(marks) != 1:
        return None
    (mark,) = marks
    orders = _orders(mark)
    fits = [order for order in orders if _all(texts, order)]
    if len(fits) == 2 and day_first is None and mark != "." and any(_days(texts, order) for order in fits):
        raise DataError(
            f"column {name!r} holds dates such as {texts[0]!r}, and no number above 12 shows which part is the day. "
            "Give --day-first or --month-first."
        )
    if len(fits) == 2:
        fits = [fits[0] if day_first is not False else fits[1]]
    if fits:
        (form,) = fits
        shown = next(iter(_days(texts, form)), texts[0])
        say(f"column {name!r} is read as dates, {orders[form]}: {shown!r} is {_in_words(moment(shown, form))}")
        return {"format": form}
    if all(any(moment(text, order) for order in orders) for text in texts):
        stray = [next(text for text in texts if moment(text, order) is None) for order in orders]
        raise DataError(
            f"column {name!r} mixes orders of day and month: {stray[0]!r} is not a date with the day first, nor "
            f"{stray[1]!r} with the month first. Write all dates alike, or give --kind {shlex.quote(f'{name}=text')}."
        )
    short = [f"%d{mark}%m{mark}%y", f"%m{mark}%d{mark}%y", f"%y{mark}%m{mark}%d"]
    fits = [order for order in short if _all(texts, order)]
    if fits:
        options = " or ".join(f"--kind {shlex.quote(f'{name}=date:{form}')}" for form in fits)
        raise DataError(
            f"column {name!r} may hold dates with two-digit years, such as {texts[0]!r}. Give their format, {options}, "
            f"or --kind {shlex.quote(f'{name}=text')}."
        )
    return None


def _orders(mark: str) -> dict[str, str]:
    return {f"%d{mark}%m{mark}%Y": "day first", f"%m{mark}%d{mark}%Y": "month first"}


def _days(texts, form) -> list[str]:
    """Texts that are another date, or none, with day and month swapped; those that are none come first."""
    swapped = form.replace("%d", "%?").replace("%m", "%d").replace("%?", "%m")
    differ = [text for text in texts if moment(text, form) != moment(text, swapped)]
    return sorted(differ, key=lambda text: moment(text, swapped) is not None)


def _integer_reading(column, form, asked, say) -> Reading | None:
    form = form or "%Y%m%d"
    values = column.drop_nulls().unique()
    texts = values.cast(pl.String).to_list()
    plausible = values.min() >= FIRST_COMPACT and values.max() <= LAST_COMPACT
    if not (asked or (plausible and len(values) > 1)) or not _all(texts, form):
        if asked:
            raise DataError(f"--kind says that column {column.name!r} is a date, but it holds {texts[0]}.")
        return None
    if not asked:
        say(
            f"column {column.name!r} is read as dates: {column.drop_nulls()[0]} is "
            f"{_in_words(moment(str(column.drop_nulls()[0]), form))}; "
            f"--kind {shlex.quote(f'{column.name}=number')} keeps the numbers"
        )
    return {"format": form}


def _in_words(day: datetime.datetime | None) -> str:
    return f"{day.day} {day:%B} {day.year}" if day else "no date"


# -- numbers ----------------------------------------------------------------------------------------------------------

# Decimal mark and thousands separator, in order of preference.
STYLES = ((".", ","), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))


def _digits(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Strip currency and percent signs, and turn (1) into -1; also return the signs. None if it is no number."""
    text = text.translate(BLANKS).strip()
    negative = text.startswith("(") and text.endswith(")")
    text, signs = text[1:-1] if negative else text, []
    for sign in SIGNS:
        if sign in text:
            signs.append(sign)
            text = text.replace(sign, "", 1).strip()
    text = re.sub(r"^([+-])\s+", r"\1", text)
    if not re.fullmatch(r"[+-]?[\d.,' ]*\d[\d.,' ]*([eE][+-]?\d+)?", text):
        return None
    return (f"-{text.lstrip('+-')}" if negative else text), tuple(signs)


def _valued(text: str, decimal: str, thousands: str) -> float | None:
    mark, between = re.escape(decimal), re.escape(thousands)
    # No thousands after a zero: in 0,613 the comma is a decimal mark.
    if not re.fullmatch(rf"[+-]?([1-9]\d{{0,2}}({between}\d{{3}})+|\d+)?({mark}\d*)?([eE][+-]?\d+)?", text):
        return None
    try:
        return float(text.replace(thousands, "").replace(decimal, "."))
    except ValueError:
        return None


def _number(text: str, reading: Reading) -> float | None:
    found = _digits(text)
    if found is None or not set(found[1]) <= set(reading["signs"]):
        return None
    return _valued(found[0], reading["decimal"], reading["thousands"])


def _styles(texts) -> dict[tuple[str, str], list[float]]:
    """The styles in which all texts are numbers, each with the values."""
    found = {}
    for style in STYLES:
        values = [value for text in texts if (value := _valued(text, *style)) is not None]
        if len(values) == len(texts):
            found[style] = values
    return found


def _decimal_mark_of_the_rest(frame, names) -> str | None:
    """The decimal mark that the columns of the table show; None if they show none, or both."""
    marks = collections.Counter[str]()
    for name in names:
        column = frame[name]
        if column.dtype.is_float() and (column.drop_nulls() != column.drop_nulls().round()).any():
            marks["."] += 1
        elif column.dtype == pl.String and not are_months(column):
            plain = [_digits(text) for text in distinct(column)]
            if plain and None not in plain:
                decimals = {decimal for decimal, _ in _styles([found[0] for found in plain if found])}
                marks.update(decimals if len(decimals) == 1 else ())
    return next(iter(marks)) if len(marks) == 1 else None


def _number_reading(name, texts, mark, comma, say) -> Reading | None:
    parts = [_digits(text) for text in texts]
    if None in parts:
        return None
    plain, signs = [part[0] for part in parts if part], [set(part[1]) for part in parts if part]
    styles = {style: values for style, values in _styles(plain).items() if not mark or style[0] == mark}
    if not styles:
        return None
    every = set().union(*signs)
    money = every - {"%"}
    option = shlex.quote(f"{name}=text")
    if len(money) > 1 or ("%" in every and not all("%" in each for each in signs)):
        mixed = f"amounts in {' and '.join(sorted(money))}" if len(money) > 1 else "numbers with and without %"
        raise DataError(
            f"column {name!r} holds {mixed}. Convert them to one unit, drop the column, or give --kind {option}."
        )
    ways = {tuple(values): style for style, values in reversed(styles.items())}
    if len(ways) > 1:
        if comma is None or not any(style[0] == comma for style in ways.values()):
            marks = sorted({style[0] for style in ways.values()})
            options = " or ".join(f"--kind {shlex.quote(f'{name}=number:{each}')}" for each in marks)
            shown = next(text for text in texts if set(text) & set(",."))
            raise DataError(
                f"column {name!r} holds numbers such as {shown!r}, and nothing in the table shows whether the decimal "
                f"mark is a comma or a point. Give {options}."
            )
        ways = {values: style for values, style in ways.items() if style[0] == comma}
    values, (decimal, thousands) = next(iter(ways.items()))
    shown = max(range(len(texts)), key=lambda i: (len(set(texts[i]) & set("$€£¥%.,' ")), len(texts[i])))
    percent = ", in percent" if "%" in every else ""
    say(f"column {name!r} is read as numbers{percent}: {texts[shown]!r} is {values[shown]:.12g}")
    return {"decimal": decimal, "thousands": thousands, "signs": sorted(every)}
