"""The defaults on every set of real data: is what is chosen as good as what hindsight would choose?

    python benchmarks/defaults.py [--only regression|classification] [--splits 10] [--rows 1000] [--write]

Data are found through MERCER_DATA (default ../shared/data).
"""

import argparse

import defaults_classification
import defaults_regression
from machine import keep


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["regression", "classification"])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1000, help="training rows of regression; classes have 500")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    options = parser.parse_args()
    command = f"python benchmarks/defaults.py --splits {options.splits} --rows {options.rows} --write"
    if options.only != "classification":
        lines = defaults_regression.lines(options.splits, options.rows)
        if options.write:
            keep("defaults_regression", "The default regressor beside hindsight and peers", command, lines)
    if options.only != "regression":
        text = defaults_classification.table(options.splits)
        if options.write:
            keep("defaults_classification", "The default classifier beside peers", command, [text])


if __name__ == "__main__":
    main()
