"""Fits and predictions of mercer before and after a change, in turns.

    python benchmarks/before_after.py --before COMMIT [--rounds 3] [--only NAME ...] [--write]

Claim: a redesign makes nothing slower. Both versions run every case in a process of its own, taking turns; a case is
called once to warm up, then three times, of which the fastest counts. The source of the former version comes from a
worktree of the repository.
"""

import argparse
import json
import time
import warnings

import numpy as np
from machine import before_and_after, keep, table


def data(n, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.normal(size=n)


def cases():
    """Name to a function that prepares a case and returns what is to be timed."""
    import mercer as mc
    from mercer import kernels as k

    ard = lambda d=6: 1.0 * k.RBF(np.full(d, 2.0))
    quiet = {"progress": False}

    def regression(n, kernel=None, **settings):
        X, y = data(n)
        return lambda: mc.GaussianProcessRegressor(kernel, **quiet, **settings).fit(X, y)

    def prediction(n, points, **settings):
        (X, y), (Z, _) = data(n), data(points, seed=1)
        model = mc.GaussianProcessRegressor(ard(), noise=0.01, learning=None, **quiet, **settings).fit(X, y)
        return lambda: model.predict(Z, return_std=True)

    def classification(n, classes, inference):
        X, y = data(n)
        codes = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]))
        return lambda: mc.GaussianProcessClassifier(ard(), inference, max_iterations=8, **quiet).fit(X, codes)

    def machine(make, n, codes=False):
        X, y = data(n)
        target = (y > np.median(y)).astype(int) if codes else y
        return lambda: make().fit(X, target).predict(X[:2000])

    def mixture():
        X, y = data(300)
        kernel = 1.0 * k.RBF().on([0, 1]) + 0.5 * k.Matern(nu=1.5).on([2, 3]) * k.Linear().on(4)
        return lambda: mc.GaussianProcessRegressor(kernel, **quiet).fit(X, y)

    def components(n):
        X, _ = data(n)
        return lambda: mc.KernelPCA(10, k.RBF(3.0)).fit_transform(X)

    return {
        "ARD RBF fit, 100 rows": lambda: regression(100, ard()),
        "ARD RBF fit, 500 rows": lambda: regression(500, ard()),
        "ARD RBF fit, 2,000 rows": lambda: regression(2000, ard()),
        "sum of products fit, 300 rows": mixture,
        "default fit, 300 rows": lambda: regression(300),
        "default fit, 2,000 rows": lambda: regression(2000),
        "fixed kernel, 3,000 rows": lambda: regression(3000, ard(), noise=0.01, learning=None),
        "polynomial by weights, 20,000 rows": lambda: regression(20000, 1.0 * k.Polynomial(2, 1.0), max_iterations=5),
        "20,000 predictions with deviation, 2,000 rows": lambda: prediction(2000, 20000),
        "ep, two classes, 300 rows": lambda: classification(300, 2, "ep"),
        "laplace, two classes, 600 rows": lambda: classification(600, 2, "laplace"),
        "laplace, three classes, 300 rows": lambda: classification(300, 3, "laplace"),
        "ridge by leave-one-out, 2,000 rows": lambda: machine(lambda: mc.KernelRidge(k.RBF(3.0), alpha="loo"), 2000),
        "perceptron, 1,500 rows": lambda: machine(lambda: mc.KernelPerceptron(k.RBF(2.0), max_epochs=5), 1500, True),
        "discriminant, 1,500 rows": lambda: machine(lambda: mc.KernelFisherDiscriminant(k.RBF(3.0)), 1500, True),
        "Nadaraya-Watson, 1,000 rows": lambda: machine(mc.NadarayaWatson, 1000),
        "network, 2,000 rows": lambda: machine(lambda: mc.RBFNetwork(30, random_state=0), 2000),
        "kernel PCA, 4,000 rows": lambda: components(4000),
    }


def measure(name: str):
    """Print the seconds of a case, and how often it was evaluated where that is known."""
    warnings.simplefilter("ignore")
    call = cases()[name]()
    model, taken = call(), []
    for _ in range(3):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    print(json.dumps([min(taken), int(getattr(model, "n_evaluations_", 0))]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="b1e8d90", help="a commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="beginnings of names")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    rows, names = [], [name for name in cases() if not options.only or name.startswith(tuple(options.only))]
    found = before_and_after(options.before, __file__, [[name] for name in names], options.rounds)
    for name, ((before, ours), (after, mine)) in zip(names, found, strict=True):
        rows.append([name, f"{before:.3f}", f"{after:.3f}", f"{after / before:.2f}", f"{ours:.0f}", f"{mine:.0f}"])
        print(*rows[-1], sep=" | ", flush=True)
    if options.write:
        header = ["case", "before, s", "after, s", "ratio", "evaluations before", "after"]
        said = f"Median of {options.rounds} processes each, taking turns. Before: {options.before}."
        command = f"python benchmarks/before_after.py --before {options.before} --rounds {options.rounds} --write"
        keep("before_after", "Fits and predictions, before and after", command, [said, "", *table(header, rows)])


if __name__ == "__main__":
    main()
