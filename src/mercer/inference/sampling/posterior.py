"""The posterior of a latent function as draws of it: predictions are averages over them (PRML 6.76)."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import softmax

from mercer import gram
from mercer.core.coordinates import from_free
from mercer.core.errors import NotPositiveDefiniteError, ParameterError, rows_of
from mercer.core.inputs import Inputs, align_columns, count_rows, take_rows
from mercer.core.random import generator
from mercer.gp.likelihood import Likelihood, with_fast_integrals
from mercer.gp.process import Seed, check_size
from mercer.inference.base import LabelPosterior, Labels
from mercer.inference.functions import Expansion, GaussianFunctions, KernelExpansion, root_of
from mercer.inference.latent import LatentCovariance, LatentSpace
from mercer.inference.sampling.draws import Draws
from mercer.inference.sampling.latents import factor_kernel
from mercer.inference.sites import LatentMatrix, both_classes
from mercer.kernels.algebra import terms_of
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky

MAX_PARAMETER_DRAWS = 200  # kept for prediction if parameters are sampled; each is factorised again
SOFTMAX_POINTS = 16  # values of f(z) for each draw, over which softmax is averaged
MIN_PROBABILITY = np.finfo(float).tiny


class Whitened(NamedTuple):
    """An expansion, a factor L with V = scale L^-1 b(z) (`functions`), and draws of the latents (S, functions, r) that
    have it, such that E f(z) given a draw is its product with V."""

    expansion: Expansion
    factor: Cholesky
    latents: np.ndarray
    scale: float = 1.0

    def halve(self, B: np.ndarray) -> np.ndarray:
        """V of values B (m, r) of b: (r, m)."""
        V = self.factor.half_solve(B.T)
        V *= self.scale
        return V


class _Mixture(GaussianFunctions):
    """Mean and covariance of draws with the same parameters: given a draw f is Gaussian, and the means spread."""

    def __init__(self, group: list[Whitened], kernels: tuple[Kernel, ...], X: Inputs) -> None:
        self.group, self.kernels, self.X = group, kernels, X
        self.functions = [(part, c) for part in group for c in range(part.latents.shape[1])]

    @functools.cached_property
    def coefficients(self) -> Sequence[np.ndarray]:
        means = [part.latents[:, c].mean(axis=0) for part, c in self.functions]
        return [
            part.factor.half_solve(mean, transposed=True) * part.scale
            for (part, _), mean in zip(self.functions, means, strict=True)
        ]

    def expansions(self) -> list[Expansion]:
        return [part.expansion for part in self.group]

    def _spread(self, c: int) -> np.ndarray:
        """Deviations of the draws from their mean, over the root of their number: (S, r)."""
        part, own = self.functions[c]
        draws = part.latents[:, own]
        return (draws - draws.mean(axis=0)) / math.sqrt(len(draws))

    def halves(self, c: int, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        V = self.functions[c][0].halve(B)
        return V, self._spread(c) @ V

    def pull(self, c: int, V: np.ndarray | None, Q: np.ndarray | None) -> np.ndarray:
        assert V is not None
        assert Q is not None
        part = self.functions[c][0]
        total = part.expansion.sign * V + self._spread(c).T @ Q
        return part.scale * part.factor.half_solve(total, transposed=True)


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
    given: Labels | None = None
    space: ClassVar[type[LatentSpace]] = LatentMatrix

    @classmethod
    def of(
        cls, kernel: Kernel | tuple[Kernel, ...], X: Inputs, draws: Draws, given: Labels | None = None
    ) -> "SampledPosterior":
        """From all draws, or with theta from MAX_PARAMETER_DRAWS of them, evenly spaced."""
        S = len(draws.latents)
        most = S if draws.theta is None else MAX_PARAMETER_DRAWS
        kept = np.linspace(0, S - 1, min(S, most)).round().astype(int)
        return cls(kernel, X, draws.latents[kept], None if draws.theta is None else draws.theta[kept], given)

    def consistent(self) -> bool:
        lengths = self.theta is None or len(self.theta) == len(self.latents)
        shapes = self.latents.ndim in (2, 3) and self.latents.shape[1] == count_rows(self.X)
        return shapes and lengths and all(isinstance(kernel, Kernel) for kernel in self.kernels)

    @property
    def kernels(self) -> tuple[Kernel, ...]:  # type: ignore[override]
        return self.kernel if isinstance(self.kernel, tuple) else (self.kernel,)

    @property
    def _classes(self) -> int | None:
        """Number of latent functions; None if there is one, for two classes."""
        return self.latents.shape[2] if self.latents.ndim == 3 else None

    @functools.cached_property
    def _fixed(self) -> list[Whitened]:
        """Of kernels that all draws share."""
        latents, kernels = self._latents, self.kernels
        parts = [latents] if len(kernels) == 1 else [latents[:, c : c + 1] for c in range(len(kernels))]
        return [self._whitened(kernel, part) for kernel, part in zip(kernels, parts, strict=True)]

    @property
    def _latents(self) -> np.ndarray:
        """(S, functions, n)."""
        return self.latents[:, None] if self._classes is None else np.swapaxes(self.latents, 1, 2)

    def _whitened(self, kernel: Kernel, latents: np.ndarray) -> Whitened:
        found = factor_kernel(kernel, self.rows().of(kernel))
        factor, n = self._required(None if found is None else found[1]), latents.shape[2]
        white = factor.half_solve(latents.reshape(-1, n).T).T
        return Whitened(KernelExpansion(kernel, self.rows()), factor, white.reshape(latents.shape))

    @staticmethod
    def _required(factor: Cholesky | None) -> Cholesky:
        if factor is None:
            raise NotPositiveDefiniteError(
                "the covariance of the training rows is not positive definite. Look at the kernel with "
                "mercer.check_kernel(kernel, X)."
            )
        return factor

    def _groups(self) -> Iterable[list[Whitened]]:
        """Draws with the same theta together."""
        if self.theta is None:
            return [self._fixed]
        assert isinstance(self.kernel, Kernel)
        kernels = (from_free(self.kernel, theta) for theta in self.theta)
        return ([self._whitened(kernel, self._latents[i : i + 1])] for i, kernel in enumerate(kernels))

    def _mixtures(self) -> Iterator[_Mixture]:
        """Of the draws with each theta, which have equal weights."""
        for group in self._groups():
            yield _Mixture(group, tuple(part.expansion.kernel for part in group), self.X)

    def _conditionals(self, Z: Inputs) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Moments of f(z) given f, for each theta and block of rows: (rows, means (draws, m, functions), variances
        (m, functions))."""
        for group in self._groups():
            functions = sum(part.latents.shape[1] for part in group)
            for rows in gram.pieces(count_rows(Z), max(self.latents.shape[1], len(group[0].latents) * functions)):
                some = take_rows(Z, rows)
                means, variances = [], []
                for part in group:
                    with rows_of(rows):
                        V = part.halve(part.expansion.values(some))
                        variance = part.expansion.prior(some) + part.expansion.sign * np.einsum("ij,ij->j", V, V)
                    means.append(np.swapaxes(part.latents @ V, 1, 2))
                    variances.append(np.repeat(np.maximum(variance, 0.0)[:, None], part.latents.shape[1], axis=1))
                yield rows, np.concatenate(means, axis=2), np.concatenate(variances, axis=1)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, any(kernel.needs_all_columns for kernel in self.kernels))

    def _shaped(self, values: np.ndarray, *axes: int) -> np.ndarray:
        return values.squeeze(axes) if self._classes is None else values

    # -- the functions ---------------------------------------------------------------------------------------------

    def mean(self, Z: Inputs) -> np.ndarray:
        """(s,) or (s, C)."""
        return self._shaped(np.mean([one.means(Z) for one in self._mixtures()], axis=0), 1)

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f(z), by the law of total variance: (s,) or (s, C), both."""
        mean, variance = _mixed([one.all_moments(Z) for one in self._mixtures()])
        return self._shaped(mean, 1), self._shaped(variance, 1)

    def covariance(self, Z: Inputs) -> np.ndarray:
        """As `moments`: (s, s) or (s, C, s, C)."""
        means, inside = [], np.zeros(())
        for one in self._mixtures():
            means.append(one.means(Z))
            inside = inside + one.covariances_of(Z)
        spread = np.stack(means) - np.mean(means, axis=0)
        between = np.einsum("gic,gjd->icjd", spread, spread)
        return self._shaped((inside + between) / len(means), 1, 3)

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """(s, d) or (s, C, d), each. The variance of the means has the derivative 2 cov(mean, d mean)."""
        found = [(one.means(Z), *one.slopes(Z)) for one in self._mixtures()]
        means, dmeans, dvariances = (np.stack(each) for each in zip(*found, strict=True))
        spread = (means - means.mean(axis=0))[..., None]
        dvariance = dvariances.mean(axis=0) + 2 * (spread * dmeans).mean(axis=0)
        return self._shaped(dmeans.mean(axis=0), 1), self._shaped(dvariance, 1)

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """Terms of the kernel; of sampled ones, at the mean of the parameters."""
        found = [[(mean, variance) for _, mean, variance in one.all_terms(Z)] for one in self._mixtures()]
        (kernel,) = self.kernels
        moments = [_mixed(list(each)) for each in zip(*found, strict=True)]
        parts = zip(terms_of(kernel), moments, strict=True)
        return [(part, self._shaped(mean, 1), self._shaped(variance, 1)) for part, (mean, variance) in parts]

    def sample(self, Z: Inputs, size: int = 1, seed: Seed = 0) -> np.ndarray:
        """Functions given draws chosen at random: (size, s) or (size, s, C)."""
        check_size(size)
        Z, rng, S = self._aligned(Z), generator(seed), len(self.latents)
        chosen, s, first = np.sort(rng.integers(S, size=size)), count_rows(Z), 0
        out = np.empty((size, s, self._classes or 1))
        for group in self._groups():
            count, c = len(group[0].latents), 0
            which = np.flatnonzero((chosen >= first) & (chosen < first + count))
            for part in group if len(which) else ():
                V = part.halve(part.expansion.values(Z))
                R = root_of(
                    part.expansion.prior_covariance(Z) + part.expansion.sign * (V.T @ V), (part.expansion.kernel,), Z
                )
                for latents in np.swapaxes(part.latents, 0, 1):
                    noise = rng.standard_normal((len(which), R.shape[1])) @ R.T
                    out[which, :, c] = latents[chosen[which] - first] @ V + noise
                    c += 1
            first += count
        return self._shaped(out[rng.permutation(size)], 2)

    def start(self, covariances: Sequence[LatentCovariance]) -> None:
        """The approximation that gives the evidence starts from nothing."""

    def _sampled_again(self, rows: gram.Gram, codes: np.ndarray, rng: np.random.Generator) -> Draws | None:
        if self.theta is not None:
            raise ParameterError(
                "this posterior has draws of the parameters too, whose prior was that of the kernel before sampling; "
                "fit again, with all rows and learning='sample'."
            )
        return super()._sampled_again(rows, codes, rng)

    # -- labels ----------------------------------------------------------------------------------------------------

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

    def leave_one_out(self, covariances: Sequence[LatentCovariance] | None = None) -> np.ndarray:
        """Leave-one-out class probabilities of the training rows: (n, C).

        Given the other rows' f, a draw's f_i is Gaussian; let p_i be its class probabilities. Draws weighted by
        1 / p_i(its class) are draws of the posterior without row i.
        """
        codes, likelihood = self.labels().codes, self.labels().inference.likelihood
        rows, rng = np.arange(len(codes)), np.random.default_rng(0)
        total, weight = np.zeros((len(codes), self._classes or 2)), np.zeros(len(codes))
        first = 0
        for group in self._groups():
            means, deviations, function, count = [], [], 0, len(group[0].latents)
            for part in group:
                own = slice(function, function + part.latents.shape[1])
                mean, variance = self._left_out_moments(part, self._latents[first : first + count, own])
                means.append(np.swapaxes(mean, 1, 2))
                deviations.append(np.repeat(np.sqrt(variance)[:, None], part.latents.shape[1], axis=1))
                function = own.stop
            first += count
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

    def _left_out_moments(self, part: Whitened, latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean of each f_i given the others of its draw, and variance: (S, functions, n), (n,)."""
        inverse = Cholesky(part.factor.lower).lower_inverse  # of a copy, not to be cached with the factor
        precision = np.einsum("ji,ji->i", inverse, inverse)
        return latents - np.tensordot(part.latents, inverse, axes=1) / precision, 1 / precision


def _mixed(moments: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of a mixture of equal weights."""
    means, variances = (np.stack(each) for each in zip(*moments, strict=True))
    return means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)


def _binary_probabilities(likelihood: Likelihood, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Probabilities of two classes, one integral for every draw and row: (..., 2)."""
    return np.maximum(both_classes(with_fast_integrals(likelihood).probability, mean, variance), MIN_PROBABILITY)


def _antithetic(rng: np.random.Generator, draws: int, functions: int) -> np.ndarray:
    """Standard normal numbers and their negatives: (draws, SOFTMAX_POINTS, 1, functions)."""
    half = rng.standard_normal((draws, SOFTMAX_POINTS // 2, 1, functions))
    return np.concatenate([half, -half], axis=1)
