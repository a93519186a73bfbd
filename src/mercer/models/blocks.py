"""Spatial blocks of rows, left out together: how well a model predicts places far from its stations."""

from typing import Any

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import take_rows
from mercer.distributions import Distribution, Normal


def blocks_of(places: np.ndarray, count: int) -> np.ndarray:
    """Number of the block of each place, (n,): the largest block is halved across its longer side until there are
    ``count`` of nearly equal size."""
    n = len(places)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 2 <= count <= n:
        raise ParameterError(f"blocks must be a number of blocks, from 2 to the number of rows, {n}; got {count!r}.")
    parts = [np.arange(n)]
    while len(parts) < count:
        rows = parts.pop(int(np.argmax([len(part) for part in parts])))
        side = int(np.argmax(np.ptp(places[rows], axis=0)))
        rows = rows[np.argsort(places[rows, side], kind="stable")]
        parts += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    labels = np.empty(n, dtype=int)
    for label, rows in enumerate(parts):
        labels[rows] = label
    return labels


def leave_blocks_out(model: Any, labels: np.ndarray) -> Distribution:
    """Prediction of each training row, noise included, from the rows of the other blocks, at the fitted parameters."""
    X, target, noise = model.posterior_.data
    mean, deviation = np.empty(len(target)), np.empty(len(target))
    for label in np.unique(labels):
        out, kept = np.flatnonzero(labels == label), np.flatnonzero(labels != label)
        prior_mean = model.posterior_.prior_mean.unfitted()
        found = model._posterior(model.kernel_, take_rows(X, kept), target[kept], noise[kept], prior_mean)
        predicted = found.predict(take_rows(X, out), noise[out])
        mean[out], deviation[out] = predicted.mean, predicted.deviation
    return Normal(mean * model.scale_ + model.center_, deviation * model.scale_)
