"""Likelihoods of numbers against SciPy's distributions and adaptive quadrature, their derivatives and predictions."""

import numpy as np
import pytest
from scipy import stats

import mercer as mc
from mercer.core.coordinates import from_free, to_free
from mercer.gp.likelihoods import LIKELIHOODS, as_likelihood
from mercer.gp.likelihoods.predictive import LogNormal, Scaled
from reference.targets import expectation, log_density

N = 9
rng = np.random.default_rng(0)
COUNTS = np.array([0, 1, 2, 3, 4, 7, 12, 150, 4000])
GRADES = np.array([1, 2, 3, 4, 4, 3, 2, 1, 1])
L = mc.likelihoods
CASES = {
    "student": (L.Student(0.7, 3.3), 3 * rng.normal(size=N), {}),
    "poisson": (L.Poisson(), COUNTS, {"exposure": rng.uniform(0.5, 3, N)}),
    "negative_binomial": (L.NegativeBinomial(0.4), COUNTS, {"exposure": rng.uniform(0.5, 3, N)}),
    "binomial": (L.Binomial(), np.array([0, 1, 0, 3, 5, 5, 2, 40, 100]), {"trials": [1, 1, 5, 5, 5, 9, 9, 90, 100]}),
    "gamma": (L.Gamma(2.5), rng.gamma(2, 1, N), {}),
    "censored": (L.Censored(0.3), rng.normal(size=N), {"lower": -0.5, "upper": 0.6}),
    "ordinal": (L.Ordinal().of_grades(GRADES), GRADES, {}),
}
each = pytest.mark.parametrize("name", CASES)
F, M, V = rng.normal(size=N), rng.normal(size=N), rng.uniform(0.1, 3, N)


def case(name):
    likelihood, y, sides = CASES[name]
    return likelihood, likelihood.target(y, N, **sides)


def reference(name, likelihood, t, i):
    """ln p(y_i | f) as a function of f, by SciPy."""
    own = {key: float(value) for key, value in likelihood.parameters.items() if name != "ordinal"}
    if name == "ordinal":
        ends = np.concatenate([[-np.inf], likelihood.cuts(), [np.inf]])
        code = int(t.y[i]) - 1
        low, high = ends[code], ends[code + 1]
        below = lambda f: stats.norm.cdf(high - f) - stats.norm.cdf(low - f)
        above = lambda f: stats.norm.sf(low - f) - stats.norm.sf(high - f)
        return lambda f: np.log(above(f) if low - f > 0 else below(f))
    if name == "censored":
        kind = "below" if t.y[i] <= t.lower[i] else "above" if t.y[i] >= t.upper[i] else "exact"
        return lambda f: log_density(kind, t.y[i], f, **own)
    own |= {side: getattr(t, side)[i] for side in ("exposure", "trials") if getattr(t, side) is not None}
    return lambda f: log_density(name, t.y[i], f, **own)


def test_every_name_is_tested():
    assert set(CASES) == set(LIKELIHOODS)


@each
def test_densities_are_those_of_scipy(name):
    likelihood, t = case(name)
    expected = [reference(name, likelihood, t, i)(F[i]) for i in range(N)]
    np.testing.assert_allclose(likelihood.derivatives(F, t).value, expected, rtol=1e-10, atol=1e-10)


@each
def test_derivatives_are_slopes(name):
    likelihood, t = case(name)
    h, here = 1e-5, likelihood.derivatives(F, t)
    up, down = likelihood.derivatives(F + h, t), likelihood.derivatives(F - h, t)
    for order in range(3):
        np.testing.assert_allclose((up[order] - down[order]) / (2 * h), here[order + 1], rtol=1e-6, atol=1e-6)


@each
def test_integrals_equal_adaptive_quadrature(name):
    likelihood, t = case(name)
    tilted, expected = likelihood.tilted(M, V, t), likelihood.expected(M, V, t)
    centre, width = likelihood.marks(t)
    for i in range(N - 2):
        log_p = reference(name, likelihood, t, i)
        at = centre[i] - t.offset[i] + width[i] * np.array([-6, -2, 0, 2, 6])
        z = expectation(lambda f, log_p=log_p: np.exp(log_p(f)), M[i], V[i], at)
        np.testing.assert_allclose(tilted.log_z[i], np.log(z), rtol=1e-8, atol=1e-9)
        value = expectation(log_p, M[i], V[i], at)
        np.testing.assert_allclose(expected.value[i], value, rtol=1e-7, atol=1e-8)


