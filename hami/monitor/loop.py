"""One round of the monitor: reads the driver, the pods and the regions, and writes back who waits and what is used.

Nothing here raises because of what a tenant or the driver does: it is counted, logged once, and the others are served.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hami.codec.pods import NodePod
from hami.devices.usage import CardUsage
from hami.errors import HostError
from hami.monitor.containers import (
    Key,
    MonitoredContainer,
    NodeContainers,
    find_containers,
    is_resizing,
)
from hami.monitor.feedback import (
    BLOCKED,
    HOLD_S,
    IDLE,
    FeedbackCandidate,
    Verdict,
    decide,
    is_active,
)
from hami.monitor.processes import ContainerId, HostProcess, HostProcesses, plain_uid
from hami.monitor.region_files import RegionFiles, RegionReading
from hami.monitor.regions import Region, Write, control_writes, uncounted_writes, usage_writes
from hami.monitor.source import UsageSource
from hami.monitor.totals import DeviceKey, UseCounters, UseTotals
from hami.monitor.usage import (
    EXCESS_ROUNDS,
    ContainerReport,
    Excess,
    HostView,
    denies_use,
    excess_of,
    host_pids,
    host_utilization,
    host_view,
    known_use,
    least_excess,
    region_device,
    report_container,
    slot_utilization,
)
from hami.node.limits import parse_limits
from hami.node.live_limits import SETTLED_NS, LimitsText
from hami.runtime.once import OncePerKey
from hami.vendors.spec import Catalog, Vendor

log = logging.getLogger(__name__)

ERRORS = ("allocation", "driver", "region", "write")
"""Parts of a round that can fail without ending it."""
TAMPERED = ("block", "limit", "priority", "switch", "disk")
"""Faults that tenants can cause in their regions; the last one ends the containers of the pod."""
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The node after a round. *at*: monotonic seconds. *cards*: ``None`` without a driver. *containers*: ``None``
    until the pods are known.

    *tampered*: how often a container has changed what it may not, by container and a word of TAMPERED. *totals*: what
    a container has used of a device, by container and index of the device.
    """

    node: str
    at: float
    cards: Sequence[CardUsage] | None = None
    containers: Sequence[ContainerReport] | None = None
    tampered: Mapping[tuple[Key, str], int] = field(default_factory=dict)
    totals: Mapping[DeviceKey, UseTotals] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """The memory of a container from one round to the next.

    *inode*: of its region, 0 if it was not written. *processes*: of the region. *excess*: what it did not count in
    the last rounds. *verdict*: what the container might do.
    *active_at*: when it last worked, on the monotonic clock. *used_at*: when the driver last did not deny that it uses
    a card. *wrong*: words of TAMPERED that are wrong by now.
    """

    inode: int = 0
    processes: frozenset[tuple[int, int]] = frozenset()
    excess: tuple[Excess, ...] = ()
    verdict: Verdict | None = None
    active_at: float = -math.inf
    used_at: float = -math.inf
    wrong: frozenset[str] = frozenset()


