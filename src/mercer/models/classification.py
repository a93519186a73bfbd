"""Gaussian process classification of two or more classes, with interchangeable inference methods."""

import copy
import dataclasses
import warnings
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.errors import InterruptedFitWarning, NotPositiveDefiniteError, NumericalWarning, ParameterError
from mercer.core.inputs import copy_rows, count_rows, take_rows
from mercer.core.machine import at_most
from mercer.core.random import generator, seed_of
from mercer.gp.likelihood import LINKS
from mercer.gp.model import Model
from mercer.gp.noise import CommonNoise
from mercer.inference.base import INFERENCES, Inference, Labels, latent_covariances, named
from mercer.inference.methods import automatic, most_accurate
from mercer.inference.sampling.draws import Draws
from mercer.inference.variational import BOUNDS
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_covariance
from mercer.learning.choice import quoted
from mercer.learning.classification import LabelLearner, LearnedLabels, log_scores
from mercer.learning.climb import METHODS
from mercer.learning.columns import default_kernel
from mercer.learning.doubt import ThetaPosterior
from mercer.learning.integrate import INTEGRATED, USE_PRIORS, expected_evaluations
from mercer.learning.label_evidence import LabelObjective
from mercer.learning.plan import Plan, plan_of, planned
from mercer.learning.progress import Progress, announce
from mercer.learning.state import Journal
from mercer.models.doubt import (
    StatedPrior,
    about_doubt,
    average_classes_over_parameters,
    parameter_table,
    stated_priors,
)
from mercer.models.estimator import all_or_nothing
from mercer.models.minibatch import InferredLabels, labels_in_batches
from mercer.models.online import LabelStream
from mercer.models.records import (
    BEGUN_WITH,
    NOT_INTEGRATED,
    recorded,
    restored_after_interruption,
    warn_of_interruption,
    warn_of_model,
)
from mercer.models.relevance import Relevance, relevance
from mercer.scores import LeaveOneOut
from mercer.solvers import base as solvers
from mercer.solvers.auto import Budget
from mercer.solvers.dense import Dense

LEARNING = ("mle", *USE_PRIORS, "sample", None)
MIN_LATENT_VARIANCE = 2.5e-3  # smaller latent functions change probabilities by about a hundredth at most