@each
def test_integrals_have_the_slopes_they_claim(name):
    likelihood, t = case(name)
    h, tilted, expected = 1e-5, likelihood.tilted(M, V, t), likelihood.expected(M, V, t)
    up, down = likelihood.tilted(M + h, V, t), likelihood.tilted(M - h, V, t)
    np.testing.assert_allclose((up.log_z - down.log_z) / (2 * h), tilted.first, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose((up.first - down.first) / (2 * h), tilted.second, rtol=1e-6, atol=1e-6)
    for slope, step in ((expected.in_mean, (h, 0)), (expected.in_variance, (0, h))):
        a, b = likelihood.expected(M + step[0], V + step[1], t), likelihood.expected(M - step[0], V - step[1], t)
        np.testing.assert_allclose((a.value - b.value) / (2 * h), slope, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, (likelihood, *_) in CASES.items() if likelihood.size])
def test_slopes_in_parameters(name):
    likelihood, t = case(name)
    theta, h = np.asarray(to_free(likelihood), dtype=float), 1e-5
    assert likelihood.size == len(theta) == len(likelihood.unit_exponents()) == len(likelihood.bounds()[0])
    for j in range(likelihood.size):
        step = h * np.eye(len(theta))[j]
        up, down = from_free(likelihood, theta + step), from_free(likelihood, theta - step)
        for order in range(3):
            slope = (up.derivatives(F, t)[order] - down.derivatives(F, t)[order]) / (2 * h)
            np.testing.assert_allclose(likelihood.slopes(F, t)[j, order], slope, rtol=1e-5, atol=1e-5)
        slope = (up.tilted(M, V, t).log_z - down.tilted(M, V, t).log_z) / (2 * h)
        np.testing.assert_allclose(likelihood.tilted_slopes(M, V, t)[j], slope, rtol=1e-6, atol=1e-6)
        slope = (up.expected(M, V, t).value - down.expected(M, V, t).value) / (2 * h)
        np.testing.assert_allclose(likelihood.expected_slopes(M, V, t)[j], slope, rtol=1e-5, atol=1e-5)
    fixed = likelihood.fix()
    assert fixed.size == 0
    assert fixed.slopes(F, t).shape == (0, 3, N)


@each
@pytest.mark.parametrize("mean", [-60.0, 0.0, 60.0])
@pytest.mark.parametrize("variance", [0.0, 1e-8, 1e4])
def test_integrals_are_finite_far_away(name, mean, variance):
    likelihood, t = case(name)
    with np.errstate(over="ignore"):
        tilted = likelihood.tilted(np.full(N, mean), np.full(N, variance), t)
    assert not np.isnan(tilted.log_z).any()
    if variance > 1:  # an integral over all of f: far tails of p(y | f) do not matter
        assert np.isfinite(np.stack(tilted)).all()


def test_far_tails_of_an_interval_keep_their_digits():
    likelihood = L.Censored(1.0)
    t = likelihood.target(np.zeros(2), 2, lower=0.0)
    f = np.array([1e2, 1e4])
    # ln Phi(-x) = -x^2 / 2 - ln x - ln(2 pi) / 2 - 1 / x^2 + ..., and its second derivative tends to -1 + 1 / x^2.
    found = likelihood.derivatives(f, t)
    expected = -0.5 * f**2 - np.log(f) - 0.5 * np.log(2 * np.pi) - 1 / f**2
    np.testing.assert_allclose(found.value, expected, rtol=1e-9)
    np.testing.assert_allclose(found.second, -1 + 1 / f**2, atol=1e-6)


# -- predictions -------------------------------------------------------------------------------------------------------


