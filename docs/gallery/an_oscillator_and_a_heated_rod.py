"""Differential equations as observations: a damped oscillator, and a rod that cools.

That a function solves a linear differential equation is an observation like any other, of a linear operator of it, with
the value zero, at as many points as one likes. Left: an oscillator was measured twelve times until t = 3, with noise.
A process that knows nothing of mechanics (grey) is lost from there on; one that was told x'' + 0.4 x' + 4 x = 0 (red)
goes on, with error bars. The dashed line is a numerical solution from the true initial state. Right: the temperature of
a rod, measured with noise at the start alone, held at zero at its ends; the heat equation does the rest.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.integrate import solve_ivp

import mercer as mc
from mercer import kernels as k
from mercer.operators import Derivative, Value

rng = np.random.default_rng(2)
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")

# -- an ordinary differential equation
equation = Derivative(0, order=2) + 0.4 * Derivative(0) + 4.0 * Value()
solved = solve_ivp(lambda t, s: [s[1], -4.0 * s[0] - 0.4 * s[1]], (0, 8), [1.0, 0.0], dense_output=True, rtol=1e-8).sol
t = np.linspace(0, 8, 200)
seen = np.sort(rng.uniform(0, 3, 12))
y = solved(seen)[0] + 0.1 * rng.normal(size=12)

f = mc.GP(k.RBF(0.8))
plain = f.condition(seen, y, 0.01)
told = f.condition(np.linspace(0, 8, 50), np.zeros(50), 1e-6, operator=equation).condition(seen, y, 0.01)
for process, color, label in ((plain, "0.6", "measurements alone"), (told, "tab:red", "and the equation")):
    mean, deviation = process.mean(t), np.sqrt(process.variance(t))
    left.fill_between(t, mean - 1.96 * deviation, mean + 1.96 * deviation, color=color, alpha=0.2, lw=0)
    left.plot(t, mean, color=color, label=label)
left.plot(t, solved(t)[0], "k--", lw=1, label="numerical solution")
left.plot(seen, y, "o", color="tab:blue", ms=4)
left.set(xlabel="$t$", ylabel="$x(t)$", ylim=(-2.2, 2.2), title="a damped oscillator")
left.legend(fontsize=8)

# -- a partial differential equation: u_t = 0.02 u_xx
heat = Derivative(0) - 0.02 * Derivative(1, order=2)
x = np.linspace(0, 1, 15)
T, S = np.meshgrid(np.linspace(0, 2, 10), np.linspace(0, 1, 12))
rod = mc.GP(k.RBF(0.8).on(0) * k.RBF(0.2).on(1))
rod = rod.condition(np.column_stack([T.ravel(), S.ravel()]), np.zeros(T.size), 1e-6, operator=heat)
ends = np.column_stack([np.repeat(np.linspace(0, 2, 8), 2), np.tile([0.0, 1.0], 8)])
rod = rod.condition(ends, np.zeros(16), 1e-6)
start = np.sin(np.pi * x) + 0.5 * np.sin(3 * np.pi * x) + 0.05 * rng.normal(size=15)
rod = rod.condition(np.column_stack([np.zeros(15), x]), start, 0.05**2)

fine = np.linspace(0, 1, 100)
for i, time in enumerate((0.0, 0.5, 2.0)):
    color = plt.get_cmap("autumn")(0.4 * i)
    mean, variance = rod.moments(np.column_stack([np.full(100, time), fine]))
    right.fill_between(
        fine, mean - 1.96 * np.sqrt(variance), mean + 1.96 * np.sqrt(variance), color=color, alpha=0.25, lw=0
    )
    right.plot(fine, mean, color=color, label=f"$t = {time:g}$")
    modes = ((1, 1.0), (3, 0.5))
    exact = sum(a * np.exp(-0.02 * (j * np.pi) ** 2 * time) * np.sin(j * np.pi * fine) for j, a in modes)
    right.plot(fine, exact, "k--", lw=1)
right.plot(x, start, "o", color="tab:blue", ms=4)
right.set(xlabel="$x$", ylabel="temperature", title="a rod that cools")
right.legend(fontsize=8)
plt.show()
