"""Likelihoods of numbers: counts, shares, grades, positive and censored values, values with heavy tails.

A likelihood p(y | f) has a latent value f for each row: the location itself (Student's t, censored values), the
logarithm of the mean (counts, positive values) or its logit (shares).
"""

import abc
import dataclasses
from typing import Any, ClassVar, Self

import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import as_vector
from mercer.core.parameters import slots_of
from mercer.core.registry import storable
from mercer.distributions import Distribution
from mercer.gp.likelihood import Expected, LatentLikelihood, Tilted
from mercer.gp.likelihoods.quadrature import Panels

SIDES = ("exposure", "trials", "lower", "upper")
BISECTIONS = 100  # of an interval that may be as wide as exp(50)
ROWS_AT_ONCE = 2000  # integrated at a time

register = storable("likelihoods")  # class decorator: fitted models may hold it


@storable("parts")
@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """What was measured at n rows: y, and what else is known of each row. All (n,), or None where it has no meaning.

    ``offset`` is added to the latent function: a known mean, and the logarithm of the exposure.
    """

    y: np.ndarray
    offset: np.ndarray
    exposure: np.ndarray | None = None
    trials: np.ndarray | None = None
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    def _mapped(self, change: Any) -> "Target":
        parts: dict[str, Any] = {name: None if part is None else change(part) for name, part in vars(self).items()}
        return Target(**parts)

    def take(self, rows: Any) -> "Target":
        """Some of the rows."""
        return self._mapped(lambda part: part[rows])

    def column(self) -> "Target":
        """With arrays (n, 1), to be compared with several latent values of each row."""
        return self._mapped(lambda part: part[:, None])

    def joined(self, other: "Target") -> "Target":
        """With further rows."""
        pairs = {name: (part, getattr(other, name)) for name, part in vars(self).items()}
        parts: dict[str, Any] = {name: a if a is None else np.concatenate([a, b]) for name, (a, b) in pairs.items()}
        return Target(**parts)

    def shifted(self, offset: float) -> "Target":
        """With a larger offset."""
        return dataclasses.replace(self, offset=self.offset + offset)

    def consistent(self) -> bool:
        """Whether shapes agree, for `mercer.load`."""
        return all(part is None or part.shape == self.y.shape for part in vars(self).values())


