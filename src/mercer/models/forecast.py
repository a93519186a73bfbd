"""Forecasts of a time series: candidates of trend and season compared by the evidence, and averaged by it."""

import dataclasses
import functools
import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from mercer import priors
from mercer.core import calendar
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_matrix, as_vector
from mercer.core.text import table
from mercer.distributions import Mixture
from mercer.kernels import Kernel
from mercer.learning.seasons import DAY, MONTH, period_shown, periods_of
from mercer.models.forecast_terms import PRIORS, kernel_of, seasons_of
from mercer.models.regression import GaussianProcessRegressor

MIN_POINTS = 4
MAX_POINTS = 1500  # the latest, from which a forecast is made
MIN_WEIGHT = 0.02  # of a candidate whose forecast counts
MAX_AVERAGED = 4
QUANTILE_STEPS = 50
LEVELS = np.linspace(0.0, 1.0, 41)[:-1] + 0.0125  # at which the distribution is integrated

TRENDS = (("wander",), ("wander", "line"), ("revert", "line"))


@dataclasses.dataclass(frozen=True, eq=False)
class ForecastCandidate:
    """A kernel that was tried: its terms, whether on the logarithm of y, the score (log evidence at the mode, minus
    k ln(n) / 2 for k parameters), and its share of the average; the fitted model."""

    terms: tuple[str, ...]
    log: bool
    score: float
    weight: float
    model: GaussianProcessRegressor

    @property
    def label(self) -> str:
        return " + ".join(self.terms) + (", of log y" if self.log else "")


