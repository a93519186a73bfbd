"""A Gaussian process: a distribution over functions, before and after seeing data."""

import copy
import dataclasses
import math
import reprlib
import warnings

import jax
import numpy as np

from mercer import gram
from mercer.core.errors import DataError, NumericalWarning, ParameterError
from mercer.core.inputs import (
    align_columns,
    as_matrix,
    as_vector,
    column_names,
    count_rows,
    stack_rows,
    take_rows,
)
from mercer.core.precision import is_traced
from mercer.core.random import as_key, normal
from mercer.gp.mean import MeanFunction
from mercer.kernels.algebra import split_white, terms_of
from mercer.kernels.base import Kernel
from mercer.kernels.convert import as_covariance
from mercer.kernels.evaluate import Prepared
from mercer.kernels.stationary import White
from mercer.kernels.substitution import by_position
from mercer.linalg.cholesky import Cholesky, random_root, root
from mercer.linalg.trend import Trend

JOINTLY = 4000  # places up to which samples come from one dense covariance


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """Data a process is conditioned on: inputs, targets, noise variances, the factor of C and a = C^-1 (y - m).

    With an unknown constant in the mean, m includes its estimate, and ``trend`` has what the data say of it.
    """

    X: object
    y: np.ndarray
    noise: np.ndarray
    factor: Cholesky
    a: np.ndarray
    trend: Trend | None = None

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        n = count_rows(self.X)
        trend = self.trend is None or self.trend.H.shape[0] == n
        vectors = self.y.shape == self.noise.shape == self.a.shape == (n,)
        return vectors and self.factor.lower.shape == (n, n) and trend

    @classmethod
    def of(cls, X, y, noise, factor: Cholesky, prior_mean: MeanFunction) -> "Observed":
        target = y - prior_mean(X)
        a = factor.solve(target)
        if not prior_mean.unknown:
            return cls(X, y, noise, factor, a)
        H = prior_mean.columns(X)
        trend = Trend.of(H, factor.solve(H))
        return cls(X, y, noise, factor, trend.contrasted(a, target), trend)


