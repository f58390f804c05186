"""The driver is replaced under a running monitor and a running device plugin.

The programs load a library with the real nvidia-ml-py, which cannot unload it: each runs in a process of its own.
"""

import importlib
import multiprocessing
import queue
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from hami.devices.nvml_library import RESTART_S, DriverLibrary
from hami.model import Node
from hami.monitor.source import REOPEN_S, DriverSource
from hami.plugin.program import DevicePluginProgram, serve
from hami.plugin.settings import read_plugin_settings
from hami.runtime.signals import STOP_SIGNALS
from testing.cases import cases
from testing.driver_root import DriverRoot, compile_nvml
from testing.fake_cluster import FakeCluster
from testing.fake_kubelet import Kubelet

OLD, NEW = "570.1", "580.2"
REGISTER = "hami.io/node-nvidia-register"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The libraries of two versions of the driver, compiled."""
    folder = tmp_path_factory.mktemp("nvml")
    for version in (OLD, NEW):
        compile_nvml(folder / version, version)
    return {version: folder / version for version in (OLD, NEW)}


@pytest.fixture
def driver(tmp_path, libraries, monkeypatch):
    """A node with the old driver."""
    root = DriverRoot(tmp_path / "driver", libraries)
    monkeypatch.setenv("FAKE_NVML_MODULE", str(root.module))  # new processes inherit it
    root.replace(OLD)
    return root


@pytest.fixture
def process():
    """Starts calls in processes, which are new for each and end with the test."""
    pools = []

    def start(call, *arguments):
        pools.append(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        return pools[-1].submit(call, *arguments)

    yield start
    for pool in pools:
        pool.shutdown(wait=False, cancel_futures=True)


# ---- the monitor


def watch(root, steps):
    """What a monitor reads after each of *steps*, and whether only a new process can go on: names of methods of the
    driver with an argument each, or seconds that pass."""
    clock = [0.0]
    source = DriverSource(DriverLibrary(clock=lambda: clock[0]), str(root.path))
    seen = []
    for step in steps:
        if isinstance(step, float):
            clock[0] += step
        else:
            name, argument = step
            getattr(root, name)(argument)
        cards = source.read(clock[0])
        seen.append((None if cards is None else len(cards), source.restart_reason() != ""))
    return seen


LATER = REOPEN_S + 1
ALL, NOTHING, ENDS = (2, False), (None, False), (None, True)


@cases(
    "steps, expected",
    ("replaced", [1.0, ("replace", NEW), LATER, LATER], [ALL, NOTHING, NOTHING, ENDS]),
    ("unloaded", [1.0, ("load", ""), LATER, LATER], [ALL, NOTHING, NOTHING, ENDS]),
    (
        "unloaded for a moment",
        [1.0, ("load", ""), ("load", OLD), LATER],
        [ALL, NOTHING, NOTHING, ALL],
    ),
    (
        "only its libraries: what is loaded still answers",
        [1.0, ("install", NEW), RESTART_S, RESTART_S],
        [ALL, ALL, ALL, ALL],
    ),
    ("waits for a driver", [("load", ""), *[LATER] * 20], [NOTHING] * 21),
    ("waits for the driver of its library", [("load", NEW), *[LATER] * 20], [NOTHING] * 21),
    (
        "waits, and it comes",
        [("load", ""), LATER, ("load", OLD), LATER],
        [NOTHING, NOTHING, NOTHING, ALL],
    ),
    (
        "waits, and another one comes",
        [("load", ""), LATER, LATER, ("replace", NEW), LATER],
        [NOTHING, NOTHING, NOTHING, ENDS, ENDS],
    ),
)
def test_a_monitor_ends_for_a_driver_that_only_a_new_process_can_use(
    driver, process, steps, expected
):
    assert process(watch, driver, steps).result(timeout=60) == expected


def test_the_next_process_of_a_monitor_uses_the_new_driver(driver, process):
    assert (
        process(watch, driver, [1.0, ("replace", NEW), LATER, LATER]).result(timeout=60)[-1] == ENDS
    )
    assert process(watch, driver, [1.0]).result(timeout=60) == [ALL]


# ---- the device plugin


def run_plugin(root, directory, stop):
    """Runs a device plugin until it ends or the file *stop* exists; returns its exit status, and the health of the
    devices as the node has them. Its clock runs a hundred times as fast while no device is healthy, and stands still
    otherwise: it does not end before the node says so."""
    reader = importlib.import_module("hami.plugin.card_reader")
    reader.INTERVAL_S, reader.RETRY_S = 0.5, 0.1
    settings = read_plugin_settings(
        {
            "node": "n1",
            "driver_root_in_container": str(root.path),
            "device_split_count": 1,
            "kubelet_socket": str(directory / "kubelet.sock"),
            "hook_path": str(directory / "hook"),
        },
        {},
    )
    cluster = FakeCluster(nodes=[Node(name="n1")])

    def healthy():
        return cluster.nodes["n1"].annotations.get(REGISTER, "").count('"health":true')

    library = DriverLibrary(clock=lambda: 0.0 if healthy() else 100 * time.monotonic())

    class Signals(queue.SimpleQueue):
        def get(self, timeout=None):
            time.sleep(0.05)
            if stop.exists():
                return STOP_SIGNALS[0]
            raise queue.Empty

    status = serve(
        settings,
        lambda: settings,
        library=library,
        signals=Signals(),
        on_started=lambda: None,
        make=lambda settings: DevicePluginProgram(settings, cluster=cluster, library=library),
    )
    return status, healthy()


@pytest.fixture
def plugin(driver, directory, process, tmp_path):
    """Starts device plugins; the last one is stopped by the function that is returned beside it."""

    def start():
        return process(run_plugin, driver, directory, tmp_path / "stop")

    def stop():
        (tmp_path / "stop").touch()

    yield start, stop
    stop()


@pytest.fixture
def directory(tmp_path_factory):
    """The kubelet's directory, with a path short enough for sockets."""
    return tmp_path_factory.mktemp("k")


