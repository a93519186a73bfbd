"""Columns of text that are numbers or dates: what they say is decided from the whole column, told, and kept.

How a column was read is a plain dict, which goes with the model: ``{"format": "%d/%m/%Y"}`` for dates, by the codes of
`datetime.strptime`; ``{"decimal": ".", "thousands": ",", "signs": ["$"]}`` for numbers. Nothing at all is in it for
columns that need no decision.
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

KINDS = ("number", "text", "date")
FIRST_COMPACT, LAST_COMPACT = 18000101, 21991231  # whole numbers between which YYYYMMDD may be meant
SIGNS = ("$", "€", "£", "¥", "₹", "₽", "₩", "₺", "USD", "EUR", "GBP", "CHF", "JPY", "%")
BLANKS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2212": "-", "\u2019": "'"})

MONTH_NAMES = (
    "%d %b %Y", "%d-%b-%Y", "%d/%b/%Y", "%d. %b %Y", "%b %d, %Y", "%b %d %Y", "%Y %b %d", "%Y-%b-%d", "%b %Y", "%b-%Y",
)  # fmt: skip
CLEAR = (
    *(f"%Y{mark}%m{mark}%d" for mark in "-/."), "%Y-%m", "%Y/%m", "%m/%Y", "%m.%Y",
    *MONTH_NAMES, *(form.replace("%b", "%B") for form in MONTH_NAMES),
)  # fmt: skip
NUMERIC_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
EXAMPLE = datetime.datetime(2020, 1, 31)
TIME = re.compile(r"(?:T|\s+)(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*([AaPp][Mm])?\s*(Z|[+-]\d{2}:?\d{2})?$")


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What was asked for on the command line: kinds of columns by name, the order of day and month."""

    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    day_first: bool | None = None

    @classmethod
    def of(cls, kinds=(), day_first: bool | None = None) -> "Wishes":
        """From options such as ``when=date:%d/%m/%Y``."""
        found = {}
        for given in kinds:
            name, sign, kind = given.rpartition("=")
            if ":" in given and not kind.startswith(KINDS):  # a format may have the sign too
                name, sign, kind = given.partition("=")
            word, _, more = kind.partition(":")
            if not sign or word not in KINDS or (word == "text" and more) or (word == "number" and more not in ",."):
                raise ParameterError(
                    "--kind takes COLUMN=number, COLUMN=text or COLUMN=date, also with a decimal mark or a format, as "
                    f"in price=number:, and when=date:%d/%m/%Y; got {given!r}."
                )
            found[name] = kind
        return cls(found, day_first)

    def check(self, names):
        unknown = [name for name in self.kinds if name not in names]
        if unknown:
            raise ParameterError(f"--kind speaks of columns that are not there: {', '.join(map(repr, unknown))}.")


NO_WISHES = Wishes()


def settle(
    frame: pl.DataFrame, names, wishes: Wishes, say, target: str | None = None, decimal: str | None = None
) -> tuple[pl.DataFrame, dict[str, Reading]]:
    """The frame with text made numbers and dates where whole columns say so, and how each such column was read.

    Whole numbers that are all dates YYYYMMDD become dates, but for the ``target``. What could be read in two ways is
    refused, with the option that settles it; ``decimal`` is the decimal mark where no column tells.
    """
    comma = _decimal_mark_of_the_rest(frame, names) or decimal
    readings: dict[str, Reading] = {}
    for name in names:
        column = frame[name]
        word, _, more = wishes.kinds.get(name, "").partition(":")
        if word == "text":
            frame = frame.with_columns(column.cast(pl.String))
        if column.null_count() == len(column) or word == "text":
            continue
        if column.dtype == pl.String:
            reading = _of_text(column, word, more, wishes.day_first, comma, say)
        elif column.dtype.is_integer() and (word == "date" or (not word and name != target)):
            reading = _of_whole_numbers(column, more, asked=word == "date", say=say)
        else:
            reading = None
            if word and word != _native(column.dtype):
                raise DataError(f"column {name!r} holds {column.dtype}, which cannot be taken as a {word}.")
        if reading is not None:
            readings[name] = reading
            frame = frame.with_columns(read(column, reading).alias(name))
    return frame, readings


