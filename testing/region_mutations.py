"""Regions with random changes, which a tenant may have written."""

import struct

from hami.monitor.regions import parse_region, slot_count, usage_writes
from hami.node.region_layout import identify
from testing.region_bytes import GIB, SHAPES, UUIDS, Process, region_bytes

MUTATED_SLOTS = 12
TWO = (
    Process(pid=7, host_pid=4007, used={0: 400, 1: 16}, sm={0: 30}),
    Process(pid=8, used={0: 80}, sm={0: 5, 1: 9}),
)


def mutate_and_parse(rng, count):
    """Reads *count* regions with random changes, among them extreme words at places that have a meaning."""
    version = rng.choice(list(SHAPES))
    data = region_bytes(version, uuids=UUIDS, limits=(GIB, GIB), cores=(30, 100), processes=TWO)
    layout = identify(len(data), bytes(data[:12]))[0]
    head, tail = (
        data[: layout.slots],
        data[layout.slots_used : layout.slots_used + layout.tail_size],
    )
    slots = data[layout.slots : layout.slots + MUTATED_SLOTS * layout.slot_size]
    for _ in range(count):
        for part in (head, slots, tail):
            place = rng.randrange(len(part) - 8)
            part[place : place + 8] = rng.choice((b"\xff" * 8, bytes(8), rng.randbytes(8)))
        struct.pack_into("<i", tail, 0, rng.choice((-1, 0, 2, MUTATED_SLOTS, rng.randrange(2**31))))
        region = parse_region(version, layout, bytes(head), bytes(slots), bytes(tail))
        if slot_count(tail) > MUTATED_SLOTS:
            assert region is None
            continue
        assert len(region.devices) <= 16
        assert len(region.processes) <= MUTATED_SLOTS
        assert all(device.uuid.isascii() and device.total >= 0 for device in region.devices)
        sm = {one.slot: [100] * len(region.devices) for one in region.processes}
        for offset, data in usage_writes(region, {one.slot: 5 for one in region.processes}, sm, 9):
            assert layout.slots <= offset <= layout.slots_used - len(data)
