"""What inference asks of a solver: the covariance of latent functions on the training rows, in its representation.

Posteriors with Gaussian sites come from factors of it, those of several classes from a joint factor, samples from a
root. `sites` has the matrix itself, `features` the features of a kernel.
"""

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mercer.core.inputs import Inputs
from mercer.gram import Gram
from mercer.inference.base import Labels
from mercer.kernels.base import Kernel

if TYPE_CHECKING:  # these modules import this one
    from mercer.inference.sampling.posterior import SampledPosterior
    from mercer.inference.sites import SiteApproximation, SitePosterior
    from mercer.inference.softmax.factor import JointSites


class SiteFactor(abc.ABC):
    """(K^-1 + S)^-1, the posterior covariance of n latent values with Gaussian sites of precisions S."""

    log_det: float  # of B = I + S^1/2 K S^1/2

    @abc.abstractmethod
    def weights(self, nu: np.ndarray) -> np.ndarray:
        """a = K^-1 m of the posterior mean m = (K^-1 + S)^-1 nu: (n,)."""

    def informed_weights(self, nu: np.ndarray) -> np.ndarray:
        """`weights` where all sites have a positive precision, and nu / S the size of a measurement: without the
        difference of large numbers there, if the representation has one."""
        return self.weights(nu)

    @abc.abstractmethod
    def variance(self) -> np.ndarray:
        """Diagonal of the posterior covariance: (n,). May overwrite what `posterior` needs."""

    @abc.abstractmethod
    def slope(
        self, contract: Callable[..., np.ndarray], a: np.ndarray, through_mode: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """d ln Z / d theta (`SiteApproximation`). ``contract`` is that of the solver's representation of K; overwrites
        the factor."""

    @property
    @abc.abstractmethod
    def prior(self) -> "LatentCovariance":
        """K."""

    @abc.abstractmethod
    def posterior(
        self, kernel: Kernel, X: Inputs, approximation: "SiteApproximation", given: Labels
    ) -> "SitePosterior":
        """The approximate posterior as a distribution over functions."""


class LatentCovariance(abc.ABC):
    """K on n rows, as a solver represents it: what inference asks for. Classes that share a prior share K."""

    n: int
    diagonal: np.ndarray

    @abc.abstractmethod
    def times(self, v: np.ndarray) -> np.ndarray:
        """K v."""

    @abc.abstractmethod
    def factor(self, S: np.ndarray) -> SiteFactor | None:
        """Posterior with sites of precisions S; None if K is not positive semidefinite."""

    @abc.abstractmethod
    def part(self, rows: np.ndarray, factor: float = 1.0) -> "LatentCovariance":
        """``factor`` K on some rows."""

    @abc.abstractmethod
    def across(self, others: np.ndarray, rows: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """What posteriors given ``rows``, with covariance `part`, predict ``others`` from: b of `functions`, (s, r)."""

    @abc.abstractmethod
    def own_variance(self, others: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """Prior variance of ``others`` that is not through `across`: (s,)."""

    def known_to(self, rows: Gram, jitter: float) -> Gram:
        """These training rows, which need not compute K again if it is at hand without the ``jitter`` on its diagonal;
        K may be overwritten from then on."""
        return rows

    @property
    @abc.abstractmethod
    def joint(self) -> "type[JointSites]":
        """Factor of the posterior of several classes with such covariances."""

    @property
    @abc.abstractmethod
    def sampled(self) -> "type[SampledPosterior]":
        """Posterior from draws with such a covariance."""


class LatentSpace(abc.ABC):
    """K(theta) on fixed rows, so that every inference runs on every solver. Use it in a ``with`` block."""

    K: Any  # what `Gram.varying` or `Gram.feature_map` gives
    n: int
    rank: int  # columns of a root of K

    @abc.abstractmethod
    def __init__(self, kernel: Kernel, X: Inputs) -> None: ...

    @property
    def size(self) -> int:
        """Free parameters of the kernel."""
        return self.K.layout.size

    @abc.abstractmethod
    def at(self, theta: np.ndarray, jitter: float = 0.0, accurate: bool = False) -> LatentCovariance:
        """K at theta, plus ``jitter`` on its diagonal. ``accurate``: after a failure, without shortcuts that may lose
        digits. May overwrite the previous one."""

    @abc.abstractmethod
    def rooted(self, theta: np.ndarray, accurate: bool = False) -> tuple[LatentCovariance, np.ndarray] | None:
        """K at theta and R (n, r) with R R^T = K, for samplers; None if K is not positive definite. K may have the
        jitter of `SAMPLING`, and belongs to the caller."""

    def give_away(self) -> bool:
        """What `at` returned last belongs to the caller from now on; False if the next call will overwrite it."""
        return False

    def contraction(self, theta: np.ndarray) -> Callable[..., np.ndarray]:
        """The derivatives of K at theta, for `SiteFactor.slope`."""
        return functools.partial(self.K.contract, theta)

    def __enter__(self) -> Self:
        self.K.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.K.__exit__(*error)
