"""Greedy search over sums of products of kernels (Duvenaud et al., 2013), by the evidence less ln(n) / 2 per parameter.

It begins with the best single term. In every round each term that could be added, and each factor by which a term
could be multiplied, is learned for a few steps from the parameters found so far; the best are learned further, and the
best of them is kept if it is better. In the end terms without which the score is no lower are dropped, and smooth ones
made straight.
"""

import json
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mercer import priors
from mercer.core import calendar
from mercer.core.coordinates import to_free
from mercer.core.errors import FileError, ParameterError
from mercer.core.inputs import Inputs, as_frame, as_matrix
from mercer.kernels import RBF, Exponential, Line, Matern, Periodic, Seasonal, Step
from mercer.kernels.algebra import Scale, Sum, terms_of
from mercer.kernels.base import Kernel
from mercer.learning.candidates import Evaluated, QuantityProblem
from mercer.learning.checkpoint import digest
from mercer.learning.choice import History, Tried
from mercer.learning.columns import Columns
from mercer.learning.components import Axis, factors_of, residual
from mercer.learning.objective import Start
from mercer.learning.optimise import Settings
from mercer.learning.regression import RegressionObjective
from mercer.learning.seasons import candidates_of, more_periods, period_shown, periods_of, season

SCREENING_ITERATIONS, POLISHING_ITERATIONS = 12, 80
POLISHED_CANDIDATES = 3  # of a round, that are learned further
MIN_GAIN = 1.0  # nats of the penalised evidence that a round has to bring; of the score by leaving out, a thousandth
MIN_GAIN_SHARE = 1e-3
MAX_ROUNDS = 8
MAX_ADDITIVE = 10  # columns up to which a function of each is a start
MAX_INTERACTIONS = 6  # columns up to which every pair is tried
# Deviations of logarithms of lengthscales around a third of the range, and of the origin of a line, in ranges. Without
# them parameters run away together to limits that are other kernels: a season with a huge lengthscale is a parabola.
LENGTH_DEVIATION, ORIGIN_DEVIATION = 1.5, 1.0
DEFAULT_NOISE_VARIANCE = 0.1  # share of the target's, where nothing is known yet
FORMAT = "mercer-search-1"


class SearchOutcome(NamedTuple):
    """What a search found: all that was tried, the best of it, whether time was up or it was interrupted, and the
    number of evaluations."""

    history: History
    best: Tried
    out_of_time: bool
    interrupted: bool
    evaluations: int


# -- columns -------------------------------------------------------------------------------------------------------


def axes_of(X: Inputs, y: np.ndarray, raw: Inputs, columns: Columns | None) -> list[Axis]:
    """Columns that vary. Only the column of a series, and dates, may have seasons."""
    values, frame = as_matrix(X), as_frame(X)
    names = [f"x{i}" for i in range(values.shape[1])] if frame is None else list(map(str, frame.columns))
    dates = set() if columns is None else set(columns.names("date"))
    alone, found = values.shape[1] == 1, []
    for i, (name, column) in enumerate(zip(names, values.T, strict=True)):
        distinct = np.unique(column)
        if len(distinct) < 2:
            continue
        dated = name in dates or (frame is None and alone and calendar.holds_dates(raw))
        step = float(np.median(np.diff(distinct)))
        periods: list[Any] = []
        if dated or (alone and len(distinct) > 4):
            order = np.argsort(column, kind="stable")
            t, values = column[order], y[order]
            periods = periods_of("auto", t, values, step, dated) if dated else candidates_of(t, values, step)
        selector = None if alone else name if frame is not None else i
        shown = "x" if alone and frame is None else name
        low, span = float(distinct[0]), float(distinct[-1] - distinct[0])
        found.append(Axis(selector, shown, low, span, step, dated, tuple(periods)))
    return found


def _on(kernel: Kernel, axis: Axis) -> Kernel:
    return kernel if axis.column is None else kernel.on(axis.column)


def _smooth(axis: Axis, share: float) -> Kernel:
    return _on(_with_length(RBF(share * axis.span), axis), axis)


def _rough(axis: Axis, size: float) -> Kernel:
    return _on(_with_length(Exponential(size), axis), axis)


