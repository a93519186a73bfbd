"""Learning the parameters of a Gaussian process regression: kernel and noise, by the evidence."""

import functools
import math
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout, free_names, from_free, parameters_at, to_free
from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.inputs import Inputs, take_rows
from mercer.core.parameters import Slot, slots_of
from mercer.core.random import generator
from mercer.gp.noise import as_noise
from mercer.kernels.base import Kernel
from mercer.learning import heuristics
from mercer.learning.objective import KernelPrior, LogDensity, Objective, Start, logarithmic_mask
from mercer.learning.optimise import Learned, Settings, learn
from mercer.learning.plan import search_stages
from mercer.learning.state import Journal
from mercer.solvers.base import Evidence, GivenNoise, Solver

MIN_FREE_NOISE = 3e-3  # share of the target's variance: smaller noise is on a plateau
NEGLIGIBLE_NOISE = 1e-8  # share of the target's variance: lower floors are hardly ever reached


class RegressionObjective(Objective):
    """Evidence of a Gaussian process regression; theta is the kernel's free parameters, then those of the noise.

    ``noise`` is a `Noise`, or what makes one. ``unknown``: whether the target has an unknown mean, which is integrated
    out. ``use_priors``: whether the priors of kernel and noise count ("map").
    """

    screens_starts = True

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
        self.kernel, self.X, self.target, self.solver = kernel, X, target, solver
        self.unknown, self.use_priors = unknown, use_priors
        self.noise = as_noise(noise, len(target))
        self.layout = Layout.of(kernel)

    @property
    def n(self) -> int:
        return len(self.target)

    @property
    def size(self) -> int:
        return self.layout.size + self.noise.size

    def with_kernel(self, kernel: Kernel) -> "RegressionObjective":
        """Of the same data with another kernel."""
        return RegressionObjective(kernel, self.X, self.target, self.noise, self.solver, self.unknown, self.use_priors)

    @functools.cached_property
    def rows(self) -> gram.Gram:
        """The inputs, prepared once for the kernel."""
        return gram.Gram(self.kernel, self.X)

    def criterion(self, rows: np.ndarray | None = None) -> Evidence:
        X, target, noise = self.rows, self.target, self.noise
        if rows is not None:
            X, target, noise = take_rows(X, rows), target[rows], noise.take(rows)
        H = np.ones((len(target), 1)) if self.unknown else None
        return self.solver.evidence(self.kernel, X, target, noise, H)

    # -- the search ----------------------------------------------------------------------------------------------------

    def stages(self) -> list[int]:
        return search_stages(self.n)

    def start(self, noise: float) -> np.ndarray:
        """The kernel as it is, and this variance where noise is learned."""
        return np.concatenate([self._kernel_theta, self.noise.start(noise)])

    def starts(self) -> list[Start]:
        variance = self.variance()
        shares = heuristics.NOISE_SHARES if self.noise.size else heuristics.NOISE_SHARES[:1]
        kernels = heuristics.starting_kernels(self.kernel, self.rows, variance, self.unknown)
        names = ["as given", *(f"scaled to the data ({i})" for i in range(1, len(kernels)))]
        return [
            Start(
                f"{name}, noise {share:g}" if self.noise.size else name,
                np.concatenate([np.asarray(to_free(kernel), dtype=float), self.noise.start(share * variance)]),
            )
            for name, kernel in zip(names, kernels, strict=True)
            for share in shares
        ]

    def logarithmic(self) -> np.ndarray:
        return np.concatenate([logarithmic_mask(self.layout), np.ones(self.noise.size, bool)])

    def floor(self) -> np.ndarray:
        """Noise is not below the resolution of the target."""
        return np.concatenate([np.full(self.layout.size, -np.inf), self.noise.floor()])

    def amplitude(self) -> np.ndarray | None:
        """Mask of the coordinates that, shifted together, multiply C; None if they do not reach all of it."""
        mask, own = heuristics.amplitude_mask(self.kernel, self.layout), self.noise.amplitude()
        return None if mask is None or own is None else np.concatenate([mask, own])

    def profiled(self) -> np.ndarray | None:
        """None also where there is a prior, or a floor of the noise that may be reached: these do not scale."""
        floored = (self.noise.floor() > math.log(NEGLIGIBLE_NOISE * self.variance())).any()
        return None if floored or self.prior() is not None else self.amplitude()

    def prior(self) -> LogDensity | None:
        return self._prior if self.use_priors else None

    def off_plateau(self, theta: np.ndarray) -> np.ndarray | None:
        """Noise that few rows could not tell from none is raised."""
        own, free = self._split(theta)
        raised = self.noise.raised_to(MIN_FREE_NOISE * self.variance(), free)
        return None if raised is None else np.concatenate([own, raised])

    def tie_score(self, theta: np.ndarray) -> float | None:
        """Minus the mean CRPS of rows left out; not for "map", whose priors it leaves out."""
        return None if self.use_priors else self.score(theta)

    def score(self, theta: np.ndarray, jitter: float = 0.0) -> float:
        """Minus the mean CRPS of rows left out, at these parameters."""
        with self.criterion() as evidence:
            evidence.jitter = jitter
            return evidence.score(theta)

    # -- what theta means ----------------------------------------------------------------------------------------------

    def variance(self) -> float:
        """Of the target, around zero; one if it is zero everywhere."""
        return float(np.mean(self.target**2)) or 1.0

    def names(self) -> list[str]:
        return list(self._names)

    def at(self, theta: np.ndarray) -> tuple[Kernel, np.ndarray]:
        """The kernel, as plain numbers, and the noise: (n,)."""
        own, free = self._split(theta)
        return from_free(self.kernel, own), self.noise.variances(free, self.n)

    def parameters(self, theta: np.ndarray, scale: float) -> dict[str, Any]:
        """Values on the natural scale, by name; noise in the units of a target ``scale`` times this one."""
        own, free = self._split(theta)
        return {**parameters_at(self._slots, own), **self.noise.parameters(free, scale**2)}

    def _split(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The kernel's part of theta, and the noise's."""
        return theta[: self.layout.size], theta[self.layout.size :]

    @functools.cached_property
    def _kernel_theta(self) -> np.ndarray:
        return np.asarray(to_free(self.kernel), dtype=float)

    @functools.cached_property
    def _names(self) -> list[str]:
        return [*free_names(self.kernel), *self.noise.names]

    @functools.cached_property
    def _slots(self) -> list[Slot]:
        return slots_of(self.kernel)

    @functools.cached_property
    def _prior(self) -> LogDensity:
        """Of the priors that the kernel and the noise carry."""
        of_kernel = KernelPrior(self.kernel)

        def both(theta: np.ndarray) -> tuple[float, np.ndarray]:
            own, free = self._split(theta)
            (value, slope), (other, other_slope) = of_kernel(own), self.noise.log_prior(free)
            return value + other, np.concatenate([slope, other_slope])

        return both


def learn_regression(
    objective: RegressionObjective, settings: Settings, seed: int, journal: Journal | None = None
) -> Learned:
    """Maximise the evidence, or raise an error if it has no value anywhere."""
    learned = learn(objective, settings, generator(seed), journal)
    if not learned.optima:
        raise NotPositiveDefiniteError(
            f"the covariance of these {objective.n} rows could not be factorised at any starting value of the "
            f"parameters of {objective.kernel!r}. Look at the kernel with mercer.check_kernel(kernel, X)."
        )
    return learned
