"""Rows that come in chunks, from files or arrays that need not fit in memory, any number of times."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mercer.core.errors import DataError, FileError, ParameterError
from mercer.core.inputs import Inputs, as_vector, count_rows, stack_rows, take_rows

CHUNK_ROWS = 50_000
SEPARATED, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
MISSING_VALUES = sorted(  # in addition to an empty field: these words in any mixture of cases
    {
        "".join(letters)
        for word in ("na", "n/a", "#n/a", "nan", "null", "?")
        for letters in itertools.product(*zip(word, word.upper(), strict=True))
    }
)


class Part(NamedTuple):
    """Consecutive rows: inputs, targets, and the number of the first, from zero."""

    X: Inputs
    y: np.ndarray
    first: int


class Chunks:
    """Rows and targets in chunks, for fits to more rows than memory holds.

    Parameters
    ----------
    source : a Parquet or CSV file; an array, also a memory map, or frame of inputs; a list of pairs (X, y); or a
        function without arguments that returns an iterator of such pairs, a new one at every call.
    target : for a file, the name of its column; for an array or frame, the targets, one for each row.
    columns : for a file, names of the inputs. None is all other columns.
    size : rows of a chunk of a file, an array or a frame.

    >>> import numpy as np
    >>> chunks = Chunks(np.arange(10.0)[:, None], np.arange(10.0), size=4)
    >>> [len(part.y) for part in chunks]
    [4, 4, 2]
    """

    def __init__(self, source: Any, target: Any = None, *, columns: Any = None, size: int = CHUNK_ROWS) -> None:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ParameterError(f"size must be a positive number of rows; got {size!r}.")
        self.source, self.target, self.size = source, target, int(size)
        self.columns = None if columns is None else [columns] if isinstance(columns, str) else list(columns)
        self._before: Any = None  # the iterator of the last pass
        self._count: int | None = None  # rows of a whole pass
        if is_path(source):
            self._pairs: Callable[[], Iterable[tuple[Any, Any]]] = self._of_file()
        elif callable(source) or is_pairs(source):
            if target is not None:
                raise ParameterError("pairs (X, y) have the targets: leave out target.")
            self._pairs = source if callable(source) else lambda: source
        elif isinstance(source, Iterator):
            raise ParameterError(
                "rows pass more than once, and an iterator or generator gives them once. Pass a function that returns "
                "a new iterator at every call, or a list of pairs (X, y)."
            )
        else:
            if target is None:
                raise DataError("Chunks of an array or a frame need their targets: Chunks(X, y).")
            n = count_rows(source)
            if count_rows(target) != n:
                raise DataError(f"there must be one target for each of the {n:,} rows; got {count_rows(target):,}.")
            self._pairs = lambda: (
                (take_rows(source, slice(i, i + self.size)), take_rows(target, slice(i, i + self.size)))
                for i in range(0, n, self.size)
            )

    def __repr__(self) -> str:
        what = repr(os.fspath(self.source)) if is_path(self.source) else type(self.source).__name__
        return f"Chunks({what})"

    def __iter__(self) -> Iterator[Part]:
        first = 0
        pairs = self._pairs()
        if not isinstance(pairs, Iterable):
            raise DataError(f"the function must return an iterator of pairs (X, y); got {pairs!r}.")
        if isinstance(pairs, Iterator) and pairs is self._before:
            raise DataError("the function returned the iterator of the last pass; it must return a new one every time.")
        self._before = pairs
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DataError(f"every chunk must be a pair (X, y); got {type(pair).__name__}.")
            X, y = pair
            n = count_rows(X)
            if n:
                yield Part(X, as_vector(y, n, gaps=True), first)
            first += n
        if self._count is not None and first != self._count:
            raise DataError(
                f"{self!r} had {self._count:,} rows in an earlier pass, and {first:,} in this one. A function must "
                "return a new iterator of the same rows at every call."
            )
        self._count = first

    def sample(self, count: int, seed: int = 0) -> tuple[Inputs, np.ndarray, np.ndarray, int]:
        """Rows at random, without replacement, in their order: inputs, targets, their numbers, and the number of all
        rows that have a target. One pass, and memory for the sample and a chunk."""
        rng, n = np.random.default_rng(seed), 0
        X: Inputs = None
        y, numbers, keys = np.zeros(0), np.zeros(0, dtype=int), np.zeros(0)
        for part in self:
            told = np.flatnonzero(~np.isnan(part.y))
            n += len(told)
            own = rng.random(len(told))
            every = np.concatenate([keys, own])
            kept = np.arange(len(every)) if len(every) <= count else np.sort(np.argpartition(every, count)[:count])
            before, new = kept[kept < len(keys)], told[kept[kept >= len(keys)] - len(keys)]
            rows = take_rows(part.X, new)
            if X is None:
                X = rows
            elif len(new):
                X = stack_rows(take_rows(X, before), rows, "anything")
            y = np.concatenate([y[before], part.y[new]])
            numbers, keys = np.concatenate([numbers[before], part.first + new]), every[kept]
        if X is None or not n:
            raise DataError(f"{self!r} has no rows with a target.")
        return X, y, numbers, n

    # -- files -------------------------------------------------------------------------------------------------------

    def _of_file(self) -> Callable[[], Iterable[tuple[Any, Any]]]:
        path = Path(self.source)
        try:
            import polars as pl
        except ImportError:
            raise ParameterError("reading files needs polars: pip install 'mercer[cli]'.") from None
        extension = Path(path.name.removesuffix(".gz")).suffix.lower()
        if extension not in SEPARATED + PARQUET:
            raise DataError(f"{path} must end in .parquet, .csv, .csv.gz or .tsv; got {path.suffix or 'no extension'}.")
        if not isinstance(self.target, str):
            raise ParameterError(f"of a file, target is the name of a column; got {self.target!r}.")
        with path.open("rb") as file:  # for its clear errors
            file.read(1)
        separator = "\t" if extension == ".tsv" else ","
        with _errors_of(path):
            if extension in PARQUET:
                frame = pl.scan_parquet(path)
            else:  # types are those of all rows: numbers without a fraction may be followed by others
                frame = pl.scan_csv(path, separator=separator, null_values=MISSING_VALUES, infer_schema_length=None)
            schema = frame.collect_schema()
        names = schema.names()
        inputs = [name for name in names if name != self.target] if self.columns is None else self.columns
        absent = [name for name in [self.target, *inputs] if name not in names]
        if absent:
            raise DataError(f"{path} has no column {', '.join(map(repr, absent))}; it has {names}.")
        kind = schema[self.target]
        if not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
            raise DataError(f"the target must be a column of numbers; column {self.target!r} of {path} holds {kind}.")
        wanted = frame.select([pl.col("^" + _escaped(name) + "$") for name in [*inputs, self.target]])
        with _errors_of(path):
            count = int(frame.select(pl.len()).collect().item()) if extension in PARQUET else None

        def pairs() -> Iterator[tuple[Any, Any]]:
            batches: Iterator[Any]
            if count is None:
                batches = iter(wanted.collect_batches(chunk_size=self.size, maintain_order=True))
            else:
                batches = (wanted.slice(start, self.size).collect() for start in range(0, count, self.size))
            first = 0
            with _errors_of(path):
                for batch in batches:
                    y = batch[self.target].cast(pl.Float64).to_numpy()
                    infinite = np.flatnonzero(np.isinf(y))
                    if len(infinite):
                        raise DataError(
                            f"column {self.target!r} of {path} has an infinite value in row {first + infinite[0]:,} "
                            "(from zero). Finite numbers were expected, or an empty field where there is no target."
                        )
                    yield batch.select(pl.exclude(self.target)), y
                    first += len(y)

        return pairs


def _escaped(name: str) -> str:
    import re

    return re.escape(name)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Polars' errors as those of the package: a file that is damaged, or not of the kind that its name says."""
    import polars as pl

    try:
        yield
    except pl.exceptions.PolarsError as error:
        says = str(error).strip().splitlines()[0].rstrip(".")
        raise FileError(
            f"{path} cannot be read: {says}. A table with one header and as many fields in every row was expected, or "
            "a whole Parquet file."
        ) from error


