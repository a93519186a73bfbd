"""One climb: local maximisation from a given theta by SciPy's L-BFGS or conjugate gradients.

The curvature along the way predicts how much is left to gain, and so decides when to stop.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mercer.learning.objective import Criterion, Keeping, LogDensity
from mercer.learning.state import Continuing, Log
from mercer.solvers.base import Evaluation

METHODS = {"lbfgs": "L-BFGS-B", "cg": "CG"}
MIN_CURVATURE = 0.3  # nats: second derivatives below this are taken for it
CURVATURE_STEP = 0.03  # in theta, of the differences that measure second derivatives
MAX_PARAMETERS_FOR_CURVATURE = 64  # up to which second derivatives are measured on a subset of the rows
MAX_PARAMETERS_FOR_DECREMENT = 1000  # up to which the inverse curvature is kept as a matrix
CONVERGED_GAIN = 0.01  # nats: a climb has converged when Newton's step would gain less
MAX_GAIN_NEAR_THE_END = 1.0  # nats that Newton's step would gain where a climb is near its end
RELEASE_STEP = 4.0  # in theta: how far parameters that diverge are moved at the end
MAX_REMEMBERED_POINTS, MAX_REMEMBERED_VALUES = 64, 8


class Step(NamedTuple):
    """One iteration: the value reached, theta, and the number of rows it is about."""

    value: float
    theta: np.ndarray
    rows: int


class ClimbStart(NamedTuple):
    """Where to climb from: theta, the start it goes back to, the number of climbs that led here, the steps made so far,
    and a square root of the inverse curvature, if known."""

    start: str
    theta: np.ndarray
    times_found: int = 1
    path: Sequence[Step] = ()
    metric: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Optimum:
    """Where a climb ended."""

    value: float
    theta: np.ndarray
    start: str
    converged: bool
    times_found: int = 1
    path: Sequence[Step] = ()  # of all stages
    metric: np.ndarray | None = None  # a square root of the inverse curvature
    coarse: bool = False  # it stopped early, to be continued if it may be the best

    def found_again(self, times: int) -> "Optimum":
        return dataclasses.replace(self, times_found=self.times_found + times)

    def two_steps_before(self) -> Step:
        """Two steps before the last, or as far back as steps on the same rows go."""
        recent = self.path[-3:]
        return next(step for step in recent if step.rows == recent[-1].rows)


class Point(NamedTuple):
    """A value, its gradient (None if not asked for), and theta at the best common amplitude."""

    value: float
    gradient: np.ndarray | None
    theta: np.ndarray


class ObjectiveSurface:
    """Criterion plus log prior inside a box, constant along each coordinate beyond it.

    A call gives the negative, as SciPy's minimisers want it, in coordinates u with theta = origin + axes u, of which
    there may be fewer than parameters. Where the criterion has no value, it gives a parabola rising from the best point
    so far, so that line searches step back.
    """

    def __init__(
        self,
        criterion: Criterion,
        box: tuple[np.ndarray, np.ndarray],
        profiled: np.ndarray | None = None,
        prior: LogDensity | None = None,
        watch: Callable[["ObjectiveSurface"], None] = lambda _: None,
        log: Log | None = None,
    ) -> None:
        self.criterion, self.box, self.profiled, self.prior, self.watch = criterion, box, profiled, prior, watch
        self.log = Log() if log is None else log
        self.evaluations = 0  # made here, not taken from an earlier search
        self._keeping = criterion if isinstance(criterion, Keeping) else None
        self._continuing = criterion if isinstance(criterion, Continuing) else None
        self.best: Point | None = None
        self._origin, self._axes = np.zeros(criterion.size), np.eye(criterion.size)
        self._anchor: tuple[float, np.ndarray] | None = None
        self._visited: dict[bytes, tuple[float, np.ndarray, np.ndarray]] = {}
        self._values: dict[bytes, Point] = {}

    def at(self, theta: np.ndarray, gradient: bool = True) -> Point | None:
        """Value to be maximised, with its gradient; None where there is none."""
        key = theta.tobytes()
        if key in self._values and (self._values[key].gradient is not None or not gradient):
            return self._values[key]
        low, high = self.box
        inside, before = np.minimum(np.maximum(theta, low), high), self.evaluations
        answer = self._answer(inside, gradient)
        if answer is None:
            return None
        value, slope, reached = answer.value, answer.gradient, inside
        if self.profiled is not None:
            reached = inside + math.log(answer.scale) * self.profiled
        if self.prior is not None:
            log_density, prior_slope = self.prior(inside)
            if not math.isfinite(log_density):
                return None
            value, slope = value + log_density, slope + prior_slope if gradient and slope is not None else None
        bounded = (theta <= low) | (theta >= high)
        if gradient and slope is not None and bounded.any():  # zero outside, and on faces if it points outwards
            outwards = ((theta <= low) & (slope < 0)) | ((theta >= high) & (slope > 0))
            slope = np.where((inside == theta) & ~outwards, slope, 0.0)
        point = Point(value, slope, reached)
        if self.best is None or value > self.best.value:
            self.best = point
            if self.evaluations > before and self._keeping is not None:
                self._keeping.keep(inside)
        self.watch(self)
        if len(self._values) > MAX_REMEMBERED_VALUES:
            self._values.clear()
        self._values[key] = point
        return point

    def _answer(self, theta: np.ndarray, gradient: bool) -> Evaluation | None:
        profiled, jitter = self.profiled is not None, self.criterion.jitter
        known = self.log.find(theta, gradient, profiled, jitter, in_order=self._continuing is not None)
        if known is not None:
            if self._continuing is not None:
                self._continuing.replayed(theta, self.log.memory if self.log.ended else None)
            return known
        self.evaluations += 1
        with np.errstate(all="ignore"):
            answer = self.criterion(theta, gradient, profiled)
        if answer is not None:
            memory = None if self._continuing is None else self._continuing.memory()
            self.log.add(theta, profiled, jitter, answer, memory)
        return answer

    def near_the_end(self, near: bool) -> None:
        """Whether the next points may be the last ones of a climb, of which a model is made."""
        if self._keeping is not None:
            self._keeping.keeping = near

    def slope(self, theta: np.ndarray) -> np.ndarray | None:
        """The gradient; None where there is no value."""
        found = self.at(theta)
        return None if found is None else found.gradient

    def set_coordinates(self, origin: np.ndarray, axes: np.ndarray) -> None:
        self._origin, self._axes = origin, axes
        self._anchor = None

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        found = self.at(self._origin + self._axes @ u)
        if found is None:
            assert self._anchor is not None  # a climb starts where there is a value
            value, centre = self._anchor
            away, rise = u - centre, 10.0 + abs(value)
            return value + rise, 2 * rise * away / max(float(away @ away), 1e-300)
        assert found.gradient is not None
        if self._anchor is None or -found.value < self._anchor[0]:
            self._anchor = (-found.value, u.copy())
        if len(self._visited) > MAX_REMEMBERED_POINTS:
            self._visited.clear()
        down = -(self._axes.T @ found.gradient)
        self._visited[u.tobytes()] = (found.value, found.theta, down)
        return -found.value, down

    def visited(self, u: np.ndarray) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Value, theta and negative gradient of a recent call."""
        return self._visited.get(np.asarray(u).tobytes())


