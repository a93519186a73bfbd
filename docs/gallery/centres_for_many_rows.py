"""Centres for many rows: how to choose a method, and how far an approximation is from exact.

What would be done with many rows, and what would it take? `plan` says so before anything starts. How many centres does
a low-rank approximation need? The exact log evidence lies between the bound and the bound plus its gap, and both close
in as centres are added. Where should centres be? Means of near rows leave least of the variance, rows chosen greedily
as little where there are many, random rows far more. And what do the older approximations give up? Far from the centres
"nystrom" is certain of what it does not know; "variational" and "fitc" return to the prior.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
X = rng.normal(size=(4000, 2)) * [1.0, 0.6]
y = np.sin(2.5 * X[:, 0]) * np.cos(2 * X[:, 1]) + 0.2 * rng.normal(size=len(X))
kernel, noise = 0.6 * k.Matern(0.8, nu=2.5), np.full(1000, 0.04)

print(mc.GaussianProcessRegressor().plan(rng.normal(size=(100_000, 12))))
model = mc.GaussianProcessRegressor(
    1.0 * k.Matern(1.0, nu=2.5), solver=mc.solvers.LowRank(100, learning_rows=1000), progress=False
)
model.fit(X, y)
print(f"\n{model}")

few, target = X[:1000], y[:1000]
exact = mc.solvers.Dense().posterior(kernel, few, target, noise).log_evidence()
counts = [10, 20, 40, 80, 160, 320]
found = {
    how: [mc.solvers.LowRank(m, how).posterior(kernel, few, target, noise) for m in counts]
    for how in ("greedy", "kmeans", "random")
}

figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
bound = np.array([posterior.log_evidence() for posterior in found["greedy"]])
top = bound + [posterior.gap() for posterior in found["greedy"]]
axes[0].fill_between(counts, bound, top, alpha=0.2, label="between the bound and its gap")
axes[0].plot(counts, bound, "o-", label="bound")
axes[0].axhline(exact, color="black", lw=1, label="exact")
axes[0].set(xscale="log", xlabel="centres", ylabel="log evidence", ylim=(exact - 1500, exact + 700))
axes[0].set_title("the evidence of 1,000 rows")
axes[0].legend(fontsize="small", loc="lower right")
for how, posteriors in found.items():
    left = [posterior.numerics()["left"] for posterior in posteriors]
    axes[1].loglog(counts, left, "o-", label=how)
axes[1].set(xlabel="centres", ylabel="share of the prior variance left", title="where the centres are")
axes[1].legend()

line = np.column_stack([np.linspace(-6, 6, 300), np.zeros(300)])
axes[2].plot(X[:, 0], np.full(len(X), -0.03), "|", color="black", alpha=0.05)
for method, style in (("variational", "-"), ("fitc", "--"), ("nystrom", ":")):
    posterior = mc.solvers.LowRank(40, method=method).posterior(kernel, few, target, noise)
    axes[2].plot(line[:, 0], np.sqrt(posterior.moments(line)[1]), style, label=method)
axes[2].set(xlabel="first input", ylabel="standard deviation of the function", title="far from the rows, 40 centres")
axes[2].legend()
plt.show()
