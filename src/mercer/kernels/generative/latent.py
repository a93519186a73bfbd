"""Kernels from models with a continuous latent variable: rows are similar if the same latent value explains both."""

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ModelWarning, ParameterError
from mercer.core.inputs import Inputs, Rows, take_rows
from mercer.core.parameters import evolve, plain
from mercer.core.precision import Array, as_float, concretely, namespace
from mercer.core.random import seed_of
from mercer.distributions import LOG_2PI
from mercer.kernels.base import Kernel
from mercer.kernels.densities.base import MixtureDensity, log_sum, normalized_exp
from mercer.kernels.densities.factor import FactorAnalysis
from mercer.kernels.densities.gaussian import GaussianMixture
from mercer.kernels.densities.outside import as_density
from mercer.kernels.functions import hashable
from mercer.kernels.generative.base import ComponentKernel, Table, shown
from mercer.kernels.validity import Validity, proved

MAX_QUADRATURE = 3  # dimensions of z up to which the default is quadrature
NODES = {1: 100, 2: 40, 3: 16}  # of quadrature, along each dimension
N_DRAWS = 2048  # of Monte Carlo: a power of two, for Sobol points
MAX_ERROR = 0.2  # of a row's similarity to itself, relative: above it a warning is given
MAX_ERROR_ROWS = 64  # of which the error is estimated for that
MAX_NODES = 100_000
METHODS = ("auto", "quadrature", "monte_carlo")


class LatentFunction(MixtureDensity):
    """p(x) = sum_m w_m p(x | z_m): a likelihood p(x | z) integrated over z by nodes z_m (M, q) with weights."""

    likelihood: Callable = eqx.field(static=True)
    nodes: Any
    node_weights: Any
    log: bool = eqx.field(default=False, static=True)
    coarse: "LatentFunction | None" = None  # by quadrature with half as many nodes along each dimension

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "nodes", as_float(self.nodes))
        object.__setattr__(self, "node_weights", as_float(self.node_weights))

    @property
    def log_weights(self) -> Any:
        return jnp.log(jnp.asarray(self.node_weights))

    def log_components(self, rows: Rows) -> Any:
        one = lambda x, z: jnp.reshape(self.likelihood(x, z), ())
        try:
            values = jax.vmap(lambda x: jax.vmap(lambda z: one(x, z))(jnp.asarray(self.nodes)))(jnp.asarray(rows))
        except (TypeError, jax.errors.JAXTypeError) as error:
            raise DataError(
                f"the likelihood {self.likelihood!r} must be a function of one row x (d,) and one latent z (q,) that "
                f"returns one number, written in jax.numpy ({error})."
            ) from None
        if self.log:
            return values
        positive = values > 0
        return jnp.where(positive, jnp.log(jnp.where(positive, values, 1.0)), jnp.where(values == 0, -jnp.inf, jnp.nan))

    def __repr__(self) -> str:
        return f"{getattr(self.likelihood, '__name__', 'likelihood')} on {len(self.nodes)} nodes"


