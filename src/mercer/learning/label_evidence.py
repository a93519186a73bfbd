"""Approximate evidence of labels, ln p(t | theta), and its gradient: what learning a classifier maximises.

One kernel, or one for each class; theta is the free parameters of one kernel after the other.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from mercer.core import machine
from mercer.core.coordinates import Layout, to_free
from mercer.core.inputs import Inputs, take_rows
from mercer.gp.model import Model
from mercer.inference.base import Approximation, Inference, WarmStart, named
from mercer.inference.latent import LatentCovariance, LatentSpace
from mercer.kernels.base import Kernel
from mercer.learning import heuristics
from mercer.learning.family import Coordinates, WeakPrior
from mercer.learning.objective import MAX_RANKING_ROWS, Criterion, LogDensity, ModelObjective, Start
from mercer.learning.weak_priors import with_weak_priors
from mercer.solvers.base import Evaluation, Solver
from mercer.solvers.dense import Dense

START_VARIANCES = (1.0, 10.0)  # of a latent function: classes hardly told apart, or nearly certain
PRIOR_VARIANCE = 30.0  # of a latent function, at the centre of the weak prior of the default kernel
MAX_LOG_CHANGE = 8.0  # where classes are well apart, a variance would grow without end
MULTICLASS_TOLERANCE = 50.0  # more than two classes are learned to a tenth of a nat where rows are many
ROUNDING_NATS = 1e-6  # by which an evidence may seem to exceed that of a certain prediction


class KeptCovariances(NamedTuple):
    """Covariances of the latent functions, ``jitter`` on the diagonals included, as they were computed at theta."""

    theta: np.ndarray
    jitter: float
    covariances: list[Any]  # of `LatentCovariance`

    def at(self, theta: np.ndarray, jitter: float) -> list[Any] | None:
        """Those at theta, with this jitter; None if they were not kept there."""
        return self.covariances if self.jitter == jitter and np.array_equal(self.theta, theta) else None


class KeepsCovariances:
    """A criterion that can keep the covariances of its best call near the end of a climb (`Keeping`)."""

    spaces: Sequence[LatentSpace]
    jitter: float
    keeping = False
    kept: KeptCovariances | None = None
    may_keep = False  # whether there is memory for it
    _last: Sequence[LatentCovariance]

    def allow(self) -> None:
        """Keep them if there is memory for as many once more."""
        self.may_keep = 8 * sum(space.n * space.rank for space in self.spaces) <= machine.keepable()

    def keep(self, theta: np.ndarray) -> None:
        if self.may_keep and self.keeping and all(space.give_away() for space in self.spaces):
            self.kept = KeptCovariances(theta.copy(), self.jitter, list(self._last))


class LabelEvidence(KeepsCovariances):
    """Evidence of labels on fixed rows. Inference starts from where it ended at the previous theta.

    Memory: one matrix of the solver's for each kernel, and what inference takes.
    """

    def __init__(
        self, kernels: Sequence[Kernel], X: Inputs, codes: np.ndarray, infer: Inference, solver: Solver
    ) -> None:
        self.n, self.codes, self.infer = len(codes), codes, infer
        self.approximation: Any = None  # the last one
        self.iterations = 0  # of inference, at all theta together
        self.spaces = [solver.latent(kernel, X) for kernel in kernels]
        layout = Layout.of(Model(tuple(kernels)))
        self.size, self.parts = layout.size, [layout.part("kernels", c) for c in range(len(kernels))]
        self.jitter, self.diagonal = 0.0, 1.0

    def __enter__(self) -> Self:
        for space in self.spaces:
            space.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for space in self.spaces:
            space.__exit__(*error)

    def memory(self) -> Mapping[str, np.ndarray]:
        """Where inference ended, and its iterations."""
        return remembered(self.approximation, self.iterations)

    def replayed(self, theta: np.ndarray, memory: Mapping[str, np.ndarray] | None) -> None:
        """As `Continuing.replayed`."""
        if memory:
            self.approximation, self.iterations = recalled(memory)

    def split(self, theta: np.ndarray) -> list[np.ndarray]:
        """Each kernel's part of theta."""
        return [np.asarray(theta, dtype=float)[part] for part in self.parts]

    def covariances(self, theta: np.ndarray, accurate: bool = False) -> list[LatentCovariance]:
        pairs = zip(self.spaces, self.split(theta), strict=True)
        found = self._last = [space.at(part, self.jitter, accurate) for space, part in pairs]
        self.diagonal = float(np.mean([np.mean(K.diagonal) for K in found]))
        return found

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        # NaN marks a tile that lost digits: then all of them are computed accurately.
        return self._evaluate(theta, gradient, accurate=False) or self._evaluate(theta, gradient, accurate=True)

    def _evaluate(self, theta: np.ndarray, gradient: bool, accurate: bool) -> Evaluation | None:
        with np.errstate(all="ignore"):
            found = self.infer(self.covariances(theta, accurate), self.codes, self.approximation, gradient)
            if found is None or not found.log_evidence < ROUNDING_NATS:  # NaN, or more probable than certain
                return None
            self.approximation = found
            self.iterations += found.iterations
            if not gradient:
                return Evaluation(found.log_evidence, None, 1.0)
            pairs = zip(self.spaces, self.split(theta), strict=True)
            slope = found.slope([space.contraction(part) for space, part in pairs])
        return Evaluation(found.log_evidence, slope, 1.0) if np.isfinite(slope).all() else None


def remembered(approximation: Approximation | None, iterations: int) -> Mapping[str, np.ndarray]:
    """What inference starts from next, and its iterations so far, as arrays; none before there is anything."""
    if approximation is None:
        return {}
    return vars(approximation.start()) | {"iterations": np.array(iterations)}


