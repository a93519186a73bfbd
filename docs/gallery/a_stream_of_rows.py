"""A stream of rows: `partial_fit`, with a budget of basis vectors.

Twelve hundred measurements arrive in order, a hundred at a time, and are not kept. What is kept is the distribution of
the function at no more than forty rows (dots). Where nothing has been measured yet, intervals are as wide as before. A
larger budget loses fewer nats; with enough of it, nothing is lost.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(3)
x = np.sort(rng.uniform(0, 10, size=1200))
truth = lambda x: np.sin(2 * x) + 0.3 * np.cos(5 * x)
y = truth(x) + 0.3 * rng.normal(size=len(x))
X, grid = x[:, None], np.linspace(0, 10, 300)[:, None]
settings = {"noise": 0.09, "normalize": False, "learning": None, "progress": False}


def streamed(budget, last):
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(0.5), budget=budget, **settings)
    for i in range(0, last, 100):
        model.partial_fit(X[i : i + 100], y[i : i + 100])
    return model


figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained", width_ratios=[1, 1, 0.7])
for ax, last in zip(axes, (400, 1200), strict=False):
    model = streamed(40, last)
    mc.plot.posterior(model, grid, ax=ax)
    ax.plot(grid, truth(grid[:, 0]), color="black", lw=1, ls="--", label="truth")
    for line in ax.lines:
        line.set_label({"data": "basis vectors"}.get(line.get_label(), line.get_label()))
    ax.set_title(f"after {last:,} rows")
    ax.legend(fontsize="small")
budgets = (10, 15, 20, 25, 30)
models = [streamed(budget, 1200) for budget in budgets]
errors = [np.sqrt(np.mean((model.predict(grid) - truth(grid[:, 0])) ** 2)) for model in models]
lost = [model.numerics_["lost_nats"] for model in models]
axes[2].semilogy(budgets, errors, "o-", label="error")
axes[2].semilogy(budgets, np.maximum(lost, 1e-6), "s--", label="nats lost")
axes[2].set(xlabel="budget", title="more budget loses less")
axes[2].legend()
for budget, error, nats in zip(budgets, errors, lost, strict=True):
    print(f"budget {budget:2}: error {error:.3f}, nats lost {nats:.2g}")
plt.show()
