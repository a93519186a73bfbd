"""Functions given by users: of one input, or of a pair of inputs.

phi(x), f(x) and k(x, x') take single inputs, rows of length d. A function that JAX can trace is traced (and compiled
and differentiated); any other runs on the host, row by row. If there is one column, a function that fails on vectors is
called with numbers; a function that fails on single rows is called with a matrix of rows. Functions must be pure: their
values may be kept.
"""

import functools
import reprlib
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.basis import Basis
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, Kind, Rows, as_matrix, as_objects, holds_numbers
from mercer.core.parameters import Parametrized
from mercer.core.precision import concretely, double
from mercer.kernels.evaluate import HostRows


class RowFunction(Parametrized):
    """A user's function of one input, applied to rows: (n, d) -> (n, M)."""

    _transparent: ClassVar[bool] = True

    module: Any  # a basis, or the arrays of an equinox module; None for a function
    function: Any = eqx.field(static=True)  # a function, or the rest of an equinox module; None for a basis

    @staticmethod
    def of(f: Any) -> "RowFunction":
        if isinstance(f, RowFunction):
            return f
        if not callable(f):
            raise ParameterError(f"a function of one input was expected; got {f!r} ({type(f).__name__}).")
        if isinstance(f, Basis):
            return RowFunction(f, None)
        if isinstance(f, eqx.Module):
            return RowFunction(*eqx.partition(f, eqx.is_inexact_array))
        return RowFunction(None, hashable(f))

    @property
    def runs_user_code(self) -> bool:
        return self.function is not None

    @property
    def call(self) -> Callable:
        if self.module is None or self.function is None:
            return self.module if self.function is None else self.function
        return eqx.combine(self.module, self.function)

    def prepare(self, X: Inputs) -> Rows:
        """Rows for `__call__`: the inputs, or the values if the function runs on the host."""
        if not holds_numbers(X):
            X = as_objects(X)
        elif isinstance(X := as_matrix(X), jax.core.Tracer) or self._mode(X.shape[1]) != "host":
            return X
        values = _host_values(self.call, X)
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            raise DataError(
                f"the function {self!r} returned values that are not finite for {bad.sum()} inputs, the first in row "
                f"{bad.argmax()}: {X[bad.argmax()]}."
            )
        return HostRows(values)

    def __call__(self, rows: Rows) -> jax.Array:
        if isinstance(rows, HostRows):
            return jnp.asarray(rows.rows)
        if isinstance(self.module, Basis):
            return self.module.design(rows)
        mode = self._mode(rows.shape[1])
        if mode == "row":
            return jax.vmap(lambda x: _flat(self.call(x)))(rows)
        if mode == "scalar":
            return jax.vmap(lambda x: _flat(self.call(x[0])))(rows)
        if mode == "batch":
            return _as_columns(_floats(self.call(rows)), rows.shape[0])
        raise not_traceable(self)

    def _mode(self, d: int) -> str:
        if isinstance(self.module, Basis):
            return "batch"
        return _row_mode(self.function, d) if self.module is None else _find_row_mode(self.call, d)

    def __repr__(self) -> str:
        return getattr(self.call, "__name__", None) or repr(self.call)


class PairFunction(eqx.Module):
    """A user's function of a pair of inputs, applied to all pairs: (n, d), (m, d) -> (n, m)."""

    function: Callable = eqx.field(static=True, converter=lambda f: hashable(f))

    def __check_init__(self) -> None:
        if not callable(self.function):
            raise ParameterError(f"a function of two inputs was expected; got {self.function!r}.")

    def prepare(self, X: Inputs, kind: Kind) -> Rows:
        if kind == "objects" or not holds_numbers(X):
            return HostRows(as_objects(X))
        X = as_matrix(X)
        return X if isinstance(X, jax.core.Tracer) or _pair_mode(self.function, X.shape[1]) != "host" else HostRows(X)

    def __call__(self, X: Rows, Z: Rows) -> jax.Array:
        if isinstance(X, HostRows) or isinstance(Z, HostRows):
            x, z = (side.rows if isinstance(side, HostRows) else side for side in (X, Z))
            return jnp.asarray(_host_pairs(self.function, x, z))
        mode = _pair_mode(self.function, X.shape[1])
        if mode == "host":
            raise not_traceable(self)
        one = self.function if mode == "row" else lambda x, z: self.function(x[0], z[0])
        return jax.vmap(lambda x: jax.vmap(lambda z: jnp.reshape(one(x, z), ()))(Z))(X)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", None) or repr(self.function)


def not_traceable(function: Any) -> DataError:
    """Error for a function that runs on the host, and is called inside jit, grad or vmap."""
    return DataError(
        f"{function!r} cannot be traced by JAX, so it cannot be used inside jit, grad or vmap. "
        "Write it with jax.numpy, or call the kernel on NumPy arrays."
    )


