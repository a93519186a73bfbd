"""What is asked of a function known by a Gaussian process: its integral, where it is largest, and where it is zero.

Each takes a posterior `mercer.GP` or a fitted `GaussianProcessRegressor`. Integrals have a normal distribution; the
rest comes from functions drawn from the posterior, one answer for each.

>>> import mercer as mc
>>> import numpy as np
>>> x = np.linspace(0, 3, 12)
>>> f = mc.GP(mc.kernels.RBF(0.8)).condition(x, np.sin(x), noise=1e-6)
>>> integral(f, 0.0, 3.0).mean.round(2)  # 1 - cos 3
array([1.99])
>>> maximum(f, [(0.0, 3.0)], seed=0).x.mean().round(1)  # pi/2
np.float64(1.6)
"""

import dataclasses
import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import qmc

from mercer.core.errors import ParameterError
from mercer.distributions import Normal
from mercer.gp.process import GP
from mercer.models.estimator import Estimator
from mercer.models.optimizer import checked_bounds
from mercer.models.output_predictions import check_one_target
from mercer.models.regression import GaussianProcessRegressor
from mercer.operators import Integral

GRID = 400  # points of one input at which functions are drawn
FIRST_POINTS, NEW_POINTS, MAX_POINTS = 500, 300, 1500  # of several inputs: at first, in each round, and together
ROUNDS, SHRINKAGE = 3, 0.3  # of adding points near the extremes found, and the width of each relative to the one before


