"""State of a search: the evaluations it made, from which a later search goes on.

A search is determined by its objective, its settings and its seed. So its evaluations are all there is to keep: another
search repeats the same steps, takes the values of the first one as long as they last, and computes the rest. A
criterion that starts from where its last evaluation ended (`Continuing`) gets that, too, when these have lasted.

>>> import numpy as np
>>> from mercer.solvers.base import Evaluation
>>> journal = Journal()
>>> journal.log("all rows").add(np.zeros(2), False, 0.0, Evaluation(-3.5, np.ones(2), 1.0))
>>> Journal(journal.state()).log("all rows").find(np.zeros(2), True, False, 0.0).value
-3.5
"""

import dataclasses
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from mercer.solvers.base import Evaluation

SAVE_INTERVAL_SECONDS = 5.0
MEMORY = "memory, "  # before the name of a criterion: that of the arrays of its memory
THETA_TOLERANCE = 1e-9  # within which an evaluation of the journal is the one asked for


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluations:
    """Values of one criterion: theta (m, p), values (m,), gradients (m, p), NaN where there is none, and the conditions
    of each: the jitter, and whether the amplitude was profiled, with its scale."""

    thetas: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    scales: np.ndarray
    jitters: np.ndarray
    profiled: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """Evaluations by the name of the criterion: the rows it is about, and the kernel where several are compared; and
    ``arrays`` by the name of a search that is not determined by evaluations."""

    evaluations: Mapping[str, Evaluations]
    arrays: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(found.values) for found in self.evaluations.values())


@runtime_checkable
class Continuing(Protocol):
    """A criterion whose evaluations depend on those before."""

    def memory(self) -> Mapping[str, np.ndarray]:
        """What later evaluations depend on, in arrays that are not changed afterwards."""

    def replayed(self, theta: np.ndarray, memory: Mapping[str, np.ndarray] | None) -> None:
        """Note that an evaluation at ``theta`` was taken from a journal. Where the next one has to be made, go on from
        the ``memory`` of this one; None before."""


class Log:
    """Evaluations of one criterion: those of an earlier search to be looked up, new ones to be kept; and the ``memory``
    of the criterion after the last one."""

    def __init__(
        self, earlier: Evaluations | None = None, added: Callable[[], None] = lambda: None,
        memory: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self._earlier, self._added, self.memory = earlier, added, memory
        self._new: list[tuple[np.ndarray, bool, float, Evaluation]] = []
        self._replayed = 0  # as long as this search makes the steps of the earlier one
        self._places: dict[tuple[bytes, bool, float], int] = {}
        if earlier is not None:
            conditions = zip(earlier.thetas, earlier.profiled, earlier.jitters, strict=True)
            for i, (theta, profiled, jitter) in enumerate(conditions):
                self._places[theta.tobytes(), bool(profiled), float(jitter)] = i

    @property
    def ended(self) -> bool:
        """Whether this search has made all steps of the earlier one."""
        return self._earlier is not None and self._replayed == len(self._earlier.values)

    def find(
        self, theta: np.ndarray, gradient: bool, profiled: bool, jitter: float, in_order: bool = False
    ) -> Evaluation | None:
        """What an earlier search found there: if it is the next of its evaluations, to the digits that another machine
        may round differently, or else at exactly this theta. None if it found nothing. ``in_order``: evaluations
        depend on those before, so that none counts after the last one was repeated."""
        found, i = self._earlier, self._replayed
        if found is None:
            return None
        alike = i < len(found.values) and found.profiled[i] == profiled and found.jitters[i] == jitter
        if alike and np.abs(theta - found.thetas[i]).max(initial=0.0) < THETA_TOLERANCE:
            self._replayed += 1
            return self._at(found, i, gradient)
        if in_order and self.ended:
            return None
        place = self._places.get((theta.tobytes(), profiled, jitter))
        return None if place is None else self._at(found, place, gradient)

    @staticmethod
    def _at(found: Evaluations, i: int, gradient: bool) -> Evaluation | None:
        slope = None if np.isnan(found.gradients[i]).any() else found.gradients[i]
        return None if gradient and slope is None else Evaluation(float(found.values[i]), slope, float(found.scales[i]))

    def add(
        self, theta: np.ndarray, profiled: bool, jitter: float, found: Evaluation,
        memory: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self._new.append((theta, profiled, jitter, found))
        self.memory = memory
        self._added()

    def evaluations(self) -> Evaluations | None:
        """All of them, as arrays; None if there are none."""
        if not self._new:
            return self._earlier
        slopes = [np.full(len(t), np.nan) if e.gradient is None else e.gradient for t, _, _, e in self._new]
        new = Evaluations(
            np.array([theta for theta, *_ in self._new]),
            np.array([e.value for *_, e in self._new]),
            np.array(slopes),
            np.array([e.scale for *_, e in self._new]),
            np.array([jitter for _, _, jitter, _ in self._new]),
            np.array([profiled for _, profiled, _, _ in self._new]),
        )
        if self._earlier is None:
            return new
        pairs = zip(vars(self._earlier).values(), vars(new).values(), strict=True)
        return Evaluations(*(np.concatenate(pair) for pair in pairs))


class Journal:
    """Logs of all criteria of a run, on top of the state of an earlier one.

    ``save`` is given the state every few seconds, and whenever `flush` is called.
    """

    def __init__(self, earlier: State | None = None, save: Callable[[State], None] | None = None) -> None:
        self._earlier, self._save = earlier, save
        self._logs: dict[str, Log] = {}
        self._arrays: dict[str, Mapping[str, np.ndarray]] = {} if earlier is None else dict(earlier.arrays)
        self._next = time.monotonic() + SAVE_INTERVAL_SECONDS
        self._changed = False

    def log(self, name: str) -> Log:
        if name not in self._logs:
            earlier = None if self._earlier is None else self._earlier.evaluations.get(name)
            self._logs[name] = Log(earlier, self._added, self._arrays.get(MEMORY + name))
        return self._logs[name]

    def state(self) -> State:
        earlier = {} if self._earlier is None else dict(self._earlier.evaluations)
        found = {name: log.evaluations() for name, log in self._logs.items()}
        memories = {MEMORY + name: log.memory for name, log in self._logs.items() if log.memory}
        kept = {name: each for name, each in found.items() if each is not None}
        return State(earlier | kept, self._arrays | memories)

    def arrays(self, name: str) -> Mapping[str, np.ndarray] | None:
        """What was put under this name last, by this search or an earlier one."""
        return self._arrays.get(name)

    def put(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep these arrays, which must not be changed afterwards, in place of earlier ones."""
        self._arrays[name] = arrays
        self._added()

    def _added(self) -> None:
        self._changed = True
        if self._save is not None and time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Save what has been added."""
        if self._save is not None and self._changed:
            self._save(self.state())
            self._changed, self._next = False, time.monotonic() + SAVE_INTERVAL_SECONDS


def rows_name(n: int, rows: np.ndarray | None) -> str:
    """Name of n rows: all of them if ``rows`` is None, or a subset, identified by a checksum."""
    return f"{n} rows" if rows is None else f"{n} rows {zlib.crc32(np.ascontiguousarray(rows).tobytes()):08x}"
