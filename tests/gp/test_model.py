"""Kernel, mean, noise and likelihood as one tree of parameters."""

import numpy as np
import pytest

from mercer import kernels as k
from mercer import priors
from mercer.core.coordinates import Layout, free_names, from_free, log_prior, to_free
from mercer.gp.likelihood import Probit
from mercer.gp.mean import MeanFunction
from mercer.gp.model import Model
from mercer.gp.noise import CommonNoise, KernelNoise, LearnedNoise, RowNoise


def test_parts_keep_their_names_and_learned_parameters_are_one_vector():
    model = Model((2.0 * k.RBF(0.5),), MeanFunction(3.0), LearnedNoise(0.1))
    assert list(model.parameters) == ["variance", "lengthscale", "mean_constant", "noise"]
    assert free_names(model) == ["variance", "lengthscale", "noise"]
    assert np.exp(to_free(model)) == pytest.approx([2.0, 0.5, 0.1])
    found = from_free(model, np.log([4.0, 0.25, 0.3]))
    assert dict(found.parameters) == pytest.approx(
        {"variance": 4.0, "lengthscale": 0.25, "mean_constant": 3.0, "noise": 0.3}
    )
    assert model.replace(noise=0.7).noise.noise == 0.7
    assert "fixed" in repr(model.parameters)


def test_kernels_of_several_classes_are_told_apart():
    model = Model((k.RBF(1.0), 2.0 * k.Matern(3.0)), likelihood=Probit())
    assert free_names(model) == ["class0_lengthscale", "class1_variance", "class1_lengthscale"]
    changed = model.replace(class1_lengthscale=5.0)
    assert changed.kernels[1].parameters["lengthscale"] == 5.0
    assert changed.kernels[0] == model.kernels[0]


def test_priors_and_fixing_go_by_the_same_names():
    model = Model((2.0 * k.RBF(0.5),), noise=LearnedNoise(0.1))
    model = model.with_priors(noise=priors.Gamma(2.0, 3.0), lengthscale=priors.LogNormal(0.0, 1.0))
    expected = priors.Gamma(2.0, 3.0).log_density(0.1) + priors.LogNormal(0.0, 1.0).log_density(0.5)
    assert float(log_prior(model)) == pytest.approx(float(expected), rel=1e-6)
    assert Layout.of(model.fix("noise", "variance")).size == 1


@pytest.mark.parametrize("noise", [CommonNoise(0.3), CommonNoise(0.0), RowNoise(np.array([0.1, 0.0, 2.0]))])
def test_given_noise_is_shown_but_never_learned(noise):
    model = Model((k.RBF(),), noise=noise)
    assert "noise" in model.parameters
    assert free_names(model) == ["lengthscale"]
    scaled = model.noise.scaled(4.0)
    assert scaled.variances(np.zeros(0), range(3)) == pytest.approx(4 * noise.variances(np.zeros(0), range(3)))


def test_coordinates_belong_to_parts_of_the_tree():
    layout = Layout.of(Model((k.RBF(1.0), 2.0 * k.Matern(3.0)), noise=LearnedNoise(0.1)))
    theta = np.arange(4.0)
    assert theta[layout.part("kernels")].tolist() == [0.0, 1.0, 2.0]
    assert theta[layout.part("kernels", 1)].tolist() == [1.0, 2.0]
    assert theta[layout.part("noise")].tolist() == [3.0]
    assert not theta[layout.part("mean")].size
    assert layout.joined(noise=np.array([5.0]), kernels=np.array(1.0)).tolist() == [1.0, 1.0, 1.0, 5.0]


def test_its_table_has_every_parameter_under_its_own_name():
    model = Model((2.0 * k.RBF(0.5) + k.Constant(3.0),), MeanFunction(4.0), RowNoise(np.array([0.1, 0.3])))
    rows = dict(model.table_rows())
    assert rows["mean_constant"] == "4.0"
    assert rows["noise"] == "0.2"  # the mean of the rows
    assert len(rows) == len(model.parameters) == len({*model.parameters})
    several = Model((k.RBF(0.5), k.RBF(2.0)))
    assert several.table_rows() == [["class0_lengthscale", "0.5"], ["class1_lengthscale", "2.0"]]
    assert several.table_rows(["a", "b"]) == [["a: lengthscale", "0.5"], ["b: lengthscale", "2.0"]]


def test_a_noise_says_whether_it_was_given():
    assert [noise.given for noise in (LearnedNoise(), KernelNoise(), CommonNoise(0.0), RowNoise(np.ones(2)))] == [
        False, False, True, True
    ]  # fmt: skip
    assert KernelNoise().scaled(4.0) == KernelNoise()