@dataclasses.dataclass(frozen=True, eq=False)
class Extreme:
    """The maximum, or minimum, of each function drawn: where, ``x`` (size, d), and its ``value`` (size,)."""

    x: np.ndarray
    value: np.ndarray

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Central intervals of the coordinates of x and of the value, in the last entry: (d + 1,), (d + 1,)."""
        if not (_is_number(level) and 0 <= level <= 1):
            raise ParameterError(f"level must lie between 0 and 1, as in 0.95; got {level!r}.")
        ends = np.quantile(np.column_stack([self.x, self.value]), [0.5 - level / 2, 0.5 + level / 2], axis=0)
        return ends[0], ends[1]

    def __repr__(self) -> str:
        low, high = self.interval()
        places = ", ".join(
            f"{m:.4g} ({a:.4g} to {b:.4g})" for m, a, b in zip(self.x.mean(axis=0), low, high, strict=False)
        )
        return (
            f"value {self.value.mean():.4g} ({low[-1]:.4g} to {high[-1]:.4g}) at {places}; 95% of {len(self.x)} draws"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Crossings:
    """Where each function drawn takes a value: ``draws``, one array of places for each, in order; some may be empty."""

    draws: list[np.ndarray]

    @property
    def probability(self) -> float:
        """That there is any."""
        return float(np.mean([len(found) > 0 for found in self.draws]))

    @property
    def counts(self) -> np.ndarray:
        """How many there are in each draw."""
        return np.array([len(found) for found in self.draws])

    @property
    def first(self) -> np.ndarray:
        """The first one of each draw that has any."""
        return np.array([found[0] for found in self.draws if len(found)])

    def __repr__(self) -> str:
        if not len(self.first):
            return f"none in {len(self.draws)} draws"
        low, high = np.quantile(self.first, [0.025, 0.975])
        return (
            f"first at {self.first.mean():.4g} (95%: {low:.4g} to {high:.4g}), with probability "
            f"{self.probability:.2g}; {self.counts.mean():.2g} on average; {len(self.draws)} draws"
        )


def integral(f: Any, lower: ArrayLike, upper: ArrayLike) -> Normal:
    """Distribution of the integral of f over an interval, or over a box with one limit for each input: Bayesian
    quadrature (O'Hagan 1991)."""
    operator = Integral(lower, upper)
    if isinstance(f, GP):
        width = max(np.size(lower), np.size(upper))
        view = f.apply(operator, n_inputs=width)
        F: Any = getattr(view.kernel, "functionals")  # noqa: B009 (of the operator just applied)
        mean, variance = view.moments(np.zeros((1, F.width)))
        return Normal(mean, np.sqrt(variance))
    _check_one_function(f, "an integral")
    if not isinstance(f, GaussianProcessRegressor):
        raise ParameterError(
            f"an integral is of a posterior GP or a fitted GaussianProcessRegressor; got {type(f).__name__}."
        )
    mean, deviation = f.predict(np.zeros((1, f.n_features_in_)), return_std=True, operator=operator)
    return Normal(mean, deviation)


def maximum(f: Any, bounds: Any, size: int = 200, seed: int = 0) -> Extreme:
    """Where functions drawn from f are largest within bounds, pairs (lower, upper) for each input, and how large.

    Functions are drawn together at points that become dense where maxima are found.
    """
    return _extreme(f, bounds, size, seed, 1.0)


def minimum(f: Any, bounds: Any, size: int = 200, seed: int = 0) -> Extreme:
    """Where functions drawn from f are smallest within bounds, and how small."""
    return _extreme(f, bounds, size, seed, -1.0)


def zeros(f: Any, bounds: Any, level: float = 0.0, size: int = 200, seed: int = 0) -> Crossings:
    """Where functions of one input, drawn from f, are zero, or take another ``level``, within bounds."""
    box = checked_bounds(bounds)
    if len(box) != 1:
        raise ParameterError(f"zeros are found of functions of one input; got bounds for {len(box)}.")
    if not (_is_number(level) and math.isfinite(level)):
        raise ParameterError(f"level must be a finite number; got {level!r}.")
    x = np.linspace(box[0, 0], box[0, 1], GRID)
    draws = _drawn(f, x[:, None], size, seed) - level
    found = []
    for values in draws:
        i = np.flatnonzero(values[:-1] * values[1:] < 0)
        between = x[i] + (x[i + 1] - x[i]) * values[i] / (values[i] - values[i + 1])
        found.append(np.sort(np.concatenate([between, x[values == 0]])))
    return Crossings(found)


def _check_one_function(f: Any, what: str) -> None:
    if isinstance(f, Estimator):
        f._check_fitted()
    check_one_target(f, what)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _drawn(f: Any, X: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Functions drawn, without noise: (size, n)."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ParameterError(f"size must be a positive number of draws; got {size!r}.")
    if isinstance(f, GP):
        return f.sample(X, size=size, seed=seed)
    _check_one_function(f, "this")
    if not hasattr(f, "sample_y"):
        raise ParameterError(f"expected a posterior GP or a fitted regressor; got {type(f).__name__}.")
    drawn: np.ndarray = f.sample_y(X, size, random_state=seed, include_noise=False).T
    return drawn


def _extreme(f: Any, bounds: Any, size: int, seed: int, sign: float) -> Extreme:
    box = checked_bounds(bounds)
    low, width, d = box[:, 0], box[:, 1] - box[:, 0], len(box)
    if d == 1:
        x = np.linspace(box[0, 0], box[0, 1], GRID)
        draws = sign * _drawn(f, x[:, None], size, seed)
        where, value = _by_parabola(x, draws)
        return Extreme(where[:, None], sign * value)
    with np.errstate(all="ignore"):
        points = qmc.Sobol(d, seed=seed).random_base2(round(math.log2(FIRST_POINTS)))
    corners = np.array(np.meshgrid(*[[0.0, 1.0]] * d)).reshape(d, -1).T if d <= 6 else np.zeros((0, d))
    points, rng, spread = np.vstack([points, corners]), np.random.default_rng(seed), SHRINKAGE
    for _ in range(ROUNDS):
        draws = sign * _drawn(f, low + points * width, size, seed)
        best = points[draws.argmax(axis=1)]
        spread *= SHRINKAGE
        near = best[rng.integers(len(best), size=NEW_POINTS)] + spread * rng.normal(size=(NEW_POINTS, d))
        points = np.vstack([points, np.clip(near, 0.0, 1.0)])[-MAX_POINTS:]
    draws = sign * _drawn(f, low + points * width, size, seed)
    at = draws.argmax(axis=1)
    return Extreme(low + points[at] * width, sign * draws[np.arange(size), at])


def _by_parabola(x: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maxima on a grid, between its points by the parabola through three of them."""
    i = np.clip(draws.argmax(axis=1), 1, len(x) - 2)
    rows = np.arange(len(draws))
    a, b, c = draws[rows, i - 1], draws[rows, i], draws[rows, i + 1]
    bend = a - 2 * b + c
    inside = (bend < 0) & (b >= np.maximum(a, c))
    shift = np.where(inside, 0.5 * (a - c) / np.where(inside, bend, 1.0), 0.0)
    value = np.where(inside, b - 0.25 * (a - c) * shift, np.maximum(np.maximum(a, b), c))
    ends = np.where(a > np.maximum(b, c), -1.0, np.where(c > np.maximum(a, b), 1.0, 0.0))
    return x[i] + (x[1] - x[0]) * np.where(inside, shift, ends), value
