"""Parzen densities: against SciPy, scikit-learn and the formula; they integrate to one, and samples come from them."""

import numpy as np
import pytest
from scipy.stats import gaussian_kde

import mercer as mc
from mercer import kernels as k
from mercer.models.density import ParzenDensity

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2)) @ np.array([[2.0, 0.5], [0.0, 0.3]])
Z = rng.normal(size=(9, 2))
W = rng.uniform(size=60)
KERNELS = [
    k.RBF(), k.Exponential(), k.Matern(nu=1.5), k.Matern(nu=2.5), k.Matern(nu=0.8), k.RationalQuadratic(alpha=4.0),
]  # fmt: skip


@pytest.mark.parametrize("width", ["scott", "silverman", 0.3])
@pytest.mark.parametrize("weights", [None, W])
def test_scipy_has_the_same_densities(width, weights):
    theirs = gaussian_kde(X.T, bw_method=width, weights=weights)
    ours = ParzenDensity(width=width, covariance="full").fit(X, sample_weight=weights)
    np.testing.assert_allclose(ours.log_density(Z), theirs.logpdf(Z.T), rtol=1e-10)
    np.testing.assert_allclose(ours.covariance_, theirs.covariance, rtol=1e-10)
    if width != 0.3:  # of one input, both kinds are the same
        theirs = gaussian_kde(X[:, 0], bw_method=width, weights=weights)
        ours = ParzenDensity(width=width).fit(X[:, :1], sample_weight=weights)
        np.testing.assert_allclose(ours.density(Z[:, :1]), theirs(Z[:, 0]), rtol=1e-10)


@pytest.mark.parametrize(("name", "kernel"), [("gaussian", k.RBF()), ("exponential", k.Exponential())])
def test_scikit_learn_has_the_same_densities(name, kernel):
    from sklearn.neighbors import KernelDensity

    theirs = KernelDensity(kernel=name, bandwidth=0.7).fit(X, sample_weight=W)
    ours = ParzenDensity(5.0 * kernel, width=0.7).fit(X, sample_weight=W)
    np.testing.assert_allclose(ours.score_samples(Z), theirs.score_samples(Z), rtol=1e-9)
    assert ours.score(Z) == pytest.approx(theirs.score(Z) / 9)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_densities_are_kernels_over_their_integral(kernel):
    model = ParzenDensity(kernel).fit(X)
    K = kernel.replace(lengthscale=model.width_)(Z, X)
    log_ratio = model.log_density(Z) - np.log(K.mean(axis=1))
    np.testing.assert_allclose(log_ratio, log_ratio[0], atol=1e-9)  # a constant, and the right one:
    side = np.linspace(-1, 1, 161) ** 3 * 60
    step = np.gradient(side)
    one = ParzenDensity(kernel).fit(X[:5])
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    assert one.density(grid) @ np.outer(step, step).ravel() == pytest.approx(1.0, abs=5e-3)
    line = np.linspace(-1, 1, 4001) ** 3 * 200
    assert np.trapezoid(ParzenDensity(kernel).fit(X[:5, :1]).density(line[:, None]), line) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_samples_come_from_it(kernel, covariance):
    """Rules of thumb give every kernel the standard deviation they give a Gaussian."""
    model = ParzenDensity(kernel, covariance=covariance).fit(X)
    draws = model.sample(40_000, random_state=1)
    gauss = ParzenDensity(covariance=covariance).fit(X)
    expected = np.cov(X.T, bias=True) + gauss.covariance_
    scale = np.sqrt(np.diag(expected))
    assert np.abs((np.cov(draws.T) - expected) / np.outer(scale, scale)).max() < 0.06
    # The mean log density of its own draws is the same as that by integration over a grid, here of one input.
    one = ParzenDensity(kernel).fit(X[:9, :1])
    line = np.linspace(-1, 1, 4001) ** 3 * 100
    log_p = one.log_density(line[:, None])
    entropy = np.trapezoid(np.exp(log_p) * log_p, line)
    assert one.score(one.sample(20_000, random_state=2)) == pytest.approx(entropy, abs=0.03)


