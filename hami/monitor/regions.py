"""Reads a shared region from bytes, in any known layout, and makes what the monitor writes to one.

The bytes are a tenant's. Nothing in them makes this module fail, and the work is bounded by the number of slots of a
layout. Numbers are as they stand there: who uses them clamps them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from hami.node.region_layout import (
    BUFFER,
    COMPUTE_BUCKET_SIZE,
    COMPUTE_BUCKETS,
    COMPUTE_THROTTLED,
    CONTEXT,
    LAST_KERNEL,
    MAX_DEVICES,
    MAX_SLOTS,
    MODULE,
    RECENT_KERNEL,
    SM,
    SWITCH,
    TOTAL,
    UNCOUNTED,
    UUID_SIZE,
    RegionLayout,
)

Write = tuple[int, bytes]
"""A write to a region: an offset and the bytes there."""

ENDED, SUSPENDED = 0, 2  # status of a slot, beside those of processes that run
HOST_PID = 4  # in a slot, in every layout
_WORD = 8
_TAIL = struct.Struct("<iiii")
_PIDS = struct.Struct("<ii")
_INT, _LONG = struct.Struct("<i"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """A device of a region. *index*: its place there. *uuid*: empty if it is not readable ASCII text.

    The limits as the region has them; the counters summed up over the processes that live: bytes, and percent.
    """

    index: int
    uuid: str
    memory_limit: int
    core_limit: int
    context: int
    module: int
    buffer: int
    total: int
    sm: int


@dataclass(frozen=True, slots=True)
class RegionProcess:
    """A slot that a process has. *pid*: in the PID namespace of the process. *host_pid*: 0 if unknown."""

    slot: int
    pid: int
    host_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The content of a region. *switch*: other than 0 while the compute limit counts. *recent_kernel*: above 0 while
    the container works, below 0 while it is blocked. *last_kernel_time*: Unix seconds, 0 if unknown."""

    version: str
    layout: RegionLayout
    devices: tuple[RegionDevice, ...]
    processes: tuple[RegionProcess, ...]
    switch: int
    recent_kernel: int
    priority: int
    last_kernel_time: int


def device_count(head: bytes, layout: RegionLayout) -> int:
    """Returns the number of devices in a region. *head*: its bytes before the slots."""
    count: int = _LONG.unpack_from(head, layout.device_count)[0]
    return min(count, MAX_DEVICES)


def slot_count(tail: bytes) -> int:
    """Returns the number of slots that may be in use. *tail*: the bytes from ``slots_used`` on."""
    count: int = _INT.unpack_from(tail)[0]
    return max(0, min(count, MAX_SLOTS))


def parse_region(
    version: str, layout: RegionLayout, head: bytes, slots: bytes, tail: bytes
) -> Region | None:
    """Returns the region in *head* (all before the slots), *slots* (those that `slot_count` counts) and *tail*;
    ``None`` if a part is shorter than that."""
    if len(head) < layout.slots or len(tail) < layout.tail_size:
        return None
    count = slot_count(tail)
    if len(slots) < count * layout.slot_size:
        return None
    table = _SlotTable(memoryview(slots)[: count * layout.slot_size], layout)
    _, switch, recent_kernel, priority = _TAIL.unpack_from(tail)
    return Region(
        version=version,
        layout=layout,
        switch=switch,
        recent_kernel=recent_kernel,
        priority=priority,
        last_kernel_time=_LONG.unpack_from(tail, LAST_KERNEL)[0] if layout.last_kernel else 0,
        devices=tuple(
            _device(index, layout, head, table) for index in range(device_count(head, layout))
        ),
        processes=tuple(table.processes()),
    )


def parse_throttled(compute: bytes) -> tuple[int, ...]:
    """Returns the nanoseconds that launches on each device have waited. *compute*: the content of the compute file."""
    return tuple(
        _LONG.unpack_from(
            compute, COMPUTE_BUCKETS + COMPUTE_BUCKET_SIZE * index + COMPUTE_THROTTLED
        )[0]
        for index in range(MAX_DEVICES)
    )


