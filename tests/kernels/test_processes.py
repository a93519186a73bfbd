"""Kernels in other processes: JAX's threads do not live on in a fork, which would wait for them for ever."""

import os
import subprocess
import sys
import textwrap

import pytest

PREAMBLE = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import mercer as mc
from mercer import kernels as k
X = np.linspace(0, 1, 300)[:, None]
def gram(_):
    return float(k.RBF()(X).sum())
"""


def run(path, body: str) -> str:
    """What a fresh interpreter prints. One that hangs is killed, and the test fails."""
    path.write_text(PREAMBLE + textwrap.dedent(body))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_after_a_computation_says_so_instead_of_waiting_for_ever(tmp_path):
    told = run(
        tmp_path / "script.py",
        """
        def in_a_fork(*attempts):
            child = os.fork()
            if child == 0:
                for attempt in attempts:
                    try:
                        attempt()
                        print("no error")
                    except BaseException as error:
                        print(type(error).__name__, error)
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)

        in_a_fork(lambda: gram(0))  # nothing was computed yet
        fitted = mc.GaussianProcessRegressor(k.RBF(), learning=None).fit(X, X[:, 0])
        in_a_fork(
            lambda: k.RBF()(X),
            lambda: k.RBF().diag(X),
            lambda: k.Linear().features(X),
            lambda: k.FeatureMap(lambda x: x)(X),
            lambda: mc.KernelRidge(k.RBF()).fit(X, X[:, 0]),
            lambda: mc.GaussianProcessRegressor(progress=False).fit(X, X[:, 0]),
            lambda: fitted.predict(X, return_std=True),
            lambda: fitted.predict_gradient(X[:3]),
            lambda: mc.GP(k.RBF()).sample(X[:5], 1, 0),
        )
        print(k.RBF()(X).shape)
        """,
    )
    before, *after, parent = told.splitlines()
    assert before == "no error"
    assert len(after) == 9
    for line in after:
        assert line.startswith("ForkedProcessError")
        assert all(word in line for word in ("spawn", "forkserver", "loky", "threads"))
    assert parent == "(300, 300)"


def test_fresh_workers_and_threads_compute_after_their_parent_did(tmp_path):
    told = run(
        tmp_path / "script.py",
        """
        if __name__ == "__main__":
            from joblib import Parallel, delayed
            from sklearn.model_selection import cross_val_score
            expected = gram(0)
            print(Parallel(n_jobs=2)(delayed(lambda: float(k.RBF()(X).sum()))() for _ in range(2)) == [expected] * 2)
            print(len(cross_val_score(mc.KernelRidge(k.RBF()), X, X[:, 0], n_jobs=2, cv=2)))
            print(Parallel(n_jobs=2, backend="threading")(delayed(gram)(i) for i in range(2)) == [expected] * 2)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(gram, range(2)) == [expected] * 2)
        """,
    )
    assert told.split() == ["True", "2", "True", "True"]
