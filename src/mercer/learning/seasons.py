"""Periods that a time series may have: those of the calendar, or the lag at which its changes repeat."""

import math
from typing import Any

import numpy as np

from mercer.core import calendar
from mercer.core.errors import ParameterError

MIN_SEASONS = 2.0  # of data, for a season to be tried
MONTH, DAY = 1 / 12, 1 / calendar.DAYS_PER_YEAR  # in years
COMMON_PERIODS = (12, 4, 7, 24, 52)  # in steps; preferred to others that fit about as well
PREFERENCE = 0.8
# Median and deviation of the logarithm of the lengthscale of a season, and of its decay in periods.
SHAPE, CHANGE = (1.0, 0.7), (10.0, 1.0)


def periods_of(period: Any, t: np.ndarray, y: np.ndarray, step: float, dated: bool) -> list[Any]:
    """Periods of which there is enough data."""
    if period is None:
        return []
    if not (isinstance(period, str) and period == "auto"):
        found = list(period) if isinstance(period, list | tuple) else [period]
        if not dated and any(isinstance(each, str) for each in found):
            raise ParameterError(f"period={period!r} is of the calendar, and times are no dates; give a number.")
        return found
    span, found = t[-1] - t[0] + step, []
    if dated:
        lengths = {"day": DAY, "week": 7 * DAY, "year": 1.0}
        return [w for w, size in lengths.items() if step <= size / 3.5 and span >= MIN_SEASONS * size and size > DAY / 2
                and not (w == "day" and step > DAY / 3.5)]  # fmt: skip
    steps = _lag_of_season(t, y, step)
    return [steps * step] if steps else found


def _lag_of_season(t: np.ndarray, y: np.ndarray, step: float) -> int | None:
    """The lag, in steps, at which differences of y correlate most; None if none does."""
    regular = np.arange(round((t[-1] - t[0]) / step) + 1)
    if len(regular) > 4 * len(t) or len(t) < 3 * MIN_SEASONS:
        return None
    change = np.diff(np.interp(t[0] + regular * step, t, y))
    change = change - change.mean()
    most = int(len(regular) / MIN_SEASONS)
    if not change.any() or most < 3:
        return None
    power = np.array([change[lag:] @ change[:-lag] for lag in range(1, most + 1)]) / (change @ change)
    lags = np.arange(2, most + 1)
    best = int(lags[np.argmax(power[1:])])
    if power[best - 1] < 2 / math.sqrt(len(change)):
        best = 0
    for common in COMMON_PERIODS:
        enough = PREFERENCE * power[best - 1] if best else 1 / math.sqrt(len(change))
        if common <= most and power[common - 1] >= enough:
            return common
    return best or None


def period_shown(period: Any) -> str:
    return period if isinstance(period, str) else f"{period:.4g}"
