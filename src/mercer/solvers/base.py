"""Interface of Gaussian process solvers: evidence, posterior and cost.

A solver is one file of this folder. `register` makes its name known: to ``solver=``, to ``"auto"`` and to files.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.registry import check_free
from mercer.distributions import LOG_2PI, Normal
from mercer.gp.mean import LearnedMean, MeanFunction
from mercer.gp.model import Model
from mercer.gp.noise import CommonNoise, Noise, as_noise
from mercer.gp.posterior import Posterior
from mercer.inference.latent import LatentSpace
from mercer.inference.sites import LatentMatrix
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import mirror_upper
from mercer.linalg.trend import Trend, independent_columns
from mercer.means import RANK_TOLERANCE
from mercer.solvers.auto import Budget, SolverCandidate, SolverChoice, asked_for, choose, search_stages

# What a solver may be asked to serve: Gaussian noise, labels of classes, or another likelihood of numbers.
GAUSSIAN, LABELS, OTHER = "gaussian", "labels", "other"

DENSE_OVERHEAD = 1.35  # of an evaluation with a dense matrix over its factorisation and inverse, n^3 flops

GivenNoise = Noise | np.ndarray | None  # what `as_noise` takes inside the package


def determined_columns(mean: MeanFunction, X: Inputs) -> np.ndarray:
    """Columns of the unknown coefficients (n, q): of a flat prior, only those that these rows determine."""
    H = mean.columns(X)
    if H.shape[1] > 1 and mean.precision is None:  # on a part of the rows, fewer may be independent
        kept, T = independent_columns(H, RANK_TOLERANCE)
        return H[:, kept] @ T
    return H


# -- evidence ------------------------------------------------------------------------------------------------------


class Evaluation(NamedTuple):
    """The evidence at one theta, its gradient, and the maximum-likelihood scale of C, y^T P y / (n - q)."""

    value: float
    gradient: np.ndarray | None
    scale: float


MAX_ROW_CRPS = 3.0  # spreads of the target


class KeptMatrix(NamedTuple):
    """K at the best theta so far, from the evaluation there: its ``diagonal``, and the rest below the diagonal of
    ``matrix``; above it is the inverse."""

    theta: np.ndarray
    diagonal: np.ndarray
    matrix: np.ndarray

    def restored(self, factor: float = 1.0) -> np.ndarray:
        """K times a factor, overwriting the matrix."""
        K = self.matrix
        mirror_upper(K.T)
        np.fill_diagonal(K, self.diagonal)
        K *= factor
        return K


class Evidence(abc.ABC):
    """ln p(y | theta) = -1/2 ln|C| - 1/2 y^T C^-1 y - n/2 ln 2 pi (PRML 6.69), with C(theta) = K + diag(noise).

    ``noise`` is a `Noise`, or what makes one: None learns a variance. ``mean`` is subtracted from y; where it has
    columns ``H`` (n, q) of unknown coefficients with a flat prior, this is the evidence of the n - q contrasts they do
    not reach, the restricted likelihood (`Trend`), and P takes the place of C^-1. A call answers
    with an `Evaluation`, or None where C is not positive definite in double precision or not finite: a step to be
    rejected. With ``profiled=True`` the evidence is
    that of the best multiple of C, which costs nothing extra (PRML 6.69 maximised over a common factor: C is multiplied
    by `scale`).
    """

    def __init__(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> None:
        self.y, self.n = np.asarray(y, dtype=float), len(y)
        self.noise = as_noise(noise, self.n)
        mean = (MeanFunction() if mean is None else mean).fit(gram.raw(X))
        self.mean, self.precision = LearnedMean(mean, gram.raw(X)), mean.precision
        self.H = determined_columns(mean, gram.raw(X))
        self.contrasts = self.n - (self.H.shape[1] if self.precision is None else 0)
        self.jitter = 0.0
        self.diagonal = 1.0  # the mean of K's, as last seen: jitter is relative to it
        self.keeps = False  # whether there is memory for what `keep` keeps
        self.keeping = False  # whether the next calls are likely to be kept
        self.kept: KeptMatrix | None = None
        self.rows = X
        self.layout = Layout.of(Model((kernel,), mean, self.noise))
        self.K: Any = self._representation(kernel, X)

    @property
    def size(self) -> int:
        return self.layout.size

    @abc.abstractmethod
    def _representation(self, kernel: Kernel, X: Inputs) -> Any:
        """K, or features, on these rows for many theta: what `Gram.varying` or `Gram.feature_map` gives."""

    @abc.abstractmethod
    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        """The evidence at theta; its gradient may be left out where it is not asked for."""

    @abc.abstractmethod
    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Residual and variance of each row predicted from all the others (RW06 5.12), unknown coefficients estimated
        anew without it: (n,), (n,). None where there is no value."""

    def keep(self, theta: np.ndarray) -> None:  # noqa: B027 (most have nothing to keep)
        """Keep K of the last call, which was at ``theta``."""

    def score(self, theta: np.ndarray) -> float:
        """Minus the mean CRPS of rows left out one by one, at these parameters: the higher the better. Of no row more
        than `MAX_ROW_CRPS`: one whose inputs are far from all others would decide alone."""
        found = self.left_out(theta)
        if found is None or not (found[1] > 0).all():
            return -math.inf
        crps, spread = Normal(np.zeros(self.n), np.sqrt(found[1])).crps(found[0]), float(np.std(self.y))
        score = -float(np.mean(np.minimum(crps, MAX_ROW_CRPS * spread) if spread > 0 else crps))
        return score if math.isfinite(score) else -math.inf

    def __enter__(self) -> Self:
        self.K.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.K.__exit__(*error)

    def _split(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The kernel's part of theta, the noise's, and the variances on the diagonal, jitter included: (n,)."""
        theta = np.asarray(theta, dtype=float)
        own, free = theta[self._of_kernel], theta[self._of_noise]
        return own, free, self.noise.variances(free, self.rows) + self.jitter

    def _residual(self, theta: np.ndarray) -> np.ndarray:
        """y minus the mean at these parameters, without its columns H: (n,)."""
        return self.y - self.mean(np.asarray(theta)[self._of_mean])

    def _trend(self, C_inv_H: np.ndarray) -> Trend | None:
        """The trend of the columns H, from C^-1 H; None where A is not positive definite."""
        try:
            return Trend.of(self.H, C_inv_H, self.precision)
        except np.linalg.LinAlgError:
            return None

    @functools.cached_property
    def _of_kernel(self) -> slice:
        return self.layout.part("kernels")

    @functools.cached_property
    def _of_noise(self) -> slice:
        return self.layout.part("noise")

    @functools.cached_property
    def _of_mean(self) -> slice:
        return self.layout.part("mean")

    def _slope(
        self, theta: np.ndarray, of_kernel: np.ndarray, a: np.ndarray, diagonal: np.ndarray, scale: float
    ) -> np.ndarray:
        """Gradient in theta, from that in the kernel's part, a of `_answer`, the diagonal of P, and the scale, which is
        one unless profiled: (size,)."""
        slope, theta = np.empty(self.size), np.asarray(theta, dtype=float)
        slope[self._of_kernel] = of_kernel
        slope[self._of_mean] = self.mean.slope(theta[self._of_mean], a / math.sqrt(scale))
        slope[self._of_noise] = self.noise.slope(theta[self._of_noise], self.rows, 0.5 * (a**2 - diagonal))
        return slope

    def _answer(
        self, log_det: float, a: np.ndarray, quadratic: float, profiled: bool
    ) -> tuple[float, np.ndarray, float] | None:
        """The value, a (rescaled if profiled) and the scale."""
        n = self.contrasts
        scale = quadratic / max(n, 1)
        if profiled:
            if not scale > 0:
                return None
            value = -0.5 * (log_det + n * math.log(scale) + n * (1 + LOG_2PI))
            a = a / math.sqrt(scale)
        else:
            value = -0.5 * (log_det + quadratic + n * LOG_2PI)
        return (value, a, scale) if math.isfinite(value) else None


def left_out(a: np.ndarray, diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave-one-out residuals and variances from a = P y and the diagonal of P (RW06 5.12); residual 0 and infinite
    variance where the other rows do not determine the prediction."""
    determined = diagonal > 0
    diagonal = np.where(determined, diagonal, 1.0)
    return np.where(determined, a / diagonal, 0.0), np.where(determined, 1 / diagonal, np.inf)


# -- solvers -------------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Memory in bytes; flops per evaluation of the evidence with its gradient, as many as the dense solver makes in the
    time that it takes; the shape of the largest matrix; and the reason "auto" gives for choosing the solver."""

    memory: float
    flops: float
    matrix: tuple[int, int]
    why: str


class Solver(abc.ABC):
    """One way to solve a Gaussian process. Its settings are the fields of a frozen dataclass, with defaults.

    ``noise`` is a `Noise`, of a posterior one variance for each row; ``mean`` is the prior mean, None zero.
    """

    name: ClassVar[str]  # of ``solver=``
    summary: ClassVar[str]  # of a plan
    parts: ClassVar[tuple[type, ...]] = ()  # classes of its posterior that files may hold
    exact: ClassVar[bool] = True  # whether its answers are those of the dense solver, to rounding
    converges: ClassVar[bool] = False  # whether they are to a tolerance, and to rounding for a few hundred rows
    auto_rows: ClassVar[int] = 0  # number of rows from which "auto" considers it
    growth: ClassVar[int] = 3  # power of the number of rows that its flops grow by
    chooses_by_blocks: ClassVar[bool] = False  # whether the default kernel of a map is chosen by blocks left out
    bound: ClassVar[bool] = False  # whether its evidence is a lower bound, if it is not exact
    several_latents: ClassVar[bool] = True  # whether `latent` serves the functions of more than two classes
    of_parts: ClassVar[bool] = True  # whether it solves random parts of the rows as it does all; else they are dense
    # Whether estimators learn and infer from batches of the rows, by its `batch`, `steps` and `choose`
    # (`mercer.models.minibatch`); labels and other likelihoods then cost no more than `cost` estimates.
    in_batches: ClassVar[bool] = False
    # Whether rows may pass by in tiles, summed up at `centers`: it serves rows in chunks, by `learning_rows`, `cost_of`
    # and `within_rows`, and as settings of ridge regression and principal components.
    streams_rows: ClassVar[bool] = False
    takes_operators: ClassVar[bool] = False  # whether its posteriors are observed under operators, and constrained
    auto_loss: ClassVar[float] = 1.0  # of an approximation, what `loss` returns

    @abc.abstractmethod
    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        """Why it cannot be used on these rows, as the end of a sentence; None if it can."""

    def suits(self, kernel: Kernel, X: Inputs) -> bool:
        """Whether "auto" may choose it for these rows; by name it can be asked for in any case."""
        return True

    def serves(self, task: str) -> bool:
        """Whether "auto" may choose it for Gaussian noise (`GAUSSIAN`), labels of classes (`LABELS`) or other
        likelihoods (`OTHER`). For the last two, a solver without a representation of its own (`latent`) is dense."""
        return task == GAUSSIAN or type(self).latent is not Solver.latent

    @abc.abstractmethod
    def cost(self, kernel: Kernel, X: Inputs) -> Cost: ...

    def loss(self, kernel: Kernel, X: Inputs) -> float:
        """Of an approximation, the share by which its error is expected to exceed that of an exact fit of these rows,
        roughly: "auto" takes the smallest that fits."""
        return self.auto_loss

    def within(self, kernel: Kernel, X: Inputs, budget: Budget) -> Self:
        """With the settings that "auto" takes, to be as accurate as the budget allows."""
        return self

    def stages(self, n: int) -> list[int]:
        """Numbers of rows, increasing, that parameters are learned from one after the other."""
        return search_stages(n, self.of_parts)

    def part_flops(self, cost: Cost, n: int, rows: int) -> float:
        """Flops of an evaluation on a part of n rows, whose cost is given."""
        if rows == n:
            return cost.flops
        return cost.flops * (rows / n) ** self.growth if self.of_parts else DENSE_OVERHEAD * float(rows) ** 3

    def approximation(self, kernel: Kernel) -> str | None:
        """What is approximated for this kernel, and how accurately, as a clause for plans; None where answers are those
        of the dense solver, to rounding."""
        return None if self.exact else "approximates the process"

    def max_residual(self) -> float:
        """Relative residual of its linear systems beyond which they have lost accuracy."""
        return 1e-6

    def estimates_left_out(self, n: int) -> bool:
        """Whether leave-one-out variances of n rows are estimates."""
        return False

    @abc.abstractmethod
    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> Evidence: ...

    @abc.abstractmethod
    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> Posterior: ...

    def latent(self, kernel: Kernel, X: Inputs) -> LatentSpace:
        """K for inference with Gaussian sites; the matrix itself, unless the solver has a better representation."""
        return LatentMatrix(kernel, X)


SOLVERS: dict[str, type[Solver]] = {}


def register(cls: type[Solver]) -> type[Solver]:
    """Class decorator: the solver can be asked for by its name, and files may hold it and its parts."""
    check_free(SOLVERS, cls.name, cls)
    SOLVERS[cls.name] = cls
    return cls


def choice(
    solver: str | Solver, kernel: Kernel, X: Inputs, noise: Noise, budget: Budget | None = None, task: str = GAUSSIAN,
    usable: Callable[[Solver], bool] = lambda solver: True,
) -> SolverChoice:  # fmt: skip
    """The solver asked for, by name or as an object, or for "auto" that of the rule (`auto.choose`) among those that
    are ``usable``, with what a fit is expected to take. Raises `ParameterError` if the one asked for is not applicable.
    ``task``: as `Solver.serves`."""
    budget = Budget.of() if budget is None else budget
    if isinstance(solver, str) and solver == "auto":
        there = [cls() for cls in SOLVERS.values()]
        return choose(filter(usable, there), kernel, X, noise, budget, task)
    found = checked(solver)
    refusal = found.refusal(kernel, X, noise)
    if refusal is not None:
        raise ParameterError(f"solver={solver!r} {refusal}. Use solver='auto'.")
    candidate = SolverCandidate.of(found, kernel, X, budget)
    return SolverChoice(candidate, asked_for(candidate, budget))


def resolve(
    solver: str | Solver, kernel: Kernel, X: Inputs, noise: Noise, latent: bool = False, budget: Budget | None = None
) -> Solver:
    """The solver of `choice`. ``latent``: for likelihoods that are not Gaussian."""
    return choice(solver, kernel, X, noise, budget, OTHER if latent else GAUSSIAN).chosen.solver


def resolve_latent(
    solver: str | Solver, kernels: Sequence[Kernel], X: Inputs, classes: int, budget: Budget | None = None
) -> Solver:
    """The solver of `latent_choice`."""
    return latent_choice(solver, kernels, X, classes, budget).chosen.solver


def latent_choice(
    solver: str | Solver, kernels: Sequence[Kernel], X: Inputs, classes: int, budget: Budget | None = None,
    batches: bool = True,
) -> SolverChoice:  # fmt: skip
    """The solver for the latent functions behind ``classes`` classes, with one kernel or one each: the one asked for;
    for "auto" that of `choice` among those that serve all of them, if the same one is best for every kernel.
    ``batches``: whether solvers in batches serve the settings; they take one kernel.

    The function values of more than two classes are factorised class by class, but not the weights of their features:
    n (C M)^2 flops instead of C n^3, so weights are for M < n / sqrt(C) features.
    """
    noise = CommonNoise(1.0)  # sites are noise

    def usable(each: Solver) -> bool:
        if each.in_batches:
            return batches and len(kernels) == 1
        if classes == 2 or type(each).latent is Solver.latent:
            return True
        if not each.several_latents or any(each.refusal(kernel, X, noise) is not None for kernel in kernels):
            return False
        widths = [each.cost(kernel, X).matrix[1] for kernel in kernels]
        return max(widths) * math.sqrt(classes) < count_rows(X)

    found = [choice(solver, kernel, X, noise, budget, LABELS, usable) for kernel in kernels]
    each = found[0].chosen.solver
    if classes > 2 and not each.several_latents:  # it was asked for
        raise ParameterError(f"solver={solver!r} takes two classes; y has {classes}. Use solver='dense' or 'auto'.")
    if all(other.chosen.solver == each for other in found):
        return found[0]
    return choice("auto", kernels[0], X, noise, budget, LABELS, lambda each: type(each).latent is Solver.latent)


def asked_or_first(solver: str | Solver, able: Callable[[Solver], bool]) -> Solver:
    """The solver asked for; for "auto" the first registered one that is ``able``."""
    if isinstance(solver, str) and solver == "auto":
        return next(each for cls in SOLVERS.values() if able(each := cls()))
    return checked(solver)


def checked(solver: str | Solver) -> Solver:
    """Solver from its name, or the instance itself."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver in SOLVERS:
        return SOLVERS[solver]()
    names = ", ".join(map(repr, ("auto", *SOLVERS)))
    raise ParameterError(f"solver must be one of {names}, or a mercer.solvers.Solver instance; got {solver!r}.")
