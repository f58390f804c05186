"""Sums over time of who held how much of the devices, and the text in which ConfigMaps keep them.

Wire: ``VERSION:CHECKSUM:PAYLOAD``. The payload is JSON, compressed (zlib) and in base64; the checksum is that of the
JSON. A text that was edited by hand is refused, and so is one of a later version: whoever counts on from a number that
it does not understand would write something that is wrong.

A day has the sums of each of its hours, by namespace, vendor, model, priority class and allocation mode, and beside
them the sums of the day by workload. Sums are whole numbers: amounts times seconds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from hami.codec.documents import decode
from hami.codec.times import LATEST
from hami.errors import MalformedInput

HOUR_S, DAY_S = 3600, 86400
HOURS = 24
OTHERS = "others"
"""Stands for the keys of which there are too many."""
MAX_NAME = 253
"""Characters of a part of a key: no name of Kubernetes is longer."""
MAX_TEXT, MAX_OWNERS_TEXT = 704 * 1024, 256 * 1024
"""Characters of the text of a day, and of that of its workloads. A ConfigMap has at most 1 MiB."""
_VERSION = 1
_MAX_DIGITS = 6  # of a version
_MAX_JSON = 64 * 1024 * 1024  # bytes of what a text may expand to
_MAX_ROWS = 100_000
_MAX_GAPS = 1000
_Name = Annotated[str, Meta(max_length=MAX_NAME)]
_Amount = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Seconds = Annotated[int, Meta(ge=0, lt=LATEST)]


class NewerUsage(MalformedInput):
    """A later version of HAMi has written the text."""


class UsageKey(NamedTuple):
    """The pods that are summed up together."""

    namespace: _Name
    vendor: _Name
    model: _Name
    priority_class: _Name
    allocation_mode: _Name


class TotalKey(NamedTuple):
    """The key of a counter."""

    namespace: _Name
    vendor: _Name
    model: _Name


class OwnerKey(NamedTuple):
    """A workload: the object at the top that owns pods. *model*: of the devices that these hold."""

    namespace: _Name
    kind: _Name
    name: _Name
    vendor: _Name
    model: _Name


class HeldAmounts(NamedTuple):
    """Amounts of devices, or sums of them over time: times seconds."""

    devices: _Amount = 0
    """Devices of which something is held."""
    memory_mib: _Amount = 0
    cores: _Amount = 0
    """Percent of one device."""
    share: _Amount = 0
    """Thousandths of a device: the larger of the shares of its memory and of its cores."""
    memory_share: _Amount = 0
    """Thousandths of the memory of a device."""

    def plus(self, other: HeldAmounts) -> HeldAmounts:
        """Returns the sum."""
        return HeldAmounts(
            self.devices + other.devices,
            self.memory_mib + other.memory_mib,
            self.cores + other.cores,
            self.share + other.share,
            self.memory_share + other.memory_share,
        )


NOTHING_HELD = HeldAmounts()


class UsageGap(NamedTuple):
    """A time, in Unix seconds, in which nobody recorded: pods that came and went then are missing."""

    start: _Seconds
    end: _Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageDay:
    """The sums of one day in UTC."""

    start: int
    """Unix seconds."""
    recorded_from: int = 0
    """When somebody began to record, later than *start* on the first day only; Unix seconds."""
    hours: Mapping[UsageKey, Mapping[int, HeldAmounts]] = field(default_factory=dict)
    """By the hour, 0 to 23; hours without anything are missing."""
    owners: Mapping[OwnerKey, HeldAmounts] = field(default_factory=dict)
    gaps: tuple[UsageGap, ...] = ()

    @property
    def date(self) -> str:
        """Its date, such as 2026-11-28."""
        return date_of(self.start)

    def sums(self) -> dict[UsageKey, HeldAmounts]:
        """Returns the sums of the day."""
        sums = {}
        for key, hours in self.hours.items():
            total = NOTHING_HELD
            for amounts in hours.values():
                total = total.plus(amounts)
            sums[key] = total
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSums:
    """The sums until a moment. All until *settled* is in here, and nothing after it."""

    settled: int
    """Unix seconds."""
    totals: Mapping[TotalKey, HeldAmounts] = field(default_factory=dict)
    """Of all days before *day*."""
    day: UsageDay
    """The day of *settled*, until then."""

    def counters(self) -> dict[TotalKey, HeldAmounts]:
        """Returns the sums since somebody began to record."""
        counters = dict(self.totals)
        for key, amounts in self.day.sums().items():
            total = total_key(key)
            counters[total] = counters.get(total, NOTHING_HELD).plus(amounts)
        return counters


def total_key(key: UsageKey) -> TotalKey:
    """Returns the counter to which *key* belongs."""
    return TotalKey(key.namespace, key.vendor, key.model)


def day_start(seconds: int) -> int:
    """Returns when the day of a moment began in UTC; both in Unix seconds."""
    return seconds - seconds % DAY_S


def date_of(seconds: int) -> str:
    """Returns the date in UTC of a moment in Unix seconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def parse_date(text: str) -> int | None:
    """When the day of a date such as 2026-11-28 began, in Unix seconds; ``None`` if *text* is none."""
    try:
        days = date.fromisoformat(text) - date(1970, 1, 1)
    except ValueError:
        return None
    seconds = days // timedelta(seconds=1)
    return seconds if 0 <= seconds < LATEST and date_of(seconds) == text else None


