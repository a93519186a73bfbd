"""Gaussian posteriors of the C latent functions: on the training rows, and as distributions over functions."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs, count_rows, take_rows
from mercer.gp.likelihood import Likelihood
from mercer.inference.base import Contraction, LabelPosterior, Labels, WarmStart
from mercer.inference.functions import Expansion, KernelExpansion, OfGaussian
from mercer.inference.latent import LatentCovariance, LatentSpace
from mercer.inference.sites import LatentMatrix, factor_B
from mercer.inference.softmax.expectation import mean_softmax
from mercer.inference.softmax.factor import JointFactor, JointSites, SoftmaxModel
from mercer.kernels.base import Kernel
from mercer.linalg import backend


@dataclasses.dataclass(eq=False)
class SoftmaxApproximation:
    """q(f) = N(mean, (K^-1 + W(sites))^-1) on the training rows, mean_c = K_c a_c, and its evidence. Arrays are (C, n).

    ``u`` is set if the evidence depends on K through the mode, too. ``workspace`` holds the matrices of ``factor``.
    """

    log_evidence: float
    a: np.ndarray
    mean: np.ndarray
    sites: np.ndarray
    model: SoftmaxModel
    factor: JointSites | None
    workspace: np.ndarray | None
    iterations: int
    converged: bool
    u: np.ndarray | None = None

    @property
    def prior(self) -> LatentCovariance:
        return self.model.Ks[0]

    def start(self) -> WarmStart:
        """As `Approximation.start`."""
        return WarmStart(self.a, self.sites, np.zeros(0))

    def slope(self, contractions: Sequence[Contraction]) -> np.ndarray:
        """d ln Z / d theta, kernel after kernel.

        d ln Z = 1/2 tr(G dK), G = sum over the kernel's classes of a a^T - R_cc + u a^T + a u^T.
        """
        factor, self.factor = self.factor, None
        assert factor is not None, "the matrices were overwritten or taken"
        return factor.slope(contractions, self.a, self.u)

    def posterior(self, kernels: Sequence[Any], X: Inputs, given: Labels | None = None) -> "JointPosterior":
        """As a distribution over functions; its covariances must still hold K. Takes the workspace. For
        `JointPosterior.moments_across` alone, kernels and X may be None."""
        return self.prior.joint.posterior(self, kernels, X, given)

    def moments_across(self, across: Sequence[np.ndarray], variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (s, C) and covariances (s, C, C) at other rows, as in `class_probabilities`."""
        return self.posterior([None] * len(across), None).moments_across(across, variances)

    def class_probabilities(self, across: Sequence[np.ndarray], variances: np.ndarray) -> np.ndarray:
        return mean_softmax(*self.moments_across(across, variances))

    def take_workspace(self) -> np.ndarray | None:
        """The matrices, for another approximation; `slope` is not available afterwards."""
        workspace, self.workspace, self.factor = self.workspace, None, None
        return workspace


