"""The page Usage: GPU-hours of the last days, by day and by namespace, from the records of usage.

A viewer sees the part of the namespaces whose pods the viewer may list, as on all pages. The records are read and
summed up beside the requests, since they may be large; until then, and where there are none, the page says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from hami.codec.usage_sums import DAY_S, HOUR_S, HeldAmounts, date_of
from hami.dashboard.access import Scope
from hami.dashboard.caches import Poller, PollLimits
from hami.errors import HamiError
from hami.inspect.read_usage import UsageReader
from hami.inspect.tables import OutputRecord
from hami.inspect.usage import gpu_hours
from hami.kube.pages import Requester

log = logging.getLogger(__name__)

DAYS = 14
MAX_NAMESPACES = 100  # that are shown
LIMITS = PollLimits(interval=300.0, shown=3600.0, viewed=900.0, values=1, at_once=1)
OFF, UNREAD, SHOWN = "off", "unread", "shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDays:
    """The sums of the last days. *settled*: until when, in Unix seconds. *dates*: oldest first. *held*: of each
    namespace, by date."""

    settled: int
    dates: tuple[str, ...]
    held: Mapping[str, Mapping[str, HeldAmounts]]


class UsageItem(OutputRecord, frozen=True):
    """The hours of whole devices, by the larger share of memory and cores. *name*: a date in UTC, or a namespace."""

    name: str
    gpu_hours: float
    gib_hours: float


class UsagePage(OutputRecord, frozen=True):
    """*state*: ``shown``; ``off`` without records, ``unread`` until they are read, or if they cannot be. *settled*:
    until when all is recorded, in Unix seconds. *days*: oldest first. *namespaces*: greatest first; *others*: how many
    more there are."""

    state: str
    settled: int = 0
    days: tuple[UsageItem, ...] = ()
    namespaces: tuple[UsageItem, ...] = ()
    others: int = 0


def read_days(request: Requester, namespace: str) -> RecordedDays:
    """Returns the last days of the records in *namespace*. Raises: HamiError."""

    def note(text: str) -> None:
        log.warning("record of usage left out", extra={"problem": text})

    reader = UsageReader(request, namespace, note)
    sums = reader.current()
    first = max(0, sums.day.start - (DAYS - 1) * DAY_S)
    held: dict[str, dict[str, HeldAmounts]] = {}
    for day in reader.days(sums, first, with_owners=False):
        for key, amounts in day.sums().items():
            by_date = held.setdefault(key.namespace, {})
            by_date[day.date] = by_date.get(day.date, HeldAmounts()).plus(amounts)
    dates = tuple([date_of(start) for start in range(first, sums.day.start + 1, DAY_S)])
    return RecordedDays(settled=sums.settled, dates=dates, held=held)


def usage_poller(request: Requester, *, clock: Callable[[], float]) -> Poller[str, RecordedDays]:
    """Returns the days that are viewed, by the namespace of the records."""
    return Poller("usage", partial(_read_days, request), LIMITS, clock=clock)


def _read_days(request: Requester, namespace: str) -> RecordedDays:
    try:
        return read_days(request, namespace)
    except HamiError as error:
        # the page refers to this line
        log.warning("records of usage cannot be read", extra={"error": str(error)})
        raise


class UsageView:
    """Makes the page. *view*: returns the days of the records in *recorded_in*, a namespace, which is empty if nothing
    is recorded."""

    def __init__(self, recorded_in: str, view: Callable[[str], RecordedDays | None]) -> None:
        self._recorded_in = recorded_in
        self._view = view

    def page(self, scope: Scope) -> UsagePage:
        """Returns what the namespaces of *scope* have held."""
        if not self._recorded_in:
            return UsagePage(OFF)
        recorded = self._view(self._recorded_in)
        if recorded is None:
            return UsagePage(UNREAD)
        by_day = dict.fromkeys(recorded.dates, HeldAmounts())
        items = []
        for namespace, by_date in recorded.held.items():
            if namespace not in scope:
                continue
            total = HeldAmounts()
            for date, amounts in by_date.items():
                by_day[date] = by_day[date].plus(amounts)
                total = total.plus(amounts)
            items.append(_item(namespace, total))
        items.sort(key=lambda item: (-item.gpu_hours, item.name))
        return UsagePage(
            SHOWN,
            recorded.settled,
            tuple([_item(date, amounts) for date, amounts in by_day.items()]),
            tuple(items[:MAX_NAMESPACES]),
            len(items[MAX_NAMESPACES:]),
        )


def _item(name: str, amounts: HeldAmounts) -> UsageItem:
    hours = round(gpu_hours(amounts, "dominant"), 1)
    return UsageItem(name, hours, round(amounts.memory_mib / 1024 / HOUR_S))


NO_USAGE = UsageView("", lambda namespace: None)
"""The page without records."""
