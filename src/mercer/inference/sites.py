"""Gaussian site approximations: what all approximations of the posterior of one latent function share.

Each replaces the likelihood by Gaussian sites exp(nu_i f_i - S_i f_i^2 / 2), so that on the training rows
q(f) = N(m, (K^-1 + S)^-1) with m = K a. All computations go through B = I + S^1/2 K S^1/2, whose eigenvalues are at
least one (RW06 3.26), so K is never inverted.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs, count_rows
from mercer.gp.likelihood import Likelihood
from mercer.inference.base import Contraction, LabelPosterior, Labels, WarmStart
from mercer.inference.functions import Expansion, KernelExpansion, OfGaussian
from mercer.inference.latent import LatentCovariance, LatentSpace, SiteFactor
from mercer.kernels.base import Kernel
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt, mirror_upper
from mercer.linalg.jitter import SAMPLING

if TYPE_CHECKING:  # these modules import this one
    from mercer.inference.sampling.posterior import SampledPosterior
    from mercer.inference.softmax.factor import JointSites

MIN_SITE_SHARE = 1e-6  # S_i K_ii below which a posterior variance is computed from K_ii, not from diag B^-1
MIN_LATENT_VARIANCE = 1e-300  # rows may have no prior variance
MIN_CAVITY_SHARE = 1e-12  # of the posterior precision, that a cavity keeps


class LatentMatrix(LatentSpace):
    """One matrix of memory, and what inference takes."""

    def __init__(self, kernel: Kernel, X: Inputs) -> None:
        self.K, self.n = gram.on(kernel, X).varying(), count_rows(X)
        self.rank = self.n

    @functools.cached_property
    def _covariance(self) -> "Covariance":
        return Covariance(np.zeros((self.n, self.n)))

    def at(self, theta: np.ndarray, jitter: float = 0.0, accurate: bool = False) -> "Covariance":
        self.K.fill(theta, self._covariance.K, accurate)
        self._covariance.K.ravel()[:: self.n + 1] += jitter
        return self._covariance

    def give_away(self) -> bool:
        given = self.__dict__.pop("_covariance", None)
        if given is not None:
            self._covariance.take_workspace(given)
        return given is not None

    def rooted(self, theta: np.ndarray, accurate: bool = False) -> "tuple[Covariance, np.ndarray] | None":
        """With a Cholesky factor. n^3/3 flops."""

        def fill(precise: bool) -> np.ndarray:
            K = np.empty((self.n, self.n))
            self.K.fill(theta, K, accurate or precise)
            return K

        found = factor_with_jitter(fill)
        return None if found is None else (Covariance(found[0]), found[1].lower)


def factor_with_jitter(fill: Callable[[bool], np.ndarray]) -> tuple[np.ndarray, Cholesky] | None:
    """K + jitter and its Cholesky factor L; None if it is not positive definite. n^3/3 flops.

    ``fill(accurate)`` returns a new K, in the upper triangle of a C-ordered array; distances are computed by the fast
    formula first and by the accurate one if that fails. Predictions from draws must use the jitter the draws were made
    with: if K is singular up to rounding, L^-1 f is bounded only then.
    """
    for accurate, jitter in [(False, SAMPLING.first), *((True, jitter) for jitter in SAMPLING(1))]:
        K = fill(accurate)
        K.ravel()[:: len(K) + 1] += jitter * float(np.mean(np.diag(K)) or 1.0)
        factor = attempt(K.T.copy(order="F"), clean=True)
        if factor is not None and np.isfinite(factor.lower.sum()):
            return K, factor
    return None


class Covariance(LatentCovariance):
    """K on n rows, in the upper triangle of a C-ordered array (to LAPACK, the lower one), and workspace for B."""

    def __init__(self, K: np.ndarray) -> None:
        self.K = K
        self.n = len(K)

    @classmethod
    def of(cls, kernel: Kernel, X: Inputs, jitter: float = 0.0) -> "Covariance":
        K = gram.within(kernel, X)
        K[np.diag_indices_from(K)] += jitter
        return cls(K)

    @property
    def diagonal(self) -> np.ndarray:  # type: ignore[override]
        return np.diag(self.K)

    @functools.cached_property
    def _B(self) -> np.ndarray:
        return np.empty_like(self.K)

    def take_workspace(self, other: "Covariance") -> None:
        """That of another covariance, which makes one anew when it needs it."""
        if "_B" in other.__dict__:
            self._B = other.__dict__.pop("_B")

    def times(self, v: np.ndarray) -> np.ndarray:
        """K v. 2 n^2 flops."""
        return backend.product(self.K.T, v)

    def part(self, rows: np.ndarray, factor: float = 1.0) -> "Covariance":
        return Covariance(self.across(rows, rows, factor))

    def across(self, others: np.ndarray, rows: np.ndarray, factor: float = 1.0) -> np.ndarray:
        return factor * self.rows(others)[:, rows]

    def own_variance(self, others: np.ndarray, factor: float = 1.0) -> np.ndarray:
        return factor * self.diagonal[others]

    def known_to(self, rows: gram.Gram, jitter: float) -> gram.Gram:
        mirror_upper(self.K)
        self.K.ravel()[:: self.n + 1] -= jitter
        return rows.known(self.K)

    @property
    def joint(self) -> "type[JointSites]":
        from mercer.inference.softmax.factor import JointFactor  # which imports this module

        return JointFactor

    @property
    def sampled(self) -> "type[SampledPosterior]":
        from mercer.inference.sampling.posterior import SampledPosterior  # which imports this module

        return SampledPosterior

    def factor(self, S: np.ndarray) -> "DenseSiteFactor | None":
        """Factor of B = I + S^1/2 K S^1/2; None if it has none, so that K is not positive semidefinite. n^3/3 flops."""
        s = np.sqrt(S)
        return DenseSiteFactor(self, s, Cholesky(self._B.T)) if factor_B(self, s, self._B, clean=True) else None

    def rows(self, which: Sequence[int] | np.ndarray) -> np.ndarray:
        """Whole rows of K."""
        out = self.K[which]
        for row, i in zip(out, which, strict=True):
            row[:i] = self.K[:i, i]
        return out


def factor_B(K: Covariance, s: np.ndarray, out: np.ndarray, clean: bool = False) -> bool:
    """Write L^T, L L^T = B = I + S^1/2 K S^1/2, to ``out``; False if B has no Cholesky factor. With ``clean``, zeros
    below the diagonal."""
    with np.errstate(all="ignore"):  # values below the diagonal of K are arbitrary
        np.multiply(K.K, s[:, None], out=out)
        out *= s
    out.ravel()[:: K.n + 1] += 1.0
    return backend.factor(out.T, clean)


class DenseSiteFactor(SiteFactor):
    """Cholesky factor of B = I + S^1/2 K S^1/2, with s = S^1/2. `variance` overwrites it with its inverse."""

    def __init__(self, K: Covariance, s: np.ndarray, B: Cholesky) -> None:
        self.K, self.s, self.B = K, s, B
        self.log_det = B.log_det()

    @property
    def prior(self) -> Covariance:
        return self.K

    @property
    def lower(self) -> np.ndarray:
        """L, unless overwritten."""
        assert self.B.form == "factor"
        return self.B.lower

    def solve(self, v: np.ndarray) -> np.ndarray:
        """B^-1 v."""
        return self.B.solve(v)

    def weights(self, nu: np.ndarray) -> np.ndarray:
        """nu - S^1/2 B^-1 S^1/2 K nu."""
        return nu - self.s * self.solve(self.s * self.K.times(nu))

    def informed_weights(self, nu: np.ndarray) -> np.ndarray:
        """S^1/2 B^-1 S^-1/2 nu."""
        return self.s * self.solve(nu / self.s)

    def slope(
        self, contract: Callable[..., np.ndarray], a: np.ndarray, through_mode: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """2/3 n^3 + O(n^2) flops."""
        self.B.invert()
        R = self.B.lower.T  # in the upper triangle, as K is
        with np.errstate(all="ignore"):
            R *= self.s[:, None]
            R *= self.s
        if through_mode is not None:
            backend.subtract_products(R.T, *through_mode)
        return 0.5 * contract(R, a)

    def posterior(
        self, kernel: Kernel, X: Inputs, approximation: "SiteApproximation", given: Labels
    ) -> "LatentPosterior":
        return LatentPosterior(kernel, X, approximation.a, np.sqrt(approximation.S), np.tril(self.lower), given)

    def variance(self) -> np.ndarray:
        """Diagonal of (K^-1 + S)^-1 = (1 - diag B^-1) / S; for rows whose S is nearly zero, from K instead."""
        assert self.B.form != "inverse"
        self.B.halve()
        S = self.s**2
        with np.errstate(divide="ignore", invalid="ignore"):
            v = (1 - self.B.inverse_diagonal()) / S
        small = np.flatnonzero(~(S * self.K.diagonal > MIN_SITE_SHARE))
        for part in gram.pieces(len(small), self.K.n):
            which = small[part]
            R = self.K.rows(which) * self.s
            R = backend.half_product(self.B.lower, R.T).T
            v[which] = self.K.diagonal[which] - np.einsum("ij,ij->i", R, R)
        return np.maximum(np.minimum(v, self.K.diagonal), MIN_LATENT_VARIANCE)


def cavity(mean: np.ndarray, variance: np.ndarray, S: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of each f_i without its own site, from the posterior ones: (n,), (n,)."""
    share = np.maximum(1 - S * variance, MIN_CAVITY_SHARE)
    return mean - variance * a / share, variance / share


