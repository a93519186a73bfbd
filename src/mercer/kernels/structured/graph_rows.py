"""Graphs as arrays, and the numbering of what is counted in them.

All graphs of a data set are one list of nodes and one list of edges, an undirected edge being two directed ones.
Labels, and refined labels, are numbered per data set; a `Vocabulary` per kind finds which of another data set's numbers
mean the same.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from mercer.core.errors import ObjectError
from mercer.kernels.structured.rows import Counts, Vocabulary, refuse_missing

DEFAULT_LABEL = "label"  # the attribute of nodes and edges that is read where they have it


def loops() -> ModuleType:
    """Compiled loops: they need Numba, which takes a moment to import."""
    from mercer.kernels.structured import graph_loops as module

    return module


# -- vocabularies ----------------------------------------------------------------------------------------------------


class LabelVocabulary(Vocabulary):
    """Labels of nodes or edges. Where none has one, all have the label None, and ``first`` is the first of them: its
    row and its name."""

    def __init__(self, keys: Sequence[Hashable], what: str, first: tuple[int, str] | None = None) -> None:
        super().__init__(keys)
        self.what, self.first = what, first

    def _found_in(self, other: Vocabulary) -> np.ndarray:
        if (
            isinstance(other, LabelVocabulary)
            and len(self)
            and len(other)
            and (self.first is None) != (other.first is None)
        ):
            row, name = cast(tuple[int, str], self.first or other.first)
            raise ObjectError(
                row,
                f"{name} has no label, nor has any other {self.what} of these graphs, where those of the graphs that "
                f"they are compared with have one. Label both, or leave labels out of the kernel: {self.what}_label="
                "None.",
            )
        return super()._found_in(other)


class Refined(Vocabulary):
    """Labels after one more iteration: the label that a node had, and those of its neighbours, as numbers of the labels
    before. ``own`` (M,); the neighbours of label i are ``around[offsets[i] : offsets[i + 1]]``, over edges with labels
    ``along``, sorted by `code`."""

    def __init__(
        self, before: Vocabulary, edges: Vocabulary, own: np.ndarray, offsets: np.ndarray, around: np.ndarray,
        along: np.ndarray,
    ) -> None:  # fmt: skip
        super().__init__(range(len(own)))
        self.before, self.edges = before, edges
        self.own, self.offsets, self.around, self.along = own, offsets, around, along

    def _found_in(self, other: Vocabulary) -> np.ndarray:
        assert isinstance(other, Refined)
        # The parts of a label in the numbers of the other data set; a label with an unknown part is unknown.
        labels, edges = self.before.places_in(other.before), self.edges.places_in(other.edges)
        own, around, along = labels[self.own], labels[self.around], edges[self.along]
        row = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        known = own >= 0
        known[row[(around < 0) | (along < 0)]] = False
        kept, of_known = np.flatnonzero(known), known[row]
        offsets = np.append(0, np.cumsum(np.diff(self.offsets)[kept]))
        places = np.full(len(self), -1)
        # Sorted again, for the other data set numbers labels in another order.
        code = _sorted(row[of_known], other.code(around[of_known], along[of_known]))
        theirs = other.own, other.offsets, other.code(other.around, other.along)
        places[kept] = _among(theirs, (own[kept], offsets, code))
        return places

    def code(self, around: np.ndarray, along: np.ndarray) -> np.ndarray:
        """One number for a neighbour's label and that of the edge to it."""
        return along * len(self.before) + around


class Triples(Vocabulary):
    """Pairs of labels at a distance: ``first`` and ``second`` (M,), numbers of ``labels``, and ``distances`` (M,)."""

    def __init__(self, labels: Vocabulary, first: np.ndarray, second: np.ndarray, distances: np.ndarray) -> None:
        super().__init__(range(len(first)))
        self.labels, self.first, self.second, self.distances = labels, first, second, distances

    def _found_in(self, other: Vocabulary) -> np.ndarray:
        assert isinstance(other, Triples)
        labels = self.labels.places_in(other.labels)
        first, second = labels[self.first], labels[self.second]
        kept = np.flatnonzero((first >= 0) & (second >= 0))
        places = np.full(len(self), -1)
        theirs = triple_keys(other.first, other.second, other.distances)
        places[kept] = _among(theirs, triple_keys(first[kept], second[kept], self.distances[kept]))
        return places


class Joined(Vocabulary):
    """Several vocabularies, one after the other."""

    def __init__(self, parts: Sequence[Vocabulary]) -> None:
        super().__init__(range(sum(map(len, parts))))
        self.parts = parts

    def _found_in(self, other: Vocabulary) -> np.ndarray:
        assert isinstance(other, Joined)
        places, start = [], 0
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            found = mine.places_in(theirs)
            places.append(np.where(found >= 0, found + start, -1))
            start += len(theirs)
        return np.concatenate(places)


