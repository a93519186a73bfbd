"""The Gaussian reference distribution around which samplers move, and the states of the chains."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mercer.core.errors import NotPositiveDefiniteError, ParameterError
from mercer.linalg import backend
from mercer.linalg.cholesky import Cholesky, attempt

LogLikelihood = Callable[[np.ndarray], np.ndarray | tuple[np.ndarray, np.ndarray]]
Sites = tuple[np.ndarray, np.ndarray]  # nu, S


class LatentState(NamedTuple):
    """k chains: coordinates z, latents f, ln p(t | f) less the sites, and its gradient in z or None."""

    z: np.ndarray
    f: np.ndarray
    value: np.ndarray
    slope: np.ndarray | None

    def where(self, chosen: np.ndarray, other: "LatentState") -> "LatentState":
        """This state for the chains ``chosen``, the other one for the rest."""

        def pick(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        slope = None if self.slope is None or other.slope is None else pick(self.slope, other.slope)
        return LatentState(pick(self.z, other.z), pick(self.f, other.f), pick(self.value, other.value), slope)


def contrasts(C: int) -> np.ndarray:
    """Orthogonal matrix (C, C) whose first column is constant: the direction that softmax does not depend on."""
    return np.linalg.qr(np.column_stack([np.ones(C), np.eye(C)[:, 1:]]))[0]


class Reference:
    """f = mean + Q z with z ~ N(0, I): the prior N(0, R R^T), times sites (nu, S) if given.

    With sites, A = I + R^T S R = M M^T, Q = R M^-T, mean = Q Q^T nu, and ``log_z`` is the logarithm of the integral of
    prior times sites, nu^T mean / 2 - ln|A| / 2. K is not inverted, so it may be singular.

    R is (n, r), shared by C latent functions if there are ``classes``, or (C, n, r). Latents are (k, n) or (k, C, n)
    internally; likelihoods and users see (k, n) or (k, n, C). Functions that share R may be rotated: their `contrasts`
    are independent too, and softmax depends on all but the first. Sites (C, n) of several classes are sites of these.
    """

    def __init__(
        self, R: np.ndarray, log_likelihood: LogLikelihood, sites: Sites | None = None, classes: int | None = None
    ) -> None:
        self.R, self.log_likelihood, self.sites = R, log_likelihood, sites
        self.classes = len(R) if R.ndim == 3 else classes
        self.shape = (R.shape[-1],) if self.classes is None else (self.classes, R.shape[-1])
        self.M: Cholesky | None = None
        self.rotation: np.ndarray | None = None
        self.log_z = 0.0
        self.mean: np.ndarray | float = 0.0
        if sites is not None and R.ndim == 3:
            raise ParameterError("sites are for one latent function, or classes that share a root; pass sites=None.")
        if sites is not None and self.classes is not None:
            parts = [Reference(R, log_likelihood, each).explicit() for each in zip(*sites, strict=True)]
            self.R, self.mean = np.stack([part.R for part in parts]), np.stack([part.mean for part in parts])
            self.log_z = sum(part.log_z for part in parts)
            self.rotation = contrasts(self.classes)
        elif sites is not None:
            nu, S = sites
            scaled = np.sqrt(S)[:, None] * R
            A = backend.gram(scaled)
            A[np.diag_indices_from(A)] += 1.0
            self.M = attempt(A, clean=True)
            if self.M is None or not np.isfinite(A.sum()):
                raise NotPositiveDefiniteError("sites or covariance are not finite; check the kernel and the sites.")
            self.mean = self.deviations(self.gradient_in_z(nu[None]))[0]
            self.log_z = 0.5 * float(nu @ self.mean) - 0.5 * self.M.log_det()

    def explicit(self) -> "Reference":
        """Replace R and M by Q, for many moves: n r^2 flops once, half the work of every later move."""
        if self.M is not None:
            self.R = np.ascontiguousarray(self.M.half_solve(self.R.T).T)
            self.M = None
        return self

    def deviations(self, z: np.ndarray) -> np.ndarray:
        """f - mean at z."""
        if self.M is not None:
            z = self.M.half_solve(z.T, transposed=True).T
        return z @ self.R.T if self.R.ndim == 2 else (z[..., None, :] @ self.R.transpose(0, 2, 1))[..., 0, :]

    def gradient_in_z(self, gradient: np.ndarray) -> np.ndarray:
        """From a gradient in f."""
        z = gradient @ self.R if self.R.ndim == 2 else (gradient[..., None, :] @ self.R)[..., 0, :]
        return z if self.M is None else self.M.half_solve(z.T).T

    def evaluate(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """ln p(t | f) less the sites, and its gradient in f or None. NaN is replaced by minus infinity."""
        with np.errstate(all="ignore"):
            found = self.log_likelihood(self.external(f))
            value, slope = found if isinstance(found, tuple) else (found, None)
            slope = None if slope is None else self.internal(slope)
            if self.sites is not None:
                nu, S = self.sites
                value = value - np.sum((nu - 0.5 * S * f) * f, axis=tuple(range(1, f.ndim)))
                slope = None if slope is None else slope - nu + S * f
        return np.where(np.isfinite(value), value, -np.inf), slope

    def external(self, f: np.ndarray) -> np.ndarray:
        """Latents as users see them: (k, n) or (k, n, C)."""
        if self.classes is None:
            return f
        f = np.swapaxes(f, -1, -2)
        return f if self.rotation is None else f @ self.rotation.T

    def internal(self, f: np.ndarray) -> np.ndarray:
        """Inverse of `external`, for latents and gradients."""
        if self.classes is None:
            return f
        return np.swapaxes(f if self.rotation is None else f @ self.rotation, -1, -2)

    def state(self, z: np.ndarray, with_slope: bool = True) -> LatentState:
        """The state at z."""
        f = self.mean + self.deviations(z)
        value, slope = self.evaluate(f)
        return LatentState(z, f, value, None if slope is None or not with_slope else self.gradient_in_z(slope))


def stack_roots(R: np.ndarray | list[np.ndarray]) -> np.ndarray:
    """One root as it is; several padded to one shape with columns of zeros, which change nothing."""
    if isinstance(R, np.ndarray):
        return R
    rank = max(root.shape[1] for root in R)
    return np.stack([np.pad(root, ((0, 0), (0, rank - root.shape[1]))) for root in R])
