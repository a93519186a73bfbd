"""Report of a fitted regression of several targets."""

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import as_matrix
from mercer.core.machine import in_words
from mercer.core.text import table
from mercer.distributions import Normal
from mercer.models.output_predictions import MAX_TARGETS_IN_PRINT
from mercer.report import diagnostics
from mercer.report.page import (
    HELD_OUT,
    Report,
    about_learning,
    columns,
    entries,
    in_order,
    optima,
    parameter_section,
)
from mercer.scores import calibration, unbiased_factor

FEW_MEASUREMENTS = 10  # of a target, below which its own parameters are hardly determined
BASIS = "Checked: calibration and outliers of leave-one-out predictions, at parameters learned from all measurements."


def report(model, X=None, y=None) -> Report:
    """Report of a fitted `MultiOutputGaussianProcessRegressor`, also on held-out rows ``X``, ``y``."""
    p, mean, variance = model.left_out()
    unit, values = model.scale_[p], model._measured.values
    center = model.center_[p]
    predicted = Normal((mean - center) / unit, np.sqrt(variance) / unit)  # all targets on one scale
    found = calibration((values - center) / unit, predicted)
    n, k = len(values), len(model.theta_) + (model.kernel is None)
    allowance = min(model.calibration_, unbiased_factor(n, k))
    findings = []
    if n >= diagnostics.MIN_ROWS:
        findings = diagnostics.calibration(found.z, widened=allowance) + diagnostics.outliers(found.z)
    sections = columns(model) | {
        "Fit": _fit(model, n),
        "Targets": model.target_table() + _widened(model),
        **_correlations(model),
        "Parameters": parameter_section(model),
    }
    if X is not None or y is not None:
        sections[HELD_OUT] = _held_out(model, X, y)
    sections["Calibration of leave-one-out intervals"] = str(found)
    if model.choice_ is not None:
        sections["Kernels tried"] = str(model.choice_)
    sections["Optima found"] = optima(model)
    numerics = model.numerics_
    sections["Numerics"] = (
        f"jitter {numerics['jitter']:.2g}, condition number about {numerics['condition']:.2g}, "
        f"residual |Ca - y|/|y| {numerics['residual']:.2g}"
    )
    findings = in_order(findings)
    suggestions = [*map(str, findings), *_suggestions(model, p)]
    title = f"Gaussian process regression of {len(model.outputs_)} targets, {n:,} measurements"
    return Report(title, sections, suggestions, found, None, tuple(findings), BASIS)


def _fit(model, n: int) -> str:
    rows = [
        [
            "log evidence",
            f"{model.log_marginal_likelihood_:.2f} ({model.log_marginal_likelihood_ / n:.3f} per measurement)",
        ],
        ["rows", f"{model._measured.rows:,}"],
        ["method", f"{model.plan_.method}, {model.n_evaluations_} evaluations of the evidence"],
        ["memory", in_words(model.plan_.memory)],
    ]
    return entries(rows)


def _widened(model) -> str:
    if model.calibration_ <= 1:
        return ""
    return (
        f"\nintervals were widened: the covariance was multiplied by {model.calibration_:.3g}, so that 95% intervals "
        "cover 95% of left-out measurements, and of new ones"
    )


def _correlations(model) -> dict[str, str]:
    if not 1 < len(model.outputs_) <= MAX_TARGETS_IN_PRINT:
        return {}
    return {"Correlations between targets": str(model._quick_correlations())}


def _held_out(model, X, y) -> str:
    if X is None or y is None:
        raise DataError("held-out rows need inputs X and targets y: give both, or neither.")
    predicted = model.predict_distribution(X)
    shape = predicted.mean.shape
    Y = np.asarray(as_matrix(y, "y", gaps=True)).reshape(shape)
    rows = []
    pieces = zip(Y.reshape(shape[0], -1).T, predicted.mean.reshape(shape[0], -1).T,
                 predicted.deviation.reshape(shape[0], -1).T, strict=True)  # fmt: skip
    single = len(shape) == 1 and model._measured.form != "one"
    names = ["all"] if single else model.outputs_
    for name, (truth, mean, deviation) in zip(names, pieces, strict=True):
        told = np.isfinite(truth)
        if not told.any():
            continue
        found = calibration(truth[told], Normal(mean[told], deviation[told]))
        inside = found.coverage[found.levels.index(0.95)]
        rows.append([str(name), f"{told.sum():,}", f"{found.rmse:.4g}", f"{found.mean_absolute_error:.4g}",
                     "undefined" if np.isnan(found.r2) else f"{found.r2:.4f}", f"{found.log_density:.4f}",
                     f"{inside:.0%}"])  # fmt: skip
    head = ["target", "measured", "RMSE", "mean absolute error", "R^2", "log density", "in 95% intervals"]
    return table(head, rows)


def _suggestions(model, p: np.ndarray) -> list[str]:
    found = about_learning(model)
    counts = np.bincount(p, minlength=len(model.outputs_))
    few = [str(name) for name, count in zip(model.outputs_, counts, strict=True) if count < FEW_MEASUREMENTS]
    if few and model.optima_ and model.learning == "mle":
        found.append(
            f"{', '.join(few)} {'has' if len(few) == 1 else 'have'} few measurements: learning='map' keeps the "
            "covariance with the other targets from being learned from accidents."
        )
    if model.numerics_["jitter"] > 0:
        found.append("the covariance was numerically singular, so jitter was added: give noise, or drop duplicates.")
    return found