Keys = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows of integers: the first of each, offsets, and all others


def triple_keys(first: np.ndarray, second: np.ndarray, distances: np.ndarray) -> Keys:
    others = np.column_stack([second, distances.view(np.int64)])  # equal bits are equal distances
    return first, 2 * np.arange(len(first) + 1), others.ravel()


def _among(theirs: Keys, mine: Keys) -> np.ndarray:
    """Position of each of my rows among theirs, which are all different; -1 where it is not among them."""
    count = len(theirs[0])
    offsets = np.append(theirs[1], mine[1][1:] + theirs[1][-1])
    first, others = (np.concatenate([theirs[k], mine[k]]) for k in (0, 2))
    numbers = numbered(first, offsets, others)[0][count:]  # rows are numbered as they come, so theirs in order
    return np.where(numbers < count, numbers, -1)


def _sorted(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values sorted within rows, whose numbers ascend."""
    span = int(values.max(initial=0)) + 1
    if len(rows) and int(rows[-1]) > (2**62) // span:
        return values[np.lexsort([values, rows])]
    return np.sort(rows * span + values) - rows * span


def numbered(first: np.ndarray, offsets: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number rows of integers as they come, equal rows alike: (n,), and the first row with each number. The ``others``
    of a row are a multiset if they are sorted first."""
    return loops().number_rows(
        np.ascontiguousarray(first, np.int64), np.ascontiguousarray(offsets, np.int64),
        np.ascontiguousarray(others, np.int64),
    )  # fmt: skip


# -- graphs ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Graphs:
    """A data set of n graphs with N nodes and E directed edges in all, sorted by the node that they leave."""

    objects: np.ndarray  # (n,) as the user gave them
    starts: np.ndarray  # (n + 1,) the first node of each graph
    labels: np.ndarray  # (N,) number of each node's label
    vocabulary: Vocabulary  # of these labels
    offsets: np.ndarray  # (N + 1,) the first edge that leaves each node
    targets: np.ndarray  # (E,) the node that an edge leads to
    edge_labels: np.ndarray  # (E,) number of each edge's label
    edge_vocabulary: Vocabulary
    directed: np.ndarray  # (n,) whether edges have a direction

    def __len__(self) -> int:
        return len(self.objects)

    @functools.cached_property
    def owners(self) -> np.ndarray:
        """The graph of each node: (N,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @functools.cached_property
    def sources(self) -> np.ndarray:
        """The node that each edge leaves: (E,)."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))

    def refined(self) -> "Graphs":
        """Replace every label by itself and the labels around it (Weisfeiler-Lehman), numbered anew: O(E)."""
        code = _sorted(self.sources, self.edge_labels * len(self.vocabulary) + self.labels[self.targets])
        numbers, examples = numbered(self.labels, self.offsets, code)
        degrees = np.diff(self.offsets)[examples]
        offsets = np.append(0, np.cumsum(degrees))
        places = np.repeat(self.offsets[examples] - offsets[:-1], degrees) + np.arange(offsets[-1])
        along, around = np.divmod(code[places], max(len(self.vocabulary), 1))
        vocabulary = Refined(self.vocabulary, self.edge_vocabulary, self.labels[examples], offsets, around, along)
        return dataclasses.replace(self, labels=numbers, vocabulary=vocabulary)

    def histograms(self) -> Counts:
        """How many nodes of each graph have each label."""
        shape = len(self), len(self.vocabulary)
        ones = np.ones(len(self.labels))
        return Counts(sp.csr_matrix((ones, (self.owners, self.labels)), shape=shape), self.vocabulary)

    def lengths(self, attribute: Hashable) -> np.ndarray:
        """An attribute of edges as lengths: (E,) numbers, not negative."""
        found = []
        for row, graph in enumerate(self.objects):
            for u, (around, edges) in zip(graph, _leaving(graph), strict=True):
                for v, data in zip(around, edges, strict=True):
                    found.append(_length(row, u, v, attribute, data.get(attribute)))
        return np.array(found, dtype=float)


def _length(row: int, u: Any, v: Any, attribute: Hashable, value: Any) -> float:
    try:
        length = float(value)
    except (TypeError, ValueError):
        length = math.nan
    if not 0 <= length < math.inf:
        raise ObjectError(
            row, f"edge ({u!r}, {v!r}) has {attribute!r} = {value!r}, where a length was expected: a finite number, "
            "zero or more. Set it, or count hops with edge_weight=None."
        )  # fmt: skip
    return length


def encode(objects: np.ndarray, node_label: Hashable, edge_label: Hashable) -> Graphs:
    """Graphs of networkx, or with the same ``nodes``, ``adjacency`` and ``is_directed``, as arrays.

    Labels are in these attributes of nodes and edges; None leaves them out. If no node (edge) of the data set has one,
    all have the same; if only some have, it is an error.
    """
    refuse_missing(objects, "a graph")
    labels: list[Any] = []
    edge_labels: list[Any] = []
    targets: list[int] = []
    degrees: list[int] = []
    starts, edge_starts, directed = [0], [0], []
    for row, graph in enumerate(objects):
        _check(row, graph)
        places = {}
        for number, (node, label) in enumerate(graph.nodes(data=node_label), starts[-1]):
            places[node] = number
            labels.append(label)
        for around, edges in _leaving(graph):
            targets.extend(map(places.__getitem__, around))
            edge_labels += [data.get(edge_label) for data in edges]
            degrees.append(len(edges))
        starts.append(len(labels))
        edge_starts.append(len(edge_labels))
        directed.append(graph.is_directed())

    def name_node(row: int, which: int) -> str:
        return f"node {list(objects[row].nodes)[which]!r}"

    def name_edge(row: int, which: int) -> str:
        nodes = zip(objects[row], _leaving(objects[row]), strict=True)
        u, v = [(u, v) for u, (around, _) in nodes for v in around][which]
        return f"edge ({u!r}, {v!r})"

    numbers, vocabulary = _numbered(labels, "node", node_label, starts, name_node)
    edge_numbers, edge_vocabulary = _numbered(edge_labels, "edge", edge_label, edge_starts, name_edge)
    offsets = np.append(0, np.cumsum(np.array(degrees, dtype=np.int64)))
    return Graphs(
        objects, np.array(starts), numbers, vocabulary, offsets, np.array(targets, dtype=np.int64), edge_numbers,
        edge_vocabulary, np.array(directed, dtype=bool),
    )  # fmt: skip


def _leaving(graph: Any) -> Iterator[tuple[Iterable[Any], Collection[dict]]]:
    """For every node, the ends and the attributes of the edges that leave it: a loop once, and for an undirected graph
    all edges at the node."""
    if not graph.is_multigraph():
        return ((around, around.values()) for _, around in graph.adjacency())
    several = ([(v, data) for v, edges in around.items() for data in edges.values()] for _, around in graph.adjacency())
    return (([v for v, _ in found], [data for _, data in found]) for found in several)


def _check(row: int, graph: Any) -> None:
    if not all(hasattr(graph, name) for name in ("nodes", "adjacency", "is_multigraph")) or isinstance(graph, type):
        raise ObjectError(row, f"a graph of networkx was expected; got {graph!r} ({type(graph).__name__}).")


def _numbered(
    labels: list[Any], what: str, attribute: Hashable, starts: list[int], named: Callable[[int, int], str]
) -> tuple[np.ndarray, LabelVocabulary]:
    """Numbers of labels, as they come, and what they are. ``named(row, which)`` is the node or edge in words."""
    numbers: dict[Any, int] = {}

    def place(which: int) -> tuple[int, str]:
        row = int(np.searchsorted(starts, which, side="right")) - 1
        return row, named(row, which - starts[row])

    def refuse(which: int, says: str) -> ObjectError:
        row, name = place(which)
        return ObjectError(row, f"{name} {says}")

    try:
        found = np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)
    except TypeError:
        which = next(i for i, label in enumerate(labels) if not _hashable(label))
        says = f"has {attribute!r} = {labels[which]!r}; a label must be hashable, such as text, a number or a tuple."
        raise refuse(which, says) from None
    missing = [number for label, number in numbers.items() if label is None or label != label]
    if missing and len(missing) == len(numbers):
        if attribute not in (None, DEFAULT_LABEL):  # asked for by name
            says = (
                f"has no {attribute!r}, nor has any other {what} of these graphs. Check {what}_label, or leave labels "
            )
            raise refuse(0, f"{says}out of the kernel: {what}_label=None.")
        return np.zeros(len(labels), dtype=np.int64), LabelVocabulary([None], what, place(0))
    if missing:
        says = f"has no {attribute!r}, where other {what}s have one. Label all, or none, or leave labels out of the "
        raise refuse(int(np.flatnonzero(np.isin(found, missing))[0]), f"{says}kernel: {what}_label=None.")
    return found, LabelVocabulary(list(numbers), what)


def _hashable(label: Any) -> bool:
    try:
        hash(label)
    except TypeError:
        return False
    return True
