"""The solver by neighbours: exact with all rows, near it with few, and honest about the distance."""

import dataclasses

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.gp.mean import MeanFunction
from mercer.learning import block_validation
from mercer.learning.block_validation import HOLES
from mercer.learning.choice import Choice, Tried
from mercer.linalg.ordering import Sets, maximin_order, near_and_far, nearest_before
from mercer.solvers import Dense, Neighbors

rng = np.random.default_rng(0)
N = 60
X, Z = rng.uniform(0, 3, size=(N, 2)), rng.uniform(-0.5, 3.5, size=(6, 2))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=N) + 3.0
NOISE = rng.uniform(0.02, 0.1, size=N)
ALL = Neighbors(N)
KERNELS = {
    "exponential": 1.3 * k.Exponential(0.9),
    "standard": k.Standard(1.2, [2.0, 0.7], 0.3, 0.2, nu=1.5),
    "two smooth terms": 0.8 * k.RBF([1.0, 2.0]) + 0.3 * k.RationalQuadratic(1.5),
}
kernels = pytest.mark.parametrize("name", KERNELS)
means = pytest.mark.parametrize("mean", [None, "linear"])


def posterior(solver, kernel, rows=slice(None), mean=None):
    return solver.posterior(kernel, X[rows], y[rows], NOISE[rows], None if mean is None else MeanFunction.of(mean))


def exact_divergence(kernel, X, noise, solver):
    """KL of the exact distribution from the approximate one: half the difference of log determinants, since the mean of
    the quadratic form is n under both."""
    own = solver.posterior(kernel, X, np.zeros(len(X)), noise)
    return 0.5 * (own.factor.log_det() - np.linalg.slogdet(kernel(X) + np.diag(noise))[1])


@means
@kernels
def test_with_all_rows_before_it_is_the_dense_solver(name, mean):
    own, dense = (posterior(solver, KERNELS[name], mean=mean) for solver in (ALL, Dense()))
    assert own.log_evidence() == pytest.approx(dense.log_evidence(), rel=1e-9)
    for one, other in zip(
        (*own.moments(Z), own.covariance(Z), *own.leave_one_out(), *own.gradients(Z)),
        (*dense.moments(Z), dense.covariance(Z), *dense.leave_one_out(), *dense.gradients(Z)),
        strict=True,
    ):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-7)
    assert own.divergence() == pytest.approx(0.0, abs=1e-6)


@means
@pytest.mark.parametrize("grouped", [True, False])
def test_the_slope_of_the_evidence_is_that_of_the_dense_solver(grouped, mean):
    kernel, made = KERNELS["standard"], None if mean is None else MeanFunction.of(mean)
    for profiled in (False, True):
        found = []
        for solver in (Neighbors(N, grouped=grouped), Dense()):
            with solver.evidence(kernel, X, y, None, made) as evidence:
                found.append(evidence(np.linspace(-0.4, 0.3, evidence.size), profiled=profiled))
        own, dense = found
        assert own.value == pytest.approx(dense.value, rel=1e-9)
        assert own.gradient == pytest.approx(dense.gradient, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    "kernel", [k.Matern(1.4, nu=1.5).rotate(30.0, 0.3), k.Matern(0.3, nu=1.5).on_sphere()], ids=["rotated", "sphere"]
)
def test_near_rows_are_near_where_the_kernel_sees_them(kernel):
    """With a rotated lengthscale matrix, and across the date line: with few neighbours already near the exact value,
    whose slope the approximate evidence has."""
    places = np.random.default_rng(1).uniform([165, 50], [195, 85], size=(150, 2))
    seen = places if not isinstance(kernel, k.space.OnSphere) else (places + [180, 0]) % [360, 180] - [180, 0]
    seen = (seen - seen.mean(axis=0)) / 5 if isinstance(kernel, k.space.Rotated) else seen
    noise = np.full(150, 0.01)
    assert exact_divergence(kernel, seen, noise, Neighbors(8)) < 2.5  # or tens, where they are near as numbers
    target = np.cos(places[:, 1])
    with Neighbors(150).evidence(kernel, seen, target) as own, Dense().evidence(kernel, seen, target) as dense:
        theta = np.full(own.size, -0.2)
        assert own(theta).gradient == pytest.approx(dense(theta).gradient, rel=1e-5, abs=1e-6)


def test_more_neighbours_are_nearer_the_exact_distribution():
    kernel, counts = 1.0 * k.Matern(0.7, nu=1.5), (1, 3, 6, 12, 24, 79)
    found = np.empty((5, len(counts)))
    for seed in range(len(found)):
        places = np.random.default_rng(seed).uniform(0, 2, size=(80, 2))
        found[seed] = [exact_divergence(kernel, places, np.full(80, 0.01), Neighbors(m)) for m in counts]
    assert (np.diff(found.mean(axis=0)) < 0).all()
    assert found.min() > -1e-8
    assert found[:, -1] == pytest.approx(0.0, abs=1e-8)


