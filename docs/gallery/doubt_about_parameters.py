"""Ten rows, and parameters that ten rows hardly determine: at the mode, and averaged over their posterior.

The best parameters explain the data as a smooth wave with little noise. A longer lengthscale with more noise explains
them nearly as well, and an average over all such parameters, weighted by how well they do, is less sure of itself, most
of all away from the data. Below, the posterior of each parameter beside its weak prior.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(3)
X = rng.uniform(0, 6, size=(10, 1))
y = np.sin(1.3 * X[:, 0]) + 0.3 * rng.normal(size=10)
grid = np.linspace(-2, 8, 200)[:, None]

models = {
    "at the mode": mc.GaussianProcessRegressor(1.0 * k.RBF(), learning="map").fit(X, y),
    "averaged over the parameters": mc.GaussianProcessRegressor(1.0 * k.RBF(), learning="laplace").fit(X, y),
}
figure = plt.figure(figsize=(11, 7), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=[1.3, 1])
axes = above.subplots(1, 2, sharey=True)
for ax, (title, model) in zip(axes, models.items(), strict=True):
    mc.plot.posterior(model, grid, ax=ax, include_noise=True)
    ax.set(title=title, ylim=(-4, 4))
mc.plot.posterior(models["averaged over the parameters"], ax=below.subplots(1, 3))
plt.show()
