"""Which inputs matter: what predictions of rows left out lose when an input is permuted."""

import dataclasses
from collections.abc import Callable

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import as_frame, as_matrix, column_names, count_rows, holds_numbers, is_numeric, take_rows
from mercer.core.parameters import children_of
from mercer.core.text import table
from mercer.kernels import Kernel, Standard
from mercer.kernels.stationary import Isotropic
from mercer.kernels.substitution import On, Warp
from mercer.learning.heuristics import centre_and_spread

FOLDS = 5
FOLDED_ROWS = 2000  # up to this, each fold is left out in turn; beyond it one set of rows, for one factorisation
MAX_ROWS, MIN_ROWS = 500, 50  # rows judged
PREDICTIONS = 20_000  # over all rows judged, inputs, permutations and classes
MAX_PERMUTATIONS = 5
BATCH = 4000  # rows predicted together
CHANCE = 2.0  # standard errors
NEGLIGIBLE = 1e-3  # of the largest share
LEAST = 1e-5  # of a variance

Predict = Callable[..., np.ndarray]  # of rows: (s, q)


@dataclasses.dataclass(frozen=True, eq=False)
class Relevance:
    """A table with one line per input, most relevant first when printed.

    ``effect``: the share of the variance of the target that the model explains through this input, alone and together
    with others: the total-effect index (Homma and Saltelli 1996) by permutation on rows left out,

        (mean squared error with the input permuted - mean squared error) / (2 var y).

    For labels y is the indicator of each class, and the error the Brier score. Interactions count for each input in
    them, so shares may add up to more than R^2. ``error``: the standard error of the share, infinite where there are
    fewer than four rows. ``lengthscale``: in the units of the input, where the kernel has one per input; NaN elsewhere.
    ``spread``: the standard deviation of the input; NaN where it is not a number. ``irrelevant``: the share is within
    two standard errors of zero, or below a thousandth of the largest.

    Rows are left out of conditioning at the parameters learned from all of them. Permuting an input takes it out of
    step with the others: of two inputs that carry the same information, the one the model relies on gets the share, or
    both get a part; and combinations of inputs may arise that no row has, where the model extrapolates.
    """

    names: list[str]
    effect: np.ndarray
    error: np.ndarray
    lengthscale: np.ndarray
    spread: np.ndarray
    irrelevant: np.ndarray

    def __len__(self):
        return len(self.names)

    def __str__(self):
        rows = []
        for i in np.argsort(-self.effect, kind="stable"):
            length = self.lengthscale[i]
            error = f"{self.error[i]:.3f}" if np.isfinite(self.error[i]) else "unknown"
            shown = ["-", "-"] if np.isnan(length) else [f"{length:.3g}", f"{length / self.spread[i]:.3g}"]
            remark = "irrelevant" if self.irrelevant[i] else ""
            rows.append([self.names[i], f"{self.effect[i]:.3f}", error, *shown, remark])
        return table(["input", "share", "+/-", "lengthscale", "in spreads", ""], rows)

    __repr__ = __str__


