"""Handwritten threes against fives (USPS, resampled): published results, and learning from a default start.

    python benchmarks/usps.py [--write]

767 training rows, 773 test rows, 256 inputs, a Gaussian kernel with one lengthscale, probit. At the parameters (ln
lengthscale, ln standard deviation) of the literature, expectation propagation and Laplace's method have to reproduce
its results (Rasmussen and Williams 2006, 3.7; Nickisch and Rasmussen 2008): EP at (3, 0) -222.36 nats and 35 test
errors, Laplace at (2.85, 2.35) -98.96 nats, 22 errors and 0.838 bits, the mean of log2 p(true class), plus one. From
`1.0 * RBF()` on unscaled inputs, learning has to reach the optimum of each. MERCER_DATA is the folder of the data
(default ../shared/data).
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from machine import keep, table

import mercer as mc
from mercer import kernels as k

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "classification"
GIVEN = {"ep": [(3.0, 0.0)], "laplace": [(2.85, 2.35)], "variational": []}
PUBLISHED = {"ep": "-222.36, 35 errors", "laplace": "-98.96, 22 errors, 0.838 bits"}


def threes_and_fives():
    data = np.load(DATA / "usps_resampled.npz")
    out = []
    for part in ("train", "test"):
        y = data[f"y{part}"]
        some = (y == 3) | (y == 5)
        out += [data[f"X{part}"][some], y[some]]
    return out


def told(model, X, y):
    right = model.predict_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    errors = int(np.sum(model.predict(X) != y))
    variance, lengthscale = model.kernel_.parameters.values()
    place = f"({np.log(lengthscale):.2f}, {0.5 * np.log(variance):.2f})"
    return [place, f"{model.log_marginal_likelihood_:.2f}", errors, f"{np.mean(np.log2(right)) + 1:.3f}"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/usps.md")
    options = arguments.parse_args()
    X, y, Z, t = threes_and_fives()
    print(X.shape, Z.shape)
    rows = []
    for inference, places in GIVEN.items():
        for length, deviation in places:
            kernel = np.exp(2 * deviation) * k.RBF(np.exp(length))
            model = mc.GaussianProcessClassifier(kernel, inference, "probit", learning=None).fit(X, y)
            rows.append([inference, "given", *told(model, Z, t), PUBLISHED[inference], ""])
            print(rows[-1], flush=True)
        start = time.perf_counter()
        model = mc.GaussianProcessClassifier(1.0 * k.RBF(), inference, "probit", progress=False).fit(X, y)
        rows.append([inference, "learned", *told(model, Z, t), "", f"{time.perf_counter() - start:.1f}"])
        print(rows[-1], flush=True)
    head = ["inference", "parameters", "(ln length, ln deviation)", "log evidence", "errors", "bits", "published",
            "seconds"]  # fmt: skip
    lines = table(head, rows)
    print("\n".join(lines))
    if options.write:
        keep("usps", "Handwritten threes against fives", "python benchmarks/usps.py --write", lines)


if __name__ == "__main__":
    main()
