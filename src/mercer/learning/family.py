"""Choice of the default kernel: from a small family, the member that predicts left-out rows best.

The family is the standard kernel (PRML 6.72) with four smoothnesses, with and without the linear term, with one
lengthscale for all inputs or one each. Members are compared on the rows of an early stage of learning, each at its own
maximum of the evidence, by the mean CRPS of rows left out. One compiled program serves all of them: the smoothness is a
number in it, and a shared lengthscale is a direction in which several coordinates move together.

Of a table with categories or text the standard kernel is a part of the kernel (`columns.default_kernel`), and members
are also with and without the interactions of those columns with the numbers.
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import NamedTuple, Self

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout
from mercer.core.inputs import as_matrix
from mercer.core.parameters import Parametrized, Path, children_of, evolve, evolve_at, node_at, slots_of
from mercer.core.random import generator
from mercer.kernels.algebra import Product
from mercer.kernels.base import Kernel
from mercer.kernels.stationary import SMOOTHNESSES, Standard
from mercer.learning import heuristics
from mercer.learning.choice import Choice, Tried, best_first
from mercer.learning.climb import ClimbStart, ObjectiveSurface, Optimum, climb
from mercer.learning.objective import (
    MAX_LOG_CHANGE,
    LogDensity,
    Start,
    logarithmic_mask,
    prior_of,
    product_of_priors,
)
from mercer.learning.optimise import SCREENING_ITERATIONS, Learned, Settings
from mercer.learning.plan import search_stages
from mercer.learning.progress import Progress
from mercer.learning.regression import RegressionObjective, learn_regression
from mercer.learning.state import Journal, rows_name
from mercer.learning.weak_priors import AMPLITUDE_DEVIATION, LENGTH_DEVIATION, NOISE_SHARE
from mercer.solvers.base import Evidence

FIRST_SMOOTHNESS = 1.5  # compared first; the others start where it ended
# Starts: factor on lengthscales, share of noise, factor on the linear term. Little noise and much lead to different
# optima. One start is nearly a plane.
START_FACTORS = (
    (1.0, NOISE_SHARE, 1.0), (1 / 3, 1e-3, 1.0), (3.0, 1e-3, 1.0), (10.0, 0.3, 30.0), (0.1, NOISE_SHARE, 1.0),
)  # fmt: skip
MAX_MARGINAL_FACTOR = 0.2  # on a lengthscale: shorter ones are beyond the starts above
STEEP_LINEAR_FACTOR = 30.0  # on the linear term beside short lengthscales: a plane with rough residuals
OFF_LOG_RATIO = -35.0  # ln theta3 / theta0 of a linear term that is switched off
PLATEAU_FACTOR = 5.0  # lengthscales beyond this multiple of the scaled ones may be on a plateau
MIN_PLATEAU_MOVE = 0.5  # in theta: less than this is not worth another start
MIN_ROWS_PER_LENGTHSCALE = 9  # with fewer rows for each input, all inputs share one lengthscale
MIN_ROWS_FOR_LINEAR = 8  # two or three rows would make an arbitrary line
MAX_PRIOR_ROWS, UNIT_PRIOR_ROWS = 100, 20.0  # rows from which there is no weak prior, and at which its weight is one
MAX_ITERATIONS, MIN_GAIN = 100, 0.05  # of a climb that compares members, and nats that it may leave
MIN_GAIN_AGAIN = 0.5  # nats, where a climb starts at the maximum on fewer rows
MAX_EVIDENCE_GAP = 20.0  # nats: smoothnesses that differ by more are at different optima
MAX_SCORE_LAG = 0.15  # share of the best score: members closer than this are compared on more rows
PARAMETER_COST = 1.0  # rows that a parameter costs in the score, since rows left out took part in learning it
MIN_COMPARED_SHARE = 1 / 16  # of the rows, on which members are compared first, up to this many:
MAX_FIRST_ROWS, MAX_FIRST_FAST_ROWS = 600, 1200
MAX_ROWS_TO_DRAW, DRAWN_STARTS = 200, 2  # rows of the first stage up to which there are random starts, and how many


class Member(NamedTuple):
    """A kernel of the family."""

    nu: float
    linear: bool
    each: bool
    crossed: bool = False  # with interactions of categories and text with the numbers

    def __str__(self) -> str:
        name = "Gaussian" if math.isinf(self.nu) else f"Matern {int(2 * self.nu)}/2"
        lengths = "one lengthscale for each input" if self.each else "one lengthscale"
        return f"{name}{' + linear' if self.linear else ''}, {lengths}{', interactions' if self.crossed else ''}"


def standard_path(tree: Parametrized) -> Path | None:
    """Path to the first standard kernel in a tree; None if there is none."""
    if isinstance(tree, Standard):
        return ()
    below = ((path, standard_path(child)) for path, child in children_of(tree))
    return next(((*path, *rest) for path, rest in below if rest is not None), None)


def with_standard(kernel: Kernel, **fields: np.ndarray | np.float64) -> Kernel:
    """The kernel with other fields of its standard kernel."""
    path = standard_path(kernel)
    assert path is not None
    return evolve_at(kernel, path, **fields)


class Coordinates:
    """Entries of theta by meaning, of a model whose first kernel is standard, with one theta1 for each of d inputs, or
    has such a part: in a product with what interacts with it, and in a sum with what does not."""

    def __init__(self, model: Parametrized) -> None:
        lengths: list[int] = []
        crossed: list[int] = []
        self.linear: int | None = None
        self.noise: int | None = None
        self.size = 0
        path = standard_path(model) or ()
        products = [path[:i] for i in range(len(path)) if isinstance(node_at(model, path[:i]), Product)]
        for slot in slots_of(model):
            entries = range(self.size, self.size + int(np.sum(slot.moving)))
            self.size = entries.stop
            if not entries:
                continue
            if slot.name == "noise":
                self.noise = entries[0]
            elif not isinstance(slot.node, Standard):
                crossed += entries if any(slot.path[: len(product)] == product for product in products) else ()
            elif slot.field == "theta1":
                lengths += entries
            elif slot.field == "theta3":
                self.linear = entries[0]
        self.logarithmic = logarithmic_mask(Layout.of(model))  # all but parameters of the mean
        self.lengths, self.crossed = np.array(lengths, dtype=int), np.array(crossed, dtype=int)

    def directions(self, member: Member) -> np.ndarray:
        """Directions in which the member's parameters move: (p, k)."""
        axes = np.eye(self.size)
        tied = [] if member.each else [axes[self.lengths].sum(axis=0)]
        skipped = set() if member.each else set(self.lengths.tolist())
        if not member.linear and self.linear is not None:
            skipped.add(self.linear)
        if not member.crossed:
            skipped.update(self.crossed.tolist())
        return np.stack([*tied, *(axis for i, axis in enumerate(axes) if i not in skipped)], axis=1)

    def stretched(self, theta: np.ndarray, factor: float) -> np.ndarray:
        """``theta`` with all lengthscales multiplied: theta1 is one over their square."""
        theta = theta.copy()
        theta[self.lengths] -= 2 * math.log(factor)
        return theta

    def without_linear(self, theta: np.ndarray) -> np.ndarray:
        """``theta`` with a linear term too small to matter."""
        theta = theta.copy()
        if self.linear is not None:
            theta[self.linear] = theta[0] + OFF_LOG_RATIO
        return theta

    def of(self, member: Member, theta: np.ndarray) -> np.ndarray:
        """``theta`` with the terms that the member lacks too small to matter."""
        theta = theta.copy() if member.linear else self.without_linear(theta)
        if not member.crossed:
            theta[self.crossed] = OFF_LOG_RATIO
        return theta

    def nearly_linear(self, theta: np.ndarray, scaled: np.ndarray) -> np.ndarray:
        """``theta`` with its linear term replaced by a long lengthscale: ten times that of ``scaled``, with the
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
    around ``centre``. ``weight`` multiplies the logarithm of the density.
    """

    def __init__(self, coordinates: Coordinates, centre: np.ndarray, weight: float = 1.0) -> None:
        self.centre = centre
        deviation = np.full(coordinates.size, AMPLITUDE_DEVIATION)
        deviation[coordinates.lengths] = 2 * LENGTH_DEVIATION * math.sqrt(len(coordinates.lengths))  # in ln theta1
        self.precision = weight / deviation**2 * coordinates.logarithmic
        self.linear, self.crossed = coordinates.linear, coordinates.crossed

    @classmethod
    def of(cls, objective: RegressionObjective) -> "WeakPrior | None":
        """For few rows of a regression: the function's variance around the target's, the linear term's and the noise's
        around a tenth of it. Without it, a handful of rows would simply be interpolated. Its weight falls with the
        square of the number of rows, and is zero from a hundred on; it is one where priors count, except for noise
        that has a prior of its own."""
        coordinates = Coordinates(objective.model)
        if objective.use_priors:
            weak = cls(coordinates, scaled_start(objective, coordinates))
            if coordinates.noise is not None and objective.noise.priors:
                weak.precision[coordinates.noise] = 0.0
            return weak
        if objective.n >= MAX_PRIOR_ROWS:
            return None
        return cls(coordinates, scaled_start(objective, coordinates), (UNIT_PRIOR_ROWS / objective.n) ** 2)

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        away = theta - self.centre
        if self.linear is not None and away[self.linear] < 0.5 * OFF_LOG_RATIO:  # switched off
            away[self.linear] = 0.0
        if len(self.crossed):
            away[self.crossed] = np.where(away[self.crossed] < 0.5 * OFF_LOG_RATIO, 0.0, away[self.crossed])
        return -0.5 * float(self.precision @ away**2), -self.precision * away


