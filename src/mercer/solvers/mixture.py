"""Posterior of a function whose parameters are in doubt: a mixture of the posteriors at several theta."""

import dataclasses
from typing import Any

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs
from mercer.core.registry import storable
from mercer.distributions import Mixture, Normal, total_mean, total_variance
from mercer.gp.mean import MeanFunction
from mercer.gp.mixture import MixtureOfFunctions
from mercer.gp.noise import Noise
from mercer.gp.posterior import Posterior
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel

register = storable("parts")


@register
@dataclasses.dataclass(frozen=True, eq=False)
class MixturePosterior(MixtureOfFunctions, Posterior):
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

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]
        """That of the part with the largest weight."""
        return self.parts[self.heaviest].kernel

    def components(self, noise: Noise | None = None) -> list[tuple[float, Posterior, Noise]]:
        return list(zip(self.weights.tolist(), self.parts, self.noises, strict=True))

    def added_noise(self, Z: Inputs, noise: Noise | None = None, include_noise: bool = True) -> np.ndarray:
        """Each part has its own noise: (K, 1) or (K, s)."""
        if not include_noise:
            return -np.array([[float(split_white(part.kernel)[1])] for part in self.parts])
        return np.stack([np.atleast_1d(own.at(Z)) for own in self.noises])

    def covariance_with(self, Z: Inputs, added: np.ndarray) -> np.ndarray:
        return super().covariance_with(Z, self.weights @ added)

    def sample_with(self, Z: Inputs, size: int, seed: int, added: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        draws, chosen = self.draw(Z, size, seed)
        return draws + rng.normal(size=draws.shape) * np.sqrt(added[chosen])

    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Mixture:
        """``noise`` may differ between parts: (K, 1) or (K, s)."""
        noises: Any = noise if np.ndim(noise) == 2 else [noise] * len(self.parts)
        pairs = zip(self.parts, noises, strict=True)
        return Mixture(tuple(part.predict(Z, own) for part, own in pairs), self.weights)

    def latent(self) -> "MixturePosterior":
        return dataclasses.replace(self, parts=tuple(part.latent() for part in self.parts))

    # -- new data, and rows left out -----------------------------------------------------------------------------------

    def left_out(self) -> Mixture:
        """Predictions of each row from all others: each part's own, which are exact at its theta, with the weights
        that it has without the row (`reweighted`)."""
        y = self.parts[0].data[1]
        parts = tuple(Normal(mean, np.sqrt(variance)) for mean, variance in (p.leave_one_out() for p in self.parts))
        return Mixture(parts, self.reweighted(np.stack([part.log_density(y) for part in parts])))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        found = self.left_out()
        return found.mean, found.deviation**2

    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "MixturePosterior":
        """``noise`` (s,), or (K, s) if it differs between parts."""
        own = np.broadcast_to(noise, (len(self.parts), len(y)))
        parts = tuple(part.condition(X, y, each.copy()) for part, each in zip(self.parts, own, strict=True))
        gains = np.array([b.log_evidence() - a.log_evidence() for a, b in zip(self.parts, parts, strict=True)])
        return dataclasses.replace(self, parts=parts, weights=self.updated_weights(gains))

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
        return self.parts[self.heaviest].log_evidence()

    def numerics(self) -> dict[str, float]:
        """The largest of all parts."""
        found = [part.numerics() for part in self.parts]
        return {name: max(each[name] for each in found) for name in found[0]}
