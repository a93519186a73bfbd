"""Progress line on the terminal."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

PATIENCE_SECONDS = 1.5  # before the first line
TERMINAL_SECONDS, FILE_SECONDS = 0.1, 10.0  # between lines, on a terminal and in a log file


class Progress:
    """Silent for the first seconds; then one line, rewritten in place on a terminal, now and then in a log file.

    ``prefix`` begins every line: the state of a longer computation, of which the text is one part.
    """

    prefix = ""

    def __init__(self, shown: bool = True, patience: float = PATIENCE_SECONDS, stream: TextIO | None = None) -> None:
        self.shown = shown
        self.stream = sys.stderr if stream is None else stream
        self.started = time.monotonic()
        self._next = self.started + patience
        self._in_place = bool(getattr(self.stream, "isatty", lambda: False)())
        self._width = 0

    @classmethod
    def of(cls, given: "bool | Progress") -> "Progress":
        """A line of its own, shown or not, or the line that is given."""
        return given if isinstance(given, Progress) else cls(shown=given)

    def __call__(self, text: str | Callable[[], str]) -> None:
        """Show the text, or what the function returns, if it is time for it."""
        now = time.monotonic()
        if not self.shown or now < self._next:
            return
        text = text if isinstance(text, str) else text()
        self._next = now + (TERMINAL_SECONDS if self._in_place else FILE_SECONDS)
        line = f"mercer: {self.prefix}{text}, {now - self.started:.0f} s"
        if self._in_place:
            self.stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()
            self._width = 0


def announce(text: str, stream: TextIO | None = None) -> None:
    """One line on stderr, before a work that differs from what one might expect."""
    stream = sys.stderr if stream is None else stream
    stream.write(f"mercer: {text}\n")
    stream.flush()
