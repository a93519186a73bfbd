"""Kernels on sequences: strings, bytes, or lists and tuples of tokens, any hashable objects.

A string is the sequence of its characters, so "abc" and ["a", "b", "c"] are the same; bytes are integers. A sequence
without the words that a kernel counts, such as the empty one, has zero similarity to all, itself included.
"""

import dataclasses
import functools
import math
import operator
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from mercer.core.errors import DataError, InfiniteFeaturesError, ObjectError, ParameterError
from mercer.core.inputs import Inputs, Rows
from mercer.core.machine import require_memory
from mercer.core.parameters import Positive, constraints, evolve, show
from mercer.core.precision import Array
from mercer.kernels.base import Kernel
from mercer.kernels.evaluate import HostRows
from mercer.kernels.structured.mismatches import WordLists, near_words, shared_words
from mercer.kernels.structured.rows import CountKernel, Counts, Vocabulary, differentiable, objects_of
from mercer.kernels.structured.sequences import MAX_NUMBER, Sequences, ordered
from mercer.kernels.validity import Validity, proved

MAX_NEIGHBOURS = 512  # words within the mismatches of one word, to be written out
MAX_COUNTED = 2**31 - 1  # in 32-bit integers


def _whole_number(value: Any) -> int:
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ParameterError(f"a number of letters must be an integer; got {value!r}.") from None


def _alphabet(letters: Any) -> Any:
    """A string of characters, or a tuple of other tokens; each once."""
    if letters is None:
        return None
    try:
        letters = tuple(ordered(letters) if isinstance(letters, set | frozenset) else dict.fromkeys(letters))
    except TypeError:
        raise ParameterError(
            f"an alphabet must be a string of its letters, or a list of tokens; got {letters!r}."
        ) from None
    is_text = all(isinstance(letter, str) and len(letter) == 1 for letter in letters)
    return "".join(letters) if is_text else letters


def _check_length(kernel: Any) -> None:
    if kernel.length < 1:
        raise ParameterError(f"{type(kernel).__name__}.length must be at least 1; got {kernel.length}.")


def _shown(kernel: Kernel) -> str:
    """Expression of a kernel: its parameters, and the settings that differ from their defaults."""
    parameters, shown = constraints(type(kernel)), []
    for field in sorted(dataclasses.fields(kernel), key=lambda field: field.name == "name"):
        value = getattr(kernel, field.name)
        if field.name in parameters or (
            field.repr and (field.default is dataclasses.MISSING or value != field.default)
        ):
            shown.append(f"{field.name}={show(value)}")
    return f"{type(kernel).__name__}({', '.join(shown)})"


# -- words of consecutive letters --------------------------------------------------------------------------------------


