"""Real data sets for regression: name to (X, y), rows in a fixed random order."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

DATA = Path(os.environ.get("MERCER_DATA", Path(__file__).parents[2] / "shared" / "data"))
UCI = (
    "concrete", "energy", "yacht", "airfoil", "elevators", "keggdirected", "kin40k", "pol", "protein", "pumadyn32nm",
)  # fmt: skip


def regression() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Every regression set: tables, maps, one-dimensional curves, and scikit-learn's own."""
    found = {}
    for name in UCI:
        with np.load(DATA / "regression" / f"uci_{name}.npz") as file:
            found[name] = file["X"], file["y"].ravel()
    with np.load(DATA / "regression" / "nycflights13.npz") as file:
        found["flights"] = file["X"], file["y"].ravel()
    frames = {
        "california": ("regression/california_housing.csv.gz", None, "median_house_value"),
        "mcycle": ("regression/mcycle.csv.gz", ["times"], "accel"),
        "faithful": ("regression/faithful.csv.gz", ["eruptions"], "waiting"),
        "meuse": ("geostat/meuse.csv.gz", ["x", "y"], "zinc"),
        "jura": ("geostat/jura.csv.gz", ["Xloc", "Yloc"], "Cd"),
    }
    for name, (path, inputs, target) in frames.items():
        frame = pd.read_csv(DATA / path).select_dtypes("number").dropna()
        inputs = inputs or [column for column in frame.columns if column != target]
        found[name] = frame[inputs].to_numpy(float), frame[target].to_numpy(float)
    found["meuse"] = found["meuse"][0], np.log(found["meuse"][1])
    snelson = pd.read_csv(DATA / "regression" / "snelson1d.csv.gz").to_numpy(float)
    found["snelson"] = snelson[:, :1], snelson[:, 1]
    satellite = pd.read_csv(DATA / "geostat" / "heaton_satellite.csv.gz").dropna().to_numpy(float)
    found["satellite"] = satellite[:, :2], satellite[:, 2]
    diabetes = datasets.load_diabetes(scaled=False)
    found["diabetes"] = diabetes.data, diabetes.target
    out = {}
    for name, (X, y) in found.items():
        order = np.random.default_rng(0).permutation(len(y))[:20_000]
        out[name] = np.asarray(X, dtype=float)[order], np.asarray(y, dtype=float)[order]
    return out
