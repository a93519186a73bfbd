"""Plots written to a folder as PNG files, without a display."""

from pathlib import Path

import numpy as np
import polars as pl

from mercer.core import calendar

MARGIN = 0.05  # of the range of the data, beyond it on both sides


class Pictures:
    """New axes, saved to files in ``folder``."""

    def __init__(self, folder: Path):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        self.folder, self._plt = folder, plt

    def axes(self, width: float, height: float):
        return self._plt.subplots(figsize=(width, height), layout="constrained")[1]

    def keep(self, ax, name: str):
        ax.figure.savefig(self.folder / name, dpi=130)
        self._plt.close(ax.figure)

    def relevance(self, table):
        """Plot the relevance of inputs."""
        from mercer import plot

        shown = min(len(table), 15)
        self.keep(plot.relevance(table, ax=self.axes(6, 1.2 + 0.32 * shown), most=shown), "relevance.png")


def shown(model, x: np.ndarray) -> np.ndarray:
    """Values of the one input of a model as on an axis: dates, where its column holds them."""
    dates = model.columns_ is not None and [column.kind for column in model.columns_] == ["date"]
    return calendar.as_dates(x).astype("datetime64[us]") if dates else x  # which polars reads


def grid_along(model, x: np.ndarray, count: int) -> pl.DataFrame:
    """Rows for the one input of a model in equal steps over these values and a margin, in the column's own type."""
    (name,) = model.feature_names_in_
    margin = MARGIN * np.ptp(x)
    return pl.DataFrame({name: shown(model, np.linspace(x.min() - margin, x.max() + margin, count))})
