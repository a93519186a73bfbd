"""Parameters as an optimiser sees them: one unconstrained vector of those that may move.

Positive parameters are logarithms here; fixed ones, and terms switched off by an exact zero, are left out.
"""

import jax.numpy as jnp
import numpy as np

from mercer.core.parameters import Parametrized
from mercer.core.precision import concretely, is_traced


def free_names(tree: Parametrized) -> list[str]:
    """One name per coordinate of the free vector; entries of a vector parameter carry their index."""
    names = []
    for slot in tree._slots():
        if slot.free:
            entries = np.flatnonzero(slot.moving)
            names += [slot.name] if np.ndim(slot.value) == 0 else [f"{slot.name}[{i}]" for i in entries]
    return names


def to_free(tree: Parametrized):
    """The free parameters in the optimiser's coordinates: logarithms of positive ones, fixed ones left out.

    >>> from mercer.kernels import RBF
    >>> float(to_free(RBF(lengthscale=1.0))[0])
    0.0
    """
    if not is_traced(tree):
        with concretely():
            return _to_free(tree)
    return _to_free(tree)


def _to_free(tree):
    parts = [s.constraint.to_free(jnp.atleast_1d(s.value)[np.atleast_1d(s.moving)]) for s in tree._slots() if s.free]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def from_free(tree: Parametrized, theta):
    """The tree with its free parameters read from ``theta``; differentiable in ``theta``."""
    if not is_traced((tree, theta)):
        with concretely():
            return _from_free(tree, theta)
    return _from_free(tree, theta)


def _from_free(tree, theta):
    start = 0
    for slot in tree._slots():
        if slot.free:
            moving = np.flatnonzero(slot.moving)
            values = slot.constraint.from_free(theta[start : start + moving.size])
            value = jnp.atleast_1d(jnp.asarray(slot.value)).at[moving].set(values).reshape(np.shape(slot.value))
            tree = tree._evolve_at(slot.path, **{slot.field: value})
            start += moving.size
    return tree


def log_prior(tree: Parametrized):
    """Sum of the log densities of all priors at the present values, on the natural scale."""
    return sum((jnp.sum(s.prior.log_density(s.value)) for s in tree._slots() if s.prior is not None), jnp.zeros(()))
