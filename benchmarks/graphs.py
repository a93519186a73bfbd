"""Graph data sets of the shared folder as networkx graphs. MERCER_DATA is the folder of the data (default
../shared/data)."""

import os
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data"))


class GraphData(NamedTuple):
    """Graphs with labels of nodes, their classes, and the fold of ten that each is tested in (-1: in none)."""

    graphs: list[nx.Graph]
    classes: np.ndarray
    folds: np.ndarray


def load(name: str) -> GraphData:
    """One of MUTAG, ENZYMES, NCI1 and PROTEINS."""
    data = np.load(DATA / "structured" / f"graph_{name}.npz")
    owners, classes = data["graph_indicator"].tolist(), data["graph_labels"]
    graphs = [nx.Graph() for _ in classes]
    for node, (owner, label) in enumerate(zip(owners, data["node_labels"].tolist(), strict=True)):
        graphs[owner].add_node(node, label=label)
    for u, v in data["edges"].tolist():  # both directions are listed
        graphs[owners[u]].add_edge(u, v)
    return GraphData(graphs, classes, data["fold"])
