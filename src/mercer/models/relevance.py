"""Relevance of inputs: how much held-out predictions lose when an input is permuted."""

import dataclasses
from collections.abc import Callable

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import (
    as_frame,
    as_matrix,
    centre_and_spread,
    column_names,
    count_rows,
    holds_numbers,
    is_numeric,
    take_rows,
)
from mercer.core.parameters import children_of
from mercer.core.text import table
from mercer.kernels import Kernel, Standard
from mercer.kernels.space import OfPlaces
from mercer.kernels.stationary import Isotropic
from mercer.kernels.substitution import On, Warp, by_position

FOLDS = 5
MAX_FOLDED_ROWS = 2000  # beyond it a single set of rows is held out, for one factorisation
MAX_ROWS, MIN_ROWS = 500, 50  # rows evaluated
MAX_PREDICTIONS = 20_000  # over all rows evaluated, inputs, permutations and classes
MAX_PERMUTATIONS = 5
BATCH_ROWS = 4000  # rows predicted together
MIN_STANDARD_ERRORS = 2.0  # of a relevant input's share
MIN_SHARE_RATIO = 1e-3  # of a relevant input's share to the largest
MIN_TERM_VARIANCE = 1e-5  # of a kernel term whose lengthscale counts

Predict = Callable[..., np.ndarray]  # of rows: (s, q)


