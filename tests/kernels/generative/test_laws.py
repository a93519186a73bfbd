"""What every kernel from a generative model promises, and the laws between them."""

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.core.precision import double
from reference import generative as reference

d = k.densities


def bump(x):
    return jnp.exp(-0.5 * jnp.sum((x / 2) ** 2)) * (1 + jnp.tanh(x[0]) ** 2)


def likelihood(x, z):
    return -0.5 * jnp.sum((x - jnp.sin(z[0])) ** 2 + 0.1 * z[0] ** 2)


def student(params, x):
    away = (x - params["centre"]) * jnp.exp(-params["log_scale"])
    return -3.0 * jnp.log1p(0.2 * jnp.sum(away**2)) - len(x) * params["log_scale"]


RNG = np.random.default_rng(5)
CHAIN = RNG.dirichlet(np.ones(3)), RNG.dirichlet(np.ones(3), 3)
TABLE = RNG.dirichlet(np.ones(4), 3)
VECTORS = RNG.normal(size=(3, 2)), RNG.uniform(0.5, 1.5, size=(3, 2))
PARAMS = {"centre": np.array([0.3, -0.2]), "log_scale": np.array(0.1)}
DRAWN = {
    "vectors": lambda rng: rng.normal(size=2),
    "counts": lambda rng: rng.poisson(1.5, size=5).astype(float),
    "strings": lambda rng: "".join(rng.choice(list("acgt"), size=rng.integers(0, 9))),
    "paths": lambda rng: rng.normal(size=(rng.integers(1, 6), 2)),
}
EXAMPLES = [
    (k.Density(bump), "vectors"),
    (k.Density(stats.multivariate_normal([0.0, 1.0], [[1.0, 0.4], [0.4, 2.0]])), "vectors"),
    (k.Density(d.GaussianMixture(2)), "vectors"),
    (k.Mixture(3), "vectors"),
    (k.Mixture(3).normalize(), "vectors"),
    (k.Mixture(d.GaussianMixture(2, "full")), "vectors"),
    (k.Mixture([bump, stats.multivariate_normal([0.0, 1.0])], weights=[0.3, 0.7]), "vectors"),
    (k.Mixture(d.MultinomialMixture(2)).normalize(), "counts"),
    (k.Latent(1), "vectors"),
    (k.Latent(1).normalize(), "vectors"),
    (k.Latent(likelihood, prior=1, log=True), "vectors"),
    (k.Latent(likelihood, prior=5, log=True), "vectors"),
    (k.HiddenMarkov(*CHAIN, TABLE, symbols="acgt"), "strings"),
    (k.HiddenMarkov(2, symbols="acgt").normalize(), "strings"),
    (k.HiddenMarkov(*CHAIN, VECTORS), "paths"),
    (k.Fisher(d.Gaussian()), "vectors"),
    (k.Fisher(d.GaussianMixture(2), "means", information="sampled", n_samples=500), "vectors"),
    (k.Fisher(student, PARAMS, information="identity"), "vectors"),
    (k.Fisher(d.MultinomialMixture(2), information="diagonal"), "counts"),
    (k.Fisher(d.MultinomialMixture(2), "probabilities", information="sampled", n_samples=500), "counts"),
    (k.Fisher(d.HiddenMarkovModel(2, symbols="acgt"), information="sampled", n_samples=300), "strings"),
    (k.Fisher(d.HiddenMarkovModel.of(*CHAIN, TABLE, symbols="acgt"), information="diagonal"), "strings"),
    (2.0 * k.Mixture(2).normalize() + k.RBF(2.0) * k.Fisher(d.Gaussian()).normalize(), "vectors"),
    (k.HiddenMarkov(*CHAIN, TABLE, symbols="acgt").normalize() + k.Spectrum(2).normalize(), "strings"),
]
every = pytest.mark.parametrize(("kernel", "kind"), EXAMPLES, ids=lambda value: repr(value)[:90])


