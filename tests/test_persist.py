"""Models in files: what comes back is what went in, and no file does anything but that."""

import dataclasses
import datetime
import hashlib
import json
import os
import pickle
import re
import stat
import subprocess
import sys

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from dateutil import tz
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy import stats

import mercer as mc
from examples import examples, inputs
from mercer import basis, persist, priors
from mercer import kernels as k
from mercer.core.errors import FileError
from mercer.core.parameters import nodes_of
from mercer.persist import load, save

STORABLE = [
    kernel
    for kernel in examples(5)
    if not any(node.runs_user_code for node in nodes_of(kernel))
] + [
    k.FeatureMap(basis.Polynomial(2), alpha=0.3),
    k.Seasonal(2.0, 0.7, 3.0).on(1) + k.Seasonal("year").on(2),
    k.ARMA([0.5, 0.2], [0.4, -0.3], step=0.5, origin=0.25).on(0) * k.Step(0.3, 0.8, True, start=0.1).on(1),
    k.FeatureMap(basis.Gaussian([[0.0] * 5, [1.0] * 5], width=[0.1, 1, 2, 3, 4])),
    k.RBF(1.1).warp(basis.Gaussian([[0.5] * 5])).modulate(basis.Gaussian([[0.1] * 5], 3.0)),
    k.FeatureMap(basis.Sigmoid([0.0, 1 / 3]), alpha=2.0).on(1),
    k.RBF(0.1 + 0.2, name="trend").with_priors(trend_lengthscale=priors.LogNormal(0, 1 / 3)) + k.White(1e-300).fix(),
    k.RBF().on(slice(None, -1, 2)) * k.Matern(nu=np.inf).on([0, -1]),
    k.Standard(1, [1, 2, 3, 4, 5], 0, 0, shift=0.5, scale=np.arange(1.0, 6.0)),
]  # fmt: skip

GRAPHS = [nx.path_graph(3), nx.cycle_graph(4), nx.star_graph(3)]
WORDS = ["red wine", "green tea", "", "red tea"]
POINTS = np.random.default_rng(3).normal(size=(12, 2))
OF_OBJECTS = [  # with rows that they read
    (k.Subsets(), [{"a", 1}, {1.5}, set(), {"a"}]), (k.Subsets(normalized=True).on(0), [[{1}], [{2}], [{1}], [{3}]]),
    (k.Tanimoto() + k.Tanimoto(k.Polynomial(2)), np.eye(4) + 1), (k.Categorical(), ["a", 1, ("a", 2), "a"]),
    (k.BagOfWords(idf=False, stop_words=["tea"], name="w"), WORDS), (k.BagOfWords(), WORDS),
    (2.0 * k.BagOfWords(ngrams=(1, 2), min_count=1).fit(WORDS).normalize(), WORDS),
    (k.Spectrum(2) + k.Spectrum(3, mismatches=1, alphabet="adegnrtw i"), WORDS),
    (k.Spectrum(2, mismatches=1).fit(WORDS), WORDS), (k.Subsequence(2, 0.4, up_to=True).fix("decay"), WORDS),
    (k.WeightedDegree(2), ["acgt", "accc", "tttt"]), (k.WeisfeilerLehman(2, k.ShortestPath()), GRAPHS),
    (k.RandomWalk(0.01, node_label=None) * k.WeisfeilerLehman(1), GRAPHS),
    (k.Density(stats.gamma(2.0, scale=1.5)), [1.0, 2.0, 3.0]), (k.Mixture(2, name="m"), POINTS),
    (k.Mixture([stats.norm(), stats.norm(1.0, 2.0)], weights=[0.2, 0.8]), [1.0, 2.0, 3.0]),
    (2.0 * k.Mixture(k.densities.GaussianMixture(2, "full")).fit(POINTS).free("means").normalize(), POINTS),
    (k.Latent(1).fit(POINTS).with_priors(noise=priors.LogNormal(0.0, 1.0)), POINTS),
    (k.HiddenMarkov(2).fit(WORDS) + k.Fisher(k.densities.HiddenMarkovModel(2), "transition"), WORDS),
    (k.Fisher(k.densities.Gaussian()).fit(POINTS), POINTS),
    (k.Fisher(k.densities.MultinomialMixture(2), information="diagonal").fit(POINTS**2), POINTS**2),
]  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.mercer"