def test_groups_are_conditioned_on_more_rows_and_lose_less():
    kernel, noise = 1.0 * k.Matern(0.7, nu=1.5), np.full(N, 0.01)
    alone, grouped = (exact_divergence(kernel, X, noise, Neighbors(5, grouped=each)) for each in (False, True))
    assert 0 < grouped < alone


def test_the_distance_from_the_exact_evidence_is_estimated():
    places = np.random.default_rng(3).uniform(0, 4, size=(300, 2))
    kernel, noise = 1.0 * k.Matern(0.7, nu=1.5), np.full(300, 0.01)
    exact = exact_divergence(kernel, places, noise, Neighbors(4))
    found = Neighbors(4).posterior(kernel, places, np.zeros(300), noise).numerics()
    assert found["neighbors"] == 4
    assert 0.6 * exact < found["divergence"] < 1.6 * exact


def test_leaving_one_out_and_updating_are_those_of_the_approximate_distribution():
    kernel, solver = KERNELS["exponential"], Neighbors(6)
    own = posterior(solver, kernel)
    C = np.empty((N, N))
    C[np.ix_(own.order, own.order)] = own.factor.times(np.eye(N))
    P = np.linalg.inv(C)
    mean, variance = own.leave_one_out()
    assert variance == pytest.approx(1 / np.diag(P), rel=1e-8)
    assert mean == pytest.approx(y - (P @ y) / np.diag(P), rel=1e-8)
    twice = posterior(solver, kernel, slice(0, 40)).condition(X[40:], y[40:], NOISE[40:])
    assert twice.log_evidence() == pytest.approx(own.log_evidence(), rel=1e-10)
    for one, other in zip(twice.moments(Z), own.moments(Z), strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("noise", [0.05, 0.0])
def test_stations_may_coincide(noise):
    """Three measurements of each place; without noise, as one measurement."""
    places = np.repeat(X[:30], 3, axis=0)
    told = np.repeat(y[:30], 3) + (rng.normal(scale=0.2, size=90) if noise else 0.0)
    kernel, noise = 1.0 * k.Matern(0.9, nu=1.5), np.full(90, noise)
    own = Neighbors(30).posterior(kernel, places, told, noise)
    dense = Dense().posterior(kernel, places, told, noise)
    for solved in (own, dense):
        assert np.isfinite(solved.log_evidence())
    for one, other in zip(own.moments(Z), dense.moments(Z), strict=True):
        assert one == pytest.approx(other, abs=0.03)
    samples = own.sample(np.repeat(Z[:1], 2, axis=0), size=3)
    assert samples[:, 0] == pytest.approx(samples[:, 1], abs=1e-3)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_every_next_point_is_the_farthest_from_those_before(d):
    points = np.random.default_rng(d).uniform(size=(120, d))
    points[7] = points[3]
    order = maximin_order(points)
    assert np.array_equal(np.sort(order), np.arange(120))
    D = np.linalg.norm(points[:, None] - points, axis=2)
    for i in range(1, 120):
        assert D[order[i:]][:, order[:i]].min(axis=1).max() == pytest.approx(D[order[i], order[:i]].min())


def test_neighbours_are_the_nearest_before():
    points = np.random.default_rng(0).uniform(size=(400, 2))
    found = nearest_before(points, 7)
    for i in (0, 1, 5, 8, 255, 256, 399):
        expected = np.argsort(np.linalg.norm(points[:i] - points[i], axis=1))[:7]
        assert np.array_equal(found[i, : len(expected)], expected)
        assert (found[i, len(expected) :] == -1).all()


def test_groups_have_every_point_once_after_its_own_neighbours():
    points = np.random.default_rng(0).uniform(size=(300, 2))
    before = nearest_before(points[maximin_order(points)], 8)
    sets = Sets.grouped(before)
    assert len(sets) < 300
    g, p = np.nonzero(sets.target)
    targets = sets.members[g, p]
    assert np.array_equal(np.sort(targets), np.arange(300))
    for row, own, place in zip(targets, g, p, strict=True):
        assert set(before[row][before[row] >= 0]) <= set(sets.members[own, :place])


def test_new_rows_are_told_by_near_and_by_far_ones():
    points = np.random.default_rng(0).uniform(size=(2000, 2))
    points = points[maximin_order(points)]
    found = near_and_far(points, Z[:3], 40)
    for row, near in zip(Z[:3], found, strict=True):
        distance = np.linalg.norm(points - row, axis=1)
        assert len(set(near)) == 40
        assert set(np.argsort(distance)[:20]) <= set(near)
        assert (near < 2000 // 64).any()


def test_settings_are_checked():
    for given in ({"n_neighbors": 0}, {"n_neighbors": 2.5}, {"n_predict": True}):
        with pytest.raises(mc.ParameterError, match="positive integer"):
            Neighbors(**given)
    with pytest.raises(mc.ParameterError, match="rows of numbers"):
        mc.GaussianProcessRegressor(k.Spectrum(2), solver="neighbors").fit(["abc", "abd", "bcd"], [0.0, 1.0, 2.0])


def test_auto_takes_it_where_an_exact_fit_is_out_of_reach():
    model = mc.GaussianProcessRegressor(1.0 * k.Matern())
    many = np.random.default_rng(0).uniform(size=(200_000, 2))
    assert model.plan(many).method == "neighbors"
    assert "approximate" in str(model.plan(many))
    assert model.plan(many[:3000]).method == "dense"


def test_a_model_says_how_far_it_is_from_the_exact_one():
    model = mc.GaussianProcessRegressor(1.0 * k.Matern(), solver=Neighbors(5), progress=False).fit(X, y)
    assert "approximated by 5 neighbours" in str(model)
    assert "approximated by 5 neighbours" in str(model.report())
    assert "neighbours:" not in str(mc.GaussianProcessRegressor(1.0 * k.Matern(), progress=False).fit(X, y))


def test_holes_and_windows_are_whole_regions():
    places = np.random.default_rng(0).uniform(size=(2000, 2))
    out, some = block_validation.holes(places, 0)
    assert out.sum() == pytest.approx(block_validation.LEFT_OUT_SHARE * 2000, abs=sum(HOLES))
    assert out[np.concatenate(some)].all()
    assert len(np.unique(np.concatenate(some))) == out.sum()  # few enough that all are predicted
    assert [len(hole) for hole in some] == [h for i, n in enumerate(HOLES) for h in [len(some[0]) // 4**i] * n]
    again = block_validation.holes(places, 0)[1]
    assert all(np.array_equal(*pair) for pair in zip(some, again, strict=True))
    inside = block_validation.windows(places, 500, 0)
    assert len(np.unique(inside)) == 500
    # Rows of a region are mostly surrounded by rows of it.
    D = np.linalg.norm(places[inside][:, None] - places, axis=2)
    assert np.isin(np.argsort(D, axis=1)[:, 1], inside).mean() > 0.85


def test_the_report_says_that_blocks_decided():
    tried = [Tried("rough", -20.0, -0.5, np.zeros(1), 50), Tried("smooth", -10.0, -0.7, np.zeros(1), 50)]
    choice = Choice(tried, 50, 9, measure="blocks")
    assert "By the evidence it would be smooth" in choice.word_on_blocks()
    assert "By the evidence" not in dataclasses.replace(choice, tried=tried[:1]).word_on_blocks()
    assert dataclasses.replace(choice, measure="crps").word_on_blocks() is None
    assert "40.0% higher" in choice.margin()
    assert "whose CRPS of left-out blocks is 28.6% lower" in dataclasses.replace(choice, tried=tried[::-1]).margin()


def test_of_smoothnesses_that_holes_cannot_tell_apart_the_roughest_is_taken():
    rng = np.random.default_rng(0)
    smooth = -rng.uniform(1.0, 2.0, sum(HOLES))  # holes differ far more than predictions of the same hole
    alike, worse = smooth + 0.3 * rng.normal(size=len(smooth)), smooth - 0.1 * rng.uniform(0.5, 1.5, len(smooth))
    alike -= np.mean(alike - smooth) + 0.01
    assert block_validation.roughest_of_the_best({2.5: smooth, 0.5: alike}) == 0.5
    assert block_validation.roughest_of_the_best({2.5: smooth, 0.5: worse, 1.5: smooth - 0.01}) == 2.5
    assert block_validation.roughest_of_the_best({0.5: smooth, 2.5: worse}) == 0.5


def test_each_size_of_hole_counts_alike():
    of_holes = np.repeat([3.0, 2.0, 1.0], HOLES)
    assert block_validation.mean_and_error(of_holes) == (2.0, 0.0)
    of_holes[0] += 6.0  # one of the largest
    mean, error = block_validation.mean_and_error(of_holes)
    assert mean == pytest.approx(2.0 + 6.0 / HOLES[0] / 3)
    assert error == pytest.approx(6.0 / HOLES[0] / 3)  # the standard error of one number that differs