class GP:
    """A distribution over functions with a mean and a covariance, the kernel (PRML 6.4.1).

    ``mean`` is a number, a function of one input, or "unknown": a constant with a flat prior, integrated out, so that
    nothing can be asked of the process before data (ordinary kriging; RW06 2.7). The posterior is again a GP: it can be
    sampled and conditioned again. A kernel known not to be positive semidefinite is refused unless
    ``allow_invalid=True``.

    >>> from mercer import kernels as k
    >>> f = GP(k.RBF())
    >>> g = f.condition([0.0, 1.0], [1.0, 2.0], noise=0.1)
    >>> g.mean([0.0]).round(3), g.variance([0.0]).round(3)
    (array([1.013]), array([0.087]))
    """

    def __init__(self, kernel, mean=0.0, *, allow_invalid: bool = False):
        self.kernel = as_covariance(kernel, "a Gaussian process", allow_invalid)
        self.prior_mean = MeanFunction.of(mean)
        self.allow_invalid = allow_invalid
        self.observed: Observed | None = None

    # -- moments -------------------------------------------------------------------------------------------------

    def mean(self, Z) -> np.ndarray:
        """E f(z): (s,). For a posterior m(z) + k(z, X) C^-1 (y - m(X)) (PRML 6.66)."""
        Z = self._aligned(Z)
        mean = self._before(Z)
        if self.observed is not None:
            for part in self._pieces(Z):
                mean[part] += gram.between(self.kernel, take_rows(Z, part), self._seen()) @ self.observed.a
        return mean

    def variance(self, Z) -> np.ndarray:
        """var f(z), without observation noise: (s,) (PRML 6.67)."""
        return self.moments(Z)[1]

    def moments(self, Z) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance together: (s,), (s,). In pieces, so that memory does not grow with the number of rows."""
        Z = self._aligned(Z)
        mean, variance = self._before(Z), gram.diagonal(self.kernel, Z)
        if self.observed is not None:
            H = self.prior_mean.columns(Z)
            for part, V, doubt in self._whitened_pieces(self.kernel, self.observed, Z, H, mean):
                variance[part] += np.einsum("ij,ij->j", doubt, doubt) - np.einsum("ij,ij->j", V, V)
            # Below this there is only what rounding leaves of the prior's variance.
            np.maximum(variance, 0.0, out=variance)
        return mean, variance

    @property
    def unknown(self) -> bool:
        """Whether the mean has an unknown constant."""
        return self.prior_mean.unknown

    def constant(self) -> float:
        """The estimate of an unknown constant in the mean; zero where there is none."""
        if not self.prior_mean.unknown:
            return 0.0
        observed = self._needs_data()
        assert observed.trend is not None
        return float(observed.trend.coefficients(observed.y - self.prior_mean(observed.X))[0])

    def _before(self, Z):
        """The prior mean, with the estimate of an unknown constant."""
        return self.prior_mean(Z) + self.constant()

    def _whitened_pieces(self, kernel, observed, Z, H, mean):
        """L^-1 k(X, Z), some columns at a time, in memory that is used again, and what doubt about an unknown constant
        adds (`Trend.doubt`); k(Z, X) a is added to ``mean``. ``H``: the columns of unknown coefficients at Z."""
        pieces = self._pieces(Z)
        n, largest = len(observed.y), max((part.stop - part.start for part in pieces), default=0)
        memory = np.empty((largest, n))
        seen = self._seen() if kernel is self.kernel else Prepared(kernel, observed.X)
        for part in pieces:
            K = gram.between(kernel, take_rows(Z, part), seen, out=memory[: part.stop - part.start])
            mean[part] += K @ observed.a
            doubt = np.zeros((0, len(K))) if observed.trend is None else observed.trend.doubt(H[part], K)
            yield part, observed.factor.half_solve_in_place(K.T, many=len(mean) > n), doubt

    def _seen(self) -> Prepared:
        """The inputs of the data, prepared once."""
        observed = self._needs_data()
        return gram.kept(observed, self.kernel, observed.X)

    def _pieces(self, Z):
        return gram.pieces(count_rows(Z), len(self.observed.y) if self.observed is not None else 1)

    def covariance(self, Z) -> np.ndarray:
        """cov(f(z), f(z')), without observation noise: (s, s)."""
        Z = self._aligned(Z)
        K = gram.within(self.kernel, Z)
        if self.prior_mean.unknown:
            self._needs_data()
        if self.observed is not None:
            cross = gram.between(self.kernel, Z, self._seen()).T
            if self.observed.trend is not None:
                doubt = self.observed.trend.doubt(self.prior_mean.columns(Z), cross.T)
                K += doubt.T @ doubt
            V = self.observed.factor.half_solve(cross)
            K -= V.T @ V
        return K

    def _aligned(self, Z, *others):
        """Z with the columns of a frame in the order of the data's, which is the order parameters refer to."""
        if is_traced((self.kernel, Z, others)):
            raise ParameterError(
                "a GP works on plain numbers, outside jax.jit and jax.grad: its factorisations are LAPACK's. "
                "Kernels themselves can be traced."
            )
        return Z if self.observed is None else align_columns(self.observed.X, Z, self._needs_all_columns)

    @property
    def _needs_all_columns(self) -> bool:
        return self.kernel.needs_all_columns or self.prior_mean.function is not None

    # -- samples -------------------------------------------------------------------------------------------------

    def sample(self, X, size: int = 1, seed=0) -> np.ndarray:
        """Functions drawn from the process, at the rows of X: (size, n). The same seed gives the same functions."""
        check_size(size)
        X, n = self._aligned(X), count_rows(X)
        if self.prior_mean.unknown:
            self._needs_data()
        if n > JOINTLY:
            return self._sample_many(X, size, seed)
        scale = float(np.max(gram.diagonal(self.kernel, X))) if n else 0.0
        # What rounding leaves of a posterior covariance is relative to the prior's.
        R = root(self.covariance(X), scale=scale) if n else np.zeros((0, 0))
        return self.mean(X) + normal(seed, (size, n))[:, : R.shape[1]] @ R.T

    def _sample_many(self, Z, size, seed):
        """Samples at more places than a joint covariance has room for.

        A function is drawn from the prior, at Z and at the data, through a low-rank root of the joint covariance, and
        carried to the posterior by what it misses the data by: f(Z) + k(Z, X) C^-1 (y - f(X) - noise) (Matheron).
        """
        latent, white = split_white(self.kernel)
        seen = self.observed
        everywhere = Z if seen is None else stack_rows(Z, seen.X, self._needs_all_columns)
        s, total = count_rows(Z), count_rows(everywhere)
        first, second, third, pivots = jax.random.split(as_key(seed), 4)
        f = np.zeros((size, total))
        if latent is not None:
            diagonal = gram.diagonal(latent, everywhere)
            R, left = random_root(
                lambda chosen: gram.between(latent, take_rows(everywhere, chosen), everywhere),
                diagonal, most=max(256, gram.PIECE // total), tolerance=1e-9 * float(diagonal.max(initial=0.0)),
                rng=np.random.default_rng(np.asarray(jax.random.key_data(pivots))),
            )  # fmt: skip
            f = normal(first, (size, R.shape[1])) @ R.T + normal(second, (size, total)) * np.sqrt(left)
            share = float(left.sum() / diagonal.sum())
            if share > 1e-3:
                warnings.warn(
                    f"{total:,} places are too many for one joint draw from so rough a kernel: {share:.1%} of the "
                    "variance was drawn independently at each place. Ask for fewer places at a time.",
                    NumericalWarning,
                    stacklevel=4,
                )
        keys = jax.random.split(third, 2)
        out = self.prior_mean(Z) + f[:, :s] + np.sqrt(white) * normal(keys[0], (size, s))
        if seen is not None:
            noise = np.sqrt(seen.noise + white) * normal(keys[1], (size, total - s))
            missed = seen.y - self.prior_mean(seen.X) - f[:, s:] - noise
            weights = seen.factor.solve(missed.T)
            if seen.trend is not None:
                weights = seen.trend.contrasted(weights, missed.T)
                out += (self.prior_mean.columns(Z) @ seen.trend.coefficients(missed.T)).T
            for part in self._pieces(Z):
                out[:, part] += (gram.between(self.kernel, take_rows(Z, part), self._seen()) @ weights).T
        return out

    # -- data ----------------------------------------------------------------------------------------------------

    def log_likelihood(self, X, y, noise=0.0) -> float:
        """ln p(y | X) with independent Gaussian noise of the given variance (PRML 6.69); given the data seen so far."""
        X, n = self._aligned(X, y, noise), count_rows(X)
        y, noise = as_vector(y, n), _noise(noise, n)
        if n == 0:
            return 0.0
        if self.prior_mean.unknown:
            both = self._with(X, y, noise, self._extend(X, n, noise))
            if self.observed is None:
                return both.log_evidence()
            # Contrasts of all rows and of those seen before are taken along directions of unit length each.
            before = len(self.observed.y)
            return both.log_evidence() - self.log_evidence() - 0.5 * math.log((before + n) / before)
        L, residual = self._extend(X, n, noise), y - self.prior_mean(X)
        if self.observed is None:
            white = L.half_solve(residual)
        else:
            # ln p(y2 | y1): the new part of the whitened residual, and the new part of the determinant.
            before = self.observed.y - self.prior_mean(self.observed.X)
            white = L.half_solve(np.concatenate([before, residual]))[-n:]
        half_log_det = float(np.sum(np.log(np.diag(L.lower)[-n:])))
        return -0.5 * float(white @ white) - half_log_det - 0.5 * n * math.log(2 * math.pi)

    def log_evidence(self) -> float:
        """ln p(y) of what was observed (PRML 6.69); with an unknown constant, of the contrasts it does not reach (the
        restricted likelihood)."""
        observed = self._needs_data()
        quadratic = float((observed.y - self.prior_mean(observed.X)) @ observed.a)
        log_det, contrasts = observed.factor.log_det(), len(observed.y)
        if observed.trend is not None:
            log_det, contrasts = log_det + observed.trend.log_det(), contrasts - observed.trend.size
        return -0.5 * (log_det + quadratic + contrasts * math.log(2 * math.pi))

    def condition(self, X, y, noise=0.0) -> "GP":
        """The posterior given y = f(X) + noise, a variance for all points or one each (PRML 6.66, 6.67).

        Conditioning twice is conditioning once on both: the factor is extended, not started again.
        """
        X, n = self._aligned(X, y, noise), count_rows(X)
        y, noise = as_vector(y, n), _noise(noise, n)
        if n == 0:
            return self
        return self._with(X, y, noise, self._extend(X, n, noise))

    def _with(self, X, y, noise, L) -> "GP":
        """The posterior with further observations, from the factor ``L`` of all of them."""
        if self.observed is not None:
            X = stack_rows(self.observed.X, X, self._needs_all_columns)
            y = np.concatenate([self.observed.y, y])
            noise = np.concatenate([self.observed.noise, noise])
        posterior = object.__new__(GP)
        posterior.__dict__.update(self.__dict__)
        # Copies: what the caller does to the arrays later is not data.
        posterior.observed = Observed.of(copy.deepcopy(X), y.copy(), noise, L, self.prior_mean)
        return posterior

    def _extend(self, X, n, noise) -> Cholesky:
        """The factor of the covariance of everything seen so far and of new observations."""
        if self.observed is None:
            L = gram.factored(self.kernel, X, noise)
        else:
            L = self.observed.factor.extended(
                gram.between(self.kernel, X, self._seen()).T, gram.covariance(self.kernel, X, noise)
            )
        if L.jitter > self.jitter:
            warnings.warn(
                f"the covariance of these {n} observations is singular to rounding, so {L.jitter:.2g} was added to its "
                "diagonal; results depend on that. Measurements have noise: give its variance, noise=...",
                NumericalWarning,
                stacklevel=3,
            )
        return L

    # -- what the data say of it --------------------------------------------------------------------------------------

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each observation given all the others, noise included (RW06 5.12): (n,), (n,).

        An unknown constant is estimated anew without the row: P takes the place of C^-1. A row that alone determines
        it (a single one, say) leaves nothing to estimate it from; there it stays.
        """
        observed = self._needs_data()
        diagonal = observed.factor.inverse_diagonal()
        if observed.trend is not None:
            left = diagonal - np.einsum("ij,ij->i", observed.trend.half, observed.trend.half)
            diagonal = np.where(left > len(left) * np.finfo(float).eps * diagonal, left, diagonal)
        return observed.y - observed.a / diagonal, 1 / diagonal

    def residual(self) -> float:
        """|C a - (y - m)| / |y - m|: what rounding has left of the equations that were solved."""
        observed = self._needs_data()
        target = observed.y - self._before(observed.X)
        left = -target
        for part in self._pieces(observed.X):
            rows = take_rows(observed.X, part)
            left[part] += gram.between(self.kernel, rows, self._seen()) @ observed.a
        left += (observed.noise + observed.factor.jitter) * observed.a
        if any(isinstance(node, White) for node in self.kernel._nodes()):
            # Rows met with themselves: noise in the kernel belongs there.
            for i in range(0, len(target), 504):
                rows, part = take_rows(observed.X, slice(i, i + 504)), slice(i, i + 504)
                noise = gram.diagonal(self.kernel, rows) - np.diag(gram.between(self.kernel, rows, rows))
                left[part] += noise * observed.a[part]
        return float(np.linalg.norm(left) / (np.linalg.norm(target) or 1.0))

    def gradients(self, Z) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of `mean` and `variance` with respect to the inputs: (s, d), (s, d)."""
        if self.prior_mean.function is not None:
            raise ParameterError("gradients of a process with a mean function of your own are not computed.")
        Z = self._aligned(Z)
        names = column_names(Z)
        kernel = self.kernel if names is None else by_position(self.kernel, names)
        Z = as_matrix(Z)
        dmean, dvariance = np.zeros(Z.shape), gram.diagonal_slope(kernel, Z)
        if self.observed is not None:
            X, a = as_matrix(self.observed.X), self.observed.a
            for part in self._pieces(Z):
                dmean[part] = gram.slope(kernel, Z[part], X, np.broadcast_to(a, (len(Z[part]), len(a))))
                K = gram.between(kernel, Z[part], X)
                weights = self.observed.factor.solve(K.T).T
                if self.observed.trend is not None:
                    doubt = self.observed.trend.doubt(self.prior_mean.columns(Z[part]), K)
                    weights += (self.observed.trend.half @ doubt).T
                dvariance[part] -= 2 * gram.slope(kernel, Z[part], X, weights)
        return dmean, dvariance

    def terms(self, Z) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """Each term of a sum of kernels, white noise apart, with mean and variance of its part of the function."""
        return [(part, *self._moments_of(part, Z)) for part in terms_of(self.kernel)]

    def _moments_of(self, part, Z) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of one term of a sum of kernels, given what was observed of the sum: (s,), (s,)."""
        observed = self._needs_data()
        Z = self._aligned(Z)
        mean, variance = np.zeros(count_rows(Z)), gram.diagonal(part, Z)
        none = np.zeros_like(self.prior_mean.columns(Z))  # a term has no share in the unknown constant
        for piece, V, doubt in self._whitened_pieces(part, observed, Z, none, mean):
            variance[piece] += np.einsum("ij,ij->j", doubt, doubt) - np.einsum("ij,ij->j", V, V)
        return mean, np.maximum(variance, 0.0)

    def rescaled(self, kernel, factor: float) -> "GP":
        """The posterior with the prior's covariance and the noise ``factor`` times as large: ``kernel`` is this one
        times it. Nothing is factorised again: the Cholesky factor of this process is overwritten."""
        observed, root = self._needs_data(), math.sqrt(factor)
        lower, trend = observed.factor.lower, observed.trend
        lower *= root
        new = object.__new__(GP)
        new.__dict__.update(self.__dict__)
        new.kernel = kernel
        new.observed = Observed(
            observed.X, observed.y, observed.noise * factor, Cholesky(lower, observed.factor.jitter * factor),
            observed.a / factor, None if trend is None else Trend(trend.H, trend.half / root, trend.root / root),
        )  # fmt: skip
        return new

    def latent(self) -> "GP":
        """The same posterior of the function alone: white noise in the kernel stays with the data it was seen in."""
        latent, white = split_white(self.kernel)
        new = object.__new__(GP)
        new.__dict__.update(self.__dict__)
        if latent is not None and white and self.observed is not None:
            new.kernel = latent
            new.observed = dataclasses.replace(self.observed, noise=self.observed.noise + white)
        return new

    def _needs_data(self) -> Observed:
        if self.observed is None:
            unknown = " Its mean is unknown before that." if self.prior_mean.unknown else ""
            raise ParameterError(f"this process has not seen data yet; condition it first.{unknown}")
        return self.observed

    @property
    def data(self) -> tuple[object, np.ndarray, np.ndarray]:
        """Inputs, targets and noise variances seen so far."""
        observed = self._needs_data()
        return observed.X, observed.y, observed.noise

    def numerics(self) -> dict[str, float]:
        """Jitter, the condition number of the covariance of the data, and `residual`."""
        observed = self._needs_data()
        return {"jitter": self.jitter, "condition": observed.factor.condition(), "residual": self.residual()}

    @property
    def jitter(self) -> float:
        """What had to be added to the diagonal of the covariance of the data; 0 almost always."""
        return 0.0 if self.observed is None else self.observed.factor.jitter

    def __repr__(self):
        text = f"GP({self.kernel!r}, mean={self.prior_mean!r})"
        if self.observed is None:
            return text
        jitter = f", jitter {self.jitter:.2g}" if self.jitter else ""
        return f"{text} given {len(self.observed.y)} observations{jitter}"


def check_size(size):
    """How many samples: a whole number."""
    if not isinstance(size, int | np.integer) or size < 0:
        raise ParameterError(f"size must be a non-negative integer; got {size!r}.")


def _noise(noise, n):
    """One variance per observation."""
    values = as_vector(np.full(n, noise) if np.ndim(noise) == 0 else noise, n, "noise").copy()
    if np.any(values < 0):
        raise DataError(f"noise is a variance, which is not negative; got {reprlib.repr(noise)}.")
    return values
