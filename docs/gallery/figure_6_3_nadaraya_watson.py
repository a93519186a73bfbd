"""Figure 6.3: the Nadaraya-Watson model on the sinusoidal data, with isotropic Gaussian components.

Green is the function the points were made from. Every point is the centre of a Gaussian over (x, t), drawn as an
ellipse of one standard deviation. The red line is the conditional mean, shaded the central 95% of the conditional
density (6.48). On the right, that density p(t | x) at three places, and its median and 95% interval from the same fit.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(2)
x = np.linspace(0, 1, 10)
t = np.sin(2 * np.pi * x) + rng.normal(0, 0.3, size=10)
grid = np.linspace(0, 1, 300)[:, None]

width = 0.1  # of the components, in x and in t
model = mc.NadarayaWatson(k.RBF(width), target_width=width, learning=None).fit(x[:, None], t)
predicted = model.predict_distribution(grid)

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", width_ratios=[3, 2])
left.fill_between(grid[:, 0], *predicted.interval(0.95), color="tab:red", alpha=0.2, lw=0)
left.plot(grid, np.sin(2 * np.pi * grid), color="tab:green")
left.plot(grid, predicted.mean, color="tab:red", lw=2)
left.plot(x, t, "o", ms=4, color="tab:blue")
for place in zip(x, t, strict=True):
    left.add_patch(Ellipse(place, 2 * width, 2 * width, fill=False, color="tab:blue", lw=0.8))
left.set(xlabel="$x$", ylabel="$t$", ylim=(-1.8, 1.8))

levels = np.linspace(-2, 2, 400)
for place, colour in zip([0.2, 0.5, 0.8], ["tab:purple", "tab:orange", "tab:cyan"], strict=True):
    here = np.full((len(levels), 1), place)
    right.plot(levels, model.predict_density(here, levels), color=colour, label=f"$x$ = {place}")
    low, middle, high = model.predict_quantile([[place]], [0.025, 0.5, 0.975])[0]
    print(f"x = {place}: median {middle:.2f}, 95% interval {low:.2f} to {high:.2f}")
right.set(xlabel="$t$", ylabel="$p(t|x)$", ylim=(0, None))
right.legend(frameon=False)
plt.show()
