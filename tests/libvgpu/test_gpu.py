"""On a real GPU: what the fake driver cannot show. Skipped, with the reason, where there is none.

The GPU must have no other user while these run. A kernel of the client keeps the GPU busy for a time that it reads
from the GPU's own clock; what it takes with its launch is measured without the limiter, one after the other as fast as
the GPU can. GPU time is the number of kernels times that. With LD_LIBRARY_PATH, another driver can be used.

Needs the driver, gcc, make, Python with pytest and hypothesis, and the headers, which are fetched: for a machine
without a network, docs/limiter.md says what to copy.
"""

import os
import struct
import subprocess
import sys
import time

import pytest

from testing.cases import cases
from testing.limiter.layout import Region
from testing.limiter.rig import MIB
from tests.libvgpu.test_sharing import Ipc, Physical, Pooled, allocate, free

PROBE = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
for result in (driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count))):
    if result:
        raise SystemExit(f"the driver answers {result}")
if not count.value:
    raise SystemExit("the driver finds no GPU")
"""
MICROSECONDS = {"flood": 50, "medium": 20_000, "sync": 100_000}
"""What a kernel of each load waits for."""
CHARGED = 256 + 16
LIMIT, SHARED = 2048 * MIB, 128 * MIB


def obstacle():
    """Why there is no GPU here; empty if there is one."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False
    )
    return (
        ""
        if done.returncode == 0
        else (done.stderr.strip().splitlines() or ["the driver ends the process"])[-1]
    )


REASON = obstacle()
pytestmark = pytest.mark.skipif(REASON != "", reason=f"needs a GPU: {REASON}")


@pytest.fixture
def start(rig):
    """Starts a client on the GPU. *cores*: its compute limit; ``None``: it runs without the limiter."""

    def start(cores=100):
        more = (
            {}
            if cores is None
            else {
                "CUDA_DEVICE_MEMORY_LIMIT": str(LIMIT),
                "CUDA_DEVICE_SM_LIMIT": str(cores),
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(rig.folder / f"{cores}.cache"),
            }
        )
        more["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
        return rig.client(preload=cores is not None, **more).start()

    return start


def rate(client, load, seconds):
    """Kernels in a second."""
    begun = time.monotonic()
    count = client.do(f"load {load} {seconds * 1000}")
    return count / (time.monotonic() - begun)


@pytest.fixture
def microseconds(start):
    """What a kernel of a load takes on this GPU."""

    def measured(load):
        client = start(None)
        rate(client, load, 1)
        took = 1e6 / rate(client, load, 3)
        client.close()
        print(f"a kernel of {MICROSECONDS[load]} us takes {took:.1f} us")
        assert MICROSECONDS[load] <= took <= MICROSECONDS[load] * 1.05 + 10
        return took

    return measured


def test_memory_is_limited_and_contexts_count(start):
    client = start()
    result, free, total = client.do("info")
    assert (result, total) == (0, LIMIT)
    assert 0 < LIMIT - free < 1024 * MIB  # the context
    assert client.do(f"alloc plain 0 {free + 4 * MIB}") == 2
    assert client.do(f"alloc plain 0 {free - 4 * MIB}") == 0
    assert client.do(f"alloc async 1 {8 * MIB}") == 2


@cases("way", ("ipc", Ipc()), ("physical", Physical()), ("pooled", Pooled()))
def test_shared_memory_has_a_name_and_counts_once(rig, start, way):
    """The driver's handles have to be as docs/limiter.md says: the same for each process, its files can be locked."""
    importer = start()
    alone = free(importer)
    exporter = start()
    assert allocate(exporter, way, 0, SHARED) == exporter.do("sync") == 0
    before = free(importer)
    more = {"size": SHARED} if way.allocated_as == "create" else {}
    assert way.open(importer, way.export(exporter), **more) == 0
    assert free(importer) == free(exporter) == before
    assert way.close(importer) == 0
    assert (
        way.open(importer, way.export(exporter), number=20, **more) == 0
    )  # by a handle that was made anew
    assert free(importer) == before
    assert len(Region(rig.folder / "100.cache").records()) >= 2
    exporter.kill()
    deadline = time.monotonic() + 10
    while free(importer) != alone - SHARED:
        assert time.monotonic() < deadline, (alone - free(importer)) / MIB
        time.sleep(0.2)


@pytest.mark.parametrize("what, most", [("launch", 100), ("info", 500), ("alloc", 2000)])
def test_overhead_of_a_call(start, what, most):
    """Nanoseconds, the least of ten rounds that alternate; more than on the fake driver, which spoils no caches."""
    clients = [start(None), start()]
    bare, ours = (
        min(column)
        for column in zip(
            *([client.do(f"measure {what} 500 0") for client in clients] for _ in range(10)),
            strict=True,
        )
    )
    print(f"{what}: {bare:.0f} ns without the limiter, {ours:.0f} ns with it")
    assert ours - bare <= most


def test_programs_without_a_compute_limit_lose_nothing(start):
    bare, ours = (rate(start(cores), "flood", 5) for cores in (None, 100))
    print(f"{bare:.0f} kernels a second without the limiter, {ours:.0f} with it")
    assert ours >= bare * 0.995


@pytest.mark.parametrize("load", MICROSECONDS)
@pytest.mark.parametrize("cores", [30, 70])
def test_compute_limit_is_accurate(start, microseconds, cores, load):
    took = microseconds(load)
    client = start(cores)
    rate(client, load, 3)
    share = rate(client, load, 8) * took / 1e4
    print(f"{share:.2f} %")
    assert abs(share - cores) <= 3


@pytest.mark.parametrize("load", MICROSECONDS)
def test_sampled_events_measure_what_kernels_take(rig, start, microseconds, load):
    """What was charged is what they took: a kernel in sixteen is measured, the others cost its mean."""
    took = microseconds(load)
    client = start(90)
    client.do(f"load {load} 1000")
    before = struct.unpack_from("<Q", (rig.folder / "90.sm").read_bytes(), CHARGED)[0]
    count = client.do(f"load {load} 5000")
    charged = struct.unpack_from("<Q", (rig.folder / "90.sm").read_bytes(), CHARGED)[0] - before
    print(f"charged {charged / 1e6:.1f} ms for {count * took / 1e3:.1f} ms of kernels")
    assert charged == pytest.approx(count * took * 1000, rel=0.1)
