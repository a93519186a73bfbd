"""Kernel PCA and the kernel Fisher discriminant on two rings, which no line separates.

Principal components of the inputs are the inputs, turned. In the feature space of a Gaussian kernel the third
component is the radius; Fisher's discriminant, which knows the labels, needs one direction. Below, its
probabilities over the plane, and what kernel PCA makes of noisy points when it maps them back (pre-images).
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
angle, ring = rng.uniform(0, 2 * np.pi, size=300), rng.integers(2, size=300)
radius = np.where(ring, 2.5, 1.0) + rng.normal(0, 0.3, size=300)
X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
colours = np.array(["tab:blue", "tab:red"])[ring]

components = mc.KernelPCA(8, k.RBF(1.5)).fit(X)
fisher = mc.KernelFisherDiscriminant(k.RBF(1.0)).fit(X, np.array(["inner", "outer"])[ring])
print(fisher)

figure, axes = plt.subplots(2, 2, figsize=(10, 9), layout="constrained")
scores = components.transform(X)
axes[0, 0].scatter(*X.T, s=8, c=colours)
axes[0, 0].set(title="two rings", aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
axes[0, 1].scatter(scores[:, 0], scores[:, 2], s=8, c=colours)
axes[0, 1].set(title="kernel PCA", xlabel="first component", ylabel="third component")

grid = np.linspace(-3.5, 3.5, 80)
plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
p = fisher.predict_proba(plane)[:, 1].reshape(80, 80)
shown = axes[1, 0].contourf(grid, grid, p, levels=np.linspace(0, 1, 11), cmap="coolwarm", alpha=0.6)
axes[1, 0].contour(grid, grid, p, levels=[0.5], colors="black")
axes[1, 0].scatter(*X.T, s=6, c=colours)
axes[1, 0].set(title="kernel Fisher discriminant: p(outer)", aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
figure.colorbar(shown, ax=axes[1, 0], shrink=0.8)

noisy = X[:80] + rng.normal(0, 0.3, size=(80, 2))
clean = components.inverse_transform(components.transform(noisy))
axes[1, 1].scatter(*X.T, s=4, c="0.8")
axes[1, 1].plot(*np.stack([noisy, clean]).transpose(2, 0, 1), color="0.6", lw=0.6)
axes[1, 1].scatter(*noisy.T, s=8, c="tab:gray", label="noisy")
axes[1, 1].scatter(*clean.T, s=12, c="tab:green", label="mapped back from 8 components")
axes[1, 1].set(title="pre-images", aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
axes[1, 1].legend(loc="upper right", fontsize="small")
plt.show()
