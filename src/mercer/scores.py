"""Scores of predictions: log density, coverage of intervals, reliability of probabilities, leave-one-out."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, ndtri

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_matrix
from mercer.core.text import table
from mercer.distributions import Distribution

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of central intervals
CALIBRATED_LEVEL = 0.95  # of the intervals that calibration makes wide enough
MIN_CALIBRATION_ROWS = 20  # with fewer, leave-one-out residuals do not determine how wide intervals must be


# -- numbers -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Predictions of each training row from all others; parts that the model does not have are None.

    ``mean`` (n,) or (n, q), with ``residual`` = target - mean or with ``variance`` (noise included); for classifiers,
    ``probability`` (n, C). ``log_score`` (n,) is the log predictive density of the target, or ln p of the true class.
    As a sequence it has the fields that are not None, in the order below.
    """

    mean: np.ndarray | None = None
    residual: np.ndarray | None = None
    probability: np.ndarray | None = None
    variance: np.ndarray | None = None
    log_score: np.ndarray | None = None

    def __iter__(self) -> Iterator[np.ndarray]:
        return (part for part in vars(self).values() if part is not None)

    def __len__(self) -> int:
        return sum(part is not None for part in vars(self).values())

    def __getitem__(self, i: Any) -> Any:
        return tuple(self)[i]

    def take(self, rows: Any) -> "LeaveOneOut":
        """The predictions of some rows."""
        return LeaveOneOut(**{name: None if part is None else part[rows] for name, part in vars(self).items()})

    @property
    def prediction(self) -> np.ndarray | None:
        """Alias of ``mean``."""
        return self.mean


