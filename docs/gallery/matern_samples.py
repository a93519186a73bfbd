"""The Matern family: the covariance for several orders nu (left) and functions drawn from it (right).

A function of order nu is ceil(nu) - 1 times differentiable. Any order is possible, not only the half-integers.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

r = np.linspace(0, 3, 300)
x = np.linspace(-5, 5, 1000)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for i, (nu, colour) in enumerate([(0.5, "tab:blue"), (1.2, "tab:orange"), (2.5, "tab:green"), (np.inf, "tab:red")]):
    kernel = k.Matern(lengthscale=1.0, nu=nu)
    label = r"$\nu = \infty$" if np.isinf(nu) else rf"$\nu = {nu:g}$"
    left.plot(r, kernel([0.0], r)[0], color=colour, label=label)
    right.plot(x, mc.GP(kernel).sample(x, seed=20 + i)[0] - 4 * i, color=colour, lw=1)
left.set(xlabel="$|x - x'|$", ylabel="covariance", xlim=(0, 3))
left.legend()
right.set(xlabel="$x$", yticks=[], xlim=(-5, 5), title="one sample each, shifted apart")
plt.show()
