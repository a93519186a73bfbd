"""Latent points of several columns, each a Gaussian process over the same few unknown coordinates, by the evidence.

Columns y_d = f_d(X) + noise are independent given the latent points X (n, q) and share one covariance
C = K(X, X) + noise I (Lawrence, 2005), so one factorisation serves all of them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mercer import gram
from mercer.core.coordinates import from_free, to_free
from mercer.kernels.base import Kernel
from mercer.learning.progress import Progress
from mercer.linalg import backend
from mercer.linalg.cholesky import attempt
from mercer.linalg.eigen import signs_to_fix

MIN_NOISE, MAX_NOISE = 1e-6, 1e2  # variance, in units of that of the columns
MAX_LOG_CHANGE = 12.0  # of the parameters of a kernel, from where they start
FAILED_VALUE_NATS = 1e10  # below the best value so far, where there is none
MIN_GAIN, GAIN_STEPS = 0.05, 25  # nats gained in so many iterations, below which the search has converged


class Group(NamedTuple):
    """Columns measured in the same rows."""

    columns: np.ndarray
    rows: np.ndarray


def groups_of(Y: np.ndarray) -> list[Group]:
    """Columns by the rows in which they are measured; NaN marks a missing value."""
    seen, owner = np.unique(np.isfinite(Y), axis=1, return_inverse=True)
    owner = np.ravel(owner)
    return [Group(np.flatnonzero(owner == i), np.flatnonzero(seen[:, i])) for i in range(seen.shape[1])]


class Evaluated(NamedTuple):
    """log p(Y | X), and its gradient in X (n, q), the kernel's free parameters (p,) and the log of the noise."""

    value: float
    points: np.ndarray
    kernel: np.ndarray
    log_noise: float


class LatentEvidence:
    """log p(Y | X) = sum_d ln N(y_d | 0, K(X, X) + noise I), for many X and parameters (Lawrence 2005, eq. 7).

    An evaluation with its gradient takes n^3 flops for each distinct set of rows in which columns are measured, and
    n^2 (q + min(n, D)) for all else. Where every column is complete and there are more of them than rows, Y is
    replaced by an n x n root of Y Y^T, on which alone the evidence depends.
    """

    def __init__(self, kernel: Kernel, Y: np.ndarray) -> None:
        self.kernel, self.n = kernel, len(Y)
        self.size = len(to_free(kernel))
        parts = groups_of(Y)
        self.parts: list[tuple[np.ndarray, np.ndarray, int]] = []  # rows, values there, number of columns
        for columns, rows in parts:
            values = Y[np.ix_(rows, columns)]
            if values.shape[1] > values.shape[0]:
                U, s, _ = backend.svd(values)
                values = U * s
            self.parts.append((rows, values, len(columns)))

    def __call__(self, X: np.ndarray, theta: np.ndarray, log_noise: float) -> Evaluated | None:
        """None where the covariance has no Cholesky factor."""
        kernel, noise = from_free(self.kernel, theta), math.exp(log_noise)
        prepared = gram.Gram(kernel, X)
        K = prepared.matrix()
        if not np.isfinite(K).all():
            return None
        G, value = np.zeros((self.n, self.n)), 0.0
        for rows, Y, columns in self.parts:
            m = len(rows)
            if not m:
                continue
            whole = m == self.n
            C = np.array(K if whole else K[np.ix_(rows, rows)], order="F")
            C[np.diag_indices(m)] += noise
            factor = attempt(C)
            if factor is None:
                return None
            A = factor.solve(Y)
            value -= 0.5 * (np.vdot(A, Y) + columns * (factor.log_det() + m * math.log(2 * math.pi)))
            factor.invert()
            weights = 0.5 * (A @ A.T - columns * _symmetric(factor.lower))  # of dC
            if whole:
                G += weights
            else:
                G[np.ix_(rows, rows)] += weights
        with prepared.varying(repeatedly=False, compiled=True) as K_of:
            slope = K_of.contract(theta, -G, np.zeros(self.n)) if self.size else np.zeros(0)
        points = 2 * gram.slope(kernel, X, prepared, G)
        found = Evaluated(float(value), points, slope, noise * float(np.trace(G)))
        return found if np.isfinite(found.value) and np.isfinite(points).all() else None


def _symmetric(lower: np.ndarray) -> np.ndarray:
    """A symmetric matrix from its lower triangle."""
    out = np.tril(lower)
    out += np.tril(lower, -1).T
    return out


# -- maximisation --------------------------------------------------------------------------------------------------


class Climbed(NamedTuple):
    """The best place found, its value, the values along the way, and how the search ended."""

    z: np.ndarray
    value: float
    path: list[float]
    converged: bool
    interrupted: bool


