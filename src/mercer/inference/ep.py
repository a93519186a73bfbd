"""Expectation propagation: each site matches the moments of its tilted distribution (Minka 2001; RW06 3.6)."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mercer.gp.likelihood import LatentLikelihood
from mercer.inference.anderson import AndersonMixing
from mercer.inference.laplace import laplace
from mercer.inference.latent import LatentCovariance, SiteFactor
from mercer.inference.sites import SiteApproximation, cavity

MAX_SWEEPS = 300
MIN_STEP = 1e-3
# Moment mismatches in standard deviations: at a fixed point; while parameters are learned, when the evidence has an
# error of the order of their square; and above which the iteration has not converged.
TOLERANCE, LEARNING_TOLERANCE, MAX_MISMATCH = 1e-8, 3e-5, 1e-4
# A sweep may increase the mismatch by this factor, and this many may do so in a row, before the step is halved.
MAX_INCREASE, MAX_INCREASES = 3, 3
MIN_TILTED_SHARE = 1e-12  # of a tilted variance relative to its cavity's


def ep(
    K: LatentCovariance,
    t: Any,
    likelihood: LatentLikelihood,
    start: SiteApproximation | None = None,
    gradient: bool = True,
) -> SiteApproximation | None:
    """Sites by parallel expectation propagation, and the evidence. None if K is not positive semidefinite.

    A sweep updates all sites at once: one Cholesky factor and one inverse, n^3 flops in matrix products, where RW06
    Alg 3.5 updates one site after the other by n rank-one changes. Parallel updates may overshoot or converge slowly,
    so they are accelerated by Anderson mixing. If that increases the mismatch, the memory is cleared and the step from
    the best sweep so far is halved.

    The iteration starts from the sites of ``start``, or from Laplace's, which are close and always available; from
    zero sites it overshoots if the prior is wide. If one start does not lead to a fixed point, the next is tried.
    """
    best: Sweep | None = None
    last: Sweep | None = None
    sweeps = 0
    for x in _starts(K, t, likelihood, start):
        found = _fixed_point(K, x, t, likelihood, LEARNING_TOLERANCE if gradient else TOLERANCE)
        if found is None:
            continue
        last, sweeps = found[1], sweeps + found[2]
        if best is None or found[0].mismatch < best.mismatch:
            best = found[0]
        if best.mismatch < MAX_MISMATCH:
            break
    if best is None:
        return None
    result = best.result(K, sweeps, keep_factor=gradient and best is last)
    if result is not None and gradient and likelihood.size:
        # At a fixed point the evidence depends on parameters of the likelihood through the tilted integrals alone.
        result.likelihood_slope = likelihood.tilted_slopes(*best.cavity(), t).sum(axis=1)
    return result


def _starts(
    K: LatentCovariance, t: Any, likelihood: LatentLikelihood, start: SiteApproximation | None
) -> Iterator[np.ndarray]:
    """Sites (S, nu), (2, n), to start from; none after Laplace's method has failed, so that K has no factor."""
    if start is not None and start.S.shape == (K.n,):
        yield np.stack([start.S, start.nu])
    mode = laplace(K, t, likelihood, gradient=False)
    if mode is not None:
        yield np.stack([mode.S, mode.nu])
        yield np.zeros((2, K.n))


def _fixed_point(
    K: LatentCovariance, x: np.ndarray, t: Any, likelihood: LatentLikelihood, tolerance: float
) -> "tuple[Sweep, Sweep | None, int] | None":
    """The best sweep from sites x, the last one, and their number; None if the first one fails."""
    here = best = Sweep.at(K, x[0], x[1], t, likelihood)
    if best is None:
        return None
    step, mixing, increases, sweeps = 1.0, AndersonMixing(), 0, 1
    while True:
        increases = 0 if here is not None and here.mismatch <= best.mismatch else increases + 1
        if here is not None and here.mismatch < MAX_INCREASE * best.mismatch and increases <= MAX_INCREASES:
            best = here if here.mismatch <= best.mismatch else best
            if here.mismatch < tolerance or sweeps == MAX_SWEEPS:
                break
            step = min(1.0, 1.2 * step)
            scale = np.stack([here.v, np.sqrt(here.v)])
            x = mixing.next(np.stack([here.S, here.nu]), here.change, scale, step)
        else:
            step /= 2
            if step < MIN_STEP or sweeps == MAX_SWEEPS:
                break
            mixing, increases = AndersonMixing(), 0
            x = np.stack([best.S, best.nu]) + step * best.change
        here = Sweep.at(K, np.maximum(x[0], 0.0), x[1], t, likelihood)
        sweeps += 1
    return best, here, sweeps


@dataclasses.dataclass(eq=False)
class Sweep:
    """The posterior at given sites, and the change of the sites that matches the tilted moments."""

    S: np.ndarray
    nu: np.ndarray
    a: np.ndarray
    mean: np.ndarray
    v: np.ndarray
    change: np.ndarray
    mismatch: float
    value: float
    factor: SiteFactor

    @staticmethod
    def at(K: LatentCovariance, S: np.ndarray, nu: np.ndarray, t: Any, likelihood: LatentLikelihood) -> "Sweep | None":
        """One sweep from sites (S, nu); None if it has no finite value."""
        factor = K.factor(S)
        if factor is None:
            return None
        a = factor.weights(nu)
        mean = K.times(a)
        v = factor.variance()
        m_cavity, v_cavity = cavity(mean, v, S, a)
        tilted = likelihood.tilted(m_cavity, v_cavity, t)
        curvature = np.maximum(-tilted.second, 0.0)
        share = np.maximum(1 - curvature * v_cavity, MIN_TILTED_SHARE)
        new = np.stack([curvature / share, (tilted.first + curvature * m_cavity) / share])
        # Distance of the moments of q from those of the tilted distributions, in standard deviations.
        mismatch = max(
            np.max(np.abs(m_cavity + v_cavity * tilted.first - mean) / np.sqrt(v)),
            np.max(np.abs(v_cavity * share / v - 1)),
        )
        spread = 1 + S * v_cavity
        sites = tilted.log_z + 0.5 * np.log(spread)
        sites -= (nu**2 * v_cavity + 2 * nu * m_cavity - S * m_cavity**2) / (2 * spread)
        value = -0.5 * factor.log_det + 0.5 * float(nu @ mean) + float(sites.sum())
        if not np.isfinite(mismatch + value):
            return None
        return Sweep(S, nu, a, mean, v, new - np.stack([S, nu]), float(mismatch), value, factor)

    def cavity(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each f_i without its own site."""
        return cavity(self.mean, self.v, self.S, self.a)

    def result(self, K: LatentCovariance, sweeps: int, keep_factor: bool) -> SiteApproximation | None:
        """Approximation at these sites. The factor can be kept, half inverted, if no later sweep has overwritten it."""
        factor = self.factor if keep_factor else K.factor(self.S)
        if factor is None:
            return None
        return SiteApproximation(
            self.value, self.a, self.mean, self.S, self.nu, factor, sweeps, bool(self.mismatch < MAX_MISMATCH)
        )
