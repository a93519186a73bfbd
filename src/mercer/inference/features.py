"""Inference in weight space: kernels with M features, K = Phi Phi^T, by matrices with M rows instead of n.

f = Phi w with w ~ N(0, I), so Gaussian sites on f make the posterior of w a Gaussian.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.inputs import Inputs, count_rows
from mercer.inference.base import Contraction, Labels
from mercer.inference.functions import Expansion, FeatureExpansion
from mercer.inference.latent import LatentCovariance, LatentSpace, SiteFactor
from mercer.inference.sampling.posterior import SampledPosterior, Whitened
from mercer.inference.sites import MIN_LATENT_VARIANCE, SiteApproximation, SitePosterior
from mercer.inference.softmax.factor import MIN_DIVISOR, TILE_ROWS, JointSites, SoftmaxModel
from mercer.inference.softmax.posterior import JointPosterior, SoftmaxApproximation
from mercer.kernels.base import Kernel
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt
from mercer.linalg.jitter import SAMPLING


class LatentFeatures(LatentSpace):
    """Phi(theta) on fixed rows."""

    def __init__(self, kernel: Kernel, X: Inputs) -> None:
        self.K = gram.on(kernel, X).feature_map()
        self.n = count_rows(X)
        self.rank = self.K.fill(np.asarray(to_free(kernel))).shape[1]

    def at(self, theta: np.ndarray, jitter: float = 0.0, accurate: bool = False) -> "FeatureCovariance":
        return FeatureCovariance(self.K.fill(theta))  # of few features; jitter would make them many

    def give_away(self) -> bool:
        return True  # every call makes new features

    def rooted(self, theta: np.ndarray, accurate: bool = False) -> "tuple[FeatureCovariance, np.ndarray] | None":
        K = self.at(theta)
        return (K, K.Phi) if np.isfinite(K.Phi).all() else None


class FeatureCovariance(LatentCovariance):
    """K = Phi Phi^T, through the M weights: 3 n M of memory, n M^2 flops a factor."""

    def __init__(self, Phi: np.ndarray) -> None:
        self.Phi, self.n = Phi, len(Phi)
        self.diagonal = np.einsum("ij,ij->i", Phi, Phi)

    def times(self, v: np.ndarray) -> np.ndarray:
        return self.Phi @ (self.Phi.T @ v)

    def factor(self, S: np.ndarray) -> "FeatureSiteFactor | None":
        B = backend.gram(np.sqrt(S)[:, None] * self.Phi)
        B[np.diag_indices_from(B)] += 1.0
        found = attempt(B)
        return None if found is None else FeatureSiteFactor(self, S, found)

    def part(self, rows: np.ndarray, factor: float = 1.0) -> "FeatureCovariance":
        return FeatureCovariance(self.across(rows, rows, factor))

    def across(self, others: np.ndarray, rows: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """Features of ``others``."""
        return np.sqrt(factor) * self.Phi[others]

    def own_variance(self, others: np.ndarray, factor: float = 1.0) -> np.ndarray:
        return np.zeros(len(others))

    @property
    def joint(self) -> "type[JointWeights]":
        return JointWeights

    @property
    def sampled(self) -> "type[SampledWeights]":
        return SampledWeights


class FeatureSiteFactor(SiteFactor):
    """Cholesky factor of B = I + Phi^T S Phi, whose determinant is that of I + S^1/2 K S^1/2."""

    def __init__(self, K: FeatureCovariance, S: np.ndarray, B: Cholesky) -> None:
        self.K, self.Phi, self.S, self.B = K, K.Phi, S, B
        self.log_det = B.log_det()

    @property
    def prior(self) -> FeatureCovariance:
        return self.K

    def weights(self, nu: np.ndarray) -> np.ndarray:
        return nu - self.S * (self.Phi @ self.B.solve(self.Phi.T @ nu))

    def variance(self) -> np.ndarray:
        half = self.B.half_solve(self.Phi.T)
        return np.maximum(np.einsum("ij,ij->j", half, half), MIN_LATENT_VARIANCE)

    def slope(
        self, contract: Callable[..., np.ndarray], a: np.ndarray, through_mode: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """From d ln Z / d Phi = (a a^T - R + u g^T + g u^T) Phi with R Phi = S Phi B^-1."""
        G = np.outer(a, a @ self.Phi) - self.S[:, None] * self.B.solve(self.Phi.T).T
        if through_mode is not None:
            u, g = through_mode
            G += np.outer(u, g @ self.Phi) + np.outer(g, u @ self.Phi)
        return contract(G)

    def posterior(self, kernel: Kernel, X: Inputs, approximation: SiteApproximation, given: Labels) -> "LatentWeights":
        a, s = approximation.a, np.sqrt(approximation.S)
        return LatentWeights(kernel, X, a, s, self.Phi.T @ a, np.tril(self.B.lower), given)


@dataclasses.dataclass(frozen=True, eq=False)
class LatentWeights(SitePosterior):
    """Approximate posterior of a latent function through the weights of its features: N(weights, B^-1), B = L L^T with
    L = ``lower``."""

    kernel: Kernel
    X: Inputs
    a: np.ndarray
    s: np.ndarray
    weights: np.ndarray
    lower: np.ndarray
    given: Labels | None = None
    space: ClassVar[type[LatentSpace]] = LatentFeatures

    def consistent(self) -> bool:
        n, M = count_rows(self.X), len(self.weights)
        shapes = self.a.shape == self.s.shape == (n,) and self.lower.shape == (M, M)
        return shapes and self.weights.shape == (M,) and isinstance(self.kernel, Kernel)

    @property
    def coefficients(self) -> Sequence[np.ndarray]:
        return [self.weights]

    def expansions(self) -> list[Expansion]:
        return [FeatureExpansion(self.kernel, self.rows())]

    def halves(self, c: int, B: np.ndarray) -> tuple[None, np.ndarray]:
        return None, backend.half_solve(self.lower, B.T)

    def pull(self, c: int, V: np.ndarray | None, Q: np.ndarray | None) -> np.ndarray:
        assert Q is not None
        return backend.half_solve(self.lower, Q, transposed=True)


# -- more than two classes -------------------------------------------------------------------------------------------


def _stacked(Phis: Sequence[np.ndarray]) -> list[slice]:
    """Places of the weights of each class among those of all."""
    ends = np.cumsum([Phi.shape[1] for Phi in Phis])
    return [slice(int(end) - Phi.shape[1], int(end)) for Phi, end in zip(Phis, ends, strict=True)]


class JointWeights(JointSites):
    """Cholesky factor of P = I + Phi^T W Phi, the posterior precision of the weights of all classes, Phi with the
    features of each class on its diagonal: |P| = |I + K W|, and R = W - W Phi P^-1 Phi^T W.

    With T weights in all, n T^2 / 2 + T^3 / 3 flops.
    """

    def __init__(
        self, model: SoftmaxModel, sites: np.ndarray, workspace: np.ndarray, equal_classes: bool = False
    ) -> None:
        self.sites, self.shared = sites, model.shared
        self.total = np.maximum(sites.sum(axis=0), MIN_DIVISOR)
        self.Phis = [model.covariance(c).Phi for c in range(model.classes)]
        self.places = _stacked(self.Phis)
        size = self.places[-1].stop
        P = np.eye(size, order="F")
        for c, here in enumerate(self.places):
            for d, there in enumerate(self.places[: c + 1]):
                P[here, there] += (self._W(c, d)[:, None] * self.Phis[c]).T @ self.Phis[d]
        found = attempt(P, clean=True) if np.isfinite(P.sum()) else None
        self.positive = found is not None
        if found is not None:
            self.P, self.log_det = found, found.log_det()

    @classmethod
    def workspace_shape(cls, model: SoftmaxModel) -> tuple[int, ...]:
        return (0,)

    def _W(self, c: int, d: int) -> np.ndarray:
        """Entry (c, d) of W on every row: (n,)."""
        product = -self.sites[c] * self.sites[d] / self.total
        return product + self.sites[c] if c == d else product

    def _times_W(self, V: np.ndarray) -> np.ndarray:
        return self.sites * (V - (self.sites * V).sum(axis=0) / self.total)

    def times(self, V: np.ndarray) -> np.ndarray:
        WV = self._times_W(V)
        solved = self.P.solve(np.concatenate([v @ Phi for v, Phi in zip(WV, self.Phis, strict=True)]))
        f = np.stack([Phi @ solved[place] for Phi, place in zip(self.Phis, self.places, strict=True)])
        return WV - self._times_W(f)

    def row_covariances(self) -> np.ndarray:
        """Phi P^-1 Phi^T on every row. C n T^2 flops."""
        n, C = len(self.total), len(self.sites)
        V = np.empty((n, C, C))
        for first in range(0, n, TILE_ROWS):
            part = slice(first, min(first + TILE_ROWS, n))
            Y = np.empty((part.stop - first, C, self.places[-1].stop))
            for c, place in enumerate(self.places):
                Y[:, c] = self.P.half_solve(_padded(self.Phis[c][part], place, self.places[-1].stop)).T
            V[part] = Y @ Y.transpose(0, 2, 1)
        return V

    def scaled_variances(self, keep_blocks: bool = False) -> np.ndarray:
        """From the row's R = W - W V W."""
        V, s = self.row_covariances(), self.sites.T
        W = s[:, :, None] * np.eye(s.shape[1]) - s[:, :, None] * (s / self.total[:, None])[:, None, :]
        r = np.einsum("icc->ic", W) - np.einsum("icd,ide,iec->ic", W, V, W)
        with np.errstate(divide="ignore", invalid="ignore"):
            q = 1 - np.where(s > MIN_DIVISOR, r / s, 1.0)
        return np.clip(q, s / self.total[:, None], 1.0).T

    def slope(self, contractions: Sequence[Contraction], a: np.ndarray, u: np.ndarray | None) -> np.ndarray:
        """From d ln Z / d Phi_c = (a a^T - R_cc + u a^T + a u^T) Phi_c, R_cc Phi_c = sum_d W_cd Phi_d (P^-1)_dc."""
        inverse = self.P.solve(np.eye(self.places[-1].stop))
        slopes = []
        for c, (Phi, here) in enumerate(zip(self.Phis, self.places, strict=True)):
            G = np.outer(a[c], a[c] @ Phi)
            if u is not None:
                G += np.outer(u[c], a[c] @ Phi) + np.outer(a[c], u[c] @ Phi)
            for d, there in enumerate(self.places):
                G -= self._W(c, d)[:, None] * (self.Phis[d] @ inverse[there, here])
            slopes.append(G)
        groups = [functools.reduce(np.add, slopes)] if self.shared else slopes
        pairs: Any = zip(contractions, groups, strict=True)  # contractions of Phi, not of K
        return np.concatenate([np.atleast_1d(contract(G)) for contract, G in pairs])

    @staticmethod
    def posterior(
        found: SoftmaxApproximation, kernels: Sequence[Any], X: Inputs, given: Labels | None
    ) -> "SoftmaxWeights":
        factor = JointWeights(found.model, found.sites, np.empty(0))
        weights = [a @ Phi for a, Phi in zip(found.a, factor.Phis, strict=True)]
        s = np.sqrt(found.sites)
        return SoftmaxWeights(tuple(kernels), X, found.a, s, tuple(weights), np.tril(factor.P.lower), given)


