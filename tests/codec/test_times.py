"""Times as the API server has them."""

from hami.codec.times import LATEST, parse_time, parse_unix
from testing.cases import cases


@cases(
    "text, seconds",
    ("UTC", "2026-08-21T10:00:00Z", 1787306400),
    ("another zone", "2026-08-21T12:00:00+02:00", 1787306400),
    ("with microseconds", "2026-08-21T10:00:00.999999Z", 1787306400),
    ("none", "", 0),
    ("no time", "yesterday", 0),
)
def test_time(text, seconds):
    assert parse_time(text) == seconds


@cases(
    "text, seconds",
    ("a time", "1787306400", 1787306400),
    ("the last one", str(LATEST - 1), LATEST - 1),
    ("later", str(LATEST), 0),
    ("later than any datetime", "9" * 18, 0),
    ("more digits than Python reads", "9" * 5000, 0),
    ("negative", "-1", 0),
    ("none", "", 0),
    ("no number", "soon", 0),
)
def test_unix_seconds(text, seconds):
    assert parse_unix(text) == seconds
