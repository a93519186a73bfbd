"""The exercises of PRML chapter 6: what each asks to show, by running the library beside a naive computation.

The several targets of 6.23 are rows of one process, each with the number of its target as an input.
"""

import functools
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, factorial
from scipy.stats import multivariate_normal, norm

import mercer as mc
from mercer import kernels as k
from reference import kernels as reference
from reference import regression

rng = np.random.default_rng(6)
X, Z = rng.normal(size=(13, 3)), rng.normal(size=(6, 3))
t = rng.normal(size=13)
OFFSET, WIDTH = 0.7, 1.3
QUADRATIC, GAUSSIAN = k.Polynomial(2, OFFSET), k.RBF(WIDTH)


def squared(A, B):
    return ((A[:, None] - B) ** 2).sum(axis=-1)


def gaussian(A, B):
    return np.exp(-squared(A, B) / (2 * WIDTH**2))


def quadratic(A, B):
    return (A @ B.T + OFFSET) ** 2


def monomials(A):
    """Features of (x^T x' + c)^2: x_i x_j, the mixed ones times sqrt(2), sqrt(2 c) x_i and c."""
    pairs = itertools.combinations_with_replacement(range(A.shape[1]), 2)
    products = [A[:, i] * A[:, j] * (1 if i == j else math.sqrt(2)) for i, j in pairs]
    return np.column_stack([*products, math.sqrt(2 * OFFSET) * A, np.full(len(A), OFFSET)])


def features_of(K):
    """Features of finitely many inputs, from their Gram matrix: F F^T = K."""
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def both(F, G):
    """All products of a feature of F and one of G."""
    return np.einsum("ni,nj->nij", F, G).reshape(len(F), -1)


# -- 6.1-6.3: dual machines ------------------------------------------------------------------------------------------


def test_exercise_6_01_the_dual_of_the_dual_is_the_primal():
    """The dual solution is a_n = (t_n - w^T phi(x_n)) / lambda with w = Phi^T a, which is the w of least primal error
    (6.2); there the dual error (6.7) has no slope and the same value."""
    rng = np.random.default_rng(1)
    lam, Phi = 0.3, monomials(X)
    model = mc.KernelRidge(QUADRATIC, lam, fit_intercept=False, solver="dual").fit(X, t)
    a = model.dual_coef_
    w = np.linalg.solve(Phi.T @ Phi + lam * np.eye(Phi.shape[1]), Phi.T @ t)
    np.testing.assert_allclose(Phi.T @ a, w, atol=1e-11)
    np.testing.assert_allclose(a, (t - Phi @ w) / lam, atol=1e-10)
    np.testing.assert_allclose(model.predict(Z), monomials(Z) @ w, atol=1e-10)
    K = quadratic(X, X)
    dual = lambda a: 0.5 * a @ K @ K @ a - a @ K @ t + 0.5 * t @ t + 0.5 * lam * a @ K @ a  # PRML 6.7
    primal = lambda w: 0.5 * np.sum((Phi @ w - t) ** 2) + 0.5 * lam * w @ w  # PRML 6.2
    assert dual(a) == pytest.approx(primal(w), rel=1e-10)
    for step in 1e-4 * rng.normal(size=(5, len(a))):
        assert dual(a + step) - dual(a - step) == pytest.approx(0.0, abs=1e-8 * abs(dual(a + step) - dual(a)) + 1e-12)
        assert dual(a + step) > dual(a)
    other = mc.KernelRidge(QUADRATIC, lam, fit_intercept=False, solver="primal").fit(X, t)
    np.testing.assert_allclose(other.predict(Z), model.predict(Z), atol=1e-10)


