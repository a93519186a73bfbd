"""What learning asks of a model: the evidence of its data, where to begin, and what a vector of parameters means."""

import math
from typing import Any

import numpy as np

from mercer.core.coordinates import Layout, free_names, from_free, parameters_at, to_free
from mercer.core.inputs import take_rows
from mercer.learning import heuristics
from mercer.learning.evidence import evidence


class Problem:
    """The evidence of one data set, on all rows or some, and where to begin: what learning asks of a model."""

    def __init__(self, kernel, X, target, noise, method):
        self.kernel, self.X, self.target, self.noise, self.method = kernel, X, target, noise, method
        self.n = len(target)
        self.layout = Layout.of(kernel)
        self.size = self.layout.size + (noise is None)

    def __call__(self, rows):
        if rows is None:
            return evidence(self.kernel, self.X, self.target, self.noise, self.method)
        noise = None if self.noise is None else self.noise[rows]
        return evidence(self.kernel, take_rows(self.X, rows), self.target[rows], noise, self.method)

    def _theta(self, kernel, noise):
        theta = np.asarray(to_free(kernel), dtype=float)
        return np.append(theta, math.log(noise)) if self.noise is None else theta

    def start(self, noise):
        return self._theta(self.kernel, noise)

    def candidates(self):
        spread = float(np.mean(self.target**2)) or 1.0
        shares = heuristics.NOISES if self.noise is None else (0.1,)
        starts = heuristics.starts(self.kernel, self.X, spread)
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

    def logarithmic(self):
        kinds = [np.full(len(p.entries), p.constraint.logarithmic) for p in self.layout.places]
        return np.concatenate([*kinds, [True] if self.noise is None else []]).astype(bool)

    def names(self):
        return [*free_names(self.kernel), *(["noise"] if self.noise is None else [])]

    def at(self, theta) -> tuple[Any, np.ndarray]:
        """The kernel, as plain numbers, and the noise: (n,)."""
        kernel = from_free(self.kernel, theta[: self.layout.size])
        return kernel, np.full(self.n, math.exp(theta[-1])) if self.noise is None else self.noise

    def parameters(self, theta, scale: float) -> dict[str, Any]:
        """Values on the natural scale, by name; noise in the units of a target ``scale`` times this one."""
        noise = {"noise": math.exp(theta[-1]) * scale**2} if self.noise is None else {}
        return {**parameters_at(self.kernel, theta), **noise}
