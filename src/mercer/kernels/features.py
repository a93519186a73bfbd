"""Explicit features of products and powers of kernels."""

import itertools
import math

import jax
import numpy as np

from mercer.core.errors import InfiniteFeaturesError

MAX_FEATURES = 1_000_000


def products(P: jax.Array, Q: jax.Array) -> jax.Array:
    """Features of a product of kernels: all products of a column of P with one of Q (PRML 6.18). (n, Mp Mq)."""
    _refuse_too_many(P.shape[1] * Q.shape[1])
    return (P[:, :, None] * Q[:, None, :]).reshape(P.shape[0], -1)


def symmetric_power(P: jax.Array, degree: int) -> jax.Array:
    """Features of a power of a kernel with features P: monomials weighted as in (PRML 6.12).

    (sum_i p_i q_i)^M = sum over exponents e of M!/(e1! e2! ...) p^e q^e, so each monomial is multiplied by the square
    root of its multinomial coefficient. C(M_P + degree - 1, degree) columns instead of M_P^degree.

    >>> symmetric_power(np.array([[1.0, 2.0]]), 2).round(3)  # x1^2, sqrt(2) x1 x2, x2^2
    array([[1.   , 2.828, 4.   ]])
    """
    M = P.shape[1]
    _refuse_too_many(math.comb(M + degree - 1, degree))
    combinations = np.array(list(itertools.combinations_with_replacement(range(M), degree)), dtype=int)
    # The multinomial coefficient from run lengths: combinations are sorted, so equal indices are adjacent. It is the
    # product of (t + 1) / run over t, accumulated factor by factor because a factorial may overflow.
    run = np.ones(len(combinations))
    out = P[:, combinations[:, 0]]
    for t in range(1, degree):
        run = np.where(combinations[:, t] == combinations[:, t - 1], run + 1, 1)
        out = out * P[:, combinations[:, t]] * np.sqrt((t + 1) / run)
    return out


def _refuse_too_many(count: int) -> None:
    if count > MAX_FEATURES:
        raise InfiniteFeaturesError(
            f"the feature space is finite but has {count:,} dimensions, more than the limit of {MAX_FEATURES:,} "
            "for explicit features; use the kernel itself."
        )
