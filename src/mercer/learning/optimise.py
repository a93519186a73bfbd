"""Climbing the evidence: SciPy's L-BFGS or conjugate gradients, fewer steps, and no exceptions on the way.

Fewer evaluations on all n rows come from three things. A common amplitude is never searched for: it has a closed form
(`Evidence`, profiled). Most of the climb is on a random subset of the rows, where an evaluation costs little: several
starts are compared there after a few iterations (a heat), and the best go on. And the curvature there, times the ratio
of rows, tells the next stage how to step.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from mercer.core.coordinates import Layout, log_prior
from mercer.core.errors import ParameterError
from mercer.core.precision import double
from mercer.learning.progress import Progress

METHODS = {"lbfgs": "L-BFGS-B", "cg": "CG"}
REACH = 14.0  # how far a logarithm may move from where it began: a factor of a million either way
FLAT = 0.3  # second derivatives below this are taken for it
MOST_FOR_CURVATURE = 64  # parameters up to which the curvature is measured on the subset
MOST_FOR_DECREMENT = 1000  # parameters up to which the inverse curvature is kept as a matrix
LEFT = 0.01  # nats: a climb has converged when Newton's step would gain less
HEAT = 6  # iterations after which starts are compared
RIVALS = 2  # climbs that go on after a heat, and optima of a subset that are climbed on more rows
FEW_ROWS, RIVALS_OF_FEW = 200, 4  # rows up to which more climbs go on, and how many: evaluations are cheap, optima many
RISE = 10.0  # times what its last two steps gained: a climb further behind the best is given up
COARSE = 0.05  # nats: rivals are compared where less is left to gain
SAME = 0.02  # logarithms closer than this are one place
BEHIND = 4.0  # nats on the subset: optima further behind the best are dropped
TIE = 0.5  # nats: evidence this close does not tell two optima apart
TOLD = 0.01  # share of a score on rows left out: a smaller difference does not either


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
    path: list[Step] = dataclasses.field(default_factory=list)
    metric: np.ndarray | None = None  # a square root of the inverse curvature
    finished: bool = True  # not given up early, to be climbed on if it is the best


class Prior:
    """ln p(theta) of the priors a kernel carries, on the natural scale, and its gradient in the optimiser's vector."""

    def __init__(self, kernel, size: int):
        layout = Layout.of(kernel)
        self._program = jax.jit(jax.value_and_grad(lambda theta: log_prior(layout.placed(kernel, theta), kernel)))
        self._kernel_size, self._size = layout.size, size

    def __call__(self, theta):
        with double():
            value, gradient = self._program(np.asarray(theta[: self._kernel_size]))
        return float(value), np.concatenate([gradient, np.zeros(self._size - self._kernel_size)])


class Objective:
    """The negative of what is maximised, as SciPy wants it, in coordinates u with theta = origin + axes u.

    Axes may be fewer than parameters: then some of these move together, or not at all. Beyond ``box`` it is flat. Where
    the evidence has no value, it answers with a parabola rising from the best point so far, so that line searches step
    back.
    """

    def __init__(self, evidence, box, amplitude=None, prior=None, watch: Callable = lambda *_: None):
        self.evidence, self.box, self.amplitude, self.prior = evidence, box, amplitude, prior
        self.watch = watch
        self.evaluations = self.rejected = 0
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
            self.rejected += 1
            return None
        value, slope = answer.value, answer.gradient
        reached = inside
        if self.amplitude is not None:
            reached = np.where(self.amplitude, inside + math.log(answer.scale), inside)
        if self.prior is not None:
            log_density, prior_slope = self.prior(inside)
            if not math.isfinite(log_density):
                self.rejected += 1
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
    before it has been at ``least`` so many places. Where SciPy gives up before that, it begins anew from there.
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
        if left < LEFT or len(steps) >= max_iterations or gained < 0.5 * LEFT:
            break
        theta, metric = steps[-1].theta, None
    # At the edge of where there is a value, a best amplitude may step over it: then what was reached before stands.
    value = steps[-1].value if steps else path[-1].value if path and path[-1].rows == rows else -math.inf
    reached = steps[-1].theta if steps else theta
    return Optimum(value, reached, start, bool(left < LEFT), path=[*path, *steps], metric=metric)


