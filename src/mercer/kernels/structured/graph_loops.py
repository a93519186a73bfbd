"""Loops over nodes, edges and pairs of graphs, compiled by Numba. Import it only where it is needed."""

import numpy as np
from numba import njit

TOLERANCE = 1e-13  # of the residual of a linear system, relative to its right-hand side
MAX_STEPS = 10_000  # of an iterative solution
MAX_TERM = 1e300  # of a series
MAX_EIGENVALUE_STEPS = 1000
EIGENVALUE_TOLERANCE = 1e-10  # relative change in a step


@njit(cache=True, nogil=True)
def number_rows(first: np.ndarray, offsets: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of rows of integers (first[i], *others[offsets[i] : offsets[i + 1]]), equal rows alike, in the order in
    which they come, and the first row with each number. Rows are found by hashing and compared in full."""
    n = len(first)
    size = 16
    while size < 2 * n:
        size *= 2
    table = np.full(size, -1, np.int64)
    numbers, examples, count = np.empty(n, np.int64), np.empty(n, np.int64), 0
    for i in range(n):
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        mixed = (np.uint64(first[i]) + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        for j in range(length):
            mixed = (mixed ^ (mixed >> np.uint64(29)) ^ np.uint64(others[start + j])) * np.uint64(0x94D049BB133111EB)
        place = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(size - 1))
        while True:
            number = table[place]
            if number < 0:
                table[place] = count
                examples[count] = i
                numbers[i] = count
                count += 1
                break
            k = examples[number]
            same = first[k] == first[i] and offsets[k + 1] - offsets[k] == length
            j = 0
            while same and j < length:
                same = others[offsets[k] + j] == others[start + j]
                j += 1
            if same:
                numbers[i] = number
                break
            place = (place + 1) & (size - 1)
    return numbers, examples[:count].copy()


# -- shortest paths --------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _hops(
    source: int, start: int, offsets: np.ndarray, targets: np.ndarray, found: np.ndarray, queue: np.ndarray
) -> int:
    """Breadth-first search. Writes the number of edges to every node reached into ``found``, which holds -1, and those
    nodes into ``queue``, both relative to ``start``; returns how many there are."""
    queue[0], found[source - start], last = source, 0.0, 1
    at = 0
    while at < last:
        node = queue[at]
        at += 1
        for edge in range(offsets[node], offsets[node + 1]):
            other = targets[edge]
            if found[other - start] < 0:
                found[other - start] = found[node - start] + 1
                queue[last] = other
                last += 1
    return last


@njit(cache=True, nogil=True)
def _lengths(
    source: int, start: int, offsets: np.ndarray, targets: np.ndarray, lengths: np.ndarray, found: np.ndarray,
    queue: np.ndarray, heap_keys: np.ndarray, heap_nodes: np.ndarray, done: np.ndarray,
) -> int:  # fmt: skip
    """Dijkstra's algorithm, with what `_hops` writes and returns. Its heap has room for every edge of the graph."""
    heap_keys[0], heap_nodes[0], size, last = 0.0, source, 1, 0
    found[source - start] = 0.0
    while size > 0:
        key, node = heap_keys[0], heap_nodes[0]
        size -= 1
        moved_key, moved, place = heap_keys[size], heap_nodes[size], 0  # the last one sinks from the top
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size and heap_keys[child + 1] < heap_keys[child]:
                child += 1
            if heap_keys[child] >= moved_key:
                break
            heap_keys[place], heap_nodes[place] = heap_keys[child], heap_nodes[child]
            place = child
        heap_keys[place], heap_nodes[place] = moved_key, moved
        if done[node - start]:
            continue
        done[node - start] = True
        queue[last] = node
        last += 1
        for edge in range(offsets[node], offsets[node + 1]):
            other, reached = targets[edge], key + lengths[edge]
            if found[other - start] < 0 or reached < found[other - start]:
                found[other - start] = reached
                place = size
                size += 1
                while place > 0 and heap_keys[(place - 1) // 2] > reached:
                    heap_keys[place], heap_nodes[place] = heap_keys[(place - 1) // 2], heap_nodes[(place - 1) // 2]
                    place = (place - 1) // 2
                heap_keys[place], heap_nodes[place] = reached, other
    for k in range(last):
        done[queue[k] - start] = False
    return last


@njit(cache=True, nogil=True)
def _doubled(array: np.ndarray) -> np.ndarray:
    new = np.empty(2 * len(array), array.dtype)
    for i in range(len(array)):
        new[i] = array[i]
    return new


@njit(cache=True, nogil=True)
def shortest_paths(
    starts: np.ndarray, labels: np.ndarray, offsets: np.ndarray, targets: np.ndarray, lengths: np.ndarray,
    disconnected: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Count ordered pairs of distinct connected nodes by their labels and distance, graph by graph: the graph, label,
    label, distance and number of each, all (m,). ``lengths`` (E,), or of length zero to count edges. ``disconnected``:
    pairs without a path count too, at an infinite distance.

    O(nodes * edges) per graph, times a logarithm if edges have lengths.
    """
    by_hops = len(lengths) == 0
    capacity, total = 1024, 0
    graphs, first = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    second, distances = np.empty(capacity, np.int64), np.empty(capacity, np.float64)
    counts = np.empty(capacity, np.int64)
    for g in range(len(starts) - 1):
        start, n = starts[g], starts[g + 1] - starts[g]
        edges = offsets[starts[g + 1]] - offsets[start]
        found, queue = np.full(n, -1.0), np.empty(n, np.int64)
        done = np.zeros(n, np.bool_)
        room = 1 if by_hops else edges + 1
        heap_keys, heap_nodes = np.empty(room, np.float64), np.empty(room, np.int64)
        # The counts of this graph are in a hash table, which points to them.
        table, used, base = np.full(64, -1, np.int64), 0, total
        for source in range(start, start + n):
            if by_hops:
                reached = _hops(source, start, offsets, targets, found, queue)
            else:
                reached = _lengths(
                    source, start, offsets, targets, lengths, found, queue, heap_keys, heap_nodes, done
                )  # fmt: skip
            if disconnected and reached < n:
                for node in range(start, start + n):
                    if found[node - start] < 0:
                        found[node - start], queue[reached] = np.inf, node
                        reached += 1
            for k in range(reached):
                node = queue[k]
                distance = found[node - start]
                found[node - start] = -1.0
                if node == source:
                    continue
                a, b = labels[source], labels[node]
                place = _slot(table, a, b, distance, first, second, distances)
                if table[place] >= 0:
                    counts[table[place]] += 1
                    continue
                if total == len(graphs):
                    graphs, first, second = _doubled(graphs), _doubled(first), _doubled(second)
                    distances, counts = _doubled(distances), _doubled(counts)
                graphs[total], first[total], second[total] = g, a, b
                distances[total], counts[total] = distance, 1
                table[place] = total
                total += 1
                used += 1
                if 2 * used > len(table):
                    table = np.full(4 * len(table), -1, np.int64)
                    for entry in range(base, total):
                        place = _slot(table, first[entry], second[entry], distances[entry], first, second, distances)
                        table[place] = entry
    return graphs[:total], first[:total], second[:total], distances[:total], counts[:total]


@njit(cache=True, nogil=True)
def _slot(
    table: np.ndarray, a: int, b: int, distance: float, first: np.ndarray, second: np.ndarray, distances: np.ndarray
) -> int:
    """Place of a pair in a hash table of a power of two entries: where it is, or where it belongs."""
    mixed = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(b) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ np.uint64(np.float64(distance).view(np.int64))) * np.uint64(0x94D049BB133111EB)
    place: int = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(len(table) - 1))  # type: ignore[assignment]
    while table[place] >= 0:
        k = table[place]
        if first[k] == a and second[k] == b and distances[k] == distance:
            break
        place = (place + 1) & (len(table) - 1)
    return place


# -- random walks ----------------------------------------------------------------------------------------------------
#
# The product graph of two graphs has a node for every pair of their nodes with equal labels, and an edge where both
# have one, with equal labels. Vectors over its nodes are matrices X (n, m) that are zero elsewhere. Its adjacency
# matrix takes X to the sum over labels e of A_e X B_e^T, again zero elsewhere: O(n |B| + |A| m) operations for |A| and
# |B| edges.
#
# Graphs are a tuple: pointers to nodes (n, 2), labels of nodes, pointers to edges (n, 2), the nodes that edges leave
# and reach, counted from the first of the graph, labels of edges, by which they are sorted, and whether graphs are
# directed. The edges of one graph are a tuple too: the first, one after the last, and the same three arrays.

Graphs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Edges = tuple[int, int, np.ndarray, np.ndarray, np.ndarray]


@njit(cache=True, nogil=True)
def _clear(X: np.ndarray) -> None:
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            X[i, j] = 0.0


@njit(cache=True, nogil=True)
def _dot(A: np.ndarray, B: np.ndarray) -> float:
    total = 0.0
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            total += A[i, j] * B[i, j]
    return total


@njit(cache=True, nogil=True)
def _step(X: np.ndarray, out: np.ndarray, buffer: np.ndarray, match: np.ndarray, a: Edges, b: Edges) -> None:
    """out = A X, for the adjacency matrix A of the product graph."""
    i, a_last, a_from, a_to, a_label = a
    j, b_last, b_from, b_to, b_label = b
    _clear(out)
    while i < a_last and j < b_last:
        if a_label[i] < b_label[j]:
            i += 1
            continue
        if a_label[i] > b_label[j]:
            j += 1
            continue
        label, stop = a_label[i], j
        while stop < b_last and b_label[stop] == label:
            stop += 1
        _clear(buffer)
        while i < a_last and a_label[i] == label:
            u, v = a_from[i], a_to[i]
            for c in range(X.shape[1]):
                buffer[u, c] += X[v, c]
            i += 1
        for u in range(X.shape[0]):
            for k in range(j, stop):
                out[u, b_from[k]] += buffer[u, b_to[k]]
        j = stop
    for u in range(X.shape[0]):
        for c in range(X.shape[1]):
            out[u, c] *= match[u, c]


@njit(cache=True, nogil=True)
def _series(decay: float, match: np.ndarray, a: Edges, b: Edges) -> tuple[float, float]:
    """Sum over k of decay^k w_k, for the number w_k of walks of length k on the product graph, and its derivative.

    w_(j + k) <= w_j w_k, for a walk is two walks: so what follows a term t < 1 is at most t / (1 - t) of the sum.
    """
    term, product, buffer = match.copy(), np.empty(match.shape), np.empty(match.shape)
    value, weighted = _dot(match, match), 0.0
    for k in range(1, MAX_STEPS):
        _step(term, product, buffer, match, a, b)
        for u in range(match.shape[0]):
            for c in range(match.shape[1]):
                term[u, c] = decay * product[u, c]
        size = _dot(term, match)
        value += size
        weighted += k * size
        if k * size <= TOLERANCE:
            return value, weighted / decay
        if not size < MAX_TERM:
            break
    return np.nan, np.nan


@njit(cache=True, nogil=True)
def _solved(decay: float, slope: bool, match: np.ndarray, a: Edges, b: Edges) -> tuple[float, float]:
    """1^T x with (I - decay A) x = 1, by conjugate gradients, and if ``slope`` its derivative in decay, x^T A x.

    The matrix is positive definite if and only if the series of walks converges. If it is not, negative curvature is
    met: eigenvectors with the largest eigenvalue of a connected part have a positive scalar product with 1.
    """
    n, m = match.shape
    X, R, P = np.zeros((n, m)), match.copy(), match.copy()
    product, buffer = np.empty((n, m)), np.empty((n, m))
    start = r2 = _dot(R, R)
    for _ in range(MAX_STEPS):
        _step(P, product, buffer, match, a, b)
        for u in range(n):
            for c in range(m):
                product[u, c] = P[u, c] - decay * product[u, c]
        curvature = _dot(P, product)
        if not curvature > 0:
            break
        alpha = r2 / curvature
        for u in range(n):
            for c in range(m):
                X[u, c] += alpha * P[u, c]
                R[u, c] -= alpha * product[u, c]
        new = _dot(R, R)
        if new <= TOLERANCE**2 * start:
            if slope:
                _step(X, product, buffer, match, a, b)
            return _dot(X, match), _dot(X, product) if slope else 0.0
        beta = new / r2
        for u in range(n):
            for c in range(m):
                P[u, c] = R[u, c] + beta * P[u, c]
        r2 = new
    return np.nan, np.nan


@njit(cache=True, nogil=True)
def _pair(decay: float, slope: bool, mine: Graphs, i: int, theirs: Graphs, j: int) -> tuple[float, float]:
    """Random walk kernel of two graphs, and its derivative in decay; NaN where the series of walks diverges."""
    match, a, b = _product(mine, i, theirs, j)
    if _dot(match, match) == 0:
        return 0.0, 0.0
    if mine[6][i] or theirs[6][j]:
        return _series(decay, match, a, b)
    return _solved(decay, slope, match, a, b)


@njit(cache=True, nogil=True)
def _product(mine: Graphs, i: int, theirs: Graphs, j: int) -> tuple[np.ndarray, Edges, Edges]:
    """Which pairs of nodes have equal labels (n, m), as ones, and the edges of both graphs."""
    own, others = mine[1][mine[0][i, 0] : mine[0][i, 1]], theirs[1][theirs[0][j, 0] : theirs[0][j, 1]]
    match = np.empty((len(own), len(others)))
    for u in range(len(own)):
        for v in range(len(others)):
            match[u, v] = 1.0 if own[u] == others[v] else 0.0
    a = mine[2][i, 0], mine[2][i, 1], mine[3], mine[4], mine[5]
    b = theirs[2][j, 0], theirs[2][j, 1], theirs[3], theirs[4], theirs[5]
    return match, a, b


@njit(cache=True, nogil=True)
def walks(
    decay: float, slope: bool, same: bool, rows: np.ndarray, values: np.ndarray, slopes: np.ndarray, mine: Graphs,
    theirs: Graphs,
) -> None:  # fmt: skip
    """Write the random walk kernel of the graphs ``rows`` of one collection and all of another into ``values`` (n, m),
    and its derivative in decay into ``slopes``, if ``slope``. ``same``: the collections are equal, and entries right of
    the diagonal are written on both sides of it."""
    for i in rows:
        for j in range(i if same else 0, values.shape[1]):
            value, derivative = _pair(decay, slope, mine, i, theirs, j)
            values[i, j] = value
            if same:
                values[j, i] = value
            if slope:
                slopes[i, j] = derivative
                if same:
                    slopes[j, i] = derivative


@njit(cache=True, nogil=True)
def own_walks(decay: float, slope: bool, values: np.ndarray, slopes: np.ndarray, graphs: Graphs) -> None:
    """Write the random walk kernel of each graph and itself, and its derivative: (n,), (n,)."""
    for i in range(len(values)):
        values[i], slopes[i] = _pair(decay, slope, graphs, i, graphs, i)


@njit(cache=True, nogil=True)
def growth(graphs: Graphs) -> np.ndarray:
    """Largest eigenvalue of the product graph of each graph with itself, by the power method: (n,).

    I + A takes the place of A, whose eigenvalues of largest size are two, of opposite signs, for a bipartite graph.
    """
    out = np.zeros(len(graphs[0]))
    for i in range(len(out)):
        match, a, b = _product(graphs, i, graphs, i)
        X, product, buffer = match.copy(), np.empty(match.shape), np.empty(match.shape)
        size = np.sqrt(_dot(X, X))
        if size == 0:  # no nodes
            continue
        agreeing = 0  # steps in a row: the first norm is no estimate, and two may agree by chance
        for _ in range(MAX_EIGENVALUE_STEPS):
            before = size
            for u in range(len(X)):
                for c in range(len(X)):
                    X[u, c] /= before
            _step(X, product, buffer, match, a, b)
            for u in range(len(X)):
                for c in range(len(X)):
                    X[u, c] += product[u, c]
            size = np.sqrt(_dot(X, X))
            agreeing = agreeing + 1 if abs(size - before) <= EIGENVALUE_TOLERANCE * size else 0
            if agreeing == 3:
                break
        out[i] = size - 1.0
    return out
