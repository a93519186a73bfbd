"""Variational Gaussian posterior for more than two classes, and its lower bound on the evidence."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer.inference.anderson import AndersonMixing
from mercer.inference.latent import LatentCovariance
from mercer.inference.softmax.expectation import MIN_SITE, ExpectedLogSoftmax
from mercer.inference.softmax.factor import SoftmaxModel
from mercer.inference.softmax.laplace import softmax_laplace
from mercer.inference.softmax.newton import NewtonAscent
from mercer.inference.softmax.posterior import SoftmaxApproximation

NEWTON_STEPS = 6  # in a round
MIN_STEP = 1e-3
MAX_LOSS = 0.02  # of a round, relative to the bound: fixed point and maximum are not quite the same
MAX_DISTANCE = 0.5  # of the sites from their fixed point, above which the iteration has not converged
MAX_IDLE_ROUNDS = 3  # in a row that gain little: the fixed point is elsewhere, and its bound no better
MAX_FLOOR_SHARE = 0.05  # MIN_SITE relative to the prior precision, above which sites cannot be as small as they should
# With more rows, the posterior of one row in SUBSET_STRIDE is found first, to start from.
MAX_DIRECT_ROWS, SUBSET_STRIDE = 150, 3


class StoppingRule(NamedTuple):
    """The iteration ends when a round gains little and sites are near their fixed point."""

    min_gain: float  # relative to the bound
    max_distance: float  # mean over rows of the sum over sites of |relative change|, weighted by their information
    max_rounds: int


FINE_RULE = StoppingRule(5e-4, 0.02, 60)
COARSE_RULE = StoppingRule(2e-3, 0.1, 30)  # while parameters are learned
MIN_MANY_ROWS, MANY_ROWS_RULE = 1000, StoppingRule(1e-3, 0.05, 30)  # where FINE_RULE would take minutes


def softmax_variational(
    Ks: Sequence[LatentCovariance], labels: np.ndarray, start: Any = None, gradient: bool = True,
    classes: int | None = None, rule: StoppingRule | None = None,
) -> SoftmaxApproximation | None:  # fmt: skip
    """A lower bound on the evidence from a Gaussian q(f) = N(m, (K^-1 + W(s))^-1), s any positive numbers.

    ln Z >= E ln p(labels | f) - KL(q || prior) = E ln p(labels | f) - 1/2 (a^T m + ln |I + K W| - tr(W Sigma)), the
    expectation by quasi-Monte Carlo over the C functions of each row (`ExpectedLogSoftmax`).

    The optimal covariance has the precision K^-1 + H, H = E(diag(pi) - pi pi^T) (Opper and Archambeau 2009). A W(s)
    with the direction E pi and the trace of H keeps the cost at O(C n^3), and is H itself for two classes. At any s the
    bound is maximised over m, by Newton's method as in Laplace's approximation; then s moves towards where W(s) and H
    agree, a fixed point, with Anderson mixing. The result is the best bound found. 2 C n^3 flops a round.

    The iteration starts at ``start``; otherwise at Laplace's approximation if there are few rows, and at the posterior
    of a third of the rows, found in the same way, if there are many. (With many rows and wide priors, Laplace's mode is
    so far from the mean, and its variance so small, that dozens of rounds do not correct it.)

    Gradient: d ln Z = 1/2 tr((a a^T - R) dK), which is the derivative at a fixed q except for 1/2 tr((W - H) dSigma),
    and neglects how s depends on K. W = H for two classes; for more the relative error is about a hundredth. The exact
    gradient is expensive: diagonal blocks of Sigma (W - H) Sigma take 8 C n^3 flops, and s, being a fixed point and not
    a maximum, has an adjoint equation with such a product in every iteration. Learning maximises Laplace's evidence
    instead.
    """
    model = SoftmaxModel(Ks, labels, classes)
    rule = rule or (MANY_ROWS_RULE if model.n > MIN_MANY_ROWS else COARSE_RULE if gradient else FINE_RULE)
    uniform = np.full_like(model.targets, 1 / model.classes)
    if start is not None and start.a.shape == uniform.shape:
        a, sites = start.a, start.sites
    else:
        start, (a, sites) = None, _start(model)
    workspace = model.workspace(start)
    at = functools.partial(_Round.at, model, workspace=workspace)
    here: _Round | None = at(sites, a)
    if here is None or here.value < -model.n * math.log(model.classes):
        here = at(uniform, np.zeros_like(uniform))  # the start failed, or is worse than uniform probabilities
    if here is None:
        return None
    best: _Round = here
    last: _Round | None = here
    mixing, step, rounds, idle, settled = AndersonMixing(), 1.0, 0, 0, False
    while rounds < rule.max_rounds and not settled:
        scale = max(1.0, abs(best.value))
        logs = mixing.next(np.log(here.sites), here.change, here.information)
        there = at(np.exp(np.clip(logs, math.log(MIN_SITE), 0.0)), here.optimum.a)
        rounds += 1
        while (there is None or there.value < best.value - MAX_LOSS * scale) and step >= MIN_STEP:
            # Without mixing, halved until the bound rises.
            step /= 2
            mixing, sites = AndersonMixing(), (1 - step) * here.sites + step * here.optimum.sites
            there = at(sites, here.optimum.a)
            rounds += 1
        last = there
        if there is None or step < MIN_STEP:
            break
        idle = idle + 1 if there.value - best.value < rule.min_gain * scale else 0
        settled = idle > 0 and (there.distance < rule.max_distance or idle == MAX_IDLE_ROUNDS)
        best = max(best, there, key=lambda one: one.value)
        step, here = min(1.0, 2 * step), there
    factor = None
    if gradient:
        factor = best.optimum.factor if best is last else model.factor(best.sites, workspace)
    floored = max(float(K.diagonal.max(initial=0.0)) for K in Ks) * MIN_SITE > MAX_FLOOR_SHARE
    return SoftmaxApproximation(
        best.value, best.optimum.a, best.optimum.f, best.sites, model, factor, workspace, rounds,
        settled and best.distance < MAX_DISTANCE and not floored,
    )  # fmt: skip


def _start(model: SoftmaxModel) -> tuple[np.ndarray, np.ndarray]:
    """Weights and sites to start from."""
    n, labels, C = model.n, model.labels, model.classes
    a, sites = np.zeros((C, n)), np.full((C, n), 1 / C)
    if n <= max(MAX_DIRECT_ROWS, SUBSET_STRIDE * C):
        found = softmax_laplace(model.Ks, labels, gradient=False, classes=C)
        return (a, sites) if found is None else (found.a, np.maximum(found.sites, MIN_SITE))
    shuffled = np.random.default_rng(0).permutation(n)
    rows = np.sort(shuffled[np.argsort(labels[shuffled], kind="stable")][::SUBSET_STRIDE])  # stratified by class
    rest = np.setdiff1d(np.arange(n), rows)
    subset = [K.part(rows) for K in model.Ks]
    found = softmax_variational(subset, labels[rows], gradient=False, classes=C, rule=COARSE_RULE)
    if found is not None:
        # The other rows have the means that the weights predict, and the sites that belong to their predictions.
        across = [K.across(rest, rows) for K in model.Ks]
        means, V = found.moments_across(across, np.stack([K.own_variance(rest) for K in model.Ks], axis=1))
        a[:, rows], sites[:, rows] = found.a, found.sites
        sites[:, rest] = ExpectedLogSoftmax(labels[rest], V)(means.T)[2]
    return a, sites


@dataclasses.dataclass(eq=False)
class _Round:
    """The bound at given sites, maximised over m, and the change of the sites towards their fixed point."""

    value: float
    sites: np.ndarray
    optimum: NewtonAscent
    change: np.ndarray  # of the logarithms of the sites
    information: np.ndarray  # of a site relative to the prior, at most one
    distance: float  # as in `StoppingRule`

    @classmethod
    def at(cls, model: SoftmaxModel, sites: np.ndarray, a: np.ndarray, workspace: np.ndarray) -> "_Round | None":
        """Start from m = K a. None if a factorisation fails."""
        factor = model.factor(sites, workspace)
        if not factor.positive:
            return None
        V = factor.row_covariances()
        expectation = ExpectedLogSoftmax(model.labels, V)
        optimum = NewtonAscent(model, workspace, factor, expectation, NEWTON_STEPS).start_at(a)
        if not optimum.maximise():
            return None
        s = sites.T
        trace = np.einsum("icc,ic->", V, s) - float((np.einsum("icd,ic,id->i", V, s, s) / s.sum(axis=1)).sum())
        value = optimum.psi - 0.5 * (factor.log_det - trace)
        if not value <= 0:  # NaN, or a probability above one: rounding
            return None
        change = np.log(optimum.sites) - np.log(sites)
        p = optimum.pi.T
        v = (
            np.einsum("icc->ic", V) - 2 * np.einsum("icd,id->ic", V, p) + np.einsum("icd,ic,id->i", V, p, p)[:, None]
        ).T
        information = np.minimum(v * sites, 1.0)
        # Damp the change of sites that depend steeply on their own variance.
        top = np.sort(optimum.f, axis=0)
        gap = np.where(optimum.f == top[-1], top[-1] - top[-2], top[-1] - optimum.f)
        steepness = 0.25 * information * np.minimum(v, gap)
        distance = float(np.abs(change * information).sum(axis=0).mean())
        return cls(value, sites, optimum, change / (1 + steepness), information, distance)