def rows(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    drawn = [DRAWN[kind](rng) for _ in range(n)]
    return np.stack(drawn) if kind in ("vectors", "counts") else drawn


def stacked(X, Z):
    return np.concatenate([X, Z]) if isinstance(X, np.ndarray) else [*X, *Z]


def test_every_class_is_here():
    public = {getattr(k, name) for name in k.__all__}
    mine = {cls for cls in public if cls.__module__.startswith("mercer.kernels.generative")}
    assert mine == {k.Density, k.Mixture, k.Latent, k.HiddenMarkov, k.Fisher}
    assert mine <= {type(kernel) for kernel, _ in EXAMPLES}


@every
def test_a_gram_matrix_is_symmetric_and_positive_semidefinite(kernel, kind):
    X = rows(kind, 25)
    K = kernel(X)
    assert np.abs(K - K.T).max() <= 1e-15 * np.abs(K).max()
    assert np.linalg.eigvalsh(K)[0] > -1e-10 * np.trace(K)
    assert kernel.diag(X) == pytest.approx(np.diag(K), rel=1e-10)
    assert kernel.validity
    assert kernel.validity.proof.rules


@every
def test_two_sets_are_compared_as_if_they_were_one(kernel, kind):
    X, Z = rows(kind, 25), rows(kind, 7, seed=1)
    kernel = kernel.fit(X)
    assert not kernel.needs_fit
    assert kernel(X, Z) == pytest.approx(kernel(stacked(X, Z))[:25, 25:], rel=1e-10, abs=1e-14)
    assert kernel(Z, X) == pytest.approx(kernel(X, Z).T, rel=1e-10, abs=1e-14)


@every
def test_a_kernel_is_a_value_and_normalises(kernel, kind):
    X = rows(kind, 25)
    assert kernel.fit(X) == kernel.fit(X)
    same = pickle.loads(pickle.dumps(kernel.fit(X)))
    assert np.array_equal(same(X), kernel(X))
    unit = kernel.normalize()(X)
    assert set(np.diag(unit).round(10)) <= {0.0, 1.0}
    K, own = kernel(X), kernel.diag(X)
    some = own > 0
    expected = K[some][:, some] / np.sqrt(np.outer(own[some], own[some]))
    assert unit[some][:, some] == pytest.approx(expected, rel=1e-8, abs=1e-10)


@every
def test_features_and_solvers_agree_on_new_rows(kernel, kind):
    X, Z = rows(kind, 40), rows(kind, 6, seed=1)
    kernel = 1.0 * kernel.fit(X).normalize()
    y = kernel(X)[:, 0] + 0.1 * np.random.default_rng(2).normal(size=40)
    settings = {"noise": 0.1, "learning": None, "normalize": False}
    dense = mc.GaussianProcessRegressor(kernel, solver="dense", **settings).fit(X, y)
    mean, deviation = dense.predict(Z, return_std=True)
    try:
        phi = kernel.features(X)
    except mc.MercerError:
        with pytest.raises(mc.ParameterError, match="finitely many features"):
            mc.GaussianProcessRegressor(kernel, solver="weights", **settings).fit(X, y)
        return
    assert phi @ phi.T == pytest.approx(kernel(X), rel=1e-10, abs=1e-12)
    weights = mc.GaussianProcessRegressor(kernel, solver="weights", **settings).fit(X, y)
    again = weights.predict(Z, return_std=True)
    assert again[0] == pytest.approx(mean, rel=1e-7, abs=1e-9)
    assert again[1] == pytest.approx(deviation, rel=1e-7, abs=1e-9)


@every
def test_models_come_back_from_files(kernel, kind, tmp_path):
    X, y = rows(kind, 25), np.arange(25) % 2
    model = mc.KernelFisherDiscriminant(1.0 * kernel.normalize()).fit(X, y)
    functions = (bump, likelihood, student)
    if any(function.__name__ in repr(kernel) for function in functions) or "FunctionOfParameters" in repr(kernel):
        with pytest.raises(mc.ParameterError, match="function of your own"):
            mc.save(model, tmp_path / "m.mercer")
        return
    mc.save(model, tmp_path / "m.mercer")
    loaded = mc.load(tmp_path / "m.mercer")
    assert loaded.kernel_ == model.kernel_
    assert np.array_equal(loaded.predict_proba(rows(kind, 5, 3)), model.predict_proba(rows(kind, 5, 3)))


# -- values against the formulas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("full", [False, True])
def test_a_mixture_is_the_sum_over_its_components(seed, full):
    rng = np.random.default_rng(seed)
    C, dim = rng.integers(1, 5), rng.integers(1, 4)
    w, m = rng.dirichlet(np.ones(C)), rng.normal(size=(C, dim))
    A = rng.normal(size=(C, dim, dim))
    S = A @ A.swapaxes(1, 2) + np.eye(dim) if full else rng.uniform(0.5, 2, size=(C, dim))
    kernel = k.Mixture(d.GaussianMixture.of(w, m, S))
    X = rng.normal(size=(4, dim))
    parts = [lambda x, i=i: reference.normal(x, m[i], S[i] if full else np.diag(S[i])) for i in range(C)]
    expected = [[reference.mixture(x, z, w, parts) for z in X] for x in X]
    assert kernel(X) == pytest.approx(np.array(expected), rel=1e-10)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_mixtures_of_scikit_learn_have_its_densities(covariance_type):
    from sklearn.mixture import GaussianMixture

    X = np.random.default_rng(0).normal(size=(60, 3))
    model = GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(X)
    assert np.log(k.Density(model).diag(X)) / 2 == pytest.approx(model.score_samples(X), rel=1e-8)
    assert k.Mixture(model).model.responsibilities(X) == pytest.approx(model.predict_proba(X), abs=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_a_hidden_markov_kernel_is_the_sum_over_all_paths(seed):
    rng = np.random.default_rng(seed)
    S, V = rng.integers(1, 4), rng.integers(1, 5)
    initial, transition, table = (rng.dirichlet(np.ones(n), s) for n, s in ((S, 1), (S, S), (V, S)))
    X = [rng.integers(0, V, size=length).tolist() for length in (0, 1, 3, 5, 2)]
    emit = lambda symbol, state: table[state, symbol]
    kernel = k.HiddenMarkov(initial[0], transition, table)
    expected = np.array([[reference.shared_path(x, z, initial[0], transition, emit) for z in X] for x in X])
    assert kernel(X) == pytest.approx(expected, rel=1e-10)
    assert kernel.diag(X) == pytest.approx(np.diag(expected), rel=1e-10)
    own = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert kernel.normalize()(X) == pytest.approx(expected / own, rel=1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_gaussian_emissions(full):
    rng = np.random.default_rng(1)
    initial, transition, m = rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(2), 2), rng.normal(size=(2, 2))
    S = np.array([[[1.0, 0.3], [0.3, 0.8]], [[0.5, -0.2], [-0.2, 1.0]]]) if full else rng.uniform(0.5, 1, size=(2, 2))
    X = [rng.normal(size=(length, 2)) for length in (1, 4, 2)]
    emit = lambda x, state: reference.normal(x, m[state], S[state] if full else np.diag(S[state]))
    expected = np.array([[reference.shared_path(x, z, initial, transition, emit) for z in X] for x in X])
    assert k.HiddenMarkov(initial, transition, (m, S))(X) == pytest.approx(expected, rel=1e-10)


def test_long_sequences_do_not_underflow():
    rng = np.random.default_rng(0)
    X = ["".join(rng.choice(list("acgt"), size=3000)) for _ in range(4)]
    kernel = k.HiddenMarkov(*CHAIN, TABLE, symbols="acgt")
    with pytest.warns(mc.core.errors.ModelWarning, match="underflow"):
        assert not kernel(X).any()  # exp(-8000)
    K = kernel.normalize()(X)
    assert np.array_equal(np.diag(K), np.ones(4))
    short = [x[:40] for x in X]
    logs = np.log(kernel(short))
    own = 0.5 * np.diag(logs)
    assert kernel.normalize()(short) == pytest.approx(np.exp(logs - own[:, None] - own[None, :]), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "covariance"), [("categorical", None), *(("gaussian", c) for c in ("full", "diag", "tied", "spherical"))]
)
def test_models_of_hmmlearn(kind, covariance):
    hmm = pytest.importorskip("hmmlearn.hmm")
    rng = np.random.default_rng(0)
    lengths = [20, 30, 25]
    if kind == "categorical":
        values = rng.integers(0, 3, size=(75, 1))
        model = hmm.CategoricalHMM(2, random_state=0).fit(values, lengths)
        X = [part[:, 0].tolist() for part in np.split(values, np.cumsum(lengths)[:-1])]
    else:
        values = rng.normal(size=(75, 2))
        model = hmm.GaussianHMM(2, covariance, random_state=0).fit(values, lengths)
        X = np.split(values, np.cumsum(lengths)[:-1])
    own = d.HiddenMarkovModel.from_hmmlearn(model)
    expected = [model.score(part, [len(part)]) for part in np.split(values, np.cumsum(lengths)[:-1])]
    assert own.log_density(own.prepare(X)) == pytest.approx(expected, rel=1e-8)
    assert k.HiddenMarkov(model).normalize()(X)[0, 0] == 1.0


def test_a_hidden_markov_model_is_learned():
    truth = d.HiddenMarkovModel.of([0.5, 0.5], [[0.95, 0.05], [0.05, 0.95]], [[0.9, 0.1], [0.1, 0.9]], symbols="ab")
    X = ["".join(row) for row in truth.sample(60, np.random.default_rng(0), length=60)]
    new = ["".join(row) for row in truth.sample(40, np.random.default_rng(1), length=60)]
    mean = lambda model: float(np.mean(model.log_density(model.prepare(new))))
    learned = d.HiddenMarkovModel(2).fit(X)
    assert mean(d.HiddenMarkovModel(1).fit(X)) + 5 < mean(learned)
    assert mean(learned) == pytest.approx(mean(truth), abs=0.3)


def test_a_multinomial_mixture_is_learned_from_sparse_counts_too():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(12, 0.3), 3)
    X = np.stack([rng.multinomial(40, topics[i % 3]) for i in range(150)]).astype(float)
    model = d.MultinomialMixture(3).fit(X)
    R = model.responsibilities(model.prepare(X))
    assert all(len({int(R[i].argmax()) for i in range(first, 150, 3)}) == 1 for first in range(3))
    again = d.MultinomialMixture(3).fit(sp.csr_matrix(X))
    assert np.asarray(again.components.probabilities) == pytest.approx(np.asarray(model.components.probabilities))
    for kernel in (k.Fisher(d.MultinomialMixture(3)), k.Mixture(d.MultinomialMixture(3)).normalize()):
        assert kernel(sp.csr_matrix(X[:30])) == pytest.approx(kernel(X[:30]), rel=1e-9, abs=1e-9)
    y = X[:, 0] - X[:, 3] + 0.1 * rng.normal(size=150)
    fitted = [
        mc.GaussianProcessRegressor(1.0 * k.Fisher(model), progress=False).fit(rows, y)
        for rows in (X, sp.csr_matrix(X))
    ]
    assert fitted[1].predict(sp.csr_matrix(X[:9])) == pytest.approx(fitted[0].predict(X[:9]), rel=1e-6)


