"""The posterior of a latent function as draws of it: predictions are averages over them (PRML 6.76)."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.special import softmax

from mercer import gram
from mercer.core.coordinates import from_free
from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.inputs import align_columns, count_rows, take_rows
from mercer.gp.likelihood import with_fast_integrals
from mercer.inference.base import LabelPosterior
from mercer.inference.sampling.draws import Draws
from mercer.inference.sampling.latents import lower
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky

MOST_PARAMETERS = 200  # draws kept for prediction, where each has its theta, which is factorised again
INNER = 16  # values of f(z) for each draw, where softmax is averaged by numbers drawn


@dataclasses.dataclass(frozen=True, eq=False)
class SampledPosterior(LabelPosterior):
    """The posterior as draws of f at the rows of X: given each, f(z) is Gaussian.

    ``kernel`` is one, or a tuple of one for each class; ``latents`` (S, n) or (S, n, C); ``theta`` (S, p) the kernel's
    free parameters of each draw, or None: then all have the kernel as it is, factorised once. With them, every draw
    takes n^3/3 flops in every call.
    """

    kernel: Any
    X: Any
    latents: np.ndarray
    theta: np.ndarray | None = None

    @classmethod
    def of(cls, kernel, X, draws: Draws) -> "SampledPosterior":
        """From all draws, or with theta from MOST_PARAMETERS of them, evenly."""
        S = len(draws.latents)
        most = S if draws.theta is None else MOST_PARAMETERS
        kept = np.linspace(0, S - 1, min(S, most)).round().astype(int)
        return cls(kernel, X, draws.latents[kept], None if draws.theta is None else draws.theta[kept])

    def consistent(self) -> bool:
        kernels = self.kernel if isinstance(self.kernel, tuple) else (self.kernel,)
        each = self.theta is None or len(self.theta) == len(self.latents)
        whole = self.latents.ndim in (2, 3) and self.latents.shape[1] == count_rows(self.X)
        return whole and each and all(isinstance(kernel, Kernel) for kernel in kernels)

    @property
    def _several(self) -> bool:
        return self.latents.ndim == 3

    @functools.cached_property
    def _fixed(self):
        """The factors and whitened latents of kernels that do not change."""
        kernels = self.kernel if isinstance(self.kernel, tuple) else (self.kernel,)
        return [self._whitened(kernel, self._functions(c, len(kernels))) for c, kernel in enumerate(kernels)]

    def _functions(self, c, count):
        """The latents (S, functions, n) that belong to kernel c of ``count``."""
        latents = np.swapaxes(self.latents, 1, 2) if self._several else self.latents[:, None]
        return latents if count == 1 else latents[:, c : c + 1]

    def _whitened(self, kernel, latents):
        found = lower(lambda careful: gram.within(kernel, self.X))
        if found is None:
            raise NotPositiveDefiniteError(
                "the covariance of the rows drawn at is not positive definite. Look at the kernel with "
                "mercer.check_kernel(kernel, X)."
            )
        factor = found[1]
        S, functions, n = latents.shape
        white = factor.half_solve(latents.reshape(-1, n).T).T
        return kernel, factor, white.reshape(S, functions, n)

    def _sets(self) -> Iterable[list]:
        """Kernels, factors and whitened latents, of draws with one theta together."""
        if self.theta is None:
            return [self._fixed]
        functions = self._functions(0, 1)
        kernels = (from_free(self.kernel, theta) for theta in self.theta)
        return ([self._whitened(kernel, functions[i : i + 1])] for i, kernel in enumerate(kernels))

    def _conditionals(self, Z):
        """(rows, means (draws, m, functions), variances (m, functions)) of f(z) given f: draws of one theta together,
        piece by piece."""
        for factors in self._sets():
            count = sum(white.shape[1] for _, _, white in factors)
            for part in gram.pieces(count_rows(Z), max(len(self.latents[0]), len(factors[0][2]) * count)):
                rows = take_rows(Z, part)
                means, variances = [], []
                for kernel, factor, white in factors:
                    V = factor.half_solve_in_place(gram.between(kernel, rows, self.X).T)
                    left = np.maximum(gram.diagonal(kernel, rows) - np.einsum("ij,ij->j", V, V), 0.0)
                    means.append(np.swapaxes(white @ V, 1, 2))
                    variances.append(np.repeat(left[:, None], white.shape[1], axis=1))
                yield part, np.concatenate(means, axis=2), np.concatenate(variances, axis=1)

    def _aligned(self, Z):
        kernels = self.kernel if isinstance(self.kernel, tuple) else (self.kernel,)
        return align_columns(self.X, Z, any(kernel.needs_all_columns for kernel in kernels))

    def moments(self, Z) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f(z), by the law of total variance: (s,) or (s, C), both."""
        Z = self._aligned(Z)
        S, s = len(self.latents), count_rows(Z)
        mean, square, inner = (np.zeros((s, self.latents.shape[2] if self._several else 1)) for _ in range(3))
        for part, means, variances in self._conditionals(Z):
            mean[part] += means.sum(axis=0) / S
            square[part] += np.einsum("smc,smc->mc", means, means) / S
            inner[part] += variances * (len(means) / S)
        variance = inner + np.maximum(square - mean**2, 0.0)
        return (mean, variance) if self._several else (mean[:, 0], variance[:, 0])

    def class_probabilities(self, Z, likelihood) -> np.ndarray:
        """(s, C)."""
        if self._several:
            return self.probabilities(Z)
        Z, likelihood = self._aligned(Z), with_fast_integrals(likelihood)  # there is an integral for every draw and row
        out = np.zeros((count_rows(Z), 2))
        for part, means, variances in self._conditionals(Z):
            out[part] += self._both_sides(likelihood, means[..., 0], variances[:, 0]).sum(axis=0)
        return out / out.sum(axis=1, keepdims=True)

    @staticmethod
    def _both_sides(likelihood, mean, variance):
        """Probabilities of t = -1 and +1, each from its own end: (..., 2)."""
        sides = [likelihood.probability(sign * mean, variance) for sign in (-1.0, 1.0)]
        return np.maximum(np.stack(sides, axis=-1), np.finfo(float).tiny)

    def left_out(self, covariances, codes, likelihood) -> np.ndarray:
        """Class probabilities of each training row from all the others: (n, C).

        Given the other rows' f a draw's f_i is Gaussian, and p_i its class probabilities. Draws weighted by
        1 / p_i(its class) are draws of the posterior without row i.
        """
        rows, rng = np.arange(len(codes)), np.random.default_rng(0)
        total, weight = np.zeros((len(codes), self.latents.shape[2] if self._several else 2)), np.zeros(len(codes))
        for factors in self._sets():
            means, deviations = [], []
            for _, factor, white in factors:
                inverse = Cholesky(factor.lower).lower_inverse  # not to be kept with the factor
                precision = np.einsum("ji,ji->i", inverse, inverse)
                f, pulled = np.tensordot(white, factor.lower.T, axes=1), np.tensordot(white, inverse, axes=1)
                means.append(np.swapaxes(f - pulled / precision, 1, 2))
                deviations.append(np.repeat(1 / np.sqrt(precision)[:, None], white.shape[1], axis=1))
            mean, deviation = np.concatenate(means, axis=2), np.concatenate(deviations, axis=1)
            half = rng.standard_normal((INNER // 2, 1, mean.shape[2]))
            for m in mean:
                if self._several:
                    p = softmax(m + deviation * np.concatenate([half, -half]), axis=-1).mean(axis=0)
                else:
                    p = self._both_sides(with_fast_integrals(likelihood), m[:, 0], deviation[:, 0] ** 2)
                w = 1 / np.maximum(p[rows, codes], np.finfo(float).tiny ** 0.5)
                total += w[:, None] * p
                weight += w
        return total / weight[:, None]

    def probability(self, Z, likelihood) -> np.ndarray:
        """p(t = +1 | z), averaged over the draws (PRML 6.76): (s,)."""
        return self.class_probabilities(Z, likelihood)[:, 1]

    def probabilities(self, Z, probabilities: Callable | None = None) -> np.ndarray:
        """p(class | z), averaged over the draws: (s, C).

        ``probabilities(means (m, C), covariances (m, C, C))`` integrates over Gaussian latents of m rows; given a draw,
        the functions are independent. None takes softmax at INNER values of f(z) for each draw, of the same random
        numbers for every row: many times quicker, and no less exact than the draws themselves.
        """
        Z = self._aligned(Z)
        out = np.zeros((count_rows(Z), self.latents.shape[2]))
        rng = np.random.default_rng(0)
        for part, means, variances in self._conditionals(Z):
            if probabilities is None and part.start == 0:  # new draws: new numbers
                half = rng.standard_normal((len(means), INNER // 2, 1, means.shape[2]))
                inner = np.concatenate([half, -half], axis=1)
            covariances = variances[:, :, None] * np.eye(variances.shape[1])
            for i, mean in enumerate(means):
                if probabilities is None:
                    out[part] += softmax(mean + np.sqrt(variances) * inner[i], axis=-1).mean(axis=0)
                else:
                    out[part] += probabilities(mean, covariances)
        return out / len(self.latents)
