"""``mercer fit``: from a table to a model, a report and plots."""

import dataclasses
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl

from mercer.cli import classes, large, quantities, tables
from mercer.cli.columns import DEFAULT_COLUMN_OPTIONS, ColumnOptions, settle
from mercer.cli.tables import TableRows
from mercer.core.errors import DataError, InterruptedFitWarning, NumericalWarning, ParameterError
from mercer.core.text import listed
from mercer.report.page import HELD_OUT, Report
from mercer.solvers import LowRank

MODEL = "model.safetensors"
TASKS: dict[str, ModuleType] = {"regression": quantities, "classification": classes}


def run_fit(
    data: Path, target: str, output: Path | None = None, *, task: str | None = None, drop=(), drop_missing=False,
    test_share=0.2, seed=0, restarts=0, refit=False, quiet=False, search=False, max_seconds: float | None = None,
    options: ColumnOptions = DEFAULT_COLUMN_OPTIONS,
    say: tables.Say = print, show: tables.Say = print,
) -> Path:  # fmt: skip
    """Run ``mercer fit``. ``say`` receives remarks, ``show`` the result. Returns the folder written to."""
    remarks: list[str] = []

    def remark(text):
        remarks.append(text)
        say(text)

    if task is not None and task not in TASKS:
        raise ParameterError(f"task must be {' or '.join(TASKS)}; got {task!r}.")
    texts = [name for name, kind in options.kinds.items() if kind.startswith(("text", "date:"))]
    table = large.scanned(data)
    if table is None:
        frame, places = tables.read(data, texts, target), None
    else:
        frame, places, total = large.sampled(table, target, seed)
        frame = tables.tidied(frame, texts, target)
    tables.check_names(frame, target, drop)
    options.check(frame.columns)
    used = [name for name in frame.columns if name not in drop]
    frame, readings = settle(frame, used, options, remark, target, tables.decimal_mark(data))
    names = tables.choose(frame, target, drop, remark)
    if task is None and options.kinds.get(target) == "text":
        task = "classification"
    task = tables.task_of(frame[target], task, remark)
    kind = TASKS[task]
    text = tables.read_as_text(frame, names)
    frame, numbers = tables.complete(frame, [*names, target], drop_missing, remark, text, target)
    gaps = tables.without_target(frame, target, remark)
    inputs = tables.describe(frame, names, remark, readings)
    numbers = numbers if places is None else places[numbers - 1] + 1
    X = tables.typed(frame, inputs)
    rows = TableRows(X.filter(~gaps), kind.target_of(frame[target].filter(~gaps)), numbers[~gaps])
    training, held = split(rows, test_share, seed, by_class=task == "classification")

    model = kind.new_model(n_restarts=restarts, random_state=seed, progress=not quiet)
    if table is not None:
        all_of_them = "all others enter the model" if kind is quantities else "others do not enter the model"
        remark(
            f"the table has {total:,} rows: {len(training):,} at random to learn from, {len(held):,} held out; "
            f"{all_of_them}"
        )
        if kind is quantities:
            model.solver = LowRank(learning_rows=len(training))
    output = Path(f"{tables.stem(data)}_mercer") if output is None else output
    output.mkdir(parents=True, exist_ok=True)  # fail before the fit, not after it
    found = None
    if search and kind is not quantities:
        raise ParameterError("--search is for numeric targets; leave it out for classes.")
    if search:
        found = quantities.search_kernel(model, training, output, max_seconds, seed, not quiet)
    elif kind is quantities:
        quantities.choose_kernel(model, training, remark)
    kind.prepare(model, training, say)
    remarks += fit(model, training, say)
    if table is not None and kind is quantities:
        chunks = large.chunks(table, inputs, target, drop_missing, readings.get(target))
        model._absorb(chunks, held.numbers - 1)
    own = () if found is None else quantities.SEARCH_FILES
    known = {name for other in TASKS.values() for name in other.FILES} | {*quantities.SEARCH_FILES}
    for name in known - {*own}:  # of an earlier run
        (output / name).unlink(missing_ok=True)
    write(model, target, tables.with_ranges(inputs, training.X), output)  # before anything else can fail
    try:
        evaluated = kind.HeldOut.of(model, held) if len(held) else None
        # Before --refit: held-out rows cannot evaluate a model that has seen them.
        report = model.report(held.X, held.y) if len(held) else model.report()
        report = full_report(report, data, target, rows, len(held), seed, refit, remarks, table is not None)
        if found is not None:
            sections = report.sections | {"Components": "\n".join(map(str, found.components))}
            report = dataclasses.replace(report, sections=sections)
        (output / "report.txt").write_text(f"{report}\n", encoding="utf-8")
        predicted = [] if evaluated is None else [evaluated.table()]
        if gaps.any():
            predicted.append(kind.predictions(model, X.filter(gaps), numbers[gaps]))
        if predicted:
            pl.concat(predicted, how="diagonal").sort("row").write_csv(output / "predictions.csv")
        kind.draw(model, evaluated, target, output)
        if refit and evaluated is not None:
            write(kind.add(model, held, rows), target, tables.with_ranges(inputs, rows.X), output)
    except BaseException as error:
        error.add_note(f"The fit itself is done: {output / MODEL} holds the model of the training rows.")
        raise
    show(f"{report}\n")
    show(f"Written to {output}: {', '.join(name for name in (*kind.FILES, *own) if (output / name).exists())}")
    return output


