"""What estimators share in learning: records of steps and optima, the evidence, warnings; and in prediction."""

import contextlib
import importlib
import math
import reprlib
import time
import warnings
from typing import Any, NamedTuple

import numpy as np

from mercer.core.errors import InterruptedFitWarning, ModelWarning, NumericalWarning, ParameterError
from mercer.core.inputs import as_vector
from mercer.core.parameters import slots_of
from mercer.distributions import Distribution
from mercer.learning import heuristics
from mercer.learning.checkpoint import begun_with, check_path, resumed
from mercer.learning.columns import STRUCTURED, Columns
from mercer.learning.integrate import INTEGRATED
from mercer.learning.optimise import Settings
from mercer.learning.plan import Plan
from mercer.learning.regression import RegressionObjective
from mercer.learning.resolution import contradicting
from mercer.learning.state import Journal
from mercer.models.estimator import Estimator, Regressor
from mercer.solvers import base as solvers

BEGUN_WITH = "the checkpoint was begun with it"
BEST_SO_FAR = "the model has the best parameters found so far"
NOT_INTEGRATED = "parameters are not integrated over, so intervals are as narrow as those of learning='map'"


class Iteration(NamedTuple):
    """One step of learning: the log evidence (plus the log prior, for "map"), the parameters, and the rows used."""

    value: float
    parameters: dict[str, Any]
    rows: int


class Found(NamedTuple):
    """An optimum: its value and parameters, its starting point, and how many optimisations ended there."""

    value: float
    parameters: dict[str, Any]
    start: str
    converged: bool
    times_found: int


def recorded(learned, parameters, rows: int = 0, log_unit: float = 0.0) -> tuple[list[Iteration], list[Found]]:
    """History and optima of learning. ``parameters(theta)`` gives parameters by name; ``log_unit`` is added to values
    for each row, of which the optima are on ``rows``."""
    if learned is None:
        return [], []
    history = [Iteration(float(s.value + s.rows * log_unit), parameters(s.theta), s.rows) for s in learned.history]
    optima = [
        Found(float(o.value + rows * log_unit), parameters(o.theta), o.start, o.converged, o.times_found)
        for o in learned.optima
    ]
    return history, optima


class LearnedByEvidence(Estimator):
    """What Gaussian process estimators share: settings of learning, the evidence, and the report."""

    learning: Any
    solver: Any
    checkpoint: Any
    solver_: Any
    theta_: np.ndarray
    parameter_names_: list[str]
    log_marginal_likelihood_: float
    _jitter: float
    _units: Any = 0.0  # from the optimiser's coordinates to those of theta_
    columns_: Columns | None = None  # with a given kernel, or without column names

    def _check_inputs(self, X, reset: bool):
        """As for every estimator. With the default kernel, ``columns_`` are decided by the frame of the fit, and frames
        are encoded by them."""
        X = super()._check_inputs(X, reset)
        if reset:
            self.columns_ = Columns.of(X) if getattr(self, "kernel", self) is None else None
        return self.columns_.encode(X) if isinstance(self.columns_, Columns) else X

    def _mixed(self) -> bool:
        """Whether the inputs have columns with kernels of their own."""
        return isinstance(self.columns_, Columns) and bool(self.columns_.names(*STRUCTURED))

    def _about_columns(self) -> list[str]:
        """Lines on the kinds of columns, where they are not all numbers."""
        columns = self.columns_
        shown = isinstance(columns, Columns) and not columns.all_numbers
        return [f"{column.name}: {column}" for column in columns or ()] if shown else []

    def _check_learning(self, choices: dict[str, tuple], minima: dict[str, int]):
        if not isinstance(self.solver, str) or self.solver != "auto":
            solvers.checked(self.solver)
        for name, allowed in choices.items():
            self._check_choice(name, allowed)
        for name, minimum in minima.items():
            self._check_integer(name, minimum)
        check_path(self.checkpoint)

    def _chooses_solver(self) -> bool:
        return isinstance(self.solver, str) and self.solver == "auto"

    def _begun_with(self, kernels, X, noise) -> solvers.Solver | None:
        """The solver that the checkpoint was begun with, where "auto" chose it: a fit goes on with the same one."""
        found = begun_with(self.checkpoint) if self._chooses_solver() else None
        applies = found is not None and all(found.refusal(kernel, X, noise) is None for kernel in kernels)
        return found if applies else None

    def _journal(self, data, kernel, *settings) -> Journal:
        """The journal of a fit, in its file if there is one. ``settings``: what else evaluations depend on, without the
        solver."""
        chosen = self.solver_ if self._chooses_solver() else None
        settings = (*settings, "auto" if chosen else self.solver_)
        return resumed(self.checkpoint, {"data": data, "kernel": kernel, "settings": settings}, chosen)

    def _settings(self, plan: Plan | None = None, began: float | None = None) -> Settings:
        """Settings of learning; it may take ``max_seconds`` from when it ``began`` (None: now) if "auto" chose a
        ``plan`` that fits them."""
        began = time.monotonic() if began is None else began
        limit = plan.max_seconds if plan is not None and self._chooses_solver() else None
        until = math.inf if plan is None or not limit or plan.seconds > limit else began + limit
        return Settings(self.optimizer, self.n_restarts, self.max_iterations, bool(self.progress), until)

    def _warn_of_interruption(self, evaluations: int, stacklevel: int, settings: Settings):
        """Of learning; ``stacklevel`` as in `warnings.warn`, counted from the caller."""
        result = f"{BEST_SO_FAR}; {NOT_INTEGRATED}" if self.learning in INTEGRATED else BEST_SO_FAR
        warn_of_interruption(evaluations, stacklevel + 2, settings, result)

    def _objective(self):
        raise NotImplementedError

    def _refuse_stream(self) -> None:
        """Refuse what needs the training rows, where they are not kept."""

    def log_marginal_likelihood(self, theta=None, eval_gradient=False):
        """Log marginal likelihood ln p(y | theta) at ``theta`` (as ``theta_``, which None means), with its gradient if
        asked for; approximate where inference is."""
        self._check_fitted()
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_
        self._refuse_stream()
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

    def report(self, X=None, y=None):
        """Summary of the fit, relevance, calibration, optima, and likely problems, from leave-one-out predictions.
        Held-out rows, ``X`` and ``y``, are evaluated as well; they are all that the report of a stream is about."""
        self._check_fitted()
        if X is None and y is None:
            self._refuse_stream()
        # Reports are above models in the import order.
        return importlib.import_module("mercer.report").report(self, X, y)


