"""Rounding and repetition in the data: the step to which a target was rounded, and rows that are copies."""

import math

import numpy as np
from numpy.typing import ArrayLike

from mercer.core.errors import DataError
from mercer.core.inputs import Inputs, as_matrix, centre_and_spread

MIN_DECIMALS, MAX_DECIMALS = -15, 12
MAX_STEPS = 1e9  # of a lattice: with more, rounding would make a lattice of any numbers
SAME_INPUTS = 1e-6  # of an input's spread: rows no further apart may be copies
MIN_AGREEMENT = 0.75  # share of pairs: readings with the least noise a lattice allows agree less often than this


def resolution(y: ArrayLike) -> float:
    """Step of the lattice that the values lie on (ratings, counts, rounded readings); 0 if there is none.

    Values on a lattice repeat. Without a repetition there is no telling whether they were rounded; where at most half
    are distinct, the step is the smallest gap, whether or not it divides the others.

    >>> resolution([1.0, 2.5, 2.5, 4.5]), resolution([0.1234, 5.678, 9.1011]), resolution([10.0, 30.0, 30.0, 20.0])
    (0.5, 0.0, 10.0)
    """
    y = np.asarray(y, dtype=float)
    values = np.unique(y)
    if len(values) == len(y) or len(values) < 2:
        return 0.0
    if len(values) <= len(y) / 2:  # of any spacing: logarithms of counts, say
        return float(np.diff(values).min())
    size = float(np.abs(values).max())
    for decimals in range(MIN_DECIMALS, MAX_DECIMALS + 1):
        if not 0 < size * 10.0**decimals < MAX_STEPS:
            continue
        scaled = values * 10.0**decimals
        whole = np.rint(scaled)
        if np.abs(scaled - whole).max() <= 1e-9 * max(1.0, np.abs(scaled).max() * 1e-3):
            steps = np.diff(whole).astype(np.int64)
            if (steps > 0).all():
                return float(math.gcd(*steps.tolist())) / 10.0**decimals
    return 0.0


def originals(X: Inputs, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that remain without copies, in order, (m,); and for every row its place among these, (n,).

    Two rows with the same inputs and the same target are one measurement written down twice (a bootstrap sample, a
    merged table): their agreement has no information on the noise. Readings on a lattice agree by chance, so there they
    are copies only if nearly all rows with the same inputs agree.
    """
    n, keys = len(y), _keys(X)
    every = np.arange(n), np.arange(n)
    if keys is None:
        return every
    places: dict[bytes, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    groups = [y[rows] for rows in places.values() if len(rows) > 1]
    if not groups:
        return every
    first: dict[tuple[bytes, float], int] = {}
    of = np.array(
        [first.setdefault((key, float(value)), i) for i, (key, value) in enumerate(zip(keys, y, strict=True))]
    )
    kept, copy_of = np.unique(of, return_inverse=True)
    counts = [np.unique(group, return_counts=True)[1] for group in groups]
    agreeing = sum(int((c * (c - 1) // 2).sum()) for c in counts)
    pairs = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    return every if agreeing < MIN_AGREEMENT * pairs and resolution(y[kept]) > 0 else (kept, copy_of)


def contradicting(X: Inputs, y: np.ndarray) -> tuple[int, int] | None:
    """Two rows with equal inputs and different targets; None if there are none, or rows are not numbers."""
    try:
        X = as_matrix(X)
    except DataError:
        return None
    first: dict[bytes, int] = {}
    for i, row in enumerate(X + 0.0):
        same = first.setdefault(row.tobytes(), i)
        if y[same] != y[i]:
            return same, i
    return None


def _keys(X: Inputs) -> list[bytes] | None:
    """Equal keys for rows with the same inputs, to a millionth of their spread; None if rows are not numbers."""
    try:
        X = as_matrix(X)
    except DataError:
        return None
    shift, spread = centre_and_spread(X)
    return [row.tobytes() for row in np.rint((X - shift) / (SAME_INPUTS * spread)) + 0.0]
