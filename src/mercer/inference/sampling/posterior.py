"""The posterior of a latent function as draws of it: predictions are averages over them (PRML 6.76)."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from mercer import gram
from mercer.core.coordinates import from_free
from mercer.core.errors import NotPositiveDefiniteError, rows_of
from mercer.core.inputs import Inputs, align_columns, count_rows, take_rows
from mercer.gp.likelihood import Likelihood, with_fast_integrals
from mercer.inference.base import LabelPosterior
from mercer.inference.sampling.draws import Draws
from mercer.inference.sampling.latents import factor_kernel
from mercer.inference.sites import LatentCovariance, both_classes
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky

MAX_PARAMETER_DRAWS = 200  # kept for prediction if parameters are sampled; each is factorised again
SOFTMAX_POINTS = 16  # values of f(z) for each draw, over which softmax is averaged
MIN_PROBABILITY = np.finfo(float).tiny


class _Whitened(NamedTuple):
    """A kernel, the factor L of its covariance, and L^-1 f of the latents (S, functions, n) that have it."""

    kernel: Kernel
    factor: Cholesky
    latents: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class SampledPosterior(LabelPosterior):
    """The posterior as draws of f at the rows of X: given each, f(z) is Gaussian.

    ``kernel`` is one, or a tuple of one for each class; ``latents`` (S, n) or (S, n, C); ``theta`` (S, p) the kernel's
    free parameters of each draw, or None: then all draws have the kernel as it is, factorised once. Otherwise every
    draw takes n^3/3 flops in every call.
    """

    kernel: Kernel | tuple[Kernel, ...]
    X: Inputs
    latents: np.ndarray
    theta: np.ndarray | None = None

    @classmethod
    def of(cls, kernel: Kernel | tuple[Kernel, ...], X: Inputs, draws: Draws) -> "SampledPosterior":
        """From all draws, or with theta from MAX_PARAMETER_DRAWS of them, evenly spaced."""
        S = len(draws.latents)
        most = S if draws.theta is None else MAX_PARAMETER_DRAWS
        kept = np.linspace(0, S - 1, min(S, most)).round().astype(int)
        return cls(kernel, X, draws.latents[kept], None if draws.theta is None else draws.theta[kept])

    def consistent(self) -> bool:
        lengths = self.theta is None or len(self.theta) == len(self.latents)
        shapes = self.latents.ndim in (2, 3) and self.latents.shape[1] == count_rows(self.X)
        return shapes and lengths and all(isinstance(kernel, Kernel) for kernel in self._kernels)

    @property
    def _kernels(self) -> tuple[Kernel, ...]:
        return self.kernel if isinstance(self.kernel, tuple) else (self.kernel,)

    @property
    def _classes(self) -> int | None:
        """Number of latent functions; None if there is one, for two classes."""
        return self.latents.shape[2] if self.latents.ndim == 3 else None

    @functools.cached_property
    def _fixed(self) -> list[_Whitened]:
        """Of kernels that all draws share."""
        latents, kernels = self._latents, self._kernels
        parts = [latents] if len(kernels) == 1 else [latents[:, c : c + 1] for c in range(len(kernels))]
        return [self._whitened(kernel, part) for kernel, part in zip(kernels, parts, strict=True)]

    @property
    def _rows(self) -> gram.Gram:
        """The training rows, prepared once for all kernels."""
        return gram.kept(self, self._together, self.X)

    @functools.cached_property
    def _together(self) -> Kernel:
        return gram.together(self._kernels)

    @property
    def _latents(self) -> np.ndarray:
        """(S, functions, n)."""
        return self.latents[:, None] if self._classes is None else np.swapaxes(self.latents, 1, 2)

    def _whitened(self, kernel: Kernel, latents: np.ndarray) -> _Whitened:
        found = factor_kernel(kernel, self._rows)
        if found is None:
            raise NotPositiveDefiniteError(
                "the covariance of the training rows is not positive definite. Look at the kernel with "
                "mercer.check_kernel(kernel, X)."
            )
        factor, n = found[1], latents.shape[2]
        white = factor.half_solve(latents.reshape(-1, n).T).T
        return _Whitened(kernel, factor, white.reshape(latents.shape))

    def _groups(self) -> Iterable[list[_Whitened]]:
        """Draws with the same theta together."""
        if self.theta is None:
            return [self._fixed]
        assert isinstance(self.kernel, Kernel)
        kernels = (from_free(self.kernel, theta) for theta in self.theta)
        return ([self._whitened(kernel, self._latents[i : i + 1])] for i, kernel in enumerate(kernels))

    def _conditionals(self, Z: Inputs) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Moments of f(z) given f, for each theta and block of rows: (rows, means (draws, m, functions), variances
        (m, functions))."""
        for group in self._groups():
            functions = sum(white.shape[1] for _, _, white in group)
            for part in gram.pieces(count_rows(Z), max(self.latents.shape[1], len(group[0].latents) * functions)):
                rows = take_rows(Z, part)
                means, variances = [], []
                for kernel, factor, white in group:
                    with rows_of(part):
                        V = factor.half_solve_in_place(gram.between(kernel, rows, self._rows.of(kernel)).T)
                        variance = np.maximum(gram.diagonal(kernel, rows) - np.einsum("ij,ij->j", V, V), 0.0)
                    means.append(np.swapaxes(white @ V, 1, 2))
                    variances.append(np.repeat(variance[:, None], white.shape[1], axis=1))
                yield part, np.concatenate(means, axis=2), np.concatenate(variances, axis=1)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, any(kernel.needs_all_columns for kernel in self._kernels))

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f(z), by the law of total variance: (s,) or (s, C), both."""
        Z = self._aligned(Z)
        S, s = len(self.latents), count_rows(Z)
        mean, square, within = (np.zeros((s, self._classes or 1)) for _ in range(3))
        for part, means, variances in self._conditionals(Z):
            mean[part] += means.sum(axis=0) / S
            square[part] += np.einsum("smc,smc->mc", means, means) / S
            within[part] += variances * (len(means) / S)
        variance = within + np.maximum(square - mean**2, 0.0)
        return (mean[:, 0], variance[:, 0]) if self._classes is None else (mean, variance)

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """(s, C), averaged over the draws.

        Given a draw, softmax is averaged over SOFTMAX_POINTS values of f(z), from the same random numbers for every
        row: many times faster than quadrature, and no less accurate than the draws themselves.
        """
        Z = self._aligned(Z)
        out, rng = np.zeros((count_rows(Z), self._classes or 2)), np.random.default_rng(0)
        for part, means, variances in self._conditionals(Z):
            if self._classes is None:
                out[part] += _binary_probabilities(likelihood, means[..., 0], variances[:, 0]).sum(axis=0)
                continue
            if part.start == 0:  # new draws: new random numbers
                normals = _antithetic(rng, len(means), self._classes)
            for mean, z in zip(means, normals, strict=True):
                out[part] += softmax(mean + np.sqrt(variances) * z, axis=-1).mean(axis=0)
        return out / out.sum(axis=1, keepdims=True)

    def left_out(
        self, covariances: Callable[[], Sequence[LatentCovariance]], codes: np.ndarray, likelihood: Likelihood
    ) -> np.ndarray:
        """Leave-one-out class probabilities of the training rows: (n, C).

        Given the other rows' f, a draw's f_i is Gaussian; let p_i be its class probabilities. Draws weighted by
        1 / p_i(its class) are draws of the posterior without row i.
        """
        rows, rng = np.arange(len(codes)), np.random.default_rng(0)
        total, weight = np.zeros((len(codes), self._classes or 2)), np.zeros(len(codes))
        for group in self._groups():
            means, deviations = [], []
            for _, factor, white in group:
                inverse = Cholesky(factor.lower).lower_inverse  # of a copy, not to be cached with the factor
                precision = np.einsum("ji,ji->i", inverse, inverse)
                f, C_inv_f = np.tensordot(white, factor.lower.T, axes=1), np.tensordot(white, inverse, axes=1)
                means.append(np.swapaxes(f - C_inv_f / precision, 1, 2))
                deviations.append(np.repeat(1 / np.sqrt(precision)[:, None], white.shape[1], axis=1))
            mean, deviation = np.concatenate(means, axis=2), np.concatenate(deviations, axis=1)
            normals = _antithetic(rng, 1, mean.shape[2])[0]
            for m in mean:
                if self._classes is None:
                    p = _binary_probabilities(likelihood, m[:, 0], deviation[:, 0] ** 2)
                else:
                    p = softmax(m + deviation * normals, axis=-1).mean(axis=0)
                w = 1 / np.maximum(p[rows, codes], MIN_PROBABILITY**0.5)
                total += w[:, None] * p
                weight += w
        return total / weight[:, None]


def _binary_probabilities(likelihood: Likelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Probabilities of two classes, one integral for every draw and row: (..., 2)."""
    return np.maximum(both_classes(with_fast_integrals(likelihood).probability, mean, variance), MIN_PROBABILITY)


def _antithetic(rng: np.random.Generator, draws: int, functions: int) -> np.ndarray:
    """Standard normal numbers and their negatives: (draws, SOFTMAX_POINTS, 1, functions)."""
    half = rng.standard_normal((draws, SOFTMAX_POINTS // 2, 1, functions))
    return np.concatenate([half, -half], axis=1)
