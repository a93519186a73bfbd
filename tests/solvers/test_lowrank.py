"""The low-rank solver against formulas written with all rows at once, the dense solver, and its own laws."""

import numpy as np
import pytest
from scipy import stats

import mercer as mc
from mercer import kernels as k
from mercer.core.coordinates import to_free
from mercer.datasets import Chunks
from mercer.gp.mean import MeanFunction
from mercer.solvers.lowrank_evidence import LowRankEvidence

METHODS = ("variational", "fitc", "dtc", "nystrom")
rng = np.random.default_rng(1)
N, M = 60, 12
X = rng.uniform(-2, 2, size=(N, 2))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.1 * rng.normal(size=N) + 2.0
NOISE = rng.uniform(0.02, 0.1, size=N)
Z = rng.uniform(-2.5, 2.5, size=(9, 2))
STANDARD = 1.3 * k.RBF([0.7, 1.1]) + 0.3 * k.Linear()
ROUGH = 1.1 * k.Matern(0.8, nu=1.5)
OTHER = 1.1 * k.RationalQuadratic(0.9, 1.5) + k.White(0.05)  # by the compiled program
CENTERS = X[::5]
LINEAR = MeanFunction.of("linear")
DENSE = mc.solvers.Dense()


def solver(method="variational", **settings):
    return mc.solvers.LowRank(**{"centers": CENTERS, "method": method} | settings)


def reference(kernel, method):
    """Log evidence and moments at Z from matrices of all rows (Quinonero-Candela and Rasmussen 2005; Titsias 2009)."""
    white = 0.05 if "White" in repr(kernel) else 0.0
    Kmm = kernel(CENTERS, CENTERS.copy())
    Kmn, Kms = kernel(CENTERS, X), kernel(CENTERS, Z)
    Q, left = Kmn.T @ np.linalg.solve(Kmm, Kmn), kernel.diag(X) - white
    left = left - np.diag(Q)
    noise = NOISE + white
    D = noise + left if method == "fitc" else noise
    C = Q + np.diag(D)
    value = stats.multivariate_normal(np.zeros(N), C).logpdf(y)
    if method == "variational":
        value -= 0.5 * np.sum(left / noise)
    Qsn = Kms.T @ np.linalg.solve(Kmm, Kmn)
    mean = Qsn @ np.linalg.solve(C, y)
    Qss = np.einsum("ms,ms->s", Kms, np.linalg.solve(Kmm, Kms))
    prior = Qss + white if method == "nystrom" else kernel.diag(Z)
    return value, mean, prior - np.einsum("sn,ns->s", Qsn, np.linalg.solve(C, Qsn.T))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernel", [STANDARD, OTHER], ids=["standard", "compiled"])
def test_it_is_the_formula_of_the_literature(kernel, method):
    own = solver(method).posterior(kernel, X, y, NOISE)
    value, mean, variance = reference(kernel, method)
    assert own.log_evidence() == pytest.approx(value, rel=1e-9)
    found = own.moments(Z)
    assert found[0] == pytest.approx(mean, rel=1e-8)
    assert found[1] == pytest.approx(variance, rel=1e-7)
    assert np.diag(own.covariance(Z)) == pytest.approx(found[1], rel=1e-8)


