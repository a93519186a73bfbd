"""Plot of a map to latent points: rows in the plane of two dimensions, over how far the map stretches it."""

import numpy as np

from mercer.core.errors import DataError
from mercer.plot.axes import new_axes, pyplot

GRID = 60  # points along each axis of the background
MARGIN = 0.08  # of the range, around the points
MAX_LEGEND = 12  # distinct labels that are listed; more are a colour scale


def latent(model, labels=None, dimensions=None, ax=None, background=True):
    """Latent points of the training rows, coloured by ``labels`` (n,), in two ``dimensions`` (indices; the most
    relevant ones unless given). Dark areas of the background are stretched much: steps there change the columns most.

    ``model`` is a fitted `GaussianProcessLatentVariables` or `GenerativeTopographicMapping`. With one dimension, rows
    are drawn along it, with the stretching as a curve.
    """
    points = getattr(model, "embedding_", None)
    if points is None or not hasattr(model, "magnification"):
        raise DataError(f"this plot is of a fitted model of latent points; got {type(model).__name__}.")
    q = points.shape[1]
    relevance = getattr(model, "relevance_", np.ones(q))
    chosen = np.argsort(-relevance, kind="stable")[:2] if dimensions is None else np.atleast_1d(dimensions)
    chosen = np.sort(chosen) if dimensions is None else chosen
    if len(chosen) > 2 or not np.isin(chosen, np.arange(q)).all():
        raise DataError(f"dimensions must be one or two of 0 to {q - 1}; got {dimensions!r}.")
    ax = new_axes(ax)
    low, high = points[:, chosen].min(axis=0), points[:, chosen].max(axis=0)
    pad = MARGIN * np.maximum(high - low, 1e-9)
    sides = [np.linspace(a - m, b + m, GRID) for a, b, m in zip(low, high, pad, strict=True)]
    if len(chosen) == 1:
        shown = np.column_stack([points[:, chosen[0]], np.zeros(len(points))])
        Z = np.tile(points.mean(axis=0), (GRID, 1))
        Z[:, chosen[0]] = sides[0]
        if background:
            ax.plot(sides[0], model.magnification(Z), color="0.4", lw=1.2)
        ax.set(xlabel=_name(chosen[0]), ylabel="stretching")
    else:
        shown = points[:, chosen]
        if background:
            across, up = np.meshgrid(*sides)
            Z = np.tile(points.mean(axis=0), (GRID * GRID, 1))
            Z[:, chosen] = np.column_stack([across.ravel(), up.ravel()])
            stretch = np.log10(np.maximum(model.magnification(Z), 1e-12)).reshape(GRID, GRID)
            image = ax.pcolormesh(across, up, stretch, cmap="Greys", shading="auto", alpha=0.7, rasterized=True)
            ax.figure.colorbar(image, ax=ax, label="log10 of the stretching of areas")
        ax.set(xlabel=_name(chosen[0]), ylabel=_name(chosen[1]))
    _scatter(ax, shown, labels, len(points))
    return ax


def _name(dimension) -> str:
    return f"latent dimension {int(dimension) + 1}"


def _scatter(ax, shown, labels, n):
    style = {"s": 22, "edgecolor": "white", "linewidth": 0.5, "zorder": 3}
    if labels is None:
        ax.scatter(*shown.T, color="tab:blue", **style)
        return
    labels = np.asarray(labels)
    if labels.shape != (n,):
        raise DataError(f"labels must have one entry for each of the {n} training rows; got shape {labels.shape}.")
    distinct = np.unique(labels)
    if len(distinct) > MAX_LEGEND and labels.dtype.kind in "iuf":
        ax.figure.colorbar(ax.scatter(*shown.T, c=labels, cmap="viridis", **style), ax=ax, label="label")
        return
    colors = pyplot().get_cmap("tab10" if len(distinct) <= 10 else "tab20")
    for i, label in enumerate(distinct):
        ax.scatter(*shown[labels == label].T, color=colors(i), label=str(label), **style)
    if len(distinct) <= 20:
        ax.legend(fontsize="small")
