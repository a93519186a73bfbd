"""mercer fit --search: the components in files, an interrupted search resumed, and what it refuses."""

import numpy as np
import pytest

import mercer as mc
from mercer.cli.fit import run_fit


def test_components_are_written_and_a_search_goes_on(tmp_path):
    t, rng = np.arange(24.0), np.random.default_rng(0)
    table = tmp_path / "table.csv"
    rows = zip(t, 0.3 * t + 0.1 * rng.normal(size=24), np.where(t > 12, "late", "early"), strict=True)
    table.write_text("t,y,when\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    settings = {"search": True, "max_seconds": 0, "quiet": True, "test_share": 0, "say": lambda text: None}
    for _ in range(2):
        folder = run_fit(table, "y", tmp_path / "out", drop=["when"], show=lambda text: None, **settings)
    assert {"search.txt", "search.json", "components.png"} <= {path.name for path in folder.iterdir()}
    assert "share of variance, component:" in (folder / "search.txt").read_text()
    assert "Components" in (folder / "report.txt").read_text()
    with pytest.raises(mc.ParameterError, match="numeric targets"):
        run_fit(table, "when", tmp_path / "out2", **settings)
    with pytest.raises(mc.ParameterError, match="leave out when"):
        run_fit(table, "y", tmp_path / "out3", **settings)
