"""Points left out one after the other, compiled by Numba. Import it only where it is needed."""

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def leave_out(Q: np.ndarray, P: np.ndarray, E: np.ndarray, a: np.ndarray, kept: np.ndarray, count: int) -> float:
    """Mark ``count`` points as not kept, cheapest first, and return the sum of their costs (`worth_keeping`).

    Q (n, n) is K^-1, and for each of C functions P (C, n, n) is V^-1, E is K^-1 V K^-1 and a (C, n) is K^-1 E f. Of the
    points that are left: Q - Q_i Q_i^T / q and P alike, a - a_i Q_i / q, and E with both sides multiplied by I - Q_i
    e_i^T / q. All are overwritten.
    """
    n, C, total = len(Q), len(P), 0.0
    for _ in range(count):
        best, least = -1, math.inf
        for i in range(n):
            if not kept[i]:
                continue
            q, cost = Q[i, i], 0.0
            for c in range(C):
                if q > 0.0 and P[c, i, i] > 0.0:
                    cost += 0.5 * (math.log(P[c, i, i] / q) - 1.0 + (a[c, i] ** 2 + E[c, i, i]) / q)
            if cost < least or best < 0:
                best, least = i, cost
        i, q = best, Q[best, best]
        kept[i], total = False, total + max(least, 0.0)
        for c in range(C):
            p, e, ai = P[c, i, i], E[c, i, i], a[c, i]
            for r in range(n):
                if not kept[r]:
                    continue
                share, own, both = Q[r, i] / q, P[c, r, i] / p, E[c, r, i]
                for s in range(n):
                    if kept[s]:
                        t = Q[s, i] / q
                        P[c, r, s] -= own * P[c, s, i]
                        E[c, r, s] += share * t * e - both * t - share * E[c, s, i]
                a[c, r] -= ai * share
        for r in range(n):
            if kept[r]:
                share = Q[r, i] / q
                for s in range(n):
                    if kept[s]:
                        Q[r, s] -= share * Q[s, i]
    return total
