"""Gaussian process regression of several targets that learn from each other: co-kriging."""

import copy
import dataclasses
from typing import Any

import numpy as np

from mercer import basis, gram
from mercer.core.coordinates import free_names, to_free
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_frame, copy_rows, count_rows, is_numeric
from mercer.core.parameters import evolve
from mercer.core.precision import as_float
from mercer.core.random import seed_of
from mercer.distributions import Normal
from mercer.gp.mean import LINEAR, MeanFunction
from mercer.gp.model import Model
from mercer.gp.noise import KernelNoise, LearnedNoise, Noise
from mercer.gp.output_noise import GivenOutputNoise, OutputNoise
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_covariance
from mercer.learning import outputs
from mercer.learning.climb import METHODS, Optimum
from mercer.learning.columns import default_kernel
from mercer.learning.objective import Start
from mercer.learning.optimise import Learned
from mercer.learning.plan import Plan, planned
from mercer.learning.regression import learn_regression, standardised
from mercer.means import Basis
from mercer.models.estimator import all_or_nothing, is_integer
from mercer.models.output_predictions import OutputPredictions
from mercer.models.output_rows import Measurements, all_targets, long_rows, measurements, output_column, split_output
from mercer.models.records import BEGUN_WITH, recorded, warn_of_interruption, warn_of_model
from mercer.priors import Each, Prior, by_entry
from mercer.scores import CALIBRATED_LEVEL, MIN_CALIBRATION_ROWS, unbiased_factor, widening
from mercer.solvers import base as solvers
from mercer.solvers.auto import Budget

LEARNING = ("mle", "map", None)
DEFAULT_RANK = 1  # of a kernel that is given


