"""The choice between kernels of the user's."""

import collections

import equinox as eqx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import mercer as mc
from mercer import kernels as k
from mercer import persist
from mercer.core.errors import ObjectError
from mercer.distributions import Normal
from mercer.kernels.structured.rows import CountKernel, Counts, Vocabulary
from mercer.kernels.validity import proved
from mercer.learning import candidates, family, heuristics, search
from mercer.learning.choice import Choice, Tried
from mercer.learning.regression import RegressionObjective


class Grams(CountKernel):
    """Counts of substrings of one length."""

    length: int = eqx.field(default=2, static=True)

    def counts(self, objects):
        numbers, data, columns, ends = {}, [], [], [0]
        for i, text in enumerate(objects):
            if not isinstance(text, str):
                raise ObjectError(i, f"a text was expected; got {text!r}.")
            found = collections.Counter(text[j : j + self.length] for j in range(len(text) - self.length + 1))
            columns += [numbers.setdefault(gram, len(numbers)) for gram in found]
            data += found.values()
            ends.append(len(columns))
        matrix = sp.csr_matrix((data, columns, ends), shape=(len(objects), len(numbers)), dtype=float)
        return Counts(matrix, Vocabulary(list(numbers)))

    @property
    def validity(self):
        return proved("6.1", "a scalar product of counts", repr(self))


def drawn(kernel, X, seed, noise=0.1):
    """A function drawn from the process, in units of its deviation, and noise."""
    rng = np.random.default_rng(seed)
    K = kernel(X)
    values, vectors = np.linalg.eigh(K / np.mean(np.diag(K)))
    return vectors @ (np.sqrt(np.maximum(values, 0)) * rng.normal(size=len(K))) + noise * rng.normal(size=len(K))


def texts(n, seed, size=20):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("acgt"), size=size)) for _ in range(n)]


def select(*args, **kwargs):
    return mc.select_kernel(*args, **{"progress": False, **kwargs})


LENGTHS = [Grams(length=length) for length in (1, 2, 3)]


@pytest.fixture(scope="module")
def by_length():
    X = texts(80, 1)
    y = 5 + 3 * drawn(LENGTHS[1], X, 2)
    return X, y, select(X, y, LENGTHS, criterion="loo")


# -- what is chosen ---------------------------------------------------------------------------------------------------


def test_the_true_length_is_chosen_and_all_is_told(by_length):
    found = by_length[2]
    assert found.member is LENGTHS[1]
    assert [tried.candidate for tried in found.history] == LENGTHS
    assert all(tried.rows == 80 and tried.seconds > 0 and tried.failure is None for tried in found.history)
    scores = [tried.score for tried in found.tried]
    assert scores == sorted(scores, reverse=True)
    assert found.task == "regression"
    assert not found.skipped
    text = found.describe()
    assert text == str(found)
    behind = found.tried[1].score / found.tried[0].score - 1
    assert f"next of 3 kernels tried is {behind:.1%} higher" in text
    assert "80 rows" in text
    for tried in found.history:
        assert repr(tried.candidate) in text
        assert f"{-tried.score:.4f}" in text
        assert f"{tried.log_evidence:.1f}" in text
    assert [line.split()[0] for line in str(found.history).splitlines()] == ["kernel", *map(repr, LENGTHS)]
    assert list(found.kernel.parameters) == ["variance"]  # added, since the kernel has none


def test_the_evidence_chooses_it_too(by_length):
    X, y, left_out = by_length
    found = select(X, y, iter(LENGTHS))
    assert found.member is LENGTHS[1]
    for one, other in zip(found.history, left_out.history, strict=True):
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-8)
        assert one.score == pytest.approx(one.log_evidence - np.log(80))  # variance and noise: two parameters
    assert "nats lower" in found.describe()


def test_an_estimator_with_the_kernel_has_its_evidence(by_length):
    X, y, found = by_length
    exactly = mc.GaussianProcessRegressor(found.kernel, noise=found.noise, learning=None).fit(X, y)
    assert exactly.log_marginal_likelihood_ == pytest.approx(found.best.log_evidence, abs=1e-6)
    learned = mc.GaussianProcessRegressor(found.kernel, progress=False).fit(X, y)
    assert learned.log_marginal_likelihood_ == pytest.approx(found.best.log_evidence, abs=1e-3)
    loo = exactly.loo()
    crps = np.mean(Normal(loo.mean, np.sqrt(loo.variance)).crps(y)) / np.std(y)
    assert -found.best.score == pytest.approx(crps * (1 + 2 / 80), rel=1e-6)