def control_writes(layout: RegionLayout, recent_kernel: int, switch: int) -> list[Write]:
    """Returns what blocks or frees the container of a region, and what limits it."""
    return [
        (layout.slots_used + RECENT_KERNEL, _INT.pack(recent_kernel)),
        (layout.slots_used + SWITCH, _INT.pack(switch)),
    ]


def usage_writes(
    region: Region,
    host_pids: Mapping[int, int],
    sm: Mapping[int, Sequence[int]],
    sampled: int | None,
) -> list[Write]:
    """Returns what tells the processes of a region their host PIDs and their utilization.

    *host_pids*: by slot, where it is known. *sm*: percent on each device of the region, by slot; other slots get 0.
    Empty: unknown, so nothing is written about it. *sampled*: monotonic nanoseconds, for our limiter; ``None`` for
    others. It is written last, so that a sample is complete when it is seen.
    """
    layout = region.layout
    places = {
        process.slot: layout.slots + layout.slot_size * process.slot for process in region.processes
    }
    writes = []
    for process in region.processes:
        pid = host_pids.get(process.slot, process.host_pid)
        if pid != process.host_pid:
            writes.append((places[process.slot] + HOST_PID, _INT.pack(pid)))
    if not sm:
        return writes
    idle = [0] * len(region.devices)
    for slot, place in places.items():
        for index, percent in enumerate(sm.get(slot, idle)):
            offset = place + layout.utilization + layout.utilization_size * index + SM
            writes.append((offset, _LONG.pack(percent)))
    if sampled is not None and layout.sampled is not None:
        writes += [(place + layout.sampled, _LONG.pack(sampled)) for place in places.values()]
    return writes


def uncounted_writes(region: Region, amounts: Sequence[int]) -> list[Write]:
    """Returns what adds *amounts*, bytes on each device of a region, to what its processes count. One slot has them
    all: the limiter adds those of all slots, also of those without a process."""
    layout = region.layout
    writes = []
    for place, process in enumerate(sorted(region.processes, key=lambda process: process.slot)):
        for index, amount in enumerate(amounts):
            device = (
                layout.slots
                + layout.slot_size * process.slot
                + layout.memory
                + layout.memory_size * index
            )
            writes.append((device + UNCOUNTED, _LONG.pack(0 if place else amount)))
    return writes


class _SlotTable:
    """The slots in use, as columns: reading one column of a thousand slots takes some microseconds."""

    def __init__(self, slots: memoryview, layout: RegionLayout) -> None:
        self._slots = slots
        self._layout = layout
        self._words = slots.cast("Q")
        self._live: list[bool] = []
        self._counting: list[bool] = []
        for word in self._column(layout.status):
            status = word & 0xFFFFFFFF
            self._live.append(status != ENDED)
            self._counting.append(status not in (ENDED, SUSPENDED))

    def total(self, offset: int) -> int:
        """Returns the sum of the counters at *offset* of the slots that processes have, but those that are suspended:
        what they had on the card is elsewhere."""
        return sum(compress(self._column(offset), self._counting))

    def processes(self) -> list[RegionProcess]:
        processes = []
        for slot in compress(range(len(self._live)), self._live):
            pids = _PIDS.unpack_from(self._slots, self._layout.slot_size * slot)
            processes.append(RegionProcess(slot, *pids))
        return processes

    def _column(self, offset: int) -> memoryview:
        return self._words[offset // _WORD :: self._layout.slot_size // _WORD]


def _device(index: int, layout: RegionLayout, head: bytes, table: _SlotTable) -> RegionDevice:
    memory = layout.memory + layout.memory_size * index
    return RegionDevice(
        index=index,
        uuid=_uuid(head, layout.uuids + UUID_SIZE * index),
        memory_limit=_LONG.unpack_from(head, layout.memory_limits + _WORD * index)[0],
        core_limit=_LONG.unpack_from(head, layout.core_limits + _WORD * index)[0],
        context=table.total(memory + CONTEXT),
        module=table.total(memory + MODULE),
        buffer=table.total(memory + BUFFER),
        total=table.total(memory + TOTAL),
        sm=table.total(layout.utilization + layout.utilization_size * index + SM),
    )


def _uuid(head: bytes, offset: int) -> str:
    text = head[offset : offset + UUID_SIZE].split(b"\0")[0]
    return text.decode() if text.isascii() else ""
