"""Prior means of a Gaussian process that learn from data: trends with unknown coefficients, and functions with learned
parameters.

`Basis` is a sum of functions with unknown coefficients, integrated out under a flat or Gaussian prior: universal
kriging (RW06 2.7; Cressie 1993, 3.4). `Function` is any JAX function whose parameters are learned with
those of the kernel.

>>> import mercer as mc
>>> from mercer import kernels as k
>>> line = mc.GP(k.RBF(0.5), mean="linear").condition([1955.0, 1956.0, 1957.0], [1.0, 3.0, 5.0], noise=1e-6)
>>> line.mean([1975.0]).round(3)  # extrapolation follows the trend
array([41.])
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer import basis as bases
from mercer.core.errors import DataError, ParameterError
from mercer.core.inputs import Inputs, as_frame, as_matrix, centre_and_spread, count_rows, is_numeric, select_columns
from mercer.core.parameters import Parametrized, RealArray, evolve
from mercer.core.precision import as_float, concretely, double
from mercer.core.text import table
from mercer.kernels.functions import RowFunction, apply_by_row, hashable, row_mode
from mercer.linalg.trend import independent_columns

RANK_TOLERANCE = 1e-10  # of a column's length: nearer than this to the columns before it, it is a combination of them


class Coefficients(NamedTuple):
    """Estimated coefficients of a trend on the natural scale, with their covariance; prints as a table.

    >>> Coefficients(["constant", "year"], np.array([-310.0, 0.2]), np.diag([4.0, 1e-6]))
    coefficient  estimate  standard error
    constant     -310      2
    year         0.2       0.001
    """

    names: list[str]
    estimate: np.ndarray
    covariance: np.ndarray

    @property
    def error(self) -> np.ndarray:
        """Standard errors: (q,)."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def __repr__(self) -> str:
        rows = [
            [name, f"{estimate:.5g}", f"{error:.3g}"]
            for name, estimate, error in zip(self.names, self.estimate, self.error, strict=True)
        ]
        return table(["coefficient", "estimate", "standard error"], rows)


def _fixed_basis(basis: Any) -> RowFunction:
    """The basis as a function of rows, its own parameters fixed."""
    found = RowFunction.of(basis)
    return RowFunction(found.module.fix(), None) if isinstance(found.module, bases.Basis) else found


def _selection(columns: Any) -> tuple[Any, ...] | None:
    columns = (columns,) if isinstance(columns, str | int | np.integer) else columns
    found = None if columns is None else tuple(columns)
    if found is not None and not (found and all(isinstance(c, str | int | np.integer) for c in found)):
        raise ParameterError(f"columns of a mean are names or indices, at least one; got {columns!r}.")
    return found