# -- laws between kernels ---------------------------------------------------------------------------------------------


def test_a_mixture_of_one_component_is_a_density():
    X = np.random.default_rng(0).normal(size=(9, 2))
    one = stats.multivariate_normal([0.5, 0.0], [[1.0, 0.2], [0.2, 0.5]])
    assert k.Mixture([one])(X) == pytest.approx(k.Density(one)(X), rel=1e-12)
    assert k.Mixture(d.Gaussian.of([0.5, 0.0], one.cov))(X) == pytest.approx(
        np.outer(one.pdf(X), one.pdf(X)), rel=1e-10
    )


def test_a_hidden_markov_kernel_of_one_state_is_a_product_of_densities():
    p = np.array([0.5, 0.2, 0.2, 0.1])
    X = ["acgt", "", "ttgaca", "gg"]
    own = np.array([np.prod([p["acgt".index(letter)] for letter in x]) for x in X])
    assert k.HiddenMarkov([1.0], [[1.0]], [p], symbols="acgt")(X) == pytest.approx(np.outer(own, own), rel=1e-10)


def test_sequences_of_one_observation_are_rows_of_a_mixture():
    X = np.random.default_rng(0).normal(size=(8, 2))
    kernel = k.HiddenMarkov(*CHAIN, VECTORS)
    expected = k.Mixture(d.GaussianMixture.of(CHAIN[0], *VECTORS))(X)
    assert kernel([x[None] for x in X]) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_of_a_latent_variable(seed):
    rng = np.random.default_rng(seed)
    dim, q = rng.integers(1, 5), rng.integers(1, 3)
    W, m, noise = rng.normal(size=(dim, q)), rng.normal(size=dim), rng.uniform(0.3, 2, size=dim)
    X = rng.normal(size=(5, dim))
    expected = np.array([[reference.linear_gaussian(x, z, W, m, noise) for z in X] for x in X])
    model = d.FactorAnalysis.of(W, m, noise)
    assert k.Latent(model)(X) == pytest.approx(expected, rel=1e-9)
    joint = stats.multivariate_normal(m, W @ W.T + np.diag(noise))
    assert k.Density(model).diag(X) == pytest.approx(joint.pdf(X) ** 2, rel=1e-9)

    def density(x, z):
        away = x - m - W @ z
        return -0.5 * jnp.sum(away**2 / noise + jnp.log(2 * jnp.pi * noise))

    by_nodes = k.Latent(density, prior=int(q), log=True)
    off = np.abs(np.diag(by_nodes(X)) / np.diag(expected) - 1)
    assert (off <= by_nodes.error(X) + 1e-9).all()
    assert off.max() < 0.01
    drawn = k.Latent(density, prior=int(q), log=True, method="monte_carlo", n_nodes=1 << 14)
    off = np.abs(np.diag(drawn(X)) / np.diag(expected) - 1)
    assert (off < 3 * drawn.error(X)).all()
    assert np.linalg.eigvalsh(drawn(X))[0] > -1e-12


