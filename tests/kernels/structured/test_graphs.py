"""Kernels on graphs against their definitions, and what they promise."""

import functools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.core.errors import InvalidKernelError, ObjectError, ParameterError
from mercer.core.precision import double
from reference import graphs as reference


def random_graph(rng, letters="abc", bonds=(1, 2), kind=nx.Graph, most=7):
    """A graph with labels, some of its nodes alone, perhaps with loops, and parallel edges where it may have them."""
    n = int(rng.integers(1, most + 1))
    graph = kind()
    names = rng.permutation(100)[:n].tolist()
    for node in names:
        graph.add_node(node, label=str(rng.choice(list(letters))))
    for _ in range(int(rng.integers(0, 2 * n))):
        u, v = (names[i] for i in rng.integers(n, size=2))
        graph.add_edge(u, v, label=int(rng.choice(bonds)), length=float(rng.integers(0, 4)) / 2)
    return graph


def random_graphs(n, seed=0, **options):
    rng = np.random.default_rng(seed)
    return [random_graph(rng, **options) for _ in range(n)]


def without_labels(graphs):
    plain = [graph.copy() for graph in graphs]
    for graph in plain:
        for _, data in graph.nodes(data=True):
            data.pop("label", None)
        for *_, data in graph.edges(data=True):
            data.pop("label", None)
    return plain


KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]
KERNELS = [
    (k.WeisfeilerLehman(3), reference.weisfeiler_lehman(3)),
    (k.WeisfeilerLehman(0), reference.weisfeiler_lehman(0)),
    (k.ShortestPath(), reference.shortest_path()),
    (k.ShortestPath(edge_weight="length"), reference.shortest_path("length")),
    (k.ShortestPath(disconnected=True), reference.shortest_path(disconnected=True)),
    (k.ShortestPath(edge_weight="length", disconnected=True), reference.shortest_path("length", disconnected=True)),
    (k.WeisfeilerLehman(2, base=k.ShortestPath()), reference.refined_shortest_path(2)),
]
EVERY = [kernel for kernel, _ in KERNELS] + [
    k.RandomWalk(0.01),
    k.WeisfeilerLehman(2, base=0.5 * k.RandomWalk(0.02) + k.ShortestPath()),
]
every = pytest.mark.parametrize("kernel", EVERY, ids=repr)