@dataclasses.dataclass(frozen=True, eq=False)
class Forecast:
    """Result of `forecast`; prints as a table.

    ``times`` (h,), ``mean``, ``median`` and ``deviation`` of new measurements there; ``quantile(q)`` and
    ``interval(level)``; ``log_density(y)`` of what was then measured. ``candidates``, best first; ``chosen`` is the
    first, and ``kernel`` and ``components`` are its own, while the forecast averages over all with weight. ``history``
    has the times and values that were used.
    """

    times: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    candidates: list[ForecastCandidate]
    history: tuple[np.ndarray, np.ndarray]
    components: dict[str, tuple[np.ndarray, np.ndarray]]
    remarks: list[str]
    _inputs: np.ndarray
    _again: Callable[..., "Forecast"]

    @property
    def chosen(self) -> ForecastCandidate:
        return self.candidates[0]

    @property
    def kernel(self) -> Kernel:
        return self.chosen.model.kernel_

    @property
    def log(self) -> bool:
        """Whether the chosen candidate is a model of log y."""
        return self.chosen.log

    @property
    def median(self) -> np.ndarray:
        return self.quantile(0.5)

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of new measurements at every time: (h,)."""
        if not 0 < q < 1:
            raise ParameterError(f"a quantile is between 0 and 1; got {q!r}.")
        return self._spread.quantiles(np.array([q]))[0]

    @functools.cached_property
    def _spread(self) -> "Spread":
        return Spread.of(self.candidates, self._inputs)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of central intervals that hold new measurements with this probability."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def log_density(self, y: Any) -> np.ndarray:
        """ln p of new measurements y at the times: (h,)."""
        return self._spread.log_density(as_vector(y, len(self.times)))

    def backtest(self, origins: int = 3, horizon: int | None = None) -> "Backtest":
        """Forecasts from earlier origins, ``horizon`` apart, compared with what was then measured."""
        return _backtest(self, origins, len(self.times) if horizon is None else horizon)

    def plot(self, ax: Any = None) -> Any:
        """`mercer.plot.forecast` of this."""
        # Plots are above models in the import order.
        return importlib.import_module("mercer.plot").forecast(self, ax)

    def __repr__(self) -> str:
        low, high = self.interval()
        lines = [
            [_shown(t), f"{m:.5g}", f"{s:.3g}", f"{a:.5g}", f"{b:.5g}"]
            for t, m, s, a, b in zip(self.times, self.mean, self.deviation, low, high, strict=True)
        ]
        more = [] if len(lines) <= 12 else [["...", "", "", "", ""], *lines[-2:]]
        tried = [[c.label, f"{c.score - self.chosen.score:.1f}", f"{c.weight:.0%}"] for c in self.candidates]
        return "\n".join([
            f"Forecast of {len(self.times)} values from {len(self.history[1]):,}",
            f"chosen: {self.chosen.label}",
            *self.remarks,
            "",
            table(["time", "mean", "deviation", "2.5%", "97.5%"], (lines[:10] + more) if more else lines),
            "",
            table(["tried", "log evidence", "weight"], tried),
        ])  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Backtest:
    """Errors of forecasts from earlier origins, by the number of steps ahead: (h,) each. ``mase``: absolute error over
    that of repeating the last value within the history; ``crps``, in units of y;
    ``coverage`` of 95% intervals."""

    mase: np.ndarray
    crps: np.ndarray
    coverage: np.ndarray
    origins: int

    def __repr__(self) -> str:
        rows = [
            [str(i + 1), f"{a:.3f}", f"{c:.4g}", f"{s:.0%}"]
            for i, (a, c, s) in enumerate(zip(self.mase, self.crps, self.coverage, strict=True))
        ]
        total = ["all", f"{self.mase.mean():.3f}", f"{self.crps.mean():.4g}", f"{self.coverage.mean():.0%}"]
        return f"{self.origins} origins\n" + table(["steps ahead", "MASE", "CRPS", "coverage"], [*rows, total])


def forecast(
    times: Any, y: Any, horizon: int, *, period: Any = "auto", log: bool | None = None, inputs: Any = None,
    average: bool = True,
) -> Forecast:  # fmt: skip
    """Forecast a time series.

    Candidates combine a trend (a random walk, one with a drift, or a line with deviations that revert to it), a season
    or none, and y or its logarithm. Parameters have weak priors; candidates are compared by the evidence with a penalty
    for parameters, and forecasts average over parameters and over candidates.

    Parameters
    ----------
    times : dates (or their text, 2024-03-31), or numbers, one per value, in any order; repeated times are repeated
        measurements. On dates, lengthscales are in years. Moments with a time zone are what clocks show there, and so
        are the times of the forecast, which have no zone.
    y : values; NaN is a gap.
    horizon : number of steps ahead. Steps continue the spacing: calendar months, days without weekends if there were
        none, or else the median difference.
    period : of the season: "auto" finds it; None is no season; a number in units of time, or on dates "year",
        "quarter", "month", "week" or "day"; or a list of several.
    log : whether to model log y, which makes seasons and noise proportional to the level. None decides by the evidence
        where all y are positive.
    inputs : pair of other known columns, such as holidays: for the past (n rows) and for the future (``horizon`` rows).
    average : whether to average over candidates; False takes the best one alone.

    >>> t = np.arange(40.0)
    >>> found = forecast(t, np.sin(t / 2) + 0.1 * t, 4, period=None, log=False)
    >>> found.times.tolist(), found.mean.shape
    ([40.0, 41.0, 42.0, 43.0], (4,))
    """
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
        raise ParameterError(f"horizon must be a number of steps, at least 1; got {horizon!r}.")
    times, zone = _wall_clock(calendar.from_text(times, "times"))
    matrix = as_matrix(times, "times")
    if matrix.shape[1] != 1:
        raise DataError(f"times must be one column; got {matrix.shape[1]}.")
    t, dated, n = matrix[:, 0], calendar.holds_dates(times), len(matrix)
    values = _values(y, n)
    known, ahead = _inputs(inputs, n, int(horizon))
    order = np.argsort(t, kind="stable")
    order = order[np.isfinite(values[order])]
    t, values, known = t[order], values[order], known[order]
    if len(t) < MIN_POINTS or len(np.unique(t)) < MIN_POINTS:
        raise DataError(f"a forecast needs at least {MIN_POINTS} values at different times; got {len(np.unique(t))}.")
    remarks = [] if len(t) == n else [f"{n - len(t)} missing values are gaps"]
    remarks += [] if zone is None else [f"times are those of clocks in {zone}"]
    if len(t) > MAX_POINTS:
        remarks.append(f"from the latest {MAX_POINTS:,} of {len(t):,} values")
        t, values, known = t[-MAX_POINTS:], values[-MAX_POINTS:], known[-MAX_POINTS:]
    if log and not (values > 0).all():
        raise DataError(f"log=True needs positive values; the smallest is {values.min():.4g}.")
    step = float(np.median(np.diff(np.unique(t))))
    future = _future(t, step, dated, int(horizon))
    periods = periods_of(period, t, values, step, dated)
    X, Z = (_rows(when, t[-1], dated, more) for when, more in ((t, known), (future, ahead)))
    logs = ((False, True) if (values > 0).all() else (False,)) if log is None else (bool(log),)
    seasonal = seasons_of(periods)
    # Periods that the values show are tried one more at a time, the clearest first; others together.
    given = not isinstance(period, str) or dated
    seasons = [()] + [tuple(seasonal)[:i] for i in ([len(periods)] if given else range(1, len(periods) + 1)) if i]
    if len(set(values)) == 1:
        logs, seasons = logs[:1], [()]
    candidates = []
    for (trend, season), logarithm in itertools.product(itertools.product(TRENDS, seasons), logs):
        terms = (*trend, *season, *(("inputs",) if known.shape[1] else ()))
        kernel = kernel_of(terms, t, step, seasonal, dated, known.shape[1])
        candidates.append(_fitted(kernel, X, values, terms, logarithm, "map"))
    candidates.sort(key=lambda each: -each.score)
    weights = np.exp([each.score - candidates[0].score for each in candidates])
    counted = (weights / weights.sum() >= MIN_WEIGHT) & (np.arange(len(weights)) < (MAX_AVERAGED if average else 1))
    weights = np.where(counted, weights, 0.0) / weights[counted].sum()
    kept = []
    for each, weight in zip(candidates, weights, strict=True):
        if weight:  # intervals of short series need the doubt about parameters
            kernel = kernel_of(each.terms, t, step, seasonal, dated, known.shape[1])
            each = dataclasses.replace(_fitted(kernel, X, values, each.terms, each.log, "laplace"), score=each.score)
        kept.append(dataclasses.replace(each, weight=float(weight)))
    spread = Spread.of(kept, Z).quantiles(LEVELS)
    if periods:
        remarks.append(f"season tried: {', '.join(map(period_shown, periods))}")
    if len(logs) > 1:
        remarks.append(f"model of {'log y' if kept[0].log else 'y itself'}, by the evidence")
    when = calendar.as_dates if dated else (lambda values: values)

    def again(rows: int, steps: int) -> Forecast:
        pair = (known[:rows], known[rows : rows + steps]) if known.shape[1] else None
        return forecast(when(t[:rows]), values[:rows], steps, period=period, log=log, inputs=pair, average=average)

    parts = kept[0].model.decompose(np.vstack([X, Z]))
    return Forecast(
        when(future), spread.mean(axis=0), spread.std(axis=0), kept, (when(t), values),
        dict(zip(kept[0].terms, parts.values(), strict=False)), remarks, Z, again,
    )  # fmt: skip


# -- data ----------------------------------------------------------------------------------------------------------


def _wall_clock(times: Any) -> tuple[Any, str | None]:
    """Moments without their time zone, as clocks show them there, and its name; None if there is none, or several."""
    if getattr(times, "tz", None) is not None:  # an index of pandas
        return times.tz_localize(None), str(times.tz)
    column = nw.from_native(times, pass_through=True, allow_series=True)
    if isinstance(column, nw.Series) and isinstance(column.dtype, nw.Datetime) and column.dtype.time_zone is not None:
        return column.dt.replace_time_zone(None).to_native(), column.dtype.time_zone
    if isinstance(times, list | tuple | np.ndarray):
        zones = {getattr(value, "tzinfo", None) for value in np.ravel(np.asarray(times, dtype=object))}
        if len(zones) == 1 and None not in zones:
            return [value.replace(tzinfo=None) for value in times], str(zones.pop())
    return times, None


def _values(y: Any, n: int) -> np.ndarray:
    try:
        values = np.ravel(np.asarray(y, dtype=float))
    except (TypeError, ValueError):
        raise DataError("y must hold numbers, NaN where one is missing.") from None
    if len(values) != n:
        raise DataError(f"y must have one value for each of the {n} times; got {len(values)}.")
    if np.isinf(values).any():
        raise DataError("y has infinite values; NaN marks a missing one.")
    return values


def _inputs(inputs: Any, n: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Known columns of the past and of the future, standardised by the past."""
    if inputs is None:
        return np.zeros((n, 0)), np.zeros((horizon, 0))
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        raise ParameterError("inputs must be a pair: columns for the past, and the same for the future.")
    past, ahead = (as_matrix(each, "inputs") for each in inputs)
    if past.shape[0] != n or ahead.shape != (horizon, past.shape[1]):
        raise DataError(
            f"inputs need {n} rows for the past and {horizon} for the future, of equal width; got shapes {past.shape} "
            f"and {ahead.shape}."
        )
    middle, size = past.mean(axis=0), past.std(axis=0)
    size = np.where(size > 0, size, 1.0)
    return (past - middle) / size, (ahead - middle) / size


