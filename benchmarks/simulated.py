"""Coverage of intervals when the model is right: on data drawn from processes of the default family.

Functions are drawn from a Matern process (smoothness 3/2, 5/2 or infinite in turn, a lengthscale for each input drawn
around the scale of the inputs) with noise of a tenth of their variance. Claim: 95% intervals of the default cover 94 to
96% of new measurements for 50 rows and more, and at least 92% at 20.

    python benchmarks/simulated.py [--draws 60] [--write]
"""

import argparse

import numpy as np
from machine import keep, table

import mercer as mc
from mercer import kernels as k

CASES = ((10, 1), (20, 1), (20, 3), (20, 6), (50, 2), (50, 6), (100, 3), (200, 6))
LEVELS = {0.5: 0.6745, 0.8: 1.2816, 0.95: 1.96}


def held(n: int, d: int, seed: int):
    """Shares of 200 new measurements inside intervals of each level."""
    rng = np.random.default_rng([n, d, seed])
    X = rng.uniform(-2, 2, size=(n + 200, d))
    kernel = k.Matern(np.sqrt(d) * rng.uniform(0.5, 2.0, size=d), nu=(1.5, 2.5, np.inf)[seed % 3])
    y = mc.GP(kernel).sample(X, seed=seed)[0] + np.sqrt(0.1) * rng.normal(size=n + 200)
    model = mc.GaussianProcessRegressor(progress=False).fit(X[:n], y[:n])
    mean, deviation = model.predict(X[n:], return_std=True)
    z = np.abs(y[n:] - mean) / deviation
    return [np.mean(z < bound) for bound in LEVELS.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results/simulated.md")
    options = parser.parse_args()
    rows = []
    for n, d in CASES:
        found = np.array([held(n, d, seed) for seed in range(options.draws)])
        error = found[:, 2].std() / np.sqrt(len(found))
        rows.append([n, d, *(f"{share:.1%}" for share in found.mean(axis=0)), f"{error:.1%}"])
        print(*rows[-1], flush=True)
    if options.write:
        lines = [
            f"{options.draws} draws each.",
            "",
            *table(["rows", "inputs", "50%", "80%", "95%", "standard error"], rows),
        ]
        keep(
            "simulated", "What intervals cover when the model is right", "python benchmarks/simulated.py --write", lines
        )


if __name__ == "__main__":
    main()
