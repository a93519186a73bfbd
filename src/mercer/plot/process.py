"""Plots of Gaussian processes."""

import numpy as np

from mercer.core import calendar
from mercer.core.inputs import column_names, select_columns
from mercer.gp.process import GP
from mercer.kernels.observed import Observed
from mercer.models.output_predictions import check_one_target
from mercer.plot.axes import along, concise_dates, new_axes, pyplot
from mercer.plot.doubt import parameters


def _as_process(process) -> GP:
    check_one_target(process, "this plot")
    return process if isinstance(process, GP) else GP(process)


def samples(process, X, size: int = 5, seed=0, ax=None, **style):
    """Functions sampled from a process (or a kernel's process) along one input."""
    ax = new_axes(ax)
    x, inputs = along(X)
    ax.plot(x, _as_process(process).sample(inputs, size=size, seed=seed).T, **{"lw": 1.2, **style})
    ax.set(xlim=(x.min(), x.max()), xlabel="$x$", ylabel="$f(x)$")
    return ax


def posterior(process, X=None, ax=None, color="tab:red", include_noise: bool = False, level: float = 0.95):
    """Mean and central interval of probability ``level``, of the function or of new measurements.

    ``process`` is a posterior `GP` or a fitted regressor. ``include_noise`` gives the band of new measurements. Dates
    in X are dates on the axis. Without X, of a model fitted with learning="laplace" or "nuts": the posterior of its
    parameters beside their priors, on an array of axes (`mercer.plot.doubt.parameters`).
    """
    if X is None:
        return parameters(process, ax, color)
    check_one_target(process, "this plot")
    ax = new_axes(ax)
    x, inputs = along(X)
    dates = calendar.holds_dates(X)
    shown = calendar.as_dates if dates else np.asarray
    x = shown(x)
    if hasattr(process, "predict_distribution"):
        predicted = process.predict_distribution(inputs, include_noise)
        inputs_seen, target, _ = process.posterior_.data
        y = process._shown_target() if _is_of_another_target(process) else target * process.scale_ + process.center_
    else:
        process = _as_process(process)
        inputs_seen, y, noises = (None, None, 0.0) if process.observed is None else process.data
        noise = np.mean(noises) if include_noise else 0.0
        predicted = process.predict(inputs, noise)
    ax.fill_between(x, *predicted.interval(level), color=color, alpha=0.15, lw=0, label=f"{level:.0%} interval")
    ax.plot(x, predicted.mean, color=color, label="mean")
    if y is not None:
        inputs_seen, y = _values_seen(process, inputs_seen, y)
        size = float(np.clip(40 / np.sqrt(len(y)), 2, 5))
        ax.plot(shown(_data_along(inputs_seen, X)), y, "o", color="tab:blue", ms=size, label="data")
    ax.set(xlim=(x.min(), x.max()), xlabel="$x$", ylabel="$f(x)$")
    if dates:
        concise_dates(ax)
    ax.legend()
    return ax


def _values_seen(process, data, y):
    """Of rows that say which operator was observed, the values of the function; others have other units."""
    kernel = getattr(process, "kernel_", None) or process.kernel
    if not isinstance(kernel, Observed):
        return data, y
    kinds = kernel.functionals.split(data)[1]
    values = kinds == 0
    values[len(data) - getattr(process, "n_virtual_", 0) :] = False
    return kernel.functionals.places(data)[values], y[values]


def _is_of_another_target(model) -> bool:
    """Whether what it was conditioned on is not y itself, but a logarithm or what a likelihood amounts to."""
    return not getattr(model, "_is_gaussian", lambda: True)()


def _data_along(data, X):
    """Values of the data along the input of X: of the column of that name if both are frames."""
    names = column_names(X)
    return along(select_columns(data, tuple(names)) if names and column_names(data) else data, ordered=False)[0]


def field(process, x, y, seed=0, ax=None, **style):
    """One sample over two inputs, on the grid x by y: a surface on 3-D axes (the default), an image on flat ones."""
    if ax is None:
        ax = pyplot().figure(figsize=(6, 5), layout="constrained").add_subplot(projection="3d")
    A, B = np.meshgrid(x, y, indexing="ij")
    values = _as_process(process).sample(np.column_stack([A.ravel(), B.ravel()]), seed=seed).reshape(A.shape)
    if hasattr(ax, "plot_surface"):
        ax.plot_surface(A, B, values, **{"cmap": "viridis", "linewidth": 0.1, "rcount": 60, "ccount": 60, **style})
    else:
        image = ax.pcolormesh(A, B, values, **{"cmap": "viridis", "shading": "nearest", **style})
        ax.figure.colorbar(image, ax=ax, label="$f(x)$")
    ax.set(xlabel="$x_1$", ylabel="$x_2$")
    return ax
