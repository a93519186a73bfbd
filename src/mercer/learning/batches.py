"""Stochastic variational inference with centres: parameters from batches of the rows, and the posterior of all.

Whitened values v of C functions at M centres, and the coefficients beta of the columns of the mean, have
q = N(u, Lambda^-1) (Hensman, Fusi and Lawrence 2013). With w_i = L^-1 k(Z, x_i), extended by h_i, a row's function has
mean w_i^T u and variance k_ii - w_i^T w_i + w_i^T Lambda^-1 w_i, and the bound is the sum of E ln p(y_i | f_i) less the
divergence of q from the prior. A natural gradient of rate r moves Lambda towards prior precision + sum_i s_i w_i w_i^T
and Lambda u towards sum_i (g_i + s_i f_i) w_i, with g_i the derivative of E ln p in the mean and -s_i / 2 that in the
variance (Salimbeni, Eleftheriadis and Hensman 2018); for Gaussian noise a whole step from all rows is exact.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.coordinates import to_free
from mercer.core.inputs import Inputs, count_rows, take_rows
from mercer.gp.likelihood import Likelihood
from mercer.gp.likelihoods import Target, TargetLikelihood
from mercer.gp.noise import Noise
from mercer.inference.softmax.expectation import independent_sites
from mercer.kernels.base import Kernel
from mercer.kernels.cross import Cross, CrossAt
from mercer.learning.climb import Step
from mercer.learning.objective import LogDensity
from mercer.learning.progress import Progress
from mercer.learning.state import Journal
from mercer.linalg.cholesky import Cholesky, attempt
from mercer.linalg.jitter import FIXED_JITTER
from mercer.solvers.minibatch import Minibatch

NATURAL_RATE = 0.2  # of a batch; the first ones average
ADAM_RATE, LAST_SHARE = 0.05, 0.05  # in logarithms of parameters, and what is left of it at the end
BETAS, ADAM_EPSILON = (0.9, 0.99), 1e-8  # of Adam: decay of its averages, and the least root of the second
MIN_START_PRECISION = 1e-8  # of a weight whose prior is flat, where learning starts
PASSES, PASS_TOLERANCE = 30, 1e-5  # of all rows at the end; the gain, relative to the number of rows, that ends them
MIN_RATE = 1e-3
MAX_MOVE = 8.0  # how far a logarithm may move from where it started


class ExpectedLikelihood(NamedTuple):
    """Of some rows: the sum of E ln p(y | f), its derivatives g in the means (C, b), -2 those in the variances s
    (C, b), and its derivatives in the parameters of the likelihood (k,), and in white noise that counts as noise."""

    value: float
    first: np.ndarray
    curvature: np.ndarray
    slope: np.ndarray
    of_white: float = 0.0


class Sites(abc.ABC):
    """What is measured at all rows, ``functions`` C of a row, with the likelihood's parameters at ``start``."""

    functions = 1

    @abc.abstractmethod
    def __call__(
        self, rows: np.ndarray, mean: np.ndarray, variance: np.ndarray, white: float, free: np.ndarray
    ) -> ExpectedLikelihood:
        """Of ``rows`` whose functions have these moments (C, b), without the kernel's ``white`` noise."""


@dataclasses.dataclass(frozen=True, eq=False)
class LabelsOfTwo(Sites):
    codes: np.ndarray
    likelihood: Likelihood

    def __call__(
        self, rows: np.ndarray, mean: np.ndarray, variance: np.ndarray, white: float, free: np.ndarray
    ) -> ExpectedLikelihood:
        found = self.likelihood.expected(mean[0], variance[0] + white, 2.0 * self.codes[rows] - 1)
        return ExpectedLikelihood(float(found.value.sum()), found.in_mean[None], -2 * found.in_variance[None], free)


