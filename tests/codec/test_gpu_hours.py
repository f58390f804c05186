"""Budgets of GPU-hours: their text, and the windows for which they are."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.gpu_hours import DAY, MONTH, PERIODS, WEEK, GpuHours, parse_gpu_hours, window_of
from hami.codec.usage_sums import DAY_S
from hami.errors import MalformedInput
from testing.cases import cases


@cases(
    "text, milli, period",
    ("500/week", 500_000, WEEK),
    ("12.5/day", 12_500, DAY),
    ("0.001/month", 1, MONTH),
    ("0.100/day", 100, DAY),
    ("007/day", 7_000, DAY),
    ("999999999.999/month", 999_999_999_999, MONTH),
)
def test_text_to_budget(text, milli, period):
    assert parse_gpu_hours(text) == GpuHours(milli, period)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "500",
        "/week",
        "500/",
        "500/year",
        "500/Week",
        "500 / week",
        "500/week\n",
        " 500/week",
        "0/week",
        "0.000/week",
        "-1/week",
        "+1/week",
        "1e3/week",
        "1,000/week",
        ".5/week",
        "5./week",
        "0.0001/week",
        "1000000000/week",
        "٣/week",
        "nan/week",
        "9" * 100_000 + "/week",
    ],
)
def test_other_text_is_refused_with_the_valid_forms(text):
    with pytest.raises(
        MalformedInput, match=r"hami.io/gpu-hours: expected .* such as 500/week"
    ) as error:
        parse_gpu_hours(text)
    assert len(str(error.value)) < 300


@given(st.integers(1, 10**12 - 1), st.sampled_from(PERIODS))
def test_a_budget_is_read_as_it_is_written(milli, period):
    budget = GpuHours(milli, period)
    assert parse_gpu_hours(str(budget)) == budget


def seconds(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@cases(
    "period, now, start, end",
    ("day", DAY, "2026-11-28T13:00", "2026-11-28", "2026-11-29"),
    ("first second", DAY, "2026-11-28T00:00:00", "2026-11-28", "2026-11-29"),
    ("last second", DAY, "2026-11-28T23:59:59", "2026-11-28", "2026-11-29"),
    ("Sunday night", WEEK, "2026-11-29T23:59:59", "2026-11-23", "2026-11-30"),
    ("Monday", WEEK, "2026-11-30T00:00:00", "2026-11-30", "2026-12-07"),
    ("week of two years", WEEK, "2027-01-01T12:00", "2026-12-28", "2027-01-04"),
    ("November", MONTH, "2026-11-30T23:59:59", "2026-11-01", "2026-12-01"),
    ("December", MONTH, "2026-12-31T12:00", "2026-12-01", "2027-01-01"),
    ("February", MONTH, "2026-02-28T23:59:59", "2026-02-01", "2026-03-01"),
    ("leap day", MONTH, "2028-02-29T12:00", "2028-02-01", "2028-03-01"),
    ("January has 31 days", MONTH, "2026-01-31T12:00", "2026-01-01", "2026-02-01"),
)
def test_windows(period, now, start, end):
    assert window_of(period, seconds(now)) == (seconds(start), seconds(end))


@given(st.sampled_from(PERIODS), st.integers(0, 2**36 - 1))
def test_windows_are_whole_days_that_follow_each_other(period, now):
    window = window_of(period, now)
    assert window.start % DAY_S == 0
    assert window.end % DAY_S == 0
    assert window.start - 4 * DAY_S <= now < window.end
    assert window_of(period, window.end).start == window.end
    assert window_of(period, window.end - 1) == window
