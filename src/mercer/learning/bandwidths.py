"""Learning the widths of kernel estimators by leaving rows out: kernel regression and kernel density estimation."""

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer.core import machine
from mercer.core.coordinates import Layout, free_names, from_free, to_free
from mercer.core.inputs import Inputs, take_rows
from mercer.gram import raw
from mercer.kernels.base import Kernel
from mercer.learning.leave_one_out import (
    ConditionalLikelihood,
    DensityLikelihood,
    LeaveOneOutCriterion,
    SquaredError,
)
from mercer.learning.objective import Objective, Start, logarithmic_mask, stages
from mercer.learning.optimise import Learned, Settings, learn

TOLERANCE = 5.0  # a hundredth of a nat is far below what chance does to the best widths
TARGET_WIDTHS = (0.5, 0.15)  # in units of the target's spread, where the width in the target starts
SCOTT_FACTORS = (1.0, 0.3, 0.1, 3.0)  # on Scott's widths, where those of a density start
MIN_STEP = 1e-9  # of unit spread: values nearer than this count as equal
WIDTH_EXPONENTS = {"lengthscale": -1.0, "theta1": 2.0}  # powers of n^(1 / (4 + d)) that the best parameters follow


class WidthObjective(Objective):
    """Objective whose optimal widths shrink with the number of rows."""

    label = "log likelihood"
    tolerance = TOLERANCE


