"""Conjugate gradients on a covariance that is not stored, against dense algebra."""

import dataclasses

import numpy as np
import pytest

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.core import machine
from mercer.core.coordinates import to_free
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import as_noise
from mercer.linalg.conjugate import conjugate_gradients, log_quadratic
from mercer.linalg.preconditioner import LowRankAndDiagonal
from mercer.solvers import Dense, Iterative
from mercer.solvers.iterative_evidence import IterativeEvidence

rng = np.random.default_rng(0)
N = 700
X = rng.normal(size=(N, 3))
y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.normal(size=N) + 3.0
Z = rng.normal(size=(40, 3))
NOISE = np.full(N, 0.04)
KERNEL = 1.2 * k.Matern([0.8, 1.5, 3.0], nu=1.5)
SOLVER = Iterative(rank=60, tolerance=1e-8, dense_rows=0, n_neighbors=120)
LINEAR = MeanFunction.of("linear")

KERNELS = {
    "Matern 3/2 and all else": KERNEL + 0.2 * k.Linear() + 0.3 * k.Constant(1.0) + 0.1 * k.White(),
    "Gaussian": 1.1 * k.RBF(0.7),
    "Matern 5/2": 0.9 * k.Matern(0.7, nu=2.5),
    "Exponential": k.Exponential(1.3),
    "compiled": 0.8 * k.RationalQuadratic(1.1, 1.5) + 0.2 * k.White(),
}


@pytest.mark.parametrize("name", KERNELS)
def test_an_operator_is_the_matrix(name, monkeypatch):
    kernel = KERNELS[name]
    rows, B = gram.Gram(kernel, X), rng.normal(size=(N, 3))
    K, white, theta = rows.matrix(), gram.split_white(kernel)[1], np.asarray(to_free(kernel))
    pivots = np.array([3, 699, 17])
    latent = K - white * np.eye(N)
    with rows.varying() as varying:
        for single, accuracy in ((False, 1e-11), (True, 3e-4)):
            for keeps in (True, False):
                with machine.at_most(None if keeps else 1):
                    operator = varying.at(theta, single)
                    for _ in range(2):  # computed, and kept
                        assert operator.times(B) == pytest.approx(K @ B, abs=accuracy)
        assert operator.white == pytest.approx(white)
        assert operator.rows(pivots) == pytest.approx(latent[pivots], abs=1e-12)
        assert operator.diagonal() == pytest.approx(np.diag(latent), abs=1e-12)


def test_the_preconditioner_is_a_low_rank_and_a_diagonal():
    K = KERNEL(X)
    diagonal, pivots, B = np.diag(K).copy(), rng.permutation(N)[:50], rng.normal(size=(N, 2))
    R = K[:, pivots] @ np.linalg.inv(np.linalg.cholesky(K[np.ix_(pivots, pivots)])).T
    M = R @ R.T + np.diag(diagonal - np.einsum("ij,ij->i", R, R) + NOISE)
    near = LowRankAndDiagonal.of(K[pivots], pivots, diagonal, NOISE)
    assert near.solve(M @ B) == pytest.approx(B, abs=1e-7)
    half = near.half(np.eye(N))
    assert half @ half.T == pytest.approx(M, abs=1e-8)
    assert near.log_det() == pytest.approx(np.linalg.slogdet(M)[1], rel=1e-8)
    assert near.inverse_diagonal() == pytest.approx(np.diag(np.linalg.inv(M)), rel=1e-6)
    everything = LowRankAndDiagonal.of(K.copy(), np.arange(N), diagonal, NOISE)
    assert everything.solve((K + np.diag(NOISE)) @ B) == pytest.approx(B, abs=1e-9)


def test_conjugate_gradients_solve_and_tell_the_logarithm():
    A = rng.normal(size=(60, 60))
    C = A @ A.T / 60 + 0.3 * np.eye(60)
    B = rng.normal(size=(60, 5))
    found = conjugate_gradients(lambda P: C @ P, B, lambda R: R.copy(), np.full(5, 1e-12), 200, watched=2)
    assert pytest.approx(np.linalg.solve(C, B), abs=1e-9) == found.X
    assert found.residuals.max() < 1e-11
    values, V = np.linalg.eigh(C)
    for i in range(2):
        expected = (V.T @ B[:, i]) ** 2 @ np.log(values) / (B[:, i] @ B[:, i])
        assert log_quadratic(found, i) == pytest.approx(expected, abs=1e-9)
    again = conjugate_gradients(lambda P: C @ P, B, lambda R: R.copy(), np.full(5, 1e-8), 200, start=found.X)
    assert again.iterations == 0
    cut = conjugate_gradients(lambda P: C @ P, B, lambda R: R.copy(), np.full(5, 1e-12), 3)
    assert cut.left == pytest.approx(B - C @ cut.X, abs=1e-9)


