"""Distribution over ordered grades."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from mercer.gp.likelihoods.predictive import Integrated, checked_levels, randomised


@dataclasses.dataclass(frozen=True, eq=False)
class Grades(Integrated):
    """Probabilities (s, K) of K grades, which are numbers in increasing order."""

    grades: np.ndarray
    probabilities: np.ndarray

    @property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        return self.probabilities @ self.grades

    @property
    def deviation(self) -> np.ndarray:  # type: ignore[override]
        return np.sqrt(np.sum(self.probabilities * (self.grades - self.mean[:, None]) ** 2, axis=1))

    def _levels(self) -> np.ndarray:
        return np.minimum(np.cumsum(self.probabilities, axis=1), 1.0)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        code = np.searchsorted(self.grades, np.broadcast_to(y, len(self.probabilities)), side="right") - 1
        levels = np.concatenate([np.zeros((len(self.probabilities), 1)), self._levels()], axis=1)
        return levels[np.arange(len(levels)), code + 1]

    def quantile(self, q: ArrayLike) -> np.ndarray:
        """The smallest grade with cdf >= q."""
        q = checked_levels(q)
        levels = self._levels()
        levels[:, -1] = 1.0
        code = (levels[:, None, :] < np.atleast_1d(q)[:, None] - 1e-14).sum(axis=2)
        found = self.grades[code]
        return found[:, 0] if q.ndim == 0 else found

    def log_density(self, y: ArrayLike) -> np.ndarray:
        """ln of the probability of a grade."""
        y = np.broadcast_to(np.asarray(y, dtype=float), len(self.probabilities))
        hit = y[:, None] == self.grades
        with np.errstate(divide="ignore"):
            return np.log(np.sum(np.where(hit, self.probabilities, 0.0), axis=1))

    def z(self, y: ArrayLike) -> np.ndarray:
        """`randomised`, as of integers."""
        upper = self.cdf(y)
        return randomised(upper - np.exp(self.log_density(y)), upper)

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        u = rng.random((len(self.probabilities), size))
        return self.grades[np.minimum((self._levels()[:, None, :] < u[:, :, None]).sum(axis=2), len(self.grades) - 1)]
