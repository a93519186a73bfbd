"""Strings: which DNA sequences have a motif, and where is it?

Half of the sequences contain the motif TATAATGC, often with one letter replaced. In the first data set it always begins
at the same letter, in the second anywhere. `WeightedDegree` compares what is at the same position; `Spectrum` compares
which words of four letters occur, wherever they are. Above are the probabilities that Gaussian process classifiers give
to 200 sequences that they have not seen. If the place is fixed, the kernel that knows positions is hardly ever wrong,
and Spectrum more often; if the motif is anywhere, only Spectrum is of use. Below is where the motif was found: how much
the probability drops if a letter of a new sequence is replaced by another.
"""

import matplotlib.pyplot as plt
import numpy as np

import mercer as mc
from mercer import kernels as k
from mercer.core.text import table
from mercer.scores import reliability

LETTERS, MOTIF, LENGTH = "ACGT", "TATAATGC", 40
KERNELS = {"WeightedDegree(4)": k.WeightedDegree(4), "Spectrum(4)": k.Spectrum(4)}
PLACES = {"in a fixed place": lambda rng: 18, "anywhere": lambda rng: rng.integers(LENGTH - len(MOTIF) + 1)}


def sequences(rng, n, begins):
    """Random sequences, whether the motif was put into each (0 or 1), and where."""
    rows, labels, starts = [], np.arange(n) % 2, [begins(rng) for _ in range(n)]
    for label, start in zip(labels, starts, strict=True):
        row = rng.choice(list(LETTERS), size=LENGTH)
        if label:
            word = np.array(list(MOTIF))
            if rng.uniform() < 0.5:
                word[rng.integers(len(word))] = rng.choice(list(LETTERS))
            row[start : start + len(word)] = word
        rows.append("".join(row))
    return rows, labels, starts


def drop_for_each_letter(model, sequence):
    """How much less probable the motif is if a letter is replaced, the mean of its three replacements: (length,)."""
    changed = [sequence[:i] + letter + sequence[i + 1 :] for i in range(len(sequence)) for letter in LETTERS]
    p = model.predict_proba([sequence, *changed])[:, 1]
    return (p[0] - p[1:].reshape(-1, len(LETTERS))).sum(axis=1) / 3  # one of the four is the letter itself


rng = np.random.default_rng(2)
figure = plt.figure(figsize=(11, 9), layout="constrained")
axes = figure.subplot_mosaic([list(PLACES), [0, 0], [1, 1]], height_ratios=[3, 2, 2])
rows = []
for number, (place, begins) in enumerate(PLACES.items()):
    X, y, _ = sequences(rng, 160, begins)
    new, truth, starts = sequences(rng, 200, begins)
    example = next(i for i, row in enumerate(new) if truth[i] and MOTIF in row)
    ax, below = axes[place], axes[number]
    for height, (name, kernel) in enumerate(KERNELS.items()):
        model = mc.GaussianProcessClassifier(1.0 * kernel.normalize(), progress=False).fit(X, y)
        P = model.predict_proba(new)
        found = reliability(truth, P)
        rows.append([place, name, f"{found.error_rate:.1%}", f"{found.log_loss:.2f}"])
        for label, text, color in ((1, "has the motif", "tab:red"), (0, "does not have it", "tab:blue")):
            p = P[truth == label, 1]
            beside = height + 0.2 * (2 * label - 1) + rng.uniform(-0.13, 0.13, len(p))
            ax.plot(p, beside, ".", color=color, ms=5, alpha=0.7, label=None if height else text)
        if number == height:  # the kernel made for this data set
            end = starts[example] + len(MOTIF)
            below.axvspan(starts[example] - 0.5, end - 0.5, color="tab:orange", alpha=0.25, lw=0, label="the motif")
            below.bar(range(LENGTH), drop_for_each_letter(model, new[example]), color="tab:green")
            below.set(title=f"motif {place}: the letters of one new sequence, seen by {name}")
    ax.set(title=f"motif {place}", xlabel="predicted probability of the motif", xlim=(-0.02, 1.02), ylim=(-0.5, 1.9))
    ax.set_yticks([0, 1], KERNELS)
    ax.legend(loc="upper center", ncols=2)
    below.axhline(0, color="black", lw=0.6)
    below.set(ylabel="drop in probability\nif replaced", xlim=(-0.7, LENGTH - 0.3))
    below.set_xticks(range(LENGTH), new[example], family="monospace")
    below.legend(loc="upper left")
print(table(["motif", "kernel", "errors", "log loss"], rows))
plt.show()
