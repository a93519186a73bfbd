"""Inference methods for two-class and multiclass classification."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs
from mercer.gp.likelihoods import Student, TargetLikelihood
from mercer.inference.base import Approximation, Inference, InferTarget, LabelPosterior, Labels, named, register
from mercer.inference.ep import ep
from mercer.inference.laplace import laplace
from mercer.inference.latent import LatentCovariance, LatentSpace
from mercer.inference.sampling.draws import Draws, Progress
from mercer.inference.sampling.labels import sample_label_latents
from mercer.inference.sampling.posterior import SampledPosterior
from mercer.inference.sites import LatentPosterior
from mercer.inference.softmax.laplace import softmax_laplace
from mercer.inference.softmax.posterior import SoftmaxPosterior
from mercer.inference.softmax.variational import COARSE_RULE, softmax_variational
from mercer.inference.variational import BOUNDS, gaussian, scale_mixture
from mercer.kernels.base import Kernel

MAX_AUTO_WORK = 7 * 2500.0**3  # C n^3 above which "auto" uses Laplace's method


class GaussianInference(Inference):
    """Base of methods with a Gaussian posterior, over one latent function or one per class."""

    parts = (LatentPosterior, SoftmaxPosterior)

    def posterior(
        self, found: Any, kernels: list[Kernel], X: Inputs, codes: np.ndarray, jitter: float = 0.0,
        draws: Draws | None = None,
    ) -> LabelPosterior:  # fmt: skip
        numerics = {"iterations": found.iterations, "converged": bool(found.converged)}
        given = Labels(codes, self, jitter, numerics)
        if self.classes > 2:
            return found.posterior(kernels, X, given)
        return found.factor.posterior(kernels[0], X, found, given)


@register
@dataclasses.dataclass(frozen=True)
class Laplace(GaussianInference):
    """A Gaussian at the mode of the posterior (PRML 6.4.6; RW06 3.4, 3.5)."""

    name = "laplace"
    work = 5.0
    needs_small_variance = True

    def __call__(
        self, covariances: Sequence[LatentCovariance], codes: np.ndarray, start: Any = None, gradient: bool = True
    ) -> Approximation | None:
        if self.classes > 2:
            return softmax_laplace(covariances, codes, start, gradient, classes=self.classes)
        return laplace(covariances[0], 2.0 * codes - 1, self.likelihood, start, gradient)

    def for_target(self, likelihood: TargetLikelihood) -> InferTarget:
        return laplace


@register
@dataclasses.dataclass(frozen=True)
class ExpectationPropagation(GaussianInference):
    """Gaussian with site-wise matched moments, for two classes (RW06 3.6)."""

    name = "ep"

    def refusal(self) -> str | None:
        if self.classes > 2:
            return (
                f"y has {self.classes} classes; expectation propagation is for two. Take inference='laplace', "
                "'variational' or 'mcmc' for their joint softmax model."
            )
        return super().refusal()

    def __call__(
        self, covariances: Sequence[LatentCovariance], codes: np.ndarray, start: Any = None, gradient: bool = True
    ) -> Approximation | None:
        return ep(covariances[0], 2.0 * codes - 1, self.likelihood, start, gradient)

    def for_target(self, likelihood: TargetLikelihood) -> InferTarget:
        if not likelihood.log_concave:
            raise ParameterError(
                f"inference={self.name!r} may not converge for likelihood={likelihood.label!r}, which is not "
                "log-concave. Use inference='laplace' or 'variational'."
            )
        return ep


@register
@dataclasses.dataclass(frozen=True)
class Variational(GaussianInference):
    """Variational Gaussian: the optimal one (bound="gaussian"), or from local bounds on each sigmoid (bound="local",
    PRML 10.144). With more than two classes, parameters are learned by Laplace's evidence. ``coarse``: with these, end
    the iteration early."""

    name = "variational"
    work = 10.0
    bound: str = "gaussian"
    coarse: bool = False

    def refusal(self) -> str | None:
        if self.bound == "local" and (self.classes > 2 or self.link != "logistic"):
            return "bound='local' bounds the logistic sigmoid of two classes; take bound='gaussian'."
        return super().refusal()

    def for_learning(self) -> Inference:
        return self if self.classes == 2 else Laplace(self.classes)

    def for_scores(self) -> Inference:
        return dataclasses.replace(self, coarse=True)

    def __call__(
        self, covariances: Sequence[LatentCovariance], codes: np.ndarray, start: Any = None, gradient: bool = True
    ) -> Approximation | None:
        if self.classes > 2:
            rule = COARSE_RULE if self.coarse else None
            return softmax_variational(covariances, codes, start, gradient, classes=self.classes, rule=rule)
        return BOUNDS[self.bound](covariances[0], 2.0 * codes - 1, self.likelihood, start, gradient)

    def for_target(self, likelihood: TargetLikelihood) -> InferTarget:
        return scale_mixture if isinstance(likelihood, Student) else gaussian


@register
@dataclasses.dataclass(frozen=True)
class MarkovChains(Inference):
    """MCMC samples of the latent functions. The evidence, and the kernel parameters unless sampled jointly, come from
    expectation propagation, or from Laplace's method for more than two classes."""

    name = "mcmc"
    work = 40.0
    parts = (SampledPosterior,)
    samples = True
    n_samples: int = 1000

    def for_learning(self) -> Inference:
        return ExpectationPropagation(2, self.link) if self.classes == 2 else Laplace(self.classes)

    def __call__(
        self, covariances: Sequence[LatentCovariance], codes: np.ndarray, start: Any = None, gradient: bool = True
    ) -> Approximation | None:
        return self.for_learning()(covariances, codes, start, gradient)

    def for_scores(self) -> Inference:
        return named(most_accurate(self.classes), classes=self.classes, link=self.link).for_scores()

    def sample(
        self, spaces: Sequence[LatentSpace], kernels: list[Kernel], codes: np.ndarray, jointly: bool,
        rng: np.random.Generator, progress: Progress | None,
    ) -> Draws | None:  # fmt: skip
        return sample_label_latents(
            spaces, kernels, codes, self.classes, self.likelihood, jointly, n_samples=self.n_samples, rng=rng,
            progress=progress,
        )  # fmt: skip

    def posterior(
        self, found: Any, kernels: list[Kernel], X: Inputs, codes: np.ndarray, jitter: float = 0.0,
        draws: Draws | None = None,
    ) -> LabelPosterior:  # fmt: skip
        assert draws is not None
        kernel = kernels[0] if len(kernels) == 1 else tuple(kernels)
        return found.prior.sampled.of(kernel, X, draws, Labels(codes, self, jitter, draws.numerics()))


def automatic(n: int, classes: int) -> str:
    """Method of inference="auto" for n rows: the most accurate one, unless it would take minutes."""
    return most_accurate(classes) if classes * float(n) ** 3 <= MAX_AUTO_WORK else "laplace"


def most_accurate(classes: int) -> str:
    """Method with the most accurate probabilities."""
    return "ep" if classes == 2 else "variational"
