"""Doubt about theta: its posterior p(theta | y) as a weighted set of points, over which predictions are averaged.

`LogPosterior` is ln p(y | theta) + ln p(theta), as a density of theta. `laplace_design.laplace` integrates over it
without sampling, `chains.nuts` samples it; both give a `ThetaPosterior`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.polynomial import hermite_e

from mercer.core.machine import MIXTURE_BYTES
from mercer.core.registry import storable
from mercer.learning.climb import Optimum
from mercer.learning.objective import Criterion, Objective

MAX_POINTS = 40  # of which predictions are mixtures
MIN_POINTS = 5
MAX_LOST_WEIGHT = 2e-4  # of all points that are dropped because each has hardly any
CURVATURE_STEP = 0.01  # in theta, of the differences that measure second derivatives
MIN_CURVATURE = 0.05  # of -ln p(theta | y): no deviation of theta is taken for more than 4.5
NEWTON_STEPS = 4
MIN_DEGREE, MAX_DEGREE = 2, 8  # of the moments that a few points keep
MAX_MOMENT_ERROR = 1e-8  # relative
MAX_MODE_LAG = 4.0  # nats: lower optima are not integrated over
MIN_MODE_DISTANCE = 1.0  # standard deviations: closer optima are one mode

register = storable("parts")


@register
@dataclasses.dataclass(frozen=True, eq=False)
class ThetaPosterior:
    """Posterior of theta, in the optimiser's coordinates.

    Fields
    ------
    method : "laplace" or "nuts".
    theta, weights : (K, p) and (K,), the points that predictions are averaged over; weights sum to one.
    draws : (S, p), draws for intervals and plots: those of the chains, or of the approximation.
    logarithmic : (p,), which coordinates are logarithms.
    evaluations : evaluations of the evidence that this took, after the search for the mode.
    diagnostics : of the chains ("rhat", "effective_size", "effective_tail_size": (p,) each, "chains", "divergences"),
        or of the design ("points" evaluated, "modes", "design"); "interrupted": whether they were ended early.
    """

    method: str
    theta: np.ndarray
    weights: np.ndarray
    draws: np.ndarray
    logarithmic: np.ndarray
    evaluations: int
    diagnostics: dict[str, Any]

    def consistent(self) -> bool:
        """Whether the shapes agree, for `mercer.load`."""
        K, p = self.theta.shape
        widths = self.draws.ndim == 2 and self.draws.shape[1:] == self.logarithmic.shape == (p,)
        return self.weights.shape == (K,) and widths

    def shifted(self, units: np.ndarray) -> "ThetaPosterior":
        """With ``units`` (p,) added to all theta."""
        return dataclasses.replace(self, theta=self.theta + units, draws=self.draws + units)

    def reweighted(self, weights: np.ndarray) -> "ThetaPosterior":
        """With new ``weights`` (K,) of the points; each draw counts as much more or less as the nearest point does."""
        spread = self.draws.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        away = (self.draws[:, None] - self.theta) / spread  # (S, K, p)
        gains = np.divide(weights, self.weights, out=np.zeros(len(weights)), where=self.weights > 0)
        ends = np.cumsum(gains[np.argmin(np.sum(away**2, axis=2), axis=1)])
        if not ends[-1] > 0:  # no draw is near the points that are left
            return dataclasses.replace(self, weights=weights)
        # Systematic resampling.
        kept = np.searchsorted(ends, (np.arange(len(ends)) + 0.5) / len(ends) * ends[-1])
        return dataclasses.replace(self, weights=weights, draws=self.draws[kept])

    def natural(self, theta: np.ndarray) -> np.ndarray:
        """theta (..., p) on the natural scale."""
        with np.errstate(over="ignore"):
            return np.where(self.logarithmic, np.exp(theta), theta)

    def quantile(self, q: Any) -> np.ndarray:
        """Of each coordinate: (..., p)."""
        return np.quantile(self.draws, q, axis=0)


class LogPosterior:
    """ln p(y | theta) + ln p(theta) on all rows, and its gradient; None where there is none, or out of bounds.

    ``watch`` is called after every evaluation with their number.
    """

    def __init__(
        self, objective: Objective, criterion: Criterion, watch: Callable[[int], None] = lambda _: None
    ) -> None:
        self.criterion, self.prior, self.watch = criterion, objective.prior(), watch
        self.box = objective.floor(), objective.ceiling()
        self.size, self.logarithmic = objective.size, objective.logarithmic()
        self.evaluations = 0

    def __call__(self, theta: np.ndarray, gradient: bool = True) -> tuple[float, np.ndarray] | None:
        if not np.isfinite(theta).all() or (theta < self.box[0]).any() or (theta > self.box[1]).any():
            return None
        self.evaluations += 1
        with np.errstate(all="ignore"):
            found = self.criterion(theta, gradient)
        self.watch(self.evaluations)
        if found is None:
            return None
        value, slope = found.value, np.zeros(self.size) if found.gradient is None else found.gradient
        if self.prior is not None:
            log_density, prior_slope = self.prior(theta)
            value, slope = value + log_density, slope + prior_slope
        finite = math.isfinite(value) and bool(np.isfinite(slope).all())
        return (value, slope) if finite else None

    def value(self, theta: np.ndarray) -> float:
        """Without its gradient; minus infinity where there is none."""
        found = self(theta, gradient=False)
        return -math.inf if found is None else found[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Peak:
    """A mode of the posterior: theta, the value there, and a root of the covariance, (p, p): principal axes, each as
    long as the standard deviation along it."""

    theta: np.ndarray
    value: float
    root: np.ndarray

    @property
    def log_volume(self) -> float:
        """ln of the volume of the parallelepiped of the axes."""
        return float(np.linalg.slogdet(self.root)[1])


def peak_at(posterior: LogPosterior, theta: np.ndarray) -> Peak | None:
    """The mode near ``theta``, by a few steps of Newton's method; None if there is no value. 2 p evaluations of the
    gradient, and one for each step."""
    here = posterior(theta)
    if here is None:
        return None
    root = _root(posterior, theta, here[1])
    for _ in range(NEWTON_STEPS):
        step = root @ (root.T @ here[1])
        if float(step @ here[1]) < 1e-6:
            break
        size = min(1.0, 2.0 / max(1e-12, float(np.linalg.norm(root.T @ here[1]))))
        new = posterior(theta + size * step)
        if new is None or new[0] <= here[0]:
            break
        theta, here = theta + size * step, new
    return Peak(theta, here[0], root)


def _root(posterior: LogPosterior, theta: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Principal axes of the covariance estimated from the curvature, by differences of gradients."""
    H = np.zeros((len(theta), len(theta)))
    for i, step in enumerate(CURVATURE_STEP * np.eye(len(theta))):
        up, down = posterior(theta + step), posterior(theta - step)
        ends = (slope if up is None else up[1], slope if down is None else down[1])
        H[i] = (ends[1] - ends[0]) / (CURVATURE_STEP * max(1, (up is not None) + (down is not None)))
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    return vectors / np.sqrt(np.maximum(np.abs(values), MIN_CURVATURE))


