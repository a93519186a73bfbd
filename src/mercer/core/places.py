"""Longitude and latitude among the columns of a table."""

from typing import Any

import numpy as np

from mercer.core.inputs import Inputs, as_frame, column_names, is_numeric

LONGITUDES = ("longitude", "lon", "long", "lng")
LATITUDES = ("latitude", "lat")
MIN_NARROWER = 0.1  # share of the range of longitudes by which another meridian to cut at must make it smaller


def longitude_and_latitude(X: Inputs) -> tuple[str, str] | None:
    """Names of the two columns, by their names and values in degrees; None if there is not one of each."""
    frame, names = as_frame(X), column_names(X)
    if frame is None or names is None:
        return None
    found = [[n for n in names if str(n).lower() in known] for known in (LONGITUDES, LATITUDES)]
    if any(len(each) != 1 or not is_numeric(frame[each[0]].dtype) for each in found):
        return None
    (longitude,), (latitude,) = found
    a, b = (np.asarray(frame[name].to_numpy(), dtype=float) for name in (longitude, latitude))
    inside = (a >= -180).all() and (a <= 360).all() and (np.abs(b) <= 90).all()
    return (longitude, latitude) if inside else None


def unwrapped(longitudes: np.ndarray) -> np.ndarray:
    """Longitudes plus whole turns, so that places on both sides of the 180th meridian, or counted from both -180 and 0,
    are side by side: cut at the middle of their largest gap. Unchanged where that is hardly narrower.

    >>> unwrapped(np.array([175.0, -178.0, 179.0])).tolist()
    [175.0, 182.0, 179.0]
    """
    turns = np.sort(longitudes % 360.0)
    gaps = np.diff(turns, append=turns[0] + 360.0)
    start = turns[(np.argmax(gaps) + 1) % len(turns)]
    if 360.0 - gaps.max() > (1 - MIN_NARROWER) * np.ptp(longitudes):
        return longitudes
    centre = start + 0.5 * (360.0 - gaps.max())
    return beside(longitudes, beside(centre, np.median(longitudes)))


def beside(longitudes: Any, centre: Any) -> Any:
    """Longitudes plus whole turns, within 180 degrees of a centre."""
    return longitudes - 360.0 * np.round((longitudes - centre) / 360.0)