def _padded(Phi: np.ndarray, place: slice, size: int) -> np.ndarray:
    """Phi^T at its place among the weights of all classes: (T, m)."""
    out = np.zeros((size, len(Phi)), order="F")
    out[place] = Phi.T
    return out


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxWeights(JointPosterior):
    """Approximate posterior of C latent functions through the weights of their features: N(weights, P^-1),
    P = L L^T with L = ``lower`` (T, T), the weights of one class after those of the other."""

    kernels: tuple[Kernel, ...]
    X: Inputs
    a: np.ndarray
    s: np.ndarray
    weights: tuple[np.ndarray, ...]
    lower: np.ndarray
    given: Labels | None = None
    space: ClassVar[type[LatentSpace]] = LatentFeatures

    def consistent(self) -> bool:
        n, C, size = count_rows(self.X), len(self.a), sum(map(len, self.weights))
        shapes = self.a.shape == self.s.shape == (C, n) and self.lower.shape == (size, size)
        kernels = len(self.kernels) in (1, C) and all(isinstance(kernel, Kernel) for kernel in self.kernels)
        return shapes and kernels and len(self.weights) == C

    @property
    def coefficients(self) -> Sequence[np.ndarray]:
        return self.weights

    def expansions(self) -> list[Expansion]:
        return [FeatureExpansion(kernel, self.rows()) for kernel in self.kernels]

    def _place(self, c: int) -> slice:
        first = sum(map(len, self.weights[:c]))
        return slice(first, first + len(self.weights[c]))

    def halves(self, c: int, B: np.ndarray) -> tuple[None, np.ndarray]:
        return None, backend.half_solve(self.lower, _padded(B, self._place(c), len(self.lower)), in_place=True)

    def pull(self, c: int, V: np.ndarray | None, Q: np.ndarray | None) -> np.ndarray:
        assert Q is not None
        return backend.half_solve(self.lower, Q, transposed=True)[self._place(c)]

    def cavities(self, covariances: Sequence[LatentCovariance]) -> tuple[np.ndarray, np.ndarray]:
        everything = np.arange(self.a.shape[1])
        Phis = [K.across(everything, everything) for K in covariances]
        return self.without_sites(*self.moments_across(Phis, np.zeros((len(everything), len(Phis)))))