def test_exercise_6_02_the_perceptron_by_its_dual_coefficients():
    """w is a sum of t_n phi(x_n), each counted as often as row n was corrected, and the algorithm in terms of these
    counts needs kernel values alone: of a Gram matrix without inputs, or of a kernel without finite features."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(30, 3))
    signs = np.where((rows**2).sum(axis=1) > 2.5, 1, -1)
    settings = {"fit_intercept": False, "shuffle": False, "max_epochs": 1000}

    Phi = monomials(rows)
    w, counts, mistakes = np.zeros(Phi.shape[1]), np.zeros(30), [1]
    while mistakes[-1]:  # PRML 4.55, one row after the other
        mistakes.append(0)
        for n in range(30):
            if signs[n] * (w @ Phi[n]) <= 0:
                w, counts[n], mistakes[-1] = w + signs[n] * Phi[n], counts[n] + 1, mistakes[-1] + 1
    assert counts.max() > 1
    model = mc.KernelPerceptron(QUADRATIC, **settings).fit(rows, signs)
    np.testing.assert_array_equal(model.dual_coef_, counts * signs)
    np.testing.assert_array_equal(model.mistakes_, mistakes[1:])
    np.testing.assert_allclose(model.decision_function(Z), monomials(Z) @ w, rtol=1e-9)

    everything = np.concatenate([rows, Z])
    for gram, kernel in ((quadratic, QUADRATIC), (gaussian, GAUSSIAN)):
        K = gram(everything, everything)
        counts, wrong = np.zeros(30), True
        while wrong:
            wrong = False
            for n in range(30):
                if signs[n] * ((counts * signs) @ K[:30, n]) <= 0:
                    counts[n], wrong = counts[n] + 1, True
        model = mc.KernelPerceptron(kernel, **settings).fit(rows, signs)
        blind = mc.KernelPerceptron(k.Precomputed(K), **settings).fit(np.arange(30)[:, None], signs)
        for found, new in ((model, Z), (blind, np.arange(30, 36)[:, None])):
            np.testing.assert_array_equal(found.dual_coef_, counts * signs)
            np.testing.assert_allclose(found.decision_function(new), K[30:, :30] @ (counts * signs), rtol=1e-9)


def test_exercise_6_03_nearest_neighbours_in_feature_space():
    """The nearest row in feature space is that of the least k(x, x) - 2 k(x, x_n) + k(x_n, x_n); with the linear kernel
    it is Euclid's."""
    rng = np.random.default_rng(3)
    labels, nearest = np.arange(13), {}
    rows, new = 2.0 * X, 2.0 * rng.normal(size=(40, 3))
    everything = np.concatenate([rows, new])
    for kernel, gram in (
        (k.Linear(), lambda A, B: A @ B.T),
        (QUADRATIC, quadratic),
        (GAUSSIAN * QUADRATIC, lambda A, B: gaussian(A, B) * quadratic(A, B)),
    ):
        F = features_of(gram(everything, everything))
        nearest[kernel] = squared(F[13:], F[:13]).argmin(axis=1)
        model = mc.KernelNeighborsClassifier(1, kernel).fit(rows, labels)
        np.testing.assert_array_equal(model.predict(new), nearest[kernel])
        np.testing.assert_allclose(model.kneighbors(new)[0][:, 0] ** 2, squared(F[13:], F[:13]).min(axis=1), rtol=1e-7)
    euclid, *others = nearest.values()
    np.testing.assert_array_equal(euclid, squared(new, rows).argmin(axis=1))
    assert all((euclid != other).any() for other in others)  # the kernel decides


# -- 6.4-6.11, 6.15: valid kernels -----------------------------------------------------------------------------------


def test_exercise_6_04_positive_eigenvalues_do_not_need_positive_elements():
    """A 2 x 2 matrix with a negative element is a kernel if its eigenvalues are positive, and one of positive elements
    is none if one of them is negative."""
    rng = np.random.default_rng(4)
    for matrix, eigenvalues in (([[2.0, -1.0], [-1.0, 2.0]], (1, 3)), ([[1.0, 2.0], [2.0, 1.0]], (-1, 3))):
        kernel = k.Precomputed(matrix)
        report = mc.check_kernel(kernel, [0, 1])
        assert (report.smallest_eigenvalue, report.largest_eigenvalue) == pytest.approx(eigenvalues)
        assert report.passed == (eigenvalues[0] > 0)
        assert kernel.validity.valid == (eigenvalues[0] > 0)
    with pytest.raises(mc.InvalidKernelError):
        mc.GP(kernel)
    for a, b, c in rng.normal(size=(50, 3)):
        positive = a + b > 0 and a * b > c**2  # trace and determinant
        assert k.Precomputed([[a, c], [c, b]]).validity.valid is bool(positive)


def is_valid_by(kernel, rule, F):
    """The rule is named as the proof, and the Gram matrix is the scalar product of the features that prove it."""
    assert kernel.validity.valid is True
    assert kernel.validity.proof.rule == rule
    np.testing.assert_allclose(kernel(X), F @ F.T, rtol=1e-10, atol=1e-12)
    report = mc.check_kernel(kernel, X)
    assert report.passed
    assert report.smallest_eigenvalue == pytest.approx(np.linalg.eigvalsh(F @ F.T)[0], abs=1e-12 * np.sum(F**2))


F1, F2 = features_of(gaussian(X, X)), monomials(X)


def test_exercise_6_05_scaling_and_modulation_keep_kernels_valid():
    """c k1 has the features sqrt(c) phi1 (6.13), and f(x) k1(x, x') f(x') the features f(x) phi1(x) (6.14), for any f,
    also where it is negative."""
    for kernel, F in ((GAUSSIAN, F1), (QUADRATIC, F2)):
        is_valid_by(3.7 * kernel, "6.13", math.sqrt(3.7) * F)
        f = (X[:, 0] - 0.4 * X[:, 1] * X[:, 2])[:, None]
        is_valid_by(kernel.modulate(lambda x: x[0] - 0.4 * x[1] * x[2]), "6.14", f * F)


def test_exercise_6_06_polynomials_and_the_exponential_keep_kernels_valid():
    """A polynomial with non-negative coefficients has features of every degree (6.15), and exp(k1) is the limit of the
    polynomials with coefficients 1 / n! (6.16)."""
    constant, third = np.full((13, 1), math.sqrt(0.5)), math.sqrt(0.3) * both(both(F1, F1), F1)
    is_valid_by(GAUSSIAN.polynomial([0.5, 2.0, 0.0, 0.3]), "6.15", np.hstack([constant, math.sqrt(2) * F1, third]))
    for kernel, K in ((GAUSSIAN, gaussian(X, X)), (0.02 * QUADRATIC, 0.02 * quadratic(X, X))):
        is_valid_by(kernel.exp(), "6.16", features_of(np.exp(K)))
        top = K.max()
        for degree in (4, 30):
            series = kernel.polynomial([1 / math.factorial(n) for n in range(degree + 1)])
            rest = np.abs(kernel.exp()(X) - series(X)).max()
            remainder = top ** (degree + 1) / math.factorial(degree + 1)
            assert remainder * (1 - 1e-9) - 1e-12 <= rest <= np.exp(top) * remainder + 1e-12  # Lagrange's
        assert rest < 1e-10