@dataclasses.dataclass(frozen=True, eq=False)
class Relevance:
    """Relevance of each input, printed as a table with the most relevant first.

    ``effect``: the share of the target's variance that the model explains through this input, alone and in interaction
    with others: the total-effect index (Homma and Saltelli 1996) by permutation on held-out rows,

        (mean squared error with the input permuted - mean squared error) / (2 var y).

    For labels, y is the indicator of each class, and the error the Brier score. Interactions count for each input in
    them, so shares may add up to more than R^2. ``error``: the standard error of the share, infinite for fewer than
    four rows. ``lengthscale``: in the units of the input, if the kernel has one per input, else NaN. ``spread``: the
    standard deviation of the input, NaN if it is not numeric. ``irrelevant``: the share is within two standard errors
    of zero, or below a thousandth of the largest.

    The posterior is computed without the held-out rows, at the parameters learned from all rows. Permutation breaks
    the dependence between inputs: of two that carry the same information, the one the model relies on gets the share,
    or both get a part; and permuted rows may lie outside the data, where the model extrapolates.
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
        return table(["input", "share", "+/-", "lengthscale", "in std. devs", ""], rows)

    __repr__ = __str__


def relevance(X, target, fitted_to: Callable[[np.ndarray], Predict], kernel=None, groups=None,
              min_variance: float = MIN_TERM_VARIANCE) -> Relevance:  # fmt: skip
    """Relevance of the inputs of a model that predicts ``target`` (n, q).

    ``fitted_to(rows)`` returns the prediction function of the model conditioned on these rows, at the learned
    parameters; ``groups`` (n,) are classes, each of which keeps some rows in every fold; kernel terms with a variance
    below ``min_variance`` have no lengthscale. At most ``FOLDS`` factorisations, about ``MAX_PREDICTIONS`` predictions.
    """
    names = _names(X)
    n, d = count_rows(X), len(names)
    affordable = MAX_PREDICTIONS // target.shape[1]
    n_rows = min(n, MAX_ROWS, max(MIN_ROWS, affordable // d))
    permutations = min(MAX_PERMUTATIONS, max(1, affordable // (n_rows * d)))
    rng = np.random.default_rng(0)
    losses = []
    folds = _folds(n, n_rows, groups, rng)
    for held in folds:
        predict = fitted_to(np.setdiff1d(np.arange(n), held))
        losses.append(_losses(X, target, predict, held, -(-n_rows // len(folds)), permutations, rng))
    effect, error = np.zeros(d), np.full(d, np.inf)
    variance = 2 * float(np.sum(np.var(target, axis=0)))
    if losses and variance > 0:
        lost = np.concatenate(losses) / variance
        effect = np.maximum(lost.mean(axis=0), 0.0)
        error = lost.std(axis=0, ddof=1) / np.sqrt(len(lost))
    irrelevant = (effect <= MIN_STANDARD_ERRORS * error) | (effect <= MIN_SHARE_RATIO * effect.max())
    lengths = np.full(d, np.nan) if kernel is None else lengthscales(kernel, names, min_variance)
    return Relevance(names, effect, error, lengths, _spreads(X), irrelevant)


def _names(X) -> list[str]:
    names = column_names(X)
    if names is not None:
        return [str(name) for name in names]
    if not holds_numbers(X):
        raise DataError(
            "relevance needs inputs in columns, which can be permuted one at a time; these rows are objects. Fit a "
            "model to a frame of their properties to see which of those matter."
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


def _folds(n: int, n_rows: int, groups, rng) -> list[np.ndarray]:
    """Rows to hold out together, each fold in random order. Every group keeps some rows; a fold has at least two rows,
    so that they can exchange values."""
    order = rng.permutation(n)
    if groups is not None:
        # Sorted by group and dealt out in turn, no group falls into one fold; a single row of a group is never held.
        order = order[np.bincount(groups)[groups[order]] > 1]
        order = order[np.argsort(groups[order], kind="stable")]
    if len(order) < 4:
        return []
    if n > MAX_FOLDED_ROWS:
        return [rng.permutation(order[:: max(2, len(order) // n_rows)])]
    count = FOLDS if len(order) >= 2 * FOLDS else 2
    return [rng.permutation(order[i::count]) for i in range(count)]


def _losses(X, target, predict: Predict, held, n_rows: int, permutations: int, rng) -> np.ndarray:
    """Increase in the squared error of ``n_rows`` held-out rows when an input takes values of other held-out rows,
    averaged over permutations: (s, d). Values of training rows would do worse: a model may follow the noise there."""
    rows, d = held[:n_rows], len(_names(X))
    shift = rng.integers(1, len(held), size=(permutations, d, len(rows)))
    donors = held[(np.arange(len(rows)) + shift) % len(held)]
    baseline = np.sum((target[rows] - predict(take_rows(X, rows))) ** 2, axis=1)
    batch = max(1, BATCH_ROWS // (permutations * len(rows)))
    losses = np.empty((len(rows), d))
    for first in range(0, d, batch):
        columns = np.arange(first, min(first + batch, d))
        Z = _permuted(X, rows, donors[:, columns], columns)
        predicted = predict(Z).reshape(permutations, len(columns), len(rows), -1)
        errors = np.sum((target[rows] - predicted) ** 2, axis=3)
        losses[:, columns] = (errors.mean(axis=0) - baseline).T
    return losses


def _permuted(X, rows, donors, columns):
    """The rows (s,) once for each permutation and column, with that column's values from ``donors`` (p, c, s), in the
    container type of X: (p c s, d)."""
    sources = [np.broadcast_to(rows, donors.shape).copy() for _ in columns]
    for i, source in enumerate(sources):
        source[:, i] = donors[:, i]
    base, frame = np.broadcast_to(rows, donors.shape).ravel(), as_frame(X)
    pairs = zip(columns.tolist(), sources, strict=True)
    if frame is not None:  # keep the type of every column
        series = [frame[:, column][source.ravel().tolist()] for column, source in pairs]
        return frame[base.tolist()].with_columns(*series).to_native()
    matrix = as_matrix(X)
    Z = matrix[base]
    for column, source in pairs:
        Z[:, column] = matrix[source.ravel(), column]
    return Z


def _nodes_with_columns(kernel: Kernel, columns: np.ndarray):
    """Nodes of the kernel that read columns of X as they are, not behind a map, with the indices of these."""
    if isinstance(kernel, On):
        chosen = kernel.selection
        yield from _nodes_with_columns(kernel.inner, columns[chosen if isinstance(chosen, slice) else list(chosen)])
    elif not isinstance(kernel, Warp | OfPlaces):
        yield kernel, columns
        for _, child in children_of(kernel):
            if isinstance(child, Kernel):
                yield from _nodes_with_columns(child, columns)


def lengthscales(kernel: Kernel, names: list[str], min_variance: float = MIN_TERM_VARIANCE) -> np.ndarray:
    """Shortest lengthscale of the kernel for each input, in its units; NaN if there is none."""
    shortest = np.full(len(names), np.nan)
    for node, columns in _nodes_with_columns(by_position(kernel, names), np.arange(len(names))):
        if isinstance(node, Isotropic):
            found = np.asarray(node.lengthscale)
        elif isinstance(node, Standard):
            found = 1 / np.sqrt(np.asarray(node.theta1)) * (1.0 if node.scale is None else node.scale)
            if node.theta0 < min_variance:
                continue
        else:
            continue
        if found.shape == columns.shape or len(columns) == 1:
            shortest[columns] = np.fmin(shortest[columns], found)
    return shortest
