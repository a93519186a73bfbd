"""The recursion over states against the dense solver, on kernels and times that are hard for it."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core import machine
from mercer.core.coordinates import to_free
from mercer.gp.mean import MeanFunction
from mercer.kernels import states
from mercer.linalg import statespace
from mercer.solvers import Dense, Grid, StateSpace

rng = np.random.default_rng(0)
N = 40
T = rng.uniform(0, 8, N)  # not in order
T[6] = T[5]
X = T[:, None]
Z = np.concatenate([rng.uniform(-2, 10, 9), T[:3]])[:, None]
y = np.sin(T) + 0.1 * rng.normal(size=N) + 3.0
NOISE = rng.uniform(0.02, 0.1, size=N)
KERNELS = {
    "Matern": 1.3 * k.Matern(0.8, nu=1.5),
    "sum": k.Exponential(0.7) + 0.5 * k.Matern(3.0, nu=2.5) + k.White(0.05),
    "trends": 0.3 * k.Linear() + k.Matern(2.0, nu=1.5) * k.Linear() + k.Constant(2.0),
    "smooth": k.Polynomial(2, offset=0.5) + k.Matern(1.0, nu=3.5),
    "quasi-periodic": k.Matern(5.0, nu=1.5) * k.Periodic(1.3, 1.0) + 0.2 * k.Matern(1.0, nu=0.5),
    "standard": k.Standard(1.0, 2.0, 0.5, 0.3, shift=1.0, scale=2.0, nu=2.5),
    "power": (0.7 * k.Matern(2.0, nu=0.5)) ** 2,
    "noise in factors": (k.Matern(nu=1.5) + k.White(0.2)) * k.Matern(2.0, nu=0.5) + 0.1 * k.White() * k.Cosine(),
    "a column": 0.8 * k.Matern(1.0, nu=1.5).on(0) + k.Constant(0.3),
}
SOLVERS = StateSpace(), Dense()
kernels = pytest.mark.parametrize("name", KERNELS)
means = pytest.mark.parametrize("mean", [None, "unknown", "linear"])


def made(mean):
    return None if mean is None else MeanFunction.of(mean)


def same(own, dense):
    for one, other in zip(own, dense, strict=True):
        assert one == pytest.approx(other, rel=1e-8, abs=1e-8)


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of a few rows, of which nothing is kept."""
    monkeypatch.setattr(statespace, "MIN_PIECE", 8)
    monkeypatch.setattr(statespace, "MAX_PIECE", 8)
    monkeypatch.setattr(machine, "STATES_BYTES", 0)


@means
@kernels
def test_the_posterior_is_that_of_the_dense_solver(name, mean):
    own, dense = (solver.posterior(KERNELS[name], X, y, NOISE, made(mean)) for solver in SOLVERS)
    same([own.log_evidence()], [dense.log_evidence()])
    same([*own.moments(Z), own.covariance(Z)], [*dense.moments(Z), dense.covariance(Z)])
    same([*own.leave_one_out(), *own.trend(Z)], [*dense.leave_one_out(), *dense.trend(Z)])
    for (part, *one), (other_part, *other) in zip(own.terms(Z), dense.terms(Z), strict=True):
        assert part == other_part
        same(one, other)
    assert own.numerics()["residual"] < 1e-10


@pytest.mark.parametrize("profiled", [False, True])
@means
@kernels
def test_the_evidence_and_its_gradient_are_those_of_the_dense_solver(name, mean, profiled):
    with (
        StateSpace().evidence(KERNELS[name], X, y, None, made(mean)) as own,
        Dense().evidence(KERNELS[name], X, y, None, made(mean)) as dense,
    ):
        theta = np.linspace(-0.5, 0.3, own.size)
        one, other = own(theta, profiled=profiled), dense(theta, profiled=profiled)
        assert one.value == pytest.approx(other.value, rel=1e-9)
        assert one.gradient == pytest.approx(other.gradient, rel=1e-6, abs=1e-7)
        same(own.left_out(theta), dense.left_out(theta))


SMOOTH = [
    1.3 * k.RBF(0.7),
    0.8 * k.Seasonal("month", 1.2, 3.0),
    k.Standard(1.0, 2.0, 0.5, 0.3, shift=2001.0, scale=2.0, nu=np.inf),
]