def test_pca_of_scikit_learn_is_probabilistic_pca():
    from sklearn.decomposition import PCA, FactorAnalysis

    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 4)) + 0.3 * rng.normal(size=(200, 4))
    for model in (PCA(2).fit(X), FactorAnalysis(2).fit(X)):
        own = d.FactorAnalysis.from_sklearn(model)
        mean = np.mean(np.asarray(k.Density(own).diag(X)))
        log_densities = 0.5 * np.log(k.Density(own).diag(X))
        assert log_densities == pytest.approx(model.score_samples(X), abs=0.03)
        assert mean > 0
    assert k.Latent(PCA(2).fit(X)).normalize()(X[:5]).min() > 0


@pytest.mark.parametrize(
    "prior", [stats.norm(0.5, 2.0), stats.uniform(-1, 3), stats.gamma(3.0), d.Gaussian.of([0.5], [[4.0]])]
)
def test_priors_of_a_latent_variable(prior):
    from scipy.integrate import quad

    pdf = prior.pdf if hasattr(prior, "pdf") else stats.norm(0.5, 2.0).pdf
    kernel = k.Latent(lambda x, z: jnp.exp(-0.5 * jnp.sum((x - z) ** 2)), prior)
    expected = quad(lambda z: np.exp(-0.5 * (0.3 - z) ** 2 - 0.5 * (1.1 - z) ** 2) * pdf(z), -30, 30, limit=400)[0]
    assert kernel([0.3], [1.1])[0, 0] == pytest.approx(expected, rel=1e-3)


# -- Fisher kernels ---------------------------------------------------------------------------------------------------


