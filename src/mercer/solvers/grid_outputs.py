"""Grids of places x targets, with a noise variance for each target.

C = K x B + I x diag(s^2) of N places and P targets is, divided by the deviations s_p of the noise on both sides,
K x (B / s s^T) + I: the structure of a grid with one noise variance. Eigenpairs of both factors take N^3 + P^3 flops.
"""

import dataclasses
import functools
import warnings
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.errors import NumericalWarning
from mercer.core.inputs import Inputs, align_columns, as_vector, column_names, copy_rows, count_rows, stack_rows
from mercer.core.parameters import evolve, nodes_of
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise, RowNoise, as_variances
from mercer.gp.output_noise import GivenOutputNoise, OutputNoise, output_numbers
from mercer.gp.posterior import Posterior
from mercer.kernels.algebra import Product
from mercer.kernels.base import Kernel
from mercer.kernels.coregionalization import Coregionalization
from mercer.kernels.substitution import On
from mercer.linalg.trend import log_unit
from mercer.solvers.base import Evaluation, Evidence, left_out
from mercer.solvers.grid_evidence import Lattices, Measured, lattices
from mercer.solvers.grid_rows import Lattice, find


def target_column(kernel: Kernel) -> tuple[Any, int] | None:
    """The column that the coregionalizations of a kernel read, and the number of targets; None if there are none, or
    they read several."""
    found = {
        (node.columns[0], inside.n_outputs)
        for node in nodes_of(kernel)
        if isinstance(node, On) and isinstance(node.columns, tuple) and len(node.columns) == 1
        for inside in nodes_of(node)
        if isinstance(inside, Coregionalization)
    }
    return found.pop() if len(found) == 1 else None


def differs(kernel: Kernel, X: Inputs, noise: Noise) -> bool:
    """Whether the noise has one variance for each target, not the same for all, and is positive."""
    found = target_column(kernel)
    if found is None or not noise.positive:
        return False
    if isinstance(noise, OutputNoise | GivenOutputNoise):
        return isinstance(noise, OutputNoise) or bool(np.ptp(noise.noise) > 0)
    return (
        isinstance(noise, RowNoise) and bool(np.ptp(noise.noise) > 0) and _by_target(kernel, X, noise.noise) is not None
    )


def _by_target(kernel: Kernel, X: Inputs, variances: np.ndarray) -> np.ndarray | None:
    """Variance of each target, one for those without rows: (P,). None where rows of a target differ."""
    found = target_column(kernel)
    if found is None:
        return None
    column, P = found
    number = output_numbers(X, column)
    out = np.ones(P)
    out[number] = variances
    return out if np.array_equal(out[number], variances) else None


def whitened(kernel: Kernel, precisions: np.ndarray) -> Kernel:
    """The kernel times s_p s_p' with these s (P,) of the targets, whose entries are the last of its parameters."""
    found = target_column(kernel)
    assert found is not None
    column, P = found
    own = Coregionalization(P, 1, W=precisions[:, None], kappa=np.zeros(P)).on(column)
    return Product((kernel, own))  # not simplified: parameters of the kernel come first, as they are


def of_one_target(H: np.ndarray, number: np.ndarray) -> np.ndarray | None:
    """Target of each column of a trend, (q,); None where one has values in rows of several."""
    out = np.zeros(H.shape[1], dtype=int)
    for j, column in enumerate(H.T):
        own = np.unique(number[column != 0])
        if len(own) > 1:
            return None
        out[j] = own[0] if len(own) else 0
    return out


# -- evidence ------------------------------------------------------------------------------------------------------


