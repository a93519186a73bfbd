"""Report of a fitted regression."""

import dataclasses

import numpy as np

from mercer import gram
from mercer.core.errors import DataError, MercerError
from mercer.core.inputs import as_frame, as_matrix, as_vector, holds_numbers, is_numeric
from mercer.core.machine import in_words
from mercer.core.parameters import slots_of
from mercer.core.text import table
from mercer.models.doubt import about_distance
from mercer.report import approximation_error, diagnostics
from mercer.report.page import (
    HELD_OUT,
    Report,
    about_inputs,
    about_learning,
    columns,
    entries,
    in_order,
    optima,
    parameter_section,
)
from mercer.scores import Calibration, calibration, chance_range, unbiased_factor
from mercer.solvers.iterative import MAX_LEFT_OUT_ERROR

MAX_DENSE_ROWS = 5000  # for which another factorisation is affordable
BASIS = (
    "Checked: calibration, outliers, seasons, autocorrelation, curvature, noise level and skewness, on leave-one-out "
    "residuals at parameters learned from all rows."
)


def report(model, X=None, y=None) -> Report:
    """Report of a fitted `GaussianProcessRegressor`, also on held-out rows ``X``, ``y`` if they are given; of a
    stream on these alone."""
    if model._streams():
        return _of_stream(model, X, y)
    n, kept = len(model.y_train_), np.unique(model._copies(), return_index=True)[1]  # copies count once
    if not model._is_gaussian():
        kept = model._measured_rows()
    loo, target = model.loo().take(kept), model.y_train_[kept]
    predicted = model.loo_distribution(kept)
    left_out = calibration(target, predicted)
    findings = _findings(model, left_out, loo, target)
    sections = columns(model) | {
        "Fit": _fit(model, left_out, model.n_rows_ or n),
        **({"Noise": _noise(model, target)} if model.likelihood_ is None else {"Likelihood": _likelihood(model)}),
        "Parameters": parameter_section(model),
    }
    if model.trend_ is not None:
        sections["Mean"] = f"{model._given_mean()!r}, in units of y\n\n{model.trend_}"
    effects = model.effects()
    if effects.groups:
        sections["Variance components and effects of groups"] = str(effects)
    if X is not None or y is not None:
        held, densities = _held_out(model, X, y)
        sections[HELD_OUT] = _comparison(held, left_out)
        findings += diagnostics.disagreement(loo.log_score, densities)
        if not any(finding.kind == "calibration" for finding in findings):  # report it once
            findings += diagnostics.calibration(held.z, of="held out", widened=_allowance(model, len(kept)))
    try:
        relevance = model.relevance()
    except DataError:
        relevance = None
    if relevance is not None:
        sections["Relevance of inputs"] = str(relevance)
    sections["Calibration of leave-one-out intervals"] = str(left_out)
    if model.choice_ is not None:
        remark = model.choice_.word_on_blocks()
        sections["Kernels tried"] = str(model.choice_) + ("" if remark is None else f"\n{remark}")
    sections["Optima found"] = optima(model)
    sections["Numerics"] = _numerics(model)
    findings = in_order(findings)
    suggestions = [*map(str, findings), *_suggestions(model, left_out, relevance, n, findings)]
    title = f"Gaussian process regression, {model.n_rows_ or n:,} rows"
    if model.n_rows_ is not None:
        title += f", {n:,} of them kept for leave-one-out"
    return Report(title, sections, suggestions, left_out, relevance, tuple(findings), BASIS)


def _of_stream(model, X, y) -> Report:
    """From held-out rows, since those of a stream are not kept."""
    held, _ = _held_out(model, X, y)
    n, found = model._row_count(), model.numerics_
    fit = [
        ["log evidence", f"{model.log_marginal_likelihood_:.2f} ({model.log_marginal_likelihood_ / n:.3f} per row)"],
        ["held-out R^2", "undefined: y is constant" if np.isnan(held.r2) else f"{held.r2:.4f}"],
        ["held-out RMSE", f"{held.rmse:.4g}"],
        ["held-out log density", f"{held.log_density:.4f} per row"],
        *(
            [f"{name.replace('_', ' ')}", f"{found[name]:,.4g}"]
            for name in ("centers", "lost_nats") if name in found
        ),
    ]  # fmt: skip
    sections = columns(model) | {
        "Fit": entries(fit),
        "Noise": _noise(model, as_vector(y, len(held.z))),
        "Parameters": parameter_section(model),
        "Calibration of intervals of held-out rows": str(held),
        "Optima found": optima(model),
    }
    findings = in_order(diagnostics.calibration(held.z, of="held out"))
    title = f"Gaussian process regression, a stream of {n:,} rows"
    suggestions = [*map(str, findings), *about_learning(model)]
    return Report(title, sections, suggestions, held, None, tuple(findings), "Checked: calibration on held-out rows.")


