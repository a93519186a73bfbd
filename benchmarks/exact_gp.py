"""Exact Gaussian process regression compared: LAPACK's floor, mercer, scikit-learn, GPy, GPyTorch, tinygp.

    python benchmarks/exact_gp.py [--write] [--only evaluation fit cold refit predict memory agreement]

ARD RBF and noise, D = 8, double precision, CPU. Calls are interleaved, each library in its own process; ratios are of
medians. Claims:

- one evaluation of the evidence and its gradient: at most 1.3 times the floor (potrf + potri) for N >= 2000 and 1.6
  times at 1000; at least 2.5 times faster than GPy and 5 times than scikit-learn at 2000; at most 3 matrices of memory
- a whole fit at N = 2000 at least 10 times faster than scikit-learn's, with an evidence at least as high; at N = 100,
  warm, within twice the time of the fastest peer, which makes one climb; in a new process, imports included, within 2.5
  times scikit-learn's time
- refitting at another N nearby compiles nothing
- predicting 100,000 points with standard deviations, N = 2000, within 600 MB, about twice as fast as scikit-learn: N^2
  flops per point at the speed of matrix products allow no more
"""

import argparse
import json
import subprocess
import sys
import time
import warnings

import numpy as np
from machine import forget_the_peak, in_process, interleaved, keep, resident, table

D = 8
SIZES = {100: 7, 500: 7, 1000: 7, 2000: 7, 4000: 2}  # rows: turns
PEERS = ("scikit-learn", "GPy", "GPyTorch", "tinygp")
LENGTHS = np.linspace(2.0, 4.0, D)
VARIANCE, NOISE = 1.3, 0.05


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D))
    f = np.sin(X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.3 * np.cos(2 * X[:, 2])
    y = f + 0.1 * rng.normal(size=n)
    return X, (y - y.mean()) / y.std()


# -- one evaluation, at the same parameters everywhere ---------------------------------------------------------------
# Each gives a function that returns the evidence and its gradient in (ln variance, ln lengthscales, ln noise).


def floor(X, y):
    from scipy.linalg import lapack

    C = np.asfortranarray(VARIANCE * np.exp(-0.5 * _distances(X / LENGTHS)) + NOISE * np.eye(len(y)))
    work = C.copy(order="F")

    def call():
        np.copyto(work, C)  # not counted: see `evaluation`
        start = time.perf_counter()
        L, _ = lapack.dpotrf(work, lower=1, clean=0, overwrite_a=1)
        lapack.dpotri(L, lower=1, overwrite_c=1)
        return time.perf_counter() - start

    return call


def _distances(X):
    squares = (X * X).sum(1)
    return np.maximum(squares[:, None] + squares - 2 * X @ X.T, 0)


def mercer(X, y):
    from mercer import kernels as k
    from mercer.core.coordinates import to_free
    from mercer.solvers.dense import FunctionSpace

    kernel = VARIANCE * k.RBF(LENGTHS)
    theta = np.append(np.asarray(to_free(kernel)), np.log(NOISE))
    value = FunctionSpace(kernel, X, y).__enter__()

    def call():
        found = value(theta)
        return found.value, found.gradient

    return call


def scikit_learn(X, y):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as sk

    kernel = sk.ConstantKernel(VARIANCE) * sk.RBF(LENGTHS) + sk.WhiteKernel(NOISE)
    model = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(X, y)
    theta = model.kernel_.theta
    return lambda: model.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False)


def gpy(X, y):
    import GPy

    kernel = GPy.kern.RBF(D, variance=VARIANCE, lengthscale=LENGTHS, ARD=True)
    model = GPy.models.GPRegression(X, y[:, None], kernel, noise_var=NOISE)
    natural = np.concatenate([[VARIANCE], LENGTHS, [NOISE]])

    def call():
        model.param_array[:] = natural
        model._trigger_params_changed()  # nothing is remembered of the last evaluation
        return float(model.log_likelihood()), np.array(model.gradient) * natural

    return call


def gpytorch_model(A, t):
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(A, t, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=D))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    return Model(likelihood), likelihood


