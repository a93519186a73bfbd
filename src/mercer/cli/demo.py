"""The demonstration: what several kernels say about functions."""

from pathlib import Path

import numpy as np

from mercer import kernels as k
from mercer.core.text import table
from mercer.gp.process import GP
from mercer.kernels.check import check_kernel
from mercer.plot import gram, samples

KERNELS = {
    "smooth": k.RBF(lengthscale=0.6),
    "rough": k.Exponential(lengthscale=1.0),
    "in between": k.Matern(lengthscale=0.8, nu=1.5),
    "repeating": k.Periodic(period=1.5, lengthscale=0.8),
    "growing waves": k.Linear() * k.Periodic(period=1.0, lengthscale=1.0) + k.RBF(lengthscale=2.0),
}

TITLES = {
    "smooth": "RBF",
    "rough": "Exponential",
    "in between": "Matern 3/2",
    "repeating": "Periodic",
    "growing waves": "Linear * Periodic + RBF",
}


def run_demo(output: Path, seed: int = 0) -> str:
    """Write the picture into ``output``; return what to show in the terminal."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x = np.linspace(-3, 3, 300)
    figure, axes = plt.subplots(2, len(KERNELS), figsize=(3 * len(KERNELS), 5.4), layout="constrained")
    rows = []
    for i, ((word, kernel), (top, bottom)) in enumerate(zip(KERNELS.items(), axes.T, strict=True)):
        samples(GP(kernel), x, size=4, seed=seed + i, ax=top).set_title(f"{word}\n{TITLES[word]}")
        top.set(xlabel="", ylabel="")
        gram(kernel, x, ax=bottom)
        report = check_kernel(kernel, x)
        rows.append([word, str(kernel.validity.proof), "yes" if report.passed else "no"])
    axes[0, 0].set_ylabel("functions drawn")
    axes[1, 0].set_ylabel("Gram matrix")
    output.mkdir(parents=True, exist_ok=True)
    picture = output / "kernels.png"
    figure.savefig(picture, dpi=110)
    plt.close(figure)
    return (
        "Functions drawn from Gaussian processes, and why each kernel is valid (rules of PRML chapter 6):\n\n"
        + table(["functions", "valid by", "no negative eigenvalue on 300 points"], rows)
        + f"\n\nThe last one in full:\n\n{KERNELS['growing waves'].validity}\n\nPicture: {picture}"
    )
