"""What a fit will take, said before it begins."""

import dataclasses
import functools
import time

import numpy as np

from mercer.core.errors import NotEnoughMemoryError
from mercer.core.inputs import count_rows
from mercer.core.machine import available_memory, in_words
from mercer.linalg.cholesky import attempt
from mercer.solvers.base import SOLVERS, Solver

EVALUATIONS, ON_FEW = 25, 250  # of the evidence, on all rows and where the search begins, as measured on the benchmarks
AT_ONCE, FIRST = 500, 300  # rows up to which learning sees all of them from the beginning, and with how many it begins


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a fit will be done, what it will take, and why."""

    method: str
    rows: int
    features: int | None  # columns of its largest matrix; None where they are the rows
    memory: int
    available: int
    seconds: float
    why: str

    def __str__(self):
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
        """The seconds in words."""
        for size, word in ((86400, "days"), (3600, "hours"), (60, "minutes")):
            if self.seconds >= 2 * size:
                return f"{self.seconds / size:.0f} {word}"
        return f"{self.seconds:.0f} seconds" if self.seconds >= 10 else f"{self.seconds:.2g} seconds"

    def check(self):
        """Refuse what will not fit."""
        if self.memory > self.available:
            raise NotEnoughMemoryError(
                f"an exact fit of {self.rows:,} rows needs {in_words(self.memory)}; {in_words(self.available)} are "
                "available. Use fewer rows (a random subset of them, say), a kernel with a finite number of features "
                "(Linear, Polynomial, FeatureMap), or a larger machine. plan(X) tells what any number of rows takes."
            )


def plan(solver: Solver, kernel, X, climbs: int, asked: bool) -> Plan:
    """Of a fit with so many climbs. ``asked``: whether the solver was named, not chosen."""
    cost, n = solver.cost(kernel, X), count_rows(X)
    evaluation = cost.flops / _flops_per_second()
    total = 0.0
    for i, rows in enumerate(search_stages(n)):
        # On a subset they are many, and cost little: about a millisecond each and the factorisation.
        total += (EVALUATIONS if i else ON_FEW) * (evaluation * (rows / n) ** 3 + 1e-3)
    total = climbs * total + (1.0 if climbs else 0.3)  # compiling the kernel
    columns = None if cost.matrix[1] == n else cost.matrix[1]
    why = "it was asked for" if asked else cost.why
    return Plan(solver.name, n, columns, int(cost.memory), available_memory(), total + evaluation, why)


def search_stages(n: int) -> list[int]:
    """Numbers of rows that the learning of a regression sees, one after the other, each about twice the one before. On
    the first the kernel and the best starts are found.

    >>> search_stages(500), search_stages(600), search_stages(2000)
    ([500], [300, 600], [300, 600, 1200, 2000])
    """
    few = [FIRST * 2**i for i in range(n.bit_length()) if FIRST * 2**i < n / 1.5]
    return [n] if n <= AT_ONCE else [*few, n]


@functools.cache
def _flops_per_second() -> float:
    """How fast this machine factorises, measured once, in a few milliseconds."""
    n, best = 600, np.inf
    C = np.eye(n, order="F") * 2.0
    for _ in range(3):
        work = C.copy(order="F")
        start = time.perf_counter()
        factor = attempt(work)
        assert factor is not None
        factor.invert()
        best = min(best, time.perf_counter() - start)
    return 1.8 * n**3 / best  # larger matrices run faster