def test_the_fisher_kernel_of_a_gaussian_in_all_its_parameters():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(3, 3))
    m, S = rng.normal(size=3), A @ A.T + np.eye(3)
    X = rng.normal(size=(6, 3))
    z = np.linalg.solve(np.linalg.cholesky(S), (X - m).T).T
    n2 = (z**2).sum(axis=1)
    expected = z @ z.T + 0.5 * ((z @ z.T) ** 2 - n2[:, None] - n2[None, :] + 3)
    assert k.Fisher(d.Gaussian.of(m, S))(X) == pytest.approx(expected, rel=1e-8)


def test_the_average_of_scores_converges_to_the_exact_information():
    model = d.Gaussian.of([1.0, -2.0], [[2.0, 0.5], [0.5, 1.0]])
    exact = model.information
    errors = []
    for n in (1_000, 100_000):
        X = model.sample(n, np.random.default_rng(0))
        G = model.free().scores(X)
        errors.append(np.abs(G.T @ G / n - exact).max())
        X = X[:50]
        sampled = k.Fisher(model, information="sampled", n_samples=n)(X)
        off = np.abs(sampled - k.Fisher(model)(X)).max()
        errors[-1] += off
    assert errors[1] < 0.2 * errors[0]


def test_a_fisher_kernel_needs_no_particular_parameters():
    X = np.random.default_rng(0).normal(size=(40, 2)) * [1.0, 3.0]

    first = {"centre": np.array([0.5, 0.1]), "log_scale": np.array(0.2)}
    second = np.array([0.3, 0.2, 0.2 ** (1 / 3)])

    def mixed(params, x):
        return student({"centre": jnp.stack([params[0] + params[1], params[0] - params[1]]),
                        "log_scale": params[2] ** 3}, x)  # fmt: skip

    one = k.Fisher(student, first, information="empirical")(X)
    two = k.Fisher(mixed, second, information="empirical")(X)
    assert two == pytest.approx(one, rel=1e-8, abs=1e-8)
    plain = [k.Fisher(f, p, information="identity")(X) for f, p in ((student, first), (mixed, second))]
    assert np.abs(plain[0] - plain[1]).max() > 0.1


@pytest.mark.parametrize("model", [d.GaussianMixture(2), d.GaussianMixture(2, "full"), d.FactorAnalysis(1)], ids=repr)
def test_scores_are_finite_differences(model):
    X = np.random.default_rng(0).normal(size=(30, 3))
    free = model.fit(X).free()
    theta = np.asarray(to_free(free))
    rows = free.prepare(X)

    def at(theta):
        with double():
            return np.asarray(from_free(free, theta).log_density(rows))

    expected = np.stack([(at(theta + 1e-6 * e) - at(theta - 1e-6 * e)) / 2e-6 for e in np.eye(len(theta))], axis=1)
    assert free.scores(rows) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("emission", [TABLE, VECTORS, (VECTORS[0], np.array([[[1.0, 0.3], [0.3, 0.8]]] * 3))])
def test_scores_of_hidden_markov_models_are_finite_differences(emission):
    rng = np.random.default_rng(0)
    free = d.HiddenMarkovModel.of(*CHAIN, emission).free()
    draw = (
        (lambda: rng.integers(0, 4, size=rng.integers(0, 7)).tolist())
        if emission is TABLE
        else lambda: rng.normal(size=(4, 2))
    )
    rows, theta = free.prepare([draw() for _ in range(6)]), np.asarray(to_free(free))
    at = lambda theta: from_free(free, theta).log_density(rows)
    expected = np.stack([(at(theta + 1e-6 * e) - at(theta - 1e-6 * e)) / 2e-6 for e in np.eye(len(theta))], axis=1)
    assert free.scores(rows) == pytest.approx(expected, rel=1e-5, abs=1e-6)


# -- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [False, True])
def test_gradients_of_the_hidden_markov_kernel_are_finite_differences(normalized):
    kernel = k.HiddenMarkov(*CHAIN, TABLE, symbols="acgt")
    kernel = (1.5 * (kernel.normalize() if normalized else kernel)).free()
    X, theta = rows("strings", 6), np.asarray(to_free(kernel))
    G = np.random.default_rng(1).normal(size=(6, 6))
    with double():
        slope = np.asarray(jax.grad(lambda theta: jnp.vdot(G, from_free(kernel, theta)(X)))(jnp.asarray(theta)))
    at = lambda theta: float(np.vdot(G, from_free(kernel, theta)(X)))
    expected = [(at(theta + 1e-6 * e) - at(theta - 1e-6 * e)) / 2e-6 for e in np.eye(len(theta))]
    assert slope == pytest.approx(np.array(expected), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (k.Mixture(2).normalize(), ("means", "variances", "weights")),
        (k.Latent(1).normalize(), ("loadings", "noise")),
        (k.Fisher(d.Gaussian(), information="empirical"), ("means",)),
        (k.Density(d.Gaussian()), ("means", "factors")),
    ],
    ids=repr,
)
def test_parameters_of_a_model_are_learned_further_without_getting_worse(kernel, names):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + 2.5])
    y = np.sin(X[:, 0]) + (X[:, 1] > 1.5) + 0.2 * rng.normal(size=60)
    fixed = mc.GaussianProcessRegressor(1.0 * kernel, progress=False).fit(X, y)
    free = mc.GaussianProcessRegressor(fixed.kernel_.free(*names), progress=False).fit(X, y)
    assert free.log_marginal_likelihood_ >= fixed.log_marginal_likelihood_ - 1e-3
    assert len(free.theta_) > len(fixed.theta_)


