"""What estimators keep of a fit, and what they say of it: steps, optima, rows left out, kernels to print, warnings."""

import importlib
import warnings
from typing import Any, NamedTuple

from mercer.core.errors import InterruptedFitWarning, ModelWarning
from mercer.core.parameters import evolve, evolve_at, slots_of
from mercer.core.text import rounded
from mercer.learning import heuristics


class Iteration(NamedTuple):
    """One step of learning: the evidence (plus the prior, for "map"), the parameters, and on how many rows."""

    value: float
    parameters: dict[str, Any]
    rows: int


class Found(NamedTuple):
    """An optimum of the evidence: its value, its parameters, where the climb began, and how many ended there."""

    value: float
    parameters: dict[str, Any]
    start: str
    converged: bool
    times_found: int


def quoted(kernel):
    """The kernel with its numbers rounded, to be printed."""
    for slot in slots_of(kernel):
        kernel = evolve_at(kernel, slot.path, **{slot.field: rounded(slot.value)})
    if getattr(kernel, "shift", None) is not None:
        kernel = evolve(kernel, shift=rounded(kernel.shift), scale=rounded(kernel.scale))
    return kernel


def warn_of_model(model, kernels, X, unknown_mean: bool, noise_prior: bool = False):
    """Warn of what is allowed but hardly meant: priors left unused, lines through a far-away origin."""
    carried = any(slot.prior is not None for kernel in kernels for slot in slots_of(kernel))
    if model.learning == "mle" and (carried or noise_prior):
        who = "the kernel carries priors" if carried else "the noise has a prior"
        warnings.warn(
            f"{who}, which learning='mle' leaves out; learning='map' uses them.",
            ModelWarning,
            stacklevel=4,
        )
    lines = [found for kernel in kernels for found in heuristics.through_zero(kernel, X, unknown_mean)]
    if lines:
        warnings.warn(
            f"{lines[0]!r} has only functions that are zero at x = 0, and these inputs are many spreads away from it, "
            "so that they hardly vary there. Put a constant beside it, Linear() + 1.0 "
            "or Polynomial(2, offset=1.0), or shift the inputs, x - x.mean().",
            ModelWarning,
            stacklevel=4,
        )


def warn_of_interruption(evaluations: int, stacklevel: int):
    """``stacklevel`` as in `warnings.warn`, counted from here."""
    warnings.warn(
        f"the fit was interrupted after {evaluations} evaluations; the model has the best parameters found until then.",
        InterruptedFitWarning,
        stacklevel=stacklevel,
    )


def reported(model, X, y):
    """The report of a fitted model. Reports stand above models, so they are found by name: no model depends on them."""
    return importlib.import_module("mercer.report").report(model, X, y)