class Basis(Parametrized):
    """A trend sum_j beta_j phi_j(x) with unknown coefficients, which are integrated out.

    ``basis`` is from `mercer.basis`, or any function of one input that returns one or more numbers; its own parameters
    are not learned. ``variance`` None is a flat prior on the coefficients: generalised least squares, and the
    restricted likelihood (REML) as evidence. A number is the prior N(0, variance) of each, in units of y squared, the
    same model as a kernel term FeatureMap(basis, 1 / variance). ``columns`` (names or indices) selects the inputs it
    reads; None reads all that are numbers.

    Inside, columns are standardised and made orthogonal on the training rows, so that inputs may be far from zero. With
    a flat prior a function that is a linear combination of those before it on these rows is left out.
    """

    basis: Any = eqx.field(converter=_fixed_basis)
    variance: float | None = eqx.field(default=None, static=True)
    columns: Any = eqx.field(default=None, static=True, converter=_selection)
    # set by `fit`: how inputs are standardised, and columns combined
    shift: Any = eqx.field(default=None, kw_only=True)
    spread: Any = eqx.field(default=None, kw_only=True)
    transform: Any = eqx.field(default=None, kw_only=True)

    def __check_init__(self) -> None:
        value = self.variance
        if value is not None and not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
            raise ParameterError(f"variance of coefficients must be positive, or None for a flat prior; got {value!r}.")

    def consistent(self) -> bool:
        """Whether its parts fit together, for `mercer.load`."""
        fitted = (self.shift, self.spread, self.transform)
        return isinstance(self.basis, RowFunction) and all(isinstance(part, np.ndarray | None) for part in fitted)

    @property
    def degree(self) -> int | None:
        """Of a polynomial; None for other functions."""
        module = self.basis.module
        return module.degree if isinstance(module, bases.Polynomial) else None

    @property
    def centred(self) -> bool:
        """Whether it contains a constant with a flat prior, so that the mean of y does not matter."""
        return self.degree is not None and self.variance is None

    @property
    def fitted(self) -> bool:
        return self.transform is not None

    def precision(self, unit: float) -> np.ndarray | None:
        """Prior precision of the coefficients of `design`, of a target in this ``unit``: (q, q). None: flat."""
        return None if self.variance is None else self.transform.T @ self.transform * unit**2 / self.variance

    def fit(self, X: Inputs) -> "Basis":
        """A copy that is conditioned on these rows."""
        if self.degree == 0:
            return evolve(self, transform=np.ones((1, 1)))
        new, frame = self, as_frame(X)
        if self.columns is None and frame is not None and isinstance(self.basis.module, bases.Basis):
            names = tuple(name for name, dtype in frame.schema.items() if is_numeric(dtype))
            if not names:
                raise DataError(f"the mean {self!r} reads numbers, and X has none among {list(frame.columns)}.")
            new = evolve(self, columns=names)
        if self.degree is not None and self.variance is None:
            Z = new._inputs(X)
            shift, spread = centre_and_spread(Z)
            varies = np.ptp(Z, axis=0) > RANK_TOLERANCE * np.abs(Z).max(axis=0)
            new = evolve(new, shift=shift, spread=np.where(varies, spread, np.inf))  # a constant input becomes zero
        Phi = new._functions(X)
        if self.variance is not None:
            lengths = np.sqrt(np.mean(Phi**2, axis=0))
            return evolve(new, transform=np.diag(1 / np.where(lengths > 0, lengths, 1.0)))
        n, q = Phi.shape
        kept, T = independent_columns(Phi, RANK_TOLERANCE)
        if n < q:
            raise DataError(
                f"the mean {self!r} has {q} unknown coefficients, and there are {n} rows. Give at least {q} rows, "
                "fewer functions, or a prior: mercer.means.Basis(..., variance=...)."
            )
        transform = np.zeros((q, len(kept)))
        transform[kept] = T
        return evolve(new, transform=transform)

    def dropped(self, X: Inputs) -> list[str]:
        """Names of the functions left out by `fit`, because they are linear combinations of others."""
        return [name for name, row in zip(self.names(X), self.transform, strict=True) if not row.any()]

    def _inputs(self, X: Inputs) -> Any:
        X = X if self.columns is None else select_columns(X, self.columns)
        return as_matrix(X) if isinstance(self.basis.module, bases.Basis) else X

    def _functions(self, X: Inputs) -> np.ndarray:
        """phi(x), of standardised inputs: (n, M)."""
        Z = self._inputs(X)
        with concretely():
            values = np.asarray(
                self.basis(self.basis.prepare(Z if self.shift is None else (Z - self.shift) / self.spread))
            )
        if not np.isfinite(values).all():
            raise DataError(f"the mean {self!r} has values that are not finite; rescale the inputs, or select columns.")
        return values

    def design(self, X: Inputs) -> np.ndarray:
        """Columns H (n, q), combinations of the functions as in `fit`."""
        if self.degree == 0:
            return np.ones((count_rows(X), 1))
        return self._functions(X) @ self.transform

    def at(self, x: jax.Array) -> jax.Array:
        """A row of `design`, for one input in JAX: (q,)."""
        if self.degree == 0:
            return jnp.ones(1)
        x = x if self.columns is None else x[jnp.array([int(c) for c in self.columns])]
        x = x if self.shift is None else (x - self.shift) / self.spread
        return self.basis(self.basis.prepare(x[None, :]))[0] @ jnp.asarray(self.transform)

    def slope(self, Z: np.ndarray, names: list[str] | None) -> np.ndarray:
        """Derivatives of `design` with respect to all inputs, a matrix (s, d) with these column names: (s, q, d)."""
        out = np.zeros((*Z.shape, self.transform.shape[1]))
        if self.degree != 0:
            which = positions(self.columns, names, Z.shape[1])
            shift, spread = (0.0, 1.0) if self.shift is None else (self.shift, self.spread)
            out[:, which] = row_slopes(self.basis, (Z[:, which] - shift) / spread, self) @ self.transform
            out[:, which] /= np.broadcast_to(spread, (len(which),))[:, None]
        return out.swapaxes(1, 2)

    def names(self, X: Inputs) -> list[str]:
        """Names of the functions, in the order of the coefficients."""
        if self.degree == 0:
            return ["constant"]
        if self.degree is None:
            count = len(self.transform) if self.fitted else self._functions(X).shape[1]
            label = (
                type(self.basis.module).__name__.lower() if isinstance(self.basis.module, bases.Basis) else self.basis
            )
            return [f"{label}[{j}]" for j in range(count)]
        inputs = self._inputs(X)
        frame, d = as_frame(X), inputs.shape[1]
        own = range(d) if self.columns is None else self.columns
        labels = [c if isinstance(c, str) else f"x{c}" if frame is None else str(frame.columns[c]) for c in own]
        return [_monomial_name(exponents, labels) for exponents in bases.monomials(d, self.degree)]

    def natural(self, names: list[str], coefficients: np.ndarray, covariance: np.ndarray) -> Coefficients:
        """Coefficients of the functions themselves, from those of the columns of `design` and their covariance."""
        T = self.transform
        if self.shift is not None and self.degree:
            T = _expansion(self.degree, self.shift, self.spread) @ T
        shown = T.any(axis=1)  # others were left out
        names, T = [name for name, there in zip(names, shown, strict=True) if there], T[shown]
        return Coefficients(names, T @ coefficients, T @ covariance @ T.T)

    def __repr__(self) -> str:
        prior = "" if self.variance is None else f", variance={self.variance:g}"
        on = "" if self.columns is None else f", columns={list(self.columns)}"
        return f"Basis({self.basis!r}{prior}{on})"


