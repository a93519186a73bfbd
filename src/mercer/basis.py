"""Basis functions phi_j(x): the three families of PRML Figure 6.1.

A basis maps inputs (n, d) to a design matrix (n, M), on NumPy or JAX arrays.

>>> Polynomial(degree=2)([[3.0]])
array([[1., 3., 9.]])
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, as_matrix, check_width
from mercer.core.parameters import Parametrized, PositivePerInput, plain
from mercer.core.precision import as_float, concretely, is_traced


class Basis(Parametrized):
    """M functions of an input. ``basis(X)`` is the design matrix, one row per input, one column per function."""

    def __call__(self, X: Inputs) -> Any:
        X = as_matrix(X)
        if is_traced((self, X)):
            return self.design(X)
        with concretely():
            return np.asarray(self.design(jnp.asarray(X)))

    def design(self, X: jax.Array) -> jax.Array:
        """Design matrix (n, M) of a matrix of inputs (n, d), in JAX."""
        raise NotImplementedError


def monomials(d: int, degree: int) -> np.ndarray:
    """Exponents of all monomials in d variables up to a degree, lowest degree first: (count, d).

    >>> monomials(2, 2).tolist()
    [[0, 0], [1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]
    """
    rows = [
        np.bincount(combination, minlength=d)
        for total in range(degree + 1)
        for combination in (np.array(c, dtype=int) for c in itertools.combinations_with_replacement(range(d), total))
    ]
    return np.stack(rows)


class Polynomial(Basis):
    """All monomials up to a degree; 1, x, x^2, ... for one input (PRML Figure 6.1, left)."""

    degree: int = eqx.field(static=True, converter=plain)

    def __check_init__(self) -> None:
        if not isinstance(self.degree, int | np.integer) or self.degree < 0:
            raise ParameterError(f"degree must be a non-negative integer; got {self.degree!r}.")

    def design(self, X: jax.Array) -> jax.Array:
        # Integer powers, so that 0^0 = 1 and gradients stay finite at x = 0.
        columns = []
        for exponents in monomials(X.shape[1], self.degree):
            column = jnp.ones_like(X[:, 0]) if X.shape[1] else jnp.ones(X.shape[0])
            for i in np.flatnonzero(exponents):
                column = column * jax.lax.integer_pow(X[:, i], int(exponents[i]))
            columns.append(column)
        return jnp.stack(columns, axis=1)


class _Centred(Basis):
    """One function per centre, all of the same width."""

    centers: Any
    width: PositivePerInput = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_traced(self.centers):
            object.__setattr__(self, "centers", as_float(as_matrix(self.centers, what="centers")))

    def design(self, X: jax.Array) -> jax.Array:
        check_width(X, self.centers.shape[1], "centers")
        return self.of_difference(X[:, None, :] - jnp.asarray(self.centers)[None, :, :])

    def of_difference(self, difference: jax.Array) -> jax.Array:
        """Values (n, M) from x_i - mu_j (n, M, d)."""
        raise NotImplementedError


class Gaussian(_Centred):
    """exp(-|x - mu_j|^2 / 2 s^2) (PRML 3.4; Figure 6.1, centre). The width s may be one per input."""

    def of_difference(self, difference: jax.Array) -> jax.Array:
        return jnp.exp(-0.5 * jnp.sum((difference / self.width) ** 2, axis=-1))


class Sigmoid(_Centred):
    """Logistic sigmoids sigma((x - mu_j) / s) of one input (PRML 3.5, 3.6; Figure 6.1, right)."""

    def of_difference(self, difference: jax.Array) -> jax.Array:
        if difference.shape[-1] != 1:
            raise DataError(
                f"sigmoidal basis functions take one input column; got {difference.shape[-1]}. "
                "Select one, for instance with FeatureMap(...).on(0)."
            )
        return jax.nn.sigmoid(difference[..., 0] / self.width)


class Targets(Basis):
    """Functions of inputs whose last column is the number 0, 1, ... of a target, each function for every target alone:
    for target p, ``basis`` of the other columns in p's own functions and zero in all others. Without a basis,
    constants.

    >>> Targets(2)([[7.0, 0.0], [7.0, 1.0]])
    array([[1., 0.],
           [0., 1.]])
    """

    n_outputs: int = eqx.field(static=True, converter=plain)
    basis: Any = None

    def design(self, X: jax.Array) -> jax.Array:
        own = (X[:, -1:] == jnp.arange(float(self.n_outputs))).astype(X.dtype)
        if self.basis is None:
            return own
        return (own[:, :, None] * self.basis.design(X[:, :-1])[:, None, :]).reshape(len(X), -1)
