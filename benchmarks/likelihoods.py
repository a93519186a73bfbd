"""Other likelihoods: Student's t on data with outliers, and Laplace's method for counts beside GPy's.

Outliers: ten percent of the training targets get an error of five standard deviations of y, times a standard normal.
The RMSE on clean test rows of the default Gaussian model fitted to the clean targets, of the same fitted to the dirty
ones, and of likelihood="student" fitted to the dirty ones. Counts: the evidence of a Poisson likelihood at fixed
parameters and the time of inference, on simulated counts.
"""

import argparse
import time
import warnings

import numpy as np
from machine import interleaved, keep, table
from tables import DATA

import mercer as mc
from mercer import kernels as k

SETS = ("energy", "concrete")
OUTLIER_SHARE, OUTLIER_SIZE = 0.1, 5.0  # of the rows; in standard deviations of y


def dirty_split(name: str, seed: int):
    """Nine tenths of the rows with clean and dirty targets, and the remaining rows."""
    with np.load(DATA / "regression" / f"uci_{name}.npz") as file:
        X, y = file["X"].astype(float), file["y"].ravel().astype(float)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    train, test = np.split(order, [int(0.9 * len(y))])
    dirty = y[train].copy()
    bad = rng.permutation(len(train))[: int(OUTLIER_SHARE * len(train))]
    dirty[bad] += OUTLIER_SIZE * y.std() * rng.normal(size=len(bad))
    return X[train], y[train], dirty, X[test], y[test]


def fitted(X, y, Z, t, **settings):
    """RMSE on test rows, and seconds."""
    start = time.perf_counter()
    model = mc.GaussianProcessRegressor(progress=False, **settings).fit(X, y)
    return float(np.sqrt(np.mean((model.predict(Z) - t) ** 2))), time.perf_counter() - start


def outliers(seeds: int):
    for name in SETS:
        found = []
        for seed in range(seeds):
            X, clean, dirty, Z, t = dirty_split(name, seed)
            found.append([fitted(X, clean, Z, t), fitted(X, dirty, Z, t), fitted(X, dirty, Z, t, likelihood="student")])
            print(name, seed, found[-1], flush=True)
        (clean, plain, robust), seconds = np.mean(found, axis=0)[:, 0], np.mean(found, axis=0)[:, 1]
        yield [name, len(dirty_split(name, 0)[1]), f"{clean:.3f}", f"{plain:.3f}", f"{robust:.3f}",
               f"{robust / clean:.2f}", f"{seconds[0]:.0f}", f"{seconds[2]:.0f}"]  # fmt: skip


def counts(sizes=(200, 800)):
    import GPy

    for n in sizes:
        rng = np.random.default_rng(0)
        X = np.sort(rng.uniform(0, 20, n))[:, None]
        y = rng.poisson(np.exp(1 + np.sin(X[:, 0])))
        infer = GPy.inference.latent_function_inference.Laplace
        link = GPy.likelihoods.link_functions.Log()

        def theirs(X=X, y=y, infer=infer, link=link):
            kernel = GPy.kern.RBF(1, variance=1.5, lengthscale=0.9)
            return GPy.core.GP(X, y[:, None].astype(float), kernel, GPy.likelihoods.Poisson(link),
                               inference_method=infer())  # fmt: skip

        def ours(X=X, y=y):
            settings = {"likelihood": "poisson", "inference": "laplace", "learning": None, "normalize": False}
            return mc.GaussianProcessRegressor(1.5 * k.RBF(0.9), **settings).fit(X, y)

        evidence = ours().log_marginal_likelihood_, float(theirs().log_likelihood())
        Z = np.linspace(0, 20, 50)[:, None]
        away = np.abs(ours().predict_latent(Z)[0] - theirs()._raw_predict(Z)[0][:, 0]).max()
        seconds = interleaved({"ours": ours, "theirs": theirs}, 3)
        yield [f"{n:,}", *(f"{value:.6f}" for value in evidence), f"{away:.1e}",
               *(f"{1000 * value:.0f}" for value in seconds.values())]  # fmt: skip


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write the table to benchmarks/results/likelihoods.md")
    arguments.add_argument("--seeds", type=int, default=5)
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    head = ["rows", "log evidence, mercer", "GPy", "largest difference of latent means", "ms, mercer", "ms, GPy"]
    lines = ["Poisson likelihood by Laplace's method at fixed parameters; a posterior from scratch.", ""]
    lines += [*table(head, counts()), ""]
    print("\n".join(lines), flush=True)
    head = ["data", "rows", "Gaussian, clean", "Gaussian, outliers", "Student, outliers", "Student / clean",
            "s, clean", "s, Student"]  # fmt: skip
    share = f"{OUTLIER_SHARE:.0%} of the training targets are outliers"
    text = f"RMSE on clean test rows, mean of {options.seeds} splits; {share}; default kernels."
    lines += [text, "", *table(head, outliers(options.seeds))]
    print("\n".join(lines))
    if options.write:
        keep("likelihoods", "Other likelihoods", "python benchmarks/likelihoods.py --write", lines)


if __name__ == "__main__":
    main()
