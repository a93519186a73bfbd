"""Plot of the components that a search found: the data and the sum, and each term by itself."""

import numpy as np

from mercer.core import calendar
from mercer.core.errors import DataError
from mercer.plot.axes import pyplot

COLOR = "tab:blue"
MAX_TITLE = 90  # characters


def components(found, column: int = 0, dates: bool = False):
    """The terms of a kernel that `mercer.select_kernel` found, one panel each, in words and with their shares of the
    variance, with two standard deviations; the last is what is left. Returns the axes.

    ``column``: number of the input to draw along. ``dates``: whether that holds dates, which are decimal years.
    """
    parts = getattr(found, "components", None)
    if not parts:
        raise DataError("this plot is of the result of a search: mercer.select_kernel(X, y) without candidates.")
    X = found.inputs
    if not 0 <= column < X.shape[1]:
        raise DataError(f"column must be one of 0 to {X.shape[1] - 1}; got {column!r}.")
    order = np.argsort(X[:, column], kind="stable")
    x = calendar.as_dates(X[order, column]) if dates else X[order, column]
    alone = X.shape[1] == 1
    _, panels = pyplot().subplots(
        len(parts), 1, sharex=True, figsize=(8, 0.6 + 1.7 * len(parts)), layout="constrained", squeeze=False
    )
    axes = list(panels[:, 0])
    for ax, part in zip(axes, parts, strict=True):
        mean, deviation = part.mean[order], part.deviation[order]
        if part.kernel is None:
            ax.plot(x, mean, ".", color="0.4", ms=3)
        elif alone:
            ax.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, color=COLOR, alpha=0.25, lw=0)
            ax.plot(x, mean, color=COLOR, lw=1.2)
        else:  # along other columns it varies too
            ax.errorbar(x, mean, 2 * deviation, fmt=".", color=COLOR, ms=4, elinewidth=0.5, alpha=0.7)
        title = f"{part.share:.1%}: {part.text}"
        ax.set_title(title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 3] + "...", fontsize="small", loc="left")
    return axes