def test_exercise_6_07_sums_and_products_keep_kernels_valid():
    """A sum has the features of both kernels side by side (6.17), a product all products of them (6.18)."""
    is_valid_by(GAUSSIAN + QUADRATIC, "6.17", np.hstack([F1, F2]))
    is_valid_by(GAUSSIAN * QUADRATIC, "6.18", both(F1, F2))
    is_valid_by(QUADRATIC**2, "6.18", both(F2, F2))


def test_exercise_6_08_functions_of_the_input_and_forms_keep_kernels_valid():
    """k3(phi(x), phi(x')) is k3 on other inputs (6.19), and x^T A x' with A = L L^T the scalar product of L^T x (6.20):
    of fewer features than inputs, if A is singular."""
    rng = np.random.default_rng(8)
    seen = np.column_stack([X[:, 0] * X[:, 1], X[:, 2] ** 3])
    warped = GAUSSIAN.warp(lambda x: jnp.array([x[0] * x[1], x[2] ** 3]))
    is_valid_by(warped, "6.19", features_of(gaussian(seen, seen)))
    L = rng.normal(size=(3, 2))
    is_valid_by(k.Linear(L @ L.T), "6.20", X @ L)
    assert np.linalg.matrix_rank(k.Linear(L @ L.T)(X)) == 2


def test_exercise_6_09_sums_and_products_over_parts_of_the_inputs_keep_kernels_valid():
    """Kernels of some inputs each add (6.21) and multiply (6.22) to kernels of all; the parts may overlap."""
    a, b = [0, 2], [1, 2]
    Fa, Fb = features_of(gaussian(X[:, a], X[:, a])), monomials(X[:, b])
    is_valid_by(GAUSSIAN.on(a) + QUADRATIC.on(b), "6.21", np.hstack([Fa, Fb]))
    is_valid_by(GAUSSIAN.on(a) * QUADRATIC.on(b), "6.22", both(Fa, Fb))


@pytest.mark.filterwarnings("ignore:the classes were not separated")
def test_exercise_6_10_the_kernel_of_one_function_finds_multiples_of_it():
    """With k(x, x') = f(x) f(x') whatever is linear in feature space predicts a multiple of f, for any targets."""
    f = lambda x: x[0] + 0.5 * x[1] ** 2 - x[0] * x[2]
    values, new = np.array([f(x) for x in X]), np.array([f(x) for x in Z])
    kernel = k.FeatureMap(f)
    np.testing.assert_allclose(kernel(X), np.outer(values, values), rtol=1e-12)
    np.testing.assert_allclose(k.Constant(1.0).modulate(f)(X), np.outer(values, values), rtol=1e-12)
    side = (t > 0).astype(int)
    process = mc.GaussianProcessRegressor(kernel, noise=0.3, learning=None, normalize=False).fit(X, t)
    ridge = mc.KernelRidge(kernel, 0.3, fit_intercept=False).fit(X, t)
    factor = values @ t / (values @ values + 0.3)
    np.testing.assert_allclose(process.predict(Z), factor * new, rtol=1e-9)
    np.testing.assert_allclose(ridge.predict(Z), factor * new, rtol=1e-9)
    perceptron = mc.KernelPerceptron(kernel, fit_intercept=False, averaged=True).fit(X, side)
    classifier = mc.GaussianProcessClassifier(kernel, "laplace", learning=None, progress=False).fit(X, side)
    for found in (perceptron.decision_function(Z), classifier.predict_latent(Z)[0]):
        np.testing.assert_allclose(found / new, found[0] / new[0], rtol=1e-7)
        assert abs(found[0]) > 1e-3


def test_exercise_6_11_the_gaussian_kernel_has_infinitely_many_features():
    """By (6.25) the Gaussian is f(x) exp(x^T x' / s^2) f(x') with f(x) = exp(-x^2 / 2 s^2), and the series of the
    exponential gives features f(x) prod_i (x_i / s)^m_i / sqrt(m_i!) of every degree, so that none is the last."""
    envelope = lambda x: jnp.exp(-jnp.sum(x**2) / (2 * WIDTH**2))
    inner = k.Linear(np.eye(3) / WIDTH**2)
    K = GAUSSIAN(X)
    np.testing.assert_allclose(inner.exp().modulate(envelope)(X), K, rtol=1e-12)

    def features(degree):
        powers = np.indices((degree + 1,) * 3).reshape(3, -1).T
        powers = powers[powers.sum(axis=1) <= degree]
        norms = np.sqrt(np.prod(factorial(powers), axis=1))
        height = np.exp(-(X**2).sum(axis=1) / (2 * WIDTH**2))
        return height[:, None] * np.prod((X / WIDTH)[:, None] ** powers, axis=2) / norms

    errors = [np.abs(K - F @ F.T).max() for F in map(features, (2, 8, 16, 32))]
    assert all(less < more / 3 for more, less in itertools.pairwise(errors))
    assert errors[-1] < 1e-12
    short = inner.polynomial([1.0, 1.0]).modulate(envelope)  # the series to first order: four features
    np.testing.assert_allclose(short(X), features(1) @ features(1).T, rtol=1e-12)
    assert short.features(X).shape == (13, 4)
    assert (np.linalg.matrix_rank(short(X)), np.linalg.matrix_rank(K)) == (4, 13)
    with pytest.raises(mc.InfiniteFeaturesError):
        GAUSSIAN.features(X)


