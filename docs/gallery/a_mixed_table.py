"""A mixed table: a number, categories, a string and a graph in one kernel expression.

The yield of a made-up reaction depends on the temperature, on the solvent, on whether the enzyme's sequence contains
HDE, and on the branches of the molecule; the batch has no effect. Each column, selected by name, gets a kernel that can
read it. The sum of these kernels is the covariance of a Gaussian process, and the evidence decides how much each of
them counts. `decompose` then gives the effect of each column separately: each is close to the truth, and the batch has
none. A solvent that was never tried is predicted too, with a wider interval.
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd

import mercer as mc
from mercer import kernels as k

SOLVENTS = {"water": 6.0, "ethanol": 2.0, "toluene": -3.0, "hexane": -5.0}
NOISE = 1.5  # percentage points, a standard deviation


def enzyme(rng):
    """Twelve letters, with HDE put into half of the sequences."""
    letters = rng.choice(list("ACDEFGHK"), size=12)
    if rng.uniform() < 0.5:
        start = rng.integers(10)
        letters[start : start + 3] = list("HDE")
    return "".join(letters)


def tree(rng):
    """A tree of 5 to 10 nodes without labels."""
    graph = nx.Graph()
    graph.add_node(0)
    for atom in range(1, rng.integers(5, 11)):
        graph.add_edge(atom, rng.integers(max(0, atom - 3), atom))
    return graph


EFFECTS = {  # in percentage points of yield
    "temperature": lambda T: 8 * np.exp(-(((T - 60) / 15) ** 2)),
    "solvent": SOLVENTS.get,
    "sequence": lambda s: 6.0 * ("HDE" in s),
    "molecule": lambda g: -2.0 * sum(degree > 2 for _, degree in g.degree),
    "batch": lambda b: 0.0,
}


def rows(rng, n):
    """A table, the true effect of each cell, and the measured yields in percent."""
    table = pd.DataFrame(
        {
            "temperature": rng.uniform(20, 100, n).round(1),
            "solvent": rng.choice(list(SOLVENTS), n),
            "sequence": [enzyme(rng) for _ in range(n)],
            "molecule": [tree(rng) for _ in range(n)],
            "batch": rng.integers(1, 9, n),
        }
    )
    effects = table.apply(lambda column: column.map(EFFECTS[column.name])).astype(float)
    return table, effects, 50 + effects.sum(axis=1) + NOISE * rng.normal(size=n)


rng = np.random.default_rng(0)
table, _, y = rows(rng, 200)
new, truth, y_new = rows(rng, 100)

kernel = (
    (1.0 * k.RBF(lengthscale=20.0).on("temperature")).named("temperature")
    + (1.0 * k.Categorical().on("solvent")).named("solvent")
    + (1.0 * k.Spectrum(3).normalize().on("sequence")).named("sequence")
    + (1.0 * k.WeisfeilerLehman(1).normalize().on("molecule")).named("molecule")
    + (1.0 * k.Categorical().on("batch")).named("batch")
)
model = mc.GaussianProcessRegressor(kernel, progress=False).fit(table, y)
print(model)
predicted = model.predict_distribution(new)
lower, upper = predicted.interval(0.95)
error, coverage = np.sqrt(np.mean((predicted.mean - y_new) ** 2)), np.mean((y_new > lower) & (y_new < upper))
print(f"\n{len(new)} new rows: root mean square error {error:.1f} points; 95% intervals cover {coverage:.0%}")
first = new.iloc[[0, 0]].assign(solvent=["water", "acetone"])
low, high = model.predict_distribution(first).interval(0.95)
water, acetone = (f"{a:.0f} to {b:.0f}%" for a, b in zip(low, high, strict=True))
print(f"the first of them in water: {water}; in acetone, which no row has: {acetone}")

# Which term holds how much of the common level is not determined, so every effect is compared with its own mean.
effects = {name: mean - mean.mean() for name, (mean, _) in model.decompose(new).items()}
truth -= truth.mean()

figure, axes = plt.subplots(2, 3, figsize=(12, 7.5), layout="constrained")
order = np.argsort(new["temperature"])
axes[0, 0].plot(new["temperature"].iloc[order], truth["temperature"].iloc[order], "k--", label="truth")
axes[0, 0].plot(new["temperature"].iloc[order], effects["temperature"][order], color="tab:red", label="learned")
axes[0, 0].set(xlabel="temperature (°C)", ylabel="effect on the yield\n(percentage points)")
axes[0, 0].legend()
for i, solvent in enumerate(SOLVENTS):
    which = (new["solvent"] == solvent).to_numpy()
    axes[0, 1].bar(i - 0.2, truth["solvent"][which].mean(), 0.4, color="0.6", label=None if i else "truth")
    axes[0, 1].bar(i + 0.2, effects["solvent"][which].mean(), 0.4, color="tab:red", label=None if i else "learned")
axes[0, 1].axhline(0, color="black", lw=0.6)
axes[0, 1].set_xticks(range(len(SOLVENTS)), SOLVENTS)
axes[0, 1].legend()
for ax, name in ((axes[0, 2], "sequence"), (axes[1, 0], "molecule")):
    ax.axline((0, 0), slope=1, color="black", ls="--", lw=1, label="truth")
    beside = truth[name] + rng.uniform(-0.15, 0.15, len(new))
    ax.plot(beside, effects[name], "o", color="tab:red", ms=4, alpha=0.6, label="learned, a row each")
    ax.legend(loc="upper left")
    ax.set(xlabel="true effect (percentage points)", ylabel="learned effect")
variances = [np.var(effects[name]) for name in EFFECTS]
axes[1, 1].barh(list(EFFECTS), variances, color="tab:red")
axes[1, 1].invert_yaxis()
axes[1, 1].set(title="how much each column matters", xlabel="variance of its learned effect (squared points)")
mc.plot.predictions(y_new, predicted, ax=axes[1, 2])
axes[1, 2].set(title="all together", xlabel="predicted yield (%)", ylabel="measured yield (%)")
for ax, name in zip(axes.flat, list(EFFECTS)[:4], strict=False):
    ax.set_title(name)
plt.show()
