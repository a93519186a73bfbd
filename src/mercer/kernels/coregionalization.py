"""Covariance between several targets that are rows of one process."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix
from mercer.core.parameters import NonNegativeArray, RealArray, plain
from mercer.core.precision import Array, is_traced
from mercer.kernels.base import Kernel
from mercer.kernels.validity import Validity, proved

DEFAULT_KAPPA = 0.5  # of a kernel that has yet to be learned, beside loadings of about one


class Coregionalization(Kernel):
    """B[p, p'] with B = W W^T + diag(kappa), of the numbers p = 0, ..., P - 1 of targets (Bonilla, Chai and Williams
    2008).

    A product ``k.on([0, 1]) * Coregionalization(3, 1).on(2)`` makes three targets, whose number is the last column, one
    process: the intrinsic model of coregionalization; a sum of such products is the linear one (Goovaerts 1997, 4.2).
    ``W`` (P, rank) are the loadings of the targets on ``rank`` functions that they share, ``kappa`` (P,) the variances
    that each has for itself. Rank 0 leaves the targets independent; ``kappa=0`` leaves them nothing of their own, as
    for latent forces.

    >>> Coregionalization(2, W=[[1.0], [0.5]], kappa=[0.0, 0.75])([0, 1])
    array([[1. , 0.5],
           [0.5, 1. ]])
    """

    n_outputs: int = eqx.field(static=True, converter=plain)
    rank: int = eqx.field(default=1, static=True, converter=plain)
    W: RealArray = None
    kappa: NonNegativeArray = None

    def __post_init__(self) -> None:
        for name, least in (("n_outputs", 1), ("rank", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ParameterError(
                    f"{name} of a coregionalization must be an integer of at least {least}; got {value!r}."
                )
        P = self.n_outputs
        if self.rank == 0:
            object.__setattr__(self, "W", np.zeros((P, 1)))
            object.__setattr__(self, "fixed", self.fixed | {"W"})
        elif self.W is None:
            object.__setattr__(self, "W", _loadings(P, self.rank))
        if self.kappa is None:
            object.__setattr__(self, "kappa", np.full(P, DEFAULT_KAPPA))
        elif not is_traced(self.kappa) and np.ndim(self.kappa) == 0:
            object.__setattr__(self, "kappa", np.full(P, self.kappa))
        super().__post_init__()
        for name, shape in (("W", (P, max(self.rank, 1))), ("kappa", (P,))):
            found = np.shape(getattr(self, name))
            if found != shape:
                raise ParameterError(
                    f"{name} of {P} targets and rank {self.rank} has shape {shape}; got {found}. Give n_outputs and "
                    "rank as they are, Coregionalization(n_outputs, rank, W=..., kappa=...)."
                )

    def prepare(self, X: Inputs, index: Array) -> Rows:
        rows = as_matrix(X)
        if is_traced(rows):
            return rows[:, :1]
        if rows.shape[1] != 1 or not np.array_equal(rows, np.round(rows)):
            raise DataError(
                "a coregionalization reads the numbers of targets: one column of integers, 0 for the first. Select it, "
                f"as in Coregionalization({self.n_outputs}).on(2); got {rows.shape[1]} columns."
            )
        if rows.size and (rows.min() < 0 or rows.max() >= self.n_outputs):
            bad = rows[(rows < 0) | (rows >= self.n_outputs)][0]
            raise DataError(f"targets have numbers from 0 to {self.n_outputs - 1}; got {bad:.0f}.")
        return rows

    def _indicators(self, rows: Rows) -> jax.Array:
        # Products with these are several times as fast as reading single elements of B, above all in reverse.
        return (rows == jnp.arange(float(self.n_outputs))).astype(jnp.result_type(self.kappa))

    def covariance(self) -> Any:
        """B (P, P)."""
        xp: Any = jnp if is_traced((self.W, self.kappa)) else np
        return self.W @ self.W.T + xp.diag(self.kappa)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return (self._indicators(X) @ self.covariance()) @ self._indicators(Z).T

    def block_diag(self, X: Rows) -> jax.Array:
        return self._indicators(X) @ jnp.diag(self.covariance())

    def feature_block(self, X: Rows) -> jax.Array:
        own = self._indicators(X)
        parts = [own @ self.W] if self.rank else []
        some = is_traced(self.kappa) or np.any(self.kappa)
        parts += [own * jnp.sqrt(self.kappa)] if some or not parts else []
        return jnp.concatenate(parts, axis=1)

    stationary = isotropic = False

    @property
    def validity(self) -> Validity:
        return proved("6.20", "linear in indicators of the targets, with A = W W^T + diag(kappa)", repr(self))


def _loadings(P: int, rank: int) -> np.ndarray:
    """Loadings to begin with: orthogonal columns of a cosine transform, the first of ones."""
    waves = np.cos(np.pi * np.outer(np.arange(P) + 0.5, np.arange(rank)) / P)
    return waves / np.maximum(1.0, np.sqrt(np.arange(rank) + 1.0))
