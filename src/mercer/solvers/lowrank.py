"""Approximate solutions for any kernel and many rows: the process as weights of a few centres."""

import dataclasses
from typing import Any, Self

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, as_matrix, count_rows
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.kernels import evaluate
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.solvers.auto import Budget, fit_seconds
from mercer.solvers.base import Cost, Evidence, GivenNoise, Solver, register
from mercer.solvers.centers import check_centers, choose_centers
from mercer.solvers.dense import FunctionSpace
from mercer.solvers.lowrank_evidence import LowRankEvidence
from mercer.solvers.lowrank_posterior import LowRankPosterior

METHODS = ("variational", "fitc", "dtc", "nystrom")
AUTO_CENTERS = (2000, 1000, 500, 250, 100)  # what "auto" takes the first of that fits
LOSS_AT_500_CENTERS = 0.5  # `Solver.loss`
EXACT_RATIO = 2  # rows for each centre up to which an exact evaluation takes no longer


@register
@dataclasses.dataclass(frozen=True)
class LowRank(Solver):
    """Weights of M centres: n M^2 flops and M^2 of memory; rows pass in tiles, from memory or from files.

    Parameters
    ----------
    n_centers : number of centres M, unless these are given. With all rows as centres, answers are exact; up to twice as
        many rows as centres are all taken, since that is no slower.
    centers : how they are chosen: "greedy", rows that have most variance given the others (pivoted Cholesky); "kmeans",
        means of rows near one another; "forward", the rows that raise the bound most; "random" rows; or the centres
        themselves.
    method : "variational", whose evidence is a lower bound (Titsias 2009); "fitc", with noise that makes up
        for what the centres leave (Snelson and Ghahramani 2006); "dtc" (Seeger et al. 2003), the variational one
        without what makes it a bound; "nystrom" (Williams and Seeger 2001), where the prior itself is of low rank, so
        that intervals are too narrow far from the centres; with all rows as centres it is exact at these rows only.
    optimize : whether to move the centres to where the evidence is largest; they start from those chosen. For inputs of
        numbers.
    learning_rows : rows, at random, that parameters are learned from if there are more; the posterior is that of all.
    """

    n_centers: int = 500
    centers: Any = "greedy"
    method: str = "variational"
    optimize: bool = False
    learning_rows: int = 50_000

    name = "lowrank"
    summary = "approximate, through the weights of a few centres (inducing points)"
    parts = (LowRankPosterior,)
    exact = False
    growth = 1
    streams_rows = True

    def __post_init__(self) -> None:
        for name in ("n_centers", "learning_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ParameterError(f"{name} must be a positive integer; got {value!r}.")
        if self.method not in METHODS:
            names = ", ".join(map(repr, METHODS))
            raise ParameterError(f"method must be one of {names}; got {self.method!r}.")
        if not isinstance(self.optimize, bool | np.bool_):
            raise ParameterError(f"optimize must be True or False; got {self.optimize!r}.")
        check_centers(self.centers)

    @property
    def bound(self) -> bool:  # type: ignore[override]
        """Whether its evidence is a lower bound."""
        return self.method == "variational"

    def __hash__(self) -> int:
        return hash(
            (
                self.n_centers,
                self.method,
                self.optimize,
                self.learning_rows,
                isinstance(self.centers, str) and self.centers,
            )
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LowRank):
            return NotImplemented
        own, theirs = ((s.n_centers, s.method, s.optimize, s.learning_rows) for s in (self, other))
        named = isinstance(self.centers, str) or isinstance(other.centers, str)
        same = self.centers is other.centers or (
            self.centers == other.centers
            if named and isinstance(self.centers, str) == isinstance(other.centers, str)
            else not named and np.array_equal(self.centers, other.centers)
        )
        return own == theirs and same

    def count(self, n: int) -> int:
        """Number of centres for n rows."""
        if not isinstance(self.centers, str):
            return count_rows(self.centers)
        return n if self._takes_all(n) else self.n_centers

    def _takes_all(self, n: int) -> bool:
        return isinstance(self.centers, str) and n <= EXACT_RATIO * self.n_centers

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        latent, white = split_white(kernel)
        if latent is None:
            return "needs a kernel of more than white noise"
        if not noise.positive and not white:
            return "needs a positive noise variance in every row"
        if self.optimize or self.centers == "kmeans" if isinstance(self.centers, str) else self.optimize:
            what = "optimised centres" if self.optimize else "centers='kmeans'"
            try:
                as_matrix(gram.raw(X))
            except DataError:
                return f"with {what} needs rows of numbers"
            if evaluate.on_host(gram.on(kernel, X).rows):
                return f"with {what} needs a kernel of numbers that can be compiled; got {kernel!r}"
        return None

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        return self.cost_of(count_rows(X))

    def cost_of(self, n: int) -> Cost:
        """Of n rows, which need not be in memory."""
        m = self.count(n)
        kept = min(8.0 * n * m, machine.keepable())
        memory = kept + 8.0 * m**2 * (6 + 3 * machine.cores()) + machine.cores() * machine.GRAM_BYTES / 2
        flops = n * (5.0 * m**2 + 1e3 * m) + 3.0 * m**3  # as many as the dense solver makes in the time, measured
        why = f"{m:,} centres can stand for the rows"
        return Cost(memory, flops, (n, m), why)

    def loss(self, kernel: Kernel, X: Inputs) -> float:
        """Errors exceed those of exact fits by about half with 500 centres, on five sets of 15,000 to 50,000 rows (Wang
        et al. 2019), and fall slowly with more."""
        return LOSS_AT_500_CENTERS * float(np.sqrt(500 / self.count(count_rows(X))))

    def within(self, kernel: Kernel, X: Inputs, budget: Budget) -> Self:
        """With as many centres as memory and time allow."""
        return self.within_rows(count_rows(X), budget)

    def within_rows(self, n: int, budget: Budget) -> Self:
        """As `within`, for n rows, which need not be in memory."""
        new = self
        for m in AUTO_CENTERS:
            new = dataclasses.replace(self, n_centers=m)
            cost = new.cost_of(n)
            seconds = fit_seconds(new, cost, n, budget)
            if m * EXACT_RATIO < n and cost.memory <= budget.memory and seconds <= budget.seconds:
                break
        return new

    def stages(self, n: int) -> list[int]:
        return super().stages(min(n, self.learning_rows))

    def approximation(self, kernel: Kernel) -> str | None:
        m = self.n_centers if isinstance(self.centers, str) else count_rows(self.centers)
        return (
            f"stands {m:,} centres for all rows; numerics_['gap'] bounds how many nats that costs, numerics_['left'] "
            "is the share of the prior variance that they leave"
        )

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> Evidence:
        if self._takes_all(len(y)):
            return FunctionSpace(kernel, X, y, noise, mean)
        return LowRankEvidence(kernel, X, y, noise, mean, self.method, self._choose, bool(self.optimize))

    def _choose(self, kernel: Kernel, rows: gram.Gram, y: np.ndarray, noise: np.ndarray) -> Inputs:
        if self._takes_all(rows.n):
            return choose_centers("greedy", rows.n, kernel, rows, y, noise)
        return choose_centers(self.centers, self.n_centers, kernel, rows, y, noise)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> LowRankPosterior:
        def choose(kernel: Kernel, rows: gram.Gram, r: np.ndarray, variances: np.ndarray) -> Inputs:
            if not self.optimize or self._takes_all(len(r)):
                return self._choose(kernel, rows, r, variances)
            evidence = LowRankEvidence(kernel.fix(), rows, y, variances, mean, self.method, self._choose, True)
            return evidence.centers_at(np.zeros(evidence.size))

        return LowRankPosterior.given(kernel, X, y, noise, mean, self.method, choose)
