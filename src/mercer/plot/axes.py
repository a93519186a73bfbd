"""Axes, and inputs along them."""

from typing import Any

import numpy as np

from mercer.core.errors import DataError, MercerError
from mercer.core.inputs import Inputs, as_frame, as_matrix


def pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MercerError('plots need matplotlib: pip install "mercer[plot]"') from None
    return plt


def new_axes(ax: Any = None) -> Any:
    """``ax`` itself, or new axes if it is None."""
    return pyplot().subplots(figsize=(6, 4), layout="constrained")[1] if ax is None else ax


def along(X: Inputs, ordered: bool = True) -> tuple[np.ndarray, Inputs]:
    """One scalar input in increasing order, as numbers for the axis and in its own container for the process."""
    values = as_matrix(X)
    if values.shape[1] != 1:
        raise DataError(f"this plot is along one input; X has {values.shape[1]} columns. For two use plot.field.")
    order = np.argsort(values[:, 0], kind="stable") if ordered else np.arange(len(values))
    frame = as_frame(X)
    return values[order, 0], values[order] if frame is None else frame[order.tolist()].to_native()


def concise_dates(ax: Any) -> None:
    """Label an axis of dates by what changes from one to the next, so that labels do not overlap."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