def is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def is_pairs(source: Any) -> bool:
    """Whether it is a list of pairs (X, y)."""
    return isinstance(source, list) and bool(source) and all(isinstance(p, tuple) and len(p) == 2 for p in source)


def passes_in_chunks(X: Any) -> bool:
    """Whether X is no rows in memory, but what `Chunks` reads: the path of a file, say."""
    if isinstance(X, Chunks | os.PathLike | Iterator):
        return True
    return isinstance(X, str) and Path(X).suffix.lower() in (*SEPARATED, *PARQUET, ".gz")


def as_chunks(X: Any, y: Any) -> Chunks | None:
    """X and y of a fit as chunks, if that is what they are: chunks, the path of a file and the name of its target, a
    function that returns an iterator, a list of pairs, or a memory map; None if they are rows in memory."""
    if isinstance(X, Chunks):
        if y is not None:
            raise ParameterError("chunks have their targets: leave out y.")
        return X
    if is_path(X) and (isinstance(y, str) or Path(os.fspath(X)).suffix.lower() in (*SEPARATED, *PARQUET, ".gz")):
        return Chunks(X, y)
    given = y is None and (isinstance(X, Iterator) or is_pairs(X) or (callable(X) and not hasattr(X, "__len__")))
    if isinstance(X, np.memmap) or given:
        return Chunks(X, y)
    return None
