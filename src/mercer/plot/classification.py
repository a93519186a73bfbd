"""Plots of fitted classifiers: reliability of probabilities, and decision boundaries."""

import narwhals.stable.v2 as nw
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_frame, as_matrix
from mercer.plot.axes import new_axes, pyplot
from mercer.plot.regression import IDEAL
from mercer.scores import binned, checked

EDGES = np.linspace(0.0, 1.0, 11)
MIN_ROWS_FOR_TENTHS = 100  # with fewer, bins have equal counts
MIN_BIN_ROWS = 10
MAX_SATURATION = 0.5  # of the background, so that rows stand out
MAX_LEGEND_CLASSES = 12


def reliability(y, probability=None, classes=None, ax=None, label=None, color=None, bins=None):
    """Reliability diagram: observed frequency against predicted probability; calibrated probabilities are diagonal.

    For two classes the probability is that of the second, for more that of the predicted class. The area of a dot
    grows with its number of rows, which is printed for the first curve on ``ax``. The pale bars would contain 95% of
    calibrated models. ``y`` holds the labels (n,), ``probability`` (n, C) has a column for each of ``classes`` (0, 1,
    ... unless given); or y is a fitted model, for its leave-one-out predictions. ``bins`` are edges, or a number of
    bins of equal counts; None is tenths, merged until they have ten rows each, or bins of ten rows for fewer than a
    hundred. Call it twice with the same ``ax`` to compare.
    """
    from scipy.stats import binom  # slow to import

    label = label or ("leave-one-out" if probability is None else "observed")
    codes, P, classes = _checked_labels(y, probability, classes)
    two = len(classes) == 2
    p, happened = (P[:, 1], codes == 1) if two else (P.max(axis=1), P.argmax(axis=1) == codes)
    if bins is None:
        bins = _tenths(p) if len(p) >= MIN_ROWS_FOR_TENTHS else 10
    found = binned(p, happened, bins)
    ax = new_axes(ax)
    first = not any(line.get_label() == IDEAL for line in ax.get_lines())
    if first:
        ax.plot([0, 1], [0, 1], color="0.4", lw=1, ls="--", label=IDEAL)
    (line,) = ax.plot(found.predicted, found.observed, color=color, lw=1.5, label=f"{label}, n = {len(p):,}")
    color = line.get_color()
    low, high = binom.interval(0.95, found.counts, np.clip(found.predicted, 1e-12, 1 - 1e-12)) / found.counts
    ax.vlines(found.predicted, low, high, color=color, alpha=0.15, lw=7)
    size = 12 + 200 * found.counts / len(p)  # in square points
    ax.scatter(
        found.predicted, found.observed, s=size, color=color, zorder=3, clip_on=False, edgecolor="white", linewidth=0.8
    )
    numbered = zip(found.predicted, found.observed, found.counts, size, strict=True) if first else ()
    for x, share, count, area in numbered:
        side = 1 if share <= x else -1  # away from the diagonal, and from a rising line
        offset = side * (2 + np.sqrt(area / (2 * np.pi)))
        ax.annotate(
            f"{count:,}", (x, share), (offset, -offset), textcoords="offset points", fontsize="x-small", color=color,
            ha="left" if side > 0 else "right", va="top" if side > 0 else "bottom", annotation_clip=False,
        )  # fmt: skip
    event = str(classes[1]) if two else "the predicted class"
    ax.set(
        xlim=(-0.12, 1.12), ylim=(-0.12, 1.12), aspect="equal", xlabel=f"predicted probability of {event}",
        ylabel="observed frequency",
    )  # fmt: skip
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.legend(loc="upper left", fontsize="small")
    return ax


def _tenths(p) -> np.ndarray:
    """Edges at tenths, bins merged until each has `MIN_BIN_ROWS`."""
    edges, rows = [EDGES[0]], 0
    for count, edge in zip(np.histogram(p, EDGES)[0], EDGES[1:], strict=True):
        rows += count
        if rows >= MIN_BIN_ROWS:
            edges, rows = [*edges, edge], 0
    return np.array([*edges[:-1], EDGES[-1]])  # remaining rows join the last bin


def _checked_labels(y, probability, classes):
    """Class indices, probabilities and names: as given, or a fitted model's leave-one-out."""
    if hasattr(y, "loo") and hasattr(y, "codes_"):
        return y.codes_, y.loo().probability, y.classes_
    if probability is None:
        raise DataError("give a fitted classifier, or labels with predicted class probabilities.")
    y, C = np.asarray(y), as_matrix(probability, "probability").shape[1]
    if classes is None:
        return *checked(y, probability), np.arange(C)
    classes = np.asarray(classes)
    if len(classes) != C:
        raise DataError(f"probability must have a column for each of {len(classes)} classes; got {C} columns.")
    codes = (y[:, None] == classes).argmax(axis=1)
    unknown = y[classes[codes] != y]
    if len(unknown):
        raise DataError(f"{unknown.tolist()[0]!r} is not one of the classes {classes.tolist()}.")
    return *checked(codes, probability), classes


