"""What all posteriors answer: of a function given measurements, and of latent functions given class labels."""

import abc
from typing import Any, ClassVar

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs
from mercer.distributions import Distribution, Normal
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import Noise
from mercer.kernels.algebra import split_white
from mercer.kernels.base import Kernel


class FunctionPosterior(abc.ABC):
    """Posterior of one latent function, without measurement noise, or of C of them, for more than two classes: then
    arrays have an axis for the classes, after that for the rows."""

    keeps_rows: ClassVar[bool] = True  # whether it holds the rows it was given; a stream's does not

    @abc.abstractmethod
    def mean(self, Z: Inputs) -> np.ndarray:
        """(s,) or (s, C). Rows may be prepared: a `gram.Gram`."""

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
    """Posterior of the latent function given measurements, from any solver.

    ``prior_mean`` is the mean before any data, fitted to the rows; it may have unknown coefficients, integrated out.
    Noise of new measurements is what `added_noise` returns: one variance or (s,); for a mixture, which has a noise of
    its own in each part, (K, 1) or (K, s).
    """

    kernel: Kernel
    prior_mean: MeanFunction

    @property
    @abc.abstractmethod
    def data(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """Inputs, targets and noise variances that it was conditioned on."""

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
    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Estimates of the unknown coefficients of the mean's columns, and their covariance: (q,), (q, q)."""

    @abc.abstractmethod
    def trend(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """The mean before any data, with estimated coefficients, and its variance: (s,), (s,)."""

    @abc.abstractmethod
    def log_evidence(self) -> float:
        """ln p(y) (PRML 6.69)."""

    def observing(self, X: Inputs, operator: Any) -> "tuple[Posterior, Inputs]":
        """The same function for rows that say what is observed of it, and these rows: those of X under the operator.
        Refused by posteriors whose kernel is not evaluated under operators."""
        raise ParameterError(
            "predictions under an operator are for solver='dense' and learning='mle' or 'map'; this model has "
            f"{type(self).__name__} as posterior."
        )

    # -- new measurements --------------------------------------------------------------------------------------------

    def added_noise(self, Z: Inputs, noise: Noise, include_noise: bool = True) -> Any:
        """What to add to the variance for measurements with this ``noise``, or for the function itself: minus the
        white noise in the kernel."""
        return noise.at(Z) if include_noise else -split_white(self.kernel)[1]

    def components(self, noise: Noise) -> "list[tuple[float, Posterior, Noise]]":
        """What it is a mixture of: weights, posteriors, and the noise with each; itself alone if it is none."""
        return [(1.0, self, noise)]

    def covariance_with(self, Z: Inputs, added: Any) -> np.ndarray:
        """Covariance of measurements with `added_noise`: (s, s)."""
        K = self.covariance(Z)
        K[np.diag_indices_from(K)] += added
        return K

    def sample_with(self, Z: Inputs, size: int, seed: int, added: Any, rng: np.random.Generator) -> np.ndarray:
        """Measurements drawn, with `added_noise`: (size, s)."""
        draws = self.sample(Z, size=size, seed=seed)
        return draws + rng.normal(size=draws.shape) * np.sqrt(added)

    def left_out(self) -> Distribution:
        """Distribution of each measurement given all the others."""
        mean, variance = self.leave_one_out()
        return Normal(mean, np.sqrt(variance))

    def extended(
        self, X: Inputs, y: np.ndarray, given: np.ndarray | None, variances: np.ndarray, jitter: float
    ) -> "Posterior":
        """Given more measurements, of noise ``variances`` (m,); ``given`` are those of the user's, if any."""
        return self.condition(X, y, variances + jitter)
