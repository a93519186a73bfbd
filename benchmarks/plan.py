"""Whether plans are honest: predicted memory and time of fits, beside what they took, each in a process of its own.

    python benchmarks/plan.py [--quick]

A plan holds if both are within a factor of two. Seconds are those of a machine on which nothing else runs; where other
programs run, processor seconds over the cores are a lower bound of them.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "plan.md"
CASES = {  # kernel, rows, inputs, solver
    "dense, 1,500 rows": ("1.0 * k.RBF([1.0] * 4)", 1500, 4, "dense"),
    "dense, 4,000 rows": ("1.0 * k.RBF([1.0] * 4)", 4000, 4, "dense"),
    "weights, 100,000 rows": ("1.0 * k.Polynomial(2, offset=1.0)", 100_000, 4, "auto"),
    "neighbours, 20,000 rows": ("1.0 * k.Matern(1.0, nu=1.5)", 20_000, 2, "neighbors"),
    "iterative, 6,000 rows": ("1.0 * k.Matern([1.0] * 6, nu=1.5)", 6000, 6, "iterative"),
    "iterative, 12,000 rows": ("1.0 * k.Matern([1.0] * 6, nu=1.5)", 12_000, 6, "iterative"),
}
QUICK = ("dense, 1,500 rows", "weights, 100,000 rows", "neighbours, 20,000 rows", "iterative, 6,000 rows")

ONE = """
import json, resource, sys, time
import numpy as np
import mercer as mc
from mercer import kernels as k
from mercer.core.machine import cores
kernel, n, d, solver = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
X = rng.normal(size=(n, d))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n)
model = mc.GaussianProcessRegressor(eval(kernel), solver=solver, progress=False)
plan = model.plan(X)
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, wall, own = peak(), time.perf_counter(), time.process_time()
model.fit(X, y)
print(json.dumps({"method": plan.method, "memory": plan.memory, "seconds": plan.seconds, "peak": peak() - before,
    "wall": time.perf_counter() - wall, "own": (time.process_time() - own) / cores(),
    "evaluations": model.n_evaluations_}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller fits")
    names = QUICK if parser.parse_args().quick else tuple(CASES)
    lines = [
        "# Plans and fits",
        "",
        "| fit | method | memory planned, MiB | peak, MiB | seconds planned | wall | processor / cores | evaluations |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        run = subprocess.run([sys.executable, "-c", ONE, json.dumps(CASES[name])], capture_output=True, text=True)
        if run.returncode:
            print(run.stderr[-2000:], file=sys.stderr)
            continue
        found = json.loads(run.stdout.splitlines()[-1])
        memory, peak = (f"{found[key] / 2**20:,.0f}" for key in ("memory", "peak"))
        lines.append(
            f"| {name} | {found['method']} | {memory} | {peak} | {found['seconds']:.1f} | {found['wall']:.1f} | "
            f"{found['own']:.1f} | {found['evaluations']} |"
        )
        print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
