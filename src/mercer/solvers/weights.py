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
from mercer.gp.noise import Noise
from mercer.gp.posterior import Posterior
from mercer.gp.process import check_size
from mercer.inference.features import LatentFeatures, LatentWeights, SampledWeights, SoftmaxWeights
from mercer.kernels.algebra import terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import by_position
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt, factor, root
from mercer.solvers.base import Cost, Evaluation, Evidence, GivenNoise, Solver, left_out, register


@dataclasses.dataclass(frozen=True, eq=False)
class WeightPosterior(Posterior):
    """p(w | y) = N(weights, B^-1), B = I + Phi^T diag(noise)^-1 Phi, beside the data it came from.

    With an ``unknown`` constant, the last feature is one everywhere and its weight has a flat prior: no prior precision
    is added for it in B.
    """

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    B: np.ndarray
    factor: Cholesky
    weights: np.ndarray
    unknown: bool = False

    @classmethod
    def given(cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, unknown: bool = False) -> "WeightPosterior":
        # A copy, because the caller may modify the rows later. Prepared ones are not the caller's.
        n, rows = count_rows(X), X if isinstance(X, gram.Gram) else gram.Gram(kernel, copy_rows(X))
        y, noise = as_vector(y, n), np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
        Phi = _features(kernel, rows, unknown)
        B, c = _statistics(Phi, y, noise, unknown)
        return cls._from(kernel, rows, y, noise, B, c, unknown)

    @classmethod
    def _from(
        cls, kernel: Kernel, rows: gram.Gram, y: np.ndarray, noise: np.ndarray, B: np.ndarray, c: np.ndarray,
        unknown: bool,
    ) -> "WeightPosterior":  # fmt: skip
        L = factor(B.copy())
        new = cls(kernel, rows.X, y, noise, B, L, L.solve(c), unknown)
        gram.keep(new, rows.of(kernel))
        return new

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n, M = count_rows(self.X), len(self.weights)
        square = self.B.shape == self.factor.lower.shape == (M, M) and self.weights.shape == (M,)
        return square and self.y.shape == self.noise.shape == (n,) and isinstance(self.kernel, Kernel)

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "WeightPosterior":
        """Given more data: the sufficient statistics add up."""
        X = align_columns(self.X, X, self.kernel.needs_all_columns)
        if gram.grows(self._rows.rows):  # the new rows may have features of their own
            y, noise = np.concatenate([self.y, y]), np.concatenate([self.noise, noise])
            X = stack_rows(self.X, X, self.kernel.reads, self.kernel.needs_all_columns)
            return WeightPosterior.given(self.kernel, X, y, noise, self.unknown)
        more = WeightPosterior.given(self.kernel, X, y, noise, self.unknown)
        B = self.B + more.B - np.diag(_prior(len(self.B), self.unknown))
        c = self.B @ self.weights + more.B @ more.weights
        X = stack_rows(self.X, more.X, self.kernel.reads, self.kernel.needs_all_columns)
        y, noise = np.concatenate([self.y, more.y]), np.concatenate([self.noise, more.noise])
        return WeightPosterior._from(self.kernel, gram.Gram(self.kernel, X), y, noise, B, c, self.unknown)

    # -- moments -------------------------------------------------------------------------------------------------

    @property
    def _rows(self) -> gram.Gram:
        """The training rows, prepared once."""
        return gram.kept(self, self.kernel, self.X)

    def _features(self, Z: Inputs) -> np.ndarray:
        return _features(self.kernel, self._rows if Z is self.X else Z, self.unknown, self._rows)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, self.kernel.needs_all_columns)

    def mean(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z, variance=False)[0]

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs, variance: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """E f(z) = phi(z)^T w and var f(z) = |L^-1 phi(z)|^2, plus the prior variance of features that no training row
        has: (s,), (s,)."""

        def moments(some: Inputs) -> tuple[np.ndarray, np.ndarray]:
            Phi = self._features(some)
            if not variance:
                return Phi @ self.weights, np.empty(0)
            half = self.factor.half_solve(Phi.T)
            return Phi @ self.weights, np.einsum("ij,ij->j", half, half) + gram.unseen(self.kernel, some, self._rows)

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
        return (self._features(Z) @ w + R @ z[M:]).T

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d)."""
        Z = self._aligned(Z)
        names = column_names(Z)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        Phi, Z = self._features(Z), as_matrix(Z)
        M = len(self.weights) - self.unknown  # a constant has no slope
        return (
            gram.feature_slope(kernel, Z, np.broadcast_to(self.weights, Phi.shape)[:, :M]),
            2 * gram.feature_slope(kernel, Z, self.factor.solve(Phi.T).T[:, :M]),
        )

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
        return WeightPosterior.given(kernel, self._rows, self.y, self.noise * factor, self.unknown)

    def latent(self) -> "WeightPosterior":
        """Itself: white noise has no finite features."""
        return self

    # -- what the data say of it -----------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`, of B."""
        return {"jitter": self.jitter, "condition": self.factor.condition(), "residual": self.residual()}

    def constant(self) -> float:
        """As `GP.constant`."""
        return float(self.weights[-1]) if self.unknown else 0.0

    @property
    def a(self) -> np.ndarray:
        """C^-1 y, or P y with an unknown constant: (n,)."""
        return (self.y - self._features(self.X) @ self.weights) / self.noise

    @property
    def jitter(self) -> float:
        return self.factor.jitter

    def log_evidence(self) -> float:
        """As `GP.log_evidence`."""
        Phi, n = self._features(self.X), len(self.y)
        residual = self.y - Phi @ self.weights
        prior = _prior(len(self.weights), self.unknown)
        quadratic = float(residual @ (residual / self.noise) + self.weights @ (prior * self.weights))
        log_det = self.factor.log_det() + float(np.log(self.noise).sum()) - (math.log(n) if self.unknown else 0.0)
        return -0.5 * (log_det + quadratic + (n - self.unknown) * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        half = self.factor.half_solve(self._features(self.X).T)
        diagonal = (1 - np.einsum("ij,ij->j", half, half) / self.noise) / self.noise
        # If only this row determines the weight with a flat prior, that weight keeps its estimate from all rows.
        diagonal = np.where(diagonal * self.noise > len(self.y) * np.finfo(float).eps, diagonal, 1 / self.noise)
        return self.y - self.a / diagonal, 1 / diagonal

    def residual(self) -> float:
        """Relative residual |B w - c| / |c| of the normal equations, c = Phi^T y / noise."""
        c = _statistics(self._features(self.X), self.y, self.noise, self.unknown)[1]
        return float(np.linalg.norm(self.B @ self.weights - c) / (np.linalg.norm(c) or 1.0))


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
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, H: np.ndarray | None = None
    ) -> "WeightSpace":
        return WeightSpace(kernel, X, y, noise, H)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        unknown: bool = False,
        allow_invalid: bool = False,
    ) -> WeightPosterior:
        return WeightPosterior.given(kernel, X, y, noise, unknown)

    def latent(self, kernel: Kernel, X: Inputs) -> "LatentFeatures":
        return LatentFeatures(kernel, X)