def test_a_hidden_markov_kernel_is_learned_further():
    rng = np.random.default_rng(0)
    X = ["".join(rng.choice(list("ab"), p=p, size=8)) for p in ([0.8, 0.2], [0.3, 0.7]) for _ in range(12)]
    y = np.array([x.count("a") for x in X]) + 0.3 * rng.normal(size=24)
    kernel = 1.0 * k.HiddenMarkov(2).normalize()
    fixed = mc.GaussianProcessRegressor(kernel, progress=False).fit(X, y)
    start = fixed.kernel_.free("transition")
    free = mc.GaussianProcessRegressor(start, max_iterations=6, progress=False).fit(X, y)
    assert free.log_marginal_likelihood_ >= fixed.log_marginal_likelihood_ - 1e-3


def test_a_model_learns_from_the_training_rows_alone():
    from sklearn.model_selection import cross_val_score

    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    seen = []

    class Recorded(d.GaussianMixture):
        def fit(self, X):
            seen.append(np.asarray(X))
            return super().fit(X)

    y = (X[:, 0] > 0).astype(int)
    cross_val_score(mc.KernelFisherDiscriminant(k.Mixture(Recorded(2)).normalize()), X, y, cv=4)
    assert [len(part) for part in seen] == [30] * 4
    model = mc.KernelFisherDiscriminant(k.Mixture(2).normalize()).fit(X, y)
    assert model.kernel.needs_fit
    assert not model.kernel_.needs_fit
    ready = k.Mixture(2).fit(X[:10])
    assert mc.KernelFisherDiscriminant(ready).fit(X, y).kernel_ == ready


# -- bad input --------------------------------------------------------------------------------------------------------


def test_densities_that_are_none_are_refused():
    X = np.arange(4.0)
    with pytest.raises(mc.DataError, match="row 2"):
        k.Density(lambda x: jnp.where(x[0] == 2, jnp.nan, 1.0))(X)
    with pytest.raises(mc.DataError, match="row 1"):
        k.Density(lambda x: 0.5 - x[0])(X)
    with pytest.warns(mc.core.errors.ModelWarning, match="all densities of Density are zero"):
        assert not k.Density(lambda x: 0.0 * x[0])(X).any()
    with pytest.warns(mc.core.errors.ModelWarning, match="underflow"):
        k.Density(lambda x: -1000.0 - x[0], log=True)(X)
    assert k.Density(lambda x: -1000.0 - x[0], log=True).normalize()(X) == pytest.approx(np.ones((4, 4)))
    with pytest.raises(mc.ParameterError, match="a density was expected"):
        k.Density(3.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: k.Mixture(),
        lambda: k.Mixture(0),
        lambda: k.Mixture(5, n_components=3),
        lambda: k.Mixture(stats.norm()),
        lambda: k.Mixture([]),
        lambda: k.Mixture([stats.norm()], weights=[-1.0]),
        lambda: d.GaussianMixture.of([0.5, 0.5], [[0.0], [1.0]], np.zeros((2, 1, 1))),
        lambda: d.GaussianMixture.of([1.0], [[0.0], [1.0]], 1.0),
        lambda: d.GaussianMixture(2, "round"),
        lambda: d.MultinomialMixture.of([1.0], [[0.0, 0.0]]),
        lambda: k.Latent("x"),
        lambda: k.Latent(likelihood, prior="x"),
        lambda: k.Latent(likelihood, prior=9, method="quadrature"),
        lambda: k.Latent(d.FactorAnalysis(1), prior=2),
        lambda: k.HiddenMarkov(),
        lambda: k.HiddenMarkov([0.5, 0.5], [[1.0, 0.0]], TABLE),
        lambda: k.HiddenMarkov([0.5, 0.6], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [1.0]]),
        lambda: k.HiddenMarkov(*CHAIN, TABLE, symbols="acg"),
        lambda: k.Fisher(d.GaussianMixture.of([0.5, 0.5], [[0.0], [1.0]], 1.0), information="exact"),
        lambda: k.Fisher(d.Gaussian(), information="guessed"),
        lambda: k.Fisher(d.Gaussian.of([0.0], [[1.0]]), "median"),
        lambda: k.Fisher(student),
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(mc.MercerError):
        make()


