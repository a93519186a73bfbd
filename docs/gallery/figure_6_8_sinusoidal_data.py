"""Figure 6.8: Gaussian process regression on the sinusoidal data, with the three right-most points left out.

Green is the function the points were made from, red the predictive mean, shaded the central 95% interval. To the right,
where there are no data, the prediction returns to zero, its mean before data, and its uncertainty grows.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(1)
x = np.linspace(0, 1, 10)
t = np.sin(2 * np.pi * x) + rng.normal(0, 0.3, size=10)
x, t = x[:-3], t[:-3]

# Height and lengthscale of the kernel and the variance of the noise are learned. normalize=False: a zero mean function.
model = mc.GaussianProcessRegressor(1.0 * k.RBF(lengthscale=0.3), normalize=False).fit(x[:, None], t)
print(model)  # the standard deviation of the noise was 0.3

grid = np.linspace(0, 1, 300)
figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
ax.plot(grid, np.sin(2 * np.pi * grid), color="tab:green", label=r"$\sin(2 \pi x)$")
mc.plot.posterior(model, grid, include_noise=True, ax=ax).set_ylabel("$t$")
plt.show()
