"""Files of containers, as tenants may leave them."""

import os
import socket
import struct
import threading

import pytest

from hami.monitor.region_files import RegionFiles, RegionState
from hami.monitor.regions import control_writes
from hami.node.tenant_files import MAX_ENTRIES
from testing.cases import cases
from testing.region_bytes import Process, region_bytes

UID, NAME = "8f1c2a44-0000-4000-8000-000000000001", "main"


@pytest.fixture
def directory(tmp_path):
    """The directory of a container."""
    path = tmp_path / "vgpu" / "containers" / f"{UID}_{NAME}"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def files(tmp_path):
    return RegionFiles(tmp_path)


def fifo(directory):
    os.mkfifo(directory / "a.cache")


def link(directory):
    (directory.parent / "target").write_bytes(region_bytes())
    (directory / "a.cache").symlink_to(directory.parent / "target")


def folder(directory):
    (directory / "a.cache").mkdir()


def unix_socket(directory):
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(directory, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{here}/a.cache")
        os.close(here)


def device_node(directory):
    try:
        os.mknod(directory / "a.cache", 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root may make device nodes")


def content(data):
    return lambda directory: (directory / "a.cache").write_bytes(data)


@cases(
    "make, state",
    ("FIFO", fifo, RegionState.UNREADABLE),
    ("symbolic link", link, RegionState.UNREADABLE),
    ("directory", folder, RegionState.UNREADABLE),
    ("socket", unix_socket, RegionState.UNREADABLE),
    ("device node", device_node, RegionState.UNREADABLE),
    ("empty", content(b""), RegionState.UNINITIALIZED),
    ("a size that no version has", content(bytes(804680)), RegionState.UNKNOWN),
    ("cut off by a byte", content(region_bytes()[:-2]), RegionState.UNKNOWN),
    ("garbage", content(b"x" * 2008953), RegionState.UNKNOWN),
    ("zeros", content(bytes(2008953)), RegionState.UNINITIALIZED),
    ("without the last byte of the file", content(region_bytes()[:-1]), RegionState.OK),
    ("nothing", lambda directory: None, RegionState.ABSENT),
    ("another file", lambda directory: (directory / "libvgpu.so").touch(), RegionState.ABSENT),
)
def test_hostile_files(files, directory, make, state):
    make(directory)
    read = files.read(UID, NAME)
    assert read.state is state
    assert (read.region is not None) is (state is RegionState.OK)
    assert bool(read.problem) is (state in (RegionState.UNREADABLE, RegionState.UNKNOWN))


def test_a_huge_file_is_not_read(files, directory):
    with open(directory / "a.cache", "wb") as file:
        file.truncate(1 << 40)
    assert files.read(UID, NAME).state is RegionState.UNKNOWN


def test_a_directory_with_many_names_costs_little(files, directory):
    for number in range(50 * MAX_ENTRIES):
        (directory / f"{number}{'x' * 200}.cache").write_bytes(b"x")
    read = files.read(UID, NAME)
    assert read.state is RegionState.UNKNOWN


def test_the_directory_itself_may_be_a_link(files, directory):
    directory.rename(directory.parent / "elsewhere")
    directory.symlink_to(directory.parent / "elsewhere")
    assert files.read(UID, NAME).state is RegionState.UNREADABLE


@cases("uid, name", ("../../etc", "main"), (UID, "../x"), ("", ""), (UID, "a/b"), (UID, "a\0"))
def test_a_name_that_is_a_path_is_refused(files, uid, name):
    assert files.read(uid, name).state is RegionState.UNREADABLE


def test_the_newest_region_that_can_be_read_is_taken(files, directory):
    for number, (name, data) in enumerate(
        [
            ("b.cache", region_bytes(priority=1)),
            ("c.cache", region_bytes(priority=2)),
            ("d.cache", bytes(2008953)),
            ("e.cache", b"nothing"),
        ]
    ):
        (directory / name).write_bytes(data)
        os.utime(directory / name, (number, number))
    read = files.read(UID, NAME)
    assert (read.state, read.name, read.region.priority) == (RegionState.OK, "c.cache", 2)


def test_a_file_that_shrinks_and_grows_all_the_time(files, directory):
    """A mapping would end the process."""
    path, ended = directory / "a.cache", threading.Event()
    data = region_bytes(processes=[Process()] * 8)
    path.write_bytes(data)

    def change():
        while not ended.is_set():
            os.truncate(path, 4096)
            path.write_bytes(data)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            assert files.read(UID, NAME).state in RegionState
    finally:
        ended.set()
        thread.join()


def test_what_is_written_reaches_the_file(files, directory):
    path = directory / "a.cache"
    path.write_bytes(region_bytes())
    read = files.read(UID, NAME)
    files.write(UID, NAME, read, control_writes(read.region.layout, -1, 0))
    assert (files.read(UID, NAME).region.recent_kernel, files.read(UID, NAME).region.switch) == (
        -1,
        0,
    )
    assert path.stat().st_size == 2008953


def test_nothing_is_written_to_another_file(files, directory):
    path = directory / "a.cache"
    path.write_bytes(region_bytes())
    read = files.read(UID, NAME)
    (directory / "new").write_bytes(region_bytes())
    (directory / "new").rename(path)
    files.write(UID, NAME, read, control_writes(read.region.layout, -1, 0))
    assert files.read(UID, NAME).region.recent_kernel == 0


def test_the_compute_file_of_our_limiter(files, directory):
    (directory / "t.cache").write_bytes(region_bytes())
    compute = bytearray(4096)
    struct.pack_into("<Q", compute, 256 + 24, 7)
    (directory / "t.sm").write_bytes(compute)
    assert files.read(UID, NAME).throttled[:2] == (7, 0)
    assert (directory / "t.sm").read_bytes() == compute
    files.read(UID, NAME, heartbeat=99)
    assert struct.unpack_from("<Q", (directory / "t.sm").read_bytes(), 16) == (99,)


def test_a_compute_file_that_is_none(files, directory):
    (directory / "t.cache").write_bytes(region_bytes())
    os.mkfifo(directory / "t.sm")
    assert files.read(UID, NAME).state is RegionState.UNREADABLE
