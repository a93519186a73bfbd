"""What a fitted regression says of itself, in a page."""

import dataclasses
import math

import numpy as np
from scipy.special import ndtri

from mercer import gram
from mercer.core.errors import DataError, MercerError
from mercer.core.inputs import as_frame, as_matrix, as_vector, holds_numbers, is_numeric, take_rows
from mercer.core.machine import in_words
from mercer.core.text import number, rounded, table
from mercer.report import diagnostics
from mercer.report.page import HELD_OUT, Report, about_inputs, about_learning, entries, in_order, optima

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
DENSE_ROWS = 5000  # up to this, one more factorisation is no trouble
BASIS = (
    "Looked at: calibration, outliers, seasons, order, curvature, spread and skew of rows left out one at a time at "
    "parameters learned from all rows."
)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How often intervals of each level held what they should, and how well the mean did."""

    levels: tuple[float, ...]
    coverage: np.ndarray
    rmse: float
    mean_absolute_error: float
    r2: float
    log_density: float
    z: np.ndarray

    def __str__(self):
        rows = []
        for level, found in zip(self.levels, self.coverage, strict=True):
            low, high = diagnostics.chance_range(len(self.z), level)
            rows.append([f"{level:.0%}", f"{found:.1%}", f"{low:.1%} to {high:.1%}"])
        return table(["interval", "held", "by chance"], rows)


def standardised(y, mean, deviation) -> np.ndarray:
    """How many standard deviations above the mean; zero where it is met exactly, whatever the deviation."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(y == mean, 0.0, (y - mean) / deviation)