def peaks(posterior: LogPosterior, optima: Sequence[Optimum]) -> list[Peak]:
    """Distinct modes, from the optima that learning found, the highest first; none far below it."""
    near = [o.theta for o in optima if o.value > optima[0].value - MAX_MODE_LAG]  # which may be of fewer rows
    tried = [peak for peak in (peak_at(posterior, theta) for theta in near) if peak is not None]
    found: list[Peak] = []
    for peak in sorted(tried, key=lambda peak: -peak.value):
        away = [np.linalg.norm(np.linalg.solve(other.root, peak.theta - other.theta)) for other in found]
        if not found or (peak.value > found[0].value - MAX_MODE_LAG and min(away) > MIN_MODE_DISTANCE):
            found.append(peak)
    return found


# -- a few points ------------------------------------------------------------------------------------------------------


def most_points(n: int) -> int:
    """Number of points to predict from, at most: fewer where the covariance of n rows is large."""
    return int(np.clip(MIXTURE_BYTES / (8.0 * n * n), MIN_POINTS, MAX_POINTS))


def pruned(weights: np.ndarray) -> np.ndarray:
    """Indices of the points to keep: all but those with the smallest weights, of `MAX_LOST_WEIGHT` together."""
    order = np.argsort(weights, kind="stable")
    lost = np.cumsum(weights[order]) < MAX_LOST_WEIGHT * weights.sum()
    return np.sort(order[~lost])


