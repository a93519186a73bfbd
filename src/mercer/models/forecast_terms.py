"""Kernels of the candidates that `forecast` compares: sums of terms with weak priors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mercer import priors
from mercer.kernels import Exponential, Kernel, Linear
from mercer.learning.seasons import CHANGE, SHAPE, period_shown, season

WANDER_SPANS = 10.0  # lengthscale of a random walk, in spans of the data: it hardly reverts to a mean

# Medians and standard deviations of the logarithms of parameters, for a target of unit variance and time in steps:
# learned from nothing, weak enough for a year of monthly values to overrule them.
PRIORS = {
    "wander": (0.02, 2.0), "line": (0.02**2, 1.5), "revert": (0.5, 1.5), "reversion": (12.0, 1.0),
    "season": (0.5, 1.5), "inputs": (0.1, 2.0), "noise": (0.1, 1.5),
}  # fmt: skip


def seasons_of(periods: Sequence[Any]) -> dict[str, Any]:
    """Terms of these periods, by name."""
    alone = len(periods) == 1
    return {"season" if alone else f"season {period_shown(period)}": period for period in periods}


def kernel_of(
    terms: Sequence[str], t: np.ndarray, step: float, seasons: Mapping[str, Any], dated: bool, others: int
) -> Kernel:
    """The sum of these terms, with priors on the scale of a target of unit variance."""
    span = t[-1] - t[0]
    only = not dated and not others
    parts: list[Kernel] = []
    for term in terms:
        if term in seasons:
            count = sum(each in seasons for each in terms)
            parts.append(_season(seasons[term], dated, only, count))
            continue
        if term == "wander":
            long = WANDER_SPANS * span
            part: Kernel = _scaled(Exponential(long).fix("lengthscale"), term, long / (2 * step))
        elif term == "line":
            part = _scaled(Linear(), term, step**-2)
        elif term == "revert":
            part = _scaled(_with(Exponential(PRIORS["reversion"][0] * step), "lengthscale", "reversion", step), term)
        else:
            part = _scaled(Linear(), term).on(list(range(1 + dated, 1 + dated + others)))
        parts.append(part if only or term == "inputs" else part.on(0))
    return sum(parts[1:], start=parts[0])


def _season(period: Any, dated: bool, only: bool, count: int) -> Kernel:
    part = _scaled(season(period, SHAPE[0], CHANGE[0]), "season", 1 / count)
    return part if only else part.on(1 if isinstance(period, str) else 0)


def _with(kernel: Kernel, field: str, prior: str, unit: float = 1.0) -> Any:
    """With a log-normal prior whose mode, as a density of the logarithm, is its median."""
    median, deviation = PRIORS[prior]
    return kernel.with_priors(**{field: priors.LogNormal(math.log(median * unit), deviation)})


def _scaled(kernel: Kernel, term: str, unit: float = 1.0) -> Any:
    median, deviation = PRIORS[term]
    product = (median * unit) * kernel
    (name,) = [each for each in product.parameters if each.endswith("variance")]
    return product.with_priors(**{name: priors.LogNormal(math.log(median * unit), deviation)})