@pytest.mark.parametrize("kernel", SMOOTH, ids=repr)
def test_smooth_kernels_and_seasons_by_the_calendar_are_those_of_the_dense_solver_to_their_accuracy(kernel):
    form = kernel.state_space()
    assert form.accuracy < 1e-8
    rows, new = 2000 + X, 2000 + Z
    own, dense = (solver.posterior(kernel, rows, y, NOISE) for solver in SOLVERS)
    for one, other in zip((*own.moments(new), own.covariance(new)), (*dense.moments(new), dense.covariance(new)),
                          strict=True):  # fmt: skip
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)  # an error of the matrix counts 1 / noise times
    with StateSpace().evidence(kernel, rows, y, 0.05) as own, Dense().evidence(kernel, rows, y, 0.05) as dense:
        theta = np.asarray(to_free(kernel)) + 0.1
        one, other = own(theta), dense(theta)
        assert one.value == pytest.approx(other.value, rel=1e-7)
        assert one.gradient == pytest.approx(other.gradient, rel=1e-5, abs=1e-5)


def test_the_gaussian_of_few_rates_is_as_accurate_as_it_says():
    t = np.linspace(0, 40, 4001)
    sum_of_rates = (np.exp(-np.outer(t, states.GAUSSIAN_RATES)) @ states.GAUSSIAN_WEIGHTS).real
    assert np.abs(sum_of_rates - np.exp(-0.5 * t**2)).max() < states.GAUSSIAN_ACCURACY


@pytest.mark.parametrize("name", ["sum", "quasi-periodic"])
def test_pieces_that_are_computed_again_change_nothing(name, small_pieces):
    own, dense = (solver.posterior(KERNELS[name], X, y, NOISE, made("linear")) for solver in SOLVERS)
    assert len(own._factor.rows) == 5
    same([*own.moments(Z), own.covariance(Z)], [*dense.moments(Z), dense.covariance(Z)])
    same([*own.leave_one_out()], [*dense.leave_one_out()])
    many = np.linspace(-1, 9, 70)[:, None]  # more new times than rows in a piece
    same([*own.moments(many), own.covariance(many)], [*dense.moments(many), dense.covariance(many)])
    with (
        StateSpace().evidence(KERNELS[name], X, y, None, made("linear")) as own,
        Dense().evidence(KERNELS[name], X, y, None, made("linear")) as dense,
    ):
        theta = np.linspace(-0.5, 0.3, own.size)
        assert own(theta).gradient == pytest.approx(dense(theta).gradient, rel=1e-6, abs=1e-7)


@means
def test_later_rows_go_on_from_the_last_state(mean, small_pieces, monkeypatch):
    kernel, first = KERNELS["sum"], T < 6
    whole = StateSpace().posterior(kernel, X, y, NOISE, made(mean))
    some = StateSpace().posterior(kernel, X[first], y[first], NOISE[first], whole.prior_mean)
    _ = some._residual
    visited, run = [], statespace.run

    def counted(chain, t, gaps, noise, Y, start, rows, *rest, **options):
        visited.append(rows)
        return run(chain, t, gaps, noise, Y, start, rows, *rest, **options)

    monkeypatch.setattr(statespace, "run", counted)
    grown = some.condition(X[~first], y[~first], NOISE[~first])
    assert sum(rows.stop - rows.start for rows in visited) == (~first).sum()  # what was there is not computed again
    assert grown._factor.rows == statespace.pieces(N, 8)
    other = some.condition(X[~first] + 1.0, y[~first], NOISE[~first])  # two go on from the same
    assert np.array_equal(other.X[-1] - 1.0, grown.X[-1])
    same([grown.log_evidence(), *grown.moments(Z)], [whole.log_evidence(), *whole.moments(Z)])
    earlier = StateSpace().posterior(kernel, X[~first], y[~first], NOISE[~first], whole.prior_mean)
    back = earlier.condition(X[first], y[first], NOISE[first])
    same([back.log_evidence(), *back.moments(Z)], [whole.log_evidence(), *whole.moments(Z)])


@pytest.mark.parametrize("name", ["Matern", "trends"])
def test_samples_have_the_moments(name):
    own = StateSpace().posterior(KERNELS[name], X, y, NOISE, made("unknown"))
    draws = own.sample(Z, size=20_000, seed=1)
    assert draws.mean(axis=0) == pytest.approx(own.mean(Z), abs=0.05)
    scale = np.sqrt(np.outer(*2 * [own.moments(Z)[1]]))
    assert np.abs(np.cov(draws.T) - own.covariance(Z)).max() < 0.05 * scale.max()
    assert np.array_equal(draws, own.sample(Z, size=20_000, seed=1))
    spread = own.moments(Z)[1]
    assert draws.var(axis=0) == pytest.approx(spread, rel=0.05)  # five standard errors


