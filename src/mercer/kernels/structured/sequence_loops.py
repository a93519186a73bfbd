"""Compiled loops over pairs of sequences. Imported when a kernel first needs them: Numba takes a second to load.

Sequences of one side lie in groups of `LANES`, side by side, so that a loop along a group does the same to all of them
and is vectorised. The compiled functions release the interpreter's lock, and `on_all_cores` shares rows out.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import njit

from mercer.core.machine import cores

LANES = 16  # sequences side by side
PADDING = -2.0  # after the end of a shorter sequence in a group
STRIP_SEQUENCES = 1024  # aligned sequences compared at a time, so that their runs stay in the cache
PARTS_PER_CORE = 4  # a core that finishes early takes another part


def on_all_cores(work: Callable[..., Any], n: int, *arguments: Any) -> None:
    """Call ``work(rows, *arguments)`` for arrays of rows that make up 0 to n - 1."""
    count = min(n, PARTS_PER_CORE * cores())
    parts = [np.arange(i, n, count) for i in range(count)]  # interleaved: in a triangle, later rows take less time
    if len(parts) <= 1 or cores() == 1:
        for part in parts:
            work(part, *arguments)
        return
    with ThreadPoolExecutor(cores()) as pool:
        for done in [pool.submit(work, part, *arguments) for part in parts]:
            done.result()


# -- common subsequences ---------------------------------------------------------------------------------------------
#
# With weights for gaps alone, the sum over pairs of occurrences of q letters that end at (i, j) is
#     M_1(i, j) = [s_i = t_j],  M_q(i, j) = [s_i = t_j] D_{q-1}(i - 1, j - 1),
#     D_q(i, j) = sum over i' <= i, j' <= j of decay^(i - i' + j - j') M_q(i', j') = decay D_q(i - 1, j) + R_q(i, j),
#     R_q(i, j) = decay R_q(i, j - 1) + M_q(i, j)
# (Lodhi et al. 2002, with R for their K''). Rows i follow one another, in each the longest q first, so D is updated in
# place. Matches count ``scale`` instead of one, which multiplies M_q by scale^q and keeps long sequences in range.
# Arrays along t are flat, (|t| + 1) LANES, and begin with zeros for j = 0: R(j) and R(j - 1) are LANES apart.


@njit(cache=True, nogil=True)
def _equal_to_one(letter: float, t: np.ndarray, scale: float, E: np.ndarray) -> None:
    for x in range(len(t)):
        E[x] = scale if t[x] == letter else 0.0


@njit(cache=True, nogil=True)
def _equal_by_lane(letters: np.ndarray, t: np.ndarray, scale: float, E: np.ndarray) -> None:
    """As `_equal_to_one`, with one letter per lane. Padding equals nothing."""
    for x in range(len(t)):
        E[x] = scale if t[x] == letters[x % LANES] and t[x] != PADDING else 0.0


@njit(cache=True, nogil=True)
def _add_up(E: np.ndarray, above: np.ndarray, weight: float, out: np.ndarray) -> None:
    """Add weight M_q."""
    for x in range(len(out)):
        out[x] += weight * (E[x] * above[x])


@njit(cache=True, nogil=True)
def _advance(E: np.ndarray, above: np.ndarray, decay: float, R: np.ndarray, own: np.ndarray) -> None:
    """R_q and D_q of the next row."""
    for x in range(len(E)):
        r = E[x] * above[x] + decay * R[x]
        R[x + LANES] = r
        own[x] = decay * own[x] + r


@njit(cache=True, nogil=True)
def _advance_slope(
    E: np.ndarray, above: np.ndarray, d_above: np.ndarray, decay: float, R: np.ndarray, own: np.ndarray,
    d_R: np.ndarray, d_own: np.ndarray,
) -> None:  # fmt: skip
    """As `_advance`, with derivatives in the decay."""
    for x in range(len(E)):
        R[x + LANES] = E[x] * above[x] + decay * R[x]
    for x in range(len(E)):
        d_R[x + LANES] = E[x] * d_above[x] + decay * d_R[x] + R[x]
    for x in range(len(E)):
        d_own[x] = decay * d_own[x] + own[x] + d_R[x + LANES]
    for x in range(len(E)):
        own[x] = decay * own[x] + R[x + LANES]


@njit(cache=True, nogil=True)
def _compare(
    s: np.ndarray, by_lane: bool, t: np.ndarray, decay: float, scale: float, weights: np.ndarray, slopes: np.ndarray,
    D: np.ndarray, d_D: np.ndarray, work: np.ndarray, value: np.ndarray, slope: np.ndarray,
) -> None:  # fmt: skip
    """value = sum_q weights_q sum_ij M_q(i, j), for each lane of t. If ``slopes``, the derivatives of the weights, are
    not empty, also its derivative."""
    width, length, with_slope = len(t), len(weights), len(slopes) > 0
    ones, E, R, d_R, total, d_total = work[0], work[1, :width], work[2], work[3], work[4, :width], work[5, :width]
    D[:, : width + LANES] = 0.0
    d_D[:, : width + LANES] = 0.0
    R[:LANES] = 0.0
    d_R[:LANES] = 0.0
    ones[:width] = 1.0
    total[:] = 0.0
    d_total[:] = 0.0
    for i in range(len(s) // LANES if by_lane else len(s)):
        if by_lane:
            _equal_by_lane(s[i * LANES : (i + 1) * LANES], t, scale, E)
        else:
            _equal_to_one(s[i], t, scale, E)
        for q in range(length - 1, -1, -1):
            above = D[q - 1] if q > 0 else ones
            if weights[q] != 0.0:
                _add_up(E, above, weights[q], total)
                if with_slope:
                    _add_up(E, above, slopes[q], d_total)
                    if q > 0:
                        _add_up(E, d_D[q - 1], weights[q], d_total)
            if q == length - 1:  # nothing follows the last letter
                continue
            if with_slope:
                # The derivative of M_1 is zero, as D is at j = 0.
                d_above = d_D[q - 1] if q > 0 else d_D[length - 1]
                _advance_slope(E, above, d_above, decay, R, D[q, LANES:], d_R, d_D[q, LANES:])
            else:
                _advance(E, above, decay, R, D[q, LANES:])
    value[:] = 0.0
    slope[:] = 0.0
    for x in range(width):
        value[x % LANES] += total[x]
        slope[x % LANES] += d_total[x]


@njit(cache=True, nogil=True)
def _space(length: int, width: int, with_slope: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # The last level of D stays zero.
    width += LANES
    return np.zeros((length, width)), np.zeros((length if with_slope else 0, width)), np.empty((6, width))


@njit(cache=True, nogil=True)
def subsequences(
    rows: np.ndarray, s: np.ndarray, s_starts: np.ndarray, s_order: np.ndarray, t: np.ndarray, t_starts: np.ndarray,
    t_order: np.ndarray, decay: float, scale: float, weights: np.ndarray, slopes: np.ndarray, symmetric: bool,
    out: np.ndarray, d_out: np.ndarray,
) -> None:  # fmt: skip
    """Weighted sums of M_q of sequences ``s[s_starts[i] : s_starts[i + 1]]`` with all groups of t, whose lanes are
    sequences ``t_order``, written where ``s_order`` and ``t_order`` say. If ``symmetric``, both are the same."""
    n, with_slope = len(t_order), len(slopes) > 0
    D, d_D, work = _space(len(weights), np.diff(t_starts).max(), with_slope)
    value, slope = np.empty(LANES), np.empty(LANES)
    for i in rows:
        for group in range(i // LANES if symmetric else 0, len(t_starts) - 1):
            _compare(
                s[s_starts[i] : s_starts[i + 1]], False, t[t_starts[group] : t_starts[group + 1]], decay, scale,
                weights, slopes, D, d_D, work, value, slope,
            )  # fmt: skip
            for lane in range(min(LANES, n - group * LANES)):
                j = group * LANES + lane
                if symmetric and j < i:
                    continue
                out[s_order[i], t_order[j]] = value[lane]
                if symmetric:
                    out[t_order[j], s_order[i]] = value[lane]
                if with_slope:
                    d_out[s_order[i], t_order[j]] = slope[lane]
                    if symmetric:
                        d_out[t_order[j], s_order[i]] = slope[lane]


@njit(cache=True, nogil=True)
def own_subsequences(
    groups: np.ndarray, t: np.ndarray, t_starts: np.ndarray, t_order: np.ndarray, decay: float, scale: float,
    weights: np.ndarray, slopes: np.ndarray, out: np.ndarray, d_out: np.ndarray,
) -> None:  # fmt: skip
    """As `subsequences`, of each sequence with itself."""
    D, d_D, work = _space(len(weights), np.diff(t_starts).max(), len(slopes) > 0)
    value, slope = np.empty(LANES), np.empty(LANES)
    for group in groups:
        own = t[t_starts[group] : t_starts[group + 1]]
        _compare(own, True, own, decay, scale, weights, slopes, D, d_D, work, value, slope)
        for lane in range(min(LANES, len(t_order) - group * LANES)):
            j = t_order[group * LANES + lane]
            out[j] = value[lane]
            d_out[j] = slope[lane]


# -- aligned sequences -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _runs(letter: int, t: np.ndarray, longest: int, run: np.ndarray, total: np.ndarray) -> None:
    """Number of letters up to here that agree, at most ``longest``; add the weights of their words."""
    for x in range(len(t)):
        r = min(run[x] + 1, longest) if t[x] == letter else 0
        run[x] = r
        total[x] += r * (2 * longest + 1 - r)


@njit(cache=True, nogil=True)
def weighted_degrees(
    rows: np.ndarray, s: np.ndarray, t: np.ndarray, longest: int, symmetric: bool, run: np.ndarray, out: np.ndarray
) -> None:
    """sum over positions of r (2 longest + 1 - r), r the number of letters before and at it that agree, at most
    ``longest``. s (n, L) and t (L, m). ``run`` is an empty array of the type to count in."""
    run, total = np.empty(STRIP_SEQUENCES, run.dtype), np.empty(STRIP_SEQUENCES, run.dtype)
    m = t.shape[1]
    for i in rows:
        for start in range(i // STRIP_SEQUENCES * STRIP_SEQUENCES if symmetric else 0, m, STRIP_SEQUENCES):
            count = min(STRIP_SEQUENCES, m - start)
            run[:] = 0
            total[:] = 0
            for position in range(s.shape[1]):
                _runs(s[i, position], t[position, start : start + count], longest, run, total)
            for x in range(count):
                out[i, start + x] = total[x]
                if symmetric:
                    out[start + x, i] = total[x]


# -- words with mismatches -------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _shared_words(a: np.ndarray, b: np.ndarray, shared: np.ndarray) -> float:
    """Number of words near both: an entry of the table ``shared`` by how many letters differ, how many of a, b and both
    are outside the alphabet (-1)."""
    most = shared.shape[0] - 1  # twice the mismatches: each difference is a mismatch for one of the two at least
    differ = only_a = only_b = both = 0
    for position in range(len(a)):
        x, y = a[position], b[position]
        if x < 0 and y < 0:
            both += 1
        elif x < 0:
            only_a += 1
        elif y < 0:
            only_b += 1
        elif x != y:
            differ += 1
        if differ + only_a + only_b + 2 * both > most:
            return 0.0
    if max(only_a, only_b) + both >= shared.shape[1]:
        return 0.0
    return shared[differ, only_a, only_b, both]


@njit(cache=True, nogil=True)
def mismatches(
    rows: np.ndarray, a: np.ndarray, a_counts: np.ndarray, a_starts: np.ndarray, b: np.ndarray, b_counts: np.ndarray,
    b_starts: np.ndarray, shared: np.ndarray, only_diagonal: bool, symmetric: bool, out: np.ndarray,
) -> None:  # fmt: skip
    """Sums over pairs of words of two rows, of their counts times `_shared_words`. ``only_diagonal`` fills out (n, 1)
    with row i of a and row i of b."""
    for i in rows:
        first = i if only_diagonal or symmetric else 0
        last = i + 1 if only_diagonal else len(b_starts) - 1
        for j in range(first, last):
            total = 0.0
            for u in range(a_starts[i], a_starts[i + 1]):
                for v in range(b_starts[j], b_starts[j + 1]):
                    total += a_counts[u] * b_counts[v] * _shared_words(a[u], b[v], shared)
            if only_diagonal:
                out[i, 0] = total
            else:
                out[i, j] = total
                if symmetric:
                    out[j, i] = total
