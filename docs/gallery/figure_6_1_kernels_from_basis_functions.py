"""Figure 6.1: kernels made from basis functions.

Eleven basis functions of each family, and the kernel k(x, x') = sum_i phi_i(x) phi_i(x') that they make, as a function
of x for x' fixed at the red cross.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

x = np.linspace(-1, 1, 401)
centers = np.linspace(-1, 1, 11)
families = {
    # Without the constant, as in the book; mc.basis.Polynomial has it.
    "polynomials": (lambda x: x ** jnp.arange(1, 12), -0.5),
    "Gaussians": (mc.basis.Gaussian(centers, width=0.2), 0.0),
    "logistic sigmoids": (mc.basis.Sigmoid(centers, width=0.1), 0.0),
}

figure, axes = plt.subplots(2, 3, figsize=(10, 5), layout="constrained")
for (word, (basis, at)), (top, bottom) in zip(families.items(), axes.T, strict=True):
    kernel = k.FeatureMap(basis)
    top.set_prop_cycle(color=plt.colormaps["turbo"](np.linspace(0.05, 0.95, 11)))
    top.plot(x, kernel.features(x), lw=1)
    top.set(title=word, xlim=(-1, 1), ylim=(-1.02, 1.02) if word == "polynomials" else (-0.02, 1.02))
    mc.plot.profile(kernel, x, at=at, ax=bottom, color="tab:blue").set_xlim(-1, 1)
axes[0, 0].set_ylabel(r"$\phi_i(x)$")
plt.show()