_Rows = Meta(max_length=_MAX_ROWS)
_Gaps = Annotated[tuple[UsageGap, ...], Meta(max_length=_MAX_GAPS)]


class _HourRow(msgspec.Struct, array_like=True):
    key: UsageKey
    first: Annotated[int, Meta(ge=0, lt=HOURS)]
    sums: Annotated[list[HeldAmounts], Meta(max_length=HOURS)]


class _TotalRow(msgspec.Struct, array_like=True):
    key: TotalKey
    sum: HeldAmounts


class _OwnerRow(msgspec.Struct, array_like=True):
    key: OwnerKey
    sum: HeldAmounts


class _Usage(msgspec.Struct, rename="camel"):
    start: _Seconds
    recorded_from: _Seconds
    hours: Annotated[list[_HourRow], _Rows]
    gaps: _Gaps = ()
    settled: _Seconds = 0
    totals: Annotated[list[_TotalRow], _Rows] = []


class _Owners(msgspec.Struct):
    start: _Seconds
    owners: Annotated[list[_OwnerRow], _Rows]


_USAGE = msgspec.json.Decoder(_Usage)
_OWNERS = msgspec.json.Decoder(_Owners)


def render_usage(sums: UsageSums, limit: int = MAX_TEXT) -> str:
    """The text of *sums*, without the workloads. Where it would be longer than *limit*, the smallest keys become
    OTHERS."""
    return _render_within(sums.day, limit, sums)


def render_day(day: UsageDay, limit: int = MAX_TEXT) -> str:
    """The text of a day that has ended, without the workloads; short as that of `render_usage`."""
    return _render_within(day, limit, None)