def _rows(t: np.ndarray, last: float, dated: bool, more: np.ndarray) -> np.ndarray:
    """Time from the last measurement; on dates the date too, which has a calendar; other known columns."""
    return np.column_stack([t - last, *([t] if dated else []), more])


def _future(t: np.ndarray, step: float, dated: bool, horizon: int) -> np.ndarray:
    """Times that continue the series, in calendar months if that is their spacing."""
    ahead = np.arange(1, horizon + 1)
    if dated and _are_working_days(t, step):
        later = t[-1] + DAY * np.arange(1, 2 * horizon + 3)
        return later[~_at_weekend(later)][:horizon]
    months = round(step / MONTH)
    if not dated or months < 1 or abs(step - months * MONTH) > 2 * DAY:
        return t[-1] + step * ahead
    dates = calendar.as_dates(t)
    start, day = dates[-1].astype("datetime64[M]"), dates.astype("datetime64[D]")
    ends = bool(((day + 1).astype("datetime64[M]") > day.astype("datetime64[M]")).all())  # all at the end of a month
    begun = start + months * ahead
    length = ((begun + 1).astype("datetime64[D]") - begun.astype("datetime64[D]")).astype(int)
    within = (dates[-1] - start.astype("datetime64[s]")).astype(int)  # seconds
    rest = within % 86400
    days = length - 1 if ends else np.minimum(within // 86400, length - 1)
    return calendar.decimal_years(begun.astype("datetime64[s]") + days * 86400 + rest)


def _are_working_days(t: np.ndarray, step: float) -> bool:
    """Whether the spacing is a day, and of two weeks or more no weekend has a value."""
    return abs(step - DAY) < DAY / 10 and t[-1] - t[0] >= 13 * DAY and not _at_weekend(t).any()


def _at_weekend(t: np.ndarray) -> np.ndarray:
    return ~np.is_busday(calendar.as_dates(t).astype("datetime64[D]"))


# -- candidates ----------------------------------------------------------------------------------------------------


def _fitted(
    kernel: Kernel, X: np.ndarray, y: np.ndarray, terms: tuple[str, ...], log: bool, learning: str
) -> ForecastCandidate:
    target = np.log(y) if log else y
    size = float(np.std(target)) or 1.0
    median, deviation = PRIORS["noise"]
    noise = priors.LogNormal(math.log(median * size**2), deviation)
    model = GaussianProcessRegressor(kernel, noise=noise, learning=learning, progress=False).fit(X, target)
    # The evidence is that of the scaled target, with its unknown mean integrated out: n - 1 scales, and dy = y dlog y.
    n, evidence = len(y), model.log_marginal_likelihood_ - (len(y) - 1) * math.log(model.scale_)
    jacobian = -float(target.sum()) if log else 0.0
    score = evidence + jacobian - 0.5 * len(model.theta_) * math.log(n)
    return ForecastCandidate(terms, log, score, 0.0, model)


class Spread(NamedTuple):
    """Average of candidates: normal distributions of y or of log y, with ``log`` (K, 1); the others are (K, h)."""

    mean: np.ndarray
    deviation: np.ndarray
    weight: np.ndarray
    log: np.ndarray

    @classmethod
    def of(cls, candidates: list[ForecastCandidate], Z: np.ndarray) -> "Spread":
        """Of new measurements at these rows."""
        found = []
        for each in candidates:
            if each.weight > 0:
                whole = each.model.predict_distribution(Z)
                one = (whole,), np.ones((1, 1))
                parts, weights = (whole.parts, whole.weights) if isinstance(whole, Mixture) else one
                for part, weight in zip(parts, weights, strict=True):
                    found.append((part.mean, part.deviation, each.weight * weight + np.zeros(len(Z)), [each.log]))
        return cls(*(np.array(columns) for columns in zip(*found, strict=True)))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """At values (L, h)."""
        logs = np.log(np.maximum(y, np.finfo(float).tiny))
        own = np.where(self.log[:, :, None], logs, y)
        return np.einsum("kh,klh->lh", self.weight, ndtr((own - self.mean[:, None]) / self.deviation[:, None]))

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """At values (h,): -inf for those that are not positive, of log y alone."""
        logs = np.log(np.maximum(y, np.finfo(float).tiny))
        z = (np.where(self.log, logs, y) - self.mean) / self.deviation
        found = -0.5 * z**2 - np.log(self.deviation) - 0.5 * math.log(2 * math.pi) - np.where(self.log, logs, 0.0)
        return logsumexp(np.where(self.log & (y <= 0), -np.inf, found), b=self.weight, axis=0)

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """(levels, h), by bisection: each lies between the parts' own."""
        own = self.mean[:, None] + self.deviation[:, None] * ndtri(levels)[:, None]
        with np.errstate(over="ignore"):
            own = np.where(self.log[:, :, None], np.exp(own), own)
        low, high = own.min(axis=0), own.max(axis=0)
        for _ in range(QUANTILE_STEPS if len(own) > 1 else 0):
            middle = (low + high) / 2
            below = self.cdf(middle) < levels[:, None]
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2


def _backtest(result: Forecast, origins: int, horizon: int) -> Backtest:
    _, y = result.history
    n = len(y)
    starts = [n - horizon * (i + 1) for i in range(origins)]
    starts = [start for start in starts if start >= MIN_POINTS]
    if not starts:
        raise DataError(f"{n} values are too few for an origin {horizon} steps before their end.")
    errors, scores, covered = [], [], []
    for start in starts:
        found, truth = result._again(start, horizon), y[start : start + horizon]
        scale = float(np.mean(np.abs(np.diff(y[:start])))) or 1.0
        low, high = found.interval()
        spread = found._spread.quantiles(LEVELS)
        slack = truth - spread
        scores.append(2 * np.mean(np.where(slack >= 0, LEVELS[:, None] * slack, (LEVELS[:, None] - 1) * slack), axis=0))
        errors.append(np.abs(truth - found.median) / scale)
        covered.append((truth >= low) & (truth <= high))
    return Backtest(np.mean(errors, axis=0), np.mean(scores, axis=0), np.mean(covered, axis=0), len(starts))


def _shown(t: Any) -> str:
    return str(t.astype("datetime64[D]")) if isinstance(t, np.datetime64) else f"{t:.6g}"
