"""Bags of words: equal to the formula and to scikit-learn, of each document alone, with clear errors."""

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer

import mercer as mc
from mercer import kernels as k
from mercer.core.errors import DataError, ObjectError
from mercer.kernels.structured.text import Corpus
from reference import text as reference

WORDS = ["the", "red", "Red", "green", "wine", "tea,", "a", "b2", "naïve", "über-all", "42"]


def documents(n, seed=0, longest=9):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(0, longest))) for _ in range(n)]


X = ["The red wine, the RED wine.", "green tea", "", "red tea; green wine and red tea", "a ! b", *documents(12)]
NEW = ["red wine that is unseen, unseen", "", "nothing known", *documents(3, seed=1)]

SETTINGS = [
    {}, {"sublinear": True}, {"idf": False}, {"binary": True}, {"idf": False, "sublinear": True},
    {"ngrams": (1, 3)}, {"ngrams": (2, 2), "sublinear": True}, {"stop_words": ("the", "red")},
    {"stop_words": ("red",), "ngrams": (1, 2)}, {"min_count": 3}, {"max_share": 0.3}, {"pattern": r"\w"},
    {"min_count": 2, "max_share": 0.5, "idf": False}, {"min_count": 1, "ngrams": (1, 2)},
]  # fmt: skip
each = pytest.mark.parametrize("settings", SETTINGS, ids=str)


@each
def test_equals_the_formula_also_on_new_documents(settings):
    kernel = k.BagOfWords(**settings)
    np.testing.assert_allclose(kernel(X), reference.gram(X, **settings), rtol=1e-13, atol=1e-13)
    fitted = kernel.fit(X)
    np.testing.assert_allclose(fitted(X, NEW), reference.gram(X, NEW, **settings), rtol=1e-13, atol=1e-13)
    norms = [sum(v**2 for v in weights.values()) for weights in reference.features(NEW, X, **settings)]
    np.testing.assert_allclose(fitted.diag(NEW), norms, rtol=1e-13)
    np.testing.assert_allclose(np.diag(fitted(NEW)), norms, rtol=1e-13)


@each
@pytest.mark.parametrize("norm", [None, "l2"])
def test_equals_scikit_learn(settings, norm):
    names = {
        "idf": "use_idf", "sublinear": "sublinear_tf", "pattern": "token_pattern", "ngrams": "ngram_range",
        "min_count": "min_df", "max_share": "max_df",
    }  # fmt: skip
    theirs = TfidfVectorizer(norm=norm, **{names.get(name, name): value for name, value in settings.items()})
    if "stop_words" in settings:
        theirs.set_params(stop_words=list(settings["stop_words"]))
    A, B = theirs.fit_transform(X), theirs.transform(NEW)
    kernel = k.BagOfWords(**settings).fit(X)
    kernel = kernel.normalize() if norm else kernel
    np.testing.assert_allclose(kernel(X), (A @ A.T).toarray(), rtol=1e-13, atol=1e-13)
    if norm is None:
        np.testing.assert_allclose(kernel(X, NEW), (A @ B.T).toarray(), rtol=1e-13, atol=1e-13)
    known = k.BagOfWords(**{"min_count": 1, **settings}).fit(X)  # without unseen words, as theirs
    known = known.normalize() if norm else known
    np.testing.assert_allclose(known(NEW), (B @ B.T).toarray(), rtol=1e-13, atol=1e-13)


@each
def test_laws(settings):
    kernel = k.BagOfWords(**settings).fit(X)
    K = kernel(X)
    assert mc.check_kernel(kernel, X).passed
    assert kernel.validity.valid
    np.testing.assert_allclose(K, K.T, rtol=1e-14)
    np.testing.assert_allclose(kernel.diag(X), np.diag(K), rtol=1e-14)
    F = kernel.features(X)
    np.testing.assert_allclose(F @ F.T, K, rtol=1e-13, atol=1e-13)
    whole = kernel([*X, *NEW])
    np.testing.assert_allclose(kernel(X, NEW), whole[: len(X), len(X) :], rtol=1e-13, atol=1e-13)


