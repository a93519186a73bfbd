"""From an optimum to the posterior around it: ``learning="laplace"`` and ``"nuts"``."""

from mercer.learning.chains import nuts
from mercer.learning.designs import laplace
from mercer.learning.doubt import LogPosterior, ThetaPosterior
from mercer.learning.objective import Objective
from mercer.learning.optimise import Learned
from mercer.learning.progress import Progress

INTEGRATED = ("laplace", "nuts")  # values of ``learning=`` that average over parameters
USE_PRIORS = ("map", *INTEGRATED)


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
