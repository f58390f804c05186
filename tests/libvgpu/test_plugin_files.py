"""The limiter with the files that the device plugin makes, each at the path at which it is mounted."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from hami.devices.cards import Card
from hami.devices.config import PluginConfig
from hami.devices.context_size import measure_context
from hami.errors import HamiError
from hami.model import Share
from hami.node.grant import shares_grant
from hami.node.host import Host
from hami.node.limits import container_limits, parse_limits, share_limit
from testing.eventually import eventually
from testing.limiter.layout import Region
from testing.limiter.rig import MIB, Client, Rig, uuid_of

TOKEN = "0f0e"


class Container(Rig):
    """A container whose files the device plugin has made. *memory*: MiB of each of its cards. *env*: variables in its
    specification."""

    def __init__(self, folder, builds, memory, **env):
        super().__init__(folder, builds, os.environ.get("HAMI_LIMITER_BUILD", "plain"))
        self.config = PluginConfig(
            node="n", hook_path=str(folder), kubelet_socket=str(folder / "kubelet.sock")
        )
        self.parts = [
            (
                Card(
                    uuid=uuid_of(number), index=number, minor=number, model="A40", memory_mib=16384
                ),
                Share(uuid_of(number), "NVIDIA", size, 30),
            )
            for number, size in enumerate(memory)
        ]
        self.env = env
        self.directory = folder / "vgpu"
        self.directory.mkdir()
        for name in ("libvgpu.so", "ld.so.preload"):
            (self.directory / name).touch()
        self.host = Host(self.config)
        self.start()

    def start(self, keep=False):
        """The plugin prepares the container. Files stand in for mounts, as links to the same file."""
        limits = container_limits(self.config, self.parts, self.env)
        own = self.host.prepare("uid", "main", keep=keep)
        self.host.write_limits("uid", "main", TOKEN, limits, keep=keep)
        self.grant = shares_grant(
            self.config,
            self.parts,
            self.host.facts(limited=True),
            own=str(own),
            token=TOKEN,
            variables=self.env,
        )
        for mount in self.grant.mounts:
            if mount.container_path.startswith(
                f"{self.directory}/"
            ) and not mount.container_path.endswith(".so"):
                if os.path.lexists(mount.container_path):
                    os.unlink(mount.container_path)
                os.link(mount.host_path, mount.container_path)
        self.path = self.directory / f"{TOKEN}.cache"
        self.library = self.directory / "libvgpu.so"
        self.library.unlink(missing_ok=True)
        self.library.symlink_to(self.builds.library(self.variant))

    def resize(self, memory, cores=30):
        """The plugin gives all its cards so many MiB, and percent."""
        sizes = [
            replace(share_limit(share), memory=memory * MIB, cores=cores) for _, share in self.parts
        ]
        assert self.host.resize_limits("uid", "main", sizes) == tuple(sizes)

    def client(self, **more) -> Client:
        return super().client(
            **{key: value for key, value in self.grant.env.items() if key.startswith("CUDA_")}
            | more
        )


@pytest.fixture
def container(builds, tmp_path):
    made = []

    def make(*memory, **env):
        made.append(Container(tmp_path, builds, memory, **env))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_limit_holds_to_the_byte(container):
    client = container(1500).client().start()
    assert client.do("info") == [0, 1500 * MIB, 1500 * MIB]
    assert client.do(f"alloc plain 0 {1500 * MIB + 1}") == 2
    assert client.do(f"alloc plain 0 {1500 * MIB}") == 0
    assert client.do("alloc plain 1 1") == 2


def test_processes_use_the_region_of_the_plugin(container):
    made = container(1500)
    client = made.client().start()
    assert client.do(f"alloc plain 0 {1000 * MIB}") == 0
    region = Region(made.directory / "containers" / "uid_main" / f"{TOKEN}.cache")
    assert (region.total(), region.limit(0), region.uuid(0)) == (1000 * MIB, 1500 * MIB, uuid_of(0))
    assert made.client().start().do("info") == [0, 500 * MIB, 1500 * MIB]


def test_each_card_has_its_limit_and_others_none(container):
    client = container(1000, 2000).client(FAKE_CUDA_DEVICES="3")
    assert client.do("init") == 0
    for device, size in enumerate((1000, 2000)):
        assert client.do(f"ctx {device}") == 0
        assert client.do("info") == [0, size * MIB, size * MIB]
        assert client.do(f"alloc plain {device} {size * MIB}") == 0
        assert client.do("alloc plain 9 1") == 2
    assert client.do("ctx 2") == 0
    assert client.do("alloc plain 9 1") == 2


def test_the_environment_of_a_program_changes_nothing(container):
    client = (
        container(1500)
        .client(
            CUDA_DEVICE_MEMORY_LIMIT_0="9000m",
            CUDA_DEVICE_SM_LIMIT="100",
            CUDA_DEVICE_MEMORY_SHARED_CACHE="/tmp/another.cache",
        )
        .start()
    )
    assert client.do("info") == [0, 1500 * MIB, 1500 * MIB]


def test_without_the_limits_file_the_region_is_preferred_to_the_environment(container):
    """As with HAMi's library, which knows no limits file."""
    made = container(1500)
    (made.directory / "limits").unlink()
    client = made.client(CUDA_DEVICE_MEMORY_LIMIT_0="9000m").start()
    assert client.do("info") == [0, 1500 * MIB, 1500 * MIB]