@each
def test_predictions_without_doubt_are_the_likelihood(name):
    likelihood, t = case(name)
    eta = np.linspace(-1.0, 1.0, N)
    predicted = likelihood.predict(eta, np.zeros(N), t)
    mean, variance = likelihood.response(eta + t.offset, t)
    np.testing.assert_allclose(predicted.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(predicted.deviation**2, variance, rtol=1e-6)
    if name not in ("censored", "ordinal"):
        y = t.y
        expected = [reference(name, likelihood, t, i)(eta[i]) for i in range(N)]
        np.testing.assert_allclose(predicted.log_density(y), expected, rtol=1e-7)


@each
def test_predictions_agree_with_draws(name):
    likelihood, t = case(name)
    m, v = np.linspace(-0.5, 0.5, N), np.full(N, 0.2)
    predicted, draws = likelihood.predict(m, v, t), np.random.default_rng(1)
    sample = predicted.sample(40_000, draws)
    assert sample.shape == (N, 40_000)
    spread = predicted.deviation / np.sqrt(sample.shape[1])
    if name != "student":  # whose draws have no fourth moment
        np.testing.assert_array_less(np.abs(sample.mean(axis=1) - predicted.mean), 5 * spread)
        np.testing.assert_allclose(sample.std(axis=1), predicted.deviation, rtol=0.1)
    for q in (0.1, 0.5, 0.9):
        level = np.mean(sample <= predicted.quantile(q)[:, None], axis=1)
        below = np.mean(sample < predicted.quantile(q)[:, None], axis=1)
        assert (level >= q - 0.012).all()
        assert (below <= q + 0.012).all()
        np.testing.assert_allclose(predicted.cdf(predicted.quantile(q)), level, atol=0.012)


@each
def test_quantiles_invert_the_cdf_and_laws_hold(name):
    likelihood, t = case(name)
    predicted = likelihood.predict(M, V, t)
    levels = np.array([0.05, 0.5, 0.95])
    q = predicted.quantile(levels)
    assert q.shape == (N, 3)
    assert (np.diff(q, axis=1) >= 0).all()
    for j, level in enumerate(levels):
        assert (predicted.cdf(q[:, j]) >= level - 1e-9).all()
        if not likelihood.discrete:
            np.testing.assert_allclose(predicted.cdf(q[:, j]), level, atol=1e-8)
        elif name != "ordinal":
            assert (predicted.cdf(q[:, j] - 1) < level).all()
    low, high = predicted.interval(0.9)
    np.testing.assert_allclose(np.stack([low, high], axis=1), q[:, [0, 2]], rtol=1e-12)
    scaled = predicted.scaled(2.0, 3.0)
    np.testing.assert_allclose(scaled.mean, 2 * predicted.mean + 3)
    np.testing.assert_allclose(scaled.cdf(2 * q[:, 1] + 3), predicted.cdf(q[:, 1]))


@pytest.mark.parametrize("name", ["poisson", "negative_binomial", "binomial", "ordinal"])
def test_probabilities_add_up_to_one(name):
    likelihood, t = case(name)
    t = t.take(slice(0, 3))
    predicted = likelihood.predict(np.zeros(3), np.full(3, 0.3), t)
    values = np.arange(1, 5) if name == "ordinal" else np.arange(400)
    p = np.stack([np.exp(predicted.log_density(float(y))) for y in values], axis=1)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-7)
    np.testing.assert_allclose(p @ values, predicted.mean, rtol=1e-6)
    np.testing.assert_allclose(np.cumsum(p, axis=1)[:, 2], predicted.cdf(float(values[2])), atol=1e-8)
    assert (predicted.log_density(0.5) == -np.inf).all()


@pytest.mark.parametrize("name", ["poisson", "binomial", "gamma", "ordinal", "student"])
def test_the_response_is_an_increasing_function_of_a_normal(name):
    likelihood, t = case(name)
    found, draws = likelihood.predict_response(M, V, t), np.random.default_rng(0)
    sample = found.sample(40_000, draws)
    np.testing.assert_allclose(sample.mean(axis=1), found.mean, rtol=0.15)
    q = found.quantile([0.25, 0.5])
    np.testing.assert_allclose(found.cdf(q[:, 0]), 0.25, atol=1e-6)
    h = 1e-4 * found.deviation
    slope = (found.cdf(q[:, 1] + h) - found.cdf(q[:, 1] - h)) / (2 * h)
    np.testing.assert_allclose(np.exp(found.log_density(q[:, 1])), slope, rtol=1e-4)


