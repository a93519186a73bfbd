"""Maximising the evidence: several climbs, on few rows first, and the best optimum of those found.

Fewer evaluations on all n rows come from three things. A common amplitude is never searched for: it has a closed form
(`Evidence`, profiled). Most of the climb is on a random subset of the rows, where an evaluation costs little: several
starts are compared there after a few iterations (a heat), and the best go on. And the curvature there, times the ratio
of rows, tells the next stage how to step.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from mercer.core.coordinates import Layout, log_prior
from mercer.core.errors import ParameterError
from mercer.core.precision import double
from mercer.learning.climb import LEFT, METHODS, Objective, Optimum, Step, climb, curvature, let_go
from mercer.learning.progress import Progress
from mercer.linalg.cholesky import LARGEST_JITTER, jitters

REACH = 14.0  # how far a logarithm may move from where it began: a factor of a million either way
HEAT = 6  # iterations after which starts are compared
RIVALS = 2  # optima of a subset that are climbed on more rows
AHEAD, MANY_AHEAD = 3, 5  # climbs that go on after a heat; more where evaluations are cheap, or climbs short
FEW_ROWS, FEW_PARAMETERS = 200, 4
RISE = 10.0  # times what its last two steps gained: a climb further behind the best is given up
COARSE = 0.05  # nats: rivals are compared where less is left to gain
CLOSE = 0.2  # nats: a coarse climb that ended this close to the best may lead above it
SAME = 0.02  # logarithms closer than this are one place
BEHIND = 4.0  # nats on the subset: optima further behind the best are dropped
CURVED = 4.0  # ratio of the quadratic's fall to the true one, above which a point belongs to another optimum
TIE = 0.5  # nats: evidence this close does not tell two optima apart
TOLD = 0.01  # share of a score on rows left out: a smaller difference does not either


class Prior:
    """ln p(theta) of the priors a kernel carries, on the natural scale, and its gradient in the optimiser's vector."""

    def __init__(self, kernel):
        layout = Layout.of(kernel)
        self._program = jax.jit(jax.value_and_grad(lambda theta: log_prior(layout.placed(kernel, theta), kernel)))

    def __call__(self, theta) -> tuple[float, np.ndarray]:
        with double():
            value, gradient = self._program(np.asarray(theta))
        return float(value), np.asarray(gradient)


