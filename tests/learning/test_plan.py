"""The rule of solver="auto", limits of memory and time, and the plan of a fit."""

import dataclasses

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core import machine
from mercer.gp.noise import as_noise
from mercer.learning.plan import planned
from mercer.solvers import auto, base
from mercer.solvers.auto import Budget, choose, fit_seconds
from mercer.solvers.base import LABELS, OTHER, SOLVERS, Cost
from mercer.solvers.dense import Dense
from mercer.solvers.iterative import Iterative

rng = np.random.default_rng(0)
X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
KERNEL, NOISE = 1.0 * k.RBF(1.0), as_noise(None, 60)
GIB = 2.0**30


def stand_in(given, memory, seconds, loss=None, columns=60, task_of=None, better=None):
    """A solver that says of itself what it is told, at a speed of one flop a second."""

    class StandIn(Dense):
        name, auto_loss = given, loss or 0.0

        def cost(self, kernel, X):
            return Cost(memory, seconds, (60, columns), f"it is {given}")

        def approximation(self, kernel):
            return None if loss is None else "approximates"

        def serves(self, task):
            return task_of is None or task == task_of

        def within(self, kernel, X, budget):
            return self if better is None else better

        def stages(self, n):
            return []

    return StandIn()


@pytest.fixture
def one_flop_a_second(monkeypatch):
    monkeypatch.setattr(auto, "flops_per_second", lambda: 1.0)


def chosen(*there, memory=GIB, seconds=600.0, task="gaussian"):
    return choose(there, KERNEL, X, NOISE, Budget(memory, seconds), task)


def test_exact_while_it_fits_then_the_best_approximation_that_does(one_flop_a_second):
    exact, small = stand_in("exact", 1e6, 100.0), stand_in("small", 1e5, 300.0, columns=10)
    fine, coarse = stand_in("fine", 1e6, 400.0, loss=0.1), stand_in("coarse", 1e4, 10.0, loss=0.5)
    everything = coarse, fine, exact, small
    for memory, seconds, expected, why in (
        (GIB, 600, "small", "it is small"),  # the smallest matrix
        (GIB, 200, "exact", "it is exact"),  # the other does not fit
        (5e5, 600, "small", "it is small"),
        (GIB, 50, "coarse", "takes more time than it may; it is coarse"),
        (5e4, 600, "coarse", "takes more memory than it may; it is coarse"),
        (
            GIB,
            5,
            "coarse",
            "fits 5 seconds, and of those that fit the memory it is the fastest",
        ),  # none fits the time: the fastest
        (
            1e3,
            5,
            "coarse",
            "fits the memory, 0.0 MiB, and it takes the least",
        ),  # none fits the memory: the smallest, which the plan refuses
    ):
        found = chosen(*everything, memory=memory, seconds=seconds)
        assert found.chosen.solver.name == expected
        assert why in found.why
    found = chosen(coarse, fine, stand_in("huge", 1e12, 1.0))
    assert found.chosen.solver is fine
    assert {each.solver.name for each in found.others} == {"coarse", "huge"}
    assert [each.solver.name for each in chosen(*everything).others] == ["exact"]  # approximations were not needed


def test_it_asks_solvers_for_settings_and_for_what_they_serve(one_flop_a_second):
    exact = stand_in("exact", 1e12, 1.0)
    tuned = stand_in("tuned", 1e4, 20.0, loss=0.2)
    assert chosen(exact, stand_in("raw", 1e12, 20.0, loss=0.2, better=tuned)).chosen.solver is tuned
    labels = stand_in("labels", 1e4, 20.0, loss=0.2, task_of=LABELS)
    assert chosen(exact, labels).chosen.solver is exact
    assert chosen(exact, labels, task=LABELS).chosen.solver is labels
    assert [name for name, cls in SOLVERS.items() if cls().serves(OTHER)][:1] == ["dense"]


