"""Interface of inference methods for classification, and of the posteriors they return.

`register` makes a method available by name, to ``inference=`` and to the tests that every method must pass.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from mercer import gram
from mercer.core.coordinates import to_free
from mercer.core.errors import DataError, NotPositiveDefiniteError, ParameterError
from mercer.core.inputs import Inputs, count_rows, stack_rows
from mercer.core.random import generator
from mercer.core.registry import check_free
from mercer.gp.likelihood import LINKS, Likelihood
from mercer.gp.likelihoods import TargetLikelihood
from mercer.gp.posterior import FunctionPosterior
from mercer.kernels.base import Kernel

if TYPE_CHECKING:  # these modules import this one
    from mercer.inference.latent import LatentCovariance, LatentSpace
    from mercer.inference.sampling.draws import Draws, Progress
    from mercer.inference.sites import SiteApproximation

# (inverse, a) -> sum_ij (a_i a_j - inverse_ij) dK_ij/dtheta, for one kernel
Contraction = Callable[[np.ndarray, np.ndarray], np.ndarray]
InferTarget = Callable[..., "SiteApproximation | None"]  # (K, target, likelihood, start, gradient)


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """What a posterior was inferred from, beside the rows: their class numbers (n,), the method, the ``jitter`` on the
    diagonal of the covariances; and how well that went."""

    codes: np.ndarray
    inference: "Inference"
    jitter: float = 0.0
    numerics: dict[str, Any] = dataclasses.field(default_factory=dict)

    def consistent(self) -> bool:
        """Whether types and shapes agree, for `mercer.load`."""
        return self.codes.ndim == 1 and isinstance(self.inference, Inference) and isinstance(self.numerics, dict)


class LabelPosterior(FunctionPosterior):
    """The latent function given the labels; with more than two classes, C of them.

    ``likelihood`` is that of two classes; softmax posteriors ignore it. ``given`` is None in models stored before it
    existed.
    """

    kernels: tuple[Kernel, ...]  # one for all functions, or one each
    X: Inputs
    given: Labels | None
    space: "ClassVar[type[LatentSpace]]"  # the representation of covariances that it came from

    @abc.abstractmethod
    def class_probabilities(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """(s, C), the integral over the latent function (PRML 6.76)."""

    @abc.abstractmethod
    def leave_one_out(self, covariances: "Sequence[LatentCovariance] | None" = None) -> np.ndarray:
        """Class probabilities of each training row given the labels of all others: (n, C). ``covariances``: as
        `covariances` gives, if they are there."""

    @abc.abstractmethod
    def consistent(self) -> bool:
        """Whether types and shapes agree, for `mercer.load`."""

    @abc.abstractmethod
    def start(self, covariances: "Sequence[LatentCovariance]") -> Any:
        """Where inference starts on these and further rows, whose ``covariances`` these are; None where it starts from
        nothing."""

    def closed_form(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """MacKay's approximation of the integral (PRML 4.153): (s, 2)."""
        raise ParameterError(
            "the closed form is for two classes with a Gaussian posterior; omit closed_form to integrate by quadrature."
        )

    def most_probable(self, Z: Inputs, likelihood: Likelihood) -> np.ndarray:
        """Code of the most probable class: (s,)."""
        return self.class_probabilities(Z, likelihood).argmax(axis=1)

    def labels(self) -> Labels:
        if self.given is None:
            raise ParameterError("this posterior does not know its labels: it comes from an older file. Fit it again.")
        return self.given

    def rows(self) -> gram.Gram:
        """The training rows, prepared once for all kernels."""
        return gram.kept(self, self._together, self.X)

    @functools.cached_property
    def _together(self) -> Kernel:
        return gram.together(self.kernels)

    def covariances(self) -> "list[LatentCovariance]":
        """Of the training rows, as its solver represents them: one shared or one per class."""
        return latent_covariances(self.space, self.kernels, self.rows(), self.labels().jitter)

    def numerics(self) -> dict[str, Any]:
        """Iterations and convergence of inference, or the diagnostics of draws, and the jitter."""
        return self.labels().numerics | {"jitter": self.labels().jitter}

    def condition(self, X: Inputs, codes: np.ndarray, seed: Any = 0) -> "LabelPosterior":
        """Given the class numbers of more rows, by inference on all rows at the same parameters, which starts from this
        posterior. ``seed`` is for methods that sample."""
        given, together = self.labels(), self._together
        codes = np.asarray(codes)
        n, C = count_rows(X), given.inference.classes
        whole = codes.dtype.kind in "iub" and codes.shape == (n,)
        if not whole or not ((codes >= 0) & (codes < C)).all():
            raise DataError(f"codes must be {n} class numbers from 0 to {C - 1}, one for each row; got {codes!r}.")
        if n == 0:
            return self
        X = stack_rows(self.X, X, together.reads, together.needs_all_columns)
        rows, codes = gram.Gram(together, X), np.concatenate([given.codes, codes])
        covariances = latent_covariances(self.space, self.kernels, rows, given.jitter)
        inference, draws = given.inference, None
        if inference.samples:
            draws = self._sampled_again(rows, codes, generator(seed))
        found = inference(covariances, codes, self.start(covariances), gradient=False)
        if found is None or (inference.samples and draws is None):
            raise NotPositiveDefiniteError(
                f"the covariance of these {len(codes)} rows is not positive semidefinite. Check the kernel with "
                "mercer.check_kernel(kernel, X)."
            )
        new = inference.posterior(found, list(self.kernels), rows.X, codes, given.jitter, draws)
        gram.keep(new, rows)
        return new

    def _sampled_again(self, rows: gram.Gram, codes: np.ndarray, rng: np.random.Generator) -> "Draws | None":
        """Draws given these rows, at the same parameters."""
        spaces = [self.space(kernel, rows) for kernel in self.kernels]
        return self.labels().inference.sample(spaces, list(self.kernels), codes, False, rng, None)


