"""A Gaussian with covariance Phi Phi^T + H H^T's prior + D, from sums over rows that M centres make small.

With K_m the covariance of M centres, L L^T = K_m and Phi = K_nm L^-T, the process is approximated by weights N(0, I)
of M features (Williams and Seeger 2001). All that the rows have to say is in sums of M x M entries, so that they may
come in any number of parts.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt

PIVOT_TOLERANCE = 1e-10  # of a centre's variance given the others, relative to the largest: less adds only rounding
MIN_PIVOT_TOLERANCE, NOISE_SHARE = 1e-13, 1e-3  # unless this share of the noise is less still, down to rounding
MIN_QUADRATIC_SHARE = 1e-6  # of y^T D^-1 y: a smaller quadratic form is lost to cancellation
CANDIDATES = 59  # drawn for every centre: the best of 59 is among the best 5% with probability 0.95 (Smola, Bartlett)


def least_pivot(largest: float, noise: float) -> float:
    """Variance of a centre given the others below which it is left out, beside the ``largest`` and the noise."""
    return largest * min(PIVOT_TOLERANCE, max(MIN_PIVOT_TOLERANCE, NOISE_SHARE * noise / largest)) if largest else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class CoreRoot:
    """L with L L^T the covariance of those centres, ``kept``, that the others do not determine to rounding."""

    kept: np.ndarray
    lower: np.ndarray

    @classmethod
    def of(cls, K: np.ndarray, noise: float = math.inf) -> "CoreRoot | None":
        """None if K is not finite, or all zero. ``noise``: the smallest variance beside which rows are seen."""
        largest = float(np.diag(K).max(initial=0.0))
        if not np.isfinite(K).all() or not largest > 0:
            return None
        least = least_pivot(largest, noise)
        found = attempt(K.copy(order="F"), clean=True)
        if found is not None and float(np.diag(found.lower).min()) ** 2 > least:
            return cls(np.arange(len(K)), found.lower)
        factored, order, rank = backend.pivoted_factor(K.copy(order="F"), least)
        return cls(order[:rank], np.asfortranarray(np.tril(factored[:rank, :rank])))

    @property
    def whole(self) -> bool:
        """Whether all centres are kept, in their order."""
        return np.array_equal(self.kept, np.arange(self.kept.max(initial=-1) + 1))

    def features(self, K: np.ndarray) -> np.ndarray:
        """Phi (h, r), C-ordered, from a C-ordered K (h, m), which may be overwritten."""
        K = K if self.whole and K.shape[1] == len(self.kept) else np.ascontiguousarray(K[:, self.kept])
        return backend.half_solve(self.lower, K.T, in_place=True).T

    def back(self, G: np.ndarray, m: int) -> np.ndarray:
        """G L^-1 (h, m), zero in the columns of centres that were left out."""
        found = backend.half_solve(self.lower, np.asfortranarray(G.T), transposed=True).T
        if self.whole and m == len(self.kept):
            return found
        out = np.zeros((len(G), m))
        out[:, self.kept] = found
        return out


@dataclasses.dataclass(frozen=True, eq=False)
class Sums:
    """Sums over rows: of D^-1-weighted squares of F = [Phi, H, y - m] (lower triangle), of ln D, of the number of rows,
    and of the variance that the centres leave: k_ii - q_ii, over the noise, as it is, and of k_ii."""

    squares: np.ndarray
    log_noise: float = 0.0
    rows: int = 0
    missing: float = 0.0
    left: float = 0.0
    variance: float = 0.0
    least_noise: float = math.inf

    @classmethod
    def empty(cls, size: int) -> "Sums":
        return cls(np.zeros((size, size), order="F"))

    def plus(self, other: "Sums") -> "Sums":
        sums = {name: getattr(self, name) + getattr(other, name) for name in
                ("squares", "log_noise", "rows", "missing", "left", "variance")}  # fmt: skip
        sums["squares"] = np.asfortranarray(sums["squares"])
        return Sums(**sums, least_noise=min(self.least_noise, other.least_noise))

    def with_rows(
        self, F: np.ndarray, d: np.ndarray, noise: np.ndarray, left: np.ndarray, variance: np.ndarray
    ) -> "Sums":
        """With some more rows, F (h, s). Overwrites ``squares``."""
        scaled = F / np.sqrt(d)[:, None]
        backend.add_squares(self.squares, scaled.T)
        return Sums(
            self.squares, self.log_noise + float(np.log(d).sum()), self.rows + len(d),
            self.missing + float(np.sum(left / noise)), self.left + float(left.sum()),
            self.variance + float(variance.sum()), min(self.least_noise, float(noise.min(initial=math.inf))),
        )  # fmt: skip

    def rescaled(self, factor: float, features: int) -> "Sums":
        """Of a covariance ``factor`` times as large: features are longer, the rest stays."""
        u = np.full(len(self.squares), 1 / math.sqrt(factor))
        u[:features] = 1.0
        return dataclasses.replace(
            self, squares=np.asfortranarray(self.squares * np.outer(u, u)), left=self.left * factor,
            log_noise=self.log_noise + self.rows * math.log(factor), variance=self.variance * factor,
            least_noise=self.least_noise * factor,
        )  # fmt: skip

    def with_noise(self, factor: float) -> "Sums":
        """With all of D ``factor`` times as large."""
        return dataclasses.replace(
            self, squares=np.asfortranarray(self.squares / factor), missing=self.missing / factor,
            log_noise=self.log_noise + self.rows * math.log(factor), least_noise=self.least_noise * factor,
        )  # fmt: skip

    def symmetric(self) -> np.ndarray:
        return np.tril(self.squares) + np.tril(self.squares, -1).T


@dataclasses.dataclass(frozen=True, eq=False)
class Collapsed:
    """Posterior N(mean, B^-1) of the weights of features, and of the coefficients of H: B = prior + F^T D^-1 F.

    ``features`` of the columns have prior precision one, the others ``precision``, or none if that is flat.
    """

    sums: Sums
    features: int
    precision: np.ndarray | None
    unit: float  # `log_unit` of H
    factor: Cholesky
    mean: np.ndarray
    quadratic: float  # y^T C^-1 y, or y^T P y

    @classmethod
    def of(cls, sums: Sums, features: int, precision: np.ndarray | None, unit: float) -> "Collapsed | None":
        """None where B is not positive definite, or nothing is finite."""
        size = len(sums.squares) - 1
        B = np.asfortranarray(sums.squares[:size, :size])
        c, yy = sums.squares[size, :size].copy(), float(sums.squares[size, size])
        B += prior_of(size, features, precision)
        if not (np.isfinite(B).all() and np.isfinite(c).all()):
            return None
        factor = attempt(B, clean=True)
        if factor is None:
            return None
        mean = factor.solve(c)
        return cls(sums, features, precision, unit, factor, mean, yy - float(mean @ c))

    @property
    def cancelled(self) -> bool:
        """Whether the quadratic form is lost to cancellation, so that `refined` is needed."""
        return self.quadratic < MIN_QUADRATIC_SHARE * float(self.sums.squares[-1, -1])

    def refined(self, squares: float) -> "Collapsed":
        """With the sum of squares of y - F mean, over D."""
        own = float(self.mean @ (self.prior @ self.mean))
        return dataclasses.replace(self, quadratic=squares + own)

    @functools.cached_property
    def prior(self) -> np.ndarray:
        return prior_of(len(self.mean), self.features, self.precision)

    @functools.cached_property
    def covariance(self) -> np.ndarray:
        """B^-1, symmetric."""
        half = self.factor.lower_inverse
        return half.T @ half

    def log_det(self) -> float:
        """ln |C|, or that of the contrasts."""
        return self.factor.log_det() + self.sums.log_noise - self.unit

    def contrasts(self) -> int:
        flat = len(self.mean) - self.features if self.precision is None else 0
        return self.sums.rows - flat

    def log_evidence(self) -> float:
        """Log evidence without the correction for variance not explained by the centres."""
        return -0.5 * (self.log_det() + self.quadratic + self.contrasts() * math.log(2 * math.pi))

    def upper_bound(self) -> float:
        """Upper bound on the exact log evidence, for D the noise (Titsias 2014): K - Q has no eigenvalue above its
        trace t, so y^T (K + D)^-1 y is at least y^T (Q + D (1 + t / min D))^-1 y, and |K + D| at least |Q + D|."""
        wider = self.sums.with_noise(1.0 + self.sums.left / self.sums.least_noise)
        found = Collapsed.of(wider, self.features, self.precision, self.unit)
        if found is None:
            return math.nan
        quadratic = max(found.quadratic, 0.0)
        return -0.5 * (self.log_det() + quadratic + self.contrasts() * math.log(2 * math.pi))


def prior_of(size: int, features: int, precision: np.ndarray | None) -> np.ndarray:
    """Prior precision: one for features, that given for the others, zero if it is flat."""
    prior = np.eye(size)
    prior[features:, features:] = 0.0 if precision is None else precision
    return prior


def unit_of(squares: np.ndarray, precision: np.ndarray | None) -> float:
    """`log_unit` from H^T H."""
    if not len(squares):
        return 0.0
    return float(np.linalg.slogdet(squares if precision is None else precision)[1])


def forward_centers(
    rows: Callable, diagonal: np.ndarray, y: np.ndarray, noise: np.ndarray, count: int, tolerance: float,
    rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """Rows that raise the variational bound most, one after the other: each the best of 59 at random (Smola and
    Bartlett 2001; Seeger, Williams and Lawrence 2003; the bound is that of Titsias 2009).

    A new feature phi, the part of a row of K that others do not determine, changes the bound by
    1/2 ((phi^T a)^2 / (1 + s) - ln(1 + s) + phi^T D^-1 phi), s = phi^T C^-1 phi. C^-1 is D^-1 - U U^T. 240 n m^2 flops.
    """
    n = len(y)
    Vs, Us, left = np.empty((n, count), order="F"), np.empty((n, count), order="F"), diagonal.copy()
    a, taken = y / noise, list[int]()
    while len(taken) < count:
        possible = np.flatnonzero(left > tolerance)
        if not len(possible):
            break
        k = len(taken)
        V, U = Vs[:, :k], Us[:, :k]
        J = rng.choice(possible, size=min(CANDIDATES, len(possible)), replace=False)
        phi = (rows(J) - V[J] @ V.T) / np.sqrt(left[J])[:, None]
        over = phi / noise
        solved = over - (phi @ U) @ U.T
        s = np.maximum(np.einsum("ij,ij->i", phi, solved), 0.0)
        gain = (phi @ a) ** 2 / (1 + s) - np.log1p(s) + np.einsum("ij,ij->i", phi, over)
        best = int(gain.argmax())
        v, u = phi[best], solved[best] / math.sqrt(1 + s[best])
        a = a - u * (u @ y)
        Vs[:, k], Us[:, k] = v, u
        left = np.maximum(left - v**2, 0.0)
        left[J[best]] = 0.0
        taken.append(int(J[best]))
    return np.array(taken, dtype=int)