def back(model, path):
    save(model, path)
    return load(path)


def same(a, b):
    """Equal to the bit, of the same types, all the way down."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, np.ndarray) and a.dtype != object:
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
        assert a.flags.f_contiguous == b.flags.f_contiguous
    elif isinstance(a, list | tuple | np.ndarray):
        assert getattr(a, "shape", None) == getattr(b, "shape", None)
        for x, z in zip(a, b, strict=True):
            same(x, z)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        same(list(a.values()), list(b.values()))
    elif isinstance(a, float | np.floating):
        assert np.float64(a).tobytes() == np.float64(b).tobytes()
    elif isinstance(a, k.Kernel) or a is None or isinstance(a, str | int | np.generic | frozenset):
        assert a == b
    elif isinstance(a, pd.DataFrame):
        pd.testing.assert_frame_equal(a, b)
    elif isinstance(a, pl.DataFrame):
        assert a.equals(b)
        assert a.schema == b.schema
    elif dataclasses.is_dataclass(a):  # its fields: what is cached beside them need not be stored
        same(*({field.name: getattr(x, field.name) for field in dataclasses.fields(x)} for x in (a, b)))
    else:
        same(vars(a), vars(b))


def data(n=20):
    X = np.random.default_rng(0).normal(size=(n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * X[:, 1] ** 2


def fitted(kernel=None, X=None, **settings):
    A, y = data()
    settings = {"progress": False, "max_iterations": 5, **settings}
    return mc.GaussianProcessRegressor(kernel, **settings).fit(A if X is None else X, y)


# -- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", STORABLE, ids=repr)
def test_kernels_come_back(kernel, path):
    new = back(kernel, path)
    assert new == kernel
    assert repr(new) == repr(kernel)
    assert repr(new.parameters) == repr(kernel.parameters)  # with what is fixed, and priors
    X = inputs(kernel, 4, 5)
    same(new(X), kernel(X))


@pytest.mark.parametrize(("kernel", "X"), OF_OBJECTS, ids=[repr(kernel) for kernel, _ in OF_OBJECTS])
def test_kernels_on_objects_come_back(kernel, X, path):
    new = back(kernel, path)
    assert new == kernel
    assert hash(new) == hash(kernel)
    assert repr(new) == repr(kernel)
    assert new.needs_fit == kernel.needs_fit
    same(new(X), kernel(X))


def test_every_kernel_class_can_be_stored_or_says_why_not():
    runs_code = {k.Custom}
    seen = {type(node) for kernel in [*STORABLE, *(kernel for kernel, _ in OF_OBJECTS)] for node in nodes_of(kernel)}
    known = {cls for cls in persist.CLASSES.values() if issubclass(cls, k.Kernel)}
    assert known - runs_code <= seen


@pytest.mark.parametrize("of", [pd.DataFrame, pl.DataFrame])
def test_a_model_of_named_columns_comes_back(of, path):
    X, _ = data()
    frame = of({"a": X[:, 0], "unused": ["x", None] * 10, "n": np.arange(20, dtype=np.int16), "b": X[:, 1] > 0})
    model = fitted(k.RBF().on("a") + k.Linear().on("b", "n"), frame)
    new = back(model, path)
    same(model, new)
    same(model.predict(frame, return_std=True), new.predict(frame, return_std=True))
    new.update(frame[:2], [0.0, 1.0])
    assert len(new.y_train_) == 22


MODELS = {
    "default": lambda: fitted(),
    "weights": lambda: fitted(k.Polynomial(2, 1.0)),
    "map, restarts": lambda: fitted(
        1.5 * k.RBF(name="r").with_priors(r_lengthscale=priors.Gamma(2, 1)) + k.White(0.1), learning="map", n_restarts=2
    ),
    "noise per row": lambda: fitted(k.RBF(), noise=np.linspace(0.1, 0.2, 20), normalize=False),
    "strings": lambda: fitted(k.Constant() + k.White(0.2), ["one", "tw\u00f6", ""] * 6 + ["\ud800", "'"]),
    "not fitted": lambda: mc.GaussianProcessRegressor(k.RBF() * 2.0, noise=[1, 2], random_state=np.int32(3)),
    "linear": lambda: mc.BayesianLinearRegression(basis.Polynomial(2)).fit(*data()),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_come_back(name, path):
    model = MODELS[name]()
    same(model, back(model, path))


OTHERS = {
    "ridge": mc.KernelRidge(alpha="loo"), "perceptron": mc.KernelPerceptron(k.RBF(0.3)),
    "neighbours": mc.KernelNeighborsClassifier(3),
    "discriminant": mc.KernelFisherDiscriminant(), "components": mc.KernelPCA(3),
    "density": mc.ParzenDensity(k.Matern(nu=1.5), width="loo", progress=False), "interpolator": mc.RBFInterpolator(),
    "network": mc.RBFNetwork(5), "regression": mc.NadarayaWatson(k.RBF(0.4), 0.1, learning=None),
    "mixture": mc.GaussianMixtureRegressor(2),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_machines_come_back(name, path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    model = OTHERS[name]
    target = np.where(X[:, 0] > 0, "a", "b") if hasattr(type(model), "_check_labels") else X[:, 0] ** 2
    model.fit(X, target)
    again = back(model, path)
    same(vars(model), vars(again))
    assert str(again) == str(model)
    asks = next(ask for ask in ("predict", "transform", "log_density") if hasattr(model, ask))
    same(getattr(model, asks)(X), getattr(again, asks)(X))


def test_predictions_in_another_process_are_the_same_to_the_bit(tmp_path):
    X, y = data()
    frame = pd.DataFrame(X, columns=["a", "b"])
    models = [fitted(), fitted(k.Polynomial(2, 1.0)), fitted(k.RBF(0.7).on("b") + k.Constant(), frame)]
    tasks = []
    for i, model in enumerate(models):
        save(model, tmp_path / f"{i}.mercer")
        Z = X[:7] + 0.1 if i < 2 else frame[:7] + 0.1
        model.update(Z, y[:7])
        tasks.append(np.stack([*model.predict(X if i < 2 else frame, return_std=True), model.loo().mean[:20]]))
    program = """
