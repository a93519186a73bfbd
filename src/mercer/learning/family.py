"""Which kernel, where none is given: a member of a small family, the one that predicts rows left out best.

The family is the standard kernel (PRML 6.72) with four smoothnesses, with and without the linear term, with one
lengthscale for all inputs or one each. All members are compared on the rows where learning begins, each at its own
maximum of the evidence, by the mean CRPS of rows left out. One compiled program serves all of them: the smoothness is a
number in it, and a shared lengthscale is coordinates that move together.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mercer.core.parameters import evolve
from mercer.core.text import table
from mercer.kernels.stationary import SMOOTHNESSES
from mercer.learning.climb import Objective, climb
from mercer.learning.optimise import HEAT, REACH
from mercer.learning.progress import Progress

FIRST = 1.5  # the smoothness that is tried first; the others begin where it ended
NOISE = 0.1  # of the target's variance, where climbs begin
# Factors on lengthscales, noise, and factors on the linear term at the starts: little noise and much lead to different
# optima. One is nearly a plane.
STARTS = ((1.0, NOISE, 1.0), (1 / 3, 1e-3, 1.0), (3.0, 1e-3, 1.0), (10.0, 0.3, 30.0), (0.1, NOISE, 1.0))
STEEP = 30.0  # factor on the linear term beside short lengthscales: a plane with rough residuals
OFF = -35.0  # ln theta3 / theta0 of a linear term that is not there
ROWS_PER_LENGTHSCALE = 9  # with fewer rows than this for each input, all inputs share one lengthscale
FEW_ROWS = 8  # below this there is no linear term: two or three rows would make a line that goes anywhere
MANY_ROWS, FADES = 100, 20.0  # rows from which there is no prior, and where its weight is one
LENGTH_DEVIATION, AMPLITUDE_DEVIATION = 1.0, 2.0  # of logarithms, in the prior
ITERATIONS, ENOUGH = 100, 0.05  # of a climb at most, and nats: it ends here when less is left to gain
APART = 20.0  # nats: smoothnesses whose evidence differs by more are at different optima
NEARLY = 0.5  # nats: climbs that begin at the maximum on fewer rows end here
MARGIN = 0.15  # of the best score: members that are not further behind are compared on more rows
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
    """A member at its maximum of the evidence, and on how many rows."""

    member: Member
    log_evidence: float
    score: float
    theta: np.ndarray
    rows: int = 0


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
        """By how much it was better than the next that was compared on as many rows."""
        best, *others = self.tried
        if not others:
            return "the only one tried"
        behind = [other.score / best.score - 1 for other in others if other.rows == best.rows]
        if not behind:
            return f"the others of {len(self.tried)} kernels were far behind on fewer rows (choice_)"
        return f"the penalised CRPS of the next of {len(self.tried)} kernels tried is {behind[0]:.1%} higher (choice_)"

    def __str__(self):
        best = self.tried[0]
        rows = [
            [
                str(t.member),
                f"{-t.score:.4f}",
                f"{t.score / best.score - 1:+.1%}" if t is not best and t.rows == best.rows else "",
                f"{t.log_evidence:.1f}",
                f"{t.rows or self.rows:,}",
            ]
            for t in self.tried
        ]
        return table(["kernel", "penalised CRPS", "", "log evidence", "rows"], rows)

    __repr__ = __str__


class Coordinates:
    """Which entries of theta are what, for a standard kernel with one theta1 for each of d inputs."""

    def __init__(self, names: list[str]):
        self.size = len(names)
        self.lengths = np.array([i for i, name in enumerate(names) if name.startswith("theta1")])
        self.linear = names.index("theta3") if "theta3" in names else None
        self.noise = names.index("noise") if "noise" in names else None

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

    def nearly_linear(self, theta, scaled) -> np.ndarray:
        """``theta`` without the linear term but with its slope: lengthscales ten times those of ``scaled``, the
        amplitude that makes theta0 theta1 what theta3 was, and all that was not linear in the noise."""
        long = theta.copy()
        long[self.lengths] = self.stretched(scaled, 10.0)[self.lengths]
        long[0] = theta[self.linear] - long[self.lengths].mean()
        if self.noise is not None:
            long[self.noise] = np.logaddexp(theta[0], theta[self.noise])
        return self.without_linear(long)


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


def together(*priors: Callable | None) -> Callable | None:
    """The product of prior densities, those that are there; None if none is."""
    there = [prior for prior in priors if prior is not None]

    def both(theta) -> tuple[float, np.ndarray]:
        values, slopes = zip(*(prior(theta) for prior in there), strict=True)
        return sum(values), np.sum(slopes, axis=0)

    return both if len(there) > 1 else there[0] if there else None


def begin(problem, noise: float = NOISE) -> np.ndarray:
    """theta on the scale of the data: amplitudes and noise (a share) in units of the target's variance."""
    theta, size = problem.start(noise), math.log(problem.variance())
    lengths = Coordinates(problem.names()).lengths
    return theta + np.where(np.isin(np.arange(len(theta)), lengths), 0.0, size)


