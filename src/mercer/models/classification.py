"""Gaussian process classification: probabilities to trust, two classes or many, the inference swapped by one word."""

import copy
import math
import warnings

import numpy as np

from mercer.core.coordinates import to_free
from mercer.core.errors import (
    InterruptedFitWarning,
    NotPositiveDefiniteError,
    NumericalWarning,
    ParameterError,
)
from mercer.core.inputs import count_rows, take_rows
from mercer.core.machine import require_memory
from mercer.core.random import generator, seed_of
from mercer.core.text import number, rounded, table
from mercer.gp.likelihood import LINKS
from mercer.gp.noise import CommonNoise
from mercer.inference.base import INFERENCES, Inference, named
from mercer.inference.methods import automatic, most_accurate
from mercer.inference.sampling.draws import Draws
from mercer.inference.sites import LatentCovariance
from mercer.inference.variational import BOUNDS
from mercer.kernels.convert import as_covariance
from mercer.learning import heuristics
from mercer.learning.checkpoint import check_path, resumed
from mercer.learning.classification import LabelLearner, LearnedLabels, log_scores
from mercer.learning.climb import METHODS
from mercer.learning.label_evidence import LabelObjective
from mercer.learning.optimise import Settings
from mercer.learning.progress import Progress
from mercer.models.estimator import Classifier, wholly
from mercer.models.records import Found, Iteration, quoted, reported, warn_of_interruption, warn_of_model
from mercer.models.relevance import Relevance, relevance
from mercer.scores import LeaveOneOut
from mercer.solvers import base as solvers
from mercer.solvers.dense import Dense

LEARNING = ("mle", "map", "sample", None)
MIN_LATENT_VARIANCE = 2.5e-3  # below it a latent function moves no probability by more than a hundredth or so


