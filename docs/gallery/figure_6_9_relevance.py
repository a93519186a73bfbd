"""Figure 6.9: samples from the ARD prior (6.71), with eta = (1, 1) on the left and (1, 0.01) on the right.

The smaller eta_2, the less the function cares about x_2.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

side = np.linspace(-3, 3, 45)
figure = plt.figure(figsize=(10, 4.6), layout="constrained")
for i, eta in enumerate([(1.0, 1.0), (1.0, 0.01)]):
    kernel = k.Standard(theta0=1.0, theta1=eta, theta2=0.0, theta3=0.0)
    ax = mc.plot.field(mc.GP(kernel), side, side, seed=4, ax=figure.add_subplot(1, 2, i + 1, projection="3d"))
    ax.set_title(rf"$\eta_1 = {eta[0]:g}$,  $\eta_2 = {eta[1]:g}$")
plt.show()
