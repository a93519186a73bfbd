"""Sequences of differing length, told apart by what is hidden in them.

A process goes through phases and emits a letter at each step: that of its phase seven times in ten, else one of the
others. Two data sets are made of it, one for which each kernel is right. In the first, phases last twelve steps on
average and come once, in the order A B C A in one class and A C B A in the other, so letters and short words occur
almost equally often in both. In the second, phases last four steps, begin anywhere and go round, A B C A B C ... or A C
B A C B ..., so it is short words that differ. `Spectrum` compares words. `HiddenMarkov` asks whether the same hidden
path explains two sequences, step by step, so it is good at the first and of no use for the second, where two sequences
of one class are seldom in the same phase at the same step. The Fisher kernel asks whether two sequences would change
the parameters of a hidden Markov model in the same way, and is good at both. `HiddenMarkov` and Fisher learn one model
of four states from all training sequences, without labels. Above: letters of some sequences of the first data set, and
errors of Gaussian process classifiers learned from 150 sequences, beside those of someone who knows the two models that
the sequences were drawn from. Below: similarities of 60 new sequences of the first. Those of `HiddenMarkov` span many
orders of magnitude, since two paths of many steps are seldom the same.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import mercer as mc
from mercer import kernels as k
from mercer.core.text import table

LETTERS, COLORS = "ABC", ["0.75", "tab:orange", "tab:blue"]
DRAWS = 5
STAY, RIGHT = 0.75, 0.7  # probabilities of staying in a state, and of emitting its own letter


def model(order, again):
    """A hidden Markov model that goes through these states, and then stays in the last or begins again."""
    n = len(order)
    move = STAY * np.eye(n) + (1 - STAY) * np.eye(n, k=1)
    move[-1, 0 if again else -1] += 1 - STAY
    emit = [[RIGHT if letter == phase else (1 - RIGHT) / 2 for letter in LETTERS] for phase in order]
    first = np.full(n, 1 / n) if again else np.eye(n)[0]
    return k.densities.HiddenMarkovModel.of(first, move, emit, symbols=LETTERS)


PROCESSES = {
    "long phases, once": [model("AAABBBCCCAAA", again=False), model("AAACCCBBBAAA", again=False)],
    "short phases, in a cycle": [model("ABC", again=True), model("ACB", again=True)],
}


def sequences(rng, n, models):
    """Sequences of 35 to 60 letters, half from each model, and which it was."""
    labels = np.repeat([0, 1], n // 2)
    drawn = [models[label].sample(1, rng, length=rng.integers(35, 61))[0] for label in labels]
    return ["".join(letters) for letters in drawn], labels


kernels = {
    "Spectrum(3)": k.Spectrum(3).normalize(),
    "HiddenMarkov(4)": k.HiddenMarkov(4).normalize(),
    "Fisher of 4 states": k.Fisher(k.densities.HiddenMarkovModel(4)).normalize(),
}
rng = np.random.default_rng(1)
errors, fitted = {}, {}
for process, models in reversed(PROCESSES.items()):  # the one whose matrices are drawn comes last
    for name in [*kernels, "the two models"]:
        errors[name, process] = []
    for _ in range(DRAWS):
        X, y = sequences(rng, 150, models)
        new, truth = sequences(rng, 300, models)
        for name, kernel in kernels.items():
            classifier = mc.GaussianProcessClassifier(1.0 * kernel, progress=False).fit(X, y)
            errors[name, process].append(np.mean(classifier.predict(new) != truth))
            fitted[name] = classifier.kernel_
        first, second = (known.log_density(known.prepare(new)) for known in models)
        errors["the two models", process].append(np.mean((second > first) != truth))
names = [*kernels, "the two models"]
rows = [[name, *(f"{np.mean(errors[name, process]):.1%}" for process in PROCESSES)] for name in names]
print(table(["errors", *PROCESSES], rows))

new, _ = sequences(rng, 60, PROCESSES["long phases, once"])
figure = plt.figure(figsize=(12, 9.5), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=[4, 5])
axes = above.subplot_mosaic([["letters", "errors"]], width_ratios=[7, 4]) | below.subplot_mosaic([list(kernels)])
for place, row in enumerate([*new[:8], *new[30:38]]):
    codes = [[LETTERS.index(letter) for letter in row]]
    height = place + (place >= 8)  # a gap between the classes
    axes["letters"].imshow(
        codes, cmap=ListedColormap(COLORS), vmin=0, vmax=2, extent=(0, len(row), height + 0.9, height), aspect="auto"
    )
axes["letters"].set(xlim=(0, 61), ylim=(17, -4), xlabel="step", title="eight sequences of each class")
axes["letters"].set_yticks([4, 13], ["A B C A", "A C B A"])
patches = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS]
axes["letters"].legend(patches, LETTERS, loc="upper right", ncols=3, title="letter", framealpha=1)

for process, color, marker in zip(PROCESSES, ["tab:red", "tab:blue"], "Ds", strict=True):
    means = [np.mean(errors[name, process]) for name in names]
    axes["errors"].plot(means, names, marker, color=color, ms=9, alpha=0.8, label=process)
    for name in names:
        found = errors[name, process]
        axes["errors"].plot([min(found), max(found)], [name, name], color=color, lw=2, alpha=0.5)
axes["errors"].axvline(0.5, color="black", lw=0.8, ls=":", label="chance")
axes["errors"].invert_yaxis()
axes["errors"].legend(loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=3, frameon=False, handletextpad=0.2)
axes["errors"].margins(y=0.12)
axes["errors"].set(
    title=f"errors: mean and range of {DRAWS} draws", xlabel="share of 300 new sequences", xlim=(0, 0.55)
)

for name, kernel in fitted.items():
    ax, K = axes[name], kernel.normalize()(new)
    shown, label = (np.log10(K), "log10 of the similarity") if name.startswith("Hidden") else (K, "similarity")
    others = shown[~np.eye(len(K), dtype=bool)]
    low, high = np.quantile(others, [0.05, 0.95])
    drawn = ax.imshow(shown, cmap="viridis", vmin=low, vmax=high)
    below.colorbar(drawn, ax=ax, label=label, location="bottom", extend="both")
    for line in (ax.axhline, ax.axvline):
        line(29.5, color="white", lw=1.5)
    ax.set(title=name)
    ax.set_xticks([14.5, 44.5], ["A B C A", "A C B A"])
    ax.set_yticks([14.5, 44.5], ["A B C A", "A C B A"], rotation=90, va="center")
plt.show()
