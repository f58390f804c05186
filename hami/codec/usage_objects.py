"""The ConfigMaps that keep the sums of usage.

``hami-usage`` has all until a moment: totals, and the current day by the hour. It is written by compare-and-swap alone.
A day that has ended moves to ``hami-usage-2026-11-28``, and its workloads to ``hami-usage-owners-2026-11-28``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hami.codec.config_maps import ConfigMapRecord
from hami.codec.usage_sums import (
    HeldAmounts,
    OwnerKey,
    UsageDay,
    UsageSums,
    parse_day,
    parse_owners,
    parse_usage,
    render_day,
    render_owners,
    render_usage,
)
from hami.errors import MalformedInput

CURRENT = "hami-usage"
UNREADABLE = "hami-usage-unreadable"
"""What was in the place of CURRENT and could not be read."""
LABEL = "hami.io/usage"
"""Its values: CURRENT_KIND, DAY_KIND, OWNERS_KIND and UNREADABLE_KIND."""
CURRENT_KIND, DAY_KIND, OWNERS_KIND, UNREADABLE_KIND = "current", "day", "owners", "unreadable"
_USAGE, _OWNERS = "usage", "owners"  # keys of data


def name_of_day(date: str) -> str:
    """Returns the name of the object of a day, such as 2026-11-28."""
    return f"{CURRENT}-{date}"


def name_of_owners(date: str) -> str:
    """Returns the name of the object of the workloads of a day."""
    return f"{CURRENT}-owners-{date}"


def labels_of(kind: str) -> dict[str, str]:
    """Returns the labels of an object of that *kind*."""
    return {"app.kubernetes.io/part-of": "hami", LABEL: kind}


def render_current(namespace: str, resource_version: str, sums: UsageSums) -> ConfigMapRecord:
    """The object with the sums until a moment."""
    return ConfigMapRecord(
        namespace=namespace,
        name=CURRENT,
        resource_version=resource_version,
        data={_USAGE: render_usage(sums), _OWNERS: render_owners(sums.day)},
    )


def parse_current(data: Mapping[str, str]) -> UsageSums:
    """The sums until a moment. Raises: MalformedInput, which is NewerUsage for those of a later version."""
    sums = parse_sums(data)
    start, owners = parse_owners(_text(data, _OWNERS))
    if start != sums.day.start:
        raise MalformedInput("usage", start, f"expected the workloads of {sums.day.date}")
    return replace(sums, day=replace(sums.day, owners=owners))


def parse_sums(data: Mapping[str, str]) -> UsageSums:
    """The sums until a moment, without workloads. Raises: as `parse_current`."""
    return parse_usage(_text(data, _USAGE))


def day_data(day: UsageDay) -> dict[str, str]:
    """Returns the texts of the object of a day."""
    return {_USAGE: render_day(day)}


def owners_data(day: UsageDay) -> dict[str, str]:
    """Returns the texts of the object of the workloads of a day."""
    return {_OWNERS: render_owners(day)}


def parse_day_data(data: Mapping[str, str], start: int) -> UsageDay:
    """The day that began at *start*, without its workloads. Raises: as `parse_current`."""
    day = parse_day(_text(data, _USAGE))
    if day.start != start:
        raise MalformedInput("usage", day.date, "another day was expected")
    return day


def parse_owners_data(data: Mapping[str, str], start: int) -> dict[OwnerKey, HeldAmounts]:
    """The workloads of the day that began at *start*. Raises: as `parse_current`."""
    began, owners = parse_owners(_text(data, _OWNERS))
    if began != start:
        raise MalformedInput("usage", began, "another day was expected")
    return owners


def _text(data: Mapping[str, str], key: str) -> str:
    text = data.get(key)
    if text is None:
        raise MalformedInput("usage", "", f"there is no {key} in it")
    return text
