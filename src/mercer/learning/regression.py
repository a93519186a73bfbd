"""What learning asks of a model: the evidence of its data, where to begin, and what a vector of parameters means."""

import functools
import math
from typing import Any

import numpy as np

from mercer.core.coordinates import Layout, free_names, from_free, parameters_at, to_free
from mercer.core.inputs import take_rows
from mercer.learning import heuristics
from mercer.solvers.base import Evidence, Solver

LEAST_LOOSE_NOISE = 3e-3  # of the target's variance
NEGLIGIBLE_NOISE = 1e-8  # of it: lower floors are hardly ever reached


class Problem:
    """The evidence of one data set, on all rows or some, and where to begin: what learning asks of a model.

    ``noise``: one variance a row, or None to learn one, not below ``least_noise``. ``unknown``: whether the target has
    an unknown mean, which is integrated out.
    """

    def __init__(self, kernel, X, target, noise, solver: Solver, unknown: bool = False, least_noise: float = 0.0):
        self.kernel, self.X, self.target, self.noise, self.solver = kernel, X, target, noise, solver
        self.unknown, self.least_noise = unknown, least_noise
        self.n = len(target)
        self.layout = Layout.of(kernel)
        self.size = self.layout.size + (noise is None)

    def __call__(self, rows) -> Evidence:
        X, target, noise = self.X, self.target, self.noise
        if rows is not None:
            X, target, noise = take_rows(X, rows), target[rows], None if noise is None else noise[rows]
        H = np.ones((len(target), 1)) if self.unknown else None
        return self.solver.evidence(self.kernel, X, target, noise, H)

    def replaced(self, kernel) -> "Problem":
        """The same with another kernel."""
        return Problem(kernel, self.X, self.target, self.noise, self.solver, self.unknown, self.least_noise)

    def score(self, theta, jitter: float = 0.0) -> float:
        """Minus the mean CRPS of rows left out, at these parameters: the higher the better."""
        with self(None) as evidence:
            evidence.jitter = jitter
            return evidence.score(theta)

    def loosened(self, theta) -> np.ndarray | None:
        """``theta`` with a noise that has a slope: on few rows it may leave no trace, and from zero more rows do not
        lead back. None if it has one."""
        least = math.log(LEAST_LOOSE_NOISE * self.variance())
        if self.noise is not None or theta[-1] > least - 0.5:
            return None
        return np.append(theta[:-1], least)

    def variance(self) -> float:
        """Of the target, around zero; one if it is zero everywhere."""
        return float(np.mean(self.target**2)) or 1.0

    def floor(self) -> np.ndarray:
        """Of theta: noise is not below the resolution of the target."""
        floor = np.full(self.size, -np.inf)
        if self.noise is None and self.least_noise > 0:
            floor[-1] = math.log(self.least_noise)
        return floor

    def _theta(self, kernel, noise):
        theta = np.asarray(to_free(kernel), dtype=float)
        return np.append(theta, math.log(noise)) if self.noise is None else theta

    @functools.cached_property
    def _free(self) -> np.ndarray:
        return np.asarray(to_free(self.kernel), dtype=float)

    def start(self, noise):
        return np.append(self._free, math.log(noise)) if self.noise is None else self._free.copy()

    def candidates(self):
        spread = self.variance()
        shares = heuristics.NOISES if self.noise is None else (0.1,)
        starts = heuristics.starts(self.kernel, self.X, spread, self.unknown)
        names = ["as given", *(f"scaled to the data ({i})" for i in range(1, len(starts)))]
        return [
            (f"{name}, noise {share:g}" if self.noise is None else name, self._theta(kernel, share * spread))
            for name, kernel in zip(names, starts, strict=True)
            for share in shares
        ]

    def amplitude(self):
        """Which coordinates, moved together, multiply C; None if they do not reach all of it."""
        mask = heuristics.amplitude(self.kernel, self.layout)
        if mask is None or (self.noise is not None and self.noise.any()):
            return None
        return np.append(mask, True) if self.noise is None else mask

    def profiled(self):
        """As `amplitude`, for learning: None also where noise may be held up by its floor, which does not scale."""
        held_up = self.noise is None and self.least_noise > NEGLIGIBLE_NOISE * self.variance()
        return None if held_up else self.amplitude()

    def logarithmic(self):
        kinds = [np.full(len(p.entries), p.constraint.logarithmic) for p in self.layout.places]
        return np.concatenate([*kinds, [True] if self.noise is None else []]).astype(bool)

    @functools.cached_property
    def _names(self) -> list[str]:
        return [*free_names(self.kernel), *(["noise"] if self.noise is None else [])]

    def names(self) -> list[str]:
        return list(self._names)

    def at(self, theta) -> tuple[Any, np.ndarray]:
        """The kernel, as plain numbers, and the noise: (n,)."""
        kernel = from_free(self.kernel, theta[: self.layout.size])
        return kernel, np.full(self.n, math.exp(theta[-1])) if self.noise is None else self.noise

    @functools.cached_property
    def _slots(self):
        return self.kernel._slots()

    def parameters(self, theta, scale: float) -> dict[str, Any]:
        """Values on the natural scale, by name; noise in the units of a target ``scale`` times this one."""
        noise = {"noise": math.exp(theta[-1]) * scale**2} if self.noise is None else {}
        return {**parameters_at(self._slots, theta), **noise}
