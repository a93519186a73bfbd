"""Input data: arrays, lists, frames. Validated once, with errors that say what is wrong and where.

Inputs are anything indexable by row. A kernel declares which kind of rows it reads (`Kind`), and `as_rows` converts
inputs to one of three forms: a float64 matrix, a frame, or an array of objects (n,). Frames stay frames until a kernel
on vectors turns them into a matrix, so that columns can be selected by name.
"""

import copy
import reprlib
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NoReturn

import jax
import jax.numpy as jnp
import narwhals.stable.v2 as nw
import numpy as np
from scipy import sparse

from mercer.core import calendar
from mercer.core.errors import DataError, DataTypeError, ObjectError

Inputs = Any  # rows in any container that a kernel reads: arrays, frames, lists of words or graphs
Rows = Any  # prepared rows: what one kernel makes of inputs, a pytree of arrays with one entry per row

# What a kernel reads. "vectors": rows of numbers. "objects": one Python object per row, such as a word, a graph or a
# list of tokens, passed on as it is. "counts": rows of numbers, zero or positive, also in a sparse matrix of SciPy.
# "columns": some columns of a table. "anything": what a user's function accepts.
Kind = Literal["vectors", "objects", "counts", "columns", "anything"]

CONSTANT_SPREAD = 1e-14  # of the size of a column: below it the column is constant to rounding
_HINT = "Give numbers: a list, a NumPy or JAX array, or a pandas or polars frame."


def as_frame(X: Any) -> nw.DataFrame | None:
    """A narwhals frame if X is a pandas, polars or other eager frame, else None."""
    if isinstance(X, np.ndarray | list | tuple | jax.Array):  # asking narwhals takes longer than a small prediction
        return None
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
    except Exception as error:  # such as duplicate column names
        raise DataError(f"this frame cannot be read: {error}") from None
    return frame if isinstance(frame, nw.DataFrame) else None


def column_names(X: Inputs) -> list[str] | None:
    """Names of the columns of a frame; None for other inputs."""
    frame = as_frame(X)
    return None if frame is None else frame.columns


def as_matrix(X: Any, what: str = "X", gaps: bool = False) -> Any:
    """Convert X to a float64 matrix (n, d); shape (n,) means n scalar inputs, and dates become decimal years. JAX
    tracers keep their precision. With ``gaps`` NaN is allowed.

    >>> as_matrix([1, 2, 3]).shape
    (3, 1)
    """
    if isinstance(X, jax.core.Tracer):
        return _matrix_shape(X if jnp.issubdtype(X.dtype, jnp.floating) else X.astype(float), what)
    frame = as_frame(X)
    array = _matrix_shape(_numbers(X, what) if frame is None else _frame_values(frame, what), what)
    checked = np.nan_to_num(array, nan=0.0, posinf=np.inf, neginf=-np.inf) if gaps else array
    if not np.isfinite(checked).all():
        _refuse_non_finite(checked, what, None if frame is None else frame.columns, gaps)
    return array


def as_vector(y: Any, n: int, what: str = "y", gaps: bool = False) -> np.ndarray:
    """Convert y to n finite numbers, or with ``gaps`` NaN; shape (n, 1) or a frame of one column is accepted too."""
    shape = getattr(y, "shape", None)
    if shape is not None and len(shape) > 2:
        raise DataError(f"{what} must hold one number per row of X, {n} in all; got shape {shape}.")
    array = as_matrix(y, what, gaps)
    if array.shape != (n, 1):
        shape = array.shape if shape is None else shape
        raise DataError(f"{what} must hold one number per row of X, {n} in all; got shape {shape}.")
    return array[:, 0]


