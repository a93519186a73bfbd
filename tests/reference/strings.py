"""Kernels on sequences, by enumeration of words, subsequences and positions."""

import functools
import itertools
from collections import Counter

import numpy as np


def gram(similarity, X, Z=None):
    """Matrix of a function of two sequences."""
    return np.array([[similarity(x, z) for z in (X if Z is None else Z)] for x in X])


def words(x, length):
    return [tuple(x[i : i + length]) for i in range(len(x) - length + 1)]


def scalar_product(a, b):
    return float(sum(value * b[key] for key, value in a.items() if key in b))


def spectrum(x, z, length):
    return scalar_product(Counter(words(x, length)), Counter(words(z, length)))


@functools.cache
def mismatch_features(x, length, mismatches, alphabet):
    """One count for every word over the alphabet: how many words of x differ from it in few letters."""
    return np.array([
        sum(sum(a != b for a, b in zip(word, own, strict=True)) <= mismatches for own in words(x, length))
        for word in itertools.product(alphabet, repeat=length)
    ], dtype=float)  # fmt: skip


def mismatch(x, z, length, mismatches, alphabet):
    a, b = (mismatch_features(tuple(y), length, mismatches, alphabet) for y in (x, z))
    return float(a @ b)


@functools.cache
def subsequence_features(x, length, decay):
    """All index sets, contiguous or not, with the span from the first to the last."""
    found = Counter()
    for places in itertools.combinations(range(len(x)), length):
        found[tuple(x[i] for i in places)] += decay ** (places[-1] - places[0] + 1)
    return found


def subsequence(x, z, length, decay):
    return scalar_product(*(subsequence_features(tuple(y), length, decay) for y in (x, z)))


def subsequences_up_to(x, z, length, decay):
    return sum(subsequence(x, z, q, decay) for q in range(1, length + 1))


def weighted_degree(x, z, length):
    total = 0.0
    for d in range(1, length + 1):
        agree = sum(x[i : i + d] == z[i : i + d] for i in range(len(x) - d + 1))
        total += 2 * (length - d + 1) / (length * (length + 1)) * agree
    return total
