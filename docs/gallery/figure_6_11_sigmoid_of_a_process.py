"""Figure 6.11: a sample a(x) of a Gaussian process (left), and the logistic sigmoid of it (right): a probability."""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

import mercer as mc
from mercer import kernels as k

x = np.linspace(-1, 1, 400)
a = mc.GP(25.0 * k.RBF(lengthscale=0.18)).sample(x, seed=4)[0]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.plot(x, a)
left.set(xlim=(-1, 1), xlabel="$x$", title="$a(x)$")
right.plot(x, expit(a))
right.set(xlim=(-1, 1), ylim=(-0.02, 1.02), xlabel="$x$", title=r"$\sigma(a(x))$")
plt.show()