def class_codes(labels: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Classes in sorted order, (C,), and the index of each label (n,) in these. ``what`` needs two classes or more."""
    if labels.dtype.kind in "fOMm":
        _refuse_missing(np.array([_missing(label) for label in labels], dtype=bool))
    if labels.dtype.kind == "f":
        if np.isinf(labels).any():
            raise DataError(f"y has {np.isinf(labels).sum()} infinite labels; classes were expected.")
        if (labels != np.round(labels)).any():
            raise DataError(
                f"Unknown label type: continuous. y holds fractional numbers; {what} expects class labels. "
                "Use a regressor for numeric targets."
            )
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in labels})
        raise DataError(f"labels must be of one type to be sorted; got {', '.join(kinds)}.") from None
    if len(classes) < 2:
        raise DataError(f"y has one class only, {classes.tolist()[0]!r}; {what} needs at least two.")
    return classes, codes


def _refuse_missing(missing: np.ndarray) -> None:
    if missing.any():
        labels = "1 missing label" if missing.sum() == 1 else f"{missing.sum()} missing labels"
        raise DataError(
            f"y has {labels}, the first in row {np.argmax(missing)}. A row without a label has no information on "
            "the classes: fit the others, model.fit(X[known], y[known]), and model.predict_proba(X) has the "
            "probabilities of all."
        )


def _missing(label: Any) -> bool:
    """Whether a label is None, NaN, NaT or pandas' NA (whose comparisons do not return a boolean)."""
    different = label is None or label != label
    return not isinstance(different, bool | np.bool_) or bool(different)


def check_width(X: Any, d: int, what: str) -> None:
    """Refuse a matrix whose number of columns is not d, the number of entries of ``what``."""
    if X.shape[1] != d:
        raise DataError(
            f"{what} has {d} entries but the inputs have {X.shape[1]} columns; they must agree. "
            "Use one entry per column, or select columns with .on(...)."
        )


def _numbers(X: Any, what: str) -> np.ndarray:
    if hasattr(X, "toarray"):  # scipy.sparse
        raise DataError(f"{what} is a sparse matrix; kernels on vectors take dense arrays. Try {what}.toarray().")
    if isinstance(X, np.ma.MaskedArray):  # masked values are missing
        X = np.ma.filled(X.astype(float), np.nan)
    _refuse_containers(X, what)
    try:
        array = np.asarray(X)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} is not a rectangular array of numbers ({error}). {_HINT}") from None
    if array.dtype.kind == "c":
        raise DataError(f"Complex data not supported: {what} contains complex numbers. {_HINT}")
    if array.dtype.kind == "M":
        return calendar.decimal_years(array)
    if array.dtype.kind == "O" and calendar.are_dates(array.flat):
        return calendar.decimal_years(calendar.from_objects(array.flat)).reshape(array.shape)
    if array.dtype.kind in "USmVO":
        kind = {"U": "text", "S": "bytes", "m": "durations"}.get(array.dtype.kind)
        if kind:
            hint = "Turn them into numbers, as in X / np.timedelta64(1, 'D')." if kind == "durations" else _HINT
            raise DataError(f"{what} contains {kind}; numbers were expected. {hint}")
        try:
            if any(isinstance(v, str | bytes) for v in array.flat):
                raise TypeError("it contains text")
            return array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            refusal = DataTypeError if isinstance(error, TypeError) else DataError
            raise refusal(f"{what} cannot be read as numbers: {error}. {_HINT}") from None
    return np.ascontiguousarray(array, dtype=np.float64)


def _refuse_containers(X: Any, what: str) -> None:
    types = container_types(X)
    if types is not None:
        raise DataTypeError(
            f"{what} contains objects of type {types}; numbers were expected. {_HINT} Graphs of networkx are read "
            "by the kernels WeisfeilerLehman, ShortestPath and RandomWalk. For other objects, make a kernel from a "
            "function: Custom(f) of two objects, FeatureMap(phi) or .warp(phi) of one."
        )


def _frame_values(frame: nw.DataFrame, what: str) -> np.ndarray:
    bad = [f"{name!r} ({dtype})" for name, dtype in frame.schema.items() if not _is_read(dtype)]
    if bad:
        raise DataError(
            f"{what} has columns that are not numbers: {', '.join(bad)}. "
            "Encode or drop them, or select other columns with kernel.on([...])."
        )
    columns = [_column_values(column) for column in frame.iter_columns()]
    return np.column_stack(columns) if columns else np.empty((len(frame), 0))


def _is_read(dtype: Any) -> bool:
    return is_numeric(dtype) or dtype in (nw.Date, nw.Datetime)


def _column_values(column: Any) -> np.ndarray:
    if is_numeric(column.dtype):
        return column.cast(nw.Float64).to_numpy()
    times = column.cast(nw.Datetime("us")) if column.dtype == nw.Date else column
    return (times.dt.timestamp("us").cast(nw.Float64) / calendar.MICROSECONDS_PER_YEAR + 1970.0).to_numpy()


def is_numeric(dtype: Any) -> bool:
    """Whether a narwhals dtype is a number or a boolean."""
    return dtype.is_numeric() or dtype == nw.Boolean


