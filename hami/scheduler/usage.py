"""Usage: the leader writes who has held how much into ConfigMaps, all until a moment in one object.

The moment lies a little back, since what happened until then is known by now. The object is written by compare-and-swap
alone: of two leaders one is refused, and reads what the other has written. So nothing is counted twice, and a kill
loses only pods that have come and gone since the last write.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from hami.codec.config_maps import ConfigMapRecord
from hami.codec.usage_objects import (
    CURRENT,
    CURRENT_KIND,
    DAY_KIND,
    LABEL,
    OWNERS_KIND,
    UNREADABLE,
    UNREADABLE_KIND,
    day_data,
    labels_of,
    name_of_day,
    name_of_owners,
    owners_data,
    parse_current,
    render_current,
)
from hami.codec.usage_sums import (
    DAY_S,
    HeldAmounts,
    NewerUsage,
    TotalKey,
    UsageDay,
    UsageSums,
    date_of,
)
from hami.errors import ClusterError, Conflict, HamiError, MalformedInput, NotFound
from hami.kube.config_maps import ConfigMaps
from hami.runtime.tasks import Task
from hami.scheduler.held_pods import HeldPods
from hami.scheduler.settings import Settings
from hami.state.ledger import fresh_sums

log = logging.getLogger(__name__)

LAG_S = 30
"""How far back the moment lies until which all is recorded; no more than one interval."""
MAX_SILENCE_S = 7 * DAY_S  # of the watch of pods; it may be endless
PERIOD_S = 1.0  # between looks at the leadership
RETRY_S = 10.0  # after a write that failed
OWNERS_DAYS = 62
"""Days for which workloads are kept at most."""
PRUNED_AT_ONCE = 10  # objects: each may have half a MiB


class UsageRecorder(Task):
    """Records while this replica *leads*, as far as the watch of pods has come: *silence* are the seconds since it has
    shown something. *clock* is monotonic, *now* is the time of day in UTC."""

    def __init__(
        self,
        cluster: ConfigMaps,
        held: HeldPods,
        settings: Settings,
        *,
        leads: Callable[[], bool],
        silence: Callable[[], float],
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__("usage")
        self._cluster = cluster
        self._held = held
        self._namespace = settings.usage_namespace
        self._interval_s = settings.usage_interval
        self._lag_s = min(LAG_S, int(self._interval_s))
        self._keep_days = settings.usage_keep_days
        self._leads = leads
        self._silence = silence
        self._clock = clock
        self._now = now
        self._version: str | None = None  # of the object that was read; None before
        self._record_at = -math.inf
        self._recorded: UsageSums | None = None

    def counters(self) -> Mapping[TotalKey, HeldAmounts]:
        """Returns the sums that are recorded; empty while another replica leads. They never go back: what is not
        recorded yet, the next leader might count otherwise."""
        recorded = self._recorded
        return recorded.counters() if recorded is not None else {}

    def settled(self) -> int | None:
        """Returns until when all is recorded, in Unix seconds; ``None`` while another replica leads."""
        recorded = self._recorded
        return recorded.settled if recorded is not None else None

    def step(self) -> float:
        """Records, if it is time to."""
        if not self._leads():
            self._forget()
            return PERIOD_S
        if self._clock() < self._record_at:
            return min(PERIOD_S, self._record_at - self._clock())
        self._try()
        return PERIOD_S

    def finish(self) -> None:
        """Records what has come since the last time: the process ends."""
        if self._version is not None and self._leads():
            self._try()

    def _try(self) -> None:
        try:
            if self._version is None:
                self._take_over()
            self._record()
            self._record_at = self._clock() + self._interval_s
        except Conflict:
            log.warning("usage was recorded by another leader, which is read")
            self._forget()
        except NotFound as error:
            # somebody has deleted the object, and it is made again; or its namespace is missing
            if self._version is not None:
                self._version = ""
            self._retry(error)
        except NewerUsage as error:
            log.error("usage is not recorded: a later version did", extra={"error": error})
            self._record_at = self._clock() + self._interval_s
        except (ClusterError, MalformedInput) as error:
            self._retry(error)

    def _retry(self, error: HamiError) -> None:
        fields = {"namespace": self._namespace, "error": error}
        log.warning("usage is not recorded yet, will retry", extra=fields)
        self._record_at = self._clock() + RETRY_S

    def _forget(self) -> None:
        """Forgets the ledger, which another leader continues."""
        self._version = self._recorded = None
        self._record_at = -math.inf
        self._held.drop()

    def _take_over(self) -> None:
        """Goes on from what the last leader has recorded. Raises: ClusterError, NewerUsage."""
        seconds = self._seconds()
        current = self._cluster.config_map(self._namespace, CURRENT)
        sums = fresh_sums(seconds - self._lag_s)
        version = ""
        if current is not None:
            version = current.resource_version
            try:
                sums = _checked(parse_current(current.data), seconds)
            except NewerUsage:
                raise
            except MalformedInput as error:
                log.error("usage cannot be read and is kept aside", extra={"error": error})
                self._replace(UNREADABLE, UNREADABLE_KIND, current.data)
        self._held.lead(sums)
        self._version = version

    def _record(self) -> None:
        """Writes the sums until a moment ago, and before them the days that have ended; nothing if no time has been
        settled. Raises: ClusterError."""
        assert self._version is not None
        lag_s = max(self._lag_s, min(self._silence(), MAX_SILENCE_S))
        sums, days = self._held.checkpoint(int(self._now().timestamp() - lag_s))
        if sums.settled == self.settled() and not days:
            return
        if days:
            self._write_days(days)
        record = render_current(self._namespace, self._version, sums)
        written = self._cluster.write_config_map(record, labels_of(CURRENT_KIND))
        self._version = written.resource_version
        self._recorded = sums
        self._held.settle(sums, days)
        if days:
            self._prune(sums.day.start)

    def _write_days(self, days: Iterable[UsageDay]) -> None:
        """Writes *days*, unless another leader has recorded meanwhile. Raises: ClusterError."""
        current = self._cluster.config_map(self._namespace, CURRENT)
        version = current.resource_version if current is not None else ""
        if version != self._version:
            raise Conflict("the object has been changed")
        for day in self.each(days):
            self._replace(name_of_day(day.date), DAY_KIND, day_data(day))
            self._replace(name_of_owners(day.date), OWNERS_KIND, owners_data(day))

    def _replace(self, name: str, kind: str, data: Mapping[str, str]) -> None:
        """Writes an object, whether there is one or not. Raises: ClusterError."""
        record = ConfigMapRecord(namespace=self._namespace, name=name, data=data)
        try:
            self._cluster.write_config_map(record, labels_of(kind))
            return
        except Conflict:
            current = self._cluster.config_map(self._namespace, name)
        if current is not None:
            record = replace(record, resource_version=current.resource_version)
        self._cluster.write_config_map(record, labels_of(kind))

    def _prune(self, today: int) -> None:
        """Deletes days that are older than is asked for; the rest tomorrow, if there are many. Raises: ClusterError."""
        owners_days = min(self._keep_days, OWNERS_DAYS)
        oldest_day = name_of_day(date_of(max(0, today - self._keep_days * DAY_S)))
        oldest_owners = name_of_owners(date_of(max(0, today - owners_days * DAY_S)))
        for kind, oldest in ((DAY_KIND, oldest_day), (OWNERS_KIND, oldest_owners)):
            selector = f"{LABEL}={kind}"
            names = self._cluster.config_map_names(self._namespace, selector, PRUNED_AT_ONCE)
            for name in self.each([name for name in names if name < oldest]):
                try:
                    self._cluster.delete_config_map(self._namespace, name)
                except NotFound:
                    continue  # another leader was faster

    def _seconds(self) -> int:
        return int(self._now().timestamp())


def _checked(sums: UsageSums, now: int) -> UsageSums:
    """Returns *sums*, unless they are of a time that is far from coming. Raises: MalformedInput."""
    if sums.settled > now + DAY_S:
        raise MalformedInput("usage", sums.settled, f"expected a time before {now}")
    return sums
