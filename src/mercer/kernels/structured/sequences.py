"""Prepared rows of sequences: strings, bytes, or lists of tokens, as arrays of letter numbers.

Every data set numbers the letters that it has by itself, as `Vocabulary` does for features in general.
"""

import functools
import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer.core.errors import ObjectError
from mercer.kernels.evaluate import Collection
from mercer.kernels.structured.rows import Vocabulary, refuse_missing, refuse_nan

MAX_NUMBER = 2**62  # of a word, in 64 bits


class Sequences(Collection):
    """Rows of letters: row i is ``codes[starts[i] : starts[i + 1]]``, numbers of letters in the vocabulary."""

    def __init__(self, codes: np.ndarray, starts: np.ndarray, letters: Vocabulary) -> None:
        self.codes, self.starts, self.letters = codes, starts, letters

    @classmethod
    def of(cls, objects: np.ndarray) -> "Sequences":
        """Read an array of strings, bytes, or lists of hashable tokens."""
        refuse_missing(objects, "a string")
        for i, row in enumerate(objects):
            is_matrix = isinstance(row, np.ndarray) and row.ndim != 1
            if is_matrix or not isinstance(row, str | bytes | list | tuple | np.ndarray):
                raise ObjectError(
                    i,
                    f"a string was expected, or a list of tokens; got {row!r} ({type(row).__name__}). Convert it, as "
                    "in str(value), or select a column of text with .on(name).",
                )
        lengths = np.fromiter(map(len, objects), dtype=np.int64, count=len(objects))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        if all(isinstance(row, str) for row in objects):
            codes, letters = _characters("".join(objects))
        else:
            codes, letters = _tokens(objects, int(starts[-1]))
        return cls(codes, starts, Vocabulary(letters))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, which: Any) -> "Sequences":
        index = np.arange(len(self))[which]
        lengths = self.lengths[index]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[index] - starts[:-1], lengths) + np.arange(starts[-1])
        return Sequences(self.codes[places], starts, self.letters)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def numbered_like(self, letters: Vocabulary) -> np.ndarray:
        """Codes with letters numbered as in another vocabulary, -1 for those that it lacks."""
        if letters is self.letters:
            return self.codes
        return self.letters.places_in(letters)[self.codes].astype(np.int32)

    def windows(self, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Words of consecutive letters: the row of each occurrence, its number among the distinct words, and for each
        distinct word a place in ``codes`` where it begins."""
        per_row = np.maximum(self.lengths - length + 1, 0)
        rows = np.repeat(np.arange(len(self)), per_row)
        ends = np.concatenate([[0], np.cumsum(per_row)])
        places = np.repeat(self.starts[:-1] - ends[:-1], per_row) + np.arange(ends[-1])
        if not len(places):
            return rows, places, places
        numbers = _windows(self.codes, len(self.letters), length)[places]
        _, first, numbers = np.unique(numbers, return_index=True, return_inverse=True)
        return rows, numbers, places[first]

    def words(self, places: np.ndarray, length: int) -> list[Hashable]:
        """Words that begin at some places in ``codes``: strings if all their letters are characters, else tuples."""
        letters = self.letters.keys
        if all(isinstance(letter, str) and len(letter) == 1 for letter in letters):
            points = np.array([ord(letter) for letter in letters], dtype="<u4")[self.codes]  # type: ignore[arg-type]
            text = points.tobytes().decode("utf-32-le", "surrogatepass")
            return [text[i : i + length] for i in places.tolist()]
        spelled = [letters[code] for code in self.codes.tolist()]
        return [_word(spelled[i : i + length]) for i in places.tolist()]

    @functools.cached_property
    def lanes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sequences in groups side by side, those of similar length together: codes, where each group begins in them,
        and the order of the rows. See `sequence_loops`."""
        from mercer.kernels.structured.sequence_loops import LANES, PADDING

        order = np.argsort(self.lengths, kind="stable")
        groups = []
        for first in range(0, len(order), LANES):
            index = order[first : first + LANES]
            lengths = self.lengths[index]
            group = np.full((lengths.max(initial=0), LANES), PADDING)
            inside = np.arange(len(group))[:, None] < lengths[None, :]
            places = self.starts[index][None, :] + np.arange(len(group))[:, None]
            group[:, : len(index)][inside] = self.codes[places[inside]]
            groups.append(group.ravel())
        starts = np.concatenate([[0], np.cumsum([len(group) for group in groups], dtype=np.int64)])
        return np.concatenate([np.empty(0), *groups]), starts, order


def _characters(text: str) -> tuple[np.ndarray, Sequence[Hashable]]:
    """Numbers of the characters of a text, and what they are."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    numbers = np.zeros(int(points.max(initial=0)) + 1, dtype=np.int32)
    numbers[points] = 1
    present = np.flatnonzero(numbers)
    numbers[present] = np.arange(len(present))
    return numbers[points], [chr(point) for point in present.tolist()]


def _tokens(objects: np.ndarray, count: int) -> tuple[np.ndarray, Sequence[Hashable]]:
    rows = [row.tolist() if isinstance(row, np.ndarray) else row for row in objects]
    try:
        numbers = {token: number for number, token in enumerate(dict.fromkeys(itertools.chain.from_iterable(rows)))}
    except TypeError:
        for i, row in enumerate(rows):
            try:
                set(row)
            except TypeError as error:
                raise ObjectError(i, f"tokens of a sequence must be hashable; {error}.") from None
        raise
    refuse_nan(numbers, rows, "a token")
    codes = np.fromiter(map(numbers.__getitem__, itertools.chain.from_iterable(rows)), dtype=np.int32, count=count)
    return codes, list(numbers)


def _word(letters: Sequence[Any]) -> Hashable:
    is_text = all(isinstance(letter, str) and len(letter) == 1 for letter in letters)
    return "".join(letters) if is_text else tuple(letters)


class Windows(NamedTuple):
    """A number below ``size`` for each place where a window of ``width`` codes begins: equal ones for equal windows."""

    numbers: np.ndarray
    size: int
    width: int

    def ranked(self) -> "Windows":
        """With numbers no larger than there are places."""
        return Windows(np.unique(self.numbers, return_inverse=True)[1], max(len(self.numbers), 1), self.width)

    def followed_by(self, other: "Windows") -> "Windows":
        """Pairs (a, b) become a size + b, exactly: from ranks where that would exceed 64 bits."""
        a, b = (self, other) if self.size * other.size < MAX_NUMBER else (self.ranked(), other.ranked())
        count = max(len(a.numbers) - b.width, 0)
        pairs = a.numbers[:count] * b.size + b.numbers[a.width : a.width + count]
        return Windows(pairs, a.size * b.size, a.width + b.width)


def _windows(codes: np.ndarray, size: int, length: int) -> np.ndarray:
    """Number for the window of ``length`` codes that begins at each place, joined from shorter ones: O(log length)
    steps."""
    power, whole = Windows(codes.astype(np.int64), max(size, 1), 1), None
    while True:
        if length & 1:
            whole = power if whole is None else whole.followed_by(power)
        length >>= 1
        if not length and whole is not None:
            return whole.numbers
        power = power.followed_by(power)


def ordered(letters: Iterable[Hashable]) -> list[Any]:
    """Letters in a definite order: sorted if they can be compared."""
    letters = list(dict.fromkeys(letters))
    try:
        return sorted(letters)
    except TypeError:
        return letters
