"""The posterior of theta without sampling: a Gaussian at its mode, corrected by the evidence at designed points.

Rue, Martino and Chopin (2009), section 6.5: with z the coordinates along the principal axes of the Gaussian, in
standard deviations, a few parameters are integrated on a regular grid in z, more of them by a central composite design.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from mercer.core.random import generator
from mercer.learning.climb import Optimum
from mercer.learning.doubt import LogPosterior, Peak, ThetaPosterior, most_points, peaks, thinned

MAX_GRID_PARAMETERS = 3
GRID_STEP = 1.0  # in standard deviations: the trapezoidal rule of a Gaussian errs by 5e-9
MAX_GRID_DROP = 7.5  # nats below the mode, at the edge of the grid
MAX_GRID_POINTS = 1500
GRID_EVALUATIONS = (9, 50, 300)  # of one, two and three parameters, about
RADIUS = 1.1  # of the design, times sqrt(p): f0 of the paper
MAX_FACTORIAL_PARAMETERS = 20  # beyond, corners are drawn
DRAWN_CORNERS = 512
AXIS_STEP = math.sqrt(2)  # in standard deviations, where the skewness of an axis is measured
MAX_STRETCH = 3.0  # of an axis, by its skewness, either way
N_DRAWS = 2000  # of the approximation, for intervals and plots

Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # from weights of the points: (N_DRAWS, p)


def laplace(
    posterior: LogPosterior, optima: Sequence[Optimum], n: int, seed: int = 0, most: int | None = None
) -> ThetaPosterior | None:
    """Weighted points of p(theta | y) around the ``optima`` found, from n rows; None if there is no value at any.

    About 2 p evaluations with gradients for each mode; then values alone: about 9, 50 or 300 on a grid of one, two or
    three parameters, and beyond 4 p + 1 plus 16 (four or five parameters) to 512 (twenty) of a design for each mode.
    ``most`` points are kept for prediction; None: as many as memory allows.
    """
    modes = peaks(posterior, optima)
    if not modes:
        return None
    rng = generator(seed)
    interrupted = False
    if posterior.size <= MAX_GRID_PARAMETERS:
        theta, logs, draw, interrupted = _grid(posterior, modes)
    else:
        theta, logs, draw = _composite(posterior, modes)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    kind = "grid" if posterior.size <= MAX_GRID_PARAMETERS else "central composite"
    diagnostics = {"design": kind, "points": len(theta), "modes": len(modes), "interrupted": interrupted}
    few, light = thinned(theta, weights, most or most_points(n))
    draws = draw(weights, rng)
    return ThetaPosterior("laplace", few, light, draws, posterior.logarithmic, posterior.evaluations, diagnostics)


def _grid(posterior: LogPosterior, modes: list[Peak]) -> tuple[np.ndarray, np.ndarray, Draw, bool]:
    """Points of a regular grid along the axes of the highest mode, from every mode outwards as far as the density is
    not negligible, or until the user ends it, which is the last that is returned: the weights of the trapezoidal rule
    are equal, so the density alone counts."""
    top, p = modes[0], posterior.size
    found: dict[tuple[int, ...], float] = {}
    at = lambda index: top.theta + top.root @ (GRID_STEP * np.array(index, dtype=float))
    queue = []
    for mode in modes:
        z = np.linalg.solve(top.root, mode.theta - top.theta) / GRID_STEP
        queue.append(tuple(int(i) for i in np.round(z)))
    best = top.value
    steps = [tuple(sign * (i == j) for i in range(p)) for j in range(p) for sign in (1, -1)]
    interrupted = False
    while queue and len(found) < MAX_GRID_POINTS:
        index = queue.pop(0)
        if index in found:
            continue
        try:
            value = top.value if not any(index) else posterior.value(at(index))
        except KeyboardInterrupt:
            if len(found) < 1 + 2 * p:  # less than the neighbours of one mode
                raise
            interrupted = True
            break
        found[index] = value
        best = max(best, value)
        if value > best - MAX_GRID_DROP:
            queue += [tuple(np.add(index, step).tolist()) for step in steps]
    kept = [index for index, value in found.items() if value > best - MAX_GRID_DROP - 3.0]
    theta, logs = np.array([at(index) for index in kept]), np.array([found[index] for index in kept])

    def draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        chosen = rng.choice(len(weights), N_DRAWS, p=weights)
        return theta[chosen] + rng.uniform(-0.5, 0.5, (N_DRAWS, p)) * GRID_STEP @ top.root.T

    return theta, logs, draw, interrupted


def _composite(posterior: LogPosterior, modes: list[Peak]) -> tuple[np.ndarray, np.ndarray, Draw]:
    """A central composite design around every mode, on axes stretched by their skewness.

    The centre has weight 1, every other point, on a sphere of radius f0 sqrt(p) in z, a weight that gives a Gaussian
    its second moment: 1 / ((m - 1) (f0^2 - 1) exp(-p f0^2 / 2)) for m points in all; the density multiplies both.
    """
    p = posterior.size
    z = np.concatenate([np.zeros((1, p)), directions(p) * RADIUS * math.sqrt(p)])
    log_rule = np.full(len(z), 0.5 * p * RADIUS**2 - math.log((len(z) - 1) * (RADIUS**2 - 1)))
    log_rule[0] = 0.0
    # The sum over a Gaussian of height one is 1 + 1 / (f0^2 - 1); its integral is (2 pi)^(p/2) times the volume.
    log_unit = 0.5 * p * math.log(2 * math.pi) - math.log(1 + 1 / (RADIUS**2 - 1))
    parts, logs, stretches = [], [], []
    for mode in modes:
        stretch = _skewness(posterior, mode)
        theta = mode.theta + _stretched(z, stretch) @ mode.root.T
        values = np.array([mode.value, *(posterior.value(each) for each in theta[1:])])
        parts.append(theta)
        logs.append(values + log_rule + log_unit + mode.log_volume + _log_jacobian(z, stretch))
        stretches.append(stretch)
    counts = np.cumsum([0, *map(len, parts)])

    def draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        shares = np.array([weights[a:b].sum() for a, b in itertools.pairwise(counts)])
        times = rng.multinomial(N_DRAWS, shares / shares.sum())
        return np.concatenate(
            [
                mode.theta + _split_normal(stretch, count, rng) @ mode.root.T
                for mode, stretch, count in zip(modes, stretches, times, strict=True)
            ]
        )

    return np.concatenate(parts), np.concatenate(logs), draw


def _skewness(posterior: LogPosterior, mode: Peak) -> np.ndarray:
    """Standard deviations of each half axis, down and up, relative to those of the Gaussian: (2, p).

    A density that falls by d at z = sqrt(2) falls like a Gaussian of deviation 1 / sqrt(d) there.
    """
    out = np.ones((2, posterior.size))
    for i, axis in enumerate(mode.root.T):
        for side, sign in enumerate((-1, 1)):
            drop = mode.value - posterior.value(mode.theta + sign * AXIS_STEP * axis)
            out[side, i] = np.clip(1 / math.sqrt(max(drop, 1e-3)), 1 / MAX_STRETCH, MAX_STRETCH)
    return out


def _stretched(z: np.ndarray, stretch: np.ndarray) -> np.ndarray:
    return z * np.where(z < 0, stretch[0], stretch[1])


def _log_jacobian(z: np.ndarray, stretch: np.ndarray) -> np.ndarray:
    """ln of the volume by which `_stretched` enlarges the neighbourhood of each z: (m,)."""
    factors = np.where(z < 0, stretch[0], np.where(z > 0, stretch[1], stretch.mean(axis=0)))
    return np.log(factors).sum(axis=1)


def _split_normal(stretch: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of independent split normal variables: each side has a share proportional to its deviation."""
    size = np.abs(rng.standard_normal((count, stretch.shape[1])))
    up = rng.random(size.shape) < stretch[1] / stretch.sum(axis=0)
    return np.where(up, size * stretch[1], -size * stretch[0])