def render_owners(day: UsageDay, limit: int = MAX_OWNERS_TEXT) -> str:
    """The text of the workloads of *day*. Where it would be longer than *limit*, the smallest ones become OTHERS."""
    owners = day.owners
    while True:
        rows = [_OwnerRow(key, amounts) for key, amounts in sorted(owners.items())]
        text = _pack(_Owners(day.start, rows))
        if len(text) <= limit or len(owners) <= 1:
            return text
        owners = _fold_owners(owners, len(owners) * 3 // 4 - 1)


def parse_usage(text: str) -> UsageSums:
    """The sums in the text of `render_usage`, without workloads.

    Raises: MalformedInput, which is NewerUsage for a text of a later version.
    """
    wire = decode("usage", _USAGE, _unpack(text))
    day = _day(wire)
    if day_start(wire.settled) != day.start:
        raise MalformedInput("usage", wire.settled, f"expected a time of {day.date}")
    totals = {row.key: row.sum for row in wire.totals}
    return UsageSums(settled=wire.settled, totals=totals, day=day)


def parse_day(text: str) -> UsageDay:
    """The day in the text of `render_day`, or in that of `render_usage`. Raises: as `parse_usage`."""
    return _day(decode("usage of a day", _USAGE, _unpack(text)))


def parse_owners(text: str) -> tuple[int, dict[OwnerKey, HeldAmounts]]:
    """The start of the day and the workloads in the text of `render_owners`. Raises: as `parse_usage`."""
    wire = decode("usage of workloads", _OWNERS, _unpack(text))
    return wire.start, {row.key: row.sum for row in wire.owners}


def _render_within(day: UsageDay, limit: int, sums: UsageSums | None) -> str:
    hours = day.hours
    while True:
        wire = _Usage(
            start=day.start,
            recorded_from=day.recorded_from,
            hours=[_hour_row(key, hours[key]) for key in sorted(hours)],
            gaps=day.gaps[-_MAX_GAPS:],
        )
        if sums is not None:
            wire.settled = sums.settled
            wire.totals = [_TotalRow(key, sums.totals[key]) for key in sorted(sums.totals)]
        text = _pack(wire)
        if len(text) <= limit or len(hours) <= 1:
            return text
        hours = _fold_hours(hours, len(hours) * 3 // 4 - 1)


def _hour_row(key: UsageKey, hours: Mapping[int, HeldAmounts]) -> _HourRow:
    first, last = min(hours, default=0), max(hours, default=-1)
    sums = [hours.get(hour, NOTHING_HELD) for hour in range(first, last + 1)]
    return _HourRow(key, first, sums)


def _day(wire: _Usage) -> UsageDay:
    if wire.start % DAY_S:
        raise MalformedInput("usage", wire.start, "expected the beginning of a day")
    hours = {}
    for row in wire.hours:
        by_hour = {}
        for hour, amounts in enumerate(row.sums, row.first):
            if hour >= HOURS:
                raise MalformedInput("usage", hour, "expected at most 24 hours")
            if any(amounts):
                by_hour[hour] = amounts
        hours[row.key] = by_hour
    return UsageDay(
        start=wire.start,
        recorded_from=wire.recorded_from,
        hours=hours,
        gaps=wire.gaps,
    )


def _fold_hours(
    hours: Mapping[UsageKey, Mapping[int, HeldAmounts]], count: int
) -> dict[UsageKey, dict[int, HeldAmounts]]:
    """Returns the *count* largest of *hours*, and the others as one."""
    by_size = sorted(hours, key=lambda key: (-_size(hours[key].values()), key))
    folded = {key: dict(hours[key]) for key in by_size[:count]}
    others = folded.setdefault(UsageKey(*[OTHERS] * len(UsageKey._fields)), {})
    for key in by_size[count:]:
        for hour, amounts in hours[key].items():
            others[hour] = others.get(hour, NOTHING_HELD).plus(amounts)
    return folded


def _fold_owners(owners: Mapping[OwnerKey, HeldAmounts], count: int) -> dict[OwnerKey, HeldAmounts]:
    by_size = sorted(owners, key=lambda key: (-owners[key].share, key))
    folded = {key: owners[key] for key in by_size[:count]}
    others = OwnerKey(*[OTHERS] * len(OwnerKey._fields))
    for key in by_size[count:]:
        folded[others] = folded.get(others, NOTHING_HELD).plus(owners[key])
    return folded


def _size(amounts: Iterable[HeldAmounts]) -> int:
    return sum([each.share for each in amounts])


def _pack(wire: msgspec.Struct) -> str:
    data = msgspec.json.encode(wire)
    payload = base64.b64encode(zlib.compress(data)).decode()
    return f"{_VERSION}:{_checksum(data)}:{payload}"


def _unpack(text: str) -> bytes:
    """Returns the JSON in *text*. Raises: MalformedInput, NewerUsage."""
    version, _, rest = text.partition(":")
    if not version.isdecimal() or not version.isascii() or len(version) > _MAX_DIGITS:
        raise MalformedInput("usage", text, "expected a version")
    if int(version) > _VERSION:
        raise NewerUsage("usage", version, f"expected version {_VERSION} at most")
    checksum, _, payload = rest.partition(":")
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(payload, validate=True), _MAX_JSON)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise MalformedInput("usage", text, f"it cannot be decompressed ({error})") from error
    if not inflater.eof:
        raise MalformedInput("usage", text, "it is incomplete, or too long")
    if _checksum(data) != checksum:
        raise MalformedInput("usage", text, "it has been edited: its checksum is another one")
    return data


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
