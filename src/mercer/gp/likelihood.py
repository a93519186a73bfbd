"""Likelihoods of two classes t in {-1, +1}, given the value f of a latent function: the logistic and the probit link.

Both are log-concave in f, so posteriors are unimodal and expectation propagation keeps its site variances positive.
Integrals over a Gaussian f are in closed form for the probit; otherwise they are done by composite Gauss-Legendre
quadrature, accurate to about fourteen digits for any mean and variance, in the tails too.
"""

import abc
import functools
import itertools
import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import expit, log_expit, log_ndtr, ndtr

from mercer.core.parameters import Parametrized
from mercer.distributions import LOG_2PI

# Values of f at which the range of integration is cut, and the number of nodes of each panel. A logistic sigmoid bends
# between the inner edges; beyond the outer ones it is 0 or 1 to rounding, and its logarithm is linear.
PANEL_EDGES, PANEL_NODES = (-36.0, -6.0, 6.0, 36.0), (48, 44, 48, 44, 48)
HALF_WIDTH = 9.0  # of the range of integration, in standard deviations
BATCH_ROWS = 10_000  # integrated at a time


class Derivatives(NamedTuple):
    """ln p(t | f) and its first three derivatives in f, each (n,)."""

    value: np.ndarray
    first: np.ndarray
    second: np.ndarray
    third: np.ndarray


class Tilted(NamedTuple):
    """ln Z, Z the integral of p(t | f) N(f | mean, variance), and its first two derivatives in the mean."""

    log_z: np.ndarray
    first: np.ndarray
    second: np.ndarray


class Expected(NamedTuple):
    """E ln p(t | f) under N(f | mean, variance), and its derivatives in mean and variance."""

    value: np.ndarray
    in_mean: np.ndarray
    in_variance: np.ndarray


class LatentLikelihood(Parametrized):
    """p(t | f), independent from row to row: what inference with Gaussian sites asks for. A part of `Model`.

    ``t`` is one label for each row, or a `mercer.gp.likelihoods.Target`.
    """

    log_concave: ClassVar[bool] = True
    bounded: ClassVar[bool] = True  # whether its derivatives are: otherwise iterations must not start at the prior

    @abc.abstractmethod
    def derivatives(self, f: np.ndarray, t: Any) -> Derivatives:
        """ln p(t | f) and its derivatives in f, elementwise."""

    @abc.abstractmethod
    def tilted(self, mean: np.ndarray, variance: np.ndarray, t: Any) -> Tilted:
        """The integral of p(t | f) N(f | mean, variance), and its derivatives in the mean."""

    @abc.abstractmethod
    def expected(self, mean: np.ndarray, variance: np.ndarray, t: Any) -> Expected:
        """E ln p(t | f) under N(f | mean, variance)."""

    # -- learned parameters, p of them, in the optimiser's coordinates ---------------------------------------------

    @property
    def size(self) -> int:
        """Number p of learned parameters."""
        return 0

    def slopes(self, f: np.ndarray, t: Any) -> np.ndarray:
        """Derivatives of ln p(t | f), and of its first two derivatives in f, with respect to them: (p, 3, n)."""
        return np.zeros((0, 3, len(f)))

    def tilted_slopes(self, mean: np.ndarray, variance: np.ndarray, t: Any) -> np.ndarray:
        """Derivatives of the logarithm of the integral in `tilted`: (p, n)."""
        return np.zeros((0, len(mean)))

    def expected_slopes(self, mean: np.ndarray, variance: np.ndarray, t: Any) -> np.ndarray:
        """Derivatives of the expectation in `expected`: (p, n)."""
        return np.zeros((0, len(mean)))