@pytest.mark.parametrize("mean", [None, LINEAR], ids=["zero", "linear"])
@pytest.mark.parametrize("noise", [None, NOISE], ids=["learned", "given"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernel", [STANDARD, ROUGH, OTHER], ids=["standard", "rough", "compiled"])
def test_the_evidence_has_the_slope_it_says(kernel, method, noise, mean):
    with solver(method).evidence(kernel, X, y, noise, mean) as evidence:
        assert isinstance(evidence, LowRankEvidence)
        theta = np.linspace(-0.4, 0.3, evidence.size)
        for profiled in (False, True):
            found = evidence(theta, profiled=profiled)
            for i, step in enumerate(1e-5 * np.eye(evidence.size)):
                high, low = (evidence(theta + sign * step, False, profiled).value for sign in (1, -1))
                assert found.gradient[i] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_with_all_rows_as_centres_it_is_exact(method):
    for kernel in (STANDARD, OTHER):
        own = mc.solvers.LowRank(N, method=method).posterior(kernel, X, y, NOISE, LINEAR)
        exact = DENSE.posterior(kernel, X, y, NOISE, LINEAR)
        assert own.log_evidence() == pytest.approx(exact.log_evidence(), rel=1e-8)
        assert own.mean(Z) == pytest.approx(exact.mean(Z), rel=1e-7)
        if method != "nystrom":  # whose prior has no variance far from the centres
            assert own.moments(Z)[1] == pytest.approx(exact.moments(Z)[1], rel=1e-6)
            for one, other in zip(own.gradients(Z), exact.gradients(Z), strict=True):
                assert one == pytest.approx(other, rel=1e-6, abs=1e-8)
            for one, other in zip(own.terms(Z), exact.terms(Z), strict=True):
                assert one[1] == pytest.approx(other[1], rel=1e-6, abs=1e-8)
                assert one[2] == pytest.approx(other[2], rel=1e-6, abs=1e-8)
        for one, other in zip(own.leave_one_out(), exact.leave_one_out(), strict=True):
            assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("mean", [None, LINEAR], ids=["zero", "linear"])
def test_the_exact_evidence_lies_between_the_bound_and_the_gap_and_more_centres_tighten_it(mean):
    exact = DENSE.posterior(ROUGH, X, y, NOISE, mean).log_evidence()
    values, errors = [], []
    for count in (5, 12, 25):
        own = mc.solvers.LowRank(count).posterior(ROUGH, X, y, NOISE, mean)
        assert own.log_evidence() <= exact <= own.log_evidence() + own.gap()
        values.append(own.log_evidence())
        errors.append(np.mean((own.mean(Z) - DENSE.posterior(ROUGH, X, y, NOISE, mean).mean(Z)) ** 2))
    assert values == sorted(values)
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("centers", ["greedy", "kmeans", "forward", "random"])
def test_centres_are_chosen_well_and_always_the_same(centers):
    target = y - y.mean()
    own, again = (mc.solvers.LowRank(M, centers).posterior(ROUGH, X, target, NOISE) for _ in range(2))
    assert own.log_evidence() == again.log_evidence()
    assert own.numerics()["centers"] == M
    chance = mc.solvers.LowRank(M, "random").posterior(ROUGH, X, target, NOISE)
    if centers in ("greedy", "kmeans"):
        assert own.numerics()["left"] < chance.numerics()["left"]
    elif centers == "forward":
        assert own.log_evidence() > chance.log_evidence()


def test_optimised_centres_raise_the_bound_by_its_gradient_in_them():
    for kernel in (ROUGH, OTHER):
        plain, moved = (solver(optimize=given).posterior(kernel, X, y, NOISE) for given in (False, True))
        assert moved.log_evidence() > plain.log_evidence() + 1.0
        assert moved.log_evidence() <= DENSE.posterior(kernel, X, y, NOISE).log_evidence()


def test_rows_that_pass_in_parts_say_what_they_say_together():
    for method in METHODS:
        whole = solver(method).posterior(OTHER, X, y, NOISE, LINEAR)
        first = solver(method).posterior(OTHER, X[:20], y[:20], NOISE[:20], LINEAR)
        rest = first.condition(X[20:23], y[20:23], NOISE[20:23]).condition(X[23:], y[23:], NOISE[23:])
        assert first.prior_mean.columns(X).shape == whole.prior_mean.columns(X).shape
        assert rest.log_evidence() == pytest.approx(whole.log_evidence(), rel=1e-8)
        for one, other in zip(rest.moments(Z), whole.moments(Z), strict=True):
            assert one == pytest.approx(other, rel=1e-7)


def test_factors_of_amplitude_and_noise_raise_the_evidence_as_new_sums_say():
    own = solver().posterior(ROUGH, X, y - 2.0, np.full(N, 0.3))
    amplitude, noise = own.best_scales()
    scaled = own.with_scales(amplitude * ROUGH, amplitude, noise)
    anew = solver().posterior(amplitude * ROUGH, X, y - 2.0, np.full(N, 0.3 * noise))
    assert scaled.log_evidence() > own.log_evidence() + 5.0
    assert scaled.log_evidence() == pytest.approx(anew.log_evidence(), rel=1e-9)
    assert scaled.moments(Z)[1] == pytest.approx(anew.moments(Z)[1], rel=1e-8)
    with solver().evidence(ROUGH, X, y - 2.0) as evidence:
        best = np.array([np.log(1.1 * amplitude), np.log(0.8), np.log(0.3 * noise)])
        assert evidence(best).gradient[[0, 2]] == pytest.approx(0.0, abs=0.1)


def test_little_noise_does_not_cancel_the_evidence():
    kernel, target = 1e4 * k.RBF(1.5), np.sin(X[:, 0])
    own = mc.solvers.LowRank(N).posterior(kernel, X, target, np.full(N, 1e-6))
    exact = DENSE.posterior(kernel, X, target, np.full(N, 1e-6))
    assert own.log_evidence() == pytest.approx(exact.log_evidence(), rel=1e-4)


def test_strings_have_centres_among_the_rows():
    words = ["".join(letters) for letters in rng.choice(list("abcd"), size=(40, 7))]
    target = np.array([float(word.count("ab")) + 0.1 * i / 40 for i, word in enumerate(words)])
    kernel = 0.5 * k.Spectrum(2)
    few = mc.solvers.LowRank(15).posterior(kernel, words, target, np.full(40, 0.05))
    exact = DENSE.posterior(kernel, words, target, np.full(40, 0.05))
    assert few.log_evidence() <= exact.log_evidence()
    assert set(few.centers) <= set(words)
    all_of_them = mc.solvers.LowRank(40).posterior(kernel, words, target, np.full(40, 0.05))
    assert all_of_them.log_evidence() == pytest.approx(exact.log_evidence(), rel=1e-8)
    with mc.solvers.LowRank(15).evidence(kernel, words, target, None) as evidence:
        theta = np.array([-0.3, -2.0])
        step = np.array([1e-5, 0.0])
        rise = (evidence(theta + step).value - evidence(theta - step).value) / 2e-5
        assert evidence(theta).gradient[0] == pytest.approx(rise, rel=1e-4)


def test_hard_rows_are_solved_or_refused_in_words():
    twice = np.repeat(X[:15], 2, axis=0)
    own = mc.solvers.LowRank(10).posterior(ROUGH, twice, np.repeat(y[:15], 2), np.full(30, 0.1))
    assert np.isfinite(own.log_evidence())
    one = mc.solvers.LowRank(10).posterior(ROUGH, X[:1], y[:1], NOISE[:1])
    assert one.mean(X[:1]) == pytest.approx(DENSE.posterior(ROUGH, X[:1], y[:1], NOISE[:1]).mean(X[:1]))
    model = mc.GaussianProcessRegressor(ROUGH, solver="lowrank", noise=0.0)
    with pytest.raises(mc.ParameterError, match="positive noise variance"):
        model.fit(X, y)
    words = mc.GaussianProcessRegressor(k.Spectrum(2), solver=mc.solvers.LowRank(3, centers="kmeans"))
    with pytest.raises(mc.ParameterError, match="rows of numbers"):
        words.fit(["ab", "ba", "aa", "bb"], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(mc.ParameterError, match="more than white noise"):
        mc.GaussianProcessRegressor(k.White(0.1), solver="lowrank").fit(X, y)
    for given in (
        {"n_centers": 0},
        {"centers": "best"},
        {"method": "exact"},
        {"optimize": "yes"},
        {"learning_rows": 0},
    ):
        with pytest.raises(mc.ParameterError, match=next(iter(given))):
            mc.solvers.LowRank(**given)


def test_a_model_says_how_far_from_exact_it_is_and_comes_back_from_a_file(tmp_path):
    model = mc.GaussianProcessRegressor(ROUGH, solver=solver(), progress=False).fit(X, y)
    assert model.solver_ == solver()
    assert model.solver_ != mc.solvers.LowRank(M)
    assert f"approximated by {len(CENTERS)} centres" in str(model)
    assert "nats higher" in str(model.report())
    mc.save(model, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert back.solver_ == model.solver_
    assert np.array_equal(back.predict(Z), model.predict(Z))
    assert np.array_equal(to_free(back.kernel_), to_free(model.kernel_))


# -- rows in chunks --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    generator = np.random.default_rng(3)
    rows = generator.uniform(-3, 3, size=(3000, 2))
    return rows, np.sin(2 * rows[:, 0]) + 0.2 * rows[:, 1] + 0.2 * generator.normal(size=3000) + 5.0


SETTINGS = mc.solvers.LowRank(40, learning_rows=400)


def fitted(data, target=None, **settings):
    given = {"solver": SETTINGS, "progress": False} | settings
    return mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0]), **given).fit(data, target)


def test_rows_from_files_and_iterators_are_those_in_memory(many, tmp_path):
    import polars as pl

    rows, target = many
    model = fitted(Chunks(rows, target, size=700))
    assert model.n_rows_ == 3000
    assert "3,000 rows" in str(model)
    frame = pl.DataFrame({"b": rows[:, 0], "a^": rows[:, 1], "y": target})
    frame.write_parquet(tmp_path / "table.parquet")
    frame.write_csv(tmp_path / "table.csv")
    new = pl.DataFrame({"b": Z[:, 0], "a^": Z[:, 1]})
    for name in ("table.parquet", "table.csv"):
        other = fitted(tmp_path / name, "y")
        assert other.predict(new) == pytest.approx(model.predict(Z), rel=1e-9)
    mapped = np.memmap(tmp_path / "rows", dtype=float, mode="w+", shape=rows.shape)
    mapped[:] = rows
    for other in (
        fitted(mapped, target),
        fitted(lambda: ((rows[i : i + 999], target[i : i + 999]) for i in range(0, 3000, 999))),
    ):
        assert other.predict(Z) == pytest.approx(model.predict(Z), rel=1e-7)
    # The posterior is that of all rows at these parameters, conditioned in memory.
    posterior, noise = model.posterior_, float(model.noise_) / model.scale_**2
    whole = mc.solvers.LowRank(centers=posterior.centers).posterior(
        model.kernel_, rows, (target - model.center_) / model.scale_, np.full(3000, noise), posterior.prior_mean
    )
    assert posterior.mean(Z) == pytest.approx(whole.mean(Z), rel=1e-6, abs=1e-8)
    assert posterior.log_evidence() == pytest.approx(whole.log_evidence(), rel=1e-8)


def test_a_model_of_chunks_is_calibrated_updated_and_saved(many, tmp_path):
    rows, target = many
    target = target.copy()
    target[::7] = np.nan  # not measured
    model = fitted(Chunks(rows, target, size=700), calibrate=True)
    assert model.n_rows_ == int(np.isfinite(target).sum())
    missed = np.abs(model.predict(rows[::7]) - many[1][::7])
    deviation = model.predict(rows[::7], return_std=True)[1]
    assert 0.92 < np.mean(missed < 1.96 * deviation) < 0.99
    assert np.sqrt(np.mean(missed**2)) < 0.22
    with pytest.raises(mc.ParameterError, match="of the 2,571 rows"):
        model.log_marginal_likelihood(model.theta_ + 0.1)
    mc.save(model, tmp_path / "model")
    back = mc.load(tmp_path / "model")
    assert str(back) == str(model)
    assert "2,571 rows, 400 of them kept" in str(back.report())
    back.update(rows[::7], many[1][::7])
    assert back.n_rows_ == 3000
    assert back.loo().mean.shape == (829,)


def test_few_rows_in_chunks_are_fitted_as_rows_in_memory(many):
    rows, target = (part[:300] for part in many)
    model, memory = fitted(Chunks(rows, target, size=90)), fitted(rows, target)
    assert model.n_rows_ is None
    assert model.predict(Z) == pytest.approx(memory.predict(Z), rel=1e-9)


def test_rows_in_chunks_are_fitted_exactly_while_they_fit(many, monkeypatch):
    rows, target = (part[:300] for part in many)
    given = {"solver": "auto", "learning": None}
    model, chunks = fitted(Chunks(rows, target, size=90), **given), Chunks(rows, target, size=90)
    assert model.solver_.name == "dense"  # without noise
    assert model.predict(Z) == pytest.approx(fitted(rows, target, **given).predict(Z), rel=1e-9)
    assert mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0]), **given).plan(chunks).method == "dense"
    monkeypatch.setattr(mc.solvers.LowRank, "learning_rows", 200)
    monkeypatch.setattr(mc.solvers.LowRank.__init__, "__defaults__", (500, "greedy", "variational", False, 200))
    with pytest.raises(mc.ParameterError, match=r"which needs a positive noise variance in every row. Give noise"):
        fitted(chunks, **given)
    model = fitted(chunks, noise=0.04, max_memory="200 MiB", **given)
    assert model.n_rows_ == 300
    assert model.solver_ == mc.solvers.LowRank(100)  # no more than half as many as rows
    assert model.plan_.rows == 300
    assert "learned from 200 of them" in model.plan_.why
    plan = mc.GaussianProcessRegressor(1.0 * k.RBF([1.0, 1.0]), noise=0.04, **given).plan(chunks)
    assert (plan.rows, plan.method) == (300, "lowrank")
    assert plan.seconds < 60


