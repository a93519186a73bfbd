"""Of rows said to be yes with 80%, are 80% yes? Reliability of three classifiers on rows they have not seen.

Labels are drawn with known probabilities, mostly close to zero or one; six times 60 rows are learned from, and 500 new
ones predicted each time. All three make about as many mistakes. Laplace's approximation is not sure enough: its dots
lie below the diagonal on the left and above it on the right. Expectation propagation is close to honest. Fisher's
discriminant, by the book, takes the spread of the very rows it was fitted to (left-out rows are its default here) and
is too sure: of rows it is nearly certain of, about one in ten is of the other class, which costs its log loss most.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit

import mercer as mc
from mercer import kernels as k
from mercer.core.text import table
from mercer.scores import reliability

kernel = 1.0 * k.RBF(lengthscale=1.0)  # where learning begins
WAYS = {
    "Laplace": mc.GaussianProcessClassifier(kernel, progress=False),
    "expectation propagation": mc.GaussianProcessClassifier(kernel, "ep", progress=False),
    "Fisher's discriminant, by the book": mc.KernelFisherDiscriminant(calibrate=False),
}
predicted: dict = {name: [] for name in ("the true probabilities", *WAYS)}
labels = []
for seed in range(6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(560, 2))
    p = expit(8 * (np.sin(2 * X[:, 0]) + X[:, 0] * X[:, 1]))
    y = (rng.uniform(size=560) < p).astype(int)
    labels.append(y[60:])
    predicted["the true probabilities"].append(np.column_stack([1 - p, p])[60:])
    for name, model in WAYS.items():
        predicted[name].append(model.fit(X[:60], y[:60]).predict_proba(X[60:]))

happened, P = np.concatenate(labels), {name: np.concatenate(each) for name, each in predicted.items()}
found = {name: reliability(happened, each) for name, each in P.items()}
rows = [
    [name, f"{r.error_rate:.1%}", f"{r.log_loss:.3f}", f"{r.calibration_error:.1%}", f"{r.by_chance:.1%}"]
    for name, r in found.items()
]
print(table(["", "error", "log loss", "calibration error", "by chance"], rows))

figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.9), sharey=True, layout="constrained")
for ax, name, color in zip(axes, WAYS, ("tab:orange", "tab:green", "tab:red"), strict=True):
    mc.plot.reliability(happened, P[name], ax=ax, label="held out", color=color)
    ax.set(title=name, xlabel="predicted probability of yes", ylabel="observed frequency" if ax is axes[0] else "")
plt.show()
