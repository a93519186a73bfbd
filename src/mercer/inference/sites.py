"""Posteriors of a latent function seen through a likelihood that is not Gaussian: what all approximations share.

Each of them replaces the likelihood by Gaussian sites exp(nu_i f_i - S_i f_i^2 / 2), so that on the training rows
q(f) = N(m, (K^-1 + S)^-1) with m = K a. All is done through B = I + S^1/2 K S^1/2, whose eigenvalues are at least one
(RW06 3.26), so no K is ever inverted.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.inputs import align_columns, count_rows, take_rows
from mercer.inference.base import LabelPosterior
from mercer.kernels.base import Kernel
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt

SMALL = 1e-6  # of S K: below it the variance is not read off B^-1


class Covariance:
    """K on n rows, its upper triangle in the order of C (to LAPACK, the lower one), and room for B beside it."""

    def __init__(self, K):
        self.K = K
        self.n = len(K)

    @classmethod
    def of(cls, kernel, X, jitter: float = 0.0) -> "Covariance":
        K = gram.within(kernel, X)
        K[np.diag_indices_from(K)] += jitter
        return cls(K)

    @property
    def diagonal(self) -> np.ndarray:
        return np.diag(self.K)

    @functools.cached_property
    def _B(self) -> np.ndarray:
        return np.empty_like(self.K)

    def times(self, v) -> np.ndarray:
        """K v. 2 n^2 flops."""
        return backend.product(self.K.T, v)

    def factor(self, S) -> "SiteFactor | None":
        """Of B = I + S^1/2 K S^1/2; None where it has no Cholesky factor, which says that K is not positive."""
        s = np.sqrt(S)
        with np.errstate(all="ignore"):  # what is below the diagonal is anything
            np.multiply(self.K, s[:, None], out=self._B)
            self._B *= s
        self._B.ravel()[:: self.n + 1] += 1.0
        B = attempt(self._B.T, clean=True)
        return None if B is None else SiteFactor(self, s, B)

    def rows(self, which) -> np.ndarray:
        """Whole rows of K."""
        out = self.K[which]
        for row, i in zip(out, which, strict=True):
            row[:i] = self.K[:i, i]
        return out


class SiteFactor:
    """The Cholesky factor of B = I + S^1/2 K S^1/2, s = S^1/2. `variance` and `invert` overwrite it."""

    def __init__(self, K: Covariance, s, B: Cholesky):
        self.K, self.s, self.B = K, s, B
        self.log_det = B.log_det()

    @property
    def lower(self) -> np.ndarray:
        """L, while it is there."""
        assert self.B.form == "factor"
        return self.B.lower

    def solve(self, v) -> np.ndarray:
        """B^-1 v."""
        return self.B.solve(v)

    def weights(self, nu) -> np.ndarray:
        """a = K^-1 m with m = (K^-1 + S)^-1 nu: nu - S^1/2 B^-1 S^1/2 K nu."""
        return nu - self.s * self.solve(self.s * self.K.times(nu))

    def variance(self) -> np.ndarray:
        """The diagonal of (K^-1 + S)^-1 = (1 - diag B^-1) / S; where S is nearly nothing, from K itself."""
        assert self.B.form != "inverse"
        self.B.halve()
        S = self.s**2
        with np.errstate(divide="ignore", invalid="ignore"):
            v = (1 - self.B.inverse_diagonal()) / S
        small = np.flatnonzero(~(S * self.K.diagonal > SMALL))
        for part in gram.pieces(len(small), self.K.n):
            which = small[part]
            R = self.K.rows(which) * self.s
            R = backend.half_product(self.B.lower, R.T).T
            v[which] = self.K.diagonal[which] - np.einsum("ij,ij->i", R, R)
        return np.maximum(np.minimum(v, self.K.diagonal), 1e-300)  # a row may have no variance at all


@dataclasses.dataclass(eq=False)
class SiteApproximation:
    """q(f) on the training rows, and the evidence it gives. All vectors (n,).

    ``through`` is (u, g) with d ln Z = 1/2 tr((a a^T - R + u g^T + g u^T) dK), R = S^1/2 B^-1 S^1/2; None where the
    evidence does not depend on K through anything else (a stationary point of it).
    """

    log_evidence: float
    a: np.ndarray
    mean: np.ndarray
    S: np.ndarray
    nu: np.ndarray
    factor: SiteFactor
    iterations: int
    converged: bool
    through: tuple[np.ndarray, np.ndarray] | None = None

    def slope(self, contracts) -> np.ndarray:
        """d ln Z / d theta, by ``contract(inverse, a)`` = sum_ij (a_i a_j - inverse_ij) dK_ij. 2/3 n^3 + O(n^2)."""
        (contract,) = contracts
        self.factor.B.invert()
        R = self.factor.B.lower.T  # what `Triangle.fill` wrote: rows of the upper triangle
        with np.errstate(all="ignore"):
            R *= self.factor.s[:, None]
            R *= self.factor.s
        if self.through is not None:
            u, g = self.through
            backend.subtract_products(R.T, u, g)
        return 0.5 * contract(R, self.a)


@dataclasses.dataclass(frozen=True, eq=False)
class LatentPosterior(LabelPosterior):
    """The approximate posterior as a distribution over functions: mean k(z, X) a, variance k - |L^-1 S^1/2 k(X, z)|^2.

    ``lower`` is L with zeros above the diagonal.
    """

    kernel: Any
    X: Any
    a: np.ndarray
    s: np.ndarray
    lower: np.ndarray

    def consistent(self) -> bool:
        n = count_rows(self.X)
        vectors = self.a.shape == self.s.shape == (n,) and self.lower.shape == (n, n)
        return vectors and isinstance(self.kernel, Kernel)

    def _seen(self):
        return gram.kept(self, self.kernel, self.X)

    def moments(self, Z) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f(z): (s,), (s,). In pieces."""
        Z = align_columns(self.X, Z, self.kernel.needs_all_columns)
        mean, variance = np.empty(count_rows(Z)), gram.diagonal(self.kernel, Z)
        for part in gram.pieces(count_rows(Z), len(self.a)):
            K = gram.between(self.kernel, take_rows(Z, part), self._seen())
            mean[part] = K @ self.a
            K *= self.s
            V = backend.half_solve(self.lower, K.T, in_place=True)
            variance[part] -= np.einsum("ij,ij->j", V, V)
        return mean, np.maximum(variance, 0.0)

    def cavity(self, K: Covariance) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of f at each training row without that row's site: (n,), (n,). Others stay as they are."""
        mean, S = K.times(self.a), self.s**2
        factor = K.factor(S)
        assert factor is not None, "this K was factorised before"
        v = factor.variance()
        left = np.maximum(1 - S * v, 1e-12)
        return mean - v * self.a / left, v / left

    def class_probabilities(self, Z, likelihood) -> np.ndarray:
        """Of t = -1 and t = +1: (s, 2). By quadrature of (PRML 6.76)."""
        return _both_sides(likelihood.probability, *self.moments(Z))

    def closed_form(self, Z, likelihood) -> np.ndarray:
        return _both_sides(likelihood.closed_form, *self.moments(Z))

    def most_probable(self, Z, likelihood) -> np.ndarray:
        """A sigmoid is above one half where the mean is above zero."""
        return (self.mean(Z) > 0).astype(int)

    def left_out(self, covariances, codes, likelihood) -> np.ndarray:
        """Class probabilities of each training row from all the others' sites: (n, 2)."""
        return _both_sides(likelihood.probability, *self.cavity(covariances()[0]))

    def mean(self, Z) -> np.ndarray:
        return gram.product(self.kernel, Z, self._seen(), self.a)

    def covariance(self, Z) -> np.ndarray:
        """(s, s)."""
        Z = align_columns(self.X, Z, self.kernel.needs_all_columns)
        K = gram.between(self.kernel, Z, self._seen())
        K *= self.s
        V = backend.half_solve(self.lower, K.T, in_place=True)
        return gram.within(self.kernel, Z) - V.T @ V


def _both_sides(probability, mean, variance):
    """Each side from its own end, so that what is small keeps its digits."""
    P = np.column_stack([probability(-mean, variance), probability(mean, variance)])
    return P / P.sum(axis=1, keepdims=True)
