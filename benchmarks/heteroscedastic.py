"""Noise that varies: `HeteroscedasticGaussianProcessRegressor` beside constant noise.

    python benchmarks/heteroscedastic.py [--splits 10] [--seeds 10] [--write]

Claims: on the motorcycle data the negative log density of held-out rows is at least 0.2 nats below that of constant
noise, and within 0.05 of the sampled treatment; on the synthetic sets of Goldberg and others (1998), Yuan and Wahba
(2004) and Williams (1996) the deviation of the noise is recovered to a mean error of 0.25 in its logarithm from 200
rows; a fit of 500 rows takes at most ten times as long as with constant noise. MERCER_DATA is the folder of the data
(default ../shared/data).
"""

import argparse
import time
import warnings

import numpy as np
from machine import keep, table
from tables import DATA, regression

import mercer as mc


def goldberg(n, rng):
    x = rng.uniform(0, 1, n)
    return x, 2 * np.sin(2 * np.pi * x), 0.5 + x


def yuan_and_wahba(n, rng):
    x = rng.uniform(0, 1, n)
    return x, 2 * (np.exp(-30 * (x - 0.25) ** 2) + np.sin(np.pi * x**2)) - 2, np.exp(0.5 * np.sin(2 * np.pi * x))


def williams(n, rng):
    x = rng.uniform(0, np.pi, n)
    return x, np.sin(2.5 * x) * np.sin(1.5 * x), 0.01 + 0.25 * (1 - np.sin(2.5 * x)) ** 2


SYNTHETIC = {"Goldberg 1998": goldberg, "Yuan and Wahba 2004": yuan_and_wahba, "Williams 1996": williams}


def varying(**settings):
    return mc.HeteroscedasticGaussianProcessRegressor(progress=False, **settings)


def constant():
    return mc.GaussianProcessRegressor(progress=False)


def motorcycle(splits):
    """Negative log density of held-out rows over random 90/10 splits, for each treatment."""
    data = np.genfromtxt(DATA / "regression" / "mcycle.csv.gz", delimiter=",", names=True)
    X, y = data["times"][:, None], data["accel"]
    models = {"constant noise": constant, "varying, variational": varying,
              "varying, sampled": lambda: varying(noise_inference="mcmc")}  # fmt: skip
    found = {name: [] for name in models}
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(y))
        test, train = order[: len(y) // 10], order[len(y) // 10 :]
        for name, make in models.items():
            model = make().fit(X[train], y[train])
            found[name].append(-model.log_predictive_density(X[test], y[test]).mean())
        print("motorcycle", seed, {name: round(float(values[-1]), 3) for name, values in found.items()}, flush=True)
    plain = np.array(found["constant noise"])
    rows = []
    for name, values in found.items():
        gain = plain - np.array(values)
        rows.append([name, f"{np.mean(values):.3f}", f"{gain.mean():.3f}", f"{gain.std(ddof=1) / np.sqrt(splits):.3f}"])
    return table(["treatment", "negative log density", "below constant noise", "standard error"], rows)


def recovery(seeds, n=200):
    """Mean error of ln deviation over the inputs, for each synthetic set."""
    rows = []
    for name, draw in SYNTHETIC.items():
        errors, varies = [], 0
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            x, f, deviation = draw(n, rng)
            model = varying().fit(x[:, None], f + deviation * rng.normal(size=n))
            z, _, truth = draw(1000, np.random.default_rng(1000 + seed))
            errors.append(np.abs(0.5 * np.log(model.predict_noise(z[:, None])) - np.log(truth)).mean())
            varies += model.noise_varies_
        rows.append([name, f"{np.mean(errors):.3f}", f"{np.max(errors):.3f}", f"{varies} of {seeds}"])
        print(*rows[-1], flush=True)
    return table(["set", "mean error of ln deviation", "worst of the draws", "noise found to vary"], rows)


def speed(n=500, rounds=3):
    """Seconds of the second fit, beside that with constant noise."""
    rows = []
    sets = {name: regression()[name] for name in ("energy", "concrete", "airfoil")}
    rng = np.random.default_rng(0)
    x, f, deviation = williams(n, rng)
    sets["Williams 1996"] = x[:, None], f + deviation * rng.normal(size=n)
    for name, (X, y) in sets.items():
        seconds = {}
        for kind, make in (("constant", constant), ("varying", varying)):
            times = []
            for _ in range(rounds + 1):
                start = time.perf_counter()
                make().fit(X[:n], y[:n])
                times.append(time.perf_counter() - start)
            seconds[kind] = float(np.median(times[1:]))
        rows.append([name, f"{seconds['constant']:.2f}", f"{seconds['varying']:.2f}",
                     f"{seconds['varying'] / seconds['constant']:.1f}"])  # fmt: skip
        print(*rows[-1], flush=True)
    return table([f"{n} rows", "constant noise, s", "varying, s", "ratio"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = ["## Motorcycle", "", *motorcycle(options.splits), "", "## Noise recovered from 200 rows", "",
             *recovery(options.seeds), "", "## Time of a fit", "", *speed()]  # fmt: skip
    print("\n".join(lines))
    if options.write:
        command = f"python benchmarks/heteroscedastic.py --splits {options.splits} --seeds {options.seeds} --write"
        keep("heteroscedastic", "Noise that varies", command, lines)


if __name__ == "__main__":
    main()
