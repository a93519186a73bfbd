"""Targets that are numbers: regression."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl

from mercer.cli.pictures import Pictures
from mercer.cli.tables import Rows, Say, quantities
from mercer.distributions import Distribution
from mercer.models.regression import GaussianProcessRegressor
from mercer.scores import Calibration, calibration

PATIENCE = 20.0  # seconds that a fit may be expected to take without being announced
FILES = (
    "model.safetensors", "report.txt", "predictions.csv",
    "calibration.png", "predictions.png", "relevance.png", "fit.png",
)  # fmt: skip

target_of = quantities


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that the fit did not see, and what the model said of them."""

    rows: Rows
    predicted: Distribution
    calibration: Calibration

    @classmethod
    def of(cls, model, rows: Rows) -> "HeldOut":
        predicted = model.predict_distribution(rows.X)
        return cls(rows, predicted, calibration(rows.y, predicted))

    def table(self) -> pl.DataFrame:
        return _table(self.rows.numbers, self.predicted, self.rows.y)


def predictions(model, X, numbers) -> pl.DataFrame:
    """What `mercer predict` writes, one line a row of the data."""
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


def prepare(model, rows: Rows, say: Say):
    """Refuse what does not fit in memory; announce what takes long."""
    plan = model.plan(rows.X)
    plan.check()
    if plan.seconds > PATIENCE:
        say(f"a fit to {len(rows):,} rows takes about {plan.duration()} here; Ctrl-C keeps the best model found so far")


def add(model, held: Rows, rows: Rows):
    """The same model with the rows held out: at the same parameters, and all ``rows`` then."""
    model.update(held.X, held.y)
    return model


def draw(model, judged: HeldOut | None, target: str, output: Path):
    """The pictures, as PNG files."""
    from mercer import plot

    pictures = Pictures(output)
    ax = pictures.axes(5, 5)
    if judged is not None:
        plot.calibration(judged.rows.y, judged.predicted, ax=ax, label="held out", color="tab:red")
    plot.calibration(model, ax=ax, color="tab:blue")
    pictures.keep(ax, "calibration.png")

    ax = pictures.axes(6, 5)
    if judged is not None:
        plot.predictions(judged.rows.y, judged.predicted, ax=ax)
    else:
        plot.predictions(model, ax=ax)
    kind = "left out one at a time" if judged is None else "held out"
    ax.set(title=f"{target}: rows {kind}")
    pictures.keep(ax, "predictions.png")

    table = model.relevance()
    pictures.relevance(table)
    if len(table) == 1:
        pictures.keep(_along_the_input(plot, model, judged, target), "fit.png")


def _along_the_input(plot, model, judged, target):
    name = model.feature_names_in_[0]
    seen = model.posterior_.data[0][name].to_numpy()
    low, high = seen.min(), seen.max()
    if judged is not None:
        there = judged.rows.X[name].to_numpy()
        low, high = min(low, there.min()), max(high, there.max())
    margin = 0.05 * (high - low)
    grid = pl.DataFrame({name: np.linspace(low - margin, high + margin, 500)})
    ax = plot.posterior(model, grid, include_noise=True, level=0.95)
    if judged is not None:
        ax.plot(there, judged.rows.y, "o", color="tab:orange", ms=ax.get_lines()[-1].get_markersize(), label="held out")
    ax.set(xlabel=name, ylabel=target)
    ax.legend(fontsize="small")
    return ax
