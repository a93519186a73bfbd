"""Classes and counts by neighbours: with all rows as neighbours the dense answers, with few the exact gradient."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import to_free
from mercer.solvers import Dense, Neighbors
from mercer.solvers.base import resolve_latent

rng = np.random.default_rng(0)
N = 60
X, Z = rng.uniform(0, 3, size=(N, 2)), rng.uniform(0, 3, size=(5, 2))
LABELS = np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=N) > 1.5
COUNTS = rng.poisson(np.exp(np.sin(2 * X[:, 0])))
KERNEL = 1.4 * k.Matern(0.9, nu=1.5)
ALL = Neighbors(N)


def test_sites_of_any_strength_are_those_of_the_matrix():
    S, nu, a, u, g = rng.uniform(0, 2, N), *rng.normal(size=(4, N))
    S[[3, 7, 9]] = 0.0, 1e-12, 1e4  # none, hardly any, and nearly an exact value
    theta = np.asarray(to_free(KERNEL))
    with ALL.latent(KERNEL, X) as own, Dense().latent(KERNEL, X) as dense:
        K, full = own.at(theta, 1e-6), dense.at(theta, 1e-6)
        assert K.times(nu) == pytest.approx(full.times(nu), rel=1e-6, abs=1e-7)
        assert K.factor(S).log_det == pytest.approx(full.factor(S).log_det, rel=1e-7)
        assert K.factor(S).weights(nu) == pytest.approx(full.factor(S).weights(nu), rel=1e-5, abs=1e-5)
        assert K.factor(S).variance() == pytest.approx(full.factor(S).variance(), rel=1e-6)
        for mode in (None, (u, g)):
            one, other = (
                each.factor(S).slope(space.contraction(theta), a, mode) for each, space in ((K, own), (full, dense))
            )
            assert one == pytest.approx(other, rel=1e-6, abs=1e-6)
        assert K.factor(-S) is None
        assert K.factor(np.full(N, np.nan)) is None


@pytest.mark.parametrize("name", ["laplace", "ep", "variational"])
def test_two_classes_are_inferred_as_by_the_dense_solver(name, tmp_path):
    answers = []
    for solver in (ALL, Dense()):
        model = mc.GaussianProcessClassifier(KERNEL, inference=name, solver=solver, learning=None, progress=False)
        found = model.fit(X, LABELS).posterior_
        answers.append([
            model.log_marginal_likelihood_, model.predict_proba(Z), *found.moments(Z), found.covariance(Z),
            *found.gradients(Z), found.leave_one_out(), *found.condition(Z[:1], np.array([1])).moments(Z),
        ])  # fmt: skip
        if solver is ALL:
            mc.save(model, tmp_path / "model")
            assert np.array_equal(mc.load(tmp_path / "model").predict_proba(Z), model.predict_proba(Z))
    for one, other in zip(*answers, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("target", ["classes", "counts"])
def test_the_slope_of_the_approximate_evidence_is_a_difference(target):
    if target == "classes":
        model = mc.GaussianProcessClassifier(KERNEL, "laplace", solver=Neighbors(5), learning=None, progress=False)
        model.fit(X, LABELS)
    else:
        model = mc.GaussianProcessRegressor(
            KERNEL, likelihood="poisson", inference="laplace", solver=Neighbors(5), learning=None, progress=False
        ).fit(X, COUNTS)
    theta = model.theta_ + 0.1
    _, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
    for i, step in enumerate(1e-4 * np.eye(len(theta))):
        rise = model.log_marginal_likelihood(theta + step) - model.log_marginal_likelihood(theta - step)
        assert slope[i] == pytest.approx(rise / 2e-4, rel=1e-3, abs=1e-4)


def test_more_than_two_classes_are_refused_by_name():
    with pytest.raises(mc.ParameterError, match="takes two classes; y has 3"):
        mc.GaussianProcessClassifier(KERNEL, solver="neighbors").fit(X, np.digitize(X[:, 0], [1.0, 2.0]))


def test_many_labelled_places_need_no_matrix(monkeypatch):
    from mercer.inference import sites

    places = rng.uniform(0, 10, size=(20_000, 2))
    assert resolve_latent("auto", [KERNEL], places, 2).name == "neighbors"
    assert resolve_latent("auto", [KERNEL], places[:1000], 2).name == "dense"
    places = places[:5000]
    truth = 1 / (1 + np.exp(-2 * np.sin(places[:, 0]) - 2 * np.cos(places[:, 1])))
    labels = rng.uniform(size=len(truth)) < truth
    monkeypatch.setattr(sites.Covariance, "__init__", None)  # the matrix of all rows
    model = mc.GaussianProcessClassifier(
        4.0 * k.Matern(2.0, nu=1.5), "laplace", link="logistic", solver=Neighbors(10), learning=None, progress=False
    ).fit(places, labels)
    assert np.abs(model.predict_proba(places[:200])[:, 1] - truth[:200]).mean() < 0.07
