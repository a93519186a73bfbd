"""Posterior of a function of time, from the recursion over its states: every answer in O(n) or less.

Given the data the function is again a process with states: new times have left = l - N g, right = g and the transitions
of the filter (de Jong 1989), so covariances and samples of new times come from the same recursion.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from mercer import gram
from mercer.core.errors import NotPositiveDefiniteError
from mercer.core.growing import appended
from mercer.core.inputs import (
    Inputs,
    align_columns,
    as_matrix,
    as_rows,
    as_vector,
    column_names,
    copy_rows,
    count_rows,
    stack_rows,
)
from mercer.core.random import as_key, normal
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.posterior import Posterior
from mercer.gp.process import check_size
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.substitution import by_position
from mercer.linalg.jitter import FACTOR
from mercer.linalg.statespace import Backward, Between, Factor, NotPositive, Start, among, loops
from mercer.linalg.trend import log_unit
from mercer.solvers.timeline import At, Timeline, required_form, states_of_terms, times_of

MIN_RELATIVE_INNOVATION = 1e-14  # of the variance of a row given those before: less is rounding
SAMPLED_INNOVATION = 1e-13  # likewise for samples, where it is no error
GRADIENT_VALUES = 1 << 22  # entries of the matrices that derivatives are computed from at a time


@dataclasses.dataclass(frozen=True, eq=False)
class StatePosterior(Posterior):
    """The data, in the order given, and what the filter and the smoother computed of them, in order of time."""

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    prior_mean: MeanFunction
    jitter: float = 0.0

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None = None
    ) -> "StatePosterior":
        n = count_rows(X)
        rows = X.X if isinstance(X, gram.Gram) else copy_rows(as_rows(X, kernel.reads))
        y, noise = as_vector(y, n), np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
        mean = (MeanFunction() if mean is None else mean).fit(rows)
        required_form(kernel)
        for relative in [0.0, *FACTOR(n)]:
            new = cls(kernel, rows, y, noise, mean, relative and relative * _mean_diagonal(kernel, rows, noise))
            try:
                new._factor  # noqa: B018 (computed here)
                return new
            except NotPositive:
                pass
        raise NotPositiveDefiniteError(
            f"the covariance of these {n:,} rows is not positive definite, even with 1e-5 of its diagonal added. Give "
            "noise=..., or look at the kernel with mercer.check_kernel(kernel, X)."
        )

    def __getstate__(self) -> dict[str, Any]:
        """The fields: compiled programs cannot be pickled, and the rest is computed again when it is needed."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n = count_rows(self.X)
        parts = isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)
        return parts and self.y.shape == self.noise.shape == (n,)

    # -- what was computed -------------------------------------------------------------------------------------------

    @functools.cached_property
    def _at(self) -> At:
        found = Timeline(self.kernel, len(self.y)).at()
        assert found is not None
        return found

    @functools.cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self._times(self.X), kind="stable")

    def _times(self, Z: Inputs) -> np.ndarray:
        return times_of(required_form(self.kernel), Z)

    def _columns(self, X: Inputs, y: np.ndarray) -> np.ndarray:
        """y without the known mean, and the columns of unknown coefficients: (n, 1 + q)."""
        return np.column_stack([y - self.prior_mean(X), self.prior_mean.columns(X)])

    @functools.cached_property
    def _factor(self) -> Factor:
        order, noise = self._order, self.noise + self._at.white + self.jitter
        Y = self._columns(self.X, self.y)
        found = Factor(
            self._at.chain, self._times(self.X)[order], noise[order], Y[order], True, MIN_RELATIVE_INNOVATION
        )
        if not (math.isfinite(found.log_det) and np.isfinite(found.gram).all()):
            raise NotPositive("not finite")
        return found

    @functools.cached_property
    def _back(self) -> Backward:
        return self._factor.backward()

    @functools.cached_property
    def _root(self) -> np.ndarray:
        """Cholesky factor of H^T C^-1 H, plus the prior precision: (q, q)."""
        inner = self._factor.gram[1:, 1:]
        precision = self.prior_mean.precision
        try:
            return np.linalg.cholesky(inner if precision is None else inner + precision)
        except np.linalg.LinAlgError:
            raise NotPositiveDefiniteError(
                f"the coefficients of the mean {self.prior_mean!r} could not be estimated: the covariance of these "
                "rows is singular to rounding. Give noise=..., or a mean with fewer columns."
            ) from None

    @functools.cached_property
    def _estimate(self) -> np.ndarray:
        """Of the unknown coefficients: (q,)."""
        return np.linalg.solve(self._root.T, np.linalg.solve(self._root, self._factor.gram[1:, 0]))

    def _whitened(self, columns: np.ndarray) -> np.ndarray:
        """root^-1 columns^T: (q, s)."""
        return np.linalg.solve(self._root, columns.T) if columns.shape[1] else columns.T

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, gram.raw(Z), self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    # -- new times ---------------------------------------------------------------------------------------------------

    def _among(self, t: np.ndarray, through: bool = False) -> Iterator[Between]:
        """Times in order among the rows; forecasts need the last state only."""
        later = len(t) == 0 or t[0] >= self._factor.t[-1]
        return among(self._factor, None if later else self._back, t, through)

    def _moments(self, t: np.ndarray, own: slice = slice(None), variance: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """k(t, X) C^-1 [y, H] (s, 1 + q) and the variance (s,) given all rows, of the part with some of the states."""
        order = np.argsort(t, kind="stable")
        solved, variances = np.empty((len(t), self._factor.Y.shape[1])), np.zeros(len(t))
        for some in self._among(t[order]):
            piece, new, which = some.piece, some.new, order[some.which]
            h, g = _part(piece.matrices.left[new], own), _part(piece.matrices.right[new], own)
            g = g - np.einsum("ijk,ik->ij", piece.S[new], h)
            solved[which] = np.einsum("ij,ijk->ik", h, piece.c[new]) + np.einsum("ij,ijk->ik", g, some.f[new])
            if variance:
                variances[which] = np.einsum("ij,ij->i", h, g) - np.einsum("ij,ijk,ik->i", g, some.N[new], g)
        return solved, np.maximum(variances, 0.0)

    def mean(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z, variance=False)[0]

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs, variance: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """E f(z) and var f(z) (PRML 6.66, 6.67): (s,), (s,). Forecasts cost O(1) each; others at most O(n) in all."""
        Z = self._aligned(Z)
        solved, variances = self._moments(self._times(Z), variance=variance)
        H = self.prior_mean.columns(Z)
        mean = self.prior_mean(Z) + solved[:, 0] + (H - solved[:, 1:]) @ self._coefficient_estimate
        if variance:
            variances += self._at.white + np.sum(self._whitened(H - solved[:, 1:]) ** 2, axis=0)
        return mean, variances

    @property
    def _coefficient_estimate(self) -> np.ndarray:
        return self._estimate if self.prior_mean.unknown else np.zeros(0)

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def _conditional(self, t: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Numbers, transitions (k, m, m), left and right (k, m) of the process given the rows, at times in order."""
        sizes, m = self._at.sizes, len(self._factor.starts[0].T)
        running = np.zeros((m, m))
        for some in self._among(t, through=True):
            piece, new = some.piece, some.new
            Psi = np.empty((int(new.sum()), m, m))
            A, left, _ = piece.matrices
            loops().transitions(sizes, A, left, piece.G, piece.e, new, Psi, running)
            g = piece.G[new]
            yield some.which, Psi, left[new] - np.einsum("ijk,ik->ij", some.N[new], g), g

    def covariance(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        t = self._times(Z)
        order, s = np.argsort(t, kind="stable"), len(t)
        K, V = np.zeros((s, s)), np.zeros((s, len(self._factor.starts[0].T)))
        for which, Psi, left, right in self._conditional(t[order]):
            for i, A, h, g in zip(which, Psi, left, right, strict=True):
                V[:i] = V[:i] @ A.T
                V[i] = g
                K[i, : i + 1] = V[: i + 1] @ h
        K = K + np.tril(K, -1).T
        out = np.empty_like(K)
        out[np.ix_(order, order)] = K
        if self.prior_mean.unknown:
            S = self._whitened(self.prior_mean.columns(Z) - self._moments(t, variance=False)[0][:, 1:])
            out += S.T @ S
        out[np.diag_indices(s)] += self._at.white
        return out

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s). O(n + s), however many rows."""
        check_size(size)
        Z = self._aligned(Z)
        t, m = self._times(Z), len(self._factor.starts[0].T)
        order, s = np.argsort(t, kind="stable"), len(t)
        keys = jax.random.split(as_key(seed), 3)
        normals, out = normal(keys[0], (s, size)), np.empty((s, size))
        start, x, sizes = Start.zero(m, 0), np.zeros((m, size)), np.array([m], dtype=np.int64)
        for which, Psi, left, right in self._conditional(t[order]):
            k = len(which)
            e, G = np.empty(k), np.empty((k, m))
            A, none = Psi.reshape(k, m * m), np.empty((k, 0))
            loops().forward(
                sizes, A, left, right, np.zeros(k), none, start.T, start.b, -SAMPLED_INNOVATION, e, none.copy(), G,
                np.empty((k, m, m)), np.empty((k, m, 0)),
            )  # fmt: skip
            drawn = np.empty((k, size))
            loops().simulate(sizes, A, left, G, e, np.ascontiguousarray(normals[which]), x, drawn)
            out[order[which]] = drawn
        out += self.mean(Z)[:, None]
        if self.prior_mean.unknown:
            S = self._whitened(self.prior_mean.columns(Z) - self._moments(t, variance=False)[0][:, 1:])
            out += S.T @ normal(keys[1], (len(S), size))
        if self._at.white:
            out += math.sqrt(self._at.white) * normal(keys[2], (s, size))
        return out.T

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d). O(n) for each row of Z."""
        named = self._aligned(Z)
        names = column_names(named)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        Z, n = as_matrix(named), len(self.y)
        dmean, dvariance = self.prior_mean.slope(Z, names), gram.diagonal_slope(kernel, Z)
        dH, H = self.prior_mean.columns_slope(Z, names), self.prior_mean.columns(named)
        estimate = self._coefficient_estimate
        dmean += np.einsum("sqd,q->sd", dH, estimate)
        solved, a = np.empty_like(self._back.a), None
        solved[self._order] = self._back.a
        a, C_inv_H = solved[:, 0] - solved[:, 1:] @ estimate, solved[:, 1:]
        size = max(1, GRADIENT_VALUES // n)
        rows = gram.kept(self, self.kernel, self.X)
        for i in range(0, len(Z), size):
            part = slice(i, min(i + size, len(Z)))
            K = gram.between(kernel, Z[part], rows)
            factor = self._factor
            right = Factor(factor.chain, factor.t, factor.noise, K.T[self._order], False, factor.least)
            weights = np.empty((n, len(K)))
            weights[self._order] = right.backward().a
            dmean[part] += gram.slope(kernel, Z[part], rows, np.broadcast_to(a, (len(K), n)))
            if self.prior_mean.unknown:
                S = self._whitened(H[part] - K @ C_inv_H)
                back = np.linalg.solve(self._root.T, S)
                weights += C_inv_H @ back
                dvariance[part] += 2 * np.einsum("sqd,qs->sd", dH[part], back)
            dvariance[part] -= 2 * gram.slope(kernel, Z[part], rows, weights.T)
        return dmean, dvariance

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`: a term has its own states."""
        Z, out = self._aligned(Z), []
        t = self._times(Z)
        for part, (own, white) in zip(terms_of(self.kernel), states_of_terms(self.kernel), strict=True):
            solved, variances = self._moments(t, own)
            mean = solved[:, 0] - solved[:, 1:] @ self._coefficient_estimate
            out.append((part, mean, variances + white + np.sum(self._whitened(-solved[:, 1:]) ** 2, axis=0)))
        return out

    # -- more data ---------------------------------------------------------------------------------------------------

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "StatePosterior":
        """Given more data. Rows later than all so far go on from the last state, in O(1) each; others begin anew."""
        X = as_rows(self._aligned(X), self.kernel.reads)
        k = count_rows(X)
        if k == 0:
            return self
        y, noise = as_vector(y, k), np.broadcast_to(np.asarray(noise, dtype=float), (k,))
        t, mean = self._times(X), self.prior_mean
        rows = _stacked(self.X, copy_rows(X), self.kernel, self._needs_all_columns)
        both = appended(self.y, y), appended(self.noise, noise)
        if t.min() >= self._factor.t[-1]:
            order = np.argsort(t, kind="stable")
            new = StatePosterior(self.kernel, rows, *both, mean, self.jitter)
            try:
                factor = self._factor.extended(
                    t[order], (noise + self._at.white + self.jitter)[order], self._columns(X, y)[order]
                )
            except NotPositive:
                return StatePosterior.given(self.kernel, rows, *both, mean)
            known = {"_at": self._at, "_order": appended(self._order, len(self.y) + order), "_factor": factor}
            new.__dict__.update(known | {"_residual": self._residual})
            return new
        return StatePosterior.given(self.kernel, rows, *both, mean)

    def rescaled(self, kernel: Kernel, factor: float) -> "StatePosterior":
        """As `GP.rescaled`; by solving again."""
        return StatePosterior.given(kernel, self.X, self.y, self.noise * factor, self.prior_mean)

    def latent(self) -> "StatePosterior":
        """Without the kernel's white noise, which becomes noise of the measurements."""
        latent, white = split_white(self.kernel)
        if latent is None or not white:
            return self
        return StatePosterior(latent, self.X, self.y, self.noise + white, self.prior_mean, self.jitter)

    # -- diagnostics -------------------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.coefficients`."""
        if not self.prior_mean.unknown:
            return np.zeros(0), np.zeros((0, 0))
        half = np.linalg.inv(self._root)
        return self._estimate, half.T @ half

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.trend`."""
        Z = self._aligned(Z)
        H, (estimate, covariance) = self.prior_mean.columns(Z), self.coefficients()
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    @property
    def a(self) -> np.ndarray:
        """C^-1 (y - m), or P (y - m) with unknown coefficients: (n,)."""
        a = np.empty(len(self.y))
        a[self._order] = self._back.a[:, 0] - self._back.a[:, 1:] @ self._coefficient_estimate
        return a

    def log_evidence(self) -> float:
        """As `GP.log_evidence`."""
        factor, contrasts = self._factor, len(self.y)
        log_det, quadratic = factor.log_det, float(factor.gram[0, 0])
        if self.prior_mean.unknown:
            precision = self.prior_mean.precision
            quadratic -= float(self._estimate @ factor.gram[1:, 0])
            log_det += 2 * float(np.log(np.diag(self._root)).sum()) - log_unit(factor.Y[:, 1:], precision)
            contrasts -= len(self._root) if precision is None else 0
        return -0.5 * (log_det + quadratic + contrasts * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.leave_one_out`."""
        diagonal, order = np.empty(len(self.y)), self._order
        diagonal[order] = self._back.diagonal
        if self.prior_mean.unknown:
            half = np.empty((len(self.y), len(self._root)))
            half[order] = self._whitened(self._back.a[:, 1:]).T
            left = diagonal - np.einsum("ij,ij->i", half, half)
            diagonal = np.where(left > len(left) * np.finfo(float).eps * diagonal, left, diagonal)
        return self.y - self.a / diagonal, 1 / diagonal

    @functools.cached_property
    def _residual(self) -> float:
        """Relative residual |C a - (y - m)| / |y - m|; where rows were added later, of those before."""
        factor, estimate = self._factor, self._coefficient_estimate
        target = factor.Y[:, 0] - factor.Y[:, 1:] @ estimate
        a = self._back.a[:, 0] - self._back.a[:, 1:] @ estimate
        return float(np.linalg.norm(factor.times(a[:, None])[:, 0] - target) / (np.linalg.norm(target) or 1.0))

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`; the condition number is that of D in C = L D L^T, a lower bound on that of C."""
        factor = self._factor
        return {"jitter": self.jitter, "condition": factor.largest / factor.smallest, "residual": self._residual}


def _part(vectors: np.ndarray, own: slice) -> np.ndarray:
    """Vectors (s, m) with other entries zero."""
    if own == slice(None):
        return vectors
    out = np.zeros_like(vectors)
    out[:, own] = vectors[:, own]
    return out


def _stacked(X: Inputs, more: Inputs, kernel: Kernel, all_needed: bool) -> Inputs:
    """As `stack_rows`; of matrices, whose rows so far were checked before, without reading those again."""
    if isinstance(X, np.ndarray) and isinstance(more, np.ndarray) and X.shape[1:] == more.shape[1:]:
        return appended(X, more)
    return stack_rows(X, more, kernel.reads, all_needed)


def _mean_diagonal(kernel: Kernel, X: Inputs, noise: np.ndarray) -> float:
    return float(np.mean(gram.diagonal(kernel, X) + noise))
