"""Times as the API server has them."""

import pytest
from pytest import param

from hami.codec.times import LATEST, parse_time, parse_unix


@pytest.mark.parametrize(
    "text, seconds",
    [
        param("2026-08-21T10:00:00Z", 1787306400, id="UTC"),
        param("2026-08-21T12:00:00+02:00", 1787306400, id="another zone"),
        param("2026-08-21T10:00:00.999999Z", 1787306400, id="with microseconds"),
        param("", 0, id="none"),
        param("yesterday", 0, id="no time"),
    ],
)
def test_time(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text, seconds",
    [
        param("1787306400", 1787306400, id="a time"),
        param(str(LATEST - 1), LATEST - 1, id="the last one"),
        param(str(LATEST), 0, id="later"),
        param("9" * 18, 0, id="later than any datetime"),
        param("9" * 5000, 0, id="more digits than Python reads"),
        param("-1", 0, id="negative"),
        param("", 0, id="none"),
        param("soon", 0, id="no number"),
    ],
)
def test_unix_seconds(text, seconds):
    assert parse_unix(text) == seconds
