"""Regression from the command line."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl

from mercer.cli.pictures import Pictures, grid_along, shown
from mercer.cli.tables import Say, TableRows, quantities
from mercer.core.errors import ParameterError
from mercer.core.inputs import as_matrix, holds_numbers
from mercer.core.places import longitude_and_latitude
from mercer.core.text import listed
from mercer.distributions import Distribution
from mercer.kernels import Matern
from mercer.learning.columns import STRUCTURED, Columns
from mercer.learning.search import select_kernel
from mercer.models.regression import GaussianProcessRegressor
from mercer.scores import Calibration, calibration

MAX_SILENT_SECONDS = 20.0  # a fit expected to take longer is announced
SMOOTHNESSES = (0.5, 1.5, 2.5)  # of functions on the sphere
SEARCH_FILES = ("search.txt", "components.png")
FILES = (
    "model.safetensors", "report.txt", "predictions.csv",
    "calibration.png", "predictions.png", "relevance.png", "fit.png", "map.png",
)  # fmt: skip

target_of = quantities


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out rows and their predictions."""

    rows: TableRows
    predicted: Distribution
    calibration: Calibration

    @classmethod
    def of(cls, model, rows: TableRows) -> "HeldOut":
        predicted = model.predict_distribution(rows.X)
        return cls(rows, predicted, calibration(rows.y, predicted))

    def table(self) -> pl.DataFrame:
        return _table(self.rows.numbers, self.predicted, self.rows.y)


def predictions(model, X, numbers) -> pl.DataFrame:
    """The table that `mercer predict` writes, one line per row."""
    return _table(numbers, model.predict_distribution(X))


def _table(numbers, predicted: Distribution, y=None) -> pl.DataFrame:
    low, high = predicted.interval(0.95)
    columns = {"row": numbers} | ({} if y is None else {"target": y})
    columns |= {"mean": predicted.mean, "std": predicted.deviation, "lower95": low, "upper95": high}
    if y is not None:
        columns["z"] = predicted.z(y)
    return pl.DataFrame(columns)


def new_model(**settings) -> GaussianProcessRegressor:
    return GaussianProcessRegressor(**settings)


def choose_kernel(model, rows: TableRows, say: Say):
    """Where longitude and latitude are the only inputs, a kernel on the sphere; its smoothness by the evidence."""
    found = longitude_and_latitude(rows.X)
    if found is None or rows.X.width != 2:
        return
    candidates = [(1.0 * Matern(nu=nu)).on_sphere().on(list(found)) for nu in SMOOTHNESSES]
    model.kernel = select_kernel(rows.X, rows.y, candidates, task="regression").member
    model.calibrate = True  # as with the default kernel
    say(f"columns {found[0]!r} and {found[1]!r} are read as longitude and latitude, in degrees: a kernel on the sphere")


def search_kernel(model, rows: TableRows, output: Path, max_seconds: float | None, seed: int, progress: bool):
    """Search for a kernel, going on from an earlier search in the folder; write what it found, and return it."""
    from mercer.plot import components

    columns = Columns.of(rows.X)
    if columns is not None and columns.names(*STRUCTURED):
        raise ParameterError(
            "--search explains numbers by columns of numbers and dates; leave out "
            f"{listed(columns.names(*STRUCTURED))} with --drop, or leave out --search."
        )
    found = select_kernel(
        rows.X, rows.y, None, max_seconds, task="regression", random_state=seed, progress=progress,
        checkpoint=output / "search.json",
    )  # fmt: skip
    model.kernel = found.kernel
    (output / "search.txt").write_text(f"{found.describe()}\n", encoding="utf-8")
    pictures = Pictures(output)
    pictures.keep(components(found)[0], "components.png")
    return found


def prepare(model, rows: TableRows, say: Say):
    """Refuse a fit that does not fit in memory; announce a long one."""
    plan = model.plan(rows.X)
    plan.check()
    if plan.seconds > MAX_SILENT_SECONDS:
        say(f"a fit to {len(rows):,} rows takes about {plan.duration()} here; Ctrl-C keeps the best model found so far")


def add(model, held: TableRows, rows: TableRows):
    """The model conditioned on the held-out rows too, at the same parameters."""
    return model.update(held.X, held.y)


def draw(model, held: HeldOut | None, target: str, output: Path):
    """Write the plots as PNG files."""
    from mercer import plot

    pictures = Pictures(output)
    ax = pictures.axes(5, 5)
    if held is not None:
        plot.calibration(held.rows.y, held.predicted, ax=ax, label="held out", color="tab:red")
    pictures.keep(plot.calibration(model, ax=ax, color="tab:blue"), "calibration.png")

    ax = pictures.axes(6, 5)
    if held is not None:
        plot.predictions(held.rows.y, held.predicted, ax=ax)
    else:
        plot.predictions(model, ax=ax)
    ax.set(title=f"{target}: {'leave-one-out' if held is None else 'held-out rows'}")
    pictures.keep(ax, "predictions.png")

    table = model.relevance()
    pictures.relevance(table)
    if len(table) == 1 and holds_numbers(model.posterior_.data[0]):
        pictures.keep(_along_the_input(plot, model, held, target), "fit.png")
    if len(table) == 2 and longitude_and_latitude(model.posterior_.data[0]) is not None:
        pictures.keep(plot.map(model)[0], "map.png")


def _along_the_input(plot, model, held, target):
    encode = (lambda X: X) if model.columns_ is None else model.columns_.encode
    x = as_matrix(model.posterior_.data[0])[:, 0]
    x_held = x[:0] if held is None else as_matrix(encode(held.rows.X))[:, 0]
    grid = grid_along(model, np.concatenate([x, x_held]), 500)
    ax = plot.posterior(model, grid, include_noise=True, level=0.95)
    if held is not None:
        size = ax.get_lines()[-1].get_markersize()
        ax.plot(shown(model, x_held), held.rows.y, "o", color="tab:orange", ms=size, label="held out")
    ax.set(xlabel=grid.columns[0], ylabel=target)
    ax.legend(fontsize="small")
    return ax
