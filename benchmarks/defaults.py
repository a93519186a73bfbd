"""The defaults on every set of real data: is what is chosen as good as what hindsight would choose?

    python benchmarks/defaults.py [--only regression|classification] [--splits 10] [--rows 1000] [--write]
                                  [--sets iris wine] [--models mercer] [--kept FILE] [--done] [--patience SECONDS]

With ``--kept FILE`` what was measured is kept in that file, with its commit, and not measured again; ``--done`` makes
the tables of what is there. With ``--patience`` a peer of the classifier that takes longer than that on a split is not
measured on the next ones. Data are found through MERCER_DATA (default ../shared/data).
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
    parser.add_argument("--sets", nargs="+", help="the names of some sets; all if not given")
    parser.add_argument("--models", nargs="+", default=[""], help="models whose names hold one of these words")
    parser.add_argument("--kept", help="a file of what was measured before, and is now")
    parser.add_argument("--done", action="store_true", help="nothing is measured: the tables of what was")
    parser.add_argument("--patience", type=float, default=np.inf, help="seconds a split may take a peer")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
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
