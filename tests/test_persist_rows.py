"""Rows of models in files: sets, lists of words and graphs as data, with the types of their parts."""

import copy
import datetime
import hashlib
import importlib
import json
import pickle
import zoneinfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import mercer as mc
from mercer import kernels as k
from mercer import persist
from mercer.core import graphs
from mercer.core.errors import FileError
from mercer.kernels.base import register
from mercer.kernels.structured.rows import CountKernel, Counts, Vocabulary
from mercer.persist import load, save


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.mercer"


def back(rows, path):
    """Rows written to a file and read again, as a model holds them."""
    model = mc.GaussianProcessRegressor()
    model.rows_ = rows
    save(model, path)
    return load(path).rows_


def typed(value):
    """A value with the types of all its parts, to compare without 1 == 1.0 == True."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [typed(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, map(typed, value)))
    if isinstance(value, dict):
        return "dict", [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, np.ndarray):
        return "array", value.dtype, value.shape, typed(value.ravel().tolist())
    if graphs.kind_of(value):
        neighbours = [(node, list(others.items())) for node, others in value.adjacency()]
        before = [(node, list(value.pred[node])) for node in value] if value.is_directed() else []
        return type(value).__name__, typed([value.graph, list(value.nodes(data=True)), neighbours, before])
    return type(value).__name__, repr(value)


SETS = [
    {"a", "b"}, set(), {1, "1", 2.5, None, ("x", 1.0, True)}, {1.0}, {True}, frozenset({"1", (1, (2.0, "\ud800"))}),
    {np.int64(3), -0.0, np.inf, float("nan")}, {frozenset({1}), frozenset()},
]  # fmt: skip


def test_sets_come_back_with_the_types_of_their_elements(path):
    objects = np.empty(len(SETS), dtype=object)
    objects[:] = SETS
    for rows in (SETS, objects, [["red", "wine"], [], ("a",)], ["text", "", "'"], np.array(["a", "bc"])):
        assert typed(back(rows, path)) == typed(rows)
        assert typed(copy.deepcopy(rows)) == typed(rows)


def test_files_do_not_depend_on_the_order_of_sets(path):
    trees = set()
    for order in (1, -1):
        back([set(["red", "wine", "green", "tea", 3, 4.5, None][::order])], path)
        with safe_open(path, framework="numpy") as tensors:
            trees.add(tensors.get_tensor("tree").tobytes())
    assert len(trees) == 1


def test_rows_used_twice_are_stored_once_and_stay_one(path):
    text = "zebra"
    objects, frame = np.array([text, None], dtype=object), pl.DataFrame({"t": [text]})
    one, two, also, third, fourth = back([objects, objects, np.array([text]), frame, frame], path)
    assert one is two
    assert third is fourth
    assert also.dtype.kind == "U"
    assert path.read_bytes().count(text.encode()) == 3


# -- models ----------------------------------------------------------------------------------------------------------

DOCUMENTS = ["red wine", "green tea", "", "red tea and red wine", "wine", "tea, tea", "green wine", "and red"] * 3
COLOURS = [set(document.split()) | {len(document)} for document in DOCUMENTS]
NEW = ["unseen red wine", "", "green"]
LABELS = np.array(["red" if "red" in document else "other" for document in DOCUMENTS])
COUNTS = np.array([float(len(document)) for document in DOCUMENTS]) + np.linspace(0, 1, 24)

MODELS = {
    "regression, dense": (mc.GaussianProcessRegressor, {"solver": "dense", "progress": False, "max_iterations": 2}),
    "regression, weights": (mc.GaussianProcessRegressor, {"solver": "weights", "progress": False, "max_iterations": 2}),
    "classification": (mc.GaussianProcessClassifier, {"progress": False, "max_iterations": 2}),
    "ridge": (mc.KernelRidge, {}),
    "components": (mc.KernelPCA, {"n_components": 2}),
    "discriminant": (mc.KernelFisherDiscriminant, {}),
}
KERNELS = {
    "words": (1.5 * k.BagOfWords(sublinear=True).normalize() + k.Constant(), DOCUMENTS, NEW),
    "sets": (0.5 * k.Subsets(normalized=True), COLOURS, [{"red", 8}, set(), {"unseen"}]),
}


def answers(model, X):
    if hasattr(model, "predict_proba"):
        return model.predict_proba(X)
    if hasattr(model, "transform"):
        return model.transform(X)
    return model.predict(X, return_std=True) if "Process" in type(model).__name__ else model.predict(X)


@pytest.mark.parametrize("rows", KERNELS)
@pytest.mark.parametrize("name", MODELS)
def test_models_on_objects_come_back(name, rows, path):
    kind, settings = MODELS[name]
    kernel, X, new = KERNELS[rows]
    if rows == "sets" and settings.get("solver") == "weights":
        pytest.skip("it has no finite features")
    y = LABELS if hasattr(kind, "_check_labels") or kind is mc.KernelFisherDiscriminant else COUNTS
    model = kind(kernel=kernel, **settings).fit(X, y)
    save(model, path)
    again = load(path)
    assert again.kernel_ == model.kernel_
    assert not again.kernel_.needs_fit
    for Z in (new, X):
        np.testing.assert_array_equal(answers(again, Z), answers(model, Z))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(answers(other, new), answers(model, new))


def test_a_process_on_objects_comes_back(path):
    g = mc.GP(k.BagOfWords()).condition(DOCUMENTS, COUNTS, 0.1)
    save(g, path)
    np.testing.assert_array_equal(load(path).moments(NEW), g.moments(NEW))
    save(g.kernel, path)
    assert load(path) == g.kernel


# -- dates and bytes -------------------------------------------------------------------------------------------------

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
TIMES = [
    datetime.date(1, 2, 3), datetime.datetime(2020, 1, 2, 3, 4, 5, 678901), datetime.datetime.max,
    datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), datetime.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN),
    datetime.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone(-datetime.timedelta(hours=3, seconds=7))),
    datetime.time(3, 4, 5, 678901, fold=1), datetime.time(3, tzinfo=datetime.UTC),
    datetime.timedelta(days=-3, seconds=2, microseconds=1), np.datetime64("2020-01-02"), np.datetime64(7, "3ns"),
    np.datetime64("NaT"), np.datetime64("2020", "Y"), np.timedelta64(5, "D"), np.timedelta64("NaT"),
    pd.Timestamp("2020-01-02 03:04:05.123456789"), pd.Timestamp("2020-01-02", tz="Europe/Berlin"),
    pd.Timestamp("9999-01-02").as_unit("s"), b"", b"\x00\xff",
]  # fmt: skip


@pytest.mark.parametrize("value", TIMES, ids=repr)
def test_dates_and_bytes_come_back(value, path):
    new = back(value, path)
    assert typed(new) == typed(value)
    assert new == value or value != value
    assert getattr(new, "fold", 0) == getattr(value, "fold", 0)
    assert getattr(new, "dtype", None) == getattr(value, "dtype", None)
    assert getattr(new, "unit", None) == getattr(value, "unit", None)
    assert typed(back([value, (value, {1: value})], path)) == typed([value, (value, {1: value})])


def test_sets_and_arrays_of_dates_and_bytes_come_back(path):
    found = {datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2), b"1", "1", 1, np.datetime64("2020-01-02")}
    assert typed(back(found, path)) == typed(found)
    days = np.array(["2020-01-02", "NaT", "1066-10-14"], dtype="M8[D]")
    for values in (days, days.astype(">M8[us]"), days - days[0], np.array([[b"ab", b"c"]]), np.zeros((2, 0), "M8[s]"),
                   np.asfortranarray(np.arange(6).reshape(2, 3).astype("m8[h]"))):  # fmt: skip
        new = back(values, path)
        assert new.dtype == values.dtype
        assert new.shape == values.shape
        assert new.tobytes("A") == values.tobytes("A")


def test_wrong_dates_are_refused(path):
    for node in [
        {"is": "date", "text": "2020-13-01"}, {"is": "time", "dtype": "<O8", "value": 1},
        {"is": "time", "dtype": "<M8[parsec]", "value": 1}, {"is": "datetime", "text": "x", "zone": None, "fold": 0},
        {"is": "datetime", "text": "2020-01-01", "zone": "../../etc/passwd", "fold": 0}, {"is": "bytes", "hex": "x"},
        {"is": "timestamp", "value": {"is": "date", "text": "2020-01-01"}, "zone": 1}, {"is": "duration", "parts": []},
    ]:  # fmt: skip
        with pytest.raises(Exception):  # noqa: B017 - `load` makes a FileError of it
            persist._Reader({}.__getitem__).read(node)


def frame_of_dates(of):
    start = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901)
    days = [start + datetime.timedelta(days=i) for i in range(3)]
    columns = {"day": [day.date() for day in days], "moment": [days[0], None, days[2]], "bytes": [b"a", b"", None]}
    return of(columns | {"passed": [day - start for day in days], "x": [1.0, 2.0, 3.0]})


def test_columns_of_dates_in_pandas_come_back(path):
    frame = frame_of_dates(pd.DataFrame)
    moments = frame["moment"]
    for name, column in {
        "ns": moments.astype("datetime64[ns]"), "s": moments.astype("datetime64[s]"),
        "berlin": moments.dt.tz_localize("Europe/Berlin"), "utc": moments.dt.tz_localize("UTC"),
        "offset": moments.dt.tz_localize(datetime.timezone(datetime.timedelta(hours=2))),
        "category": frame["moment"].astype("category"),
    }.items():  # fmt: skip
        frame[name] = column
    new = back(frame, path)
    pd.testing.assert_frame_equal(new, frame)
    assert typed(new["day"].tolist()) == typed(frame["day"].tolist())


def test_columns_of_dates_in_polars_come_back(path, monkeypatch):
    frame = frame_of_dates(pl.DataFrame).with_columns(
        ns=pl.col("moment").cast(pl.Datetime("ns")), ms=pl.col("moment").cast(pl.Datetime("ms")),
        berlin=pl.col("moment").dt.replace_time_zone("Europe/Berlin"),
        lists=pl.Series([[datetime.date(2020, 1, 2)], [], None]), clock=pl.col("moment").dt.time(),
        nanoseconds=pl.Series([1, None, 86_399_999_999_999]).cast(pl.Time),
    )  # fmt: skip
    new = back(frame, path)
    assert new.schema == frame.schema
    assert new.equals(frame)
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: real(name if name != "polars" else "no such module"))
    other = load(path).rows_
    assert other["moment"].tolist()[2] == frame["moment"][2]
    assert other["clock"].tolist() == frame["clock"].to_list()
    assert str(other["berlin"].dtype.tz) == "Europe/Berlin"


@pytest.mark.parametrize(
    "of", [list, np.array, lambda days: pd.DataFrame({"day": days}), lambda days: pl.DataFrame({"day": days})]
)
def test_models_of_dates_as_categories_come_back(of, path):
    days = [datetime.date(2020, 1, 1 + i % 3) for i in range(9)]
    model = mc.GaussianProcessRegressor(1.0 * k.Categorical()).fit(of(days), np.arange(9.0) % 3)
    save(model, path)
    np.testing.assert_array_equal(load(path).predict(of(days)), model.predict(of(days)))


# -- frames ----------------------------------------------------------------------------------------------------------


def test_columns_of_pandas_come_back(path):
    frame = pd.DataFrame(
        {
            "n": [1.0, 2.0, 3.0],
            "text": ["a", "b", None],
            "set": [{1, "1"}, {1.0}, {True}],
            "words": [["a", "b"], [], ["c"]],
            "pair": [("a", 1), ("b", 2), ("c", 3)],
            "mixed": pd.Series(["a", 1, None], dtype=object),
            "category": pd.Categorical(["x", None, "y"], categories=["z", "y", "x"]),
            "ordered": pd.Categorical(["x", "y", "x"], categories=["y", "x"], ordered=True),
            "codes": pd.Categorical([1, 2, 1], categories=[2, 1, 3]),
        }
    )
    frame[7] = [True, False, True]
    new = back(frame, path)
    pd.testing.assert_frame_equal(new, frame)
    for name in ("set", "words", "pair", "mixed"):
        assert typed(new[name].tolist()) == typed(frame[name].tolist())
    pd.testing.assert_frame_equal(copy.deepcopy(frame), frame)


def test_columns_of_polars_come_back(path):
    frame = pl.DataFrame(
        {
            "n": [1.0, 2.0, 3.0],
            "text": ["a", "b", None],
            "set": pl.Series([{1, "1"}, {1.0}, None], dtype=pl.Object),
            "words": pl.Series([["a", "b"], [], None], dtype=pl.List(pl.String)),
            "numbers": pl.Series([[1], [2, 3], []], dtype=pl.List(pl.Int16)),
            "category": pl.Series(["x", None, "y"], dtype=pl.Categorical),
            "ordered": pl.Series(["x", "y", "x"], dtype=pl.Enum(["z", "y", "x"])),
        }
    )
    new = back(frame, path)
    assert new.schema == frame.schema
    for name in frame.columns:
        assert typed(new[name].to_list()) == typed(frame[name].to_list())


def test_columns_of_pandas_without_pandas(path, monkeypatch):
    frame = pd.DataFrame(
        {
            "set": [{1}, {2}],
            "words": [["a"], ["b", "c"]],
            "category": pd.Categorical(["x", None], categories=["y", "x"]),
            "ordered": pd.Categorical(["x", "y"], ordered=True),
            "codes": pd.Categorical([1, 2]),
        }
    )
    back(frame, path)
    real = importlib.import_module

    def without_pandas(name):
        if name == "pandas":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without_pandas)
    new = load(path).rows_
    assert isinstance(new, pl.DataFrame)
    assert new["category"].to_list() == ["x", None]
    assert new["codes"].to_list() == [1, 2]
    assert new["words"].to_list() == [["a"], ["b", "c"]]


@pytest.mark.parametrize("of", [pd.DataFrame, pl.DataFrame])
def test_a_model_of_a_mixed_table_comes_back(of, path):
    table = of({"text": DOCUMENTS, "kind": LABELS.tolist(), "n": np.arange(24.0)})
    if of is pd.DataFrame:
        table["kind"] = table["kind"].astype("category")
        table["set"] = COLOURS
    else:
        kind = pl.Series("kind", LABELS, dtype=pl.Categorical)
        table = table.with_columns(kind, pl.Series("set", COLOURS, dtype=pl.Object))
    kernel = (
        1.0 * k.BagOfWords().on("text").normalize() + 1.0 * k.Categorical().on("kind") * k.RBF().on("n")
        + 0.1 * k.Subsets(normalized=True).on("set")
    )  # fmt: skip
    model = mc.GaussianProcessRegressor(kernel, learning=None, noise=0.1, progress=False).fit(table, COUNTS)
    save(model, path)
    np.testing.assert_array_equal(load(path).predict(table, return_std=True), model.predict(table, return_std=True))


# -- graphs ----------------------------------------------------------------------------------------------------------


def drawn(nx, kind, seed):
    """A graph built and changed in random order, so that neighbours are in no particular one."""
    rng, graph = np.random.default_rng(seed), getattr(nx, kind)(name="g", size=2.5)
    nodes = ["a", 1, 2.5, ("b", 1), "1", False, ("b", (2, "c"))]
    for i in rng.permutation(len(nodes)):
        graph.add_node(nodes[i], label=str(i), position=(float(i), 1), extra=[1, {"a": None}])
    for _ in range(25):
        u, v = (nodes[i] for i in rng.integers(0, len(nodes), size=2))
        if graph.has_edge(u, v) and rng.random() < 0.4:
            graph.remove_edge(u, v)
        else:
            graph.add_edge(u, v, label=rng.choice(["-", "="]).item(), weight=float(rng.normal()))
    graph.remove_node(nodes[0])
    return graph


@pytest.mark.parametrize("kind", graphs.KINDS)
def test_graphs_come_back(kind, path):
    nx = pytest.importorskip("networkx")
    rows = [drawn(nx, kind, seed) for seed in range(10)] + [getattr(nx, kind)()]
    new = back(rows, path)
    assert typed(new) == typed(rows)
    assert typed(copy.deepcopy(rows)) == typed(rows)
    new[0].add_edge("a new", "edge")  # not a view, not frozen
    objects = np.empty(len(rows), dtype=object)
    objects[:] = rows
    assert typed(back(objects, path)) == typed(objects)
    for frame in (pd.DataFrame({"g": rows, "n": 1.0}), pl.DataFrame({"g": pl.Series(rows, dtype=pl.Object)})):
        again = back(frame, path)
        assert type(again) is type(frame)
        assert typed(list(again["g"])) == typed(rows)


def test_views_and_attributes_of_arrays_come_back(path):
    nx = pytest.importorskip("networkx")
    graph = nx.path_graph(6)
    graph.nodes[0]["vector"] = np.arange(3.0)
    graph.graph[1] = {"set": {1, 2.0}}
    view = graph.subgraph([3, 0, 1, 2])
    one, two = back([graph, view], path)
    np.testing.assert_array_equal(one.nodes[0]["vector"], np.arange(3.0))
    assert typed(one.graph) == typed(graph.graph)
    assert set(two.edges) == set(view.edges)
    assert list(two) == list(view)


def test_graphs_that_no_additions_give_are_stored_all_the_same(path):
    nx = pytest.importorskip("networkx")
    graph = nx.Graph([("a", "b"), ("b", "c"), ("c", "a")])
    for node, order in (("a", "bc"), ("b", "ca"), ("c", "ab")):  # each edge is before the next, in a circle
        kept = dict(graph._adj[node])
        graph._adj[node].clear()
        graph._adj[node].update((other, kept[other]) for other in order)
    (new,) = back([graph], path)
    assert nx.utils.graphs_equal(new, graph)


def test_what_graphs_cannot_hold_is_named(path):
    nx = pytest.importorskip("networkx")
    graph = nx.Graph()
    graph.add_node("a", colour=1j)
    with pytest.raises(mc.ParameterError, match=r"rows_\[0\]\['a'\]\['colour'\] is of type builtins.complex"):
        back([graph], path)

    class Mine(nx.Graph):
        pass

    with pytest.raises(mc.ParameterError, match="is of type .*Mine"):
        back([Mine()], path)


def test_graphs_need_networkx(path, monkeypatch):
    nx = pytest.importorskip("networkx")
    back([nx.path_graph(3)], path)
    real = importlib.import_module

    def without_networkx(name):
        if name == "networkx":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without_networkx)
    with pytest.raises(FileError, match="pip install networkx"):
        load(path)


def test_wrong_graphs_are_refused(path):
    pytest.importorskip("networkx")
    right = {
        "is": "graph",
        "kind": "Graph",
        "attributes": [],
        "nodes": [["a", []], ["b", []]],
        "edges": [[0, 1, None, []]],
    }
    assert sealed(right, path).number_of_edges() == 1
    wrong = {
        "kind": ["os", "Graph.copy", None], "attributes": [[1], 3, [[[1], 2]]],
        "nodes": [[["a", []], ["a", []]], [[None, []]], [["a"]], [[["a"], []]]],
        "edges": [
            [[0, 2, None, []]], [[0, -1, None, []]], [[0, True, None, []]], [[0, 1, None, []]] * 2, [[0, 1]],
            [["a", "b", None, []]],
        ],
    }  # fmt: skip
    for field, values in wrong.items():
        for value in values:
            with pytest.raises(FileError):
                sealed({**right, field: value}, path)


def sealed(node, path):
    """Read a handmade part of a file with a right SHA-256."""
    model = {"is": "object", "class": "models.GaussianProcessRegressor", "fields": {}, "state": {"rows_": node}}
    metadata = {"format": "mercer-model", "version": "1", "mercer": "0", "sha256": "0" * 64}
    save_file({"tree": np.frombuffer(json.dumps(model).encode(), np.uint8)}, path, metadata)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1))
    return load(path).rows_


@register
class Degrees(CountKernel):
    """Nodes by their number of neighbours and the first neighbour's label: depends on the order of neighbours."""

    def counts(self, objects):
        numbers, rows = {}, []
        for graph in objects:
            rows.append([(len(others), graph.nodes[next(iter(others))]["label"]) if others else 0
                         for _, others in graph.adjacency()])  # fmt: skip
            for feature in rows[-1]:
                numbers.setdefault(feature, len(numbers))
        matrix = np.zeros((len(rows), len(numbers)))
        for i, row in enumerate(rows):
            np.add.at(matrix[i], [numbers[feature] for feature in row], 1)
        return Counts(matrix, Vocabulary(list(numbers)))


def test_models_of_graphs_come_back(path):
    nx = pytest.importorskip("networkx")
    rows = [drawn(nx, "Graph", seed) for seed in range(16)]
    y = np.array([graph.number_of_edges() for graph in rows], dtype=float)
    kernel = Degrees().normalize()
    model = mc.GaussianProcessRegressor(kernel, solver="dense", learning=None, noise=0.1, progress=False)
    model.fit(rows[:12], y[:12])
    save(model, path)
    again = load(path)
    np.testing.assert_array_equal(again.predict(rows, return_std=True), model.predict(rows, return_std=True))
    again.update(rows[12:14], y[12:14])
    assert np.isfinite(again.predict(rows)).all()
