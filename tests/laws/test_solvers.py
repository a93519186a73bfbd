"""What every registered solver promises, on the kernels and rows that it takes."""

import jax.numpy as jnp
import numpy as np
import pytest

import mercer as mc
from design import example
from mercer import gram
from mercer import kernels as k
from mercer.core.coordinates import from_free, to_free
from mercer.gp.mean import MeanFunction
from mercer.gp.noise import RowNoise
from mercer.inference.base import INFERENCES, named
from mercer.solvers.base import SOLVERS

example("solver")
example("inference")
rng = np.random.default_rng(0)
N = 24
X, Z = rng.uniform(-2, 2, size=(N, 2)), rng.uniform(-3, 3, size=(7, 2))
y = X[:, 0] - 0.5 * X[:, 1] ** 2 + 0.1 * rng.normal(size=N) + 4.0
NOISE = rng.uniform(0.02, 0.1, size=N)
KERNEL = 0.7 * k.Linear() + 0.4 * k.Polynomial(2, offset=0.5)
DENSE = SOLVERS["dense"]()

EXAMPLES = {  # kernel and rows
    "few features": (KERNEL, X),
    "smooth": (1.5 * k.RBF(1.2) + 0.2 * k.Linear(), X),
    "series": (1.3 * k.Matern(0.8, nu=1.5), np.linspace(0, 5, N)[:, None]),
    "grid": (1.3 * k.RBF([0.9, 1.4]), rng.permutation([(i, j) for i in (0.0, 0.4, 1.5, 2.0) for j in range(6)])),
    "places and times": (
        1.1 * k.Matern(1.2).on([0, 1]) * k.Matern(2.0, nu=1.5).on(2),
        rng.permutation([(*place, t) for place in rng.uniform(0, 2, size=(6, 2)) for t in range(4)]),
    ),
    "incomplete grid": (0.8 * k.RBF(1.2).on(0) * k.RBF(1.5).on(1), np.argwhere(np.ones((5, 5)))[1:].astype(float)),
    "words": (0.5 * k.Spectrum(1), ["".join(letters) for letters in rng.choice(list("abc"), size=(N, 6))]),
}


def takes(solver, example):
    """Whether the solver applies to an example, by its own answer."""
    return solver.refusal(*EXAMPLES[example], RowNoise(NOISE)) is None


ALL = [cls() for cls in SOLVERS.values()]
THERE = [solver for solver in ALL if takes(solver, "few features")]
solvers = pytest.mark.parametrize("solver", THERE, ids=lambda solver: solver.name)
exact_solvers = pytest.mark.parametrize("solver", [s for s in THERE if s.exact], ids=lambda solver: solver.name)
converged_solvers = pytest.mark.parametrize(
    "solver", [s for s in THERE if s.exact or s.converges], ids=lambda solver: solver.name
)
MEANS = {
    "zero": None,
    "constant": "unknown",
    "linear": "linear",
    "a column": [1],
    "functions": mc.basis.Gaussian([[0.0, 0.0], [1.5, 0.5]], 1.0),
    "Gaussian prior": mc.means.Basis(mc.basis.Polynomial(1), variance=3.0),
    "known": lambda x: 3.0 + 0.5 * x[0],
    "learned": mc.means.Function(lambda p, x: p["level"] + jnp.tanh(p["rate"] * x[1]), {"level": 3.0, "rate": -0.4}),
}
FEW = ("zero", "constant", "linear", "Gaussian prior")
means = pytest.mark.parametrize("mean", MEANS)
few_means = pytest.mark.parametrize("mean", FEW)


def made(mean):
    return None if MEANS[mean] is None else MeanFunction.of(MEANS[mean])


def posterior(solver, mean="zero", rows=slice(None), kernel=KERNEL):
    return solver.posterior(kernel, X[rows], y[rows], NOISE[rows], made(mean))


@pytest.mark.parametrize("solver", ALL, ids=lambda solver: solver.name)
def test_it_is_registered_under_its_name_and_says_what_it_does(solver):
    assert SOLVERS[solver.name] is type(solver)
    assert solver.summary
    taken = [example for name, example in EXAMPLES.items() if takes(solver, name)]
    assert taken, "it refuses every example: add one that it takes"
    for kernel, rows in taken:
        cost = solver.cost(kernel, rows)
        assert min(cost.memory, cost.flops, *cost.matrix) > 0
        assert cost.why