@pytest.mark.parametrize("centers", [np.zeros((4, 1)), np.zeros((4, 3)), [0.0, 1.0]])
def test_centres_with_other_columns_than_the_rows_are_refused(many, centers):
    rows, target = (part[:50] for part in many)
    solver = mc.solvers.LowRank(centers=centers)
    for model in (
        mc.GaussianProcessRegressor(1.0 * k.RBF(), 0.1, solver=solver, learning=None, progress=False),
        mc.KernelRidge(1.0 * k.RBF(), solver=solver),
        mc.KernelPCA(1, 1.0 * k.RBF(), solver=solver),
    ):
        with pytest.raises(mc.ParameterError, match=r"centers have \d columns?, and the rows 2"):
            model.fit(rows, target)


def test_pairs_are_chunks_and_iterators_that_end_are_refused(many):
    rows, target = (part[:300] for part in many)
    pairs = [(rows[i : i + 90], target[i : i + 90]) for i in range(0, 300, 90)]
    settings = {"learning": None, "noise": 0.1}
    assert fitted(pairs, **settings).predict(Z) == pytest.approx(fitted(rows, target, **settings).predict(Z))
    assert [part.first for part in Chunks(pairs)] == [0, 90, 180, 270]
    with pytest.raises(mc.ParameterError, match="function that returns a new iterator"):
        fitted(iter(pairs))
    with pytest.raises(mc.ParameterError, match="function that returns a new iterator"):
        Chunks(pair for pair in pairs)
    once, exhausted = iter(pairs), Chunks(lambda: once)
    assert len(list(exhausted)) == 4
    with pytest.raises(mc.DataError, match="must return a new one every time"):
        list(exhausted)
    passes = iter([pairs, pairs[:2]])
    fewer = Chunks(lambda: iter(next(passes)))
    assert len(list(fewer)) == 4
    with pytest.raises(mc.DataError, match="had 300 rows in an earlier pass, and 180 in this one"):
        list(fewer)


