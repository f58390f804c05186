"""Times as the API server has them."""

import pytest
from pytest import param

from hami.codec.times import parse_time


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