# -- draws -----------------------------------------------------------------------------------------------------------


class SampledWeights(SampledPosterior):
    """Draws of f = Phi w. Given f, with a noise of variance e as small as the jitter in function space, w is
    N(B^-1 Phi^T f, e B^-1) with B = Phi^T Phi + e I: what no training row determines has its prior."""

    space: ClassVar[type[LatentSpace]] = LatentFeatures

    def _whitened(self, kernel: Kernel, latents: np.ndarray) -> Whitened:
        Phi = gram.features(kernel, self.rows().of(kernel))
        jitter = SAMPLING.first * float(np.mean(np.einsum("ij,ij->i", Phi, Phi)) or 1.0)
        B = backend.gram(Phi)
        B[np.diag_indices_from(B)] += jitter
        factor = self._required(attempt(B, clean=True))
        n = latents.shape[2]
        white = factor.half_solve(Phi.T @ latents.reshape(-1, n).T).T / np.sqrt(jitter)
        expansion = FeatureExpansion(kernel, self.rows())
        return Whitened(expansion, factor, white.reshape(*latents.shape[:2], -1), np.sqrt(jitter))

    def _left_out_moments(self, part: Whitened, latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(K + e I)^-1 = (I - Phi B^-1 Phi^T) / e."""
        V = part.halve(part.expansion.values(self.rows()))
        left = np.maximum(part.scale**2 - np.einsum("ij,ij->j", V, V), np.finfo(float).eps * part.scale**2)
        residual = latents - part.latents @ V
        return latents - residual * (part.scale**2 / left), part.scale**4 / left