class Spectrum(CountKernel):
    """Scalar product of the counts of all words of ``length`` consecutive letters (Leslie, Eskin and Noble 2002).

    With ``mismatches`` m, every word of the sequence counts for all words over the alphabet that differ from it in at
    most m letters (Leslie et al. 2004). The alphabet is a string of letters or a list of tokens; if none is given, it
    is that of the training rows (`fit`), and `repr` shows it. A letter outside the alphabet differs from every letter
    of every word: it is a mismatch wherever it stands, and without mismatches, words with it do not count. (Without
    mismatches and without a given alphabet, all words count.)

    Cost: O(N log N) for N letters in all, and a sparse matrix product. Words within m mismatches are enumerated if a
    word has at most 512 of them; if more, there are no explicit features, and each pair of words contributes the number
    of words near both, O(length) per pair.

    >>> Spectrum(2)(["abab", "bab", "cc"])
    array([[5., 3., 0.],
           [3., 2., 0.],
           [0., 0., 1.]])
    >>> Spectrum(2, mismatches=1).fit(["abab", "c"])
    Spectrum(length=2, mismatches=1, alphabet='abc')
    """

    length: int = eqx.field(static=True, converter=_whole_number)
    mismatches: int = eqx.field(default=0, static=True, converter=_whole_number)
    alphabet: Any = eqx.field(default=None, static=True, converter=_alphabet)

    def __check_init__(self) -> None:
        _check_length(self)
        if not 0 <= self.mismatches < self.length:
            raise ParameterError(
                f"Spectrum.mismatches must be at least 0 and less than the length of words, {self.length}; "
                f"got {self.mismatches}."
            )

    @property
    def needs_fit(self) -> bool:
        return self.mismatches > 0 and self.alphabet is None

    def fit(self, X: Inputs) -> Self:
        if not self.needs_fit:
            return self
        return evolve(self, alphabet=_alphabet(ordered(Sequences.of(objects_of(X)).letters.keys)))

    @property
    def _neighbours(self) -> int:
        """Number of words over the alphabet within the mismatches of a word."""
        others = max(len(self.alphabet) - 1, 0)
        return sum(math.comb(self.length, m) * others**m for m in range(self.mismatches + 1))

    @property
    def _enumerates(self) -> bool:
        """Whether the features are written out."""
        if self.mismatches == 0:
            return True
        return self._neighbours <= MAX_NEIGHBOURS and len(self.alphabet) ** self.length < MAX_NUMBER

    def counts(self, objects: np.ndarray) -> Counts:
        sequences = Sequences.of(objects)
        matrix, places = self._words(sequences)
        if self.alphabet is None:
            return Counts(matrix, Vocabulary(sequences.words(places, self.length)))
        words = self._spelled(sequences, places)
        if self.mismatches == 0:
            inside = np.flatnonzero((words >= 0).all(axis=1))
            return Counts(matrix[:, inside], Vocabulary(sequences.words(places[inside], self.length)))
        require_memory(
            40.0 * self._neighbours * len(words), f"{len(words):,} words with {self._neighbours:,} neighbours each",
            "Allow fewer mismatches, or use fewer rows.",
        )  # fmt: skip
        origins, numbers = near_words(words, len(self.alphabet), self.mismatches)
        keys, columns = np.unique(numbers, return_inverse=True)
        near = sp.csr_matrix((np.ones(len(origins)), (origins, columns)), shape=(len(words), len(keys)))
        return Counts(matrix @ near, Vocabulary(keys.tolist()))

    def _words(self, sequences: Sequences) -> tuple[Any, np.ndarray]:
        """Counts of the distinct words (n, M), and where each begins."""
        rows, numbers, places = sequences.windows(self.length)
        matrix = sp.csr_matrix((np.ones(len(rows)), (rows, numbers)), shape=(len(sequences), len(places)))
        return matrix, places

    def _spelled(self, sequences: Sequences, places: np.ndarray) -> np.ndarray:
        """Words as numbers of letters in the alphabet, -1 outside: (M, length)."""
        codes = sequences.numbered_like(Vocabulary(list(self.alphabet)))
        return codes[places[:, None] + np.arange(self.length)[None, :]]

    def prepare(self, X: Inputs, index: Array) -> Rows:
        objects = objects_of(X)
        if self._enumerates:
            return HostRows(self.counts(objects))
        sequences = Sequences.of(objects)
        matrix, places = self._words(sequences)
        return HostRows(WordLists(matrix, self._spelled(sequences, places)))

    def block(self, X: Rows, Z: Rows) -> Any:
        if self._enumerates:
            return super().block(X, Z)
        return self._pairs(X.rows, Z.rows, np.empty((len(X.rows), len(Z.rows))))

    def block_diag(self, X: Rows) -> Any:
        if self._enumerates:
            return super().block_diag(X)
        return self._pairs(X.rows, X.rows, np.empty((len(X.rows), 1)), only_diagonal=True)[:, 0]

    def _pairs(self, A: WordLists, B: WordLists, out: np.ndarray, only_diagonal: bool = False) -> np.ndarray:
        from mercer.kernels.structured import sequence_loops as loops

        shared = shared_words(self.length, self.mismatches, len(self.alphabet))
        sides = [(side.letters, side.matrix.data, side.matrix.indptr.astype(np.int64)) for side in (A, B)]
        loops.on_all_cores(loops.mismatches, len(A), *sides[0], *sides[1], shared, only_diagonal, A is B, out)
        return out

    def feature_block(self, X: Rows) -> jax.Array:
        if self._enumerates:
            return super().feature_block(X)
        raise InfiniteFeaturesError(
            f"every word has {self._neighbours:,} others within {self.mismatches} mismatches over an alphabet of "
            f"{len(self.alphabet)}: too many to write out as features of {self!r}. At most {MAX_NEIGHBOURS} are."
        )

    @property
    def validity(self) -> Validity:
        near = f" within {self.mismatches} mismatches" if self.mismatches else ""
        return proved("6.1", f"a scalar product of counts, one for every word{near}", repr(self))

    def __repr__(self) -> str:
        return _shown(self)


