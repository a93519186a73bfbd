"""Gaussian process regression, with parameters learned by maximising the evidence."""

import copy
import dataclasses
import math
import warnings
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import free_names
from mercer.core.errors import DataError, ModelWarning, NumericalWarning, ParameterError
from mercer.core.growing import appended
from mercer.core.inputs import copy_rows, count_rows, take_rows
from mercer.core.machine import at_most
from mercer.core.precision import as_float
from mercer.core.random import entropy, seed_of
from mercer.datasets.chunks import Chunks, as_chunks
from mercer.distributions import Distribution, Normal
from mercer.gp.mean import UNKNOWN, MeanFunction
from mercer.gp.model import Model
from mercer.gp.noise import CommonNoise, KernelNoise, LearnedNoise, Noise, as_noise, as_variances
from mercer.kernels.algebra import split_white
from mercer.kernels.convert import as_covariance
from mercer.learning import family
from mercer.learning.choice import quoted
from mercer.learning.climb import METHODS
from mercer.learning.columns import default_kernel
from mercer.learning.doubt import ThetaPosterior
from mercer.learning.integrate import INTEGRATED, USE_PRIORS, expected_evaluations
from mercer.learning.plan import Plan, planned
from mercer.learning.progress import announce
from mercer.learning.regression import RegressionObjective, learn_regression, standardised
from mercer.learning.resolution import originals
from mercer.means import Coefficients
from mercer.models import streaming
from mercer.models.doubt import (
    Averaged,
    StatedPrior,
    about_distance,
    about_doubt,
    average_over_parameters,
    parameter_table,
    stated_priors,
    updated,
)
from mercer.models.effects import Effects, effects, term_name
from mercer.models.estimator import all_or_nothing
from mercer.models.minibatch import regression_in_batches
from mercer.models.observations import LinearObservations
from mercer.models.online import RegressionStream
from mercer.models.records import (
    BEGUN_WITH,
    NOT_INTEGRATED,
    PredictiveRegressor,
    recorded,
    restored_after_interruption,
    warn_of_contradiction,
    warn_of_model,
    warn_of_saturation,
)
from mercer.models.relevance import Relevance, relevance
from mercer.models.targets import OtherTargets, log_target
from mercer.scores import CALIBRATED_LEVEL, MIN_CALIBRATION_ROWS, LeaveOneOut, unbiased_factor, widening
from mercer.solvers import base as solvers
from mercer.solvers.auto import Budget

LEARNING = ("mle", *USE_PRIORS, None)


