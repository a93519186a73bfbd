"""`mercer fit` with no options, on tables with categories and text, against the same on their numbers alone.

Generated: two numbers, a category that changes the function of one of them, a category of many levels, and a code of
twelve letters whose pairs of letters have effects; the noise has standard deviation 0.2. Photoswitch: the measured
wavelength of the E isomer's pi-pi* transition from its computed one (a number), SMILES (text) and the solvent (a
category; "unknown" where it is missing). Rows held out by `mercer fit` (a fifth, by seed) are scored.

    python benchmarks/mixed_table.py [--splits 3] [--write]

MERCER_DATA is the folder of the data (default ../shared/data).
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from machine import keep, table

from mercer.cli.fit import run_fit
from mercer.distributions import Normal

DATA = Path(os.environ.get("MERCER_DATA", "../shared/data"))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results/mixed_table.md")
    options = parser.parse_args()
    rows = []
    for name, (frame, target) in {"generated": generated(), "photoswitch": photoswitch()}.items():
        texts = [column for column in frame.columns if frame[column].dtype == pl.String]
        for label, drop in (("all columns", []), ("numbers alone", texts)):
            found = np.mean([scores(frame, target, drop, seed) for seed in range(options.splits)], axis=0)
            rows.append([f"{name}, {len(frame)} rows", label, f"{found[0]:.3f}", f"{found[1]:.3f}"])
            print(*rows[-1], sep=" | ", flush=True)
    if options.write:
        lines = [f"Mean of {options.splits} splits.", "", *table(["table", "inputs", "RMSE", "CRPS"], rows)]
        command = "python benchmarks/mixed_table.py --write"
        keep("mixed_table", "mercer fit on tables with categories and text", command, lines)


if __name__ == "__main__":
    main()
