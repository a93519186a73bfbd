"""Fits that are killed (SIGKILL) and started again, for a test: ``python killed.py FOLDER SEED``.

Prints for each fit how often it was killed and by how much it then differs from an uninterrupted one. Every run is
forked from this process, which computes nothing itself, so that only one interpreter is started.
"""

import json
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import scipy.optimize  # noqa: F401 (imported once for all)

import mercer as mc
from mercer import kernels as k
from mercer.learning import checkpoint, state
from mercer.models import minibatch
from mercer.solvers import Iterative, LowRank, Minibatch

KILLS = {"dense": 1, "iterative": 3, "low rank": 2, "minibatch": 1, "two classes": 2, "Poisson": 1}
state.SAVE_INTERVAL_SECONDS = 0.02  # so that some evaluations are lost
minibatch.FIRST_LABELS = 60

rng = np.random.default_rng(3)
X = rng.uniform(0, 10, size=(80, 1))
f = np.sin(X[:, 0])
y = f + 0.2 * rng.normal(size=len(X))
LABELS, COUNTS = (f + 0.5 * rng.normal(size=len(X)) > 0).astype(int), rng.poisson(np.exp(f))


def regressor(path, **settings):
    return mc.GaussianProcessRegressor(1.0 * k.RBF(), progress=False, checkpoint=path, **settings)


def classifier(path, **settings):
    return mc.GaussianProcessClassifier(1.0 * k.RBF(), progress=False, checkpoint=path, **settings)


FITS = {
    "dense": lambda path: regressor(path).fit(X, y),
    "iterative": lambda path: regressor(path, solver=Iterative(rank=10, dense_rows=0)).fit(X, y),
    "low rank": lambda path: regressor(path, solver=LowRank(10)).fit(X, y),
    "minibatch": lambda path: classifier(path, solver=Minibatch(8, 20, epochs=8)).fit(X, LABELS),
    "two classes": lambda path: classifier(path).fit(X, LABELS),
    "Poisson": lambda path: regressor(path, likelihood="poisson").fit(X, COUNTS),
}


def found(model) -> np.ndarray:
    """Parameters and predictions."""
    Z = np.linspace(0, 12, 25)[:, None]
    predicted = model.predict_proba(Z) if hasattr(model, "predict_proba") else model.predict(Z, return_std=True)
    return np.concatenate([model.theta_, *np.atleast_2d(predicted)])


def forked(work) -> bool:
    """Whether a process that does this work ended by itself; else it was killed."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "a fit failed"
    return True


def killing(moment: int, writing: bool) -> None:
    """Let this process be killed when that many evaluations have been made; or ``writing``, in the middle of the next
    replacement of the file."""
    added, replace, made = state.Journal._added, os.replace, [0]

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(self) -> None:
        made[0] += 1
        if made[0] >= moment:
            if not writing:
                kill()
            checkpoint.os.replace = lambda *_: kill()
        added(self)

    state.Journal._added = counted
    assert checkpoint.os.replace is replace


def main(folder: Path, seed: int) -> None:
    draws, moments = np.random.default_rng(seed), {}

    def whole() -> None:
        added, made = state.Journal._added, [0]

        def counted(self) -> None:
            made[0] += 1
            added(self)

        state.Journal._added = counted
        for name, fit in FITS.items():
            made[0] = 0
            np.save(folder / f"{name}.npy", found(fit(None)))
            moments[name] = made[0]
        (folder / "moments").write_text(json.dumps(moments))

    def rest() -> None:
        for name, fit in FITS.items():
            np.save(folder / f"{name}, resumed.npy", found(fit(folder / f"{name}.checkpoint")))

    assert forked(whole)
    moments, killed = json.loads((folder / "moments").read_text()), {}
    for name, fit in FITS.items():
        killed[name] = 0
        for _ in range(KILLS[name]):  # all of them before its end
            moment, writing = int(draws.integers(1, moments[name] // KILLS[name])), bool(draws.integers(2))

            def work(fit=fit, name=name, moment=moment, writing=writing) -> None:
                killing(moment, writing)
                fit(folder / f"{name}.checkpoint")

            killed[name] += not forked(work)
    assert forked(rest)
    for name in FITS:
        away = np.abs(np.load(folder / f"{name}, resumed.npy") - np.load(folder / f"{name}.npy")).max()
        print(name, killed[name], away, sep="\t")


if __name__ == "__main__":
    if "MERCER_TEST_PROGRAMS" in os.environ:
        jax.config.update("jax_compilation_cache_dir", os.environ["MERCER_TEST_PROGRAMS"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
