"""Interface of Gaussian process solvers: evidence, posterior and cost.

A solver is one file of this folder. `register` makes its name known: to ``solver=``, to ``"auto"`` and to files.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.registry import check_free
from mercer.distributions import Distribution, Normal
from mercer.gp.model import Model
from mercer.gp.noise import Noise, as_noise
from mercer.inference.sites import Covariance, LatentCovariance
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import mirror_upper

LOG_2PI = math.log(2 * math.pi)

GivenNoise = Noise | np.ndarray | None  # what `as_noise` takes inside the package


# -- evidence ------------------------------------------------------------------------------------------------------


class Evaluation(NamedTuple):
    """The evidence at one theta, its gradient, and the maximum-likelihood scale of C, y^T P y / (n - q)."""

    value: float
    gradient: np.ndarray | None
    scale: float


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

    ``noise`` is a `Noise`, or what makes one: None learns a variance. ``H`` (n, q) has columns whose coefficients are
    unknown, with a flat prior: then it is the evidence of the n - q contrasts they do not reach, the restricted
    likelihood (`Trend`), and P takes the place of C^-1. A call answers with an `Evaluation`, or None where C is not
    positive definite in double precision or not finite: a step to be rejected. With ``profiled=True`` the evidence is
    that of the best multiple of C, which costs nothing extra (PRML 6.69 maximised over a common factor: C is multiplied
    by `scale`).
    """

    def __init__(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, H: np.ndarray | None = None
    ) -> None:
        self.y, self.n = np.asarray(y, dtype=float), len(y)
        self.noise = as_noise(noise, self.n)
        self.H = np.zeros((self.n, 0)) if H is None else H
        self.contrasts = self.n - self.H.shape[1]
        self.jitter = 0.0
        self.diagonal = 1.0  # the mean of K's, as last seen: jitter is relative to it
        self.keeps = False  # whether there is memory for what `keep` keeps
        self.keeping = False  # whether the next calls are likely to be kept
        self.kept: KeptMatrix | None = None
        self.rows = X
        self.layout = Layout.of(Model((kernel,), noise=self.noise))
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
        """Minus the mean CRPS of rows left out one by one, at these parameters: the higher the better."""
        found = self.left_out(theta)
        if found is None or not (found[1] > 0).all():
            return -math.inf
        score = -float(np.mean(Normal(np.zeros(self.n), np.sqrt(found[1])).crps(found[0])))
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

    @functools.cached_property
    def _of_kernel(self) -> slice:
        return self.layout.part("kernels")

    @functools.cached_property
    def _of_noise(self) -> slice:
        return self.layout.part("noise")

    def _slope(self, of_kernel: np.ndarray, free: np.ndarray, of_variances: np.ndarray) -> np.ndarray:
        """Gradient in theta, from that in the kernel's part and that in the noise variances: (size,)."""
        slope = np.empty(self.size)
        slope[self._of_kernel], slope[self._of_noise] = of_kernel, self.noise.slope(free, self.rows, of_variances)
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


# -- latent functions ----------------------------------------------------------------------------------------------


class LatentSpace(abc.ABC):
    """K(theta) on fixed rows for inference with Gaussian sites, so that every inference runs on every solver. Use it in
    a ``with`` block."""

    K: Any  # what `Gram.varying` or `Gram.feature_map` gives

    @property
    def size(self) -> int:
        """Free parameters of the kernel."""
        return self.K.layout.size

    @abc.abstractmethod
    def at(self, theta: np.ndarray, jitter: float = 0.0, accurate: bool = False) -> LatentCovariance:
        """K at theta, plus ``jitter`` on its diagonal. ``accurate``: after a failure, without shortcuts that may lose
        digits. May overwrite the previous one."""

    def contraction(self, theta: np.ndarray) -> Callable[..., np.ndarray]:
        """The derivatives of K at theta, for `SiteFactor.slope`."""
        return functools.partial(self.K.contract, theta)

    def __enter__(self) -> Self:
        self.K.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.K.__exit__(*error)