class GaussianProcessClassifier(LabelStream):
    """Gaussian process classification (PRML 6.4.5, 6.4.6).

    Two classes have one latent function f, with p(second of ``classes_`` | f) = sigmoid(f). More than two have one
    latent function each, and p(class c | f) is their softmax: one joint model.

    Parameters
    ----------
    kernel : covariance of the latent function; for more than two classes a list gives one per class. None is the
        standard kernel (PRML 6.72) on centred and scaled inputs, with one lengthscale per input (ARD) if that raises
        the evidence by more than ln(n) / 2 for each of them (and, with more than two classes, predicts held-out labels
        better), otherwise with one for all inputs. Columns of categories and text have kernels of their own, as for
        `GaussianProcessRegressor` (``columns_``).
    inference : "auto" takes "ep" for two classes, "variational" for more, and "laplace", with a warning, if classes
        times rows cubed exceed 7 x 2500^3 (``inference_``). "laplace", a Gaussian at the mode of the posterior, is the
        fastest, but underconfident when classes are well separated; "ep", expectation propagation, matches moments
        (two classes); "variational" maximises a tight lower bound on the evidence; "mcmc" samples the posterior. With
        more than two classes, Laplace's approximation holds for small latent functions only, so variances are learned
        up to a limit of 100, 30, 10, 3 or 1, whichever predicts left-out labels best.
    link : "logistic", or "probit" (two classes).
    learning : "mle" maximises the approximate evidence; "map" the evidence times the priors of the kernel, weak ones
        where none is given (``priors_``); "laplace" and "nuts" average probabilities over the parameters' posterior, as
        for `GaussianProcessRegressor` (``theta_posterior_``); None keeps every parameter as given. "mcmc" learns by
        expectation propagation. With more than two classes all learn by Laplace's evidence, "laplace" from all rows,
        the others from a few hundred; the others then multiply the variances, which the evidence makes too small, by
        the power of three that predicts held-out labels best. "sample", for "mcmc", samples the parameters too, under
        the priors of the kernel, or log-normal priors of log standard deviation two around the values given.
    solver : representation of latent covariances, as for `GaussianProcessRegressor`: "dense", the n x n matrix;
        "weights", features of the kernel, if these are few: fewer than rows, or for C > 2 classes than rows / sqrt(C).
    bound : for "variational": "gaussian" is the best Gaussian posterior; "local" bounds each logistic sigmoid
        (PRML 10.144; Gibbs and MacKay 2000), looser and simpler (two classes, logistic).
    n_restarts : number of further optimisations, from random points around the first start (``optima_``).
    n_samples : for "mcmc" and "nuts", over four chains, each after 200 warm-up moves (400 for "sample").
    random_state : seed of restarts, subsets and samples. None means 0, so that equal data give equal models.
    optimizer, max_iterations, progress, checkpoint, allow_invalid, budget, max_memory, max_seconds : as for
        `GaussianProcessRegressor`.

    Fitted: ``classes_``; ``kernel_`` (``kernels_`` if each class has one); ``solver_``; ``log_marginal_likelihood_``;
    ``history_``; ``optima_``; ``theta_``; ``numerics_`` (iterations of inference, during the best optimisation and
    after it, and whether it converged; with "mcmc" effective sample sizes); ``posterior_``; ``weights_`` a of the
    latent means k(x, X) a. With "mcmc" evidence and weights are those of the approximation used in learning, at the
    mean of the sampled parameters.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = GaussianProcessClassifier().fit(X, np.where(np.abs(X[:, 0]) < 1, "inside", "outside"))
    >>> model.predict([[0.1], [2.5]]), bool(model.predict_proba([[0.1]])[0, 0] > 0.8)
    (array(['inside', 'outside'], dtype='<U7'), True)
    """

    theta_posterior_: ThetaPosterior | None = None  # unless parameters were integrated over
    priors_: dict[str, StatedPrior] | None = None  # where they counted

    def __init__(
        self, kernel=None, inference="auto", link="logistic", learning="mle", random_state=None, *,
        solver="auto", bound="gaussian", n_restarts=0, n_samples=1000, optimizer="lbfgs", max_iterations=200,
        progress=True, checkpoint=None, allow_invalid=False, budget=300, max_memory=None, max_seconds=600,
    ):  # fmt: skip
        self.kernel = kernel
        self.inference = inference
        self.link = link
        self.learning = learning
        self.random_state = random_state
        self.solver = solver
        self.bound = bound
        self.n_restarts = n_restarts
        self.n_samples = n_samples
        self.optimizer = optimizer
        self.max_iterations = max_iterations
        self.progress = progress
        self.checkpoint = checkpoint
        self.allow_invalid = allow_invalid
        self.budget = budget
        self.max_memory = max_memory
        self.max_seconds = max_seconds

    # -- fitting -----------------------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(self, X, y=None, **refused):
        """Learn the parameters and infer the posterior. Ctrl-C keeps the best parameters found so far, or the samples
        drawn; if there are none yet, it ends the fit and restores the model's former state."""
        given = [name for name, value in refused.items() if value is not None]
        if given:
            raise ParameterError(
                f"fit takes X and y; {', '.join(given)} is not supported, since a power of a label's probability is "
                "not a likelihood. Repeat rows, or weight the predicted probabilities by the costs of mistakes."
            )
        self._check_settings()
        X = self._check_inputs(X, reset=True)
        n = count_rows(X)
        codes = self._check_labels(y, n)
        self._check_combination(len(self.classes_))
        self.inference_ = automatic(n, len(self.classes_)) if self.inference == "auto" else self.inference
        inference = self._inference()
        kernels = self._kernels_for(X)
        warn_of_model(self, kernels, X, unknown_mean=False)
        rows = gram.Gram(gram.together(kernels), copy_rows(X))
        self.solver_, self.plan_ = self._planned(kernels, rows, begun=True)
        self.plan_.check()
        if self.progress and self.plan_.noteworthy:
            announce(self.plan_.line)
        if self.solver_.in_batches:
            self._check_batches()
            inference = self._inference(most_accurate(len(self.classes_)))  # of the rows that are learned from first
            self.inference_ = "variational"
        if self.inference == "auto" and self.inference_ == "laplace":
            warnings.warn(
                f"{n:,} rows of {len(self.classes_)} classes are many: inference='auto' uses Laplace's method, "
                "which is underconfident when classes are well separated. For better probabilities use a random "
                f"subset of the rows, or the slower inference={most_accurate(len(self.classes_))!r}.",
                NumericalWarning,
                stacklevel=3,
            )
        objective, found, learner = LabelObjective(kernels, rows, codes, inference, solver=self.solver_), None, None
        settings = self._settings(self.plan_)
        seed, journal = seed_of(self.random_state), Journal()
        if self.learning in ("mle", *USE_PRIORS) and objective.size:
            default, use_priors = self.kernel is None, self.learning in USE_PRIORS
            each = default_kernel(X, self.columns_) if default else None
            options = inference, self.learning, seed, self.optimizer, self.n_restarts
            journal = self._journal((X, codes), (default, kernels), *options)
            learner = LabelLearner(
                inference, settings, seed, default_kernel=default, each=each, use_priors=use_priors,
                jacobian=self.learning in INTEGRATED, journal=journal,
            )  # fmt: skip
        if self.solver_.in_batches:
            learn = None if learner is None else lambda some, labels: learner(kernels, some, labels, Dense())
            solver: Any = self.solver_
            one = labels_in_batches(solver, kernels[0], rows, codes, inference, learn, settings, seed, journal)
            self._set_in_batches(one, rows)
            return self
        if learner is not None:
            found = learner(kernels, rows, codes, self.solver_)
            objective = found.objective
            if found.learned.interrupted:
                self._warn_of_interruption(found.learned.evaluations, 3, settings)
        self._set_fitted(inference, objective, found)
        if found is not None and self.learning in INTEGRATED and not found.learned.interrupted:
            with restored_after_interruption(self, NOT_INTEGRATED, 3, settings):
                averaged = average_classes_over_parameters(self, inference, objective, found, seed, settings)
                if averaged is not None:
                    self.theta_posterior_, self.posterior_ = averaged
                    self.n_evaluations_ += averaged.theta.evaluations
        return self

    def _set_fitted(self, inference: Inference, objective: LabelObjective, learning: LearnedLabels | None):
        """Set all fitted attributes from the optimum, or from samples."""
        learned = learning and learning.learned
        last = learning and learning.last
        self.X_fit_, self.codes_ = objective.X.X, objective.codes
        gram.keep(self, objective.X)
        self._jitter = 0.0 if learned is None else learned.jitter
        theta, kernels = objective.start(), objective.kernels  # exactly as given, without rounding by logarithms
        if learning is not None:
            theta = learning.theta
            kernels = list(objective.at(theta).kernels)
        draws = self._draws(inference, kernels, objective.X) if inference.samples else None
        if draws is not None and draws.theta is not None:
            theta = draws.theta.mean(axis=0)
            kernels = list(objective.at(theta).kernels)
        for stale in ("kernel_", "kernels_"):  # of an earlier fit
            self.__dict__.pop(stale, None)
        if len(kernels) == 1:
            self.kernel_ = kernels[0]
        else:
            self.kernels_ = kernels
        self.theta_, self.parameter_names_ = theta, objective.names()
        start = last and last.approximation
        covariances = last and last.covariances(theta, self._jitter)
        if covariances is None:
            covariances = latent_covariances(self.solver_.latent, kernels, objective.X, self._jitter)
        found = inference(covariances, self.codes_, start, gradient=False)
        if found is None:
            raise _not_positive_semidefinite(len(self.codes_))
        self.log_marginal_likelihood_, self.weights_ = float(found.log_evidence), np.atleast_2d(found.a)
        self.posterior_ = inference.posterior(found, list(kernels), self.X_fit_, self.codes_, self._jitter, draws)
        self.numerics_ = self.posterior_.numerics()
        if last is not None:
            self.numerics_["iterations_in_learning"] = last.iterations
        self.history_, self.optima_ = recorded(learned, objective.parameters)
        self.n_evaluations_ = 0 if learned is None else learned.evaluations
        self.theta_posterior_ = None
        self.priors_ = stated_priors(objective) if objective.use_priors and learned is not None else None
        if not self.numerics_["converged"]:
            if draws is None:
                problem = f"did not converge in {self.numerics_['iterations']} iterations"
                remedy = "inputs on a common scale, or a kernel of smaller variance"
            else:
                worst = max(self.numerics_["rhat"], self.numerics_.get("rhat_parameters", 0.0))
                problem = f"did not mix: chains disagree (R-hat {worst:.2f})"
                remedy = "a larger n_samples"
            text = f"{self.inference_} inference {problem}; probabilities may be inaccurate. Try {remedy}."
            warnings.warn(text, NumericalWarning, stacklevel=4)

    def log_marginal_likelihood(self, theta=None, eval_gradient=False):
        """As for every Gaussian process; of a solver in batches at ``theta_`` only, where its bound was found."""
        solver = self._solver()
        if solver.in_batches and (theta is not None or eval_gradient):
            raise ParameterError(
                f"solver={solver.name!r} finds its bound at theta_ only; for other values fit with learning=None."
            )
        return super().log_marginal_likelihood(theta, eval_gradient)

    def _check_batches(self):
        if self.inference not in ("auto", "variational") or self.learning not in ("mle", "map", None):
            raise ParameterError(
                f"solver={self.solver_.name!r} maximises a variational bound: leave inference='auto', and take "
                f"learning='mle', 'map' or None; got {self.inference!r} and {self.learning!r}."
            )
        if isinstance(self.kernel, list | tuple) and len(self.kernel) > 1:
            raise ParameterError(f"solver={self.solver_.name!r} takes one kernel for all classes.")

    def _set_in_batches(self, found: InferredLabels, rows: gram.Gram):
        """Set all fitted attributes from stochastic variational inference."""
        self.X_fit_, self.codes_, self._jitter = rows.X, found.objective.codes, 0.0
        gram.keep(self, rows)
        self.__dict__.pop("kernels_", None)
        self.kernel_, self.posterior_ = found.kernel, found.posterior
        self.theta_, self.parameter_names_ = found.theta, found.objective.names()
        self.log_marginal_likelihood_, self.weights_ = found.posterior.evidence, np.stack(found.posterior.coefficients)
        self.numerics_, self.theta_posterior_ = found.numerics, None
        self.history_, self.optima_ = recorded(found.learned, found.objective.parameters)
        self.n_evaluations_ = 0 if found.learned is None else found.learned.evaluations
        self.priors_ = None
        if found.learned is not None and found.learned.interrupted:
            warn_of_interruption(found.learned.evaluations, stacklevel=5)

    def _inference(self, name=None) -> Inference:
        bound = "gaussian" if self.inference == "auto" else self.bound
        settings = {"classes": len(self.classes_), "link": self.link, "bound": bound, "n_samples": self.n_samples}
        return named(name or self.inference_, **settings)

    def _draws(self, inference: Inference, kernels, X) -> Draws:
        """Samples of the latent functions, and of the parameters if ``learning`` is "sample"."""
        progress, rng = Progress(shown=bool(self.progress)), generator(self.random_state)
        try:
            spaces = [self.solver_.latent(kernel, X) for kernel in kernels]
            draws = inference.sample(spaces, list(kernels), self.codes_, self.learning == "sample", rng, progress)
        finally:
            progress.close()
        if draws is None:
            raise _not_positive_semidefinite(len(self.codes_))
        if draws.interrupted:
            warnings.warn(
                f"sampling was interrupted: the model has the {len(draws.latents)} samples drawn so far.",
                InterruptedFitWarning,
                stacklevel=6,
            )
        return draws

    def _solver(self) -> solvers.Solver:
        """``solver_``; models stored before it existed are dense."""
        return vars(self).get("solver_") or Dense()

    def plan(self, X, y=None) -> Plan:
        """The solver for a fit to these rows, the memory and time it is expected to take here, why, and what other
        solvers would take. ``y``: labels; without them, two classes."""
        self._check_settings()
        new = copy.copy(self)
        X = new._check_inputs(X, reset=True)
        if y is None:
            new.classes_ = np.arange(2)
        else:
            new._check_labels(y, count_rows(X))
        kernels = new._kernels_for(X)
        return new._planned(kernels, gram.Gram(gram.together(kernels), X))[1]

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self):
        choices = {"inference": ("auto", *INFERENCES), "link": tuple(LINKS), "learning": LEARNING,
                   "bound": tuple(BOUNDS), "optimizer": tuple(METHODS)}  # fmt: skip
        self._check_learning(choices, {"n_restarts": 0, "max_iterations": 1, "n_samples": 10})

    def _check_combination(self, C):
        inference = self._inference(most_accurate(C) if self.inference == "auto" else self.inference)
        refusal = inference.refusal()
        if refusal is not None:
            raise ParameterError(refusal)
        if self.learning == "sample" and (not inference.samples or isinstance(self.kernel, list | tuple)):
            raise ParameterError("learning='sample' needs inference='mcmc' and one kernel for all classes.")
        if self.learning in INTEGRATED and inference.samples:
            raise ParameterError(
                f"learning={self.learning!r} averages over approximate posteriors, inference='mcmc' samples latent "
                "functions: take learning='sample' to sample both, or another inference."
            )
        if isinstance(self.kernel, list | tuple) and len(self.kernel) != (C if C > 2 else 1):
            raise ParameterError(
                f"y has {C} classes; give one kernel{f', or a list of {C}' if C > 2 else ''}; got {len(self.kernel)}."
            )

    def _kernels_for(self, X) -> list:
        if self.kernel is None:
            return [default_kernel(X if self._mixed() else self._check_vectors(X), self.columns_, one_each=False)]
        given = self.kernel if isinstance(self.kernel, list | tuple) else [self.kernel]
        return [as_covariance(kernel, "a Gaussian process", self.allow_invalid, X) for kernel in given]

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict_latent(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function (PRML 6.87, 6.88): (s,), (s,); for more than two classes (s, C)
        each."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        return self.posterior_.moments(X)

    def predict_proba(self, X, closed_form: bool = False) -> np.ndarray:
        """Probabilities of ``classes_``: (s, C). The integral (PRML 6.76) is by quadrature, or with ``closed_form`` by
        MacKay's approximation (PRML 4.153), for two classes and a Gaussian posterior."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        integral = self.posterior_.closed_form if closed_form else self.posterior_.class_probabilities
        return integral(X, self._inference().likelihood)

    def predict_log_proba(self, X) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X) -> np.ndarray:
        """Log odds of the second class, (s,); for more than two classes ln p of each, (s, C)."""
        L = self.predict_log_proba(X)
        return L[:, 1] - L[:, 0] if len(self.classes_) == 2 else L

    def predict(self, X) -> np.ndarray:
        """The most probable class of each row."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        return self.classes_[self.posterior_.most_probable(X, self._inference().likelihood)]

    def log_predictive_density(self, X, y) -> np.ndarray:
        """ln p(y | x, data) of new labels: (s,)."""
        p = self.predict_log_proba(X)
        return p[np.arange(len(p)), self._codes_of(y, len(p))]

    # -- diagnostics -------------------------------------------------------------------------------------------------

    def _objective(self) -> LabelObjective:
        kernels, solver = self._fitted_kernels(), self._solver()
        return LabelObjective(kernels, self._rows(), self.codes_, self._inference(), solver=solver)

    def _rows(self) -> gram.Gram:
        """The training rows, prepared once for all kernels."""
        return gram.kept(self, gram.together(self._fitted_kernels()), self.X_fit_)

    def _model(self) -> Model:
        return self._objective().model

    def _fitted_kernels(self):
        return self.kernels_ if hasattr(self, "kernels_") else [self.kernel_]

    def loo(self) -> LeaveOneOut:
        """Leave-one-out predictions, by removing the site of a row from the approximate posterior.

        Expectation propagation computes these cavity distributions anyway; for Laplace and variational inference the
        other sites are kept, which changes little. Samples of "mcmc" are reweighted.
        """
        self._check_fitted()
        self._refuse_stream()
        posterior: Any = self.posterior_
        if posterior.given is None:  # stored before posteriors knew their labels
            posterior = dataclasses.replace(posterior, given=Labels(self.codes_, self._inference(), self._jitter))
        p = posterior.leave_one_out()
        return LeaveOneOut(probability=p, log_score=log_scores(p, self.codes_))

    def relevance(self) -> Relevance:
        """Relevance of each input: the share of the variance of held-out labels explained through it.

        For "mcmc", which would have to sample again without those rows, by the approximation it starts from.
        """
        self._check_fitted()
        self._refuse_stream()
        X, C = self.X_fit_, len(self.classes_)
        inference = most_accurate(C) if self._inference().samples else self.inference
        kernels = self._fitted_kernels()
        settings = {**self.get_params(deep=False), "inference": inference, "learning": None, "progress": False}
        settings["kernel"] = kernels[0] if len(kernels) == 1 else kernels

        def fitted_to(rows):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericalWarning)  # numerics_ reports convergence
                return type(self)(**settings).fit(take_rows(X, rows), self.codes_[rows]).predict_proba

        kernel = kernels[0] if len(kernels) == 1 else None
        return relevance(X, np.eye(C)[self.codes_], fitted_to, kernel, self.codes_, MIN_LATENT_VARIANCE)

    def _summary(self):
        counts = self._class_counts()
        kernels = (
            {"": self.kernel_} if hasattr(self, "kernel_") else dict(zip(self.classes_, self.kernels_, strict=True))
        )
        numerics = self.numerics_
        status = f"{'' if numerics['converged'] else 'not '}converged in {numerics.get('iterations')} iterations"
        if "draws" in numerics:
            effective, rhat = numerics["effective_draws"], numerics["rhat"]
            status = f"{numerics['draws']:,} samples, at least {effective:,.0f} effective, R-hat at most {rhat:.3f}"
        lines = [
            f"{type(self).__name__}, fitted to {self._row_count():,} rows",
            *self._about_columns(),
            "classes: " + ", ".join(f"{label} ({count})" for label, count in zip(self.classes_, counts, strict=True)),
            *(f"kernel{f' of {label}' if label else ''}: {quoted(kernel)!r}" for label, kernel in kernels.items()),
            f"inference: {self.inference_}, {status}",
            f"log evidence: {self.log_marginal_likelihood_:.2f}",
            *about_doubt(self),
            "",
            parameter_table(self, self._model(), list(self.classes_)),
        ]
        return "\n".join(lines)

    def _planned(self, kernels: list[Kernel], rows: gram.Gram, begun: bool = False) -> tuple[solvers.Solver, Plan]:
        """The solver for these classes, and the plan of a fit by it. ``begun``: take the one that the checkpoint was
        begun with."""
        C, n = len(self.classes_), count_rows(rows)
        method = automatic(n, C) if self.inference == "auto" else self.inference
        matrices = 4 if C == 2 else len(kernels) + C + 3  # that a fit holds
        free = sum(to_free(kernel).size for kernel in kernels)
        climbs = 0 if self.learning is None or not free else 1 + self.n_restarts
        further = expected_evaluations(self.learning, free, self.n_samples)
        with at_most(self.max_memory):
            work, copies = INFERENCES[method].work * C, matrices / 2
            budget = Budget.of(self.max_memory, self.max_seconds, climbs, further, work, copies)
            before = self._begun_with(kernels, rows, CommonNoise(1.0)) if begun else None
            if before is None:
                return self._planned_within(kernels, rows, budget)
            found, plan = planned(
                before, kernels[0], rows, CommonNoise(1.0), budget, self.max_memory is not None, solvers.LABELS
            )
            return found, dataclasses.replace(plan, why=BEGUN_WITH)

    def _planned_within(self, kernels: list[Kernel], rows: gram.Gram, budget: Budget) -> tuple[solvers.Solver, Plan]:
        local = self.inference == "variational" and self.bound == "local"
        bounded = self.inference in ("auto", "variational") and self.learning in ("mle", "map", None) and not local
        found = solvers.latent_choice(self.solver, kernels, rows, len(self.classes_), budget, bounded)
        return found.chosen.solver, plan_of(found, kernels[0], rows, budget, self.max_memory is not None)


def _not_positive_semidefinite(n: int) -> NotPositiveDefiniteError:
    return NotPositiveDefiniteError(
        f"the covariance of these {n} rows is not positive semidefinite. Check the kernel with "
        "mercer.check_kernel(kernel, X)."
    )
