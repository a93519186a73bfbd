"""Expectation maximisation of a generative topographic mapping (Bishop, Svensen and Williams, 1998).

p(y) = 1/K sum_k N(y | Phi(x_k) W, 1/beta I) over a grid of latent points x_k: a mixture of Gaussians whose centres lie
on a smooth surface, Phi being a few broad Gaussian bumps over the grid, and a constant.
"""

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np

from mercer import basis
from mercer.core import machine
from mercer.learning.latent_points import groups_of
from mercer.learning.progress import Progress
from mercer.linalg import backend

MIN_NOISE = 1e-6  # variance, in units of that of the columns
MIN_PRECISION, MAX_PRECISION = 1e-6, 1e6  # of the weights
MIN_EIGENVALUE_RATIO = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class Surface:
    """Latent grid (K, q), centres of the bumps (M, q) and their width, weights (M + 1, D), noise variance."""

    grid: np.ndarray
    centers: np.ndarray
    width: float
    weights: np.ndarray
    noise: float

    def design(self, X: np.ndarray) -> np.ndarray:
        """Phi: the bumps, and a one. (s, M + 1)."""
        return np.column_stack([basis.Gaussian(self.centers, self.width)(X), np.ones(len(X))])

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Points of the surface: (s, D)."""
        return self.design(X) @ self.weights

    def metric(self, X: np.ndarray, units: np.ndarray) -> np.ndarray:
        """J^T J for the Jacobian J of the surface in ``units`` (D,): (s, q, q)."""
        bumps = self.design(X)[:, :-1]
        slopes = -(X[:, None, :] - self.centers) / self.width**2 * bumps[:, :, None]  # (s, M, q)
        J = np.einsum("smq,md->sdq", slopes, self.weights[:-1] * units)
        return np.einsum("sdq,sdr->sqr", J, J)

    def responsibilities(self, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """p(k | y_n) by the columns that are not NaN, and ln p(y_n): (n, K), (n,). n K D flops, twice."""
        seen = np.isfinite(Y)
        filled, at = np.where(seen, Y, 0.0), self(self.grid)
        square = (filled**2).sum(1)[:, None] - 2 * filled @ at.T
        square += (at**2).sum(1) if seen.all() else seen @ (at**2).T
        logs = -0.5 * np.maximum(square, 0.0) / self.noise
        top = logs.max(axis=1, keepdims=True)
        R = np.exp(logs - top)
        total = R.sum(axis=1, keepdims=True)
        R /= total
        density = (top + np.log(total))[:, 0] - math.log(len(at))
        return R, density - 0.5 * seen.sum(1) * math.log(2 * math.pi * self.noise)


class LearnedSurface(NamedTuple):
    """The surface, the precision of its weights, the log likelihood (without the penalty), the penalised one along the
    way, and how the iterations ended."""

    surface: Surface
    precision: float
    log_likelihood: float
    path: list[float]
    converged: bool
    interrupted: bool


def lattice(count: int, q: int) -> np.ndarray:
    """A regular grid over [-1, 1]^q: (count^q, q)."""
    side = np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(1)
    return np.array(list(itertools.product(side, repeat=q)))


def first_surface(Y: np.ndarray, grid: np.ndarray, centers: np.ndarray, width: float) -> Surface:
    """The plane of the first principal components, two standard deviations wide either way of its middle; the noise is
    the variance along the next component, or half the distance between neighbours on the grid if that is larger."""
    n, q = len(Y), grid.shape[1]
    mean = Y.mean(axis=0)
    _, s, V = backend.svd(Y - mean)
    deviation = np.zeros(max(q + 1, len(s)))
    deviation[: len(s)] = s / math.sqrt(n)
    directions = np.zeros((q, Y.shape[1]))
    directions[: min(q, len(V))] = V[:q]
    spread = grid / np.maximum(grid.std(axis=0), 1e-300)
    target = mean + (spread * deviation[:q]) @ directions
    surface = Surface(grid, centers, width, np.zeros((len(centers) + 1, Y.shape[1])), 1.0)
    weights = np.linalg.lstsq(surface.design(grid), target, rcond=1e-10)[0]
    at = surface.design(grid) @ weights
    step = math.sqrt(float(np.mean(np.sort(_squares(at), axis=1)[:, min(1, len(at) - 1)])))
    noise = max(float(deviation[q]) ** 2, (step / 2) ** 2, MIN_NOISE)
    return dataclasses.replace(surface, weights=weights, noise=noise)


def _squares(A: np.ndarray) -> np.ndarray:
    size = (A**2).sum(1)
    return np.maximum(size[:, None] + size - 2 * A @ A.T, 0.0)


class Sums(NamedTuple):
    """Sums over rows that the maximisation needs: responsibilities of each group of columns (G, K), responsibilities
    times columns (K, D), squares of the columns, numbers measured, log likelihood."""

    counts: np.ndarray
    products: np.ndarray
    squares: float
    measured: int
    log_likelihood: float


def expectation(surface: Surface, Y: np.ndarray, groups: list) -> Sums:
    """By pieces of rows: no (n, K) matrix is kept."""
    K, D = len(surface.grid), Y.shape[1]
    counts, products, total = np.zeros((len(groups), K)), np.zeros((K, D)), 0.0
    size = max(1, machine.rows_within(machine.ARRAY_BYTES, K))
    for i in range(0, len(Y), size):
        part = Y[i : i + size]
        R, density = surface.responsibilities(part)
        seen = np.isfinite(part)
        for g, (columns, _) in enumerate(groups):
            counts[g] += seen[:, columns[0]] @ R
        products += R.T @ np.where(seen, part, 0.0)
        total += float(density.sum())
    return Sums(counts, products, float(np.nansum(Y**2)), int(np.isfinite(Y).sum()), total)


def maximisation(surface: Surface, sums: Sums, groups: list, precision: float) -> tuple[Surface, float]:
    """Weights that solve (Phi^T G Phi + precision noise I) W = Phi^T R Y (1998, eq. 2.12), noise (2.13), and the number
    of weights that the data determine, gamma (PRML 3.91). The constant is not penalised. M^3 + K M^2 flops for each
    group of columns."""
    Phi, W, gamma = surface.design(surface.grid), np.zeros(surface.weights.shape), 0.0
    penalty = np.full(Phi.shape[1], precision)
    penalty[-1] = 0.0
    for counts, (columns, _) in zip(sums.counts, groups, strict=True):
        A = Phi.T @ (counts[:, None] * Phi)
        H = A / surface.noise + np.diag(penalty)
        values, vectors = np.linalg.eigh(H)
        inverse = np.where(values > MIN_EIGENVALUE_RATIO * values[-1], 1 / np.maximum(values, 1e-300), 0.0)
        H_inv = (vectors * inverse) @ vectors.T
        W[:, columns] = H_inv @ (Phi.T @ sums.products[:, columns]) / surface.noise
        gamma += len(columns) * float(len(penalty) - 1 - penalty @ np.diag(H_inv))
    at = Phi @ W
    left = sums.squares - 2 * float(np.vdot(at, sums.products))
    left += sum(float(c @ (at[:, columns] ** 2).sum(1)) for c, (columns, _) in zip(sums.counts, groups, strict=True))
    noise = max(left / max(sums.measured, 1), MIN_NOISE)
    return dataclasses.replace(surface, weights=W, noise=noise), max(gamma, 1e-3)


def learn_surface(
    Y: np.ndarray,
    surface: Surface,
    precision: float | None,
    max_iterations: int,
    tolerance: float,
    line: Progress,
) -> LearnedSurface:
    """Expectation maximisation until the log likelihood gains less than ``tolerance`` nats per row in an iteration.

    ``precision`` of the weights: None learns it too, as gamma / |W|^2 (MacKay, 1992; PRML 3.92); a number is kept, and
    then no iteration lowers the penalised log likelihood.
    """
    groups, learns, path = groups_of(Y), precision is None, []
    alpha = 1.0 if precision is None else float(precision)
    converged = interrupted = False
    best, last = surface, -math.inf
    try:
        for _ in range(max_iterations):
            sums = expectation(surface, Y, groups)
            value = sums.log_likelihood - 0.5 * alpha * float((surface.weights[:-1] ** 2).sum())
            path.append(value)
            best, likelihood = surface, sums.log_likelihood
            line(f"log likelihood {likelihood:.1f}, iteration {len(path)} of {max_iterations} at most")
            if abs(likelihood - last) < tolerance * len(Y):
                converged = True
                break
            last = likelihood
            surface, gamma = maximisation(surface, sums, groups, alpha)
            if learns:
                size = max(float((surface.weights[:-1] ** 2).sum()), 1e-300)
                alpha = min(max(gamma / size, MIN_PRECISION), MAX_PRECISION)
    except KeyboardInterrupt:
        if not path:
            raise
        interrupted = True
    total = expectation(best, Y, groups).log_likelihood
    return LearnedSurface(best, alpha, total, path, converged, interrupted)
