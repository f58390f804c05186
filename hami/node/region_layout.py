"""The layouts of the shared region: a file of each container, which its processes, device plugins and monitors share.

Everything in it is little-endian. Tenants can write to it: whoever reads it must doubt every number and every text.
Source: HAMi-core 1.2, multiprocess_memory_limit.h, and its earlier versions; HAMi v2.10, pkg/monitor/nvidia.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC, MAJOR, MINOR = 19920718, 1, 2
MAX_DEVICES, MAX_SLOTS = 16, 1024
UUID_SIZE = 96
SWITCH, RECENT_KERNEL, PRIORITY, LAST_KERNEL = 4, 8, 12, 16
"""Offsets from `RegionLayout.slots_used`."""
CONTEXT, MODULE, BUFFER, TOTAL, UNCOUNTED = 0, 8, 16, 32, 40
"""Offsets in the memory counters of a slot and device. The last is of our limiter; the monitor writes it."""
SM = 16
"""Offset in the utilization of a slot and device."""

REGION_SUFFIX, COMPUTE_SUFFIX = ".cache", ".sm"
"""Ends of the names of the region and the compute file, which have the same beginning."""
COMPUTE_SIZE, COMPUTE_HEARTBEAT = 4096, 16
COMPUTE_BUCKETS, COMPUTE_BUCKET_SIZE, COMPUTE_THROTTLED = 256, 128, 24
"""The compute file of our limiter, beside the region: a bucket for each device, and offsets in it.
libvgpu/src/compute.h defines them."""

_HEAD = struct.Struct("<III")
_COUNT = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLayout:
    """One layout. *size*: bytes; files may be one byte longer. Offsets are those in the region; *memory*,
    *utilization* and *status* those in a slot, and a *…_size* is the distance to that of the next device.

    *last_kernel*: whether the region has the time of the last kernel. *sampled*: where our limiter reads in a slot when
    its utilization was written, None where slots have no such word.
    """

    size: int
    device_count: int
    uuids: int
    memory_limits: int
    core_limits: int
    slots: int
    slot_size: int
    memory: int
    memory_size: int
    utilization: int
    utilization_size: int
    status: int
    slots_used: int
    last_kernel: bool = True
    sampled: int | None = None

    @property
    def tail_size(self) -> int:
        """Bytes from *slots_used* on that have a meaning: four counts and, if there is one, the time of a kernel."""
        return LAST_KERNEL + 8 if self.last_kernel else LAST_KERNEL

    def matches(self, size: int) -> bool:
        """Reports whether a file of *size* bytes can have this layout."""
        return size in (self.size, self.size + 1)


CURRENT = RegionLayout(
    size=2_008_952,
    device_count=56,
    uuids=64,
    memory_limits=1600,
    core_limits=1728,
    slots=1856,
    slot_size=1960,
    memory=8,
    memory_size=64,
    utilization=1160,
    utilization_size=48,
    status=1928,
    slots_used=2_008_896,
    sampled=1952,
)
"""Versions 1.1 and 1.2, and what our device plugin makes."""
REGION_SIZE = CURRENT.size + 1
"""Bytes of the file that our device plugin makes; HAMi-core makes files one byte longer than the region, too."""
SHIFTED = RegionLayout(
    size=2_008_984,
    device_count=88,
    uuids=96,
    memory_limits=1632,
    core_limits=1760,
    slots=1888,
    slot_size=1960,
    memory=16,
    memory_size=64,
    utilization=1168,
    utilization_size=48,
    status=1936,
    slots_used=2_008_928,
)
"""The layout that HAMi-core called 1.1 from March to April 2026.

A semaphore comes first, and each slot begins with its lock.
"""
LEGACY = RegionLayout(
    size=1_197_896,
    device_count=48,
    uuids=56,
    memory_limits=1592,
    core_limits=1720,
    slots=1848,
    slot_size=1168,
    memory=8,
    memory_size=40,
    utilization=776,
    utilization_size=24,
    status=1160,
    slots_used=1_197_880,
    last_kernel=False,
)
"""The layout before there were version numbers."""
LAYOUTS = (CURRENT, SHIFTED, LEGACY)


def identify(size: int, head: bytes) -> tuple[RegionLayout, str] | None:
    """Returns the layout of a region and its version as text (``1.2``, ``v0``); ``None`` if it is not known.

    *size*: that of the file. *head*: its first bytes.
    """
    if len(head) < _HEAD.size:
        return None
    magic, major, minor = _HEAD.unpack_from(head)
    for layout in LAYOUTS:
        if layout.matches(size) and magic == MAGIC:
            break
    else:
        return None
    if layout is LEGACY:
        return layout, "v0"
    if major != MAJOR or minor not in ((1, 2) if layout is CURRENT else (1,)):
        return None
    return layout, f"{major}.{minor}"


def device_places(layout: RegionLayout, head: bytes) -> dict[str, int]:
    """Returns the places of the devices of a region, by their UUIDs. *head*: its bytes before the slots."""
    count = min(_COUNT.unpack_from(head, layout.device_count)[0], MAX_DEVICES)
    places = {}
    for place in range(count):
        text = head[layout.uuids + UUID_SIZE * place :][:UUID_SIZE].split(b"\0")[0]
        places[text.decode(errors="replace")] = place
    return places
