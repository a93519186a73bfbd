"""Twelve readings of a pipe, three kinds of flow: which rows are alike, in a plane? Four maps, without the labels.

Each kind of flow lies on a curved sheet of its own, in two hidden quantities (fractions of oil and water); the readings
are attenuations of twelve rays, of unequal length through both. Principal components can only flatten the sheets on top
of each other. A Gaussian process over latent points unrolls them: fewer rows have a nearest neighbour of another kind.
The bound of Titsias and Lawrence begins with five dimensions and keeps the few that it needs. Where the background is
dark, a small step changes the readings much: the borders between the kinds.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

import mercer as mc
from mercer.core.text import table

rng = np.random.default_rng(2)
kinds = np.repeat(["stratified", "annular", "mixed"], 24)
oil, water = rng.uniform(0.05, 0.45, size=(2, 72))
rays = np.linspace(-0.9, 0.9, 6)[:, None]
half = np.sqrt(1 - rays**2)  # of the path of a ray through the pipe
level = 1 - 2 * oil
below, above = np.clip(4 * (rays - level), 0, 1), np.clip(-4 * (rays - (2 * water - 1)), 0, 1)
core, shell = np.sqrt(np.maximum(oil - rays**2, 0)), np.sqrt(np.maximum(1 - water - rays**2, 0))
paths = {  # through oil, and through water
    "stratified": (2 * half * below, 2 * half * above),
    "annular": (2 * core, 2 * (half - shell)),
    "mixed": (2 * half * oil, 2 * half * water),
}
X = np.empty((72, 12))
for kind, (through_oil, through_water) in paths.items():
    own = kinds == kind
    X[own] = np.vstack([through_oil + 0.5 * through_water, 0.3 * through_oil + through_water]).T[own]
X += 0.01 * rng.normal(size=X.shape)


def errors(points):
    """Rows whose nearest neighbour is of another kind."""
    away = ((points[:, None] - points) ** 2).sum(-1)
    np.fill_diagonal(away, np.inf)
    return int((kinds[away.argmin(axis=1)] != kinds).sum())


models = {
    "generative topographic mapping": mc.GenerativeTopographicMapping(n_points=16, progress=False),
    "latent variables": mc.GaussianProcessLatentVariables(max_iterations=100, progress=False),
    "latent variables, bound": mc.GaussianProcessLatentVariables(
        5, bayesian=True, n_inducing=16, max_iterations=150, progress=False
    ),
}
flat = PCA(2).fit_transform((X - X.mean(axis=0)) / X.std(axis=0))
rows = [["principal components", "2", str(errors(flat))]]
figure, axes = plt.subplots(2, 2, figsize=(11.5, 9), layout="constrained")
for kind, color in zip(np.unique(kinds), plt.get_cmap("tab10").colors, strict=False):
    axes.flat[0].scatter(*flat[kinds == kind].T, s=22, color=color, label=kind)
axes.flat[0].set(title="principal components", xlabel="component 1", ylabel="component 2")
for ax, (name, model) in zip(axes.flat[1:], models.items(), strict=True):
    model.fit(X)
    mc.plot.latent(model, labels=kinds, ax=ax)
    ax.set_title(name)
    relevance = getattr(model, "relevance_", np.ones(2))
    points = model.embedding_ * np.sqrt(relevance) / model.embedding_.std(axis=0)
    rows.append([name, str(int((relevance >= 0.01).sum())), str(errors(points))])
print(table(["map", "dimensions used", "neighbours of another kind"], rows))
print()
print(models["latent variables, bound"])
plt.show()
