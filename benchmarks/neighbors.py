"""Satellite temperatures (Heaton et al. 2019) by neighbours, beside GPBoost's Vecchia approximation in the same run.

    python benchmarks/neighbors.py [--rows N] [--neighbors M] [--only NAME] [--kept FILE] [--write]

105,569 training rows and 42,740 test rows, which lie in large holes. Exponential covariance, a linear mean and 20
neighbours for both, 160 in predictions; and mercer with its defaults, which choose the covariance by leaving out
blocks. Each runs in a process of its own: seconds are of the wall clock, and of the processor where others may be at
work on the machine; memory is the peak of the process. ``--rows`` takes a random subset of the training rows.
``--kept`` stores measurements in a file as they come, and takes those that it has. MERCER_DATA is the folder of the
data (default ../shared/data).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from machine import Kept, keep, table

PREDICTION_SHARE = 8  # times as many neighbours predict a new row, mercer's default
DATA = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "geostat" / "heaton_satellite.csv.gz"


def satellite(rows):
    import pandas as pd

    frame = pd.read_csv(DATA)
    train, test = frame[frame.MaskTemp.notna()], frame[frame.MaskTemp.isna() & frame.TrueTemp.notna()]
    if rows:
        train = train.sample(rows, random_state=0)
    places = ["Lon", "Lat"]
    return train[places].to_numpy(), train.MaskTemp.to_numpy(), test[places].to_numpy(), test.TrueTemp.to_numpy()


def mercer_fit(neighbors, default=False):
    import mercer as mc
    from mercer import kernels as k

    def fit(X, y):
        if default:
            return mc.GaussianProcessRegressor(progress=False).fit(X, y)
        solver = mc.solvers.Neighbors(neighbors)
        return mc.GaussianProcessRegressor(1.0 * k.Exponential(), mean="linear", solver=solver, progress=False).fit(
            X, y
        )

    return fit, lambda model, Z: model.predict(Z, return_std=True)


def gpboost_fit(neighbors):
    import gpboost as gpb

    columns = lambda X: np.column_stack([np.ones(len(X)), X])

    def fit(X, y):
        model = gpb.GPModel(
            gp_coords=X, cov_function="exponential", gp_approx="vecchia", num_neighbors=neighbors, likelihood="gaussian"
        )
        model.fit(y=y, X=columns(X))
        model.set_prediction_data(num_neighbors_pred=PREDICTION_SHARE * neighbors)
        return model

    def predict(model, Z):
        found = model.predict(gp_coords_pred=Z, X_pred=columns(Z), predict_var=True, predict_response=True)
        return found["mu"], np.sqrt(found["var"])

    return fit, predict


METHODS = {
    "mercer, exponential": lambda m: mercer_fit(m),
    "GPBoost, exponential": lambda m: gpboost_fit(m),
    "mercer, default": lambda m: mercer_fit(m, default=True),
}


def measure(name, rows, neighbors):
    from mercer.distributions import Normal

    X, y, Z, t = satellite(rows)
    fit, predict = METHODS[name](neighbors)
    start, busy = time.perf_counter(), time.process_time()
    model = fit(X, y)
    fitted, worked = time.perf_counter(), time.process_time()
    mean, deviation = predict(model, Z)
    end = time.perf_counter()
    found, error = Normal(mean, deviation), t - mean
    chosen = getattr(model, "choice_", None)
    return {
        "MAE": float(np.abs(error).mean()),
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "CRPS": float(np.mean(found.crps(t))),
        "log density": float(np.mean(found.log_density(t))),
        "coverage": float(np.mean(np.abs(error) < 1.96 * deviation)),
        "fit": fitted - start,
        "worked": worked - busy,
        "predict": end - fitted,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "chosen": "" if chosen is None else str(chosen.member),
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=0, help="training rows; 0: all")
    arguments.add_argument("--neighbors", type=int, default=20)
    arguments.add_argument("--only", choices=METHODS, help="one method, in this process")
    arguments.add_argument("--kept", help="file of measurements, made if there is none")
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/neighbors.md")
    options = arguments.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.rows, options.neighbors)))
        return
    rows, measured = [], Kept(options.kept)
    for name in METHODS:
        if name not in measured:
            command = [sys.executable, __file__, "--rows", options.rows, "--neighbors", options.neighbors]
            command = [str(part) for part in (*command, "--only", name)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            measured[name] = json.loads(done.stdout.splitlines()[-1])
        found = measured[name]
        rows.append([name, *(f"{found[key]:.3f}" for key in ("MAE", "RMSE", "CRPS", "log density")),
                     f"{found['coverage']:.1%}", *(f"{found[key]:.1f}" for key in ("fit", "worked", "predict")),
                     f"{found['memory']:.2f}", found["chosen"]])  # fmt: skip
        print(rows[-1], flush=True)
    head = ["method", "MAE", "RMSE", "CRPS", "log density", "95% intervals hold", "fit, s", "of processor, s",
            "predict, s", "GiB", "covariance chosen"]  # fmt: skip
    lines = table(head, rows)
    print("\n".join(lines))
    if options.write:
        keep("neighbors", "Satellite temperatures by neighbours", "python benchmarks/neighbors.py --write", lines)


if __name__ == "__main__":
    main()