def _matrix_shape(array: Any, what: str) -> Any:
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise DataError(
            f"{what} must have shape (n, d), or (n,) for n scalar inputs; got shape {array.shape}. "
            + ("Write a single input as [[...]]." if array.ndim == 0 else "Flatten each input to one row.")
        )
    if array.shape[1] == 0:
        raise DataError(f"{what} has no columns; at least one is needed.")
    return array


def _refuse_non_finite(array: np.ndarray, what: str, names: list[str] | None, gaps: bool = False) -> NoReturn:
    bad = ~np.isfinite(array)
    first, counts = np.nonzero(bad)[0][0], bad.sum(axis=0)
    missing = np.isnan(array[bad])
    kind = "missing (NaN)" if missing.all() else "infinite or missing" if missing.any() else "infinite"
    where = ", ".join(f"{counts[j]} in column {names[j] if names else j}" for j in np.flatnonzero(counts)[:8])
    where += ", ..." if (counts > 0).sum() > 8 else ""
    count = f"{bad.sum()} {kind} {'value' if bad.sum() == 1 else 'values'}"
    raise DataError(
        f"{what} has {count}, the first in row {first}: {where}. Finite numbers were expected"
        f"{', or NaN where nothing was measured' * gaps}: drop those rows, or impute the values."
    )


def holds_numbers(X: Inputs) -> bool:
    """Whether the rows of X are numbers or vectors of numbers, rather than other objects."""
    frame = as_frame(X)
    if frame is not None:
        return all(is_numeric(dtype) for dtype in frame.schema.values())
    if isinstance(X, jax.Array):
        return True
    try:
        array = np.asarray(X if container_types(X) is None else as_objects(X))
    except ValueError:  # ragged
        return False
    return array.dtype.kind in "fiub" and array.ndim <= 2


def container_types(X: Any) -> str | None:
    """Types of X or of its rows that have a length and items without being sequences or arrays, such as graphs; None if
    there are none. NumPy would take such objects apart: graphs of equal size would become a matrix of their nodes."""
    types = {type(X)}
    if isinstance(X, list | tuple):
        types = set(map(type, X))
        for row in X:
            if isinstance(row, list | tuple):
                types.update(map(type, row))
    elif isinstance(X, np.ndarray) and X.dtype == object:
        types = set(map(type, X.flat))
    return " and ".join(sorted(cls.__name__ for cls in types if _is_container(cls))) or None


def _is_container(cls: type) -> bool:
    array_protocols = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")
    has_items = hasattr(cls, "__len__") and hasattr(cls, "__getitem__")
    return has_items and not issubclass(cls, Sequence | dict) and not any(hasattr(cls, p) for p in array_protocols)


def as_rows(X: Inputs, kind: Kind) -> Inputs:
    """Convert X for a kernel that reads ``kind``. For "anything" the content decides: numbers become vectors, and a
    list of other items becomes objects."""
    if isinstance(X, jax.core.Tracer) or as_frame(X) is not None:
        return X
    if kind == "objects":
        return as_objects(X)
    if kind == "counts":
        return as_counts(X)
    if kind == "vectors" or hasattr(X, "toarray") or holds_numbers(X):
        return as_matrix(X)
    return as_objects(X) if isinstance(X, list | tuple) and kind == "anything" else X


def as_counts(X: Inputs) -> Any:
    """X as a matrix of numbers that are zero or positive, or as a sparse matrix in rows if it is sparse."""
    if not hasattr(X, "toarray"):
        counts = values = as_matrix(X)
        if isinstance(counts, jax.core.Tracer):
            return counts
    else:
        counts = X.tocsr().astype(np.float64)
        values = counts.data
        if not np.isfinite(values).all():
            raise DataError(f"X has {(~np.isfinite(values)).sum()} missing or infinite values; counts are finite.")
    if values.min(initial=0.0) < 0:
        raise DataError(f"X holds counts, which are zero or positive; the smallest value is {values.min():.4g}.")
    return counts


