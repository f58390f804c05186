"""The health of cards beside a real kubelet: NVIDIA's library is a stand-in, which says what tests tell it to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from testing.device_health import condition, health_of, told
from testing.device_plugin import HOOK, RESOURCE, SLOTS, DevicePlugin, cards
from testing.driver_root import DriverRoot, compile_nvml
from testing.nodes import REGISTER
from testing.placing import Part, place
from testing.realnode import RealNode
from testing.sandbox import Sandbox
from testing.shown import shower

pytestmark = pytest.mark.kind
Object = dict[str, Any]
VERSION = "570.1"
FOUR = cards(4)
FIRST, SECOND = FOUR[:2]
RESET = "the driver asks: reset the GPU"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVML, compiled."""
    path = tmp_path_factory.mktemp("nvml") / VERSION
    compile_nvml(path, VERSION)
    return path


@pytest.fixture
def driver(real: RealNode, library: Path, monkeypatch: pytest.MonkeyPatch) -> DriverRoot:
    """A driver with two cards, GPU-0 and GPU-1, that asks for nothing."""
    folder = Path(tempfile.mkdtemp(prefix="driver-", dir=real.folder))
    root = DriverRoot(folder, {VERSION: library})
    monkeypatch.setenv("FAKE_NVML_MODULE", str(root.module))  # the plugin inherits them
    monkeypatch.setenv("FAKE_NVML_HEALTH", str(root.health))
    root.replace(VERSION)
    for card in (0, 1):
        root.ask(card, 0)
    return root


@pytest.fixture
def plugin(real: RealNode, driver: DriverRoot) -> Iterator[DevicePlugin]:
    """The device plugin, with that driver; the kubelet offers its cards."""
    flags = {"mock_devices": "", "driver_root_ctr_path": str(driver.path)}
    with DevicePlugin.offered(real, 2 * SLOTS, **flags) as made:
        yield made


def wait_health(sandbox: Sandbox, **expected: str) -> None:
    """Waits until the status of each pod says this, and nothing else, of its devices."""

    def is_so(pods: dict[str, Object]) -> bool:
        return all(health_of(pods[name]) == [health] for name, health in expected.items())

    sandbox.kube.wait("Pod", is_so, sandbox.namespace, what=f"the pods say {expected}")


def events(sandbox: Sandbox, reason: str) -> set[str]:
    """Returns the pods that have an event with this *reason*."""
    found = sandbox.kube.list("Event", sandbox.namespace)
    return {each["involvedObject"]["name"] for each in found if each["reason"] == reason}


def two_pods(sandbox: Sandbox, real: RealNode) -> None:
    """Makes the pods *a* on the first card, and *b* on the second."""
    for name, card in (("a", "GPU-0"), ("b", "GPU-1")):
        place(sandbox, real, shower(HOOK, name, gpu=1, gpumem=1000), [Part(card, 1000)])
    sandbox.running("a", "b", timeout=120)


def test_a_card_is_unhealthy_while_the_driver_asks_for_a_reset(
    sandbox: Sandbox, real: RealNode, driver: DriverRoot, plugin: DevicePlugin
) -> None:
    two_pods(sandbox, real)
    real.wait_node(lambda node: condition(node)[0] == "True", what="says that all is well")
    driver.ask(1, 1)
    wait_health(sandbox, a="Healthy", b="Unhealthy")
    plugin.wait_offered(SLOTS)
    real.wait_node(lambda node: condition(node)[0] == "False", what="says so")
    node = real.node()
    assert condition(node) == ("False", f"GPU-1: {RESET}")
    (health,) = told(node).values()
    assert (health["cause"], health["remedy"]) == (RESET, "reset the GPU")
    sandbox.event("b", "GpuUnhealthy", RESET)
    assert events(sandbox, "GpuUnhealthy") == {"b"}
    driver.ask(1, 0)
    wait_health(sandbox, a="Healthy", b="Healthy")
    plugin.wait_offered(2 * SLOTS)
    real.wait_node(lambda node: condition(node)[0] == "True", what="says that all is well again")
    assert told(real.node()) == {}
    sandbox.event("b", "GpuHealthy")
    assert events(sandbox, "GpuHealthy") == {"b"}


