"""What a fitted regression of several targets answers."""

import warnings
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, NumericalWarning, ParameterError
from mercer.core.inputs import as_matrix, count_rows, stack_rows
from mercer.core.random import entropy
from mercer.core.text import number, rounded, table
from mercer.distributions import Normal
from mercer.gp.model import Model
from mercer.kernels.algebra import split_white
from mercer.learning.choice import quoted
from mercer.learning.outputs import OutputsObjective
from mercer.models.correlations import Correlations, correlations, costs_little
from mercer.models.estimator import Regressor
from mercer.models.output_rows import Measurements, all_targets, long_rows, measurements, split_output
from mercer.models.records import LearnedByEvidence
from mercer.scores import LeaveOneOut, coverage
from mercer.solvers.base import Posterior

MAX_TARGETS_IN_PRINT = 12  # of a table of correlations


def check_one_target(model: Any, what: str) -> None:
    """Refuse a model of several targets where ``what`` is of one function."""
    if isinstance(model, OutputPredictions):
        raise ParameterError(
            f"{what} is of one function, and {type(model).__name__} has one for each target. Use what its predict and "
            "sample_y return for a target, or a GaussianProcessRegressor fitted to that target alone."
        )


class OutputPredictions(LearnedByEvidence, Regressor):
    """Predictions of P targets, (s, P), or (s,) where y was a vector."""

    outputs_: list[Any]
    center_: np.ndarray
    scale_: np.ndarray
    posterior_: Any
    _measured: Measurements
    _places: Any
    _scaled_noise: Any
    _correlations: Correlations | None = None

    # -- rows --------------------------------------------------------------------------------------------------------

    def _asked(self, X) -> tuple[Any, np.ndarray, bool]:
        """New rows in long form, the target of each, and whether they are those of X, each with one target named."""
        self._check_fitted()
        X, labels = split_output(X) if "output" not in getattr(self, "feature_names_in_", ()) else (X, None)
        X = self._check_inputs(X, reset=False)
        s, P = count_rows(X), len(self.outputs_)
        if labels is None:
            return all_targets(X, P), np.tile(np.arange(P), s), False
        asked = measurements(np.zeros(s), s, labels, self.outputs_)
        return long_rows(X, np.arange(s), asked.target), asked.target, True

    def _shaped(self, values: np.ndarray, single: bool) -> np.ndarray:
        return values if single or self._measured.form == "one" else values.reshape(-1, len(self.outputs_))

    def _posterior_with(self, X, known) -> Posterior:
        """The posterior given targets that are known at the new rows besides."""
        if known is None:
            return self.posterior_
        X, labels = split_output(X)
        X = self._check_inputs(X, reset=False)
        found = measurements(known, count_rows(X), labels, self.outputs_, "known")
        return self._conditioned(X, found)

    def _conditioned(self, X, found: Measurements) -> Posterior:
        if not len(found.values):
            return self.posterior_
        rows = long_rows(X, found.row, found.target)
        target = (found.values - self.center_[found.target]) / self.scale_[found.target]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            noise = np.broadcast_to(self._scaled_noise.at(rows), len(target)) + self._jitter
            return self.posterior_.condition(rows, target, noise)

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict(self, X, return_std=False, return_cov=False, include_noise=True, known=None):
        """Predictive means (s, P); with ``return_std`` also standard deviations (s, P), with ``return_cov`` covariances
        (s, P, s, P).

        These are of new measurements, or with ``include_noise=False`` of the functions. ``known`` (s, P) are targets
        that were measured at the new rows, NaN where they were not: the others are predicted from these, too
        (collocated co-kriging), as `update` would let them. Rows of a frame with a column ``output`` ask for one target
        each: (s,).
        """
        if return_std and return_cov:
            raise ParameterError("return_std and return_cov cannot both be True; choose one.")
        rows, target, single = self._asked(X)
        posterior = self._posterior_with(X, known)
        unit, centre = self.scale_[target], self.center_[target]
        if return_cov:
            K = posterior.covariance_with(rows, self._added(posterior, rows, include_noise)) * np.outer(unit, unit)
            mean = self._shaped(posterior.mean(rows) * unit + centre, single)
            return mean, K if mean.ndim == 1 else K.reshape(*mean.shape, *mean.shape)
        if not return_std:
            return self._shaped(posterior.mean(rows) * unit + centre, single)
        found = self._distribution(posterior, rows, target, include_noise)
        return self._shaped(found.mean, single), self._shaped(found.deviation, single)

    def _added(self, posterior: Posterior, rows, include_noise: bool) -> Any:
        return posterior.added_noise(rows, self._scaled_noise, include_noise)

    def _distribution(self, posterior: Posterior, rows, target: np.ndarray, include_noise: bool) -> Normal:
        found = posterior.predict(rows, self._added(posterior, rows, include_noise))
        unit = self.scale_[target]
        return Normal(found.mean * unit + self.center_[target], found.deviation * unit)

    def predict_distribution(self, X, include_noise=True, known=None) -> Normal:
        """Predictive distributions, (s, P): mean, deviation, intervals, densities."""
        rows, target, single = self._asked(X)
        found = self._distribution(self._posterior_with(X, known), rows, target, include_noise)
        return Normal(self._shaped(found.mean, single), self._shaped(found.deviation, single))

    def log_predictive_density(self, X, y) -> np.ndarray:
        """ln p(y | x, data) of each measurement by itself: (s, P), NaN where y is."""
        predicted = self.predict_distribution(X)
        y = np.asarray(as_matrix(y, "y", gaps=True))
        if y.size != predicted.mean.size:
            raise DataError(f"y must have the shape of the predictions, {predicted.mean.shape}; got {y.shape}.")
        return predicted.log_density(y.reshape(predicted.mean.shape))

    def sample_y(self, X, n_samples=1, random_state=0, include_noise=True) -> np.ndarray:
        """Draws of all targets jointly: (s, P, n_samples), or (s, n_samples)."""
        rows, target, single = self._asked(X)
        seeds = np.random.SeedSequence(entropy(random_state)).generate_state(2)
        posterior = self.posterior_
        if not include_noise and split_white(self.kernel_)[1]:
            posterior = posterior.latent()
        if include_noise:
            added, rng = self._added(posterior, rows, True), np.random.default_rng(seeds[1])
            draws = posterior.sample_with(rows, n_samples, int(seeds[0]), added, rng)
        else:
            draws = posterior.sample(rows, size=n_samples, seed=int(seeds[0]))
        draws = draws.T * self.scale_[target][:, None] + self.center_[target][:, None]
        own = single or self._measured.form == "one"
        return draws if own else draws.reshape(-1, len(self.outputs_), n_samples)

    def score(self, X, y, sample_weight=None) -> float:
        """R^2 of the predicted means, averaged over the targets, of the measurements that y has."""
        predicted = self.predict(X)
        y = np.asarray(as_matrix(y, "y", gaps=True)).reshape(predicted.shape)
        w = self._check_weights(sample_weight, len(predicted))
        scores = []
        for truth, own in zip(y.reshape(len(y), -1).T, predicted.reshape(len(y), -1).T, strict=True):
            told = np.isfinite(truth)
            if not told.any():
                continue
            weights = w[told]
            missed = weights @ (truth[told] - own[told]) ** 2
            spread = weights @ (truth[told] - np.average(truth[told], weights=weights)) ** 2
            scores.append(1.0 - missed / spread if spread > 0 else float(missed == 0))
        if not scores:
            raise DataError("y has no finite value to compare predictions with.")
        return float(np.mean(scores))

    # -- diagnostics -------------------------------------------------------------------------------------------------

    def _objective(self) -> OutputsObjective:
        X, target, _ = self.posterior_.data
        rows = gram.kept(self, self.kernel_, X)
        return OutputsObjective(
            self.kernel_, rows, target, self._scaled_noise, self.solver_, self.posterior_.prior_mean
        )

    def left_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Number of the target, mean and variance of each measurement predicted from all others, in units of y."""
        self._check_fitted()
        mean, variance = self.posterior_.leave_one_out()
        p = self._measured.target
        return p, mean * self.scale_[p] + self.center_[p], variance * self.scale_[p] ** 2

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions at the learned parameters, in closed form, in the form of y: each measurement from
        all others, those of other targets in the same place among them."""
        _, mean, variance = self.left_out()
        score = Normal(mean, np.sqrt(variance)).log_density(self._measured.values)
        form = self._measured.arranged
        return LeaveOneOut(form(mean), variance=form(variance), log_score=form(score))

    def correlations(self) -> Correlations:
        """Correlations between the functions behind the targets, with standard errors and 95% intervals from the
        curvature of the evidence (Laplace's approximation and the delta method). Takes 2 p evaluations of the evidence,
        once."""
        self._check_fitted()
        if self._correlations is None or self._correlations.error is None:
            self._correlations = correlations(self._objective(), self.theta_ - self._units, self._places, self.outputs_)
        return self._correlations

    def _quick_correlations(self) -> Correlations:
        """With errors, unless they take long."""
        objective = self._objective()
        if self._correlations is None:
            quick = costs_little(objective)
            found = correlations(objective, self.theta_ - self._units, self._places, self.outputs_, quick)
            self._correlations = found
        return self._correlations

    # -- new data ----------------------------------------------------------------------------------------------------

    def update(self, X, y):
        """Condition on further measurements. Parameters, and the centres and scales of y, do not change."""
        self._check_fitted()
        X, labels = split_output(X)
        X = self._check_inputs(X, reset=False)
        new, old = measurements(y, count_rows(X), labels, self.outputs_), self._measured
        posterior = self._conditioned(X, new)
        row, target = np.concatenate([old.row, new.row + old.rows]), np.concatenate([old.target, new.target])
        values = np.concatenate([old.values, new.values])
        self._measured = Measurements(row, target, values, old.names, old.form, old.rows + new.rows)
        self._places = stack_rows(self._places, X, self.kernel_.reads)
        self._correlations = None
        self._set_posterior(posterior)
        return self

    def _set_posterior(self, posterior: Posterior) -> None:
        raise NotImplementedError

    # -- in print ----------------------------------------------------------------------------------------------------

    def _model(self) -> Model:
        """The fitted model, with noise in units of y."""
        return Model((self.kernel_,), self.posterior_.prior_mean, self._noise)

    def target_table(self) -> str:
        """Of each target the number of its measurements, mean, noise, and how well it is predicted when left out."""
        p, mean, variance = self.left_out()
        rows = []
        for i, name in enumerate(self.outputs_):
            own = p == i
            y = self._measured.values[own]
            residual = y - mean[own]
            total = float(np.sum((y - y.mean()) ** 2))
            r2 = "-" if total == 0 else f"{1 - float(residual @ residual) / total:.3f}"
            inside = coverage(Normal(mean[own], np.sqrt(variance[own])).z(y), 0.95)
            shown = [number(rounded(each)) for each in (self.mean_[i], np.sqrt(self.noise_[i]))]
            rows.append(
                [str(name), f"{own.sum():,}", *shown, f"{np.sqrt(np.mean(residual**2)):.4g}", r2, f"{inside:.0%}"]
            )
        head = ["target", "measured", "mean", "noise deviation", "left-out RMSE", "left-out R^2", "in 95% intervals"]
        return table(head, rows)

    def _summary(self):
        n, P = len(self._measured.values), len(self.outputs_)
        lines = [
            f"{type(self).__name__}, fitted to {n:,} measurements of {P} target{'s' * (P > 1)} at "
            f"{self._measured.rows:,} rows",
            *self._about_columns(),
            f"kernel: {quoted(self.kernel_)!r}",
            *([] if self.choice_ is None else [f"chosen: {self.choice_.member}, {self.choice_.margin()} (choice_)"]),
            f"log evidence: {self.log_marginal_likelihood_:.2f} (of scaled targets)",
            "",
            self.target_table(),
        ]
        if 1 < P <= MAX_TARGETS_IN_PRINT:
            lines += ["", str(self._quick_correlations())]
        return "\n".join(lines)
