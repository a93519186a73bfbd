"""Seeds become keys, once."""

import jax
import numpy as np
import pytest

import mercer as mc
from mercer.core.random import as_key


def data(key):
    return np.asarray(jax.random.key_data(key)).tolist()


def test_the_same_seed_gives_the_same_key():
    assert data(as_key(7)) == data(as_key(np.int64(7)))
    assert data(as_key(7)) != data(as_key(8))
    assert data(as_key(1)) != data(as_key(2**32 + 1))


def test_generators_advance_and_none_is_fresh():
    generator = np.random.default_rng(0)
    assert data(as_key(generator)) != data(as_key(generator))
    assert data(as_key(np.random.RandomState(0))) == data(as_key(np.random.RandomState(0)))
    assert data(as_key(None)) != data(as_key(None))
    key = jax.random.key(3)
    assert as_key(key) is key
    assert data(as_key(jax.numpy.array(7))) == data(as_key(7))


@pytest.mark.parametrize("bad", [-1, 2**63, 1.5, "seed", True])
def test_bad_seeds_are_refused(bad):
    with pytest.raises(mc.ParameterError, match="seed"):
        as_key(bad)