def test_the_logarithm_is_that_of_the_steps_before_the_matrix_is_indefinite():
    B = rng.normal(size=(60, 2))

    def found(diagonal, precondition):
        C = np.diag(diagonal)
        return conjugate_gradients(lambda P: C @ P, B, precondition, np.full(2, 1e-12), 9, watched=2)

    # The preconditioner is indefinite in a direction that the first residual hardly has: beta is negative.
    B[-1] *= 1e-3
    sign = np.append(np.ones(59), -1.0)[:, None]
    solution = found(np.append(np.linspace(1, 1.001, 59), 1e6), lambda R: sign * R)
    assert min(beta[0] for _, beta in solution.coefficients if np.isfinite(beta[0])) < 0
    assert log_quadratic(solution, 0) == pytest.approx(np.log(1 / solution.coefficients[0][0][0]))
    assert log_quadratic(found(-np.ones(60), lambda R: R.copy()), 0) is None


@pytest.mark.filterwarnings("ignore")
def test_a_covariance_that_is_singular_to_rounding_is_a_rejected_step():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    model = mc.GaussianProcessRegressor(1.0 * k.RBF(), solver=Iterative(dense_rows=0), max_iterations=5, progress=False)
    model.fit(rows, rows[:, 0])
    assert np.isfinite(model.log_marginal_likelihood_)
    assert model.predict(rows) == pytest.approx(rows[:, 0], abs=1e-3)


@pytest.mark.parametrize("mean", [None, LINEAR], ids=["zero", "linear"])
def test_the_evidence_is_near_the_exact_one_and_its_slope_is_unbiased(mean):
    theta = np.append(np.asarray(to_free(KERNEL)), np.log(0.05))
    with Dense().evidence(KERNEL, X, y, None, mean) as dense:
        exact = dense(theta)
        scaled = dense(theta, profiled=True)
    slopes, values, errors = [], [], []
    for seed in range(8):
        solver = dataclasses.replace(SOLVER, seed=seed, tolerance=1e-4)
        with solver.evidence(KERNEL, X, y, None, mean) as evidence:
            assert isinstance(evidence, IterativeEvidence)
            found = evidence(theta)
            errors.append(0.5 * evidence._found.log_det_error)
            assert evidence(theta, gradient=False).value == pytest.approx(found.value, abs=1e-3)  # a warm start
            if not seed:
                assert evidence(theta, profiled=True).scale == pytest.approx(scaled.scale, rel=1e-4)
        values.append(found.value)
        slopes.append(found.gradient)
    values, slopes = np.array(values), np.array(slopes)
    assert np.abs(values - exact.value).max() < 4 * np.mean(errors)
    assert np.mean(errors) < 5.0
    error = slopes.std(axis=0, ddof=1) / np.sqrt(8)
    assert (np.abs(slopes.mean(axis=0) - exact.gradient) < 5 * error + 1e-3 * np.abs(exact.gradient)).all()
    assert (slopes.std(axis=0) < 0.05 * np.abs(exact.gradient).max()).all()


