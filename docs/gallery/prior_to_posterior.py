"""From prior to posterior: functions drawn before any data, and after one, three and eight measurements.

Each panel is a Gaussian process of its own: the posterior of the one before it, given the points that are new.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

grid = np.linspace(-5, 5, 400)
x = np.array([0.5, -2.5, 2.8, -4.2, -1.2, 1.6, 3.9, -3.3])
t = np.sin(x) + 0.3 * x + np.random.default_rng(0).normal(0, 0.1, size=8)

figure, axes = plt.subplots(2, 2, figsize=(11, 6.5), sharex=True, sharey=True, layout="constrained")
process, seen = mc.GP(k.RBF(lengthscale=1.2)), 0
titles = {0: "the prior", 1: "after one measurement", 3: "after three measurements", 8: "after eight measurements"}
for (n, title), ax in zip(titles.items(), axes.flat, strict=True):
    process = process.condition(x[seen:n], t[seen:n], noise=0.01)
    seen = n
    mc.plot.samples(process, grid, size=5, seed=3, ax=ax, lw=0.8, alpha=0.8)
    mc.plot.posterior(process, grid, ax=ax, color="black").set_title(title)
    ax.label_outer()
    if n < 8:
        ax.get_legend().remove()
axes[0, 0].set_ylim(-3.2, 3.2)
plt.show()