@dataclasses.dataclass(frozen=True, eq=False)
class LabelsOfMore(Sites):
    codes: np.ndarray
    functions: int

    def __call__(
        self, rows: np.ndarray, mean: np.ndarray, variance: np.ndarray, white: float, free: np.ndarray
    ) -> ExpectedLikelihood:
        return ExpectedLikelihood(*independent_sites(mean, variance + white, self.codes[rows]), free)


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers(Sites):
    """Of any likelihood of numbers; ``at`` makes one of its free parameters."""

    target: Target
    at: Callable[[np.ndarray], TargetLikelihood]

    def __call__(
        self, rows: np.ndarray, mean: np.ndarray, variance: np.ndarray, white: float, free: np.ndarray
    ) -> ExpectedLikelihood:
        likelihood, t, v = self.at(free), self.target.take(rows), variance[0] + white
        with np.errstate(over="ignore"):
            found = likelihood.expected(mean[0], v, t)
            slope = likelihood.expected_slopes(mean[0], v, t).sum(axis=-1) if likelihood.size else free
        return ExpectedLikelihood(float(found.value.sum()), found.in_mean[None], -2 * found.in_variance[None], slope)


@dataclasses.dataclass(frozen=True, eq=False)
class Measurements(Sites):
    """With Gaussian noise, to which white noise of the kernel belongs."""

    y: np.ndarray
    noise: Noise
    X: Inputs

    def __call__(
        self, rows: np.ndarray, mean: np.ndarray, variance: np.ndarray, white: float, free: np.ndarray
    ) -> ExpectedLikelihood:
        noise, X = self.noise.take(rows), take_rows(self.X, rows)
        s, r = noise.variances(free, X) + white, self.y[rows] - mean[0]
        squares = r**2 + variance[0]
        value = -0.5 * float(np.sum(np.log(2 * math.pi * s) + squares / s))
        of_noise = 0.5 * (squares / s - 1) / s
        return ExpectedLikelihood(
            value, (r / s)[None], (1 / s)[None], noise.slope(free, X, of_noise), float(of_noise.sum())
        )


# -- the variational distribution ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Variational:
    """q of C functions in natural parameters: precisions (C, p, p) and precision times mean (C, p)."""

    precision: np.ndarray
    shift: np.ndarray
    prior: np.ndarray  # diagonal of the prior precision (p,): one, or zero where it is flat

    @classmethod
    def start(cls, C: int, prior: np.ndarray) -> "Variational":
        return cls(np.stack([np.diag(np.maximum(prior, MIN_START_PRECISION))] * C), np.zeros((C, len(prior))), prior)

    def moments(self) -> tuple[np.ndarray, np.ndarray, list[Cholesky]]:
        """Means (C, p), roots of the covariances, transposed and inverted: factors G of the precisions G G^T."""
        factors = []
        for each in self.precision:
            factor = attempt(np.asfortranarray(each.copy()), clean=True)
            assert factor is not None, "a precision is positive definite"
            factors.append(factor)
        return np.stack([f.solve(b) for f, b in zip(factors, self.shift, strict=True)]), self.precision, factors

    def towards(self, precision: np.ndarray, shift: np.ndarray, rate: float) -> "Variational":
        return dataclasses.replace(
            self, precision=(1 - rate) * self.precision + rate * precision, shift=(1 - rate) * self.shift + rate * shift
        )

    def divergence(self, means: np.ndarray, factors: Sequence[Cholesky]) -> float:
        """From the prior, in nats; of coefficients with a flat one, without its infinite constant."""
        total, counted = 0.0, self.prior > 0
        for u, G in zip(means, factors, strict=True):
            half = G.half_solve(np.asfortranarray(np.eye(len(u))))
            variances = np.einsum("ij,ij->j", half, half)
            total += 0.5 * (G.log_det() + float(self.prior @ (variances + u**2)) - counted.sum())
        return total


class CenterFeatures(NamedTuple):
    """Of a batch at one theta: the factor of the centres, (w, h) of each row (p, b), and k_ii without white noise."""

    at: CrossAt
    lower: Cholesky
    F: np.ndarray
    diagonal: np.ndarray
    white: float


