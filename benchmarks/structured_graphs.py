"""Gram matrices of kernels on graphs compared with grakel.

    python benchmarks/structured_graphs.py [--write] [--only MUTAG ENZYMES NCI1]

Double precision, CPU, every measurement in its own process: from networkx graphs (grakel: from its own graphs, made of
them before) to the Gram matrix of all pairs. mercer: the first call on all graphs, in a process that has seen five of
them, which pages in memory and loads compiled code, and the median of three more; grakel: the first call, once. BLAS
has one thread. Claims:

- `WeisfeilerLehman(5)` and `ShortestPath` on NCI1 (4,110 graphs): at least 10 times faster than grakel, once warm
- on every data set, the same numbers

MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import in_process, keep, table

DATA_SETS = ("MUTAG", "ENZYMES", "NCI1")
KERNELS = {"WeisfeilerLehman(5)": "subtree", "ShortestPath()": "paths"}
ROUNDS = 3


def spent(call):
    """Seconds by the clock and of the CPU, and the answer."""
    clock, cpu = time.perf_counter(), time.process_time()
    answer = call()
    return time.perf_counter() - clock, time.process_time() - cpu, answer


def median(call):
    """Seconds by the clock and of the CPU, medians of several calls."""
    times = [spent(call)[:2] for _ in range(ROUNDS)]  # answers are not kept: memory would have to be paged in for each
    return [statistics.median(column) for column in zip(*times, strict=True)]


def measured(library, kernel, name, file):
    """Seconds by the clock and of the CPU: to prepare, and to compute the Gram matrix for the first time and again. It
    is saved in a file."""
    import graphs

    data = graphs.load(name).graphs
    if library == "mercer":
        from mercer import kernels as k

        ours = k.WeisfeilerLehman(5) if kernel == "subtree" else k.ShortestPath()
        ours(data[:5])
        prepared = median(lambda: ours.prepare(data, np.arange(len(data))))
        *first, K = spent(lambda: ours(data))
        again = median(lambda: ours(data))
    else:
        from grakel import ShortestPath, VertexHistogram, WeisfeilerLehman
        from grakel.utils import graph_from_networkx

        # n_iter counts refinements; values are not normalised; pairs of nodes are ordered, as here.
        own = list(graph_from_networkx(data, node_labels_tag="label"))
        subtree = WeisfeilerLehman(n_iter=5, base_graph_kernel=VertexHistogram)
        theirs = subtree if kernel == "subtree" else ShortestPath()
        *first, K = spent(lambda: theirs.fit_transform(own))
        prepared = again = None
    np.save(file, np.asarray(K, dtype=float))
    return prepared, first, again


def compared(name, folder):
    rows = []
    for title, kernel in KERNELS.items():
        files = [Path(folder) / f"{library}.npy" for library in ("mercer", "grakel")]
        prepared, first, again = in_process(__file__, "mercer", kernel, name, files[0])
        _, theirs, _ = in_process(__file__, "grakel", kernel, name, files[1])
        K, other = map(np.load, files)
        times = ["{:.2f} ({:.2f})".format(*pair) for pair in (prepared, first, again, theirs)]
        ratios = [f"{theirs[0] / ours[0]:.0f} ({theirs[1] / ours[1]:.0f})" for ours in (first, again)]
        rows.append([name, len(K), title, *times, *ratios, f"{np.abs(K - other).max():.0g}"])
        print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results")
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(*options.measure)))
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes that measure
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in options.only for row in compared(name, folder)]
    header = ["data", "graphs", "kernel", "mercer prepares", "mercer, first", "mercer, again", "grakel, first",
              "ratio to first", "ratio to again", "largest difference"]  # fmt: skip
    lines = ["Seconds by the clock (of the CPU), on a machine with other load.", "", *table(header, rows)]
    print("\n".join(lines))
    if options.write:
        keep("structured_graphs", "Gram matrices of kernels on graphs, beside grakel",
             "python benchmarks/structured_graphs.py --write", lines)  # fmt: skip


if __name__ == "__main__":
    main()