def test_kernels_on_sets_and_on_counts():
    rng = np.random.default_rng(3)
    sets = [frozenset(rng.choice(12, size=5, replace=False).tolist()) for _ in range(60)]
    y = drawn(k.Subsets(normalized=True), sets, 4)
    found = select(sets, y, [k.Subsets(normalized=True), Grams()])
    assert found.member == k.Subsets(normalized=True)
    assert "a text was expected" in found.history[1].failure
    counts = rng.poisson(1.0, size=(60, 6)).astype(float)
    found = select(counts, drawn(k.Tanimoto(), counts, 5, 0.05), [k.Constant(1.0), k.Tanimoto()])
    assert found.member == k.Tanimoto()


def test_columns_of_a_frame():
    rng = np.random.default_rng(6)
    frame = pd.DataFrame({"text": texts(60, 7), "size": rng.normal(size=60), "other": "unread"})
    y = drawn(Grams(length=2).on("text"), frame, 8) + np.sin(2 * frame["size"].to_numpy())
    both = Grams(length=2).on("text") + k.RBF().on("size")
    found = select(frame, y, [Grams(length=2).on("text"), both, k.RBF().on("missing")])
    assert found.member is both
    assert len(found.kernel.parameters) == 3  # a variance for each term
    assert "no column 'missing'" in found.history[2].failure
    assert mc.GaussianProcessRegressor(found.kernel, progress=False).fit(frame, y).score(frame, y) > 0.8


def test_two_classes():
    X = texts(60, 9)
    labels = np.where(drawn(Grams(length=2), X, 10) > 0, "up", "down")
    found = select(X, labels, LENGTHS[:2], inference="laplace", criterion="loo")
    assert found.member is LENGTHS[1]
    assert found.task == "classification"
    assert found.noise is None
    model = mc.GaussianProcessClassifier(found.kernel, "laplace", learning=None).fit(X, labels)
    assert model.log_marginal_likelihood_ == pytest.approx(found.best.log_evidence, abs=1e-6)
    left_out = model.loo().log_score.mean()
    assert found.best.score == pytest.approx(left_out - 1 / 60, abs=1e-8)  # the variance
    assert f"{-found.best.score:.4f}" in found.describe()


def test_errors_of_left_out_labels():
    X = texts(60, 9)
    labels = np.where(drawn(Grams(length=2), X, 10) > 0, "up", "down")
    found = select(X, labels, LENGTHS, criterion="errors")
    models = [mc.GaussianProcessClassifier(each.kernel, learning=None).fit(X, labels) for each in found.history]
    codes = np.searchsorted(models[0].classes_, labels)
    wrong = [np.count_nonzero(model.loo().probability.argmax(axis=1) != codes) for model in models]
    for each, errors in zip(found.history, wrong, strict=True):
        assert -each.score == pytest.approx(errors / 60, abs=2e-5)
        assert -each.score >= errors / 60  # never better than another with fewer errors
    assert wrong[found.history.index(found.best)] == min(wrong) < max(wrong)
    assert f"{min(wrong) / 60:.1%}" in found.describe()
    equal = select(X, labels, [LENGTHS[1], 2.0 * k.Constant(1.0), 1.0 * k.Constant(1.0)], criterion="errors")
    assert equal.member is LENGTHS[1]
    with pytest.raises(mc.ParameterError, match="criterion='errors' counts wrong labels"):
        select(X, np.linspace(0.0, 1.0, 60), LENGTHS, criterion="errors")


def test_the_log_loss_decides_between_equal_numbers_of_errors():
    X = np.concatenate([np.linspace(-3, -1, 20), np.linspace(1, 3, 20)])
    labels = X > 0
    faint = (1e-4 * k.RBF(1.0)).fix()
    found = select(X, labels, [faint, k.RBF(1.0)], criterion="errors")
    assert all(-each.score < 1e-4 for each in found.history)  # neither errs
    assert found.member == k.RBF(1.0)