@pytest.fixture
def kubelet(directory):
    """A kubelet that has registered nothing."""
    made = Kubelet(directory)
    yield made
    made.stop()


def offered(kubelet):
    """The health of the devices that a plugin offers, which has just registered."""
    kubelet.registered.get(timeout=60)
    kubelet.listen()
    return kubelet.next_list()


HEALTHY, UNHEALTHY = (
    {"GPU-0-0": "Healthy", "GPU-1-0": "Healthy"},
    {"GPU-0-0": "Unhealthy", "GPU-1-0": "Unhealthy"},
)


def test_a_device_plugin_offers_no_card_of_a_replaced_driver_and_ends(driver, plugin, kubelet):
    start, stop = plugin
    running = start()
    assert offered(kubelet) == HEALTHY
    driver.replace(NEW)
    assert kubelet.next_list() == UNHEALTHY
    assert running.result(timeout=60) == (1, 0)
    assert kubelet.next_list() is None
    restarted = start()
    assert offered(kubelet) == HEALTHY
    stop()
    assert restarted.result(timeout=60) == (0, 2)


def test_a_device_plugin_offers_no_card_whose_libraries_are_those_of_another_driver(
    driver, plugin, kubelet
):
    start, stop = plugin
    running = start()
    assert offered(kubelet) == HEALTHY
    driver.install(NEW)
    assert kubelet.next_list() == UNHEALTHY
    driver.install(OLD)
    assert kubelet.next_list() == HEALTHY
    stop()
    assert running.result(timeout=60)[0] == 0


def test_a_device_plugin_that_starts_without_the_driver_of_its_library_waits(
    driver, plugin, kubelet
):
    start, stop = plugin
    driver.load(NEW)
    running = start()
    with pytest.raises(TimeoutError):
        running.result(timeout=3)
    driver.load(OLD)
    assert offered(kubelet) == HEALTHY
    stop()
    assert running.result(timeout=60) == (0, 2)
