"""Observations of hidden Markov models, and how states emit them: symbols, or vectors with Gaussian densities."""

from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from mercer.core.errors import ObjectError, ParameterError
from mercer.core.parameters import NonNegativeArray, Parametrized, PositiveArray, RealArray, evolve
from mercer.core.precision import as_float
from mercer.kernels.densities.base import check_distributions, log_normalized
from mercer.kernels.densities.gaussian import centre_and_spread, check_factors, cholesky_factors, log_diagonal, log_full
from mercer.kernels.evaluate import Collection
from mercer.kernels.structured.rows import refuse_missing
from mercer.kernels.structured.sequences import Sequences

SMOOTHING = 0.1  # extra symbols per state, so that none becomes impossible
MIN_VARIANCE = 1e-3  # of a learned emission, relative to that of all observations


class Observations(Collection):
    """Sequences of observations: those of row i are ``values[starts[i] : starts[i + 1]]``, integers or vectors."""

    def __init__(self, values: np.ndarray, starts: np.ndarray) -> None:
        self.values, self.starts = values, starts

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, which: Any) -> "Observations":
        index = np.arange(len(self))[which]
        lengths = np.diff(self.starts)[index]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[index] - starts[:-1], lengths) + np.arange(starts[-1])
        return Observations(self.values[places], starts)


class Symbols(Parametrized):
    """Emission of one of V symbols, with probabilities (S, V)."""

    _transparent: ClassVar[bool] = True

    probabilities: NonNegativeArray
    alphabet: tuple[Any, ...] = eqx.field(default=(), static=True, kw_only=True)  # what the columns are
    fixed: frozenset[str] = eqx.field(default=frozenset(("probabilities",)), static=True, kw_only=True, repr=False)

    def __check_init__(self) -> None:
        shape = np.shape(self.probabilities)
        if len(shape) != 2:
            raise ParameterError(f"probabilities of emissions have shape (S, V); got {shape}.")
        if len(self.alphabet) != shape[1]:
            raise ParameterError(f"emission has probabilities of {shape[1]} symbols; {len(self.alphabet)} are named.")
        check_distributions(self.probabilities, "probabilities of emissions")

    def read(self, objects: np.ndarray) -> Observations:
        sequences = Sequences.of(columns_as_vectors(objects))
        numbers = {symbol: number for number, symbol in enumerate(self.alphabet)}
        places = np.array([numbers.get(letter, -1) for letter in sequences.letters.keys] or [0])
        values = places[sequences.codes]
        if (values < 0).any():
            at = int((values < 0).argmax())
            row = int(np.searchsorted(sequences.starts, at, side="right")) - 1
            letters = all(isinstance(a, str) and len(a) == 1 for a in self.alphabet)
            known = "".join(self.alphabet) if letters else self.alphabet
            raise ObjectError(
                row,
                f"the model has no symbol {sequences.letters.keys[sequences.codes[at]]!r}; it has {known!r}. Name all "
                "symbols that may occur: symbols=....",
            )
        return Observations(values, sequences.starts)

    def log_emissions(self, values: np.ndarray) -> Any:
        return log_normalized(self.probabilities).T[values]

    def learned(self, observations: Observations, states: np.ndarray) -> "Symbols":
        """Maximum likelihood for expected visits (N, S)."""
        V = len(self.alphabet)
        counts = np.stack([np.bincount(observations.values, column, V) for column in states.T]) + SMOOTHING
        return evolve(self, probabilities=as_float(counts / counts.sum(axis=1, keepdims=True)))

    def scores(self, observations: Observations, states: np.ndarray) -> dict[str, np.ndarray]:
        n, V = len(observations), len(self.alphabet)
        p = np.asarray(self.probabilities) / np.sum(self.probabilities, axis=1, keepdims=True)
        cell = np.repeat(np.arange(n), np.diff(observations.starts)) * V + observations.values
        counts = np.stack([np.bincount(cell, column, n * V).reshape(n, V) for column in states.T], axis=1)
        return {"probabilities": counts - counts.sum(axis=2, keepdims=True) * p}

    def draw(self, states: np.ndarray, rng: np.random.Generator) -> Any:
        p = np.asarray(self.probabilities) / np.sum(self.probabilities, axis=1, keepdims=True)
        drawn = (rng.random((len(states), 1)) > np.cumsum(p[states], axis=1)).sum(axis=1)
        return [self.alphabet[i] for i in np.minimum(drawn, len(self.alphabet) - 1)]


