"""``mercer predict``: from a saved model and a table to predictions."""

from pathlib import Path

import polars as pl

from mercer.cli import classes, columns, quantities, tables
from mercer.core.errors import DataError
from mercer.learning.columns import STRUCTURED


def run_predict(
    model_path: Path, data: Path, output: Path | None = None, *, drop_missing=False, say: tables.Say = print
) -> Path:
    """Run ``mercer predict``. Returns the file written."""
    from mercer.persist import load

    output = Path(f"{tables.stem(data)}_predictions.csv") if output is None else output
    if output.exists() and data.exists() and output.samefile(data):
        raise DataError(f"{output} is the input table; give another file with --output.")
    if model_path.is_dir():
        model_path = model_path / "model.safetensors"
    model = load(model_path)
    record = getattr(model, "table_", None) or getattr(model, "columns_", None)  # the latter in earlier versions
    if not isinstance(record, dict) or "inputs" not in record:
        raise DataError(f"{model_path} has no record of table columns; use a model written by mercer fit.")
    inputs = record["inputs"]
    names = [entry["name"] for entry in inputs]
    text = [entry["name"] for entry in inputs if entry["kind"] in (*STRUCTURED, "date") or "decimal" in entry]
    frame = tables.read(data, text)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise DataError(f"{data} lacks columns that the model needs: {', '.join(missing)}.")
    extra = [name for name in frame.columns if name not in names]
    if extra:
        say(f"columns not used by the model: {', '.join(extra)}")
    for entry in inputs:
        if entry["kind"] == "date":
            frame = frame.with_columns(columns.read(frame[entry["name"]], {"format": "%Y-%m-%d"} | entry))
        elif "decimal" in entry:
            frame = frame.with_columns(columns.read(frame[entry["name"]], entry))
    may_miss = [entry["name"] for entry in inputs if entry["kind"] in STRUCTURED and hasattr(model, "table_")]
    frame, numbers = tables.complete(frame, names, drop_missing, say, may_miss)
    kind = classes if hasattr(model, "classes_") else quantities
    outside = tables.outside(frame, tables.as_numbers(frame, inputs), inputs, say)
    X = tables.typed(frame, inputs) if hasattr(model, "table_") else tables.encode(frame, inputs)
    found = kind.predictions(model, X, numbers).with_columns(outside=pl.Series(outside, dtype=pl.String))
    output.parent.mkdir(parents=True, exist_ok=True)
    found.write_csv(output)
    return output
