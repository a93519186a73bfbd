"""Forecasts: times that continue, known patterns found again, bad input refused."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer as mc
from mercer import kernels as k
from mercer.core import calendar

MONTHS = (np.datetime64("2015-01") + np.arange(48)).astype("datetime64[D]")
RNG = np.random.default_rng(0)
VALUES = np.exp(3 + 0.01 * np.arange(48) + 0.3 * np.sin(np.pi * np.arange(48) / 6) + 0.03 * RNG.normal(size=48))


@pytest.fixture(scope="module")
def found():
    y = VALUES.copy()
    y[7] = np.nan
    order = RNG.permutation(48)
    return mc.forecast(MONTHS[order], y[order], 12)


def test_a_known_pattern_is_continued(found):
    assert found.times.astype("datetime64[D]").tolist()[:2] == [datetime.date(2019, 1, 1), datetime.date(2019, 2, 1)]
    truth = np.exp(3 + 0.01 * np.arange(48, 60) + 0.3 * np.sin(np.pi * np.arange(48, 60) / 6))
    assert np.abs(np.log(found.mean / truth)).max() < 0.15
    low, high = found.interval()
    assert (low < truth).all()
    assert (truth < high).all()
    assert "season" in found.chosen.terms
    assert found.log
    assert "1 missing values are gaps" in str(found)
    assert sum(each.weight for each in found.candidates) == pytest.approx(1.0)
    assert set(found.components) == set(found.chosen.terms)
    assert all(mean.shape == (59,) for mean, _ in found.components.values())


def test_a_period_of_numbers_is_learned_and_two_are_tried(monkeypatch):
    monkeypatch.setattr("mercer.models.forecast.TRENDS", (("wander",),))
    t = np.arange(48.0)
    y = 3 * np.sin(2 * np.pi * t / 7.3) + np.sin(2 * np.pi * t / 12) + 0.2 * np.random.default_rng(1).normal(size=48)
    found = mc.forecast(t, y, 12, log=False, average=False)
    ahead = np.arange(48.0, 60.0)
    assert set(found.components) == set(found.chosen.terms)
    assert len([term for term in found.chosen.terms if term.startswith("season")]) == 2
    error = found.mean - 3 * np.sin(2 * np.pi * ahead / 7.3) - np.sin(2 * np.pi * ahead / 12)
    assert np.sqrt(np.mean(error**2)) < 0.5


def test_quantiles_are_those_of_the_average(found):
    q = np.array([0.1, 0.5, 0.9])
    at = np.stack([found.quantile(level) for level in q])
    share = sum(
        each.weight * np.stack([each.model.predict_distribution(found._inputs).cdf(np.log(x) if each.log else x)
                                for x in at])
        for each in found.candidates if each.weight
    )  # fmt: skip
    np.testing.assert_allclose(share, q[:, None] + np.zeros(12), atol=1e-6)


def test_a_constant_series_goes_on():
    found = mc.forecast(np.arange(30), np.full(30, 5.0), 3)
    assert found.mean == pytest.approx(5.0, abs=1e-4)
    assert found.deviation.max() < 1e-3
    assert found.times.tolist() == [30, 31, 32]


def test_moments_with_a_time_zone_are_those_of_its_clocks():
    from mercer.models.forecast import _wall_clock

    days = pd.date_range("2020-03-20", periods=20, freq="D", tz="Europe/Berlin")  # the clock is changed within
    polars = pl.Series(days.tz_localize(None).to_numpy()).dt.replace_time_zone("Europe/Berlin")
    for given in (days, pd.Series(days), polars, list(days), list(days.to_pydatetime())):
        times, zone = _wall_clock(given)
        assert zone == "Europe/Berlin"
        assert np.array_equal(calendar.as_dates(calendar.decimal_years(np.asarray(times, "datetime64[us]"))),
                              days.tz_localize(None).to_numpy())  # fmt: skip
    assert _wall_clock(MONTHS) == (MONTHS, None)
    found = mc.forecast(days, np.arange(20.0), 2, period=None)
    assert [str(time) for time in found.times] == ["2020-04-09T00:00:00", "2020-04-10T00:00:00"]
    assert "times are those of clocks in Europe/Berlin" in str(found)


def test_the_density_is_the_slope_of_the_distribution(found):
    y = found.quantile(0.7)
    up, down = found._spread.cdf((y + 1e-4)[None])[0], found._spread.cdf((y - 1e-4)[None])[0]
    np.testing.assert_allclose(np.exp(found.log_density(y)), (up - down) / 2e-4, rtol=1e-5)
    below = found.log_density(-y)
    assert np.isneginf(below).all() == all(each.log for each in found.candidates if each.weight)


def test_months_end_where_they_end():
    ends = (np.datetime64("2019-02") + np.arange(1, 14)).astype("datetime64[D]") - 1
    from mercer.models.forecast import _future

    t = calendar.decimal_years(ends)
    ahead = calendar.as_dates(_future(t, float(np.median(np.diff(t))), True, 3)).astype("datetime64[D]")
    assert [str(d) for d in ahead] == ["2020-03-31", "2020-04-30", "2020-05-31"]


def test_working_days_go_on_without_weekends():
    from mercer.models.forecast import _future

    days = pd.bdate_range("2024-01-02", periods=18).to_numpy()  # until a Thursday
    t = calendar.decimal_years(np.delete(days, 4))  # a holiday
    ahead = calendar.as_dates(_future(t, float(np.median(np.diff(t))), True, 7))
    expected = pd.bdate_range(days[-1], periods=8)[1:].to_numpy()
    assert np.array_equal(ahead.astype("datetime64[D]"), expected.astype("datetime64[D]"))
    every = calendar.decimal_years(np.arange("2024-01-02", "2024-01-26", dtype="datetime64[D]"))
    ahead = calendar.as_dates(_future(every, float(np.median(np.diff(every))), True, 2)).astype("datetime64[D]")
    assert [str(d) for d in ahead] == ["2024-01-26", "2024-01-27"]


def test_text_that_is_a_date_is_read():
    text = ["2020-01-31", " 2020-02-29 12:00", None]
    for given in (text, pd.Series(text), pl.Series(text), np.array(text, dtype=object)):
        found = calendar.from_text(given, "times")
        assert np.array_equal(found[:2], np.array(["2020-01-31", "2020-02-29T12"], dtype="datetime64[us]"))
        assert np.isnat(found[2])
    assert calendar.from_text([1.0, 2.0], "times") == [1.0, 2.0]
    with pytest.raises(mc.DataError, match="31/12/2020.*dayfirst"):
        mc.forecast(["31/12/2020"] * 5, np.ones(5), 1)


@pytest.mark.parametrize(
    ("times", "y", "horizon", "says"),
    [
        (MONTHS, VALUES, 0, "horizon"),
        (MONTHS[:3], VALUES[:3], 2, "at least 4"),
        ([1.0, 2.0, 3.0, np.nan], np.ones(4), 2, "missing"),
        (np.arange(5.0), [1.0, 2.0, np.inf, 1.0, 1.0], 2, "infinite"),
        (np.arange(5.0), [1.0], 2, "one value"),
    ],
)
def test_bad_input_is_refused(times, y, horizon, says):
    with pytest.raises(mc.MercerError, match=says):
        mc.forecast(times, y, horizon)


def test_all_containers_of_dates_are_decimal_years():
    days = [datetime.date(2020, 1, 1), datetime.date(2020, 7, 1), datetime.date(2021, 1, 1)]
    K = k.RBF(0.5)(np.array(days, dtype="datetime64[D]"))
    assert K[0, 2] == pytest.approx(np.exp(-0.5 * (366 / 365.25 / 0.5) ** 2))
    stamps = pd.to_datetime(days)
    for given in (
        days,
        stamps,
        pd.Series(stamps),
        pd.DataFrame({"d": stamps}),
        pl.Series(days),
        pl.DataFrame({"d": days}),
    ):
        np.testing.assert_allclose(k.RBF(0.5)(given), K, rtol=1e-12)


def test_calendar_counts_agree_with_datetime():
    moments = [datetime.datetime(1899, 12, 31, 6), datetime.datetime(2000, 2, 29, 12), datetime.datetime(2023, 3, 31)]
    years = calendar.decimal_years(calendar.from_objects(moments))
    for moment, year, month, week in zip(
        moments, *(calendar.count(each, years) for each in ("year", "month", "week")), strict=True
    ):
        start, end = datetime.datetime(moment.year, 1, 1), datetime.datetime(moment.year + 1, 1, 1)
        assert year == pytest.approx(moment.year + (moment - start) / (end - start), abs=1e-9)
        first = moment.replace(day=1, hour=0)
        length = (first + datetime.timedelta(days=32)).replace(day=1) - first
        assert month == pytest.approx(12 * moment.year + moment.month - 1 + (moment - first) / length, abs=1e-7)
        assert week % 1 == pytest.approx((moment.weekday() + moment.hour / 24) / 7, abs=1e-7)


def test_the_plot_has_a_panel_for_each_component(found):
    axes = mc.plot.forecast(found)
    assert len(axes) == 1 + len(found.components)
    axes[0].figure.savefig("/dev/null", format="png")
