"""Which points should be centres? Orthogonal least squares takes them one at a time.

Each step takes the data point whose basis function explains most of what is left of the target. Above, the first ones
taken, in their order, and the network they make. Below, the share each explains (the error-reduction ratio), and the
leave-one-out error that says when to stop: the fitted curve has as many centres as its least value asks for.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, size=250))
truth = lambda x: np.sin(x) + 2 * np.exp(-((x - 6.5) ** 2) / 0.1)
t = truth(x) + rng.normal(0, 0.15, size=250)
grid = np.linspace(0, 10, 500)

network = mc.RBFNetwork("loo", centers="ols", kernel=k.RBF(0.4)).fit(x[:, None], t)
path = mc.RBFNetwork(40, centers="ols", kernel=k.RBF(0.4)).fit(x[:, None], t).path_
print(network)

figure = plt.figure(figsize=(10, 7), layout="constrained")
axes = figure.subplot_mosaic([["fit", "fit"], ["share", "error"]], height_ratios=[3, 2])
axes["fit"].plot(x, t, ".", color="0.7")
axes["fit"].plot(grid, truth(grid), color="tab:green", lw=1, label="where the data come from")
axes["fit"].plot(grid, network.predict(grid[:, None]), color="tab:red", lw=2, label="network")
for order, row in enumerate(network.center_indices_[:12], start=1):
    axes["fit"].plot(x[row], t[row], "o", color="tab:blue", ms=6)
    axes["fit"].annotate(str(order), (x[row], t[row]), textcoords="offset points", xytext=(5, 5))
axes["fit"].legend(frameon=False)
axes["fit"].set(xlabel="$x$", ylabel="$t$")
numbers = np.arange(1, len(path.indices) + 1)
axes["share"].semilogy(numbers, path.error_reduction, "o-", ms=3)
axes["share"].set(xlabel="centre", ylabel="share of the variance explained")
axes["error"].plot(numbers, path.training_error, "o-", ms=3, color="tab:gray", label="training")
axes["error"].plot(numbers, path.loo_error, "o-", ms=3, color="tab:red", label="leave one out")
axes["error"].axhline(0.15, color="tab:green", lw=1, label="noise")
axes["error"].axvline(len(network.coef_), color="black", lw=0.8, ls=":")
axes["error"].set(xlabel="number of centres", ylabel="root mean square error", ylim=(0, 0.6))
axes["error"].legend(frameon=False)
plt.show()
