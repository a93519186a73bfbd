"""The generative topographic mapping (Bishop, Svensen and Williams, 1998)."""

import math
import warnings

import numpy as np

from mercer.core.errors import InterruptedFitWarning, ParameterError
from mercer.core.text import number, rounded
from mercer.learning import topographic
from mercer.learning.latent_points import completed
from mercer.learning.progress import Progress
from mercer.learning.topographic import Surface
from mercer.models.estimator import all_or_nothing, is_number
from mercer.models.manifold import Manifold

MAX_DIMENSIONS = 3
POINTS, BUMPS = {1: 100, 2: 20, 3: 10}, {1: 15, 2: 8, 3: 5}  # along each axis, by the number of dimensions
WIDTH = 2.0  # of bumps, in units of their distance


class GenerativeTopographicMapping(Manifold):
    """Rows as noisy points of a smooth surface over a square: a mixture of Gaussians whose centres are the image of a
    grid (Bishop, Svensen and Williams, 1998). A self-organising map with a likelihood.

    p(y) = 1/K sum_k N(y | Phi(x_k) W, noise I), with x_k on a grid in [-1, 1]^q, and Phi a grid of broad Gaussian bumps
    and a constant. Fitted by expectation maximisation: K (D + M) n flops and M^3 an iteration, linear in n.

    Parameters
    ----------
    n_components : latent dimensions: 1, 2 or 3.
    n_points : points of the grid along each axis. None: 100, 20 or 10, by the number of dimensions.
    n_basis : bumps along each axis. None: 15, 8 or 5.
    width : of a bump, in units of the distance between them.
    regularization : precision of the prior of the weights; None learns it (PRML 3.92), so that the number of bumps
        matters little.
    standardize : divide every column by its standard deviation, rather than all by one number.
    tolerance : nats per row that the last iteration may gain.

    Gaps (NaN) in X are left out of the likelihood; ``inverse_transform(transform(X))`` fills them.

    Fitted: ``embedding_`` (n, q), the posterior means of the rows; ``grid_`` (K, q); ``centers_`` and ``weights_``,
    the surface; ``noise_``, variance relative to that of the columns; ``regularization_``; ``log_likelihood_``, in
    units of the data; ``history_``, ``converged_``.

    >>> import numpy as np
    >>> angle = np.linspace(0, 3, 60)[:, None]
    >>> X = np.hstack([np.cos(angle), np.sin(angle), angle**2])
    >>> model = GenerativeTopographicMapping(1).fit(X)
    >>> order = np.diff(model.embedding_[:, 0])
    >>> bool((order > 0).all() or (order < 0).all())
    True
    >>> bool(np.abs(model.inverse_transform(model.embedding_) - X).max() < 0.2)
    True
    """

    def __init__(
        self, n_components=2, n_points=None, n_basis=None, width=WIDTH, *, regularization=None, standardize=True,
        max_iterations=500, tolerance=1e-5, progress=True,
    ):  # fmt: skip
        self.n_components = n_components
        self.n_points = n_points
        self.n_basis = n_basis
        self.width = width
        self.regularization = regularization
        self.standardize = standardize
        self.max_iterations = max_iterations
        self.tolerance = tolerance
        self.progress = progress

    @all_or_nothing
    def fit(self, X, y=None):
        """Fit the surface. ``y`` is ignored."""
        X = self._check_training_rows(X)
        self._check_settings()
        q, Y = self.n_components, self._standardised(X)
        grid = topographic.lattice(POINTS[q] if self.n_points is None else self.n_points, q)
        count = BUMPS[q] if self.n_basis is None else self.n_basis
        width = self.width * 2 / (count - 1) if count > 1 else 2.0 * self.width
        first = topographic.first_surface(completed(Y, q), grid, topographic.lattice(count, q), width)
        line = Progress(bool(self.progress))
        try:
            found = topographic.learn_surface(Y, first, self.regularization, self.max_iterations, self.tolerance, line)
        finally:
            line.close()
        surface = found.surface
        self.grid_, self.centers_, self.width_ = surface.grid, surface.centers, float(surface.width)
        self.weights_, self.noise_ = surface.weights, float(surface.noise)
        self.regularization_, self.history_ = float(found.precision), np.array(found.path)
        self.log_likelihood_ = found.log_likelihood - self._log_units(X)
        self.converged_, self._n_features_out = found.converged, q
        self.embedding_ = surface.responsibilities(Y)[0] @ surface.grid
        if found.interrupted:
            warnings.warn(
                f"interrupted after {len(found.path)} iterations: the surface until then is kept.",
                InterruptedFitWarning,
                stacklevel=2,
            )
        return self

    def _check_settings(self):
        self._check_integer("n_components", 1)
        if self.n_components > MAX_DIMENSIONS:
            raise ParameterError(
                f"a grid over {self.n_components} dimensions would be too large; n_components is 1, 2 or 3. "
                "GaussianProcessLatentVariables has no grid."
            )
        for name, least in (("n_points", 2), ("n_basis", 1)):
            if getattr(self, name) is not None:
                self._check_integer(name, least)
        self._check_integer("max_iterations", 1)
        for name in ("width", "tolerance"):
            value = getattr(self, name)
            if not (is_number(value) and 0 < value < math.inf):
                raise ParameterError(f"{name} must be a number above zero; got {value!r}.")
        precision = self.regularization
        if precision is not None and not (is_number(precision) and 0 <= precision < math.inf):
            raise ParameterError(f"regularization must be None or a number, zero or more; got {precision!r}.")

    # -- use -----------------------------------------------------------------------------------------------------------

    @property
    def _surface(self) -> Surface:
        assert self.weights_ is not None
        return Surface(self.grid_, self.centers_, self.width_, self.weights_, self.noise_)

    def responsibilities(self, X) -> np.ndarray:
        """p(grid point k | row): (s, K)."""
        self._check_fitted()
        return self._surface.responsibilities(self._inside(self._check_rows(X, reset=False)))[0]

    def transform(self, X) -> np.ndarray:
        """Posterior mean of the latent point of every row, which may have gaps: (s, q)."""
        return self.responsibilities(X) @ self.grid_

    def mode(self, X) -> np.ndarray:
        """The likeliest point of the grid for every row: (s, q). Where the posterior has several humps, the mean lies
        between them."""
        return self.grid_[self.responsibilities(X).argmax(axis=1)]

    def inverse_transform(self, X, return_std=False):
        """Points of the surface at latent points: (s, D), and the standard deviation of new measurements there, which
        is that of the noise, in every column."""
        rows = self._outside(self._surface(self._check_points(X)))
        if not return_std:
            return rows
        deviation = np.where(self.varies_, np.sqrt(self.noise_) * self.scale_, 0.0)
        return rows, np.broadcast_to(deviation, rows.shape).copy()

    def score_samples(self, X) -> np.ndarray:
        """ln p(y) of every row, in units of the data: (s,)."""
        self._check_fitted()
        X = self._check_rows(X, reset=False)
        density = self._surface.responsibilities(self._inside(X))[1]
        return density - np.isfinite(X)[:, self.varies_] @ np.log(self.scale_[self.varies_])

    def score(self, X, y=None) -> float:
        """Mean of ln p over rows."""
        return float(self.score_samples(X).mean())

    def _metric(self, Z) -> np.ndarray:
        return self._surface.metric(Z, np.ones(int(self.varies_.sum())))

    def _summary(self):
        n, q = self.embedding_.shape
        ended = "converged" if self.converged_ else "not converged"
        return "\n".join([
            f"GenerativeTopographicMapping, {q} dimensions of {n:,} rows and {len(self.shift_)} columns",
            f"grid: {len(self.grid_):,} points; surface: {len(self.centers_):,} bumps of width {self.width_:.3g}",
            f"log likelihood: {self.log_likelihood_:.1f} after {len(self.history_)} iterations, {ended}",
            f"noise: {number(rounded(self.noise_))} of the variance of a column; precision of the weights: "
            f"{number(rounded(self.regularization_))}",
        ])  # fmt: skip
