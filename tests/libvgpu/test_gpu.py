"""On a real GPU: what the fake driver cannot show. Skipped, with the reason, where there is none.

The GPU must have no other user while these run. A kernel of the client keeps the GPU busy for a time that it reads from
the GPU's own clock, so GPU time is the number of kernels times that. With LD_LIBRARY_PATH, another driver can be used.
"""

import os
import struct
import subprocess
import sys
import time

import pytest

from tests.libvgpu.rig import MIB

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
CHARGED = 256 + 16
LIMIT = 2048 * MIB


def obstacle():
    """Why there is no GPU here; empty if there is one."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["the driver ends the process"])[-1]


REASON = obstacle()
pytestmark = pytest.mark.skipif(REASON != "", reason=f"needs a GPU: {REASON}")


@pytest.fixture
def start(rig):
    """Starts a client on the GPU. *cores*: its compute limit; ``None``: it runs without the limiter."""
    def start(cores=100):
        more = {} if cores is None else {
            "CUDA_DEVICE_MEMORY_LIMIT": str(LIMIT), "CUDA_DEVICE_SM_LIMIT": str(cores),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(rig.folder / f"{cores}.cache")}
        more["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
        return rig.client(preload=cores is not None, **more).start()
    return start


def worked(client, load, seconds):
    """Percent of the time for which the GPU worked for the client."""
    begun = time.monotonic()
    count = client.do(f"load {load} {seconds * 1000}")
    return count * MICROSECONDS[load] / (time.monotonic() - begun) / 1e4


def test_memory_is_limited_and_contexts_count(start):
    client = start()
    result, free, total = client.do("info")
    assert (result, total) == (0, LIMIT)
    assert 0 < LIMIT - free < 1024 * MIB  # the context
    assert client.do(f"alloc plain 0 {free + 4 * MIB}") == 2
    assert client.do(f"alloc plain 0 {free - 4 * MIB}") == 0
    assert client.do(f"alloc async 1 {8 * MIB}") == 2


@pytest.mark.parametrize("what, most", [("launch", 100), ("info", 500), ("alloc", 2000)])
def test_overhead_of_a_call(start, what, most):
    """Nanoseconds, the least of ten rounds that alternate; more than on the fake driver, which spoils no caches."""
    clients = [start(None), start()]
    bare, ours = (min(column) for column in zip(
        *([client.do(f"measure {what} 2000 0") for client in clients] for _ in range(10)), strict=True))
    print(f"{what}: {bare:.0f} ns without the limiter, {ours:.0f} ns with it")
    assert ours - bare <= most


def test_programs_without_a_compute_limit_lose_nothing(start):
    bare, ours = (worked(start(cores), "flood", 5) for cores in (None, 100))
    print(f"{bare:.2f} % without the limiter, {ours:.2f} % with it")
    assert ours >= bare * 0.995


@pytest.mark.parametrize("load", MICROSECONDS)
@pytest.mark.parametrize("cores", [30, 70])
def test_compute_limit_is_accurate(start, cores, load):
    client = start(cores)
    worked(client, load, 3)
    share = worked(client, load, 8)
    print(f"{share:.2f} %")
    assert abs(share - cores) <= 3


@pytest.mark.parametrize("load", MICROSECONDS)
def test_sampled_events_measure_what_kernels_take(rig, start, load):
    """What was charged is what they took: a kernel in sixteen is measured, the others cost its mean."""
    client = start(90)
    client.do(f"load {load} 1000")
    before = struct.unpack_from("<Q", (rig.folder / "90.sm").read_bytes(), CHARGED)[0]
    count = client.do(f"load {load} 5000")
    charged = struct.unpack_from("<Q", (rig.folder / "90.sm").read_bytes(), CHARGED)[0] - before
    print(f"charged {charged / 1e6:.1f} ms for {count * MICROSECONDS[load] / 1e3:.1f} ms of kernels")
    assert charged == pytest.approx(count * MICROSECONDS[load] * 1000, rel=0.1)
