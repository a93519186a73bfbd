"""Noise whose logarithm is a Gaussian process of its own (Goldberg, Williams and Bishop 1998), with the function
integrated out.

y_i = f(x_i) + e_i, the variance of e_i is exp(g_i) and of its rounding ``floor``; f ~ N(H beta, K), g ~ N(ln level, G).
The Gaussian q(g) = N(ln level + m, Sigma) that is closest to the posterior has the bound on ln p(y)

    ln N(y | H beta, K + R) - tr(Sigma) / 4 - KL(q || p),    R_i = floor + exp(ln level + m_i - Sigma_ii / 2)

(Lazaro-Gredilla and Titsias 2011, eq 7), with a flat prior on beta the restricted likelihood in the first term. Its
derivatives in m_i and Sigma_ii are those of an expected log likelihood, so that q(g) is found as for a latent function
behind labels (`variational.gaussian`): Gaussian sites of precision 1/2 + beta_i >= 0, beta_i = r_i (a_i^2 - P_ii) / 2,
with a = P y and r = R - floor. Without variance of g the bound is the evidence of constant noise.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.inputs import Inputs
from mercer.distributions import LOG_2PI
from mercer.gp.likelihood import Expected
from mercer.inference.sampling.draws import Draws, Progress
from mercer.inference.sampling.latents import factor_kernel, sample_latent
from mercer.inference.sites import Covariance, DenseSiteFactor, LatentPosterior, SiteApproximation
from mercer.inference.variational import gaussian
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky, attempt
from mercer.linalg.trend import Trend

MIN_GAIN = 1e-8  # of the bound, relative to it: a step of inference that gains less is the last


class SolvedTarget(NamedTuple):
    """C = K + diag(R), factorised: the (restricted) log evidence, a = P y, and what P is made of."""

    log_evidence: float
    a: np.ndarray
    factor: Cholesky
    trend: Trend | None

    def diagonal(self) -> np.ndarray:
        """Of P: (n,). Overwrites the factor."""
        self.factor.halve()
        found = self.factor.inverse_diagonal()
        return found if self.trend is None else found - np.einsum("ij,ij->i", self.trend.half, self.trend.half)

    def inverse(self) -> np.ndarray:
        """P in the upper triangle of a C-ordered matrix. Overwrites the factor."""
        self.factor.invert()
        if self.trend is not None:
            self.trend.project(self.factor.lower)
        return self.factor.lower.T


@dataclasses.dataclass(eq=False)
class NoisyTarget:
    """ln p(y | g) with the function integrated out. ``K``: its covariance, in the upper triangle of a C-ordered matrix;
    ``H``: columns with unknown coefficients (n, q)."""

    K: np.ndarray
    y: np.ndarray
    H: np.ndarray
    log_level: float
    floor: float = 0.0
    precision: np.ndarray | None = None  # of a Gaussian prior of the coefficients; None: a flat one
    bounded: ClassVar[bool] = True  # as a likelihood that `variational.gaussian` takes, with no parameters of its own
    size: ClassVar[int] = 0

    @functools.cached_property
    def _work(self) -> np.ndarray:
        return np.empty_like(self.K)

    @functools.cached_property
    def _both(self) -> np.ndarray:
        return np.asfortranarray(np.column_stack([self.y, self.H]))

    def solved(self, R: np.ndarray) -> SolvedTarget | None:
        """At noise variances R (n,); None where C is not positive definite. n^3/3 flops; overwrites the previous."""
        M = self._work
        np.copyto(M, self.K)
        M.ravel()[:: len(M) + 1] += R
        factor = attempt(M.T, clean=True)
        if factor is None:
            return None
        found, trend, log_det = factor.solve(self._both), None, factor.log_det()
        a = found[:, 0]
        if self.H.shape[1]:
            try:
                trend = Trend.of(self.H, found[:, 1:], self.precision)
            except np.linalg.LinAlgError:
                return None
            a, log_det = trend.contrasted(a, self.y), log_det + trend.log_det()
        contrasts = len(self.y) - (0 if trend is None else trend.flat)
        value = -0.5 * (log_det + float(self.y @ a) + contrasts * LOG_2PI)
        return SolvedTarget(value, a, factor, trend) if math.isfinite(value) else None

    def rates(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """r = R - floor, 1 / E exp(-g) under N(ln level + mean, variance): (n,)."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_level + mean - 0.5 * variance)

    def expected(self, mean: np.ndarray, variance: np.ndarray, t: object = None) -> Expected:
        """The bound without its KL term, spread evenly over the rows, and its derivatives in mean and variance of g.
        2/3 n^3 flops."""
        n, r = len(self.y), self.rates(mean, variance)
        found = self.solved(self.floor + r) if np.isfinite(r).all() else None
        if found is None:
            return Expected(np.full(n, -np.inf), np.zeros(n), np.zeros(n))
        beta = 0.5 * r * (found.a**2 - found.diagonal())
        return Expected(found.log_evidence / n - 0.25 * variance, beta, -0.5 * beta - 0.25)

    def log_likelihood(self, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ln p(y | g) and its gradient, for samplers, of g (k, n) relative to ln level."""
        values, slopes = np.full(len(g), -np.inf), np.zeros_like(g)
        for i, row in enumerate(g):
            found = self.expected(row, np.zeros(len(row)))
            values[i], slopes[i] = found.value.sum(), found.in_mean
        return values, slopes


@dataclasses.dataclass(eq=False)
class NoiseApproximation:
    """q(g) and the function given it, at one theta. ``log_evidence``: the bound. ``G``: prior covariance of g."""

    target: NoisyTarget
    sites: SiteApproximation
    G: Covariance

    @property
    def log_evidence(self) -> float:
        return self.sites.log_evidence

    @property
    def R(self) -> np.ndarray:
        """Noise variances that the function is conditioned with: (n,)."""
        assert self.sites.variance is not None
        return self.target.floor + self.target.rates(self.sites.mean, self.sites.variance)

    def posterior(self, kernel: Kernel, X: Inputs) -> LatentPosterior:
        """Of g relative to ln level, as a distribution over functions. ``kernel`` and ``X`` are those of G."""
        factor = self.sites.factor
        assert isinstance(factor, DenseSiteFactor)
        return LatentPosterior(kernel, X, self.sites.a, np.sqrt(self.sites.S), np.tril(factor.lower))

    def slope(self, contract: Callable[..., np.ndarray]) -> tuple[np.ndarray, float] | None:
        """Derivatives of the bound in the parameters of K, by the ``contract`` of its representation, and in ln level;
        None where there are none. The bound is stationary in q(g)."""
        R = self.R
        found = self.target.solved(R)
        if found is None:
            return None
        P = found.inverse()
        in_level = float(0.5 * (R - self.target.floor) @ (found.a**2 - np.diag(P)))
        return 0.5 * contract(P, found.a), in_level


def infer_noise(
    G: Covariance, target: NoisyTarget, start: SiteApproximation | None = None
) -> NoiseApproximation | None:
    """The Gaussian q(g) closest to the posterior; None where a covariance is not positive definite. 2 n^3 flops a
    step, some ten steps, fewer from a neighbouring ``start``."""
    # It asks the likelihood for `expected` alone.
    found = gaussian(G, target.y, target, start, min_gain=MIN_GAIN)  # type: ignore[arg-type]
    return None if found is None else NoiseApproximation(target, found, G)


def sample_log_noise(
    found: NoiseApproximation, kernel: Kernel, rows: gram.Gram, n_samples: int, rng: np.random.Generator,
    progress: Progress | None = None,
) -> Draws:  # fmt: skip
    """Draws of g from its posterior p(g | y), with the function integrated out, around the sites of q(g). n^3 flops a
    leapfrog step; ``rows`` are those of the kernel of g."""
    factored = factor_kernel(kernel, rows)
    if factored is None:
        raise NotPositiveDefiniteError(
            "the covariance of the log noise is not positive definite. Look at noise_kernel with "
            "mercer.check_kernel(kernel, X)."
        )
    sites = found.sites.nu, found.sites.S
    return sample_latent(
        factored[1].lower, found.target.log_likelihood, n_samples, rng=rng, progress=progress, sites=sites
    )
