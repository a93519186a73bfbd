"""Learning from a stream of rows: `partial_fit`, with a fixed number of basis vectors.

Parameters are learned from the first rows; after that every row is taken in once, and not kept.
"""

import functools
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import free_names, to_free
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import count_rows, stack_rows, take_rows
from mercer.core.random import generator, seed_of
from mercer.inference.centers import NOT_KEPT, CenterLabels
from mercer.kernels.convert import as_covariance
from mercer.learning.columns import default_kernel
from mercer.learning.integrate import INTEGRATED
from mercer.models.estimator import Classifier, all_or_nothing, is_integer
from mercer.models.records import LearnedByEvidence
from mercer.models.targets import log_target
from mercer.solvers.base import Solver
from mercer.solvers.dense import Dense
from mercer.solvers.online import CenterPosterior

LEARNING_ROWS = 1000  # of the first call that parameters are learned from, at most
EARLY_ROWS = 300  # as long as there are fewer, parameters are learned again whenever there are twice as many


class NoStreamError(ParameterError, AttributeError):
    """The settings of an estimator rule out `partial_fit`, which it therefore does not have."""


class where_it_streams:  # noqa: N801  # a decorator
    """A method that an estimator has unless its settings rule it out (`Stream._no_stream`), as scikit-learn expects."""

    def __init__(self, method):
        functools.update_wrapper(self, method)  # type: ignore[arg-type]  # which a class with __get__ is, too
        self.method = method

    def __get__(self, model, owner=None):
        why = None if model is None else model._no_stream()
        if why is not None:
            raise NoStreamError(why)
        return self.method.__get__(model, owner)


