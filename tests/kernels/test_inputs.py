"""What goes in: arrays, lists, frames; and what is said when it cannot be used."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

import mercer as mc
from mercer import kernels as k
from mercer.core.inputs import stack_rows

rng = np.random.default_rng(0)
VALUES = {"a": rng.normal(size=5), "b": rng.normal(size=5), "n": np.arange(5), "flag": [True, False, True, True, False]}
MATRIX = np.column_stack([VALUES["a"], VALUES["b"], VALUES["n"], VALUES["flag"]]).astype(float)
frames = pytest.mark.parametrize("Frame", [pd.DataFrame, pl.DataFrame])


@frames
def test_frames_give_what_their_numbers_give(Frame):
    frame = Frame(VALUES)
    kernel = k.RBF([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(kernel(frame), kernel(MATRIX))
    np.testing.assert_array_equal(kernel.diag(frame), kernel.diag(MATRIX))
    np.testing.assert_array_equal(k.RBF()(frame["a"]), k.RBF()(MATRIX[:, 0]))


@frames
def test_named_columns_follow_the_name(Frame):
    frame = Frame(VALUES)
    kernel = k.RBF(0.5).on("b") + k.Linear().on(["n", "a"]) * k.Matern([1.0, 2.0]).on(["a", "b"])
    expected = k.RBF(0.5)(MATRIX[:, 1]) + k.Linear()(MATRIX[:, [2, 0]]) * k.Matern([1.0, 2.0])(MATRIX[:, [0, 1]])
    np.testing.assert_allclose(kernel(frame), expected, rtol=1e-14)
    reordered = Frame({name: VALUES[name] for name in ["flag", "b", "n", "a"]})
    np.testing.assert_allclose(kernel(reordered), expected, rtol=1e-14)
    np.testing.assert_allclose(kernel(frame, reordered), kernel(frame, frame), rtol=1e-14)


@frames
def test_columns_of_two_frames_are_matched_by_name(Frame):
    frame, reordered = Frame(VALUES), Frame({name: VALUES[name] for name in ["flag", "b", "n", "a"]})
    kernel = k.RBF([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(kernel(frame, reordered), kernel(MATRIX, MATRIX))
    with pytest.raises(mc.DataError, match=r"columns of the second frame differ.*missing.*unexpected \['z'\]"):
        kernel(frame, Frame({"a": [1.0], "z": [2.0]}))


@frames
def test_columns_that_no_kernel_asks_for_need_not_be_there(Frame):
    frame, some = Frame(VALUES), Frame({name: VALUES[name] for name in ["b", "a"]})
    kernel = k.RBF().on("a", "b") * k.Linear().on("b") + k.White()
    np.testing.assert_array_equal(kernel(frame, some), kernel(some, frame).T)
    np.testing.assert_array_equal(kernel(some), kernel(frame))
    with pytest.raises(mc.DataError, match="no column 'b'"):
        kernel(frame, Frame({"a": [1.0]}))
    with pytest.raises(mc.DataError, match="columns of the second frame differ"):
        (kernel + k.RBF())(frame, some)
    with pytest.raises(mc.DataError, match="columns of the second frame differ"):
        k.RBF().on(0)(frame, some)


@frames
def test_a_function_of_pairs_on_a_text_column(Frame):
    frame = Frame({"city": ["Ulm", "Bonn", "Ulm"], "age": [1.0, 2.0, 3.0]})
    same = k.Custom(lambda a, b: float(a == b)).on("city")
    np.testing.assert_array_equal(same(frame), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    np.testing.assert_allclose((same * k.RBF().on("age"))(frame), same(frame) * k.RBF()([1.0, 2.0, 3.0]))
    rows = k.Custom(lambda a, b: float(a == b))
    np.testing.assert_array_equal(rows(frame), np.eye(3))


@frames
def test_indices_and_slices_work_on_frames(Frame):
    frame = Frame(VALUES)
    np.testing.assert_array_equal(k.RBF().on([1, -1])(frame), k.RBF()(MATRIX[:, [1, 3]]))
    np.testing.assert_array_equal(k.RBF().on(slice(1, 3))(frame), k.RBF()(MATRIX[:, 1:3]))


def test_text_columns_are_fine_where_no_kernel_looks_at_them():
    frame = pd.DataFrame({"x": [1.0, 2.0], "colour": ["red", "blue"]})
    np.testing.assert_array_equal(k.RBF().on("x")(frame), k.RBF()([1.0, 2.0]))
    with pytest.raises(mc.DataError, match="'colour'"):
        k.RBF()(frame)


def test_one_dimensional_inputs_are_scalars():
    x = np.linspace(0, 1, 4)
    np.testing.assert_array_equal(k.RBF()(x), k.RBF()(x[:, None]))
    np.testing.assert_array_equal(k.RBF()([0, 1]), k.RBF()(np.array([0.0, 1.0])))
    assert k.RBF()(x, [0.5]).shape == (4, 1)


def test_what_comes_out_is_of_the_kind_that_went_in():
    assert type(k.RBF()(np.ones(2))) is np.ndarray
    assert isinstance(k.RBF()(jnp.ones(2)), jnp.ndarray)
    assert k.RBF()(np.ones(2, dtype=np.float32)).dtype == np.float64
    assert k.RBF()(np.ones(2, dtype=np.int8)).dtype == np.float64
    assert k.RBF()(np.array([True, False])).dtype == np.float64
    assert k.RBF()(np.array([1.5, 2.5], dtype=object)).dtype == np.float64


def test_strided_fortran_and_read_only_arrays():
    big = np.asfortranarray(rng.normal(size=(9, 4)))
    view = big[::2, 1:3]
    view.flags.writeable = False
    np.testing.assert_array_equal(k.RBF()(view), k.RBF()(np.ascontiguousarray(view)))


def test_no_rows_and_one_row():
    assert k.RBF()(np.empty((0, 2))).shape == (0, 0)
    assert k.RBF()(np.empty((0, 2)), np.ones((3, 2))).shape == (0, 3)
    assert k.RBF()(np.ones((3, 2)), np.empty((0, 2))).shape == (3, 0)
    np.testing.assert_array_equal(k.RBF()([[1.0, 2.0]]), [[1.0]])


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ([1.0, np.nan, 3.0], r"1 missing \(NaN\) value, the first in row 1"),
        ([[1.0, 2.0], [np.inf, 1.0]], r"infinite.*row 1: 1 in column 0"),
        (["a", "b"], "text"),
        (np.array([86400], dtype="timedelta64[s]"), "durations"),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), "missing"),
        ([1 + 2j], "complex"),
        ([[1.0, 2.0], [3.0]], "rectangular"),
        ([[1.0, "x"]], "numbers"),
        (np.array([1.0, "x"], dtype=object), "text"),
        (np.array([1.0, None], dtype=object), "missing|numbers"),
        (np.ones((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (np.ones((3, 0)), "no columns"),
        (3.0, "rows"),
        (scipy.sparse.eye(3).tocsr(), "toarray"),
        (pd.DataFrame({"a": [1.0, None]}), "1 in column a"),
        (pl.DataFrame({"a": [1.0, None]}), "1 in column a"),
    ],
)
def test_bad_inputs_are_refused_with_a_reason(bad, says):
    with pytest.raises(mc.DataError, match=says):
        k.RBF()(bad)
    with pytest.raises(ValueError, match=says):
        k.RBF()(bad)


def test_widths_that_do_not_agree():
    X = np.ones((2, 3))
    for kernel in (k.RBF([1.0, 2.0]), k.Periodic(1.0, [1.0, 2.0]), k.ArcSine(1.0, [1.0, 2.0]), k.Linear(np.eye(2)),
                   k.Standard(1.0, [1.0, 2.0])):  # fmt: skip
        with pytest.raises(mc.DataError, match="2 entries but the inputs have 3 columns"):
            kernel(X)
    with pytest.raises(mc.DataError, match="equal width"):
        k.RBF()(X, np.ones((2, 2)))
    with pytest.raises(mc.DataError, match="column 3"):
        k.RBF().on(3)(X)
    with pytest.raises(mc.DataError, match="by name"):
        k.RBF().on("a")(X)
    with pytest.raises(mc.DataError, match="no column 'z'"):
        k.RBF().on("z")(pd.DataFrame(VALUES))


def test_overflow_is_an_error_not_an_infinity():
    with pytest.raises(mc.DataError, match="not finite"):
        k.Linear().exp()([100.0])
    with pytest.raises(mc.DataError, match="not finite"):
        (k.Linear().exp() * k.RBF())([[0.0], [100.0]])


def test_a_matrix_larger_than_the_machine_is_refused_before_it_is_begun():
    with pytest.raises(mc.DataError, match="GiB"):
        k.RBF()(np.zeros((2_000_000, 1)))


def test_an_error_in_one_tile_ends_the_others():
    seen = []

    def slow(x, z):
        seen.append(1)
        raise ZeroDivisionError

    with pytest.raises(mc.DataError):
        k.Custom(slow)(np.zeros((1200, 2)))
    assert len(seen) < 10
    with pytest.raises(mc.DataError, match="not finite"):
        k.Linear().exp()(np.full((3000, 1), 100.0))


def test_ten_thousand_columns():
    X = rng.normal(size=(5, 10_000))
    direct = ((X[:, None, :] - X[None, :, :]) ** 2).sum(-1)
    np.testing.assert_allclose(k.RBF(100.0)(X), np.exp(-direct / 2e4), rtol=1e-12)
    np.testing.assert_allclose(k.Matern(100.0 * np.ones(10_000))(X), k.Matern(100.0)(X), rtol=1e-12)


class TestUserFunctions:
    """phi, f and k(x, x') may want rows, plain numbers or whole arrays, and may or may not be traceable."""

    X = rng.normal(size=(4, 2))
    x = rng.normal(size=4)

    @pytest.mark.parametrize(
        "phi",
        [
            lambda x: x**2,
            lambda x: np.sin(np.asarray(x)) if False else [x[0] ** 2, x[1] ** 2],
            lambda x: [float(v) ** 2 for v in x],  # not traceable
            lambda X: np.square(np.atleast_2d(np.array(X)))[:, :2] if np.ndim(X) == 2 else 1 / 0,  # whole arrays only
            np.square,
        ],
    )
    def test_phi_of_rows(self, phi):
        np.testing.assert_allclose(k.RBF().warp(phi)(self.X), k.RBF()(self.X**2), rtol=1e-13)
        np.testing.assert_allclose(k.FeatureMap(phi)(self.X), k.Linear()(self.X**2), rtol=1e-13)

    @pytest.mark.parametrize(
        "phi",
        [
            lambda x: jnp.stack([jnp.ones_like(x), x]),
            lambda x: [1.0, x],
            lambda x: (1.0, float(x)),
            lambda x: np.array([1.0, float(x)]),
        ],
    )
    def test_phi_of_numbers(self, phi):
        np.testing.assert_allclose(k.FeatureMap(phi)(self.x), 1 + np.outer(self.x, self.x), rtol=1e-13)

    @pytest.mark.parametrize("f", [lambda x: x[0], lambda x: float(x[0]), lambda X: X[:, 0]])
    def test_factor(self, f):
        expected = np.outer(self.X[:, 0], self.X[:, 0]) * k.RBF()(self.X)
        np.testing.assert_allclose(k.RBF().modulate(f)(self.X), expected, rtol=1e-13)

    def test_a_factor_must_be_one_number(self):
        with pytest.raises(mc.DataError, match="one number per input"):
            k.RBF().modulate(lambda x: x)(self.X)

    @pytest.mark.parametrize(
        "f", [lambda x, z: min(x, z), lambda x, z: jnp.minimum(x, z), min, lambda x, z: min(float(x), float(z))]
    )
    def test_pairs_of_numbers(self, f):
        x = np.abs(self.x)
        np.testing.assert_array_equal(k.Custom(f)(x), np.minimum.outer(x, x))
        np.testing.assert_array_equal(k.Custom(f).diag(x), x)

    def test_host_functions_mix_with_compiled_kernels(self):
        kernel = 2.0 * k.Custom(lambda x, z: float(x[0] * z[0])) + k.RBF() * k.Custom(lambda x, z: float(x[1] * z[1]))
        X = self.X
        expected = 2 * np.outer(X[:, 0], X[:, 0]) + k.RBF()(X) * np.outer(X[:, 1], X[:, 1])
        np.testing.assert_allclose(kernel(X), expected, rtol=1e-13)
        np.testing.assert_allclose(kernel.diag(X), np.diag(expected), rtol=1e-13)
        warped = k.Custom(lambda x, z: float(x[0] * z[0])).warp(lambda x: x + 1)
        np.testing.assert_allclose(warped(X), np.outer(X[:, 0] + 1, X[:, 0] + 1), rtol=1e-13)

    def test_columns_that_are_not_there_are_not_silently_the_last_one(self):
        for kernel in (
            k.FeatureMap(lambda x: x[5]),
            k.RBF().warp(lambda x: x[5]),
            k.RBF().modulate(lambda x: x[5]),
            k.Custom(lambda x, z: x[5] * z[5]),
        ):
            with pytest.raises(mc.DataError, match="index 5 is out of bounds"):
                kernel(self.X)
        with pytest.raises(mc.DataError, match="index 7 is out of bounds"):
            mc.GP(k.RBF(), mean=lambda x: x[7]).mean(self.X)

    def test_values_that_are_not_finite_are_the_functions_own(self):
        for log in (jnp.log, lambda x: [float("nan")]):
            with pytest.raises(mc.DataError, match="function.*NaN|not finite"):
                k.RBF().warp(log)(-np.abs(self.X))

    def test_errors_of_the_function_are_reported_as_such(self):
        with pytest.raises(mc.DataError, match="failed.*division"):
            k.FeatureMap(lambda x: [1 / 0])(self.X)
        with pytest.raises(mc.DataError, match="failed.*division"):
            k.Custom(lambda x, z: 1 / 0)(self.X)
        with pytest.raises(mc.DataError, match="one number per pair"):
            k.Custom(lambda x, z: x * z)(self.X)
        with pytest.raises(mc.DataError, match="not finite"):
            k.Custom(lambda x, z: float("nan"))(self.X)

    def test_strings_and_objects(self):
        kernel = k.Custom(lambda a, b: float(len(set(a) & set(b))))
        np.testing.assert_array_equal(kernel(["ab", "bc"]), [[2, 1], [1, 2]])
        np.testing.assert_array_equal(kernel([{1, 2}, {2}, {3}], [{2, 3}]), [[1], [1], [1]])
        np.testing.assert_array_equal((kernel + k.White(0.5))(["ab", "bc"]), [[2.5, 1], [1, 2.5]])

    def test_text_goes_through_functions_of_one_input_too(self):
        words = ["a", "bb", "dddd"]
        np.testing.assert_allclose(k.RBF().warp(len)(words), k.RBF()([1.0, 2.0, 4.0]))
        np.testing.assert_allclose(k.FeatureMap(len)(words), np.outer([1, 2, 4], [1, 2, 4]))
        np.testing.assert_allclose(mc.GP(k.RBF().warp(len), mean=len).mean(words), [1, 2, 4])
        matrices = [np.eye(2), 2 * np.eye(2)]
        np.testing.assert_allclose(k.Custom(lambda a, b: np.trace(a @ b))(matrices), [[2, 4], [4, 8]])

    def test_networks_and_callables_that_cannot_be_hashed(self):
        import dataclasses

        import equinox as eqx
        import jax

        network = eqx.nn.MLP(2, 3, 8, 1, key=jax.random.key(0))
        kernel = k.RBF().warp(network)
        np.testing.assert_allclose(kernel(self.X), k.RBF()(np.array([network(x) for x in self.X])), rtol=1e-4)
        gradient = jax.grad(lambda q: q(self.X.astype(np.float32)).sum())(kernel)
        assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient.phi))

        @dataclasses.dataclass
        class Power:
            n: int

            def __call__(self, x):
                return x**self.n

        np.testing.assert_allclose(k.RBF().warp(Power(2))(self.X), k.RBF()(self.X**2), rtol=1e-13)

    @pytest.mark.parametrize("f", [lambda x, z: None, lambda x, z: "near", lambda x, z: 1j, lambda x, z: 1 / 0])
    @pytest.mark.parametrize("d", [1, 2])
    def test_functions_of_pairs_that_return_no_number(self, f, d):
        with pytest.raises(mc.DataError, match="kernel function"):
            k.Custom(f)(self.X[:, :d])


