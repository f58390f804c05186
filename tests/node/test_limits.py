"""The files of limits, byte by byte, against the layout that the tests of the limiter use."""

from dataclasses import replace

import pytest

from hami.devices.config import PluginConfig
from hami.errors import Rejected
from hami.node.limits import (
    ContainerLimits,
    DeviceLimit,
    container_limits,
    core_limits,
    parse_limits,
    render_limits,
    resized_text,
)
from testing.builders import region_of
from testing.cards import config
from testing.cases import cases
from testing.limiter.layout import FILE_SIZE, Region, make_region
from testing.plugin_stage import CARDS, NODE, A, B, share

CONFIG = PluginConfig(node=NODE)
GIB = 1 << 30
PAIR = ContainerLimits(
    devices=(DeviceLimit(A, GIB, 30), DeviceLimit(B, 2 * GIB, 100)),
    priority=0,
    policy="force",
    log_level=3,
)


def limits_of(parts, config=CONFIG, **env):
    return container_limits(config, parts, env)


def test_limits_are_in_the_driver_s_order_in_bytes_and_percent():
    found = limits_of([(CARDS[1], share(B, 2048, 0)), (CARDS[0], share(A, 1024, 30))])
    assert found == ContainerLimits(devices=PAIR.devices)


def test_size_of_a_context_is_handed_over_where_it_is_known():
    parts = [(CARDS[0], share(A, 1024, 30)), (CARDS[1], share(B, 2048, 0))]
    limits = container_limits(CONFIG, parts, {}, lambda card: 400 * (card.uuid == A))
    assert [one.context for one in limits.devices] == [400, 0]
    lines = render_limits(limits, "/x").splitlines()
    assert [line for line in lines if line.startswith("device")] == [
        f"device {A} memory={GIB} cores=30 context=400",
        f"device {B} memory={2 * GIB} cores=100",
    ]


@cases("cores, percent", (0, 100), (1, 1), (99, 99), (100, 100), (150, 100), (-1, 100))
def test_cores_without_a_limit_are_one_hundred_percent(cores, percent):
    assert limits_of([(CARDS[0], share(A, 1, cores))]).devices[0].cores == percent


@cases(
    "settings, env, found",
    ("nothing", {}, {}, {}),
    ("log level of the node", {"log_level": "1"}, {}, {"log_level": 1}),
    ("what launches are charged by", {"compute_by": "nvml"}, {}, {"compute_by": "nvml"}),
    ("copies are charged", {"compute_of": "all"}, {}, {"compute_of": "all"}),
    ("log level of the pod", {"log_level": "1"}, {"LIBCUDA_LOG_LEVEL": "4"}, {"log_level": 4}),
    ("highest log level", {}, {"LIBCUDA_LOG_LEVEL": "40"}, {"log_level": 9}),
    ("no log level", {}, {"LIBCUDA_LOG_LEVEL": "much"}, {}),
    ("policy of the node", {"disable_core_limit": True}, {}, {"policy": "disable"}),
    (
        "policy of the pod",
        {"disable_core_limit": True},
        {"GPU_CORE_UTILIZATION_POLICY": "FORCE"},
        {"policy": "force"},
    ),
    (
        "no policy",
        {"disable_core_limit": True},
        {"GPU_CORE_UTILIZATION_POLICY": "x\nregion /x"},
        {},
    ),
    ("high priority", {}, {"CUDA_TASK_PRIORITY": "0"}, {"priority": 0}),
    ("highest priority", {}, {"CUDA_TASK_PRIORITY": "-3"}, {"priority": 0}),
    ("no priority", {}, {"CUDA_TASK_PRIORITY": "9" * 5000}, {}),
)
def test_settings_of_node_and_pod(settings, env, found):
    limits = limits_of([(CARDS[0], share(A, 1))], config(node=NODE, **settings), **env)
    assert limits == ContainerLimits(devices=limits.devices, **found)


def test_more_devices_than_the_region_has_are_refused():
    cards = [replace(CARDS[0], uuid=f"GPU-{number}", index=number) for number in range(17)]
    assert len(limits_of([(card, share(card.uuid)) for card in cards[:16]]).devices) == 16
    with pytest.raises(Rejected, match="supports 16 devices in a container, not 17"):
        limits_of([(card, share(card.uuid)) for card in cards])


def test_the_text_of_limits_that_hold_copies_too():
    text = render_limits(replace(PAIR, compute_of="all"), "/usr/local/vgpu/t.cache")
    assert "\ncompute-of all\n" in text


def test_the_text_of_limits():
    assert (
        render_limits(PAIR, "/usr/local/vgpu/t.cache")
        == f"""hami-limits 1
region /usr/local/vgpu/t.cache
priority 0
policy force
log-level 3
device {A} memory=1073741824 cores=30
device {B} memory=2147483648 cores=100
"""
    )