class TargetLikelihood(LatentLikelihood):
    """p(y | f) of one number for each row. Subclasses give formulas; integrals without a closed form are by quadrature.

    Latent values are in units of y for a location, and have none otherwise (``location``).
    """

    label: ClassVar[str]  # for ``likelihood=``
    location: ClassVar[bool] = False  # whether f is a location of y, and has its units
    discrete: ClassVar[bool] = False  # whether y is an integer
    sides: ClassVar[tuple[str, ...]] = ()  # what it reads of each row beside y
    bounded = False
    constant_variance: ClassVar[float] = 9.0  # prior variance of the unknown constant in the latent function

    # -- formulas ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def marks(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        """Centre and width in f of what p(y | f) looks like, without the offset: (n,), (n,)."""

    def all_slopes(self, f: np.ndarray, t: Target) -> np.ndarray:
        """`slopes` for all parameters, fixed or free: (P, 3, ...)."""
        return np.zeros((0, 3, *np.shape(f)))

    @abc.abstractmethod
    def response(self, eta: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y given the latent value, offset included."""

    @abc.abstractmethod
    def cdf(self, y: np.ndarray, eta: np.ndarray, t: Target) -> np.ndarray:
        """P(value <= y) given the latent value, offset included."""

    @abc.abstractmethod
    def draw(self, eta: np.ndarray, t: Target, rng: np.random.Generator) -> np.ndarray:
        """One value for each latent value."""

    def support(self, t: Target) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest possible values of each row: (n,), (n,)."""
        n = len(t)
        return np.full(n, -np.inf), np.full(n, np.inf)

    # -- data ----------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def checked(self, t: Target) -> Target:
        """The measurements, or `DataError` if they are not of its kind."""

    @abc.abstractmethod
    def centre_and_scale(self, t: Target) -> tuple[float, float]:
        """Rough location and scale of the latent function; scale one unless it is a location."""

    @abc.abstractmethod
    def starts(self, t: Target) -> "list[tuple[Self, float]]":
        """Parameters to start learning from, and the variance of the latent function beside each."""

    def standardised(self, t: Target, center: float, scale: float) -> Target:
        """The target of a latent function (f - center) / scale."""
        if not self.location:
            return t.shifted(center)
        given = {name: getattr(t, name) for name in ("y", "lower", "upper")}
        parts: dict[str, Any] = {name: x if x is None else (x - center) / scale for name, x in given.items()}
        return dataclasses.replace(t, **parts)

    def rescaled(self, scale: float) -> Self:
        """The same likelihood where y is multiplied by ``scale``."""
        return self

    def unit_exponents(self) -> np.ndarray:
        """Power of the unit of y in each learned parameter: (p,)."""
        return np.zeros(self.size)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds on the learned parameters, in the optimiser's coordinates: (p,), (p,)."""
        return np.full(self.size, -np.inf), np.full(self.size, np.inf)

    def with_noise(self, variance: float) -> Self:
        """With this noise variance, which is not learned."""
        raise ParameterError(
            f"likelihood={self.label!r} has no noise variance of its own; leave noise=None. To add independent "
            "variation from row to row, add White() to the kernel."
        )

    @property
    def noise_variance(self) -> float:
        """Variance of y around a location; zero where the latent value is none."""
        return 0.0

    def target(self, y: Any, n: int, **given: Any) -> Target:
        """Target of n rows from user input."""
        return self.checked(self.rows(n, as_vector(y, n), **given))

    def rows(self, n: int, y: np.ndarray | None = None, **given: Any) -> Target:
        """What is known of n rows beside y: one number for all rows, or one each."""
        known = {name: value for name, value in given.items() if value is not None}
        unused = [name for name in known if name not in self.sides]
        if unused:
            takes = f"it takes {' and '.join(self.sides)}" if self.sides else "it takes nothing beside X and y"
            raise ParameterError(f"likelihood={self.label!r} does not use {', '.join(unused)}; {takes}.")
        parts = {name: _numbers(value, n, name) for name, value in known.items()}
        t = Target(np.zeros(n) if y is None else y.copy(), np.zeros(n), **parts)
        return self.completed(t)

    def completed(self, t: Target) -> Target:
        """With defaults for what is not given of the rows."""
        return t

    # -- learned parameters --------------------------------------------------------------------------------------------

    def moving(self) -> np.ndarray:
        """Mask of the parameters that are learned: (P,)."""
        return np.concatenate([np.zeros(0, bool), *(np.atleast_1d(slot.moving).ravel() for slot in slots_of(self))])

    @property
    def size(self) -> int:
        return int(self.moving().sum())

    def slopes(self, f: np.ndarray, t: Target) -> np.ndarray:
        return self.all_slopes(f, t)[self.moving()]

    def _slope_at(self, f: np.ndarray, t: Target) -> np.ndarray:
        return self.slopes(f, t)[:, 0]

    # -- integrals -----------------------------------------------------------------------------------------------------

    def _marks(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> list[tuple[np.ndarray, np.ndarray]]:
        """Where the product with a Gaussian bends: where p(y | f) does, and for a log-concave one at its mode."""
        centre, width = self.marks(t)
        found = [(centre - t.offset, width)]
        if not self.log_concave:
            return found
        deviation = np.sqrt(variance)
        with np.errstate(all="ignore"):
            end = np.nan_to_num(deviation * self.derivatives(mean, t).first, nan=0.0, posinf=1e25, neginf=-1e25)
            low, high = np.minimum(end, 0.0), np.maximum(end, 0.0)
            for _ in range(BISECTIONS):
                z = 0.5 * (low + high)
                up = deviation * self.derivatives(mean + deviation * z, t).first > z
                low, high = np.where(up, z, low), np.where(up, high, z)
            mode = mean + deviation * z
            curvature = 1 / np.maximum(variance, 1e-300) - self.derivatives(mode, t).second
            return [*found, (mode, np.nan_to_num(1 / np.sqrt(curvature), nan=0.0))]

    def _tilted_panels(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> tuple[Panels, np.ndarray, Any]:
        panels, column = Panels(mean, variance, self._marks(mean, variance, t)), t.column()
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.derivatives(panels.f, column)
            return panels, np.nan_to_num(found.value + panels.log_weights, nan=-np.inf, posinf=-np.inf), found

    def tilted(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Tilted:
        panels, logs, found = self._tilted_panels(mean, variance, t)
        top = logs.max(axis=1, keepdims=True)
        weights = np.exp(logs - top)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        held = weights > 0  # derivatives may overflow where the density has vanished
        average = lambda values: (weights * np.where(held, values, 0.0)).sum(axis=1)
        # Z' / Z and Z'' / Z as means of p' / p and p'' / p: no division by a small variance.
        first, bend = average(found.first), average(found.second)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            second = bend + average((found.first - first[:, None]) ** 2)
            # Where the likelihood is narrower than the Gaussian, from the moments of f: no difference of large numbers.
            centre = average(panels.f)
            spread = average((panels.f - centre[:, None]) ** 2)
            narrow = -bend * variance > 1
            first = np.where(narrow, (centre - mean) / variance, first)
            second = np.where(narrow, (spread / variance - 1) / variance, second)
        return Tilted((top + np.log(total))[:, 0], first, second)

    def tilted_slopes(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> np.ndarray:
        panels, logs, _ = self._tilted_panels(mean, variance, t)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = self._slope_at(panels.f, t.column())
        return (weights * np.where(weights > 0, slopes, 0.0)).sum(axis=-1)

    def _panels(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Panels:
        centre, width = self.marks(t)
        return Panels(mean, variance, [(centre - t.offset, width)], inside=True)

    def expected(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Expected:
        panels = self._panels(mean, variance, t)
        value, first, second = map(panels.expectation, self.derivatives(panels.f, t.column())[:3])
        return Expected(value, first, 0.5 * second)

    def expected_slopes(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> np.ndarray:
        panels = self._panels(mean, variance, t)
        return panels.expectation(self._slope_at(panels.f, t.column()))

    # -- predictions ---------------------------------------------------------------------------------------------------

    def moments(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y where f is Gaussian: (s,), (s,)."""
        panels = Panels(mean, variance)
        given = self.response(panels.f + t.offset[:, None], t.column())
        first = panels.expectation(given[0])
        return first, panels.expectation(given[1] + (given[0] - first[:, None]) ** 2)

    def predict(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Distribution:
        """Distribution of y at rows ``t`` where f is Gaussian."""
        from mercer.gp.likelihoods.predictive import Predictive

        return Predictive(self, mean, variance, t)

    def predict_response(self, mean: np.ndarray, variance: np.ndarray, t: Target) -> Distribution:
        """Distribution of the mean of y given f, where f is Gaussian."""
        from mercer.gp.likelihoods.predictive import Response

        return Response(self, mean, variance, t)


def _numbers(value: Any, n: int, name: str) -> np.ndarray:
    """One number, or one for each of n rows; limits may be infinite."""
    if np.ndim(value) == 0:
        try:
            value = np.full(n, float(value))
        except (TypeError, ValueError):
            raise DataError(f"{name} must be a number, or one for each of the {n} rows; got {value!r}.") from None
    if name in ("lower", "upper"):
        found = np.asarray(value, dtype=float)
        if found.shape != (n,) or np.isnan(found).any():
            raise DataError(
                f"{name} must be a number, or one for each of the {n} rows; got shape {found.shape}"
                f"{' with NaN' if np.isnan(found).any() else ''}. Use -inf or inf for rows without a limit."
            )
        return found.copy()
    return as_vector(value, n, name).copy()


def refuse(what: str, bad: np.ndarray, y: np.ndarray, remedy: str) -> None:
    """Raise a `DataError` if any row is ``bad``, naming the first."""
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise DataError(f"{what}; y[{i}] is {y[i]:g} ({int(bad.sum()):,} such rows). {remedy}")