@dataclasses.dataclass(eq=False)
class SiteApproximation:
    """q(f) on the training rows, and its evidence. All vectors (n,).

    The evidence of Laplace's method depends on K through the mode, too: d ln Z = 1/2 tr((a a^T - R + u g^T + g u^T) dK)
    with R = S^1/2 B^-1 S^1/2 and ``through_mode`` = (u, g). None for methods whose evidence is stationary in q.
    """

    log_evidence: float
    a: np.ndarray
    mean: np.ndarray
    S: np.ndarray
    nu: np.ndarray
    factor: SiteFactor
    iterations: int
    converged: bool
    through_mode: tuple[np.ndarray, np.ndarray] | None = None
    variance: np.ndarray | None = None  # of f on the training rows, where the method computed it
    likelihood_slope: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # in its own parameters

    @property
    def prior(self) -> LatentCovariance:
        return self.factor.prior

    def start(self) -> WarmStart:
        """As `Approximation.start`."""
        return WarmStart(self.a, self.S, self.nu)

    def slope(self, contractions: Sequence[Contraction]) -> np.ndarray:
        """d ln Z / d theta."""
        (contract,) = contractions
        return self.factor.slope(contract, self.a, self.through_mode)


class SitePosterior(OfGaussian, LabelPosterior):
    """An approximate posterior with Gaussian sites as a distribution over functions. ``a`` and ``s`` = S^1/2, (n,), are
    those of the training rows."""

    kernel: Kernel
    a: np.ndarray
    s: np.ndarray
    single = True

    @property
    def kernels(self) -> tuple[Kernel, ...]:  # type: ignore[override]
        return (self.kernel,)

    def cavity(self, K: LatentCovariance) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at each training row without that row's site, the other sites unchanged."""
        S = self.s**2
        factor = K.factor(S)
        assert factor is not None, "this K was factorised before"
        return cavity(K.times(self.a), factor.variance(), S, self.a)

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """Probabilities of t = -1 and t = +1, by quadrature (PRML 6.76): (s, 2)."""
        return both_classes(likelihood.probability, *self.moments(Z))

    def closed_form(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        return both_classes(likelihood.closed_form, *self.moments(Z))

    def most_probable(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """By the sign of the mean, as a sigmoid exceeds one half where f is positive: (s,)."""
        return (self.mean(Z) > 0).astype(int)

    def leave_one_out(self, covariances: Sequence[LatentCovariance] | None = None) -> np.ndarray:
        """From cavities: (n, 2)."""
        (K,) = covariances or self.covariances()
        return both_classes(self.labels().inference.likelihood.probability, *self.cavity(K))

    def start(self, covariances: Sequence[LatentCovariance]) -> WarmStart:
        """The same sites, and none on the new rows."""
        (K,), more = covariances, (0, covariances[0].n - len(self.a))
        a, S = np.pad(self.a, more), np.pad(self.s**2, more)
        return WarmStart(a, S, a + S * K.times(a))


@dataclasses.dataclass(frozen=True, eq=False)
class LatentPosterior(SitePosterior):
    """The approximate posterior as a distribution over functions: mean k(z, X) a, variance k - |L^-1 S^1/2 k(X, z)|^2.

    ``s`` is S^1/2; ``lower`` is L with zeros above the diagonal.
    """

    kernel: Kernel
    X: Inputs
    a: np.ndarray
    s: np.ndarray
    lower: np.ndarray
    given: Labels | None = None
    space: ClassVar[type[LatentSpace]] = LatentMatrix

    def consistent(self) -> bool:
        n = count_rows(self.X)
        shapes = self.a.shape == self.s.shape == (n,) and self.lower.shape == (n, n)
        return shapes and isinstance(self.kernel, Kernel)

    @property
    def coefficients(self) -> Sequence[np.ndarray]:
        return [self.a]

    def expansions(self) -> list[Expansion]:
        return [KernelExpansion(self.kernel, self.rows())]

    def halves(self, c: int, B: np.ndarray) -> tuple[np.ndarray, None]:
        """L^-1 S^1/2 k(X, z)."""
        return backend.half_solve(self.lower, (B * self.s).T, in_place=True), None

    def pull(self, c: int, V: np.ndarray | None, Q: np.ndarray | None) -> np.ndarray:
        assert V is not None
        return -self.s[:, None] * backend.half_solve(self.lower, V, transposed=True)


def both_classes(
    probability: Callable[[np.ndarray, np.ndarray], np.ndarray], mean: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    """Probabilities of t = -1 and t = +1, integrated separately so that a small one keeps its digits: (..., 2)."""
    P = np.stack([probability(-mean, variance), probability(mean, variance)], axis=-1)
    return P / P.sum(axis=-1, keepdims=True)