def test_sequences_that_a_model_cannot_read_are_named():
    kernel = k.HiddenMarkov(*CHAIN, TABLE, symbols="acgt")
    with pytest.raises(mc.DataError, match="row 1: the model has no symbol 'n'"):
        kernel(["acgt", "acn"])
    with pytest.raises(mc.DataError, match="row 1"):
        kernel(["acgt", None])
    with pytest.raises(mc.DataError, match="row 0: observations of 3 numbers"):
        k.HiddenMarkov(*CHAIN, VECTORS)([np.zeros((2, 3))])
    with pytest.raises(mc.DataError, match="row 1.*NaN"):
        k.HiddenMarkov(*CHAIN, VECTORS)([np.zeros((2, 2)), np.full((2, 2), np.nan)])
    with pytest.raises(mc.DataError, match="all sequences are empty"):
        k.HiddenMarkov(2)(["", ""])
    # A transition that cannot happen gives no similarity, and no NaN.
    strict = k.HiddenMarkov([1.0, 0.0], np.eye(2), np.eye(2), symbols="ab")
    assert strict.normalize()(["aa", "ab"]) == pytest.approx(np.diag([1.0, 0.0]))


def test_information_without_rank_is_inverted_where_it_is_not_zero():
    X = np.random.default_rng(0).normal(size=(50, 2))

    def redundant(params, x):  # only the sum of the first two matters, and the third does not at all
        return -0.5 * jnp.sum((x - params[0] - params[1]) ** 2) + 0.0 * params[2]

    mean = lambda params, x: -0.5 * jnp.sum((x - params[0]) ** 2)
    found = k.Fisher(redundant, np.array([0.1, 0.2, 5.0]), information="empirical")(X)
    assert found == pytest.approx(k.Fisher(mean, np.array([0.3]), information="empirical")(X), rel=1e-8)
    with pytest.raises(mc.DataError, match="scores .* are zero"):
        k.Fisher(lambda params, x: 0.0 * params[0] * x[0], np.array([1.0]), information="empirical")(X)
    with pytest.warns(mc.core.errors.ModelWarning, match="nearly orthogonal"):
        k.Fisher(d.GaussianMixture(3), information="empirical")(X[:20])


def test_one_observation_far_away_changes_no_other_sequence():
    kernel = k.HiddenMarkov([0.6, 0.4], [[0.7, 0.3], [0.2, 0.8]], (np.array([0.0, 1.0]), np.array([1.0, 2.0])))
    rng = np.random.default_rng(0)
    X = [rng.normal(size=4) for _ in range(3)]
    for far in (np.array([1e9]), np.array([0.2, 1e9, 0.3])):
        assert kernel([far, *X])[1:, 1:] == pytest.approx(kernel(X), rel=1e-10)
        near = kernel.normalize()([np.where(far == 1e9, 1e3, far), *X])
        assert kernel.normalize()([far, *X])[1:, 1:] == pytest.approx(near[1:, 1:], rel=1e-10)
    model = d.HiddenMarkovModel.of([0.6, 0.4], [[0.7, 0.3], [0.2, 0.8]], (np.array([0.0, 1.0]), np.array([1.0, 2.0])))
    scores = model.free().scores(model.prepare([np.array([1e9]), *X]))[1:]
    assert scores == pytest.approx(model.free().scores(model.prepare(X)), rel=1e-8, abs=1e-10)


def test_columns_that_are_constant_up_to_rounding_have_no_tiny_variances():
    X = np.random.default_rng(0).normal(size=(40, 2))
    C = np.column_stack([X, np.full(40, 0.1)])
    for kernel in (k.Mixture(2), k.Latent(1), k.Fisher(d.GaussianMixture(2))):
        fitted = kernel.normalize().fit(C)
        moved = fitted(C[:5] + [0.0, 0.0, 1e-6], C)
        assert moved == pytest.approx(fitted(C[:5], C), abs=1e-3)


def test_sequences_that_cannot_be_are_learned_around():
    strict = k.HiddenMarkov([0.5, 0.5], [[0.5, 0.5], [0.0, 1.0]], np.eye(2), symbols="ab").normalize()
    X, y = ["aa", "ab", "a", "ba", "aaa"], np.array([0.1, 0.5, 0.2, 0.9, 0.0])
    model = mc.GaussianProcessRegressor(1.0 * strict.free("transition"), max_iterations=3, progress=False).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert model.kernel_.diag(X)[3] == 0.0


def test_mixtures_of_multinomials_are_learned_further_in_weight_space():
    rng = np.random.default_rng(0)
    X = rng.poisson(2.0, size=(40, 4)).astype(float)
    kernel = 1.0 * k.Mixture(d.MultinomialMixture(2)).normalize().fit(X)
    model = mc.GaussianProcessRegressor(kernel.free("probabilities"), max_iterations=4, progress=False)
    assert np.isfinite(model.fit(X, X[:, 0]).predict(X)).all()


def test_a_likelihood_that_no_node_sees_is_told():
    narrow = lambda x, z: jnp.exp(-0.5e6 * jnp.sum((x - z) ** 2))
    with pytest.warns(mc.core.errors.ModelWarning) as told:
        k.Latent(narrow, 1)([0.0, 1.0])
    assert any("too few for this likelihood" in str(warning.message) for warning in told)
    assert np.isinf(k.Latent(narrow, 1).error([0.0, 1.0])).all()
    many = k.Latent(lambda x, z: jnp.exp(-0.5 * jnp.sum((x - z) ** 2)), 1, n_nodes=500)
    assert many([0.0])[0, 0] == pytest.approx(1 / np.sqrt(3), rel=1e-8)