def features(cross: Cross, theta: np.ndarray, H: np.ndarray) -> CenterFeatures | None:
    """None where the covariance of the centres has no factor, or is not finite."""
    at = cross.at(theta)
    with np.errstate(all="ignore"):
        K = at.core()
        # A fixed amount, since parameters must not change how many centres count.
        K[np.diag_indices_from(K)] += FIXED_JITTER * np.mean(np.diag(K))
        lower = attempt(np.asfortranarray(K), clean=True) if np.isfinite(K).all() else None
        if lower is None:
            return None
        across, white = np.empty((cross.n, cross.m)), at.white()[0]
        for tile, part in enumerate(cross.tiles):
            if not at.fill(tile, across[part]):
                return None
        diagonal = np.concatenate([at.diagonal(tile) for tile in range(len(cross.tiles))]) - white
    W = lower.half_solve_in_place(across.T)
    return CenterFeatures(at, lower, np.concatenate([W, H.T]), diagonal, white)


def pulled(found: CenterFeatures, G: np.ndarray, of_diagonal: np.ndarray) -> np.ndarray:
    """Gradient in theta from the derivatives in w (M, b) and in the diagonal (b,).

    dL/dK(Z, X) = L^-T G, and dL/dK(Z, Z) = -L^-T sym(Phi(G W^T)) L^-1, where Phi halves the diagonal of the lower
    triangle.
    """
    cross, M = found.at.cross, found.at.cross.m
    inner = np.tril(G @ found.F[:M].T)
    inner[np.diag_indices_from(inner)] *= 0.5
    inner = -0.5 * (inner + inner.T)
    across = found.lower.half_solve(np.asfortranarray(G), transposed=True).T
    right = found.lower.half_solve(np.asfortranarray(inner), transposed=True)
    core = found.lower.half_solve(np.asfortranarray(right.T), transposed=True)
    slope = found.at.pull_core(core)
    for tile, part in enumerate(cross.tiles):
        slope = slope + found.at.pull(tile, across[part]) + found.at.pull_diagonal(tile, of_diagonal[part])
    return slope - of_diagonal.sum() * found.at.white()[1]


class BatchBound:
    """The bound on some rows, with its natural gradient and its gradient in the parameters."""

    def __init__(
        self, kernel: Kernel, rows: gram.Gram, centers: Inputs, sites: Sites, H: np.ndarray | None = None
    ) -> None:
        self.rows, self.centers, self.sites = rows.of(kernel), centers, sites
        self.H = np.zeros((rows.n, 0)) if H is None else H
        self.size = len(to_free(kernel))

    def cross(self, which: np.ndarray) -> Cross:
        part = self.rows[which]
        return Cross(self.rows.kernel, part.rows, self.centers)

    def __call__(
        self, which: np.ndarray, x: np.ndarray, u: np.ndarray, factors: Sequence[Cholesky], gradient: bool = True
    ) -> "tuple[ExpectedLikelihood, np.ndarray, np.ndarray, np.ndarray | None, float] | None":
        """Statistics of the rows, the sums of their natural gradient (C, p, p) and (C, p), the gradient in x, and the
        share of their prior variance that the centres leave. None where parameters have no value."""
        found = features(self.cross(which), x[: self.size], self.H[which])
        if found is None:
            return None
        M = found.at.cross.m
        F, W = found.F, found.F[:M]
        left = np.maximum(found.diagonal - np.einsum("ij,ij->j", W, W), 0.0)
        halves = [G.half_solve(np.asfortranarray(F)) for G in factors]
        mean, variance = u @ F, np.stack([left + np.einsum("ij,ij->j", half, half) for half in halves])
        told = self.sites(which, mean, variance, found.white, x[self.size :])
        if not np.isfinite(told.value) or not np.isfinite(told.first.sum() + told.curvature.sum()):
            return None
        curvature = np.maximum(told.curvature, 0.0)
        precision = np.stack([(F * s) @ F.T for s in curvature])
        shift = (told.first + curvature * mean) @ F.T
        slope, share = None, float(left.sum() / max(found.diagonal.sum(), np.finfo(float).tiny))
        if gradient:
            G, s = np.zeros_like(W), told.curvature
            for c, factor in enumerate(factors):
                SF = factor.half_solve(halves[c], transposed=True)[:M]
                G += np.multiply.outer(u[c, :M], told.first[c]) + s[c] * (W - SF)
            slope = np.concatenate([pulled(found, G, -0.5 * s.sum(axis=0)), told.slope])
            if found.white:
                of_white = told.of_white if isinstance(self.sites, Measurements) else -0.5 * s.sum()
                slope[: self.size] += found.at.white()[1] * of_white
        return told, precision, shift, slope, share


