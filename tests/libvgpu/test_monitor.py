"""The monitor beside real processes with the limiter: what it reads, and what they do about what it writes."""

import os
import struct
import time

import pytest

from hami.monitor.region_files import RegionFiles, RegionState
from hami.monitor.regions import control_writes, uncounted_writes, usage_writes
from testing.limiter.rig import MIB, uuid_of
from tests.libvgpu.test_plugin_files import Container

KEY = ("uid", "main")


@pytest.fixture
def made(builds, tmp_path):
    """A container with a share of two cards, which the device plugin has prepared."""
    container = Container(tmp_path, builds, (1500, 500))
    yield container
    container.close()


@pytest.fixture
def files(tmp_path):
    return RegionFiles(tmp_path)


def test_the_region_is_there_before_the_first_process(made, files):
    read = files.read(*KEY)
    assert (read.state, read.region.processes, read.throttled[:2]) == (RegionState.OK, (), (0, 0))
    assert [
        (one.uuid, one.memory_limit, one.core_limit, one.total) for one in read.region.devices
    ] == [(uuid_of(0), 1500 * MIB, 30, 0), (uuid_of(1), 500 * MIB, 30, 0)]


def test_what_processes_have_allocated(made, files):
    clients = [made.client().start() for _ in range(2)]
    for number, client in enumerate(clients):
        assert client.do(f"alloc plain 0 {(number + 1) * 100 * MIB}") == 0
    region = files.read(*KEY).region
    assert [one.total for one in region.devices] == [300 * MIB, 0]
    assert sum((one.context + one.module + one.buffer for one in region.devices)) == 300 * MIB
    assert {one.pid for one in region.processes} == {client.process.pid for client in clients}


def test_a_launch_waits_until_the_monitor_lets_it_go(made, files):
    client = made.client().start()
    client.do("module")
    assert client.do("launch plain idle 1") == 0
    read = files.read(*KEY, heartbeat=time.monotonic_ns())
    assert read.region.recent_kernel == 2
    files.write(*KEY, read, control_writes(read.region.layout, -1, 1))
    client.send("launch plain idle 1")
    time.sleep(0.3)
    assert files.read(*KEY).region.recent_kernel == -1
    files.write(*KEY, read, control_writes(read.region.layout, 0, 1))
    assert client.answer() == [0]
    assert files.read(*KEY).region.recent_kernel == 2


def test_a_sample_of_the_monitor_reaches_the_law_of_the_limit(made, files):
    """The compute file shows the time of the last one that was taken."""
    client = made.client().start()
    client.do("module")
    client.do("launch plain busy_100 50")
    region = files.read(*KEY).region
    (process,) = region.processes
    when = time.monotonic_ns()
    told = usage_writes(region, {process.slot: os.getpid()}, {process.slot: [30, 0]}, when)
    files.write(*KEY, files.read(*KEY), told)
    assert files.read(*KEY).region.processes[0].host_pid == os.getpid()
    client.do("launch plain busy_100 50")
    content = (made.directory / "0f0e.sm").read_bytes()
    assert struct.unpack_from("<Q", content, 256 + 32) == (when,)
    assert files.read(*KEY).throttled[0] > 0


def test_the_limit_holds_on_the_sum_with_what_only_the_driver_sees(made, files):
    """Code that is loaded at the first launch is in no count of the limiter's."""
    client = made.client(FAKE_CUDA_LAZY_KIB=str(100 << 10)).start()
    client.do("module")
    assert client.do("launch plain idle 1") == 0
    reading = files.read(*KEY)
    (process,) = reading.region.processes
    assert reading.region.devices[0].total == 0
    files.write(*KEY, reading, uncounted_writes(reading.region, (100 * MIB, 0)))
    assert client.do("info") == [0, 1400 * MIB, 1500 * MIB]
    assert client.do(f"alloc plain 0 {1401 * MIB}") == 2
    assert client.do(f"alloc plain 0 {1400 * MIB}") == 0
    assert files.read(*KEY).region.devices[0].total == 1400 * MIB  # what the process itself counts
