"""Several classes at once, in the softmax model of `joint`: Laplace's approximation, and a lower bound."""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from mercer.inference.joint import Climb, Joint, Processes, SoftmaxApproximation, room_for
from mercer.inference.latent import Mixing
from mercer.inference.softmax_posterior import SMALLEST, Expectation

GOOD_ENOUGH = 0.05
SETTLED = 1e-3  # of the bound: what it may still change in the last rounds
SHORTEST = 1e-3  # share of a step
SLACK = 0.02  # of the bound: what it may lose in a round, as fixed point and maximum are not quite the same


class Effort(NamedTuple):
    """How well a variational posterior is sought."""

    enough: float  # how far a site may be from what it should be, relative to itself
    rounds: int
    settled_in: int  # rounds
    steps: int  # of Newton's method in a round


ON_THE_WAY = Effort(1e-2, 25, 3, 6)  # while parameters are learned
FULL = Effort(3e-4, 60, 6, 12)
MANY, OF_MANY = 1000, Effort(2e-2, 12, 2, 3)  # rows beyond which a full effort would take minutes, and what they get


def laplace(Ks, labels, start: SoftmaxApproximation | None = None, gradient: bool = True, classes: int | None = None):
    """A Gaussian at the mode of Psi(f) = ln p(labels | f) - f^T K^-1 f / 2 (PRML 6.80-6.90; RW06 3.44).

    The evidence is ln Z = Psi(f^) - 1/2 ln |I + K W(f^)|. ``Ks``: one covariance, or one a class; ``labels`` (n,) in
    0..C-1; C is ``classes``, where not every one has a row here. It begins at the mode of ``start``, whose matrices it
    takes over. None where a K is not positive semidefinite.

    Gradient. With s = d ln Z / df at the mode, which enters through W alone, d ln Z = 1/2 tr((a a^T - R) dK) + s^T df
    and df = (I + K W)^-1 dK a, so s^T df = u^T dK a with u = (I + W K)^-1 s = s - R K s. And
    -2 s_c = sum_de Sigma_de dW_de/df_c = pi_c (Sigma_cc - sum_d pi_d Sigma_dd - 2 (Sigma pi)_c + 2 pi^T Sigma pi), the
    C x C blocks of Sigma = (K^-1 + W)^-1 on each row; put in E_c and M, all but the diagonals of R_cc cancels:
    s_c = (pi_c sum_d q_d - q_c) / 2, q_c = 1 - diag(R_cc) / pi_c. 2 C n^3 flops.
    """
    processes = Processes(Ks, labels, classes)
    climb = Climb(processes, room_for(processes, start))
    found = climb.from_the_better(start)
    if not found:
        return None
    factor = Joint(processes, climb.pi, climb.room)
    if not factor.positive:
        return None
    value = climb.height - 0.5 * factor.log_det
    result = SoftmaxApproximation(
        value, climb.a, climb.f, climb.pi, processes, factor, climb.room, climb.steps, climb.converged
    )
    if gradient:
        q = factor.shares(blocks=True)
        s = 0.5 * (climb.pi * q.sum(axis=0) - q)
        result.u = s - factor.times(processes.times(s))
    return result


def variational(
    Ks, labels, start: SoftmaxApproximation | None = None, gradient: bool = True, classes: int | None = None
):
    """A lower bound on the evidence from a Gaussian q(f) = N(m, (K^-1 + W(s))^-1), s any positive numbers.

    ln Z >= E ln p(labels | f) - KL(q || prior) = E ln p(labels | f) - 1/2 (a^T m + ln |I + K W| - tr(W Sigma)), the
    expectation by quasi-Monte Carlo over the C functions of each row (`Expectation`).

    The best covariance has the precision K^-1 + H, H = E(diag(pi) - pi pi^T) (Opper and Archambeau 2009). A W(s) that
    has E pi for its direction and the trace of H keeps the cost at O(C n^3), and is H itself for two classes. At
    any s the bound is maximised over m, a problem like that of Laplace; then s goes to where W(s) and H agree, a fixed
    point, the way there accelerated. What is left of the slope through s is small and not followed:
    d ln Z = 1/2 tr((a a^T - R) dK). 2 C n^3 flops a round.
    """
    processes = Processes(Ks, labels, classes)
    room = room_for(processes, start)
    effort = OF_MANY if processes.n > MANY else ON_THE_WAY if gradient else FULL
    at = functools.partial(_Round.at, processes, room=room, effort=effort)
    even = np.full_like(processes.targets, 1 / processes.classes)
    here = None
    if start is None or start.a.shape != even.shape:
        # Laplace's sites are near, as for expectation propagation, and save half of the rounds.
        start = laplace(Ks, labels, gradient=False, classes=classes)
    if start is not None:
        here = at(start.sites, start.a)
    if here is None or here.value < -processes.n * math.log(processes.classes):
        here = at(even, np.zeros_like(even))  # no start, or one worse than to know nothing
    if here is None:
        return None
    mixing, share, rounds = Mixing(), 1.0, 0
    recent = [here.value]
    while here.off > effort.enough and rounds < effort.rounds and not _settled(recent, effort):
        least = here.value - SLACK * max(1.0, abs(here.value))
        logs = mixing.next(np.log(here.sites), here.change, 1.0, here.unit)
        there = at(np.exp(np.clip(logs, math.log(SMALLEST), 0.0)), here.climb.a)
        rounds += 1
        while there is None or there.value < least:  # the plain step, shorter and shorter: along it the bound rises
            mixing, sites = Mixing(), (1 - share) * here.sites + share * here.climb.sites
            there = at(sites, here.climb.a)
            rounds += 1
            share /= 2
            if share < SHORTEST or rounds > effort.rounds:
                there = at(here.sites, here.climb.a)
                break
        if there is None:
            return None
        if share < SHORTEST:
            break
        share, here = min(1.0, 4 * share), there
        recent.append(here.value)
    climb = here.climb
    # Where a prior is so wide that the smallest site still tells something, sites are not what they should be.
    heard = max(float(K.diagonal.max(initial=0.0)) for K in Ks) * SMALLEST < GOOD_ENOUGH
    converged = heard and (here.off < GOOD_ENOUGH or _settled(recent, effort))
    return SoftmaxApproximation(
        here.value, climb.a, climb.f, here.sites, processes, climb.factor, room, rounds, converged
    )


def _settled(values, effort: Effort) -> bool:
    """Whether the last rounds changed nothing of the bound that matters."""
    last = values[-effort.settled_in :]
    return len(last) == effort.settled_in and max(last) - min(last) < SETTLED * max(1.0, abs(last[-1]))


@dataclasses.dataclass(eq=False)
class _Round:
    """The bound at some sites, maximised over m, and which sites go with that."""

    value: float
    sites: np.ndarray
    climb: Climb
    change: np.ndarray  # of the logarithms of the sites
    unit: np.ndarray  # how much a site says beside the prior
    off: float

    @classmethod
    def at(cls, processes, sites, a, room, effort: Effort) -> "_Round | None":
        """From m = K a; None where a factorisation fails."""
        factor = Joint(processes, sites, room)
        if not factor.positive:
            return None
        V = factor.contrasts()
        climb = Climb(processes, room, factor, Expectation(processes.labels, V), effort.steps).stand(a)
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
        return cls(value, sites, climb, change / (1 + steep), unit, float(np.abs(change * unit).max()))
