"""Gaussian posteriors of functions through their values at some centres, given which all other values are as before any
data; and how they take in further rows, one block after the other (Csato and Opper 2002).

With L L^T = K of the centres, f = L v, and the coefficients beta of the columns h of the mean, if there are any:
E f(z) = w^T E v + h^T E beta and var f(z) = k(z, z) - w^T w + cov of (w, h) with (v, beta), where w = L^-1 k(Z, z).
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows, stack_rows, take_rows
from mercer.core.registry import storable
from mercer.gp.likelihood import Likelihood, with_fast_integrals
from mercer.gp.mean import MeanFunction
from mercer.inference.base import LabelPosterior, Labels, likelihood
from mercer.inference.functions import Expansion, GaussianFunctions, KernelExpansion, OfGaussian
from mercer.inference.latent import LatentCovariance, LatentSpace
from mercer.inference.sites import LatentMatrix, both_classes, cavity
from mercer.inference.softmax.expectation import independent_sites, mean_softmax
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky, factor
from mercer.linalg.retained import marginal, worth_keeping

BLOCK_ROWS = 100  # that are taken in together
MIN_NEW_SHARE = 1e-10  # of the prior variance of a row, given the centres: with less, it cannot be a centre
MAX_SWEEPS, SITE_TOLERANCE, DAMPING = 50, 1e-6, 0.7
BOUND_TOLERANCE, MIN_STEP = 1e-3, 1e-3  # in nats, of a block; of a natural gradient
MIN_SHARE = 1e-12

register = storable("parts")


class CenterExpansion(KernelExpansion):
    """b(z) = k(z, Z), and the columns of the mean; of a term of the kernel, zeros in their place."""

    def __init__(self, kernel: Kernel, rows: gram.Gram, mean: MeanFunction, whole: bool = True) -> None:
        super().__init__(kernel, rows)
        self.mean, self.whole = mean, whole

    def values(self, Z: Inputs) -> np.ndarray:
        H = self.mean.columns(Z)
        return np.column_stack([super().values(Z), H if self.whole else np.zeros_like(H)])

    def slope(self, kernel: Kernel, Z: np.ndarray, weights: np.ndarray) -> np.ndarray:
        m = self.rows.n
        own = super().slope(kernel, Z, np.ascontiguousarray(weights[:, :m]))
        return own + np.einsum("sqd,sq->sd", self.mean.columns_slope(Z, None), weights[:, m:]) if self.whole else own

    def terms(self) -> list[Expansion]:
        return [CenterExpansion(part, self.rows, self.mean, whole=False) for part in terms_of(self.kernel)]


class OfCenters(GaussianFunctions):
    """C functions with one kernel, by their values at the centres X: ``values`` (C, m + q) and ``spreads`` (C, m + q,
    m + q) are of v and beta; ``factor`` is L."""

    kernel: Kernel
    X: Inputs
    prior_mean: MeanFunction
    factor: Cholesky
    values: np.ndarray
    spreads: np.ndarray

    @property
    def kernels(self) -> tuple[Kernel, ...]:  # type: ignore[override]
        return (self.kernel,)

    @property
    def _shapes_agree(self) -> bool:
        m, (C, p) = count_rows(self.X), self.values.shape
        whole = self.factor.lower.shape == (m, m) and self.spreads.shape == (C, p, p)
        q = 0 if self.prior_mean.trend is None else self.prior_mean.trend.transform.shape[1]
        return whole and p == m + q and isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)

    def _centres(self) -> gram.Gram:
        return gram.kept(self, self.kernel, self.X)

    @property
    def coefficients(self) -> Sequence[np.ndarray]:
        m = len(self.factor.lower)
        a = self.factor.half_solve(np.asfortranarray(self.values[:, :m].T), transposed=True).T
        return list(np.concatenate([a, self.values[:, m:]], axis=1))

    def expansions(self) -> list[Expansion]:
        return [CenterExpansion(self.kernel, self._centres(), self.prior_mean)]

    def _roots(self, c: int) -> np.ndarray:
        """R with R R^T = the covariance of v and beta: (p, r)."""
        if c not in self._kept_roots:
            values, vectors = np.linalg.eigh(self.spreads[c])
            self._kept_roots[c] = vectors * np.sqrt(np.maximum(values, 0.0))
        return self._kept_roots[c]

    @property
    def _kept_roots(self) -> dict[int, np.ndarray]:
        return self.__dict__.setdefault("_roots_by_function", {})

    def halves(self, c: int, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        m = len(self.factor.lower)
        V = self.factor.half_solve(np.asfortranarray(B[:, :m].T))
        return V, self._roots(c).T @ np.concatenate([V, B[:, m:].T])

    def pull(self, c: int, V: np.ndarray | None, Q: np.ndarray | None) -> np.ndarray:
        assert V is not None
        assert Q is not None
        m, back = len(V), self._roots(c) @ Q
        own = self.factor.half_solve(np.asfortranarray(back[:m] - V), transposed=True)
        return np.concatenate([own, back[m:]])


@register
@dataclasses.dataclass(frozen=True, eq=False)
class CenterFunctions(OfCenters):
    """The functions alone."""

    kernel: Kernel
    X: Any
    prior_mean: MeanFunction
    factor: Cholesky
    values: np.ndarray
    spreads: np.ndarray

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        return self._shapes_agree


# -- further rows --------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Rows to be taken in: their values of L^-1 k and h as a design of (v, e, beta), (b, m + b + q), where e are the
    new directions of v that they bring; the factor of all centres and rows; and which rows can be centres."""

    design: np.ndarray
    lower: np.ndarray
    new: np.ndarray


