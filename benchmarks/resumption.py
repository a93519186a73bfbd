"""Fits that are killed (SIGKILL) at random moments and started again end where uninterrupted ones do.

    python benchmarks/resumption.py [--kills 10] [--write]

Claim: with ``checkpoint=PATH``, after any number of kills the same call goes on and ends at the same parameters and
predictions to 1e-8, whatever the solver and the likelihood. A fit runs in a process of its own, which is killed after a
time drawn from that of a whole fit, again and again, and then runs to its end. Evaluations of the first seconds of a
process may be lost, since the file is written every few seconds; here every tenth of a second.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import keep, table

import mercer as mc
from mercer import kernels as k
from mercer.learning import state
from mercer.solvers import Iterative, LowRank, Minibatch

state.SAVE_INTERVAL_SECONDS = 0.1
TOLERANCE = 1e-8

rng = np.random.default_rng(3)
X = rng.uniform(0, 10, size=(6000, 2))
f = np.sin(X[:, 0]) + 0.3 * X[:, 1]
y = f + 0.2 * rng.normal(size=len(X))
LABELS, COUNTS = (f + 0.5 * rng.normal(size=len(X)) > 1.5).astype(int), rng.poisson(np.exp(0.4 * f))


def regressor(checkpoint, **settings):
    return mc.GaussianProcessRegressor(progress=False, checkpoint=checkpoint, **settings)


def classifier(checkpoint, **settings):
    return mc.GaussianProcessClassifier(progress=False, checkpoint=checkpoint, **settings)


FITS = {
    "dense": lambda path: regressor(path).fit(X[:1000], y[:1000]),
    "iterative": lambda path: regressor(path, kernel=1.0 * k.RBF(), solver=Iterative(dense_rows=500)).fit(X, y),
    "low rank": lambda path: regressor(path, kernel=1.0 * k.RBF(), solver=LowRank(100)).fit(X, y),
    "minibatch": lambda path: regressor(path, solver=Minibatch(100, 500)).fit(X, y),
    "two classes": lambda path: classifier(path).fit(X[:600], LABELS[:600]),
    "three classes": lambda path: classifier(path).fit(X[:300], LABELS[:300] + (X[:300, 0] > 7)),
    "two classes, minibatch": lambda path: classifier(path, solver=Minibatch(50, 500)).fit(X, LABELS),
    "Poisson": lambda path: regressor(path, likelihood="poisson").fit(X[:600], COUNTS[:600]),
}  # fmt: skip


def found(model) -> np.ndarray:
    """Parameters and predictions."""
    Z = X[:200]
    predicted = model.predict_proba(Z) if hasattr(model, "predict_proba") else model.predict(Z, return_std=True)
    return np.concatenate([np.ravel(model.theta_), *map(np.ravel, np.atleast_2d(predicted))])


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--kills", type=int, default=10)
    arguments.add_argument("--fit")
    arguments.add_argument("--into", nargs=2)
    arguments.add_argument("--write", action="store_true")
    given = arguments.parse_args()
    if given.fit:
        checkpoint, out = given.into
        np.save(out, found(FITS[given.fit](None if checkpoint == "none" else checkpoint)))
        return
    draws, rows = np.random.default_rng(0), []
    for name in FITS:
        with tempfile.TemporaryDirectory() as folder:
            seconds, whole = run(name, "none", Path(folder) / "whole.npy")
            checkpoint, out = Path(folder) / "checkpoint", Path(folder) / "rest.npy"
            killed = 0
            while killed < given.kills:
                if run(name, checkpoint, out, draws.uniform(0, seconds)) is None:
                    killed += 1
                else:  # it came to its end before it was killed
                    checkpoint.unlink()
            _, rest = run(name, checkpoint, out)
        away = float(np.abs(rest - whole).max())
        rows.append([name, f"{seconds:.1f}", killed, f"{away:.1g}", "yes" if away <= TOLERANCE else "NO"])
        print(*rows[-1], flush=True)
    header = ["fit", "seconds of a whole one", "kills", "largest difference", "within 1e-8"]
    if given.write:
        command = f"python benchmarks/resumption.py --kills {given.kills} --write"
        keep("resumption", "Fits that are killed and go on", command, table(header, rows))


def run(name, checkpoint, out, kill_after=None):
    """Seconds and what was found; None if it was killed."""
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", __file__, "--fit", name, "--into", str(checkpoint), str(out)]
    process = subprocess.Popen(command, env=os.environ)
    try:
        process.wait(kill_after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return None
    if process.returncode:
        raise SystemExit(f"{name} failed")
    return time.perf_counter() - began, np.load(out)


if __name__ == "__main__":
    main()
