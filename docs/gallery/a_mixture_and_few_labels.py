"""A mixture learned from many points, so that few of them need a label; and what happens if it does not fit.

Eight narrow arms of 75 points each belong to two classes in turn. `RBF` finds two points similar if they are near each
other, whatever lies between. `Mixture(model).normalize()` finds them similar if the same component of a mixture of
Gaussians is likely to have generated both, and the mixture is learned from all points, without labels. Above: the
mixture, with ellipses at one and two standard deviations, and the similarity of every place to the star. Along its arm
it is 1 from end to end, and it ends where another arm begins; it does not fade with distance from the data, where one
component is still more likely than the others. Below: errors on the points without labels, and the probability of the
red class that Gaussian process classifiers give from 16 labels. The arms that are shown were made nearly straight, so
that Gaussians fit them. The dashed lines are for arms that bend more, which no Gaussian follows: there the mixture
helps only while labels are very few, and RBF overtakes it.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

import mercer as mc
from mercer import kernels as k
from mercer.core.text import table

ARMS, PER_ARM, SHOWN = 8, 75, 16
COUNTS, DRAWS = [8, 16, 32, 64], 5
BENDS = {"nearly straight": 0.3, "bent": 0.5}  # radians for one unit along an arm
COLORS = {"RBF": "tab:orange", "Mixture": "tab:green"}


def arms(rng, bend):
    """Points along bent arms (n, 2), and the arm of each."""
    arm = np.repeat(np.arange(ARMS), PER_ARM)
    along, across = rng.uniform(0.6, 2.0, size=len(arm)), rng.normal(0.0, 0.08, size=len(arm))
    angle = 2 * np.pi * arm / ARMS + bend * along
    turn = np.stack([np.cos(angle), np.sin(angle)])
    return 1.9 * np.column_stack([along * turn[0] - across * turn[1], along * turn[1] + across * turn[0]]), arm


def labelled(rng, arm, n):
    """Row numbers of n points, as many from each arm."""
    return np.concatenate([rng.choice(np.flatnonzero(arm == own), n // ARMS, replace=False) for own in range(ARMS)])


rng = np.random.default_rng(0)
errors, models = {}, {}
for shape, bend in reversed(BENDS.items()):  # the shape that is drawn comes last
    X, arm = arms(rng, bend)
    y = arm % 2
    mixture = k.densities.GaussianMixture(ARMS, "full").fit(X)  # from all points, without labels
    kernels = {"RBF": 1.0 * k.RBF(0.5), "Mixture": 1.0 * k.Mixture(mixture).normalize()}
    for name in kernels:
        errors[name, shape] = np.zeros((len(COUNTS), DRAWS))
    for number, n in enumerate(COUNTS):
        for draw in range(DRAWS):
            some = labelled(rng, arm, n)
            rest = np.setdiff1d(np.arange(len(X)), some)
            for name, kernel in kernels.items():
                model = mc.GaussianProcessClassifier(kernel, progress=False).fit(X[some], y[some])
                errors[name, shape][number, draw] = np.mean(model.predict(X[rest]) != y[rest])
                if n == SHOWN:
                    models[name] = model, some
rows = [[str(n), *(f"{errors[key][i].mean():.1%}" for key in errors)] for i, n in enumerate(COUNTS)]
print(table(["labels", *(f"{name}, {shape}" for name, shape in errors)], rows))

grid = np.linspace(-4.2, 4.2, 121)
plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
star = np.argmin(np.linalg.norm(X - [2.2, 1.2], axis=1))
figure, axes = plt.subplots(2, 3, figsize=(13, 8.4), layout="constrained")
axes[0, 0].plot(*X.T, ".", color="0.6", ms=3)
for mean, factor in zip(mixture.components.means, mixture.components.factors, strict=True):
    values, vectors = np.linalg.eigh(factor @ factor.T)
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    for deviations in (1, 2):
        size = 2 * deviations * np.sqrt(values[::-1])
        axes[0, 0].add_patch(Ellipse(mean, *size, angle=angle, fill=False, color="tab:green", lw=1.5))
axes[0, 0].set_title("all points, without labels,\nand the mixture learned from them")
for column, name in enumerate(kernels, start=1):
    model, some = models[name]
    similarity = np.clip(model.kernel_.normalize()(plane, X[[star]]), 0, 1).reshape(len(grid), -1)
    p = model.predict_proba(plane)[:, 1].reshape(len(grid), -1)
    above, below = axes[0, column], axes[1, column]
    levels = np.linspace(0, 1, 11)
    of_star = above.contourf(grid, grid, similarity, levels=levels, cmap="Greens")
    above.plot(*X.T, ".", color="0.3", ms=2)
    above.plot(*X[star], "*", color="tab:red", ms=16, mec="white")
    above.set_title(f"similarity to the star: {name}")
    of_class = below.contourf(grid, grid, p, levels=levels, cmap="coolwarm", alpha=0.7)
    below.contour(grid, grid, p, levels=[0.5], colors="black")
    for label, color in enumerate(["tab:blue", "tab:red"]):
        below.plot(*X[y == label].T, ".", color=color, ms=2)
        below.plot(*X[some][y[some] == label].T, "o", color=color, mec="black", ms=8)
    below.set_title(f"p(red) from {SHOWN} labels (circles): {name}")
figure.colorbar(of_star, ax=axes[0, 1:], label="similarity")
figure.colorbar(of_class, ax=axes[1, 1:], label="p(red)")
for ax in [*axes[0], *axes[1, 1:]]:
    ax.set(aspect="equal", xlim=(grid[0], grid[-1]), ylim=(grid[0], grid[-1]), xticks=[], yticks=[])
for (name, shape), found in errors.items():
    style = "o-" if shape == "nearly straight" else "o--"
    axes[1, 0].plot(COUNTS, found.mean(axis=1), style, color=COLORS[name], label=f"{name}, {shape}")
axes[1, 0].set_title(f"errors, mean of {DRAWS} draws of labels")
axes[1, 0].set(xlabel="labels", ylabel="share of errors", ylim=(-0.01, None))
axes[1, 0].set_xscale("log")
axes[1, 0].set_xticks(COUNTS, COUNTS)
axes[1, 0].minorticks_off()
axes[1, 0].legend()
plt.show()
