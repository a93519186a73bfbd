"""Random seeds: ``random_state`` at the edge, JAX keys inside."""

from typing import Any

import jax
import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.precision import concretely


def as_key(seed: Any) -> jax.Array:
    """Make a JAX key from an int, a NumPy generator, a JAX key, or None (fresh entropy).

    The same int always gives the same key; a generator advances by one draw.

    >>> bool((as_key(3) == as_key(3)).all())
    True
    """
    if isinstance(seed, jax.Array) and (seed.ndim or jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)):
        return seed
    if isinstance(seed, jax.Array) and seed.dtype.kind in "iu":
        seed = int(seed)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**63))
    elif isinstance(seed, np.random.Generator):
        seed = seed.integers(2**63)
    elif isinstance(seed, np.random.RandomState):
        seed = seed.randint(2**31)
    elif not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise ParameterError(
            f"seed must be an integer, a NumPy generator, a JAX key or None; got {seed!r} ({type(seed).__name__})."
        )
    if not 0 <= int(seed) < 2**63:
        raise ParameterError(f"seed must lie in [0, 2**63); got {seed!r}.")
    # 32-bit words, so that the key does not depend on the caller's x64 setting.
    high, low = divmod(int(seed), 2**32)
    key = jax.random.key(np.uint32(low), impl="threefry2x32")
    return jax.random.fold_in(key, np.uint32(high)) if high else key


def entropy(random_state: Any) -> int | None:
    """Seed for a NumPy generator from scikit-learn's ``random_state``; None stays None (fresh entropy)."""
    if random_state is None:
        return None
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if not whole or random_state < 0:
        raise ParameterError(
            f"random_state must be None, a non-negative integer or a NumPy generator; got {random_state!r}."
        )
    return int(random_state)


def seed_of(random_state: Any) -> int:
    """Integer seed to use in several places, drawn once if ``random_state`` is a generator. None is 0, so that the same
    data give the same model."""
    return entropy(random_state) or 0


def generator(random_state: Any) -> np.random.Generator:
    """NumPy generator for a fit. None is 0, so that the same data give the same model."""
    return np.random.default_rng(seed_of(random_state))


def normal(seed: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal draws, float64."""
    with concretely():
        return np.asarray(jax.random.normal(as_key(seed), shape))