class GaussianProcessRegressor(OtherTargets, LinearObservations, RegressionStream, PredictiveRegressor):
    """Gaussian process regression (PRML 6.4.2), with parameters learned from the evidence (6.4.3).

    Parameters
    ----------
    kernel : the covariance of the function. None chooses from a family by leave-one-out (``choice_``): the standard
        kernel (PRML 6.72) on centred and scaled inputs, with a Gaussian or a rougher Matern function, with or without
        its linear term, with one lengthscale or one per input (ARD). Frames may also have columns of booleans, dates,
        categories and text (``columns_`` lists how each was read): categories and text have kernels of their own, and
        values that only new rows have are allowed (see `mercer.learning.columns`).
    noise : noise variance, in units of y squared: one number, or one per training row. None learns it, no smaller than
        the resolution of y allows; copies of rows, target included and rounded or not, then count once (``copy_of_``).
        If the kernel has a `White` term, that is the noise, and none is added. A prior, such as
        ``mercer.priors.LogNormal(-4.0, 1.0)``, learns the noise under that prior with learning="map".
    solver : "auto" takes the cheapest exact solver that fits ``max_memory`` and ``max_seconds``: "weights" (M x M) if
        the kernel has fewer features than there are rows, "grid" if 1,000 rows or more form a grid over which the
        kernel is a product, or equal steps of one input with a stationary kernel (`mercer.solvers.Grid`), "dense"
        (n x n) otherwise. If none fits, it takes the most accurate approximation that does, and prints which
        (``plan(X)`` shows it beforehand). A name takes that solver, an object of `mercer.solvers` its settings.
    learning : "mle" maximises the evidence; "map" the evidence times the priors of kernel and noise, with weak priors
        on the scale of the data where none is given (``priors_``). "laplace" and "nuts" average predictions over the
        parameters' posterior under these priors (``theta_posterior_``), by designed points around its mode or by
        sampling: intervals are then right for few rows too. ``kernel_``, ``theta_`` and ``noise_`` are those of the
        mode. None keeps every parameter as given (and adds no noise unless it is given).
    n_restarts : number of further optimisations, from random points around the first start (``optima_``).
    normalize : divide y by its standard deviation internally, and integrate out its unknown mean under a flat prior
        (``mean_`` is the estimate). The kernel, ``theta_`` and ``log_marginal_likelihood_``, which is then the
        restricted likelihood, refer to the scaled target; noise always refers to y itself. False means a zero mean
        function and y unscaled.
    mean : the mean function before any data, in units of y. None is an unknown constant, or zero if not ``normalize``.
        A number or a function of one input is known. Unknown coefficients are integrated out under a flat prior
        (universal kriging; ``trend_`` has their estimates): "linear" is a constant and all numeric inputs, a list of
        columns a constant and these, a basis from `mercer.basis` the functions in it. `mercer.means.Basis` gives
        coefficients a Gaussian prior, `mercer.means.Function` is a JAX function whose parameters are learned with those
        of the kernel. Predictions far from the data follow it. Beside "linear", or a polynomial, the default kernel has
        no linear term. With likelihood="lognormal" it is that of ln y.
    random_state : seed of restarts and of the subset on which learning starts. None means 0, so that equal data give
        equal models.
    calibrate : whether to multiply the learned covariance, noise included, by the factor that makes 95% leave-one-out
        intervals cover 95% (at least 1), and by n / (n - k) for k parameters learned from n rows
        (``calibration_``). Without it intervals are too narrow: real residuals have heavier tails than a Gaussian, and
        new rows are harder to predict than training rows. Noise indistinguishable from zero is first raised
        as far as the evidence allows (half a nat). The evidence falls below its maximum (``optima_``). None means
        True for the default kernel with learned noise and learning="mle".
    likelihood : distribution of y given the function f. "gaussian": noise around f. "student": heavy tails, robust to
        outliers. "poisson", "negative_binomial": counts with mean exp(f), times ``fit(X, y, exposure=...)``.
        "binomial": y successes of ``fit(X, y, trials=...)``, with log odds f. "ordinal": grades 1, 2, ... in order.
        "gamma", "lognormal": positive values, with the logarithm f (of the mean; of the median). "censored": Gaussian
        noise, where y <= ``lower`` or y >= ``upper`` of ``fit(X, y, lower=..., upper=...)`` is known to be no more
        than that. Or one of `mercer.likelihoods` with its parameters, ``mc.likelihoods.Student(dof=4).fix("dof")``.
        Predictions are of y. ``likelihood_`` has what was learned. With kernel=None the family member is chosen by the
        Gaussian regression that the posterior amounts to; for "student" the kernel is learned by a Gaussian model of
        the rows that are no outliers, and then scale and degrees of freedom by the evidence. A Student's t with two
        degrees of freedom or fewer has no variance: deviations are infinite, quantiles are not.
    inference : for likelihoods that are neither "gaussian" nor "lognormal". "auto" takes "ep", expectation propagation,
        up to 1,000 rows and "laplace", a Gaussian at the mode, for more; "variational", a lower bound on the evidence,
        for "student" (``inference_``).
    optimizer : "lbfgs" or "cg".
    n_samples : draws of the parameters for "nuts", over four chains, each after 200 further ones.
    max_memory : memory that a fit may take: bytes, or words such as "4 GiB". None is a third of what is free for
        "auto", and all of it for a solver that was asked for. What needs more is refused before it starts.
    max_seconds : time that "auto" may plan for a fit on this machine, and after which the search for parameters ends
        with the best found so far, with a warning; None is any. "laplace" and "nuts" then predict from the points or
        draws they have, or if these are too few from the mode.
    max_iterations : of each optimisation; the choice of the default kernel and the comparison of starts have their own
        limits.
    progress : whether to show progress on stderr when a fit takes longer than a second or two.
    checkpoint : path of a file to which the state of learning is written every few seconds. A fit with the same data,
        kernel and settings resumes from it after an interruption or a crash, and ends where an uninterrupted one would;
        ``n_evaluations_`` then counts only its own evaluations. The checkpoint of another fit is refused.
    budget : number of basis vectors that `partial_fit` keeps; None keeps every informative row.
    allow_invalid : accept a kernel known not to be positive semidefinite.

    >>> import numpy as np
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> model = GaussianProcessRegressor().fit(X, np.sin(X[:, 0]))
    >>> mean, deviation = model.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.01)
    True
    """

    n_rows_: int | None = None  # all rows, where only some are kept (`fit` in chunks)
    gaps_: np.ndarray = np.empty(0, dtype=int)  # numbers of the rows without a target
    choice_ = None  # with a given kernel, or a model stored before kernels were chosen
    trend_ = None  # without unknown coefficients beside a constant, or in a model stored before there were others
    theta_posterior_: ThetaPosterior | None = None  # unless parameters were integrated over
    priors_: dict[str, StatedPrior] | None = None  # where they counted

    def __init__(
        self, kernel=None, noise=None, solver="auto", learning="mle", n_restarts=0, normalize=True, random_state=None,
        *, mean=None, likelihood="gaussian", inference="auto", calibrate=None, optimizer="lbfgs", max_iterations=200,
        progress=True, checkpoint=None, allow_invalid=False, n_samples=1000, budget=300, max_memory=None,
        max_seconds=600,
    ):  # fmt: skip
        self.kernel = kernel
        self.noise = noise
        self.solver = solver
        self.learning = learning
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.random_state = random_state
        self.mean = mean
        self.likelihood = likelihood
        self.inference = inference
        self.calibrate = calibrate
        self.optimizer = optimizer
        self.max_iterations = max_iterations
        self.progress = progress
        self.checkpoint = checkpoint
        self.allow_invalid = allow_invalid
        self.n_samples = n_samples
        self.budget = budget
        self.max_memory = max_memory
        self.max_seconds = max_seconds

    # -- fitting -----------------------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(
        self, X, y=None, *, exposure=None, trials=None, lower=None, upper=None, operator=None, monotone=None,
        within=None,
    ):  # fmt: skip
        """Learn the parameters and condition on the data. Ctrl-C keeps the best parameters found so far.

        ``operator`` from `mercer.operators`, one or a list of one per row, says what y is of the function: a
        derivative, an integral, the left side of a differential equation. Unless noise is given, each kind of
        observation has its own, learned. The default kernel is then the standard one, which is smooth.

        ``monotone={0: +1, "price": -1}`` makes the function rise or fall with these inputs, and ``within=(0.0, None)``
        keeps it within limits, over the range of X: after learning, by virtual observations (`GP.constrain`).

        ``exposure``, ``trials``, ``lower`` and ``upper``, each a number or one per row, belong to ``likelihood``. A row
        whose y is NaN was not measured: it is left out (``gaps_``), and can be predicted as any other. Infinite values
        are refused. X may also be rows that need not fit in memory, which the low-rank solver fits: the path of a
        Parquet or CSV file, with y the name of a column, a memory map, or `mercer.datasets.Chunks`.
        """
        self._check_settings()
        sides = {"exposure": exposure, "trials": trials, "lower": lower, "upper": upper}
        self._check_likelihood(sides)
        chunks, passing = self._in_chunks(X, y), None
        self.n_rows_ = None
        if chunks is not None:
            self._refuse_in_chunks(sides | {"operator": operator, "monotone": monotone, "within": within})
            X, y, passing = streaming.sampled(self, chunks)
        if monotone is not None or within is not None:
            return self._fit_constrained(X, y, operator, monotone, within)
        if operator is not None:
            return self._fit_observed(X, y, operator)
        self.n_virtual_ = 0
        X = self._check_inputs(X, reset=True)
        X, y, sides, self.gaps_ = self._without_gaps(X, y, sides)
        if not len(y):
            raise DataError(f"y has no finite value: all {len(self.gaps_)} are missing (NaN).")
        if self._given_likelihood() is not None:
            self._logarithmic = False
            return self._fit_target(X, y, sides)
        self.likelihood_, self.target_, self._logarithmic = None, None, self.likelihood == "lognormal"
        self.inference_ = "exact"
        n = count_rows(X)
        y = measured = self._check_target(y, n)
        if self._logarithmic:
            y = log_target(y)
        kernel = self._kernel_for(X)
        noise = self._noise_for(kernel, n + len(self.gaps_))  # one variance per row has some for the gaps, too
        noise = noise.take(np.delete(np.arange(n + len(self.gaps_)), self.gaps_)) if len(self.gaps_) else noise
        kernel = self._taken_by_solver(kernel, X, noise)
        rows = gram.Gram(kernel, copy_rows(X))
        self.solver_, plan = self._planned(kernel, rows, noise, begun=True, passing=passing)
        self._announce(plan)
        mean = self._mean_for(X)
        warn_of_model(self, [kernel], X, mean.centred, noise_prior=bool(noise.priors))
        if not noise.positive and not split_white(kernel)[1]:
            warn_of_contradiction(X, y)
        learns = self.learning is not None
        self.y_train_, self.copy_of_ = y, np.arange(n)
        if learns and not noise.given:
            kept, self.copy_of_ = originals(X, y)
            if len(kept) < n:
                X, y, n, noise = take_rows(X, kept), y[kept], len(kept), noise.take(kept)
                rows = rows[kept].alone()
        given_noise = noise
        unit = 1.0 if self._logarithmic else None  # a factor of e
        target, center, scale, noise, mean = standardised(y, noise, bool(self.normalize), learns, mean, X, unit)
        objective = RegressionObjective(
            kernel, rows, target, noise, self.solver_, mean, self.learning in USE_PRIORS, self.learning in INTEGRATED
        )
        objective.keeps = True
        learned, self.choice_ = None, None
        seed, settings = seed_of(self.random_state), self._settings(plan)  # the same subset in every stage
        if learns and objective.size and target.any():
            warn_of_saturation(objective, stacklevel=4)
            given = (
                self.noise, self.mean, bool(self.normalize), self.learning, seed, self.optimizer, self.n_restarts
            )  # fmt: skip
            journal = self._journal((X, y), kernel, *given)
            if self.kernel is None and family.standard_path(kernel) is not None:
                objective, learned, self.choice_ = family.learn_default(objective, settings, seed, journal)
            else:
                learned = learn_regression(objective, settings, seed, journal)
            if self.solver_.in_batches:
                learned = regression_in_batches(objective, learned, settings, seed, journal)
            theta = learned.theta
            if learned.interrupted:
                self._warn_of_interruption(learned.evaluations, 3, settings)
        else:
            theta = objective.start_with_noise(0.1 if target.any() else 1e-2)
        try:
            calibrated = learned is not None and self._calibrates(given_noise)
            self._set_fitted(objective, given_noise, theta, center, scale, learned, calibrated)
        except KeyboardInterrupt:  # finish the last factorisation, without calibration; a second Ctrl-C ends it
            learned = learned and dataclasses.replace(learned, outcome=None)  # its matrix may be overwritten
            self._set_fitted(objective, given_noise, theta, center, scale, learned, calibrated=False)
            self._warn_of_interruption(self.n_evaluations_, 3, settings)
            learned = None
        if learned is not None and self.learning in INTEGRATED and not learned.interrupted:
            with restored_after_interruption(self, NOT_INTEGRATED, 3, settings):
                self._set_averaged(average_over_parameters(self, objective, learned, seed, settings))
        self.plan_, self.y_train_ = plan, measured
        if chunks is not None and passing is not None:
            self._absorb(chunks)
        return self

    def _absorb(self, chunks: Chunks, without: np.ndarray | None = None) -> None:
        """Condition on all rows of the chunks, of which some were learned from, but those numbered in ``without``."""
        found = streaming.absorbed(self, chunks, without)
        self.kernel_, self.theta_, self.calibration_ = found.posterior.kernel, found.theta, found.calibration
        self._set_noise(found.noise)
        self.n_rows_ = found.posterior.n_rows
        y = found.posterior.y * self.scale_ + self.center_
        self.y_train_, self.copy_of_ = np.exp(y) if self._logarithmic else y, np.arange(len(y))
        self.plan_ = dataclasses.replace(self.plan_, rows=self.n_rows_, why=found.why)
        self._set_posterior(found.posterior)

    def _set_averaged(self, found: Averaged | None) -> None:
        """Set the posterior averaged over the parameters' in place of that at the mode, if there is one."""
        if found is not None:
            self.theta_posterior_ = found.theta
            self.n_evaluations_ += found.theta.evaluations
            self._set_posterior(found.posterior)

    def _calibrates(self, noise: Noise) -> bool:
        if self.calibrate is None:
            default = self.kernel is None and bool(noise.size) and not noise.priors and self.learning == "mle"
            trend = self._given_mean().trend
            return default and (trend is None or trend.variance is None)
        return bool(self.calibrate)

    def _calibration_factor(self, objective: RegressionObjective, posterior: solvers.Posterior) -> float:
        """Covariance factor that makes 95% leave-one-out intervals cover 95%, times `unbiased_factor`: parameters were
        learned from the left-out rows too."""
        if objective.amplitude() is None:
            raise ParameterError(
                "calibrate=True multiplies the whole covariance, noise included, so every term of the kernel needs a "
                "free amplitude, noise must be learned, and coefficients of the mean may have no Gaussian prior. Try "
                "1.0 * kernel, and noise=None."
            )
        chosen = self.kernel is None  # which counts as one parameter
        new_rows = unbiased_factor(objective.n, objective.size + chosen)
        if objective.n < MIN_CALIBRATION_ROWS:
            return new_rows
        mean, variance = posterior.leave_one_out()
        z = Normal(mean, np.sqrt(variance)).z(objective.target)
        return widening(z, CALIBRATED_LEVEL) * new_rows

    def _set_fitted(self, objective, given: Noise, theta, center, scale, learned, calibrated: bool):
        """Set all fitted attributes from the optimum, with one factorisation. ``given``: noise in units of y^2."""
        self.calibration_, self._jitter = 1.0, 0.0 if learned is None else learned.jitter
        theta = objective.with_plausible_noise(theta, self._jitter) if calibrated else theta
        # If nothing was learned, exactly as given, without rounding by logarithms.
        kernel = objective.kernel if learned is None else objective.at(theta).kernel
        mean = objective.mean if learned is None else objective.at(theta).mean
        noise = objective.variances(theta)
        rows, kept = gram.on(kernel, objective.rows), None if learned is None else learned.outcome
        rows = rows if kept is None else rows.known(kept)
        posterior = self._posterior(kernel, rows, objective.target, noise + self._jitter, mean)
        if calibrated:
            self.calibration_ = self._calibration_factor(objective, posterior)
            theta = theta + math.log(self.calibration_) * np.asarray(objective.amplitude())
            kernel, noise = objective.at(theta).kernel, objective.variances(theta)
            posterior = posterior.rescaled(kernel, self.calibration_)
            self._jitter *= self.calibration_
        self.center_, self.scale_ = center, scale
        self.kernel_ = kernel
        # Noise that is given is exactly so, without rounding by a division.
        self._set_noise(LearnedNoise(noise[0] * scale**2) if given.size else given)
        self._units = objective.units(scale)
        self.theta_ = theta + self._units
        self.parameter_names_ = objective.names()
        self._set_posterior(posterior)
        self.history_, self.optima_ = recorded(learned, lambda theta: objective.parameters(theta + self._units))
        self.n_evaluations_ = 0 if learned is None else learned.evaluations
        self.theta_posterior_ = None
        self.priors_ = stated_priors(objective, scale) if objective.use_priors and learned is not None else None

    def _set_noise(self, noise: Noise):
        self._noise, self.noise_ = noise, as_float(noise.noise)

    def _fitted_noise(self) -> Noise:
        """Noise in units of y squared; models stored before it was kept have its variances."""
        if "_noise" in vars(self):
            return self._noise
        return (
            LearnedNoise(self.noise_) if "noise" in self.parameter_names_ else as_noise(self.noise_, len(self.y_train_))
        )

    def _model(self) -> Model:
        """The fitted model, with mean and noise in units of y."""
        prior_mean = self.posterior_.prior_mean
        mean = MeanFunction(constant=self.mean_) if prior_mean.is_constant else prior_mean
        if self.likelihood_ is not None:
            return Model((self.kernel_,), mean, likelihood=self.likelihood_)
        return Model((self.kernel_,), mean, self._fitted_noise())

    def _posterior(self, kernel, X, target, noise, mean: MeanFunction | None = None) -> solvers.Posterior:
        """At these parameters; the mean that is fitted, if none is given."""
        mean = self.posterior_.prior_mean if mean is None else mean
        return self._solver().posterior(kernel, X, target, noise, mean, bool(self.allow_invalid))

    def _solver(self) -> solvers.Solver:
        """``solver_``; models stored before it existed have its name in their plan."""
        return vars(self).get("solver_") or solvers.checked(self.plan_.method)

    def _set_posterior(self, posterior: solvers.Posterior):
        self.posterior_ = posterior
        found = posterior.numerics()
        self.numerics_ = {**found, "jitter": self._jitter + found["jitter"]}
        averaged = self.theta_posterior_ is not None  # then the evidence is that of the mode
        at_mode = self.log_marginal_likelihood(self.theta_) if averaged else posterior.log_evidence()
        self.log_marginal_likelihood_ = at_mode
        X, mean = posterior.data[0], posterior.prior_mean
        some = take_rows(X, np.arange(1)) if mean.is_constant else X
        self.mean_ = self.center_ + self.scale_ * float(np.mean(posterior.trend(some)[0]))
        self.trend_ = None if mean.is_constant else self._coefficients(mean, self._places(X), *posterior.coefficients())

    def _coefficients(self, mean: MeanFunction, X, estimate: np.ndarray, covariance: np.ndarray) -> Coefficients | None:
        """Coefficients of the mean in units of y."""
        found = mean.coefficients(X, estimate * self.scale_, covariance * self.scale_**2)
        if found is not None and mean.centred:  # a polynomial, with its constant first
            found.estimate[0] += self.center_
        return found

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self):
        choices = {"learning": LEARNING, "optimizer": tuple(METHODS)}
        self._check_learning(choices, {"n_restarts": 0, "max_iterations": 1, "n_samples": 20})
        if self.calibrate and self.learning in INTEGRATED:
            raise ParameterError(
                f"calibrate=True is for one set of parameters; learning={self.learning!r} averages over them, which "
                "widens intervals already. Leave calibrate out, or take learning='mle' or 'map'."
            )

    def _kernel_for(self, X):
        if self.kernel is None:
            X = X if self._mixed() else self._check_vectors(X)
            mean = self._given_mean()
            kernel = default_kernel(X, self.columns_, constant=not mean.centred)
            if mean.linear and family.standard_path(kernel) is not None:  # it has the linear term
                kernel = family.with_standard(kernel, theta3=np.float64(0.0))
            if self.learning is None or family.standard_path(kernel) is None:
                return kernel
            return family.with_standard(kernel, nu=np.float64(family.FIRST_SMOOTHNESS))
        return as_covariance(self.kernel, "a Gaussian process", self.allow_invalid, X)

    def _taken_by_solver(self, kernel, X, noise: Noise):
        """The default kernel without its linear term where the solver that was asked for takes no other."""
        if self.kernel is not None or self.solver == "auto" or family.standard_path(kernel) is None:
            return kernel
        solver, stationary = solvers.checked(self.solver), family.with_standard(kernel, theta3=np.float64(0.0))
        refused = solver.refusal(kernel, X, noise) is not None
        return stationary if refused and solver.refusal(stationary, X, noise) is None else kernel

    def _given_mean(self) -> MeanFunction:
        return MeanFunction.of((UNKNOWN if self.normalize else 0.0) if self.mean is None else self.mean)

    def _mean_for(self, X) -> MeanFunction:
        """Mean of y, its columns conditioned on these rows; warns where some are left out."""
        mean = self._given_mean().fit(X)
        dropped = [] if mean.trend is None else mean.trend.dropped(X)
        if dropped:
            warnings.warn(
                f"on these rows {', '.join(dropped)} of the mean {mean!r} follow{'s' * (len(dropped) == 1)} from the "
                "others (a constant input, or one that is a combination of others), so the coefficients are not "
                "determined; left out.",
                ModelWarning,
                stacklevel=5,
            )
        return mean

    def _noise_for(self, kernel, n) -> Noise:
        """Noise in units of y squared; none if the kernel has a `White` term."""
        if isinstance(self.noise, Noise):
            raise ParameterError(f"noise must be None, a variance, one per row, or a prior; got {self.noise!r}.")
        noise, white = as_noise(self.noise, n), split_white(kernel)[1] > 0
        if noise.given or not (white or self.learning is None):
            return noise
        if noise.priors:
            raise ParameterError(
                f"noise={self.noise!r} is a prior, which needs a noise to learn. With learning=None give a variance; "
                "for White() in the kernel use its with_priors(variance=...)."
            )
        return KernelNoise() if white else CommonNoise(0.0)

    def _in_chunks(self, X, y) -> Chunks | None:
        """X and y as chunks, if that is what they are. A memory map is also an array, which any settings take."""
        if isinstance(X, np.memmap) and streaming.refusal(self) is not None:
            return None
        return as_chunks(X, y)

    @staticmethod
    def _refuse_in_chunks(given: dict):
        for name, value in given.items():
            if value is not None:
                raise ParameterError(f"{name} goes with rows in memory; X passes in chunks. Load it first.")

    def _planned(
        self, kernel, X, noise: Noise, task: str = solvers.GAUSSIAN, solver: solvers.Solver | None = None,
        begun: bool = False, work: float = 1.0, copies: float = 1.0, passing: int | None = None,
    ) -> tuple[solvers.Solver, Plan]:  # fmt: skip
        """The solver, unless it is given, and the plan of a fit by it. ``begun``: take the one that the checkpoint was
        begun with. ``work``, ``copies``: as of `Budget`. ``passing``: number of all rows, where they come in chunks and
        these are learned from."""
        before = self._begun_with([kernel], X, noise) if begun else None
        solver = before if solver is None else solver
        free = len(free_names(kernel)) + noise.size + len(free_names(self._given_mean()))
        climbs = 0 if self.learning is None or not free else 1 + self.n_restarts
        further = expected_evaluations(self.learning, free, self.n_samples)
        solver = self.solver if solver is None else solver
        with at_most(self.max_memory):
            budget = Budget.of(self.max_memory, self.max_seconds, climbs, further, work, copies)
            if passing is not None:
                return streaming.planned(self, kernel, X, noise, budget, passing, begun)
            found, plan = planned(solver, kernel, X, noise, budget, self.max_memory is not None, task)
        return found, plan if before is None else dataclasses.replace(plan, why=BEGUN_WITH)

    def _announce(self, plan: Plan):
        """Refuse a fit that does not fit, and print the plan of one that is not exact, or takes longer than it may."""
        plan.check()
        if self.progress and plan.noteworthy:
            announce(plan.line)

    def plan(self, X, y=None) -> Plan:
        """The solver for a fit to these rows, the memory and time it is expected to take here, why, and what other
        solvers would take. X may be what `fit` takes, with ``y`` the name of the target in a file; rows in chunks are
        counted in one pass."""
        self._check_settings()
        new, chunks, passing = copy.copy(self), self._in_chunks(X, y), None
        if chunks is not None:
            X, _, passing = streaming.sampled(self, chunks)
        X = new._check_inputs(X, reset=True)
        if new._given_likelihood() is not None:
            kernel = new._kernel_of_target(X, new.learning is not None)
            return new._planned_target(kernel, gram.Gram(kernel, X))[1]
        kernel = new._kernel_for(X)
        noise = new._noise_for(kernel, count_rows(X))
        kernel = new._taken_by_solver(kernel, X, noise)
        return new._planned(kernel, gram.Gram(kernel, X), noise, passing=passing)[1]

    # -- prediction --------------------------------------------------------------------------------------------------

    def _mean(self, X):
        return self.posterior_.mean(X) * self.scale_ + self.center_

    def _predicted(self, X, include_noise) -> Distribution:
        return self.posterior_.predict(X, self._noise_to_add(X, include_noise)).scaled(self.scale_, self.center_)

    def _noise_to_add(self, X, include_noise):
        """As `Posterior.added_noise`, in units of the scaled target."""
        if self.likelihood_ is not None and include_noise:
            return self.likelihood_.noise_variance / self.scale_**2
        return self.posterior_.added_noise(X, self._fitted_noise().scaled(self.scale_**-2), include_noise)

    def _covariance(self, X, include_noise):
        return self.posterior_.covariance_with(X, self._noise_to_add(X, include_noise)) * self.scale_**2

    def predict_gradient(self, X):
        """Derivatives of the predictive mean and variance with respect to the inputs: (s, d), (s, d)."""
        self._check_fitted()
        self._require_location("predict_gradient")
        dmean, dvariance = self.posterior_.gradients(self._check_inputs(X, reset=False))
        return dmean * self.scale_, dvariance * self.scale_**2

    def predict_average(self, X, weights=None):
        """Mean and standard deviation of the average of the function over these rows: block kriging (Cressie 1993).

        The rows are points of an area, in a grid say. ``weights``, (s,), are the areas they stand for, equal unless
        given; with (m, s), of m areas at once, both results are (m,). Takes the joint covariance of the rows, (s, s).
        """
        self._check_fitted()
        self._require_location("predict_average")
        X = self._check_inputs(X, reset=False)
        W = np.ones(count_rows(X)) if weights is None else np.asarray(weights, dtype=float)
        if W.ndim not in (1, 2) or W.shape[-1] != count_rows(X) or not np.isfinite(W).all() or (W < 0).any():
            raise ParameterError(
                f"weights must be finite and not negative, one for each of {count_rows(X)} rows; got shape {W.shape}."
            )
        total = W.sum(axis=-1, keepdims=True)
        if not (total > 0).all():
            raise ParameterError("weights of an area must not all be zero.")
        W = W / total
        variance = np.einsum("...i,...i->...", W @ self._covariance(X, False), W)
        return W @ self._mean(X), np.sqrt(np.maximum(variance, 0.0))

    def _sample(self, X, n_samples, random_state, include_noise):
        seeds = np.random.SeedSequence(entropy(random_state)).generate_state(2)
        posterior, (latent, white) = self.posterior_, split_white(self.kernel_)
        if not include_noise and latent is None:  # a kernel of noise only: the function is its mean
            return np.repeat(self._mean(X)[:, None], n_samples, axis=1)
        if not include_noise and white:
            posterior = posterior.latent()
        if include_noise:
            added, rng = self._noise_to_add(X, include_noise), np.random.default_rng(seeds[1])
            draws = posterior.sample_with(X, n_samples, int(seeds[0]), added, rng)
        else:
            draws = posterior.sample(X, size=n_samples, seed=int(seeds[0]))
        return draws.T * self.scale_ + self.center_

    def decompose(self, X) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Mean and standard deviation of each term of a sum of kernels, by name or expression.

        The means add up to the prediction minus ``mean_``; for other likelihoods, to the latent function minus
        ``mean_``. Where the mean function is not a constant, it is a term of its own, "mean", and they add up to the
        prediction. Standard deviations do not add up: if two terms (a trend and a season, say) can both absorb a
        constant, each is less certain than their sum.
        """
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        out: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        terms = self.posterior_.terms(X)
        if self.likelihood_ is not None and len(terms) > 1 and self._constant:
            terms = terms[:-1]  # the last is the unknown constant
        for part, mean, variance in terms:
            label = term_name(part) or repr(quoted(part))
            while label in out:
                label += "'"
            out[label] = mean * self.scale_, np.sqrt(variance) * self.scale_
        if not self.posterior_.prior_mean.is_constant:
            mean, variance = self.posterior_.trend(X)
            out["mean"] = mean * self.scale_ + self.center_, np.sqrt(variance) * self.scale_
        return out

    def effects(self) -> Effects:
        """Variance components and effects of groups, as of a mixed model; prints as tables.

        Of each term of the kernel the standard deviation and the share of variance, and of each term on categories
        (random effects, nested and crossed ones, and random slopes, as in `mercer.models.effects`) the posterior mean
        and standard deviation of every group. Learned with an unknown mean, the components are REML estimates. A group
        without rows has mean zero and the standard deviation of its term. All are in units of y, or for other
        likelihoods of the latent function: of ln y for "lognormal", of the logarithm of the mean for counts.
        """
        self._check_fitted()
        return effects(self.kernel_, self.posterior_, float(np.mean(self.noise_)), self.scale_)

    # -- diagnostics -------------------------------------------------------------------------------------------------

    def _objective(self):
        if self.likelihood_ is not None:
            return self._target_objective()
        if self.n_rows_ is not None:
            raise ParameterError(
                f"this model keeps {len(self.y_train_):,} of the {self.n_rows_:,} rows that it was fitted to, so the "
                "evidence of other parameters is not known; log_marginal_likelihood_ is that of its own."
            )
        X, target, _ = self._told()
        rows, noise = gram.kept(self, self.kernel_, X), self._fitted_noise().scaled(self.scale_**-2)
        return RegressionObjective(self.kernel_, rows, target, noise, self._solver(), self.posterior_.prior_mean)

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions at the learned parameters, in closed form (RW06 5.10-5.12).

        Unknown coefficients of the mean are estimated without the row; copies of a row (``copy_of_``) are left out with
        it. Where parameters are integrated over, each of their points is weighted anew without the row, by importance
        sampling. Where the likelihood is not Gaussian, from the approximate posterior without the row's site.
        """
        self._check_fitted()
        if not self._is_gaussian():
            return self._loo_of_target()
        predicted = self._left_out()
        score = predicted.log_density(self.posterior_.data[1] * self.scale_ + self.center_)
        return LeaveOneOut(predicted.mean, variance=predicted.deviation**2, log_score=score).take(self._copies())

    def _copies(self) -> np.ndarray:
        """``copy_of_``; models stored before it existed have no copies."""
        return vars(self).get("copy_of_", np.arange(len(self.y_train_)))

    def relevance(self) -> Relevance:
        """Relevance of each input: the share of the variance of held-out y explained through it; for other likelihoods,
        of the latent function."""
        self._check_fitted()
        self._refuse_stream()
        if self.likelihood_ is not None:
            return self._relevance_of_target()
        self._refuse_relevance()
        X, target, noise = self.posterior_.data
        prior_mean = self.posterior_.prior_mean.unfitted()

        def fitted_to(rows):
            found = self._posterior(self.kernel_, take_rows(X, rows), target[rows], noise[rows], prior_mean)
            return lambda Z: found.mean(Z)[:, None]

        return relevance(X, target[:, None], fitted_to, self.kernel_)

    # -- new data ----------------------------------------------------------------------------------------------------

    def update(self, X, y, noise=None, *, exposure=None, trials=None, lower=None, upper=None, operator=None):
        """Condition on further measurements, at O(n^2) each; with the state-space solver at O(1) for a later time; with
        an ``operator`` as in `fit`, on linear ones.

        Parameters, and the centre and scale of y, do not change. ``noise`` of the new rows is needed if every training
        row has its own. Where the likelihood is not Gaussian, the posterior of all rows is found anew. Rows whose y is
        NaN change nothing.
        """
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        if operator is not None:
            return self._update_observed(X, y, noise, operator)
        rows = {"exposure": exposure, "trials": trials, "lower": lower, "upper": upper, "noise": noise}
        before = len(self.y_train_) + len(self.gaps_)
        X, y, rows, gaps = self._without_gaps(X, y, rows)
        noise = rows.pop("noise")
        if not len(y):
            self.gaps_ = np.concatenate([self.gaps_, before + gaps])
            return self
        if self.likelihood_ is not None:
            self._refuse_rows({"noise": noise})
            self._update_target(X, y, rows)
            self.gaps_ = np.concatenate([self.gaps_, before + gaps])
            return self
        self._refuse_rows(rows)
        m = count_rows(X)
        measured = self._check_target(y, m)
        y = log_target(measured) if self._logarithmic else measured
        given = None if noise is None else as_variances(noise, m) / self.scale_**2
        extended, noise = self._fitted_noise().extended(noise, X)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            target = (y - self.center_) / self.scale_
            posterior = self.posterior_.extended(X, target, given, noise / self.scale_**2, self._jitter)
        self._set_noise(extended)
        self.copy_of_ = appended(self._copies(), count_rows(posterior.data[0]) - m + np.arange(m))
        self.y_train_ = appended(self.y_train_, measured)
        self.n_rows_ = None if self.n_rows_ is None else self.n_rows_ + m
        if self.theta_posterior_ is not None:
            mixture: Any = posterior
            self.theta_posterior_ = updated(self.theta_posterior_, mixture.weights, stacklevel=3)
        self._set_posterior(posterior)
        self.gaps_ = np.concatenate([self.gaps_, before + gaps])
        return self

    def _summary(self):
        lines = [
            f"{type(self).__name__}, fitted to {self.n_rows_ or self._row_count():,} rows"
            + (f"; {len(self.gaps_):,} without a target left out (gaps_)" if len(self.gaps_) else ""),
            *([] if self._is_gaussian() else [f"likelihood: {self.likelihood}, inference: {self.inference_}"]),
            *self._about_columns(),
            f"kernel: {quoted(self.kernel_)!r}",
            *([] if self.mean is None else [f"mean: {self._given_mean()!r}"]),
            *([] if self.choice_ is None else [f"chosen: {self.choice_.member}, {self.choice_.margin()} (choice_)"]),
            f"log evidence: {self.log_marginal_likelihood_:.2f}",
            *filter(None, [about_distance(self)]),
            *about_doubt(self),
            "",
            parameter_table(self, self._model()),
            *([] if self.trend_ is None else ["", str(self.trend_)]),
        ]
        return "\n".join(lines)
