"""`mc.minimize` beside BoTorch's expected improvement: regret after 60 evaluations, and time of a step.

    python benchmarks/minimize.py [--seeds 20] [--evaluations 60] [--peer PYTHON] [--write]

``--peer``: a Python interpreter with BoTorch, for which this script is run again; both start from 2 (d + 1) Sobol
points and are given the same functions and numbers of evaluations. A step is everything but the evaluation.
``--write`` is for results/minimize.md.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from machine import keep, table

A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
RESTARTS, RAW_SAMPLES = 10, 512  # of the peer, as in its tutorials


def branin(x):
    a, b = x
    bowl = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10


def hartmann(x):
    return -float(np.array([1, 1.2, 3, 3.2]) @ np.exp(-np.sum(A * (x - P) ** 2, axis=1)))


def ackley(x):
    x = np.asarray(x)
    hills = np.exp(np.mean(np.cos(2 * np.pi * x)))
    return float(-20 * np.exp(-0.2 * np.sqrt(np.mean(x**2))) - hills + 20 + np.e)


PROBLEMS = {
    "Branin": (branin, [(-5.0, 10.0), (0.0, 15.0)], 0.397887),
    "Hartmann-6": (hartmann, [(0.0, 1.0)] * 6, -3.32237),
    "Ackley-5": (ackley, [(-32.768, 32.768)] * 5, 0.0),
}


def mercer(f, bounds, n, seed):
    import mercer as mc

    optimizer = mc.Optimizer(bounds, random_state=seed)
    spent = 0.0
    while len(optimizer.y) < n:
        start = time.perf_counter()
        x = optimizer.ask()
        spent += time.perf_counter() - start
        optimizer.tell(x, [f(x[0])])
    return float(optimizer.y.min()), spent / (n - optimizer.n_initial)


def botorch(f, bounds, n, seed, log=False):
    import warnings

    import torch
    from botorch.acquisition import qExpectedImprovement
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood
    from torch.quasirandom import SobolEngine

    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    d, low, high = len(bounds), *(np.array(side) for side in zip(*bounds, strict=True))
    U = SobolEngine(d, scramble=True, seed=seed).draw(2 * (d + 1), dtype=torch.double)
    y = torch.tensor([[-f(low + u * (high - low))] for u in U.numpy()], dtype=torch.double)
    cube, spent, started = torch.stack([torch.zeros(d), torch.ones(d)]).double(), 0.0, len(U)
    kind = qLogExpectedImprovement if log else qExpectedImprovement
    while len(U) < n:
        start = time.perf_counter()
        model = SingleTaskGP(U, y, outcome_transform=Standardize(1))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        u, _ = optimize_acqf(kind(model, y.max()), cube, q=1, num_restarts=RESTARTS, raw_samples=RAW_SAMPLES)
        spent += time.perf_counter() - start
        U = torch.cat([U, u])
        y = torch.cat([y, torch.tensor([[-f(low + u.numpy()[0] * (high - low))]], dtype=torch.double)])
    return float(-y.max()), spent / (n - started)


def run(method, name, seeds, n):
    f, bounds, optimum = PROBLEMS[name]
    found = [method(f, bounds, n, seed) for seed in range(seeds)]
    return {"regret": [value - optimum for value, _ in found], "seconds": [seconds for _, seconds in found]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--peer")
    parser.add_argument("--only", choices=("mercer", "botorch", "botorch-log"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--problem", choices=tuple(PROBLEMS))
    arguments = parser.parse_args()
    methods = {"mercer": mercer, "botorch": botorch, "botorch-log": lambda *a: botorch(*a, log=True)}
    names = [arguments.problem] if arguments.problem else list(PROBLEMS)
    if arguments.only:
        for name in names:
            print(json.dumps({name: run(methods[arguments.only], name, arguments.seeds, arguments.evaluations)}))
        return
    rows = []
    for name in names:
        for method in ("mercer", "botorch", "botorch-log") if arguments.peer else ("mercer",):
            python = sys.executable if method == "mercer" else arguments.peer
            command = [python, str(Path(__file__)), "--only", method, "--problem", name]
            command += ["--seeds", str(arguments.seeds), "--evaluations", str(arguments.evaluations)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found = json.loads(out.strip().splitlines()[-1])[name]
            low, middle, high = np.quantile(found["regret"], [0.25, 0.5, 0.75])
            seconds = np.median(found["seconds"])
            rows.append([name, method, f"{middle:.3g}", f"{low:.2g} to {high:.2g}", f"{seconds:.3f}"])
            print(*rows[-1], sep="  ", flush=True)
    lines = table(["problem", "method", "median regret", "quartiles", "seconds per step"], rows)
    print("\n".join(["", *lines]))
    if arguments.write:
        command = f"python benchmarks/minimize.py --seeds {arguments.seeds} --evaluations {arguments.evaluations}"
        command += " --peer PYTHON" if arguments.peer else ""
        keep("minimize", "Minima in few evaluations", command, lines)


if __name__ == "__main__":
    main()
