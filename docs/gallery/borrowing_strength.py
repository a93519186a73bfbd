"""Borrowing strength: seven expensive measurements, and a cheap one of something else that moves along with them.

A field is walked along a line. A probe reads the moisture of the soil every two metres, except in the middle, where it
failed (top left); samples of clay go to a laboratory, and there are seven of them. By themselves, the laboratory's
values determine little between each other (bottom left). Together, both are one process of two targets, whose scales,
means and correlation are learned: what the probe saw is used for the clay (bottom right). The diamonds are three
places where only the probe was read again, later: given to ``predict`` as what is known there, they predict the clay in
the middle, too (top right).
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(12)
line = np.linspace(0, 100, 201)[:, None]  # metres
shared, own = mc.GP(k.Matern(14.0)).sample(line, size=2, seed=5)
clay = 22 + 6 * shared + 0.8 * own  # per cent
moisture = 0.21 + 0.05 * shared - 0.01 * own  # cubic metres per cubic metre

probe = np.array([i for i in range(0, 201, 4) if not 92 <= i <= 128])
laboratory = np.array([6, 30, 58, 86, 134, 158, 196])
Y = np.full((201, 2), np.nan)
Y[probe, 0] = moisture[probe] + 0.008 * rng.normal(size=len(probe))
Y[laboratory, 1] = clay[laboratory] + 0.4 * rng.normal(size=7)
told = np.isfinite(Y).any(axis=1)

alone = mc.GaussianProcessRegressor(1.0 * k.Matern(), progress=False).fit(line[laboratory], Y[laboratory, 1])
together = mc.MultiOutputGaussianProcessRegressor(k.Matern(), progress=False).fit(line[told], Y[told])
print(together)

later = np.array([100, 110, 120])
known = np.full((201, 2), np.nan)
known[later, 0] = moisture[later] + 0.008 * rng.normal(size=3)

figure, axes = plt.subplots(2, 2, figsize=(11, 6), sharex=True, layout="constrained")
mean, deviation = together.predict(line, return_std=True, include_noise=False)
told_mean, told_deviation = together.predict(line, return_std=True, include_noise=False, known=known)
panels = {
    (1, 0): ("clay by itself", alone.predict(line, return_std=True, include_noise=False), clay, Y[:, 1]),
    (0, 0): ("moisture, in the process of both", (mean[:, 0], deviation[:, 0]), moisture, Y[:, 0]),
    (1, 1): ("clay, in the process of both", (mean[:, 1], deviation[:, 1]), clay, Y[:, 1]),
    (0, 1): ("clay, with three later readings of moisture", (told_mean[:, 1], told_deviation[:, 1]), clay, Y[:, 1]),
}
for place, (title, (m, s), truth, measured) in panels.items():
    ax = axes[place]
    ax.fill_between(line[:, 0], m - 1.96 * s, m + 1.96 * s, color="C0", alpha=0.2, linewidth=0, label="95% interval")
    ax.plot(line, m, "C0", label="mean")
    ax.plot(line, truth, "k:", linewidth=1, label="truth")
    ax.plot(line, measured, "C3o", markersize=4, label="measured")
    inside = np.mean(np.abs(m - truth) <= 1.96 * s)
    error = np.sqrt(np.mean((m - truth) ** 2))
    print(f"{title}: error {error:.3g}, the interval holds {inside:.0%}")
    ax.set(title=f"{title}: error {error:.2g}", ylabel="clay, %" if truth is clay else "moisture")
axes[0, 1].plot(line[later], np.full(3, 12.0), "C2D", markersize=5, label="places of later readings")
for row in range(2):
    axes[row, 1].sharey(axes[1, 0])
    axes[row, 0].legend(loc="best", fontsize=7)
axes[0, 1].legend(loc="best", fontsize=7)
for ax in axes[1]:
    ax.set_xlabel("metres")
plt.show()