def test_what_is_wrong_with_a_file_is_said_in_words(tmp_path):
    table = tmp_path / "table.csv"
    for text, error, words in (
        ("", mc.FileError, "cannot be read: empty CSV"),
        ("a,y\n1,2\n3,4,5,6\n", mc.FileError, "as many fields in every row"),
        ("a,y\n1,x\n2,z\n", mc.DataError, "column 'y' of .* holds String"),
        ("a,y\n1,2\n3,inf\n", mc.DataError, "column 'y' of .* has an infinite value in row 1"),
    ):
        table.write_text(text)
        with pytest.raises(error, match=words):
            fitted(table, "y")
    (tmp_path / "table.parquet").write_text("nothing of the kind")
    with pytest.raises(mc.FileError, match="cannot be read"):
        fitted(tmp_path / "table.parquet", "y")


def test_numbers_may_have_a_fraction_in_late_rows_alone(tmp_path):
    table, n = tmp_path / "table.csv", 50_010
    table.write_text("a,y\n" + "1,2\n" * n + "1.5,2.5\n,3\n")
    parts = list(Chunks(table, "y"))
    assert sum(len(part.y) for part in parts) == n + 2
    assert parts[-1].y[-2] == 2.5
    assert parts[-1].X["a"][-2] == 1.5


