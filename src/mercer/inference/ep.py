"""Expectation propagation: each site made to match the moments of what it stands for (Minka 2001; RW06 3.6)."""

import dataclasses

import numpy as np

from mercer.inference.anderson import Mixing
from mercer.inference.laplace import laplace
from mercer.inference.sites import Covariance, SiteApproximation, SiteFactor

MOST_SWEEPS = 300
TOLERANCE = 1e-8  # how far moments may be from what they should be, in standard deviations
ON_THE_WAY = 3e-5  # the same while parameters are learned: the evidence is then right to the square of it
GOOD_ENOUGH = 1e-4


def ep(K: Covariance, t, likelihood, start: SiteApproximation | None = None, gradient: bool = True):
    """Sites by expectation propagation, all at once in every sweep, and the evidence. None where K is no covariance.

    A sweep takes one Cholesky factor and one inverse: n^3 flops in matrix products, where RW06 Alg 3.5 updates one site
    after the other by n rank-one changes. Sites that move together may overshoot, or creep: the next ones are mixed
    from the last few sweeps so that the mismatch, were it linear, would vanish (Anderson 1965). A mixture that makes it
    worse is forgotten, and the step from the best sweep so far is halved.

    It begins at the sites of ``start``, else at Laplace's, which are near and always to be had; from no sites at all,
    wide priors make it overshoot. Where one start does not lead to a fixed point, the next one may.
    """
    starts = [
        lambda: None if start is None or start.S.shape != (K.n,) else np.stack([start.S, start.nu]),
        lambda: (near := laplace(K, t, likelihood, gradient=False)) and np.stack([near.S, near.nu]),
        lambda: np.zeros((2, K.n)),
    ]
    best: Sweep | None = None
    last: Sweep | None = None
    sweeps = 0
    for begin in starts:
        x = begin()
        if x is None and begin is starts[1]:
            break  # Laplace's method has no answer only where K is no covariance
        found = None if x is None else _to_fixed_point(K, x, t, likelihood, ON_THE_WAY if gradient else TOLERANCE)
        if found is None:
            continue
        sweeps += found[2]
        if best is None or found[0].off < best.off:
            best = found[0]
        last = found[1]
        if best.off < GOOD_ENOUGH:
            break
    return best and best.result(K, sweeps, keep_inverse=gradient and best is last)


def _to_fixed_point(K, x, t, likelihood, tolerance):
    """The best sweep from sites x = (S, nu), (2, n), the last one, and how many there were; None if there is none."""
    step, mixing, worse = 1.0, Mixing(), 0
    best: Sweep | None = None
    here: Sweep | None = None
    for sweep in range(1, MOST_SWEEPS + 1):  # noqa: B007
        here = Sweep.at(K, x[0], x[1], t, likelihood)
        if best is None:
            if here is None:
                return None
            best = here
        # A mismatch may grow a little, and recover.
        worse = 0 if here is not None and here.off <= best.off else worse + 1
        if here is not None and here.off < 3 * best.off and worse <= 3:
            best = here if here.off <= best.off else best
            if here.off < tolerance:
                break
            step = min(1.0, 1.2 * step)
            x = mixing.next(np.stack([here.S, here.nu]), here.change, step, np.stack([here.v, np.sqrt(here.v)]))
        else:
            step /= 2
            if step < 1e-3:
                break
            mixing, worse = Mixing(), 0
            x = np.stack([best.S, best.nu]) + step * best.change
        x[0] = np.maximum(x[0], 0.0)
    return best, here, sweep


@dataclasses.dataclass(eq=False)
class Sweep:
    """The posterior at given sites, and what the tilted distributions make of them."""

    S: np.ndarray
    nu: np.ndarray
    a: np.ndarray
    mean: np.ndarray
    v: np.ndarray
    change: np.ndarray
    off: float
    value: float
    factor: SiteFactor

    @staticmethod
    def at(K, S, nu, t, likelihood) -> "Sweep | None":
        factor = K.factor(S)
        if factor is None:
            return None
        a = factor.weights(nu)
        mean = K.times(a)
        v = factor.variance()
        # The cavity: what all other sites say of f_i.
        left = np.maximum(1 - S * v, 1e-12)
        v_cavity, m_cavity = v / left, (mean - v * nu) / left
        tilted = likelihood.tilted(m_cavity, v_cavity, t)
        curved = np.maximum(-tilted.second, 0.0)
        remaining = np.maximum(1 - curved * v_cavity, 1e-12)
        new = np.stack([curved / remaining, (tilted.first + curved * m_cavity) / remaining])
        # How far moments of q are from those of the tilted distributions, in standard deviations.
        off = max(
            np.max(np.abs(m_cavity + v_cavity * tilted.first - mean) / np.sqrt(v)),
            np.max(np.abs(v_cavity * remaining / v - 1)),
        )
        spread = 1 + S * v_cavity
        sites = tilted.log_z + 0.5 * np.log(spread)
        sites -= (nu**2 * v_cavity + 2 * nu * m_cavity - S * m_cavity**2) / (2 * spread)
        value = -0.5 * factor.log_det + 0.5 * float(nu @ mean) + float(sites.sum())
        if not np.isfinite(off + value):
            return None
        return Sweep(S, nu, a, mean, v, new - np.stack([S, nu]), float(off), value, factor)

    def result(self, K, sweeps, keep_inverse: bool) -> SiteApproximation | None:
        factor = self.factor if keep_inverse else K.factor(self.S)
        if factor is None:
            return None
        return SiteApproximation(
            self.value, self.a, self.mean, self.S, self.nu, factor, sweeps, bool(self.off < GOOD_ENOUGH)
        )
