"""A table in; a model, its report and its pictures out."""

import dataclasses
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np

from mercer.cli import classes, quantities, tables
from mercer.cli.columns import NO_WISHES, Wishes, settle
from mercer.cli.tables import Rows
from mercer.core.errors import DataError, InterruptedFitWarning, NumericalWarning, ParameterError
from mercer.core.text import listed
from mercer.report.page import HELD_OUT, Report

MODEL = "model.safetensors"
KINDS: dict[str, ModuleType] = {"regression": quantities, "classification": classes}  # of a target


def run_fit(
    data: Path, target: str, output: Path | None = None, *, task: str | None = None, drop=(), drop_missing=False,
    test_share=0.2, seed=0, restarts=0, refit=False, quiet=False, wishes: Wishes = NO_WISHES,
    say: tables.Say = print, show: tables.Say = print,
) -> Path:  # fmt: skip
    """All of ``mercer fit``. ``say`` gets remarks on the way, ``show`` the result. Returns the folder written to."""
    remarks: list[str] = []

    def remark(text):
        remarks.append(text)
        say(text)

    if task is not None and task not in KINDS:
        raise ParameterError(f"the task is {' or '.join(KINDS)}; got {task!r}.")
    frame = tables.read(data, [name for name, kind in wishes.kinds.items() if kind.startswith(("text", "date:"))])
    tables.check_names(frame, target, drop)
    wishes.check(frame.columns)
    used = [name for name in frame.columns if name not in drop]
    frame, readings = settle(frame, used, wishes, remark, target, tables.decimal_mark(data))
    names = tables.choose(frame, target, drop, remark)
    task = tables.task_of(frame[target], task, remark)
    kind = KINDS[task]
    frame, numbers = tables.complete(frame, [*names, target], drop_missing, remark)
    inputs = tables.describe(frame, names, remark, readings)
    rows = Rows(tables.encode(frame, inputs), kind.target_of(frame[target]), numbers)
    training, held = split(rows, test_share, seed, by_class=task == "classification")

    model = kind.new_model(n_restarts=restarts, random_state=seed, progress=not quiet)
    kind.prepare(model, training, say)
    output = Path(f"{tables.stem(data)}_mercer") if output is None else output
    output.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    remarks += fit(model, training, say)
    for name in {name for other in KINDS.values() for name in other.FILES}:  # of an earlier run
        (output / name).unlink(missing_ok=True)
    write(model, target, tables.with_ranges(inputs, training.X), output)  # before anything else can go wrong
    try:
        judged = kind.HeldOut.of(model, held) if len(held) else None
        # Before --refit: a model that has seen the held-out rows cannot be judged on them.
        report = model.report(held.X, held.y) if len(held) else model.report()
        report = full_report(report, data, target, rows, len(held), seed, refit, remarks)
        (output / "report.txt").write_text(f"{report}\n", encoding="utf-8")
        if judged is not None:
            judged.table().write_csv(output / "predictions.csv")
        kind.draw(model, judged, target, output)
        if refit and judged is not None:
            write(kind.add(model, held, rows), target, tables.with_ranges(inputs, rows.X), output)
    except BaseException as error:
        error.add_note(f"The fit itself is done: {output / MODEL} holds the model of the rows to learn from.")
        raise
    show(f"{report}\n")
    show(f"Written to {output}: {', '.join(name for name in kind.FILES if (output / name).exists())}")
    return output


def split(rows: Rows, share: float, seed: int, by_class: bool = False) -> tuple[Rows, Rows]:
    """Rows to learn from and rows to be judged by, at random, each in the order of the file.

    ``by_class`` holds the same share of every class out, and leaves each class something to be learned from.
    """
    if not 0 <= share < 1:
        raise ParameterError(f"the share of rows held out is at least 0 and below 1; got {share:g}.")
    n = len(rows)
    held = round(share * n)
    if n - held < 2:
        raise DataError(f"of {n} rows {held} would be held out; at least two are needed to learn from.")
    order = np.random.default_rng(seed).permutation(n)
    out = np.zeros(n, dtype=bool)
    out[_evenly(rows.y, order, held) if by_class else order[:held]] = True
    return rows[np.flatnonzero(~out)], rows[np.flatnonzero(out)]


def _evenly(labels, order, held: int) -> list[int]:
    """``held`` of the rows, spread evenly over the classes; of each class at least one row is left."""
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = order[np.argsort(codes[order], kind="stable")]
    reached = np.floor(np.arange(len(order) + 1) * held / len(order) + 0.5)
    chosen: list[int] = []
    for row in order[np.diff(reached) > 0]:
        counts[codes[row]] -= 1
        if counts[codes[row]] > 0:
            chosen.append(row)
    return chosen


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


def full_report(report: Report, data, target, rows, held: int, seed, refit, remarks) -> Report:
    """The model's own report, preceded by how the table was read and split, and by the ``held`` rows held out."""
    inputs = "1 input" if rows.X.width == 1 else f"{rows.X.width} inputs"
    lines = [
        f"{data.name}: {len(rows):,} rows, {inputs} ({listed(rows.X.columns)}), target {target}",
        *remarks,
        f"{len(rows) - held:,} rows to learn from, {held:,} held out"
        + (f", chosen at random with seed {seed}" if held else ""),
    ]
    if held and refit:
        lines.append("The model saved has all rows, at the parameters learned without those held out (--refit).")
    elif held:
        lines.append("The model saved has seen only the rows to learn from; --refit adds the others.")
    first = {"Data": "\n".join(lines)}
    first |= {name: text for name, text in report.sections.items() if name == HELD_OUT}
    return dataclasses.replace(report, sections=first | report.sections)


def write(model, target: str, inputs: list[tables.Input], output: Path):
    """The model, with the record of the columns that it was fitted to."""
    from mercer.persist import save

    model.columns_ = {"target": target, "inputs": inputs}
    save(model, output / MODEL)
