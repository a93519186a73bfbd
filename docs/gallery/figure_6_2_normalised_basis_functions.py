"""Figure 6.2: Gaussian basis functions, plain and normalised.

Plain basis functions leave regions where all of them are small (right of the last centre, and in the gap). Normalised
ones (6.41) sum to one everywhere: there is always one that answers. Below, what a network makes of either with the same
centres and the same data, beyond them too.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
centers = np.array([-1.0, -0.7, -0.45, -0.2, 0.1, 0.7])[:, None]
x = rng.uniform(-1, 0.8, size=60)[:, None]
t = np.sin(3 * x[:, 0]) + 1.5 + rng.normal(0, 0.1, size=60)
grid = np.linspace(-2, 2, 400)[:, None]

figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, sharey="row", layout="constrained")
for normalized, (above, below) in zip([False, True], axes.T, strict=True):
    network = mc.RBFNetwork(centers=centers, normalized=normalized, kernel=k.RBF(0.17), fit_intercept=False, alpha=1e-3)
    network.fit(x, t)
    above.plot(grid, network.basis(grid))
    above.set_title("normalised" if normalized else "plain")
    below.plot(x, t, "o", ms=3, color="tab:blue")
    below.plot(grid, network.predict(grid), color="tab:red", lw=2)
    below.set_xlabel("$x$")
axes[0, 0].set_ylabel("basis functions")
axes[1, 0].set_ylabel("network")
plt.show()
