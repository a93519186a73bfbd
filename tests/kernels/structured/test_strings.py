"""Kernels on sequences: equal to enumeration, consistent between data sets, and learned from data."""

import collections
import itertools

import jax
import numpy as np
import pandas as pd
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core.errors import DataError, InfiniteFeaturesError, ObjectError, ParameterError
from mercer.core.precision import concretely
from mercer.kernels.structured import strings
from mercer.kernels.structured.sequences import Sequences
from reference import strings as reference


def texts(n, letters="abc", longest=8, seed=0, shortest=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(letters), size=rng.integers(shortest, longest + 1))) for _ in range(n)]


def aligned(n, letters="acgt", length=7, seed=0):
    return texts(n, letters, length, seed, shortest=length)


X, Z = ["", "a", *texts(18, "ab"), *texts(15, "abcd", seed=1)], [*texts(9, "abcx", seed=2), ""]

CASES = {
    "spectrum": (k.Spectrum(2), lambda x, z: reference.spectrum(x, z, 2)),
    "spectrum of given letters": (k.Spectrum(2, alphabet="ab"), lambda x, z: reference.mismatch(x, z, 2, 0, "ab")),
    "one mismatch": (k.Spectrum(3, 1, "abcd"), lambda x, z: reference.mismatch(x, z, 3, 1, "abcd")),
    "two mismatches": (k.Spectrum(3, 2, "abc"), lambda x, z: reference.mismatch(x, z, 3, 2, "abc")),
    "subsequence": (k.Subsequence(3, 0.7), lambda x, z: reference.subsequence(x, z, 3, 0.7)),
    "single letters": (k.Subsequence(1, 0.4), lambda x, z: reference.subsequence(x, z, 1, 0.4)),
    "growing gaps": (k.Subsequence(2, 1.3), lambda x, z: reference.subsequence(x, z, 2, 1.3)),
    "up to": (k.Subsequence(4, 0.5, up_to=True), lambda x, z: reference.subsequences_up_to(x, z, 4, 0.5)),
}
cases = pytest.mark.parametrize(("kernel", "similarity"), CASES.values(), ids=CASES)
kernels = pytest.mark.parametrize(
    "kernel", [*(kernel for kernel, _ in CASES.values()), k.Spectrum(3, 1), k.Subsequence(3).normalize()], ids=repr
)


