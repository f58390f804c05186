"""Durations, read as Go does."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.durations import parse_duration, render_duration
from hami.errors import MalformedInput
from testing.cases import cases


@cases(
    "text, seconds",
    ("0", 0),
    ("+0", 0),
    ("0s", 0),
    ("28s", 28),
    ("5m", 300),
    ("5m0s", 300),
    ("2m0s", 120),
    ("1h2m", 3720),
    ("1h2m3s", 3723),
    ("1.5h", 5400),
    (".5s", 0.5),
    ("1.s", 1),
    ("-1m30s", -90),
    ("100ms", 0.1),
    ("1500us", 0.0015),
    ("3µs", 0.000003),
    ("3μs", 0.000003),
    ("999ns", 0),
    ("1s1s", 2),
    ("1m1h", 3660),
    ("2562047h47m16s", 9223372036),
)
def test_text_to_duration(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "5 m",
        "m",
        ".s",
        "5x",
        "5d",
        "--5s",
        "1h 2m",
        "5m\n",
        "1e3s",
        "five",
        "٣s",
        "99999999999h",
        "2562047h47m17s",
    ],
)
def test_anything_else_is_refused_with_its_text(text):
    with pytest.raises(MalformedInput) as caught:
        parse_duration(text)
    assert (caught.value.field, caught.value.text) == ("duration", text)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=40_000)))
def test_the_notation_of_the_help_is_read(duration):
    assert parse_duration(render_duration(duration)) == duration


@cases(
    "seconds, text",
    (0, "0"),
    (0.9, "900ms"),
    (1.5, "1s500ms"),
    (300, "5m"),
    (5401, "1h30m1s"),
    (90 * 86_400, "2160h"),
)
def test_the_help_leaves_out_units_that_are_zero(seconds, text):
    assert render_duration(timedelta(seconds=seconds)) == text