# -- the definitions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("kernel", "features"), KERNELS, ids=lambda q: repr(q) if isinstance(q, k.Kernel) else "")
def test_counts_are_those_of_the_definition(kernel, features, kind):
    X = [*random_graphs(8, kind=kind), nx.Graph()]
    # New graphs with labels that the others lack, of nodes and of edges.
    Z = [*random_graphs(7, seed=1, letters="bcd", bonds=(2, 3), kind=kind), nx.DiGraph()]
    np.testing.assert_array_equal(kernel(X), reference.gram(features, X, X))
    np.testing.assert_array_equal(kernel(X, Z), reference.gram(features, X, Z))
    np.testing.assert_array_equal(kernel.diag(Z), np.diag(reference.gram(features, Z, Z)))
    for graphs in (without_labels(X), without_labels(Z)):
        np.testing.assert_array_equal(kernel(graphs), reference.gram(features, graphs, graphs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labelled", [True, False])
def test_random_walks_are_those_of_the_definition(kind, labelled):
    X = random_graphs(6, kind=kind, most=5)
    Z = random_graphs(5, seed=1, letters="bcd", bonds=(2, 3), kind=kind, most=5)
    X, Z = (X, Z) if labelled else (without_labels(X), without_labels(Z))
    largest = max(np.abs(np.linalg.eigvals(reference.product_graph(g, g))).max() for g in X + Z)
    for share in (0.1, 0.97):
        kernel = k.RandomWalk(share / max(largest, 1.0))
        np.testing.assert_allclose(kernel(X), reference.random_walk(kernel.decay, X, X), rtol=1e-10)
        np.testing.assert_allclose(kernel(X, Z), reference.random_walk(kernel.decay, X, Z), rtol=1e-10)
        np.testing.assert_allclose(kernel.diag(X), np.diag(kernel(X)), rtol=1e-12)


def test_directed_and_undirected_graphs_meet():
    X = [*random_graphs(3), *random_graphs(3, seed=1, kind=nx.DiGraph)]
    np.testing.assert_array_equal(k.WeisfeilerLehman(2)(X), reference.gram(reference.weisfeiler_lehman(2), X, X))
    np.testing.assert_allclose(k.RandomWalk(0.01)(X), reference.random_walk(0.01, X, X), rtol=1e-10)
    both_ways = [graph.to_directed() for graph in X]  # an undirected edge is one in both directions
    for kernel in EVERY:
        np.testing.assert_allclose(kernel(X), kernel(both_ways), rtol=1e-10)


def test_a_sum_over_refined_graphs_of_any_expression():
    X = random_graphs(6)
    whole = k.WeisfeilerLehman(2, base=2.0 * k.ShortestPath() + k.WeisfeilerLehman(1))
    parts = 2.0 * k.WeisfeilerLehman(2, base=k.ShortestPath()) + k.WeisfeilerLehman(2, base=k.WeisfeilerLehman(1))
    np.testing.assert_allclose(whole(X), parts(X), rtol=1e-13)
    np.testing.assert_allclose(whole.features(X) @ whole.features(X).T, whole(X), rtol=1e-13)


def test_labels_by_other_names_or_none():
    X = random_graphs(5)
    renamed = [graph.copy() for graph in X]
    for graph in renamed:
        for _, data in graph.nodes(data=True):
            data["element"] = data.pop("label")
    for make in (k.WeisfeilerLehman, k.ShortestPath, functools.partial(k.RandomWalk, decay=0.01)):
        no_labels = {"node_label": None} if make is k.ShortestPath else {"node_label": None, "edge_label": None}
        other, bare = make(node_label="element"), make(**no_labels)
        np.testing.assert_allclose(other(renamed), make()(X), rtol=1e-13)
        np.testing.assert_allclose(bare(X), make()(without_labels(X)), rtol=1e-13)
        assert eval(repr(other), vars(k)) == other
        assert eval(repr(bare), vars(k)) == bare


# -- laws --------------------------------------------------------------------------------------------------------------


@every
def test_isomorphic_graphs_are_equal(kernel):
    rng = np.random.default_rng(3)
    X = random_graphs(6)
    Z = []
    for graph in X:
        names = dict(zip(graph.nodes, rng.permutation(1000)[: len(graph)].tolist(), strict=True))
        shuffled = nx.Graph()
        shuffled.add_nodes_from((names[v], graph.nodes[v]) for v in rng.permutation(list(graph.nodes)).tolist())
        edges = list(graph.edges(data=True))
        for u, v, data in (edges[i] for i in rng.permutation(len(edges))):
            shuffled.add_edge(names[v], names[u], **data)
        Z.append(shuffled)
    np.testing.assert_allclose(kernel(X, Z), kernel(X), rtol=1e-11)


@every
def test_is_symmetric_positive_and_agrees_with_its_own_parts(kernel):
    X, Z = random_graphs(9), random_graphs(6, seed=1, letters="bcd", bonds=(2, 3))
    K = kernel([*X, *Z])
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(K[:9, 9:], kernel(X, Z), rtol=1e-11)
    np.testing.assert_allclose(K[9:, 9:], kernel(Z), rtol=1e-11)
    np.testing.assert_allclose(np.diag(K), kernel.diag([*X, *Z]), rtol=1e-11)
    assert mc.check_kernel(kernel, [*X, *Z]).passed
    assert kernel.validity.valid
    assert eval(repr(kernel), vars(k)) == kernel
    assert kernel.normalize().validity.valid


@pytest.mark.parametrize("kernel", [q for q in EVERY if len(q.parameters)], ids=repr)
@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph])
def test_gradient_in_parameters_is_exact(kernel, kind):
    X, Z = random_graphs(5, kind=kind), random_graphs(4, seed=1, kind=kind)
    with double():
        rows, columns = kernel.prepare(X, np.arange(5)), kernel.prepare(Z, np.arange(5, 9))

        def total(theta):
            free, weights = from_free(kernel, theta), np.arange(20.0).reshape(5, 4)
            own = jnp.sum(free.block_diag(rows)) + jnp.sum(free.block(rows, rows))
            return own + jnp.sum(weights * free.block(rows, columns))

        theta = np.asarray(to_free(kernel))
        gradient = jax.grad(total)(theta)
        for i, step in enumerate(np.eye(theta.size) * 1e-5):
            difference = (total(theta + step) - total(theta - step)) / 2e-5
            assert float(gradient[i]) == pytest.approx(float(difference), rel=1e-7)


