"""The part of one namespace of the records of usage, in the form in which ConfigMaps keep all of them.

So ``hami usage`` reads both alike, and every question of the user is answered by the same code. Others, of which a
record has only the sum, belong to no namespace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from hami.codec.config_maps import parse_config_map
from hami.codec.usage_objects import (
    CURRENT,
    day_data,
    name_of_day,
    owners_data,
    parse_current,
    parse_day_data,
    parse_owners_data,
    render_current,
)
from hami.codec.usage_sums import OwnerKey, TotalKey, UsageDay, UsageKey, date_of, parse_date
from hami.dashboard.errors import PageError
from hami.dashboard.turns import Turns
from hami.errors import NotFound
from hami.kube.calls import path_of
from hami.kube.pages import Requester

Key = TypeVar("Key", UsageKey, TotalKey, OwnerKey)
Sums = TypeVar("Sums")

_DATE = re.compile(r"hami-usage-(?:owners-)?([0-9]{4}-[0-9]{2}-[0-9]{2})")


class UsageRecords:
    """Reads the records in *recorded_in*, a namespace; there are none if it is empty."""

    def __init__(self, request: Requester, recorded_in: str) -> None:
        self._request = request
        self._recorded_in = recorded_in
        self._turns = Turns(
            "another record of this namespace is being read",
            "records of other namespaces are being read",
        )

    def of(self, namespace: str, name: str) -> Mapping[str, str]:
        """Returns the texts of the record *name*, with what pods of *namespace* have held. Raises: PageError,
        HamiError."""
        start = _start_of(name)
        if name != CURRENT and start is None:
            raise PageError("expected the name of a record of usage", 400)
        if not self._recorded_in:
            raise PageError("the dashboard has no --usage-namespace", 404)
        with self._turns.of(namespace):
            data = self._read(name)
            if start is None:
                return _current_of(data, namespace)
            if name == name_of_day(date_of(start)):
                return day_data(_day_of(parse_day_data(data, start), namespace))
            day = UsageDay(start=start, owners=parse_owners_data(data, start))
            return owners_data(_day_of(day, namespace))

    def _read(self, name: str) -> Mapping[str, str]:
        try:
            answer = self._request("GET", path_of("configmaps", self._recorded_in, name))
        except NotFound as error:
            raise PageError(f'usagerecords "{name}" not found', 404) from error
        return parse_config_map(answer).data


def _start_of(name: str) -> int | None:
    """Returns when the day of a record began; ``None`` if it is not that of a day."""
    match = _DATE.fullmatch(name)
    if match is None:
        return None
    return parse_date(match[1])


def _current_of(data: Mapping[str, str], namespace: str) -> Mapping[str, str]:
    sums = parse_current(data)
    part = replace(sums, totals=_only(sums.totals, namespace), day=_day_of(sums.day, namespace))
    return render_current("", "", part).data


def _day_of(day: UsageDay, namespace: str) -> UsageDay:
    return replace(day, hours=_only(day.hours, namespace), owners=_only(day.owners, namespace))


def _only(sums: Mapping[Key, Sums], namespace: str) -> Mapping[Key, Sums]:
    """Returns the part of *namespace*."""
    part = {}
    for key, each in sums.items():
        if key.namespace == namespace:
            part[key] = each
    return part
