"""Five regression sets of 13,500 to 43,944 training rows, by every method, beside published figures.

    python benchmarks/uci.py [--data NAME ...] [--methods NAME ...] [--splits N ...] [--rows N] [--seconds S]
                             [--peer PYTHON] [--kept FILE] [--write]

pol, elevators, kin40k, protein and keggdirected on the first splits of ten, 90% of the rows for training. Errors and
negative log densities are of the target scaled to unit variance on the training rows. A cell, one method on one split
of one set, runs in a process of its own: seconds are of the processor over the number of cores, fit and predictions, so
that other programs do not count; memory is the peak of the process. With ``--kept`` what is done is kept in a file, and
the same command goes on where it stopped. ``--rows`` takes the first rows of the training set, ``--seconds`` is what a
fit may take (``max_seconds``). Methods of GPyTorch run where it is installed (``--peer`` is the Python that has it),
for as long as mercer's automatic choice took to fit the same cell. MERCER_DATA is the folder of the data.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from machine import Kept, keep, table

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "regression"
SETS = ("pol", "elevators", "kin40k", "protein", "keggdirected")
# Root mean squared errors: Wang et al. 2019 (exact, SGPR with 512 centres, SVGP with 1,024), and Lin et al. 2023 (the
# same ten splits, by conjugate gradients), as recalled.
PUBLISHED = {
    "exact (Wang et al. 2019)": (0.151, 0.394, 0.099, 0.536, 0.086),
    "SGPR (Wang et al. 2019)": (0.217, 0.437, 0.273, 0.656, 0.104),
    "SVGP (Wang et al. 2019)": (0.215, 0.399, 0.268, 0.668, 0.096),
    "exact (Lin et al. 2023)": (0.08, 0.35, None, 0.50, 0.08),
}
PEERS = ("GPyTorch SGPR", "GPyTorch SVGP")


def clock():
    """Seconds of the processor that this process has had, over the number of cores."""
    return time.process_time() / os.cpu_count()


def split(name, number, rows=0):
    """Training and test rows, the target scaled."""
    found = np.load(DATA / f"uci_{name}.npz")
    X, y, test = found["X"], found["y"], found["test_mask"][:, number]
    train = np.flatnonzero(~test)[: rows or None]
    center, scale = y[train].mean(), y[train].std()
    t = (y - center) / scale
    return X[train], t[train], X[test], t[test]


def solvers():
    import mercer as mc

    names = ("auto", "lowrank", "iterative", "minibatch", "committee", "neighbors", "dense")
    own = {name: name for name in names if name == "auto" or name in mc.solvers.base.SOLVERS}
    own |= {f"lowrank {m}": mc.solvers.LowRank(m) for m in (250, 1000, 2000)}
    own["lowrank kmeans"] = mc.solvers.LowRank(centers="kmeans")
    own["lowrank fitc"] = mc.solvers.LowRank(method="fitc")
    return own


def measure(name, method, number, rows, seconds):
    import mercer as mc

    X, y, Z, t = split(name, number, rows)
    start = clock()
    limit = {"max_seconds": seconds} if seconds else {}
    model = mc.GaussianProcessRegressor(solver=solvers()[method], progress=False, **limit).fit(X, y)
    fitted = clock()
    predicted = model.predict_distribution(Z)
    end = clock()
    return scores(t, predicted.mean, predicted.deviation, fitted - start, end - fitted) | {
        "log density": float(np.mean(predicted.log_density(t))),
        "method": model.plan_.method,
        "planned seconds": float(model.plan_.seconds),
        "planned memory": model.plan_.memory / 2**30,
        "chosen": str(model.choice_.member),
        "evaluations": model.n_evaluations_,
        "calibration": float(model.calibration_),
    }


def scores(t, mean, deviation, fit, predict):
    error = t - mean
    density = -0.5 * (error / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
    return {
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "log density": float(density.mean()),
        "coverage": float(np.mean(np.abs(error) < 1.96 * deviation)),
        "fit": fit,
        "predict": predict,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def measure_peer(name, method, number, rows, seconds):
    """GPyTorch as its documentation shows it, with a Matern 3/2 kernel of one lengthscale per input, inputs scaled."""
    import gpytorch
    import torch

    torch.manual_seed(0)
    X, y, Z, t = split(name, number, rows)
    center, scale = X.mean(axis=0), X.std(axis=0)
    scale[scale == 0] = 1.0
    X, Z = ((A - center) / scale for A in (X, Z))
    X, y, Z = (torch.tensor(A, dtype=torch.float32) for A in (X, y, Z))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1]))
    centers = X[torch.randperm(len(X))[: 512 if "SGPR" in method else 1024]].clone()
    start = clock()

    class Sgpr(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.InducingPointKernel(covariance, centers, likelihood)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Svgp(gpytorch.models.ApproximateGP):
        def __init__(self):
            own = gpytorch.variational.CholeskyVariationalDistribution(len(centers))
            strategy = gpytorch.variational.VariationalStrategy(self, centers, own, learn_inducing_locations=True)
            super().__init__(strategy)
            self.mean, self.kernel = gpytorch.means.ConstantMean(), covariance

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Sgpr() if "SGPR" in method else Svgp()
    model.train(), likelihood.train()
    step = torch.optim.Adam([*model.parameters(), *(likelihood.parameters() if "SVGP" in method else [])], lr=0.1 if
                            "SGPR" in method else 0.01)  # fmt: skip
    if "SGPR" in method:
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    else:
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    while clock() - start < seconds:
        order = torch.randperm(len(y)) if "SVGP" in method else None
        for part in order.split(1024) if order is not None else [slice(None)]:
            step.zero_grad()
            loss = -objective(model(X[part]), y[part])
            loss.backward()
            step.step()
            if clock() - start >= seconds:
                break
    fitted = clock()
    model.eval(), likelihood.eval()
    with torch.no_grad():
        found = [likelihood(model(part)) for part in Z.split(1024)]
        mean = torch.cat([each.mean for each in found]).numpy().astype(float)
        deviation = torch.cat([each.variance for each in found]).numpy().astype(float) ** 0.5
    return scores(t, mean, deviation, fitted - start, clock() - fitted)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", nargs="+", choices=SETS, default=list(SETS))
    arguments.add_argument("--methods", nargs="+", default=["auto", "lowrank"])
    arguments.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--rows", type=int, default=0, help="training rows; 0: all")
    arguments.add_argument("--kept", type=Path, help="file of what is done, to go on from")
    arguments.add_argument("--peer", default=sys.executable, help="the Python that has GPyTorch")
    arguments.add_argument("--only", action="store_true", help="the first cell, in this process")
    arguments.add_argument("--seconds", type=float, default=0.0, help="of a fit; 0: as by default")
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/uci.md")
    options = arguments.parse_args()
    if options.only:
        cell = options.data[0], options.methods[0], options.splits[0], options.rows
        print(json.dumps((measure_peer if cell[1] in PEERS else measure)(*cell, options.seconds)))
        return
    done = Kept(options.kept)
    for number in options.splits:
        for name in options.data:
            for method in options.methods:
                key = f"{name}/{method}/{number}/{options.rows}"
                own, peer = f"{name}/auto/{number}/{options.rows}", method in PEERS
                if key in done or (peer and own not in done):
                    continue
                command = [options.peer if peer else sys.executable, "-W", "ignore", __file__, "--only", "--data", name,
                           "--methods", method, "--splits", number, "--rows", options.rows]  # fmt: skip
                command += ["--seconds", done[own]["fit"] if peer else options.seconds]
                ran = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
                if ran.returncode:
                    print(f"{key} failed", flush=True)
                    continue
                done[key] = json.loads(ran.stdout.splitlines()[-1])
                print(key, {what: done[key][what] for what in ("RMSE", "log density", "coverage", "fit", "memory")},
                      flush=True)  # fmt: skip
    lines = summary(done, options)
    print("\n".join(lines))
    if options.write:
        what = "".join(f" --{name} {value:g}" for name in ("rows", "seconds") if (value := getattr(options, name)))
        what += "" if options.splits == [0, 1, 2] else f" --splits {' '.join(map(str, options.splits))}"
        methods = " ".join(f'"{method}"' if " " in method else method for method in options.methods)
        keep("uci", "Regression sets of 13,500 to 43,944 training rows",
             f"python benchmarks/uci.py --methods {methods}{what} --write", lines)  # fmt: skip


def summary(done, options):
    """Means over the splits that are done."""
    lines = []
    for name in options.data:
        rows = [
            [method, f"{error[SETS.index(name)]:.3f}", *(["-"] * 6)]
            for method, error in PUBLISHED.items() if error[SETS.index(name)] is not None
        ]  # fmt: skip
        for method in options.methods:
            found = [
                done[key] for key in (f"{name}/{method}/{i}/{options.rows}" for i in options.splits) if key in done
            ]
            if not found:
                continue
            mean = lambda what, found=found: float(np.mean([each[what] for each in found]))
            rows.append([
                method + (f" ({found[0]['method']})" if method == "auto" else ""), f"{mean('RMSE'):.3f}",
                f"{-mean('log density'):.3f}", f"{mean('coverage'):.1%}", f"{mean('fit'):.0f}",
                f"{mean('predict'):.1f}", f"{mean('memory'):.2f}", str(len(found)),
            ])  # fmt: skip
        head = ["method", "RMSE", "negative log density", "95% intervals hold", "fit, s", "predict, s", "peak, GiB",
                "splits"]  # fmt: skip
        lines += [f"## {name}", "", *table(head, rows), ""]
    return lines


if __name__ == "__main__":
    main()
