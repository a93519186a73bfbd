"""Learning the parameters of a regression whose noise varies: those of the function's kernel, of the kernel of the log
noise, and the level of the noise, by the bound of `inference.varying_noise` on the evidence."""

import functools
import math
from collections.abc import Sequence
from typing import Self

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout, to_free
from mercer.core.inputs import take_rows
from mercer.gp.mean import MeanFunction
from mercer.gp.model import Model
from mercer.gp.noise import VaryingNoise
from mercer.inference.sites import Covariance, LatentMatrix, SiteApproximation
from mercer.inference.varying_noise import NoiseApproximation, NoisyTarget, infer_noise
from mercer.kernels.base import Kernel
from mercer.learning import heuristics
from mercer.learning.label_evidence import KeepsCovariances, KeptCovariances
from mercer.learning.objective import Criterion, LogDensity, ModelObjective, Start
from mercer.learning.plan import search_stages
from mercer.learning.weak_priors import with_weak_priors
from mercer.linalg.jitter import FIXED_JITTER
from mercer.solvers.base import Evaluation, determined_columns

START_LOG_VARIANCES = (1.0, 0.1)  # of the log noise, where learning starts
MAX_ROWS_AT_ONCE = 250  # more are learned from in stages
MAX_LOG_NOISE_VARIANCE = 25.0  # deviations of the noise would differ by a factor of e^2.5 or more


