"""Periodic covariance: functions drawn with a long lengthscale (left) and a short one (right).

A long lengthscale leaves little room for change within a period; a short one allows many wiggles, all repeated.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

x = np.linspace(-2, 2, 600)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
for ax, lengthscale in zip(axes, (2.0, 0.4), strict=True):
    kernel = k.Periodic(period=1.0, lengthscale=lengthscale)
    mc.plot.samples(mc.GP(kernel), x, size=3, seed=1, ax=ax).set_title(rf"$\ell = {lengthscale:g}$")
plt.show()
