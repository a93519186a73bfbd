"""Every regressor with default settings on four real data sets, compared with ordinary ridge regression.

    python benchmarks/regressors.py [--write] [--splits 5]

Claim: no default is worse than ridge regression on standardised inputs. Concrete, energy and airfoil: ten-percent test
sets, the splits that come with the data. California housing: numeric columns, rows without missing values, 4,000 random
training rows and 2,000 test rows. Targets are in their own units (California: 100,000 dollars). Log densities are means
over test rows, of models that have one. An interpolator refuses two values at the same point. MERCER_DATA is the folder
of the data (default ../shared/data).
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from machine import keep, table
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mercer as mc

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "regression"
SETS = ("concrete", "energy", "airfoil", "california")
MODELS = {
    "ridge regression (scikit-learn)": lambda: make_pipeline(StandardScaler(), Ridge()),
    "GaussianProcessRegressor()": lambda: mc.GaussianProcessRegressor(progress=False),
    "BayesianLinearRegression()": mc.BayesianLinearRegression,
    "KernelRidge()": mc.KernelRidge,
    'KernelRidge(alpha="loo")': lambda: mc.KernelRidge(alpha="loo"),
    "RBFInterpolator()": mc.RBFInterpolator,
    "RBFNetwork()": mc.RBFNetwork,
    "NadarayaWatson()": lambda: mc.NadarayaWatson(progress=False),
    "GaussianMixtureRegressor()": mc.GaussianMixtureRegressor,
}


def splits(name, count):
    """Training inputs and targets, test inputs and targets."""
    if name != "california":
        data = np.load(DATA / f"uci_{name}.npz")
        X, y = data["X"], data["y"].ravel()
        for test in data["test_mask"].T[:count]:
            yield X[~test], y[~test], X[test], y[test]
        return
    frame = pd.read_csv(DATA / "california_housing.csv.gz").dropna()
    y = frame.pop("median_house_value").to_numpy() / 1e5
    X = frame.select_dtypes("number").to_numpy(float)
    for seed in range(min(count, 3)):
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[:4000], order[4000:6000]
        yield X[train], y[train], X[test], y[test]


def measured(make, name, count):
    """Means over splits: RMSE, log density, seconds."""
    found = []
    for X, y, Z, t in splits(name, count):
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a default that warns is one to look at
                model = make().fit(X, y)
        except mc.DataError as error:  # two values at one place: nothing passes through both
            return str(error).split(":")[0]
        taken = time.perf_counter() - start
        density = np.nan
        if hasattr(model, "log_predictive_density"):
            density = np.mean(model.log_predictive_density(Z, t))
        found.append([np.sqrt(np.mean((model.predict(Z) - t) ** 2)), density, taken])
    return np.mean(found, axis=0)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/regressors.md")
    arguments.add_argument("--splits", type=int, default=5)
    arguments.add_argument("--only", nargs="+", help="models whose names contain one of these words")
    options = arguments.parse_args()
    warnings.simplefilter("ignore")  # of test rows far from all data
    rows, reference = [], {}
    for label, make in MODELS.items():
        if options.only and rows and not any(word in label for word in options.only):
            continue
        row = [label]
        for name in SETS:
            found = measured(make, name, options.splits)
            if isinstance(found, str):
                row.append(f"refused: {found}")
                continue
            rmse, density, taken = found
            worse = rmse > reference.setdefault(name, rmse) * 1.005
            told = "" if np.isnan(density) else f", {density:.2f}"
            row.append(f"{rmse:.3f}{' (worse)' if worse else ''}{told}; {taken:.1f} s")
        rows.append(row)
        print(row, flush=True)
    lines = [f"RMSE, log density of a test row where the model has one; seconds to fit. Means over {options.splits} "
             f"splits ({min(options.splits, 3)} for California).", "", *table(["model", *SETS], rows)]  # fmt: skip
    print("\n".join(lines))
    if options.write:
        keep(
            "regressors",
            "Every regressor with its default settings",
            f"python benchmarks/regressors.py --splits {options.splits} --write",
            lines,
        )


if __name__ == "__main__":
    main()
