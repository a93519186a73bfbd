"""Sparse features of objects: new rows keep the features that the training rows lack, in norms and variances."""

import networkx as nx
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.errors import ObjectError
from mercer.kernels.structured.rows import CountKernel, Counts, Vocabulary

X = ["ab", "abba", "b", "bc", "a", "cc"]
NEW = ["abz", "zz", "", "cxyb"]


class Letters(CountKernel):
    """Scalar product of counts of letters."""

    def counts(self, objects):
        letters = sorted(set("".join(objects)))
        return Counts([[text.count(letter) for letter in letters] for text in objects], Vocabulary(letters))


def test_features_that_others_lack_count_in_norms():
    rows, new = Letters().counts(np.array(X)), Letters().counts(np.array(NEW))
    known = new.numbered_like(rows)
    assert known.matrix.shape == (4, 3)
    np.testing.assert_array_equal(known.squared_norms(), new.squared_norms())
    np.testing.assert_array_equal(known[1:3].squared_norms(), [4, 0])
    np.testing.assert_array_equal(known.numbered_like(rows).products(rows), new.products(rows))


@pytest.mark.parametrize("kernel", [Letters(), Letters().normalize(), Letters() * Letters().normalize()], ids=repr)
def test_solvers_agree_on_rows_with_unseen_features(kernel):
    y = np.array([len(text) for text in X], dtype=float)
    dense, weights = (
        mc.GaussianProcessRegressor(kernel, solver=solver, learning=None, noise=0.1, progress=False).fit(X, y)
        for solver in ("dense", "weights")
    )
    for a, b in zip(dense.predict(NEW, return_cov=True), weights.predict(NEW, return_cov=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(dense.predict(NEW, return_std=True)[1], weights.predict(NEW, return_std=True)[1])


def test_components_of_rows_with_unseen_features():
    kernel = Letters().normalize()
    coordinates = mc.KernelPCA(2, kernel).fit(X).transform(NEW)
    K, Ks = kernel(X), kernel(NEW, X)
    centred = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    values, vectors = np.linalg.eigh(centred)
    A = vectors[:, :-3:-1] / np.sqrt(values[:-3:-1])
    expected = (Ks - Ks.mean(1)[:, None] - K.mean(0) + K.mean()) @ A
    np.testing.assert_allclose(np.abs(coordinates), np.abs(expected), atol=1e-8)


def test_sums_with_vectors_share_the_rule():
    kernel = k.Categorical() * 2.0 + k.Constant()
    y = np.arange(6.0)
    models = [
        mc.GaussianProcessRegressor(kernel, solver=solver, learning=None, noise=0.1, progress=False).fit(X, y)
        for solver in ("dense", "weights")
    ]
    a, b = (np.array(model.predict(NEW, return_std=True)) for model in models)
    np.testing.assert_allclose(a, b, rtol=1e-7)


# -- rows that are refused -------------------------------------------------------------------------------------------


def labelled(**attributes):
    graph = nx.path_graph(3)
    for name, value in attributes.items():
        nx.set_node_attributes(graph, value, name)
        nx.set_edge_attributes(graph, value, name)
    return graph


def test_a_label_that_no_graph_has_is_named():
    graphs = [labelled(atom="C"), labelled(atom="N")]
    for kernel in (k.WeisfeilerLehman(1, node_label="atm"), k.ShortestPath(node_label="atm")):
        with pytest.raises(ObjectError, match=r"row 0: node 0 has no 'atm', nor has any other node"):
            kernel(graphs)
    with pytest.raises(ObjectError, match=r"row 0: edge \(0, 1\) has no 'bnd', nor has any other edge"):
        k.RandomWalk(0.01, node_label="atom", edge_label="bnd")(graphs)
    assert k.WeisfeilerLehman(1)(graphs)[0, 1] > 0  # no "label": all the same
    model = mc.KernelRidge(k.WeisfeilerLehman(1, node_label="atom", edge_label="atom")).fit(graphs, [0.0, 1.0])
    with pytest.raises(ObjectError, match="row 0: node 0 has no 'atom'"):
        model.predict([nx.path_graph(3)])


def test_views_and_iterators_are_not_sets():
    for items in ({"a": 1}.keys(), iter({"a"}), {"a": 1}.items()):
        with pytest.raises(ObjectError, match=r"row 1: .*Write set\(\.\.\.\) of it"):
            mc.GaussianProcessRegressor(k.Subsets()).fit([{"a"}, items, {"b"}], [1.0, 2.0, 3.0])


def test_nan_inside_rows_is_refused():
    for nan in (float("nan"), np.float64("nan"), np.float32("nan")):
        with pytest.raises(ObjectError, match="row 1: NaN, where an element of a set was expected"):
            k.Subsets()([{1.0}, {nan, 2.0}])
        with pytest.raises(ObjectError, match="row 1: NaN, where a token was expected"):
            k.Spectrum(1)([[1.0], [2.0, nan]])


def test_default_kernels_say_which_kernels_read_text_and_graphs():
    for model in (mc.GaussianProcessRegressor(), mc.KernelRidge(None)):
        with pytest.raises(mc.DataError, match=r"X holds text.*BagOfWords\(\) its words, Spectrum\(3\)"):
            model.fit(["red wine", "tea"], [1.0, 2.0])
        with pytest.raises(mc.DataError, match="type Graph; .*WeisfeilerLehman"):
            model.fit([nx.path_graph(3), nx.path_graph(2)], [1.0, 2.0])
