"""Latent variable models as estimators: clusters found, gaps filled, dimensions switched off, the way back."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mercer as mc
from mercer import kernels as k

rng = np.random.default_rng(3)
N = 48
HIDDEN = np.sort(rng.uniform(-2, 2, size=N))
# A curve in six columns in unequal units, which principal components cannot straighten.
CURVE = np.column_stack([
    np.sin(2 * HIDDEN), np.cos(2 * HIDDEN), HIDDEN, HIDDEN**2, np.tanh(3 * HIDDEN), np.sin(HIDDEN),
])  # fmt: skip
CURVE = (CURVE + 0.03 * rng.normal(size=CURVE.shape)) * [1, 10, 100, 1e-3, 1, 5] + [0, 0, 1e4, 0, -3, 0]
HOLES = rng.random(CURVE.shape) < 0.1
GAPS = np.where(HOLES, np.nan, CURVE)

GP = mc.GaussianProcessLatentVariables(2, max_iterations=80, progress=False).fit(CURVE)
BAYESIAN = mc.GaussianProcessLatentVariables(4, bayesian=True, n_inducing=16, max_iterations=160, progress=False)
BAYESIAN = BAYESIAN.fit(CURVE)
GTM = mc.GenerativeTopographicMapping(1, n_points=40, n_basis=8, progress=False).fit(CURVE)
MODELS = [GP, BAYESIAN, GTM]
names = lambda model: "bound" if model is BAYESIAN else type(model).__name__


def errors(columns, model):
    """Of the columns at the latent points, in units of each column's deviation."""
    return (model.inverse_transform(model.embedding_) - columns) / columns.std(axis=0)


@pytest.mark.parametrize("model", MODELS, ids=names)
def test_a_curve_is_unrolled(model):
    plane = PCA(1).fit(StandardScaler().fit_transform(CURVE))
    linear = StandardScaler().fit_transform(CURVE)
    flat = np.sqrt(np.mean((plane.inverse_transform(plane.transform(linear)) - linear) ** 2))
    assert np.sqrt(np.mean(errors(CURVE, model) ** 2)) < 0.25 * flat
    points = model.embedding_
    away = ((points[:, None] - points) ** 2).sum(-1) + 1e9 * np.eye(N)
    assert np.abs(away.argmin(axis=1) - np.arange(N)).max() <= 8  # neighbours on the curve stay neighbours
    assert (model.magnification() > 0).all()


@pytest.mark.parametrize("model", MODELS, ids=names)
def test_new_rows_and_rows_with_gaps_find_their_place(model, tmp_path):
    np.testing.assert_allclose(model.transform(CURVE), model.embedding_, atol=1e-12)
    near = CURVE + 1e-3 * CURVE.std(axis=0) * rng.normal(size=CURVE.shape)
    spread = model.embedding_.std(axis=0).max()
    assert np.median(np.abs(model.transform(near) - model.embedding_)) < 0.03 * spread
    filled = model.inverse_transform(model.transform(GAPS))
    assert np.sqrt(np.mean(((filled - CURVE) / CURVE.std(axis=0))[HOLES] ** 2)) < 0.25
    mc.save(model, tmp_path / "model")
    loaded = mc.load(tmp_path / "model")
    assert np.array_equal(loaded.transform(near[:5]), model.transform(near[:5]))
    assert str(loaded) == str(model)


@pytest.mark.parametrize("model", MODELS, ids=names)
def test_units_do_not_matter(model):
    other = type(model)(**{**model.get_params(deep=False), "max_iterations": 10})
    scaled = type(model)(**other.get_params(deep=False)).fit(CURVE * [1e6, 1, 1, 1e-6, 1, 1] - 5)
    other = other.fit(CURVE)
    np.testing.assert_allclose(scaled.embedding_, other.embedding_, atol=1e-3)
    name = "log_likelihood_" if isinstance(model, mc.GenerativeTopographicMapping) else "log_marginal_likelihood_"
    assert getattr(scaled, name) == pytest.approx(getattr(other, name), abs=0.05)  # 1e6 and 1e-6 cancel


def test_the_bound_switches_off_dimensions_without_use():
    unused = BAYESIAN.relevance_ < 0.01
    assert 2 <= unused.sum() <= 3
    assert "(unused)" in str(BAYESIAN)
    lengthscale = np.asarray(BAYESIAN.kernel_.inner.lengthscale)
    assert lengthscale[unused].min() > 5 * lengthscale[~unused].max()
    assert BAYESIAN.embedding_std_[:, unused].min() > 0.8  # as before data
    assert BAYESIAN.embedding_std_[:, ~unused].max() < 0.6


def test_gaps_in_training_rows():
    for model in (GTM, GP):
        found = type(model)(**model.get_params(deep=False)).fit(GAPS)
        assert np.sqrt(np.mean(errors(CURVE, found)[HOLES] ** 2)) < 0.4
    assert "values missing" in str(found)
    bounded = mc.GaussianProcessLatentVariables(2, bayesian=True, n_inducing=12, max_iterations=40, progress=False)
    assert np.sqrt(np.mean(errors(CURVE, bounded.fit(GAPS))[HOLES] ** 2)) < 0.6


