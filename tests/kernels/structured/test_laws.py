"""What every kernel on objects promises."""

import pickle

import jax
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.errors import ObjectError
from mercer.core.parameters import nodes_of
from mercer.kernels.substitution import GaussianOf

nx = pytest.importorskip("networkx")


def words(rng):
    return "".join(rng.choice(list("acgt"), size=rng.integers(1, 9)))


def graph(rng):
    graph = nx.gnp_random_graph(int(rng.integers(1, 7)), 0.4, seed=int(rng.integers(1000)))
    nx.set_node_attributes(graph, {node: str(rng.choice(["C", "N", "O"])) for node in graph}, "label")
    return graph


DRAWN = {
    "sets": lambda rng: frozenset(rng.choice(9, size=rng.integers(0, 6), replace=False).tolist()),
    "strings": words,
    "aligned": lambda rng: "".join(rng.choice(list("acgt"), size=7)),
    "documents": lambda rng: " ".join(words(rng)[:2] for _ in range(rng.integers(1, 6))),
    "categories": lambda rng: str(rng.choice(["red", "green", "blue"])),
    "graphs": graph,
    "fingerprints": lambda rng: rng.poisson(0.7, size=6).astype(float),
}
EXAMPLES = [
    (k.Subsets(), "sets"),
    (k.Subsets(normalized=True), "sets"),
    (k.Tanimoto(), "fingerprints"),
    (k.Tanimoto(k.Spectrum(1)), "strings"),
    (k.Spectrum(2), "strings"),
    (k.Spectrum(2, mismatches=1), "strings"),
    (k.Subsequence(2, 0.7), "strings"),
    (k.WeightedDegree(3), "aligned"),
    (k.BagOfWords(), "documents"),
    (k.Categorical(), "categories"),
    (k.WeisfeilerLehman(2), "graphs"),
    (k.WeisfeilerLehman(1, k.ShortestPath()), "graphs"),
    (k.ShortestPath(), "graphs"),
    (k.RandomWalk(0.02), "graphs"),
    (2.0 * k.Spectrum(1) + k.Subsequence(1) * k.Spectrum(2).normalize(), "strings"),
    (k.WeisfeilerLehman(2).normalize().gaussian(0.7), "graphs"),
]
every = pytest.mark.parametrize(("kernel", "kind"), EXAMPLES, ids=lambda value: repr(value))


