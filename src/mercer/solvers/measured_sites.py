"""Inference with Gaussian sites where a solver has no matrix of all rows: a site is a measurement with noise 1 / S.

What solvers with such a representation share: covariances of one latent function, and posteriors that are those of the
measurements m + a / S.
"""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.gp.posterior import Posterior
from mercer.gp.process import Seed
from mercer.inference.functions import Expansion, KernelExpansion
from mercer.inference.latent import LatentCovariance
from mercer.inference.sampling.posterior import SampledPosterior
from mercer.inference.sites import MIN_LATENT_VARIANCE, SitePosterior
from mercer.kernels.base import Kernel

MIN_MEASUREMENT = 1e-13  # precision times prior variance of the measurement that stands for a row


class OneFunction(LatentCovariance):
    """Of a solver whose rows are of one latent function."""

    def part(self, rows: np.ndarray, factor: float = 1.0) -> NoReturn:
        _refuse_classes()

    def across(self, others: np.ndarray, rows: np.ndarray, factor: float = 1.0) -> NoReturn:
        _refuse_classes()

    def own_variance(self, others: np.ndarray, factor: float = 1.0) -> NoReturn:
        _refuse_classes()

    @property
    def joint(self) -> NoReturn:
        _refuse_classes()

    @property
    def sampled(self) -> type[SampledPosterior]:
        return SampledPosterior


def _refuse_classes() -> NoReturn:
    raise ParameterError("this solver is for one latent function; more than two classes have several.")


class MeasuredSites(SitePosterior):
    """Approximate posterior of a latent function: that of the measurements m + a / S with noise 1 / S."""

    def consistent(self) -> bool:
        return self.a.shape == self.s.shape == (count_rows(self.X),) and isinstance(self.kernel, Kernel)

    @abstractmethod
    def conditioned(self, y: np.ndarray, noise: np.ndarray) -> Posterior:
        """The process given these measurements of the training rows."""

    @functools.cached_property
    def _measured(self) -> Any:
        (K,) = self.covariances()
        S = np.maximum(self.s**2, MIN_MEASUREMENT / np.maximum(K.diagonal, MIN_LATENT_VARIANCE))
        return self.conditioned(K.times(self.a) + self.a / S, 1 / S + self.labels().jitter)

    def means(self, Z: Inputs) -> np.ndarray:
        return self._measured.mean(Z)[:, None]

    def all_moments(self, Z: Inputs, expansions: list[Expansion] | None = None) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self._measured.moments(Z)
        return mean[:, None], variance[:, None]

    def covariances_of(self, Z: Inputs) -> np.ndarray:
        return self._measured.covariance(Z)[:, None, :, None]

    def slopes(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        dmean, dvariance = self._measured.gradients(Z)
        return dmean[:, None], dvariance[:, None]

    def all_terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        return [(part, mean[:, None], variance[:, None]) for part, mean, variance in self._measured.terms(Z)]

    def sample(self, Z: Inputs, size: int = 1, seed: Seed = 0) -> np.ndarray:
        return self._measured.sample(Z, size, seed)

    # What the answers of other posteriors come from.

    @property
    def coefficients(self) -> Sequence[np.ndarray]:
        return [self.a]

    def expansions(self) -> list[Expansion]:
        return [KernelExpansion(self.kernel, self.rows())]

    def halves(self, c: int, B: np.ndarray) -> NoReturn:
        raise NotImplementedError("there is no factor of the covariance of all rows")

    def pull(self, c: int, V: Any, Q: Any) -> NoReturn:
        raise NotImplementedError("there is no factor of the covariance of all rows")