def test_a_back_constraint_is_a_smooth_function_of_rows():
    model = mc.GaussianProcessLatentVariables(1, back_constraint=True, max_iterations=60, progress=False).fit(CURVE)
    np.testing.assert_allclose(model.transform(CURVE), model.embedding_, atol=1e-8)
    step = 1e-5 * CURVE.std(axis=0)
    assert np.abs(model.transform(CURVE + step) - model.embedding_).max() < 1e-3
    with pytest.raises(mc.DataError, match="function of whole rows"):
        model.transform(GAPS)
    with pytest.raises(mc.DataError, match="function of whole rows"):
        model.fit(GAPS)
    assert model.converged_ in (True, False)


def test_intervals_hold_rows_left_out():
    known, new = np.arange(N) % 4 != 0, np.arange(N) % 4 == 0
    model = mc.GaussianProcessLatentVariables(1, max_iterations=60, progress=False).fit(CURVE[known])
    hidden = CURVE[new].copy()
    hidden[:, 5] = np.nan
    mean, deviation = model.inverse_transform(model.transform(hidden), return_std=True)
    inside = np.abs(mean[:, 5] - CURVE[new][:, 5]) < 3 * deviation[:, 5]
    assert inside.mean() > 0.8
    assert (deviation > 0).all()


def test_densities_of_the_mapping():
    assert GTM.score_samples(CURVE).sum() == pytest.approx(GTM.log_likelihood_)
    assert GTM.score(CURVE) == pytest.approx(GTM.log_likelihood_ / N)
    R = GTM.responsibilities(CURVE)
    assert GTM.mode(CURVE)[:, 0] == pytest.approx(GTM.grid_[R.argmax(axis=1), 0])
    far = CURVE + 20 * CURVE.std(axis=0)
    assert GTM.score(far) < GTM.score(CURVE) - 100


def test_frames_constant_columns_and_pipelines():
    frame = pd.DataFrame(CURVE, columns=list("abcdef")).assign(same=7.0)
    model = mc.GenerativeTopographicMapping(1, n_points=20, progress=False).set_output(transform="pandas")
    out = model.fit_transform(frame)
    assert list(out.columns) == ["generativetopographicmapping0"]
    back = model.inverse_transform(out)
    assert back.shape == (N, 7)
    assert (back[:, 6] == 7).all()
    np.testing.assert_allclose(model.transform(frame[frame.columns[::-1]]), out)
    whole = make_pipeline(StandardScaler(), mc.GenerativeTopographicMapping(1, n_points=20, progress=False))
    assert whole.fit_transform(CURVE).shape == (N, 1)


def test_settings_and_data_are_checked():
    quiet = {"progress": False}
    with pytest.raises(mc.DataError, match="at least 2 samples"):
        mc.GaussianProcessLatentVariables(**quiet).fit(CURVE[:1])
    with pytest.raises(mc.DataError, match="constant"):
        mc.GenerativeTopographicMapping(**quiet).fit(np.ones((5, 2)))
    with pytest.raises(mc.DataError, match="column 1 of X has no values"):
        mc.GenerativeTopographicMapping(**quiet).fit(np.column_stack([HIDDEN, np.full(N, np.nan)]))
    with pytest.raises(mc.DataError, match="infinite"):
        mc.GenerativeTopographicMapping(**quiet).fit(np.where(HOLES, np.inf, CURVE))
    with pytest.raises(mc.ParameterError, match="1, 2 or 3"):
        mc.GenerativeTopographicMapping(4, **quiet).fit(CURVE)
    with pytest.raises(mc.ParameterError, match="tolerance must be a number above zero"):
        mc.GenerativeTopographicMapping(tolerance=0, **quiet).fit(CURVE)
    with pytest.raises(mc.ParameterError, match="Gaussian kernel only"):
        mc.GaussianProcessLatentVariables(kernel=k.Matern(1.0), bayesian=True, **quiet).fit(CURVE)
    with pytest.raises(mc.ParameterError, match="latent points of shape"):
        mc.GaussianProcessLatentVariables(init=np.zeros((3, 2)), **quiet).fit(CURVE)
    with pytest.raises(mc.ParameterError, match="relative to that of the columns"):
        mc.GaussianProcessLatentVariables(noise=-1.0, **quiet).fit(CURVE)
    with pytest.raises(mc.DataError, match="2 coordinates per latent point; got 3"):
        GP.inverse_transform(np.zeros((1, 3)))


def test_points_of_the_surface_have_the_deviation_of_the_noise():
    rows, deviation = GTM.inverse_transform(GTM.embedding_, return_std=True)
    np.testing.assert_array_equal(rows, GTM.inverse_transform(GTM.embedding_))
    assert deviation.shape == rows.shape
    missed = np.sqrt(np.mean(((rows - CURVE) / deviation) ** 2))
    assert 0.5 < missed < 1.5
