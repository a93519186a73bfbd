"""Which kernel, where none is given: a member of a small family, the one that predicts rows left out best.

The family is the standard kernel (PRML 6.72) with four smoothnesses, with and without the linear term, with one
lengthscale for all inputs or one each. All members are compared on the rows where learning begins, each at its own
maximum of the evidence, by the mean CRPS of rows left out. One compiled program serves all of them: the smoothness is a
number in it, and a shared lengthscale is coordinates that move together.
"""

import contextlib
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from mercer.core.text import table
from mercer.kernels.stationary import SMOOTHNESSES
from mercer.learning.climb import Objective, climb
from mercer.learning.evidence import left_out_score
from mercer.learning.optimise import HEAT, REACH
from mercer.learning.progress import Progress

FIRST = 1.5  # the smoothness that is tried first; the others begin where it ended
NOISE = 0.1  # of the target's variance, where climbs begin
# Factors on lengthscales, and noise, at the starts: little noise and much lead to different optima.
STARTS = ((1.0, NOISE), (1 / 3, 1e-3), (3.0, 1e-3), (10.0, 1e-3), (0.1, NOISE))
OFF = -35.0  # ln theta3 / theta0 of a linear term that is not there
ROWS_PER_LENGTHSCALE = 9  # with fewer rows than this for each input, all inputs share one lengthscale
FEW_ROWS = 8  # below this there is no linear term: two or three rows would make a line that goes anywhere
MANY_ROWS, FADES = 100, 20.0  # rows from which there is no prior, and where its weight is one
LENGTH_DEVIATION, AMPLITUDE_DEVIATION = 1.0, 2.0  # of logarithms, in the prior
ITERATIONS, ENOUGH = 100, 0.05  # of a climb at most, and nats: it ends here when less is left to gain
PRICE = 1.0  # share of the rows that a parameter costs in the score: rows left out took part in learning it


class Member(NamedTuple):
    """A kernel of the family."""

    nu: float
    linear: bool
    each: bool

    def __str__(self):
        name = "Gaussian" if math.isinf(self.nu) else f"Matern {int(2 * self.nu)}/2"
        lengths = "one lengthscale for each input" if self.each else "one lengthscale"
        return f"{name}{' + linear' if self.linear else ''}, {lengths}"


class Tried(NamedTuple):
    """A member at its maximum of the evidence on the rows where the choice was made."""

    member: Member
    log_evidence: float
    score: float
    theta: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen, and what else was tried: best first. ``rows``: how many rows decided.

    The score is minus the mean CRPS of rows left out, worsened by the share k / n of k parameters in n rows.
    """

    tried: list[Tried]
    rows: int
    evaluations: int
    interrupted: bool = False

    @property
    def member(self) -> Member:
        return self.tried[0].member

    def margin(self) -> str:
        """By how much it was better than the next."""
        if len(self.tried) < 2:
            return "the only one tried"
        ahead = self.tried[1].score / self.tried[0].score - 1
        return f"score on rows left out {ahead:.1%} better than the next of {len(self.tried)} kernels tried (choice_)"

    def __str__(self):
        best = self.tried[0].score
        rows = [
            [
                str(t.member),
                f"{-t.score:.4f}",
                f"{t.score / best - 1:+.1%}" if t.score != best else "",
                f"{t.log_evidence:.1f}",
            ]
            for t in self.tried
        ]
        return table(["kernel", "penalised CRPS", "", "log evidence"], rows)

    __repr__ = __str__


class Coordinates:
    """Which entries of theta are what, for a standard kernel with one theta1 for each of d inputs."""

    def __init__(self, names: list[str]):
        self.size = len(names)
        self.lengths = np.array([i for i, name in enumerate(names) if name.startswith("theta1")])
        self.linear = names.index("theta3") if "theta3" in names else None

    def span(self, member: Member) -> np.ndarray:
        """Directions along which the member's parameters move: (p, k)."""
        axes = np.eye(self.size)
        tied = [] if member.each else [axes[self.lengths].sum(axis=0)]
        left_out = set() if member.each else set(self.lengths.tolist())
        if not member.linear and self.linear is not None:
            left_out.add(self.linear)
        return np.stack([*tied, *(axis for i, axis in enumerate(axes) if i not in left_out)], axis=1)

    def stretched(self, theta, stretch: float) -> np.ndarray:
        """``theta`` with other lengthscales: theta1 is one over their square."""
        theta = theta.copy()
        theta[self.lengths] -= 2 * math.log(stretch)
        return theta

    def without_linear(self, theta) -> np.ndarray:
        """``theta`` with a linear term too small to be felt."""
        theta = theta.copy()
        if self.linear is not None:
            theta[self.linear] = theta[0] + OFF
        return theta