def test_a_started_again_container_has_the_same_region_without_what_was_left_in_it(container):
    made = container(1500)
    client = made.client().start()
    assert client.do(f"alloc plain 0 {1500 * MIB}") == 0
    client.kill()
    before = Region(made.path)
    before.write(1600, 99 * MIB, "<Q")  # a tenant can write to it
    made.start(keep=True)
    assert (before.slots(), before.limit(0)) == ([], 1500 * MIB)
    assert made.client().start().do("info") == [0, 1500 * MIB, 1500 * MIB]


def test_the_settings_of_the_pod_are_in_the_files(container):
    made = container(1500, CUDA_TASK_PRIORITY="0", GPU_CORE_UTILIZATION_POLICY="force")
    lines = (made.directory / "limits").read_text().splitlines()
    assert {
        "priority 0",
        "policy force",
        f"device {uuid_of(0)} memory={1500 * MIB} cores=30",
    } <= set(lines)
    assert made.client().start().do("info") == [0, 1500 * MIB, 1500 * MIB]


def measured(rig, monkeypatch, **more):
    for key, value in rig.environment(preload=False, **more).items():
        monkeypatch.setenv(key, value)
    return measure_context(uuid_of(0), "/")


def test_context_is_measured_on_an_idle_card(rig, monkeypatch):
    assert measured(rig, monkeypatch, FAKE_CUDA_CTX_MIB="400") == 400 * MIB


def test_context_is_not_measured_on_a_card_in_use(rig, monkeypatch):
    client = rig.client(preload=False).start()
    assert client.do(f"alloc plain 0 {MIB}") == 0
    with pytest.raises(HamiError, match="the card is in use"):
        measured(rig, monkeypatch)


def test_a_running_process_follows_limits_that_the_plugin_changes(container):
    """It allocates in a loop: more once it may have more, and nothing while it has more than it may."""
    made = container(1500)
    client = made.client().start()
    assert client.do(f"alloc plain 0 {1500 * MIB}") == 0
    assert client.do(f"alloc plain 1 {500 * MIB}") == 2
    made.resize(2000)
    eventually(lambda: client.do(f"alloc plain 1 {500 * MIB}") == 0, "the process gets more")
    assert client.do("info") == [0, 0, 2000 * MIB]
    made.resize(600)
    eventually(lambda: client.do("info")[2] == 600 * MIB, "the process may have less")
    assert client.do("alloc plain 2 1") == 2
    assert client.do("free plain 0") == 0
    assert client.do("info") == [0, 100 * MIB, 600 * MIB]
    assert client.do(f"alloc plain 2 {100 * MIB + 1}") == 2
    assert client.do(f"alloc plain 2 {100 * MIB}") == 0
    assert made.client().start().do("info") == [0, 0, 600 * MIB], "a process that starts later"


STOPPED_WRITER = """
import os, signal, sys
from hami.node.limits import DeviceLimit
from hami.node.live_limits import resize

def write_in_two(file, text, offset, write=os.pwrite):
    if b"memory=" not in text:  # of the region
        return write(file, text, offset)
    half = text.index(b"memory=") + len("memory=") + 4
    write(file, text[:half], 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    return half + write(file, text[half:], half)

os.pwrite = write_in_two
resize(os.open(sys.argv[1], os.O_RDONLY), [DeviceLimit(sys.argv[2], int(sys.argv[3]), 30)], cores=True)
"""


@pytest.fixture
def stopped_writer(container):
    """A container of 1,500 MiB; a process in it; a device plugin that gives it 2,000, stopped in the middle of
    its write, where the text is one of limits that nobody has chosen."""
    made = container(1500)
    first = made.client().start()
    directory = made.directory / "containers" / "uid_main"
    writer = subprocess.Popen(
        [sys.executable, "-c", STOPPED_WRITER, directory, uuid_of(0), str(2000 * MIB)]
    )
    os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
    limits = parse_limits((made.directory / "limits").read_text())
    assert limits.devices[0].memory not in (1500 * MIB, 2000 * MIB)
    yield made, first, writer
    writer.kill()
    writer.wait()


def test_half_a_text_is_never_a_limit(stopped_writer):
    """However long the device plugin is stopped in the middle of its write."""
    made, client, writer = stopped_writer
    for _ in range(12):  # it looks at the file once a second
        time.sleep(0.2)
        assert client.do("info")[2] == 1500 * MIB
    writer.send_signal(signal.SIGCONT)
    assert writer.wait() == 0
    eventually(lambda: client.do("info")[2] == 2000 * MIB, "the new limit")


def test_a_process_that_begins_while_limits_are_written_waits_for_them(stopped_writer):
    made, _, writer = stopped_writer
    client = made.client()
    client.send("init")
    time.sleep(0.1)
    writer.send_signal(signal.SIGCONT)
    assert client.answer() == [0]
    assert client.do("ctx 0") == 0
    assert client.do("info")[2] == 2000 * MIB


def test_what_a_killed_device_plugin_has_left_is_written_again(stopped_writer):
    """A process that begins before that has some limit; each has the new one afterwards."""
    made, first, writer = stopped_writer
    writer.kill()
    second = made.client().start()
    assert first.do("info")[2] == 1500 * MIB
    assert second.do("info")[2] != 0
    made.resize(2000)
    for client in (first, second):
        eventually(lambda: client.do("info")[2] == 2000 * MIB, "the new limit")
