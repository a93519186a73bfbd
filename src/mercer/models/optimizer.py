"""Bayesian optimisation: the minimum of a function that is slow to evaluate, by a Gaussian process of its values.

Expected improvement is computed as its logarithm (Ament et al. 2023), whose gradient does not vanish where the
improvement is tiny, and maximised from many starts at once. Batches are chosen one point after the other, each given
the predicted values of those before it (the kriging believer of Ginsbourger et al. 2010).
"""

import dataclasses
import functools
import itertools
import math
import numbers
import reprlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize as climb
from scipy.special import erfcx, log_ndtr
from scipy.stats import qmc

from mercer.core.coordinates import Layout
from mercer.core.errors import DataError, InterruptedFitWarning, ParameterError
from mercer.core.inputs import as_matrix, as_vector
from mercer.core.parameters import bare
from mercer.core.precision import concretely
from mercer.core.random import entropy
from mercer.core.text import number, table
from mercer.gp.process import GP
from mercer.kernels import Matern, evaluate
from mercer.kernels.convert import as_kernel
from mercer.models.regression import GaussianProcessRegressor
from mercer.priors import LogNormal

ACQUISITIONS = ("ei", "thompson")
SETTINGS = ("acquisition", "n_initial", "noise", "kernel", "random_state")
STARTS = 8  # of the climb on expected improvement
CANDIDATES_PER_INPUT, MAX_CANDIDATES = 256, 1024  # points of which the best are starts
THOMPSON_CANDIDATES = 1000  # points at which a function is drawn
LOCAL_SPREADS = (0.1, 0.01)  # of candidates around the best points, as a share of the range
CLIMB_STEPS = 60
SURFACE_ROWS = 64  # to multiples of which the rows are padded, so that few programs are compiled
SAME_POINT_DISTANCE = 1e-6  # share of the range, within which an evaluation carries no new information
RELEARN_GROWTH = 0.2  # share of new rows from which parameters are learned again
NOISE_PRIOR = (-7.0, 2.0)  # log-normal, of the variance relative to that of the values
LENGTHSCALE_PRIOR = (math.sqrt(2.0), math.sqrt(3.0))  # log-normal, plus ln(d)/2 (Hvarfner et al. 2024)
MAX_DEVIATIONS = 3.0  # of values above the middle, beyond which they are drawn in logarithmically
MIN_NOISE_SHARE = 1e-3  # of the variance, from which the best value is that of the model, not the smallest measured


@dataclasses.dataclass(frozen=True, eq=False)
class Minimum:
    """What `minimize` found.

    ``x`` (d,) is the best point evaluated and ``fun`` the value there: the smallest one measured, or if measurements
    are noisy the smallest one of the model, with ``deviation``. ``history``: all points (n, d) and values (n,), NaN
    where an evaluation failed. ``model`` is the last fit, of ``optimizer``, which can go on.
    """

    x: np.ndarray
    fun: float
    deviation: float
    history: tuple[np.ndarray, np.ndarray]
    optimizer: "Optimizer"
    interrupted: bool = False

    @property
    def model(self) -> GaussianProcessRegressor | None:
        return self.optimizer.model

    def __repr__(self) -> str:
        X, y = self.history
        failed = int(np.isnan(y).sum())
        best = np.fmin.accumulate(y)
        improved = np.flatnonzero(np.r_[True, best[1:] < best[:-1]] & np.isfinite(best))
        rows = [[str(i + 1), number(y[i]), " ".join(f"{v:.5g}" for v in X[i])] for i in improved[-6:]]
        head = f"minimum {self.fun:.6g}" + (f" (deviation {self.deviation:.2g})" if self.deviation else "")
        return "\n".join(
            [
                f"{head} at [{', '.join(f'{v:.6g}' for v in self.x)}], after {len(y)} evaluations"
                + (f", of which {failed} failed" if failed else "")
                + (", interrupted" if self.interrupted else ""),
                table(["evaluation", "best so far", "at"], rows),
            ]
        )


