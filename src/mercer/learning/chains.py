"""The posterior of theta by sampling, from several chains around the modes that learning found."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from mercer.core.errors import NumericalWarning
from mercer.core.random import generator
from mercer.inference.sampling.nuts import sample
from mercer.learning.climb import Optimum
from mercer.learning.doubt import LogPosterior, Peak, ThetaPosterior, most_points, peaks, thinned

CHAINS = 4
WARMUP = 200  # moves of each chain
START_SPREADS = (1.5, 1.0, 0.5, 0.0)  # standard deviations of the Gaussian at the mode, tried one after the other
MAX_RHAT, MIN_EFFECTIVE_SIZE = 1.05, 50.0  # of every parameter; beyond, there is a warning
MAX_DIVERGENT_SHARE = 0.05  # of the moves


def nuts(
    posterior: LogPosterior,
    optima: Sequence[Optimum],
    n: int,
    n_samples: int = 1000,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
    most: int | None = None,
) -> ThetaPosterior | None:
    """``n_samples`` draws of p(theta | y) by `CHAINS` chains, of which ``most`` are kept for prediction (None: as many
    as memory of n rows allows); None if there is no value at any optimum.

    Chains start around all modes, in turn, and their metric at the curvature of the highest. Every move takes about
    three to seven evaluations with gradients.
    """
    modes = peaks(posterior, optima)
    if not modes:
        return None
    rng = generator(seed)
    starts = [_start(posterior, modes[i % len(modes)], rng) for i in range(CHAINS)]
    each = max(4, -(-n_samples // CHAINS))
    chains = sample(posterior, starts, modes[0].theta, modes[0].root, each, WARMUP, rng, progress)
    draws = chains.draws.reshape(-1, posterior.size)
    few, weights = thinned(draws, np.full(len(draws), 1 / len(draws)), most or most_points(n))
    diagnostics = {
        **chains.diagnostics(), "chains": CHAINS, "divergences": int(chains.divergences),
        "interrupted": chains.interrupted,
    }  # fmt: skip
    return ThetaPosterior("nuts", few, weights, draws, posterior.logarithmic, posterior.evaluations, diagnostics)


def _start(posterior: LogPosterior, mode: Peak, rng: np.random.Generator) -> np.ndarray:
    for spread in START_SPREADS:
        theta = mode.theta + spread * mode.root @ rng.standard_normal(posterior.size)
        if posterior(theta) is not None:
            return theta
    return mode.theta


def problems(found: ThetaPosterior) -> list[str]:
    """What is wrong with chains, as ends of a sentence."""
    d = found.diagnostics
    said: list[str] = []
    if found.method != "nuts":
        return said
    rhat, size = float(np.max(d["rhat"])), float(min(np.min(d["effective_size"]), np.min(d["effective_tail_size"])))
    if not rhat < MAX_RHAT:
        said.append(f"chains disagree (R-hat {rhat:.2f})")
    if not size > MIN_EFFECTIVE_SIZE:
        said.append(f"the slowest parameter has only {size:.0f} effective draws")
    if d["divergences"] > MAX_DIVERGENT_SHARE * len(found.draws):
        said.append(f"{d['divergences']} of {len(found.draws)} moves diverged")
    return said


def warn_of_chains(found: ThetaPosterior, stacklevel: int) -> None:
    """Warn of poor chains; ``stacklevel`` as in `warnings.warn`, counted from here."""
    said = problems(found)
    if said:
        warnings.warn(
            f"sampling of the parameters may not have converged: {'; '.join(said)}. Try a larger n_samples, narrower "
            "priors, or learning='laplace'.",
            NumericalWarning,
            stacklevel=stacklevel,
        )