@each
def test_a_document_does_not_depend_on_those_prepared_with_it(settings):
    kernel = k.BagOfWords(**settings).fit(X)
    together = kernel(NEW)
    alone = [[kernel([a], [b])[0, 0] for b in NEW] for a in NEW]
    np.testing.assert_allclose(together, alone, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(kernel.diag(NEW), [kernel.diag([a])[0] for a in NEW], rtol=1e-13)


def test_unseen_words_count_unless_they_are_too_rare():
    train = ["red wine", "red tea", "red red"]
    unseen = np.log(4) + 1  # df = 0
    assert k.BagOfWords().fit(train).diag(["unknown"])[0] == pytest.approx(unseen**2)
    assert k.BagOfWords(max_share=0.9).fit(train).diag(["unknown"])[0] == pytest.approx(unseen**2)
    assert k.BagOfWords(max_share=0.9).fit(train).diag(["red"])[0] == 0.0
    assert k.BagOfWords(min_count=1).fit(train).diag(["unknown"])[0] == 0.0
    assert k.BagOfWords(idf=False).diag(["unknown unknown"])[0] == 4.0


def test_lists_of_words_are_taken_as_they_are():
    lists = [["red", "wine"], ("Red", "a b", "x"), [], np.array(["red", "red"])]
    kernel = k.BagOfWords(idf=False)
    np.testing.assert_array_equal(kernel(lists), [[2, 0, 0, 2], [0, 3, 0, 0], [0, 0, 0, 0], [2, 0, 0, 4]])
    # An n-gram is never taken for a word that contains a space.
    np.testing.assert_array_equal(
        k.BagOfWords(idf=False, ngrams=(1, 2))([["red wine"], ["red", "wine"]]), [[1, 0], [0, 3]]
    )
    words = [text.lower().split() for text in documents(5)]
    np.testing.assert_allclose(k.BagOfWords().fit(words)(words, documents(5)).shape, 5)
    stops = k.BagOfWords(idf=False, stop_words={"Red"})
    np.testing.assert_array_equal(stops.diag(["red RED wine", ["red", "Red", "wine"]]), [1, 2])


def test_reads_case_and_groups():
    assert k.BagOfWords(idf=False, lowercase=False)(["Red red"])[0, 0] == 2.0
    assert k.BagOfWords(idf=False)(["Red red"])[0, 0] == 4.0
    assert k.BagOfWords(idf=False, pattern=r"#(\w+)")(["#red red #red"], ["#RED"])[0, 0] == 2.0


@pytest.mark.parametrize("of", [pd.DataFrame, pl.DataFrame])
def test_on_a_column_of_a_frame_or_matrix(of):
    n = np.arange(float(len(X)))
    expected = k.BagOfWords().normalize()(X) + k.RBF()(n)
    frame = of({"text": X, "n": n})
    kernel = k.BagOfWords().on("text").normalize() + k.RBF().on("n")
    np.testing.assert_allclose(kernel(frame), expected)
    fitted = kernel.fit(frame)
    assert not fitted.needs_fit
    np.testing.assert_array_equal(fitted(frame), kernel(frame))
    matrix = np.array([X, n], dtype=object).T
    np.testing.assert_allclose(k.BagOfWords().on(0)(matrix), k.BagOfWords()(X))
    np.testing.assert_allclose(k.BagOfWords()(np.array(X)[:, None]), k.BagOfWords()(X))


def test_fitting_returns_a_copy():
    kernel = k.BagOfWords(sublinear=True, name="words")
    fitted = kernel.fit(X)
    assert kernel.needs_fit
    assert kernel.corpus is None
    assert not fitted.needs_fit
    assert fitted.corpus.n == len(X)
    assert list(fitted.corpus.words) == sorted(fitted.corpus.words)
    assert fitted.fitted(NEW) is fitted
    assert fitted.fit(NEW) != fitted
    assert fitted.fit(X) == fitted
    assert hash(fitted.fit(X)) == hash(fitted)
    assert fitted.corpus != Corpus(fitted.corpus.words, fitted.corpus.frequencies, 1000)
    assert not k.BagOfWords(idf=False).needs_fit
    assert k.BagOfWords(idf=False).fit(X) == k.BagOfWords(idf=False)
    assert k.BagOfWords(idf=False, min_count=2).needs_fit
    assert k.BagOfWords(idf=False, max_share=0.5).needs_fit
    assert (2.0 * kernel.normalize() + k.Categorical()).needs_fit
    with pytest.raises(ValueError, match="read-only"):
        fitted.corpus.frequencies[0] = 3


def test_copies_are_equal():
    fitted = k.BagOfWords(ngrams=(1, 2)).fit(X)
    hash(fitted)
    for again in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert again == fitted
        assert hash(again) == hash(fitted)
        np.testing.assert_array_equal(again(NEW), fitted(NEW))
    assert "_hash" not in vars(copy.deepcopy(fitted.corpus))


def test_prints_readably():
    assert repr(k.BagOfWords()) == "BagOfWords()"
    kernel = k.BagOfWords(sublinear=True, stop_words=["the", "a"], ngrams=[1, 2], name="words")
    text = "BagOfWords(sublinear=True, ngrams=(1, 2), stop_words=('a', 'the'), name='words')"
    assert repr(kernel) == text
    assert eval(text, {"BagOfWords": k.BagOfWords}) == kernel
    assert "stop_words=<318 words>" in repr(k.BagOfWords(stop_words=ENGLISH_STOP_WORDS))
    many = [" ".join(f"w{i}" for i in range(j, j + 1000)) for j in range(0, 12000, 1000)]
    assert repr(k.BagOfWords().fit(many)) == "BagOfWords(corpus=<12,000 words in 12 documents>)"


def test_models_learn_frequencies_from_their_own_rows():
    y = np.array([document.lower().count("red") for document in X], dtype=float)
    model = mc.KernelRidge(k.BagOfWords().normalize(), alpha=0.1).fit(X, y)
    expected = TfidfVectorizer().fit(X)
    A, B = expected.transform(X).toarray(), expected.transform(X[:4]).toarray()
    shift = A.mean(axis=0)
    coefficients = np.linalg.solve((A - shift) @ (A - shift).T + 0.1 * np.eye(len(X)), y - y.mean())
    np.testing.assert_allclose(model.predict(X[:4]), y.mean() + (B - shift) @ (A - shift).T @ coefficients, rtol=1e-8)
    again = mc.KernelRidge(k.BagOfWords().normalize(), alpha=0.1).fit(X[:8], y[:8])
    assert again.kernel_.inner.corpus.n == 8
    assert again.kernel.needs_fit


def test_solvers_agree_on_documents_with_unseen_words():
    y = np.array([document.lower().count("red") for document in X], dtype=float)
    kernel = k.BagOfWords().normalize()
    dense, weights = (
        mc.GaussianProcessRegressor(kernel, solver=solver, learning=None, noise=0.1, progress=False).fit(X, y)
        for solver in ("dense", "weights")
    )
    for a, b in zip(dense.predict(NEW, return_cov=True), weights.predict(NEW, return_cov=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)  # unseen words count in the norm of a document
    np.testing.assert_allclose(dense.predict(NEW, return_std=True)[1], weights.predict(NEW, return_std=True)[1])


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "row 1: a missing value, where a text was expected"),
        (np.nan, "row 1: a missing value"),
        (pd.NA, "row 1: a missing value"),
        (pd.NaT, "row 1: a missing value"),
        (3.5, r"row 1: a text was expected, or a list of its words; got 3\.5"),
        (b"red", "row 1: .*Decode it"),
        ({"red": 2}, "row 1: a text was expected"),
        ({"red"}, "row 1: a text was expected"),
        (np.eye(2), "row 1: a text was expected"),
        (["red", 3], "row 1: a list of words must hold text alone; it holds 3"),
        (["red", None], "row 1: .* it holds None"),
        ([["red"], ["wine"]], "row 1: .* it holds "),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kernel", [k.BagOfWords(), k.BagOfWords(idf=False)], ids=repr)
def test_other_rows_are_refused(kernel, row, message):
    rows = np.empty(2, dtype=object)
    rows[:] = ["red wine", None]
    rows[1] = row
    with pytest.raises(ObjectError, match=message):
        kernel(rows)
    with pytest.raises(ObjectError, match=message):
        k.BagOfWords().fit(["red"])(rows)
    with pytest.raises(DataError, match=f"column 't', {message}"):
        kernel.on("t")(pd.DataFrame({"t": pd.Series(rows, dtype=object)}))


def test_missing_texts_of_frames_are_refused():
    for column in (pd.Series(["a", None]), pd.Series(["a", None], dtype="string"), pl.Series(["a", None])):
        frame = pl.DataFrame({"t": column}) if isinstance(column, pl.Series) else pd.DataFrame({"t": column})
        with pytest.raises(ObjectError, match="column 't', row 1: a missing value"):
            k.BagOfWords().on("t")(frame)


def test_a_single_text_is_refused():
    for call in (k.BagOfWords(), k.BagOfWords().diag, k.BagOfWords().fit, k.BagOfWords(idf=False).features):
        with pytest.raises(DataError, match="Put it in a list"):
            call("red wine")


def test_documents_without_words():
    kernel = k.BagOfWords().fit(X)
    np.testing.assert_array_equal(kernel(["", "!", "red"])[:2], 0)
    np.testing.assert_array_equal(kernel.normalize()(["", []]), 0)
    np.testing.assert_array_equal(k.BagOfWords()(["", ""]), 0)
    assert k.BagOfWords()([]).shape == (0, 0)
    with pytest.raises(DataError, match="no word is in 5 or more of the 2 documents, and in at most 100% of them"):
        k.BagOfWords(min_count=5).fit(["red wine", "red"])
    with pytest.raises(DataError, match="raise max_share"):
        k.BagOfWords(max_share=0.1)(["red wine", "red"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"idf": 1}, "idf must be True or False"),
        ({"sublinear": "yes"}, "sublinear must be True or False"),
        ({"pattern": "("}, "pattern must be a regular expression"),
        ({"pattern": r"(a)(b)"}, "at most one group"),
        ({"pattern": 3}, "pattern must be a regular expression"),
        ({"pattern": b"x"}, "pattern must be text"),
        ({"ngrams": 2}, "ngrams must be two integers"),
        ({"ngrams": (2, 1)}, "ngrams must be the smallest"),
        ({"ngrams": (0, 1)}, "ngrams must be the smallest"),
        ({"ngrams": (1, 2, 3)}, "ngrams must be the smallest"),
        ({"stop_words": "english"}, "ENGLISH_STOP_WORDS"),
        ({"stop_words": ["a", 1]}, "stop_words must be a collection of words"),
        ({"stop_words": 3}, "stop_words must be a collection of words"),
        ({"min_count": -1}, "min_count must be a number of documents"),
        ({"min_count": 0.5}, "min_count must be a number of documents"),
        ({"max_share": 0.0}, "max_share must be a share"),
        ({"max_share": 3}, "max_share must be a share"),
        ({"corpus": ["red"]}, "corpus is set by fit"),
    ],
    ids=str,
)
def test_settings_are_checked(settings, message):
    with pytest.raises(mc.ParameterError, match=message):
        k.BagOfWords(**settings)
