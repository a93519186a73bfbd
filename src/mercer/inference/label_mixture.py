"""Posterior of the latent functions behind labels whose kernel parameters are in doubt: a mixture over them."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from mercer.core.inputs import Inputs
from mercer.core.registry import storable
from mercer.distributions import total_mean, total_variance
from mercer.gp.likelihood import Likelihood
from mercer.inference.base import LabelPosterior
from mercer.inference.sites import Covariance, LatentCovariance
from mercer.kernels.base import Kernel

MIN_PROBABILITY = np.finfo(float).tiny ** 0.5

register = storable("parts")


@register
@dataclasses.dataclass(frozen=True, eq=False)
class LabelMixture(LabelPosterior):
    """sum_k w_k p(f | t, theta_k). Each of the ``parts`` has its own ``kernels``, one or one for each class, on the
    rows X."""

    parts: tuple[LabelPosterior, ...]
    weights: np.ndarray
    kernels: tuple[tuple[Kernel, ...], ...]
    X: Inputs
    jitter: float = 0.0

    def consistent(self) -> bool:
        return self.weights.shape == (len(self.parts),) and len(self.kernels) == len(self.parts) > 0

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        means, variances = (np.stack(found) for found in zip(*(part.moments(Z) for part in self.parts), strict=True))
        return total_mean(self.weights, means), total_variance(self.weights, means, variances)

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        return self._average([part.class_probabilities(Z, likelihood) for part in self.parts])

    def closed_form(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        return self._average([part.closed_form(Z, likelihood) for part in self.parts])

    def _average(self, probabilities: list[np.ndarray]) -> np.ndarray:
        return np.einsum("k,ksc->sc", self.weights, np.stack(probabilities))

    def left_out(
        self, covariances: Callable[[], Sequence[LatentCovariance]], codes: np.ndarray, likelihood: Likelihood
    ) -> np.ndarray:
        """Each part's own, with weights divided by the probability that it gives to the label left out: importance
        sampling of p(theta | all other labels), with ratios truncated at sqrt(K) times their mean (Ionides 2008)."""
        own = []
        for part, kernels in zip(self.parts, self.kernels, strict=True):
            Ks = lambda kernels=kernels: [Covariance.of(kernel, self.X, self.jitter) for kernel in kernels]
            own.append(part.left_out(Ks, codes, likelihood))
        p = np.stack(own)  # (K, n, C)
        ratios = 1 / np.maximum(p[:, np.arange(len(codes)), codes], MIN_PROBABILITY)
        most = np.sqrt(len(p)) * np.sum(self.weights[:, None] * ratios, axis=0)
        weights = self.weights[:, None] * np.minimum(ratios, most)
        return np.einsum("kn,knc->nc", weights / weights.sum(axis=0), p)
