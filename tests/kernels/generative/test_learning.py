"""Parameters of generative models, learned further by evidence: gradients, and what is gained."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.core.precision import double
from reference import generative as reference

d = k.densities

RNG = np.random.default_rng(5)
CHAIN = RNG.dirichlet(np.ones(3)), RNG.dirichlet(np.ones(3), 3)
TABLE = RNG.dirichlet(np.ones(4), 3)
MEANS = RNG.normal(size=(3, 2))
EMISSIONS = {
    "symbols": TABLE,
    "diagonal": (MEANS, RNG.uniform(0.5, 1.5, size=(3, 2))),
    "full": (MEANS, np.array([[[1.0, 0.3], [0.3, 0.8]]] * 3)),
}
PARAMS = {"centre": np.array([0.3, -0.2]), "log_scale": np.array(0.1)}


def student(params, x):
    away = (x - params["centre"]) * jnp.exp(-params["log_scale"])
    return -3.0 * jnp.log1p(0.2 * jnp.sum(away**2)) - len(x) * params["log_scale"]


def sequences(kind, n):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 7, size=n)
    if kind == "symbols":
        return [rng.integers(0, 4, size=length).tolist() for length in lengths]
    return [rng.normal(size=(length, 2)) for length in lengths]


def check_gradient(kernel, X):
    """The gradient of sum_ij G_ij k(x_i, x_j) in the free parameters is a finite difference."""
    theta = np.asarray(to_free(kernel))
    G = np.random.default_rng(1).normal(size=(len(X), len(X)))
    with double():
        slope = np.asarray(jax.grad(lambda theta: jnp.vdot(G, from_free(kernel, theta)(X)))(jnp.asarray(theta)))
    at = lambda theta: float(np.vdot(G, from_free(kernel, theta)(X)))
    expected = [(at(theta + 1e-6 * e) - at(theta - 1e-6 * e)) / 2e-6 for e in np.eye(len(theta))]
    assert np.abs(expected).max() > 0
    assert slope == pytest.approx(np.array(expected), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("information", ["diagonal", "identity"])
def test_gradients_in_the_parameters_of_any_log_density(information):
    X = np.random.default_rng(0).normal(size=(6, 2))
    kernel = k.Fisher(student, PARAMS, information=information).fit(X)
    assert not to_free(kernel).size  # fixed, until they are freed
    check_gradient((1.5 * kernel).free(), X)


@pytest.mark.parametrize("emission", EMISSIONS)
@pytest.mark.parametrize("kind", ["fisher", "density", "mixture", "pairs"])
def test_gradients_in_the_parameters_of_a_hidden_markov_model(kind, emission):
    X, model = sequences(emission, 6), d.HiddenMarkovModel.of(*CHAIN, EMISSIONS[emission])
    other = d.HiddenMarkovModel.of(CHAIN[0][::-1], CHAIN[1].T / CHAIN[1].sum(axis=0)[:, None], EMISSIONS[emission])
    kernel = {
        "fisher": k.Fisher(model, information="diagonal"),
        "density": k.Density(model),
        "mixture": k.Mixture([model, other], weights=[0.3, 0.7]).normalize(),
        "pairs": k.HiddenMarkov(model),
    }[kind]
    check_gradient(kernel.fit(X).free(), X)


@pytest.mark.parametrize("emission", EMISSIONS)
def test_compiled_loops_and_jax_agree_on_sequences(emission):
    model = d.HiddenMarkovModel.of(*CHAIN, EMISSIONS[emission]).free()
    rows, theta = model.prepare(sequences(emission, 7)), to_free(model)
    with double():
        for method in ("log_density", "scores"):
            traced = jax.jit(lambda theta, m=method: getattr(from_free(model, theta), m)(rows))(jnp.asarray(theta))
            assert np.asarray(traced) == pytest.approx(getattr(model, method)(rows), rel=1e-10, abs=1e-12)


def test_the_forward_recursion_in_jax_is_the_sum_over_all_paths():
    model = d.HiddenMarkovModel.of(*CHAIN, TABLE).free()
    X = sequences("symbols", 7)
    emit = lambda symbol, state: TABLE[state, symbol]
    expected = [np.log(reference.shared_path(x, [], *CHAIN, emit)) for x in X]
    rows, theta = model.prepare(X), to_free(model)
    with double():
        found = jax.jit(lambda theta: from_free(model, theta).log_density(rows))(jnp.asarray(theta))
    assert np.asarray(found) == pytest.approx(np.array(expected, dtype=float), rel=1e-10, abs=1e-12)


def test_sequences_in_strips_have_the_same_slopes(monkeypatch):
    from mercer.kernels.densities import markov

    X = sequences("symbols", 7)
    kernel = k.Fisher(d.HiddenMarkovModel.of(*CHAIN, TABLE), information="identity").free()
    slope = lambda: jax.grad(lambda theta: jnp.sum(from_free(kernel, theta)(X) ** 2))(jnp.asarray(to_free(kernel)))
    with double():
        whole = np.asarray(slope())
        monkeypatch.setattr(markov, "STRIP_ROWS", 3)
        markov._traced.clear_cache()
        by_strips = np.asarray(slope())
    markov._traced.clear_cache()
    assert by_strips == pytest.approx(whole, rel=1e-10)


def test_long_and_impossible_sequences_have_finite_slopes():
    strict = d.HiddenMarkovModel.of([1.0, 0.0], [[0.5, 0.5], [0.0, 1.0]], [[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]], "abc")
    X = ["ab" * 700, "acb", "", "b"]  # c cannot be
    kernel = k.Density(strict).normalize().free()
    kernel = kernel + k.Density(strict).free()
    with double():
        slope = jax.grad(lambda theta: jnp.sum(from_free(kernel, theta)(X)))(jnp.asarray(to_free(kernel)))
    assert np.isfinite(np.asarray(slope)).all()
    with pytest.raises(mc.ParameterError, match="exactly zero"):
        k.Fisher(strict, information="identity").free("transition")(["a", "b"])


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (k.Fisher(student, PARAMS, information="empirical"), ("params",)),
        (k.Mixture([d.Gaussian(), d.Gaussian.of([0.0, 3.0], 1.0)], weights=[0.5, 0.5]), ("mixture_weights",)),
    ],
    ids=repr,
)
def test_parameters_on_vectors_are_learned_without_getting_worse(kernel, names):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(25, 2)), rng.normal(size=(25, 2)) + 2.5])
    y = np.sin(X[:, 0]) + (X[:, 1] > 1.5) + 0.2 * rng.normal(size=50)
    fixed = mc.GaussianProcessRegressor(1.0 * kernel, progress=False).fit(X, y)
    free = mc.GaussianProcessRegressor(fixed.kernel_.free(*names), progress=False).fit(X, y)
    assert free.log_marginal_likelihood_ >= fixed.log_marginal_likelihood_ - 1e-3
    assert len(free.theta_) > len(fixed.theta_)
    assert np.isfinite(free.predict(X[:5])).all()
    assert pickle.loads(pickle.dumps(free.kernel_)) == free.kernel_


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (k.Fisher(d.HiddenMarkovModel(2)).normalize(), ("initial", "transition", "probabilities")),
        (k.Fisher(d.HiddenMarkovModel(2), "transition"), ("transition",)),
        (k.Density(d.HiddenMarkovModel(2)), ("transition", "probabilities")),
        (k.HiddenMarkov(2).normalize(), ("initial", "transition", "probabilities")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("solver", ["dense", "auto"])
def test_hidden_markov_models_are_learned_without_getting_worse(kernel, names, solver):
    rng = np.random.default_rng(0)
    shares = np.repeat([0.8, 0.3], 14)
    X = ["".join(rng.choice(list("ab"), p=[p, 1 - p], size=rng.integers(3, 9))) for p in shares]
    y = np.array([x.count("a") - x.count("ab") for x in X]) + 0.3 * rng.normal(size=28)
    settings = {"max_iterations": 8, "progress": False, "solver": solver}
    fixed = mc.GaussianProcessRegressor(1.0 * kernel, **settings).fit(X, y)
    free = mc.GaussianProcessRegressor(fixed.kernel_.free(*names), **settings).fit(X, y)
    assert free.log_marginal_likelihood_ >= fixed.log_marginal_likelihood_ - 1e-3
    assert len(free.theta_) > len(fixed.theta_)
    mean = free.predict([*X[:4], "abababababababababab"])  # longer than all it has seen
    assert np.isfinite(mean).all()
    assert np.abs(mean[:4] - free.predict(X)[:4]).max() < 1e-8


def test_classifiers_learn_a_hidden_markov_model_too():
    rng = np.random.default_rng(0)
    X = ["".join(rng.choice(list("ab"), p=p, size=6)) for p in ([0.8, 0.2], [0.3, 0.7]) for _ in range(10)]
    labels = np.repeat([0, 1], 10)
    kernel = 1.0 * k.Fisher(d.HiddenMarkovModel(2)).fit(X).normalize()
    fixed = mc.GaussianProcessClassifier(kernel, progress=False).fit(X, labels)
    free = mc.GaussianProcessClassifier(fixed.kernel_.free("transition"), max_iterations=5, progress=False)
    free.fit(X, labels)
    assert free.log_marginal_likelihood_ >= fixed.log_marginal_likelihood_ - 1e-3
