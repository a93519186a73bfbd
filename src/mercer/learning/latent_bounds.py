"""Latent points with their doubt: the variational bound of Titsias and Lawrence (2010), for the Gaussian kernel.

With q(X) = prod_n N(x_n | m_n, diag(s_n)) and m inducing points Z, averages of the kernel over q are closed:
psi0 = n variance, psi1_nm = <k(x_n, z_m)>, psi2_mm' = sum_n <k(x_n, z_m) k(x_n, z_m')>. The bound stays a bound for any
number of latent dimensions, and those that the columns do not need get a lengthscale far above one.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.precision import double
from mercer.kernels import RBF
from mercer.kernels.base import Kernel
from mercer.learning.latent_map import LatentMap
from mercer.learning.latent_points import MAX_NOISE, MIN_NOISE, climb, groups_of
from mercer.learning.progress import Progress
from mercer.linalg import backend, traced
from mercer.linalg.jitter import FIXED_JITTER

ROW_TILE = 32  # rows are padded to a multiple of it: another number of rows mostly needs no compilation
START_VARIANCE = 0.1  # of q(X), of a prior variance of one
MAX_LOG_SCALE = 6.0  # of a lengthscale, either way from one
FIXED_NOISE_SHARE = 0.2  # of the iterations with the noise as it starts, or else it may explain all there is


class Latents(NamedTuple):
    """All that the bound depends on: means (n, q) and log variances (n, q) of the points, inducing points (m, q), log
    lengthscales (q,), and the logs of the kernel's variance and of the noise."""

    mean: jax.Array
    log_variance: jax.Array
    inducing: jax.Array
    log_lengthscale: jax.Array
    log_scale: jax.Array
    log_noise: jax.Array


def psi_statistics(at: Latents) -> tuple[jax.Array, jax.Array]:
    """psi1 (n, m), and psi2 of every row (n, m, m) (Titsias and Lawrence 2010, appendix). n m^2 q flops."""
    l2, scale = jnp.exp(2 * at.log_lengthscale), jnp.exp(at.log_scale)
    S, Z = jnp.exp(at.log_variance), at.inducing
    wide = S + l2
    away = (at.mean[:, None, :] - Z[None]) ** 2 / wide[:, None, :]
    psi1 = scale * jnp.exp(-0.5 * (away.sum(-1) + jnp.log(wide / l2).sum(-1)[:, None]))
    wide2 = 2 * S + l2
    apart = ((Z[:, None, :] - Z[None]) ** 2 / l2).sum(-1) / 4
    middle = 0.5 * (Z[:, None, :] + Z[None])
    # (mean - middle)^2 / wide2, summed over dimensions by products: no (n, m, m, q) array.
    M = middle.reshape(-1, Z.shape[1])
    square = (at.mean**2 / wide2).sum(-1)[:, None] - 2 * (at.mean / wide2) @ M.T + (1 / wide2) @ (M**2).T
    logs = -jnp.maximum(square, 0.0).reshape(-1, *apart.shape) - apart[None]
    logs -= 0.5 * jnp.log(wide2 / l2).sum(-1)[:, None, None]
    return psi1, scale**2 * jnp.exp(logs)


def _inducing_factor(at: Latents) -> jax.Array:
    """Cholesky factor of k(Z, Z)."""
    Z, scale = at.inducing / jnp.exp(at.log_lengthscale), jnp.exp(at.log_scale)
    K = scale * jnp.exp(-0.5 * jnp.maximum(((Z[:, None, :] - Z[None]) ** 2).sum(-1), 0.0))
    return traced.factor(K + FIXED_JITTER * scale * jnp.eye(len(Z)))


