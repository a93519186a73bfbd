"""Products with a covariance with states, derivatives of quadratic forms in it, and posterior variances of its rows:
what inference with Gaussian sites needs beside `statespace.Factor`. All in O(n)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.linalg.statespace import Chain, Factor, Matrices, _back, blocks_transposed, gaps_of, led_back, loops, pieces

Pull = Callable[[np.ndarray, np.ndarray, Matrices], None]


def pair_loops() -> Any:
    from mercer.linalg import state_pair_loops  # Numba takes a second to load

    return state_pair_loops


def times(chain: Chain, t: np.ndarray, V: np.ndarray) -> np.ndarray:
    """K V (n, q), without any noise, for rows in order of time."""
    gaps, rows, m = gaps_of(t), pieces(len(t), chain.piece), chain.m
    out, x = np.zeros_like(V), np.zeros((m, V.shape[1]))
    for part in rows:
        A, left, right = chain.matrices(t[part], gaps[part])
        out[part] += np.einsum("ij,ij->i", left, right)[:, None] * V[part]
        loops().multiply(chain.sizes, A, left, right, V[part], x, out[part])
    x = np.zeros_like(x)
    for part in reversed(rows):
        A, left, right = chain.matrices(t[part], gaps[part])
        loops().multiply_transposed(chain.sizes, A, left, right, V[part], x, out[part])
        x = blocks_transposed(chain.sizes, A[0], x)
    return out


def quadratic_slopes(chain: Chain, t: np.ndarray, V: np.ndarray, W: np.ndarray, d: np.ndarray, pull: Pull) -> None:
    """Give ``pull`` times, gaps, and derivatives in the matrices of sum_k W_k^T K' V_k + sum_i d_i K_ii, K' the
    strictly lower triangle of K."""
    gaps, rows, m = gaps_of(t), pieces(len(t), chain.piece), chain.m
    after, starts = np.zeros((m, V.shape[1])), []

    def states(part: slice, found: Matrices) -> np.ndarray:
        xs = np.empty((part.stop - part.start, *after.shape))
        pair_loops().states(chain.sizes, found.A, found.right, V[part], after, xs)
        return xs

    for part in rows:
        starts.append(after.copy())
        states(part, chain.matrices(t[part], gaps[part]))
    bar = np.zeros_like(after)
    for part, before in zip(reversed(rows), reversed(starts), strict=True):
        found = chain.matrices(t[part], gaps[part])
        after[:] = before
        xs = states(part, found)
        bars = Matrices(*(np.empty(each.shape) for each in found))
        pair_loops().reverse(chain.sizes, *found, V[part], W[part], d[part], before, xs, bar, *bars)
        pull(t[part], gaps[part], bars)


def site_variances(factor: Factor, S: np.ndarray, own: float) -> np.ndarray:
    """Variance of f on every row given sites of precisions S, which are ``factor``'s noise less ``own``, the variance
    of f that no other row shares: (n,).

    The filter gives f the variance p before and p / (1 + S p) after its own site. The information of later rows on the
    state, N, takes g^T N g / (1 + S p)^2 from that: no small difference of large numbers, whether the site is
    strong or weak.
    """
    chain = factor.chain
    N, f, out = np.zeros((chain.m, chain.m)), np.zeros((chain.m, 0)), np.empty(len(factor.t))
    for i in reversed(range(len(factor.rows))):
        piece = factor.piece(i)
        Ns, _ = _back(chain, piece, N, f, keeps=True)
        p = np.maximum(np.einsum("ij,ij->i", piece.matrices.left, piece.G), 0.0) + own
        told = np.einsum("ij,ijk,ik->i", piece.G, Ns, piece.G)
        share = 1 / (1 + S[piece.rows] * p)
        out[piece.rows] = p * share - told * share**2
        if i > 0:
            N, f = led_back(chain.sizes, piece.matrices.A[0], N, f)
    return out