@pytest.mark.parametrize("mean", ["zero", "constant"])
@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("solver", ALL, ids=lambda solver: solver.name)
def test_its_evidence_and_moments_are_those_of_the_dense_solver_or_bound_them(solver, example, mean):
    if not takes(solver, example):
        pytest.skip("the solver does not apply")
    kernel, rows = EXAMPLES[example]
    own, dense = (each.posterior(kernel, rows, y, NOISE, made(mean)) for each in (solver, DENSE))
    if solver.exact or solver.converges:
        assert own.log_evidence() == pytest.approx(dense.log_evidence(), rel=1e-7)
        for one, other in zip(own.moments(rows[:5]), dense.moments(rows[:5]), strict=True):
            assert one == pytest.approx(other, rel=1e-6, abs=1e-8)
    elif solver.bound:
        assert own.log_evidence() <= dense.log_evidence() + 1e-8 * abs(dense.log_evidence())


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("solver", ALL, ids=lambda solver: solver.name)
def test_its_mean_takes_prepared_rows(solver, example):
    if not takes(solver, example):
        pytest.skip("the solver does not apply")
    kernel, rows = EXAMPLES[example]
    own = solver.posterior(kernel, rows, y, NOISE, made("constant"))
    np.testing.assert_allclose(own.mean(gram.Gram(kernel, rows)), own.mean(rows), rtol=1e-12, atol=1e-12)


@means
@converged_solvers
def test_it_answers_as_the_dense_solver_does(solver, mean):
    own, dense = posterior(solver, mean), posterior(DENSE, mean)
    assert own.log_evidence() == pytest.approx(dense.log_evidence(), rel=1e-9)
    assert repr(own.prior_mean) == repr(dense.prior_mean)
    for one, other in zip((*own.coefficients(), *own.trend(Z)), (*dense.coefficients(), *dense.trend(Z)), strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-8)
    for one, other in zip(own.moments(Z), dense.moments(Z), strict=True):
        assert one == pytest.approx(other, rel=1e-7, abs=1e-9)
    assert own.mean(Z) == pytest.approx(dense.mean(Z), rel=1e-7)
    assert own.covariance(Z) == pytest.approx(dense.covariance(Z), rel=1e-6, abs=1e-8)
    assert np.diag(own.covariance(Z)) == pytest.approx(own.moments(Z)[1], rel=1e-6, abs=1e-9)
    for one, other in zip(own.gradients(Z), dense.gradients(Z), strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-7)


@means
@solvers
def test_its_evidence_has_the_slope_it_says(solver, mean):
    with solver.evidence(KERNEL, X, y, None, made(mean)) as evidence:
        theta = np.linspace(-0.5, 0.3, evidence.size)
        for profiled in (False, True) if mean != "Gaussian prior" else (False,):
            found = evidence(theta, profiled=profiled)
            for i, step in enumerate(1e-5 * np.eye(evidence.size)):
                high, low = (evidence(theta + sign * step, False, profiled).value for sign in (1, -1))
                assert found.gradient[i] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-5)


@means
@solvers
def test_the_evidence_learned_from_is_that_of_the_posterior(solver, mean):
    with solver.evidence(KERNEL.fix(), X, y, NOISE, made(mean)) as evidence:
        theta = np.zeros(0) if made(mean) is None else np.asarray(to_free(made(mean)))
        found = evidence(theta, gradient=False)
    assert found.value == pytest.approx(posterior(solver, mean).log_evidence(), rel=1e-9)


@means
@converged_solvers
def test_leaving_one_out_is_fitting_without_it(solver, mean):
    left_out, variance = posterior(solver, mean).leave_one_out()
    for i in (0, 5, N - 1):
        m, v = posterior(solver, mean, np.arange(N) != i).moments(X[i : i + 1])
        assert left_out[i] == pytest.approx(m[0], rel=1e-6)
        assert variance[i] == pytest.approx(v[0] + NOISE[i], rel=1e-6)


