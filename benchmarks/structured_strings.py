"""Kernels on strings: Gram matrices beside strkernels, and how their time grows with rows and with length.

    python benchmarks/structured_strings.py [--write] [--rounds 5] [--only peers rows lengths]

Random strings over four letters. strkernels adds up the lengths 1, ..., n, and so do the kernels here; both libraries
return matrices that are not normalised. strkernels is measured once: it takes seconds to minutes. Claims:

- `Subsequence` and `Spectrum` of 500 strings of length 80: faster than strkernels, equal values
- 5000 strings of length 80 in one call; time grows with the square of the rows, and of the length for `Subsequence`
"""

import argparse
import functools
import statistics
import time

import numpy as np
from machine import keep, table

LENGTH = 80  # of a string
WORD = 3  # letters
DECAY = 0.5


def strings(n, length=LENGTH, seed=0):
    letters = np.random.default_rng(seed).choice(list("ACGT"), size=(n, length))
    return ["".join(row) for row in letters]


def seconds(call):
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


def ours():
    from mercer import kernels as k

    return {
        "Subsequence": k.Subsequence(WORD, DECAY, up_to=True),
        "Spectrum": functools.reduce(lambda a, b: a + b, [k.Spectrum(d) for d in range(1, WORD + 1)]),
        "WeightedDegree": k.WeightedDegree(WORD),
    }


def theirs():
    import strkernels

    weighted = strkernels.WeightedDegreeStringKernel(degree=WORD, normalizer=None)
    return {
        "Subsequence": strkernels.SubsequenceStringKernel(maxlen=WORD, ssk_lambda=DECAY, normalizer=None),
        "Spectrum": strkernels.SpectrumStringKernel(order=WORD, normalizer=None),
        "WeightedDegree": lambda X, Z: weighted(X, Z) * 2 / (WORD * (WORD + 1)),  # theirs has whole weights
    }


def median(kernel, X, rounds):
    kernel(X[:20])  # compiled
    return statistics.median(seconds(lambda: kernel(X))[0] for _ in range(rounds))


def peers(rounds):
    X, rows = strings(500), []
    for name, kernel in ours().items():
        taken = median(kernel, X, rounds)
        their_time, K = seconds(functools.partial(theirs()[name], X, X))
        off = np.abs(kernel(X) - K).max() / np.abs(K).max()
        rows.append([name, f"{taken:.3f}", f"{their_time:.2f}", f"{their_time / taken:.0f}", f"{off:.0e}"])
    header = ["kernel", "mercer, s", "strkernels, s", "ratio", "largest difference, of the largest value"]
    return [f"## 500 strings of length {LENGTH}, words of up to {WORD} letters", "", *table(header, rows)]


def growth(title, column, cases, rounds):
    rows = [[name, *(f"{median(kernel, X, rounds):.3f}" for X in cases.values())] for name, kernel in ours().items()]
    return [f"## {title}", "", *table([f"seconds; {column}:", *map(str, cases)], rows)]


def by_rows(rounds):
    cases = {f"{n:,}": strings(n) for n in (500, 1000, 2000, 5000)}
    return growth(f"More rows, length {LENGTH}", "rows", cases, min(rounds, 3))


def by_length(rounds):
    return growth("Longer strings, 500 rows", "length", {L: strings(500, L) for L in (20, 40, 80, 160, 320)}, rounds)


PARTS = {"peers": peers, "rows": by_rows, "lengths": by_length}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/results")
    parser.add_argument("--rounds", type=int, default=5, help="measurements, of which the median is reported")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    lines = []
    for name in options.only:
        part = PARTS[name](options.rounds)
        lines += [*part, ""]
        print("\n".join(part), flush=True)
    if options.write:
        keep("structured_strings", "Kernels on strings, beside strkernels",
             "python benchmarks/structured_strings.py --write", lines)  # fmt: skip


if __name__ == "__main__":
    main()
