"""A choice between kernels: what was tried, how well it did, and which one is best.

One record and one table for every comparison of kernels: the family of the default kernel (`family`) and candidates of
the user's (`search`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from mercer.core.parameters import evolve_at, node_at, slots_of
from mercer.core.text import rounded, table
from mercer.kernels.base import Kernel

MAX_LABEL = 60  # characters of a candidate in a table


class Tried(NamedTuple):
    """A candidate at its maximum of the evidence on a number of rows.

    ``candidate``: the kernel as it was given, or a member of the family of the default kernel. ``log_evidence``: at the
    maximum, priors not included. ``score``: what candidates are compared by, the higher the better. ``theta``: the
    parameters in the optimiser's coordinates. ``kernel``: the kernel with these parameters, and ``noise``: the variance
    learned with it, in units of y squared, where they were kept. ``failure``: why it could not be evaluated, None if it
    could.
    """

    candidate: Any
    log_evidence: float
    score: float
    theta: np.ndarray
    rows: int = 0
    kernel: Kernel | None = None
    noise: float | None = None
    seconds: float = math.nan
    failure: str | None = None

    @property
    def member(self) -> Any:
        """The candidate, where it is a member of the family of the default kernel."""
        return self.candidate

    @property
    def label(self) -> str:
        """The candidate in a table: one line, cut where it is long."""
        text = " ".join(str(self.candidate).split())
        return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 3] + "..."


class Measure(NamedTuple):
    """How a score is written: the name of its column, the score itself, how far it is behind the best, and that in
    words."""

    name: str
    score: Callable[[float], str]
    behind: Callable[[float, float], str]
    in_words: str


MEASURES = {
    "crps": Measure(
        "penalised CRPS", lambda s: f"{-s:.4f}", lambda s, best: f"{s / best - 1:+.1%}" if best else "", "{} higher"
    ),
    "blocks": Measure(
        "CRPS of left-out blocks",
        lambda s: f"{-s:.4f}",
        lambda s, best: f"{s / best - 1:+.1%}" if best else "",
        "{} higher",
    ),
    "log loss": Measure(
        "penalised log loss", lambda s: f"{-s:.4f}", lambda s, best: f"{best - s:+.4f}", "{} nats higher"
    ),
    "errors": Measure(
        "left-out errors",
        lambda s: f"{-s:.1%}",
        lambda s, best: f"{100 * (best - s):+.1f}",
        "{} percentage points higher",
    ),
    "evidence": Measure(
        "penalised log evidence", lambda s: f"{s:.1f}", lambda s, best: f"{s - best:+.1f}", "{} nats lower"
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """Candidates tried, the chosen one first. ``rows``: number of rows that decided.

    ``measure`` says what the score is. "crps": minus the mean CRPS of rows left out, times 1 + k / n for k parameters
    and n rows. "blocks": minus the mean CRPS of blocks of rows left out together. "log loss": the mean of ln p of
    labels left out, minus k / n. "errors": minus the share of labels left out that are predicted wrongly. "evidence":
    the log evidence, minus k ln(n) / 2.
    """

    tried: list[Tried]
    rows: int
    evaluations: int
    interrupted: bool = False
    measure: str = "crps"

    @property
    def best(self) -> Tried:
        return self.tried[0]

    @property
    def member(self) -> Any:
        """The candidate chosen."""
        return self.best.candidate

    def margin(self) -> str:
        """How much better it is than the next one that was compared on as many rows."""
        best, *others = self.tried
        if not others:
            return "the only one tried"
        measure = MEASURES[self.measure]
        ahead = [other for other in others if other.rows == best.rows and other.score > best.score]
        if ahead and self.measure == "blocks":
            less = measure.behind(ahead[0].score, best.score).lstrip("+-")
            return f"the roughest within a standard error of the best, whose {measure.name} is {less} lower"
        alike = [other for other in others if other.rows == best.rows and other.score <= best.score]
        if not alike:
            return f"the others of {len(self.tried)} kernels were far behind on fewer rows"
        behind = measure.behind(alike[0].score, best.score).lstrip("+-")
        words = measure.in_words.format(behind)
        return f"the {measure.name} of the next of {len(self.tried)} kernels tried is {words}"

    def word_on_blocks(self) -> str | None:
        """What blocks decided, where they did; None elsewhere."""
        if self.measure != "blocks":
            return None
        text = (
            "Blocks of rows left out together decided: how well holes in the data are predicted depends on the "
            "smoothness at large distances, which the evidence hardly sees."
        )
        likely = max(self.tried, key=lambda tried: tried.log_evidence)
        if likely is not self.best:
            text += f" By the evidence it would be {likely.label}: better between near rows, worse in holes."
        return text

    def header(self) -> list[str]:
        """Of the table."""
        return ["kernel", MEASURES[self.measure].name, "", "log evidence", "rows"]

    def cells(self, tried: Tried) -> list[str]:
        """A line of the table."""
        best, measure = self.best, MEASURES[self.measure]
        behind = "" if tried is best or tried.rows != best.rows else measure.behind(tried.score, best.score)
        rows = f"{tried.rows or self.rows:,}"
        return [tried.label, measure.score(tried.score), behind, f"{tried.log_evidence:.1f}", rows]

    def __str__(self) -> str:
        return table(self.header(), map(self.cells, self.tried))

    def __repr__(self) -> str:
        return str(self)


class History(list[Tried]):
    """What was tried, in order. It prints as a table."""

    def __str__(self) -> str:
        lines = [
            [t.label, f"{t.score:.4f}", f"{t.log_evidence:.1f}", f"{t.rows:,}", f"{t.seconds:.2f}"]
            if t.failure is None
            else [t.label, "failed", "", f"{t.rows:,}", f"{t.seconds:.2f}"]
            for t in self
        ]
        return table(["kernel", "score", "log evidence", "rows", "seconds"], lines)

    def __repr__(self) -> str:
        return str(self)


def best_first(tried: Iterable[Tried]) -> list[Tried]:
    """Those that could be evaluated, best first; equal ones in the order of trial."""
    return sorted((each for each in tried if each.failure is None), key=lambda each: -each.score)


def quoted(kernel: Any) -> Any:
    """The kernel with its numbers rounded, for printing."""
    for slot in slots_of(kernel):
        kernel = evolve_at(kernel, slot.path, **{slot.field: rounded(slot.value)})
        node = node_at(kernel, slot.path)
        if getattr(node, "shift", None) is not None:
            kernel = evolve_at(kernel, slot.path, shift=rounded(node.shift), scale=rounded(node.scale))
    return kernel
