"""Gaussian processes, looked at."""

import numpy as np

from mercer.plot.axes import new_axes


def samples(process, X, size: int = 5, seed=0, ax=None, **style):
    """Functions drawn from a process over a scalar input."""
    ax = new_axes(ax)
    x = np.ravel(X)
    ax.plot(x, process.sample(x, size=size, seed=seed).T, **{"lw": 1.2, **style})
    ax.set_xlim(x.min(), x.max())
    ax.set_xlabel("$x$")
    return ax


def posterior(process, X, ax=None):
    """Mean and two standard deviations over a scalar input, with the data seen so far."""
    ax = new_axes(ax)
    x = np.ravel(X)
    mean, deviation = process.mean(x), np.sqrt(process.variance(x))
    ax.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, color="tab:red", alpha=0.15, lw=0)
    ax.plot(x, mean, color="tab:red")
    if process.observed is not None:
        ax.plot(np.ravel(process.observed.X), process.observed.y, "o", color="tab:blue", ms=5)
    ax.set_xlim(x.min(), x.max())
    ax.set_xlabel("$x$")
    return ax


def field(process, x, y, seed=0, ax=None, **style):
    """One sample of a process over two inputs, on the grid x by y, as a surface (or an image on flat axes)."""
    from matplotlib import pyplot as plt

    if ax is None:
        ax = plt.figure(figsize=(6, 5), layout="constrained").add_subplot(projection="3d")
    A, B = np.meshgrid(x, y, indexing="ij")
    values = process.sample(np.column_stack([A.ravel(), B.ravel()]), seed=seed).reshape(A.shape)
    if hasattr(ax, "plot_surface"):
        ax.plot_surface(A, B, values, **{"cmap": "viridis", "linewidth": 0.1, "rcount": 60, "ccount": 60, **style})
    else:
        ax.pcolormesh(A, B, values, **{"cmap": "viridis", "shading": "nearest", **style})
    ax.set_xlabel("$x_1$")
    ax.set_ylabel("$x_2$")
    return ax
