"""Hidden Markov models of sequences: strings, lists of symbols, or matrices with one observation a row (PRML 13.2)."""

import functools
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ObjectError, ParameterError
from mercer.core.inputs import Inputs, Rows
from mercer.core.parameters import NonNegativeArray, Parametrized, evolve, slots_of
from mercer.core.precision import as_float, is_traced
from mercer.core.random import seed_of
from mercer.kernels.densities.base import STRIP_ROWS, ParametricDensity, check_distributions, count
from mercer.kernels.densities.emissions import (
    FullGaussians,
    Gaussians,
    Observations,
    Symbols,
    columns_as_vectors,
    gaussians,
    random_gaussians,
    sums_by_row,
    vectors_of,
)
from mercer.kernels.evaluate import HostRows
from mercer.kernels.structured.rows import objects_of
from mercer.kernels.structured.sequences import Sequences, ordered

N_STARTS = 3  # of expectation-maximisation
MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # change of the mean log likelihood of an observation that ends expectation-maximisation
SMOOTHING = 0.1  # extra transitions per state, so that none becomes impossible


class Chain(Parametrized):
    """Initial probabilities (S,) and transition probabilities (S, S) of the hidden states, and their emissions."""

    _transparent: ClassVar[bool] = True

    initial: NonNegativeArray
    transition: NonNegativeArray
    emission: Symbols | Gaussians | FullGaussians
    fixed: frozenset[str] = eqx.field(
        default=frozenset(("initial", "transition")), static=True, kw_only=True, repr=False
    )

    def __check_init__(self) -> None:
        check_distributions(self.initial, "initial probabilities")
        check_distributions(self.transition, "transition probabilities")


class Expected(NamedTuple):
    """ln p(x) of each sequence (n,); expected visits of states at every observation (N, S), and numbers of transitions
    between states (n, S, S), given the sequence."""

    log_density: np.ndarray
    states: np.ndarray
    moves: np.ndarray


