"""Parameters of basis functions, learned by the evidence of the linear model they make (PRML 3.5)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.coordinates import Layout, from_free, to_free
from mercer.core.errors import ParameterError
from mercer.core.inputs import count_rows
from mercer.core.machine import one_thread
from mercer.core.parameters import bare
from mercer.core.precision import double
from mercer.kernels import evaluate

ROWS, COLUMNS = 256, 32  # sizes are rounded up to multiples of these, so that few programs are compiled
NEARER, FARTHER = 4.0, 6.0  # how far the logarithm of a parameter may fall and rise
WIDER = 1.5  # by how much the logarithms of lengthscales are larger in a second start
PENALTIES = 10.0 ** np.arange(-8, 3, 2)  # where the penalty may begin; it stays between the first and the last


def learned(kernel, X, T, centers, fixed, normalized: bool, max_iterations: int = 60):
    """``kernel`` with its free parameters where the evidence of T = F c + k(X, centers) w + noise is largest.

    T (n, q) are the targets, F the ``fixed`` columns of `linalg.forward`; w ~ N(0, noise / alpha). The noise has its
    maximum in closed form, alpha is learned along and left behind. L-BFGS from two starts; an evaluation with its
    gradient takes about 10 n m^2 flops.
    """
    from scipy.optimize import minimize  # takes a while to import

    layout = Layout.of(kernel)
    if not layout.size:
        return kernel
    arguments = _arguments(kernel, X, T, centers, fixed)
    program = _program(layout, normalized)

    def objective(theta):
        with double():
            value, slope = program(theta, *arguments)
        value, slope = float(value), np.asarray(slope)
        if not (math.isfinite(value) and np.isfinite(slope).all()):
            return 1e300, np.zeros(len(theta))
        return value, slope

    kinds = np.array([place.constraint.logarithmic for place in layout.places for _ in place.entries])
    there = np.asarray(to_free(kernel), dtype=float)
    low, high = np.where(kinds, there - NEARER, -np.inf), np.where(kinds, there + FARTHER, np.inf)
    bounds = list(zip([*low, math.log(PENALTIES[0])], [*high, math.log(PENALTIES[-1])], strict=True))
    lengths = np.array([place.field == "lengthscale" for place in layout.places for _ in place.entries])
    best, least = there, np.inf
    with one_thread():
        # From the kernel as it is, and from a wider one, to which all rows are near.
        for start in [there, there + WIDER * lengths] if lengths.any() else [there]:
            begin = min((np.append(start, math.log(a)) for a in PENALTIES), key=lambda theta: objective(theta)[0])
            found = minimize(
                objective, begin, jac=True, method="L-BFGS-B", bounds=bounds,
                options={"maxiter": max_iterations, "ftol": 1e-8},
            )  # fmt: skip
            if found.fun < least:
                best, least = found.x[:-1], found.fun
    return from_free(kernel, best)


def _arguments(kernel, X, T, centers, fixed):
    """Everything but theta, in sizes that are rounded up."""
    n, m = count_rows(X), count_rows(centers)
    rows, columns = kernel.prepare(X, np.arange(n)), kernel.prepare(centers, np.arange(n, n + m))
    if evaluate.on_host((rows, columns)):
        raise ParameterError(
            f"the parameters of {kernel!r} cannot be learned: it is not written in JAX, so it has no derivatives. "
            "Choose them by cross-validation."
        )
    tall, wide = -(-n // ROWS) * ROWS, -(-m // COLUMNS) * COLUMNS
    F = fixed[:n]
    rest = T - F @ (F.T @ T)
    padded = lambda A: np.concatenate([A, np.zeros((tall - n, A.shape[1]))])
    return (
        jax.tree.leaves(bare(kernel)), evaluate.take(rows, 0, n, tall), evaluate.take(columns, 0, m, wide),
        padded(rest), padded(F), np.einsum("ij,ij->j", T, rest), n, m,
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _program(layout: Layout, normalized: bool):
    def loss(theta, leaves, rows, columns, T, F, total, n, m):
        """Minus the evidence, with the noise at its best and F unpenalised, less constants:
        q/2 ln|I + Phi Phi^T / alpha| + n/2 sum ln(t^T (I + Phi Phi^T / alpha)^-1 t / n), where Phi is what F leaves."""
        row, column = jnp.arange(T.shape[0])[:, None], jnp.arange(jax.tree.leaves(columns)[0].shape[0])[None, :]
        Phi = jnp.where(column < m, layout.tree(theta[:-1], leaves).block(rows, columns), 0.0)
        if normalized:
            share = jnp.sum(Phi, axis=1, keepdims=True)
            Phi = Phi / jnp.where(share > 1e-200, share, 1.0)
        Phi = jnp.where(row < n, Phi, 0.0)
        along = F.T @ Phi
        B = Phi.T @ Phi - along.T @ along + jnp.exp(theta[-1]) * jnp.eye(Phi.shape[1])
        L = jnp.linalg.cholesky(B)
        u = jax.scipy.linalg.solve_triangular(L, Phi.T @ T, lower=True)
        log_det = 2 * jnp.sum(jnp.log(jnp.diag(L))) - L.shape[0] * theta[-1]  # columns that pad add nothing
        left = total - jnp.sum(u * u, axis=0)
        return 0.5 * T.shape[1] * log_det + 0.5 * n * jnp.sum(jnp.log(left / n))

    return jax.jit(jax.value_and_grad(loss))
