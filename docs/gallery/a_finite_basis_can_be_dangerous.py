"""A finite basis can be dangerous: error bars that vanish where least is known.

Bayesian regression with six localised basis functions (left) is sure of itself away from their centres: there all of
them are zero, and so is every function the model can imagine. The Gaussian kernel stands for infinitely many of them,
centred everywhere (right); its error bars grow where there are no data.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
x = rng.uniform(-3, 3, size=30)
t = np.sin(x) + rng.normal(0, 0.15, size=30)
grid = np.linspace(-10, 10, 500)

basis = mc.basis.Gaussian(np.linspace(-3, 3, 6), width=0.8)
models = {
    "six Gaussian basis functions": k.FeatureMap(basis).fix("width"),
    "a Gaussian process, RBF kernel": 1.0 * k.RBF(lengthscale=1.0),
}
figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
for (title, kernel), ax in zip(models.items(), axes, strict=True):
    model = mc.GaussianProcessRegressor(kernel, normalize=False).fit(x[:, None], t)
    ax.plot(grid, np.sin(grid), "--", color="tab:green", lw=1, label="where the data come from")
    mc.plot.posterior(model, grid, ax=ax)
    ax.set(title=title, xlim=(-10, 10), ylim=(-3.2, 4), xticks=range(-10, 11, 5))
axes[1].set_ylabel(None)
axes[0].plot(grid, 0.7 * basis(grid) - 3, color="0.6", lw=1)
axes[0].text(0, -2.15, "the basis functions", ha="center", color="0.4")
axes[0].get_legend().remove()
axes[1].legend(ncols=2, loc="upper center")
plt.show()
