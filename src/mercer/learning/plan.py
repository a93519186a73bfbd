"""Memory and time that a fit will take, estimated before it starts."""

import dataclasses

from mercer.core.errors import NotEnoughMemoryError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.machine import available_memory, in_words
from mercer.gp.noise import Noise
from mercer.kernels.base import Kernel
from mercer.solvers.auto import Budget, SolverChoice, search_stages
from mercer.solvers.base import GAUSSIAN, SOLVERS, Solver, choice

__all__ = ["Plan", "plan", "plan_of", "planned", "search_stages"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Method of a fit, the memory and time it takes, the reason for the method, and what others would take."""

    method: str
    rows: int
    features: int | None  # columns of its largest matrix; None where they are the rows
    memory: int
    available: int  # or ``max_memory``, if that is less
    seconds: float
    why: str
    approximation: str | None = None  # what is approximated, and how accurately
    max_seconds: float | None = None
    others: tuple[tuple[str, int, float], ...] = ()  # name, memory and seconds of the alternatives
    summary: str | None = None  # of the method, where it is not a solver of a process

    def __str__(self) -> str:
        size = f"{self.rows:,} x {self.rows if self.features is None else self.features:,}"
        known = SOLVERS[self.method].summary if self.method in SOLVERS else None
        summary = known if self.summary is None else self.summary
        lines = [
            f"method    {self.method}{f': {summary}' if summary else ''}",
            f"because   {self.why}",
            f"matrix    {size}",
            f"memory    {in_words(self.memory)} at most, of {in_words(self.available)} available",
            f"time      about {self.duration()} on this machine, if nothing else runs",
        ]
        if self.approximation is not None:
            lines.insert(2, f"but       it {self.approximation}")
        for i, (name, memory, seconds) in enumerate(self.others):
            lines.append(
                f"{'' if i else 'otherwise':9} {name} would take {in_words(memory)} and about {_duration(seconds)}"
            )
        return "\n".join(lines)

    @property
    def line(self) -> str:
        """Method, reason, memory and time in one line."""
        return f"{self.method}, since {self.why}; about {self.duration()} and {in_words(self.memory)}"

    @property
    def noteworthy(self) -> bool:
        """Whether a person should know it before the fit: it is not exact, or takes longer than it may."""
        return self.approximation is not None or (self.max_seconds is not None and self.seconds > self.max_seconds)

    def duration(self) -> str:
        """Seconds in words."""
        return _duration(self.seconds)

    def check(self) -> None:
        """Refuse a fit that needs more memory than there is."""
        if self.memory > self.available:
            how = "an exact fit" if self.approximation is None else f"a fit by solver={self.method!r}"
            less = [name for name, memory, _ in self.others if memory <= self.available]
            other = f"solver={less[0]!r}, " if less else ""
            raise NotEnoughMemoryError(
                f"{how} of {self.rows:,} rows needs {in_words(self.memory)}; {in_words(self.available)} are "
                f"available. Use {other}fewer rows (a random subset of them, say), a kernel with a finite number of "
                "features (Linear, Polynomial, FeatureMap), or a larger machine or max_memory. plan(X) shows what any "
                "number of rows takes."
            )


def _duration(seconds: float) -> str:
    for size, word in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.2g} seconds"


def planned(
    solver: str | Solver, kernel: Kernel, X: Inputs, noise: Noise, budget: Budget, given_memory: bool = False,
    task: str = GAUSSIAN,
) -> tuple[Solver, Plan]:  # fmt: skip
    """The solver of `solvers.base.choice`, and the plan of a fit by it. ``given_memory``: whether the memory of the
    budget is a limit that the user set."""
    found = choice(solver, kernel, X, noise, budget, task)
    return found.chosen.solver, plan_of(found, kernel, X, budget, given_memory)


def plan(solver: Solver, kernel: Kernel, X: Inputs, noise: Noise, budget: Budget) -> Plan:
    """Plan of a fit by this solver."""
    return planned(solver, kernel, X, noise, budget)[1]


def allowed_memory(budget: Budget, given: bool) -> int:
    """Bytes that a fit may take: what is free, and no more than the budget where that was given."""
    return min(available_memory(), int(budget.memory)) if given else available_memory()


def plan_of(found: SolverChoice, kernel: Kernel, X: Inputs, budget: Budget, given_memory: bool) -> Plan:
    """Plan of a fit by the solver of a choice; arguments as of `planned`."""
    best, n = found.chosen, count_rows(X)
    columns = None if best.cost.matrix[1] == n else best.cost.matrix[1]
    available = allowed_memory(budget, given_memory)
    others = {each.solver.name: (each.solver.name, int(each.cost.memory), each.seconds) for each in found.others}
    return Plan(
        best.solver.name, n, columns, int(best.cost.memory), available, best.seconds, found.why,
        best.solver.approximation(kernel), None if budget.seconds == float("inf") else budget.seconds,
        tuple(others.values()),
    )  # fmt: skip
