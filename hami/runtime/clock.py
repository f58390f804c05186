"""The time of day."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Returns the time of day, in UTC."""
    return datetime.now(UTC)
