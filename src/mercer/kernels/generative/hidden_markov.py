"""The kernel of a hidden Markov model: two sequences are similar if the same hidden path explains both."""

import numbers
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Rows
from mercer.core.parameters import evolve
from mercer.core.precision import Array, is_traced
from mercer.kernels.base import Kernel
from mercer.kernels.densities.emissions import Observations, sums_by_row
from mercer.kernels.densities.markov import HiddenMarkovModel, expected_paths, scaled
from mercer.kernels.generative.base import shown, warn_of_underflow
from mercer.kernels.validity import Validity, proved

MAX_DIFFERENTIATED = 1 << 34  # operations of a gradient in the parameters, before which it is refused as too long


class HiddenMarkov(Kernel):
    """sum over hidden paths z of p(x | z) p(x' | z) p(z) for sequences x and x' (PRML 6.31): how probable it is that
    both were emitted along the same path of states.

    Sequences may differ in length: the path is as long as the longer one, and the shorter one was emitted along its
    first states. (This is the sum over paths of a product of one function of each sequence, so it is valid; an empty
    sequence has k(x, "") = p(x).)

    ``HiddenMarkov(initial, transition, emission)`` takes probabilities (S,), (S, S) and (S, V), with ``symbols`` for
    the V columns, or as ``emission`` a pair of means (S, d) and variances or covariances; ``HiddenMarkov(4)`` learns
    four states from the training rows; a fitted CategoricalHMM or GaussianHMM of hmmlearn and a
    `mercer.kernels.densities.HiddenMarkovModel` are used without further fitting.

    Values are probabilities of sequences, so they are tiny: ``normalize()``, computed in logarithms, gives every
    sequence similarity one to itself. Cost: O(L S^2) a pair of length L, in compiled code.

    >>> sticky = HiddenMarkov([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.8, 0.2], [0.2, 0.8]], symbols="ab")
    >>> sticky.normalize()(["aaaa", "aaba", "bbbb", "aa"]).round(2)
    array([[1.  , 0.88, 0.01, 0.93],
           [0.88, 1.  , 0.08, 0.93],
           [0.01, 0.08, 1.  , 0.08],
           [0.93, 0.93, 0.08, 1.  ]])
    """

    initial: Any = None
    transition: Any = None
    emission: Any = None
    symbols: Any = eqx.field(default=None, static=True)
    n_states: int | None = eqx.field(default=None, static=True, kw_only=True)
    model: Any = eqx.field(default=None, kw_only=True)
    normalized: bool = eqx.field(default=False, static=True, kw_only=True)

    reads = "objects"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", self._made())
        for name in ("initial", "transition", "emission", "symbols", "n_states"):
            object.__setattr__(self, name, None)  # the model has them

    def _made(self) -> HiddenMarkovModel:
        first, rest = self.initial, (self.transition, self.emission)
        if first is None:
            first = self.n_states if self.model is None else self.model
        if isinstance(first, HiddenMarkovModel):
            return first
        if isinstance(first, numbers.Integral) and not isinstance(first, bool):
            if self.transition is not None or not (self.emission is None or isinstance(self.emission, str)):
                raise ParameterError(
                    "HiddenMarkov(n) learns n states, of symbols or with emission='gaussian'; it takes no matrices."
                )
            return HiddenMarkovModel(int(first), self.emission or "symbols", self.symbols)
        if hasattr(first, "transmat_"):
            return HiddenMarkovModel.from_hmmlearn(first)
        if first is None or any(part is None for part in rest):
            raise ParameterError(
                "HiddenMarkov takes initial, transition and emission probabilities, a number of states to learn, or a "
                "fitted model of hmmlearn."
            )
        return HiddenMarkovModel.of(first, *rest, symbols=self.symbols)

    @property
    def needs_fit(self) -> bool:
        return self.model.needs_fit

    def fit(self, X: Inputs) -> Self:
        return evolve(self, model=self.model.fit(X))

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return self.model.prepare(X)

    def block(self, X: Rows, Z: Rows) -> Any:
        x, z = X.rows, Z.rows
        logs: Any
        own: Any
        if is_traced(self.model):
            logs = self._traced_pairs(x, z)
            possible = jnp.isfinite(logs)
            if self.normalized:
                own = [self._traced_own(side) for side in (x, z)]
                own = [jnp.where(jnp.isfinite(side), side, 0.0) for side in own]
                logs = jnp.where(possible, logs, 0.0) - 0.5 * (own[0][:, None] + own[1][None, :])
            return jnp.where(possible, jnp.exp(jnp.where(possible, logs, 0.0)), 0.0)
        logs = self._pairs(x, z)
        if self.normalized:
            own = [self._own(side) for side in (x, z)]
            with np.errstate(invalid="ignore"):  # a sequence that the model cannot emit has no similarity to any
                logs = np.where(np.isfinite(logs), logs - 0.5 * (own[0][:, None] + own[1][None, :]), -np.inf)
        K = np.exp(logs)
        if not self.normalized and len(K) > 1 and not K.any() and np.isfinite(logs).any():
            warn_of_underflow(self, 0.5 * float(logs.max()))
        if self.normalized and x is z:  # exactly, without the rounding of long sums
            np.fill_diagonal(K, np.isfinite(own[0]))
        return K

    def block_diag(self, X: Rows) -> Any:
        own: Any
        if is_traced(self.model):
            own = self._traced_own(X.rows)
            possible = jnp.isfinite(own)
            return jnp.where(possible, 1.0 if self.normalized else jnp.exp(jnp.where(possible, own, 0.0)), 0.0)
        own = self._own(X.rows)
        return np.isfinite(own).astype(float) if self.normalized else np.exp(own)

    def _pairs(self, x: Observations, z: Observations) -> np.ndarray:
        """ln k of all pairs: (n, m)."""
        q = self.model
        logs = [q.log_emissions(side) for side in ((x,) if x is z else (x, z))]
        return log_pairs(logs[0], x.starts, logs[-1], z.starts, q.initial, q.transition, x is z, not self.normalized)

    def _own(self, x: Observations) -> np.ndarray:
        """ln k(x, x): (n,)."""
        q = self.model
        logs = 2 * q.log_emissions(x)
        return expected_paths(logs, x.starts, q.initial, q.transition, not self.normalized).log_density

    # -- gradients in the parameters: values and slopes come from the compiled loops, for JAX to differentiate --------

    def _traced_pairs(self, x: Observations, z: Observations) -> jax.Array:
        S = self.model.n_states
        length = max(int(np.diff(side.starts).max(initial=1)) for side in (x, z))
        if 10.0 * len(x) * len(z) * S * S * length > MAX_DIFFERENTIATED:
            raise DataError(
                f"learning the parameters of a hidden Markov model on {len(x)} sequences of length {length} would take "
                "hours. Fix them, or use fewer rows."
            )

        @jax.custom_vjp
        def pairs(lx: Any, lz: Any, initial: Any, transition: Any) -> Any:
            lx, lz, initial, transition = _host(lx, lz, initial, transition)
            whole = not self.normalized
            return jnp.asarray(log_pairs(lx, x.starts, lz, z.starts, initial, transition, False, whole))

        def forward(*arguments: Any) -> Any:
            return pairs(*arguments), arguments

        def backward(arguments: Any, weights: Any) -> Any:
            from mercer.kernels.densities import markov_loops as loops

            lx, lz, initial, transition = _host(*arguments)
            d_x, d_z, first, moves = (
                np.zeros_like(lx),
                np.zeros_like(lz),
                np.zeros_like(initial),
                np.zeros_like(transition),
            )
            sides = scaled(lx)[0], x.starts, scaled(lz)[0], z.starts
            loops.pull_pairs(*sides, initial, transition, np.asarray(weights, dtype=float), d_x, d_z, first, moves)
            return d_x, d_z, _ratio(first, initial), _ratio(moves, transition)

        pairs.defvjp(forward, backward)
        return pairs(
            self.model.log_emissions(x), self.model.log_emissions(z), self.model.initial, self.model.transition
        )

    def _traced_own(self, x: Observations) -> jax.Array:
        @jax.custom_vjp
        def single(logs: Any, initial: Any, transition: Any) -> Any:
            logs, initial, transition = _host(logs, initial, transition)
            found = expected_paths(logs, x.starts, initial, transition, not self.normalized)
            return jnp.asarray(found.log_density)

        def forward(*arguments: Any) -> Any:
            return single(*arguments), arguments

        def backward(arguments: Any, weights: Any) -> Any:
            logs, initial, transition = _host(*arguments)
            _, states, moves = expected_paths(logs, x.starts, initial, transition)
            weights = np.asarray(weights)
            first = np.zeros_like(initial)
            some = np.diff(x.starts) > 0
            first += weights[some] @ states[x.starts[:-1][some]]
            states = states * np.repeat(weights, np.diff(x.starts))[:, None]
            return states, _ratio(first, initial), _ratio(np.tensordot(weights, moves, 1), transition)

        single.defvjp(forward, backward)
        return single(2 * self.model.log_emissions(x), self.model.initial, self.model.transition)

    def normalize(self) -> Kernel:
        return evolve(self, normalized=True)

    @property
    def validity(self) -> Validity:
        return proved("6.31", "a sum over paths of p(x | z) p(x' | z), weighted by p(z) (6.29)", repr(self))

    def __repr__(self) -> str:
        return shown(self, f"HiddenMarkov({self.model!r}")


