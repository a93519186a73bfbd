"""Figure 6.7: how Gaussian process regression works, for one training point and one test point.

On the left the book's picture: the targets t_1 and t_2 are jointly Gaussian (red contours); t_1 is measured (blue
line); what is left for t_2 is a Gaussian too (green). On the right the same two points, seen along x.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

x1, x2, t1, noise = 0.0, 0.6, -0.9, 0.05
prior = mc.GP(k.RBF(lengthscale=1.0))
C = prior.covariance([x1, x2]) + noise * np.eye(2)  # (6.65)

posterior = prior.condition([x1], [t1], noise)
mean, variance = (moment[0] for moment in posterior.moments([x2]))
variance += noise  # of a new measurement, as in (6.67)
t2 = np.linspace(-2.6, 2.6, 300)
density = np.exp(-0.5 * (t2 - mean) ** 2 / variance)

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
circle = np.linspace(0, 2 * np.pi, 200)
ring = np.linalg.cholesky(C) @ [np.cos(circle), np.sin(circle)]
for radius in (0.5, 1, 1.5, 2):
    left.plot(*(radius * ring), color="tab:red", lw=1.2, label="$p(t_1, t_2)$" if radius == 2 else None)
left.axvline(t1, color="tab:blue", label="$t_1$, measured")
left.plot(t1 + 0.9 * density, t2, color="tab:green", lw=2, label="$p(t_2 | t_1)$")
left.plot([-2.6, t1], [mean, mean], "--", color="tab:green", lw=1)
left.text(-2.5, mean + 0.08, "$m(x_2)$", color="tab:green")
left.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), xlabel="$t_1$", ylabel="$t_2$", title="two targets")

mc.plot.posterior(posterior, np.linspace(-1.5, 2, 200), ax=right, color="0.5").get_legend().remove()
right.axvline(x2, color="0.8", lw=1, zorder=0)
right.plot(x2 + 0.6 * density, t2, color="tab:green", lw=2)
right.plot([-1.5, x2], [mean, mean], "--", color="tab:green", lw=1)
right.text(-1.43, mean + 0.08, "$m(x_2)$", color="tab:green")
right.annotate("$t_1$", (x1, t1), (-8, -12), textcoords="offset points", ha="right", color="tab:blue")
right.set_xticks([x1, x2], ["$x_1$", "$x_2$"])
right.set(ylim=(-2.6, 2.6), xlabel="$x$", ylabel="$t$", title="the function they come from, given $t_1$")
left.legend(loc="lower right")
plt.show()
