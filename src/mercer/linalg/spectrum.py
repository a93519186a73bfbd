"""Ridge solutions for all penalties from one eigendecomposition."""

import math
from typing import NamedTuple

import numpy as np

from mercer.linalg import backend


class RidgePath(NamedTuple):
    """Solutions for A values of alpha: mean squared leave-one-out errors, traces of the smoother (intercept included),
    coefficients and intercepts. The last axis of all but ``alphas`` and ``effective_parameters`` is q for
    several targets."""

    alphas: np.ndarray
    loo_error: np.ndarray
    effective_parameters: np.ndarray
    dual_coef: np.ndarray
    intercept: np.ndarray


def eigenpairs_orthogonal_to(K: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (n - 1,), negative ones as zero, and vectors (n, n - 1) of a symmetric K on the complement of s,
    overwriting K. 9 n^3 flops.

    K projected on the complement, plus a multiple of s s^T above all eigenvalues, has s as its last eigenvector; the
    others are the result, without any change of coordinates.
    """
    n = len(s)
    if n < 2:
        return np.zeros(0), np.zeros((n, 0))
    unit = s / np.linalg.norm(s)
    along = K @ unit
    above = 2 * float(np.linalg.norm(K)) or 1.0  # the Frobenius norm is an upper bound of the eigenvalues
    z = along - 0.5 * (unit @ along + above) * unit
    work = K.T if K.flags.c_contiguous else np.asfortranarray(K)
    backend.subtract_products(work, unit, z)
    values, V = backend.eigenpairs(work, in_place=True)
    return np.maximum(values[:-1], 0.0), V[:, :-1]


class Spectrum:
    """G(alpha) = V (Lambda + alpha)^-1 V^T + R / alpha, for all alpha: a = S G S t solves the ridge problem.

    V (n, r) has orthonormal columns, orthogonal to s if there is an intercept. R projects on the complement of both:
    zero in the dual form, where r is n (less one), but not if there are fewer features than rows.
    """

    def __init__(
        self,
        solver: str,
        values: np.ndarray,
        V: np.ndarray,
        target: np.ndarray,
        s: np.ndarray,
        mean: np.ndarray,
        intercept: bool,
    ) -> None:
        self.solver, self.values, self.V, self.s, self.mean = solver, values, V, s, mean
        self.target, self.intercept = target, intercept
        self.coordinates = V.T @ target
        taken = s**2 / (s @ s) if intercept else np.zeros(len(s))
        left = 1.0 - np.einsum("ij,ij->i", V, V) - taken
        full = V.shape[1] + intercept >= len(s)
        self.rest_diagonal = np.zeros(len(s)) if full else np.maximum(left, 0.0)
        self.rest = np.zeros_like(target) if full else target - V @ self.coordinates
        if intercept and not full:
            self.rest -= np.outer(s, s @ self.rest) / (s @ s)
        self.squares: np.ndarray | None = None
        self.scale = float(values.sum()) / max(len(s), 1)

    def _diagonals(self, alphas: np.ndarray) -> np.ndarray:
        """diag G(alpha): (n, A). 2 n r flops each."""
        if self.squares is None:
            self.squares = self.V**2
        return self.squares @ (1 / (self.values[:, None] + alphas)) + self.rest_diagonal[:, None] / alphas

    def _whitened(self, alpha: float) -> np.ndarray:
        """G S t: (n, q)."""
        return self.V @ (self.coordinates / (self.values[:, None] + alpha)) + self.rest / alpha

    def coefficients(self, alpha: float) -> np.ndarray:
        return self.s[:, None] * self._whitened(alpha)

    def left_out(self, alpha: float) -> np.ndarray:
        """t_i - y_{-i}(x_i): (n, q)."""
        diagonal = self._diagonals(np.array([alpha]))[:, 0]
        return _ratio(self._whitened(alpha), diagonal[:, None]) / self.s[:, None]

    def errors(self, alphas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weighted means of squared leave-one-out errors: (A, q); and the whitened coefficients: (A, n, q)."""
        diagonals = self._diagonals(alphas)
        n, q = self.target.shape
        whitened = np.empty((len(alphas), n, q))
        for target in range(q):  # one product for all alphas
            scaled = self.coordinates[:, target, None] / (self.values[:, None] + alphas)
            whitened[:, :, target] = (self.V @ scaled).T + self.rest[:, target] / alphas[:, None]
        missed = _ratio(whitened, diagonals.T[:, :, None])
        return np.einsum("anq,anq->aq", missed, missed) / (self.s @ self.s), whitened

    def path(self, alphas: np.ndarray) -> RidgePath:
        error, whitened = self.errors(alphas)
        trace = (self.values[:, None] / (self.values[:, None] + alphas)).sum(axis=0) + self.intercept
        coef = whitened * self.s[:, None]
        return RidgePath(alphas, error, trace, coef, np.zeros(error.shape))

    def refined(self, alphas: np.ndarray, best: int, target: np.ndarray) -> float:
        """Minimise the error over ln alpha between the neighbours of the best of the alphas, by Brent's method."""
        if best in (0, len(alphas) - 1):
            return float(alphas[best])
        from scipy.optimize import minimize_scalar

        low, high = math.log(alphas[best - 1]), math.log(alphas[best + 1])
        alone = Spectrum.__new__(Spectrum)
        vars(alone).update(vars(self))
        alone.target, alone.coordinates, alone.rest = (
            A[:, target : target + 1] for A in (self.target, self.coordinates, self.rest)
        )
        found = minimize_scalar(
            lambda u: alone.errors(np.array([math.exp(u)]))[0][0, 0], bounds=(low, high), method="bounded",
            options={"xatol": 1e-3},
        )  # fmt: skip
        return math.exp(found.x)


def _ratio(a: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    """a / diagonal; zero where a row determines its own prediction (one row and an intercept)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(diagonal > 0, a / diagonal, 0.0)
