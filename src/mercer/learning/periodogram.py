"""Periods that the values of a time series show.

For every frequency f a Fourier series in f, 2 f, ..., H f is fitted beside a straight line, once with independent
errors and once with errors that are a random walk. Its gain is the rise of the log likelihood, m / 2 times the
logarithm of how much it lowers the sum of squares of m errors, less ln(m) for each harmonic (half of that for each
coefficient) and ln(m) / 2 for the period. The best frequency is refined without a grid and its series joins the line;
then the next one is looked for.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

MIN_SEASONS = 2.0  # of data, for a period to be seen
MIN_VALUES = 6
COMMON_PERIODS = (12, 4, 7, 24, 52)  # in steps; not learned where they explain the values as well
MAX_HARMONICS = 6
MAX_IDLE = 2  # harmonics in a row that explain nothing
OVERSAMPLING = 5  # frequencies per resolution, which is one over the range
MAX_FREQUENCIES = 10_000
CHUNK_FREQUENCIES = 250  # at a time
FALSE_ALARM_RATE = 0.01  # probability of a period in errors alone
PERIOD_DEVIATION = 0.5  # of the logarithm of a period, in units of its resolution
MAX_TERMS = 6  # of one kind of errors, slow ones among them
MIN_REPETITIONS = 0.5  # in the data, of a series that is fitted
MIN_SEASONS_SHARE = 0.98  # of `MIN_SEASONS`: a frequency refined from the grid may be a little lower
MAX_IRREGULARITY = 0.2  # in steps; months have unequal lengths
ROUNDING = 1e-12  # of the sum of squares


class Peak(NamedTuple):
    """A period, the deviation of its logarithm (zero where it is a common one, not to be learned), and its gain."""

    period: float
    deviation: float
    gain: float


def periods_in(t: np.ndarray, y: np.ndarray, step: float) -> tuple[list[Peak], list[Peak]]:
    """Periods of values y at ascending times t, the clearest first: those by the likelier of the two kinds of errors,
    and those by the other."""
    t, y = _means(t, y)
    span = t[-1] - t[0] + step
    if len(t) < MIN_VALUES or span < 2 * MIN_SEASONS * step or np.ptp(y) <= ROUNDING * np.abs(y).max():
        return [], []
    fits = [_Fit(t, y, step, walk) for walk in (False, True)]
    peaks = [list(fit.peaks()) for fit in fits]
    best = int(fits[1].log_likelihood() > fits[0].log_likelihood())
    return peaks[best], peaks[1 - best]


def are_distinct(one: float, other: float, span: float) -> bool:
    """Whether data of this range distinguish two periods."""
    return abs(1 / one - 1 / other) * span > 1


class _Fit:
    """A straight line and the Fourier series found so far, with independent errors or those of a random walk."""

    def __init__(self, t: np.ndarray, y: np.ndarray, step: float, walk: bool) -> None:
        self.t, self.step, self.span, self.walk = t - t[0], step, t[-1] - t[0] + step, walk
        line = self.t[:, None] / self.span
        self.basis = np.linalg.qr(self._errors(line if walk else np.hstack([np.ones_like(line), line])))[0]
        errors = self._errors(y[:, None])[:, 0]
        self.m, self.least = len(errors), ROUNDING * float(errors @ errors)
        self.left = self._beside(errors)
        # Of the values, so that it can be compared with that of independent errors.
        self.jacobian = -0.5 * float(np.log(np.diff(t)).sum()) if walk else 0.0
        self.penalty = 0.0
        self.known: list[float] = []  # frequencies
        steps = np.diff(t) / step
        self.regular = bool(np.abs(steps - np.round(steps)).max() < MAX_IRREGULARITY)

    def log_likelihood(self) -> float:
        """At its maximum, less the penalties."""
        return self.jacobian - self.penalty - 0.5 * self.m * (math.log(self._size(self.left) / self.m) + 1)

    def peaks(self) -> Iterator[Peak]:
        """Periods one after the other; what is too slow to be seen repeating joins the line."""
        cost = math.log(self.m)
        for _ in range(MAX_TERMS):
            found, named = self._best_of_all(), self._best_common()
            # With ln(m) for the first harmonic these are gains that errors alone reach with a known probability.
            seen = found is not None and found[0] + cost > math.log(self.m / 2 / FALSE_ALARM_RATE)
            known = named is not None and named[0] + cost > math.log(len(COMMON_PERIODS) / FALSE_ALARM_RATE)
            if named is not None and known and not (found is not None and seen and found[0] - cost / 2 > named[0]):
                gain, frequency, harmonics, deviation = *named, 0.0
            elif found is not None and seen:
                gain, frequency, harmonics, deviation = *found, PERIOD_DEVIATION / (found[1] * self.span)
            else:
                return
            self.penalty += cost * harmonics + (cost / 2 if deviation else 0.0)
            self.basis = np.linalg.qr(np.hstack([self.basis, self._series(frequency, harmonics)]))[0]
            self.left = self._beside(self.left)
            self.known.append(frequency)
            if frequency * self.span > MIN_SEASONS_SHARE * MIN_SEASONS:
                yield Peak(1 / frequency, deviation, gain)

    def _best_of_all(self) -> tuple[float, float, int] | None:
        """Gain, frequency and number of harmonics of the best series; of slow ones that are a cosine and a sine."""
        resolution = OVERSAMPLING * self.span
        last = min(int(resolution / (2 * self.step)), MAX_FREQUENCIES)
        slowest, first = math.ceil(MIN_REPETITIONS * OVERSAMPLING), math.ceil(MIN_SEASONS * OVERSAMPLING)
        power = np.zeros(last + 1)  # falls of the sum of squares at multiples of a fifth of the resolution
        for begin in range(slowest, last + 1, CHUNK_FREQUENCIES):
            places = np.arange(begin, min(begin + CHUNK_FREQUENCIES, last + 1))
            power[places] = self._power(places / resolution)
        free = np.ones(last + 1, bool)
        for frequency in self.known:
            middle = round(frequency * resolution)
            free[max(middle - OVERSAMPLING, 0) : middle + OVERSAMPLING + 1] = False
        least = 2 * math.log(self.m) / self.m * self._size(self.left)  # that a harmonic has to explain
        total, idle, found = np.zeros(last + 1), np.zeros(last + 1), []
        for harmonics in range(1, MAX_HARMONICS + 1):
            places = np.arange(last // harmonics + 1)
            more = power[harmonics * places]
            total[places] += more
            # One shape has no long gaps between its harmonics; a sum of two seasons, read as one slow shape, has.
            idle[places] = np.where(more < least, idle[places] + 1, 0)
            free &= idle < MAX_IDLE
            places = places[free[places] & (places >= (slowest if harmonics == 1 else first))]
            if len(places):
                peak = int(places[np.argmax(total[places])])
                reach = 1.5 / resolution
                frequency = minimize_scalar(
                    lambda f, h=harmonics: -self._exact(f, h), method="bounded", options={"xatol": 1e-4 * reach},
                    bounds=(peak / resolution - reach, min(peak / resolution + reach, 0.5 / self.step)),
                ).x  # fmt: skip
                found.append((self._exact(frequency, harmonics), float(frequency), harmonics))
        return max(found, default=None)

    def _best_common(self) -> tuple[float, float, int] | None:
        """The same of periods in common use, where times are regular."""
        found = []
        for number in COMMON_PERIODS if self.regular else ():
            frequency = 1 / (number * self.step)
            if frequency * self.span >= MIN_SEASONS and all(abs(frequency - f) * self.span > 1 for f in self.known):
                found += [
                    (self._exact(frequency, h), frequency, h) for h in range(1, min(MAX_HARMONICS, number // 2) + 1)
                ]
        return max(found, default=None)

    def _exact(self, frequency: float, harmonics: int) -> float:
        series = self._series(frequency, harmonics)
        left = self.left - series @ np.linalg.lstsq(series, self.left, rcond=1e-10)[0]
        return float(self._gain(self._size(left), harmonics))

    def _gain(self, size: float | np.ndarray, harmonics: int) -> np.ndarray:
        """Rise of the log likelihood, less ln(m) for each harmonic."""
        ratio = np.maximum(size, self.least) / self._size(self.left)
        return -0.5 * self.m * np.log(ratio) - harmonics * math.log(self.m)

    def _size(self, errors: np.ndarray) -> float:
        return max(float(errors @ errors), self.least)

    def _power(self, frequencies: np.ndarray) -> np.ndarray:
        """Falls of the sum of squares by one cosine and sine each."""
        angle = 2 * np.pi * self.t[:, None] * frequencies
        waves = np.stack([self._beside(self._errors(wave(angle))) for wave in (np.cos, np.sin)])
        within = np.einsum("amf,bmf->fab", waves, waves)
        with_left = np.einsum("amf,m->fa", waves, self.left)
        return np.einsum("fa,fab,fb->f", with_left, np.linalg.pinv(within, rcond=1e-8, hermitian=True), with_left)

    def _series(self, frequency: float, harmonics: int) -> np.ndarray:
        angle = 2 * np.pi * self.t[:, None] * frequency * np.arange(1, harmonics + 1)
        return self._beside(self._errors(np.hstack([np.cos(angle), np.sin(angle)])))

    def _errors(self, A: np.ndarray) -> np.ndarray:
        """Columns on which errors are independent: changes per square root of time, if they are a random walk."""
        return np.diff(A, axis=0) / np.sqrt(np.diff(self.t))[:, None] if self.walk else A

    def _beside(self, A: np.ndarray) -> np.ndarray:
        return A - self.basis @ (self.basis.T @ A)


def _means(t: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct times, and the mean of the values at each."""
    distinct, where, counts = np.unique(t, return_inverse=True, return_counts=True)
    return distinct, np.bincount(where, y) / counts
