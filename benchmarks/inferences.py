"""Every inference method compared with long Markov chains, on three small real data sets.

    python benchmarks/inferences.py [--write] [--samples 100000]

Claim: expectation propagation is ten times closer to the samples than Laplace, and the best Gaussian posterior
(variational) as close: which of the two is closer differs between sets, in the fourth decimal. To resolve that, control
variates of known mean sharpen averages over samples (`sampled`); the noise is a mean standard error, from four parts of
the samples. All methods share a kernel on each set: an ARD Gaussian with a variance, its parameters learned by
expectation propagation. Training rows are a random half, and probabilities are compared on the other half: mean and
largest absolute difference from those of the samples. Crabs: sexes from five lengths, and species from the same.
Ripley's synthetic set: its own 250 training rows, 500 of the test rows. Sonar: five of the sixty inputs (11, 12, 36, 45
and 49, which separate the two classes best individually). Effective sample sizes are of the slowest-mixing latent
value; R-hat is the largest. MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from machine import keep, table
from scipy.linalg import solve_triangular

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.gp.likelihood import with_fast_integrals

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


def sampled(model, Z):
    """p(second class | z) from the draws of a model, and its standard error: (s,), (s,).

    Of whitened latents u with score s(u) = d ln p(u | data) / du, h(u)^T s(u) + div h(u) has mean zero for any field h
    (Stein's identity). With h = z^q Sigma v, z the standardised mean of f given u, which is v^T u, this is nearly a
    polynomial in z: six of them are subtracted, by least squares, from the probability that each draw gives.
    """
    part, likelihood = model.posterior_._fixed[0], model._inference().likelihood
    kernel, L, white = part.expansion.kernel, part.factor.lower, part.latents[:, 0]
    score = likelihood.derivatives(white @ L.T, 2.0 * model.codes_ - 1).first @ L - white
    V = solve_triangular(L, gram.between(kernel, Z, model.X_fit_).T, lower=True)
    left = np.maximum(gram.diagonal(kernel, Z) - (V**2).sum(axis=0), 0.0)
    found = []
    for rows in np.array_split(np.arange(len(white)), 4):
        W = np.cov(white[rows].T) @ V
        means, along = white[rows] @ V, score[rows] @ W
        found.append([])
        for j, (mean, a) in enumerate(zip(means.T, along.T, strict=True)):
            z, slope = (mean - mean.mean()) / mean.std(), V[:, j] @ W[:, j] / mean.std()
            controls = [z**q * a + (q * z ** (q - 1) * slope if q else 0.0) for q in range(6)]
            p = with_fast_integrals(likelihood).probability(mean, left[j])
            found[-1].append(np.linalg.lstsq(np.column_stack([np.ones_like(z), *controls]), p, rcond=None)[0][0])
    return np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / 2


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/inferences.md")
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
        model = make(inference="mcmc", n_samples=options.samples).fit(X, y)
        taken, told = time.perf_counter() - start, model.numerics_
        P, noise = sampled(model, Z)
        second = t == model.classes_[1]
        loss = lambda p, second=second: -np.mean(np.log(np.where(second, p, 1 - p)))
        rows.append([name, f"mcmc, {told['draws']:,} draws, {told['effective_draws']:,.0f} effective, R-hat "
                     f"{told['rhat']:.3f}", f"(noise {noise.mean():.5f})", "", "", f"{loss(P):.4f}",
                     f"{taken:.2f}"])  # fmt: skip
        print(rows[-1], flush=True)
        away = {}
        for label, way in WAYS.items():
            start = time.perf_counter()
            model = make(**way).fit(X, y)
            taken = time.perf_counter() - start
            Q = model.predict_proba(Z)[:, 1]
            away[label] = np.mean(np.abs(Q - P))
            rows.append([name, label, f"{away[label]:.5f}", f"{np.abs(Q - P).max():.4f}",
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
