"""Noise that varies with the input, learned together with the function.

Above: 200 points from the function of Williams (1996), whose noise has a standard deviation of 0.01 in some places and
of 1.0 in others. With constant noise the 95% interval is as wide everywhere: too wide where the function is measured
precisely, too narrow where it is not, and the function follows the loud points. Below: the standard deviation of the
noise, with an interval of 95%, beside the true one. Printed: how often intervals hold new points, for quiet, middle and
loud thirds of the inputs. On flights from New York the minutes in the air scatter more over long distances; there, too,
each third is covered as it should be.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer.core.text import table

LEVEL, N = 0.95, 200


def draw(n, rng):
    """Inputs (n, 1), the function, and the deviation of its noise."""
    x = np.sort(rng.uniform(0, np.pi, n))
    return x[:, None], np.sin(2.5 * x) * np.sin(1.5 * x), 0.01 + 0.25 * (1 - np.sin(2.5 * x)) ** 2


def covered(model, X, y, groups):
    """Share of new points inside their intervals, for each of three groups."""
    low, high = model.predict_distribution(X).interval(LEVEL)
    inside = (low <= y) & (y <= high)
    return [f"{inside[groups == group].mean():.0%}" for group in range(3)]


def thirds(values):
    return np.searchsorted(np.quantile(values, [1 / 3, 2 / 3]), values)


MODELS = {"constant noise": mc.GaussianProcessRegressor, "varying noise": mc.HeteroscedasticGaussianProcessRegressor}
rng = np.random.default_rng(3)
X, f, deviation = draw(N, rng)
y = f + deviation * rng.normal(size=N)
models = {name: cls(progress=False).fit(X, y) for name, cls in MODELS.items()}
X_new, f_new, deviation_new = draw(3000, rng)
y_new = f_new + deviation_new * rng.normal(size=len(f_new))
rows = [["Williams", name, *covered(model, X_new, y_new, thirds(deviation_new))] for name, model in models.items()]

flights = mc.datasets.load("flights")
distance = flights.X[:, :1]
train, test = np.arange(0, 500, 2), np.arange(1, 500, 2)
for name, cls in MODELS.items():
    model = cls(progress=False).fit(distance[train], flights.y[train])
    rows.append(["flights", name, *covered(model, distance[test], flights.y[test], thirds(distance[test, 0]))])
print(table(["data", "95% intervals of", "quiet third", "middle", "loud third"], rows))

figure, axes = plt.subplots(
    2, 2, figsize=(10, 6.5), sharex=True, sharey="row", layout="constrained", height_ratios=[2, 1]
)
for column, (name, model) in zip(axes.T, models.items(), strict=True):
    mc.plot.posterior(model, X_new[:, 0], ax=column[0], include_noise=True, level=LEVEL)
    column[0].plot(X_new[:, 0], f_new, color="tab:green", lw=1, label="function")
    column[0].set(title=name, ylabel="")
    noise = np.sqrt(np.broadcast_to(model.noise_, N)) if name == "constant noise" else np.sqrt(model.predict_noise(X))
    column[1].plot(X[:, 0], noise, color="tab:red", label="learned")
    column[1].plot(X[:, 0], deviation, color="tab:green", label="true")
    column[1].set(yscale="log", xlabel="$x$")
m, v = models["varying noise"]._noise.posterior.moments(X)
level = models["varying noise"].noise_ / np.exp(m + v / 2)
ends = [np.sqrt(level * np.exp(m + sign * 1.96 * np.sqrt(v))) for sign in (-1, 1)]
axes[1, 1].fill_between(X[:, 0], *ends, color="tab:red", alpha=0.2, lw=0)
axes[0, 0].set_ylabel("$t$")
axes[1, 0].set_ylabel("deviation of the noise")
axes[0, 0].legend(fontsize="small")
axes[0, 1].get_legend().remove()
axes[1, 1].legend(fontsize="small")
plt.show()