def gpytorch(X, y):
    import gpytorch
    import torch

    torch.set_default_dtype(torch.float64)
    A, t = torch.from_numpy(X), torch.from_numpy(y)

    model, likelihood = gpytorch_model(A, t)
    model.covar_module.outputscale, model.covar_module.base_kernel.lengthscale = VARIANCE, torch.from_numpy(LENGTHS)
    likelihood.noise = NOISE
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    raw = [model.covar_module.raw_outputscale, model.covar_module.base_kernel.raw_lengthscale, likelihood.raw_noise]
    natural = np.concatenate([[VARIANCE], LENGTHS, [NOISE]])

    def call():
        for parameter in model.parameters():
            parameter.grad = None
        with gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.max_cholesky_size(10**6):
            value = objective(model(A), t) * len(y)
            value.backward()
        slope = np.concatenate([p.grad.numpy().ravel() for p in raw])
        softplus = 1 - np.exp(-np.concatenate([[VARIANCE], LENGTHS, [NOISE - 1e-4]]))  # their map from raw values
        return float(value), slope / softplus * natural

    return call


def tinygp(X, y):
    import jax
    import jax.numpy as jnp
    from tinygp import GaussianProcess, kernels, transforms

    def evidence(theta, A, t):
        scaled = transforms.Linear(jnp.exp(-theta[1:-1]), kernels.ExpSquared())
        process = GaussianProcess(jnp.exp(theta[0]) * scaled, A, diag=jnp.exp(theta[-1]))
        return process.log_probability(t)

    theta = np.log(np.concatenate([[VARIANCE], LENGTHS, [NOISE]]))
    program = jax.jit(jax.value_and_grad(evidence))

    def call():
        with jax.enable_x64(True):
            value, slope = program(jnp.asarray(theta), jnp.asarray(X), jnp.asarray(y))
            return float(value), np.asarray(slope)

    return call


LIBRARIES = {"mercer": mercer, "scikit-learn": scikit_learn, "GPy": gpy, "GPyTorch": gpytorch, "tinygp": tinygp}


