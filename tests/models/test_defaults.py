"""What GaussianProcessRegressor chooses by itself: the optimum, the noise, the kernel, and what it says of them."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_diabetes
from sklearn.ensemble import BaggingRegressor

import mercer as mc
from mercer import kernels as k
from mercer.distributions import Normal
from mercer.learning import family
from mercer.learning.heuristics import through_zero
from mercer.learning.regression import RegressionObjective
from mercer.solvers import Dense, Evidence

DATA = Path(os.environ.get("MERCER_DATA", Path(__file__).parents[3] / "shared" / "data"))


def model(X, y, kernel=None, **settings):
    return mc.GaussianProcessRegressor(kernel, **{"progress": False, **settings}).fit(X, y)


def draw(seed, n, d, f, noise):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, f(X) + noise * rng.normal(size=n)


def before_calibration(found):
    """theta of the optimum itself: calibration moved amplitudes and noise together."""
    moved = [name in ("theta0", "theta2", "theta3", "noise") for name in found.parameter_names_]
    return found.theta_ - np.log(found.calibration_) * np.array(moved)


# -- the optimum ------------------------------------------------------------------------------------------------------


def test_a_few_inputs_among_many_are_found():
    # An interaction of two of 32 inputs: with equal lengthscales, rows look independent.
    X, y = draw(0, 400, 32, lambda X: X[:, 3] * np.tanh(2 * X[:, 7]) + 0.3 * np.sin(2 * X[:, 11]), 0.1)
    found = model(X, y)
    Z, t = draw(1, 300, 32, lambda X: X[:, 3] * np.tanh(2 * X[:, 7]) + 0.3 * np.sin(2 * X[:, 11]), 0.1)
    independent = -0.5 * 399 * (1 + np.log(2 * np.pi))
    assert found.log_marginal_likelihood_ > independent + 150
    assert found.score(Z, t) > 0.85


@pytest.mark.skipif(not DATA.exists(), reason="the data are not here")
def test_pumadyn():
    with np.load(DATA / "regression" / "uci_pumadyn32nm.npz") as file:
        X, y = file["X"], file["y"].ravel()
    order = np.random.default_rng(2).permutation(len(y))
    found = model(X[order[:600]], y[order[:600]])
    assert found.optima_[0].value > -0.7
    error = np.sqrt(np.mean((found.predict(X[order[600:]]) - y[order[600:]]) ** 2))
    assert error / y.std() < 0.25


@pytest.mark.parametrize(
    ("seed", "d", "f"),
    [
        (3, 4, lambda X: np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]),
        (4, 8, lambda X: sum(np.sin((1 + i) * X[:, i]) / (1 + i) for i in range(8))),
        (5, 1, lambda X: np.sign(X[:, 0])),
    ],
)
def test_the_optimum_is_the_best_of_random_climbs(seed, d, f):
    X, y = draw(seed, 150, d, f, 0.2)
    found = model(X, y)
    theta = before_calibration(found)
    value = found.log_marginal_likelihood(theta)
    objective = RegressionObjective(found.kernel_, X, (y - found.center_) / found.scale_, None, Dense(), True)
    rng, lengths = np.random.default_rng(0), [name.startswith("theta1") for name in found.parameter_names_]
    best = -np.inf
    with objective.criterion() as evidence:

        def down(theta):
            answer = evidence(theta)
            return (1e10, np.zeros(len(theta))) if answer is None else (-answer.value, -answer.gradient)

        for _ in range(8):
            start = objective.start_with_noise(np.exp(rng.uniform(np.log(1e-4), 0)))
            start[lengths] = -2 * (rng.uniform(np.log(0.1), np.log(10), sum(lengths)) + 0.5 * np.log(d))
            best = max(best, -minimize(down, start, jac=True, bounds=[(-25, 15)] * len(start)).fun)
    assert value > best - 0.5
    assert found.optima_[0].converged
    # Converged: Newton's step, from second derivatives by differences, gains less than a hundredth of a nat.
    slope = found.log_marginal_likelihood(theta, eval_gradient=True)[1]
    step = 1e-3 * np.eye(len(theta))
    H = np.array([slope - found.log_marginal_likelihood(theta + s, eval_gradient=True)[1] for s in step]) / 1e-3
    curvatures, axes = np.linalg.eigh((H + H.T) / 2)
    along = axes.T @ slope
    assert np.sum(0.5 * along**2 / np.maximum(np.abs(curvatures), 0.05)) < 0.01


# -- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [None, 1.0 * k.RBF(np.ones(3))])
def test_copied_rows_do_not_take_the_noise_away(kernel):
    X, y = draw(6, 80, 3, lambda X: np.sin(X[:, 0]) + X[:, 1], 0.5)
    rng = np.random.default_rng(0)
    sample = rng.integers(0, 80, 80)
    whole, boot = model(X, y, kernel), model(X[sample], y[sample], kernel)
    assert boot.noise_ > 0.2 * whole.noise_
    Z, t = draw(7, 200, 3, lambda X: np.sin(X[:, 0]) + X[:, 1], 0.5)
    error, best = (np.sqrt(np.mean((found.predict(Z) - t) ** 2)) for found in (boot, whole))
    assert error < 1.35 * best
    assert np.mean(boot.log_predictive_density(Z, t)) > -1.6
    assert boot.loo().mean.shape == (80,)


def test_ratings_with_repeated_rows_keep_their_resolution():
    X, y = draw(8, 170, 4, lambda X: 5 + X[:, 0] + 0.5 * X[:, 1], 0.6)
    y = np.clip(np.round(y), 3, 8)
    again = np.random.default_rng(2).integers(0, 170, 30)
    A, t = np.r_[X, X[again]], np.r_[y, y[again]]
    Z, s = draw(9, 300, 4, lambda X: 5 + X[:, 0] + 0.5 * X[:, 1], 0.6)
    for kernel in (None, 1.0 * k.RBF(np.ones(4))):
        found = model(A, t, kernel)
        assert found.noise_ >= 1 / 12
        assert np.mean(found.log_predictive_density(Z, np.clip(np.round(s), 3, 8))) > -1.5


def test_bagging_works():
    X, y = draw(10, 60, 2, lambda X: np.sin(2 * X[:, 0]), 0.3)
    bag = BaggingRegressor(mc.GaussianProcessRegressor(progress=False), 3, random_state=0).fit(X, y)
    Z, t = draw(11, 200, 2, lambda X: np.sin(2 * X[:, 0]), 0.3)
    assert np.sqrt(np.mean((bag.predict(Z) - t) ** 2)) < 0.5


# -- the kernel -------------------------------------------------------------------------------------------------------


def test_the_smoothness_is_chosen():
    rng = np.random.default_rng(12)
    x = np.sort(rng.uniform(0, 10, 120))[:, None]
    walk = mc.GP(k.Exponential(2.0)).sample(x, seed=3)[0] + 0.05 * rng.normal(size=120)
    smooth = np.sin(x[:, 0]) + 0.5 * np.cos(2.3 * x[:, 0]) + 0.05 * rng.normal(size=120)
    rough, gentle = model(x, walk), model(x, smooth)
    assert rough.choice_.member.nu <= 1.5
    assert gentle.choice_.member.nu >= 2.5
    assert float(rough.kernel_.nu) == rough.choice_.member.nu
    text = str(rough.report())
    assert "Kernels tried" in text
    assert str(rough.choice_.member) in text
    scores = [tried.score for tried in rough.choice_.tried]
    assert scores == sorted(scores, reverse=True)
    assert str(rough.choice_.member) in str(rough)
    assert model(x, smooth, 1.0 * k.RBF()).choice_ is None


def test_one_lengthscale_or_one_each_and_a_linear_term_or_none():
    rng = np.random.default_rng(13)
    X = rng.normal(size=(160, 6))
    steep = model(X, np.sin(4 * X[:, 0]) + 0.1 * rng.normal(size=160))
    assert steep.choice_.member.each
    assert steep.kernel_.theta1.shape == (6,)
    round_ = model(X, np.exp(-0.3 * (X**2).sum(axis=1)) + 0.02 * rng.normal(size=160))
    assert not round_.choice_.member.each
    assert round_.kernel_.theta1.shape == ()
    straight = model(X, X @ np.arange(6.0) + 0.5 * rng.normal(size=160))
    assert straight.choice_.member.linear
    far = straight.predict(6 * X[:5])
    np.testing.assert_allclose(far, 6 * X[:5] @ np.arange(6.0), atol=4.0)  # a line goes on


def test_without_a_linear_term_a_nearly_linear_function_is_still_found():
    """Long lengthscales are as good as the linear term, where the rest of the function was only noise."""
    lost = []
    for seed in range(4):
        rows = np.random.default_rng(seed).permutation(442)[:200]
        X, y = (part[rows] for part in load_diabetes(scaled=False, return_X_y=True))
        tried = mc.GaussianProcessRegressor(progress=False).fit(X, y).choice_.tried
        evidence = {found.member: found.log_evidence for found in tried}
        lost += [evidence[member._replace(linear=True)] - value for member, value in evidence.items()
                 if not member.linear and member.nu > 1]  # fmt: skip
    assert len(lost) >= 2
    assert max(lost) < 10


def test_more_rows_than_the_first_decide_between_the_best():
    # Three hundred rows cannot afford a lengthscale for each of many inputs; all of them can.
    X, y = draw(14, 620, 12, lambda X: np.sin(2 * X[:, 0]) + X[:, 1] ** 2, 0.5)
    choice = model(X, y).choice_
    assert choice.rows == 620
    assert choice.member.each
    finalists = [tried for tried in choice.tried if tried.rows == 620]
    assert 2 <= len(finalists) <= 5
    assert choice.tried[: len(finalists)] == finalists  # then the others, by what the first rows said of them
    assert {tried.rows for tried in choice.tried} == {300, 620}
    scores = [tried.score for tried in finalists]
    assert scores == sorted(scores, reverse=True)
    assert "620" in str(choice)
    assert "300" in str(choice)
    behind = finalists[1].score / finalists[0].score - 1
    assert f"next of {len(choice.tried)} kernels tried is {behind:.1%} higher" in choice.margin()
    alone = family.Choice([tried for tried in choice.tried if tried not in finalists[1:]], 620, 1)
    assert "far behind on fewer rows" in alone.margin()  # scores of other rows cannot be compared


def test_a_model_that_chose_is_stored_and_given_back(tmp_path):
    X, y = draw(14, 60, 2, lambda X: np.sin(2 * X[:, 0]), 0.1)
    found = model(np.r_[X, X[:5]], np.r_[y, y[:5]])
    mc.save(found, tmp_path / "model.safetensors")
    back = mc.load(tmp_path / "model.safetensors")
    assert str(back.choice_) == str(found.choice_)
    np.testing.assert_array_equal(back.predict(X), found.predict(X))
    np.testing.assert_array_equal(back.loo().mean, found.loo().mean)


def test_few_rows_stay_sane():
    rng = np.random.default_rng(15)
    for n in (1, 2, 3, 4, 6, 9, 14, 20):
        for seed in range(3):
            X = rng.uniform(0, 100, size=(n, 2))
            y = rng.lognormal(4, 0.8, n)
            found = model(X, y)
            mean, deviation = found.predict(rng.uniform(0, 100, size=(100, 2)), return_std=True)
            spread = max(np.ptp(y), 1e-9)
            assert mean.min() > y.min() - 1.0 * spread, (n, seed)
            assert mean.max() < y.max() + 1.0 * spread, (n, seed)
            assert (deviation > 0.02 * spread).all()


def test_crps_is_the_integral_of_its_definition():
    from scipy.stats import norm

    grid = np.linspace(-30, 30, 600_001)
    for y, mean, deviation in ((0.3, 0.0, 1.0), (-2.0, 1.5, 0.7), (4.0, 0.0, 2.5)):
        integrand = (norm.cdf(grid, mean, deviation) - (grid >= y)) ** 2
        found = Normal(np.asarray(mean), np.asarray(deviation)).crps(y)
        assert found == pytest.approx(np.sum(integrand) * 1e-4, abs=2e-4)
    assert Normal(np.array([1.0]), np.array([0.0])).crps([3.0]) == 2.0


# -- raw inputs -------------------------------------------------------------------------------------------------------

LAWS = [
    1.0 * k.Linear() + 1.0 * k.RBF(),
    k.Linear() + k.RBF() + k.RBF() * k.Periodic(1.0, 1.0) + 1.0,
    1.0 * k.Linear() + 1.0 * k.Matern(nu=1.5) + k.White(0.1),
]


@pytest.mark.parametrize("kernel", LAWS, ids=str)
def test_a_shift_of_the_inputs_does_not_change_what_is_reached(kernel):
    rng = np.random.default_rng(18)
    t = np.arange(90) / 12
    y = 0.3 * t + 0.4 * np.sin(2 * np.pi * t) + 0.1 * rng.normal(size=90)
    near, far = model(t[:, None], y, kernel), model(1949 + t[:, None], y, kernel)
    assert far.log_marginal_likelihood_ == pytest.approx(near.log_marginal_likelihood_, abs=0.05)
    ahead = np.linspace(7.5, 10, 20)[:, None]
    np.testing.assert_allclose(far.predict(1949 + ahead), near.predict(ahead), atol=0.02)
    assert far.predict([[1949 + 12.0]])[0] > y.max() - 0.5  # the line goes up


def test_the_scale_of_the_inputs_does_not_change_what_is_reached():
    X, y = draw(19, 80, 2, lambda X: X[:, 0] + np.sin(2 * X[:, 1]), 0.1)
    kernel = 1.0 * k.Linear() + 1.0 * k.RBF([1.0, 1.0])
    near, far = model(X, y, kernel), model(1e4 * X + 3e5, y, kernel)
    assert far.log_marginal_likelihood_ == pytest.approx(near.log_marginal_likelihood_, abs=0.05)


def test_linear_terms_through_a_distant_origin_warn():
    t = 1955 + np.linspace(0, 5, 30)[:, None]
    y = np.sin(t[:, 0])
    fixed = {"learning": None, "noise": 0.1}
    with pytest.warns(mc.ModelWarning, match="Add a constant"):
        model(t, y, k.Linear() * k.Periodic(1.0, 1.0), **fixed)
    with pytest.warns(mc.ModelWarning, match="Polynomial"):
        model(t, y, k.Polynomial(2), **fixed)
    with pytest.warns(mc.ModelWarning):
        model(t, y, k.Linear(), normalize=False, **fixed)
    assert through_zero(k.Linear() + k.RBF(), t, unknown=True) == []
    assert through_zero(2.0 * k.Linear() + 3.0, t, unknown=False) == []
    assert through_zero((k.Linear() + 1.0) * k.RBF(), t, unknown=False) == []
    assert through_zero(k.Linear() * k.RBF(), t - 1957, unknown=False) == []
    assert len(through_zero((k.Linear() * k.RBF()).on([0]), t, unknown=True)) == 1
    assert len(through_zero(k.Linear() ** 2, t, unknown=True)) == 1
    assert len(through_zero(k.Standard(1.0, 1.0, 0.0, 1.0), t, unknown=False)) == 1
    assert through_zero(k.Standard(1.0, 1.0, 1.0, 1.0), t, unknown=False) == []


def test_priors_that_are_left_out_are_told():
    X, y = draw(20, 20, 1, lambda X: X[:, 0], 0.1)
    kernel = (1.0 * k.RBF()).with_priors(lengthscale=mc.priors.LogNormal(0.0, 1.0))
    with pytest.warns(mc.ModelWarning, match="learning='map'"):
        model(X, y, kernel)
    model(X, y, kernel, learning="map")


def test_interrupting_the_choice_keeps_the_best_so_far(monkeypatch):
    X, y = draw(21, 60, 2, lambda X: np.sin(2 * X[:, 0]), 0.1)
    original, calls = Evidence.score, []

    def interrupted(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(Evidence, "score", interrupted)
    with pytest.warns(mc.InterruptedFitWarning, match="best parameters found so far") as told:
        found = model(X, y)
    assert f"after {found.n_evaluations_} evaluations" in str(told[0].message)
    assert found.score(X, y) > 0.9
    assert not found.optima_[0].converged


@pytest.mark.parametrize("unit", [1e4, 1e-14])
def test_units_of_the_target_do_not_matter_without_a_mean_either(unit):
    X, y = draw(22, 25, 1, lambda X: np.sin(2 * X[:, 0]), 0.1)
    plain, other = model(X, y, normalize=False), model(X, unit * y, normalize=False)
    assert other.choice_.member == plain.choice_.member
    np.testing.assert_allclose(other.predict(X) / unit, plain.predict(X), atol=0.02)
    np.testing.assert_allclose(np.sqrt(other.noise_) / unit, np.sqrt(plain.noise_), rtol=0.1)


def test_what_is_told_follows_an_update():
    X, y = draw(23, 40, 1, lambda X: 2 + np.sin(2 * X[:, 0]), 0.1)
    found = model(np.r_[X[:30], X[:3]], np.r_[y[:30], y[:3]]).update(X[30:], y[30:])
    assert found.loo().mean.shape == (43,)
    parts = found.decompose(X)
    np.testing.assert_allclose(sum(mean for mean, _ in parts.values()) + found.mean_, found.predict(X), atol=1e-9)
    assert "Kernels tried" in str(found.report())


def test_noise_that_the_data_do_not_tell_from_none_is_not_taken_for_none():
    """Rows far apart in a rough function do not show whether readings repeat: a repeated input is not certain."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(150, 5))
    K = np.exp(-np.sqrt(((X[:, None] - X) ** 2).sum(axis=2)) / 0.3)
    y = np.linalg.cholesky(K + 1e-9 * np.eye(150)) @ rng.normal(size=150)
    model = mc.GaussianProcessRegressor(progress=False).fit(X, y)
    assert model.predict(X, return_std=True)[1].min() > 0.02 * y.std()
    plain = mc.GaussianProcessRegressor(progress=False, calibrate=False).fit(X, y)
    raised = model.theta_ - np.log(model.calibration_) * np.isin(model.parameter_names_, ["theta0", "theta3", "noise"])
    assert plain.log_marginal_likelihood_ - 0.6 < plain.log_marginal_likelihood(raised)


def test_noise_of_a_smooth_function_without_any_stays_tiny():
    X = np.linspace(0, 6, 50)[:, None]
    model = mc.GaussianProcessRegressor(progress=False).fit(X, np.sin(X[:, 0]))
    assert model.noise_ < 1e-7
