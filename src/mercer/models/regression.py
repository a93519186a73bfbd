"""Gaussian process regression: predictions with intervals, and parameters learned by maximising the evidence."""

import copy
import functools
import math
import reprlib
import warnings

import numpy as np

from mercer import priors
from mercer.core.coordinates import Layout, free_names
from mercer.core.errors import (
    DataError,
    NumericalWarning,
    ParameterError,
)
from mercer.core.inputs import as_vector, count_rows, take_rows
from mercer.core.parameters import evolve, nodes_of
from mercer.core.precision import as_float
from mercer.core.random import entropy, seed_of
from mercer.core.text import number, rounded, table
from mercer.distributions import Distribution, Normal
from mercer.gp.noise import CommonNoise, Noise, RowNoise, as_noise, as_variances
from mercer.kernels.algebra import split_white
from mercer.kernels.convert import as_covariance
from mercer.learning import family, heuristics
from mercer.learning.checkpoint import check_path, resumed
from mercer.learning.climb import METHODS
from mercer.learning.optimise import Settings
from mercer.learning.plan import Plan, plan
from mercer.learning.regression import RegressionObjective, learn_regression
from mercer.learning.resolution import originals, resolution
from mercer.models.estimator import Regressor, wholly
from mercer.models.records import Found, Iteration, quoted, reported, warn_of_interruption, warn_of_model
from mercer.models.relevance import Relevance, relevance
from mercer.scores import LeaveOneOut, optimism
from mercer.solvers import base as solvers

LEARNING = ("mle", "map", None)
MIN_ROWS_TO_CALIBRATE = 20  # with fewer, leaving one out tells too little about intervals
MIN_NOISE_SHARE = 1e-10  # of the variance of y
NORMAL_95 = 1.959963984540054


