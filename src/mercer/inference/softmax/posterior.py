"""Gaussian posteriors of C latent functions behind a softmax."""

import dataclasses
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.inputs import align_columns, count_rows, take_rows
from mercer.inference.base import LabelPosterior
from mercer.inference.softmax.expectation import probabilities
from mercer.inference.softmax.factor import Joint, Processes, factor_B
from mercer.kernels.base import Kernel
from mercer.linalg import backend


@dataclasses.dataclass(eq=False)
class SoftmaxApproximation:
    """q(f) = N(mean, (K^-1 + W(sites))^-1) on the training rows, mean_c = K_c a_c, and its evidence. Arrays are (C, n).

    ``u`` is there where the evidence depends on K through the mode too.
    """

    log_evidence: float
    a: np.ndarray
    mean: np.ndarray
    sites: np.ndarray
    processes: Processes
    factor: Joint | None
    room: np.ndarray | None
    iterations: int
    converged: bool
    u: np.ndarray | None = None

    def slope(self, contracts) -> np.ndarray:
        """d ln Z / d theta, kernel after kernel, by ``contract(inverse, a)`` = sum_ij (a_i a_j - inverse_ij) dK_ij.

        d ln Z = 1/2 tr(G dK), G = sum over the kernel's classes of a a^T - R_cc + u a^T + a u^T. It can be asked for
        once: the matrices are overwritten.
        """
        factor, self.factor = self.factor, None
        assert factor is not None, "the matrices were overwritten or given away"
        if factor.side:
            factor.shares(blocks=True)
        C, n = self.a.shape
        groups = [list(range(C))] if self.processes.shared else [[c] for c in range(C)]
        half = 0.5 * self.a if self.u is None else 0.5 * self.a + self.u
        slopes = []
        for classes, contract in zip(groups, contracts, strict=True):
            G = factor.block(classes)
            backend.subtract_products(G.T, self.a[classes].T, half[classes].T)
            slopes.append(np.atleast_1d(0.5 * contract(G, np.zeros(n))))
        return np.concatenate(slopes)

    def give_room(self):
        """The matrices, for another approximation; there is no slope to be had afterwards."""
        room, self.room, self.factor = self.room, None, None
        return room