class Latent(ComponentKernel):
    """integral of p(x | z) p(x' | z) p(z) dz over a continuous latent variable z (PRML 6.30).

    ``Latent(likelihood, prior)``: the likelihood is a function p(x | z) of one row x (d,) and one z (q,) in JAX, or
    with ``log=True`` its logarithm. The prior is a number q, for N(0, I) in q dimensions, a Gaussian of
    `mercer.kernels.densities`, a distribution of scipy.stats, or draws from it (M, q). The integral is a sum over
    nodes, so the kernel is valid whatever its error: Gaussian quadrature for z of up to three dimensions, else Monte
    Carlo with the same draws for all pairs (quasi-random ones, except for priors that can only be sampled). ``method``
    and ``n_nodes`` change that; ``error(X)`` estimates the relative error, and a warning says when it is large.

    Linear-Gaussian models x = W z + m + noise have a closed form. ``Latent(2)`` learns one with two latent dimensions
    from the training rows (factor analysis); ``k.densities.FactorAnalysis``, or a fitted FactorAnalysis or PCA of
    scikit-learn, is used without further fitting. With h(x) = sqrt(2) B^-1/2 W^T x, B = I + 2 W^T W, and x and W
    divided by the deviation of the noise, it is f(x) f(x') exp(h(x).h(x') / 2); normalised exp(-|h(x) - h(x')|^2 / 4).

    >>> from mercer.kernels import densities
    >>> def likelihood(x, z):
    ...     return jnp.exp(-0.5 * jnp.sum((x - z) ** 2)) / jnp.sqrt(2 * jnp.pi)
    >>> by_nodes = Latent(likelihood, prior=1)
    >>> exact = Latent(densities.FactorAnalysis.of([[1.0]], 0.0, 1.0))
    >>> by_nodes([0.0, 1.0]).round(4), exact([0.0, 1.0]).round(4)
    (array([[0.0919, 0.0658],
           [0.0658, 0.0658]]), array([[0.0919, 0.0658],
           [0.0658, 0.0658]]))
    """

    model: Any
    prior: Any = None
    method: str = eqx.field(default="auto", static=True, kw_only=True)
    n_nodes: int | None = eqx.field(default=None, static=True, kw_only=True, converter=plain)
    log: bool = eqx.field(default=False, static=True, kw_only=True)
    random_state: int = eqx.field(default=0, static=True, kw_only=True, converter=seed_of)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in METHODS:
            raise ParameterError(f"method must be one of {', '.join(map(repr, METHODS))}; got {self.method!r}.")
        if self.n_nodes is not None and (not isinstance(self.n_nodes, int) or self.n_nodes < 2):
            raise ParameterError(f"n_nodes must be an integer, at least 2; got {self.n_nodes!r}.")
        model: Any = _linear(self.model)
        if model is None and not isinstance(self.model, LatentFunction):
            if not callable(self.model):
                raise ParameterError(
                    "Latent takes a likelihood p(x | z) with a prior, a number of latent dimensions to learn, or a "
                    f"model of factor analysis; got {self.model!r}."
                )
            model = _integrated(
                hashable(self.model), self.log, self.prior, self.method, self.n_nodes, self.random_state
            )
        elif model is not None and self.prior is not None:
            raise ParameterError("the prior of a linear-Gaussian model is N(0, I): give no other.")
        object.__setattr__(self, "model", self.model if model is None else model)
        object.__setattr__(self, "prior", None)  # the model has its nodes
        object.__setattr__(self, "log", False)

    @property
    def _closed(self) -> bool:
        return isinstance(self.model, FactorAnalysis)

    def table(self, rows: Rows) -> Any:
        """ln p(x | z_m) + ln w_m / 2 for each node; for the closed form ln f(x) and h(x): (n, 1 + q)."""
        if not self._closed:
            return super().table(rows)
        x, W = self.model.whitened(rows)
        xp = namespace(x, W)
        L = xp.linalg.cholesky(xp.eye(W.shape[1]) + 2 * W.T @ W)
        h = np.sqrt(2.0) * xp.linalg.solve(L, W.T @ x.T).T
        log_constant = xp.sum(xp.log(xp.diag(L))) + xp.sum(xp.log(self.model.linear.noise)) + x.shape[1] * LOG_2PI
        log_f = -0.5 * (xp.sum(x**2, axis=1) + log_constant) + 0.25 * xp.sum(h**2, axis=1)
        return xp.concatenate([log_f[:, None], h], axis=1)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = super().prepare(X, index)
        if isinstance(rows, Table) and not self._closed and len(rows.values):
            error = float(np.median(self._errors(self.model.prepare(take_rows(X, slice(0, MAX_ERROR_ROWS))))))
            if error > MAX_ERROR:
                size = f"about {error:.0%}" if np.isfinite(error) else "unknown, since no value explains a row"
                warnings.warn(
                    f"Latent integrates over {len(self.model.nodes)} values of z, too few for this likelihood: the "
                    f"relative error of a similarity is {size}. Raise n_nodes, or scale the inputs.",
                    ModelWarning,
                    stacklevel=2,
                )
        return rows

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        if not self._closed:
            return super().block(X, Z)
        A, B = self._table(X), self._table(Z)
        if self.normalized:
            away = A[:, None, 1:] - B[None, :, 1:]
            return jnp.exp(-0.25 * jnp.sum(away**2, axis=2))
        return jnp.exp(A[:, :1] + B[:, 0][None, :] + 0.5 * A[:, 1:] @ B[:, 1:].T)

    def block_diag(self, X: Rows) -> jax.Array:
        if not self._closed:
            return super().block_diag(X)
        A = self._table(X)
        return jnp.ones(len(A)) if self.normalized else jnp.exp(2 * A[:, 0] + 0.5 * jnp.sum(A[:, 1:] ** 2, axis=1))

    def feature_block(self, X: Rows) -> jax.Array:
        return Kernel.feature_block(self, X) if self._closed else super().feature_block(X)

    def error(self, X: Inputs) -> np.ndarray:
        """Estimated relative error of k(x, x) for each row of X: (n,). Zero for a closed form.

        For Monte Carlo it is the standard error of independent draws, an upper bound for quasi-random ones; for
        quadrature it is the difference from a rule with half as many nodes along each dimension.
        """
        fitted = self.fitted(X)
        return fitted._errors(fitted.model.prepare(X))

    def _errors(self, rows: Rows) -> np.ndarray:
        if self._closed:
            return np.zeros(len(rows))
        with concretely():
            if self.model.coarse is None:
                logs = 2 * np.asarray(self.table(rows))
                found = np.isfinite(logs).any(axis=1)
                shares = normalized_exp(np.where(found[:, None], logs, 0.0))
                error = np.sqrt(np.maximum(np.sum(shares**2, axis=1) - 1 / logs.shape[1], 0.0))
                return np.where(found, error, np.inf)  # no value of z explains the row
            own, coarse = (
                np.asarray(log_sum(2 * model.log_components(rows) + model.log_weights))
                for model in (self.model, self.model.coarse)
            )
        found = np.isfinite(own)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(found, np.abs(np.expm1(coarse - own)), np.inf)

    @property
    def validity(self) -> Validity:
        if self._closed:
            says = "f(x) f(x') times the exponential of a scalar product (6.14, 6.16 and 6.20)"
        else:
            says = "a weighted sum of products p(x | z) p(x' | z) over values of z (6.29)"
        return proved("6.30", says, repr(self))

    def __repr__(self) -> str:
        options = f", method={self.method!r}" * (self.method != "auto")
        options += f", n_nodes={self.n_nodes}" * (self.n_nodes is not None)
        options += f", random_state={self.random_state}" * (self.random_state != 0)
        return shown(self, f"Latent({self.model!r}{options}")


