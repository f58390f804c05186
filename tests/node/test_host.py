"""The files of the node, in a directory of the test's own."""

import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import tracemalloc

import pytest

from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.errors import HostError
from hami.node.host import CHECKPOINT, MIN_AGE_S, Host
from hami.node.limits import ContainerLimits, DeviceLimit, render_limits
from hami.node.region_layout import REGION_SIZE, SHIFTED
from hami.node.tenant_files import MAX_ENTRIES, is_held, list_names
from testing.builders import region_of
from testing.cases import cases
from testing.eventually import eventually


@pytest.fixture
def root(tmp_path):
    """``<hook>/vgpu`` with a library in it."""
    (tmp_path / "vgpu").mkdir()
    for name in ("libvgpu.so", "ld.so.preload"):
        (tmp_path / "vgpu" / name).write_text("old")
    return tmp_path / "vgpu"


@pytest.fixture
def host(root):
    return host_of(root)


def host_of(root, **options):
    config = PluginConfig(
        node="n1",
        hook_path=str(root.parent),
        kubelet_socket=str(root.parent / "kubelet.sock"),
        dev_root=str(root.parent),
        pass_device_specs=True,
    )
    return Host(config, **{"version": "2"} | options)


def later_host(root):
    """The host when everything that is there now is old."""
    return host_of(root, now=lambda: os.stat(root).st_ctime + 2 * MIN_AGE_S)


