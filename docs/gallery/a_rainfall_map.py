"""A rainfall map with its uncertainty: from a hundred and forty stations to every place between them.

Made-up annual rain of stations around the Alps, in longitude and latitude: the kernel is on the sphere, so that a
degree of longitude is as long as it is at that latitude. The mean is smooth where stations are sparse, and the
deviation says where: beyond the last stations, and in the gap that no station fills. Below, each of twenty blocks of
stations is predicted from all the others, which is what a map does between them; and the empirical variogram lies
beside that of the fitted model.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(2)
stations = pd.DataFrame({"longitude": rng.uniform(5.5, 15.5, 190), "latitude": rng.uniform(44.0, 49.0, 190)})
gap = np.hypot(stations.longitude - 12.3, 1.45 * (stations.latitude - 46.9)) < 1.6
stations = stations[~gap].head(140)
field = mc.GP(30.0**2 * k.Matern(0.022, nu=1.5).on_sphere())
rain = 110 + field.sample(stations, seed=5)[0] + 6 * rng.normal(size=len(stations))  # cm a year

model = mc.GaussianProcessRegressor((1.0 * k.Matern(nu=1.5)).on_sphere(), progress=False).fit(stations, rain)
print(model)

figure, axes = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
mc.plot.map(model, ax=axes.ravel()[:3], blocks=20)
axes[0, 0].set_title("annual rain, cm", fontsize="medium")
mc.plot.variogram(model, ax=axes[1, 1])
plt.show()