def read(column: pl.Series, reading: Reading) -> pl.Series:
    """The column as numbers or dates, by a reading; numbers and dates stay as they are."""
    if "format" in reading:
        if column.dtype in (pl.Date, pl.Datetime):
            return column
        return _mapped(column.cast(pl.String), lambda text: moment(text, reading["format"]), pl.Datetime("us"), reading)
    if column.dtype != pl.String:
        return column
    return _mapped(column, lambda text: _number(text, reading), pl.Float64, reading)


def _mapped(column, function, dtype, reading):
    values = {text: function(text) for text in column.drop_nulls().unique()}
    bad = [text for text in column.drop_nulls() if values[text] is None]
    if bad and "format" in reading and all(moment(text, "%Y-%m-%d") for text in values):  # no two ways to read these
        values, bad = {text: moment(text, "%Y-%m-%d") for text in values}, []
    if bad:
        wanted = f"dates such as {EXAMPLE.strftime(reading['format'])!r}" if "format" in reading else "numbers"
        raise DataError(
            f"column {column.name!r} holds {bad[0]!r}" + (f" and {len(bad) - 1} more like it" if len(bad) > 1 else "")
            + f"; {wanted} were expected, as in the fit."
        )  # fmt: skip
    return pl.Series(column.name, [None if text is None else values[text] for text in column], dtype=dtype)


def _native(dtype) -> str | None:
    if dtype.is_numeric():
        return "number"
    return "date" if dtype in (pl.Date, pl.Datetime) else None


def _of_text(column, word, more, day_first, comma, say) -> Reading | None:
    texts = column.drop_nulls().unique(maintain_order=True).to_list()
    reading = None
    if word in ("", "number"):
        reading = _number_reading(column.name, texts, more, comma, say, asked=bool(word))
    if reading is None and word in ("", "date"):
        reading = _date_reading(column.name, texts, more, day_first, say)
    if reading is None and word:
        stray = next((text for text in texts if not _is_read(text, word, more)), texts[0])
        raise DataError(f"--kind asks for column {column.name!r} as a {word}, but it holds text such as {stray!r}.")
    if reading is None:
        strays = [text for text in texts if not (_is_read(text, "number") or _is_read(text, "date"))]
        if 0 < len(strays) <= len(texts) / 3:
            say(
                f"column {column.name!r} is taken as text, since {strays[0]!r} is neither a number nor a date, though "
                "most of its values look like one"
            )
    return reading


def _is_read(text: str, word: str, form: str = "") -> bool:
    """Whether one text by itself can be read as a number or a date, whatever the order of its parts."""
    if word == "number":
        found = _digits(text)
        return found is not None and bool(_styles([found[0]]))
    known = (form,) if form else (*CLEAR, *(order for mark in "/-." for order in _orders(mark)))
    return any(moment(text, each) is not None for each in known)


# -- dates ------------------------------------------------------------------------------------------------------------


