"""Several classes at once: C latent functions f_c and p(class c | f) = softmax(f)_c (PRML 4.104, 6.4.5; RW06 3.5).

The functions are independent Gaussian processes before the data; the softmax ties them together, one row at a time,
through W = diag(s) - s s^T / sum(s): at a mode s is pi = softmax(f), and its sum one. Arrays over classes and rows are
(C, n). Nothing of size nC x nC is ever made: O(C n^3) flops and C + 2 matrices n x n beside those of the priors.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from mercer.inference.latent import Covariance
from mercer.linalg import backend

MOST_STEPS = 200
HALVINGS = 40
STUCK = 1e-7  # of the height: what may be left to gain where rounding ends the climb
FORCING = 0.03  # how well a direction solves Newton's equations
ROUGHLY = 3  # iterations for a direction where the factorisation stays, and the next one will do better
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


class Climb:
    """Newton's method for the maximum of ln p(labels | f) - f^T K^-1 f / 2, where f_c = K_c a_c; or of another concave
    ``likelihood(f)``, which gives its value, pi with the gradient targets - pi, and the sites of its curvature W.

    (I + W K) delta = targets - pi - a is solved by conjugate gradients in the inner product of K, with `Joint` at an
    earlier W to precondition them: right after a factorisation one iteration is exact, and as long as W moves little a
    few do, at 8 C n^2 flops each. When they have taken about as long as a factorisation, there is a new one. Any such
    direction ascends, Psi is concave and a step that does not raise it enough is halved: this cannot diverge.
    """

    def __init__(self, processes: Processes, room, factor: Joint | None = None, likelihood: Callable | None = None,
                 most: int = MOST_STEPS):  # fmt: skip
        self.processes, self.room, self.likelihood = processes, room, likelihood or processes.likelihood
        self.factor, self.fixed = factor, factor is not None
        self.budget = ROUGHLY if self.fixed else max(4, processes.n // 150)
        self.tolerance, self.most = 1e-6 if self.fixed else 1e-17, most
        self.steps, self.converged = 0, False

    def stand(self, a):
        """Begin at a."""
        self.a, self.f = a, self.processes.times(a)
        value, self.pi, self.sites = self.likelihood(self.f)
        self.height = value - 0.5 * float(np.vdot(self.a, self.f))
        return self

    def from_the_better(self, start) -> bool:
        """From the mode of ``start`` or from nothing, whatever is higher."""
        nothing = np.zeros_like(self.processes.targets)
        flat = -self.processes.n * math.log(self.processes.classes)
        if start is not None and start.a.shape == nothing.shape and self.stand(start.a).height > flat:
            return self.up()
        return self.stand(nothing).up(alike=self.processes.shared)

    def up(self, alike: bool = False) -> bool:
        """To the top; False where a factorisation fails."""
        processes, spent = self.processes, 0
        for _ in range(self.most):
            rho = processes.targets - self.pi - self.a
            if self.factor is None or (spent >= self.budget and not self.fixed):
                self.factor = Joint(processes, self.sites, self.room, alike and self.steps == 0)
                spent = 0
            if not self.factor.positive or not math.isfinite(self.height):
                return False
            direction, moved, iterations = self._direction(rho)
            spent += iterations
            promise = float(np.vdot(rho, moved))
            self.steps += 1
            risen = self._step(direction, moved, promise)
            scale = max(1.0, abs(self.height))
            self.converged = promise < (self.tolerance if risen else STUCK) * scale
            if self.converged or not risen:
                break
        return True

    def _step(self, direction, moved, promise) -> bool:
        share, slack = 1.0, 1e-13 * max(1.0, abs(self.height))
        for _ in range(HALVINGS):
            a, f = self.a + share * direction, self.f + share * moved
            value, pi, sites = self.likelihood(f)
            height = value - 0.5 * float(np.vdot(a, f))
            if height >= self.height + 0.1 * share * promise - slack:
                self.a, self.f, self.pi, self.sites, self.height = a, f, pi, sites, height
                return True
            share /= 2
        return False

    def _direction(self, rho):
        """delta, K delta and how many iterations it took."""
        K, R, s = self.processes, self.factor, self.sites
        assert R is not None
        delta, moved, p, Kp = (np.zeros_like(rho) for _ in range(4))
        r, Kr = rho, K.times(rho)
        first = last = 0.0
        total = s.sum(axis=0)
        for iteration in range(self.budget + 1):
            z = r - R.times(Kr)
            size = float(np.vdot(z, Kr))
            if iteration == 0 and not size > 0:  # lost in rounding, where K W is huge: along the gradient itself
                z, size = r, float(np.vdot(r, Kr))
            first = first or size
            if not size > FORCING**2 * first * (iteration > 0):
                break
            ratio = size / last if iteration else 0.0
            p, Kp = z + ratio * p, K.times(z) + ratio * Kp
            Ap = p + s * (Kp - (s * Kp).sum(axis=0) / total)
            curved = float(np.vdot(Kp, Ap))
            if not curved > 0:  # nothing is left but rounding
                break
            length = size / curved
            delta, moved = delta + length * p, moved + length * Kp
            r = r - length * Ap
            Kr, last = K.times(r), size
        return delta, moved, iteration


def factor_B(K: Covariance, s, out):
    """The Cholesky factor of B = I + S^1/2 K S^1/2 over ``out``, and its diagonal; None where there is none."""
    with np.errstate(all="ignore"):
        np.multiply(K.K, s[:, None], out=out)
        out *= s
    out.ravel()[:: K.n + 1] += 1.0
    return np.diag(out) if backend.factor(out.T) else None


def room_for(processes, start):
    shape = processes.classes + 1, processes.n, processes.n
    room = None if start is None else start.give_room()
    return room if room is not None and room.shape == shape else np.empty(shape)


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
