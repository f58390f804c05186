"""Regions as the libraries write them, byte by byte. The offsets are those of HAMi's C structures, written down here a
second time, so that they do not agree with the code by construction."""

import struct
from dataclasses import dataclass, field

MAGIC = 19920718
UUIDS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001")
GIB = 1 << 30


@dataclass(frozen=True)
class Shape:
    """Where a version has what: *slot* holds the first slot and the size of one, *in_slot* the offsets in it of memory,
    utilization and status, and *steps* the sizes of memory and utilization of a device."""

    version: tuple[int, ...]
    file_size: int
    count: int
    uuids: int
    limits: int
    cores: int
    slot: tuple[int, int]
    in_slot: tuple[int, int, int]
    steps: tuple[int, int]
    tail: int
    last_kernel: int | None


SHAPES = {
    "1.2": Shape(
        (1, 2),
        2008953,
        56,
        64,
        1600,
        1728,
        (1856, 1960),
        (8, 1160, 1928),
        (64, 48),
        2008896,
        2008912,
    ),
    "1.1": Shape(
        (1, 1),
        2008953,
        56,
        64,
        1600,
        1728,
        (1856, 1960),
        (8, 1160, 1928),
        (64, 48),
        2008896,
        2008912,
    ),
    "1.1 shifted": Shape(
        (1, 1),
        2008985,
        88,
        96,
        1632,
        1760,
        (1888, 1960),
        (16, 1168, 1936),
        (64, 48),
        2008928,
        2008944,
    ),
    "v0": Shape(
        (), 1197897, 48, 56, 1592, 1720, (1848, 1168), (8, 776, 1160), (40, 24), 1197880, None
    ),
}


@dataclass(frozen=True, kw_only=True)
class Process:
    """A slot in use: *used* and *sm* by device."""

    pid: int = 1
    host_pid: int = 0
    status: int = 1
    used: dict = field(default_factory=dict)
    sm: dict = field(default_factory=dict)


def region_bytes(
    version="1.2",
    *,
    uuids=UUIDS[:1],
    limits=(GIB,),
    cores=(30,),
    processes=(),
    used=None,
    switch=1,
    recent=0,
    priority=1,
    last_kernel=0,
):
    """A region. *used*: the number of slots in use, if it is not that of *processes*."""
    shape = SHAPES[version]
    data = bytearray(shape.file_size)
    struct.pack_into("<I", data, 0, MAGIC)
    if shape.version:
        struct.pack_into("<II", data, 4, *shape.version)
    struct.pack_into("<Q", data, shape.count, len(uuids))
    for index, uuid in enumerate(uuids):
        data[shape.uuids + 96 * index : shape.uuids + 96 * index + len(uuid)] = uuid.encode()
        struct.pack_into("<Q", data, shape.limits + 8 * index, limits[index])
        struct.pack_into("<Q", data, shape.cores + 8 * index, cores[index])
    for number, process in enumerate(processes):
        put_process(data, shape, number, process)
    struct.pack_into(
        "<iiii",
        data,
        shape.tail,
        len(processes) if used is None else used,
        switch,
        recent,
        priority,
    )
    if shape.last_kernel is not None:
        struct.pack_into("<Q", data, shape.last_kernel, last_kernel)
    return data


def put_process(data, shape, number, process):
    first, size = shape.slot
    memory, utilization, status = shape.in_slot
    base = first + size * number
    struct.pack_into("<ii", data, base, process.pid, process.host_pid)
    for device, total in process.used.items():
        place = base + memory + shape.steps[0] * device
        # context, module and data, a word that nobody writes, the total
        struct.pack_into(
            "<QQQQQ", data, place, total // 4, total // 8, total - total // 4 - total // 8, 0, total
        )
    for device, percent in process.sm.items():
        struct.pack_into("<Q", data, base + utilization + shape.steps[1] * device + 16, percent)
    struct.pack_into("<i", data, base + status, process.status)
