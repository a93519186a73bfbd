"""Posterior of the latent functions behind labels whose kernel parameters are in doubt: a mixture over them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mercer.core.inputs import Inputs, count_rows
from mercer.core.registry import storable
from mercer.distributions import total_mean, total_variance
from mercer.gp.likelihood import Likelihood
from mercer.inference.base import LabelPosterior, Labels
from mercer.inference.latent import LatentCovariance
from mercer.kernels.base import Kernel

MIN_PROBABILITY = np.finfo(float).tiny ** 0.5

register = storable("parts")


@register
@dataclasses.dataclass(frozen=True, eq=False)
class LabelMixture(LabelPosterior):
    """sum_k w_k p(f | t, theta_k). Each of the ``parts`` has its own kernels, one or one for each class, on the same
    rows."""

    parts: tuple[LabelPosterior, ...]
    weights: np.ndarray

    def consistent(self) -> bool:
        return self.weights.shape == (len(self.parts),) and len(self.parts) > 0

    @property
    def _largest(self) -> LabelPosterior:
        """The part with the largest weight."""
        return self.parts[int(np.argmax(self.weights))]

    @property
    def kernels(self) -> tuple[Kernel, ...]:  # type: ignore[override]
        return self._largest.kernels

    @property
    def X(self) -> Inputs:
        return self.parts[0].X

    @property
    def given(self) -> Labels | None:  # type: ignore[override]
        return self._largest.given

    # -- the functions ---------------------------------------------------------------------------------------------

    def mean(self, Z: Inputs) -> np.ndarray:
        return total_mean(self.weights, np.stack([part.mean(Z) for part in self.parts]))

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        means, variances = (np.stack(found) for found in zip(*(part.moments(Z) for part in self.parts), strict=True))
        return total_mean(self.weights, means), total_variance(self.weights, means, variances)

    def covariance(self, Z: Inputs) -> np.ndarray:
        """By the law of total covariance."""
        means = np.stack([part.mean(Z) for part in self.parts])
        away = (means - total_mean(self.weights, means)).reshape(len(means), -1)
        within = sum(w * part.covariance(Z) for w, part in zip(self.weights, self.parts, strict=True))
        return within + ((away * self.weights[:, None]).T @ away).reshape(np.shape(within))

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        seeds = np.random.SeedSequence(seed).generate_state(len(self.parts) + 1)
        chosen = np.random.default_rng(seeds[-1]).choice(len(self.parts), size, p=self.weights / self.weights.sum())
        out = np.empty((size, *np.shape(self.parts[0].mean(Z))))
        for k in np.unique(chosen):
            own = chosen == k
            out[own] = self.parts[k].sample(Z, int(own.sum()), int(seeds[k]))
        return out

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        means = np.stack([part.mean(Z) for part in self.parts])
        dmeans, dvariances = (np.stack(found) for found in zip(*(p.gradients(Z) for p in self.parts), strict=True))
        mean, dmean = total_mean(self.weights, means), total_mean(self.weights, dmeans)
        across = total_mean(self.weights, 2 * (means - mean)[..., None] * (dmeans - dmean))
        return dmean, total_mean(self.weights, dvariances) + across

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """Kernels are those of the part with the largest weight."""
        found: list[Any] = [part.terms(Z) for part in self.parts]
        out = []
        for i, (kernel, _, _) in enumerate(self._largest.terms(Z)):
            means, variances = (np.stack([terms[i][j] for terms in found]) for j in (1, 2))
            out.append((kernel, total_mean(self.weights, means), total_variance(self.weights, means, variances)))
        return out

    # -- labels ----------------------------------------------------------------------------------------------------

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        return self._average([part.class_probabilities(Z, likelihood) for part in self.parts])

    def closed_form(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        return self._average([part.closed_form(Z, likelihood) for part in self.parts])

    def _average(self, probabilities: Sequence[np.ndarray]) -> np.ndarray:
        return np.einsum("k,ksc->sc", self.weights, np.stack(probabilities))

    def leave_one_out(self, covariances: Sequence[LatentCovariance] | None = None) -> np.ndarray:
        """Each part's own, with weights divided by the probability that it gives to the label left out: importance
        sampling of p(theta | all other labels), with ratios truncated at sqrt(K) times their mean (Ionides 2008)."""
        p, codes = np.stack([part.leave_one_out() for part in self.parts]), self.labels().codes  # (K, n, C)
        ratios = 1 / np.maximum(p[:, np.arange(len(codes)), codes], MIN_PROBABILITY)
        most = np.sqrt(len(p)) * np.sum(self.weights[:, None] * ratios, axis=0)
        weights = self.weights[:, None] * np.minimum(ratios, most)
        return np.einsum("kn,knc->nc", weights / weights.sum(axis=0), p)

    def start(self, covariances: Any) -> Any:
        """That of the part with the largest weight."""
        return self._largest.start(covariances)

    def condition(self, X: Inputs, codes: np.ndarray, seed: Any = 0) -> "LabelMixture":
        """Each part is conditioned at its own parameters; its weight is multiplied by the probability that it gave to
        the new labels, as if these were independent given the data."""
        if count_rows(X) == 0:
            return self
        codes = np.asarray(codes)
        parts = tuple(part.condition(X, codes, seed) for part in self.parts)
        likelihood, rows = self.labels().inference.likelihood, np.arange(count_rows(X))
        own = [part.class_probabilities(X, likelihood)[rows, codes] for part in self.parts]
        gain = np.log(np.maximum(own, MIN_PROBABILITY)).sum(axis=1)
        weights = self.weights * np.exp(gain - gain.max())
        return LabelMixture(parts, weights / weights.sum())