def warn_of_model(model, kernels, X, unknown_mean: bool, noise_prior: bool = False):
    """Warn about settings that are probably mistakes: unused priors, linear terms through a distant origin."""
    kernel_prior = any(slot.prior is not None for kernel in kernels for slot in slots_of(kernel))
    if model.learning == "mle" and (kernel_prior or noise_prior):
        subject = "the kernel has priors" if kernel_prior else "the noise has a prior"
        warnings.warn(
            f"{subject}, which learning='mle' ignores; use learning='map'.",
            ModelWarning,
            stacklevel=4,
        )
    lines = [found for kernel in kernels for found in heuristics.through_zero(kernel, X, unknown_mean)]
    if lines:
        warnings.warn(
            f"functions drawn from {lines[0]!r} are zero at x = 0, and these inputs are many standard deviations away "
            "from it, so the functions hardly vary over them. Add a constant, Linear() + 1.0 or "
            "Polynomial(2, offset=1.0), or centre the inputs, x - x.mean().",
            ModelWarning,
            stacklevel=4,
        )


def warn_of_saturation(objective: RegressionObjective, stacklevel: int):
    """Warn of a mean that passes through every row; ``stacklevel`` as in `warnings.warn`, counted from here."""
    if objective.mean_takes_all and objective.mean.precision is None:
        warnings.warn(
            f"the mean {objective.mean!r} has as many unknown coefficients as there are rows ({objective.n}): nothing "
            "remains around it to learn the amplitude of the function and the noise from, so deviations are not to be "
            "relied on. Give more rows, fewer coefficients, or coefficients with a prior: mercer.means.Basis(..., "
            "variance=...).",
            ModelWarning,
            stacklevel=stacklevel,
        )


def warn_of_contradiction(X, y):
    """Warn of rows with equal inputs and different targets where there is no noise."""
    found = contradicting(X, y)
    if found is not None:
        warnings.warn(
            f"rows {found[0]} and {found[1]} have the same inputs and different targets, and there is no noise: no "
            "function passes through both, so results depend on rounding. If the measurements are noisy, give their "
            "variance, noise=..., or learn it, noise=None.",
            NumericalWarning,
            stacklevel=4,
        )


def warn_of_interruption(
    evaluations: int, stacklevel: int, settings: Settings | None = None, result: str = BEST_SO_FAR
):
    """Warn that a fit was interrupted, or that the time of its ``settings`` was over, and of the ``result``;
    ``stacklevel`` as in `warnings.warn`, counted from here."""
    late = settings is not None and settings.out_of_time
    what = "learning took max_seconds and was ended" if late else "the fit was interrupted"
    advice = " Raise max_seconds, or give checkpoint=PATH and fit again to go on from here." if late else ""
    warnings.warn(
        f"{what} after {evaluations} evaluations; {result}.{advice}",
        InterruptedFitWarning,
        stacklevel=stacklevel,
    )


@contextlib.contextmanager
def restored_after_interruption(model, result: str, stacklevel: int, settings: Settings | None = None):
    """After Ctrl-C, or when the time of its ``settings`` was over, the model as it was before, with a warning of this
    ``result``; ``stacklevel`` as in `warnings.warn`, counted from the caller."""
    before = dict(vars(model))
    try:
        yield
    except KeyboardInterrupt:
        vars(model).clear()
        vars(model).update(before)
        warn_of_interruption(model.n_evaluations_, stacklevel + 3, settings, result)


class PredictiveRegressor(Regressor):
    """A regressor with a predictive distribution. It defines ``_mean(X)``, and with or without noise
    ``_covariance(X, include_noise)`` and ``_predicted(X, include_noise)``, of rows that are checked."""

    def predict(self, X, return_std=False, return_cov=False, include_noise=True):
        """Predictive mean; with ``return_std`` also the standard deviation, with ``return_cov`` the covariance.

        These are of new measurements (PRML 6.66, 6.67; 3.58, 3.59), or with ``include_noise=False`` of the function
        itself. If every training row has its own noise variance, new measurements get their mean.
        """
        self._check_fitted()
        if return_std and return_cov:
            raise ParameterError("return_std and return_cov cannot both be True; choose one.")
        X = self._check_inputs(X, reset=False)
        if return_cov:
            return self._mean(X), self._covariance(X, include_noise)
        if not return_std:
            return self._mean(X)
        predicted = self._predicted(X, include_noise)
        return predicted.mean, predicted.deviation

    def predict_distribution(self, X, include_noise=True) -> Distribution:
        """Predictive distribution of each row: mean, deviation, quantiles, intervals, densities and draws."""
        self._check_fitted()
        return self._predicted(self._check_inputs(X, reset=False), include_noise)

    def log_predictive_density(self, X, y) -> np.ndarray:
        """ln p(y | x, data) of each new measurement: (s,)."""
        predicted = self.predict_distribution(X)
        return predicted.log_density(as_vector(y, len(predicted.mean)))
