"""The demonstration: two sets of real data, what is learned from them, and one picture."""

from pathlib import Path

import numpy as np

from mercer import datasets
from mercer import kernels as k
from mercer.cli.fit import split
from mercer.cli.quantities import HeldOut
from mercer.cli.tables import Rows
from mercer.core.text import table
from mercer.models.regression import GaussianProcessRegressor
from mercer.scores import calibration

LEARNED_UNTIL = 1988.0  # thirty years of the series
FORETOLD_UNTIL = 2010.0

# A slow trend, a season that changes from year to year, and what remains from month to month.
CARBON_DIOXIDE = (
    10.0 * k.Matern(100.0, nu=2.5, name="trend")
    + 0.1 * k.RBF(100.0, name="change") * k.Periodic(1.0, 1.5, name="season").fix("season_period")
    + 0.001 * k.Matern(0.5, nu=1.5, name="weather")
)


def run_demo(output: Path, seed: int = 0) -> str:
    """Write the picture into ``output``; return what to show in the terminal."""
    output.mkdir(parents=True, exist_ok=True)
    series, told = carbon_dioxide()
    model, judged = patients(seed)
    picture = output / "demo.png"
    _draw(series, model, judged, picture)
    return "\n\n".join([told, _in_short(model, judged), f"Picture: {picture}"])


def carbon_dioxide():
    """A model of the first thirty years of the series, and how it did on the rest.

    How far ahead to trust it is another matter: a model that has seen only the years until 1994, when the rise had
    just paused, foretells a longer pause, and is wrong about it.
    """
    data = datasets.load("co2")
    past = data.X[:, 0] < LEARNED_UNTIL
    model = GaussianProcessRegressor(CARBON_DIOXIDE).fit(data.X[past], data.y[past])
    found = calibration(data.y[~past], model.predict_distribution(data.X[~past]))
    inside = dict(zip(found.levels, found.coverage, strict=True))[0.95]
    rows = [[name, f"{float(value):.3g}"] for name, value in model.kernel_.parameters.items()]
    return model, (
        f"Carbon dioxide over Mauna Loa: learned from {past.sum()} months until {LEARNED_UNTIL:.0f}\n\n"
        + table(["parameter", "learned"], [*rows, ["noise", f"{np.sqrt(model.noise_):.2f} ppm"]])
        + f"\n\nOf the {(~past).sum()} months that followed, 95% intervals hold {inside:.0%}; the mean is off by "
        f"{found.rmse:.1f} ppm (root mean square)."
    )


def patients(seed: int):
    """A model of the diabetes table, all defaults, and the rows it did not see."""
    data = datasets.load("diabetes")
    frame = data.frame()
    rows = Rows(frame.select(data.feature_names), data.y, np.arange(len(data.y)) + 1)
    training, held = split(rows, 0.2, seed)
    model = GaussianProcessRegressor(random_state=seed).fit(training.X, training.y)
    return model, HeldOut.of(model, held)


def _in_short(model, judged) -> str:
    found = judged.calibration
    both = zip(found.levels, found.coverage, model.report().calibration.coverage, strict=True)
    coverage = [[f"{level:.0%}", f"{held:.0%}", f"{loo:.0%}"] for level, held, loo in both]
    return (
        f"Progression of diabetes: learned from {len(model.y_train_)} patients, judged by {len(judged.rows)} others\n\n"
        f"{model.relevance()}\n\n" + table(["interval", "holds, of those held out", "leave-one-out"], coverage)
        + f"\n\nR^2 {found.r2:.2f} on the patients held out; noise {np.sqrt(model.noise_):.0f} "
        f"of a spread of {model.y_train_.std():.0f}."
    )  # fmt: skip


def _draw(series, model, judged, picture: Path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from mercer import plot

    figure = plt.figure(figsize=(13, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.8, 1], height_ratios=[1, 1.35])
    ax, top, bottom = (figure.add_subplot(grid[place]) for place in ((slice(None), 0), (0, 1), (1, 1)))

    data = datasets.load("co2")
    later = data.X[:, 0] >= LEARNED_UNTIL
    years = np.linspace(data.X.min(), FORETOLD_UNTIL, 1200)
    plot.posterior(series, years, ax=ax, include_noise=True, level=0.95)
    ax.plot(data.X[later, 0], data.y[later], ".", color="black", ms=3, label="measured later")
    ax.axvline(LEARNED_UNTIL, color="0.5", lw=1, ls=":")
    ax.set(title="Carbon dioxide over Mauna Loa, learned from thirty years", xlabel="year", ylabel="ppm")
    ax.legend(loc="upper left")

    plot.relevance(model, ax=top).set_title("Diabetes: which measurements matter")
    plot.calibration(judged.rows.y, judged.predicted, ax=bottom, label="held out", color="tab:red")
    plot.calibration(model, ax=bottom, color="tab:blue").set_title("Diabetes: are the intervals honest?")
    figure.savefig(picture, dpi=120)
    plt.close(figure)
