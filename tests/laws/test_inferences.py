"""What every registered inference of classes promises, for two classes and for three."""

import itertools

import numpy as np
import pytest
from scipy.special import expit, log_softmax

import mercer as mc
from design import example
from mercer import kernels as k
from mercer.inference.base import INFERENCES, named
from mercer.inference.sites import Covariance

example("inference")
rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-3, 3, size=18))[:, None]
Z = np.linspace(-4, 4, 9)[:, None]
CODES = {2: (np.abs(X[:, 0]) < 1.2).astype(int), 3: np.digitize(X[:, 0], [-1.0, 1.0])}
KERNEL = 3.0 * k.RBF(1.2)
BOUNDED = {"variational"}  # evidences that are bounds from below
TOLERANCE = {"laplace": 0.15, "ep": 0.01, "variational": 0.15, "mcmc": 0.15}  # nats a row, where nothing else is said


def cases():
    for name, C in itertools.product(INFERENCES, (2, 3)):
        inference = named(name, classes=C, n_samples=400)
        if inference.refusal() is None:
            yield pytest.param(inference, id=f"{name}, {C} classes")


inferences = pytest.mark.parametrize("inference", list(cases()))
gaussian = pytest.mark.parametrize("inference", [case for case in cases() if not case.values[0].samples])


def covariances(kernel=KERNEL, rows=slice(None)):
    return [Covariance.of(kernel, X[rows], 1e-9)]


def model(inference, codes=None, rows=slice(None), kernel=KERNEL):
    codes = CODES[inference.classes] if codes is None else codes
    estimator = mc.GaussianProcessClassifier(
        kernel, inference.name, learning=None, n_samples=400, progress=False, random_state=0
    )
    return estimator.fit(X[rows], codes[rows])


def evidence_by_quadrature(kernel, rows, codes, C):
    """ln of the integral of likelihood times prior over the latent values of two rows, on a grid of white values."""
    L = np.linalg.cholesky(kernel(X[rows]) + 1e-9 * np.eye(len(rows)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40 if C == 2 else 9)
    weights = weights / weights.sum()
    functions = 1 if C == 2 else C
    grid = np.stack(np.meshgrid(*[nodes] * (len(rows) * functions), indexing="ij"), axis=-1).reshape(-1, functions, 2)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * (len(rows) * functions), indexing="ij")), axis=0).ravel()
    f = grid @ L.T
    if C == 2:
        p = np.prod(expit(f[:, 0] * (2 * codes - 1)), axis=1)
    else:
        p = np.exp(sum(log_softmax(f[..., i], axis=1)[:, code] for i, code in enumerate(codes)))
    return float(np.log(weight @ p))


@gaussian
def test_its_evidence_is_near_the_integral_or_below_it(inference):
    C = inference.classes
    if C == 3:
        rows, kernel = np.array([2, 15]), 1.0 * k.RBF(1.2)
    else:
        rows, kernel = np.array([2, 9]), KERNEL
    codes = CODES[C][rows]
    exact = evidence_by_quadrature(kernel, rows, codes, C)
    found = inference(covariances(kernel, rows), codes, gradient=False).log_evidence
    assert abs(found - exact) < TOLERANCE.get(inference.name, 0.15) * len(rows)
    if inference.name in BOUNDED:
        assert found <= exact + 1e-6


@gaussian
def test_its_evidence_has_the_slope_it_says(inference):
    codes, teacher = CODES[inference.classes], inference.for_learning()
    D = np.exp(-np.abs(X - X.T))  # a direction in which the covariance moves

    def at(step):
        (K,) = covariances()
        K.K += step * D
        return [K]

    contract = lambda inverse, a: np.sum((np.outer(a, a) - np.triu(inverse) - np.triu(inverse, 1).T) * D)
    slope = teacher(at(0.0), codes).slope([contract])
    high, low = (teacher(at(sign * 1e-4), codes, gradient=False).log_evidence for sign in (1, -1))
    assert slope == pytest.approx((high - low) / 2e-4, rel=2e-3, abs=1e-4)


@gaussian
def test_it_ends_at_the_same_place_from_any_start(inference):
    codes = CODES[inference.classes]
    alone = inference(covariances(), codes, gradient=False)
    other = inference(covariances(0.3 * k.RBF(0.5)), codes, gradient=False)
    again = inference(covariances(), codes, other, gradient=False)
    assert again.log_evidence == pytest.approx(alone.log_evidence, abs=2e-3)
    assert again.a == pytest.approx(alone.a, abs=5e-2)


@inferences
def test_probabilities_sum_to_one_and_follow_the_labels(inference):
    fitted = model(inference)
    p = fitted.predict_proba(Z)
    assert p.shape == (len(Z), inference.classes)
    assert p.sum(axis=1) == pytest.approx(1.0)
    assert p.min() >= 0
    mean, variance = fitted.predict_latent(Z)
    assert mean.shape == variance.shape
    assert (variance > 0).all()
    assert np.array_equal(fitted.predict(Z), p.argmax(axis=1))
    assert np.mean(fitted.predict(X) == CODES[inference.classes]) > 0.9


@inferences
def test_far_from_the_data_it_knows_nothing(inference):
    p = model(inference).predict_proba([[60.0]])
    assert p == pytest.approx(1 / inference.classes, abs=0.06 if inference.samples else 0.01)


@inferences
def test_classes_may_change_names(inference):
    C = inference.classes
    turned = (CODES[C] + 1) % C
    one, other = model(inference).predict_proba(Z), model(inference, turned).predict_proba(Z)
    assert np.roll(one, 1, axis=1) == pytest.approx(other, abs=0.08 if inference.samples else 2e-3)


@inferences
def test_rows_may_come_in_any_order(inference):
    one, other = model(inference).predict_proba(Z), model(inference, rows=rng.permutation(len(X))).predict_proba(Z)
    assert one == pytest.approx(other, abs=0.08 if inference.samples else 2e-3)


@inferences
def test_a_label_left_out_is_predicted_as_without_it(inference):
    found = model(inference).loo()
    assert found.probability.sum(axis=1) == pytest.approx(1.0)
    for i in (4, 9):
        without = model(inference, rows=np.arange(len(X)) != i)
        assert found.probability[i] == pytest.approx(without.predict_proba(X[i : i + 1])[0], abs=0.12)
        assert found.log_score[i] == pytest.approx(np.log(found.probability[i, CODES[inference.classes][i]]))


@inferences
def test_it_comes_back_from_a_file(inference, tmp_path):
    fitted = model(inference)
    mc.save(fitted, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert np.array_equal(back.predict_proba(Z), fitted.predict_proba(Z))
    assert type(back.posterior_) in INFERENCES[inference.name].parts
