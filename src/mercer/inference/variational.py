"""Lower bounds on the evidence: the optimal Gaussian q(f), and local bounds on logistic sigmoids and Student's t."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import log_expit

from mercer.gp.likelihood import Expected, LatentLikelihood
from mercer.gp.likelihoods.base import Target
from mercer.gp.likelihoods.student import Student
from mercer.inference.anderson import AndersonMixing
from mercer.inference.laplace import laplace
from mercer.inference.latent import LatentCovariance
from mercer.inference.sites import MIN_LATENT_VARIANCE, SiteApproximation

MAX_STEPS = 500
MIN_STEP = 1e-4
MIN_GAIN, ROUNDING = 1e-9, 1e-12  # relative to the bound: gain below which the iteration ends, loss that is ignored
# Distances of sites from their fixed point, in standard deviations, above which the iteration has not converged: where
# no step raises the bound, and where steps gain too little.
MAX_STALLED_DISTANCE, MAX_DISTANCE = 1e-3, 0.1
MAX_RESIDUAL, MAX_WEIGHT_RESIDUAL = 0.01, 1e-4  # of the equations for the mean and for its weights, relative to these


def gaussian(
    K: LatentCovariance,
    t: Any,
    likelihood: LatentLikelihood,
    start: SiteApproximation | None = None,
    gradient: bool = True,
    min_gain: float = MIN_GAIN,
) -> SiteApproximation | None:
    """The Gaussian q(f) closest to the posterior in KL(q || p), and its bound E ln p(t | f) - KL(q || prior).

    The optimal covariance is (K^-1 + S)^-1 with S_i = -E d^2 ln p / df_i^2 (Opper and Archambeau 2009). Sites follow
    the natural gradient, nu = E d ln p / df + S m, which is Newton's method under the expectation, with Anderson
    mixing; a step that does not raise the bound is halved. n^3 flops a step.
    """
    x = np.zeros((2, K.n))  # S and nu of all sites
    if start is not None and start.S.shape == (K.n,):
        x = np.stack([start.S, start.nu])
    elif not likelihood.bounded:
        mode = laplace(K, t, likelihood, gradient=False)
        x = x if mode is None else np.stack([mode.S, mode.nu])
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
        converged = there.value - here.value < min_gain * max(1.0, abs(here.value))
        if there is here:  # no step raises the bound: a maximum only if the sites are at their fixed point
            converged = here.distance(x) < MAX_STALLED_DISTANCE
            break
        x, here = new, there
    # A small gain may also be due to small steps, or to rounding.
    converged = converged and here.distance(x) < MAX_DISTANCE and _solved(K, x[0], x[1], here.mean, here.a)
    factor = K.factor(x[0])
    if factor is None:
        return None
    result = SiteApproximation(
        float(here.value), here.a, here.mean, x[0], x[1], factor, iteration, bool(converged), variance=here.v
    )
    if gradient and likelihood.size:
        result.likelihood_slope = likelihood.expected_slopes(here.mean, here.v, t).sum(axis=1)
    return result


def _solved(K: LatentCovariance, S: np.ndarray, nu: np.ndarray, mean: np.ndarray, a: np.ndarray) -> bool:
    """Whether m = K (nu - S m) holds to a relative MAX_RESIDUAL, or a = nu - S m to MAX_WEIGHT_RESIDUAL.

    If K is huge, nu - S m cancels to no correct digits; the bound then changes by rounding alone, and the iteration
    may end anywhere.
    """
    if np.abs(nu - S * mean - a).max() <= MAX_WEIGHT_RESIDUAL * np.abs(a).max():
        return True
    return bool(np.abs(K.times(nu - S * mean) - mean).max() <= MAX_RESIDUAL * np.abs(mean).max())


class _Bound(NamedTuple):
    """The bound at given sites, the posterior there, and expectations under it."""

    value: float
    a: np.ndarray
    mean: np.ndarray
    v: np.ndarray
    expected: Expected

    @classmethod
    def at(cls, K: LatentCovariance, x: np.ndarray, t: Any, likelihood: LatentLikelihood) -> "_Bound | None":
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
    K: LatentCovariance, t: Any, likelihood: LatentLikelihood | None = None, start: SiteApproximation | None = None,
    gradient: bool = True,
) -> SiteApproximation | None:  # fmt: skip
    """Jaakkola and Jordan's bound on every logistic sigmoid (PRML 10.144), as used by Gibbs and MacKay (2000).

    ln sigma(t f) >= ln sigma(xi) + (t f - xi) / 2 - lambda(xi) (f^2 - xi^2) with lambda = tanh(xi / 2) / 4 xi, so that
    S = 2 lambda and nu = t / 2. The optimal xi^2 is E f^2.
    """
    return _local(K, SigmoidBound(t), start)


def scale_mixture(
    K: LatentCovariance, t: Target, likelihood: Student, start: SiteApproximation | None = None, gradient: bool = True,
) -> SiteApproximation | None:  # fmt: skip
    """Bound for Student's t, a mixture of normals of different precisions (Tipping and Lawrence 2005).

    ln p(y | f) is convex in (y - f)^2, so its tangent at xi^2 is a lower bound: a Gaussian of precision
    S = (dof + 1) / (dof scale^2 + xi^2) around y. Sites are positive, for outliers too. The optimal xi^2 is
    E (y - f)^2.
    """
    bound = StudentBound(t, likelihood)
    found = _local(K, bound, start)
    if found is not None and gradient and likelihood.size:
        xi = np.sqrt((likelihood.dof + 1) / found.S - likelihood.dof * likelihood.scale**2)
        found.likelihood_slope = likelihood.slopes(t.y - t.offset - xi, t)[:, 0].sum(axis=1)
    return found


class LocalBound(Protocol):
    """Quadratic lower bounds on the terms of a log likelihood, each touching it where some square is xi^2."""

    def sites(self, xi: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """S and nu, and the sum of what does not depend on f."""

    def second_moment(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Expectation of the squares: the optimal xi^2."""


