"""Default `GaussianProcessClassifier()` compared with tuned models of other libraries, on every labelled data set.

Claim: the log loss of the default is the lowest, or within 0.01 of the best, on at least 80% of the sets. The others:
scikit-learn's GaussianProcessClassifier with a variance and one lengthscale to learn (its default learns nothing), a
support vector machine with C and gamma by the log loss of Platt's probabilities in five inner folds, and a random
forest with leaf size and features by its out-of-bag log loss. scikit-learn's Gaussian process and support vector
machine get standardised inputs, mercer and the forest unscaled ones. All use the same stratified splits: 70% of the
rows for training (half for iris), 500 at most, and up to 1,000 others for testing. Calibration errors are over ten bins
of equal counts, all splits together.
"""

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from classifiers import sklearn_process, support_vectors
from machine import table
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import mercer as mc
from mercer.scores import reliability

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data"))
MOST, JUDGED = 500, 1000  # rows to learn from, and to be predicted
CLOSE = 0.01  # of a log loss


class Forest:
    """500 trees, with leaf size and number of features chosen by the out-of-bag log loss of 150."""

    def fit(self, X, y):
        losses = {}
        for leaf in (1, 2, 5):
            for features in ("sqrt", 0.5):
                some = RandomForestClassifier(
                    150, min_samples_leaf=leaf, max_features=features, oob_score=True, random_state=0
                ).fit(X, y)
                losses[leaf, features] = log_loss(y, np.clip(some.oob_decision_function_, 1e-3, 1))
        leaf, features = min(losses, key=losses.get)
        self.forest = RandomForestClassifier(500, min_samples_leaf=leaf, max_features=features, random_state=0)
        self.forest.fit(X, y)
        return self

    def predict_proba(self, X):
        """No forest of 500 knows that something is impossible."""
        P = np.maximum(self.forest.predict_proba(X), 1e-3)
        return P / P.sum(axis=1, keepdims=True)


DEFAULT = "mercer, GaussianProcessClassifier()"
MODELS = {
    DEFAULT: lambda X: mc.GaussianProcessClassifier(progress=False),
    "scikit-learn, GaussianProcessClassifier": sklearn_process,
    "scikit-learn, SVC, tuned, Platt scaling": support_vectors,
    "scikit-learn, random forest, tuned": lambda X: Forest(),
}


def _frame(name, target=-1):
    frame = pd.read_csv(DATA / f"classification/{name}.csv.gz")
    y = frame.pop(frame.columns[target]).astype(str).to_numpy()
    return frame.to_numpy(float), y


def _crabs(target):
    frame = pd.read_csv(DATA / "classification/crabs.csv.gz")
    X = frame[["FL", "RW", "CL", "CW", "BD"]].assign(blue=frame.sp == "B").to_numpy(float)
    return (X, frame.sex.to_numpy(str)) if target == "sex" else (X[:, :5], (frame.sp + frame.sex).to_numpy(str))


def _images(name, among=None):
    found = np.load(DATA / f"classification/{name}.npz")
    X = np.concatenate([found["Xtrain"], found["Xtest"]])
    y = np.concatenate([found["ytrain"], found["ytest"]])
    rows = np.isin(y, among) if among else slice(None)
    return X[rows].astype(float), y[rows].astype(str)


def _ripley():
    frame = pd.read_csv(DATA / "classification/ripley_synth.csv.gz")
    return frame[["xs", "ys"]].to_numpy(float), frame.yc.astype(str).to_numpy()


def _oil():
    found = np.load(DATA / "multioutput/oil_flow.npz")
    parts = ("Trn", "Vdn", "Tst")
    X = np.concatenate([found[f"Data{part}"] for part in parts]).astype(float)
    return X, np.concatenate([found[f"Data{part}Lbls"].argmax(axis=1) for part in parts]).astype(str)


def _oil_100():
    found = np.load(DATA / "multioutput/oil_flow_100.npz")
    return found["Y"].astype(float), found["labels"].astype(str)


def _bundled(name, rows=None):
    found = getattr(datasets, f"load_{name}")()
    return found.data[:rows].astype(float), found.target[:rows].astype(str)


