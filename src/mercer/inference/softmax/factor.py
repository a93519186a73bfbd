"""The softmax model on the training rows, and the structured factor of its posterior precision."""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mercer.core.inputs import Inputs
from mercer.inference.base import Contraction, Labels
from mercer.inference.latent import LatentCovariance
from mercer.inference.sites import factor_B
from mercer.linalg import backend
from mercer.linalg.cholesky import mirror_upper

if TYPE_CHECKING:  # this module is imported by it
    from mercer.inference.softmax.posterior import JointPosterior, SoftmaxApproximation

TILE_ROWS = 256  # of a matrix processed at a time
MIN_DIVISOR = 1e-300  # sites below it have no ratio


class SoftmaxModel:
    """C independent priors on n rows, with one covariance shared by all classes or one each, and the labels (n,)."""

    def __init__(self, Ks: Sequence[LatentCovariance], labels: np.ndarray, classes: int | None = None) -> None:
        self.n = Ks[0].n
        self.classes = classes or (len(Ks) if len(Ks) > 1 else int(labels.max(initial=0)) + 1)
        self.Ks, self.shared = Ks, len(Ks) == 1
        self.labels, self.rows = labels, np.arange(self.n)
        self.targets = np.zeros((self.classes, self.n))
        self.targets[labels, self.rows] = 1.0

    def times(self, V: np.ndarray) -> np.ndarray:
        """K_c v_c for every class. 2 C n^2 flops."""
        if self.shared:
            return self.Ks[0].times(V.T).T
        return np.stack([K.times(v) for K, v in zip(self.Ks, V, strict=True)])

    def covariance(self, c: int) -> Any:
        """Prior covariance of class c."""
        return self.Ks[0 if self.shared else c]

    def workspace(self, earlier: Any = None) -> np.ndarray:
        """Memory for a `factor`, taken from an ``earlier`` approximation if it has the same size."""
        shape = self.Ks[0].joint.workspace_shape(self)
        memory = None if earlier is None else earlier.take_workspace()
        return memory if memory is not None and memory.shape == shape else np.empty(shape)

    def factor(self, sites: np.ndarray, workspace: np.ndarray, equal_classes: bool = False) -> "JointSites":
        """The posterior with these sites. ``equal_classes``: all have the same sites and covariance."""
        return self.Ks[0].joint(self, sites, workspace, equal_classes)

    def likelihood(self, f: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """ln p(labels | f), pi = softmax(f), and the sites s of its curvature W, which are pi too."""
        top = f.max(axis=0)
        pi = np.exp(f - top)
        total = pi.sum(axis=0)
        pi /= total
        return float((f[self.labels, self.rows] - top - np.log(total)).sum()), pi, pi


class JointSites(abc.ABC):
    """Posterior covariance (K^-1 + W)^-1 of C latent functions with W(s) on every row, through R = W (I + K W)^-1."""

    positive: bool  # whether factorisation succeeded
    log_det: float  # ln |I + K W|

    @abc.abstractmethod
    def __init__(
        self, model: SoftmaxModel, sites: np.ndarray, workspace: np.ndarray, equal_classes: bool = False
    ) -> None: ...

    @classmethod
    @abc.abstractmethod
    def workspace_shape(cls, model: SoftmaxModel) -> tuple[int, ...]:
        """Of the memory that it overwrites."""

    @abc.abstractmethod
    def times(self, V: np.ndarray) -> np.ndarray:
        """R v, of (C, n)."""

    @abc.abstractmethod
    def scaled_variances(self, keep_blocks: bool = False) -> np.ndarray:
        """q_c = 1 - diag(R_cc) / s_c: (C, n), between s_c / sum(s) and 1. ``keep_blocks``: `slope` will follow."""

    @abc.abstractmethod
    def row_covariances(self) -> np.ndarray:
        """Posterior covariance of the C functions on every row, up to terms b_c + b_d that no difference of two
        functions depends on: (n, C, C)."""

    @abc.abstractmethod
    def slope(self, contractions: Sequence[Contraction], a: np.ndarray, u: np.ndarray | None) -> np.ndarray:
        """d ln Z / d theta (`SoftmaxApproximation.slope`). Overwrites the factor."""

    @staticmethod
    @abc.abstractmethod
    def posterior(
        found: "SoftmaxApproximation", kernels: Sequence[Any], X: Inputs, given: Labels | None
    ) -> "JointPosterior":
        """The approximate posterior as a distribution over functions. May take the workspace."""


class JointFactor(JointSites):
    """R = W (I + K W)^-1, which is (K + W^-1)^-1 for a W that has no inverse (RW06 3.5, Alg 3.3).

    With E_c = D_c^1/2 B_c^-1 D_c^1/2, B_c = I + D_c^1/2 K_c D_c^1/2, D_c = diag(s_c) and M M^T = sum_c E_c, the block
    (c, d) of R is delta_cd E_c - E_c (M M^T)^-1 E_d, and ln |I + K W| = sum_c ln |B_c| + ln |M M^T| - ln |sum_c D_c|.
    C n^3 + n^3/3 flops. With ``equal_classes`` all classes have the E of the first. ``workspace`` (C + 1, n, n) is
    overwritten. ``positive`` is False if a factorisation failed.
    """

    def __init__(
        self, model: SoftmaxModel, sites: np.ndarray, workspace: np.ndarray, equal_classes: bool = False
    ) -> None:
        self.sites, self.n, self.shared = sites, model.n, model.shared
        *E, self.M = workspace
        self.E = E[:1] if equal_classes else E
        self.lower = True  # the triangle that holds E, in the order of LAPACK
        self.positive, self.log_det = False, 0.0
        self.M.fill(0.0)
        with np.errstate(all="ignore"):  # values below the diagonals are arbitrary
            for c, E_c in enumerate(self.E):
                s = np.sqrt(sites[c])
                if not factor_B(model.covariance(c), s, E_c):
                    return
                self.log_det += 2 * float(np.log(np.diag(E_c)).sum())
                backend.invert(E_c.T)
                E_c *= s[:, None]
                E_c *= s
                self.M += E_c
            if equal_classes:
                self.log_det *= len(sites)
                self.M *= len(sites)
        self.positive = backend.factor(self.M.T)
        if self.positive:
            self.log_det += 2 * float(np.log(np.diag(self.M)).sum()) - float(np.log(sites.sum(axis=0)).sum())

    @classmethod
    def workspace_shape(cls, model: SoftmaxModel) -> tuple[int, ...]:
        return model.classes + 1, model.n, model.n

    def times(self, V: np.ndarray) -> np.ndarray:
        """R v. 4 C n^2 flops."""
        triangles = [E_c.T for E_c in self.E]
        out = _products(triangles, V, self.lower)
        common = backend.solve(self.M.T, out.sum(axis=0))
        return out - _products(triangles, np.tile(common, (len(triangles), 1)), self.lower)

    def scaled_variances(self, keep_blocks: bool = False) -> np.ndarray:
        """q_c = 1 - diag(R_cc) / s_c: (C, n), between s_c / sum(s) and 1. C n^3 flops.

        At a mode, where s = pi, everything needed of the posterior covariance Sigma = (K^-1 + W)^-1 of a row follows
        from q (substitute K_c E_c = I - D_c^-1 E_c in Sigma = K - K R K): tr(W Sigma) = sum_c q_c - 1.
        With ``keep_blocks``, R_cc replaces E_c, which moves to the other triangle. C n^3 more.
        """
        r, work = np.empty_like(self.sites), np.empty((self.n, self.n))
        for c, E_c in enumerate(self.E):
            mirror_upper(E_c)
            e = np.diag(E_c).copy()
            work[:] = E_c
            Y = backend.half_solve(self.M.T, work.T, in_place=True)  # M^-1 E_c
            r[c] = e - np.einsum("ij,ij->i", work, work)
            if keep_blocks:
                backend.subtract_gram(E_c.T, Y)
                np.fill_diagonal(E_c, e)
        if keep_blocks:
            self.lower, self.diagonals = False, r
        with np.errstate(divide="ignore", invalid="ignore"):
            q = 1 - np.where(self.sites > MIN_DIVISOR, r / self.sites, 1.0)
        return np.clip(q, self.sites / self.sites.sum(axis=0), 1.0)

    def row_covariances(self) -> np.ndarray:
        """Posterior covariance of the C functions on every row, up to terms b_c + b_d that no difference of two
        functions depends on: (n, C, C). C n^3 flops.

        K_c E_c = I - D_c^-1 E_c in Sigma = K - K R K leaves delta_cd (1 - e_c / s_c) / s_c, e_c = diag(E_c), plus
        diag(E_c (M M^T)^-1 E_d) / (s_c s_d), plus such terms.
        """
        C, n = self.sites.shape
        V = np.empty((n, C, C))
        for E_c in self.E:
            mirror_upper(E_c)
        e = np.array([np.diag(E_c) for E_c in self.E])
        for first in range(0, n, TILE_ROWS):
            part = slice(first, min(first + TILE_ROWS, n))
            Y = np.empty((part.stop - first, C, n))
            for c, E_c in enumerate(self.E):
                work = E_c[part] / self.sites[c, part, None]
                Y[:, c] = backend.half_solve(self.M.T, work.T, in_place=True).T
            V[part] = Y @ Y.transpose(0, 2, 1)
        V[:, range(C), range(C)] += (np.maximum(1 - e / self.sites, 0.0) / self.sites).T
        return V

    def slope(self, contractions: Sequence[Contraction], a: np.ndarray, u: np.ndarray | None) -> np.ndarray:
        if self.lower:
            self.scaled_variances(keep_blocks=True)
        C, n = a.shape
        groups = [list(range(C))] if self.shared else [[c] for c in range(C)]
        half = 0.5 * a if u is None else 0.5 * a + u
        slopes = []
        for classes, contract in zip(groups, contractions, strict=True):
            G = self.summed_block(classes)
            backend.subtract_products(G.T, a[classes].T, half[classes].T)
            slopes.append(np.atleast_1d(0.5 * contract(G, np.zeros(n))))
        return np.concatenate(slopes)

    @staticmethod
    def posterior(
        found: "SoftmaxApproximation", kernels: Sequence[Any], X: Inputs, given: Labels | None
    ) -> "JointPosterior":
        from mercer.inference.softmax.posterior import SoftmaxPosterior  # which imports this module

        return SoftmaxPosterior.of(found, kernels, X, given)

    def summed_block(self, classes: list[int]) -> np.ndarray:
        """Sum of R_cc over some classes, in place of the first, after `scaled_variances` with ``keep_blocks``."""
        first, *others = classes
        out = self.E[first]
        with np.errstate(all="ignore"):
            for c in others:
                out += self.E[c]
        np.fill_diagonal(out, self.diagonals[classes].sum(axis=0))
        return out


def _products(triangles: list[np.ndarray], V: np.ndarray, lower: bool) -> np.ndarray:
    """T_c v_c for symmetric T_c, or T v_c for one T."""
    if len(triangles) == 1:
        return backend.product(triangles[0], V.T, lower).T
    return np.stack([backend.product(T, v, lower) for T, v in zip(triangles, V, strict=True)])
