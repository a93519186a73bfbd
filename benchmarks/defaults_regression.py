"""`GaussianProcessRegressor()` on every regression set, beside fixed kernels, scikit-learn's process and a forest.

Per set: the default; eight fixed kernels (standard with smoothness 1/2, 3/2, 5/2 and infinity, with and without the
linear term, one lengthscale for each input), the best of which is picked for each set in hindsight;
scikit-learn's process (Matern 5/2 with ARD, constant and white noise on standardised inputs, restarts), on fewer splits
and rows, as it takes minutes; a quantile regression forest.
Scores on rows held out; CRPS and RMSE in units of the target's spread.
"""

import time
import warnings

import numpy as np
from machine import table
from tables import regression

import mercer as mc
from mercer.core.parameters import evolve
from mercer.distributions import Normal
from mercer.learning.heuristics import standard_kernel

NORMAL = {0.5: 0.6745, 0.8: 1.2816, 0.95: 1.96}
MOST_TESTED = 1000
QUANTILES = np.linspace(0.01, 0.99, 99)


def split(X, y, seed: int, rows: int):
    """At most ``rows`` training rows, and no more than four fifths of all; at most a thousand test rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    n = min(rows, int(0.8 * len(y)))
    train, test = order[:n], order[n : n + MOST_TESTED]
    return X[train], y[train], X[test], y[test]


def scores(y, mean, deviation, spread):
    z = np.abs(y - mean) / deviation
    return {
        "crps": float(np.mean(Normal(mean, deviation).crps(y))) / spread,
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))) / spread,
        "density": float(np.mean(Normal(mean, deviation).log_density(y))) + np.log(spread),
        **{f"{level:.0%}": float(np.mean(z < bound)) for level, bound in NORMAL.items()},
    }


def ours(X, y, Z, t, kernel=None, **settings):
    start = time.perf_counter()
    model = mc.GaussianProcessRegressor(kernel, progress=False, **settings).fit(X, y)
    mean, deviation = model.predict(Z, return_std=True)
    return {**scores(t, mean, deviation, y.std()), "seconds": time.perf_counter() - start}


def fixed(X, nu: float, linear: bool):
    kernel = evolve(standard_kernel(X, constant=False), nu=np.float64(nu))
    return kernel if linear else evolve(kernel, theta3=np.float64(0.0))


def scikit_learn(X, y, Z, t, restarts: int = 5):
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kernel = kernels.ConstantKernel() * kernels.Matern(np.ones(X.shape[1]), nu=2.5) + kernels.WhiteKernel()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=restarts, random_state=0)
        model = make_pipeline(StandardScaler(), process).fit(X, y)
    mean, deviation = model.predict(Z, return_std=True)
    return {**scores(t, mean, deviation, y.std()), "seconds": time.perf_counter() - start}


def forest(X, y, Z, t):
    from quantile_forest import RandomForestQuantileRegressor

    start = time.perf_counter()
    model = RandomForestQuantileRegressor(300, min_samples_leaf=3, random_state=0).fit(X, y)
    Q = model.predict(Z, quantiles=QUANTILES.tolist())
    pinball = np.maximum(QUANTILES * (t[:, None] - Q), (QUANTILES - 1) * (t[:, None] - Q))
    held = {"50%": (24, 74), "80%": (9, 89), "95%": (2, 97)}
    return {
        "crps": float(2 * pinball.mean()) / y.std(),
        "rmse": float(np.sqrt(np.mean((Q.mean(axis=1) - t) ** 2))) / y.std(),
        "density": np.nan,
        **{level: float(np.mean((t >= Q[:, a]) & (t <= Q[:, b]))) for level, (a, b) in held.items()},
        "seconds": time.perf_counter() - start,
    }


DEFAULT, FOREST, SKLEARN = "mercer, default", "forest", "scikit-learn"
FIXED = {
    f"mercer, nu {nu:g}{' + linear' if linear else ''}": (nu, linear)
    for nu in (0.5, 1.5, 2.5, np.inf)
    for linear in (False, True)
}
PEER_SPLITS, PEER_ROWS = 1, 150  # of scikit-learn's process, which takes minutes with more


def one(who: str, X, y, seed: int, rows: int) -> dict:
    """The scores of a contender on a split."""
    data = split(X, y, seed, PEER_ROWS if who == SKLEARN else rows)
    if who in FIXED:
        return ours(*data, kernel=fixed(data[0], *FIXED[who]), calibrate=True)
    return {DEFAULT: ours, FOREST: forest, SKLEARN: scikit_learn}[who](*data)


def measured(name, X, y, splits: int, rows: int, kept, done, asked) -> dict:
    """Mean scores of every contender over the splits."""
    found: dict[str, list[dict]] = {}
    for seed in range(splits):
        for who in asked:
            key = f"{who}|{name}|{rows}|{seed}"
            if key not in kept and not done and (who != SKLEARN or seed < PEER_SPLITS):
                kept[key] = one(who, X, y, seed, rows)
            if key in kept:
                found.setdefault(who, []).append(kept[key])
    least = min((len(many) for who, many in found.items() if who != SKLEARN), default=0)
    return {
        who: {key: np.mean([s[key] for s in many[: least or None]]) for key in many[0]} | {"splits": least}
        for who, many in found.items()
    }


def lines(splits: int, rows: int, kept, done=False, sets=None, models=("",)) -> list[str]:
    """The table, what it says, and at which commits it was measured."""
    header = ["set", "inputs", "splits", "CRPS", "best fixed kernel", "its CRPS", "ratio", "forest", "scikit-learn",
              "RMSE", "log density", "50%", "80%", "95%", "seconds", "scikit-learn's"]  # fmt: skip
    asked = [who for who in (DEFAULT, *FIXED, FOREST, SKLEARN) if any(word in who for word in models)]
    out, ratios, held = [], [], []
    for name, (X, y) in regression().items():
        if sets and name not in sets:
            continue
        found = measured(name, X, y, splits, rows, kept, done, asked)
        if DEFAULT not in found or not FIXED.keys() & found.keys():
            continue
        mine, nothing = found[DEFAULT], dict.fromkeys(found[DEFAULT], np.nan)
        peer, trees = found.get(SKLEARN, nothing), found.get(FOREST, nothing)
        best = min((who for who in found if who in FIXED), key=lambda who: found[who]["crps"])
        ratios.append(mine["crps"] / found[best]["crps"])
        held.append([mine["50%"], mine["80%"], mine["95%"]])
        row = [name, X.shape[1], mine["splits"], f"{mine['crps']:.4f}", best.removeprefix("mercer, "),
               f"{found[best]['crps']:.4f}", f"{ratios[-1]:.3f}", f"{trees['crps']:.4f}", f"{peer['crps']:.4f}",
               f"{mine['rmse']:.4f}", f"{mine['density']:.3f}"]  # fmt: skip
        row += [f"{mine[level]:.1%}" for level in ("50%", "80%", "95%")]
        row += [f"{mine['seconds']:.2f}", f"{peer['seconds']:.1f}"]
        print(*row, sep=" | ", flush=True)
        out.append(row)
    if not out:
        return []
    ratios, held = np.array(ratios), np.mean(held, axis=0)
    summary = (
        f"Mean CRPS of the default within 2% of the fixed kernel that is best in hindsight on {np.sum(ratios <= 1.02)} "
        f"of {len(ratios)} sets, within 5% on {np.sum(ratios <= 1.05)}; intervals of 50, 80 and 95% hold "
        f"{held[0]:.1%}, {held[1]:.1%} and {held[2]:.1%} on average."
    )
    said = (
        f"{splits} splits, at most {rows} training rows; scikit-learn's process with five restarts on {PEER_SPLITS} of "
        f"the splits and at most {PEER_ROWS} rows."
    )
    print(summary)
    groups = {DEFAULT: [DEFAULT], "fixed kernels": list(FIXED), FOREST: [FOREST], SKLEARN: [SKLEARN]}
    commits = [
        f"{group}: {kept.measured_at(key for key in kept if key.split('|')[0] in whose)}"
        for group, whose in groups.items()
    ]
    return [said, "", summary, "", "Measured at these commits: " + "; ".join(commits) + ".", "", *table(header, out)]