class MonitorLoop:
    """The rounds of one node. One thread calls `run_once`; others may read `errors`."""

    def __init__(
        self,
        node: str,
        catalog: Catalog,
        vendor: Vendor,
        source: UsageSource,
        files: RegionFiles,
        processes: HostProcesses,
        *,
        writes: bool = True,
        limits_uncounted: bool = False,
    ) -> None:
        """*vendor*: that of the node's devices. *writes*: write to regions; else they are only read.
        *limits_uncounted*: also write there what only the driver sees."""
        self._node = node
        self._catalog = catalog
        self._vendor = vendor
        self._source = source
        self._files = files
        self._processes = processes
        self._writes = writes
        self._limits_uncounted = limits_uncounted
        self._memories: dict[Key, _Memory] = {}
        self._written: dict[Key, tuple[RegionReading, Region]] = {}  # when it was last written
        self._tampered: Counter[tuple[Key, str]] = Counter()
        self._totals = UseCounters()
        self._reported = OncePerKey()
        self._lock = threading.Lock()  # guards _errors
        self._errors: Counter[str] = Counter(dict.fromkeys(ERRORS, 0))

    def errors(self) -> Mapping[str, int]:
        """Returns the number of failures, by a word of ERRORS."""
        with self._lock:
            return dict(self._errors)

    def run_once(self, pods: Sequence[NodePod] | None, now: float, clock: float) -> NodeReport:
        """Runs a round. *pods*: those of the node, ``None`` if not known yet. *now*: Unix seconds. *clock*: monotonic
        seconds."""
        settled: dict[Key, int] = {}
        if self._writes:  # before the use is read
            settled = _settled_limits(self._files, pods, now)
        cards = self._read_cards(now)
        if pods is None:
            return NodeReport(node=self._node, at=clock, cards=cards)
        found = self._find_containers(pods, cards or ())
        host = _view(self._processes, cards or (), found)
        self._forget(found.containers)
        readings = {container.key: self._read(container, clock) for container in found.containers}
        verdicts = self._decide(found.containers, readings, host, now, clock)
        reports = []
        for container in found.containers:
            reading, verdict = readings[container.key], verdicts[container.key]
            report = report_container(container, reading, host, now)
            self._update(container, reading, verdict, host, now, clock)
            if container.key in settled:
                key, limits_ns = container.key, settled[container.key]
                self._try(key, partial(self._files.write_use, *key, limits_ns, known_use(report)))
            if self._writes:
                report = replace(
                    report, is_blocked=verdict.is_blocked, is_limited=verdict.is_limited
                )
                if reading.is_held:
                    self._end(container, pods)
            reports.append(report)
        self._totals.add(reports, clock)
        return NodeReport(
            node=self._node,
            at=clock,
            cards=cards,
            containers=tuple(reports),
            tampered=dict(self._tampered),
            totals=self._totals.read(),
        )

    def release(self) -> None:
        """Frees containers that wait, and lets compute limits count: what the device plugin begins with. Call it last:
        HAMi's library waits for ever for a monitor that is gone."""
        for key, (reading, region) in self._written.items():
            writes = control_writes(region.layout, IDLE, 1)
            self._try(key, partial(self._files.write, *key, reading, writes), is_of_tenant=True)

    def _read_cards(self, now: float) -> Sequence[CardUsage] | None:
        cards = self._source.read(now)
        for card in cards or ():
            for problem in card.problems:
                self._note("driver", card.uuid, problem)
        return cards

    def _find_containers(
        self, pods: Sequence[NodePod], cards: Sequence[CardUsage]
    ) -> NodeContainers:
        found = find_containers(
            pods,
            self._catalog,
            self._vendor,
            {card.uuid: card.index for card in cards},
            self._files.limits,
            self._files.instances,
        )
        for ref, problem in found.problems.items():
            self._note("allocation", str(ref), problem)
        return found

    def _forget(self, containers: Iterable[MonitoredContainer]) -> None:
        """Forgets all but *containers*."""
        keys = {container.key for container in containers}
        for memory in (self._memories, self._written):
            for key in memory.keys() - keys:
                del memory[key]
        for fault in [fault for fault in self._tampered if fault[0] not in keys]:
            del self._tampered[fault]
        self._totals.forget_others(keys)

    def _read(self, container: MonitoredContainer, clock: float) -> RegionReading:
        """Reads the region of a container, and shows a limiter of ours in it that a monitor is at work."""
        heartbeat = int(clock * _NANOSECONDS) if self._writes and not container.has_ended else None
        reading = self._files.read(*container.key, heartbeat=heartbeat)
        if reading.problem:
            self._note("region", container.key, reading.problem, is_of_tenant=True)
        return reading

    def _decide(
        self,
        containers: Collection[MonitoredContainer],
        readings: Mapping[Key, RegionReading],
        host: HostView,
        now: float,
        clock: float,
    ) -> Mapping[Key, Verdict]:
        candidates = []
        for container in containers:
            reading = readings[container.key]
            memory = self._memories.get(container.key, _Memory(used_at=clock))
            if not denies_use(container, host):
                memory = replace(memory, used_at=clock)
            if not container.has_ended and _works(container, reading, memory, host, now, clock):
                memory = replace(memory, active_at=clock)
            self._memories[container.key] = memory
            candidate = FeedbackCandidate(
                key=container.key,
                priority=container.priority,
                cards=frozenset(device.uuid for device in container.devices),
                is_active=not container.has_ended and clock - memory.active_at < HOLD_S,
            )
            if memory.verdict is not None:
                candidate = replace(
                    candidate,
                    shared_at=memory.verdict.shared_at,
                    waiting_since=memory.verdict.waiting_since,
                )
            if reading.region is not None:
                candidate = replace(candidate, recent_kernel=reading.region.recent_kernel)
            candidates.append(candidate)
        return decide(candidates, clock)

    def _update(
        self,
        container: MonitoredContainer,
        reading: RegionReading,
        verdict: Verdict,
        host: HostView,
        now: float,
        clock: float,
    ) -> None:
        """Notes what the container has changed, and writes to its region."""
        region, before = reading.region, self._memories[container.key]
        if region is None:
            self._memories[container.key] = _Memory(
                verdict=verdict, active_at=before.active_at, used_at=before.used_at
            )
            return
        wrong = _wrong(container, region, before, reading.inode)
        if "limit" in wrong and _was_resized(self._files, container, region, now):
            wrong -= {"limit"}
        for fault in wrong - before.wrong:
            self._tampered[container.key, fault] += 1
        pids = host_pids(region, _host_processes(container, host))
        earlier = before.excess if before.inode == reading.inode else ()
        excess = (*earlier, excess_of(container, region, pids, host))[-EXCESS_ROUNDS:]
        is_written = False
        if self._writes and not container.has_ended:
            writes = _writes(container, reading, region, verdict, host, pids, clock)
            is_written = self._write(container.key, reading, region, writes, least_excess(excess))
        self._memories[container.key] = _Memory(
            inode=reading.inode if is_written else 0,
            processes=_processes(region),
            excess=excess,
            verdict=verdict,
            active_at=before.active_at,
            used_at=before.used_at,
            wrong=wrong & {"limit", "priority"},
        )  # the others have been corrected

    def _write(
        self, key: Key, reading: RegionReading, region: Region, writes: list[Write], excess: Excess
    ) -> bool:
        if self._limits_uncounted and reading.throttled is not None:
            writes = [*writes, *uncounted_writes(region, excess)]
        write = partial(self._files.write, *key, reading, writes)
        is_written = self._try(key, write, is_of_tenant=True)
        if is_written:
            self._written[key] = reading, region
        return is_written

    def _end(self, container: MonitoredContainer, pods: Sequence[NodePod]) -> None:
        """Ends all containers of a pod, any of which may hold the file with which one of them fills the disk."""
        runs = next(pod.runs for pod in pods if pod.pod.ref == container.pod)
        uid = plain_uid(container.pod.uid)
        try:
            killed = self._processes.end({ContainerId(uid, number) for number in runs.ids})
        except OSError as error:
            self._note("write", container.key, str(error))
            return
        self._tampered[container.key, "disk"] += 1
        log.warning(
            "containers ended: a region that fills the disk cannot be truncated",
            extra={"pod": container.pod, "container": container.name, "processes": killed},
        )

    def _try(self, key: Key, write: Callable[[], None], *, is_of_tenant: bool = False) -> bool:
        """Writes to a file of a container; reports whether that was possible."""
        try:
            write()
        except (OSError, HostError) as error:
            self._note("write", key, str(error), is_of_tenant=is_of_tenant)
            return False
        return True

    def _note(self, step: str, key: object, problem: str, *, is_of_tenant: bool = False) -> None:
        """Counts an error, and logs it if it is new. *is_of_tenant*: a container can cause another one each round, so
        that only the first is logged."""
        with self._lock:
            self._errors[step] += 1
        if self._reported.is_new((step, key), "" if is_of_tenant else problem):
            log.warning(
                "round step failed", extra={"step": step, "subject": key, "reason": problem}
            )


