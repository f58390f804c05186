"""Regions from bytes: all versions, and bytes that are no region."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.model import Share
from hami.monitor.regions import (
    RegionProcess,
    control_writes,
    parse_region,
    parse_throttled,
    usage_writes,
)
from hami.node.limits import ContainerLimits, DeviceLimit
from hami.node.region_layout import CURRENT, LAYOUTS, LEGACY, SHIFTED, identify
from testing.builders import region_of
from testing.cases import cases
from testing.region_bytes import GIB, SHAPES, UUIDS, Process, region_bytes
from testing.region_mutations import TWO, mutate_and_parse


def parse(data):
    """The region in the content of a file; None if it is none."""
    data = bytes(data)
    if (known := identify(len(data), data[:12])) is None:
        return None
    layout, version = known
    tail = data[layout.slots_used : layout.slots_used + layout.tail_size]
    return parse_region(
        version, layout, data[: layout.slots], data[layout.slots : layout.slots_used], tail
    )


@pytest.mark.parametrize("version", SHAPES)
def test_every_version_is_read(version):
    region = parse(
        region_bytes(
            version,
            uuids=UUIDS,
            limits=(GIB, 2 * GIB),
            cores=(30, 100),
            processes=TWO,
            switch=0,
            recent=-1,
            priority=3,
            last_kernel=1_700_000_000,
        )
    )
    first, second = region.devices
    assert region.version == version.removesuffix(" shifted")
    assert (first.index, first.uuid, first.memory_limit, first.core_limit) == (0, UUIDS[0], GIB, 30)
    assert (first.context, first.module, first.buffer, first.total, first.sm) == (
        120,
        60,
        300,
        480,
        35,
    )
    assert (second.uuid, second.memory_limit, second.core_limit, second.total, second.sm) == (
        UUIDS[1],
        2 * GIB,
        100,
        16,
        9,
    )
    assert region.processes == (RegionProcess(0, 7, 4007), RegionProcess(1, 8, 0))
    assert (region.switch, region.recent_kernel, region.priority) == (0, -1, 3)
    assert region.last_kernel_time == (0 if version == "v0" else 1_700_000_000)


def test_the_offsets_are_those_of_the_reference():
    slot = CURRENT.slots + CURRENT.slot_size
    assert slot == 3816
    assert (
        CURRENT.slots + CURRENT.memory + CURRENT.memory_size + 32 == 1960
    )  # used[1].total of slot 0
    assert CURRENT.slots + CURRENT.utilization + 16 == 3032
    assert CURRENT.slots + CURRENT.status == 3784
    assert CURRENT.slots + 1023 * CURRENT.slot_size == 2006936
    for layout in LAYOUTS:
        assert layout.slots + 1024 * layout.slot_size == layout.slots_used
        assert layout.slots_used + layout.tail_size <= layout.size


def test_the_region_of_our_device_plugin_is_read():
    limits = ContainerLimits(devices=(DeviceLimit(UUIDS[0], 3 * GIB, 40),), priority=0)
    region = parse(region_of(limits))
    (device,) = region.devices
    assert (region.version, device.uuid, device.memory_limit, device.core_limit) == (
        "1.2",
        UUIDS[0],
        3 * GIB,
        40,
    )
    assert (region.priority, region.switch, region.processes, device.total) == (0, 1, (), 0)
    assert Share(device.uuid, "NVIDIA", 3072, 40).memory_mib << 20 == device.memory_limit


def test_slots_without_a_process_do_not_count():
    ended = Process(pid=9, status=0, used={0: 1000}, sm={0: 90})
    region = parse(region_bytes(processes=(TWO[0], ended, TWO[1])))
    assert region.devices[0].total == 480
    assert [one.slot for one in region.processes] == [0, 2]


def test_a_suspended_process_is_there_and_counts_nothing():
    suspended = Process(pid=9, status=2, used={0: 1000}, sm={0: 90})
    region = parse(region_bytes(processes=(TWO[0], suspended, TWO[1])))
    assert region.devices[0].total == 480
    assert [one.slot for one in region.processes] == [0, 1, 2]


@pytest.mark.parametrize(("used", "counted"), [(-5, 0), (0, 0), (1, 1), (2, 2), (2**31 - 1, 2)])
def test_the_number_of_slots_is_bounded(used, counted):
    region = parse(region_bytes(processes=TWO, used=used))
    assert len(region.processes) == counted


@pytest.mark.parametrize("count", [17, 2**63, 2**64 - 1])
def test_the_number_of_devices_is_bounded(count):
    data = region_bytes()
    struct.pack_into("<Q", data, 56, count)
    assert len(parse(data).devices) == 16


def test_a_uuid_that_is_no_text_is_empty():
    data = region_bytes()
    data[64:72] = b"GPU-\xff\xfe\x00x"
    assert parse(data).devices[0].uuid == ""


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (bytes(2008953), "nothing is initialized"),
        (bytes(804680), "a size that no version has"),
        (b"", "empty"),
        (region_bytes()[:100], "cut off"),
        (region_bytes()[:2008000], "cut off in a slot"),
        (b"\0" + region_bytes()[1:], "another magic"),
        (region_bytes()[:4] + struct.pack("<I", 2) + region_bytes()[8:], "2.x"),
        (region_bytes()[:8] + struct.pack("<I", 3) + region_bytes()[12:], "1.3"),
        (
            region_bytes("1.1 shifted")[:8]
            + struct.pack("<I", 2)
            + region_bytes("1.1 shifted")[12:],
            "1.2 of another size",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_region(data, what):
    assert parse(data) is None


@pytest.mark.parametrize("cut", ["head", "slots", "tail"])
def test_parts_that_are_too_short(cut):
    data = bytes(region_bytes(processes=TWO))
    parts = {
        "head": data[:1856],
        "slots": data[1856 : 1856 + 2 * 1960],
        "tail": data[2008896:2008920],
    }
    assert parse_region("1.2", CURRENT, **parts) is not None
    parts[cut] = parts[cut][:-1]
    assert parse_region("1.2", CURRENT, **parts) is None


@settings(max_examples=20)
@given(rng=randoms(use_true_random=True))
def test_mutated_regions_are_read_or_refused(rng):
    """``python -m benchmarks monitor`` does the same a million times."""
    mutate_and_parse(rng, 100)


# -- writes


def apply(data, writes):
    for offset, part in writes:
        data[offset : offset + len(part)] = part
    return parse(data)


@pytest.mark.parametrize("version", SHAPES)
def test_what_the_monitor_writes_changes_nothing_else(version):
    data = region_bytes(version, processes=TWO, last_kernel=5)
    before = parse(data)
    after = apply(data, control_writes(before.layout, -1, 0))
    assert (after.recent_kernel, after.switch) == (-1, 0)
    assert (after.devices, after.processes, after.priority, after.last_kernel_time) == (
        before.devices,
        before.processes,
        before.priority,
        before.last_kernel_time,
    )
    usage = usage_writes(after, {0: 4007, 1: 4008}, {1: [70]}, 123)
    told = apply(data, usage)
    assert told.processes == (RegionProcess(0, 7, 4007), RegionProcess(1, 8, 4008))
    assert [(one.total, one.sm) for one in told.devices] == [(480, 70)]
    assert sum(len(part) == 4 for _, part in usage) == 1  # the host PID that was not known


def test_our_limiter_sees_a_sample_when_it_is_complete():
    """The time is in the word that region.h calls sampled, of every slot, and is written after all utilization."""
    region = parse(region_bytes(processes=TWO))
    writes = usage_writes(region, {}, {0: [40], 1: [2]}, 123)
    times = [(1856 + 1960 * slot + 1952, struct.pack("<Q", 123)) for slot in (0, 1)]
    assert writes[-2:] == times
    assert [offset for offset, _ in writes[:2]] == [1856 + 1160 + 16, 1856 + 1960 + 1160 + 16]


@cases("layout", ("v0", LEGACY), ("shifted", SHIFTED), ("current", CURRENT))
def test_nothing_is_said_about_utilization_that_is_not_known(layout):
    version = {LEGACY: "v0", SHIFTED: "1.1 shifted", CURRENT: "1.2"}[layout]
    region = parse(region_bytes(version, processes=TWO))
    assert region.layout is layout
    assert usage_writes(region, {0: 4007}, {}, 123) == []


def test_the_time_that_launches_have_waited():
    data = bytearray(4096)
    struct.pack_into("<Q", data, 256 + 128 + 24, 5_000_000_000)  # vgpu_bucket.throttled of device 1
    assert parse_throttled(bytes(data))[:3] == (0, 5_000_000_000, 0)