def _linear(model: Any) -> FactorAnalysis | None:
    """A linear-Gaussian model, from a number of latent dimensions to learn or a fitted model of scikit-learn."""
    if isinstance(model, FactorAnalysis):
        return model
    if isinstance(model, numbers.Integral) and not isinstance(model, bool):
        return FactorAnalysis(int(model))
    if hasattr(model, "noise_variance_") and hasattr(model, "components_"):
        return FactorAnalysis.from_sklearn(model)
    return None


def _integrated(likelihood: Callable, log: bool, prior: Any, method: str, n: int | None, seed: int) -> LatentFunction:
    """The likelihood with nodes and weights for its integral under the prior."""
    if np.ndim(prior) in (1, 2) and isinstance(prior, np.ndarray | jax.Array | list):
        try:
            draws = np.asarray(prior, dtype=float)
        except (TypeError, ValueError):
            draws = np.empty(0)
        draws = draws[:, None] if draws.ndim == 1 else draws
        if not len(draws) or not np.isfinite(draws).all():
            raise ParameterError("draws of the prior must be finite numbers, one row for each.")
        return LatentFunction(likelihood, draws, np.full(len(draws), 1 / len(draws)), log)
    q, transform, normal = _transform(prior)
    if transform is None or (q > MAX_QUADRATURE if method == "auto" else method == "monte_carlo"):
        draws = _draws(prior, q, transform, normal, n or N_DRAWS, seed)
        return LatentFunction(likelihood, draws, np.full(len(draws), 1 / len(draws)), log)
    per_axis = n or NODES.get(q, 6)
    if per_axis**q > MAX_NODES:
        raise ParameterError(
            f"quadrature of {per_axis} nodes along each of {q} dimensions would need {per_axis**q:,} nodes. Use fewer, "
            "or method='monte_carlo'."
        )
    rules = [
        LatentFunction(likelihood, *_quadrature(q, transform, normal, size), log) for size in (per_axis, per_axis // 2)
    ]
    return evolve(rules[0], coarse=rules[1])


def _transform(prior: Any) -> tuple[int, Callable | None, bool]:
    """Dimension of z; the map to draws (M, q) from standard normal or from uniform numbers, None if it is not known;
    and whether it is from normal ones."""
    from scipy import stats

    if isinstance(prior, numbers.Integral) and not isinstance(prior, bool) and int(prior) > 0:
        return int(prior), lambda z: z, True
    if isinstance(prior, GaussianMixture) and not prior.needs_fit:
        d = np.shape(prior.components.means)[1]
        if prior.n_components > 1:
            return d, None, False
        mean, L = np.asarray(prior.components.means)[0], np.tril(prior.components.factors[0])
        return d, lambda z: mean + z @ L.T, True
    if isinstance(prior, type(stats.multivariate_normal(np.zeros(1)))):
        return _transform(as_density(prior))
    if hasattr(prior, "ppf"):
        return 1, prior.ppf, False
    if hasattr(prior, "rvs"):
        return np.size(np.asarray(prior.rvs(random_state=np.random.default_rng(0)))), None, False
    raise ParameterError(
        "the prior of a latent variable must be a number of dimensions, for N(0, I), a Gaussian of "
        f"mercer.kernels.densities, a distribution of scipy.stats, or an array of draws; got {prior!r}."
    )


def _quadrature(q: int, transform: Callable, normal: bool, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (M, q) and weights (M,) on a grid: Gauss-Hermite for normal distributions, else Gauss-Legendre between the
    quantiles."""
    from scipy.special import roots_hermitenorm

    if normal:
        x, w = roots_hermitenorm(size)
        w = w / w.sum()
    else:
        x, w = np.polynomial.legendre.leggauss(size)
        x, w = 0.5 * (x + 1), 0.5 * w
    grid = np.stack(np.meshgrid(*[x] * q, indexing="ij"), axis=-1).reshape(-1, q)
    weights = np.prod(np.stack(np.meshgrid(*[w] * q, indexing="ij"), axis=-1).reshape(-1, q), axis=1)
    kept = weights > np.finfo(float).tiny
    return np.reshape(transform(grid[kept]), (-1, q)), weights[kept]


def _draws(prior: Any, q: int, transform: Callable | None, normal: bool, n: int, seed: int) -> np.ndarray:
    """Draws from the prior (n, q): scrambled Sobol points where uniform numbers can be transformed."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    rng = np.random.default_rng(seed)
    if transform is not None:
        u = qmc.Sobol(q, rng=rng).random_base2(int(np.ceil(np.log2(n))))[:n]
        u = np.clip(u, 1e-12, 1 - 1e-12)
        return np.reshape(transform(ndtri(u) if normal else u), (n, q))
    drawn = prior.sample(n, rng) if hasattr(prior, "sample") else prior.rvs(size=n, random_state=rng)
    return np.reshape(np.asarray(drawn, dtype=float), (n, q))
