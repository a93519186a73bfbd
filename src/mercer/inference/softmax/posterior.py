"""Gaussian posteriors of the C latent functions: on the training rows, and as distributions over functions."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs, align_columns, count_rows, take_rows
from mercer.gp.likelihood import Likelihood
from mercer.inference.base import Contraction, LabelPosterior
from mercer.inference.sites import LatentCovariance, factor_B
from mercer.inference.softmax.expectation import mean_softmax
from mercer.inference.softmax.factor import JointFactor, SoftmaxModel
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
    factor: JointFactor | None
    workspace: np.ndarray | None
    iterations: int
    converged: bool
    u: np.ndarray | None = None

    def slope(self, contractions: Sequence[Contraction]) -> np.ndarray:
        """d ln Z / d theta, kernel after kernel.

        d ln Z = 1/2 tr(G dK), G = sum over the kernel's classes of a a^T - R_cc + u a^T + a u^T.
        """
        factor, self.factor = self.factor, None
        assert factor is not None, "the matrices were overwritten or taken"
        if factor.lower:
            factor.scaled_variances(keep_blocks=True)
        C, n = self.a.shape
        groups = [list(range(C))] if self.model.shared else [[c] for c in range(C)]
        half = 0.5 * self.a if self.u is None else 0.5 * self.a + self.u
        slopes = []
        for classes, contract in zip(groups, contractions, strict=True):
            G = factor.summed_block(classes)
            backend.subtract_products(G.T, self.a[classes].T, half[classes].T)
            slopes.append(np.atleast_1d(0.5 * contract(G, np.zeros(n))))
        return np.concatenate(slopes)

    def class_probabilities(self, across: Sequence[np.ndarray], variances: np.ndarray) -> np.ndarray:
        """(s, C) at new rows, from their covariances (s, n) with these, one or one per class, and prior ``variances``
        (s, kernels). Takes the workspace."""
        posterior = SoftmaxPosterior.of(self, [None] * len(across), None)
        return mean_softmax(*posterior.moments_across(across, variances))

    def take_workspace(self) -> np.ndarray | None:
        """The matrices, for another approximation; `slope` is not available afterwards."""
        workspace, self.workspace, self.factor = self.workspace, None, None
        return workspace


def workspace_for(model: SoftmaxModel, start: SoftmaxApproximation | None) -> np.ndarray:
    """Memory for a `JointFactor`, taken from an earlier approximation if it has the same size."""
    shape = model.classes + 1, model.n, model.n
    workspace = None if start is None else start.take_workspace()
    return workspace if workspace is not None and workspace.shape == shape else np.empty(shape)


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxPosterior(LabelPosterior):
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

    @classmethod
    def of(cls, approximation: SoftmaxApproximation, kernels: Sequence[Any], X: Inputs) -> "SoftmaxPosterior":
        """From an approximation whose covariances still hold K; takes its workspace. 4/3 C n^3 flops. For
        `moments_across` alone, kernels and X may be None."""
        model, s = approximation.model, np.sqrt(approximation.sites)
        workspace = workspace_for(model, approximation)
        JointFactor(model, approximation.sites, workspace)
        for c in range(len(s)):
            factor_B(model.covariance(c), s[c], workspace[c])
        for matrix in workspace:
            matrix[:] = np.triu(matrix)
        return cls(tuple(kernels), X, approximation.a, s, workspace[:-1], workspace[-1])

    def consistent(self) -> bool:
        n, C = count_rows(self.X), len(self.a)
        shapes = self.a.shape == self.s.shape == (C, n) and self.factors.shape == (C, n, n)
        kernels = len(self.kernels) in (1, C) and all(isinstance(kernel, Kernel) for kernel in self.kernels)
        return shapes and kernels and self.common.shape == (n, n)

    def joint_moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Means (s, C) and covariances (s, C, C) of f(z). 3 C n^2 flops a row, in blocks of rows."""
        Z = self._aligned(Z)
        variances = np.stack([gram.diagonal(kernel, Z) for kernel in self.kernels], axis=1)
        return self._moments(
            lambda c, part: gram.between(self.kernels[c], take_rows(Z, part), self._prepared(c)), variances
        )

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of f(z): (s, C) each, in blocks of rows."""
        Z, C = self._aligned(Z), len(self.a)
        parts = gram.by_pieces(self.joint_moments, Z, C * C)
        means = np.concatenate([np.empty((0, C)), *(mean for mean, _ in parts)])
        return means, np.concatenate([np.empty((0, C)), *(np.einsum("icc->ic", V) for _, V in parts)])

    def cavity(self, Ks: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, C) and covariances (n, C, C) of f at each training row without that row's site.

        ``Ks``: whole covariance matrices, one or one per class. The site has precision W = diag(s) - s s^T / sum(s);
        without it the covariance V becomes (I - V W)^-1 V, and the mean changes by minus that times a.
        """
        means, V = self.moments_across(Ks, np.stack([np.diag(K) for K in Ks], axis=1))
        s = (self.s**2).T
        W = s[:, :, None] * np.eye(len(self.s)) - s[:, :, None] * (s / s.sum(axis=1, keepdims=True))[:, None, :]
        without = np.linalg.solve(np.eye(len(self.s)) - V @ W, V)
        return means - np.einsum("icd,di->ic", without, self.a), 0.5 * (without + without.transpose(0, 2, 1))

    def moments_across(self, Ks: Sequence[np.ndarray], variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`joint_moments` from cross-covariances (s, n) with X, one or one per class, and prior ``variances``
        (s, kernels)."""
        return self._moments(lambda c, part: Ks[c][part], variances)

    def _moments(
        self, cross: Callable[[int, slice], np.ndarray], variances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """From ``cross(c, part)``, rows of the cross-covariances of class c, and prior ``variances`` (s, kernels)."""
        C, n = self.a.shape
        means, covariances = np.empty((len(variances), C)), np.empty((len(variances), C, C))
        for part in gram.pieces(len(variances), n * (C + 2)):
            Q = np.empty((part.stop - part.start, C, n))
            own = np.repeat(variances[part], C // len(self.kernels), axis=1)
            for c, s in enumerate(self.s):
                if c < len(self.kernels):
                    K = cross(c, part)
                means[part, c] = K @ self.a[c]
                V, L = K * s, self.factors[c].T
                backend.half_solve(L, V.T, in_place=True)
                own[:, c] -= np.einsum("ij,ij->i", V, V)
                backend.half_solve(L, V.T, transposed=True, in_place=True)
                V *= s  # E_c k
                Q[:, c] = backend.half_solve(self.common.T, V.T, in_place=True).T
            covariances[part] = Q @ Q.transpose(0, 2, 1)
            covariances[part, range(C), range(C)] += np.maximum(own, 0.0)
        return means, covariances

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood | None = None) -> np.ndarray:
        """(s, C), in blocks of rows."""
        Z, C = self._aligned(Z), len(self.a)
        found = gram.by_pieces(lambda some: mean_softmax(*self.joint_moments(some)), Z, C * C)
        return np.concatenate([np.empty((0, C)), *found])

    def left_out(
        self,
        covariances: Callable[[], Sequence[LatentCovariance]],
        codes: np.ndarray,
        likelihood: Likelihood | None = None,
    ) -> np.ndarray:
        """Class probabilities of each training row from its cavity: (n, C)."""
        everything = np.arange(len(codes))
        return mean_softmax(*self.cavity([K.dense().rows(everything) for K in covariances()]))

    def _prepared(self, c: int) -> gram.Gram:
        return gram.kept(self, self.kernels[c], self.X)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, any(kernel.needs_all_columns for kernel in self.kernels))