# -- in models ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chemistry():
    """Graphs, a number for each, and new ones with labels that these lack."""
    X = random_graphs(24, seed=5)
    y = np.array([len(g) + 0.5 * g.number_of_edges() for g in X])
    return X, y, random_graphs(6, seed=6, letters="bcd", bonds=(2, 3))


@pytest.mark.parametrize(
    "kernel", [k.WeisfeilerLehman(1), k.ShortestPath(), k.WeisfeilerLehman(1, base=k.ShortestPath())], ids=repr
)
def test_features_and_gram_matrix_give_the_same_posterior(kernel, chemistry):
    X, y, Z = chemistry
    answers = []
    for solver in ("dense", "weights"):
        model = mc.GaussianProcessRegressor(0.1 * kernel, noise=0.3, solver=solver, learning=None).fit(X, y)
        moments, covariance = model.predict(Z, return_std=True), model.predict(Z, return_cov=True)[1]
        answers.append([model.log_marginal_likelihood_, *moments, covariance])
    for a, b in zip(*answers, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


def test_estimators_take_graphs(chemistry):
    X, y, Z = chemistry
    kernel = k.WeisfeilerLehman(2)
    model = mc.GaussianProcessRegressor(1.0 * kernel, random_state=0).fit(X, y)
    assert np.corrcoef(model.predict(X), y)[0, 1] > 0.9
    labels = np.where(y > np.median(y), "large", "small")
    classifier = mc.GaussianProcessClassifier(1.0 * kernel.normalize(), random_state=0).fit(X, labels)
    assert classifier.predict_proba(Z).shape == (6, 2)
    assert classifier.score(X, labels) > 0.8
    assert mc.KernelPCA(3, k.ShortestPath().normalize()).fit(X).transform(Z).shape == (6, 3)
    assert mc.KernelRidge(k.ShortestPath()).fit(X, y).predict(Z).shape == (6,)


def test_graphs_sit_in_a_column_beside_numbers(chemistry):
    pandas = pytest.importorskip("pandas")
    X = chemistry[0]
    frame = pandas.DataFrame({"graph": X, "size": [float(len(g)) for g in X]})
    kernel = k.WeisfeilerLehman(2).on("graph") + k.RBF().on("size")
    np.testing.assert_allclose(kernel(frame), k.WeisfeilerLehman(2)(X) + k.RBF()(frame["size"].to_numpy()))
    frame.loc[3, "graph"] = None
    with pytest.raises(ObjectError, match="column 'graph', row 3: a missing value, where a graph was expected"):
        kernel(frame)


def test_decay_is_learned_and_stays_below_its_limit():
    X = random_graphs(10, seed=5)
    limit = 1 / max(np.linalg.eigvalsh(reference.product_graph(g, g)).max() for g in X)
    truth = k.RandomWalk(0.95 * limit)(X)  # steps from the start go beyond the limit
    y = np.linalg.cholesky(truth + 1e-6 * truth.max() * np.eye(len(X))) @ np.random.default_rng(0).normal(size=len(X))
    start = k.RandomWalk(0.5 * limit)
    model = mc.GaussianProcessRegressor(start, noise=1e-3, normalize=False, random_state=0).fit(X, y)
    assert 0 < model.kernel_.decay < limit
    assert model.log_marginal_likelihood_ > mc.GP(start).log_likelihood(X, y, noise=1e-3)


# -- bad input ---------------------------------------------------------------------------------------------------------


@every
def test_graphs_without_nodes_or_edges_are_defined(kernel):
    nothing, dots = nx.Graph(), nx.empty_graph(3)
    K = kernel([nothing, dots, nx.empty_graph(2)])
    np.testing.assert_array_equal(K[0], 0.0)
    assert np.isfinite(K).all()
    if isinstance(kernel, k.ShortestPath):
        pairs = [0, 6, 2] if kernel.disconnected else [0, 0, 0]  # of nodes without a path
        np.testing.assert_array_equal(K, np.outer(pairs, pairs))
    else:
        assert K[1, 2] >= 0
    np.testing.assert_array_equal(kernel([nothing]), [[0.0]])
    np.testing.assert_array_equal(kernel.normalize()([nothing, dots])[0], 0.0)


@every
def test_what_is_no_graph_is_refused_by_row(kernel):
    graph = nx.path_graph(2)
    for bad, says in ((None, "missing value"), (float("nan"), "missing value"), (3, "got 3"), ("C", "got 'C'")):
        with pytest.raises(ObjectError, match=f"row 1: .*{says}"):
            kernel([graph, bad])


def test_labels_that_are_missing_are_refused_by_row_and_node():
    labelled, plain = random_graphs(2), nx.path_graph(["x", "y"])
    with pytest.raises(ObjectError, match=r"row 2: node 'x' has no 'label', where other nodes .*node_label=None"):
        k.WeisfeilerLehman()([*labelled, plain])
    plain.add_node("x", label="a")
    with pytest.raises(ObjectError, match=r"row 0: node 'y' has no 'label'"):
        k.ShortestPath()([plain, *labelled])
    plain.add_node("y", label=float("nan"))
    with pytest.raises(ObjectError, match=r"row 0: node 'y' has no 'label'"):
        k.ShortestPath()([plain])
    plain.add_node("y", label="b")
    graphs = [nx.path_graph(3), nx.path_graph(3)]
    graphs[0].edges[0, 1]["label"] = graphs[0].edges[1, 2]["label"] = "single"
    with pytest.raises(ObjectError, match=r"row 1: edge \(0, 1\) has no 'label', where other edges have one"):
        k.RandomWalk()(graphs)
    assert k.ShortestPath()(graphs).shape == (2, 2)  # which does not read labels of edges
    plain.nodes["y"]["label"] = ["b"]
    with pytest.raises(ObjectError, match=r"row 0: node 'y' has 'label' = \['b'\]; a label must be hashable"):
        k.RandomWalk()([plain])


@every
def test_graphs_with_labels_are_not_compared_with_graphs_without(kernel):
    """The error names a row of the graphs without labels, on either side, also at prediction."""
    X = random_graphs(3)
    plain = [nx.Graph(), *without_labels(X)]
    node = next(iter(plain[1].nodes))
    says = f"row 1: node {node!r} has no label, nor has any other node of these graphs.*Label both.*node_label=None"
    for pair in ((X, plain), (plain, X)):
        with pytest.raises(ObjectError, match=says):
            kernel(*pair)
    model = mc.KernelRidge(kernel).fit(X, [1.0, 2.0, 3.0])
    with pytest.raises(ObjectError, match=says):
        model.predict(plain)


def test_lengths_that_are_none_are_refused_by_row_and_edge():
    graph = nx.path_graph(3)
    for bad in (None, -1.0, "long", float("nan"), float("inf")):
        nx.set_edge_attributes(graph, {(0, 1): 1.0, (1, 2): bad}, "length")
        with pytest.raises(ObjectError, match=r"row 0: edge \(1, 2\) has 'length' = .*a length was expected"):
            k.ShortestPath(edge_weight="length")([graph])


def test_a_decay_beyond_the_limit_is_refused_with_it():
    X = [nx.path_graph(4), nx.complete_graph(6), nx.path_graph(2)]
    with pytest.raises(ObjectError, match=r"row 1: RandomWalk needs a decay below 0.04 .*got 0.05"):
        k.RandomWalk(0.05)(X)
    with pytest.raises(ObjectError, match="row 1: RandomWalk"):
        (2.0 * k.RandomWalk(0.05)).diag(X)
    with pytest.raises(ObjectError, match="row 1: RandomWalk"):
        (k.RandomWalk(0.05) + k.ShortestPath())(X[:1], X)
    with pytest.raises(ObjectError, match="row 1: RandomWalk"):
        mc.GaussianProcessRegressor(1.0 * k.RandomWalk(0.05)).fit(X, [1.0, 2.0, 3.0])
    assert np.isfinite(k.RandomWalk(0.0399)(X)).all()
    # Labels keep walks apart, and raise the limit.
    nx.set_node_attributes(X[1], {i: i for i in range(6)}, "label")
    assert np.isfinite(k.RandomWalk(0.19)(X[1:2])).all()


def test_constructions_without_meaning_are_refused():
    for bad in (-1, 1.5, True, "two"):
        with pytest.raises(ParameterError, match="iterations must be an integer, zero or more"):
            k.WeisfeilerLehman(bad)
    with pytest.raises(InvalidKernelError, match="base of WeisfeilerLehman must be a kernel on graphs"):
        k.WeisfeilerLehman(2, base=k.RBF())
    with pytest.raises(ParameterError, match="decay must be positive"):
        k.RandomWalk(0.0)
    with pytest.raises(ParameterError, match="node_label must be the name of an attribute"):
        k.ShortestPath(node_label=True)
