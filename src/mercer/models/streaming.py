"""Fits to rows that come in chunks: parameters from a random part of them, one more pass for the posterior of all."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

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
from mercer.solvers.base import SOLVERS, asked_or_first
from mercer.solvers.lowrank_posterior import LowRankPosterior

LEARNING = ("mle", "map", None)
LIKELIHOODS = ("gaussian", "lognormal")
MAX_KEPT_ROWS = 20_000  # of those that parameters are learned from, for leave-one-out and reports


class Absorbed(NamedTuple):
    """The posterior of all rows, and the parameters there, noise in units of y squared."""

    posterior: LowRankPosterior
    theta: np.ndarray
    noise: Noise
    calibration: float
    why: str  # of the plan


def sampled(model: Any, chunks: Chunks) -> tuple[Any, np.ndarray, int | None]:
    """The rows that parameters are learned from, at most ``learning_rows`` of the solver at random, and the number of
    all rows, None if there are no others."""
    X, y, _, n = chunks.sample(_solver(model).learning_rows, seed_of(model.random_state))
    return X, y, n if n > len(y) else None


def planned(model: Any, kernel: Kernel, X: Any, noise: Noise, budget: Budget, n: int, begun: bool) -> Any:
    """The solver and the plan of a fit to n rows that come in chunks, of which X are learned from. ``begun``: take the
    solver that the checkpoint was begun with."""
    solver = _solver(model)
    if model._chooses_solver():
        solver = (model._begun_with([kernel], X, noise) if begun else None) or solver.within_rows(n, budget)
    refusal = solver.refusal(kernel, X, noise)
    if refusal is not None:
        raise ParameterError(
            f"rows in chunks that do not fit in memory are fitted by solver={solver.name!r}, which {refusal}. "
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
    if not _asked(model).streams_rows:
        able = " or ".join(f"solver={name!r}" for name, cls in SOLVERS.items() if cls.streams_rows)
        return f"rows in chunks are fitted by {able}, or its object of mercer.solvers; got {model.solver!r}."
    if model.likelihood not in LIKELIHOODS or model.learning not in LEARNING:
        return (
            "rows in chunks are fitted with likelihood='gaussian' or 'lognormal', and learning='mle', 'map' or None; "
            f"got likelihood={model.likelihood!r}, learning={model.learning!r}. Take a random part of the rows."
        )
    if np.ndim(model.noise):
        return "rows in chunks have one noise variance; noise is None, a number or a prior."
    return None


def _asked(model: Any) -> Any:
    return asked_or_first(model.solver, lambda each: each.streams_rows)


def _solver(model: Any) -> Any:
    """The solver of a fit to rows in chunks, with its settings."""
    why = refusal(model)
    if why is not None:
        raise ParameterError(why)
    return _asked(model)


def absorbed(model: Any, chunks: Chunks, without: np.ndarray | None = None) -> Absorbed:
    """Condition a model that was fitted by low rank to some of the rows on all of them, but those numbered in
    ``without``: one pass adds up what they say of the weights of the centres. Noise and amplitude are those that
    maximise the evidence of all rows, which takes no pass, and intervals are widened as for rows in memory."""
    posterior: LowRankPosterior = model.posterior_
    given, calibration = model._fitted_noise(), model.calibration_
    noise = given.scaled(model.scale_**-2)
    if isinstance(noise, RowNoise):
        raise ParameterError("rows in chunks have one noise variance.")
    objective, theta = model._objective(), model.theta_
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
        theta = theta - model._units + math.log(amplitude) * np.asarray(mask)
        theta[part] += math.log(of_noise / amplitude)
        found = found.with_scales(objective.at(theta).kernel, amplitude, of_noise)
        calibration = 1.0
        if model._calibrates(model._noise):
            mean, variance = found.leave_one_out()
            z = Normal(mean, np.sqrt(variance)).z(found.y)
            chosen = model.kernel is None
            calibration = widening(z, CALIBRATED_LEVEL) * unbiased_factor(found.n_rows, len(theta) + chosen)
            theta = theta + math.log(calibration) * np.asarray(mask)
            found = found.rescaled(objective.at(theta).kernel, calibration)
        given = LearnedNoise(float(objective.variances(theta)[0]) * model.scale_**2)
        theta = theta + model._units
    why = f"rows come in chunks; parameters were learned from {len(posterior.y):,} of them"
    return Absorbed(found, theta, given, calibration, why)


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