# -- words with gaps ---------------------------------------------------------------------------------------------------


class Subsequence(Kernel):
    """Common subsequences of ``length`` letters, with gaps (Lodhi et al. 2002): the sum over all words u and all pairs
    of places where u stands in x and in x', not necessarily without gaps, of decay^(span in x + span in x').

    The span is the number of letters from the first to the last. ``up_to`` adds all lengths 1, ..., length. Gaps lower
    the weight for a decay below one, the usual range; larger ones are valid too. ``normalized`` divides by the square
    roots of both self-similarities, and scales them first: long sequences and words do not overflow. `normalize` does
    this.

    Cost: O(length |x| |x'|) per pair, vectorised over pairs.

    >>> Subsequence(2, decay=0.5)(["cat", "cart", "bat"])
    array([[0.140625  , 0.1015625 , 0.0625    ],
           [0.1015625 , 0.22265625, 0.03125   ],
           [0.0625    , 0.03125   , 0.140625  ]])
    """

    length: int = eqx.field(static=True, converter=_whole_number)
    decay: Positive = 0.5
    up_to: bool = eqx.field(default=False, static=True)
    normalized: bool = eqx.field(default=False, static=True)

    reads = "objects"

    def __check_init__(self) -> None:
        _check_length(self)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return HostRows(Sequences.of(objects_of(X)))

    def block(self, X: Rows, Z: Rows) -> Any:
        return differentiable(functools.partial(self._values, X.rows, Z.rows), self.decay)

    def block_diag(self, X: Rows) -> Any:
        return differentiable(functools.partial(self._own_values, X.rows), self.decay)

    def _values(self, s: Sequences, t: Sequences, decay: float, slope: bool) -> tuple[np.ndarray, np.ndarray | None]:
        weights = self._weights(decay, slope, s, t)
        K, d_K = _cross(s, t, *weights)
        if not self.normalized:
            return K, d_K
        sides = [_own(s, *weights)]
        sides.append(sides[0] if s is t else _own(t, *weights))
        # A sequence without any such word is similar to none. One whose words underflowed has no value.
        absent = [np.where(side.lengths < self._shortest, np.inf, np.nan) for side in (s, t)]
        (a, d_a), (b, d_b) = (
            (np.where(own > 0, own, instead), d_own) for (own, d_own), instead in zip(sides, absent, strict=True)
        )
        with np.errstate(invalid="ignore"):  # what is not finite is refused later, or backed away from in learning
            norms = np.sqrt(a)[:, None] * np.sqrt(b)[None, :]
            K /= norms
            if d_K is not None:
                d_K /= norms
                d_K -= 0.5 * K * ((d_a / a)[:, None] + (d_b / b)[None, :])
        if s is t:  # exactly, without the rounding of square roots
            known = np.isfinite(a) | (s.lengths < self._shortest)
            np.fill_diagonal(K, np.where(known, self._own_values(s, decay, False)[0], np.nan))
            if d_K is not None:
                np.fill_diagonal(d_K, 0.0)
        return K, d_K

    def _own_values(self, s: Sequences, decay: float, slope: bool) -> tuple[np.ndarray, np.ndarray | None]:
        if self.normalized:
            return np.where(s.lengths >= self._shortest, 1.0, 0.0), np.zeros(len(s))
        return _own(s, *self._weights(decay, slope, s))

    @property
    def _shortest(self) -> int:
        """Letters of the shortest words that count."""
        return 1 if self.up_to else self.length

    def _weights(self, decay: float, slope: bool, *sides: Sequences) -> tuple[float, float, np.ndarray, np.ndarray]:
        """Decay, scale of a match, weights of the scaled sums of lengths 1, ..., length, and if ``slope`` is asked for,
        the derivatives of the weights.

        The sum over gaps of a sequence of n letters with itself is at most C(n, q)^2 decay^(2 (n - q)), or C(n, q)^2
        for a decay below one, and then also at most (1 - decay)^(-2 q); at least C(n, q), or one. A match counts so
        little that the longest words are in the middle of this range. Normalised, the largest weight is one.
        """
        decay = max(decay, np.finfo(float).tiny)
        longest = max([1, *(int(side.lengths.max(initial=0)) for side in sides)])
        letters = min(self.length, longest)
        places = math.lgamma(longest + 1) - math.lgamma(letters + 1) - math.lgamma(longest - letters + 1)
        if decay < 1:
            low, high = 0.0, 2 * min(places, -letters * math.log1p(-decay))
        else:
            low, high = places, 2 * (places + (longest - letters) * math.log(decay))
        growth = math.exp(0.5 * (low + high) / letters)
        q = np.arange(1, self.length + 1)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            used = q >= self._shortest
            logarithm = np.where(used, q * (2 * math.log(decay) + math.log(growth)), -np.inf)
            weights = np.exp(logarithm - (logarithm.max() if self.normalized else 0.0))
            return decay, 1 / growth, weights, 2 * q / decay * weights if slope else np.empty(0)

    def normalize(self) -> "Kernel":
        return evolve(self, normalized=True)

    @property
    def validity(self) -> Validity:
        says = "a scalar product of weighted occurrences, one sum for every word"
        return proved("6.1", f"{says}, divided by its length" if self.normalized else says, repr(self))

    def __repr__(self) -> str:
        return _shown(self)