def test_warps_of_warps_and_of_noise():
    X = rng.normal(size=(4, 2))
    double = lambda x: 2 * x
    np.testing.assert_allclose(k.RBF().warp(double).warp(double)(X), k.RBF()(4 * X), rtol=1e-13)
    kernel = (k.RBF() + k.White() + 1.0).warp(double)
    np.testing.assert_allclose(kernel(X), k.RBF()(2 * X) + np.eye(4) + 1, rtol=1e-13)
    np.testing.assert_allclose(kernel.diag(X), 3.0)


def test_whole_numbers_inside_the_callers_jit():
    import jax

    assert jax.jit(k.Linear())(jnp.array([100_000, 2]))[0, 0] == pytest.approx(1e10)
    np.testing.assert_allclose(jax.jit(k.RBF(20.0))(jnp.array([0, 20], dtype=jnp.uint8))[0, 1], np.exp(-0.5), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(k.RBF())(jnp.array([True, False]))[0, 1], np.exp(-0.5), rtol=1e-6)
    assert jax.jit(k.RBF().diag)(jnp.arange(3)).dtype == jnp.float32


def test_frames_with_odd_column_names():
    frame = pd.DataFrame(MATRIX)
    np.testing.assert_array_equal(k.RBF()(frame), k.RBF()(MATRIX))
    np.testing.assert_array_equal(k.RBF().on(1, 2)(frame), k.RBF()(MATRIX[:, 1:3]))
    np.testing.assert_array_equal(k.RBF()(frame, frame[[3, 2, 1, 0]]), k.RBF()(MATRIX, MATRIX))
    with pytest.raises(mc.DataError, match="cannot be read"):
        k.RBF()(pd.DataFrame(MATRIX[:, :2], columns=["a", "a"]))


