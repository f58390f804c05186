"""The real pynvml: on the cards of this machine, if there are any, and on a fake library with two cards.

pynvml cannot unload a library, so each test runs in another process.
"""

import multiprocessing
import os
import re
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from hami.codec.device_config import MigAllowance
from hami.codec.register import parse_devices_json
from hami.devices.config import PluginConfig
from hami.devices.inventory import DeviceInventory
from hami.devices.nvml import NvmlCards
from hami.devices.nvml_library import open_nvml
from hami.devices.registration import node_annotations, offered_card
from hami.devices.usage import NvmlUsage, ProcessUsage
from hami.errors import HamiError
from testing.builders import NVIDIA
from testing.cards import Reports, Stop
from testing.cases import cases
from testing.driver_root import FOLDER, compile_nvml

ALLOWLIST = (MigAllowance(("A100-SXM4-80GB",), ("1g.10gb", "2g.20gb")),)
GPU_IS_LOST = 15


class Process:
    """Another process that makes calls."""

    def __init__(self, root):
        """*root*: root of the driver, the first argument of each call."""
        self._root = root
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def __call__(self, call, *arguments, **environment):
        """Returns or raises what *call* does in the process."""
        return self._pool.submit(_called, environment, call, self._root, *arguments).result(
            timeout=60
        )

    def end(self):
        self._pool.shutdown()


def _called(environment, call, *arguments):
    os.environ.update(environment)
    try:
        return call(*arguments)
    finally:
        for name in environment:
            del os.environ[name]


@pytest.fixture(scope="module")
def machine():
    """A process with the driver of this machine, if there is one."""
    process = Process("/")
    yield process
    process.end()


def cards(root):
    return NvmlCards(open_nvml(root), ALLOWLIST).cards()


def usage(root):
    return NvmlUsage(open_nvml(root)).read(time.time())


def reports(root, most, seconds):
    """The first *most* health reports, or those of so many *seconds*."""
    heard, end = Reports(), time.monotonic() + seconds
    NvmlCards(open_nvml(root)).watch_health(
        heard,
        Stop(lambda: len(heard.causes) >= most or time.monotonic() > end, time.sleep),
    )
    return heard.causes


# ---- this machine's cards


@pytest.fixture
def real(machine):
    """The cards of this machine."""
    try:
        found = machine(cards)
    except HamiError as error:
        pytest.skip(f"no card on this machine: {error}")
    assert found, "a driver, but no card"
    return found


def test_cards_of_this_machine_have_the_properties_that_schedulers_need(real):
    for card in real:
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", card.uuid)
        assert (card.problem, 1000 < card.memory_mib < 1_000_000, bool(card.model)) == (
            "",
            True,
            True,
        )
        assert card.mig or Path(f"/dev/nvidia{card.minor}").exists()
    assert [card.index for card in real] == list(range(len(real)))


def test_schedulers_can_parse_the_registration_of_this_machine(real):
    config = PluginConfig(node="n1")
    inventory = DeviceInventory(lambda card: offered_card(card, config))
    inventory.update(real)
    text = node_annotations(inventory.snapshot(), config, NVIDIA)[NVIDIA.annotations.register]
    found = parse_devices_json(NVIDIA.annotations.register, text, "NVIDIA")
    assert [(device.uuid, device.memory_mib, device.slots) for device in found] == [
        (card.uuid, card.memory_mib, config.nvidia.device_split_count) for card in real
    ]


def test_usage_of_this_machine_is_read(real, machine):
    found = machine(usage)
    assert [card.uuid for card in found] == [card.uuid for card in real]
    for card in found:
        assert 0 <= card.memory_used <= card.memory
        assert card.problems == ()


def test_health_of_this_machine_is_watched_until_stopped(real, machine):
    began = time.monotonic()
    found = machine(reports, 10**6, 3)
    assert {reason for _, reason in found} <= {""}
    assert time.monotonic() - began < 40