class HiddenMarkovModel(ParametricDensity):
    """p(x) = sum over paths z of p(z_1) prod_t p(z_t | z_t-1) prod_t p(x_t | z_t), for sequences of any length.

    Observations are symbols (rows are strings, or lists of symbols) or, with ``emission="gaussian"``, vectors with
    independent Gaussian entries (rows are matrices, one observation per row; a vector is a sequence of numbers).
    ``HiddenMarkovModel(4).fit(X)`` learns four states by expectation-maximisation (Baum-Welch) from three random
    starts; ``HiddenMarkovModel.of(initial, transition, emission)`` takes given probabilities. The alphabet is
    ``symbols``, or that of the rows learned from.

    >>> HiddenMarkovModel.of([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.8, 0.2], [0.2, 0.8]], symbols="ab")
    HiddenMarkovModel(n_states=2, symbols='ab')
    """

    _transparent: ClassVar[bool] = True

    n_states: int = eqx.field(static=True, converter=count("the number of states"))
    emission: str = eqx.field(default="symbols", static=True)
    symbols: Any = eqx.field(default=None, static=True, converter=lambda symbols: _alphabet(symbols))
    random_state: int = eqx.field(default=0, static=True, kw_only=True, converter=seed_of)
    chain: Chain | None = eqx.field(default=None, kw_only=True)  # set by `fit` and `of`
    given: bool = eqx.field(default=False, static=True, kw_only=True)  # whether by `of`

    reads = "objects"

    def __check_init__(self) -> None:
        if self.emission not in ("symbols", "gaussian"):
            raise ParameterError(f"emission must be 'symbols' or 'gaussian'; got {self.emission!r}.")
        if not isinstance(self.chain, Chain | None):
            raise ParameterError(f"the chain is set by fit and of; got {self.chain!r}.")
        if self.chain is not None:
            S, emission = self.n_states, self.chain.emission
            table: Any = getattr(emission, "probabilities" if self.emission == "symbols" else "means", None)
            shapes = np.shape(self.chain.initial), np.shape(self.chain.transition), np.shape(table)[:1]
            if shapes != ((S,), (S, S), (S,)):
                raise ParameterError(f"initial, transition and emission must all have {S} states; got shapes {shapes}.")

    @classmethod
    def of(cls, initial: Any, transition: Any, emission: Any, symbols: Any = None) -> "HiddenMarkovModel":
        """From probabilities: ``initial`` (S,), ``transition`` (S, S), and ``emission``, a table (S, V) or a pair of
        means (S, d) and variances (S, d) or covariances (S, d, d).

        Every distribution must sum to one. ``symbols`` names the columns of the table: a string, or a list; without
        it they are the integers 0, 1, ....
        """
        initial = _distributions(initial, "initial", 1)
        S = len(initial)
        transition = _distributions(transition, "transition", 2)
        if transition.shape != (S, S):
            raise ParameterError(f"transition must have shape ({S}, {S}), as initial has {S}; got {transition.shape}.")
        part: Any
        if isinstance(emission, tuple):
            if len(emission) != 2:
                raise ParameterError(
                    f"emission must be a table (S, V), or a pair of means and variances; got {len(emission)} arrays."
                )
            means = np.asarray(as_float(emission[0]))
            means = means[:, None] if means.ndim == 1 else means
            if means.ndim != 2 or len(means) != S:
                raise ParameterError(f"means of emissions must have shape ({S}, d); got {means.shape}.")
            part = gaussians(means, np.asarray(as_float(emission[1])))
            kind = "gaussian"
            if symbols is not None:
                raise ParameterError("symbols name the columns of a table of emissions; Gaussian ones have none.")
        else:
            table, kind = _distributions(emission, "emission", 2), "symbols"
            if len(table) != S:
                raise ParameterError(f"emission must have {S} rows, one for each state; got {len(table)}.")
            symbols = tuple(range(table.shape[1])) if symbols is None else _alphabet(symbols)
            part = Symbols(table, alphabet=symbols)
        return cls(S, kind, symbols, chain=Chain(initial, transition, part), given=True)

    @classmethod
    def from_hmmlearn(cls, model: Any) -> "HiddenMarkovModel":
        """From a fitted CategoricalHMM or GaussianHMM."""
        kind = type(model).__name__
        if kind == "CategoricalHMM" and hasattr(model, "emissionprob_"):
            return cls.of(model.startprob_, model.transmat_, model.emissionprob_)
        if kind == "GaussianHMM" and hasattr(model, "means_") and hasattr(model, "transmat_"):
            spread = np.asarray(model._covars_)
            spread = np.stack([spread] * len(model.means_)) if model.covariance_type == "tied" else spread
            return cls.of(model.startprob_, model.transmat_, (model.means_, spread))
        raise ParameterError(
            f"a fitted CategoricalHMM or GaussianHMM of hmmlearn was expected; got {type(model).__name__}. Give "
            "matrices: HiddenMarkov(initial, transition, emission)."
        )

    @property
    def needs_fit(self) -> bool:
        return self.chain is None

    def fit(self, X: Inputs) -> Self:
        if self.given:
            return self
        objects = objects_of(X)
        alphabet: tuple[Any, ...] = ()
        if self.emission == "gaussian":
            observations = vectors_of(objects)
        else:
            letters = Sequences.of(columns_as_vectors(objects)).letters.keys
            if self.symbols is None and any(isinstance(a, float) and a != round(a) for a in letters):
                raise DataError(
                    "sequences of numbers that are not whole would be read as symbols, each number as one of its own. "
                    "For measurements use emission='gaussian'."
                )
            alphabet = self.symbols or tuple(ordered(letters)) or (None,)
            observations = Symbols(np.ones((1, len(alphabet))), alphabet=alphabet).read(objects)
        if not len(observations.values):
            raise DataError("a hidden Markov model is learned from observations, and all sequences are empty.")
        rng = np.random.default_rng(self.random_state)
        best: tuple[float, Chain | None] = -np.inf, None
        for _ in range(N_STARTS if self.n_states > 1 else 1):
            emission: Any
            if self.emission == "gaussian":
                emission = random_gaussians(observations, self.n_states, rng)
            else:
                emission = Symbols(rng.dirichlet(np.full(len(alphabet), 2.0), self.n_states) + 1e-3, alphabet=alphabet)
            transition = rng.dirichlet(np.ones(self.n_states), self.n_states) + np.eye(self.n_states)
            chain = Chain(np.ones(self.n_states) / self.n_states, transition / 2, emission)
            best = max(best, _climb(evolve(self, chain=chain), observations), key=lambda found: found[0])
        return evolve(self, chain=best[1])

    def prepare(self, X: Inputs) -> Rows:
        return HostRows(self.chain.emission.read(objects_of(X)))  # type: ignore[union-attr]

    @property
    def initial(self) -> Any:
        """Probabilities of the first state: (S,)."""
        p: Any = self.chain.initial  # type: ignore[union-attr]
        return p / p.sum()

    @property
    def transition(self) -> Any:
        """Probabilities of the next state, one row for each state: (S, S)."""
        p: Any = self.chain.transition  # type: ignore[union-attr]
        return p / p.sum(axis=1, keepdims=True)

    def log_emissions(self, observations: Observations) -> Any:
        """ln p(x_t | z_t = s): (N, S)."""
        return self.chain.emission.log_emissions(observations.values)  # type: ignore[union-attr]

    def expected(self, observations: Observations) -> Expected:
        """Forward-backward recursion over each sequence: O(L S^2)."""
        return expected_paths(self.log_emissions(observations), observations.starts, self.initial, self.transition)

    def log_density(self, rows: Rows) -> Any:
        if isinstance(rows, Padded):
            return self._traceable_log_density(rows)
        if is_traced(self):
            return _traced(self, padded(rows.rows), "log_density")
        return self.expected(rows.rows).log_density

    def _traceable_log_density(self, rows: "Padded") -> jax.Array:
        """The forward recursion in JAX, for parameters that are being learned."""
        n, L = rows.values.shape[:2]
        logs = self.chain.emission.log_emissions(rows.values.reshape(n * L, *rows.values.shape[2:]))  # type: ignore[union-attr]
        forward = lambda logs, length: log_forward(logs, length, self.initial, self.transition)
        return jax.vmap(forward)(logs.reshape(n, L, self.n_states), rows.lengths)

    def scores(self, rows: Rows) -> Any:
        if isinstance(rows, Padded):
            return super().scores(rows)
        if is_traced(self):
            return _traced(self, padded(rows.rows), "scores")
        observations: Observations = rows.rows
        found = self.expected(observations)
        impossible = ~np.isfinite(found.log_density)
        if impossible.any():
            says = "the model gives this sequence probability zero: it has no score."
            raise ObjectError(int(impossible.argmax()), says)
        A, p = self.transition, self.initial
        first = np.zeros((len(observations), self.n_states))
        some = np.diff(observations.starts) > 0
        first[some] = found.states[observations.starts[:-1][some]]
        slopes = {
            "initial": first - some[:, None] * p,
            "transition": found.moves - found.moves.sum(axis=2, keepdims=True) * A,
            **self.chain.emission.scores(observations, found.states),  # type: ignore[union-attr]
        }
        return np.concatenate([slopes[slot.field][:, slot.moving] for slot in slots_of(self)], axis=1)

    def sample(self, n: int, rng: np.random.Generator, like: Rows = None, length: int | None = None) -> Inputs:
        """n sequences of one ``length``, or with lengths drawn from those of the prepared rows ``like``."""
        if like is None and length is None:
            raise DataError("a hidden Markov model has no distribution of lengths; pass length=, or rows as like=.")
        lengths = np.full(n, length) if like is None else rng.choice(np.diff(like.rows.starts), size=n)
        A, p = np.cumsum(self.transition, axis=1), np.cumsum(self.initial)
        states = np.empty((n, lengths.max(initial=0)), dtype=int)
        for t in range(states.shape[1]):
            limits = p[None] if t == 0 else A[states[:, t - 1]]
            states[:, t] = np.minimum((rng.random((n, 1)) > limits).sum(axis=1), self.n_states - 1)
        out = np.empty(n, dtype=object)
        for i, path in enumerate(states):
            out[i] = self.chain.emission.draw(path[: lengths[i]], rng)  # type: ignore[union-attr]
        return out

    def __repr__(self) -> str:
        parts = [f"n_states={self.n_states}"]
        if self.emission == "gaussian":
            parts.append("emission='gaussian'")
        known = getattr(getattr(self.chain, "emission", None), "alphabet", None) or self.symbols
        if known:
            text = all(isinstance(symbol, str) and len(symbol) == 1 for symbol in known)
            parts.append(f"symbols={''.join(known)!r}" if text else f"symbols={known!r}")
        if self.random_state:
            parts.append(f"random_state={self.random_state}")
        return f"HiddenMarkovModel({', '.join(parts)})"


