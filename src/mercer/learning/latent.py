"""The approximate evidence of labels, ln p(t | theta), and its gradient: what learning a classifier climbs.

One kernel, or one for each class; theta is the optimiser's vector, the free parameters of one kernel after the other.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import Layout, free_names, from_free, parameters_at, to_free
from mercer.core.inputs import take_rows
from mercer.core.parameters import Slot, slots_of
from mercer.inference.sites import Covariance
from mercer.learning import heuristics
from mercer.learning.optimise import Prior
from mercer.solvers.base import Evaluation

# Variances of the latent function where learning may begin: a hint of a class, or nearly certain ones.
AMPLITUDES = (1.0, 10.0)
ROUNDING = 1e-6


class LatentEvidence:
    """At one theta after another, on fixed rows. Inference begins where it ended the last time.

    ``infer(covariances, codes, start, gradient)`` gives an object with ``log_evidence`` and ``slope(contracts)``, or
    None where there is no value. Memory: a matrix for each kernel, and what inference takes.
    """

    def __init__(self, kernels, X, codes, infer: Callable):
        self.n, self.codes, self.infer = len(codes), codes, infer
        self.found: Any = None  # the last approximation
        self.iterations = 0  # of inference, at all theta together
        self.triangles = [gram.triangle(kernel, X) for kernel in kernels]
        self.sizes = [triangle.layout.size for triangle in self.triangles]
        self.size = sum(self.sizes)
        self._covariances = [Covariance(np.zeros((self.n, self.n))) for _ in kernels]
        self.jitter, self.diagonal = 0.0, 1.0

    def __enter__(self):
        for triangle in self.triangles:
            triangle.__enter__()
        return self

    def __exit__(self, *error):
        for triangle in self.triangles:
            triangle.__exit__(*error)

    def split(self, theta) -> list[np.ndarray]:
        """Each kernel's part of theta."""
        return np.split(np.asarray(theta, dtype=float), np.cumsum(self.sizes)[:-1])

    def covariances(self, theta, accurate: bool = False) -> list[Covariance]:
        for triangle, part, covariance in zip(self.triangles, self.split(theta), self._covariances, strict=True):
            triangle.fill(part, covariance.K, accurate)
            covariance.K.ravel()[:: self.n + 1] += self.jitter
        self.diagonal = float(np.mean([np.mean(K.diagonal) for K in self._covariances]))
        return self._covariances

    def __call__(self, theta, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        # NaN marks tiles where fast distances lost digits: then all are computed by the accurate formula.
        return self._evaluate(theta, gradient, accurate=False) or self._evaluate(theta, gradient, accurate=True)

    def _evaluate(self, theta, gradient, accurate) -> Evaluation | None:
        with np.errstate(all="ignore"):
            found = self.infer(self.covariances(theta, accurate), self.codes, self.found, gradient)
            if found is None or not found.log_evidence < ROUNDING:  # NaN, or more probable than certain
                return None
            self.found = found
            self.iterations += found.iterations
            if not gradient:
                return Evaluation(found.log_evidence, None, 1.0)
            contracts = [
                lambda inverse, a, triangle=triangle, part=part: triangle.contract(part, inverse, a)
                for triangle, part in zip(self.triangles, self.split(theta), strict=True)
            ]
            slope = found.slope(contracts)
        return Evaluation(found.log_evidence, slope, 1.0) if np.isfinite(slope).all() else None


class LabelProblem:
    """What learning asks of a classifier: its evidence on all rows or some, where to begin, what theta means."""

    def __init__(self, kernels, X, codes, infer):
        self.kernels, self.X, self.codes, self.infer = kernels, X, codes, infer
        self.n = len(codes)
        self.evidence: LatentEvidence | None = None  # of all rows, the last one asked for
        self.layouts = [Layout.of(kernel) for kernel in kernels]
        self.size = sum(layout.size for layout in self.layouts)

    def __call__(self, rows):
        if rows is None:
            self.evidence = LatentEvidence(self.kernels, self.X, self.codes, self.infer)
            return self.evidence
        part = self.part(rows)
        return LatentEvidence(part.kernels, part.X, part.codes, self.infer)

    def part(self, rows) -> "LabelProblem":
        """The same on some rows."""
        return LabelProblem(self.kernels, take_rows(self.X, rows), self.codes[rows], self.infer)

    def replaced(self, kernels) -> "LabelProblem":
        """The same with other kernels."""
        return LabelProblem(kernels, self.X, self.codes, self.infer)

    def start(self) -> np.ndarray:
        return np.concatenate([np.zeros(0), *(np.asarray(to_free(kernel), dtype=float) for kernel in self.kernels)])

    def candidates(self) -> list[tuple[str, np.ndarray]]:
        """As given, and scaled to the data; all kernels in the same way."""
        found = [("as given", self.start())]
        for amplitude in AMPLITUDES:
            starts = [heuristics.starts(kernel, self.X, amplitude) for kernel in self.kernels]
            for i in range(1, min(map(len, starts))):
                theta = np.concatenate([np.asarray(to_free(s[i]), dtype=float) for s in starts])
                if not any(np.array_equal(theta, other) for _, other in found):
                    found.append((f"scaled to the data ({len(found)})", theta))
        return found

    def likeliest(self, candidates, infer, rows: int) -> list[tuple[str, np.ndarray]]:
        """The candidate with the highest evidence by ``infer``, on ``rows`` of the rows; all, if none has any."""
        some = self if rows >= self.n else self.part(np.random.default_rng(0).permutation(self.n)[:rows])
        with LabelProblem(some.kernels, some.X, some.codes, infer)(None) as evidence:
            found = [evidence(theta, gradient=False) for _, theta in candidates]
        there = [i for i, answer in enumerate(found) if answer is not None]
        return [candidates[max(there, key=lambda i: found[i].value)]] if there else candidates

    def amplitude(self) -> np.ndarray | None:
        """Which coordinates, moved together, multiply all kernels; None where there are none."""
        masks = [heuristics.amplitude(*both) for both in zip(self.kernels, self.layouts, strict=True)]
        found = [mask for mask in masks if mask is not None]
        return np.concatenate(found) if len(found) == len(masks) else None

    def ceiling(self, variance: float) -> np.ndarray:
        """Of theta, where no term of a kernel may have more than this ``variance``; infinite elsewhere."""
        both = [[to_free(heuristics.largest(k, self.X, v)) for k in self.kernels] for v in (variance, 0.5 * variance)]
        at, below = (np.concatenate(found) for found in both)
        return np.where(at > below, at, np.inf)

    def logarithmic(self) -> np.ndarray:
        places = [place for layout in self.layouts for place in layout.places]
        return np.concatenate([np.zeros(0, bool), *(np.full(len(p.entries), p.constraint.logarithmic) for p in places)])

    def names(self) -> list[str]:
        if len(self.kernels) == 1:
            return free_names(self.kernels[0])
        return [f"class{c}_{name}" for c, kernel in enumerate(self.kernels) for name in free_names(kernel)]

    def at(self, theta) -> list:
        """The kernels, as plain numbers."""
        return [from_free(kernel, part) for kernel, part in zip(self.kernels, self._parts(theta), strict=True)]

    def _parts(self, theta) -> list[np.ndarray]:
        return np.split(theta, np.cumsum([layout.size for layout in self.layouts])[:-1])

    @functools.cached_property
    def _slots(self) -> list[list[Slot]]:
        return [slots_of(kernel) for kernel in self.kernels]

    def parameters(self, theta) -> dict[str, Any]:
        """Values on the natural scale, by name."""
        named = [parameters_at(slots, part) for slots, part in zip(self._slots, self._parts(theta), strict=True)]
        if len(named) == 1:
            return named[0]
        return {f"class{c}_{name}": value for c, values in enumerate(named) for name, value in values.items()}

    def prior(self):
        """ln p(theta) and its gradient, of the priors the kernels carry."""
        priors = [Prior(kernel) for kernel in self.kernels]

        def both(theta):
            found = [prior(part) for prior, part in zip(priors, self._parts(theta), strict=True)]
            return sum(value for value, _ in found), np.concatenate([slope for _, slope in found])

        return both
