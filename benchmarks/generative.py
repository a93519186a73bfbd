"""Kernels from generative models: speed, retrieval of documents, classification of sequences, few labels.

    python benchmarks/generative.py [--write] [--only speed retrieval sequences labels] [--folds 10]

- speed: the hidden Markov kernel of 300 sequences of length 100 with 8 states, beside the same recursion in NumPy, pair
  by pair (on 300 of the pairs, extrapolated); Fisher scores of 10,000 rows in 10 dimensions under a mixture of 50
  Gaussians with diagonal covariances. Claims: under 5 s and at least 50 times as fast; under 2 s.
- retrieval: the 16,242 messages of 20 newsgroups with 100 words, in 4 groups. 500 messages with at least three words
  are queries; the others are ranked by similarity, and those of the query's group are relevant. Mean average precision.
- sequences: promoters, stratified folds, Gaussian process classifiers; models are learned from the
  training rows of each fold, without their labels.
- labels: three labelled rows a class, 10 draws. The kernel is a sum of nine mixtures, with one, two and four components
  a class from three random starts each, learned from half of all rows without labels. Accuracy on the other half.

MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import functools
import operator
import time
import warnings

import numpy as np
from machine import keep, table
from structured_accuracy import DATA, sequences


def seconds(call):
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


# -- speed -----------------------------------------------------------------------------------------------------------


def numpy_recursion(x, z, initial, transition, emission):
    """ln k(x, x') of one pair by the scaled forward recursion."""
    a, logarithm = initial * emission[:, x[0]] * emission[:, z[0]], 0.0
    for s, t in zip(x[1:], z[1:], strict=True):
        total = a.sum()
        logarithm += np.log(total)
        a = (a / total) @ transition * emission[:, s] * emission[:, t]
    return logarithm + np.log(a.sum())


def speed(options):
    from mercer import kernels as k

    rng = np.random.default_rng(0)
    S, V, n, length = 8, 20, 300, 100
    parts = rng.dirichlet(np.ones(S)), rng.dirichlet(np.ones(S), S), rng.dirichlet(np.ones(V), S)
    X = rng.integers(0, V, size=(n, length))
    rows = X.tolist()
    kernel = k.HiddenMarkov(*parts)
    first, _ = seconds(lambda: kernel(rows[:3]))
    taken = [seconds(lambda: kernel(rows)) for _ in range(5)]
    own, K = float(np.median([t for t, _ in taken])), taken[0][1]
    pairs = [tuple(rng.integers(0, n, 2)) for _ in range(300)]
    spent, logs = seconds(lambda: [numpy_recursion(X[i], X[j], *parts) for i, j in pairs])
    theirs = spent / len(pairs) * n * (n + 1) / 2
    off = max(abs(np.log(K[i, j]) - value) for (i, j), value in zip(pairs, logs, strict=True))
    name, ratio = "hidden Markov kernel, 8 states, length 100", f"{theirs / own:.0f}"
    lines = table(
        ["Gram matrix of 300 sequences", "seconds", "NumPy, pair by pair", "ratio", "largest difference of ln k"],
        [[name, f"{own:.2f}", f"{theirs:.1f}", ratio, f"{off:.0e}"]],
    )
    X = rng.normal(size=(10_000, 10))
    model = k.densities.GaussianMixture.of(
        rng.dirichlet(np.ones(50)), rng.normal(size=(50, 10)), rng.uniform(0.3, 1, size=(50, 10))
    ).free()
    compiled, G = seconds(lambda: model.scores(model.prepare(X)))
    again = float(np.median([seconds(lambda: model.scores(model.prepare(X)))[0] for _ in range(5)]))
    fit, _ = seconds(lambda: k.Fisher(model).fit(X))
    header = ["scores of 10,000 rows", "first call, with compilation, s", "again, s", "information and its root, s"]
    name = f"mixture of 50 Gaussians in 10 dimensions, {G.shape[1]:,} parameters"
    scores = table(header, [[name, f"{compiled:.2f}", f"{again:.2f}", f"{fit:.1f}"]])
    return ["## Speed", "", *lines, "", f"Compiled code of the kernel was loaded in {first:.1f} s.", "", *scores]


# -- retrieval -------------------------------------------------------------------------------------------------------


def newsgroups():
    with np.load(DATA / "news20_w100.npz") as file:
        n = file["shape"][1]
        bits = np.unpackbits(file["documents_packed"], axis=1)[:, :n]
        return bits.T.astype(float), file["newsgroups"].astype(int)


def mean_average_precision(kernel, X, groups, queries):
    scores = []
    for part in np.array_split(queries, 10):
        K = kernel(X[part], X)
        for row, q in zip(K, part, strict=True):
            row[q] = -np.inf
            order = np.argsort(-row, kind="stable")[:-1]
            relevant = groups[order] == groups[q]
            scores.append(float(np.mean(np.cumsum(relevant)[relevant] / (np.flatnonzero(relevant) + 1))))
    return np.array(scores)


def retrieval(options):
    from mercer import kernels as k

    X, groups = newsgroups()
    queries = np.random.default_rng(0).permutation(np.flatnonzero(X.sum(axis=1) >= 3))[:500]
    weight = np.log((1 + len(X)) / (1 + X.sum(axis=0))) + 1
    found = {
        "tf-idf, cosine": mean_average_precision(k.FeatureMap(lambda x: x * weight).normalize(), X, groups, queries)
    }
    for n in (5, 10, 20):
        model = k.densities.MultinomialMixture(n).fit(X)
        weights, words = (
            k.Fisher(model, name, information="diagonal").fit(X).normalize() for name in ("weights", "probabilities")
        )
        similarities = {
            "Fisher": k.Fisher(model, information="diagonal").fit(X).normalize(),
            "Fisher, in the weights": weights,
            "Fisher, in the probabilities of words": words,
            "both, normalised and added": weights + words,
            "mixture": k.Mixture(model).normalize(),
        }
        for name, kernel in similarities.items():
            found[f"{name}, {n} components"] = mean_average_precision(kernel, X, groups, queries)
        print(n, {name: round(float(np.mean(scores)), 4) for name, scores in found.items()}, flush=True)
    base = found["tf-idf, cosine"]
    rows = [
        [
            name,
            f"{scores.mean():.3f}",
            f"{(scores - base).mean():+.3f} +- {(scores - base).std() / np.sqrt(len(scores)):.3f}",
        ]
        for name, scores in found.items()
    ]
    return ["## Retrieval, 20 newsgroups", "", *table(["similarity", "mean average precision", "beside tf-idf"], rows)]


# -- sequences -------------------------------------------------------------------------------------------------------


def classified(options):
    import mercer as mc
    from mercer import kernels as k

    def kernels():
        fisher = lambda n: k.Fisher(k.densities.HiddenMarkovModel(n), information="diagonal")
        found = {
            "spectrum": [1.0 * k.Spectrum(length).normalize() for length in (2, 3, 4, 5)],
            "hidden Markov": [1.0 * k.HiddenMarkov(n).normalize() for n in (2, 4, 8)],
            "Fisher, hidden Markov": [1.0 * fisher(n).normalize() for n in (2, 4, 8)],
            "Fisher and spectrum added": [
                1.0 * fisher(4).normalize() + 1.0 * k.Spectrum(length).normalize() for length in (3, 4)
            ],
        }
        return {name: [kernel + k.Constant(1.0) for kernel in members] for name, members in found.items()}

    rows = []
    for name, (X, codes, fold) in [("promoters", sequences()["promoters"])]:
        for family, candidates in kernels().items():
            scores = []
            for f in range(options.folds):
                train, test = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
                strings = [X[i] for i in train]
                begun = time.perf_counter()
                kernel = mc.select_kernel(
                    strings, codes[train], candidates=candidates, task="classification", progress=False
                ).kernel
                model = mc.GaussianProcessClassifier(kernel, random_state=0, progress=False).fit(strings, codes[train])
                P = model.predict_proba([X[i] for i in test])
                loss = -np.log(np.maximum(P[np.arange(len(test)), codes[test]], 1e-15)).mean()
                scores.append([np.mean(P.argmax(axis=1) == codes[test]), loss, time.perf_counter() - begun])
            accuracy, loss, spent = np.mean(scores, axis=0)
            error = np.std(scores, axis=0)[0] / np.sqrt(len(scores))
            rows.append([name, family, f"{100 * accuracy:.1f} +- {100 * error:.1f}", f"{loss:.3f}", f"{spent:.1f}"])
            print(*rows[-1], sep=" | ", flush=True)
    header = ["data", "kernel", "accuracy, %", "log loss", "seconds a fold"]
    return [f"## Sequences, {options.folds} folds", "", *table(header, rows)]


# -- few labels ------------------------------------------------------------------------------------------------------


def labels(options):
    from sklearn import datasets

    import mercer as mc
    from mercer import kernels as k

    def oil():
        with np.load(DATA.parent / "multioutput" / "oil_flow.npz") as file:
            return file["DataTrn"], file["DataTrnLbls"].argmax(axis=1)

    sets = {
        "oil flow": oil(),
        "digits": datasets.load_digits(return_X_y=True),
        "wine": datasets.load_wine(return_X_y=True),
        "iris": datasets.load_iris(return_X_y=True),
        "breast cancer": datasets.load_breast_cancer(return_X_y=True),
    }
    rows = []
    for name, (X, y) in sets.items():
        classes, y = np.unique(y, return_inverse=True)
        found = []
        for draw in range(10):
            rng = np.random.default_rng(draw)
            order = rng.permutation(len(y))
            train, test = order[: len(y) // 2], order[len(y) // 2 :]
            few = np.concatenate([train[y[train] == c][:3] for c in range(len(classes))])
            mixtures = [
                k.Mixture(k.densities.GaussianMixture(n * len(classes), random_state=seed)).fit(X[train]).normalize()
                for n in (1, 2, 4)
                for seed in range(3)
            ]
            spread = np.where(X[few].std(axis=0) > 0, X[few].std(axis=0), 1.0)
            models = {
                "mixtures": (1.0 * functools.reduce(operator.add, mixtures) + k.Constant(1.0), 1.0),
                "RBF": (1.0 * k.RBF(np.sqrt(X.shape[1])) + k.Constant(1.0), spread),
            }
            answers = []
            for kernel, scale in models.values():
                model = mc.GaussianProcessClassifier(kernel, random_state=0, progress=False).fit(X[few] / scale, y[few])
                P = model.predict_proba(X[test] / scale)
                loss = -np.log(np.maximum(P[np.arange(len(test)), y[test]], 1e-15)).mean()
                answers += [np.mean(P.argmax(axis=1) == y[test]), loss]
            found.append(answers)
        m, r = np.array(found)[:, 0], np.array(found)[:, 2]
        gain = 100 * (m - r)
        losses = np.mean(found, axis=0)[[1, 3]]
        error = gain.std() / np.sqrt(len(gain))
        row = [name, X.shape[1], len(classes), f"{100 * m.mean():.1f}", f"{100 * r.mean():.1f}"]
        rows.append([*row, f"{gain.mean():+.1f} +- {error:.1f}", *(f"{loss:.3f}" for loss in losses)])
        print(*rows[-1], sep=" | ", flush=True)
    header = ["data", "inputs", "classes", "mixtures of all rows, accuracy %", "RBF of labelled rows", "difference",
              "log loss, mixtures", "log loss, RBF"]  # fmt: skip
    return ["## Three labels a class", "", *table(header, rows)]


PARTS = {"speed": speed, "retrieval": retrieval, "sequences": classified, "labels": labels}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/generative.md")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folds", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for name in options.only:
        part = PARTS[name](options)
        lines += [*part, ""]
        print("\n".join(part), flush=True)
    if options.write:
        keep("generative", "Kernels from generative models", "python benchmarks/generative.py --write", lines)


if __name__ == "__main__":
    main()
