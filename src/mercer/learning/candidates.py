"""Evaluation of one candidate of a choice between kernels: its parameters learned by the evidence on fixed rows."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, NotPositiveDefiniteError, ParameterError
from mercer.core.inputs import Inputs, as_matrix, as_rows, class_codes, count_rows, take_rows
from mercer.core.machine import require_memory
from mercer.core.parameters import node_at, slots_of
from mercer.core.random import generator
from mercer.gp.noise import KernelNoise, Noise, as_noise
from mercer.inference.base import INFERENCES, latent_covariances, named
from mercer.inference.methods import automatic
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_covariance, as_kernel
from mercer.kernels.stationary import SMOOTHNESSES
from mercer.learning import family, heuristics
from mercer.learning.classification import LabelLearner, decision_rows, log_scores
from mercer.learning.columns import STRUCTURED, Columns, default_kernel
from mercer.learning.label_evidence import LabelObjective
from mercer.learning.optimise import Settings
from mercer.learning.plan import planned
from mercer.learning.progress import Progress
from mercer.learning.regression import RegressionObjective, learn_regression, standardised
from mercer.learning.resolution import originals
from mercer.solvers import base as solvers
from mercer.solvers.auto import Budget

MAX_COMPARED_ROWS = 1000  # of a regression, on which kernels are compared
CLASS_ROWS = 2  # of each class, in any subset of the rows
MAX_TIE_SHARE = 1e-3  # of one error, by which the log loss decides between equal numbers of errors
LABEL_MATRICES = 4  # n x n matrices that learning from two classes holds; more classes hold one more each


@dataclasses.dataclass(frozen=True)
class Terms:
    """Terms of a comparison: criterion, "loo", "errors" or "evidence" (None: by the task); seed; number of rows at most
    (None: by the task); progress line; whether invalid kernels are accepted; what the columns of X hold, if the default
    kernel reads them."""

    criterion: str | None
    seed: int
    max_rows: int | None
    line: Progress
    allow_invalid: bool = False
    columns: Columns | None = None


class Evaluated(NamedTuple):
    """A candidate at its maximum of the evidence: the learned kernel, theta, the number of parameters, the log
    evidence, the score of rows left out (-inf if not asked for), the noise (None for labels), the evaluations that it
    took, and whether learning was interrupted."""

    kernel: Kernel
    theta: np.ndarray
    parameters: int
    log_evidence: float
    left_out: float
    noise: float | None
    evaluations: int
    interrupted: bool


class Problem(abc.ABC):
    """Rows on which candidates are compared, and the evaluation of one of them."""

    task: str
    loo_measure: str

    def __init__(self, X: Inputs, terms: Terms) -> None:
        self.X, self.terms, self.total = X, terms, count_rows(X)
        self.criterion = terms.criterion or "evidence"
        self.settings = Settings(progress=terms.line)
        self.rows = np.arange(self.total)
        self._views: dict[str, Inputs] = {}

    @property
    def measure(self) -> str:
        return self.loo_measure if self.criterion == "loo" else self.criterion

    def evaluate(self, candidate: Any) -> Evaluated:
        """Raises an error if the candidate is no kernel, cannot read the rows, or has no evidence there."""
        X = self._view(as_kernel(candidate))
        kernel = as_covariance(candidate, "a Gaussian process", self.terms.allow_invalid, X)
        if len(self.rows) < self.total:
            kernel.prepare(X, np.arange(self.total))  # which refuses rows that the kernel cannot read, all of them
        return self.learn(heuristics.with_amplitudes(kernel))

    def score(self, found: Evaluated) -> float:
        """What candidates are compared by, the higher the better."""
        if self.criterion == "evidence":
            return found.log_evidence - 0.5 * found.parameters * math.log(len(self.rows))
        return self.penalised(found.left_out, family.PARAMETER_COST * found.parameters / len(self.rows))

    @abc.abstractmethod
    def penalised(self, left_out: float, share: float) -> float:
        """The score of rows left out, less what it gained since they took part in learning: parameters per row."""

    @abc.abstractmethod
    def learn(self, kernel: Kernel) -> Evaluated: ...

    @abc.abstractmethod
    def family(self) -> list[tuple[Any, Any]]:
        """Members of the family of the default kernel, and their kernels."""

    def inputs(self, kernel: Kernel) -> Inputs:
        """The rows to compare on, as the kernel reads them."""
        X = self._view(kernel)
        return X if len(self.rows) == self.total else take_rows(X, self.rows)

    def _view(self, kernel: Kernel) -> Inputs:
        if kernel.reads not in self._views:
            self._views[kernel.reads] = as_rows(self.X, kernel.reads)
        return self._views[kernel.reads]

    def default_kernel(self, one_each: bool = True) -> Kernel:
        """The default kernel of the rows to compare on; of a table with categories or text, of all rows."""
        columns, constant = self.terms.columns, self.task == "classification"
        if columns is not None and columns.names(*STRUCTURED):
            return default_kernel(self.X, columns, one_each, constant)
        return default_kernel(as_matrix(self.X)[self.rows], None, one_each, constant)

    def _members(self, linear: Sequence[bool]) -> list[tuple[Any, Any]]:
        whole = self.default_kernel()
        path = family.standard_path(whole)
        if path is None:  # nothing but categories and text
            return [(whole, whole)]
        d = np.size(node_at(whole, path).theta1)
        each = [False, True] if 1 < d <= len(self.rows) / family.MIN_ROWS_PER_LENGTHSCALE else [False]
        crossed, found = bool(path), []
        for one in each:
            kernel = self.default_kernel(one)
            for member in (family.Member(nu, flat, one, crossed) for flat in linear for nu in SMOOTHNESSES):
                off = {} if member.linear else {"theta3": np.float64(0.0)}
                found.append((member, family.with_standard(kernel, nu=np.float64(member.nu), **off)))
        return found


class QuantityProblem(Problem):
    """Regression as `GaussianProcessRegressor` does it: noise learned, the unknown mean integrated out, copies once."""

    task, loo_measure = "regression", "crps"

    def __init__(self, X: Inputs, y: np.ndarray, terms: Terms) -> None:
        super().__init__(X, terms)
        if self.criterion == "errors":
            raise ParameterError(
                "criterion='errors' counts wrong labels, and y holds quantities. Use 'loo' or 'evidence', or "
                "task='classification' if the numbers are labels."
            )
        most = MAX_COMPARED_ROWS if terms.max_rows is None else terms.max_rows
        if self.total > most:
            self.rows = np.sort(generator(terms.seed).permutation(self.total)[:most])
        self.y = y
        self.compare_on(self.rows)

    def compare_on(self, rows: np.ndarray) -> None:
        """Use these rows, without copies."""
        X = self.X if hasattr(self.X, "toarray") else as_rows(self.X, "anything")  # sparse rows are for the kernel
        self.rows = rows[originals(take_rows(X, rows), self.y[rows])[0]]
        y = self.y[self.rows]
        self.target, _, self.scale, self.noise, self.mean = standardised(
            y, as_noise(None, len(y)), normalize=True, learns=True
        )
        if not self.target.any():
            raise DataError("y is the same in all rows, so kernels cannot be compared.")

    def penalised(self, left_out: float, share: float) -> float:
        return left_out * (1 + share)

    def objective(self, kernel: Kernel) -> RegressionObjective:
        X = self.inputs(kernel)
        noise: Noise = KernelNoise() if split_white(kernel)[1] > 0 else self.noise
        solver, plan = planned("auto", kernel, X, noise, Budget.of())
        plan.check()
        return RegressionObjective(kernel, X, self.target, noise, solver, self.mean, use_priors=_has_priors(kernel))

    def learn(self, kernel: Kernel) -> Evaluated:
        return self.learned(self.objective(kernel), self.settings)

    def learned(self, objective: RegressionObjective, settings: Settings) -> Evaluated:
        """An objective at its maximum, or where the settings end the search."""
        theta, jitter, evaluations, interrupted = np.zeros(0), 0.0, 1, False
        if objective.size:
            learned = learn_regression(objective, settings, self.terms.seed)
            theta, jitter, interrupted = learned.theta, learned.jitter, learned.interrupted
            evaluations += learned.evaluations
        with objective.criterion() as evidence:
            evidence.jitter = jitter
            found = evidence(theta, gradient=False)
            if found is None:
                raise NotPositiveDefiniteError(
                    f"the covariance of these {objective.n} rows could not be factorised. Look at the kernel with "
                    "mercer.check_kernel(kernel, X)."
                )
            left_out = evidence.score(theta) if self.criterion == "loo" else -math.inf
        noise = float(objective.variances(theta)[0]) * self.scale**2
        return Evaluated(
            objective.at(theta).kernel if objective.size else objective.kernel,
            theta, objective.size, float(found.value), left_out, noise, evaluations, interrupted,
        )  # fmt: skip

    def family(self) -> list[tuple[Any, Any]]:
        return self._members([True, False])


class LabelProblem(Problem):
    """Classification as `GaussianProcessClassifier` does it."""

    task, loo_measure = "classification", "log loss"

    def __init__(self, X: Inputs, labels: np.ndarray, terms: Terms, inference: str) -> None:
        super().__init__(X, terms)
        classes, codes = class_codes(labels, "a choice between kernels")
        most = decision_rows(len(classes)) if terms.max_rows is None else terms.max_rows
        if self.total > most:
            self.rows = np.sort(_some_of_each(codes, generator(terms.seed).permutation(self.total), most))
        self.codes = codes[self.rows]
        allowed = ("auto", *(name for name, method in INFERENCES.items() if not method.samples))
        if inference not in allowed:
            raise ParameterError(f"inference must be one of {', '.join(map(repr, allowed))}; got {inference!r}.")
        name = automatic(len(self.rows), len(classes)) if inference == "auto" else inference
        self.inference = named(name, classes=len(classes))
        if terms.criterion is None and len(classes) > 2:  # variances are not learned by the evidence alone
            self.criterion = "loo"
        refusal = self.inference.refusal()
        if refusal is not None:
            raise ParameterError(refusal)

    def penalised(self, left_out: float, share: float) -> float:
        return left_out - share if self.criterion == "loo" else left_out

    def learn(self, kernel: Kernel) -> Evaluated:
        X, infer = self.inputs(kernel), self.inference
        two = infer.classes == 2
        solver = solvers.resolve_latent("auto", [kernel], X, infer.classes)
        size = math.prod(solver.cost(kernel, X).matrix)
        require_memory(
            8 * size * (LABEL_MATRICES + (0 if two else infer.classes)), f"a comparison on {len(self.rows):,} rows",
            "Give a smaller max_rows.",
        )  # fmt: skip
        rows = gram.Gram(kernel, X)
        objective = LabelObjective([kernel], rows, self.codes, infer, solver=solver)
        theta, jitter, evaluations, interrupted, start = np.zeros(0), 0.0, 1, False, None
        if objective.size:
            learner = LabelLearner(
                infer, self.settings, self.terms.seed, default_kernel=False, use_priors=_has_priors(kernel)
            )
            objective, learned, theta, last = learner([kernel], rows, self.codes, solver)
            kernel, start = objective.at(theta).kernels[0], last and last.approximation
            jitter, interrupted = learned.jitter, learned.interrupted
            evaluations += learned.evaluations

        covariances = latent_covariances(solver.latent, [kernel], rows, jitter)
        found = infer(covariances, self.codes, start, gradient=False)
        if found is None:
            raise NotPositiveDefiniteError(
                f"the covariance of these {len(self.rows)} rows is not positive semidefinite. Look at the kernel with "
                "mercer.check_kernel(kernel, X)."
            )
        value, left_out = float(found.log_evidence), -math.inf
        if self.criterion != "evidence":
            posterior = infer.posterior(found, [kernel], X, self.codes, jitter)
            left_out = self._left_out(posterior.leave_one_out(covariances))
        return Evaluated(kernel, theta, objective.size, value, left_out, None, evaluations, interrupted)

    def _left_out(self, p: np.ndarray) -> float:
        """Score of the probabilities of left-out rows: the mean log density, or minus the share of errors."""
        density = float(log_scores(p, self.codes).mean())
        if self.criterion == "loo":
            return density
        errors = np.count_nonzero(p.argmax(axis=1) != self.codes)
        return -(errors + MAX_TIE_SHARE * (1 - math.exp(density))) / len(self.codes)

    def family(self) -> list[tuple[Any, Any]]:
        return self._members([True])


def _has_priors(kernel: Kernel) -> bool:
    return any(slot.prior is not None for slot in slots_of(kernel))


def _some_of_each(codes: np.ndarray, order: np.ndarray, most: int) -> np.ndarray:
    """The first rows of this order, but a few of every class among them."""
    seen: dict[int, int] = {}
    first = []
    for place, row in enumerate(order):
        seen[codes[row]] = seen.get(codes[row], 0) + 1
        if seen[codes[row]] <= CLASS_ROWS:
            first.append(place)
    return np.concatenate([order[first], np.delete(order, first)])[:most]