import sys, numpy as np, pandas as pd
from mercer.persist import load
X, y, folder = np.load(sys.argv[1] + "/X.npy"), np.load(sys.argv[1] + "/y.npy"), sys.argv[1]
for i in range(3):
    model = load(f"{folder}/{i}.mercer")
    A = X if i < 2 else pd.DataFrame(X, columns=["a", "b"])
    model.update(A[:7] + 0.1, y[:7])
    np.save(f"{folder}/{i}.npy", np.stack([*model.predict(A, return_std=True), model.loo().mean[:20]]))
"""
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    for i, expected in enumerate(tasks):
        same(np.load(tmp_path / f"{i}.npy"), expected)


def test_processes_come_back(path):
    X, y = data()
    prior = mc.GP(k.RBF() + k.White(0.1), mean=-0.0)
    same(prior, back(prior, path))
    for inputs_ in (X, X.tolist(), np.asfortranarray(X), X.astype(np.float32)[::2].repeat(2, axis=0), pl.DataFrame(X)):
        g = prior.condition(inputs_, y, noise=np.linspace(0.1, 1, 20))
        new = back(g, path)
        same(g, new)
        assert new.observed.factor.lower.flags.f_contiguous  # as LAPACK wants it
        same(g.moments(inputs_), new.moments(inputs_))
    mean = basis.Gaussian([[0.0, 0.0]])
    g = mc.GP(k.RBF(), mean=mean).condition(X, y, 0.1)
    same(g, back(g, path))
    same(g.prior_mean(X), load(path).prior_mean(X))
    assert back(mc.GP(k.Sigmoid(), allow_invalid=True), path).allow_invalid
    column = mc.GP(k.RBF()).condition(pd.Series(X[:, 0]), y, 0.1)
    same(back(column, path).mean(X[:, 0]), column.mean(X[:, 0]))


def test_only_half_of_the_factor_is_stored(path):
    X = np.linspace(0, 1, 300)
    save(mc.GP(k.RBF()).condition(X, X, 0.1), path)
    assert path.stat().st_size < 8 * (300 * 301 / 2 + 5 * 300) + 4000


def test_values_come_back(path):
    model = mc.GaussianProcessRegressor()
    kinds = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "e", "f", "d", "F", "D", ">f8", ">c16", ">i2"]
    rng = np.random.default_rng(0)
    model.values_ = [
        *[np.ascontiguousarray((100 * rng.normal(size=(3, 2, 4))).astype(kind)) for kind in kinds],
        *[np.array(3, dtype=kind) for kind in kinds],
        *[np.zeros((2, 0, 3), dtype=kind) for kind in kinds],
        *[np.dtype(kind).type(1.5) for kind in "?bBhHiIlLefd"],
        np.array([np.nan, -np.inf, -0.0, 5e-324]), np.asfortranarray(rng.normal(size=(3, 2))),
        0.1, -0.0, 1e308, 5e-324, 1e16, np.inf, -np.inf, np.nan, -np.nan, np.float64("nan"), np.float32("inf"),
        10**30, -1, True, None, "", "\ud800 \x00 \u2028", (), [], {}, ((1,), [2.0, (3, "x")]), {"a": {1: (None,)}},
        frozenset({"b", "a"}), np.array(["a", "longer"]), np.array([["x", None], [1, (2.5,)]], dtype=object),
    ]  # fmt: skip
    same(model, back(model, path))


def test_arrays_used_twice_are_stored_once(path):
    K = np.eye(200)
    save(k.Precomputed(K) + k.White(), path)
    once = path.stat().st_size
    kernel = k.Precomputed(K)
    save(kernel + kernel * k.Constant(), path)
    assert path.stat().st_size < once + 2000


def test_missing_values_and_odd_columns_of_frames(path):
    pandas = pd.DataFrame(
        {
            "a": np.arange(3.0),
            "n": pd.Series([1, None, 2], dtype="Int64"),
            "t": pd.Series([True, None, False], dtype="boolean"),
        }
    )
    polars = pl.DataFrame({"a": [0.0, 1.0, 2.0], "n": [1, None, 2], "t": [True, None, False]})
    for frame in (pandas, polars):
        g = mc.GP(k.RBF().on("a")).condition(frame, [0.0, 1.0, 2.0], 0.1)
        new = back(g, path)
        assert type(new.observed.X) is type(frame)
        np.testing.assert_array_equal(new.observed.X["n"], [1, np.nan, 2])
        np.testing.assert_array_equal(new.observed.X["t"], [1, np.nan, 0])
        same(new.mean(frame), g.mean(frame))
    numbered = pd.DataFrame(np.eye(3), index=[5, 6, 7])
    g = mc.GP(k.RBF()).condition(numbered, [0.0, 1.0, 2.0], 0.1)
    same(back(g, path).mean(numbered), g.mean(numbered))


def test_frames_where_a_library_is_missing(path, monkeypatch):
    X, y = data()
    g = mc.GP(k.RBF()).condition(pd.DataFrame(X, columns=["a", "b"]), y, 0.1)
    save(g, path)
    missing = {"pandas"}

    def importing(name):
        if name in missing:
            raise ImportError(name)

    monkeypatch.setattr(persist.importlib, "import_module", importing)
    new = load(path)
    assert isinstance(new.observed.X, pl.DataFrame)
    same(new.mean(new.observed.X), g.mean(g.observed.X))
    missing.add("polars")
    with pytest.raises(FileError, match="install pandas or polars"):
        load(path)


def test_kernels_of_scikit_learn_are_stored_as_ours(path):
    from sklearn.gaussian_process import kernels as sk

    model = mc.GaussianProcessRegressor(2.0 * sk.RBF(0.5) + sk.WhiteKernel(0.1))
    new = back(model, path)
    assert new.kernel == 2.0 * k.RBF(0.5) + k.White(0.1) or new.kernel == k.Constant(2.0) * k.RBF(0.5) + k.White(0.1)


# -- what cannot be stored --------------------------------------------------------------------------------------------


def squares(x):
    return x**2


class Mine(k.RBF):
    """A kernel whose formula is the user's."""


