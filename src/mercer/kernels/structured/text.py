"""Kernels on documents: scalar products of weighted word counts."""

import collections
import dataclasses
import functools
import itertools
import operator
import re
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

import equinox as eqx
import numpy as np
import scipy.sparse as sp

from mercer.core.errors import DataError, ObjectError, ParameterError
from mercer.core.inputs import Inputs
from mercer.core.parameters import evolve, plain
from mercer.kernels.structured.rows import CountKernel, Counts, Vocabulary, objects_of, refuse_missing
from mercer.kernels.validity import Validity, proved

PATTERN = r"(?u)\b\w\w+\b"  # words of two and more letters or digits, as in scikit-learn
MAX_SHOWN = 8  # stop words that `repr` writes out

Word = str | tuple[str, ...]  # a tuple is an n-gram of two and more words, which no single word can be equal to


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """What a kernel learns from documents: in how many of them each word occurs.

    ``words`` (M,) are sorted, ``frequencies`` (M,) are numbers of documents, ``n`` is that of all documents.
    """

    words: tuple[Word, ...]
    frequencies: np.ndarray
    n: int

    def __post_init__(self) -> None:
        frequencies = np.array(self.frequencies, dtype=np.int64)
        frequencies.flags.writeable = False
        object.__setattr__(self, "frequencies", frequencies)

    @classmethod
    def of(cls, documents: Iterable[Iterable[Word]]) -> "Corpus":
        """Count the documents that have each word."""
        found: collections.Counter[Word] = collections.Counter()
        n = 0
        for words in documents:
            found.update(set(words))
            n += 1
        words = sorted(found, key=_sorting)
        return cls(tuple(words), np.array([found[word] for word in words], dtype=np.int64), n)

    def consistent(self) -> bool:
        """Whether words are sorted, with one possible frequency each, for `mercer.load`."""
        keys = [_sorting(word) for word in self.words]
        words = isinstance(self.words, tuple) and all(isinstance(part, str) for key in keys for part in key)
        ordered = all(a < b for a, b in itertools.pairwise(keys))
        counts = type(self.n) is int and self.frequencies.shape == (len(keys),)
        return words and ordered and counts and bool(np.all((self.frequencies > 0) & (self.frequencies <= self.n)))

    @functools.cached_property
    def _found(self) -> dict[Word, int]:
        return dict(zip(self.words, self.frequencies.tolist(), strict=True))

    def frequencies_of(self, words: Iterable[Word]) -> np.ndarray:
        """Number of documents that have each of some words, zero for a new one: (m,)."""
        return np.array([self._found.get(word, 0) for word in words], dtype=float)

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.n, self.words))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Corpus):
            return self is other
        return self.n == other.n and self.words == other.words and np.array_equal(self.frequencies, other.frequencies)

    def __reduce__(self) -> Any:  # without what is cached: hashes of text differ between processes
        return Corpus, (self.words, self.frequencies, self.n)

    def __repr__(self) -> str:
        return f"<{len(self.words):,} words in {self.n:,} documents>"


def _sorting(word: Word) -> tuple[str, ...]:
    return (word,) if isinstance(word, str) else word