def test_expectation_propagation_and_more_classes():
    rng = np.random.default_rng(11)
    X = rng.normal(size=(60, 2))
    found = select(X, X[:, 0] ** 2 > 0.5, [k.Linear(), k.RBF()])
    assert found.member == k.RBF()
    model = mc.GaussianProcessClassifier(found.kernel, "ep", learning=None).fit(X, X[:, 0] ** 2 > 0.5)
    assert model.log_marginal_likelihood_ == pytest.approx(found.best.log_evidence, abs=1e-4)
    three = np.digitize(X[:, 0], [-0.5, 0.5])
    found = select(X, three, [k.Constant(1.0), k.RBF()], inference="laplace")
    assert found.member == k.RBF()
    assert (found.task, found.measure) == ("classification", "log loss")


def test_what_counts_as_classes():
    n = 100
    tried = lambda y, **kwargs: select(np.arange(n), y, [k.Constant(2.0).fix()], max_rows=20, **kwargs)
    assert tried(np.arange(n) % 3).task == "classification"
    assert "integers of 3 values; task='regression' for quantities" in tried(np.arange(n) % 3).describe()
    assert tried(np.arange(n) % 3, task="regression").task == "regression"
    assert tried(np.arange(n)).task == "regression"
    assert tried((np.arange(n) % 2).astype(float)).task == "regression"
    assert tried(np.array([True, False] * 50, dtype=object)).task == "classification"
    assert tried(np.array([1.5, 2] * 50, dtype=object)).task == "regression"
    assert tried((np.arange(n) % 2).astype(float), task="classification").task == "classification"


# -- the default family -----------------------------------------------------------------------------------------------


def test_the_family_is_the_choice_of_the_default_kernel():
    rng = np.random.default_rng(12)
    X = rng.normal(size=(70, 2))
    y = 10 + 4 * np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=70)
    found, model = select(X, y, "family"), mc.GaussianProcessRegressor(progress=False).fit(X, y)
    assert found.member == model.choice_.member
    assert [tried.candidate for tried in found.tried] == [tried.member for tried in model.choice_.tried]
    assert {tried.candidate for tried in found.history} == {tried.candidate for tried in found.tried}
    for one, other in zip(found.tried, model.choice_.tried, strict=True):
        assert (one.log_evidence, one.score) == (other.log_evidence, other.score)
    assert all(tried.seconds > 0 for tried in found.tried)
    exactly = mc.GaussianProcessRegressor(found.kernel, noise=found.noise, learning=None).fit(X, y)
    assert exactly.log_marginal_likelihood_ == pytest.approx(found.best.log_evidence, abs=1e-6)
    assert exactly.predict(X) == pytest.approx(model.predict(X), abs=0.5)
    quick = select(X, y, "family", max_seconds=0)
    assert len(quick.history) == 1
    assert "max_seconds=0" in quick.describe()


def test_members_of_the_family_as_candidates():
    problem = candidates.LabelProblem(
        np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2, candidates.Terms("loo", 0, None, None), "ep"
    )
    members = problem.family()
    assert len(members) == 8
    for member, kernel in members:
        assert isinstance(member, family.Member)
        assert float(kernel.nu) == member.nu
        assert (np.size(kernel.theta1) == 2) == member.each


# -- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_candidate_that_fails_does_not_stop_the_others():
    X = np.linspace(0, 5, 30)[:, None]
    broken = k.Custom(lambda a, b: {}["nothing"])
    given = [k.Sigmoid(), "a word", broken, k.RBF(np.ones(3)), k.Linear()]
    found = select(X, np.sin(X[:, 0]) + X[:, 0], given)
    assert found.member == k.Linear()
    reasons = [tried.failure for tried in found.history]
    assert [reason is None for reason in reasons] == [False] * 4 + [True]
    assert "positive semidefinite" in reasons[0]
    assert "a kernel was expected" in reasons[1]
    assert "failed on a pair of inputs" in reasons[2]
    assert len(found.tried) == 1
    text = found.describe()
    assert "the only one tried" in text
    assert all(reason in text for reason in reasons[:4])
    assert found.table().count("failed") == 4
    with pytest.raises(mc.ParameterError, match="none of the 2 candidates .* positive semidefinite"):
        select(X, X[:, 0], given[:2])
    allowed = (1.0 * k.Sigmoid(0.001)).fix()
    assert select(X, np.cos(X[:, 0]), [allowed], allow_invalid=True).kernel == allowed