class WeightSpace(Evidence):
    """Evidence from the posterior of the weights (PRML 3.53, 3.54, 3.86; Ex 6.21). About 4 n M^2 flops, O(n M) memory.

    With Phi and y divided by the noise's standard deviation, B = I + Phi^T Phi, w = B^-1 Phi^T y:
    ln|C| = ln|B| + sum ln noise, y^T C^-1 y = |y - Phi w|^2 + |w|^2, and a = C^-1 y is (y - Phi w) over the deviation.
    Columns with unknown coefficients are features without a prior: no prior precision is added for them in B.
    """

    def _representation(self, kernel: Kernel, X: Inputs) -> gram.Features:
        return gram.on(kernel, X).feature_map()

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        theta, free, noise = self._split(theta)
        deviation = np.sqrt(noise)
        q = self.H.shape[1]
        Phi = np.column_stack([self.K.fill(theta), self.H]) / deviation[:, None]
        y, prior = self.y / deviation, np.repeat([1.0, 0.0], [Phi.shape[1] - q, q])
        if not np.isfinite(Phi).all():
            return None
        B = backend.gram(Phi)
        B[np.diag_indices_from(B)] += prior
        factor = attempt(B)
        if factor is None:
            return None
        w = factor.solve(Phi.T @ y)
        residual = y - Phi @ w
        log_det = factor.log_det() + np.log(noise).sum() - np.linalg.slogdet(self.H.T @ self.H)[1]
        answer = self._answer(log_det, residual / deviation, float(residual @ residual + w @ (prior * w)), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        # dL/dPhi = (a a^T - C^-1) Phi, with the noise's deviation taken out again.
        half = factor.half_solve(Phi.T)
        C_inv_Phi = factor.half_solve(half, transposed=True).T / deviation[:, None]
        w = w / math.sqrt(scale) if profiled else w
        M = len(w) - q
        slope = self.K.contract(theta, a[:, None] * w[None, :M] - C_inv_Phi[:, :M])
        diagonal = (1 - np.einsum("ij,ij->j", half, half)) / noise  # of C^-1, or of P
        self._left_out = left_out(a, diagonal)
        slope = self._slope(slope, free, 0.5 * (a**2 - diagonal))
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self(theta) is None else self._left_out


def _features(kernel: Kernel, X: Inputs, unknown: bool, like: gram.Gram | None = None) -> np.ndarray:
    Phi = gram.features(kernel, X, like)
    return np.column_stack([Phi, np.ones(len(Phi))]) if unknown else Phi


def _prior(size: int, unknown: bool) -> np.ndarray:
    """Prior precisions of the weights."""
    return np.append(np.ones(size - unknown), np.zeros(int(unknown)))


def _statistics(Phi: np.ndarray, y: np.ndarray, noise: np.ndarray, unknown: bool) -> tuple[np.ndarray, np.ndarray]:
    """B and Phi^T y / noise."""
    scaled = Phi / np.sqrt(noise)[:, None]
    return np.diag(_prior(Phi.shape[1], unknown)) + scaled.T @ scaled, scaled.T @ (y / np.sqrt(noise))
