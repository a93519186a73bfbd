"""How time and memory grow with the number of rows, for every method: posterior and 10,000 predictions.

    python benchmarks/scaling.py [--most ROWS] [--seconds S] [--kept FILE] [--write]

Parameters are given, so that what is timed is what follows from the rows; learning repeats it some fifty times, on
parts of the rows first. Each case runs in a process of its own, once on 500 rows before, so that compilation does not
count. Seconds are of the processor, over the number of cores; memory is the peak above that before the fit. A method
ends where a case would take more than ``--seconds``. The slope is that of the logarithms over the last two sizes.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import matplotlib
import numpy as np
from machine import HERE, Kept, forget_the_peak, in_process, keep, resident, table

import mercer as mc
from mercer import kernels as k

matplotlib.use("Agg")

SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
NEW, CHUNK = 10_000, 50_000
MATERN = 1.0 * k.Matern([1.0] * 4, nu=1.5)
METHODS = {  # kernel, inputs, solver, in chunks, most rows
    "dense": (MATERN, 4, "dense", False, 10_000),
    "iterative": (MATERN, 4, "iterative", False, 100_000),
    "lowrank, 500 centres": (MATERN, 4, "lowrank", False, 1_000_000),
    "lowrank, rows in chunks": (MATERN, 4, "lowrank", True, 10_000_000),
    "committee": (MATERN, 4, "committee", False, 300_000),
    "neighbors, 2 inputs": (1.0 * k.Matern(1.0, nu=1.5), 2, "neighbors", False, 1_000_000),
    "weights, 15 features": (1.0 * k.Polynomial(2, offset=1.0), 4, "weights", False, 10_000_000),
    "statespace, 1 input": (1.0 * k.Matern(1.0, nu=1.5), 1, "statespace", False, 10_000_000),
}


def rows(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, n / 100 if d == 1 else 6, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, -1] + 0.3 * rng.normal(size=n)


def fit(method, n):
    kernel, d, solver, chunked, _ = METHODS[method]
    settings = {"noise": 0.09, "learning": None, "solver": solver, "progress": False, "calibrate": False}
    model = mc.GaussianProcessRegressor(kernel, max_seconds=1e9, **settings)
    if not chunked:
        return model.fit(*rows(n, d))
    parts = [(seed, min(CHUNK, n - start)) for seed, start in enumerate(range(0, n, CHUNK))]
    return model.fit(mc.datasets.Chunks(lambda: (rows(size, d, seed) for seed, size in parts)))


def measure(method, n):
    warnings.simplefilter("ignore")
    new = rows(NEW, METHODS[method][1], seed=10**6)[0]
    fit(method, 500).predict(new[:500], return_std=True)
    if not METHODS[method][3] and n > 10**5:
        rows(n, METHODS[method][1])  # so that memory of the rows themselves does not count twice
    forget_the_peak()
    before, own, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
    model = fit(method, n)
    fitted = time.process_time()
    model.predict(new, return_std=True)
    end, cores = time.process_time(), os.cpu_count()
    return {
        "fit": (fitted - own) / cores, "predict": (end - fitted) / cores, "wall": time.perf_counter() - wall,
        "memory": (resident("VmHWM") - before) / 2**20,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--measure", nargs=2)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]))))
        return
    done, lines, curves = Kept(options.kept), [], {}
    for method, (*_, most) in METHODS.items():
        found = {}
        for n in (n for n in SIZES if n <= min(most, options.most)):
            key = f"{method}/{n}"
            sizes = sorted(found)
            if key not in done:
                slope = _slope(found, sizes, "fit") if len(sizes) > 1 else 1.0
                if sizes and found[sizes[-1]]["fit"] * (n / sizes[-1]) ** max(slope, 0) > options.seconds:
                    break
                done[key] = in_process(__file__, method, n)
            found[n] = done[key]
            print(key, found[n], flush=True)
        curves[method], sizes = found, sorted(found)
        for n in sizes:
            own = found[n]
            last = n == sizes[-1] and len(sizes) > 1
            slopes = [f"{_slope(found, sizes, what):.2f}" if last else "" for what in ("fit", "memory")]
            cells = [f"{own['fit']:.2f}", slopes[0], f"{own['predict']:.2f}", f"{own['memory']:,.0f}", slopes[1]]
            lines.append([method if n == sizes[0] else "", f"{n:,}", *cells])
    head = ["method", "rows", "fit, s", "slope", "predict, s", "peak, MiB", "slope"]
    lines = [*table(head, lines), "", "![Time and memory of a fit by the number of rows](scaling.svg)"]
    print("\n".join(lines))
    if options.write:
        drawn(curves, HERE / "results" / "scaling.svg")
        keep("scaling", "Time and memory by the number of rows", "python benchmarks/scaling.py --write", lines)


def _slope(found, sizes, what):
    a, b = sizes[-2:]
    return float(np.log(found[b][what] / found[a][what]) / np.log(b / a))


def drawn(curves, path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained", sharex=True)
    titles = "posterior, s", f"{NEW:,} predictions, s", "peak memory, MiB"
    for ax, what, title in zip(axes, ("fit", "predict", "memory"), titles, strict=True):
        for method, found in curves.items():
            sizes = sorted(found)
            ax.loglog(sizes, [found[n][what] for n in sizes], "o-", ms=4, label=method)
        ax.set(xlabel="rows", title=title)
        ax.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    main()