def _with_length(kernel: Any, axis: Axis) -> Any:
    return kernel.with_priors(lengthscale=priors.LogNormal(math.log(axis.span / 3), LENGTH_DEVIATION))


# -- moves ---------------------------------------------------------------------------------------------------------


class SumCandidate(NamedTuple):
    """Kernels of one structure, to start from."""

    label: str
    kernels: list[Kernel]


def single_terms(axis: Axis, variance: float) -> Iterator[tuple[str, list[Kernel]]]:
    """Terms of one column that may be added."""
    span = axis.span
    yield f"smooth({axis.name})", [variance * _smooth(axis, share) for share in (0.1, 0.5)]
    rough = [max(2 * axis.step, span / 50), span / 5]
    yield f"rough({axis.name})", [variance * _rough(axis, size) for size in rough]
    # With an unknown constant in the mean the origin of a lone line does not matter.
    line = Line(0.5, start=axis.low, unit=span).fix("origin")
    yield f"line({axis.name})", [4 * variance * _on(line, axis), 0.1 * variance * _on(line, axis)]
    for period in axis.periods:
        label = f"season({axis.name}, {period_shown(period)})"
        yield label, [variance * _on(season(period, 1.0, decay), axis) for decay in (5.0, 50.0)]


def factors(term: Kernel, axes: Sequence[Axis]) -> Iterator[tuple[str, list[tuple[float, Kernel]]]]:
    """Factors for a term, with their mean over the column: growth, beginning, end, and change along another column."""
    inside = factors_of(term)
    owners = {column for _, column in inside}
    joint = any(axis.column is not None for axis in axes) and None in owners
    for axis in axes:
        kinds = {type(node) for node, column in inside if column == axis.column}
        if joint:
            continue
        if axis.column in owners:
            if Line not in kinds and kinds & {Seasonal, Periodic, Exponential, RBF}:
                lines = [
                    Line(origin, start=axis.low, unit=axis.span).with_priors(
                        origin=priors.Normal(0.5, ORIGIN_DEVIATION)
                    )
                    for origin in (-0.3, 1.3)
                ]
                yield f"line({axis.name})", [(1 / 3 + line.origin**2 - line.origin, _on(line, axis)) for line in lines]
            if Step not in kinds:
                for falling in (False, True):
                    places = [
                        Step(place, 0.02, falling, start=axis.low, unit=axis.span) for place in (0.2, 0.4, 0.6, 0.8)
                    ]
                    word = "until" if falling else "from"
                    yield f"{word}({axis.name})", [(0.5, _on(place, axis)) for place in places]
        elif len(axes) <= MAX_INTERACTIONS:
            yield f"smooth({axis.name})", [(1.0, _smooth(axis, share)) for share in (0.2, 0.7)]


def candidates(
    terms: list[Kernel], labels: list[str], axes: list[Axis], left: float, whole: int
) -> Iterator[tuple[list[str], SumCandidate]]:
    """All sums one step away, with the labels of their terms. ``left``: variance that the terms leave; ``whole``:
    number of columns, which without terms are also tried together."""
    if not terms and len(axes) > 1:
        scales = np.ones(whole)
        for axis in axes:
            position = axis.column if isinstance(axis.column, int) else [a.column for a in axes].index(axis.column)
            scales[position] = axis.span / 4 * math.sqrt(len(axes))
        for name, make in (("smooth(all)", RBF), ("rough(all)", lambda size: Matern(size, nu=1.5))):
            yield [name], SumCandidate(name, [0.9 * make(share * scales) for share in (0.5, 1.5)])
        if len(axes) <= MAX_ADDITIVE:  # of which those without use are dropped in the end
            names = [f"smooth({axis.name})" for axis in axes]
            sums = [_sum([0.9 / len(axes) * _smooth(axis, s) for axis in axes]) for s in (0.15, 0.4)]
            yield names, SumCandidate(" + ".join(names), sums)
    for axis in axes:
        for label, new in single_terms(axis, left):
            if label in labels and label.startswith(("line", "season")):
                continue
            yield [*labels, label], SumCandidate(" + ".join([*labels, label]), [_sum([*terms, term]) for term in new])
    # A rough term alone also does the work of a smooth one, and does not leave it to one that is added: start anew.
    for axis in axes:
        for i, label in enumerate(labels):
            if label.startswith(f"rough({axis.name})"):
                own = [*labels[:i], *labels[i + 1 :], f"smooth({axis.name})", f"rough({axis.name})"]
                others = terms[:i] + terms[i + 1 :]
                pairs = [
                    [share * _smooth(axis, share), 0.01 * _rough(axis, size)]
                    for share in (0.3, 1.0)
                    for size in (max(2 * axis.step, axis.span / 100), axis.span / 20)
                ]
                yield own, SumCandidate(" + ".join(own), [_sum([*others, *pair]) for pair in pairs])
    for i, term in enumerate(terms):
        variance, inner = (float(term.variance), term.inner) if isinstance(term, Scale) else (1.0, term)
        for label, scaled in factors(term, axes):
            own = [*labels[:i], f"{labels[i]} * {label}", *labels[i + 1 :]]
            kernels = [
                _sum([*terms[:i], (variance / size) * (inner * factor), *terms[i + 1 :]]) for size, factor in scaled
            ]
            yield own, SumCandidate(" + ".join(own), kernels)