def expected_paths(
    logs: np.ndarray, starts: np.ndarray, initial: np.ndarray, transition: np.ndarray, whole: bool = True
) -> Expected:
    """Sum over the paths of each sequence, from ln of its emissions (N, S). If not ``whole``, without the largest
    emission at each position."""
    from mercer.kernels.densities import markov_loops as loops
    from mercer.kernels.structured.sequence_loops import on_all_cores

    e, largest = scaled(logs)
    n, S = len(starts) - 1, len(initial)
    states, moves, found = np.zeros((len(e), S)), np.zeros((n, S, S)), np.zeros(n)
    on_all_cores(loops.expected, n, e, starts, initial, transition, states, moves, found)
    return Expected(found + sums_by_row(largest, starts) if whole else found, states, moves)


class Padded(NamedTuple):
    """Sequences of observations, padded to one length L: (n, L) or (n, L, d), and their own lengths (n,)."""

    values: Any
    lengths: Any


def padded(observations: Observations) -> Padded:
    """The same sequences, padded to a length that is a power of two, so that few lengths have to be compiled."""
    starts, values = observations.starts, observations.values
    lengths = np.diff(starts)
    n, L = len(lengths), 1 << int(lengths.max(initial=1) - 1).bit_length()
    out = np.zeros((n, L, *values.shape[1:]), values.dtype)
    out[np.arange(L) < lengths[:, None]] = values
    return Padded(out, lengths)


