"""One climb: from a vector of parameters to a maximum of the evidence, with no exceptions on the way.

SciPy's L-BFGS or conjugate gradients make the steps; the curvature that they meet tells when less is left to gain than
is worth another one.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

METHODS = {"lbfgs": "L-BFGS-B", "cg": "CG"}
FLAT = 0.3  # second derivatives below this are taken for it
MOST_FOR_CURVATURE = 64  # parameters up to which the curvature is measured on the subset
MOST_FOR_DECREMENT = 1000  # parameters up to which the inverse curvature is kept as a matrix
LEFT = 0.01  # nats: a climb has converged when Newton's step would gain less


class Step(NamedTuple):
    """One iteration: the objective, theta, and on how many rows."""

    value: float
    theta: np.ndarray
    rows: int


@dataclasses.dataclass
class Optimum:
    """Where one climb ended, and the steps that led there."""

    value: float
    theta: np.ndarray
    start: str
    converged: bool
    times_found: int = 1
    path: list[Step] = dataclasses.field(default_factory=list)  # of all stages
    metric: np.ndarray | None = None  # a square root of the inverse curvature
    coarse: bool = False  # it ended early: to be climbed on if it may be the best

    def lately(self) -> Step:
        """Two steps before the last, or as far back as steps on the same rows go."""
        recent = self.path[-3:]
        return next(step for step in recent if step.rows == recent[-1].rows)


class Objective:
    """The negative of what is maximised, as SciPy wants it, in coordinates u with theta = origin + axes u.

    Axes may be fewer than parameters: then some of these move together, or not at all. Beyond ``box`` it is flat. Where
    the evidence has no value, it answers with a parabola rising from the best point so far, so that line searches step
    back.
    """

    def __init__(self, evidence, box, amplitude=None, prior=None, watch: Callable = lambda *_: None):
        self.evidence, self.box, self.amplitude, self.prior = evidence, box, amplitude, prior
        self.watch = watch
        self.evaluations = 0
        self.best: tuple[float, np.ndarray] | None = None
        self.origin, self.axes = np.zeros(evidence.size), np.eye(evidence.size)
        self._anchor: tuple[float, np.ndarray] | None = None
        self._recent: dict[bytes, tuple[float, np.ndarray, np.ndarray]] = {}
        self._kept: dict[bytes, tuple] = {}

    def at(self, theta, gradient: bool = True):
        """Value, gradient and theta with the best common amplitude, to be maximised; None where there is no value."""
        key = theta.tobytes()
        if key in self._kept and (self._kept[key][1] is not None or not gradient):
            return self._kept[key]
        inside = np.clip(theta, *self.box)
        self.evaluations += 1
        with np.errstate(all="ignore"):
            answer = self.evidence(inside, gradient, profiled=self.amplitude is not None)
        if answer is None:
            return None
        value, slope = answer.value, answer.gradient
        reached = inside
        if self.amplitude is not None:
            reached = np.where(self.amplitude, inside + math.log(answer.scale), inside)
        if self.prior is not None:
            log_density, prior_slope = self.prior(inside)
            if not math.isfinite(log_density):
                return None
            value, slope = value + log_density, slope + prior_slope if gradient else None
        if gradient:  # flat outside, and at the edge no way out
            outwards = ((theta <= self.box[0]) & (slope < 0)) | ((theta >= self.box[1]) & (slope > 0))
            slope = np.where((inside == theta) & ~outwards, slope, 0.0)
        if self.best is None or value > self.best[0]:
            self.best = (value, reached)
        self.watch(self)
        if len(self._kept) > 8:
            self._kept.clear()
        self._kept[key] = value, slope, reached
        return value, slope, reached

    def begin(self, origin, axes):
        self.origin, self.axes = origin, axes
        self._anchor = None

    def __call__(self, u):
        found = self.at(self.origin + self.axes @ u)
        if found is None:
            assert self._anchor is not None  # a climb begins where there is a value
            value, centre = self._anchor
            away, rise = u - centre, 10.0 + abs(value)
            return value + rise, 2 * rise * away / max(float(away @ away), 1e-300)
        value, slope, reached = found
        if self._anchor is None or -value < self._anchor[0]:
            self._anchor = (-value, u.copy())
        if len(self._recent) > 64:
            self._recent.clear()
        down = -(self.axes.T @ slope)
        self._recent[u.tobytes()] = (value, reached, down)
        return -value, down

    def seen(self, u):
        return self._recent.get(np.asarray(u).tobytes())


class Curvature:
    """The inverse of the matrix of second derivatives, from gradients along the way (BFGS): (k, k).

    From it comes Newton's decrement, 1/2 g^T H^-1 g: what is left to gain, were the objective quadratic.
    """

    def __init__(self, k: int, first: float | None):
        self.inverse = None if k > MOST_FOR_DECREMENT else np.eye(k) * (first or 1.0)
        self.known = first is not None
        self.last: tuple[np.ndarray, np.ndarray] | None = None

    def root(self) -> np.ndarray | None:
        """A square root of the inverse; None if nothing was learned."""
        if self.inverse is None or not self.known:
            return None
        values, vectors = np.linalg.eigh(self.inverse)
        return vectors * np.sqrt(np.maximum(values, 1e-12 * values[-1]))

    def left(self, u, g) -> float:
        """The decrement at u, where the gradient is g; learns from the step that led there."""
        if self.inverse is None:
            return 0.5 * float(g @ g) / FLAT
        if self.last is not None:
            s, y = u - self.last[0], g - self.last[1]
            sy = float(s @ y)
            if sy > 1e-10 * float(np.linalg.norm(s) * np.linalg.norm(y)):
                if not self.known:
                    self.inverse *= sy / float(y @ y)
                    self.known = True
                Hy = self.inverse @ y
                self.inverse += (1 + float(y @ Hy) / sy) / sy * np.outer(s, s)
                self.inverse -= (np.outer(Hy, s) + np.outer(s, Hy)) / sy
        self.last = u.copy(), g.copy()
        return 0.5 * float(g @ (self.inverse @ g)) if self.known else np.inf


def climb(
    objective, theta, start: str, method: str, span, metric, max_iterations: int, enough: float, path=(), least: int = 2
) -> Optimum:
    """From theta to a maximum, along the columns of ``span`` (p, k); ``metric`` (k, k) scales steps to
    Newton's; None if not known. ``path``: steps made before.

    It ends where less than ``enough`` is left to gain, by Newton's decrement, and the last step gained no more, but not
    before it has visited ``least`` points. Where SciPy gives up before that, it begins anew from there.
    """
    from scipy.optimize import minimize  # takes a while to import

    rows = objective.evidence.n
    steps: list[Step] = []
    left = np.inf
    while objective.at(theta) is not None:
        axes = np.eye(span.shape[1]) if metric is None else metric
        objective.begin(theta, span @ axes)
        u = np.zeros(axes.shape[1])
        slope, first = float(np.linalg.norm(objective(u)[1])), None
        if metric is not None:
            first = 1.0
            if slope > 1:
                # SciPy's first step has length one at most; in these coordinates that is Newton's step.
                axes = axes * slope
                objective.begin(theta, span @ axes)
                objective(u)
                first = 1 / slope**2
        curved, before = Curvature(len(u), first), len(steps)
        values: list[float] = []

        def note(u, curved=curved, values=values):
            nonlocal left
            seen = objective.seen(u)
            if seen is None:
                return
            value, reached, down = seen
            left = curved.left(u, down)
            values.append(value)
            steps.append(Step(value, reached, rows))
            if left < enough and len(values) >= least and value - values[-2] < enough:
                raise StopIteration

        note(u)
        options: dict[str, float] = {"maxiter": max(1, max_iterations - len(steps)), "gtol": 1e-7 * max(slope, 1.0)}
        if method == "lbfgs":
            options |= {"ftol": 1e-14, "maxcor": 20}
        with np.errstate(all="ignore"):
            minimize(objective, u, jac=True, method=METHODS[method], callback=note, options=options)
        root = curved.root()
        metric = None if root is None else axes @ root
        gained = steps[-1].value - steps[before].value
        if left < max(LEFT, enough) or len(steps) >= max_iterations or gained < 0.5 * LEFT:
            break
        theta, metric = steps[-1].theta, None
    # At the edge of where there is a value, a best amplitude may step over it: then what was reached before stands.
    value = steps[-1].value if steps else path[-1].value if path and path[-1].rows == rows else -math.inf
    reached = steps[-1].theta if steps else theta
    return Optimum(value, reached, start, bool(left < LEFT), path=[*path, *steps], metric=metric)


def let_go(objective, optimum: Optimum, span) -> Optimum:
    """An irrelevant input is still on its way to an infinite lengthscale when climbing ends: let it go, at once."""
    found = objective.at(optimum.theta)
    if found is None or not optimum.path or not np.isfinite(objective.box[0]).all():
        return optimum
    travelled = np.where(np.count_nonzero(span, axis=0)[span.argmax(axis=1)] > 1, 0.0, 1.0)  # not what is tied
    travelled *= optimum.theta - optimum.lately().theta
    travels = (np.abs(travelled) > 0.05) & (np.sign(travelled) == np.sign(found[1])) & (np.abs(found[1]) < 0.1)
    if not travels.any():
        return optimum
    away = np.where(travels, 4.0 * np.sign(travelled), 0.0)
    further = objective.at(optimum.theta + away, gradient=False)
    if further is None or not further[0] > found[0]:
        return optimum
    return dataclasses.replace(optimum, value=further[0], theta=further[2])


def curvature(objective, theta, span, rows_ratio: float):
    """A metric from second derivatives at ``theta``, by differences of gradients: steps of the size of Newton's."""
    k, step = span.shape[1], 0.03
    centre = objective.at(theta)
    if centre is None or k > MOST_FOR_CURVATURE:
        return None
    H = np.zeros((k, k))
    for i in range(k):
        shifted = objective.at(theta + step * span[:, i])
        if shifted is None:
            return None
        H[i] = span.T @ (centre[1] - shifted[1]) / step
    values, vectors = np.linalg.eigh((H + H.T) / 2 * rows_ratio)
    # Flat and rising directions: no more than a unit step for a unit slope.
    return vectors / np.sqrt(np.maximum(np.abs(values), FLAT))
