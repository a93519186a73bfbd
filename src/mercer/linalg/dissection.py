"""Cholesky factor of a sparse precision matrix, by nested dissection of the region (George 1973; Duff and Reid 1983).

The matrix is P = diag(S) + sum_i v_i v_i^T / d_i, where v_i is zero outside a small set of points: Vecchia's precision,
plus sites. The region is halved again and again; points of one half whose sets reach into the other separate the two,
and are eliminated after both. A node of the tree of halves has a dense front: the points that it eliminates, and those
above it that they are joined to. Every set lies in the front of the first of its points to be eliminated, so that the
inverse of P is found there too.
"""

import dataclasses
import functools
from types import ModuleType

import numpy as np

from mercer.linalg import backend

LEAF_POINTS = 96  # points that are not halved


@dataclasses.dataclass(eq=False)
class Front:
    """``points``: ``own`` to be eliminated, then those above that they are joined to, in ascending order of ``place``.
    ``sets``: numbers of the sets that are added here, and ``local`` (h, m) their points' places in ``points``, -1 for
    none. ``children``: numbers of the fronts below, and where the rest of their points lie in this one."""

    points: np.ndarray
    own: int
    sets: np.ndarray
    local: np.ndarray
    children: list[tuple[int, np.ndarray]]


class Dissection:
    """The fronts of n points in d dimensions, for sets ``members`` (n, m), -1 for none. In every order children come
    before parents."""

    def __init__(self, points: np.ndarray, members: np.ndarray) -> None:
        self.n, self.fronts = len(points), list[Front]()
        self._points, self._members = points, members
        self._side, self._local = np.zeros(self.n + 1, np.int8), np.full(self.n + 1, -1)
        self._place = np.zeros(self.n, np.int64)
        if self.n:
            self._halve(np.arange(self.n), np.arange(len(members)))
        del self._points, self._members, self._side, self._local, self._place

    def _halve(self, inside: np.ndarray, sets: np.ndarray) -> int:
        """Fronts of the points ``inside``, joined by these sets: the number of the last."""
        if len(inside) <= LEAF_POINTS:
            return self._front(inside, sets, [])
        points = self._points[inside]
        axis = int(np.argmax(np.ptp(points, axis=0)))
        order = np.argsort(points[:, axis], kind="stable")
        half = len(inside) // 2
        parts = [inside[order[:half]], inside[order[half:]]]
        for number, part in enumerate(parts, start=1):
            self._side[part] = number
        members = self._members[sets]
        sides = self._side[members]  # the last entry, of -1, is none
        across = (sides == 1).any(axis=1) & (sides == 2).any(axis=1)
        edges = [np.unique(members[across][sides[across] == number]) for number in (1, 2)]
        edge = min(edges, key=len)
        if len(edge) > 0.5 * len(inside):
            self._side[inside] = 0
            return self._front(inside, sets, [])
        self._side[edge] = 0
        sides = self._side[members]
        below = [(part[self._side[part] == number], sets[(sides == number).any(axis=1)])
                 for number, part in enumerate(parts, start=1)]  # fmt: skip
        own = sets[~sides.any(axis=1)]
        self._side[inside] = 0
        return self._front(edge, own, [self._halve(*part) for part in below if len(part[0])])

    def _front(self, own: np.ndarray, sets: np.ndarray, children: list[int]) -> int:
        members = self._members[sets]
        joined = [members[members >= 0], *(self.fronts[child].points[self.fronts[child].own :] for child in children)]
        above = np.setdiff1d(np.concatenate(joined), own)
        points = np.concatenate([own, above])
        self._local[points] = np.arange(len(points))
        local = self._local[members]
        rest = [self._local[self.fronts[child].points[self.fronts[child].own :]] for child in children]
        self._local[points] = -1
        self.fronts.append(Front(points, len(own), sets, local, list(zip(children, rest, strict=True))))
        return len(self.fronts) - 1

    def factor(self, vectors: np.ndarray, variance: np.ndarray, S: np.ndarray) -> "DissectedFactor | None":
        """Of diag(S) + sum_i v_i v_i^T / d_i, for ``vectors`` (n, m) on the members and ``variance`` d (n,). None if it
        is not positive definite."""
        lower: list[np.ndarray] = []
        across: list[np.ndarray] = []
        left: dict[int, np.ndarray] = {}
        for i, front in enumerate(self.fronts):
            k, p = len(front.points), front.own
            F = np.zeros((k, k), order="F")
            np.fill_diagonal(F[:p, :p], S[front.points[:p]])
            _loops().add_sets(F, front.local, vectors, variance, front.sets)
            for child, rest in front.children:
                _loops().add_front(F, left.pop(child), rest)
            L = np.asfortranarray(F[:p, :p])
            if not backend.factor(L, clean=True):
                return None
            X = backend.half_solve(L, np.asfortranarray(F[p:, :p].T), in_place=True)
            rest_of = np.asfortranarray(F[p:, p:])
            if k > p:
                backend.subtract_gram(rest_of, X)
                left[i] = rest_of
            lower.append(L)
            across.append(X)
        return DissectedFactor(self, lower, across, vectors)


@dataclasses.dataclass(frozen=True, eq=False)
class DissectedFactor:
    """Of every front the factor L of what it eliminates, and X = L^-1 times what is above."""

    tree: Dissection
    lower: list[np.ndarray]
    across: list[np.ndarray]
    vectors: np.ndarray

    def log_det(self) -> float:
        """ln |P|."""
        return 2 * float(sum(np.log(np.diag(L)).sum() for L in self.lower))

    def solve(self, b: np.ndarray) -> np.ndarray:
        """P^-1 b: (n,)."""
        x = np.array(b, dtype=float)
        for front, L, X in zip(self.tree.fronts, self.lower, self.across, strict=True):
            own, above = front.points[: front.own], front.points[front.own :]
            x[own] = backend.half_solve(L, x[own])
            x[above] -= X.T @ x[own]
        for front, L, X in zip(self.tree.fronts[::-1], self.lower[::-1], self.across[::-1], strict=True):
            own, above = front.points[: front.own], front.points[front.own :]
            x[own] = backend.half_solve(L, x[own] - X @ x[above], transposed=True)
        return x

    def inverse(self, along: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        """Diagonal of P^-1, (n,); and if asked for, P^-1 v_i on the members of every set, (n, m)."""
        diagonal = np.empty(self.tree.n)
        found = np.zeros(self.vectors.shape) if along else None
        given: dict[int, np.ndarray] = {}
        for i in range(len(self.lower) - 1, -1, -1):
            front, L, p = self.tree.fronts[i], self.lower[i].copy(order="F"), self.tree.fronts[i].own
            k = len(front.points)
            F = np.zeros((k, k), order="F")
            above = given.pop(i, np.zeros((0, 0)))
            U = backend.half_solve(L, self.across[i], transposed=True) if k > p else np.zeros((p, 0))
            backend.invert(L)
            F[:p, :p] = np.tril(L) + np.tril(L, -1).T
            if k > p:
                F[p:, p:], F[:p, p:] = above, -U @ above
                F[p:, :p] = F[:p, p:].T
                F[:p, :p] -= F[:p, p:] @ U.T
            diagonal[front.points[:p]] = np.diag(F)[:p]
            if found is not None:
                _loops().along_sets(F, front.local, self.vectors, front.sets, found)
            for child, rest in front.children:
                given[child] = F[np.ix_(rest, rest)]
        return diagonal, found


@functools.cache
def _loops() -> ModuleType:
    from mercer.linalg import dissection_loops  # takes a while to import

    return dissection_loops
