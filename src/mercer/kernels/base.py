"""The base class of kernels: a formula and its properties, nothing about batches, solvers or devices.

To write a kernel, subclass `Isotropic` or `Kernel` itself, and give the formula on prepared rows in `block`. `prepare`
turns inputs into arrays once, with no free parameters involved; `block`, `block_diag`, `geometry` and `feature_block`
are differentiable functions of parameters and prepared rows.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax

from mercer.core.errors import DataError, InfiniteFeaturesError, ModelWarning
from mercer.core.inputs import Inputs, Kind, Rows, as_matrix
from mercer.core.parameters import Parametrized, children_of, map_children
from mercer.core.precision import Array
from mercer.core.registry import storable
from mercer.kernels import evaluate
from mercer.kernels.geometry import Geometry, not_negative
from mercer.kernels.validity import Proof, Validity

if TYPE_CHECKING:
    from mercer.kernels.splines import NullSpace
    from mercer.kernels.states import States

register = storable("kernels")  # class decorator: saved models may contain the kernel


class Kernel(Parametrized):
    """A similarity k(x, x'): an immutable value that composes like arithmetic.

    ``kernel(X)`` and ``kernel(X, Z)`` give the Gram matrix, ``kernel.diag(X)`` its diagonal.
    """

    __array_ufunc__: ClassVar = None  # a NumPy number times a kernel calls __rmul__
    _precedence: ClassVar[int] = 4  # of the operator that `repr` writes: 3 a power, 2 a product, 1 a sum, 4 none
    elementwise: ClassVar[bool] = False  # whether k(x, x') is a function of its parts' values at (x, x') alone

    # -- what a kernel defines -----------------------------------------------------------------------------------

    def _kernels(self) -> "Iterator[Kernel]":
        return (child for _, child in children_of(self) if isinstance(child, Kernel))

    @property
    def reads(self) -> Kind:
        """Kind of rows it reads: that of its parts, or vectors."""
        return common_kind(self._kernels())

    @property
    def needs_fit(self) -> bool:
        """Whether it has yet to learn something from data, such as an alphabet or how frequent words are."""
        return any(child.needs_fit for child in self._kernels())

    def fit(self, X: Inputs) -> Self:
        """A copy that has learned from X what it needs; the kernel itself where that is nothing. Estimators keep it as
        ``kernel_``; ``kernel(X, Z)`` learns from X."""
        return map_children(lambda child: child.fit(X) if isinstance(child, Kernel) else child, self)

    def fitted(self, X: Inputs) -> Self:
        """`fit`, unless that was done before."""
        if not self.needs_fit:
            return self
        if isinstance(X, jax.core.Tracer):
            raise DataError(
                f"{self!r} has yet to learn from data, which jit, grad and vmap cannot trace. Call kernel = "
                "kernel.fit(X) before."
            )
        return self.fit(X)

    def prepare(self, X: Inputs, index: Array) -> Rows:
        """Convert inputs to a pytree of arrays with one entry per row, once per data set; ``index`` numbers rows."""
        return as_matrix(X)

    def block(self, X: Rows, Z: Rows) -> jax.Array:
        """k(x_i, z_j) on prepared rows: (n, m)."""
        raise NotImplementedError(f"{type(self).__name__} must define its formula in block(self, X, Z).")

    def block_diag(self, X: Rows) -> jax.Array:
        """k(x_i, x_i) on prepared rows: (n,)."""

        def one(x: Rows) -> jax.Array:
            row = jax.tree.map(lambda leaf: leaf[None], x)
            return self.block(row, row)[0, 0]

        return jax.vmap(one)(X)

    def geometry(self, X: Rows, Z: Rows) -> Geometry:
        """Scalar product, squared distance (never negative) and difference of squared norms, in feature space."""
        a, b, c = self.block_diag(X)[:, None], self.block_diag(Z)[None, :], self.block(X, Z)
        return Geometry(c, not_negative(a + b - 2 * c), a - b)

    def feature_block(self, X: Rows) -> jax.Array:
        """Finite features on prepared rows: (n, M), with feature_block(X) @ feature_block(Z).T == block(X, Z)."""
        raise InfiniteFeaturesError(
            f"{self!r} has no finite feature space. Explicit features exist for Linear, Polynomial, Constant, Step, "
            "Cosine, Coregionalization, FeatureMap, Precomputed, Categorical, BagOfWords, Spectrum, WeightedDegree, "
            "WeisfeilerLehman, ShortestPath, Density, Mixture, Fisher, Latent with a likelihood, and their sums, "
            "products, powers, on, warp, modulate and normalize; mercer_expansion(kernel, X, n) approximates those of "
            "others."
        )

    def explain(self, rows: Rows) -> None:
        """Raise an error that says why values are not finite for these rows, prepared for the whole expression, if a
        part of it can find out. Not called in learning, which rejects the step."""
        for child in self._kernels():
            child.explain(rows)

    def state_space(self, order: Any = None) -> "States | None":
        """Form of a kernel of one input on which inference is linear in the number of rows; None if it has none. Where
        parameters are traced, ``order`` is that of the form at concrete ones (`States`)."""
        return None

    @property
    def validity(self) -> Validity:
        """Whether every Gram matrix of this kernel is positive semidefinite, and by which rules."""
        return Validity(None, Proof("?", "nothing is known about it", repr(self)))

    @property
    def null_space(self) -> "NullSpace | None":
        """Polynomials that a conditionally valid kernel leaves unpenalised; None for other kernels."""
        return None

    @property
    def stationary(self) -> bool | None:
        """Whether k depends on x - x' alone; None if not known."""
        return False

    @property
    def isotropic(self) -> bool | None:
        """Whether k depends on the Euclidean distance |x - x'| alone; None if not known."""
        return False

    @property
    def smoothness(self) -> float | None:
        """How many derivatives functions drawn from it have (in mean square), in all inputs together: infinity, 0 for
        continuous functions, -1 for noise and what is defined at some inputs only; None if it is not known, or differs
        between inputs."""
        return None

    def rough_part(self, orders: "tuple[int, ...] | int") -> "Kernel | None":
        """The part of it that is too rough for derivatives of these orders in each input, or of this order in any;
        None if there is none that is known to be."""
        if (own := self.smoothness) is not None:
            return self if (orders if isinstance(orders, int) else sum(orders)) > own else None
        return next(filter(None, (child.rough_part(orders) for child in self._kernels())), None)

    def part_of_unknown_smoothness(self) -> "Kernel | None":
        """The part of it whose smoothness is not known; None if all are known. What a formula of the user's is put
        into is unknown too."""
        children = list(self._kernels())
        if any(node.runs_user_code for _, node in children_of(self) if not isinstance(node, Kernel)):
            return self
        if self.smoothness is None and (not children or self.runs_user_code):
            return self
        return next(filter(None, (child.part_of_unknown_smoothness() for child in children)), None)

    @property
    def symmetric(self) -> bool:
        """Whether k(x, x') = k(x', x) by construction."""
        return all(child.symmetric for child in self._kernels())

    @property
    def needs_all_columns(self) -> bool:
        """Whether it depends on every column of a frame, rather than on some selected by name."""
        kernels = list(self._kernels())
        return any(child.needs_all_columns for child in kernels) if kernels else True

    @property
    def reads_values(self) -> bool:
        """Whether it depends on the values in a row, rather than on the row's index alone."""
        kernels = list(self._kernels())
        return any(child.reads_values for child in kernels) if kernels else True

    @property
    def homogeneity(self) -> int | None:
        """p with k(s x, t x') = (s t)^p k(x, x') for all s, t > 0; None if there is none, or it is not known."""
        return None

    @property
    def distance_is_stationary(self) -> bool:
        """Whether distance in feature space depends on x - x' alone, as it does for stationary and linear kernels."""
        return bool(self.stationary)

    @property
    def distance_is_isotropic(self) -> bool:
        """Whether distance in feature space depends on |x - x'| alone."""
        return bool(self.isotropic)

    # -- what users call -----------------------------------------------------------------------------------------

    def __call__(self, X: Inputs, Z: Inputs = None) -> Any:
        """Gram matrix between the rows of X and those of Z (of X itself if Z is left out, or is X)."""
        if self.needs_fit and Z is not None and Z is not X:
            warnings.warn(
                f"{self!r} has yet to learn from data, and kernel(X, Z) lets it learn from X alone, so that values "
                "depend on which rows X has. For new rows X, call kernel = kernel.fit(X_train) first.",
                ModelWarning,
                stacklevel=2,
            )
        return evaluate.like_inputs(evaluate.gram(self, X, Z, same=Z is X), X, Z)

    def diag(self, X: Inputs) -> Any:
        """Diagonal of ``kernel(X)``, at the cost of n evaluations."""
        return evaluate.like_inputs(evaluate.rowwise(self, "block_diag", X), X)

    def features(self, X: Inputs) -> Any:
        """Explicit features Phi (n, M) with Phi Phi^T equal to the Gram matrix, if the feature space is finite."""
        # Not compiled: parameters are concrete, so that a term switched off by an exact zero adds no columns.
        return evaluate.like_inputs(evaluate.rowwise(self, "feature_block", X, compiled=False), X)

    # -- the algebra: see algebra.py and substitution.py ------------------------------------------------------------

    def __add__(self, other: Any) -> "Kernel":
        return algebra().add(self, other)

    def __radd__(self, other: Any) -> "Kernel":
        return algebra().add(other, self)

    def __mul__(self, other: Any) -> "Kernel":
        return algebra().multiply(self, other)

    def __rmul__(self, other: Any) -> "Kernel":
        return algebra().multiply(other, self)

    def __truediv__(self, other: Any) -> "Kernel":
        return algebra().divide(self, other)

    def __pow__(self, exponent: int) -> "Kernel":
        return algebra().Power(self, exponent)

    def __neg__(self) -> "Kernel":
        return algebra().multiply(-1, self)

    def __sub__(self, other: Any) -> "Kernel":
        return algebra().refuse_difference(self, other)

    def __rsub__(self, other: Any) -> "Kernel":
        return algebra().refuse_difference(other, self)

    def exp(self) -> "Kernel":
        """exp(k1(x, x')) (PRML 6.16)."""
        return algebra().Exp(self)

    def polynomial(self, coefficients: Sequence[float]) -> "Kernel":
        """c0 + c1 k1 + c2 k1^2 + ... with non-negative coefficients (PRML 6.15)."""
        return algebra().PolynomialOf(self, coefficients)

    def modulate(self, f: Callable) -> "Kernel":
        """f(x) k1(x, x') f(x') for any function f of one input (PRML 6.14)."""
        return substitution().Modulate(self, f)

    def warp(self, phi: Callable) -> "Kernel":
        """k1(phi(x), phi(x')) for any function phi of one input (PRML 6.19)."""
        return substitution().Warp(self, phi)

    def on(self, *columns: Any) -> "Kernel":
        """This kernel on some of the columns: indices, a slice, names, or a list of them."""
        return substitution().On(self, columns[0] if len(columns) == 1 else columns)

    def on_sphere(self, radius: float = 1.0) -> "Kernel":
        """This kernel of points on a sphere, from two columns: longitude and latitude, in degrees. Lengthscales are
        chords, in units of the radius: of kilometres with ``radius=6371.0``."""
        return space().OnSphere(self, radius)

    def rotate(self, angle: Any = 0.0, ratio: Any = 0.5) -> "Kernel":
        """Geometric anisotropy of two columns, learned: the lengthscale in the direction ``angle`` (in degrees,
        counter-clockwise from the first axis), and ``ratio`` times it across."""
        return space().Rotated(self, angle, ratio)

    def gaussian(self, sigma: Any = 1.0) -> "Kernel":
        """exp(-(k1(x,x) + k1(x',x') - 2 k1(x,x')) / 2 sigma^2): a Gaussian over this kernel's distance (PRML 6.26)."""
        return substitution().GaussianOf(self, sigma)

    def normalize(self) -> "Kernel":
        """k1(x, x') / sqrt(k1(x,x) k1(x',x')): unit diagonal (PRML 6.14 with f = k1(x,x)^-1/2)."""
        return substitution().Normalize(self)


def common_kind(parts: Iterable[Any]) -> Kind:
    """Kind of rows that several kernels, or densities, read together; vectors if there are none."""
    kinds = {part.reads for part in parts}
    order: tuple[Kind, ...] = ("columns", "objects", "vectors", "counts", "anything")
    return next((kind for kind in order if kind in kinds), "vectors")


# Modules that import this one, so they are imported when an expression is first written.


def algebra() -> ModuleType:
    from mercer.kernels import algebra as module

    return module


def substitution() -> ModuleType:
    from mercer.kernels import substitution as module

    return module


def space() -> ModuleType:
    from mercer.kernels import space as module

    return module
