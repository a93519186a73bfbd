"""Learning the parameters of a Gaussian process regression: kernel and noise, by the evidence."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, NotPositiveDefiniteError
from mercer.core.inputs import Inputs, take_rows
from mercer.core.random import generator
from mercer.gp.mean import UNKNOWN, LearnedMean, MeanFunction
from mercer.gp.model import Model
from mercer.gp.noise import Noise, as_noise
from mercer.kernels.base import Kernel
from mercer.learning import heuristics
from mercer.learning.objective import Criterion, LogDensity, ModelObjective, Start
from mercer.learning.optimise import Learned, Settings, learn
from mercer.learning.resolution import resolution
from mercer.learning.state import Journal
from mercer.learning.weak_priors import with_weak_priors
from mercer.linalg.trend import independent_columns
from mercer.means import RANK_TOLERANCE
from mercer.solvers.base import Evidence, GivenNoise, KeptMatrix, Solver

MIN_FREE_NOISE = 3e-3  # share of the target's variance: smaller noise is on a plateau
MIN_NOISE_RATIO = 1e-10  # to the variance of y
MIN_VARIANCE_SHARE = 1e-8  # of the target's: less than this around a trend is rounding
PLAUSIBLE_NATS = 0.5  # of the evidence: noise that costs less is about as plausible as the best
PLAUSIBLE_LOG_STEP = 0.5  # of ln noise: how precisely the largest plausible noise is found
SAME_THETA = 1e-13  # difference of logarithms that is rounding
NEGLIGIBLE_NOISE = 1e-8  # share of the target's variance: lower floors are hardly ever reached


# -- the target ----------------------------------------------------------------------------------------------------


class Standardised(NamedTuple):
    """The target that is learned from, (y - center) / scale, and the noise and the mean in its units."""

    target: np.ndarray
    center: float
    scale: float
    noise: Noise
    mean: MeanFunction


def standardised(
    y: np.ndarray, noise: Noise, normalize: bool, learns: bool, mean: MeanFunction | None = None, X: Inputs = None,
    unit: float | None = None,
) -> Standardised:  # fmt: skip
    """Target of unit variance around its mean, if ``normalize``, and the noise in its units: if it ``learns``, no
    smaller than the resolution of y allows.

    The centre is that of y where the ``mean`` has an unknown constant, which None is, or else the constant that is
    known. Where coefficients or parameters of the mean are unknown, the variance is that of y. ``X``: inputs, where the
    mean is not constant. ``unit``: nominal scale of one row; None is the size of y.
    """
    mean = MeanFunction.of(UNKNOWN) if mean is None else mean
    center, scale, learned = float(mean.constant), 1.0, bool(to_free(mean).size)
    known = np.zeros(len(y)) if mean.function is None or learned else mean(X) - center
    if normalize and (mean.unknown or learned):
        middle, scale = _center_and_scale(y)
        center = middle if mean.centred else center
    elif normalize:
        scale = _spread(y - center - known)
    target = (y - center) / scale
    if normalize and not target.any():  # one row, or a constant: a nominal scale
        scale = (1.0 if len(y) == 1 else 1e-6) * (unit or abs(center) or 1.0)
    if not 1e-140 < scale < 1e140:
        raise DataError(f"the scale of y, {scale:.2g}, overflows or underflows when squared. Use other units for y.")
    size = float(np.mean((target - known / scale) ** 2))
    floor = max(resolution(y) ** 2 / 12 / scale**2, MIN_NOISE_RATIO * size) if learns else 0.0
    noise = noise.scaled(scale**-2).bounded_below(floor)
    return Standardised(target, center, scale, noise, mean.in_units(center, scale))


def _spread(residual: np.ndarray) -> float:
    """Root mean square around zero; one if that is zero."""
    size = float(np.abs(residual).max())
    return float(np.sqrt(np.mean((residual / size) ** 2))) * size if size else 1.0


def _center_and_scale(y: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the target; scale one if it is constant to rounding."""
    size = float(np.abs(y).max())
    if size == 0:
        return 0.0, 1.0
    center = float((y / size).mean()) * size
    spread = float((y / size - center / size).std()) * size
    if spread <= 1e-14 * size:
        return (float(y[0]) if np.ptp(y) == 0 else center), 1.0
    return center, spread


