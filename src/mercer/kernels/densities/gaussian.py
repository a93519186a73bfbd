"""Gaussian densities, and mixtures of them."""

import warnings
from typing import Any, ClassVar, Self

import equinox as eqx
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix, check_width
from mercer.core.parameters import NonNegativeArray, Parametrized, PositiveArray, RealArray, evolve, show
from mercer.core.precision import as_float, is_traced, namespace
from mercer.core.random import seed_of
from mercer.distributions import LOG_2PI
from mercer.kernels.densities.base import MixtureDensity, check_distributions, count, log_normalized, small_seed

MIN_VARIANCE = 1e-3  # of a learned component along any direction, relative to that of the column
MAX_ROUNDING = 1e-12  # spread of a constant column, relative to its values
N_STARTS = 3  # of expectation-maximisation
MAX_ITERATIONS = 300
COVARIANCES = {"diagonal": "diag", "full": "full", "spherical": "spherical"}  # ours to scikit-learn's


def log_diagonal(X: Any, means: Any, variances: Any) -> Any:
    """ln N(x_n | m_i, diag(v_i)): (n, C)."""
    xp = namespace(X, means, variances)
    away = X[:, None, :] - means[None]
    return -0.5 * xp.sum(away**2 / variances + xp.log(variances) + LOG_2PI, axis=2)


def log_full(X: Any, means: Any, factors: Any) -> Any:
    """ln N(x_n | m_i, L_i L_i^T), with lower triangular factors: (n, C)."""
    xp = namespace(X, means, factors)
    L = xp.tril(factors)
    away = X[None, :, :] - means[:, None, :]  # (C, n, d)
    z = xp.linalg.solve(L, xp.swapaxes(away, 1, 2))
    half_log_det = xp.sum(xp.log(xp.abs(xp.diagonal(L, axis1=1, axis2=2))), axis=1)
    return (-0.5 * xp.sum(z**2, axis=1) - half_log_det[:, None] - 0.5 * X.shape[1] * LOG_2PI).T


class DiagonalComponents(Parametrized):
    """Weights (C,), means (C, d) and variances (C, d)."""

    _transparent: ClassVar[bool] = True

    weights: NonNegativeArray
    means: RealArray
    variances: PositiveArray
    fixed: frozenset[str] = eqx.field(
        default=frozenset(
            (
                "weights",
                "means",
                "variances",
            )
        ),
        static=True,
        kw_only=True,
        repr=False,
    )

    def __check_init__(self) -> None:
        check_distributions(self.weights, "weights")

    def log_components(self, X: Any) -> Any:
        return log_diagonal(X, self.means, self.variances)

    @property
    def factors(self) -> np.ndarray:
        return np.sqrt(self.variances)[:, :, None] * np.eye(np.shape(self.means)[1])

    def information(self) -> np.ndarray:
        """Of one component, in (ln weight, mean, ln variance); a single weight has none."""
        v = np.asarray(self.variances)[0]
        return np.diag(np.concatenate([[0.0], 1 / v, np.full(len(v), 0.5)]))


class FullComponents(Parametrized):
    """Weights (C,), means (C, d) and covariances L L^T, with their lower Cholesky factors L (C, d, d)."""

    _transparent: ClassVar[bool] = True

    weights: NonNegativeArray
    means: RealArray
    factors: RealArray
    fixed: frozenset[str] = eqx.field(
        default=frozenset(
            (
                "weights",
                "means",
                "factors",
            )
        ),
        static=True,
        kw_only=True,
        repr=False,
    )

    def __check_init__(self) -> None:
        check_distributions(self.weights, "weights")
        check_factors(self.factors)

    def log_components(self, X: Any) -> Any:
        return log_full(X, self.means, self.factors)

    def information(self) -> np.ndarray:
        """Of one component, in (ln weight, mean, L): the inverse covariance, and tr(S^-1 dS S^-1 dS) / 2."""
        L = np.tril(np.asarray(self.factors)[0])
        d = len(L)
        inverse = np.linalg.inv(L)
        # With S = L L^T and dS = E L^T + L E^T, L^-1 dS L^-T = M + M^T for M = L^-1 E.
        M = np.einsum("ia,bj->abij", inverse, np.eye(d)) * np.tril(np.ones((d, d)))[:, :, None, None]
        M = (M + M.swapaxes(2, 3)).reshape(d * d, d * d)
        out = np.zeros((1 + d + d * d,) * 2)
        out[1 : d + 1, 1 : d + 1] = inverse.T @ inverse
        out[d + 1 :, d + 1 :] = 0.5 * M @ M.T
        return out


