"""Twenty thousand rows by default settings: magic (two classes), digits (ten classes), California house values.

    python benchmarks/large_classes.py [--write] [--kept FILE] [--only mercer] [--sets magic] [--done]

Claim: with default settings mercer fits them in minutes on two cores, with errors beside those of scikit-learn's
histogram gradient boosting (its defaults). Magic: a random tenth of 19,020 rows is held out. Digits: 20,000 of the
60,000 training images of MNIST, pixels as they are, and 5,000 test images. California: a random tenth of 20,640 rows is
held out, logarithm of the value, a column of categories among the inputs, with "committee" and "online" (rows in chunks
of 1,000) beside. Every model has a process of its own; memory is its peak. Errors are shares of
labels, or root mean squares. Log loss, or minus the log density (of
boosting with a normal distribution of the residuals of a tenth of the training rows); coverage is that of 95%
intervals. MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from machine import Kept, forget_the_peak, in_process, keep, resident, table
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import mercer as mc
from mercer.solvers import Committee

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data"))
CHUNK = 1000


class Streamed:
    """`partial_fit`, chunk by chunk."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        for i in range(0, len(y), CHUNK):
            self.model.partial_fit(X[i : i + CHUNK], y[i : i + CHUNK])
        return self.model


CLASSIFIERS = {
    "mercer, defaults": lambda: mc.GaussianProcessClassifier(progress=False),
    "mercer, partial_fit": lambda: Streamed(mc.GaussianProcessClassifier(progress=False)),
    "scikit-learn, HistGradientBoosting": HistGradientBoostingClassifier,
}
REGRESSORS = {
    "mercer, defaults": lambda: mc.GaussianProcessRegressor(progress=False),
    "mercer, committee": lambda: mc.GaussianProcessRegressor(solver=Committee(), progress=False),
    "mercer, minibatch": lambda: mc.GaussianProcessRegressor(solver="minibatch", progress=False),
    "mercer, partial_fit": lambda: Streamed(mc.GaussianProcessRegressor(progress=False)),
    "scikit-learn, HistGradientBoosting": lambda: HistGradientBoostingRegressor(categorical_features="from_dtype"),
}
SETS = {"magic": CLASSIFIERS, "digits": CLASSIFIERS, "california": REGRESSORS}


def read(name):
    """Training and test inputs and targets."""
    if name == "digits":
        found = np.load(DATA / "classification" / "mnist.npz")
        train = np.random.default_rng(0).permutation(len(found["ytrain"]))[:20_000]
        X, y = found["Xtrain"][train].astype(float), found["ytrain"][train]
        return X, y, found["Xtest"][:5000].astype(float), found["ytest"][:5000]
    file = "classification/keel_magic" if name == "magic" else "regression/california_housing"
    frame = pd.read_csv(DATA / f"{file}.csv.gz").dropna(ignore_index=True)
    order = np.random.default_rng(0).permutation(len(frame))
    test, train = order[: len(frame) // 10], order[len(frame) // 10 :]
    if name == "magic":
        y = frame.pop(frame.columns[-1]).astype(str).to_numpy()
        X = frame.to_numpy(float)
    else:
        y = np.log(frame.pop("median_house_value").to_numpy(float))
        X = frame.astype({"ocean_proximity": "category"})
        return X.iloc[train].reset_index(drop=True), y[train], X.iloc[test].reset_index(drop=True), y[test]
    return X[train], y[train], X[test], y[test]


def measure(name, label):
    X, y, Xs, ys = read(name)
    model = SETS[name][label]()
    forget_the_peak()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model.fit(X, y)
    fitted = time.perf_counter() - start
    start = time.perf_counter()
    coverage = None
    if SETS[name] is CLASSIFIERS:
        P = model.predict_proba(Xs)
        codes = np.searchsorted(model.classes_, ys)
        error = float(np.mean(P.argmax(axis=1) != codes))
        loss = -float(np.mean(np.log(np.maximum(P[np.arange(len(ys)), codes], 1e-15))))
    else:
        if hasattr(model, "predict_distribution"):
            predicted = model.predict_distribution(Xs)
            mean, loss = predicted.mean, -float(np.mean(predicted.log_density(ys)))
            low, high = predicted.interval(0.95)
        else:
            held = np.arange(len(y)) % 10 == 0
            rest = type(model)(**model.get_params()).fit(X[~held], y[~held])
            deviation = float(np.std(y[held] - rest.predict(X[held])))
            mean = model.predict(Xs)
            low, high = mean - 1.96 * deviation, mean + 1.96 * deviation
            loss = float(np.mean(0.5 * np.log(2 * np.pi * deviation**2) + 0.5 * ((ys - mean) / deviation) ** 2))
        error, coverage = float(np.sqrt(np.mean((ys - mean) ** 2))), float(np.mean((ys > low) & (ys < high)))
    predicting = time.perf_counter() - start
    solver = getattr(model, "solver_", None)
    method = "" if solver is None or "partial" in label else solver.name
    print(json.dumps([error, loss, coverage, fitted, predicting, resident("VmHWM") / 2**30, method]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", nargs=2)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--done", action="store_true")
    parser.add_argument("--kept")
    parser.add_argument("--only", default="")
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    given = parser.parse_args()
    if given.measure:
        return measure(*given.measure)
    kept, rows = Kept(given.kept), []
    for name in given.sets:
        for label in SETS[name]:
            key = f"{name}|{label}"
            if key not in kept and not given.done and given.only in label:
                kept[key] = in_process(__file__, name, label)
                print(key, kept[key], flush=True)
            if key in kept:
                error, loss, coverage, fit, predict, memory, method = kept[key]
                shown = "" if coverage is None else f"{coverage:.1%}"
                wrong = f"{error:.2%}" if coverage is None else f"{error:.4f}"
                numbers = f"{loss:.4f}", shown, f"{fit:.0f}", f"{predict:.1f}", f"{memory:.1f}"
                rows.append([name, f"{label}{f' ({method})' if method else ''}", wrong, *numbers])
    header = ["set", "model", "error", "log loss", "coverage", "fit, s", "predict, s", "memory, GiB"]
    lines = [*table(header, rows), "", f"Measured at {kept.measured_at(kept)}."]
    print("\n".join(lines))
    if given.write:
        keep("large_classes", "Twenty thousand rows by default settings", "python benchmarks/large_classes.py", lines)


if __name__ == "__main__":
    main()
