"""Default settings on every real data set, compared with the best choice in hindsight.

    python benchmarks/defaults.py [--only regression|classification] [--splits 10] [--rows 1000] [--write]
                                  [--sets iris wine] [--models mercer] [--kept FILE] [--done] [--patience SECONDS]

``--kept FILE`` stores measurements in that file, with their commit, and reuses them; ``--done`` only makes the tables.
With ``--patience`` another classifier that takes longer than that on a split is skipped on the next ones. MERCER_DATA
is the folder of the data (default ../shared/data).
"""

import argparse
import shlex
import sys

import defaults_classification
import defaults_regression
import numpy as np
from machine import Kept, keep


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["regression", "classification"])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1000, help="training rows of regression; classes have 500")
    parser.add_argument("--sets", nargs="+", help="names of data sets; all if not given")
    parser.add_argument("--models", nargs="+", default=[""], help="models whose names contain one of these words")
    parser.add_argument("--kept", help="file of measurements, to read and to extend")
    parser.add_argument("--done", action="store_true", help="only make the tables of existing measurements")
    parser.add_argument("--patience", type=float, default=np.inf, help="seconds that another model may take on a split")
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/results")
    options = parser.parse_args()
    command, kept = shlex.join(["python", "benchmarks/defaults.py", *sys.argv[1:]]), Kept(options.kept)
    shared = {"kept": kept, "done": options.done, "sets": options.sets, "models": options.models}
    if options.only != "classification":
        lines = defaults_regression.lines(options.splits, options.rows, **shared)
        if options.write:
            keep("defaults_regression", "The default regressor beside hindsight and peers", command, lines)
    if options.only != "regression":
        lines = defaults_classification.lines(options.splits, patience=options.patience, **shared)
        if options.write:
            keep("defaults_classification", "The default classifier beside peers", command, lines)


if __name__ == "__main__":
    main()