class RegressionWidths(WidthObjective):
    """Leave-one-out criterion of kernel regression; theta is the kernel's free parameters and then, where they are
    learned, the logarithms of widths in the target.

    ``t`` (n, q) has unit spread; ``width`` (q,), in its units, is None to learn it by the likelihood. ``kernels`` are
    those to start from, ``more`` further starts.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        X: Inputs,
        t: np.ndarray,
        c: np.ndarray,
        width: np.ndarray | None,
        criterion: str,
        more: Sequence[Start] = (),
    ) -> None:
        self.kernel, self.kernels, self.X, self.t, self.c = kernels[0], kernels, X, t, c
        self.width, self.measure, self.more = width, criterion, more
        self.layout = Layout.of(self.kernel)
        self.learns_width = width is None and criterion == "likelihood"
        # Rounded targets are equal by chance, and a width of zero would fit those: rounding to steps of r has a
        # variance of r^2 / 12.
        self.least = rounding_deviation(t)

    @property
    def n(self) -> int:
        return len(self.t)

    @property
    def widths(self) -> int:
        """Number of widths in the target that are learned."""
        return self.t.shape[1] if self.learns_width else 0

    @property
    def size(self) -> int:
        return self.layout.size + self.widths

    def names(self) -> list[str]:
        return [*free_names(self.kernel), *(f"target_width[{i}]" for i in range(self.widths))]

    def by_least_squares(self) -> "RegressionWidths":
        return RegressionWidths(self.kernels, self.X, self.t, self.c, self.width, "least_squares")

    def part(self, rows: np.ndarray) -> "RegressionWidths":
        """The same on some rows, with the rounding error of all."""
        part = copy.copy(self)
        part.X, part.t, part.c = take_rows(self.X, rows), self.t[rows], self.c[rows]
        return part

    def criterion(self, rows: np.ndarray | None = None) -> LeaveOneOutCriterion:
        if rows is not None:
            return self.part(rows).criterion()
        if self.measure == "least_squares":
            return SquaredError(self.kernel, self.X, self.t, self.c)
        return ConditionalLikelihood(self.kernel, self.X, self.t, self.c, self.width, self.least)

    def starts(self) -> list[Start]:
        if not self.learns_width:
            return [Start(f"start {i + 1}", self.theta(kernel)) for i, kernel in enumerate(self.kernels)]
        return [
            Start(f"start {i + 1}, target width {width:g}", self.theta(kernel, width))
            for i, kernel in enumerate(self.kernels)
            for width in TARGET_WIDTHS
        ]

    def more_starts(self) -> Sequence[Start]:
        return self.more

    def logarithmic(self) -> np.ndarray:
        return np.concatenate([logarithmic_mask(self.layout), np.ones(self.widths, bool)])

    def for_more_rows(self, theta: np.ndarray, ratio: float) -> np.ndarray:
        """Optimal widths shrink with n^(-1 / (4 + d)), d the dimensions smoothed over."""
        d = (raw(self.X).shape[1] if np.ndim(raw(self.X)) == 2 else 1) + (self.measure == "likelihood") * self.t.shape[
            1
        ]
        kinds = [np.full(len(p.entries), WIDTH_EXPONENTS.get(p.field, 0.0)) for p in self.layout.places]
        exponents = np.concatenate([*kinds, np.full(len(theta) - self.layout.size, -1.0)])
        return theta + exponents * math.log(ratio) / (4 + d)

    def theta(self, kernel: Kernel, width: float = 1.0) -> np.ndarray:
        """theta of a kernel, with this width in every target where it is learned."""
        return np.concatenate([np.asarray(to_free(kernel), dtype=float), np.full(self.widths, math.log(width))])

    def at(self, theta: np.ndarray) -> tuple[Kernel, np.ndarray | None]:
        """The kernel, and the widths (q,) if they are learned."""
        kernel = from_free(self.kernel, theta[: self.layout.size])
        return kernel, np.hypot(self.least, np.exp(theta[self.layout.size :])) if self.learns_width else None

    def parameters(self, theta: np.ndarray, spread: np.ndarray) -> dict[str, Any]:
        """Values on the natural scale, by name."""
        kernel, width = self.at(theta)
        return {**kernel.parameters, **({} if width is None else {"target_width": width * spread})}


class LearnedWidths(NamedTuple):
    """The kernel, the widths in the target (None if they were not learned), the result of maximisation, the number of
    rows it is about, and all evaluations made."""

    kernel: Kernel
    width: np.ndarray | None
    learned: Learned
    rows: int
    evaluations: int


def learn_regression_widths(
    objective: RegressionWidths, settings: Settings, rng: np.random.Generator, max_rows: int
) -> LearnedWidths | None:
    """Learn from all rows or a part of them; None if the kernel is zero between all rows, negative or not finite."""
    rows = rows_to_learn_from(objective.n, max_rows)
    part = objective if rows == objective.n else objective.part(np.sort(rng.permutation(objective.n)[:rows]))
    evaluations = 0
    if objective.layout.size and objective.measure == "likelihood":
        # From afar the likelihood may lead to narrow targets and wide inputs; the squared error knows only inputs.
        few = part.part(np.sort(rng.permutation(part.n)[: stages(part.n)[0]])).by_least_squares()
        first = learn(few, Settings(max_iterations=settings.max_iterations, progress=settings.progress), rng)
        if first.interrupted:  # nothing worth keeping yet
            raise KeyboardInterrupt
        part = copy.copy(part)
        part.more = [
            Start("least squares", objective.theta(few.at(o.theta)[0], TARGET_WIDTHS[-1])) for o in first.optima
        ]
        evaluations = first.evaluations
    learned = learn(part, settings, rng)
    if not learned.optima:
        return None
    kernel, width = objective.at(objective.for_more_rows(learned.theta, objective.n / part.n))
    return LearnedWidths(kernel, width, learned, part.n, evaluations + learned.evaluations)


class DensityWidths(WidthObjective):
    """Leave-one-out likelihood of a kernel density; theta is the logarithms of widths, in units of those to start
    from."""

    def __init__(self, kernel: Kernel, X: np.ndarray, c: np.ndarray) -> None:
        self.kernel, self.X, self.c = kernel, X, c
        self.least = rounding_deviation(X)

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def size(self) -> int:
        return self.X.shape[1]

    def names(self) -> list[str]:
        return [f"width[{i}]" for i in range(self.size)]

    def criterion(self, rows: np.ndarray | None = None) -> DensityLikelihood:
        here = slice(None) if rows is None else rows
        return DensityLikelihood(self.kernel, self.X[here], self.c[here], self.least)

    def starts(self) -> list[Start]:
        return [Start(f"{s:g} of Scott's", np.full(self.size, math.log(s))) for s in SCOTT_FACTORS]

    def for_more_rows(self, theta: np.ndarray, ratio: float) -> np.ndarray:
        return theta - math.log(ratio) / (4 + self.size)

    def at(self, theta: np.ndarray) -> np.ndarray:
        """The widths: (d,)."""
        return np.hypot(self.least, np.exp(theta))


def learn_density_widths(
    kernel: Kernel, X: np.ndarray, c: np.ndarray, settings: Settings, rng: np.random.Generator, max_rows: int
) -> tuple[np.ndarray, Learned]:
    """Widths of a density of rows X with weights c, learned from all rows or a part of them, and how that went."""
    rows = rows_to_learn_from(len(X), max_rows)
    part = slice(None) if rows == len(X) else np.sort(rng.permutation(len(X))[:rows])
    objective = DensityWidths(kernel, X[part], c[part])
    learned = learn(objective, settings, rng)
    return objective.at(objective.for_more_rows(learned.theta, len(X) / objective.n)), learned


def rounding_deviation(t: np.ndarray) -> np.ndarray:
    """Standard deviation of the rounding error in each column of unit spread: r / sqrt(12) for steps of r."""

    def step(column: np.ndarray) -> float:
        steps = np.diff(np.unique(column))
        return min(steps[steps > MIN_STEP], default=MIN_STEP)

    return np.array([step(column) for column in t.T]) / math.sqrt(12)


def rows_to_learn_from(n: int, limit: int) -> int:
    """As many rows as asked for, and as the matrix of their kernel values leaves half of the memory."""
    return max(2, min(n, limit, math.isqrt(machine.keepable(1 / 2) // 8)))