def room_for(processes, start):
    shape = processes.classes + 1, processes.n, processes.n
    room = None if start is None else start.give_room()
    return room if room is not None and room.shape == shape else np.empty(shape)


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxPosterior(LabelPosterior):
    """The approximate posterior as a distribution over C functions (RW06 Alg 3.4).

    Mean k_c(z, X) a_c; covariance delta_cd (k_c - |L_c^-1 D_c^1/2 k_c|^2) + (M^-1 E_c k_c)^T (M^-1 E_d k_d), where
    E_c = D_c^1/2 L_c^-T L_c^-1 D_c^1/2. ``a``, ``s`` the roots of the sites are (C, n); ``factors`` (C, n, n) has L_c^T
    and ``common`` M^T, zero below the diagonal. ``kernels`` are one for all classes, or one each.
    """

    kernels: tuple[Any, ...]
    X: Any
    a: np.ndarray
    s: np.ndarray
    factors: np.ndarray
    common: np.ndarray

    @classmethod
    def of(cls, approximation: SoftmaxApproximation, kernels, X) -> "SoftmaxPosterior":
        """From what inference found, while its covariances still hold K. 4/3 C n^3 flops."""
        processes, s = approximation.processes, np.sqrt(approximation.sites)
        room = approximation.give_room()
        room = np.empty((len(s) + 1, processes.n, processes.n)) if room is None else room
        Joint(processes, approximation.sites, room)
        for c in range(len(s)):
            factor_B(processes.of(c), s[c], room[c])
        for matrix in room:
            matrix[:] = np.triu(matrix)
        return cls(tuple(kernels), X, approximation.a, s, room[:-1], room[-1])

    def consistent(self) -> bool:
        n, C = count_rows(self.X), len(self.a)
        whole = self.a.shape == self.s.shape == (C, n) and self.factors.shape == (C, n, n)
        each = len(self.kernels) in (1, C) and all(isinstance(kernel, Kernel) for kernel in self.kernels)
        return whole and each and self.common.shape == (n, n)

    def joint_moments(self, Z) -> tuple[np.ndarray, np.ndarray]:
        """Means (s, C) and covariances (s, C, C) of f(z). 3 C n^2 flops a row, in pieces."""
        Z = self._aligned(Z)
        variances = np.stack([gram.diagonal(kernel, Z) for kernel in self.kernels], axis=1)
        return self._moments(
            lambda c, part: gram.between(self.kernels[c], take_rows(Z, part), self._seen(c)), variances
        )

    def moments(self, Z) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of f(z): (s, C) each, in pieces."""
        Z, C = self._aligned(Z), len(self.a)
        parts = [self.joint_moments(take_rows(Z, part)) for part in gram.pieces(count_rows(Z), C * C)]
        means = np.concatenate([np.empty((0, C)), *(mean for mean, _ in parts)])
        return means, np.concatenate([np.empty((0, C)), *(np.einsum("icc->ic", V) for _, V in parts)])

    def cavity(self, Ks) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, C) and covariances (n, C, C) of f at each training row without that row's site.

        ``Ks``: whole covariance matrices, one or one a class. The site has precision W = diag(s) - s s^T / sum(s);
        without it the covariance V is (I - V W)^-1 V, and the mean moves by minus that times a.
        """
        means, V = self.moments_across(Ks, np.stack([np.diag(K) for K in Ks], axis=1))
        s = (self.s**2).T
        W = s[:, :, None] * np.eye(len(self.s)) - s[:, :, None] * (s / s.sum(axis=1, keepdims=True))[:, None, :]
        without = np.linalg.solve(np.eye(len(self.s)) - V @ W, V)
        return means - np.einsum("icd,di->ic", without, self.a), 0.5 * (without + without.transpose(0, 2, 1))

    def moments_across(self, Ks, variances) -> tuple[np.ndarray, np.ndarray]:
        """`joint_moments` from covariances (s, n) with X, one or one a class, and prior ``variances`` (s, kernels)."""
        return self._moments(lambda c, part: Ks[c][part], variances)

    def _moments(self, cross, variances):
        """From ``cross(c, part)``, some rows of covariances with X of class c, and prior ``variances`` (s, kernels)."""
        C, n = self.a.shape
        means, covariances = np.empty((len(variances), C)), np.empty((len(variances), C, C))
        for part in gram.pieces(len(variances), n * (C + 2)):
            Q = np.empty((part.stop - part.start, C, n))
            left = np.repeat(variances[part], C // len(self.kernels), axis=1)
            for c, s in enumerate(self.s):
                if c < len(self.kernels):
                    K = cross(c, part)
                means[part, c] = K @ self.a[c]
                V, L = K * s, self.factors[c].T
                backend.half_solve(L, V.T, in_place=True)
                left[:, c] -= np.einsum("ij,ij->i", V, V)
                backend.half_solve(L, V.T, transposed=True, in_place=True)
                V *= s  # E_c k
                Q[:, c] = backend.half_solve(self.common.T, V.T, in_place=True).T
            covariances[part] = Q @ Q.transpose(0, 2, 1)
            covariances[part, range(C), range(C)] += np.maximum(left, 0.0)
        return means, covariances

    def class_probabilities(self, Z, likelihood=None) -> np.ndarray:
        """(s, C), in pieces."""
        Z, C = self._aligned(Z), len(self.a)
        parts = gram.pieces(count_rows(Z), C * C)
        found = (probabilities(*self.joint_moments(take_rows(Z, part))) for part in parts)
        return np.concatenate([np.empty((0, C)), *found])

    def left_out(self, covariances, codes, likelihood=None) -> np.ndarray:
        """Class probabilities of each training row from all the others' sites: (n, C)."""
        return probabilities(*self.cavity([K.K for K in covariances()]))

    def mean(self, Z) -> np.ndarray:
        """(s, C)."""
        if len(self.kernels) == 1:
            return gram.product(self.kernels[0], Z, self._seen(0), self.a.T)
        Z = self._aligned(Z)
        parts = [gram.product(kernel, Z, self._seen(c), self.a[c]) for c, kernel in enumerate(self.kernels)]
        return np.stack(parts, axis=1)

    def _seen(self, c: int):
        return gram.kept(self, self.kernels[c], self.X)

    def _aligned(self, Z):
        return align_columns(self.X, Z, any(kernel.needs_all_columns for kernel in self.kernels))