def thinned(theta: np.ndarray, weights: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``most`` of the points, with new weights that keep averages over theta.

    Up to seven parameters, all moments up to some degree are kept exactly, as in a Gaussian quadrature: by Tchakaloff's
    theorem m of the points suffice for m moments, and non-negative least squares finds such (the highest degree of
    which there are at most ``most``, from 2 on). Beyond, averages are kept on average (Fearnhead and Clifford 2003).
    """
    kept = pruned(weights)
    theta, weights = theta[kept], weights[kept] / weights[kept].sum()
    if len(weights) <= most:
        return theta, weights
    centred = theta - np.average(theta, axis=0, weights=weights)
    C = (centred * weights[:, None]).T @ centred
    values, vectors = np.linalg.eigh(C)
    z = centred @ (vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1])))[:, ::-1]  # along principal axes
    degree = max((d for d in range(MAX_DEGREE + 1) if math.comb(z.shape[1] + d, d) <= most), default=0)
    if degree >= MIN_DEGREE:
        found = _with_moments(z, weights, degree)
        if found is not None:
            own = found > 0
            return theta[own], found[own] / found.sum()
    return _sampled(theta, z[:, 0], weights, most)


def _with_moments(z: np.ndarray, weights: np.ndarray, degree: int) -> np.ndarray | None:
    """Weights (m,), most of them zero, with which polynomials of z (m, p) up to this degree have the same averages."""
    from scipy.optimize import nnls  # takes a while to import

    powers = [
        np.stack([hermite_e.hermeval(column, np.eye(degree + 1)[d]) / math.sqrt(math.factorial(d)) for column in z.T])
        for d in range(degree + 1)
    ]  # (degree + 1) of (p, m)
    degrees = (each for each in itertools.product(range(degree + 1), repeat=z.shape[1]) if sum(each) <= degree)
    A = np.stack([np.prod([powers[d][j] for j, d in enumerate(each)], axis=0) for each in degrees])
    try:
        found, residual = nnls(A, A @ weights)
    except RuntimeError:  # too many iterations
        return None
    return found if residual < MAX_MOMENT_ERROR * np.linalg.norm(A @ weights) else None


def _sampled(theta: np.ndarray, order: np.ndarray, weights: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Points with weights above a threshold c stay as they are; of the others, systematic sampling in the order of
    ``order`` keeps some, all with weight c."""
    c = _threshold(weights, most)
    large = weights >= c
    small = np.flatnonzero(~large)
    small = small[np.argsort(order[small], kind="stable")]
    count = round(weights[small].sum() / c)
    ends = np.cumsum(weights[small])
    chosen = small[np.searchsorted(ends, (np.arange(count) + 0.5) / count * ends[-1]).clip(max=len(small) - 1)]
    index, times = np.unique(chosen, return_counts=True)
    rows = np.concatenate([np.flatnonzero(large), index])
    new = np.concatenate([weights[large], times * weights[small].sum() / max(count, 1)])
    return theta[rows], new / new.sum()


def _threshold(weights: np.ndarray, most: int) -> float:
    """c with sum_k min(w_k / c, 1) = most."""
    ordered = np.sort(weights)[::-1]
    rest = weights.sum() - np.cumsum(np.concatenate([[0.0], ordered[:-1]]))
    for large in range(most):  # the number of weights above c
        c = rest[large] / (most - large)
        if ordered[large] < c:
            return float(c)
    return float(ordered[most - 1])
