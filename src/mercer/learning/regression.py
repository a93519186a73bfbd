"""Learning the parameters of a Gaussian process regression: kernel and noise, by the evidence."""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, NotPositiveDefiniteError
from mercer.core.inputs import Inputs, take_rows
from mercer.core.random import generator
from mercer.gp.mean import MeanFunction
from mercer.gp.model import Model
from mercer.gp.noise import Noise, as_noise
from mercer.kernels.base import Kernel
from mercer.learning import heuristics
from mercer.learning.objective import Criterion, LogDensity, ModelObjective, Start
from mercer.learning.optimise import Learned, Settings, learn
from mercer.learning.plan import search_stages
from mercer.learning.resolution import resolution
from mercer.learning.state import Journal
from mercer.solvers.base import Evidence, GivenNoise, KeptMatrix, Solver

MIN_FREE_NOISE = 3e-3  # share of the target's variance: smaller noise is on a plateau
MIN_NOISE_RATIO = 1e-10  # to the variance of y
PLAUSIBLE_NATS = 0.5  # of the evidence: noise that costs less is about as plausible as the best
PLAUSIBLE_LOG_STEP = 0.5  # of ln noise: how precisely the largest plausible noise is found
SAME_THETA = 1e-13  # difference of logarithms that is rounding
NEGLIGIBLE_NOISE = 1e-8  # share of the target's variance: lower floors are hardly ever reached


# -- the target ----------------------------------------------------------------------------------------------------


class Standardised(NamedTuple):
    """The target that is learned from, (y - center) / scale, and the noise in its units."""

    target: np.ndarray
    center: float
    scale: float
    noise: Noise


def standardised(y: np.ndarray, noise: Noise, normalize: bool, learns: bool) -> Standardised:
    """Target of zero mean and unit variance, if ``normalize``, and the noise in its units: if it ``learns``, no smaller
    than the resolution of y allows."""
    center, scale = _center_and_scale(y) if normalize else (0.0, 1.0)
    target = (y - center) / scale
    if normalize and not target.any():  # one row, or a constant: a nominal scale
        scale = (1.0 if len(y) == 1 else 1e-6) * (abs(center) or 1.0)
    if not 1e-140 < scale < 1e140:
        raise DataError(f"the scale of y, {scale:.2g}, overflows or underflows when squared. Use other units for y.")
    floor = max(resolution(y) ** 2 / 12 / scale**2, MIN_NOISE_RATIO * float(np.mean(target**2))) if learns else 0.0
    return Standardised(target, center, scale, noise.scaled(scale**-2).bounded_below(floor))


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

    ``X`` may be prepared: a `Gram`. ``noise`` is a `Noise`, or what makes one. ``unknown``: whether the target has an
    unknown mean, which is integrated out. ``use_priors``: whether the priors of kernel and noise count ("map").
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
        unknown: bool = False,
        use_priors: bool = False,
    ) -> None:
        self._rows, self.target, self.solver, self.use_priors = X, target, solver, use_priors
        self.noise = as_noise(noise, len(target))
        self.model = Model((kernel,), MeanFunction(unknown=unknown), self.noise)

    @property
    def n(self) -> int:
        return len(self.target)

    @property
    def kernel(self) -> Kernel:
        return self.model.kernel

    @property
    def unknown(self) -> bool:
        return self.model.mean.unknown

    def with_kernel(self, kernel: Kernel) -> "RegressionObjective":
        """Of the same data with another kernel."""
        return RegressionObjective(
            kernel, self._rows, self.target, self.noise, self.solver, self.unknown, self.use_priors
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
        H = np.ones((len(target), 1)) if self.unknown else None
        evidence = self.solver.evidence(self.kernel, X, target, noise, H)
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
        return search_stages(self.n)

    def start_with_noise(self, variance: float) -> np.ndarray:
        """The kernel as it is, and this noise variance where it is learned."""
        return self.layout.joined(kernels=self.start()[self.layout.part("kernels")], noise=self.noise.start(variance))

    def starts(self) -> list[Start]:
        variance = self.variance()
        shares = heuristics.NOISE_SHARES if self.noise.size else heuristics.NOISE_SHARES[:1]
        kernels = heuristics.starting_kernels(self.kernel, self.rows, variance, self.unknown)
        names = ["as given", *(f"scaled to the data ({i})" for i in range(1, len(kernels)))]
        return [
            Start(
                f"{name}, noise {share:g}" if self.noise.size else name,
                self.layout.joined(kernels=to_free(kernel), noise=self.noise.start(share * variance)),
            )
            for name, kernel in zip(names, kernels, strict=True)
            for share in shares
        ]

    def floor(self) -> np.ndarray:
        """Noise is not below the resolution of the target."""
        return self.layout.joined(kernels=np.array(-np.inf), noise=self.noise.floor())

    def amplitude(self) -> np.ndarray | None:
        """Mask of the coordinates that, shifted together, multiply C; None if they do not reach all of it."""
        mask, own = heuristics.amplitude_mask(self.kernel), self.noise.amplitude()
        return None if mask is None or own is None else self.layout.joined(kernels=mask, noise=own)

    def profiled(self) -> np.ndarray | None:
        """None also where there is a prior, or a floor of the noise that may be reached: these do not scale."""
        floored = (self.noise.floor() > math.log(NEGLIGIBLE_NOISE * self.variance())).any()
        return None if floored or self.prior() is not None else self.amplitude()

    def prior(self) -> LogDensity | None:
        return self.model_prior if self.use_priors else None

    def off_plateau(self, theta: np.ndarray) -> np.ndarray | None:
        """Noise that few rows could not tell from none is raised."""
        raised = self.noise.raised_to(MIN_FREE_NOISE * self.variance(), theta[self.layout.part("noise")])
        return None if raised is None else self.layout.joined(kernels=theta[self.layout.part("kernels")], noise=raised)

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
        evidence does not tell the noise from none: of all these values, the smallest makes predictions at repeated
        inputs certain. Other parameters, and noise that the data tell, stay."""
        own, variance = self.layout.part("noise"), self.variance()
        if self.noise.raised_to(MIN_FREE_NOISE * variance, theta[own]) is None:
            return theta

        def at(noise: float) -> np.ndarray:
            return self.layout.joined(kernels=theta[self.layout.part("kernels")], noise=self.noise.start(noise))

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
        """Of the target, around zero; one if it is zero everywhere."""
        return float(np.mean(self.target**2)) or 1.0

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
        gram.diagonal(objective.kernel, objective.rows)  # an error that says more, where values are not finite
        raise NotPositiveDefiniteError(
            f"the covariance of these {objective.n} rows could not be factorised at any starting value of the "
            f"parameters of {objective.kernel!r}. Look at the kernel with mercer.check_kernel(kernel, X)."
        )
    assert learned.outcome is None or isinstance(learned.outcome, KeptMatrix)
    return dataclasses.replace(learned, outcome=objective.covariance_at(learned.theta, learned.outcome))
