"""Double precision for mercer's own arithmetic, without changing the caller's JAX configuration."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import ForkedProcessError

Array = np.ndarray | jax.Array  # in NumPy, or in JAX, traced or not

_has_computed = False  # whether this process has used JAX
_is_broken_fork = False  # whether it was forked from one that had


def double() -> contextlib.AbstractContextManager[Any]:
    """Context in which JAX computes in float64, for this thread and this block only. All JAX arithmetic begins here.

    >>> import jax.numpy as jnp
    >>> with double():
    ...     print(jnp.ones(2).dtype)
    float64
    """
    global _has_computed
    if _is_broken_fork:
        raise ForkedProcessError(
            "this process was forked from one that had already used JAX, whose threads do not survive a fork: the "
            "computation would hang. Start processes with multiprocessing.get_context('spawn') or 'forkserver', or "
            "with joblib's default backend 'loky'; use threads; or fork before the first computation."
        )
    _has_computed = True
    return jax.enable_x64(True)


def _after_fork() -> None:
    global _is_broken_fork
    _is_broken_fork = _has_computed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def concretely() -> Iterator[None]:
    """Context of double precision in which arithmetic on concrete arrays is executed at once, even while the caller's
    ``jit`` is being traced."""
    with double(), jax.ensure_compile_time_eval():
        yield


def is_traced(tree: Any) -> bool:
    """Whether any leaf is a JAX tracer: the caller is inside ``jit``, ``grad`` or ``vmap``.

    Such computations are the caller's, and keep the precision the caller has chosen for JAX.
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def namespace(*arrays: Any) -> Any:
    """NumPy for its own arrays, else JAX: what a kernel computes on the host needs no compilation."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def is_zero(value: Any) -> bool:
    """Whether a parameter is known to be exactly zero; False for a traced one."""
    return not is_traced(value) and bool(np.all(np.asarray(value) == 0))


def as_float(value: Any) -> Any:
    """``value`` as float64 (a read-only array, or a NumPy scalar when 0-d); tracers pass through."""
    if isinstance(value, jax.core.Tracer):
        return value
    if isinstance(value, str | bytes):
        raise TypeError("text")
    array = np.array(value, dtype=np.float64)
    array.flags.writeable = False
    return array[()]
