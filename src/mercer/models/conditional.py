"""Regressors that model the whole conditional density of the target, p(t | x)."""

import reprlib
from collections.abc import Callable, Iterator

import numpy as np

from mercer.core.errors import DataError
from mercer.core.inputs import count_rows
from mercer.core.random import entropy
from mercer.distributions import Distribution
from mercer.gp.process import check_size
from mercer.inference.mixtures import Mixtures, TargetMixture
from mercer.models.estimator import Regressor


class DensityRegressor(Regressor):
    """A regressor whose p(t | x) is a mixture of Gaussians for each query row.

    Subclasses give the number of targets, and `Mixtures` for blocks of rows. Values t are broadcast against the s rows
    of X: (s,) is one per row, a number the same for all; (s, T), or (1, T) for a common grid, gives (s, T). With q
    targets there is one more axis, the last: (s, q) or (1, T, q).
    """

    _multi_output = True

    def _targets(self) -> tuple[int, bool]:
        """Number of targets, and whether y was a vector."""
        raise NotImplementedError

    def _mixtures(self, X) -> Iterator[Mixtures]:
        """p(t | x) for the rows of X, in blocks."""
        raise NotImplementedError

    def _over_rows(self, X, function: Callable, t=None):
        """Concatenate ``function(mixtures, values of t)`` over blocks of rows."""
        start, found = 0, []
        for mixtures in self._mixtures(X):
            end = start + mixtures.n_rows
            found.append(function(mixtures, t if t is None or len(t) == 1 else t[start:end]))
            start = end
        return np.concatenate(found)

    def conditional(self, X) -> Mixtures:
        """p(t | x) for all rows of X as one object: weights, means, variances, densities, quantiles and draws."""
        self._check_fitted()
        return Mixtures.joined(list(self._mixtures(self._check_inputs(X, reset=False))))

    def predict(self, X, return_std=False):
        """E[t | x] (PRML 6.45); with ``return_std`` also the standard deviation of t given x. (s,), or (s, q)."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        if not return_std:
            return self._shaped(self._over_rows(X, lambda m, _: m.mean()))
        found = self._over_rows(X, lambda m, _: np.stack([m.mean(), np.sqrt(m.variance())], axis=1))
        return self._shaped(found[:, 0]), self._shaped(found[:, 1])

    def predict_distribution(self, X) -> Distribution:
        """p(t | x) of one target as a predictive distribution: quantiles, intervals, densities and draws."""
        if self._targets()[0] != 1:
            raise DataError("predict_distribution is for one target; use conditional(X) for several.")
        return TargetMixture(self.conditional(X))

    def predict_density(self, X, t) -> np.ndarray:
        """p(t | x) (PRML 6.48): (s,) for one t per row; (s, T) for a grid of them, (s, T) or (1, T)."""
        return np.exp(self.log_predictive_density(X, t))

    def log_predictive_density(self, X, y) -> np.ndarray:
        """ln p(y | x) of new measurements: (s,) for one per row, or shaped as `predict_density` for a grid."""
        X, t, grid = self._checked_values(X, y)
        out = self._over_rows(X, lambda m, t: m.log_density(t), t)
        return out if grid else out[:, 0]

    def predict_cdf(self, X, t) -> np.ndarray:
        """P(target <= t | x), shaped as `predict_density`; with several targets, marginally along a last axis."""
        X, t, grid = self._checked_values(X, t)
        out = self._shaped(self._over_rows(X, lambda m, t: m.cdf(t), t))
        return out if grid else out[:, 0]

    def predict_quantile(self, X, q) -> np.ndarray:
        """Quantile q of the target given x: (s,) for a number, (s, L) for a list of L."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        out = self._shaped(self._over_rows(X, lambda m, _: m.quantile(q)))
        return out[:, 0] if np.ndim(q) == 0 else out

    def sample(self, X, n_samples=1, random_state=0) -> np.ndarray:
        """Draws of the target, independently at each row of X: (s, n_samples), or with q targets (s, n_samples, q)."""
        self._check_fitted()
        check_size(n_samples)
        X = self._check_inputs(X, reset=False)
        rng = np.random.default_rng(entropy(random_state))
        return self._shaped(self._over_rows(X, lambda m, _: m.sample(n_samples, rng)))

    def _shaped(self, values):
        """Drop the axis of targets if y was a vector."""
        return values[..., 0] if self._targets()[1] else values

    def _checked_values(self, X, t):
        """X, t as (s or 1, T, q), and whether the result keeps the axis of T."""
        self._check_fitted()
        X = self._check_inputs(X, reset=False)
        s, (q, single) = count_rows(X), self._targets()
        try:
            values = np.asarray(t, dtype=float)
        except (TypeError, ValueError):
            raise DataError(f"values of the target must be numbers; got {reprlib.repr(t)}.") from None
        if not np.isfinite(values).all():
            raise DataError("values of the target must be finite; some are missing (NaN) or infinite.")
        if single:
            values = values[..., None]
        values = values[None] if values.ndim == 1 else values  # the same for all rows
        grid = values.ndim == 3
        values = values if grid else values[:, None, :]
        if values.ndim != 3 or values.shape[2] != q or values.shape[0] not in (1, s):
            wanted = f"({s},) or a grid (1, T)" if single else f"({s}, {q}) or a grid (1, T, {q})"
            raise DataError(f"values of the target must have shape {wanted}, as in t[None]; got {np.shape(t)}.")
        return X, values, grid
