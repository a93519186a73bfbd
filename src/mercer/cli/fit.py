"""A table in; a model, its report and its pictures out."""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import polars as pl

from mercer.cli import tables
from mercer.core.errors import DataError, InterruptedFitWarning, NumericalWarning, ParameterError
from mercer.models.regression import GaussianProcessRegressor
from mercer.report.regression import Calibration, Report, calibration, interval

PATIENCE = 20.0  # seconds that a fit may be expected to take without being announced
FILES = (
    "model.safetensors", "report.txt", "predictions.csv",
    "calibration.png", "predictions.png", "relevance.png", "fit.png",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Part of a table, ready for a model: inputs, target, and the numbers of its rows in the file."""

    X: pl.DataFrame
    y: np.ndarray
    numbers: np.ndarray

    def __len__(self):
        return len(self.y)

    def __getitem__(self, which) -> "Rows":
        return Rows(self.X[which], self.y[which], self.numbers[which])


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that the fit did not see, and what the model said of them."""

    rows: Rows
    mean: np.ndarray
    deviation: np.ndarray
    calibration: Calibration

    @classmethod
    def of(cls, model, rows: Rows) -> "HeldOut":
        mean, deviation = model.predict(rows.X, return_std=True)
        return cls(rows, mean, deviation, calibration(rows.y, mean, deviation))

    def __str__(self):
        found = self.calibration
        return (
            f"R^2 {found.r2:.4f}, RMSE {found.rmse:.4g}, mean absolute error {found.mean_absolute_error:.4g}, "
            f"log density {found.log_density:.4f} a row\n\n{found}"
        )

    def table(self) -> pl.DataFrame:
        return prediction_table(self.rows.numbers, self.mean, self.deviation, self.rows.y)


def prediction_table(numbers, mean, deviation, y=None) -> pl.DataFrame:
    """What `predictions.csv` holds, one line a row of the data."""
    low, high = interval(mean, deviation, 0.95)
    columns = {"row": numbers} | ({} if y is None else {"target": y})
    columns |= {"mean": mean, "std": deviation, "lower95": low, "upper95": high}
    if y is not None:
        columns["z"] = calibration(y, mean, deviation).z
    return pl.DataFrame(columns)


def run_fit(
    data: Path, target: str, output: Path | None = None, *, drop=(), drop_missing=False, test_share=0.2, seed=0,
    restarts=0, refit=False, quiet=False, say: tables.Say = print, show: tables.Say = print,
) -> Path:  # fmt: skip
    """All of ``mercer fit``. ``say`` gets remarks on the way, ``show`` the result. Returns the folder written to."""
    remarks: list[str] = []

    def remark(text):
        remarks.append(text)
        say(text)

    frame = tables.read(data)
    names = tables.choose(frame, target, drop, remark)
    frame, numbers = tables.complete(frame, [*names, target], drop_missing, remark)
    inputs = tables.describe(frame, names, remark)
    rows = Rows(tables.encode(frame, inputs), frame[target].cast(pl.Float64).to_numpy(), numbers)
    if rows.y.min() == rows.y.max():
        raise DataError(f"the target {target!r} is {rows.y[0]:g} in every row, so that there is nothing to learn.")
    training, held = split(rows, test_share, seed)

    model = GaussianProcessRegressor(n_restarts=restarts, random_state=seed, progress=not quiet)
    plan = model.plan(training.X)
    plan.check()
    if plan.seconds > PATIENCE:
        spell = f"{plan.seconds:.0f} seconds" if plan.seconds < 120 else f"{plan.seconds / 60:.0f} minutes"
        say(f"a fit to {len(training):,} rows takes about {spell} here; Ctrl-C keeps the best model found so far")
    output = Path(f"{tables.stem(data)}_mercer") if output is None else output
    output.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    remarks += fit(model, training, say)
    judged = HeldOut.of(model, held) if len(held) else None
    report = full_report(model, data, target, rows, judged, seed, refit, remarks)
    for name in FILES:  # of an earlier run
        (output / name).unlink(missing_ok=True)
    draw(model, judged, target, output)
    if refit and judged is not None:
        model.update(held.X, held.y)
    model.columns_ = {"target": target, "inputs": inputs}  # type: ignore[attr-defined]
    write(model, report, judged, output)
    show(f"{report}\n")
    show(f"Written to {output}: {', '.join(name for name in FILES if (output / name).exists())}")
    return output


def split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Rows to learn from and rows to be judged by, at random, each in the order of the file."""
    if not 0 <= share < 1:
        raise ParameterError(f"the share of rows held out is at least 0 and below 1; got {share:g}.")
    n = len(rows)
    held = round(share * n)
    if n - held < 2:
        raise DataError(f"of {n} rows {held} would be held out; at least two are needed to learn from.")
    order = np.random.default_rng(seed).permutation(n)
    return rows[np.sort(order[held:])], rows[np.sort(order[:held])]


def fit(model, rows: Rows, say: tables.Say) -> list[str]:
    """Fit, with warnings said as sentences; they are returned too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(rows.X, rows.y)
    ours = [w for w in caught if issubclass(w.category, NumericalWarning | InterruptedFitWarning)]
    for other in caught:
        if other not in ours:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    texts = list(dict.fromkeys(str(w.message) for w in ours))
    for text in texts:
        say(text)
    return texts


def full_report(model, data, target, rows, judged, seed, refit, remarks) -> Report:
    """The model's own report, with what became of the table, and the rows held out."""
    report = model.report()
    held = 0 if judged is None else len(judged.rows)
    inputs = "1 input" if rows.X.width == 1 else f"{rows.X.width} inputs"
    lines = [
        f"{data.name}: {len(rows):,} rows, {inputs} ({_listed(rows.X.columns)}), target {target}",
        *remarks,
        f"{len(rows) - held:,} rows to learn from, {held:,} held out"
        + (f", chosen at random with seed {seed}" if held else ""),
    ]
    if held and refit:
        lines.append("The model saved has all rows, at the parameters learned without those held out (--refit).")
    elif held:
        lines.append("The model saved has seen only the rows to learn from; --refit adds the others.")
    sections = {"Data": "\n".join(lines)}
    if judged is not None:
        sections["Held-out rows"] = str(judged)
    return dataclasses.replace(report, sections=sections | report.sections)


def draw(model, judged: HeldOut | None, target: str, output: Path):
    """The pictures, as PNG files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from mercer import plot

    def keep(ax, name):
        ax.figure.savefig(output / name, dpi=130)
        plt.close(ax.figure)

    _, ax = plt.subplots(figsize=(5, 5), layout="constrained")
    if judged is not None:
        plot.calibration(judged.rows.y, judged.mean, judged.deviation, ax=ax, label="held out", color="tab:red")
    plot.calibration(model, ax=ax, color="tab:blue")
    keep(ax, "calibration.png")

    _, ax = plt.subplots(figsize=(6, 5), layout="constrained")
    if judged is not None:
        plot.predictions(judged.rows.y, judged.mean, judged.deviation, ax=ax)
    else:
        plot.predictions(model, ax=ax)
    kind = "left out one at a time" if judged is None else "held out"
    ax.set(title=f"{target}: rows {kind}")
    keep(ax, "predictions.png")

    table = model.relevance()
    shown = min(len(table), 15)
    _, ax = plt.subplots(figsize=(6, 1.2 + 0.32 * shown), layout="constrained")
    plot.relevance(table, ax=ax, most=shown)
    keep(ax, "relevance.png")

    if len(table) == 1:
        keep(_along_the_input(plot, model, judged, target), "fit.png")


def _along_the_input(plot, model, judged, target):
    name = model.feature_names_in_[0]
    seen = getattr(model.posterior_, "observed", model.posterior_).X[name].to_numpy()
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


def write(model, report, judged, output: Path):
    from mercer.persist import save

    save(model, output / "model.safetensors")
    (output / "report.txt").write_text(f"{report}\n", encoding="utf-8")
    if judged is not None:
        judged.table().write_csv(output / "predictions.csv")


def _listed(names, most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