def _halves(at: Latents, Y: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """L, the factors of B_g = I + L^-1 psi2_g L^-T / noise for every group of columns, their L^-1 psi2_g L^-T, and
    L^-1 psi1^T Y: (m, m), (G, m, m), (G, m, m), (m, D)."""
    psi1, psi2 = psi_statistics(at)
    L = _inducing_factor(at)
    whole = jnp.einsum("gn,nij->gij", seen, psi2)
    inner = jax.vmap(lambda P: traced.half_solve(L, traced.half_solve(L, P).T))(whole)
    noise = jnp.exp(at.log_noise)
    B = jnp.eye(len(L)) + 0.5 * (inner + jnp.swapaxes(inner, 1, 2)) / noise
    return L, traced.factor(B), inner, traced.half_solve(L, psi1.T @ Y)


def bound(at: Latents, Y: jax.Array, seen: jax.Array, owner: jax.Array, real: jax.Array) -> jax.Array:
    """Lower bound of ln p(Y) (Titsias and Lawrence 2010, eq. 14 less the divergence of q(X) from N(0, I)).

    ``Y`` (n, D) with zeros where missing, ``seen`` (G, n) one where the columns of a group are measured, ``owner`` (D,)
    the group of each column, ``real`` (n,) zero for rows of padding.
    """
    noise, scale = jnp.exp(at.log_noise), jnp.exp(at.log_scale)
    _, LB, inner, half = _halves(at, Y, seen)
    c = jax.vmap(lambda column, g: traced.half_solve(LB[g], column), (1, 0))(half, owner)
    count = seen.sum(1)
    log_det = 2 * jnp.log(jax.vmap(jnp.diag)(LB)).sum(1)
    trace = jax.vmap(jnp.trace)(inner)
    each = -0.5 * (count * jnp.log(2 * math.pi * noise) + log_det + (count * scale - trace) / noise)
    fitted = -0.5 * (Y**2).sum() / noise + 0.5 * (c**2).sum() / noise**2
    S = jnp.exp(at.log_variance)
    divergence = 0.5 * (real[:, None] * (at.mean**2 + S - at.log_variance - 1)).sum()
    return each[owner].sum() + fitted - divergence


@functools.lru_cache(maxsize=8)
def _program(n: int, q: int, m: int) -> tuple:
    """Value and gradient of the bound as functions of one vector."""

    def parts(z: jax.Array) -> Latents:
        sizes = [n * q, n * q, m * q, q, 1, 1]
        mean, variance, inducing, lengthscale, scale, noise = jnp.split(z, np.cumsum(sizes)[:-1].tolist())
        return Latents(
            mean.reshape(n, q), variance.reshape(n, q), inducing.reshape(m, q), lengthscale, scale[0], noise[0]
        )

    def value(z: jax.Array, *data: jax.Array) -> jax.Array:
        return bound(parts(z), *data)

    return parts, jax.jit(jax.value_and_grad(value))


class Bounded(NamedTuple):
    """Means and variances of the latent points (n, q), the map from them, the bound, values along the way, and how the
    search ended."""

    mean: np.ndarray
    variance: np.ndarray
    map: LatentMap
    value: float
    path: list[float]
    converged: bool
    interrupted: bool


def learn_bounded(
    Y: np.ndarray,
    start: np.ndarray,
    lengthscale: np.ndarray,
    noise: float,
    inducing: int,
    max_iterations: int,
    line: Progress,
    rng: np.random.Generator,
    learns_noise: bool = True,
) -> Bounded:
    """Maximise the bound in q(X), the inducing points, the kernel's parameters and the noise, from a start (n, q)."""
    (n, q), groups = start.shape, groups_of(Y)
    padded, m = -(-n // ROW_TILE) * ROW_TILE, min(inducing, n)
    seen, owner, values = np.zeros((len(groups), padded)), np.zeros(Y.shape[1], int), _padded(Y, padded)
    for g, (columns, rows) in enumerate(groups):
        seen[g, rows], owner[columns] = 1.0, g
    if len(groups) == 1 and Y.shape[1] > n:  # the bound depends on Y Y^T alone; each column counts, though
        values = np.zeros((padded, Y.shape[1]))
        U, s, _ = backend.svd(Y)
        values[:n, : len(s)] = U * s
    real = (np.arange(padded) < n).astype(float)
    parts, program = _program(padded, q, m)
    first = np.zeros((padded, q))
    first[:n] = start
    Z = start[rng.permutation(n)[:m]] + 0.01 * rng.normal(size=(m, q))
    z = np.concatenate([
        first.ravel(), np.full(padded * q, math.log(START_VARIANCE)), Z.ravel(), np.log(lengthscale), [0.0],
        [math.log(noise)],
    ])  # fmt: skip
    free = np.full(2 * padded * q + m * q, np.inf)
    lowest = np.concatenate([-free, np.full(q, -MAX_LOG_SCALE), [-MAX_LOG_SCALE], [math.log(MIN_NOISE)]])
    highest = np.concatenate([free, np.full(q, MAX_LOG_SCALE), [MAX_LOG_SCALE], [math.log(MAX_NOISE)]])
    lowest[padded * q : 2 * padded * q], highest[padded * q : 2 * padded * q] = -25.0, 5.0

    def function(z: np.ndarray) -> tuple[float, np.ndarray] | None:
        with double():
            value, slope = program(z, values, seen, owner, real)
        return (float(value), np.asarray(slope)) if np.isfinite(value) else None

    low, high = lowest.copy(), highest.copy()  # with the noise held
    low[-1] = high[-1] = z[-1]
    early = max(1, round(FIXED_NOISE_SHARE * max_iterations)) if learns_noise else max_iterations
    found = climb(function, z, low, high, early, line, "bound")
    path, converged = found.path, found.converged
    if learns_noise and not found.interrupted:
        found = climb(function, found.z, lowest, highest, max_iterations - early, line, "bound")
        path, converged = path + found.path, found.converged
    with double():
        at = parts(jnp.asarray(found.z))
        mapped = _map(at, jnp.asarray(_padded(Y, padded)), seen, groups)
        mean, variance = np.asarray(at.mean)[:n], np.exp(np.asarray(at.log_variance))[:n]
    return Bounded(mean, variance, mapped, found.value, path, converged, found.interrupted)


def _padded(Y: np.ndarray, padded: int) -> np.ndarray:
    """Y with zeros where missing, and in rows of padding."""
    out = np.zeros((padded, Y.shape[1]))
    out[: len(Y)] = np.nan_to_num(Y)
    return out


def _map(at: Latents, Y: jax.Array, seen: np.ndarray, groups: list) -> LatentMap:
    """The function's posterior through the inducing points: W = L^-T B^-1 L^-1 psi1^T Y / noise, Q = L^-T (I - B^-1)
    L^-1."""
    L, LB, _, half = (np.asarray(each) for each in jax.jit(_halves)(at, Y, jnp.asarray(seen)))
    noise, m = math.exp(float(at.log_noise)), len(L)
    L_inv, found = backend.half_solve(L, np.eye(m)), []
    for g, (columns, _) in enumerate(groups):
        inverse = backend.solve(LB[g], np.eye(m))
        W = L_inv.T @ inverse @ half[:, columns] / noise
        found.append((columns, np.arange(m), W, L_inv.T @ (np.eye(m) - inverse) @ L_inv))
    return LatentMap(kernel_of(at), np.asarray(at.inducing), noise, found)


def kernel_of(at: Latents) -> Kernel:
    """variance * RBF(lengthscale), one lengthscale for each dimension."""
    return math.exp(float(at.log_scale)) * RBF(np.exp(np.asarray(at.log_lengthscale)))
