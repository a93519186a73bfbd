"""Gaussian processes, looked at."""

import numpy as np

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


def posterior(process, X, ax=None, color="tab:red"):
    """The mean, and two standard deviations of the function itself (not of new measurements) on either side of it."""
    ax = new_axes(ax)
    x, inputs = along(X)
    process = _as_process(process)
    mean, deviation = process.mean(inputs), np.sqrt(process.variance(inputs))
    ax.fill_between(
        x, mean - 2 * deviation, mean + 2 * deviation, color=color, alpha=0.15, lw=0, label="± 2 standard deviations"
    )
    ax.plot(x, mean, color=color, label="mean")
    if process.observed is not None:
        ax.plot(_seen_along(process.observed.X, X), process.observed.y, "o", color="tab:blue", ms=5, label="data")
    ax.set(xlim=(x.min(), x.max()), xlabel="$x$", ylabel="$f(x)$")
    ax.legend()
    return ax


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
