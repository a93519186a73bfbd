"""Bundled data: what is promised is there, in the units it says."""

import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import load_diabetes

import mercer as mc
from mercer import datasets


@pytest.mark.parametrize("name", datasets.names())
def test_every_data_set_is_complete(name):
    data = datasets.load(name)
    n, d = data.X.shape
    assert data.name == name
    assert data.X.dtype == data.y.dtype == np.float64
    assert data.y.shape == (n,)
    assert len(data.feature_names) == d
    assert np.isfinite(data.X).all()
    assert np.isfinite(data.y).all()
    assert (np.ptp(data.X, axis=0) > 0).all()
    assert data.licence in ("public domain", "CC0", "BSD-3-Clause, as part of scikit-learn")
    assert all(text in str(data) for text in (data.description, data.source, data.licence, f"{n} rows"))
    data.X[:] = 0  # everyone has a copy of their own
    assert datasets.load(name).X.any()


def test_carbon_dioxide_rises_and_has_a_season():
    data = datasets.load("co2")
    year = data.X[:, 0]
    assert (np.diff(year) > 0.08).all()
    assert 1958 < year[0] < 1959
    assert 2001 < year[-1] < 2002
    assert np.polyfit(year, data.y, 1)[0] == pytest.approx(1.3, abs=0.1)  # ppm a year
    left = data.y - np.polyval(np.polyfit(year - 1980, data.y, 3), year - 1980)
    month = np.floor(year % 1 * 12).astype(int)
    means = [left[month == m].mean() for m in range(12)]
    assert (np.argmax(means), np.argmin(means)) in {(4, 8), (4, 9)}  # highest in May, lowest in autumn


def test_flights_are_faster_than_cars_and_slower_than_sound():
    data = datasets.load("flights")
    speed = data.X[:, data.feature_names.index("distance")] / (data.y / 60)
    assert 100 < speed.min() < speed.max() < 660  # miles an hour
    assert len(data.y) == 500
    assert set(data.X[:, data.feature_names.index("month")]) == set(range(1, 13))


def test_diabetes_is_that_of_scikit_learn():
    data, theirs = datasets.load("diabetes"), load_diabetes(scaled=False)
    np.testing.assert_array_equal(data.X, theirs.data)
    np.testing.assert_array_equal(data.y, theirs.target)


def test_frames(monkeypatch):
    data = datasets.load("flights")
    frame = data.frame()
    assert isinstance(frame, pl.DataFrame)
    assert frame.columns == [*data.feature_names, "air_time"]
    np.testing.assert_array_equal(frame["air_time"], data.y)
    monkeypatch.setitem(sys.modules, "polars", None)
    frame = data.frame()
    assert isinstance(frame, pd.DataFrame)
    np.testing.assert_array_equal(frame["distance"], data.X[:, 0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mc.MercerError, match="needs polars or pandas"):
        data.frame()


def test_unknown_names_are_answered_with_those_there_are():
    with pytest.raises(mc.DataError, match="'CO_2'; choose from co2, diabetes, flights. Did you mean 'co2'?"):
        datasets.load("CO_2")
    with pytest.raises(mc.DataError, match=r"flights\.$"):
        datasets.load("zzz")