def test_exercise_6_12_shared_subsets_are_an_inner_product_of_indicators():
    """2^|A1 n A2| = phi(A1)^T phi(A2), where phi_U(A) is one if U is a subset of A: 2^|D| features (PRML 6.95)."""
    D = range(5)
    subsets = [frozenset(U) for size in range(len(D) + 1) for U in itertools.combinations(D, size)]
    assert len(subsets) == 2 ** len(D)
    phi = np.array([[U <= A for U in subsets] for A in subsets], dtype=float)
    assert np.array_equal(k.Subsets()(subsets), phi @ phi.T)
    assert np.array_equal(k.Subsets()(subsets), [[2.0 ** len(A & B) for B in subsets] for A in subsets])
    # The matrix of all subsets is a Kronecker power of [[1, 1], [1, 2]]: positive definite, with determinant one.
    assert k.Subsets().validity.valid
    assert np.linalg.slogdet(k.Subsets()(subsets))[1] == pytest.approx(0.0, abs=1e-9)


def test_exercise_6_13_the_fisher_kernel_does_not_depend_on_the_parameters_chosen():
    """With theta = theta(psi), scores and information become J^T g and J^T F J, so g^T F^-1 g' stays."""
    theta = np.array([0.4, -0.3])

    def log_density(theta, x):  # a Gaussian in each input, with a mean and the logarithm of a deviation
        return -0.5 * jnp.sum((x - theta[0]) ** 2) * jnp.exp(-2 * theta[1]) - len(x) * theta[1]

    def of_psi(psi, x):
        return log_density(jnp.stack([jnp.sinh(psi[0] + psi[1]), psi[1] ** 3 - 2 * psi[0]]), x)

    # psi with theta(psi) = theta: sinh(p + q) = 0.4, q^3 - 2 p = -0.3.
    total = np.arcsinh(0.4)
    q = next(root.real for root in np.roots([1.0, 0.0, 2.0, 0.3 - 2 * total]) if abs(root.imag) < 1e-12)
    one = k.Fisher(log_density, theta, information="empirical")(X)
    other = k.Fisher(of_psi, np.array([total - q, q]), information="empirical")(X)
    assert other == pytest.approx(one, rel=1e-8, abs=1e-9)
    # From the formulas: the scores of a row, and the average of their products (PRML 6.36).
    g = np.stack([((X - 0.4) * np.exp(0.6)).sum(axis=1), ((X - 0.4) ** 2 * np.exp(0.6) - 1).sum(axis=1)], axis=1)
    assert one == pytest.approx(g @ np.linalg.solve(g.T @ g / len(X), g.T), rel=1e-8, abs=1e-9)


def test_exercise_6_14_the_fisher_kernel_of_a_gaussian_is_a_mahalanobis_product():
    """For N(x | mu, S) with fixed S: g = S^-1 (x - mu), F = S^-1, and k(x, x') = (x - mu)^T S^-1 (x' - mu)."""
    A = rng.normal(size=(3, 3))
    mu, S = rng.normal(size=3), A @ A.T + np.eye(3)
    expected = (X - mu) @ np.linalg.solve(S, (X - mu).T)
    assert k.Fisher(k.densities.Gaussian.of(mu, S), "means")(X) == pytest.approx(expected, rel=1e-9)
    precision = np.linalg.inv(S)
    given = k.Fisher(lambda m, x: -0.5 * (x - m) @ precision @ (x - m), mu, information="identity")
    scores = (X - mu) @ precision
    assert given(X) == pytest.approx(scores @ scores.T, rel=1e-9)


@pytest.mark.parametrize(
    "kernel", [GAUSSIAN, 0.4 * QUADRATIC, k.Matern(0.8, nu=1.5) + k.Linear(), k.ArcSine()], ids=repr
)
def test_exercise_6_15_valid_kernels_obey_cauchy_schwarz(kernel):
    """The Gram matrix of two inputs has the determinant k(x1, x1) k(x2, x2) - k(x1, x2)^2, the product of eigenvalues
    that are not negative; it vanishes where the two inputs are one."""
    K = reference.gram(kernel, X[:5])
    for i, j in itertools.combinations(range(5), 2):
        report = mc.check_kernel(kernel, X[[i, j]])
        determinant = K[i, i] * K[j, j] - K[i, j] ** 2
        assert report.smallest_eigenvalue * report.largest_eigenvalue == pytest.approx(determinant, rel=1e-9, abs=1e-12)
        assert determinant > 0
    squares = kernel.diag(X)
    found = kernel(X) ** 2 / np.outer(squares, squares)
    assert found.max() <= 1 + 1e-12
    np.testing.assert_allclose(np.diag(found), 1.0, rtol=1e-12)
    np.testing.assert_allclose(kernel.normalize()(X) ** 2, found, rtol=1e-10)


