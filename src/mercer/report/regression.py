"""What a fitted regression says of itself, in a page."""

import dataclasses
import math

import numpy as np
from scipy.special import ndtri

from mercer.core.errors import DataError
from mercer.core.machine import in_words
from mercer.core.text import number, rounded, table
from mercer.report.page import Report, about_inputs, about_learning, entries, optima

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


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
        rows = [[f"{level:.0%}", f"{found:.1%}"] for level, found in zip(self.levels, self.coverage, strict=True)]
        return table(["interval", "held"], rows)


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


def report(model) -> Report:
    """The report of a fitted `GaussianProcessRegressor`."""
    loo = model.loo()
    y, n = model.y_train_, len(model.y_train_)
    held = calibration(y, loo.mean, np.sqrt(loo.variance))
    try:
        relevance = model.relevance()
    except DataError:
        relevance = None
    sections = {
        "Fit": _fit(model, held, n),
        "Noise": _noise(model, y),
        "Parameters": str(table(["parameter", "value"], _parameters(model))),
    }
    if relevance is not None:
        sections["Relevance of inputs"] = str(relevance)
    sections["Calibration of leave-one-out intervals"] = str(held)
    sections["Optima found"] = optima(model)
    sections["Numerics"] = _numerics(model)
    return Report(
        f"Gaussian process regression, {n:,} rows", sections, _suggestions(model, held, relevance, n), held, relevance
    )


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
            f"\nwidened: the covariance was multiplied by {model.calibration_:.3g}, for 95% intervals of rows left out "
        )
        text += "to hold 95%"
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


def _suggestions(model, held, relevance, n) -> list[str]:
    found = []
    repeated = n - len(np.unique(model.copy_of_))
    if repeated:
        found.append(
            f"{repeated} rows repeat others exactly, target included: they are taken for copies, and count once. Where "
            "they are measurements of their own, give noise."
        )
    free = len(model.theta_)
    if model.optima_ and 5 * free > n >= 10:
        found.append(f"{free} parameters were learned from {n} rows: intervals may be too narrow; fix or tie some.")
    if n < 10:
        found.append(f"{n} rows hardly determine the parameters; a kernel with priors would help (learning='map').")
    found += about_inputs(relevance)
    coverage = dict(zip(held.levels, held.coverage, strict=True))[0.95]
    # What 95% intervals hold of n rows varies by chance, by two standard deviations of this:
    slack = 2 * np.sqrt(0.95 * 0.05 / n) + 0.01
    if coverage < 0.95 - slack:
        found.append(
            f"95% intervals hold only {coverage:.1%} of the rows left out: the noise may vary, or have heavy tails. "
            "Look at the rows with the largest |z| in report().calibration.z."
        )
    elif coverage > 0.95 + slack:
        found.append(f"95% intervals hold {coverage:.1%} of the rows left out: a few outliers may set the noise.")
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
