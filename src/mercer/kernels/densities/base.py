"""Parametric densities p(x | theta): the generative models from which kernels are made (PRML 6.28-6.36).

A density is an immutable tree of parameters. ``fit(X)`` returns a copy whose parameters are maximum likelihood
estimates; ``of(...)`` makes one from given parameters. These are fixed, so that a Gaussian process does not learn them,
until they are freed: ``kernel.free("means")``.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from mercer.core.coordinates import Layout, to_free
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Kind, Rows, as_matrix
from mercer.core.parameters import Parametrized, bare, evolve, plain, slots_of
from mercer.core.precision import concretely, is_traced, namespace
from mercer.kernels.evaluate import take, tile_size
from mercer.kernels.functions import RowFunction

STRIP = 504  # rows whose scores are computed at a time


def count(what: str) -> Any:
    """Converter for a number of components or states: a positive integer."""

    def converted(value: Any) -> int:
        value = plain(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ParameterError(f"{what} must be an integer, at least 1; got {value!r}.")
        return value

    return converted


class ParametricDensity(Parametrized):
    """A density p(x | theta) of rows x."""

    reads: ClassVar[Kind] = "vectors"
    differentiable: ClassVar[bool] = True  # whether JAX can trace `log_density` in the parameters

    @property
    def needs_fit(self) -> bool:
        """Whether its parameters have yet to be learned from rows."""
        return False

    def fit(self, X: Inputs) -> Self:
        """A copy with parameters learned from X by maximum likelihood; itself if its parameters were given."""
        return self

    def prepare(self, X: Inputs) -> Rows:
        """Rows for the methods below: a pytree of arrays."""
        return as_matrix(X)

    def log_density(self, rows: Rows) -> Any:
        """ln p(x | theta) of prepared rows: (n,)."""
        raise NotImplementedError

    def sample(self, n: int, rng: np.random.Generator, like: Rows = None) -> Inputs:
        """n independent rows. What the model does not say, such as the length of a sequence or a document, is drawn
        from the prepared rows ``like``."""
        raise DataError(f"{type(self).__name__} cannot be sampled. Use information='empirical' or 'diagonal'.")

    @property
    def information(self) -> np.ndarray | None:
        """Fisher information of one row in the coordinates of `scores`: (P, P); None if it has no closed form."""
        return None

    def scores(self, rows: Rows) -> Any:
        """Derivatives of ln p(x | theta) in the free parameters: (n, P).

        Coordinates are those of the optimiser: logarithms of positive parameters, among them those of weights, which
        are normalised afterwards. Cost: one gradient a row, O(P).
        """
        layout = Layout.of(self)
        if is_traced((self, rows)):
            theta = to_free(self)
            return jax.vmap(jax.grad(lambda theta, row: _log_density(layout.placed(self, theta), row)), (None, 0))(
                theta, rows
            )
        theta, leaves = np.asarray(to_free(self)), jax.tree.leaves(bare(self))
        program = _score_program(layout)
        parts = []
        with concretely():
            for strip, n in strips(rows):
                parts.append(np.asarray(program(theta, leaves, strip))[:n])
        return np.concatenate(parts) if parts else np.empty((0, layout.size))

    def check(self, values: Any, what: str = "density") -> None:
        """Refuse log densities (n,) or (n, C) that are NaN or plus infinity."""
        values = np.asarray(values)
        bad = np.isnan(values) | (values == np.inf)
        if bad.any():
            row = int(bad.reshape(len(values), -1).any(axis=1).argmax())
            raise DataError(
                f"the {what} of {self!r} must be zero or a positive number; in row {row} it is not. Check the "
                "function, and whether it returns the logarithm (log=True)."
            )


class MixtureDensity(ParametricDensity):
    """A mixture p(x) = sum_i p(i) p(x | i)."""

    @property
    def log_weights(self) -> Any:
        """ln p(i): (C,)."""
        raise NotImplementedError

    def log_components(self, rows: Rows) -> Any:
        """ln p(x | i) of prepared rows: (n, C)."""
        raise NotImplementedError

    def log_density(self, rows: Rows) -> Any:
        return log_sum(self.log_components(rows) + self.log_weights)

    def responsibilities(self, rows: Rows) -> np.ndarray:
        """p(i | x) of prepared rows: (n, C)."""
        with concretely():
            joint = np.asarray(self.log_components(rows) + self.log_weights)
        return normalized_exp(joint)


def log_sum(logarithms: Any) -> Any:
    """ln of the sum of exp over each row: (n,). Minus infinity if all are."""
    xp = namespace(logarithms)
    largest = xp.max(logarithms, axis=1, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, 0.0)
    total = xp.sum(xp.exp(logarithms - largest), axis=1)
    positive = total > 0
    return xp.where(positive, xp.log(xp.where(positive, total, 1.0)) + largest[:, 0], -np.inf)


def normalized_exp(logarithms: np.ndarray) -> np.ndarray:
    """exp of each row, divided by its sum."""
    values = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


def log_normalized(weights: Any, axis: int = -1) -> Any:
    """ln of non-negative weights divided by their sum. Zero weights stay zero, without a slope."""
    xp = namespace(weights)
    positive = weights > 0
    logs = xp.log(xp.where(positive, weights, 1.0))
    return xp.where(positive, logs - xp.log(xp.sum(weights, axis=axis, keepdims=True)), -np.inf)


def strips(rows: Rows) -> Iterator[tuple[Rows, int]]:
    """Prepared rows in strips of one size, padded, each with its number of rows; sparse matrices as dense ones."""
    n = len(jax.tree.leaves(rows)[0]) if not sp.issparse(rows) else rows.shape[0]
    size = min(STRIP, tile_size(n))
    for i in range(0, n, size):
        last = min(i + size, n)
        yield (
            (take(rows[i:last].toarray(), 0, last - i, size) if sp.issparse(rows) else take(rows, i, last, size)),
            (last - i),
        )


@functools.lru_cache(maxsize=64)
def _score_program(layout: Layout) -> Callable:
    def value(theta: jax.Array, leaves: list[Any], row: Rows) -> jax.Array:
        return _log_density(layout.tree(theta, leaves), row)

    return jax.jit(jax.vmap(jax.grad(value), in_axes=(None, None, 0)))


def _log_density(model: ParametricDensity, row: Rows) -> jax.Array:
    return model.log_density(jax.tree.map(lambda leaf: leaf[None], row))[0]


# -- densities of users and of other libraries ---------------------------------------------------------------------


class FunctionDensity(ParametricDensity):
    """A density given as a function of one input; ``log`` says that the function returns the logarithm."""

    function: RowFunction = eqx.field(converter=RowFunction.of)
    log: bool = eqx.field(default=False, static=True)

    reads = "anything"

    def prepare(self, X: Inputs) -> Rows:
        return self.function.prepare(X)

    def log_density(self, rows: Rows) -> Any:
        values = self.function(rows)
        if values.shape[1] != 1:
            raise DataError(f"a density is one number for each input; {self.function!r} returned {values.shape[1]}.")
        values = values[:, 0]
        if self.log:
            return values
        positive = values > 0  # a negative number is no density: NaN, which `check` refuses
        return jnp.where(positive, jnp.log(jnp.where(positive, values, 1.0)), jnp.where(values == 0, -jnp.inf, jnp.nan))


class FittedDensity(ParametricDensity):
    """A fitted density of another library, such as scikit-learn: an object with ``score_samples`` or ``logpdf``."""

    model: Any = eqx.field(static=True)

    differentiable = False

    def log_density(self, rows: Rows) -> Any:
        X = np.asarray(rows)
        method = next(getattr(self.model, name) for name in _LOG_METHODS if hasattr(self.model, name))
        try:
            values = np.asarray(method(X.T if type(self.model).__name__ in _POINTS_IN_COLUMNS else X), dtype=float)
        except Exception as error:  # of another library
            raise DataError(f"{self.model!r} cannot evaluate rows of {X.shape[1]} numbers: {error}") from error
        if values.size != len(X):
            raise DataError(
                f"{self.model!r} must give one number for each of {len(X)} rows of {X.shape[1]} numbers; it gave shape "
                f"{values.shape}."
            )
        return values.reshape(len(X))


class ScipyDensity(ParametricDensity):
    """A distribution of one number from scipy.stats: its name and arguments."""

    distribution: str = eqx.field(static=True)
    arguments: tuple[Any, ...] = eqx.field(default=(), static=True)
    options: tuple[tuple[str, Any], ...] = eqx.field(default=(), static=True)

    differentiable = False

    def __check_init__(self) -> None:
        from scipy import stats

        known = getattr(stats, self.distribution, None) if isinstance(self.distribution, str) else None
        if not isinstance(known, stats.rv_continuous | stats.rv_discrete):
            raise ParameterError(f"scipy.stats has no distribution {self.distribution!r}.")

    def __repr__(self) -> str:
        options = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.options)]
        return f"{self.distribution}({', '.join(options)})"

    @property
    def frozen(self) -> Any:
        from scipy import stats

        return getattr(stats, self.distribution)(*self.arguments, **dict(self.options))

    def log_density(self, rows: Rows) -> Any:
        X = np.asarray(rows)
        if X.shape[1] != 1:
            raise DataError(
                f"{self!r} is a density of one number, and rows have {X.shape[1]}. Select a column: kernel.on(0)."
            )
        frozen = self.frozen
        with np.errstate(divide="ignore"):
            return np.asarray((frozen.logpdf if hasattr(frozen.dist, "pdf") else frozen.logpmf)(X[:, 0]), dtype=float)

    def sample(self, n: int, rng: np.random.Generator, like: Rows = None) -> Inputs:
        return np.reshape(self.frozen.rvs(size=n, random_state=rng), (n, 1)).astype(float)


_LOG_METHODS = ("score_samples", "logpdf", "logpmf")
_POINTS_IN_COLUMNS = ("gaussian_kde", "dirichlet_frozen")  # of scipy.stats, unlike its other distributions


class WeightedDensities(MixtureDensity):
    """A mixture of given densities: p(x | i) is the i-th of them."""

    weights: Any
    parts: tuple[ParametricDensity, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            weights = np.array(self.weights, dtype=float)
        except (TypeError, ValueError):
            weights = np.empty(0)
        if weights.shape != (len(self.parts),) or not np.all(weights >= 0) or not 0 < weights.sum() < np.inf:
            raise ParameterError(
                f"weights of a mixture must be {len(self.parts)} numbers, one for each density, zero or positive; got "
                f"{self.weights!r}."
            )
        object.__setattr__(self, "weights", weights / weights.sum())

    reads = "anything"

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        return all(part.differentiable for part in self.parts)

    @property
    def needs_fit(self) -> bool:
        return any(part.needs_fit for part in self.parts)

    def fit(self, X: Inputs) -> Self:
        return evolve(self, parts=tuple(part.fit(X) for part in self.parts))

    def prepare(self, X: Inputs) -> Rows:
        return tuple(part.prepare(X) for part in self.parts)

    @property
    def log_weights(self) -> Any:
        return log_normalized(self.weights)

    def log_components(self, rows: Rows) -> Any:
        found = [part.log_density(own) for part, own in zip(self.parts, rows, strict=True)]
        return namespace(*found).stack(found, axis=1)


class FunctionOfParameters(ParametricDensity):
    """A log density ``function(values, x)`` of one input in JAX, with parameters in any pytree of arrays."""

    values: Any
    function: Callable = eqx.field(static=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise ParameterError(
                f"a log density must be a function of parameters and one input; got {self.function!r}."
            )
        try:
            values = jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float), self.values)
        except (TypeError, ValueError):
            raise ParameterError(
                f"parameters of a log density must be arrays of numbers; got {self.values!r}."
            ) from None
        object.__setattr__(self, "values", values)
        if not jax.tree.leaves(self.values):
            raise ParameterError("a Fisher kernel needs the parameters at which scores are taken: Fisher(f, params).")

    def log_density(self, rows: Rows) -> Any:
        return jax.vmap(lambda x: jnp.reshape(self.function(self.values, x), ()))(rows)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", None) or repr(self.function)

    def scores(self, rows: Rows) -> np.ndarray:
        parts = []
        with concretely():
            for strip, n in strips(rows):
                try:
                    parts.append(np.asarray(_function_scores(self.function, self.values, strip))[:n])
                except (TypeError, IndexError, jax.errors.JAXTypeError) as error:
                    raise DataError(
                        f"{self!r} must be a function log_density(params, x) of one row x (d,) that returns one "
                        f"number, written in jax.numpy ({error})."
                    ) from None
        return np.concatenate(parts) if parts else np.empty((0, sum(map(np.size, jax.tree.leaves(self.values)))))


@functools.partial(jax.jit, static_argnames="function")
def _function_scores(function: Callable, values: Any, rows: Rows) -> jax.Array:
    def score(x: jax.Array) -> jax.Array:
        slopes = jax.grad(lambda values: jnp.reshape(function(values, x), ()))(values)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(slopes)])

    return jax.vmap(score)(rows)


def as_density(p: Any, log: bool = False) -> ParametricDensity:
    """A density from `mercer.kernels.densities`, from scikit-learn or SciPy, or from a function of one input."""
    from scipy import stats

    from mercer.kernels.densities.gaussian import Gaussian, GaussianMixture

    if isinstance(p, ParametricDensity):
        return p
    if hasattr(p, "weights_") and hasattr(p, "covariances_") and hasattr(p, "means_"):
        return GaussianMixture.of(p.weights_, p.means_, _sklearn_covariances(p))
    if isinstance(p, type(stats.multivariate_normal(np.zeros(1)))) and np.all(np.linalg.eigvalsh(p.cov) > 0):
        return Gaussian.of(p.mean, p.cov)
    if hasattr(p, "transmat_"):
        from mercer.kernels.densities.markov import HiddenMarkovModel

        return HiddenMarkovModel.from_hmmlearn(p)
    if isinstance(p, stats.rv_continuous | stats.rv_discrete):
        p = p()
    if isinstance(getattr(p, "dist", None), stats.rv_continuous | stats.rv_discrete):
        arguments = {**dict(enumerate(p.args)), **p.kwds}
        if any(np.ndim(value) for value in arguments.values()):
            raise ParameterError(f"one distribution was expected; {p.dist.name} was given arrays of parameters.")
        if getattr(stats, p.dist.name, None) is not None:
            return ScipyDensity(p.dist.name, tuple(map(float, p.args)), tuple(sorted(p.kwds.items())))
    if any(hasattr(p, name) for name in _LOG_METHODS) and not isinstance(p, type):
        return FittedDensity(p)
    if callable(p):
        return FunctionDensity(p, log)
    raise ParameterError(
        f"a density was expected: a function of one input, a distribution of scipy.stats, a fitted model of "
        f"scikit-learn with score_samples, or one of mercer.kernels.densities; got {p!r}."
    )


def _sklearn_covariances(model: Any) -> np.ndarray:
    """Covariances of a fitted mixture of scikit-learn, one for each component."""
    covariances = np.asarray(model.covariances_)
    return np.stack([covariances] * len(model.weights_)) if model.covariance_type == "tied" else covariances


def chosen(model: ParametricDensity, names: tuple[str, ...]) -> Any:
    """The density with these parameters free and all others fixed; all are free if none is named."""
    return model.fix().free(*names) if slots_of(model) else model
