"""Compiled loops of hidden Markov models. Imported when a model first needs them: Numba takes a second to load.

With emissions b_t(s) and a path z_1, z_2, ... of states, the forward recursion (PRML 13.36) is
    a_1(s) = initial(s) b_1(s),  a_t(s) = b_t(s) sum_r a_{t-1}(r) transition(r, s),
and the sum of a_L is the sum over all paths. Two sequences that share a path have b_t(s) = b_t(s | x) b_t(s | x'), and
after the end of the shorter one b_t(s) of the longer alone. Emissions come divided by their largest value at each
position, a is rescaled before it underflows, and logarithms of both factors are added at the end.
"""

import numpy as np
from numba import njit

MIN_TOTAL = 1e-140  # of a, below which it is rescaled


@njit(cache=True, nogil=True)
def log_pairs(rows, ex, starts_x, ez, starts_z, initial, transition, same, out):  # type: ignore[no-untyped-def]
    """ln of the sum over shared paths for pairs (i, j), i in ``rows``, without the largest emissions: into (n, m).

    If ``same``, the pairs with j >= i, and their mirror images.
    """
    S = len(initial)
    a, b = np.empty(S), np.empty(S)
    for i in rows:
        x, length = ex[starts_x[i] : starts_x[i + 1]], starts_x[i + 1] - starts_x[i]
        for j in range(i if same else 0, len(starts_z) - 1):
            z, other = ez[starts_z[j] : starts_z[j + 1]], starts_z[j + 1] - starts_z[j]
            both, logarithm, total = min(length, other), 0.0, 1.0
            rest = x if length > other else z
            for t in range(max(length, other)):
                total = 0.0
                if t == 0:
                    for s in range(S):
                        b[s] = initial[s]
                else:
                    for s in range(S):
                        b[s] = 0.0
                    for r in range(S):
                        for s in range(S):
                            b[s] += a[r] * transition[r, s]
                if t < both:
                    for s in range(S):
                        a[s] = b[s] * (x[t, s] * z[t, s])
                else:
                    for s in range(S):
                        a[s] = b[s] * rest[t, s]
                for s in range(S):
                    total += a[s]
                if total < MIN_TOTAL:
                    if total == 0.0:
                        break
                    logarithm += np.log(total)
                    for s in range(S):
                        a[s] /= total
                    total = 1.0
            out[i, j] = logarithm + np.log(total) if total > 0 else -np.inf
            if same:
                out[j, i] = out[i, j]


@njit(cache=True, nogil=True)
def _forward_backward(b, initial, transition, a, back, states, moves, weight):  # type: ignore[no-untyped-def]
    """ln of the sum over paths for emissions b (L, S). Adds ``weight`` times the expected number of visits to
    ``states`` (L, S) and of transitions to ``moves`` (S, S). ``a`` and ``back`` are workspace (L, S)."""
    L, S = b.shape
    if L == 0:
        return 0.0
    logarithm = 0.0
    for t in range(L):
        total = 0.0
        for s in range(S):
            value = initial[s] if t == 0 else 0.0
            if t > 0:
                for r in range(S):
                    value += a[t - 1, r] * transition[r, s]
            a[t, s] = value * b[t, s]
            total += a[t, s]
        if total == 0.0:
            return -np.inf
        logarithm += np.log(total)
        for s in range(S):
            a[t, s] /= total
    for s in range(S):
        back[L - 1, s] = 1.0
        states[L - 1, s] += weight * a[L - 1, s]
    for t in range(L - 2, -1, -1):
        # a and back are scaled so that their products sum to one over the states at each position.
        total = 0.0
        for r in range(S):
            value = 0.0
            for s in range(S):
                value += transition[r, s] * b[t + 1, s] * back[t + 1, s]
            back[t, r] = value
            total += a[t, r] * value
        for r in range(S):
            for s in range(S):
                moves[r, s] += weight * a[t, r] * transition[r, s] * b[t + 1, s] * back[t + 1, s] / total
        for r in range(S):
            back[t, r] /= total
            states[t, r] += weight * a[t, r] * back[t, r]
    return logarithm


@njit(cache=True, nogil=True)
def expected(rows, e, starts, initial, transition, states, moves, logs):  # type: ignore[no-untyped-def]
    """For each sequence in ``rows``: expected visits at its positions, into ``states`` (N, S); expected transitions,
    into ``moves`` (n, S, S); and ln p without the largest emissions, into ``logs`` (n,)."""
    longest = 0
    for i in rows:
        longest = max(longest, starts[i + 1] - starts[i])
    a, back = np.empty((longest, len(initial))), np.empty((longest, len(initial)))
    for i in rows:
        part = slice(starts[i], starts[i + 1])
        logs[i] = _forward_backward(e[part], initial, transition, a, back, states[part], moves[i], 1.0)


@njit(cache=True, nogil=True)
def pull_pairs(ex, starts_x, ez, starts_z, initial, transition, weights, d_x, d_z, first, moves):  # type: ignore[no-untyped-def]
    """Gradient of sum_ij weights_ij ln(sum over shared paths of i and j): in the logarithms of the emissions of both
    sides, (N, S) and (M, S); of ``initial`` (S,); and of ``transition`` (S, S)."""
    S = len(initial)
    longest = 0
    for i in range(len(starts_x) - 1):
        longest = max(longest, starts_x[i + 1] - starts_x[i])
    for j in range(len(starts_z) - 1):
        longest = max(longest, starts_z[j + 1] - starts_z[j])
    a, back, b, states = np.empty((longest, S)), np.empty((longest, S)), np.empty((longest, S)), np.empty((longest, S))
    for i in range(len(starts_x) - 1):
        x, length = ex[starts_x[i] : starts_x[i + 1]], starts_x[i + 1] - starts_x[i]
        for j in range(len(starts_z) - 1):
            z, other = ez[starts_z[j] : starts_z[j + 1]], starts_z[j + 1] - starts_z[j]
            weight = weights[i, j]
            if weight == 0.0 or max(length, other) == 0:
                continue
            L = max(length, other)
            for t in range(L):
                for s in range(S):
                    b[t, s] = (x[t, s] if t < length else 1.0) * (z[t, s] if t < other else 1.0)
            states[:L] = 0.0
            _forward_backward(b[:L], initial, transition, a, back, states, moves, weight)
            for s in range(S):
                first[s] += states[0, s]
            for t in range(length):
                for s in range(S):
                    d_x[starts_x[i] + t, s] += states[t, s]
            for t in range(other):
                for s in range(S):
                    d_z[starts_z[j] + t, s] += states[t, s]
