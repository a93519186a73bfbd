"""What a kernel is: facts and a formula, nothing about batches, solvers or devices.

To write a kernel, subclass one of the families (`Isotropic`, `DotProduct`) or `Kernel` itself, and give the formula
on prepared rows in `block`. `prepare` turns inputs into arrays once, with no parameters involved; `block`,
`block_diag`, `geometry` and `feature_block` are differentiable functions of parameters and prepared rows.
"""

from typing import ClassVar

import jax

from mercer.core.errors import InfiniteFeaturesError
from mercer.core.inputs import Kind, as_matrix
from mercer.core.parameters import Parametrized, children_of
from mercer.core.registry import storable
from mercer.kernels import evaluate
from mercer.kernels.geometry import Geometry, not_negative
from mercer.kernels.validity import Proof, Validity

register = storable("kernels")  # class decorator: files may hold the kernel


class Kernel(Parametrized):
    """A similarity k(x, x'): an immutable value that composes like arithmetic.

    ``kernel(X)`` and ``kernel(X, Z)`` give the Gram matrix, ``kernel.diag(X)`` its diagonal.
    """

    # A NumPy number times a kernel is the kernel's business.
    __array_ufunc__: ClassVar = None
    # Binding strength of the expression that `repr` writes: 4 an atom, 3 a power, 2 a product, 1 a sum.
    _strength: ClassVar[int] = 4

    # Whether its values are a function of its parts' values alone, pair by pair.
    elementwise: ClassVar[bool] = False

    # -- what a kernel must say ----------------------------------------------------------------------------------

    @property
    def reads(self) -> Kind:
        """Which kind of rows it takes: vectors, unless it says otherwise or is made of kernels that do."""
        kinds = {child.reads for _, child in children_of(self) if isinstance(child, Kernel)}
        for kind in ("columns", "objects", "vectors", "anything"):
            if kind in kinds:
                return kind
        return "vectors"

    def prepare(self, X, index):
        """Inputs as arrays with one entry per row (a pytree of them); done once, before any arithmetic."""
        return as_matrix(X)

    def block(self, X, Z):
        """k(x_i, z_j) on prepared rows: (n, m)."""
        raise NotImplementedError(f"{type(self).__name__} must say its formula in block(self, X, Z).")

    def block_diag(self, X):
        """k(x_i, x_i) on prepared rows: (n,)."""

        def one(x):
            row = jax.tree.map(lambda leaf: leaf[None], x)
            return self.block(row, row)[0, 0]

        return jax.vmap(one)(X)

    def geometry(self, X, Z) -> Geometry:
        """Scalar product, squared distance (never negative) and difference of squared lengths, in feature space."""
        a, b, c = self.block_diag(X)[:, None], self.block_diag(Z)[None, :], self.block(X, Z)
        return Geometry(c, not_negative(a + b - 2 * c), a - b)

    def feature_block(self, X):
        """Finite features on prepared rows: (n, M), with feature_block(X) @ feature_block(Z).T == block(X, Z)."""
        raise InfiniteFeaturesError(
            f"{self!r} has no finite feature space. Explicit features exist for Linear, Polynomial, Constant, "
            "FeatureMap, Precomputed and what sums, products, powers, on, warp and modulate make of them; "
            "mercer_expansion(kernel, X, n) approximates the others."
        )

    @property
    def validity(self) -> Validity:
        """Whether every Gram matrix of this kernel is positive semidefinite, and by which rules."""
        return Validity(None, Proof("?", "nothing is known of it", repr(self)))

    @property
    def null_space(self):
        """The polynomials a conditionally valid kernel leaves unpenalised (`splines.NullSpace`); None for the rest."""
        return None

    @property
    def stationary(self) -> bool | None:
        """Whether k depends on x - x' alone; None when that cannot be known."""
        return False

    @property
    def isotropic(self) -> bool | None:
        """Whether k depends on the Euclidean distance |x - x'| alone; None when that cannot be known."""
        return False

    @property
    def symmetric(self) -> bool:
        """Whether k(x, x') = k(x', x) by construction."""
        return all(child.symmetric for _, child in children_of(self) if isinstance(child, Kernel))

    @property
    def needs_all_columns(self) -> bool:
        """Whether what it says depends on every column of a frame, and not on some that it asks for by name."""
        kernels = [child for _, child in children_of(self) if isinstance(child, Kernel)]
        return any(child.needs_all_columns for child in kernels) if kernels else True

    @property
    def reads_values(self) -> bool:
        """Whether it looks at what is in a row, and not only at which row it is."""
        kernels = [child for _, child in children_of(self) if isinstance(child, Kernel)]
        return any(child.reads_values for child in kernels) if kernels else True

    @property
    def homogeneity(self) -> int | None:
        """p with k(s x, t x') = (s t)^p k(x, x') for all s, t > 0; None where there is none, or it is not known."""
        return None

    @property
    def distance_is_stationary(self) -> bool:
        """Whether distance in feature space depends on x - x' alone, as it does for stationary and linear kernels."""
        return bool(self.stationary)

    @property
    def distance_is_isotropic(self) -> bool:
        """Whether distance in feature space depends on |x - x'| alone."""
        return bool(self.isotropic)

    # -- what people call ----------------------------------------------------------------------------------------

    def __call__(self, X, Z=None):
        """The Gram matrix between the rows of X and those of Z (of X itself when Z is left out, or is X)."""
        return evaluate.as_given(evaluate.gram(self, X, Z, same=Z is X), X, Z)

    def diag(self, X):
        """The diagonal of ``kernel(X)``, at the cost of n evaluations."""
        return evaluate.as_given(evaluate.rowwise(self, "block_diag", X), X)

    def features(self, X):
        """Explicit features Phi (n, M) with Phi Phi^T equal to the Gram matrix, where the feature space is finite."""
        # Not compiled: parameters stay visible, so that a term switched off by an exact zero adds no columns.
        return evaluate.as_given(evaluate.rowwise(self, "feature_block", X, compiled=False), X)

    # -- the algebra: see algebra.py and substitution.py ------------------------------------------------------------

    def __add__(self, other):
        return algebra().add(self, other)

    def __radd__(self, other):
        return algebra().add(other, self)

    def __mul__(self, other):
        return algebra().multiply(self, other)

    def __rmul__(self, other):
        return algebra().multiply(other, self)

    def __truediv__(self, other):
        return algebra().divide(self, other)

    def __pow__(self, exponent):
        return algebra().power(self, exponent)

    def __neg__(self):
        return algebra().multiply(-1, self)

    def __sub__(self, other):
        return algebra().refuse_difference(self, other)

    def __rsub__(self, other):
        return algebra().refuse_difference(other, self)

    def exp(self):
        """exp(k1(x, x')) (PRML 6.16)."""
        return algebra().Exp(self)

    def polynomial(self, coefficients):
        """c0 + c1 k1 + c2 k1^2 + ..., no coefficient negative (PRML 6.15)."""
        return algebra().PolynomialOf(self, coefficients)

    def modulate(self, f):
        """f(x) k1(x, x') f(x') for any function f of one input (PRML 6.14)."""
        return substitution().Modulate(self, f)

    def warp(self, phi):
        """k1(phi(x), phi(x')) for any function phi of one input (PRML 6.19)."""
        return substitution().Warp(self, phi)

    def on(self, *columns):
        """This kernel looking at some of the inputs: indices, a slice, column names, or a list of them."""
        return substitution().On(self, columns[0] if len(columns) == 1 else columns)

    def gaussian(self, sigma=1.0):
        """exp(-(k1(x,x) + k1(x',x') - 2 k1(x,x')) / 2 sigma^2): a Gaussian over this kernel's distance (PRML 6.26)."""
        return substitution().GaussianOf(self, sigma)

    def normalize(self):
        """k1(x, x') / sqrt(k1(x,x) k1(x',x')): unit diagonal (PRML 6.14 with f = k1(x,x)^-1/2)."""
        return substitution().Normalize(self)


# The modules that build on this one, met when an expression is first written.


def algebra():
    from mercer.kernels import algebra as module

    return module


def substitution():
    from mercer.kernels import substitution as module

    return module
