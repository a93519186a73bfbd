"""Carbon dioxide on Mauna Loa: which components? A search finds them, says what they are, and goes on.

Nothing is said about seasons or trends. The search adds terms and factors as long as the evidence, less ln(n)/2 for
each parameter, rises; here it is given some seconds. The last two years are left out, and are forecast by the kernel
found and by a Gaussian kernel, which has no season to go on with.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

data = mc.datasets.load("co2")
years = data.X[:, 0]
recent = years >= years.max() - 10
months = np.datetime64("1970-01") + np.floor((years[recent] - 1970) * 12).astype(int)
t, y = months.astype("datetime64[D]"), data.y[recent]
past = t < t.max() - np.timedelta64(730, "D")
found = mc.select_kernel(t[past], y[past], max_seconds=8, progress=False)
for component in found.components:
    print(component)
axes = mc.plot.components(found, dates=True)

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.plot(t, y, ".-", color="0.4", ms=4, lw=0.7, label="CO2, ppm")
for name, kernel, color in (("found", found.kernel, "tab:blue"), ("Gaussian kernel", 1.0 * k.RBF(1.0), "tab:orange")):
    model = mc.GaussianProcessRegressor(kernel, progress=False).fit(t[past, None], y[past])
    mean, deviation = model.predict(t[~past, None], return_std=True)
    error = np.sqrt(np.mean((mean - y[~past]) ** 2))
    ax.plot(t[~past], mean, color=color, lw=1.6, label=f"{name}, error {error:.1f} ppm")
    ax.fill_between(t[~past], mean - 2 * deviation, mean + 2 * deviation, color=color, alpha=0.2, lw=0)
ax.legend(loc="upper left", fontsize="small")
plt.show()
