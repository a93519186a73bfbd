"""Figure 6.6: how a Gaussian process makes data.

A function is drawn (blue); its values y_n are read off at some inputs (red); noise makes them the targets t_n (green).
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

grid = np.linspace(-1, 1, 400)
inputs = np.linspace(-0.85, 0.9, 8)
function = mc.GP(k.RBF(lengthscale=0.35)).sample(np.concatenate([grid, inputs]), seed=2)[0]
curve, y = function[:400], function[400:]
# Independent noise is a Gaussian process too: a white one.
t = y + mc.GP(k.White(0.25**2)).sample(inputs, seed=5)[0]

figure, ax = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
ax.plot(grid, curve, color="tab:blue", label="$y(x)$")
ax.vlines(inputs, y, t, color="0.7", lw=1)
ax.plot(inputs, y, "o", color="tab:red", label="$y_n$")
ax.plot(inputs, t, "o", color="tab:green", label="$t_n$")
ax.set(xlim=(-1, 1), xlabel="$x$", ylabel="$t$")
ax.legend()
plt.show()
