"""Several targets in wide form, one column each, and in long form, one row for each measurement."""

from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, as_frame, as_matrix, as_vector, count_rows, take_rows

OUTPUT = "output"  # column of a frame that names the target of each measurement


class Measurements(NamedTuple):
    """Of P targets at the places X: for each the numbers of its row of X and of its target, and the value, (n,) each.

    ``names`` are those of the targets. ``form``: "wide", y (s, P) with NaN where nothing was measured; "one", a vector
    for one target; "long".
    """

    row: np.ndarray
    target: np.ndarray
    values: np.ndarray
    names: list[Any]
    form: str
    rows: int

    @property
    def targets(self) -> int:
        return len(self.names)

    def arranged(self, values: np.ndarray) -> np.ndarray:
        """Numbers of each measurement in the form of y: (s, P) with NaN elsewhere, or (n,)."""
        if self.form != "wide":
            return values
        out = np.full((self.rows, self.targets), np.nan)
        out[self.row, self.target] = values
        return out


def split_output(X: Any) -> tuple[Any, np.ndarray | None]:
    """A frame without its column of targets, and that column; the inputs as they are, and None, where there is none."""
    frame = as_frame(X)
    if frame is None or OUTPUT not in frame.columns:
        return X, None
    labels = np.array(frame[OUTPUT].to_list(), dtype=object)
    if any(label is None or label != label for label in labels):
        raise DataError(f"column {OUTPUT!r} names the target of each row; it has missing values. Drop those rows.")
    return frame.drop(OUTPUT).to_native(), labels


def measurements(
    y: Any, n: int, labels: np.ndarray | None, known: list[Any] | None = None, what: str = "y"
) -> Measurements:
    """What was measured, from y and the targets named in a long frame; ``known``: names of the targets of a fit;
    ``what`` y is called."""
    if y is None:
        raise DataError(f"MultiOutputGaussianProcessRegressor requires {what} to be passed, but the target y is None.")
    if labels is not None:
        values = as_vector(y, n, what, gaps=True)
        names = _distinct(labels) if known is None else known
        number = {name: p for p, name in enumerate(names)}
        unknown = [label for label in labels.tolist() if label not in number]
        if unknown:
            raise DataError(f"column {OUTPUT!r} has {unknown[0]!r}, which is not one of the targets fitted, {names}.")
        target = np.array([number[label] for label in labels.tolist()], dtype=int)
        told = np.flatnonzero(~np.isnan(values))
        return Measurements(told, target[told], values[told], names, "long", n)
    frame = as_frame(y)
    columns = [str(name) for name in frame.columns] if frame is not None and frame.shape[1] > 1 else None
    Y = np.asarray(as_matrix(y, what, gaps=True))
    shape = frame.shape if frame is not None else np.asarray(y).shape
    if len(Y) != n:
        raise DataError(f"{what} must have one row for each of the {n} rows of X; got shape {shape}.")
    names = known or columns or [f"y{p}" for p in range(Y.shape[1])]
    if len(names) != Y.shape[1]:
        raise DataError(f"{what} must have one column for each of the {len(names)} targets fitted; got shape {shape}.")
    row, target = np.nonzero(~np.isnan(Y))
    form = "one" if len(shape) == 1 else "wide"
    if form == "one":
        names = known or ["y"]
    return Measurements(row, target, Y[row, target], names, form, n)


def _distinct(labels: np.ndarray) -> list[Any]:
    found = list(dict.fromkeys(labels.tolist()))
    try:
        return sorted(found)
    except TypeError:
        return found


def output_column(X: Inputs) -> Any:
    """Where rows in long form have the number of their target: the last column, by its name in a frame."""
    frame = as_frame(X)
    if frame is None:
        return 1 if np.ndim(X) == 1 else int(X.shape[1])
    name = OUTPUT
    while name in frame.columns:
        name += "_"
    return name if all(isinstance(column, str) for column in frame.columns) else len(frame.columns)


def long_rows(X: Inputs, row: np.ndarray, target: np.ndarray) -> Inputs:
    """Rows of X with the numbers of targets as a last column: a matrix, a frame, or a matrix of objects."""
    frame = as_frame(X)
    numbers = np.asarray(target, dtype=float)
    if frame is not None:
        column = output_column(X)
        some = as_frame(take_rows(X, row))
        assert some is not None
        name = column if isinstance(column, str) else OUTPUT
        return some.with_columns(nw.new_series(name, numbers, nw.Float64, backend=some.implementation)).to_native()
    if hasattr(X, "toarray"):
        X = X.toarray()
    if isinstance(X, np.ndarray) and X.dtype != object:
        some = X[row] if X.ndim == 2 else X[row][:, None]
        return np.column_stack([some, numbers])
    out = np.empty((len(row), 2), dtype=object)
    for i, (r, p) in enumerate(zip(row, numbers, strict=True)):
        out[i, 0], out[i, 1] = X[int(r)], float(p)
    return out


def all_targets(X: Inputs, P: int) -> Inputs:
    """Rows of X, each with all P targets: s P rows, those of one row together."""
    s = count_rows(X)
    return long_rows(X, np.repeat(np.arange(s), P), np.tile(np.arange(P), s))
