"""The algebra: arithmetic on kernels is arithmetic on Gram matrices, and what the rules forbid is refused."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import kernels as sk

import mercer as mc
from mercer import kernels as k

X = np.random.default_rng(0).normal(size=(6, 3))
Z = np.random.default_rng(1).normal(size=(4, 3))

# A small set of leaf structures and one shape, so that trees share compiled code.
LEAVES = [
    (lambda: k.RBF(0.9), "k.RBF(0.9)"),
    (lambda: k.Linear(), "k.Linear()"),
    (lambda: k.Exponential(1.4), "k.Exponential(1.4)"),
    (lambda: k.Constant(0.7), "k.Constant(0.7)"),
    (lambda: k.Matern(1.2).on([0, 2]), "k.Matern(1.2).on([0, 2])"),
]


def trees():
    """Random expressions as (source text, value on matrices): the text is parsed by Python, with its precedence."""
    leaf = st.sampled_from([text for _, text in LEAVES])

    def grow(inner):
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: f"{p[0]} + {p[1]}"),
            st.tuples(inner, inner).map(lambda p: f"{p[0]} * ({p[1]})"),
            inner.map(lambda t: f"({t}) ** 2"),
            inner.map(lambda t: f"0.5 * ({t})"),
            inner.map(lambda t: f"({t}) / 3.0 + 2.0"),
            inner.map(lambda t: f"(0.1 * ({t})).exp()"),
            inner.map(lambda t: f"({t}).warp(same).on([0, 1, 2])"),
            inner.map(lambda t: f"(0.1 * ({t})).polynomial([0.2, 0.0, 1.0])"),
        )

    return st.recursive(leaf, grow, max_leaves=5)


def same(x):
    return 1.0 * x


class Matrix:
    """The Gram matrix of a leaf, with the operations that the algebra promises, done by NumPy."""

    __array_ufunc__ = None

    def __init__(self, K):
        self.K = K

    def __add__(self, other):
        return Matrix(self.K + getattr(other, "K", other))

    def __mul__(self, other):
        return Matrix(self.K * getattr(other, "K", other))

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, c):
        return Matrix(self.K / c)

    def __pow__(self, n):
        return Matrix(self.K**n)

    def exp(self):
        return Matrix(np.exp(self.K))

    def polynomial(self, c):
        return Matrix(np.polyval(c[::-1], self.K))

    def on(self, columns):
        return self

    def warp(self, phi):
        return self


class Matrices:
    """Stands for the kernels module: each leaf is its Gram matrix."""

    def __init__(self, A, B):
        self.A, self.B = A, B

    def _of(self, kernel):
        return Matrix(kernel(self.A, self.B))

    def RBF(self, length):
        return self._of(k.RBF(length))

    def Linear(self):
        return self._of(k.Linear())

    def Exponential(self, length):
        return self._of(k.Exponential(length))

    def Constant(self, c):
        return self._of(k.Constant(c))

    def Matern(self, length):
        return self._of(k.Matern(length).on([0, 2]))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(trees())
def test_the_gram_matrix_of_an_expression_is_that_expression_of_gram_matrices(text):
    kernel = eval(text, {"k": k, "same": same})
    expected = eval(text, {"k": Matrices(X, Z), "same": same}).K
    np.testing.assert_allclose(kernel(X, Z), expected, rtol=1e-12)
    assert kernel.validity.valid is True
    assert len(set(kernel.parameters)) == len(kernel.parameters)
    # Written down and read again it is the same kernel.
    np.testing.assert_array_equal(eval(repr(kernel), {**vars(k), "same": same})(X, Z), kernel(X, Z))


def test_precedence_is_that_of_arithmetic():
    a, b, c = k.RBF(0.5), k.Linear(), k.Exponential(2.0)
    np.testing.assert_allclose((a + b * c)(X), a(X) + b(X) * c(X), rtol=1e-14)
    np.testing.assert_allclose(((a + b) * c)(X), (a(X) + b(X)) * c(X), rtol=1e-14)
    np.testing.assert_allclose((a + 2 * b**2 * c)(X), a(X) + 2 * b(X) ** 2 * c(X), rtol=1e-13)
    assert repr(a + b * c) == "RBF(lengthscale=0.5) + Linear() * Exponential(lengthscale=2.0)"
    twice = a * (2.0 * c)
    assert dict(eval(repr(twice), vars(k)).parameters) == dict(twice.parameters)
    assert repr((a + b) * c) == "(RBF(lengthscale=0.5) + Linear()) * Exponential(lengthscale=2.0)"


def test_numbers():
    a = k.RBF(0.5)
    np.testing.assert_allclose((np.float64(2.0) * a)(X), 2 * a(X))
    np.testing.assert_allclose((a * np.int64(3))(X), 3 * a(X))
    np.testing.assert_allclose((a + 1)(X), a(X) + 1)
    np.testing.assert_allclose(sum([a, a])(X), 2 * a(X))
    np.testing.assert_allclose((a / 4)(X), a(X) / 4)
    # A number times a number times a kernel has one variance, not two.
    assert dict((2 * (3 * a)).parameters) == {"variance": 6.0, "lengthscale": 0.5}
    assert dict((2 * k.White(0.5)).parameters) == {"variance": 1.0}


def test_methods_by_their_definitions():
    a, b = k.RBF(0.8), k.Polynomial(2, offset=1.0)
    K = b(X)
    d = np.diag(K)
    np.testing.assert_allclose(b.normalize()(X), K / np.sqrt(np.outer(d, d)), rtol=1e-13)
    np.testing.assert_allclose(b.gaussian(2.0)(X), np.exp(-(d[:, None] + d - 2 * K) / 8), rtol=1e-12)
    f = 1 + X[:, 0] ** 2
    np.testing.assert_allclose(a.modulate(lambda x: 1 + x[0] ** 2)(X), np.outer(f, f) * a(X), rtol=1e-13)
    np.testing.assert_allclose(a.warp(lambda x: x**3)(X), a(X**3), rtol=1e-13)
    np.testing.assert_allclose(a.on(1)(X), a(X[:, 1]), rtol=1e-14)
    np.testing.assert_allclose(a.on([-1])(X), a(X[:, 2]), rtol=1e-14)
    np.testing.assert_allclose(a.on(slice(0, 2))(X), a(X[:, :2]), rtol=1e-14)
    np.testing.assert_allclose(a.on([0, 2]).on([1, 2, 0])(X), a(X[:, [1, 0]]), rtol=1e-14)


def test_gaussian_of_linear_is_the_gaussian_kernel():
    far = X + 1e6
    np.testing.assert_allclose(k.Linear().gaussian(1.3)(far), k.RBF(1.3)(far), rtol=1e-13)
    assert k.Linear().gaussian().stationary
    assert k.Linear().gaussian().isotropic


def test_normalize_of_a_zero_vector_is_zero_not_nan():
    K = k.Linear().normalize()([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(K, [[0, 0], [0, 1]], rtol=1e-15)
    np.testing.assert_array_equal(k.Linear().normalize().diag([[0.0, 0.0], [3.0, 4.0]]), [0, 1])


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: -1 * k.RBF(), "6.13"),
        (lambda: 0.0 * k.RBF(), "6.13"),
        (lambda: k.RBF() * -2, "6.13"),
        (lambda: float("nan") * k.RBF(), "6.13"),
        (lambda: -k.RBF(), "6.13"),
        (lambda: k.RBF() / 0, "6.13"),
        (lambda: k.RBF() - k.Linear(), "6.17"),
        (lambda: k.RBF() - 1, "6.17"),
        (lambda: 1 - k.RBF(), "6.17"),
        (lambda: k.RBF() + -3, "6.17"),
        (lambda: k.RBF() ** 0, "6.18"),
        (lambda: k.RBF() ** -1, "6.18"),
        (lambda: k.RBF() ** 2.5, "6.18"),
        (lambda: k.RBF() ** True, "6.18"),
        (lambda: k.RBF().polynomial([1.0, -0.5]), "6.15"),
        (lambda: k.Polynomial(2.5), "6.15"),
        (lambda: k.Polynomial(0), "6.15"),
        (lambda: k.Linear([[1.0, 2.0], [2.0, 1.0]]), "6.20"),
        (lambda: k.Linear([[1.0, 0.5], [0.0, 1.0]]), "6.20"),
    ],
)
def test_what_the_rules_forbid_is_refused_by_number(build, rule):
    with pytest.raises(mc.InvalidKernelError, match=rule):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: k.RBF(lengthscale=-1.0),
        lambda: k.RBF(lengthscale=0.0),
        lambda: k.RBF(lengthscale=[1.0, -1.0]),
        lambda: k.RBF(lengthscale=float("inf")),
        lambda: k.RBF(lengthscale="long"),
        lambda: k.RBF(lengthscale="1.5"),
        lambda: k.RBF + k.Linear(),
        lambda: mc.GP(k.RBF),
        lambda: mc.GP(k.RBF(), k.Linear()),
        lambda: mc.check_kernel(np.eye(3), [0, 1, 2]),
        lambda: mc.check_kernel(k.RBF, [0.0]),
        lambda: k.RBF(lengthscale=[[1.0]]),
        lambda: k.RBF(lengthscale=[]),
        lambda: k.Matern(nu=0),
        lambda: k.Matern(nu="rough"),
        lambda: k.Polynomial(2, offset=-1.0),
        lambda: k.ThinPlate(power=0),
        lambda: k.ThinPlate.of_order(m=1, d=2),
        lambda: k.RBF(name="two words"),
        lambda: k.RBF().on([]),
        lambda: k.RBF().on([0, "a"]),
        lambda: k.RBF().on(1.5),
        lambda: k.RBF().polynomial([]),
        lambda: k.RBF().warp(3),
        lambda: k.FeatureMap("phi"),
        lambda: k.Custom(None),
    ],
)
def test_bad_parameters_are_refused(build):
    with pytest.raises(mc.MercerError):
        build()


def test_things_that_are_not_kernels_are_type_errors():
    for other in ("RBF", None, [1, 2], np.ones(3)):
        with pytest.raises(TypeError):
            k.RBF() + other
        with pytest.raises(TypeError):
            other * k.RBF()


def test_a_scikit_learn_kernel_takes_part_in_expressions():
    theirs = sk.RBF(0.7)
    np.testing.assert_allclose((k.Linear() + theirs)(X), k.Linear()(X) + theirs(X), rtol=1e-13)
    np.testing.assert_allclose((k.Linear() * theirs)(X), k.Linear()(X) * theirs(X), rtol=1e-13)


@pytest.mark.parametrize("kernel", [k.Linear(), k.Polynomial(2), k.RBF() + k.Linear(), k.Constant(2.0)], ids=repr)
def test_normalizing_passes_through_scales_and_columns(kernel):
    X = np.random.default_rng(0).normal(size=(6, 3))
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(other="text")
    K = np.asarray(kernel(X[:, :2]))
    expected = K / np.sqrt(np.outer(np.diag(K), np.diag(K)))
    for scaled in (kernel, 3.0 * kernel, (1e-300 * kernel).fix()):
        np.testing.assert_allclose(scaled.normalize()(X[:, :2]), expected, rtol=1e-13)
        np.testing.assert_allclose(scaled.on("a", "b").normalize()(frame), expected, rtol=1e-13)
        np.testing.assert_allclose((3.0 * scaled.on("a", "b")).normalize()(frame), expected, rtol=1e-13)
    assert (2.0 * k.Linear()).named("wave").normalize().name == "wave"
    assert k.Linear().on("a").named("wave").normalize().name == "wave"
    assert not (2.0 * k.Linear()).normalize().parameters


def test_large_sets_are_normalized_inside_expressions():
    sets = [set(range(i, i + 5000)) for i in (0, 1, 2, 5000)]
    frame, expected = pd.DataFrame({"s": sets}), k.Subsets(normalized=True)(sets)
    np.testing.assert_array_equal((1.5 * k.Subsets()).normalize()(sets), expected)
    np.testing.assert_array_equal(k.Subsets().on("s").normalize()(frame), expected)
    np.testing.assert_array_equal((2.0 * (1.0 * k.Subsets()).on("s")).normalize()(frame), expected)
