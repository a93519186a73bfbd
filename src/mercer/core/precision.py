"""Double precision for mercer's own arithmetic, without touching the caller's JAX configuration."""

import contextlib
import os

import jax
import numpy as np

from mercer.core.errors import ForkedProcessError

_computed = _orphaned = False  # whether this process has computed; whether it is a fork of one that had


def double():
    """Context in which JAX computes in float64, for this thread and this block only. All arithmetic begins here.

    >>> import jax.numpy as jnp
    >>> with double():
    ...     print(jnp.ones(2).dtype)
    float64
    """
    global _computed
    if _orphaned:
        raise ForkedProcessError(
            "this process was forked from one that had already computed, and JAX's threads did not come along: it "
            "would wait for them for ever. Start processes by multiprocessing.get_context('spawn') or 'forkserver', or "
            "by joblib, whose workers ('loky') are fresh; use threads; or fork before the first computation."
        )
    _computed = True
    return jax.enable_x64(True)


def _after_fork():
    global _orphaned
    _orphaned = _computed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def concretely():
    """Double precision, and arithmetic on plain numbers done now even while the caller's ``jit`` is being traced."""
    with double(), jax.ensure_compile_time_eval():
        yield


def is_traced(tree) -> bool:
    """Whether any leaf is a JAX tracer: the caller is inside ``jit``, ``grad`` or ``vmap``.

    Such computations belong to the caller, and keep the precision the caller has chosen for JAX.
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def is_zero(value) -> bool:
    """Whether a parameter is known to be exactly zero; a traced one is not."""
    return not is_traced(value) and bool(np.all(np.asarray(value) == 0))


def as_float(value):
    """``value`` as float64 (a read-only array, or a NumPy scalar when 0-d); tracers pass through."""
    if isinstance(value, jax.core.Tracer):
        return value
    if isinstance(value, str | bytes):
        raise TypeError("text")
    array = np.array(value, dtype=np.float64)
    array.flags.writeable = False
    return array[()]
