"""Dates as numbers: decimal years, and the calendar years, months, weeks and days that they count.

Kernels on vectors read a date as a decimal year: years of 365.25 days, counted from the first of January 1970, so that
lengthscales on dates are in years. The calendar is that of Gregory, without time zones or leap seconds.
"""

import datetime
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ParameterError

DAYS_PER_YEAR = 365.25
MICROSECONDS_PER_YEAR = DAYS_PER_YEAR * 86400e6
FIRST_MONDAY = 4.0  # the fifth of January 1970, in days since the first
MONTH_STARTS = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])  # days of a year that is no leap year
PERIODS = ("year", "quarter", "month", "week", "day")


def decimal_years(times: np.ndarray) -> np.ndarray:
    """Decimal years of an array of datetime64; NaN for NaT."""
    microseconds = times.astype("datetime64[us]")
    missing = np.isnat(microseconds)
    return np.where(missing, np.nan, microseconds.astype(np.int64) / MICROSECONDS_PER_YEAR + 1970.0)


def as_dates(years: np.ndarray) -> np.ndarray:
    """Dates of decimal years, datetime64 to the second, which is rounded."""
    seconds = np.round((np.asarray(years, dtype=float) - 1970.0) * DAYS_PER_YEAR * 86400)
    return seconds.astype(np.int64).astype("datetime64[s]")


def as_time(value: Any) -> Any:
    """A date, or its text, as a decimal year; other values unchanged, as Python's numbers."""
    if isinstance(value, str):
        value = from_text([value], "a date")[0]
    if isinstance(value, datetime.date):
        value = from_objects([value])[0]
    if isinstance(value, np.datetime64):
        return float(decimal_years(np.array([value]))[0])
    return value.item() if isinstance(value, np.number) else value


def are_dates(values: Any) -> bool:
    """Whether all objects of an array are dates or moments of Python or pandas, or missing; one at least is a date."""
    present = [value for value in values if value is not None and value == value]
    return bool(present) and all(isinstance(value, datetime.date) for value in present)


def holds_dates(values: Any) -> bool:
    """Whether an array, a list or a column holds dates."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return False
    return array.dtype.kind == "M" or (array.dtype.kind == "O" and are_dates(array.flat))


def from_objects(values: Any) -> np.ndarray:
    """Dates or moments of Python as datetime64; moments with a time zone in UTC."""
    moments = []
    for value in values:
        if value is None or value != value:
            moments.append(np.datetime64("NaT", "us"))
            continue
        if getattr(value, "tzinfo", None) is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        moments.append(np.datetime64(value.isoformat(), "us"))
    return np.array(moments, dtype="datetime64[us]")


def from_text(values: Any, what: str) -> Any:
    """Text such as 2024-03-31 or 2024-03-31T12:00, in an array, a list or a column, as datetime64; others unchanged."""
    array = np.asarray(values)
    if array.dtype.kind not in "UTO" or not array.size:
        return values
    present = [value for value in array.flat if value is not None and value == value]
    if not present or not all(isinstance(value, str) for value in present):
        return values
    try:
        return np.array([value.strip() if isinstance(value, str) else "NaT" for value in array.flat], "datetime64[us]")
    except ValueError as error:
        raise DataError(
            f"{what} has text that is no date like 2024-03-31 ({error}). Parse it first, as in pandas.to_datetime("
            "column, dayfirst=True), or give numbers."
        ) from None


def count(period: str, years: Any) -> Any:
    """How many calendar periods have passed at decimal ``years``: the whole part counts them, the rest is the phase.

    A leap year is one year like every other, and so is a month of 28 days one month. Weeks start on Monday.

    >>> dates = np.array(["2019-07-02T12", "2020-01-01", "2020-12-31"], dtype="datetime64[us]")
    >>> count("year", decimal_years(dates)).round(4).tolist()
    [2019.5, 2020.0, 2020.9973]
    """
    if period not in PERIODS:
        raise ParameterError(f"a calendar period is one of {', '.join(map(repr, PERIODS))}; got {period!r}.")
    xp: ModuleType = jnp if isinstance(years, jax.Array) else np  # tracers are arrays too
    days = (years - 1970.0) * DAYS_PER_YEAR
    if period == "day":
        return days
    if period == "week":
        return (days - FIRST_MONDAY) / 7
    year = xp.floor(1970.0 + days / 365.2425)
    year = year - (_start(xp, year) > days)
    year = year + (_start(xp, year + 1) <= days)
    day, length = days - _start(xp, year), _start(xp, year + 1) - _start(xp, year)
    if period == "year":
        return year + day / length
    starts = xp.asarray(MONTH_STARTS) + xp.zeros_like(day)[..., None]
    starts = starts + (length[..., None] > 365.5) * (xp.arange(13) > 1)  # from March on
    month = xp.clip(xp.sum(starts[..., :12] <= day[..., None], axis=-1) - 1, 0, 11)
    first, last = (xp.take_along_axis(starts, i[..., None], axis=-1)[..., 0] for i in (month, month + 1))
    months = 12 * year + month + (day - first) / (last - first)
    return months / 3 if period == "quarter" else months


def mean_length(period: str) -> float:
    """Of a calendar period, in decimal years."""
    days = {"year": 365.2425, "quarter": 365.2425 / 4, "month": 365.2425 / 12, "week": 7.0, "day": 1.0}
    return days[period] / DAYS_PER_YEAR


def _start(xp: ModuleType, year: Any) -> Any:
    """The first of January, in days since that of 1970."""
    last = year - 1
    leaps = xp.floor(last / 4) - xp.floor(last / 100) + xp.floor(last / 400)
    return 365 * (year - 1970) + leaps - 477  # leap years until 1969