class Stream(LearnedByEvidence):
    """What regressors and classifiers share."""

    budget: Any
    _early: Any = None  # the first rows and targets, as long as parameters may be learned again
    _learned_from = 0  # number of rows that parameters were learned from

    def _check_stream(self) -> None:
        if self.budget is not None and (not is_integer(self.budget) or self.budget < 1):
            raise ParameterError(f"budget must be a positive integer, or None for no limit; got {self.budget!r}.")

    def _no_stream(self) -> str | None:
        """Why these settings rule out `partial_fit`."""
        if self.learning in (*INTEGRATED, "sample"):
            return (
                f"partial_fit keeps the posterior at one value of the parameters; learning={self.learning!r} averages "
                "over them. Take 'mle', 'map' or None."
            )
        return None

    def _streams(self) -> bool:
        """Whether the posterior is that of a stream."""
        posterior = vars(self).get("posterior_")
        return posterior is not None and not posterior.keeps_rows

    def _refuse_stream(self) -> None:
        if self._streams():
            raise ParameterError(NOT_KEPT)

    def _row_count(self) -> int:
        """Number of rows that the model was fitted to."""
        return self.posterior_.count if self._streams() else len(self._training_targets())

    def _training_targets(self) -> np.ndarray:
        raise NotImplementedError

    def _with_early(self, X, y) -> tuple[Any, np.ndarray] | None:
        """The first rows together with these, where parameters are to be learned from them; None where they are not,
        or there are no early rows."""
        if self._early is None:
            return None
        X = stack_rows(self._early[0], X, self._reads(True))
        y = np.concatenate([self._early[1], y])
        self._early = (X, y) if len(y) < EARLY_ROWS else None
        again = self.learning is not None and len(y) >= 2 * self._learned_from
        return (X, y) if again else None

    def _some(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the first call to learn from, and the others."""
        order = generator(seed_of(self.random_state)).permutation(n)
        return np.sort(order[:LEARNING_ROWS]), np.sort(order[LEARNING_ROWS:])


class RegressionStream(Stream):
    """`partial_fit` of a regressor."""

    def _no_stream(self) -> str | None:
        if self.likelihood not in ("gaussian", "lognormal"):
            return f"partial_fit is for likelihood='gaussian' or 'lognormal'; got {self.likelihood!r}. Fit a subset."
        if np.ndim(self.noise) > 0:
            return "partial_fit takes one noise variance for all rows, or None."
        return super()._no_stream()

    @where_it_streams
    @all_or_nothing
    def partial_fit(self, X, y):
        """Learn from further rows, in one pass, without keeping them (Csato and Opper 2002).

        The first call learns the parameters as ``fit`` does, from 1,000 rows at most; as long as there are fewer than
        300 rows in all, later calls learn them again whenever there are twice as many. All else is taken in at these
        parameters and units of y: what is kept is the distribution of the function at no more than ``budget`` rows, the
        basis vectors, at a cost of O(budget^2) a row. Where more rows bring new directions, those whose values cost
        least (in nats, ``numerics_["lost_nats"]``) are left out. With ``budget=None`` none is, and the posterior is
        exact. After ``fit``, it goes on from its posterior.
        """
        self._check_stream()
        self._check_settings()
        self._refuse_chunks(X)
        target = self._check_target(y, count_rows(X), gaps=True)
        known = np.flatnonzero(~np.isnan(target))
        if not hasattr(self, "posterior_"):
            if not len(known):
                raise DataError(f"y has no finite value: all {len(target)} are missing (NaN).")
            self._early = None
            return self._begin(take_rows(X, known), target[known])
        checked = self._check_inputs(X, reset=False)
        if not self._streams():
            self._early = None
            self._absorb_fit()
        if len(known):
            X, y = take_rows(X, known), target[known]
            early = self._with_early(X, y)
            if early is not None:
                return self._begin(*early)
            self._take_in(take_rows(checked, known), y)
        return self

    def _begin(self, X, y):
        some, others = self._some(len(y))
        self.fit(take_rows(X, some), y[some])
        self._learned_from = len(y)
        self._early = (X, y) if len(y) < EARLY_ROWS else None
        self._absorb_fit()
        if len(others):
            self._take_in(self._check_inputs(take_rows(X, others), reset=False), y[others])
        return self

    def _absorb_fit(self):
        """The posterior of ``fit``, as one of a stream."""
        X, y, noise = self.posterior_.data
        if self.theta_posterior_ is not None or self.likelihood_ is not None:
            raise ParameterError("partial_fit goes on from a Gaussian posterior at one value of the parameters.")
        posterior = CenterPosterior.given(self.kernel_, X, y, noise, self.posterior_.prior_mean, self.budget)
        self._set_posterior(posterior)
        self._forget()

    def _take_in(self, X, y):
        noise, variances = self._fitted_noise().extended(None, X)
        y = log_target(y) if self._logarithmic else y
        target = (y - self.center_) / self.scale_
        self._set_posterior(self.posterior_.condition(X, target, variances / self.scale_**2 + self._jitter))
        self._set_noise(noise)

    def _forget(self):
        self.y_train_, self.copy_of_, self.gaps_ = np.empty(0), np.empty(0, dtype=int), np.empty(0, dtype=int)

    def _training_targets(self) -> np.ndarray:
        return self.y_train_


class LabelStream(Stream, Classifier):
    """`partial_fit` of a classifier."""

    posterior_: Any
    solver_: Solver

    def _no_stream(self) -> str | None:
        if isinstance(self.kernel, list | tuple):
            return "partial_fit takes one kernel for all classes."
        return super()._no_stream()

    @where_it_streams
    @all_or_nothing
    def partial_fit(self, X, y, classes=None):
        """Learn from further rows, in one pass, without keeping them (Csato and Opper 2002).

        ``classes`` are all the labels there may be, for the first call; None takes those in y. That learns the
        parameters of the kernel as ``fit`` does, and later calls take rows in, as those of
        `GaussianProcessRegressor.partial_fit` do. Labels of two classes are replaced by measurements that match the
        moments of the function (expectation propagation, a hundred rows at a time), those of more by the variational
        bound, with functions of different classes independent.
        """
        self._check_stream()
        self._check_settings()
        self._refuse_chunks(X)
        if not hasattr(self, "posterior_"):
            given = np.asarray(y if classes is None else classes)
            self._check_labels(given, len(given))
            known, y = self.classes_, np.asarray(y)
            self._codes_of(y, count_rows(X))
            return self._begin(X, y, known)
        checked = self._check_inputs(X, reset=False)
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise DataError(f"classes must be those of the first call, {self.classes_.tolist()}.")
        codes = self._codes_of(y, count_rows(checked))
        if not self._streams():
            X_fit, codes_fit, self._early = self.X_fit_, self.codes_, None
            self._start(X_fit)
            self._take_in(X_fit, codes_fit)
        early = self._with_early(X, np.asarray(y))
        if early is not None:
            return self._begin(*early, self.classes_)
        self._take_in(checked, codes)
        return self

    def _begin(self, X, y, classes):
        some, others = self._some(len(y))
        few = take_rows(X, some)
        if len(np.unique(y[some])) > 1:
            self.fit(few, y[some])
            checked = self._check_inputs(few, reset=False)
        else:  # nothing to learn parameters from yet
            checked = self._check_inputs(few, reset=True)
            kernel = self.kernel
            if kernel is None:
                rows = checked if self._mixed() else self._check_vectors(checked)
                kernel = default_kernel(rows, self.columns_, one_each=False)
            self.kernel_ = as_covariance(kernel, "a Gaussian process", self.allow_invalid, checked)
            self._without_learning()
        self.classes_ = classes
        self._learned_from = len(y) if len(np.unique(y[some])) > 1 else 0
        self._early = (X, y) if len(y) < EARLY_ROWS else None
        self._start(checked)
        self._take_in(checked, self._codes_of(y[some], len(some)))
        if len(others):
            self._take_in(self._check_inputs(take_rows(X, others), reset=False), self._codes_of(y[others], len(others)))
        return self

    def _without_learning(self):
        self.theta_, self.parameter_names_ = np.asarray(to_free(self.kernel_)), free_names(self.kernel_)
        self.history_, self.optima_, self.n_evaluations_ = [], [], 0
        self.theta_posterior_, self.priors_ = None, None
        self.solver_, self._jitter = Dense(), 0.0

    def _class_counts(self) -> np.ndarray:
        """Number of rows of each class."""
        return self.posterior_.counts if self._streams() else np.bincount(self.codes_, minlength=len(self.classes_))

    def _start(self, X):
        self.posterior_ = CenterLabels.started(self.kernel_, X, len(self.classes_), self.link)

    def _take_in(self, X, codes):
        self.posterior_ = self.posterior_.absorbed(X, codes, self.budget)
        self.inference_ = "ep" if len(self.classes_) == 2 else "variational"
        self.numerics_, self.log_marginal_likelihood_ = self.posterior_.numerics(), self.posterior_.evidence
        self.codes_, self.X_fit_ = np.empty(0, dtype=int), self.posterior_.X
        self.weights_ = np.stack(self.posterior_.coefficients)
        gram.keep(self, gram.Gram(self.kernel_, self.X_fit_))

    def _training_targets(self) -> np.ndarray:
        return self.codes_