SETS = {
    "iris, two classes": lambda: _bundled("iris", 100),
    "breast cancer": lambda: _bundled("breast_cancer"),
    "crabs, sex": lambda: _crabs("sex"),
    "sonar": lambda: _frame("sonar"),
    "ionosphere": lambda: _frame("ionosphere"),
    "banana, 400": lambda: _frame("banana400"),
    "banana": lambda: _frame("keel_banana"),
    "ripley": _ripley,
    "magic": lambda: _frame("keel_magic"),
    "usps, 3 or 5": lambda: _images("usps_resampled", [3, 5]),
    "iris": lambda: _bundled("iris"),
    "wine": lambda: _bundled("wine"),
    "crabs, species and sex": lambda: _crabs("both"),
    "oil flow": _oil,
    "oil flow, 100": _oil_100,
    "vehicle": lambda: _frame("vehicle"),
    "satellite": lambda: _frame("satellite"),
    "segment": lambda: _frame("keel_segment"),
    "digits": lambda: _bundled("digits"),
    "usps": lambda: _images("usps_resampled"),
    "mnist": lambda: _images("mnist"),
}


def split(name, seed):
    """Inputs and classes, by number, to learn from; the same to be predicted."""
    X, y = SETS[name]()
    codes = np.unique(y, return_inverse=True)[1]
    n = min(MOST, int((0.5 if name.startswith("iris") else 0.7) * len(y)))
    some = {"train_size": n, "test_size": min(JUDGED, len(y) - n), "stratify": codes, "random_state": seed}
    X, Xs, codes, right = train_test_split(X, codes, **some)
    return X, codes, Xs, right


def measured(label, name, splits, kept, done=False, patience=np.inf):
    """Codes and probabilities of all splits together, the log loss of each, and seconds; None where there are none."""
    codes, P, losses, seconds = [], [], [], []
    for seed in range(splits):
        key = f"{label}|{name}|{seed}"
        if key not in kept and (done or (label != DEFAULT and seconds and seconds[-1] > patience)):
            continue
        X, y, Xs, right = split(name, seed)
        if key not in kept:
            start = time.perf_counter()
            model = MODELS[label](X).fit(X, y)
            taken = time.perf_counter() - start
            kept[key] = [taken, np.round(model.predict_proba(Xs), 9).tolist()]
        seconds.append(kept[key][0])
        codes.append(right)
        P.append(np.maximum(kept[key][1], 1e-15))
        losses.append(reliability(right, P[-1]).log_loss)
    return (np.concatenate(codes), np.concatenate(P), losses, seconds) if codes else None


def lines(splits, kept, done=False, sets=None, models=("",), patience=np.inf) -> list[str]:
    """The table, what it says, and at which commits it was measured."""
    rows, losses, asked = [], {}, [label for label in MODELS if any(word in label for word in models)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn's parameters at their bounds
        for name in sets or SETS:
            for label in asked:
                found = measured(label, name, splits, kept, done, patience)
                if found is None:
                    continue
                codes, P, each, seconds = found
                judged = reliability(codes, P)
                losses.setdefault(name, {})[label] = each
                rows.append([name, label, len(each), f"{judged.error_rate:.1%}", f"{np.mean(each):.4f}",
                             f"{judged.calibration_error:.1%}", f"{np.mean(seconds):.1f}"])  # fmt: skip
                print(*rows[-1], sep=" | ", flush=True)
    header = ["data", "model", "splits", "error", "log loss", "calibration error", "seconds to fit"]
    both = {name: found for name, found in losses.items() if DEFAULT in found and len(found) > 1}
    # A peer with fewer splits is compared on those.
    good = sum(
        all(np.mean(found[DEFAULT][: len(each)]) <= np.mean(each) + CLOSE for each in found.values())
        for found in both.values()
    )
    summary = f"Log loss of the default lowest, or within {CLOSE} of the best, on {good} of {len(both)} sets"
    summary += f" ({good / max(len(both), 1):.0%})."
    print(summary)
    commits = [f"{label}: {kept.measured_at(key for key in kept if key.startswith(label))}" for label in asked]
    return [summary, "", "Measured at these commits: " + "; ".join(commits) + ".", "", *table(header, rows)]
