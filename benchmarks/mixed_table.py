"""`mercer fit` with no options, on tables with categories and text, against the same on their numbers alone.

Generated: two numbers, a category that changes the function of one of them, a category of many levels, and a code of
twelve letters whose pairs of letters have effects; the noise has standard deviation 0.2. Photoswitch: the measured
wavelength of the E isomer's pi-pi* transition from its computed one (a number), SMILES (text) and the solvent (a
category; "unknown" where it is missing). Rows held out by `mercer fit` (a fifth, by seed) are scored.

    python benchmarks/mixed_table.py [seeds]
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from mercer.cli.fit import run_fit
from mercer.distributions import Normal

DATA = Path(os.environ.get("MERCER_DATA", "/work/shared/data"))
MEASURED, COMPUTED = "E isomer pi-pi* wavelength in nm", "CAM-B3LYP/6-31G** DFT E isomer pi-pi* wavelength in nm"


def generated(n: int = 300) -> tuple[pl.DataFrame, str]:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, n))
    colour, town = rng.choice(["red", "green", "blue"], n), rng.integers(0, 25, n)
    code = ["".join(rng.choice(list("ACGT"), 12)) for _ in range(n)]
    effects = {x + y: rng.normal() for x in "ACGT" for y in "ACGT"}
    y = np.where(colour == "red", 1.5, -0.5) * np.sin(2 * a) + 0.3 * b + rng.normal(size=25)[town]
    y += 0.3 * np.array([sum(effects[text[i : i + 2]] for i in range(11)) for text in code])
    y += 0.2 * rng.normal(size=n)
    towns = [f"town {i}" for i in town]
    return pl.DataFrame({"a": a, "b": b, "colour": colour, "town": towns, "code": code, "y": y}), "y"


def photoswitch() -> tuple[pl.DataFrame, str]:
    frame = pl.read_csv(DATA / "structured" / "mol_photoswitch.csv.gz", infer_schema_length=None)
    frame = frame.filter(pl.col(MEASURED).is_not_null() & pl.col(COMPUTED).is_not_null())
    solvent = pl.col("Irradiation solvent").fill_null("unknown")
    return frame.select("SMILES", solvent=solvent, computed=pl.col(COMPUTED), measured=pl.col(MEASURED)), "measured"


def scores(frame: pl.DataFrame, target: str, drop: list[str], seed: int) -> tuple[float, float]:
    """RMSE and mean CRPS of the held-out rows."""
    with tempfile.TemporaryDirectory() as folder:
        frame.write_csv(Path(folder) / "t.csv")
        quiet = lambda text: None
        run_fit(Path(folder) / "t.csv", target, Path(folder) / "out", drop=drop, seed=seed, quiet=True, say=quiet,
                show=quiet)  # fmt: skip
        found = pl.read_csv(Path(folder) / "out" / "predictions.csv")
    truth, mean, deviation = (found[name].to_numpy() for name in ("target", "mean", "std"))
    return float(np.sqrt(np.mean((truth - mean) ** 2))), float(np.mean(Normal(mean, deviation).crps(truth)))


def main(seeds: int) -> None:
    for name, (frame, target) in {"generated": generated(), "photoswitch": photoswitch()}.items():
        texts = [column for column in frame.columns if frame[column].dtype == pl.String]
        print(f"{name}: {len(frame)} rows, target {target}, {seeds} splits")
        for label, drop in (("all columns", []), ("numbers alone", texts)):
            found = np.array([scores(frame, target, drop, seed) for seed in range(seeds)])
            print(f"  {label:<14} RMSE {found[:, 0].mean():8.4f}   CRPS {found[:, 1].mean():8.4f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