class InverseHessian:
    """Inverse of the matrix of second derivatives, estimated from gradients along the way (BFGS): (k, k).

    Newton's decrement 1/2 g^T H^-1 g is what is left to gain if the function is quadratic.
    """

    def __init__(self, k: int, first: float | None) -> None:
        self.matrix = None if k > MAX_PARAMETERS_FOR_DECREMENT else np.eye(k) * (first or 1.0)
        self.known = first is not None
        self.last: tuple[np.ndarray, np.ndarray] | None = None

    def root(self) -> np.ndarray | None:
        """A square root; None if nothing is known."""
        if self.matrix is None or not self.known:
            return None
        values, vectors = np.linalg.eigh(self.matrix)
        return vectors * np.sqrt(np.maximum(values, 1e-12 * values[-1]))

    def decrement(self, u: np.ndarray, g: np.ndarray) -> float:
        """Newton's decrement at u with gradient g, after an update by the step from the previous point."""
        if self.matrix is None:
            return 0.5 * float(g @ g) / MIN_CURVATURE
        if self.last is not None:
            s, y = u - self.last[0], g - self.last[1]
            sy = float(s @ y)
            if sy > 1e-10 * float(np.linalg.norm(s) * np.linalg.norm(y)):
                if not self.known:
                    self.matrix *= sy / float(y @ y)
                    self.known = True
                Hy = self.matrix @ y
                self.matrix += (1 + float(y @ Hy) / sy) / sy * np.outer(s, s)
                self.matrix -= (np.outer(Hy, s) + np.outer(s, Hy)) / sy
        self.last = u.copy(), g.copy()
        return 0.5 * float(g @ (self.matrix @ g)) if self.known else np.inf