def _cross(
    s: Sequences, t: Sequences, decay: float, scale: float, weights: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Weighted sums of all pairs of sequences: (n, m), and their derivatives."""
    from mercer.kernels.structured import sequence_loops as loops

    if len(t) < min(loops.LANES, len(s)):  # few of them would leave most lanes empty
        K, d_K = _cross(t, s, decay, scale, weights, slopes)
        return K.T, None if d_K is None else d_K.T
    K = np.zeros((len(s), len(t)))
    d_K = np.zeros((len(s), len(t)) if len(slopes) else (0, 0))
    lanes = t.lanes
    if s is t:
        order = lanes[2]
        rows = s[order]
    else:
        order, rows = np.arange(len(s)), s
    codes = rows.numbered_like(t.letters).astype(float)
    if len(t):
        loops.on_all_cores(
            loops.subsequences, len(s), codes, rows.starts, order, *lanes, decay, scale, weights, slopes, s is t, K, d_K
        )
    return K, d_K if len(slopes) else None


def _own(
    s: Sequences, decay: float, scale: float, weights: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Weighted sums of each sequence with itself: (n,), and their derivatives."""
    from mercer.kernels.structured import sequence_loops as loops

    own, d_own = np.zeros(len(s)), np.zeros(len(s))
    groups = len(s.lanes[1]) - 1
    loops.on_all_cores(loops.own_subsequences, groups, *s.lanes, decay, scale, weights, slopes, own, d_own)
    return own, d_own if len(slopes) else None


# -- aligned sequences -------------------------------------------------------------------------------------------------


class WeightedDegree(CountKernel):
    """sum over d = 1, ..., length of beta_d times the number of positions at which words of d letters agree, with
    beta_d = 2 (length - d + 1) / (length (length + 1)) (Raetsch and Sonnenburg 2004).

    For aligned sequences, all of the same length L: position counts, as around splice sites. A run of agreement is
    counted once for every word in it, O(L) per pair. Features: sqrt(beta_d) for every position and word there.

    >>> 3 * WeightedDegree(2)(["acgt", "aggt", "tttt"])
    array([[11.,  7.,  2.],
           [ 7., 11.,  2.],
           [ 2.,  2., 11.]])
    """

    length: int = eqx.field(static=True, converter=_whole_number)

    def __check_init__(self) -> None:
        _check_length(self)

    def counts(self, objects: np.ndarray) -> Counts:
        return AlignedRows(_aligned(objects), self.length)

    def block(self, X: Rows, Z: Rows) -> Any:
        if not (isinstance(X.rows, AlignedRows) and isinstance(Z.rows, AlignedRows)):
            return super().block(X, Z)
        return self._agreements(X.rows, Z.rows)

    def block_diag(self, X: Rows) -> Any:
        if not isinstance(X.rows, AlignedRows):
            return super().block_diag(X)
        L, D = X.rows.codes.shape[1], self.length
        runs = np.minimum(np.arange(1, L + 1), D)
        return jnp.full(len(X.rows), float(np.sum(runs * (2 * D + 1 - runs)) / (D * (D + 1))))

    def _agreements(self, A: "AlignedRows", B: "AlignedRows") -> np.ndarray:
        from mercer.kernels.structured import sequence_loops as loops

        L, D = A.codes.shape[1], self.length
        if B.codes.shape[1] != L:
            raise DataError(
                f"WeightedDegree compares positions, so all sequences must have the same length; got {L} letters in "
                f"one set of rows and {B.codes.shape[1]} in the other. Cut or pad them."
            )
        codes = A.codes if A.letters is B.letters else A.letters.places_in(B.letters)[A.codes].astype(np.int32)
        counter = np.empty(0, np.int32 if L * D * (D + 1) <= MAX_COUNTED else np.float64)
        out = np.empty((len(A), len(B)))
        columns = np.ascontiguousarray(B.codes.T)
        loops.on_all_cores(loops.weighted_degrees, len(A), codes, columns, D, A is B, counter, out)
        out /= D * (D + 1)  # the sum of beta_d over d = 1, ..., r is r (2 D + 1 - r) / (D (D + 1))
        return out

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of indicators, one for every word and position", repr(self))

    def __repr__(self) -> str:
        return _shown(self)


def _aligned(objects: np.ndarray) -> Sequences:
    """Sequences of equal length."""
    sequences = Sequences.of(objects)
    other = np.flatnonzero(sequences.lengths != sequences.lengths[:1])
    if len(other):
        raise ObjectError(
            int(other[0]),
            f"a sequence of {sequences.lengths[other[0]]} letters, where row 0 has {sequences.lengths[0]}: "
            "WeightedDegree compares positions, so all must have the same length. Cut or pad them.",
        )
    return sequences


class AlignedRows(Counts):
    """Sequences of equal length as a matrix of letters (n, L), and as counts of their features if these are asked for:
    comparing letters is faster than multiplying features."""

    def __init__(self, sequences: Sequences, length: int, which: Any = slice(None), whole: Any = None) -> None:
        self._sequences, self._length, self._which, self._whole = sequences, length, which, whole
        self.letters = sequences.letters
        self.codes = sequences.codes.reshape(len(sequences), -1 if len(sequences.codes) else 0)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, which: Any) -> "AlignedRows":
        return AlignedRows(self._sequences[which], self._length, which, self)

    @functools.cached_property
    def _counts(self) -> Counts:
        """Counts of these rows, with features numbered as in the whole data set."""
        if self._whole is not None:
            return self._whole._counts[self._which]
        n, L = self.codes.shape
        matrices, keys = [sp.csr_matrix((n, 0))], []
        for d in range(1, min(self._length, L) + 1):
            rows, words, places = self._sequences.windows(d)
            # Number pairs of position and word: in every row, windows begin at 0, 1, ..., L - d.
            positions = np.tile(np.arange(L - d + 1), n)
            pairs, columns = np.unique(positions * len(places) + words, return_inverse=True)
            value = math.sqrt(2 * (self._length - d + 1) / (self._length * (self._length + 1)))
            matrices.append(sp.csr_matrix((np.full(len(rows), value), (rows, columns)), shape=(n, len(pairs))))
            spelled = self._sequences.words(places, d)
            at, which = np.divmod(pairs, max(len(places), 1))
            keys += [(position, spelled[word]) for position, word in zip(at.tolist(), which.tolist(), strict=True)]
        return Counts(sp.hstack(matrices, format="csr"), Vocabulary(keys))

    @property
    def matrix(self) -> Any:
        return self._counts.matrix

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        return self._counts.vocabulary

    def numbered_like(self, other: Counts) -> Counts:
        return self._counts.numbered_like(other)