def tree(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


def test_the_library_of_this_version_is_mounted_if_there_is_one(root, host):
    assert host.facts(limited=True).library == str(root / "libvgpu.so")
    (root / "libvgpu.so.2").write_text("new")
    assert host.facts(limited=True).library == str(root / "libvgpu.so.2")


@pytest.mark.parametrize("missing", ["libvgpu.so", "ld.so.preload"])
def test_a_missing_limiter_is_an_error(root, host, missing):
    (root / missing).unlink()
    with pytest.raises(HostError, match=f"{missing} is missing: the limiter is not installed"):
        host.facts(limited=True)
    assert host.facts(limited=False).library == str(root / "libvgpu.so")


@cases("content, locks", (b"another limiter", True), (b"\x7fELF hami-limits 1\0", False))
def test_only_a_limiter_that_reads_no_limits_gets_a_directory_for_locks(root, host, content, locks):
    (root / "libvgpu.so").write_bytes(content)
    assert host.facts(limited=True).locks == locks
    assert not host.facts(limited=False).locks


def test_license_and_control_nodes_are_found(root, host):
    assert (host.facts(limited=True).license, host.facts(limited=True).nodes) == (False, ())
    (root / "license").touch()
    (root.parent / "dev").mkdir()
    (root.parent / "dev" / "nvidiactl").touch()
    assert (host.facts(limited=True).license, host.facts(limited=True).nodes) == (
        True,
        ("/dev/nvidiactl",),
    )


def test_device_nodes_of_cards_that_do_not_exist_are_absent(root, host):
    """Those of mock cards: a container with such a node would not start."""
    (root.parent / "dev").mkdir()
    (root.parent / "dev" / "nvidia0").touch()
    cards = [
        Card(uuid=f"GPU-{minor}", index=minor, minor=minor, model="A40", memory_mib=46_068)
        for minor in (0, 1)
    ]
    facts = host.facts(limited=False, cards=cards)
    assert facts.absent == {"/dev/nvidia1"}


def test_device_nodes_of_instances_follow_the_kernel_s_table(root, host):
    (root / "minors").write_text("gpu3/gi1/access 12\ngpu3/gi1/ci0/access 13\n")
    host = host_of(root, minors=root / "minors")
    assert host.facts(limited=False, instances=[(3, 1, 0)]).instance_nodes == (
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    )
    with pytest.raises(HostError, match="no gpu3/gi1/ci7"):
        host.facts(limited=False, instances=[(3, 1, 7)])


@pytest.mark.parametrize("umask", [0o077, 0o022, 0])
def test_a_container_gets_a_directory_open_to_all_users_below_one_of_ours(root, host, umask):
    before = os.umask(umask)
    try:
        host.prepare("u-1", "c")
    finally:
        os.umask(before)
    directory = root / "containers" / "u-1_c"
    places = (directory / "lock", directory, directory.parent)
    assert [stat.S_IMODE(path.stat().st_mode) for path in places] == [0o777, 0o755, 0o700]


def test_the_directory_of_an_earlier_version_is_closed(root, host):
    (root / "containers").mkdir(mode=0o755)
    host.prepare("u-1", "c")
    assert stat.S_IMODE((root / "containers").stat().st_mode) == 0o700


def test_an_earlier_directory_is_put_aside_whatever_its_size(root, host):
    """Nothing in it is read or removed while the kubelet, and all pods of the node, wait for Allocate."""
    host.prepare("u-1", "c")
    (root / "containers" / "u-1_c" / "old.cache").touch()
    host.prepare("u-1", "c")
    [aside] = host.directories() - {"u-1_c"}
    assert tree(root / "containers") == sorted(
        [aside, f"{aside}/lock", f"{aside}/old.cache", "u-1_c", "u-1_c/lock"]
    )
    later = later_host(root)
    assert later.sweep(later.directories(), {"u-1"}) == [aside]


def test_a_directory_is_kept_with_its_content_for_a_container_that_starts_again(root, host):
    host.prepare("u-1", "c", keep=True)
    (root / "containers" / "u-1_c" / "old.cache").touch()
    host.prepare("u-1", "c", keep=True)
    assert tree(root / "containers") == ["u-1_c", "u-1_c/lock", "u-1_c/old.cache"]


@pytest.mark.parametrize("keep", [False, True])
def test_directories_that_a_runtime_has_made_in_place_of_files_are_put_aside(root, host, keep):
    for name in ("limits", "t.cache", "t.sm"):
        (root / "containers" / "u-1_c" / name).mkdir(parents=True)
    assert not host.has_limits("u-1", "c")
    assert written(root, host, keep=keep).keys() == {"limits", "t.cache", "t.sm"}
    assert host.has_limits("u-1", "c")
    assert [name for name in host.directories() if name != "u-1_c"]


LIMITS = ContainerLimits(devices=(DeviceLimit("GPU-1", 1 << 30, 30),))


def written(root, host, limits=LIMITS, *, keep=False):
    """What is in the directory of a container: content and mode of each file, by its name."""
    host.prepare("u-1", "c", keep=keep)
    host.write_limits("u-1", "c", "t", limits, keep=keep)
    files = (path for path in (root / "containers" / "u-1_c").iterdir() if path.name != "lock")
    return {path.name: (path.read_bytes(), stat.S_IMODE(path.lstat().st_mode)) for path in files}


@pytest.mark.parametrize("umask", [0o077, 0])
def test_limits_can_only_be_read_and_counters_be_written_by_all_users(root, host, umask):
    before = os.umask(umask)
    try:
        found = written(root, host)
    finally:
        os.umask(before)
    assert found == {
        "limits": (render_limits(LIMITS, f"{root}/t.cache").encode(), 0o444),
        "t.cache": (region_of(LIMITS), 0o666),
        "t.sm": (bytes(4096), 0o666),
    }


def test_a_container_that_starts_again_finds_the_same_files_as_new(root, host):
    """A monitor has mapped the region, and the last run has written to it."""
    first = written(root, host)
    region = root / "containers" / "u-1_c" / "t.cache"
    before = region.stat().st_ino
    for path in (region, region.with_suffix(".sm")):
        path.write_bytes(b"x" * 3_000_000)
    assert written(root, host, keep=True) == first
    assert region.stat().st_ino == before


@cases("keep", ("new", False), ("left by an attempt that failed", True))
def test_a_full_disk_cannot_stop_a_container_later(root, host, keep):
    """A write to a mapped page for which the disk has no block ends the process."""
    if keep:
        host.prepare("u-1", "c")
        (root / "containers" / "u-1_c" / "t.cache").touch()
    written(root, host, keep=keep)
    region = (root / "containers" / "u-1_c" / "t.cache").stat()
    assert 512 * region.st_blocks >= region.st_size == REGION_SIZE


def test_a_new_container_never_gets_an_old_region(root, host):
    written(root, host)
    region = root / "containers" / "u-1_c" / "t.cache"
    with open(region, "r+b") as old:
        assert "t.cache" in written(root, host)
        assert os.fstat(old.fileno()).st_ino != region.stat().st_ino


def test_links_that_a_container_of_an_earlier_version_has_left_are_not_followed(
    root, host, tmp_path
):
    """Its directory was open to all users: what lies there is mounted into the container when it starts again."""
    (precious := tmp_path / "precious").mkdir()
    (precious / "file").write_text("secret")
    (directory := root / "containers" / "u-1_c").mkdir(parents=True)
    for name in ("limits", "t.cache"):
        (directory / name).symlink_to(precious / "file")
    (directory / "lock").symlink_to(precious)
    os.mkfifo(directory / "t.sm")
    assert written(root, host, keep=True) == written(root, host)
    assert not (directory / "lock").is_symlink()
    assert [(path.name, path.read_text()) for path in precious.iterdir()] == [("file", "secret")]


def extended(path, *, keep_size=False, size=20_000_000):
    subprocess.run(
        ["fallocate", *(["--keep-size"] if keep_size else []), "--length", str(size), path],
        check=True,
    )


ENLARGEMENTS = [
    ("by a byte", "t.cache", lambda path: os.truncate(path, REGION_SIZE + 1)),
    (
        "by writing to it",
        "t.cache",
        lambda path: path.write_bytes(path.read_bytes() + b"x" * 5_000_000),
    ),
    ("by reserving blocks", "t.cache", extended),
    ("by reserving blocks beyond its end", "t.cache", functools.partial(extended, keep_size=True)),
    ("the compute file", "t.sm", lambda path: os.truncate(path, 1 << 40)),
]


@cases("name, enlarge", *ENLARGEMENTS)
def test_a_region_that_its_container_has_enlarged_is_truncated(root, host, name, enlarge):
    """Its content stays, and so does the file: processes and monitors have mapped it."""
    before = written(root, host)
    path = root / "containers" / "u-1_c" / name
    inode = path.stat().st_ino
    enlarge(path)
    assert host.shrink_regions() == {"u-1_c": True}
    assert (path.stat().st_size, path.stat().st_ino) == (len(before[name][0]), inode)
    assert path.stat().st_blocks * 512 < REGION_SIZE + 65536
    assert path.read_bytes() == before[name][0]
    assert host.shrink_regions() == {}


def test_what_is_no_region_of_a_container_is_not_truncated(root, host, tmp_path):
    """Links and pipes can only be there since an earlier version."""
    written(root, host)
    directory = root / "containers" / "u-1_c"
    for path in (
        tmp_path / "precious.cache",
        directory / "large",
        directory / "lock" / "t.cache",
        root / "containers" / "t.cache",
    ):
        path.write_bytes(b"x" * 3_000_000)
    (directory / "link.cache").symlink_to(tmp_path / "precious.cache")
    (root / "containers" / "u-2_c").symlink_to(tmp_path)
    os.mkfifo(directory / "pipe.sm")
    (directory / "small.cache").touch()
    assert host.shrink_regions() == {}
    assert (tmp_path / "precious.cache").stat().st_size == 3_000_000


def test_a_region_that_hami_has_made_is_not_truncated(root, host):
    """Before an upgrade, with a library whose layout is larger. HAMi makes no limits file."""
    host.prepare("u-1", "c")
    region = root / "containers" / "u-1_c" / "t.cache"
    region.write_bytes(bytes(SHIFTED.size + 1))
    assert host.shrink_regions() == {}
    assert region.stat().st_size == SHIFTED.size + 1


def test_of_any_number_of_files_a_few_are_looked_at(root, host):
    written(root, host)
    directory = root / "containers" / "u-1_c"
    for number in range(3000):
        (directory / str(number)).touch()
    opened = os.open(directory, os.O_RDONLY)
    try:
        assert len(list_names(opened)) == MAX_ENTRIES < 3000
    finally:
        os.close(opened)
    assert host.shrink_regions() in ({}, {"u-1_c": True})


def test_a_region_that_cannot_be_truncated_is_logged_once(root, caplog, shipped_capabilities):
    """And keeps no other from it."""
    host = host_of(root)
    for uid in ("u-1", "u-2"):
        host.prepare(uid, "c")
        host.write_limits(uid, "c", "t", LIMITS)
        os.truncate(root / "containers" / f"{uid}_c" / "t.cache", 3_000_000)
    (root / "containers" / "u-1_c" / "t.cache").chmod(0)
    assert (host.shrink_regions(), host.shrink_regions()) == ({"u-2_c": True}, {})
    assert [(one.directory, one.error.strerror) for one in caplog.records] == [
        ("u-1_c", "Permission denied")
    ]


def executing(path):
    """A process that executes the file, which must not be written to then."""
    shutil.copyfile(shutil.which("sleep"), path)
    path.chmod(0o777)
    with open(path, "r+b") as file:
        os.truncate(file.fileno(), 20_000_000)
    return subprocess.Popen([path, "60"])


LEASE_S = 40.0
"""Who waits for a lease waits longer: the kernel breaks it after 45 s."""


def leasing(path):
    """A process that enlarges the file and takes a lease on it, again whenever somebody breaks it."""
    program = """
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_RDWR)
os.truncate(file, 20_000_000)
os.close(file)
file = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGIO, lambda *args: None)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
while True:
    signal.pause()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture(params=[executing, leasing])
def hold(request):
    """Keeps a region from being written to, until the test ends; returns the process."""
    processes = []

    def start(path):
        processes.append(request.param(path))
        eventually(lambda: _is_held(path), "the file is held")
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _is_held(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return is_held(error)
    return False


def test_a_region_that_its_container_holds_is_replaced_at_once_and_removed_when_the_container_has_ended(
    root, host, hold, caplog
):
    """The container keeps writing to its own file, which is why the monitor ends it."""
    written(root, host)
    region = root / "containers" / "u-1_c" / "t.cache"
    held = region.with_name("t.cache.held")
    process = hold(region)
    inode, begun = region.stat().st_ino, time.monotonic()
    assert host.shrink_regions() == {"u-1_c": False}
    assert time.monotonic() - begun < LEASE_S
    assert (region.read_bytes(), stat.S_IMODE(region.stat().st_mode)) == (bytes(REGION_SIZE), 0o666)
    assert (held.stat().st_ino, host.shrink_regions()) == (inode, {})
    process.kill()
    process.wait()
    assert (host.shrink_regions(), held.exists(), caplog.records) == ({}, False, [])


def test_a_container_that_starts_again_does_not_wait_for_who_holds_its_region(root, host, hold):
    """A sidecar that was handed the file may: PreStartContainer has 30 s, and others wait for its thread."""
    written(root, host)
    region = root / "containers" / "u-1_c" / "t.cache"
    hold(region)
    begun = time.monotonic()
    host.prepare("u-1", "c", keep=True)
    host.write_limits("u-1", "c", "t", LIMITS, keep=True)
    assert time.monotonic() - begun < LEASE_S
    assert (region.read_bytes(), stat.S_IMODE(region.stat().st_mode)) == (region_of(LIMITS), 0o666)


def test_nobody_waits_for_a_lease_on_what_is_mounted_read_only(root, host):
    """It belongs to root, as does the process in the container."""
    first = written(root, host)
    processes = [
        leasing(path) for path in (root / "libvgpu.so", root / "containers" / "u-1_c" / "limits")
    ]
    try:
        begun = time.monotonic()
        with pytest.raises(
            HostError, match="cannot read the limiter: Resource temporarily unavailable"
        ):
            host.facts(limited=True)
        host.write_limits("u-1", "c", "t", LIMITS, keep=True)
        assert time.monotonic() - begun < LEASE_S
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert (root / "containers" / "u-1_c" / "limits").read_bytes() == first["limits"][0]
    assert host.facts(limited=True).locks


def test_limits_that_cannot_be_written_are_an_error(host):
    with pytest.raises(
        HostError,
        match="cannot write the limits of a container: No such file or directory: .*u-1_c",
    ):
        host.write_limits("u-1", "c", "t", LIMITS)


def test_a_link_in_the_place_of_a_directory_is_not_followed(root, host, tmp_path):
    (precious := tmp_path / "precious").mkdir()
    (precious / "file").touch()
    (root / "containers").mkdir()
    (root / "containers" / "u-1_c").symlink_to(precious)
    host.prepare("u-1", "c")
    assert (tree(precious), (root / "containers" / "u-1_c").is_symlink()) == (["file"], False)


@cases(
    "uid, container",
    ("uid", "../u", "c"),
    ("container", "u", "../c"),
    ("no container", "u", ""),
    ("no uid", "", "c"),
    ("slash", "u", "c/d"),
)
def test_names_that_escape_the_directory_are_refused(host, uid, container):
    with pytest.raises(HostError, match="not a valid directory name"):
        host.prepare(uid, container)


def test_a_path_that_cannot_be_written_is_named(root, host):
    (root / "containers").write_text("a file")
    with pytest.raises(
        HostError, match=f"cannot create the directory of a container: .*: {root}/containers"
    ):
        host.prepare("u-1", "c")


def test_directories_of_deleted_pods_are_removed(root):
    host = host_of(root)
    assert host.directories() == frozenset()
    for name in ("u-1_c", "u-2_c", "u-2_d"):
        host.prepare(*name.split("_"))
    (root / "containers" / "u-2_c" / "x.cache").touch()
    (root / "containers" / "something else").mkdir()
    later = later_host(root)
    directories = later.directories()
    assert host.sweep(directories, {"u-1"}) == []  # too young
    assert later.sweep(directories, {"u-1"}) == ["u-2_c", "u-2_d"]
    assert tree(root / "containers") == ["something else", "u-1_c", "u-1_c/lock"]
    assert later.sweep(directories, {"u-1"}) == []


def test_a_file_time_in_the_future_keeps_no_directory(root, host):
    host.prepare("u-1", "c")
    os.utime(root / "containers" / "u-1_c", (2**33, 2**33))
    later = later_host(root)
    assert later.sweep(later.directories(), set()) == ["u-1_c"]


@pytest.fixture
def slow_removal(tmp_path, monkeypatch):
    """Removes no directory of u-1, and says why in very many lines."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "rm"
    program.write_text(
        '#!/bin/sh\ncase "$3" in *u-1*) yes "$3: no" | head -c 20000000 >&2; exec sleep 60;; esac\n'
        f'exec {shutil.which("rm")} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_a_directory_that_takes_long_delays_no_other(root, host, slow_removal, caplog):
    for name in "abcdef":
        host.prepare("u-1" if name == "d" else "u-2", name)
    later = later_host(root)
    tracemalloc.start()
    started = time.monotonic()
    removed = later.sweep(later.directories(), set(), tree_s=10)
    assert (time.monotonic() - started < 30, tracemalloc.get_traced_memory()[1] < 2**20) == (
        True,
        True,
    )
    tracemalloc.stop()
    assert removed == ["u-2_a", "u-2_b", "u-2_c", "u-2_e", "u-2_f"]
    stuck = str(root / "containers" / "u-1_d")
    assert [(one.path, str(one.error)) for one in caplog.records] == [(stuck, f"{stuck}: no")]


def test_a_sweep_ends_when_its_time_is_over(root, host, slow_removal):
    for name in "abc":
        host.prepare("u-1", name)
    later = later_host(root)
    started = time.monotonic()
    assert later.sweep(later.directories(), set(), tree_s=60, round_s=1) == []
    assert time.monotonic() - started < 30
    assert later.sweep(later.directories(), set(), round_s=0) == []


def closed(path):
    """A tenant's directory with a file that nobody else can reach."""
    path.mkdir(parents=True)
    (path / "file").touch()
    path.chmod(0)
    return path


def left(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.name != "file")


def test_a_file_that_cannot_be_removed_is_logged_once_and_the_rest_is_removed(
    root, caplog, shipped_capabilities
):
    moment = later_moment = os.stat(root).st_ctime + 2 * MIN_AGE_S
    later = host_of(root, now=lambda: moment)
    for name in "ab":
        later.prepare(f"u-{name}", "c")
    stuck = root / "containers" / "u-a_c"
    for name in ("a.cache", "z.cache"):
        (stuck / name).touch()
    (stuck / "empty").mkdir(mode=0)
    (stuck / "open" / "deeper").mkdir(parents=True)
    closed(stuck / "m")
    assert later.sweep(later.directories(), set()) == ["u-b_c"]
    for moment in (0, later_moment):  # what was removed there has made the directory young
        assert later.sweep(later.directories(), set()) == []
    assert left(root / "containers") == ["u-a_c", "u-a_c/m"]
    assert [(one.path, str(one.error)) for one in caplog.records] == [
        (str(stuck), f"rm: cannot remove '{stuck}/m': Permission denied")
    ]
    (stuck / "m").chmod(0o700)
    assert later.sweep(later.directories(), set()) == ["u-a_c"]


def test_a_container_gets_an_empty_directory_whatever_was_left_there(
    root, host, shipped_capabilities
):
    host.prepare("u-1", "c")
    closed(root / "containers" / "u-1_c" / "m")
    (root / "containers" / "u-1_c").chmod(0)
    host.prepare("u-1", "c")
    assert tree(root / "containers" / "u-1_c") == ["lock"]


def test_links_in_a_directory_are_not_followed(root, host, tmp_path):
    (precious := tmp_path / "precious").mkdir()
    (precious / "file").touch()
    host.prepare("u-1", "c")
    (inner := root / "containers" / "u-1_c" / "inner").mkdir()
    for place in (inner, inner.parent):
        (place / "directory").symlink_to(precious)
        (place / "link").symlink_to(precious / "file")
    later = later_host(root)
    assert later.sweep(later.directories(), set()) == ["u-1_c"]
    assert (tree(precious), tree(root / "containers")) == (["file"], [])


def test_no_directory_is_too_deep(root, host):
    host.prepare("u-1", "c")
    path = str(root / "containers" / "u-1_c")
    for _ in range(1500):
        os.mkdir(path := f"{path}/d")
    later = later_host(root)
    assert later.sweep(later.directories(), set()) == ["u-1_c"]


CONTAINER = {
    "PodUID": "u-1",
    "ContainerName": "c",
    "ResourceName": "nvidia.com/gpu",
    "AllocResp": "EgA=",
}


@cases(
    "text, served",
    (
        "by NUMA node",
        json.dumps(
            {
                "Data": {
                    "PodDeviceEntries": [
                        CONTAINER | {"DeviceIDs": {"-1": ["GPU-1-0"]}},
                        CONTAINER | {"PodUID": "u-2", "ResourceName": "x.io/y"},
                    ],
                    "RegisteredDevices": {},
                },
                "Checksum": 1,
            }
        ),
        {("u-1", "c")},
    ),
    (
        "before 1.20",
        json.dumps({"Data": {"PodDeviceEntries": [CONTAINER | {"DeviceIDs": ["GPU-1-0"]}]}}),
        {("u-1", "c")},
    ),
    ("empty", '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}', set()),
    ("cut short", '{"Data":', None),
    ("another form", '{"Data":{"PodDeviceEntries":[{"PodUID":1}]}}', None),
    ("missing", None, None),
)
def test_the_kubelet_s_checkpoint(root, host, text, served):
    if text is not None:
        (root.parent / CHECKPOINT).write_text(text)
    assert host.served("nvidia.com/gpu") == served
