"""Doubt about parameters: coverage of intervals under every kind of learning, and the speed of sampling beside peers.

    python benchmarks/doubt.py simulated [--sets 200] [--write]
    python benchmarks/doubt.py real [--subsets 5] [--write]
    python benchmarks/doubt.py speed --peer mercer --save FILE    (and gpy, botorch, each where it is installed)
    python benchmarks/doubt.py speed --peer --save FILE --write

simulated: functions of one input at 15 places, with parameters drawn from the default priors of a target of unit
variance. Claim: intervals of "laplace" cover their nominal share within 2 points (3 at 50%), at under 30 times the cost
of "mle".

real: subsets of 30 rows of six data sets, the default kernel. Claim: coverage of "laplace" is within 2 points of that
of "nuts".

speed: effective draws (of the slowest parameter) per second, warmup included, of a Gaussian kernel with one lengthscale
per input on 50 rows of energy: mercer's "nuts", GPy's HMC and BoTorch's fully Bayesian model by NUTS. Claim: at least
five times theirs. Medians of three seeds; GPy has the best of four step sizes at each, and BoTorch its own model.

MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from machine import HERE, keep

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data"))
LEARNING = ("mle", "map", "laplace", "nuts")
LEVELS = (0.5, 0.8, 0.95)
ROWS, TEST_ROWS, DRAWS = 15, 30, 400
REAL = ("concrete", "energy", "yacht", "airfoil", "motorcycle", "california")
REAL_ROWS, REAL_TEST_ROWS = 30, 200


# -- calibration -------------------------------------------------------------------------------------------------------


def scores(model, X, y):
    """Whether each interval holds each row, the log density, and the evaluations made."""
    predicted = model.predict_distribution(X)
    inside = []
    for level in LEVELS:
        low, high = predicted.interval(level)
        inside.append(float(np.mean((low <= y) & (y <= high))))
    return [*inside, float(np.mean(predicted.log_density(y)))]


def fit(model, X, y):
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return model, time.perf_counter() - began


def simulated_set(seed):
    """Training and test rows of one set, with theta drawn from the prior: lengthscale, variance, noise."""
    import mercer as mc
    from mercer import kernels as k

    rng = np.random.default_rng(seed)
    X = rng.uniform(-np.sqrt(3), np.sqrt(3), size=(ROWS + TEST_ROWS, 1))  # of unit spread
    length, variance, noise = np.exp(rng.normal(size=3) * [1.0, 2.0, 2.0] + [0.0, 0.0, np.log(0.1)])
    f = mc.GP(variance * k.RBF(length)).sample(X, seed=seed)[0]
    y = f + np.sqrt(noise) * rng.normal(size=len(X))
    return X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:]


def simulated_model(learning):
    import mercer as mc
    from mercer import kernels as k
    from mercer import priors

    kernel = (1.0 * k.RBF()).with_priors(variance=priors.LogNormal(0.0, 2.0), lengthscale=priors.LogNormal(0.0, 1.0))
    noise = priors.LogNormal(np.log(0.1), 2.0)
    if learning == "mle":
        kernel, noise = 1.0 * k.RBF(), None
    return mc.GaussianProcessRegressor(
        kernel, noise, learning=learning, normalize=False, n_samples=DRAWS, progress=False, random_state=0
    )


def simulated(sets, learnings):
    found = {learning: [] for learning in learnings}
    for seed in range(sets):
        X, y, Z, t = simulated_set(seed)
        for learning in learnings:
            model, seconds = fit(simulated_model(learning), X, y)
            found[learning].append([*scores(model, Z, t), seconds, model.n_evaluations_])
        if seed % 20 == 19:
            print(seed + 1, {name: np.mean(rows, axis=0).round(3).tolist() for name, rows in found.items()}, flush=True)
    return found


def real_rows(name):
    """Inputs and target of a data set."""
    if name == "motorcycle":
        frame = pd.read_csv(DATA / "regression" / "mcycle.csv.gz")
        return frame[["times"]].to_numpy(float), frame["accel"].to_numpy(float)
    if name == "california":
        frame = pd.read_csv(DATA / "regression" / "california_housing.csv.gz").dropna()
        inputs = frame.drop(columns=["median_house_value", "ocean_proximity"])
        return inputs.to_numpy(float), frame["median_house_value"].to_numpy(float)
    data = np.load(DATA / "regression" / f"uci_{name}.npz")
    return data["X"], data["y"]


def real(subsets, learnings):
    import mercer as mc

    found = {learning: {name: [] for name in REAL} for learning in learnings}
    for name in REAL:
        X, y = real_rows(name)
        for seed in range(subsets):
            order = np.random.default_rng(seed).permutation(len(y))
            train, test = order[:REAL_ROWS], order[REAL_ROWS : REAL_ROWS + REAL_TEST_ROWS]
            for learning in learnings:
                model = mc.GaussianProcessRegressor(learning=learning, n_samples=DRAWS, progress=False)
                model, seconds = fit(model, X[train], y[train])
                found[learning][name].append([*scores(model, X[test], y[test]), seconds, model.n_evaluations_])
        print(name, {each: np.mean(rows[name], axis=0).round(3).tolist() for each, rows in found.items()}, flush=True)
    return found


def rows_of_table(found):
    """One line for each kind of learning, with standard errors over sets."""
    cheapest = np.mean([row[-2] for row in found["mle"]])
    lines = []
    for learning, rows in found.items():
        values = np.array(rows)
        mean, error = values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))
        covers = " | ".join(f"{100 * mean[i]:.1f} ± {100 * error[i]:.1f}" for i in range(len(LEVELS)))
        density = f"{mean[len(LEVELS)]:.3f} ± {error[len(LEVELS)]:.3f}"
        cost = f"{mean[-1]:,.0f} | {mean[-2]:.2f} | {mean[-2] / cheapest:.1f}"
        lines.append(f"| {learning} | {len(values)} | {covers} | {density} | {cost} |")
    return lines


HEAD = [
    "| learning | sets | 50% covers | 80% covers | 95% covers | log density | evaluations | seconds | times mle |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
]


def drawn(found, path):
    """Coverage above nominal, with two standard errors."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ax.axhline(0, color="0.6", lw=1)
    for i, (learning, rows) in enumerate(found.items()):
        values = np.array(rows)[:, : len(LEVELS)]
        away, error = 100 * (values.mean(axis=0) - LEVELS), 200 * values.std(axis=0) / np.sqrt(len(values))
        ax.errorbar(np.arange(len(LEVELS)) + 0.12 * (i - 1.5), away, error, fmt="o", ms=5, capsize=3, label=learning)
    ax.set_xticks(range(len(LEVELS)), [f"{level:.0%}" for level in LEVELS])
    ax.set(xlabel="nominal coverage of the interval", ylabel="coverage minus nominal, points")
    ax.legend(frameon=False, ncols=len(found), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path)
    plt.close(figure)