# -- the evidence --------------------------------------------------------------------------------------------------


class RegressionObjective(ModelObjective):
    """Evidence of a Gaussian process regression.

    ``X`` may be prepared: a `Gram`. ``noise`` is a `Noise`, or what makes one. ``mean`` is that of the target: what
    `MeanFunction.of` takes. ``use_priors``: whether the priors of kernel, mean and noise count ("map"), weak ones where
    none is given; with ``jacobian`` as densities of theta ("laplace", "nuts").
    """

    screens_starts = True
    keeps = False  # whether to keep K at the best parameters, for a posterior: one more matrix of memory

    def __init__(
        self,
        kernel: Kernel,
        X: Inputs,
        target: np.ndarray,
        noise: GivenNoise,
        solver: Solver,
        mean: Any = 0.0,
        use_priors: bool = False,
        jacobian: bool = False,
    ) -> None:
        self._rows, self.target, self.solver = X, target, solver
        self.use_priors, self.jacobian = use_priors, jacobian
        self.noise = as_noise(noise, len(target))
        self.model = Model((kernel,), MeanFunction.of(mean).fit(gram.raw(X)), self.noise)

    @property
    def n(self) -> int:
        return len(self.target)

    @property
    def kernel(self) -> Kernel:
        return self.model.kernel

    @property
    def mean(self) -> MeanFunction:
        return self.model.mean

    def with_kernel(self, kernel: Kernel) -> "RegressionObjective":
        """Of the same data with another kernel."""
        return RegressionObjective(
            kernel, self._rows, self.target, self.noise, self.solver, self.mean, self.use_priors, self.jacobian
        )

    @functools.cached_property
    def rows(self) -> gram.Gram:
        """The inputs, prepared once for the kernel."""
        return gram.on(self.kernel, self._rows)

    @property
    def X(self) -> Inputs:
        return gram.raw(self._rows)

    def criterion(self, rows: np.ndarray | None = None) -> Evidence:
        X, target, noise = self.rows, self.target, self.noise
        if rows is not None:
            X, target, noise = take_rows(X, rows), target[rows], noise.take(rows)
        evidence = self.solver.evidence(self.kernel, X, target, noise, self.mean)
        evidence.keeps = self.keeps and rows is None and 8 * self.n**2 <= machine.keepable()
        return evidence

    def outcome(self, criterion: Criterion) -> KeptMatrix | None:
        """The covariance at the best theta, for the posterior."""
        assert isinstance(criterion, Evidence)
        return criterion.kept

    def covariance_at(self, theta: np.ndarray, kept: KeptMatrix | None) -> np.ndarray | None:
        """K at theta from one that was kept, which it overwrites: at this theta, or one with another amplitude. None if
        it was kept elsewhere."""
        if kept is None:
            return None
        mask, shift = self.amplitude(), theta - kept.theta
        moved = np.zeros(0) if mask is None else shift[mask.astype(bool)]
        factor = float(np.mean(moved)) if len(moved) else 0.0
        expected = factor * (np.zeros(self.size) if mask is None else mask)
        return kept.restored(math.exp(factor)) if np.abs(shift - expected).max() < SAME_THETA else None

    # -- the search ----------------------------------------------------------------------------------------------------

    def stages(self) -> list[int]:
        return self.solver.stages(self.n)

    def start_with_noise(self, variance: float) -> np.ndarray:
        """Kernel and mean as they are, and this noise variance where it is learned."""
        theta = self.start()
        theta[self.layout.part("noise")] = self.noise.start(variance)
        return theta

    def starts(self) -> list[Start]:
        variance = self.variance()
        shares = heuristics.NOISE_SHARES if self.noise.size else heuristics.NOISE_SHARES[:1]
        kernels = heuristics.starting_kernels(self.kernel, self.rows, variance, self.mean.centred)
        names = ["as given", *(f"scaled to the data ({i})" for i in range(1, len(kernels)))]
        return [
            Start(
                f"{name}, noise {share:g}{about}" if self.noise.size else f"{name}{about}",
                self.layout.joined(kernels=to_free(kernel), noise=self.noise.start(share * variance), mean=mean),
            )
            for about, mean in self._starting_means()
            for name, kernel in zip(names, kernels, strict=True)
            for share in shares
        ]

    def _starting_means(self) -> list[tuple[str, np.ndarray]]:
        """Parameters of the mean as they are, and where they fit the target best."""
        given = np.asarray(to_free(self.mean), dtype=float)
        if not given.size:
            return [("", given)]
        return [(", mean as given", given), (", mean by least squares", self._least_squares)]

    def with_mean_fitted(self, theta: np.ndarray) -> np.ndarray:
        """``theta`` with the parameters of the mean that fit the target best."""
        part = self.layout.part("mean")
        if part.stop > part.start:
            theta = theta.copy()
            theta[part] = self._least_squares
        return theta

    @functools.cached_property
    def _learned_mean(self) -> LearnedMean:
        return LearnedMean(self.mean, self.X)

    @functools.cached_property
    def _least_squares(self) -> np.ndarray:
        """Least-squares parameters of the mean."""
        given, of_mean = np.asarray(to_free(self.mean), dtype=float), self._learned_mean
        if not given.size:
            return given
        from scipy.optimize import least_squares  # takes a while to import

        with np.errstate(all="ignore"):
            try:
                found = least_squares(
                    lambda p: self.target - of_mean(p), given, lambda p: -of_mean.jacobian(p), x_scale="jac"
                )
            except ValueError:  # not finite at the start
                return given
        return found.x if np.isfinite(found.x).all() and np.isfinite(found.cost) else given

    def directions(self) -> np.ndarray:
        """Parameters of the mean move in directions that change it alike: columns of R^-1 for its Jacobian Q R."""
        out, part = np.eye(self.size), self.layout.part("mean")
        if part.stop > part.start:
            J = self._learned_mean.jacobian(self._least_squares)
            kept, T = independent_columns(J, RANK_TOLERANCE) if np.isfinite(J).all() else (np.zeros(0), np.zeros(0))
            if len(kept) == part.stop - part.start:
                out[part, part] = T
        return out

    def floor(self) -> np.ndarray:
        """Noise is not below the resolution of the target."""
        floor = np.full(self.size, -np.inf)
        floor[self.layout.part("noise")] = self.noise.floor()
        return floor

    def amplitude(self) -> np.ndarray | None:
        """Mask of the coordinates that, shifted together, multiply C; None if they do not reach all of it."""
        mask, own = heuristics.amplitude_mask(self.kernel), self.noise.amplitude()
        if mask is None or own is None or self.mean.precision is not None:
            return None
        return self.layout.joined(kernels=mask, noise=own)

    def profiled(self) -> np.ndarray | None:
        """None also where there is a prior, or a floor of the noise that may be reached: these do not scale; and where
        nothing remains around the mean to tell the amplitude."""
        floored = (self.noise.floor() > math.log(NEGLIGIBLE_NOISE * self.variance())).any()
        return None if floored or self.mean_takes_all or self.prior() is not None else self.amplitude()

    def prior(self) -> LogDensity | None:
        return self.model_prior if self.use_priors else None

    @functools.cached_property
    def prior_model(self) -> Model:
        model = self.at(self.with_mean_fitted(self.start()))  # priors of the mean are around least squares
        return with_weak_priors(model, self.rows, self.variance(), self.mean.centred, at_mode=not self.jacobian)

    def off_plateau(self, theta: np.ndarray) -> np.ndarray | None:
        """Noise indistinguishable from zero on few rows is raised."""
        part = self.layout.part("noise")
        raised = self.noise.raised_to(MIN_FREE_NOISE * self.variance(), theta[part])
        if raised is None:
            return None
        theta = theta.copy()
        theta[part] = raised
        return theta

    def tie_score(self, theta: np.ndarray) -> float | None:
        """Minus the mean CRPS of rows left out; not for "map", whose priors it leaves out."""
        return None if self.use_priors else self.score(theta)

    def score(self, theta: np.ndarray, jitter: float = 0.0) -> float:
        """Minus the mean CRPS of rows left out, at these parameters."""
        with self.criterion() as evidence:
            evidence.jitter = jitter
            return evidence.score(theta)

    def with_plausible_noise(self, theta: np.ndarray, jitter: float = 0.0) -> np.ndarray:
        """``theta`` with the largest noise that lowers the evidence by no more than `PLAUSIBLE_NATS`, where the
        evidence does not distinguish the noise from zero: of all these values, the smallest makes predictions at
        repeated inputs certain. Other parameters, and noise that the data determine, stay."""
        own, variance = self.layout.part("noise"), self.variance()
        if self.noise.raised_to(MIN_FREE_NOISE * variance, theta[own]) is None:
            return theta

        def at(noise: float) -> np.ndarray:
            new = theta.copy()
            new[own] = self.noise.start(noise)
            return new

        least = max(float(np.exp(self.noise.floor())[0]), MIN_NOISE_RATIO * variance)
        with self.criterion() as evidence:
            evidence.jitter = jitter

            def value(noise: float) -> float:
                found = evidence(at(noise), gradient=False)
                return -math.inf if found is None else found.value

            none, here = value(least), evidence(theta, gradient=False)
            if here is None or none < here.value - PLAUSIBLE_NATS:
                return theta
            low, high = math.log(float(self.variances(theta)[0])), math.log(variance)
            while high - low > PLAUSIBLE_LOG_STEP:
                middle = 0.5 * (low + high)
                low, high = (middle, high) if value(math.exp(middle)) > here.value - PLAUSIBLE_NATS else (low, middle)
        return at(math.exp(low))

    # -- what theta means ----------------------------------------------------------------------------------------------

    def variance(self) -> float:
        """Of the target, around its mean, unless that passes through all rows; one if that is all of it."""
        return self._variance

    @functools.cached_property
    def mean_takes_all(self) -> bool:
        """Whether the mean has as many coefficients and parameters as there are rows, and nothing remains around it."""
        part = self.layout.part("mean")
        count = self.mean.columns(self.X).shape[1] + part.stop - part.start
        return not self.mean.is_constant and count >= self.n

    @functools.cached_property
    def _variance(self) -> float:
        if self.mean.is_constant or self.mean_takes_all:
            return float(np.mean(self.target**2)) or 1.0
        residual, H = self.target - self._learned_mean(self._least_squares), self.mean.columns(self.X)
        residual = residual - H @ np.linalg.lstsq(H, residual, rcond=None)[0]
        return max(float(np.mean(residual**2)), MIN_VARIANCE_SHARE * float(np.mean(self.target**2))) or 1.0

    def units(self, scale: float) -> np.ndarray:
        """What to add to theta for a target ``scale`` times this one, of which noise is a variance."""
        return self.layout.joined(noise=np.array(2 * math.log(scale)))

    def variances(self, theta: np.ndarray) -> np.ndarray:
        """Noise variance of each row: (n,)."""
        return self.noise.variances(theta[self.layout.part("noise")], self.rows)


def learn_regression(
    objective: RegressionObjective, settings: Settings, seed: int, journal: Journal | None = None
) -> Learned:
    """Maximise the evidence, or raise an error if it has no value anywhere. The outcome is K at the best parameters, a
    matrix, if it was kept."""
    learned = learn(objective, settings, generator(seed), journal)
    if not learned.optima:
        objective.mean(objective.X)  # errors that say more, where values are not finite
        gram.diagonal(objective.kernel, objective.rows)
        raise NotPositiveDefiniteError(
            f"the covariance of these {objective.n} rows could not be factorised at any starting value of the "
            f"parameters of {objective.kernel!r}. Look at the kernel with mercer.check_kernel(kernel, X)."
        )
    assert learned.outcome is None or isinstance(learned.outcome, KeptMatrix)
    return dataclasses.replace(learned, outcome=objective.covariance_at(learned.theta, learned.outcome))
