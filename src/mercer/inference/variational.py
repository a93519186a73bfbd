"""Lower bounds on the evidence: the optimal Gaussian q(f), and the local bound on the logistic sigmoid."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import log_expit

from mercer.gp.likelihood import Expected, Likelihood
from mercer.inference.anderson import AndersonMixing
from mercer.inference.latent import LatentCovariance
from mercer.inference.sites import MIN_LATENT_VARIANCE, SiteApproximation

MAX_STEPS = 500
MIN_STEP = 1e-4
MIN_GAIN, ROUNDING = 1e-9, 1e-12  # relative to the bound: gain below which the iteration ends, loss that is ignored
# Distances of sites from their fixed point, in standard deviations, above which the iteration has not converged: where
# no step raises the bound, and where steps gain too little.
MAX_STALLED_DISTANCE, MAX_DISTANCE = 1e-3, 0.1
MAX_RESIDUAL = 0.01  # of the equation for the mean, relative to it


def gaussian(
    K: LatentCovariance,
    t: np.ndarray,
    likelihood: Likelihood,
    start: SiteApproximation | None = None,
    gradient: bool = True,
) -> SiteApproximation | None:
    """The Gaussian q(f) closest to the posterior in KL(q || p), and its bound E ln p(t | f) - KL(q || prior).

    The optimal covariance is (K^-1 + S)^-1 with S_i = -E d^2 ln p / df_i^2 (Opper and Archambeau 2009). Sites follow
    the natural gradient, nu = E d ln p / df + S m, which is Newton's method under the expectation, with Anderson
    mixing; a step that does not raise the bound is halved. n^3 flops a step.
    """
    x = np.zeros((2, K.n))  # S and nu of all sites
    if start is not None and start.S.shape == (K.n,):
        x = np.stack([start.S, start.nu])
    here = _Bound.at(K, x, t, likelihood)
    if here is None:
        x = np.zeros_like(x)
        here = _Bound.at(K, x, t, likelihood)
    if here is None:
        return None
    converged, mixing, iteration = False, AndersonMixing(), 0
    while iteration < MAX_STEPS and not converged:
        iteration += 1
        change = here.change(x)
        new = mixing.next(x, change, np.stack([here.v, np.sqrt(here.v)]))
        new[0] = np.maximum(new[0], 0.0)
        there = _Bound.at(K, new, t, likelihood)
        step = 1.0
        while there is None or there.value < here.value - ROUNDING * abs(here.value):
            # Natural gradient steps, halved until one raises the bound; mixing starts again from there.
            mixing, new = AndersonMixing(), x + step * change
            there = _Bound.at(K, new, t, likelihood)
            step /= 2
            if step < MIN_STEP:
                there, new = here, x
        converged = there.value - here.value < MIN_GAIN * max(1.0, abs(here.value))
        if there is here:  # no step raises the bound: a maximum only if the sites are at their fixed point
            converged = here.distance(x) < MAX_STALLED_DISTANCE
            break
        x, here = new, there
    # A small gain may also be due to small steps, or to rounding.
    converged = converged and here.distance(x) < MAX_DISTANCE and _solved(K, x[0], x[1], here.mean)
    factor = K.factor(x[0])
    if factor is None:
        return None
    return SiteApproximation(float(here.value), here.a, here.mean, x[0], x[1], factor, iteration, bool(converged))


def _solved(K: LatentCovariance, S: np.ndarray, nu: np.ndarray, mean: np.ndarray) -> bool:
    """Whether m = K (nu - S m) holds to a relative MAX_RESIDUAL.

    If K is huge, nu - S m cancels to no correct digits; the bound then changes by rounding alone, and the iteration
    may end anywhere.
    """
    return bool(np.abs(K.times(nu - S * mean) - mean).max() <= MAX_RESIDUAL * np.abs(mean).max())


class _Bound(NamedTuple):
    """The bound at given sites, the posterior there, and expectations under it."""

    value: float
    a: np.ndarray
    mean: np.ndarray
    v: np.ndarray
    expected: Expected

    @classmethod
    def at(cls, K: LatentCovariance, x: np.ndarray, t: np.ndarray, likelihood: Likelihood) -> "_Bound | None":
        S, nu = x
        factor = K.factor(S)
        if factor is None:
            return None
        a = factor.weights(nu)
        mean = K.times(a)
        v = factor.variance()
        expected = likelihood.expected(mean, v, t)
        # KL(q || prior), with tr(K^-1 Sigma) = tr(B^-1) = n - sum S v.
        value = float(expected.value.sum() - 0.5 * (a @ mean + factor.log_det - S @ v))
        return cls(value, a, mean, v, expected) if np.isfinite(value) else None

    def change(self, x: np.ndarray) -> np.ndarray:
        """From sites x along the natural gradient."""
        S = np.maximum(-2 * self.expected.in_variance, 0.0)
        return np.stack([S, self.expected.in_mean + S * self.mean]) - x

    def distance(self, x: np.ndarray) -> float:
        """Largest change of a site, in standard deviations."""
        return float(np.abs(self.change(x) * np.stack([self.v, np.sqrt(self.v)])).max())


def local(
    K: LatentCovariance, t: np.ndarray, likelihood: Likelihood | None = None, start: SiteApproximation | None = None,
    gradient: bool = True,
) -> SiteApproximation | None:  # fmt: skip
    """Jaakkola and Jordan's bound on every logistic sigmoid (PRML 10.144), as used by Gibbs and MacKay (2000).

    ln sigma(t f) >= ln sigma(xi) + (t f - xi) / 2 - lambda(xi) (f^2 - xi^2) with lambda = tanh(xi / 2) / 4 xi, so that
    S = 2 lambda and nu = t / 2. The optimal xi^2 is E f^2; iterating this never lowers the bound. n^3 flops a step.
    """
    nu = 0.5 * t
    xi = np.sqrt(np.maximum(K.diagonal, MIN_LATENT_VARIANCE))
    if start is not None and start.S.shape == nu.shape:
        factor = K.factor(start.S)
        if factor is not None:
            xi = np.sqrt(factor.variance() + K.times(factor.weights(nu)) ** 2)
    here = _LocalBound.at(K, xi, nu)
    if here is None:
        return None
    converged, mixing, iteration = False, AndersonMixing(), 0
    while iteration < MAX_STEPS and not converged:
        iteration += 1
        target = np.log(here.second_moment)  # of xi^2
        u = 2 * np.log(xi)
        new = np.exp(0.5 * mixing.next(u, target - u))
        there = _LocalBound.at(K, new, nu)
        if there is None or there.value < here.value:
            mixing, new = AndersonMixing(), np.exp(0.5 * target)  # the plain update, which never lowers the bound
            there = _LocalBound.at(K, new, nu)
            if there is None:
                break
        converged = there.value - here.value < MIN_GAIN * max(1.0, abs(here.value))
        xi, here = new, there
    S = 2 * _lambda(xi)
    converged = converged and _solved(K, S, nu, here.mean)
    factor = K.factor(S)
    if factor is None:
        return None
    return SiteApproximation(here.value, here.a, here.mean, S, nu, factor, iteration, bool(converged))


class _LocalBound(NamedTuple):
    """The bound at given xi, and the posterior there."""

    value: float
    a: np.ndarray
    mean: np.ndarray
    second_moment: np.ndarray

    @classmethod
    def at(cls, K: LatentCovariance, xi: np.ndarray, nu: np.ndarray) -> "_LocalBound | None":
        S = 2 * _lambda(xi)
        factor = K.factor(S)
        if factor is None:
            return None
        a = factor.weights(nu)
        mean = K.times(a)
        value = float(0.5 * nu @ mean - 0.5 * factor.log_det + np.sum(log_expit(xi) - 0.5 * xi + 0.5 * S * xi**2))
        if not np.isfinite(value):
            return None
        return cls(value, a, mean, np.maximum(factor.variance() + mean**2, MIN_LATENT_VARIANCE))


def _lambda(xi: np.ndarray) -> np.ndarray:
    """tanh(xi / 2) / (4 xi), one eighth at zero (PRML 10.141)."""
    small = xi < 1e-4
    safe = np.where(small, 1.0, xi)
    return np.where(small, 0.125 - xi**2 / 96, np.tanh(0.5 * safe) / (4 * safe))


BOUNDS: dict[str, Callable[..., SiteApproximation | None]] = {"gaussian": gaussian, "local": local}
