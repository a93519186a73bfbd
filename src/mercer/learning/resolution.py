"""Rounding and repetition in the data: the step to which a target was rounded, and rows that are copies."""

import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from mercer.core.inputs import Inputs, centre_and_spread, middle_spread, split_numbers

MIN_DECIMALS, MAX_DECIMALS = -15, 12
MAX_STEPS = 1e9  # of a lattice: with more, rounding would make a lattice of any numbers
SAME_INPUTS = 1e-6  # of an input's spread: rows no further apart may be copies
# Of an input's spread, and of the distance to the neighbour after so many copies: rows closer than both may be, too.
NEAR_INPUTS, NEAR_SHARE, COPIES = 1e-3, 3e-3, 6
MAX_NEAR_CHANCE = 1e-4  # share of rows that are nearer to one of these neighbours by chance
MAX_DIMENSION_ROWS = 300  # enough to estimate the local dimension
TINY = np.finfo(float).tiny
SAME_TARGETS = 1e-3  # of the target's spread, as far as rows at one place may differ that are copies
KINDS_APART = 10.0  # spreads between rows with different categories or words
MAX_NEAR_ROWS = 10_000  # among more rows, only those closer than SAME_INPUTS are found
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
    are copies only if nearly all rows with the same inputs agree. Inputs that are nearly the same, and targets where
    nearly all such rows nearly agree, are copies in other precision.
    """
    places = _places(X, len(y))
    groups = _groups(places, y)
    every = np.arange(len(y)), np.arange(len(y))
    if not groups:
        return every
    kept, copy_of = _first(places, y)
    agreeing, pairs = _agreeing(groups)
    if resolution(y[kept]) > 0:
        return every if agreeing < MIN_AGREEMENT * pairs else (kept, copy_of)
    near = _merged(places, y, SAME_TARGETS * float(np.std(y)))
    agreeing, pairs = _agreeing(_groups(places[kept], near[kept]))
    return _first(places, near) if pairs and agreeing >= MIN_AGREEMENT * pairs else (kept, copy_of)


def _groups(places: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Targets at each place that several rows have."""
    order = np.argsort(places, kind="stable")
    cuts = np.flatnonzero(np.diff(places[order])) + 1
    return [group for group in np.split(y[order], cuts) if len(group) > 1]


def _agreeing(groups: list[np.ndarray]) -> tuple[int, int]:
    """Number of pairs with equal targets within the groups, and of all pairs there."""
    counts = [np.unique(group, return_counts=True)[1] for group in groups]
    agreeing = sum(int((c * (c - 1) // 2).sum()) for c in counts)
    return agreeing, sum(len(group) * (len(group) - 1) // 2 for group in groups)


def _first(places: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each place and target, and for every row its place among these."""
    _, values = np.unique(y, return_inverse=True)
    _, first, of = np.unique(np.stack([places, values]), axis=1, return_index=True, return_inverse=True)
    kept, rank = np.unique(first, return_inverse=True)
    return kept, rank[of.ravel()]


def _merged(places: np.ndarray, y: np.ndarray, gap: float) -> np.ndarray:
    """Targets, with those of one place that follow each other within ``gap`` replaced by the smallest of them."""
    order = np.lexsort((y, places))
    starts = np.r_[True, (np.diff(places[order]) != 0) | (np.diff(y[order]) > gap)]
    merged = np.empty_like(y)
    merged[order] = y[order][np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    return merged


def contradicting(X: Inputs, y: np.ndarray) -> tuple[int, int] | None:
    """Two rows with equal inputs and different targets; None if there are none."""
    numbers, others = split_numbers(X)
    first: dict[Hashable, int] = {}
    for i, row in enumerate(zip((row.tobytes() for row in numbers + 0.0), others, strict=True)):
        same = first.setdefault(row, i)
        if y[same] != y[i]:
            return same, i
    return None


def _places(X: Inputs, n: int) -> np.ndarray:
    """Equal numbers for rows at the same place, (n,): other columns are equal, and numbers are the same to a millionth
    of their spread, or so much closer than further neighbours that chance does not explain it."""
    numbers, others = split_numbers(X)
    codes: dict[Hashable, int] = {}
    kinds = np.array([codes.setdefault(other, len(codes)) for other in others], dtype=float)
    if not numbers.shape[1]:
        return kinds.astype(int)
    numbers = np.nan_to_num(numbers)  # of columns that no kernel reads
    shift, spread = centre_and_spread(numbers)
    Z = (numbers - shift) / middle_spread(numbers, spread)
    rows: dict[bytes, int] = {}
    keys = np.column_stack([np.rint((numbers - shift) / (SAME_INPUTS * spread)) + 0.0, kinds])
    places = np.array([rows.setdefault(key.tobytes(), len(rows)) for key in keys])
    _, one = np.unique(places, return_index=True)
    return places if len(one) > MAX_NEAR_ROWS else _near(np.column_stack([Z, KINDS_APART * kinds])[one])[places]


def _near(Z: np.ndarray) -> np.ndarray:
    """Equal numbers for distinct rows that are no further apart than `NEAR_INPUTS` in any column, and so much closer
    than the neighbour after `COPIES` others as rarely happens by chance: the share of rows within a distance grows with
    its power D, the local dimension; (m,)."""
    tree, m = cKDTree(Z), len(Z)
    nearest = tree.query(Z, k=2, distance_upper_bound=NEAR_INPUTS, p=np.inf)[0][:, 1] if m > 1 else np.zeros(0)
    close = np.flatnonzero(np.isfinite(nearest))
    if not len(close) or m < COPIES + 2:
        return np.arange(m)
    some = np.linspace(0, m - 1, min(m, MAX_DIMENSION_ROWS)).astype(int)
    middle = (COPIES + 2) // 2
    around = tree.query(Z[some], k=[middle + 1, COPIES + 2], p=np.inf)[0]
    growth = np.median(np.log(np.maximum(around[:, 1], TINY) / np.maximum(around[:, 0], TINY)))
    chance = MAX_NEAR_CHANCE ** (growth / math.log((COPIES + 1) / middle))
    apart, which = tree.query(Z[close], k=COPIES + 2, p=np.inf)
    same = apart < np.minimum(NEAR_INPUTS, min(NEAR_SHARE, chance) * apart[:, -1:])
    a, b = np.broadcast_to(close[:, None], which.shape)[same], which[same]
    return connected_components(coo_matrix((np.ones(len(a)), (a, b)), shape=(m, m)), directed=False)[1]
