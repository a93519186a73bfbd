"""One model, four ways to its posterior: Laplace, expectation propagation, variational, and samples.

The kernel is the same everywhere, nothing is learned, and its variance is large, which is where approximations part
ways. Samples (grey) are right up to their own noise, the last row of the table. All four agree on where the classes
change. Laplace's Gaussian sits at the mode, which is closer to zero than the mean: its latent functions are too small,
and its probabilities too near to one half. The other two follow the samples; expectation propagation comes closest,
the variational posterior is a little too narrow and so a little too sure. The local bound on the sigmoid (PRML 10.144)
has good probabilities too, but an evidence several nats too low.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k
from mercer.core.text import table

rng = np.random.default_rng(6)
x = np.sort(rng.uniform(-3, 3, size=30))
y = np.where(np.sin(1.6 * x) + rng.normal(0, 0.35, size=30) > 0, "yes", "no")
X, grid = x[:, None], np.linspace(-4, 4, 200)[:, None]


def infer(inference, **settings):
    kernel = 100.0 * k.RBF(lengthscale=0.8)
    model = mc.GaussianProcessClassifier(kernel, inference, learning=None, progress=False, **settings).fit(X, y)
    return model, model.predict_latent(grid), model.predict_proba(grid)[:, 1]


sampled = [infer("mcmc", n_samples=4000, random_state=seed) for seed in range(5)]
again = sampled.pop()[2]
truth = np.mean([latent for _, latent, _ in sampled], axis=0)
p_truth = np.mean([p for _, _, p in sampled], axis=0)
print(f"effective draws of each of {len(sampled)}: {min(m.numerics_['effective_draws'] for m, _, _ in sampled):.0f}\n")

approximations = {
    "Laplace": infer("laplace"),
    "expectation propagation": infer("ep"),
    "variational": infer("variational"),
    "variational, local bound": infer("variational", bound="local"),
}
rows = [
    [name, f"{np.abs(p - p_truth).mean():.3f}", f"{np.abs(p - p_truth).max():.3f}", f"{m.log_marginal_likelihood_:.2f}"]
    for name, (m, _, p) in approximations.items()
]
rows.append(["more samples", f"{np.abs(again - p_truth).mean():.3f}", f"{np.abs(again - p_truth).max():.3f}", ""])
print(table(["probabilities", "off by, on average", "at most", "log evidence"], rows))

figure, axes = plt.subplots(2, 3, figsize=(12, 6), sharex=True, sharey="row", layout="constrained")
for color, (above, below), name in zip(("tab:orange", "tab:green", "tab:blue"), axes.T, approximations, strict=False):
    _, latent, p = approximations[name]
    for (mean, variance), c, label in ((truth, "0.35", "samples"), (latent, color, name)):
        deviation = np.sqrt(variance)
        above.fill_between(grid[:, 0], mean - 2 * deviation, mean + 2 * deviation, color=c, alpha=0.2, lw=0)
        above.plot(grid, mean, color=c, label=label)
    below.plot(grid, p_truth, color="0.35")
    below.plot(grid, p, color=color)
    below.plot(x, np.where(y == "yes", 1.06, -0.06), "|", color="black", ms=7)
    above.set_title(name)
    above.legend(loc="upper center", ncols=2, frameon=False, fontsize="small")
    below.set(xlabel="$x$", xlim=(-4, 4), ylim=(-0.12, 1.12))
axes[0, 0].set(ylabel="latent function, two deviations", ylim=(-28, 32))
axes[1, 0].set(ylabel="probability of yes")
plt.show()