def test_exercise_6_15_a_kernel_that_breaks_cauchy_schwarz_is_not_valid():
    """tanh(x x' - 1) has k(1, 1) k(2, 2) = 0, but k(1, 2)^2 > 0: so its Gram matrix has a negative eigenvalue."""
    kernel, pair = k.Sigmoid(1.0, -1.0), [[1.0], [2.0]]
    report = mc.check_kernel(kernel, pair)
    assert report.smallest_eigenvalue * report.largest_eigenvalue == pytest.approx(-(math.tanh(1) ** 2))
    assert not report.passed
    assert kernel.validity.valid is False
    with pytest.raises(mc.InvalidKernelError):
        mc.GP(kernel)


# -- 6.16-6.19: the representer theorem, kernel regression -----------------------------------------------------------


FEW, TARGET = X[:7], t[:7]


def squared_error(y):
    return np.sum((y - TARGET) ** 2), 2 * (y - TARGET)


def logistic_error(y):
    return np.sum(np.logaddexp(0, y) - (TARGET > 0) * y), expit(y) - (TARGET > 0)


@pytest.mark.parametrize("error", [squared_error, logistic_error])
def test_exercise_6_16_the_best_weights_lie_in_the_span_of_the_data(error):
    """A part of w orthogonal to all phi(x_n) leaves the errors as they are and adds to the penalty: so of all w, found
    by a search that begins outside the span, the best is sum_n a_n phi(x_n), with the a_n of the machines that work in
    the span alone."""
    rng = np.random.default_rng(16)
    Phi, penalty = monomials(FEW), 0.1 if error is squared_error else 0.5  # ten features, seven rows
    orthogonal = np.linalg.svd(Phi)[2][7:]

    def cost(w):
        value, slope = error(Phi @ w)
        return value + penalty * w @ w, Phi.T @ slope + 2 * penalty * w

    start = rng.normal(size=10)
    assert np.linalg.norm(orthogonal @ start) > 0.1
    w = minimize(cost, start, jac=True, method="BFGS", options={"gtol": 1e-8}).x
    aside = rng.normal(size=3) @ orthogonal
    assert cost(w + aside)[0] - cost(w)[0] == pytest.approx(penalty * aside @ aside, rel=1e-6)
    if error is squared_error:
        model = mc.KernelRidge(QUADRATIC, penalty, fit_intercept=False, solver="dual").fit(FEW, TARGET)
        a, found = model.dual_coef_, model.predict(Z)
    else:
        model = mc.GaussianProcessClassifier(QUADRATIC, "laplace", learning=None, progress=False).fit(FEW, TARGET > 0)
        a, found = model.weights_[0], model.predict_latent(Z)[0]
    np.testing.assert_allclose(Phi.T @ a, w, atol=1e-7)
    np.testing.assert_allclose(found, monomials(Z) @ w, atol=1e-6)


def test_exercise_6_17_noise_on_the_inputs_leads_to_normalised_basis_functions():
    """No change of y(x) = sum_n t_n h(x - x_n), h = nu(x - x_n) / sum_m nu(x - x_m), changes the error (6.39) to first
    order, here with Laplace's noise nu; to second order every one adds to it."""
    rng = np.random.default_rng(17)
    x, spread = X[:, 0], 0.6
    z = np.linspace(-4, 4, 161)
    nu = np.exp(-np.abs(z - x[:, None]) / spread) / (2 * spread)  # the noise that brings x_n to z
    kernel = k.Exponential(spread)
    network = mc.RBFNetwork(centers=x[:, None], normalized=True, kernel=kernel, alpha=1.0, fit_intercept=False)
    h = network.fit(x[:, None], t).basis(z[:, None])
    np.testing.assert_allclose(h, (nu / nu.sum(axis=0)).T, rtol=1e-9)  # PRML 6.41
    y = h @ t  # PRML 6.40
    error = lambda y: 0.5 * np.trapezoid(np.sum((y - t[:, None]) ** 2 * nu, axis=0), z)  # PRML 6.39
    for change in rng.normal(size=(10, len(z))):
        up, down = error(y + change), error(y - change)
        added = 0.5 * np.trapezoid(change**2 * nu.sum(axis=0), z)
        assert (up - error(y), down - error(y)) == pytest.approx((added, added), rel=1e-9)
    smooth = mc.NadarayaWatson(kernel, 0.1, learning=None).fit(x[:, None], t)
    np.testing.assert_allclose(smooth.predict(z[:, None]), y, rtol=1e-8)


def test_exercise_6_18_conditional_density_mean_and_variance_of_isotropic_components():
    """p(t | x) is the joint density of (x, t) under components of covariance s^2 I, divided by its integral over t: a
    mixture with weights k(x, x_n), of mean sum k t_n and variance s^2 + sum k t_n^2 - (sum k t_n)^2."""
    s, x, new = 0.3, X[:, 0], 0.5
    model = mc.NadarayaWatson(k.RBF(s), s, learning=None).fit(x[:, None], t)
    grid = np.linspace(-6, 6, 4001)
    joint = norm.pdf(new, x, s) @ norm.pdf(grid, t[:, None], s)
    density = joint / np.trapezoid(joint, grid)
    np.testing.assert_allclose(model.predict_density([[new]], grid[None])[0], density, rtol=1e-9, atol=1e-12)
    mean, deviation = (float(value[0]) for value in model.predict([[new]], return_std=True))
    assert mean == pytest.approx(np.trapezoid(grid * density, grid), rel=1e-9)
    assert deviation**2 == pytest.approx(np.trapezoid((grid - mean) ** 2 * density, grid), rel=1e-9)
    weight = norm.pdf(new, x, s) / norm.pdf(new, x, s).sum()
    assert mean == pytest.approx(weight @ t, rel=1e-9)
    assert deviation**2 == pytest.approx(s**2 + weight @ t**2 - (weight @ t) ** 2, rel=1e-9)


