"""Plots of fitted regressions: calibration of intervals, predictions, relevance of inputs."""

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import as_vector
from mercer.distributions import Distribution, Normal
from mercer.models.output_predictions import check_one_target
from mercer.plot.axes import new_axes

LEVELS = np.linspace(0.0, 1.0, 201)
IDEAL = "ideal"


def calibration(y, mean=None, deviation=None, ax=None, label=None, color=None):
    """Coverage of central intervals against their level; calibrated intervals are diagonal.

    Below the diagonal intervals are too narrow, above it too wide. The band would contain 95% of calibrated models.
    ``y, mean, deviation`` are measurements and their predictions, (n,) each; or y and the result of
    ``predict_distribution``; or y is a fitted model, for its leave-one-out predictions. Call it twice with the same
    ``ax`` to compare.
    """
    from scipy.stats import binom  # slow to import

    ax = new_axes(ax)
    label = label or ("leave-one-out" if mean is None else "observed")
    y, predicted = _checked_predictions(y, mean, deviation)
    n, smallest = len(y), np.abs(2 * predicted.cdf(y) - 1)  # level of the smallest interval with the measurement
    coverage = np.mean(smallest[:, None] <= LEVELS, axis=0)
    if not any(line.get_label() == IDEAL for line in ax.get_lines()):
        ax.plot([0, 1], [0, 1], color="0.4", lw=1, ls="--", label=IDEAL)
    (line,) = ax.plot(LEVELS, coverage, color=color, lw=2, label=f"{label}, n = {n:,}")
    chance = binom.interval(0.95, n, LEVELS[1:-1])
    ax.fill_between(LEVELS[1:-1], chance[0] / n, chance[1] / n, color=line.get_color(), alpha=0.13, lw=0)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="level of the interval", ylabel="coverage")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.legend(loc="upper left", fontsize="small")
    return ax


def predictions(y, mean=None, deviation=None, ax=None, level: float = 0.95, color="tab:blue"):
    """Measurements against predictions, with intervals of ``level``; red where these miss.

    ``y, mean, deviation`` as in `calibration`: arrays, or a fitted model for its leave-one-out predictions.
    """
    ax = new_axes(ax)
    y, predicted = _checked_predictions(y, mean, deviation)
    mean, (low, high) = predicted.mean, predicted.interval(level)
    missed = (y < low) | (y > high)
    widths = np.maximum(np.stack([mean - low, high - mean]), 0.0)  # the mean of a skewed one may be outside
    size = {"ms": float(np.clip(40 / np.sqrt(len(y)), 2, 5)), "elinewidth": 0.8}
    opacity = float(np.clip(3 / np.sqrt(len(y)), 0.1, 0.4))
    for rows, shade, label in ((~missed, color, "inside"), (missed, "tab:red", "outside")):
        if rows.any():
            ax.errorbar(
                mean[rows], y[rows], xerr=widths[:, rows], fmt="o", color=shade, ecolor=(shade, opacity), **size,
                label=f"{label} the {level:.0%} interval ({rows.sum():,})",
            )  # fmt: skip
    low, high = min(y.min(), mean.min()), max(y.max(), mean.max())
    ax.axline((low, low), slope=1, color="0.4", lw=1, ls="--", zorder=0)
    margin = 0.05 * (high - low) or 1.0
    ax.set(ylim=(low - margin, high + margin), xlabel="predicted", ylabel="measured")
    ax.legend(fontsize="small")
    return ax


def relevance(model, ax=None, most: int = 15, color="tab:blue"):
    """Share of the variance explained through each input, largest on top, with two standard errors; grey if irrelevant.

    ``model`` is a fitted model, or the result of its ``relevance()``. Only the ``most`` relevant inputs are drawn.
    """
    check_one_target(model, "relevance")
    table = model.relevance() if hasattr(model, "relevance") else model
    order = np.argsort(-table.effect, kind="stable")[:most][::-1]
    ax = new_axes(ax)
    share, error = table.effect[order], np.where(np.isfinite(table.error), 2 * table.error, 0.0)[order]
    ax.barh(range(len(order)), share, color=[("0.75" if table.irrelevant[i] else color) for i in order])
    ax.hlines(range(len(order)), np.maximum(share - error, 0.0), share + error, color="0.25", lw=1.2)
    for place, i in enumerate(order):
        ax.annotate(
            f"{table.effect[i]:.2f}", (share[place] + error[place], place), (4, 0), textcoords="offset points",
            va="center", fontsize="small",
        )  # fmt: skip
    ax.set_yticks(range(len(order)), [_short(table.names[i]) for i in order])
    ax.set(xlim=(0, 1.12 * max(float((share + error).max()), 1e-9)), xlabel="share of variance explained")
    ax.spines[["top", "right"]].set_visible(False)
    if len(order) < len(table.names):
        ax.set_title(f"the {len(order)} most relevant of {len(table.names)} inputs", fontsize="medium")
    return ax


def _checked_predictions(y, mean, deviation) -> tuple[np.ndarray, Distribution]:
    """Measurements and their predictions: as given, or a fitted model's leave-one-out."""
    check_one_target(y, "this plot")
    if hasattr(y, "loo"):
        if not getattr(y, "_is_gaussian", lambda: True)():
            rows = y._measured_rows()
            return y.y_train_[rows], y.loo_distribution(rows)
        loo = y.loo()
        return y.y_train_, Normal(loo.mean, np.sqrt(loo.variance))
    if isinstance(mean, Distribution):
        return as_vector(y, len(mean.mean)), mean
    if mean is None or deviation is None:
        raise DataError("give a fitted model, or measurements with their predicted means and standard deviations.")
    n = len(y)
    y, mean, deviation = as_vector(y, n), as_vector(mean, n, "mean"), as_vector(deviation, n, "deviation")
    if (deviation < 0).any():
        raise DataError("standard deviations must not be negative; some are.")
    return y, Normal(mean, deviation)


def _short(name: str, max_length: int = 28) -> str:
    return name if len(name) <= max_length else name[: max_length - 1] + "…"
