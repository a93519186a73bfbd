"""Learning the parameters of basis functions by the evidence of the linear model they make (PRML 3.5)."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.coordinates import Layout, free_names, from_free, to_free
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows, take_rows
from mercer.core.machine import one_thread
from mercer.core.parameters import bare
from mercer.core.precision import double
from mercer.kernels import evaluate
from mercer.kernels.base import Kernel
from mercer.learning.objective import Objective, Start, logarithmic_mask
from mercer.linalg import traced
from mercer.solvers.base import Evaluation

ROWS_MULTIPLE, COLUMNS_MULTIPLE = 256, 32  # to which sizes are rounded up, so that few programs are compiled
MAX_LOG_FALL, MAX_LOG_RISE = 4.0, 6.0  # of a parameter
LOG_WIDENING = 1.5  # added to the logarithms of lengthscales in the second start
PENALTIES = 10.0 ** np.arange(-8, 3, 2)  # where the penalty starts; it stays between the first and the last
VALUE_TOLERANCE = 1e-8  # relative, at which L-BFGS stops
FAILED_OBJECTIVE = 1e300  # objective given to L-BFGS where the evidence cannot be computed


class BasisEvidence:
    """Evidence of T = F c + k(X, centers) w + noise up to a constant, for given rows; theta is the kernel's free
    parameters, then the logarithm of the penalty alpha, w ~ N(0, noise / alpha).

    T (n, q) are the targets, F the ``fixed`` columns of `linalg.forward`, unpenalised. The noise has its maximum in
    closed form. An evaluation with its gradient takes about 10 n m^2 flops for m centres.
    """

    jitter, diagonal = 0.0, 1.0

    def __init__(
        self, kernel: Kernel, X: Inputs, T: np.ndarray, centers: Inputs, fixed: np.ndarray, normalized: bool
    ) -> None:
        layout = Layout.of(kernel)
        self.n, self.size = count_rows(X), layout.size + 1
        self._arguments, self._program = _arguments(kernel, X, T, centers, fixed), _program(layout, normalized)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        with double():
            answer = self._program(theta, *self._arguments)
        value, slope = float(answer[0]), np.asarray(answer[1])
        finite = math.isfinite(value) and np.isfinite(slope).all()
        return Evaluation(-value, -slope, 1.0) if finite else None


class BasisObjective(Objective):
    """`BasisEvidence`, started from the kernel as it is and from a wider one, to which all rows are near."""

    def __init__(
        self, kernel: Kernel, X: Inputs, T: np.ndarray, centers: Inputs, fixed: np.ndarray, normalized: bool
    ) -> None:
        self.kernel, self.X, self.T, self.centers, self.fixed = kernel, X, T, centers, fixed
        self.normalized, self.layout = normalized, Layout.of(kernel)
        self._theta = np.asarray(to_free(kernel), dtype=float)

    @property
    def n(self) -> int:
        return len(self.T)

    @property
    def size(self) -> int:
        return self.layout.size + 1

    def names(self) -> list[str]:
        return [*free_names(self.kernel), "alpha"]

    def criterion(self, rows: np.ndarray | None = None) -> BasisEvidence:
        X, T, fixed = self.X, self.T, self.fixed
        if rows is not None:
            X, T, fixed = take_rows(X, rows), T[rows], fixed[rows]
        return BasisEvidence(self.kernel, X, T, self.centers, fixed, self.normalized)

    def starts(self) -> list[Start]:
        wide = np.array([place.field == "lengthscale" for place in self.layout.places for _ in place.entries])
        found = [("as given", self._theta), ("wider", self._theta + LOG_WIDENING * wide)][: 2 if wide.any() else 1]
        return [
            Start(f"{name}, penalty {penalty:g}", np.append(theta, math.log(penalty)))
            for name, theta in found
            for penalty in PENALTIES
        ]

    def floor(self) -> np.ndarray:
        mask = logarithmic_mask(self.layout)
        return np.append(np.where(mask, self._theta - MAX_LOG_FALL, -np.inf), math.log(PENALTIES[0]))

    def ceiling(self) -> np.ndarray:
        mask = logarithmic_mask(self.layout)
        return np.append(np.where(mask, self._theta + MAX_LOG_RISE, np.inf), math.log(PENALTIES[-1]))


def learn_basis(objective: BasisObjective, max_iterations: int = 60) -> Kernel:
    """The kernel with its free parameters where the evidence is largest; the penalty is learned too, but not returned.

    Evaluations cost little here and maxima are broad, so SciPy's bounded L-BFGS is enough, started from each kernel
    with its best penalty.
    """
    from scipy.optimize import minimize  # takes a while to import

    if not objective.layout.size:
        return objective.kernel
    evidence, starts = objective.criterion(), objective.starts()

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        found = evidence(theta)
        if found is None or found.gradient is None:
            return FAILED_OBJECTIVE, np.zeros(len(theta))
        return -found.value, -found.gradient

    bounds = list(zip(objective.floor(), objective.ceiling(), strict=True))
    best, least = starts[0].theta, np.inf
    with one_thread():
        for i in range(0, len(starts), len(PENALTIES)):
            begin = min((theta for _, theta in starts[i : i + len(PENALTIES)]), key=lambda theta: loss(theta)[0])
            found = minimize(
                loss, begin, jac=True, method="L-BFGS-B", bounds=bounds,
                options={"maxiter": max_iterations, "ftol": VALUE_TOLERANCE},
            )  # fmt: skip
            if found.fun < least:
                best, least = found.x, found.fun
    return from_free(objective.kernel, best[:-1])


def _arguments(kernel: Kernel, X: Inputs, T: np.ndarray, centers: Inputs, fixed: np.ndarray) -> Sequence[Any]:
    """Everything but theta, in sizes that are rounded up."""
    n, m = count_rows(X), count_rows(centers)
    rows, columns = kernel.prepare(X, np.arange(n)), kernel.prepare(centers, np.arange(n, n + m))
    if evaluate.on_host((rows, columns)):
        raise ParameterError(
            f"the parameters of {kernel!r} cannot be learned: it is not written in JAX, so it has no derivatives. "
            "Choose them by cross-validation."
        )
    tall, wide = -(-n // ROWS_MULTIPLE) * ROWS_MULTIPLE, -(-m // COLUMNS_MULTIPLE) * COLUMNS_MULTIPLE
    F = fixed[:n]
    rest = T - F @ (F.T @ T)
    padded = lambda A: np.concatenate([A, np.zeros((tall - n, A.shape[1]))])
    return (
        jax.tree.leaves(bare(kernel)), evaluate.take(rows, 0, n, tall), evaluate.take(columns, 0, m, wide),
        padded(rest), padded(F), np.einsum("ij,ij->j", T, rest), n, m,
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _program(layout: Layout, normalized: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def loss(
        theta: jax.Array,
        leaves: list[Any],
        rows: Any,
        columns: Any,
        T: jax.Array,
        F: jax.Array,
        total: jax.Array,
        n: int,
        m: int,
    ) -> jax.Array:
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
        L = traced.factor(B)
        u = traced.half_solve(L, Phi.T @ T)
        log_det = 2 * jnp.sum(jnp.log(jnp.diag(L))) - L.shape[0] * theta[-1]  # columns that pad add nothing
        left = total - jnp.sum(u * u, axis=0)
        return 0.5 * T.shape[1] * log_det + 0.5 * n * jnp.sum(jnp.log(left / n))

    return jax.jit(jax.value_and_grad(loss))
