"""Kernel machines, radial basis functions and kernel regression compared with other libraries.

    python benchmarks/dual.py [--write] [--only ridge regression components interpolation]

Double precision, CPU, every measurement in its own process, in turns unless it takes minutes. Claims:

- `KernelRidge` with alpha by exact leave-one-out over 50 values, N = 4000: at least 15 times faster than scikit-learn's
  GridSearchCV(KernelRidge, cv=5) over the same values, and no worse in test error
- `NadarayaWatson` with learned widths, N = 2000: at least 50 times faster than statsmodels' KernelReg with cv_ls
- `KernelPCA` with 10 components, N = 10,000: below 2 GiB, and at least 3 times faster than scikit-learn's
- `RBFInterpolator`, N = 3000, fit and 3000 evaluations: at least as fast as SciPy's

MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from machine import forget_the_peak, in_process, keep, resident, table

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data"))
ALPHAS = np.geomspace(1e-6, 10, 50)
LENGTH = 2.0  # of the Gaussian, on standardised inputs


def kin40k(n, test=4000):
    """Inputs standardised; the noise-free kinematics of a robot arm are smooth, so test errors tell much."""
    data = np.load(DATA / "regression" / "uci_kin40k.npz")
    X, y = data["X"], data["y"].ravel()
    order = np.random.default_rng(0).permutation(len(y))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X[order[:n]], y[order[:n]], X[order[n : n + test]], y[order[n : n + test]]


def seconds(call):
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


def rmse(model, X, y):
    return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))


# -- ridge regression ------------------------------------------------------------------------------------------------


def measured_ridge(library, n):
    X, y, Z, t = kin40k(int(n))
    if library == "mercer":
        import mercer as mc
        from mercer import kernels as k

        make = lambda: mc.KernelRidge(k.RBF(LENGTH), "loo", alphas=ALPHAS)
        make().fit(X[:200], y[:200])
    else:
        from sklearn.kernel_ridge import KernelRidge
        from sklearn.model_selection import GridSearchCV

        make = lambda: GridSearchCV(
            KernelRidge(kernel="rbf", gamma=0.5 / LENGTH**2), {"alpha": ALPHAS}, cv=5, scoring="neg_mean_squared_error"
        )
    taken, model = seconds(lambda: make().fit(X, y))
    chosen = model.alpha_ if library == "mercer" else model.best_params_["alpha"]
    return taken, rmse(model, Z, t), float(chosen)


def ridge():
    n, rows = 4000, []
    theirs = in_process(__file__, "ridge", "scikit-learn", n)
    ours = sorted(in_process(__file__, "ridge", "mercer", n) for _ in range(3))[1]
    for library, (taken, error, alpha) in {"mercer": ours, "scikit-learn": theirs}.items():
        rows.append([library, f"{taken:.1f}", f"{taken / ours[0]:.1f}", f"{error:.5f}", f"{alpha:.2g}"])
    return [f"## Ridge regression, N = {n}, D = 8, RBF, fifty values of alpha", "",
            *table(["library", "seconds", "ratio", "test RMSE", "alpha"], rows)]  # fmt: skip


# -- kernel regression -----------------------------------------------------------------------------------------------


def smooth(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    f = np.sin(6 * X[:, 0]) + 2 * (X[:, 1 % d] - 0.5) ** 2
    return X, f + 0.3 * rng.normal(size=n), f


def measured_regression(library, n, d):
    X, y, _ = smooth(int(n), int(d))
    Z, _, f = smooth(1000, int(d), seed=1)
    if library == "mercer":
        import mercer as mc

        mc.NadarayaWatson(progress=False).fit(*smooth(900, int(d), seed=2)[:2])  # compile
        taken, model = seconds(lambda: mc.NadarayaWatson(progress=False).fit(X, y))
        return taken, rmse(model, Z, f)
    from statsmodels.nonparametric.kernel_regression import KernelReg

    taken, model = seconds(lambda: KernelReg(y, X, "c" * int(d), reg_type="lc", bw="cv_ls"))
    return taken, float(np.sqrt(np.mean((model.fit(Z)[0] - f) ** 2)))


def regression():
    d, rows = 2, []  # more inputs only take the peer longer
    theirs = in_process(__file__, "regression", "statsmodels", 2000, d)
    ours = sorted(in_process(__file__, "regression", "mercer", 2000, d) for _ in range(3))[1]
    for library, (taken, error) in {"mercer": ours, "statsmodels cv_ls": theirs}.items():
        rows.append([library, f"{taken:.2f}", f"{taken / ours[0]:.0f}", f"{error:.4f}"])
    return [f"## Kernel regression with learned widths, N = 2000, D = {d}", "",
            *table(["library", "seconds", "ratio", "RMSE from the function"], rows)]  # fmt: skip


# -- principal components --------------------------------------------------------------------------------------------


def measured_components(library, n):
    X = kin40k(int(n), test=10)[0]
    if library == "mercer":
        import mercer as mc
        from mercer import kernels as k

        make = lambda: mc.KernelPCA(10, k.RBF(LENGTH))
        make().fit(X[:1000])
    else:
        from sklearn.decomposition import KernelPCA

        solver = library.split()[1]
        make = lambda: KernelPCA(10, kernel="rbf", gamma=0.5 / LENGTH**2, eigen_solver=solver)
        make().fit(X[:1000])
    forget_the_peak()
    taken, model = seconds(lambda: make().fit(X))
    return taken, resident("VmHWM") / 2**30, np.sort(model.eigenvalues_)[::-1][:10].tolist()


def components():
    n, rows = 10_000, []
    found = {name: in_process(__file__, "components", name, n)
             for name in ("mercer", "scikit-learn auto", "scikit-learn arpack", "scikit-learn randomized")}  # fmt: skip
    exact = np.array(found["scikit-learn auto"][2])
    for name, (taken, memory, values) in found.items():
        off = np.max(np.abs(np.array(values) / exact - 1))
        rows.append([name, f"{taken:.1f}", f"{taken / found['mercer'][0]:.1f}", f"{memory:.2f}", f"{off:.0e}"])
    header = ["library, solver", "seconds", "ratio", "peak of the process, GiB", "eigenvalues off by"]
    return [f"## Kernel PCA, ten components of N = {n:,}, D = 8, RBF", "", *table(header, rows)]


# -- interpolation ---------------------------------------------------------------------------------------------------


def measured_interpolation(library, n, d):
    rng = np.random.default_rng(0)
    n, d = int(n), int(d)
    X, Z = rng.uniform(size=(n, d)), rng.uniform(size=(3000, d))
    y = np.sin(5 * X).prod(axis=1)
    if library == "mercer":
        import mercer as mc

        call = lambda X, y: mc.RBFInterpolator().fit(X, y).predict(Z)
    else:
        from scipy.interpolate import RBFInterpolator

        call = lambda X, y: RBFInterpolator(X, y)(Z)
    call(X, y)
    times = sorted(seconds(lambda: call(X, y)) for _ in range(3))
    return times[1][0], call(X, y).tolist()


def interpolation():
    rows = []
    for d in (2, 3):
        ours, theirs = (in_process(__file__, "interpolation", name, 3000, d) for name in ("mercer", "scipy"))
        off = np.abs(np.subtract(ours[1], theirs[1])).max()
        for library, (taken, _) in {"mercer": ours, "SciPy": theirs}.items():
            rows.append([d, library, f"{taken:.2f}", f"{taken / ours[0]:.1f}", f"{off:.0e}"])
    return ["## Thin-plate interpolation, N = 3000, and 3000 evaluations", "",
            *table(["D", "library", "seconds", "ratio", "largest difference"], rows)]  # fmt: skip


PARTS = {"ridge": ridge, "regression": regression, "components": components, "interpolation": interpolation}
MEASURES = {"ridge": measured_ridge, "regression": measured_regression, "components": measured_components,
            "interpolation": measured_interpolation}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/results/dual.md")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, *arguments = options.measure
        print(json.dumps(MEASURES[what](*arguments)))
        return
    lines = []
    for name in options.only:
        lines += [*PARTS[name](), ""]
        print("\n".join(lines[-12:]), flush=True)
    if options.write:
        keep("dual", "Dual machines, radial basis functions and kernel regression, beside their peers",
             "python benchmarks/dual.py --write", lines)  # fmt: skip


if __name__ == "__main__":
    main()