def relevance(X, target, fitted_to: Callable[[np.ndarray], Predict], kernel=None, groups=None,
              least: float = LEAST) -> Relevance:  # fmt: skip
    """The table for a model of ``target`` (n, q), the columns of which it predicts.

    ``fitted_to(rows)`` gives the model's predictions when it has seen these rows alone, at the parameters learned;
    ``groups`` (n,) are classes, of which each fold must leave some; terms of the kernel with a variance below ``least``
    have no lengthscale. At most ``FOLDS`` factorisations, and about ``PREDICTIONS`` predictions.
    """
    names = _names(X)
    n, d = count_rows(X), len(names)
    affordable = PREDICTIONS // target.shape[1]
    judged = min(n, MAX_ROWS, max(MIN_ROWS, affordable // d))
    permutations = min(MAX_PERMUTATIONS, max(1, affordable // (judged * d)))
    rng = np.random.default_rng(0)
    losses = []
    folds = _folds(n, judged, groups, rng)
    for held in folds:
        predict = fitted_to(np.setdiff1d(np.arange(n), held))
        losses.append(_losses(X, target, predict, held, -(-judged // len(folds)), permutations, rng))
    effect, error = np.zeros(d), np.full(d, np.inf)
    variance = 2 * float(np.sum(np.var(target, axis=0)))
    if losses and variance > 0:
        lost = np.concatenate(losses) / variance
        effect = np.maximum(lost.mean(axis=0), 0.0)
        error = lost.std(axis=0, ddof=1) / np.sqrt(len(lost))
    irrelevant = (effect <= CHANCE * error) | (effect <= NEGLIGIBLE * effect.max())
    lengths = np.full(d, np.nan) if kernel is None else lengthscales(kernel, d, least)
    return Relevance(names, effect, error, lengths, _spreads(X), irrelevant)


def _names(X) -> list[str]:
    names = column_names(X)
    if names is not None:
        return [str(name) for name in names]
    if not holds_numbers(X):
        raise DataError(
            "relevance is told for inputs in columns, which can be permuted one at a time; these rows are objects of "
            "another kind, each a whole. Give a frame of their properties to see which of those matter."
        )
    return [f"x{i}" for i in range(as_matrix(X).shape[1])]


def _spreads(X) -> np.ndarray:
    frame = as_frame(X)
    if frame is None:
        return centre_and_spread(as_matrix(X))[1]
    numbers = [is_numeric(dtype) for dtype in frame.schema.values()]
    spread = np.full(len(numbers), np.nan)
    if any(numbers):
        spread[numbers] = centre_and_spread(as_matrix(frame[:, np.flatnonzero(numbers).tolist()].to_native()))[1]
    return spread


def _folds(n: int, judged: int, groups, rng) -> list[np.ndarray]:
    """Rows to leave out together, each fold in random order. Of every group some stay; two rows at least are left out,
    which lend each other their values."""
    order = rng.permutation(n)
    if groups is not None:
        # Dealt out along the groups, none has all its rows in one fold; one that has a single row keeps it.
        order = order[np.bincount(groups)[groups[order]] > 1]
        order = order[np.argsort(groups[order], kind="stable")]
    if len(order) < 4:
        return []
    if n > FOLDED_ROWS:
        return [rng.permutation(order[:: max(2, len(order) // judged)])]
    count = FOLDS if len(order) >= 2 * FOLDS else 2
    return [rng.permutation(order[i::count]) for i in range(count)]


def _losses(X, target, predict: Predict, held, most: int, permutations: int, rng) -> np.ndarray:
    """What squared errors of rows held out, ``most`` of them, grow by when inputs take the values of others of them: a
    mean over permutations, (s, d). Not the values of rows seen, around which a model may follow the noise."""
    rows, d = held[:most], len(_names(X))
    shift = rng.integers(1, len(held), size=(permutations, d, len(rows)))
    donors = held[(np.arange(len(rows)) + shift) % len(held)]
    missed = np.sum((target[rows] - predict(take_rows(X, rows))) ** 2, axis=1)
    together = max(1, BATCH // (permutations * len(rows)))
    lost = np.empty((len(rows), d))
    for first in range(0, d, together):
        columns = np.arange(first, min(first + together, d))
        Z = _exchanged(X, rows, donors[:, columns], columns)
        moved = predict(Z).reshape(permutations, len(columns), len(rows), -1)
        errors = np.sum((target[rows] - moved) ** 2, axis=3)
        lost[:, columns] = (errors.mean(axis=0) - missed).T
    return lost


def _exchanged(X, rows, donors, columns):
    """The rows (s,) once for each permutation and column, with that column's values from ``donors`` (p, c, s), in X's
    kind of container: (p c s, d)."""
    sources = [np.broadcast_to(rows, donors.shape).copy() for _ in columns]
    for i, source in enumerate(sources):
        source[:, i] = donors[:, i]
    base, frame = np.broadcast_to(rows, donors.shape).ravel(), as_frame(X)
    pairs = zip(columns.tolist(), sources, strict=True)
    if frame is not None:  # a column of any type stays what it is
        series = [frame[:, column][source.ravel().tolist()] for column, source in pairs]
        return frame[base.tolist()].with_columns(*series).to_native()
    matrix = as_matrix(X)
    Z = matrix[base]
    for column, source in pairs:
        Z[:, column] = matrix[source.ravel(), column]
    return Z


def _seeing_all(kernel: Kernel):
    """The nodes whose inputs are the columns of X themselves, in their order: not those behind a selection or a map."""
    yield kernel
    if not isinstance(kernel, On | Warp):
        for _, child in children_of(kernel):
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
