"""Forecasts beside exponential smoothing: 40 monthly M3 series, airline passengers, Mauna Loa, sunspots.

Exponential smoothing is statsmodels' ETSModel with the smallest AICc over additive and multiplicative errors, trends
(none, additive, damped) and seasons (none, additive, multiplicative). Targets: mean scaled error (over that of
repeating the last year, in the history) no larger than its own, and 95% intervals that cover
between 90 and 98% of all points.

Run with --kept FILE to resume, --series N for the first N series, --write for results/forecasting.md.
"""

import argparse
import gzip
import os
import time
import warnings
from pathlib import Path

import numpy as np
from machine import Kept, keep, table

import mercer as mc

FOLDER = Path(os.environ.get("MERCER_DATA", "../shared/data")) / "timeseries"
LONG = {"airpassengers": 24, "mauna_loa_rw545": 24, "sunspots": 24}  # steps ahead
OTHERS_ROWS = 1500  # the latest, that both learn from


def series():
    """Name, history, future."""
    for line in gzip.decompress((FOLDER / "m3_monthly_40.csv.gz").read_bytes()).decode().split()[1:]:
        name, history, future = line.split(",")
        yield name, np.array(history.split(";"), float), np.array(future.split(";"), float)
    for name, horizon in LONG.items():
        y = np.loadtxt(FOLDER / f"{name}.csv.gz", delimiter=",", skiprows=1)[-OTHERS_ROWS:, 1]
        yield name, y[:-horizon], y[-horizon:]


def smoothing(y, horizon):
    import pandas as pd
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    values, best = pd.Series(y, index=pd.RangeIndex(len(y))), None
    for error in ("add", "mul"):
        for trend, damped in ((None, False), ("add", False), ("add", True)):
            for season in (None, "add", "mul"):
                if (error == "add" and season == "mul") or (not (y > 0).all() and "mul" in (error, season)):
                    continue
                form = {"error": error, "trend": trend, "damped_trend": damped, "seasonal": season}
                try:
                    found = ETSModel(values, **form, seasonal_periods=12 if season else None).fit(
                        disp=False, maxiter=300
                    )
                except (ValueError, np.linalg.LinAlgError):
                    continue
                if np.isfinite(found.aicc) and (best is None or found.aicc < best.aicc):
                    best = found
    frame = best.get_prediction(start=len(y), end=len(y) + horizon - 1).summary_frame(alpha=0.05)
    return frame["mean"].to_numpy(), frame["pi_lower"].to_numpy(), frame["pi_upper"].to_numpy()


def ours(y, horizon):
    months = (np.datetime64("1900-01") + np.arange(len(y))).astype("datetime64[D]")
    found = mc.forecast(months, y, horizon)
    return found.median, *found.interval(0.95)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept")
    parser.add_argument("--series", type=int)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = Kept(options.kept)
    chosen = list(series())[: options.series]
    methods = {"mercer": ours, "ETS": smoothing}
    for name, y, future in chosen:
        scale = float(np.mean(np.abs(y[12:] - y[:-12])))
        for method, call in methods.items():
            key = f"{method} {name}"
            if key not in kept:
                start = time.process_time()
                middle, low, high = call(y, len(future))
                taken = time.process_time() - start
                error = float(np.mean(np.abs(future - middle)) / scale)
                kept[key] = [error, int(((low <= future) & (future <= high)).sum()), len(future), taken]
    groups = {"M3": [n for n, *_ in chosen if n not in LONG], **{n: [n] for n, *_ in chosen if n in LONG}}
    groups["all"] = [n for n, *_ in chosen]
    rows = []
    for group, names in groups.items():
        for method in methods:
            found = np.array([kept[f"{method} {name}"] for name in names])
            rows.append([
                group, method, f"{found[:, 0].mean():.3f}", f"{found[:, 1].sum() / found[:, 2].sum():.1%}",
                f"{found[:, 3].mean():.1f}",
            ])  # fmt: skip
    lines = table(["series", "method", "MASE", "coverage of 95% intervals", "seconds of processor"], rows)
    print("\n".join(lines))
    if options.write:
        keep("forecasting", "Forecasts beside exponential smoothing", "python benchmarks/forecasting.py", lines)


if __name__ == "__main__":
    main()
