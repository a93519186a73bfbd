"""Figure 6.4: functions drawn from Gaussian processes, for a Gaussian kernel (left) and an exponential one (right)."""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

x = np.linspace(-1, 1, 1000)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
mc.plot.samples(mc.GP(k.RBF(lengthscale=0.3)), x, size=5, seed=3, ax=left).set_title("Gaussian (6.23)")
mc.plot.samples(mc.GP(k.Exponential(lengthscale=1.0)), x, size=5, seed=3, ax=right).set_title("exponential (6.56)")
left.set_ylim(-3, 3)
plt.show()