class Taken(NamedTuple):
    """Distribution after a block: centres as indices of old ones and rows of the block, their factor, values and
    covariances, and the nats lost by leaving others out."""

    centres: np.ndarray
    lower: np.ndarray
    values: np.ndarray
    covariances: np.ndarray
    lost: float


def block_of(kernel: Kernel, mean: MeanFunction, centres: gram.Gram | None, L: np.ndarray, rows: Inputs) -> Block:
    """A block of further rows. White noise of the kernel counts as noise of measurements."""
    latent, _ = split_white(kernel)
    if latent is None:
        raise ParameterError("a kernel of white noise alone has nothing to remember; add another term.")
    b, m, H = count_rows(rows), len(L), mean.columns(rows)
    K = gram.within(latent, rows)
    prior = np.diag(K).copy()
    if centres is None:
        V, corner = np.zeros((0, b)), factor(np.asfortranarray(K))
    else:
        V = Cholesky(L).half_solve(gram.between(latent, rows, centres.of(latent)).T)
        corner = factor(np.asfortranarray(K - V.T @ V), scale=float(prior.mean()))
    lower = np.zeros((m + b, m + b), order="F")
    lower[:m, :m], lower[m:, :m], lower[m:, m:] = L, V.T, corner.lower
    new = np.diag(corner.lower) ** 2 > np.maximum(MIN_NEW_SHARE * prior, 4 * corner.jitter)
    return Block(np.concatenate([V.T, corner.lower, H], axis=1), lower, new)


