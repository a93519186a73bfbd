"""Arrays that grow by rows at the end, as those of a stream do: each row is copied O(1) times, however many come."""

import threading
import weakref
from typing import Any

import numpy as np

MIN_SPARE = 64  # rows
_lock = threading.Lock()
_used: dict[int, tuple[Any, int]] = {}  # rows in use of an array with spare ones, by its id


def appended(rows: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Rows followed by more, as `numpy.concatenate`.

    The result is a view of an array with rows to spare, and appending to it fills these: what was returned before is
    never written to. Where two continue the same array, the second gets a copy.
    """
    n, total = len(rows), len(rows) + len(more)
    with _lock:
        room = rows.base if isinstance(rows.base, np.ndarray) else None
        found = None if room is None else _used.get(id(room))
        fits = (
            room is not None and found is not None and found[0]() is room and found[1] == n and total <= len(room)
            and rows.dtype == room.dtype == np.result_type(rows, more) and rows.shape[1:] == room.shape[1:]
            and rows.ctypes.data == room.ctypes.data and rows.strides == room.strides
        )  # fmt: skip
        if room is None or found is None or not fits:
            room = np.empty((total + max(MIN_SPARE, total // 4), *rows.shape[1:]), np.result_type(rows, more))
            room[:n] = rows
            key = id(room)
            found = weakref.ref(room, lambda _: _used.pop(key, None)), n
        room[n:total] = more
        _used[id(room)] = found[0], total
    return room[:total]
