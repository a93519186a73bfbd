"""Choice of the default kernel's smoothness for maps, by predicting blocks of rows that were left out together.

Between near stations the evidence, and rows left out one by one, measure how rough the function is at the distance of
neighbours. Predictions into holes depend on how it varies at larger distances, and there the smoothness that the
evidence prefers can be far worse. So members of the family are compared by holes that are made in the data, of several
sizes, since nobody knows the size of the gaps to be predicted, and each size counts alike. Holes distinguish members
only so far: of those within one standard error of the best the roughest is taken (the rule of Breiman et al. 1984 for
cross-validation), since it claims least about places without data. The error is that of the difference between two
members in the same holes: some holes are far harder than others for every member.
"""

import numpy as np

from mercer.core.inputs import as_matrix, centre_and_spread, take_rows
from mercer.core.random import generator
from mercer.kernels.stationary import SMOOTHNESSES, Standard
from mercer.learning.choice import Choice, Tried, best_first
from mercer.learning.family import MIN_GAIN_AGAIN, Comparison, kernel_of
from mercer.learning.plan import search_stages
from mercer.learning.progress import Progress
from mercer.learning.regression import RegressionObjective
from mercer.learning.state import Journal

MAX_INPUTS = 3  # of a map
MAX_ROWS = 10_000  # that members learn from
WINDOWS = 4  # of rows that members learn from
HOLES = (6, 12, 24)  # that are made, of three sizes: each has a quarter of the rows of the one before
LEFT_OUT_SHARE = 0.2  # of all rows, in holes
MAX_PREDICTED = 1600  # rows of all holes of a size
MIN_GAIN = 3.0  # nats that a climb on all rows outside the holes may leave


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
    fitting = [m for m in search_stages(n)[1:] if m <= min(MAX_ROWS, n / 2)]
    return max(fitting, default=None)


def windows(X: np.ndarray, m: int, seed: int) -> np.ndarray:
    """m rows, those nearest to a few places drawn at random: as dense as all data, since a sparse sample would be of
    another smoothness. (m,), in order."""
    rng, points, free = generator(seed), _scaled(X), np.ones(len(X), bool)
    for i in range(WINDOWS):
        size = m // WINDOWS if i < WINDOWS - 1 else m - int((~free).sum())
        free[_nearest(points, free, size, rng)] = False
    return np.flatnonzero(~free)


def holes(X: np.ndarray, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Mask of the rows in holes of several sizes, discs of equal numbers of rows around places drawn at random; and of
    each hole, the largest first, some rows to be predicted."""
    rng, points, free = generator(seed), _scaled(X), np.ones(len(X), bool)
    largest, some = LEFT_OUT_SHARE * len(X) / sum(count / 4**i for i, count in enumerate(HOLES)), []
    for i, count in enumerate(HOLES):
        for _ in range(count):
            inside = _nearest(points, free, max(int(largest / 4**i), 1), rng)
            free[inside] = False
            some.append(rng.permutation(inside)[: MAX_PREDICTED // count])
    return ~free, some


def _scaled(X: np.ndarray) -> np.ndarray:
    shift, spread = centre_and_spread(X)
    return (X - shift) / spread


def _nearest(points: np.ndarray, free: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """The free points nearest to one of them."""
    centre = points[rng.choice(np.flatnonzero(free))]
    return np.argpartition(np.where(free, ((points - centre) ** 2).sum(axis=1), np.inf), size - 1)[:size]


def choose_by_blocks(
    objective: RegressionObjective, choice: Choice, seed: int, progress: Progress, journal: Journal | None = None
) -> Choice:
    """The smoothness, beside the other properties of the member chosen so far, that predicts large holes best: by the
    mean CRPS, each at the highest evidence of the other rows. Climbs begin on some windows, where they cost little."""
    X, m = as_matrix(objective.X), _learned_rows(objective.n)
    assert m is not None
    out, some = holes(X, seed)
    kept = np.flatnonzero(~out)
    first, evaluations = choice.best, choice.evaluations
    near, found = windows(X, m, seed), []
    of_holes: dict[float, np.ndarray] = {}
    try:
        with Comparison(objective, near, progress, journal) as comparison:
            for nu in sorted(SMOOTHNESSES, key=lambda nu: abs(nu - first.member.nu) if np.isfinite(nu) else 9.0):
                thetas = [first.theta, *(tried.theta for tried in comparison.tried.values())]
                comparison.maximise(first.member._replace(nu=nu), thetas, min_gain=MIN_GAIN_AGAIN)
            for tried in list(comparison.tried.values()):
                comparison.maximise_from_leader(tried)
            begun, evaluations = best_first(comparison.tried.values()), evaluations + comparison.evaluations
        leader = max((tried.log_evidence for tried in begun), default=0.0)
        with Comparison(objective, kept, progress, journal) as comparison:
            for tried in begun:
                if (
                    np.isfinite(tried.member.nu) or tried.log_evidence == leader
                ):  # Gaussian ones are too smooth for maps
                    there = comparison.maximise(tried.member, [tried.theta], min_gain=MIN_GAIN)
                    if there is not None:
                        nu = tried.member.nu
                        of_holes[nu] = scores(objective, there, kept, some)
                        found.append(there._replace(score=mean_and_error(of_holes[nu])[0]))
            evaluations += comparison.evaluations
    except KeyboardInterrupt:
        return Choice(choice.tried, choice.rows, evaluations, True)
    if not found:
        return Choice(choice.tried, choice.rows, evaluations)
    nu = roughest_of_the_best(of_holes)
    found.sort(key=lambda tried: (tried.member.nu != nu, -tried.score))
    return Choice(found, len(kept), evaluations, measure="blocks")


def mean_and_error(of_holes: np.ndarray) -> tuple[float, float]:
    """Mean over sizes of the mean over the holes of a size, and its standard error."""
    sizes = np.split(of_holes, np.cumsum(HOLES)[:-1])
    mean = np.mean([size.mean() for size in sizes])
    return float(mean), float(np.sqrt(sum(size.var(ddof=1) / len(size) for size in sizes)) / len(sizes))


def roughest_of_the_best(of_holes: dict[float, np.ndarray]) -> float:
    """The smallest smoothness whose score is behind the best one by a standard error of their difference, hole by hole,
    or less."""
    best = max(of_holes, key=lambda nu: mean_and_error(of_holes[nu])[0])
    for nu in sorted(of_holes):
        behind, error = mean_and_error(of_holes[best] - of_holes[nu])
        if behind <= error:
            return nu
    return best


def scores(objective: RegressionObjective, tried: Tried, kept: np.ndarray, left: list[np.ndarray]) -> np.ndarray:
    """Minus the mean CRPS of the rows left out in each hole: (holes,)."""
    noise, rows = objective.variances(tried.theta), np.concatenate(left)
    posterior = objective.solver.posterior(
        kernel_of(objective, tried), take_rows(objective.X, kept), objective.target[kept], noise[kept],
        objective.mean.unfitted(),
    )  # fmt: skip
    found = posterior.predict(take_rows(objective.X, rows), noise[rows]).crps(objective.target[rows])
    starts = np.cumsum([0, *(len(hole) for hole in left[:-1])])
    return -np.add.reduceat(found, starts) / [len(hole) for hole in left]
