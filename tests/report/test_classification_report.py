"""What a fitted classification says of itself: figures beside naive ones and scikit-learn's; remarks where due."""

import types

import numpy as np
import pytest

from mercer import kernels as k
from mercer.core.errors import DataError, ParameterError
from mercer.gp.model import Model
from mercer.models.classification import GaussianProcessClassifier
from mercer.models.records import Found
from mercer.report import probabilities
from mercer.report.classification import report
from mercer.scores import binned, reliability

KERNEL = 2.0 * k.RBF(0.7)


def draw(n, C, seed=0, honest=True):
    """Probabilities, and classes drawn from them; not honest: from sharper ones."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(C), n)
    truth = P if honest else P**3 / (P**3).sum(axis=1, keepdims=True)
    codes = (rng.random((n, 1)) > truth.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return codes, P


@pytest.mark.parametrize(("n", "C"), [(37, 2), (250, 3), (4, 5)])
def test_scores_are_those_of_scikit_learn(n, C):
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

    codes, P = draw(n, C, seed=n)
    found = reliability(codes, P)
    assert found.log_loss == pytest.approx(log_loss(codes, P, labels=range(C)))
    assert found.error_rate == pytest.approx(1 - accuracy_score(codes, P.argmax(axis=1)))
    told = P[:, 1] if C == 2 else P
    expected = brier_score_loss(codes, told, labels=range(C), scale_by_half=False)
    assert found.brier == pytest.approx(expected)


@pytest.mark.parametrize("bins", [10, 3, np.linspace(0, 1, 6), [0.2, 0.5, 0.99999, 1.0]])
def test_bins_and_calibration_error_by_loops(bins):
    codes, P = draw(143, 4)
    found = reliability(codes, P, bins)
    p, right = P.max(axis=1), P.argmax(axis=1) == codes
    assert found.counts.sum() == 143
    if np.ndim(bins) == 0:
        assert len(found.counts) == bins
        assert np.ptp(found.counts) <= 1
    error = chance = 0.0
    for low, high, count, mean, share in zip(*found.bins, strict=True):
        here = [i for i in range(143) if low <= p[i] < high or (p[i] == high == p.max())]
        assert count == len(here) > 0
        assert mean == pytest.approx(np.mean([p[i] for i in here]))
        assert share == pytest.approx(np.mean([right[i] for i in here]))
        error += len(here) / 143 * abs(mean - share)
        chance += np.sqrt(2 / np.pi * sum(p[i] * (1 - p[i]) for i in here)) / 143
    assert found.calibration_error == pytest.approx(error)
    assert found.by_chance == pytest.approx(chance)


def test_what_chance_gives_an_honest_model():
    """Mean and deviation of the error over many honest sets are those told; of a dishonest one it is far outside."""
    sets = [reliability(*draw(300, 3, seed)) for seed in range(60)]
    errors = [found.calibration_error for found in sets]
    told, deviation = np.mean([[f.by_chance, f.chance_deviation] for f in sets], axis=0)
    assert np.mean(errors) == pytest.approx(told, rel=0.08)
    assert np.std(errors) == pytest.approx(deviation, rel=0.3)
    bad = reliability(*draw(300, 3, honest=False))
    assert bad.calibration_error > bad.by_chance + 3 * bad.chance_deviation + 0.01


def test_probabilities_that_are_all_the_same_or_certain():
    found = reliability([0, 1] * 20, np.full((40, 2), 0.5))
    assert found.counts.tolist() == [40]
    assert (found.calibration_error, found.error_rate) == (0.0, 0.5)
    sure = reliability([0, 0, 1], [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert sure.log_loss == np.inf
    assert sure.by_chance == 0.0
    assert "100.0%" in str(sure)
    assert len(binned(np.array([0.0, 0.05, 1.0]), np.array([0, 0, 1]), np.linspace(0, 1, 11)).counts) == 2


@pytest.mark.parametrize(
    ("codes", "P", "bins", "told"),
    [
        ([0, 1], [0.2, 0.7], 10, "a column for each of two"),
        ([0, 2], [[0.5, 0.5], [0.5, 0.5]], 10, "between 0 and 1"),
        ([0], [[0.5, 0.5], [0.5, 0.5]], 10, "2 integers"),
        (["a", "b"], [[0.5, 0.5], [0.5, 0.5]], 10, "2 integers"),
        ([0, 1], [[0.5, 0.6], [0.5, 0.5]], 10, "sum to one"),
        ([0, 1], [[np.nan, 0.6], [0.5, 0.5]], 10, "missing"),
        ([0, 1], [[0.4, 0.6], [0.5, 0.5]], 0, "bins must be"),
        ([0, 1], [[0.4, 0.6], [0.5, 0.5]], [0.0, 0.55], "edges of bins"),
    ],
)
def test_what_is_refused(codes, P, bins, told):
    with pytest.raises((DataError, ParameterError), match=told):
        reliability(codes, P, bins)


# -- the report ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (60, 1))
    y = np.where(np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=60) > 0, "up", "down")
    return GaussianProcessClassifier(KERNEL, progress=False).fit(X, y)


def test_the_page_of_a_fitted_model(fitted):
    page = report(fitted)
    loo = fitted.loo()
    called = fitted.classes_[loo.probability.argmax(axis=1)]
    y = fitted.classes_[fitted.codes_]
    assert page.title == "Gaussian process classification, 60 rows, 2 classes"
    assert list(page.sections) == [
        "Fit", "Classes, by leave-one-out", "Parameters", "Relevance of inputs",
        "Calibration of leave-one-out probabilities", "Optima found", "Numerics",
    ]  # fmt: skip
    told = page.sections["Fit"]
    for words in (
        f"{fitted.log_marginal_likelihood_:.2f}",
        f"{loo.log_score.mean():.4f} per row",
        f"{np.mean(called != y):.1%}",
        "ep, logistic sigmoid",
    ):
        assert words in told
    head, *lines = page.sections["Classes, by leave-one-out"].splitlines()
    assert head.split() == ["class", "rows", "error", "predicted", "down", "predicted", "up"]
    for label, line in zip(("down", "up"), lines, strict=True):
        counts = [int(np.sum((y == label) & (called == other))) for other in ("down", "up")]
        error = np.mean(called[y == label] != label)
        assert line.split() == [label, str(sum(counts)), f"{error:.1%}", *map(str, counts)]
    assert page.calibration.log_loss == pytest.approx(-loo.log_score.mean())
    assert str(page.calibration) in str(page)
    assert "lengthscale" in page.sections["Parameters"]
    assert "converged" in page.sections["Numerics"]
    assert page.suggestions == []
    assert "nothing looks wrong" in str(page)


def made(codes, P, classes, **changes):
    """What the report looks at, without a fit. Evidence as given, or good."""
    codes = np.asarray(codes)

    def no_relevance():
        raise DataError("none")

    with np.errstate(divide="ignore"):
        left = types.SimpleNamespace(probability=P, log_score=np.log(P[np.arange(len(codes)), codes]))
    standing = {
        "classes_": np.array(classes), "codes_": codes, "X_fit_": np.arange(len(codes))[:, None], "kernel_": KERNEL,
        "theta_": np.zeros(2), "optima_": [], "n_evaluations_": 0, "log_marginal_likelihood_": -1.0,
        "numerics_": {"iterations": 5, "converged": True, "jitter": 0.0}, "inference_": "laplace", "link": "logistic",
        "learning": "mle", "priors_": None, "theta_posterior_": None, "loo": lambda: left, "relevance": no_relevance,
        "_streams": lambda: False,
    }  # fmt: skip
    model = types.SimpleNamespace(**{**standing, **changes})
    model._model = lambda: Model(tuple(vars(model).get("kernels_") or [model.kernel_]))
    return model


def calls(codes, C, p=0.9):
    """The right class with probability p, the others alike."""
    P = np.full((len(codes), C), (1 - p) / (C - 1))
    P[np.arange(len(codes)), codes] = p
    return P


EVEN = np.arange(60) % 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"log_marginal_likelihood_": -65.0}, "add little to the class frequencies"),
        ({"theta_": np.zeros(20), "optima_": [Found(-1.0, {}, "a", True, 1)]}, "20 parameters were learned"),
        ({"optima_": [Found(-1.0, {}, "a", False, 1)]}, "before it converged"),
        ({"optima_": [Found(-1.0, {}, "a", True, 1), Found(-2.0, {}, "b", True, 1)]}, "another optimum"),
        ({"numerics_": {"iterations": 5, "converged": False, "jitter": 0.0}}, "inference did not converge"),
        ({"numerics_": {"iterations": 5, "converged": True, "jitter": 1e-8}}, "jitter was added"),
        ({"X_fit_": np.repeat(np.arange(30), 2)[:, None]}, "60 rows share their inputs with rows of another label"),
        ({"X_fit_": (np.arange(60) % 30)[:, None]}, "30 rows repeat others exactly"),
    ],
)
def test_each_suggestion_when_due_and_only_then(changes, told):
    page = report(made(EVEN, calls(EVEN, 3), ["a", "b", "c"], **changes))
    found = [text for text in page.suggestions if "underconfident" not in text]  # always right at 90%
    assert len(found) == (told is not None)
    assert told is None or told in found[0]
    assert "Relevance of inputs" not in page.sections
    assert "softmax" in page.sections["Fit"]


def test_classes_that_are_rare_or_never_called():
    codes = np.repeat([0, 1, 2], [200, 12, 3])
    P = calls(codes, 3)
    P[codes == 1] = [0.8, 0.15, 0.05]
    text = "\n".join(report(made(codes, P, ["many", "some", "few"])).suggestions)
    assert "very few rows: few (3)." in text
    assert "some: more than 10 times rarer than many" in text
    assert "no left-out row is predicted to be some." in text


def test_labels_that_surprise_and_probabilities_that_mislead():
    codes = np.arange(200) % 2
    P = calls(codes, 2, 0.999)
    P[:3] = P[:3, ::-1]
    text = "\n".join(report(made(codes, P, [0, 1])).suggestions)
    assert "3 labels are given a probability below 1%" in text
    rng = np.random.default_rng(0)
    wrong = rng.random(200) < 0.4
    P = calls(np.where(wrong, 1 - codes, codes), 2, 0.9)
    text = "\n".join(report(made(codes, P, [0, 1], log_marginal_likelihood_=-100.0)).suggestions)
    assert "overconfident" in text
    assert "inference='ep'" in text


def test_many_classes_and_a_kernel_for_each():
    codes = np.arange(120) % 12
    P = calls(codes, 12)
    P[codes == 3] = calls(np.full(10, 7), 12)
    model = made(codes, P, [f"c{c}" for c in range(12)], kernels_=[k.RBF(c + 1.0) for c in range(12)])
    del model.kernel_
    page = report(model)
    lines = page.sections["Classes, by leave-one-out"].splitlines()
    assert lines[0].split() == ["class", "rows", "error", "most", "often", "confused", "with"]
    assert lines[4].split() == ["c3", "10", "100.0%", "c7", "(10)"]
    assert "c11: lengthscale  12.0" in page.sections["Parameters"]


# -- what looks wrong ----------------------------------------------------------------------------------------------


def kinds(codes, P):
    return [f.kind for f in probabilities.of_labels(codes, P, [f"c{c}" for c in range(P.shape[1])], "try")]


@pytest.mark.parametrize(("n", "C"), [(30, 2), (100, 3), (300, 2), (500, 4)])
def test_honest_probabilities_raise_no_alarm(n, C):
    assert sum("class" not in kinds(*draw(n, C, seed)) and bool(kinds(*draw(n, C, seed))) for seed in range(40)) <= 2


def sharpened(P, power):
    return P**power / (P**power).sum(axis=1, keepdims=True)


def test_the_whole_reliability_curve_is_judged():
    codes, P = draw(300, 3)
    (found,) = probabilities.reliability_curve(codes, sharpened(P, 3), "try")
    assert "overconfident" in found.text
    assert str(found).endswith(": try.")
    (found,) = probabilities.reliability_curve(codes, sharpened(P, 0.3), "try")
    assert "underconfident" in found.text
    # Right on average: said 75% everywhere, where half the rows are certain and the others a coin.
    rng = np.random.default_rng(0)
    confidence = np.where(np.arange(300) % 2, 0.80, 0.70)
    right = rng.random(300) < np.where(np.arange(300) % 2, 0.5, 1.0)
    P = np.column_stack([confidence, 1 - confidence])
    (found,) = probabilities.reliability_curve(np.where(right, 0, 1), P, "try")
    assert "for some rows" in found.text


def test_frequencies_of_classes_are_judged():
    codes, P = draw(200, 3)
    tilted = P * [3.0, 1.0, 1.0]
    (found,) = probabilities.frequencies(codes, tilted / tilted.sum(axis=1, keepdims=True), ["a", "b", "c"])
    assert found.text.startswith("a has a mean probability of")
    assert probabilities.frequencies(codes, P, ["a", "b", "c"]) == []


def test_a_class_that_is_mostly_missed():
    codes = np.repeat([0, 1], [180, 20])
    P = np.where((codes == 0)[:, None], [0.95, 0.05], [0.8, 0.2])
    P[-3:] = [0.3, 0.7]
    (found,) = probabilities.errors(codes, P, ["common", "rare"])
    assert "85% of rare rows" in found.text
    assert "most often as common" in found.text
    assert found.severity == "note"


def test_rows_held_out_are_judged_beside_those_left_out():
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, (120, 1))
    y = np.where(np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=120) > 0, "up", "down")
    model = GaussianProcessClassifier(KERNEL, learning=None).fit(X[:60], y[:60])
    page = model.report(X[60:], y[60:])
    lines = {line.rsplit(None, 2)[0]: line.split()[-2:] for line in page.sections["Held-out rows"].splitlines()[1:8]}
    assert lines["rows"] == ["60", "60"]
    assert lines["errors"][0] == f"{np.sum(model.predict(X[60:]) != y[60:])}"
    assert lines["error rate"][0] == f"{np.mean(model.predict(X[60:]) != y[60:]):.1%}"
    assert lines["log score per row"][0] == f"{model.log_predictive_density(X[60:], y[60:]).mean():.4f}"
    assert page.findings == ()
    other = np.where(y[60:] == "up", "down", "up")
    assert {"held out", "calibration"} <= {finding.kind for finding in model.report(X[60:], other).findings}
    with pytest.raises(DataError, match="give both"):
        model.report(X[60:])
    with pytest.raises(DataError, match="not one of the classes"):
        model.report(X[60:], ["sideways"] * 60)
