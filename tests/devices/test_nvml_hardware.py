"""pynvml and all below it: on the cards of this machine, if it has any, and on a library that only says it had some.

What pynvml has loaded stays loaded, so all of it happens in other processes.
"""

import multiprocessing
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from pytest import param

from hami.codec.device_config import MigAllowance
from hami.codec.register import parse_devices_json
from hami.errors import HamiError
from hami.devices.config import PluginConfig
from hami.devices.nvml import NvmlCards
from hami.devices.nvml_library import open_nvml
from hami.devices.registration import RegistrationKeys, node_annotations, offered_card
from hami.devices.inventory import DeviceInventory

KEYS = RegistrationKeys("register", "handshake")
ALLOWLIST = (MigAllowance(("A100-SXM4-80GB",), ("1g.10gb", "2g.20gb")),)
GPU_IS_LOST = 15


class Process:
    """Another process, which makes calls here and there."""

    def __init__(self, root):
        """*root*: of the driver that it uses, handed to each call."""
        self._root = root
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def __call__(self, call, *arguments, **environment):
        """What *call* returns, or raises, there."""
        return self._pool.submit(_called, environment, call, self._root, *arguments).result(timeout=60)

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
    made = Process("/")
    yield made
    made.end()


def cards(root):
    return NvmlCards(open_nvml(root), ALLOWLIST).cards()


def reports(root, most, seconds):
    """What is said of the cards' health, until *most* has been said, or so many *seconds* are over."""
    said, end = [], time.monotonic() + seconds
    NvmlCards(open_nvml(root)).watch_health(
        lambda uuid, reason: said.append((uuid, reason)), lambda: len(said) >= most or time.monotonic() > end)
    return said


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


def test_cards_of_this_machine_are_found_with_what_schedulers_need(real):
    for card in real:
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", card.uuid)
        assert (card.problem, 1000 < card.memory_mib < 1_000_000, bool(card.model)) == ("", True, True)
        assert card.mig or Path(f"/dev/nvidia{card.minor}").exists()
    assert [card.index for card in real] == list(range(len(real)))


def test_cards_of_this_machine_are_registered_as_schedulers_read_them(real):
    config = PluginConfig(node="n1")
    inventory = DeviceInventory(lambda card: offered_card(card, config))
    inventory.update(real)
    text = node_annotations(inventory.snapshot(), config, KEYS)[KEYS.register]
    found = parse_devices_json(KEYS.register, text, "NVIDIA")
    assert [(device.uuid, device.memory_mib, device.slots) for device in found] == [
        (card.uuid, card.memory_mib, config.split_count) for card in real]


def test_health_of_this_machine_s_cards_is_watched_until_it_is_told_to_stop(real, machine):
    began = time.monotonic()
    said = machine(reports, 10**6, 3)
    assert {reason for _, reason in said} <= {""}
    assert time.monotonic() - began < 40


# ---- a library's


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The root of a driver with a libnvidia-ml.so.1 that has two cards."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to make the library with")
    root = tmp_path_factory.mktemp("driver")
    (root / "usr/lib64").mkdir(parents=True)
    subprocess.run(["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-shared", "-fPIC",
                    "-Wl,-soname,libnvidia-ml.so.1", "-o", root / "usr/lib64/libnvidia-ml.so.1",
                    Path(__file__).with_name("fake_nvml.c")], check=True)
    return str(root)


@pytest.fixture(scope="module")
def inside(library):
    """A process with that driver."""
    made = Process(library)
    yield made
    made.end()


def test_structures_are_read_as_the_driver_writes_them(inside):
    first, second = inside(cards)
    assert (first.uuid, first.index, first.minor, first.model, first.memory_mib, first.problem) == (
        "GPU-0", 0, 4, "NVIDIA A100-SXM4-80GB", 81920, "")
    assert [(one.name, one.memory_mib, one.cores, one.slices, [place.start for place in one.placements])
            for one in first.profiles] == [
        ("1g.10gb", 9728, 50, 1, list(range(7))), ("2g.20gb", 19968, 100, 2, [0, 2, 4])]
    assert (second.uuid, second.minor, second.memory_mib, second.profiles) == ("GPU-1", 5, 15360, ())