def test_exercise_6_19_the_best_function_of_noisy_inputs_is_kernel_regression():
    """Among all values of y on a grid, E of (6.99) is least at those of Nadaraya-Watson with the kernel g."""
    s, x = 0.4, X[:, 0]
    z = np.linspace(-2, 2, 41)
    g = norm.pdf(x[:, None] - z, scale=s)  # the noise that brings z to x_n
    # E = 1/2 sum_nj (y_j - t_n)^2 g_nj is quadratic in the values y_j; its minimum by least squares, all at once.
    A = np.concatenate([np.diag(np.sqrt(row)) for row in g])
    b = np.concatenate([np.sqrt(row) * target for row, target in zip(g, t, strict=True)])
    least = np.linalg.lstsq(A, b)[0]
    model = mc.NadarayaWatson(k.RBF(s), 0.1, learning=None).fit(x[:, None], t)
    np.testing.assert_allclose(model.predict(z[:, None]), least, rtol=1e-8)


# -- 6.20-6.23: regression -------------------------------------------------------------------------------------------


NOISE = 0.2
STANDARD = k.Standard(1.5, 0.8, 0.4, 0.3)


def standard(A, B):
    return 1.5 * np.exp(-0.4 * squared(A, B)) + 0.4 + 0.3 * A @ B.T  # PRML 6.63


def regressor(kernel=STANDARD, rows=X, target=t, **settings):
    return mc.GaussianProcessRegressor(kernel, NOISE, learning=None, normalize=False, **settings).fit(rows, target)


def test_exercise_6_20_predictive_mean_and_variance():
    """p(t_N+1 | t) = p(t, t_N+1) / p(t) is Gaussian in t_N+1: its peak is the mean (6.66), its curvature one over the
    variance (6.67)."""
    process, (mean, deviation) = mc.GP(STANDARD), regressor().predict(Z, return_std=True)
    for z, m, s in zip(Z, mean, deviation, strict=True):
        rows = np.vstack([X, z])
        joint = multivariate_normal(np.zeros(14), standard(rows, rows) + NOISE * np.eye(14))
        # A parabola in t_N+1, through three points of it.
        values = np.array([-1.0, 0.0, 1.0])
        low, middle, high = (joint.logpdf([*t, value]) for value in values)
        curvature = 2 * middle - low - high
        assert s**2 == pytest.approx(1 / curvature, rel=1e-9)
        assert m == pytest.approx((high - low) / 2 / curvature, rel=1e-8)
        given = process.log_likelihood(X, t, NOISE)
        ratio = [process.log_likelihood(rows, [*t, value], NOISE) - given for value in values]
        np.testing.assert_allclose(ratio, norm.logpdf(values, m, s), rtol=1e-9)


