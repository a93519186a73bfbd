"""Together with scikit-learn: their kernels become ours, ours work in their machines."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC, SVR

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import free_names
from mercer.kernels.convert import as_kernel

rng = np.random.default_rng(0)

CONVERTIBLE = [
    sk.RBF(0.7), sk.RBF([0.7, 1.2, 3.0]), sk.Matern(0.7, nu=0.5), sk.Matern(1.1, nu=1.5),
    sk.Matern([1.0, 2.0, 3.0], nu=2.5),
    sk.Matern(0.7, nu=np.inf), sk.Matern(0.9, nu=0.8), sk.Matern(0.9, nu=3.2), sk.RationalQuadratic(0.8, alpha=1.7),
    sk.ExpSineSquared(1.2, periodicity=2.5), sk.DotProduct(1.5), sk.DotProduct(0.0), sk.ConstantKernel(2.5),
    sk.WhiteKernel(0.3), sk.RBF(0.7) ** 2, sk.ConstantKernel(2.0) * sk.RBF(0.5) + sk.WhiteKernel(0.1) + sk.DotProduct(),
    (sk.RBF() + sk.Matern()) * sk.ExpSineSquared(), 3.0 * sk.RBF() + 2.0,
    sk.PairwiseKernel(metric="linear"), sk.PairwiseKernel(metric="rbf", gamma=0.4),
    sk.PairwiseKernel(metric="poly", gamma=0.5, pairwise_kernels_kwargs={"degree": 2}),
    sk.PairwiseKernel(metric="polynomial", gamma=0.5), sk.PairwiseKernel(metric="sigmoid", gamma=0.2),
    sk.PairwiseKernel(metric="cosine"),
]  # fmt: skip


@pytest.mark.parametrize("theirs", CONVERTIBLE, ids=str)
def test_their_kernels_convert_with_equal_gram_matrices(theirs):
    X, Z = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    ours = as_kernel(theirs)
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(ours(X, Z), theirs(X, Z), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(ours.diag(X), theirs.diag(X), rtol=1e-12)


def test_every_kernel_of_theirs_converts_or_is_refused_by_name():
    class Own(sk.RBF):
        pass

    refused = [
        sk.CompoundKernel([sk.RBF()]), sk.PairwiseKernel(metric="laplacian"), sk.PairwiseKernel(metric="chi2"), Own(),
    ]  # fmt: skip
    for theirs in refused:
        with pytest.raises(mc.InvalidKernelError, match="no counterpart"):
            as_kernel(theirs)
    with pytest.raises(mc.InvalidKernelError, match="6.18"):
        as_kernel(sk.RBF() ** 1.5)
    known = {type(part) for theirs in [*CONVERTIBLE, *refused] for part in _parts(theirs)}
    there = {
        cls
        for cls in vars(sk).values()
        if isinstance(cls, type) and issubclass(cls, sk.Kernel) and not getattr(cls, "__abstractmethods__", None)
    }
    abstract = {sk.Kernel, sk.KernelOperator, sk.StationaryKernelMixin, sk.NormalizedKernelMixin, sk.GenericKernelMixin}
    assert there - abstract <= known


def _parts(kernel):
    yield kernel
    for name in ("k1", "k2", "kernel"):
        if hasattr(kernel, name):
            yield from _parts(getattr(kernel, name))


def test_fixed_bounds_become_fixed_parameters():
    theirs = sk.ConstantKernel(2.0, "fixed") * sk.RBF(0.5) + sk.WhiteKernel(0.1, "fixed")
    assert free_names(as_kernel(theirs)) == ["rbf_lengthscale"]


def test_a_sum_that_scikit_learn_itself_wrote():
    X = rng.normal(size=(4, 2))
    mixed = sk.RBF(0.7) + k.Linear()  # their operator wraps ours
    np.testing.assert_allclose(as_kernel(mixed)(X), sk.RBF(0.7)(X) + k.Linear()(X), rtol=1e-13)


def test_what_is_not_a_kernel_is_refused():
    for thing in ("rbf", None, 3.0, lambda x, z: 1.0):
        with pytest.raises(mc.InvalidKernelError, match="kernel was expected"):
            mc.GP(thing)


def test_inside_support_vector_machines():
    X, y = make_moons(120, noise=0.15, random_state=0)
    gamma = 2.0
    ours = SVC(kernel=k.RBF(1 / np.sqrt(2 * gamma)), C=3.0).fit(X, y)
    theirs = SVC(kernel="rbf", gamma=gamma, C=3.0).fit(X, y)
    grid = rng.uniform(-1, 2, size=(50, 2))
    np.testing.assert_allclose(ours.decision_function(grid), theirs.decision_function(grid), atol=1e-3)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    target = np.sin(3 * X[:, 0])
    a = SVR(kernel=k.Polynomial(2, offset=1.0), C=2.0).fit(X, target).predict(grid)
    b = SVR(kernel="poly", degree=2, gamma=1.0, coef0=1.0, C=2.0).fit(X, target).predict(grid)
    np.testing.assert_allclose(a, b, atol=1e-3)


def test_composites_in_svc_clone_and_grid_search():
    X, y = make_moons(80, noise=0.1, random_state=1)
    machine = clone(SVC(kernel=k.RBF(0.5) + k.Linear().on(0) * k.Matern().on(1)))
    assert machine.fit(X, y).score(X, y) > 0.95
    search = GridSearchCV(SVC(), {"kernel": [k.Linear(), k.RBF(0.5)]}, cv=3).fit(X, y)
    assert search.best_params_["kernel"] == k.RBF(0.5)
