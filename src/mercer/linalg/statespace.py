"""Linear algebra of covariances with states, in O(n): see `state_loops` for the recursion.

Rows are in order of time. They are taken in pieces, so that no more than the pieces' boundaries is kept of n rows, if
memory is short: what is between them is computed again from there.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mercer.core import machine
from mercer.core.growing import appended

PIECE_VALUES = 1 << 18  # entries of S in a piece
MIN_PIECE, MAX_PIECE = 64, 8192  # rows


class Matrices(NamedTuple):
    """A (n, K), left (n, m) and right (n, m) of some rows."""

    A: np.ndarray
    left: np.ndarray
    right: np.ndarray


class Chain(NamedTuple):
    """Rows in order of time: ``matrices`` gives those of times and the gaps before them, ``sizes`` are the blocks'."""

    sizes: np.ndarray
    matrices: Callable[[np.ndarray, np.ndarray], Matrices]
    piece: int

    @property
    def m(self) -> int:
        return int(self.sizes.sum())


def piece_rows(states: int, n: int) -> int:
    """Rows of a piece: a power of two, so that few programs are compiled."""
    size = min(MAX_PIECE, max(MIN_PIECE, PIECE_VALUES // max(states, 1) ** 2))
    size = 1 << (size.bit_length() - 1)
    return min(size, max(MIN_PIECE, 1 << max(n - 1, 0).bit_length()))


def gaps_of(t: np.ndarray, before: float | None = None) -> np.ndarray:
    """Gap before each of the times; that of the first is zero, unless there is a time ``before``."""
    return np.diff(t, prepend=t[:1] if before is None else before)


class Start(NamedTuple):
    """T (m, m) and b (m, q) after a row."""

    T: np.ndarray
    b: np.ndarray

    @classmethod
    def zero(cls, m: int, q: int) -> "Start":
        return cls(np.zeros((m, m)), np.zeros((m, q)))

    def copy(self) -> "Start":
        return Start(self.T.copy(), self.b.copy())


@dataclasses.dataclass
class Piece:
    """What `forward` computes of some rows, and where it started."""

    rows: slice
    start: Start
    matrices: Matrices
    e: np.ndarray
    Z: np.ndarray
    G: np.ndarray
    S: np.ndarray
    c: np.ndarray


class NotPositive(Exception):
    """The covariance is not positive definite to rounding."""


def loops() -> Any:
    from mercer.linalg import state_loops  # Numba takes a second to load

    return state_loops


def run(
    chain: Chain, t: np.ndarray, gaps: np.ndarray, noise: np.ndarray, Y: np.ndarray, start: Start, rows: slice,
    keep: bool, least: float = 0.0, matrices: Matrices | None = None,
) -> tuple[Piece, Start, float]:  # fmt: skip
    """One piece: what was computed, the start of the next, and the log determinant. Raises `NotPositive`."""
    found = chain.matrices(t[rows], gaps[rows]) if matrices is None else matrices
    n, m, q = len(t[rows]), chain.m, Y.shape[1]
    e, Z, kept = np.empty(n), np.empty((n, q)), n if keep else 0
    G, S, c = np.empty((kept, m)), np.empty((kept, m, m)), np.empty((kept, m, q))
    last = start.copy()
    blocks = list(chain.sizes)
    if not keep and least >= 0 and blocks in ([2], [2, 2]):
        forward = loops().forward_two if blocks == [2] else loops().forward_two_twice
        log_det, failed = forward(*found, noise[rows], Y[rows], last.T, last.b, least, e, Z)
    else:
        log_det, failed = loops().forward(
            chain.sizes, *found, noise[rows], Y[rows], last.T, last.b, least, e, Z, G, S, c
        )
    if failed >= 0:
        raise NotPositive(f"at row {rows.start + failed}")
    return Piece(rows, start, found, e, Z, G, S, c), last, log_det


def pieces(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


class Factor:
    """C = L D L^T of rows in order of time, with right-hand sides Y (n, q).

    Has the log determinant, ``gram`` = Y^T C^-1 Y (q, q), the ``starts`` of all pieces and the state after the ``last``
    row, from which `extended` goes on.
    """

    def __init__(
        self, chain: Chain, t: np.ndarray, noise: np.ndarray, Y: np.ndarray, keep: bool = False, least: float = 0.0
    ) -> None:
        self.chain, self.t, self.noise, self.Y, self.least = chain, t, noise, Y, least
        n, m, q = len(t), chain.m, Y.shape[1]
        self.gaps = gaps_of(t)
        self.rows = pieces(n, chain.piece)
        self.starts = [Start.zero(m, q)]
        self.log_det, self.gram = 0.0, np.zeros((q, q))
        self.smallest, self.largest = np.inf, 0.0  # entries of D
        sizes = m * m + m * (3 + q) + int((chain.sizes**2).sum()) + q + 1
        self.kept: list[Piece | None] = []
        self._go(self.rows, keep and 8 * n * sizes <= machine.STATES_BYTES)

    def _go(self, rows: list[slice], keep: bool) -> None:
        for part in rows:
            piece, last, log_det = run(
                self.chain, self.t, self.gaps, self.noise, self.Y, self.starts[-1], part, keep, self.least
            )
            self.starts.append(last)
            self.log_det += log_det
            self.gram += (piece.Z / piece.e[:, None]).T @ piece.Z
            self.smallest = min(self.smallest, float(piece.e.min(initial=np.inf)))
            self.largest = max(self.largest, float(piece.e.max(initial=0.0)))
            self.kept.append(piece if keep else None)

    def extended(self, t: np.ndarray, noise: np.ndarray, Y: np.ndarray) -> "Factor":
        """Of further rows, none earlier than the last, in O(1) each."""
        new = object.__new__(Factor)
        new.__dict__.update(self.__dict__)
        new.t, new.noise, new.Y = appended(self.t, t), appended(self.noise, noise), appended(self.Y, Y)
        new.gaps = appended(self.gaps, gaps_of(t, self.t[-1]))
        n, size = len(self.t), self.chain.piece
        new.rows, new.starts, new.kept = list(self.rows), list(self.starts), list(self.kept)
        new.gram = self.gram.copy()
        tail = self.rows[-1]
        within = min(len(t), size - (tail.stop - tail.start))
        if within > 0:  # the last piece grows, lest there be one for each call
            new._go([slice(n, n + within)], keep=False)
            new.rows[-1], new.kept[-2:] = slice(tail.start, n + within), [None]
            del new.starts[-2]
        added = [slice(n + within + i.start, n + within + i.stop) for i in pieces(len(t) - within, size)]
        new.rows += added
        new._go(added, keep=False)
        return new

    def piece(self, i: int) -> Piece:
        """With all that was computed, again if it was not kept."""
        found = self.kept[i]
        if found is not None:
            return found
        args = self.chain, self.t, self.gaps, self.noise, self.Y, self.starts[i], self.rows[i]
        return run(*args, keep=True, least=self.least)[0]

    def slopes(
        self, mix: np.ndarray, pull: Callable[[np.ndarray, np.ndarray, Matrices], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of -1/2 (ln|C| + sum_k y_k^T C^-1 y_k), y_k the columns of Y mix: in the noise (n,), and in these
        columns (n, k), which are -C^-1 y_k. ``pull`` is given times, gaps and derivatives in the matrices."""
        n, m, q = len(self.t), self.chain.m, mix.shape[1]
        T_bar, b_bar = np.zeros((m, m)), np.zeros((m, q))
        noise_bar, Y_bar = np.empty(n), np.empty((n, q))
        for i in reversed(range(len(self.rows))):
            piece = self.piece(i)
            bars = Matrices(*(np.empty_like(part) for part in piece.matrices))
            loops().reverse(
                self.chain.sizes, *piece.matrices, piece.G, piece.S, piece.c @ mix, piece.e, piece.Z @ mix,
                piece.start.T, piece.start.b @ mix, T_bar, b_bar, *bars, noise_bar[piece.rows], Y_bar[piece.rows],
            )  # fmt: skip
            pull(self.t[piece.rows], self.gaps[piece.rows], bars)
        return noise_bar, Y_bar

    def backward(self) -> "Backward":
        """C^-1 Y, the diagonal of C^-1, and the smoother's states before every piece."""
        n, m, q = len(self.t), self.chain.m, self.Y.shape[1]
        N, f = np.zeros((m, m)), np.zeros((m, q))
        a, diagonal, ends = np.empty((n, q)), np.empty(n), [(N.copy(), f.copy())]
        nothing = np.empty((0, m, m)), np.empty((0, m, q))
        for i in reversed(range(len(self.rows))):
            piece = self.piece(i)
            loops().backward(
                self.chain.sizes, piece.matrices.A, piece.matrices.left, piece.G, piece.e, piece.Z, N, f, False,
                a[piece.rows], diagonal[piece.rows], *nothing,
            )  # fmt: skip
            ends.append((N.copy(), f.copy()))  # at the first row, which its A^T leads on from
            if i > 0:
                N, f = led_back(self.chain.sizes, piece.matrices.A[0], N, f)
        return Backward(a, diagonal, ends[::-1])

    def times(self, V: np.ndarray) -> np.ndarray:
        """C V: (n, q)."""
        m, out, x = self.chain.m, self.noise[:, None] * V, np.zeros((self.chain.m, V.shape[1]))
        for part in self.rows:
            A, left, right = self.chain.matrices(self.t[part], self.gaps[part])
            out[part] += np.einsum("ij,ij->i", left, right)[:, None] * V[part]
            loops().multiply(self.chain.sizes, A, left, right, V[part], x, out[part])
        x = np.zeros((m, V.shape[1]))
        for part in reversed(self.rows):
            A, left, right = self.chain.matrices(self.t[part], self.gaps[part])
            loops().multiply_transposed(self.chain.sizes, A, left, right, V[part], x, out[part])
            x = blocks_transposed(self.chain.sizes, A[0], x)
        return out


class Backward(NamedTuple):
    """``a`` = C^-1 Y (n, q), the ``diagonal`` of C^-1, and (N, f) at the first row of every piece and after all."""

    a: np.ndarray
    diagonal: np.ndarray
    ends: list[tuple[np.ndarray, np.ndarray]]


def dense_blocks(sizes: np.ndarray, A: np.ndarray) -> np.ndarray:
    """A (m, m) from its blocks."""
    out, o, p = np.zeros((sizes.sum(), sizes.sum())), 0, 0
    for b in sizes:
        out[o : o + b, o : o + b] = A[p : p + b * b].reshape(b, b)
        o, p = o + b, p + b * b
    return out


def blocks_transposed(sizes: np.ndarray, A: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A^T x."""
    return dense_blocks(sizes, A).T @ x


def led_back(sizes: np.ndarray, A: np.ndarray, N: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """N and f before a gap, from those after it."""
    full = dense_blocks(sizes, A)
    return np.ascontiguousarray(full.T @ N @ full), np.ascontiguousarray(full.T @ f)


# -- new times -----------------------------------------------------------------------------------------------------


class Between(NamedTuple):
    """Some rows with new times among them: where these are, what `forward` computed at all of them, and the smoother's
    N (n, m, m) and f (n, m, q), as of after each."""

    new: np.ndarray  # mask
    which: np.ndarray  # numbers of the new times
    piece: Piece
    N: np.ndarray
    f: np.ndarray


def among(factor: Factor, back: Backward | None, z: np.ndarray, through: bool = False) -> Iterator[Between]:
    """New times z, in order, among the rows, piece by piece. Without ``back``, all are after the last row. ``through``:
    also the pieces between the first and the last that have none."""
    chain, q = factor.chain, factor.Y.shape[1]
    last = len(factor.rows) - 1
    # Between two pieces, times belong to the later one, so that each ends with a row, from which the next goes on.
    where = np.minimum(np.searchsorted([factor.t[part.stop - 1] for part in factor.rows], z), last)
    for i in range(where[0], where[-1] + 1) if through and len(z) else np.unique(where):
        own, rows = np.flatnonzero(where == i), factor.rows[i]
        start, before, ahead = factor.starts[i], factor.t[rows.start - 1] if i else None, None
        t, noise, Y = factor.t[rows], factor.noise[rows], factor.Y[rows]
        if back is None:  # rows before are known by the last state
            t, noise, Y, start, before = t[:0], noise[:0], Y[:0], factor.starts[-1], factor.t[-1]
        elif i < last:
            ahead = factor.t[factor.rows[i + 1].start], *back.ends[i + 1]
        everything = np.concatenate([t, z[own]])
        order = np.argsort(everything, kind="stable")  # a new time after the rows of the same
        is_new = order >= len(t)
        noise = np.concatenate([noise, np.full(len(own), np.inf)])[order]
        Y = np.concatenate([Y, np.zeros((len(own), q))])[order]
        numbers = np.concatenate([np.full(len(t), -1), own])[order]
        yield from _smoothed(chain, everything[order], noise, Y, start, before, ahead, is_new, numbers, factor.least)


def _smoothed(
    chain: Chain, t: np.ndarray, noise: np.ndarray, Y: np.ndarray, start: Start, before: float | None,
    ahead: tuple[Any, ...] | None, is_new: np.ndarray, numbers: np.ndarray, least: float,
) -> Iterator[Between]:  # fmt: skip
    """In order of time, although the smoother runs backwards: it keeps its state before every piece."""
    gaps, rows, starts = gaps_of(t, before), pieces(len(t), chain.piece), [start]
    for part in rows[:-1]:
        starts.append(run(chain, t, gaps, noise, Y, starts[-1], part, False, least)[1])
    m, q = chain.m, Y.shape[1]
    N, f = np.zeros((m, m)), np.zeros((m, q))
    if ahead is not None:
        gap = np.array([ahead[0] - t[-1]])
        N, f = led_back(chain.sizes, chain.matrices(np.array([ahead[0]]), gap).A[0], ahead[1], ahead[2])
    ends: list[tuple[np.ndarray, np.ndarray]] = [(N.copy(), f.copy())]
    for i in reversed(range(1, len(rows))):
        piece = run(chain, t, gaps, noise, Y, starts[i], rows[i], True, least)[0]
        _back(chain, piece, N, f, keeps=False)
        N, f = led_back(chain.sizes, piece.matrices.A[0], N, f)
        ends.append((N.copy(), f.copy()))
    ends.reverse()
    for i, part in enumerate(rows):
        piece = run(chain, t, gaps, noise, Y, starts[i], part, True, least)[0]
        N, f = ends[i]
        Ns, fs = _back(chain, piece, N.copy(), f.copy(), keeps=True)
        yield Between(is_new[part], numbers[part][is_new[part]], piece, Ns, fs)


def _back(chain: Chain, piece: Piece, N: np.ndarray, f: np.ndarray, keeps: bool) -> tuple[np.ndarray, np.ndarray]:
    n, m, q = len(piece.e), chain.m, f.shape[1]
    Ns, fs = np.empty((n if keeps else 0, m, m)), np.empty((n if keeps else 0, m, q))
    matrices = piece.matrices
    loops().backward(
        chain.sizes, matrices.A, matrices.left, piece.G, piece.e, piece.Z, N, f, keeps, np.empty((n, q)), np.empty(n),
        Ns, fs,
    )  # fmt: skip
    return Ns, fs
