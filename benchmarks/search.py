"""The search for components beside a plain Gaussian kernel: the last tenth of series, forecast.

Airline passengers, Mauna Loa, and with --m3 N the first N monthly series of the M3 competition (with their own future).
Target: RMSE at most half of that of a Gaussian kernel with learned parameters, on the first two.

Run with --kept FILE to resume, --write for results/search.md.
"""

import argparse
import gzip
import os
import time
import warnings
from pathlib import Path

import numpy as np
from machine import Kept, keep, table

import mercer as mc
from mercer import kernels as k

FOLDER = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "timeseries"
NAMES = ("airpassengers", "mauna_loa_rw545")


def series(count):
    """Name, times, values, number of values known."""
    for name in NAMES:
        t, y = np.loadtxt(FOLDER / f"{name}.csv.gz", delimiter=",", skiprows=1).T
        yield name, t, y, len(y) - round(len(y) / 10)
    for line in gzip.decompress((FOLDER / "m3_monthly_40.csv.gz").read_bytes()).decode().split()[1 : count + 1]:
        name, history, future = (part.split(";") for part in line.split(","))
        y = np.array(history + future, float)
        yield name[0], np.arange(len(y)) / 12.0, y, len(history)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--m3", type=int, default=0)
    parser.add_argument("--kept")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kept, names = Kept(options.kept), []
    for name, t, y, known in series(options.m3):
        names.append(name)
        if name in kept:
            continue
        X, errors, start = t[:, None], [], time.process_time()
        found = mc.select_kernel(X[:known], y[:known], progress=False)
        taken = time.process_time() - start
        for kernel in (found.kernel, 1.0 * k.RBF(1.0)):
            model = mc.GaussianProcessRegressor(kernel, progress=False).fit(X[:known], y[:known])
            errors.append(float(np.sqrt(np.mean((model.predict(X[known:]) - y[known:]) ** 2))))
        scale = float(np.mean(np.abs(y[12:known] - y[: known - 12])))
        kept[name] = [*errors, scale, taken, "; ".join(map(str, found.components[:-1]))]
    rows = [
        [name, *(f"{e:.3g}" for e in kept[name][:2]), f"{kept[name][0] / kept[name][1]:.2f}", f"{kept[name][3]:.0f}",
         kept[name][4]]
        for name in names if name in NAMES
    ]  # fmt: skip
    lines = table(["series", "RMSE", "of a Gaussian kernel", "ratio", "seconds of processor", "components"], rows)
    others = [kept[name] for name in names if name not in NAMES]
    if others:
        ratio = np.exp(np.mean([np.log(each[0] / each[1]) for each in others]))
        scaled = np.array([[each[0] / each[2], each[1] / each[2]] for each in others])
        lines += [
            "",
            f"M3, {len(others)} monthly series: geometric mean of the ratio {ratio:.2f}; RMSE over the mean change "
            f"within a year, median {np.median(scaled[:, 0]):.2f} and {np.median(scaled[:, 1]):.2f}.",
        ]
    print("\n".join(lines))
    if options.write:
        keep("search", "A search for components", "python benchmarks/search.py --m3 " + str(options.m3), lines)


if __name__ == "__main__":
    main()