class BagOfWords(CountKernel):
    """sum_w phi_w(x) phi_w(x') over words w, with phi_w = tf idf: how often a document has a word, weighted by how few
    documents have it.

    A row is a text, or a list of its words. A text is cut into words by the regular expression ``pattern`` (its group,
    if it has one), after ``lowercase``; lists are taken as they are. Words in ``stop_words`` are left out.
    ``ngrams=(1, 2)`` counts pairs of adjacent words too. tf is the count, or with ``sublinear`` 1 + ln(count), or with
    ``binary`` one.

    ``fit(X)`` learns the number df of the n documents in X that have a word, and idf = ln((1 + n) / (1 + df)) + 1;
    ``idf=False`` means one. Words with df < ``min_count`` or df > ``max_share`` n are left out. All this holds for
    words that no training document has: their df is zero, so they count in k(z, z) of a new document z, unless
    ``min_count`` is one or more. A document without words has k = 0.

    On the training rows these are the scalar products of scikit-learn's ``TfidfVectorizer(norm=None)``, and with
    ``.normalize()`` those of its default, ``norm="l2"``; with ``min_count=1`` on new rows too.

    Cost: O(length) a document, once, and a sparse product for the Gram matrix.

    >>> BagOfWords(idf=False)(["Red, red wine", "red apple", "green tea"])
    array([[5., 2., 0.],
           [2., 2., 0.],
           [0., 0., 2.]])
    >>> BagOfWords(sublinear=True).fit(["Red, red wine", "red apple", "green tea"])
    BagOfWords(sublinear=True, corpus=<5 words in 3 documents>)
    """

    idf: bool = eqx.field(default=True, static=True)
    sublinear: bool = eqx.field(default=False, static=True, kw_only=True)
    binary: bool = eqx.field(default=False, static=True, kw_only=True)
    lowercase: bool = eqx.field(default=True, static=True, kw_only=True)
    pattern: str = eqx.field(default=PATTERN, static=True, kw_only=True)
    ngrams: tuple[int, int] = eqx.field(
        default=(1, 1), static=True, kw_only=True, converter=lambda value: _tuple_of_integers(value)
    )
    stop_words: tuple[str, ...] = eqx.field(
        default=(), static=True, kw_only=True, converter=lambda words: _sorted_words(words)
    )
    min_count: int = eqx.field(default=0, static=True, kw_only=True, converter=plain)
    max_share: float = eqx.field(default=1.0, static=True, kw_only=True, converter=plain)
    corpus: Corpus | None = eqx.field(default=None, static=True, kw_only=True)  # set by `fit`

    def __check_init__(self) -> None:
        for name in ("idf", "sublinear", "binary", "lowercase"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"BagOfWords.{name} must be True or False; got {getattr(self, name)!r}.")
        _compiled(self.pattern)
        if len(self.ngrams) != 2 or not 1 <= self.ngrams[0] <= self.ngrams[1]:
            raise ParameterError(
                "BagOfWords.ngrams must be the smallest and the largest number of adjacent words, as in (1, 2); got "
                f"{self.ngrams!r}."
            )
        if not isinstance(self.min_count, int) or isinstance(self.min_count, bool) or self.min_count < 0:
            raise ParameterError(
                f"BagOfWords.min_count must be a number of documents, 0 or more; got {self.min_count!r}."
            )
        if (
            isinstance(self.max_share, bool)
            or not isinstance(self.max_share, int | float)
            or not 0 < self.max_share <= 1
        ):
            raise ParameterError(
                f"BagOfWords.max_share must be a share of the documents, above 0 and at most 1; got {self.max_share!r}."
            )
        if not isinstance(self.corpus, Corpus | None):
            raise ParameterError(f"BagOfWords.corpus is set by fit(documents); got {self.corpus!r}.")

    @property
    def needs_fit(self) -> bool:
        return self.corpus is None and (self.idf or self._limited)

    @property
    def _limited(self) -> bool:
        return self.min_count > 0 or self.max_share < 1

    def fit(self, X: Inputs) -> Self:
        if not (self.idf or self._limited):
            return self
        corpus = Corpus.of(self._words(objects_of(X)))
        df = corpus.frequencies
        if len(df) and not self._within_limits(df, corpus.n).any():
            raise DataError(
                f"no word is in {self.min_count} or more of the {corpus.n} documents, and in at most "
                f"{100 * self.max_share:.4g}% of them. Lower min_count, or raise max_share."
            )
        # A word that is not kept has df = 0, so it is left out as well.
        kept = np.flatnonzero(df >= self.min_count)
        return evolve(self, corpus=Corpus(tuple(corpus.words[i] for i in kept), df[kept], corpus.n))

    def _within_limits(self, df: np.ndarray, n: int) -> np.ndarray:
        return (df >= self.min_count) & (df <= self.max_share * n)

    def counts(self, objects: np.ndarray) -> Counts:
        numbers: dict[Word, int] = {}
        columns: list[int] = []
        values: list[int] = []
        ends = [0]
        for words in self._words(objects):
            count = collections.Counter(words)
            columns.extend(numbers.setdefault(word, len(numbers)) for word in count)
            values.extend(count.values())
            ends.append(len(columns))
        matrix = sp.csr_matrix((self._term_weights(values), columns, ends), shape=(len(objects), len(numbers)))
        features = list(numbers)
        if self.corpus is None:
            return Counts(matrix, Vocabulary(features))
        df, n = self.corpus.frequencies_of(features), self.corpus.n
        if self.idf:
            matrix = matrix.multiply(np.log((1 + n) / (1 + df)) + 1).tocsr()
        kept = np.flatnonzero(self._within_limits(df, n))
        if len(kept) < len(features):
            matrix, features = matrix[:, kept], [features[i] for i in kept]
        return Counts(matrix, Vocabulary(features))

    def _term_weights(self, counts: list[int]) -> np.ndarray:
        tf = np.array(counts, dtype=float)
        if self.binary:
            return np.ones_like(tf)
        return 1 + np.log(tf) if self.sublinear else tf

    def _words(self, documents: np.ndarray) -> Iterator[list[Word]]:
        """Words and n-grams of each document."""
        refuse_missing(documents, "a text")
        find, (low, high) = _compiled(self.pattern).findall, self.ngrams
        left_out = frozenset(self.stop_words)
        left_out_of_text = frozenset(word.lower() for word in left_out) if self.lowercase else left_out
        for i, document in enumerate(documents):
            if isinstance(document, str):
                words, stops = find(document.lower() if self.lowercase else document), left_out_of_text
            else:
                words, stops = _listed_words(i, document), left_out
            if stops:
                words = [word for word in words if word not in stops]
            if high > 1:
                several = (_adjacent(words, size) for size in range(max(low, 2), high + 1))
                words = [*(words if low == 1 else ()), *itertools.chain(*several)]
            yield words

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of word counts", repr(self))

    def __repr__(self) -> str:
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        shown = {name: getattr(self, name) for name, default in fields.items() if getattr(self, name) != default}
        texts = {name: repr(value) for name, value in shown.items() if name not in ("fixed", "priors")}
        if len(self.stop_words) > MAX_SHOWN:
            texts["stop_words"] = f"<{len(self.stop_words)} words>"
        if "name" in texts:  # the keyword comes last
            texts["name"] = texts.pop("name")
        return f"BagOfWords({', '.join(f'{name}={text}' for name, text in texts.items())})"