def latent_covariances(
    space: "Callable[[Kernel, Inputs], LatentSpace]", kernels: Sequence[Kernel], X: Inputs, jitter: float
) -> "list[LatentCovariance]":
    """Covariances of kernels on some rows; ``space`` is that of a solver (`Solver.latent`)."""
    found = []
    for kernel in kernels:
        with space(kernel, X) as here:
            found.append(here.at(np.asarray(to_free(kernel)), jitter, accurate=True))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class WarmStart:
    """Where inference starts: weights and sites of an earlier posterior, (n,) or (C, n) each."""

    a: np.ndarray
    S: np.ndarray
    nu: np.ndarray

    @property
    def sites(self) -> np.ndarray:
        return self.S

    def start(self) -> "WarmStart":
        """As `Approximation.start`."""
        return self

    def take_workspace(self) -> None:
        """It has no matrices to reuse."""


class Approximation(Protocol):
    """The posterior on the training rows, at one theta."""

    log_evidence: float
    a: np.ndarray  # weights of the latent means: (n,), or (C, n)
    iterations: int
    converged: bool

    def start(self) -> WarmStart:
        """Where inference at another theta starts, without the matrices."""

    @property
    def prior(self) -> "LatentCovariance":
        """Covariance that it was computed from, the first of several."""

    def slope(self, contractions: Sequence[Contraction]) -> np.ndarray:
        """d ln Z / d theta, concatenated over kernels, from one contraction per kernel. Call at most once: it
        overwrites its matrices."""


class JointApproximation(Approximation, Protocol):
    """That of more than two classes."""

    def class_probabilities(self, across: Sequence[np.ndarray], variances: np.ndarray) -> np.ndarray:
        """(s, C) at other rows, from `LatentCovariance.across`, one or one per class, and their `own_variance`
        (s, kernels). Call at most once."""


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
    work: ClassVar[float] = 20.0  # evaluations of a regression's evidence, by a dense matrix, that one takes per class
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

    def for_scores(self) -> "Inference":
        """The method that predicts labels held out while parameters of more than two classes are chosen: about as
        accurate, and fast."""
        return self

    @abc.abstractmethod
    def __call__(
        self, covariances: "Sequence[LatentCovariance]", codes: np.ndarray, start: Any = None, gradient: bool = True
    ) -> Approximation | None:
        """Approximate the posterior at these covariances, one shared or one per class; None if they are not positive
        definite. ``start``: an earlier result to start from. ``gradient``: whether its slope will be needed."""

    def for_target(self, likelihood: TargetLikelihood) -> InferTarget:
        """The method for a likelihood of numbers: called with their covariance, the target, the likelihood, an earlier
        result to start from, and whether its slope will be needed. `ParameterError` where it does not apply; a method
        that does not override this is for labels only."""
        raise ParameterError(f"inference={self.name!r} is for labels of classes.")

    def sample(
        self, spaces: "Sequence[LatentSpace]", kernels: list[Kernel], codes: np.ndarray, jointly: bool,
        rng: np.random.Generator, progress: "Progress | None",
    ) -> "Draws | None":  # fmt: skip
        """Posterior draws, ``jointly`` with the parameters or at the given ones; None if the method does not sample or
        a covariance is not positive definite. ``spaces`` hold the covariances of the kernels on the training rows, as
        the solver represents them."""
        return None

    @abc.abstractmethod
    def posterior(
        self, found: Any, kernels: list[Kernel], X: Inputs, codes: np.ndarray, jitter: float = 0.0,
        draws: "Draws | None" = None,
    ) -> LabelPosterior:  # fmt: skip
        """The posterior that predicts, from the result ``found`` of `__call__`, or from draws. Its numerics
        include "converged"."""


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
