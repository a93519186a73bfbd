"""Inference with Gaussian sites by neighbours: classes and counts of many places (Zilber and Katzfuss 2021).

The prior of the latent function is that of Vecchia's approximation: its precision on the training rows is the sparse
Q = (I - B)^T D^-1 (I - B), so that posteriors with sites S have the precision Q + S. The factor of that, and the
entries of its inverse on the sets that rows are conditioned on, come from nested dissection (`linalg.dissection`):
O(n^1.5) for two inputs. With K = Q^-1, R = S^1/2 B^-1 S^1/2 is Q - Q (Q + S)^-1 Q.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from mercer import gram
from mercer.core.coordinates import from_free
from mercer.core.inputs import Inputs, count_rows
from mercer.inference.base import Labels
from mercer.inference.latent import LatentCovariance, LatentSpace, SiteFactor
from mercer.inference.sites import MIN_LATENT_VARIANCE, LatentMatrix, SiteApproximation
from mercer.kernels.base import Kernel
from mercer.kernels.sets import on_sets
from mercer.linalg.dissection import DissectedFactor, Dissection
from mercer.linalg.jitter import SAMPLING
from mercer.linalg.ordering import Sets, maximin_order, nearest_before
from mercer.linalg.vecchia import SetFactors, SparseFactor
from mercer.solvers.measured_sites import MeasuredSites, OneFunction
from mercer.solvers.neighbor_evidence import scaled_inputs
from mercer.solvers.neighbor_posterior import NeighborPosterior


class LatentNeighbors(LatentSpace):
    """A kernel of places on fixed rows, each conditioned on ``n_neighbors`` near ones before it, and
    new ones predicted from ``n_predict``."""

    K: SetFactors

    def __init__(self, kernel: Kernel, X: Inputs, n_neighbors: int, n_predict: int) -> None:
        self.kernel, self.X, self.n = kernel, X, count_rows(X)
        self.rank, self.n_neighbors, self.n_predict = self.n, n_neighbors, n_predict
        points = scaled_inputs(kernel, X)
        self.order = maximin_order(points)
        self.points = points[self.order]
        before = nearest_before(self.points, n_neighbors)
        rows = gram.on(kernel, X)[self.order]
        self._kernel = on_sets(kernel, rows.X, rows.rows)
        self.K = SetFactors(Sets.each(before))

    @property
    def size(self) -> int:
        return self._kernel.layout.size

    @functools.cached_property
    def tree(self) -> Dissection:
        """Of the sets of rows and what they are conditioned on, in the columns of the factor."""
        width, members = self.K.sets.members.shape[1], np.full((self.n, self.K.sets.members.shape[1]), -1)
        last = self.K.sets.sizes - 1
        targets = self.K.sets.members[np.arange(self.n), last]
        members[targets] = np.where(np.arange(width) <= last[:, None], self.K.sets.members, -1)
        return Dissection(self.points, members)

    def at(self, theta: np.ndarray, jitter: float = 0.0, accurate: bool = False) -> "NeighborCovariance":
        return NeighborCovariance(self, np.asarray(theta, dtype=float), jitter)

    def rooted(self, theta: np.ndarray, accurate: bool = False) -> tuple[LatentCovariance, np.ndarray] | None:
        """Samplers have a root of the matrix itself."""
        return LatentMatrix(from_free(self.kernel, theta), self.X).rooted(theta, accurate)

    def contraction(self, theta: np.ndarray) -> Callable[..., np.ndarray]:
        """`NeighborSiteFactor.slope` has what it needs."""
        return lambda *_: np.zeros(self.size)


class NeighborCovariance(OneFunction):
    """K = Q^-1 at theta, plus ``jitter`` and as much more as the sets need. ``sparse`` is None where they cannot be
    factorised: then nothing is finite."""

    sparse: SparseFactor | None

    def __init__(self, space: LatentNeighbors, theta: np.ndarray, jitter: float) -> None:
        self.space, self.n, self.covariances = space, space.n, space._kernel.at(theta)
        kernel = from_free(space.kernel, theta)
        variances = gram.on(kernel, space.X).diagonal()
        scale = float(np.mean(variances)) if self.n else 1.0
        self.sparse = None
        if np.isfinite(scale):
            with np.errstate(all="ignore"):
                for relative in SAMPLING(self.n):  # the first is always added: Q is bounded only then
                    self.noise = np.full(self.n, jitter + relative * scale)
                    self.sparse = space.K.factor(self.covariances, self.noise)
                    if self.sparse is not None:
                        break
        self.diagonal = variances + self.noise if self.sparse is not None else np.full(self.n, np.nan)

    def unordered(self, values: np.ndarray) -> np.ndarray:
        out = np.empty_like(values)
        out[self.space.order] = values
        return out

    def times(self, v: np.ndarray) -> np.ndarray:
        if self.sparse is None:
            return np.full(self.n, np.nan)
        return self.unordered(self.sparse.times(v[self.space.order][:, None])[:, 0])

    def factor(self, S: np.ndarray) -> "NeighborSiteFactor | None":
        if self.sparse is None or not ((S >= 0) & np.isfinite(S)).all():
            return None
        S, sparse = S[self.space.order], self.sparse
        found = self.space.tree.factor(self._vectors, sparse.variance, S)
        return None if found is None else NeighborSiteFactor(self, S, found)

    @functools.cached_property
    def _vectors(self) -> np.ndarray:
        """(-b, 1) of every row, on the members of the tree: (n, m)."""
        assert self.sparse is not None
        counts = np.diff(self.sparse.ends)
        out = np.zeros((self.n, int(counts.max(initial=0)) + 1))
        out[np.arange(out.shape[1]) < counts[:, None]] = -self.sparse.values
        out[np.arange(self.n), counts] = 1.0
        return out


class NeighborSiteFactor(SiteFactor):
    """Of Q + S, by nested dissection. Rows are in maximin order inside."""

    def __init__(self, K: NeighborCovariance, S: np.ndarray, found: DissectedFactor) -> None:
        assert K.sparse is not None
        self.K, self.S, self.found, self.sparse = K, S, found, K.sparse
        self.log_det = found.log_det() + K.sparse.log_det()

    @property
    def prior(self) -> NeighborCovariance:
        return self.K

    def weights(self, nu: np.ndarray) -> np.ndarray:
        """Q (Q + S)^-1 nu = nu - S (Q + S)^-1 nu. The second form has no large numbers."""
        nu = nu[self.K.space.order]
        return self.K.unordered(nu - self.S * self.found.solve(nu))

    def variance(self) -> np.ndarray:
        return np.maximum(self.K.unordered(self.found.inverse()[0]), MIN_LATENT_VARIANCE)

    def slope(
        self, contract: Callable[..., np.ndarray], a: np.ndarray, through_mode: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """With dK = -K dQ K, f = K a and P = Q + S: 1/2 tr((K - P^-1 - f f^T - 2 Ku (Kg)^T) dQ), where tr K dQ is the
        derivative of ln |Q|. Of M = P^-1 + f f^T + 2 Ku (Kg)^T, the sets have all that is needed."""
        K, sparse, order = self.K, self.sparse, self.K.space.order
        along = self.found.inverse(along=True)[1]
        assert along is not None
        counts = np.diff(sparse.ends)
        size = np.einsum("ij,ij->i", along, K._vectors)
        along = along[np.arange(along.shape[1]) < counts[:, None]]
        squares = [(1.0, K.times(a))]
        if through_mode is not None:  # p q^T + q p^T is half the difference of two squares
            p, q = map(K.times, through_mode)
            squares += [(0.5, p + q), (-0.5, p - q)]
        for factor, z in squares:
            of_size, of_along = sparse.products(z[order][:, None])
            size, along = size + factor * of_size, along + factor * of_along
        slope, _ = K.space.K.contract_products(K.covariances, K.noise, sparse, size, along)
        return slope

    def posterior(self, kernel: Kernel, X: Inputs, approximation: SiteApproximation, given: Labels) -> "NeighborSites":
        return NeighborSites(
            kernel,
            X,
            approximation.a,
            np.sqrt(approximation.S),
            self.K.space.n_neighbors,
            self.K.space.n_predict,
            given,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class NeighborSites(MeasuredSites):
    """Approximate posterior of a latent function of places."""

    kernel: Kernel
    X: Inputs
    a: np.ndarray
    s: np.ndarray
    n_neighbors: int
    n_predict: int
    given: Labels | None = None

    @property
    def space(self) -> Callable[[Kernel, Inputs], LatentSpace]:  # type: ignore[override]
        return functools.partial(LatentNeighbors, n_neighbors=self.n_neighbors, n_predict=self.n_predict)

    def conditioned(self, y: np.ndarray, noise: np.ndarray) -> NeighborPosterior:
        return NeighborPosterior.given(self.kernel, self.X, y, noise, None, self.n_neighbors, self.n_predict, True)
