"""Interface of inference methods for classification, and of the posteriors they return.

`register` makes the name of a method known, to ``inference=`` and to the tests of what all of them promise.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.registry import check_free
from mercer.gp.likelihood import LINKS


class LabelPosterior(abc.ABC):
    """The latent function given the labels; with more than two classes, C of them.

    ``likelihood`` is that of two classes; softmax posteriors ignore it.
    """

    @abc.abstractmethod
    def moments(self, Z) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function: (s,), (s,); (s, C) each for more than two classes."""

    @abc.abstractmethod
    def class_probabilities(self, Z, likelihood) -> np.ndarray:
        """(s, C), the integral over the latent function (PRML 6.76)."""

    @abc.abstractmethod
    def left_out(self, covariances: Callable[[], list], codes, likelihood) -> np.ndarray:
        """Class probabilities of each training row from all the others: (n, C). ``covariances()`` are those of the
        training rows, one shared or one per class, computed on demand."""

    @abc.abstractmethod
    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""

    def closed_form(self, Z, likelihood) -> np.ndarray:
        """MacKay's approximation of the integral (PRML 4.153): (s, 2)."""
        raise ParameterError(
            "the closed form is for two classes with a Gaussian posterior; omit closed_form to integrate by quadrature."
        )

    def most_probable(self, Z, likelihood) -> np.ndarray:
        """The code of the most probable class: (s,)."""
        return self.class_probabilities(Z, likelihood).argmax(axis=1)


class Approximation(Protocol):
    """The posterior on the training rows, at one theta."""

    log_evidence: float
    a: np.ndarray  # weights of the latent means: (n,), or (C, n)
    iterations: int
    converged: bool

    def slope(self, contracts) -> np.ndarray:
        """d ln Z / d theta, concatenated over kernels. ``contracts`` has one function per kernel, (inverse, a) ->
        sum_ij (a_i a_j - inverse_ij) dK_ij/dtheta. Call at most once: it overwrites its matrices."""


@dataclasses.dataclass(frozen=True)
class Inference(abc.ABC):
    """Approximate inference method for ``classes`` classes. Subclasses add settings as fields with defaults; an
    estimator fills those it has parameters for."""

    classes: int = 2
    link: str = "logistic"
    name: ClassVar[str]  # of ``inference=``
    parts: ClassVar[tuple[type, ...]] = ()  # classes of its posteriors, which files may hold
    draws: ClassVar[bool] = False  # whether it samples
    holds_for_small: ClassVar[bool] = False  # its multiclass evidence is reliable for small latent variance only

    @property
    def likelihood(self):
        """Of two classes."""
        return LINKS[self.link]()

    def refusal(self) -> str | None:
        """Reason the method does not apply to this number of classes and link, as a sentence; None if it does."""
        if self.classes > 2 and self.link != "logistic":
            return f"y has {self.classes} classes; with more than two, link must be 'logistic' (softmax)."
        return None

    def teacher(self) -> "Inference":
        """The method whose evidence is maximised to learn parameters."""
        return self

    @abc.abstractmethod
    def __call__(self, covariances: list, codes, start=None, gradient: bool = True) -> Any:
        """The `Approximation` at these covariances (`latent.Covariance`), one shared or one per class; None if they are
        not positive definite. ``start``: an earlier one to begin at. ``gradient``: whether its slope will be wanted."""

    def sample(self, kernels, X, codes, jointly: bool, rng, progress) -> Any:
        """Draws, if it samples; ``jointly`` with the parameters."""
        return None

    @abc.abstractmethod
    def posterior(self, found, kernels, X, draws=None) -> tuple[LabelPosterior, dict[str, Any]]:
        """What predicts, from an approximation or from draws, and how inference went: "converged", and the like."""


INFERENCES: dict[str, type[Inference]] = {}


def register(cls: type[Inference]) -> type[Inference]:
    """Class decorator: make the method known by its name."""
    check_free(INFERENCES, cls.name, cls)
    INFERENCES[cls.name] = cls
    return cls


def named(name: str, **settings) -> Inference:
    """The method with this name, with those of the settings that it has."""
    if name not in INFERENCES:
        raise ParameterError(f"no inference method is registered as {name!r}; import the module that registers it.")
    cls = INFERENCES[name]
    known = {field.name for field in dataclasses.fields(cls)}
    return cls(**{key: value for key, value in settings.items() if key in known})