class VaryingNoiseEvidence(KeepsCovariances):
    """The bound on fixed rows, as a function of theta. Inference starts from where it ended at the previous theta.

    Memory: five matrices. 2 n^3 flops for each step of inference, some six of them.
    """

    def __init__(self, model: Model, rows: gram.Gram, y: np.ndarray, mean: MeanFunction) -> None:
        assert isinstance(model.noise, VaryingNoise)
        X = gram.raw(rows)
        self.n, self.y, self.model = len(y), y - mean(X), model
        self.H, self.precision = determined_columns(mean, X), mean.precision
        self.layout = Layout.of(model)
        self.of_kernel, self.of_noise = self.layout.part("kernels"), self.layout.part("noise")
        self.function = LatentMatrix(model.kernel, rows)
        self.log_noise = LatentMatrix(model.noise.kernel, rows.of(model.noise.kernel))
        self.spaces = [self.function, self.log_noise]
        self.jitter, self.diagonal = 0.0, 1.0
        self.sites: SiteApproximation | None = None  # the last ones

    @property
    def size(self) -> int:
        return self.layout.size

    def __enter__(self) -> Self:
        self.function.__enter__()
        self.log_noise.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.log_noise.__exit__(*error)
        self.function.__exit__(*error)

    def covariances(self, theta: np.ndarray, accurate: bool = False) -> list[Covariance]:
        """Of the function and of the log noise."""
        theta = np.asarray(theta, dtype=float)
        K = self.function.at(theta[self.of_kernel], self.jitter, accurate)
        G = self.log_noise.at(self._split(theta)[1], 0.0, accurate)
        G.K.ravel()[:: self.n + 1] += FIXED_JITTER * float(np.mean(G.diagonal))
        self.diagonal, self._last = float(np.mean(K.diagonal)), [K, G]
        return [K, G]

    def approximation(self, theta: np.ndarray, covariances: Sequence[Covariance]) -> NoiseApproximation | None:
        """q(g) at theta, where these are the covariances; None where there is none."""
        K, G = covariances
        if not math.isfinite(float(np.mean(K.diagonal) + np.mean(G.diagonal))):
            return None
        noise = self.model.noise
        assert isinstance(noise, VaryingNoise)
        log_level = self._split(np.asarray(theta, dtype=float))[0]
        target = NoisyTarget(K.K, self.y, self.H, log_level, noise.min_variance, self.precision)
        return infer_noise(G, target, self.sites)

    def _split(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """ln level, and the parameters of the kernel of the log noise."""
        noise, free = self.model.noise, theta[self.of_noise]
        assert isinstance(noise, VaryingNoise)
        return (math.log(noise.level), free) if "level" in noise.fixed else (float(free[0]), free[1:])

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        # NaN marks a tile that lost digits: then all of them are computed accurately.
        return self._evaluate(theta, gradient, accurate=False) or self._evaluate(theta, gradient, accurate=True)

    def _evaluate(self, theta: np.ndarray, gradient: bool, accurate: bool) -> Evaluation | None:
        theta = np.asarray(theta, dtype=float)
        with np.errstate(all="ignore"):
            found = self.approximation(theta, self.covariances(theta, accurate))
            if found is None or not math.isfinite(found.log_evidence):
                return None
            self.sites = found.sites
            if not gradient:
                return Evaluation(found.log_evidence, None, 1.0)
            _, free = self._split(theta)
            of_function = found.slope(self.function.contraction(theta[self.of_kernel]))
            if of_function is None:
                return None
            of_log_noise = found.sites.slope([self.log_noise.contraction(free)])
        slope = np.empty(self.size)
        slope[self.of_kernel] = of_function[0]
        fixed = len(theta[self.of_noise]) == len(free)
        slope[self.of_noise] = of_log_noise if fixed else np.concatenate([[of_function[1]], of_log_noise])
        return Evaluation(found.log_evidence, slope, 1.0) if np.isfinite(slope).all() else None


class VaryingNoiseObjective(ModelObjective):
    """The bound on the evidence of a regression whose noise varies. ``kernel`` and the level of the noise are those
    learned with constant noise, from which the search starts; the ``mean`` stays as it was learned there."""

    screens_starts = True

    def __init__(
        self,
        kernel: Kernel,
        rows: gram.Gram,
        target: np.ndarray,
        noise: VaryingNoise,
        mean: MeanFunction,
        use_priors: bool = False,
    ) -> None:
        self.rows, self.target, self.noise, self.use_priors = rows, target, noise, use_priors
        self.mean, self.model = mean.fit(gram.raw(rows)), Model((kernel,), noise=noise)

    @property
    def n(self) -> int:
        return len(self.target)

    def criterion(self, rows: np.ndarray | None = None) -> VaryingNoiseEvidence:
        X, y = (self.rows, self.target) if rows is None else (take_rows(self.rows, rows), self.target[rows])
        evidence = VaryingNoiseEvidence(self.model, X, y, self.mean)
        if rows is None:
            evidence.allow()
        return evidence

    def outcome(self, criterion: Criterion) -> KeptCovariances | None:
        """The covariances at the best theta, if they were kept."""
        assert isinstance(criterion, VaryingNoiseEvidence)
        return criterion.kept

    def stages(self) -> list[int]:
        """As of constant noise; of a few hundred rows half come first, since an evaluation takes ten times as long."""
        found = search_stages(self.n)
        return [self.n // 2, self.n] if len(found) == 1 and self.n > MAX_ROWS_AT_ONCE else found

    def starts(self) -> Sequence[Start]:
        """The log noise as given, and scaled to the data."""
        given = np.asarray(to_free(self.model), dtype=float)
        found = [Start("as given", given)]
        own = given[self.layout.part("noise")]
        prefix = own[: len(own) - Layout.of(self.noise.kernel).size]
        for variance in START_LOG_VARIANCES:
            for kernel in heuristics.starting_kernels(self.noise.kernel, self.rows.of(self.noise.kernel), variance)[1:]:
                free = np.concatenate([prefix, np.asarray(to_free(kernel), dtype=float)])
                theta = self.layout.joined(kernels=given[self.layout.part("kernels")], noise=free)
                if not any(np.array_equal(theta, start.theta) for start in found):
                    found.append(Start(f"log noise scaled to the data ({len(found)})", theta))
        return found

    def late_start(self, rows: int) -> Start | None:
        """Where few rows do not show that the noise varies, more do not lead back: a start on all of them."""
        return self.starts()[1] if rows == self.n and len(self.starts()) > 1 else None

    def ceiling(self) -> np.ndarray:
        """The log noise varies by no more than `MAX_LOG_NOISE_VARIANCE`."""
        kernels = [
            heuristics.terms_scaled_to_variance(self.noise.kernel, self.rows.of(self.noise.kernel), v)
            for v in (MAX_LOG_NOISE_VARIANCE, 0.5 * MAX_LOG_NOISE_VARIANCE)
        ]
        at, half = (np.asarray(to_free(kernel), dtype=float) for kernel in kernels)
        own = np.where(at > half, at, np.inf)
        limits = np.full(self.size, np.inf)
        part = self.layout.part("noise")
        limits[part.stop - len(own) : part.stop] = own
        return limits

    def prior(self) -> LogDensity | None:
        return self.model_prior if self.use_priors else None

    @functools.cached_property
    def prior_model(self) -> Model:
        return with_weak_priors(self.model, self.rows, self.variance, self.mean.centred, at_mode=True)

    @functools.cached_property
    def variance(self) -> float:
        """Of the target, around zero; one if it is zero everywhere."""
        return float(np.mean(self.target**2)) or 1.0

    def units(self, scale: float) -> np.ndarray:
        """What to add to theta for a target ``scale`` times this one, in whose squares the level is."""
        noise = np.zeros(self.noise.size)
        if "level" not in self.noise.fixed:
            noise[0] = 2 * math.log(scale)
        return self.layout.joined(kernels=np.array(0.0), noise=noise)