class Gaussians(Parametrized):
    """Emission of a vector of d numbers, with means (S, d) and variances (S, d)."""

    _transparent: ClassVar[bool] = True

    means: RealArray
    variances: PositiveArray
    fixed: frozenset[str] = eqx.field(default=frozenset(("means", "variances")), static=True, kw_only=True, repr=False)

    def __check_init__(self) -> None:
        if np.ndim(self.means) != 2 or np.shape(self.means) != np.shape(self.variances):
            raise ParameterError(
                "Gaussian emissions have means and variances of shape (S, d); got "
                f"{np.shape(self.means)} and {np.shape(self.variances)}."
            )

    def read(self, objects: np.ndarray) -> Observations:
        return vectors_of(objects, np.shape(self.means)[1])

    def log_emissions(self, values: np.ndarray) -> Any:
        return log_diagonal(values, self.means, self.variances)

    def learned(self, observations: Observations, states: np.ndarray) -> "Gaussians":
        """Maximum likelihood for expected visits (N, S)."""
        X = observations.values
        visits = states.sum(axis=0)[:, None] + 1e-10
        means = states.T @ X / visits
        away2 = np.stack([weights @ (X - mean) ** 2 for weights, mean in zip(states.T, means, strict=True)])
        floor = MIN_VARIANCE * centre_and_spread(X)[1] ** 2
        return evolve(self, means=as_float(means), variances=as_float(away2 / visits + floor))

    def scores(self, observations: Observations, states: np.ndarray) -> dict[str, np.ndarray]:
        m, v = np.asarray(self.means), np.asarray(self.variances)
        away = observations.values[:, None, :] - m
        by_row = lambda values: sums_by_row(values, observations.starts)
        return {
            "means": by_row(states[:, :, None] * away / v),
            "variances": by_row(states[:, :, None] * 0.5 * (away**2 / v - 1)),  # in the logarithm
        }

    def draw(self, states: np.ndarray, rng: np.random.Generator) -> Any:
        m, v = np.asarray(self.means)[states], np.asarray(self.variances)[states]
        return m + np.sqrt(v) * rng.standard_normal(m.shape)


class FullGaussians(Parametrized):
    """Emission of a vector of d numbers, with means (S, d) and covariances L L^T: lower factors (S, d, d)."""

    _transparent: ClassVar[bool] = True

    means: RealArray
    factors: RealArray
    fixed: frozenset[str] = eqx.field(default=frozenset(("means", "factors")), static=True, kw_only=True, repr=False)

    def __check_init__(self) -> None:
        shape = np.shape(self.means)
        if len(shape) != 2 or np.shape(self.factors) != (*shape, shape[1]):
            raise ParameterError(
                "Gaussian emissions have means (S, d) and factors of covariances (S, d, d); got "
                f"{shape} and {np.shape(self.factors)}."
            )
        check_factors(self.factors)

    def read(self, objects: np.ndarray) -> Observations:
        return vectors_of(objects, np.shape(self.means)[1])

    def log_emissions(self, values: np.ndarray) -> Any:
        return log_full(values, self.means, self.factors)

    def scores(self, observations: Observations, states: np.ndarray) -> dict[str, np.ndarray]:
        L = np.tril(np.asarray(self.factors))
        inverse = np.linalg.inv(L)
        z = np.einsum("sij,nsj->nsi", inverse, observations.values[:, None, :] - np.asarray(self.means))
        slope = np.einsum("sji,nsj->nsi", inverse, z)  # in the mean: L^-T z, and in L: tril(L^-T z z^T) - diag(1 / L)
        in_L = np.tril(slope[:, :, :, None] * z[:, :, None, :]) - np.stack([np.diag(1 / np.diag(own)) for own in L])
        by_row = lambda values: sums_by_row(values, observations.starts)
        return {
            "means": by_row(states[:, :, None] * slope),
            "factors": by_row(states[:, :, None, None] * in_L),
        }

    def draw(self, states: np.ndarray, rng: np.random.Generator) -> Any:
        m, L = np.asarray(self.means)[states], np.tril(np.asarray(self.factors))[states]
        return m + np.einsum("nij,nj->ni", L, rng.standard_normal(m.shape))


