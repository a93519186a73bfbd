"""The command line."""

import sys


def main():
    """Entry point of the ``mercer`` command."""
    try:
        from mercer.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(f'the command line needs {error.name}: pip install "mercer[cli]"')
    app()