class Trained(NamedTuple):
    """Parameters after stochastic steps, the bound on the way, the number of steps; whether they were interrupted."""

    x: np.ndarray
    q: Variational
    history: list[Step]
    steps: int
    interrupted: bool


def train(
    bound: BatchBound, solver: Minibatch, x: np.ndarray, prior: LogDensity | None, floor: np.ndarray, seed: int,
    journal: Journal, progress: Progress, flat: int = 0,
) -> Trained:  # fmt: skip
    """Adam on the parameters, natural gradients on q, batch after batch; batches are drawn anew in each epoch.

    The state after every step is the journal's, so that another search goes on from there, batch for batch.
    """
    n, C, M = bound.rows.n, bound.sites.functions, count_rows(bound.centers)
    b = min(solver.batch, n)
    per_epoch, steps = n // b, solver.steps(n, C)
    q = Variational.start(C, np.r_[np.ones(M), np.zeros(flat)])
    first, second, history, low, high = np.zeros_like(x), np.zeros_like(x), [], x - MAX_MOVE, x + MAX_MOVE
    low = np.maximum(low, floor)
    step, interrupted, order = 0, False, np.zeros(0, dtype=int)
    kept = journal.arrays("batches")
    if kept is not None:
        step, x, first, second = int(kept["step"]), kept["x"], kept["first"], kept["second"]
        q = dataclasses.replace(q, precision=kept["precision"], shift=kept["shift"])
        history = [Step(float(value), theta, b) for value, theta in zip(kept["values"], kept["thetas"], strict=True)]
    epoch = -1
    try:
        while step < steps and x.size:
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                order = np.random.default_rng([seed, epoch]).permutation(n)
            which = np.sort(order[(step % per_epoch) * b :][:b])
            u, _, factors = q.moments()
            found = bound(which, x, u, factors)
            if found is None:  # back to where it had a value, more slowly
                x, first = 0.5 * (x + history[-1].theta if history else x), np.zeros_like(first)
                step += 1
                continue
            told, precision, shift, slope, _ = found
            assert slope is not None
            share = n / b
            rate = max(NATURAL_RATE, 1 / (step + 1))
            value = share * told.value - q.divergence(u, factors) if step % 10 == 0 or step == steps - 1 else None
            q = q.towards(np.diag(q.prior) + share * precision, share * shift, rate)
            slope = share * slope
            if prior is not None:
                slope[: bound.size] += prior(x[: bound.size])[1]
            if value is not None:
                history.append(Step(value, x.copy(), b))
                progress(f"step {step + 1:,} of {steps:,}, bound {value:,.0f}")
            if step > 0:  # q knew nothing before
                first = BETAS[0] * first + (1 - BETAS[0]) * slope
                second = BETAS[1] * second + (1 - BETAS[1]) * slope**2
                move = (first / (1 - BETAS[0] ** step)) / (np.sqrt(second / (1 - BETAS[1] ** step)) + ADAM_EPSILON)
                pace = ADAM_RATE * (LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * step / steps)))
                x = np.clip(x + pace * move, low, high)
            step += 1
            journal.put("batches", {
                "step": np.array(step), "x": x, "first": first, "second": second, "precision": q.precision,
                "shift": q.shift, "values": np.array([s.value for s in history]),
                "thetas": np.array([s.theta for s in history]).reshape(len(history), len(x)),
            })  # fmt: skip
    except KeyboardInterrupt:
        interrupted = True
    journal.flush()
    return Trained(x, q, history, step, interrupted)


