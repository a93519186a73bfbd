"""What comes in: arrays, lists, frames. Checked once, with errors that say what was wrong and where.

Inputs are anything indexable by row. A kernel declares which kind of rows it reads (`Kind`), and `as_rows` brings what
came in to one of three forms: a float64 matrix, a frame, or an array of objects (n,). Column selection keeps frames as
frames until a vector kernel turns them into a matrix, so that names keep their meaning.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import narwhals.stable.v2 as nw
import numpy as np

from mercer.core.errors import DataError, DataTypeError

Inputs = Any  # rows in any container that a kernel reads: arrays, frames, lists of words or graphs

# What a kernel reads. "vectors": rows of numbers. "objects": one Python object for each row, never looked into, as a
# word, a graph or a list of tokens. "columns": some columns of a table. "anything": what a user's function takes.
Kind = Literal["vectors", "objects", "columns", "anything"]

_TIMES = ("dates", "durations")
_HINT = "Give numbers: a list, a NumPy or JAX array, or a pandas or polars frame."


def as_frame(X):
    """A narwhals frame if X is a pandas, polars or other eager frame, else None."""
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
    except Exception as error:  # duplicate column names, for one
        raise DataError(f"this frame cannot be read: {error}") from None
    return frame if isinstance(frame, nw.DataFrame) else None


def column_names(X) -> list[str] | None:
    frame = as_frame(X)
    return None if frame is None else frame.columns


def as_matrix(X, what: str = "X"):
    """X as a float64 matrix (n, d); shape (n,) means n scalar inputs. JAX tracers keep their precision.

    >>> as_matrix([1, 2, 3]).shape
    (3, 1)
    """
    if isinstance(X, jax.core.Tracer):
        return _matrix_shape(X if jnp.issubdtype(X.dtype, jnp.floating) else X.astype(float), what)
    frame = as_frame(X)
    array = _matrix_shape(_numbers(X, what) if frame is None else _frame_values(frame, what), what)
    if not np.isfinite(array).all():
        _refuse_non_finite(array, what, None if frame is None else frame.columns)
    return array


def as_vector(y, n: int, what: str = "y") -> np.ndarray:
    """n finite numbers; (n, 1) is accepted, a column of a frame too."""
    shape = getattr(y, "shape", None)
    if shape is not None and len(shape) > 2:
        raise DataError(f"{what} must hold one number per row of X, {n} in all; got shape {shape}.")
    array = as_matrix(y, what)
    if array.shape != (n, 1):
        shape = array.shape if shape is None else shape
        raise DataError(f"{what} must hold one number per row of X, {n} in all; got shape {shape}.")
    return array[:, 0]


def check_width(X, d: int, what: str):
    """Refuse inputs whose number of columns is not the number of entries of ``what``."""
    if X.shape[1] != d:
        raise DataError(
            f"{what} has {d} entries but the inputs have {X.shape[1]} columns; they must agree. "
            "Use one entry per column, or select columns with .on(...)."
        )


def _numbers(X, what):
    if hasattr(X, "toarray"):  # scipy.sparse
        raise DataError(f"{what} is a sparse matrix; kernels on vectors take dense arrays. Try {what}.toarray().")
    if isinstance(X, np.ma.MaskedArray):  # masked is missing
        X = np.ma.filled(X.astype(float), np.nan)
    _refuse_foreign(X, what)
    try:
        array = np.asarray(X)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} is not a rectangular array of numbers ({error}). {_HINT}") from None
    if array.dtype.kind == "c":
        raise DataError(f"Complex data not supported: {what} holds complex numbers. {_HINT}")
    if array.dtype.kind in "USMmVO":
        kind = {"U": "text", "S": "bytes", "M": "dates", "m": "durations"}.get(array.dtype.kind)
        if kind:
            hint = "Turn them into numbers, as in (t - t[0]) / np.timedelta64(1, 'D')." if kind in _TIMES else _HINT
            raise DataError(f"{what} holds {kind}; numbers were expected. {hint}")
        try:
            if any(isinstance(v, str | bytes) for v in array.flat):
                raise TypeError("it holds text")
            return array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            refusal = DataTypeError if isinstance(error, TypeError) else DataError
            raise refusal(f"{what} cannot be read as numbers: {error}. {_HINT}") from None
    return np.ascontiguousarray(array, dtype=np.float64)


def _refuse_foreign(X, what):
    kind = foreign_kind(X)
    if kind is not None:
        raise DataTypeError(
            f"{what} holds {kind}; numbers were expected. {_HINT} A function makes kernels of other things: "
            "Custom(f) of two of them, FeatureMap(phi) and .warp(phi) of one."
        )


def _frame_values(frame, what):
    bad = [f"{name!r} ({dtype})" for name, dtype in frame.schema.items() if not is_numeric(dtype)]
    if bad:
        raise DataError(
            f"{what} has columns that are not numbers: {', '.join(bad)}. "
            "Encode or drop them, or let the kernel look at other columns with .on([...])."
        )
    columns = [column.cast(nw.Float64).to_numpy() for column in frame.iter_columns()]
    return np.column_stack(columns) if columns else np.empty((len(frame), 0))


def is_numeric(dtype) -> bool:
    return dtype.is_numeric() or dtype == nw.Boolean


def _matrix_shape(array, what):
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise DataError(
            f"{what} must have shape (n, d), or (n,) for n scalar inputs; got shape {array.shape}. "
            + ("A single input is [[...]]." if array.ndim == 0 else "Flatten each input to one row.")
        )
    if array.shape[1] == 0:
        raise DataError(f"{what} has no columns; at least one is needed.")
    return array


def _refuse_non_finite(array, what, names):
    bad = ~np.isfinite(array)
    first, counts = np.nonzero(bad)[0][0], bad.sum(axis=0)
    kind = "missing (NaN)" if np.isnan(array[bad]).all() else "infinite or missing"
    where = ", ".join(f"{counts[j]} in column {names[j] if names else j}" for j in np.flatnonzero(counts)[:8])
    where += ", ..." if (counts > 0).sum() > 8 else ""
    count = f"{bad.sum()} {kind} {'value' if bad.sum() == 1 else 'values'}"
    raise DataError(
        f"{what} has {count}, the first in row {first}: {where}. Finite numbers were expected: "
        "drop those rows, or fill them in."
    )


def holds_numbers(X) -> bool:
    """Whether the rows of X are numbers or vectors of numbers, rather than objects of another kind."""
    frame = as_frame(X)
    if frame is not None:
        return all(is_numeric(dtype) for dtype in frame.schema.values())
    if isinstance(X, jax.Array):
        return True
    try:
        array = np.asarray(X if foreign_kind(X) is None else as_objects(X))
    except ValueError:  # ragged
        return False
    return array.dtype.kind in "fiub" and array.ndim <= 2


def foreign_kind(X) -> str | None:
    """What X or its rows are, in words, where they have a length and parts and are neither sequences nor arrays, as
    graphs are. NumPy takes such objects apart: graphs of equal size become a matrix of their nodes."""
    kinds = {type(X)}
    if isinstance(X, list | tuple):
        kinds = set(map(type, X))
        for row in X:
            if isinstance(row, list | tuple):
                kinds.update(map(type, row))
    elif isinstance(X, np.ndarray) and X.dtype == object:
        kinds = set(map(type, X.flat))
    foreign = sorted(kind.__name__ for kind in kinds if _is_foreign(kind))
    return f"objects of type {' and '.join(foreign)}" if foreign else None


def _is_foreign(kind: type) -> bool:
    known = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")
    parts = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    return parts and not issubclass(kind, Sequence | dict) and not any(hasattr(kind, name) for name in known)


def as_rows(X, kind: Kind):
    """X as a kernel that reads ``kind`` takes it. Only where anything may come does the container decide: numbers make
    vectors, and the items of a list of other things are objects."""
    if isinstance(X, jax.core.Tracer) or as_frame(X) is not None:
        return X
    if kind == "objects":
        return as_objects(X)
    if kind == "vectors" or hasattr(X, "toarray") or holds_numbers(X):
        return as_matrix(X)
    return as_objects(X) if isinstance(X, list | tuple) and kind == "anything" else X


def as_objects(X) -> np.ndarray:
    """The rows of X as they are, one Python object each: (n,). Rows of a frame with several columns are tuples."""
    frame = as_frame(X)
    if frame is not None:
        rows = next(iter(frame.iter_columns())).to_list() if frame.shape[1] == 1 else list(frame.iter_rows())
    else:
        rows = list(X)
    out = np.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):  # all at once, NumPy would look into rows of equal length
        out[i] = row
    return out


# -- rows ----------------------------------------------------------------------------------------------------------


def count_rows(X) -> int:
    shape = getattr(X, "shape", None)
    if shape is not None:
        if len(shape) == 0:
            raise DataError(f"X must hold rows; got the single number {X!r}. One input is [[...]].")
        return int(shape[0])
    frame = as_frame(X)
    if frame is not None:
        return len(frame)
    try:
        return len(X)
    except TypeError:
        raise DataError(f"X must hold rows; got {X!r} ({type(X).__name__}). {_HINT}") from None


def take_rows(X, which):
    """The rows of X in a slice or list of indices, in X's kind of container."""
    frame = as_frame(X)
    if frame is not None:
        return frame[which if isinstance(which, slice) else [int(i) for i in which]].to_native()
    if hasattr(X, "shape"):
        return X[which]
    return X[which] if isinstance(which, slice) else [X[int(i)] for i in which]


