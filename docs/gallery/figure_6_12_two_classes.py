"""Figure 6.12: a Gaussian process classifier, and the best that anyone could do.

One class is drawn from a Gaussian, the other from a mixture of two, so the optimal boundary is known: where the two
densities are equal (green). The process sees 100 points of each and finds the black one, which is close to it where
there are data. Right: the probability of the red class, which fades towards one half where there are none.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import mercer as mc

# Blue is one Gaussian, red a mixture of two: weight, mean, standard deviations along the axes.
BLUE = [(1.0, [-0.1, 0.0], [0.55, 0.75])]
RED = [(0.5, [-1.3, 1.1], [0.5, 0.4]), (0.5, [1.2, -0.2], [0.45, 0.85])]
rng = np.random.default_rng(1)


def draw(n):
    """n points of each class: (2n, 2), (2n,)."""
    points = []
    for mixture in (BLUE, RED):
        weights, means, deviations = map(np.array, zip(*mixture, strict=True))
        which = rng.choice(len(weights), size=n, p=weights)
        points.append(rng.normal(means[which], deviations[which]))
    return np.concatenate(points), np.repeat(["blue", "red"], n)


def log_density(X, mixture):
    terms = [
        np.log(w / np.prod(s)) - 0.5 * np.sum(((X - m) / s) ** 2, axis=-1)
        for w, m, s in [(w, np.array(m), np.array(s)) for w, m, s in mixture]
    ]
    return logsumexp(terms, axis=0)


def log_odds(X):
    """Of red against blue, by the densities the points are drawn from; its zero is the optimal boundary."""
    return log_density(X, RED) - log_density(X, BLUE)


X, y = draw(100)
model = mc.GaussianProcessClassifier(progress=False).fit(X, y)
fresh, truth = draw(20_000)
print(f"error of the process       {np.mean(model.predict(fresh) != truth):.1%}")
print(f"error of the optimal rule  {np.mean((log_odds(fresh) > 0) != (truth == 'red')):.1%}")

grid = np.linspace(-2.9, 2.9, 90)
plane = np.stack(np.meshgrid(grid, grid), axis=-1)
p = model.predict_proba(plane.reshape(-1, 2))[:, 1].reshape(90, 90)
print(f"probability of red in the corners of the picture: {p[[0, 0, -1, -1], [0, -1, 0, -1]].round(2)}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10.6, 4.8), layout="constrained")
left.contour(grid, grid, log_odds(plane), levels=[0.0], colors="tab:green", linewidths=2)
left.plot(*X[y == "blue"].T, "x", color="tab:blue", ms=5)
left.plot(*X[y == "red"].T, "o", color="tab:red", ms=5, mfc="none")
shown = right.contourf(grid, grid, p, levels=np.linspace(0, 1, 21), cmap="coolwarm")
figure.colorbar(shown, ax=right, ticks=np.linspace(0, 1, 6), label="probability of red")
for ax in (left, right):
    ax.contour(grid, grid, p, levels=[0.5], colors="black", linewidths=2)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
left.plot([], [], color="tab:green", lw=2, label="optimal")
left.plot([], [], color="black", lw=2, label="Gaussian process")
left.legend(loc="upper right", title="boundary", title_fontsize="small", fontsize="small")
plt.show()
