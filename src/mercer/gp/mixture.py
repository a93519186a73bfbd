"""Mixtures of posteriors of one function, or of several, that differ in their parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.core.inputs import Inputs
from mercer.distributions import total_mean, total_variance
from mercer.gp.posterior import FunctionPosterior
from mercer.kernels.base import Kernel


class MixtureOfFunctions(FunctionPosterior):
    """sum_k w_k p(f | data, theta_k), with moments by the laws of total variance. ``parts`` are posteriors given the
    same data; ``weights`` (K,) sum to one."""

    parts: tuple[Any, ...]
    weights: np.ndarray

    def mean(self, Z: Inputs) -> np.ndarray:
        return total_mean(self.weights, self._each(lambda part: part.mean(Z)))

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        means, variances = self._both(lambda part: part.moments(Z))
        return total_mean(self.weights, means), total_variance(self.weights, means, variances)

    def covariance(self, Z: Inputs) -> np.ndarray:
        """The mean of the parts', plus that of their means."""
        means = self._each(lambda part: part.mean(Z))
        away = means - total_mean(self.weights, means)
        across = np.tensordot(away * self.weights.reshape(-1, *(1,) * (away.ndim - 1)), away, axes=(0, 0))
        return across + sum(w * part.covariance(Z) for w, part in zip(self.weights, self.parts, strict=True))

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        return self.draw(Z, size, seed)[0]

    def draw(self, Z: Inputs, size: int, seed: Any) -> tuple[np.ndarray, np.ndarray]:
        """Functions drawn, (size, s) or (size, s, C), and the part that each is from, (size,)."""
        seeds = np.random.SeedSequence(seed).generate_state(len(self.parts) + 1)
        chosen = np.random.default_rng(seeds[-1]).choice(len(self.parts), size, p=self.weights / self.weights.sum())
        out = np.empty((size, *self.parts[0].mean(Z).shape))
        for k in np.unique(chosen):
            own = chosen == k
            several = 1 << int(own.sum() - 1).bit_length()  # a power of two: every size is compiled anew
            out[own] = self.parts[k].sample(Z, size=several, seed=int(seeds[k]))[: own.sum()]
        return out, chosen

    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        means, (dmeans, dvariances) = self._each(lambda part: part.mean(Z)), self._both(lambda part: part.gradients(Z))
        mean, dmean = total_mean(self.weights, means), total_mean(self.weights, dmeans)
        across = total_mean(self.weights, 2 * (means - mean)[..., None] * (dmeans - dmean))
        return dmean, total_mean(self.weights, dvariances) + across

    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """Kernels are those of the part with the largest weight."""
        found = [part.terms(Z) for part in self.parts]
        out = []
        for i, (kernel, _, _) in enumerate(found[self.heaviest]):
            means, variances = (np.stack([terms[i][j] for terms in found]) for j in (1, 2))
            out.append((kernel, total_mean(self.weights, means), total_variance(self.weights, means, variances)))
        return out

    @property
    def heaviest(self) -> int:
        """Number of the part with the largest weight."""
        return int(np.argmax(self.weights))

    def reweighted(self, densities: np.ndarray) -> np.ndarray:
        """Weights without each of n rows, (K, n), from the ln p (K, n) that the parts give to it given the others.

        p(theta | data without i) is proportional to p(theta | data) / p(row i | others, theta): importance sampling,
        with ratios truncated at sqrt(K) times their mean (Ionides 2008).
        """
        ratios = np.exp(-densities - np.max(-densities, axis=0))
        most = np.sqrt(len(ratios)) * np.sum(self.weights[:, None] * ratios, axis=0)
        weights = self.weights[:, None] * np.minimum(ratios, most)
        return weights / weights.sum(axis=0)

    def updated_weights(self, gains: np.ndarray) -> np.ndarray:
        """Weights (K,) after further data, from what these added to the log evidence of each part (Bayes' theorem)."""
        weights = self.weights * np.exp(gains - gains.max())
        return weights / weights.sum()

    def _each(self, of: Callable[[Any], np.ndarray]) -> np.ndarray:
        return np.stack([of(part) for part in self.parts])

    def _both(self, of: Callable[[Any], tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        one, two = zip(*(of(part) for part in self.parts), strict=True)
        return np.stack(one), np.stack(two)
