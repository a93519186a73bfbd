"""Expectations of softmax(f) and its logarithm under a Gaussian f."""

import functools
import itertools
import math

import numpy as np
from scipy.special import ndtri

from mercer.gp.likelihood import Logistic

POINTS = 1024  # of a Sobol sequence, and as many opposite to them
FEW_POINTS = 128  # the same while a posterior is sought: fewer would spoil it where variances are large
MEMORY = 1 << 22  # bytes of function values at a time
SMALLEST = 1e-10  # a site: below it a variance is lost in the rounding of B^-1
STEP = 0.25  # of the grid on which independent functions are integrated, for deviations in
LEAST, MOST, BELOW = STEP, 100.0, 40.0  # this range, and means no further than this below the highest
# Dimension: spacing of a grid, radius in standard deviations, and the largest deviation it is good for to about 1e-4.
GRIDS = {2: (0.2, 7.0, 10.0), 3: (0.5, 5.5, 3.0)}


def probabilities(means, covariances) -> np.ndarray:
    """E softmax(f) for f ~ N(mean, covariance), row by row: (s, C) from (s, C) and (s, C, C).

    What is common to all f_c is taken out, as softmax does not feel it. Two classes are an integral over their
    difference, to about fourteen digits. Three and four with moderate deviations go over a grid, whose error falls like
    exp(-2 pi^2 / (spacing deviation)). Others are the exact answer for independent functions nearby, plus the mean of
    how softmax differs between the two, over Sobol points along the principal axes, each with its opposite. In
    posteriors most of a covariance is independent: errors measured with seven classes are below 1e-4 for variances of
    five, 1e-3 for fifty and 2e-3 for hundreds; with fifteen, 2e-3 for a hundred and 5e-3 for ten thousand. About half a
    millisecond for a row of ten classes.
    """
    means, covariances = np.asarray(means, dtype=float), np.asarray(covariances, dtype=float)
    C = means.shape[1]
    if C == 1:
        return np.ones_like(means)
    if C == 2:
        spread = covariances[:, 0, 0] + covariances[:, 1, 1] - covariances[:, 0, 1] - covariances[:, 1, 0]
        first = Logistic().probability(means[:, 0] - means[:, 1], np.maximum(spread, 0.0))
        return np.stack([first, 1 - first], axis=1)
    out = np.empty_like(means)
    roots, axes = _principal(covariances)
    deviations = np.sqrt((roots**2).sum(axis=1))
    on_grid = deviations[:, 0] <= GRIDS[C - 1][2] if C - 1 in GRIDS else np.zeros(len(means), dtype=bool)
    for i in _some(np.flatnonzero(on_grid), len(_grid(C - 1)[1]) if on_grid.any() else 1, C):
        out[i] = _average(means[i], roots[i], *_grid(C - 1))
    for i in _some(np.flatnonzero(~on_grid), 2 * POINTS, C):
        plain = out[i] = _average(means[i], roots[i], *_sobol(C - 1))
        wide = deviations[i, 0] > LEAST
        i, plain = i[wide], plain[wide]
        near, variances = _independent_nearby(means[i], covariances[i])
        values, vectors = np.linalg.eigh(_centred(variances[:, :, None] * np.eye(C)))
        # The symmetric root, turned as the other one is: close to it where the covariances are close.
        half = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ (vectors.transpose(0, 2, 1) @ axes[i])
        found = plain - _average(near, half, *_sobol(C - 1)) + _independent(near, variances)
        found = np.maximum(found, 0.5 * plain)  # a small one may have drowned in the difference
        out[i] = found / found.sum(axis=1, keepdims=True)
    return out


class Expectation:
    """E ln softmax(f)_label and what goes with it, for f ~ N(mean, covariance) on every row, as a function of the mean.

    ``covariances`` (n, C, C). By quasi-Monte Carlo with the same few points for all means and covariances, each with
    its opposite, so that the result is smooth in both. O(n C^2 FEW_POINTS) flops a call.
    """

    def __init__(self, labels, covariances):
        self.labels, self.rows = labels, np.arange(len(labels))
        self.roots = _smooth_root(covariances) @ _turns(len(labels), covariances.shape[1] - 1)
        self.z, _ = _sobol(covariances.shape[1] - 1, FEW_POINTS)

    def __call__(self, m):
        """The sum over rows; E pi, (C, n), whose difference to the targets is its gradient in m; and sites s.

        The curvature is E(diag(pi) - pi pi^T). W = diag(s) - s s^T / sum(s) has its trace, with s along E pi: E f
        as for a mode, and less the more f is spread.
        """
        C, n = m.shape
        value, p, spread = m[self.labels, self.rows].sum(), np.empty((n, C)), np.empty(n)
        for i in _some(self.rows, self.z.shape[1], C):
            f = self.roots[i] @ self.z
            f += m.T[i, :, None]
            top = f.max(axis=1)
            f -= top[:, None]
            np.exp(f, out=f)
            total = f.sum(axis=1)
            value -= float((top + np.log(total)).mean(axis=1).sum())
            f /= total[:, None]
            p[i] = f.mean(axis=2)
            spread[i] = 1 - np.einsum("icz,icz->i", f, f) / f.shape[2]
        share = np.maximum(spread, 0.0) / np.maximum(1 - (p**2).sum(axis=1), np.finfo(float).tiny)
        return float(value), p.T, np.maximum((p * np.minimum(share, 1.0)[:, None]).T, SMALLEST)