def test_time_limits_what_is_begun(monkeypatch):
    X, y = texts(30, 13), np.random.default_rng(0).normal(size=30)
    found = select(X, y, [k.RBF(), *LENGTHS], max_seconds=0)
    assert [tried.failure is None for tried in found.history] == [False, True]  # one that can be chosen
    assert found.skipped == LENGTHS[1:]
    assert found.describe().count("not begun") == 2
    assert "max_seconds=0 had passed" in found.describe()
    assert not select(X, y, LENGTHS[:2], max_seconds=1000.0).skipped


def test_an_interruption_keeps_what_was_found(monkeypatch):
    X, y = texts(30, 14), np.random.default_rng(1).normal(size=30)
    evaluate, calls = candidates.Problem.evaluate, []

    def interrupted(self, candidate):
        calls.append(candidate)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(self, candidate)

    monkeypatch.setattr(candidates.Problem, "evaluate", interrupted)
    with pytest.warns(mc.InterruptedFitWarning, match="between the 1 kernels"):
        found = select(X, y, LENGTHS)
    assert found.interrupted
    assert [tried.candidate for tried in found.history] == LENGTHS[:1]
    assert found.skipped == LENGTHS[1:]
    assert "interrupted" in found.describe()
    calls.append(None)
    monkeypatch.setattr(candidates.Problem, "evaluate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # nothing was found
        select(X, y, LENGTHS)


def test_an_interruption_while_one_is_learned_keeps_its_best_parameters(monkeypatch):
    X, y = texts(30, 15), np.random.default_rng(2).normal(size=30)
    at, calls = search.Progress.__call__, []

    def pressed(self, text):
        calls.append(text)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return at(self, text)

    monkeypatch.setattr(search.Progress, "__call__", pressed)
    with pytest.warns(mc.InterruptedFitWarning):
        found = select(X, y, LENGTHS)
    assert len(found.history) == 1
    assert np.isfinite(found.best.score)
    assert found.skipped == LENGTHS[1:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"candidates": []}, "empty"),
        ({"candidates": 3}, "in a list"),
        ({"criterion": "aic"}, "criterion must be one of None, 'loo', 'errors', 'evidence'"),
        ({"task": "ranking"}, "task must be one of"),
        ({"max_seconds": -1}, "max_seconds must be"),
        ({"max_rows": 1}, "max_rows must be"),
        ({"y": None}, "y is None"),
        ({"y": np.ones(20)}, "the same in all rows"),
        ({"y": ["a"] * 20}, "one class only"),
        ({"y": np.ones(19)}, "one number per row"),
        ({"y": ["a", "b"]}, "one label per row"),
        ({"y": [[1], [1, 2]]}, "differ in length"),
        ({"y": np.arange(20) % 2, "inference": "mcmc"}, "inference must be one of 'auto', 'laplace'"),
        ({"X": []}, "no rows"),
    ],
)
def test_what_is_refused(change, says):
    given = {"X": np.arange(20.0), "y": np.arange(20.0), "candidates": [k.RBF()], **change}
    with pytest.raises(ValueError, match=says):
        select(**given)


# -- rows -------------------------------------------------------------------------------------------------------------


def test_many_rows_are_compared_on_some_of_them_drawn_by_the_seed():
    X = texts(150, 16)
    y = drawn(Grams(length=2), X, 17)
    one, same, other = (select(X, y, LENGTHS[:2], max_rows=40, random_state=seed) for seed in (3, 3, 4))
    assert {tried.rows for tried in one.history} == {40}
    assert "40 of 150 rows" in one.describe()
    assert [tried.score for tried in one.history] == [tried.score for tried in same.history]
    assert one.kernel == same.kernel
    assert [tried.score for tried in one.history] != [tried.score for tried in other.history]


