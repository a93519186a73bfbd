"""Inference with Gaussian sites for kernels of time: a site is a measurement of the recursion, so that counts and
classes cost O(n) a step as well.

With S the sites' precisions, R = S^1/2 B^-1 S^1/2 = (K + S^-1)^-1, and |B| = |K + S^-1| |S|; rows without a site have
infinite noise, which the recursion takes.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from mercer.core import machine
from mercer.core.coordinates import from_free
from mercer.core.inputs import Inputs, count_rows
from mercer.inference.base import Labels
from mercer.inference.latent import LatentCovariance, LatentSpace, SiteFactor
from mercer.inference.sites import MIN_LATENT_VARIANCE, LatentMatrix, SiteApproximation
from mercer.kernels.base import Kernel
from mercer.linalg.state_products import quadratic_slopes, site_variances, times
from mercer.linalg.statespace import Chain, Factor, Matrices, NotPositive
from mercer.solvers.measured_sites import MeasuredSites, OneFunction
from mercer.solvers.state_posterior import MIN_RELATIVE_INNOVATION, StatePosterior
from mercer.solvers.timeline import At, Timeline, times_of

MIN_SITE = 1e-100  # precision times prior variance, below which a row has no site


class LatentStates(LatentSpace):
    """A kernel of time on fixed rows."""

    def __init__(self, kernel: Kernel, X: Inputs) -> None:
        self.kernel, self.X, self.n = kernel, X, count_rows(X)
        self.rank, self.K = self.n, Timeline(kernel, self.n)
        t = times_of(self.K.form, X)
        self.order = np.argsort(t, kind="stable")
        self.t = t[self.order]

    def at(self, theta: np.ndarray, jitter: float = 0.0, accurate: bool = False) -> "StateCovariance":
        return StateCovariance(self.K.at(theta), self.t, self.order, jitter)

    def rooted(self, theta: np.ndarray, accurate: bool = False) -> tuple[LatentCovariance, np.ndarray] | None:
        """Samplers have a root of the matrix itself."""
        return LatentMatrix(from_free(self.kernel, theta), self.X).rooted(theta, accurate)

    def contraction(self, theta: np.ndarray) -> Callable[..., np.ndarray]:
        """`StateSiteFactor.slope` has what it needs."""
        return lambda *_: np.zeros(self.size)


class StateCovariance(OneFunction):
    """K of rows whose times in order are ``t`` = times[order], with ``jitter``. ``at`` is None where the kernel has no
    form at these parameters: then nothing is finite."""

    def __init__(self, at: At | None, t: np.ndarray, order: np.ndarray, jitter: float) -> None:
        self.at, self.t, self.order, self.n = at, t, order, len(t)
        self.own = np.nan if at is None else at.white + jitter
        self._kept: dict[tuple[bytes, bytes], Matrices] = {}

    @functools.cached_property
    def chain(self) -> Chain:
        """With matrices computed once, if there is memory for them."""
        assert self.at is not None
        plain = self.at.chain
        if 8 * self.n * (2 * plain.m + int((plain.sizes**2).sum())) > machine.STATES_BYTES:
            return plain

        def matrices(t: np.ndarray, gaps: np.ndarray) -> Matrices:
            key = t.tobytes(), gaps.tobytes()
            if key not in self._kept:
                self._kept[key] = plain.matrices(t, gaps)
            return self._kept[key]

        return plain._replace(matrices=matrices)

    @functools.cached_property
    def diagonal(self) -> np.ndarray:  # type: ignore[override]
        if self.at is None:
            return np.full(self.n, np.nan)
        _, left, right = self.chain.matrices(self.t, np.zeros(self.n))
        return self.unsorted(np.einsum("ij,ij->i", left, right)) + self.own

    def unsorted(self, values: np.ndarray) -> np.ndarray:
        """Values of rows in order of time, in the order given."""
        out = np.empty_like(values)
        out[self.order] = values
        return out

    def times(self, v: np.ndarray) -> np.ndarray:
        if self.at is None:
            return np.full(self.n, np.nan)
        return self.unsorted(times(self.chain, self.t, v[self.order][:, None])[:, 0]) + self.own * v

    def factor(self, S: np.ndarray) -> "StateSiteFactor | None":
        if self.at is None or not ((S >= 0) & np.isfinite(S)).all():
            return None
        try:
            found = StateSiteFactor(self, S)
        except NotPositive:
            return None
        return found if np.isfinite(found.log_det) else None


class StateSiteFactor(SiteFactor):
    """The recursion with measurements of noise 1 / S."""

    def __init__(self, K: StateCovariance, S: np.ndarray) -> None:
        self.K, self.S = K, S
        self.told = S * K.diagonal > MIN_SITE
        with np.errstate(divide="ignore"):
            self.noise = np.where(self.told, 1 / np.where(self.told, S, 1.0), np.inf) + K.own
        self._bare = self._factor(np.empty((K.n, 0)))
        self.log_det = self._bare.log_det + float(np.log(S[self.told]).sum())

    def _factor(self, Y: np.ndarray) -> Factor:
        K = self.K
        return Factor(K.chain, K.t, self.noise[K.order], Y[K.order], True, MIN_RELATIVE_INNOVATION)

    @property
    def prior(self) -> StateCovariance:
        return self.K

    def _solve(self, y: np.ndarray) -> np.ndarray:
        """R y."""
        return self.K.unsorted(self._factor(y[:, None]).backward().a[:, 0])

    def weights(self, nu: np.ndarray) -> np.ndarray:
        """R S^-1 nu where there is a site; nu - R K nu of the others."""
        a = self._solve(np.where(self.told, nu / np.where(self.told, self.S, 1.0), 0.0))
        rest = np.where(self.told, 0.0, nu)
        return a + rest - self._solve(self.K.times(rest)) if rest.any() else a

    def variance(self) -> np.ndarray:
        S = np.where(self.told, self.S, 0.0)[self.K.order]
        v = self.K.unsorted(site_variances(self._bare, S, self.K.own))
        return np.maximum(np.minimum(v, self.K.diagonal), MIN_LATENT_VARIANCE)

    def slope(
        self, contract: Callable[..., np.ndarray], a: np.ndarray, through_mode: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """1/2 a^T dK a + u^T dK g by one pass back over the states, -1/2 tr(R dK) by the adjoint of the recursion."""
        K, at = self.K, self.K.at
        assert at is not None
        order, slope = K.order, np.zeros(len(at.theta))
        V, W, d = [a], [a], 0.5 * a**2
        if through_mode is not None:
            u, g = through_mode
            V, W, d = [a, u, g], [a, g, u], d + u * g

        def pull(t: np.ndarray, gaps: np.ndarray, bars: Matrices) -> None:
            slope[:] += at.pull(t, gaps, bars)

        quadratic_slopes(K.chain, K.t, np.stack(V, axis=1)[order], np.stack(W, axis=1)[order], d[order], pull)
        of_noise, _ = self._bare.slopes(np.empty((0, 0)), pull)
        return slope + at.pull_white(float(d.sum() + of_noise.sum()))

    def posterior(self, kernel: Kernel, X: Inputs, approximation: SiteApproximation, given: Labels) -> "StateSites":
        return StateSites(kernel, X, approximation.a, np.sqrt(approximation.S), given)


@dataclasses.dataclass(frozen=True, eq=False)
class StateSites(MeasuredSites):
    """Approximate posterior of a latent function of time."""

    kernel: Kernel
    X: Inputs
    a: np.ndarray
    s: np.ndarray
    given: Labels | None = None
    space: ClassVar[type[LatentSpace]] = LatentStates

    def conditioned(self, y: np.ndarray, noise: np.ndarray) -> StatePosterior:
        return StatePosterior.given(self.kernel, self.X, y, noise)