class JointPosterior(OfGaussian, LabelPosterior):
    """A Gaussian posterior of C functions, with weights ``a`` and sites ``s``^2, (C, n), of the training rows."""

    a: np.ndarray
    s: np.ndarray
    single = False

    @abc.abstractmethod
    def cavities(self, covariances: Sequence[LatentCovariance]) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, C) and covariances (n, C, C) of f at each training row without that row's site."""

    def joint_moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Means (s, C) and covariances (s, C, C) of f(z). In blocks of rows."""
        Z = self._aligned(Z)
        expansions = self.expansions()
        own = [np.broadcast_to(expansion.prior(Z), count_rows(Z)) for expansion in expansions]
        return self._moments(lambda c, part: expansions[c].values(take_rows(Z, part)), np.stack(own, axis=1))

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of f(z): (s, C) each, in blocks of rows."""
        Z, C = self._aligned(Z), len(self.a)
        parts = gram.by_pieces(self.joint_moments, Z, C * C)
        means = np.concatenate([np.empty((0, C)), *(mean for mean, _ in parts)])
        return means, np.concatenate([np.empty((0, C)), *(np.einsum("icc->ic", V) for _, V in parts)])

    def moments_across(self, across: Sequence[np.ndarray], variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`joint_moments` from values of b (s, r), one or one per class (`LatentCovariance.across`), and prior
        ``variances`` (s, kernels)."""
        return self._moments(lambda c, part: across[c][part], variances)

    def _moments(
        self, values: Callable[[int, slice], np.ndarray], variances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """From ``values(c, part)``, those of b of class c, and prior ``variances`` (s, kernels)."""
        C, widest = len(self.a), max(len(a) for a in self.coefficients)
        means, covariances = np.empty((len(variances), C)), np.empty((len(variances), C, C))
        for part in gram.pieces(len(variances), widest * (C + 2)):
            own, Qs = np.repeat(variances[part], C // variances.shape[1], axis=1), []
            for c in range(C):
                if c < variances.shape[1]:
                    B = values(c, part)
                means[part, c] = B @ self.coefficients[c]
                V, Q = self.halves(c, B)
                if V is not None:
                    own[:, c] -= np.einsum("ij,ij->j", V, V)
                assert Q is not None
                Qs.append(Q.T)
            Y = np.stack(Qs, axis=1)
            covariances[part] = Y @ Y.transpose(0, 2, 1)
            covariances[part, range(C), range(C)] += np.maximum(own, 0.0)
        return means, covariances

    def without_sites(self, means: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`cavities` from the moments of the training rows: (n, C), (n, C, C).

        The site has precision W = diag(s) - s s^T / sum(s); without it the covariance V becomes (I - V W)^-1 V, and the
        mean changes by minus that times a.
        """
        s = (self.s**2).T
        W = s[:, :, None] * np.eye(len(self.s)) - s[:, :, None] * (s / s.sum(axis=1, keepdims=True))[:, None, :]
        without = np.linalg.solve(np.eye(len(self.s)) - V @ W, V)
        return means - np.einsum("icd,di->ic", without, self.a), 0.5 * (without + without.transpose(0, 2, 1))

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood | None = None) -> np.ndarray:
        """(s, C), in blocks of rows."""
        Z, C = self._aligned(Z), len(self.a)
        found = gram.by_pieces(lambda some: mean_softmax(*self.joint_moments(some)), Z, C * C)
        return np.concatenate([np.empty((0, C)), *found])

    def leave_one_out(self, covariances: Sequence[LatentCovariance] | None = None) -> np.ndarray:
        """From cavities: (n, C)."""
        return mean_softmax(*self.cavities(covariances or self.covariances()))

    def start(self, covariances: Sequence[LatentCovariance]) -> WarmStart:
        """The same weights and sites, and sites of equal probabilities on the new rows."""
        C, n = self.a.shape
        more = ((0, 0), (0, covariances[0].n - n))
        a, sites = np.pad(self.a, more), np.pad(self.s**2, more, constant_values=1 / C)
        return WarmStart(a, sites, np.zeros_like(a))


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxPosterior(JointPosterior):
    """The approximate posterior as a distribution over C functions (RW06 Alg 3.4).

    Mean k_c(z, X) a_c; covariance delta_cd (k_c - |L_c^-1 D_c^1/2 k_c|^2) + (M^-1 E_c k_c)^T (M^-1 E_d k_d), where
    E_c = D_c^1/2 L_c^-T L_c^-1 D_c^1/2. ``a`` and ``s``, the roots of the sites, are (C, n); ``factors`` (C, n, n) has
    L_c^T and ``common`` M^T, zero below the diagonal. ``kernels`` has one for all classes, or one each.
    """

    kernels: tuple[Kernel, ...]
    X: Inputs
    a: np.ndarray
    s: np.ndarray
    factors: np.ndarray
    common: np.ndarray
    given: Labels | None = None
    space: ClassVar[type[LatentSpace]] = LatentMatrix

    @classmethod
    def of(
        cls, approximation: SoftmaxApproximation, kernels: Sequence[Any], X: Inputs, given: Labels | None = None
    ) -> "SoftmaxPosterior":
        """4/3 C n^3 flops."""
        model, s = approximation.model, np.sqrt(approximation.sites)
        workspace = model.workspace(approximation)
        JointFactor(model, approximation.sites, workspace)
        for c in range(len(s)):
            factor_B(model.covariance(c), s[c], workspace[c])
        for matrix in workspace:
            matrix[:] = np.triu(matrix)
        return cls(tuple(kernels), X, approximation.a, s, workspace[:-1], workspace[-1], given)

    def consistent(self) -> bool:
        n, C = count_rows(self.X), len(self.a)
        shapes = self.a.shape == self.s.shape == (C, n) and self.factors.shape == (C, n, n)
        kernels = len(self.kernels) in (1, C) and all(isinstance(kernel, Kernel) for kernel in self.kernels)
        return shapes and kernels and self.common.shape == (n, n)

    @property
    def coefficients(self) -> Sequence[np.ndarray]:
        return list(self.a)

    def expansions(self) -> list[Expansion]:
        return [KernelExpansion(kernel, self.rows()) for kernel in self.kernels]

    def halves(self, c: int, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L_c^-1 D_c^1/2 k and M^-1 E_c k. 3 n^2 flops a row."""
        V = backend.half_solve(self.factors[c].T, (B * self.s[c]).T, in_place=True)
        Q = backend.half_solve(self.factors[c].T, V, transposed=True)
        Q *= self.s[c][:, None]  # E_c k
        return V, backend.half_solve(self.common.T, Q, in_place=True)

    def pull(self, c: int, V: np.ndarray | None, Q: np.ndarray | None) -> np.ndarray:
        assert V is not None
        assert Q is not None
        s, L = self.s[c][:, None], self.factors[c].T
        Q = backend.half_solve(L, s * backend.half_solve(self.common.T, Q, transposed=True))
        return s * backend.half_solve(L, Q - V, transposed=True)

    def cavities(self, covariances: Sequence[LatentCovariance]) -> tuple[np.ndarray, np.ndarray]:
        everything = np.arange(self.a.shape[1])
        return self.cavity([K.across(everything, everything) for K in covariances])

    def cavity(self, Ks: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """`cavities`, from whole covariance matrices, one or one per class."""
        return self.without_sites(*self.moments_across(Ks, np.stack([np.diag(K) for K in Ks], axis=1)))
