"""The ledger of who held how much of the devices: sums that grow with time, from the Binding of a pod to its end.

A key's sum grows by what its pods hold in each second, so an event costs no more with many pods, and a checkpoint no
more than there are keys. A checkpoint says that all until a moment is in it. Who takes over needs nothing else: of each
pod it counts only what lies after that moment, so no second is counted twice, whoever else has counted before.

All is in whole numbers and Unix seconds. It is plain data: its owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec

from hami.codec.usage_sums import (
    DAY_S,
    HOUR_S,
    NOTHING_HELD,
    OTHERS,
    HeldAmounts,
    OwnerKey,
    TotalKey,
    UsageDay,
    UsageGap,
    UsageKey,
    UsageSums,
    day_start,
    total_key,
)

_Key = TypeVar("_Key")

MAX_KEYS = 4000
"""Keys of a day; the pods of others are summed up by namespace and vendor, and beyond twice as many all together."""
MAX_OWNERS = 5000
"""Workloads of a day; all others are one."""
MAX_PARTS = 16_384
"""Records of what pods hold that are shared by those that begin later."""
MAX_ENDED = 31
"""Days that have ended and wait until they are kept elsewhere."""
GAP_S = 15 * 60
"""A longer time in which nobody recorded is shown: pods may have come and gone."""
MAX_GAP_S = 31 * DAY_S
"""Of a longer one only the end is counted."""

_ALL_OTHERS = UsageKey(OTHERS, OTHERS, OTHERS, OTHERS, OTHERS)
_NO_HOURS: Mapping[int, HeldAmounts] = {}
_OTHER_OWNERS = OwnerKey(OTHERS, OTHERS, OTHERS, OTHERS, OTHERS)


class HeldDevices(NamedTuple):
    """The devices of a pod, and for whom it holds them. *owner*: kind and name of its workload."""

    owner: tuple[str, str]
    parts: tuple[tuple[UsageKey, HeldAmounts], ...]


class HeldInterval(NamedTuple):
    """The devices of a pod from a moment to another. *end*: ``None`` while it holds it."""

    uid: str
    held: HeldDevices
    begin: int
    end: int | None = None


class _Part(NamedTuple):
    key: UsageKey
    owner: OwnerKey
    amounts: HeldAmounts


class _Open(msgspec.Struct, frozen=True, gc=False):
    since: int
    parts: tuple[_Part, ...]


class _Change(NamedTuple):
    """From *at* on, *parts* are held (*sign* 1), or no longer (-1)."""

    at: int
    sign: int
    parts: tuple[_Part, ...]


class Ledger:
    """Sums until the moment *settled*, and what changes after it."""

    def __init__(self, sums: UsageSums, gap: UsageGap | None = None) -> None:
        """*gap*: in which nobody recorded, until now."""
        self.settled = sums.settled
        day = sums.day
        self._start = day.start
        self._recorded_from = day.recorded_from
        self._totals: dict[TotalKey, list[int]] = _lists(sums.totals)
        # of hours before the current one; inner mappings are replaced and never changed, since days share them
        self._hours: dict[UsageKey, Mapping[int, HeldAmounts]] = dict(day.hours)
        self._hour: dict[UsageKey, list[int]] = {}
        self._owners: dict[OwnerKey, list[int]] = _lists(day.owners)
        self._gaps = [*day.gaps, gap] if gap else list(day.gaps)
        self._rates: dict[UsageKey, list[int]] = {}
        self._owner_rates: dict[OwnerKey, list[int]] = {}
        self._open: dict[str, _Open] = {}
        self._parts: dict[HeldDevices, tuple[_Part, ...]] = {}  # of pods that have begun today
        self._changes: list[_Change] = []  # after the moment that is settled
        self._ended: list[UsageDay] = []

    def begin(self, uid: str, held: HeldDevices, at: int) -> None:
        """Records that the pod holds devices since *at*. What lies before the settled moment is in the sums already."""
        if uid in self._open:
            return
        since = max(at, self.settled)
        parts = self._parts_of(held)
        self._open[uid] = _Open(since, parts)
        self._changes.append(_Change(since, 1, parts))

    def end(self, uid: str, at: int) -> None:
        """Records that the pod has held devices until *at*. What was written is not taken back: an end before the
        settled moment counts as one at that moment."""
        pod = self._open.pop(uid, None)
        if pod is not None:
            until = max(at, pod.since, self.settled)
            self._changes.append(_Change(until, -1, pod.parts))

    def checkpoint(self, until: int) -> UsageSums:
        """Settles all until a moment, and returns the sums; nothing is settled anew if the moment has passed."""
        self._settle(until)
        return UsageSums(settled=self.settled, totals=_amounts(self._totals), day=self._day())

    def ended_days(self) -> list[UsageDay]:
        """Returns the days that have ended and have not been dropped, oldest first."""
        return list(self._ended)

    def drop_days(self, days: Iterable[UsageDay]) -> None:
        """Forgets *days*, which are kept elsewhere."""
        for day in days:
            if day in self._ended:
                self._ended.remove(day)

    def _parts_of(self, held: HeldDevices) -> tuple[_Part, ...]:
        """Returns the parts of what a pod holds; pods of one workload share them."""
        parts = self._parts.get(held)
        if parts is None:
            if len(self._parts) >= MAX_PARTS:
                self._parts.clear()
            made = [self._part(held, key, amounts) for key, amounts in held.parts]
            parts = self._parts[held] = tuple(made)
        return parts

    def _part(self, held: HeldDevices, key: UsageKey, amounts: HeldAmounts) -> _Part:
        """Returns a part with keys of which there are not too many."""
        owner = OwnerKey(key.namespace, *held.owner, key.vendor, key.model)
        if owner not in self._owners and len(self._owners) >= MAX_OWNERS:
            owner = _OTHER_OWNERS
        if key not in self._hours and len(self._hours) >= MAX_KEYS:
            key = UsageKey(key.namespace, key.vendor, OTHERS, OTHERS, OTHERS)
            if key not in self._hours and len(self._hours) >= 2 * MAX_KEYS:
                key = _ALL_OTHERS
        self._hours.setdefault(key, _NO_HOURS)
        self._owners.setdefault(owner, list(NOTHING_HELD))
        return _Part(key, owner, amounts)

    def _settle(self, until: int) -> None:
        changes = sorted(self._changes, key=attrgetter("at"))
        position = 0
        while self.settled < until:
            end = min(until, self.settled - self.settled % HOUR_S + HOUR_S)
            first = position
            while position < len(changes) and changes[position].at <= end:
                position += 1
            self._add(changes[first:position], end)
            self._keep_hour()
            self.settled = end
            if end % DAY_S == 0:
                self._end_day()
        self._changes = changes[position:]

    def _add(self, changes: Iterable[_Change], end: int) -> None:
        """Adds what is held from the settled moment to *end*, in one hour, in which *changes* lie."""
        seconds = end - self.settled
        for key, rate in self._rates.items():
            _add_to(self._hour.setdefault(key, list(NOTHING_HELD)), rate, seconds)
        for owner, rate in self._owner_rates.items():
            _add_to(self._owners[owner], rate, seconds)
        for change in changes:
            self._change(change, end - change.at)
        self._rates = _without_zeros(self._rates)
        self._owner_rates = _without_zeros(self._owner_rates)

    def _change(self, change: _Change, seconds: int) -> None:
        """Makes the rates those of after *change*, *seconds* before the end of the time that is added."""
        for part in change.parts:
            of_hour = self._hour.setdefault(part.key, list(NOTHING_HELD))
            of_owner = self._owners.setdefault(part.owner, list(NOTHING_HELD))
            rate = self._rates.setdefault(part.key, list(NOTHING_HELD))
            owner_rate = self._owner_rates.setdefault(part.owner, list(NOTHING_HELD))
            _add_to(of_hour, part.amounts, change.sign * seconds)
            _add_to(of_owner, part.amounts, change.sign * seconds)
            _add_to(rate, part.amounts, change.sign)
            _add_to(owner_rate, part.amounts, change.sign)

    def _keep_hour(self) -> None:
        """Adds what has been settled at last to the sums of its hour."""
        hour = self.settled % DAY_S // HOUR_S
        for key, sums in self._hour.items():
            if any(sums):
                hours = self._hours.get(key, _NO_HOURS)
                amounts = hours.get(hour, NOTHING_HELD).plus(HeldAmounts(*sums))
                self._hours[key] = {**hours, hour: amounts}
        self._hour = {}

    def _end_day(self) -> None:
        """Begins the next day, with what is held at its beginning."""
        day = self._day()
        self._ended = [*self._ended[1 - MAX_ENDED :], day]
        for key, amounts in day.sums().items():
            total = total_key(key)
            _add_to(self._totals.setdefault(total, list(NOTHING_HELD)), amounts, 1)
        self._start = self._recorded_from = self.settled
        self._gaps = [gap for gap in self._gaps if gap.end > self.settled]
        self._parts.clear()
        self._hours = dict.fromkeys(self._rates, _NO_HOURS)
        self._owners = {key: list(NOTHING_HELD) for key in self._owner_rates}
        self._fold_totals()

    def _fold_totals(self) -> None:
        """Sums up the smallest totals, if there are too many."""
        if len(self._totals) <= 2 * MAX_KEYS:
            return
        by_size = sorted(
            self._totals, key=lambda key: (-HeldAmounts(*self._totals[key]).share, key)
        )
        others = self._totals.setdefault(total_key(_ALL_OTHERS), list(NOTHING_HELD))
        for key in by_size[2 * MAX_KEYS - 1 :]:
            if key != total_key(_ALL_OTHERS):
                _add_to(others, self._totals.pop(key), 1)

    def _day(self) -> UsageDay:
        hours = {}
        for key, by_hour in self._hours.items():
            if by_hour:
                hours[key] = by_hour
        end = min(self._start + DAY_S, self.settled)
        gaps = []
        for gap in self._gaps:
            if gap.start < end and gap.end > self._start:
                gaps.append(UsageGap(max(gap.start, self._start), min(gap.end, end)))
        return UsageDay(
            start=self._start,
            recorded_from=self._recorded_from,
            hours=hours,
            owners=_amounts(_without_zeros(self._owners)),
            gaps=tuple(gaps),
        )


def fresh_sums(now: int) -> UsageSums:
    """Returns the sums of a ledger that begins *now*."""
    return UsageSums(settled=now, day=UsageDay(start=day_start(now), recorded_from=now))


def resumed(sums: UsageSums, now: int, pods: Iterable[HeldInterval]) -> Ledger:
    """Returns the ledger that goes on from *sums*, the checkpoint of another leader.

    *pods*: what pods hold, and what has ended of late. What lies before the checkpoint is in it.
    """
    gap = None
    if now - sums.settled > GAP_S:
        gap = UsageGap(sums.settled, now)
    ledger = Ledger(_not_too_old(sums, now), gap)
    for pod in sorted(pods, key=lambda pod: pod.end is None):  # a pod may hold something else now
        if pod.end is not None and pod.end <= ledger.settled:
            continue
        ledger.begin(pod.uid, pod.held, pod.begin)
        if pod.end is not None:
            ledger.end(pod.uid, pod.end)
    return ledger


def _not_too_old(sums: UsageSums, now: int) -> UsageSums:
    """Returns *sums*, or if these are too old their totals as of MAX_GAP_S ago."""
    since = now - MAX_GAP_S
    if sums.settled >= since:
        return sums
    day = UsageDay(start=day_start(since), recorded_from=since)
    return UsageSums(settled=since, totals=sums.counters(), day=day)


def _without_zeros(lists: Mapping[_Key, list[int]]) -> dict[_Key, list[int]]:
    return {key: each for key, each in lists.items() if any(each)}


def _lists(amounts: Mapping[_Key, HeldAmounts]) -> dict[_Key, list[int]]:
    return {key: list(each) for key, each in amounts.items()}


def _amounts(lists: Mapping[_Key, list[int]]) -> dict[_Key, HeldAmounts]:
    return {key: HeldAmounts(*each) for key, each in lists.items()}


def _add_to(sums: list[int], amounts: Iterable[int], times: int) -> None:
    for index, amount in enumerate(amounts):
        sums[index] += amount * times
