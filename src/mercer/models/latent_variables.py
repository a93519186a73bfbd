"""The Gaussian process latent variable model (Lawrence, 2005; Titsias and Lawrence, 2010)."""

import math
import warnings
from typing import Any

import numpy as np

from mercer.core.errors import DataError, InterruptedFitWarning, ParameterError
from mercer.core.inputs import as_matrix
from mercer.core.machine import require_memory
from mercer.core.random import generator
from mercer.core.text import number, rounded, table
from mercer.gp.noise import LearnedNoise, Noise, as_noise
from mercer.gram import between
from mercer.kernels import RBF
from mercer.kernels.algebra import Scale
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_covariance, as_kernel
from mercer.learning import latent_bounds, latent_points
from mercer.learning.heuristics import radial_kernel
from mercer.learning.latent_map import LatentMap
from mercer.learning.progress import Progress
from mercer.models.estimator import all_or_nothing, is_number
from mercer.models.manifold import Manifold, same_rows

STARTS = ("auto", "pca", "isomap")
SCREENING_ITERATIONS = 60  # after which starts are compared
START_NOISE = 0.1  # variance, in units of that of the columns
RESTART_DEVIATION = 0.5  # of latent points around the first start
MATRICES = 6  # n x n, held at a time
UNUSED_SHARE = 0.01  # of the relevance: a dimension below it is called unused