@pytest.mark.parametrize("solver", ["dense", "weights"])
def test_exercise_6_21_a_process_of_finitely_many_features_is_bayesian_linear_regression(solver):
    """With k(x, x') = phi(x)^T phi(x') / alpha the predictive distribution is that of (3.58) and (3.59), whether solved
    with the Gram matrix or with the weights; and so the evidence is the same."""
    alpha, basis = 0.6, mc.basis.Polynomial(2)
    process = regressor(k.FeatureMap(basis, alpha), solver=solver)
    linear = mc.BayesianLinearRegression(basis, alpha, 1 / NOISE).fit(X, t)
    assert process.solver_.name == solver
    powers = [m for m in itertools.product(range(3), repeat=3) if sum(m) <= 2]
    phi = lambda A: np.column_stack([np.prod(A**m, axis=1) for m in np.array(powers)])
    S = np.linalg.inv(alpha * np.eye(10) + phi(X).T @ phi(X) / NOISE)
    mean = phi(Z) @ S @ phi(X).T @ t / NOISE
    covariance = phi(Z) @ S @ phi(Z).T + NOISE * np.eye(6)
    for model in (process, linear):
        found, spread = model.predict(Z, return_cov=True)
        np.testing.assert_allclose(found, mean, rtol=1e-8)
        np.testing.assert_allclose(spread, covariance, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(model.predict(Z, return_std=True)[1] ** 2, np.diag(covariance), rtol=1e-8)
        evidence = regression.log_evidence(phi(X) @ phi(X).T / alpha + NOISE * np.eye(13), t)
        assert model.log_marginal_likelihood_ == pytest.approx(evidence, abs=1e-9)


def test_exercise_6_22_the_joint_prediction_and_its_marginals():
    """Many predictions have a joint Gaussian distribution, that of the last L of N + L targets given the first N; for
    each of them alone it is (6.66) and (6.67)."""
    model, rows = regressor(), np.vstack([X, Z])
    mean, covariance = model.predict(Z, return_cov=True)
    P = np.linalg.inv(standard(rows, rows) + NOISE * np.eye(19))  # the precision of all: PRML 2.73, 2.75
    np.testing.assert_allclose(covariance, np.linalg.inv(P[13:, 13:]), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(mean, -np.linalg.solve(P[13:, 13:], P[13:, :13] @ t), rtol=1e-8)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() > 0.1
    without = mc.GP(STANDARD).condition(X, t, NOISE).covariance(Z)
    np.testing.assert_allclose(covariance - without, NOISE * np.eye(6), atol=1e-12)
    C = standard(X, X) + NOISE * np.eye(13)
    for j in range(6):
        own, deviation = model.predict(Z[j : j + 1], return_std=True)
        c = standard(Z[j : j + 1], Z[j : j + 1]) + NOISE
        m, v = regression.predict(C, standard(X, Z[j : j + 1]), c, t)  # PRML 6.66, 6.67
        assert (own[0], deviation[0] ** 2) == pytest.approx((m[0], v[0, 0]), rel=1e-9)
        assert (mean[j], covariance[j, j]) == pytest.approx((m[0], v[0, 0]), rel=1e-9)


def test_exercise_6_23_several_targets():
    """Independent targets of one kernel have the mean T^T C^-1 k and the covariance s^2(x) I. Correlated ones, with
    covariance B k(x, x'), are rows of one process, and learn from each other."""
    rng = np.random.default_rng(23)
    T, x, new = rng.normal(size=(7, 3)), X[:7, :1], Z[:1, :1]
    number = np.tile(np.arange(3.0), 7)[:, None]  # of the target
    rows, ask = np.hstack([np.repeat(x, 3, axis=0), number]), np.hstack([np.repeat(new, 3, axis=0), number[:3]])
    cross, root = gaussian(x, new), rng.normal(size=(3, 3))
    found = []
    for B in (np.eye(3), root @ root.T):
        model = regressor(GAUSSIAN.on(0) * k.Precomputed(B).on(1), rows, T.ravel())
        found.append(model.predict(ask, return_cov=True))
        C = np.kron(gaussian(x, x), B) + NOISE * np.eye(21)
        expected = regression.predict(C, np.kron(cross, B), B + NOISE * np.eye(3), T.ravel())
        for one, other in zip(found[-1], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)
    (mean, covariance), (other, _) = found
    C_inv_k = np.linalg.solve(gaussian(x, x) + NOISE * np.eye(7), cross)[:, 0]
    np.testing.assert_allclose(mean, T.T @ C_inv_k, rtol=1e-8)
    np.testing.assert_allclose(covariance, (1 + NOISE - cross[:, 0] @ C_inv_k) * np.eye(3), rtol=1e-8, atol=1e-10)
    assert np.abs(other - mean).max() > 0.1


# -- 6.24-6.27: classification ---------------------------------------------------------------------------------------


PLACES = rng.normal(size=(20, 2))
SIDE = (PLACES[:, 0] + 0.7 * rng.normal(size=20) > 0).astype(float)
NEW = rng.normal(size=(5, 2))
VARIANCE, LENGTH = 2.3, 1.1


def exponential(A, B, variance=VARIANCE, length=LENGTH):
    return variance * np.exp(-np.sqrt(squared(A, B)) / length)


@functools.cache
def classifier():
    kernel = VARIANCE * k.Exponential(LENGTH)
    return mc.GaussianProcessClassifier(kernel, "laplace", learning=None, progress=False).fit(PLACES, SIDE)


def newton(C, a):
    """One step of (6.83)."""
    s = expit(a)
    W = np.diag(s * (1 - s))
    return C @ np.linalg.solve(np.eye(20) + W @ C, SIDE - s + W @ a)


def mode_of(C, a=None):
    a = np.zeros(20) if a is None else a
    for _ in range(30):
        a = newton(C, a)
    return a


def log_evidence(C):
    """(6.90), with (6.80)."""
    a = mode_of(C)
    s = expit(a)
    psi = multivariate_normal(np.zeros(20), C).logpdf(a) + SIDE @ a - np.sum(np.log1p(np.exp(a)))
    return psi - 0.5 * np.linalg.slogdet(np.diag(s * (1 - s)) + np.linalg.inv(C))[1] + 10 * np.log(2 * np.pi)


def test_exercise_6_24_sums_of_positive_definite_matrices():
    """A diagonal matrix W of elements between 0 and 1 is positive definite, and so is the sum of two such matrices: so
    the Hessian W + C^-1 is, which is the inverse of the posterior covariance of a classifier."""
    rng = np.random.default_rng(24)
    w = rng.uniform(0.01, 0.99, size=6)
    G = rng.normal(size=(6, 6))
    one, other = k.Precomputed(np.diag(w)), k.Precomputed(G @ G.T)
    least = []
    for kernel, matrix in ((one, np.diag(w)), (other, G @ G.T), (one + other, np.diag(w) + G @ G.T)):
        report = mc.check_kernel(kernel, np.arange(6))
        least.append(report.smallest_eigenvalue)
        assert least[-1] == pytest.approx(np.linalg.eigvalsh(matrix)[0], rel=1e-9)
        assert kernel.validity.valid is True
    assert least[0] == pytest.approx(w.min())
    assert least[2] >= least[0] + least[1] > 0
    C = exponential(PLACES, PLACES)
    s = expit(classifier().predict_latent(PLACES)[0])
    posterior = classifier().posterior_
    V = np.linalg.solve(posterior.lower, posterior.s[:, None] * C)
    H = np.linalg.inv(C - V.T @ V)
    np.testing.assert_allclose(H - np.linalg.inv(C), np.diag(s * (1 - s)), atol=1e-8)
    assert np.linalg.eigvalsh(H)[0] >= (s * (1 - s)).min()


def test_exercise_6_25_newtons_method_ends_at_the_mode():
    """(6.83) is Newton's step a - H^-1 g for Psi; from anywhere it leads to the mode of the classifier, where
    a = C (t - sigma) (6.84)."""
    rng = np.random.default_rng(25)
    C, mode = exponential(PLACES, PLACES), classifier().predict_latent(PLACES)[0]
    C_inv = np.linalg.inv(C)
    psi = lambda a: SIDE @ a - np.sum(np.log1p(np.exp(a))) - 0.5 * a @ C_inv @ a
    for start in (np.zeros(20), 0.7 * rng.normal(size=20)):
        s = expit(start)
        slope, H = SIDE - s - C_inv @ start, np.diag(s * (1 - s)) + C_inv  # PRML 6.81, 6.82
        steps = 1e-4 * np.eye(20)
        np.testing.assert_allclose(slope, [(psi(start + e) - psi(start - e)) / 2e-4 for e in steps], atol=1e-6)
        np.testing.assert_allclose(newton(C, start), start + np.linalg.solve(H, slope), atol=1e-9)
        np.testing.assert_allclose(mode, mode_of(C, start), atol=1e-8)
    np.testing.assert_allclose(newton(C, mode), mode, atol=1e-8)
    np.testing.assert_allclose(mode, C @ (SIDE - expit(mode)), atol=1e-8)
    np.testing.assert_allclose(classifier().weights_[0], SIDE - expit(mode), atol=1e-8)


def test_exercise_6_26_mean_and_variance_of_a_new_latent_value():
    """(6.78), linear in a_N, averaged over the Gaussian N(a*, H^-1) (2.115) has the mean (6.87) and variance (6.88)."""
    C, cross = exponential(PLACES, PLACES), exponential(PLACES, NEW)
    a = mode_of(C)
    s = expit(a)
    W = np.diag(s * (1 - s))
    A = np.linalg.solve(C, cross)  # E[a_N+1 | a_N] = A^T a_N
    H_inv = np.linalg.inv(W + np.linalg.inv(C))
    mean, variance = classifier().predict_latent(NEW)
    np.testing.assert_allclose(mean, A.T @ a, atol=1e-8)
    np.testing.assert_allclose(variance, np.diag(VARIANCE - cross.T @ A + A.T @ H_inv @ A), atol=1e-8)
    np.testing.assert_allclose(mean, cross.T @ (SIDE - s), atol=1e-8)  # PRML 6.87
    found = np.diag(cross.T @ np.linalg.solve(np.linalg.inv(W) + C, cross))
    np.testing.assert_allclose(variance, VARIANCE - found, atol=1e-8)  # PRML 6.88
    assert (variance < 0.95 * VARIANCE).all()


def test_exercise_6_27_laplaces_evidence_and_its_gradient():
    """The evidence is (6.90), and its gradient, by differences, is (6.91) plus (6.92). As printed, two inverses are
    the wrong way round: the trace in (6.91) is of (I + W C)^-1 W dC, and d a*/d theta in (6.94), by (6.93), is
    (I + C W)^-1 dC (t - sigma)."""
    C, model = exponential(PLACES, PLACES), classifier()
    assert model.log_marginal_likelihood_ == pytest.approx(log_evidence(C), abs=1e-8)
    value, slope = model.log_marginal_likelihood(eval_gradient=True)
    assert value == pytest.approx(log_evidence(C), abs=1e-8)
    slope = dict(zip(model.parameter_names_, slope, strict=True))
    a = mode_of(C)
    s = expit(a)
    W = np.diag(s * (1 - s))
    CW, WC = np.eye(20) + C @ W, np.eye(20) + W @ C

    def explicit(dC, inverse_of):  # PRML 6.91
        quadratic = a @ np.linalg.solve(C, dC @ np.linalg.solve(C, a))
        return 0.5 * quadratic - 0.5 * np.trace(np.linalg.solve(inverse_of, W @ dC))

    def through_mode(dC, inverse_of):  # PRML 6.92, with 6.94
        through_W = np.diag(np.linalg.solve(CW, C)) * s * (1 - s) * (1 - 2 * s)
        return -0.5 * through_W @ np.linalg.solve(inverse_of, dC @ (SIDE - s))

    for name, moved, dC in (
        ("variance", lambda e: exponential(PLACES, PLACES, variance=VARIANCE * np.exp(e)), C),
        (
            "lengthscale",
            lambda e: exponential(PLACES, PLACES, length=LENGTH * np.exp(e)),
            C * np.sqrt(squared(PLACES, PLACES)) / LENGTH,
        ),
    ):
        found = slope.pop(name)
        assert found == pytest.approx((log_evidence(moved(1e-4)) - log_evidence(moved(-1e-4))) / 2e-4, rel=1e-6)
        assert found == pytest.approx(explicit(dC, WC) + through_mode(dC, CW), rel=1e-8)
        assert found != pytest.approx(explicit(dC, CW) + through_mode(dC, CW), rel=1e-2)
        assert found != pytest.approx(explicit(dC, WC) + through_mode(dC, WC), rel=1e-2)
        change = (mode_of(moved(1e-4)) - mode_of(moved(-1e-4))) / 2e-4
        np.testing.assert_allclose(change, np.linalg.solve(CW, dC @ (SIDE - s)), atol=1e-6)  # PRML 6.94
    assert not slope