@functools.cache
def _factors(p: int) -> tuple[int, ...]:
    """Columns of a two-level design of resolution V: the smallest numbers of which no four, or fewer, cancel in
    exclusive or (Sanchez and Sanchez 2005)."""
    found: list[int] = []
    candidate = 0
    while len(found) < p:
        candidate += 1
        sums = {0, *found}
        sums |= {a ^ b for a, b in itertools.combinations(found, 2)}
        sums |= {a ^ b ^ c for a, b, c in itertools.combinations(found, 3)}
        if candidate not in sums:
            found.append(candidate)
    return tuple(found)


def directions(p: int) -> np.ndarray:
    """Unit vectors of a central composite design: both ends of every axis, and corners of the cube that form a
    fraction of all 2^p of resolution V; of more than `MAX_FACTORIAL_PARAMETERS` drawn pairs of opposite corners.

    >>> directions(5).shape
    (26, 5)
    """
    axes = np.concatenate([np.eye(p), -np.eye(p)])
    if p > MAX_FACTORIAL_PARAMETERS:
        half = generator(0).choice([-1.0, 1.0], size=(DRAWN_CORNERS // 2, p))
        return np.concatenate([axes, np.concatenate([half, -half]) / math.sqrt(p)])
    columns = _factors(p)
    runs = 1 << max(columns).bit_length()
    parity = np.array([[(run & column).bit_count() % 2 for column in columns] for run in range(runs)])
    return np.concatenate([axes, (1.0 - 2.0 * parity) / math.sqrt(p)])
