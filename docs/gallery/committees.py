"""A committee: parts of the rows have exact processes of their own, and their predictions are combined.

Six hundred rows in ten parts, at the same parameters. Intervals of the product are too wide where there are rows. The
Bayesian committee is too sure where they end, and so, a little less, are robust weights. In the generalised committee
all members share a part, so they know what they have in common: its intervals are nowhere much too narrow.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(1)
x = np.concatenate([rng.uniform(-6, -1, 300), rng.uniform(1, 6, 300)])
truth = lambda x: np.sin(x) + 0.2 * x
y = truth(x) + 0.4 * rng.normal(size=len(x))
X, grid = x[:, None], np.linspace(-9, 9, 300)[:, None]
kernel, settings = 1.0 * k.RBF(1.0), {"noise": 0.16, "normalize": False, "learning": None, "progress": False}
exact = mc.GaussianProcessRegressor(kernel, **settings).fit(X, y)
mean, deviation = exact.predict(grid, return_std=True, include_noise=False)

figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained", sharex=True, sharey=True)
for ax, weights in zip(axes.ravel(), ("product", "bayesian", "robust", "generalised"), strict=True):
    solver = mc.solvers.Committee(n_parts=10, weights=weights)
    model = mc.GaussianProcessRegressor(kernel, solver=solver, **settings).fit(X, y)
    mc.plot.posterior(model, grid, ax=ax)
    for sign in (-1.96, 1.96):
        ax.plot(grid, mean + sign * deviation, color="black", lw=1, ls="--", label="exact" if sign > 0 else None)
    ax.set(title=f"weights={weights!r}", ylim=(-4, 4))
    ax.legend(fontsize="small")
    own, spread = model.predict(grid, return_std=True, include_noise=False)
    width = np.mean(spread[np.abs(grid[:, 0]) < 6] / deviation[np.abs(grid[:, 0]) < 6])
    print(f"{weights:11} largest difference of means {np.abs(own - mean).max():.2f}, width of intervals {width:.2f}")
plt.show()