def log_density(y, mean, deviation) -> np.ndarray:
    """ln N(y | mean, deviation^2); infinite, not NaN, where the deviation is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        density = -0.5 * standardised(y, mean, deviation) ** 2 - np.log(deviation) - 0.5 * math.log(2 * math.pi)
    return np.where(deviation > 0, density, np.where(y == mean, np.inf, -np.inf))


def calibration(y, mean, deviation) -> Calibration:
    """Of predictions beside what was then measured."""
    y, mean, deviation = (np.asarray(v, dtype=float) for v in (y, mean, deviation))
    missed = y - mean
    z = standardised(y, mean, deviation)
    coverage = np.array([np.mean(np.abs(z) <= ndtri(0.5 + level / 2)) for level in LEVELS])
    spread = float(np.sum((y - y.mean()) ** 2))
    r2 = 1 - float(missed @ missed) / spread if spread > 0 else float("nan")
    rmse, mae = float(np.sqrt(np.mean(missed**2))), float(np.mean(np.abs(missed)))
    return Calibration(LEVELS, coverage, rmse, mae, r2, float(np.mean(log_density(y, mean, deviation))), z)


def report(model, X=None, y=None) -> Report:
    """The report of a fitted `GaussianProcessRegressor`; given rows it was not fitted to, these are judged too."""
    n, kept = len(model.y_train_), np.unique(model._copies(), return_index=True)[1]  # copies are judged once
    loo, seen = type(model.loo())(*(part[kept] for part in model.loo())), model.y_train_[kept]
    left_out = calibration(seen, loo.mean, np.sqrt(loo.variance))
    findings = _findings(model, left_out, loo, seen)
    sections = {
        "Fit": _fit(model, left_out, n),
        "Noise": _noise(model, seen),
        "Parameters": str(table(["parameter", "value"], _parameters(model))),
    }
    if X is not None or y is not None:
        held, densities = _held_out(model, X, y)
        sections[HELD_OUT] = _beside(held, left_out)
        findings += diagnostics.disagreement(loo.log_score, densities)
        if not any(finding.kind == "calibration" for finding in findings):  # the same of others is no news
            findings += diagnostics.calibration(held.z, of="held out")
    try:
        relevance = model.relevance()
    except DataError:
        relevance = None
    if relevance is not None:
        sections["Relevance of inputs"] = str(relevance)
    sections["Calibration of leave-one-out intervals"] = str(left_out)
    if model.choice_ is not None:
        sections[f"Kernels tried, on {model.choice_.rows:,} rows"] = str(model.choice_)
    sections["Optima found"] = optima(model)
    sections["Numerics"] = _numerics(model)
    findings = in_order(findings)
    suggestions = [*map(str, findings), *_suggestions(model, left_out, relevance, n, findings)]
    title = f"Gaussian process regression, {n:,} rows"
    return Report(title, sections, suggestions, left_out, relevance, tuple(findings), BASIS)


def _findings(model, left_out, loo, y) -> list[diagnostics.Finding]:
    X, names = _columns(model, len(y))
    return diagnostics.of_residuals(left_out.z, loo.mean, y, X, names, _independent(model))


def _columns(model, n) -> tuple[np.ndarray, list[str]]:
    """The inputs that are numbers, and their names: (n, d)."""
    X = model._data()[0]
    frame = as_frame(X)
    if frame is None:
        matrix = as_matrix(X) if holds_numbers(X) else np.zeros((n, 0))
        return matrix, [f"x{j}" for j in range(matrix.shape[1])]
    numbers = [j for j, dtype in enumerate(frame.schema.values()) if is_numeric(dtype)]
    names = [str(frame.columns[j]) for j in numbers]
    return as_matrix(frame[:, numbers].to_native()) if numbers else np.zeros((len(frame), 0)), names


def _independent(model) -> np.ndarray | None:
    """L^-1 (y - m) for rows in random order: each predicted from those before it, in standard deviations. Independent
    if the model is right, which leave-one-out residuals are not. None where that would take long."""
    X, target, noise = model._data()
    n = len(target)
    if n > DENSE_ROWS:
        return None
    order = np.random.default_rng(0).permutation(n)
    try:
        L = gram.factored(model.kernel_, take_rows(X, order), noise[order])
    except MercerError:
        return None
    a, b = L.half_solve(target[order]), L.half_solve(np.ones(n))
    out = np.empty(n)
    out[order] = a - b * (b @ a) / (b @ b)  # a level of their own, as it is not known
    return out


def _held_out(model, X, y) -> tuple[Calibration, np.ndarray]:
    """Of rows not fitted to: how well they are predicted, and their log densities."""
    if X is None or y is None:
        raise DataError("held-out rows are inputs X and targets y; give both, or neither.")
    mean, deviation = model.predict(X, return_std=True)
    y = as_vector(y, len(mean))
    return calibration(y, mean, deviation), log_density(y, mean, deviation)


def _beside(held: Calibration, left_out: Calibration) -> str:
    """Scores and coverage of held-out rows next to those of leave-one-out."""
    both = (held, left_out)
    measures = [
        ["rows", *(f"{len(found.z):,}" for found in both)],
        ["R^2", *("undefined" if np.isnan(found.r2) else f"{found.r2:.4f}" for found in both)],
        ["RMSE", *(f"{found.rmse:.4g}" for found in both)],
        ["mean absolute error", *(f"{found.mean_absolute_error:.4g}" for found in both)],
        ["log density a row", *(f"{found.log_density:.4f}" for found in both)],
    ]
    coverage = []
    for i, level in enumerate(LEVELS):
        low, high = diagnostics.chance_range(len(held.z), level)
        shares = [f"{held.coverage[i]:.1%}", f"{low:.1%} to {high:.1%}", f"{left_out.coverage[i]:.1%}"]
        coverage.append([f"{level:.0%}", *shares])
    head = ["interval", "held out", "expected by chance", "leave-one-out"]
    return table(["", "held out", "leave-one-out"], measures) + "\n\n" + table(head, coverage)


def _fit(model, held, n) -> str:
    rows = [
        ["log evidence", f"{model.log_marginal_likelihood_:.2f} ({model.log_marginal_likelihood_ / n:.3f} a row)"],
        ["leave-one-out R^2", "undefined: y is constant" if np.isnan(held.r2) else f"{held.r2:.4f}"],
        ["leave-one-out RMSE", f"{held.rmse:.4g}"],
        ["leave-one-out log density", f"{held.log_density:.4f} a row"],
        ["method", f"{model.plan_.method}, {model.n_evaluations_} evaluations of the evidence"],
        ["memory", in_words(model.plan_.memory)],
    ]
    return entries(rows)


def _noise(model, y) -> str:
    noise, spread = float(np.mean(model.noise_)), float(np.std(y))
    if noise == 0:
        return "none is added to the kernel's own."
    kind = "learned" if model.noise is None else "as given"
    share = f", {np.sqrt(noise) / spread:.1%} of the spread of y" if spread > 0 else ""
    text = f"standard deviation {np.sqrt(noise):.4g} ({kind}){share}"
    if model.calibration_ > 1:
        text += (
            f"\nwidened: the covariance was multiplied by {model.calibration_:.3g}, for 95% intervals to hold 95% of "
        )
        text += "rows left out, and of new ones"
    return text


def _parameters(model):
    rows = []
    for name, value in model.kernel_.parameters.items():
        rows.append([name, number(rounded(value))])
    return [*rows, ["noise", f"{float(np.mean(model.noise_)):.4g}"]]


def _numerics(model) -> str:
    found = model.numerics_
    return (
        f"jitter {found['jitter']:.2g}, condition number about {found['condition']:.2g}, "
        f"residual |Ca - y|/|y| {found['residual']:.2g}"
    )


def _suggestions(model, held, relevance, n, findings) -> list[str]:
    found = []
    repeated = n - len(np.unique(model._copies()))
    if repeated:
        found.append(
            f"{repeated:,} rows repeat others exactly, target included: they are taken for copies, and count once. "
            "Where they are measurements of their own, give noise=..."
        )
    free = len(model.theta_)
    if model.optima_ and 5 * free > n >= 10:
        found.append(f"{free} parameters were learned from {n} rows: intervals may be too narrow; fix or tie some.")
    if n < 10:
        found.append(f"{n} rows hardly determine the parameters; a kernel with priors would help (learning='map').")
    found += about_inputs(relevance, but={finding.name for finding in findings})
    found += about_learning(model)
    if model.optima_ and model.n_restarts == 0 and n <= 2000 and held.r2 < 0.2:
        found.append("little of y is explained: try n_restarts=5, another kernel, or inputs scaled to order one.")
    if model.learning == "mle" and any(slot.prior is not None for slot in model.kernel_._slots()):
        found.append("the kernel carries priors, which learning='mle' leaves out; learning='map' uses them.")
    if model.numerics_["jitter"] > 0:
        found.append("the covariance was singular to rounding and got jitter: give noise, or drop duplicate rows.")
    if model.numerics_["residual"] > 1e-6:
        found.append("the equations were solved with few correct digits: more noise, or a rougher kernel, would help.")
    return found


def interval(mean, deviation, level: float):
    """The central interval that should hold ``level`` of new measurements."""
    z = float(ndtri(0.5 + level / 2))
    return mean - z * deviation, mean + z * deviation
