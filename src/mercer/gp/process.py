"""Gaussian processes: distributions over functions, prior and posterior."""

import copy
import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from mercer import gram
from mercer.core import machine
from mercer.core.errors import NotPositiveDefiniteError, NumericalWarning, ParameterError
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
    take_rows,
)
from mercer.core.parameters import evolve
from mercer.core.precision import is_traced
from mercer.core.random import as_key, normal
from mercer.distributions import Normal
from mercer.gp.constraints import MIN_SITE, SOFTNESS, interval_sites
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import as_variances
from mercer.gp.observed import ObservedMean
from mercer.gp.posterior import Posterior
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_covariance
from mercer.kernels.observed import Functionals
from mercer.kernels.observed import Observed as ObservedKernel
from mercer.kernels.operators import Value, as_operators
from mercer.kernels.substitution import by_position
from mercer.linalg.cholesky import Cholesky, clear_upper, factor, random_root, root
from mercer.linalg.jitter import SMALL_JITTER
from mercer.linalg.trend import Trend, log_unit

MAX_DENSE_SAMPLES = 4000  # inputs up to which samples come from one dense covariance matrix
MIN_ROOT_RANK = 256  # of a low-rank root, however many inputs there are
MAX_INDEPENDENT_SHARE = 1e-3  # of the variance sampled independently at each input, without a warning

Seed = int | np.random.Generator | jax.Array | None


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """Data a process is conditioned on: inputs, targets, noise variances, the factor of C and a = C^-1 (y - m).

    With unknown coefficients in the mean, m includes their estimates, and ``trend`` holds their posterior.
    """

    X: Inputs
    y: np.ndarray
    noise: np.ndarray
    factor: Cholesky
    a: np.ndarray
    trend: Trend | None = None
    residual: float | None = None  # relative, of the linear system solved for a, if it was computed

    def consistent(self) -> bool:
        """Whether the shapes agree, for `mercer.load`."""
        n = count_rows(self.X)
        trend = self.trend is None or self.trend.H.shape[0] == n
        vectors = self.y.shape == self.noise.shape == self.a.shape == (n,)
        return vectors and self.factor.lower.shape == (n, n) and trend

    @classmethod
    def of(
        cls, X: Inputs, y: np.ndarray, noise: np.ndarray, factor: Cholesky, prior_mean: MeanFunction,
        diagonal: np.ndarray | None = None,
    ) -> "Observed":  # fmt: skip
        """``diagonal``: that of C, if the rest of C is still above the diagonal of the factor: then the residual comes
        from it, and it is cleared."""
        target = y - prior_mean(X)
        a, trend, residual = factor.solve(target), None, None
        if prior_mean.unknown:
            H = prior_mean.columns(X)
            try:
                trend = Trend.of(H, factor.solve(H), prior_mean.precision)
            except np.linalg.LinAlgError:
                raise NotPositiveDefiniteError(
                    f"the coefficients of the mean {prior_mean!r} could not be estimated: the covariance of these "
                    "rows is singular to rounding. Give noise=..., or a mean with fewer columns."
                ) from None
            a = trend.contrasted(a, target)
            target = target - H @ trend.coefficients(target)
        if diagonal is not None:
            residual = factor.residual(diagonal, a, target)
            clear_upper(factor.lower)
        return cls(X, y, noise, factor, a, trend, residual)


