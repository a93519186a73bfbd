"""What learning asks of a model: the evidence of its data, where to begin, and what a vector of parameters means."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.core.coordinates import Layout, free_names, from_free, parameters_at, to_free
from mercer.core.inputs import take_rows
from mercer.core.parameters import slots_of
from mercer.gp.noise import as_noise
from mercer.learning import heuristics
from mercer.learning.optimise import Prior
from mercer.solvers.base import Evidence, Solver

LEAST_LOOSE_NOISE = 3e-3  # of the target's variance
NEGLIGIBLE_NOISE = 1e-8  # of it: lower floors are hardly ever reached


class Problem:
    """The evidence of one data set, on all rows or some, and where to begin: what learning asks of a model.

    ``noise`` is a `Noise`, or what makes one. ``unknown``: whether the target has an unknown mean, which is integrated
    out.
    """

    def __init__(self, kernel, X, target, noise, solver: Solver, unknown: bool = False):
        self.kernel, self.X, self.target, self.solver, self.unknown = kernel, X, target, solver, unknown
        self.n = len(target)
        self.noise = as_noise(noise, self.n)
        self.layout = Layout.of(kernel)
        self.size = self.layout.size + self.noise.size

    def __call__(self, rows) -> Evidence:
        X, target, noise = self.X, self.target, self.noise
        if rows is not None:
            X, target, noise = take_rows(X, rows), target[rows], noise.take(rows)
        H = np.ones((len(target), 1)) if self.unknown else None
        return self.solver.evidence(self.kernel, X, target, noise, H)

    def replaced(self, kernel) -> "Problem":
        """The same with another kernel."""
        return Problem(kernel, self.X, self.target, self.noise, self.solver, self.unknown)

    def score(self, theta, jitter: float = 0.0) -> float:
        """Minus the mean CRPS of rows left out, at these parameters: the higher the better."""
        with self(None) as evidence:
            evidence.jitter = jitter
            return evidence.score(theta)

    def split(self, theta) -> tuple[np.ndarray, np.ndarray]:
        """The kernel's part of theta, and the noise's."""
        return theta[: self.layout.size], theta[self.layout.size :]

    def loosened(self, theta) -> np.ndarray | None:
        """``theta`` with a noise that has a slope: on few rows it may leave no trace, and from zero more rows do not
        lead back. None if it has one."""
        own, free = self.split(theta)
        loose = self.noise.raised_to(LEAST_LOOSE_NOISE * self.variance(), free)
        return None if loose is None else np.concatenate([own, loose])

    def variance(self) -> float:
        """Of the target, around zero; one if it is zero everywhere."""
        return float(np.mean(self.target**2)) or 1.0

    def floor(self) -> np.ndarray:
        """Of theta: noise is not below the resolution of the target."""
        return np.concatenate([np.full(self.layout.size, -np.inf), self.noise.floor()])

    @functools.cached_property
    def _free(self) -> np.ndarray:
        return np.asarray(to_free(self.kernel), dtype=float)

    def start(self, noise: float) -> np.ndarray:
        """The kernel as it is, and this variance where noise is learned."""
        return np.concatenate([self._free, self.noise.start(noise)])

    def candidates(self) -> list[tuple[str, np.ndarray]]:
        spread = self.variance()
        shares = heuristics.NOISES if self.noise.size else heuristics.NOISES[:1]
        starts = heuristics.starts(self.kernel, self.X, spread, self.unknown)
        names = ["as given", *(f"scaled to the data ({i})" for i in range(1, len(starts)))]
        return [
            (
                f"{name}, noise {share:g}" if self.noise.size else name,
                np.concatenate([np.asarray(to_free(kernel), dtype=float), self.noise.start(share * spread)]),
            )
            for name, kernel in zip(names, starts, strict=True)
            for share in shares
        ]

    def amplitude(self) -> np.ndarray | None:
        """Which coordinates, moved together, multiply C; None if they do not reach all of it."""
        mask, own = heuristics.amplitude(self.kernel, self.layout), self.noise.amplitude()
        return None if mask is None or own is None else np.concatenate([mask, own])

    def profiled(self) -> np.ndarray | None:
        """As `amplitude`, for learning: None also where noise may be held up by its floor, which does not scale."""
        held_up = (self.noise.floor() > math.log(NEGLIGIBLE_NOISE * self.variance())).any()
        return None if held_up else self.amplitude()

    def logarithmic(self) -> np.ndarray:
        kinds = [np.full(len(p.entries), p.constraint.logarithmic) for p in self.layout.places]
        return np.concatenate([*kinds, np.ones(self.noise.size)]).astype(bool)

    def prior(self) -> Callable:
        """ln p(theta) and its gradient, of the priors that the kernel and the noise carry."""
        of_kernel = Prior(self.kernel)

        def both(theta) -> tuple[float, np.ndarray]:
            own, free = self.split(theta)
            (value, slope), (other, other_slope) = of_kernel(own), self.noise.log_prior(free)
            return value + other, np.concatenate([slope, other_slope])

        return both

    @functools.cached_property
    def _names(self) -> list[str]:
        return [*free_names(self.kernel), *self.noise.names]

    def names(self) -> list[str]:
        return list(self._names)

    def at(self, theta) -> tuple[Any, np.ndarray]:
        """The kernel, as plain numbers, and the noise: (n,)."""
        own, free = self.split(theta)
        return from_free(self.kernel, own), self.noise.variances(free, self.n)

    @functools.cached_property
    def _slots(self):
        return slots_of(self.kernel)

    def parameters(self, theta, scale: float) -> dict[str, Any]:
        """Values on the natural scale, by name; noise in the units of a target ``scale`` times this one."""
        own, free = self.split(theta)
        return {**parameters_at(self._slots, own), **self.noise.parameters(free, scale**2)}
