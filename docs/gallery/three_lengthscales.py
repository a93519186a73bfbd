"""Three lengthscales for the same data: too short, learned and too long, with the evidence of each.

The shortest comes closest to the points, but the evidence does not favour it: a function that could have gone anywhere
explains little of where it went. The log evidence (6.69) is a fit, -1/2 t^T C^-1 t, and a price of complexity,
-1/2 ln|C|, up to a constant; the learned lengthscale balances the two.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(4)
x = rng.uniform(-4, 4, size=20)
t = np.sin(1.5 * x) + 0.3 * x + rng.normal(0, 0.2, size=20)
noise = 0.2**2
grid = np.linspace(-5, 5, 400)

model = mc.GaussianProcessRegressor(k.RBF(), noise=noise, normalize=False).fit(x[:, None], t)
learned = float(model.kernel_.lengthscale)

figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
curve = axes[1, 1]
choices = [("too short", 0.15, "tab:orange"), ("learned", learned, "tab:green"), ("too long", 3.5, "tab:purple")]
for (word, lengthscale, colour), ax in zip(choices, axes.flat, strict=False):
    process = mc.GP(k.RBF(lengthscale=lengthscale))
    evidence = process.log_likelihood(x, t, noise)
    mc.plot.posterior(process.condition(x, t, noise), grid, ax=ax, color=colour)
    ax.set(title=rf"{word}: $\ell$ = {lengthscale:.2f}, log evidence {evidence:.1f}", ylim=(-3.2, 4))
    ax.legend(loc="upper center", ncols=3)
    curve.plot(lengthscale, evidence, "o", color=colour, ms=8, zorder=3, label=word)

lengthscales = np.geomspace(0.05, 10, 100)
evidence, complexity = np.zeros(100), np.zeros(100)
for i, lengthscale in enumerate(lengthscales):
    process = mc.GP(k.RBF(lengthscale=lengthscale))
    evidence[i] = process.log_likelihood(x, t, noise)
    complexity[i] = -0.5 * np.linalg.slogdet(process.covariance(x) + noise * np.eye(20))[1]
curve.plot(lengthscales, evidence, color="black", label="log evidence")
curve.plot(lengthscales, evidence - complexity + 10 * np.log(2 * np.pi), "--", color="0.4", label="fit")
curve.plot(lengthscales, complexity, ":", color="0.4", label="complexity")
curve.set(
    xscale="log", xlim=(0.05, 10), ylim=(-90, 45), xlabel=r"lengthscale $\ell$", title="the evidence, in two parts"
)
curve.legend(loc="lower left", ncols=2)
plt.show()