class WeakPrior:
    """Log-normal prior on the default kernel's parameters: ln p(theta), up to a constant, and its gradient.

    Standard deviations of logarithms: 1 for a shared lengthscale, sqrt(d) for each of d, 2 for amplitudes and noise;
    around ``centre``. ``weight`` multiplies all of it.
    """

    def __init__(self, names: list[str], centre, weight: float = 1.0):
        coordinates, self.centre = Coordinates(names), centre
        deviation = np.full(coordinates.size, AMPLITUDE_DEVIATION)
        deviation[coordinates.lengths] = 2 * LENGTH_DEVIATION * math.sqrt(len(coordinates.lengths))  # in ln theta1
        self.precision = weight / deviation**2
        self.linear = coordinates.linear

    @classmethod
    def of(cls, problem) -> "WeakPrior | None":
        """For few rows of a regression: the function's variance around the target's, the linear term's and the noise's
        around a tenth of it. Without it, a handful of rows would simply be interpolated. Its weight falls with the
        square of the number of rows, and is nothing from a hundred on."""
        if problem.n >= MANY_ROWS:
            return None
        return cls(problem.names(), begin(problem), (FADES / problem.n) ** 2)

    def __call__(self, theta):
        away = theta - self.centre
        if self.linear is not None and away[self.linear] < 0.5 * OFF:  # switched off
            away[self.linear] = 0.0
        return -0.5 * float(self.precision @ away**2), -self.precision * away


def begin(problem, noise: float = NOISE) -> np.ndarray:
    """theta on the scale of the data: amplitudes and noise (a share) in units of the target's variance."""
    theta, size = problem.start(noise), math.log(problem.variance())
    lengths = Coordinates(problem.names()).lengths
    return theta + np.where(np.isin(np.arange(len(theta)), lengths), 0.0, size)


def starts(problem) -> list[tuple[str, np.ndarray]]:
    """Where heats begin: lengthscales on the scale of the data and several times shorter and longer."""
    coordinates = Coordinates(problem.names())
    return [
        (f"lengthscales x {stretch:.2g}, noise {noise:g}", coordinates.stretched(begin(problem, noise), stretch))
        for stretch, noise in STARTS
    ]


def random_starts(problem, member: Member, count: int, rng) -> list[tuple[str, np.ndarray]]:
    """And some drawn at random: lengthscales up to ten times shorter or longer, one by one."""
    coordinates, found = Coordinates(problem.names()), []
    for i in range(count):
        theta, size = begin(problem, math.exp(rng.uniform(math.log(1e-4), 0.0))), len(coordinates.lengths)
        stretches = rng.uniform(-math.log(10), math.log(10), size if member.each else 1)
        theta[coordinates.lengths] -= 2 * stretches
        found.append((f"drawn {i + 1}", theta))
    return found


def loosened(problem, theta) -> np.ndarray | None:
    """``theta`` with lengthscales and noise moved back to where the evidence has a slope; None if they are there.

    On few rows an input may be of no use. An infinite lengthscale is a plateau, from which more rows do not lead back.
    """
    lengths, scaled = Coordinates(problem.names()).lengths, begin(problem)
    noisy = problem.loosened(theta)
    free = theta.copy() if noisy is None else noisy
    free[lengths] = np.maximum(free[lengths], scaled[lengths] - 2 * math.log(5.0))
    return None if np.abs(free - theta).max() < 0.5 else free