class _ByIdentity:
    """A callable that is not hashable, hashed by identity."""

    def __init__(self, f: Callable) -> None:
        self.f, self.__name__ = f, getattr(f, "__name__", repr(f))

    def __call__(self, *args: Any) -> Any:
        return self.f(*args)


def hashable(f: Callable) -> Callable:
    """``f`` itself, or wrapped so that compiled code can be cached by it."""
    try:
        hash(f)
    except TypeError:
        return _ByIdentity(f)
    return f


# -- how a function can be called ----------------------------------------------------------------------------------


def _row(d: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((d,), np.float64)


def _traces(f: Callable, *shapes: jax.ShapeDtypeStruct, accept: Callable[[Any], bool] = lambda out: True) -> bool:
    """Whether JAX can trace ``f`` on inputs of these shapes, and its result is accepted."""
    try:
        with concretely():
            f(*(np.ones(shape.shape) for shape in shapes))
    except IndexError:  # JAX would clamp the index to the last entry
        return False
    except Exception:
        pass
    try:
        with double():
            return accept(jax.eval_shape(f, *shapes))
    except Exception:
        return False


def _find_row_mode(f: Callable, d: int) -> str:
    """How to call a function of one input of d columns: with a "row", "scalar" or "batch" of rows, or on the "host"."""
    if _traces(lambda x: _flat(f(x)), _row(d)):
        return "row"
    if d == 1 and _traces(lambda x: _flat(f(x)), jax.ShapeDtypeStruct((), np.float64)):
        return "scalar"
    if _traces(lambda X: _as_columns(_floats(f(X)), 3), jax.ShapeDtypeStruct((3, d), np.float64)):
        return "batch"
    return "host"


_row_mode = functools.lru_cache(maxsize=1024)(_find_row_mode)


@functools.lru_cache(maxsize=1024)
def _pair_mode(f: Callable, d: int) -> str:
    """How to call a function of two inputs of d columns: with a "row" or a "scalar" each, or on the "host"."""

    def one_number(out: Any) -> bool:
        return isinstance(out, jax.ShapeDtypeStruct) and out.size == 1 and out.dtype.kind in "fiub"

    if _traces(f, _row(d), _row(d), accept=one_number):
        return "row"
    scalar = jax.ShapeDtypeStruct((), np.float64)
    if d == 1 and _traces(f, scalar, scalar, accept=one_number):
        return "scalar"
    return "host"


def _flat(value: Any) -> jax.Array:
    """What a function returned for one input, as a vector."""
    return jnp.concatenate([jnp.ravel(_floats(leaf)) for leaf in jax.tree.leaves(value)])


def _floats(value: Any) -> jax.Array:
    value = jnp.asarray(value)
    if value.dtype.kind == "c":
        raise TypeError("it returned complex numbers")
    return value.astype(float)


def _as_columns(value: Any, n: int) -> Any:
    """What a function returned for a batch of n rows, as a matrix (n, M)."""
    if value.ndim not in (1, 2) or value.shape[0] != n:
        raise DataError(f"expected one row per input, {n} in all; the function returned shape {value.shape}.")
    return value[:, None] if value.ndim == 1 else value


def _host_values(f: Callable, X: np.ndarray) -> np.ndarray:
    """Values of a function that JAX cannot trace: row by row, or all rows at once if that fails."""
    calls: list[Callable] = [lambda: [np.ravel(_real(f(x))) for x in X]]
    if X.ndim == 2:
        if X.shape[1] == 1:
            calls.append(lambda: [np.ravel(_real(f(float(x[0])))) for x in X])
        calls.append(lambda: _as_columns(_real(f(X)), len(X)))
    failure = None
    for call in calls:
        try:
            return np.stack(call())
        except Exception as error:
            failure = failure or error
    what = f"an input of {X.shape[1]} columns" if X.ndim == 2 else f"an input such as {reprlib.repr(X[0])}"
    raise DataError(f"the function {getattr(f, '__name__', f)!r} failed on {what}: {failure}") from failure


def _real(value: Any) -> np.ndarray:
    if np.asarray(value).dtype.kind == "c":
        raise TypeError("it returned complex numbers")
    return np.asarray(value, dtype=float)


def _host_pairs(f: Callable, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Values of a function that JAX cannot trace, pair by pair: (n, m)."""
    scalars = X.ndim == 2 and Z.ndim == 2 and X.shape[1] == 1
    out = np.empty((len(X), len(Z)))
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            try:
                value = _one_value(f, x, z, scalars)
            except Exception as error:
                raise DataError(f"the kernel function failed on a pair of inputs: {error}") from error
            if np.size(value) != 1 or np.asarray(value).dtype.kind not in "fiub":
                raise DataError(
                    f"the kernel function must return one number per pair; got {reprlib.repr(value)} "
                    f"of shape {np.shape(value)}."
                )
            out[i, j] = np.reshape(value, ())
    return out


def _one_value(f: Callable, x: Any, z: Any, scalars: bool) -> Any:
    try:
        return f(x, z)
    except Exception:
        if not scalars:
            raise
        return f(float(x[0]), float(z[0]))
