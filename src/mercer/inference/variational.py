"""Lower bounds on the evidence: the best Gaussian q(f), and the local bound on the logistic sigmoid."""

from typing import NamedTuple

import numpy as np
from scipy.special import log_expit

from mercer.gp.likelihood import Expected
from mercer.inference.anderson import Mixing
from mercer.inference.sites import Covariance, SiteApproximation

MOST_STEPS = 500
ENOUGH, ROUNDING = 1e-9, 1e-12  # of the bound: gains that end the climb, and losses that are none
STUCK = 1e-3  # standard deviations by which sites may be off where no step raises the bound
GOOD_ENOUGH = 0.1  # the same where steps gain no more
RESIDUAL = 0.01  # of the mean


def gaussian(K: Covariance, t, likelihood, start: SiteApproximation | None = None, gradient: bool = True):
    """The Gaussian q(f) nearest to the posterior in KL(q || p), and its bound E ln p(t | f) - KL(q || prior).

    The best covariance is (K^-1 + S)^-1 with S_i = -E d^2 ln p / df_i^2 (Opper and Archambeau 2009). Sites are moved
    along the natural gradient, nu = E d ln p / df + S m, which is Newton's method under the expectation; a step that
    does not raise the bound is halved. n^3 flops a step.
    """
    x = np.zeros((2, K.n))  # S and nu of all sites
    if start is not None and start.S.shape == (K.n,):
        x = np.stack([start.S, start.nu])
    here = _bound(K, x, t, likelihood)
    if here is None:
        x = np.zeros_like(x)
        here = _bound(K, x, t, likelihood)
    if here is None:
        return None
    converged, mixing, iteration = False, Mixing(), 0
    while iteration < MOST_STEPS and not converged:
        iteration += 1
        change = here.change(x)
        there, new = None, mixing.next(x, change, 1.0, np.stack([here.v, np.sqrt(here.v)]))
        new[0] = np.maximum(new[0], 0.0)
        there = _bound(K, new, t, likelihood)
        share = 1.0
        while there is None or there.value < here.value - ROUNDING * abs(here.value):
            # The plain step, shorter and shorter; from now on without what was remembered.
            mixing, new = Mixing(), x + share * change
            there = _bound(K, new, t, likelihood)
            share /= 2
            if share < 1e-4:
                there, new = here, x
        converged = there.value - here.value < ENOUGH * max(1.0, abs(here.value))
        if there is here:  # no step raises the bound: the top, unless much is still to be changed
            converged = here.off(x) < STUCK
            break
        x, here = new, there
    # Gains may be small because steps are, or because rounding ended the climb.
    converged = converged and here.off(x) < GOOD_ENOUGH and _solved(K, x[0], x[1], here.mean)
    factor = K.factor(x[0])
    if factor is None:
        return None
    return SiteApproximation(float(here.value), here.a, here.mean, x[0], x[1], factor, iteration, bool(converged))


def _solved(K: Covariance, S, nu, mean) -> bool:
    """Whether m = K (nu - S m) holds to a hundredth.

    Where K is huge, what is left of nu - S m has no digits; then bounds change by rounding alone, and a climb ends
    wherever it is.
    """
    return bool(np.abs(K.times(nu - S * mean) - mean).max() <= RESIDUAL * np.abs(mean).max())


class _Bound(NamedTuple):
    """The bound at some sites, the posterior there, and expectations under it."""

    value: float
    a: np.ndarray
    mean: np.ndarray
    v: np.ndarray
    expected: Expected

    def change(self, x) -> np.ndarray:
        """To the sites that the natural gradient asks for."""
        S = np.maximum(-2 * self.expected.in_variance, 0.0)
        return np.stack([S, self.expected.in_mean + S * self.mean]) - x

    def off(self, x) -> float:
        """How far sites are from those, in standard deviations."""
        return float(np.abs(self.change(x) * np.stack([self.v, np.sqrt(self.v)])).max())


def _bound(K, x, t, likelihood) -> _Bound | None:
    S, nu = x
    factor = K.factor(S)
    if factor is None:
        return None
    log_det = factor.log_det
    a = factor.weights(nu)
    mean = K.times(a)
    v = factor.variance()
    expected = likelihood.expected(mean, v, t)
    # KL(q || prior): tr(K^-1 Sigma) = tr(B^-1) = n - sum S v.
    value = float(expected.value.sum() - 0.5 * (a @ mean + log_det - S @ v))
    return _Bound(value, a, mean, v, expected) if np.isfinite(value) else None


def local(K: Covariance, t, likelihood=None, start: SiteApproximation | None = None, gradient: bool = True):
    """The bound of Jaakkola and Jordan on every logistic sigmoid (PRML 10.144), as Gibbs and MacKay (2000) use it.

    ln sigma(t f) >= ln sigma(xi) + (t f - xi) / 2 - lambda(xi) (f^2 - xi^2) with lambda = tanh(xi / 2) / 4 xi, so that
    S = 2 lambda and nu = t / 2. The best xi^2 is E f^2; taking it over and over never lowers the bound. n^3 flops
    a step.
    """
    nu = 0.5 * t
    xi = np.sqrt(np.maximum(K.diagonal, 1e-300))
    if start is not None and start.S.shape == nu.shape:
        factor = K.factor(start.S)
        if factor is not None:
            xi = np.sqrt(factor.variance() + K.times(factor.weights(nu)) ** 2)
    here = _local_bound(K, xi, nu)
    if here is None:
        return None
    converged, mixing, iteration = False, Mixing(), 0
    while iteration < MOST_STEPS and not converged:
        iteration += 1
        target = np.log(here.second_moment)  # of xi^2
        u = 2 * np.log(xi)
        new = np.exp(0.5 * mixing.next(u, target - u, 1.0, 1.0))
        there = _local_bound(K, new, nu)
        if there is None or there.value < here.value:
            mixing, new = Mixing(), np.exp(0.5 * target)  # which never lowers it
            there = _local_bound(K, new, nu)
            if there is None:
                break
        converged = there.value - here.value < ENOUGH * max(1.0, abs(here.value))
        xi, here = new, there
    S = 2 * _curvature(xi)
    converged = converged and _solved(K, S, nu, here.mean)
    factor = K.factor(S)
    if factor is None:
        return None
    return SiteApproximation(here.value, here.a, here.mean, S, nu, factor, iteration, bool(converged))


class _LocalBound(NamedTuple):
    value: float
    a: np.ndarray
    mean: np.ndarray
    second_moment: np.ndarray


def _local_bound(K, xi, nu) -> _LocalBound | None:
    S = 2 * _curvature(xi)
    factor = K.factor(S)
    if factor is None:
        return None
    log_det = factor.log_det
    a = factor.weights(nu)
    mean = K.times(a)
    value = float(0.5 * nu @ mean - 0.5 * log_det + np.sum(log_expit(xi) - 0.5 * xi + 0.5 * S * xi**2))
    if not np.isfinite(value):
        return None
    return _LocalBound(value, a, mean, np.maximum(factor.variance() + mean**2, 1e-300))


def _curvature(xi):
    """tanh(xi / 2) / (4 xi), one eighth at zero."""
    small = xi < 1e-4
    safe = np.where(small, 1.0, xi)
    return np.where(small, 0.125 - xi**2 / 96, np.tanh(0.5 * safe) / (4 * safe))