def recalled(memory: Mapping[str, np.ndarray]) -> tuple[Any, int]:
    """What was `remembered`."""
    return WarmStart(memory["a"], memory["S"], memory["nu"]), int(memory["iterations"])


class LastInference(NamedTuple):
    """The last approximation that learning computed, the iterations of inference that it took on these rows, and the
    covariances at the best theta, if they were kept."""

    approximation: Any
    iterations: int
    rows: int
    kept: KeptCovariances | None = None

    def covariances(self, theta: np.ndarray, jitter: float) -> list[LatentCovariance] | None:
        """As `KeptCovariances.at`; None if there are none."""
        return None if self.kept is None else self.kept.at(theta, jitter)


@dataclasses.dataclass(frozen=True, eq=False)
class LabelObjective(ModelObjective):
    """Evidence of labels by ``infer``. Starts are ``given``, or scaled to the data.

    ``default_kernel``: the kernel is the default one, whose variances have a weak prior unless ``use_priors``: then all
    free parameters have priors, as densities of theta if ``jacobian``.
    ``max_variance`` limits every term of the kernels.
    """

    kernels: Sequence[Kernel]
    X: Inputs
    codes: np.ndarray
    infer: Inference
    use_priors: bool = False
    default_kernel: bool = False
    max_variance: float | None = None
    given: Sequence[Start] = ()
    solver: Solver = dataclasses.field(default_factory=Dense)
    jacobian: bool = False

    max_log_change = MAX_LOG_CHANGE

    @property
    def tolerance(self) -> float:
        return 1.0 if self.infer.classes == 2 else MULTICLASS_TOLERANCE

    @property
    def n(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def model(self) -> Model:  # type: ignore[override]
        return Model(tuple(self.kernels), likelihood=self.infer.likelihood if self.infer.classes == 2 else None)

    def criterion(self, rows: np.ndarray | None = None) -> LabelEvidence:
        part = self if rows is None else self.part(rows)
        evidence = LabelEvidence(part.kernels, part.X, part.codes, part.infer, part.solver)
        if rows is None:
            evidence.allow()
        return evidence

    def outcome(self, criterion: Criterion) -> LastInference:
        assert isinstance(criterion, LabelEvidence)
        return LastInference(criterion.approximation, criterion.iterations, criterion.n, criterion.kept)

    def part(self, rows: np.ndarray) -> "LabelObjective":
        """The same on some rows."""
        return dataclasses.replace(self, X=take_rows(self.X, rows), codes=self.codes[rows])

    # -- the search ----------------------------------------------------------------------------------------------------

    def starts(self) -> Sequence[Start]:
        """As given, or the kernels as they are and scaled to the data, all in the same way. Of these Laplace's method
        finds the best in a fraction of the time that others take."""
        if self.given:
            return self.given
        found = [Start("as given", self.start())]
        for variance in START_VARIANCES:
            kernels = [heuristics.starting_kernels(kernel, self.X, variance) for kernel in self.kernels]
            for i in range(1, min(map(len, kernels))):
                theta = np.concatenate([np.asarray(to_free(each[i]), dtype=float) for each in kernels])
                if not any(np.array_equal(theta, other) for _, other in found):
                    found.append(Start(f"scaled to the data ({len(found)})", theta))
        laplace = named("laplace", classes=self.infer.classes, link=self.infer.link)
        return found if self.infer == laplace else self._best_start(found, laplace)

    def _best_start(self, starts: list[Start], infer: Inference) -> list[Start]:
        """The start with the highest evidence by ``infer`` on some of the rows; all of them if none has a value."""
        few = self.n <= MAX_RANKING_ROWS
        some = self if few else self.part(np.random.default_rng(0).permutation(self.n)[:MAX_RANKING_ROWS])
        with dataclasses.replace(some, infer=infer).criterion() as evidence:
            answers = [evidence(theta, gradient=False) for _, theta in starts]
        values = [-math.inf if answer is None else answer.value for answer in answers]
        best = max(range(len(starts)), key=lambda i: values[i])
        return starts if answers[best] is None else [starts[best]]

    def ceiling(self) -> np.ndarray:
        return super().ceiling() if self.max_variance is None else self.ceiling_at(self.max_variance)

    def ceiling_at(self, variance: float) -> np.ndarray:
        """Upper bounds on theta where no term of a kernel may have more than this ``variance``."""
        at, half = (
            np.concatenate([to_free(heuristics.terms_scaled_to_variance(k, self.X, v)) for k in self.kernels])
            for v in (variance, 0.5 * variance)
        )
        return np.where(at > half, at, np.inf)

    def amplitude(self) -> np.ndarray | None:
        """Mask of the coordinates that, shifted together, multiply all kernels; None where there are none."""
        masks = [heuristics.amplitude_mask(kernel) for kernel in self.kernels]
        found = [mask for mask in masks if mask is not None]
        return np.concatenate(found) if len(found) == len(masks) else None

    @functools.cached_property
    def prior_model(self) -> Model:
        return with_weak_priors(self.model, self.X, PRIOR_VARIANCE, at_mode=not self.jacobian)

    def prior(self) -> LogDensity | None:
        if self.use_priors:
            return self.model_prior
        amplitude = self.amplitude() if self.default_kernel else None
        if amplitude is None:
            return None
        # Where few rows tell all classes apart, the evidence is nearly flat in the variances: they would diverge.
        return WeakPrior(Coordinates(self.model), self.start() + math.log(PRIOR_VARIANCE) * amplitude)