def decision(model, columns=(0, 1), ax=None, resolution: int = 80, data: bool = True):
    """Decision regions of a fitted classifier over two inputs, the others at their medians, with the training rows.

    Two classes show the probability of the second, with a line at one half; more show the colours of the classes,
    mixed by their probabilities, with lines where the most probable class changes. ``columns`` are indices or column
    names; ``resolution`` is the number of grid points along each; ``data=False`` omits the rows.
    """
    if not all(hasattr(model, name) for name in ("X_fit_", "codes_", "classes_", "predict_proba")):
        raise DataError(f"decision needs a fitted GaussianProcessClassifier; got {type(model).__name__}.")
    if resolution < 2:
        raise ParameterError(f"resolution must be at least 2 grid points along each input; got {resolution!r}.")
    X, names = as_matrix(model.X_fit_), _names(model.X_fit_)
    i, j = _two_columns(columns, names, X.shape[1])
    margin = 0.08 * np.where(np.ptp(X, axis=0) > 0, np.ptp(X, axis=0), 1.0)
    low, high = X.min(axis=0) - margin, X.max(axis=0) + margin
    a, b = np.linspace(low[i], high[i], resolution), np.linspace(low[j], high[j], resolution)
    grid = np.tile(np.median(X, axis=0), (resolution**2, 1))
    grid[:, i], grid[:, j] = np.tile(a, resolution), np.repeat(b, resolution)
    P = model.predict_proba(_like(model.X_fit_, grid)).reshape(resolution, resolution, -1)
    colors = _colors(len(model.classes_))
    ax = new_axes(ax)
    if P.shape[2] == 2:
        _draw_two_classes(ax, a, b, P[..., 1], colors, model.classes_[1])
    else:
        _draw_several_classes(ax, a, b, P, colors)
    if data:
        _draw_rows(ax, X[:, [i, j]], model, colors)
    ax.set(xlim=a[[0, -1]], ylim=b[[0, -1]], xlabel=names[i], ylabel=names[j])
    return ax


def _draw_two_classes(ax, a, b, p, colors, label):
    from matplotlib.colors import LinearSegmentedColormap

    first, second = 1 - MAX_SATURATION * (1 - colors)
    ramp = LinearSegmentedColormap.from_list("classes", np.stack([first, np.ones(3), second]))
    filled = ax.contourf(a, b, p, levels=EDGES, cmap=ramp, vmin=0.0, vmax=1.0)
    if p.min() < 0.5 < p.max():
        ax.contour(a, b, p, levels=[0.5], colors="0.15", linewidths=1.4)
    bar = ax.figure.colorbar(filled, ax=ax, label=f"probability of {label}", ticks=EDGES[::2])
    bar.ax.axhline(0.5, color="0.15", lw=1.4)


def _draw_several_classes(ax, a, b, P, colors):
    C = P.shape[2]
    # White where all classes are equally probable, where colours would mix to grey.
    certainty = (P.max(axis=2, keepdims=True) - 1 / C) / (1 - 1 / C)
    shade = 1 - MAX_SATURATION * certainty * (1 - P @ colors)
    ax.pcolormesh(a, b, shade, shading="nearest", rasterized=True)
    for c in range(C):
        lead = P[..., c] - np.delete(P, c, axis=2).max(axis=2)
        if lead.min() < 0 < lead.max():
            ax.contour(a, b, lead, levels=[0.0], colors="0.15", linewidths=1.0)


def _draw_rows(ax, X, model, colors):
    size = float(np.clip(500 / np.sqrt(len(X)), 6, 40))
    named = len(model.classes_) <= MAX_LEGEND_CLASSES
    for c, label in enumerate(model.classes_):
        members = model.codes_ == c
        ax.scatter(
            *X[members].T, s=size, color=colors[c], edgecolor="white", linewidth=0.5, zorder=3,
            label=f"{label} ({members.sum():,})" if named else None,
        )  # fmt: skip
    if named:
        ax.legend(fontsize="small", framealpha=0.85)


def _colors(C: int) -> np.ndarray:
    """Colours (C, 3): blue and red for two, matplotlib's cycle for up to ten, around the colour wheel for more."""
    from matplotlib.colors import to_rgb

    names = ["tab:blue", "tab:red"] if C == 2 else [f"C{c}" for c in range(C)]
    return np.array([to_rgb(name) for name in names]) if C <= 10 else pyplot().get_cmap("hsv")(np.arange(C) / C)[:, :3]


def _names(X) -> list[str]:
    frame = as_frame(X)
    return [f"$x_{{{i}}}$" for i in range(as_matrix(X).shape[1])] if frame is None else [str(n) for n in frame.columns]


def _two_columns(columns, names, d: int) -> tuple[int, int]:
    if d < 2:
        raise DataError("decision needs two inputs; this model has one.")
    if isinstance(columns, str) or len(columns) != 2:
        raise ParameterError(f"columns must be two inputs, by index or by name; got {columns!r}.")
    found = []
    for column in columns:
        if column not in names and not (isinstance(column, int | np.integer) and -d <= column < d):
            raise ParameterError(f"there is no input {column!r}; the {d} inputs are {', '.join(names[:12])}.")
        found.append(names.index(column) if column in names else int(column) % d)
    if found[0] == found[1]:
        raise ParameterError(f"columns must be two different inputs; got {columns!r}.")
    return found[0], found[1]


def _like(X, values):
    """A matrix in the container type of X."""
    frame = as_frame(X)
    if frame is None:
        return values
    return nw.from_dict(
        dict(zip(frame.columns, values.T, strict=True)), backend=nw.get_native_namespace(frame)
    ).to_native()