class GaussianMixture(MixtureDensity):
    """sum_i w_i N(x | m_i, S_i), with diagonal, spherical (on standardised columns) or full covariances.

    ``GaussianMixture(5).fit(X)`` learns five components by expectation-maximisation on standardised columns, where no
    variance is below 0.001; ``GaussianMixture.of(weights, means, covariances)`` takes given ones.

    >>> GaussianMixture.of([0.5, 0.5], [[0.0], [4.0]], 1.0)
    GaussianMixture(n_components=2, covariance='diagonal')
    """

    _transparent: ClassVar[bool] = True

    n_components: int = eqx.field(static=True, converter=count("the number of components"))
    covariance: str = eqx.field(default="diagonal", static=True)
    random_state: int = eqx.field(default=0, static=True, kw_only=True, converter=seed_of)
    components: Any = eqx.field(default=None, kw_only=True)  # set by `fit` and `of`
    given: bool = eqx.field(default=False, static=True, kw_only=True)  # whether by `of`

    def __check_init__(self) -> None:
        if self.covariance not in COVARIANCES:
            raise ParameterError(
                f"covariance must be one of {', '.join(map(repr, COVARIANCES))}; got {self.covariance!r}."
            )
        if self.components is not None and not isinstance(self.components, DiagonalComponents | FullComponents):
            raise ParameterError(f"components are set by fit and of; got {self.components!r}.")
        if self.components is not None:
            C, full = self.n_components, self.covariance == "full"
            spread: Any = getattr(self.components, "factors" if full else "variances", None)
            shapes = [np.shape(part) for part in (self.components.weights, self.components.means, spread)]
            d = shapes[1][-1:]
            if shapes != [(C,), (C, *d), (C, *d, *d) if full else (C, *d)] or len(shapes[1]) != 2:
                raise ParameterError(
                    f"a mixture of {C} Gaussians has weights ({C},), means ({C}, d) and "
                    + (f"factors ({C}, d, d)" if full else f"variances ({C}, d)")
                    + f"; got shapes {', '.join(map(str, shapes))}."
                )

    @classmethod
    def of(cls, weights: Any, means: Any, covariances: Any) -> "GaussianMixture":
        """From weights (C,), means (C, d), and covariances: one number, or shape (C,), (C, d) or (C, d, d)."""
        if is_traced((weights, means, covariances)):
            raise ParameterError("a mixture is made from numbers; to differentiate in its parameters, use replace.")
        means = as_matrix(means, what="means")
        C, d = means.shape
        try:
            weights, S = as_float(weights), np.asarray(as_float(covariances))
        except (TypeError, ValueError):
            raise ParameterError("weights and covariances of a mixture must be arrays of numbers.") from None
        if np.shape(weights) != (C,) or not (np.all(weights >= 0) and np.sum(weights) > 0):
            raise ParameterError(f"weights must be {C} numbers, one for each mean, zero or positive; got {weights!r}.")
        if S.ndim < 3:
            if S.shape == (C,):
                S = S[:, None]
            variances = np.broadcast_to(S, (C, d)) if S.shape in ((), (C, 1)) else S
            if variances.shape != (C, d):
                raise ParameterError(
                    f"covariances must have shape ({C},), ({C}, {d}) or ({C}, {d}, {d}); got {S.shape}."
                )
            parts: Any = DiagonalComponents(weights / weights.sum(), means, variances)
            return GaussianMixture(C, "diagonal", components=parts, given=True)
        parts = FullComponents(weights / weights.sum(), means, cholesky_factors(S, (C, d, d)))
        return GaussianMixture(C, "full", components=parts, given=True)

    @property
    def needs_fit(self) -> bool:
        return self.components is None

    def fit(self, X: Inputs) -> Self:
        if self.given:
            return self
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture as Fitter

        X = as_matrix(X)
        if len(X) < max(2, self.n_components):
            raise DataError(
                f"{self!r} needs at least {max(2, self.n_components)} rows to be learned from; got {len(X)}. Where "
                "scikit-learn calls the kernel, as in SVC, give one that is fitted: kernel.fit(X_train)."
            )
        centre, spread = centre_and_spread(X)
        fitter = Fitter(
            self.n_components, covariance_type=COVARIANCES[self.covariance], reg_covar=MIN_VARIANCE, n_init=N_STARTS,
            max_iter=MAX_ITERATIONS, random_state=small_seed(self.random_state),
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than components, or slow EM
            fitter.fit((X - centre) / spread)
        means, S = centre + spread * fitter.means_, np.asarray(fitter.covariances_)
        if self.covariance == "full":
            parts: Any = FullComponents(fitter.weights_, means, np.linalg.cholesky(S * np.outer(spread, spread)))
        else:
            variances = np.broadcast_to(S[:, None] if S.ndim == 1 else S, means.shape) * spread**2
            parts = DiagonalComponents(fitter.weights_, means, variances)
        return evolve(self, components=parts)

    def prepare(self, X: Inputs) -> Rows:
        X = as_matrix(X)
        check_width(X, np.shape(self.components.means)[1], "the mean of a component")
        return X

    @property
    def log_weights(self) -> Any:
        return log_normalized(self.components.weights)

    def log_components(self, rows: Rows) -> Any:
        return self.components.log_components(rows)

    @property
    def information(self) -> np.ndarray | None:
        return self.components.information() if self.n_components == 1 else None

    def sample(self, n: int, rng: np.random.Generator, like: Rows = None) -> np.ndarray:
        w = np.asarray(self.components.weights)
        which = rng.choice(self.n_components, size=n, p=w / w.sum())
        z = rng.standard_normal((n, np.shape(self.components.means)[1]))
        L = np.tril(np.asarray(self.components.factors))
        return np.asarray(self.components.means)[which] + np.einsum("nij,nj->ni", L[which], z)

    def __repr__(self) -> str:
        state = f", random_state={self.random_state}" if self.random_state else ""
        return f"{type(self).__name__}(n_components={self.n_components}, covariance={self.covariance!r}{state})"


class Gaussian(GaussianMixture):
    """N(x | m, S): a mixture of one component. ``Gaussian.of(mean, covariance)``, or ``Gaussian().fit(X)``.

    >>> Gaussian.of([0.0, 0.0], [[2.0, 0.0], [0.0, 1.0]])
    Gaussian(covariance='full')
    """

    n_components: int = eqx.field(default=1, static=True, converter=count("the number of components"))
    covariance: str = eqx.field(default="full", static=True)

    @classmethod
    def of(cls, mean: Any, covariance: Any) -> "Gaussian":  # type: ignore[override]
        """From a mean (d,), and a covariance (d, d), variances (d,), or one variance."""
        mean, S = np.atleast_1d(as_float(mean)), np.asarray(as_float(covariance))
        S = np.broadcast_to(S, mean.shape)[None] if S.ndim < 2 else S[None]
        one = GaussianMixture.of([1.0], mean[None], S)
        return cls(1, one.covariance, components=one.components, given=True)

    def __repr__(self) -> str:
        return f"Gaussian(covariance={self.covariance!r})"


def centre_and_spread(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; one for columns that are constant up to rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        centre, spread = X.mean(axis=0), X.std(axis=0)
    if not np.isfinite(spread).all():
        column = int((~np.isfinite(spread)).argmax())
        raise DataError(f"the variance of column {column} is beyond double precision. Scale the inputs down.")
    return centre, np.where(spread > MAX_ROUNDING * np.abs(X).max(axis=0), spread, 1.0)


def check_factors(factors: Any) -> None:
    """Refuse factors L (C, d, d) of covariances L L^T that are singular."""
    if is_traced(factors):
        return
    if np.ndim(factors) != 3 or not np.all(np.diagonal(factors, axis1=1, axis2=2)):
        raise ParameterError(
            "factors of covariances are lower triangular matrices without zeros on the diagonal, in an array "
            f"(C, d, d); got {show(factors)}."
        )


def cholesky_factors(S: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Cholesky factors of covariances, which must be positive definite."""
    if S.shape != shape or not np.isfinite(S).all() or np.abs(S - S.swapaxes(1, 2)).max() > 1e-8 * np.abs(S).max():
        raise ParameterError(f"covariances must be symmetric matrices of finite numbers, shape {shape}; got {S.shape}.")
    try:
        return np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(S).min(axis=1)
        i = int(smallest.argmin())
        raise ParameterError(
            f"covariances must be positive definite; the smallest eigenvalue of component {i} is {smallest[i]:.3g}. "
            "Add a small multiple of the identity."
        ) from None