@pytest.mark.parametrize("function, problems", [
    ("nvmlDeviceGetMemoryInfo", ["", "memory: GPU is lost"]),
    ("nvmlDeviceGetName", ["", "name: GPU is lost"]),
    ("nvmlDeviceGetUUID", [""]),
    ("nvmlDeviceGetHandleByIndex_v2", [""]),
    ("nvmlDeviceGetPciInfo_v3", ["", ""]),
])
def test_a_card_that_fails_hides_no_other(inside, function, problems):
    assert [card.problem for card in inside(cards, FAKE_NVML_FAIL=f"{function}:1:{GPU_IS_LOST}")] == problems


@pytest.mark.parametrize("function, says", [
    ("nvmlInitWithFlags", "no NVIDIA driver available"), ("nvmlDeviceGetCount_v2", "NVML cannot count the cards"),
])
def test_a_driver_that_does_not_answer_is_said(inside, function, says):
    with pytest.raises(HamiError, match=f"{says}: GPU is lost"):
        inside(cards, FAKE_NVML_FAIL=f"{function}:-1:{GPU_IS_LOST}")


@pytest.mark.parametrize("xid, said", [
    param("79", [("GPU-0", ""), ("GPU-1", ""), ("GPU-1", "XID 79")], id="the card"),
    param("31", [("GPU-0", ""), ("GPU-1", "")], id="a program"),
])
def test_events_are_heard(library, xid, said):
    process = Process(library)  # the library tells of it once
    assert process(reports, 3, 2, FAKE_NVML_XID=xid) == said
    process.end()


def cut_and_undone(root):
    """Instances that were made, are there, and are there in the end; and what was refused."""
    instances = NvmlCards(open_nvml(root), ALLOWLIST).instances
    instances.enable_mig("GPU-0")
    made = [instances.create("GPU-0", "1g.10gb", 3, 1), instances.create("GPU-0", "2g.20gb", 4, 2)]
    try:
        refused = instances.create("GPU-0", "1g.10gb", 5, 1)
    except HamiError as error:
        refused = str(error)
    there, devices = list(instances.existing("GPU-0")), list(instances.devices("GPU-0"))
    for one in made:
        instances.destroy(one)
    return made, there, devices, list(instances.existing("GPU-0")), refused


def test_instances_are_made_found_and_destroyed(inside):
    made, there, devices, left, refused = inside(cut_and_undone)
    assert [(one.profile, one.start, one.size, one.uuid, one.gpu_instance, one.busy) for one in made] == [
        ("1g.10gb", 3, 1, "MIG-1", 1, False), ("2g.20gb", 4, 2, "MIG-2", 2, False)]
    assert (there, left) == (made, [])
    assert [(one.uuid, one.profile, one.gpu_instance) for one in devices] == [
        ("MIG-1", "1g.10gb", 1), ("MIG-2", "2g.20gb", 2)]
    assert "1g.10gb at 5" in refused


def made_by_half(root):
    """What was said of an instance that could not be made, and what is there then."""
    instances = NvmlCards(open_nvml(root), ALLOWLIST).instances
    instances.enable_mig("GPU-0")
    try:
        instances.create("GPU-0", "1g.10gb", 3, 1)
    except HamiError as error:
        return str(error), list(instances.existing("GPU-0"))
    raise AssertionError("it was made")


def test_an_instance_that_is_made_by_half_is_unmade(inside):
    said = inside(made_by_half, FAKE_NVML_FAIL=f"nvmlGpuInstanceCreateComputeInstance:0:{GPU_IS_LOST}")
    assert said == ("GPU-0: 1g.10gb at 3: GPU is lost", [])
