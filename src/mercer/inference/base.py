"""Interface of inference methods for classification, and of the posteriors they return.

`register` makes a method available by name, to ``inference=`` and to the tests that every method must pass.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.inputs import Inputs
from mercer.core.registry import check_free
from mercer.gp.likelihood import LINKS, Likelihood
from mercer.kernels.base import Kernel

if TYPE_CHECKING:  # these modules import this one
    from mercer.inference.sampling.draws import Draws, Progress
    from mercer.inference.sites import LatentCovariance

# (inverse, a) -> sum_ij (a_i a_j - inverse_ij) dK_ij/dtheta, for one kernel
Contraction = Callable[[np.ndarray, np.ndarray], np.ndarray]


class LabelPosterior(abc.ABC):
    """The latent function given the labels; with more than two classes, C of them.

    ``likelihood`` is that of two classes; softmax posteriors ignore it.
    """

    @abc.abstractmethod
    def moments(self, Z: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function: (s,), (s,); (s, C) each for more than two classes."""

    @abc.abstractmethod
    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """(s, C), the integral over the latent function (PRML 6.76)."""

    @abc.abstractmethod
    def left_out(
        self, covariances: "Callable[[], Sequence[LatentCovariance]]", codes: np.ndarray, likelihood: Likelihood
    ) -> np.ndarray:
        """Leave-one-out class probabilities of the training rows: (n, C). ``covariances()`` are those of the training
        rows, one shared or one per class, computed on demand."""

    @abc.abstractmethod
    def consistent(self) -> bool:
        """Whether types and shapes agree, for `mercer.load`."""

    def closed_form(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """MacKay's approximation of the integral (PRML 4.153): (s, 2)."""
        raise ParameterError(
            "the closed form is for two classes with a Gaussian posterior; omit closed_form to integrate by quadrature."
        )

    def most_probable(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """Code of the most probable class: (s,)."""
        return self.class_probabilities(Z, likelihood).argmax(axis=1)


class Approximation(Protocol):
    """The posterior on the training rows, at one theta."""

    log_evidence: float
    a: np.ndarray  # weights of the latent means: (n,), or (C, n)
    iterations: int
    converged: bool

    def slope(self, contractions: Sequence[Contraction]) -> np.ndarray:
        """d ln Z / d theta, concatenated over kernels, from one contraction per kernel. Call at most once: it
        overwrites its matrices."""


@functools.cache
def likelihood(link: str) -> Likelihood:
    """The likelihood of a link, made once."""
    return LINKS[link]()


@dataclasses.dataclass(frozen=True)
class Inference(abc.ABC):
    """Approximate inference method for ``classes`` classes. Subclasses add settings as fields with defaults; an
    estimator fills those it has parameters for."""

    classes: int = 2
    link: str = "logistic"
    name: ClassVar[str]  # for ``inference=``
    parts: ClassVar[tuple[type, ...]] = ()  # classes of its posteriors, which files may hold
    samples: ClassVar[bool] = False  # whether the posterior is made of draws
    needs_small_variance: ClassVar[bool] = False  # its evidence for more than two classes is biased otherwise

    @property
    def likelihood(self) -> Likelihood:
        """Likelihood of two classes."""
        return likelihood(self.link)

    def refusal(self) -> str | None:
        """Reason the method does not apply to this number of classes and link, as a sentence; None if it does."""
        if self.classes > 2 and self.link != "logistic":
            return f"y has {self.classes} classes; with more than two, link must be 'logistic' (softmax)."
        return None

    def for_learning(self) -> "Inference":
        """The method whose evidence is maximised to learn parameters."""
        return self

    @abc.abstractmethod
    def __call__(
        self, covariances: "Sequence[LatentCovariance]", codes: np.ndarray, start: Any = None, gradient: bool = True
    ) -> Approximation | None:
        """Approximate the posterior at these covariances, one shared or one per class; None if they are not positive
        definite. ``start``: an earlier result to start from. ``gradient``: whether its slope will be needed."""

    def sample(
        self, kernels: list[Kernel], X: Inputs, codes: np.ndarray, jointly: bool, rng: np.random.Generator,
        progress: "Progress | None",
    ) -> "Draws | None":  # fmt: skip
        """Posterior draws, ``jointly`` with the parameters or at the given ones; None if the method does not sample or
        a covariance is not positive definite."""
        return None

    @abc.abstractmethod
    def posterior(
        self, found: Any, kernels: list[Kernel], X: Inputs, draws: "Draws | None" = None
    ) -> tuple[LabelPosterior, dict[str, Any]]:
        """The posterior that predicts, from the result ``found`` of `__call__` or from draws, and diagnostics:
        "converged" and the like."""


INFERENCES: dict[str, type[Inference]] = {}


def register(cls: type[Inference]) -> type[Inference]:
    """Class decorator: make the method available by its name."""
    check_free(INFERENCES, cls.name, cls)
    INFERENCES[cls.name] = cls
    return cls


def named(name: str, **settings: Any) -> Inference:
    """The method with this name, with those of the settings that it has."""
    if name not in INFERENCES:
        raise ParameterError(f"no inference method is registered as {name!r}; import the module that registers it.")
    cls = INFERENCES[name]
    known = {field.name for field in dataclasses.fields(cls)}
    return cls(**{key: value for key, value in settings.items() if key in known})
