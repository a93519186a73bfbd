"""Dates and times of Python, NumPy and pandas as plain values for files, exactly."""

import datetime
import importlib
import re
import zoneinfo
from typing import Any

import numpy as np

from mercer.core.errors import FileError, ParameterError

UNITS = re.compile(r"[<>|=][mM]8(\[\d*(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")


def written(value: Any, where: str) -> dict[str, Any] | None:
    """A date, a time of day, a moment or a duration as plain values; None for other values."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return {"is": "time", "dtype": value.dtype.str, "value": int(value.astype(np.int64))}
    if type(value) is datetime.date:
        return {"is": "date", "text": value.isoformat()}
    if type(value) is datetime.timedelta:
        return {"is": "duration", "parts": [value.days, value.seconds, value.microseconds]}
    if type(value) is datetime.time:
        zone = _zone(value.tzinfo, where)
        return {"is": "clock", "text": value.replace(tzinfo=None).isoformat(), "zone": zone, "fold": value.fold}
    if not isinstance(value, datetime.datetime) or value != value:  # pandas' NaT is none
        return None
    zone = _zone(value.tzinfo, where)
    if type(value) is datetime.datetime:
        return {"is": "datetime", "text": value.replace(tzinfo=None).isoformat(), "zone": zone, "fold": value.fold}
    if hasattr(value, "asm8"):  # pandas: in UTC, with its own unit
        return {"is": "timestamp", "value": written(value.asm8, where), "zone": zone}
    return None


def _zone(zone: Any, where: str) -> str | list[int] | None:
    """A time zone: its name, or an offset in days, seconds and microseconds."""
    if zone is None:
        return None
    name = getattr(zone, "key", getattr(zone, "zone", None))  # of zoneinfo and pytz
    if isinstance(name, str):
        return name
    if isinstance(zone, datetime.timezone):
        offset = zone.utcoffset(None)
        return [offset.days, offset.seconds, offset.microseconds]
    raise ParameterError(
        f"{where} has a time zone of type {type(zone).__module__}.{type(zone).__qualname__}; files can hold those of "
        "zoneinfo and datetime.timezone. Convert it, as in value.astimezone(datetime.UTC)."
    )


def _as_zone(zone: str | list[int] | None) -> datetime.tzinfo | None:
    if zone is None:
        return None
    return zoneinfo.ZoneInfo(zone) if isinstance(zone, str) else datetime.timezone(datetime.timedelta(*zone))


def read(node: dict[str, Any]) -> Any:
    """What `written` wrote."""
    match node:
        case {"is": "time", "dtype": str(dtype), "value": int(value)}:
            return np.array(value, dtype=np.int64).view(time_type(dtype))[()]
        case {"is": "date", "text": str(text)}:
            return datetime.date.fromisoformat(text)
        case {"is": "duration", "parts": [int(days), int(seconds), int(microseconds)]}:
            return datetime.timedelta(days, seconds, microseconds)
        case {"is": "clock", "text": str(text), "zone": zone, "fold": fold}:
            return datetime.time.fromisoformat(text).replace(tzinfo=_as_zone(zone), fold=fold)
        case {"is": "datetime", "text": str(text), "zone": zone, "fold": fold}:
            return datetime.datetime.fromisoformat(text).replace(tzinfo=_as_zone(zone), fold=fold)
        case {"is": "timestamp", "value": dict(value), "zone": zone}:
            moment = importlib.import_module("pandas").Timestamp(read(value))
            return moment if zone is None else moment.tz_localize("UTC").tz_convert(_as_zone(zone))
    raise FileError(f"it has a time that is not understood: {node!r}.")


def time_type(text: str) -> np.dtype:
    """NumPy's type of dates or durations by its name in a file."""
    if not UNITS.fullmatch(text):
        raise FileError(f"it has times of an unknown type, {text!r}.")
    return np.dtype(text)


def time_of_day(nanoseconds: int | None) -> datetime.time | None:
    """The time of day this long after midnight, to the microsecond."""
    if nanoseconds is None:
        return None
    return (datetime.datetime.min + datetime.timedelta(microseconds=nanoseconds // 1000)).time()