def test_leaving_one_out_is_fitting_without_it():
    for kernel in (None, k.Matern(nu=1.5)):
        model = ParzenDensity(kernel, width=0.4).fit(X, sample_weight=W)
        for i in (0, 31):
            rest = np.arange(60) != i
            other = ParzenDensity(kernel, width=0.4).fit(X[rest], sample_weight=W[rest])
            assert model.loo()[i] == pytest.approx(other.log_density(X[i : i + 1])[0], rel=1e-10)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_widths_by_the_likelihood_of_rows_left_out(covariance):
    model = ParzenDensity(width="loo", covariance=covariance, progress=False).fit(X)
    best = model.loo().sum()
    assert best >= ParzenDensity(covariance=covariance).fit(X).loo().sum()
    if covariance == "diagonal":
        for factor in ([1.1, 1], [0.9, 1], [1, 1.1], [1, 0.9]):
            assert ParzenDensity(width=model.width_ * factor).fit(X).loo().sum() < best
    scaled = ParzenDensity(width="loo", covariance=covariance, progress=False).fit(X * [1e6, 1e-6])
    np.testing.assert_allclose(scaled.width_, model.width_ * [1e6, 1e-6], rtol=1e-5)
    twice = ParzenDensity(width="loo", covariance=covariance, progress=False).fit(np.vstack([X, X]))
    np.testing.assert_allclose(twice.width_, model.width_, rtol=0.02)  # rows that come twice do not draw it to zero
    steps = ParzenDensity(width="loo", progress=False).fit(np.round(X))
    assert (steps.width_ >= 0.99 / np.sqrt(12)).all()


def test_one_input_has_a_distribution():
    model = ParzenDensity().fit(X[:, :1])
    levels = np.array([0.01, 0.5, 0.99])
    x = model.quantile(levels)
    np.testing.assert_allclose(model.cdf(x[:, None]), levels, rtol=1e-10)
    assert model.quantile(0.5) == x[1]
    line = np.linspace(-30, x[2], 20_001)
    assert np.trapezoid(model.density(line[:, None]), line) == pytest.approx(0.99, abs=1e-6)
    with pytest.raises(mc.ParameterError, match="2 inputs and RBF"):
        ParzenDensity().fit(X).cdf(Z)


def test_widths_may_be_given():
    np.testing.assert_allclose(ParzenDensity(width=[0.1, 2.0]).fit(X).width_, [0.1, 2.0])
    np.testing.assert_allclose(ParzenDensity(width=lambda X: X.std(axis=0)).fit(X).width_, X.std(axis=0))
    kept = ParzenDensity(k.Matern([0.3, 0.4]), width=None).fit(X)
    np.testing.assert_allclose(kept.kernel_.lengthscale, [0.3, 0.4])
    assert "width" in str(kept)


@pytest.mark.parametrize("kernel", KERNELS[:3] + KERNELS[-1:], ids=repr)
def test_far_away_and_hard_scales(kernel):
    far = ParzenDensity(kernel).fit(X).log_density([[1e9, 0.0]])[0]
    assert np.isfinite(far)
    assert far < -50
    for scale in (1e120, 1e-120):
        shifted = ParzenDensity(kernel).fit(X * scale).log_density(Z * scale)
        expected = ParzenDensity(kernel).fit(X).log_density(Z) - 2 * np.log(scale)
        np.testing.assert_allclose(shifted, expected, rtol=1e-9)
    assert np.isfinite(ParzenDensity(kernel).fit([[1.0, 2.0]]).log_density(Z)).all()
    assert np.isfinite(ParzenDensity(kernel).fit(np.ones((4, 2))).log_density(Z)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": k.Linear()}, "RBF, Exponential, Matern or RationalQuadratic; got Linear"),
        ({"kernel": k.RationalQuadratic(alpha=1.0)}, "for alpha above 1"),
        ({"width": "wide"}, "width must be one of 'scott'"),
        ({"width": -1.0}, "width must be a positive"),
        ({"width": [1.0, 2.0, 3.0]}, "one for each of 2 inputs"),
        ({"covariance": "round"}, "one of 'diagonal', 'full'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(mc.ParameterError, match=message):
        ParzenDensity(**settings).fit(X)


def test_full_needs_rows_in_every_direction():
    with pytest.raises(mc.DataError, match="fewer than 3 directions"):
        ParzenDensity(covariance="full").fit(np.column_stack([X, X.sum(axis=1)]))
    with pytest.raises(mc.DataError, match="at least two rows"):
        ParzenDensity().fit([[1.0]]).loo()


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_sizes_whose_square_is_no_number_are_told(size):
    with pytest.raises(mc.DataError, match="other units"):
        ParzenDensity().fit(X * size)
