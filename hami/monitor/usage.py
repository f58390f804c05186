"""Joins what the driver and a container's region say about its devices. Pure.

The driver is believed. Where it does not say, the region counts, which tenants can write to: its numbers are clamped to
what is possible, and its texts are compared only.

The driver sees memory that the limiter of a container does not count: code that is loaded lazily, executable graphs,
local memory and the like take memory later, and no library can tell how much. The two numbers are not read at the same
instant, so the least difference of some rounds counts; and nothing counts while a process is known to only one of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami.devices.usage import CardUsage, ProcessUsage
from hami.monitor.containers import AllocatedDevice, Key, MonitoredContainer
from hami.monitor.processes import ContainerId, HostProcess
from hami.monitor.region_files import RegionReading
from hami.monitor.regions import Region, RegionDevice

_LARGEST = 1 << 50
"""Bytes: an upper bound for the memory of a card whose size is not known."""
_LONGEST_S = 1e9
"""Seconds: an upper bound for times in a region."""
_NANOSECONDS = 1e9
EXCESS_ROUNDS = 3
"""Rounds of which the least difference counts."""
Excess = tuple[int, ...]
"""Bytes on each device of a region that the limiter does not count."""


class Source(enum.StrEnum):
    """Where a number comes from: the driver of the host, the container's region, or nowhere: then it is 0."""

    HOST = "host"
    REGION = "region"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CardProcess:
    """A process of a container on one card or MIG instance."""

    process: HostProcess
    usage: ProcessUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """Usage as the driver reports it.

    *units*: cards and MIG instances by UUID. *processes*: of each container, by UUID.
    """

    units: Mapping[str, CardUsage]
    processes: Mapping[Key, Mapping[str, Sequence[CardProcess]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsageReport:
    """The usage of one device by one container. Bytes, percent, seconds; ``None`` if unknown.

    *used*, *utilization*: by *memory_source* and *utilization_source*. *host_memory*: by the driver. *counted*: by the
    limiter in the region, of which *context*, *module* and *buffer* are parts.
    """

    device: AllocatedDevice
    used: int
    memory_source: Source
    utilization: int
    utilization_source: Source
    host_memory: int | None = None
    counted: int | None = None
    context: int | None = None
    module: int | None = None
    buffer: int | None = None
    throttled: float | None = None

    @property
    def uncounted(self) -> int | None:
        """Bytes that the driver sees and the limiter does not."""
        if self.host_memory is None or self.counted is None:
            return None
        return max(self.host_memory - self.counted, 0)

    @property
    def offset(self) -> int:
        """Bytes in use that are no context, module or buffer. Upstream has a label for it."""
        parts = (self.context or 0) + (self.module or 0) + (self.buffer or 0)
        return max(self.used - parts, 0)

    @property
    def is_over_limit(self) -> bool:
        """Whether the container uses more memory than it was given."""
        return self.used > self.device.memory > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReport:
    """The usage of all its devices by one container.

    *reading*: its region. *last_kernel_s*: seconds since its last kernel.

    *is_blocked*: it waits for one of higher priority. *is_limited*: its compute limit counts.
    """

    container: MonitoredContainer
    devices: tuple[DeviceUsageReport, ...]
    reading: RegionReading
    last_kernel_s: float | None = None
    is_blocked: bool = False
    is_limited: bool = False


def host_view(
    cards: Iterable[CardUsage],
    host_processes: Mapping[int, HostProcess],
    by_id: Mapping[ContainerId, Key],
) -> HostView:
    """Returns what the driver says about *cards*. *host_processes*: those of them that are in containers. *by_id*: the
    containers that have devices. A process of another container counts for none."""
    units: dict[str, CardUsage] = {}
    for card in cards:
        units[card.uuid] = card
        units |= {instance.uuid: instance for instance in card.instances}
    processes: dict[Key, dict[str, list[CardProcess]]] = {}
    for uuid, unit in units.items():
        for pid, usage in (unit.processes or {}).items():
            process = host_processes.get(pid)
            key = by_id.get(process.container) if process is not None else None
            if process is not None and key is not None:
                on_unit = processes.setdefault(key, {}).setdefault(uuid, [])
                on_unit.append(CardProcess(process, usage))
    return HostView(units=units, processes=processes)


def report_container(
    container: MonitoredContainer, reading: RegionReading, host: HostView, now: float
) -> ContainerReport:
    """Returns how a container uses its devices. *now*: Unix seconds."""
    devices = tuple(
        _report_device(container, device, reading, host) for device in container.devices
    )
    report = ContainerReport(container=container, devices=devices, reading=reading)
    last = reading.region.last_kernel_time if reading.region is not None else 0
    if last and now - last < _LONGEST_S:
        return replace(report, last_kernel_s=max(now - last, 0.0))
    return report


def known_use(report: ContainerReport) -> dict[str, int]:
    """Returns the bytes that a container uses, by card, without those of which nobody says so."""
    known = [usage for usage in report.devices if usage.memory_source is not Source.NONE]
    return {usage.device.card: usage.used for usage in known}


def host_utilization(container: MonitoredContainer, host: HostView) -> int | None:
    """Returns the percent that a container uses of the device that it uses most, by the driver; ``None`` if unknown."""
    known = []
    for device in container.devices:
        percent = _host_sm(device.uuid, container.key, host)
        if percent is not None:
            known.append(percent)
    return max(known, default=None)


def denies_use(container: MonitoredContainer, host: HostView) -> bool:
    """Reports whether the driver shows that a container uses none of its devices: it is known to which container each
    process there belongs, and how much it uses."""
    for device in container.devices:
        if _host_sm(device.uuid, container.key, host) != 0 or not _knows_all(device.uuid, host):
            return False
    return True


def region_device(region: Region | None, device: AllocatedDevice) -> RegionDevice | None:
    """Returns *device* as a region has it."""
    if region is not None:
        for entry in region.devices:
            if entry.uuid == device.card:
                return entry
    return None


def host_pids(region: Region, processes: Iterable[HostProcess]) -> dict[int, int]:
    """Returns the host PIDs of processes in *region*, by slot. PIDs that two have, here or there, are left out."""
    inner = [process for process in set(processes) if process.inner_pid > 0]
    by_pid = _unique((process.inner_pid, process.pid) for process in inner)
    slots = _unique((process.pid, process.slot) for process in region.processes)
    return {slots[pid]: by_pid[pid] for pid in by_pid.keys() & slots.keys()}


def slot_utilization(
    container: MonitoredContainer, region: Region, pids: Mapping[int, int], host: HostView
) -> dict[int, list[int]]:
    """Returns the percent of each process in *region* on each of its devices, by slot; empty if the driver does not say
    so for all devices. *pids*: host PIDs by slot."""
    uuids = {device.card: device.uuid for device in container.devices}
    by_device = []
    for entry in region.devices:
        unit = host.units.get(uuids.get(entry.uuid, ""))
        if unit is None or not _knows_sm(unit):
            return {}
        processes = _processes(unit.uuid, container.key, host)
        by_device.append({known.process.pid: known.usage.sm or 0 for known in processes})
    if not by_device:
        return {}
    utilization: dict[int, list[int]] = {}
    for process in region.processes:
        pid = pids.get(process.slot, 0)
        utilization[process.slot] = [percents.get(pid, 0) for percents in by_device]
    return utilization


def excess_of(
    container: MonitoredContainer, region: Region, pids: Mapping[int, int], host: HostView
) -> Excess:
    """Returns what the driver sees beyond what *region* counts; 0 where it does not say, or a process is not known to
    both. *pids*: host PIDs by slot."""
    uuids = {device.card: device.uuid for device in container.devices}
    is_complete = pids.keys() >= {process.slot for process in region.processes}
    in_both = set(pids.values()) if is_complete else set()
    amounts = []
    for device in region.devices:
        used = 0
        for entry in _processes(uuids.get(device.uuid, ""), container.key, host):
            if entry.process.pid not in in_both or entry.usage.memory is None:
                used = 0
                break
            used += entry.usage.memory
        amounts.append(max(used - device.total, 0))
    return tuple(amounts)


def least_excess(rounds: tuple[Excess, ...]) -> Excess:
    """Returns the least of the last rounds, by device; 0 until there are enough of them, or if a container has changed
    how many devices its region has."""
    last = rounds[-1]
    if len(rounds) < EXCESS_ROUNDS or {len(excess) for excess in rounds} != {len(last)}:
        return (0,) * len(last)
    return tuple(min(of_device) for of_device in zip(*rounds, strict=True))


def _report_device(
    container: MonitoredContainer, device: AllocatedDevice, reading: RegionReading, host: HostView
) -> DeviceUsageReport:
    key = container.key
    unit = host.units.get(device.uuid) or host.units.get(device.card)
    limit = unit.memory if unit is not None and unit.memory else _LARGEST
    entry = region_device(reading.region, device)
    total = sm = None
    if entry is not None:
        total, sm = min(entry.total, limit), min(entry.sm, 100)
    sees_all = container.has_ended or _were_seen(reading.region)
    if _processes(device.uuid, key, host):
        sees_all = True
    host_memory = _host_memory(device.uuid, key, host)
    used, memory_source = _choose(host_memory, total, sees_all)
    utilization, utilization_source = _choose(_host_sm(device.uuid, key, host), sm, sees_all)
    report = DeviceUsageReport(
        device=device,
        used=used,
        memory_source=memory_source,
        utilization=utilization,
        utilization_source=utilization_source,
        host_memory=host_memory,
        counted=total,
    )
    if entry is None:
        return report
    throttled = None
    if reading.throttled is not None:
        throttled = min(reading.throttled[entry.index] / _NANOSECONDS, _LONGEST_S)
    return replace(
        report,
        throttled=throttled,
        context=min(entry.context, limit),
        module=min(entry.module, limit),
        buffer=min(entry.buffer, limit),
    )


def _were_seen(region: Region | None) -> bool:
    """Reports whether the host PIDs of all processes in a region are known. If the driver sees none of them any more,
    they were killed, and the region still counts them."""
    return region is not None and all(process.host_pid for process in region.processes)


def _choose(of_host: int | None, of_region: int | None, sees_all: bool) -> tuple[int, Source]:
    """The driver is believed, unless it sees no process of a container that counts something: some drivers show other
    PIDs than those of the host, or none."""
    if of_host is not None and (sees_all or not of_region):
        return of_host, Source.HOST
    if of_region is not None:
        return of_region, Source.REGION
    return 0, Source.NONE


def _processes(uuid: str, key: Key, host: HostView) -> Sequence[CardProcess]:
    return host.processes.get(key, {}).get(uuid, ())


def _host_memory(uuid: str, key: Key, host: HostView) -> int | None:
    unit = host.units.get(uuid)
    if unit is None or unit.processes is None:
        return None
    used = 0
    for entry in _processes(uuid, key, host):
        if entry.usage.memory is None:
            return None
        used += entry.usage.memory
    return used


def _host_sm(uuid: str, key: Key, host: HostView) -> int | None:
    unit = host.units.get(uuid)
    if unit is None or not _knows_sm(unit):
        return None
    return min(sum(entry.usage.sm or 0 for entry in _processes(uuid, key, host)), 100)


def _knows_all(uuid: str, host: HostView) -> bool:
    unit = host.units.get(uuid)
    if unit is None or unit.processes is None:
        return False
    known: set[int] = set()
    for by_unit in host.processes.values():
        known.update(entry.process.pid for entry in by_unit.get(uuid, ()))
    return unit.processes.keys() <= known


def _knows_sm(unit: CardUsage) -> bool:
    if unit.processes is None:
        return False
    return all(usage.sm is not None for usage in unit.processes.values())


def _unique(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Returns the values of keys that occur once."""
    values: dict[int, int] = {}
    repeated = set()
    for key, value in pairs:
        if key in values:
            repeated.add(key)
        values[key] = value
    return {key: value for key, value in values.items() if key not in repeated}