def moment(text: str, form: str) -> datetime.datetime | None:
    """A date, with or without a time after it; None if that is not what it says. Zones are taken to UTC.

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
        raise ValueError("no time of day")
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
    for clear in CLEAR:
        if _all(texts, clear):
            if "%d" not in clear:
                day = _in_words(moment(texts[0], clear))
                say(f"column {name!r} is read as dates, the first of each month: {texts[0]!r} is {day}")
            return {"format": clear}
    marks = {found.group(1) for text in texts if (found := NUMERIC_DATE.match(text))}
    if len(marks) != 1:
        return None
    (mark,) = marks
    orders = _orders(mark)
    fits = [order for order in orders if _all(texts, order)]
    if len(fits) == 2 and day_first is None and mark != "." and any(_days(texts, order) for order in fits):
        raise DataError(
            f"column {name!r} holds dates such as {texts[0]!r}, and no day above 12 tells days from months. "
            "--day-first or --month-first settles it."
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
            f"column {name!r} holds dates of which no one order reads all: {stray[0]!r} is none with the day first, "
            f"{stray[1]!r} none with the month first. Write them alike, or give --kind {shlex.quote(f'{name}=text')}."
        )
    short = [f"%d{mark}%m{mark}%y", f"%m{mark}%d{mark}%y", f"%y{mark}%m{mark}%d"]
    fits = [order for order in short if _all(texts, order)]
    if fits:
        options = " or ".join(f"--kind {shlex.quote(f'{name}=date:{form}')}" for form in fits)
        raise DataError(
            f"column {name!r} holds what may be dates with years of two digits, such as {texts[0]!r}. Say how to read "
            f"them: {options}, or --kind {shlex.quote(f'{name}=text')}."
        )
    return None


def _orders(mark: str) -> dict[str, str]:
    return {f"%d{mark}%m{mark}%Y": "day first", f"%m{mark}%d{mark}%Y": "month first"}


def _days(texts, form) -> list[str]:
    """Texts that mean another day when day and month change places, those first that cannot."""
    swapped = form.replace("%d", "%?").replace("%m", "%d").replace("%?", "%m")
    differ = [text for text in texts if moment(text, form) != moment(text, swapped)]
    return sorted(differ, key=lambda text: moment(text, swapped) is not None)


def _of_whole_numbers(column, form, asked, say) -> Reading | None:
    form = form or "%Y%m%d"
    values = column.drop_nulls().unique()
    texts = values.cast(pl.String).to_list()
    near = values.min() >= FIRST_COMPACT and values.max() <= LAST_COMPACT
    if not (asked or (near and len(values) > 1)) or not _all(texts, form):
        if asked:
            raise DataError(f"--kind asks for column {column.name!r} as dates, but it holds {texts[0]}.")
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

# Decimal mark and what stands between thousands, in the order in which they are preferred.
STYLES = ((".", ","), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))


def _digits(text: str) -> tuple[str, tuple[str, ...]] | None:
    """A number without currency and percent signs, in brackets if negative, and the signs; None if it is none."""
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
    if not re.fullmatch(rf"[+-]?(\d{{1,3}}({between}\d{{3}})+|\d+)?({mark}\d*)?([eE][+-]?\d+)?", text):
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
    """Every style that all the numbers can be read in, and what they are then."""
    found = {}
    for style in STYLES:
        values = [value for text in texts if (value := _valued(text, *style)) is not None]
        if len(values) == len(texts):
            found[style] = values
    return found


def _decimal_mark_of_the_rest(frame, names) -> str | None:
    """The decimal mark that other columns of the table settle; None where they do not, or contradict each other."""
    marks = collections.Counter[str]()
    for name in names:
        column = frame[name]
        if column.dtype.is_float() and (column.drop_nulls() != column.drop_nulls().round()).any():
            marks["."] += 1
        elif column.dtype == pl.String:
            plain = [_digits(text) for text in column.drop_nulls().unique()]
            if plain and None not in plain:
                decimals = {decimal for decimal, _ in _styles([found[0] for found in plain if found])}
                marks.update(decimals if len(decimals) == 1 else ())
    return next(iter(marks)) if len(marks) == 1 else None


def _number_reading(name, texts, mark, comma, say, asked) -> Reading | None:
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
        raise DataError(f"column {name!r} holds {mixed}. Make them one unit, or leave it out, or give --kind {option}.")
    ways = {tuple(values): style for style, values in reversed(styles.items())}
    if len(ways) > 1:
        if comma is None or not any(style[0] == comma for style in ways.values()):
            marks = sorted({style[0] for style in ways.values()})
            options = " or ".join(f"--kind {shlex.quote(f'{name}=number:{each}')}" for each in marks)
            shown = next(text for text in texts if set(text) & set(",."))
            raise DataError(
                f"column {name!r} holds numbers such as {shown!r}, and nothing in the table tells whether a comma or a "
                f"point is the decimal mark: {options} settles it."
            )
        ways = {values: style for values, style in ways.items() if style[0] == comma}
    values, (decimal, thousands) = next(iter(ways.items()))
    shown = max(range(len(texts)), key=lambda i: (len(set(texts[i]) & set("$€£¥%.,' ")), len(texts[i])))
    percent = ", in percent" if "%" in every else ""
    say(f"column {name!r} is read as numbers{percent}: {texts[shown]!r} is {values[shown]:.12g}")
    return {"decimal": decimal, "thousands": thousands, "signs": sorted(every)}
