"""What every approximate posterior of classes answers, whatever inference found it."""

import abc
from collections.abc import Callable

import numpy as np

from mercer.core.errors import ParameterError


class LabelPosterior(abc.ABC):
    """The latent function given the labels; with more than two classes, C of them.

    ``likelihood`` is that of two classes; softmax posteriors have their own.
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
        training rows, one or one a class, for those who need them."""

    @abc.abstractmethod
    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""

    def closed_form(self, Z, likelihood) -> np.ndarray:
        """MacKay's approximation of the integral (PRML 4.153): (s, 2)."""
        raise ParameterError(
            "the closed form is for two classes with a Gaussian posterior; leave closed_form out, and the integral is "
            "done by quadrature."
        )

    def most_probable(self, Z, likelihood) -> np.ndarray:
        """The code of the most probable class: (s,)."""
        return self.class_probabilities(Z, likelihood).argmax(axis=1)