# ---- a library's


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The root of a driver whose libnvidia-ml.so.1 has two cards."""
    root = tmp_path_factory.mktemp("driver")
    (root / FOLDER).mkdir(parents=True)
    compile_nvml(root / FOLDER / "libnvidia-ml.so.1", "550.1")
    return str(root)


@pytest.fixture(scope="module")
def inside(library):
    """A process with that driver."""
    process = Process(library)
    yield process
    process.end()


def test_structures_match_the_driver_s_header(inside):
    first, second = inside(cards)
    assert (first.uuid, first.index, first.minor, first.model, first.memory_mib, first.problem) == (
        "GPU-0",
        0,
        4,
        "NVIDIA A100-SXM4-80GB",
        81920,
        "",
    )
    assert [
        (one.name, one.memory_mib, one.cores, one.slices, [place.start for place in one.placements])
        for one in first.profiles
    ] == [("1g.10gb", 9728, 50, 1, list(range(7))), ("2g.20gb", 19968, 100, 2, [0, 2, 4])]
    assert (second.uuid, second.minor, second.memory_mib, second.profiles) == (
        "GPU-1",
        5,
        15360,
        (),
    )


def test_structures_of_usage_match_the_driver_s_header(inside):
    """The library has no function for processes of MPS: that is no problem."""
    first, second = inside(usage)
    assert (
        first.memory,
        first.memory_used,
        first.utilization,
        first.memory_utilization,
        first.processes,
    ) == (80 << 30, 4096, 60, 20, {})
    assert second.processes == {4007: ProcessUsage(1 << 30, 45), 4008: ProcessUsage(None, 0)}
    assert (second.utilization, first.problems, second.problems) == (61, (), ())


@cases(
    "function, problem",
    ("nvmlDeviceGetComputeRunningProcesses_v3", "processes: GPU is lost"),
    ("nvmlDeviceGetUtilizationRates", "utilization: GPU is lost"),
    ("nvmlDeviceGetProcessUtilization", "utilization of processes: GPU is lost"),
)
def test_usage_of_a_failing_card_does_not_hide_others(inside, function, problem):
    first, second = inside(usage, FAKE_NVML_FAIL=f"{function}:1:{GPU_IS_LOST}")
    assert (first.problems, second.problems) == ((), (problem,))


@cases(
    "function, problems",
    ("nvmlDeviceGetMemoryInfo", ["", "memory: GPU is lost"]),
    ("nvmlDeviceGetName", ["", "name: GPU is lost"]),
    ("nvmlDeviceGetUUID", [""]),
    ("nvmlDeviceGetHandleByIndex_v2", [""]),
    ("nvmlDeviceGetPciInfo_v3", ["", ""]),
)
def test_a_failing_card_does_not_hide_others(inside, function, problems):
    assert [
        card.problem for card in inside(cards, FAKE_NVML_FAIL=f"{function}:1:{GPU_IS_LOST}")
    ] == problems


@cases(
    "function, says",
    ("nvmlInitWithFlags", "no NVIDIA driver available"),
    ("nvmlDeviceGetCount_v2", "NVML cannot count the cards"),
)
def test_a_driver_that_does_not_answer_is_an_error(inside, function, says):
    with pytest.raises(HamiError, match=f"{says}: GPU is lost"):
        inside(cards, FAKE_NVML_FAIL=f"{function}:-1:{GPU_IS_LOST}")


@cases(
    "xid, expected",
    ("critical", "79", [("GPU-0", ""), ("GPU-1", ""), ("GPU-1", "XID 79")]),
    ("caused by an application", "31", [("GPU-0", ""), ("GPU-1", "")]),
)
def test_events_are_received(library, xid, expected):
    process = Process(library)  # the library sends the event once
    assert process(reports, 3, 2, FAKE_NVML_XID=xid) == expected
    process.end()


def follow(root, file, texts):
    """The health of the second card after each of *texts* in *file*, as soon as it is another."""
    heard, found, texts = Reports(), [], iter(texts)

    def is_over():
        if len(heard.causes) < len(found) + 2:  # the two cards, then each change
            return False
        found.append(heard.causes[-1])
        text = next(texts, None)
        if text is not None:
            file.write_text(text)
        return text is None

    NvmlCards(open_nvml(root)).watch_health(heard, Stop(is_over, time.sleep))
    return found, [(event.gpu, event.xid, event.kind.value) for event in heard.xids]


def test_the_driver_s_word_is_asked_for_when_its_event_comes(library, tmp_path):
    file = tmp_path / "health"
    file.write_text("0 0 0 0 0")
    process = Process(library)
    texts = ["1 1 95 0 1", "1 1 95 0 0", "1 1 95 0 2"]
    assert process(follow, file, texts, FAKE_NVML_HEALTH=str(file)) == (
        [
            ("GPU-1", ""),
            ("GPU-1", "the driver asks: reset the GPU (after XID 95)"),
            ("GPU-1", ""),
            ("GPU-1", "the driver asks: reboot the node"),
        ],
        [("GPU-1", 95, "reset")],
    )
    process.end()


def create_and_destroy(root):
    """The created, existing and remaining instances, the MIG devices, and the error of a refused one."""
    instances = NvmlCards(open_nvml(root), ALLOWLIST).instances
    instances.enable_mig("GPU-0")
    created = [
        instances.create("GPU-0", "1g.10gb", 3, 1),
        instances.create("GPU-0", "2g.20gb", 4, 2),
    ]
    try:
        refused = instances.create("GPU-0", "1g.10gb", 5, 1)
    except HamiError as error:
        refused = str(error)
    existing, devices = list(instances.existing("GPU-0")), list(instances.devices("GPU-0"))
    for one in created:
        instances.destroy(one)
    return created, existing, devices, list(instances.existing("GPU-0")), refused


def test_instances_are_created_found_and_destroyed(inside):
    created, existing, devices, remaining, refused = inside(create_and_destroy)
    assert [
        (one.profile, one.start, one.size, one.uuid, one.gpu_instance, one.busy) for one in created
    ] == [("1g.10gb", 3, 1, "MIG-1", 1, False), ("2g.20gb", 4, 2, "MIG-2", 2, False)]
    assert (existing, remaining) == (created, [])
    assert [(one.uuid, one.profile, one.gpu_instance) for one in devices] == [
        ("MIG-1", "1g.10gb", 1),
        ("MIG-2", "2g.20gb", 2),
    ]
    assert "1g.10gb at 5" in refused


def create_incompletely(root):
    """The error of an instance that cannot be created, and the instances that exist afterwards."""
    instances = NvmlCards(open_nvml(root), ALLOWLIST).instances
    instances.enable_mig("GPU-0")
    try:
        instances.create("GPU-0", "1g.10gb", 3, 1)
    except HamiError as error:
        return str(error), list(instances.existing("GPU-0"))
    raise AssertionError("it was created")


def test_an_incomplete_instance_is_destroyed(inside):
    found = inside(
        create_incompletely, FAKE_NVML_FAIL=f"nvmlGpuInstanceCreateComputeInstance:0:{GPU_IS_LOST}"
    )
    assert found == ("GPU-0: 1g.10gb at 3: GPU is lost", [])
