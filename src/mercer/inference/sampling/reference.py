"""The Gaussian reference around which samplers move.

All are made in coordinates z in which a Gaussian reference is N(0, I): the prior, f = R z with R R^T = K, or the prior
times Gaussian sites exp(nu f - S f^2 / 2), as Laplace's method or expectation propagation find them. What is left of
the posterior beside the reference, p(t | f) over the sites, is nearly constant, so that moves along ellipses, on which
the reference does not change, go far. Any sites leave the posterior what it is; good ones make it quick.

A likelihood here is a function of k latent vectors at once, (k, n) or (k, n, C): it answers with ln p(t | f), (k,), or
with that and its slope in f, of the shape of f. With a slope, moves are Hamiltonian; without, elliptical slices.
"""

from typing import NamedTuple

import numpy as np

from mercer.core.errors import NotPositiveDefiniteError, ParameterError
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt


class State(NamedTuple):
    """k chains: coordinates z, latents f, ln p(t | f) over the sites, and its slope in z or None."""

    z: np.ndarray
    f: np.ndarray
    value: np.ndarray
    slope: np.ndarray | None

    def where(self, chosen, other: "State") -> "State":
        """This state for the chains ``chosen``, the other one for the rest."""

        def pick(a, b):
            return None if a is None else np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        return State(*(pick(a, b) for a, b in zip(self, other, strict=True)))


def contrasts(C: int) -> np.ndarray:
    """An orthogonal matrix (C, C) whose first column is the same for all classes: softmax does not see it."""
    return np.linalg.qr(np.column_stack([np.ones(C), np.eye(C)[:, 1:]]))[0]


class Reference:
    """f = mean + Q z with z ~ N(0, I): the prior N(0, R R^T), times sites (nu, S) if there are any.

    With sites, A = I + R^T S R = M M^T, Q = R M^-T, mean = Q Q^T nu, and ``log_z`` is the logarithm of the integral of
    prior times sites, nu^T mean / 2 - ln|A| / 2. No K is inverted, so K may be singular.

    R is (n, r), shared by C latent functions if there are ``classes``, or (C, n, r); latents are (k, n) or (k, C, n)
    inside, (k, n, C) outside. Functions that share R may be turned: `contrasts` of them are as independent, and softmax
    sees all but the first. Sites (C, n) of several classes are sites of these.
    """

    def __init__(self, R, log_likelihood, sites=None, classes: int | None = None):
        self.R, self.log_likelihood, self.sites = R, log_likelihood, sites
        self.classes = len(R) if R.ndim == 3 else classes
        self.shape = (R.shape[-1],) if self.classes is None else (self.classes, R.shape[-1])
        self.M: Cholesky | None = None
        self.turn, self.log_z = None, 0.0
        self.mean: np.ndarray | float = 0.0
        if sites is not None and R.ndim == 3:
            raise ParameterError("sites are for one latent function, or classes that share a root; pass sites=None.")
        if sites is not None and self.classes is not None:
            parts = [Reference(R, None, each).explicitly() for each in zip(*sites, strict=True)]
            self.R, self.mean = np.stack([part.R for part in parts]), np.stack([part.mean for part in parts])
            self.log_z = sum(part.log_z for part in parts)
            self.turn = contrasts(self.classes)
        elif sites is not None:
            nu, S = sites
            scaled = np.sqrt(S)[:, None] * R
            A = backend.gram(scaled)
            A[np.diag_indices_from(A)] += 1.0
            self.M = attempt(A, clean=True)
            if self.M is None or not np.isfinite(A.sum()):
                raise NotPositiveDefiniteError("sites or covariance are not finite; check the kernel and the sites.")
            self.mean = self.push(self.pull(nu[None]), centred=True)[0]
            self.log_z = 0.5 * float(nu @ self.mean) - 0.5 * self.M.log_det()

    def explicitly(self) -> "Reference":
        """Q in place of R and M, for many moves: n r^2 flops once, half the work of every move after."""
        if self.M is not None:
            self.R = np.ascontiguousarray(self.M.half_solve(self.R.T).T)
            self.M = None
        return self

    def push(self, z, centred: bool = False) -> np.ndarray:
        """f, or f - mean, at z."""
        if self.M is not None:
            z = self.M.half_solve(z.T, transposed=True).T
        f = z @ self.R.T if self.R.ndim == 2 else (z[..., None, :] @ self.R.transpose(0, 2, 1))[..., 0, :]
        return f if centred else f + self.mean

    def pull(self, slope) -> np.ndarray:
        """A slope in z from one in f."""
        z = slope @ self.R if self.R.ndim == 2 else (slope[..., None, :] @ self.R)[..., 0, :]
        return z if self.M is None else self.M.half_solve(z.T).T

    def evaluate(self, f):
        """ln p(t | f) over the sites, and its slope in f or None. What is not a number is minus infinity."""
        with np.errstate(all="ignore"):
            found = self.log_likelihood(self.outside(f))
            value, slope = found if isinstance(found, tuple) else (found, None)
            slope = None if slope is None else self.inside(slope)
            if self.sites is not None:
                nu, S = self.sites
                pull = S * f
                value = value - np.sum((nu - 0.5 * pull) * f, axis=tuple(range(1, f.ndim)))
                slope = None if slope is None else slope - nu + pull
        return np.where(np.isfinite(value), value, -np.inf), slope

    def outside(self, f):
        """(k, n) or (k, n, C)."""
        if self.classes is None:
            return f
        f = np.swapaxes(f, -1, -2)
        return f if self.turn is None else f @ self.turn.T

    def inside(self, f):
        """The way back, of a slope too."""
        if self.classes is None:
            return f
        return np.swapaxes(f if self.turn is None else f @ self.turn, -1, -2)

    def coordinates(self, f) -> np.ndarray:
        """z of one latent vector (n,) or (n, C), once R is explicit; the nearest one, if K is singular."""
        f = self.inside(f) - self.mean
        if self.classes is None:
            return np.linalg.lstsq(self.R, f)[0]
        roots = self.R if self.R.ndim == 3 else [self.R] * self.classes
        return np.stack([np.linalg.lstsq(R, part)[0] for R, part in zip(roots, f, strict=True)])

    def weighed(self, z) -> State:
        """Without the slope."""
        f = self.push(z)
        return State(z, f, self.evaluate(f)[0], None)

    def state(self, z) -> State:
        f = self.push(z)
        value, slope = self.evaluate(f)
        return State(z, f, value, None if slope is None else self.pull(slope))


def stacked(R):
    """One root, or several of one shape: columns of zeros change nothing."""
    if isinstance(R, np.ndarray):
        return R
    rank = max(root.shape[1] for root in R)
    return np.stack([np.pad(root, ((0, 0), (0, rank - root.shape[1]))) for root in R])
