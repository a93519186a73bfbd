"""The process: moments, samples, conditioning, likelihood; against the textbook formulas, scikit-learn and laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(0)
X, Z = rng.normal(size=(9, 2)), rng.normal(size=(5, 2))
y = rng.normal(size=9)
NOISE = np.linspace(0.05, 0.4, 9)
KERNELS = [
    k.RBF(0.8),
    1.7 * k.Matern(1.2, nu=1.5) + k.Linear() + k.Constant(0.3),
    k.RBF(0.5) * k.Periodic(2.0).on(0) + k.White(0.1),
    k.Polynomial(2, offset=1.0),
    k.Custom(lambda a, b: float(np.exp(-np.abs(a - b).sum()))),
]


def textbook(kernel, X, y, noise, Z, mean=lambda A: np.zeros(len(A))):
    """(6.66), (6.67) and (6.69), with explicit inverses."""
    C_inv = np.linalg.inv(kernel(X) + np.diag(np.broadcast_to(noise, len(X))))
    Ks = kernel(X, Z)
    residual = y - mean(X)
    evidence = scipy.stats.multivariate_normal(mean(X), np.linalg.inv(C_inv)).logpdf(y)
    return mean(Z) + Ks.T @ C_inv @ residual, kernel(Z) - Ks.T @ C_inv @ Ks, evidence


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("noise", [0.1, NOISE], ids=["one", "each"])
def test_posterior_and_evidence_are_those_of_the_book(kernel, noise):
    f = mc.GP(kernel, mean=lambda x: 1 + 2 * x[0])
    g = f.condition(X, y, noise=noise)
    mean, covariance, evidence = textbook(kernel, X, y, noise, Z, lambda A: 1 + 2 * A[:, 0])
    np.testing.assert_allclose(g.mean(Z), mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(g.covariance(Z), covariance, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(g.variance(Z), np.diag(covariance), rtol=1e-8, atol=1e-10)
    assert f.log_likelihood(X, y, noise=noise) == pytest.approx(evidence, rel=1e-9)


@pytest.mark.parametrize("theirs", [sk.RBF(0.7), 2.0 * sk.Matern(0.9, nu=1.5) + sk.WhiteKernel(0.2)], ids=str)
def test_agrees_with_scikit_learn(theirs):
    regressor = GaussianProcessRegressor(theirs, alpha=0.3, optimizer=None).fit(X, y)
    g = mc.GP(theirs).condition(X, y, noise=0.3)
    mean, covariance = regressor.predict(Z, return_cov=True)
    np.testing.assert_allclose(g.mean(Z), mean, rtol=1e-9)
    np.testing.assert_allclose(g.covariance(Z), covariance, rtol=1e-9, atol=1e-12)
    assert mc.GP(theirs).log_likelihood(X, y, noise=0.3) == pytest.approx(regressor.log_marginal_likelihood_value_)
    # Also at the training inputs themselves, where white noise must not be taken for signal.
    np.testing.assert_allclose(g.mean(X), regressor.predict(X), rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("split", [1, 4, 8])
def test_conditioning_twice_is_conditioning_once(kernel, split):
    f = mc.GP(kernel, mean=0.7)
    once = f.condition(X, y, noise=NOISE)
    twice = f.condition(X[:split], y[:split], noise=NOISE[:split]).condition(X[split:], y[split:], noise=NOISE[split:])
    np.testing.assert_allclose(twice.mean(Z), once.mean(Z), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(twice.covariance(Z), once.covariance(Z), rtol=1e-8, atol=1e-11)
    # The chain rule: p(A, B) = p(A) p(B | A).
    first = f.log_likelihood(X[:split], y[:split], noise=NOISE[:split])
    given = f.condition(X[:split], y[:split], noise=NOISE[:split])
    second = given.log_likelihood(X[split:], y[split:], noise=NOISE[split:])
    assert first + second == pytest.approx(f.log_likelihood(X, y, noise=NOISE), rel=1e-10)


def test_laws():
    f = mc.GP(k.RBF(0.8), mean=0.4)
    # No data: the prior.
    empty = f.condition(np.empty((0, 2)), [], noise=0.1)
    np.testing.assert_array_equal(empty.mean(Z), f.mean(Z))
    assert f.log_likelihood(np.empty((0, 2)), []) == 0.0
    # Infinite noise: the prior. No noise: the data.
    np.testing.assert_allclose(f.condition(X, y, noise=1e14).mean(Z), 0.4, atol=1e-10)
    exact = f.condition(X, y)
    assert exact.jitter == 0
    np.testing.assert_allclose(exact.mean(X), y, atol=1e-8)
    np.testing.assert_allclose(exact.variance(X), 0.0, atol=1e-10)
    # Data never add variance; their order does not matter; far away the prior comes back.
    assert (exact.variance(Z) <= f.variance(Z) + 1e-12).all()
    order = rng.permutation(9)
    np.testing.assert_allclose(f.condition(X[order], y[order]).mean(Z), exact.mean(Z), atol=1e-8)
    np.testing.assert_allclose(exact.mean(Z + 100), 0.4)
    np.testing.assert_allclose(exact.variance(Z + 100), 1.0)


@pytest.mark.parametrize("conditioned", [False, True])
def test_samples_have_the_moments_they_should(conditioned):
    f = mc.GP(1.5 * k.Matern(0.9) + k.Linear(), mean=2.0)
    g = f.condition(X, y, noise=0.2) if conditioned else f
    draws = g.sample(Z, size=20_000, seed=1)
    assert draws.shape == (20_000, 5)
    spread = np.sqrt(g.variance(Z) / 20_000)
    assert (np.abs(draws.mean(0) - g.mean(Z)) < 5 * spread).all()
    np.testing.assert_allclose(np.cov(draws.T), g.covariance(Z), atol=0.08 * g.variance(Z).max())
    whitened = np.linalg.solve(np.linalg.cholesky(g.covariance(Z)), (draws - g.mean(Z)).T).ravel()
    assert scipy.stats.kstest(whitened, "norm").pvalue > 1e-3


def test_samples_are_reproducible_and_differ_by_seed():
    f = mc.GP(k.RBF())
    np.testing.assert_array_equal(f.sample(X, 3, seed=5), f.sample(X, 3, seed=5))
    assert not np.array_equal(f.sample(X, 3, seed=5), f.sample(X, 3, seed=6))
    assert f.sample(X, size=0).shape == (0, 9)
    assert f.sample(np.empty((0, 2)), size=2).shape == (2, 0)


def test_samples_at_many_points_of_smooth_and_rough_fields():
    line = np.linspace(0, 10, 2500)
    smooth = mc.GP(k.RBF(1.0)).sample(line, size=2)
    assert np.isfinite(smooth).all()
    assert np.abs(np.diff(smooth)).max() < 0.05
    rough = mc.GP(k.Exponential(1.0)).sample(line, size=2)
    assert np.abs(np.diff(rough)).max() > 0.05
    a, b = np.meshgrid(np.linspace(0, 1, 45), np.linspace(0, 1, 45))
    field = mc.GP(k.RBF([0.2, 0.5])).sample(np.column_stack([a.ravel(), b.ravel()]), seed=2)
    assert field.shape == (1, 2025)
    assert 0.3 < field.std() < 2


def test_samples_of_a_noise_free_posterior_pass_through_the_data():
    x = np.linspace(0, 5, 12)
    g = mc.GP(k.Matern(1.0)).condition(x, np.sin(x))
    dense = np.linspace(0, 5, 300)
    draws = g.sample(np.concatenate([x, dense]), size=3)
    np.testing.assert_allclose(draws[:, :12], np.tile(np.sin(x), (3, 1)), atol=1e-5)


def test_duplicate_points_without_noise_need_jitter_and_say_so():
    x = np.array([0.0, 0.0, 1.0])
    with pytest.warns(mc.NumericalWarning, match="singular"):
        g = mc.GP(k.RBF()).condition(x, [1.0, 1.0, 2.0])
    assert 0 < g.jitter < 1e-10
    assert "jitter" in repr(g)
    np.testing.assert_allclose(g.mean(x), [1.0, 1.0, 2.0], atol=1e-6)
    with pytest.warns(mc.NumericalWarning, match="singular"):
        mc.GP(k.RBF()).log_likelihood(x, [1.0, 1.0, 2.0])
    apart = mc.GP(k.RBF()).condition(x, [1.0, 3.0, 2.0], noise=0.1)
    assert apart.jitter == 0


@pytest.mark.parametrize("Frame", [pd.DataFrame, pl.DataFrame])
def test_frames_with_named_columns(Frame):
    frame = Frame({"east": X[:, 0], "north": X[:, 1]})
    new = Frame({"north": Z[:, 1], "east": Z[:, 0]})
    named = mc.GP(k.RBF(0.5).on("east") * k.RBF(2.0).on("north") + k.RBF([1.0, 3.0]))
    plain = mc.GP(k.RBF(0.5).on(0) * k.RBF(2.0).on(1) + k.RBF([1.0, 3.0]))
    g = named.condition(frame[:4], y[:4], noise=0.1).condition(frame[4:], y[4:], noise=0.1)
    h = plain.condition(X, y, noise=0.1)
    np.testing.assert_allclose(g.mean(new), h.mean(Z), rtol=1e-10)
    np.testing.assert_allclose(g.variance(new), h.variance(Z), rtol=1e-9)


def test_the_posterior_keeps_its_own_data_and_its_precision():
    mine, targets, noise = X.copy(), y.copy(), NOISE.copy()
    g = mc.GP(k.RBF()).condition(mine, targets, noise=noise)
    before, further = g.mean(Z), g.condition(Z, y[:5], noise=0.1).mean(Z)
    mine[:] = targets[:] = noise[:] = 7.0
    np.testing.assert_array_equal(g.mean(Z), before)
    np.testing.assert_array_equal(g.condition(Z, y[:5], noise=0.1).mean(Z), further)
    rows = [[0.0], [1.0]]
    g = mc.GP(k.RBF()).condition(rows, [1.0, 2.0], noise=0.1)
    before = g.mean([0.5])
    rows[0][0] = 9.0
    np.testing.assert_array_equal(g.mean([0.5]), before)
    x = np.linspace(0, 1, 4, dtype=np.float32)
    on_device = mc.GP(k.RBF()).condition(jnp.asarray(x), y[:4], noise=0.1)
    plain = mc.GP(k.RBF()).condition(x, y[:4], noise=0.1)
    assert on_device.mean(jnp.asarray(x)).dtype == np.float64
    np.testing.assert_array_equal(on_device.mean(jnp.asarray(x)), plain.mean(x))
    np.testing.assert_array_equal(on_device.sample(jnp.asarray(x)), plain.sample(x))


@pytest.mark.parametrize("Frame", [pd.DataFrame, pl.DataFrame])
def test_columns_nobody_asks_for(Frame):
    frame = Frame({"other": [0.5, 100.0], "a": [1.0, 2.0]})
    g = mc.GP(k.RBF().on("a")).condition(frame, [0.0, 1.0], noise=0.1)
    np.testing.assert_array_equal(g.mean(frame), g.mean(frame[["a"]]))
    more = g.condition(Frame({"a": [3]}), [2.0], noise=0.1)  # whole numbers under fractions
    np.testing.assert_allclose(more.mean(Frame({"a": [1.5]})), mc.GP(k.RBF()).condition(
        [1.0, 2.0, 3.0], [0.0, 1.0, 2.0], noise=0.1).mean([1.5]))  # fmt: skip
    # A mean function looks at columns by position: then all must be there.
    g = mc.GP(k.RBF().on("a"), mean=lambda x: x[0]).condition(frame, [0.0, 0.0], noise=0.1)
    with pytest.raises(mc.DataError, match="missing"):
        g.mean(frame[["a"]])


def test_inputs_of_any_kind():
    shared = mc.GP(k.Custom(lambda a, b: float(len(set(a) & set(b)))))
    g = shared.condition(["ab", "cd"], [1.0, -1.0], noise=0.1).condition(["ce"], [-1.0], noise=0.1)
    assert g.mean(["abx"])[0] > 0.5
    assert g.mean(["cde"])[0] < -0.5
    g = mc.GP(k.RBF()).condition([0.0, 1.0], [0.0, 1.0]).condition(np.array([[2.0]]), [2.0])
    assert g.mean([1.0]) == pytest.approx([1.0])


def test_kernels_that_are_not_valid_are_refused_unless_the_user_insists():
    with pytest.raises(mc.InvalidKernelError, match=r"6.37.*allow_invalid"):
        mc.GP(k.Sigmoid())
    with pytest.raises(mc.InvalidKernelError, match="conditionally valid"):
        mc.GP(k.ThinPlate())
    f = mc.GP(k.Sigmoid(0.1, 1.0), allow_invalid=True)
    assert np.isfinite(f.condition(X, y, noise=5.0).mean(Z)).all()
    with pytest.raises(mc.NotPositiveDefiniteError, match="check_kernel"):
        mc.GP(k.Sigmoid(1.0, -1.0), allow_invalid=True).sample(X)
    with pytest.raises(mc.NotPositiveDefiniteError, match="check_kernel"):
        mc.GP(k.Custom(lambda a, b: -1.0)).condition(X, y)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda f: f.condition(X, y[:3]), "one number per row"),
        (lambda f: f.condition(X, [*y[:8], np.nan]), "y has 1 missing"),
        (lambda f: f.condition(X, np.ones((9, 1, 1))), "one number per row"),
        (lambda f: jax.grad(lambda s: mc.GP(k.RBF(s)).log_likelihood(X, y, noise=0.1))(1.0), "plain numbers"),
        (lambda f: f.condition(X, y, noise=-1.0), "variance"),
        (lambda f: f.condition(X, y, noise=np.nan), "noise has"),
        (lambda f: f.condition(X, y, noise=1j), "complex"),
        (lambda f: f.condition(X, y, noise={}), "noise"),
        (lambda f: f.condition(X, y, noise=[0.1, 0.2]), "noise must hold one number per row"),
        (lambda f: f.condition(X, y, noise="low"), "noise"),
        (lambda f: f.log_likelihood(X, ["a"] * 9), "text"),
        (lambda f: f.condition(X, y).mean(np.ones((2, 3))), "equal width"),
        (lambda f: f.condition(X, y).condition(np.ones((2, 3)), [1, 2]), "equal width"),
        (lambda f: f.sample(X, size=-1), "size"),
        (lambda f: f.sample(X, size=1.5), "size"),
        (lambda f: mc.GP(k.RBF(), mean="high"), "mean"),
        (lambda f: mc.GP(k.RBF(), mean=np.nan), "mean"),
        (lambda f: mc.GP(k.RBF(), mean=lambda x: x).mean(X), "one finite number"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, says):
    with pytest.raises(mc.MercerError, match=says):
        call(mc.GP(k.RBF()))


def test_repr():
    assert repr(mc.GP(k.RBF())) == "GP(RBF(lengthscale=1.0), mean=0.0)"
    assert "given 9 observations" in repr(mc.GP(k.RBF()).condition(X, y, noise=0.1))


def test_an_unknown_mean_is_integrated_out_one_after_the_other():
    x, y = np.linspace(0, 4, 9)[:, None], np.sin(np.linspace(0, 4, 9)) + 3.0
    f = mc.GP(k.RBF(1.0), mean="unknown")
    with pytest.raises(mc.ParameterError, match="unknown before"):
        f.mean(x)
    g = f.condition(x[:4], y[:4], noise=0.1)
    both = g.condition(x[4:], y[4:], noise=0.1)
    whole = f.condition(x, y, noise=0.1)
    np.testing.assert_allclose(both.mean(x + 0.3), whole.mean(x + 0.3), atol=1e-10)
    np.testing.assert_allclose(both.covariance(x + 0.3), whole.covariance(x + 0.3), atol=1e-10)
    # ln p(new | seen) is the density of the joint prediction, noise included.
    mean, covariance = g.mean(x[4:]), g.covariance(x[4:]) + 0.1 * np.eye(5)
    z = np.linalg.solve(np.linalg.cholesky(covariance), y[4:] - mean)
    expected = -0.5 * z @ z - 0.5 * np.linalg.slogdet(covariance)[1] - 2.5 * np.log(2 * np.pi)
    assert g.log_likelihood(x[4:], y[4:], noise=0.1) == pytest.approx(expected, abs=1e-9)
    # A constant kernel of huge variance is nearly the same thing.
    nearly = mc.GP(k.RBF(1.0) + k.Constant(1e7)).condition(x, y, noise=0.1)
    np.testing.assert_allclose(whole.mean(x + 0.3), nearly.mean(x + 0.3), atol=1e-5)
    np.testing.assert_allclose(whole.variance(x + 0.3), nearly.variance(x + 0.3), atol=1e-5)
    dmean, dvariance = whole.gradients(x + 0.3)
    step = 1e-6
    np.testing.assert_allclose(
        dvariance[:, 0], (whole.variance(x + 0.3 + step) - whole.variance(x + 0.3 - step)) / 2e-6, atol=1e-6
    )
    np.testing.assert_allclose(dmean[:, 0], (whole.mean(x + 0.3 + step) - whole.mean(x + 0.3 - step)) / 2e-6, atol=1e-6)


def test_stored_fields_make_an_equal_process():
    g = mc.GP(1.5 * k.RBF(0.8), mean=0.3).condition(X, y, noise=NOISE)
    again = mc.GP.restored(**g.stored())
    np.testing.assert_array_equal(again.mean(Z), g.mean(Z))
    assert again.consistent()
    assert not mc.GP.restored(**{**g.stored(), "kernel": None}).consistent()
    assert not mc.GP.restored(**{**g.stored(), "observed": 1.0}).consistent()