@cases(
    "cores, most, found",
    ("no limit of the pod", 30, None, (30, 0)),
    ("its limit", 30, 60, (30, 60)),
    ("all cores", 30, 100, (30, 0)),
    ("never below what it has booked", 80, 60, (80, 80)),
    ("whole devices", 100, 60, (100, 0)),
    ("no cores of its own", 0, 60, (60, 60)),
    ("neither", 0, None, (100, 0)),
)
def test_what_a_container_may_use_of_the_cores(cores, most, found):
    assert core_limits(cores, most) == found
    (device,) = container_limits(
        CONFIG, [(CARDS[0], share(A, 1, cores))], {}, cores_most=most
    ).devices
    assert (device.cores, device.cores_most) == found


def test_the_most_cores_are_written_where_they_are_limited():
    limits = ContainerLimits(
        devices=(DeviceLimit(A, GIB, 30, 7, cores_most=60), DeviceLimit(B, GIB, 30))
    )
    text = render_limits(limits, "/x")
    assert text.splitlines()[-2:] == [
        f"device {A} memory={GIB} cores=30 cores-most=60 context=7",
        f"device {B} memory={GIB} cores=30",
    ]
    assert [device.cores_most for device in parse_limits(text).devices] == [60, 0]


def test_the_text_of_limits_can_be_read_again():
    assert parse_limits(render_limits(PAIR, "/x")) == ContainerLimits(
        devices=PAIR.devices, priority=0
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hami-limits 2\n",
        "hami-limits 1\npriority x\n",
        "hami-limits 1\npriority\n",
        "hami-limits 1\ndevice GPU-a memory=1\n",
        "hami-limits 1\ndevice GPU-a x\n",
    ],
)
def test_another_text_is_none_of_limits(text):
    assert parse_limits(text) is None


def test_units_of_memory_are_read_as_the_limiter_reads_them():
    text = "hami-limits 1\ndevice a memory=8g cores=1\ndevice b memory=3M cores=1\ndevice c memory=5k cores=1\n"
    assert [device.memory for device in parse_limits(text).devices] == [8 << 30, 3 << 20, 5 << 10]


@cases(
    "before, after",
    ("units", "device a memory=8g cores=30", "device a memory=77 cores=40"),
    ("nothing to change", "device a memory=77 cores=40", "device a memory=77 cores=40"),
    (
        "other words and their order",
        "device a context=9 cores=30 later=x memory=8g",
        "device a context=9 cores=40 later=x memory=77",
    ),
    (
        "what a container may use alone",
        "device a cores-most=80 memory=8g cores=30",
        "device a cores-most=80 memory=77 cores=40",
    ),
    (
        "never less than the cores, which the limiter refuses",
        "device a memory=8g cores=30 cores-most=35",
        "device a memory=77 cores=40 cores-most=40",
    ),
    (
        "limits that were not there",
        "device a cores-most=0",
        "device a cores-most=0 memory=77 cores=40",
    ),
    ("no words", "device a", "device a memory=77 cores=40"),
    ("a comment", "# device a memory=8g cores=30", "# device a memory=8g cores=30"),
    ("another device", "device ab memory=8g cores=30", "device ab memory=8g cores=30"),
)
def test_only_the_amounts_of_a_device_change(before, after):
    around = "hami-limits 1\nregion /memory=1\n\n# memory=1 cores=1\n{}\nlog-level 2\n"
    changed = resized_text(around.format(before), [DeviceLimit("a", 77, 40)])
    assert changed.rstrip("\n") + "\n" == around.format(after)


def test_the_text_of_limits_never_gets_shorter():
    """One write then replaces all of it, and a longer text uses the room again."""
    text = render_limits(PAIR, "/x")
    small = resized_text(text, [DeviceLimit(A, 5, 1)])
    assert (len(small), small.endswith("\n\n")) == (len(text), True)
    assert parse_limits(small).devices == (DeviceLimit(A, 5, 1), PAIR.devices[1])
    assert resized_text(small, PAIR.devices) == text
    assert len(resized_text(text, [DeviceLimit(A, 10**15, 1)])) == len(text) + 5


def test_the_region_is_that_of_the_tests_of_the_limiter(tmp_path):
    make_region(path := tmp_path / "region", [GIB, 2 * GIB], [30, 100], [A, B], priority=0)
    assert region_of(PAIR) == path.read_bytes()


def test_the_region_in_detail(tmp_path):
    (path := tmp_path / "region").write_bytes(region_of(PAIR))
    region = Region(path)
    assert len(region.memory) == FILE_SIZE == 2_008_953
    assert [region.number(offset) for offset in (0, 4, 8)] == [19920718, 1, 2]
    assert [(region.uuid(place), region.limit(place)) for place in (0, 1, 2)] == [
        (A, GIB),
        (B, 2 * GIB),
        ("", 0),
    ]
    assert (region.number(56, "<Q"), region.used, region.slots()) == (2, 0, [])
    assert [region.number(offset, "<Q") for offset in (24, 32, 2_008_920, 2_008_928)] == [
        1,
        128,
        1,
        128,
    ]
