"""A forecast with its components: carbon dioxide on Mauna Loa, two years ahead by the calendar."""

import numpy as np

import mercer as mc

data = mc.datasets.load("co2")
years = data.X[:, 0]
recent = years >= years.max() - 10
months = np.datetime64("1970-01") + np.floor((years[recent] - 1970) * 12).astype(int)
result = mc.forecast(months.astype("datetime64[D]"), data.y[recent], horizon=24, log=False)
axes = mc.plot.forecast(result)
axes[0].set_ylabel("CO2, ppm")
