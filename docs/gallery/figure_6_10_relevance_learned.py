"""Figure 6.10: automatic relevance determination, while it happens.

The target is sin(2 pi x_1) with noise; x_2 is a noisy copy of x_1; x_3 has nothing to do with it. The curves are the
eta of each input in (6.72) as conjugate gradients climb the evidence from three equal values: x_1 is kept, x_2 counts
for much less, x_3 for nothing.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(1)
x1 = rng.normal(0, 0.5, size=100)
x2 = x1 + rng.normal(0, 0.1, size=100)
x3 = rng.normal(0, 0.5, size=100)
t = np.sin(2 * np.pi * x1) + rng.normal(0, 0.3, size=100)

# Values other than the default, 1, are where learning begins; defaults may give way to the scale of the data.
kernel = k.Standard(theta0=1.0, theta1=[2.0, 2.0, 2.0], theta2=0.0, theta3=0.0)
model = mc.GaussianProcessRegressor(kernel, optimizer="cg").fit(pd.DataFrame({"x1": x1, "x2": x2, "x3": x3}), t)
eta = np.array([step.parameters["theta1"] for step in model.history_])
print(model.relevance())

figure, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
last = len(eta) - 1
for i, colour in enumerate(["tab:red", "tab:green", "tab:blue"]):
    ax.semilogy(eta[:, i], ".-", color=colour, lw=1.2, ms=4)
    ax.plot(last, eta[last, i], "o", color=colour)
    label = rf"$\eta_{i + 1}$ = {eta[last, i]:.1g}" if i else rf"$\eta_1$ = {eta[last, 0]:.0f}"
    ax.annotate(label, (last, eta[last, i]), (9, -4), textcoords="offset points", color=colour)
ax.set(xlim=(-0.3, 1.22 * last), ylim=(eta.min() / 3, eta.max() * 3), xlabel="iteration", ylabel=r"$\eta_i$")
plt.show()
