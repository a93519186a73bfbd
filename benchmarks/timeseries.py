"""Long series: the recursion over states beside celerite2 and tinygp.

    python benchmarks/timeseries.py [--write] [--small]

A million irregular times, one, two or four Matern-3/2 terms and noise. `value` is the evidence at given parameters:
celerite2's compiled code takes Matern-3/2 as a limit of its own terms (eps = 0.01), so values differ a little.
`value and gradient` is compared with tinygp's quasiseparable solver, compiled by JAX in double precision. Calls
alternate in one process; medians. Then, each in its own process: ten million points with a forecast in the same call
(fixed parameters), and a fit of all parameters to a million, with peak memory above that of the data.

Claims: a value takes at most 3 x celerite2's time, with its gradient at most a quarter of tinygp's, and memory is
proportional to n.
"""

import argparse
import json
import time

import numpy as np
from machine import forget_the_peak, in_process, interleaved, keep, resident, table

TERMS = (1, 2, 4)
NOISE = 0.01
ROUNDS = 3
NEW_TIMES = 100_000


def data(n):
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, n / 10, n))
    return t, np.sin(t) + 0.1 * rng.normal(size=n)


def kernel(count):
    from mercer import kernels as k

    terms = [1.0 * k.Matern(1.0 + i, nu=1.5) for i in range(count)]
    return sum(terms[1:], terms[0])


def own_evidence(count, t, y):
    from mercer.core.coordinates import to_free
    from mercer.solvers import StateSpace

    evidence = StateSpace().evidence(kernel(count), t[:, None], y)
    return evidence, np.append(np.asarray(to_free(kernel(count))), np.log(NOISE))


def celerite(count, t, y):
    import celerite2

    terms = [celerite2.terms.Matern32Term(sigma=1.0, rho=1.0 + i) for i in range(count)]
    process = celerite2.GaussianProcess(sum(terms[1:], terms[0]), mean=0.0)
    diagonal = np.full(len(t), NOISE)

    def value():
        process.compute(t, diag=diagonal, check_sorted=False)
        return process.log_likelihood(y)

    return value


def quasiseparable(count, t, y):
    import jax
    import jax.numpy as jnp
    import tinygp

    jax.config.update("jax_enable_x64", True)

    def evidence(theta):
        terms = [
            jnp.exp(theta[2 * i]) * tinygp.kernels.quasisep.Matern32(jnp.exp(theta[2 * i + 1])) for i in range(count)
        ]
        process = tinygp.GaussianProcess(sum(terms[1:], terms[0]), t, diag=jnp.exp(theta[-1]), assume_sorted=True)
        return process.log_probability(y)

    theta = jnp.append(jnp.ravel(jnp.array([[0.0, np.log(1.0 + i)] for i in range(count)])), np.log(NOISE))
    program = jax.jit(jax.value_and_grad(evidence))
    return lambda: jax.block_until_ready(program(theta))


def values(n, rounds):
    t, y = data(n)
    for count in TERMS:
        evidence, theta = own_evidence(count, t, y)
        calls = {
            "mercer": lambda e=evidence, x=theta: e(x, gradient=False),
            "celerite2": celerite(count, t, y),
            "mercer, gradient": lambda e=evidence, x=theta: e(x),
            "tinygp, gradient": quasiseparable(count, t, y),
        }
        with evidence:
            yield count, interleaved(calls, rounds)


def large(n):
    """Seconds of a fit with given parameters and a forecast, and peak bytes above those of the data."""
    import mercer as mc

    settings = {"noise": NOISE, "learning": None, "normalize": False, "progress": False, "mean": 0.0}
    few, ahead = data(2000), np.arange(1.0, 101.0)[:, None]
    mc.GaussianProcessRegressor(kernel(1), solver="statespace", **settings).fit(few[0][:, None], few[1])  # compiled
    t, y = data(n)
    forget_the_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    model = mc.GaussianProcessRegressor(kernel(1), **settings).fit(t[:, None], y)
    mean, _ = model.predict(t[-1] + ahead, return_std=True)
    assert np.isfinite(mean).all()
    assert model.plan_.method == "statespace"
    return [time.perf_counter() - start, max(resident("VmHWM") - before, 0)]


def fitted(n):
    """Seconds and peak bytes of a fit that learns, its evaluations, and seconds of predictions among the rows."""
    import mercer as mc

    t, y = data(n)
    forget_the_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    model = mc.GaussianProcessRegressor(kernel(1), progress=False).fit(t[:, None], y)
    seconds, peak = time.perf_counter() - start, resident("VmHWM") - before
    Z = np.linspace(t[0], t[-1], NEW_TIMES)[:, None]
    start = time.perf_counter()
    model.predict(Z, return_std=True)
    return [seconds, max(peak, 0), model.n_evaluations_, time.perf_counter() - start]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--small", action="store_true", help="a hundredth of the points, to try the script")
    parser.add_argument("--measure", nargs=2)
    asked = parser.parse_args()
    if asked.measure:
        what, n = asked.measure
        print(json.dumps({"large": large, "fitted": fitted}[what](int(n))))
        return
    n = 10_000 if asked.small else 1_000_000
    rows = []
    for count, seconds in values(n, ROUNDS):
        own, peer, slope, other = (1e3 * seconds[name] for name in seconds)
        rows.append(
            [
                count,
                f"{own:.0f}",
                f"{peer:.0f}",
                f"{own / peer:.2f}",
                f"{slope:.0f}",
                f"{other:.0f}",
                f"{other / slope:.2f}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    header = ["terms", "value, ms", "celerite2, ms", "ratio", "with gradient, ms", "tinygp, ms", "times faster"]
    lines = [f"{n:,} points.", "", *table(header, rows), ""]
    rows = []
    for size in (n, 10 * n):
        seconds, peak = in_process(__file__, "large", size)
        rows.append([f"{size:,}", f"{seconds:.2f}", f"{peak / 1e6:,.0f}", f"{peak / size:.0f}"])
    lines += [*table(["points, conditioned and forecast", "seconds", "peak, MB", "bytes a point"], rows), ""]
    seconds, peak, evaluations, predicting = in_process(__file__, "fitted", n)
    lines.append(
        f"A fit of {n:,} points, compilation included: {seconds:.1f} s, {evaluations} evaluations (on parts "
        f"of the rows first), {peak / 1e6:,.0f} MB above the data; "
        f"{NEW_TIMES:,} predictions among them {predicting:.2f} s."
    )
    print("\n".join(lines))
    if asked.write:
        keep("timeseries", "Long series", "python benchmarks/timeseries.py --write", lines)


if __name__ == "__main__":
    main()