class Settled(NamedTuple):
    """q at fixed parameters, from passes over all rows: its bound; means and factors; mean, g and s of every
    row's function (C, n); the share of prior variance that the centres leave; passes; and whether they
    converged."""

    value: float
    q: Variational
    mean: np.ndarray
    first: np.ndarray
    curvature: np.ndarray
    variance: np.ndarray
    left: float
    passes: int
    converged: bool


def settle(bound: BatchBound, solver: Minibatch, x: np.ndarray, q: Variational, progress: Progress) -> Settled:
    """Natural gradients from all rows, each halved where the bound falls, until it rises no more."""
    n, C = bound.rows.n, bound.sites.functions
    size = max(min(solver.batch, n), 1)
    parts = [np.arange(i, min(i + size, n)) for i in range(0, n, size)]
    crosses = [bound.cross(part) for part in parts]
    kept: list[CenterFeatures] | None = None
    if 8 * n * q.shift.shape[1] <= machine.keepable():
        kept = [found for each, part in zip(crosses, parts, strict=True)
                if (found := features(each, x[: bound.size], bound.H[part])) is not None]  # fmt: skip
        if len(kept) < len(parts):
            kept = None

    def evaluate(q: Variational) -> tuple[float, np.ndarray, np.ndarray, list[np.ndarray], float]:
        u, _, factors = q.moments()
        value, left, total = -q.divergence(u, factors), 0.0, 0.0
        precision, shift = np.stack([np.diag(q.prior)] * C), np.zeros_like(q.shift)
        rows = [np.empty((C, n)) for _ in range(4)]
        for i, part in enumerate(parts):
            found = kept[i] if kept is not None else features(crosses[i], x[: bound.size], bound.H[part])
            assert found is not None, "it had a value before"
            F, W = found.F, found.F[: found.at.cross.m]
            missing = np.maximum(found.diagonal - np.einsum("ij,ij->j", W, W), 0.0)
            mean = u @ F
            variance = np.empty_like(mean)
            for c, G in enumerate(factors):
                half = G.half_solve(np.asfortranarray(F))
                variance[c] = missing + np.einsum("ij,ij->j", half, half)
            told = bound.sites(part, mean, variance, found.white, x[bound.size :])
            s = np.maximum(told.curvature, 0.0)
            value, left, total = value + told.value, left + missing.sum(), total + found.diagonal.sum()
            for c in range(C):
                precision[c] += (F * s[c]) @ F.T
            shift += (told.first + s * mean) @ F.T
            for out, own_rows in zip(rows, (mean, told.first, s, variance + found.white), strict=True):
                out[:, part] = own_rows
        return value, precision, shift, rows, float(left / max(total, np.finfo(float).tiny))

    value, precision, shift, rows, left = evaluate(q)
    rate, passes, converged = 1.0, 1, False
    while passes < PASSES:
        trial = q.towards(precision, shift, rate)
        new = evaluate(trial)
        passes += 1
        progress(f"pass {passes} over all rows, bound {new[0]:,.0f}")
        if not new[0] >= value - 1e-9 * abs(value):
            rate *= 0.5
            if rate < MIN_RATE:
                break
            continue
        gain, q = new[0] - value, trial
        value, precision, shift, rows, left = new
        rate = min(1.0, 2 * rate)
        if gain < PASS_TOLERANCE * n:
            converged = True
            break
    return Settled(float(value), q, rows[0], rows[1], rows[2], rows[3], left, passes, converged)
