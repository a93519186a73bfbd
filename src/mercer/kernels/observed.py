"""Covariances of linear observations: a kernel under operators in both arguments (Graepel 2003).

Rows say which operator was observed where: a matrix of the inputs, the number of the operator among those of the
kernel, and the numbers in it, such as the limits of an integral. Operators that differ in these alone share one
compiled formula. A plain matrix of inputs is rows of one of them, the values unless said otherwise, so that all that
works with kernels, processes and solvers works with observations of any kind.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mercer.core.errors import DataError, InvalidKernelError, NumericalWarning, ParameterError
from mercer.core.inputs import Inputs, Rows, as_matrix, column_names, select_columns
from mercer.core.parameters import Parametrized, evolve
from mercer.core.precision import Array, concretely, is_traced
from mercer.core.registry import storable
from mercer.kernels.base import Kernel, register
from mercer.kernels.distance import smooth_distances
from mercer.kernels.operators import Composed, Operator, Rule, Value, columns_integrated, integrates, open_ended
from mercer.kernels.space import OfPlaces
from mercer.kernels.substitution import by_position
from mercer.kernels.validity import Validity, derive

QUADRATURE_TOLERANCE = 1e-9  # change of the variance of an integral when there are more nodes
ACCEPTED_ERROR = 1e-7  # without a warning
SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)  # numbers of nodes
MAX_NODES = {1: 96, 2: 16, 3: 6}  # for each column integrated over, by how many there are
OPEN_ENDED_NODES = 24  # at least, of integrals whose range depends on the row
SAMPLE_ROWS = 12  # on which the accuracy is measured
PROBE_STEP = 1e-6  # to a row next to another, as a share of the range
PROBE_TOLERANCE = 1e-4  # of the largest covariance of a row, for a negative eigenvalue


@functools.lru_cache(maxsize=64)
def gauss_legendre(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(size)
    return 0.5 * (nodes + 1), 0.5 * weights


@storable("operators")
class Functionals(Parametrized):
    """The operators that rows may refer to, and how rows are coded: [inputs, number of the operator, its numbers].

    ``operators`` are one of each form; ``default`` is that of rows without a code. Inputs have ``width`` columns, of
    these ``names`` if they came in frames. ``nodes`` and ``weights`` are a rule on [0, 1].
    """

    operators: tuple[Operator, ...]
    width: int = eqx.field(static=True)
    names: tuple[str, ...] | None = eqx.field(default=None, static=True)
    default: Operator = Value()
    nodes: Any = eqx.field(default_factory=lambda: gauss_legendre(1)[0])
    weights: Any = eqx.field(default_factory=lambda: gauss_legendre(1)[1])

    @classmethod
    def over(cls, X: Inputs) -> "Functionals":
        """Values alone, of inputs like these."""
        names = column_names(X)
        return cls((Value(),), as_matrix(X).shape[1], None if names is None else tuple(names))

    # -- codes ---------------------------------------------------------------------------------------------------------

    @property  # not kept: copies of JAX's tree structures are not equal to them
    def _forms(self) -> list[tuple[Any, list[tuple[int, ...]]]]:
        return [_form(operator) for operator in self.operators]

    @property
    def numbers(self) -> int:
        """Columns for the numbers of an operator."""
        return max(1, *(sum(map(_size, shapes)) for _, shapes in self._forms))

    def with_operators(self, operators: Sequence[Operator]) -> "Functionals":
        """With the forms of these as well."""
        known = list(self.operators)
        forms = [_form(operator) for operator in known]
        for operator in operators:
            if _form(operator) not in forms:
                known.append(operator)
                forms.append(_form(operator))
        return evolve(self, operators=tuple(known))

    def places(self, X: Inputs) -> Any:
        """Inputs without codes: (n, d)."""
        if column_names(X) is not None and self.names is not None:
            X = select_columns(X, self.names)
        X = as_matrix(X)
        if X.shape[1] not in (self.width, self.width + 1 + self.numbers):
            raise DataError(f"expected inputs of {self.width} columns; got {X.shape[1]}.")
        return X[:, : self.width]

    def coded(self, X: Inputs, operators: Sequence[Operator] | None = None) -> Any:
        """Rows with their codes: (n, d + 1 + P). Those that have codes keep them."""
        wide = self.width + 1 + self.numbers
        if operators is None and column_names(X) is None and len(np.shape(X)) == 2 and np.shape(X)[1] == wide:
            return X
        X = self.places(X)
        xp = jnp if is_traced(X) else np
        if operators is None:
            code = self._code(self.default)
            codes = xp.broadcast_to(code, (X.shape[0], len(code)))
        else:
            kept: dict[int, np.ndarray] = {}
            codes = np.array([kept.setdefault(id(one), self._code(one)) for one in operators])
            codes = codes.reshape(len(operators), 1 + self.numbers)
        return xp.concatenate([X, codes], axis=1)

    def _code(self, operator: Operator) -> np.ndarray:
        number = self._forms.index(_form(operator))
        flat = [np.ravel(leaf) for leaf in jax.tree.leaves(operator)]
        numbers = np.concatenate([np.zeros(0), *flat])
        return np.concatenate([[number], numbers, np.zeros(self.numbers - len(numbers))])

    def recoded(self, rows: np.ndarray, other: "Functionals") -> np.ndarray:
        """Rows coded by ``other``, of which this has all forms."""
        d = self.width
        out = np.zeros((len(rows), d + 1 + self.numbers))
        out[:, : rows.shape[1]] = rows
        order = [self._forms.index(form) for form in other._forms]
        out[:, d] = np.array(order)[rows[:, d].astype(int)]
        return out

    def split(self, rows: Any) -> tuple[Any, Any, Any]:
        """Inputs, numbers of the operators, and the numbers in these: (n, d), (n,), (n, P)."""
        return rows[:, : self.width], rows[:, self.width].astype(int), rows[:, self.width + 1 :]

    def by_default(self, operator: Operator) -> "Functionals":
        """With this operator at rows without a code, after the one that is there."""
        if not self.default.is_value:
            operator = operator if operator.is_value else Composed(operator, self.default)
            operator = self.default if operator.is_value else operator
        return evolve(self.with_operators([operator]), default=operator)

    def only_values(self, rows: np.ndarray) -> bool:
        """Whether all rows are values."""
        if np.shape(rows)[1] == self.width:
            return self.default.is_value
        return all(self.operators[i].is_value for i in np.unique(self.split(rows)[1]))

    # -- application ---------------------------------------------------------------------------------------------------

    def _operator(self, number: int, values: Any) -> Operator:
        """One of the operators with these numbers in it."""
        structure, shapes = self._forms[number]
        leaves, start = [], 0
        for shape in shapes:
            leaves.append(jnp.reshape(values[start : start + _size(shape)], shape))
            start += _size(shape)
        found: Operator = jax.tree.unflatten(structure, leaves)
        return found

    def applied(self, g: Callable[[Any], Any], rows: np.ndarray) -> np.ndarray:
        """(L g)(x) of every row, for a function of one input that returns a vector (M,): (n, M)."""
        places, kinds, numbers = self.split(self.coded(rows))
        with concretely():
            size = jax.eval_shape(g, jnp.zeros(self.width)).shape[0]
            out, rule = np.zeros((len(places), size)), Rule(*gauss_legendre(64))
            for kind in np.unique(kinds):
                own = kinds == kind

                def one(x: Any, values: Any, kind: int = kind) -> jax.Array:
                    operator = self._operator(int(kind), values)
                    return jnp.stack([operator.apply(_component(g, i), rule)(x) for i in range(size)])

                if size:
                    out[own] = np.asarray(jax.jit(jax.vmap(one))(places[own], numbers[own]))
        return out


def _component(g: Callable[[Any], Any], i: int) -> Callable[[Any], Any]:
    return lambda x: g(x)[i]


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _form(operator: Operator) -> tuple[Any, list[tuple[int, ...]]]:
    """What operators of one compiled formula have in common."""
    leaves, structure = jax.tree.flatten(operator)
    return structure, [np.shape(leaf) for leaf in leaves]


@register
class Observed(OfPlaces):
    """L_x M_z k1(x, z) for the operators L and M of two rows (see `Functionals`)."""

    functionals: Functionals = eqx.field(kw_only=True)

    reads = "vectors"
    needs_all_columns = False
    homogeneity = None
    stationary = isotropic = False

    @classmethod
    def of(cls, kernel: Kernel, functionals: Functionals) -> "Observed":
        """With a kernel that selects columns by name."""
        if functionals.names is not None:
            kernel = by_position(kernel, functionals.names)
        found = cls(kernel, functionals=functionals)
        found.check()
        return found

    def check(self) -> None:
        """Refuse kernels of inputs other than numbers, and those too rough for an operator."""
        if self.inner.reads in ("objects", "counts"):
            raise ParameterError(
                f"derivatives and integrals are of functions of numbers; {self.inner!r} reads other inputs."
            )
        for operator in self.functionals.operators:
            if operator.is_value:
                continue
            for orders in operator.orders(self.functionals.width):
                rough = self.inner.rough_part(orders)
                if rough is not None:
                    raise InvalidKernelError(_too_rough(operator, orders, rough))

    def accurate(self, rows: np.ndarray) -> "Observed":
        """A copy whose quadrature is accurate to `QUADRATURE_TOLERANCE` of the variances of these rows, with no fewer
        nodes than there are; warns where it would take more than there may be. Refuses kernels of unknown smoothness
        that prove too rough."""
        self._probe(rows)
        integrals = [i for i, one in enumerate(self.functionals.operators) if integrates(one)]
        kinds = self.functionals.split(rows)[1]
        own = np.flatnonzero(np.isin(kinds, integrals))
        if not len(own):
            return self
        sample = rows[own[np.unique(np.linspace(0, len(own) - 1, SAMPLE_ROWS).astype(int))]]
        over = max(columns_integrated(self.functionals.operators[i], self.functionals.width) for i in integrals)
        most = MAX_NODES.get(over, MAX_NODES[3])
        least = len(self.functionals.nodes)
        if any(open_ended(self.functionals.operators[i]) for i in integrals):  # other rows may have longer ranges
            least = max(least, min(OPEN_ENDED_NODES, most))
        sizes = [size for size in SIZES if size <= most]
        floor = 1e-8 * float(np.max(self.inner.diag(self.functionals.places(sample))))  # terms may cancel
        known, error = self._with_rule(sizes[0], sizes[-1]).diag(sample), np.inf
        for size, larger in itertools.pairwise(sizes):
            values = self._with_rule(larger, sizes[-1]).diag(sample)
            scale = np.maximum(np.abs(values), floor)
            known, error = values, float((np.abs(values - known) / scale).max())
            if error <= QUADRATURE_TOLERANCE and size >= least:
                return self._with_rule(size)
        if error > ACCEPTED_ERROR:
            warnings.warn(
                f"integrals are accurate to {error:.1g} of their variance with {sizes[-1]} nodes for each column. The "
                "functions vary fast over the range: give shorter intervals, whose sum it is, or a smoother kernel.",
                NumericalWarning,
                stacklevel=4,
            )
        return self._with_rule(sizes[-1])

    def _probe(self, rows: np.ndarray) -> None:
        """Refuse a part of unknown smoothness if L_x M_z k is no covariance. Automatic differentiation is exact, but of
        a kink it takes one side or the mean of both, so that the formula jumps between a row and another next to it."""
        unknown = self.inner.part_of_unknown_smoothness()
        kinds = self.functionals.split(rows)[1]
        applied = np.flatnonzero([not self.functionals.operators[kind].is_value for kind in kinds])
        if unknown is None or not len(applied):
            return
        sample = rows[applied[np.unique(np.linspace(0, len(applied) - 1, SAMPLE_ROWS).astype(int))]]
        near, d = sample.copy(), self.functionals.width
        near[:, :d] += PROBE_STEP * np.maximum(np.ptp(sample[:, :d], axis=0), np.abs(sample[:, :d]).max(axis=0) + 1e-3)
        try:
            K = np.asarray(self(np.vstack([sample, near])))
        except DataError:  # values that are not finite
            K = np.full((1, 1), np.nan)
        if np.isfinite(K).all():
            size = np.sqrt(np.abs(K).max(axis=1))  # of operators in different units
            scaled = K / np.outer(size, size).clip(np.finfo(float).tiny)
            if np.linalg.eigvalsh((scaled + scaled.T) / 2)[0] >= -PROBE_TOLERANCE * len(K):
                return
        operator = self.functionals.operators[kinds[applied[0]]]
        raise InvalidKernelError(
            f"{unknown!r} may be too rough for {operator!r}: what it gives for these rows is no covariance. Nothing is "
            "known about its smoothness; take a kernel whose functions have the derivatives, such as Matern or RBF."
        )

    def _with_rule(self, size: int, padded: int = 0) -> "Observed":
        """With a rule of this many nodes; ``padded`` with others of weight zero, for which one program serves all."""
        rule = [np.pad(part, (0, max(padded - size, 0))) for part in gauss_legendre(size)]
        return evolve(self, functionals=evolve(self.functionals, nodes=rule[0], weights=rule[1]))

    def coordinates(self, X: Inputs) -> np.ndarray:
        return self.functionals.places(X)

    def fit(self, X: Inputs) -> "Observed":
        return evolve(self, inner=self.inner.fit(self.coordinates(X)))

    def prepare(self, X: Inputs, index: Array) -> Rows:
        return *self.functionals.split(self.functionals.coded(X)), index

    # -- values --------------------------------------------------------------------------------------------------------

    def _of_pair(self, x: jax.Array, z: jax.Array) -> jax.Array:
        first, second = (self.inner.prepare(row[None, :], jnp.arange(i, i + 1)) for i, row in enumerate((x, z)))
        with smooth_distances():
            return self.inner.block(first, second)[0, 0]

    def _covariance(self, i: int, j: int, x: Any, mine: Any, z: Any, theirs: Any) -> jax.Array:
        """Of operators i and j with these numbers in them, at x and z."""
        first, second = self.functionals._operator(i, mine), self.functionals._operator(j, theirs)
        if first.is_value and second.is_value:
            return self._of_pair(x, z)
        rule = Rule(self.functionals.nodes, self.functionals.weights, () if any(self._rough_columns) else None)

        def inner(u: jax.Array) -> jax.Array:
            return second.apply(lambda v: self._of_pair(u, v), rule.around(self._kinks([[value] for value in u])))(z)

        return first.apply(inner, rule.around(self._kinks(second.ends(z))))(x)

    def _kinks(self, ends: list[list[Any]]) -> list[list[Any]]:
        """Positions of kinks in each column, of those in which the kernel has some."""
        return [own if rough else [] for own, rough in zip(ends, self._rough_columns, strict=True)]

    @property
    def _rough_columns(self) -> list[bool]:
        d = self.functionals.width
        orders = [tuple(10**6 if i == j else 0 for i in range(d)) for j in range(d)]
        return [self.inner.rough_part(each) is not None for each in orders]

    def _row(self, x: Any, kind: Any, mine: Any, Z: Rows) -> jax.Array:
        """Covariances of one row with all others: (m,)."""
        places, kinds, numbers = Z[:3]

        def against(i: int, x: Any, mine: Any) -> jax.Array:
            total = jnp.zeros(places.shape[0])
            for j in range(len(self.functionals.operators)):
                own = kinds == j

                def some(i: int = i, j: int = j, own: Any = own) -> jax.Array:
                    # Rows of other operators take the place of one that has this: their numbers may have no meaning.
                    first = jnp.argmax(own)
                    z, theirs = (jnp.where(own[:, None], part, part[first]) for part in (places, numbers))
                    return jax.vmap(lambda z, theirs: self._covariance(i, j, x, mine, z, theirs))(z, theirs)

                total = jnp.where(own, jax.lax.cond(jnp.any(own), some, lambda: jnp.zeros(places.shape[0])), total)
            return total

        branches = [functools.partial(against, i) for i in range(len(self.functionals.operators))]
        return jax.lax.switch(kind, branches, x, mine)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        return _by_row(lambda x, kind, mine: self._row(x, kind, mine, Z), X, jnp.zeros(Z[0].shape[0]))

    def block_diag(self, X: Rows) -> jax.Array:
        def one(x: Any, kind: Any, mine: Any) -> jax.Array:
            each = range(len(self.functionals.operators))
            branches = [lambda x, mine, i=i: self._covariance(i, i, x, mine, x, mine) for i in each]
            return jax.lax.switch(kind, branches, x, mine)

        return _by_row(one, X, jnp.zeros(()))

    @property
    def smoothness(self) -> float | None:
        return None

    @property
    def validity(self) -> Validity:
        return derive("6.1", "covariances of linear functionals of a process", repr(self), [self.inner.validity])

    @property
    def terms(self) -> tuple[Kernel, ...]:
        """Each term of a sum, under the same operators."""
        from mercer.kernels.algebra import terms_of

        return tuple(evolve(self, inner=part) for part in terms_of(self.inner))

    def __repr__(self) -> str:
        return repr(self.inner)


def _by_row(f: Callable[..., jax.Array], rows: Rows, empty: jax.Array) -> jax.Array:
    """``f`` of each row, one after the other, so that each takes the formula of its own operator alone. Padding repeats
    the last row, whose result is not computed again."""

    @jax.checkpoint
    def step(before: tuple[Any, Any], row: Rows) -> tuple[tuple[Any, Any], Any]:
        x, kind, mine, index = row
        found = jax.lax.cond(index == before[0], lambda: before[1], lambda: f(x, kind, mine))
        return (index, found), found

    index = jnp.asarray(rows[3])
    return jax.lax.scan(step, (index[0] - 1, empty), (*rows[:3], index))[1]


def _too_rough(operator: Operator, orders: tuple[int, ...], rough: Kernel) -> str:
    if rough.smoothness == -1 and not rough.reads_values:
        return (
            f"{rough!r} is noise, which has no derivatives or integrals, so {operator!r} cannot be observed. Leave it "
            "out of the kernel, and give the noise of measurements as noise=..."
        )
    if rough.smoothness == -1:
        return (
            f"{rough!r} is defined at some inputs only, not a function of all numbers, and has no derivatives or "
            f"integrals, so {operator!r} cannot be observed. Take a kernel of continuous inputs, such as Matern or RBF."
        )
    total = sum(orders)
    has = "none" if rough.smoothness == 0 else f"{rough.smoothness:g}"
    return (
        f"{operator!r} takes {total} derivative{'s' * (total > 1)}, and functions drawn from {rough!r} have {has}. "
        f"Take a smoother kernel: Matern(nu={total + 0.5:g}), which has {total}, or RBF."
    )
