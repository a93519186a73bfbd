"""Regression whose likelihood is not Gaussian: the part of `GaussianProcessRegressor` that differs."""

import warnings
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, NotPositiveDefiniteError, NumericalWarning, ParameterError
from mercer.core.inputs import as_vector, copy_rows, count_rows, stack_rows, take_rows
from mercer.core.random import entropy, seed_of
from mercer.distributions import Distribution, Mixture
from mercer.gp.likelihoods import Ordinal, Target, TargetLikelihood, as_likelihood
from mercer.gp.likelihoods.predictive import LogNormal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, Noise
from mercer.inference import base as of_labels
from mercer.inference import targets
from mercer.inference.base import latent_covariances
from mercer.kernels.algebra import split_white
from mercer.learning import family
from mercer.learning.columns import default_kernel
from mercer.learning.integrate import INTEGRATED
from mercer.learning.latent_regression import LatentObjective, learn_target, with_constant
from mercer.models.doubt import StatedPrior, stated_priors
from mercer.models.minibatch import infer_target, target_in_batches
from mercer.models.records import LearnedByEvidence, recorded, warn_of_interruption, warn_of_model
from mercer.models.relevance import Relevance, relevance
from mercer.scores import LeaveOneOut
from mercer.solvers import base as solvers

EXACT = ("gaussian", "lognormal")  # likelihoods by exact inference, of y or of its logarithm


