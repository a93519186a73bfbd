"""Ridge regression and principal components through a few centres: sums over rows that pass tile by tile.

With Phi = K_nm L^-T of M centres, L L^T their own covariance, both are those of M features: n M^2 flops, M^2 of memory.
Functions in the span of the centres are sum_m c_m k(x, z_m), c = L^-T v (Rudi, Carratino and Rosasco 2017).
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, take_rows
from mercer.kernels.base import Kernel
from mercer.kernels.cross import cross
from mercer.learning.plan import Plan, allowed_memory
from mercer.linalg import backend
from mercer.linalg.forward import MIN_FREEDOM
from mercer.solvers.auto import COMPILE_SECONDS_TO_PREDICT, Budget, flops_per_second
from mercer.solvers.base import SOLVERS, Solver
from mercer.solvers.centers import choose_centers
from mercer.solvers.lowrank import LowRank
from mercer.solvers.lowrank_evidence import Rows

SUMMARIES = {  # of a plan
    "dual": "exact, by a factorisation of the matrix of all rows",
    "primal": "exact, by the weights of features",
    "dense": "exact, by eigenvectors of the matrix of all rows",
    "iterative": "exact to a tolerance, by products with the matrix of all rows",
    "features": "exact, by the covariance of features",
    "lowrank": "approximate, through the features of a few centres",
}
CENTER_NOISE = 1e-2  # of the variance of the target: what "forward" takes for the noise


@dataclasses.dataclass(frozen=True, eq=False)
class LowRankFeatures:
    """Features of rows with weights w, and T (n, q): centred, sum_i w_i phi_i phi_i^T = V diag(values) V^T."""

    rows: Rows
    centers: Inputs
    w: np.ndarray
    T: np.ndarray
    mean: np.ndarray  # weighted, zero without an intercept: (M,)
    target: np.ndarray  # (q,)
    values: np.ndarray
    V: np.ndarray
    products: np.ndarray  # V^T sum_i w_i phi_i t_i: (M, q)
    total: float  # sum_i w_i k(x_i, x_i), centred

    @classmethod
    def of(
        cls, kernel: Kernel, X: gram.Gram, T: np.ndarray, w: np.ndarray, solver: LowRank, centred: bool
    ) -> "LowRankFeatures":
        """In two passes over the rows: their means, and the squares around these."""
        y = T[:, 0] - T[:, 0].mean()
        noise = np.full(X.n, CENTER_NOISE * (float(np.mean(y**2)) or 1.0))
        count = min(solver.n_centers, X.n)
        centers = choose_centers(solver.centers, count, kernel, X.of(kernel), y, noise)
        at = cross(X.of(kernel).kernel, X.X, X.of(kernel).rows, centers).at(np.asarray(to_free(kernel)))
        rows = Rows.of(at, np.full(1, np.inf))
        if rows is None:
            raise DataError(f"{kernel!r} is not finite at the centres, or zero; check the kernel.")
        M, q = len(rows.root.kept), T.shape[1]

        def sums(tile: int) -> np.ndarray:
            part = rows.tiles[tile]
            Phi = _features(rows, tile)
            weighted = w[part][:, None] * Phi
            return np.column_stack([weighted.sum(axis=0), np.full(M, w[part] @ rows.variance(tile))])

        first = rows.each(sums, np.add)
        mean, target = np.zeros(M), np.zeros(q)
        if centred:
            mean, target = first[:, 0] / w.sum(), np.average(T, axis=0, weights=w)

        def squares(tile: int) -> np.ndarray:
            part = rows.tiles[tile]
            s = np.sqrt(w[part])[:, None]
            Phi = s * (_features(rows, tile) - mean)
            return np.column_stack([Phi.T @ Phi, Phi.T @ (s * (T[part] - target))])

        found = rows.each(squares, np.add)
        values, V = backend.eigenpairs(np.asfortranarray(found[:, :M]))
        centers = take_rows(centers, rows.root.kept)
        total = float(first[0, 1]) - float(w.sum() * mean @ mean)
        return cls(rows, centers, w, T, mean, target, np.maximum(values, 0.0), V, V.T @ found[:, M:], total)

    def coordinates(self, tile: int) -> np.ndarray:
        """Centred features of a tile in the eigenvectors: (h, M)."""
        return (_features(self.rows, tile) - self.mean) @ self.V

    def weights(self, alpha: float) -> np.ndarray:
        """v that minimises sum_i w_i (t_i - v^T (phi_i - mean))^2 + alpha |v|^2: (M, q)."""
        scale = self.values + alpha
        least = len(scale) * np.finfo(float).eps * self.values.max(initial=0.0)
        inverse = np.where(scale > least, 1 / np.where(scale > least, scale, 1.0), 0.0)
        return self.V @ (self.products * inverse[:, None])

    def combination(self, v: np.ndarray) -> np.ndarray:
        """c with phi(x)^T v = sum_m c_m k(x, z_m): (M, ...)."""
        return backend.half_solve(self.rows.root.lower, np.asfortranarray(v), transposed=True)

    @functools.cached_property
    def scale(self) -> float:
        """Mean diagonal of the centred Gram matrix."""
        return float(self.values.sum()) / len(self.w)

    def left_out_errors(self, alphas: np.ndarray, intercept: bool) -> np.ndarray:
        """Mean squared leave-one-out errors of every alpha: (alphas, q). One pass."""
        n, q = self.T.shape
        shrunk = 1 / (self.values[:, None] + alphas)  # (M, a)
        V = [self.products[:, [j]] * shrunk for j in range(q)]
        own = 1 / self.w.sum() if intercept else 0.0

        def work(tile: int) -> np.ndarray:
            part = self.rows.tiles[tile]
            U, w = self.coordinates(tile), self.w[part][:, None]
            free = np.maximum(1 - w * (own + U**2 @ shrunk), MIN_FREEDOM)
            residuals = (self.T[part][:, [j]] - self.target[j] - U @ V[j] for j in range(q))
            return np.stack([np.sum(w * (r / free) ** 2, axis=0) for r in residuals], axis=1)

        return self.rows.each(work, np.add) / n

    def left_out(self, alpha: np.ndarray, intercept: bool) -> np.ndarray:
        """Leave-one-out residuals, with one alpha for each target: (n, q)."""
        out, own = np.empty(self.T.shape), 1 / self.w.sum() if intercept else 0.0

        def work(tile: int) -> int:
            part = self.rows.tiles[tile]
            U, w = self.coordinates(tile), self.w[part]
            for j, a in enumerate(alpha):
                shrunk = 1 / (self.values + a)
                free = np.maximum(1 - w * (own + U**2 @ shrunk), MIN_FREEDOM)
                out[part, j] = (self.T[part, j] - self.target[j] - U @ (shrunk * self.products[:, j])) / free
            return 0

        self.rows.each(work, max)
        return out


def _features(rows: Rows, tile: int) -> np.ndarray:
    Phi = rows.features(tile)
    if Phi is None:
        raise DataError("the kernel is not finite at some of these rows; scale the inputs down.")
    return Phi


def plan_of_form(
    name: str, n: int, columns: int | None, copies: float, flops: float, why: str, max_memory: Any, max_seconds: Any
) -> Plan:
    """Plan of a fit of n rows by a form of ridge regression or principal components."""
    allowed = Budget.of(max_memory, max_seconds)
    if name == "lowrank":
        cost = LowRank(columns or 1).cost_of(n)
        memory, flops = cost.memory, cost.flops
    else:
        memory = 8.0 * copies * n * (n if columns is None else columns)
    free = allowed_memory(allowed, max_memory is not None)
    return Plan(
        name, n, columns, int(memory), free, COMPILE_SECONDS_TO_PREDICT + flops / flops_per_second(), why,
        "stands a few centres for the rows" if name == "lowrank" else None,
        None if math.isinf(allowed.seconds) else allowed.seconds, summary=SUMMARIES[name],
    )  # fmt: skip


def not_allowed(what: str, allowed: Budget, memory: float) -> str:
    """Reason for centres where a form with a matrix of all rows is not allowed."""
    return f"{what} takes more {'memory' if memory > allowed.memory else 'time'} than it may"


def as_low_rank(solver: Any) -> Any:
    """The settings, if the solver, by its name or as an object, lets rows pass by (`Solver.streams_rows`); else
    None."""
    found = SOLVERS[solver]() if isinstance(solver, str) and solver in SOLVERS else solver
    return found if isinstance(found, Solver) and found.streams_rows else None