def test_masked_values_are_missing():
    with pytest.raises(mc.DataError, match="1 missing"):
        k.RBF()(np.ma.masked_array([1.0, 2.0, 999.0], [0, 0, 1]))


def test_numbers_too_large_to_be_numbers_and_other_nonsense():
    for call in (lambda: k.RBF()([10**400, 1]), lambda: k.Linear("abc"), lambda: k.Linear([[1.0], [1.0, 2.0]]),
                 lambda: k.RBF().polynomial(["a"]), lambda: k.RBF().on(slice("a", "b"))):  # fmt: skip
        with pytest.raises(mc.MercerError):
            call()
    np.testing.assert_allclose((k.Linear() ** 200).features([[1.0]]), [[1.0]])
    assert k.RBF().diag(np.empty((0, 2))).shape == (0,)


@frames
def test_functions_see_every_column(Frame):
    frame = Frame(VALUES)
    other = Frame({"a": VALUES["a"], "n": VALUES["n"], "b": VALUES["b"], "e": VALUES["b"]})
    for kernel in (k.RBF().on("a").modulate(lambda x: x[1]), k.RBF().warp(lambda x: x[1:])):
        with pytest.raises(mc.DataError, match="columns of the second frame differ"):
            kernel(frame, other)


@frames
def test_a_column_twice(Frame):
    np.testing.assert_array_equal(k.RBF().on("b", "a", "b")(Frame(VALUES)), k.RBF()(MATRIX[:, [1, 0, 1]]))
    np.testing.assert_array_equal(k.RBF().on(0, 0)(Frame(VALUES)), k.RBF()(MATRIX[:, [0, 0]]))