class LatentMatrix(LatentSpace):
    """One matrix of memory, and what inference takes."""

    def __init__(self, kernel: Kernel, X: Inputs) -> None:
        self.K = gram.on(kernel, X).varying()
        n = count_rows(X)
        self._covariance = Covariance(np.zeros((n, n)))

    def at(self, theta: np.ndarray, jitter: float = 0.0, accurate: bool = False) -> Covariance:
        self.K.fill(theta, self._covariance.K, accurate)
        self._covariance.K.ravel()[:: self._covariance.n + 1] += jitter
        return self._covariance


# -- posteriors ----------------------------------------------------------------------------------------------------


class Posterior(Protocol):
    """Posterior of the latent function, without measurement noise, from any solver."""

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """Inputs, targets and noise variances that it was conditioned on."""

    @property
    def unknown(self) -> bool:
        """Whether the mean has an unknown constant, integrated out."""

    def mean(self, Z: Inputs) -> np.ndarray:
        """(s,)."""

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance: (s,), (s,)."""

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Distribution:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function."""

    def covariance(self, Z: Inputs) -> np.ndarray:
        """(s, s)."""

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s)."""

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d)."""

    def terms(self, Z: Inputs) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        """Each term of a sum of kernels, except white noise, with the posterior mean and variance of its component."""

    def latent(self) -> "Posterior":
        """The same without white noise that is part of the kernel."""

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each measurement given all the others: (n,), (n,)."""

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "Posterior":
        """Given more measurements."""

    def rescaled(self, kernel: Kernel, factor: float) -> "Posterior":
        """With all variances, noise included, ``factor`` times as large: ``kernel`` must equal factor times this one.
        May invalidate this posterior."""

    def constant(self) -> float:
        """The estimate of an unknown constant in the mean; zero where there is none."""

    def log_evidence(self) -> float:
        """ln p(y) (PRML 6.69)."""

    def numerics(self) -> dict[str, float]:
        """What was added to the diagonal ("jitter"), the condition number, and the relative residual of what was
        solved."""


# -- solvers -------------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Memory in bytes, flops per evaluation of the evidence with its gradient, the shape of the largest matrix, and the
    reason "auto" gives for choosing the solver."""

    memory: float
    flops: float
    matrix: tuple[int, int]
    why: str


class Solver(abc.ABC):
    """One way to solve a Gaussian process. Its settings are the fields of a frozen dataclass, with defaults.

    ``noise`` is a `Noise`, of a posterior one variance for each row; ``H`` (n, q) has columns with unknown
    coefficients, ``unknown`` says whether the mean has an unknown constant.
    """

    name: ClassVar[str]  # of ``solver=``
    summary: ClassVar[str]  # of a plan
    parts: ClassVar[tuple[type, ...]] = ()  # classes of its posterior that files may hold
    exact: ClassVar[bool] = True  # whether its answers are those of the dense solver, to rounding
    bound: ClassVar[bool] = False  # whether its evidence is a lower bound, if it is not exact

    @abc.abstractmethod
    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        """Why it cannot be used on these rows, as the end of a sentence; None if it can."""

    @abc.abstractmethod
    def cost(self, kernel: Kernel, X: Inputs) -> Cost: ...

    @abc.abstractmethod
    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, H: np.ndarray | None = None
    ) -> Evidence: ...

    @abc.abstractmethod
    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        unknown: bool = False,
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


def resolve(solver: str | Solver, kernel: Kernel, X: Inputs, noise: Noise) -> Solver:
    """The solver asked for, by name or as an object; for "auto" the applicable one with the smallest matrix, and of
    these with the fewest flops. Raises `ParameterError` if it is not applicable."""
    if isinstance(solver, str) and solver == "auto":
        there = [cls() for cls in SOLVERS.values()]
        usable = [each for each in there if each.refusal(kernel, X, noise) is None]
        costs = {each: each.cost(kernel, X) for each in usable}
        return min(usable, key=lambda each: (math.prod(costs[each].matrix), costs[each].flops))
    found = checked(solver)
    refusal = found.refusal(kernel, X, noise)
    if refusal is not None:
        raise ParameterError(f"solver={solver!r} {refusal}. Use solver='auto'.")
    return found


def checked(solver: str | Solver) -> Solver:
    """Solver from its name, or the instance itself."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver in SOLVERS:
        return SOLVERS[solver]()
    names = ", ".join(map(repr, ("auto", *SOLVERS)))
    raise ParameterError(f"solver must be one of {names}, or a mercer.solvers.Solver instance; got {solver!r}.")
