"""Maps to two latent dimensions: nearest neighbours of another class in the oil flow data, and evidence beside GPy.

Oil flow, 100 rows: the number of rows whose nearest latent point is of another phase (Lawrence 2005, where a latent
variable model has 4, principal components 20), and of 1,000 new rows mapped by each model, the share whose nearest
training point is of another phase. GPy, where it is installed, evaluates the evidence of its GPLVM at the same latent
points and parameters.

Run with --write for results/manifolds.md.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from machine import keep, table
from sklearn.decomposition import PCA

import mercer as mc
from mercer import kernels as k
from mercer.learning.latent_points import LatentEvidence

FOLDER = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "multioutput"
MODELS = {
    "principal components": lambda: PCA(2),
    "GenerativeTopographicMapping": lambda: mc.GenerativeTopographicMapping(progress=False),
    "GaussianProcessLatentVariables": lambda: mc.GaussianProcessLatentVariables(progress=False),
    "... back-constrained": lambda: mc.GaussianProcessLatentVariables(back_constraint=True, progress=False),
    "... Matern 5/2": lambda: mc.GaussianProcessLatentVariables(
        2, 1.0 * k.Matern(1.0).fix("lengthscale"), progress=False
    ),
    "... bayesian, of 8 dimensions": lambda: mc.GaussianProcessLatentVariables(8, bayesian=True, progress=False),
}


def neighbour(points, known, same=False):
    """Index of the nearest of the known points."""
    away = ((points[:, None] - known) ** 2).sum(-1)
    if same:
        np.fill_diagonal(away, np.inf)
    return away.argmin(axis=1)


def in_lengthscales(model):
    """Points in units of the lengthscale of each dimension, where there is one for each."""
    scale = getattr(getattr(getattr(model, "kernel_", None), "inner", None), "lengthscale", 1.0)
    return lambda points: points / scale


def gpy_gap(rows, points, kernel, noise):
    """Difference of log evidences; None without GPy."""
    try:
        import GPy
    except ImportError:
        return None
    theirs = GPy.models.GPLVM(rows, 2, X=points.copy(), kernel=GPy.kern.RBF(2, *map(float, kernel)))
    theirs.likelihood.variance = noise
    ours = LatentEvidence(kernel[0] * k.RBF(kernel[1]), rows)(points, np.log(kernel), np.log(noise)).value
    return ours, float(theirs.log_likelihood())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    data, more = np.load(FOLDER / "oil_flow_100.npz"), np.load(FOLDER / "oil_flow.npz")
    Y, labels = data["Y"], data["labels"]
    new, classes = more["DataTst"], more["DataTstLbls"].argmax(axis=1)
    rows = []
    for name, make in MODELS.items():
        model, start = make(), time.process_time()
        points = model.fit_transform(Y)
        taken, scaled = time.process_time() - start, in_lengthscales(model)
        wrong = int((labels[neighbour(scaled(points), scaled(points), same=True)] != labels).sum())
        there = model.transform(new)
        errors = float((labels[neighbour(scaled(there), scaled(points))] != classes).mean())
        used = int((model.relevance_ >= 0.01).sum()) if hasattr(model, "relevance_") else 2
        rows.append([name, used, wrong, f"{errors:.1%}", f"{taken:.1f}"])
        print(rows[-1], flush=True)
    lines = table(["map", "dimensions used", "errors of 100", "errors of 1,000 new rows", "seconds of processor"], rows)
    points = np.random.default_rng(0).normal(size=(100, 2))
    gap = gpy_gap((Y - Y.mean(axis=0)) / Y.std(axis=0), points, (1.3, 0.8), 0.1)
    if gap is not None:
        lines += ["", f"Evidence at fixed points and parameters: mercer {gap[0]:.9f}, GPy {gap[1]:.9f}."]
    print("\n".join(lines))
    if options.write:
        keep("manifolds", "Maps to latent dimensions", "python benchmarks/manifolds.py", lines)


if __name__ == "__main__":
    main()
