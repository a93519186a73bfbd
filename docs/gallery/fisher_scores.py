"""Fisher scores: how a row would change the parameters of a model, and the similarity that this makes.

The score of a row is the gradient of its log density in the parameters of a model, here a mixture of three Gaussians,
learned from 600 points. Top left: scores of some points in the means. Each point would draw the means of the components
that may have generated it towards itself, more strongly the further away it is and the narrower the component. The
Fisher kernel compares scores, in the metric of their covariance, the Fisher information. On the right is the cosine of
the angle between the scores at each place and at the star: red places would change the model in the same way, blue ones
in the opposite way, and white ones in ways that have nothing in common. The two rows have the same model with different
parameters: means and logarithms of variances above, precisions and precisions times means below. With the whole
information the kernel is the same; with its diagonal, or none ("identity"), it depends on how the model was written
down. Bottom left: for comparison, `RBF` knows nothing but the distance.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.special import logsumexp

from mercer import kernels as k
from mercer.core.text import table

CENTRES = np.array([[-2.0, 0.0], [1.5, 1.5], [1.0, -1.5]])
DEVIATIONS = np.array([[0.5, 1.3], [1.0, 0.4], [0.7, 0.7]])


def log_density(weights, precisions, pulls, x):
    """Of a mixture of Gaussians with diagonal precisions (C, d), and precisions times means (C, d)."""
    inside = pulls * x - 0.5 * precisions * x**2 - 0.5 * pulls**2 / precisions + 0.5 * jnp.log(precisions)
    log_weights = weights - logsumexp(weights)
    return logsumexp(log_weights + inside.sum(axis=1)) - len(x) / 2 * jnp.log(2 * jnp.pi)


def by_moments(params, x):
    precisions = jnp.exp(-params["log_variances"])
    return log_density(params["log_weights"], precisions, precisions * params["means"], x)


def by_precisions(params, x):
    return log_density(params["log_weights"], params["precisions"], params["pulls"], x)


rng = np.random.default_rng(0)
X = rng.normal(CENTRES[(which := rng.integers(3, size=600))], DEVIATIONS[which])
learned = k.densities.GaussianMixture(3).fit(X).components
weights, means, variances = (np.asarray(part) for part in (learned.weights, learned.means, learned.variances))
forms = {
    "means and log variances": (
        by_moments,
        {"log_weights": np.log(weights), "means": means, "log_variances": np.log(variances)},
    ),
    "precisions": (
        by_precisions,
        {"log_weights": np.log(weights), "precisions": 1 / variances, "pulls": means / variances},
    ),
}
choices = ["empirical", "diagonal", "identity"]

grid = np.linspace(-4.7, 4.7, 95)
plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
star = np.array([[-2.0, 1.6]])
maps = {
    (form, information): k.Fisher(*forms[form], information=information).fit(X).normalize()(plane, star)[:, 0]
    for form in forms
    for information in choices
}
first, second = forms
rows = [[each, f"{np.abs(maps[first, each] - maps[second, each]).max():.1g}"] for each in choices]
print(table(["information", "largest difference between the forms"], rows))

figure, axes = plt.subplots(2, 4, figsize=(15, 7.8), layout="constrained")
mixture = k.densities.GaussianMixture.of(weights, means, variances)
some = X[100:170]
shares = mixture.responsibilities(mixture.prepare(some))
pulled = shares[:, :, None] * (some[:, None] - means) / variances  # slopes of the log density in the means
axes[0, 0].plot(*X.T, ".", color="0.85", ms=3)
for i, color in enumerate(["tab:green", "tab:purple", "tab:orange"]):
    strong = shares[:, i] > 0.05
    axes[0, 0].quiver(
        *some[strong].T, *pulled[strong, i].T, color=color, angles="xy", scale_units="xy", scale=5, width=0.006
    )
    axes[0, 0].plot(*means[i], "o", color=color, mec="black", ms=9)
axes[0, 0].set_title("scores in the means (circles),\none colour for each component")
drawn = {(1, 0): ("RBF(1.0)", k.RBF(1.0)(plane, star)[:, 0])}
for row, form in enumerate(forms):
    for column, information in enumerate(choices, start=1):
        drawn[row, column] = f'information="{information}"\n{form}', maps[form, information]
for place, (title, values) in drawn.items():
    colored = axes[place].contourf(grid, grid, values.reshape(len(grid), -1), np.arange(-1.05, 1.1, 0.1), cmap="RdBu_r")
    axes[place].plot(*X.T, ".", color="0.4", ms=1.5)
    axes[place].plot(*star.T, "*", color="gold", mec="black", ms=16)
    axes[place].set_title(title)
for ax in axes.flat:
    ax.set(aspect="equal", xlim=(grid[0], grid[-1]), ylim=(grid[0], grid[-1]), xticks=[], yticks=[])
figure.colorbar(colored, ax=axes, label="similarity to the star", shrink=0.8, ticks=np.linspace(-1, 1, 5))
plt.show()