def _settled_limits(
    files: RegionFiles, pods: Iterable[NodePod] | None, now: float
) -> dict[Key, int]:
    """Returns the times of change of limits whose use decides about a booking, where all processes follow them."""
    settled: dict[Key, int] = {}
    for item in pods or ():
        if is_resizing(item.pod):
            for container in item.pod.containers:
                key = item.pod.ref.uid, container.name
                text = files.limits_text(*key)
                if text is not None and not _is_new(text, now):
                    settled[key] = text.changed_ns
    return settled


def _was_resized(
    files: RegionFiles, container: MonitoredContainer, region: Region, now: float
) -> bool:
    """Reports whether the limits in a region differ from the sizes on the pod because of the device plugin: it
    writes the file with the limits, which tenants cannot change, and the region after it."""
    text = files.limits_text(*container.key)
    if text is None:
        return container.is_resizing
    if _is_new(text, now):
        return True
    limits = parse_limits(text.text)
    memory: dict[str, int] = {}
    if limits is not None:
        memory = {device.uuid: device.memory for device in limits.devices}
    return _have_limits(container, region, memory)


def _is_new(limits: LimitsText, now: float) -> bool:
    """Reports whether limits have changed so recently that not all processes follow them. *now*: Unix seconds. A change
    in the future is one from before the clock was set back."""
    return 0 <= now * _NANOSECONDS - limits.changed_ns < SETTLED_NS


