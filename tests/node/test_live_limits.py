"""Limits of containers that run: the files that change, and what their tenants can put in the place of them."""

import os
import stat
import time

import pytest

from hami.devices.config import PluginConfig
from hami.errors import HostError
from hami.node.host import Host
from hami.node.limits import ContainerLimits, DeviceLimit, parse_limits
from hami.node.live_limits import BEING_WRITTEN, SETTLED_NS, write_use
from hami.node.tenant_files import opened_directory
from testing.cases import cases
from testing.limiter.layout import Region
from testing.plugin_stage import A, B
from tests.node.test_host import LEASE_S, leasing

GIB = 1 << 30
HOUR_NS = 3600 * 10**9
LIMITS = ContainerLimits(
    devices=(DeviceLimit(A, GIB, 30, 400), DeviceLimit(B, 2 * GIB, 100)), priority=0
)
SMALL = (DeviceLimit(A, 5, 20), DeviceLimit(B, 2 * GIB, 100))


class Container:
    """A container that the device plugin has prepared. *library*: what is in the file of the limiter."""

    def __init__(self, root, library=b"\x7fELF hami-limits 1\0"):
        self.root = root / "vgpu"
        self.root.mkdir()
        (self.root / "libvgpu.so").write_bytes(library)
        self.host = Host(
            PluginConfig(node="n1", hook_path=str(root), kubelet_socket=str(root / "kubelet.sock"))
        )
        self.path = self.host.prepare("u-1", "c")
        self.host.write_limits("u-1", "c", "t", LIMITS)
        self.limits, self.region = self.path / "limits", self.path / "t.cache"

    def resize(self, sizes=SMALL):
        return self.host.resize_limits("u-1", "c", sizes)

    @property
    def written(self):
        """Memory and cores of each device in the file with the limits."""
        return [
            (device.memory, device.cores)
            for device in parse_limits(self.limits.read_text()).devices
        ]

    @property
    def shown(self):
        """Those in its region."""
        region = Region(self.region)
        return [(region.limit(place), region.number(1728 + 8 * place, "<Q")) for place in (0, 1)]

    def report(self, used, *, limits_ns=None, later_ns=SETTLED_NS):
        """The monitor reports what the container uses, so much later."""
        changed = self.limits.stat().st_ctime_ns
        while time.time_ns() < changed + later_ns:
            time.sleep(0.01)
        with opened_directory(self.path) as directory:
            write_use(directory, changed if limits_ns is None else limits_ns, used)


@pytest.fixture
def container(tmp_path):
    return Container(tmp_path)


def test_limits_of_file_and_region_change_in_place(container):
    before = container.limits.stat(), container.region.stat().st_ino
    text = container.limits.read_text()
    assert container.resize() == SMALL
    assert (container.written, container.shown) == ([(5, 20), (2 * GIB, 100)],) * 2
    after = container.limits.stat()
    assert (after.st_ino, after.st_size, container.region.stat().st_ino) == (
        before[0].st_ino,
        len(text),
        before[1],
    )
    assert (
        container.limits.read_text().replace("memory=5 cores=20", f"memory={GIB} cores=30").rstrip()
        == text.rstrip()
    )


def test_limits_that_are_right_are_not_written(container):
    container.resize()
    before = container.limits.stat().st_ctime_ns
    assert container.resize() == SMALL
    assert container.limits.stat().st_ctime_ns == before
    assert container.host.limits("u-1", "c") == SMALL


def test_limits_that_were_being_written_are_written_again(container):
    """By a device plugin that was killed before it said that the text is whole: nobody would read it."""
    container.resize()
    container.limits.chmod(0o644 | BEING_WRITTEN)
    assert container.resize() == SMALL
    assert stat.S_IMODE(container.limits.stat().st_mode) == 0o444


def test_a_text_that_could_not_be_written_is_not_to_be_read(container, monkeypatch):
    """As on a full disk: the file has bytes of two texts."""
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "pwrite", lambda file, text, offset, write=os.pwrite: write(file, text[:60], offset)
        )
        with pytest.raises(HostError, match="the disk is full"):
            container.resize()
    assert stat.S_IMODE(container.limits.stat().st_mode) == 0o444 | BEING_WRITTEN
    assert container.resize() == SMALL
    assert stat.S_IMODE(container.limits.stat().st_mode) == 0o444


def test_a_region_that_was_left_behind_is_corrected(container):
    """By a device plugin that ended between the two files."""
    container.resize()
    Region(container.region).write(1600, 99, "<Q")
    container.resize()
    assert container.shown == [(5, 20), (2 * GIB, 100)]


def test_the_time_of_the_file_changes_again_after_the_write(container, monkeypatch):
    """The limiter may have read between the change of the time and the end of the write."""
    times, sleep = [], time.sleep
    monkeypatch.setattr(
        time, "sleep", lambda seconds: (times.append(container.limits.stat()), sleep(seconds))
    )
    container.resize()
    assert times[0].st_mtime_ns < container.limits.stat().st_mtime_ns
    assert times[0].st_ctime_ns < container.limits.stat().st_ctime_ns