@cases
def test_equals_enumeration(kernel, similarity):
    np.testing.assert_allclose(kernel(X), reference.gram(similarity, X), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel(X, Z), reference.gram(similarity, X, Z), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel(Z[:3], X), reference.gram(similarity, Z[:3], X), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel.diag(Z), np.diag(reference.gram(similarity, Z)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("length", [1, 3, 9])
def test_weighted_degree_equals_enumeration(length):
    kernel, X, Z = k.WeightedDegree(length), aligned(20), aligned(6, "acgtn", seed=1)
    similarity = lambda x, z: reference.weighted_degree(x, z, length)
    np.testing.assert_allclose(kernel(X), reference.gram(similarity, X), rtol=1e-13)
    np.testing.assert_allclose(kernel(X, Z), reference.gram(similarity, X, Z), rtol=1e-13)
    np.testing.assert_allclose(kernel.diag(Z), np.diag(reference.gram(similarity, Z)), rtol=1e-13)
    Phi = kernel.features(X)
    np.testing.assert_allclose(Phi @ Phi.T, kernel(X), rtol=1e-13, atol=1e-14)


def test_long_aligned_sequences_are_counted_without_overflow():
    X = aligned(3, "ab", length=3000)
    kernel = k.WeightedDegree(1200)  # 3000 * 1200 * 1201 exceeds 32 bits
    np.testing.assert_allclose(kernel([X[0], X[0]])[0, 1], kernel.diag(X)[0], rtol=1e-14)
    assert np.linalg.eigvalsh(kernel(X)).min() > 0


@kernels
def test_laws(kernel):
    kernel = kernel.fit(X)
    K = kernel(X)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(np.diag(K), kernel.diag(X), rtol=1e-12)
    assert np.linalg.eigvalsh(K).min() > -1e-12 * np.trace(K)
    assert kernel.validity.valid
    assert kernel.validity.proof.rule == "6.1"
    # Preparation does not depend on the other rows: unseen letters and words included.
    whole = kernel([*X, *Z])
    np.testing.assert_allclose(kernel(X, Z), whole[: len(X), len(X) :], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(kernel(Z), whole[len(X) :, len(X) :], rtol=1e-12, atol=1e-15)
    assert mc.check_kernel(kernel, [*X, *Z]).passed
    assert eval(repr(kernel), vars(k)) == kernel


@kernels
@pytest.mark.parametrize("form", [list, tuple, lambda text: np.array(list(text), dtype=object)])
def test_a_string_is_the_list_of_its_characters(kernel, form):
    tokens, other = [form(text) for text in X], [form(text) for text in Z]
    np.testing.assert_array_equal(kernel(tokens), kernel(X))
    kernel = kernel.fit(X)
    np.testing.assert_array_equal(kernel(tokens, Z), kernel(X, Z))
    np.testing.assert_array_equal(kernel(X, other), kernel(X, Z))
    mixed = [text if i % 2 else form(text) for i, text in enumerate(X)]
    np.testing.assert_array_equal(kernel(mixed), kernel(X))


def test_tokens_are_any_hashable_objects():
    rows = [[("x", 1), 2.5, "word"], ["word", 2.5, ("x", 1), 2.5], [], ["w", "o"]]
    kernel = k.Spectrum(1)
    np.testing.assert_array_equal(kernel(rows), reference.gram(lambda x, z: reference.spectrum(x, z, 1), rows))
    other = [["word", "new", 2.5]]
    np.testing.assert_array_equal(kernel(rows, other)[:, 0], [2, 3, 0, 0])
    assert k.Spectrum(2)([["ab", "c"]], ["abc"]) == 0  # a token of two characters is one letter
    kernel = k.Subsequence(2)
    expected = reference.gram(lambda x, z: reference.subsequence(x, z, 2, 0.5), rows, other)
    np.testing.assert_allclose(kernel(rows, other), expected)
    np.testing.assert_array_equal(kernel([b"abca"]), kernel([[97, 98, 99, 97]]))
    assert k.WeightedDegree(2)([[1, 2, 3]], [(1, 2, 4)])[0, 0] == pytest.approx(5 / 3)


def test_words_are_numbered_exactly():
    """Long words and large alphabets do not fit into one number, and get ranks."""
    rng = np.random.default_rng(0)
    rows = ["".join(map(chr, rng.integers(0x100, 0x110000 - 0x900, 90) % 0xD000)) for _ in range(5)]
    rows += [row[5:70] + "a" for row in rows] + ["a" * 200]
    for length in (7, 13, 64):
        kernel = k.Spectrum(length)
        expected = reference.gram(lambda x, z, length=length: reference.spectrum(x, z, length), rows)
        np.testing.assert_array_equal(kernel(rows), expected)
        np.testing.assert_array_equal(kernel(rows, rows[3:]), expected[:, 3:])


# -- mismatches --------------------------------------------------------------------------------------------------------


def test_alphabet_is_learned_from_the_training_rows():
    kernel = k.Spectrum(2, mismatches=1)
    assert kernel.needs_fit
    fitted = kernel.fit(["ba", "cab"])
    assert repr(fitted) == "Spectrum(length=2, mismatches=1, alphabet='abc')"
    assert not fitted.needs_fit
    assert fitted.fit(["xyz"]) is fitted
    with pytest.warns(mc.ModelWarning, match="learn from X alone"):
        found = kernel(["ba", "cab"], ["xb"])
    np.testing.assert_array_equal(found, fitted(["ba", "cab"], ["xb"]))
    model = mc.KernelRidge(kernel, alpha=0.1).fit(["ab", "ba", "cc", "ca"], [0.0, 1.0, 2.0, 1.0])
    assert model.kernel_.alphabet == "abc"
    tokens = k.Spectrum(2, mismatches=1).fit([[2, 1], [10]])
    assert repr(tokens) == "Spectrum(length=2, mismatches=1, alphabet=(1, 2, 10))"


@pytest.mark.parametrize(("length", "mismatches"), [(2, 1), (3, 1), (3, 2), (4, 3)])
def test_counting_shared_words_equals_enumerating_them(length, mismatches, monkeypatch):
    kernel = k.Spectrum(length, mismatches, "abc")
    expected = kernel(X, Z), kernel(X), kernel.diag(Z)  # Z has letters outside the alphabet
    monkeypatch.setattr(strings, "MAX_NEIGHBOURS", 0)
    for got, wanted in zip((kernel(X, Z), kernel(X), kernel.diag(Z)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-13)
    with pytest.raises(InfiniteFeaturesError, match="others within"):
        kernel.features(X)


def test_too_many_neighbours_are_not_enumerated():
    kernel = k.Spectrum(6, 3, "acdefghiklmnpqrstvwy")
    rows = texts(6, kernel.alphabet, 20, shortest=10)
    K = kernel(rows)
    np.testing.assert_allclose(np.diag(K), kernel.diag(rows))
    assert np.linalg.eigvalsh(K).min() > 0
    # Every word within 3 mismatches of a word of 6 letters: sum over j of C(6, j) 19^j.
    assert kernel.diag(["acdefg"])[0] == 1 + 6 * 19 + 15 * 19**2 + 20 * 19**3
    assert mc.GaussianProcessRegressor(kernel, noise=0.1).fit(rows, range(6)).plan_.method == "dense"


# -- subsequences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [k.Subsequence(3, 0.6), k.Subsequence(3, 0.6, up_to=True), k.Subsequence(1, 0.3), k.Subsequence(2, 1.2)]
    + [k.Subsequence(3, 0.8).normalize(), k.Subsequence(3, 0.8, up_to=True).normalize()],
    ids=repr,
)  # fmt: skip
def test_derivative_in_the_decay(kernel):
    weights = np.random.default_rng(0).normal(size=(len(X), len(Z)))
    own = np.random.default_rng(1).normal(size=(len(X), len(X)))
    with concretely():
        rows, columns = kernel.prepare(X, np.arange(len(X))), kernel.prepare(Z, np.arange(len(Z)))

        def total(decay):
            changed = jax.tree.unflatten(jax.tree.structure(kernel), [decay])
            return (
                (weights * changed.block(rows, columns)).sum()
                + (own * changed.block(rows, rows)).sum()
                + (own[0] * changed.block_diag(rows)).sum()
            )

        decay, h = float(kernel.decay), 1e-6
        expected = (total(decay + h) - total(decay - h)) / (2 * h)
        assert float(jax.grad(total)(decay)) == pytest.approx(float(expected), rel=1e-7, abs=1e-9)


def test_normalized_words_of_any_length():
    short = k.Subsequence(200, 0.05, normalized=True)(["ab" * 50, "ba" * 50, "ab" * 100])
    np.testing.assert_array_equal(short, np.diag([0.0, 0.0, 1.0]))  # 100 letters have no word of 200
    rng = np.random.default_rng(0)
    first = "".join(rng.choice(list("ab"), size=201))
    X = [first, first[1:] + "a", "b" + first[:-1], first[:90] + "b" + first[90:-1], first[::-1]]
    with pytest.raises(DataError, match="smaller decay or shorter words"):
        k.Subsequence(200, 1.5, normalized=True)([first, 6 * first])  # underflows, which is not silent
    for decay in (0.05, 1.0, 5.0):
        # A word of 200 letters leaves one out of 201: a gap, unless it is the first or the last.
        features = [collections.Counter() for _ in X]
        for found, text in zip(features, X, strict=True):
            for i in range(201):
                found[text[:i] + text[i + 1 :]] += decay if 0 < i < 200 else 1.0
        K = np.array([[sum(a[word] * b[word] for word in a) for b in features] for a in features])
        expected = K / np.sqrt(np.outer(np.diag(K), np.diag(K)))
        kernel = k.Subsequence(200, decay)
        np.testing.assert_allclose(kernel.normalize()(X), expected, rtol=1e-9, atol=1e-12)
        frame = pd.DataFrame({"s": X})
        for same in (kernel.on("s"), (3.0 * kernel).on("s"), 3.0 * kernel.on("s")):
            np.testing.assert_allclose(same.normalize()(frame), expected, rtol=1e-9, atol=1e-12)


def test_normalized_is_the_quotient():
    rows = [text for text in X if len(text) >= 3]
    for kernel in (k.Subsequence(3, 0.6), k.Subsequence(3, 0.6, up_to=True)):
        K = kernel(X)
        d = np.sqrt(np.where(np.diag(K) > 0, np.diag(K), np.inf))
        np.testing.assert_allclose(kernel.normalize()(X), K / np.outer(d, d), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(kernel.normalize().diag(rows), 1.0)
    assert (k.Subsequence(3).normalize()(["", "ab", "abc"]) == np.diag([0, 0, 1])).all()


@pytest.mark.parametrize(
    ("decay", "length", "longest"),
    [
        (0.01, 60, 150),
        (0.5, 60, 150),
        (0.99, 60, 150),
        (1.0, 60, 150),
        (1.05, 60, 150),
        (0.5, 2, 2000),
        (1.05, 2, 2000),
    ],
)
def test_long_words_of_long_sequences_stay_in_range(decay, length, longest):
    rows = texts(3, "acgt", longest, shortest=longest - 20)
    rows = [*rows, rows[0][: longest // 2] + rows[1][longest // 2 :], rows[0][:61], "a"]
    for up_to in (False, True) if longest < 2000 else (True,):
        K = k.Subsequence(length, decay, up_to).normalize()(rows)
        np.testing.assert_array_equal(np.diag(K), [1, 1, 1, 1, 1, up_to])
        assert (K >= 0).all()
        assert (K <= 1 + 1e-12).all()
        assert np.linalg.eigvalsh(K).min() > -1e-12
        if decay < 1:
            assert K[0, 3] > K[0, 2]  # half of it is the same
        assert np.isfinite(k.Subsequence(length, decay, up_to).normalize()(rows[:2], rows[2:])).all()


def test_matches_strkernels():
    strkernels = pytest.importorskip("strkernels")
    rows = np.array(texts(20, "ACGT", 30, shortest=4))
    # Their kernels add the lengths 1, ..., n.
    theirs = strkernels.SubsequenceStringKernel(maxlen=3, ssk_lambda=0.6, normalizer=None)(rows, rows)
    np.testing.assert_allclose(k.Subsequence(3, 0.6, up_to=True)(rows), theirs, rtol=1e-12)
    theirs = strkernels.SpectrumStringKernel(order=3, normalizer=None)(rows, rows)
    np.testing.assert_allclose((k.Spectrum(1) + k.Spectrum(2) + k.Spectrum(3))(rows), theirs)
    rows = np.array(aligned(10, "ACGT", 20))
    theirs = strkernels.WeightedDegreeStringKernel(degree=4, normalizer=None)(rows, rows)
    np.testing.assert_allclose(k.WeightedDegree(4)(rows) * 4 * 5 / 2, theirs)  # theirs has whole weights


# -- in models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "rows", "new"),
    [
        (k.Spectrum(2), texts(60, "ab"), Z),
        (0.3 * k.Spectrum(2, 1), texts(60, "ab"), Z),
        (k.Spectrum(1) + k.Spectrum(2, alphabet="abc"), texts(60, "ab"), Z),
        (k.WeightedDegree(2), aligned(60, "ab", 5), aligned(7, "abc", 5, seed=3)),
    ],
    ids=lambda value: repr(value) if isinstance(value, k.Kernel) else "",
)
def test_weights_equal_dense_on_new_rows_with_unseen_words(kernel, rows, new):
    y = np.random.default_rng(0).normal(size=len(rows))
    dense, weights = (
        mc.GaussianProcessRegressor(kernel, noise=0.3, solver=solver, learning=None).fit(rows, y)
        for solver in ("dense", "weights")
    )
    for exact, got in zip(dense.predict(new, return_std=True), weights.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(
        weights.predict(new, return_cov=True)[1], dense.predict(new, return_cov=True)[1], rtol=1e-8, atol=1e-8
    )
    evidence = dense.log_marginal_likelihood_, weights.log_marginal_likelihood_
    assert evidence[0] == pytest.approx(evidence[1], rel=1e-9)


def test_decay_is_learned_beside_a_numeric_column():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"word": texts(40, "abcd", 8, shortest=3), "size": rng.uniform(-2, 2, 40)})
    kernel = 10.0 * k.Subsequence(2).on("word") + k.RBF().on("size").fix()
    f = mc.GP(20.0 * k.Subsequence(2, 0.7).on("word") + k.RBF().on("size"))
    y = f.sample(frame, 1, seed=1)[0] + 0.1 * rng.normal(size=40)
    model = mc.GaussianProcessRegressor(kernel, noise=0.01, normalize=False).fit(frame, y)
    assert model.kernel_.parameters["subsequence_decay"] == pytest.approx(0.7, abs=0.1)
    h, start = 1e-5, model.theta_ + 0.1
    _, optimum = model.log_marginal_likelihood(model.theta_, eval_gradient=True)
    _, gradient = model.log_marginal_likelihood(start, eval_gradient=True)
    assert np.abs(optimum).max() < 1e-3 * np.abs(gradient).max()
    for i, step in enumerate(np.eye(len(start)) * h):
        up, down = (model.log_marginal_likelihood(start + sign * step) for sign in (1, -1))
        assert gradient[i] == pytest.approx((up - down) / (2 * h), rel=1e-5, abs=1e-6)
    mean, deviation = model.predict(frame[:3], return_std=True)
    assert np.isfinite(mean).all()
    assert (deviation > 0).all()


def test_classifier_and_files(tmp_path):
    rows = [*texts(15, "aab", 8, shortest=4), *texts(15, "abb", 8, seed=1, shortest=4)]
    labels = np.repeat([0, 1], 15)
    kernel = 1.0 * k.Subsequence(2).normalize() + 1.0 * k.Spectrum(2, 1)
    model = mc.GaussianProcessClassifier(kernel).fit(rows, labels)
    mc.save(model, tmp_path / "model.mercer")
    again = mc.load(tmp_path / "model.mercer")
    assert again.kernel_ == model.kernel_
    np.testing.assert_array_equal(again.predict_proba(["abab", "", "xyz"]), model.predict_proba(["abab", "", "xyz"]))


# -- what cannot be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [k.Spectrum(2), k.Spectrum(2, 1), k.Subsequence(2), k.WeightedDegree(2)], ids=repr)
def test_bad_rows_are_named(kernel):
    for bad, says in ((3.5, "got 3.5"), ({"a"}, "got {'a'}"), (None, "missing"), (float("nan"), "missing")):
        with pytest.raises(ObjectError, match=f"row 1: .*{says}"):
            kernel(["ab", bad])
    with pytest.raises(ObjectError, match="row 1: .*hashable"):
        kernel([["a", "b"], ["a", ["b"]]])
    with pytest.raises(ObjectError, match="column 'text', row 1: "):
        kernel.on("text")(pd.DataFrame({"text": ["ab", None]}))
    assert (kernel(["", ""]) == 0).all()
    assert kernel([]).shape == (0, 0)
    assert kernel.fit(["ab", "cd"])(["ab", "cd"], []).shape == (2, 0)


def test_unequal_lengths_are_named():
    with pytest.raises(ObjectError, match=r"row 2: a sequence of 3 letters, where row 0 has 2"):
        k.WeightedDegree(2)(["ab", "cd", "abc"])
    with pytest.raises(DataError, match="2 letters in one set of rows and 3 in the other"):
        k.WeightedDegree(2)(["ab", "cd"], ["abc"])


def test_bad_settings():
    for make in (k.Spectrum, k.Subsequence, k.WeightedDegree):
        for bad in (0, -1, 1.5, True, "two"):
            with pytest.raises(ParameterError):
                make(bad)
    for settings in ({"mismatches": 2}, {"mismatches": -1}, {"mismatches": 1, "alphabet": 4}):
        with pytest.raises(ParameterError):
            k.Spectrum(2, **settings)
    with pytest.raises(ParameterError):
        k.Subsequence(2, decay=-0.5)
    assert k.Spectrum(2, 1, ["a", "b", "a"]) == k.Spectrum(np.int64(2), 1, "ab")


def test_rows_of_a_collection_by_slices_and_indices():
    whole = Sequences.of(np.array(X, dtype=object))
    for which in (slice(3, 9), np.array([5, 1, 1]), slice(0, 0)):
        part = whole[which]
        spans = itertools.pairwise(part.starts)
        spelled = ["".join(whole.letters.keys[c] for c in part.codes[a:b]) for a, b in spans]
        assert spelled == list(np.array(X, dtype=object)[which])