def split(rows: TableRows, share: float, seed: int, by_class: bool = False) -> tuple[TableRows, TableRows]:
    """Split rows at random into training and held-out rows, each in the order of the file.

    ``by_class`` holds out the same share of every class, and keeps at least one training row of each.
    """
    if not 0 <= share < 1:
        raise ParameterError(f"--test-share must be at least 0 and below 1; got {share:g}.")
    n = len(rows)
    held = round(share * n)
    if n - held < 2:
        raise DataError(f"{held} of {n} rows would be held out; at least two training rows are needed.")
    order = np.random.default_rng(seed).permutation(n)
    out = np.zeros(n, dtype=bool)
    out[_evenly(rows.y, order, held) if by_class else order[:held]] = True
    return rows[np.flatnonzero(~out)], rows[np.flatnonzero(out)]


def _evenly(labels, order, held: int) -> list[int]:
    """``held`` rows spread evenly over the classes, keeping at least one of each class."""
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = order[np.argsort(codes[order], kind="stable")]
    reached = np.floor(np.arange(len(order) + 1) * held / len(order) + 0.5)
    chosen: list[int] = []
    for row in order[np.diff(reached) > 0]:
        counts[codes[row]] -= 1
        if counts[codes[row]] > 0:
            chosen.append(row)
    return chosen


def fit(model, rows: TableRows, say: tables.Say) -> list[str]:
    """Fit the model; pass its warnings to ``say``, and return them."""
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


def full_report(
    report: Report, data, target, rows, held: int, seed, refit, remarks, large: bool = False
) -> Report:  # fmt: skip
    """The model's report, preceded by how the table was read and split, and by the held-out rows."""
    inputs = "1 input" if rows.X.width == 1 else f"{rows.X.width} inputs"
    lines = [
        f"{data.name}: {len(rows):,} rows, {inputs} ({listed(rows.X.columns)}), target {target}",
        *remarks,
        f"{len(rows) - held:,} training rows, {held:,} held out"
        + (f", chosen at random with seed {seed}" if held else ""),
    ]
    if held and large and not refit:
        pass  # it has been said
    elif held and refit:
        lines.append("The saved model has all rows, at the parameters learned without the held-out ones (--refit).")
    elif held:
        lines.append("The saved model has the training rows only; --refit adds the others.")
    first = {"Data": "\n".join(lines)}
    first |= {name: text for name, text in report.sections.items() if name == HELD_OUT}
    return dataclasses.replace(report, sections=first | report.sections)


def write(model, target: str, inputs: list[tables.Input], output: Path):
    """Save the model with a record of the columns it was fitted to."""
    from mercer.persist import save

    model.table_ = {"target": target, "inputs": inputs}
    save(model, output / MODEL)
