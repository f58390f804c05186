"""Times as the Kubernetes API writes them: RFC 3339, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from hami.quantity import parse_integer

LATEST = 1 << 36  # Unix seconds, in the year 4147; a datetime ends with the year 9999


def render_time(at: datetime) -> str:
    """*at* as a Time, in whole seconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def render_micro_time(at: datetime) -> str:
    """*at* as a MicroTime, with microseconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def parse_time(text: str) -> int:
    """A Time in Unix seconds; 0 if *text* is none."""
    try:
        return int(datetime.fromisoformat(text).timestamp()) if text else 0
    except (ValueError, OverflowError):
        return 0


def parse_unix(text: str) -> int:
    """Unix seconds as annotations have them; 0 if *text* is none, or none before LATEST."""
    seconds = parse_integer(text, bits=64)
    return seconds if seconds is not None and 0 < seconds < LATEST else 0
