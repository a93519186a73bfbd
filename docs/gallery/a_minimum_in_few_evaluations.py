"""Bayesian optimisation: where to evaluate next, when each evaluation is dear.

A function of one input, of which six values are known (top). The next one is taken where the logarithm of the expected
improvement is largest (bottom): where the mean is low, or the doubt is large. After six more evaluations the minimum is
found. The grey histogram is the posterior of the place of the minimum, from functions drawn.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer.models.optimizer import log_expected_improvement


def dear(x):
    return np.sin(3 * x) + 0.3 * (x - 1.5) ** 2 + 0.4 * np.cos(9 * x)


optimizer = mc.Optimizer([(0.0, 4.0)], n_initial=6, noise=0.0, random_state=3)
grid = np.linspace(0, 4, 300)
fig, axes = plt.subplots(2, 2, figsize=(10, 5), sharex=True, height_ratios=[3, 1], layout="constrained")
first = optimizer.ask(6)
optimizer.tell(first, dear(first[:, 0]))

for column, further in zip(axes.T, (0, 6), strict=True):
    for _ in range(further):
        x = optimizer.ask()
        optimizer.tell(x, dear(x[:, 0]))
    x = optimizer.ask()
    model, (top, bottom) = optimizer.model, column
    posterior, unit = model.posterior_, grid[:, None] / 4
    mean, variance = posterior.moments(unit)
    size = optimizer._size * model.scale_
    level = optimizer._natural(model.center_)
    shown, deviation = level + size * mean, size * np.sqrt(variance)
    top.fill_between(grid, shown - 1.96 * deviation, shown + 1.96 * deviation, color="tab:red", alpha=0.15, lw=0)
    top.plot(grid, shown, color="tab:red")
    top.plot(grid, dear(grid), "k--", lw=1)
    top.plot(optimizer.X[:, 0], optimizer.y, "o", color="tab:blue", ms=5)
    top.set(ylim=(-2.2, 3), title=f"after {len(optimizer.y)} evaluations")
    lowest = mc.tools.minimum(posterior, [(0, 1)], size=300)
    where = top.twinx()
    where.hist(4 * lowest.x[:, 0], bins=40, range=(0, 4), color="0.5", alpha=0.5)
    where.set(ylim=(0, 900), yticks=[])
    value = log_expected_improvement(mean, variance, posterior.mean(posterior.data[0]).min())
    bottom.plot(grid, value, color="tab:green")
    bottom.axvline(x[0, 0], color="tab:green", ls=":")
    bottom.set(xlabel="$x$", ylim=(-12, 0.5))
    optimizer.pending = optimizer.pending[:0]
axes[0, 0].set(ylabel="$f(x)$")
axes[1, 0].set(ylabel="log expected\nimprovement")
plt.show()
