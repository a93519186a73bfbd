"""Seasons of a time series: of the calendar, or with periods that the values show, to be learned."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer import priors
from mercer.core import calendar
from mercer.core.errors import ParameterError
from mercer.kernels import Kernel, Matern, Periodic, Seasonal
from mercer.kernels.seasonal import SMOOTHNESS
from mercer.learning.periodogram import MIN_SEASONS, Peak, are_distinct, periods_in

MONTH, DAY = 1 / 12, 1 / calendar.DAYS_PER_YEAR  # in years
MAX_PERIODS = 2  # that are found at once
# Median and deviation of the logarithm of the lengthscale of a season, and of its decay in periods.
SHAPE, CHANGE = (1.0, 0.7), (10.0, 1.0)


class FoundSeason(NamedTuple):
    """A period that is learned: where to start, and the deviation of its logarithm."""

    length: float
    deviation: float


def periods_of(period: Any, t: np.ndarray, y: np.ndarray, step: float, dated: bool) -> list[Any]:
    """Periods of which there is enough data: words of the calendar, numbers, and what is learned (`FoundSeason`)."""
    if period is None:
        return []
    if not (isinstance(period, str) and period == "auto"):
        found = list(period) if isinstance(period, list | tuple) else [period]
        if not dated and any(isinstance(each, str) for each in found):
            raise ParameterError(f"period={period!r} is of the calendar, and times are no dates; give a number.")
        return found
    if not dated:
        return distinct(periods_in(t, y, step)[0], [], t[-1] - t[0] + step)[:MAX_PERIODS]
    span = t[-1] - t[0] + step
    lengths = {"day": DAY, "week": 7 * DAY, "year": 1.0}
    return [w for w, size in lengths.items() if step <= size / 3.5 and span >= MIN_SEASONS * size and size > DAY / 2
            and not (w == "day" and step > DAY / 3.5)]  # fmt: skip


def candidates_of(t: np.ndarray, y: np.ndarray, step: float) -> list[Any]:
    """Periods that a search may try: more than are likely."""
    likely, others = periods_in(t, y, step)
    span = t[-1] - t[0] + step
    first = distinct(likely, [], span)[:MAX_PERIODS]
    return [*first, *distinct(others, first, span)[:1]]


def more_periods(t: np.ndarray, left: np.ndarray, step: float, known: Sequence[Any]) -> list[Any]:
    """Another period that is seen in the residuals of other terms."""
    return distinct(periods_in(t, left, step)[0], known, t[-1] - t[0] + step)[:1]


def distinct(peaks: Iterable[Peak], others: Iterable[Any], span: float) -> list[Any]:
    """Periods of peaks that data of this range distinguish from each other and from other periods."""
    kept: list[Any] = []
    for peak in peaks:
        if all(are_distinct(peak.period, length_of(other), span) for other in (*others, *kept)):
            kept.append(FoundSeason(peak.period, peak.deviation) if peak.deviation else float(f"{peak.period:.9g}"))
    return kept


def season(period: Any, lengthscale: float, decay: float) -> Kernel:
    """A periodic shape that changes slowly, with priors; ``decay`` in periods. A period that was found is learned."""
    shape = priors.LogNormal(math.log(SHAPE[0]), SHAPE[1])
    if not isinstance(period, FoundSeason):
        change = priors.LogNormal(math.log(CHANGE[0]), CHANGE[1])
        return Seasonal(period, lengthscale, decay).with_priors(lengthscale=shape, decay=change)
    near = priors.LogNormal(math.log(period.length), period.deviation)
    change = priors.LogNormal(math.log(CHANGE[0] * period.length), CHANGE[1])
    repeated = Periodic(period.length, lengthscale).with_priors(period=near, lengthscale=shape)
    return repeated * Matern(decay * period.length, nu=SMOOTHNESS).with_priors(lengthscale=change)


def length_of(period: Any) -> float:
    return period.length if isinstance(period, FoundSeason) else float(period)


def period_shown(period: Any) -> str:
    return period if isinstance(period, str) else f"{length_of(period):.4g}"
