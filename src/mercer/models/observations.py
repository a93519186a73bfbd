"""Regression on linear observations: the part of `GaussianProcessRegressor` that learns from rows under operators."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ModelWarning, ParameterError
from mercer.core.inputs import count_rows
from mercer.core.random import entropy, seed_of
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, KernelNoise, LearnedNoise, Noise, RowNoise, as_noise
from mercer.gp.observed import KindNoise, ObservedMean
from mercer.gp.posterior import Posterior
from mercer.kernels.convert import as_covariance
from mercer.kernels.observed import Functionals, Observed
from mercer.kernels.operators import Derivative, Value, as_operators, position
from mercer.learning import heuristics
from mercer.learning.regression import MIN_NOISE_RATIO, RegressionObjective, learn_regression, resolution
from mercer.means import Function
from mercer.models.doubt import average_over_parameters
from mercer.models.records import NOT_INTEGRATED, LearnedByEvidence, restored_after_interruption, warn_of_model
from mercer.solvers import base as solvers

FIRST_POINTS, MAX_CANDIDATES = 20, 120  # virtual observations of the shape at first, and points at which it is checked
MAX_ROUNDS, ADDED_POINTS = 8, 15  # of adding points where the shape is doubtful
MAX_DOUBT = -1.0  # deviations of the mean beyond the limit, above which the shape is doubtful
MAX_REFINEMENTS = 3  # of the quadrature, as learned lengthscales become shorter


class LinearObservations(LearnedByEvidence):
    """Fitting to linear observations, and predicting them.

    ``posterior_`` is a process whose rows say what was observed (`mercer.kernels.observed.Functionals`); ``kernel_`` is
    its kernel. The centre of y stays zero, since not every observation moves with it.
    """

    noise: Any
    normalize: Any
    random_state: Any
    n_virtual_: int = 0  # rows of the posterior that hold a known shape, not data

    def _fit_observed(self, X, y, operator):
        self._refuse_with_operators()
        self.solver_: Any = solvers.asked_or_first(self.solver, lambda each: each.takes_operators)
        if not self.solver_.takes_operators:
            raise ParameterError(f"operators are for solver='dense', which 'auto' takes; got {self.solver!r}.")
        X = self._check_inputs(X, reset=True)
        if self._mixed():
            raise DataError("operators are on functions of numbers; select the columns that are numbers.")
        F = Functionals.over(X)
        n = count_rows(X)
        each = as_operators(operator, n, F.width, F.names)
        y = self._check_target(y, n, gaps=True)
        told = np.flatnonzero(np.isfinite(y))
        if not len(told):
            raise DataError(f"y has no finite value: all {n} are missing (NaN).")
        F = F.with_operators(each)
        kernel, rows = self._kernel_of_observations(X, F, told), F.coded(X, each)[told]
        self.gaps_, self.n_virtual_ = np.flatnonzero(np.isnan(y)), 0
        y, places = y[told], F.places(X)[told]
        self.likelihood_, self.target_, self._logarithmic, self.inference_ = None, None, False, "exact"
        self.y_train_, self.copy_of_, self.choice_ = y, np.arange(len(y)), None
        kernel = Observed.of(kernel.fitted(places), F).accurate(rows)
        noise = self._noise_of_observations(n, rows, F)
        noise = noise.take(told) if len(told) < n else noise
        mean = self._mean_of_observations(places, rows, F)
        plan = self._planned(kernel, rows, noise, solver=self.solver_)[1]
        plan.check()
        warn_of_model(self, [kernel.inner], places, mean.centred, noise_prior=bool(noise.priors))
        scale = _scale(y, F.split(rows)[1] == 0) if self.normalize else 1.0
        given, learns = noise, self.learning is not None
        floors: Any = _floors(y, F.split(rows)[1], noise) / scale**2
        noise = noise.scaled(scale**-2).bounded_below(floors if isinstance(noise, KindNoise) else float(np.min(floors)))
        mean = mean.in_units(0.0, scale)
        settings = self._settings(plan)
        seed = seed_of(self.random_state)
        for _ in range(MAX_REFINEMENTS):
            objective = RegressionObjective(
                kernel, gram.Gram(kernel, rows), y / scale, noise, self.solver_, mean,
                *(self.learning in which for which in self._prior_learnings()),
            )  # fmt: skip
            if not (learns and objective.size):
                learned, theta = None, objective.start_with_noise(0.1)
                break
            learned = learn_regression(objective, settings, seed)
            theta = learned.theta
            refined: Any = objective.at(theta).kernel
            refined = refined.accurate(rows)
            if learned.interrupted or len(refined.functionals.nodes) <= len(kernel.functionals.nodes):
                break
            kernel = refined  # with more nodes, from where learning ended
        if learned is not None and learned.interrupted:
            self._warn_of_interruption(learned.evaluations, 4, settings)
        self._set_fitted(objective, given, theta, 0.0, scale, learned, calibrated=False)
        if isinstance(noise, KindNoise):
            own = np.exp(theta[objective.layout.part("noise")]) if learned is not None else noise.noise
            self._set_noise(KindNoise(own * scale**2, noise.kinds, noise.width))
        if learned is not None and self.learning in self._prior_learnings()[1] and not learned.interrupted:
            with restored_after_interruption(self, NOT_INTEGRATED, 3, settings):
                self._set_averaged(average_over_parameters(self, objective, learned, seed, settings))
        self.plan_ = plan
        return self

    def _prior_learnings(self):
        from mercer.learning.integrate import INTEGRATED, USE_PRIORS

        return USE_PRIORS, INTEGRATED

    def _refuse_with_operators(self):
        if not (isinstance(self.likelihood, str) and self.likelihood == "gaussian"):
            raise ParameterError(f"operators are observed with Gaussian noise; got likelihood={self.likelihood!r}.")
        if self.calibrate:
            raise ParameterError("calibrate=True is for values of the function; leave it out with an operator.")
        if isinstance(self._given_mean().function, Function):
            raise ParameterError("a mean with learned parameters cannot be combined with operators yet; subtract it.")

    def _kernel_of_observations(self, X, F: Functionals, told):
        if self.kernel is None:  # smooth, so that every operator applies
            return heuristics.standard_kernel(F.places(X)[told], constant=not self._given_mean().centred)
        return as_covariance(self.kernel, "a Gaussian process", self.allow_invalid, X)

    def _noise_of_observations(self, n: int, rows: np.ndarray, F: Functionals) -> Noise:
        if isinstance(self.noise, Noise):
            raise ParameterError(f"noise must be None, a variance, one per row, or a prior; got {self.noise!r}.")
        noise = as_noise(self.noise, n)
        if noise.given or noise.priors:
            return noise
        if self.learning is None:
            return CommonNoise(0.0)
        kinds = np.unique(F.split(rows)[1])
        return KindNoise(np.ones(len(kinds)), tuple(int(kind) for kind in kinds), F.width)

    def _mean_of_observations(self, places, rows, F: Functionals) -> MeanFunction:
        mean = ObservedMean.under(self._given_mean(), F).fit(places)
        if mean.unknown and mean.precision is None:
            H = mean.columns(rows)
            if np.linalg.matrix_rank(H) < H.shape[1]:
                if self.mean is not None:
                    raise DataError(
                        f"these observations do not determine the coefficients of the mean {self.mean!r}: add values "
                        "of the function, or give mean=0.0."
                    )
                warnings.warn(
                    "these observations do not determine the level of the function, as derivatives alone do not; its "
                    "mean is taken as zero. Add a value of the function, or give mean=... and normalize=False.",
                    ModelWarning,
                    stacklevel=5,
                )
                return ObservedMean.under(MeanFunction.of(0.0), F)
        return mean

    def _refuse_relevance(self):
        if isinstance(self.kernel_, Observed):
            raise DataError("relevance is measured on values of the function; this model has linear observations.")

    def _told(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """Rows, targets and noise of the posterior, without those of a known shape."""
        X, target, noise = self.posterior_.data
        n = len(target) - self.n_virtual_
        return (X[:n], target[:n], noise[:n]) if self.n_virtual_ else (X, target, noise)

    def _places(self, X):
        """Inputs of rows of the posterior, without what was observed there."""
        return self.kernel_.functionals.places(X) if isinstance(self.kernel_, Observed) else X

    # -- known shape ---------------------------------------------------------------------------------------------------

    def _fit_constrained(self, X, y, operator, monotone, within):
        """Fit, and condition on the shape at virtual points: where it is most doubtful, until it holds everywhere on a
        sample of the range of X."""
        operator = Value() if operator is None else operator
        shapes, bounds = _checked_shape(monotone, within)
        if self.learning in self._prior_learnings()[1]:
            raise ParameterError(
                f"monotone and within are for one set of parameters; learning={self.learning!r} averages over them. "
                "Take 'mle' or 'map'."
            )
        self._fit_observed(X, y, operator)
        process = self.posterior_
        F = process.kernel.functionals
        places = F.places(X)
        tasks: list[Any] = [
            (Derivative(position(c, F.names, F.width)), 0.0, np.inf, sign) for c, sign in shapes.items()
        ]
        if bounds is not None:
            low, high = (np.array(side) / self.scale_ for side in bounds)
            tasks.append((Value(), float(low), float(high), 1.0))
        candidates = _spread_points(places, MAX_CANDIDATES)
        chosen: list[list[int]] = [
            list(range(0, len(candidates), max(1, len(candidates) // FIRST_POINTS))) for _ in tasks
        ]
        for _ in range(MAX_ROUNDS):
            constrained = process
            for (one, low, high, sign), at in zip(tasks, chosen, strict=True):
                own = one if sign > 0 else -1.0 * one
                constrained = constrained.constrain(candidates[at], *_sides(low, high), own)
            broken = 0
            for (one, low, high, sign), at in zip(tasks, chosen, strict=True):
                view, rows = constrained.observing(candidates, one if sign > 0 else -1.0 * one)
                mean, deviation = view.mean(rows), np.sqrt(view.variance(rows))
                doubt = np.maximum(low - mean, mean - high) / np.maximum(deviation, 1e-12 * np.abs(mean).max() + 1e-300)
                worst = [int(i) for i in np.argsort(-doubt)[:ADDED_POINTS] if doubt[i] > MAX_DOUBT and i not in at]
                broken += len(worst)
                at += worst
            if not broken:
                break
        self.n_virtual_ = len(constrained.data[1]) - len(process.data[1])
        evidence = self.log_marginal_likelihood_
        self.kernel_ = constrained.kernel
        self._set_posterior(constrained)
        self.log_marginal_likelihood_ = evidence  # of the data
        return self

    # -- prediction ----------------------------------------------------------------------------------------------------

    def _applied(self, X, operator) -> tuple[Posterior, np.ndarray, np.ndarray]:
        """The process for rows under operators, those of X, and what they are of a function that is one everywhere."""
        if self.likelihood_ is not None or self._logarithmic:
            raise ParameterError(
                f"predictions under an operator are for a Gaussian likelihood; got likelihood={self.likelihood!r}."
            )
        process, rows = self.posterior_.observing(X, operator)
        if not isinstance(process.kernel, Observed):
            return process, rows, np.ones(count_rows(rows))
        F = process.kernel.functionals
        return process, rows, F.applied(lambda x: jnp.ones(1), rows)[:, 0]

    def _predict_observed(self, X, operator, return_std, return_cov, include_noise):
        process, rows, unit = self._applied(X, operator)
        mean = process.mean(rows) * self.scale_ + self.center_ * unit
        if return_cov:
            added = self._noise_of_kinds(process, rows, include_noise)
            return mean, process.covariance(rows) * self.scale_**2 + np.diag(added)
        return (mean, self._observed(X, operator, include_noise).deviation) if return_std else mean

    def _observed(self, X, operator, include_noise) -> Normal:
        """Predictive distribution of the operators applied to the function."""
        process, rows, unit = self._applied(X, operator)
        added = self._noise_of_kinds(process, rows, include_noise)
        mean = process.mean(rows) * self.scale_ + self.center_ * unit
        return Normal(mean, np.sqrt(process.moments(rows)[1] * self.scale_**2 + added))

    def _sample_observed(self, X, operator, n_samples, random_state, include_noise):
        process, rows, unit = self._applied(X, operator)
        added = self._noise_of_kinds(process, rows, include_noise)
        seeds = np.random.SeedSequence(entropy(random_state)).generate_state(2)
        draws = (
            process.sample(rows, size=n_samples, seed=int(seeds[0])).T * self.scale_ + (self.center_ * unit)[:, None]
        )
        return draws + np.sqrt(added)[:, None] * np.random.default_rng(seeds[1]).normal(size=draws.shape)

    def _noise_of_kinds(self, process, rows, include_noise) -> np.ndarray:
        """Variances of measurements under these operators, in units of theirs; zero for the function."""
        n = count_rows(rows)
        if not include_noise:
            return np.zeros(n)
        noise = self._fitted_noise()
        if isinstance(noise, LearnedNoise) and isinstance(process.kernel, Observed):  # that of values
            noise = KindNoise.of_values(noise, process.kernel.functionals.width)
        if isinstance(noise, RowNoise | KernelNoise) and isinstance(process.kernel, Observed):
            raise ParameterError(
                "the noise of measurements under an operator is not known where every row has its own, or the kernel "
                "has it as a term; leave include_noise out."
            )
        return np.broadcast_to(np.asarray(noise.at(rows), dtype=float), n).copy()

    def _adds_noise(self, include_noise, operator=None) -> bool:
        """Whether predictions are of measurements: unless said otherwise if they are of values, with known noise."""
        if include_noise is not None:
            return bool(include_noise)
        noise = self._fitted_noise() if operator is None and self.likelihood_ is None else None
        return operator is None and not (isinstance(noise, KindNoise) and not noise.knows(np.zeros((1, noise.width))))

    def _update_observed(self, X, y, noise, operator):
        process, rows, unit = self._applied(X, operator)
        y = self._check_target(y, count_rows(rows), gaps=True)
        told = np.isfinite(y)
        own = self._fitted_noise()
        if isinstance(own, LearnedNoise) and isinstance(process.kernel, Observed):  # that of values
            own = KindNoise.of_values(own, process.kernel.functionals.width)
        extended, variances = own.extended(noise, rows[told])
        target = (y - self.center_ * unit)[told] / self.scale_
        posterior = process.condition(rows[told], target, variances / self.scale_**2 + self._jitter)
        self.kernel_ = posterior.kernel
        self._set_noise(extended)
        self.copy_of_ = np.concatenate([self._copies(), self._copies().max() + 1 + np.arange(told.sum())])
        self.gaps_ = np.concatenate([self.gaps_, len(self.y_train_) + len(self.gaps_) + np.flatnonzero(~told)])
        self.y_train_ = np.concatenate([self.y_train_, y[told]])
        self._set_posterior(posterior)
        return self


def _checked_shape(monotone: Any, within: Any) -> tuple[dict[Any, float], tuple[float, float] | None]:
    shapes = {} if monotone is None else monotone
    if not isinstance(shapes, dict) or not all(sign in (1, -1) for sign in shapes.values()):
        raise ParameterError(
            f"monotone must be a dict of inputs with +1 for rising or -1 for falling, as in {{0: +1}}; got "
            f"{monotone!r}."
        )
    if within is None:
        return shapes, None
    try:
        low, high = (
            empty if side is None else float(side) for side, empty in zip(within, (-np.inf, np.inf), strict=True)
        )
    except (TypeError, ValueError):
        low, high = np.nan, np.nan
    if not low < high:
        raise ParameterError(f"within must be (lower, upper), numbers or None, with lower < upper; got {within!r}.")
    return shapes, (low, high)


def _sides(low: float, high: float) -> tuple[float | None, float | None]:
    return (low if np.isfinite(low) else None), (high if np.isfinite(high) else None)


def _spread_points(X: np.ndarray, n: int) -> np.ndarray:
    """Points spread over the range of the rows, with its ends; for several inputs also the rows themselves."""
    low, high = X.min(axis=0), X.max(axis=0)
    if X.shape[1] == 1:
        return np.linspace(low, high, n)
    from scipy.stats import qmc

    rows = X[np.unique(np.linspace(0, len(X) - 1, n // 2).astype(int))]
    return np.vstack([rows, low + qmc.Halton(X.shape[1], scramble=False).random(n - len(rows)) * (high - low)])


def _scale(y: np.ndarray, values: np.ndarray) -> float:
    """Unit of the target: the deviation of the values of the function, or if there are too few the size of all."""
    if values.sum() > 1 and np.ptp(y[values]) > 1e-14 * np.abs(y[values]).max():
        return float(np.std(y[values]))
    size = float(np.sqrt(np.mean(y**2)))
    return size if size > 0 else 1.0


def _floors(y: np.ndarray, kinds: np.ndarray, noise: Noise) -> np.ndarray:
    """Smallest noise of each kind: the resolution of its observations, or a part of their size where they vary."""
    found = []
    for kind in np.unique(kinds):
        own = y[kinds == kind]
        found.append(max(resolution(own) ** 2 / 12, MIN_NOISE_RATIO * float(np.mean(own**2))))
    everything = max(float(np.mean(y**2)), np.finfo(float).tiny)
    return np.maximum(found, MIN_NOISE_RATIO * everything)
