"""Time of a default fit of `GaussianProcessRegressor()` before and after a change, once its programs are compiled.

    python benchmarks/default_fit.py --before COMMIT [--rounds 3] [--write]

Claim: with the choice of a kernel, a default fit takes at most twice as long as with the fixed standard kernel (commit
36fed15). Both versions run in turns, each in its own process, on the first rows of real data sets; the source of the
former comes from a worktree of the repository. The first fit of a process compiles and is left out; of those after it
(five, or as many as start within four seconds) the median counts, since a full garbage collection of JAX's objects
takes as long as a fit of 100 rows and falls into one of several. MERCER_DATA is the folder of the data (default
../shared/data).
"""

import argparse
import json
import statistics
import time
import warnings

from machine import before_and_after, keep, table
from tables import regression

CASES = [("concrete", 100), ("concrete", 300), ("energy", 300), ("concrete", 600), ("energy", 600),
         ("california", 600), ("kin40k", 1000), ("pol", 1000)]  # fmt: skip
MOST_FITS, SECONDS = 5, 4.0


def measure(name: str, rows: int):
    """Print median wall and processor seconds of the fits after the first, and evaluations of the evidence."""
    import mercer as mc

    X, y = regression()[name]
    fits, spent = [], 0.0
    while len(fits) < 2 or (len(fits) <= MOST_FITS and spent < SECONDS):
        wall, cpu = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = mc.GaussianProcessRegressor(progress=False).fit(X[:rows], y[:rows])
        fits.append((time.perf_counter() - wall, time.process_time() - cpu))
        spent += fits[-1][0] if len(fits) > 1 else 0.0
    walls, processors = zip(*fits[1:], strict=True)
    print(json.dumps([statistics.median(walls), statistics.median(processors), int(model.n_evaluations_)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="36fed15", help="a commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], int(options.measure[1]))
        return
    rows = []
    cases = [[name, str(n)] for name, n in CASES]
    for (name, n), (before, after) in zip(
        CASES, before_and_after(options.before, __file__, cases, options.rounds), strict=True
    ):
        rows.append([f"{name}, {n} rows", f"{before[0]:.2f}", f"{after[0]:.2f}", f"{after[0] / before[0]:.2f}",
                     f"{before[1]:.2f}", f"{after[1]:.2f}", f"{after[1] / before[1]:.2f}",
                     f"{before[2]:.0f}", f"{after[2]:.0f}"])  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
    header = ["data", "before, s", "after, s", "ratio", "before, CPU s", "after, CPU s", "ratio", "evaluations before",
              "after"]  # fmt: skip
    said = (
        f"Median of {options.rounds} processes each, taking turns; in each the median of {MOST_FITS} fits after the "
        f"first (of fewer past {SECONDS:.0f} s). Before: {options.before}."
    )
    if options.write:
        command = f"python benchmarks/default_fit.py --before {options.before} --rounds {options.rounds} --write"
        keep("default_fit", "A default fit, before and after", command, [said, "", *table(header, rows)])


if __name__ == "__main__":
    main()