def starts(problem, steep: bool) -> list[tuple[str, np.ndarray]]:
    """Where heats begin: lengthscales on the scale of the data and several times shorter and longer. If ``steep``, the
    short ones come with a large linear term."""
    coordinates, found = Coordinates(problem.names()), []
    for stretch, noise, linear in STARTS:
        theta = coordinates.stretched(begin(problem, noise), stretch)
        if coordinates.linear is not None:
            theta[coordinates.linear] += math.log(STEEP if steep and stretch < 1 else linear)
        found.append((f"lengthscales x {stretch:.2g}, noise {noise:g}", theta))
    return found


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


class Contest:
    """The members of the family on some rows (None: all) of a ``problem`` whose kernel is standard, with one theta1 for
    each input."""

    def __init__(self, problem, rows, progress: Progress | None = None, prior: Callable | None = None):
        self.problem, self.rows = problem, rows
        self.coordinates = Coordinates(problem.names())
        self.m = problem.n if rows is None else len(rows)
        self.tried: dict[Member, Tried] = {}
        self.prior = together(WeakPrior.of(problem), prior)
        self._progress, self._stack = progress or Progress(shown=False), contextlib.ExitStack()
        self._objectives: dict[float, Objective] = {}
        self.thetas = np.stack([theta for _, theta in starts(problem, steep=False)])
        self._box = self.thetas.min(axis=0) - REACH, self.thetas.max(axis=0) + REACH
        if self.coordinates.linear is not None:
            self._box[0][self.coordinates.linear] += OFF
        self._amplitude = problem.profiled() if self.prior is None else None
        if self._amplitude is None:
            self._box = np.maximum(self._box[0], problem.floor()), self._box[1]

    def __enter__(self):
        self._stack.callback(self._progress.close)
        return self

    def __exit__(self, *error):
        self._stack.close()

    @property
    def evaluations(self) -> int:
        return sum(objective.evaluations for objective in self._objectives.values())

    def objective(self, nu: float) -> Objective:
        if nu not in self._objectives:
            problem = self.problem.replaced(evolve(self.problem.kernel, nu=np.float64(nu)))
            evidence = self._stack.enter_context(problem(self.rows))
            self._objectives[nu] = Objective(evidence, self._box, self._amplitude, self.prior, self._watch)
        return self._objectives[nu]

    def _watch(self, objective):
        done = f"{self.m:,} of {self.problem.n:,} rows, {len(self.tried)} done"
        self._progress(f"choosing the kernel on {done}")

    def settle(self, member: Member, origins, keep: int = 1, enough: float = ENOUGH) -> Tried | None:
        """At the highest maximum reached from the best of these places after a few iterations."""
        objective, span = self.objective(member.nu), self.coordinates.span(member)
        origins = [theta if member.linear else self.coordinates.without_linear(theta) for theta in origins]
        origins = [theta for theta in origins if objective.at(theta) is not None]
        if not origins:
            return None
        if len(origins) > keep:
            run = [climb(objective, theta, "", "lbfgs", span, None, HEAT, ENOUGH) for theta in origins]
            origins = [o.theta for o in sorted(run, key=lambda optimum: -optimum.value)[:keep]]
        climbs = [climb(objective, theta, "", "lbfgs", span, None, ITERATIONS, enough) for theta in origins]
        found = max(climbs, key=lambda optimum: optimum.value)
        score = objective.evidence.score(np.clip(found.theta, *objective.box))
        evidence = found.value - (0.0 if self.prior is None else self.prior(found.theta)[0])
        penalised = score * (1 + PRICE * span.shape[1] / self.m)
        self.tried[member] = Tried(member, evidence, penalised, found.theta, self.m)
        return self.tried[member]

    def follow(self, own: Tried):
        """Settle once more, from where the member with the highest evidence ended: if that is higher than where this
        one ended, or if its own evidence is so much lower that the smoothness cannot be the reason."""
        here = self.tried.get(own.member)
        if here is None:
            return
        alike = [other for other in self.tried.values() if other.member.each == own.member.each]
        leader = max(alike, key=lambda tried: tried.log_evidence)
        theta = leader.theta.copy()
        if self.coordinates.linear is not None and own.member.linear and not leader.member.linear:
            theta[self.coordinates.linear] = own.theta[self.coordinates.linear]
        elif not own.member.linear:
            theta = self.coordinates.without_linear(theta)
        there = self.objective(own.member.nu).at(theta, gradient=False)
        if leader is here or there is None:
            return
        if there[0] > here.log_evidence or leader.log_evidence > here.log_evidence + APART:
            again = self.settle(own.member, [theta], enough=NEARLY)
            if again is None or again.log_evidence < here.log_evidence:
                self.tried[own.member] = here

    def by_evidence(self, member: Member, thetas) -> list[np.ndarray]:
        """Those where the member has the highest evidence first."""
        values = [self.objective(member.nu).at(theta, gradient=False) for theta in thetas]
        order = np.argsort([math.inf if value is None else -value[0] for value in values])
        return [thetas[i] for i in order]

    def ranked(self) -> list[Tried]:
        """What was tried, best first."""
        return sorted(self.tried.values(), key=lambda tried: -tried.score)


