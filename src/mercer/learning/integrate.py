"""From an optimum to the posterior around it: ``learning="laplace"`` and ``"nuts"``."""

from mercer.learning.chains import CHAINS, WARMUP, nuts
from mercer.learning.doubt import LogPosterior, ThetaPosterior
from mercer.learning.laplace_design import GRID_EVALUATIONS, MAX_GRID_PARAMETERS, directions, laplace
from mercer.learning.objective import Objective
from mercer.learning.optimise import Learned
from mercer.learning.progress import Progress

INTEGRATED = ("laplace", "nuts")  # values of ``learning=`` that average over parameters
USE_PRIORS = ("map", *INTEGRATED)
EVALUATIONS_PER_MOVE = 4  # of a chain, measured on benchmarks


def expected_evaluations(method: str | None, parameters: int, n_samples: int) -> int:
    """Evaluations of the evidence that integrating over this number of parameters takes, around one mode.

    >>> expected_evaluations("laplace", 2, 1000), expected_evaluations("laplace", 5, 1000)
    (54, 47)
    """
    if method not in INTEGRATED or not parameters:
        return 0
    if method == "nuts":
        return EVALUATIONS_PER_MOVE * (n_samples + CHAINS * WARMUP)
    if parameters <= MAX_GRID_PARAMETERS:
        return 2 * parameters + GRID_EVALUATIONS[parameters - 1]
    return 4 * parameters + 1 + len(directions(parameters))


def integrated(
    objective: Objective,
    learned: Learned,
    method: str,
    seed: int,
    n_samples: int = 1000,
    progress: bool = False,
    most: int | None = None,
) -> ThetaPosterior | None:
    """The posterior of theta around the optima that were learned; None if there is no value at any of them. The prior
    of the objective must be a density of theta. ``most``: points to keep for prediction."""
    line = Progress(shown=progress)
    try:
        with objective.criterion() as criterion:
            criterion.jitter = learned.jitter
            watch = lambda count: line(f"integrating over parameters, evaluation {count}")
            if method == "laplace":
                return laplace(LogPosterior(objective, criterion, watch), learned.optima, objective.n, seed, most)
            posterior = LogPosterior(objective, criterion)
            return nuts(posterior, learned.optima, objective.n, n_samples, seed, line, most)
    finally:
        line.close()