class GaussianProcessLatentVariables(Manifold):
    """Rows as smooth functions of a few unknown coordinates: every column is a Gaussian process over the same latent
    points, which are learned (Lawrence, 2005). Principal components with a kernel in place of straight lines.

    y_nd = f_d(x_n) + noise, f_d ~ GP(0, kernel), x_n ~ N(0, I); the points x_n maximise
    sum_d ln N(y_d | 0, K + noise I) + ln N(X | 0, I), with the kernel's parameters and the noise. O(n^3) a step,
    however many columns there are.

    Parameters
    ----------
    n_components : number of latent dimensions; with ``bayesian`` the largest number.
    kernel : any kernel on vectors, for columns of unit variance. None is a Gaussian whose variance is learned, and
        whose lengthscale is fixed to one, the unit of the latent points; with ``bayesian`` there is one for each
        dimension, learned.
    noise : variance relative to that of the columns; None learns it.
    bayesian : integrate over the latent points by the bound of Titsias and Lawrence (2010), which needs the Gaussian
        kernel: dimensions without use are switched off, so that ``n_components`` may be generous.
    n_inducing : inducing points of the bound. O(n n_inducing^2 n_components) a step.
    back_constraint : None, True or a kernel on the columns: latent points are then a smooth function of the rows
        (Lawrence and Quinonero-Candela, 2006), so that neighbours stay neighbours and new rows need no search. True is
        a Gaussian at the scale of the rows.
    init : "pca", "isomap" or an array (n, n_components) of points to start from. "auto" climbs from both for a while
        and goes on from the better; the bound starts at principal components.
    standardize : divide every column by its standard deviation, rather than all by one number.
    n_restarts : further starts, at random around the first.
    random_state : seed of restarts and inducing points. None means 0.

    Gaps (NaN) in X are left out of the evidence; ``inverse_transform(transform(X))`` fills them.

    Fitted: ``embedding_`` (n, q), the latent points, and with ``bayesian`` their standard deviations
    ``embedding_std_``; ``kernel_``, ``noise_``; ``log_marginal_likelihood_``, ln p(Y | X) in units of the data (with
    ``bayesian`` the bound on ln p(Y)); ``relevance_`` (q,), the share of each dimension in the variation of the map;
    ``history_``, ``converged_``.

    >>> import numpy as np
    >>> angle = np.linspace(0, 3, 30)[:, None]
    >>> X = np.hstack([np.cos(angle), np.sin(angle), angle**2])
    >>> model = GaussianProcessLatentVariables(1, progress=False).fit(X)
    >>> order = np.diff(model.embedding_[:, 0])
    >>> bool((order > 0).all() or (order < 0).all())
    True
    >>> bool(np.abs(model.inverse_transform(model.embedding_) - X).max() < 0.1)
    True
    """

    def __init__(
        self, n_components=2, kernel=None, noise=None, bayesian=False, *, n_inducing=30, back_constraint=None,
        init="auto", standardize=True, n_restarts=0, max_iterations=1000, random_state=None, progress=True,
    ):  # fmt: skip
        self.n_components = n_components
        self.kernel = kernel
        self.noise = noise
        self.bayesian = bayesian
        self.n_inducing = n_inducing
        self.back_constraint = back_constraint
        self.init = init
        self.standardize = standardize
        self.n_restarts = n_restarts
        self.max_iterations = max_iterations
        self.random_state = random_state
        self.progress = progress

    @all_or_nothing
    def fit(self, X, y=None):
        """Learn latent points. ``y`` is ignored."""
        X = self._check_training_rows(X)
        self._check_settings(X)
        Y, rng, line = self._standardised(X), generator(self.random_state), Progress(bool(self.progress))
        noise = LearnedNoise(START_NOISE) if self.noise is None else as_noise(self.noise, 1)
        filled = latent_points.completed(Y, self.n_components)
        self.back_kernel_, self.back_weights_ = self._constraint(filled), None
        try:
            found = self._bounded(Y, filled, noise, rng, line) if self.bayesian else self._points(
                Y, filled, noise, rng, line
            )  # fmt: skip
        finally:
            line.close()
        self.X_fit_, self._n_features_out = X, self.n_components
        mapped, interrupted = found
        self.kernel_, self.noise_ = mapped.kernel, float(mapped.noise)
        self.centres_ = mapped.centres
        self.groups_ = [tuple(group) for group in mapped.groups]
        self.log_marginal_likelihood_ -= self._log_units(X)
        slopes = mapped.slopes(self.embedding_)
        use = (slopes**2).mean(axis=(0, 1)) * self.embedding_.var(axis=0)
        self.relevance_ = use / (use.sum() or 1.0)
        if interrupted:
            warnings.warn(
                f"interrupted after {len(self.history_)} iterations: the best latent points until then are kept.",
                InterruptedFitWarning,
                stacklevel=2,
            )
        return self

    # -- learning ------------------------------------------------------------------------------------------------------

    def _check_settings(self, X):
        n = len(X)
        for name in ("n_components", "n_inducing", "max_iterations"):
            self._check_integer(name, 1)
        self._check_integer("n_restarts", 0)
        if self.noise is not None and not (is_number(self.noise) and 0 < self.noise < math.inf):
            raise ParameterError(
                f"noise is a variance relative to that of the columns, above zero, or None; got {self.noise!r}."
            )
        if isinstance(self.init, str):
            self._check_choice("init", STARTS)
        elif np.shape(self.init) != (n, self.n_components):
            raise ParameterError(
                f"init must be one of {', '.join(map(repr, STARTS))}, or latent points of shape "
                f"{(n, self.n_components)}; got shape {np.shape(self.init)}."
            )
        kernel = None if self.kernel is None else as_covariance(as_kernel(self.kernel), "latent variables")
        if kernel is not None and kernel.reads != "vectors":
            raise ParameterError(f"latent points are vectors, and {kernel!r} reads {kernel.reads}.")
        if self.bayesian:
            inner = kernel.inner if isinstance(kernel, Scale) else kernel
            if not (inner is None or type(inner) is RBF):
                raise ParameterError(
                    f"bayesian=True has closed averages for the Gaussian kernel only, k.RBF(); got {self.kernel!r}."
                )
            if self.back_constraint is not None:
                raise ParameterError("back_constraint goes with bayesian=False: the bound has its own q(X).")
        if self.back_constraint is not None and np.isnan(X).any():
            raise DataError("X has gaps (NaN), and a back-constraint is a function of whole rows. Leave it out.")
        if not self.bayesian:
            require_memory(8 * MATRICES * n * n, f"latent points of {n:,} rows", "Use bayesian=True, or fewer rows.")

    def _constraint(self, Y) -> Kernel | None:
        if self.back_constraint is None or self.back_constraint is False:
            return None
        given = self.back_constraint
        return radial_kernel(Y, 0.5) if given is True else as_covariance(given, "a back-constraint", False, Y)

    def _starts(self, Y, rng) -> list[tuple[str, np.ndarray]]:
        q = self.n_components
        if not isinstance(self.init, str):
            found = [("given", as_matrix(self.init, "init"))]
        else:
            found = []
            if self.init in ("auto", "pca") or self.bayesian:
                found.append(("pca", latent_points.principal(Y, q)))
            if self.init in ("auto", "isomap") and not (self.bayesian and self.init == "auto"):
                points = latent_points.geodesic(Y, q)
                found += [] if points is None else [("isomap", points)]
            found = found or [("pca", latent_points.principal(Y, q))]
        first = found[0][1]
        for i in range(self.n_restarts):
            found.append((f"restart {i + 1}", first + RESTART_DEVIATION * rng.normal(size=first.shape)))
        # A dimension in which all points agree has no slope, and would stay as it is.
        flat = lambda X: np.where(X.std(axis=0) > 0, 0.0, 0.01) * rng.normal(size=X.shape)
        return [(name, X + flat(X)) for name, X in found]

    def _points(self, Y, filled, noise: Noise, rng, line) -> tuple[LatentMap, bool]:
        """Screen the starts, and go on from the best."""
        # Latent points have no unit of their own. A lengthscale that is learned shrinks, and the points with it, to
        # where their prior is flat; one that is fixed lets the prior say how curved the map may be.
        default = 1.0 * RBF(1.0).fix("lengthscale")
        kernel = default if self.kernel is None else as_covariance(as_kernel(self.kernel), "latent variables")
        root = None if self.back_kernel_ is None else np.asarray(self.back_kernel_(filled))
        learns, starts, screened, path = not noise.given, self._starts(filled, rng), [], []
        few = min(SCREENING_ITERATIONS, self.max_iterations) if len(starts) > 1 else self.max_iterations
        for name, start in starts:
            learned = latent_points.learn_points(kernel, Y, start, float(noise.noise), few, line, root, learns)
            screened.append((name, learned))
            if learned.interrupted:
                break
        name, best = max(screened, key=lambda pair: pair[1].value)
        path = best.path
        if few < self.max_iterations and not best.converged and not any(each.interrupted for _, each in screened):
            best = latent_points.learn_points(
                best.kernel, Y, best.points, best.noise, self.max_iterations - few, line, root, learns
            )
            path = path + best.path
        self.embedding_, self.embedding_std_, self.start_ = best.points, None, name
        self.back_weights_, self.log_marginal_likelihood_ = best.weights, best.log_evidence
        self.history_, self.converged_ = np.array(path), best.converged
        return LatentMap.of_points(best.kernel, best.points, Y, best.noise), best.interrupted

    def _bounded(self, Y, filled, noise: Noise, rng, line) -> tuple[LatentMap, bool]:
        """The bound, from every start to the end."""
        q, best = self.n_components, None
        lengthscale = np.full(q, math.sqrt(q))
        if self.kernel is not None:
            inner: Any = self.kernel.inner if isinstance(self.kernel, Scale) else self.kernel
            lengthscale = np.broadcast_to(np.asarray(inner.lengthscale, float), q)
        for name, start in self._starts(filled, rng):
            found = latent_bounds.learn_bounded(
                Y,
                start,
                lengthscale,
                float(noise.noise),
                self.n_inducing,
                self.max_iterations,
                line,
                rng,
                not noise.given,
            )
            if best is None or found.value > best[1].value:
                best = name, found
            if found.interrupted:
                break
        assert best is not None
        self.start_, found = best
        self.embedding_, self.embedding_std_ = found.mean, np.sqrt(found.variance)
        self.log_marginal_likelihood_, self.history_ = found.value, np.array(found.path)
        self.converged_ = found.converged
        return found.map, found.interrupted

    # -- use -----------------------------------------------------------------------------------------------------------

    @property
    def _map(self) -> LatentMap:
        groups: Any = self.groups_  # tuples of four arrays
        return LatentMap(self.kernel_, self.centres_, self.noise_, groups)

    def transform(self, X) -> np.ndarray:
        """Latent points of rows: (s, q). Those of training rows are in ``embedding_``; of others, which may have gaps,
        the x that maximises ln p(y | x) + ln N(x | 0, I), or with a back-constraint its value."""
        self._check_fitted()
        X = self._check_rows(X, reset=False)
        if self.back_kernel_ is not None:
            if np.isnan(X).any():
                raise DataError("X has gaps (NaN), and this model's back-constraint is a function of whole rows.")
            return between(self.back_kernel_, self._inside(X), self._inside(self.X_fit_)) @ self.back_weights_
        known = same_rows(X, self.X_fit_)
        out = self.embedding_[known]
        new = known < 0
        if new.any():
            out[new] = self._map.project(self._inside(X[new]))
        return out

    def inverse_transform(self, X, return_std=False):
        """Rows at latent points: the mean of each column (s, D), and its standard deviation, of new measurements."""
        mean, variance = self._map.predict(self._check_points(X))
        if not return_std:
            return self._outside(mean)
        deviation = np.zeros((len(mean), len(self.shift_)))
        deviation[:, self.varies_] = np.sqrt(variance + self.noise_) * self.scale_[self.varies_]
        return self._outside(mean), deviation

    def _metric(self, Z) -> np.ndarray:
        used = self.relevance_ >= UNUSED_SHARE
        return self._map.metric(Z, np.ones(int(self.varies_.sum())))[:, used][:, :, used]

    def _summary(self):
        q, (n, D) = self._n_features_out, self.X_fit_.shape
        gaps, what = int(np.isnan(self.X_fit_).sum()), "bound" if self.bayesian else "log evidence"
        how = f"after {len(self.history_)} iterations from {self.start_}"
        scales = np.broadcast_to(
            getattr(getattr(self.kernel_, "inner", self.kernel_), "lengthscale", np.nan), (q,)
        )  # fmt: skip
        rows = [
            [str(i + 1), f"{self.relevance_[i]:.1%}" + (" (unused)" if self.relevance_[i] < UNUSED_SHARE else ""),
             "" if np.isnan(scales[i]) else number(rounded(scales[i])), f"{self.embedding_[:, i].std():.3g}"]
            for i in range(q)
        ]  # fmt: skip
        ended = "converged" if self.converged_ else "not converged"
        return "\n".join([
            f"GaussianProcessLatentVariables, {q} dimensions of {n:,} rows and {D} columns"
            + (f", {gaps:,} values missing" if gaps else ""),
            f"{what}: {self.log_marginal_likelihood_:.1f} {how}, {ended}",
            f"noise: {number(rounded(self.noise_))} of the variance of a column",
            table(["dimension", "relevance", "lengthscale", "spread of the points"], rows),
        ])  # fmt: skip
