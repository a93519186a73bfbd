"""Points in an order in which every prefix covers the region, their nearest earlier points, and groups of these."""

import dataclasses

import numpy as np

from mercer.core.machine import cores

LEAF_POINTS = 16  # points of a tree that are not halved
FIRST_BATCH, BATCH_GROWTH = 256, 1.4  # points whose neighbours are looked for in one tree, all earlier ones and these
COARSENING, COARSE_SHARE = 8, 4  # ratio of points to those of a coarser cover, and of neighbours to those from each
MAX_GROUP_SHARE = 3  # of the number of neighbours: the size of a group, its neighbours included


def maximin_order(X: np.ndarray) -> np.ndarray:
    """Indices of the points (n, d), each as far as possible from all before it (Guinness 2018): (n,). The first is
    the one nearest the centre."""
    from mercer.linalg import ordering_loops

    if len(X) < 2:
        return np.arange(len(X))
    X = np.ascontiguousarray(X, dtype=float)
    centre = 0.5 * (X.min(axis=0) + X.max(axis=0))
    return ordering_loops.maximin(X, int(np.argmin(((X - centre) ** 2).sum(axis=1))), LEAF_POINTS)


def nearest_before(X: np.ndarray, m: int) -> np.ndarray:
    """The m nearest of the points before each point, nearest first: (n, m), -1 where there are fewer."""
    return nearest_of_those_before(X, np.arange(len(X)), m)


def nearest_of_those_before(X: np.ndarray, which: np.ndarray, m: int) -> np.ndarray:
    """As `nearest_before`, of some points alone, which ascend: (s, m)."""
    from scipy.spatial import cKDTree

    found, start = np.full((len(which), min(m, max(len(X) - 1, 0))), -1, dtype=np.int64), 0
    if not found.shape[1]:
        return found
    while start < len(which):
        first = int(which[start])
        stop = int(np.searchsorted(which, max(FIRST_BATCH, BATCH_GROWTH * first)))
        near_last = int(which[stop - 1])
        tree, left = cKDTree(X[: near_last + 1]), np.arange(start, stop)
        asked = min(near_last + 1, int(1.5 * m) + 8)
        while len(left):
            near = np.asarray(tree.query(X[which[left]], k=asked, workers=cores())[1], dtype=np.int64)
            near = near.reshape(len(left), -1)
            earlier = near < which[left][:, None]
            rank = np.cumsum(earlier, axis=1) - 1
            enough = (rank[:, -1] + 1 >= np.minimum(m, which[left])) | (asked == near_last + 1)
            row, column = np.nonzero(earlier & (rank < found.shape[1]) & enough[:, None])
            found[left[row], rank[row, column]] = near[row, column]
            left, asked = left[~enough], min(near_last + 1, 2 * asked)
        start = stop
    return found


def near_and_far(X: np.ndarray, Z: np.ndarray, m: int) -> np.ndarray:
    """Points of X, in maximin order, to predict each of Z from: (s, m).

    Half are the nearest; the others are the nearest of the first eighth of the points and of the first 64th, which
    cover the region more and more coarsely. In a hole, the nearest are all on one side of it.
    """
    from scipy.spatial import cKDTree

    from mercer.linalg import ordering_loops

    n = len(X)
    m = min(m, n)
    if not m or not len(Z) or m == n:
        return np.broadcast_to(np.arange(m), (len(Z), m)).copy()
    found, quotas = [], [m - 2 * (m // COARSE_SHARE), m // COARSE_SHARE, m // COARSE_SHARE]
    for points in (n, n // COARSENING, n // COARSENING**2):
        if points:
            near = cKDTree(X[:points]).query(Z, k=min(m, points), workers=cores())[1]
            found.append(np.asarray(near, dtype=np.int64).reshape(len(Z), -1))
    starts = np.cumsum([0, *(near.shape[1] for near in found)])
    out = np.empty((len(Z), m), dtype=np.int64)
    ordering_loops.distinct(np.concatenate(found, axis=1), starts, np.array(quotas[: len(found)]), out)
    return out


@dataclasses.dataclass(frozen=True, eq=False)
class Sets:
    """Sets of points (G, k), each in ascending order, ``sizes`` (G,) of which count; the rest repeats the last.

    A ``target`` (G, k) is conditioned on all members before it. Every point is a target once.
    """

    members: np.ndarray
    sizes: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, which: slice) -> "Sets":
        return Sets(self.members[which], self.sizes[which], self.target[which])

    @classmethod
    def each(cls, before: np.ndarray, own: np.ndarray | None = None) -> "Sets":
        """A set for each point, all or ``own``: those it is conditioned on (n, m), -1 for none, and itself."""
        own = np.arange(len(before)) if own is None else own
        n = int(own.max(initial=0)) + 1
        members = np.sort(np.column_stack([np.where(before < 0, n, before), own]), axis=1)
        sizes = 1 + (before >= 0).sum(axis=1)
        members = np.where(members == n, own[:, None], members)
        target = np.arange(members.shape[1]) == sizes[:, None] - 1
        return cls(members, sizes, target)

    @classmethod
    def grouped(cls, before: np.ndarray) -> "Sets":
        """Fewer sets: points that share most of those they are conditioned on, together. A point is then conditioned
        on all earlier members of its set, more than its own, at less work."""
        from mercer.linalg import ordering_loops

        each = cls.each(before)
        most = MAX_GROUP_SHARE * before.shape[1] + 1
        group = ordering_loops.groups(each.members, each.sizes, before, most)
        order = np.argsort(group, kind="stable")
        n, counts = len(before), np.arange(each.members.shape[1]) < each.sizes[order][:, None]
        flat, owner = each.members[order][counts], np.repeat(group[order], each.sizes[order])
        pairs = np.unique(owner * n + flat)
        owner, flat = pairs // n, pairs % n
        number = np.unique(owner, return_inverse=True)[1]
        sizes = np.bincount(number)
        offset = np.arange(len(flat)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        width = int(sizes.max(initial=0))
        last = flat[np.cumsum(sizes) - 1]
        members = np.repeat(last[:, None], width, axis=1)
        members[number, offset] = flat
        target = np.zeros(members.shape, bool)
        target[number, offset] = group[flat] == owner
        return cls(members, sizes, target)
