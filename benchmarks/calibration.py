"""Coverage of 95% intervals with default settings, on real data.

    python benchmarks/calibration.py [--write]

Claim: `GaussianProcessRegressor()` with its default settings, on the 20 standard splits of concrete, energy and yacht:
95% intervals cover between 93% and 97% of the held-out points on average. RMSE and log density are compared with
published ones: a sparse Gaussian process with 100 inducing points (bayesian_benchmarks, ten random splits of the same
sizes) and Monte Carlo dropout (the same splits). MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import os
from pathlib import Path

import numpy as np
from machine import keep

import mercer as mc
from mercer.scores import calibration

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data"))
PUBLISHED = {  # RMSE, log density: sparse GP; MC dropout
    "concrete": ((5.97, -3.17), (4.83, -2.94)),
    "energy": ((0.65, -1.08), (0.54, -1.21)),
    "yacht": ((0.66, -0.77), (0.67, -1.25)),
}


def run(name):
    data = np.load(DATA / "regression" / f"gal_{name}.npz")
    X, y, masks = data["X"], data["y"], data["test_mask"]
    found = []
    for test in masks.T:
        model = mc.GaussianProcessRegressor(progress=False).fit(X[~test], y[~test])
        held = calibration(y[test], model.predict_distribution(X[test]))
        found.append([held.rmse, held.log_density, held.coverage[held.levels.index(0.95)]])
    return np.array(found)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/calibration.md")
    options = arguments.parse_args()
    lines = [
        "| data | 95% intervals hold | RMSE | log density | sparse GP: RMSE, log density "
        "| MC dropout: RMSE, log density |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, ((rmse, density), (dropout_rmse, dropout_density)) in PUBLISHED.items():
        found = run(name)
        mean, error = found.mean(axis=0), found.std(axis=0) / np.sqrt(len(found))
        lines.append(
            f"| {name} | {mean[2]:.1%} ± {error[2]:.1%} | {mean[0]:.2f} ± {error[0]:.2f} | {mean[1]:.2f} ± "
            f"{error[1]:.2f} | {rmse}, {density} | {dropout_rmse}, {dropout_density} |"
        )
        print(lines[-1], flush=True)
    if options.write:
        keep("calibration", "Do 95% intervals hold 95%? Default settings, 20 standard splits",
             "python benchmarks/calibration.py --write", lines)  # fmt: skip


if __name__ == "__main__":
    main()