def scaled_start(objective: RegressionObjective, coordinates: Coordinates, noise: float = NOISE_SHARE) -> np.ndarray:
    """theta on the scale of the data: amplitudes, and noise as a share, in units of the target's variance."""
    theta, size = objective.start_with_noise(noise), math.log(objective.variance())
    ratios = np.isin(np.arange(len(theta)), [*coordinates.lengths, *coordinates.crossed])
    return objective.with_mean_fitted(theta + np.where(ratios | ~coordinates.logarithmic, 0.0, size))


def starts(objective: RegressionObjective, coordinates: Coordinates, steep: bool) -> list[Start]:
    """Lengthscales on the scale of the data, and several times shorter and longer. If ``steep``, the short ones come
    with a large linear term."""
    found = []
    for factor, noise, linear in START_FACTORS:
        theta = coordinates.stretched(scaled_start(objective, coordinates, noise), factor)
        if coordinates.linear is not None:
            theta[coordinates.linear] += math.log(STEEP_LINEAR_FACTOR if steep and factor < 1 else linear)
        found.append(Start(f"lengthscales x {factor:.2g}, noise {noise:g}", theta))
    return found


def marginal_starts(objective: RegressionObjective, coordinates: Coordinates) -> list[Start]:
    """Lengthscales of what each input explains by itself, where one is too short for the other starts to find."""
    kernel = objective.kernel
    if not isinstance(kernel, Standard) or kernel.scale is None or len(coordinates.lengths) < 2:
        return []
    X = as_matrix(gram.raw(objective.rows))
    found = heuristics.marginal_lengthscales(X, objective.target) / (kernel.scale * math.sqrt(X.shape[1]))
    if found.min() > MAX_MARGINAL_FACTOR:
        return []
    theta = scaled_start(objective, coordinates)
    theta[coordinates.lengths] -= 2 * np.log(np.minimum(found, START_FACTORS[2][0]))
    return [Start("what each input explains", theta)]


