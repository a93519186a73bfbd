"""C latent functions behind a softmax: their priors, and the structured factor of the joint covariance."""

import numpy as np

from mercer.inference.sites import Covariance
from mercer.linalg import backend

TILE = 256


class Processes:
    """C independent priors on n rows, with one covariance shared by all classes or one each."""

    def __init__(self, Ks: list[Covariance], labels, classes: int | None = None):
        self.n = Ks[0].n
        self.classes = classes or (len(Ks) if len(Ks) > 1 else int(labels.max(initial=0)) + 1)
        self.Ks, self.shared = Ks, len(Ks) == 1
        self.labels, self.rows = labels, np.arange(self.n)
        self.targets = np.zeros((self.classes, self.n))
        self.targets[labels, self.rows] = 1.0

    def times(self, V) -> np.ndarray:
        """K_c v_c for every class. 2 C n^2 flops."""
        return _products([K.K.T for K in self.Ks], V, lower=1)

    def of(self, c) -> Covariance:
        return self.Ks[0 if self.shared else c]

    def likelihood(self, f):
        """ln p(labels | f), pi = softmax(f), and the sites s of its curvature W, here pi too."""
        top = f.max(axis=0)
        pi = np.exp(f - top)
        total = pi.sum(axis=0)
        pi /= total
        return float((f[self.labels, self.rows] - top - np.log(total)).sum()), pi, pi


class Joint:
    """R = W (I + K W)^-1, which is (K + W^-1)^-1 for a W that has no inverse (RW06 3.5, Alg 3.3).

    With E_c = D_c^1/2 B_c^-1 D_c^1/2, B_c = I + D_c^1/2 K_c D_c^1/2, D_c = diag(s_c) and M M^T = sum_c E_c, the block
    (c, d) of R is delta_cd E_c - E_c (M M^T)^-1 E_d, and ln |I + K W| = sum_c ln |B_c| + ln |M M^T| - ln |sum_c D_c|.
    C n^3 + n^3/3 flops. With ``alike`` all classes have the E of the first.
    """

    def __init__(self, processes: Processes, sites, room, alike: bool = False):
        self.sites, self.n = sites, processes.n
        self.room = room
        *E, self.M = room
        self.E = E[:1] if alike else E
        self.side = 1  # which triangle has E: to LAPACK, the lower
        self.positive, self.log_det = True, 0.0
        self.M.fill(0.0)
        with np.errstate(all="ignore"):  # below the diagonals is anything
            for c, E_c in enumerate(self.E):
                s = np.sqrt(sites[c])
                diagonal = factor_B(processes.of(c), s, E_c)
                if diagonal is None:
                    self.positive = False
                    return
                self.log_det += 2 * float(np.log(diagonal).sum())
                backend.invert(E_c.T)
                E_c *= s[:, None]
                E_c *= s
                self.M += E_c
            if alike:
                self.log_det *= len(sites)
                self.M *= len(sites)
        self.positive = backend.factor(self.M.T)
        if self.positive:
            self.log_det += 2 * float(np.log(np.diag(self.M)).sum()) - float(np.log(sites.sum(axis=0)).sum())

    def times(self, V) -> np.ndarray:
        """R v. 4 C n^2 flops."""
        triangles = [E_c.T for E_c in self.E]
        out = _products(triangles, V, self.side)
        common = backend.solve(self.M.T, out.sum(axis=0))
        return out - _products(triangles, np.tile(common, (len(triangles), 1)), self.side)

    def shares(self, blocks: bool = False) -> np.ndarray:
        """q_c = 1 - diag(R_cc) / s_c: (C, n), no less than s_c / sum(s) and no more than 1. C n^3 flops.

        At a mode, where s = pi, whatever is needed of the posterior covariance Sigma = (K^-1 + W)^-1 on one row is in q
        (put K_c E_c = I - D_c^-1 E_c into Sigma = K - K R K): tr(W Sigma) = sum_c q_c - 1.
        With ``blocks``, R_cc takes the place of E_c, which moves to the other triangle. C n^3 more.
        """
        r, work = np.empty_like(self.sites), np.empty((self.n, self.n))
        for c, E_c in enumerate(self.E):
            _mirror(E_c)
            e = np.diag(E_c).copy()
            work[:] = E_c
            Y = backend.half_solve(self.M.T, work.T, in_place=True)  # M^-1 E_c
            r[c] = e - np.einsum("ij,ij->i", work, work)
            if blocks:
                backend.subtract_gram(E_c.T, Y)
                np.fill_diagonal(E_c, e)
        if blocks:
            self.side, self.diagonals = 0, r
        with np.errstate(divide="ignore", invalid="ignore"):
            q = 1 - np.where(self.sites > 1e-300, r / self.sites, 1.0)
        return np.clip(q, self.sites / self.sites.sum(axis=0), 1.0)

    def contrasts(self) -> np.ndarray:
        """The posterior covariance of the C functions on every row, but for what no difference of two functions feels:
        (n, C, C). C n^3 flops.

        K_c E_c = I - D_c^-1 E_c in Sigma = K - K R K leaves delta_cd (1 - e_c / s_c) / s_c, e_c = diag(E_c), plus
        diag(E_c (M M^T)^-1 E_d) / (s_c s_d), plus what is b_c + b_d for any two classes.
        """
        C, n = self.sites.shape
        V = np.empty((n, C, C))
        for E_c in self.E:
            _mirror(E_c)
        e = np.array([np.diag(E_c) for E_c in self.E])
        for first in range(0, n, TILE):
            part = slice(first, min(first + TILE, n))
            Y = np.empty((part.stop - first, C, n))
            for c, E_c in enumerate(self.E):
                work = E_c[part] / self.sites[c, part, None]
                Y[:, c] = backend.half_solve(self.M.T, work.T, in_place=True).T
            V[part] = Y @ Y.transpose(0, 2, 1)
        V[:, range(C), range(C)] += (np.maximum(1 - e / self.sites, 0.0) / self.sites).T
        return V

    def block(self, classes) -> np.ndarray:
        """The sum of R_cc over some classes, in the place of the first."""
        first, *others = classes
        out = self.E[first]
        with np.errstate(all="ignore"):
            for c in others:
                out += self.E[c]
        np.fill_diagonal(out, self.diagonals[classes].sum(axis=0))
        return out


def factor_B(K: Covariance, s, out):
    """The Cholesky factor of B = I + S^1/2 K S^1/2 over ``out``, and its diagonal; None where there is none."""
    with np.errstate(all="ignore"):
        np.multiply(K.K, s[:, None], out=out)
        out *= s
    out.ravel()[:: K.n + 1] += 1.0
    return np.diag(out) if backend.factor(out.T) else None


def _products(triangles, V, lower):
    """T_c v_c for symmetric T_c, or T v_c for one T."""
    if len(triangles) == 1:
        return backend.product(triangles[0], V.T, lower).T
    return np.stack([backend.product(T, v, lower) for T, v in zip(triangles, V, strict=True)])


def _mirror(A):
    """What is above the diagonal also below it."""
    n = len(A)
    for i in range(0, n, TILE):
        for j in range(i, n, TILE):
            tile = A[i : i + TILE, j : j + TILE]
            A[j : j + TILE, i : i + TILE] = tile.T if i < j else np.triu(tile) + np.triu(tile, 1).T