class SigmoidBound:
    """Of logistic sigmoids of t f; squares are f^2."""

    def __init__(self, t: np.ndarray) -> None:
        self.nu = 0.5 * t

    def sites(self, xi: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        S = 2 * _lambda(xi)
        return S, self.nu, float(np.sum(log_expit(xi) - 0.5 * xi + 0.5 * S * xi**2))

    def second_moment(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return variance + mean**2


class StudentBound:
    """Of Student's t; squares are (y - f)^2."""

    def __init__(self, t: Target, likelihood: Student) -> None:
        self.t, self.likelihood, self.y = t, likelihood, t.y - t.offset

    def sites(self, xi: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        S = self.likelihood.precision(xi**2)
        value = self.likelihood.derivatives(self.y - xi, self.t).value
        return S, S * self.y, float(np.sum(value + 0.5 * S * (xi**2 - self.y**2)))

    def second_moment(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return variance + (self.y - mean) ** 2


def _local(K: LatentCovariance, bound: LocalBound, start: SiteApproximation | None) -> SiteApproximation | None:
    """Posterior by local bounds, at the xi^2 that maximise the sum of them. Setting xi^2 to the expectation of the
    squares never lowers it. n^3 flops a step."""
    xi = np.sqrt(np.maximum(bound.second_moment(np.zeros(K.n), K.diagonal), MIN_LATENT_VARIANCE))
    if start is not None and start.S.shape == xi.shape:
        factor = K.factor(start.S)
        if factor is not None:
            mean = K.times(factor.weights(start.nu))
            xi = np.sqrt(np.maximum(bound.second_moment(mean, factor.variance()), MIN_LATENT_VARIANCE))
    here = _LocalBound.at(K, xi, bound)
    if here is None:
        return None
    converged, mixing, iteration = False, AndersonMixing(), 0
    while iteration < MAX_STEPS and not converged:
        iteration += 1
        target = np.log(here.second_moment)  # of xi^2
        u = 2 * np.log(xi)
        new = np.exp(0.5 * mixing.next(u, target - u))
        there = _LocalBound.at(K, new, bound)
        if there is None or there.value < here.value:
            mixing, new = AndersonMixing(), np.exp(0.5 * target)  # the plain update, which never lowers the bound
            there = _LocalBound.at(K, new, bound)
            if there is None:
                break
        converged = there.value - here.value < MIN_GAIN * max(1.0, abs(here.value))
        xi, here = new, there
    S, nu, _ = bound.sites(xi)
    converged = converged and _solved(K, S, nu, here.mean, here.a)
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
    def at(cls, K: LatentCovariance, xi: np.ndarray, bound: LocalBound) -> "_LocalBound | None":
        S, nu, constant = bound.sites(xi)
        factor = K.factor(S)
        if factor is None:
            return None
        a = factor.informed_weights(nu)
        mean = K.times(a)
        value = float(0.5 * nu @ mean - 0.5 * factor.log_det + constant)
        if not np.isfinite(value):
            return None
        return cls(value, a, mean, np.maximum(bound.second_moment(mean, factor.variance()), MIN_LATENT_VARIANCE))


def _lambda(xi: np.ndarray) -> np.ndarray:
    """tanh(xi / 2) / (4 xi), one eighth at zero (PRML 10.141)."""
    small = xi < 1e-4
    safe = np.where(small, 1.0, xi)
    return np.where(small, 0.125 - xi**2 / 96, np.tanh(0.5 * safe) / (4 * safe))


BOUNDS: dict[str, Callable[..., SiteApproximation | None]] = {"gaussian": gaussian, "local": local}