def log_pairs(
    lx: np.ndarray, starts_x: np.ndarray, lz: np.ndarray, starts_z: np.ndarray, initial: np.ndarray,
    transition: np.ndarray, same: bool, whole: bool = True,
) -> np.ndarray:  # fmt: skip
    """ln of the sum over shared paths for all pairs: (n, m), from ln of the emissions of both sides. If not ``whole``,
    without the largest emission at each position, which a normalised kernel divides by."""
    from mercer.kernels.densities import markov_loops as loops
    from mercer.kernels.structured.sequence_loops import on_all_cores

    (ex, largest_x), (ez, largest_z) = scaled(lx), scaled(lz)
    out = np.empty((len(starts_x) - 1, len(starts_z) - 1))
    on_all_cores(loops.log_pairs, len(out), ex, starts_x, ez, starts_z, initial, transition, same, out)
    if whole:
        out += sums_by_row(largest_x, starts_x)[:, None] + sums_by_row(largest_z, starts_z)[None, :]
    return out


def _host(*arguments: Any) -> list[np.ndarray]:
    try:
        return [np.ascontiguousarray(argument, dtype=float) for argument in arguments]
    except jax.errors.JAXTypeError:
        says = "the kernel runs on the host: jax.grad differentiates it, but jit and hessian cannot trace it."
        raise DataError(says) from None


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
