"""Categories: equal or not, new ones too, the same in every container."""

import copy
import datetime
import pickle

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.errors import DataError, ObjectError

VALUES = {
    "text": ["a", "b", "", "a", "c"],
    "numbers": [1, 2.0, 1.0, -1, 2],
    "booleans": [True, False, True, True, False],
    "tuples": [("a", 1), ("a", 2), ("a", 1), ("b", 1), ()],
    "mixed": ["1", 1, (1,), frozenset({1}), None.__class__],
    "dates": [datetime.date(2020, 1, day) for day in (1, 2, 1, 3, 2)],
}


@pytest.mark.parametrize("name", VALUES)
def test_is_one_for_equal_values_else_zero(name):
    values = VALUES[name]
    expected = np.array([[float(a == b) for b in values] for a in values])
    kernel = k.Categorical()
    np.testing.assert_array_equal(kernel(values), expected)
    np.testing.assert_array_equal(kernel(values[:3], values[2:]), expected[:3, 2:])
    np.testing.assert_array_equal(kernel.diag(values), 1.0)
    F = kernel.features(values)
    np.testing.assert_array_equal(F @ F.T, expected)
    assert mc.check_kernel(kernel, values).passed


def test_many_values():
    values = np.random.default_rng(0).integers(0, 40, size=300)
    expected = (values[:, None] == values[None, :]).astype(float)
    np.testing.assert_array_equal(k.Categorical()(values), expected)
    np.testing.assert_array_equal(k.Categorical()([f"v{v}" for v in values], [f"v{v}" for v in values]), expected)


def test_is_the_same_in_every_container():
    values = ["a", "b", "a"]
    kernel = k.Categorical()
    expected = kernel(values)
    containers = [
        np.array(values), np.array(values, dtype=object), np.array(values)[:, None], [["a"], ["b"], ["a"]],
        pd.DataFrame({"c": values}), pl.DataFrame({"c": values}), pd.DataFrame({"c": pd.Categorical(values)}),
        pl.DataFrame({"c": pl.Series(values, dtype=pl.Categorical)}), pd.Series(values), pl.Series(values),
    ]  # fmt: skip
    for X in containers:
        np.testing.assert_array_equal(kernel(X), expected)
        np.testing.assert_array_equal(kernel(values, X), expected)
    codes = [1, 2, 1]
    for X in (np.array(codes), np.array(codes, float)[:, None], jnp.array(codes), pd.DataFrame({"c": codes})):
        np.testing.assert_array_equal(kernel(codes, X), expected)


@pytest.mark.parametrize("of", [pd.DataFrame, pl.DataFrame])
def test_several_columns_are_one_combination(of):
    frame = of({"a": ["x", "x", "y", "x"], "b": [1, 2, 1, 1], "n": [0.0, 1.0, 2.0, 3.0]})
    both = k.Categorical().on(["a", "b"])
    np.testing.assert_array_equal(both(frame), (k.Categorical().on("a") * k.Categorical().on("b"))(frame))
    matrix = np.array([["x", 1], ["x", 2], ["y", 1], ["x", 1]], dtype=object)
    np.testing.assert_array_equal(k.Categorical().on([0, 1])(matrix), both(frame))


def test_the_exchangeable_kernel():
    K = (2.0 * k.Categorical() + 0.5)(["a", "b", "a"], ["a", "new"])
    np.testing.assert_allclose(K, [[2.5, 0.5], [0.5, 0.5], [2.5, 0.5]])


def test_new_categories_are_predicted_as_the_rest():
    rng = np.random.default_rng(0)
    solvent = np.repeat(["water", "ethanol", "hexane"], 8)
    x = rng.uniform(-2, 2, size=24)
    y = np.repeat([0.0, 2.0, 5.0], 8) + np.sin(x) + 0.1 * rng.normal(size=24)
    frame = pd.DataFrame({"solvent": solvent, "x": x})
    kernel = 4.0 * k.Categorical().on("solvent") + 1.0 * k.RBF().on("x")
    model = mc.GaussianProcessRegressor(kernel, learning=None, noise=0.01, progress=False).fit(frame, y)
    new = pd.DataFrame({"solvent": ["water", "ethanol", "hexane", "benzene"], "x": 0.0})
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean[:3], [0.0, 2.0, 5.0], atol=0.5)
    assert 1.0 < mean[3] < 4.0
    assert std[3] > 3 * std[:3].max()


def test_copies_are_equal():
    kernel = k.Categorical(name="c")
    assert repr(kernel) == "Categorical(name='c')"
    for again in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert again == kernel


@pytest.mark.parametrize("missing", [None, np.nan, float("nan"), pd.NA, pd.NaT, ("a", None)], ids=repr)
def test_missing_values_are_refused(missing):
    with pytest.raises(ObjectError, match="row 1: a missing value, where a category was expected.*'missing'"):
        k.Categorical()(["a", missing])
    with pytest.raises(ObjectError, match="column 'c', row 1: a missing value"):
        k.Categorical().on("c")(pd.DataFrame({"c": pd.Series(["a", missing], dtype=object)}))


def test_other_rows_are_refused():
    with pytest.raises(ObjectError, match="row 1: a category must be hashable.*dict"):
        k.Categorical()(["a", {"b": 1}])
    with pytest.raises(DataError, match="Put it in a list"):
        k.Categorical()("water")
    assert k.Categorical()([]).shape == (0, 0)
    assert k.Categorical()(["a"], []).shape == (1, 0)
