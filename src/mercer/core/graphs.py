"""Graphs of networkx as plain lists, and back. networkx is imported only when a graph is made."""

import graphlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from mercer.core.errors import DataError

KINDS = ("Graph", "DiGraph", "MultiGraph", "MultiDiGraph")


class GraphParts(NamedTuple):
    """A graph: its class, its attributes, nodes with attributes, and edges (i, j, key, attributes) between the nodes
    numbered i and j, in an order that restores that of neighbours; ``key`` is None unless edges may be parallel."""

    kind: str
    attributes: dict[Any, Any]
    nodes: list[tuple[Any, dict[Any, Any]]]
    edges: list[tuple[int, int, Any, dict[Any, Any]]]


def kind_of(value: Any) -> str | None:
    """Name of the class of a networkx graph; None for other objects, and for subclasses."""
    networkx = sys.modules.get("networkx")
    if networkx is None:
        return None
    return next((kind for kind in KINDS if type(value) is getattr(networkx, kind)), None)


def parts_of(graph: Any) -> GraphParts:
    """Take a graph apart."""
    number = {node: i for i, node in enumerate(graph)}
    names = list(graph)
    edges: list[tuple[int, int, Any, dict[Any, Any]]] = []
    for i, j in _ordered_edges(graph, number):
        data = graph.get_edge_data(names[i], names[j])
        parallel = data.items() if graph.is_multigraph() else [(None, data)]
        edges.extend((i, j, key, dict(attributes)) for key, attributes in parallel)
    nodes = [(node, dict(attributes)) for node, attributes in graph.nodes(data=True)]
    return GraphParts(kind_of(graph) or "", dict(graph.graph), nodes, edges)


def _ordered_edges(graph: Any, number: dict[Any, int]) -> list[tuple[int, int]]:
    """Pairs of adjacent nodes in an order in which adding them gives every node its neighbours in order."""
    chains = list(_chains(graph, number))
    sorter: graphlib.TopologicalSorter[tuple[int, int]] = graphlib.TopologicalSorter()
    for chain in chains:
        for pair, before in zip(chain, [None, *chain], strict=False):
            sorter.add(pair, *([] if before is None else [before]))
    try:
        return list(sorter.static_order())
    except graphlib.CycleError:  # no sequence of additions gives this graph, as for some views of others
        return list(dict.fromkeys(pair for chain in chains for pair in chain))


def _chains(graph: Any, number: dict[Any, int]) -> Iterator[list[tuple[int, int]]]:
    """Edges of each node, in the order of its neighbours."""
    for node, neighbours in graph.adjacency():
        i = number[node]
        if graph.is_directed():
            yield [(i, number[other]) for other in neighbours]
            yield [(number[other], i) for other in graph.pred[node]]
        else:
            yield [(min(i, number[other]), max(i, number[other])) for other in neighbours]


def made_of(parts: GraphParts) -> Any:
    """Put a graph together. Raises `DataError` if the parts do not fit, or without networkx."""
    if parts.kind not in KINDS:
        raise DataError(f"there is no graph of class {parts.kind!r}.")
    try:
        networkx = importlib.import_module("networkx")
    except ImportError:
        raise DataError("there are graphs, which need networkx: pip install networkx.") from None
    graph = getattr(networkx, parts.kind)()
    graph.graph.update(parts.attributes)
    for node, attributes in parts.nodes:
        graph.add_node(node)
        graph.nodes[node].update(attributes)
    names = list(graph)
    for i, j, key, attributes in parts.edges:
        if not all(type(end) is int and 0 <= end < len(names) for end in (i, j)):
            raise DataError(f"a graph of {len(names)} nodes has no edge between nodes {i!r} and {j!r}.")
        if graph.is_multigraph():
            graph.add_edge(names[i], names[j], key=key)
            graph.edges[names[i], names[j], key].update(attributes)
        else:
            graph.add_edge(names[i], names[j])
            graph.edges[names[i], names[j]].update(attributes)
    if len(graph) != len(parts.nodes) or graph.number_of_edges() != len(parts.edges):
        raise DataError("a graph has a node or an edge twice.")
    return graph