@pytest.mark.parametrize("model", [mc.GaussianProcessClassifier(), mc.KernelRidge(), mc.KernelPCA(2)])
def test_models_of_rows_in_memory_refuse_chunks_in_a_sentence(many, model, tmp_path):
    rows, target = many
    words = "needs rows in memory here" + (".*partial_fit" if hasattr(model, "partial_fit") else "")
    for given in ((Chunks(rows, target),), (tmp_path / "table.parquet", "y"), ("table.csv", "y")):
        with pytest.raises(mc.ParameterError, match=words):
            model.fit(*given)
    if hasattr(model, "partial_fit"):
        with pytest.raises(mc.ParameterError, match=words):
            model.partial_fit(Chunks(rows, target), None)


def test_what_chunks_cannot_do_is_refused_in_words(many, tmp_path):
    rows, target = many
    for settings, words in (
        ({"solver": "dense"}, "solver='lowrank'"),
        ({"learning": "laplace"}, "learning='mle'"),
        ({"likelihood": "student"}, "likelihood='gaussian'"),
        ({"noise": np.ones(3000)}, "one noise variance"),
    ):
        with pytest.raises(mc.ParameterError, match=words):
            fitted(Chunks(rows, target), **settings)
    with pytest.raises(mc.ParameterError, match="leave out y"):
        fitted(Chunks(rows, target), target)
    with pytest.raises(ValueError, match="one target for each"):
        Chunks(rows, target[:-1])
    with pytest.raises(ValueError, match="pair"):
        list(Chunks(lambda: [rows]))
    with pytest.raises(FileNotFoundError):
        fitted(tmp_path / "none.parquet", "y")
    (tmp_path / "table.csv").write_text("a,y\n1,2\n3,4\n")
    with pytest.raises(ValueError, match="no column 'z'"):
        fitted(tmp_path / "table.csv", "z")
    with pytest.raises(ValueError, match="must end in"):
        fitted(tmp_path / "table.xls", "y")
