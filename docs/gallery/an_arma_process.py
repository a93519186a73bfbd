"""An ARMA process as a Gaussian process: its autocovariance is a kernel, so gaps and noise of measurement need no care.

Left: the autocovariance that was learned, beside the true one and that of the sample. Right: a stretch without values,
filled in, and the forecast, which returns to the mean as the oscillation is forgotten.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

truth = k.ARMA([1.6, -0.8], 0.5)  # y_t = 1.6 y_(t-1) - 0.8 y_(t-2) + e_t + 0.5 e_(t-1), a period of about 13 steps
t = np.arange(300)
y = mc.GP(truth).sample(t[:, None].astype(float), size=1, seed=3)[0] + 0.2 * np.random.default_rng(0).normal(size=300)
seen = (t < 215) | (t > 235)

model = mc.GaussianProcessRegressor(1.0 * k.ARMA([0.5, 0.0], 0.1), solver="statespace", progress=False)
model.fit(t[seen][:, None], y[seen])
learned = model.kernel_.parameters
print(f"phi {learned['phi'].round(2)}, theta {np.round(learned['theta'], 2)}, noise {np.sqrt(model.noise_):.2f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(1, 1.8), layout="constrained")
lags = np.arange(41)
own = model.kernel_([0.0], lags[:, None].astype(float))[0]
centred = y[:200] - y[:200].mean()
left.plot(lags, [np.mean(centred[lag:] * centred[: 200 - lag]) for lag in lags], "o", color="0.6", ms=4, label="sample")
left.plot(lags, truth.autocovariance(41), "--", color="0.2", lw=1.2, label="true")
left.plot(lags, own, color="tab:blue", lw=1.8, label="learned")
left.axhline(0, color="0.8", lw=0.8, zorder=0)
left.set(xlabel="lag", title="autocovariance")
left.legend()

new = np.arange(180, 341)
mean, deviation = model.predict(new[:, None], return_std=True)
right.fill_between(new, mean - 2 * deviation, mean + 2 * deviation, color="tab:blue", alpha=0.2, lw=0)
right.plot(new, mean, color="tab:blue", lw=1.5, label="mean, two standard deviations")
shown = seen & (t >= 180)
right.plot(t[shown], y[shown], ".", color="0.15", ms=5, label="measured")
right.plot(t[~seen], y[~seen], "x", color="tab:red", ms=5, label="left out")
right.set(xlabel="time", title="a gap and a forecast")
right.legend(loc="upper left", ncols=3, fontsize="small")
plt.show()
