"""Five thousand labels in batches: where the centres are, what the probabilities become, and the bound on the way.

``solver="minibatch"`` learns from batches of the rows, through the values of the function at a few centres (crosses).
Here two classes, told apart by a wavy line, a fifth of the labels near it wrong. The bound on the evidence rises as
parameters are learned; the posterior is then the best one for these centres.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, size=(5000, 2))
latent = lambda X: 4 * (X[:, 1] - np.sin(2 * X[:, 0]))
y = rng.uniform(size=len(X)) < expit(latent(X))

solver = mc.solvers.Minibatch(n_centers=60, batch=500, epochs=4)
model = mc.GaussianProcessClassifier(1.0 * k.RBF([2.0, 2.0]), solver=solver, progress=False).fit(X, y)
print(model)

axis = np.linspace(-3, 3, 80)
grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
P = model.predict_proba(grid)[:, 1]
print(f"mean error of a probability {np.abs(P - expit(latent(grid))).mean():.3f}")
print(f"share of the prior variance that the centres leave {model.numerics_['left']:.1e}")

figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
for ax, values, title in ((axes[0], P, "learned"), (axes[1], expit(latent(grid)), "true")):
    drawn = ax.contourf(axis, axis, values.reshape(80, 80), levels=np.linspace(0, 1, 11), cmap="coolwarm", alpha=0.8)
    ax.set_title(f"probability, {title}")
centres = model.posterior_.X
axes[0].plot(centres[:, 0], centres[:, 1], "kx", ms=4)
figure.colorbar(drawn, ax=axes[1])
steps = [step for step in model.history_ if step.rows == solver.batch][1:]  # at the first, nothing was known
axes[2].plot(10 * np.arange(1, len(steps) + 1), [step.value for step in steps], "o-", label="from a batch")
axes[2].axhline(model.log_marginal_likelihood_, color="black", ls="--", label="at the end, from all rows")
axes[2].set(xlabel="step", ylabel="bound on the log evidence", title="learning")
axes[2].legend()
plt.show()
