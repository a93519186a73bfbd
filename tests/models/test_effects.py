"""Random effects of groups: variance components by REML, and the effects, against closed forms and statsmodels."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer as mc
from mercer import gram
from mercer import kernels as k
from mercer.gp.mean import MeanFunction
from mercer.solvers.weight_evidence import ScaledTerms, WeightSpace, scaled_terms

SITE, PLOT, X = k.Categorical().on("site"), k.Categorical().on("plot"), k.Linear().on("x")


def balanced(groups=12, each=6, seed=1):
    rng = np.random.default_rng(seed)
    sites = np.repeat([f"s{i:02d}" for i in range(groups)], each)
    return pd.DataFrame({"site": sites}), 10 + np.repeat(2 * rng.normal(size=groups), each) + rng.normal(
        size=len(sites)
    )


def table():
    rng = np.random.default_rng(3)
    n = 90
    frame = pd.DataFrame(
        {"site": rng.choice(list("abcdef"), n), "plot": rng.choice(list("uvw"), n), "x": rng.normal(size=n).round(3)}
    )
    codes = frame["site"].map({s: i for i, s in enumerate("abcdef")}).to_numpy()
    plots = codes * 3 + frame["plot"].map({"u": 0, "v": 1, "w": 2}).to_numpy()
    y = 5 + 0.8 * frame["x"] + 1.5 * rng.normal(size=6)[codes] + 0.7 * rng.normal(size=18)[plots]
    y += 0.6 * rng.normal(size=6)[codes] * frame["x"]
    return frame, (y + 0.5 * rng.normal(size=n)).round(3).to_numpy()


def fitted(kernel, X, y, **settings):
    return mc.GaussianProcessRegressor(kernel, progress=False, **settings).fit(X, y)


@pytest.mark.parametrize("solver", ["weights", "dense"])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_balanced_layout_has_the_estimates_of_the_analysis_of_variance(solver, normalize):
    """REML of one way, m rows a group: within, MSW; between, (MSB - MSW) / m. Effects are shrunken group means."""
    frame, y = balanced()
    model = fitted(1.0 * SITE, frame, y, solver=solver, normalize=normalize, mean="unknown")
    Y = y.reshape(12, 6)
    within = Y.var(axis=1, ddof=1).mean()
    between = Y.mean(axis=1).var(ddof=1) - within / 6
    found = model.effects()
    site, noise = found.components
    assert (site.term, noise.term) == ("site", "noise")
    assert site.deviation**2 == pytest.approx(between, rel=1e-3)
    assert noise.deviation**2 == pytest.approx(within, rel=1e-3)
    assert site.share == pytest.approx(between / (between + within), rel=1e-3)  # the intraclass correlation
    assert site.share + noise.share == pytest.approx(1.0)
    assert model.mean_ == pytest.approx(y.mean())
    shrinkage = between / (between + within / 6)
    effects = found["site"]
    assert effects.groups == [f"s{i:02d}" for i in range(12)]
    np.testing.assert_allclose(effects.mean, shrinkage * (Y.mean(axis=1) - y.mean()), rtol=1e-3, atol=1e-4)
    # var(u - its prediction), that of the unknown mean included
    expected = between * (1 - shrinkage) + shrinkage**2 * (between + within / 6) / 12
    np.testing.assert_allclose(effects.deviation, np.sqrt(expected), rtol=1e-3)


def test_nested_effects_and_slopes_are_those_of_statsmodels():
    """vc = {"site": "0 + C(site)", "plot": "0 + C(site):C(plot)", "slope": "0 + C(site):x"}
    fit = smf.mixedlm("y ~ x", frame, groups=np.ones(90), vc_formula=vc).fit(reml=True, method=["bfgs", "lbfgs",
    "powell"], gtol=1e-10), of statsmodels 0.15.0: vcomp, scale, fe_params, bse_fe and random_effects of the fit."""
    frame, y = table()
    model = fitted(1.0 * SITE + 1.0 * SITE * PLOT + 1.0 * SITE * X, frame, y, mean=["x"])
    found = model.effects()
    variances = {component.term: component.deviation**2 for component in found.components}
    expected = {"site": 2.89722, "site : plot": 0.23896, "x | site": 0.43324, "noise": 0.23238}
    assert variances == pytest.approx(expected, rel=5e-3)
    np.testing.assert_allclose(model.trend_.estimate, [6.49130, 0.47486], rtol=1e-3)
    np.testing.assert_allclose(model.trend_.error, [0.70660, 0.27534], rtol=3e-3)
    sites = [-0.219360, -2.328539, 2.022189, -0.390829, 1.850660, -0.934122]
    np.testing.assert_allclose(found["site"].mean, sites, atol=3e-3)
    slopes = [0.339306, 0.267789, 0.034144, -0.819089, 0.860168, -0.682319]
    np.testing.assert_allclose(found["x | site"].mean, slopes, atol=3e-3)
    assert found["site : plot"].groups[:2] == [("a", "u"), ("a", "v")]
    np.testing.assert_allclose(found["site : plot"].mean[:3], [-0.083826, -0.283489, 0.349223], atol=3e-3)
    # log likelihood -96.1237 there is without 1/2 ln |H^T H|, and of y itself
    H = np.column_stack([np.ones(90), frame["x"]])
    own = model.log_marginal_likelihood_ - 88 * np.log(model.scale_)
    assert own - 0.5 * np.linalg.slogdet(H.T @ H)[1] == pytest.approx(-96.12372, abs=0.01)


def test_crossed_effects_are_those_of_statsmodels():
    """As above with "y ~ 1" and vc = {"site": "0 + C(site)", "plot": "0 + C(plot)"}."""
    frame, y = table()
    model = fitted(1.0 * SITE + 1.0 * PLOT, frame, y)
    variances = {component.term: component.deviation**2 for component in model.effects().components}
    assert variances == pytest.approx({"site": 3.29008, "plot": 0.227987, "noise": 1.231709}, rel=2e-3)
    assert model.mean_ == pytest.approx(6.527651, abs=1e-3)


def test_a_group_without_rows_has_the_variance_of_its_term():
    frame, y = balanced()
    model = fitted(1.0 * SITE, frame, y)
    site = model.effects().components[0]
    mean, deviation = model.predict(pd.DataFrame({"site": ["new"]}), return_std=True, include_noise=False)
    assert mean[0] == pytest.approx(model.mean_)
    within, each = model.noise_, 6
    unknown = (site.deviation**2 + within / each) / 12  # variance of the estimated mean
    assert deviation[0] ** 2 == pytest.approx(site.deviation**2 + unknown, rel=1e-6)


def test_slopes_do_not_depend_on_the_row_they_are_read_from():
    frame, y = table()
    model = fitted(1.0 * SITE + 1.0 * SITE * X, frame, y, mean=["x"])
    at = pd.DataFrame({"site": ["c", "c"], "plot": ["u", "u"], "x": [1.0, -2.0]})
    (_, (mean, deviation), _) = model.decompose(at).values()
    found = model.effects()["x | site"]
    assert mean[0] == pytest.approx(found.mean[2])
    assert mean[1] == pytest.approx(-2 * found.mean[2])
    assert deviation == pytest.approx([found.deviation[2], 2 * found.deviation[2]])


def test_names_frames_and_files(tmp_path):
    frame, y = table()
    kernel = (1.0 * SITE).named("forest") + 1.0 * k.RBF().on("x")
    model = fitted(kernel, pl.DataFrame(frame.to_dict("list")), y)
    found = model.effects()
    assert list(found.groups) == ["forest"]
    assert found.components[1].term.endswith("RBF(lengthscale=" + found.components[1].term.split("=")[1])
    text = str(model.report())
    assert "Variance components" in text
    assert str(found) in text
    mc.save(model, tmp_path / "model")
    assert str(mc.load(tmp_path / "model").effects()) == str(found)
    with pytest.raises(mc.DataError, match="no term of groups 'site'; there are: forest"):
        found["site"]
    alone = fitted(1.0 * k.Categorical(), list(frame["site"]), y).effects()
    assert list(alone.groups) == ["group"]
    assert alone["group"].groups == list("abcdef")
    codes = frame["site"].map({s: float(i) for i, s in enumerate("abcdef")}).to_numpy()
    by_index = fitted(1.0 * k.Categorical().on(0), np.column_stack([codes, y]), y).effects()
    assert by_index["x0"].groups == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert by_index["x0"].mean == pytest.approx(alone["group"].mean, rel=1e-6)
    assert not fitted(1.0 * k.RBF(), frame[["x"]], y).effects().groups


def test_many_groups_are_cut_in_print():
    frame, y = balanced(groups=30, each=3)
    text = str(fitted(1.0 * SITE, frame, y).effects())
    assert "... 10 more" in text
    assert "s29" not in text


def test_the_default_kernel_has_effects_of_its_categories():
    frame, y = table()
    found = mc.GaussianProcessRegressor(progress=False).fit(frame[["site", "x"]], y).effects()
    assert found["site"].groups == list("abcdef")


# -- speed ---------------------------------------------------------------------------------------------------------


def test_few_groups_of_many_rows_go_through_the_weights():
    frame, _ = table()
    assert mc.GaussianProcessRegressor(1.0 * SITE + 1.0 * SITE * X).plan(frame).method == "weights"


@pytest.mark.parametrize("mean", [None, "unknown", ["x"], mc.means.Basis(mc.basis.Polynomial(1), 2.0, "x")])
@pytest.mark.parametrize("given", [None, 0.4])
def test_products_of_features_are_enough_where_parameters_are_variances(mean, given):
    frame, y = table()
    kernel = 1.0 * SITE + (1.0 * k.Categorical()).on("plot") + 1.0 * SITE * X + 0.3 * (SITE * PLOT) + X
    assert scaled_terms(kernel)
    mean = None if mean is None else MeanFunction.of(mean)
    noise = None if given is None else np.float64(given)
    short = mc.solvers.Weights().evidence(kernel, gram.Gram(kernel, frame), y + 100, noise, mean)
    long = WeightSpace(kernel, gram.Gram(kernel, frame), y + 100, noise, mean)
    assert isinstance(short, ScaledTerms)
    theta = np.random.default_rng(0).normal(size=long.size)
    for profiled in (False, True):
        one, other = short(theta, True, profiled), long(theta, True, profiled)
        assert (one.value, one.scale) == pytest.approx((other.value, other.scale), rel=1e-9)
        assert one.gradient == pytest.approx(other.gradient, rel=1e-7, abs=1e-7)
    for one, other in zip(short.left_out(theta), long.left_out(theta), strict=True):
        assert one == pytest.approx(other)


def test_groups_without_rows_in_a_part_of_them():
    """Stages of learning take a part of the rows, in which groups may be missing."""
    frame, y = table()
    kernel = 1.0 * SITE + 1.0 * SITE * PLOT
    rows = gram.Gram(kernel, frame)[np.flatnonzero(frame["site"] != "c")]
    target = y[frame["site"] != "c"]
    short, long = (cls(kernel, rows, target, None, MeanFunction.of("unknown")) for cls in (ScaledTerms, WeightSpace))
    one, other = (each(np.array([0.2, -0.7, -1.0])) for each in (short, long))
    assert one.value == pytest.approx(other.value, rel=1e-10)
    assert one.gradient == pytest.approx(other.gradient, rel=1e-8)


def test_where_products_lose_digits_features_are_used():
    frame, y = balanced()
    means = np.repeat(y.reshape(12, 6).mean(axis=1), 6) + 1e-6 * np.arange(72)  # hardly any noise
    kernel = 1.0 * SITE
    rows = gram.Gram(kernel, frame)
    short, long = (cls(kernel, rows, means, None, MeanFunction.of("unknown")) for cls in (ScaledTerms, WeightSpace))
    theta = np.array([0.0, np.log(1e-12)])
    assert short(theta).value == pytest.approx(long(theta).value, rel=1e-9)


def test_other_parameters_need_the_features():
    for kernel in (1.0 * k.Polynomial(2, offset=1.0), k.FeatureMap(mc.basis.Polynomial(1))):
        assert not scaled_terms(kernel)


def test_groups_that_are_confounded_are_told():
    frame, y = balanced(6, 3)
    frame["all"], frame["row"] = "one", [str(i) for i in range(len(frame))]
    terms = {"all": "mean", "row": "noise"}
    for column, other in terms.items():
        model = fitted(1.0 * SITE + 1.0 * k.Categorical().on(column), frame, y, max_iterations=3)
        with pytest.warns(mc.ModelWarning, match=f"'{column}'.*cannot be told from the {other}"):
            model.effects()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(1.0 * SITE, frame, y).effects()
