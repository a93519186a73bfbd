"""Gaussian processes, looked at."""

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import column_names, select_columns
from mercer.gp.process import GP
from mercer.plot.axes import along, new_axes, pyplot


def _as_process(process) -> GP:
    return process if isinstance(process, GP) else GP(process)


def samples(process, X, size: int = 5, seed=0, ax=None, **style):
    """Functions drawn from a process (or from the process of a kernel) along one input."""
    ax = new_axes(ax)
    x, inputs = along(X)
    ax.plot(x, _as_process(process).sample(inputs, size=size, seed=seed).T, **{"lw": 1.2, **style})
    ax.set(xlim=(x.min(), x.max()), xlabel="$x$", ylabel="$f(x)$")
    return ax


def posterior(process, X, ax=None, color="tab:red", include_noise: bool = False, level: float | None = None):
    """The mean, and two standard deviations on either side of it: of the function, or of new measurements.

    ``process`` is a posterior `GP` or a fitted regressor. ``include_noise`` makes it a band of new measurements.
    ``level`` draws the interval that holds this share instead, as in 0.95.
    """
    width = 2.0 if level is None else float(half_width(level))
    ax = new_axes(ax)
    x, inputs = along(X)
    if hasattr(process, "predict"):
        mean, deviation = process.predict(inputs, return_std=True, include_noise=include_noise)
        seen, target, _ = process.posterior_.data
        y = target * process.scale_ + process.center_
    else:
        process = _as_process(process)
        seen, y, noises = (None, None, 0.0) if process.observed is None else process.data
        noise = np.mean(noises) if include_noise else 0.0
        mean, deviation = process.mean(inputs), np.sqrt(process.variance(inputs) + noise)
    label = "± 2 standard deviations" if level is None else f"{level:.0%} interval"
    ax.fill_between(x, mean - width * deviation, mean + width * deviation, color=color, alpha=0.15, lw=0, label=label)
    ax.plot(x, mean, color=color, label="mean")
    if y is not None:
        size = float(np.clip(40 / np.sqrt(len(y)), 2, 5))
        ax.plot(_seen_along(seen, X), y, "o", color="tab:blue", ms=size, label="data")
    ax.set(xlim=(x.min(), x.max()), xlabel="$x$", ylabel="$f(x)$")
    ax.legend()
    return ax


def half_width(level):
    """Of the central interval of a normal distribution that holds ``level`` of it, in standard deviations."""
    from scipy.special import ndtri

    if np.any(np.less(level, 0) | np.greater(level, 1)):
        raise ParameterError(f"level is a share between 0 and 1, as in 0.95; got {level!r}.")
    return ndtri(0.5 + np.asarray(level) / 2)


def _seen_along(seen, X):
    """The data's values of the input that X runs along: of the column of that name, where both are frames."""
    names = column_names(X)
    return along(select_columns(seen, tuple(names)) if names and column_names(seen) else seen, ordered=False)[0]


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