def align_columns(X, Z, all_needed: bool = True):
    """Z with its columns in the order of X's, when both are frames.

    An error when they have different columns, unless not all of them are needed: then what both have comes first.
    """
    ours, theirs = column_names(X), column_names(Z)
    if ours is None or theirs is None or ours == theirs:
        return Z
    missing, extra = [c for c in ours if c not in theirs], [c for c in theirs if c not in ours]
    if all_needed and (missing or extra):
        told = [f"{word} {names}" for word, names in (("missing", missing), ("unexpected", extra)) if names]
        raise DataError(f"the second frame has other columns than the first: {', '.join(told)}.")
    order = [c for c in ours if c in theirs] + extra
    return as_frame(Z)[:, [theirs.index(c) for c in order]].to_native()


def stack_rows(A, B, all_needed: bool = True):
    """The rows of A followed by those of B, in A's kind of container. Frames keep the columns that both have."""
    if (as_frame(A) is None) != (as_frame(B) is None):
        raise DataError("rows of a frame and rows of an array cannot be put together; give a frame both times.")
    first, second = as_frame(A), as_frame(align_columns(A, B, all_needed))
    if first is not None:
        common = [name for name in first.columns if name in second.columns]
        first, second = (F[:, [F.columns.index(name) for name in common]] for F in (first, second))
        # polars does not put whole numbers under fractions by itself.
        pairs = zip(first.iter_columns(), second.iter_columns(), strict=True)
        mixed = [a.name for a, b in pairs if a.dtype != b.dtype and is_numeric(a.dtype) and is_numeric(b.dtype)]
        casts = [nw.col(name).cast(nw.Float64) for name in mixed if isinstance(name, str)]
        try:
            return nw.concat([first.with_columns(*casts), second.with_columns(*casts)]).to_native()
        except Exception as error:
            raise DataError(
                f"these two frames cannot be put together: {error}. Give frames of one kind, and the same types in "
                "columns of the same name."
            ) from None
    if isinstance(A, np.ndarray) and A.dtype == object and A.ndim == 1:
        return np.concatenate([A, as_objects(B)])
    if not (holds_numbers(A) and holds_numbers(B)):
        return [*A, *B]
    A, B = np.asarray(A), np.asarray(B)
    if A.ndim != B.ndim and {A.ndim, B.ndim} == {1, 2}:  # (n,) means n scalar inputs
        A, B = (array[:, None] if array.ndim == 1 else array for array in (A, B))
    if A.shape[1:] != B.shape[1:]:
        raise DataError(f"rows must have equal width to be put together; got shapes {A.shape} and {B.shape}.")
    return np.concatenate([A, B])


