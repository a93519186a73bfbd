"""Pictures that go into a folder, as PNG files, without a screen."""

from pathlib import Path


class Pictures:
    """Axes to draw on, and their files in ``folder``."""

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
        """The picture that all models have whose inputs are numbers."""
        from mercer import plot

        shown = min(len(table), 15)
        self.keep(plot.relevance(table, ax=self.axes(6, 1.2 + 0.32 * shown), most=shown), "relevance.png")