def test_an_error_of_a_program_is_told_to_the_pods_of_its_card(
    sandbox: Sandbox, real: RealNode, driver: DriverRoot, plugin: DevicePlugin
) -> None:
    two_pods(sandbox, real)
    for xid in (94, 63, 31):
        driver.report_xid(1, xid)
    sandbox.event("b", "GpuApplicationError", "XID 31")
    assert events(sandbox, "GpuApplicationError") == {"b"}
    assert (real.allocatable(RESOURCE), told(real.node())) == (2 * SLOTS, {})


def test_without_the_drivers_word_an_xid_counts_until_another_driver_is_loaded(
    sandbox: Sandbox, real: RealNode, driver: DriverRoot, plugin: DevicePlugin
) -> None:
    plugin.stop()
    for card in (0, 1):
        driver.ask(card, -1)
    plugin.start().wait_offered(2 * SLOTS)
    two_pods(sandbox, real)
    driver.report_xid(1, 109)
    wait_health(sandbox, a="Healthy", b="Unhealthy")
    driver.report_xid(1, 31)
    sandbox.event("b", "GpuApplicationError", "XID 31")
    real.wait_node(lambda node: "GPU-1" in told(node), what="says so")
    plugin.stop()
    plugin.start().wait_offered(SLOTS)
    assert told(real.node())["GPU-1"]["cause"] == "XID 109"
    wait_health(sandbox, a="Healthy", b="Unhealthy")
    plugin.stop()
    driver.ask(0, 0)
    driver.ask(1, 0)
    plugin.start().wait_offered(2 * SLOTS)
    wait_health(sandbox, a="Healthy", b="Healthy")


@pytest.fixture
def mocked(real: RealNode) -> Iterator[DevicePlugin]:
    """A device plugin with two cards of equal size."""
    with DevicePlugin.offered(real, 2 * SLOTS, FIRST, SECOND) as made:
        yield made


@pytest.fixture
def four(real: RealNode) -> Iterator[DevicePlugin]:
    """A device plugin with four cards of equal size."""
    with DevicePlugin.offered(real, 4 * SLOTS, *FOUR) as made:
        yield made


def test_the_status_of_each_pod_of_a_burst_has_the_health_of_its_card(
    sandbox: Sandbox, real: RealNode, four: DevicePlugin
) -> None:
    """The kubelet chooses ids for pods of equal size without knowing whose call it is."""
    given = {f"p{k:02}": FOUR[k * 7 % 4].uuid for k in range(4 * SLOTS)}

    def bind(item: tuple[str, str]) -> None:
        name, uuid = item
        place(sandbox, real, shower(HOOK, name, gpu=1, gpumem=1000), [Part(uuid, 1000)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bind, given.items()))
    sandbox.running(*given, timeout=180)
    four.set_health(SECOND.uuid, "XID 79")
    expected = {}
    for name, uuid in given.items():
        expected[name] = "Unhealthy" if uuid == SECOND.uuid else "Healthy"
    wait_health(sandbox, **expected)
    unhealthy = {name for name, uuid in given.items() if uuid == SECOND.uuid}
    for name in unhealthy:
        sandbox.event(name, "GpuUnhealthy", "XID 79")
    assert events(sandbox, "GpuUnhealthy") == unhealthy
    sandbox.delete("p00")
    place(sandbox, real, shower(HOOK, "more", gpu=1, gpumem=1000), [Part(given["p00"], 1000)])
    sandbox.running("more")
    del given["p00"]
    four.set_health(SECOND.uuid, True)
    wait_health(sandbox, **dict.fromkeys(given, "Healthy"))


def test_a_card_that_is_no_longer_listed_is_unhealthy(
    sandbox: Sandbox, real: RealNode, mocked: DevicePlugin
) -> None:
    place(sandbox, real, shower(HOOK, "a", gpu=1, gpumem=1000), [Part(SECOND.uuid, 1000)])
    sandbox.running("a", timeout=120)
    mocked.insert(FIRST)
    wait_health(sandbox, a="Unhealthy")
    sandbox.event("a", "GpuUnhealthy", "no longer listed by the driver")
    mocked.insert(FIRST, SECOND)
    wait_health(sandbox, a="Healthy")
    real.wait_node(
        lambda node: SECOND.uuid in node["metadata"]["annotations"][REGISTER], what="registers it"
    )