class Likelihood(LatentLikelihood):
    """Likelihood of two classes."""

    @abc.abstractmethod
    def closed_form(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """`probability` without quadrature, exact or approximate."""

    def tilted(self, mean: np.ndarray, variance: np.ndarray, t: np.ndarray) -> Tilted:
        z, log_weights = _nodes(mean, variance, t)
        found = self.derivatives(_at(mean, variance, z), t[:, None])
        logs = found.value + log_weights
        top = logs.max(axis=1, keepdims=True)
        weights = np.exp(logs - top)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        # Z' / Z and Z'' / Z as means of p' / p and p'' / p: no division by a small variance.
        first = (weights * found.first).sum(axis=1)
        second = (weights * (found.second + (found.first - first[:, None]) ** 2)).sum(axis=1)
        return Tilted((top + np.log(total))[:, 0], first, second)

    def expected(self, mean: np.ndarray, variance: np.ndarray, t: np.ndarray) -> Expected:
        z, log_weights = _nodes(mean, variance, np.zeros_like(mean))
        found = self.derivatives(_at(mean, variance, z), t[:, None])
        weights = np.exp(log_weights)
        value, first, second = ((weights * part).sum(axis=1) for part in found[:3])
        return Expected(value, first, 0.5 * second)

    def probability(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """p(t = +1) for f ~ N(mean, variance) (PRML 6.76), elementwise for arrays of any shape."""
        mean, variance = np.broadcast_arrays(np.asarray(mean, dtype=float), variance)
        m, v = mean.ravel(), variance.ravel()
        # Integrate the less probable class: its digits would be lost in a difference from one.
        sign = np.where(m > 0, -1.0, 1.0)
        out = np.empty(len(m))
        for i in range(0, len(m), BATCH_ROWS):
            part = slice(i, i + BATCH_ROWS)
            out[part] = np.exp(self.tilted(m[part], v[part], sign[part]).log_z)
        out = np.minimum(out, 0.5)
        return np.where(sign > 0, out, 1.0 - out).reshape(mean.shape)


class Logistic(Likelihood):
    """p(t | f) = 1 / (1 + exp(-t f)) (PRML 6.73)."""

    def derivatives(self, f: np.ndarray, t: np.ndarray) -> Derivatives:
        up, down = expit(f), expit(-f)
        slope = up * down
        return Derivatives(log_expit(t * f), np.where(t > 0, down, -up), -slope, slope * (up - down))

    def closed_form(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """sigma(mean / sqrt(1 + pi variance / 8)), MacKay's approximation of the integral (PRML 4.153)."""
        return expit(mean / np.sqrt(1 + math.pi * variance / 8))


class Probit(Likelihood):
    """p(t | f) = Phi(t f)."""

    def derivatives(self, f: np.ndarray, t: np.ndarray) -> Derivatives:
        z = t * f
        value = log_ndtr(z)
        r = np.exp(-0.5 * z * z - 0.5 * LOG_2PI - value)
        return Derivatives(value, t * r, -r * (r + z), t * r * ((2 * r + z) * (r + z) - 1))

    def tilted(self, mean: np.ndarray, variance: np.ndarray, t: np.ndarray) -> Tilted:
        scale = np.sqrt(1 + variance)
        value, first, second, _ = self.derivatives(mean / scale, t)
        return Tilted(value, first / scale, second / scale**2)

    def probability(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return ndtr(mean / np.sqrt(1 + variance))

    closed_form = probability


LINKS: dict[str, type[Likelihood]] = {"logistic": Logistic, "probit": Probit}


# -- quadrature ------------------------------------------------------------------------------------------------------


@functools.cache
def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(count)
    return (x + 1) / 2, w / 2


def _nodes(mean: np.ndarray, variance: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes z (n, nodes) and the logarithms of their weights times N(z | 0, 1).

    Panels end where f = mean + deviation z is one of PANEL_EDGES. A factor p(t | f) shifts the mass of a Gaussian
    towards t by up to its variance, until f reaches zero; the range of integration shifts with it.
    """
    deviation = np.sqrt(variance)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        shift = np.where(deviation > 0, np.minimum(deviation, np.maximum(-t * mean, 0.0) / deviation), 0.0)
        cuts = [np.nan_to_num((edge - mean) / deviation, nan=0.0, posinf=1e300, neginf=-1e300) for edge in PANEL_EDGES]
    low, high = t * shift - HALF_WIDTH, t * shift + HALF_WIDTH
    edges = [low, *(np.clip(cut, low, high) for cut in cuts), high]
    panels, weights = [], []
    for (left, right), count in zip(itertools.pairwise(edges), PANEL_NODES, strict=True):
        x, w = gauss_legendre(count)
        panels.append(left[:, None] + (right - left)[:, None] * x)
        weights.append((right - left)[:, None] * w)
    z = np.concatenate(panels, axis=1)
    with np.errstate(divide="ignore"):
        return z, np.log(np.concatenate(weights, axis=1)) - 0.5 * z**2 - 0.5 * LOG_2PI


def _at(mean: np.ndarray, variance: np.ndarray, z: np.ndarray) -> np.ndarray:
    return mean[:, None] + np.sqrt(variance)[:, None] * z


# -- the logistic link as a mixture of probits -----------------------------------------------------------------------


def with_fast_integrals(likelihood: Likelihood) -> Likelihood:
    """The same likelihood with faster integrals, accurate to 1e-9 in absolute terms."""
    return ProbitMixture() if type(likelihood) is Logistic else likelihood


class ProbitMixture(Logistic):
    """The logistic link with integrals in closed form, through sigma(f) = sum w Phi(f / scale).

    Many times faster than quadrature. The error is 1e-9 in absolute terms, so smaller probabilities in the tails have
    no correct digits.
    """

    def probability(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        out = np.zeros(np.broadcast_shapes(np.shape(mean), np.shape(variance)))
        for weight, scale in zip(*probit_mixture(), strict=True):
            out += weight * ndtr(mean / np.sqrt(scale**2 + variance))
        return out

    def tilted(self, mean: np.ndarray, variance: np.ndarray, t: np.ndarray) -> Tilted:
        weights, scales = (part[:, None] for part in probit_mixture())
        scale = np.sqrt(scales**2 + variance)
        u = t * mean / scale
        logs = log_ndtr(u)
        r = np.exp(-0.5 * u * u - 0.5 * LOG_2PI - logs) / scale  # derivative of the logarithm of each component
        logs += np.log(weights)
        top = logs.max(axis=0)
        share = np.exp(logs - top)
        total = share.sum(axis=0)
        share /= total
        first = (share * r).sum(axis=0)
        return Tilted(top + np.log(total), t * first, -(share * r * u / scale).sum(axis=0) - first**2)


@functools.cache
def probit_mixture(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Weights and scales with sigma(f) = sum w Phi(f / scale), to 1e-9.

    A logistic variable is a normal one whose standard deviation is 2 k, k from Kolmogorov's distribution (Andrews and
    Mallows 1974). Its density vanishes so fast at both ends that the trapezoidal rule over ln k has hardly an error.
    """
    log_k = np.linspace(math.log(0.2832), math.log(2.7825), count)
    k, j = np.exp(log_k), np.arange(1, 30)[:, None]
    # Two series for the density: one converges for large k, the other for small.
    large = 8 * k * np.sum((-1.0) ** (j + 1) * j**2 * np.exp(-2 * j**2 * k**2), axis=0)
    a = (2 * j - 1) ** 2 * math.pi**2 / 8
    small = math.sqrt(2 * math.pi) * np.sum(np.exp(-a / k**2) * (2 * a / k**4 - 1 / k**2), axis=0)
    weights = k * np.where(k > 0.8, large, small)
    return weights / weights.sum(), 2 * k