def _monomial_name(exponents: np.ndarray, labels: list[str]) -> str:
    powers = [f"{labels[i]}^{e}" if e > 1 else labels[i] for i, e in enumerate(exponents) if e]
    return " ".join(powers) or "constant"


def _expansion(degree: int, shift: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """E (M, M): monomial j of (x - shift) / spread is sum_i E_ij times monomial i of x."""
    exponents = bases.monomials(len(shift), degree)
    index = {tuple(row): i for i, row in enumerate(exponents.tolist())}
    E = np.zeros((len(exponents), len(exponents)))
    for j, powers in enumerate(exponents.tolist()):
        for lower in itertools.product(*(range(p + 1) for p in powers)):
            terms = zip(powers, lower, shift, spread, strict=True)
            E[index[lower], j] = math.prod(math.comb(p, m) * (-s) ** (p - m) / w**p for p, m, s, w in terms)
    return E


class Parameter(Parametrized):
    """Numbers learned as a part of a mean function."""

    _unnamed = frozenset({"value"})

    value: RealArray


class Parameters(Parametrized):
    """A pytree of learned numbers: its leaves, each a node with a name, and its structure."""

    leaves: tuple[Parameter, ...]
    structure: Any = eqx.field(static=True)

    @classmethod
    def of(cls, params: Any) -> "Parameters":
        if isinstance(params, Parameters):
            return params
        found, structure = jax.tree_util.tree_flatten_with_path(params)
        if not found:
            raise ParameterError("a mean function without parameters is the function itself: mean=f.")
        return cls(tuple(Parameter(leaf, name=_leaf_name(path)) for path, leaf in found), structure)

    @property
    def tree(self) -> Any:
        return jax.tree.unflatten(self.structure, [leaf.value for leaf in self.leaves])


class Function(Parametrized):
    """f(params, x): a function of one input, in JAX, with parameters that are learned with those of the kernel.

    ``params`` are the numbers to start from: an array, or a dict, list or other pytree of arrays. Gradients come from
    automatic differentiation. Values are in units of y. ``columns`` (names or indices) selects the inputs it reads. The
    uncertainty of its parameters is not part of predictions; that of linear coefficients is, with `Basis`.

    >>> import jax.numpy as jnp
    >>> Function(lambda p, t: p["size"] * jnp.exp(-p["rate"] * t), {"size": 1.0, "rate": 0.1}).parameters
    parameter  value  range  learned  prior
    rate       0.1    real   yes      -
    size       1.0    real   yes      -
    """

    function: Callable = eqx.field(static=True, converter=hashable)
    params: Any = eqx.field(converter=Parameters.of)
    columns: Any = eqx.field(default=None, static=True, converter=_selection)

    def __check_init__(self) -> None:
        if not callable(self.function):
            raise ParameterError(f"a function f(params, x) was expected; got {self.function!r}.")

    def _at(self, x: Any) -> Any:
        return self.function(self.params.tree, x)

    def prepare(self, X: Inputs) -> np.ndarray:
        """The inputs that it reads: (n, d)."""
        return as_matrix(X if self.columns is None else select_columns(X, self.columns))

    def program(self, d: int) -> Callable[["Function", jax.Array], jax.Array]:
        """Values (n, 1) of a copy with other parameters at the rows of a matrix of d columns, in JAX."""
        mode = row_mode(self._at, d)

        def program(new: "Function", rows: jax.Array) -> jax.Array:
            return apply_by_row(new._at, mode, rows)

        try:
            with double():
                jax.eval_shape(program, self, jax.ShapeDtypeStruct((2, d), np.float64))
        except Exception as error:
            raise ParameterError(
                f"the mean function {self!r} cannot be traced by JAX on an input of {d} columns, so its parameters "
                f"cannot be learned. Write f(params, x) with jax.numpy, of one input x. ({type(error).__name__})"
            ) from error
        return program

    def __call__(self, rows: Any) -> jax.Array:
        """Values (n, 1) at rows of `prepare`."""
        return self.program(rows.shape[1])(self, jnp.asarray(rows))

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", None) or repr(self.function)


def _leaf_name(path: tuple[Any, ...]) -> str:
    keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    joined = "_".join(keys)
    return next((name for name in (joined, f"params_{joined}") if name.isidentifier() and joined), "params")


def positions(columns: tuple[Any, ...] | None, names: list[str] | None, d: int) -> list[int]:
    """Indices of selected columns among d, which have these names."""
    own = range(d) if columns is None else columns
    return [(names or []).index(c) if isinstance(c, str) else int(c) % d for c in own]


def row_slopes(function: Callable, Z: np.ndarray, who: object) -> np.ndarray:
    """Derivatives of a function of rows with respect to its inputs: (s, d, M)."""
    try:
        with concretely():
            found = jax.vmap(jax.jacfwd(lambda x: function(x[None, :])[0]))(jnp.asarray(Z))
    except DataError as error:
        raise ParameterError(f"the mean {who!r} has no derivatives: {error}") from None
    return np.asarray(as_float(found)).swapaxes(1, 2)
