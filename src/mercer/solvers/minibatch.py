"""Stochastic variational inference: parameters are learned from batches of the rows, through the values at centres."""

import dataclasses
from typing import Any

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, Noise
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.solvers.base import GAUSSIAN, Cost, Evidence, GivenNoise, Solver, register, search_stages
from mercer.solvers.centers import check_centers, choose_centers
from mercer.solvers.lowrank import LowRank
from mercer.solvers.lowrank_posterior import LowRankPosterior

FIRST_ROWS = 1200  # at random, that kernel and parameters are first learned from, exactly
MIN_STEPS, MAX_STEPS = 100, 600  # of learning, unless epochs are given: fewer where there are more functions
FINAL_PASSES = 6  # over all rows, at the parameters learned


@register
@dataclasses.dataclass(frozen=True)
class Minibatch(Solver):
    """Values of the function at M centres, with natural gradients from batches of rows, and Adam for the parameters
    (Hensman, Fusi and Lawrence 2013; Salimbeni, Eleftheriadis and Hensman 2018); for labels of two or more classes,
    other likelihoods of numbers, and Gaussian noise.

    Kernel and parameters are first learned exactly from 1,200 rows at random, or labels from some hundred. The
    distribution at the parameters learned then comes from passes over all rows, one for Gaussian noise: it is the best
    there is for these centres, so that the bound is that of `LowRank` with "variational".

    Parameters
    ----------
    n_centers : number of centres M. A step is b M^2 flops for a batch of b rows and each function.
    batch : rows of a batch.
    epochs : how often each row is in a batch; None: for 600 steps, or fewer with several classes, and at least once.
    centers : how centres are chosen, as for `LowRank`, or the centres themselves. None: "kmeans" for rows of numbers,
        which leaves less of the prior variance where inputs are many, else "greedy".
    """

    n_centers: int = 500
    batch: int = 1000
    epochs: int | None = None
    centers: Any = None

    name = "minibatch"
    summary = "approximate, stochastic variational inference with centres, from batches of the rows"
    parts = (LowRankPosterior,)
    exact = False
    bound = True
    growth = 1
    in_batches = True
    auto_loss = 0.2

    def __post_init__(self) -> None:
        for name in ("n_centers", "batch", "epochs"):
            value = getattr(self, name)
            if value is None and name == "epochs":
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ParameterError(f"{name} must be a positive integer; got {value!r}.")
        if self.centers is not None:
            check_centers(self.centers)

    def __hash__(self) -> int:
        return hash((self.n_centers, self.batch, self.epochs, str(self.centers)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Minibatch):
            return NotImplemented
        own, theirs = ((s.n_centers, s.batch, s.epochs, str(s.centers)) for s in (self, other))
        return own == theirs

    def lowrank(self, kernel: Kernel, X: Inputs) -> LowRank:
        """What answers for Gaussian noise on these rows."""
        if self.centers is not None:
            return LowRank(self.n_centers, self.centers)
        means = LowRank(self.n_centers, "kmeans")
        return means if means.refusal(kernel, X, CommonNoise(1.0)) is None else LowRank(self.n_centers, "greedy")

    def steps(self, n: int, functions: int = 1) -> int:
        """Number of stochastic steps."""
        per_epoch = max(1, n // min(self.batch, n))
        if self.epochs is not None:
            return int(self.epochs * per_epoch)
        return max(per_epoch, MIN_STEPS, 2 * MAX_STEPS // (functions + 1))

    def serves(self, task: str) -> bool:
        return task != GAUSSIAN  # where the bound is known in closed form, `LowRank` needs no steps

    def stages(self, n: int) -> list[int]:
        return [rows for rows in search_stages(n) if rows <= FIRST_ROWS]

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        if split_white(kernel)[0] is None:
            return "needs a kernel of more than white noise"
        return self.lowrank(kernel, X).refusal(kernel, X, noise)

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        n = count_rows(X)
        m, b = min(self.n_centers, n), min(self.batch, n)
        steps = self.steps(n)
        total = steps * (b * (8.0 * m**2 + 4e3 * m) + 3.0 * m**3) + FINAL_PASSES * n * (4.0 * m**2 + 1e3 * m)
        kept = min(8.0 * n * m, machine.keepable())
        memory = 8.0 * (8 * m**2 + 6 * m * b) + kept + (1 << 28)
        why = f"an exact fit of {n:,} rows is out of reach; {m:,} centres and batches of {b:,} rows stand for them"
        return Cost(memory, total / 25, (n, m), why)

    def approximation(self, kernel: Kernel) -> str | None:
        return (
            f"stands {self.n_centers:,} centres for all rows; numerics_['left'] is the share of the prior variance "
            "that they leave, and the evidence is a lower bound"
        )

    def choose(self, kernel: Kernel, rows: gram.Gram, y: np.ndarray, noise: np.ndarray) -> Inputs:
        """Centres for a kernel with these parameters."""
        return choose_centers(self.lowrank(kernel, rows).centers, self.n_centers, kernel, rows, y, noise)

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> Evidence:
        return self.lowrank(kernel, X).evidence(kernel, X, y, noise, mean)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> LowRankPosterior:
        return self.lowrank(kernel, X).posterior(kernel, X, y, noise, mean, allow_invalid)


def centres_kept(solver: Minibatch, centers: Inputs) -> Minibatch:
    """With these centres in place of their choice."""
    return dataclasses.replace(solver, centers=centers)