def test_log_normal_is_that_of_scipy():
    ours, theirs = LogNormal(np.array([0.3]), np.array([0.7])), stats.lognorm(0.7, scale=np.exp(0.3))
    np.testing.assert_allclose([ours.mean[0], ours.deviation[0]], [theirs.mean(), theirs.std()])
    for y in (0.5, 2.0):
        np.testing.assert_allclose(ours.log_density(y), theirs.logpdf(y))
        np.testing.assert_allclose(ours.cdf(y), theirs.cdf(y))
    np.testing.assert_allclose(ours.quantile(0.9), theirs.ppf(0.9))
    assert ours.log_density(-1.0)[0] == -np.inf
    assert ours.cdf(-1.0)[0] == 0
    np.testing.assert_allclose(Scaled(ours, 2.0, 1.0).log_density(5.0), theirs.logpdf(2.0) - np.log(2))


def test_randomised_residuals_of_counts_are_standard_normal():
    likelihood, n = L.Poisson(), 4000
    m = np.random.default_rng(2).normal(size=n)
    y = np.random.default_rng(3).poisson(np.exp(m)).astype(float)
    z = likelihood.predict(m, np.zeros(n), likelihood.rows(n)).z(y)
    assert stats.kstest(z, "norm").pvalue > 0.01


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_of_likelihoods():
    y = np.abs(rng.normal(size=N)) + 0.1
    student, gauss = L.Student(0.8, 1e7), L.Censored(0.64)
    for quantity in ("derivatives", "tilted"):
        args = (F,) if quantity == "derivatives" else (M, V)
        a = getattr(student, quantity)(*args, student.target(y, N))
        b = getattr(gauss, quantity)(*args, gauss.target(y, N))
        np.testing.assert_allclose(a[:3], b[:3], rtol=1e-5, atol=1e-5)
    counts = COUNTS[:7]
    negative, poisson = L.NegativeBinomial(1e-6), L.Poisson()
    a, b = (
        negative.derivatives(F[:7], negative.target(counts, 7)),
        poisson.derivatives(F[:7], poisson.target(counts, 7)),
    )
    np.testing.assert_allclose(np.stack(a), np.stack(b), rtol=1e-3, atol=1e-3)


# -- bad data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "y", "sides", "message"),
    [
        ("poisson", [1, -1, 2], {}, r"is for counts; y\[1\] is -1"),
        ("negative_binomial", [1, 2.5, 2], {}, "'gamma' or 'lognormal'"),
        ("poisson", [1, 1, 2], {"exposure": [1, 0, 1]}, "exposure must be positive"),
        ("binomial", [0.3, 0.2, 0.1], {}, "A share is y / trials"),
        ("binomial", [3, 2, 1], {"trials": 2}, "more successes than trials"),
        ("binomial", [3, 2, 1], {"trials": 2.5}, "trials must be whole numbers"),
        ("gamma", [1.0, 0.0, 2.0], {}, r"positive values; y\[1\] is 0"),
        ("censored", [1.0, 2.0, 3.0], {"lower": 2.0, "upper": 1.0}, "lower must be below upper"),
        ("censored", [1.0, 2.0, 3.0], {"lower": [1.0, np.nan, 0.0]}, "with NaN"),
        ("ordinal", [1.0, 2.5, 3.0], {}, "Number the grades in their order"),
        ("student", [1.0, 2.0, 3.0], {"trials": 3}, "does not use trials; it takes nothing"),
        ("poisson", [1, 2, 3], {"trials": 3}, "it takes exposure"),
        ("poisson", [1, 2, 3], {"exposure": "long"}, "exposure must be a number"),
    ],
)
def test_bad_targets_are_refused(name, y, sides, message):
    with pytest.raises(ValueError, match=message):
        as_likelihood(name).target(y, 3, **sides)


def test_unknown_likelihoods_and_too_many_grades():
    with pytest.raises(mc.ParameterError, match="likelihood must be one of 'student'"):
        as_likelihood("cauchy")
    with pytest.raises(mc.DataError, match="2 to 50 ordered grades; y has 1"):
        L.Ordinal().of_grades(np.ones(5))
    with pytest.raises(mc.ParameterError, match="no noise variance of its own"):
        L.Poisson().with_noise(1.0)
