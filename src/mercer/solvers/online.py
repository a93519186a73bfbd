"""Posterior of a regression through the values of the function at some centres, from one pass over the rows."""

import dataclasses
import math
from typing import Any, Self

import numpy as np

from mercer import gram
from mercer.core.errors import NotPositiveDefiniteError, ParameterError
from mercer.core.inputs import (
    Inputs,
    align_columns,
    as_matrix,
    as_vector,
    column_names,
    copy_rows,
    count_rows,
    take_rows,
)
from mercer.core.random import normal
from mercer.core.registry import storable
from mercer.distributions import Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.posterior import Posterior
from mercer.gp.process import check_size
from mercer.inference.centers import (
    NOT_KEPT,
    CenterFunctions,
    block_of,
    blocks,
    extended_state,
    joined_rows,
    taken,
    told,
)
from mercer.inference.functions import root_of
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel
from mercer.linalg.cholesky import Cholesky, factor
from mercer.linalg.trend import Trend, log_unit

register = storable("parts")


@register
@dataclasses.dataclass(frozen=True, eq=False)
class CenterPosterior(Posterior):
    """Function with its values at the centres of ``functions``, from ``count`` rows that are not kept (Csato and Opper
    2002). With ``budget`` None, no centre is left out, and all answers are exact.

    ``evidence`` is the sum of ln p(y of a block | blocks before), ``squares`` H^T H of all rows, ``noise`` the mean of
    their noise variances, and ``lost`` the nats lost by leaving out centres.
    """

    keeps_rows = False

    functions: CenterFunctions
    budget: int | None
    count: int
    evidence: float
    squares: np.ndarray
    noise: float
    lost: float

    @classmethod
    def given(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: Any, mean: MeanFunction | None, budget: int | None
    ) -> "CenterPosterior":
        """From rows that are taken in one block after the other."""
        n = count_rows(X)
        y, noise = as_vector(y, n), np.broadcast_to(np.asarray(noise, dtype=float), (n,))
        mean = (MeanFunction() if mean is None else mean).fit(X)
        q = mean.columns(take_rows(X, slice(0, 1))).shape[1]
        first, *others = blocks(n, first=2 * q)
        if q and np.linalg.matrix_rank(mean.columns(take_rows(X, first))) < q:  # the first rows do not determine them
            first, others = slice(0, n), []
        new = cls._started(kernel, copy_rows(take_rows(X, first)), y[first], noise[first], mean, budget)
        for part in others:
            new = new._with_block(take_rows(X, part), y[part], noise[part])
        return new

    @classmethod
    def _started(
        cls, kernel: Kernel, X: Inputs, y: np.ndarray, noise: np.ndarray, mean: MeanFunction, budget: int | None
    ) -> "CenterPosterior":
        n, white, H = count_rows(X), split_white(kernel)[1], mean.columns(X)
        block = block_of(kernel, mean, None, np.zeros((0, 0)), X)
        L, target = block.lower, y - mean(X)
        C = factor(np.asfortranarray(L @ L.T + np.diag(noise + white)))
        C_inv_L, C_inv_y = C.solve(np.asfortranarray(L)), C.solve(target)
        q, log_det, quadratic = H.shape[1], C.log_det(), float(target @ C_inv_y)
        value, covariance = np.zeros((1, n + q)), np.zeros((1, n + q, n + q))
        value[0, :n], covariance[0, :n, :n] = L.T @ C_inv_y, np.eye(n) - L.T @ C_inv_L
        if q:
            try:
                trend = Trend.of(H, C.solve(np.asfortranarray(H)), mean.precision)
            except np.linalg.LinAlgError:
                raise NotPositiveDefiniteError(
                    f"the coefficients of the mean {mean!r} could not be estimated from these rows. Give noise=..., or "
                    "a mean with fewer columns."
                ) from None
            back, spread = L.T @ trend.half, np.linalg.inv(trend.root)
            value[0, :n] -= back @ (trend.half.T @ target)
            value[0, n:], covariance[0, n:, n:] = trend.coefficients(target), trend.covariance()
            covariance[0, :n, :n] += back @ back.T
            covariance[0, :n, n:] = -back @ spread
            covariance[0, n:, :n] = covariance[0, :n, n:].T
            quadratic -= float(np.sum((trend.half.T @ target) ** 2))
            log_det += 2 * float(np.log(np.diag(trend.root)).sum()) - (
                0.0 if mean.precision is None else log_unit(H, mean.precision)
            )
        contrasts = n - (q if mean.precision is None else 0)
        evidence = -0.5 * (log_det + quadratic + contrasts * math.log(2 * math.pi))
        found = taken(block, 0, value, covariance, budget)
        functions = CenterFunctions(
            kernel, take_rows(X, found.centres), mean, Cholesky(found.lower), found.values, found.covariances
        )
        return cls(functions, budget, n, evidence, H.T @ H, float(np.mean(noise)), found.lost)

    def _with_block(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> Self:
        own, mean = self.functions, self.functions.prior_mean
        m, b, white = len(own.factor.lower), len(y), split_white(own.kernel)[1]
        block = block_of(own.kernel, mean, own._centres(), own.factor.lower, X)
        value, covariance = extended_state(m, b, own.values, own.spreads)
        value[0], covariance[0], evidence = told(value[0], covariance[0], block.design, y - mean(X), noise + white)
        found, H = taken(block, m, value, covariance, self.budget), mean.columns(X)
        functions = CenterFunctions(
            own.kernel, joined_rows(own.kernel, mean, own.X, X, found.centres), mean, Cholesky(found.lower),
            found.values, found.covariances,
        )  # fmt: skip
        total = self.count + b
        return dataclasses.replace(
            self, functions=functions, count=total, evidence=self.evidence + evidence, squares=self.squares + H.T @ H,
            noise=(self.count * self.noise + float(np.sum(noise))) / total, lost=self.lost + found.lost,
        )  # fmt: skip

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> Self:
        """Given more rows, in one pass: O(m^2) each for m centres."""
        X, n = self._aligned(X), count_rows(X)
        y, noise = as_vector(y, n), np.broadcast_to(np.asarray(noise, dtype=float), (n,))
        new = self
        for part in blocks(n) if n else []:
            new = new._with_block(take_rows(X, part), y[part], noise[part])
        return new

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        return isinstance(self.functions, CenterFunctions) and self.functions.consistent()

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]
        return self.functions.kernel

    @property
    def prior_mean(self) -> MeanFunction:  # type: ignore[override]
        return self.functions.prior_mean

    def _aligned(self, Z: Inputs) -> Inputs:
        needs_all = self.kernel.needs_all_columns or self.prior_mean.needs_all_columns
        return align_columns(self.functions.X, gram.raw(Z), needs_all)

    # -- moments -------------------------------------------------------------------------------------------------

    def mean(self, Z: Inputs) -> np.ndarray:
        Z = self._aligned(Z)
        return self.prior_mean(Z) + self.functions.means(Z)[:, 0]

    def variance(self, Z: Inputs) -> np.ndarray:
        return self.moments(Z)[1]

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        Z = self._aligned(Z)
        mean, variance = self.functions.all_moments(Z)
        return self.prior_mean(Z) + mean[:, 0], variance[:, 0]

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Normal:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function itself."""
        mean, variance = self.moments(Z)
        return Normal(mean, np.sqrt(np.maximum(variance + noise, 0.0)))

    def covariance(self, Z: Inputs) -> np.ndarray:
        return self.functions.covariances_of(self._aligned(Z))[:, 0, :, 0]

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        check_size(size)
        Z = self._aligned(Z)
        R = root_of(self.covariance(Z), (self.kernel,), Z)
        return self.mean(Z) + normal(seed, (size, count_rows(Z)))[:, : R.shape[1]] @ R.T

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        Z = self._aligned(Z)
        dmean, dvariance = self.functions.slopes(Z)
        return dmean[:, 0] + self.prior_mean.slope(as_matrix(Z), column_names(Z)), dvariance[:, 0]

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        found = self.functions.all_terms(self._aligned(Z))
        return [(part, mean[:, 0], variance[:, 0]) for part, mean, variance in found]

    # -- diagnostics -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """The centres, the values that are expected there, and the noise of measurements: rows are not kept."""
        X = self.functions.X
        m = count_rows(X)
        return X, self.mean(X), np.full(m, self.noise)

    def latent(self) -> "CenterPosterior":
        """As `GP.latent`."""
        latent, white = split_white(self.kernel)
        if latent is None or not white:
            return self
        return dataclasses.replace(self, functions=dataclasses.replace(self.functions, kernel=latent))

    def rescaled(self, kernel: Kernel, factor: float) -> "CenterPosterior":
        raise ParameterError("a posterior of a stream is not calibrated afterwards: its rows are not kept.")

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.coefficients`."""
        own = self.functions
        m = len(own.factor.lower)
        return own.values[0, m:].copy(), own.spreads[0, m:, m:].copy()

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As `GP.trend`."""
        Z = self._aligned(Z)
        (estimate, covariance), H = self.coefficients(), self.prior_mean.columns(Z)
        return self.prior_mean(Z) + H @ estimate, np.einsum("ij,jk,ik->i", H, covariance, H)

    def log_evidence(self) -> float:
        """As `GP.log_evidence`, of all rows, each block given those before."""
        flat = len(self.squares) and self.prior_mean.precision is None
        return self.evidence + (0.5 * float(np.linalg.slogdet(self.squares)[1]) if flat else 0.0)

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        raise ParameterError(NOT_KEPT)

    def numerics(self) -> dict[str, float]:
        """Numbers of centres and rows, the condition number of the covariance of the centres, and the nats lost by
        leaving out others."""
        own = self.functions
        return {
            "jitter": 0.0, "condition": own.factor.condition(), "residual": 0.0,
            "centers": len(own.factor.lower), "rows": self.count, "lost_nats": self.lost,
        }  # fmt: skip
