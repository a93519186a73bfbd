"""Interface between models and the optimiser: what is maximised, and what is known about its parameters.

An `Objective` describes one learning problem. Its `Criterion` is the function to be maximised on fixed rows: the
evidence of a Gaussian process, an approximation of it, or a leave-one-out score. `optimise.learn` asks for no more.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from mercer.core.coordinates import Layout, free_names, from_free, parameters_at, to_free
from mercer.core.parameters import Slot, slots_of
from mercer.gp.model import Model
from mercer.priors import LogNormal, Normal, Prior, by_entry
from mercer.solvers.base import Evaluation

MAX_LOG_CHANGE = 14.0  # how far a logarithm may move from the starts: a factor of a million either way
MAX_RANKING_ROWS = 250  # on which starts with a latent function are compared
MAX_FIRST_ROWS, ROWS_GROWTH = 800, 4  # rows of the first stage at most, and the ratio of rows between stages

LogDensity = Callable[[np.ndarray], tuple[float, np.ndarray]]  # ln p(theta) up to a constant, and its gradient


class Start(NamedTuple):
    """Parameters to start from, and what to call them in reports."""

    name: str
    theta: np.ndarray


class Criterion(Protocol):
    """Function of theta on fixed rows, to be maximised. Used in a ``with`` block: it may hold threads.

    Where the function has no value, a covariance is not positive definite. ``jitter`` is added to its diagonal;
    ``diagonal`` is the mean of that at the last call.
    """

    jitter: float

    @property
    def n(self) -> int:
        """Number of rows."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    @property
    def diagonal(self) -> float:
        """Scale of the jitter."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, theta: np.ndarray, gradient: bool = True, profiled: bool = False) -> Evaluation | None:
        """Value and gradient at theta; None where there is no value. ``profiled``: at the best multiple of the
        covariance, which is returned as ``scale``."""


@runtime_checkable
class Keeping(Protocol):
    """A criterion that can keep what it computed, for the model at the best theta."""

    keeping: bool  # the next calls are likely to be kept, so they may cost a little more

    def keep(self, theta: np.ndarray) -> None:
        """Until it is called again, keep what the last call computed, which was at ``theta``."""


class Objective(abc.ABC):
    """A learning problem: theta, the function to be maximised over it, and where and how to search.

    Defaults are those of a problem about which nothing more is known.
    """

    label = "evidence"  # of the value, in the progress line
    max_log_change = MAX_LOG_CHANGE
    screens_starts = False  # climb from every start, the best ones to the end; otherwise from the best start alone

    @property
    def tolerance(self) -> float:
        """Factor on the gain below which a climb ends."""
        return 1.0

    @property
    @abc.abstractmethod
    def n(self) -> int:
        """Number of rows."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of parameters."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Name of each coordinate of theta."""

    @abc.abstractmethod
    def criterion(self, rows: np.ndarray | None = None) -> Criterion:
        """The function to be maximised, on some rows; None: on all of them."""

    @abc.abstractmethod
    def starts(self) -> Sequence[Start]:
        """Where to start, at least one; the first stage compares them."""

    # -- the search space ----------------------------------------------------------------------------------------------

    def logarithmic(self) -> np.ndarray:
        """Mask of the coordinates that are logarithms: these are bounded, and restarts vary them."""
        return np.ones(self.size, bool)

    def floor(self) -> np.ndarray:
        """Lower bounds on theta."""
        return np.full(self.size, -np.inf)

    def ceiling(self) -> np.ndarray:
        """Upper bounds on theta."""
        return np.full(self.size, np.inf)

    def directions(self) -> np.ndarray:
        """Directions in which parameters move: the columns of a matrix (p, k), fewer than p where some are tied."""
        return np.eye(self.size)

    def profiled(self) -> np.ndarray | None:
        """Mask of the coordinates that, shifted together, multiply the covariance. Their common factor is maximised in
        closed form. None: there are none."""
        return None

    def prior(self) -> LogDensity | None:
        """Prior on theta, added to the criterion; None: flat."""
        return None

    # -- the course of the search --------------------------------------------------------------------------------------

    def stages(self) -> list[int]:
        """Number of rows of each stage, the last one all of them."""
        return stages(self.n)

    def more_starts(self) -> Sequence[Start]:
        """Starts of the first stage that are climbed from in any case."""
        return ()

    def late_start(self, rows: int) -> Start | None:
        """A start that joins the stage with this number of rows."""
        return None

    def for_more_rows(self, theta: np.ndarray, ratio: float) -> np.ndarray:
        """An optimum, moved to where that of ``ratio`` times as many rows is expected."""
        return theta

    def off_plateau(self, theta: np.ndarray) -> np.ndarray | None:
        """``theta`` with parameters moved back to where more rows can change them; None if none is on a plateau."""
        return None

    def tie_score(self, theta: np.ndarray) -> float | None:
        """Score that orders optima of nearly equal value, the higher the better; None leaves them as they are."""
        return None

    def outcome(self, criterion: Criterion) -> object:
        """What to keep of the last stage's criterion in addition to its optima."""
        return None