def test_without_capabilities_limits_change_and_stay_closed_to_others(
    container, shipped_capabilities
):
    container.resize()
    assert container.written == [(5, 20), (2 * GIB, 100)]
    assert stat.S_IMODE(container.limits.stat().st_mode) == 0o444


def test_a_container_that_was_not_prepared_has_no_limits(container):
    assert container.host.resize_limits("u-2", "c", SMALL) is None
    assert container.host.limits("u-2", "c") is None
    assert container.host.use("u-2", "c") is None


def test_other_devices_are_refused(container):
    before = container.limits.read_text()
    for sizes in (SMALL[:1], (*SMALL, DeviceLimit("GPU-x", 1, 1))):
        with pytest.raises(HostError, match="the container has other devices"):
            container.resize(sizes)
    assert container.limits.read_text() == before


@pytest.mark.parametrize("text", ["", "hami-limits 2\n", "hami-limits 1\ndevice x\n"])
def test_a_file_that_has_no_limits_is_not_changed(container, text):
    container.limits.unlink()
    container.limits.write_text(text)
    with pytest.raises(HostError, match="limits: not a file with limits"):
        container.resize()
    assert container.limits.read_text() == text


def test_links_in_the_place_of_files_are_not_followed(container, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(container.region.read_bytes())
    container.region.unlink()
    container.region.symlink_to(precious)
    before = precious.read_bytes()
    container.resize()
    assert (precious.read_bytes(), container.written[0]) == (before, (5, 20))
    precious.write_text(container.limits.read_text())
    container.limits.unlink()
    container.limits.symlink_to(precious)
    before = precious.read_bytes()
    with pytest.raises(HostError):
        container.resize(LIMITS.devices)
    assert precious.read_bytes() == before


@cases(
    "spoil",
    ("empty", lambda path: path.write_bytes(b"")),
    ("another", lambda path: path.write_bytes(b"x" * 3_000_000)),
    ("closed", lambda path: path.chmod(0)),
    ("pipe", lambda path: (path.unlink(), os.mkfifo(path))),
    ("gone", lambda path: path.unlink()),
    ("count", lambda path: Region(path).write(56, 2**64 - 1, "<Q")),
)
def test_a_region_that_its_tenant_has_spoilt_delays_no_limit(
    container, spoil, shipped_capabilities
):
    spoil(container.region)
    assert container.resize() == SMALL
    assert container.written[0] == (5, 20)


def test_nobody_waits_for_a_tenant_that_holds_its_limits(container):
    process = leasing(container.limits)
    try:
        begun = time.monotonic()
        with pytest.raises(
            HostError, match="cannot change the limits of a container: Resource temporarily unavail"
        ):
            container.resize()
        assert time.monotonic() - begun < LEASE_S
    finally:
        process.kill()
        process.communicate()


def test_hami_s_library_gets_memory_only(tmp_path):
    """It reads the region, and would not follow other cores."""
    container = Container(tmp_path, library=b"another limiter")
    kept = (DeviceLimit(A, 5, 30), SMALL[1])
    assert container.resize() == kept
    assert (container.written, container.shown) == ([(5, 30), (2 * GIB, 100)],) * 2


def test_a_container_of_hami_s_device_plugin_has_a_region_whose_memory_can_grow(container):
    container.limits.unlink()
    assert container.resize() == (DeviceLimit(A, GIB, 30), SMALL[1])
    grown = (DeviceLimit(A, 3 * GIB, 40), SMALL[1])
    assert container.resize(grown) == (DeviceLimit(A, 3 * GIB, 30), SMALL[1])
    assert container.shown == [(3 * GIB, 30), (2 * GIB, 100)]
    assert container.host.limits("u-1", "c") == (DeviceLimit(A, 3 * GIB, 30), SMALL[1])
    container.region.unlink()
    with pytest.raises(HostError, match="has no shared region yet"):
        container.resize()


def test_use_counts_that_was_measured_under_the_present_limits(container, monkeypatch):
    container.report({A: 7})
    assert container.host.use("u-1", "c") == {A: 7}
    container.resize()
    assert container.host.use("u-1", "c") is None, "of the limits before"
    with monkeypatch.context() as patch:
        patch.setattr("hami.node.live_limits.SETTLED_NS", HOUR_NS)
        container.report({A: 6}, later_ns=0)
        assert container.host.use("u-1", "c") is None, (
            "a process may not have looked at its limits yet"
        )
    container.report({A: 5})
    assert container.host.use("u-1", "c") == {A: 5}


@pytest.mark.parametrize("content", [b"", b"{", b'{"limits_ns": 1}', b"x" * 100_000])
def test_use_that_cannot_be_read_is_unknown(container, content):
    (container.path / "use").write_bytes(content)
    assert container.host.use("u-1", "c") is None


def test_use_is_for_root_alone_and_written_when_it_changes(container):
    container.report({A: 7})
    before = (container.path / "use").stat()
    container.report({A: 7})
    assert (container.path / "use").stat().st_ctime_ns == before.st_ctime_ns
    assert stat.S_IMODE(before.st_mode) == 0o600
    container.report({A: 8})
    assert container.host.use("u-1", "c") == {A: 8}
    assert sorted(os.listdir(container.path)) == ["limits", "lock", "t.cache", "t.sm", "use"]
