"""Classification from the command line."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import polars as pl

from mercer.cli.pictures import Pictures, grid_along, shown
from mercer.cli.tables import Say, TableRows, labels
from mercer.core.errors import DataError
from mercer.core.inputs import as_matrix, holds_numbers
from mercer.inference.methods import automatic
from mercer.models.classification import GaussianProcessClassifier

FILES = ("model.safetensors", "report.txt", "predictions.csv", "reliability.png", "relevance.png", "fit.png")

target_of = labels


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out rows and their predictions."""

    rows: TableRows
    classes: np.ndarray
    codes: np.ndarray
    probability: np.ndarray

    @classmethod
    def of(cls, model, rows: TableRows) -> "HeldOut":
        return cls(rows, model.classes_, np.searchsorted(model.classes_, rows.y), model.predict_proba(rows.X))

    def table(self) -> pl.DataFrame:
        with np.errstate(divide="ignore"):
            score = np.log(self.probability[np.arange(len(self.codes)), self.codes])
        found = _table(self.rows.numbers, self.classes, self.probability)
        return found.insert_column(1, pl.Series("target", self.rows.y)).with_columns(log_score=score)


def predictions(model, X, numbers) -> pl.DataFrame:
    """The table that `mercer predict` writes, one line per row."""
    return _table(numbers, model.classes_, model.predict_proba(X))


def _table(numbers, classes, P) -> pl.DataFrame:
    columns = {"row": numbers, "predicted": classes[P.argmax(axis=1)]}
    return pl.DataFrame(columns | {f"p({label})": p for label, p in zip(classes, P.T, strict=True)})


def new_model(**settings) -> GaussianProcessClassifier:
    return GaussianProcessClassifier(**settings)


def prepare(model, rows: TableRows, say: Say):
    """Announce that there are too many rows for another method than Laplace's."""
    if automatic(len(rows), len(np.unique(rows.y))) == "laplace":
        say(
            f"{len(rows):,} rows are many, so Laplace's method is used, which is underconfident; Ctrl-C keeps the best "
            "model found so far"
        )


def add(model, held: TableRows, rows: TableRows):
    """The model fitted to all ``rows``, at the same parameters."""
    kernel = model.kernels_ if hasattr(model, "kernels_") else model.kernel_
    settings = model.get_params(deep=False) | {"kernel": kernel, "learning": None}
    new = GaussianProcessClassifier(**settings).fit(model.columns_.encode(rows.X), rows.y)
    new.columns_ = model.columns_
    return new


def draw(model, held: HeldOut | None, target: str, output: Path):
    """Write the plots as PNG files."""
    from mercer import plot

    pictures = Pictures(output)
    ax = pictures.axes(5.5, 5.5)
    if held is not None:
        plot.reliability(held.rows.y, held.probability, held.classes, ax=ax, label="held out", color="tab:red")
    pictures.keep(plot.reliability(model, ax=ax, color="tab:blue"), "reliability.png")
    with contextlib.suppress(DataError):  # relevance needs inputs in columns
        pictures.relevance(model.relevance())
    inputs = model.n_features_in_
    if inputs <= 2 and holds_numbers(model.X_fit_):
        ax = plot.decision(model, ax=pictures.axes(7, 5)) if inputs == 2 else _along_the_input(pictures, model)
        pictures.keep(ax, "fit.png")


def _along_the_input(pictures, model):
    """Probabilities of the classes along the one input, with the rows below."""
    from mercer.plot.axes import concise_dates

    x = as_matrix(model.X_fit_)[:, 0]
    grid = grid_along(model, x, 300)
    P, along = model.predict_proba(grid), grid[:, 0].to_numpy()
    ax = pictures.axes(6, 4)
    for c, label in enumerate(model.classes_):
        (line,) = ax.plot(along, P[:, c], label=str(label))
        members = x[model.codes_ == c]
        height = np.full(len(members), -0.03 - 0.02 * c)
        ax.plot(shown(model, members), height, "|", color=line.get_color(), ms=5)
    ax.set(xlim=along[[0, -1]], ylim=(-0.05 - 0.02 * len(P.T), 1.03), xlabel=grid.columns[0], ylabel="probability")
    if along.dtype.kind == "M":
        concise_dates(ax)
    ax.legend(fontsize="small")
    return ax
