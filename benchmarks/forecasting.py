"""Forecasts beside exponential smoothing and a repetition of the last season: 40 monthly M3 series, airline
passengers, Mauna Loa, sunspots.

Exponential smoothing is statsmodels' ETSModel with the smallest AICc over additive and multiplicative errors, trends
(none, additive, damped) and seasons (none, additive, multiplicative); its distribution is taken as normal, as wide as
its 95% intervals. The seasonal naive forecast is the value of a year ago, with the root mean square of changes within
a year as deviation, times the square root of years ahead. Targets: mean scaled error (over that of repeating the last
year, in the history) no larger than that of smoothing, a higher log density than that of the naive forecast (of values
in the same units), and 95% intervals that cover between 90 and 98% of all points.

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
OTHERS_ROWS = 1500  # the latest, that all learn from
SEASON = 12
WIDTH = 1.959964  # of a 95% interval, in deviations to each side


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
    mean, low, high = (frame[name].to_numpy() for name in ("mean", "pi_lower", "pi_upper"))
    return mean, low, high, normal(mean, (high - low) / (2 * WIDTH))


def naive(y, horizon):
    ahead = np.arange(horizon)
    mean = y[len(y) - SEASON + ahead % SEASON]
    deviation = np.sqrt(np.mean((y[SEASON:] - y[:-SEASON]) ** 2) * (1 + ahead // SEASON))
    return mean, mean - WIDTH * deviation, mean + WIDTH * deviation, normal(mean, deviation)


def ours(y, horizon):
    months = (np.datetime64("1900-01") + np.arange(len(y))).astype("datetime64[D]")
    found = mc.forecast(months, y, horizon)
    return found.median, *found.interval(0.95), found.log_density


def normal(mean, deviation):
    return lambda y: -0.5 * ((y - mean) / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept")
    parser.add_argument("--series", type=int)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = Kept(options.kept)
    chosen = list(series())[: options.series]
    methods = {"mercer": ours, "ETS": smoothing, "seasonal naive": naive}
    for name, y, future in chosen:
        scale = float(np.mean(np.abs(y[SEASON:] - y[:-SEASON])))
        for method, call in methods.items():
            key = f"{method}, {name}"
            if key not in kept:
                start = time.process_time()
                middle, low, high, log_density = call(y, len(future))
                taken = time.process_time() - start
                error = float(np.mean(np.abs(future - middle)) / scale)
                density = float(np.mean(log_density(future))) + np.log(scale)  # of values in units of the scale
                covered = int(((low <= future) & (future <= high)).sum())
                kept[key] = [error, covered, len(future), taken, density]
    groups = {"M3": [n for n, *_ in chosen if n not in LONG], **{n: [n] for n, *_ in chosen if n in LONG}}
    groups = {group: names for group, names in groups.items() if names} | {"all": [n for n, *_ in chosen]}
    rows = []
    for group, names in groups.items():
        for method in methods:
            found = np.array([kept[f"{method}, {name}"] for name in names])
            rows.append([
                group, method, f"{found[:, 0].mean():.3f}", f"{found[:, 1].sum() / found[:, 2].sum():.1%}",
                f"{found[:, 4].mean():.2f}", f"{found[:, 3].mean():.1f}",
            ])  # fmt: skip
    head = ["series", "method", "MASE", "coverage of 95% intervals", "log density", "seconds of processor"]
    lines = table(head, rows)
    print("\n".join(lines))
    if options.write:
        keep(
            "forecasting",
            "Forecasts beside exponential smoothing and the last season",
            "python benchmarks/forecasting.py",
            lines,
        )


if __name__ == "__main__":
    main()