class Optimizer:
    """Bayesian optimisation by `ask` and `tell`: the minimum of a function within bounds, in few evaluations.

    ``bounds`` are pairs (lower, upper), one for each input. The first ``n_initial`` points, 2 (d + 1) unless given,
    fill the space. ``acquisition``: "ei" maximises the expected improvement, "thompson" minimises a function drawn from
    the posterior. ``noise``: variance of a measurement; None learns it, 0.0 is none. ``kernel``: of the inputs scaled
    to the unit cube; None is a Matern 5/2 function with a lengthscale for each.

    >>> optimizer = Optimizer([(-2.0, 2.0)], random_state=0)
    >>> for _ in range(12):
    ...     x = optimizer.ask()
    ...     optimizer.tell(x, [(x[0, 0] - 0.5) ** 2])
    >>> bool(abs(optimizer.best()[0][0] - 0.5) < 0.05)
    True
    """

    def __init__(
        self, bounds: Any, *, acquisition: str = "ei", n_initial: int | None = None, noise: float | None = None,
        kernel: Any = None, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.bounds = checked_bounds(bounds)
        d = len(self.bounds)
        if acquisition not in ACQUISITIONS:
            raise ParameterError(
                f"acquisition must be one of {', '.join(map(repr, ACQUISITIONS))}; got {acquisition!r}."
            )
        if n_initial is not None and (isinstance(n_initial, bool) or not isinstance(n_initial, int) or n_initial < 1):
            raise ParameterError(f"n_initial must be a positive integer; got {n_initial!r}.")
        if noise is not None and not _is_variance(noise):
            raise ParameterError(f"noise must be a variance, or None to learn it; got {noise!r}.")
        self.acquisition, self.noise = acquisition, noise
        self.kernel = None if kernel is None else _kernel_of_vectors(kernel, d)
        self.n_initial = 2 * (d + 1) if n_initial is None else n_initial
        self.rng = np.random.default_rng(entropy(random_state))
        self.X, self.y = np.zeros((0, d)), np.zeros(0)  # what was told, in units of the caller
        self.pending = np.zeros((0, d))  # asked and not yet told
        self.model: GaussianProcessRegressor | None = None
        self._sobol = qmc.Sobol(d, seed=self.rng)
        self._learned_rows = 0

    # -- the public loop -----------------------------------------------------------------------------------------------

    def ask(self, n: int = 1) -> np.ndarray:
        """The next n points to evaluate: (n, d). Points asked for and not yet told count as being evaluated."""
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ParameterError(f"ask for a positive number of points; got {n!r}.")
        posterior: GP | None = None
        points = []
        for _ in range(n):
            known = len(self.y) + len(self.pending)
            finite = self.y[np.isfinite(self.y)]
            if known < self.n_initial or len(finite) < 2 or np.ptp(finite) == 0:
                u = self._new_point()
            else:
                if posterior is None:
                    posterior = self._posterior()
                u = self._distinct(self._chosen(posterior), posterior)
                posterior = self._believing(posterior, u[None, :])
            x = self._from_unit(u)
            self.pending = np.vstack([self.pending, x])
            points.append(x)
        return np.array(points)

    def tell(self, X: ArrayLike, y: ArrayLike) -> None:
        """Values y (n,) measured at points X (n, d), those asked for or others. NaN is an evaluation that failed: its
        surroundings are avoided, as if the largest value so far had been found."""
        d = len(self.bounds)
        points = as_matrix(X)
        if points.shape == (d, 1) and np.ndim(X) == 1:  # one point
            points = points.T
        if points.shape[1] != d:
            raise DataError(f"points of this optimizer have {d} inputs, one for each bound; got shape {points.shape}.")
        self._told(points, _values(y, len(points), "y"))

    def _told(self, X: np.ndarray, y: np.ndarray) -> None:
        outside = (self.bounds[:, 0] - 1e-9 * self._range > X) | (self.bounds[:, 1] + 1e-9 * self._range < X)
        if outside.any():
            raise DataError(f"point {X[outside.any(axis=1)][0]} lies outside the bounds.")
        self.X, self.y = np.vstack([self.X, X]), np.concatenate([self.y, y])
        for x in X:
            same = np.flatnonzero((np.abs(self.pending - x) <= 1e-12 * self._range).all(axis=1))
            self.pending = np.delete(self.pending, same[:1], axis=0)

    def best(self) -> tuple[np.ndarray, float, float]:
        """The best point told, its value and its standard deviation: as measured, with deviation zero, or of the model
        if measurements are noisy."""
        finite = np.flatnonzero(np.isfinite(self.y))
        if not len(finite):
            raise DataError("no evaluation has succeeded so far: every value told is NaN or infinite.")
        at = finite[np.argmin(self.y[finite])]
        model = self.model
        if self.noise == 0 or model is None or np.mean(model.noise_) < MIN_NOISE_SHARE or len(finite) < self.n_initial:
            return self.X[at].copy(), float(self.y[at]), 0.0
        posterior = self._posterior()
        mean, variance = posterior.moments(self._unit(self.X[finite]))
        i = int(np.argmin(mean))
        value = mean[i] * model.scale_ + model.center_
        return self.X[finite[i]].copy(), self._natural(value), math.sqrt(variance[i]) * model.scale_ * self._size

    # -- the model -----------------------------------------------------------------------------------------------------

    @property
    def _range(self) -> np.ndarray:
        return self.bounds[:, 1] - self.bounds[:, 0]

    def _unit(self, X: np.ndarray) -> np.ndarray:
        return (X - self.bounds[:, 0]) / self._range

    def _from_unit(self, u: np.ndarray) -> np.ndarray:
        return np.clip(self.bounds[:, 0] + u * self._range, self.bounds[:, 0], self.bounds[:, 1])

    def _target(self) -> np.ndarray:
        """Values in units of their deviation, large ones drawn in, failures as bad as the worst."""
        finite = self.y[np.isfinite(self.y)]
        middle = float(np.median(finite))
        low = finite[finite <= middle]
        self._middle, self._size = middle, max(float(np.std(finite)), np.finfo(float).tiny)
        reach = MAX_DEVIATIONS * max(middle - float(low.min()), 1e-3 * self._size)
        above = np.maximum(self.y - middle, 0.0)
        drawn = np.where(above > reach, reach * (1 + np.log(np.maximum(above, reach) / reach)), above)
        y = np.minimum(self.y, middle) - middle + drawn
        y[np.isnan(y)] = np.nanmax(y)
        self._size = max(float(np.std(y)), np.finfo(float).tiny)
        return y / self._size

    def _natural(self, value: float) -> float:
        return float(value * self._size + self._middle)

    def _posterior(self) -> GP:
        """Of the values told and, as predicted, of those pending; parameters are learned again when there are enough
        new rows."""
        U, t = self._unit(self.X), self._target()
        learns = self.model is None or len(t) >= self._learned_rows * (1 + RELEARN_GROWTH)
        kernel: Any = self.kernel
        if kernel is None:
            d = U.shape[1]
            prior = LogNormal(LENGTHSCALE_PRIOR[0] + 0.5 * math.log(d), LENGTHSCALE_PRIOR[1])
            kernel = 1.0 * Matern(np.full(d, 0.5 * math.sqrt(d)), nu=2.5).with_priors(lengthscale=prior)
        noise: Any = LogNormal(*NOISE_PRIOR) if self.noise is None else self.noise / self._size**2
        if learns:
            model = GaussianProcessRegressor(kernel, noise, "dense", "map", random_state=0, progress=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.model = model.fit(U, t)
            self._learned_rows = len(t)
        else:
            assert self.model is not None
            given = float(np.mean(self.model.noise_)) if self.noise is None else noise
            model = GaussianProcessRegressor(self.model.kernel_, given, "dense", None, progress=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.model = model.fit(U, t)
        posterior: Any = self.model.posterior_
        return self._believing(posterior, self._unit(self.pending)) if len(self.pending) else posterior

    def _believing(self, posterior: GP, U: np.ndarray) -> GP:
        """Given the values at U that it predicts."""
        noise = max(float(np.mean(posterior.data[2])), 1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return posterior.condition(U, posterior.mean(U), np.full(len(U), noise))

    # -- the next point ------------------------------------------------------------------------------------------------

    def _new_point(self) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Sobol points come in powers of two
            return self._sobol.random(1)[0]

    def _candidates(self, posterior: GP, n: int) -> np.ndarray:
        """Points everywhere, and around the best ones so far."""
        d = len(self.bounds)
        everywhere = qmc.Sobol(d, seed=self.rng).random(2 ** math.floor(math.log2(n)))
        U = posterior.data[0]
        best = U[np.argsort(posterior.mean(U))[:5]]
        near = [
            best[self.rng.integers(len(best), size=n // 8)] + spread * self.rng.normal(size=(n // 8, d))
            for spread in LOCAL_SPREADS
        ]
        return np.vstack([everywhere, *(np.clip(part, 0.0, 1.0) for part in near)])

    def _chosen(self, posterior: GP) -> np.ndarray:
        d = len(self.bounds)
        if self.acquisition == "thompson":
            points = self._candidates(posterior, THOMPSON_CANDIDATES)
            drawn = posterior.sample(points, size=1, seed=int(self.rng.integers(2**31)))[0]
            return points[int(np.argmin(drawn))]
        points = self._candidates(posterior, min(CANDIDATES_PER_INPUT * d, MAX_CANDIDATES))
        best = float(posterior.mean(posterior.data[0]).min())
        value = log_expected_improvement(*posterior.moments(points), best)
        starts = points[np.argsort(-value)[:STARTS]]

        surface = PosteriorSurface(posterior)

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            # All starts at once: their terms have no variable in common.
            U = flat.reshape(-1, d)
            mean, variance, dmean, dvariance = surface(U)
            value, of_mean, of_variance = improvement_with_slopes(mean, variance, best)
            slope = of_mean[:, None] * dmean + of_variance[:, None] * dvariance
            return -float(value.sum()), -np.where(np.isfinite(slope), slope, 0.0).ravel()

        found = climb(
            loss, starts.ravel(), jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * starts.size,
            options={"maxiter": CLIMB_STEPS},
        )  # fmt: skip
        ends = np.vstack([np.clip(found.x.reshape(-1, d), 0.0, 1.0), starts[:1]])
        return ends[int(np.argmax(log_expected_improvement(*posterior.moments(ends), best)))]

    def _distinct(self, u: np.ndarray, posterior: GP) -> np.ndarray:
        """The point, or where it was evaluated before without noise the most uncertain of many."""
        U = posterior.data[0]
        noisy = self.noise != 0 and self.model is not None and np.mean(self.model.noise_) > MIN_NOISE_SHARE
        if noisy or np.abs(U - u).max(axis=1).min() > SAME_POINT_DISTANCE:
            return u
        points = qmc.Sobol(len(u), seed=self.rng).random(256)
        return points[int(np.argmax(posterior.moments(points)[1]))]


class PosteriorSurface:
    """Mean and variance of a posterior of few rows with an unknown constant, and their gradients, by one compiled
    program: a climb asks for them dozens of times at a few points."""

    def __init__(self, posterior: GP) -> None:
        observed = posterior.observations()
        n = len(observed.y)
        size = next(size for size in itertools.count(SURFACE_ROWS, SURFACE_ROWS) if size >= n)
        P = np.zeros((size, size))
        P[:n, :n] = observed.factor.solve(np.eye(n))
        self._level = float(posterior.coefficients()[0][0]) if posterior.prior_mean.unknown else 0.0
        self._known = float(posterior.prior_mean.constant)
        self._flat = 1.0 if posterior.prior_mean.unknown else 0.0
        a, self._kernel = np.pad(observed.a, (0, size - n)), posterior.kernel.fix()
        with concretely():
            self._leaves = jax.tree.leaves(bare(self._kernel))
            rows = evaluate.take(self._kernel.prepare(np.asarray(observed.X), np.arange(n)), 0, n, size)
            self._data = jax.device_put((rows, a, P, P.sum(axis=1), P.sum()))

    def __call__(self, U: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mean and variance (s,), and their gradients (s, d)."""
        program = _surface_program(Layout.of(self._kernel))
        with concretely():
            mean, variance, *slopes = map(np.asarray, program(self._leaves, U, self._flat, *self._data))
        return mean + self._known + self._level, np.maximum(variance, 0.0), slopes[0], slopes[1]


@functools.lru_cache(maxsize=16)
def _surface_program(layout: Layout) -> Callable:
    def moments(leaves: Any, U: Any, flat: Any, rows: Any, a: Any, P: Any, w: Any, total: Any) -> Any:
        kernel = jax.tree.unflatten(layout.structure, leaves)

        def both(U: Any) -> Any:
            own = kernel.prepare(U, jnp.arange(-U.shape[0], 0))
            K = kernel.block(own, rows)
            variance = kernel.block_diag(own) - jnp.sum((K @ P) * K, axis=1) + flat * (1 - K @ w) ** 2 / total
            return K @ a, variance

        (mean, variance), pull = jax.vjp(both, U)
        one, none = jnp.ones_like(mean), jnp.zeros_like(mean)
        return mean, variance, pull((one, none))[0], pull((none, one))[0]

    return jax.jit(moments)


def log_expected_improvement(mean: np.ndarray, variance: np.ndarray, best: float) -> np.ndarray:
    """ln E max(best - f, 0) for f ~ N(mean, variance): ln s + ln(phi(z) + z Phi(z)), z = (best - mean) / s."""
    return improvement_with_slopes(mean, variance, best)[0]


def improvement_with_slopes(
    mean: np.ndarray, variance: np.ndarray, best: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The logarithm of the expected improvement, and its derivatives in mean and variance."""
    s = np.sqrt(np.maximum(variance, 1e-20))
    z = (best - mean) / s
    log_phi = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    with np.errstate(all="ignore"):
        # For z << 0, phi + z Phi = phi (1 - |z| R), with Mills' ratio R = sqrt(pi/2) erfcx(|z|/sqrt 2), which cancels
        # beyond |z| ~ 1e4, where it is 1/z^2.
        ratio = math.sqrt(math.pi / 2) * erfcx(np.abs(z) / math.sqrt(2))
        left = np.where(z < -1e4, -2 * np.log(np.abs(z)), np.log1p(-np.abs(z) * ratio))
        log_h = np.where(z > -1, np.log(np.exp(log_phi) + z * np.exp(log_ndtr(z))), log_phi + left)
    value = np.log(s) + log_h
    # dEI/dmean = -Phi(z), dEI/ds = phi(z).
    of_mean = -np.exp(log_ndtr(z) - value)
    of_s = np.exp(log_phi - value)
    return value, of_mean, 0.5 * of_s / s


def checked_bounds(bounds: Any) -> np.ndarray:
    """Bounds (d, 2) from pairs of numbers."""
    try:
        found = np.array([(float(low), float(high)) for low, high in bounds])
    except (TypeError, ValueError):
        found = np.zeros((0, 2))
    if found.ndim != 2 or not len(found) or not np.isfinite(found).all() or not (found[:, 0] < found[:, 1]).all():
        raise ParameterError(
            f"bounds must be pairs (lower, upper) of finite numbers with lower < upper, one for each input; got "
            f"{bounds!r}."
        )
    return found


def minimize(
    f: Callable[[np.ndarray], Any],
    bounds: Sequence[tuple[float, float]],
    n_evaluations: int = 50,
    *,
    batch: int = 1,
    callback: Callable[[Minimum], Any] | None = None,
    **settings: Any,
) -> Minimum:
    """Minimum of a function that is slow to evaluate, within bounds, by Bayesian optimisation.

    ``f`` takes one point (d,) and returns a number; with ``batch`` of more than one it takes a matrix (batch, d) and
    returns a vector, for evaluations in parallel. NaN is an evaluation that failed. Ctrl-C ends the search with what
    was found. ``callback`` is called with the `Minimum` after every batch, and ends the search by returning True.
    ``settings`` are those of `Optimizer`: acquisition, n_initial, noise, kernel, random_state.

    >>> found = minimize(lambda x: (x[0] - 1.0) ** 2 + abs(x[1]), [(-2.0, 3.0), (-1.0, 1.0)], 25, random_state=0)
    >>> bool(found.fun < 0.05), len(found.history[1])
    (True, 25)
    """
    if not callable(f):
        raise ParameterError(f"minimize takes a function of one point; got {f!r}.")
    for name, value in (("n_evaluations", n_evaluations), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ParameterError(f"{name} must be a positive integer; got {value!r}.")
    unknown = sorted(settings.keys() - SETTINGS)
    if unknown:
        raise ParameterError(f"minimize has no setting {unknown[0]!r}; there are {', '.join(SETTINGS)}.")
    optimizer = Optimizer(bounds, **settings)
    interrupted = False
    try:
        while len(optimizer.y) < n_evaluations:
            X = optimizer.ask(min(batch, n_evaluations - len(optimizer.y)))
            y = f(X.copy()) if batch > 1 else [_one_value(f, X[0].copy())]
            optimizer.tell(X, _values(y, len(X), "f(X)"))
            if callback is not None and np.isfinite(optimizer.y).any() and callback(_result(optimizer)) is True:
                break
    except KeyboardInterrupt:
        if not np.isfinite(optimizer.y).any():
            raise
        interrupted = True
        warnings.warn(
            f"interrupted after {len(optimizer.y)} evaluations; the result is the best of these.",
            InterruptedFitWarning,
            stacklevel=2,
        )
    return _result(optimizer, interrupted)


def _one_value(f: Callable, x: np.ndarray) -> float:
    returned = f(x)
    value = np.asarray(returned)
    if value.dtype.kind not in "fiub" or value.size != 1:
        what = "nothing" if returned is None else reprlib.repr(returned)
        raise DataError(f"f must return one number for a point; it returned {what}.")
    return float(value.reshape(()))


def _values(y: Any, n: int, what: str) -> np.ndarray:
    """Numbers (n,), NaN where an evaluation failed."""
    if y is None or (isinstance(y, list | tuple) and any(each is None for each in y)):
        raise DataError(f"{what} must be one value for each of {n} points, NaN where an evaluation failed; got {y!r}.")
    try:
        array = np.atleast_1d(np.asarray(y))
    except ValueError:
        raise DataError(f"{what} must be one value for each of {n} points; its rows differ in length.") from None
    if array.shape not in ((n,), (n, 1)):
        raise DataError(f"{what} must be one value for each of {n} points; got shape {array.shape}.")
    if array.dtype.kind == "f":
        array = np.where(np.isfinite(array), array, np.nan)
    return as_vector(array, n, what, gaps=True)


def _is_variance(noise: Any) -> bool:
    return not isinstance(noise, bool) and isinstance(noise, numbers.Real) and 0 <= float(noise) < math.inf


def _kernel_of_vectors(kernel: Any, d: int) -> Any:
    """A kernel of points of d numbers."""
    kernel = as_kernel(kernel)
    if kernel.reads not in ("vectors", "anything"):
        raise ParameterError(
            f"kernel must read vectors of {d} numbers, which points are; {kernel!r} reads {kernel.reads}."
        )
    kernel.diag(np.full((1, d), 0.5))  # which refuses a number of columns that it cannot read
    return kernel


def _result(optimizer: Optimizer, interrupted: bool = False) -> Minimum:
    x, fun, deviation = optimizer.best()
    return Minimum(x, fun, deviation, (optimizer.X.copy(), optimizer.y.copy()), optimizer, interrupted)
