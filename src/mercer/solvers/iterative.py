"""Solutions to a tolerance, for many rows: conjugate gradients on a covariance that is never formed (Gibbs 1997)."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from mercer import gram
from mercer.core import machine
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
    take_rows,
)
from mercer.core.random import as_key, normal
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import CommonNoise, Noise, RowNoise
from mercer.gp.posterior import Posterior
from mercer.gp.process import GP, check_size
from mercer.kernels import evaluate
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.sets import on_sets
from mercer.kernels.standard import standard_form
from mercer.kernels.substitution import by_position
from mercer.linalg.cholesky import root
from mercer.linalg.jitter import FIXED_JITTER
from mercer.linalg.trend import Trend
from mercer.solvers.auto import Budget, fit_seconds, search_stages
from mercer.solvers.base import DENSE_OVERHEAD, Cost, Evidence, GivenNoise, Solver, register
from mercer.solvers.dense import FunctionSpace
from mercer.solvers.iterative_evidence import (
    MAX_DOUBLE_ROWS,
    Accuracy,
    IterativeEvidence,
    System,
    inverse_diagonal,
    inverse_diagonal_error,
    solve,
    solved,
    without_trend,
)

MAX_REFINEMENTS = 4  # of solutions in single precision, from their residuals in double precision
LEFT_OUT_PROBES = 32  # that estimate the diagonal of C^-1
MAX_LEFT_OUT_ERROR = 0.05  # standard error of an entry, relative: otherwise the nearest rows are used
MAX_JOINT_ROWS = 256  # of a sample from its covariance matrix; of more, by Matheron's rule
N_FUNCTIONALS = 64  # linear combinations of all rows that a variance is given, beside the nearest rows
# Time of an evaluation, in the flops that a dense solver makes in it, measured: for a pair of rows and an iteration
# where tiles are kept; where they are computed, by formulas in NumPy or by the compiled program; and for the gradient.
KEPT_FLOPS, STANDARD_FLOPS, COMPILED_FLOPS, GRADIENT_FLOPS = 40.0, 130.0, 400.0, 600.0
EXPECTED_ITERATIONS = 60  # to the default tolerance; few or rough inputs and little noise take more


class Given(NamedTuple):
    """The system of the training rows, which must be in use, and the rows."""

    system: System
    rows: gram.Gram


@dataclasses.dataclass(frozen=True, eq=False)
class IterativePosterior(Posterior):
    """Posterior from solutions of the linear system to a relative residual of ``solver.tolerance``.

    The mean is exact to it. Where there are more rows than ``solver.rank``, variances are those given the nearest rows
    and some combinations of all rows: too large rather than too small, by a few per cent. Covariances, samples and
    gradients are from further solutions.
    """

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    prior_mean: MeanFunction
    solver: "Iterative"
    a: np.ndarray  # C^-1 (y - m), with estimated coefficients in m
    trend_: Trend | None
    evidence_: np.ndarray  # log evidence, and its standard error
    found_: np.ndarray  # relative residual, error of the mean over the prior's deviation, iterations, condition

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None, solver: "Iterative",
        start: np.ndarray | None = None,
    ) -> "IterativePosterior":  # fmt: skip
        # A copy, because the caller may modify the rows later. Prepared ones are not the caller's.
        n, rows = count_rows(X), X if isinstance(X, gram.Gram) else gram.Gram(kernel, copy_rows(X))
        rows = rows.of(kernel)
        y, noise = as_vector(y, n).copy(), np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
        mean = (MeanFunction() if mean is None else mean).fit(rows.X)
        new = cls(kernel, rows.X, y, noise, mean, solver, np.zeros(n), None, np.zeros(2), np.zeros(4))
        gram.keep(new, rows)
        new = new._with_weights(start)
        gram.keep(new, rows)
        return new

    def _with_weights(self, start: np.ndarray | None) -> "IterativePosterior":
        """With the trend, a, and the log evidence: one block of conjugate gradients for all."""
        target, H, n = self.y - self.prior_mean(self.X), self.prior_mean.columns(self.X), len(self.y)
        B = np.column_stack([target, H])
        guess = None if start is None else np.column_stack([start, np.zeros((n, H.shape[1]))])
        with self._in_use() as (system, rows):
            found = solved(system, B, self._accuracy, guess)
            if math.isnan(found.log_det):
                raise self._indefinite()
            C_inv, left, residuals = self._refined(rows, system, B, found.C_inv, found.residuals)
            condition = system.near.condition()
            # The mean at the training rows is K C^-1 y, so that the residual r leaves an error K C^-1 r there.
            missing = left[:, 0] - self.noise * system.near.solve(left[:, :1])[:, 0]
            spread = math.sqrt(float(np.mean(system.K.diagonal())) + system.K.white) or 1.0
            error = float(np.sqrt(np.mean(missing**2))) / spread
        if residuals.max() > self.solver.tolerance:
            warnings.warn(
                f"conjugate gradients ended at a relative residual of {residuals.max():.1g} after "
                f"{self.solver.max_iterations} iterations, above the tolerance of {self.solver.tolerance:g}. Give a "
                "larger rank or max_iterations to mercer.solvers.Iterative, or more noise.",
                NumericalWarning,
                stacklevel=5,
            )
        a, trend, quadratic = C_inv[:, 0], None, float(target @ C_inv[:, 0] + C_inv[:, 0] @ left[:, 0])
        log_det, contrasts = found.log_det, n
        if self.prior_mean.unknown:
            try:
                trend = Trend.of(H, C_inv[:, 1:], self.prior_mean.precision)
            except np.linalg.LinAlgError:
                raise NotPositiveDefiniteError(
                    f"the coefficients of the mean {self.prior_mean!r} could not be estimated from these rows. Give "
                    "noise=..., or a mean with fewer columns."
                ) from None
            a = trend.contrasted(a, target)
            quadratic -= float(np.sum((trend.half.T @ target) ** 2))
            log_det, contrasts = log_det + trend.log_det(), n - trend.flat
        value = -0.5 * (log_det + quadratic + contrasts * math.log(2 * math.pi))
        return dataclasses.replace(
            self, a=a, trend_=trend, evidence_=np.array([value, 0.5 * found.log_det_error]),
            found_=np.array([residuals.max(), error, found.iterations, condition]),
        )  # fmt: skip

    def _refined(
        self, rows: gram.Gram, system: System, B: np.ndarray, X: np.ndarray, residuals: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Solutions, their residuals in double precision, and the relative size of these. In single precision, the
        solution of the residual is added until it is small enough."""
        own = np.asarray(to_free(self.kernel))
        size = np.linalg.norm(B, axis=0)
        size[size == 0] = 1.0
        with rows.varying(repeatedly=False) as K:
            exact = System(K.at(own), system.noise, system.near)
            for again in range(MAX_REFINEMENTS):
                left = B - exact.times(X)
                residuals = np.linalg.norm(left, axis=0) / size
                if (residuals <= self.solver.tolerance).all() or again == MAX_REFINEMENTS - 1:
                    break
                X = X + solve(system, left, self._accuracy).X
        return X, left, residuals

    @property
    def _accuracy(self) -> Accuracy:
        return self.solver.accuracy

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[Given]:
        """The system, for products with it."""
        rows, own = self._rows, np.asarray(to_free(self.kernel))
        with rows.varying(repeatedly=False) as varying:
            pivots = self._accuracy.pivots(varying.at(own)) if self._pivots is None else self._pivots
            system = System.of(varying.at(own, len(self.y) > MAX_DOUBLE_ROWS), self.noise, pivots)
            if system is None:
                raise self._indefinite()
            self.__dict__["_pivots"] = pivots
            yield Given(system, rows)

    _pivots = None

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n = count_rows(self.X)
        vectors = self.y.shape == self.noise.shape == self.a.shape == (n,)
        parts = isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)
        numbers = self.evidence_.shape == (2,) and self.found_.shape == (4,)
        trend = self.trend_ is None or self.trend_.H.shape[0] == n
        return vectors and parts and numbers and trend and isinstance(self.solver, Iterative)

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "IterativePosterior":
        """Given more data: solved anew, from the solution of the rows before."""
        X, m = self._aligned(X), count_rows(X)
        if not m:
            return self
        y, noise = as_vector(y, m), np.broadcast_to(np.asarray(noise, dtype=float), (m,))
        X = stack_rows(self.X, copy_rows(X), self.kernel.reads, self._needs_all_columns)
        return IterativePosterior.given(
            self.kernel, X, np.concatenate([self.y, y]), np.concatenate([self.noise, noise]), self.prior_mean,
            self.solver, np.concatenate([self.a, np.zeros(m)]),
        )  # fmt: skip

    @property
    def _rows(self) -> gram.Gram:
        """The training rows, prepared once."""
        return gram.kept(self, self.kernel, self.X)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    # -- moments -------------------------------------------------------------------------------------------------

    def mean(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        return self.trend(Z)[0] + self._rows.across(Z, self.a)

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """E f(z) = m(z) + k^T a and var f(z): (s,), (s,)."""
        Z = self._aligned(Z)
        mean, variance = self._moments(self.kernel, Z, self.prior_mean.columns(Z))
        return mean + self.trend(Z)[0], variance

    def _moments(self, kernel: Kernel, Z: Inputs, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of a term of the kernel, without the trend, whose columns at Z add to the variance."""
        mean, variance = np.zeros(count_rows(Z)), gram.diagonal(kernel, Z)
        with contextlib.ExitStack() as stack:
            given = stack.enter_context(self._in_use()) if len(self.y) <= self.solver.rank else None
            for part, K in self._rows.of(kernel).blocks(Z):
                mean[part] = K @ self.a
                if self.trend_ is not None:
                    S = self.trend_.uncertainty_root(H[part], K)
                    variance[part] += np.einsum("ij,ij->j", S, S)
                if given is not None:
                    found = solve(given.system, K.T.copy(), self._accuracy)
                    variance[part] -= np.einsum("sn,ns->s", K, found.X) + np.einsum("ns,ns->s", found.X, found.left)
                else:
                    variance[part] -= self._explained(K)
        return mean, np.maximum(variance, 0.0)

    @functools.cached_property
    def _functionals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Linear combinations G (n, g) of the rows, with the largest eigenvalues of the preconditioner; C G; and
        (G^T C G)^-1."""
        with self._in_use() as (system, _):
            near = system.near
            largest = np.argsort(near.values)[::-1][:N_FUNCTIONALS]
            G = near.U[:, largest] / np.sqrt(near.D)[:, None]
            CG = system.times(G)
        A = G.T @ CG
        return G, CG, np.linalg.inv((A + A.T) / 2)

    def _explained(self, K: np.ndarray) -> np.ndarray:
        """What the nearest rows and some combinations of all rows explain of the variance of new rows with these
        covariances (s, n): no more than all rows do, (s,)."""
        rows, n = self._rows, len(self.y)
        m = min(self.solver.n_neighbors, n)
        G, CG, A_inv = self._functionals
        scale = np.sqrt(rows.diagonal() + self.noise)
        at = on_sets(self.kernel, rows.X, rows.rows).at(np.asarray(to_free(self.kernel)))
        jitter = FIXED_JITTER * float(np.mean(scale) ** 2)
        height = machine.rows_within(machine.ARRAY_BYTES, m**2)

        def work(part: slice) -> np.ndarray:
            k = K[part]
            closest = np.sort(np.argpartition(-np.abs(k) / scale, m - 1, axis=1)[:, :m], axis=1)
            C = np.empty((len(k), m, m))
            at.fill(closest, np.full(len(k), m), C)
            C = np.tril(C) + np.swapaxes(np.tril(C, -1), 1, 2)
            own, along = np.take_along_axis(k, closest, axis=1), k @ G
            across = CG[closest]  # (s, m, g)
            weighted = across @ A_inv
            C -= weighted @ np.swapaxes(across, 1, 2)
            diagonal = np.arange(m)
            C[:, diagonal, diagonal] += self.noise[closest] + jitter
            own = own - np.einsum("smg,sg->sm", weighted, along)
            solved = np.linalg.solve(C, own[:, :, None])[:, :, 0]
            return np.einsum("sg,gh,sh->s", along, A_inv, along) + np.einsum("sm,sm->s", own, solved)

        parts = [slice(i, min(i + height, len(K))) for i in range(0, len(K), height)]
        if len(parts) == 1:
            return work(parts[0])
        with machine.one_thread(), ThreadPoolExecutor(machine.cores()) as pool:
            return np.concatenate(list(pool.map(work, parts)))

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def covariance(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        K, across = gram.within(self.kernel, Z), gram.between(self.kernel, Z, self._rows)
        with self._in_use() as (system, _):
            found = solve(system, across.T.copy(), self._accuracy)
        K -= across @ found.X + found.X.T @ found.left
        if self.trend_ is not None:
            S = self.trend_.uncertainty_root(self.prior_mean.columns(Z), across)
            K += S.T @ S
        return (K + K.T) / 2

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s). Of a few rows from their covariance; of many by Matheron's
        rule, which makes a draw f of the prior one of the posterior: f(Z) + k(Z, X) C^-1 (y - f(X) - noise)."""
        check_size(size)
        Z, s = self._aligned(Z), count_rows(Z)
        if s == 0:
            return np.zeros((size, 0))
        if s <= MAX_JOINT_ROWS:
            R = root(self.covariance(Z), scale=float(np.max(gram.diagonal(self.kernel, Z))))
            return self.mean(Z) + normal(seed, (size, s))[:, : R.shape[1]] @ R.T
        first, second, third = jax.random.split(as_key(seed), 3)
        latent, white = split_white(self.kernel)
        both = stack_rows(Z, self.X, self.kernel.reads, self._needs_all_columns)
        f = GP(latent, allow_invalid=True).sample(both, size, first)
        noise = np.sqrt(self.noise + white) * normal(second, (size, len(self.y)))
        residual = (self.y - self.prior_mean(self.X) - f[:, s:] - noise).T
        with self._in_use() as (system, _):
            weights = solve(system, residual, self._accuracy).X
        out = self.prior_mean(Z) + f[:, :s] + np.sqrt(white) * normal(third, (size, s))
        if self.trend_ is not None:
            weights = self.trend_.contrasted(weights, residual)
            out += (self.prior_mean.columns(Z) @ self.trend_.coefficients(residual)).T
        return out + self._rows.across(Z, weights).T

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d)."""
        named = self._aligned(Z)
        names = column_names(named)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        Z, H, X, trend = as_matrix(named), self.prior_mean.columns(named), self._rows, self.trend_
        dH = self.prior_mean.columns_slope(Z, names)
        dmean = self.prior_mean.slope(Z, names) + np.einsum("sqd,q->sd", dH, self.coefficients()[0])
        dvariance = gram.diagonal_slope(kernel, Z)
        with self._in_use() as (system, _):
            for part, K in X.blocks(named):
                dmean[part] += gram.slope(kernel, Z[part], X, np.broadcast_to(self.a, K.shape))
                weights = solve(system, K.T.copy(), self._accuracy).X.T
                if trend is not None:
                    S = trend.uncertainty_root(H[part], K)
                    weights = weights + (trend.half @ S).T
                    dvariance[part] += 2 * np.einsum("sqd,qs->sd", dH[part], np.linalg.solve(trend.root.T, S))
                dvariance[part] -= 2 * gram.slope(kernel, Z[part], X, weights)
        return dmean, dvariance

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`."""
        Z = self._aligned(Z)
        none = np.zeros_like(self.prior_mean.columns(Z))  # the trend belongs to no term
        return [(part, *self._moments(part, Z, none)) for part in terms_of(self.kernel)]

    # -- diagnostics -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def latent(self) -> "IterativePosterior":
        """As `GP.latent`."""
        latent, white = split_white(self.kernel)
        if latent is None or not white:
            return self
        new = dataclasses.replace(self, kernel=latent, noise=self.noise + white)
        gram.keep(new, self._rows)
        return new

    def rescaled(self, kernel: Kernel, factor: float) -> "IterativePosterior":
        """As `GP.rescaled`: the solutions stay as they are."""
        trend = self.trend_
        if trend is not None and trend.precision is not None:
            raise ParameterError("the prior variance of a trend does not scale with the covariance.")
        contrasts = len(self.y) - (0 if trend is None else trend.flat)
        if trend is not None:
            trend = Trend(trend.H, trend.half / math.sqrt(factor), trend.root / math.sqrt(factor))
        # ln p is -1/2 (ln |C| + y^T C^-1 y) and a constant.
        quadratic = float((self.y - self.prior_mean(self.X)) @ self.a)
        value = self.evidence_[0] - 0.5 * (contrasts * math.log(factor) + quadratic * (1 / factor - 1))
        new = dataclasses.replace(
            self, kernel=kernel, noise=self.noise * factor, a=self.a / factor, trend_=trend,
            evidence_=np.array([value, self.evidence_[1]]),
            found_=self.found_ / np.array([1.0, math.sqrt(factor), 1.0, 1.0]),
        )  # fmt: skip
        gram.keep(new, self._rows)
        return new

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.coefficients`."""
        if self.trend_ is None:
            return np.zeros(0), np.zeros((0, 0))
        return self.trend_.coefficients(self.y - self.prior_mean(self.X)), self.trend_.covariance()

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.trend`."""
        Z = self._aligned(Z)
        (estimate, covariance), H = self.coefficients(), self.prior_mean.columns(Z)
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    def _indefinite(self) -> NotPositiveDefiniteError:
        return NotPositiveDefiniteError(
            f"the covariance of these {len(self.y):,} rows is not positive definite to rounding. Give a larger "
            "noise, or look at the kernel with mercer.check_kernel(kernel, X); where its lengthscales and variances "
            "are huge, the data have a trend: add mercer.kernels.Linear() to the kernel."
        )

    def log_evidence(self) -> float:
        """As `GP.log_evidence`, estimated (``numerics()["evidence_error"]``)."""
        return float(self.evidence_[0])

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.leave_one_out`, from an estimate of the diagonal of C^-1 by probes. Where its standard error is above
        `MAX_LEFT_OUT_ERROR`, the variance is that given the ``n_neighbors`` nearest rows: exact for these, and too
        large rather than too small for all."""
        accuracy, few = dataclasses.replace(self._accuracy, n_probes=LEFT_OUT_PROBES), len(self.y) <= self.solver.rank
        with self._in_use() as (system, _):
            if few:  # probes would find the same
                accuracy = dataclasses.replace(accuracy, n_probes=1)
            found = solved(system, np.zeros((len(self.y), 0)), accuracy)
            diagonal = inverse_diagonal(system.near, found.U, found.V)
        if not few:
            doubtful = np.flatnonzero(inverse_diagonal_error(found.U, found.V) > MAX_LEFT_OUT_ERROR)
            diagonal[doubtful] = self._inverse_diagonal_near(doubtful)
        diagonal = without_trend(diagonal, self.trend_)
        return self.y - self.a / diagonal, 1 / diagonal

    def _inverse_diagonal_near(self, which: np.ndarray) -> np.ndarray:
        """Diagonal of C^-1 at some rows, of each with the rows nearest to it alone."""
        rows, n = self._rows, len(self.y)
        m, out, done = min(self.solver.n_neighbors + 1, n), np.empty(len(which)), 0
        scale = np.sqrt(rows.diagonal() + self.noise)
        at = on_sets(self.kernel, rows.X, rows.rows).at(np.asarray(to_free(self.kernel)))
        height = machine.rows_within(machine.ARRAY_BYTES, m**2)
        for block, K in rows.blocks(take_rows(rows.X, which)):
            own = which[block]
            closeness = np.abs(K) / scale
            closeness[np.arange(len(own)), own] = -1.0  # the row itself comes last
            for i in range(0, len(own), height):
                some = own[i : i + height]
                near = np.argpartition(-closeness[i : i + height], m - 2, axis=1)[:, : m - 1]
                sets = np.column_stack([near, some])
                C = np.empty((len(some), m, m))
                at.fill(sets, np.full(len(some), m), C)
                C[:, np.arange(m), np.arange(m)] += self.noise[sets]
                out[done : done + len(some)] = _last_inverse_entries(C)
                done += len(some)
        return out

    def residual(self) -> float:
        """Relative residual |C a - (y - m)| / |y - m|."""
        return float(self.found_[0])

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`, with the condition number of the preconditioner in place of that of C; and how many
        iterations it took, an estimate of the root mean square error of the mean, in standard deviations of the prior
        (``error``), and the standard error of the log evidence (``evidence_error``)."""
        return {
            "jitter": 0.0,
            "condition": float(self.found_[3]),
            "residual": self.residual(),
            "iterations": float(self.found_[2]),
            "error": float(self.found_[1]),
            "evidence_error": float(self.evidence_[1]),
        }


def _last_inverse_entries(C: np.ndarray) -> np.ndarray:
    """The last diagonal entry of C^-1 of several matrices (s, m, m), whose lower triangles count: (s,). It is that of
    the factor to the power of minus two."""
    try:
        return np.linalg.cholesky(C)[:, -1, -1] ** -2.0
    except np.linalg.LinAlgError:  # not positive definite to rounding
        return np.linalg.inv(np.tril(C) + np.swapaxes(np.tril(C, -1), 1, 2))[:, -1, -1]


@register
@dataclasses.dataclass(frozen=True)
class Iterative(Solver):
    """Preconditioned conjugate gradients: n^2 of time for each of a few dozen iterations, and memory for n times the
    rank of the preconditioner.

    Parameters
    ----------
    rank : of the preconditioner, made of that many rows drawn by randomly pivoted Cholesky.
    n_probes : random vectors that estimate the log determinant and its gradient, the same at every theta.
    tolerance : relative residual of the solutions.
    max_iterations : of a solution; one that has not converged says so by its residual.
    n_neighbors : training rows that the variance of a new one is given, beside 64 combinations of all rows, where there
        are more rows than the rank.
    learning_rows : rows, drawn at random, from which parameters are learned, at most; None: all. Predictions are made
        from all rows in any case.
    dense_rows : rows up to which the evidence is that of the dense solver, which is then faster.
    seed : of pivots and probes.
    """

    rank: int = 300
    n_probes: int = 16
    tolerance: float = 1e-3
    max_iterations: int = 500
    n_neighbors: int = 256
    learning_rows: int | None = None
    dense_rows: int = 2500
    seed: int = 0

    name = "iterative"
    summary = "exact to a tolerance, by conjugate gradients on a matrix that is not stored"
    parts = (IterativePosterior,)
    exact = False
    converges = True
    growth = 2
    auto_loss = 0.01

    def __post_init__(self) -> None:
        for name in ("rank", "n_probes", "max_iterations", "n_neighbors", "learning_rows", "dense_rows", "seed"):
            value, least = getattr(self, name), 0 if name in ("dense_rows", "seed") else 1
            if value is None and name == "learning_rows":
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ParameterError(f"{name} must be an integer of at least {least}; got {value!r}.")
        if not 0 < self.tolerance < 1:
            raise ParameterError(f"tolerance must lie between 0 and 1; got {self.tolerance!r}.")

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy(self.rank, self.n_probes, self.tolerance, self.max_iterations, self.seed)

    def refusal(self, kernel: Kernel, X: Inputs, noise: Noise) -> str | None:
        if evaluate.on_host(gram.on(kernel, X).rows):
            return f"needs a kernel of numbers that can be compiled; got {kernel!r}"
        zero = isinstance(noise, CommonNoise | RowNoise) and not (np.asarray(noise.noise) > 0).all()
        if zero and not split_white(kernel)[1] > 0:
            return "needs a positive noise variance, without which iterations do not converge"
        return None

    def cost(self, kernel: Kernel, X: Inputs) -> Cost:
        n, rank = count_rows(X), min(self.rank, count_rows(X))
        if n <= self.dense_rows:
            return Cost(8 * 2 * n**2 + 32 * n * rank, DENSE_OVERHEAD * float(n) ** 3, (n, rank), "rows are few")
        single = 4 if n > MAX_DOUBLE_ROWS else 8
        kept = single * n**2 / 2
        keeps = kept <= machine.keepable()
        first = STANDARD_FLOPS if standard_form(kernel) is not None else COMPILED_FLOPS
        again = KEPT_FLOPS if keeps else first
        memory = n * (24 * self.rank + 80 * (self.n_probes + 4) + 4096) + (kept if keeps else 0) + (1 << 26)
        flops = 0.5 * n**2 * (first + EXPECTED_ITERATIONS * again + GRADIENT_FLOPS)
        learned = "" if self.learning_rows is None else f", with parameters learned from {self.learning_rows:,} of them"
        why = f"conjugate gradients solve for all rows to {self.tolerance:g}{learned}"
        return Cost(memory, flops, (n, rank), why)

    def approximation(self, kernel: Kernel) -> str | None:
        return (
            f"solves to a relative residual of {self.tolerance:g} and estimates the log determinant from "
            f"{self.n_probes} probes; numerics_ has both errors"
        )

    def max_residual(self) -> float:
        return self.tolerance

    def estimates_left_out(self, n: int) -> bool:
        return n > self.rank

    def within(self, kernel: Kernel, X: Inputs, budget: Budget) -> Self:
        """Learning from all rows, or from as many as time allows."""
        n, new = count_rows(X), self
        for rows in (None, *search_stages(n)[-2::-1]):
            new = dataclasses.replace(self, learning_rows=rows)
            if rows is not None and rows < self.dense_rows / 2:
                break
            if fit_seconds(new, new.cost(kernel, X), n, budget) <= budget.seconds:
                break
        return new

    def stages(self, n: int) -> list[int]:
        found, most = search_stages(n), n if self.learning_rows is None else self.learning_rows
        return [rows for rows in found if rows <= most] or found[:1]

    def part_flops(self, cost: Cost, n: int, rows: int) -> float:
        if rows <= self.dense_rows:
            return DENSE_OVERHEAD * float(rows) ** 3
        return cost.flops * (rows / n) ** 2

    def evidence(
        self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: GivenNoise = None, mean: MeanFunction | None = None
    ) -> Evidence:
        if len(y) <= self.dense_rows:
            return FunctionSpace(kernel, X, y, noise, mean)
        return IterativeEvidence(kernel, X, y, noise, mean, self.accuracy)

    def posterior(
        self,
        kernel: Kernel,
        X: Inputs,
        y: np.ndarray,
        noise: np.ndarray,
        mean: MeanFunction | None = None,
        allow_invalid: bool = False,
    ) -> IterativePosterior:
        return IterativePosterior.given(kernel, X, y, noise, mean, self)