def random_starts(objective: RegressionObjective, member: Member, count: int, rng: np.random.Generator) -> list[Start]:
    """Lengthscales up to ten times shorter or longer, drawn one by one."""
    coordinates, found = Coordinates(objective.model), []
    for i in range(count):
        noise = math.exp(rng.uniform(math.log(1e-4), 0.0))
        theta, size = scaled_start(objective, coordinates, noise), len(coordinates.lengths)
        log_factors = rng.uniform(-math.log(10), math.log(10), size if member.each else 1)
        theta[coordinates.lengths] -= 2 * log_factors
        found.append(Start(f"drawn {i + 1}", theta))
    return found


# -- learning the default kernel -----------------------------------------------------------------------------------


class LearnedDefault(NamedTuple):
    """The objective with the kernel chosen, what was learned in its coordinates, and the choice; None if no member of
    the family had an evidence at any start."""

    objective: RegressionObjective
    learned: Learned
    choice: Choice | None


class MemberObjective(RegressionObjective):
    """Evidence of one member of the family, in the coordinates of all: a standard kernel with one theta1 for each
    input, moved in the member's directions. ``chosen`` is the result of the comparison."""

    def __init__(self, objective: RegressionObjective, chosen: Tried, drawn: Sequence[Start]) -> None:
        kernel = with_standard(objective.kernel, nu=np.float64(chosen.member.nu))
        super().__init__(
            kernel, objective.rows, objective.target, objective.noise, objective.solver, objective.mean,
            objective.use_priors, objective.jacobian,
        )  # fmt: skip
        self.coordinates, self.chosen, self._drawn = Coordinates(self.model), chosen, drawn
        self.keeps = objective.keeps
        self.weak = None if self.use_priors else WeakPrior.of(self)

    def prior(self) -> LogDensity | None:
        return self._own_prior if self.use_priors else self.weak

    @functools.cached_property
    def _own_prior(self) -> LogDensity:
        """Of the member's own kernel, which has fewer parameters."""
        kernel, kept = _simplified(self, self.chosen.member)
        own = self.with_kernel(kernel).model_prior
        assert own is not None

        def prior(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = own(theta[kept])
            gradient = np.zeros(len(theta))
            gradient[kept] = slope
            return value, gradient

        return prior

    def directions(self) -> np.ndarray:
        return self.coordinates.directions(self.chosen.member)

    def starts(self) -> list[Start]:
        marginal = marginal_starts(self, self.coordinates) if self.chosen.member.each else []
        drawn = [*marginal, *self._drawn][: len(self._drawn)] if self._drawn else marginal
        found = [self._of_choice(), *starts(self, self.coordinates, steep=True), *drawn]
        return [Start(name, self.coordinates.of(self.chosen.member, theta)) for name, theta in found]

    def late_start(self, rows: int) -> Start | None:
        return self._of_choice() if rows == self.chosen.rows else None

    def _of_choice(self) -> Start:
        return Start("the choice of the kernel", self.chosen.theta)

    def off_plateau(self, theta: np.ndarray) -> np.ndarray | None:
        """On few rows an input may be irrelevant: its lengthscale is infinite, and more rows do not lead back."""
        lengths, scaled = self.coordinates.lengths, scaled_start(self, self.coordinates)
        noisy = super().off_plateau(theta)
        free = theta.copy() if noisy is None else noisy
        free[lengths] = np.maximum(free[lengths], scaled[lengths] - 2 * math.log(PLATEAU_FACTOR))
        return None if np.abs(free - theta).max() < MIN_PLATEAU_MOVE else free


def learn_default(
    objective: RegressionObjective, settings: Settings, seed: int, journal: Journal | None = None
) -> LearnedDefault:
    """Choose a member of the family on the rows of early stages, then learn its parameters."""
    journal = journal or Journal()
    course = Course(until=settings.until)
    choice = choose_on_first_rows(objective, seed, Progress.of(settings.progress), journal, course)
    if choice.tried and not choice.interrupted and block_validation().applies(objective):
        choice = block_validation().choose_by_blocks(objective, choice, seed, Progress.of(settings.progress), journal)
    if not choice.tried:
        return LearnedDefault(objective, learn_regression(objective, settings, seed, journal), None)
    chosen = choice.tried[0]
    count = DRAWN_STARTS if search_stages(objective.n)[0] <= MAX_ROWS_TO_DRAW else 0
    member = MemberObjective(objective, chosen, random_starts(objective, chosen.member, count, generator(seed)))
    if choice.interrupted:
        found = Optimum(chosen.log_evidence, chosen.theta, "interrupted", converged=False)
        learned = Learned([found], [], choice.evaluations, interrupted=True)
    else:
        learned = learn_regression(member, settings, seed, journal)
        learned = dataclasses.replace(learned, evaluations=learned.evaluations + choice.evaluations)
    # Values are reported without the weak prior, which an interrupted choice left out already.
    weak = None if choice.interrupted else member.weak
    kernel, kept = _simplified(member, chosen.member)
    value = lambda value, theta: value if weak is None else value - weak(theta)[0]
    return LearnedDefault(member.with_kernel(kernel), learned.mapped(lambda theta: theta[kept], value), choice)


def block_validation() -> ModuleType:
    from mercer.learning import block_validation as module  # imports this one

    return module


def _simplified(objective: RegressionObjective, member: Member) -> tuple[Kernel, np.ndarray]:
    """The member's own kernel, with one theta1 where lengthscales are one, no theta3 where there is no linear term, and
    the standard kernel alone where it has no interactions; and a mask of the coordinates that remain."""
    coordinates, kernel = Coordinates(objective.model), with_standard(objective.kernel, nu=np.float64(member.nu))
    path = standard_path(kernel)
    assert path is not None
    kept = np.ones(coordinates.size, bool)
    if not member.each:
        kept[coordinates.lengths[1:]] = False
        kernel = with_standard(kernel, theta1=node_at(kernel, path).theta1[0])
    if not member.linear and coordinates.linear is not None:
        kept[coordinates.linear] = False
        kernel = with_standard(kernel, theta3=np.float64(0.0))
    if not member.crossed and len(coordinates.crossed):
        kept[coordinates.crossed] = False
        kernel = evolve(kernel, parts=(kernel.parts[0].parts[0], *kernel.parts[1:]))  # type: ignore[attr-defined]
    return kernel, kept


def kernel_of(objective: RegressionObjective, tried: Tried) -> Kernel:
    """The kernel of a member that was tried, with the parameters found."""
    kernel, kept = _simplified(objective, tried.member)
    return objective.with_kernel(kernel).at(tried.theta[kept]).kernel


# -- comparing members ---------------------------------------------------------------------------------------------


class TimeOver(Exception):
    """No further member is begun."""


@dataclasses.dataclass
class Course:
    """Course of a choice: the members tried in order, each with its seconds, the time from which no further one is
    begun, and whether that was reached."""

    history: list[Tried] = dataclasses.field(default_factory=list)
    until: float = math.inf
    over: bool = False

    def begin(self) -> float:
        """The time now; `TimeOver` if it is late and there is something to choose from."""
        now = time.monotonic()
        if self.history and now >= self.until:
            self.over = True
            raise TimeOver
        return now

    def end(self, tried: Tried, began: float) -> None:
        self.history.append(tried._replace(seconds=time.monotonic() - began))


class Comparison:
    """Members of the family on some rows (None: all) of an ``objective`` whose kernel is standard, with one theta1 for
    each input."""

    def __init__(
        self,
        objective: RegressionObjective,
        rows: np.ndarray | None,
        progress: Progress | None = None,
        journal: Journal | None = None,
        course: Course | None = None,
    ) -> None:
        self.objective, self.rows, self.course = objective, rows, course or Course()
        self.coordinates = Coordinates(objective.model)
        self.m = objective.n if rows is None else len(rows)
        self.tried: dict[Member, Tried] = {}
        given = prior_of(objective.model, objective.jacobian) if objective.use_priors else None
        self.prior = product_of_priors(WeakPrior.of(objective), given)
        self.thetas = np.stack([theta for _, theta in starts(objective, self.coordinates, steep=False)])
        self.marginal = [theta for _, theta in marginal_starts(objective, self.coordinates)]
        self._progress, self._stack = progress or Progress(shown=False), contextlib.ExitStack()
        self._journal = journal or Journal()
        self._surfaces: dict[float, tuple[Evidence, ObjectiveSurface]] = {}
        room = np.where(self.coordinates.logarithmic, MAX_LOG_CHANGE, np.inf)
        self._box = self.thetas.min(axis=0) - room, self.thetas.max(axis=0) + room
        if self.coordinates.linear is not None:
            self._box[0][self.coordinates.linear] += OFF_LOG_RATIO
        self._box[0][self.coordinates.crossed] += OFF_LOG_RATIO
        self._profiled = objective.profiled() if self.prior is None else None
        if self._profiled is None:
            self._box = np.maximum(self._box[0], objective.floor()), self._box[1]

    def __enter__(self) -> Self:
        self._stack.callback(self._progress.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._journal.flush()

    @property
    def evaluations(self) -> int:
        return sum(surface.evaluations for _, surface in self._surfaces.values())

    def surface(self, nu: float) -> ObjectiveSurface:
        return self._evidence_and_surface(nu)[1]

    def _evidence_and_surface(self, nu: float) -> tuple[Evidence, ObjectiveSurface]:
        if nu not in self._surfaces:
            objective = self.objective.with_kernel(with_standard(self.objective.kernel, nu=np.float64(nu)))
            evidence = self._stack.enter_context(objective.criterion(self.rows))
            log = self._journal.log(f"nu {nu}, {rows_name(self.m, self.rows)}")
            surface = ObjectiveSurface(evidence, self._box, self._profiled, self.prior, self._watch, log)
            self._surfaces[nu] = evidence, surface
        return self._surfaces[nu]

    def _refused(self, nu: float) -> bool:
        """Whether the solver takes no kernel of this smoothness; it takes that of the objective."""
        kernel, objective = with_standard(self.objective.kernel, nu=np.float64(nu)), self.objective
        return nu not in self._surfaces and objective.solver.refusal(kernel, objective.X, objective.noise) is not None

    def _watch(self, surface: ObjectiveSurface) -> None:
        self._progress(
            lambda: f"choosing the kernel on {self.m:,} of {self.objective.n:,} rows, {len(self.tried)} done"
        )

    def maximise(
        self, member: Member, thetas: Iterable[np.ndarray], keep: int = 1, min_gain: float = MIN_GAIN
    ) -> Tried | None:
        """The member at the highest maximum reached from the best of these places after a few iterations; None if the
        solver refuses it, or there is no evidence there. Raises `TimeOver` if there is no time left to begin another
        member."""
        began = self.course.begin()
        if self._refused(member.nu):
            return None
        (evidence, surface), directions = self._evidence_and_surface(member.nu), self.coordinates.directions(member)
        thetas = [self.coordinates.of(member, theta) for theta in thetas]
        candidates = [ClimbStart("", theta) for theta in thetas if surface.at(theta) is not None]
        if not candidates:
            return None
        if len(candidates) > keep:
            screened = [climb(surface, each, directions, SCREENING_ITERATIONS, MIN_GAIN) for each in candidates]
            screened.sort(key=lambda optimum: -optimum.value)
            candidates = [ClimbStart("", optimum.theta) for optimum in screened[:keep]]
        climbs = [climb(surface, each, directions, MAX_ITERATIONS, min_gain) for each in candidates]
        best = max(climbs, key=lambda optimum: optimum.value)
        score = evidence.score(np.clip(best.theta, *surface.box))
        log_evidence = best.value - (0.0 if self.prior is None else self.prior(best.theta)[0])
        penalised = score * (1 + PARAMETER_COST * directions.shape[1] / self.m)
        self.tried[member] = Tried(member, log_evidence, penalised, best.theta, self.m)
        self.course.end(self.tried[member], began)
        return self.tried[member]

    def maximise_from_leader(self, own: Tried) -> None:
        """Maximise once more, from where the member with the highest evidence ended: if that is higher than where this
        one ended, or if its own evidence is so much lower that the smoothness cannot be the reason."""
        here = self.tried.get(own.member)
        if here is None:
            return
        alike = [other for other in self.tried.values() if other.member.each == own.member.each]
        leader = max(alike, key=lambda tried: tried.log_evidence)
        theta = leader.theta.copy()
        if self.coordinates.linear is not None and own.member.linear and not leader.member.linear:
            theta[self.coordinates.linear] = own.theta[self.coordinates.linear]
        if own.member.crossed and not leader.member.crossed:
            theta[self.coordinates.crossed] = own.theta[self.coordinates.crossed]
        theta = self.coordinates.of(own.member, theta)
        there = self.surface(own.member.nu).at(theta, gradient=False)
        if leader is here or there is None:
            return
        if there.value > here.log_evidence or leader.log_evidence > here.log_evidence + MAX_EVIDENCE_GAP:
            again = self.maximise(own.member, [theta], min_gain=MIN_GAIN_AGAIN)
            if again is None or again.log_evidence < here.log_evidence:
                self.tried[own.member] = here

    def by_evidence(self, member: Member, thetas: Sequence[np.ndarray] | np.ndarray) -> list[np.ndarray]:
        """Those where the member has the highest evidence first."""
        points = [self.surface(member.nu).at(theta, gradient=False) for theta in thetas]
        order = np.argsort([math.inf if point is None else -point.value for point in points])
        return [thetas[i] for i in order]

    def ranked(self) -> list[Tried]:
        """What was tried, best first. Interactions must also raise the evidence by ln(n) / 2 for each of their
        parameters (the price in PRML 4.139): of left-out rows alone, some always seem to be predicted better."""
        found = best_first(self.tried.values())
        plain = [tried.log_evidence for tried in found if not tried.member.crossed]
        price = 0.5 * math.log(self.m) * len(self.coordinates.crossed)
        if plain and found[0].member.crossed and found[0].log_evidence - max(plain) <= price:
            found.sort(key=lambda tried: tried.member.crossed)
        return found


def choose(
    objective: RegressionObjective,
    rows: np.ndarray | None,
    later: Iterable[np.ndarray | None] = (),
    progress: Progress | None = None,
    journal: Journal | None = None,
    course: Course | None = None,
) -> Choice:
    """The member of the family for an ``objective``, by these rows (None: all).

    One lengthscale or one each is decided at the first smoothness; then the smoothness; then the linear term and once
    more the lengthscales, at the best of these; and without interactions, if there are any. Some 40 to 120 evaluations.
    The best few are then compared again on each set of rows in ``later`` (None: all rows).
    """
    interrupted, evaluations = False, 0
    with Comparison(objective, rows, progress, journal, course) as comparison:
        lengths, tried = comparison.coordinates.lengths, comparison.tried
        linear = comparison.coordinates.linear is not None and comparison.m >= MIN_ROWS_FOR_LINEAR
        crossed = len(comparison.coordinates.crossed) > 0
        one, each = (Member(FIRST_SMOOTHNESS, linear, each, crossed) for each in (False, True))
        try:
            many = len(lengths) > 1 and objective.n >= MIN_ROWS_PER_LENGTHSCALE * len(lengths)
            comparison.maximise(one, comparison.by_evidence(one, comparison.thetas)[: 1 if many else 2], keep=2)
            if many:
                thetas = [*comparison.thetas[:3], *comparison.marginal, *(t.theta for t in tried.values())]
                comparison.maximise(each, thetas)
            if not tried:
                return Choice([], comparison.m, comparison.evaluations)
            first = comparison.ranked()[0]
            for nu in SMOOTHNESSES:
                if nu != FIRST_SMOOTHNESS:
                    comparison.maximise(first.member._replace(nu=nu), [first.theta])
            ranked = [found for found in comparison.ranked() if found.member.each == first.member.each]
            best, other_kind = ranked[0], one if first.member.each else each
            if linear:
                plain = best.member._replace(linear=False)
                thetas = [comparison.coordinates.without_linear(best.theta),
                          comparison.coordinates.nearly_linear(best.theta, comparison.thetas[0])]  # fmt: skip
                comparison.maximise(plain, comparison.by_evidence(plain, thetas)[:1])
            other = best.member._replace(each=not best.member.each)
            if other not in tried and other_kind in tried:
                comparison.maximise(other, [tried[other_kind].theta])
            if crossed:
                best = comparison.ranked()[0]
                # Where interactions explained everything, the columns' own effects have vanished: start with these too.
                thetas = [best.theta, *comparison.thetas[:3]]
                added = best.member._replace(crossed=False)
                comparison.maximise(added, thetas, keep=2)
                if comparison.ranked()[0].member == added:  # without them, the function may be another
                    for nu in SMOOTHNESSES:
                        comparison.maximise(added._replace(nu=nu), [tried[added].theta])
        except TimeOver:
            later = ()
        except KeyboardInterrupt:  # what was tried until then
            if not tried:
                raise
            interrupted = True
        ranked, m, evaluations = comparison.ranked(), comparison.m, comparison.evaluations
    for rows in later:
        if interrupted:
            break
        with Comparison(objective, rows, progress, journal, course) as comparison:
            finalists, complete = _finalists(ranked), False
            try:
                for found in finalists:
                    comparison.maximise(found.member, [found.theta], min_gain=MIN_GAIN_AGAIN)
                for found in finalists:  # more rows may have led one of them to another optimum
                    comparison.maximise_from_leader(found)
            except TimeOver:  # where some were not compared on these rows, the first rows decide
                complete = all(found.member in comparison.tried for found in finalists)
            except KeyboardInterrupt:
                interrupted = True
            else:
                complete = True
            if complete:
                others = [found for found in ranked if found.member not in comparison.tried]
                ranked, m = comparison.ranked() + others, comparison.m
            evaluations += comparison.evaluations
    return Choice(ranked, m, evaluations, interrupted)


def comparison_rows(n: int, fast: bool) -> list[int]:
    """Numbers of rows on which members are compared: those of the first two stages of learning, and of later ones where
    there are many. Little signal in much noise shows on many rows only, and a member without it never finds it again.
    ``fast``: the time of an evaluation grows no faster than the rows.

    >>> comparison_rows(400, fast=False), comparison_rows(2000, fast=True)
    ([400], [300, 600])
    >>> comparison_rows(50_000, fast=False), comparison_rows(50_000, fast=True)
    ([600, 1200], [1200, 4800])
    """
    sizes = search_stages(n)
    least = min(n * MIN_COMPARED_SHARE, MAX_FIRST_FAST_ROWS if fast else MAX_FIRST_ROWS)
    first = next(i for i, rows in enumerate(sizes) if rows >= least)
    later = first + (2 if fast and sizes[first] == MAX_FIRST_FAST_ROWS else 1)
    return [sizes[first], *sizes[later : later + 1]]


def choose_on_first_rows(
    objective: RegressionObjective,
    seed: int,
    progress: Progress,
    journal: Journal | None = None,
    course: Course | None = None,
) -> Choice:
    """The member of the family by the rows of an early stage of learning, and of a later one if there is one."""
    order = generator(seed).permutation(objective.n)
    sizes = comparison_rows(objective.n, objective.solver.growth == 1)
    rows, *more = [None if m == objective.n else np.sort(order[:m]) for m in sizes]
    return choose(objective, rows, more, progress, journal, course)


def _finalists(ranked: list[Tried]) -> list[Tried]:
    """The best with each smoothness, the best with the other kind of lengthscales, and the best with or without
    interactions: more rows show rougher functions, and afford a lengthscale for each input. None that is far behind."""
    best = ranked[0]
    smoothnesses: dict[float, Tried] = {}  # the best with each
    near = [found for found in ranked if found.score > best.score * (1 + MAX_SCORE_LAG)]
    for found in near:
        if found.member.each == best.member.each and found.member.crossed == best.member.crossed:
            smoothnesses.setdefault(found.member.nu, found)
    others = [found for found in near if found.member.each != best.member.each]
    crossed = [found for found in near if found.member.crossed != best.member.crossed]
    return [*smoothnesses.values(), *others[:1], *(found for found in crossed[:1] if found not in others[:1])]