# -- speed -------------------------------------------------------------------------------------------------------------


def speed_rows():
    X, y = real_rows("energy")
    order = np.random.default_rng(0).permutation(len(y))[:50]
    X, y = X[order], y[order]
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0), (y - y.mean()) / y.std()


def effective(draws):
    """Smallest effective size over parameters of draws (chains, draws, p)."""
    from mercer.inference.sampling.diagnostics import effective_size

    return float(np.min(effective_size(draws)))


def by_mercer(seed):
    import mercer as mc
    from mercer import kernels as k

    X, y = speed_rows()
    kernel = 1.0 * k.Matern(np.ones(X.shape[1]), nu=2.5)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mc.GaussianProcessRegressor(kernel, learning="nuts", n_samples=1000, progress=False, random_state=seed)
        model.fit(X, y)
    seconds = time.perf_counter() - began
    return float(np.min(model.theta_posterior_.diagnostics["effective_size"])), seconds


def by_gpy(seed, n_draws=600, steps=20):
    """With the best of a few step sizes, whose choice is not counted: GPy does not adapt them."""
    tried = [with_step(step, seed, n_draws, steps) for step in (0.02, 0.05, 0.1, 0.2)]
    return max(tried, key=lambda found: found[0] / found[1])


def with_step(step, seed, n_draws, steps):
    import GPy

    np.random.seed(seed)  # GPy draws from the global generator

    X, y = speed_rows()
    model = GPy.models.GPRegression(X, y[:, None], GPy.kern.Matern52(X.shape[1], ARD=True))
    model.kern.lengthscale.set_prior(GPy.priors.LogGaussian(np.log(np.sqrt(X.shape[1])), 1.0), warning=False)
    model.kern.variance.set_prior(GPy.priors.LogGaussian(0.0, 2.0), warning=False)
    model.likelihood.variance.set_prior(GPy.priors.LogGaussian(np.log(0.1), 2.0), warning=False)
    began = time.perf_counter()
    model.optimize(max_iters=200)
    sampler = GPy.inference.mcmc.HMC(model, stepsize=step)
    draws = sampler.sample(num_samples=n_draws, hmc_iters=steps)[n_draws // 4 :]
    return effective(np.log(draws)[None]), time.perf_counter() - began


def by_botorch(seed, n_draws=256, warmup=256):
    """Its own model and priors (sparse axes, Eriksson and Jankowiak 2021), whose lengthscales are sampled."""
    import torch
    from botorch.fit import fit_fully_bayesian_model_nuts
    from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP

    torch.set_default_dtype(torch.float64)
    X, y = (torch.as_tensor(each) for each in speed_rows())
    X = (X - X.min(dim=0).values) / (X.max(dim=0).values - X.min(dim=0).values).clamp(min=1e-9)
    model = SaasFullyBayesianSingleTaskGP(X, y[:, None])
    began = time.perf_counter()
    fit_fully_bayesian_model_nuts(model, warmup_steps=warmup, num_samples=n_draws, thinning=1, disable_progbar=True,
                                  seed=seed)  # fmt: skip
    seconds = time.perf_counter() - began
    lengths = model.covar_module.base_kernel.lengthscale if hasattr(model.covar_module, "base_kernel") else (
        model.covar_module.lengthscale
    )  # fmt: skip
    return effective(np.log(lengths.detach().numpy()[:, 0])[None]), seconds


PEERS = {"mercer": by_mercer, "gpy": by_gpy, "botorch": by_botorch}
ABOUT = {
    "mercer": "mercer, 1,000 draws of four chains",
    "gpy": "GPy, HMC, 600 draws of 20 steps each",
    "botorch": "BoTorch, NUTS (NumPyro), its sparse-axes model and priors, 256 draws",
}
SEEDS = 3


def speed(peers, path, write):
    """Measure some peers, each line kept in a file, and write the table from all of its lines."""
    for peer in peers:
        for seed in range(SEEDS):
            size, seconds = PEERS[peer](seed)
            print(f"{peer}: {size:.0f} effective draws in {seconds:.1f} s, {size / seconds:.2f} per second", flush=True)
            with open(path, "a") as file:
                file.write(json.dumps([peer, size, seconds]) + "\n")
    if not write:
        return
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    lines = [
        "| sampler | effective draws of the slowest parameter | seconds | per second |",
        "| --- | --- | --- | --- |",
    ]
    for peer, about in ABOUT.items():
        own = np.array([row[1:] for row in rows if row[0] == peer])
        if len(own):
            each = ", ".join(f"{size:.0f}" for size in own[:, 0]), ", ".join(f"{time:.1f}" for time in own[:, 1])
            lines.append(f"| {about} | {each[0]} | {each[1]} | {np.median(own[:, 0] / own[:, 1]):.2f} |")
    keep("doubt_speed", "Effective draws per second, 50 rows of energy, a Matern kernel with 8 lengthscales",
         "python benchmarks/doubt.py speed --peer mercer --save FILE, and so on; then --peer --save FILE --write",
         lines)  # fmt: skip


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=("simulated", "real", "speed"))
    arguments.add_argument("--sets", type=int, default=200)
    arguments.add_argument("--subsets", type=int, default=5)
    arguments.add_argument("--learning", nargs="*", default=LEARNING)
    arguments.add_argument(
        "--peer", nargs="*", default=("mercer",), help="each needs its library: mercer, gpy, botorch"
    )
    arguments.add_argument("--write", action="store_true", help="write tables and the plot to benchmarks/results")
    arguments.add_argument("--save", help="file to keep the numbers in, as JSON")
    options = arguments.parse_args()
    if options.what == "speed":
        speed(options.peer, options.save or os.devnull, options.write)
        return
    if options.what == "simulated":
        found = simulated(options.sets, options.learning)
    else:
        by_set = real(options.subsets, options.learning)
        found = {learning: [row for name in REAL for row in rows[name]] for learning, rows in by_set.items()}
    if options.save:
        Path(options.save).write_text(json.dumps(found))
    lines = [*HEAD, *rows_of_table(found)]
    print("\n".join(lines))
    if options.write:
        title = (
            "15 rows, parameters drawn from the prior" if options.what == "simulated" else "30 rows of six data sets"
        )
        drawn(found, HERE / "results" / f"doubt_{options.what}.svg")
        keep(f"doubt_{options.what}", f"Coverage of intervals in per cent: {title}",
             f"python benchmarks/doubt.py {options.what} --write", lines)  # fmt: skip


if __name__ == "__main__":
    main()
