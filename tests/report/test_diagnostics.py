"""Checks of residuals: silent on what a right model gives, and each flag raised by what it is for."""

import numpy as np
import pytest
from scipy import stats

from mercer.report import diagnostics
from mercer.scores import chance_range


def drawn(n, d=1, noise=0.1, lengthscale=0.3, seed=0):
    """Data from a process with known parameters: what leave-one-out gives, and independent residuals."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, d))
    squared = np.sum((X[:, None] - X) ** 2, axis=2) / lengthscale**2
    C = np.exp(-0.5 * squared) + noise * np.eye(n)
    L = np.linalg.cholesky(C)
    w = rng.normal(size=n)
    P = np.linalg.inv(C)
    a = P @ L @ w
    z = a / np.sqrt(np.diag(P))
    return z, L @ w - a / np.diag(P), L @ w, X, w


def kinds(z, mean=None, y=None, X=None, w=None):
    n = len(z)
    rng = np.random.default_rng(12)
    mean = rng.normal(size=n) if mean is None else mean
    y = rng.normal(size=n) if y is None else y
    X = rng.uniform(size=(n, 1)) if X is None else X
    return [f.kind for f in diagnostics.of_residuals(z, mean, y, X, [f"x{j}" for j in range(X.shape[1])], w)]


@pytest.mark.parametrize(("n", "d", "noise"), [(30, 1, 0.1), (100, 3, 0.1), (100, 1, 1e-6), (200, 2, 1.0)])
def test_a_right_model_raises_no_alarm(n, d, noise):
    """In 19 of 20 draws at least: five hundred rows are like two hundred, and take longer."""
    alarms = [kinds(*drawn(n, d, noise, seed=seed)) for seed in range(20)]
    assert sum(map(bool, alarms)) <= 1


def test_many_rows_of_a_right_model():
    rng = np.random.default_rng(0)
    assert sum(bool(kinds(rng.normal(size=500), X=rng.normal(size=(500, 4)))) for _ in range(20)) <= 2


def test_intervals_too_wide_too_narrow_and_of_heavy_tails():
    rng = np.random.default_rng(1)
    normal = rng.normal(size=200)
    for z, words in [
        (0.6 * normal, "too wide"),
        (1.6 * normal, "too narrow"),
        (rng.standard_t(2, size=200) / 2, "heavier tails"),
        (np.where(rng.random(200) < 0.5, 0.1, 1.4) * normal, "heavier tails"),
    ]:
        (found,) = diagnostics.calibration(z)
        assert words in found.text
        assert found.severity == "warning"
        assert "%" in str(found)
    assert diagnostics.calibration(normal) == []
    # Residuals that are correlated stray further by chance: what is independent decides.
    assert diagnostics.calibration(0.6 * normal, independent=normal) == []


def test_residuals_in_two_groups_have_lighter_tails():
    rng = np.random.default_rng(1)
    groups = rng.choice([-1.0, 1.0], 300) + 0.05 * rng.normal(size=300)
    wave = np.sqrt(2) * np.sin(np.linspace(0, 60, 300)) + 0.05 * rng.normal(size=300)
    for z in (groups, wave, 1.1 * groups, np.sqrt(3) * rng.uniform(-1, 1, 2000)):
        (found,) = diagnostics.calibration(z)
        assert "lighter tails than a Gaussian, or fall into two groups" in found.text
        assert "95% intervals cover 100%" in found.text
        assert "histogram" in found.remedy
    (found,) = diagnostics.calibration(rng.standard_t(2, size=300) / 2)
    assert "likelihood='student'" in found.remedy


def test_intervals_widened_on_purpose_are_not_called_too_wide():
    """Too wide is judged without the factor, too narrow with it."""
    normal = np.random.default_rng(1).normal(size=200)
    assert diagnostics.calibration(0.6 * normal, widened=1 / 0.36) == []
    assert "too wide" in diagnostics.calibration(0.4 * normal, widened=1.5)[0].text
    assert "too narrow" in diagnostics.calibration(1.6 * normal, widened=1.5)[0].text
    heavy = np.random.default_rng(1).standard_t(2, size=200) / 2
    assert "heavier tails" in diagnostics.calibration(heavy / 1.2, widened=1.44)[0].text


def test_what_chance_gives_is_binomial():
    for k, n, p in [(3, 40, 0.5), (39, 40, 0.8), (40, 40, 0.95), (0, 40, 0.5)]:
        below, above = stats.binom.cdf(k, n, p), stats.binom.sf(k - 1, n, p)
        assert diagnostics._binomial(k, n, p) == pytest.approx(min(1, 2 * min(below, above)))
    low, high = stats.binom.interval(0.95, 342, 0.8)
    assert chance_range(342, 0.8) == pytest.approx((low / 342, high / 342))


def test_gross_outliers_are_named():
    z, mean, y, X, _ = drawn(100)
    z[[4, 50, 77]] = [9.0, -12.0, 8.0]
    z *= 0.5  # they set the noise
    (found,) = diagnostics.outliers(z)
    assert "3 rows are outliers" in found.text
    assert [text in found.text for text in ("50 (-", "4 (+", "77 (+")] == [True] * 3
    assert {"outliers", "calibration"} <= set(kinds(z, mean, y, X))
    assert "heavy tails" in diagnostics.outliers(np.random.default_rng(0).standard_cauchy(200))[0].remedy
    assert diagnostics.outliers(np.random.default_rng(0).normal(size=30)) == []


def test_a_missed_season_and_its_period():
    rng = np.random.default_rng(2)
    t = np.arange(120) / 12
    for x in (t, np.sort(rng.uniform(0, 10, 120))):
        wave = np.sin(2 * np.pi * x + 1)
        z = (wave + rng.normal(size=120)) / np.sqrt(1.5)
        (found,) = diagnostics.serial(z, x[:, None], ["year"])
        assert found.kind == "season"
        assert "k.Periodic(" in found.remedy
        period = float(found.remedy.partition("k.Periodic(")[2].partition(")")[0])
        assert period == pytest.approx(1.0, rel=0.03)
    assert kinds(z, X=x[:, None]) == ["season"]


def test_neighbours_that_are_alike():
    rng = np.random.default_rng(3)
    slow = np.convolve(rng.normal(size=220), np.ones(10) / np.sqrt(10), "valid")[:200]
    z = 0.7 * slow + 0.7 * rng.normal(size=200)
    x = np.linspace(0, 1, 200)
    (found,) = diagnostics.serial(z, x[:, None], ["x"])
    assert (found.kind, found.name) == ("serial", "x")
    assert "rougher kernel" in found.remedy
    # In the order of the table alone: a time that is not among the inputs.
    (found,) = diagnostics.serial(z, rng.uniform(size=(200, 2)), ["a", "b"])
    assert (found.kind, found.name) == ("serial", None)
    assert "time" in found.remedy
    # A table sorted by the target says nothing of time.
    assert diagnostics.serial(z, rng.uniform(size=(200, 2)), ["a", "b"], y=np.arange(200)) == []


def test_curvature_is_seen_once_and_where_it_is():
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.normal(size=150), rng.lognormal(size=150), rng.integers(0, 2, 150)])
    z = rng.normal(size=150) + 1.5 * stats.zscore(stats.rankdata(X[:, 1])) ** 2
    z = (z - z.mean()) / z.std()
    assert [found.name for found in diagnostics.curvature(z, X, ["a", "b", "c"])] == ["b"]
    assert kinds(z, X=X).count("curvature") == 1
    assert "serial" not in kinds(z, X=X)
    assert "low in the middle" in diagnostics.curvature(z, X, ["a", "b", "c"])[0].text


def test_noise_that_grows():
    rng = np.random.default_rng(5)
    X = rng.uniform(0, 1, (150, 2))
    mean = 3 + rng.normal(size=150)
    z = rng.normal(size=150) * (0.3 + 1.7 * X[:, 1])
    (found,), level = diagnostics.spread(z, mean, mean, X, ["a", "b"])
    assert found.name == "b"
    assert "grows" in found.text
    assert np.corrcoef(level, X[:, 1])[0, 1] > 0.99
    assert "outliers" not in kinds(z, mean, mean, X)  # large where the noise is
    (found,), _ = diagnostics.spread(z, X[:, 1], np.ones(150), X[:, :1], ["a"])
    assert found.name == "the prediction"
    assert "np.log(y)" in found.remedy
    (found,), _ = diagnostics.spread(z[::-1], X[:, 1], np.ones(150), X[::-1] * [1, -1], ["a", "b"])
    assert "shrinks" in found.text
    in_between = rng.normal(size=150) * np.where(np.abs(X[:, 0] - 0.5) < 0.2, 2.0, 0.5)
    (found,), _ = diagnostics.spread(in_between, mean, mean, X, ["a", "b"])
    assert "largest in the middle of a" in found.text
    none, level = diagnostics.spread(rng.normal(size=150), mean, mean, X, ["a", "b"])
    assert none == []
    assert (level == 1).all()


def test_remedies_name_the_models_that_allow_for_it():
    rng = np.random.default_rng(8)
    z = rng.normal(size=150)
    z[3] = 9.0
    assert "likelihood='student'" in diagnostics.outliers(z)[0].remedy
    cauchy, counts = rng.standard_cauchy(150), rng.integers(0, 9, 150).astype(float)
    assert "likelihood='student'" in diagnostics.outliers(cauchy)[0].remedy
    assert "counts" not in diagnostics.outliers(cauchy, z)[0].remedy
    assert "likelihood='negative_binomial'" in diagnostics.outliers(cauchy, counts)[0].remedy
    x = rng.uniform(0, 1, 150)
    growing = rng.normal(size=150) * (0.3 + 1.7 * x)
    for y in (x - 0.5, counts):
        (found,), _ = diagnostics.spread(growing, x, y, x[:, None], ["a"])
        assert "HeteroscedasticGaussianProcessRegressor" in found.remedy
        assert ("likelihood='negative_binomial' or 'poisson'" in found.remedy.replace(")", "")) == (y is counts)


def test_skewed_residuals():
    rng = np.random.default_rng(6)
    z = rng.gamma(2.0, size=200) - 2
    assert "np.log(y)" in diagnostics.skew(z, np.ones(200))[0].remedy
    assert "down" in diagnostics.skew(-z, np.ones(200))[0].text
    assert diagnostics.skew(rng.normal(size=200), np.ones(200)) == []


def test_held_out_rows_that_disagree():
    rng = np.random.default_rng(7)
    left_out = -0.5 * rng.normal(size=200) ** 2
    assert diagnostics.disagreement(left_out, -0.5 * rng.normal(size=60) ** 2) == []
    (worse,) = diagnostics.disagreement(left_out, -0.5 * (2.5 * rng.normal(size=60)) ** 2)
    assert "worse" in worse.text
    (better,) = diagnostics.disagreement(left_out, -0.5 * (0.2 * rng.normal(size=60)) ** 2)
    assert "copies" in better.remedy
    assert diagnostics.disagreement(left_out, np.array([-50.0])) == []


def test_rows_that_say_nothing():
    assert kinds(np.full(50, np.inf)) == []
    assert kinds(np.zeros(50)) == []
    assert kinds(100 * np.ones(5)) == []
    assert "nan" not in str(kinds(np.r_[np.inf, np.zeros(60), np.ones(39)]))
    constant = np.zeros((50, 1))
    assert diagnostics.curvature(np.random.default_rng(0).normal(size=50), constant, ["x0"]) == []
