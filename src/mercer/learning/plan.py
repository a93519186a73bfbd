"""Memory and time that a fit will take, estimated before it starts."""

import dataclasses
import functools
import time

import numpy as np

from mercer.core.errors import NotEnoughMemoryError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.machine import available_memory, in_words
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import attempt
from mercer.solvers.base import SOLVERS, Solver
from mercer.solvers.dense import OVERHEAD

EVALUATIONS, FIRST_EVALUATIONS = 25, 250  # of the evidence, in later stages and in the first, measured on benchmarks
EVALUATION_OVERHEAD_SECONDS = 1e-3
COMPILE_SECONDS, COMPILE_SECONDS_TO_PREDICT = 1.0, 0.3  # of the kernel, with its gradient and without
MAX_ROWS_AT_ONCE, FIRST_ROWS = 500, 300  # rows up to which all are learned from at once, and of the first stage else
MAX_DENSE_PART = 1200  # rows of a part that lacks the structure of all rows
SPEED_ROWS, SPEED_REPEATS = 600, 3  # of the matrix that measures the speed of this machine
LARGE_MATRIX_SPEEDUP = 1.8  # over that matrix


@dataclasses.dataclass(frozen=True)
class Plan:
    """Method of a fit, the memory and time it takes, and the reason for the method."""

    method: str
    rows: int
    features: int | None  # columns of its largest matrix; None where they are the rows
    memory: int
    available: int
    seconds: float
    why: str

    def __str__(self) -> str:
        size = f"{self.rows:,} x {self.rows if self.features is None else self.features:,}"
        return "\n".join(
            [
                f"method    {self.method}: {SOLVERS[self.method].summary}" if self.method in SOLVERS else self.method,
                f"because   {self.why}",
                f"matrix    {size}",
                f"memory    {in_words(self.memory)} at most, of {in_words(self.available)} available",
                f"time      about {self.duration()} on this machine, if nothing else runs",
            ]
        )

    def duration(self) -> str:
        """Seconds in words."""
        for size, word in ((86400, "days"), (3600, "hours"), (60, "minutes")):
            if self.seconds >= 2 * size:
                return f"{self.seconds / size:.0f} {word}"
        return f"{self.seconds:.0f} seconds" if self.seconds >= 10 else f"{self.seconds:.2g} seconds"

    def check(self) -> None:
        """Refuse a fit that needs more memory than there is."""
        if self.memory > self.available:
            raise NotEnoughMemoryError(
                f"an exact fit of {self.rows:,} rows needs {in_words(self.memory)}; {in_words(self.available)} are "
                "available. Use fewer rows (a random subset of them, say), a kernel with a finite number of features "
                "(Linear, Polynomial, FeatureMap), or a larger machine. plan(X) tells what any number of rows takes."
            )


def plan(solver: Solver, kernel: Kernel, X: Inputs, climbs: int, asked: bool, further: int = 0) -> Plan:
    """Plan of a fit with this number of climbs, and ``further`` evaluations of all rows. ``asked``: whether the solver
    was named, not chosen."""
    cost, n = solver.cost(kernel, X), count_rows(X)
    evaluation = cost.flops / _flops_per_second()
    total = 0.0
    for i, rows in enumerate(search_stages(n, solver.of_parts)):
        part = evaluation * (rows / n) ** solver.growth if solver.of_parts else OVERHEAD * rows**3 / _flops_per_second()
        each = (evaluation if rows == n else part) + EVALUATION_OVERHEAD_SECONDS
        total += (EVALUATIONS if i else FIRST_EVALUATIONS) * each
    total = climbs * total + further * (evaluation + EVALUATION_OVERHEAD_SECONDS)
    total += COMPILE_SECONDS if climbs else COMPILE_SECONDS_TO_PREDICT
    columns = None if cost.matrix[1] == n else cost.matrix[1]
    why = "it was asked for" if asked else cost.why
    return Plan(solver.name, n, columns, int(cost.memory), available_memory(), total + evaluation, why)


def search_stages(n: int, of_parts: bool = True) -> list[int]:
    """Numbers of rows that a regression is learned from, one after the other, each about twice the one before. The
    first tells the kernel and the best starts. Where parts of the rows lack the structure that makes all of them fast,
    few rows are followed by all.

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
def _flops_per_second() -> float:
    """Speed at which this machine factorises, measured once, in a few milliseconds."""
    n, best = SPEED_ROWS, np.inf
    C = np.eye(n, order="F") * 2.0
    for _ in range(SPEED_REPEATS):
        work = C.copy(order="F")
        start = time.perf_counter()
        factor = attempt(work)
        assert factor is not None
        factor.invert()
        best = min(best, time.perf_counter() - start)
    return LARGE_MATRIX_SPEEDUP * n**3 / best
