"""Conditional densities that are mixtures of Gaussians: one mixture over the target for each query row (PRML 6.48).

Predictions of kernel regression, of mixtures of Gaussians over inputs and targets, and of density estimates are of this
kind; they differ in their weights and share their moments, densities, quantiles and samples.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from mercer.core import machine
from mercer.core.errors import ParameterError
from mercer.distributions import LOG_2PI, Distribution

MAX_QUANTILE_STEPS = 200
QUANTILE_TOLERANCE = 1e-12  # in standard deviations of the narrowest component


@dataclasses.dataclass(frozen=True, eq=False)
class Mixtures:
    """p(t | x_i) = sum_c w_ic N(t | m_c, V_c) for s query rows, C components and q targets.

    Fields
    ------
    weights : (s, C); each row sums to one.
    means : (C, q), or (s, C, q) if they differ between rows.
    variances : (q,) of each target, in all components; (C, q) of each component; (C, q, q) full covariances; or
        (1, q, q), one full covariance in all components.
    log_weights : (s, C), if known more accurately than ``weights``, which may have underflowed.

    Values of t are (s, T, q), or (1, T, q) if they are the same for all rows. Every method takes O(s T C q) flops and
    bounded temporary memory.

    >>> two = Mixtures(np.array([[0.5, 0.5]]), np.array([[-1.0], [1.0]]), np.array([0.25]))
    >>> two.mean(), two.variance(), two.quantile([0.5])
    (array([[0.]]), array([[1.25]]), array([[[0.]]]))
    """

    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    log_weights: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        return self.weights.shape[0]

    @property
    def n_targets(self) -> int:
        return self.means.shape[-1]

    @functools.cached_property
    def _logs(self) -> np.ndarray:
        if self.log_weights is not None:
            return self.log_weights
        with np.errstate(divide="ignore"):
            return np.log(self.weights)

    @functools.cached_property
    def _deviations(self) -> np.ndarray:
        """Standard deviation of each target: (C, q), or (1, q) if shared by all components."""
        v = self.variances
        return np.sqrt(np.einsum("cii->ci", v) if v.ndim == 3 else np.atleast_2d(v))

    def _part(self, rows: slice) -> "Mixtures":
        """A slice of the rows."""
        means = self.means[rows] if self.means.ndim == 3 else self.means
        logs = None if self.log_weights is None else self.log_weights[rows]
        return Mixtures(self.weights[rows], means, self.variances, logs)

    @classmethod
    def joined(cls, parts: "list[Mixtures]") -> "Mixtures":
        """Concatenate the rows of several mixtures of the same components."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        means = np.concatenate([p.means for p in parts]) if first.means.ndim == 3 else first.means
        logs = None if first.log_weights is None else np.concatenate([p._logs for p in parts])
        return cls(np.concatenate([p.weights for p in parts]), means, first.variances, logs)

    # -- moments -----------------------------------------------------------------------------------------------------

    def mean(self) -> np.ndarray:
        """sum_c w_ic m_c: (s, q). Relative to the first component, so that the mean of equal ones is exact."""
        if self.means.ndim == 2:
            return self.means[0] + self.weights @ (self.means - self.means[0])
        first = self.means[:, :1]
        return first[:, 0] + np.einsum("sc,scq->sq", self.weights, self.means - first)

    def variance(self) -> np.ndarray:
        """sum_c w_ic (V_c + (m_c - mean_i)^2), the law of total variance: (s, q). No cancellation."""
        W, mean = self.weights, self.mean()
        spread = np.empty_like(mean)
        for j in range(self.n_targets):
            away = self.means[..., j] - mean[:, j, None]
            spread[:, j] = np.einsum("sc,sc,sc->s", W, away, away)
        return spread + (W.sum(axis=1, keepdims=True) if len(self._deviations) == 1 else W) @ self._deviations**2

    def covariance(self) -> np.ndarray:
        """Covariance of the targets: (s, q, q)."""
        W, mean, q = self.weights, self.mean(), self.n_targets
        v = self.variances if self.variances.ndim == 3 else np.einsum("cq,qr->cqr", self._deviations**2, np.eye(q))
        out = np.einsum("sc,cqr->sqr", W.sum(axis=1, keepdims=True) if len(v) == 1 else W, v)
        for i in range(q):
            for j in range(i + 1):
                cross = np.einsum(
                    "sc,sc,sc->s", W, self.means[..., i] - mean[:, i, None], self.means[..., j] - mean[:, j, None]
                )
                out[:, i, j] += cross
                if i != j:
                    out[:, j, i] += cross
        return out

    # -- densities ---------------------------------------------------------------------------------------------------

    def density(self, t: ArrayLike) -> np.ndarray:
        """p(t | x_i): (s, T)."""
        return np.exp(self.log_density(t))

    def log_density(self, t: ArrayLike) -> np.ndarray:
        """ln p(t | x_i): (s, T). Finite for every finite t."""
        return self._in_blocks(t, lambda part, t: part._log_density(t), ())

    def cdf(self, t: ArrayLike) -> np.ndarray:
        """Marginal P(t_j <= value | x_i) of each target: (s, T, q)."""

        def cdf(part: Mixtures, t: np.ndarray) -> np.ndarray:
            z = (
                (t[..., j, None] - part.means[..., None, :, j]) / part._deviations[:, j] for j in range(self.n_targets)
            )
            return np.stack([np.einsum("sc,stc->st", part.weights, ndtr(each)) for each in z], axis=-1)

        return self._in_blocks(t, cdf, (self.n_targets,))

    def _in_blocks(
        self, t: ArrayLike, function: "Callable[[Mixtures, np.ndarray], np.ndarray]", shape: tuple[int, ...]
    ) -> np.ndarray:
        """``function`` of some rows and some values of t at a time: (s, T, *shape)."""
        t = np.asarray(t, dtype=float)
        s, T = self.n_rows, t.shape[1]
        out = np.empty((s, T, *shape))
        C = self.weights.shape[1]
        rows = machine.rows_within(machine.ARRAY_BYTES, C)
        for i in range(0, s, rows):
            part, last = self._part(slice(i, i + rows)), min(i + rows, s)
            columns = machine.rows_within(machine.ARRAY_BYTES, C * (last - i))
            own = t if len(t) == 1 else t[i:last]
            for j in range(0, T, columns):
                out[i:last, j : j + columns] = function(part, own[:, j : j + columns])
        return out

    def _log_density(self, t: np.ndarray) -> np.ndarray:
        v = self.variances
        if v.ndim == 3 and len(v) == 1:  # whitened
            root = np.linalg.cholesky(v[0])
            R = np.linalg.inv(root)
            unit = Mixtures(self.weights, self.means @ R.T, np.ones(len(R)), self.log_weights)
            return unit._log_density(t @ R.T) - np.log(np.diag(root)).sum()
        means = self.means[..., None, :, :]  # (1 or s, 1, C, q)
        if v.ndim == 3:
            root = np.linalg.cholesky(v)
            R = np.linalg.inv(root)
            log_det = np.log(np.einsum("cii->ci", root)).sum(axis=1)
            away = [t[:, :, None, j] - means[..., j] for j in range(self.n_targets)]
            r2: np.ndarray | float = 0.0
            for i in range(self.n_targets):
                r2 = r2 + sum(R[:, i, j] * away[j] for j in range(i + 1)) ** 2
        else:
            log_det = np.log(self._deviations).sum(axis=1)
            r2 = 0.0
            for j in range(self.n_targets):
                r2 = r2 + ((t[:, :, None, j] - means[..., j]) / self._deviations[:, j]) ** 2
        e = self._logs[:, None, :] - 0.5 * r2 - (log_det + 0.5 * self.n_targets * LOG_2PI)
        highest = e.max(axis=-1, keepdims=True)
        highest = np.where(np.isfinite(highest), highest, 0.0)
        e -= highest
        with np.errstate(divide="ignore"):
            return np.log(np.exp(e, out=e).sum(axis=-1)) + highest[..., 0]

    def _tail(self, x: np.ndarray, j: int, upper: bool, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(t_j < x), or P(t_j > x) if ``upper``, and the density at x, for one x in each of the rows: (a,), (a,)."""
        W, sigma = self.weights[rows], self._deviations[:, j]
        means = self.means[:, j] if self.means.ndim == 2 else self.means[rows, :, j]
        z = (x[:, None] - means) / sigma
        if upper:
            np.negative(z, out=z)
        probability = np.einsum("ac,ac->a", W, ndtr(z))
        z *= z
        z *= -0.5
        return probability, np.einsum("ac,ac->a", W / sigma, np.exp(z, out=z)) / math.sqrt(2 * math.pi)

    # -- quantiles ---------------------------------------------------------------------------------------------------

    def quantile(self, levels: ArrayLike) -> np.ndarray:
        """Marginal quantiles t_j with P(t_j <= t | x_i) = level: (s, L, q) for L levels.

        Newton's method on the smaller tail, within a bracket that is halved if Newton is slow: accurate to a relative
        1e-10, in the tails too. Levels 0 and 1 are infinite.
        """
        p = np.atleast_1d(np.asarray(levels, dtype=float))
        if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
            raise ParameterError(f"levels of quantiles must lie between 0 and 1; got {levels!r}.")
        s, q = self.n_rows, self.n_targets
        out = np.empty((s, len(p), q))
        rows = machine.rows_within(machine.ARRAY_BYTES, self.weights.shape[1] * len(p))
        for i in range(0, s, rows):
            part = self._part(slice(i, i + rows))
            center, spread = part.mean(), np.sqrt(part.variance())
            for j in range(q):
                out[i : i + rows, :, j] = part._quantile(p, j, center[:, j], spread[:, j])
        return out

    def _quantile(self, p: np.ndarray, j: int, center: np.ndarray, spread: np.ndarray) -> np.ndarray:
        s, L = self.n_rows, len(p)
        z = ndtri(p)
        # It lies between the smallest and the largest quantile of the components.
        means = self.means[..., j] if self.means.ndim == 3 else self.means[None, :, j]
        ends = [means + own for own in z[:, None] * self._deviations[:, j]]
        lowest, highest = (np.stack([end(e, axis=1) for e in ends], axis=1) for end in (np.min, np.max))
        low, high = (np.broadcast_to(end, (s, L)).ravel() for end in (lowest, highest))
        row, level = np.repeat(np.arange(s), L), np.tile(p, s)
        tolerance = QUANTILE_TOLERANCE * float(self._deviations[:, j].min())
        with np.errstate(invalid="ignore"):
            x = np.clip(np.repeat(center, L) + np.repeat(spread, L) * np.tile(z, s), low, high)
        x = np.where((level == 0) | (level == 1), np.tile(z, s), x)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            before = high - low
        searched = np.flatnonzero(before > 0)
        low, high, before = low[searched], high[searched], before[searched]
        for _ in range(MAX_QUANTILE_STEPS):
            if not len(searched):
                break
            here = x[searched]
            below, density = self._excess(here, level[searched], row[searched], j)
            low, high = np.where(below > 0, low, here), np.where(below < 0, high, here)
            with np.errstate(divide="ignore", invalid="ignore"):
                new = here - below / density
            # Newton's step, unless it leaves the bracket or is more than half the previous step.
            poor = ~((new >= low) & (new <= high) & (np.abs(new - here) <= 0.5 * before))
            new = np.where(poor, 0.5 * (low + high), new)
            before = np.abs(new - here)
            x[searched] = new
            left = before > tolerance + 4e-16 * np.abs(new)
            searched, low, high, before = searched[left], low[left], high[left], before[left]
        return x.reshape(s, L)

    def _excess(self, x: np.ndarray, p: np.ndarray, rows: np.ndarray, j: int) -> np.ndarray:
        """P(t_j <= x) - p from the smaller tail, and the density at x: (2, a)."""
        out = np.empty((2, len(x)))
        for upper in (False, True):
            at = np.flatnonzero((p > 0.5) == upper)
            if len(at):
                tail, out[1, at] = self._tail(x[at], j, upper, rows[at])
                out[0, at] = (1 - p[at]) - tail if upper else tail - p[at]
        return out

    # -- samples -----------------------------------------------------------------------------------------------------

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Independent draws: (s, size, q)."""
        s, q = self.n_rows, self.n_targets
        total = np.cumsum(self.weights, axis=1)
        u = rng.random((s, size)) * total[:, -1:]
        last = self.weights.shape[1] - 1
        which = np.stack([np.minimum(np.searchsorted(c, v, side="right"), last) for c, v in zip(total, u, strict=True)])
        means = self.means[which] if self.means.ndim == 2 else np.take_along_axis(self.means, which[..., None], axis=1)
        z = rng.standard_normal((s, size, q))
        if self.variances.ndim < 3:
            return means + z * self._deviations[which if len(self._deviations) > 1 else 0]
        root = np.linalg.cholesky(self.variances)
        if len(root) == 1:
            return means + z @ root[0].T
        return means + np.einsum("stij,stj->sti", root[which], z)


class TargetMixture(Distribution):
    """One target of `Mixtures` as a predictive distribution."""

    def __init__(self, mixtures: Mixtures, target: int = 0) -> None:
        self.mixtures, self.target = mixtures, target
        self.mean = mixtures.mean()[:, target]
        self.deviation = np.sqrt(mixtures.variance()[:, target])

    def _marginal(self) -> Mixtures:
        m, j = self.mixtures, self.target
        return Mixtures(m.weights, m.means[..., j : j + 1], m._deviations[:, j : j + 1] ** 2, m.log_weights)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        return self._marginal().cdf(np.asarray(y, dtype=float)[:, None, None])[:, 0, 0]

    def quantile(self, q: ArrayLike) -> np.ndarray:
        found = self._marginal().quantile(q)[:, :, 0]
        return found[:, 0] if np.ndim(q) == 0 else found

    def log_density(self, y: ArrayLike) -> np.ndarray:
        return self._marginal().log_density(np.asarray(y, dtype=float)[:, None, None])[:, 0]

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return self._marginal().sample(size, rng)[:, :, 0]

    def scaled(self, factor: float, shift: float = 0.0) -> "TargetMixture":
        one = self._marginal()
        return TargetMixture(
            Mixtures(one.weights, one.means * factor + shift, one.variances * factor**2, one.log_weights)
        )