def test_memory_and_time_are_read_as_people_write_them():
    assert Budget.of("1 MiB", 5).memory == 2**20
    assert Budget.of(1000, None).seconds == np.inf
    assert Budget.of().memory == pytest.approx(machine.available_memory() / 3, rel=0.2)
    for wrong in ("much", "4 parsecs", -1, 0, True, "1.2.3 GB", float("nan")):
        with pytest.raises(mc.ParameterError, match="max_memory"):
            Budget.of(wrong)
    for wrong in ("long", 0, -3, True, float("nan")):
        with pytest.raises(mc.ParameterError, match="max_seconds"):
            Budget.of(None, wrong)
    with machine.at_most(1000), machine.at_most(2000):
        assert machine.available_memory() == 1000
    assert machine.available_memory() > 2000


def test_a_plan_names_method_cost_reason_and_alternatives():
    model = mc.GaussianProcessRegressor(KERNEL, max_memory="512 MiB")
    many = rng.normal(size=(8000, 12))
    plan = model.plan(many)
    assert plan.method != "dense"
    assert plan.memory <= plan.available <= 2**29
    named = {name: (memory, seconds) for name, memory, seconds in plan.others}
    assert named["dense"][0] == 2 * 8 * 8000**2
    text = str(plan)
    for word in (
        "method    ",
        "because   ",
        "takes more memory than it may",
        "but       it ",
        "otherwise ",
        "dense would take",
    ):
        assert word in text
    assert mc.GaussianProcessRegressor(KERNEL).plan(many[:500]).method == "dense"
    quick = mc.GaussianProcessRegressor(KERNEL, max_seconds=0.01).plan(many[:2000])
    assert quick.seconds > 0.01  # nothing is that fast: the fastest
    assert mc.GaussianProcessRegressor(KERNEL, max_seconds=None, max_memory="1 GiB").plan(many[:6000]).method == "dense"


def test_what_was_asked_for_is_refused_where_it_does_not_fit():
    model = mc.GaussianProcessRegressor(KERNEL, solver="dense", max_memory="1 kB", progress=False)
    with pytest.raises(mc.NotEnoughMemoryError, match=r"exact fit of 60 rows needs"):
        model.fit(X, y)
    assert model.plan(X).available == 1000
    with pytest.raises(mc.NotEnoughMemoryError):
        mc.GaussianProcessClassifier(KERNEL, solver="dense", max_memory=1000, progress=False).fit(X, y > 0)
    with pytest.raises(mc.ParameterError, match="max_memory"):
        mc.GaussianProcessRegressor(KERNEL, max_memory="a lot").fit(X, y)


def test_a_fit_prints_its_plan_where_it_is_not_exact(capsys):
    solver = Iterative()
    mc.GaussianProcessRegressor(KERNEL, solver=solver, learning=None, noise=0.1).fit(X, y)
    assert "mercer: iterative, since it was asked for; about" in capsys.readouterr().err
    mc.GaussianProcessRegressor(KERNEL, solver=solver, learning=None, noise=0.1, progress=False).fit(X, y)
    mc.GaussianProcessRegressor(KERNEL, learning=None, noise=0.1).fit(X, y)
    assert capsys.readouterr().err == ""


def test_plans_of_classifiers_count_their_inference_and_classes():
    two, three = (
        mc.GaussianProcessClassifier(KERNEL, inference="laplace").plan(X, np.arange(60) % classes) for classes in (2, 3)
    )
    assert two.method == three.method == "dense"
    assert 8 * 60**2 * 4 == two.memory < three.memory
    model = mc.GaussianProcessClassifier(KERNEL, learning=None, progress=False).fit(X, y > 0)
    assert model.plan_.rows == 60


