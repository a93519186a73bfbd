"""The memory budget."""

import re
from pathlib import Path

import numpy as np
import pytest

import mercer as mc
from mercer.core import machine
from mercer.core.errors import NotEnoughMemoryError

SOURCE = Path(mc.__file__).parent


@pytest.mark.parametrize("entries", [0, 1, 1000, 1 << 30])
def test_rows_fit_in_the_budget_unless_more_are_needed(entries):
    rows = machine.rows_within(machine.ARRAY_BYTES, entries)
    assert rows == 1 or 8 * rows * entries <= machine.ARRAY_BYTES < 8 * (rows + 1) * max(entries, 1)
    assert machine.rows_within(machine.ARRAY_BYTES, entries, 10_000_000) == 10_000_000


def test_what_is_kept_is_a_share_of_what_is_available(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    assert machine.keepable() == 250
    assert machine.keepable(1 / 2) == 500
    with pytest.raises(NotEnoughMemoryError, match="needs"):
        machine.require_memory(1001, "it", "Do something else.")


def test_sizes_of_memory_are_in_the_budget_alone():
    """Only an allocation and a plan ask for the available memory itself, to say it to the user."""
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    asking = {name for name, text in sources.items() if "available_memory(" in text}
    assert asking == {"core/machine.py", "kernels/evaluate.py", "learning/plan.py"}
    sizes = re.compile(r"^[A-Z_]*(?:BYTES|ENTRIES) = ", re.MULTILINE)
    assert {name for name, text in sources.items() if sizes.search(text)} == {"core/machine.py"}


def test_the_budget_does_not_change_results(monkeypatch):
    rng = np.random.default_rng(0)
    X, Z = rng.uniform(size=(60, 2)), rng.uniform(size=(700, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    fitted = [
        (mc.GaussianProcessRegressor(progress=False).fit(X, y), lambda model: model.predict(Z, return_std=True)[1]),
        (mc.NadarayaWatson().fit(X, y), lambda model: model.predict_distribution(Z).quantile([0.1, 0.9])),
        (mc.ParzenDensity().fit(X), lambda model: model.score_samples(Z)),
    ]
    before = [ask(model) for model, ask in fitted]
    for name in ("GRAM_BYTES", "ARRAY_BYTES", "BATCH_BYTES", "CACHE_BYTES"):
        monkeypatch.setattr(machine, name, 1 << 12)
    for (model, ask), expected in zip(fitted, before, strict=True):
        np.testing.assert_allclose(ask(model), expected, rtol=1e-10)
