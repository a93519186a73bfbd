"""Exact solutions on grids: Kronecker structure of products over groups of columns, Toeplitz structure of equal steps.

The rows are the cells of a Cartesian product, such as longitudes x latitudes, or places x times; some may be missing.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.errors import NotPositiveDefiniteError, NumericalWarning, ParameterError
from mercer.core.inputs import (
    Inputs,
    align_columns,
    as_matrix,
    as_vector,
    column_names,
    copy_rows,
    count_rows,
    stack_rows,
)
from mercer.core.random import as_key, normal
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, LearnedNoise, Noise, RowNoise, as_noise, as_variances
from mercer.gp.output_noise import GivenOutputNoise
from mercer.gp.posterior import Posterior
from mercer.gp.process import GP, MAX_DENSE_SAMPLES, check_size
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import by_position
from mercer.linalg.cholesky import root
from mercer.linalg.toeplitz import BLOCK_COLUMNS
from mercer.linalg.trend import Trend
from mercer.solvers.base import Cost, Evidence, GivenNoise, Solver, register
from mercer.solvers.dense import Dense
from mercer.solvers.grid_evidence import SAME_VARIANCE, GridEvidence, Lattices, Measured, lattices, most_common
from mercer.solvers.grid_outputs import OutputGridEvidence, OutputGridPosterior, differs
from mercer.solvers.grid_rows import Lattice, find, flops, limit


class SolvedGrid(NamedTuple):
    """What predictions are made of: a = P (y - m) of the rows, and a and the halves of the trend of cells, inward."""

    K: Lattices
    measured: Measured
    a: np.ndarray
    trend: Trend | None
    a_inward: np.ndarray
    half_inward: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class GridPosterior(Posterior):
    """Posterior of a process given measurements in the cells of a grid. A file holds the data; a few small
    factorisations restore the rest."""

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    prior_mean: MeanFunction

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None = None
    ) -> "GridPosterior":
        n, raw = count_rows(X), X.X if isinstance(X, gram.Gram) else copy_rows(X)
        kernel = kernel.fitted(raw)
        mean = (MeanFunction() if mean is None else mean).fit(raw)
        return cls(kernel, raw, as_vector(y, n).copy(), as_variances(noise, n), mean)

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n = count_rows(self.X)
        parts = isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)
        return self.y.shape == self.noise.shape == (n,) and parts and isinstance(find(self.kernel, self.X), Lattice)

    @functools.cached_property
    def _solved(self) -> SolvedGrid:
        lattice = find(self.kernel, self.X)
        assert isinstance(lattice, Lattice)
        K, mean = lattices(lattice), self.prior_mean
        with K, np.errstate(all="ignore"):
            measured = Measured.of(K, np.asarray(to_free(self.kernel)), self.noise)
        if measured is None:
            raise NotPositiveDefiniteError(
                f"the covariance of these {len(self.y):,} rows is not positive definite to rounding. Add noise, or "
                "check the kernel with mercer.check_kernel(kernel, X)."
            )
        target, H = self.y - mean(self.X), mean.columns(self.X)
        solved = measured.solve(np.column_stack([target, H]))
        a, trend, half = solved[:, 0], None, np.zeros((len(target), 0))
        if mean.unknown:
            try:
                trend = Trend.of(H, solved[:, 1:], mean.precision)
            except np.linalg.LinAlgError:
                raise NotPositiveDefiniteError(
                    f"the coefficients of the mean {mean!r} could not be estimated: the covariance of these rows is "
                    "singular to rounding. Give noise=..., or a mean with fewer columns."
                ) from None
            a, half = trend.contrasted(a, target), trend.half
        inward = measured.cells.base.inward(measured.summed(np.column_stack([a, half])))
        return SolvedGrid(K, measured, a, trend, inward[:, 0], inward[:, 1:])

    # -- moments -------------------------------------------------------------------------------------------------

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, gram.raw(Z), self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    def _pieces(self, Z: Inputs) -> Iterator[tuple[slice, np.ndarray]]:
        """Covariances of blocks of rows with the cells, inward: (s, N) each."""
        K, base = self._solved.K, self._solved.measured.cells.base
        rows = K.lattice.matrix(Z)
        for part in gram.pieces(len(rows), base.size):
            yield part, K.cross(rows[part], base)

    def _uncertainty(self, H: np.ndarray, with_half: np.ndarray) -> np.ndarray:
        """`Trend.uncertainty_root`, from the covariances of rows times the halves of the trend, (s, q): (q, s)."""
        trend = self._solved.trend
        return with_half.T if trend is None else np.linalg.solve(trend.root, H.T) - with_half.T

    def mean(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        found, out = self._solved, self.trend(Z)[0]
        rows, base = found.K.lattice.matrix(Z), found.measured.cells.base
        for part in gram.pieces(len(rows), base.size):
            out[part] += found.K.dots(rows[part], base, found.a_inward[:, None], squares=False)[0][:, 0]
        return out

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance: (s,), (s,). O(s N) for a complete grid."""
        Z = self._aligned(Z)
        mean, variance = self._moments(Z, self.kernel, self.prior_mean.columns(Z))
        return mean + self.trend(Z)[0], variance

    def _moments(self, Z: Inputs, kernel: Kernel, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the process without the trend, whose columns at Z add to the variance."""
        found, mean, variance = self._solved, np.zeros(count_rows(Z)), gram.diagonal(kernel, Z)
        cells, q, rows = found.measured.cells, found.half_inward.shape[1], found.K.lattice.matrix(Z)
        M = np.column_stack([found.a_inward, found.half_inward, cells.U])
        for part in gram.pieces(len(rows), cells.base.size):
            dots, explained = found.K.dots(rows[part], cells.base, M)
            mean[part] = dots[:, 0]
            S = self._uncertainty(H[part], dots[:, 1 : 1 + q])
            variance[part] += np.einsum("ij,ij->j", S, S) - explained + dots[:, 1 + q :] ** 2 @ cells.signs
        return mean, np.maximum(variance, 0.0)  # rounding, relative to the prior variance

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def covariance(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        K, H, cells = gram.within(self.kernel, Z), self.prior_mean.columns(Z), self._solved.measured.cells
        B = np.concatenate([B for _, B in self._pieces(Z)]) if len(H) else np.zeros((0, cells.base.size))
        S = self._uncertainty(H, B @ self._solved.half_inward)
        K -= B @ cells.divide(B.T)
        K += S.T @ S
        return (K + K.T) / 2

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s). From their covariance matrix; for many rows by Matheron's rule,
        which makes a draw f of the prior one of the posterior: f(Z) + k(Z, X) C^-1 (y - f(X) - noise)."""
        check_size(size)
        Z, s = self._aligned(Z), count_rows(Z)
        if s == 0:
            return np.zeros((size, 0))
        if s <= MAX_DENSE_SAMPLES:
            scale = float(np.max(gram.diagonal(self.kernel, Z)))
            R = root(self.covariance(Z), scale=scale)
            return self.mean(Z) + normal(seed, (size, s))[:, : R.shape[1]] @ R.T
        first, second, third = jax.random.split(as_key(seed), 3)
        latent, white = split_white(self.kernel)
        both = stack_rows(Z, self.X, self.kernel.reads, self._needs_all_columns)
        f = GP(latent, allow_invalid=True).sample(both, size, first)
        found, H = self._solved, self.prior_mean.columns(Z)
        noise = np.sqrt(found.measured.variances) * normal(second, (size, len(self.y)))
        residual = (self.y - self.prior_mean(self.X) - f[:, s:] - noise).T
        weights = found.measured.solve(residual)
        out = self.prior_mean(Z) + f[:, :s] + np.sqrt(white) * normal(third, (size, s))
        if found.trend is not None:
            weights = found.trend.contrasted(weights, residual)
            out += (H @ found.trend.coefficients(residual)).T
        inward = found.measured.cells.base.inward(found.measured.summed(weights))
        for part, B in self._pieces(Z):
            out[:, part] += (B @ inward).T
        return out

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d)."""
        named, found = self._aligned(Z), self._solved
        names, cells, lattice = column_names(named), found.measured.cells, found.K.lattice
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        Z, H = as_matrix(named), self.prior_mean.columns(named)
        X = gram.Gram(lattice.kernel, lattice.inputs())
        dH = self.prior_mean.columns_slope(Z, names)
        a = found.measured.summed(found.a[:, None])[:, 0]
        dmean = self.prior_mean.slope(Z, names) + np.einsum("sqd,q->sd", dH, self.coefficients()[0])
        dvariance = gram.diagonal_slope(kernel, Z)
        for part, B in self._pieces(named):
            S = self._uncertainty(H[part], B @ found.half_inward)
            weights = cells.base.outward(cells.divide(B.T) + found.half_inward @ S).T
            dmean[part] += gram.slope(kernel, Z[part], X, np.broadcast_to(a, weights.shape))
            dvariance[part] -= 2 * gram.slope(kernel, Z[part], X, weights)
            if found.trend is not None:
                dvariance[part] += 2 * np.einsum("sqd,qs->sd", dH[part], np.linalg.solve(found.trend.root.T, S))
        return dmean, dvariance

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`: one term, since white noise is none."""
        Z = self._aligned(Z)
        none = np.zeros_like(self.prior_mean.columns(Z))  # the trend belongs to no term
        return [(part, *self._moments(Z, part, none)) for part in terms_of(self.kernel)]

    # -- data ----------------------------------------------------------------------------------------------------

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> Posterior:
        """Given more measurements: of cells of the grid, or of cells that enlarge it. Otherwise the posterior is that
        of the dense solver, of all rows."""
        X, m = self._aligned(X), count_rows(X)
        if m == 0:
            return self
        y, noise = np.append(self.y, as_vector(y, m)), np.append(self.noise, as_variances(noise, m))
        rows = stack_rows(self.X, X, self.kernel.reads, self._needs_all_columns)
        refusal = Grid().refusal(self.kernel, rows, RowNoise(noise))
        if refusal is None:
            return GridPosterior.given(self.kernel, rows, y, noise, self.prior_mean)
        warnings.warn(
            f"with the new rows, the data are those of the dense solver, a matrix of {len(y):,} x {len(y):,}: the grid "
            f"solver {refusal}.",
            NumericalWarning,
            stacklevel=3,
        )
        return Dense().posterior(self.kernel, rows, y, noise, self.prior_mean, allow_invalid=True)

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def rescaled(self, kernel: Kernel, factor: float) -> "GridPosterior":
        """As `GP.rescaled`; by solving again."""
        if self.prior_mean.precision is not None:
            raise ParameterError("the prior variance of a trend does not scale with the covariance.")
        return GridPosterior(kernel, self.X, self.y, self.noise * factor, self.prior_mean)

    def latent(self) -> "GridPosterior":
        """As `GP.latent`."""
        latent, white = split_white(self.kernel)
        if latent is None or not white:
            return self
        return GridPosterior(latent, self.X, self.y, self.noise + white, self.prior_mean)

    # -- diagnostics -----------------------------------------------------------------------------------------------

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`; the condition number is that of all cells."""
        found = self._solved
        target = self.y - self.prior_mean(self.X) - self.prior_mean.columns(self.X) @ self.coefficients()[0]
        left = found.measured.times(found.a[:, None])[:, 0] - target
        residual = float(np.linalg.norm(left) / (np.linalg.norm(target) or 1.0))
        return {"jitter": 0.0, "condition": found.measured.cells.base.condition(), "residual": residual}

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        trend = self._solved.trend
        if trend is None:
            return np.zeros(0), np.zeros((0, 0))
        return trend.coefficients(self.y - self.prior_mean(self.X)), trend.covariance()

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        Z = self._aligned(Z)
        (estimate, covariance), H = self.coefficients(), self.prior_mean.columns(Z)
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    def log_evidence(self) -> float:
        """As `GP.log_evidence`."""
        found, n = self._solved, len(self.y)
        quadratic, log_det = float((self.y - self.prior_mean(self.X)) @ found.a), found.measured.log_det
        if found.trend is not None:
            log_det, n = log_det + found.trend.log_det(), n - found.trend.flat
        return -0.5 * (log_det + quadratic + n * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.leave_one_out`."""
        found = self._solved
        diagonal = found.measured.inverse_diagonal()
        if found.trend is not None:
            left = diagonal - np.einsum("ij,ij->i", found.trend.half, found.trend.half)
            diagonal = np.where(left > len(left) * np.finfo(float).eps * diagonal, left, diagonal)
        return self.y - found.a / diagonal, 1 / diagonal


@register
@dataclasses.dataclass(frozen=True)
class Grid(Solver):
    """Structure of a grid: a product kernel on all combinations of values of groups of columns, or a stationary kernel
    of one input at equal steps. Cells may be missing, or have a noise of their own: up to a hundred, or a quarter of
    all up to ``max_missing``. Where one group is the number of a target (`Coregionalization`), each target may have a
    noise variance of its own.

    >>> from mercer import kernels as k
    >>> X = np.array([(place, time) for place in (0.0, 0.7, 3.0) for time in range(5)])
    >>> print(Grid().refusal(k.Matern().on(0) * k.RBF().on(1), X, as_noise(0.1, 15)))
    None
    >>> print(Grid().refusal(k.Matern(), X, as_noise(0.1, 15))[:61])
    needs a kernel that is a product over groups of columns, as R
    """

    max_missing: int = 2000

    name = "grid"
    summary = "exact, by the structure of the covariance on a grid"
    parts = (GridPosterior, OutputGridPosterior)
    auto_rows = 1000
    of_parts = False

    def __post_init__(self) -> None:
        if not isinstance(self.max_missing, int | np.integer) or self.max_missing < 0:
            raise ParameterError(f"max_missing must be a non-negative integer; got {self.max_missing!r}.")

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        found = find(kernel, X)
        if isinstance(found, str):
            return found
        most = limit(found.size, self.max_missing)
        if found.missing > most:
            return f"is for at most {most:,} missing cells here; {found.words()} has {found.missing:,}"
        if differs(kernel, X, noise):
            return None
        if isinstance(noise, GivenOutputNoise):
            noise = CommonNoise(float(noise.noise[0]))
        if not isinstance(noise, LearnedNoise | CommonNoise | RowNoise):
            return f"is for one noise variance, or one for each target, not {noise!r}"
        if not noise.positive and not split_white(kernel)[1]:
            return "needs a positive noise variance in every row"
        if isinstance(noise, RowNoise) or len(found.observed) < len(found.cell):
            own = noise.noise if isinstance(noise, RowNoise) else np.ones(len(found.cell))
            precision = np.bincount(found.cell, 1 / (own + split_white(kernel)[1]), found.size)[found.observed]
            common = most_common(1 / precision)
            others = found.missing + int(np.sum(np.abs(1 / precision - common) > SAME_VARIANCE * common))
            if others > most:
                return (
                    f"is for one noise variance; of {found.size:,} cells, {others:,} are missing, are measured more or "
                    f"less often than most, or have a variance of their own, and at most {most:,} may"
                )
        return None

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        found = find(kernel, X)
        assert isinstance(found, Lattice)
        N, q, n = found.size, found.missing, count_rows(X)
        if found.step is not None:
            n_t = found.shape[-1]
            columns, work = max(BLOCK_COLUMNS, q), 30.0 * (N / n_t) ** 3 + 4.0 * N * n_t + 4.0 * N * q**2 + q**3
            return Cost(8 * 6 * N * columns, work, (n, columns), f"rows are {found.words()}")
        memory = 8 * (4 * sum(size**2 for size in found.shape) + 8 * N + 4 * N * q)
        columns = max(1, q, math.ceil(max(found.shape) ** 2 / n))
        return Cost(memory, flops(found.shape, q), (n, columns), f"rows are {found.words()}")

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> Evidence:
        # Learning starts on random parts of the rows, and tries other kernels: these may have no structure.
        made = as_noise(noise, len(y))
        if self.refusal(kernel, X, made) is not None:
            return Dense().evidence(kernel, X, y, noise, mean)
        if differs(kernel, X, made):
            return OutputGridEvidence(kernel, X, y, noise, mean)
        return GridEvidence(kernel, X, y, noise, mean)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> Posterior:
        rows = RowNoise(as_variances(noise, count_rows(X)))
        if self.refusal(kernel, X, rows) is not None:
            return Dense().posterior(kernel, X, y, noise, mean, allow_invalid)
        if differs(kernel, X, rows):
            found = OutputGridPosterior.given(kernel, X, y, noise, mean)
            return Dense().posterior(kernel, X, y, noise, mean, allow_invalid) if found is None else found
        return GridPosterior.given(kernel, X, y, noise, mean)