def extended_state(m: int, b: int, values: np.ndarray, covariances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance with b further directions of v, of which nothing is known."""
    C, p = values.shape
    mean, covariance = np.zeros((C, p + b)), np.zeros((C, p + b, p + b))
    old = np.r_[:m, m + b : p + b]
    mean[:, old] = values
    covariance[:, m : m + b, m : m + b] = np.eye(b)
    covariance[np.ix_(range(C), old, old)] = covariances
    return mean, covariance


def told(
    mean: np.ndarray, covariance: np.ndarray, A: np.ndarray, y: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """N(mean, covariance) given measurements y of A x with noise variances; and ln p(y)."""
    G = covariance @ A.T
    T = A @ G
    T[np.diag_indices_from(T)] += noise
    L = factor(np.asfortranarray(T), scale=float(np.median(np.diag(T))))
    half, z = L.half_solve(np.asfortranarray(G.T)), L.half_solve(y - A @ mean)
    covariance = covariance - half.T @ half
    value = -0.5 * float(z @ z) - 0.5 * L.log_det() - 0.5 * len(y) * math.log(2 * math.pi)
    return mean + half.T @ z, 0.5 * (covariance + covariance.T), value


def taken(block: Block, m: int, mean: np.ndarray, covariance: np.ndarray, budget: int | None) -> Taken:
    """The distribution at the centres worth keeping, of the old ones and the rows of the block."""
    b = len(block.design)
    able = np.r_[np.arange(m), m + np.flatnonzero(block.new)]
    lower, M = marginal(block.lower, able) if len(able) < m + b else (block.lower, np.eye(m + b))
    means, covariances = _through(M, m + b, mean, covariance)
    own = len(able)
    chosen, lost = worth_keeping(
        lower, means[:, :own], covariances[:, :own, :own], own if budget is None else max(budget, 1)
    )
    if len(chosen) < own:
        lower, M = marginal(lower, chosen)
        means, covariances = _through(M, own, means, covariances)
    return Taken(able[chosen], lower, means, covariances, lost)


def _through(M: np.ndarray, n: int, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (M v, beta), from those of (v (n,), beta)."""
    whole = np.eye(mean.shape[1] - n + len(M), mean.shape[1])
    whole[:] = 0.0
    whole[: len(M), :n] = M
    whole[len(M) :, n:] = np.eye(mean.shape[1] - n)
    return mean @ whole.T, np.stack([whole @ each @ whole.T for each in covariance])


def joined_rows(kernel: Kernel, mean: MeanFunction, X: Inputs, rows: Inputs, which: np.ndarray) -> Inputs:
    """Those centres that are kept, of old ones and further rows."""
    return take_rows(stack_rows(X, rows, kernel.reads, kernel.needs_all_columns or mean.needs_all_columns), which)


# -- labels --------------------------------------------------------------------------------------------------------


def label_sites(
    means: np.ndarray, covariances: np.ndarray, codes: np.ndarray, of_two: Likelihood | None
) -> tuple[np.ndarray, np.ndarray]:
    """Measurements and their noise variances that stand for labels of rows where C functions have these distributions,
    (C, b) and (C, b, b): by expectation propagation for one function, by the variational bound for several. (C, b)
    each."""
    if of_two is None:
        S, nu = _softmax_sites(means, covariances, codes)
    else:
        S, nu = _matched_sites(means, covariances, 2.0 * codes - 1, with_fast_integrals(of_two))
    prior = np.einsum("cbb->cb", covariances)
    S = np.maximum(S, MIN_SHARE / np.maximum(prior, np.finfo(float).tiny))
    return nu / S, 1 / S


def _matched_sites(
    means: np.ndarray, covariances: np.ndarray, t: np.ndarray, likelihood: Likelihood
) -> tuple[np.ndarray, np.ndarray]:
    """Sites whose moments match those of the tilted distributions, by damped parallel sweeps."""
    S = nu = np.zeros_like(means)
    prior = np.einsum("cbb->cb", covariances)
    for sweep in range(MAX_SWEEPS):
        q = _sites_taken(means, covariances, S, nu)
        v = np.maximum(q.variance, MIN_SHARE * prior)
        center, spread = cavity(q.mean[0], v[0], S[0], q.a[0])
        tilted = likelihood.tilted(center, spread, t)
        curvature = np.maximum(-tilted.second, 0.0)
        share = np.maximum(1 - curvature * spread, MIN_SHARE)
        new_S, new_nu = (curvature / share)[None], ((tilted.first + curvature * center) / share)[None]
        change = np.max(np.abs(new_nu - nu - q.mean * (new_S - S)) * np.sqrt(v), initial=0.0)
        change = max(change, np.max(np.abs(new_S - S) * v, initial=0.0))
        step = DAMPING if sweep < MAX_SWEEPS // 2 else DAMPING**4
        S, nu = S + step * (new_S - S), nu + step * (new_nu - nu)
        if change < SITE_TOLERANCE:
            break
    return S, nu


def _softmax_sites(means: np.ndarray, covariances: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sites of the best bound with independent functions, by natural gradients, whose steps are halved where the bound
    would fall."""

    def bound(S: np.ndarray, nu: np.ndarray) -> tuple[float, "SitesTaken", np.ndarray, np.ndarray]:
        q = _sites_taken(means, covariances, S, nu)
        value, first, curvature = independent_sites(q.mean, q.variance, codes)
        return value - q.divergence, q, first, curvature

    C = len(means)
    S = np.full_like(means, (1 - 1 / C) / C)
    nu = S * means + (np.arange(C)[:, None] == codes) - 1 / C
    value, q, first, curvature = bound(S, nu)
    step = 1.0
    for _ in range(MAX_SWEEPS):
        new_S, new_nu = curvature, first + curvature * q.mean
        trial = S + step * (new_S - S), nu + step * (new_nu - nu)
        new, at, in_mean, in_variance = bound(*trial)
        if not new > value - SITE_TOLERANCE:
            step *= 0.5
            if step < MIN_STEP:
                break
            continue
        (S, nu), gain, value, step = trial, new - value, new, min(1.0, 1.5 * step)
        q, first, curvature = at, in_mean, in_variance
        if gain < BOUND_TOLERANCE:
            break
    return S, nu


class SitesTaken(NamedTuple):
    """Moments given sites (C, b), a = K^-1 (mean - prior mean), and the divergence from the prior in nats."""

    mean: np.ndarray
    variance: np.ndarray
    a: np.ndarray
    divergence: float


def _sites_taken(means: np.ndarray, covariances: np.ndarray, S: np.ndarray, nu: np.ndarray) -> SitesTaken:
    s = np.sqrt(S)
    B = s[:, :, None] * covariances * s[:, None, :] + np.eye(S.shape[1])
    V = covariances - covariances @ (s[:, :, None] * np.linalg.solve(B, s[:, :, None] * covariances))
    mean = means + np.einsum("cij,cj->ci", V, nu - S * means)
    variance, a = np.maximum(np.einsum("cii->ci", V), 0.0), nu - S * mean
    divergence = 0.5 * float(np.linalg.slogdet(B)[1].sum() - np.sum(S * variance) + np.sum(a * (mean - means)))
    return SitesTaken(mean, variance, a, divergence)


@register
@dataclasses.dataclass(frozen=True, eq=False)
class CenterLabels(OfCenters, OfGaussian, LabelPosterior):  # type: ignore[override]  # one kernel, of a field
    """Functions behind class labels, through their values at the centres X: one for two classes, or one for each.

    ``counts`` rows of each class were taken in; ``evidence`` is the sum of ln p(label | blocks before), ``lost`` the
    nats lost by leaving out centres. Where rows are not those of a stream, ``codes`` (n,) are their labels, and
    ``told`` (4, C, n) the mean of each row's function, the derivative of E ln p in it, minus twice that in the
    variance, and the variance.
    """

    kernel: Kernel
    X: Any
    factor: Cholesky
    values: np.ndarray
    spreads: np.ndarray
    link: str  # of two classes
    counts: np.ndarray
    evidence: float = 0.0
    lost: float = 0.0
    prior_mean: MeanFunction = dataclasses.field(default_factory=MeanFunction)
    codes: np.ndarray | None = None
    told: np.ndarray | None = None
    given: Labels | None = None
    space: ClassVar[type[LatentSpace]] = LatentMatrix

    @property
    def keeps_rows(self) -> bool:  # type: ignore[override]
        return self.told is not None

    @property
    def single(self) -> bool:  # type: ignore[override]
        return len(self.values) == 1

    @property
    def likelihood(self) -> Likelihood | None:
        """Of two classes."""
        return likelihood(self.link) if self.single else None

    @property
    def count(self) -> int:
        """Number of rows taken in."""
        return int(self.counts.sum())

    def consistent(self) -> bool:
        return self._shapes_agree and len(self.counts) == max(2, len(self.values))

    @classmethod
    def started(cls, kernel: Kernel, X: Inputs, classes: int, link: str) -> "CenterLabels":
        """Before any labels. ``X``: any rows."""
        C = 1 if classes == 2 else classes
        none = Cholesky(np.zeros((0, 0), order="F"))
        return cls(
            kernel, take_rows(X, np.arange(0)), none, np.zeros((C, 0)), np.zeros((C, 0, 0)),
            link, np.zeros(classes, dtype=int),
        )  # fmt: skip

    def absorbed(self, X: Inputs, codes: np.ndarray, budget: int | None) -> Self:
        """Given the class numbers of more rows, of which no more than ``budget`` become centres."""
        new = self
        for part in blocks(count_rows(X)):
            new = new._with_block(take_rows(X, part), codes[part], budget)
        return new

    def _with_block(self, X: Inputs, codes: np.ndarray, budget: int | None) -> Self:
        m, b = len(self.factor.lower), len(codes)
        block = block_of(self.kernel, self.prior_mean, self._centres() if m else None, self.factor.lower, X)
        mean, covariance = extended_state(m, b, self.values, self.spreads)
        A, white = block.design, split_white(self.kernel)[1]
        before, joint = mean @ A.T, A @ covariance @ A.T
        p = self._probabilities(before.T, np.einsum("cbb->bc", joint) + white)
        y, noise = label_sites(before, joint + white * np.eye(b), codes, self.likelihood)
        for c in range(len(mean)):
            mean[c], covariance[c], _ = told(mean[c], covariance[c], A, y[c], noise[c] + white)
        found = taken(block, m, mean, covariance, budget)
        told_of = float(np.log(np.maximum(p[np.arange(b), codes], np.finfo(float).tiny)).sum())
        return dataclasses.replace(
            self, X=joined_rows(self.kernel, self.prior_mean, self.X, X, found.centres), factor=Cholesky(found.lower),
            values=found.values, spreads=found.covariances,
            counts=self.counts + np.bincount(codes, minlength=len(self.counts)),
            evidence=self.evidence + told_of, lost=self.lost + found.lost,
        )  # fmt: skip

    def _probabilities(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """(s, C) from moments (s, C)."""
        if self.likelihood is not None:
            return both_classes(self.likelihood.probability, mean[:, 0], variance[:, 0])
        return mean_softmax(mean, variance[:, :, None] * np.eye(mean.shape[1]))

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        found = gram.by_pieces(
            lambda some: self._probabilities(*self.all_moments(some)), self._aligned(Z), len(self.values) ** 2
        )
        return np.concatenate([np.empty((0, max(2, len(self.values)))), *found])

    def leave_one_out(self, covariances: Sequence[LatentCovariance] | None = None) -> np.ndarray:
        """From cavities, without the row's own site: (n, C)."""
        if self.told is None:
            raise ParameterError(NOT_KEPT)
        mean, first, curvature, variance = self.told
        m, v = cavity(mean, variance, curvature, first)
        return self._probabilities(m.T, v.T)

    def start(self, covariances: Sequence[LatentCovariance]) -> None:
        return None

    def numerics(self) -> dict[str, Any]:
        return {
            "iterations": 1, "converged": True, "jitter": 0.0, "centers": len(self.factor.lower), "rows": self.count,
            "lost_nats": self.lost,
        }  # fmt: skip


NOT_KEPT = (
    "the rows of a stream are not kept, so they cannot be used again. Hold rows back for report(X, y), "
    "score(X, y), log_predictive_density(X, y) or predict_distribution(X), or fit a subset."
)


def blocks(n: int, first: int = 0) -> list[slice]:
    edges = [0, *range(max(BLOCK_ROWS, first), n, BLOCK_ROWS), n]
    return [slice(i, j) for i, j in itertools.pairwise(edges)]