def random_gaussians(observations: Observations, S: int, rng: np.random.Generator) -> Gaussians:
    """Means at random observations, with the variances of all."""
    X = observations.values
    means = X[rng.choice(len(X), size=S, replace=len(X) < S)]
    variances = centre_and_spread(X)[1] ** 2
    return Gaussians(means + 1e-3 * np.sqrt(variances) * rng.standard_normal(means.shape), np.tile(variances, (S, 1)))


def columns_as_vectors(objects: np.ndarray) -> np.ndarray:
    """Sequences in columns (L, 1), as hmmlearn has them, as vectors (L,)."""
    out = np.empty(len(objects), dtype=object)
    for i, row in enumerate(objects):
        out[i] = row[:, 0] if isinstance(row, np.ndarray) and row.ndim == 2 and row.shape[1] == 1 else row
    return out


def vectors_of(objects: np.ndarray, d: int | None = None) -> Observations:
    """Matrices with one observation per row; vectors are sequences of numbers."""
    refuse_missing(objects, "a sequence of numbers")
    parts = []
    for i, item in enumerate(objects):
        try:
            part = np.asarray(item, dtype=float)
        except (TypeError, ValueError):
            part = np.empty((0, 0, 0))
        if isinstance(item, str | bytes) or part.ndim not in (1, 2):
            raise ObjectError(
                i, f"a matrix of numbers was expected, one observation per row; got {type(item).__name__}."
            )
        part = part[:, None] if part.ndim == 1 else part
        d = part.shape[1] if d is None and len(part) else d
        if len(part) and part.shape[1] != d:
            raise ObjectError(i, f"observations of {part.shape[1]} numbers, where {d} were expected.")
        if not np.isfinite(part).all():
            raise ObjectError(i, "observations that are missing (NaN) or infinite. Drop or impute them.")
        parts.append(part if len(part) else np.empty((0, d or 1)))
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
    return Observations(np.concatenate([np.empty((0, d or 1)), *parts]), starts)


def sums_by_row(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sum over the observations of each row: (n, ...); zero for empty rows."""
    out, some = np.zeros((len(starts) - 1, *values.shape[1:])), np.diff(starts) > 0
    if some.any():  # row by row: a difference of running totals would lose the digits of all rows after a large one
        out[some] = np.add.reduceat(values, starts[:-1][some], axis=0)
    return out


def gaussians(means: np.ndarray, spread: np.ndarray) -> Gaussians | FullGaussians:
    """Emissions with variances of shape (), (S,) or (S, d), or covariances (S, d, d)."""
    S, d = means.shape
    allowed = (), (S,), (S, 1), (S, d), (1, d), (S, d, d)
    if spread.shape not in allowed:
        raise ParameterError(
            f"emissions must have variances ({S}, {d}) or covariances ({S}, {d}, {d}); got shape {spread.shape}."
        )
    if spread.ndim == 3:
        diagonal = np.einsum("sii->si", spread)
        if spread.shape == (S, d, d) and np.array_equal(spread, diagonal[:, :, None] * np.eye(d)):
            return Gaussians(means, diagonal)
        return FullGaussians(means, cholesky_factors(spread, (S, d, d)))
    return Gaussians(means, np.broadcast_to(spread[:, None] if spread.shape == (S,) else spread, (S, d)))
