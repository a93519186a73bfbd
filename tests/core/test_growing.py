"""Arrays that grow at the end."""

import gc

import numpy as np

from mercer.core import growing
from mercer.core.growing import appended


def test_rows_are_those_of_concatenate_and_are_copied_rarely():
    rows, bases = np.arange(6.0).reshape(3, 2), set()
    expected = rows
    for i in range(1000):
        more = np.full((1 + i % 3, 2), float(i))
        rows, expected = appended(rows, more), np.concatenate([expected, more])
        bases.add(rows.ctypes.data)
    assert np.array_equal(rows, expected)
    assert len(bases) < 25  # a quarter more each time


def test_what_was_returned_before_does_not_change():
    first = appended(np.zeros(3), np.ones(1))
    one, other = appended(first, np.array([2.0])), appended(first, np.array([3.0]))
    assert one.tolist() == [0, 0, 0, 1, 2]
    assert other.tolist() == [0, 0, 0, 1, 3]
    assert appended(one[1:], np.array([4.0])).tolist() == [0, 0, 1, 2, 4]  # another start
    assert appended(one[:2], np.array([5.0])).tolist() == [0, 0, 5]
    assert one.tolist() == [0, 0, 0, 1, 2]
    assert appended(np.arange(2), np.array([0.5])).dtype == float


def test_arrays_that_are_gone_are_forgotten():
    rows = appended(np.zeros(3), np.ones(1))
    key = id(rows.base)
    assert key in growing._used
    del rows
    gc.collect()
    assert key not in growing._used
