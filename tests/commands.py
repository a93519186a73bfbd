"""The command line, called from tests."""

from typer.testing import CliRunner

from mercer.cli.app import app


def call(*arguments, code=0):
    result = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "120"}).invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refused(*arguments) -> str:
    """The one line, after notes, that a command that fails says on stderr."""
    result = call(*arguments, code=1)
    assert isinstance(result.exception, SystemExit)  # and no other
    *notes, line = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert all(note.startswith("note: ") for note in notes)
    assert result.stdout == ""
    return line
