"""Maximisation of an objective: several climbs, on few rows first, and the best of the optima found.

Three things save evaluations on all n rows. A common amplitude is not searched for: it has a closed form (profiled
evidence). Most of the search is on a random subset of the rows, where an evaluation costs little: there starts are
screened by a few iterations each, and the best are continued. And the curvature on the subset, times the ratio of rows,
scales the first steps of the next stage.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.random import generator
from mercer.learning.climb import (
    CONVERGED_GAIN,
    METHODS,
    ClimbStart,
    ObjectiveSurface,
    Optimum,
    Step,
    climb,
    newton_metric,
    release,
)
from mercer.learning.objective import Criterion, Objective, Start
from mercer.learning.progress import Progress
from mercer.learning.state import Journal, State, rows_name
from mercer.linalg.jitter import LEARNING

SCREENING_ITERATIONS = 6  # after which starts are compared
SCREENED_CLIMBS, MANY_SCREENED_CLIMBS = 3, 5  # climbs continued after screening; more where they cost little
MAX_CHEAP_ROWS, MAX_CHEAP_PARAMETERS = 200, 4  # up to which they cost little
CONTINUED_OPTIMA = 2  # of a subset, climbed on more rows
RESTART_DEVIATION = 1.5  # of logarithms, around the best start
# Nats that a climb may leave: on a subset of the rows, on all rows after a subset, on all rows from the beginning.
MIN_GAIN_ON_SUBSET, MIN_GAIN_AT_LAST, MIN_GAIN_AT_ONCE = 2e-2, 1e-3, 1e-4
COARSE_GAIN = 0.05  # nats that the climbs behind the best one may leave
CLOSE_NATS = 0.2  # a coarse climb that ended this close to the best may lead above it
MAX_LAG_NATS = 4.0  # optima of a subset further behind the best are dropped
LAG_GAIN_RATIO = 10.0  # times the gain of its last two steps: a climb further behind the best is given up
TIE_NATS = 0.5  # values this close do not rank two optima
TIE_SCORE_MARGIN = 0.01  # share of a tie score: a smaller difference does not either
SAME_VALUE_NATS = 0.02  # optima this close in value are counted as one
MAX_SAME_OPTIMUM_DISTANCE = 0.02  # parameters this close are one place
MAX_DEPTH_RATIO = 4.0  # of the fall a quadratic predicts to the true one: beyond it a point belongs to another optimum


class OutOfTime(KeyboardInterrupt):
    """The time for a search is over: it ends as after Ctrl-C, with the best parameters found so far."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a search: optimiser, number of climbs from random places, iterations of each climb at most, and
    whether to show a progress line; or the line to show it on. ``until``: time (`time.monotonic`) after which only the
    evaluation in progress is finished."""

    method: str = "lbfgs"
    n_restarts: int = 0
    max_iterations: int = 200
    progress: bool | Progress = False
    until: float = math.inf

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.until

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ParameterError(f"optimizer must be one of {', '.join(map(repr, METHODS))}; got {self.method!r}.")


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """Result of learning: optima, the best first; iterations; evaluations made; jitter of the covariance; whether it
    was interrupted; what `Objective.outcome` kept; and the state from which another search can go on."""

    optima: list[Optimum]
    history: Sequence[Step]
    evaluations: int
    jitter: float = 0.0
    interrupted: bool = False
    outcome: object = None
    state: State | None = None

    @property
    def theta(self) -> np.ndarray:
        """The best parameters."""
        return self.optima[0].theta

    def mapped(
        self, theta: Callable[[np.ndarray], np.ndarray], value: Callable[[float, np.ndarray], float]
    ) -> "Learned":
        """With other coordinates, and values from a value and its (former) theta."""
        return dataclasses.replace(
            self,
            optima=[dataclasses.replace(o, value=value(o.value, o.theta), theta=theta(o.theta)) for o in self.optima],
            history=[s._replace(value=value(s.value, s.theta), theta=theta(s.theta)) for s in self.history],
        )


def learn(
    objective: Objective, settings: Settings, rng: np.random.Generator | None = None, journal: Journal | None = None
) -> Learned:
    """Maximise an objective. Ctrl-C ends it with the best parameters found so far, if there are any.

    ``rng`` draws the rows of each stage and the restarts. No optima: the objective has no value at any start, nor with
    the largest jitter.

    ``journal`` keeps the evaluations. ``Journal(earlier.state)`` goes on from an earlier result of the same objective,
    settings and ``rng``, interrupted or not.
    """
    return _Search(objective, settings, generator(None) if rng is None else rng, journal or Journal()).run()


class _Search:
    """One call of `learn`."""

    def __init__(self, objective: Objective, settings: Settings, rng: np.random.Generator, journal: Journal) -> None:
        self.objective, self.settings, self.rng, self.journal = objective, settings, rng, journal
        self.order = rng.permutation(objective.n)
        self.progress = Progress.of(settings.progress)
        self.directions, self.logarithmic = objective.directions(), objective.logarithmic()
        self.floor, self.ceiling = objective.floor(), objective.ceiling()
        self.profiled, self.prior = objective.profiled(), objective.prior()
        self.stages = objective.stages()
        self.jitter = 0.0
        self.surfaces: list[ObjectiveSurface] = []
        self.best: list[Optimum] = []

    def run(self) -> Learned:
        interrupted = False
        try:
            self._all_stages()
        except KeyboardInterrupt:
            self.best = self._best_so_far()
            if not self.best:
                raise
            interrupted = True
        finally:
            self.progress.close()
            self.journal.flush()
        history = next((optimum.path for optimum in self.best if optimum.path), [])
        outcome = self.objective.outcome(self.surfaces[-1].criterion)
        state = self.journal.state()
        return Learned(self.best, history, self._evaluations(), self.jitter, interrupted, outcome, state)

    def _all_stages(self) -> None:
        starts = self.objective.starts()
        candidates = [ClimbStart(*start) for start in starts]
        for stage, size in enumerate(self.stages):
            rows = None if size == self.objective.n else np.sort(self.order[:size])
            with self.objective.criterion(rows) as criterion:
                surface = self._surface(criterion, rows, [candidate.theta for candidate in candidates])
                if not stage:
                    candidates = self._first(surface, starts)
                found = self._climbs(surface, candidates, stage)
                self.best = _distinct(found) or self.best
                last = stage == len(self.stages) - 1
                if last:
                    self.best = self._finished(surface)
                if not self.best:
                    return
                if not last:
                    candidates = self._next(surface, self.stages[stage + 1])
                self.journal.flush()

    def _best_so_far(self) -> list[Optimum]:
        """After an interruption. Optima of earlier stages are about fewer rows, but their steps led here."""
        now = self.surfaces[-1].best if self.surfaces else None
        if now is None:
            return self.best
        path = self.best[0].path if self.best else []
        return [Optimum(now.value, now.theta, "interrupted", converged=False, path=path)]

    def _evaluations(self) -> int:
        return sum(surface.evaluations for surface in self.surfaces)

    def _watch(self, surface: ObjectiveSurface) -> None:
        if surface.best is not None and self.settings.out_of_time:
            raise OutOfTime
        value = -math.inf if surface.best is None else surface.best.value
        self.progress(
            lambda: (
                f"fitting {surface.criterion.n:,} of {self.objective.n:,} rows, {self.objective.label} {value:.2f}, "
                f"evaluation {self._evaluations()}"
            )
        )

    def _surface(self, criterion: Criterion, rows: np.ndarray | None, thetas: list[np.ndarray]) -> ObjectiveSurface:
        criterion.jitter = self.jitter
        reach = np.where(self.logarithmic, self.objective.max_log_change, np.inf)
        lowest, highest = np.min(thetas, axis=0) - reach, np.minimum(np.max(thetas, axis=0) + reach, self.ceiling)
        if self.profiled is None:  # a common amplitude moves after the bounds: the floor is applied at the end
            lowest = np.maximum(lowest, self.floor)
        log = self.journal.log(f"{criterion.size} parameters, {rows_name(criterion.n, rows)}")
        surface = ObjectiveSurface(criterion, (lowest, highest), self.profiled, self.prior, self._watch, log)
        self.surfaces.append(surface)
        return surface

    def _min_gain(self, stage: int) -> float:
        """Nats that a climb of this stage may leave."""
        if stage < len(self.stages) - 1:
            return MIN_GAIN_ON_SUBSET * self.objective.tolerance
        gain = (MIN_GAIN_AT_LAST if stage else MIN_GAIN_AT_ONCE) * self.objective.tolerance
        return min(gain, CONVERGED_GAIN)

    # -- the first stage -----------------------------------------------------------------------------------------------

    def _first(self, surface: ObjectiveSurface, starts: Sequence[Start]) -> list[ClimbStart]:
        """The starts that have a value, or the best of them, restarts around that, and what is started from anyway."""
        screens, n_restarts = self.objective.screens_starts, self.settings.n_restarts
        valued = self._valued(surface, starts, gradient=screens or len(starts) == 1)
        self.jitter, self.profiled = surface.criterion.jitter, surface.profiled
        if not valued:
            return []
        _, leader = max(valued, key=lambda pair: pair[0])
        chosen = [start for _, start in valued] if screens else [leader]
        for i in range(n_restarts):
            away = np.where(self.logarithmic, self.rng.normal(0, RESTART_DEVIATION, self.objective.size), 0.0)
            along = self.directions @ (np.linalg.pinv(self.directions) @ away)
            chosen.append(Start(f"restart {i + 1}", leader.theta + along))
        return [ClimbStart(*start) for start in (*chosen, *self.objective.more_starts())]

    def _valued(self, surface: ObjectiveSurface, starts: Sequence[Start], gradient: bool) -> list[tuple[float, Start]]:
        """Starts that have a value, at their best amplitude, with that value. If none has, jitter grows until one
        does."""
        criterion = surface.criterion
        for relative in (0.0, *LEARNING(criterion.n)):
            if relative:
                if not np.isfinite(criterion.diagonal):
                    break
                criterion.jitter = relative * criterion.diagonal
                surface.profiled = None  # jitter does not scale with the amplitude
            points = [(start.name, surface.at(start.theta, gradient)) for start in starts]
            valued = [(point.value, Start(name, point.theta)) for name, point in points if point is not None]
            if valued:
                return valued
        return []

    # -- every stage ---------------------------------------------------------------------------------------------------

    def _climbs(self, surface: ObjectiveSurface, candidates: list[ClimbStart], stage: int) -> list[Optimum]:
        """Optima reached from the candidates, in their order."""
        screens, n_restarts, min_gain = self.objective.screens_starts, self.settings.n_restarts, self._min_gain(stage)
        candidates = [candidate for candidate in candidates if surface.at(candidate.theta) is not None]
        if len(candidates) > 1 and screens and not stage:
            cheap = surface.criterion.n <= MAX_CHEAP_ROWS or self.directions.shape[1] <= MAX_CHEAP_PARAMETERS
            keep = (MANY_SCREENED_CLIMBS if cheap else SCREENED_CLIMBS) + n_restarts
            candidates = self._screened(surface, candidates, min_gain, keep)
        found: list[Optimum] = []
        for candidate in candidates:
            if screens and stage and found:
                here = self._climb(surface, candidate, min_gain, SCREENING_ITERATIONS)
                goal = _on_the_way_to(here, found, self.directions)
                if goal is not None:
                    found[goal] = found[goal].found_again(here.times_found)
                if goal is not None or _too_far_behind(here, found):
                    continue
                candidate = _candidate(here)
            # Behind the first, climbs are coarse; with n_restarts, every optimum is climbed to its end.
            coarse = max(min_gain, COARSE_GAIN * self.objective.tolerance)
            until = coarse if found and not n_restarts else min_gain
            optimum = self._climb(surface, candidate, until)
            found.append(dataclasses.replace(optimum, coarse=until > min_gain))
        return found

    def _climb(
        self,
        surface: ObjectiveSurface,
        candidate: ClimbStart,
        min_gain: float,
        max_iterations: int | None = None,
        min_points: int = 2,
    ) -> Optimum:
        max_iterations = self.settings.max_iterations if max_iterations is None else max_iterations
        method = self.settings.method
        return climb(surface, candidate, self.directions, max_iterations, min_gain, method, min_points)

    def _screened(
        self, surface: ObjectiveSurface, candidates: Iterable[ClimbStart], min_gain: float, keep: int
    ) -> list[ClimbStart]:
        """The best candidates after a few iterations, at most ``keep`` of them and none twice."""
        tried = [self._climb(surface, candidate, min_gain, SCREENING_ITERATIONS) for candidate in candidates]
        chosen: list[Optimum] = []
        for here in sorted(tried, key=lambda optimum: -optimum.value):
            same = [
                i
                for i, other in enumerate(chosen)
                if np.abs(other.theta - here.theta).max() < MAX_SAME_OPTIMUM_DISTANCE
            ]
            if same:
                chosen[same[0]] = chosen[same[0]].found_again(here.times_found)
            else:
                chosen.append(here)
        # A few steps estimate the curvature too poorly for long steps, which lead onto plateaus.
        return [_candidate(optimum)._replace(metric=None) for optimum in chosen[:keep]]

    def _next(self, surface: ObjectiveSurface, rows: int) -> list[ClimbStart]:
        """Candidates of the next stage, from the optima of this one."""
        ratio = rows / surface.criterion.n
        metric = newton_metric(surface, self.best[0].theta, self.directions, ratio)
        if self.objective.screens_starts:
            first, *others = self.best
            if metric is not None:
                first = dataclasses.replace(first, metric=metric * math.sqrt(ratio))
            self.best = _merged([first, *others], self.directions)
            near = [o for o in self.best[:CONTINUED_OPTIMA] if o.value > self.best[0].value - MAX_LAG_NATS]
            self.best = near + self.best[CONTINUED_OPTIMA : CONTINUED_OPTIMA + self.settings.n_restarts]
        metrics = [metric, *(None if o.metric is None else o.metric / math.sqrt(ratio) for o in self.best[1:])]
        candidates = [
            _candidate(o)._replace(theta=self.objective.for_more_rows(o.theta, ratio), metric=metric)
            for o, metric in zip(self.best, metrics, strict=True)
        ]
        freed = self.objective.off_plateau(candidates[0].theta)
        late = self.objective.late_start(rows)
        if freed is not None:
            candidates.append(ClimbStart(f"{candidates[0].start}, off its plateau", freed))
        return candidates if late is None else [*candidates, ClimbStart(*late)]

    # -- the last stage ------------------------------------------------------------------------------------------------

    def _finished(self, surface: ObjectiveSurface) -> list[Optimum]:
        """Optima on all rows, the best first and climbed to its end."""
        if not self.best:
            return []
        finish = functools.partial(self._finish, surface)
        within = CLOSE_NATS if len(self.stages) == 1 else 0.0  # where evaluations are cheap, all that may be the best
        ends = [finish(o) if o.value >= self.best[0].value - within else o for o in self.best]
        rest = _ties_ordered(_distinct(ends), self.objective.tie_score)
        done: list[Optimum] = []
        while rest and (not done or rest[0].value > done[0].value + TIE_NATS):  # the floor may have lowered the first
            done = sorted([*done, finish(rest.pop(0))], key=lambda optimum: -optimum.value)
        return _merged(done + rest, self.directions)

    def _finish(self, surface: ObjectiveSurface, optimum: Optimum) -> Optimum:
        """A coarse climb continued to its end; parameters that run off released; none below its floor."""
        min_gain = self._min_gain(len(self.stages) - 1)
        if optimum.coarse:
            min_points = self.directions.shape[1] + 2  # steps that measure the curvature in every direction
            candidate = _candidate(optimum)._replace(metric=None)
            optimum = self._climb(surface, candidate, min_gain, min_points=min_points)
        optimum = release(surface, optimum, self.directions)
        if surface.profiled is not None and (optimum.theta < self.floor).any():
            optimum = self._above_floor(surface, optimum, min_gain)
        return optimum

    def _above_floor(self, surface: ObjectiveSurface, optimum: Optimum, min_gain: float) -> Optimum:
        """The optimum above the floor, from one below it, where the common amplitude had moved it."""
        box = np.maximum(surface.box[0], self.floor), surface.box[1]
        bounded = ObjectiveSurface(surface.criterion, box, None, self.prior, self._watch, surface.log)
        theta = np.maximum(optimum.theta, self.floor)
        if bounded.at(theta) is None:
            return optimum
        found = self._climb(bounded, _candidate(optimum)._replace(theta=theta, metric=None), min_gain)
        surface.evaluations += bounded.evaluations
        return found


def _candidate(optimum: Optimum) -> ClimbStart:
    """To climb on from an optimum."""
    return ClimbStart(optimum.start, optimum.theta, optimum.times_found, optimum.path, optimum.metric)


def _too_far_behind(here: Optimum, found: list[Optimum]) -> bool:
    """Whether a climb is behind the best by more than it is likely to gain."""
    lag = max(optimum.value for optimum in found) - here.value
    gained = here.value - here.two_steps_before().value if here.path else 0.0
    return lag > max(MAX_LAG_NATS, LAG_GAIN_RATIO * gained)


def _ties_ordered(found: list[Optimum], score: Callable[[np.ndarray], float | None]) -> list[Optimum]:
    """Best first; those within `TIE_NATS` of the best by ``score``, if it prefers another."""
    tied = [optimum for optimum in found if optimum.value > found[0].value - TIE_NATS]
    if len(tied) < 2:
        return found
    scores = [score(optimum.theta) for optimum in tied]
    known_scores = [value for value in scores if value is not None]
    if len(known_scores) < len(tied) or not max(known_scores) - known_scores[0] > TIE_SCORE_MARGIN * abs(
        known_scores[0]
    ):
        return found
    order = sorted(range(len(tied)), key=lambda i: -known_scores[i])
    return [tied[i] for i in order] + found[len(tied) :]


def _distinct(found: list[Optimum]) -> list[Optimum]:
    """Best first; those of equal value counted once: they differ in directions that make no difference."""
    kept: list[Optimum] = []
    for optimum in sorted((o for o in found if o.value > -math.inf), key=lambda o: -o.value):
        if kept and kept[-1].value - optimum.value < SAME_VALUE_NATS:
            kept[-1] = kept[-1].found_again(optimum.times_found)
        else:
            kept.append(optimum)
    return kept


def _merged(found: list[Optimum], directions: np.ndarray) -> list[Optimum]:
    """In their order; a coarse climb counted with the optimum that it was on the way to."""
    kept: list[Optimum] = []
    for optimum in found:
        goal = _on_the_way_to(optimum, kept, directions) if optimum.coarse else None
        if goal is None:
            kept.append(optimum)
        else:
            kept[goal] = kept[goal].found_again(optimum.times_found)
    return kept


def _on_the_way_to(here: Optimum, found: list[Optimum], directions: np.ndarray) -> int | None:
    """Index of the optimum that a climb is on the way to: its curvature explains how far below it the climb is."""
    for i, other in enumerate(found):
        below = other.value - here.value
        if below >= 0 and _predicted_fall(other, here.theta, directions) < max(TIE_NATS, MAX_DEPTH_RATIO * below):
            return i
    return None


def _predicted_fall(optimum: Optimum, theta: np.ndarray, directions: np.ndarray) -> float:
    """How far the value falls from the optimum to theta, if quadratic; infinite if its curvature is not known."""
    if optimum.metric is None:
        return math.inf
    away = np.linalg.lstsq(directions, theta - optimum.theta, rcond=None)[0]
    steps = np.linalg.lstsq(optimum.metric, away, rcond=None)[0]
    return 0.5 * float(steps @ steps)
