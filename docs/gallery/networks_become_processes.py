"""Neural networks with many hidden units become Gaussian processes (section 6.4.7; Williams 1998).

The covariance of a random network's output, estimated with H hidden units, against the kernel it converges to.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import erf

import mercer as mc
from mercer import kernels as k

x = np.linspace(-4, 4, 161)
rng = np.random.default_rng(0)
kernel = k.ArcSine(bias=1.0, weight=2.0)
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for H, colour in [(10, "0.75"), (100, "0.5"), (10_000, "tab:blue")]:
    hidden = erf(rng.normal(size=H) + np.outer(x, rng.normal(size=H) * np.sqrt(2.0)))
    centre = np.argmin(np.abs(x - 1.0))
    left.plot(x, hidden @ hidden[centre] / H, color=colour, label=f"{H:,} hidden units")
left.plot(x, kernel(x, [1.0])[:, 0], "--", color="tab:red", label="ArcSine kernel")
left.set(xlabel="$x$", title="$k(x, 1)$", xlim=(-4, 4))
left.legend()
mc.plot.samples(mc.GP(kernel), x, size=5, seed=1, ax=right).set_title("infinitely wide networks, drawn at random")
plt.show()
