"""Dual = primal, and ridge regression = the mean of a Gaussian process.

Least squares with a penalty can be solved for the weights of M features (the primal form) or for one coefficient per
data point (the dual form, PRML 6.1): the same function. With the penalty equal to the variance of the noise it is also
the mean of a Gaussian process, which adds to it how uncertain it is. On the right, what the penalty does: the
leave-one-out error for every alpha at once, from one eigendecomposition.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(3)
x = np.sort(rng.uniform(-1, 1, size=25))
t = np.sin(4 * x) + rng.normal(0, 0.2, size=25)
X, grid = x[:, None], np.linspace(-1.15, 1.15, 300)[:, None]

kernel = k.Polynomial(degree=7, offset=1.0)  # eight features
alpha = 0.04
dual = mc.KernelRidge(kernel, alpha, fit_intercept=False, solver="dual").fit(X, t)
primal = mc.KernelRidge(kernel, alpha, fit_intercept=False, solver="primal").fit(X, t)
process = mc.GaussianProcessRegressor(kernel, noise=alpha, learning=None, normalize=False).fit(X, t)

mean, deviation = process.predict(grid, return_std=True, include_noise=False)
print("largest difference, dual and primal: ", np.abs(dual.predict(grid) - primal.predict(grid)).max())
print("largest difference, dual and process:", np.abs(dual.predict(grid) - mean).max())

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
left.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, color="tab:red", alpha=0.15, lw=0)
left.plot(grid, mean, color="tab:red", lw=6, alpha=0.3, label="mean of the process, and two deviations")
left.plot(grid, dual.predict(grid), color="tab:blue", label="dual: 25 coefficients")
left.plot(grid, primal.predict(grid), color="black", ls="--", label="primal: 8 weights")
left.plot(x, t, "o", ms=4, color="tab:green")
left.set(xlabel="$x$", ylabel="$t$", ylim=(-2, 2))
left.legend(frameon=False)

chosen = mc.KernelRidge(kernel, "loo").fit(X, t)
path = chosen.path(np.geomspace(1e-8, 1e2, 200))
right.semilogx(path.alphas, np.sqrt(path.loo_error), color="tab:blue", label="leave-one-out error")
right.axvline(chosen.alpha_, color="tab:red", ls=":", label=rf"$\alpha$ = {chosen.alpha_:.2g}, chosen by it")
right.axhline(0.2, color="gray", lw=0.8, label="standard deviation of the noise")
right.set(xlabel=r"$\alpha$", ylabel="root mean square", ylim=(0, 0.8))
parameters = right.twinx()
parameters.semilogx(path.alphas, path.effective_parameters, color="tab:orange")
parameters.set_ylabel("effective number of parameters", color="tab:orange")
right.legend(frameon=False, loc="lower left")
plt.show()