def test_more_that_is_refused_in_words():
    X = rng.normal(size=(3, 2))
    for call in (
        lambda: k.RBF().on([True, False]),
        lambda: k.RBF().on(np.array([True, False])),
        lambda: k.RBF().on(slice(0, 2, 0)),
        lambda: k.RBF().on(0)([[1, 2], [3]]),
        lambda: k.RBF().fix(1),
        lambda: k.RBF().warp(lambda x: x * (1 + 1j))(X),
        lambda: mc.GP(k.RBF()).condition(pd.DataFrame(X), [1, 2, 3], 0.1).condition(pl.DataFrame(X), [1, 2, 3], 0.1),
    ):
        with pytest.raises(mc.MercerError):
            call()


def test_a_warp_is_tried_on_real_inputs():
    import math

    kernel = k.RBF().warp(lambda x: math.log(1 - float(x[0]))).warp(lambda x: x * 0.5)
    x = np.linspace(0.1, 0.9, 5)
    np.testing.assert_allclose(kernel(x), k.RBF()(np.log(1 - x / 2)), rtol=1e-12)


def test_settings_given_as_numpy_numbers():
    X = rng.normal(size=(3, 2))
    np.testing.assert_array_equal((k.RBF() ** np.int64(3))(X), (k.RBF() ** 3)(X))
    np.testing.assert_array_equal(k.Matern(1.0, nu=np.float64(1.5))(X), k.Matern(1.0, nu=1.5)(X))
    np.testing.assert_array_equal(k.Polynomial(np.int64(2))(X), k.Polynomial(2)(X))


