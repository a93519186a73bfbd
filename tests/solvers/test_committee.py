"""Committees: against the formulas, against the exact process where they must agree, and through the estimators."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.gp.mean import MeanFunction
from mercer.gp.process import GP
from mercer.solvers import Committee, Dense
from mercer.solvers.committee_evidence import partition

rng = np.random.default_rng(0)
N, P = 60, 4
X, Z = rng.uniform(-2, 2, size=(N, 2)), rng.uniform(-2.5, 2.5, size=(9, 2))
y = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] + 0.1 * rng.normal(size=N) + 3.0
NOISE = rng.uniform(0.02, 0.05, size=N)
KERNEL = 1.2 * k.RBF([0.8, 1.3])
WEIGHTS = ("generalised", "robust", "bayesian", "product")
weightings = pytest.mark.parametrize("weights", WEIGHTS)


def posterior(weights, mean=None, parts=P, rows=slice(None)):
    mean = None if mean is None else MeanFunction.of(mean)
    return Committee(parts, weights).posterior(KERNEL, X[rows], y[rows], NOISE[rows], mean)


def expected(weights, Z, without=None):
    """Means and variances from the formulas of the papers, one row and one member at a time."""
    parts = partition(N, P)
    if weights == "generalised":
        parts = [parts[0], *([*parts[0], *part] for part in parts[1:])]
    parts = [[row for row in part if row != without] for part in parts]
    members = [GP(KERNEL).condition(X[part], y[part], NOISE[part]).moments(Z) for part in parts]
    out = []
    for j in range(len(Z)):
        m, v, prior = [m[j] for m, _ in members], [v[j] for _, v in members], 1.2
        if weights == "product":  # Cao and Fleet 2014
            precision = sum(1 / (P * each) for each in v)
            out.append((sum(a / (P * b) for a, b in zip(m, v, strict=True)) / precision, 1 / precision))
        elif weights == "bayesian":  # Tresp 2000
            precision = sum(1 / each for each in v) - (P - 1) / prior
            out.append((sum(a / b for a, b in zip(m, v, strict=True)) / precision, 1 / precision))
        elif weights == "robust":  # Deisenroth and Ng 2015
            b = [0.5 * np.log(prior / each) for each in v]
            precision = sum(w / each for w, each in zip(b, v, strict=True)) + (1 - sum(b)) / prior
            out.append((sum(w * a / c for w, a, c in zip(b, m, v, strict=True)) / precision, 1 / precision))
        else:  # Liu et al. 2018
            b = [1.0, *(0.5 * np.log(v[0] / each) for each in v[2:])]
            precision = sum(w / each for w, each in zip(b, v[1:], strict=True)) + (1 - sum(b)) / v[0]
            mean = sum(w * a / c for w, a, c in zip(b, m[1:], v[1:], strict=True)) + (1 - sum(b)) * m[0] / v[0]
            out.append((mean / precision, 1 / precision))
    return np.transpose(out)


@weightings
def test_predictions_are_those_of_the_formulas(weights):
    for one, other in zip(posterior(weights).moments(Z), expected(weights, Z), strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_the_evidence_is_the_sum_of_those_of_the_parts():
    parts = [GP(KERNEL).condition(X[part], y[part], NOISE[part]) for part in partition(N, P)]
    for weights in WEIGHTS:
        assert posterior(weights).log_evidence() == pytest.approx(sum(each.log_evidence() for each in parts), rel=1e-12)


def test_unknown_coefficients_are_those_of_all_parts_together():
    C = np.zeros((N, N))
    for part in partition(N, P):
        C[np.ix_(part, part)] = KERNEL(X[part])
    C += np.diag(NOISE)
    H = np.column_stack([np.ones(N), X])
    A = H.T @ np.linalg.solve(C, H)
    found = Committee(P).posterior(KERNEL, X, y, NOISE, MeanFunction.of("linear"))
    beta, covariance = found.coefficients()
    columns = found.prior_mean.columns(Z)
    own = np.linalg.solve(np.column_stack([np.ones(len(Z)), Z])[:3], columns[:3])  # the same span, other coordinates
    assert own @ beta == pytest.approx(np.linalg.solve(A, H.T @ np.linalg.solve(C, y)), rel=1e-8)
    assert own @ covariance @ own.T == pytest.approx(np.linalg.inv(A), rel=1e-8)


def test_the_evidence_has_the_slope_it_says_in_threads_and_in_processes():
    theta, mean = np.array([0.1, -0.2, 0.3, -2.0]), MeanFunction.of("linear")
    with Committee(P).evidence(KERNEL, X, y, None, mean) as evidence:
        for profiled in (True, False):
            found = evidence(theta, profiled=profiled)
            for i, step in enumerate(1e-5 * np.eye(4)):
                high, low = (evidence(theta + sign * step, False, profiled).value for sign in (1, -1))
                assert found.gradient[i] == pytest.approx((high - low) / 2e-5, rel=1e-5, abs=1e-5)
    with Committee(P, processes=True).evidence(KERNEL, X, y, None, mean) as evidence:
        again = evidence(theta)
    assert again.value == pytest.approx(found.value, rel=1e-12)
    assert again.gradient == pytest.approx(found.gradient, rel=1e-10)


@weightings
def test_a_committee_of_one_is_exact(weights):
    own, dense = (s.posterior(KERNEL, X, y, NOISE, MeanFunction.of("linear")) for s in (Committee(1, weights), Dense()))
    assert own.log_evidence() == pytest.approx(dense.log_evidence(), rel=1e-10)
    pairs = [
        *zip(own.moments(Z), dense.moments(Z), strict=True),
        *zip(own.gradients(Z), dense.gradients(Z), strict=True),
        *zip(own.leave_one_out(), dense.leave_one_out(), strict=True),
        (own.covariance(Z), dense.covariance(Z)),
    ]
    for one, other in pairs:
        assert one == pytest.approx(other, rel=1e-7, abs=1e-9)


def test_two_members_that_share_a_part_are_exact():
    own, dense = (s.posterior(KERNEL, X, y, NOISE) for s in (Committee(2), Dense()))
    for one, other in zip(own.moments(Z), dense.moments(Z), strict=True):
        assert one == pytest.approx(other, rel=1e-7)
    for one, other in zip(own.leave_one_out(), dense.leave_one_out(), strict=True):
        assert one == pytest.approx(other, rel=1e-6)


@weightings
def test_derivatives_covariances_and_terms_agree_with_the_moments(weights):
    own = posterior(weights, "linear")
    mean, variance = own.moments(Z)
    assert np.diag(own.covariance(Z)) == pytest.approx(variance, rel=1e-9)
    assert np.linalg.eigvalsh(own.covariance(Z))[0] > -1e-12
    dmean, dvariance = own.gradients(Z)
    for j, step in enumerate(1e-5 * np.eye(2)):
        high, low = own.moments(Z + step), own.moments(Z - step)
        assert dmean[:, j] == pytest.approx((high[0] - low[0]) / 2e-5, rel=1e-5, abs=1e-6)
        assert dvariance[:, j] == pytest.approx((high[1] - low[1]) / 2e-5, rel=1e-4, abs=1e-6)
    ((_, of_term, _),) = own.terms(Z)
    assert of_term + own.trend(Z)[0] == pytest.approx(mean, rel=1e-9)


@weightings
def test_rows_left_out_are_predicted_by_the_same_members_without_them(weights):
    mean, variance = posterior(weights).leave_one_out()
    for i in (0, 7, int(partition(N, P)[0][3])):
        (m,), (v,) = expected(weights, X[i : i + 1], without=i)
        assert mean[i] == pytest.approx(m, rel=1e-8)
        assert variance[i] == pytest.approx(v + NOISE[i], rel=1e-8)


def test_more_parts_than_rows_and_few_rows():
    for n in (1, 2, 3):
        found = Committee(10).posterior(KERNEL, X[:n], y[:n], NOISE[:n], MeanFunction.of("unknown"))
        assert np.isfinite(found.moments(Z)).all()
    noiseless = Committee(2, "robust").posterior(KERNEL, X[:9], y[:9], np.zeros(9))
    mean, variance = noiseless.moments(X[:9])
    assert np.isfinite(mean).all()
    assert (variance < 1e-6).all()


def test_a_regressor_learns_with_it_and_comes_back_from_a_file(tmp_path):
    model = mc.GaussianProcessRegressor(solver=Committee(3), progress=False).fit(X, y)
    exact = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    truth = np.sin(2 * Z[:, 0]) + 0.4 * Z[:, 1] + 3.0
    error, least = (np.abs(each.predict(Z) - truth).mean() for each in (model, exact))
    assert error < 2 * least + 0.1
    assert model.numerics_["parts"] == 3
    mc.save(model, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert back.solver_ == Committee(3)
    for one, other in zip(model.predict(Z, return_std=True), back.predict(Z, return_std=True), strict=True):
        assert np.array_equal(one, other)
    back.update(Z, truth)
    assert len(back.y_train_) == N + len(Z)


def test_words_have_committees_too():
    words = ["".join(letters) for letters in np.random.default_rng(1).choice(list("abc"), size=(30, 6))]
    counts = np.array([word.count("a") for word in words], dtype=float)
    model = mc.GaussianProcessRegressor(1.0 * k.Spectrum(1), solver=Committee(3), progress=False).fit(words, counts)
    assert model.predict(["aaaabc", "bbbccc"]) == pytest.approx([4.0, 0.0], abs=0.5)


def test_settings_that_make_no_sense_are_refused():
    for settings in ({"n_parts": 0}, {"n_parts": 2.5}, {"n_parts": True}, {"weights": "equal"}):
        with pytest.raises(mc.ParameterError, match=r"n_parts must be|weights must be one of"):
            Committee(**settings)
