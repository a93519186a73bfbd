"""Longitude and latitude among the columns of a table."""

import numpy as np

from mercer.core.inputs import Inputs, as_frame, column_names, is_numeric

LONGITUDES = ("longitude", "lon", "long", "lng")
LATITUDES = ("latitude", "lat")


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