def _sum(terms: Sequence[Kernel]) -> Kernel:
    return terms[0] if len(terms) == 1 else Sum(tuple(terms))


def _without_priors(kernel: Kernel | None) -> Kernel | None:
    return None if kernel is None else kernel.with_priors(**dict.fromkeys(kernel.parameters))


# -- the search ----------------------------------------------------------------------------------------------------


class WarmObjective(RegressionObjective):
    """Evidence that is climbed once on all rows, from the best of some kernels and a known noise."""

    screens_starts = False
    variants: Sequence[Kernel] = ()
    noise_start: float = DEFAULT_NOISE_VARIANCE

    @classmethod
    def of(cls, objective: RegressionObjective, variants: Sequence[Kernel], noise: float) -> "WarmObjective":
        new = cls(
            objective.kernel, objective.X, objective.target, objective.noise, objective.solver, objective.mean,
            objective.use_priors, objective.jacobian,
        )  # fmt: skip
        new.variants, new.noise_start = variants, noise
        return new

    def stages(self) -> list[int]:
        return [self.n]

    def starts(self) -> list[Start]:
        mean = np.asarray(to_free(self.mean), dtype=float)
        return [
            Start(f"start {i}", self.layout.joined(kernels=to_free(kernel), noise=self.noise.start(noise), mean=mean))
            for noise in dict.fromkeys((self.noise_start, self.noise_start / 5))
            for i, kernel in enumerate(self.variants)
        ]


