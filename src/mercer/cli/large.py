"""Tables of more rows than a fit takes at once: a random part of the rows to learn from, and all of them in chunks."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mercer.cli import columns, tables
from mercer.core.errors import DataError
from mercer.datasets import Chunks
from mercer.datasets.chunks import CHUNK_ROWS, MISSING_VALUES
from mercer.learning.columns import STRUCTURED

LARGE_ROWS = 200_000  # of a table, from which rows pass in chunks
SAMPLE_ROWS = 60_000  # to learn from, and to hold out


def scanned(path: Path) -> pl.LazyFrame | None:
    """The table, to be read in chunks, if it is large; None if it is not, or not a table."""
    extension = Path(path.name.removesuffix(".gz")).suffix.lower()
    try:
        if extension in tables.PARQUET:
            frame = pl.scan_parquet(path)
        elif extension in tables.SEPARATED and path.stat().st_size > LARGE_ROWS:  # a row has more than one character
            frame = pl.scan_csv(
                path, separator=tables.separator_of(path), null_values=MISSING_VALUES, infer_schema_length=None
            )  # fmt: skip
        else:
            return None
        if extension in tables.SEPARATED:
            tables.check_header(path)
        return frame if int(frame.select(pl.len()).collect().item()) > LARGE_ROWS else None
    except (pl.exceptions.PolarsError, csv.Error, OSError):
        return None  # reading it all says what is wrong


def batches(frame: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    yield from frame.collect_batches(chunk_size=CHUNK_ROWS, maintain_order=True)


def sampled(frame: pl.LazyFrame, target: str, seed: int) -> tuple[pl.DataFrame, np.ndarray, int]:
    """Rows at random, in their order, their numbers from zero, and the number of all rows."""
    n = int(frame.select(pl.len()).collect().item())
    names = frame.collect_schema().names()
    if target not in names:  # the usual check of names says it better
        return frame.head(1).collect(), np.arange(1), n
    numbers = np.sort(np.random.default_rng(seed).choice(n, size=min(SAMPLE_ROWS, n), replace=False))
    found, first = [], 0
    for batch in batches(frame):
        own = numbers[(numbers >= first) & (numbers < first + len(batch))] - first
        found.append(batch[own])
        first += len(batch)
    return pl.concat(found), numbers, n


def chunks(
    frame: pl.LazyFrame, inputs: Sequence[tables.Input], target: str, drop_missing: bool,
    reading: columns.Reading | None = None,
) -> Chunks:  # fmt: skip
    """All rows, read as the sample was, the target in the ``reading`` of text if there is one. Rows with missing values
    have no target, which is a gap."""
    text = [entry["name"] for entry in inputs if entry["kind"] in (*STRUCTURED, "date") or "decimal" in entry]
    text += [] if reading is None else [target]
    needed = [entry["name"] for entry in inputs if entry["kind"] not in STRUCTURED]

    def pairs() -> Iterable[tuple[Any, np.ndarray]]:
        for batch in batches(frame):
            table = tables.tidied(batch, text, target)
            if reading is not None:
                table = table.with_columns(columns.read(table[target], reading))
            for entry in inputs:
                if entry["kind"] == "date":
                    table = table.with_columns(columns.read(table[entry["name"]], {"format": "%Y-%m-%d"} | entry))
                elif "decimal" in entry:
                    table = table.with_columns(columns.read(table[entry["name"]], entry))
            missing = np.any([table[name].is_null().to_numpy() for name in needed], axis=0)
            if missing.any() and not drop_missing:
                raise DataError(
                    f"{int(missing.sum())} rows of the table have missing values in the columns used; fill them in, or "
                    "drop those rows with --drop-missing."
                )
            y = table[target].cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
            y[missing] = np.nan
            yield tables.typed(table, list(inputs)), y

    return Chunks(pairs)
