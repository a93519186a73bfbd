"""Carbon dioxide above Mauna Loa, taken apart (RW06 5.4.3).

The monthly means are a smooth trend, a season that changes slowly, irregularities of a year or so, and noise, part of
it correlated between months: a sum of four kernels (RW06 5.15-5.18) and independent noise. The parameters are learned,
from the book's values on; each term then has a posterior of its own, and together they make the forecast.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k
from mercer.distributions import Normal

co2 = mc.datasets.load("co2")
level = co2.y.mean()

trend = (66**2 * k.RBF(lengthscale=67.0)).named("trend")
pattern = k.RBF(lengthscale=90.0) * k.Periodic(period=1.0, lengthscale=1.3).fix("period")
season = (2.4**2 * pattern).named("season")
medium = (0.66**2 * k.RationalQuadratic(lengthscale=1.2, alpha=0.78)).named("medium")
short = (0.18**2 * k.RBF(lengthscale=1.6 / 12)).named("short")
# normalize=False: amplitudes are in ppm.
model = mc.GaussianProcessRegressor(trend + season + medium + short, normalize=False).fit(co2.X, co2.y - level)
print(model)

years = 1958 + np.arange(48 * 63) / 48
mean, deviation = model.predict(years[:, None], return_std=True)
parts = model.decompose(years[:, None])
parts["trend"] = level + parts["trend"][0], parts["trend"][1]

figure, axes = plt.subplot_mosaic(
    [["forecast", "forecast"], ["trend", "season"], ["medium", "short"]], figsize=(11, 9), layout="constrained"
)


def draw(ax, mean, deviation, title, until=2002):
    shown = years < until
    x, predicted = years[shown], Normal(mean[shown], deviation[shown])
    ax.fill_between(x, *predicted.interval(0.95), color="tab:red", alpha=0.2, lw=0, label="95% interval")
    ax.plot(x, predicted.mean, color="tab:red", lw=1, label="mean")
    ax.set(title=title, ylabel="ppm", xlim=(1958, until))


draw(axes["forecast"], level + mean, deviation, "all of it, and a forecast of nineteen years", until=2021)
axes["forecast"].plot(co2.X, co2.y, ".", color="tab:blue", ms=2.5, label="monthly means")
axes["forecast"].legend(loc="upper left", markerscale=3)
draw(axes["trend"], *parts["trend"], "trend")
draw(axes["medium"], *parts["medium"], "irregularities of a year or so")
draw(axes["short"], *parts["short"], "noise that lasts for weeks")

# Trend and season may both hold the level, so that neither is known to better than some ppm; their sum is.
for year, colour in [(1960, "tab:blue"), (1980, "tab:orange"), (2000, "tab:red")]:
    start = 48 * (year - 1958)
    axes["season"].plot(np.arange(49) / 4, parts["season"][0][start : start + 49], color=colour, label=str(year))
axes["season"].set(title="season", ylabel="ppm", xlim=(0, 12), xticks=np.arange(12) + 0.5, xticklabels="JFMAMJJASOND")
axes["season"].legend()
plt.show()