class Store:
    """Candidates evaluated, in a file from which another search goes on; only in memory without a path."""

    def __init__(self, path: str | os.PathLike[str] | None, belongs_to: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.known: dict[str, dict[str, Any]] = {}
        if self.path is None:
            return
        self.digests = {name: digest(value) for name, value in belongs_to.items()}
        if self.path.exists():
            try:
                read = json.loads(self.path.read_text(encoding="utf-8"))
                if read["format"] != FORMAT:
                    raise ValueError("it is no checkpoint of a search by this version of mercer.")
                others = [name for name, value in self.digests.items() if read["of"].get(name) != value]
                self.known = dict(read["evaluated"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise FileError(
                    f"checkpoint {str(path)!r} cannot be read: {error} Delete it, or name another file."
                ) from error
            if others:
                raise ParameterError(
                    f"checkpoint {str(path)!r} belongs to a search with other {' and '.join(others)}. Name another "
                    "file, or delete it to start afresh."
                )
        self._write()

    def add(self, key: str, value: dict[str, Any]) -> None:
        self.known[key] = value
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        text = json.dumps({"format": FORMAT, "of": self.digests, "evaluated": self.known})
        temporary = self.path.with_name(f".{self.path.name}-{secrets.token_hex(8)}")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError as error:
            raise FileError(f"checkpoint {str(self.path)!r} cannot be written: {error}.") from error
        finally:
            temporary.unlink(missing_ok=True)


class _OutOfTime(Exception):
    pass


class Search:
    """One greedy search."""

    def __init__(self, problem: QuantityProblem, axes: list[Axis], until: float, store: Store) -> None:
        self.problem, self.axes, self.until, self.store = problem, axes, until, store
        self.history, self.evaluations, self.order = History(), 0, 0
        self.terms: list[Kernel] = []
        self.labels: list[str] = []
        self.best: Tried | None = None
        self.first_error: Exception | None = None
        self.closing = False  # whether time is up, and only what is of no use is looked for

    def run(self) -> SearchOutcome:
        out_of_time = interrupted = False
        try:
            for _ in range(MAX_ROUNDS):
                if not self._round():
                    break
            self._prune()
        except _OutOfTime:
            out_of_time = True
            self._close()
        except KeyboardInterrupt:
            interrupted = True
            if self.best is None and not any(each.failure is None for each in self.history):
                raise
        finally:
            self.problem.terms.line.close()
        able = [each for each in self.history if each.failure is None]
        if not able:
            raise ParameterError(
                f"none of the {len(self.history)} kernels could be evaluated. {self.history[0].failure}"
            ) from self.first_error
        self.history[:] = [each._replace(kernel=_without_priors(each.kernel)) for each in self.history]
        able = [each for each in self.history if each.failure is None]
        return SearchOutcome(
            self.history, max(able, key=lambda each: each.score), out_of_time, interrupted, self.evaluations
        )  # fmt: skip

    def _round(self) -> bool:
        """Take the best step, if there is one."""
        left = DEFAULT_NOISE_VARIANCE * 5 if self.best is None else max(self._noise(), 1e-3)
        steps = list(candidates(self.terms, self.labels, self.axes, left, as_matrix(self.problem.X).shape[1]))
        found: list[tuple[Tried, list[str]]] = []
        for number, (labels, step) in enumerate(steps):
            self.problem.terms.line.prefix = (
                f"search, {len(self.terms)} terms, step {number + 1} of {len(steps)}, {step.label}: "
            )
            tried = self._evaluate(step, SCREENING_ITERATIONS)
            if tried.failure is None:
                found.append((tried, labels))
        found.sort(key=lambda pair: -pair[0].score)
        polished = []
        for tried, labels in found[:POLISHED_CANDIDATES]:
            assert tried.kernel is not None
            again = self._evaluate(SumCandidate(tried.candidate, [tried.kernel]), POLISHING_ITERATIONS, tried.noise)
            polished.append((again if again.failure is None and again.score >= tried.score else tried, labels))
        return bool(polished) and self._accept(*max(polished, key=lambda pair: pair[0].score))

    def _accept(self, tried: Tried, labels: list[str]) -> bool:
        if self.best is not None:
            least = MIN_GAIN if self.problem.criterion == "evidence" else MIN_GAIN_SHARE * abs(self.best.score)
            if tried.score < self.best.score + least:
                return False
        assert tried.kernel is not None
        self.best, self.terms, self.labels = tried, list(terms_of(tried.kernel)), labels
        self._look_for_periods()
        return True

    def _look_for_periods(self) -> None:
        """Periods that are seen only in the residuals of the terms, in the one column of a series of numbers."""
        if len(self.axes) > 1 or self.axes[0].dated or self.axes[0].column is not None:
            return
        (axis,) = self.axes
        assert self.best is not None
        assert self.best.kernel is not None
        t = as_matrix(self.problem.inputs(self.best.kernel))[:, 0]
        left = residual(self.best.kernel, t[:, None], self.problem.target, self._noise())
        order = np.argsort(t, kind="stable")
        more = more_periods(t[order], left[order], axis.step, axis.periods)
        self.axes = [axis._replace(periods=(*axis.periods, *more))]

    def _close(self) -> None:
        """When time is up: drop what is of no use in the best that was found. A few short evaluations."""
        able = [each for each in self.history if each.failure is None]
        if able:
            best = max(able, key=lambda each: each.score)
            assert best.kernel is not None
            self.best, self.terms, self.labels = best, list(terms_of(best.kernel)), best.candidate.split(" + ")
            self.closing = True
            self._prune()

    def _prune(self) -> None:
        """Drop terms without which the score is no lower, and make smooth ones straight where that is enough."""
        simpler, iterations = True, SCREENING_ITERATIONS if self.closing else POLISHING_ITERATIONS
        while simpler:
            simpler = False
            for labels, step in self._simpler():
                tried = self._evaluate(step, iterations)
                assert self.best is not None
                if tried.failure is None and tried.score >= self.best.score:
                    assert tried.kernel is not None
                    self.best, self.terms, self.labels = tried, list(terms_of(tried.kernel)), labels
                    simpler = True
                    break

    def _simpler(self) -> Iterator[tuple[list[str], SumCandidate]]:
        lines = {f"smooth({axis.name})": axis for axis in self.axes}
        for i, label in enumerate(self.labels):
            before, after = self.terms[:i], self.terms[i + 1 :]
            if len(self.terms) > 1:
                labels = self.labels[:i] + self.labels[i + 1 :]
                yield labels, SumCandidate(" + ".join(labels), [_sum([*before, *after])])
            if label in lines and not self.closing and (name := f"line({lines[label].name})") not in self.labels:
                labels = [*self.labels[:i], name, *self.labels[i + 1 :]]
                straight = dict(single_terms(lines[label], 0.5))[name]
                yield labels, SumCandidate(" + ".join(labels), [_sum([*before, one, *after]) for one in straight])

    def _noise(self) -> float:
        assert self.best is not None
        assert self.best.noise is not None
        return self.best.noise / self.problem.scale**2

    def _evaluate(self, step: SumCandidate, iterations: int, noise: float | None = None) -> Tried:
        """A candidate after so many iterations; from the store if it is there."""
        if time.monotonic() >= self.until and self.history and not self.closing:
            raise _OutOfTime
        # What closes a search is no step of one that goes on.
        key, self.order = f"{'closing ' * self.closing}{self.order} {step.label}", self.order + 1
        default = DEFAULT_NOISE_VARIANCE if self.best is None else self._noise()
        start = noise / self.problem.scale**2 if noise else default
        began, rows = time.monotonic(), len(self.problem.rows)
        objective = WarmObjective.of(self.problem.objective(step.kernels[0]), step.kernels, start)
        if key in self.store.known:
            tried = self._restored(self.store.known[key], step.label, objective, rows)
        else:
            try:
                found: Evaluated = self.problem.learned(
                    objective, Settings(max_iterations=iterations, progress=self.problem.terms.line)
                )
                if found.interrupted:
                    raise KeyboardInterrupt
                score, failure = self.problem.score(found), None
                if not math.isfinite(score):
                    failure = "its score is not finite."
                self.evaluations += found.evaluations
                tried = Tried(
                    step.label, found.log_evidence, score, found.theta, rows, found.kernel, found.noise,
                    time.monotonic() - began, failure,
                )  # fmt: skip
            except Exception as error:  # a candidate's own fault: the search goes on
                self.first_error = self.first_error or error
                tried = Tried(
                    step.label, math.nan, -math.inf, np.zeros(0), rows, seconds=time.monotonic() - began,
                    failure=f"{type(error).__name__}: {error}",
                )  # fmt: skip
            self.store.add(key, {
                "theta": tried.theta.tolist(), "log_evidence": tried.log_evidence, "score": tried.score,
                "noise": tried.noise, "seconds": tried.seconds, "failure": tried.failure,
            })  # fmt: skip
        self._record(tried)
        return tried

    @staticmethod
    def _restored(kept: dict[str, Any], label: str, objective: RegressionObjective, rows: int) -> Tried:
        theta = np.array(kept["theta"], dtype=float)
        kernel = None if kept["failure"] else objective.at(theta).kernel
        return Tried(
            label, kept["log_evidence"], kept["score"], theta, rows, kernel, kept["noise"], kept["seconds"],
            kept["failure"],
        )  # fmt: skip

    def _record(self, tried: Tried) -> None:
        """One line for each structure: the best that was found for it."""
        for i, other in enumerate(self.history):
            if other.candidate == tried.candidate:
                if tried.failure is None and tried.score > other.score:
                    self.history[i] = tried._replace(seconds=tried.seconds + other.seconds)
                return
        self.history.append(tried)
