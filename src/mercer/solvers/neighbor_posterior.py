"""Posterior of each row conditioned on near ones (Vecchia), and what new rows are predicted from."""

import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from mercer import gram
from mercer.core import machine
from mercer.core.coordinates import to_free
from mercer.core.errors import NotPositiveDefiniteError, ParameterError
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
from mercer.core.random import normal
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.posterior import Posterior
from mercer.gp.process import check_size
from mercer.kernels import evaluate
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.sets import SetsAt, on_sets, positions, slope_on_sets
from mercer.kernels.substitution import by_position
from mercer.linalg.jitter import FACTOR, SAMPLING
from mercer.linalg.ordering import Sets, maximin_order, near_and_far, nearest_before, nearest_of_those_before
from mercer.linalg.trend import Trend
from mercer.linalg.vecchia import SetFactors, SparseFactor, solved_sets
from mercer.solvers.neighbor_evidence import scaled_inputs

CHECKED_ROWS, CHECKED_SHARE = 100, 8  # rows that estimate the gap to the exact evidence, and neighbours they get


class SolvedNeighbors(NamedTuple):
    """New rows of a piece, the training rows that each is predicted from (s, m), solutions of C of these for several
    right hand sides (s, m, c), and the covariances of each new row with them (s, m) and its variance (s,)."""

    part: slice
    near: np.ndarray
    solutions: np.ndarray
    across: np.ndarray
    variance: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class NeighborPosterior(Posterior):
    """Posterior from the sparse precision (I - B)^T D^-1 (I - B) of the training rows in maximin order.

    A new row is predicted from its ``n_predict`` nearest training rows, the coefficients of the mean from all rows.
    Samples and covariances of several new rows are those of an order of the new rows after the training rows, each
    conditioned on the nearest of both before it.
    """

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    prior_mean: MeanFunction
    n_neighbors: int
    n_predict: int
    grouped: bool
    order: np.ndarray
    factor: SparseFactor
    a: np.ndarray  # C^-1 (y - m), with estimated coefficients in m
    trend_: Trend | None
    jitter: float

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None, n_neighbors: int,
        n_predict: int, grouped: bool,
    ) -> "NeighborPosterior":  # fmt: skip
        # A copy, because the caller may modify the rows later. Prepared ones are not the caller's.
        n, rows = count_rows(X), X if isinstance(X, gram.Gram) else gram.Gram(kernel, copy_rows(X))
        rows = rows.of(kernel)
        y, noise = as_vector(y, n).copy(), np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
        mean = (MeanFunction() if mean is None else mean).fit(rows.X)
        points = scaled_inputs(kernel, rows)
        order = maximin_order(points)
        before = nearest_before(points[order], n_neighbors)
        ordered = rows[order]
        at = on_sets(kernel, ordered.X, ordered.rows).at(np.asarray(to_free(kernel)))
        scale = float(np.mean(rows.diagonal())) if n else 1.0
        with SetFactors(Sets.grouped(before) if grouped else Sets.each(before)) as sets:
            for relative in (0.0, *FACTOR(n)):
                factor = sets.factor(at, noise[order] + relative * scale)
                if factor is not None:
                    break
            else:
                raise NotPositiveDefiniteError(
                    f"the covariances of neighbours among these {n:,} rows could not be factorised, with jitter up to "
                    f"{relative:.0e} of the variance. Look at the kernel with mercer.check_kernel(kernel, X)."
                )
        new = cls(
            kernel, rows.X, y, noise, mean, n_neighbors, n_predict, grouped, order, factor, np.zeros(n), None,
            relative * scale,
        )  # fmt: skip
        new = new._with_weights()
        gram.keep(new, rows)
        return new

    def _with_weights(self) -> "NeighborPosterior":
        """With the trend and a."""
        target, H = self.y - self.prior_mean(self.X), self.prior_mean.columns(self.X)
        C_inv, trend = self._unordered(self.factor.times_precision(np.column_stack([target, H])[self.order])), None
        a = C_inv[:, 0]
        if self.prior_mean.unknown:
            try:
                trend = Trend.of(H, C_inv[:, 1:], self.prior_mean.precision)
            except np.linalg.LinAlgError:
                raise NotPositiveDefiniteError(
                    f"the coefficients of the mean {self.prior_mean!r} could not be estimated from these rows. Give "
                    "noise=..., or a mean with fewer columns."
                ) from None
            a = trend.contrasted(a, target)
        return dataclasses.replace(self, a=a, trend_=trend)

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n = count_rows(self.X)
        vectors = self.y.shape == self.noise.shape == self.a.shape == self.order.shape == (n,)
        ordered = vectors and np.array_equal(np.sort(self.order), np.arange(n))
        parts = isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)
        trend = self.trend_ is None or self.trend_.H.shape[0] == n
        return parts and trend and ordered and len(self.factor.variance) == n and self.factor.consistent()

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "NeighborPosterior":
        """Given more data, from all rows anew: more rows change the order."""
        X, m = self._aligned(X), count_rows(X)
        if not m:
            return self
        y, noise = as_vector(y, m), np.broadcast_to(np.asarray(noise, dtype=float), (m,))
        X = stack_rows(self.X, copy_rows(X), self.kernel.reads, self._needs_all_columns)
        return self._given(self.kernel, X, np.concatenate([self.y, y]), np.concatenate([self.noise, noise]))

    def _given(self, kernel: Kernel, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "NeighborPosterior":
        settings = self.n_neighbors, self.n_predict, self.grouped
        return NeighborPosterior.given(kernel, X, y, noise, self.prior_mean, *settings)

    def _unordered(self, values: np.ndarray) -> np.ndarray:
        out = np.empty_like(values)
        out[self.order] = values
        return out

    @property
    def _rows(self) -> gram.Gram:
        """The training rows, prepared once."""
        return gram.kept(self, self.kernel, self.X)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, gram.raw(Z), self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    # -- moments -------------------------------------------------------------------------------------------------

    def _beside(self, Z: Inputs) -> gram.Gram:
        """Training rows followed by those of Z, prepared."""
        return gram.Gram(self.kernel, stack_rows(self.X, Z, self.kernel.reads, self._needs_all_columns))

    def _each_piece(
        self, Z: Inputs, right: Callable[[np.ndarray, np.ndarray], np.ndarray], term: Kernel | None = None
    ) -> list[SolvedNeighbors]:
        """New rows in pieces, each with the equations of its neighbours solved: for ``right`` (near rows (s, m), their
        covariances with the new row (s, m)): (s, m, c). Covariances with the new row are those of one ``term`` of the
        kernel, or of all."""
        n, s = len(self.y), count_rows(Z)
        if not s:
            return []
        rows = self._beside(Z)
        points = positions(self.kernel, rows.X)
        near = self.order[near_and_far(points[self.order], points[n:], self.n_predict)]
        m = near.shape[1]
        members = np.column_stack([near, np.arange(n, n + s)])
        at = on_sets(self.kernel, rows.X, rows.rows).at(np.asarray(to_free(self.kernel)))
        own = None if term is None else rows.of(term)
        of_term = None if own is None else on_sets(own.kernel, own.X, own.rows).at(np.asarray(to_free(own.kernel)))
        noise = self.noise + self.jitter
        height = machine.rows_within(machine.SETS_BYTES, (m + 1) ** 2)
        parts = [slice(i, min(i + height, s)) for i in range(0, s, height)]

        def work(part: slice) -> SolvedNeighbors:
            C = _filled(at, members[part])
            last = C if of_term is None else _filled(of_term, members[part])
            across, variance = last[:, m, :m].copy(), last[:, m, m].copy()
            b = np.ascontiguousarray(right(near[part], across))
            return SolvedNeighbors(part, near[part], solved_sets(C[:, :m, :m], noise[near[part]], b), across, variance)

        with ThreadPoolExecutor(machine.cores()) as pool:
            return list(pool.map(work, parts))

    def _residual_target(self) -> np.ndarray:
        """y minus the mean with estimated coefficients: (n,)."""
        return self.y - self.trend(self.X)[0]

    def moments(self, Z: Inputs, variance: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """E f(z) = m(z) + b^T (y - m) and var f(z) = k(z, z) - b^T k, plus that of the coefficients: (s,), (s,), with b
        the regression on the nearest training rows."""
        Z = self._aligned(Z)
        mean, variances, r = self._mean_with_trend(Z), np.empty(count_rows(Z)), self._residual_target()
        H = self.prior_mean.columns(Z)
        for part, near, b, across, prior in self._each_piece(Z, lambda near, across: across[:, :, None]):
            b = b[:, :, 0]
            mean[part] += np.einsum("sm,sm->s", b, r[near])
            variances[part] = prior - np.einsum("sm,sm->s", b, across) + self._of_trend(H[part], near, b)
        return mean, np.maximum(variances, 0.0)

    def _of_trend(self, H: np.ndarray, near: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Variance that uncertain coefficients add, of new rows with columns H: (s,)."""
        if self.trend_ is None:
            return np.zeros(len(H))
        S = np.linalg.solve(self.trend_.root, (H - np.einsum("smq,sm->sq", self.trend_.H[near], b)).T)
        return np.einsum("qs,qs->s", S, S)

    def _mean_with_trend(self, Z: Inputs) -> np.ndarray:
        return self.prior_mean(Z) + self.prior_mean.columns(Z) @ self.coefficients()[0]

    def mean(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[0]

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs, neighbours held: (s, d), (s, d)."""
        Z = self._aligned(Z)
        names = column_names(Z)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        values, H, r, trend = as_matrix(Z), self.prior_mean.columns(Z), self._residual_target(), self.trend_
        dH, X = self.prior_mean.columns_slope(values, names), gram.Gram(kernel, as_matrix(self.X)).rows
        dmean = self.prior_mean.slope(values, names) + np.einsum("sqd,q->sd", dH, self.coefficients()[0])
        dvariance = gram.diagonal_slope(kernel, values)

        def right(near: np.ndarray, across: np.ndarray) -> np.ndarray:
            known = [across[:, :, None], r[near][:, :, None]]
            return np.concatenate(known if trend is None else [*known, trend.H[near]], axis=2)

        for part, near, solutions, _, _ in self._each_piece(Z, right):
            b, alpha = solutions[:, :, 0], solutions[:, :, 1]
            weights = b
            if trend is not None:
                S = np.linalg.solve(trend.root, (H[part] - np.einsum("smq,sm->sq", trend.H[near], b)).T)
                u = np.linalg.solve(trend.root.T, S).T
                weights = b + np.einsum("smq,sq->sm", solutions[:, :, 2:], u)
                dvariance[part] += 2 * np.einsum("sqd,sq->sd", dH[part], u)
            own = evaluate.some(X, near)
            dmean[part] += slope_on_sets(kernel, values[part], own, alpha)
            dvariance[part] -= 2 * slope_on_sets(kernel, values[part], own, weights)
        return dmean, dvariance

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`, each new row from its nearest training rows."""
        Z, r, s, out = self._aligned(Z), self._residual_target(), count_rows(Z), []
        none = np.zeros_like(self.prior_mean.columns(Z))  # the trend belongs to no term
        for term in terms_of(self.kernel):
            mean, variance = np.empty(s), np.empty(s)
            for part, near, b, across, prior in self._each_piece(Z, lambda near, across: across[:, :, None], term):
                b = b[:, :, 0]
                mean[part] = np.einsum("sm,sm->s", b, r[near])
                variance[part] = prior - np.einsum("sm,sm->s", b, across) + self._of_trend(none[part], near, b)
            out.append((term, mean, np.maximum(variance, 0.0)))
        return out

    # -- several new rows together -----------------------------------------------------------------------------------

    def _joint(self, Z: Inputs) -> tuple[np.ndarray, SparseFactor]:
        """New rows in maximin order after the training rows: their numbers in that order (s,), and the regressions of
        all, those of the training rows left out."""
        n, s = len(self.y), count_rows(Z)
        rows = self._beside(Z)
        points = positions(self.kernel, rows.X)
        order = maximin_order(points[n:])
        ordered = rows[np.concatenate([np.arange(n), n + order])]
        points = np.concatenate([points[:n], points[n:][order]])
        before = nearest_of_those_before(points, np.arange(n, n + s), self.n_predict)
        sets = Sets.each(before, np.arange(n, n + s))
        at = on_sets(self.kernel, ordered.X, ordered.rows).at(np.asarray(to_free(self.kernel)))
        scale = float(gram.diagonal(self.kernel, Z).max(initial=0.0))
        with SetFactors(sets, n + s) as factors:
            for relative in (0.0, *SAMPLING(n)):  # new rows may coincide
                noise = np.concatenate([self.noise + self.jitter, np.full(s, relative * scale)])
                found = factors.factor(at, noise)
                if found is not None:
                    break
            else:
                raise NotPositiveDefiniteError("the joint covariance of these rows could not be factorised.")
        return order, found

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s). Each new row in turn, given its nearest rows among the training
        rows and the new ones before it: no matrix of all new rows is formed."""
        check_size(size)
        Z, n = self._aligned(Z), len(self.y)
        s, q = count_rows(Z), self.prior_mean.columns(Z).shape[1]
        out = np.empty((s, size))
        if not s:
            return out.T
        order, factor = self._joint(Z)
        z = normal(seed, (s + q, size))
        beta, H = np.repeat(self.coefficients()[0][:, None], size, axis=1), self.prior_mean.columns(self.X)
        if self.trend_ is not None:
            beta = beta + np.linalg.solve(self.trend_.root.T, z[s:])
        # Training rows are what is left of y; new rows start from their own noise.
        start = np.zeros((n + s, size))
        start[:n] = (self.y - self.prior_mean(self.X))[:, None] - H @ beta
        start[n:] = np.sqrt(factor.variance[n:])[:, None] * z[:s]
        out[order] = factor.solved(start)[n:]
        return (out + self.prior_mean(Z)[:, None] + self.prior_mean.columns(Z) @ beta).T

    def covariance(self, Z: Inputs) -> np.ndarray:
        """cov(f(z), f(z')) as `sample` draws them: (s, s)."""
        Z, n = self._aligned(Z), len(self.y)
        s = count_rows(Z)
        if not s:
            return np.zeros((0, 0))
        order, factor = self._joint(Z)
        H, start = self.prior_mean.columns(Z), np.zeros((n + s, s))
        start[n:] = np.diag(np.sqrt(factor.variance[n:]))
        root = np.empty((s, s))
        root[order] = factor.solved(start)[n:]
        K = root @ root.T
        if self.trend_ is not None:
            follow = np.zeros((n + s, H.shape[1]))
            follow[:n] = self.trend_.H
            left = H.copy()
            left[order] -= factor.solved(follow)[n:]
            S = np.linalg.solve(self.trend_.root, left.T)
            K += S.T @ S
        return K

    # -- diagnostics -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def latent(self) -> "NeighborPosterior":
        """As `GP.latent`."""
        latent, white = split_white(self.kernel)
        if latent is None or not white:
            return self
        new = dataclasses.replace(self, kernel=latent, noise=self.noise + white)
        gram.keep(new, self._rows)
        return new

    def rescaled(self, kernel: Kernel, factor: float) -> "NeighborPosterior":
        """As `GP.rescaled`: the regressions stay as they are."""
        trend = self.trend_
        if trend is not None and trend.precision is not None:
            raise ParameterError("the prior variance of a trend does not scale with the covariance.")
        if trend is not None:
            trend = Trend(trend.H, trend.half / math.sqrt(factor), trend.root / math.sqrt(factor))
        new = dataclasses.replace(
            self, kernel=kernel, noise=self.noise * factor, factor=self.factor.scaled(factor), a=self.a / factor,
            trend_=trend, jitter=self.jitter * factor,
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

    def log_evidence(self) -> float:
        """As `GP.log_evidence`, of the approximate joint distribution."""
        quadratic = float((self.y - self.prior_mean(self.X)) @ self.a)
        log_det, contrasts = self.factor.log_det(), len(self.y)
        if self.trend_ is not None:
            log_det, contrasts = log_det + self.trend_.log_det(), contrasts - self.trend_.flat
        return -0.5 * (log_det + quadratic + contrasts * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each measurement given all the others in the approximate joint distribution: by the
        diagonal of its sparse precision (RW06 5.12). A row depends on those it is conditioned on and on
        those conditioned on it."""
        diagonal = self._unordered(self.factor.diagonal())
        if self.trend_ is not None:
            left = diagonal - np.einsum("ij,ij->i", self.trend_.half, self.trend_.half)
            diagonal = np.where(left > len(left) * np.finfo(float).eps * diagonal, left, diagonal)
        return self.y - self.a / diagonal, 1 / diagonal

    def residual(self) -> float:
        """Relative residual |C a - (y - m)| / |y - m|, of the approximate C."""
        return self.factor.residual(self.a[self.order], self._residual_target()[self.order])

    def divergence(self) -> float:
        """Estimated Kullback-Leibler divergence of the exact distribution of y from this one, in nats: how much lower
        the log evidence is than the exact one on average.

        It is 1/2 sum_i ln(d_i / exact d_i), d_i the conditional variances. From some rows, with eight times as many
        neighbours in place of all rows before them.
        """
        n = len(self.y)
        many = CHECKED_SHARE * self.n_neighbors
        some = np.unique(np.linspace(0, n - 1, CHECKED_ROWS).astype(int))
        rows = self._rows[self.order]
        points = scaled_inputs(self.kernel, rows)
        sets = Sets.each(nearest_of_those_before(points, some, many), some)
        at = on_sets(self.kernel, rows.X, rows.rows).at(np.asarray(to_free(self.kernel)))
        with SetFactors(sets, n) as factors:
            found = factors.factor(at, self.noise[self.order] + self.jitter)
        if found is None:
            return math.nan
        return 0.5 * n * max(0.0, float(np.mean(np.log(self.factor.variance[some] / found.variance[some]))))

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`, of the approximate covariance; the number of neighbours; and `divergence`."""
        return {
            "jitter": self.jitter,
            "condition": self.factor.condition(),
            "residual": self.residual(),
            "neighbors": self.n_neighbors,
            "divergence": self.divergence(),
        }


def _filled(at: SetsAt, members: np.ndarray) -> np.ndarray:
    """Lower triangles of the covariances of sets of one size."""
    C = np.empty((len(members), *[members.shape[1]] * 2))
    at.fill(members, np.full(len(members), members.shape[1]), C)
    return C
