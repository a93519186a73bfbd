"""A Gaussian process: a distribution over functions, before and after seeing data."""

import copy
import dataclasses
import math
import reprlib
import warnings

import jax
import numpy as np

from mercer import gram
from mercer.core.errors import DataError, InvalidKernelError, NumericalWarning, ParameterError
from mercer.core.inputs import align_columns, as_vector, count_rows, stack_rows
from mercer.core.precision import concretely, is_traced
from mercer.core.random import as_key
from mercer.gp.mean import MeanFunction
from mercer.kernels.convert import as_kernel
from mercer.linalg.cholesky import Cholesky, root


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """Data a process is conditioned on: inputs, targets, noise variances, the factor of C and a = C^-1 (y - m)."""

    X: object
    y: np.ndarray
    noise: np.ndarray
    factor: Cholesky
    a: np.ndarray


class GP:
    """A distribution over functions with a mean and a covariance, the kernel (PRML 6.4.1).

    ``mean`` is a number or a function of one input. The posterior is again a GP: it can be sampled and conditioned
    again. A kernel known not to be positive semidefinite is refused unless ``allow_invalid=True``.

    >>> from mercer import kernels as k
    >>> f = GP(k.RBF())
    >>> g = f.condition([0.0, 1.0], [1.0, 2.0], noise=0.1)
    >>> g.mean([0.0]).round(3), g.variance([0.0]).round(3)
    (array([1.013]), array([0.087]))
    """

    def __init__(self, kernel, mean=0.0, *, allow_invalid: bool = False):
        self.kernel = as_kernel(kernel)
        self.prior_mean = MeanFunction.of(mean)
        self.allow_invalid = allow_invalid
        self.observed: Observed | None = None
        validity = self.kernel.validity
        if validity.valid is False and not allow_invalid:
            hint = (
                "It needs the polynomials of its null space beside it. "
                if validity.conditional is not None
                else "Its Gram matrices may have negative eigenvalues, which no covariance has. "
            )
            raise InvalidKernelError(
                f"a Gaussian process needs a positive semidefinite kernel (6.2); {self.kernel!r} is "
                f"{validity.verdict} ({validity.proof}: {validity.proof.says}). {hint}"
                "Pass allow_invalid=True to try all the same."
            )

    # -- moments -------------------------------------------------------------------------------------------------

    def mean(self, Z) -> np.ndarray:
        """E f(z): (s,). For a posterior m(z) + k(z, X) C^-1 (y - m(X)) (PRML 6.66)."""
        Z = self._aligned(Z)
        prior = self.prior_mean(Z)
        if self.observed is None:
            return prior
        return prior + gram.between(self.kernel, Z, self.observed.X) @ self.observed.a

    def variance(self, Z) -> np.ndarray:
        """var f(z), without observation noise: (s,) (PRML 6.67)."""
        Z = self._aligned(Z)
        prior = gram.diagonal(self.kernel, Z)
        if self.observed is None:
            return prior
        V = self._whitened(self.observed, Z)
        return np.maximum(prior - np.einsum("ij,ij->j", V, V), 0.0)

    def covariance(self, Z) -> np.ndarray:
        """cov(f(z), f(z')), without observation noise: (s, s)."""
        Z = self._aligned(Z)
        K = gram.within(self.kernel, Z)
        if self.observed is not None:
            V = self._whitened(self.observed, Z)
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

    def _whitened(self, observed: Observed, Z):
        """L^-1 k(X, Z): (n, s), which the data take off the prior covariance, squared."""
        return observed.factor.half_solve(gram.between(self.kernel, observed.X, Z))

    # -- samples -------------------------------------------------------------------------------------------------

    def sample(self, X, size: int = 1, seed=0) -> np.ndarray:
        """Functions drawn from the process, at the rows of X: (size, n). The same seed gives the same functions."""
        if not isinstance(size, int | np.integer) or size < 0:
            raise ParameterError(f"size must be a non-negative integer; got {size!r}.")
        X, n = self._aligned(X), count_rows(X)
        scale = float(np.max(gram.diagonal(self.kernel, X))) if n else 0.0
        # What rounding leaves of a posterior covariance is relative to the prior's.
        R = root(self.covariance(X), scale=scale) if n else np.zeros((0, 0))
        with concretely():
            z = np.asarray(jax.random.normal(as_key(seed), (size, n)))
        return self.mean(X) + z[:, : R.shape[1]] @ R.T

    # -- data ----------------------------------------------------------------------------------------------------

    def log_likelihood(self, X, y, noise=0.0) -> float:
        """ln p(y | X) with independent Gaussian noise of the given variance (PRML 6.69); given the data seen so far."""
        X, n = self._aligned(X, y, noise), count_rows(X)
        y, noise = as_vector(y, n), _noise(noise, n)
        if n == 0:
            return 0.0
        L, residual = self._extend(X, n, noise), y - self.prior_mean(X)
        if self.observed is None:
            white = L.half_solve(residual)
        else:
            # ln p(y2 | y1): the new part of the whitened residual, and the new part of the determinant.
            before = self.observed.y - self.prior_mean(self.observed.X)
            white = L.half_solve(np.concatenate([before, residual]))[-n:]
        half_log_det = float(np.sum(np.log(np.diag(L.lower)[-n:])))
        return -0.5 * float(white @ white) - half_log_det - 0.5 * n * math.log(2 * math.pi)

    def condition(self, X, y, noise=0.0) -> "GP":
        """The posterior given y = f(X) + noise, a variance for all points or one each (PRML 6.66, 6.67).

        Conditioning twice is conditioning once on both: the factor is extended, not started again.
        """
        X, n = self._aligned(X, y, noise), count_rows(X)
        y, noise = as_vector(y, n), _noise(noise, n)
        if n == 0:
            return self
        L = self._extend(X, n, noise)
        if self.observed is not None:
            X = stack_rows(self.observed.X, X, self._needs_all_columns)
            y = np.concatenate([self.observed.y, y])
            noise = np.concatenate([self.observed.noise, noise])
        posterior = object.__new__(GP)
        posterior.__dict__.update(self.__dict__)
        # Copies: what the caller does to the arrays later is not data.
        X, y = copy.deepcopy(X), y.copy()
        posterior.observed = Observed(X, y, noise, L, L.solve(y - self.prior_mean(X)))
        return posterior

    def _extend(self, X, n, noise) -> Cholesky:
        """The factor of the covariance of everything seen so far and of new observations."""
        if self.observed is None:
            L = gram.factored(self.kernel, X, noise)
        else:
            L = self.observed.factor.extended(
                gram.between(self.kernel, self.observed.X, X), gram.covariance(self.kernel, X, noise)
            )
        if L.jitter > self.jitter:
            warnings.warn(
                f"the covariance of these {n} observations is singular to rounding, so {L.jitter:.2g} was added to its "
                "diagonal; results depend on that. Measurements have noise: give its variance, noise=...",
                NumericalWarning,
                stacklevel=3,
            )
        return L

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


def _noise(noise, n):
    """One variance per observation."""
    values = as_vector(np.full(n, noise) if np.ndim(noise) == 0 else noise, n, "noise").copy()
    if np.any(values < 0):
        raise DataError(f"noise is a variance, which is not negative; got {reprlib.repr(noise)}.")
    return values