class MyRegressor(mc.GaussianProcessRegressor):
    """An estimator of the user's."""


def with_inputs(X):
    return mc.GP(k.Constant() + k.White()).condition(X, [0.0, 1.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: k.RBF() + k.FeatureMap(squares), r"Sum.parts\[1\].phi is a function of your own, squares, .*basis"),
        (lambda: k.Custom(lambda x, z: 1.0), r"Custom.f is a function"),
        (lambda: k.RBF().warp(squares), "Warp.phi is a function"),
        (lambda: k.RBF().modulate(squares), "Modulate.f is a function"),
        (lambda: mc.GP(k.RBF(), mean=squares), "GP.prior_mean.function is a function"),
        (lambda: mc.BayesianLinearRegression(squares), "BayesianLinearRegression.basis is a function"),
        (lambda: 2.0 * Mine(), r"Scale.inner is of type .*Mine"),
        (lambda: MyRegressor(), "MyRegressor is of type .*MyRegressor"),
        (lambda: mc.GaussianProcessRegressor(random_state=np.random.default_rng(0)), "random_state .*an integer"),
        (lambda: mc.GaussianProcessRegressor(noise=np.longdouble(1)), "noise is of type numpy.longdouble"),
        (lambda: mc.GaussianProcessRegressor(noise=np.ma.ones(3)), "noise is an array of masked values"),
        (lambda: with_inputs([{1j}, {2}]), r"GP.observed.X\[0\] is of type builtins.complex"),
        (lambda: with_inputs([1 + 2j, 2j]), r"GP.observed.X\[0\] is of type builtins.complex"),
        (lambda: with_inputs(np.array([(1,), (2,)], dtype="i4,")), "GP.observed.X is an array of "),
        (lambda: with_inputs(pd.DataFrame({"t": pd.Series([b"a", 1j], dtype=object)})), r"\[1\] is of .*complex"),
        (lambda: with_inputs([datetime.datetime(2020, 1, 1, tzinfo=tz.tzlocal()), 1]), r"X\[0\] has a time zone of"),
        (lambda: with_inputs(pl.DataFrame({"t": [0, 1]}).to_arrow()), "a frame of pyarrow"),
        (lambda: [k.RBF()], "save takes an estimator"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_named(make, message, path):
    if "arrow" in message:
        pytest.importorskip("pyarrow")
    with pytest.raises(mc.ParameterError, match=message):
        save(make(), path)
    assert not os.listdir(path.parent)


def test_what_is_nested_too_deeply_is_refused(path):
    kernel = k.RBF()
    for _ in range(400):
        kernel = persist.algebra.Exp(kernel)
    with pytest.raises(mc.ParameterError, match="cannot be stored"):
        save(kernel, path)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_writing_is_all_or_nothing(path, tmp_path, monkeypatch):
    with pytest.raises(FileError, match="there is no folder .*nowhere"):
        save(k.RBF(), tmp_path / "nowhere" / "x")
    save(k.RBF(2.0), path)
    path.chmod(0o640)

    def failing(*args):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(persist.os, "fsync", failing)
        with pytest.raises(FileError, match="no space left"):
            save(k.RBF(3.0), path)
    assert load(path) == k.RBF(2.0)
    save(k.RBF(3.0), str(path))
    assert load(str(path)) == k.RBF(3.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(FileError, match="cannot be written"):
        save(k.RBF(), tmp_path)
    assert os.listdir(tmp_path) == [path.name]
    plain = tmp_path / "plain"
    plain.touch()
    save(k.RBF(), tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode


def test_any_changed_byte_is_noticed(path):
    save(mc.GP(k.RBF(0.3)).condition([0.0, 1.0], [1.0, 2.0], 0.1), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        with pytest.raises(FileError):
            load(path)
    # JSON does not mind other white space, nor the letters of a digest their case.
    header = 8 + int.from_bytes(whole[:8], "little")
    others = [whole[:header].replace(b" ", b"\t") + whole[header:], whole.replace(b'":"', b'"\n"'), whole + b" "]
    others.append(re.sub(rb'(?<="sha256":")[^"]*', lambda m: m.group().upper(), whole))
    for changed in others:
        if changed != whole:
            path.write_bytes(changed)
            with pytest.raises(FileError):
                load(path)
    path.write_bytes(whole)
    assert load(path).observed.y[1] == 2.0


def test_truncated_files(path):
    save(fitted(), path)
    whole = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, 1000, len(whole) // 2, len(whole) - 8, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FileError):
            load(path)


def test_foreign_files(path, tmp_path):
    with pytest.raises(FileError, match="there is no file"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(path)
    with pytest.raises(FileError, match="cannot be read"):
        load(tmp_path)
    save_file({"weights": np.ones(3)}, path)
    foreign = [path.read_bytes(), b"", b"kernel: rbf\n" * 20, pickle.dumps(print), b"\xff" * 100, b"\x00" * 100]
    foreign += [(20).to_bytes(8, "little") + text.ljust(20) for text in (b"[]", b"{}", b"1", b'{"__metadata__":1}')]
    deep = b"[" * 100_000
    foreign.append(len(deep).to_bytes(8, "little") + deep)
    for content in foreign:
        path.write_bytes(content)
        with pytest.raises(FileError, match="not a model stored by mercer.save"):
            load(path)


def handmade(tree, path, tensors=None, **metadata):
    """A file with a right SHA-256, whatever it holds, written by other means."""
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    metadata = {"format": "mercer-model", "version": "1", "mercer": "0", "sha256": "0" * 64, **metadata}
    save_file({"tree": np.frombuffer(text, np.uint8), **(tensors or {})}, path, metadata)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1))


def thing(name, **fields):
    return {"is": "object", "class": name, "fields": fields}


def array(name, **other):
    return {"is": "array", "tensor": name, "dtype": "<f8", "order": "C", **other}


def nested(depth):
    return b'{"is":"tuple","items":[' * depth + b"]}" * depth


OBSERVED = thing(
    "parts.Observed", X=array("x"), y=array("x"), noise=array("x"), a=array("x"),
    factor=thing("parts.Cholesky", packed=array("x"), jitter=0.0),
)  # fmt: skip
PRIOR = {"kernel": thing("kernels.RBF"), "prior_mean": thing("parts.MeanFunction"), "allow_invalid": False}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (thing("os.system", command="touch run"), "'os.system', which is not a class"),
        (thing("kernels.Kernel"), "not a class"),
        (thing("builtins.eval", source="1"), "not a class"),
        (thing(["kernels.RBF"]), "TypeError"),
        (thing("kernels.RBF", lengthscale=-1.0), "positive"),
        (thing("kernels.RBF", lengthscale=array("x", dtype="|O8")), "unknown type"),
        (thing("kernels.RBF", lengthscale=array("y")), "does not contain"),
        (thing("kernels.RBF", length=1.0), "length"),
        (thing("kernels.RBF", fixed=["lengthscale"]), "do not fit"),
        (thing("kernels.RBF", fixed={"is": "frozenset", "items": ["nu"]}), "do not fit"),
        (thing("kernels.RBF", priors=[["lengthscale", "normal"]]), "do not fit"),
        (thing("algebra.Sum", parts={"is": "tuple", "items": [1, 2]}), "do not fit"),
        (thing("algebra.Sum", parts=7), "TypeError"),
        (thing("algebra.Exp", inner="print"), "a kernel was expected"),
        (thing("kernels.FeatureMap", phi=thing("parts.RowFunction", module=None, function="print")), "do not fit"),
        (thing("kernels.Custom", f="print"), "function"),
        (thing("priors.Normal"), "no estimator, GP or kernel"),
        ([thing("kernels.RBF")], "no estimator, GP or kernel"),
        ({"is": "module", "name": "os"}, "not understood"),
        ({"class": "kernels.RBF"}, "not understood"),
        ({**thing("kernels.RBF"), "state": {"block": 1}}, "which files may not set"),
        ({**thing("models.GaussianProcessRegressor"), "state": {"predict": 1}}, "which files may not set"),
        ({**thing("models.GaussianProcessRegressor"), "state": {"__class__": 1}}, "which files may not set"),
        ({**thing("models.GaussianProcessRegressor"), "state": [1]}, "AttributeError"),
        (thing("models.GaussianProcessRegressor", kernle=1), "kernle"),
        (thing("models.GP", **PRIOR), "observed"),
        (thing("models.GP", **PRIOR, observed=1), "do not fit"),
        (thing("models.GP", **PRIOR, observed=OBSERVED), "do not fit"),
        (thing("models.GP", **PRIOR, observed=thing("parts.Observed", X=1)), "TypeError"),
        (thing("parts.Cholesky", packed=array("two"), jitter=0.0), "triangular"),
        ({"is": "objects", "shape": [10**18], "items": []}, "ValueError"),
        ({"is": "float", "bits": "zz"}, "ValueError"),
        ({"is": "dict", "pairs": [[[], 1]]}, "TypeError"),
        ({"is": "set", "items": [[1]]}, "TypeError"),
        ({"is": "same", "number": 3}, "KeyError"),
        (thing("parts.Corpus", words=["a"], frequencies=[1], n=1), "do not fit"),
        (thing("parts.Corpus", words={"is": "tuple", "items": ["b", "a"]}, frequencies=[1, 1], n=1), "do not fit"),
        (thing("parts.Corpus", words={"is": "tuple", "items": ["a", "b"]}, frequencies=[1, 2], n=1), "do not fit"),
        (thing("kernels.BagOfWords", corpus="print"), "set by fit"),
        ({"is": "frame", "library": "pandas", "columns": [["a", {"is": "column", "kind": "x", "items": []}]]}, "kind"),
        ({"is": "frame", "library": "os", "columns": [["a", [1]], ["b", [1, 2]]]}, "cannot be read"),
        (b"not JSON", "JSONDecodeError"),
        (b"\x80{}", "UnicodeDecodeError"),
        (nested(300), "cannot be read"),
        (nested(100_000), "RecursionError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "tree",
)  # fmt: skip
def test_wrong_trees_are_refused(tree, message, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handmade(tree, path, {"x": np.ones(3), "two": np.ones(2)})
    with pytest.raises(FileError, match=message):
        load(path)
    assert os.listdir(tmp_path) == [path.name]


def test_handmade_files_that_are_right_are_read(path):
    handmade(thing("kernels.RBF", lengthscale=0.5), path)
    assert load(path) == k.RBF(0.5)
    handmade(thing("models.GP", **PRIOR, observed=None), path)
    assert load(path).variance([0.0]) == 1.0


def test_other_versions(path):
    for version, message in [("2", "version 2 .*mercer 9.9"), ("0", "version 0"), ("one", "not a model")]:
        handmade(thing("kernels.RBF"), path, version=version, mercer="9.9")
        with pytest.raises(FileError, match=message):
            load(path)
    handmade(thing("kernels.RBF"), path, format="other")
    with pytest.raises(FileError, match="not a model"):
        load(path)
    save_file({"tree": np.ones(3)}, path, {"format": "mercer-model", "version": "1"})
    with pytest.raises(FileError, match="no SHA-256"):
        load(path)


def test_a_tree_changed_anywhere_is_read_or_refused(path):
    """Whatever is put in place of any part of a tree, sealed again, the answer is a model or a FileError."""
    kernel = k.Polynomial(2, 1.0) + k.RBF(name="r").on([0]).with_priors(r_lengthscale=priors.Gamma(2, 1))
    save(fitted(kernel, learning="map"), path)
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tree = json.loads(tensors.pop("tree").tobytes())
    tree["state"]["history_"] = tree["state"]["optima_"] = []
    places = []

    def visit(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []:
            places.append((node, key))
            visit(node[key])

    visit(tree)
    rng = np.random.default_rng(0)
    junk = [None, -1, 1e9, "x", [], [[]], {}, {"is": "tuple", "items": []}, array("0"), thing("kernels.RBF")]
    refused = 0
    for i in rng.permutation(len(places))[:150]:
        node, key = places[i]
        kept, node[key] = node[key], junk[rng.integers(len(junk))]
        handmade(tree, path, tensors)
        node[key] = kept
        try:
            load(path)
        except FileError:
            refused += 1
    assert refused > 50
