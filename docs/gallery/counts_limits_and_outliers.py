"""Counts, detection limits and outliers: one function, three ways to measure it, and what a likelihood makes of each.

Grey: a Gaussian likelihood. Its intervals for counts reach below zero, it takes the detection limit for a
measurement, and it follows the outliers.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc

rng = np.random.default_rng(2)
x = np.sort(rng.uniform(0, 6, size=70))
X, grid = x[:, None], np.linspace(0, 6, 200)[:, None]
truth = lambda x: 1.2 * np.sin(1.3 * x)

outliers = truth(x) + 0.15 * rng.normal(size=70)
outliers[rng.permutation(70)[:8]] += rng.choice([-1, 1], 8) * rng.uniform(2, 4, 8)
cases = {
    "poisson": (rng.poisson(np.exp(truth(x))), {}, lambda x: np.exp(truth(x)), "counts"),
    "censored": (np.maximum(truth(x) + 0.15 * rng.normal(size=70), -0.5), {"lower": -0.5}, truth, "a detection limit"),
    "student": (outliers, {}, truth, "outliers"),
}
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
for (name, (y, sides, f, title)), ax in zip(cases.items(), axes, strict=True):
    plain = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    model = mc.GaussianProcessRegressor(likelihood=name, progress=False).fit(X, y, **sides)
    low, high = plain.predict_distribution(grid).interval(0.9)
    ax.fill_between(grid[:, 0], low, high, color="0.5", alpha=0.2, lw=0)
    ax.plot(grid, plain.predict(grid), color="0.5", lw=1, label="gaussian")
    mc.plot.posterior(model, grid, ax=ax, include_noise=True, level=0.9)
    ax.plot(grid, f(grid[:, 0]), color="black", lw=1, ls="--", label="truth")
    ax.set_title(f"{title}: likelihood={name!r}")
    ax.legend(fontsize="small")
    errors = [np.sqrt(np.mean((m.predict(grid) - f(grid[:, 0])) ** 2)) for m in (model, plain)]
    print(f"{name:9} error {errors[0]:.2f}, gaussian {errors[1]:.2f}")
plt.show()