class Worker:
    """A library in a process of its own, evaluating when asked: threads that others leave spinning are not there."""

    def __init__(self, name, n):
        command = [sys.executable, "-W", "ignore", __file__, "--serve", name, str(n)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer = json.loads(self.process.stdout.readline())

    def __call__(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve(name, n):
    X, y = data(n)
    call = floor(X, y) if name == "floor" else LIBRARIES[name](X, y)
    answer = call()
    print(json.dumps([0, []] if name == "floor" else [float(answer[0]), np.asarray(answer[1]).tolist()]), flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(10 if n <= 1000 else 3):  # the first of a turn wakes the cores up, and does not count
            start = time.perf_counter()
            found = call()
            times.append(found if name == "floor" else time.perf_counter() - start)
        print(json.dumps(times[1:]), flush=True)


def evaluation():
    rows, differences = [], {}
    names = ("floor", *LIBRARIES)
    for n, rounds in SIZES.items():
        workers = {name: Worker(name, n) for name in names}
        value, slope = workers["mercer"].answer
        for name in PEERS:
            theirs = workers[name].answer
            apart = abs(theirs[0] - value) / n, float(np.abs(np.subtract(theirs[1], slope)).max()) / n
            differences[name] = tuple(map(max, differences.get(name, (0.0, 0.0)), apart))
        times = {name: [] for name in names}
        for _ in range(rounds):
            for name, worker in workers.items():
                times[name] += worker()
        for worker in workers.values():
            worker.close()
        found = {name: float(np.median(t)) for name, t in times.items()}
        rows.append(
            [n, *(f"{1e3 * found[name]:.1f}" for name in names), f"{found['mercer'] / found['floor']:.2f}",
             *(f"{found[name] / found['mercer']:.1f}" for name in PEERS)]
        )  # fmt: skip
        print(rows[-1], flush=True)
    header = ["N", *(f"{name} ms" for name in names), "mercer / floor", *(f"{name} / mercer" for name in PEERS)]
    agreement = ", ".join(f"{name} {a:.0e} and {b:.0e}" for name, (a, b) in differences.items())
    return ["## One evaluation of the evidence and its gradient", "", *table(header, rows), "",
            f"Largest difference from mercer's, per row of data, of evidence and gradient: {agreement}."]  # fmt: skip


# -- whole fits --------------------------------------------------------------------------------------------------------


def fit_mercer(X, y):
    import mercer as mc
    from mercer import kernels as k

    return mc.GaussianProcessRegressor(1.0 * k.RBF(np.ones(D)), progress=False).fit(X, y).log_marginal_likelihood_


def fit_scikit_learn(X, y):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as sk

    kernel = sk.ConstantKernel() * sk.RBF(np.ones(D)) + sk.WhiteKernel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianProcessRegressor(kernel, alpha=0.0, normalize_y=True).fit(X, y).log_marginal_likelihood_value_


def fit_gpy(X, y):
    import GPy

    model = GPy.models.GPRegression(X, y[:, None], GPy.kern.RBF(D, ARD=True))
    model.optimize(messages=False)
    return float(model.log_likelihood())


def fit_gpytorch(X, y):
    """As their tutorial does: Adam, here until a hundred steps."""
    import gpytorch
    import torch

    torch.set_default_dtype(torch.float64)
    A, t = torch.from_numpy(X), torch.from_numpy(y)

    model, likelihood = gpytorch_model(A, t)
    model.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    value = None
    with gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.max_cholesky_size(10**6):
        for _ in range(100):
            optimizer.zero_grad()
            value = -objective(model(A), t)
            value.backward()
            optimizer.step()
    return -float(value) * len(y)


_TINYGP: dict = {}


def fit_tinygp(X, y):
    """tinygp leaves optimising to its user: SciPy's L-BFGS on its compiled gradient, compiled once."""
    import jax
    import jax.numpy as jnp
    from scipy.optimize import minimize
    from tinygp import GaussianProcess, kernels, transforms

    def evidence(theta, A, t):
        scaled = transforms.Linear(jnp.exp(-theta[1:-1]), kernels.ExpSquared())
        return -GaussianProcess(jnp.exp(theta[0]) * scaled, A, diag=jnp.exp(theta[-1])).log_probability(t)

    program = _TINYGP.setdefault("program", jax.jit(jax.value_and_grad(evidence)))
    with jax.enable_x64(True):
        A, t = jnp.asarray(X), jnp.asarray(y)

        def objective(theta):
            value, slope = program(jnp.asarray(theta), A, t)
            return float(value), np.asarray(slope)

        return -minimize(objective, np.zeros(D + 2), jac=True, method="L-BFGS-B").fun


FITS = {"mercer": fit_mercer, "scikit-learn": fit_scikit_learn, "GPy": fit_gpy, "GPyTorch": fit_gpytorch,
        "tinygp": fit_tinygp}  # fmt: skip


def fit():
    lines = ["## Whole fits, warm", ""]
    rows = []
    for n, names, rounds in ((100, tuple(FITS), 7), (2000, ("mercer", "scikit-learn"), 1)):
        X, y = data(n)
        found = {name: FITS[name](X, y) for name in names}
        if rounds == 1:  # a minute each: mercer three times, the other once, already warm
            times = {"mercer": float(np.median([_seconds(fit_mercer, X, y) for _ in range(3)]))}
            times |= {name: _seconds(FITS[name], X, y) for name in names[1:]}
        else:
            times = interleaved({name: lambda f=FITS[name], X=X, y=y: f(X, y) for name in names}, rounds)
        for name in names:
            rows.append([n, name, f"{times[name]:.3f}", f"{times[name] / times['mercer']:.1f}", f"{found[name]:.3f}"])
            print(rows[-1], flush=True)
    return [*lines, *table(["N", "library", "seconds", "times mercer's", "log evidence reached"], rows)]


def _seconds(call, *arguments):
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


COLD = """
import sys, json, time
sys.path.insert(0, {folder!r})
import exact_gp
exact_gp.{function}(*exact_gp.data(100))
"""


def cold():
    """A new process, imports included, until the fit to 100 rows is done."""
    found = {}
    names = {"mercer": "fit_mercer", "scikit-learn": "fit_scikit_learn"}
    times = {name: [] for name in names}
    for _ in range(8):
        for name, function in names.items():
            program = COLD.format(folder=str(__import__("pathlib").Path(__file__).parent), function=function)
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            times[name].append(time.perf_counter() - start)
    found = {name: float(np.median(t[1:])) for name, t in times.items()}
    rows = [[name, f"{seconds:.2f}", f"{seconds / found['scikit-learn']:.2f}"] for name, seconds in found.items()]
    print(rows, flush=True)
    return [
        "## A new process, N = 100, imports included",
        "",
        *table(["library", "seconds", "times scikit-learn's"], rows),
    ]


def measured_compilations():
    """Programs compiled by a first fit, and by fits at other numbers of rows nearby."""
    import jax

    counts = [0]

    def listen(event, _duration, **_):
        counts[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    rows = []
    for n in (1500, 1490, 1523, 1400):
        before = counts[0]
        fit_mercer(*data(n))
        rows.append([n, counts[0] - before])
    return rows


def refit():
    rows = in_process(__file__, "compilations")
    print(rows, flush=True)
    return ["## Programs compiled by fits one after the other", "", *table(["N", "compiled"], rows)]


# -- prediction and memory ---------------------------------------------------------------------------------------------


def fixed_model(library, n=2000):
    X, y = data(n)
    if library == "mercer":
        import mercer as mc
        from mercer import kernels as k

        kernel = VARIANCE * k.RBF(LENGTHS)
        return mc.GaussianProcessRegressor(kernel, noise=NOISE, learning=None, normalize=False).fit(X, y)
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as sk

    kernel = sk.ConstantKernel(VARIANCE) * sk.RBF(LENGTHS) + sk.WhiteKernel(NOISE)
    return GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y)


def measured_prediction(library, points):
    model = fixed_model(library)
    Z = np.random.default_rng(1).normal(size=(points, D))
    model.predict(Z[:4000], return_std=True)  # imports and compilation are not the prediction's
    forget_the_peak()
    before = resident("VmRSS")
    start = time.perf_counter()
    mean, deviation = model.predict(Z, return_std=True)
    seconds = time.perf_counter() - start
    return seconds, (resident("VmHWM") - before) / 2**20, resident("VmHWM") / 2**20, mean[:50], deviation[:50]


def predict():
    rows, answers = [], {}
    for library in ("mercer", "scikit-learn"):
        runs = [in_process(__file__, "prediction", library, 100_000) for _ in range(3)]
        seconds = float(np.median([run[0] for run in runs]))
        answers[library] = runs[0]
        rows.append([library, f"{seconds:.1f}", f"{runs[0][1]:.0f}", f"{runs[0][2]:.0f}"])
        print(rows[-1], flush=True)
    ratio = float(rows[1][1]) / float(rows[0][1])
    alone = _arithmetic(100_000)
    rows.append(["N^2 flops a point, alone", f"{alone:.1f}", "", ""])
    difference = max(np.abs(np.subtract(answers["mercer"][i], answers["scikit-learn"][i])).max() for i in (3, 4))
    return ["## Prediction with standard deviation: N = 2000, 100,000 points", "",
            *table(["library", "seconds", "memory above what was held, MB", "whole process, MB"], rows), "",
            f"scikit-learn / mercer: {ratio:.1f}. Largest difference: {difference:.0e}."]  # fmt: skip


def _arithmetic(points, n=2000, columns=4032):
    """Seconds that the triangular products alone take: L^-1 k for every point."""
    from scipy.linalg import blas

    rng = np.random.default_rng(0)
    L, K = np.asfortranarray(np.tril(rng.normal(size=(n, n)))), np.asfortranarray(rng.normal(size=(n, columns)))
    times = [_seconds(lambda: blas.dtrmm(1.0, L, K, lower=1)) for _ in range(7)]
    return float(np.median(times)) * points / columns


def measured_evaluation(n):
    X, y = data(n)
    mercer(*data(600))()
    forget_the_peak()
    before = resident("VmRSS")
    mercer(X, y)()
    return (resident("VmHWM") - before) / (8 * n * n)


def memory():
    rows = [[n, f"{in_process(__file__, 'evaluation', n):.2f}"] for n in (2000, 4000, 8000)]
    print(rows, flush=True)
    return ["## Memory of an evaluation, in matrices of N x N", "", *table(["N", "matrices"], rows)]


def agreement():
    """Random problems: evidence, gradient and predictions beside scikit-learn's and GPy's."""
    import GPy
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as sk

    import mercer as mc
    from mercer import kernels as k

    worst = {}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(20, 120))
        X, y = data(n, seed)
        lengths, variance, noise = rng.uniform(1, 5, D), rng.uniform(0.5, 2), rng.uniform(0.01, 0.5)
        Z = rng.normal(size=(30, D))
        ours = mc.GaussianProcessRegressor(variance * k.RBF(lengths), normalize=False, learning=None, noise=noise)
        ours.fit(X, y)
        free = mc.GaussianProcessRegressor(variance * k.RBF(lengths) + k.White(noise), normalize=False, learning=None)
        value, slope = free.fit(X, y).log_marginal_likelihood(eval_gradient=True)
        theirs = GaussianProcessRegressor(
            sk.ConstantKernel(variance) * sk.RBF(lengths) + sk.WhiteKernel(noise), alpha=0.0, optimizer=None
        ).fit(X, y)
        their_value, their_slope = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
        kernel = GPy.kern.RBF(D, variance=variance, lengthscale=lengths, ARD=True)
        other = GPy.models.GPRegression(X, y[:, None], kernel, noise_var=noise - 1e-8)  # they add 1e-8 to it
        natural = np.concatenate([[variance], lengths, [noise]])
        mean, deviation = ours.predict(Z, return_std=True)
        their_mean, their_deviation = theirs.predict(Z, return_std=True)
        other_mean, other_variance = other.predict(Z)
        found = {
            ("scikit-learn", "evidence"): abs(value - their_value),
            ("scikit-learn", "gradient"): np.abs(slope - their_slope).max(),
            ("scikit-learn", "mean"): np.abs(mean - their_mean).max(),
            ("scikit-learn", "deviation"): np.abs(deviation - their_deviation).max(),
            ("GPy", "evidence"): abs(value - float(other.log_likelihood())),
            ("GPy", "gradient"): np.abs(slope - np.array(other.gradient) * natural).max(),
            ("GPy", "mean"): np.abs(mean - other_mean[:, 0]).max(),
            ("GPy", "deviation"): np.abs(deviation - np.sqrt(other_variance[:, 0])).max(),
        }
        worst = {key: max(worst.get(key, 0.0), float(difference)) for key, difference in found.items()}
    rows = [[library, what, f"{difference:.0e}"] for (library, what), difference in worst.items()]
    print(rows, flush=True)
    return ["## Agreement on 20 random problems", "", *table(["library", "what", "largest difference"], rows)]


PARTS = {"evaluation": evaluation, "fit": fit, "cold": cold, "refit": refit, "predict": predict, "memory": memory,
         "agreement": agreement}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/results/exact_gp.md")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
        return
    if options.measure:
        what, *arguments = options.measure
        measure = {
            "evaluation": lambda n: measured_evaluation(int(n)),
            "prediction": lambda library, points: measured_prediction(library, int(points)),
            "compilations": measured_compilations,
        }
        found = measure[what](*arguments)
        print(json.dumps(found, default=lambda array: array.tolist()))
        return
    lines = []
    for name in options.only:
        lines += [*PARTS[name](), ""]
    print("\n".join(lines))
    if options.write:
        keep("exact_gp", "Exact Gaussian process regression, ARD RBF and noise, D = 8, double precision",
             "python benchmarks/exact_gp.py --write", lines)  # fmt: skip


if __name__ == "__main__":
    main()
