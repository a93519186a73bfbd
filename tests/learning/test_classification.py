"""Variances of several classes, by held-out labels."""

import types

import numpy as np
import pytest

from mercer import kernels as k
from mercer.inference.methods import Variational
from mercer.learning import classification
from mercer.learning.classification import LabelLearner
from mercer.learning.label_evidence import LabelObjective
from mercer.learning.optimise import Settings

N = 300
NOISE = np.random.default_rng(0).normal(size=N)
NOISE = (NOISE - NOISE.mean()) / NOISE.std()  # of one row's score per step: a standard error of sqrt(N) in the sum


def power_chosen(monkeypatch, curve, noise):
    """Chosen by `_rescaled` where the sum of scores at each power is on this curve, and steps differ by noise."""

    class Folds:
        def __init__(self, *_):
            pass

        def scores(self, factor):
            power = round(np.log(factor) / np.log(classification.VARIANCE_STEP))
            return curve(power) / N + noise * abs(power) ** 0.5 * NOISE

    monkeypatch.setattr(classification, "HeldOutFolds", Folds)
    infer = Variational(3)
    rows = np.random.default_rng(1).normal(size=(N, 1))
    objective = LabelObjective([1.0 * k.RBF(1.0)], rows, np.arange(N) % 3, infer)
    learner = LabelLearner(infer, Settings(), 0, default_kernel=False, use_priors=False)
    theta = objective.start()
    moved, scores = learner._rescaled(objective, types.SimpleNamespace(theta=theta, jitter=0.0, outcome=None))
    change = (moved - theta) / np.log(classification.VARIANCE_STEP)
    assert change[1] == 0  # the lengthscale
    np.testing.assert_array_equal(scores, Folds().scores(classification.VARIANCE_STEP ** round(change[0])))
    return round(change[0])


@pytest.mark.parametrize("way", [1, -1])
def test_small_steps_count_together(monkeypatch, way):
    """Each step after the first gains less than its standard error; together they gain several."""
    spread = 4.0 / np.sqrt(N)

    def curve(power):
        return 12.0 * np.sqrt(max(way * power, 0)) - (0 if way * power >= 0 else 5 * abs(power))

    gains = [curve(way * p) - curve(way * (p - 1)) for p in (1, 2, 3, 4)]
    assert gains[3] - 1 > 0
    chosen = power_chosen(monkeypatch, curve, spread)
    assert way * chosen >= 4
    # A gain that is not more than the standard error, in all, changes nothing.
    assert power_chosen(monkeypatch, curve, 5 * spread) == 0


def test_a_step_must_pay_for_itself(monkeypatch):
    """One nat for each: a plateau, where classes are told apart at any variance, is not climbed to its end."""
    assert power_chosen(monkeypatch, lambda power: 10.0 * min(power, 2) + 0.9 * max(power - 2, 0), 1e-3) == 2
    assert power_chosen(monkeypatch, lambda power: 0.9 * power, 1e-3) == 0
    assert power_chosen(monkeypatch, lambda power: -3.0 * abs(power - 2), 1e-3) == 2


def test_scores_that_fail_are_not_taken(monkeypatch):
    assert power_chosen(monkeypatch, lambda power: -np.inf if power == 2 else 10.0 * power, 1e-3) == 1
    assert power_chosen(monkeypatch, lambda power: -np.inf if power else 0.0, 1e-3) == 0