def let_go(objective, optimum: Optimum, span) -> Optimum:
    """An irrelevant input is still on its way to an infinite lengthscale when climbing ends: let it go, at once."""
    found = objective.at(optimum.theta)
    if found is None or len(optimum.path) < 3 or not np.isfinite(objective.box[0]).all():
        return optimum
    travelled = np.where(np.count_nonzero(span, axis=0)[span.argmax(axis=1)] > 1, 0.0, 1.0)  # not what is tied
    travelled *= optimum.theta - optimum.path[-3].theta
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


@dataclasses.dataclass
class Learned:
    """What learning found: every optimum, the best first; every iteration; and how it went."""

    optima: list[Optimum]
    history: list[Step]
    evaluations: int
    rejected: int
    jitter: float
    interrupted: bool


def stages(n: int) -> list[int]:
    """Numbers of rows to climb on, one after the other: the first has at most 800, each later one four times as many.

    >>> stages(300), stages(2000), stages(20000)
    ([300], [500, 2000], [312, 1250, 5000, 20000])
    """
    sizes = [n]
    while sizes[0] > 800:
        sizes.insert(0, sizes[0] // 4)
    return sizes


def learn(
    problem: Callable, n: int, candidates: list[tuple[str, np.ndarray]], *, amplitude=None, prior=None,
    logarithmic=None, method: str = "lbfgs", n_restarts: int = 0, max_iterations: int = 200, rng=None,
    progress: Progress | None = None, what: str = "evidence", grown: Callable = lambda theta, ratio: theta,
    also: Sequence[tuple[str, np.ndarray]] = (), tolerance: float = 1.0, reach: float = REACH,
    ceiling: np.ndarray | float = np.inf, floor: np.ndarray | float = -np.inf, sizes: Sequence[int] | None = None,
    heats: bool = False, span=None, judge: Callable | None = None,
    loosened: Callable | None = None,
) -> Learned:  # fmt: skip
    """Maximise the evidence (and prior). ``problem(rows)`` gives the `Evidence` on some rows (None: all of them).

    It begins at the best of the candidates, (name, theta), at ``n_restarts`` places drawn around it, and at those in
    ``also``; with ``heats``, at all candidates, of which the best after a few iterations go on. The next stage has
    ``ratio`` times the rows (``sizes`` of all stages) and begins at ``grown(theta, ratio)``. ``what`` names the
    objective in the progress line; ``tolerance`` multiplies the gain that is not worth another step. Logarithms go
    ``reach`` far at most, and no theta above its ``ceiling`` or below its ``floor``. Parameters move along the columns
    of ``span`` (p, k). Optima whose values tie are ordered by ``judge(theta)``, the higher the better.
    ``loosened(theta)`` moves parameters off plateaus that few rows led to; None if none is on one.
    """
    if method not in METHODS:
        raise ParameterError(f"optimizer must be one of {', '.join(map(repr, METHODS))}; got {method!r}.")
    rng = np.random.default_rng(rng)
    progress = progress or Progress(shown=False)
    order = rng.permutation(n)
    centre = candidates[0][1]
    span = np.eye(len(centre)) if span is None else span
    logarithmic = np.ones(len(centre), bool) if logarithmic is None else logarithmic
    spread = np.where(logarithmic, reach, np.inf)
    floor = np.broadcast_to(np.asarray(floor, dtype=float), centre.shape)
    objectives: list[Objective] = []
    interrupted, jitter = False, 0.0
    best: list[Optimum] = []

    def watch(objective):
        value = objective.best[0]
        steps = sum(o.evaluations for o in objectives)
        progress(f"fitting {objective.evidence.n:,} of {n:,} rows, {what} {value:.2f}, evaluation {steps}")

    sizes = list(sizes or stages(n))
    reached: list[tuple[str, np.ndarray]] = candidates
    metrics: list[np.ndarray | None] = []
    counts: list[int] = []  # of climbs that came this way
    paths: list[list[Step]] = []
    objective = None
    try:
        for size in sizes:
            first, final = size == sizes[0], size == n
            rows = None if final else np.sort(order[:size])
            with problem(rows) as evidence:
                evidence.jitter = jitter
                lowest = np.min([theta for _, theta in reached], axis=0) - spread
                highest = np.minimum(np.max([theta for _, theta in reached], axis=0) + spread, ceiling)
                lowest = lowest if amplitude is not None else np.maximum(lowest, floor)
                objective = Objective(evidence, (lowest, highest), amplitude, prior, watch)
                objectives.append(objective)
                enough = (2e-2 if not final else 1e-3 if len(sizes) > 1 else 1e-4) * tolerance
                if first:
                    there = _with_values(objective, reached)
                    jitter, amplitude = evidence.jitter, objective.amplitude
                    if not there:
                        break
                    leader = max(there, key=lambda found: found[1])
                    reached = [(start, theta) for start, _, theta in (there if heats else [leader])]
                    for i in range(n_restarts):
                        away = np.where(logarithmic, rng.normal(0, 1.5, len(centre)), 0.0)
                        reached.append((f"restart {i + 1}", leader[2] + span @ (np.linalg.pinv(span) @ away)))
                    reached += also
                    metrics, counts, paths = [None] * len(reached), [1] * len(reached), [[] for _ in reached]
                queue = list(zip(reached, metrics, counts, paths, strict=True))
                queue = [item for item in queue if objective.at(item[0][1]) is not None]
                if len(queue) > 1 and heats and first:
                    keep = (RIVALS if size > FEW_ROWS else RIVALS_OF_FEW) + n_restarts
                    queue = _after_a_heat(objective, queue, method, span, enough, keep)
                found: list[Optimum] = []
                for (start, theta), metric, count, path in queue:
                    if heats and not first and found:
                        here = climb(objective, theta, start, method, span, metric, HEAT, enough, path)
                        if _hopeless(here, found):
                            continue
                        theta, path, metric = here.theta, here.path, here.metric
                    # Rivals of the first are climbed coarsely; who asks for restarts wants to see every optimum.
                    until = max(enough, COARSE * tolerance) if found and not n_restarts else enough
                    optimum = climb(objective, theta, start, method, span, metric, max_iterations, until, path)
                    found.append(dataclasses.replace(optimum, times_found=count, finished=until == enough))
                best = _distinct(found, span) or best
                if final:
                    rest, best = _judged(best, judge), []
                    while rest and (not best or rest[0].value > best[0].value + TIE):  # its floor may have lowered it
                        ahead = _finished(objective, rest.pop(0), floor, method, span, max_iterations, enough)
                        best = sorted([*best, ahead], key=lambda optimum: -optimum.value)
                    best += rest
                if not best:
                    break
                if not final:
                    if heats:
                        near = [o for o in best[:RIVALS] if o.value > best[0].value - BEHIND]
                        best = near + best[RIVALS : RIVALS + n_restarts]
                    ratio = sizes[sizes.index(size) + 1] / size
                    metrics = [curvature(objective, optimum.theta, span, ratio) for optimum in best]
                    reached = [(optimum.start, grown(optimum.theta, ratio)) for optimum in best]
                    counts = [optimum.times_found for optimum in best]
                    paths = [optimum.path for optimum in best]
                    other = None if loosened is None else loosened(reached[0][1])
                    if other is not None:
                        reached.append((f"{best[0].start}, loosened", other))
                        metrics, counts, paths = [*metrics, None], [*counts, 1], [*paths, []]
    except KeyboardInterrupt:
        if objective is None or objective.best is None:
            if not best:
                raise
        else:
            best = [Optimum(*objective.best, start="interrupted", converged=False), *best]
        interrupted = True
    finally:
        progress.close()
    evaluations, rejected = (sum(getattr(o, count) for o in objectives) for count in ("evaluations", "rejected"))
    history = next((optimum.path for optimum in best if optimum.path), [])
    return Learned(best, history, evaluations, rejected, jitter, interrupted)


def _with_values(objective, candidates):
    """Those (name, value, theta) that have one. If none has, jitter grows until one does."""
    evidence, relative = objective.evidence, 0.0
    while True:
        values = [objective.at(theta, gradient=len(candidates) == 1) for _, theta in candidates]  # one is climbed from
        there = [(name, v[0], v[2]) for (name, _), v in zip(candidates, values, strict=True) if v is not None]
        if there or relative >= 1e-5 or not np.isfinite(evidence.diagonal):
            return there
        relative = max(1e-14 * evidence.n, 100 * relative)
        evidence.jitter = relative * evidence.diagonal
        objective.amplitude = None  # jitter is not multiplied along with it


def _after_a_heat(objective, queue, method, span, enough, keep: int):
    """The best of some climbs after a few iterations, at most ``keep`` of them and none twice."""
    run: list[Optimum] = []
    for (start, theta), metric, count, path in queue:
        here = climb(objective, theta, start, method, span, metric, HEAT, enough, path)
        run.append(dataclasses.replace(here, times_found=count))
    chosen: list[Optimum] = []
    for here in sorted(run, key=lambda optimum: -optimum.value):
        same = [other for other in chosen if np.abs(other.theta - here.theta).max() < SAME]
        if same:
            same[0].times_found += here.times_found
        else:
            chosen.append(here)
    # Six steps tell too little of the curvature to take long ones by it: these lead onto plateaus.
    return [((o.start, o.theta), None, o.times_found, o.path) for o in chosen[:keep]]


def _hopeless(here: Optimum, found: list[Optimum]) -> bool:
    """Whether a climb is behind the best by more than it is likely to gain."""
    behind = max(optimum.value for optimum in found) - here.value
    lately = here.value - here.path[-3].value if len(here.path) > 2 else 0.0
    return behind > max(BEHIND, RISE * lately)


def _finished(objective, optimum: Optimum, floor, method, span, max_iterations, enough) -> Optimum:
    """A climb led to its end, if it was a coarse one; irrelevant inputs let go, noise not below its floor."""
    if not optimum.finished:
        least = span.shape[1] + 2  # steps that tell the curvature in every direction
        on = climb(
            objective, optimum.theta, optimum.start, method, span, None, max_iterations, enough, optimum.path, least
        )
        optimum = dataclasses.replace(on, times_found=optimum.times_found)
    optimum = let_go(objective, optimum, span)
    if objective.amplitude is not None and (optimum.theta < floor).any():
        optimum = _held_up(objective, optimum, floor, method, span, max_iterations, enough)
    return optimum


def _held_up(objective, optimum: Optimum, floor, method, span, max_iterations, enough) -> Optimum:
    """The best place not below the floor, from an optimum that is: a common amplitude had moved it there."""
    alone = Objective(
        objective.evidence, (np.maximum(objective.box[0], floor), objective.box[1]), None, objective.prior,
        objective.watch,
    )  # fmt: skip
    theta = np.maximum(optimum.theta, floor)
    if alone.at(theta) is None:
        return optimum
    found = climb(alone, theta, optimum.start, method, span, None, max_iterations, enough, optimum.path)
    objective.evaluations += alone.evaluations
    return dataclasses.replace(found, times_found=optimum.times_found)


def _judged(found: list[Optimum], judge) -> list[Optimum]:
    """Best first. The evidence does not tell those within `TIE` of the best apart: they are ordered by ``judge``, if it
    tells another from the best."""
    tied = [optimum for optimum in found if optimum.value > found[0].value - TIE]  # none of none
    if judge is None or len(tied) < 2:
        return found
    scores = {id(optimum): judge(optimum.theta) for optimum in tied}
    told = max(scores.values()) - scores[id(tied[0])] > TOLD * abs(scores[id(tied[0])])
    return sorted(tied, key=lambda optimum: -scores[id(optimum)]) + found[len(tied) :] if told else found


def _distinct(found: list[Optimum], span) -> list[Optimum]:
    """Best first, those that are one counted once: of equal height, for they differ in directions that the evidence
    does not feel, or so close to a higher one that its curvature explains the difference."""
    kept: list[Optimum] = []
    for optimum in sorted((o for o in found if o.value > -math.inf), key=lambda o: -o.value):
        same = [
            other for other in kept if other.value - optimum.value < 0.02 or _depth(other, optimum.theta, span) < TIE
        ]
        if same:
            same[0].times_found += optimum.times_found
        else:
            kept.append(optimum)
    return kept


def _depth(optimum: Optimum, theta, span) -> float:
    """How far below the optimum the evidence is at theta, were it quadratic; infinite if its curvature is not known."""
    if optimum.metric is None:
        return math.inf
    away = np.linalg.lstsq(span, theta - optimum.theta, rcond=None)[0]
    steps = np.linalg.lstsq(optimum.metric, away, rcond=None)[0]
    return 0.5 * float(steps @ steps)
