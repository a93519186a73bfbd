"""Graphs: a property of molecules, with intervals, from their atoms and bonds.

The molecules are random, and drawn without hydrogens: chains of carbon with branches, some oxygen and nitrogen, and a
few rings. Their boiling points are made up: every atom raises them, an OH or NH2 group more than others, a branch
lowers them, and the measurements have a noise of 6 K. `WeisfeilerLehman` counts atoms, then atoms together with their
neighbours (one iteration), then also the neighbours of these (two), and so on. `mc.select_kernel` chooses how many
iterations are best. One is enough to distinguish groups and branches; more split the atoms into ever rarer kinds. The
kernel is used without `normalize`, because the property adds up over the parts of a molecule.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

import mercer as mc
from mercer import kernels as k

NOISE = 6.0  # K, a standard deviation
COLORS = {"C": "0.35", "O": "tab:red", "N": "tab:blue"}
MAX_BONDS = {"C": 3, "O": 2, "N": 3}


def molecule(rng):
    """A random tree of 4 to 12 atoms, or two ends of one joined to a ring."""
    graph = nx.Graph()
    graph.add_node(0, label="C")
    for atom in range(1, rng.integers(4, 13)):
        labels = graph.nodes(data="label")
        free = [other for other, label in labels if graph.degree(other) < MAX_BONDS[label]]
        other = rng.choice(free[-3:])  # one of the last, so that chains are long
        graph.add_node(atom, label=rng.choice(list("CCCON")) if labels[other] == "C" else "C")
        graph.add_edge(atom, other)
    ends = [atom for atom, label in graph.nodes(data="label") if label == "C" and graph.degree(atom) == 1]
    if rng.uniform() < 0.5 and len(ends) > 1 and nx.shortest_path_length(graph, ends[0], ends[-1]) in (4, 5):
        graph.add_edge(ends[0], ends[-1])
    return graph


def boiling_point(graph):
    """In kelvin, without noise."""
    ends = [label for atom, label in graph.nodes(data="label") if graph.degree(atom) == 1]
    branches = sum(degree > 2 for _, degree in graph.degree)
    return 180 + 22 * len(graph) + 45 * ends.count("O") + 25 * ends.count("N") - 12 * branches


rng = np.random.default_rng(0)
molecules = [molecule(rng) for _ in range(220)]
y = np.array([boiling_point(graph) for graph in molecules]) + NOISE * rng.normal(size=220)
train, new, measured = molecules[:120], molecules[120:], y[120:]

candidates = [*(k.WeisfeilerLehman(iterations) for iterations in range(5)), k.ShortestPath()]
found = mc.select_kernel(train, y[:120], candidates, progress=False)
print(found.describe())
model = mc.GaussianProcessRegressor(found.kernel, progress=False).fit(train, y[:120])
predicted = model.predict_distribution(new)
lower, upper = predicted.interval(0.95)
error = np.sqrt(np.mean((predicted.mean - measured) ** 2))
coverage = np.mean((measured > lower) & (measured < upper))
print(f"\n{len(new)} new molecules: root mean square error {error:.1f} K; 95% intervals cover {coverage:.0%}")

figure = plt.figure(figsize=(11, 8), layout="constrained")
axes = figure.subplot_mosaic([["choice", "choice", "fit", "fit"], [0, 1, 2, 3]], height_ratios=[5, 3])
names = [f"WeisfeilerLehman({iterations})" for iterations in range(5)] + ["ShortestPath()"]
axes["choice"].plot([tried.score for tried in found.history], names, "o", ms=9)
axes["choice"].invert_yaxis()
axes["choice"].grid(alpha=0.4)
axes["choice"].set(title="which kernel", xlabel="log evidence, penalised for the number of parameters")
mc.plot.predictions(measured, predicted, ax=axes["fit"])
axes["fit"].set(title=f"{len(new)} new molecules", xlabel="predicted (K)", ylabel="measured (K)")
rings = [i for i, graph in enumerate(new) if not nx.is_tree(graph)]
for number, i in enumerate([0, 1, rings[0], rings[1]]):
    colors = [COLORS[label] for _, label in new[i].nodes(data="label")]
    nx.draw(new[i], nx.kamada_kawai_layout(new[i]), ax=axes[number], node_size=110, node_color=colors)
    axes[number].set_title(f"predicted {lower[i]:.0f} to {upper[i]:.0f} K\nmeasured {measured[i]:.0f} K", fontsize=10)
    axes[number].margins(0.12)
atoms = [plt.Line2D([], [], ls="", marker="o", ms=9, color=color, label=label) for label, color in COLORS.items()]
figure.legend(handles=atoms, loc="outside lower center", ncols=3, frameon=False)
plt.show()
