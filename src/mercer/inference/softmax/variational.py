"""A lower bound on the evidence for more than two classes."""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from mercer.inference.anderson import Mixing
from mercer.inference.sites import Covariance
from mercer.inference.softmax.expectation import SMALLEST, Expectation
from mercer.inference.softmax.factor import Joint, Processes
from mercer.inference.softmax.laplace import softmax_laplace
from mercer.inference.softmax.newton import Climb
from mercer.inference.softmax.posterior import SoftmaxApproximation, SoftmaxPosterior, room_for

STEPS = 6  # of Newton's method in a round
SHORTEST = 1e-3  # share of a step
SLACK = 0.02  # of the bound: what it may lose in a round, as fixed point and maximum are not quite the same
GOOD_ENOUGH = 0.5  # how far sites may be from their fixed point where no round gains any more
AUDIBLE = 0.05  # of a row's prior variance: where the smallest site says more, sites are not what they should be
IN_VAIN = 3  # rounds in a row that gain little: the fixed point is elsewhere, and its bound no better
FEW, ONE_IN = 150, 3  # rows: of more, a third is done first, and tells where to begin


class Effort(NamedTuple):
    """How well a variational posterior is sought: until a round gains little, and sites are near their fixed point."""

    gain: float  # relative to the bound
    off: float  # of the sites of a row, relative to themselves and by how much they say, on average
    rounds: int


ON_THE_WAY = Effort(2e-3, 0.1, 30)  # while parameters are learned
FULL = Effort(5e-4, 0.02, 60)
MANY, OF_MANY = 1000, Effort(1e-3, 0.05, 30)  # rows beyond which a full effort would take minutes, and what they get


def softmax_variational(
    Ks, labels, start: SoftmaxApproximation | None = None, gradient: bool = True, classes: int | None = None,
    effort: Effort | None = None,
):  # fmt: skip
    """A lower bound on the evidence from a Gaussian q(f) = N(m, (K^-1 + W(s))^-1), s any positive numbers.

    ln Z >= E ln p(labels | f) - KL(q || prior) = E ln p(labels | f) - 1/2 (a^T m + ln |I + K W| - tr(W Sigma)), the
    expectation by quasi-Monte Carlo over the C functions of each row (`Expectation`).

    The best covariance has the precision K^-1 + H, H = E(diag(pi) - pi pi^T) (Opper and Archambeau 2009). A W(s) that
    has E pi for its direction and the trace of H keeps the cost at O(C n^3), and is H itself for two classes. At
    any s the bound is raised over m, a problem like that of Laplace; then s goes towards where W(s) and H agree, a
    fixed point, the way there accelerated. The best bound met is the answer. 2 C n^3 flops a round.

    It begins at ``start``; else many rows begin at the posterior of a third of them, found in the same way, and few at
    Laplace's, whose sites are near. (Of many rows with wide priors, Laplace's mode is so far from the mean, and so
    sure, that dozens of rounds do not mend it.)

    Gradient: d ln Z = 1/2 tr((a a^T - R) dK), which is the derivative at a fixed q but for 1/2 tr((W - H) dSigma), and
    leaves out how s answers. W = H for two classes; for more it is right to about a hundredth. The exact one is not
    cheap: diagonal blocks of Sigma (W - H) Sigma take 8 C n^3 flops, and s, being a fixed point and not a maximum, has
    an adjoint equation with such a product in every iteration. Learning climbs Laplace's evidence instead.
    """
    processes = Processes(Ks, labels, classes)
    effort = effort or (OF_MANY if processes.n > MANY else ON_THE_WAY if gradient else FULL)
    even = np.full_like(processes.targets, 1 / processes.classes)
    if start is not None and start.a.shape == even.shape:
        a, sites = start.a, start.sites
    else:
        start, (a, sites) = None, _beginning(processes)
    room = room_for(processes, start)
    at = functools.partial(_Round.at, processes, room=room)
    here: _Round | None = at(sites, a)
    if here is None or here.value < -processes.n * math.log(processes.classes):
        here = at(even, np.zeros_like(even))  # no start, or one worse than to know nothing
    if here is None:
        return None
    best: _Round = here
    last: _Round | None = here
    mixing, share, rounds, idle, settled = Mixing(), 1.0, 0, 0, False
    while rounds < effort.rounds and not settled:
        scale = max(1.0, abs(best.value))
        logs = mixing.next(np.log(here.sites), here.change, 1.0, here.unit)
        there = at(np.exp(np.clip(logs, math.log(SMALLEST), 0.0)), here.climb.a)
        rounds += 1
        while (there is None or there.value < best.value - SLACK * scale) and share >= SHORTEST:
            # The plain step, shorter and shorter: along it the bound rises.
            share /= 2
            mixing, sites = Mixing(), (1 - share) * here.sites + share * here.climb.sites
            there = at(sites, here.climb.a)
            rounds += 1
        last = there
        if there is None or share < SHORTEST:
            break
        idle = idle + 1 if there.value - best.value < effort.gain * scale else 0
        settled = idle > 0 and (there.off < effort.off or idle == IN_VAIN)
        best = max(best, there, key=lambda one: one.value)
        share, here = min(1.0, 2 * share), there
    climb = best.climb
    if gradient and best is not last:
        climb.factor = Joint(processes, best.sites, room)
    audible = max(float(K.diagonal.max(initial=0.0)) for K in Ks) * SMALLEST > AUDIBLE
    return SoftmaxApproximation(
        best.value, climb.a, climb.f, best.sites, processes, climb.factor if gradient else None, room, rounds,
        settled and best.off < GOOD_ENOUGH and not audible,
    )  # fmt: skip