# -- objects that look like sequences -------------------------------------------------------------------------------


class Graph:
    """What NumPy sees of a graph: a length, nodes to walk over, neighbours by node."""

    def __init__(self, edges):
        self.neighbours = {}
        for a, b in edges:
            self.neighbours.setdefault(a, set()).add(b)
            self.neighbours.setdefault(b, set()).add(a)

    def __len__(self):
        return len(self.neighbours)

    def __iter__(self):
        return iter(self.neighbours)

    def __getitem__(self, node):
        return self.neighbours[node]


def graphs_of_one_size(make=Graph):
    path, triangle, star = [(0, 1), (1, 2), (2, 3)], [(0, 1), (1, 2), (2, 0), (2, 3)], [(0, 1), (0, 2), (0, 3)]
    return [make(edges) for edges in (path, triangle, star)]


def networkx_graph(edges):
    return pytest.importorskip("networkx").Graph(edges)


@pytest.mark.parametrize("make", [Graph, networkx_graph])
def test_graphs_of_equal_size_are_no_matrix_of_their_nodes(make):
    graphs = graphs_of_one_size(make)
    for given in (graphs, tuple(graphs), [[graph] for graph in graphs], graphs[0]):
        with pytest.raises(mc.DataError, match="objects of type Graph; numbers were expected"):
            k.RBF()(given)
    for given in (graphs, graphs[0]):
        with pytest.raises(mc.DataError, match="objects of type Graph; numbers were expected"):
            k.RBF().on(0)(given)
    with pytest.raises(mc.DataError, match="objects of type Graph"):
        mc.KernelRidge().fit(graphs, [1.0, 2.0, 3.0])
    shared = k.Custom(lambda a, b: float(sum(len(set(a[v]) & set(b[v])) for v in a)))
    np.testing.assert_array_equal(np.diag(shared(graphs)), [6, 8, 6])
    np.testing.assert_array_equal(k.FeatureMap(lambda graph: [max(len(graph[v]) for v in graph)])(graphs)[0], [4, 6, 6])
    ridge = mc.KernelRidge(shared + 1.0, alpha=1e-8).fit(graphs, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(ridge.predict(graphs[::-1]), [3, 2, 1], rtol=1e-4)


def test_lists_of_words_of_equal_length_stay_lists():
    texts = [["a", "rose"], ["is", "a"], ["rose", "rose"]]
    with pytest.raises(mc.DataError, match="text"):
        k.RBF()(texts)
    shared = k.Custom(lambda a, b: len(set(a) & set(b)))
    np.testing.assert_array_equal(shared(texts), [[2, 1, 1], [1, 2, 0], [1, 0, 1]])
    np.testing.assert_array_equal(k.FeatureMap(len)(texts), np.full((3, 3), 4.0))
    ridge = mc.KernelRidge(shared + 1.0, alpha=1e-8).fit(texts, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(ridge.predict([("rose", "rose"), ("is", "a")]), [3, 2], rtol=1e-4)
    gp = mc.GaussianProcessRegressor(shared + 1.0, learning=None, allow_invalid=True).fit(texts, [1.0, 2.0, 3.0])
    assert gp.predict(texts).shape == (3,)


def test_sequences_that_are_numbers_still_are():
    import array
    from decimal import Decimal

    expected = k.RBF()([[0.0, 1.0], [2.0, 3.0]])
    for given in ([range(2), range(2, 4)], [array.array("d", [0, 1]), array.array("d", [2, 3])],
                  [np.arange(2), jnp.arange(2, 4)], [pd.Series([0, 1]), pd.Series([2, 3])],
                  ([Decimal(0), Decimal(1)], [2, np.float32(3)])):  # fmt: skip
        np.testing.assert_array_equal(k.RBF()(given), expected)


def test_rows_are_stacked_as_the_kernel_reads_them():
    tokens = stack_rows([[1, 2], [3, 4]], [[5, 6]], "objects")
    assert tokens.shape == (3,)
    assert tokens.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert stack_rows([[1, 2], [3, 4]], [[5, 6]], "vectors").tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert stack_rows([1.0, 2.0], [[3.0]], "vectors").shape == (3, 1)
    assert stack_rows(["a", "bc"], ["d"], "anything").tolist() == ["a", "bc", "d"]
    with pytest.raises(mc.DataError, match="equal width"):
        stack_rows([[1.0, 2.0]], [[3.0]], "vectors")


def test_a_process_keeps_rows_in_the_form_that_its_kernel_reads():
    assert mc.GP(k.RBF()).condition([0, 1], [1.0, 2.0], 0.1).data[0].tolist() == [[0.0], [1.0]]
    assert mc.GP(k.Spectrum(2)).condition([[1, 2, 3], [2, 3, 4]], [1.0, 2.0], 0.1).data[0].dtype == object
