"""Choice of the default kernel's smoothness for maps, by predicting blocks of rows that were left out together.

Between near stations the evidence, and rows left out one by one, tell how rough the function is at the distance of
neighbours. Predictions into holes depend on how it varies at larger distances, and there the smoothness that the
evidence prefers can be far worse. So members of the family are compared by discs of rows that none of them has seen.
"""

import numpy as np

from mercer.core.inputs import as_matrix, centre_and_spread, take_rows
from mercer.core.random import generator
from mercer.kernels.stationary import SMOOTHNESSES, Standard
from mercer.learning.choice import Choice, Tried, best_first
from mercer.learning.family import MIN_GAIN_AGAIN, Comparison, Course, kernel_of
from mercer.learning.plan import search_stages
from mercer.learning.progress import Progress
from mercer.learning.regression import RegressionObjective
from mercer.learning.state import Journal

MAX_INPUTS = 3  # of a map
MAX_ROWS = 10_000  # that members learn from
LEFT_OUT_SHARE = 0.25  # of all rows that are compared on
BLOCKS = 10  # discs of left-out rows


def applies(objective: RegressionObjective) -> bool:
    """Whether the smoothness is chosen by blocks: of a standard kernel of two or three inputs, by a solver that says
    so."""
    return (
        objective.solver.chooses_by_blocks
        and isinstance(objective.kernel, Standard)
        and 2 <= as_matrix(objective.X).shape[1] <= MAX_INPUTS
        and _learned_rows(objective.n) is not None
    )


def _learned_rows(n: int) -> int | None:
    """Number of rows to learn from, that of a stage of the search; None if there are too few rows."""
    fitting = [m for m in search_stages(n)[1:] if m <= min(MAX_ROWS, (1 - LEFT_OUT_SHARE) * n)]
    return max(fitting, default=None)


def split(X: np.ndarray, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """m rows to learn from, and rows left out: those nearest to a few places drawn at random, in blocks of equal size,
    where they have not been left out already."""
    rng = generator(seed)
    total = min(len(X), int(m / (1 - LEFT_OUT_SHARE)))
    rows = np.sort(rng.permutation(len(X))[:total])
    shift, spread = centre_and_spread(X)
    points, free = (X[rows] - shift) / spread, np.ones(total, bool)
    size = (total - m) // BLOCKS
    for i in range(BLOCKS):
        want = size if i < BLOCKS - 1 else int(free.sum()) - m
        centre = points[rng.choice(np.flatnonzero(free))]
        near = np.where(free, ((points - centre) ** 2).sum(axis=1), np.inf)
        free[np.argpartition(near, want - 1)[:want]] = False
    return rows[free], rows[~free]


def choose_by_blocks(
    objective: RegressionObjective, choice: Choice, seed: int, progress: Progress, journal: Journal | None = None
) -> Choice:
    """The smoothness, beside the other properties of the member chosen so far, that predicts left-out blocks best: by
    the mean CRPS, each member at its maximum of the evidence of the other rows."""
    X, m = as_matrix(objective.X), _learned_rows(objective.n)
    assert m is not None
    kept, left = split(X, m, seed)
    first, found = choice.best, []
    with Comparison(objective, kept, progress, journal, Course()) as comparison:
        try:
            theta = first.theta
            for nu in sorted(SMOOTHNESSES, key=lambda nu: abs(nu - first.member.nu) if np.isfinite(nu) else 9.0):
                tried = comparison.maximise(first.member._replace(nu=nu), [theta], min_gain=MIN_GAIN_AGAIN)
                if tried is not None:
                    found.append(tried._replace(score=_score(objective, tried, kept, left)))
        except KeyboardInterrupt:
            return Choice(choice.tried, choice.rows, choice.evaluations + comparison.evaluations, True)
        evaluations = choice.evaluations + comparison.evaluations
    if not found:
        return Choice(choice.tried, choice.rows, evaluations)
    return Choice(best_first(found), m, evaluations, measure="blocks")


def _score(objective: RegressionObjective, tried: Tried, kept: np.ndarray, left: np.ndarray) -> float:
    """Minus the mean CRPS of the rows left out."""
    noise = objective.variances(tried.theta)
    posterior = objective.solver.posterior(
        kernel_of(objective, tried), take_rows(objective.X, kept), objective.target[kept], noise[kept],
        objective.mean.unfitted(),
    )  # fmt: skip
    predicted = posterior.predict(take_rows(objective.X, left), noise[left])
    return -float(np.mean(predicted.crps(objective.target[left])))