@dataclasses.dataclass
class Learned:
    """What learning found: every optimum, the best first; every iteration; and how it went."""

    optima: list[Optimum]
    history: list[Step]
    evaluations: int
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
    heats: bool = False, span=None, judge: Callable | None = None, loosened: Callable | None = None,
    later: Mapping[int, tuple[str, np.ndarray]] | None = None,
) -> Learned:  # fmt: skip
    """Maximise the evidence (and prior). ``problem(rows)`` gives the `Evidence` on some rows (None: all of them).

    It begins at the best of the candidates, (name, theta), at ``n_restarts`` places drawn around it, and at those in
    ``also``; with ``heats``, at all candidates, of which the best after a few iterations go on. The next stage has
    ``ratio`` times the rows (``sizes`` of all stages) and begins at ``grown(theta, ratio)``. ``what`` names the
    objective in the progress line; ``tolerance`` multiplies the gain that is not worth another step. Logarithms go
    ``reach`` far at most, and no theta above its ``ceiling`` or below its ``floor``. Parameters move along the columns
    of ``span`` (p, k). Optima whose values tie are ordered by ``judge(theta)``, the higher the better.
    ``loosened(theta)`` moves parameters off plateaus that few rows led to; None if none is on one. ``later`` has a
    start for stages with so many rows.
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
                enough = min(enough, LEFT) if final else enough
                if first:
                    there = _with_values(objective, reached, gradient=heats or len(reached) == 1)
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
                    few = size <= FEW_ROWS or span.shape[1] <= FEW_PARAMETERS
                    keep = (MANY_AHEAD if few else AHEAD) + n_restarts
                    queue = _after_a_heat(objective, queue, method, span, enough, keep)
                found: list[Optimum] = []
                for (start, theta), metric, count, path in queue:
                    if heats and not first and found:
                        here = climb(objective, theta, start, method, span, metric, HEAT, enough, path)
                        towards = _towards(here, found, span)
                        if towards is not None:
                            towards.times_found += count
                        if towards is not None or _hopeless(here, found):
                            continue
                        theta, path, metric = here.theta, here.path, here.metric
                    # Rivals of the first are climbed coarsely; who asks for restarts wants to see every optimum.
                    until = max(enough, COARSE * tolerance) if found and not n_restarts else enough
                    optimum = climb(objective, theta, start, method, span, metric, max_iterations, until, path)
                    found.append(dataclasses.replace(optimum, times_found=count, coarse=until > enough))
                best = _distinct(found) or best
                if final:
                    finish = functools.partial(
                        _finished, objective, floor=floor, method=method, span=span, max_iterations=max_iterations,
                        enough=enough,
                    )  # fmt: skip
                    within = CLOSE if len(sizes) == 1 else 0.0  # where evaluations are cheap, all that may be the best
                    ends = [finish(o) if o.value >= best[0].value - within else o for o in best]
                    rest, best = _judged(_distinct(ends), judge), []
                    while rest and (not best or rest[0].value > best[0].value + TIE):  # its floor may have lowered it
                        best = sorted([*best, finish(rest.pop(0))], key=lambda optimum: -optimum.value)
                    best = _merged(best + rest, span)
                if not best:
                    break
                if not final:
                    ratio = sizes[sizes.index(size) + 1] / size
                    metric = curvature(objective, best[0].theta, span, ratio)
                    if heats:
                        if metric is not None:
                            best[0].metric = metric * math.sqrt(ratio)
                        best = _merged(best, span)
                        near = [o for o in best[:RIVALS] if o.value > best[0].value - BEHIND]
                        best = near + best[RIVALS : RIVALS + n_restarts]
                    metrics = [metric, *(None if o.metric is None else o.metric / math.sqrt(ratio) for o in best[1:])]
                    reached = [(optimum.start, grown(optimum.theta, ratio)) for optimum in best]
                    counts = [optimum.times_found for optimum in best]
                    paths = [optimum.path for optimum in best]
                    other = None if loosened is None else loosened(reached[0][1])
                    entering = (later or {}).get(sizes[sizes.index(size) + 1])
                    if other is not None:
                        reached.append((f"{best[0].start}, loosened", other))
                    if entering is not None:
                        reached.append(entering)
                    for _ in reached[len(metrics) :]:
                        metrics, counts, paths = [*metrics, None], [*counts, 1], [*paths, []]
    except KeyboardInterrupt:
        if objective is None or objective.best is None:
            if not best:
                raise
        else:
            path = best[0].path if best else []  # the optima of earlier stages are of fewer rows; their steps led here
            best = [Optimum(*objective.best, start="interrupted", converged=False, path=path)]
        interrupted = True
    finally:
        progress.close()
    evaluations = sum(o.evaluations for o in objectives)
    history = next((optimum.path for optimum in best if optimum.path), [])
    return Learned(best, history, evaluations, jitter, interrupted)


def _with_values(objective, candidates, gradient: bool):
    """Those (name, value, theta) that have one. If none has, jitter grows until one does. With ``gradient``, where all
    of them are climbed from."""
    evidence = objective.evidence
    for relative in (0.0, *jitters(evidence.n, last=10 * LARGEST_JITTER)):
        if relative:
            if not np.isfinite(evidence.diagonal):
                break
            evidence.jitter = relative * evidence.diagonal
            objective.amplitude = None  # jitter is not multiplied along with it
        values = [objective.at(theta, gradient) for _, theta in candidates]
        there = [(name, v[0], v[2]) for (name, _), v in zip(candidates, values, strict=True) if v is not None]
        if there:
            return there
    return []


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
    gained = here.value - here.lately().value if here.path else 0.0
    return behind > max(BEHIND, RISE * gained)


def _finished(objective, optimum: Optimum, floor, method, span, max_iterations, enough) -> Optimum:
    """A climb led to its end, if it was a coarse one; irrelevant inputs let go, noise not below its floor."""
    if optimum.coarse:
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
    tied = [optimum for optimum in found if optimum.value > found[0].value - TIE]
    if judge is None or len(tied) < 2:
        return found
    scores = {id(optimum): judge(optimum.theta) for optimum in tied}
    told = max(scores.values()) - scores[id(tied[0])] > TOLD * abs(scores[id(tied[0])])
    return sorted(tied, key=lambda optimum: -scores[id(optimum)]) + found[len(tied) :] if told else found


def _distinct(found: list[Optimum]) -> list[Optimum]:
    """Best first, those of equal height counted once: they differ in directions the evidence does not feel."""
    kept: list[Optimum] = []
    for optimum in sorted((o for o in found if o.value > -math.inf), key=lambda o: -o.value):
        if kept and kept[-1].value - optimum.value < 0.02:
            kept[-1].times_found += optimum.times_found
        else:
            kept.append(optimum)
    return kept


def _merged(found: list[Optimum], span) -> list[Optimum]:
    """In their order, coarse climbs counted with the optimum that they were on their way to: its curvature explains how
    far below it they ended."""
    kept: list[Optimum] = []
    for optimum in found:
        towards = _towards(optimum, kept, span) if optimum.coarse else None
        if towards is None:
            kept.append(optimum)
        else:
            towards.times_found += optimum.times_found
    return kept


def _towards(here: Optimum, found: list[Optimum], span) -> Optimum | None:
    """The optimum that a climb is on its way to, if its curvature explains how far below it the climb is."""
    for other in found:
        below = other.value - here.value
        if below >= 0 and _depth(other, here.theta, span) < max(TIE, CURVED * below):
            return other
    return None


def _depth(optimum: Optimum, theta, span) -> float:
    """How far below the optimum the evidence is at theta, were it quadratic; infinite if its curvature is not known."""
    if optimum.metric is None:
        return math.inf
    away = np.linalg.lstsq(span, theta - optimum.theta, rcond=None)[0]
    steps = np.linalg.lstsq(optimum.metric, away, rcond=None)[0]
    return 0.5 * float(steps @ steps)
