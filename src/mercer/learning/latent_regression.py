"""Learning a regression whose likelihood is not Gaussian: kernel and likelihood, by the approximate evidence.

The unknown constant of the latent function has a vague prior: a constant term of fixed variance in its covariance.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout, from_free, to_free
from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.inputs import Inputs, take_rows
from mercer.core.parameters import evolve
from mercer.core.random import generator
from mercer.gp.likelihoods import Student, Target, TargetLikelihood
from mercer.gp.mean import UNKNOWN
from mercer.gp.model import Model
from mercer.gp.noise import LearnedNoise, RowNoise
from mercer.inference import targets
from mercer.inference.sites import LatentCovariance
from mercer.kernels import Constant, Standard
from mercer.kernels.base import Kernel
from mercer.learning import family, heuristics
from mercer.learning.choice import Choice
from mercer.learning.label_evidence import KeepsCovariances, LastInference, recalled, remembered
from mercer.learning.objective import MAX_RANKING_ROWS, Criterion, LogDensity, ModelObjective, Start
from mercer.learning.optimise import Learned, Settings, learn
from mercer.learning.progress import Progress
from mercer.learning.regression import RegressionObjective
from mercer.learning.state import Journal
from mercer.learning.weak_priors import with_weak_priors
from mercer.solvers.base import Evaluation, Solver
from mercer.solvers.dense import Dense

MAX_CHOICE_ROWS = 500  # on which a default kernel is learned before its member of the family is chosen
MAX_STARTS = 2  # climbed from
MAX_LOG_CHANGE = 10.0  # how far a logarithm may move from the starts
MIN_INLIER_SHARE = 0.02  # of the largest precision: rows below it are outliers
MAX_INLIER_Z = 4.0  # deviations from the prediction without the row: others are outliers of a Gaussian model
MAX_TRIMMINGS = 2  # times that outliers are identified again, by the model without them
MIN_NOISE_SHARE = 1e-8  # of the target's variance
MIN_SITE_SHARE = 0.02  # of the median precision: rows below it are too uninformative to select a kernel
PRIOR_DEVIATION = 4.0  # of the logarithms of the parameters, around the start: where rows do not determine them


def with_constant(kernel: Kernel, variance: float) -> Kernel:
    """The kernel plus a constant of this variance, which is not learned."""
    if not variance:
        return kernel
    if isinstance(kernel, Standard) and np.asarray(kernel.theta2) == 0:
        return evolve(kernel, theta2=np.float64(variance), fixed=kernel.fixed | {"theta2"})
    return kernel + Constant(variance).fix()


class TargetEvidence(KeepsCovariances):
    """Approximate evidence on fixed rows. Inference starts from where it ended at the previous theta."""

    def __init__(self, objective: "LatentObjective") -> None:
        self.n, self.target, self.method = objective.n, objective.target, objective.method
        self.likelihood = objective.likelihood
        self.infer = targets.method(objective.method, objective.likelihood)
        self.space = objective.solver.latent(objective.prior_kernel, objective.X)
        self.spaces = [self.space]
        self.layout = Layout.of(objective.model)
        self.size = self.layout.size
        self.approximation: Any = None  # the last one
        self.iterations = 0
        self.jitter, self.diagonal = 0.0, 1.0

    def __enter__(self) -> Self:
        self.space.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.space.__exit__(*error)

    def memory(self) -> Mapping[str, np.ndarray]:
        """Where inference ended, and its iterations."""
        return remembered(self.approximation, self.iterations)

    def replayed(self, theta: np.ndarray, memory: Mapping[str, np.ndarray] | None) -> None:
        """As `Continuing.replayed`."""
        if memory:
            self.approximation, self.iterations = recalled(memory)

    def covariance(self, theta: np.ndarray, accurate: bool = False) -> LatentCovariance:
        K = self.space.at(np.asarray(theta, dtype=float)[self.layout.part("kernels")], self.jitter, accurate)
        self.diagonal, self._last = float(np.mean(K.diagonal)), [K]
        return K

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        # NaN marks a tile that lost digits: then all of them are computed accurately.
        return self._evaluate(theta, gradient, accurate=False) or self._evaluate(theta, gradient, accurate=True)

    def _evaluate(self, theta: np.ndarray, gradient: bool, accurate: bool) -> Evaluation | None:
        own = np.asarray(theta, dtype=float)[self.layout.part("likelihood")]
        with np.errstate(all="ignore"):
            likelihood = from_free(self.likelihood, own)
            found = self.infer(self.covariance(theta, accurate), self.target, likelihood, self.approximation, gradient)
            if found is None or not math.isfinite(found.log_evidence):
                return None
            self.approximation = found
            self.iterations += found.iterations
            if not gradient:
                return Evaluation(found.log_evidence, None, 1.0)
            contraction = self.space.contraction(np.asarray(theta, dtype=float)[self.layout.part("kernels")])
            slope = np.empty(self.size)
            slope[self.layout.part("kernels")] = found.slope([contraction])
            slope[self.layout.part("likelihood")] = found.likelihood_slope
        return Evaluation(found.log_evidence, slope, 1.0) if np.isfinite(slope).all() else None


@dataclasses.dataclass(frozen=True, eq=False)
class LatentObjective(ModelObjective):
    """Approximate evidence of a target by ``method``. Starts are ``given``, or scaled to the data.

    ``constant`` is the variance of the unknown constant, zero where there is none. ``weak``: a weak prior around the
    starts, as for the default kernel. ``tied``: the kernel is the default one, whose lengthscales move together.
    ``held``: only the likelihood is learned.
    """

    kernel: Kernel
    X: Inputs
    target: Target
    likelihood: TargetLikelihood
    method: str
    constant: float = 0.0
    use_priors: bool = False
    weak: bool = False
    given: Sequence[Start] = ()
    tied: bool = False
    held: bool = False
    solver: Solver = dataclasses.field(default_factory=Dense)

    max_log_change = MAX_LOG_CHANGE

    @property
    def n(self) -> int:
        return len(self.target)

    @functools.cached_property
    def model(self) -> Model:  # type: ignore[override]
        return Model((self.kernel,), likelihood=self.likelihood)

    @property
    def prior_kernel(self) -> Kernel:
        """Covariance of the latent function, its unknown constant included."""
        return with_constant(self.kernel, self.constant)

    def criterion(self, rows: np.ndarray | None = None) -> TargetEvidence:
        evidence = TargetEvidence(self if rows is None else self.part(rows))
        if rows is None:
            evidence.allow()
        return evidence

    def outcome(self, criterion: Criterion) -> LastInference | None:
        assert isinstance(criterion, TargetEvidence)
        last = LastInference(criterion.approximation, criterion.iterations, criterion.n, criterion.kept)
        return last if criterion.n == self.n else None

    def part(self, rows: np.ndarray) -> "LatentObjective":
        """The same on some rows."""
        return dataclasses.replace(self, X=take_rows(self.X, rows), target=self.target.take(rows))

    # -- the search ----------------------------------------------------------------------------------------------------

    def starts(self) -> Sequence[Start]:
        """As given, or the kernel as it is and scaled to the data beside starts of the likelihood: the best by
        Laplace's method, or the bound for Student's t, on some of the rows."""
        return self.given or self._scaled_starts

    @functools.cached_property
    def _scaled_starts(self) -> list[Start]:
        found: list[Start] = []
        for likelihood, variance in self.likelihood.starts(self.target):
            kernels = heuristics.starting_kernels(self.kernel, self.X, variance, bool(self.constant))
            for kernel in kernels:
                own = np.asarray(to_free(likelihood), dtype=float)
                theta = self.layout.joined(kernels=np.asarray(to_free(kernel), dtype=float), likelihood=own)
                if not any(np.array_equal(theta, other) for _, other in found):
                    found.append(Start("as given" if not found else f"scaled to the data ({len(found)})", theta))
        return self._best(found)

    def _best(self, starts: list[Start]) -> list[Start]:
        if len(starts) <= 1:
            return starts
        some = self
        if self.n > MAX_RANKING_ROWS:
            some = self.part(np.random.default_rng(0).permutation(self.n)[:MAX_RANKING_ROWS])
        fast = "laplace" if self.likelihood.log_concave else self.method
        with dataclasses.replace(some, method=fast).criterion() as evidence:
            answers = [evidence(theta, gradient=False) for _, theta in starts]
        values = np.array([-math.inf if answer is None else answer.value for answer in answers])
        order = np.argsort(-values, kind="stable")[:MAX_STARTS]
        return [starts[i] for i in order if values[i] > -math.inf] or starts

    def floor(self) -> np.ndarray:
        return self.layout.joined(kernels=np.array(-np.inf), likelihood=self.likelihood.bounds()[0])

    def ceiling(self) -> np.ndarray:
        return self.layout.joined(kernels=np.array(np.inf), likelihood=self.likelihood.bounds()[1])

    def directions(self) -> np.ndarray:
        if self.held:
            return np.eye(self.size)[:, self.layout.part("likelihood")]
        if not self.tied:
            return super().directions()
        return family.Coordinates(self.model).directions(family.Member(family.FIRST_SMOOTHNESS, True, False, True))

    @functools.cached_property
    def prior_model(self) -> Model:
        likelihood, variance = self.likelihood.starts(self.target)[0]  # on the scale of the data
        model = dataclasses.replace(self, likelihood=likelihood).model
        return with_weak_priors(model, self.X, variance, bool(self.constant), at_mode=True)

    def prior(self) -> LogDensity | None:
        if self.use_priors:
            return self.model_prior
        if not self.weak:
            return None
        centre, logarithmic = self.starts()[0].theta, self.logarithmic()

        def log_density(theta: np.ndarray) -> tuple[float, np.ndarray]:
            away = np.where(logarithmic, theta - centre, 0.0) / PRIOR_DEVIATION
            return -0.5 * float(away @ away), -away / PRIOR_DEVIATION

        return log_density

    # -- what theta means ----------------------------------------------------------------------------------------------

    def units(self, scale: float) -> np.ndarray:
        """What to add to theta where y is ``scale`` times this target."""
        return self.layout.joined(likelihood=self.likelihood.unit_exponents() * math.log(scale))


class LearnedTarget(NamedTuple):
    """The objective with the kernel chosen for it, what was learned, and the choice, if there was one."""

    objective: LatentObjective
    learned: Learned
    choice: Choice | None


def learn_target(
    objective: LatentObjective, settings: Settings, seed: int, journal: Journal | None = None, choose: bool = False
) -> LearnedTarget:
    """Maximise the evidence. With ``choose``, the kernel is a standard one, whose member of the family is chosen by
    the Gaussian regression that its posterior amounts to; the chosen one is learned again."""
    if not choose:
        return LearnedTarget(objective, _learn(objective, settings, seed, journal), None)
    fast = "laplace" if objective.likelihood.log_concave else objective.method
    first = dataclasses.replace(objective, tied=True, method=fast)
    rows = np.sort(generator(seed).permutation(objective.n)[:MAX_CHOICE_ROWS])
    learned = _learn(first if len(rows) == objective.n else first.part(rows), settings, seed, journal)
    if learned.interrupted:
        return LearnedTarget(objective, learned, None)
    try:
        among = _chosen if objective.likelihood.log_concave else _chosen_without_outliers
        chosen, choice = among(first, learned, settings, seed)
        again = _learn(dataclasses.replace(chosen, tied=False, method=objective.method), settings, seed, None)
    except KeyboardInterrupt:
        return LearnedTarget(objective, dataclasses.replace(learned, interrupted=True), None)
    again = dataclasses.replace(again, evaluations=again.evaluations + learned.evaluations + choice.evaluations)
    return LearnedTarget(chosen, again, choice)


def _learn(objective: LatentObjective, settings: Settings, seed: int, journal: Journal | None) -> Learned:
    learned = learn(objective, settings, generator(seed), journal)
    if not learned.optima:
        gram.diagonal(objective.kernel, objective.X)  # an error that says more, where values are not finite
        raise NotPositiveDefiniteError(
            f"the posterior of these {objective.n} rows could not be found at any starting value of the parameters "
            f"of {objective.kernel!r}. Look at the kernel with mercer.check_kernel(kernel, X)."
        )
    return learned


def _chosen(
    objective: LatentObjective, learned: Learned, settings: Settings, seed: int
) -> tuple[LatentObjective, Choice]:
    """The objective with the member of the family that predicts best, started at its parameters."""
    y, noise = _as_regression(objective, learned)
    rows = np.flatnonzero(1 / noise >= MIN_SITE_SHARE * np.median(1 / noise))
    kernel = objective.at(learned.theta).kernel
    kernel = family.with_standard(kernel, nu=np.float64(family.FIRST_SMOOTHNESS))
    X = take_rows(objective.X, rows) if len(rows) < len(y) else objective.X
    surrogate = RegressionObjective(kernel, X, y[rows], RowNoise(noise[rows]), objective.solver, _mean(objective))
    choice = family.choose_on_first_rows(
        surrogate, seed, Progress.of(settings.progress), course=family.Course(until=settings.until)
    )
    if not choice.tried:
        return dataclasses.replace(objective, given=[Start("one lengthscale", learned.theta)]), choice
    found = family.kernel_of(surrogate, choice.tried[0])
    chosen = dataclasses.replace(objective, kernel=found)
    own = learned.theta[objective.layout.part("likelihood")]
    start = chosen.layout.joined(kernels=np.asarray(to_free(found), dtype=float), likelihood=own)
    return dataclasses.replace(chosen, given=[Start("the choice of the kernel", start)]), choice


def _chosen_without_outliers(
    objective: LatentObjective, learned: Learned, settings: Settings, seed: int
) -> tuple[LatentObjective, Choice]:
    """The objective with the default kernel as a Gaussian model learns it from the rows that are no outliers, of which
    only the likelihood is left to be learned.

    The evidence of Student's t explains rough functions as heavy tails where these are present: on real data with
    outliers its kernels were too smooth, and errors a quarter larger.
    """
    y, noise = _as_regression(objective, learned)
    rows = np.flatnonzero(1 / noise >= MIN_INLIER_SHARE * np.max(1 / noise))
    found = _learned_from(objective, y, rows, settings, seed)
    for _ in range(MAX_TRIMMINGS):  # outliers are identified again, by the residuals of that model
        z = np.abs(_standardised_residuals(found, objective, y, rows))
        kept = np.flatnonzero(z < MAX_INLIER_Z)
        if len(kept) < 0.5 * len(y) or np.array_equal(kept, rows):
            break
        rows = kept
        found = _learned_from(objective, y, rows, settings, seed)
    theta, likelihood = found.learned.theta, objective.at(learned.theta).likelihood
    scale = math.sqrt(found.objective.variances(theta)[0])
    assert isinstance(likelihood, Student)
    if "scale" not in likelihood.fixed:
        likelihood = evolve(likelihood, scale=np.float64(scale))
    chosen = dataclasses.replace(objective, kernel=found.objective.at(theta).kernel, held=True)
    start = chosen.layout.joined(
        kernels=np.asarray(to_free(chosen.kernel), dtype=float), likelihood=np.asarray(to_free(likelihood), dtype=float)
    )
    choice = found.choice or Choice([], len(rows), found.learned.evaluations)
    return dataclasses.replace(chosen, given=[Start("learned without outliers", start)]), choice


def _learned_from(
    objective: LatentObjective, y: np.ndarray, rows: np.ndarray, settings: Settings, seed: int
) -> family.LearnedDefault:
    """The default kernel of a Gaussian model of some rows."""
    X = take_rows(objective.X, rows) if len(rows) < len(y) else objective.X
    kernel = family.with_standard(objective.kernel, nu=np.float64(family.FIRST_SMOOTHNESS))
    floor = MIN_NOISE_SHARE * float(np.var(y[rows])) or 1.0
    noise = LearnedNoise().bounded_below(floor)
    plain = RegressionObjective(kernel, X, y[rows], noise, objective.solver, _mean(objective))
    return family.learn_default(plain, settings, seed)


def _mean(objective: LatentObjective) -> str | float:
    """Mean of a Gaussian regression in place of the latent function's."""
    return UNKNOWN if objective.constant else 0.0


def _standardised_residuals(
    found: family.LearnedDefault, objective: LatentObjective, y: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Of every row, predicted by the model of ``rows``: of these from the others."""
    own, theta = found.objective, found.learned.theta
    variances = own.variances(theta)
    posterior = own.solver.posterior(own.at(theta).kernel, own.rows, own.target, variances, own.mean)
    z = np.empty(len(y))
    z[rows] = posterior.left_out().z(y[rows])
    others = np.setdiff1d(np.arange(len(y)), rows)
    if len(others):
        z[others] = posterior.predict(gram.raw(take_rows(objective.X, others)), variances[0]).z(y[others])
    return z


def _as_regression(objective: LatentObjective, learned: Learned) -> tuple[np.ndarray, np.ndarray]:
    """Targets and noise variances of the Gaussian regression with the posterior of all rows."""
    with objective.criterion() as evidence:
        evidence.jitter = learned.jitter
        K = evidence.covariance(learned.theta, accurate=True)
        evidence(learned.theta, gradient=False)
        assert evidence.approximation is not None
        return targets.as_regression(evidence.approximation, K.diagonal)
