"""Gram matrices compared: mercer, scikit-learn and GPyTorch on the CPU, in double precision.

    python benchmarks/gram.py [--write]

Claim: RBF and Matern-5/2 at n = 4000 and D = 2, 8, 64 at least as fast as the fastest peer, and a peak memory of at
most 1.5 times the result. Calls are interleaved, so that other load disturbs all alike; ratios are of medians. Memory
is measured in a separate process: the high-water mark above what was resident before the call. ``--write`` stores the
table in benchmarks/results/gram.md with the commit and the machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np
from machine import forget_the_peak, keep, resident, table

N, COLUMNS, ROUNDS = 4000, (2, 8, 64), 11
KERNELS = ("RBF", "Matern-5/2")
LIBRARIES = ("mercer", "scikit-learn", "GPyTorch")


def inputs(d, n=N):
    return np.random.default_rng(0).normal(size=(n, d))


def gram_function(library, kernel, d):
    """A function of X that returns the dense Gram matrix, with lengthscale sqrt(d)."""
    length = float(np.sqrt(d))
    if library == "mercer":
        from mercer import kernels as k

        return k.RBF(length) if kernel == "RBF" else k.Matern(length, nu=2.5)
    if library == "scikit-learn":
        from sklearn.gaussian_process import kernels as sk

        return sk.RBF(length) if kernel == "RBF" else sk.Matern(length, nu=2.5)
    import gpytorch
    import torch

    torch.set_default_dtype(torch.float64)
    theirs = gpytorch.kernels.RBFKernel() if kernel == "RBF" else gpytorch.kernels.MaternKernel(nu=2.5)
    theirs.lengthscale = length

    def call(X):
        with torch.no_grad():
            return theirs(torch.from_numpy(X)).to_dense().numpy()

    return call


def measure_memory(library, kernel, d):
    """Peak memory of one call above the memory held before it, in units of the result. Run in a fresh process."""
    call = gram_function(library, kernel, d)
    call(inputs(d, 600))  # imports and compilation are not the call's
    X = inputs(d)
    forget_the_peak()
    before = resident("VmRSS")
    K = call(X)
    print(json.dumps((resident("VmHWM") - before) / K.nbytes))


def memory_ratio(library, kernel, d):
    done = subprocess.run(
        [sys.executable, __file__, "--memory", library, kernel, str(d)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def compare():
    rows = []
    for kernel in KERNELS:
        for d in COLUMNS:
            X = inputs(d)
            calls = {library: gram_function(library, kernel, d) for library in LIBRARIES}
            results = {library: call(X) for library, call in calls.items()}  # warm
            difference = max(np.abs(results["mercer"] - K).max() for K in results.values())
            del results
            times = {library: [] for library in LIBRARIES}
            for _ in range(ROUNDS):
                for library, call in calls.items():
                    start = time.perf_counter()
                    call(X)
                    times[library].append(time.perf_counter() - start)
            medians = {library: 1e3 * statistics.median(t) for library, t in times.items()}
            memory = {library: memory_ratio(library, kernel, d) for library in LIBRARIES}
            fastest = min(medians[library] for library in LIBRARIES[1:])
            rows.append(
                [kernel, d, *(f"{medians[library]:.0f}" for library in LIBRARIES), f"{fastest / medians['mercer']:.2f}",
                 *(f"{memory[library]:.2f}" for library in LIBRARIES), f"{difference:.0e}"]
            )  # fmt: skip
            print("| " + " | ".join(map(str, rows[-1])) + " |", flush=True)
    return rows


HEADER = [
    "kernel", "D", *(f"{library} ms" for library in LIBRARIES), "fastest peer / mercer",
    *(f"{library} memory" for library in LIBRARIES), "largest difference",
]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", nargs=3)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.memory:
        library, kernel, d = arguments.memory
        return measure_memory(library, kernel, int(d))
    print("\n".join(table(HEADER, [])))
    rows = compare()
    if arguments.write:
        note = (
            f"Medians of {ROUNDS} interleaved calls in milliseconds; memory is the peak above what was held before, in "
            "units of the result."
        )
        keep("gram", f"Gram matrices, n = {N}, double precision", "python benchmarks/gram.py --write",
             [note, "", *table(HEADER, rows)])  # fmt: skip
    return None


if __name__ == "__main__":
    main()
