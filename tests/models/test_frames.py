"""Every estimator on frames of more rows than a tile has: what arrays give, and columns found by name."""

import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer as mc
from mercer import kernels as k

N = 300  # more rows than the smallest tile has
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 3)) * [1.0, 2.0, 0.5]
NUMBERS = X[:, 0] + np.sin(X[:, 1]) * X[:, 2] + 0.1 * rng.normal(size=N)
WORDS = np.where(X[:, 0] + 0.5 * X[:, 1] > 0, "big", "a little")
NAMES, ELSEWHERE = ["a", "b", "c"], ["c", "a", "b"]

KERNEL = 2.0 * k.RBF([1.0, 2.0, 3.0])
CASES = {
    "BayesianLinearRegression": (mc.BayesianLinearRegression(), NUMBERS),
    "GaussianMixtureRegressor": (mc.GaussianMixtureRegressor(2, random_state=0), NUMBERS),
    "GaussianProcessClassifier": (mc.GaussianProcessClassifier(KERNEL, learning=None), WORDS),
    "GaussianProcessLatentVariables": (
        mc.GaussianProcessLatentVariables(1, back_constraint=True, max_iterations=5),
        None,
    ),
    "GaussianProcessRegressor": (mc.GaussianProcessRegressor(KERNEL, noise=0.1, learning=None), NUMBERS),
    "GenerativeTopographicMapping": (mc.GenerativeTopographicMapping(), None),
    "HeteroscedasticGaussianProcessRegressor": (
        mc.HeteroscedasticGaussianProcessRegressor(KERNEL, noise=0.1, learning=None),
        NUMBERS,
    ),
    "KernelFisherDiscriminant": (mc.KernelFisherDiscriminant(KERNEL), WORDS),
    "KernelNeighborsClassifier": (mc.KernelNeighborsClassifier(kernel=KERNEL), WORDS),
    "KernelPCA": (mc.KernelPCA(2, KERNEL), None),
    "KernelPerceptron": (mc.KernelPerceptron(KERNEL, random_state=0), WORDS),
    "KernelRidge": (mc.KernelRidge(KERNEL), NUMBERS),
    "MultiOutputGaussianProcessRegressor": (
        mc.MultiOutputGaussianProcessRegressor(KERNEL, noise=0.1, learning=None),
        np.column_stack([NUMBERS, NUMBERS**2]),
    ),
    "NadarayaWatson": (mc.NadarayaWatson(KERNEL, 0.3, learning=None), NUMBERS),
    "ParzenDensity": (mc.ParzenDensity(), None),
    "RBFInterpolator": (mc.RBFInterpolator(smoothing=0.1), NUMBERS),
    "RBFNetwork": (mc.RBFNetwork(5, "kmeans", random_state=0), NUMBERS),
}

# What is offered besides `fit`, and what it is given after the inputs. Left out: the relevance and report of a
# classifier, which are tested with them.
OF_INPUTS = {
    "predict": (), "predict_proba": (), "predict_log_proba": (), "predict_latent": (), "decision_function": (),
    "transform": (), "kneighbors": (), "score_samples": (), "log_density": (), "density": (), "basis": (),
    "predict_gradient": (), "decompose": (), "sample_y": (), "sample": (), "predict_quantile": (0.3,),
    "predict_cdf": (0.2,), "predict_density": (0.2,),
}  # fmt: skip
OF_TARGETS = ("score", "log_predictive_density")


def test_every_estimator_is_here():
    found = {name for name in mc.__all__ if hasattr(getattr(mc, name), "fit")}
    assert found == set(CASES)


def frame_of(library, names=NAMES, rows=slice(None)):
    return library.DataFrame({name: X[rows, NAMES.index(name)] for name in names})


def answers(model, given, y):
    """Everything the model says of these inputs, by the name of the method."""
    found = {}
    for name, more in OF_INPUTS.items():
        if callable(getattr(model, name, None)) and not (name == "sample" and isinstance(model, mc.ParzenDensity)):
            found[name] = getattr(model, name)(given, *more)
    for name in OF_TARGETS:
        if hasattr(model, name):
            found[name] = getattr(model, name)(given, y)
    return found


def same(one, other, where):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key], f"{where}[{key}]")
    elif isinstance(one, tuple):
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            same(left, right, f"{where}[{i}]")
    elif np.asarray(one).dtype.kind in "US":
        np.testing.assert_array_equal(one, other, err_msg=where)
    else:
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8, err_msg=where)


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
@pytest.mark.parametrize("name", CASES)
def test_frames_say_what_arrays_say_in_any_order_of_columns(name, library):
    model, y = copy.deepcopy(CASES[name][0]), CASES[name][1]
    of_arrays = answers(copy.deepcopy(model).fit(X, y), X[:270], None if y is None else y[:270])
    given = y
    if y is not None and y.dtype.kind != "U":
        given = library.Series(y) if y.ndim == 1 else library.DataFrame(y, ["u", "v"] if library is pl else None)
    model.fit(frame_of(library), given)
    assert list(model.feature_names_in_) == NAMES
    for names in (NAMES, ELSEWHERE):
        found = answers(model, frame_of(library, names, slice(270)), None if y is None else y[:270])
        same(found, of_arrays, f"{name} of {names}")
    other = pl if library is pd else pd
    same(answers(model, frame_of(other, ELSEWHERE, slice(270)), None if y is None else y[:270]), of_arrays, "another")
    with pytest.raises(mc.DataError, match=r"missing:\n- c\n.*X\[list\(model.feature_names_in_\)\]"):
        getattr(model, "predict", getattr(model, "transform", getattr(model, "score_samples", None)))(
            frame_of(library, ["a", "b"])
        )
    if hasattr(model, "loo"):
        model.loo()
    if isinstance(model, mc.GaussianProcessRegressor):
        assert model.report()
        assert len(model.relevance()) == 3


def test_columns_that_nobody_knows_are_refused_with_the_remedy():
    model = mc.KernelRidge(KERNEL).fit(frame_of(pd), NUMBERS)
    frame = frame_of(pd).assign(target=NUMBERS)
    with pytest.raises(mc.DataError, match=r"unseen at fit time:\n- target\n.*X\[list\(model.feature_names_in_\)\]"):
        model.predict(frame)
    np.testing.assert_array_equal(model.predict(frame[["a", "b", "c"]]), model.predict(frame_of(pd)))


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
def test_more_rows_in_another_order_of_columns(library):
    model = mc.GaussianProcessRegressor(KERNEL, noise=0.1, learning=None, normalize=False)
    whole = copy.deepcopy(model).fit(frame_of(library), NUMBERS)
    model.fit(frame_of(library, rows=slice(270)), NUMBERS[:270])
    model.update(frame_of(library, ELSEWHERE, slice(270, None)), NUMBERS[270:])
    np.testing.assert_allclose(model.predict(frame_of(library)), whole.predict(frame_of(library)), rtol=1e-6, atol=1e-8)
