"""Every inference beside long chains of samples, on three small sets of real data.

    python benchmarks/inferences.py [--write] [--samples 100000]

Claim: expectation propagation is closest; the best Gaussian posterior (variational) comes so near to it that either may
be, in the fourth decimal. The kernel is the same for all on a set: an ARD Gaussian with a variance,
its parameters learned by expectation propagation. Half of the rows, drawn at random, are learned from, probabilities
are compared on the other half: mean and largest absolute difference from those of the samples. Crabs: sexes from five
lengths, and species from the same. Ripley's synthetic set: its own 250 training rows, 500 of the test rows. Sonar: five
of the sixty inputs (11, 12, 36, 45 and 49, which tell the two kinds of echo apart best by themselves). Effective draws
are of the latent value that mixes worst; R-hat is the largest. Data are found through MERCER_DATA (default
../shared/data).
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from machine import keep, table

import mercer as mc
from mercer import kernels as k

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "classification"
WAYS = {
    "laplace": {"inference": "laplace"},
    "ep": {"inference": "ep"},
    "variational, Gaussian": {"inference": "variational"},
    "variational, local bound": {"inference": "variational", "bound": "local"},
}


def halves(X, y):
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[: len(y) // 2], order[len(y) // 2 :]
    return X[train], y[train], X[test], y[test]


def sets():
    """Name, training inputs and labels, test inputs and labels; inputs have unit spread."""
    crabs = pd.read_csv(DATA / "crabs.csv.gz")
    X = crabs[["FL", "RW", "CL", "CW", "BD"]].to_numpy()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    yield "crabs, sex", *halves(X, crabs["sex"].to_numpy())
    yield "crabs, species", *halves(X, crabs["sp"].to_numpy())
    ripley = pd.read_csv(DATA / "ripley_synth.csv.gz")
    X, y = ripley[["xs", "ys"]].to_numpy(), ripley["yc"].to_numpy()
    train = (ripley["split"] == "train").to_numpy()
    X = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    yield "ripley", X[train], y[train], X[~train][:500], y[~train][:500]
    sonar = pd.read_csv(DATA / "sonar.csv.gz")
    X = sonar[["V11", "V12", "V36", "V45", "V49"]].to_numpy()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    yield "sonar, 5 inputs", *halves(X, sonar.iloc[:, -1].to_numpy())


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="keep the table in benchmarks/results/inferences.md")
    arguments.add_argument("--samples", type=int, default=100_000)
    options = arguments.parse_args()
    warnings.simplefilter("error", mc.NumericalWarning)
    rows, closest = [], 0
    for name, X, y, Z, t in sets():
        learned = mc.GaussianProcessClassifier(1.0 * k.RBF(np.ones(X.shape[1])), "ep", progress=False).fit(X, y)
        make = lambda learned=learned, **way: mc.GaussianProcessClassifier(
            learned.kernel_, learning=None, progress=False, **way
        )
        start = time.perf_counter()
        sampled = make(inference="mcmc", n_samples=options.samples).fit(X, y)
        taken, told = time.perf_counter() - start, sampled.numerics_
        P = sampled.predict_proba(Z)
        right = np.searchsorted(sampled.classes_, t)
        loss = lambda P, right=right: -np.mean(np.log(P[np.arange(len(right)), right]))
        rows.append([name, f"mcmc, {told['draws']:,} draws, {told['effective_draws']:,.0f} effective, R-hat "
                     f"{told['rhat']:.3f}", "", "", "", f"{loss(P):.4f}", f"{taken:.2f}"])  # fmt: skip
        print(rows[-1], flush=True)
        away = {}
        for label, way in WAYS.items():
            start = time.perf_counter()
            model = make(**way).fit(X, y)
            taken = time.perf_counter() - start
            Q = model.predict_proba(Z)
            away[label] = np.mean(np.abs(Q - P)[:, 1])
            rows.append([name, label, f"{away[label]:.4f}", f"{np.abs(Q - P)[:, 1].max():.4f}",
                         f"{model.log_marginal_likelihood_:.2f}", f"{loss(Q):.4f}", f"{taken:.3f}"])  # fmt: skip
            print(rows[-1], flush=True)
        closest += min(away, key=away.__getitem__) == "ep"
    head = ["data", "inference", "mean difference from samples", "largest", "log evidence", "test log loss", "seconds"]
    lines = [*table(head, rows), "", f"Expectation propagation is closest on {closest} of {len(list(sets()))}."]
    print("\n".join(lines))
    if options.write:
        keep("inferences", "Inferences beside samples", "python benchmarks/inferences.py --write", lines)


if __name__ == "__main__":
    main()
