"""Kernels on graphs, written from their definitions: one pair at a time, with labels as nested tuples. Slow and
obvious."""

from collections import Counter

import networkx as nx
import numpy as np


def scalar_product(a: Counter, b: Counter) -> float:
    return float(sum(count * b[key] for key, count in a.items()))


def gram(features, graphs, others):
    mine, theirs = [features(g) for g in graphs], [features(g) for g in others]
    return np.array([[scalar_product(a, b) for b in theirs] for a in mine])


def labels_of(graph):
    return {node: repr(label) for node, label in graph.nodes(data="label")}


def leaving(graph, node):
    """The other end and the label of every edge that leaves a node; a loop once."""
    if graph.is_multigraph():
        return [(v, repr(data.get("label"))) for v, edges in graph.adj[node].items() for data in edges.values()]
    return [(v, repr(data.get("label"))) for v, data in graph.adj[node].items()]


def refinements(graph, iterations):
    labels = labels_of(graph)
    yield labels
    for _ in range(iterations):
        labels = {v: (labels[v], tuple(sorted((e, labels[u]) for u, e in leaving(graph, v)))) for v in graph.nodes}
        yield labels


def weisfeiler_lehman(iterations):
    def features(graph):
        levels = enumerate(refinements(graph, iterations))
        return Counter((i, label) for i, labels in levels for label in labels.values())

    return features


def paths(graph, labels, weight=None, disconnected=False):
    found = Counter()
    for u in graph.nodes:
        if weight is None:
            reached = nx.single_source_shortest_path_length(graph, u)
        else:
            reached = nx.single_source_dijkstra_path_length(graph, u, weight=weight)
        found.update((labels[u], labels[v], float(d)) for v, d in reached.items() if v != u)
        if disconnected:
            found.update((labels[u], labels[v], "no path") for v in graph.nodes if v not in reached)
    return found


def shortest_path(weight=None, disconnected=False):
    return lambda graph: paths(graph, labels_of(graph), weight, disconnected)


def refined_shortest_path(iterations):
    def features(graph):
        found = Counter()
        for i, labels in enumerate(refinements(graph, iterations)):
            found.update({(i, *key): count for key, count in paths(graph, labels).items()})
        return found

    return features


def product_graph(a, b):
    """Adjacency matrix of pairs of nodes with equal labels."""
    labels, others = labels_of(a), labels_of(b)
    nodes = {pair: i for i, pair in enumerate((u, v) for u in a for v in b if labels[u] == others[v])}
    A = np.zeros((len(nodes), len(nodes)))
    for (u, v), i in nodes.items():
        for s, e in leaving(a, u):
            for t, f in leaving(b, v):
                if e == f and (s, t) in nodes:
                    A[i, nodes[s, t]] += 1
    return A


def random_walk(decay, graphs, others):
    def value(a, b):
        A = product_graph(a, b)
        return np.linalg.solve(np.eye(len(A)) - decay * A, np.ones(len(A))).sum()

    return np.array([[value(a, b) for b in others] for a in graphs])
