"""What every registered inference of classes promises, for two classes and for three."""

import itertools
import warnings

import numpy as np
import pytest
from scipy.special import expit, log_softmax

import mercer as mc
from design import example
from mercer import kernels as k
from mercer.gp.noise import CommonNoise
from mercer.gp.posterior import FunctionPosterior
from mercer.inference.base import INFERENCES, named
from mercer.inference.sites import Covariance
from mercer.solvers.base import SOLVERS

example("inference")
example("solver")
rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-3, 3, size=18))[:, None]
Z = np.linspace(-4, 4, 9)[:, None]
CODES = {2: (np.abs(X[:, 0]) < 1.2).astype(int), 3: np.digitize(X[:, 0], [-1.0, 1.0])}
KERNEL = 3.0 * k.RBF(1.2)
BOUNDED = {"variational"}  # evidences that are bounds from below
TOLERANCE = {"laplace": 0.15, "ep": 0.01, "variational": 0.15, "mcmc": 0.15}  # nats a row, where nothing else is said


def cases():
    for name, C in itertools.product(INFERENCES, (2, 3)):
        inference = named(name, classes=C, n_samples=400)
        if inference.refusal() is None:
            yield pytest.param(inference, id=f"{name}, {C} classes")


inferences = pytest.mark.parametrize("inference", list(cases()))
gaussian = pytest.mark.parametrize("inference", [case for case in cases() if not case.values[0].samples])


def covariances(kernel=KERNEL, rows=slice(None)):
    return [Covariance.of(kernel, X[rows], 1e-9)]


def model(inference, codes=None, rows=slice(None), kernel=KERNEL):
    codes = CODES[inference.classes] if codes is None else codes
    estimator = mc.GaussianProcessClassifier(
        kernel, inference.name, learning=None, n_samples=400, progress=False, random_state=0
    )
    return estimator.fit(X[rows], codes[rows])