class GaussianProcessClassifier(Classifier):
    """Classification by a Gaussian process seen through a sigmoid (PRML 6.4.5, 6.4.6).

    Two classes have one latent function f, with p(second of ``classes_`` | f) = sigmoid(f). More than two have one
    function each, and p(class c | f) is the c-th softmax of them: one joint model.

    Parameters
    ----------
    kernel : the covariance of the latent function(s); for more than two classes a list gives one to each. None is the
        standard kernel (PRML 6.72) on centred and scaled inputs: with a lengthscale for each input (ARD) where that
        raises the evidence by more than ln(n) / 2 for each of them (and, of more than two classes, predicts held out
        labels better), and one for all inputs otherwise.
    inference : "auto" takes "ep" for two classes, "variational" for more, and "laplace", with a warning, where classes
        times rows cubed exceed 7 x 2500^3; ``inference_`` tells which. "laplace", a Gaussian at the mode of the
        posterior, is the fastest, and never sure where classes are well apart; "ep", expectation propagation, a
        Gaussian with its moments (two classes); "variational", a Gaussian with a good lower bound on the evidence;
        "mcmc", samples of the posterior. With more than two classes, Laplace holds for small latent functions only,
        so the terms of the kernel are learned up to a variance, of 100, 30, 10, 3 and 1 the one that predicts labels
        left out best.
    link : "logistic", or "probit" (two classes).
    learning : "mle" maximises the approximate evidence; "map" the evidence times the priors that the kernel carries;
        None keeps every parameter as it is. "mcmc" learns by expectation propagation. With more than two classes all
        learn by Laplace's evidence, "laplace" from all rows, the others from a few hundred; these then multiply the
        variances by a power of three, the one that predicts held out labels best: evidences ask for too small ones.
        With "sample", "mcmc" samples the parameters too, under the priors the kernel carries and, where it has none,
        normal ones on logarithms, two wide, around the values given.
    solver : how covariances of the latent function are represented, as for `GaussianProcessRegressor`: "dense", a
        matrix of all rows; "weights", features of the kernel, where these are few. Inference for more than two classes
        and samples need the matrix, whatever the solver.
    bound : for "variational": "gaussian" is the best Gaussian posterior; "local" the bound on each logistic sigmoid
        (PRML 10.144; Gibbs and MacKay 2000), looser and simpler (two classes, logistic).
    n_restarts : how many more climbs begin at random places around the first start. ``optima_`` has what all found.
    n_samples : of "mcmc", in four chains, each after 200 moves to warm up, 400 where parameters are sampled too.
    random_state : seed of restarts, subsets and samples. None is 0: the same data, the same model.
    optimizer, max_iterations, progress, checkpoint, allow_invalid : as for `GaussianProcessRegressor`.

    Fitted: ``classes_``; ``kernel_`` (``kernels_``, where each class has one); ``solver_``;
    ``log_marginal_likelihood_``; ``history_``; ``optima_``; ``theta_``; ``numerics_`` (iterations of inference, in the
    climb that found the optimum and after it, and whether it converged; with "mcmc" effective sample sizes);
    ``posterior_``; ``weights_`` a of the latent means k(x, X) a. With "mcmc" evidence and weights are those of the
    approximation that learns, at the mean of sampled parameters.

    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 40)[:, None]
    >>> model = GaussianProcessClassifier().fit(X, np.where(np.abs(X[:, 0]) < 1, "inside", "outside"))
    >>> model.predict([[0.1], [2.5]]), bool(model.predict_proba([[0.1]])[0, 0] > 0.8)
    (array(['inside', 'outside'], dtype='<U7'), True)
    """

    def __init__(
        self, kernel=None, inference="auto", link="logistic", learning="mle", random_state=None, *,
        solver="auto", bound="gaussian", n_restarts=0, n_samples=1000, optimizer="lbfgs", max_iterations=200,
        progress=True, checkpoint=None, allow_invalid=False,
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

    # -- fitting -----------------------------------------------------------------------------------------------------

    @wholly
    def fit(self, X, y, **refused):
        """Learn the parameters and infer the posterior. Ctrl-C keeps the best parameters found so far, or the draws
        taken; before there are any, it ends the fit and leaves the model as it was."""
        asked = [name for name, value in refused.items() if value is not None]
        if asked:
            raise ParameterError(
                f"fit takes X and y; {', '.join(asked)} is not honoured: a label to a power is not a label. Repeat "
                "rows, or weigh the probabilities by what mistakes cost."
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
        self.solver_ = self._solver_for(kernels, X, inference)
        size = math.prod(self.solver_.cost(kernels[0], X).matrix)
        require_memory(
            8 * size * self._matrices(len(kernels)), f"a Gaussian process classifier of {n:,} rows",
            "Use fewer rows, a random subset of them, say, or a larger machine.",
        )  # fmt: skip
        if self.inference == "auto" and self.inference_ == "laplace":
            warnings.warn(
                f"{n:,} rows of {len(self.classes_)} classes are many: inference='auto' takes Laplace's method, whose "
                "probabilities are too cautious where classes are well apart. A random subset of the rows, or "
                f"inference={most_accurate(len(self.classes_))!r} and patience, has better ones.",
                NumericalWarning,
                stacklevel=3,
            )
        objective, found = LabelObjective(kernels, X, codes, inference, solver=self.solver_), None
        if self.learning in ("mle", "map") and objective.size:
            settings = Settings(self.optimizer, self.n_restarts, self.max_iterations, bool(self.progress))
            default, use_priors, seed = self.kernel is None, self.learning == "map", seed_of(self.random_state)
            given = inference, self.solver_, self.learning, seed, self.optimizer, self.n_restarts
            journal = resumed(self.checkpoint, {"data": (X, codes), "kernel": (default, kernels), "settings": given})
            learner = LabelLearner(
                inference, settings, seed, default_kernel=default, use_priors=use_priors, journal=journal
            )
            found = learner(kernels, X, codes, self.solver_)
            objective = found.objective
            if found.learned.interrupted:
                warn_of_interruption(found.learned.evaluations, stacklevel=4)
        self._keep(inference, objective, found)
        return self

    def _keep(self, inference: Inference, objective: LabelObjective, learning: LearnedLabels | None):
        """Everything a fitted model has, from the optimum, or from draws."""
        learned = learning and learning.learned
        last = learning and learning.last
        self.X_fit_, self.codes_ = copy.deepcopy(objective.X), objective.codes
        self._jitter = 0.0 if learned is None else learned.jitter
        theta, kernels = objective.start(), objective.kernels  # as given: not through logarithms and back
        if learning is not None:
            theta = learning.theta
            kernels = objective.at(theta)
        draws = self._draws(inference, kernels) if inference.samples else None
        if draws is not None and draws.theta is not None:
            theta = draws.theta.mean(axis=0)
            kernels = objective.at(theta)
        for earlier in ("kernel_", "kernels_"):  # of another fit
            self.__dict__.pop(earlier, None)
        if len(kernels) == 1:
            self.kernel_ = kernels[0]
        else:
            self.kernels_ = kernels
        self.theta_, self.parameter_names_ = theta, objective.names()
        start = last and last.approximation
        found = inference(self._covariances(kernels), self.codes_, start, gradient=False)
        if found is None:
            raise _no_covariance(len(self.codes_))
        self.log_marginal_likelihood_, self.weights_ = float(found.log_evidence), np.atleast_2d(found.a)
        self.posterior_, self.numerics_ = inference.posterior(found, list(kernels), self.X_fit_, draws)
        self.numerics_["jitter"] = self._jitter
        if last is not None:
            self.numerics_["iterations_in_learning"] = last.iterations
        steps, optima = ([], []) if learned is None else (learned.history, learned.optima)
        self.history_ = [Iteration(float(s.value), objective.parameters(s.theta), s.rows) for s in steps]
        self.optima_ = [
            Found(float(o.value), objective.parameters(o.theta), o.start, o.converged, o.times_found) for o in optima
        ]
        self.n_evaluations_ = 0 if learned is None else learned.evaluations
        if not self.numerics_["converged"]:
            if draws is None:
                went = f"did not converge in {self.numerics_['iterations']} iterations"
                remedy = "inputs on a common scale, or a kernel of smaller variance"
            else:
                worst = max(self.numerics_["rhat"], self.numerics_.get("rhat_parameters", 0.0))
                went = f"has chains that did not meet (R-hat {worst:.2f})"
                remedy = "a larger n_samples"
            text = f"{self.inference_} inference {went}; probabilities may be off. Try {remedy}."
            warnings.warn(text, NumericalWarning, stacklevel=4)

    def _inference(self, name=None) -> Inference:
        bound = "gaussian" if self.inference == "auto" else self.bound
        settings = {"classes": len(self.classes_), "link": self.link, "bound": bound, "n_samples": self.n_samples}
        return named(name or self.inference_, **settings)

    def _draws(self, inference: Inference, kernels) -> Draws:
        """Of the latent functions, and of the parameters if they are to be sampled."""
        progress, rng = Progress(shown=bool(self.progress)), generator(self.random_state)
        try:
            draws = inference.sample(kernels, self.X_fit_, self.codes_, self.learning == "sample", rng, progress)
        finally:
            progress.close()
        if draws is None:
            raise _no_covariance(len(self.codes_))
        if draws.interrupted:
            warnings.warn(
                f"sampling was interrupted: the model has the {len(draws.latents)} draws taken until then.",
                InterruptedFitWarning,
                stacklevel=6,
            )
        return draws

    def _covariances(self, kernels) -> list[LatentCovariance]:
        found = []
        for kernel in kernels:
            with self._solver().latent(kernel, self.X_fit_) as space:
                found.append(space.at(np.asarray(to_free(kernel)), self._jitter, accurate=True))
        return found

    def _solver_for(self, kernels, X, inference: Inference) -> solvers.Solver:
        """As asked for; of its own accord another than dense only where inference does not need the whole matrix."""
        if self.solver == "auto" and (inference.classes > 2 or inference.samples):
            return Dense()
        found = [solvers.resolve(self.solver, kernel, X, CommonNoise(1.0)) for kernel in kernels]
        return found[0] if len(set(found)) == 1 else Dense()

    def _solver(self) -> solvers.Solver:
        """Models stored before there was a choice are dense."""
        return vars(self).get("solver_") or Dense()

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self):
        if not isinstance(self.solver, str) or self.solver != "auto":
            solvers.checked(self.solver)
        allowed = {"inference": ("auto", *INFERENCES), "link": tuple(LINKS), "learning": LEARNING,
                   "bound": tuple(BOUNDS), "optimizer": tuple(METHODS)}  # fmt: skip
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ParameterError(
                    f"{name} must be one of {', '.join(map(repr, values))}; got {getattr(self, name)!r}."
                )
        for name, least in (("n_restarts", 0), ("max_iterations", 1), ("n_samples", 10)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise ParameterError(f"{name} must be an integer of at least {least}; got {value!r}.")
        check_path(self.checkpoint)

    def _check_combination(self, C):
        inference = self._inference(most_accurate(C) if self.inference == "auto" else self.inference)
        refusal = inference.refusal()
        if refusal is not None:
            raise ParameterError(refusal)
        if self.learning == "sample" and (not inference.samples or isinstance(self.kernel, list | tuple)):
            raise ParameterError("learning='sample' is for inference='mcmc' with one kernel for all classes.")
        if isinstance(self.kernel, list | tuple) and len(self.kernel) != (C if C > 2 else 1):
            raise ParameterError(
                f"y has {C} classes; give one kernel{f', or a list of {C}' if C > 2 else ''}; got {len(self.kernel)}."
            )

    def _kernels_for(self, X) -> list:
        if self.kernel is None:
            return [heuristics.standard_kernel(self._check_vectors(X), one_each=False)]
        given = self.kernel if isinstance(self.kernel, list | tuple) else [self.kernel]
        return [as_covariance(kernel, "a Gaussian process", self.allow_invalid) for kernel in given]

    # -- prediction --------------------------------------------------------------------------------------------------

    def predict_latent(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function: (s,), (s,); of all of them, (s, C) each, for more than two classes
        (PRML 6.87, 6.88)."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        return self.posterior_.moments(X)

    def predict_proba(self, X, closed_form: bool = False) -> np.ndarray:
        """Probabilities of ``classes_``: (s, C). The integral (PRML 6.76) is done by quadrature; ``closed_form`` takes
        MacKay's approximation of it (PRML 4.153), for two classes and a Gaussian posterior."""
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

    # -- looking at it -----------------------------------------------------------------------------------------------

    def log_marginal_likelihood(self, theta=None, eval_gradient=False):
        """The approximate ln p(y | theta) at ``theta`` (as ``theta_``), with its gradient if asked for."""
        self._check_fitted()
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_
        theta = self.theta_ if theta is None else np.asarray(theta, dtype=float)
        if theta.shape != self.theta_.shape:
            raise ParameterError(
                f"theta must have {self.theta_.size} entries ({', '.join(self.parameter_names_)}); got {theta.shape}."
            )
        with self._objective().criterion() as value:
            value.jitter = self._jitter
            found = value(theta, gradient=eval_gradient)
        if found is None:
            return (-np.inf, np.zeros(len(theta))) if eval_gradient else -np.inf
        return (found.value, found.gradient) if eval_gradient else found.value

    def _objective(self) -> LabelObjective:
        return LabelObjective(self._fitted_kernels(), self.X_fit_, self.codes_, self._inference())

    def _fitted_kernels(self):
        return self.kernels_ if hasattr(self, "kernels_") else [self.kernel_]

    def loo(self) -> LeaveOneOut:
        """Each label predicted from all the others: the site of a row taken out of the approximate posterior.

        For expectation propagation this is what it computes anyway; for Laplace and variational it leaves the other
        rows' sites as they are, which changes little. Draws are weighted by what the row made of them.
        """
        self._check_fitted()
        covariances = lambda: self._covariances(self._fitted_kernels())
        p = self.posterior_.left_out(covariances, self.codes_, self._inference().likelihood)
        return LeaveOneOut(probability=p, log_score=log_scores(p, self.codes_))

    def relevance(self) -> Relevance:
        """How much each input matters: the share of the variance of the labels explained through it, on rows left out.

        Samples would have to be drawn again without those rows; "mcmc" is judged by the approximation it starts from.
        """
        self._check_fitted()
        X, C = self.X_fit_, len(self.classes_)
        inference = most_accurate(C) if self._inference().samples else self.inference
        kernels = self._fitted_kernels()
        settings = {**self.get_params(deep=False), "inference": inference, "learning": None, "progress": False}
        settings["kernel"] = kernels[0] if len(kernels) == 1 else kernels

        def fitted_to(rows):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericalWarning)  # numerics_ tells how inference went
                return type(self)(**settings).fit(take_rows(X, rows), self.codes_[rows]).predict_proba

        kernel = kernels[0] if len(kernels) == 1 else None
        return relevance(X, np.eye(C)[self.codes_], fitted_to, kernel, groups=self.codes_, least=MIN_LATENT_VARIANCE)

    def report(self, X=None, y=None):
        """A page to read: fit, classes, relevance, calibration of rows left out, optima found, and what looks wrong.
        Rows that were held out from the fit, ``X`` and ``y``, are judged beside them."""
        self._check_fitted()
        return reported(self, X, y)

    def __str__(self):
        if not self.__sklearn_is_fitted__():
            return repr(self)
        counts = np.bincount(self.codes_, minlength=len(self.classes_))
        kernels = (
            {"": self.kernel_} if hasattr(self, "kernel_") else dict(zip(self.classes_, self.kernels_, strict=True))
        )
        numerics = self.numerics_
        went = f"{'' if numerics['converged'] else 'not '}converged in {numerics.get('iterations')} iterations"
        if "draws" in numerics:
            least, rhat = numerics["effective_draws"], numerics["rhat"]
            went = f"{numerics['draws']:,} draws, at least {least:,.0f} effective, R-hat at most {rhat:.3f}"
        rows = [
            [f"{label} {name}".strip(), number(rounded(value))]
            for label, kernel in kernels.items()
            for name, value in kernel.parameters.items()
        ]
        lines = [
            f"{type(self).__name__}, fitted to {len(self.codes_):,} rows",
            "classes: " + ", ".join(f"{label} ({count})" for label, count in zip(self._names(), counts, strict=True)),
            *(f"kernel{f' of {label}' if label else ''}: {quoted(kernel)!r}" for label, kernel in kernels.items()),
            f"inference: {self.inference_}, {went}",
            f"log evidence: {self.log_marginal_likelihood_:.2f}",
            "",
            table(["parameter", "value"], rows),
        ]
        return "\n".join(lines)

    def _names(self) -> list[str]:
        return [str(label) for label in self.classes_]

    def _matrices(self, kernels: int) -> int:
        """How many n x n matrices a fit holds."""
        C = len(self.classes_)
        return 4 if C == 2 else kernels + C + 3


def _no_covariance(n: int) -> NotPositiveDefiniteError:
    return NotPositiveDefiniteError(
        f"the covariance of these {n} rows is not positive semidefinite. Look at the kernel with "
        "mercer.check_kernel(kernel, X)."
    )
