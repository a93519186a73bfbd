"""What is measured, given the value f of a latent function: two classes t in {-1, +1} through a link, or a number.

All are log-concave in f, so posteriors have one mode and expectation propagation keeps its variances positive.
Integrals over a Gaussian f have closed forms for the probit; others are done by composite Gauss-Legendre quadrature,
to about fourteen digits for any mean and variance, in the tails too.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, log_ndtr, ndtr

# Where the range of f is cut: a logistic sigmoid bends within the inner cuts; beyond the outer ones it is 0 or 1 to
# rounding, and its logarithm a line. And how many nodes lie between.
CUTS, COUNTS = (-36.0, -6.0, 6.0, 36.0), (48, 44, 48, 44, 48)
REACH = 9.0  # standard deviations of a Gaussian that are looked at
LOG_2PI = math.log(2 * math.pi)


class Derivatives(NamedTuple):
    """ln p(t | f) and its first three derivatives in f, each (n,)."""

    value: np.ndarray
    first: np.ndarray
    second: np.ndarray
    third: np.ndarray


class Tilted(NamedTuple):
    """ln Z = ln of the integral of p(t | f) N(f | mean, variance), and its first two derivatives in the mean."""

    log_z: np.ndarray
    first: np.ndarray
    second: np.ndarray


class Expected(NamedTuple):
    """E ln p(t | f) under N(f | mean, variance), and its derivatives in mean and variance."""

    value: np.ndarray
    in_mean: np.ndarray
    in_variance: np.ndarray


class Likelihood:
    """p(t | f), one row at a time."""

    name: str

    def derivatives(self, f, t) -> Derivatives:
        raise NotImplementedError

    def tilted(self, mean, variance, t) -> Tilted:
        z, log_weights = _nodes(mean, variance, t)
        found = self.derivatives(_at(mean, variance, z), t[:, None])
        logs = found.value + log_weights
        top = logs.max(axis=1, keepdims=True)
        share = np.exp(logs - top)
        total = share.sum(axis=1, keepdims=True)
        share /= total
        # Z' / Z and Z'' / Z are means of p' / p and p'' / p: nothing is divided by a small variance.
        first = (share * found.first).sum(axis=1)
        second = (share * (found.second + (found.first - first[:, None]) ** 2)).sum(axis=1)
        return Tilted((top + np.log(total))[:, 0], first, second)

    def expected(self, mean, variance, t) -> Expected:
        z, log_weights = _nodes(mean, variance, np.zeros_like(mean))
        found = self.derivatives(_at(mean, variance, z), t[:, None])
        weights = np.exp(log_weights)
        value, first, second = ((weights * part).sum(axis=1) for part in found[:3])
        return Expected(value, first, 0.5 * second)

    def probability(self, mean, variance) -> np.ndarray:
        """p(t = +1) when f is N(mean, variance) (PRML 6.76), of any shape."""
        mean, variance = np.broadcast_arrays(np.asarray(mean, dtype=float), variance)
        flat, spread = mean.ravel(), variance.ravel()
        # The smaller side, whose digits a difference from one would lose.
        sign = np.where(flat > 0, -1.0, 1.0)
        out = np.empty(len(flat))
        for i in range(0, len(flat), 10_000):
            part = slice(i, i + 10_000)
            out[part] = np.exp(self.tilted(flat[part], spread[part], sign[part]).log_z)
        out = np.minimum(out, 0.5)
        return np.where(sign > 0, out, 1.0 - out).reshape(mean.shape)


class Logistic(Likelihood):
    """p(t | f) = 1 / (1 + exp(-t f)) (PRML 6.73)."""

    name = "logistic"

    def derivatives(self, f, t) -> Derivatives:
        up, down = expit(f), expit(-f)
        slope = up * down
        return Derivatives(log_expit(t * f), np.where(t > 0, down, -up), -slope, slope * (up - down))

    def closed_form(self, mean, variance) -> np.ndarray:
        """sigma(mean / sqrt(1 + pi variance / 8)), MacKay's approximation of the integral (PRML 4.153)."""
        return expit(mean / np.sqrt(1 + math.pi * variance / 8))


class Probit(Likelihood):
    """p(t | f) = Phi(t f)."""

    name = "probit"

    def derivatives(self, f, t) -> Derivatives:
        z = t * f
        value = log_ndtr(z)
        r = np.exp(-0.5 * z * z - 0.5 * LOG_2PI - value)
        return Derivatives(value, t * r, -r * (r + z), t * r * ((2 * r + z) * (r + z) - 1))

    def tilted(self, mean, variance, t) -> Tilted:
        scale = np.sqrt(1 + variance)
        value, first, second, _ = self.derivatives(mean / scale, t)
        return Tilted(value, first / scale, second / scale**2)

    def probability(self, mean, variance) -> np.ndarray:
        return ndtr(mean / np.sqrt(1 + variance))

    closed_form = probability


