"""Fits by stochastic variational inference: of regressors, of other likelihoods of numbers, and of classifiers."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.errors import ParameterError
from mercer.core.inputs import count_rows
from mercer.core.random import generator
from mercer.gp.mean import MeanFunction
from mercer.inference import targets
from mercer.inference.base import Inference
from mercer.inference.centers import CenterLabels
from mercer.kernels.base import Kernel
from mercer.learning import batches
from mercer.learning.classification import LearnedLabels
from mercer.learning.label_evidence import LabelObjective
from mercer.learning.latent_regression import LatentObjective, LearnedTarget, learn_target, with_constant
from mercer.learning.optimise import Learned, Optimum, Settings
from mercer.learning.progress import Progress
from mercer.learning.regression import RegressionObjective
from mercer.learning.state import Journal
from mercer.linalg.cholesky import Cholesky
from mercer.solvers.dense import Dense
from mercer.solvers.lowrank_posterior import LowRankPosterior
from mercer.solvers.minibatch import FIRST_ROWS, Minibatch

FIRST_LABELS = 1000  # of which kernels are learned first


def _few(n: int, most: int, seed: int) -> np.ndarray:
    return np.arange(n) if n <= most else np.sort(generator(seed).permutation(n)[:most])


def _further(trained: batches.Trained, whole: Callable[[np.ndarray], np.ndarray], learned: Learned) -> Learned:
    """What is known of learning after its stochastic part; ``whole`` makes theta of the parameters there."""
    value = float(np.mean([step.value for step in trained.history[-5:]])) if trained.history else np.nan
    best = Optimum(value, whole(trained.x), learned.optima[0].start, converged=not trained.interrupted)
    return dataclasses.replace(
        learned, optima=[best], outcome=None, evaluations=learned.evaluations + trained.steps, jitter=0.0,
        history=[*learned.history, *(step._replace(theta=whole(step.theta)) for step in trained.history)],
        interrupted=learned.interrupted or trained.interrupted,
    )  # fmt: skip


def _inserted(theta: np.ndarray, *parts: slice) -> Callable[[np.ndarray], np.ndarray]:
    """Function that puts parameters of these parts, one after the other, into theta."""
    where = np.concatenate([np.arange(part.start, part.stop) for part in parts])

    def whole(x: np.ndarray) -> np.ndarray:
        new = theta.copy()
        new[where] = x
        return new

    return whole


# -- regression ----------------------------------------------------------------------------------------------------


def regression_in_batches(
    objective: RegressionObjective, learned: Learned, settings: Settings, seed: int, journal: Journal
) -> Learned:
    """Parameters of a regression with Gaussian noise, which were ``learned`` from some rows, learned further from
    batches of all."""
    solver: Any = objective.solver
    kernels, noise, mean = (objective.layout.part(name) for name in ("kernels", "noise", "mean"))
    if mean.stop > mean.start:
        raise ParameterError(f"solver={solver.name!r} does not learn parameters of the mean; take solver='lowrank'.")
    if objective.n <= max(solver.stages(objective.n)) or learned.interrupted:
        return learned
    theta, X, residual = learned.theta, objective.rows, objective.target - objective.mean(objective.X)
    centers = solver.choose(objective.at(theta).kernel, X, residual, objective.variances(theta))
    sites = batches.Measurements(residual, objective.noise, X)
    H = objective.mean.columns(objective.X)
    bound = batches.BatchBound(objective.kernel, X, centers, sites, H)
    floor = objective.floor()
    start, floor = (np.r_[each[kernels], each[noise]] for each in (theta, floor))
    progress = Progress.of(settings.progress)
    trained = batches.train(bound, solver, start, None, floor, seed, journal, progress, flat=H.shape[1])
    progress.close()
    return _further(trained, _inserted(theta, kernels, noise), learned)


# -- other likelihoods ---------------------------------------------------------------------------------------------


def target_in_batches(
    objective: LatentObjective, solver: Minibatch, settings: Settings, seed: int, journal: Journal | None, choose: bool
) -> LearnedTarget:
    """Kernel and likelihood, first from some rows, exactly, then from batches of all."""
    few = dataclasses.replace(objective.part(_few(objective.n, FIRST_ROWS, seed)), solver=Dense())
    found, learned, choice = learn_target(few, settings, seed, journal, choose)
    whole = dataclasses.replace(found, X=objective.X, target=objective.target, solver=solver)
    if learned.interrupted or few.n == objective.n:
        return LearnedTarget(whole, dataclasses.replace(learned, outcome=None), choice)
    bound, own = _bound_of_target(whole, solver, learned.theta)
    theta, floor, part = learned.theta, whole.floor(), whole.layout.part("likelihood")
    start, floor = (np.r_[each[own], each[part]] for each in (theta, floor))
    progress = Progress.of(settings.progress)
    trained = batches.train(bound, solver, start, None, floor, seed, journal or Journal(), progress)
    progress.close()
    return LearnedTarget(whole, _further(trained, _inserted(theta, own, part), learned), choice)


def _bound_of_target(
    objective: LatentObjective, solver: Minibatch, theta: np.ndarray
) -> tuple[batches.BatchBound, slice]:
    own, part = objective.layout.part("kernels"), objective.layout.part("likelihood")

    def likelihood(free: np.ndarray) -> Any:
        return objective.at(_inserted(theta, part)(free)).likelihood

    at = with_constant(objective.at(theta).kernel, objective.constant)
    rows = gram.on(at, objective.X)
    centers = solver.choose(at, rows, objective.target.y, np.ones(objective.n))
    return batches.BatchBound(objective.prior_kernel, rows, centers, batches.Numbers(objective.target, likelihood)), own


class InferredTarget(NamedTuple):
    """Posterior of the latent function of a likelihood of numbers, and how it was found."""

    posterior: LowRankPosterior
    log_evidence: float
    a: np.ndarray
    iterations: int
    converged: bool


def infer_target(objective: LatentObjective, solver: Minibatch, progress: bool) -> InferredTarget:
    """At the parameters of the objective, from passes over all rows."""
    theta = objective.start()
    bound, own = _bound_of_target(objective, solver, theta)
    shown = Progress(shown=progress)
    q = batches.Variational.start(1, np.ones(count_rows(bound.centers)))
    x = np.r_[theta[own], theta[objective.layout.part("likelihood")]]
    found = batches.settle(bound, solver, x, q, shown)
    shown.close()
    kernel = with_constant(objective.at(theta).kernel, objective.constant)
    sites: Any = SimpleNamespace(S=found.curvature[0], mean=found.mean[0], a=found.first[0])
    y, noise = targets.as_regression(sites, gram.diagonal(kernel, bound.rows))
    rows = bound.rows.of(kernel)
    posterior = LowRankPosterior.given(kernel, rows, y, noise, MeanFunction(), "variational", bound.centers)
    return InferredTarget(posterior, found.value, found.first[0], found.passes, found.converged)


# -- labels --------------------------------------------------------------------------------------------------------


class InferredLabels(NamedTuple):
    """Posterior of a classifier, its kernel and parameters, the record of learning, and how the posterior was found."""

    posterior: CenterLabels
    kernel: Kernel
    objective: LabelObjective
    theta: np.ndarray
    learned: Learned | None
    numerics: dict[str, Any]


def labels_in_batches(
    solver: Minibatch, kernel: Kernel, rows: gram.Gram, codes: np.ndarray, inference: Inference,
    learn: Callable[[gram.Gram, np.ndarray], LearnedLabels] | None, settings: Settings, seed: int, journal: Journal,
) -> InferredLabels:  # fmt: skip
    """``learn``: kernel and parameters from some rows, exactly; None where nothing is learned."""
    C, n = inference.classes, len(codes)
    objective, learned, theta, prior = LabelObjective([kernel], rows, codes, inference), None, np.zeros(0), None
    if learn is not None and objective.size:
        few = _few(n, FIRST_LABELS, seed)
        found = learn(rows[few].alone(), codes[few])
        objective = dataclasses.replace(found.objective, X=rows, codes=codes, given=())
        learned, theta, prior = found.learned, found.theta, objective.prior()
        kernel = objective.at(theta).kernels[0]
    sites: batches.Sites = batches.LabelsOfMore(codes, C)
    if C == 2:
        sites = batches.LabelsOfTwo(codes, inference.likelihood)
    rows = rows.of(kernel)
    centers = solver.choose(kernel, rows, codes.astype(float), np.ones(n))
    progress, steps = Progress.of(settings.progress), 0
    q = batches.Variational.start(sites.functions, np.ones(count_rows(centers)))
    bound = batches.BatchBound(kernel if learned is not None else kernel.fix(), rows, centers, sites)
    if learned is not None and not learned.interrupted and len(theta):
        floor = np.full(len(theta), -np.inf)
        trained = batches.train(bound, solver, theta, prior, floor, seed, journal, progress)
        theta, steps, q = trained.x, trained.steps, trained.q
        learned = _further(trained, lambda x: x, learned)
        kernel = objective.at(theta).kernels[0]
    settled = batches.settle(bound, solver, theta, q, progress)
    progress.close()
    first = np.arange(1)
    lower: Any = batches.features(bound.cross(first), theta, bound.H[first])
    u, _, factors = settled.q.moments()
    spreads = np.stack([G.solve(np.asfortranarray(np.eye(u.shape[1]))) for G in factors])
    posterior = CenterLabels(
        kernel, centers, Cholesky(lower.lower.lower), u, 0.5 * (spreads + spreads.transpose(0, 2, 1)),
        inference.link, np.bincount(codes, minlength=C), settled.value, codes=codes,
        told=np.stack([settled.mean, settled.first, settled.curvature, settled.variance]),
    )  # fmt: skip
    numerics = {
        "iterations": settled.passes, "converged": settled.converged, "jitter": 0.0, "centers": u.shape[1],
        "left": settled.left, "steps": steps,
    }  # fmt: skip
    theta = theta if learned is not None else np.asarray(to_free(kernel), dtype=float)
    return InferredLabels(posterior, kernel, objective, theta, learned, numerics)