def test_densities_of_other_libraries():
    from sklearn.neighbors import KernelDensity

    X = np.random.default_rng(0).dirichlet(np.ones(2), size=20)
    one = X[:, :1]
    for density, rows in (
        (stats.gaussian_kde(X[:, :1].T), one), (stats.dirichlet([2.0, 3.0]), X), (KernelDensity().fit(X), X),
        (stats.norm, one), (stats.rv_histogram(np.histogram(one[:, 0]))(), one),
    ):  # fmt: skip
        K = k.Density(density)(rows)
        assert np.isfinite(K).all()
        assert K.any()
    assert k.Density(stats.gaussian_kde(one.T)).diag(one) == pytest.approx(stats.gaussian_kde(one.T).pdf(one.T) ** 2)
    for wrong in (lambda: k.Density(stats.norm(loc=[0.0, 1.0])), lambda: k.Density(KernelDensity())(X),
                  lambda: k.Fisher(stats.norm())(one), lambda: k.Fisher(lambda p, x: np.asarray(x)[0], 1.0)(X),
                  lambda: k.HiddenMarkov(2)([[0.5, 1.2], [0.3]])):  # fmt: skip
        with pytest.raises(mc.MercerError):
            wrong()
    K = k.Mixture([d.Gaussian(), d.GaussianMixture(2)])(X)  # learned from the rows
    assert np.linalg.eigvalsh(K)[0] > -1e-10 * np.trace(K)


def test_mixtures_need_rows_to_learn_from():
    with pytest.raises(mc.DataError, match="at least 5 rows.*kernel.fit"):
        k.Mixture(5)(np.zeros((3, 2)))
    K = k.Mixture(2).normalize()(np.ones((6, 2)))  # one point, six times
    assert pytest.approx(np.ones((6, 6))) == K
    with pytest.raises(mc.DataError, match="zero or positive"):
        k.Mixture(d.MultinomialMixture(2))([[1.0, -1.0], [2.0, 3.0], [1.0, 1.0]])
    with pytest.raises(mc.DataError, match="columns"):
        k.Mixture(2).fit(np.random.default_rng(0).normal(size=(9, 2)))(np.zeros((2, 3)))


def test_random_models_give_positive_semidefinite_matrices():
    for seed in range(12):
        rng = np.random.default_rng(seed)
        S, V = int(rng.integers(1, 6)), int(rng.integers(2, 6))
        alpha = rng.choice([0.1, 1.0])
        parts = (rng.dirichlet(np.full(n, alpha) + 1e-3, s) for n, s in ((S, 1), (S, S), (V, S)))
        initial, transition, table = parts
        X = [rng.integers(0, V, size=rng.integers(0, 12)).tolist() for _ in range(20)]
        for kernel in (
            k.HiddenMarkov(initial[0], transition, table),
            k.HiddenMarkov(initial[0], transition, table).normalize(),
        ):
            K = kernel(X)
            assert np.isfinite(K).all()
            assert np.linalg.eigvalsh(K)[0] > -1e-10 * np.trace(K)


def test_kernels_go_on_columns_and_into_estimators():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=30), "b": 100 * rng.normal(size=30),
                          "s": ["".join(rng.choice(list("ab"), size=6)) for _ in range(30)]})  # fmt: skip
    kernel = 1.0 * k.Mixture(2).normalize().on(["a", "b"]) + 1.0 * k.HiddenMarkov(2).normalize().on("s")
    y = np.tanh(frame["a"]) + frame["s"].str.count("a") / 6
    model = mc.GaussianProcessRegressor(kernel, progress=False).fit(frame, y)
    assert np.isfinite(model.predict(frame)).all()
    labels = (y > y.median()).astype(int)
    for estimator in (
        mc.GaussianProcessClassifier(kernel, progress=False), mc.KernelRidge(kernel), mc.KernelPCA(2, kernel),
        mc.KernelNeighborsClassifier(kernel=kernel), mc.KernelFisherDiscriminant(kernel),
    ):  # fmt: skip
        estimator.fit(frame, labels)
    assert len(list(itertools.islice(model.kernel_.parameters, 3))) == 3


def test_kernels_on_sparse_counts_are_chosen_between():
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(rng.poisson(1.0, size=(50, 5)))
    y = X[:, 0].toarray().ravel() + 0.1 * rng.normal(size=50)
    candidates = [1.0 * k.Fisher(d.MultinomialMixture(n), "probabilities").normalize() for n in (1, 2)]
    chosen = mc.select_kernel(X, y, candidates=candidates, progress=False)
    model = mc.GaussianProcessRegressor(chosen.kernel, progress=False).fit(X, y)
    more = model.update(sp.csr_matrix(rng.poisson(1.0, size=(3, 5))), np.zeros(3))
    assert np.isfinite(more.predict(X[:4])).all()