def _likelihood(model) -> str:
    converged = "" if model.numerics_["converged"] else ", which did not converge"
    return f"{model.likelihood_.label}; inference: {model.inference_}{converged}"


def _findings(model, left_out, loo, y) -> list[diagnostics.Finding]:
    if model.likelihood_ is not None:
        found = diagnostics.calibration(left_out.z) if len(y) >= diagnostics.MIN_ROWS else []
        remedy = "another likelihood may fit better, such as 'negative_binomial' for counts, or a rougher kernel"
        return [
            dataclasses.replace(one, text=one.text.replace("than a Gaussian", "than predicted"), remedy=remedy)
            for one in found
        ]
    X, names = _columns(model, len(y))
    independent = _independent(model)
    found = diagnostics.of_residuals(left_out.z, loo.mean, y, X, names, independent, _allowance(model, len(y)))
    if hasattr(model, "noise_varies_"):  # it is that model already
        own = diagnostics.VARYING_NOISE, "another noise_kernel"
        found = [dataclasses.replace(one, remedy=one.remedy.replace(*own)) for one in found]
    return found


def _allowance(model, n: int) -> float:
    """The part of ``calibration_`` that allows for parameters learned from these n rows, which leave-one-out at those
    parameters does not need."""
    return min(model.calibration_, unbiased_factor(n, len(model.theta_) + (model.kernel is None)))


def _columns(model, n) -> tuple[np.ndarray, list[str]]:
    """The numeric inputs (n, d) and their names."""
    X = model._places(model._told()[0])
    frame = as_frame(X)
    if frame is None:
        matrix = as_matrix(X) if holds_numbers(X) else np.zeros((n, 0))
        return matrix, [f"x{j}" for j in range(matrix.shape[1])]
    numbers = [j for j, dtype in enumerate(frame.schema.values()) if is_numeric(dtype)]
    names = [str(frame.columns[j]) for j in numbers]
    return as_matrix(frame[:, numbers].to_native()) if numbers else np.zeros((len(frame), 0)), names


def _independent(model) -> np.ndarray | None:
    """Standardised residuals of each row given those before it in random order, L^-1 (y - m): independent if the model
    is right, which leave-one-out residuals are not. None for more than MAX_DENSE_ROWS rows."""
    X, target, noise = model._told()
    n = len(target)
    if n > MAX_DENSE_ROWS:
        return None
    order = np.random.default_rng(0).permutation(n)
    try:
        L = gram.factored(model.kernel_, gram.kept(model.posterior_, model.kernel_, X)[order], noise[order])
    except MercerError:
        return None
    mean = model.posterior_.prior_mean
    H = mean.columns(X) if mean.unknown else np.ones((n, 1))
    a, B = L.half_solve((target - mean(X))[order]), L.half_solve(H[order])
    out = np.empty(n)
    out[order] = a - B @ np.linalg.lstsq(B, a, rcond=None)[0]  # minus the estimate of the unknown mean
    return out


def _held_out(model, X, y) -> tuple[Calibration, np.ndarray]:
    """Calibration and log densities of held-out rows."""
    if X is None or y is None:
        raise DataError("held-out rows need inputs X and targets y: give both, or neither.")
    predicted = model.predict_distribution(X)
    y = as_vector(y, len(predicted.mean))
    return calibration(y, predicted), predicted.log_density(y)


def _comparison(held: Calibration, left_out: Calibration) -> str:
    """Scores and coverage of held-out rows next to those of leave-one-out."""
    both = (held, left_out)
    measures = [
        ["rows", *(f"{len(found.z):,}" for found in both)],
        ["R^2", *("undefined" if np.isnan(found.r2) else f"{found.r2:.4f}" for found in both)],
        ["RMSE", *(f"{found.rmse:.4g}" for found in both)],
        ["mean absolute error", *(f"{found.mean_absolute_error:.4g}" for found in both)],
        ["log density per row", *(f"{found.log_density:.4f}" for found in both)],
    ]
    coverage = []
    for i, level in enumerate(held.levels):
        low, high = chance_range(len(held.z), level)
        shares = [f"{held.coverage[i]:.1%}", f"{low:.1%} to {high:.1%}", f"{left_out.coverage[i]:.1%}"]
        coverage.append([f"{level:.0%}", *shares])
    head = ["interval", "held out", "expected by chance", "leave-one-out"]
    return table(["", "held out", "leave-one-out"], measures) + "\n\n" + table(head, coverage)


