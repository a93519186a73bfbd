"""Figure 6.5: samples from the prior of the standard kernel (6.63), titled with (theta0, theta1, theta2, theta3).

theta0 is the height of the curves, theta1 how fast they turn, theta2 a common offset, theta3 a slope.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

x = np.linspace(-1, 1, 300)
settings = [(1, 4, 0, 0), (9, 4, 0, 0), (1, 64, 0, 0), (1, 0.25, 0, 0), (1, 4, 10, 0), (1, 4, 0, 5)]
figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
for i, (theta, ax) in enumerate(zip(settings, axes.flat, strict=True)):
    mc.plot.samples(mc.GP(k.Standard(*theta)), x, size=5, seed=i, ax=ax)
    ax.set_title("({:.2f}, {:.2f}, {:.2f}, {:.2f})".format(*theta))
    ax.set_ylim((-9, 9) if max(theta[0], theta[2]) > 1 else (-4, 4) if theta[3] == 0 else (-6, 6))
plt.show()
