"""Predictions from draws: against conditionals by the formula, one draw at a time."""

import dataclasses

import numpy as np
import pytest
from scipy.special import ndtr

from mercer import gram
from mercer import kernels as k
from mercer.core.coordinates import from_free
from mercer.gp.likelihood import Logistic, Probit
from mercer.inference.sampling import posterior as module
from mercer.inference.sampling.draws import Draws
from mercer.inference.sampling.posterior import SampledPosterior
from reference.latents import X, covariance

KERNEL = (4.0 * k.RBF(1.0)).fix("variance")


def drawn(latents, theta=None):
    return Draws(latents, theta, 1, np.ones(1), np.ones(1))


def test_predictions_are_conditionals_averaged():
    rng, Z = np.random.default_rng(0), np.array([-1.0, 0.3, 2.0, 40.0])
    K, Ks = covariance(), 4.0 * np.exp(-0.5 * (Z[:, None] - X) ** 2)
    f = rng.normal(size=(30, 5)) @ np.linalg.cholesky(K).T
    means = f @ np.linalg.solve(K, Ks.T)
    variance = 4.0 - np.einsum("ij,ji->i", Ks, np.linalg.solve(K, Ks.T))
    posterior = SampledPosterior.of(KERNEL, X, drawn(f))
    mean, total = posterior.moments(Z)
    assert np.allclose(mean, means.mean(axis=0), atol=1e-6)
    assert np.allclose(total, variance + means.var(axis=0), atol=1e-6)
    assert total[-1] == pytest.approx(4.0)
    assert np.allclose(
        posterior.class_probabilities(Z, Probit())[:, 1], ndtr(means / np.sqrt(1 + variance)).mean(axis=0), atol=1e-7
    )
    naive = Logistic().probability(means, np.broadcast_to(variance, means.shape)).mean(axis=0)
    assert np.allclose(posterior.class_probabilities(Z, Logistic())[:, 1], naive, atol=1e-7)
    assert np.allclose(posterior.moments(X)[0], f.mean(axis=0), atol=1e-6)
    assert np.allclose(posterior.moments(X)[1], f.var(axis=0), atol=1e-6)


def test_predictions_with_sampled_parameters():
    rng, Z = np.random.default_rng(1), np.array([0.3, 2.0])
    theta, f = rng.normal(size=(300, 1)) * 0.3, rng.normal(size=(300, 5))
    kernels = [from_free(KERNEL, value) for value in theta[:6]]
    f[:6] = [np.linalg.cholesky(gram.within(kernel, X)) @ value for kernel, value in zip(kernels, f[:6], strict=True)]
    posterior = SampledPosterior.of(KERNEL, X, drawn(f, theta))
    assert len(posterior.latents) == len(posterior.theta) == module.MAX_PARAMETER_DRAWS
    few = SampledPosterior.of(KERNEL, X, drawn(f[:6], theta[:6]))
    means, variances, chances = [], [], []
    for kernel, values in zip(kernels, f[:6], strict=True):
        mean, variance = SampledPosterior.of(kernel, X, drawn(values[None])).moments(Z)
        means.append(mean), variances.append(variance), chances.append(Probit().probability(mean, variance))
    mean, total = few.moments(Z)
    assert np.allclose(mean, np.mean(means, axis=0))
    assert np.allclose(total, np.mean(variances, axis=0) + np.var(means, axis=0))
    assert np.allclose(few.class_probabilities(Z, Probit())[:, 1], np.mean(chances, axis=0))


def test_predictions_of_several_classes():
    rng, Z = np.random.default_rng(0), np.array([0.3, 2.0, 2.2])
    other = (1.0 * k.RBF(2.0)).fix("variance")
    roots = [np.linalg.cholesky(gram.within(kernel, X)) for kernel in (KERNEL, other)]
    f = np.stack([rng.normal(size=(200, 5)) @ R.T for R in roots], axis=2)
    posterior = SampledPosterior.of((KERNEL, other), X, drawn(f))
    mean, variance = posterior.moments(Z)
    for c, kernel in enumerate((KERNEL, other)):
        alone = SampledPosterior.of(kernel, X, drawn(f[..., c])).moments(Z)
        assert np.allclose(mean[:, c], alone[0])
        assert np.allclose(variance[:, c], alone[1])

    ((_, means, variances),) = posterior._conditionals(Z)
    exact = Logistic().probability(means[..., 0] - means[..., 1], variances.sum(axis=1)).mean(axis=0)
    found = posterior.class_probabilities(Z, Logistic())  # the softmax of two is a logistic of their difference
    assert np.allclose(exact, found[:, 0], atol=0.01)
    alone = posterior.class_probabilities(Z[1:2], Logistic())
    assert np.allclose(alone, found[1:2])  # a row by itself as among others
    shared = SampledPosterior.of(KERNEL, X, drawn(f)).moments(Z)[0]
    assert np.allclose(shared[:, 0], mean[:, 0])


def test_it_is_its_fields():
    posterior = SampledPosterior.of(KERNEL, X, drawn(np.random.default_rng(0).normal(size=(3, 5))))
    mean = posterior.moments(X)[0]
    assert posterior._fixed is posterior._fixed  # factorised once
    fields = {field.name: getattr(posterior, field.name) for field in dataclasses.fields(posterior)}
    assert list(fields) == ["kernel", "X", "latents", "theta", "given"]
    assert np.array_equal(SampledPosterior(**fields).moments(X)[0], mean)
    with pytest.raises(dataclasses.FrozenInstanceError):
        posterior.latents = mean
