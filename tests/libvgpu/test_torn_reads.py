"""The limiter's parser beside the device plugin, which writes the limits of a running container in place."""

import ctypes
import itertools
import os
import threading

import pytest

from hami.node.limits import ContainerLimits, DeviceLimit, render_limits
from hami.node.live_limits import resize

GIB = 1 << 30
SMALL = DeviceLimit("GPU-a", 3 * GIB, 30), DeviceLimit("GPU-b", GIB, 20)
LARGE = DeviceLimit("GPU-a", 8 * GIB, 40), DeviceLimit("GPU-b", 12 * GIB, 50)
READS = 10_000


class Reader(ctypes.Structure):
    """As in reader.c."""

    _fields_ = [
        ("accepted", ctypes.c_uint64),
        ("at", ctypes.c_int64),
        ("kept", ctypes.c_uint64 * 2),
    ]


@pytest.fixture(scope="module")
def library(builds):
    return ctypes.CDLL(str(builds.reader))


@pytest.fixture
def directory(tmp_path):
    """That of a container with the limits LARGE."""
    (tmp_path / "limits").write_text(render_limits(ContainerLimits(devices=LARGE), "/x/t.cache"))
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield opened
    os.close(opened)


def test_whoever_reads_beside_a_write_keeps_the_new_limits(library, directory, tmp_path):
    """A read in the middle of a write returns the earlier text, the new one, or, once in about 200,000 writes, bytes of
    both. The time of the file changes once more after the write, so all read it again."""
    reader, path = Reader(), str(tmp_path / "limits").encode()
    for sizes in itertools.cycle((SMALL, LARGE)):
        stop = ctypes.c_int(0)
        thread = threading.Thread(
            target=library.reader_run, args=(ctypes.byref(reader), path, ctypes.byref(stop))
        )
        thread.start()
        try:
            assert resize(directory, sizes, cores=True) == sizes
        finally:
            stop.value = 1
            thread.join()
        assert list(reader.kept) == [size.memory for size in sizes]
        if reader.accepted >= READS:
            break
