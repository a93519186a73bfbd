"""The dual perceptron: mistake by mistake the primal one, Novikoff's bound, and data that cannot be separated."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

import mercer as mc
from mercer import basis
from mercer import kernels as k
from mercer.models import perceptron
from mercer.models.perceptron import KernelPerceptron

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
INSIDE = (np.sum(X**2, axis=1) < 1.2).astype(int)
THREE = np.digitize(X[:, 0] + 0.5 * X[:, 1] ** 2, [-0.3, 0.8])
Z = rng.normal(size=(30, 2))
QUADRATIC = k.Polynomial(2, 1.0)
FEATURES = k.FeatureMap(basis.Polynomial(3))


def primal(Phi, codes, orders, n_classes):
    """One weight vector per class (for two classes the second, minus the first); every visit in its turn."""
    W = np.zeros((n_classes, Phi.shape[1]))
    total, visits, mistakes, per_epoch = np.zeros_like(W), 0, [], []
    for order in orders:
        before = len(mistakes)
        for i in order:
            scores = W @ Phi[i]
            others = np.where(np.arange(n_classes) == codes[i], -np.inf, scores)
            if others.max() >= scores[codes[i]]:
                W[codes[i]] += Phi[i]
                W[others.argmax()] -= Phi[i]
                mistakes.append(i)
            total, visits = total + W, visits + 1
        per_epoch.append(len(mistakes) - before)
        if not per_epoch[-1]:
            break
    return W, total / visits, mistakes, per_epoch


@pytest.mark.parametrize("kernel", [QUADRATIC, FEATURES])
@pytest.mark.parametrize("codes", [INSIDE, THREE], ids=["two", "three"])
@pytest.mark.parametrize(("shuffle", "intercept"), [(False, True), (True, False)])
@pytest.mark.filterwarnings("ignore:the classes were not separated")
def test_it_is_the_primal_perceptron_update_for_update(kernel, codes, shuffle, intercept, monkeypatch):
    C, n = codes.max() + 1, len(X)
    Phi = np.asarray(kernel.features(X))
    if intercept:
        Phi = np.column_stack([Phi, np.full(n, np.linalg.norm(Phi, axis=1).max())])
    generator = np.random.default_rng(3)
    orders = [generator.permutation(n) if shuffle else np.arange(n) for _ in range(15)]
    W, mean, mistakes, per_epoch = primal(Phi, codes, orders, C)

    seen, correct = [], perceptron._Boundary._correct

    def noted(self, i, *rest):
        seen.append(i)
        correct(self, i, *rest)

    monkeypatch.setattr(perceptron._Boundary, "_correct", noted)
    for averaged, weights in ((False, W), (True, mean)):
        seen.clear()
        model = KernelPerceptron(kernel, intercept, averaged, 15, shuffle, 3).fit(X, codes)
        assert seen == mistakes
        assert model.mistakes_.tolist() == per_epoch
        assert model.n_updates_ == len(mistakes)
        assert model.converged_ == (per_epoch[-1] == 0)
        found = Phi.T @ model.dual_coef_
        expected = weights[1] if C == 2 else weights.T  # w = Phi^T (a t)
        np.testing.assert_allclose(found, expected, atol=1e-9)
        Phi_z = np.asarray(kernel.features(Z))
        if intercept:
            Phi_z = np.column_stack([Phi_z, np.full(len(Z), Phi[0, -1])])
        np.testing.assert_allclose(model.decision_function(Z), Phi_z @ expected, atol=1e-8)
        scores = Phi_z @ weights.T
        assert (model.predict(Z) == scores.argmax(axis=1)).all()


def test_no_more_mistakes_than_novikoff_allows():
    for seed in range(5):
        own = np.random.default_rng(seed)
        Phi, w = own.normal(size=(80, 4)), own.normal(size=4)
        side = Phi @ w / np.linalg.norm(w)
        Phi, side = Phi[np.abs(side) > 0.2], side[np.abs(side) > 0.2]
        model = KernelPerceptron(k.Linear(), fit_intercept=False, max_epochs=1000, random_state=seed).fit(Phi, side > 0)
        assert model.converged_
        assert model.n_updates_ <= np.max(np.sum(Phi**2, axis=1)) / np.abs(side).min() ** 2
        assert model.score(Phi, side > 0) == 1.0


def test_classes_that_overlap_end_with_a_warning():
    y = rng.integers(2, size=60)
    doubled, labels = np.concatenate([X, X]), np.concatenate([y, 1 - y])
    with pytest.warns(
        ConvergenceWarning, match=r"mistakes on 120 rows in epoch 7, the last. Try averaged=True"
    ) as told:
        model = KernelPerceptron(max_epochs=7).fit(doubled, labels)
    assert f"{model.mistakes_[-1]} mistakes" in str(told[0].message)
    assert told[0].filename == __file__
    assert not model.converged_
    assert len(model.mistakes_) == 7
    assert np.isfinite(model.decision_function(Z)).all()


@pytest.mark.filterwarnings("ignore:the classes were not separated")
def test_averaging_helps_where_classes_overlap():
    wins = []
    for seed in range(5):
        own = np.random.default_rng(seed)
        inputs = own.normal(size=(400, 2))
        y = inputs[:, 0] + 0.8 * own.normal(size=400) > 0
        scores = [
            KernelPerceptron(k.Linear(), averaged=averaged, max_epochs=5).fit(inputs[:200], y[:200])
            .score(inputs[200:], y[200:]) for averaged in (False, True)
        ]  # fmt: skip
        wins.append(scores[1] - scores[0])
    assert np.mean(wins) > 0


def test_rows_made_on_demand_give_the_same(monkeypatch):
    kernel = k.RBF(0.7) + k.White(0.2)
    whole = KernelPerceptron(kernel).fit(X, THREE)
    monkeypatch.setattr("mercer.core.machine.available_memory", lambda: 0)
    monkeypatch.setattr(perceptron, "BLOCK_ROWS", 8)
    parts = KernelPerceptron(kernel).fit(X, THREE)
    np.testing.assert_array_equal(parts.dual_coef_, whole.dual_coef_)
    np.testing.assert_array_equal(parts.mistakes_, whole.mistakes_)


@pytest.mark.parametrize("c", [1e-12, 1e12])
def test_the_unit_of_a_kernel_does_not_matter(c):
    plain, scaled = (KernelPerceptron(kernel).fit(X, INSIDE) for kernel in (QUADRATIC, c * QUADRATIC))
    np.testing.assert_array_equal(plain.dual_coef_, scaled.dual_coef_)


def test_any_input_and_any_label():
    words = ["tea", "tee", "eat", "sun", "nun", "sum"]
    letters = k.Custom(lambda a, b: float(len(set(a) & set(b))))
    model = KernelPerceptron(letters).fit(words, list("eeeuuu"))
    assert model.predict(["ate", "mum"]).tolist() == ["e", "u"]
    frame = pd.DataFrame(1e8 * X, columns=["a", "b"])
    model = KernelPerceptron().fit(frame, np.where(INSIDE, "in", "out"))
    assert model.score(frame, np.where(INSIDE, "in", "out")) == 1.0
    assert "updates in" in str(model)


def test_settings_are_checked():
    with pytest.raises(mc.ParameterError, match="max_epochs must be an integer of at least 1; got 0"):
        KernelPerceptron(max_epochs=0).fit(X, INSIDE)
    with pytest.raises(mc.InvalidKernelError, match="a perceptron needs"):
        KernelPerceptron(k.Sigmoid()).fit(X, INSIDE)
    with pytest.raises(mc.DataError, match="one class only"):
        KernelPerceptron().fit(X, np.zeros(60))
    KernelPerceptron(k.Sigmoid(), allow_invalid=True, max_epochs=500).fit(X[:3], [0, 1, 1])
