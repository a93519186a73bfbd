"""Pictures of fitted classifications: what is drawn is what was found."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.stats import binom

import mercer as mc
from mercer import kernels as k
from mercer.models.classification import GaussianProcessClassifier

rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (50, 3))
y = np.where(X[:, 0] ** 2 + X[:, 2] > 1, "out", "in")


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def model():
    frame = pl.DataFrame(X, schema=["a", "b", "c"])
    return GaussianProcessClassifier(9.0 * k.RBF(1.5), learning=None, progress=False).fit(frame, y)


class Three:
    """Three classes around three places, as a fitted model would say it."""

    classes_ = np.array(["low", "mid", "high"])
    centres = np.array([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    codes_ = np.arange(30) % 3
    X_fit_ = centres[codes_] + 0.3 * np.random.default_rng(1).normal(size=(30, 2))

    def predict_proba(self, Z):
        f = np.exp(-3 * ((Z[:, None] - self.centres) ** 2).sum(axis=-1))
        return f / f.sum(axis=1, keepdims=True)


# -- reliability -----------------------------------------------------------------------------------------------------


def test_reliability_of_two_classes_is_the_frequency_of_the_second():
    p = rng.random(2000)
    happened = rng.random(2000) < p
    ax = mc.plot.reliability(happened.astype(int), np.column_stack([1 - p, p]), label="honest")
    ax = mc.plot.reliability((rng.random(2000) < p**2).astype(int), np.column_stack([1 - p, p]), ax=ax, label="not")
    ideal, honest, dishonest = ax.get_lines()  # the diagonal once
    np.testing.assert_array_equal(ideal.get_xdata(), ideal.get_ydata())
    assert len(honest.get_xdata()) == 10
    for b in range(10):
        here = (p >= b / 10) & (p < (b + 1) / 10)
        assert honest.get_xdata()[b] == pytest.approx(p[here].mean())
        assert honest.get_ydata()[b] == pytest.approx(happened[here].mean())
        assert ax.texts[b].get_text() == str(here.sum())
        low, high = binom.interval(0.95, here.sum(), p[here].mean()) / here.sum()
        bar = ax.collections[0].get_segments()[b]
        np.testing.assert_allclose(bar[:, 1], [low, high])
    bars = np.array([bar[:, 1] for bar in ax.collections[0].get_segments()])
    inside = lambda line: (bars[:, 0] <= line.get_ydata()) & (line.get_ydata() <= bars[:, 1])
    assert inside(honest).sum() >= 8
    assert inside(dishonest).sum() <= 4
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["ideal", "honest, n = 2,000", "not, n = 2,000"]


def test_reliability_of_a_model_is_leave_one_out(model):
    ax = mc.plot.reliability(model)
    line = ax.get_lines()[1]
    assert line.get_label() == "leave-one-out, n = 50"
    assert ax.get_xlabel() == "predicted probability of out"
    p = model.loo().probability[:, 1]
    assert len(line.get_xdata()) == 5  # of ten rows each
    assert line.get_xdata() @ np.full(5, 0.2) == pytest.approx(p.mean())
    assert line.get_ydata() @ np.full(5, 0.2) == pytest.approx(np.mean(y == "out"))


def test_reliability_puts_tenths_with_few_rows_together():
    p = np.r_[np.full(60, 0.02), 0.25, 0.35, np.full(9, 0.45), np.full(4, 0.75), np.full(40, 0.97)]
    happened = p > 0.4
    line = mc.plot.reliability(happened.astype(int), np.column_stack([1 - p, p])).get_lines()[1]
    middle = np.r_[0.25, 0.35, np.full(9, 0.45)]
    np.testing.assert_allclose(line.get_xdata(), [0.02, middle.mean(), (4 * 0.75 + 40 * 0.97) / 44])
    np.testing.assert_allclose(line.get_ydata(), [0.0, 9 / 11, 1.0])
    p[-3:], p[-40:-3] = 0.97, 0.85  # three are left over: they join the last
    line = mc.plot.reliability(happened.astype(int), np.column_stack([1 - p, p])).get_lines()[1]
    assert line.get_xdata()[-1] == pytest.approx(p[-44:].mean())


def test_reliability_of_several_classes_is_of_the_one_predicted():
    P = rng.dirichlet([1, 1, 1], 60)
    labels = np.array(["x", "y", "z"])[rng.integers(0, 3, 60)]
    ax = mc.plot.reliability(labels, P, ["x", "y", "z"], bins=1)
    line = ax.get_lines()[1]
    assert line.get_xdata() == pytest.approx([P.max(axis=1).mean()])
    assert line.get_ydata() == pytest.approx([np.mean(np.array(["x", "y", "z"])[P.argmax(axis=1)] == labels)])
    assert ax.get_xlabel() == "predicted probability of the predicted class"


# -- decision --------------------------------------------------------------------------------------------------------


def test_decision_of_two_classes_draws_probabilities_and_where_they_are_one_half(model):
    ax = mc.plot.decision(model, columns=("a", "c"), resolution=40)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "c")
    filled, half, *rows = ax.collections
    middle = np.median(X[:, 1])
    line = np.concatenate([path.vertices for path in half.get_paths()])
    there = pl.DataFrame({"a": line[:, 0], "b": middle, "c": line[:, 1]})
    np.testing.assert_allclose(model.predict_proba(there)[:, 1], 0.5, atol=0.03)
    assert len(line) > 20
    np.testing.assert_allclose(filled.levels, np.linspace(0, 1, 11))
    for label, dots in zip(("in", "out"), rows, strict=True):
        np.testing.assert_array_equal(dots.get_offsets(), X[y == label][:, [0, 2]])
    # Blue is the first class, red the second; between them nothing.
    low, mid, high = filled.cmap([0.0, 0.5, 1.0])[:, :3]
    assert low[2] > low[0]
    assert high[0] > high[2]
    np.testing.assert_allclose(mid, 1.0, atol=0.01)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [f"in ({np.sum(y == 'in')})", f"out ({np.sum(y == 'out')})"]


def test_decision_takes_arrays_and_frames_alike(model):
    kernel = 9.0 * k.RBF(1.5)
    twins = [X, pd.DataFrame(X, columns=["a", "b", "c"])]
    expected = mc.plot.decision(model, (0, 2), resolution=15).collections[1].get_paths()[0].vertices
    for inputs in twins:
        twin = GaussianProcessClassifier(kernel, learning=None, progress=False).fit(inputs, y)
        ax = mc.plot.decision(twin, (0, -1), resolution=15, data=False)
        np.testing.assert_allclose(ax.collections[1].get_paths()[0].vertices, expected, rtol=1e-6)
        assert ax.get_legend() is None


def test_decision_of_several_classes_has_their_colours_and_lines_between_them():
    model = Three()
    ax = mc.plot.decision(model, resolution=60)
    mesh, *lines = ax.collections[:4]
    a, b = mesh.get_coordinates()[..., 0], mesh.get_coordinates()[..., 1]
    shade = np.asarray(mesh.get_array())
    assert shade.shape == (60, 60, 3)
    assert shade.min() >= 0
    assert shade.max() <= 1
    for c, name in enumerate(["C0", "C1", "C2"]):  # at a class's own place its own hue
        away = (a[:-1, :-1] - model.centres[c, 0]) ** 2 + (b[:-1, :-1] - model.centres[c, 1]) ** 2
        i, j = np.unravel_index(away.argmin(), away.shape)
        tint = 1 - shade[i, j]
        pure = 1 - np.array(matplotlib.colors.to_rgb(name))
        assert tint @ pure / np.linalg.norm(tint) / np.linalg.norm(pure) > 0.98
    for drawn in lines:
        line = np.concatenate([path.vertices for path in drawn.get_paths() if len(path.vertices)])
        two = np.sort(model.predict_proba(line), axis=1)[:, -2:]
        np.testing.assert_allclose(two[:, 0], two[:, 1], atol=0.06)


def test_decision_of_many_classes_has_a_colour_for_each():
    model = Three()
    model.codes_, model.classes_ = np.arange(30) % 15, np.arange(15)
    model.centres = np.random.default_rng(2).normal(size=(15, 2))
    ax = mc.plot.decision(model, resolution=10)
    colours = {tuple(dots.get_facecolor()[0]) for dots in ax.collections[-15:]}
    assert len(colours) == 15
    assert ax.get_legend() is None


def test_what_cannot_be_drawn(model):
    with pytest.raises(mc.DataError, match="give a fitted classifier, or labels"):
        mc.plot.reliability([0, 1])
    with pytest.raises(mc.DataError, match="'d' is not one of the classes"):
        mc.plot.reliability(["a", "d"], np.full((2, 2), 0.5), ["a", "b"])
    with pytest.raises(mc.DataError, match="2 columns"):
        mc.plot.reliability(["a", "b"], np.full((2, 2), 0.5), ["a", "b", "c"])
    with pytest.raises(mc.ParameterError, match="no input 'd'"):
        mc.plot.decision(model, ("a", "d"))
    with pytest.raises(mc.ParameterError, match="no input 3"):
        mc.plot.decision(model, (0, 3))
    with pytest.raises(mc.ParameterError, match="two different inputs"):
        mc.plot.decision(model, (0, "a"))
    with pytest.raises(mc.ParameterError, match="two inputs"):
        mc.plot.decision(model, (0, 1, 2))
    with pytest.raises(mc.ParameterError, match="resolution"):
        mc.plot.decision(model, resolution=1)
    with pytest.raises(mc.DataError, match="fitted GaussianProcessClassifier"):
        mc.plot.decision(mc.KernelRidge())
    one = GaussianProcessClassifier(k.RBF(), learning=None).fit(X[:, :1], y)
    with pytest.raises(mc.DataError, match="has one"):
        mc.plot.decision(one)
