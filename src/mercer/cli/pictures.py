"""Plots written to a folder as PNG files, without a display."""

from pathlib import Path


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