class GaussianProcessRegressor(Regressor):
    """Regression by a Gaussian process (PRML 6.4.2), its parameters learned from the evidence (6.4.3).

    Parameters
    ----------
    kernel : the covariance of the function. None chooses from a family: the standard kernel (PRML 6.72) on centred and
        scaled inputs, with a Gaussian or a rougher Matern function, with or without its linear term, with one
        lengthscale or one for each input (ARD), whichever predicts rows left out best (``choice_``).
    noise : variance of the noise, in units of y squared: one number, or one per training row. None learns it (if the
        kernel has a `White` term, that is the noise, and nothing is added to it), no smaller than the resolution of y
        allows; rows that repeat others exactly, target included, then count once (``copy_of_``). A prior, such as
        ``mercer.priors.LogNormal(-4.0, 1.0)``, learns it under that prior with learning="map".
    solver : "auto" takes the cheaper exact way: "weights" (M x M) if the kernel has fewer features than there are rows,
        "dense" (n x n) otherwise.
    learning : "mle" maximises the evidence; "map" the evidence times the priors that the kernel carries; None keeps
        every parameter as it is (and, unless noise is given, adds none).
    n_restarts : how many more climbs begin at random places around the first start. ``optima_`` has what all found.
    normalize : divide y by its standard deviation inside, and integrate its unknown mean out under a flat prior
        (``mean_`` is the estimate). The kernel, ``log_marginal_likelihood_``, which is then the restricted likelihood,
        and ``theta_`` speak of that scaled target; noise always of y itself. False means a zero mean function and y as
        it is.
    random_state : seed of restarts and of the subset learning begins with. None is 0: the same data, the same model.
    calibrate : whether to multiply the learned covariance, noise included, by the factor that makes 95% leave-one-out
        intervals cover 95% (at least 1), and by (n + k) / (n - k) for k parameters learned from n rows
        (``calibration_``). Real residuals have heavier tails than a Gaussian, new rows are harder to predict than those
        learned from, and the evidence alone makes intervals too narrow. The mean does not change; the evidence falls
        below its maximum (``optima_``). None does so for the default kernel with learned noise and learning="mle" only.
    optimizer : "lbfgs" or "cg".
    max_iterations : of each climb to an optimum; the choice of the default kernel and the comparison of starts have
        limits of their own.
    progress : whether a line on stderr tells how far a fit is that takes longer than a second or two.
    checkpoint : path of a file to which the state of learning is written every few seconds. Another fit with the same
        data, kernel and settings goes on from it, after an interruption or a crash, and ends where an uninterrupted one
        would; ``n_evaluations_`` counts what it computed itself. A file of another fit is refused.
    allow_invalid : accept a kernel known not to be positive semidefinite.

    >>> import numpy as np
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> model = GaussianProcessRegressor().fit(X, np.sin(X[:, 0]))
    >>> mean, deviation = model.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.01)
    True
    """

    choice_ = None  # a kernel of one's own, or a model stored before kernels were chosen

    def __init__(
        self, kernel=None, noise=None, solver="auto", learning="mle", n_restarts=0, normalize=True, random_state=None,
        *, calibrate=None, optimizer="lbfgs", max_iterations=200, progress=True, checkpoint=None,
        allow_invalid=False,
    ):  # fmt: skip
        self.kernel = kernel
        self.noise = noise
        self.solver = solver
        self.learning = learning
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.random_state = random_state
        self.calibrate = calibrate
        self.optimizer = optimizer
        self.max_iterations = max_iterations
        self.progress = progress
        self.checkpoint = checkpoint
        self.allow_invalid = allow_invalid

    # -- fitting -----------------------------------------------------------------------------------------------------

    @wholly
    def fit(self, X, y):
        """Learn the parameters and condition on the data. Ctrl-C keeps the best parameters found so far."""
        self._check_settings()
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        y = self._check_target(y, n)
        kernel = self._kernel_for(X)
        noise = self._noise_for(kernel, n)
        self.solver_ = solvers.resolve(self.solver, kernel, X, noise)
        drawn = self._plan(self.solver_, kernel, X, noise)
        drawn.check()
        warn_of_model(self, [kernel], X, bool(self.normalize), noise_prior=isinstance(self.noise, priors.Prior))
        learns = self.learning is not None
        self.y_train_, self.copy_of_ = y, np.arange(n)
        if self._asks_for_noise() and learns:
            kept, self.copy_of_ = originals(X, y)
            if len(kept) < n:
                X, y, n, noise = take_rows(X, kept), y[kept], len(kept), noise.take(kept)
        center, scale = _center_and_scale(y) if self.normalize else (0.0, 1.0)
        target = (y - center) / scale
        if self.normalize and not target.any():  # nothing to learn from: one row, or a constant
            scale = (1.0 if n == 1 else 1e-6) * (abs(center) or 1.0)
        if not 1e-140 < scale < 1e140:
            raise DataError(f"y has a spread of {scale:.2g}, whose square is no number here. Give it in other units.")
        least = max(resolution(y) ** 2 / 12 / scale**2, MIN_NOISE_SHARE * float(np.mean(target**2))) if learns else 0.0
        noise = noise.scaled(scale**-2).bounded_below(least)
        objective = RegressionObjective(
            kernel, X, target, noise, self.solver_, bool(self.normalize), self.learning == "map"
        )
        learned, self.choice_ = None, None
        if learns and objective.size and target.any():
            seed = seed_of(self.random_state)  # the same rows in every step
            settings = Settings(self.optimizer, self.n_restarts, self.max_iterations, bool(self.progress))
            given = self.noise, self.solver_, bool(self.normalize), self.learning, seed, self.optimizer, self.n_restarts
            journal = resumed(self.checkpoint, {"data": (X, y), "kernel": kernel, "settings": given})
            if self.kernel is None:
                objective, learned, self.choice_ = family.learn_default(objective, settings, seed, journal)
            else:
                learned = learn_regression(objective, settings, seed, journal)
            theta = learned.theta
            if learned.interrupted:
                warn_of_interruption(learned.evaluations, stacklevel=4)
        else:
            theta = objective.start(0.1 if target.any() else 1e-2)
        try:
            self._keep(objective, theta, center, scale, learned, learned is not None and self._calibrates())
        except KeyboardInterrupt:  # what was learned is worth the last factorisation; a second Ctrl-C ends it
            self._keep(objective, theta, center, scale, learned, calibrated=False)
            warn_of_interruption(self.n_evaluations_, stacklevel=4)
        self.plan_ = drawn
        return self

    def _calibrates(self) -> bool:
        if self.calibrate is None:
            return self.kernel is None and self.noise is None and self.learning == "mle"
        return bool(self.calibrate)

    def _needed_factor(self, objective: RegressionObjective, posterior: solvers.Posterior) -> float:
        """Factor of the covariance that makes 95% intervals cover 95%: of rows left out, and of new ones.

        Parameters were learned from the rows left out too, which makes these easier to predict than new ones
        (`optimism`).
        """
        if objective.amplitude() is None:
            raise ParameterError(
                "calibrate=True multiplies the whole covariance, noise included, so every term of the kernel needs a "
                "free amplitude, and noise must be learned. Try 1.0 * kernel, and noise=None."
            )
        unseen = optimism(objective.n, objective.size + (self.kernel is None))  # one for the choice of the kernel
        if objective.n < MIN_ROWS_TO_CALIBRATE:
            return unseen
        mean, variance = posterior.leave_one_out()
        z = np.abs(objective.target - mean) / np.sqrt(variance)
        return max(1.0, (_quantile(z, 0.95) / NORMAL_95) ** 2) * unseen

    def _keep(self, objective, theta, center, scale, learned, calibrated: bool):
        """Everything a fitted model has, from the optimum; one factorisation for all of it."""
        kernel, noise = objective.at(theta)
        kernel = objective.kernel if learned is None else kernel  # not through logarithms and back
        self.calibration_, self._jitter = 1.0, 0.0 if learned is None else learned.jitter
        posterior = self._posterior(kernel, objective.rows, objective.target, noise + self._jitter)
        if calibrated:
            self.calibration_ = self._needed_factor(objective, posterior)
            theta = theta + math.log(self.calibration_) * np.asarray(objective.amplitude())
            kernel, noise = objective.at(theta)
            posterior = posterior.rescaled(kernel, self.calibration_)
            self._jitter *= self.calibration_
        self.center_, self.scale_ = center, scale
        self.kernel_ = kernel
        if self._asks_for_noise():
            self.noise_ = as_float(noise[0] * scale**2)
        else:  # kept as given, not through a division and back
            self.noise_ = as_float(self.noise if np.ndim(self.noise) == 0 else np.ravel(self.noise))
        # From the optimiser's noise to noise in units of y.
        self._units = np.concatenate(
            [np.zeros(objective.layout.size), np.full(objective.noise.size, 2 * math.log(scale))]
        )
        self.theta_ = theta + self._units
        self.parameter_names_ = objective.names()
        self._set_posterior(posterior)
        steps, optima = ([], []) if learned is None else (learned.history, learned.optima)
        natural = functools.partial(objective.parameters, scale=scale)
        self.history_ = [Iteration(float(s.value), natural(s.theta), s.rows) for s in steps]
        self.optima_ = [Found(float(o.value), natural(o.theta), o.start, o.converged, o.times_found) for o in optima]
        self.n_evaluations_ = 0 if learned is None else learned.evaluations

    def _posterior(self, kernel, X, target, noise) -> solvers.Posterior:
        return self._solver().posterior(kernel, X, target, noise, bool(self.normalize), bool(self.allow_invalid))

    def _solver(self) -> solvers.Solver:
        """``solver_``; models stored before it was kept have its name in their plan."""
        return vars(self).get("solver_") or solvers.checked(self.plan_.method)

    def _set_posterior(self, posterior: solvers.Posterior):
        self.posterior_ = posterior
        found = posterior.numerics()
        self.numerics_ = {**found, "jitter": self._jitter + found["jitter"]}
        self.log_marginal_likelihood_ = posterior.log_evidence()
        self.mean_ = self.center_ + self.scale_ * posterior.constant()

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self):
        if not isinstance(self.solver, str) or self.solver != "auto":
            solvers.checked(self.solver)
        for name, allowed in (("learning", LEARNING), ("optimizer", tuple(METHODS))):
            if getattr(self, name) not in allowed:
                raise ParameterError(
                    f"{name} must be one of {', '.join(map(repr, allowed))}; got {getattr(self, name)!r}."
                )
        for name, least in (("n_restarts", 0), ("max_iterations", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ParameterError(f"{name} must be an integer of at least {least}; got {value!r}.")
        check_path(self.checkpoint)

    def _kernel_for(self, X):
        if self.kernel is None:
            kernel = heuristics.standard_kernel(self._check_vectors(X), constant=not self.normalize)
            return kernel if self.learning is None else evolve(kernel, nu=np.float64(family.FIRST_SMOOTHNESS))
        return as_covariance(self.kernel, "a Gaussian process", self.allow_invalid)

    def _asks_for_noise(self) -> bool:
        """Whether the noise is to be learned, under a prior or not."""
        return self.noise is None or isinstance(self.noise, priors.Prior)

    def _noise_for(self, kernel, n) -> Noise:
        """In units of y squared. White noise in the kernel is the noise, and nothing is added to it."""
        if self.noise is None and (split_white(kernel)[1] > 0 or self.learning is None):
            return CommonNoise(0.0)
        if isinstance(self.noise, priors.Prior) and (split_white(kernel)[1] > 0 or self.learning is None):
            raise ParameterError(
                f"noise={self.noise!r} is a prior, under which the noise is learned. With learning=None give its "
                "variance, and give the prior of White() in a kernel by with_priors(variance=...)."
            )
        if isinstance(self.noise, Noise):
            raise ParameterError(f"noise is None, a variance, one for each row, or a prior; got {self.noise!r}.")
        return as_noise(self.noise, n)

    def _plan(self, solver: solvers.Solver, kernel, X, noise: Noise) -> Plan:
        free = len(free_names(kernel)) + noise.size
        climbs = 0 if self.learning is None or not free else 1 + self.n_restarts
        asked = not isinstance(self.solver, str) or self.solver != "auto"
        return plan(solver, kernel, X, climbs, asked)

    def plan(self, X) -> Plan:
        """How a fit to these rows will be done, what memory and time it will take on this machine, and why."""
        self._check_settings()
        X = copy.copy(self)._check_inputs(X, reset=True)
        kernel = self._kernel_for(X)
        noise = self._noise_for(kernel, count_rows(X))
        return self._plan(solvers.resolve(self.solver, kernel, X, noise), kernel, X, noise)

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict(self, X, return_std=False, return_cov=False, include_noise=True):
        """The predictive mean; with ``return_std`` also the standard deviation, with ``return_cov`` the covariance.

        ``include_noise``: of new measurements (PRML 6.66, 6.67), or of the function itself. Where every training row
        came with its own variance, new measurements are given their mean.
        """
        self._check_fitted()
        if return_std and return_cov:
            raise ParameterError("ask for return_std or for return_cov, not for both.")
        X = self._check_inputs(X, reset=False)
        if return_cov:
            return self._mean(X), self._covariance(X, include_noise)
        if not return_std:
            return self._mean(X)
        predicted = self._predicted(X, include_noise)
        return predicted.mean, predicted.deviation

    def predict_distribution(self, X, include_noise=True) -> Distribution:
        """The predictive distribution of each row: mean, deviation, quantiles, intervals, densities and draws."""
        self._check_fitted()
        return self._predicted(self._check_inputs(X, reset=False), include_noise)

    def predict_quantile(self, X, q, include_noise=True) -> np.ndarray:
        """The value not exceeded with probability q: (s,) for a number, (s, L) for a list of L."""
        return self.predict_distribution(X, include_noise).quantile(q)

    def _mean(self, X):
        return self.posterior_.mean(X) * self.scale_ + self.center_

    def _predicted(self, X, include_noise) -> Distribution:
        # White noise in the kernel is part of the posterior's function.
        noise = float(np.mean(self.noise_)) / self.scale_**2 if include_noise else -split_white(self.kernel_)[1]
        return self.posterior_.predict(X, noise).scaled(self.scale_, self.center_)

    def _covariance(self, X, include_noise):
        K = self.posterior_.covariance(X)
        K[np.diag_indices_from(K)] -= 0.0 if include_noise else split_white(self.kernel_)[1]
        K *= self.scale_**2
        K[np.diag_indices_from(K)] += np.mean(self.noise_) if include_noise else 0.0
        return K

    def predict_gradient(self, X):
        """Derivatives of the predictive mean and variance with respect to the inputs: (s, d), (s, d)."""
        self._check_fitted()
        dmean, dvariance = self.posterior_.gradients(self._check_inputs(X, reset=False))
        return dmean * self.scale_, dvariance * self.scale_**2

    def sample_y(self, X, n_samples=1, random_state=0, include_noise=True):
        """Draws from the predictive distribution, jointly over the rows of X: (s, n_samples).

        With ``include_noise=False`` draws of the function itself. Many thousands of rows are drawn through a low-rank
        root of their covariance; a warning tells when that is not exact.
        """
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        seeds = np.random.SeedSequence(entropy(random_state)).generate_state(2)
        posterior, (latent, white) = self.posterior_, split_white(self.kernel_)
        if not include_noise and latent is None:  # a kernel of noise alone: there is no function beside its mean
            return np.full((count_rows(X), n_samples), self.mean_)
        if not include_noise and white:
            posterior = posterior.latent()
        draws = posterior.sample(X, size=n_samples, seed=int(seeds[0])) * self.scale_ + self.center_
        if include_noise:
            rng = np.random.default_rng(seeds[1])
            draws = draws + rng.normal(size=draws.shape) * math.sqrt(float(np.mean(self.noise_)))
        return draws.T

    def log_predictive_density(self, X, y) -> np.ndarray:
        """ln p(y | x, data) of each new measurement: (s,)."""
        predicted = self.predict_distribution(X)
        return predicted.log_density(as_vector(y, len(predicted.mean)))

    def decompose(self, X) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The terms of a sum of kernels: for each, mean and standard deviation of its part of the function.

        The means add up to the prediction less ``mean_``. Deviations do not: where two terms can both take up a level
        (a trend and a season, say), each is less certain than their sum. Terms go by their names, or by expressions.
        """
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        out: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for part, mean, variance in self.posterior_.terms(X):
            label = part.name or " * ".join(node.name for node in nodes_of(part) if node.name) or repr(quoted(part))
            while label in out:
                label += "'"
            out[label] = mean * self.scale_, np.sqrt(variance) * self.scale_
        return out

    # -- the evidence ------------------------------------------------------------------------------------------------

    def log_marginal_likelihood(self, theta=None, eval_gradient=False):
        """ln p(y | theta) at ``theta`` (as ``theta_``), with its gradient if asked for; at the optimum when None."""
        self._check_fitted()
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_
        try:
            theta = self.theta_ if theta is None else np.asarray(theta, dtype=float)
        except (TypeError, ValueError):
            raise ParameterError(f"theta must be a vector of numbers; got {reprlib.repr(theta)}.") from None
        if theta.shape != self.theta_.shape:
            raise ParameterError(
                f"theta must have {self.theta_.size} entries ({', '.join(self.parameter_names_)}); got {theta.shape}."
            )
        with self._objective().criterion() as value:
            value.jitter = self._jitter
            found = value(theta - self._units, gradient=eval_gradient)
        if found is None:
            return (-np.inf, np.zeros(len(theta))) if eval_gradient else -np.inf
        return (found.value, found.gradient) if eval_gradient else found.value

    def _objective(self) -> RegressionObjective:
        X, target, noise = self.posterior_.data
        given = None if len(self.theta_) > Layout.of(self.kernel_).size else RowNoise(noise - self._jitter)
        return RegressionObjective(self.kernel_, X, target, given, self._solver(), self.posterior_.unknown)

    # -- looking at it -----------------------------------------------------------------------------------------------

    def loo(self) -> LeaveOneOut:
        """Each training row predicted from all the others at these parameters, in closed form (RW06 5.10-5.12).

        An unknown mean is estimated anew without the row; copies of a row (``copy_of_``) are left out with it.
        """
        self._check_fitted()
        mean, variance = self.posterior_.leave_one_out()
        mean, variance = (
            (mean * self.scale_ + self.center_)[self._copies()],
            (variance * self.scale_**2)[self._copies()],
        )
        return LeaveOneOut(
            mean, variance=variance, log_score=Normal(mean, np.sqrt(variance)).log_density(self.y_train_)
        )

    def _copies(self) -> np.ndarray:
        """``copy_of_``; models stored before copies were told apart have none."""
        return vars(self).get("copy_of_", np.arange(len(self.y_train_)))

    def relevance(self) -> Relevance:
        """How much each input matters: the share of the variance of y explained through it, on rows left out."""
        self._check_fitted()
        X, target, noise = self.posterior_.data

        def fitted_to(rows):
            mean = self._posterior(self.kernel_, take_rows(X, rows), target[rows], noise[rows]).mean
            return lambda Z: mean(Z)[:, None]

        return relevance(X, target[:, None], fitted_to, self.kernel_)

    def report(self, X=None, y=None):
        """A short summary to read: fit, noise, relevance, calibration, optima found, and what looks wrong with rows
        left out. Rows that were held out from the fit, ``X`` and ``y``, are judged beside them."""
        self._check_fitted()
        return reported(self, X, y)

    # -- more data ---------------------------------------------------------------------------------------------------

    def update(self, X, y, noise=None):
        """Add measurements at the parameters there are, at O(n^2) each; equal to conditioning on all of them again.

        Parameters, and the centre and scale of y, stay as they are. ``noise`` is needed for the new rows where every
        training row came with its own.
        """
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        m = count_rows(X)
        y = self._check_target(y, m)
        if (noise is None) == (np.ndim(self.noise_) > 0):
            raise ParameterError(
                "this model was fitted with one noise variance per row; give those of the new rows."
                if noise is None
                else "this model has one noise variance for all rows, which new rows share; leave noise out."
            )
        noise = as_variances(self.noise_ if noise is None else noise, m)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            target = (y - self.center_) / self.scale_
            posterior = self.posterior_.condition(X, target, noise / self.scale_**2 + self._jitter)
        if np.ndim(self.noise_) > 0:
            self.noise_ = as_float(np.concatenate([self.noise_, noise]))
        self.copy_of_ = np.concatenate([self._copies(), self._copies().max() + 1 + np.arange(m)])
        self.y_train_ = np.concatenate([self.y_train_, y])
        self._set_posterior(posterior)
        return self

    def __str__(self):
        if not self.__sklearn_is_fitted__():
            return repr(self)
        found = {**self.kernel_.parameters, "noise": np.mean(self.noise_)}
        lines = [
            f"{type(self).__name__}, fitted to {len(self.y_train_):,} rows",
            f"kernel: {quoted(self.kernel_)!r}",
            *([] if self.choice_ is None else [f"chosen: {self.choice_.member}, {self.choice_.margin()}"]),
            f"log evidence: {self.log_marginal_likelihood_:.2f}",
            "",
            table(["parameter", "value"], [[name, number(rounded(value))] for name, value in found.items()]),
        ]
        return "\n".join(lines)


def _quantile(values, share: float) -> float:
    """What the next of such values will not exceed, with at least this probability."""
    n = len(values)
    return float(np.sort(values)[min(n - 1, math.ceil(share * (n + 1)) - 1)])


def _center_and_scale(y):
    """Mean and standard deviation of the target; a scale of one if it is constant to rounding."""
    size = float(np.abs(y).max())
    if size == 0:
        return 0.0, 1.0
    center = float((y / size).mean()) * size
    spread = float((y / size - center / size).std()) * size
    if spread <= 1e-14 * size:
        return (float(y[0]) if np.ptp(y) == 0 else center), 1.0
    return center, spread