class MultiOutputGaussianProcessRegressor(OutputPredictions):
    """Gaussian process regression of several targets, each learning from the others: co-kriging (PRML 6.4.2, Ex 6.23).

    The covariance of target p at x and target p' at x' is sum_q k_q(x, x') B_q[p, p'], with B_q = W_q W_q^T +
    diag(kappa_q) learned (`mercer.kernels.Coregionalization`). One term is the intrinsic model of coregionalization,
    several are the linear one. Targets may be measured at different places, and each has a noise variance of its own.

    y has one column for each target, NaN where it was not measured. Or X is a frame with a column ``output`` that names
    the target of each row, and y is a vector: the long form.

    Parameters
    ----------
    kernel : the covariance of the functions that the targets are made of. A kernel of the inputs is one term; a list
        has one term each. An expression with a `Coregionalization` in it is the whole covariance: of rows with the
        number of the target (0, 1, ...) as last column, ``output`` in a frame. None chooses by leave-one-out
        (``choice_``): the smoothness of Matern kernels with one lengthscale for each input, how many terms, and of
        which rank.
    rank : number of functions that the targets share in each term: one number, or one for each kernel of a list. 0
        makes them independent. None is 1 for a kernel that is given.
    noise : noise variances in units of y squared: one number, or one for each target. None learns one for each, no
        smaller than the resolution of that target allows. A prior learns them under that prior with learning="map".
    solver : "auto" takes "grid" from 1,000 measurements on where every target (but few gaps) was measured everywhere
        and there is one term, which costs N^3 + P^3 for N places; "dense", the matrix of all measurements, otherwise.
    learning : "mle" maximises the evidence, "map" the evidence times priors, weak ones where none is given. None keeps
        every parameter as given.
    normalize : scale each target by its standard deviation internally, and integrate out its unknown mean. The kernel
        and ``log_marginal_likelihood_`` refer to scaled targets; noise always refers to y.
    mean : of each target. None is an unknown constant for each, "linear" unknown constants and slopes, a basis from
        `mercer.basis` unknown coefficients of its functions. A number, or one for each target, is known.
    calibrate : whether to multiply the learned covariance by the factor that makes 95% leave-one-out intervals cover
        95%. None: for the default kernel with learned noise and learning="mle".
    n_restarts, random_state, optimizer, max_iterations, progress, checkpoint, allow_invalid : as for
        `GaussianProcessRegressor`.

    >>> x = np.linspace(0, 6, 25)[:, None]
    >>> Y = np.column_stack([np.sin(x[:, 0]), 2 * np.sin(x[:, 0]) + 1])
    >>> Y[8:, 1] = np.nan
    >>> model = MultiOutputGaussianProcessRegressor(progress=False).fit(x, Y)
    >>> bool(abs(model.predict([[4.5]])[0, 1] - (2 * np.sin(4.5) + 1)) < 0.3)
    True
    """

    _multi_output = True
    choice_: Any = None
    priors_ = theta_posterior_ = None

    def __init__(
        self, kernel=None, rank=None, noise=None, solver="auto", learning="mle", n_restarts=0, normalize=True,
        random_state=None, *, mean=None, calibrate=None, optimizer="lbfgs", max_iterations=200, progress=True,
        checkpoint=None, allow_invalid=False,
    ):  # fmt: skip
        self.kernel = kernel
        self.rank = rank
        self.noise = noise
        self.solver = solver
        self.learning = learning
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.random_state = random_state
        self.mean = mean
        self.calibrate = calibrate
        self.optimizer = optimizer
        self.max_iterations = max_iterations
        self.progress = progress
        self.checkpoint = checkpoint
        self.allow_invalid = allow_invalid

    # -- fitting -----------------------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(self, X, y):
        """Learn the parameters and condition on the data. Ctrl-C keeps the best parameters found so far."""
        self._check_settings()
        X, labels = split_output(X)
        X = self._check_inputs(X, reset=True)
        measured = measurements(y, count_rows(X), labels)
        self._check_measured(measured)
        self.outputs_, self._form, P = measured.names, measured.form, measured.targets
        self._column, self._correlations = output_column(X), None
        self._places = copy_rows(X)
        rows = long_rows(X, measured.row, measured.target)
        target, given_noise, noise, mean = self._standardised(measured, X, rows)
        kernel = self._kernel_for(X, rows, P)
        if split_white(kernel)[1] and self.noise is None:
            given_noise = noise = KernelNoise()
        warn_of_model(self, [kernel], rows, mean.unknown, noise_prior=bool(noise.priors))
        prepared = gram.Gram(kernel, rows)
        self.solver_, self.plan_ = self._planned(kernel, prepared, noise, begun=True)
        self.plan_.check()
        learned, self.choice_ = None, None
        use_priors = self.learning == "map"
        objective = outputs.OutputsObjective(kernel, prepared, target, noise, self.solver_, mean, use_priors)
        objective.given, objective.keeps = self._is_whole(), True
        objective.correlation = self._targets(X, measured, target).correlations()
        if self.learning is not None and objective.size and target.any():
            objective, learned = self._learn(objective, X, measured)
            theta = learned.theta
            if learned.interrupted:
                warn_of_interruption(learned.evaluations, stacklevel=4)
        else:
            theta = objective.start_with_noise(0.1 if target.any() else 1e-2)
        self._measured = measured
        self._set_fitted(objective, given_noise, theta, learned)
        return self

    def _learn(self, objective: outputs.OutputsObjective, X, measured) -> tuple[outputs.OutputsObjective, Learned]:
        """The best parameters, and for the default kernel its structure."""
        seed = seed_of(self.random_state)
        settings = self._settings()
        given = self.noise, self.mean, bool(self.normalize), self.learning, seed, self.rank
        data = gram.raw(objective.rows), objective.target
        journal = self._journal(data, objective.kernel, *given)
        if self.kernel is None and not self._mixed() and self.rank is None:
            P, many = measured.targets, objective.n > outputs.MAX_SUM_ROWS
            kernel_of = lambda member: self._default(X, P, member.nu, member.ranks)
            choice, results = outputs.choose(objective, kernel_of, P, 1 if many else outputs.MAX_TERMS, seed, settings)
            self.choice_, best = choice, choice.best
            objective = objective.with_kernel(kernel_of(best.candidate))
            objective.first = (Start("the choice of the kernel", results[best.candidate].theta),)
            if choice.interrupted:
                optimum = Optimum(best.log_evidence, best.theta, "interrupted", converged=False)
                return objective, Learned([optimum], [], choice.evaluations, interrupted=True)
            learned = learn_regression(objective, settings, seed, journal)
            return objective, dataclasses.replace(learned, evaluations=learned.evaluations + choice.evaluations)
        return objective, learn_regression(objective, settings, seed, journal)

    def _set_fitted(self, objective, given: Noise, theta, learned):
        """Set all fitted attributes from the optimum."""
        self.calibration_, self._jitter = 1.0, 0.0 if learned is None else learned.jitter
        model = objective.model if learned is None else objective.at(theta)
        kernel, noise = model.kernel, model.noise
        if learned is None and objective.noise.size:
            noise = evolve(objective.noise, noise=np.exp(theta[objective.layout.part("noise")]))
        rows, kept = gram.on(kernel, objective.rows), None if learned is None else learned.outcome
        rows = rows if kept is None else rows.known(kept)
        variances = objective.variances(theta) + self._jitter
        posterior = self.solver_.posterior(
            kernel, rows, objective.target, variances, model.mean, bool(self.allow_invalid)
        )
        if learned is not None and self._calibrates(given):
            c = self.calibration_ = self._calibration_factor(objective, posterior)
            kernel, noise = outputs.scaled(kernel, c), noise.scaled(c)
            posterior = posterior.rescaled(kernel, c)
            self._jitter *= c
        self.kernel_ = kernel
        self._scaled_noise = noise
        self._noise = given if not given.size else noise.rescaled(self.scale_**2)
        self.noise_ = as_float(np.broadcast_to(np.asarray(self._noise.noise, dtype=float), len(self.outputs_)).copy())
        final = Model((kernel,), model.mean, noise)
        self._units = objective.layout.joined(noise=2 * np.log(self.scale_)) if given.size else np.zeros(objective.size)
        self.theta_ = np.asarray(to_free(final)) + self._units
        self.parameter_names_ = free_names(final)
        self.history_, self.optima_ = recorded(learned, lambda theta: objective.parameters(theta + self._units))
        self.n_evaluations_ = 0 if learned is None else learned.evaluations
        self._set_posterior(posterior)

    def _set_posterior(self, posterior):
        self.posterior_ = posterior
        found = posterior.numerics()
        self.numerics_ = {**found, "jitter": self._jitter + found["jitter"]}
        self.log_marginal_likelihood_ = posterior.log_evidence()
        self.mean_ = self._prior_mean()

    def _prior_mean(self) -> np.ndarray:
        """Mean of each target's prior mean over all places: (P,)."""
        P = len(self.outputs_)
        found = self.posterior_.trend(all_targets(self._places, P))[0].reshape(-1, P)
        return found.mean(axis=0) * self.scale_ + self.center_

    # -- settings ----------------------------------------------------------------------------------------------------

    def _check_settings(self):
        choices = {"learning": LEARNING, "optimizer": tuple(METHODS)}
        self._check_learning(choices, {"n_restarts": 0, "max_iterations": 1})
        ranks = self.rank if isinstance(self.rank, list | tuple) else [self.rank]
        if not all(rank is None or (is_integer(rank) and rank >= 0) for rank in ranks):
            raise ParameterError(f"rank must be a non-negative integer, or one for each kernel; got {self.rank!r}.")
        if isinstance(self.rank, list | tuple) and not (
            isinstance(self.kernel, list | tuple) and len(self.rank) == len(self.kernel)
        ):
            raise ParameterError(f"rank={self.rank!r} has one entry for each kernel of a list, kernel=[...].")

    def _check_measured(self, measured: Measurements):
        missing = [name for p, name in enumerate(measured.names) if not (measured.target == p).any()]
        if missing:
            raise DataError(
                f"target {missing[0]!r} has no finite value: nothing can be learned of it. Leave its column out."
            )

    def _is_whole(self) -> bool:
        """Whether the kernel is the covariance of rows in long form, coregionalization included."""
        return isinstance(self.kernel, Kernel) and bool(outputs.coregionalizations(self.kernel))

    def _kernel_for(self, X, rows, P: int) -> Kernel:
        if self._is_whole():
            whole = as_covariance(self.kernel, "a Gaussian process", self.allow_invalid, rows)
            wrong = {node.n_outputs for node in outputs.coregionalizations(whole)} - {P}
            if wrong:
                raise ParameterError(f"the kernel has a Coregionalization of {wrong.pop()} targets; y has {P}.")
            return whole
        if self.kernel is None:
            rank = min(1, P - 1) if self.rank is None else int(self.rank)
            if not self._mixed():
                X = self._check_vectors(X) if as_frame(X) is None or self.columns_ is None else X
                return self._default(X, P, 1.5, (rank,))
            base = default_kernel(X, self.columns_, constant=False)
            return outputs.coregionalized([self._of_inputs(base, X)], [rank], P, self._column)
        kernels = self.kernel if isinstance(self.kernel, list | tuple) else [self.kernel]
        if not kernels:
            raise ParameterError("kernel=[] has no kernels; give at least one, or None for the default.")
        ranks = self.rank if isinstance(self.rank, list | tuple) else [self.rank] * len(kernels)
        found = [as_covariance(each, "a Gaussian process", self.allow_invalid, X) for each in kernels]
        own = [DEFAULT_RANK if rank is None else int(rank) for rank in ranks]
        return outputs.coregionalized([self._of_inputs(each, X) for each in found], own, P, self._column)

    def _default(self, X, P: int, nu: float, ranks: tuple[int, ...]) -> Kernel:
        kernel = self._of_inputs(outputs.default_input_kernel(X, nu), X)
        return outputs.coregionalized([kernel] * len(ranks), ranks, P, self._column)

    def _of_inputs(self, kernel: Kernel, X) -> Kernel:
        """A kernel of the inputs, without the number of the target."""
        frame = as_frame(X)
        if frame is not None:
            if not kernel.needs_all_columns:
                return kernel
            return kernel.on(list(frame.columns) if isinstance(self._column, str) else slice(0, len(frame.columns)))
        d = X.shape[1] if np.ndim(X) == 2 else 1
        return kernel.on(0) if d == 1 else kernel.on(slice(0, d))

    def _given_mean(self, X, P: int) -> tuple[MeanFunction, np.ndarray | None]:
        """The mean of scaled targets, and that of y (P,) where it is known."""
        mean, column = self.mean, self._column
        if mean is None and self.normalize:
            return MeanFunction.of(Basis(basis.Targets(P), columns=[column])), None
        known = None if isinstance(mean, str | basis.Basis) else _one_each(0.0 if mean is None else mean, P)
        if known is not None:
            return MeanFunction.of(0.0), known
        linear = isinstance(mean, str) and mean == LINEAR
        if linear or isinstance(mean, basis.Basis):
            frame = as_frame(X)
            inside = basis.Polynomial(1) if linear else mean
            if frame is None:
                names: list[Any] = list(range(X.shape[1]))
            else:
                names = [name for name, dtype in frame.schema.items() if is_numeric(dtype)]
            if frame is not None and not isinstance(column, str):
                names = list(range(len(frame.columns)))
            return MeanFunction.of(Basis(basis.Targets(P, inside), columns=[*names, column])), None
        raise ParameterError(
            "mean must be None, 'linear', a basis from mercer.basis, or known: a finite number, or one for each of "
            f"{P} targets; got {mean!r}."
        )

    def _standardised(self, measured: Measurements, X, rows) -> tuple[np.ndarray, Noise, Noise, MeanFunction]:
        """Scaled targets (n,), the noise in units of y squared and in those of the targets, and the mean. Sets
        ``center_`` and ``scale_``."""
        P, learns = measured.targets, self.learning is not None
        mean, known = self._given_mean(X, P)
        target, least = np.empty(len(measured.values)), np.zeros(P)
        self.center_, self.scale_ = np.zeros(P) if known is None else known, np.ones(P)
        for p in range(P):
            own = measured.target == p
            about = None if known is None else MeanFunction.of(float(known[p]))
            found = standardised(measured.values[own], LearnedNoise(), bool(self.normalize), learns, about)
            target[own], self.center_[p], self.scale_[p] = found.target, found.center, found.scale
            least[p] = float(np.exp(found.noise.floor()[0]))
        noise = self._noise_for(P)
        own_noise = noise.rescaled(self.scale_**-2.0)
        if isinstance(own_noise, OutputNoise):
            own_noise = own_noise.bounded_by(least)
        return target, noise, own_noise, mean.fit(rows)

    def _noise_for(self, P: int) -> OutputNoise | GivenOutputNoise:
        """In units of y squared."""
        if self.noise is None or isinstance(self.noise, Prior):
            if self.noise is None and self.learning is None:
                return GivenOutputNoise(np.zeros(P), self._column)
            learned = OutputNoise(np.ones(P), self._column)
            if self.noise is None:
                return learned
            return learned.with_priors(noise=Each(by_entry(self.noise, P)))
        values = _one_each(self.noise, P)
        if values is None or (values < 0).any():
            raise ParameterError(
                f"noise must be None, a prior, one variance, or one for each of {P} targets; got {self.noise!r}."
            )
        return GivenOutputNoise(values, self._column)

    @staticmethod
    def _targets(X, measured: Measurements, target: np.ndarray) -> outputs.Targets:
        return outputs.Targets(X, measured.row, measured.target, target, measured.targets)

    def _calibrates(self, noise: Noise) -> bool:
        if self.calibrate is None:
            return self.kernel is None and bool(noise.size) and not noise.priors and self.learning == "mle"
        return bool(self.calibrate)

    def _calibration_factor(self, objective, posterior) -> float:
        factor = unbiased_factor(objective.n, objective.size + (self.kernel is None))
        if objective.n < MIN_CALIBRATION_ROWS:
            return factor
        mean, variance = posterior.leave_one_out()
        return factor * widening(Normal(mean, np.sqrt(variance)).z(objective.target), CALIBRATED_LEVEL)

    def _planned(self, kernel, X, noise: Noise, begun: bool = False) -> tuple[solvers.Solver, Plan]:
        """The solver and the plan of a fit by it. ``begun``: take the one that the checkpoint was begun with."""
        free = len(free_names(kernel)) + noise.size
        climbs = 0 if self.learning is None or not free else 1 + self.n_restarts
        before = self._begun_with([kernel], X, noise) if begun else None
        found, plan = planned(self.solver if before is None else before, kernel, X, noise, Budget.of(climbs=climbs))
        return found, plan if before is None else dataclasses.replace(plan, why=BEGUN_WITH)

    def plan(self, X, y) -> Plan:
        """The solver for a fit to these measurements, the memory and time it is expected to take here, and why. Of y,
        only where it is missing counts."""
        self._check_settings()
        new = copy.copy(self)
        X, labels = split_output(X)
        X = new._check_inputs(X, reset=True)
        measured = measurements(y, count_rows(X), labels)
        new._column = output_column(X)
        rows = long_rows(X, measured.row, measured.target)
        kernel = new._kernel_for(X, rows, measured.targets)
        noise, prepared = new._noise_for(measured.targets), gram.Gram(kernel, rows)
        return new._planned(kernel, prepared, noise)[1]


def _one_each(value: Any, P: int) -> np.ndarray | None:
    """A finite number for each target, from one or P of them: (P,); None for anything else."""
    try:
        found = np.broadcast_to(np.asarray(value, dtype=float), (P,)).copy()
    except (TypeError, ValueError):
        return None
    return found if np.isfinite(found).all() else None