@pytest.mark.parametrize("mean", [None, LINEAR], ids=["zero", "linear"])
def test_the_posterior_is_the_exact_one_to_its_tolerance(mean):
    own, dense = (solver.posterior(KERNEL, X, y, NOISE, mean) for solver in (SOLVER, Dense()))
    assert own.mean(Z) == pytest.approx(dense.mean(Z), abs=1e-6)
    assert own.a == pytest.approx(dense.observed.a, abs=1e-5)
    assert own.covariance(Z) == pytest.approx(dense.covariance(Z), abs=1e-6)
    for one, other in zip(own.coefficients(), dense.coefficients(), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    ratio = own.variance(Z) / dense.variance(Z)
    assert ratio.min() > 1 - 1e-6  # from part of the rows: no less
    assert np.median(ratio) < 1.1
    m, v = own.leave_one_out()
    exact_m, exact_v = dense.leave_one_out()
    assert np.median(np.abs(np.log(v / exact_v))) < 0.1
    assert np.abs(np.mean(np.log(v / exact_v))) < 0.05
    assert np.corrcoef(m, exact_m)[0, 1] > 0.99
    assert abs(own.log_evidence() - dense.log_evidence()) < 5 * own.numerics()["evidence_error"]
    for one, other in zip(own.gradients(Z[:3]), dense.gradients(Z[:3]), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("kernel", [1.0 * k.RBF(0.5), 1.0 * k.RBF(0.5) + k.White(0.005)], ids=["noise", "white"])
def test_rows_left_out_have_the_variances_of_the_exact_posterior_where_noise_is_small(kernel):
    rows = np.random.default_rng(4).normal(size=(400, 2))
    target, noise = np.sin(rows.sum(axis=1)), np.full(400, 0.01)
    own, exact = (s.posterior(kernel, rows, target, noise).leave_one_out() for s in (Iterative(rank=60), Dense()))
    ratio = own[1] / exact[1]
    assert 0.8 < ratio.min() < ratio.max() < 1.25
    assert np.median(np.abs(np.log(ratio))) < 0.05
    assert np.abs(own[0] - exact[0]).max() < 0.2 * np.abs(target - exact[0]).max()


def test_a_tolerance_bounds_the_residual_and_its_error_is_estimated():
    dense = Dense().posterior(KERNEL, X, y - 3.0, NOISE)
    for tolerance in (1e-2, 1e-4):
        own = dataclasses.replace(SOLVER, tolerance=tolerance).posterior(KERNEL, X, y - 3.0, NOISE)
        found = own.numerics()
        C = KERNEL(X) + np.diag(NOISE)
        residual = np.linalg.norm(y - 3.0 - C @ own.a) / np.linalg.norm(y - 3.0)
        assert found["residual"] == pytest.approx(residual, rel=1e-6)
        assert residual < tolerance
        error = np.sqrt(np.mean((own.mean(X) - dense.mean(X)) ** 2) / 1.2)
        assert found["error"] == pytest.approx(error, rel=1.0)  # within a factor of two


def test_it_says_when_it_has_not_converged():
    with pytest.warns(mc.NumericalWarning, match="conjugate gradients ended at a relative residual"):
        Iterative(rank=5, max_iterations=3, tolerance=1e-8).posterior(KERNEL, X, y, NOISE)


def test_many_rows_are_sampled_by_matherons_rule():
    many, own = np.concatenate([Z, rng.normal(size=(250, 3))]), SOLVER.posterior(KERNEL, X, y, NOISE, LINEAR)
    draws = own.sample(many, size=300, seed=0)
    exact = Dense().posterior(KERNEL, X, y, NOISE, LINEAR)
    center, variance = exact.moments(many)
    assert np.abs((draws.mean(axis=0) - center) / np.sqrt(variance / 300)).max() < 5
    assert np.mean(draws.var(axis=0) / variance) == pytest.approx(1.0, abs=0.05)


def test_more_rows_and_larger_variances():
    first = SOLVER.posterior(KERNEL, X[:650], y[:650], NOISE[:650], LINEAR)
    both, whole = first.condition(X[650:], y[650:], NOISE[650:]), SOLVER.posterior(KERNEL, X, y, NOISE, LINEAR)
    assert both.mean(Z) == pytest.approx(whole.mean(Z), abs=1e-6)
    larger, expected = whole.rescaled(1.7 * KERNEL, 1.7), SOLVER.posterior(1.7 * KERNEL, X, y, 1.7 * NOISE, LINEAR)
    assert larger.log_evidence() == pytest.approx(expected.log_evidence(), abs=1e-4)
    assert larger.moments(Z)[1] == pytest.approx(expected.moments(Z)[1], rel=1e-6)


def test_white_noise_in_the_kernel_is_noise():
    noisy = KERNEL + 0.04 * k.White()
    one, other = SOLVER.posterior(noisy, X, y, 1e-6 * np.ones(N)), SOLVER.posterior(KERNEL, X, y, NOISE + 1e-6)
    assert one.mean(Z) == pytest.approx(other.mean(Z), abs=1e-6)
    assert one.latent().variance(Z) == pytest.approx(other.variance(Z), rel=1e-5)


def test_a_fit_learns_what_the_dense_solver_learns():
    settings = {"kernel": 1.0 * k.RBF([1.0, 1.0, 1.0]), "progress": False}
    own = mc.GaussianProcessRegressor(solver=Iterative(rank=60, dense_rows=400), **settings).fit(X, y)
    dense = mc.GaussianProcessRegressor(solver="dense", **settings).fit(X, y)
    assert dense.log_marginal_likelihood(own.theta_) > dense.log_marginal_likelihood_ - 1.0
    assert own.predict(Z) == pytest.approx(dense.predict(Z), abs=0.02)
    assert own.noise_ == pytest.approx(dense.noise_, rel=0.1)
    assert "iterations" in str(own.report())
    part = mc.GaussianProcessRegressor(solver=Iterative(rank=60, learning_rows=300), **settings).fit(X, y)
    assert part.history_[-1].rows == 300
    assert np.mean((part.predict(Z) - dense.predict(Z)) ** 2) < 0.02
    again = mc.GaussianProcessRegressor(solver=Iterative(rank=60, learning_rows=300), **settings).fit(X, y)
    assert np.array_equal(part.predict(Z), again.predict(Z))


def test_settings_are_checked_and_what_it_cannot_solve_is_refused():
    for given in ({"rank": 0}, {"n_probes": 1.5}, {"learning_rows": True}, {"tolerance": 0.0}):
        with pytest.raises(mc.ParameterError):
            Iterative(**given)
    solver = Iterative()
    assert "positive noise" in solver.refusal(KERNEL, X, as_noise(0.0, N))
    assert solver.refusal(KERNEL + 0.1 * k.White(), X, as_noise(0.0, N)) is None
    assert "numbers" in solver.refusal(k.Spectrum(1), ["ab", "ba"], as_noise(0.1, 2))