@means
@converged_solvers
def test_conditioning_twice_is_conditioning_once(solver, mean):
    whole, first = posterior(solver, mean), posterior(solver, mean, slice(0, 15))
    twice = first.condition(X[15:16], y[15:16], NOISE[15:16]).condition(X[16:], y[16:], NOISE[16:])
    assert twice.log_evidence() == pytest.approx(whole.log_evidence(), rel=1e-9)
    for one, other in zip(twice.moments(Z), whole.moments(Z), strict=True):
        assert one == pytest.approx(other, rel=1e-7, abs=1e-9)
    for one, other in zip(twice.data, (X, y, NOISE), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("mean", [mean for mean in MEANS if mean != "Gaussian prior"])
@solvers
def test_larger_variances_are_those_of_a_larger_covariance(solver, mean):
    factor = 1.7
    expected = solver.posterior(factor * KERNEL, X, y, factor * NOISE, made(mean))
    found = posterior(solver, mean).rescaled(factor * KERNEL, factor)
    assert found.log_evidence() == pytest.approx(expected.log_evidence(), rel=1e-9)
    for one, other in zip(
        (*found.moments(Z), *found.leave_one_out(), found.covariance(Z), found.data[2]),
        (*expected.moments(Z), *expected.leave_one_out(), expected.covariance(Z), expected.data[2]),
        strict=True,
    ):
        assert one == pytest.approx(other, rel=1e-7, abs=1e-9)
    assert found.numerics()["residual"] < 1e-8


@means
@converged_solvers
def test_terms_add_up_to_the_mean(solver, mean):
    own = posterior(solver, mean)
    terms, dense = own.terms(Z), posterior(DENSE, mean).terms(Z)
    assert [part for part, *_ in terms] == list(KERNEL.parts)
    assert sum(each for _, each, _ in terms) + own.trend(Z)[0] == pytest.approx(own.mean(Z), rel=1e-7)
    for (_, *one), (_, *other) in zip(terms, dense, strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-6, abs=1e-7)
        assert one[1] == pytest.approx(other[1], rel=1e-6, abs=1e-7)


@few_means
@solvers
def test_samples_have_its_moments(solver, mean):
    own = posterior(solver, mean)
    draws, (center, variance) = own.sample(Z, size=4000, seed=1), own.moments(Z)
    assert draws.shape == (4000, len(Z))
    assert np.abs(draws.mean(axis=0) - center).max() < 5 * np.sqrt(variance.max() / 4000)
    assert draws.var(axis=0) == pytest.approx(variance, rel=0.12)
    assert np.array_equal(draws, own.sample(Z, size=4000, seed=1))


@solvers
def test_numerics_say_how_well_it_was_solved(solver):
    found = posterior(solver).numerics()
    assert set(found) >= {"jitter", "condition", "residual"}
    assert found["jitter"] == 0
    assert found["residual"] < 1e-8


@pytest.mark.parametrize("mean", ["zero", "linear", "functions", "Gaussian prior"])
@solvers
def test_a_regressor_takes_it_by_name_and_as_an_object_and_comes_back_from_a_file(solver, mean, tmp_path):
    by_name, model = (
        mc.GaussianProcessRegressor(KERNEL, solver=given, mean=MEANS[mean], progress=False).fit(X, y)
        for given in (solver.name, solver)
    )
    assert model.solver_ == solver
    assert model.plan_.method == solver.name
    assert solver.summary in str(model.plan_)
    assert np.array_equal(model.predict(Z), by_name.predict(Z))
    mc.save(model, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert back.solver_ == solver
    for one, other in zip(model.predict(Z, return_std=True), back.predict(Z, return_std=True), strict=True):
        assert np.array_equal(one, other)
    assert back.log_marginal_likelihood(back.theta_) == pytest.approx(model.log_marginal_likelihood_, rel=1e-9)
    assert {*model.decompose(Z)} == {*back.decompose(Z)}
    assert repr(back.trend_) == repr(model.trend_)
    assert str(back) == str(model)
    model.update(Z, np.zeros(len(Z)))
    assert model.loo().mean.shape == (N + len(Z),)


@solvers
def test_predictions_under_an_operator_are_made_or_refused_by_the_posterior(solver):
    model = mc.GaussianProcessRegressor(KERNEL, 0.05, solver, None, progress=False).fit(X, y)
    if solver.takes_operators:
        slope = model.predict_gradient(Z)[0][:, 0]
        np.testing.assert_allclose(model.predict(Z, operator=mc.operators.Derivative(0)), slope, rtol=1e-6, atol=1e-8)
    else:
        with pytest.raises(mc.ParameterError, match="predictions under an operator"):
            model.predict(Z, operator=mc.operators.Derivative(0))


@solvers
def test_operators_and_limits_are_for_solvers_that_take_them(solver):
    fit = lambda given, **how: mc.GaussianProcessRegressor(1.0 * k.RBF(1.2), 0.05, given, None).fit(X, y, **how)
    half = [mc.operators.Value(), mc.operators.Derivative(0)] * (N // 2)
    for how in ({"operator": half}, {"monotone": {0: +1}}):
        if not solver.takes_operators:
            with pytest.raises(mc.ParameterError, match="operators are for"):
                fit(solver, **how)
            continue
        one, other = fit(solver, **how), fit(DENSE, **how)
        assert one.solver_ is solver
        np.testing.assert_allclose(one.predict(Z), other.predict(Z), rtol=1e-6)
        slopes = [model.predict(Z, operator=mc.operators.Derivative(1)) for model in (one, other)]
        np.testing.assert_allclose(*slopes, rtol=1e-6)


def test_solvers_that_are_not_registered_are_refused():
    for given in ("cheap", 3, None):
        with pytest.raises(mc.ParameterError, match="solver must be one of 'auto', .*'dense', "):
            mc.GaussianProcessRegressor(KERNEL, solver=given).fit(X, y)
    with pytest.raises(mc.ParameterError, match="finitely many features"):
        mc.GaussianProcessRegressor(k.RBF(), solver=mc.solvers.Weights()).fit(X, y)
    with pytest.raises(mc.ParameterError, match="positive noise variance"):
        mc.GaussianProcessRegressor(KERNEL, solver="weights", noise=0.0).fit(X, y)


def test_a_file_may_name_registered_solvers_only(tmp_path, monkeypatch):
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class Borrowed(type(DENSE)):
        name = "borrowed"
        digits: int = 3

    monkeypatch.setitem(SOLVERS, "borrowed", Borrowed)
    model = mc.GaussianProcessRegressor(KERNEL, solver=Borrowed(5), progress=False).fit(X, y)
    mc.save(model, tmp_path / "model")
    assert mc.load(tmp_path / "model").solver_ == Borrowed(5)
    monkeypatch.delitem(SOLVERS, "borrowed")
    with pytest.raises(mc.FileError, match=r"solvers\.Borrowed"):
        mc.load(tmp_path / "model")


def test_names_of_mercers_own_are_not_taken():
    from mercer.inference import base
    from mercer.inference.methods import Laplace
    from mercer.solvers import register

    class Mine(type(DENSE)):
        pass

    class Other(Laplace):
        pass

    with pytest.raises(mc.ParameterError, match="'dense' is the name of Dense"):
        register(Mine)
    with pytest.raises(mc.ParameterError, match="'laplace' is the name of Laplace"):
        base.register(Other)
    with pytest.raises(mc.ParameterError, match="registered as 'gone'"):
        base.named("gone")
    assert SOLVERS["dense"] is type(DENSE)


def test_weights_are_taken_where_features_are_fewer_than_rows():
    wide = k.Polynomial(3, offset=1.0)  # 10 features of 2 inputs
    for rows, expected in ((9, "dense"), (12, "weights"), (24, "weights")):
        assert mc.GaussianProcessRegressor(wide).plan(X[:rows]).method == expected


def test_a_solver_that_is_not_registered_may_be_used_and_printed():
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class Unknown(type(DENSE)):
        name = "unknown"

    model = mc.GaussianProcessRegressor(KERNEL, solver=Unknown(), progress=False).fit(X, y)
    assert "unknown" in str(model.plan_)


@pytest.mark.parametrize("name", [name for name, cls in INFERENCES.items() if not cls.samples])
@pytest.mark.parametrize("classes", [2, 3])
@exact_solvers
def test_every_inference_runs_on_it(solver, classes, name):
    inference = named(name, classes=classes)
    if inference.refusal() is not None:
        pytest.skip("not for this number of classes")
    codes, kernel = np.digitize(X[:, 0], [0.0] if classes == 2 else [-0.7, 0.7]), KERNEL + 0.3
    theta = np.asarray(to_free(kernel))

    def answer(solver, theta=theta):
        """The evidence, its slope, and the probabilities of new rows."""
        kernels = [from_free(kernel, theta)]
        with solver.latent(kernel, X) as space:
            K = space.at(theta)
            assert K.times(y) == pytest.approx(kernels[0](X) @ y)
            found = inference([K], codes)
            slope = found.slope([space.contraction(theta)])
            final = inference([space.at(theta)], codes, None, gradient=False)
            posterior = inference.posterior(final, kernels, X, codes)
        return found.log_evidence, slope, posterior.class_probabilities(Z, inference.likelihood)

    own, dense = answer(solver), answer(DENSE)
    for one, other in zip(own, dense, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
    if inference.for_learning() == inference:  # its slope is exact
        step = 1e-4 * np.eye(len(theta))[0]
        rise = (answer(solver, theta + step)[0] - answer(solver, theta - step)[0]) / 2e-4
        assert own[1][0] == pytest.approx(rise, rel=1e-3, abs=1e-4)


@exact_solvers
def test_gaussian_sites_are_measurements(solver):
    S, nu = rng.uniform(0.2, 3.0, size=N), rng.normal(size=N)
    S[3] = nu[3] = 0.0  # a row that says nothing
    told = S > 0
    exact = DENSE.posterior(KERNEL, X[told], nu[told] / S[told], 1 / S[told])
    with solver.latent(KERNEL, X) as space:
        K = space.at(np.asarray(to_free(KERNEL)))
        factor = K.factor(S)
        mean, variance = exact.moments(X)
        assert K.times(factor.weights(nu)) == pytest.approx(mean, rel=1e-7, abs=1e-9)
        assert factor.variance() == pytest.approx(variance, rel=1e-7, abs=1e-9)
        C = np.eye(N) + np.sqrt(S)[:, None] * KERNEL(X) * np.sqrt(S)
        assert K.factor(S).log_det == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-9)
