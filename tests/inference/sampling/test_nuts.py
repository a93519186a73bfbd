"""The sampler on densities whose moments are known."""

import numpy as np
import pytest

from mercer.inference.sampling import nuts

COVARIANCE = np.array([[4.0, 1.5, 0.0], [1.5, 1.0, 0.03], [0.0, 0.03, 0.01]])
MEAN = np.array([1.0, -2.0, 30.0])
PRECISION = np.linalg.inv(COVARIANCE)


def gaussian(x):
    away = x - MEAN
    return -0.5 * float(away @ PRECISION @ away), -PRECISION @ away


def run(density, p, n_draws=500, warmup=200, seed=0, chains=4, centre=None, root=None, progress=None):
    rng = np.random.default_rng(seed)
    centre, root = np.zeros(p) if centre is None else centre, np.eye(p) if root is None else root
    starts = [centre + root @ rng.standard_normal(p) for _ in range(chains)]
    return nuts.sample(density, starts, centre, root, n_draws, warmup, rng, progress)


def test_moments_of_a_gaussian_from_a_poor_metric():
    chains = run(gaussian, 3, 800, centre=MEAN + 0.5, root=0.3 * np.eye(3))
    draws = chains.draws.reshape(-1, 3)
    found = chains.diagnostics()
    assert (found["rhat"] < 1.02).all()
    error = np.sqrt(np.diag(COVARIANCE) / found["effective_size"])
    assert (np.abs(draws.mean(axis=0) - MEAN) < 4 * error).all()
    unit = np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose(np.cov((draws / unit).T), COVARIANCE / np.outer(unit, unit), atol=0.15)
    # The metric was learned: a good one makes draws of a Gaussian nearly independent, or better.
    assert found["effective_size"].min() > 0.5 * len(draws)
    assert chains.steps / (4 * 1000) < 12


def test_a_funnel_has_its_neck():
    """Neal's funnel: v ~ N(0, 9), x | v ~ N(0, e^v)."""

    def funnel(x):
        v, rest = x[0], x[1:]
        s = np.exp(-v) * float(rest @ rest)
        return -(v**2) / 18 - 0.5 * s - 0.5 * len(rest) * v, np.concatenate(
            [[-v / 9 + 0.5 * s - 0.5 * len(rest)], -np.exp(-v) * rest]
        )

    v = run(funnel, 3, 1500, 400).draws[..., 0].ravel()
    assert abs(v.mean()) < 1.0
    assert 2.2 < v.std() < 3.8
    assert (v < -3).mean() > 0.01  # a sixth, if trajectories were not so short there


def test_edges_are_respected_and_counted():
    def half(x):
        return None if x[0] < 0 else (-float(x[0]), np.array([-1.0]))

    chains = run(half, 1, 1500, centre=np.array([3.0]), root=0.5 * np.eye(1))
    assert chains.draws.min() >= 0
    assert chains.draws.mean() == pytest.approx(1.0, abs=0.15)
    assert chains.divergences > 0


def test_the_same_seed_gives_the_same_draws():
    one, same, other = (run(gaussian, 3, 30, 40, seed, centre=MEAN) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.draws, same.draws)
    assert not np.array_equal(one.draws, other.draws)


def test_interrupted_chains_keep_their_draws():
    def interrupt(text):
        if "60 of" in text:
            raise KeyboardInterrupt

    chains = run(gaussian, 3, 100, 40, centre=MEAN, progress=interrupt)
    assert chains.interrupted
    assert chains.draws.shape == (4, 20, 3)
    with pytest.raises(KeyboardInterrupt):  # in the warmup there is nothing to keep
        run(gaussian, 3, 100, 80, centre=MEAN, progress=interrupt)


def test_leapfrog_steps_are_reversible_and_keep_the_energy():
    sampler = nuts.Sampler(gaussian, MEAN, np.linalg.cholesky(COVARIANCE))
    start = sampler.state(MEAN + 0.1)._replace(momentum=np.array([0.3, -1.0, 0.5]))
    there = start
    for _ in range(20):
        there = sampler._leap(there, 0.1)
    assert there.energy == pytest.approx(start.energy, abs=0.02)
    back = there._replace(momentum=-there.momentum)
    for _ in range(20):
        back = sampler._leap(back, 0.1)
    np.testing.assert_allclose(back.z, start.z, atol=1e-10)