def test_every_class_is_among_the_rows():
    labels = np.array(["rare"] * 3 + ["common"] * 97)
    problem = candidates.LabelProblem(np.arange(100.0), labels, candidates.Terms("loo", 0, 10, None), "auto")
    assert np.bincount(problem.codes).tolist() == [8, 2]


def test_copies_of_rows_count_once_as_in_the_estimator():
    rng = np.random.default_rng(18)
    X = rng.normal(size=(30, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=30)
    twice = select(np.r_[X, X], np.r_[y, y], [k.RBF()])
    once = select(X, y, [k.RBF()])
    assert twice.best.log_evidence == pytest.approx(once.best.log_evidence)
    assert twice.best.rows == 30


# -- amplitudes, priors, fitting --------------------------------------------------------------------------------------


def test_terms_without_a_variance_get_one():
    added = heuristics.with_amplitudes
    assert added(k.RBF()) == 1.0 * k.RBF()
    assert added(2.0 * k.RBF()) == 2.0 * k.RBF()
    assert added(k.RBF() + k.White(0.1)) == 1.0 * k.RBF() + k.White(0.1)
    assert added(k.RBF() * (2.0 * k.Periodic())) == k.RBF() * (2.0 * k.Periodic())
    assert added((2.0 * k.RBF()).on(0)) == (2.0 * k.RBF()).on(0)
    assert added((k.RBF() + k.Linear()).on(0)) == 1.0 * (k.RBF() + k.Linear()).on(0)
    fixed = (2.0 * k.RBF()).fix("variance")
    assert added(fixed) == fixed
    assert added(k.Standard()) == k.Standard()


def test_priors_count_and_fixed_kernels_are_compared_as_they_are():
    rng = np.random.default_rng(19)
    X = rng.normal(size=(25, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=25)
    narrow = k.RBF().with_priors(lengthscale=mc.priors.LogNormal(np.log(3.0), 0.001))
    fixed = (2.0 * k.RBF(0.8) + k.White(0.02)).fix()
    found = select(X, y, [narrow, fixed])
    assert found.history[0].kernel.parameters["lengthscale"] == pytest.approx(3.0, rel=0.05)
    assert found.history[1].kernel == fixed
    assert found.history[1].noise == 0.0


def test_a_kernel_that_learns_from_the_rows_is_fitted_to_all_of_them():
    class Weighted(Grams):
        seen: int | None = eqx.field(default=None, static=True)

        @property
        def needs_fit(self):
            return self.seen is None

        def fit(self, X):
            return Weighted(length=self.length, seen=len(X))

    found = select(texts(50, 20), np.random.default_rng(3).normal(size=50), [Weighted()], max_rows=20)
    assert found.kernel.inner.seen == 50


# -- the table, and files ---------------------------------------------------------------------------------------------


def test_records_of_former_files_are_read():
    member = {
        "is": "object", "class": "parts.Member", "fields": {"nu": 1.5, "linear": True, "each": False},
    }  # fmt: skip
    fields = {"member": member, "log_evidence": -3.0, "score": -0.5, "theta": [0.0], "rows": 10}
    record = {"is": "object", "class": "parts.Tried", "fields": fields}
    choice = {"is": "object", "class": "parts.Choice", "fields": {"tried": [record], "rows": 10, "evaluations": 4}}
    read = persist._Reader({}.__getitem__).read(choice)
    assert isinstance(read, Choice)
    assert read.member == family.Member(1.5, True, False)
    assert read.tried[0].candidate == read.tried[0].member
    assert "Matern 3/2 + linear" in str(read)


def test_long_candidates_are_cut_in_tables():
    long = Tried(sum([k.RBF(0.123456789)] * 5, k.Linear()), -1.0, -1.0, np.zeros(0))
    assert len(long.label) == 60
    assert long.label.endswith("...")


def test_the_objective_of_the_search_is_that_of_the_estimator():
    y = np.random.default_rng(4).normal(size=12).round(1)
    problem = candidates.QuantityProblem(np.arange(12.0), y, candidates.Terms("loo", 0, None, None))
    objective = problem.objective(1.0 * k.RBF())
    assert isinstance(objective, RegressionObjective)
    assert np.mean(objective.target) == pytest.approx(0.0)
    assert np.std(objective.target) == pytest.approx(1.0)
    assert objective.mean.centred
