"""Kernels on graphs.

Rows are graphs of networkx. Nodes and edges may have labels, in the attribute "label" unless another is named
(``node_label``, ``edge_label``; None leaves them out). Where no node, or no edge, of a data set has a "label", all have
the same one; an attribute of another name must be there. An undirected edge is one in both directions, a directed graph
is walked along its edges, parallel edges count each, and a loop makes a node its own neighbour. A graph without nodes
has similarity zero with every graph. Molecules become graphs by ``mercer.datasets.from_smiles``.
"""

import dataclasses
import functools
import operator
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from mercer.core.errors import InvalidKernelError, ObjectError, ParameterError
from mercer.core.inputs import Inputs, Rows
from mercer.core.machine import cores
from mercer.core.parameters import Positive, nodes_of, plain, show
from mercer.core.precision import Array
from mercer.kernels import convert
from mercer.kernels.base import Kernel
from mercer.kernels.evaluate import Collection, HostRows
from mercer.kernels.structured.graph_rows import Graphs, Joined, Triples, encode, loops, numbered, triple_keys
from mercer.kernels.structured.rows import CountKernel, Counts, differentiable, objects_of
from mercer.kernels.validity import Validity, derive, proved


class GraphKernel(Kernel):
    """A kernel on graphs. Its `prepare` also takes `Graphs`, so that an expression of such kernels can be evaluated on
    graphs with other labels."""

    reads = "objects"

    node_label: Hashable = eqx.field(default="label", static=True, kw_only=True)

    def __check_init__(self) -> None:
        for field in ("node_label", "edge_label"):
            if isinstance(value := getattr(self, field, None), bool):
                raise ParameterError(
                    f"{field} must be the name of an attribute, or None to leave labels out; got {value}."
                )

    def graphs(self, X: Inputs, edge_label: Hashable = None) -> Graphs:
        return X if isinstance(X, Graphs) else encode(objects_of(X), self.node_label, edge_label)

    def __repr__(self) -> str:
        fields = [field for field in dataclasses.fields(self) if field.name not in ("fixed", "priors")]
        fields.sort(key=lambda field: bool(field.kw_only))
        values = [(field, getattr(self, field.name)) for field in fields]
        changed = [
            f"{field.name}={show(value)}"
            for field, value in values
            if (value != field.default if field.kw_only else value is not None)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


class WeisfeilerLehman(GraphKernel):
    """Sum of a base kernel over iterations 0 to ``iterations`` of refined labels (Shervashidze et al. 2011).

    Each iteration replaces the label of every node by itself and the multiset of the labels around it, with those of
    the edges where they have some. ``base`` is a kernel on graphs, such as ``ShortestPath()``, or an expression of such
    kernels, evaluated with these labels for labels; left out, it is the scalar product of how many nodes have each
    label. O(iterations * edges), and one sparse product for all pairs.

    >>> import networkx as nx
    >>> graphs = [nx.path_graph(3), nx.cycle_graph(3)]
    >>> WeisfeilerLehman(iterations=1)(graphs)
    array([[14., 12.],
           [12., 18.]])
    """

    iterations: int = eqx.field(default=5, static=True, converter=plain)
    base: Kernel | None = eqx.field(
        default=None, converter=lambda base: None if base is None else convert.as_kernel(base)
    )
    edge_label: Hashable = eqx.field(default="label", static=True, kw_only=True)

    def __check_init__(self) -> None:
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 0:
            raise ParameterError(f"iterations must be an integer, zero or more; got {self.iterations!r}.")
        for node in () if self.base is None else nodes_of(self.base):
            if not isinstance(node, Kernel) or isinstance(node, GraphKernel) or list(node._kernels()):
                continue
            if node.reads_values:
                raise InvalidKernelError(
                    "the base of WeisfeilerLehman must be a kernel on graphs, or an expression of such kernels; "
                    f"{node!r} is not. Try base=ShortestPath(), or leave it out."
                )

    def prepare(self, X: Inputs, index: Array) -> Rows:
        levels = [self.graphs(X, self.edge_label)]
        for _ in range(self.iterations):
            levels.append(levels[-1].refined())
        if self.base is None:
            return HostRows(_joined([level.histograms() for level in levels]))
        rows = tuple(self.base.prepare(level, index) for level in levels)
        return HostRows(_joined([level.rows for level in rows])) if isinstance(self.base, CountKernel) else rows

    def block(self, X: Rows, Z: Rows) -> Any:
        if isinstance(self.base, CountKernel | None):
            return X.rows.products(Z.rows)
        return functools.reduce(operator.add, map(self.base.block, X, Z))

    def block_diag(self, X: Rows) -> Any:
        if isinstance(self.base, CountKernel | None):
            return X.rows.squared_norms()
        return functools.reduce(operator.add, map(self.base.block_diag, X))

    def feature_block(self, X: Rows) -> jax.Array:
        if isinstance(self.base, CountKernel | None):
            return jnp.asarray(X.rows.matrix.toarray())
        return jnp.concatenate([self.base.feature_block(x) for x in X], axis=1)

    @property
    def validity(self) -> Validity:
        if self.base is None:
            return proved("6.1", "a scalar product of counts of labels, original and refined", repr(self))
        says = "a sum over iterations of a valid kernel of a function of the graph (6.19)"
        return derive("6.17", says, repr(self), [self.base.validity])


def _joined(levels: list[Counts]) -> Counts:
    matrix = sp.hstack([level.matrix for level in levels], format="csr")
    return Counts(matrix, Joined([level.vocabulary for level in levels]))


class ShortestPath(GraphKernel, CountKernel):
    """Scalar product of how many ordered pairs of distinct connected nodes have each (label, label, distance)
    (Borgwardt and Kriegel 2005).

    Distance is the number of edges on a shortest path, or the least sum of the attribute ``edge_weight`` of edges, a
    number that is not negative. Distances are compared exactly: round weights to multiples of a power of two, such as
    0.25, so that sums are exact. Labels of edges are not used. ``disconnected`` counts pairs of nodes without a path as
    well, as if at one more distance: molecules with ions or water are graphs of several parts. O(nodes * edges) per
    graph.

    >>> import networkx as nx
    >>> ShortestPath()([nx.path_graph(3), nx.cycle_graph(3)])
    array([[20., 24.],
           [24., 36.]])
    """

    edge_weight: Hashable = eqx.field(default=None, static=True, kw_only=True)
    disconnected: bool = eqx.field(default=False, static=True, kw_only=True)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return HostRows(self.counts(X))

    def counts(self, objects: Inputs) -> Counts:
        graphs = self.graphs(objects)
        lengths = np.empty(0) if self.edge_weight is None else graphs.lengths(self.edge_weight)
        if self.edge_weight is not None and not len(lengths):
            lengths = np.zeros(1)  # no edges: none will be read
        owners, first, second, distances, counts = loops().shortest_paths(
            graphs.starts, graphs.labels, graphs.offsets, graphs.targets, lengths, bool(self.disconnected)
        )
        numbers, examples = numbered(*triple_keys(first, second, distances))
        vocabulary = Triples(graphs.vocabulary, first[examples], second[examples], distances[examples])
        shape = len(graphs), len(vocabulary)
        return Counts(sp.csr_matrix((counts.astype(float), (owners, numbers)), shape=shape), vocabulary)

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of counts of shortest paths", repr(self))


class RandomWalk(GraphKernel):
    """Sum over k of decay^k times the number of pairs of walks of length k, one in each graph, with equal labels of
    nodes and edges: 1^T (I - decay A)^-1 1, for the adjacency matrix A of the product graph (Gaertner et al. 2003).

    ``decay`` must be below 1 over the largest eigenvalue of the product graph of every graph with itself, which is at
    most the square of the largest eigenvalue of the graph; beyond it the sum is infinite, and an error states the
    limit. Learning stays below it. Each pair is solved by conjugate gradients, or, if a graph is directed, by adding up
    the series: O(nodes * edges) a step.

    >>> import networkx as nx
    >>> RandomWalk(decay=0.1)([nx.path_graph(3), nx.cycle_graph(3)])
    array([[11.04166667, 12.39130435],
           [12.39130435, 15.        ]])
    """

    decay: Positive = 0.1
    edge_label: Hashable = eqx.field(default="label", static=True, kw_only=True)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return HostRows(Walks(self.graphs(X, self.edge_label)))

    def block(self, X: Rows, Z: Rows) -> Any:
        return differentiable(lambda decay, slope: X.rows.with_others(Z.rows, decay, slope), self.decay)

    def block_diag(self, X: Rows) -> Any:
        return differentiable(X.rows.with_themselves, self.decay)

    def explain(self, rows: Rows) -> None:
        for part in jax.tree.leaves(rows):
            if isinstance(part, Walks):
                part.refuse(float(self.decay))

    @property
    def validity(self) -> Validity:
        return proved("6.1", "a scalar product of numbers of walks, one for every sequence of labels", repr(self))


class Walks(Collection):
    """Graphs whose walks are counted. ``growth`` (n,): the largest eigenvalue of the product graph of each with itself,
    which bounds that of the product graph of two: its square is at most the product of theirs."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        order = np.lexsort([graphs.edge_labels, graphs.owners[graphs.sources]])
        self._sources, self._targets = (
            (ends - graphs.starts[graphs.owners[graphs.sources]])[order] for ends in (graphs.sources, graphs.targets)
        )
        self._along = graphs.edge_labels[order]
        self._nodes, self._edges = _spans(graphs.starts), _spans(graphs.offsets[graphs.starts])
        self.row = np.arange(len(graphs))
        self.growth = loops().growth(self._arrays())

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, which: Any) -> "Walks":
        new = object.__new__(Walks)
        new.__dict__.update(self.__dict__)
        new._nodes, new._edges = self._nodes[which], self._edges[which]
        new.row, new.growth = self.row[which], self.growth[which]
        return new

    def _arrays(self, like: "Walks | None" = None) -> tuple[np.ndarray, ...]:
        """What the compiled loops read, with labels numbered as in another collection."""
        graphs, labels, along = self._graphs, self._graphs.labels, self._along
        sources, targets = self._sources, self._targets
        if like is not None and like._graphs is not graphs:
            labels = graphs.vocabulary.places_in(like._graphs.vocabulary)[labels]
            along = graphs.edge_vocabulary.places_in(like._graphs.edge_vocabulary)[along]
            order = np.lexsort([along, graphs.owners[graphs.sources]])
            sources, targets, along = sources[order], targets[order], along[order]
        return self._nodes, labels, self._edges, sources, targets, along, graphs.directed[self.row]

    def with_others(self, other: "Walks", decay: float, slope: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Values for all pairs (n, m), and derivatives in ``decay``; NaN if any graph's own walks do not converge."""
        n, same = len(self), other is self
        shape = n, len(other)
        if self._diverges(decay) or other._diverges(decay):
            return np.full(shape, np.nan), np.full(shape, np.nan)
        values, slopes = np.empty(shape), np.empty(shape if slope else (0, 0))
        mine, theirs = self._arrays(), other._arrays(self)

        def work(rows: np.ndarray) -> None:
            loops().walks(decay, slope, same, rows, values, slopes, mine, theirs)

        parts = [np.arange(i, n, PARTS * cores()) for i in range(min(n, PARTS * cores()))]
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(work, parts))
        return values, slopes if slope else None

    def with_themselves(self, decay: float, slope: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Values for each graph and itself: (n,)."""
        values, slopes = np.full(len(self), np.nan), np.full(len(self), np.nan)
        if not self._diverges(decay):
            loops().own_walks(decay, slope, values, slopes, self._arrays())
        return values, slopes

    def _diverges(self, decay: float) -> bool:
        return bool(decay * self.growth.max(initial=0.0) >= 1)

    def refuse(self, decay: float) -> None:
        """Raise an error that names the row with the lowest limit, if ``decay`` is not clearly below it."""
        if len(self) and decay * self.growth.max() >= NEAR_LIMIT:
            which = int(np.argmax(self.growth))
            raise ObjectError(
                int(self.row[which]), f"RandomWalk needs a decay below {1 / self.growth[which]:.4g} for the walks on "
                f"this graph to have a finite sum, 1 over the largest eigenvalue of its product graph with itself; got "
                f"{decay:.4g}. Use a smaller decay."
            )  # fmt: skip


PARTS = 4  # of the rows per core: pairs take unequal time
NEAR_LIMIT = 0.99  # of the limit of decay: closer to it, sums may fail to converge


def _spans(starts: np.ndarray) -> np.ndarray:
    return np.column_stack([starts[:-1], starts[1:]])