class Gaussian(Likelihood):
    """p(t | f) = N(t | f, noise): every inference must then be exact."""

    name = "gaussian"

    def __init__(self, noise: float):
        self.noise = noise

    def derivatives(self, f, t) -> Derivatives:
        away, flat = (t - f) / self.noise, np.zeros_like(t * f)
        value = -0.5 * (self.noise * away**2 + LOG_2PI + np.log(self.noise))
        return Derivatives(value, away, flat - 1 / self.noise, flat)

    def tilted(self, mean, variance, t) -> Tilted:
        return Tilted(*Gaussian(self.noise + variance).derivatives(mean, t)[:3])

    def expected(self, mean, variance, t) -> Expected:
        value, first, second, _ = self.derivatives(mean, t)
        return Expected(value + 0.5 * variance * second, first, 0.5 * second)


LINKS: dict[str, type[Logistic] | type[Probit]] = {"logistic": Logistic, "probit": Probit}


@functools.cache
def _rule(count: int):
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return (x + 1) / 2, w / 2


def _nodes(mean, variance, t):
    """z (n, nodes) and the logarithms of weights times N(z | 0, 1).

    Panels are cut where f = mean + deviation z is one of CUTS. A factor p(t | f) moves the mass of a Gaussian towards
    t by up to its variance, until f reaches zero: the range follows it.
    """
    deviation = np.sqrt(variance)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        moved = np.where(deviation > 0, np.minimum(deviation, np.maximum(-t * mean, 0.0) / deviation), 0.0)
        cuts = [np.nan_to_num((edge - mean) / deviation, nan=0.0, posinf=1e300, neginf=-1e300) for edge in CUTS]
    low, high = t * moved - REACH, t * moved + REACH
    edges = [low, *(np.clip(cut, low, high) for cut in cuts), high]
    panels, weights = [], []
    for (left, right), count in zip(itertools.pairwise(edges), COUNTS, strict=True):
        x, w = _rule(count)
        panels.append(left[:, None] + (right - left)[:, None] * x)
        weights.append((right - left)[:, None] * w)
    z = np.concatenate(panels, axis=1)
    with np.errstate(divide="ignore"):
        return z, np.log(np.concatenate(weights, axis=1)) - 0.5 * z**2 - 0.5 * LOG_2PI


def _at(mean, variance, z):
    return mean[:, None] + np.sqrt(variance)[:, None] * z


def quick(likelihood: Likelihood) -> Likelihood:
    """The same likelihood, its integrals in closed form if there is one."""
    return MixedProbits() if type(likelihood) is Logistic else likelihood


class MixedProbits(Logistic):
    """sigma(f) = sum w Phi(f / scale), to 1e-9 for any f, and so its integrals: absolutely, so that of what is smaller
    in the tails no digit is right. Many times quicker than quadrature."""

    def probability(self, mean, variance) -> np.ndarray:
        out = np.zeros(np.broadcast_shapes(np.shape(mean), np.shape(variance)))
        for weight, scale in zip(*mixture(), strict=True):
            out += weight * ndtr(mean / np.sqrt(scale**2 + variance))
        return out

    def tilted(self, mean, variance, t) -> Tilted:
        weights, scales = (part[:, None] for part in mixture())
        scale = np.sqrt(scales**2 + variance)
        u = t * mean / scale
        logs = log_ndtr(u)
        r = np.exp(-0.5 * u * u - 0.5 * LOG_2PI - logs) / scale  # the slope of each logarithm
        logs += np.log(weights)
        top = logs.max(axis=0)
        share = np.exp(logs - top)
        total = share.sum(axis=0)
        share /= total
        first = (share * r).sum(axis=0)
        return Tilted(top + np.log(total), t * first, -(share * r * u / scale).sum(axis=0) - first**2)


@functools.cache
def mixture(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Weights and scales with sigma(f) = sum w Phi(f / scale), to 1e-9.

    A logistic variable is a normal one with standard deviation 2 k, k of Kolmogorov's distribution (Andrews and Mallows
    1974). Its density vanishes so fast at both ends that the trapezoidal rule over ln k has hardly an error.
    """
    log_k = np.linspace(math.log(0.2832), math.log(2.7825), count)
    k, j = np.exp(log_k), np.arange(1, 30)[:, None]
    above = 8 * k * np.sum((-1.0) ** (j + 1) * j**2 * np.exp(-2 * j**2 * k**2), axis=0)
    a = (2 * j - 1) ** 2 * math.pi**2 / 8
    below = math.sqrt(2 * math.pi) * np.sum(np.exp(-a / k**2) * (2 * a / k**4 - 1 / k**2), axis=0)
    weights = k * np.where(k > 0.8, above, below)
    return weights / weights.sum(), 2 * k
