"""Optima of the default fit compared with the best of twenty optimisations from random starts.

100 problems: subsets of the regression sets, of 60 to 450 rows. The kernel is the one that the default chose; its
evidence is maximised by SciPy's L-BFGS-B from twenty starts with lengthscales log-uniform in 0.1-10 times the standard
deviation times sqrt(d) and noise in 1e-4-1 times the variance. Counts how often the default is within 0.5 nats of the
best. The table also has the highest evidence of the kernels that the default compared, which it chooses between by
left-out rows.

    python benchmarks/optima.py [--problems 100] [--write]
"""

import argparse
import time
import warnings

import numpy as np
from machine import keep, table
from scipy.optimize import minimize
from tables import regression

import mercer as mc
from mercer.gp.noise import LearnedNoise
from mercer.learning.regression import RegressionObjective, standardised
from mercer.solvers import Dense

SIZES = (60, 100, 150, 200, 300, 450)
CLIMBS = 20
CLOSE = 0.5  # nats


def objective_of(model, X, y):
    """The evidence that the default fit maximised, of the kernel it chose."""
    rows = np.unique(model.copy_of_, return_index=True)[1]
    target, _, _, noise, mean = standardised(y[rows], LearnedNoise(), normalize=True, learns=True)
    return RegressionObjective(model.kernel_, X[rows], target, noise, Dense(), mean)


def best_of_random(objective, rng):
    """The best of twenty optimisations."""
    names, found = objective.names(), []
    lengths = [i for i, name in enumerate(names) if name.startswith("theta1")]
    d = objective.X.shape[1]
    bounds = [(-30.0, 30.0)] * (len(names) - 1) + [(objective.noise.floor()[0], 5.0)]
    with objective.criterion() as evidence:

        def down(theta):
            answer = evidence(theta)
            return (1e10, np.zeros(len(theta))) if answer is None else (-answer.value, -answer.gradient)

        for _ in range(CLIMBS):
            theta = objective.start_with_noise(np.exp(rng.uniform(np.log(1e-4), 0.0)))
            theta[lengths] = -2 * (rng.uniform(np.log(0.1), np.log(10.0), len(lengths)) + 0.5 * np.log(d))
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                result = minimize(down, theta, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200})
            found.append(-result.fun)
    return max(found)


def best_member(choice, n):
    """The highest evidence of all kernels that were compared on all n rows, each learned with its weak prior."""
    found = [tried.log_evidence for tried in choice.tried if (tried.rows or choice.rows) == n]
    return f"{max(found):.2f}" if found else "-"


def main(problems: int, write: bool):
    sets = regression()
    names, rows, close, done = list(sets), [], [], 0
    while done < problems:
        rng = np.random.default_rng([7, done])
        name, n = names[done % len(names)], int(rng.choice(SIZES))
        X, y = sets[name]
        order = rng.permutation(len(y))[: min(n, len(y))]
        X, y = X[order], y[order]
        start = time.perf_counter()
        model = mc.GaussianProcessRegressor(progress=False).fit(X, y)
        seconds = time.perf_counter() - start
        objective = objective_of(model, X, y)
        best = best_of_random(objective, rng)
        calibration = np.log(model.calibration_) * objective.amplitude()
        evidence = model.log_marginal_likelihood(model.theta_ - calibration)
        gap = best - evidence
        close.append(gap <= CLOSE)
        rows.append([name, len(y), X.shape[1], model.choice_.member, f"{evidence:.2f}", f"{best:.2f}", f"{gap:+.2f}",
                     best_member(model.choice_, objective.n),
                     "yes" if model.optima_[0].converged else "no", f"{seconds:.2f}"])  # fmt: skip
        print(*rows[-1], sep=" | ", flush=True)
        done += 1
    summary = f"Within {CLOSE} nats of the best of {CLIMBS} random climbs: {np.sum(close)} of {len(close)}."
    print(summary)
    if write:
        header = [
            "set",
            "rows",
            "inputs",
            "kernel chosen",
            "log evidence",
            "best of 20",
            "short by",
            "best of the family",
            "converged",
            "seconds",
        ]
        keep("optima", "Does the default fit reach the best optimum?", "python benchmarks/optima.py --write",
             [summary, "", *table(header, rows)])  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    main(arguments.problems, arguments.write)
