"""The ``mercer`` command and its subcommands."""

import contextlib
import enum
from pathlib import Path
from typing import Annotated

import typer
from polars.exceptions import PolarsError

from mercer.cli.columns import Wishes
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

    Fit a table, read the report, predict for another table:

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
        Path | None, typer.Option(help="Folder to write to. Default: the name of the table, and _mercer.")
    ] = None,
    task: Annotated[
        Task | None,
        typer.Option(help="Insist on one: numbers are quantities, unless classification takes whole ones as classes."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out. May be given several times.", metavar="COLUMN")
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave rows out in which values are missing.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="What a column holds: COLUMN=number, =text or =date; where need be with the decimal mark or the "
            "format of dates: price=number:, or when=date:%d/%m/%y. May be given several times.",
            metavar="COLUMN=KIND",
        ),
    ] = None,
    day_first: Annotated[
        bool | None,
        typer.Option("--day-first/--month-first", help="How to read 02/01/2020 where no day above 12 tells."),
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="Share of the rows held out, to judge the model by. 0 holds none.")
    ] = 0.2,
    refit: Annotated[
        bool, typer.Option("--refit", help="Give the saved model the held-out rows too, at the parameters learned.")
    ] = False,
    restarts: Annotated[int, typer.Option(help="How many more times learning begins, elsewhere.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Which rows are held out, and where learning begins again.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
):
    """Fit a Gaussian process to a table and write the model, a report and pictures.

    Numbers are taken as they are, true and false as 1 and 0, texts as one 0/1 column for each of their values (20 at
    most), dates as decimal years (days since 1970 over 365.25, plus 1970). Empty fields, NA, N/A, NaN, null and ? are
    missing values.

    Text is read as numbers or dates where a whole column says so, and a line tells how: $1,200 and 12% are numbers,
    13/01/2020 and 19580329 are dates. What could be read in two ways is refused; --kind and --day-first or
    --month-first settle it. mercer predict reads columns as the fit did.

    The model learns its lengthscales and the noise from the data, and which inputs matter. Rows held
    out show how good it is, and whether its intervals hold what they should.

    A target of numbers is a quantity (regression); one of texts, or of true and false, has classes (classification;
    50 at most). Whole numbers are taken as classes only if --task classification says so. Of every class the same
    share of rows is held out.

    The folder gets model.safetensors, report.txt, predictions.csv (the held-out rows), relevance.png and pictures of
    how good the predictions are: calibration.png and predictions.png, or of classes reliability.png. With one input
    (of classes also two) fit.png shows the model itself. In predictions.csv rows are counted from 1, below the
    header; std, lower95 and upper95 are those of a measurement, noise included; z is how many standard deviations the
    target lies above the mean. Of classes it has the predicted one, p(...) for the probability of each, and the
    log_score, ln p of the right one.

    Ctrl-C ends learning early: the best model so far is kept and written.
    """
    with readable_errors():
        run_fit(
            data, target, output, task=task and task.value, drop=drop or (), drop_missing=drop_missing,
            wishes=Wishes.of(kind or (), day_first),
            test_share=test_share, seed=seed, restarts=restarts, refit=refit, quiet=quiet, say=_remark(quiet),
            show=_silent if quiet else typer.echo,
        )  # fmt: skip


@app.command("predict")
def predict_command(
    model: Annotated[
        Path, typer.Argument(help="model.safetensors as written by mercer fit, or its folder.", show_default=False)
    ],
    data: Annotated[Path, typer.Argument(help="A table with the same input columns.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="CSV file to write. Default: the name of the table, and _predictions.csv.")
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave rows out in which values are missing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
):
    """Predict for the rows of a table, with 95% intervals or probabilities of classes, and write a CSV file.

    Its columns: row (counted from 1, below the header), mean, std, lower95 and upper95, all of a new measurement,
    noise included. Of a model of classes: row, predicted, and p(...), the probability of each class. Then outside: the
    inputs of that row that are nothing like those of the fit, numbers and dates beyond their range by more than a tenth
    of it and texts that were not there; such a text counts as none of the known ones. Input columns are found by name,
    in any order, and read and turned into numbers as in the fit.
    """
    with readable_errors():
        written = run_predict(model, data, output, drop_missing=drop_missing, say=_remark(quiet))
        if not quiet:
            typer.echo(f"Written to {written}")


@app.command("demo")
def demo_command(
    output: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Which patients are held out.")] = 0,
):
    """Fit two sets of real data, print what was learned, and draw it.

    Carbon dioxide over Mauna Loa: learned from thirty years, foretold for the years after, beside what was then
    measured. Diabetes: ten measurements of 442 patients, which of them matter, and whether the intervals are honest.
    """
    with readable_errors():
        typer.echo(run_demo(output, seed))


@contextlib.contextmanager
def readable_errors():
    """One line on stderr and exit status 1, for everything that can be wrong with files, data and settings."""
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
