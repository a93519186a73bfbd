"""Correlations between the functions behind several targets, and how well the data determine them."""

import dataclasses
import itertools
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.inputs import Inputs, count_rows, take_rows
from mercer.core.text import table
from mercer.learning.objective import ModelObjective
from mercer.models.output_rows import all_targets
from mercer.scores import half_width

MAX_PLACES = 25  # over which covariances of kernels that are not stationary are averaged
STEP = 1e-3  # of theta, for the curvature of the evidence
SLOPE_STEP = 1e-5  # of theta, for derivatives of correlations
MIN_CURVATURE = 1e-3  # in nats: less is a direction the data do not determine
MAX_HALVINGS, MAX_FALL_NATS = 8, 1.0  # of an axis, until the evidence falls by no more than twice a Gaussian's fall
QUICK_FLOPS = 2e11  # of all evaluations: a few seconds
MAX_CORRELATION = 1 - 1e-9
MAX_CORRELATION_WITH_ERROR = 0.9995  # printed without a standard error beyond it


@dataclasses.dataclass(frozen=True, eq=False)
class Correlations:
    """Correlations (P, P) of the functions of P targets at one place, averaged over places; prints as a table.

    ``error`` (P, P) are standard errors, and ``low`` and ``high`` the ends of 95% intervals, which are those of
    Fisher's z = atanh(correlation): None where they were not computed.
    """

    names: list[Any]
    matrix: np.ndarray
    error: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def __str__(self) -> str:
        rows = []
        for i, j in itertools.combinations(range(len(self.names)), 2):
            row = [f"{self.names[i]}, {self.names[j]}", f"{self.matrix[i, j]:.3f}"]
            if self.error is not None and self.low is not None and self.high is not None:
                # Near one a normal distribution, which an error is of, would reach beyond it; the interval does not.
                at_end = abs(self.matrix[i, j]) > MAX_CORRELATION_WITH_ERROR
                row += ["-" if at_end else f"{self.error[i, j]:.3f}", f"{self.low[i, j]:.3f} to {self.high[i, j]:.3f}"]
            rows.append(row)
        if self.error is None:
            return table(["targets", "correlation"], rows) + "\ncorrelations() computes their standard errors."
        return table(["targets", "correlation", "standard error", "95% interval"], rows)

    __repr__ = __str__


def costs_little(objective: ModelObjective) -> bool:
    """Whether the curvature takes a few seconds at most."""
    return 2 * objective.size * float(objective.n) ** 3 < QUICK_FLOPS


def correlations(
    objective: Any, theta: np.ndarray, places: Inputs, names: list[Any], errors: bool = True
) -> Correlations:
    """At theta, an optimum of the evidence; ``errors``: with standard errors, by the delta method.

    With H the negative curvature of the log evidence, the covariance of theta is about H^-1, and the variance of z =
    atanh(r(theta)) about g^T H^-1 g with g its gradient.
    """
    P = len(names)
    s = count_rows(places)
    some = take_rows(places, np.unique(np.linspace(0, s - 1, min(s, MAX_PLACES)).round().astype(int)))
    rows, count = gram.Gram(objective.kernel, all_targets(some, P)), count_rows(some)

    def at(theta: np.ndarray) -> np.ndarray:
        K = gram.within(objective.at(theta).kernel, rows).reshape(count, P, count, P)
        B = np.mean(K[np.arange(count), :, np.arange(count), :], axis=0)
        deviation = np.sqrt(np.diag(B))
        unit = np.where(deviation > 0, deviation, 1.0)
        return B / np.outer(unit, unit)

    matrix = at(theta)
    if not errors or not objective.size or P == 1:
        return Correlations(names, matrix)
    z = lambda r: np.arctanh(np.clip(r, -MAX_CORRELATION, MAX_CORRELATION))
    own = objective.layout.part("kernels")
    slopes = np.zeros((objective.size, P, P))
    for i in range(own.start, own.stop):
        step = SLOPE_STEP * np.eye(objective.size)[i]
        slopes[i] = (z(at(theta + step)) - z(at(theta - step))) / (2 * SLOPE_STEP)
    root = _covariance_root(objective, theta)
    if root is None:
        return Correlations(names, matrix)
    spread = np.sqrt(np.sum(np.tensordot(root.T, slopes, axes=1) ** 2, axis=0))
    np.fill_diagonal(spread, 0.0)
    low, high = (np.tanh(z(matrix) + sign * half_width(0.95) * spread) for sign in (-1, 1))
    return Correlations(names, matrix, spread * (1 - matrix**2), low, high)


def _covariance_root(objective: Any, theta: np.ndarray) -> np.ndarray | None:
    """R with R R^T the inverse of the negative curvature of the log evidence, from differences of gradients; None where
    there is no value nearby. Directions without curvature, such as rotations of loadings, count as nearly unknown."""
    H = np.zeros((objective.size, objective.size))
    with objective.criterion() as evidence:
        for i, step in enumerate(STEP * np.eye(objective.size)):
            with np.errstate(all="ignore"):
                up, down = evidence(theta + step), evidence(theta - step)
            if up is None or down is None:
                return None
            H[i] = (down.gradient - up.gradient) / (2 * STEP)
        here = evidence(theta, gradient=False)
        values, vectors = np.linalg.eigh((H + H.T) / 2)
        root = vectors / np.sqrt(np.maximum(values, MIN_CURVATURE))
        for i in np.flatnonzero(values < 1.0).tolist():
            root[:, i] *= _reach(evidence, here, theta, root[:, i])
    return root


def _reach(evidence: Any, here: Any, theta: np.ndarray, axis: np.ndarray) -> float:
    """How much of a long axis the evidence allows: its curvature is that of a small step, and the logarithm of a
    variance near zero has none there, but may not grow for ever."""
    share = 1.0
    for _ in range(MAX_HALVINGS):
        with np.errstate(all="ignore"):
            ends = [evidence(theta + sign * share * axis, gradient=False) for sign in (1, -1)]
        if here is not None and all(end is not None and end.value > here.value - MAX_FALL_NATS for end in ends):
            break
        share /= 2
    return share