def _writes(
    container: MonitoredContainer,
    reading: RegionReading,
    region: Region,
    verdict: Verdict,
    host: HostView,
    pids: Mapping[int, int],
    clock: float,
) -> list[Write]:
    sampled = int(clock * _NANOSECONDS) if reading.throttled is not None else None
    writes = usage_writes(region, pids, slot_utilization(container, region, pids, host), sampled)
    switch = int(verdict.is_limited)
    if (verdict.recent_kernel, switch) != (region.recent_kernel, region.switch):
        writes += control_writes(region.layout, verdict.recent_kernel, switch)
    return writes


def _view(processes: HostProcesses, cards: Iterable[CardUsage], found: NodeContainers) -> HostView:
    """Returns what the driver says, joined with *processes*."""
    pids: set[int] = set()
    for card in cards:
        for unit in (card, *card.instances):
            pids.update(unit.processes or ())
    known: dict[int, HostProcess] = {}
    for pid in pids:
        process = processes.find(pid)
        if process is not None:
            known[pid] = process
    return host_view(cards, known, found.by_id)


def _works(
    container: MonitoredContainer,
    reading: RegionReading,
    memory: _Memory,
    host: HostView,
    now: float,
    clock: float,
) -> bool:
    region = reading.region
    return is_active(
        recent_kernel=region.recent_kernel if region is not None else 0,
        last_kernel_time=region.last_kernel_time if region is not None else 0,
        host_sm=host_utilization(container, host),
        idle_s=clock - memory.used_at,
        has_limiter=reading.throttled is not None,
        now=now,
    )


def _host_processes(container: MonitoredContainer, host: HostView) -> list[HostProcess]:
    processes = []
    for on_device in host.processes.get(container.key, {}).values():
        processes += [entry.process for entry in on_device]
    return processes


def _have_limits(container: MonitoredContainer, region: Region, memory: Mapping[str, int]) -> bool:
    """Reports whether the devices in *region* have these limits, by card."""
    for device in container.devices:
        entry = region_device(region, device)
        if entry is not None and entry.memory_limit != memory.get(device.card):
            return False
    return True


def _wrong(
    container: MonitoredContainer, region: Region, before: _Memory, inode: int
) -> frozenset[str]:
    """Returns the words of TAMPERED that hold for a region. What the device plugin makes new, when a container starts
    again, is not the container's doing: none of its earlier processes is left."""
    wrong = set()
    if not _have_limits(container, region, container.memory):
        wrong.add("limit")
    if region.priority != container.priority:
        wrong.add("priority")
    verdict = before.verdict
    continues = before.inode == inode and not before.processes.isdisjoint(_processes(region))
    if verdict is not None and continues:
        if verdict.is_blocked and region.recent_kernel > BLOCKED:
            wrong.add("block")
        if verdict.is_limited and region.switch == 0:
            wrong.add("switch")
    return frozenset(wrong)


def _processes(region: Region) -> frozenset[tuple[int, int]]:
    return frozenset((process.slot, process.pid) for process in region.processes)
