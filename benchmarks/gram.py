"""Gram matrices, side by side: mercer, scikit-learn and GPyTorch on the CPU, in double precision.

    python benchmarks/gram.py [--write]

Claim: RBF and Matern-5/2 at n = 4000 and D = 2, 8, 64 at least as fast as the fastest peer, and a peak memory of at
most 1.5 times the result. Calls are interleaved, so that a noisy machine disturbs all alike; the ratio is between
medians. Memory is measured in a process of its own: the high-water mark above what was resident before the call.
``--write`` keeps the table in benchmarks/results/gram.md with the commit and the machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

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


def resident(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def measure_memory(library, kernel, d):
    """Peak memory of one call above the memory held before it, in units of the result. Run in a fresh process."""
    call = gram_function(library, kernel, d)
    call(inputs(d, 600))  # imports and compilation are not the call's
    X = inputs(d)
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
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
    head = ["| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    print("\n".join(head))
    rows = compare()
    if arguments.write:
        root = Path(__file__).parent
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=root
        ).stdout.strip()
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
        text = [
            f"# Gram matrices, n = {N}, double precision",
            "",
            f"`python benchmarks/gram.py --write`, commit {commit}, {cpu}, {os.cpu_count()} cores, "
            f"Python {platform.python_version()}. Medians of {ROUNDS} interleaved calls in milliseconds; memory is the "
            "peak above what was held before, in units of the result.",
            "",
            *head,
            *("| " + " | ".join(map(str, row)) + " |" for row in rows),
            "",
        ]
        (root / "results" / "gram.md").write_text("\n".join(text))
    return None


if __name__ == "__main__":
    main()