def select_columns(X, columns):
    """Columns of X by index, slice or name. Names need a frame, and then follow the column wherever it moves."""
    frame = as_frame(X)
    by_name = isinstance(columns, tuple) and all(isinstance(c, str) for c in columns)
    if by_name:
        if frame is None:
            raise DataError(
                f"the kernel looks at columns {list(columns)} by name, but X is {type(X).__name__} without names. "
                "Give a pandas or polars frame, or use column indices."
            )
        missing = [c for c in columns if c not in frame.columns]
        if missing:
            raise DataError(f"X has no column {', '.join(map(repr, missing))}; it has {list(frame.columns)}.")
        columns = [frame.columns.index(c) for c in columns]
    if frame is not None:
        positions = range(frame.shape[1])
        picked = positions[columns] if isinstance(columns, slice) else [_in_range(c, len(positions)) for c in columns]
        if len(set(picked)) < len(picked):  # frames do not hold a column twice
            return as_matrix(frame[:, sorted(set(picked))].to_native())[
                :, [sorted(set(picked)).index(c) for c in picked]
            ]
        return frame[:, list(picked)].to_native()
    if _is_foreign(type(X)):
        _refuse_foreign(X, "X")
    if not isinstance(X, jax.core.Tracer):
        try:
            X = np.asarray(X if foreign_kind(X) is None else as_objects(X))
        except ValueError as error:
            raise DataError(f"X is not a rectangular array ({error}). {_HINT}") from None
    if X.ndim == 1:
        X = X[:, None]
    if isinstance(columns, slice):
        return X[:, columns]
    return X[:, [_in_range(c, X.shape[1]) for c in columns]]


def _in_range(column: int, d: int) -> int:
    if not -d <= column < d:
        raise DataError(f"the kernel looks at column {column}, but the inputs have {d} (0 to {d - 1}).")
    return column % d