class ModelObjective(Objective):
    """Objective whose theta is the free parameters of a `Model`."""

    model: Model

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout.of(self.model)

    @property
    def size(self) -> int:
        return self.layout.size

    def names(self) -> list[str]:
        return list(self._names)

    @functools.cached_property
    def _names(self) -> list[str]:
        return free_names(self.model)

    def at(self, theta: np.ndarray) -> Model:
        """The model with these parameters, as plain numbers."""
        return from_free(self.model, theta)

    def parameters(self, theta: np.ndarray) -> dict[str, Any]:
        """Values on the natural scale, by name: all of the kernels', and the learned ones of other parts."""
        return parameters_at(self._slots, theta)

    @functools.cached_property
    def _slots(self) -> list[Slot]:
        return [slot for slot in slots_of(self.model) if slot.free or slot.path[0][0] == "kernels"]

    def start(self) -> np.ndarray:
        """The parameters as they are."""
        return self._start.copy()

    @functools.cached_property
    def _start(self) -> np.ndarray:
        return np.asarray(to_free(self.model), dtype=float)

    def logarithmic(self) -> np.ndarray:
        return logarithmic_mask(self.layout)

    def units(self, scale: float) -> np.ndarray:
        """What to add to theta where the target is ``scale`` times this one."""
        return np.zeros(self.size)

    # -- priors --------------------------------------------------------------------------------------------------------

    jacobian: bool = False  # whether the prior is a density of theta, where parameters are integrated over

    @functools.cached_property
    def prior_model(self) -> Model:
        """The model with a prior on every free parameter: its own, or a weak one on the scale of the data."""
        return self.model

    @functools.cached_property
    def model_prior(self) -> LogDensity | None:
        """ln p(theta) of the priors of `prior_model`, and its gradient in theta. Densities are those of parameters on
        their natural scale, or with ``jacobian`` of theta."""
        return prior_of(self.prior_model, self.jacobian)


def prior_of(model: Model, jacobian: bool = False) -> LogDensity | None:
    """ln p(theta) of the priors that free parameters of a model carry, and its gradient; None if there are none.

    Densities are on the natural scale; ``jacobian`` makes them densities of theta, which for a logarithm multiplies
    them by the parameter itself.
    """
    gaussian: list[
        tuple[int, float, float, bool]
    ] = []  # normal in theta: coordinate, mean, deviation, logarithm or not
    others: list[tuple[slice, Prior, bool]] = []
    start = 0
    for slot in slots_of(model):
        entries = slice(start, start + int(np.sum(slot.moving)))
        start = entries.stop
        if not slot.free or slot.prior is None:
            continue
        logarithmic = slot.constraint.logarithmic
        own = by_entry(slot.prior, entries.stop - entries.start)
        if all(isinstance(each, LogNormal if logarithmic else Normal) for each in own):
            gaussian += [(entries.start + i, each.mu, each.sigma, logarithmic) for i, each in enumerate(own)]
        else:
            others.append((entries, slot.prior, logarithmic))
    where, mu, sigma, logs = (
        (np.array(column) for column in zip(*gaussian, strict=True)) if gaussian else [np.zeros(0)] * 4
    )
    where, natural = where.astype(int), 0.0 if jacobian else logs.astype(float)
    unit = -float(np.sum(np.log(sigma * math.sqrt(2 * math.pi))))

    def log_density(theta: np.ndarray) -> tuple[float, np.ndarray]:
        at = theta[where]
        z = (at - mu) / sigma
        value, gradient = unit - float(np.sum(0.5 * z**2 + natural * at)), np.zeros(len(theta))
        gradient[where] = -z / sigma - natural
        if others:
            with np.errstate(all="ignore"):
                value += add_others(theta, gradient)
        return value, gradient

    def add_others(theta: np.ndarray, gradient: np.ndarray) -> float:
        value = 0.0
        for entries, prior, logarithmic in others:
            x = np.exp(theta[entries]) if logarithmic else np.asarray(theta[entries], dtype=float)
            value += float(np.sum(np.asarray(prior.log_density(x))))
            gradient[entries] = prior.slope(x) * (x if logarithmic else 1.0)
            if jacobian and logarithmic:
                value += float(np.sum(theta[entries]))
                gradient[entries] += 1.0
        return value

    return log_density if gaussian or others else None


def product_of_priors(*priors: LogDensity | None) -> LogDensity | None:
    """Product of densities, those that are not None; None if all are."""
    given = [prior for prior in priors if prior is not None]

    def product(theta: np.ndarray) -> tuple[float, np.ndarray]:
        values, slopes = zip(*(prior(theta) for prior in given), strict=True)
        return sum(values), np.sum(slopes, axis=0)

    return product if len(given) > 1 else given[0] if given else None


def stages(n: int) -> list[int]:
    """Numbers of rows to learn from, one after the other: at most 800 first, then four times as many each time.

    >>> stages(300), stages(2000), stages(20000)
    ([300], [500, 2000], [312, 1250, 5000, 20000])
    """
    sizes = [n]
    while sizes[0] > MAX_FIRST_ROWS:
        sizes.insert(0, sizes[0] // ROWS_GROWTH)
    return sizes


def logarithmic_mask(layout: Layout) -> np.ndarray:
    """Mask of the coordinates of a layout that are logarithms."""
    kinds = [np.full(len(place.entries), place.constraint.logarithmic) for place in layout.places]
    return np.concatenate([np.zeros(0, bool), *kinds])
