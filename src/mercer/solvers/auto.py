"""What ``solver="auto"`` takes: exact while it fits memory and time, then the best approximation that fits.

The rule knows solvers by their own estimates only: whether they are exact for a kernel, what they cost, how
good an approximation they are (`Solver.loss`), and which likelihoods they serve (`Solver.serves`).
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.machine import as_bytes, cores, in_words, keepable, one_thread
from mercer.linalg.cholesky import attempt

if TYPE_CHECKING:
    from mercer.gp.noise import Noise
    from mercer.kernels.base import Kernel
    from mercer.solvers.base import Cost, Solver

DEFAULT_MEMORY_SHARE = 1 / 3  # of the free memory, where ``max_memory`` is not given
DEFAULT_SECONDS = 600.0
EVALUATIONS, FIRST_EVALUATIONS = 25, 250  # of the evidence, in later stages and in the first, measured on benchmarks
EVALUATION_OVERHEAD_SECONDS = 1e-3
COMPILE_SECONDS, COMPILE_SECONDS_TO_PREDICT = 1.0, 0.3  # of the kernel, with its gradient and without
MAX_ROWS_AT_ONCE, FIRST_ROWS = 500, 300  # largest data learned in one stage; rows of the first stage otherwise
MAX_DENSE_PART = 1200  # rows of a part that lacks the structure of all rows
SPEED_ROWS, SPEED_REPEATS = 600, 3  # of the matrix that measures the speed of this machine
MAX_SPEED_REPEATS, MAX_SPEED_SECONDS = 12, 0.2  # the best of several, since other programs may slow some down
LARGE_MATRIX_SPEEDUP = 1.2  # over that matrix, for each core


@dataclasses.dataclass(frozen=True)
class Budget:
    """Bytes and seconds that a fit may take, and the work that it is: ``climbs`` of the evidence, each from a few rows
    to all of them, and ``further`` evaluations on all rows. ``work`` and ``copies``: for likelihoods that are not
    Gaussian, the time and memory of an inference over those of a solver's evidence, unless it infers in batches
    (`Solver.in_batches`)."""

    memory: float
    seconds: float
    climbs: int = 1
    further: int = 0
    work: float = 1.0
    copies: float = 1.0

    @classmethod
    def of(
        cls, max_memory: Any = None, max_seconds: Any = DEFAULT_SECONDS, climbs: int = 1, further: int = 0,
        work: float = 1.0, copies: float = 1.0,
    ) -> "Budget":  # fmt: skip
        """From the settings of an estimator: bytes or words such as "4 GiB", None a third of what is free; seconds,
        None without limit."""
        memory = keepable(DEFAULT_MEMORY_SHARE)
        if max_memory is not None:
            memory = min(as_bytes(max_memory, "max_memory"), keepable(1.0))
        return cls(memory, _seconds(max_seconds), climbs, further, work, copies)

    def allows(self, memory: float, flops: float) -> bool:
        """Whether it allows one piece of dense algebra that takes this."""
        return memory <= self.memory and flops / flops_per_second() <= self.seconds


def _seconds(given: Any) -> float:
    if given is None:
        return math.inf
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not given > 0:
        raise ParameterError(f"max_seconds must be a positive number of seconds, or None; got {given!r}.")
    return float(given)


@dataclasses.dataclass(frozen=True)
class SolverCandidate:
    """A solver that can be used for the data, and what a fit by it is expected to take."""

    solver: "Solver"
    cost: "Cost"
    seconds: float
    loss: float  # `Solver.loss`; zero if it is exact for the kernel

    @classmethod
    def of(cls, solver: "Solver", kernel: "Kernel", X: Inputs, budget: Budget) -> "SolverCandidate":
        cost = solver.cost(kernel, X)
        if not solver.in_batches:
            cost = cost._replace(memory=cost.memory * budget.copies, flops=cost.flops * budget.work)
        loss = 0.0 if solver.approximation(kernel) is None else solver.loss(kernel, X)
        return cls(solver, cost, fit_seconds(solver, cost, count_rows(X), budget), loss)

    def fits(self, budget: Budget) -> bool:
        """Whether it takes no more than it may."""
        return self.cost.memory <= budget.memory and self.seconds <= budget.seconds


@dataclasses.dataclass(frozen=True)
class SolverChoice:
    """The solver that was chosen, why, and all that could have been."""

    chosen: SolverCandidate
    why: str
    others: tuple[SolverCandidate, ...] = ()


def choose(
    there: Iterable["Solver"], kernel: "Kernel", X: Inputs, noise: "Noise", budget: Budget, task: str = "gaussian"
) -> SolverChoice:
    """The rule of "auto".

    1. Of the solvers that apply (`Solver.refusal`, `suits`, `serves`) and are exact for the kernel, those that fit the
       memory and the time: the one with the smallest matrix, of equals the one with the fewest flops.
    2. If none fits, the approximations, each with the settings that make the most of the budget (`Solver.within`), by
       expected loss of accuracy (`Solver.loss`): the first that fits.
    3. If none fits the time, the fastest of those that fit the memory. If none fits the memory, the one that takes the
       least of it, which the plan refuses if there is not as much.
    """
    n = count_rows(X)
    usable = [
        each
        for each in there
        if n >= each.auto_rows
        and each.serves(task)
        and each.refusal(kernel, X, noise) is None
        and each.suits(kernel, X)
    ]
    exact = [SolverCandidate.of(each, kernel, X, budget) for each in usable if each.approximation(kernel) is None]
    exact.sort(key=lambda each: (math.prod(each.cost.matrix), each.cost.flops))
    fitting = [each for each in exact if each.fits(budget)]
    near = [] if fitting else [each for each in usable if each.approximation(kernel) is not None]
    others = sorted(
        (SolverCandidate.of(each.within(kernel, X, budget), kernel, X, budget) for each in near),
        key=lambda each: each.loss,
    )
    everything = (*exact, *others)

    def chosen(best: SolverCandidate, why: str | None = None) -> SolverChoice:
        return SolverChoice(
            best, best.cost.why if why is None else why, tuple(each for each in everything if each is not best)
        )

    if fitting:
        return chosen(fitting[0])
    held = [each for each in everything if each.cost.memory <= budget.memory]
    for best in others:
        if best.fits(budget):
            return chosen(
                best, f"an exact fit of {n:,} rows takes more {_lacking(exact, budget)} than it may; {best.cost.why}"
            )
    if held:
        return chosen(
            min(held, key=lambda each: each.seconds),
            f"no method for these settings fits {budget.seconds:,g} seconds, and of those that fit the memory it is "
            "the fastest",
        )
    return chosen(
        min(everything, key=lambda each: each.cost.memory),
        f"no method for these settings fits the memory, {in_words(budget.memory)}, and it takes the least",
    )


def asked_for(found: SolverCandidate, budget: Budget) -> str:
    """Reason for a solver that was asked for; where it takes more than it may, it says so."""
    if found.cost.memory > budget.memory:
        return f"it was asked for, although it takes more than the {in_words(budget.memory)} that 'auto' would allow"
    if found.seconds > budget.seconds:
        return (
            f"it was asked for, although it may take more than the {budget.seconds:,g} seconds that 'auto' would allow"
        )
    return "it was asked for"


def _lacking(exact: Sequence[SolverCandidate], budget: Budget) -> str:
    return "memory" if all(each.cost.memory > budget.memory for each in exact) else "time"


# -- time ------------------------------------------------------------------------------------------------------------


def fit_seconds(solver: "Solver", cost: "Cost", n: int, budget: Budget) -> float:
    """Seconds that a fit takes on this machine if nothing else runs."""
    speed, total = flops_per_second(), 0.0
    for i, rows in enumerate(solver.stages(n)):
        each = solver.part_flops(cost, n, rows) / speed + EVALUATION_OVERHEAD_SECONDS
        total += (EVALUATIONS if i else FIRST_EVALUATIONS) * each
    total = budget.climbs * total + budget.further * (cost.flops / speed + EVALUATION_OVERHEAD_SECONDS)
    total += COMPILE_SECONDS if budget.climbs else COMPILE_SECONDS_TO_PREDICT
    return total + cost.flops / speed


def search_stages(n: int, of_parts: bool = True) -> list[int]:
    """Numbers of rows that a regression is learned from, one after the other, each about twice the one before. The
    first determines the kernel and the best starts. Where parts of the rows lack the structure that makes all of them
    fast, few rows are followed by all.

    >>> search_stages(500), search_stages(600), search_stages(2000)
    ([500], [300, 600], [300, 600, 1200, 2000])
    >>> search_stages(50_000, of_parts=False)
    [300, 600, 1200, 50000]
    """
    few = [FIRST_ROWS * 2**i for i in range(n.bit_length()) if FIRST_ROWS * 2**i < n / 1.5]
    if not of_parts:
        few = [rows for rows in few if rows <= MAX_DENSE_PART]
    return [n] if n <= MAX_ROWS_AT_ONCE else [*few, n]


@functools.cache
def flops_per_second() -> float:
    """Speed at which this machine factorises, measured once, in a few milliseconds."""
    n, best, begun = SPEED_ROWS, np.inf, time.perf_counter()
    C = np.eye(n, order="F") * 2.0
    for i in range(MAX_SPEED_REPEATS):
        work = C.copy(order="F")
        if i >= SPEED_REPEATS and time.perf_counter() - begun > MAX_SPEED_SECONDS:
            break
        with one_thread():  # its processor time does not depend on what else runs
            start = time.thread_time()
            factor = attempt(work)
            assert factor is not None
            factor.invert()
            best = min(best, time.thread_time() - start)
    return LARGE_MATRIX_SPEEDUP * cores() * n**3 / max(best, 1e-9)
