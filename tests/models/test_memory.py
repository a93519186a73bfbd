"""What will not fit is refused before it begins, with what to do instead."""

import numpy as np
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core import machine

X = np.random.default_rng(0).normal(size=(30, 2))
MACHINES = {
    "dual form": mc.KernelRidge(k.RBF(), solver="dual"),
    "RBFNetwork": mc.RBFInterpolator(),
    "fewer centres": mc.RBFNetwork(5, kernel=k.RBF()),
    "solver='iterative'": mc.KernelPCA(2, k.RBF(), "dense"),
    "a discriminant of 30 rows": mc.KernelFisherDiscriminant(k.RBF()),
}


@pytest.mark.parametrize("told", MACHINES)
def test_memory_that_is_not_there_is_told(told, monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    model = MACHINES[told]
    with pytest.raises(mc.NotEnoughMemoryError, match=told):
        model.fit(X, X[:, 0] > 0 if hasattr(type(model), "_check_labels") else X[:, 0])
