"""Parametric densities p(x | theta): the generative models from which kernels are made (PRML 6.28-6.36).

A density is an immutable tree of parameters. ``fit(X)`` returns a copy whose parameters are maximum likelihood
estimates; ``of(...)`` makes one from given parameters. These are fixed, so that a Gaussian process does not learn them,
until they are freed: ``kernel.free("means")``.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import jax
import numpy as np
import scipy.sparse as sp

from mercer.core.coordinates import Layout, to_free
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Kind, Rows, as_matrix
from mercer.core.parameters import Parametrized, bare, plain, slots_of
from mercer.core.precision import concretely, is_traced, namespace
from mercer.kernels.evaluate import some, take, tile_size

STRIP_ROWS = 504  # rows whose scores are computed at a time


def count(what: str) -> Any:
    """Converter for a number of components or states: a positive integer."""

    def converted(value: Any) -> int:
        value = plain(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ParameterError(f"{what} must be an integer, at least 1; got {value!r}.")
        return value

    return converted


def check_distributions(weights: Any, name: str) -> None:
    """Refuse weights that cannot be divided by their sum, along the last axis."""
    if not is_traced(weights) and not np.all(np.sum(weights, axis=-1) > 0):
        where = "" if np.ndim(weights) < 2 else " in a row"
        raise ParameterError(f"{name} are divided by their sum, so they must not all be zero{where}; got {weights!r}.")


def small_seed(seed: int) -> int:
    """A seed that scikit-learn takes."""
    return seed % (1 << 32)


class ParametricDensity(Parametrized):
    """A density p(x | theta) of rows x."""

    reads: ClassVar[Kind] = "vectors"
    differentiable: ClassVar[bool] = True  # whether JAX can trace `log_density`

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
    n = jax.tree.leaves(rows)[0].shape[0]
    size = min(STRIP_ROWS, tile_size(n))
    for i in range(0, n, size):
        last = min(i + size, n)
        yield take(dense(some(rows, slice(i, last))), 0, last - i, size), last - i


def dense(rows: Rows) -> Rows:
    """Prepared rows with sparse matrices as dense ones."""
    return jax.tree.map(lambda leaf: leaf.toarray() if sp.issparse(leaf) else leaf, rows)


@functools.lru_cache(maxsize=64)
def _score_program(layout: Layout) -> Callable:
    def value(theta: jax.Array, leaves: list[Any], row: Rows) -> jax.Array:
        return _log_density(layout.tree(theta, leaves), row)

    return jax.jit(jax.vmap(jax.grad(value), in_axes=(None, None, 0)))


def _log_density(model: ParametricDensity, row: Rows) -> jax.Array:
    return model.log_density(jax.tree.map(lambda leaf: leaf[None], row))[0]


def chosen(model: ParametricDensity, names: tuple[str, ...]) -> Any:
    """The density with these parameters free and all others fixed; all are free if none is named."""
    return model.fix().free(*names) if slots_of(model) else model
