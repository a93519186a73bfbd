"""Green's functions of regularising differential operators (PRML 6.3): thin-plate and polyharmonic splines."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.basis import Polynomial
from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix, select_columns
from mercer.core.parameters import plain
from mercer.kernels.base import Kernel
from mercer.kernels.distance import safe_sqrt, squared_distance
from mercer.kernels.validity import Proof, Validity


@dataclasses.dataclass(frozen=True)
class NullSpace:
    """Polynomials that a conditionally valid kernel leaves unpenalised.

    ``parts`` are pairs (degree, selections): all polynomials up to that degree in the columns that remain after the
    selections, applied in order.
    """

    parts: tuple[tuple[int, tuple[Any, ...]], ...]

    @property
    def degree(self) -> int:
        return max(degree for degree, _ in self.parts)

    def __call__(self, X: Inputs, standardized: bool = False) -> np.ndarray:
        """Values at the inputs of functions that span the space: (n, number of functions).

        ``standardized``: other functions of the same space, well-conditioned on these inputs.
        """
        columns = []
        for degree, selections in self.parts:
            Z = as_matrix(functools.reduce(select_columns, selections, X))
            if standardized:
                deviation = Z.std(axis=0)
                Z = (Z - Z.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
            columns.append(Polynomial(degree)(Z))
        return np.column_stack(columns)


class ThinPlate(Kernel):
    """r^power log r for an even power, r^power for an odd one, signed to be conditionally positive definite.

    ``power=2`` is the thin-plate spline. The Green's function of the operator that penalises all m-th derivatives in
    d dimensions has power 2m - d (`of_order`). The kernel is not positive semidefinite: its quadratic form is
    non-negative on coefficients that annihilate the polynomials in `null_space`, so models must include these.
    """

    power: int = eqx.field(default=2, static=True, converter=plain)

    def __check_init__(self) -> None:
        if isinstance(self.power, bool) or not isinstance(self.power, int | np.integer) or self.power < 1:
            raise ParameterError(f"ThinPlate.power must be a positive integer; got {self.power!r}.")

    @classmethod
    def of_order(cls, m: int, d: int) -> "ThinPlate":
        """Spline that penalises m-th derivatives of functions of d inputs; 2m must exceed d.

        >>> ThinPlate.of_order(m=2, d=2), ThinPlate.of_order(m=2, d=1)
        (ThinPlate(power=2), ThinPlate(power=3))
        """
        if not 2 * m > d:
            raise ParameterError(f"a spline of order m={m} in d={d} dimensions needs 2m > d.")
        return cls(power=2 * m - d)

    @property
    def order(self) -> int:
        """Order of conditional positive definiteness (Wendland 2004, theorems 8.16 and 8.17)."""
        return self.power // 2 + 1

    @property
    def null_space(self) -> NullSpace:
        return NullSpace(((self.order - 1, ()),))

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        r2, half = squared_distance(X, Z), self.power // 2
        sign = 1.0 if self.order % 2 == 0 else -1.0
        if self.power % 2:
            return sign * safe_sqrt(r2) * r2**half
        inside = jnp.where(r2 == 0, 1.0, r2)
        return jnp.where(r2 == 0, 0.0, sign * inside**half * 0.5 * jnp.log(inside))

    def block_diag(self, X: Rows) -> jax.Array:
        return jnp.zeros_like(X[:, 0])

    stationary = isotropic = True

    @property
    def smoothness(self) -> float | None:
        return (self.power + 1) // 2 - 1

    @property
    def validity(self) -> Validity:
        says = f"Green's function of an operator whose null space is the polynomials up to degree {self.order - 1}"
        return Validity(False, Proof("6.3", says, repr(self)), conditional=self.order)