def choose(problem, rows, progress: Progress | None = None) -> Choice:
    """The member for a ``problem`` whose kernel is standard with one theta1 for each input, by these rows (None: all).

    One lengthscale or one each is decided at the first smoothness; then the smoothness; then the linear term, at the
    two best of these, and once more the lengthscales, at the best. About 150 evaluations.
    """
    coordinates = Coordinates(problem.names())
    thetas = np.stack([theta for _, theta in starts(problem)])
    box = thetas.min(axis=0) - REACH, thetas.max(axis=0) + REACH
    if coordinates.linear is not None:
        box[0][coordinates.linear] += OFF
    prior = WeakPrior.of(problem)
    amplitude = problem.profiled() if prior is None else None
    if amplitude is None:
        box = np.maximum(box[0], problem.floor()), box[1]
    tried: dict[Member, Tried] = {}
    progress = progress or Progress(shown=False)

    def watch(objective):
        progress(f"choosing the kernel on {objective.evidence.n:,} of {problem.n:,} rows, {len(tried) + 1} of about 8")

    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        objectives = {
            nu: Objective(
                stack.enter_context(problem.replaced(problem.kernel._evolve(nu=np.float64(nu)))(rows)), box, amplitude,
                prior, watch,
            )
            for nu in SMOOTHNESSES
        }  # fmt: skip
        m = objectives[FIRST].evidence.n

        def settle(member: Member, origins, keep: int = 1) -> Tried | None:
            """At the highest maximum reached from the best of these places after a few iterations."""
            objective, span = objectives[member.nu], coordinates.span(member)
            origins = [theta if member.linear else coordinates.without_linear(theta) for theta in origins]
            origins = [theta for theta in origins if objective.at(theta) is not None]
            if not origins:
                return None
            if len(origins) > keep:
                run = [climb(objective, theta, "", "lbfgs", span, None, HEAT, ENOUGH) for theta in origins]
                origins = [o.theta for o in sorted(run, key=lambda optimum: -optimum.value)[:keep]]
            climbs = [climb(objective, theta, "", "lbfgs", span, None, ITERATIONS, ENOUGH) for theta in origins]
            found = max(climbs, key=lambda optimum: optimum.value)
            score = left_out_score(objective.evidence, np.clip(found.theta, *objective.box))
            evidence = found.value - (0.0 if prior is None else prior(found.theta)[0])
            tried[member] = Tried(member, evidence, score * (1 + PRICE * span.shape[1] / m), found.theta)
            return tried[member]

        def best_of(members):
            return max((tried[m] for m in members if m in tried), key=lambda t: t.score)

        interrupted = False
        linear = coordinates.linear is not None and m >= FEW_ROWS
        one, each = Member(FIRST, linear, False), Member(FIRST, linear, True)
        try:
            values = [objectives[FIRST].at(theta, gradient=False) for theta in thetas]
            order = np.argsort([math.inf if value is None else -value[0] for value in values])
            settle(one, [thetas[order[0]]])
            if len(coordinates.lengths) > 1 and problem.n >= ROWS_PER_LENGTHSCALE * len(coordinates.lengths):
                settle(each, [*thetas[:3], *([tried[one].theta] if one in tried else [])], keep=2)
            if not tried:
                return Choice([], m, sum(o.evaluations for o in objectives.values()))
            first = best_of([one, each])
            for nu in SMOOTHNESSES:
                if nu != FIRST:
                    settle(first.member._replace(nu=nu), [first.theta])
            ranked = sorted((tried[m] for m in list(tried) if m.each == first.member.each), key=lambda t: -t.score)
            for found in ranked[:2]:
                if linear:
                    settle(found.member._replace(linear=False), [found.theta])
                other = found.member._replace(each=not found.member.each)
                if found is ranked[0] and other not in tried and (one if first.member.each else each) in tried:
                    settle(other, [tried[one if first.member.each else each].theta])
        except KeyboardInterrupt:  # what was tried until then
            if not tried:
                raise
            interrupted = True
        evaluations = sum(o.evaluations for o in objectives.values())
    return Choice(sorted(tried.values(), key=lambda t: -t.score), m, evaluations, interrupted)


def simplified(problem, member: Member, learned):
    """The problem with the member's own kernel, one theta1 where lengthscales are one and no theta3 where there is no
    linear term, and what was learned in its coordinates."""
    coordinates, kernel = Coordinates(problem.names()), problem.kernel
    kept = np.ones(coordinates.size, bool)
    if not member.each:
        kept[coordinates.lengths[1:]] = False
        kernel = kernel._evolve(theta1=kernel.theta1[0])
    if not member.linear and coordinates.linear is not None:
        kept[coordinates.linear] = False
        kernel = kernel._evolve(theta3=np.float64(0.0))
    for optimum in learned.optima:
        optimum.theta = optimum.theta[kept]
    learned.history = [step._replace(theta=step.theta[kept]) for step in learned.history]
    return problem.replaced(kernel), learned
