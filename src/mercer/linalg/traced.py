"""Linear algebra inside programs that JAX traces, with derivatives."""

import jax
import jax.numpy as jnp


def factor(A: jax.Array) -> jax.Array:
    """Cholesky factor L of a symmetric matrix; NaN where it is not positive definite."""
    return jnp.linalg.cholesky(A)


def half_solve(L: jax.Array, b: jax.Array) -> jax.Array:
    """L^-1 b."""
    return jax.scipy.linalg.solve_triangular(L, b, lower=True)