class OutputGridEvidence(Evidence):
    """Evidence of targets with a noise variance each: N^3 + P^3 + N P (N + P) flops, and those of `GridEvidence` for
    cells that are missing."""

    def _representation(self, kernel: Kernel, X: Inputs) -> Lattices:
        found = target_column(kernel)
        assert found is not None
        self._number, P = output_numbers(X, found[0]), found[1]
        first = np.unique(self._number, return_index=True)
        self._there, self._first, self._targets = *first, P
        lattice = find(whitened(kernel, np.ones(P)), X)
        assert isinstance(lattice, Lattice)
        self._unit = log_unit(self.H, self.precision) if self.H.shape[1] else 0.0
        return lattices(lattice)

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        own, _, noise = self._split(theta)
        if not (np.isfinite(noise).all() and (noise > 0).all()):
            return None
        s = 1 / np.sqrt(noise)
        precisions = np.ones(self._targets)
        precisions[self._there] = s[self._first]
        inner, y = np.concatenate([own, precisions]), self._residual(theta)
        with np.errstate(all="ignore"):
            measured = Measured.of(self.K, inner, np.ones(self.n))
        if measured is None:
            return None
        self.diagonal = float(np.mean(sum(self.K.variances(inner)) / s**2))
        solved = measured.solve(s[:, None] * np.column_stack([y, self.H]))
        a, log_det, half = s * solved[:, 0], measured.log_det + float(np.log(noise).sum()), np.zeros((self.n, 0))
        if self.H.shape[1]:
            trend = self._trend(s[:, None] * solved[:, 1:])
            if trend is None:
                return None
            a, log_det, half = trend.contrasted(a, y), log_det + trend.log_det(self._unit), trend.half
        answer = self._answer(log_det, a, float(y @ a), profiled)
        if answer is None or not gradient:
            return answer and Evaluation(answer[0], None, answer[2])
        value, a, scale = answer
        diagonal = s**2 * measured.inverse_diagonal() - np.einsum("ij,ij->i", half, half)
        self._left_out = left_out(a, diagonal)
        both = measured.summed(np.column_stack([a, half]) / s[:, None])
        slopes = measured.cells.slopes(both, np.ones(both.shape[1]))
        whitened_diagonal = 0.5 * float(np.sum((a**2 - diagonal) / s**2))
        slope = self.K.contract(inner, slopes, whitened_diagonal)[: len(own)]
        slope = self._slope(theta, slope, a, diagonal, scale if profiled else 1.0)
        return Evaluation(value, slope, scale) if np.isfinite(slope).all() else None

    def left_out(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self(theta) is None else self._left_out


# -- posterior -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class OutputGridPosterior(Posterior):
    """Posterior given measurements of targets with a noise variance each, on a grid: that of the measurements divided
    by the deviations of their noise. The mean has no coefficients that targets share."""

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    prior_mean: MeanFunction

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None = None
    ) -> "OutputGridPosterior | None":
        """None where coefficients of the mean belong to several targets, or have a prior."""
        n, raw = count_rows(X), X.X if isinstance(X, gram.Gram) else copy_rows(X)
        mean = (MeanFunction() if mean is None else mean).fit(raw)
        made = cls(kernel, raw, as_vector(y, n).copy(), as_variances(noise, n), mean)
        return made if mean.precision is None and made._owner is not None else None

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        shapes = self.y.shape == self.noise.shape == (count_rows(self.X),)
        parts = isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)
        return shapes and parts and target_column(self.kernel) is not None and self._owner is not None

    @property
    def _column(self) -> Any:
        found = target_column(self.kernel)
        assert found is not None
        return found[0]

    @functools.cached_property
    def _owner(self) -> np.ndarray | None:
        """Target of each unknown coefficient."""
        return of_one_target(self.prior_mean.columns(self.X), output_numbers(self.X, self._column))

    @functools.cached_property
    def deviations(self) -> np.ndarray:
        """Of the noise of each target: (P,)."""
        found = _by_target(self.kernel, self.X, self.noise)
        assert found is not None
        return np.sqrt(found)

    def _unit(self, Z: Inputs) -> np.ndarray:
        return self.deviations[output_numbers(self._aligned(Z), self._column)]

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, gram.raw(Z), self.kernel.needs_all_columns or self.prior_mean.needs_all_columns)

    @functools.cached_property
    def _inner(self) -> Any:
        from mercer.solvers.grid import GridPosterior  # which is above

        y = (self.y - self.prior_mean(self.X)) / self._unit(self.X)
        trend = evolve(self.prior_mean, constant=np.float64(0.0), function=None, unit=1.0)
        kernel = whitened(self.kernel, 1 / self.deviations)
        return GridPosterior.given(kernel, self.X, y, np.ones(len(y)), trend)

    # -- moments -------------------------------------------------------------------------------------------------

    def mean(self, Z: Inputs) -> np.ndarray:
        return self._inner.mean(Z) * self._unit(Z) + self.prior_mean(self._aligned(Z))

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance: (s,), (s,)."""
        mean, variance = self._inner.moments(Z)
        unit = self._unit(Z)
        return mean * unit + self.prior_mean(self._aligned(Z)), variance * unit**2

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def covariance(self, Z: Inputs) -> np.ndarray:
        unit = self._unit(Z)
        return self._inner.covariance(Z) * np.outer(unit, unit)

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        return self._inner.sample(Z, size, seed) * self._unit(Z) + self.prior_mean(self._aligned(Z))

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As `GridPosterior.gradients`; zero in the number of the target."""
        dmean, dvariance = self._inner.gradients(Z)
        unit, named = self._unit(Z)[:, None], self._aligned(Z)
        names = column_names(named)
        from mercer.core.inputs import as_matrix

        return dmean * unit + self.prior_mean.slope(as_matrix(named), names), dvariance * unit**2

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`: one term."""
        unit = self._unit(Z)
        ((_, mean, variance),) = self._inner.terms(Z)
        return [(self.kernel, mean * unit, variance * unit**2)]

    # -- data ----------------------------------------------------------------------------------------------------

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> Posterior:
        """Given more measurements, by the grid where all rows form one, and otherwise by the matrix of all rows."""
        from mercer.solvers.grid import Grid

        X, m = self._aligned(X), count_rows(X)
        if m == 0:
            return self
        y, noise = np.append(self.y, as_vector(y, m)), np.append(self.noise, as_variances(noise, m))
        rows = stack_rows(self.X, X, self.kernel.reads, False)
        found = Grid().posterior(self.kernel, rows, y, noise, self.prior_mean, allow_invalid=True)
        if not isinstance(found, OutputGridPosterior):
            warnings.warn(
                f"with the new rows, the data are those of the dense solver, a matrix of {len(y):,} x {len(y):,}.",
                NumericalWarning,
                stacklevel=3,
            )
        return found

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def rescaled(self, kernel: Kernel, factor: float) -> "OutputGridPosterior":
        """As `GP.rescaled`; by solving again."""
        return OutputGridPosterior(kernel, self.X, self.y, self.noise * factor, self.prior_mean)

    def latent(self) -> "OutputGridPosterior":
        """As `GP.latent`: a product has no white noise."""
        return self

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`; of targets divided by the deviations of their noise."""
        return self._inner.numerics()

    def _coefficient_units(self) -> np.ndarray:
        assert self._owner is not None
        return self.deviations[self._owner]

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        estimate, covariance = self._inner.coefficients()
        unit = self._coefficient_units()
        return estimate * unit, covariance * np.outer(unit, unit)

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        Z = self._aligned(Z)
        (estimate, covariance), H = self.coefficients(), self.prior_mean.columns(Z)
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    def log_evidence(self) -> float:
        """As `GP.log_evidence`: of the densities of y and of its contrasts, in units of y."""
        units = np.log(self._coefficient_units()).sum() if self._inner.prior_mean.unknown else 0.0
        return float(self._inner.log_evidence() - 0.5 * np.log(self.noise).sum() + units)

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.leave_one_out`."""
        mean, variance = self._inner.leave_one_out()
        unit = self._unit(self.X)
        return mean * unit + self.prior_mean(self.X), variance * unit**2
