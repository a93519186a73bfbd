"""Linear-Gaussian models with a latent variable: factor analysis, and probabilistic PCA (PRML 12.2, 12.4)."""

import warnings
from typing import Any, ClassVar, Self

import equinox as eqx
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix, check_width
from mercer.core.parameters import Parametrized, PositiveArray, RealArray, evolve
from mercer.core.precision import as_float, namespace
from mercer.core.random import seed_of
from mercer.distributions import LOG_2PI
from mercer.kernels.densities.base import ParametricDensity, count, small_seed
from mercer.kernels.densities.gaussian import centre_and_spread

MIN_NOISE = 1e-3  # variance of a column that is left to noise, relative to that of the column


class Loadings(Parametrized):
    """Loadings W (d, q), means m (d,) and noise variances (d,) of x = W z + m + noise."""

    _transparent: ClassVar[bool] = True

    loadings: RealArray
    means: RealArray
    noise: PositiveArray
    fixed: frozenset[str] = eqx.field(
        default=frozenset(
            (
                "loadings",
                "means",
                "noise",
            )
        ),
        static=True,
        kw_only=True,
        repr=False,
    )

    def __check_init__(self) -> None:
        W, m, v = (np.shape(part) for part in (self.loadings, self.means, self.noise))
        if len(W) != 2 or m != W[:1] or v != W[:1]:
            raise ParameterError(
                f"factor analysis has loadings (d, q), means (d,) and noise (d,); got shapes {W}, {m} and {v}."
            )


class FactorAnalysis(ParametricDensity):
    """x = W z + m + noise with latent z ~ N(0, I) of q dimensions, and one noise variance for each column.

    ``FactorAnalysis(2).fit(X)`` learns two dimensions by maximum likelihood; ``FactorAnalysis.of(W, m, noise)`` takes
    given ones. With equal noise variances it is probabilistic PCA.
    """

    _transparent: ClassVar[bool] = True

    n_latent: int = eqx.field(static=True, converter=count("the number of latent dimensions"))
    random_state: int = eqx.field(default=0, static=True, kw_only=True, converter=seed_of)
    linear: Loadings | None = eqx.field(default=None, kw_only=True)  # set by `fit` and `of`
    given: bool = eqx.field(default=False, static=True, kw_only=True)  # whether by `of`

    def __check_init__(self) -> None:
        if not isinstance(self.linear, Loadings | None):
            raise ParameterError(f"loadings are set by fit and of; got {self.linear!r}.")
        if self.linear is not None and np.shape(self.linear.loadings)[1] != self.n_latent:
            raise ParameterError(
                f"{self!r} has {self.n_latent} columns of loadings; got shape {np.shape(self.linear.loadings)}."
            )

    @classmethod
    def of(cls, loadings: Any, means: Any, noise: Any) -> "FactorAnalysis":
        """From loadings W (d, q), means (d,), and noise variances (d,) or one for all columns."""
        W = as_matrix(loadings, what="loadings")
        d, q = W.shape
        m, v = np.asarray(as_float(means)), np.asarray(as_float(noise))
        if m.shape not in ((), (d,)) or v.shape not in ((), (d,)):
            raise ParameterError(
                f"means and noise must have {d} entries, as loadings have {d} rows; got {m.shape} and {v.shape}."
            )
        return cls(q, linear=Loadings(W, np.broadcast_to(m, d), np.broadcast_to(v, d)), given=True)

    @classmethod
    def from_sklearn(cls, model: Any) -> "FactorAnalysis":
        """From a fitted FactorAnalysis of scikit-learn, or a PCA, which is read as probabilistic PCA."""
        W, noise = np.asarray(model.components_).T, np.asarray(model.noise_variance_)
        if hasattr(model, "explained_variance_"):  # PRML 12.45: the noise is part of the variance along components
            spread = np.asarray(model.explained_variance_)
            spread = spread * (model.n_samples_ - 1) / model.n_samples_ if hasattr(model, "n_samples_") else spread
            if not np.all(noise > 0):
                raise ParameterError("this PCA has as many components as columns, so nothing is left to noise.")
            W = W * np.sqrt(np.maximum(spread - noise, 0.0))
        return cls.of(W, model.mean_, noise)

    @property
    def needs_fit(self) -> bool:
        return self.linear is None

    def fit(self, X: Inputs) -> Self:
        if self.given:
            return self
        from sklearn.decomposition import FactorAnalysis as Fitter
        from sklearn.exceptions import ConvergenceWarning

        X = as_matrix(X)
        if len(X) < 2 or X.shape[1] < self.n_latent:
            raise DataError(
                f"{self!r} needs at least two rows and {self.n_latent} columns to be learned from; X has shape "
                f"{X.shape}."
            )
        centre, spread = centre_and_spread(X)
        fitter = Fitter(self.n_latent, max_iter=2000, random_state=small_seed(self.random_state))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitter.fit((X - centre) / spread)
        noise = np.maximum(fitter.noise_variance_, MIN_NOISE) * spread**2
        return evolve(self, linear=Loadings(spread[:, None] * fitter.components_.T, centre, noise))

    def prepare(self, X: Inputs) -> Rows:
        X = as_matrix(X)
        check_width(X, np.shape(self.linear.loadings)[0], "the mean")  # type: ignore[union-attr]
        return X

    def whitened(self, rows: Rows) -> tuple[Any, Any]:
        """(x - m) / sqrt(noise), (n, d), and W / sqrt(noise), (d, q)."""
        part: Any = self.linear
        root = namespace(part.noise).sqrt(part.noise)
        return (rows - part.means) / root, part.loadings / root[:, None]

    def log_density(self, rows: Rows) -> Any:
        # With whitened x and W: the inverse of I + W W^T is I - W (I + W^T W)^-1 W^T.
        x, W = self.whitened(rows)
        xp = namespace(x, W)
        L = xp.linalg.cholesky(xp.eye(W.shape[1]) + W.T @ W)
        h = xp.linalg.solve(L, W.T @ x.T)
        log_det = 2 * xp.sum(xp.log(xp.diag(L))) + xp.sum(xp.log(self.linear.noise))  # type: ignore[union-attr]
        return -0.5 * (xp.sum(x**2, axis=1) - xp.sum(h**2, axis=0) + log_det + x.shape[1] * LOG_2PI)

    def sample(self, n: int, rng: np.random.Generator, like: Rows = None) -> np.ndarray:
        part: Any = self.linear
        W, m, noise = (np.asarray(value) for value in (part.loadings, part.means, part.noise))
        return rng.standard_normal((n, W.shape[1])) @ W.T + m + np.sqrt(noise) * rng.standard_normal((n, len(m)))

    def __repr__(self) -> str:
        state = f", random_state={self.random_state}" if self.random_state else ""
        return f"FactorAnalysis(n_latent={self.n_latent}{state})"
