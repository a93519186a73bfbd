"""Words with mismatches: those near a given word, and how many are near two of them."""

import functools
from typing import Any

import numpy as np

from mercer.kernels.evaluate import Collection


class WordLists(Collection):
    """Distinct words of each row: counts (n, M), and the words as numbers of letters (M, length)."""

    def __init__(self, matrix: Any, words: np.ndarray) -> None:
        self.matrix, self.words = matrix, words

    def __len__(self) -> int:
        return self.matrix.shape[0]

    def __getitem__(self, which: Any) -> "WordLists":
        return WordLists(self.matrix[which], self.words)

    @functools.cached_property
    def letters(self) -> np.ndarray:
        """Words of all rows, one after the other: (number of stored counts, length)."""
        return self.words[self.matrix.indices]


def near_words(words: np.ndarray, size: int, mismatches: int) -> tuple[np.ndarray, np.ndarray]:
    """All words over an alphabet within some mismatches of given ones (M, length): indices of the latter, and the
    former as numbers in base ``size``. Grows them letter by letter."""
    origins, numbers = np.arange(len(words)), np.zeros(len(words), dtype=np.int64)
    missed = np.zeros(len(words), dtype=np.int64)
    for position in range(words.shape[1]):
        own = words[origins, position]
        same = np.flatnonzero(own >= 0)
        other = np.repeat(np.flatnonzero(missed < mismatches), size)
        letters = np.tile(np.arange(size), len(other) // max(size, 1))
        differ = letters != own[other]
        other, letters = other[differ], letters[differ]
        origins, missed, numbers = (
            np.concatenate([origins[same], origins[other]]),
            np.concatenate([missed[same], missed[other] + 1]),
            np.concatenate([numbers[same] * size + own[same], numbers[other] * size + letters]),
        )
    return origins, numbers


@functools.lru_cache(maxsize=32)
def shared_words(length: int, mismatches: int, size: int) -> np.ndarray:
    """Number of words over an alphabet of ``size`` letters within the mismatches of two words a and b, by the number of
    positions at which a and b differ, only a, only b, or both are outside the alphabet.

    At each position the letter of a shared word is a mismatch for a, b, both or none; how many letters do which depends
    on the position's kind. Polynomials in (mismatches of a, mismatches of b) multiply over positions.
    """

    def polynomial(none: float, of_a: float, of_b: float, of_both: float) -> np.ndarray:
        out = np.zeros((mismatches + 1, mismatches + 1))
        out[:2, :2] = np.array([[none, of_b], [of_a, of_both]])[: mismatches + 1, : mismatches + 1]
        return out

    def times(P: np.ndarray, Q: np.ndarray) -> np.ndarray:
        out = np.zeros_like(P)
        for i, j in np.argwhere(Q):
            out[i:, j:] += Q[i, j] * P[: len(P) - i, : len(P) - j]
        return out

    kinds = [
        polynomial(0, 1, 1, max(size - 2, 0)),  # a and b differ: the letter of b, that of a, or another one
        polynomial(0, 1, 0, max(size - 1, 0)),  # a outside: the letter of b, or another one
        polynomial(0, 0, 1, max(size - 1, 0)),  # b outside
        polynomial(0, 0, 0, size),  # both outside
    ]
    equal = polynomial(1, 0, 0, max(size - 1, 0))
    shape = 2 * mismatches + 1, *(mismatches + 1,) * 3
    table = np.zeros(shape)
    for counts in np.ndindex(*shape):
        if sum(counts) > length:
            continue
        product = np.zeros((mismatches + 1, mismatches + 1))
        product[0, 0] = 1.0
        for kind, count in zip([*kinds, equal], [*counts, length - sum(counts)], strict=True):
            for _ in range(count):
                product = times(product, kind)
        table[counts] = product.sum()
    return table
