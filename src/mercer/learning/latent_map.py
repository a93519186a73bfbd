"""The function from latent points to columns: predictions, derivatives, and the way back from columns to points."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer import gram
from mercer.kernels.base import Kernel
from mercer.learning.latent_points import groups_of
from mercer.linalg.cholesky import factor

MAX_STEPS = 100  # of the search for a latent point
STARTS = 3  # training points from which it starts
MIN_VARIANCE_RATIO = 1e-12  # to the prior variance


@dataclasses.dataclass(frozen=True, eq=False)
class LatentMap:
    """Posterior of f_d(x) for the columns d, given m points: mean k(x, centres) W_d, variance
    k(x, x) - k(x, centres) Q k(centres, x), with a Q for every group of columns that share one.

    ``groups``: columns of each group, indices of the centres it has seen, W and Q. ``noise``: variance of measurements.
    """

    kernel: Kernel
    centres: np.ndarray
    noise: float
    groups: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]

    @staticmethod
    def of_points(kernel: Kernel, X: np.ndarray, Y: np.ndarray, noise: float) -> "LatentMap":
        """From the columns measured at the points: W = C^-1 Y, Q = C^-1. NaN marks what was not measured."""
        K, groups = gram.within(kernel, X), []
        for columns, rows in groups_of(Y):
            C = K[np.ix_(rows, rows)]
            C[np.diag_indices(len(rows))] += noise
            inverse = factor(C).solve(np.eye(len(rows)))
            groups.append((columns, rows, inverse @ Y[np.ix_(rows, columns)], inverse))
        return LatentMap(kernel, X, noise, groups)

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(len(columns) for columns, *_ in self.groups)

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance, without noise, of every column: (s, D) each."""
        mean, variance = np.zeros((len(X), self.width)), np.zeros((len(X), self.width))
        for part in gram.pieces(len(X), len(self.centres)):
            Ks, own = gram.between(self.kernel, X[part], self.centres), gram.diagonal(self.kernel, X[part])
            for columns, rows, W, Q in self.groups:
                Kg = Ks[:, rows]
                left = own - np.einsum("ij,ij->i", Kg @ Q, Kg)
                mean[part, columns] = Kg @ W
                variance[part, columns] = np.maximum(left, MIN_VARIANCE_RATIO * own)[:, None]
        return mean, variance

    def log_density(self, Y: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ln p(y_i | x_i) + ln N(x_i | 0, I) for rows y_i that may have gaps, and its gradient in x_i: (s,), (s, q)."""
        Ks, own = gram.between(self.kernel, X, self.centres), gram.diagonal(self.kernel, X)
        value = -0.5 * np.einsum("ij,ij->i", X, X) - 0.5 * X.shape[1] * math.log(2 * math.pi)
        weights, on_diagonal = np.zeros(Ks.shape), np.zeros(len(X))
        for columns, rows, W, Q in self.groups:
            Kg, y = Ks[:, rows], Y[:, columns]
            seen, KQ = np.isfinite(y), Ks[:, rows] @ Q
            left = own - np.einsum("ij,ij->i", KQ, Kg)
            floored = left < MIN_VARIANCE_RATIO * own
            s2 = np.where(floored, MIN_VARIANCE_RATIO * own, left) + self.noise
            r, count = np.where(seen, y - Kg @ W, 0.0), seen.sum(axis=1)
            squares = np.einsum("ij,ij->i", r, r)
            value -= 0.5 * (count * np.log(2 * math.pi * s2) + squares / s2)
            in_variance = np.where(floored, 0.0, 0.5 * (squares / s2 - count) / s2)
            weights[:, rows] += (r / s2[:, None]) @ W.T - 2 * in_variance[:, None] * KQ
            on_diagonal += in_variance
        slope = gram.slope(self.kernel, X, self.centres, weights) - X
        if not self.kernel.stationary:
            slope += on_diagonal[:, None] * gram.diagonal_slope(self.kernel, X)
        return value, slope

    def project(self, Y: np.ndarray) -> np.ndarray:
        """The likeliest latent point of every row: (s, q). The search starts at the likeliest of the centres."""
        out = np.empty((len(Y), self.centres.shape[1]))
        mean, variance = self.predict(self.centres)
        variance += self.noise
        prior = -0.5 * np.einsum("ij,ij->i", self.centres, self.centres)
        for part in gram.pieces(len(Y), len(self.centres) * STARTS):
            y = Y[part]
            seen = np.isfinite(y)
            filled = np.where(seen, y, 0.0)
            # -1/2 sum_d [(y_d - mean_d)^2 / variance_d + ln variance_d] over the columns seen, for every centre.
            at_centres = prior - 0.5 * (
                filled**2 @ (1 / variance).T - 2 * filled @ (mean / variance).T
                + seen @ (mean**2 / variance + np.log(variance)).T
            )  # fmt: skip
            count = min(STARTS, len(self.centres))
            starts = np.argsort(-at_centres, axis=1, kind="stable")[:, :count]
            rows = np.repeat(np.arange(len(y)), count)

            def density(which: np.ndarray, X: np.ndarray, of: np.ndarray = y[rows]) -> Any:
                return self.log_density(of[which], X)

            places, values = climb_rows(density, self.centres[starts.ravel()])
            best = values.reshape(len(y), count).argmax(axis=1)
            out[part] = places.reshape(len(y), count, -1)[np.arange(len(y)), best]
        return out

    def slopes(self, X: np.ndarray) -> np.ndarray:
        """Derivatives of the mean of every column: (s, D, q)."""
        out = np.zeros((len(X), self.width, self.centres.shape[1]))
        for part in gram.pieces(len(X), len(self.centres) * self.centres.shape[1]):
            dK = gram.slopes(self.kernel, X[part], self.centres)
            for columns, rows, W, _ in self.groups:
                out[part, columns] = np.einsum("snq,nd->sdq", dK[:, rows], W, optimize=True)
        return out

    def metric(self, X: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Expected metric that the columns, in ``units`` (D,), induce at latent points: (s, q, q), the mean of J^T J
        for the Jacobian J of the function (Tosi et al., 2014)."""
        J = self.slopes(X) * units[:, None]
        out = np.einsum("sdq,sdr->sqr", J, J)
        for part in gram.pieces(len(X), len(self.centres) * self.centres.shape[1]):
            dK, own = gram.slopes(self.kernel, X[part], self.centres), gram.cross_slopes(self.kernel, X[part])
            for columns, rows, _, Q in self.groups:
                left = own - np.einsum("snq,nm,smr->sqr", dK[:, rows], Q, dK[:, rows], optimize=True)
                out[part] += float((units[columns] ** 2).sum()) * left
        return out


def magnification(metric: np.ndarray) -> np.ndarray:
    """Factor by which the function stretches areas: sqrt |metric|, (s,) (Bishop, Svensen and Williams, 1997)."""
    return np.sqrt(np.maximum(np.linalg.det(metric), 0.0))


def climb_rows(
    function: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]], X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Local maximum from every row of X, each by its own BFGS, all evaluated together: rows (s, q) and values (s,).

    ``function(which, X)`` gives values and gradients of the rows ``which``.
    """
    X = X.copy()
    rows = np.arange(len(X))
    value, g = function(rows, X)
    H = np.broadcast_to(np.eye(X.shape[1]), (*X.shape, X.shape[1])).copy()
    first, length = np.ones(len(X), bool), np.ones(len(X))
    active = rows
    for _ in range(MAX_STEPS):
        active = active[np.abs(g[active]).max(axis=1, initial=0.0) > 1e-6 * (1 + np.abs(value[active]))]
        active = active[length[active] > 1e-10]
        if not len(active):
            break
        d = np.einsum("sij,sj->si", H[active], g[active])
        size = np.linalg.norm(d, axis=1)
        d *= (length[active] * np.minimum(1.0, (0.1 if first[active].all() else 1.0) / np.maximum(size, 1e-300)))[
            :, None
        ]
        new_value, new_g = function(active, X[active] + d)
        rise = np.einsum("si,si->s", d, g[active])
        better = np.isfinite(new_value) & (new_value >= value[active] + 1e-4 * rise)
        length[active[~better]] *= 0.3
        moved, s, y = active[better], d[better], g[active[better]] - new_g[better]
        X[moved] += s
        value[moved], g[moved], length[moved] = new_value[better], new_g[better], 1.0
        sy = np.einsum("si,si->s", s, y)
        curved = sy > 1e-10 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)
        moved, s, y, sy = moved[curved], s[curved], y[curved], sy[curved]
        fresh = first[moved]
        scale = sy[fresh] / np.einsum("si,si->s", y[fresh], y[fresh])
        H[moved[fresh]] = scale[:, None, None] * np.eye(X.shape[1])
        first[moved] = False
        # BFGS: H + (1 + y^T H y / s^T y) s s^T / s^T y - (H y s^T + s y^T H) / s^T y.
        Hy = np.einsum("sij,sj->si", H[moved], y)
        ratio = (1 + np.einsum("si,si->s", y, Hy) / sy) / sy
        cross = Hy[:, :, None] * s[:, None, :] / sy[:, None, None]
        H[moved] += ratio[:, None, None] * s[:, :, None] * s[:, None, :] - cross - cross.transpose(0, 2, 1)
    return X, value
