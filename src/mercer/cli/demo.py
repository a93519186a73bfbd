"""The demonstration: fits of two real data sets, and a plot."""

from pathlib import Path

import numpy as np

from mercer import datasets
from mercer import kernels as k
from mercer.cli.fit import split
from mercer.cli.quantities import HeldOut
from mercer.cli.tables import TableRows
from mercer.core.text import table
from mercer.models.regression import GaussianProcessRegressor
from mercer.scores import calibration

TRAINING_END = 1988.0  # thirty years of the series
FORECAST_END = 2010.0

# A slow trend, a slowly changing season, and short-term variation.
CARBON_DIOXIDE = (
    10.0 * k.Matern(100.0, nu=2.5, name="trend")
    + 0.1 * k.RBF(100.0, name="change") * k.Periodic(1.0, 1.5, name="season").fix("season_period")
    + 0.001 * k.Matern(0.5, nu=1.5, name="weather")
)


def run_demo(output: Path, seed: int = 0) -> str:
    """Write the plot into ``output``; return the text for the terminal."""
    output.mkdir(parents=True, exist_ok=True)
    series, summary = carbon_dioxide()
    model, held = patients(seed)
    picture = output / "demo.png"
    _draw(series, model, held, picture)
    return "\n\n".join([summary, _summary(model, held), f"Plot: {picture}"])


def carbon_dioxide():
    """A model of the first thirty years of the series, and its accuracy on the rest.

    How far ahead to trust such a forecast is another matter: a model fitted until 1994, when the rise had just paused,
    wrongly predicts a longer pause.
    """
    data = datasets.load("co2")
    past = data.X[:, 0] < TRAINING_END
    model = GaussianProcessRegressor(CARBON_DIOXIDE).fit(data.X[past], data.y[past])
    found = calibration(data.y[~past], model.predict_distribution(data.X[~past]))
    inside = dict(zip(found.levels, found.coverage, strict=True))[0.95]
    rows = [[name, f"{float(value):.3g}"] for name, value in model.kernel_.parameters.items()]
    return model, (
        f"Carbon dioxide over Mauna Loa: fitted to {past.sum()} months until {TRAINING_END:.0f}\n\n"
        + table(["parameter", "learned"], [*rows, ["noise", f"{np.sqrt(model.noise_):.2f} ppm"]])
        + f"\n\n95% intervals cover {inside:.0%} of the {(~past).sum()} months that followed; the root mean squared "
        f"error is {found.rmse:.1f} ppm."
    )


def patients(seed: int):
    """A model of the diabetes data with default settings, and the held-out rows."""
    data = datasets.load("diabetes")
    frame = data.frame()
    rows = TableRows(frame.select(data.feature_names), data.y, np.arange(len(data.y)) + 1)
    training, held = split(rows, 0.2, seed)
    model = GaussianProcessRegressor(random_state=seed).fit(training.X, training.y)
    return model, HeldOut.of(model, held)


def _summary(model, held) -> str:
    found = held.calibration
    both = zip(found.levels, found.coverage, model.report().calibration.coverage, strict=True)
    coverage = [[f"{level:.0%}", f"{out:.0%}", f"{loo:.0%}"] for level, out, loo in both]
    return (
        f"Progression of diabetes: fitted to {len(model.y_train_)} patients, evaluated on {len(held.rows)} others\n\n"
        f"{model.relevance()}\n\n" + table(["interval", "held-out coverage", "leave-one-out coverage"], coverage)
        + f"\n\nHeld-out R^2 {found.r2:.2f}; the standard deviation of the noise is {np.sqrt(model.noise_):.0f}, "
        f"that of y {model.y_train_.std():.0f}."
    )  # fmt: skip


def _draw(series, model, held, picture: Path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from mercer import plot

    figure = plt.figure(figsize=(13, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.8, 1], height_ratios=[1, 1.35])
    ax, top, bottom = (figure.add_subplot(grid[place]) for place in ((slice(None), 0), (0, 1), (1, 1)))

    data = datasets.load("co2")
    later = data.X[:, 0] >= TRAINING_END
    years = np.linspace(data.X.min(), FORECAST_END, 1200)
    plot.posterior(series, years, ax=ax, include_noise=True, level=0.95)
    ax.plot(data.X[later, 0], data.y[later], ".", color="black", ms=3, label="measured later")
    ax.axvline(TRAINING_END, color="0.5", lw=1, ls=":")
    ax.set(title="Carbon dioxide over Mauna Loa, fitted to thirty years", xlabel="year", ylabel="ppm")
    ax.legend(loc="upper left")

    plot.relevance(model, ax=top).set_title("Diabetes: relevance of measurements")
    plot.calibration(held.rows.y, held.predicted, ax=bottom, label="held out", color="tab:red")
    plot.calibration(model, ax=bottom, color="tab:blue").set_title("Diabetes: coverage of intervals")
    figure.savefig(picture, dpi=120)
    plt.close(figure)
