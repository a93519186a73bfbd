"""From an optimum to the posterior around it: ``learning="laplace"`` and ``"nuts"``."""

from mercer.learning.chains import CHAINS, WARMUP, nuts
from mercer.learning.doubt import LogPosterior, ThetaPosterior
from mercer.learning.laplace_design import GRID_EVALUATIONS, MAX_GRID_PARAMETERS, directions, laplace
from mercer.learning.objective import Objective
from mercer.learning.optimise import Learned, OutOfTime, Settings
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
    settings: Settings | None = None,
    most: int | None = None,
) -> ThetaPosterior | None:
    """The posterior of theta around the optima that were learned; None if there is no value at any of them. The prior
    of the objective must be a density of theta. ``most``: points to keep for prediction.

    Ctrl-C, or the end of the time of the ``settings``, ends it with the draws made so far, or the points of the grid;
    `KeyboardInterrupt` where these are too few.
    """
    settings = Settings() if settings is None else settings
    line = Progress.of(settings.progress)
    try:
        with objective.criterion() as criterion:
            criterion.jitter = learned.jitter

            def watch(count: int) -> None:
                if settings.out_of_time:
                    raise OutOfTime
                if method == "laplace":
                    line(f"integrating over parameters, evaluation {count}")

            posterior = LogPosterior(objective, criterion, watch)
            if method == "laplace":
                return laplace(posterior, learned.optima, objective.n, seed, most)
            return nuts(posterior, learned.optima, objective.n, n_samples, seed, line, most)
    finally:
        line.close()
