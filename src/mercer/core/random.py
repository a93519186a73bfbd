"""Seeds at the edge, JAX keys inside."""

import jax
import numpy as np

from mercer.core.errors import ParameterError
from mercer.core.precision import concretely


def as_key(seed):
    """A JAX key from an int, a NumPy generator, a JAX key, or None (fresh entropy).

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


def normal(seed, shape) -> np.ndarray:
    """Standard normal numbers, float64."""
    with concretely():
        return np.asarray(jax.random.normal(as_key(seed), shape))
