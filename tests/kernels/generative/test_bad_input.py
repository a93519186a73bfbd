"""Bad input to kernels from generative models: a clear error of mercer, never one of NumPy, scikit-learn or JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

import mercer as mc
from mercer import kernels as k
from mercer.kernels.base import Kernel

d = k.densities
X = np.random.default_rng(0).normal(size=(20, 2))
COUNTS = np.random.default_rng(1).poisson(2.0, size=(12, 2)) + 1.0
WORDS = ["abba", "baab", "aab", "b", "abab", "bbba"]


def centred(params, x):
    return -jnp.sum((x - params["centre"]) ** 2) * params["scale"]


PARAMS = {"centre": np.zeros(2), "scale": 1.0}


@pytest.fixture(scope="module")
def fitted():
    return {
        "diagonal": 2.0 * k.Mixture(2).fit(X),
        "full": k.Mixture(d.GaussianMixture(2, "full")).fit(X),
        "factors": k.Latent(1).fit(X),
        "markov": k.HiddenMarkov(2).fit(WORDS),
        "vectors": k.HiddenMarkov([0.5, 0.5], np.eye(2), (np.zeros((2, 2)), np.array([[[1.0, 0.3], [0.3, 0.8]]] * 2))),
        "counts": k.Mixture(d.MultinomialMixture(2)).fit(COUNTS),
        "list": k.Mixture([stats.norm(), stats.expon()]),
        "function": k.Fisher(centred, PARAMS),
    }


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("diagonal", {"means": np.zeros((3, 2))}, r"means \(2, d\).*\(3, 2\)"),
        ("diagonal", {"means": np.zeros((2, 3))}, r"means \(2, d\).*\(2, 3\)"),
        ("diagonal", {"means": 0.0}, r"means \(2, d\)"),
        ("diagonal", {"weights": [0.0, 0.0]}, "weights .* must not all be zero"),
        ("full", {"factors": 0}, r"factors \(C, d, d\)|without zeros on the diagonal"),
        ("full", {"factors": np.zeros((2, 2, 2))}, "without zeros on the diagonal"),
        ("factors", {"loadings": np.zeros(3)}, r"loadings \(d, q\)"),
        ("factors", {"loadings": np.zeros((2, 2))}, "1 columns of loadings"),
        ("factors", {"noise": 1.0}, r"noise \(d,\)"),
        ("markov", {"initial": [0.0, 0.0]}, "initial probabilities .* must not all be zero"),
        ("markov", {"initial": [1.0]}, "2 states"),
        ("markov", {"transition": [[1.0, 0.0], [0.0, 0.0]]}, "transition probabilities .* zero in a row"),
        ("markov", {"transition": [1.0, 0.0]}, "2 states"),
        ("markov", {"probabilities": np.ones((2, 3))}, "3 symbols; 2 are named"),
        ("markov", {"probabilities": np.ones(2)}, r"shape \(S, V\)"),
        ("markov", {"probabilities": np.zeros((2, 2))}, "must not all be zero"),
        ("vectors", {"factors": np.ones((2, 2))}, r"\(S, d, d\)"),
        ("vectors", {"factors": np.zeros((2, 2, 2))}, "without zeros"),
        ("counts", {"probabilities": np.zeros((2, 2))}, "must not all be zero"),
        ("counts", {"weights": [1.0]}, "do not match"),
        ("list", {"weights": [0.0, 0.0]}, "must not all be zero"),
        ("list", {"weights": [1.0]}, "2 numbers"),
        ("function", {"params": [1.0, 2.0]}, "a vector of 3"),
        ("function", {"params": [1.0, 2.0, np.nan]}, "finite"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(fitted, name, values, says):
    with pytest.raises(mc.ParameterError, match=says):
        fitted[name].replace(**values)


def test_parameters_of_other_shapes_that_fit_together_are_taken(fitted):
    wider = fitted["diagonal"].replace(means=np.zeros((2, 3)), variances=np.ones((2, 3)))
    assert wider([[0.0, 0.0, 0.0]])[0, 0] == pytest.approx(2 * (2 * np.pi) ** -3)
    one = fitted["diagonal"].replace(weights=[1.0, 0.0])
    assert np.linalg.matrix_rank(one(X)) == 1


MODELS = [
    lambda seed: d.GaussianMixture(2, random_state=seed),
    lambda seed: d.MultinomialMixture(2, random_state=seed),
    lambda seed: d.FactorAnalysis(1, random_state=seed),
    lambda seed: d.HiddenMarkovModel(2, random_state=seed),
    lambda seed: k.Fisher(d.Gaussian(), random_state=seed),
    lambda seed: k.Latent(lambda x, z: x[0], 1, random_state=seed),
]


@pytest.mark.parametrize("make", MODELS)
def test_seeds(make):
    for wrong in ("a", -1, 1.5, True):
        with pytest.raises(mc.ParameterError, match="random_state must be"):
            make(wrong)
    assert make(None).random_state == make(0).random_state
    assert make(np.random.default_rng(3)).random_state == make(np.random.default_rng(3)).random_state
    assert make(np.int64(7)).random_state == 7


def test_seeds_larger_than_those_of_scikit_learn():
    for model in (d.GaussianMixture(2, random_state=2**40), d.FactorAnalysis(1, random_state=2**40)):
        assert model.fit(X).fit(X) == model.fit(X)
        assert model.random_state == 2**40


def test_parameters_exist_once_a_kernel_is_fitted():
    for kernel, name in ((k.Mixture(2), "means"), (1.0 * k.HiddenMarkov(2), "transition"), (k.Latent(1), "noise")):
        with pytest.raises(mc.ParameterError, match=rf"no parameter '{name}'.*call fit\(X\) first"):
            kernel.free(name)
    with pytest.raises(mc.ParameterError) as error:
        k.Mixture(2).fit(X).free("mean")
    assert "fit(X)" not in str(error.value)


def test_what_jax_cannot_trace_is_told():
    for density in (stats.norm(), stats.gaussian_kde(X[:, :1].T)):
        for kernel in (k.Density(density), k.Mixture([density, d.Gaussian.of(0.0, 1.0)])):
            with pytest.raises(mc.DataError, match="cannot be traced by JAX"):
                jax.grad(lambda x, kernel=kernel: kernel(x).sum())(jnp.ones((3, 1)))
    for kernel in (k.Mixture(2), k.Latent(1), k.Fisher(d.Gaussian()), k.Fisher(centred, PARAMS)):
        with pytest.raises(mc.DataError, match=r"yet to learn.*kernel.fit\(X\)"):
            jax.grad(lambda x, kernel=kernel: kernel(x).sum())(jnp.ones((3, 2)))
    fitted = k.Mixture(2).fit(X)
    assert np.isfinite(jax.grad(lambda x: fitted(x).sum())(jnp.ones((3, 2)))).all()
    with pytest.raises(mc.ParameterError, match="Fit the kernel before"):
        jax.grad(lambda scale: k.Fisher(centred, {**PARAMS, "scale": scale})(X).sum())(1.0)
    with pytest.raises(mc.DataError, match="jit and hessian"):
        jax.jit(lambda A: k.HiddenMarkov(2).fit(WORDS).replace(transition=A)(WORDS))(jnp.full((2, 2), 0.5))


def test_log_densities_of_parameters_that_are_none():
    for wrong, says in (
        (lambda: k.Fisher(centred, {"center": 0.0})(X), "KeyError: 'centre'"),
        (lambda: k.Fisher(centred, {"centre": np.zeros(3), "scale": 1.0})(X), "log_density"),
        (lambda: k.Fisher(lambda params, x: x, 1.0)(X), "one number"),
        (lambda: k.Fisher(lambda x: 0.0, 1.0)(X), "log_density"),
        (lambda: k.Fisher(centred, "a"), "arrays of numbers"),
        (lambda: k.Fisher(centred, 1j), "arrays of numbers"),
        (lambda: k.Fisher(centred, {}), "needs the parameters"),
        (lambda: k.Fisher(centred, np.inf), "finite"),
        (lambda: k.Fisher(d.Gaussian(), 3), "names"),
        (lambda: k.Fisher(lambda params, x: jnp.sqrt(params) * x[0], 0.0, information="identity").free("params")(X),
         "score of row 0 is not finite"),
    ):  # fmt: skip
        with pytest.raises(mc.MercerError, match=says):
            wrong()


def test_reprs_show_what_is_not_the_default():
    shown = repr(k.Fisher(d.Gaussian(), information="sampled", n_samples=50, random_state=3))
    assert shown == "Fisher(Gaussian(covariance='full'), information='sampled', n_samples=50, random_state=3)"
    assert repr(k.Fisher(d.Gaussian())) == "Fisher(Gaussian(covariance='full'))"
    drawn = k.Latent(centred, 1, method="monte_carlo", n_nodes=8, random_state=2)
    assert repr(drawn) == "Latent(centred on 8 nodes, method='monte_carlo', n_nodes=8, random_state=2)"
    assert repr(k.Latent(1).normalize()) == "Latent(FactorAnalysis(n_latent=1), normalized=True)"
    assert repr(k.Latent(d.FactorAnalysis(1, random_state=4))) == "Latent(FactorAnalysis(n_latent=1, random_state=4))"


def test_the_error_on_features_names_all_kernels_that_have_them():
    with pytest.raises(mc.InfiniteFeaturesError) as error:
        k.RBF().features(X)
    named = {name for name in k.__all__ if getattr(getattr(k, name), "feature_block", None) is not None}
    named = {name for name in named if getattr(k, name).feature_block is not Kernel.feature_block}
    assert {"Mixture", "Density", "Fisher", "Linear"} <= named
    assert [name for name in sorted(named) if name not in str(error.value)] == []


def test_no_rows_and_empty_sequences():
    fitted = [k.HiddenMarkov(2), k.Fisher(d.HiddenMarkovModel(2)), k.Density(d.HiddenMarkovModel(2))]
    for kernel in (kernel.fit(WORDS) for kernel in fitted):
        for own in (kernel, kernel.free("transition")):
            assert own([]).shape == (0, 0)
            own_value = 0.0 if isinstance(own, k.Fisher) else 1.0  # p("") = 1, and its score is zero
            assert own([""])[0, 0] == own_value
            with pytest.raises(mc.DataError, match="row 1: the model has no symbol 'z'"):
                own(["ab", "az"])


def test_lists_of_densities_read_what_their_parts_read():
    two = k.Mixture([d.MultinomialMixture(2), d.MultinomialMixture(1)], weights=[0.4, 0.6]).fit(COUNTS)
    assert two(sp.csr_matrix(COUNTS)) == pytest.approx(two(COUNTS), rel=1e-12)
    y = COUNTS[:, 0] - COUNTS[:, 1]
    kernel = 1.0 * two.normalize().free("mixture_weights")
    settings = {"noise": 0.1, "learning": None, "normalize": False}
    models = [mc.GaussianProcessRegressor(kernel, **settings).fit(rows, y) for rows in (COUNTS, sp.csr_matrix(COUNTS))]
    assert models[1].predict(COUNTS) == pytest.approx(models[0].predict(COUNTS), rel=1e-8)


def test_weights_of_densities_of_scipy_are_learned():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1))
    y = np.exp(-0.5 * (x[:, 0] - 1) ** 2) + 0.05 * rng.normal(size=40)
    kernel = 1.0 * k.Mixture([stats.norm(), stats.norm(1.0)], weights=[0.9, 0.1])
    fixed = mc.GaussianProcessRegressor(kernel, progress=False).fit(x, y)
    free = mc.GaussianProcessRegressor(fixed.kernel_.free("weights"), progress=False).fit(x, y)
    assert free.log_marginal_likelihood_ >= fixed.log_marginal_likelihood_ - 1e-3
    with pytest.raises(mc.ParameterError, match="no parameter 'loc'"):
        k.Density(stats.norm()).free("loc")
