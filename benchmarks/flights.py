"""Delays of three million flights, in chunks, beside linear regression, Nystroem with Ridge, and GPyTorch's SVGP.

    python benchmarks/flights.py [--rows N] [--methods NAME ...] [--peer PYTHON] [--kept FILE] [--write]

US flights of the first half of 2001: minute and day of the week and of the year of departure, distance, and the places
of both airports; 100,000 at random are held out. Mercer reads chunks of 50,000 rows from an iterator: one pass for a
random part to learn from, one for the posterior of all. Each method runs in a process of its own: seconds are of the
wall clock, memory is the peak of the process, the packed columns (54 MB) included. GPyTorch runs in the Python
``--peer`` for as long as mercer took with 500 centres, on minibatches of random rows, its inputs scaled. With
``--kept`` what is done is kept in a file. MERCER_DATA is the folder of the data.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from machine import Kept, keep, table

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "regression" / "flights3m.npz"
TEST_ROWS, CHUNK = 100_000, 50_000


class Flights:
    """Columns as they are stored; rows of numbers in double precision are made in chunks."""

    def __init__(self, rows=0):
        found = np.load(DATA)
        self.columns = {name: found[name] for name in ("minute", "dow", "doy", "distance", "origin", "dest", "delay")}
        self.places = np.column_stack([found["lat"], found["lon"]])
        n = len(self.columns["delay"])
        order = np.random.default_rng(0).permutation(n)
        self.test = np.sort(order[:TEST_ROWS])
        self.train = np.sort(order[TEST_ROWS : TEST_ROWS + rows if rows else None])

    def take(self, rows):
        c = {name: column[rows] for name, column in self.columns.items()}
        X = np.column_stack([c["minute"], c["dow"], c["doy"], c["distance"], self.places[c["origin"]],
                             self.places[c["dest"]]]).astype(float)  # fmt: skip
        return X, c["delay"].astype(float)

    def chunks(self):
        for i in range(0, len(self.train), CHUNK):
            yield self.take(self.train[i : i + CHUNK])


def lowrank(centers):
    def fit(flights):
        import mercer as mc

        solver = mc.solvers.LowRank(centers)
        model = mc.GaussianProcessRegressor(solver=solver, progress=False).fit(mc.datasets.Chunks(flights.chunks))
        return lambda Z: model.predict(Z, return_std=True)

    return fit


def linear(flights):
    """Least squares from sums over chunks, with one deviation for all."""
    S = sum(np.column_stack([X, np.ones(len(X)), y]).T @ np.column_stack([X, np.ones(len(X)), y])
            for X, y in flights.chunks())  # fmt: skip
    w = np.linalg.lstsq(S[:-1, :-1], S[:-1, -1], rcond=None)[0]
    deviation = np.sqrt((S[-1, -1] - w @ S[:-1, -1]) / len(flights.train))
    return lambda Z: (np.column_stack([Z, np.ones(len(Z))]) @ w, np.full(len(Z), deviation))


def sklearn_nystroem(centers):
    def fit(flights):
        """Half the median distance as the width, inputs scaled; 300,000 rows, since all take 12 GB."""
        from sklearn.kernel_approximation import Nystroem
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        rows = np.random.default_rng(1).choice(flights.train, size=min(300_000, len(flights.train)), replace=False)
        X, y = flights.take(np.sort(rows))
        best = None
        for gamma in (0.03, 0.1, 0.3):
            model = make_pipeline(StandardScaler(), Nystroem(gamma=gamma, n_components=centers, random_state=0),
                                  RidgeCV(np.logspace(-3, 3, 7)))  # fmt: skip
            model.fit(X[::2], y[::2])
            error = np.mean((model.predict(X[1::2]) - y[1::2]) ** 2)
            if best is None or error < best[0]:
                best = error, model
        error, model = best
        model.fit(X, y)
        return lambda Z: (model.predict(Z), np.full(len(Z), np.sqrt(error)))

    return fit


def svgp(centers, batch=1024):
    def fit(flights, seconds):
        """GPyTorch as its documentation shows it, with a Matern 3/2 kernel of one lengthscale per input."""
        import gpytorch
        import torch

        torch.manual_seed(0)
        rng, start = np.random.default_rng(1), time.perf_counter()
        X, y = flights.take(np.sort(rng.choice(flights.train, size=min(300_000, len(flights.train)), replace=False)))
        center, scale, middle, spread = X.mean(axis=0), X.std(axis=0), y.mean(), y.std()
        tensor = lambda A: torch.tensor(A, dtype=torch.float32)

        class Svgp(gpytorch.models.ApproximateGP):
            def __init__(self, Z):
                own = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
                super().__init__(gpytorch.variational.VariationalStrategy(self, Z, own, learn_inducing_locations=True))
                self.mean = gpytorch.means.ConstantMean()
                self.kernel = gpytorch.kernels.ScaleKernel(
                    gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=Z.shape[1])
                )

            def forward(self, x):
                return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

        model = Svgp(tensor((X[rng.choice(len(X), centers, replace=False)] - center) / scale))
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        step = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(flights.train))
        while time.perf_counter() - start < seconds:
            X, y = flights.take(rng.choice(flights.train, size=batch))
            step.zero_grad()
            loss = -objective(model(tensor((X - center) / scale)), tensor((y - middle) / spread))
            loss.backward()
            step.step()
        model.eval(), likelihood.eval()

        def predict(Z):
            with torch.no_grad():
                found = [likelihood(model(part)) for part in tensor((Z - center) / scale).split(4096)]
            mean = torch.cat([each.mean for each in found]).numpy().astype(float)
            deviation = torch.cat([each.variance for each in found]).numpy().astype(float) ** 0.5
            return mean * spread + middle, deviation * spread

        return predict

    return fit


EQUAL = "mercer, 500 centres"  # the method whose time the peers get
PEERS = {"GPyTorch SVGP, 500 centres": svgp(500), "GPyTorch SVGP, 1,000 centres": svgp(1000)}
METHODS = {
    "linear regression": linear,
    "mercer, 250 centres": lowrank(250),
    "mercer, 500 centres": lowrank(500),
    "mercer, 1,000 centres": lowrank(1000),
    "scikit-learn Nystroem(500) + Ridge": sklearn_nystroem(500),
    **PEERS,
}


def measure(name, rows, seconds):
    flights = Flights(rows)
    start = time.perf_counter()
    predict = METHODS[name](flights, seconds) if name in PEERS else METHODS[name](flights)
    fitted = time.perf_counter()
    Z, t = flights.take(flights.test)
    mean, deviation = (np.concatenate(parts) for parts in zip(*(predict(part) for part in np.array_split(Z, 10)),
                                                              strict=True))  # fmt: skip
    end = time.perf_counter()
    error = t - mean
    return {
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "MAE": float(np.abs(error).mean()),
        "NLPD": float(np.mean(0.5 * (error / deviation) ** 2 + np.log(deviation) + 0.5 * np.log(2 * np.pi))),
        "coverage": float(np.mean(np.abs(error) < 1.96 * deviation)),
        "fit": fitted - start,
        "predict": end - fitted,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=0, help="training rows; 0: all 2.9 million")
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--kept", type=Path, help="file of what is done, to go on from")
    arguments.add_argument("--peer", default=sys.executable, help="the Python that has GPyTorch")
    arguments.add_argument("--seconds", type=float, default=0.0, help="of a peer's fit")
    arguments.add_argument("--only", action="store_true", help="the first method, in this process")
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/flights.md")
    options = arguments.parse_args()
    if options.only:
        print(json.dumps(measure(options.methods[0], options.rows, options.seconds)))
        return
    done, rows = Kept(options.kept), []
    for name in options.methods:
        key = f"{name}/{options.rows}"
        if key not in done:
            command = [options.peer if name in PEERS else sys.executable, "-W", "ignore", __file__, "--only",
                       "--rows", options.rows, "--methods", name]  # fmt: skip
            if name in PEERS:
                command += ["--seconds", done[f"{EQUAL}/{options.rows}"]["fit"]]
            ran = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
            done[key] = json.loads(ran.stdout.splitlines()[-1])
        found = done[key]
        rows.append([name, f"{found['RMSE']:.2f}", f"{found['MAE']:.2f}", f"{found['NLPD']:.3f}",
                     f"{found['coverage']:.1%}", f"{found['fit']:.0f}", f"{found['predict']:.1f}",
                     f"{found['memory']:.2f}"])  # fmt: skip
        print(rows[-1], flush=True)
    head = ["method", "RMSE, minutes", "MAE", "negative log density", "95% intervals hold", "fit, s", "predict, s",
            "peak, GiB"]  # fmt: skip
    lines = table(head, rows)
    print("\n".join(lines))
    if options.write:
        names = [] if options.methods == list(METHODS) else ["--methods", *options.methods]
        command = shlex.join(["python", "benchmarks/flights.py", *names, "--write"])
        at = f"Measured at commit {done.measured_at(f'{name}/{options.rows}' for name in options.methods)}."
        keep("flights", "Delays of three million flights", command, [at, "", *lines])


if __name__ == "__main__":
    main()