@pytest.mark.parametrize(("blocks", "columns"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_the_loops_over_blocks_of_two_states_are_the_general_one(blocks, columns):
    own = np.random.default_rng(3)
    n, m, loops = 50, 2 * blocks, statespace.loops()
    noise, Y = own.uniform(0.1, 1.0, n), own.normal(size=(n, columns))
    noise[[7, 8]] = np.inf
    noise[11], noise[12] = 1e-160, 1e160  # beyond the range of products
    steps = own.exponential(size=n)
    matern = np.exp(-steps)[:, None] * np.stack([np.ones(n), steps, np.zeros(n), np.ones(n)], axis=1)
    turns = np.stack([np.cos(steps), np.sin(steps), -np.sin(steps), np.cos(steps)], axis=1)
    A = np.hstack([matern, np.exp(-0.3 * steps)[:, None] * turns][:blocks])
    left, right = (np.tile(each[:m], (n, 1)) for each in ([1.0, 0.0, 0.8, 0.0], [1.0, 1.0, 0.8, 0.0]))
    small = (loops.forward_two, loops.forward_two_twice)[blocks - 1]
    found = []
    for general in (False, True):
        T, b, e, Z = np.zeros((m, m)), np.zeros((m, columns)), np.empty(n), np.empty((n, columns))
        if general:
            nothing = np.empty((0, m)), np.empty((0, m, m)), np.empty((0, m, columns))
            sizes = np.full(blocks, 2)
            answer = loops.forward(sizes, A, left, right, noise, Y, T, b, 0.0, e, Z, *nothing)
        else:
            answer = small(A, left, right, noise, Y, T, b, 0.0, e, Z)
        found.append([*answer, T, b, e, Z])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    noise[20] = -10.0
    assert small(A, left, right, noise, Y, T, b, 0.0, e, Z)[1] == 20


def test_one_row_and_gaps_longer_than_any_lengthscale():
    for times in ([2.0], [0.0, 1e9, 2e9]):
        rows, target = np.array(times)[:, None], np.arange(1.0, 1.0 + len(times))
        own, dense = (solver.posterior(k.Matern(1.0, nu=2.5), rows, target, 0.1 * target) for solver in SOLVERS)
        same([own.log_evidence(), *own.moments(rows + 0.3)], [dense.log_evidence(), *dense.moments(rows + 0.3)])


def test_rows_that_others_determine_get_jitter_or_no_evidence():
    rows, target = np.array([[0.0], [1.0], [1.0]]), np.array([0.0, 1.0, 1.0])
    kernel = k.Matern(1.0, nu=1.5)
    assert StateSpace().posterior(kernel, rows, target, np.zeros(3)).numerics()["jitter"] > 0
    with StateSpace().evidence(kernel, rows, target, 0.0) as evidence:
        assert evidence(np.asarray(to_free(kernel))) is None


@pytest.mark.parametrize(
    ("kernel", "rows", "says"),
    [
        (k.Matern(1.0, nu=1.5) + 2.0 * k.RationalQuadratic(), X, r"RationalQuadratic\(.*\) has none"),
        (k.Matern() * k.Periodic(2.0, 0.05), X, r"Periodic\(.*\) would need more than 96 harmonics"),
        (k.Periodic(1.0, 0.3) * k.Periodic(1.3, 0.3), X, "would need 2401 states, more than 400"),
        (k.Linear() * (k.Matern(1.0, nu=1.5) + k.White(0.1)), X, "has none"),
        (k.Matern(1.0, nu=1.5), np.zeros((5, 2)), "one input column"),
        (k.Matern(1.0, nu=1.5).on(0) + k.Linear().on(1), np.arange(10.0).reshape(5, 2), "different columns"),
    ],
)
def test_it_says_which_term_it_cannot_take(kernel, rows, says):
    with pytest.raises(mc.ParameterError, match=says):
        mc.GaussianProcessRegressor(kernel, solver="statespace").fit(rows, y[: len(rows)])


def test_it_is_chosen_for_many_rows_of_one_column():
    many = np.linspace(0, 30, 1500)[:, None]
    uneven = many + 0.01 * np.random.default_rng(0).uniform(size=many.shape)
    plan = mc.GaussianProcessRegressor(1.0 * k.Matern(1.0, nu=1.5)).plan(many)
    assert (plan.method, plan.features) == ("statespace", 2)
    assert mc.GaussianProcessRegressor(1.0 * k.Matern(1.0, nu=1.5)).plan(many[:500]).method == "dense"
    # For these it would approximate, where an exact matrix is within reach: Toeplitz, if steps are equal.
    assert mc.GaussianProcessRegressor(1.0 * k.Periodic(1.0)).plan(uneven).method == "dense"
    assert mc.GaussianProcessRegressor(1.0 * k.Periodic(1.0)).plan(many).method == "grid"


@pytest.mark.parametrize("kernel", [k.RBF(1.0), k.Periodic(1.0), k.Seasonal("year"), k.Standard()], ids=repr)
def test_beyond_an_exact_fit_it_comes_before_coarser_approximations(kernel):
    many = 2000 + np.sort(np.random.default_rng(0).uniform(0, 50, 20_000))[:, None]
    plan = mc.GaussianProcessRegressor(1.0 * kernel, max_memory="2 GiB").plan(many)
    assert plan.method == "statespace"
    assert "approximates the kernel" in plan.approximation


LONG = np.linspace(0, 20, 1000)
WAVE = np.sin(LONG) + 0.2 * np.random.default_rng(0).normal(size=len(LONG))
DATES = {"when": np.datetime64("2020-01-01") + np.arange(len(LONG)) * np.timedelta64(12, "h")}
DEFAULT_FITS = {
    "numbers": (mc.GaussianProcessRegressor, {}, LONG[:, None], WAVE),
    "dates": (mc.GaussianProcessRegressor, {}, pd.DataFrame(DATES), WAVE),
    "counts": (mc.GaussianProcessRegressor, {"likelihood": "poisson"}, LONG[:, None], np.round(3 + WAVE)),
    "few": (mc.GaussianProcessRegressor, {"solver": "statespace"}, LONG[::20, None], WAVE[::20]),
    "steps": (mc.GaussianProcessRegressor, {"solver": "grid"}, LONG[::20, None], WAVE[::20]),
    "noise": (mc.HeteroscedasticGaussianProcessRegressor, {"max_iterations": 3}, LONG[:, None], WAVE),
}


@pytest.mark.parametrize("name", DEFAULT_FITS)
def test_the_default_kernel_of_one_column_is_chosen_from_every_smoothness(name):
    estimator, settings, rows, target = DEFAULT_FITS[name]
    model = estimator(progress=False, **settings).fit(rows, target)
    assert type(model.solver_) is {"steps": Grid}.get(name, StateSpace)
    assert {tried.member.nu for tried in model.choice_.tried} == {0.5, 1.5, 2.5, np.inf}
    assert model.choice_.member.nu == np.inf
    assert np.isfinite(model.predict(rows[:3])).all()


def test_a_kernel_without_states_is_refused_with_the_reason():
    for ask in (StateSpace().evidence, StateSpace().posterior):
        with pytest.raises(mc.ParameterError, match="RationalQuadratic.* has none"):
            ask(k.RationalQuadratic() + k.White(), X, y, NOISE)


def test_a_regressor_fits_forecasts_updates_and_comes_back_from_a_file(tmp_path):
    rows = np.linspace(0, 12, 60)[:, None]
    target = np.sin(rows[:, 0])
    own, dense = (
        mc.GaussianProcessRegressor(1.0 * k.Matern(1.0, nu=1.5), solver=name, noise=0.01, progress=False).fit(
            rows, target
        )
        for name in ("statespace", "dense")
    )
    ahead = np.array([[12.5], [13.0], [3.3]])
    same([own.theta_, *own.predict(ahead, return_std=True)], [dense.theta_, *dense.predict(ahead, return_std=True)])
    mc.save(own, tmp_path / "model")
    same(mc.load(tmp_path / "model").predict(ahead, return_std=True), own.predict(ahead, return_std=True))
    for model in (own, dense):
        model.update([[12.6]], [0.1])
    same(own.predict(ahead, return_std=True), dense.predict(ahead, return_std=True))
    for copied in (pickle.loads(pickle.dumps(own)), copy.deepcopy(own)):
        same(copied.predict(ahead, return_std=True), own.predict(ahead, return_std=True))
        copied.update([[12.9]], [0.3])
        assert (len(copied.y_train_), len(own.y_train_)) == (62, 61)


# -- targets that are not Gaussian -------------------------------------------------------------------------------------

SITES = 1.3 * k.Matern(0.8, nu=1.5) + 0.5 * k.Matern(3.0, nu=2.5) + k.Constant(100.0).fix() + k.White(0.05)


def test_sites_of_any_strength_are_those_of_the_matrix():
    S, nu, a, u, g = rng.uniform(0, 2, N), *rng.normal(size=(4, N))
    S[[3, 7, 9, 11]] = 0.0, 1e-12, 1e8, 1e-120  # none, hardly any, an exact value, and next to none
    theta = np.asarray(to_free(SITES))
    with StateSpace().latent(SITES, X) as own, Dense().latent(SITES, X) as dense:
        K, full = own.at(theta, 1e-6), dense.at(theta, 1e-6)
        same([K.diagonal, K.times(nu)], [full.diagonal, full.times(nu)])
        same([K.factor(S).log_det, K.factor(S).weights(nu)], [full.factor(S).log_det, full.factor(S).weights(nu)])
        assert K.factor(S).variance() == pytest.approx(full.factor(S).variance(), rel=1e-8)
        for mode in (None, (u, g)):
            slopes = [
                each.factor(S).slope(space.contraction(theta), a, mode) for each, space in ((K, own), (full, dense))
            ]
            assert slopes[0] == pytest.approx(slopes[1], rel=1e-8, abs=1e-8)
        assert K.factor(-S) is None
        assert K.factor(np.full(N, np.nan)) is None


@pytest.mark.parametrize("name", ["laplace", "ep", "variational"])
def test_counts_are_inferred_as_by_the_dense_solver(name, small_pieces):
    counts, theta, answers = rng.poisson(np.exp(np.sin(T))), np.array([0.2, 0.4]), []
    for solver in ("statespace", "dense"):
        model = mc.GaussianProcessRegressor(
            1.0 * k.Matern(1.0, nu=1.5), likelihood="poisson", inference=name, solver=solver, learning=None,
            progress=False,
        ).fit(X, counts)  # fmt: skip
        value, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
        answers.append([value, slope, *model.predict(Z, return_std=True), model.loo().mean])
        if solver == "statespace":
            rise = [model.log_marginal_likelihood(theta + d) - model.log_marginal_likelihood(theta - d)
                    for d in 1e-4 * np.eye(2)]  # fmt: skip
            assert slope == pytest.approx(np.array(rise) / 2e-4, rel=1e-3, abs=1e-4)
    for one, other in zip(*answers, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", ["laplace", "ep", "variational"])
def test_two_classes_are_inferred_as_by_the_dense_solver(name, tmp_path):
    labels, kernel, answers = np.sin(T) > 0.2, 1.0 * k.Matern(1.0, nu=1.5) + 0.5 * k.Matern(4.0, nu=0.5), []
    for solver in ("statespace", "dense"):
        model = mc.GaussianProcessClassifier(kernel, inference=name, solver=solver, learning=None, progress=False)
        model.fit(X, labels)
        found = model.posterior_
        answers.append([
            model.log_marginal_likelihood_, model.predict_proba(Z), *found.moments(Z), found.covariance(Z),
            *found.gradients(Z), *(part for term in found.terms(Z) for part in term[1:]), found.leave_one_out(),
        ])  # fmt: skip
        if solver == "statespace":
            draws, (center, variance) = found.sample(Z, size=4000, seed=1), found.moments(Z)
            assert np.abs(draws.mean(axis=0) - center).max() < 5 * np.sqrt(variance.max() / 4000)
            mc.save(model, tmp_path / "model")
            same([mc.load(tmp_path / "model").predict_proba(Z)], [model.predict_proba(Z)])
        more = found.condition([[8.5]], np.array([1]))
        answers[-1] += more.moments(Z)
    for one, other in zip(*answers, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)


def test_more_than_two_classes_are_dense_and_refused_by_name():
    labels = np.digitize(T, [3.0, 6.0])
    with pytest.raises(mc.ParameterError, match="takes two classes; y has 3"):
        mc.GaussianProcessClassifier(1.0 * k.Matern(1.0, nu=1.5), solver="statespace").fit(X, labels)


def test_twenty_thousand_counts_need_no_matrix(monkeypatch):
    from mercer.inference import sites

    rows = np.sort(rng.uniform(0, 2000, 20_000))[:, None]
    counts = rng.poisson(np.exp(0.5 + np.sin(rows[:, 0] / 20)))
    monkeypatch.setattr(sites.Covariance, "__init__", None)  # it would be of 3.2 GB
    kernel = 1.0 * k.Matern(30.0, nu=1.5)
    model = mc.GaussianProcessRegressor(kernel, likelihood="poisson", learning=None, progress=False).fit(rows, counts)
    assert model.plan_.method == "statespace"
    truth = np.exp(0.5 + np.sin(rows[:, 0] / 20))
    assert np.abs(model.predict(rows, include_noise=False) / truth - 1).mean() < 0.15
