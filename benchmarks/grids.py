"""Regression on grids: the grid solver, the dense one, and scikit-learn.

    python benchmarks/grids.py [--write] [--small]

Data are simulated; kernels have a variance and one lengthscale for each group of columns, and the noise is learned.
Complete grids of pixels (RBF) and of places x times (Matern 5/2), one with cells missing, and a series at equal steps
(RBF). Each case runs in its own process, in turn. `evaluation` is one of the evidence with its gradient, `fit` a
whole fit, and memory the peak of the fit above that before it. The dense solver and scikit-learn are measured on the
first rows, as many as PEER_ROWS says, and extrapolated, marked by a star: an evaluation with n^3, a fit as
FIT_EVALUATIONS of these (fewer than fits take), memory with n^2. The tests compare the solvers' answers.

Claims: 100,000 rows of places x times are fitted in less than a minute, within 1 GB; an evaluation on 100 x 100 cells
is a thousand times faster than dense.
"""

import argparse
import itertools
import json
import time

import numpy as np
from machine import forget_the_peak, in_process, keep, resident, table

CASES = ("100 x 100 pixels", "100 x 100 pixels, 500 missing", "200 places x 500 times", "20,000 equal steps")
PEER_ROWS = 2000
EVALUATIONS = 3
FIT_EVALUATIONS = 20


def data(case, small):
    rng = np.random.default_rng(0)
    if "pixels" in case:
        n = 30 if small else 100
        X = np.array(list(itertools.product(np.linspace(0, 5, n), np.linspace(0, 5, n))))
        f = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
    elif "places" in case:
        places = rng.uniform(0, 3, size=(20 if small else 200, 2))
        X = np.array([(*place, t) for place in places for t in np.arange(60 if small else 500) / 10])
        f = np.sin(2 * X[:, 0] + X[:, 1]) * np.cos(X[:, 2])
    else:
        X = np.arange(2000 if small else 20_000)[:, None] / 100
        f = np.sin(X[:, 0]) + 0.3 * np.sin(5 * X[:, 0])
    y = f + 0.1 * rng.normal(size=len(X))
    if "missing" in case:
        kept = np.sort(rng.permutation(len(X))[: len(X) - (50 if small else 500)])
        X, y = X[kept], y[kept]
    return X, y


def kernel(case):
    from mercer import kernels as k

    if "pixels" in case:
        return 1.0 * k.RBF([1.0, 1.0])
    return 1.0 * k.Matern().on([0, 1]) * k.Matern().on(2) if "places" in case else 1.0 * k.RBF(1.0)


def measured(case, solver, small):
    """Seconds of an evaluation, seconds and peak bytes of a fit, the evidence, and the rows."""
    X, y = data(case, small)
    if solver != "grid":
        X, y = X[:PEER_ROWS], y[:PEER_ROWS]
    if solver == "scikit-learn":
        return of_scikit_learn(case, X, y)
    import mercer as mc

    model = mc.GaussianProcessRegressor(kernel(case), solver=solver, progress=False)
    few = X[:: max(1, len(X) // 40)]
    mc.GaussianProcessRegressor(kernel(case), solver="dense", progress=False).fit(few, few[:, 0])  # compiled
    forget_the_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    model.fit(X, y)
    seconds, peak = time.perf_counter() - start, resident("VmHWM") - before
    with model._objective().criterion() as evidence:
        theta = model.theta_
        evidence(theta)
        times = []
        for _ in range(EVALUATIONS):
            start = time.perf_counter()
            evidence(theta)
            times.append(time.perf_counter() - start)
    return [min(times), seconds, max(peak, 0), model.log_marginal_likelihood_, len(X)]


def of_scikit_learn(case, X, y):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    # It has no factors of some columns: one lengthscale for each column.
    radial = Matern(np.ones(X.shape[1]), nu=2.5) if "places" in case else RBF(np.ones(X.shape[1]))
    model = GaussianProcessRegressor(ConstantKernel() * radial + WhiteKernel(), normalize_y=True)
    forget_the_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    model.fit(X, y)
    seconds, peak = time.perf_counter() - start, resident("VmHWM") - before
    start = time.perf_counter()
    model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    return [time.perf_counter() - start, seconds, max(peak, 0), model.log_marginal_likelihood_value_, len(X)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--small", action="store_true", help="few rows, to try the script")
    parser.add_argument("--measure", nargs=3)
    asked = parser.parse_args()
    if asked.measure:
        case, solver, small = asked.measure
        print(json.dumps(measured(case, solver, small == "True")))
        return
    rows = []
    for case in CASES:
        n = len(data(case, asked.small)[1])
        for solver in ("grid", "dense", "scikit-learn"):
            evaluation, fit, peak, _, own = in_process(__file__, case, solver, asked.small)
            ratio, star = n / own, "" if own == n else " *"
            evaluation, peak = evaluation * ratio**3, peak * ratio**2
            fit = FIT_EVALUATIONS * evaluation if star else fit
            times = f"{evaluation:.3g} s{star}", f"{fit:.3g} s{star}"
            rows.append([case, solver, f"{n:,}", *times, f"{peak / 1e6:,.0f} MB{star}"])
            print(*rows[-1], sep=" | ", flush=True)
    lines = table(["case", "solver", "rows", "evaluation", "fit", "memory"], rows)
    if asked.write and not asked.small:
        about = (
            f"Extrapolated from {PEER_ROWS:,} rows where marked by a star: an evaluation with n^3, a fit as "
            f"{FIT_EVALUATIONS} of these, memory with n^2."
        )
        keep("grids", "Regression on grids", "python benchmarks/grids.py --write", [about, "", *lines])
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
