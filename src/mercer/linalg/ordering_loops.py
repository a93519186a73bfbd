"""Loops that order points and group their neighbours, compiled by Numba. Import it only where it is needed."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _sift_down(heap: np.ndarray, place: np.ndarray, distance: np.ndarray, at: int, size: int) -> None:
    """Restore a max-heap of points, by their distances, below a place whose distance has become smaller."""
    point = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and distance[heap[child + 1]] > distance[heap[child]]:
            child += 1
        if distance[heap[child]] <= distance[point]:
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = point
    place[point] = at


@njit(cache=True, nogil=True)
def maximin(X: np.ndarray, first: int, leaf: int) -> np.ndarray:
    """Each next point is the one farthest from those before it (n,), from ``first`` on. About n ln(n) distances.

    A new point at distance r from the others can lower the distances of points within r alone, since none is farther
    than r from its nearest. They are found by a tree that halves the points at the median of their longest side;
    a node keeps its box, and ``leaf`` points or fewer are not halved.
    """
    n, d = X.shape
    tree = np.arange(n)
    count = 1
    while count * leaf < n:
        count *= 2
    nodes = 2 * count - 1
    start, stop = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    low, high = np.zeros((nodes, d)), np.zeros((nodes, d))
    stop[0] = n
    for node in range(nodes):
        a, b = start[node], stop[node]
        for j in range(d):
            low[node, j], high[node, j] = np.inf, -np.inf
            for i in range(a, b):
                low[node, j] = min(low[node, j], X[tree[i], j])
                high[node, j] = max(high[node, j], X[tree[i], j])
        if 2 * node + 2 < nodes:
            side = 0
            for j in range(d):
                if high[node, j] - low[node, j] > high[node, side] - low[node, side]:
                    side = j
            tree[a:b] = tree[a:b][np.argsort(X[tree[a:b], side])]
            middle = (a + b) // 2
            start[2 * node + 1], stop[2 * node + 1] = a, middle
            start[2 * node + 2], stop[2 * node + 2] = middle, b
    distance = np.full(n, np.inf)  # squared, to the nearest of those before
    heap, place = np.arange(n), np.arange(n)
    order, stack = np.empty(n, np.int64), np.empty(nodes, np.int64)
    heap[0], heap[first], place[0], place[first] = first, 0, first, 0
    size = n
    for position in range(n):
        point = heap[0]
        order[position] = point
        radius = distance[point]
        size -= 1
        heap[0] = heap[size]
        place[heap[0]] = 0
        distance[point] = -1.0
        if size > 0:
            _sift_down(heap, place, distance, 0, size)
        if radius == 0.0:  # all the rest coincide with points before them
            continue
        stack[0], depth = 0, 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            outside = 0.0
            for j in range(d):
                gap = max(low[node, j] - X[point, j], X[point, j] - high[node, j], 0.0)
                outside += gap * gap
            if outside >= radius:
                continue
            if 2 * node + 2 < nodes:
                stack[depth], stack[depth + 1] = 2 * node + 1, 2 * node + 2
                depth += 2
                continue
            for i in range(start[node], stop[node]):
                other = tree[i]
                if distance[other] < 0.0:
                    continue
                r2 = 0.0
                for j in range(d):
                    r2 += (X[other, j] - X[point, j]) ** 2
                if r2 < distance[other]:
                    distance[other] = r2
                    _sift_down(heap, place, distance, place[other], size)
    return order


@njit(cache=True, nogil=True)
def union_size(a: np.ndarray, b: np.ndarray) -> int:
    """Number of members of either of two ascending sets."""
    i = j = size = 0
    while i < len(a) and j < len(b):
        one, other = a[i], b[j]
        i += one <= other
        j += other <= one
        size += 1
    return size + len(a) - i + len(b) - j


@njit(cache=True, nogil=True)
def groups(sets: np.ndarray, sizes: np.ndarray, before: np.ndarray, most: int) -> np.ndarray:
    """Number of the group of each point (n,), for sets (n, m + 1) of a point and those it is conditioned on, ascending,
    ``sizes`` of which count, and the same ``before`` it (n, m), nearest first.

    Two groups are joined where the cube of their union, the work it makes, is less than the sum of their cubes, and the
    union has no more than ``most`` members. Tried for every point with its nearest first. (Guinness 2018, who compares
    squares.)
    """
    n, width = sets.shape
    group = np.arange(n)
    room = np.zeros((n, most), np.int64)
    length = sizes.copy()
    following, last = np.full(n, -1), np.arange(n)  # members of a group, as a chain from its first to its last
    for i in range(n):
        room[i, : sizes[i]] = sets[i, : sizes[i]]
    merged = np.empty(most, np.int64)
    for rank in range(width - 1):
        for i in range(n):
            if before[i, rank] < 0:
                continue
            a, b = group[i], group[before[i, rank]]
            if a == b:
                continue
            one, other = room[a, : length[a]], room[b, : length[b]]
            size = union_size(one, other)
            if size > most or size**3 >= length[a] ** 3 + length[b] ** 3:
                continue
            p = q = 0
            for k in range(size):
                x = one[p] if p < length[a] else n
                y = other[q] if q < length[b] else n
                merged[k] = min(x, y)
                p += x <= y
                q += y <= x
            if b < a:
                a, b = b, a
            room[a, :size] = merged[:size]
            length[a] = size
            following[last[a]], last[a] = b, last[b]
            member = b
            while member >= 0:
                group[member] = a
                member = following[member]
    return group


@njit(cache=True, nogil=True)
def distinct(candidates: np.ndarray, starts: np.ndarray, quotas: np.ndarray, out: np.ndarray) -> None:
    """Fill the rows of ``out`` (s, m) with candidates (s, c), none twice: of those from starts[l] on as many as
    quotas[l], and what is then left from the first on."""
    m, levels = out.shape[1], len(quotas)
    for i in range(len(out)):
        count = 0
        for level in range(levels + 1):
            start = starts[level] if level < levels else 0
            stop = starts[level + 1] if level < levels else starts[1]
            goal = min(m, count + quotas[level]) if level < levels else m
            for t in range(start, stop):
                if count == goal:
                    break
                known = False
                for u in range(count):
                    known = known or out[i, u] == candidates[i, t]
                if not known:
                    out[i, count] = candidates[i, t]
                    count += 1
