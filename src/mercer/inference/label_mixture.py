"""Posterior of the latent functions behind labels whose kernel parameters are in doubt: a mixture over them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mercer.core.inputs import Inputs
from mercer.core.registry import storable
from mercer.gp.likelihood import Likelihood
from mercer.gp.mixture import MixtureOfFunctions
from mercer.inference.base import LabelPosterior, Labels
from mercer.inference.latent import LatentCovariance
from mercer.kernels.base import Kernel

MIN_PROBABILITY = np.finfo(float).tiny

register = storable("parts")


@register
@dataclasses.dataclass(frozen=True, eq=False)
class LabelMixture(MixtureOfFunctions, LabelPosterior):
    """sum_k w_k p(f | t, theta_k); ``parts`` are posteriors of the same rows and labels."""

    parts: tuple[LabelPosterior, ...]
    weights: np.ndarray

    def consistent(self) -> bool:
        return self.weights.shape == (len(self.parts),) and len(self.parts) > 0

    @property
    def kernels(self) -> tuple[Kernel, ...]:  # type: ignore[override]
        """Those of the part with the largest weight."""
        return self.parts[self.heaviest].kernels

    @property
    def X(self) -> Inputs:
        return self.parts[0].X

    @property
    def given(self) -> Labels | None:  # type: ignore[override]
        return self.parts[self.heaviest].given

    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        return self._average([part.class_probabilities(Z, likelihood) for part in self.parts])

    def closed_form(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        return self._average([part.closed_form(Z, likelihood) for part in self.parts])

    def _average(self, probabilities: list[np.ndarray]) -> np.ndarray:
        return np.einsum("k,ksc->sc", self.weights, np.stack(probabilities))

    def leave_one_out(self, covariances: Sequence[LatentCovariance] | None = None) -> np.ndarray:
        """Each part's own, with the weights that it has without the label (`reweighted`)."""
        p = np.stack([part.leave_one_out() for part in self.parts])  # (K, n, C)
        codes = self.labels().codes
        own = np.maximum(p[:, np.arange(len(codes)), codes], MIN_PROBABILITY)
        return np.einsum("kn,knc->nc", self.reweighted(np.log(own)), p)

    def start(self, covariances: Sequence[LatentCovariance]) -> None:
        """A mixture is no start of inference; its parts are."""

    def condition(self, X: Inputs, codes: np.ndarray, seed: Any = 0) -> "LabelMixture":
        parts = tuple(part.condition(X, codes, seed) for part in self.parts)
        gains = [_log_evidence(new) - _log_evidence(old) for old, new in zip(self.parts, parts, strict=True)]
        return LabelMixture(parts, self.updated_weights(np.array(gains)))

    def numerics(self) -> dict[str, Any]:
        """Of the part with the largest weight; converged if inference did in all of them."""
        converged = all(part.numerics().get("converged", True) for part in self.parts)
        return {**self.parts[self.heaviest].numerics(), "converged": converged}


def _log_evidence(posterior: LabelPosterior) -> float:
    """ln p(t | theta), by its own inference."""
    given, covariances = posterior.labels(), posterior.covariances()
    found = given.inference(covariances, given.codes, posterior.start(covariances), gradient=False)
    return -np.inf if found is None else float(found.log_evidence)
