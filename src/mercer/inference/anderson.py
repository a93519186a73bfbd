"""Anderson acceleration of fixed-point iterations (Anderson 1965)."""

import itertools

import numpy as np


class AndersonMixing:
    """Accelerates the iteration x <- x + change(x).

    The next x is a combination of the last few for which the change, if it were linear in x, would vanish.
    """

    def __init__(self, memory: int = 6) -> None:
        self.memory = memory
        self.past: list[tuple[np.ndarray, np.ndarray]] = []

    def next(self, x: np.ndarray, change: np.ndarray, scale: np.ndarray | float = 1.0, step: float = 1.0) -> np.ndarray:
        """The next x, with ``step`` times the remaining change. ``scale`` makes entries of changes comparable."""
        self.past = [*self.past[-self.memory :], (x, change)]
        moves = [(x2 - x1, c2 - c1) for (x1, c1), (x2, c2) in itertools.pairwise(self.past)]
        if moves:
            A = np.stack([(dc * scale).ravel() for _, dc in moves], axis=1)
            coefficients = np.linalg.lstsq(A, (change * scale).ravel(), rcond=1e-8)[0]
            for coefficient, (dx, dc) in zip(coefficients, moves, strict=True):
                x, change = x - coefficient * dx, change - coefficient * dc
        return x + step * change