def test_learning_from_part_of_the_rows_is_what_fits_the_time():
    many, noise = rng.normal(size=(40_000, 12)), as_noise(None, 40_000)
    budget = Budget(64 * GIB, 1e9)
    solver = Iterative()
    whole = solver.within(KERNEL, many, budget)
    assert whole.learning_rows is None
    seconds = fit_seconds(whole, whole.cost(KERNEL, many), 40_000, budget)
    less = solver.within(KERNEL, many, dataclasses.replace(budget, seconds=seconds / 4))
    assert 1000 < less.learning_rows < 40_000
    assert less.stages(40_000)[-1] == less.learning_rows
    assert fit_seconds(less, less.cost(KERNEL, many), 40_000, budget) <= seconds / 4
    assert planned(less, KERNEL, many, noise, budget)[1].method == "iterative"
    assert base.resolve("auto", KERNEL, many, noise, budget=Budget(4 * GIB, seconds / 4)).converges


# -- classifiers ------------------------------------------------------------------------------------------------------


def planned_labels(classes=3, rows=30_000, **settings):
    places, limits = rng.normal(size=(rows, 2)), {"max_memory": "8 GiB", "max_seconds": None}
    model = mc.GaussianProcessClassifier(**{"kernel": KERNEL, "learning": None} | limits | settings)
    return model.plan(places, np.arange(rows) % classes)


@pytest.fixture
def much_memory(monkeypatch):
    monkeypatch.setattr(machine, "_free_of_machine", lambda: int(64 * GIB))
    monkeypatch.setattr(machine, "_free_of_containers", list)


def test_what_does_not_serve_the_classes_is_left_out_before_the_choice(much_memory):
    assert planned_labels(2).method == "neighbors"
    three = planned_labels(3)
    assert three.method == "minibatch"
    assert "more memory" in three.why
    assert "neighbors" not in [name for name, *_ in three.others]


@pytest.mark.parametrize(
    "settings", [{"inference": "laplace"}, {"inference": "mcmc"}, {"learning": "laplace"}, {"kernel": [KERNEL] * 3}]
)
def test_batches_are_no_candidate_where_they_do_not_apply(much_memory, settings):
    plan = planned_labels(**settings)
    assert plan.method == "dense"
    assert "asked for" not in plan.why
    assert "no method for these settings fits the memory" in plan.why
    with pytest.raises(mc.NotEnoughMemoryError, match="an exact fit of 30,000 rows needs"):
        plan.check()
    assert planned_labels(**settings, rows=300).why == Dense().cost(KERNEL, X).why


def test_a_plan_says_what_exceeds_its_limits(much_memory, one_flop_a_second):
    late = mc.GaussianProcessRegressor(KERNEL, solver="dense").plan(X)
    assert late.why == "it was asked for, although it may take more than the 600 seconds that 'auto' would allow"
    assert mc.GaussianProcessRegressor(KERNEL, solver="dense", max_seconds=None).plan(X).why == "it was asked for"
    large = mc.GaussianProcessRegressor(KERNEL, solver="dense", max_memory=1000, max_seconds=None).plan(X)
    assert large.why == "it was asked for, although it takes more than the 0.0 MiB that 'auto' would allow"
    fastest = mc.GaussianProcessRegressor(KERNEL).plan(X)
    assert fastest.why.startswith("no method for these settings fits 600 seconds, and of those that fit the memory")


@pytest.mark.parametrize(("likelihood", "inference"), [("poisson", "laplace"), ("student", "variational")])
def test_plans_of_other_likelihoods_count_their_inference(likelihood, inference, one_flop_a_second):
    counts = rng.poisson(2.0, size=60)
    settings = {"kernel": KERNEL, "solver": "dense", "progress": False}
    gaussian = mc.GaussianProcessRegressor(**settings).plan(X)
    other = mc.GaussianProcessRegressor(**settings, likelihood=likelihood, inference=inference)
    plan = other.plan(X)
    assert plan.memory == 2 * gaussian.memory
    assert plan.seconds > 4 * gaussian.seconds
    fitted = mc.GaussianProcessRegressor(**settings, likelihood=likelihood, inference=inference, learning=None)
    assert fitted.fit(X, counts).plan_.seconds == fitted.plan(X).seconds