def climb(
    surface: ObjectiveSurface,
    candidate: ClimbStart,
    directions: np.ndarray,
    max_iterations: int,
    min_gain: float,
    method: str = "lbfgs",
    min_points: int = 2,
) -> Optimum:
    """Local maximum from a candidate, along the columns of ``directions`` (p, k).

    Ends after ``min_points`` where both Newton's decrement and the gain of the last step are below ``min_gain``. Where
    SciPy stops earlier, it is started again from there.
    """
    from scipy.optimize import minimize  # takes a while to import

    start, theta, times_found, path, metric = candidate
    rows = surface.criterion.n
    steps: list[Step] = []
    left = np.inf
    surface.near_the_end(False)
    while surface.at(theta) is not None:
        axes = np.eye(directions.shape[1]) if metric is None else metric
        surface.set_coordinates(theta, directions @ axes)
        u = np.zeros(axes.shape[1])
        slope, first = float(np.linalg.norm(surface(u)[1])), None
        if metric is not None:
            first = 1.0
            if slope > 1:
                # SciPy's first step has length one at most; in these coordinates that is Newton's step.
                axes = axes * slope
                surface.set_coordinates(theta, directions @ axes)
                surface(u)
                first = 1 / slope**2
        curvature, before = InverseHessian(len(u), first), len(steps)
        values: list[float] = []

        def note(u: np.ndarray, curvature: InverseHessian = curvature, values: list[float] = values) -> None:
            nonlocal left
            seen = surface.visited(u)
            if seen is None:
                return
            value, reached, down = seen
            left = curvature.decrement(u, down)
            surface.near_the_end(left < MAX_GAIN_NEAR_THE_END)
            values.append(value)
            steps.append(Step(value, reached, rows))
            if left < min_gain and len(values) >= min_points and value - values[-2] < min_gain:
                raise StopIteration

        note(u)
        options: dict[str, float] = {"maxiter": max(1, max_iterations - len(steps)), "gtol": 1e-7 * max(slope, 1.0)}
        if method == "lbfgs":
            options |= {"ftol": 1e-14, "maxcor": 20}
        with np.errstate(all="ignore"):
            minimize(surface, u, jac=True, method=METHODS[method], callback=note, options=options)
        root = curvature.root()
        metric = None if root is None else axes @ root
        gained = steps[-1].value - steps[before].value
        if left < max(CONVERGED_GAIN, min_gain) or len(steps) >= max_iterations or gained < 0.5 * CONVERGED_GAIN:
            break
        theta, metric = steps[-1].theta, None
    # A profiled amplitude may step over the edge of where there is a value: then what was reached before stands.
    value = steps[-1].value if steps else path[-1].value if path and path[-1].rows == rows else -math.inf
    reached = steps[-1].theta if steps else theta
    return Optimum(value, reached, start, bool(left < CONVERGED_GAIN), times_found, [*path, *steps], metric)


def release(surface: ObjectiveSurface, optimum: Optimum, directions: np.ndarray) -> Optimum:
    """Move parameters that were still diverging when the climb ended, as the lengthscale of an irrelevant input does,
    a long way further, if that raises the value."""
    surface.near_the_end(True)
    found = surface.at(optimum.theta)
    if found is None or found.gradient is None or not optimum.path or not np.isfinite(surface.box[0]).all():
        return optimum
    tied = np.count_nonzero(directions, axis=0)[directions.argmax(axis=1)] > 1
    moved = np.where(tied, 0.0, 1.0) * (optimum.theta - optimum.two_steps_before().theta)
    running = (np.abs(moved) > 0.05) & (np.sign(moved) == np.sign(found.gradient)) & (np.abs(found.gradient) < 0.1)
    if not running.any():
        return optimum
    away = np.where(running, RELEASE_STEP * np.sign(moved), 0.0)
    further = surface.at(optimum.theta + away, gradient=False)
    if further is None or not further.value > found.value:
        return optimum
    return dataclasses.replace(optimum, value=further.value, theta=further.theta)


def newton_metric(
    surface: ObjectiveSurface, theta: np.ndarray, directions: np.ndarray, rows_ratio: float
) -> np.ndarray | None:
    """Square root of the inverse curvature at ``theta`` for ``rows_ratio`` times as many rows, from differences of
    gradients. In its coordinates a step of length one is Newton's."""
    k, centre = directions.shape[1], surface.slope(theta)
    if centre is None or k > MAX_PARAMETERS_FOR_CURVATURE:
        return None
    H = np.zeros((k, k))
    for i in range(k):
        shifted = surface.slope(theta + CURVATURE_STEP * directions[:, i])
        if shifted is None:
            return None
        H[i] = directions.T @ (centre - shifted) / CURVATURE_STEP
    values, vectors = np.linalg.eigh((H + H.T) / 2 * rows_ratio)
    # Along flat and rising directions: no more than a unit step for a unit slope.
    return vectors / np.sqrt(np.maximum(np.abs(values), MIN_CURVATURE))
