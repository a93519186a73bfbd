"""The ``mercer`` command and its subcommands."""

from pathlib import Path
from typing import Annotated

import typer

from mercer.cli.demo import run_demo

app = typer.Typer(help="Kernel methods and Gaussian processes.", no_args_is_help=True, add_completion=False)


@app.callback()
def root():
    """Kernel methods and Gaussian processes."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Which functions to draw.")] = 0,
):
    """Draw functions from several kernels, show their Gram matrices, and print why each kernel is valid."""
    typer.echo(run_demo(output, seed))