class OtherTargets(LearnedByEvidence):
    """Fitting and predicting with a likelihood other than a Gaussian one of y itself.

    The latent function is ``center_`` + ``scale_`` g, where g has the kernel ``kernel_`` and a vague constant. The
    posterior of g is that of a Gaussian regression with one noise variance for each row (`targets.as_regression`), so
    ``posterior_`` is what exact regression has.
    """

    likelihood: Any
    inference: Any
    likelihood_: Any = None  # a `TargetLikelihood` where inference is approximate
    target_: Any = None  # its `Target`
    theta_posterior_: Any = None  # unless parameters were integrated over
    priors_: dict[str, StatedPrior] | None = None  # where they counted
    _logarithmic: bool = False  # whether the target of exact inference is ln y

    def _without_gaps(self, X, y, given: dict[str, Any]) -> tuple[Any, np.ndarray, dict[str, Any], np.ndarray]:
        """Rows with a target: their inputs, targets and entries of ``given``, and the numbers of the others. A NaN
        target is a row that was not measured, which has no information on the function."""
        n = count_rows(X)
        y = self._check_target(y, n, gaps=True)
        gap = np.isnan(y)
        if not gap.any():
            return X, y, given, np.flatnonzero(gap)
        told = np.flatnonzero(~gap)
        sides = {
            name: np.asarray(value)[told] if np.shape(value)[:1] == (n,) else value for name, value in given.items()
        }
        return take_rows(X, told), y[told], sides, np.flatnonzero(gap)

    def _is_gaussian(self) -> bool:
        return self.likelihood_ is None and not self._logarithmic

    # -- settings ------------------------------------------------------------------------------------------------------

    def _given_likelihood(self) -> TargetLikelihood | None:
        """The likelihood asked for; None where inference is exact."""
        if isinstance(self.likelihood, str) and self.likelihood in EXACT:
            return None
        return as_likelihood(self.likelihood, EXACT)

    def _check_likelihood(self, given: dict[str, Any]):
        self._check_choice("inference", ("auto", *targets.names()))
        likelihood = self._given_likelihood()
        if likelihood is None:
            unused = [name for name, value in given.items() if value is not None]
            if unused:
                raise ParameterError(
                    f"likelihood={self.likelihood!r} does not use {', '.join(unused)}. Counts with an exposure are "
                    "'poisson' or 'negative_binomial', successes of trials 'binomial', values with limits 'censored'."
                )
            if self.inference != "auto":
                raise ParameterError(
                    f"likelihood={self.likelihood!r} has exact inference; leave inference='auto' (got "
                    f"{self.inference!r})."
                )
            return
        if self.inference != "auto":
            targets.method(self.inference, likelihood)
        if self.calibrate:
            raise ParameterError(
                f"calibrate=True is for a Gaussian likelihood; got {self.likelihood!r}. Its intervals have the width "
                "that the likelihood gives them."
            )
        if np.ndim(self.noise) > 0:
            raise ParameterError("one noise variance per row is for likelihood='gaussian'.")
        if self.learning in INTEGRATED:
            raise ParameterError(
                f"learning={self.learning!r} is for likelihood='gaussian' or 'lognormal'; take 'mle' or 'map' with "
                f"{self.likelihood!r}."
            )
        if self.mean is not None:
            raise ParameterError(
                f"mean is for likelihood='gaussian' or 'lognormal'; the latent function of {self.likelihood!r} has an "
                "unknown constant. Add a trend to the kernel: + k.Linear()."
            )

    # -- fitting -------------------------------------------------------------------------------------------------------

    def _fit_target(self, X, y, given: dict[str, Any]):
        n = count_rows(X)
        likelihood: Any = self._given_likelihood()
        y = self._check_target(y, n)
        if isinstance(likelihood, Ordinal) and not likelihood.grades:
            likelihood.checked(likelihood.rows(n, y))
            likelihood = likelihood.of_grades(y)
        if self.noise is not None:
            if not isinstance(self.noise, int | float | np.number):
                raise ParameterError(f"noise must be None or a variance with likelihood={self.likelihood!r}.")
            if not 0 < self.noise < np.inf:
                raise ParameterError(
                    f"noise is a variance and must be positive with likelihood={self.likelihood!r}; got {self.noise!r}."
                )
            likelihood = likelihood.with_noise(float(self.noise))
        target = likelihood.target(y, n, **given)
        center, scale = likelihood.centre_and_scale(target) if self.normalize else (0.0, 1.0)
        learns = self.learning is not None
        kernel = self._kernel_of_target(X, learns)
        constant = likelihood.constant_variance if self.normalize and not isinstance(likelihood, Ordinal) else 0.0
        rows = gram.Gram(with_constant(kernel, constant), copy_rows(X))
        self.solver_, plan = self._planned_target(kernel, rows, begun=True)
        self._announce(plan)
        warn_of_model(self, [kernel], X, bool(constant))
        self.inference_ = targets.automatic(likelihood, n) if self.inference == "auto" else self.inference
        objective = LatentObjective(
            kernel, rows, likelihood.standardised(target, center, scale), likelihood.rescaled(1 / scale),
            self.inference_, constant, self.learning == "map", self.kernel is None, solver=self.solver_,
        )  # fmt: skip
        learned, self.choice_ = None, None
        if learns and objective.size:
            seed = seed_of(self.random_state)
            settings = self._settings(plan)
            options = (
                self.likelihood, self.inference_, self.noise, bool(self.normalize), self.learning, seed,
                self.optimizer, self.n_restarts,
            )  # fmt: skip
            sides = {name: value for name, value in vars(target).items() if value is not None}
            journal = self._journal((X, y, sides), kernel, *options)
            choose = self.kernel is None and family.standard_path(kernel) is not None
            if self.solver_.in_batches:
                objective, learned, self.choice_ = target_in_batches(
                    objective, self.solver_, settings, seed, journal, choose
                )
            else:
                objective, learned, self.choice_ = learn_target(objective, settings, seed, journal, choose)
            if learned.interrupted:
                warn_of_interruption(learned.evaluations, 5, settings)
        self._set_target(objective, target, center, scale, learned)
        self.plan_ = plan
        return self

    def _planned_target(self, kernel, rows: gram.Gram, begun: bool = False):
        """As `_planned`. Sites are noise; inference iterates, and has matrices of its own."""
        likelihood: Any = self._given_likelihood()
        name = targets.automatic(likelihood, rows.n) if self.inference == "auto" else self.inference
        settings = {"work": of_labels.INFERENCES[name].work, "copies": 2.0}
        return self._planned(kernel, rows, CommonNoise(1.0), solvers.OTHER, begun=begun, **settings)

    def _kernel_of_target(self, X, learns: bool):
        if self.kernel is not None:
            return self._kernel_for(X)
        X = X if self._mixed() else self._check_vectors(X)
        kernel = default_kernel(X, self.columns_, constant=False)
        if not learns or family.standard_path(kernel) is None:
            return kernel
        return family.with_standard(kernel, nu=np.float64(family.FIRST_SMOOTHNESS))

    def _set_target(self, objective: LatentObjective, target: Target, center: float, scale: float, learned):
        """Set all fitted attributes from the optimum."""
        model: Any = objective.model if learned is None else objective.at(learned.theta)
        theta = objective.start() if learned is None else learned.theta
        self.calibration_, self._jitter = 1.0, 0.0 if learned is None else learned.jitter
        self.center_, self.scale_ = center, scale
        self.kernel_, self.target_ = model.kernel, target
        self.likelihood_ = model.likelihood.rescaled(scale)
        self.y_train_, self.copy_of_ = target.y, np.arange(len(target))
        self.noise_ = self.likelihood_.noise_variance
        self._noise: Noise = CommonNoise(0.0)
        self._units = objective.units(scale)
        self.theta_, self.parameter_names_ = theta + self._units, objective.names()
        self._constant = objective.constant
        self.theta_posterior_ = None
        self.priors_ = stated_priors(objective, scale) if objective.use_priors and learned is not None else None
        self.history_, self.optima_ = recorded(learned, lambda theta: objective.parameters(theta + self._units))
        self.n_evaluations_ = 0 if learned is None else learned.evaluations
        last = None if learned is None else learned.outcome
        self._infer_target(objective.X, last and last.approximation, last and last.covariances(theta, self._jitter))
        if not self.numerics_["converged"]:
            warnings.warn(
                f"{self.inference_} inference did not converge in {self.numerics_['iterations']} iterations; "
                "predictions may be inaccurate. Try another inference, or a kernel of smaller variance.",
                NumericalWarning,
                stacklevel=5,
            )

    def _infer_target(self, X, start=None, kept=None):
        """The posterior at the fitted parameters, from all rows; ``kept``: their covariance there, if it is known."""
        if self._solver().in_batches:
            return self._infer_in_batches(X)
        kernel = with_constant(self.kernel_, self._constant)
        target = self.likelihood_.standardised(self.target_, self.center_, self.scale_)
        likelihood = self.likelihood_.rescaled(1 / self.scale_)
        rows = X.of(kernel) if isinstance(X, gram.Gram) else gram.Gram(kernel, X)
        infer = targets.method(self.inference_, likelihood)
        (K,) = kept or latent_covariances(self._solver().latent, [kernel], rows, self._jitter)
        with np.errstate(over="ignore"):
            found = infer(K, target, likelihood, start, gradient=False)
        if found is None:
            raise NotPositiveDefiniteError(
                f"the posterior of these {len(target)} rows could not be found: their covariance is not positive "
                "semidefinite, or the likelihood is not finite. Check the kernel with mercer.check_kernel(kernel, "
                "X), or learn its parameters."
            )
        y, noise = targets.as_regression(found, K.diagonal)
        rows = K.known_to(rows, self._jitter)
        self._set_posterior(self._solver().posterior(kernel, rows, y, noise + self._jitter, MeanFunction(), True))
        self.numerics_ |= {"iterations": found.iterations, "converged": bool(found.converged)}
        self.log_marginal_likelihood_ = float(found.log_evidence)
        self.mean_ = self.center_ + self.scale_ * self._constant * float(found.a.sum())

    def _infer_in_batches(self, X):
        rows = X if isinstance(X, gram.Gram) else gram.Gram(self.kernel_, X)
        found = infer_target(self._target_objective(rows), self._solver(), bool(self.progress))
        self._set_posterior(found.posterior)
        self.numerics_ |= {"iterations": found.iterations, "converged": found.converged}
        self.log_marginal_likelihood_, self.inference_ = found.log_evidence, "variational"
        self.mean_ = self.center_ + self.scale_ * self._constant * float(found.a.sum())

    def _target_objective(self, rows: gram.Gram | None = None) -> LatentObjective:
        if rows is None:
            rows = gram.kept(self, with_constant(self.kernel_, self._constant), self.posterior_.data[0])
        return LatentObjective(
            self.kernel_, rows,
            self.likelihood_.standardised(self.target_, self.center_, self.scale_),
            self.likelihood_.rescaled(1 / self.scale_), self.inference_, self._constant, solver=self._solver(),
        )  # fmt: skip

    # -- prediction ----------------------------------------------------------------------------------------------------

    def _latent(self, X, include_white: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function."""
        mean, variance = self.posterior_.moments(X)
        white = 0.0 if include_white else split_white(self.kernel_)[1]
        return mean * self.scale_ + self.center_, np.maximum(variance - white, 0.0) * self.scale_**2

    def predict_latent(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function: of y for a Gaussian likelihood, "student" and "censored", of the
        logarithm of its mean for counts and positive values, of the log odds for shares: (s,), (s,)."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        if self.likelihood_ is not None:
            return self._latent(X)
        mean, variance = self.posterior_.moments(X)
        return mean * self.scale_ + self.center_, variance * self.scale_**2

    def predict(
        self, X, return_std=False, return_cov=False, include_noise=None, *, exposure=None, trials=None, operator=None
    ):
        """Predictive mean; with ``return_std`` also the standard deviation, with ``return_cov`` the covariance.

        These are of new measurements (PRML 6.66, 6.67), or with ``include_noise=False`` of the function itself. If
        every training row has its own noise variance, new measurements get their mean. Counts are for an ``exposure``
        of one and shares for one of ``trials``, unless given. With an ``operator`` from `mercer.operators`, one or a
        list of one per row, predictions are of derivatives, integrals or other linear functionals of the function; with
        ``include_noise=True`` of measurements of these, where their noise is known. After a fit to derivatives alone
        the noise of values is not known, and is left out.
        """
        self._check_fitted()
        if return_std and return_cov:
            raise ParameterError("return_std and return_cov cannot both be True; choose one.")
        X, rows = self._check_inputs(X, reset=False), {"exposure": exposure, "trials": trials}
        if operator is not None:
            self._refuse_rows(rows)
            return self._predict_observed(
                X, operator, return_std, return_cov, self._adds_noise(include_noise, operator)
            )
        include_noise = self._adds_noise(include_noise)
        if return_cov:
            self._require_location("return_cov")
            return self._mean_of(X, rows), self._covariance(X, include_noise)
        if not return_std:
            return self._mean_of(X, rows)
        predicted = self._distribution(X, include_noise, rows)
        return predicted.mean, predicted.deviation

    def predict_distribution(self, X, include_noise=None, *, exposure=None, trials=None, operator=None) -> Distribution:
        """Predictive distribution of each row: mean, deviation, quantiles, intervals, densities and draws. With
        ``include_noise=False`` of the mean of y given the function; with an ``operator`` as in `predict`."""
        self._check_fitted()
        X, rows = self._check_inputs(X, reset=False), {"exposure": exposure, "trials": trials}
        adds = self._adds_noise(include_noise, operator)
        if operator is None:
            return self._distribution(X, adds, rows)
        self._refuse_rows(rows)
        return self._observed(X, operator, adds)

    def predict_quantile(self, X, q, include_noise=None, *, exposure=None, trials=None, operator=None) -> np.ndarray:
        """Predictive quantile q: (s,) for a number, (s, L) for a list of L; with an ``operator`` as in `predict`."""
        known = {"exposure": exposure, "trials": trials, "operator": operator}
        return self.predict_distribution(X, include_noise, **known).quantile(q)

    def log_predictive_density(self, X, y, *, exposure=None, trials=None, lower=None, upper=None) -> np.ndarray:
        """ln p(y | x, data) of each new measurement: (s,). Of counts and grades it is ln of the probability; of a value
        beyond a limit, too."""
        self._check_fitted()
        rows = {"exposure": exposure, "trials": trials, "lower": lower, "upper": upper}
        X = self._check_inputs(X, reset=False)
        if self.likelihood_ is not None:
            mean, variance = self._latent(X)
            return self.likelihood_.tilted(mean, variance, self.likelihood_.target(y, count_rows(X), **rows)).log_z
        return self._distribution(X, True, rows).log_density(as_vector(y, count_rows(X)))

    def sample_y(
        self, X, n_samples=1, random_state=0, include_noise=None, *, exposure=None, trials=None, operator=None
    ):
        """Joint draws from the predictive distribution at the rows of X: (s, n_samples).

        With ``include_noise=False`` draws of the function itself; with an ``operator`` as in `predict`. For many
        thousands of rows a low-rank root of their covariance is used, with a warning if that is not exact.
        """
        self._check_fitted()
        X, rows = self._check_inputs(X, reset=False), {"exposure": exposure, "trials": trials}
        include_noise = self._adds_noise(include_noise, operator)
        if operator is not None:
            self._refuse_rows(rows)
            return self._sample_observed(X, operator, n_samples, random_state, include_noise)
        if self.likelihood_ is not None:
            return self._sample_target(X, n_samples, random_state, include_noise, rows)
        self._refuse_rows(rows)
        draws = self._sample(X, n_samples, random_state, include_noise)
        return np.exp(draws + self._log_shift(include_noise)) if self._logarithmic else draws

    def _mean_of(self, X, rows: dict[str, Any]) -> np.ndarray:
        if not self._is_gaussian():
            return self._distribution(X, True, rows).mean
        self._refuse_rows(rows)
        return self._mean(X)

    def _distribution(self, X, include_noise: bool, rows: dict[str, Any]) -> Distribution:
        if self.likelihood_ is not None:
            return self._predicted_target(X, include_noise, rows)
        self._refuse_rows(rows)
        predicted = self._predicted(X, include_noise)
        return self._exponential(predicted, self._log_shift(include_noise)) if self._logarithmic else predicted

    @staticmethod
    def _exponential(predicted: Distribution, shift: float = 0.0) -> Distribution:
        """Of exp(value + shift), for a normal value or a mixture of normals."""
        if isinstance(predicted, Mixture):
            return Mixture(
                tuple(LogNormal(part.mean + shift, part.deviation) for part in predicted.parts), predicted.weights
            )
        return LogNormal(predicted.mean + shift, predicted.deviation)

    def _log_shift(self, include_noise: bool) -> float:
        """From the function of ln y to the logarithm of the mean of y given it, which draws without noise are of."""
        return 0.0 if include_noise else 0.5 * float(np.mean(self.noise_))

    def _predicted_target(self, X, include_noise: bool, given: dict[str, Any]) -> Distribution:
        t = self.likelihood_.rows(count_rows(X), **given)
        if include_noise:
            return self.likelihood_.predict(*self._latent(X), t)
        return self.likelihood_.predict_response(*self._latent(X, include_white=False), t)

    def _require_location(self, what: str):
        """Refuse what has a meaning only where the latent function is y without noise."""
        if self._logarithmic or not (self.likelihood_ is None or self.likelihood_.location):
            raise ParameterError(
                f"{what} is for likelihoods with additive noise: 'gaussian', 'student', 'censored'; this model has "
                f"{self.likelihood!r}. Use sample_y for joint predictions, or posterior_ for the latent function."
            )

    def _refuse_rows(self, given: dict[str, Any]):
        known = [name for name, value in given.items() if value is not None]
        if known:
            raise ParameterError(f"likelihood={self.likelihood!r} does not use {', '.join(known)}.")

    def _sample_target(self, X, n_samples: int, random_state, include_noise: bool, given: dict[str, Any]):
        """Joint draws: functions first, then a measurement of each."""
        seeds = np.random.SeedSequence(entropy(random_state)).generate_state(2)
        posterior = self.posterior_ if include_noise else self.posterior_.latent()
        f = posterior.sample(X, size=n_samples, seed=int(seeds[0])).T * self.scale_ + self.center_
        t = self.likelihood_.rows(count_rows(X), **given).column()
        if not include_noise:
            return self.likelihood_.response(f + t.offset, t)[0]
        return self.likelihood_.draw(f + t.offset, t, np.random.default_rng(seeds[1]))

    # -- diagnostics ---------------------------------------------------------------------------------------------------

    def _cavities(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function at each training row from the others."""
        mean, variance = self.posterior_.leave_one_out()
        noise = self.posterior_.data[2]
        return mean * self.scale_ + self.center_, np.maximum(variance - noise, 0.0) * self.scale_**2

    def loo_distribution(self, rows=slice(None)) -> Distribution:
        """Leave-one-out predictions of the training rows, or of some of them, as distributions: those of `loo`."""
        self._check_fitted()
        if self.likelihood_ is not None:
            mean, variance = self._cavities()
            return self.likelihood_.predict(mean[rows], variance[rows], self.target_.take(rows))
        predicted = self._left_out().take(self._copies()[rows])
        return self._exponential(predicted) if self._logarithmic else predicted

    def _left_out(self) -> Any:
        """Distribution of the target of each row that counts given the others."""
        return self.posterior_.left_out().scaled(self.scale_, self.center_)

    def _shown_target(self) -> np.ndarray:
        """y for one unit of exposure, or one trial, as predictions are."""
        t = self.target_
        per = None if t is None else t.exposure if t.exposure is not None else t.trials
        return self.y_train_ if per is None else self.y_train_ / per

    def _measured_rows(self) -> np.ndarray:
        """Rows whose value is known, not only that it is beyond a limit; copies of rows count once."""
        if self.likelihood_ is None:
            return np.unique(self._copies(), return_index=True)[1]
        y, lower, upper = self.target_.y, self.target_.lower, self.target_.upper
        known = np.ones(len(y), bool) if lower is None or upper is None else (y > lower) & (y < upper)
        return np.flatnonzero(known) if known.any() else np.arange(len(y))

    def _loo_of_target(self) -> LeaveOneOut:
        predicted = self.loo_distribution()
        if self.likelihood_ is None:
            score = predicted.log_density(self.y_train_)
        else:
            score = self.likelihood_.tilted(*self._cavities(), self.target_).log_z
        with np.errstate(over="ignore"):
            return LeaveOneOut(predicted.mean, variance=predicted.deviation**2, log_score=score)

    def _relevance_of_target(self) -> Relevance:
        X, target, noise = self.posterior_.data
        # Of the posterior's mean, because single rows of y tell too little of the function.
        smooth = self.posterior_.mean(gram.kept(self.posterior_, self.posterior_.kernel, X))

        def fitted_to(rows):
            mean = self._solver().posterior(
                self.posterior_.kernel, take_rows(X, rows), target[rows], noise[rows], MeanFunction(), True
            ).mean  # fmt: skip
            return lambda Z: mean(Z)[:, None]

        return relevance(X, smooth[:, None], fitted_to, self.kernel_)

    def _update_target(self, X, y, given: dict[str, Any]):
        """Infer again from all rows, at the same parameters."""
        m = count_rows(X)
        more = self.likelihood_.target(self._check_target(y, m), m, **given)
        kernel = self.posterior_.kernel
        together = stack_rows(self.posterior_.data[0], X, kernel.reads, kernel.needs_all_columns)
        self.target_ = self.target_.joined(more)
        self.y_train_, self.copy_of_ = self.target_.y, np.arange(len(self.target_))
        self._infer_target(together)
        return self


def log_target(y: np.ndarray) -> np.ndarray:
    """ln y for the log-normal likelihood; `DataError` where a value is not positive."""
    if (y <= 0).any():
        i = int(np.flatnonzero(y <= 0)[0])
        raise DataError(
            f"likelihood='lognormal' is for positive values; y[{i}] is {y[i]:g}. Leave out zeros, or use "
            "likelihood='censored' with the detection limit: fit(X, y, lower=limit)."
        )
    return np.log(y)