def evidence_by_quadrature(kernel, rows, codes, C):
    """ln of the integral of likelihood times prior over the latent values of two rows, on a grid of white values."""
    L = np.linalg.cholesky(kernel(X[rows]) + 1e-9 * np.eye(len(rows)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40 if C == 2 else 9)
    weights = weights / weights.sum()
    functions = 1 if C == 2 else C
    grid = np.stack(np.meshgrid(*[nodes] * (len(rows) * functions), indexing="ij"), axis=-1).reshape(-1, functions, 2)
    weight = np.prod(np.stack(np.meshgrid(*[weights] * (len(rows) * functions), indexing="ij")), axis=0).ravel()
    f = grid @ L.T
    if C == 2:
        p = np.prod(expit(f[:, 0] * (2 * codes - 1)), axis=1)
    else:
        p = np.exp(sum(log_softmax(f[..., i], axis=1)[:, code] for i, code in enumerate(codes)))
    return float(np.log(weight @ p))


@gaussian
def test_its_evidence_is_near_the_integral_or_below_it(inference):
    C = inference.classes
    if C == 3:
        rows, kernel = np.array([2, 15]), 1.0 * k.RBF(1.2)
    else:
        rows, kernel = np.array([2, 9]), KERNEL
    codes = CODES[C][rows]
    exact = evidence_by_quadrature(kernel, rows, codes, C)
    found = inference(covariances(kernel, rows), codes, gradient=False).log_evidence
    assert abs(found - exact) < TOLERANCE.get(inference.name, 0.15) * len(rows)
    if inference.name in BOUNDED:
        assert found <= exact + 1e-6


@gaussian
def test_its_evidence_has_the_slope_it_says(inference):
    codes, teacher = CODES[inference.classes], inference.for_learning()
    D = np.exp(-np.abs(X - X.T))  # a direction in which the covariance moves

    def at(step):
        (K,) = covariances()
        K.K += step * D
        return [K]

    contract = lambda inverse, a: np.sum((np.outer(a, a) - np.triu(inverse) - np.triu(inverse, 1).T) * D)
    slope = teacher(at(0.0), codes).slope([contract])
    high, low = (teacher(at(sign * 1e-4), codes, gradient=False).log_evidence for sign in (1, -1))
    assert slope == pytest.approx((high - low) / 2e-4, rel=2e-3, abs=1e-4)


@gaussian
def test_it_ends_at_the_same_place_from_any_start(inference):
    codes = CODES[inference.classes]
    alone = inference(covariances(), codes, gradient=False)
    other = inference(covariances(0.3 * k.RBF(0.5)), codes, gradient=False)
    again = inference(covariances(), codes, other, gradient=False)
    assert again.log_evidence == pytest.approx(alone.log_evidence, abs=2e-3)
    assert again.a == pytest.approx(alone.a, abs=5e-2)


@inferences
def test_probabilities_sum_to_one_and_follow_the_labels(inference):
    fitted = model(inference)
    p = fitted.predict_proba(Z)
    assert p.shape == (len(Z), inference.classes)
    assert p.sum(axis=1) == pytest.approx(1.0)
    assert p.min() >= 0
    mean, variance = fitted.predict_latent(Z)
    assert mean.shape == variance.shape
    assert (variance > 0).all()
    assert np.array_equal(fitted.predict(Z), p.argmax(axis=1))
    assert np.mean(fitted.predict(X) == CODES[inference.classes]) > 0.9


@inferences
def test_far_from_the_data_it_knows_nothing(inference):
    p = model(inference).predict_proba([[60.0]])
    assert p == pytest.approx(1 / inference.classes, abs=0.06 if inference.samples else 0.01)


@inferences
def test_classes_may_change_names(inference):
    C = inference.classes
    turned = (CODES[C] + 1) % C
    one, other = model(inference).predict_proba(Z), model(inference, turned).predict_proba(Z)
    assert np.roll(one, 1, axis=1) == pytest.approx(other, abs=0.08 if inference.samples else 2e-3)


@inferences
def test_rows_may_come_in_any_order(inference):
    one, other = model(inference).predict_proba(Z), model(inference, rows=rng.permutation(len(X))).predict_proba(Z)
    assert one == pytest.approx(other, abs=0.08 if inference.samples else 2e-3)


@inferences
def test_a_label_left_out_is_predicted_as_without_it(inference):
    found = model(inference).loo()
    assert found.probability.sum(axis=1) == pytest.approx(1.0)
    for i in (4, 9):
        without = model(inference, rows=np.arange(len(X)) != i)
        assert found.probability[i] == pytest.approx(without.predict_proba(X[i : i + 1])[0], abs=0.12)
        assert found.log_score[i] == pytest.approx(np.log(found.probability[i, CODES[inference.classes][i]]))


@inferences
def test_it_comes_back_from_a_file(inference, tmp_path):
    fitted = model(inference)
    mc.save(fitted, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert np.array_equal(back.predict_proba(Z), fitted.predict_proba(Z))
    assert type(back.posterior_) in INFERENCES[inference.name].parts


# -- posteriors share one protocol with those of regression -----------------------------------------------------------

FEATURES = 1.5 * k.Polynomial(2, offset=0.5) + 0.7 * k.Linear()  # few: "auto" solves in weight space
PLANE = np.random.default_rng(1).uniform(-2, 2, size=(30, 2))
PLANE_CODES = {2: (PLANE[:, 0] + PLANE[:, 1] ** 2 > 0.8).astype(int), 3: np.digitize(PLANE[:, 0], [-0.7, 0.7])}
NEW = np.random.default_rng(2).uniform(-2.5, 2.5, size=(4, 2))
# Posteriors depend on how a solver represents covariances: one solver for each way that takes these rows.
REPRESENTATIVES: dict = {}  # the first exact solver of each way, or the first
for _name, _cls in SOLVERS.items():
    if _cls.latent not in REPRESENTATIVES or (_cls.exact and not SOLVERS[REPRESENTATIVES[_cls.latent]].exact):
        REPRESENTATIVES[_cls.latent] = _name
WAYS = [name for name in REPRESENTATIVES.values() if SOLVERS[name]().refusal(FEATURES, PLANE, CommonNoise(1.0)) is None]
posteriors = pytest.mark.parametrize("solver", WAYS)


def plane(inference, solver, rows=slice(None), n_samples=400, learning=None):
    """A model of two inputs, whose kernel is a sum."""
    C = inference.classes
    if C > 2 and solver in SOLVERS and not SOLVERS[solver].several_latents:
        pytest.skip("takes two classes")
    estimator = mc.GaussianProcessClassifier(
        FEATURES, inference.name, learning=learning, n_samples=n_samples, solver=solver, progress=False, random_state=0
    )
    return estimator.fit(PLANE[rows], PLANE_CODES[C][rows])


@posteriors
@inferences
def test_its_moments_are_those_of_its_covariance(inference, solver):
    posterior = plane(inference, solver).posterior_
    assert isinstance(posterior, FunctionPosterior)
    mean, variance = posterior.moments(NEW)
    shape = (len(NEW),) if inference.classes == 2 else (len(NEW), inference.classes)
    assert mean.shape == variance.shape == shape
    assert posterior.mean(NEW) == pytest.approx(mean, rel=1e-6, abs=1e-7)
    covariance = posterior.covariance(NEW)
    assert covariance.shape == shape * 2
    flat = covariance.reshape(mean.size, mean.size)
    assert flat == pytest.approx(flat.T, abs=1e-8)
    assert np.diag(flat) == pytest.approx(variance.ravel(), rel=1e-5, abs=1e-7)
    assert np.linalg.eigvalsh(flat).min() > -1e-6
    assert posterior.covariance(NEW[:0]).size == 0


@posteriors
@inferences
def test_its_samples_have_its_moments(inference, solver):
    posterior = plane(inference, solver).posterior_
    draws, covariance = posterior.sample(NEW, size=6000, seed=1), posterior.covariance(NEW)
    mean = posterior.mean(NEW)
    assert draws.shape == (6000, *mean.shape)
    assert np.array_equal(draws, posterior.sample(NEW, size=6000, seed=1))
    flat, exact = draws.reshape(6000, -1), covariance.reshape(mean.size, mean.size)
    assert np.abs(flat.mean(axis=0) - mean.ravel()).max() < 5 * np.sqrt(exact.max() / 6000)
    assert np.cov(flat.T) == pytest.approx(exact, abs=0.1 * exact.max())


@posteriors
@inferences
def test_its_gradients_are_differences(inference, solver):
    posterior = plane(inference, solver).posterior_
    found = posterior.gradients(NEW)
    assert found[0].shape == (*posterior.mean(NEW).shape, 2)
    for i, step in enumerate(1e-5 * np.eye(2)):
        high, low = posterior.moments(NEW + step), posterior.moments(NEW - step)
        for slope, one, other in zip(found, high, low, strict=True):
            assert slope[..., i] == pytest.approx((one - other) / 2e-5, rel=2e-4, abs=2e-4)


@posteriors
@inferences
def test_its_terms_add_up_to_its_mean(inference, solver):
    posterior = plane(inference, solver).posterior_
    terms = posterior.terms(NEW)
    assert [part for part, *_ in terms] == list(FEATURES.parts)
    assert sum(mean for _, mean, _ in terms) == pytest.approx(posterior.mean(NEW), rel=1e-5, abs=1e-6)
    assert all((variance >= 0).all() for *_, variance in terms)


@posteriors
@inferences
def test_conditioning_twice_is_conditioning_once(inference, solver):
    n_samples = 4000 if inference.samples else 400
    first, whole = plane(inference, solver, slice(0, 21), n_samples), plane(inference, solver, n_samples=n_samples)
    codes = PLANE_CODES[inference.classes]
    twice = first.posterior_.condition(PLANE[21:25], codes[21:25]).condition(PLANE[25:], codes[25:])
    assert type(twice) is type(whole.posterior_)
    assert np.array_equal(twice.labels().codes, codes)
    assert np.array_equal(twice.X, PLANE)
    assert twice.numerics()["converged"]
    likelihood = inference.likelihood
    p, q = (each.class_probabilities(NEW, likelihood) for each in (twice, whole.posterior_))
    assert p == pytest.approx(q, abs=0.04 if inference.samples else 2e-3)
    assert twice.leave_one_out() == pytest.approx(
        whole.posterior_.leave_one_out(), abs=0.1 if inference.samples else 5e-3
    )
    for bad in (codes[:2] + 5, codes[:1], codes[:2] + 0.5):
        with pytest.raises(mc.MercerError, match="class numbers from 0"):
            first.posterior_.condition(PLANE[:2], bad)


@inferences
def test_it_says_how_well_it_was_computed(inference):
    fitted = model(inference)
    assert fitted.posterior_.numerics() == fitted.numerics_
    assert fitted.numerics_["jitter"] == 0
    assert "converged" in fitted.numerics_


@inferences
def test_what_it_answers_comes_back_from_a_file(inference, tmp_path):
    fitted = plane(inference, "auto")
    assert fitted.solver_.name == "weights"
    mc.save(fitted, tmp_path / "model")
    back = mc.load(tmp_path / "model").posterior_
    codes = PLANE_CODES[inference.classes]
    for one in (lambda p: p.covariance(NEW), lambda p: p.leave_one_out(), lambda p: p.sample(NEW, 3, seed=2),
                lambda p: p.condition(PLANE[:3], codes[:3]).mean(NEW)):  # fmt: skip
        assert np.array_equal(one(back), one(fitted.posterior_))
    assert back.numerics() == fitted.posterior_.numerics()


@inferences
def test_every_solver_gives_the_same_answers(inference):
    names = [name for name in WAYS if SOLVERS[name].exact]
    n_samples = 4000 if inference.samples else 400
    found = {name: plane(inference, name, n_samples=n_samples) for name in names}
    dense = found.pop("dense")
    assert found
    loose = inference.samples
    for other in found.values():
        assert other.predict_proba(NEW) == pytest.approx(dense.predict_proba(NEW), abs=0.03 if loose else 1e-4)
        assert other.loo().probability == pytest.approx(dense.loo().probability, abs=0.1 if loose else 1e-3)
        assert other.log_marginal_likelihood_ == pytest.approx(dense.log_marginal_likelihood_, abs=1e-3)
        if loose:
            continue
        for one, two in zip(
            (*other.posterior_.moments(NEW), other.posterior_.covariance(NEW), *other.posterior_.gradients(NEW)),
            (*dense.posterior_.moments(NEW), dense.posterior_.covariance(NEW), *dense.posterior_.gradients(NEW)),
            strict=True,
        ):
            assert one == pytest.approx(two, rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", list(INFERENCES))
def test_learning_finds_the_same_parameters_on_every_solver(name, classes):
    inference = named(name, classes=classes)
    if inference.refusal() is not None:
        pytest.skip("not for this number of classes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mc.NumericalWarning)  # classes are nearly apart, and samples few
        one, other = (plane(inference, solver, n_samples=40, learning="mle") for solver in ("dense", "weights"))
    assert one.theta_ == pytest.approx(other.theta_, abs=0.05)


def test_classes_with_kernels_of_their_own_have_no_terms_in_common():
    kernels = [FEATURES, 0.5 * k.Linear() + 0.2, 2.0 * k.Polynomial(2, offset=1.0)]
    answers = []
    for solver in ("dense", "weights"):
        fitted = mc.GaussianProcessClassifier(kernels, "laplace", learning=None, solver=solver, progress=False)
        posterior = fitted.fit(PLANE, PLANE_CODES[3]).posterior_
        with pytest.raises(mc.MercerError, match="kernel of its own"):
            posterior.terms(NEW)
        answers.append((*posterior.moments(NEW), posterior.covariance(NEW), *posterior.gradients(NEW)))
        answers[-1] += (posterior.leave_one_out(),)
    for one, other in zip(*answers, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", ["laplace", "mcmc"])
def test_auto_takes_weights_where_features_are_few(name, classes):
    wide = k.Polynomial(5, offset=1.0)  # 21 features of 2 inputs: fewer than 30, but not than 30 / sqrt(3)
    expected = [(FEATURES, "weights"), (1.0 * k.RBF(), "dense"), (wide, "weights" if classes == 2 else "dense")]
    for kernel, solver in expected:
        fitted = mc.GaussianProcessClassifier(kernel, name, learning=None, n_samples=16, progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mc.NumericalWarning)  # so few samples may not have mixed
            fitted.fit(PLANE, PLANE_CODES[classes])
        assert fitted.solver_.name == solver
