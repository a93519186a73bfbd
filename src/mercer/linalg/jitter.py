"""The jitter policy: what is added to the diagonal of a matrix that is not positive definite only by rounding.

Factorisations climb a ladder of this module, and report the jitter they ended with. Where it must not depend on the
matrix, it is one of the fixed amounts.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

MAX_JITTER = 1e-5  # relative to the mean of the diagonal; a matrix that needs more is indefinite


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Jitters to try, relative to the mean of the diagonal: the first, then ``step`` times more each, up to the last.

    The first is ``roundings`` times n eps, the rounding error of a matrix (n, n), but at least ``first``; the last is
    ``last``, or if given ``last_roundings`` times n eps.
    """

    roundings: float = 1.0
    first: float = 0.0
    step: float = 100.0
    last: float = MAX_JITTER
    last_roundings: float | None = None

    def __call__(self, n: int) -> Iterator[float]:
        unit = max(n, 10) * np.finfo(float).eps
        relative = max(self.first, self.roundings * unit)
        last = self.last if self.last_roundings is None else self.last_roundings * unit
        while relative < 0.99 * last:
            yield relative
            relative *= self.step
        yield last


FACTOR = Ladder()  # of one covariance matrix
LEARNING = Ladder(last=10 * MAX_JITTER)  # where no start has an evidence
SAMPLING = Ladder(first=1e-10)  # the first is always added: L^-1 f is bounded only then
REFINED = Ladder(roundings=0.01, step=10.0, last_roundings=100.0)  # small, since refinement corrects for it
PIVOTS = Ladder(first=1e-11, last=1e-7)  # of the covariance of the pivots of a preconditioner

# Fixed amounts, relative to a variance, for matrices that are semidefinite but for rounding.
FIXED_JITTER = 1e-8  # where a value must not jump as parameters change
SMALL_JITTER = 1e-10  # where no parameters are learned through the matrix
WHITENED_JITTER = 1e-12  # of values whose prior covariance is the identity