def choose(problem, rows, later=(), progress: Progress | None = None, prior: Callable | None = None) -> Choice:
    """The member of the family for a ``problem``, by these rows (None: all).

    One lengthscale or one each is decided at the first smoothness; then the smoothness; then the linear term and once
    more the lengthscales, at the best of these. Some 40 to 120 evaluations. The best few are then compared again on
    each set of rows in ``later`` (None stands for all rows). ``prior(theta)`` is that of the model.
    """
    interrupted, evaluations = False, 0
    with Contest(problem, rows, progress, prior) as contest:
        lengths, tried = contest.coordinates.lengths, contest.tried
        linear = contest.coordinates.linear is not None and contest.m >= FEW_ROWS
        one, each = Member(FIRST, linear, False), Member(FIRST, linear, True)
        try:
            many = len(lengths) > 1 and problem.n >= ROWS_PER_LENGTHSCALE * len(lengths)
            contest.settle(one, contest.by_evidence(one, contest.thetas)[: 1 if many else 2], keep=2)
            if many:
                contest.settle(each, [*contest.thetas[:3], *(t.theta for t in tried.values())])
            if not tried:
                return Choice([], contest.m, contest.evaluations)
            first = contest.ranked()[0]
            for nu in SMOOTHNESSES:
                if nu != FIRST:
                    contest.settle(first.member._replace(nu=nu), [first.theta])
            ranked = [found for found in contest.ranked() if found.member.each == first.member.each]
            best, rival = ranked[0], one if first.member.each else each
            if linear:
                plain = best.member._replace(linear=False)
                origins = [contest.coordinates.without_linear(best.theta),
                           contest.coordinates.nearly_linear(best.theta, contest.thetas[0])]  # fmt: skip
                contest.settle(plain, contest.by_evidence(plain, origins)[:1])
            other = best.member._replace(each=not best.member.each)
            if other not in tried and rival in tried:
                contest.settle(other, [tried[rival].theta])
        except KeyboardInterrupt:  # what was tried until then
            if not tried:
                raise
            interrupted = True
        ranked, m, evaluations = contest.ranked(), contest.m, contest.evaluations
    for rows in later:
        if interrupted:
            break
        with Contest(problem, rows, progress, prior) as contest:
            try:
                finalists = _finalists(ranked)
                for found in finalists:
                    contest.settle(found.member, [found.theta], enough=NEARLY)
                for found in finalists:  # more rows may have led one of them to another optimum
                    contest.follow(found)
            except KeyboardInterrupt:
                interrupted = True
            else:
                others = [found for found in ranked if found.member not in contest.tried]
                ranked, m = contest.ranked() + others, contest.m
            evaluations += contest.evaluations
    return Choice(ranked, m, evaluations, interrupted)


def _finalists(ranked: list[Tried]) -> list[Tried]:
    """The best with each smoothness, and the best with the other kind of lengthscales: more rows show rougher
    functions, and afford a lengthscale for each input. None that is far behind."""
    best = ranked[0]
    smoothnesses: dict[float, Tried] = {}  # the best with each
    near = [found for found in ranked if found.score > best.score * (1 + MARGIN)]
    for found in near:
        if found.member.each == best.member.each:
            smoothnesses.setdefault(found.member.nu, found)
    others = [found for found in near if found.member.each != best.member.each]
    return [*smoothnesses.values(), *others[:1]]


def simplified(problem, member: Member, learned):
    """The problem with the member's own kernel, one theta1 where lengthscales are one and no theta3 where there is no
    linear term, and what was learned in its coordinates."""
    coordinates, kernel = Coordinates(problem.names()), problem.kernel
    kept = np.ones(coordinates.size, bool)
    if not member.each:
        kept[coordinates.lengths[1:]] = False
        kernel = evolve(kernel, theta1=kernel.theta1[0])
    if not member.linear and coordinates.linear is not None:
        kept[coordinates.linear] = False
        kernel = evolve(kernel, theta3=np.float64(0.0))
    for optimum in learned.optima:
        optimum.theta = optimum.theta[kept]
    learned.history = [step._replace(theta=step.theta[kept]) for step in learned.history]
    return problem.replaced(kernel), learned
