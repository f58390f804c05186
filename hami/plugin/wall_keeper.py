"""Looks after the driver's limits of containers that run: measures, repairs what was lost, and follows resizes.

A hook sets the limits when a container starts, and leaves a record with its control group. Here they are compared
with what the container is to have. The limit grows before that of the limiter does, and shrinks once the container
uses no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami.codec.pods import NodePod
from hami.devices.memory_limits import GroupGone, GroupMemory
from hami.errors import HamiError, HostError
from hami.model import PodRef
from hami.node.host import Host
from hami.node.limits import DeviceLimit
from hami.node.wall_records import WallRecord, WallRecords
from hami.plugin.wall_probe import WallProbe
from hami.runtime.once import OncePerKey
from hami.runtime.tasks import Task

log = logging.getLogger(__name__)

CHECK_S = 2.0
"""Seconds between two looks at all containers."""
GROWING_S = 10.0
"""Seconds for which a larger limit is kept although the limiter's is not larger yet."""

_Named = tuple[PodRef, str]


@dataclass(frozen=True, slots=True)
class DriverUse:
    """The memory of a card that a container uses by the driver's account, in bytes, contexts included."""

    pod: PodRef
    container: str
    uuid: str
    used: int


class WallKeeper(Task):
    """The driver's limits of the containers of one node. Threads may share it."""

    def __init__(
        self,
        node: str,
        probe: WallProbe,
        records: WallRecords,
        host: Host,
        pods: Callable[[], Iterable[NodePod] | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*pods*: those of the node; ``None`` before all are known."""
        super().__init__("memory wall")
        self.probe = probe
        self._node = node
        self._records = records
        self._host = host
        self._pods = pods
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows; held across calls of the driver
        self._growing: dict[tuple[str, str], tuple[float, Mapping[str, int]]] = {}
        self._uses: tuple[DriverUse, ...] = ()
        self._repairs = 0
        self._failed = 0
        self._reported = OncePerKey()

    def uses(self) -> tuple[DriverUse, ...]:
        """Returns what containers used at the last look."""
        return self._uses

    def repairs(self) -> int:
        """Returns how many limits had been lost and were set again."""
        return self._repairs

    def failed(self) -> int:
        """Returns for how many running containers the driver's limits could not be set at the last look."""
        return self._failed

    def step(self) -> float:
        """Looks at all containers; returns the seconds until the next look."""
        uses: list[DriverUse] = []
        failed = 0
        pods = self._pods()
        names = _names(pods or ())
        try:
            if pods is not None:
                self._records.sweep(names)
            if not self.probe.reason_off():
                with self._lock:
                    for id in self._records.ids():
                        found = self._tried(id, names.get(id))
                        uses += found or ()
                        failed += found is None and id in names
        except HamiError as error:
            self._warn(error)
        self._uses = tuple(uses)
        self._failed = failed
        return CHECK_S

    def allow(self, uid: str, container: str, limits: Iterable[DeviceLimit]) -> None:
        """Raises the limits of a container to *limits*, where they are smaller. Raises: HamiError if the driver does
        not allow that."""
        if self.probe.reason_off():
            return
        wanted = {limit.uuid: limit.memory for limit in limits}
        with self._lock:
            now = self._clock()
            growing = {key: entry for key, entry in self._growing.items() if now < entry[0]}
            self._growing = {**growing, (uid, container): (now + GROWING_S, wanted)}
            for id, named in _names(self._pods() or ()).items():
                if (named[0].uid, named[1]) != (uid, container):
                    continue
                record = self._records.read(id)
                if record is not None and record.group:
                    self._look(id, record, named)

    def _tried(self, id: str, named: _Named | None) -> list[DriverUse] | None:
        """As `_look`; ``None`` after an error, which is logged once: the next container gets its turn."""
        try:
            record = self._records.read(id)
            if record is None:
                return []
            if not record.group:
                problem = record.problem or "its control group is not known"
                raise HostError(f"container {id}: {problem}")
            return self._look(id, record, named)
        except HamiError as error:
            self._warn(error)
            return None

    def _look(self, id: str, record: WallRecord, named: _Named | None) -> list[DriverUse]:
        """Sets the limits of a container that are not as they should be. Raises: HamiError."""
        uses = []
        try:
            for uuid, wanted in self._wanted(record, named).items():
                used = self._settle(f"{self.probe.root}{record.group}", uuid, wanted)
                if named is not None:
                    uses.append(DriverUse(*named, uuid, used))
        except GroupGone:
            self._records.remove(id)
        return uses

    def _settle(self, group: str, uuid: str, wanted: int) -> int:
        """Sets the limit of a group on one card if it is another. Returns the bytes that the group uses. Raises:
        HamiError."""
        driver = self.probe.driver()
        present = driver.read(uuid, group)
        fresh = _next_limit(present, wanted)
        if fresh is not None:
            driver.set(uuid, group, fresh)
        if present.hard is None or present.soft:
            self._repairs += 1
            log.warning(
                "limit of the driver set again",
                extra={"node": self._node, "group": group, "uuid": uuid},
            )
        return present.used

    def _wanted(self, record: WallRecord, named: _Named | None) -> dict[str, int]:
        """Returns the bytes that a container is to have, by UUID of the card. Raises: HostError."""
        wanted = dict(record.limits)
        if named is None:
            return wanted
        key = named[0].uid, named[1]
        sizes = {limit.uuid: limit.memory for limit in self._host.limits(*key) or ()}
        until, growing = self._growing.get(key, (0.0, {}))
        is_growing = self._clock() < until
        for uuid in wanted:
            wanted[uuid] = sizes.get(uuid, wanted[uuid])
            if is_growing:
                wanted[uuid] = max(wanted[uuid], growing.get(uuid, 0))
        return wanted

    def _warn(self, error: HamiError) -> None:
        if self._reported.is_new(self._node, str(error)):
            log.warning(
                "limits of the driver cannot be looked after",
                extra={"node": self._node, "error": error},
            )


class WalledFiles:
    """The limits of containers, which grow after the driver's have grown."""

    def __init__(self, host: Host, keeper: WallKeeper) -> None:
        self._host = host
        self._keeper = keeper
        self.limits = host.limits
        self.use = host.use

    def resize_limits(
        self, uid: str, container: str, sizes: Sequence[DeviceLimit]
    ) -> tuple[DeviceLimit, ...] | None:
        """As `Host.resize_limits`. Raises: HostError, also if the driver does not allow *sizes*."""
        try:
            self._keeper.allow(uid, container, sizes)
        except HamiError as error:
            raise HostError(f"the driver's limit cannot be raised: {error}") from error
        return self._host.resize_limits(uid, container, sizes)


def _names(pods: Iterable[NodePod]) -> dict[str, _Named]:
    """Returns pod and name of each container that the kubelet has reported, by its id."""
    names = {}
    for node_pod in pods:
        for id, name in node_pod.runs.ids.items():
            names[id] = node_pod.pod.ref, name
    return names


def _next_limit(present: GroupMemory, wanted: int) -> int | None:
    """Returns the limit to set; ``None`` if the *present* one may stay. A smaller one waits until it holds: what a
    container has it keeps."""
    if present.hard is None or present.hard < wanted:
        return wanted
    if present.hard > wanted and present.used <= wanted:
        return wanted
    return present.hard if present.soft else None