class GP(Posterior):
    """A Gaussian process with a mean and a covariance function, the kernel (PRML 6.4.1).

    ``mean`` is a number, a function of one input, or has unknown coefficients, which are integrated out (RW06 2.7), in
    which case the process must be conditioned on data before anything else: "unknown" is a constant with a flat prior
    (ordinary kriging), "linear" a constant and all inputs, a list of columns a constant and these, a basis from
    `mercer.basis` its functions (universal kriging); see also `mercer.means`. The posterior is again a GP, to be
    sampled or conditioned again. A kernel known not to be positive semidefinite is refused unless
    ``allow_invalid=True``.

    >>> from mercer import kernels as k
    >>> f = GP(k.RBF())
    >>> g = f.condition([0.0, 1.0], [1.0, 2.0], noise=0.1)
    >>> g.mean([0.0]).round(3), g.variance([0.0]).round(3)
    (array([1.013]), array([0.087]))
    """

    def __init__(self, kernel: Any, mean: Any = 0.0, *, allow_invalid: bool = False) -> None:
        self.kernel: Kernel = as_covariance(kernel, "a Gaussian process", allow_invalid)
        self.prior_mean = MeanFunction.of(mean)
        self.allow_invalid = allow_invalid
        self.observed: Observed | None = None

    # -- moments -------------------------------------------------------------------------------------------------

    def mean(self, Z: Inputs) -> np.ndarray:
        """E f(z): (s,). For a posterior m(z) + k(z, X) C^-1 (y - m(X)) (PRML 6.66)."""
        Z = self._aligned(Z)
        mean = self._mean_with_trend(Z)
        if self.observed is not None:
            mean += self.rows().across(Z, self.observed.a)
        return mean

    def variance(self, Z: Inputs) -> np.ndarray:
        """var f(z), without observation noise: (s,) (PRML 6.67)."""
        return self.moments(Z)[1]

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance together: (s,), (s,). Computed in blocks of rows, with bounded temporary memory."""
        Z = self._aligned(Z)
        mean, variance = self._mean_with_trend(Z), gram.diagonal(self.kernel, Z)
        if self.observed is not None:
            H = self.prior_mean.columns(Z)
            for part, V, S in self._whitened_pieces(self.kernel, self.observed, Z, H, mean):
                variance[part] += np.einsum("ij,ij->j", S, S) - np.einsum("ij,ij->j", V, V)
            np.maximum(variance, 0.0, out=variance)  # rounding, relative to the prior variance
        return mean, variance

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Estimates of the unknown coefficients of the mean's columns, and their covariance: (q,), (q, q)."""
        if not self.prior_mean.unknown:
            return np.zeros(0), np.zeros((0, 0))
        observed = self.observations()
        assert observed.trend is not None
        return observed.trend.coefficients(observed.y - self.prior_mean(observed.X)), observed.trend.covariance()

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """The prior mean with estimated coefficients, and its variance: (s,), (s,)."""
        Z = self._aligned(Z)
        (estimate, covariance), H = self.coefficients(), self.prior_mean.columns(Z)
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    def _mean_with_trend(self, Z: Inputs) -> np.ndarray:
        """Prior mean plus the estimate of its unknown part."""
        if not self.prior_mean.unknown:
            return self.prior_mean(Z)
        estimate = self.coefficients()[0]
        return self.prior_mean(Z) + self.prior_mean.columns(Z) @ estimate

    def _whitened_pieces(
        self, kernel: Kernel, observed: Observed, Z: Inputs, H: np.ndarray, mean: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield, for each block of rows of Z, L^-1 k(X, Z) and the contribution of the uncertain trend
        (`Trend.uncertainty_root`), and add k(Z, X) a to ``mean``. Blocks share memory. ``H``: design matrix at Z."""
        many = len(mean) > len(observed.y)
        for part, K in self.rows().of(kernel).blocks(Z):
            mean[part] += K @ observed.a
            S = np.zeros((0, len(K))) if observed.trend is None else observed.trend.uncertainty_root(H[part], K)
            yield part, observed.factor.half_solve_in_place(K.T, many), S

    def rows(self) -> gram.Gram:
        """Operator of the kernel on the observed inputs, prepared once."""
        observed = self.observations()
        return gram.kept(observed, self.kernel, observed.X)

    def covariance(self, Z: Inputs) -> np.ndarray:
        """cov(f(z), f(z')), without observation noise: (s, s)."""
        Z = self._aligned(Z)
        K = gram.within(self.kernel, Z)
        if self.prior_mean.unknown:
            self.observations()
        if self.observed is not None:
            cross = gram.between(self.kernel, Z, self.rows()).T
            if self.observed.trend is not None:
                S = self.observed.trend.uncertainty_root(self.prior_mean.columns(Z), cross.T)
                K += S.T @ S
            V = self.observed.factor.half_solve(cross)
            K -= V.T @ V
        return K

    def _aligned(self, Z: Inputs, *others: Any) -> Inputs:
        """Z, with the columns of a frame in the order of the observed inputs, which is the order of the parameters."""
        if is_traced((self.kernel, Z, others)):
            raise ParameterError(
                "a GP works on plain numbers, outside jax.jit and jax.grad: it calls LAPACK. Kernels can be traced."
            )
        if isinstance(self.kernel, ObservedKernel) and not isinstance(Z, gram.Gram):
            return self.kernel.functionals.coded(Z)
        return Z if self.observed is None else align_columns(self.observed.X, Z, self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.needs_all_columns

    # -- samples -------------------------------------------------------------------------------------------------

    def sample(self, X: Inputs, size: int = 1, seed: Seed = 0) -> np.ndarray:
        """Sample paths at the rows of X: (size, n). The same seed gives the same paths."""
        check_size(size)
        X, n = self._aligned(X), count_rows(X)
        if self.prior_mean.unknown:
            self.observations()
        if n > MAX_DENSE_SAMPLES:
            return self._sample_low_rank(X, size, seed)
        scale = float(np.max(gram.diagonal(self.kernel, X))) if n else 0.0
        # Rounding errors of a posterior covariance are relative to the prior variance.
        R = root(self.covariance(X), scale=scale) if n else np.zeros((0, 0))
        return self.mean(X) + normal(seed, (size, n))[:, : R.shape[1]] @ R.T

    def _sample_low_rank(self, Z: Inputs, size: int, seed: Seed) -> np.ndarray:
        """Samples at more inputs than a dense covariance matrix has memory for.

        A sample f of the prior, at Z and at the observed inputs, comes from a low-rank root of the joint covariance.
        Matheron's rule makes it one of the posterior: f(Z) + k(Z, X) C^-1 (y - f(X) - noise).
        """
        latent, white = split_white(self.kernel)
        observed = self.observed
        everywhere = Z if observed is None else stack_rows(Z, observed.X, self.kernel.reads, self._needs_all_columns)
        s, total = count_rows(Z), count_rows(everywhere)
        first, second, third, pivots = jax.random.split(as_key(seed), 4)
        f = np.zeros((size, total))
        if latent is not None:
            diagonal = gram.diagonal(latent, everywhere)
            R, left = random_root(
                gram.Gram(latent, everywhere).some, diagonal,
                max_rank=machine.rows_within(machine.ROOT_BYTES, total, MIN_ROOT_RANK),
                tolerance=1e-9 * float(diagonal.max(initial=0.0)),
                rng=np.random.default_rng(np.asarray(jax.random.key_data(pivots))),
            )  # fmt: skip
            f = normal(first, (size, R.shape[1])) @ R.T + normal(second, (size, total)) * np.sqrt(left)
            share = float(left.sum() / diagonal.sum())
            if share > MAX_INDEPENDENT_SHARE:
                warnings.warn(
                    f"{total:,} inputs are too many for one joint sample from so rough a kernel: {share:.1%} of the "
                    "variance was sampled independently at each input. Sample at fewer inputs at a time.",
                    NumericalWarning,
                    stacklevel=4,
                )
        keys = jax.random.split(third, 2)
        out = self.prior_mean(Z) + f[:, :s] + np.sqrt(white) * normal(keys[0], (size, s))
        if observed is not None:
            noise = np.sqrt(observed.noise + white) * normal(keys[1], (size, total - s))
            residual = observed.y - self.prior_mean(observed.X) - f[:, s:] - noise
            weights = observed.factor.solve(residual.T)
            if observed.trend is not None:
                weights = observed.trend.contrasted(weights, residual.T)
                out += (self.prior_mean.columns(Z) @ observed.trend.coefficients(residual.T)).T
            out += self.rows().across(Z, weights).T
        return out

    # -- data ----------------------------------------------------------------------------------------------------

    def log_likelihood(self, X: Inputs, y: ArrayLike, noise: ArrayLike = 0.0) -> float:
        """ln p(y | X) with independent Gaussian noise of the given variance (PRML 6.69), given the observed data."""
        X, n = self._aligned(X, y, noise), count_rows(X)
        y, noise = as_vector(y, n), as_variances(noise, n)
        if n == 0:
            return 0.0
        if self.prior_mean.unknown:
            rows = gram.Gram(self.kernel, X)
            both = self._with(rows, y, noise, self._extend(rows, n, noise))
            if self.observed is None:
                return both.log_evidence()
            # The contrasts of all rows, and of those observed before, are each along directions of unit length.
            H, units = self.prior_mean.columns, self.prior_mean.precision
            grown = log_unit(H(both.observations().X), units) - log_unit(H(self.observed.X), units)
            return both.log_evidence() - self.log_evidence() - 0.5 * grown
        L, residual = self._extend(X, n, noise), y - self.prior_mean(X)
        if self.observed is None:
            white = L.half_solve(residual)
        else:
            # ln p(y2 | y1) takes the new part of the whitened residual and of the log-determinant.
            before = self.observed.y - self.prior_mean(self.observed.X)
            white = L.half_solve(np.concatenate([before, residual]))[-n:]
        half_log_det = float(np.sum(np.log(np.diag(L.lower)[-n:])))
        return -0.5 * float(white @ white) - half_log_det - 0.5 * n * math.log(2 * math.pi)

    def log_evidence(self) -> float:
        """ln p(y) of the observed data (PRML 6.69); with unknown coefficients of a flat prior, the restricted
        likelihood: that of the contrasts orthogonal to their columns."""
        observed = self.observations()
        quadratic = float((observed.y - self.prior_mean(observed.X)) @ observed.a)
        log_det, contrasts = observed.factor.log_det(), len(observed.y)
        if observed.trend is not None:
            log_det, contrasts = log_det + observed.trend.log_det(), contrasts - observed.trend.flat
        return -0.5 * (log_det + quadratic + contrasts * math.log(2 * math.pi))

    def condition(self, X: Inputs, y: ArrayLike, noise: ArrayLike = 0.0, operator: Any = None) -> "GP":
        """Posterior given y = f(X) + noise, of one variance or one per row (PRML 6.66, 6.67).

        With an ``operator`` from `mercer.operators`, or a list of one for each row, y = (L f)(X) + noise: derivatives,
        integrals, residuals of differential equations (Graepel 2003). The kernel must be smooth enough for it.
        Conditioning twice equals conditioning once on both data sets: the factor is extended, not recomputed.
        """
        if operator is not None:
            process, rows = self.observing(X, operator)
            return process.condition(rows, y, noise)
        X, n = self._aligned(X, y, noise), count_rows(X)
        X = X if isinstance(X, gram.Gram) else as_rows(X, self.kernel.reads)
        y, noise = as_vector(y, n), as_variances(noise, n)
        if n == 0:
            return self
        if self.kernel.needs_fit:
            fitted = copy.copy(self)
            fitted.kernel = self.kernel.fit(gram.raw(X))
            return fitted.condition(X, y, noise)
        # A copy, because the caller may modify the rows later. Prepared ones are not the caller's.
        rows = (X if isinstance(X, gram.Gram) else gram.Gram(self.kernel, copy_rows(X))).of(self.kernel)
        if self.observed is not None:
            return self._with(rows, y, noise, self._extend(rows, n, noise))
        C = gram.covariance(self.kernel, rows, noise)
        diagonal = np.diag(C).copy()
        return self._with(rows, y, noise, self._warned(factor(C, clear=False), n), diagonal)

    def observing(self, X: Inputs, operator: Any) -> "tuple[GP, Inputs]":
        """The same process, for rows that say what is observed, and these rows: those of X under the operator."""
        kernel, n = self.kernel, count_rows(X)
        known = isinstance(kernel, ObservedKernel)
        if not known and self.observed is not None:
            X = self._aligned(X)
        F = kernel.functionals if isinstance(kernel, ObservedKernel) else Functionals.over(X)
        each = as_operators(operator, n, F.width, F.names)
        if not known and all(one.is_value for one in each):
            return self, X
        inner = kernel.inner if isinstance(kernel, ObservedKernel) else kernel.fitted(X)
        F = F.with_operators(each)
        rows = F.coded(X, each)
        return self._under(ObservedKernel.of(inner, F).accurate(rows)), rows

    def _under(self, kernel: ObservedKernel) -> "GP":
        """The same process with a kernel for rows of more kinds."""
        F, observed = kernel.functionals, self.observed
        if observed is not None:
            if isinstance(self.kernel, ObservedKernel):
                X = F.recoded(observed.X, self.kernel.functionals)
            else:
                X = evolve(F, default=Value()).coded(observed.X)
            observed = dataclasses.replace(observed, X=X)
        return self._replace(kernel=kernel, prior_mean=ObservedMean.under(self.prior_mean, F), observed=observed)

    def apply(self, operator: Any, n_inputs: int = 1) -> "GP":
        """The process (L f)(x): its mean, covariance and samples are those of L f, and data are observations of it.

        ``n_inputs``: number of columns of x, where the process has no observations yet.

        >>> from mercer import kernels as k
        >>> from mercer.operators import Derivative
        >>> slope = GP(k.RBF(0.5)).apply(Derivative(0))
        >>> slope.variance([0.0])
        array([4.])
        """
        kernel = self.kernel
        if isinstance(kernel, ObservedKernel):
            known, inner = kernel.functionals, kernel.inner
        else:
            X = np.zeros((1, n_inputs)) if self.observed is None else self.observed.X
            known, inner = Functionals.over(X), kernel
        F = known.by_default(as_operators(operator, 1, known.width, known.names)[0])
        places = np.zeros((1, F.width)) if self.observed is None else known.places(self.observed.X)
        return self._under(ObservedKernel.of(inner, F).accurate(F.coded(places)))

    def constrain(
        self, X: Inputs, lower: ArrayLike | None = None, upper: ArrayLike | None = None, operator: Any = None
    ) -> "GP":
        """Posterior given that the function lies between ``lower`` and ``upper`` at the rows of X; with an
        ``operator``, that L f does: a derivative is at least zero where the function is monotone.

        By expectation propagation, with one site for each row (`mercer.gp.constraints`).

        >>> from mercer import kernels as k
        >>> from mercer.operators import Derivative
        >>> f = GP(k.RBF()).condition([0.0, 1.0, 2.0], [0.0, 1.0, 0.9], noise=0.02)
        >>> rising = f.constrain(np.linspace(0, 2, 9), lower=0.0, operator=Derivative(0))
        >>> bool((np.diff(f.mean([1.0, 1.5, 2.0])) < 0).any()), bool((np.diff(rising.mean([1.0, 1.5, 2.0])) > 0).all())
        (True, True)
        """
        n = count_rows(X)
        if lower is None and upper is None:
            raise ParameterError("constrain needs lower=..., upper=..., or both.")
        low, high = (
            np.full(n, empty) if side is None else as_vector(np.broadcast_to(np.asarray(side, dtype=float), n), n, name)
            for side, empty, name in ((lower, -np.inf, "lower"), (upper, np.inf, "upper"))
        )
        if not (low < high).all():
            raise ParameterError("lower must be less than upper; for a value that is known use condition.")
        process, rows = self.observing(X, Value() if operator is None else operator)
        mean, K = process.mean(rows), process.covariance(rows)
        deviation = np.sqrt(np.maximum(gram.diagonal(process.kernel, process._aligned(rows)), np.finfo(float).tiny))
        K[np.diag_indices_from(K)] += SMALL_JITTER * deviation**2
        S, nu, converged = interval_sites(mean, K, low, high, SOFTNESS * deviation)
        if not converged:
            warnings.warn(
                f"expectation propagation did not converge on these {n} constraints: the data may contradict them.",
                NumericalWarning,
                stacklevel=2,
            )
        told = np.flatnonzero(S * deviation**2 > MIN_SITE)
        return process.condition(take_rows(rows, told), nu[told] / S[told], 1 / S[told]) if len(told) else process

    def _with(
        self, rows: gram.Gram, y: np.ndarray, noise: np.ndarray, L: Cholesky, diagonal: np.ndarray | None = None
    ) -> "GP":
        """Posterior with further observations, from the factor of all of them; ``diagonal`` as in `Observed.of`."""
        if self.observed is not None:
            rows = gram.Gram(
                self.kernel, stack_rows(self.observed.X, rows.X, self.kernel.reads, self._needs_all_columns)
            )
            y = np.concatenate([self.observed.y, y])
            noise = np.concatenate([self.observed.noise, noise])
        prior_mean = self.prior_mean.fit(rows.X)
        observed = Observed.of(rows.X, y.copy(), noise, L, prior_mean, diagonal)
        gram.keep(observed, rows)
        return self._replace(observed=observed, prior_mean=prior_mean)

    def with_targets(self, y: np.ndarray, a: np.ndarray) -> "GP":
        """Posterior given other measurements y at the same rows, whose C^-1 (y - m) is a: nothing is factorised."""
        observed = dataclasses.replace(self.observations(), y=y, a=a, residual=None)
        gram.keep(observed, self.rows())
        return self._replace(observed=observed)

    def _replace(self, **changes: Any) -> "GP":
        """Copy with some attributes replaced."""
        new = copy.copy(self)
        new.__dict__.update(changes)
        return new

    def _extend(self, X: Inputs, n: int, noise: np.ndarray) -> Cholesky:
        """Factor of the covariance of the observed data and new observations."""
        if self.observed is None:
            L = gram.factored(self.kernel, X, noise)
        else:
            across = gram.between(self.kernel, gram.raw(X), self.rows()).T
            L = self.observed.factor.extended(across, gram.covariance(self.kernel, X, noise))
        return self._warned(L, n)

    def _warned(self, L: Cholesky, n: int) -> Cholesky:
        if L.jitter > self.jitter:
            warnings.warn(
                f"the covariance of these {n} observations is singular to rounding, so {L.jitter:.2g} was added to its "
                "diagonal, and results depend on it. If the measurements are noisy, give the variance: noise=...",
                NumericalWarning,
                stacklevel=4,
            )
        return L

    # -- diagnostics and derived quantities -----------------------------------------------------------------------

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each observation given all the others, noise included (RW06 5.12): (n,), (n,).

        Unknown coefficients are estimated again without the row: P (`Trend`) takes the place of C^-1. If they cannot be
        estimated without the row, as a constant when there is only one, the estimates stay as they are.
        """
        observed = self.observations()
        diagonal = observed.factor.inverse_diagonal()
        if observed.trend is not None:
            left = diagonal - np.einsum("ij,ij->i", observed.trend.half, observed.trend.half)
            diagonal = np.where(left > len(left) * np.finfo(float).eps * diagonal, left, diagonal)
        return observed.y - observed.a / diagonal, 1 / diagonal

    def residual(self) -> float:
        """Relative residual |C a - (y - m)| / |y - m| of the linear system that was solved."""
        observed = self.observations()
        if observed.residual is not None:
            return observed.residual
        target = observed.y - self._mean_with_trend(observed.X)
        residual = (observed.noise + observed.factor.jitter) * observed.a - target
        residual += self.rows().times(observed.a)
        return float(np.linalg.norm(residual) / (np.linalg.norm(target) or 1.0))

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of `mean` and `variance` with respect to the inputs: (s, d), (s, d)."""
        named = self.kernel.functionals.places(Z) if isinstance(self.kernel, ObservedKernel) else self._aligned(Z)
        names = column_names(named)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        Z = as_matrix(named)
        dmean, dvariance = self.prior_mean.slope(Z, names), gram.diagonal_slope(kernel, Z)
        if self.observed is not None:
            X, a, H = self.rows(), self.observed.a, self.prior_mean.columns(named)
            dH = self.prior_mean.columns_slope(Z, names)
            dmean += np.einsum("sqd,q->sd", dH, self.coefficients()[0])
            for part, K in X.blocks(named):
                dmean[part] += gram.slope(kernel, Z[part], X, np.broadcast_to(a, (len(Z[part]), len(a))))
                weights = self.observed.factor.solve(K.T).T
                if self.observed.trend is not None:
                    S = self.observed.trend.uncertainty_root(H[part], K)
                    weights += (self.observed.trend.half @ S).T
                    dvariance[part] += 2 * np.einsum(
                        "sqd,qs->sd", dH[part], np.linalg.solve(self.observed.trend.root.T, S)
                    )
                dvariance[part] -= 2 * gram.slope(kernel, Z[part], X, weights)
        return dmean, dvariance

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """Each term of a sum of kernels, except white noise, with the mean and variance of its part of the function."""
        return [(part, *self._moments_of(part, Z)) for part in terms_of(self.kernel)]

    def _moments_of(self, part: Kernel, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of one term of a sum of kernels, given observations of the sum: (s,), (s,)."""
        observed = self.observations()
        Z = self._aligned(Z)
        mean, variance = np.zeros(count_rows(Z)), gram.diagonal(part, Z)
        none = np.zeros_like(self.prior_mean.columns(Z))  # the trend belongs to no term
        for piece, V, S in self._whitened_pieces(part, observed, Z, none, mean):
            variance[piece] += np.einsum("ij,ij->j", S, S) - np.einsum("ij,ij->j", V, V)
        return mean, np.maximum(variance, 0.0)

    def rescaled(self, kernel: Kernel, factor: float) -> "GP":
        """Posterior with prior covariance and noise multiplied by ``factor``; ``kernel`` is this one times the factor.
        Nothing is factorised again: the Cholesky factor of this process is overwritten."""
        observed, root = self.observations(), math.sqrt(factor)
        lower, trend = observed.factor.lower, observed.trend
        if trend is not None and trend.precision is not None:
            raise ParameterError("the prior variance of a trend does not scale with the covariance.")
        lower *= root
        rescaled = Observed(
            observed.X, observed.y, observed.noise * factor, Cholesky(lower, observed.factor.jitter * factor),
            observed.a / factor, None if trend is None else Trend(trend.H, trend.half / root, trend.root / root),
            observed.residual,
        )  # fmt: skip
        gram.keep(rescaled, self.rows())
        return self._replace(kernel=kernel, observed=rescaled)

    def latent(self) -> "GP":
        """Posterior of the function without the kernel's white noise, which becomes noise of the observations."""
        latent, white = split_white(self.kernel)
        if latent is None or not white or self.observed is None:
            return self
        observed = dataclasses.replace(self.observed, noise=self.observed.noise + white)
        gram.keep(observed, self.rows())
        return self._replace(kernel=latent, observed=observed)

    def observations(self) -> Observed:
        """What it was conditioned on; `ParameterError` before that."""
        if self.observed is None:
            unknown = " Its mean is unknown before that." if self.prior_mean.unknown else ""
            raise ParameterError(f"this process has no observations yet; condition it first.{unknown}")
        return self.observed

    @property
    def data(self) -> tuple[Inputs, np.ndarray, np.ndarray]:
        """Observed inputs, targets and noise variances."""
        observed = self.observations()
        return observed.X, observed.y, observed.noise

    def stored(self) -> dict[str, Any]:
        """Fields for a file, from which `restored` makes an equal process."""
        return {name: getattr(self, name) for name in ("kernel", "prior_mean", "allow_invalid", "observed")}

    @classmethod
    def restored(cls, kernel: Kernel, prior_mean: MeanFunction, allow_invalid: bool, observed: Observed | None) -> "GP":
        """From `stored` fields; the kernel was checked before."""
        new = object.__new__(cls)
        new.kernel, new.prior_mean, new.allow_invalid, new.observed = kernel, prior_mean, allow_invalid, observed
        return new

    def consistent(self) -> bool:
        """Whether the types of the fields are right, for `mercer.load`."""
        observed = self.observed is None or isinstance(self.observed, Observed)
        return isinstance(self.kernel, Kernel) and isinstance(self.prior_mean, MeanFunction) and observed

    def numerics(self) -> dict[str, float]:
        """Jitter and condition number of the covariance of the observations, and `residual`."""
        observed = self.observations()
        return {"jitter": self.jitter, "condition": observed.factor.condition(), "residual": self.residual()}

    @property
    def jitter(self) -> float:
        """Jitter added to the diagonal of the covariance of the observations; almost always 0."""
        return 0.0 if self.observed is None else self.observed.factor.jitter

    def __repr__(self) -> str:
        text = f"GP({self.kernel!r}, mean={self.prior_mean!r})"
        if self.observed is None:
            return text
        jitter = f", jitter {self.jitter:.2g}" if self.jitter else ""
        return f"{text} given {len(self.observed.y)} observations{jitter}"


def check_size(size: int) -> None:
    """Refuse a number of samples that is not a non-negative integer."""
    if not isinstance(size, int | np.integer) or size < 0:
        raise ParameterError(f"size must be a non-negative integer; got {size!r}.")
