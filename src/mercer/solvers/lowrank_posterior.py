"""Posterior through the weights of centres: M x M matrices, whatever the number of rows."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, NotPositiveDefiniteError, ParameterError
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
from mercer.core.random import normal
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.posterior import Posterior
from mercer.gp.process import check_size
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.cross import cross
from mercer.kernels.substitution import by_position
from mercer.linalg.cholesky import Cholesky
from mercer.linalg.cholesky import root as root_of
from mercer.linalg.lowrank import Collapsed, CoreRoot, Sums, unit_of
from mercer.solvers.lowrank_evidence import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class LowRankPosterior(Posterior):
    """p(w | y) = N(B^-1 c, B^-1) of the weights of Phi = K_nm L^-T, and of the coefficients of the mean.

    Of the rows only ``sums`` are needed; ``X``, ``y`` and ``noise`` are those rows that are kept for leave-one-out,
    all of them or some. A new row has the variance of its weights, and what the centres leave of its own,
    k(z, z) - phi^T phi, which "nystrom" leaves out.
    """

    kernel: Kernel
    X: Any
    y: np.ndarray
    noise: np.ndarray
    prior_mean: MeanFunction
    approximation: str
    centers: Any
    lower: np.ndarray  # L, of the covariance of the centres
    squares: np.ndarray  # of `Sums`
    counts: np.ndarray  # the other fields of `Sums`
    of_columns: np.ndarray  # H^T H
    quadratic: float

    # -- from data ---------------------------------------------------------------------------------------------------

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None, approximation: str,
        centers: Inputs | Callable[..., Inputs],
    ) -> "LowRankPosterior":  # fmt: skip
        """``centers``: rows, or what chooses them."""
        # A copy, because the caller may modify the rows later. Prepared ones are not the caller's.
        n, rows = count_rows(X), X if isinstance(X, gram.Gram) else gram.Gram(kernel, copy_rows(X))
        rows = rows.of(kernel)
        y, noise = as_vector(y, n).copy(), np.broadcast_to(np.asarray(noise, dtype=float), (n,)).copy()
        mean = (MeanFunction() if mean is None else mean).fit(rows.X)
        r = y - mean(rows.X)
        if callable(centers):
            centers = centers(kernel, rows, r, noise)
        new = cls._collected(kernel, mean, approximation, centers, [(rows, r, noise)], rows.X, y, noise)
        gram.keep(new, rows)
        return new

    @classmethod
    def _collected(
        cls, kernel: Kernel, mean: MeanFunction, approximation: str, centers: Inputs, parts: Any, X: Inputs,
        y: np.ndarray, noise: np.ndarray, root: CoreRoot | None = None,
    ) -> "LowRankPosterior":  # fmt: skip
        """From parts of the rows: (prepared rows, y - mean, noise variances), one after the other; ``X``, ``y``, and
        ``noise`` are those to keep. ``root``: of the centres, if it is known."""
        theta, total, of_columns = np.asarray(to_free(kernel)), None, None
        whole, count = None, 0
        for part, r, variances in parts:
            at = cross(part.kernel, part.X, part.rows, centers).at(theta)
            if root is None:
                first = Rows.of(at, variances)
                if first is None:
                    raise NotPositiveDefiniteError(_failed(kernel))
                root = first.root
            own = Rows(at, root)
            H = mean.columns(part.X)
            sums = own.sums(variances + own.white, H, r, approximation == "fitc")
            if sums is None:
                raise NotPositiveDefiniteError(_failed(kernel))
            total = sums if total is None else total.plus(sums)
            of_columns = H.T @ H + (0.0 if of_columns is None else of_columns)
            whole, count = (own, H, r, variances + own.white), count + 1
        if total is None:
            raise DataError("there are no rows to learn from.")
        assert root is not None
        assert of_columns is not None
        new = cls._of(
            kernel, X, y, noise, mean, approximation, take_rows(centers, root.kept), root.lower, total, of_columns
        )
        if new.solved.cancelled and whole is not None and count == 1:
            new = dataclasses.replace(new, quadratic=new._squares(*whole))
        return new

    @classmethod
    def _of(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: np.ndarray, mean: MeanFunction, approximation: str,
        centers: Inputs, lower: np.ndarray, sums: Sums, of_columns: np.ndarray,
    ) -> "LowRankPosterior":  # fmt: skip
        return cls(
            kernel, X, y, noise, mean, approximation, centers, lower, sums.squares, _numbers(sums), of_columns, math.nan
        )

    @classmethod
    def restored(cls, **fields: Any) -> "LowRankPosterior":
        """From the fields of a file: a triangle in LAPACK's order, for the same digits."""
        for name in ("lower", "squares"):
            fields[name] = np.asfortranarray(fields[name])
        return cls(**fields)

    def _squares(self, rows: Rows, H: np.ndarray, r: np.ndarray, noise: np.ndarray) -> float:
        """y^T C^-1 y from the rows themselves."""
        found = self.solved

        def work(tile: int) -> float:
            part, Phi = rows.tiles[tile], rows.features(tile)
            assert Phi is not None
            d = noise[part]
            if self.approximation == "fitc":
                d = d + np.maximum(rows.variance(tile) - np.einsum("ij,ij->i", Phi, Phi), 0.0)
            return float(np.sum((r[part] - np.column_stack([Phi, H[part]]) @ found.mean) ** 2 / d))

        return found.refined(float(rows.each(work, lambda a, b: a + b))).quadratic

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n, M = count_rows(self.X), count_rows(self.centers)
        q = len(self.of_columns)
        shapes = self.lower.shape == (M, M) and self.squares.shape == (M + q + 1,) * 2 and self.counts.shape == (6,)
        parts = isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction)
        return shapes and parts and self.y.shape == self.noise.shape == (n,)

    @functools.cached_property
    def sums(self) -> Sums:
        log_noise, rows, missing, left, variance, least = map(float, self.counts)
        return Sums(np.asfortranarray(self.squares), log_noise, int(rows), missing, left, variance, least)

    @functools.cached_property
    def solved(self) -> Collapsed:
        """The posterior of the weights."""
        unit = unit_of(self.of_columns, self.prior_mean.precision)
        found = Collapsed.of(self.sums, self._M, self.prior_mean.precision, unit)
        if found is None:
            raise NotPositiveDefiniteError(_failed(self.kernel))
        if math.isfinite(self.quadratic):
            found = dataclasses.replace(found, quadratic=self.quadratic)
        return found

    @property
    def _M(self) -> int:
        return len(self.lower)

    @property
    def n_rows(self) -> int:
        """Number of rows that it is conditioned on."""
        return self.sums.rows

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "LowRankPosterior":
        """Given more data, with the same centres: the sums add up."""
        X, m = self._aligned(X), count_rows(X)
        if not m:
            return self
        y, noise = as_vector(y, m), np.broadcast_to(np.asarray(noise, dtype=float), (m,)).copy()
        X = copy_rows(X)
        together = stack_rows(self.X, X, self.kernel.reads, self._needs_all_columns)
        return self._with(
            [(gram.Gram(self.kernel, X), y - self.prior_mean(X), noise)], together, np.concatenate([self.y, y]),
            np.concatenate([self.noise, noise]),
        )  # fmt: skip

    def _with(self, parts: Any, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "LowRankPosterior":
        more = LowRankPosterior._collected(
            self.kernel, self.prior_mean, self.approximation, self.centers, parts, X, y, noise, self._core
        )  # fmt: skip
        return LowRankPosterior._of(
            self.kernel, X, y, noise, self.prior_mean, self.approximation, self.centers, self.lower,
            self.sums.plus(more.sums), self.of_columns + more.of_columns,
        )  # fmt: skip

    def of_parts(self, parts: Any, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "LowRankPosterior":
        """With the same centres, from other rows, which come in parts: prepared rows, y minus the mean, and noise
        variances. ``X``, ``y`` and ``noise`` are those to keep."""
        return LowRankPosterior._collected(
            self.kernel, self.prior_mean, self.approximation, self.centers, parts, X, y, noise, self._core
        )  # fmt: skip

    def with_scales(self, kernel: Kernel, amplitude: float, noise: float) -> "LowRankPosterior":
        """With ``amplitude`` times the covariance of the function, which is ``kernel``, and ``noise`` times the noise
        variances."""
        new = self.rescaled(kernel, amplitude)
        sums = new.sums.with_noise(noise / amplitude)
        return dataclasses.replace(
            new, squares=sums.squares, counts=_numbers(sums), noise=self.noise * noise, quadratic=math.nan
        )  # fmt: skip

    def best_scales(self, floor: float = 0.0) -> tuple[float, float]:
        """Factors of the function's covariance and of the noise variances, the latter at least ``floor``, at which the
        evidence is largest. It takes M x M matrices, and no pass over the rows. With "fitc" the factors are equal."""
        from scipy.optimize import minimize  # takes a while to import

        together, least = self.approximation == "fitc", math.log(max(floor, 1e-12))

        def loss(logs: np.ndarray) -> float:
            amplitude, noise = np.exp(logs[0]), np.exp(logs[-1])
            sums = self.sums.rescaled(amplitude, self._M).with_noise(noise / amplitude)
            found = Collapsed.of(sums, self._M, self.prior_mean.precision, self.solved.unit)
            if found is None or not found.quadratic > 0:
                return 1e300
            bound = 0.5 * sums.missing if self.approximation == "variational" else 0.0
            return (bound - found.log_evidence()) / self.n_rows

        if together:  # y^T C^-1 y / n is the best multiple of C
            factor = self.solved.quadratic / max(self.solved.contrasts(), 1)
            return factor, factor
        simplex = np.array([[0.0, max(0.0, least)], [0.3, max(0.0, least)], [0.0, max(0.2, least + 0.2)]])
        found = minimize(
            loss, simplex[0], method="Nelder-Mead", bounds=[(-14, 14), (least, 14)],
            options={"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-9, "maxiter": 200},
        )  # fmt: skip
        return float(np.exp(found.x[0])), float(np.exp(found.x[1]))

    # -- features of new rows ----------------------------------------------------------------------------------------

    @property
    def _rows(self) -> gram.Gram:
        """The rows that are kept, prepared once."""
        return gram.kept(self, self.kernel, self.X)

    def _aligned(self, Z: Inputs) -> Inputs:
        return align_columns(self.X, Z, self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    @functools.cached_property
    def _centers(self) -> gram.Gram:
        return gram.Gram(self._rows.kernel, self.centers)

    @property
    def _root(self) -> Cholesky:
        return Cholesky(self.lower)

    @property
    def _core(self) -> CoreRoot:
        return CoreRoot(np.arange(self._M), self.lower)

    def _features(self, Z: Inputs, term: Kernel | None = None) -> np.ndarray:
        """Phi (s, M), of one term of the kernel or of all."""
        centers = self._centers if term is None else self._centers.of(term)
        K = gram.between(centers.kernel, Z, centers)
        return self._root.half_solve(K.T).T

    def _columns(self, Z: Inputs) -> np.ndarray:
        """[Phi, H]: (s, M + q)."""
        return np.column_stack([self._features(Z), self.prior_mean.columns(Z)])

    @property
    def _white(self) -> float:
        return split_white(self.kernel)[1]

    def _own(self, Z: Inputs, Phi: np.ndarray, term: Kernel | None = None) -> np.ndarray:
        """Variance of new rows that their weights do not have: (s,)."""
        kernel = self._centers.kernel if term is None else term
        if self.approximation == "nystrom":
            return np.full(len(Phi), split_white(kernel)[1])
        return gram.diagonal(kernel, Z) - np.einsum("ij,ij->i", Phi, Phi)

    # -- moments -----------------------------------------------------------------------------------------------------

    def mean(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z, variance=False)[0]

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs, variance: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """E f(z) = m(z) + F w and var f(z) = |L_B^-1 F^T|^2 + k(z, z) - |phi|^2: (s,), (s,)."""
        found = self.solved

        def moments(some: Inputs) -> tuple[np.ndarray, np.ndarray]:
            F = self._columns(some)
            mean = self.prior_mean(some) + F @ found.mean
            if not variance:
                return mean, np.empty(0)
            half = found.factor.half_solve(F.T)
            own = self._own(some, F[:, : self._M])
            return mean, np.maximum(np.einsum("ij,ij->j", half, half) + own, 0.0)

        parts = gram.by_pieces(moments, self._aligned(Z), len(found.mean))
        means, variances = zip((np.empty(0), np.empty(0)), *parts, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def covariance(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        F = self._columns(Z)
        half = self.solved.factor.half_solve(F.T)
        return half.T @ half + self._left_together(Z, F[:, : self._M])

    def _left_together(self, Z: Inputs, Phi: np.ndarray) -> np.ndarray:
        """Covariance of new rows that their weights do not have: (s, s)."""
        if self.approximation == "nystrom":
            return self._white * np.eye(len(Phi))
        return gram.within(self._centers.kernel, Z) - Phi @ Phi.T

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s)."""
        check_size(size)
        Z, found = self._aligned(Z), self.solved
        F = self._columns(Z)
        if not len(F):
            return np.zeros((size, 0))
        left = self._left_together(Z, F[:, : self._M])
        # A difference of prior covariances, so its rounding errors are relative to the prior variance.
        R = root_of(left, scale=float(gram.diagonal(self._centers.kernel, Z).max()))
        z = normal(seed, (len(found.mean) + R.shape[1], size))
        w = found.mean[:, None] + found.factor.half_solve(z[: len(found.mean)], transposed=True)
        return self.prior_mean(Z) + (F @ w + R @ z[len(found.mean) :]).T

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d), (s, d)."""
        Z = self._aligned(Z)
        names = column_names(Z)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        F, values, found, M = self._columns(Z), as_matrix(Z), self.solved, self._M
        centers = gram.Gram(kernel, as_matrix(self.centers))
        dH = self.prior_mean.columns_slope(values, names)
        through = self._root.half_solve(found.mean[:M], transposed=True)
        dmean = self.prior_mean.slope(values, names) + np.einsum("sqd,q->sd", dH, found.mean[M:])
        dmean += gram.slope(kernel, values, centers, np.broadcast_to(through, (len(F), M)))
        solved = found.factor.solve(np.asfortranarray(F.T)).T
        inner, dvariance = solved[:, :M], 2 * np.einsum("sqd,sq->sd", dH, solved[:, M:])
        if self.approximation != "nystrom":
            inner = inner - F[:, :M]
            dvariance += gram.diagonal_slope(kernel, values)
        weights = self._root.half_solve(np.asfortranarray(inner.T), transposed=True).T
        return dmean, dvariance + 2 * gram.slope(kernel, values, centers, np.ascontiguousarray(weights))

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """As `GP.terms`: a term has features of its own, of the same weights."""
        Z, found, M = self._aligned(Z), self.solved, self._M

        def moments(part: Kernel, some: Inputs) -> tuple[np.ndarray, np.ndarray]:
            Phi = self._features(some, part)
            padded = np.zeros((len(found.mean), len(Phi)), order="F")
            padded[:M] = Phi.T
            half = found.factor.half_solve_in_place(padded)
            variance = np.einsum("ij,ij->j", half, half) + self._own(some, Phi, part)
            return Phi @ found.mean[:M], np.maximum(variance, 0.0)

        out = []
        for part in terms_of(self._centers.kernel):
            pieces = gram.by_pieces(functools.partial(moments, part), Z, len(found.mean))
            means, variances = zip((np.empty(0), np.empty(0)), *pieces, strict=True)
            out.append((part, np.concatenate(means), np.concatenate(variances)))
        return out

    def rescaled(self, kernel: Kernel, factor: float) -> "LowRankPosterior":
        """As `GP.rescaled`: the sums are rescaled."""
        if self.prior_mean.precision is not None:
            raise ParameterError("the prior variance of a trend does not scale with the covariance.")
        sums = self.sums.rescaled(factor, self._M)
        new = dataclasses.replace(
            self, kernel=kernel, noise=self.noise * factor, lower=self.lower * math.sqrt(factor),
            squares=sums.squares, counts=_numbers(sums), quadratic=self.quadratic / factor,
        )  # fmt: skip
        gram.keep(new, self._rows)
        return new

    def latent(self) -> "LowRankPosterior":
        """As `GP.latent`: white noise is not among the weights."""
        latent, white = split_white(self.kernel)
        if latent is None or not white:
            return self
        new = dataclasses.replace(self, kernel=latent, noise=self.noise + white)
        gram.keep(new, self._rows)
        return new

    # -- diagnostics -------------------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        return self.X, self.y, self.noise

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.coefficients`: the last of the weights."""
        found, M = self.solved, self._M
        last = found.factor.half_solve(np.asfortranarray(np.eye(len(found.mean))[:, M:]))
        return found.mean[M:], last.T @ last

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.trend`."""
        Z = self._aligned(Z)
        H, (estimate, covariance) = self.prior_mean.columns(Z), self.coefficients()
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    def log_evidence(self) -> float:
        """ln p(y) of the approximation; for "variational" the bound."""
        bound = 0.5 * self.sums.missing if self.approximation == "variational" else 0.0
        return self.solved.log_evidence() - bound

    def gap(self) -> float:
        """By how much the exact log evidence can be larger than the variational bound, at most, in nats; NaN for
        "fitc"."""
        if self.approximation == "fitc":
            return math.nan
        lower = self.solved.log_evidence() - 0.5 * self.sums.missing
        return max(self.solved.upper_bound() - lower, 0.0)

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the rows that are kept, the centres held (RW06 5.12); with the variance that the centres leave."""
        found, means, variances = self.solved, [], []
        noise = self.noise + self._white
        for part in gram.pieces(len(self.y), len(found.mean)):
            some = self._rows[part]
            F = self._columns(some)
            left = gram.diagonal(self._centers.kernel, some) - self._white - np.einsum(
                "ij,ij->i", F[:, : self._M], F[:, : self._M]
            )  # fmt: skip
            left = np.maximum(left, 0.0)
            d = noise[part] + left if self.approximation == "fitc" else noise[part]
            half = found.factor.half_solve(F.T)
            share = 1 - np.einsum("ij,ij->j", half, half) / d
            # If only this row determines the weight with a flat prior, that weight keeps its estimate from all rows.
            share = np.where(share > self.n_rows * np.finfo(float).eps, share, 1.0)
            e = self.y[part] - self.prior_mean(some) - F @ found.mean
            means.append(self.y[part] - e / share)
            variances.append(d / share + (left if self.approximation in ("variational", "dtc") else 0.0))
        return np.concatenate([np.empty(0), *means]), np.concatenate([np.empty(0), *variances])

    def residual(self) -> float:
        """Relative residual |B w - c| / |c| of the normal equations."""
        found, S = self.solved, self.sums.symmetric()
        c = S[-1, :-1]
        B = S[:-1, :-1] + found.prior
        return float(np.linalg.norm(B @ found.mean - c) / (np.linalg.norm(c) or 1.0))

    def numerics(self) -> dict[str, float]:
        """As `GP.numerics`, of B; the number of centres, the share of the variance that they leave, and the `gap`."""
        return {
            "jitter": 0.0,
            "condition": self.solved.factor.condition(),
            "residual": self.residual(),
            "centers": self._M,
            "left": self.sums.left / self.sums.variance if self.sums.variance > 0 else 0.0,
            "gap": self.gap(),
        }


def _numbers(sums: Sums) -> np.ndarray:
    return np.array([sums.log_noise, sums.rows, sums.missing, sums.left, sums.variance, sums.least_noise], dtype=float)


def _failed(kernel: Kernel) -> str:
    return (
        f"the covariance of the centres under {kernel!r} is not finite or zero, or the coefficients of the mean are "
        "not determined by these rows. Look at the kernel with mercer.check_kernel(kernel, X), or give noise=... ."
    )