def log_forward(logs: Any, length: Any, initial: Any, transition: Any) -> jax.Array:
    """ln of the sum over paths of one padded sequence, from ln of its emissions (L, S): the forward recursion
    (PRML 13.36), rescaled at each position. Differentiable, to any order."""
    largest = jax.lax.stop_gradient(jnp.max(logs, axis=1))
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    e = jnp.exp(logs - largest[:, None])

    def step(state: tuple[Any, Any], at: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any], None]:
        (a, logarithm), (t, own, scale) = state, at
        new = jnp.where(t == 0, initial, a @ transition) * own
        total = jnp.sum(new)
        possible, inside = total > 0, t < length
        total = jnp.where(possible, total, 1.0)
        found = logarithm + jnp.where(possible, jnp.log(total) + scale, -jnp.inf)
        return (jnp.where(inside, new / total, a), jnp.where(inside, found, logarithm)), None

    start = jnp.zeros_like(e[0]), jnp.zeros((), e.dtype)
    return jax.lax.scan(step, start, (jnp.arange(len(e)), e, largest))[0][1]


@functools.partial(jax.jit, static_argnames="method")
def _traced(model: HiddenMarkovModel, rows: Padded, method: str) -> jax.Array:
    """Result of a method with one number or vector per sequence. Of many sequences a strip at a time, so that
    memory for the gradient is that of one strip."""
    if len(rows.lengths) <= STRIP_ROWS:
        return getattr(model, method)(rows)
    one = lambda row: getattr(model, method)(jax.tree.map(lambda leaf: leaf[None], row))[0]
    return jax.lax.map(jax.checkpoint(one), rows, batch_size=STRIP_ROWS)


def scaled(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Emissions (N, S) divided by the largest at each position, and the logarithm of that: (N,)."""
    largest = logs.max(axis=1, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    return np.exp(logs - largest[:, None]), largest


def _climb(model: HiddenMarkovModel, observations: Observations) -> tuple[float, Chain]:
    """Expectation-maximisation, with the log likelihood of its end."""
    before = -np.inf
    for _ in range(MAX_ITERATIONS):
        found = model.expected(observations)
        likelihood = found.log_density.sum() / len(observations.values)
        if likelihood - before < TOLERANCE * max(1.0, abs(likelihood)):
            break
        before = likelihood
        begun = np.diff(observations.starts) > 0
        initial = found.states[observations.starts[:-1][begun]].sum(axis=0) + SMOOTHING
        transition = found.moves.sum(axis=0) + SMOOTHING
        emission: Any = model.chain.emission  # type: ignore[union-attr]
        chain = Chain(
            initial / initial.sum(),
            transition / transition.sum(axis=1, keepdims=True),
            emission.learned(observations, found.states),
        )
        model = evolve(model, chain=chain)
    return float(likelihood), model.chain  # type: ignore[return-value]


def _distributions(values: Any, name: str, ndim: int) -> np.ndarray:
    """Probabilities that sum to one along the last axis."""
    try:
        p = np.asarray(as_float(values))
    except (TypeError, ValueError):
        hint = " Give means and covariances as a tuple." if name == "emission" else ""
        raise ParameterError(f"{name} must be an array of probabilities; got {type(values).__name__}.{hint}") from None
    if p.ndim != ndim or not p.size or not np.isfinite(p).all() or (p < 0).any():
        raise ParameterError(f"{name} must be an array of probabilities with {ndim} axes; got shape {p.shape}.")
    total = p.sum(axis=-1)
    if np.abs(total - 1).max() > 1e-6:
        worst = float(np.ravel(total)[np.abs(total - 1).argmax()])
        raise ParameterError(f"probabilities in {name} must sum to one along the last axis; a sum is {worst:.6g}.")
    return p / p.sum(axis=-1, keepdims=True)


def _alphabet(symbols: Any) -> tuple[Any, ...] | None:
    if symbols is None:
        return None
    try:
        found = tuple(dict.fromkeys(ordered(symbols) if isinstance(symbols, set | frozenset) else symbols))
    except TypeError:
        raise ParameterError(f"symbols must be a string, or a list of hashable symbols; got {symbols!r}.") from None
    if not found:
        raise ParameterError("symbols must name at least one symbol.")
    return found
