"""The ``mercer`` command and its subcommands."""

import contextlib
import enum
from pathlib import Path
from typing import Annotated

import typer
from polars.exceptions import PolarsError

from mercer.cli.columns import ColumnOptions
from mercer.cli.demo import run_demo
from mercer.cli.fit import run_fit
from mercer.cli.predict import run_predict
from mercer.core.errors import MercerError


class Task(enum.StrEnum):
    regression = "regression"
    classification = "classification"


app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


@app.callback()
def root():
    """Kernel methods and Gaussian processes, from the command line.

    Fit a model to a table, read the report, predict for another table:

        mercer fit houses.csv --target price

        mercer predict houses_mercer/model.safetensors more_houses.csv
    """


@app.command("fit")
def fit_command(
    data: Annotated[
        Path, typer.Argument(help="The table: .csv, .tsv (also with .gz) or .parquet.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option(help="The column to predict: numbers, or classes (text, true and false).", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: the name of the table with _mercer.")
    ] = None,
    task: Annotated[
        Task | None,
        typer.Option(help="Default: regression for numbers, classification for text. Set it to classify integers."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to ignore. May be given several times.", metavar="COLUMN")
    ] = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Drop rows with missing values.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Type of a column: COLUMN=number, =text or =date, if necessary with the decimal mark or the date "
            "format: price=number:, or when=date:%d/%m/%y. May be given several times.",
            metavar="COLUMN=KIND",
        ),
    ] = None,
    day_first: Annotated[
        bool | None,
        typer.Option("--day-first/--month-first", help="How to read 02/01/2020 if no day is above 12."),
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="Fraction of rows held out to evaluate the model. 0 holds out none.")
    ] = 0.2,
    refit: Annotated[
        bool, typer.Option("--refit", help="Add the held-out rows to the saved model, at the parameters learned.")
    ] = False,
    restarts: Annotated[int, typer.Option(help="Number of further optimisations from random starts.")] = 0,
    search: Annotated[
        bool,
        typer.Option("--search", help="Search for a sum of components, described in search.txt, components.png."),
    ] = False,
    max_seconds: Annotated[
        float | None, typer.Option(help="Time after which --search begins nothing further.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out rows and of restarts.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
):
    """Fit a Gaussian process to a table and write the model, a report and plots.

    Numbers are used as they are, true and false as 1 and 0, text as one 0/1 column for each of its values (20 at
    most), dates as decimal years (days since 1970 over 365.25, plus 1970). Empty fields, NA, N/A, NaN, null and ? are
    missing values.

    Text is read as numbers or dates if the whole column has that format, with a note: $1,200 and 12% are numbers,
    13/01/2020 and 19580329 are dates. Ambiguous columns are refused; --kind and --day-first or --month-first resolve
    them. mercer predict reads columns as the fit did.

    The lengthscales, the noise and the relevance of inputs are learned from the data. Held-out rows show how accurate
    the predictions are, and whether intervals have the right coverage.

    Numeric targets are predicted by regression; text, and true and false, by classification (50 classes at most).
    Integers are classes only with --task classification. The same fraction of every class is held out.

    Rows without a target are gaps: the fit leaves them out, and predictions.csv has their predictions, too. Other
    missing values are refused, unless --drop-missing leaves out their rows, and those without a target.

    The folder gets model.safetensors, report.txt, predictions.csv (of the held-out rows), relevance.png, and
    calibration.png and predictions.png, or reliability.png for classes. With one input (for classes also two) fit.png
    shows the model. In predictions.csv rows are counted from 1, below the header; std, lower95 and upper95 are those of
    a measurement, noise included; z is the distance of the target from the mean in standard deviations. For classes it
    has the predicted class, the probability p(...) of each, and log_score, ln p of the true class.

    --search explains numbers by a sum of components (smooth, rough, straight, seasonal; growing, beginning or ending),
    found term by term, instead of the default kernel. It goes on from search.json in the folder if it was interrupted.

    Ctrl-C ends learning early: the best model so far is kept and written.
    """
    with readable_errors():
        run_fit(
            data, target, output, task=task and task.value, drop=drop or (), drop_missing=drop_missing,
            options=ColumnOptions.of(kind or (), day_first),
            test_share=test_share, seed=seed, restarts=restarts, refit=refit, quiet=quiet, say=_remark(quiet),
            search=search, max_seconds=max_seconds,
            show=_silent if quiet else typer.echo,
        )  # fmt: skip


@app.command("predict")
def predict_command(
    model: Annotated[
        Path, typer.Argument(help="model.safetensors as written by mercer fit, or its folder.", show_default=False)
    ],
    data: Annotated[Path, typer.Argument(help="A table with the same input columns.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="CSV file to write. Default: the name of the table with _predictions.csv.")
    ] = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Drop rows with missing values.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
):
    """Predict for the rows of a table, with 95% intervals or class probabilities, and write a CSV file.

    Its columns are row (counted from 1, below the header), mean, std, lower95 and upper95, all of a new measurement,
    noise included; for classes row, predicted, and the probability p(...) of each class. The column outside lists the
    inputs of the row outside the training data: numbers and dates beyond their range by more than a tenth of it, and
    new text values, which count as none of the known ones. Input columns are found by name, in any order, and read as
    in the fit.
    """
    with readable_errors():
        written = run_predict(model, data, output, drop_missing=drop_missing, say=_remark(quiet))
        if not quiet:
            typer.echo(f"Written to {written}")


@app.command("demo")
def demo_command(
    output: Annotated[Path, typer.Option(help="Folder for the plot.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out patients.")] = 0,
):
    """Fit two real data sets, print the results, and plot them.

    Carbon dioxide over Mauna Loa: a fit to thirty years, and a forecast of the years after, compared with measurements.
    Diabetes: the relevance of ten measurements of 442 patients, and the coverage of intervals.
    """
    with readable_errors():
        typer.echo(run_demo(output, seed))


@contextlib.contextmanager
def readable_errors():
    """Turn errors in files, data and settings into one line on stderr and exit status 1."""
    try:
        yield
    except OSError as error:
        place = f" {error.filename}" if error.filename is not None else ""
        reason = (
            str(error) if isinstance(error, MercerError) else f"{error.strerror or error}{':' * bool(place)}{place}"
        )
        _fail(reason, error)
    except (MercerError, PolarsError) as error:
        _fail(str(error), error)


def _fail(text: str, error: Exception):
    notes = " ".join(getattr(error, "__notes__", ()))
    typer.echo(f"error: {' '.join(f'{text} {notes}'.split())}", err=True)
    raise typer.Exit(1)


def _silent(text: str):
    pass


def _remark(quiet: bool):
    return _silent if quiet else lambda text: typer.echo(f"note: {text}", err=True)
