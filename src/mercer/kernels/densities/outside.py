"""Densities given by users' functions, or by fitted models of other libraries."""

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Kind, Rows
from mercer.core.parameters import NonNegativeArray, RealArray, evolve
from mercer.core.precision import as_float, is_traced, namespace
from mercer.kernels.base import common_kind
from mercer.kernels.densities.base import MixtureDensity, ParametricDensity, check_distributions, log_normalized
from mercer.kernels.densities.gaussian import Gaussian, GaussianMixture
from mercer.kernels.functions import RowFunction, hashable, not_traceable

LOG_METHODS = ("score_samples", "logpdf", "logpmf")  # of models of other libraries
POINTS_IN_COLUMNS = ("gaussian_kde", "dirichlet_frozen")  # of scipy.stats, unlike its other distributions


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
        X = _concrete(self, rows)
        method = next(getattr(self.model, name) for name in LOG_METHODS if hasattr(self.model, name))
        try:
            values = np.asarray(method(X.T if type(self.model).__name__ in POINTS_IN_COLUMNS else X), dtype=float)
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
        X = _concrete(self, rows)
        if X.shape[1] != 1:
            raise DataError(
                f"{self!r} is a density of one number, and rows have {X.shape[1]}. Select a column: kernel.on(0)."
            )
        frozen = self.frozen
        with np.errstate(divide="ignore"):
            return np.asarray((frozen.logpdf if hasattr(frozen.dist, "pdf") else frozen.logpmf)(X[:, 0]), dtype=float)

    def sample(self, n: int, rng: np.random.Generator, like: Rows = None) -> Inputs:
        return np.reshape(self.frozen.rvs(size=n, random_state=rng), (n, 1)).astype(float)


def _concrete(density: ParametricDensity, rows: Rows) -> np.ndarray:
    if is_traced(rows):
        raise not_traceable(density)
    return np.asarray(rows)


class WeightedDensities(MixtureDensity):
    """A mixture of given densities: p(x | i) is the i-th of them. Weights are divided by their sum."""

    weights: NonNegativeArray
    parts: tuple[ParametricDensity, ...]
    fixed: frozenset[str] = eqx.field(default=frozenset(("weights",)), static=True, kw_only=True, repr=False)

    def __check_init__(self) -> None:
        if np.shape(self.weights) != (len(self.parts),):
            raise ParameterError(
                f"weights of a mixture must be {len(self.parts)} numbers, one for each density; got {self.weights!r}."
            )
        check_distributions(self.weights, "weights")

    @property
    def reads(self) -> Kind:  # type: ignore[override]
        return common_kind(self.parts)

    @property
    def needs_fit(self) -> bool:
        return any(part.needs_fit for part in self.parts)

    def fit(self, X: Inputs) -> Self:
        return evolve(self, parts=tuple(part.fit(X) for part in self.parts))

    def prepare(self, X: Inputs) -> Rows:
        # Log densities of parts that JAX cannot trace are numbers from here on.
        rows = [part.prepare(X) for part in self.parts]
        return tuple(
            own if part.differentiable else part.log_density(own) for part, own in zip(self.parts, rows, strict=True)
        )

    @property
    def log_weights(self) -> Any:
        return log_normalized(self.weights)

    def log_components(self, rows: Rows) -> Any:
        found = [
            part.log_density(own) if part.differentiable else own for part, own in zip(self.parts, rows, strict=True)
        ]
        return namespace(*found).stack(found, axis=1)


class Template:
    """A pytree of arrays, of which only the structure and the shapes count."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    @property
    def _key(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(self.tree)
        return structure, *map(np.shape, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self.tree))

    def filled(self, values: Any) -> Any:
        """The pytree with its entries read from a vector."""
        leaves, structure = jax.tree.flatten(self.tree)
        limits = np.cumsum([np.size(leaf) for leaf in leaves])
        parts = [values[stop - np.size(leaf) : stop] for leaf, stop in zip(leaves, limits, strict=True)]
        shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)


class FunctionOfParameters(ParametricDensity):
    """A log density ``function(params, x)`` of one input in JAX, with parameters in any pytree of arrays.

    The pytree is held as one vector, ``params``, and a template.
    """

    params: RealArray
    function: Callable = eqx.field(static=True)
    template: Template | None = eqx.field(default=None, static=True)
    fixed: frozenset[str] = eqx.field(default=frozenset(("params",)), static=True, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ParameterError(
                f"a log density must be a function of parameters and one input; got {self.function!r}."
            )
        object.__setattr__(self, "function", hashable(self.function))
        if self.template is None:
            leaves = jax.tree.leaves(self.params)
            if not leaves:
                raise ParameterError(
                    "a Fisher kernel needs the parameters at which scores are taken: Fisher(f, params)."
                )
            try:
                if any(np.iscomplexobj(leaf) for leaf in leaves):
                    raise TypeError("complex")
                leaves = [as_float(leaf) for leaf in leaves]
            except (TypeError, ValueError):
                raise ParameterError(
                    f"parameters of a log density must be arrays of numbers; got {self.params!r}."
                ) from None
            shapes = jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)), self.params)
            xp: Any = jnp if is_traced(leaves) else np
            object.__setattr__(self, "template", Template(shapes))
            object.__setattr__(self, "params", xp.concatenate([xp.ravel(leaf) for leaf in leaves]))
        super().__post_init__()

    def __check_init__(self) -> None:
        size = self.template.size  # type: ignore[union-attr]
        if np.shape(self.params) != (size,):
            raise ParameterError(f"params of {self!r} must be a vector of {size}; got shape {np.shape(self.params)}.")

    def log_density(self, rows: Rows) -> Any:
        params = self.template.filled(self.params)  # type: ignore[union-attr]
        try:
            return jax.vmap(lambda x: jnp.reshape(self.function(params, x), ()))(rows)
        except Exception as error:  # of the user's function
            says = f"{type(error).__name__}: {error}".splitlines()[0]
            raise DataError(
                f"{self!r} must be a function log_density(params, x) of one row x (d,) that returns one number, "
                f"written in jax.numpy ({says})."
            ) from error

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", None) or repr(self.function)


def as_density(p: Any, log: bool = False) -> ParametricDensity:
    """A density from `mercer.kernels.densities`, from scikit-learn or SciPy, or from a function of one input."""
    from scipy import stats

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
    if any(hasattr(p, name) for name in LOG_METHODS) and not isinstance(p, type):
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
