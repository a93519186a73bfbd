"""Universal kriging: zinc in the soil of a floodplain, which falls with the distance from the river.

A hundred and twenty samples of a made-up bend of a river, as on the Meuse: the logarithm of zinc has a drift in the
square root of the distance to the bank, and varies in space around it. Ordinary kriging (top) knows nothing of the
river: away from the samples it returns to the average, with a wide interval. Universal kriging (bottom) names the drift
column, ``mean=["root"]``: the coefficient is integrated out, so that its uncertainty is part of every prediction, and
parameters are learned by the restricted likelihood. The map follows the bank also where nobody dug.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(4)


def bank(east):
    """Northing of the river, in kilometres."""
    return 0.55 + 0.35 * np.sin(1.6 * east)


BANK = np.column_stack([e := np.linspace(-1, 4, 2000), bank(e)])


def places(east, north):
    """A table of places: coordinates in metres, as surveyors have them, and the root of the distance to the river."""
    gaps = np.sqrt(((np.column_stack([east, north])[:, None] - BANK) ** 2).sum(-1)).min(axis=1)
    return pd.DataFrame({"east": 178_000 + 1000 * east, "north": 330_000 + 1000 * north, "root": np.sqrt(gaps)})


# samples on one side of the river, dense in the west
east = np.concatenate([rng.uniform(0, 1.5, 90), rng.uniform(1.5, 3, 30)])
samples = places(east, bank(east) + rng.uniform(0.02, 1, 120) ** 1.5)
grid_east, grid_north = np.meshgrid(np.linspace(0, 3, 90), np.linspace(0.15, 1.9, 53))
inside = grid_north > bank(grid_east)
grid = places(grid_east[inside], grid_north[inside])

space = k.Exponential(300.0).on(["east", "north"])
everywhere = pd.concat([samples, grid], ignore_index=True)
variation = mc.GP(0.12 * space).sample(everywhere, seed=1)[0]
truth = 7.0 - 2.6 * everywhere["root"].to_numpy() + variation
y = truth[:120] + 0.15 * rng.normal(size=120)

models = {
    "ordinary kriging": mc.GaussianProcessRegressor(1.0 * space, progress=False).fit(samples, y),
    'universal kriging, mean=["root"]': mc.GaussianProcessRegressor(1.0 * space, mean=["root"], progress=False).fit(
        samples, y
    ),
}
print(models['universal kriging, mean=["root"]'])
figure, axes = plt.subplots(2, 3, figsize=(13, 6.2), layout="constrained")
for row, (title, model) in zip(axes, models.items(), strict=True):
    mean, deviation = model.predict(grid, return_std=True, include_noise=False)
    left_out = np.sqrt(np.mean((model.loo().mean - y) ** 2))
    error = np.sqrt(np.mean((mean - truth[120:]) ** 2))
    print(f"{title}: error of left-out samples {left_out:.3f}, on the grid {error:.3f}")
    for ax, values, label, limits in (
        (row[0], mean, "ln zinc", (4, 7)),
        (row[1], deviation, "standard deviation", (0, 0.7)),
    ):
        picture = np.full(grid_east.shape, np.nan)
        picture[inside] = values
        drawn = ax.imshow(
            picture, origin="lower", extent=(0, 3, 0.15, 1.9), vmin=limits[0], vmax=limits[1], cmap="viridis"
        )
        ax.plot(e, bank(e), color="tab:blue", lw=3)
        ax.plot(east, (samples["north"] - 330_000) / 1000, "k.", ms=2)
        ax.set(xlim=(0, 3), ylim=(0.15, 1.9), xlabel="east (km)", ylabel="north (km)")
        figure.colorbar(drawn, ax=ax, label=label, shrink=0.8)
    row[0].set_title(f"{title}\nerror on the map {error:.2f}", fontsize=10)
    row[2].plot(grid["root"], truth[120:], ".", color="0.75", ms=2, label="truth, on the grid")
    row[2].plot(samples["root"], y, "k.", ms=4, label="samples")
    root = np.linspace(0, 1.2, 50)
    if model.trend_ is None:
        row[2].axhline(model.mean_, color="tab:red", label="the mean, a constant")
    else:
        constant, slope = model.trend_.estimate
        H = np.column_stack([np.ones(50), root])
        spread = 2 * np.sqrt(np.einsum("ij,jk,ik->i", H, model.trend_.covariance, H))
        row[2].plot(root, constant + slope * root, color="tab:red", label="the mean, estimated")
        row[2].fill_between(
            root, constant + slope * root - spread, constant + slope * root + spread, color="tab:red", alpha=0.2, lw=0
        )
    row[2].set(xlabel=r"$\sqrt{\mathrm{distance\ to\ the\ river\ (km)}}$", ylabel="ln zinc", xlim=(0, 1.2))
    row[2].legend(loc="lower left", fontsize=8)
plt.show()
