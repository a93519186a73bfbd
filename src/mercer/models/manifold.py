"""What models of rows on a curved surface share: gaps, units, new rows that are training rows, stretching."""

from typing import Any

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import as_frame, as_matrix
from mercer.learning.latent_map import magnification
from mercer.models.estimator import Transformer


class Manifold(Transformer):
    """A transformer to latent points whose inverse is a smooth function of them. Rows may have gaps (NaN).

    Columns are centred and, with ``standardize``, divided by their standard deviation, else all by one number, so that
    units do not matter. ``shift_`` and ``scale_`` (D,) hold both; columns that do not vary are set aside.
    """

    standardize: bool
    embedding_: np.ndarray
    shift_: np.ndarray
    scale_: np.ndarray
    varies_: np.ndarray

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _reads(self, reset: bool):
        return "vectors"

    def _check_rows(self, X, reset: bool) -> np.ndarray:
        """X as a matrix in which NaN marks a missing value."""
        if as_frame(X) is not None:
            return np.array(as_matrix(self._check_inputs(X, reset), gaps=True))
        try:
            array = np.array(X, dtype=float)
        except (TypeError, ValueError):
            return self._check_inputs(X, reset)  # whose error says what is wrong
        missing = np.isnan(array)
        checked = self._check_inputs(np.where(missing, 0.0, array) if missing.any() else X, reset)
        out = np.array(checked, dtype=float)
        if missing.any():
            out[missing.reshape(out.shape)] = np.nan
        return out

    def _check_training_rows(self, X) -> np.ndarray:
        X = self._check_rows(X, reset=True)
        name, n = type(self).__name__, len(X)
        if n < 2:
            raise DataError(f"{name} needs at least 2 samples; got n_samples = {n}.")
        empty = np.flatnonzero(np.isnan(X).all(axis=0))
        if len(empty):
            raise DataError(f"column {empty[0]} of X has no values, only gaps (NaN). Leave it out.")
        return X

    def _standardised(self, X: np.ndarray) -> np.ndarray:
        """Columns that vary, centred and of about unit variance; sets ``shift_``, ``scale_`` and ``varies_``."""
        size = np.maximum(np.nanmax(np.abs(X), axis=0), np.finfo(float).tiny)  # squares of large values would overflow
        shift = np.nanmean(X / size, axis=0)
        spread = np.nanstd(X / size, axis=0)
        self.varies_ = spread > 1e-13
        if not self.varies_.any():
            raise DataError("every column of X is constant, so there is nothing to map.")
        self.shift_, spread = shift * size, spread * size
        if not self.standardize:
            top = spread[self.varies_].max()
            spread = np.full(X.shape[1], top * np.sqrt(np.mean((spread[self.varies_] / top) ** 2)))
        self.scale_ = np.where(self.varies_, spread, 1.0)
        return self._inside(X)

    def _inside(self, X: np.ndarray) -> np.ndarray:
        return ((X - self.shift_) / self.scale_)[:, self.varies_]

    def _outside(self, Y: np.ndarray) -> np.ndarray:
        out = np.broadcast_to(self.shift_, (len(Y), len(self.shift_))).copy()
        out[:, self.varies_] += Y * self.scale_[self.varies_]
        return out

    def _log_units(self, X: np.ndarray) -> float:
        """What a log density of the columns inside differs by from that of the data: sum of ln scale over values."""
        return float((np.isfinite(X).sum(axis=0) * np.log(self.scale_))[self.varies_].sum())

    def _check_points(self, Z: Any) -> np.ndarray:
        self._check_fitted()
        Z = as_matrix(Z, "the latent points")
        if Z.shape[1] != self._n_features_out:
            raise DataError(f"expected {self._n_features_out} coordinates per latent point; got {Z.shape[1]} columns.")
        return np.asarray(Z)

    def _metric(self, Z: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def magnification(self, X=None) -> np.ndarray:
        """Factor by which the map from latent points to (standardised) columns stretches areas, at latent points
        (s, q); None means those of the training rows: (s,). Dimensions without use are left out.

        It is large where a small step changes the columns much: along the borders between clusters (Bishop, Svensen and
        Williams, 1997).
        """
        self._check_fitted()
        return magnification(self._metric(self.embedding_ if X is None else self._check_points(X)))


def same_rows(X: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Index in ``known`` of the first equal row, -1 where there is none: (s,). NaN equals NaN."""
    key = lambda row: np.where(np.isnan(row), np.nan, row + 0.0).tobytes()
    seen: dict[bytes, int] = {}
    for i, row in enumerate(known):
        seen.setdefault(key(row), i)
    return np.array([seen.get(key(row), -1) for row in X], dtype=int)