def unbiased_factor(n: int, parameters: int) -> float:
    """Factor that corrects a variance estimated from n rows together with k parameters, n / (n - k), with k at most
    n / 2: maximum likelihood underestimates it, as the mean squared residual of a regression does."""
    return n / (n - min(parameters, n // 2))


def half_width(level: float) -> float:
    """Half the width of the central interval of a standard normal with this probability."""
    return float(ndtri(0.5 + level / 2))


def coverage(z: np.ndarray, level: float) -> float:
    """Fraction of rows inside their central intervals of this level, from `Distribution.z`."""
    return float(np.mean(np.abs(z) <= half_width(level)))


def widening(z: np.ndarray, level: float) -> float:
    """Factor on variances, at least 1, that makes central intervals of this level cover it, from standardised
    residuals: a further one exceeds the interval with at most the complementary probability."""
    n = len(z)
    reached = np.sort(np.abs(z))[min(n - 1, math.ceil(level * (n + 1)) - 1)]
    return max(1.0, float(reached / half_width(level)) ** 2)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Coverage of central intervals at each level, and accuracy of the mean; ``z`` are the standardised residuals."""

    levels: tuple[float, ...]
    coverage: np.ndarray
    rmse: float
    mean_absolute_error: float
    r2: float
    log_density: float
    z: np.ndarray

    def __str__(self) -> str:
        rows = []
        for level, found in zip(self.levels, self.coverage, strict=True):
            low, high = chance_range(len(self.z), level)
            rows.append([f"{level:.0%}", f"{found:.1%}", f"{low:.1%} to {high:.1%}"])
        return table(["interval", "covers", "expected by chance"], rows)


def calibration(y: ArrayLike, predicted: Distribution) -> Calibration:
    """Compare predictions with the measurements y (n,)."""
    y = np.asarray(y, dtype=float)
    residual, z = y - predicted.mean, predicted.z(y)
    covered = np.array([coverage(z, level) for level in LEVELS])
    total = float(np.sum((y - y.mean()) ** 2))
    r2 = 1 - float(residual @ residual) / total if total > 0 else float("nan")
    rmse, mae = float(np.sqrt(np.mean(residual**2))), float(np.mean(np.abs(residual)))
    return Calibration(LEVELS, covered, rmse, mae, r2, float(np.mean(predicted.log_density(y))), z)


def chance_range(n: int, level: float, probability: float = 0.95) -> tuple[float, float]:
    """Range of the coverage of correct intervals of this level on n rows, with the given probability."""
    k = np.arange(n)
    below = betainc(n - k, k + 1, 1 - level)  # P(count <= k)
    edges = np.searchsorted(below, [(1 - probability) / 2, (1 + probability) / 2])
    return float(edges[0]) / n, float(edges[1]) / n


# -- labels ------------------------------------------------------------------------------------------------------------


class Bins(NamedTuple):
    """Rows binned by a predicted probability: edges, counts, mean prediction and observed frequency, each (B,)."""

    lower: np.ndarray
    upper: np.ndarray
    counts: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Reliability:
    """Calibration and accuracy of predicted probabilities.

    ``bins`` group rows by the probability of the predicted class. ``calibration_error`` is the mean distance between
    predicted probability and observed frequency over the bins, weighted by their rows (the expected calibration error,
    ECE). Correct probabilities have one too, by chance: ``by_chance`` on average, with standard deviation
    ``chance_deviation``. ``log_loss`` is the mean of -ln p(true class), ``brier`` the mean squared distance of the
    probabilities from the 0/1 indicators, summed over classes (Brier 1950).
    """

    bins: Bins
    calibration_error: float
    by_chance: float
    chance_deviation: float
    error_rate: float
    log_loss: float
    brier: float

    @property
    def counts(self) -> np.ndarray:
        return self.bins.counts

    @property
    def confidence(self) -> np.ndarray:
        return self.bins.predicted

    @property
    def accuracy(self) -> np.ndarray:
        return self.bins.observed

    def table(self) -> str:
        """The bins, one per line."""
        rows = [
            [f"{low:.1%} to {high:.1%}", f"{count:,}", f"{predicted:.1%}", f"{observed:.1%}"]
            for low, high, count, predicted, observed in zip(*self.bins, strict=True)
        ]
        return table(["probability of the predicted class", "rows", "on average", "correct"], rows)

    def __str__(self) -> str:
        chance = f"calibration error {self.calibration_error:.1%}; chance alone gives {self.by_chance:.1%}"
        return f"{self.table()}\n\n{chance}"


def reliability(codes: ArrayLike, probability: ArrayLike, bins: int | ArrayLike = 10) -> Reliability:
    """Compare predicted probabilities (n, C) with the true classes (n,), numbered from 0.

    ``bins`` is the number of bins of equal counts (reduced so that each has at least ten rows), or their edges.

    >>> found = reliability([0, 1, 1, 1], [[0.8, 0.2], [0.3, 0.7], [0.4, 0.6], [0.6, 0.4]])
    >>> found.error_rate, round(found.log_loss, 3), round(found.brier, 3), round(found.calibration_error, 3)
    (0.25, 0.502, 0.325, 0.075)
    """
    codes, P = checked(codes, probability)
    n = len(codes)
    confidence, right = P.max(axis=1), P.argmax(axis=1) == codes
    found = binned(confidence, right, bins)
    share = found.counts / n
    # The observed frequency in a bin has variance s^2 = sum p (1 - p) / n_b^2; |N(0, s^2)| has mean (2 / pi)^1/2 s and
    # variance (1 - 2 / pi) s^2.
    which = np.searchsorted(found.lower, confidence, side="right") - 1
    varies = np.sqrt(np.bincount(which, confidence * (1 - confidence), minlength=len(share))) / found.counts
    truth = np.zeros_like(P)
    truth[np.arange(n), codes] = 1.0
    with np.errstate(divide="ignore"):
        log_loss = -float(np.mean(np.log(P[np.arange(n), codes])))
    return Reliability(
        found,
        calibration_error=float(share @ np.abs(found.predicted - found.observed)),
        by_chance=math.sqrt(2 / math.pi) * float(share @ varies),
        chance_deviation=math.sqrt(1 - 2 / math.pi) * float(np.linalg.norm(share * varies)),
        error_rate=float(np.mean(~right)),
        log_loss=log_loss,
        brier=float(np.mean(np.sum((P - truth) ** 2, axis=1))),
    )


def checked(codes: ArrayLike, probability: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Validated class indices (n,) and probabilities (n, C)."""
    P = as_matrix(probability, "probability")
    codes = np.asarray(codes)
    if P.shape[1] < 2:
        raise DataError(
            f"probability must have a column for each of two or more classes; got shape {np.shape(probability)}. For "
            "two classes, give np.column_stack([1 - p, p])."
        )
    if codes.shape != (len(P),) or codes.dtype.kind not in "iub":
        raise DataError(f"codes must be {len(P)} integers, one per row of probability; got {codes.dtype} "
                        f"{codes.shape}.")  # fmt: skip
    codes = codes.astype(int)
    if len(codes) == 0 or codes.min() < 0 or codes.max() >= P.shape[1]:
        raise DataError(
            f"codes must lie between 0 and {P.shape[1] - 1}, the columns of probability; got {_range(codes)}."
        )
    if P.min() < 0 or np.abs(P.sum(axis=1) - 1).max() > 1e-6:
        raise DataError("probability must be non-negative, and each row must sum to one.")
    return codes, P


def _range(codes: np.ndarray) -> str:
    return f"{codes.min()} to {codes.max()}" if len(codes) else "none"


def binned(p: np.ndarray, happened: np.ndarray, bins: Any = 10) -> Bins:
    """Bin probabilities p (n,) and outcomes (n,): ``bins`` of equal counts, or edges. Empty bins are dropped."""
    if np.ndim(bins) == 0:
        if not bins >= 1:
            raise ParameterError(f"bins must be at least 1, or an array of edges; got {bins!r}.")
        wanted = min(int(bins), max(1, len(p) // 10))
        first = np.arange(wanted) * len(p) // wanted  # row of each bin, sorted by p
        edges = np.append(np.unique(np.sort(p)[first]), p.max())
    else:
        edges = np.asarray(bins, dtype=float)
        if (
            edges.ndim != 1
            or len(edges) < 2
            or (np.diff(edges) <= 0).any()
            or edges[0] > p.min()
            or edges[-1] < p.max()
        ):
            raise ParameterError("edges of bins must increase and enclose all probabilities, such as 0, 0.1, ..., 1.")
    which = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(which, minlength=len(edges) - 1)
    some = counts > 0
    sums = (np.bincount(which, weights, minlength=len(counts))[some] for weights in (p, happened))
    predicted, observed = (total / counts[some] for total in sums)
    return Bins(edges[:-1][some], edges[1:][some], counts[some], predicted, observed)
