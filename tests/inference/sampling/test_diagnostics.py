"""Effective sizes and R-hat, of chains whose correlations are known."""

import numpy as np
import pytest

from mercer.core.errors import DataError
from mercer.inference.sampling.diagnostics import effective_size, split_rhat


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.4])
def test_effective_size_of_an_autoregression(rho):
    rng, chains, n = np.random.default_rng(0), 4, 2000
    x = np.empty((chains, n, 20))
    x[:, 0] = rng.normal(size=(chains, 20))
    for i in range(1, n):
        x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * rng.normal(size=(chains, 20))
    expected = chains * n * (1 - rho) / (1 + rho)
    for ranked in (True, False):
        ess = effective_size(x, ranked)
        assert ess.shape == (20,)
        assert np.mean(ess) == pytest.approx(expected, rel=0.1)
    assert np.allclose(effective_size(np.exp(x)), effective_size(x))  # ranks are what counts
    # 1 + (variance of the mean of a half-chain) / 2, of which this is several times the expected.
    assert split_rhat(x).max() < 1 + 20 / min(expected, chains * n)


def test_chains_that_disagree():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 500, 3))
    x[0, :, 1] += 3  # in place
    x[1, :, 2] *= 8  # in scale alone
    rhat, ess = split_rhat(x), effective_size(x)
    assert rhat[0] < 1.01
    assert rhat[1] > 1.3
    assert rhat[2] > 1.1
    assert ess[1] < 20 < 1500 < ess[0]
    constant = np.ones((4, 10, 1))
    assert split_rhat(constant) == 1
    assert effective_size(constant) == 40
    with pytest.raises(DataError, match="at least 4"):
        effective_size(x[:, :3])
