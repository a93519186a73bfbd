"""What all posteriors answer: of a function given measurements, and of latent functions given class labels."""

import abc
from typing import Any

import numpy as np

from mercer.core.inputs import Inputs
from mercer.distributions import Distribution
from mercer.kernels.base import Kernel


class FunctionPosterior(abc.ABC):
    """Posterior of one latent function, without measurement noise, or of C of them, for more than two classes: then
    arrays have an axis for the classes, after that for the rows."""

    @abc.abstractmethod
    def mean(self, Z: Inputs) -> np.ndarray:
        """(s,) or (s, C)."""

    @abc.abstractmethod
    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance: (s,) or (s, C), each."""

    @abc.abstractmethod
    def covariance(self, Z: Inputs) -> np.ndarray:
        """(s, s) or (s, C, s, C)."""

    @abc.abstractmethod
    def sample(self, Z: Inputs, size: int = 1, seed: Any = 0) -> np.ndarray:
        """Functions drawn, at the rows of Z: (size, s) or (size, s, C)."""

    @abc.abstractmethod
    def gradients(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of mean and variance with respect to the inputs: (s, d) or (s, C, d), each."""

    @abc.abstractmethod
    def terms(self, Z: Inputs) -> list[tuple[Kernel, np.ndarray, np.ndarray]]:
        """Each term of a sum of kernels, except white noise, with the posterior mean and variance of its component."""

    @abc.abstractmethod
    def leave_one_out(self) -> Any:
        """Prediction of each measurement or label from all the others."""

    @abc.abstractmethod
    def condition(self, *args: Any, **kwargs: Any) -> "FunctionPosterior":
        """Given more measurements or labels, at the same parameters. Conditioning twice equals conditioning once."""

    @abc.abstractmethod
    def numerics(self) -> dict[str, Any]:
        """How it was computed, and how well: what was added to the diagonal ("jitter"), and more."""


class Posterior(FunctionPosterior):
    """Posterior of the latent function given measurements, from any solver."""

    @property
    @abc.abstractmethod
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """Inputs, targets and noise variances that it was conditioned on."""

    @property
    @abc.abstractmethod
    def unknown(self) -> bool:
        """Whether the mean has an unknown constant, integrated out."""

    @abc.abstractmethod
    def predict(self, Z: Inputs, noise: float | np.ndarray = 0.0) -> Distribution:
        """Distribution of measurements with this noise variance, one or one for each row of Z; without it, of the
        function."""

    @abc.abstractmethod
    def latent(self) -> "Posterior":
        """The same without white noise that is part of the kernel."""

    @abc.abstractmethod
    def condition(self, X: Inputs, y: np.ndarray, noise: np.ndarray) -> "Posterior":
        """Given more measurements, of these noise variances."""

    @abc.abstractmethod
    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each measurement given all the others: (n,), (n,)."""

    @abc.abstractmethod
    def rescaled(self, kernel: Kernel, factor: float) -> "Posterior":
        """With all variances, noise included, ``factor`` times as large: ``kernel`` must equal factor times this one.
        May invalidate this posterior."""

    @abc.abstractmethod
    def constant(self) -> float:
        """The estimate of an unknown constant in the mean; zero where there is none."""

    @abc.abstractmethod
    def log_evidence(self) -> float:
        """ln p(y) (PRML 6.69)."""