def climb(
    function: Callable[[np.ndarray], tuple[float, np.ndarray] | None],
    z: np.ndarray,
    lowest: np.ndarray,
    highest: np.ndarray,
    max_iterations: int,
    line: Progress,
    label: str,
) -> Climbed:
    """Local maximum between bounds by L-BFGS; ``function`` is None where there is no value. Ctrl-C ends it with the
    best place so far."""
    from scipy.optimize import minimize  # takes a while to import

    path: list[float] = []
    best_z, best, interrupted = z, -math.inf, False

    def down(z: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_z, best
        with np.errstate(all="ignore"):
            found = function(z)
        if found is None or not np.isfinite(found[1]).all():
            return abs(best if path else 0.0) + FAILED_VALUE_NATS, np.zeros(len(z))
        if found[0] > best:
            best_z, best = z.copy(), float(found[0])
        return -found[0], -found[1]

    def note(_: np.ndarray) -> None:
        path.append(best)
        line(f"{label} {best:.1f}, iteration {len(path)} of {max_iterations} at most")
        if len(path) > GAIN_STEPS and path[-1] - path[-1 - GAIN_STEPS] < MIN_GAIN:
            raise StopIteration

    try:
        found = minimize(
            down, z, jac=True, method="L-BFGS-B", bounds=list(zip(lowest, highest, strict=True)), callback=note,
            options={"maxiter": max_iterations, "maxfun": 2 * max_iterations + 20, "maxcor": 20, "ftol": 1e-12,
                     "gtol": 1e-6},
        )  # fmt: skip
        converged = len(path) < max_iterations and found.nfev < 2 * max_iterations + 20
    except KeyboardInterrupt:
        if not math.isfinite(best):
            raise
        converged, interrupted = False, True
    return Climbed(best_z, best, path, converged, interrupted)


class LearnedPoints(NamedTuple):
    """Latent points (n, q), kernel, noise, the log evidence and the log density of points and columns together; the
    weights of the back-constraint if there is one; values along the way, and how the search ended."""

    points: np.ndarray
    kernel: Kernel
    noise: float
    log_evidence: float
    value: float
    weights: np.ndarray | None
    path: list[float]
    converged: bool
    interrupted: bool


def learn_points(
    kernel: Kernel,
    Y: np.ndarray,
    start: np.ndarray,
    noise: float,
    max_iterations: int,
    line: Progress,
    root: np.ndarray | None = None,
    learns_noise: bool = True,
) -> LearnedPoints:
    """Maximise ln p(Y | X) + ln N(X | 0, I) in the latent points, the kernel's free parameters and the noise.

    With a ``root`` (n, m), points are ``root @ weights``, a smooth function of the rows (Lawrence and
    Quinonero-Candela, 2006), and the weights are learned, penalised by the points' own prior alone.
    """
    evidence, theta = LatentEvidence(kernel, Y), to_free(kernel)
    first = start if root is None else np.linalg.lstsq(root, start, rcond=1e-8)[0]
    shape, size = first.shape, first.size

    def parts(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        own = z[:size].reshape(shape)
        return (own if root is None else root @ own), z[size:-1], float(z[-1])

    def function(z: np.ndarray) -> tuple[float, np.ndarray] | None:
        X, theta, log_noise = parts(z)
        found = evidence(X, theta, log_noise)
        if found is None:
            return None
        slope = found.points - X
        slope = slope if root is None else root.T @ slope
        return found.value + log_prior(X), np.concatenate([slope.ravel(), found.kernel, [found.log_noise]])

    logs = np.log([MIN_NOISE, MAX_NOISE]) if learns_noise else np.full(2, math.log(noise))
    lowest = np.concatenate([np.full(size, -np.inf), theta - MAX_LOG_CHANGE, logs[:1]])
    highest = np.concatenate([np.full(size, np.inf), theta + MAX_LOG_CHANGE, logs[1:]])
    z = np.concatenate([first.ravel(), theta, [math.log(noise)]])
    found = climb(function, z, lowest, highest, max_iterations, line, "log density")
    X, theta, log_noise = parts(found.z)
    return LearnedPoints(
        X, from_free(kernel, theta), math.exp(log_noise), found.value - log_prior(X), found.value,
        None if root is None else found.z[:size].reshape(shape), found.path, found.converged, found.interrupted,
    )  # fmt: skip


def log_prior(X: np.ndarray) -> float:
    """ln N(X | 0, I)."""
    return -0.5 * float(np.vdot(X, X)) - 0.5 * X.size * math.log(2 * math.pi)


# -- starts --------------------------------------------------------------------------------------------------------


def completed(Y: np.ndarray, q: int, steps: int = 100) -> np.ndarray:
    """Missing values filled in by principal components, alternately with them: (n, D)."""
    missing = ~np.isfinite(Y)
    if not missing.any():
        return Y
    filled = np.where(missing, np.nanmean(np.where(missing.all(axis=0), 0.0, Y), axis=0), Y)
    for _ in range(steps):
        mean = filled.mean(axis=0)
        U, s, V = backend.svd(filled - mean)
        guess = mean + (U[:, :q] * s[:q]) @ V[:q]
        change = np.abs(guess - filled)[missing].max()
        filled = np.where(missing, guess, filled)
        if change < 1e-4:
            break
    return filled


def principal(Y: np.ndarray, q: int) -> np.ndarray:
    """Coordinates along the first q principal components, with unit variance; zero beyond those that there are."""
    U, s, _ = backend.svd(Y - Y.mean(axis=0))
    kept = min(q, int((s > 1e-10 * max(s[0], 1e-300)).sum()))
    X = np.zeros((len(Y), q))
    X[:, :kept] = math.sqrt(len(Y)) * U[:, :kept] * signs_to_fix(U[:, :kept])
    return X


def geodesic(Y: np.ndarray, q: int) -> np.ndarray | None:
    """Coordinates by distances along a graph of neighbours (isomap), with unit variance; None for few rows."""
    import warnings

    from sklearn.manifold import Isomap

    n = len(Y)
    if n < 12:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # neighbours in several pieces are joined
        X = Isomap(n_neighbors=max(5, min(round(math.sqrt(n)), 30)), n_components=min(q, n - 1)).fit_transform(Y)
    return principal(X, q) if np.isfinite(X).all() and X.any() else None