def rows(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    drawn = [DRAWN[kind](rng) for _ in range(n)]
    return np.stack(drawn) if kind == "fingerprints" else drawn


def stacked(X, Z):
    return np.concatenate([X, Z]) if isinstance(X, np.ndarray) else [*X, *Z]


def test_every_class_is_here():
    public = {getattr(k, name) for name in k.__all__}
    mine = {cls for cls in public if cls.__module__.startswith("mercer.kernels.structured")}
    assert mine <= {type(kernel) for kernel, _ in EXAMPLES}


@every
def test_a_gram_matrix_is_symmetric_and_positive_semidefinite(kernel, kind):
    X = rows(kind, 25)
    K = kernel(X)
    assert np.array_equal(K, K.T)
    assert np.linalg.eigvalsh(K)[0] > -1e-10 * np.trace(K)
    assert kernel.diag(X) == pytest.approx(np.diag(K))
    assert kernel.validity


@every
def test_two_sets_are_compared_as_if_they_were_one(kernel, kind):
    X, Z = rows(kind, 9), rows(kind, 7, seed=1)
    kernel = kernel.fit(X)
    assert kernel(X, Z) == pytest.approx(kernel(stacked(X, Z))[:9, 9:], rel=1e-12)
    assert kernel(Z, X) == pytest.approx(kernel(X, Z).T, rel=1e-12)


@every
def test_a_kernel_that_would_learn_from_new_rows_says_so(kernel, kind):
    X, Z = rows(kind, 9), rows(kind, 7, seed=1)
    kernel(X), kernel(X, X)  # no warning: nothing depends on a batch
    if kernel.needs_fit:
        with pytest.warns(mc.ModelWarning, match=r"call kernel = kernel\.fit\(X_train\) first"):
            found = kernel(X, Z)
    else:
        found = kernel(X, Z)
    assert np.array_equal(found, kernel.fit(X)(X, Z))


@every
def test_a_kernel_is_a_value(kernel, kind):
    X = rows(kind, 6)
    assert not kernel.fit(X).needs_fit
    assert kernel.fit(X) == kernel.fit(X)
    same = pickle.loads(pickle.dumps(kernel))
    assert same == kernel
    assert hash(same) == hash(kernel)
    assert np.array_equal(same(X), kernel(X))
    unit = kernel.normalize()(X)
    assert set(np.diag(unit).round(12)) <= {0.0, 1.0}


@every
def test_solvers_agree_on_new_rows(kernel, kind):
    X, Z = rows(kind, 30), rows(kind, 6, seed=1)
    infinite = k.Subsets, k.Tanimoto, k.Subsequence, k.RandomWalk, GaussianOf
    finite = not any(isinstance(node, infinite) for node in nodes_of(kernel))
    y = kernel.fit(X)(X)[:, 0] + 0.1 * np.random.default_rng(2).normal(size=30)
    settings = {"noise": 0.1, "learning": None, "normalize": False}
    model = mc.GaussianProcessRegressor(1.0 * kernel, solver="dense", **settings).fit(X, y)
    mean, covariance = model.predict(Z, return_cov=True, include_noise=False)
    process = mc.GP(1.0 * kernel).condition(X, y, 0.1)
    assert mean == pytest.approx(process.mean(Z), rel=1e-9, abs=1e-9)
    assert covariance == pytest.approx(process.covariance(Z), rel=1e-9, abs=1e-9)
    weights = mc.GaussianProcessRegressor(1.0 * kernel, solver="weights", **settings)
    if not finite:
        with pytest.raises(mc.ParameterError, match="finitely many features"):
            weights.fit(X, y)
        return
    again = weights.fit(X, y).predict(Z, return_cov=True, include_noise=False)
    assert again[0] == pytest.approx(mean, rel=1e-7, abs=1e-9)
    assert again[1] == pytest.approx(covariance, rel=1e-7, abs=1e-9)


@every
@pytest.mark.parametrize("solver", ["dense", "weights"])
def test_draws_have_the_covariance_of_predictions(kernel, kind, solver):
    X, y = rows(kind, 30), np.random.default_rng(3).normal(size=30)
    model = mc.GaussianProcessRegressor(1e-6 * kernel, noise=0.1, learning=None, solver=solver)
    try:
        model.fit(X, y)
    except mc.ParameterError:  # no finite features
        return
    # Training rows have no new feature, rows of letters that training rows lack have nothing else.
    new = ["zz", "yy", "zz"] if kind in ("strings", "documents", "categories") else X[:1]
    for Z in (X, new, stacked(X[:4], rows(kind, 4, seed=1))):
        mean, covariance = model.predict(Z, return_cov=True, include_noise=False)
        draws = model.sample_y(Z, 4000, include_noise=False)
        assert draws.mean(axis=1) == pytest.approx(mean, abs=0.01)
        assert np.cov(draws).reshape(covariance.shape) == pytest.approx(
            covariance, abs=0.15 * covariance.max(initial=1e-9)
        )


@every
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_cell_is_named(kernel, kind, missing):
    if kind == "fingerprints":
        return
    X = [*rows(kind, 2), missing]
    with pytest.raises(ObjectError, match="row 2"):
        kernel(X)


@pytest.mark.parametrize(("kernel", "kind"), [(kernel, kind) for kernel, kind in EXAMPLES if kind != "fingerprints"],
                         ids=lambda value: repr(value))  # fmt: skip
def test_a_column_of_a_frame_is_named_too(kernel, kind):
    pd = pytest.importorskip("pandas")
    column = np.empty(3, dtype=object)
    column[:] = [*rows(kind, 2), None]
    with pytest.raises(ObjectError, match="column 'thing', row 2"):
        (1.0 * kernel).on("thing")(pd.DataFrame({"thing": column, "x": [1.0, 2.0, 3.0]}))


@pytest.mark.parametrize("kernel", [k.Spectrum(2), k.Subsequence(2), k.BagOfWords(), k.WeisfeilerLehman(1)], ids=repr)
def test_a_frame_of_two_columns_is_not_taken_for_lists_of_two(kernel):
    pd = pytest.importorskip("pandas")
    with pytest.raises(mc.DataError, match=r"has the columns a, b\. Select one: kernel\.on\('a'\)"):
        kernel(pd.DataFrame({"a": ["x", "y"], "b": ["z", "w"]}))


def test_a_kernel_on_the_host_says_what_jax_can_do_with_it():
    value = lambda decay: k.Subsequence(2, decay)(["ab", "abc"]).sum()
    assert float(jax.grad(value)(0.5)) == pytest.approx(2.6875)
    with pytest.raises(mc.DataError, match=r"jax\.grad differentiates it"):
        jax.jit(value)(0.5)


@pytest.mark.parametrize("wrapped", [lambda q: q, lambda q: 1.0 * q, lambda q: q.normalize() + k.White()])
def test_walks_without_end_are_explained_inside_an_expression_too(wrapped):
    path = nx.path_graph(3)
    nx.set_node_attributes(path, {0: "C", 1: "N", 2: "N"}, "label")
    limit = 1 / np.sqrt(2)  # of the product graph with itself the largest eigenvalue is the root of two
    with pytest.raises(ObjectError, match=rf"row 0: RandomWalk needs a decay below {limit:.4f}"):
        wrapped(k.RandomWalk(0.8))([path])
    assert np.isfinite(wrapped(k.RandomWalk(0.7))([path])).all()


def test_a_missing_cell_of_several_columns_names_them():
    pd = pytest.importorskip("pandas")
    with pytest.raises(ObjectError, match=r"columns \['a', 'b'\], row 1"):
        k.Categorical().on(["a", "b"])(pd.DataFrame({"a": ["x", "y"], "b": ["u", None]}))
