"""Joint Gaussian distributions of latent functions, through the functions in which their means are linear.

Means are linear, and covariances quadratic, in r functions b(z): k(z, x_j) of the n training rows (function space), or
the M features of the kernel (weight space). With C latent functions f_c

    E f_c(z) = b_c(z)^T a_c,    cov(f_c(z), f_d(z')) = delta_cd (p_c(z, z') + sign V_c^T V_c') + Q_c^T Q_d',

V_c and Q_c being linear in b_c. In function space p is the kernel and the sign is minus; in weight space p is what
features that no training row has add, usually nothing, and the sign is plus.
"""

import abc
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from mercer import gram
from mercer.core.errors import ParameterError, rows_of
from mercer.core.inputs import Inputs, align_columns, as_matrix, column_names, count_rows, take_rows
from mercer.core.random import normal
from mercer.gp.posterior import FunctionPosterior
from mercer.gp.process import Seed, check_size
from mercer.kernels.algebra import terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import by_position
from mercer.linalg.cholesky import root


class Expansion(abc.ABC):
    """The functions b of a kernel, given its prepared training rows."""

    sign: ClassVar[float]

    def __init__(self, kernel: Kernel, rows: gram.Gram) -> None:
        self.kernel, self.rows = kernel, rows.of(kernel)

    @abc.abstractmethod
    def values(self, Z: Inputs) -> np.ndarray:
        """b(z): (m, r)."""

    @abc.abstractmethod
    def prior(self, Z: Inputs) -> np.ndarray | float:
        """p(z, z): (m,)."""

    @abc.abstractmethod
    def prior_covariance(self, Z: Inputs) -> np.ndarray | float:
        """p(z, z'): (m, m)."""

    @abc.abstractmethod
    def slope(self, kernel: Kernel, Z: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """sum_j weights_ij db_j(z_i)/dz_i: (m, d). ``kernel``: this one, on columns by position."""

    @abc.abstractmethod
    def prior_slope(self, kernel: Kernel, Z: np.ndarray) -> np.ndarray | float:
        """dp(z_i, z_i)/dz_i: (m, d)."""

    @abc.abstractmethod
    def terms(self) -> list["Expansion"]:
        """Those of the terms of the kernel, in place of all of b: coefficients are the same."""


class KernelExpansion(Expansion):
    """b(z) = k(z, X)."""

    sign = -1.0

    def values(self, Z: Inputs) -> np.ndarray:
        return gram.between(self.kernel, Z, self.rows)

    def prior(self, Z: Inputs) -> np.ndarray:
        return gram.diagonal(self.kernel, Z)

    def prior_covariance(self, Z: Inputs) -> np.ndarray:
        return gram.within(self.kernel, Z)

    def slope(self, kernel: Kernel, Z: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return gram.slope(kernel, Z, self.rows, weights)

    def prior_slope(self, kernel: Kernel, Z: np.ndarray) -> np.ndarray:
        return gram.diagonal_slope(kernel, Z)

    def terms(self) -> list[Expansion]:
        return [KernelExpansion(part, self.rows) for part in terms_of(self.kernel)]


class FeatureExpansion(Expansion):
    """b(z) = phi(z); of a term of the kernel, zero but for its own features, which begin at ``first`` of ``width``."""

    sign = 1.0

    def __init__(self, kernel: Kernel, rows: gram.Gram, first: int = 0, width: int | None = None) -> None:
        super().__init__(kernel, rows)
        self.first, self.width = first, width

    def values(self, Z: Inputs) -> np.ndarray:
        # Without rows the number of features would not be known.
        some = count_rows(Z) > 0
        Phi = gram.features(self.kernel, Z, self.rows) if some else gram.features(self.kernel, self.rows[:1])[:0]
        if self.width is None:
            return Phi
        return np.pad(Phi, ((0, 0), (self.first, self.width - self.first - Phi.shape[1])))

    def prior(self, Z: Inputs) -> np.ndarray | float:
        return gram.unseen(self.kernel, Z, self.rows)

    def prior_covariance(self, Z: Inputs) -> np.ndarray | float:
        return gram.unseen(self.kernel, Z, self.rows, whole=True)

    def slope(self, kernel: Kernel, Z: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return gram.feature_slope(kernel, Z, weights)

    def prior_slope(self, kernel: Kernel, Z: np.ndarray) -> float:
        return 0.0

    def terms(self) -> list[Expansion]:
        parts = terms_of(self.kernel)
        counts = [gram.features(part, self.rows.of(part)).shape[1] for part in parts]
        firsts = np.cumsum([0, *counts])
        return [
            FeatureExpansion(part, self.rows, int(first), int(firsts[-1]))
            for part, first in zip(parts, firsts, strict=False)
        ]


class GaussianFunctions(abc.ABC):
    """C latent functions with a joint Gaussian distribution, as in the head of this file. All arrays have an axis for
    the functions."""

    kernels: tuple[Kernel, ...]  # one for all functions, or one each
    X: Inputs

    @property
    @abc.abstractmethod
    def coefficients(self) -> Sequence[np.ndarray]:
        """a_c of the C functions: (r,) each."""

    @abc.abstractmethod
    def expansions(self) -> list[Expansion]:
        """Of the kernels."""

    @abc.abstractmethod
    def halves(self, c: int, B: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        """V_c and Q_c, (., m), of values B (m, r) of b_c; None for none."""

    @abc.abstractmethod
    def pull(self, c: int, V: np.ndarray | None, Q: np.ndarray | None) -> np.ndarray:
        """Derivative of half the variance, sign V_c^T V_c / 2 + Q_c^T Q_c / 2, in b_c: (r, m)."""

    def _each(self) -> list[Expansion]:
        """One for each function."""
        found, C = self.expansions(), len(self.coefficients)
        return found * C if len(found) == 1 else found

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, any(kernel.needs_all_columns for kernel in self.kernels))

    def _pieces(self, Z: Inputs) -> list[slice]:
        a = self.coefficients
        return gram.pieces(count_rows(Z), max(len(each) for each in a) * (len(a) + 2))

    def means(self, Z: Inputs) -> np.ndarray:
        """(s, C)."""
        Z, expansions = self._aligned(Z), self._each()
        out = np.empty((count_rows(Z), len(expansions)))
        for part in self._pieces(Z):
            with rows_of(part):
                for c, B in enumerate(_values(expansions, take_rows(Z, part))):
                    out[part, c] = B @ self.coefficients[c]
        return out

    def all_moments(self, Z: Inputs, expansions: list[Expansion] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances, of these expansions in place of the own ones: (s, C) each."""
        Z = self._aligned(Z)
        expansions = self._each() if expansions is None else expansions
        mean, variance = (np.zeros((count_rows(Z), len(expansions))) for _ in range(2))
        for part in self._pieces(Z):
            with rows_of(part):
                rows = take_rows(Z, part)
                for c, B in enumerate(_values(expansions, rows)):
                    mean[part, c], variance[part, c] = B @ self.coefficients[c], expansions[c].prior(rows)
                    V, Q = self.halves(c, B)
                    if V is not None:
                        variance[part, c] += expansions[c].sign * np.einsum("ij,ij->j", V, V)
                    if Q is not None:
                        variance[part, c] += np.einsum("ij,ij->j", Q, Q)
        return mean, np.maximum(variance, 0.0)

    def covariances_of(self, Z: Inputs) -> np.ndarray:
        """(s, C, s, C)."""
        Z, C = self._aligned(Z), len(self.coefficients)
        out, Qs = np.zeros((count_rows(Z), C, count_rows(Z), C)), []
        expansions = self._each()
        for c, (expansion, B) in enumerate(zip(expansions, _values(expansions, Z), strict=True)):
            V, Q = self.halves(c, B)
            out[:, c, :, c] += expansion.prior_covariance(Z)
            if V is not None:
                out[:, c, :, c] += expansion.sign * (V.T @ V)
            Qs.append(Q)
        for c, Q in enumerate(Qs):
            for d, P in enumerate(Qs):
                if Q is not None and P is not None:
                    out[:, c, :, d] += Q.T @ P
        return out

    def slopes(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of means and variances in the inputs: (s, C, d) each."""
        Z = self._aligned(Z)
        names, matrix = column_names(Z), as_matrix(Z)
        shape = len(matrix), len(self.coefficients), matrix.shape[1]
        dmean, dvariance = np.zeros(shape), np.zeros(shape)
        for part in self._pieces(Z):
            numbers, expansions = matrix[part], self._each()
            for c, (expansion, B) in enumerate(zip(expansions, _values(expansions, take_rows(Z, part)), strict=True)):
                kernel = expansion.kernel if names is None else by_position(expansion.kernel, names)
                dmean[part, c] = expansion.slope(kernel, numbers, np.broadcast_to(self.coefficients[c], B.shape))
                own = self.pull(c, *self.halves(c, B)).T
                dvariance[part, c] = expansion.prior_slope(kernel, numbers) + 2 * expansion.slope(kernel, numbers, own)
        return dmean, dvariance

    def all_terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """Terms of the kernel that all functions share, and their moments: (s, C) each."""
        if len(self.kernels) > 1:
            raise ParameterError(
                f"each of the {len(self.kernels)} classes has a kernel of its own, so they have no terms in common; "
                "fit with one kernel for all classes."
            )
        (expansion,), C = self.expansions(), len(self.coefficients)
        return [(term.kernel, *self.all_moments(Z, [term] * C)) for term in expansion.terms()]


def _values(expansions: list[Expansion], rows: Inputs) -> Iterator[np.ndarray]:
    """b of each; of those that are the same, evaluated once."""
    last, B = None, np.empty(0)
    for expansion in expansions:
        if expansion is not last:
            last, B = expansion, expansion.values(rows)
        yield B


class OfGaussian(FunctionPosterior, GaussianFunctions):
    """The answers of a posterior that is a joint Gaussian. Those about a single function, of two classes, have no axis
    for the functions."""

    single: ClassVar[bool]

    def _shaped(self, values: np.ndarray, *axes: int) -> np.ndarray:
        return values.squeeze(axes) if self.single else values

    def mean(self, Z: Inputs) -> np.ndarray:
        return self._shaped(self.means(Z), 1)

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self.all_moments(Z)
        return self._shaped(mean, 1), self._shaped(variance, 1)

    def covariance(self, Z: Inputs) -> np.ndarray:
        return self._shaped(self.covariances_of(Z), 1, 3)

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        dmean, dvariance = self.slopes(Z)
        return self._shaped(dmean, 1), self._shaped(dvariance, 1)

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        return [(part, self._shaped(m, 1), self._shaped(v, 1)) for part, m, v in self.all_terms(Z)]

    def sample(self, Z: Inputs, size: int = 1, seed: Seed = 0) -> np.ndarray:
        """From a root of the covariance of all values: (s C)^2 of memory."""
        check_size(size)
        mean, covariance = self.means(Z), self.covariances_of(Z)
        R = root_of(covariance.reshape(mean.size, mean.size), self.kernels, self._aligned(Z))
        draws = mean.ravel() + normal(seed, (size, mean.size))[:, : R.shape[1]] @ R.T
        return self._shaped(draws.reshape(size, *mean.shape), 2)


def root_of(covariance: np.ndarray, kernels: tuple[Kernel, ...], Z: Inputs) -> np.ndarray:
    """Root of a posterior covariance at Z, whose rounding errors are relative to the prior variance; overwrites it."""
    if not len(covariance):
        return np.zeros((0, 0))
    return root(covariance, scale=max(float(np.max(gram.diagonal(kernel, Z))) for kernel in kernels))