def _adjacent(words: list[str], size: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[i:] for i in range(size)), strict=False)


def _listed_words(row: int, document: Any) -> list[str]:
    """Words of a row that is not a text: a list of words, or what should have been one."""
    if not isinstance(document, list | tuple | np.ndarray) or getattr(document, "ndim", 1) != 1:
        hint = " Decode it, as in text.decode()." if isinstance(document, bytes) else ""
        raise ObjectError(row, f"a text was expected, or a list of its words; got {reprlib.repr(document)}.{hint}")
    for word in document:
        if not isinstance(word, str):
            raise ObjectError(row, f"a list of words must hold text alone; it holds {reprlib.repr(word)}.")
    return list(document)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ParameterError(f"BagOfWords.pattern must be a regular expression; got {pattern!r} ({error}).") from None
    if not isinstance(pattern, str) or compiled.groups > 1:
        raise ParameterError(
            f"BagOfWords.pattern must be text with at most one group (...), the word; got {pattern!r}. Write (?:...) "
            "for other groups."
        )
    return compiled


def _tuple_of_integers(value: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(item) for item in value)
    except TypeError:
        raise ParameterError(f"BagOfWords.ngrams must be two integers, as in (1, 2); got {value!r}.") from None


def _sorted_words(words: Any) -> tuple[str, ...]:
    given = [] if words is None else list(words) if isinstance(words, Iterable) else [words]
    if isinstance(words, str) or not all(isinstance(word, str) for word in given):
        raise ParameterError(
            f"BagOfWords.stop_words must be a collection of words; got {reprlib.repr(words)}. English ones are in "
            "sklearn.feature_extraction.text.ENGLISH_STOP_WORDS."
        )
    return tuple(sorted(set(given)))
