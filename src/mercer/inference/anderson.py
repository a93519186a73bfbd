"""Anderson acceleration of fixed-point iterations."""

import itertools

import numpy as np


class Mixing:
    """A fixed point x = x + change(x), faster: the next x is mixed from the last few so that the change, were it linear
    in x, would vanish (Anderson 1965)."""

    def __init__(self, memory: int = 6):
        self.memory = memory
        self.past: list[tuple[np.ndarray, np.ndarray]] = []

    def next(self, x, change, step: float, unit) -> np.ndarray:
        """``unit`` multiplies changes so that their entries compare."""
        self.past = [*self.past[-self.memory :], (x, change)]
        moves = [(x2 - x1, c2 - c1) for (x1, c1), (x2, c2) in itertools.pairwise(self.past)]
        if moves:
            A = np.stack([(dc * unit).ravel() for _, dc in moves], axis=1)
            shares = np.linalg.lstsq(A, (change * unit).ravel(), rcond=1e-8)[0]
            for share, (dx, dc) in zip(shares, moves, strict=True):
                x, change = x - share * dx, change - share * dc
        return x + step * change
