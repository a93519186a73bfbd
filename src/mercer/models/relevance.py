"""Which inputs matter (automatic relevance determination, PRML 6.4.4)."""

import dataclasses

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import as_matrix, take_rows
from mercer.core.text import table
from mercer.kernels import Kernel, Standard
from mercer.kernels.stationary import Isotropic
from mercer.kernels.substitution import On, Warp
from mercer.learning.heuristics import centre_and_spread

ROWS = 2000  # the prediction's slope is looked at on so many training rows at most
NEGLIGIBLE = 0.02  # of the largest effect
CHANCE = 2.0  # standard errors of a slope, from noise alone
HARDLY = 2.0  # nats of evidence
LEAST = 1e-5  # of a variance
LONG = 30.0  # spreads of an input: a lengthscale beyond which the kernel does not bend along it


@dataclasses.dataclass(frozen=True, eq=False)
class Relevance:
    """A table with one line per input, most relevant first when printed.

    ``effect``: by how much the prediction moves, in standard deviations of it, per standard deviation of the input
    (root mean square over the training rows). ``lengthscale``: in the units of the input, where the kernel has one per
    input; NaN elsewhere. ``irrelevant``: the effect is below a fiftieth of the largest, or no more than noise alone
    gives to a slope along an input on which the kernel does not bend, or bends for less than two nats of evidence.
    """

    names: list[str]
    effect: np.ndarray
    lengthscale: np.ndarray
    spread: np.ndarray
    irrelevant: np.ndarray

    def __len__(self):
        return len(self.names)

    def __str__(self):
        rows = []
        for i in np.argsort(-self.effect, kind="stable"):
            length = self.lengthscale[i]
            relative = length / self.spread[i]
            shown = ["-", "-"] if np.isnan(length) else [f"{length:.3g}", f"{relative:.3g}"]
            rows.append([self.names[i], f"{self.effect[i]:.3f}", *shown, "irrelevant" if self.irrelevant[i] else ""])
        return table(["input", "effect", "lengthscale", "in spreads", ""], rows)

    __repr__ = __str__


def relevance(kernel, X, slope_of_mean, names, noise: float, cost_of_bending=None, least: float = LEAST) -> Relevance:
    """The table for a fitted model; ``slope_of_mean(Z)`` gives derivatives of the prediction (s, d), ``noise`` is a
    variance on its scale, ``cost_of_bending`` what the evidence loses without an input's lengthscale (d,), if known;
    functions of a variance below ``least`` do not count."""
    try:
        matrix = as_matrix(X)
    except DataError:
        raise DataError(
            "relevance is told for inputs that are numbers; these rows are of another kind, so there is nothing to "
            "move a little and see what happens."
        ) from None
    d = matrix.shape[1]
    names = list(names) if names is not None else [f"x{i}" for i in range(d)]
    spread = centre_and_spread(matrix)[1]
    constant = np.ptp(matrix, axis=0) == 0
    step = max(1, -(-len(matrix) // ROWS))
    slopes = slope_of_mean(take_rows(X, slice(None, None, step)))
    effect = np.sqrt(np.mean((slopes * spread) ** 2, axis=0))
    effect[constant] = 0.0
    total = float(np.sqrt(np.sum(effect**2))) or 1.0
    lengths = lengthscales(kernel, d, least)
    by_chance = CHANCE * np.sqrt(noise / len(matrix))
    negligible = effect <= NEGLIGIBLE * effect.max(initial=0.0)
    straight = np.isnan(lengths) | (lengths > LONG * spread)
    irrelevant = constant | negligible | (straight & (effect <= by_chance))
    if cost_of_bending is not None:
        # It bends, but hardly for a reason; and what is left without bending is its mean slope.
        trend = np.abs(np.mean(slopes, axis=0)) * spread
        irrelevant |= (cost_of_bending < HARDLY) & (trend <= by_chance)
    return Relevance(names, effect / total, lengths, spread, irrelevant)


def _seeing_all(kernel: Kernel):
    """The nodes whose inputs are the columns of X themselves, in their order: not those behind a selection or a map."""
    yield kernel
    if not isinstance(kernel, On | Warp):
        for _, child in kernel._children():
            if isinstance(child, Kernel):
                yield from _seeing_all(child)


def lengthscales(kernel: Kernel, d: int, least: float = LEAST) -> np.ndarray:
    """The shortest lengthscale the kernel has for each input, in its units; NaN where there is none."""
    shortest = np.full(d, np.nan)
    for node in _seeing_all(kernel):
        if isinstance(node, Isotropic):
            found = np.asarray(node.lengthscale)
        elif isinstance(node, Standard):
            found = 1 / np.sqrt(np.asarray(node.theta1)) * (1.0 if node.scale is None else node.scale)
            if node.theta0 < least:  # nothing of the function is left in this term
                continue
        else:
            continue
        if found.shape == (d,) or d == 1:
            shortest = np.fmin(shortest, found)
    return shortest
