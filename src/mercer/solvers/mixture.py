"""Posterior of a function whose parameters are in doubt: a mixture of the posteriors at several theta."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs, count_rows
from mercer.core.registry import storable
from mercer.distributions import Mixture, Normal, total_mean, total_variance
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.gp.posterior import Posterior
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel

register = storable("parts")


@register
@dataclasses.dataclass(frozen=True, eq=False)
class MixturePosterior(Posterior):
    """sum_k w_k p(f | y, theta_k): a `Posterior` of which ``parts`` are posteriors of the same rows.

    ``noises`` are the noise of new measurements in each part, in units of the target that the parts have.
    """

    parts: tuple[Any, ...]
    weights: np.ndarray
    noises: tuple[Noise, ...]

    def consistent(self) -> bool:
        """Whether the numbers of parts agree, for `mercer.load`."""
        return self.weights.shape == (len(self.parts),) and len(self.noises) == len(self.parts) > 0

    @property
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """Inputs and targets, and noise variances averaged over the parts."""
        X, y, _ = self.parts[0].data
        return X, y, total_mean(self.weights, np.stack([part.data[2] for part in self.parts]))

    @property
    def prior_mean(self) -> MeanFunction:  # type: ignore[override]
        """That of the part with the largest weight; its columns are those of all."""
        return self.parts[int(np.argmax(self.weights))].prior_mean

    # -- predictions ---------------------------------------------------------------------------------------------------

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]
        """That of the part with the largest weight."""
        return self.parts[int(np.argmax(self.weights))].kernel

    def added_noise(self, Z: Inputs, noise: Noise | None = None, include_noise: bool = True) -> np.ndarray:
        """Each part has its own noise: (K, 1) or (K, s)."""
        if not include_noise:
            return -np.array([[float(split_white(part.kernel)[1])] for part in self.parts])
        return np.stack([np.atleast_1d(own.at(Z)) for own in self.noises])

    def mean(self, Z: Inputs) -> np.ndarray:
        return total_mean(self.weights, self._each(lambda part: part.mean(Z)))

    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        means, variances = (np.stack(found) for found in zip(*(part.moments(Z) for part in self.parts), strict=True))
        return total_mean(self.weights, means), total_variance(self.weights, means, variances)

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Mixture:
        """``noise`` may differ between parts: (K, 1) or (K, s)."""
        noises: Any = noise if np.ndim(noise) == 2 else [noise] * len(self.parts)
        pairs = zip(self.parts, noises, strict=True)
        return Mixture(tuple(part.predict(Z, own) for part, own in pairs), self.weights)

    def covariance(self, Z: Inputs) -> np.ndarray:
        """By the law of total covariance: the mean of the parts', plus that of their means."""
        means = self._each(lambda part: part.mean(Z))
        away = means - total_mean(self.weights, means)
        within = sum(w * part.covariance(Z) for w, part in zip(self.weights, self.parts, strict=True))
        return within + (away * self.weights[:, None]).T @ away

    def components(self, noise: Noise | None = None) -> list[tuple[float, Posterior, Noise]]:
        return list(zip(self.weights.tolist(), self.parts, self.noises, strict=True))

    def covariance_with(self, Z: Inputs, added: np.ndarray) -> np.ndarray:
        return super().covariance_with(Z, self.weights @ added)

    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        return self._drawn(Z, size, seed)[0]

    def sample_with(self, Z: Inputs, size: int, seed: int, added: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        draws, chosen = self._drawn(Z, size, seed)
        return draws + rng.normal(size=draws.shape) * np.sqrt(added[chosen])

    def _drawn(self, Z: Inputs, size: int, seed: Any) -> tuple[np.ndarray, np.ndarray]:
        """Functions drawn, (size, s), and the part that each is from, (size,)."""
        seeds = np.random.SeedSequence(seed).generate_state(len(self.parts) + 1)
        chosen = np.random.default_rng(seeds[-1]).choice(len(self.parts), size, p=self.weights / self.weights.sum())
        out = np.empty((size, count_rows(Z)))
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

    def terms(self, Z: Inputs) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        """Kernels are those of the part with the largest weight."""
        found = [part.terms(Z) for part in self.parts]
        out = []
        for i, (kernel, _, _) in enumerate(found[int(np.argmax(self.weights))]):
            means, variances = (np.stack([terms[i][j] for terms in found]) for j in (1, 2))
            out.append((kernel, total_mean(self.weights, means), total_variance(self.weights, means, variances)))
        return out

    def latent(self) -> "MixturePosterior":
        return dataclasses.replace(self, parts=tuple(part.latent() for part in self.parts))

    # -- new data, and rows left out -----------------------------------------------------------------------------------

    def left_out(self) -> Mixture:
        """Predictions of each row from all others.

        Each part's own are exact at its theta, N(m_ki, v_ki). Without row i the weight of theta_k is w_k divided by the
        density that it gives to y_i, since p(theta | y without i) is proportional to p(theta | y) / p(y_i | others,
        theta): importance sampling, with ratios truncated at sqrt(K) times their mean (Ionides 2008).
        """
        y = self.parts[0].data[1]
        parts = tuple(Normal(mean, np.sqrt(variance)) for mean, variance in (p.leave_one_out() for p in self.parts))
        logs = -np.stack([part.log_density(y) for part in parts])  # (K, n)
        ratios = np.exp(logs - logs.max(axis=0))
        most = np.sqrt(len(parts)) * np.sum(self.weights[:, None] * ratios, axis=0)
        weights = self.weights[:, None] * np.minimum(ratios, most)
        return Mixture(parts, weights / weights.sum(axis=0))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        found = self.left_out()
        return found.mean, found.deviation**2

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "MixturePosterior":
        """``noise`` (s,), or (K, s) if it differs between parts. Weights are multiplied by the density that each part
        gives to the new measurements (Bayes' theorem for theta)."""
        own = np.broadcast_to(noise, (len(self.parts), len(y)))
        parts = tuple(part.condition(X, y, each.copy()) for part, each in zip(self.parts, own, strict=True))
        gain = np.array([b.log_evidence() - a.log_evidence() for a, b in zip(self.parts, parts, strict=True)])
        weights = self.weights * np.exp(gain - gain.max())
        return dataclasses.replace(self, parts=parts, weights=weights / weights.sum())

    def extended(
        self, X: Inputs, y: np.ndarray, given: np.ndarray | None, variances: np.ndarray, jitter: float
    ) -> "MixturePosterior":
        """With each part's own noise."""
        noises, own = zip(*(each.extended(given, X) for each in self.noises), strict=True)
        return dataclasses.replace(self.condition(X, y, np.stack(own) + jitter), noises=noises)

    def rescaled(self, kernel: Kernel, factor: float) -> "MixturePosterior":
        raise ParameterError("a mixture over parameters is not calibrated: it has their uncertainty already.")

    # -- numbers -------------------------------------------------------------------------------------------------------

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        estimates, covariances = self._both(lambda part: part.coefficients())
        mean = total_mean(self.weights, estimates)
        away = estimates - mean
        return mean, np.einsum("k,kij->ij", self.weights, covariances + away[:, :, None] * away[:, None, :])

    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        means, variances = self._both(lambda part: part.trend(Z))
        return total_mean(self.weights, means), total_variance(self.weights, means, variances)

    def log_evidence(self) -> float:
        """Of the part with the largest weight."""
        return self.parts[int(np.argmax(self.weights))].log_evidence()

    def numerics(self) -> dict[str, float]:
        """The largest of all parts."""
        found = [part.numerics() for part in self.parts]
        return {name: max(each[name] for each in found) for name in found[0]}

    def _each(self, of: Callable[[Posterior], np.ndarray]) -> np.ndarray:
        return np.stack([of(part) for part in self.parts])

    def _both(self, of: Callable[[Posterior], tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        one, two = zip(*(of(part) for part in self.parts), strict=True)
        return np.stack(one), np.stack(two)