def _some(rows, points, C):
    size = max(1, MEMORY // (8 * C * points))
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _centred(covariances):
    centred = covariances - covariances.mean(axis=1, keepdims=True)
    centred -= centred.mean(axis=2, keepdims=True)
    return 0.5 * (centred + centred.transpose(0, 2, 1))


def _principal(covariances):
    """A root (s, C, C - 1) of what is not common, and the axes, the longest first: root = symmetric root @ axes."""
    centred = _centred(covariances)
    # The common direction must be the last one, also among others of no variance.
    centred -= 1 + np.einsum("scc->s", centred)[:, None, None] / centred.shape[1]
    values, vectors = np.linalg.eigh(centred)
    axes = vectors[:, :, :0:-1]
    return axes * np.sqrt(np.maximum(values[:, None, :0:-1], 0.0)), axes


def _smooth_root(covariances):
    """A root (s, C, C - 1) of what is not common, that is smooth in the covariances, as principal axes are not."""
    C = covariances.shape[1]
    U = np.linalg.svd(np.ones((1, C)))[2][1:].T
    inner = U.T @ covariances @ U
    values, vectors = np.linalg.eigh(0.5 * (inner + inner.transpose(0, 2, 1)))
    return U @ ((vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ vectors.transpose(0, 2, 1))


def _average(means, roots, z, weights):
    """The weighted mean of softmax(mean + root z) over points z (d, N): (s, C)."""
    f = roots @ z  # (s, C, N)
    f += means[:, :, None]
    f -= f.max(axis=1, keepdims=True)
    np.exp(f, out=f)
    f /= f.sum(axis=1, keepdims=True)
    out = f @ weights
    return out / out.sum(axis=1, keepdims=True)


def _independent_nearby(means, covariances):
    """Means and variances (s, C) of independent functions whose softmax is much the same.

    Covariances b_c + b_d between classes are not felt if variances give 2 b_c: b by least squares over all pairs.
    """
    C = means.shape[1]
    variances = np.einsum("scc->sc", covariances)
    sums = covariances.sum(axis=2) - variances
    common = (sums - sums.sum(axis=1, keepdims=True) / (2 * (C - 1))) / (C - 2)
    means = means - means.max(axis=1, keepdims=True)
    return np.maximum(means, -BELOW), np.clip(variances - 2 * common, LEAST**2, MOST**2)


def _independent(means, variances):
    """E softmax for independent f_c, to about 1e-8: (s, C).

    softmax(f)_c is the chance that f_c + g_c is the largest, for independent g with P(g < x) = exp(-exp(-x)) (Gumbel).
    So it is the integral of F_c' times the other F_d, F_c(x) = E exp(-exp(f_c - x)): convolutions on a grid.
    """
    deviations = np.sqrt(variances)
    low, high = (means - 6 * deviations).min(axis=1), (means + 6 * deviations).max(axis=1) + 20
    sizes = 2 ** np.ceil(np.log2((high - low) / STEP + 1)).astype(int)
    out = np.empty_like(means)
    for size in np.unique(sizes):
        below, density = _gumbel(int(size))
        for i in _some(np.flatnonzero(sizes == size), 4 * size, means.shape[1]):
            x = low[i, None, None] + STEP * np.arange(size)
            z = (x - means[i, :, None]) / deviations[i, :, None]
            weights = np.fft.rfft(
                np.exp(-0.5 * z**2) * (STEP / math.sqrt(2 * math.pi)) / deviations[i, :, None], 2 * size
            )
            F = np.clip(np.fft.irfft(weights * below)[:, :, :size], 1e-16, 1.0)
            slopes = np.maximum(np.fft.irfft(weights * density)[:, :, :size], 0.0)
            found = (slopes / F * F.prod(axis=1, keepdims=True)).sum(axis=2)
            out[i] = found / found.sum(axis=1, keepdims=True)
    return out


@functools.cache
def _gumbel(size: int):
    """Transforms of P(g < x) and of its density, on a circle of 2 size points."""
    x = STEP * (np.arange(2 * size) - 2 * size * (np.arange(2 * size) >= size))
    with np.errstate(over="ignore"):
        below = np.exp(-np.exp(-x))
        density = np.where(below > 0, np.exp(-np.maximum(x, -700.0)), 0.0) * below
    return np.fft.rfft(below), np.fft.rfft(density)


@functools.cache
def _sobol(d: int, points: int = POINTS):
    """Points (d, N) like draws of d standard normal numbers, with the same second moments, and equal weights."""
    from scipy.stats import qmc

    u = qmc.Sobol(d, scramble=False).random(points) + 0.5 / points
    z = ndtri(u).T
    z = np.linalg.solve(np.linalg.cholesky(z @ z.T / points), z)
    return np.concatenate([z, -z], axis=1), np.full(2 * points, 0.5 / points)


@functools.lru_cache(maxsize=4)
def _turns(n: int, d: int):
    """A rotation of the points for each row, (n, d, d): errors of many rows then cancel, and do not add up."""
    return np.linalg.qr(np.random.default_rng(0).normal(size=(n, d, d)))[0]


@functools.cache
def _grid(d: int):
    """Points (d, N) of a cubic grid in a ball, with the weights of a Gaussian."""
    spacing, radius, _ = GRIDS[d]
    reach = int(radius / spacing)
    z = spacing * np.array(list(itertools.product(range(-reach, reach + 1), repeat=d))).T
    squares = (z**2).sum(axis=0)
    z, squares = z[:, squares <= radius**2], squares[squares <= radius**2]
    weights = np.exp(-0.5 * squares)
    return np.ascontiguousarray(z), weights / weights.sum()
