"""Fits to rows that come in chunks: parameters from a random part of them, one more pass for the posterior of all."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, ParameterError, rows_of
from mercer.core.inputs import count_rows, take_rows
from mercer.core.random import seed_of
from mercer.datasets.chunks import Chunks, Part
from mercer.distributions import Normal
from mercer.gp.noise import LearnedNoise, Noise, RowNoise
from mercer.kernels.base import Kernel
from mercer.learning.plan import plan_of
from mercer.models.targets import log_target
from mercer.scores import CALIBRATED_LEVEL, unbiased_factor, widening
from mercer.solvers.auto import Budget, SolverCandidate, SolverChoice, fit_seconds
from mercer.solvers.lowrank import LowRank
from mercer.solvers.lowrank_posterior import LowRankPosterior

LEARNING = ("mle", "map", None)
LIKELIHOODS = ("gaussian", "lognormal")
MAX_KEPT_ROWS = 20_000  # of those that parameters are learned from, for leave-one-out and reports


def fit_in_chunks(model: Any, chunks: Chunks) -> Any:
    """Fit a Gaussian process regressor to all rows of the chunks.

    A first pass takes at most `LowRank.learning_rows` rows at random. If these are all there are, they are fitted as
    rows in memory. Otherwise parameters are learned from them by the low-rank solver, for "auto" with as many centres
    as memory and time allow, and another pass adds up the information of all rows on the weights of the centres. Noise
    and amplitude are then those that maximise the evidence of all rows, which takes no pass, and intervals are widened
    as for rows in memory.
    """
    fitted, X, y = sampled(model, chunks)
    fitted.fit(X, y)
    passes, fitted._stream_rows = fitted._stream_rows is not None, None
    own = set(model.get_params(deep=False))
    vars(model).update({name: value for name, value in vars(fitted).items() if name not in own})
    if passes:
        absorb(model, chunks)
    return model


def sampled(model: Any, chunks: Chunks) -> tuple[Any, Any, np.ndarray]:
    """A copy of the model that plans for the rows of the chunks, and the rows that it is fitted to."""
    X, y, _, n = chunks.sample(_solver(model).learning_rows, seed_of(model.random_state))
    model = copy.copy(model)
    model._stream_rows = n if n > len(y) else None
    return model, X, y


def planned(model: Any, kernel: Kernel, X: Any, noise: Noise, budget: Budget, n: int, begun: bool) -> Any:
    """The solver and the plan of a fit to n rows that come in chunks, of which X are learned from. ``begun``: take the
    solver that the checkpoint was begun with."""
    solver = _solver(model)
    if model._chooses_solver():
        solver = (model._begun_with([kernel], X, noise) if begun else None) or solver.within_rows(n, budget)
    refusal = solver.refusal(kernel, X, noise)
    if refusal is not None:
        raise ParameterError(
            f"rows in chunks that do not fit in memory are fitted by the low-rank solver, which {refusal}. "
            + ("Give noise=..." if not noise.positive else "Take a random part of the rows, with Chunks.sample.")
        )
    cost = solver.cost_of(n)
    why = f"rows come in chunks; parameters are learned from {count_rows(X):,} of them"
    found = SolverChoice(
        SolverCandidate(solver, cost, fit_seconds(solver, cost, n, budget), solver.loss(kernel, X)), why
    )
    return solver, dataclasses.replace(plan_of(found, kernel, X, budget, model.max_memory is not None), rows=n)


def refusal(model: Any) -> str | None:
    """Why a model with these settings cannot be fitted to rows in chunks; None if it can."""
    named = isinstance(model.solver, str) and model.solver in ("auto", "lowrank")
    if not named and not isinstance(model.solver, LowRank):
        return f"rows in chunks are fitted by solver='lowrank', or mercer.solvers.LowRank(...); got {model.solver!r}."
    if model.likelihood not in LIKELIHOODS or model.learning not in LEARNING:
        return (
            "rows in chunks are fitted with likelihood='gaussian' or 'lognormal', and learning='mle', 'map' or None; "
            f"got likelihood={model.likelihood!r}, learning={model.learning!r}. Take a random part of the rows."
        )
    if model.noise is not None and np.ndim(model.noise):
        return "rows in chunks have one noise variance; noise is None, a number or a prior."
    return None


def _solver(model: Any) -> LowRank:
    why = refusal(model)
    if why is not None:
        raise ParameterError(why)
    return model.solver if isinstance(model.solver, LowRank) else LowRank()


def absorb(model: Any, chunks: Chunks, without: np.ndarray | None = None) -> None:
    """Condition a model that was fitted by low rank to some of the rows on all of them, but those numbered in
    ``without``."""
    posterior: LowRankPosterior = model.posterior_
    noise = model._fitted_noise().scaled(model.scale_**-2)
    if isinstance(noise, RowNoise):
        raise ParameterError("rows in chunks have one noise variance.")
    objective, theta = model._objective(), model.theta_ - model._units
    before = float(noise.at(posterior.X)) + model._jitter
    kept = slice(0, MAX_KEPT_ROWS)
    X, y, _ = posterior.data
    X, y = take_rows(X, kept), y[kept]
    found = posterior.of_parts(_parts(model, chunks, before, without), X, y, np.full(len(y), before))
    # Noise and amplitude of all rows, where they are learned.
    mask = objective.amplitude() if model.learning == "mle" and isinstance(noise, LearnedNoise) else None
    if mask is not None:
        floor = max(noise.min_variance, float(np.exp(noise.floor()[0]))) / before
        amplitude, of_noise = found.best_scales(floor)
        part = objective.layout.part("noise")
        theta = theta + math.log(amplitude) * np.asarray(mask)
        theta[part] += math.log(of_noise / amplitude)
        found = found.with_scales(objective.at(theta).kernel, amplitude, of_noise)
        model.calibration_ = 1.0
        if model._calibrates(model._noise):
            mean, variance = found.leave_one_out()
            z = Normal(mean, np.sqrt(variance)).z(found.y)
            chosen = model.kernel is None
            model.calibration_ = widening(z, CALIBRATED_LEVEL) * unbiased_factor(found.n_rows, len(theta) + chosen)
            theta = theta + math.log(model.calibration_) * np.asarray(mask)
            found = found.rescaled(objective.at(theta).kernel, model.calibration_)
        model.kernel_ = objective.at(theta).kernel
        model._set_noise(LearnedNoise(float(objective.variances(theta)[0]) * model.scale_**2))
        model.theta_ = theta + model._units
    model.n_rows_ = found.n_rows
    model.y_train_, model.copy_of_ = found.y * model.scale_ + model.center_, np.arange(len(found.y))
    if model._logarithmic:
        model.y_train_ = np.exp(model.y_train_)
    why = f"rows come in chunks; parameters were learned from {len(posterior.y):,} of them"
    model.plan_ = dataclasses.replace(model.plan_, rows=found.n_rows, why=why)
    model._set_posterior(found)


def _parts(model: Any, chunks: Chunks, noise: float, without: np.ndarray | None) -> Iterator[Any]:
    """Prepared rows, y minus the mean, and noise variances, all in the units of the posterior."""
    posterior = model.posterior_
    kernel, mean = posterior.kernel, posterior.prior_mean
    for part in chunks:
        X, y = _used(part, without)
        if not len(y):
            continue
        if np.isinf(y).any():
            raise DataError(f"y has infinite values in the chunk that starts at row {part.first:,}.")
        with rows_of(slice(part.first, part.first + len(y))):
            X = model._check_inputs(X, reset=False)
        y = log_target(y) if model._logarithmic else y
        target = (y - model.center_) / model.scale_
        rows = gram.Gram(kernel, X)
        yield rows, target - mean(X), np.full(len(y), noise)


def _used(part: Part, without: np.ndarray | None) -> tuple[Any, np.ndarray]:
    used = ~np.isnan(part.y)
    if without is not None:
        own = without[(without >= part.first) & (without < part.first + len(part.y))] - part.first
        used[own] = False
    if used.all():
        return part.X, part.y
    return take_rows(part.X, np.flatnonzero(used)), part.y[used]
