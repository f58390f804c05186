"""The driver is replaced under a device plugin and a monitor beside a real kubelet.

Both load stand-ins of NVIDIA's library, in two versions, with the real nvidia-ml-py. A kubelet would start programs
again that end; here the test does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testing.device_plugin import HOOK, RESOURCE, SLOTS, DevicePlugin
from testing.driver_root import DriverRoot, compile_nvml
from testing.eventually import eventually
from testing.monitor import Monitor
from testing.nodes import REGISTER
from testing.realnode import NodeProgram, RealNode
from testing.shown import seen, shower

pytestmark = pytest.mark.kind
Object = dict[str, Any]
OLD, NEW = "570.1", "580.2"
OFFERED = 2 * SLOTS
ENDED_SECONDS = 150
"""A minute of errors, and the attempts before and after it; twice that would be a hang."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """NVML in two versions, compiled."""
    folder = tmp_path_factory.mktemp("nvml")
    for version in (OLD, NEW):
        compile_nvml(folder / version, version)
    return {version: folder / version for version in (OLD, NEW)}


@pytest.fixture
def driver(
    real: RealNode, libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> DriverRoot:
    """The old driver, on the node."""
    root = DriverRoot(Path(tempfile.mkdtemp(prefix="driver-", dir=real.folder)), libraries)
    monkeypatch.setenv("FAKE_NVML_MODULE", str(root.module))  # the programs inherit it
    root.replace(OLD)
    return root


@pytest.fixture
def plugin(real: RealNode, driver: DriverRoot) -> Iterator[DevicePlugin]:
    """The device plugin, with that driver; the kubelet offers its cards."""
    flags = {"mock_devices": "", "driver_root_ctr_path": str(driver.path)}
    with DevicePlugin.offered(real, OFFERED, **flags) as made:
        yield made


@pytest.fixture
def monitor(real: RealNode, driver: DriverRoot) -> Iterator[Monitor]:
    """The monitor, with that driver."""
    made = Monitor(real, mock_devices="", driver_root_ctr_path=str(driver.path))
    made.start()
    yield made
    made.close()


def healthy(node: Object) -> int:
    """Returns the number of healthy devices that the node registers."""
    text: str = (node["metadata"].get("annotations") or {}).get(REGISTER, "")
    return text.count('"health":true')


def answers(monitor: Monitor) -> float | None:
    """Returns whether the driver answers the monitor, by its metrics, which are none after it stood still."""
    values = (
        sample.value
        for family in text_string_to_metric_families(monitor.page())
        for sample in family.samples
        if sample.name == "hami_monitor_nvml_up"
    )
    return next(values, None)


def wait_ended(program: NodeProgram) -> None:
    """Waits until *program* has ended by itself, with a status that says so."""
    eventually(
        lambda: not program.running(), lambda: f"it ends:\n{program.tail()}", timeout=ENDED_SECONDS
    )
    assert program.exit_code == 1, program.tail()
    assert "only a new process could use the driver" in program.tail()


def test_a_driver_that_is_replaced_is_used_by_new_processes(sandbox, real, driver, plugin, monitor):
    sandbox.create(shower(HOOK, "before", gpu=1, gpumem=3000))
    sandbox.running("before")
    eventually(lambda: answers(monitor) == 1, monitor.log)
    driver.replace(NEW)
    real.wait_allocatable(RESOURCE, 0)
    real.wait_node(lambda node: healthy(node) == 0, what="says that no device is healthy")
    status, reason = plugin.readiness()
    assert (status, "the state of the devices is unknown" in reason) == (503, True)
    eventually(lambda: answers(monitor) == 0, monitor.log)
    wait_ended(plugin.program)
    wait_ended(monitor.program)
    assert (healthy(real.node()), real.allocatable(RESOURCE)) == (0, 0)
    plugin.start().wait_offered(OFFERED)
    monitor.start()
    real.wait_node(lambda node: healthy(node) == 2, what="says that its devices are healthy")
    eventually(lambda: answers(monitor) == 1, monitor.log)
    sandbox.create(shower(HOOK, "after", gpu=1, gpumem=4000))
    sandbox.running("before", "after")
    assert seen(sandbox, real, "after").env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"


def test_a_start_without_the_new_module_offers_nothing_and_waits(real, driver, plugin):
    driver.install(NEW)
    plugin.stop()
    plugin.start()
    eventually(lambda: "no NVIDIA driver available" in plugin.log(), plugin.log)
    assert plugin.readiness()[0] == 503
    real.wait_node(lambda node: healthy(node) == 0, what="says that no device is healthy")
    real.wait_allocatable(RESOURCE, 0)
    driver.load(NEW)
    plugin.wait_offered(OFFERED)
    real.wait_node(lambda node: healthy(node) == 2, what="says that its devices are healthy")
