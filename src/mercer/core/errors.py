"""Errors and warnings of mercer. A message says what was expected, what was found and what to try."""

import contextlib
from collections.abc import Iterator, Sequence


class MercerError(Exception):
    """Base class of all errors that mercer raises."""


class InvalidKernelError(MercerError, ValueError):
    """A construction that does not give a positive semidefinite kernel; the message names the broken rule."""


class ParameterError(MercerError, ValueError):
    """A parameter that does not exist, or a value outside the parameter's range."""


class DataError(MercerError, ValueError):
    """Input data that cannot be used: wrong shape, wrong type, missing or infinite values."""


class DataTypeError(DataError, TypeError):
    """Input data of a type that cannot be read as numbers."""


class ObjectError(DataError):
    """A row that a kernel on objects cannot read: ``says`` follows the place where it is."""

    def __init__(self, row: int, says: str, column: object = None) -> None:
        several = "s" if isinstance(column, list) else ""
        where = f"row {row}" if column is None else f"column{several} {column!r}, row {row}"
        super().__init__(f"{where}: {says}")
        self.row, self.says, self.column = row, says, column

    def in_column(self, column: object) -> "ObjectError":
        """The same error, of a column of a table."""
        return ObjectError(self.row, self.says, column)

    def in_row(self, row: int) -> "ObjectError":
        """The same error, of another row."""
        return ObjectError(row, self.says, self.column)


@contextlib.contextmanager
def rows_of(which: slice | Sequence[int]) -> Iterator[None]:
    """While some of the caller's rows are read, by a slice or indices: errors name the row in the caller's data."""
    try:
        yield
    except ObjectError as error:
        row = which.start + error.row if isinstance(which, slice) else int(which[error.row])
        raise error.in_row(row) from None


class NotEnoughMemoryError(MercerError, MemoryError):
    """Work refused in advance because it would not fit in memory; the message says what is needed and available."""


class ForkedProcessError(MercerError, RuntimeError):
    """Computation in a forked process, where it would hang: JAX's threads do not survive a fork."""


class InfiniteFeaturesError(MercerError, ValueError):
    """Explicit features requested of a kernel whose feature space is infinite, or too large to write out."""


class FileError(MercerError, ValueError):
    """A file that cannot be written or read: missing, damaged, newer than this version, or not a mercer model."""


class NotPositiveDefiniteError(MercerError, ArithmeticError):
    """A covariance matrix that is more indefinite than rounding explains."""


class NumericalWarning(UserWarning):
    """A result that is less accurate than usual; the message says why and by how much."""


class InterruptedFitWarning(UserWarning):
    """A fit was interrupted; the model has the best parameters found until then."""


class ModelWarning(UserWarning):
    """A model that is allowed, but probably not what was intended."""