def _fit(model, held, n) -> str:
    rows = [
        ["log evidence", f"{model.log_marginal_likelihood_:.2f} ({model.log_marginal_likelihood_ / n:.3f} per row)"],
        ["leave-one-out R^2", "undefined: y is constant" if np.isnan(held.r2) else f"{held.r2:.4f}"],
        ["leave-one-out RMSE", f"{held.rmse:.4g}"],
        ["leave-one-out log density", f"{held.log_density:.4f} per row"],
        *([["rows without a target", f"{len(model.gaps_):,}, left out"]] if len(model.gaps_) else []),
        ["method", f"{model.plan_.method}, {model.n_evaluations_} evaluations of the evidence"],
        ["memory", in_words(model.plan_.memory)],
    ]
    return entries(rows)


def _noise(model, y) -> str:
    noise, spread = float(np.mean(model.noise_)), float(np.std(y))
    if noise == 0:
        return "none, apart from any in the kernel."
    kind = "as given" if model._fitted_noise().given else "learned"
    share = f", {np.sqrt(noise) / spread:.1%} of that of y" if spread > 0 else ""
    text = f"standard deviation {np.sqrt(noise):.4g} ({kind}){share}"
    if getattr(model, "noise_varies_", False):
        low, high = np.sqrt(np.quantile(model.noise_, [0.05, 0.95]))
        text += f"\nit varies with the inputs: between {low:.4g} and {high:.4g} on 90% of the rows (predict_noise)"
    if model.calibration_ > 1:
        text += f"\nintervals were widened: the covariance was multiplied by {model.calibration_:.3g}, so that 95% "
        text += "intervals cover 95% of left-out rows, and of new rows"
    return text


def _numerics(model) -> str:
    found = model.numerics_
    text = (
        f"jitter {found['jitter']:.2g}, condition number about {found['condition']:.2g}, "
        f"residual |Ca - y|/|y| {found['residual']:.2g}"
    )
    if "evidence_error" in found:
        text += (
            f"\nsolved in {found['iterations']:.0f} iterations: the mean is off by about {found['error']:.1g} standard "
            f"deviations of the prior, the log evidence by about {found['evidence_error']:.2g} nats (estimated)"
        )
        if model.solver_.estimates_left_out(len(model.y_train_)):
            text += (
                f"\nleave-one-out variances are estimated to {MAX_LEFT_OUT_ERROR:.0%}, or else given the nearest rows "
                "alone, which makes them too large rather than too small"
            )
    for says in (about_distance(model), approximation_error.of_regression(model)):
        text += "" if says is None else f"\n{says}"
    return text


def _suggestions(model, held, relevance, n, findings) -> list[str]:
    found = []
    n_copies = n - len(np.unique(model._copies()))
    if n_copies:
        found.append(
            f"{n_copies:,} rows are copies of others, target included, and count once. If they are separate "
            "measurements, give noise=..."
        )
    if model.likelihood_ is None and len(np.unique(model.y_train_)) == 2:
        found.append("y has two distinct values: if they are classes, use GaussianProcessClassifier.")
    free = len(model.theta_)
    if model.optima_ and 5 * free > n >= 10 and model.calibration_ == 1:  # otherwise calibration allows for it
        found.append(f"{free} parameters were learned from {n} rows: intervals may be too narrow; fix or tie some.")
    if n < 10:
        found.append(f"{n} rows are too few to learn the parameters well; priors would help (learning='map').")
    found += about_inputs(relevance, but={finding.name for finding in findings})
    found += about_learning(model)
    if model.optima_ and model.n_restarts == 0 and n <= 2000 and held.r2 < 0.2:
        scales = "other inputs" if model.kernel is None else "inputs on similar scales"
        found.append(f"the model explains little of y: try n_restarts=5, another kernel, or {scales}.")
    if model.learning == "mle" and any(slot.prior is not None for slot in slots_of(model.kernel_)):
        found.append("the kernel has priors, which learning='mle' ignores; learning='map' uses them.")
    if model.numerics_["jitter"] > 0:
        found.append("the covariance was numerically singular, so jitter was added: give noise, or drop duplicates.")
    if model.numerics_["residual"] > model._solver().max_residual():
        found.append("the linear solve lost accuracy to rounding: more noise, or a rougher kernel, would help.")
    return found
