"""Reads the days of usage that are recorded, with the user's own rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from urllib.parse import quote

from hami.codec.config_maps import parse_config_map
from hami.codec.usage_objects import (
    CURRENT,
    name_of_day,
    name_of_owners,
    parse_current,
    parse_day_data,
    parse_owners_data,
)
from hami.codec.usage_sums import DAY_S, UsageDay, UsageSums, date_of, day_start
from hami.errors import HamiError, MalformedInput, NotFound
from hami.inspect.tables import API_VERSION
from hami.kube.calls import path_of
from hami.kube.pages import Requester

USAGE_NAMESPACE = "hami-usage"
"""The usual namespace of the records."""


class UsageReader:
    """Reads the ConfigMaps of *namespace*. *note*: takes what cannot be read.

    *only*: a namespace whose part is asked of the API group ``inspect.hami.io`` instead.
    """

    def __init__(
        self, request: Requester, namespace: str, note: Callable[[str], None], only: str = ""
    ) -> None:
        self._request = request
        self._namespace = namespace
        self._note = note
        self._only = only

    def current(self) -> UsageSums:
        """Returns the sums until a moment. Raises: HamiError, also if nothing is recorded."""
        data = self._data(CURRENT)
        if data is None:
            raise HamiError(
                f"no usage is recorded in namespace {self._namespace}: is the scheduler's flag "
                "--usage-namespace set?"
            )
        return parse_current(data)

    def days(self, sums: UsageSums, since: int, *, with_owners: bool) -> Iterator[UsageDay]:
        """Yields the days from that of *since* to the current one, of *sums*. Days without a record are left out.

        *with_owners*: with their workloads. Raises: HamiError.
        """
        for start in range(day_start(since), sums.day.start, DAY_S):
            day = self._day(start)
            if day is None:
                continue
            if with_owners:
                day = self._with_owners(day)
            yield day
        yield sums.day

    def _day(self, start: int) -> UsageDay | None:
        name = name_of_day(date_of(start))
        data = self._data(name)
        if data is None:
            return None
        try:
            return parse_day_data(data, start)
        except MalformedInput as error:
            self._note(f"{name} cannot be read and is left out: {error}")
            return None

    def _with_owners(self, day: UsageDay) -> UsageDay:
        name = name_of_owners(day.date)
        data = self._data(name)
        if data is None:
            self._note(f"the workloads of {day.date} are not known any more")
            return day
        try:
            return replace(day, owners=parse_owners_data(data, day.start))
        except MalformedInput as error:
            self._note(f"{name} cannot be read and is left out: {error}")
            return day

    def _data(self, name: str) -> Mapping[str, str] | None:
        path = path_of("configmaps", self._namespace, name)
        if self._only:
            only = quote(self._only, safe="")
            path = f"/apis/{API_VERSION}/namespaces/{only}/usagerecords/{name}"
        try:
            answer = self._request("GET", path)
        except NotFound:
            return None
        return parse_config_map(answer).data
