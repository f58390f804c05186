"""Durations, read and written as Go does."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.durations import parse_duration, render_duration
from hami.errors import MalformedInput


@pytest.mark.parametrize("text, seconds", [
    ("0", 0), ("+0", 0), ("0s", 0), ("28s", 28), ("5m", 300), ("5m0s", 300), ("2m0s", 120),
    ("1h2m", 3720), ("1h2m3s", 3723),
    ("1.5h", 5400), (".5s", 0.5), ("1.s", 1), ("-1m30s", -90), ("100ms", 0.1), ("1500us", 0.0015), ("3µs", 0.000003),
    ("3μs", 0.000003), ("999ns", 0), ("1s1s", 2), ("1m1h", 3660), ("2562047h47m16s", 9223372036),
])
def test_text_to_duration(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", [
    "", " ", "5", "5 m", "m", ".s", "5x", "5d", "--5s", "1h 2m",
    "5m\n", "1e3s", "five", "٣s", "99999999999h", "2562047h47m17s",
])
def test_anything_else_is_refused_with_its_text(text):
    with pytest.raises(MalformedInput) as caught:
        parse_duration(text)
    assert (caught.value.field, caught.value.text) == ("duration", text)


@pytest.mark.parametrize("seconds, text", [
    (0, "0s"), (28, "28s"), (60, "1m0s"), (120, "2m0s"), (300, "5m0s"), (3600, "1h0m0s"), (3723, "1h2m3s"),
    (90.25, "1m30.25s"),
    (1.5, "1.5s"), (0.02, "20ms"), (0.0015, "1.5ms"), (0.000003, "3µs"), (-300, "-5m0s"), (-0.5, "-500ms"),
    (86400 * 3, "72h0m0s"),
])
def test_duration_to_text(seconds, text):
    assert render_duration(timedelta(seconds=seconds)) == text


@given(st.timedeltas(min_value=timedelta(days=-90_000), max_value=timedelta(days=90_000)))
def test_round_trip(duration):
    assert parse_duration(render_duration(duration)) == duration
