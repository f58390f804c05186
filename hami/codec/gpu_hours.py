"""Budgets of GPU-hours: the annotation of a namespace, and the calendar windows in UTC for which they are.

Wire: ``AMOUNT/PERIOD``, such as ``500/week``: a decimal number with at most three digits after the point, and day, week
or month. A week begins on Monday. All windows consist of whole days.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hami.codec.keys import GPU_HOURS
from hami.codec.usage_sums import DAY_S, HOUR_S, day_start
from hami.errors import MalformedInput

DAY, WEEK, MONTH = "day", "week", "month"
PERIODS = (DAY, WEEK, MONTH)
MAX_DAYS = 31
"""Days of the longest window."""
MAX_TEXT = 64
"""Characters of the annotation that are read."""
_FORM = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,3}))?/([a-z]{1,8})")
_MONDAY_S = 4 * DAY_S  # the first one in Unix time: 1970 began on a Thursday
_EXPECTED = "expected GPU-hours for a day, a week or a month, such as 500/week or 12.5/day, below 1000000000"


class GpuHours(NamedTuple):
    """A budget. *milli*: thousandths of GPU-hours, more than 0. *period*: one of PERIODS."""

    milli: int
    period: str

    def __str__(self) -> str:
        return f"{hours_text(self.milli)}/{self.period}"

    @property
    def share_s(self) -> int:
        """The budget in the ledger's unit: thousandths of devices times seconds."""
        return self.milli * HOUR_S


class BudgetWindow(NamedTuple):
    """A day, a week or a month, in Unix seconds."""

    start: int
    end: int


def parse_gpu_hours(text: str) -> GpuHours:
    """The budget in *text*. Raises: MalformedInput."""
    found = _FORM.fullmatch(text)
    if found is None or found[3] not in PERIODS:
        raise MalformedInput(GPU_HOURS, text[:MAX_TEXT], _EXPECTED)
    milli = int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))
    if not milli:
        raise MalformedInput(GPU_HOURS, text, _EXPECTED)
    return GpuHours(milli, found[3])


def window_of(period: str, now: int) -> BudgetWindow:
    """Returns the window in which *now* lies (Unix seconds)."""
    today = day_start(now)
    if period == DAY:
        return BudgetWindow(today, today + DAY_S)
    if period == WEEK:
        start = today - (today - _MONDAY_S) % (7 * DAY_S)
        return BudgetWindow(start, start + 7 * DAY_S)
    first = datetime.fromtimestamp(today, UTC).replace(day=1)
    next_month = (first + timedelta(days=MAX_DAYS)).replace(day=1)
    return BudgetWindow(int(first.timestamp()), int(next_month.timestamp()))


def hours_text(milli: int) -> str:
    """The text of thousandths of hours, without zeros at the end."""
    whole, fraction = divmod(milli, 1000)
    digits = f"{fraction:03}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