def as_objects(X: Inputs) -> np.ndarray:
    """Array (n,) of the rows of X, each an unchanged Python object. Rows of a frame with several columns are tuples; a
    single column of a frame, or of a matrix of objects or text, is its values."""
    if isinstance(X, str | bytes):  # which has rows, its letters, but never those that were meant
        raise DataError(f"X must have rows; got a single text, {reprlib.repr(X)}. Put it in a list: [text].")
    frame = as_frame(X)
    if frame is not None:
        rows = next(iter(frame.iter_columns())).to_list() if frame.shape[1] == 1 else list(frame.iter_rows())
    elif isinstance(X, np.ndarray) and X.dtype.kind in "OU" and X.ndim == 2 and X.shape[1] == 1:
        rows = list(X[:, 0])
    else:
        rows = list(X)
    out = np.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):  # np.array(rows) would make a matrix of rows of equal length
        out[i] = row
    return out


# -- rows ----------------------------------------------------------------------------------------------------------


def count_rows(X: Inputs) -> int:
    """Number of rows."""
    shape = getattr(X, "shape", None)
    if shape is not None:
        if len(shape) == 0:
            raise DataError(f"X must have rows; got the single number {X!r}. Write one input as [[...]].")
        return int(shape[0])
    frame = as_frame(X)
    if frame is not None:
        return len(frame)
    try:
        return len(X)
    except TypeError:
        raise DataError(f"X must have rows; got {X!r} ({type(X).__name__}). {_HINT}") from None


def take_rows(X: Inputs, which: Any) -> Inputs:
    """Rows of X by a slice or indices, in a container of the same type."""
    frame = as_frame(X)
    if frame is not None:
        return frame[which if isinstance(which, slice) else [int(i) for i in which]].to_native()
    if hasattr(X, "shape"):
        return X[which]
    return X[which] if isinstance(which, slice) else [X[int(i)] for i in which]


def copy_rows(X: Inputs) -> Inputs:
    """Copy of the rows, objects included, so that later changes by the caller have no effect."""
    try:
        return copy.deepcopy(X)
    except TypeError:  # a view of a dict, a generator, an open file
        for i, row in enumerate(X if isinstance(X, np.ndarray | list) else ()):
            try:
                copy.deepcopy(row)
            except TypeError:
                says = f"{type(row).__name__} objects cannot be copied, so they cannot be rows."
                raise ObjectError(i, f"{says} Write set(...) of it, or list(...).") from None
        raise


def align_columns(X: Inputs, Z: Inputs, all_needed: bool = True) -> Inputs:
    """Z with its columns in the order of X's, if both are frames.

    Different columns are an error, unless not ``all_needed``: then columns that both have come first.
    """
    ours, theirs, frame = column_names(X), column_names(Z), as_frame(Z)
    if ours is None or theirs is None or frame is None or ours == theirs:
        return Z
    missing, extra = [c for c in ours if c not in theirs], [c for c in theirs if c not in ours]
    if all_needed and (missing or extra):
        found = [f"{word} {names}" for word, names in (("missing", missing), ("unexpected", extra)) if names]
        raise DataError(f"the columns of the second frame differ from those of the first: {', '.join(found)}.")
    order = [c for c in ours if c in theirs] + extra
    return frame[:, [theirs.index(c) for c in order]].to_native()


def stack_rows(A: Inputs, B: Inputs, kind: Kind, all_needed: bool = True) -> Inputs:
    """Rows of A followed by those of B, for a kernel that reads ``kind``. Frames keep the columns that both have."""
    A, B = as_rows(A, kind), as_rows(B, kind)
    first, second = as_frame(A), as_frame(align_columns(A, B, all_needed))
    if (first is None) != (second is None):
        raise DataError("rows of a frame cannot be joined with rows of another container; give frames, or neither.")
    if first is not None and second is not None:
        common = [name for name in first.columns if name in second.columns]
        first, second = (F[:, [F.columns.index(name) for name in common]] for F in (first, second))
        # polars does not join integer and float columns by itself.
        pairs = zip(first.iter_columns(), second.iter_columns(), strict=True)
        mixed = [a.name for a, b in pairs if a.dtype != b.dtype and is_numeric(a.dtype) and is_numeric(b.dtype)]
        casts = [nw.col(name).cast(nw.Float64) for name in mixed if isinstance(name, str)]
        try:
            return nw.concat([first.with_columns(*casts), second.with_columns(*casts)]).to_native()
        except Exception as error:
            raise DataError(
                f"these two frames cannot be joined: {error}. Give frames of one library, with the same type in "
                "columns of the same name."
            ) from None
    if any(hasattr(side, "toarray") for side in (A, B)):
        return sparse.vstack([sparse.csr_matrix(side) for side in (A, B)], format="csr")
    if not (isinstance(A, np.ndarray) and isinstance(B, np.ndarray)):
        return [*A, *B]
    if A.shape[1:] != B.shape[1:]:
        raise DataError(f"rows must have equal width to be joined; got shapes {A.shape} and {B.shape}.")
    return np.concatenate([A, B])


