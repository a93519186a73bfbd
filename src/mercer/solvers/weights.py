"""Exact solutions in weight space, for kernels with finitely many features (PRML 3.53, 3.54, 6.49-6.55; Ex 6.21).

f(x) = w^T phi(x) with w ~ N(0, I) is the process with kernel phi(x)^T phi(x'): the same numbers as in function space,
from M x M matrices.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import free_names
from mercer.core.inputs import (
    Inputs,
    align_columns,
    as_matrix,
    as_vector,
    column_names,
    copy_rows,
    count_rows,
    stack_rows,
)
from mercer.core.random import normal
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, LearnedNoise, Noise, as_noise
from mercer.gp.posterior import Posterior
from mercer.gp.process import check_size
from mercer.inference.features import LatentFeatures, LatentWeights, SampledWeights, SoftmaxWeights
from mercer.kernels.algebra import terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import by_position
from mercer.linalg.cholesky import Cholesky, factor, root
from mercer.linalg.trend import log_unit
from mercer.solvers.base import Cost, GivenNoise, Solver, register
from mercer.solvers.weight_evidence import ScaledTerms, WeightSpace, scaled_terms


@dataclasses.dataclass(frozen=True, eq=False)
class WeightPosterior(Posterior):
    """p(w | y) = N(weights, B^-1), B = I + Phi^T diag(noise)^-1 Phi, beside the data it came from.

    Where ``prior_mean`` has unknown coefficients, its columns are the last features, and I in B is their prior
    precision there: zero, if that is flat.
    """

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    B: np.ndarray
    factor: Cholesky
    weights: np.ndarray
    prior_mean: MeanFunction

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None = None
    ) -> "WeightPosterior":
        # A copy, because the caller may modify the rows later. Prepared ones are not the caller's.
        n, rows = count_rows(X), X if isinstance(X, gram.Gram) else gram.Gram(kernel, copy_rows(X))
        y, noise = as_vector(y, n), np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
        mean = (MeanFunction() if mean is None else mean).fit(rows.X)
        Phi = _features(kernel, rows, mean)
        B, c = _statistics(Phi, y - mean(rows.X), noise)
        new = cls._from(kernel, rows, y, noise, B + _prior(len(B), mean), c, mean)
        vars(new)["_evidence_and_residual"] = new._measured(Phi)  # while there are features
        return new

    @classmethod
    def _from(
        cls, kernel: Kernel, rows: gram.Gram, y: np.ndarray, noise: np.ndarray, B: np.ndarray, c: np.ndarray,
        mean: MeanFunction,
    ) -> "WeightPosterior":  # fmt: skip
        L = factor(B.copy())
        new = cls(kernel, rows.X, y, noise, B, L, L.solve(c), mean)
        gram.keep(new, rows.of(kernel))
        return new

    @classmethod
    def restored(cls, unknown: bool = False, **fields: Any) -> "WeightPosterior":
        """From the fields of a file; older ones hold whether the mean has an unknown constant."""
        return cls(**{"prior_mean": MeanFunction.restored(unknown)} | fields)

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n, M = count_rows(self.X), len(self.weights)
        square = self.B.shape == self.factor.lower.shape == (M, M) and self.weights.shape == (M,)
        parts = isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)
        return square and self.y.shape == self.noise.shape == (n,) and parts

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "WeightPosterior":
        """Given more data: the sufficient statistics add up."""
        X = self._aligned(X)
        y, noise = as_vector(y, count_rows(X)), np.broadcast_to(np.asarray(noise, dtype=float), (count_rows(X),))
        if gram.grows(self._rows.rows):  # the new rows may have features of their own
            y, noise = np.concatenate([self.y, y]), np.concatenate([self.noise, noise])
            X = stack_rows(self.X, X, self.kernel.reads, self._needs_all_columns)
            return WeightPosterior.given(self.kernel, X, y, noise, self.prior_mean)
        B, c = _statistics(self._features(X), y - self.prior_mean(X), noise)
        B, c = self.B + B, self.B @ self.weights + c
        X = stack_rows(self.X, copy_rows(X), self.kernel.reads, self._needs_all_columns)
        y, noise = np.concatenate([self.y, y]), np.concatenate([self.noise, noise])
        return WeightPosterior._from(self.kernel, gram.Gram(self.kernel, X), y, noise, B, c, self.prior_mean)

    # -- moments -------------------------------------------------------------------------------------------------

    @property
    def _rows(self) -> gram.Gram:
        """The training rows, prepared once."""
        return gram.kept(self, self.kernel, self.X)

    def _features(self, Z: Inputs) -> np.ndarray:
        return _features(self.kernel, self._rows if Z is self.X else Z, self.prior_mean, self._rows)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    def mean(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z, variance=False)[0]

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs, variance: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """E f(z) = m(z) + phi(z)^T w and var f(z) = |L^-1 phi(z)|^2, plus the prior variance of features that no
        training row has: (s,), (s,)."""

        def moments(some: Inputs) -> tuple[np.ndarray, np.ndarray]:
            Phi = self._features(some)
            mean = self.prior_mean(some) + Phi @ self.weights
            if not variance:
                return mean, np.empty(0)
            half = self.factor.half_solve(Phi.T)
            return mean, np.einsum("ij,ij->j", half, half) + gram.unseen(self.kernel, some, self._rows)

        found = gram.by_pieces(moments, self._aligned(Z), len(self.weights))
        means, variances = zip((np.empty(0), np.empty(0)), *found, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def covariance(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        half = self.factor.half_solve(self._features(Z).T)
        return half.T @ half + gram.unseen(self.kernel, Z, self._rows, whole=True)

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s). One draw of the weights serves any number of rows."""
        check_size(size)
        Z, M = self._aligned(Z), len(self.weights)
        R = np.zeros((count_rows(Z), 0))
        if gram.grows(self._rows.rows) and len(R):
            # A difference of prior covariances, so its rounding errors are relative to the prior variance.
            scale = float(gram.diagonal(self.kernel, Z).max())
            R = root(np.asarray(gram.unseen(self.kernel, Z, self._rows, whole=True)), scale=scale)
        z = normal(seed, (M + R.shape[1], size))
        w = self.weights[:, None] + self.factor.half_solve(z[:M], transposed=True)
        return self.prior_mean(Z) + (self._features(Z) @ w + R @ z[M:]).T

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d)."""
        Z = self._aligned(Z)
        names = column_names(Z)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        Phi, Z = self._features(Z), as_matrix(Z)
        dH = self.prior_mean.columns_slope(Z, names)
        M, B_inv_Phi = len(self.weights) - dH.shape[1], self.factor.solve(Phi.T).T
        dmean = self.prior_mean.slope(Z, names) + np.einsum("sqd,q->sd", dH, self.weights[M:])
        dmean += gram.feature_slope(kernel, Z, np.broadcast_to(self.weights, Phi.shape)[:, :M])
        dvariance = gram.feature_slope(kernel, Z, B_inv_Phi[:, :M]) + np.einsum("sqd,sq->sd", dH, B_inv_Phi[:, M:])
        return dmean, 2 * dvariance

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`: a term has its own features and weights."""
        Z, out, first = self._aligned(Z), [], 0

        def moments(part: Kernel, first: int, some: Inputs) -> tuple[np.ndarray, np.ndarray, int]:
            own = self._rows.of(part)
            Phi = gram.features(part, some, own)
            count = Phi.shape[1]
            padded = np.zeros((len(self.weights), len(Phi)), order="F")
            padded[first : first + count] = Phi.T
            half = self.factor.half_solve_in_place(padded)
            mean = Phi @ self.weights[first : first + count]
            return mean, np.einsum("ij,ij->j", half, half) + gram.unseen(part, some, own), count

        for part in terms_of(self.kernel):
            found = gram.by_pieces(functools.partial(moments, part, first), Z, len(self.weights))
            means, variances, counts = zip((np.empty(0), np.empty(0), 0), *found, strict=True)
            out.append((part, np.concatenate(means), np.concatenate(variances)))
            first += counts[-1]
        return out

    def rescaled(self, kernel: Kernel, factor: float) -> "WeightPosterior":
        """As `GP.rescaled`; by solving again, from M x M matrices."""
        return WeightPosterior.given(kernel, self._rows, self.y, self.noise * factor, self.prior_mean)

    def latent(self) -> "WeightPosterior":
        """Itself: white noise has no finite features."""
        return self

    # -- diagnostics -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`, of B."""
        return {"jitter": self.jitter, "condition": self.factor.condition(), "residual": self.residual()}

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.coefficients`: the last of the weights."""
        M = len(self.weights)
        q = 0 if self.prior_mean.trend is None else self.prior_mean.trend.transform.shape[1]
        last = self.factor.half_solve(np.eye(M)[:, M - q :])
        return self.weights[M - q :], last.T @ last

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.trend`."""
        Z = self._aligned(Z)
        H, (estimate, covariance) = self.prior_mean.columns(Z), self.coefficients()
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    @property
    def a(self) -> np.ndarray:
        """C^-1 (y - m), or P (y - m) with unknown coefficients: (n,)."""
        return (self.y - self.prior_mean(self.X) - self._features(self.X) @ self.weights) / self.noise

    @property
    def jitter(self) -> float:
        return self.factor.jitter

    def log_evidence(self) -> float:
        """As `GP.log_evidence`."""
        return self._evidence_and_residual[0]

    @functools.cached_property
    def _evidence_and_residual(self) -> tuple[float, float]:
        return self._measured(self._features(self.X))

    def _measured(self, Phi: np.ndarray) -> tuple[float, float]:
        """Log evidence, and relative residual |B w - c| / |c| of the normal equations, c = Phi^T (y - m) / noise."""
        n, target = len(self.y), self.y - self.prior_mean(self.X)
        c = Phi.T @ (target / self.noise)
        away = float(np.linalg.norm(self.B @ self.weights - c) / (np.linalg.norm(c) or 1.0))
        H, precision = self.prior_mean.columns(self.X), self.prior_mean.precision
        residual = target - Phi @ self.weights
        prior = _prior(len(self.weights), self.prior_mean)
        quadratic = float(residual @ (residual / self.noise) + self.weights @ (prior @ self.weights))
        log_det = self.factor.log_det() + float(np.log(self.noise).sum()) - log_unit(H, precision)
        contrasts = n - (H.shape[1] if precision is None else 0)
        return -0.5 * (log_det + quadratic + contrasts * math.log(2 * math.pi)), away

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        half = self.factor.half_solve(self._features(self.X).T)
        diagonal = (1 - np.einsum("ij,ij->j", half, half) / self.noise) / self.noise
        # If only this row determines the weight with a flat prior, that weight keeps its estimate from all rows.
        diagonal = np.where(diagonal * self.noise > len(self.y) * np.finfo(float).eps, diagonal, 1 / self.noise)
        return self.y - self.a / diagonal, 1 / diagonal

    def residual(self) -> float:
        """Relative residual of the normal equations."""
        return self._evidence_and_residual[1]


@register
@dataclasses.dataclass(frozen=True)
class Weights(Solver):
    """The posterior of the M weights of the kernel's features: 4 n M^2 flops an evaluation of the evidence."""

    name = "weights"
    summary = "exact, through the weights of the kernel's features"
    parts = (WeightPosterior, LatentWeights, SoftmaxWeights, SampledWeights)

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        if not gram.count_features(kernel, X):
            return f"needs a kernel with finitely many features; got {kernel!r}"
        if not noise.positive:
            return "needs a positive noise variance in every row"
        return None

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        n, M = count_rows(X), gram.count_features(kernel, X) or 0
        return Cost(8 * (6 * n * M + 3 * M**2), 4.0 * n * M**2, (n, M), f"the kernel has {M:,} features")

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> WeightSpace:
        one = isinstance(as_noise(noise, len(y)), CommonNoise | LearnedNoise)
        apart = one and scaled_terms(kernel) and (mean is None or not free_names(mean))
        return (ScaledTerms if apart else WeightSpace)(kernel, X, y, noise, mean)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> WeightPosterior:
        return WeightPosterior.given(kernel, X, y, noise, mean)

    def latent(self, kernel: Kernel, X: Inputs) -> "LatentFeatures":
        return LatentFeatures(kernel, X)


def _features(kernel: Kernel, X: Inputs, mean: MeanFunction, like: gram.Gram | None = None) -> np.ndarray:
    """Features of the kernel, and the columns of the mean."""
    Phi = gram.features(kernel, X, like)
    return np.column_stack([Phi, mean.columns(gram.raw(X))]) if mean.unknown else Phi


def _prior(size: int, mean: MeanFunction) -> np.ndarray:
    """Prior precision of the weights: (size, size)."""
    prior = np.eye(size)
    if mean.trend is not None:
        q = mean.trend.transform.shape[1]
        prior[size - q :, size - q :] = 0.0 if mean.precision is None else mean.precision
    return prior


def _statistics(Phi: np.ndarray, y: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Phi^T Phi and Phi^T y, each over the noise variances."""
    scaled = Phi / np.sqrt(noise)[:, None]
    return scaled.T @ scaled, scaled.T @ (y / np.sqrt(noise))