def _beginning(processes: Processes):
    """Weights and sites to begin with."""
    n, labels, C = processes.n, processes.labels, processes.classes
    a, sites = np.zeros((C, n)), np.full((C, n), 1 / C)
    if n <= max(FEW, ONE_IN * C):
        found = softmax_laplace(processes.Ks, labels, gradient=False, classes=C)
        return (a, sites) if found is None else (found.a, np.maximum(found.sites, SMALLEST))
    shuffled = np.random.default_rng(0).permutation(n)
    rows = np.sort(shuffled[np.argsort(labels[shuffled], kind="stable")][::ONE_IN])  # each class has its share
    rest = np.setdiff1d(np.arange(n), rows)
    found = softmax_variational([Covariance(K.rows(rows)[:, rows]) for K in processes.Ks], labels[rows], None, False, C,
                        ON_THE_WAY)  # fmt: skip
    if found is not None:
        # Means are predicted by the same weights, and the sites of a row are those that its prediction asks for.
        posterior = SoftmaxPosterior.of(found, [None] * len(processes.Ks), None)
        across = [K.rows(rest)[:, rows] for K in processes.Ks]
        means, V = posterior.moments_across(across, np.stack([K.diagonal[rest] for K in processes.Ks], axis=1))
        a[:, rows], sites[:, rows] = found.a, found.sites
        sites[:, rest] = Expectation(labels[rest], V)(means.T)[2]
    return a, sites


@dataclasses.dataclass(eq=False)
class _Round:
    """The bound at some sites, raised over m, and which sites go with that."""

    value: float
    sites: np.ndarray
    climb: Climb
    change: np.ndarray  # of the logarithms of the sites
    unit: np.ndarray  # how much a site says beside the prior
    off: float  # sum over the classes of a row of |change| unit, on average

    @classmethod
    def at(cls, processes, sites, a, room) -> "_Round | None":
        """From m = K a; None where a factorisation fails."""
        factor = Joint(processes, sites, room)
        if not factor.positive:
            return None
        V = factor.contrasts()
        climb = Climb(processes, room, factor, Expectation(processes.labels, V), STEPS).stand(a)
        if not climb.up():
            return None
        s = sites.T
        agreement = np.einsum("icc,ic->", V, s) - float((np.einsum("icd,ic,id->i", V, s, s) / s.sum(axis=1)).sum())
        value = climb.height - 0.5 * (factor.log_det - agreement)
        if not value <= 0:  # no probability of labels is above one: lost in rounding
            return None
        change = np.log(climb.sites) - np.log(sites)
        p = climb.pi.T
        v = (
            np.einsum("icc->ic", V) - 2 * np.einsum("icd,id->ic", V, p) + np.einsum("icd,ic,id->i", V, p, p)[:, None]
        ).T
        unit = np.minimum(v * sites, 1.0)
        top = np.sort(climb.f, axis=0)
        gap = np.where(climb.f == top[-1], top[-1] - top[-2], top[-1] - climb.f)
        steep = 0.25 * unit * np.minimum(v, gap)
        return cls(value, sites, climb, change / (1 + steep), unit, float(np.abs(change * unit).sum(axis=0).mean()))