def centre_and_spread(X: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column, the latter one where a column is constant to rounding."""
    size = np.maximum(np.abs(X).max(axis=0), np.finfo(float).tiny)  # squares of large values would overflow
    shift = np.average(X / size, axis=0, weights=weights) * size
    spread = np.sqrt(np.average((X / size - shift / size) ** 2, axis=0, weights=weights)) * size
    constant = spread <= CONSTANT_SPREAD * np.maximum(size, np.abs(shift))
    return shift, np.where(constant | ~np.isfinite(spread), 1.0, spread)


def middle_spread(X: np.ndarray, spread: np.ndarray, ratio: float = 0.1) -> np.ndarray:
    """``spread``, or that of the middle half of the rows in columns where it is less than a ``ratio`` of it: a few
    outliers do not set the scale of the others."""
    quarter, three_quarters = np.quantile(X, [0.25, 0.75], axis=0)
    middle = (three_quarters - quarter) / 1.349  # the standard deviation of a Gaussian
    return np.where((middle > 0) & (middle < ratio * spread), middle, spread)


def split_numbers(X: Inputs) -> tuple[np.ndarray, list[Hashable]]:
    """Columns of numbers and dates as a matrix (n, p), and of every row all else, equal where rows are equal. Objects
    of unknown type are equal to themselves alone."""
    n, frame = count_rows(X), as_frame(X)
    if frame is not None:
        numbers = [_column_values(column) for column in frame.iter_columns() if _is_read(column.dtype)]
        others = [column.to_list() for column in frame.iter_columns() if not _is_read(column.dtype)]
        matrix = np.column_stack(numbers) if numbers else np.empty((n, 0))
        return matrix, [tuple(map(_hashable, row)) for row in zip(*others, strict=True)] if others else [()] * n
    if hasattr(X, "tocsr"):
        X = X.tocsr(copy=True)
        X.sum_duplicates()
        return np.empty((n, 0)), [(row.indices.tobytes(), row.data.tobytes()) for row in X]
    try:
        return as_matrix(X), [()] * n
    except DataError:
        return np.empty((n, 0)), [_hashable(row) for row in as_objects(X)]


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(_hashable, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def select_columns(X: Inputs, columns: Any) -> Any:
    """Columns of X by indices, slice or names (of a frame)."""
    frame = as_frame(X)
    by_name = isinstance(columns, tuple) and all(isinstance(c, str) for c in columns)
    if by_name:
        if frame is None:
            raise DataError(
                f"the kernel selects columns {list(columns)} by name, but X ({type(X).__name__}) has no column names. "
                "Give a pandas or polars frame, or select columns by index."
            )
        missing = [c for c in columns if c not in frame.columns]
        if missing:
            raise DataError(f"X has no column {', '.join(map(repr, missing))}; it has {list(frame.columns)}.")
        columns = [frame.columns.index(c) for c in columns]
    if frame is not None:
        positions = range(frame.shape[1])
        picked = positions[columns] if isinstance(columns, slice) else [_in_range(c, len(positions)) for c in columns]
        if len(set(picked)) < len(picked):  # a frame cannot have a column twice
            return as_matrix(frame[:, sorted(set(picked))].to_native())[
                :, [sorted(set(picked)).index(c) for c in picked]
            ]
        return frame[:, list(picked)].to_native()
    if _is_container(type(X)):
        _refuse_containers(X, "X")
    if not isinstance(X, jax.core.Tracer):
        try:
            X = np.asarray(X if container_types(X) is None else as_objects(X))
        except ValueError as error:
            raise DataError(f"X is not a rectangular array ({error}). {_HINT}") from None
    if X.ndim == 1:
        X = X[:, None]
    if isinstance(columns, slice):
        return X[:, columns]
    return X[:, [_in_range(c, X.shape[1]) for c in columns]]


def _in_range(column: int, d: int) -> int:
    if not -d <= column < d:
        raise DataError(f"the kernel selects column {column}, but the inputs have {d} (0 to {d - 1}).")
    return column % d
