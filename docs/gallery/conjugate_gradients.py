"""Conjugate gradients: exact to a tolerance, from products with a covariance that is never stored.

What does the tolerance buy? The error of the mean falls with the relative residual, and iterations grow with its
logarithm only. What does a preconditioner do? A few hundred rows, drawn where they say most, stand for all: the more,
the fewer iterations. And the variances of `predict`, from the nearest rows and some combinations of all, are a little
too large, never too small.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
X, new = rng.uniform(-2, 2, size=(800, 3)), rng.uniform(-2, 2, size=(400, 3))
y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.3 * X[:, 2] + 0.1 * rng.normal(size=len(X))
kernel, noise = 1.0 * k.Matern([1.0, 1.5, 3.0], nu=2.5), np.full(len(X), 0.01)
exact = mc.solvers.Dense().posterior(kernel, X, y, noise)
mean, variance = exact.moments(new)


def iterative(**settings):
    return mc.solvers.Iterative(**settings).posterior(kernel, X, y, noise)


tolerances = 10.0 ** -np.arange(1, 7)
loose = [iterative(tolerance=tolerance) for tolerance in tolerances]
errors = [np.sqrt(np.mean((found.mean(new) - mean) ** 2)) for found in loose]
said = [found.numerics()["error"] for found in loose]
ranks = (1, 25, 50, 100, 200)
iterations = [iterative(rank=rank).numerics()["iterations"] for rank in ranks]
excess = 100 * (np.sqrt(loose[3].moments(new)[1] / variance) - 1)

figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
axes[0].loglog(tolerances, errors, "o-", label="error of the mean at new rows")
axes[0].loglog(tolerances, said, "s--", label='numerics_["error"]')
axes[0].invert_xaxis()
axes[0].set(xlabel="tolerance", ylabel="prior standard deviations", title="what the tolerance buys")
axes[0].legend()
axes[1].plot(ranks, iterations, "o-")
axes[1].set(xlabel="rank of the preconditioner", ylabel="iterations", ylim=(0, None))
axes[1].set_title("what the preconditioner saves")
axes[2].hist(excess, bins=30)
axes[2].set(xlabel="standard deviation above the exact one, %", ylabel="new rows", title="variances are cautious")
plt.show()
evidence, error = loose[3].log_evidence(), loose[3].numerics()["evidence_error"]
print(f"log evidence {evidence:.1f} with a standard error of {error:.1f}, exactly {exact.log_evidence():.1f}")
print(f"iterations: {dict(zip(ranks, map(int, iterations), strict=True))}")
